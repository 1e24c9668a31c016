//! `report`: recordings as a Markdown file with charts.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::ValueHint;

use super::output::Output;
use super::{Example, Failure, examples};
use crate::compare::Comparison;
use crate::event::record;
use crate::report::{self, counted};

pub(super) const EXAMPLES: &[Example] = &[
    ("escarp report run.dense.jsonl run.sparse.jsonl", "lanes that `compare --record run.jsonl` recorded"),
    ("escarp report trace-b --out trace-b.md", "the published trace of a cache cliff"),
];

/// Options of `report`.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(super) struct Options {
    /// Recordings of the same session, one a lane; a lane is called what stands before its file's extension
    #[arg(value_name = "FILE", required = true, num_args = 1..=4, value_hint = ValueHint::FilePath)]
    recordings: Vec<PathBuf>,
    /// Where to write it; charts go beside it as NAME-CHART.svg
    #[arg(long, value_name = "FILE", default_value = "report.md", value_hint = ValueHint::FilePath)]
    out: PathBuf,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let mut comparison = Comparison::new(lane_names(&options.recordings));
    for (lane, path) in options.recordings.iter().enumerate() {
        for event in record::open(path)? {
            comparison.apply_event(lane, &event);
        }
    }
    if let Some(mismatch) = comparison.mismatch() {
        return Err(Failure::input(format_args!("{mismatch}: give recordings of lanes of one session")));
    }
    let charts = write(&comparison, &options.out, &command_line(std::env::args_os()))?;
    let shown = options.out.display();
    Output::stdout().text(&format!("{shown}: written, with {} beside it\n", counted(charts, "chart")))
}

/// Refuses a place that a report cannot be written to, before there is one.
pub(super) fn check_place(path: &Path) -> Result<(), Failure> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let writable = std::fs::metadata(folder).is_ok_and(|is| is.is_dir() && !is.permissions().readonly());
    if writable && !path.is_dir() {
        return Ok(());
    }
    let shown = path.display();
    Err(Failure::input(format_args!(
        "--report {shown}: cannot be written there; name a file in a folder that exists"
    )))
}

/// Writes the report to `path` and its charts beside it. Gives the number of charts.
pub(super) fn write(comparison: &Comparison, path: &Path, command: &str) -> Result<u64, Failure> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let report = report::report(comparison, &stem, command);
    let put = |path: &Path, text: &str| {
        let told = |error| Failure::run(format_args!("{}: cannot be written: {error}", path.display()));
        std::fs::write(path, text).map_err(told)
    };
    for chart in &report.charts {
        put(&path.with_file_name(format!("{stem}-{}.svg", chart.name)), &chart.svg)?;
    }
    put(path, &report.markdown)?;
    Ok(report.charts.len() as u64)
}

/// Names of lanes: `sparse` of `run.sparse.jsonl`, `run` of `run.jsonl`. Equal ones are numbered.
fn lane_names(paths: &[PathBuf]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for path in paths {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let name = stem.rsplit('.').next().unwrap_or_default();
        // The name becomes part of a file's name.
        let name: String = name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '-' })
            .collect();
        let taken = |name: &String| names.contains(name);
        let numbered = (2..).map(|n| format!("{name}-{n}"));
        let free = std::iter::once(name.clone()).chain(numbered).find(|name| !taken(name));
        names.extend(free);
    }
    names
}

/// A command line as a shell takes it.
pub(super) fn command_line(arguments: impl Iterator<Item = OsString>) -> String {
    let quoted = |word: &str| {
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
        match !word.is_empty() && word.chars().all(fits) {
            true => word.to_owned(),
            false => format!("'{}'", word.replace('\'', r"'\''")),
        }
    };
    let words = arguments.skip(1).map(|word| quoted(&word.to_string_lossy()));
    std::iter::once("escarp".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_called_as_their_files() {
        let names = |paths: &[&str]| lane_names(&paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(names(&["a/run.dense.jsonl", "run.sparse.jsonl"]), ["dense", "sparse"]);
        assert_eq!(names(&["run.jsonl", "b/run.jsonl", "trace-b"]), ["run", "run-2", "trace-b"]);
        assert_eq!(names(&["a <b>.jsonl"]), ["a--b-"]);
    }

    #[test]
    fn a_command_line_can_be_pasted_into_a_shell() {
        let words = ["/x/escarp", "compare", "--lane", "a:b.c=1", "--break", "suffix>4", "it's", ""];
        let line = command_line(words.iter().map(OsString::from));
        assert_eq!(line, r"escarp compare --lane a:b.c=1 --break 'suffix>4' 'it'\''s' ''");
    }
}
