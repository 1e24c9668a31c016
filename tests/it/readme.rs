//! The README says what is so: its tables are generated, its commands parse, its links lead somewhere.
//!
//! To bring the generated parts up to date, run the tests with `ESCARP_BLESS=1` and look at the difference.

use std::path::Path;

use clap::{CommandFactory, Parser};
use escarp::cli::Args;

fn path() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")
}

fn readme() -> String {
    std::fs::read_to_string(path()).unwrap()
}

/// Compares the part between `<!-- name -->` and `<!-- /name -->` with what it should be.
fn check_generated(name: &str, wanted: &str) {
    let text = readme();
    let (open, close) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let start = text.find(&open).unwrap_or_else(|| panic!("README.md has no {open}")) + open.len();
    let end = start + text[start..].find(&close).unwrap_or_else(|| panic!("README.md has no {close}"));
    if std::env::var_os("ESCARP_BLESS").is_some() {
        // Other tests read the file meanwhile.
        let new = path().with_extension("md.new");
        std::fs::write(&new, format!("{}{wanted}{}", &text[..start], &text[end..])).unwrap();
        std::fs::rename(new, path()).unwrap();
    } else {
        assert_eq!(
            &text[start..end],
            wanted,
            "README.md: the part `{name}` is out of date; see tests/it/readme.rs"
        );
    }
}

#[test]
fn generated_parts_are_up_to_date() {
    check_generated("keys", &escarp::tui::action::readme_table());
    check_generated("commands", &command_table());
    check_generated("sessions", &session_table());
}

fn command_table() -> String {
    let mut table = String::from("| command | what it does |\n|---|---|\n");
    for command in Args::command().get_subcommands() {
        let about = command.get_about().map(|about| about.to_string()).unwrap_or_default();
        table += &format!("| `escarp {}` | {about} |\n", command.get_name());
    }
    table
}

fn session_table() -> String {
    let mut table = String::from("| session | what it shows |\n|---|---|\n");
    for (name, _) in escarp::session::bundled() {
        let session = escarp::session::open(name).unwrap();
        table += &format!("| `{name}` | {} |\n", session.description);
    }
    table
}

/// The lines of the README's shell blocks.
fn shell_lines() -> Vec<String> {
    let text = readme();
    let blocks = text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.flat_map(str::lines).map(str::to_owned).collect()
}

#[test]
fn every_command_line_parses() {
    let mut checked = 0;
    for line in shell_lines() {
        let arguments = match (line.split_once("cargo run --release -- "), line.strip_prefix("escarp ")) {
            (Some((_, arguments)), _) | (None, Some(arguments)) => arguments,
            (None, None) => continue,
        };
        let words = std::iter::once("escarp").chain(arguments.split_whitespace());
        if let Err(error) = Args::try_parse_from(words) {
            panic!("README.md: {line}\n{error}");
        }
        checked += 1;
    }
    assert!(checked >= 5, "only {checked} command lines found");
}

#[test]
fn the_test_command_is_the_one_that_is_run_before_a_change_is_taken() {
    let ci = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci/run")).unwrap();
    let lines = shell_lines();
    let command = lines.iter().find(|line| line.starts_with("cargo test")).unwrap();
    assert!(ci.lines().any(|line| line == format!("step tests {command}")), "{command} is not in {ci}");
}

#[test]
fn links_and_folders_exist() {
    let text = readme();
    let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let folders =
        text.lines().filter(|line| line.starts_with("| `") && line.contains("` |")).flat_map(|line| {
            let first = line.split(" | ").next().unwrap_or_default();
            first
                .split('`')
                .filter(|word| word.contains("src/") || ["sessions", "tests", "assets"].contains(word))
                .collect::<Vec<_>>()
        });
    let anchor = |heading: &str| heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
    let anchors: Vec<String> = text.lines().filter(|line| line.starts_with("##")).map(anchor).collect();
    for target in links.filter(|link| !link.contains("://")).chain(folders) {
        if let Some(target) = target.strip_prefix('#') {
            assert!(anchors.iter().any(|anchor| anchor == target), "README.md has no heading for #{target}");
            continue;
        }
        assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join(target).exists(), "README.md leads to {target}");
    }
}

#[test]
fn the_session_in_the_readme_is_one() {
    let text = readme();
    let example = text.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let session = escarp::session::file::parse(example, Path::new("README.md")).unwrap();
    assert_eq!(session.requests.len(), 2);
}
