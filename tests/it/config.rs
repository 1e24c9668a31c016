//! Configuration files: the documented defaults, the examples, and what bad ones are told.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use escarp::config::{self, Config, DEFAULTS, DeviceSetting, Override, load};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(folder: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn the_documented_defaults_are_the_defaults() {
    assert_eq!(load(Some(&root().join("configs/default.toml")), &[]).unwrap(), Config::default());
}

/// `section.key` of every line of `text` that sets a key, commented out or not.
fn documented(text: &str) -> BTreeSet<String> {
    let mut section = "";
    let mut keys = BTreeSet::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name;
        } else if let Some((key, _)) = line.trim_start_matches("# ").split_once(" = ") {
            keys.insert(format!("{section}.{key}"));
        }
    }
    keys
}

/// `section.key` of every key there is, as the error about a key that is none lists them.
fn existing() -> BTreeSet<String> {
    let listed = |toml: &str| -> Vec<String> {
        let message = toml::from_str::<Config>(toml).unwrap_err().message().to_owned();
        message.split('`').skip(3).step_by(2).map(str::to_owned).collect()
    };
    let keys = |section: &String| listed(&format!("[{section}]\nno_such_key = 1")).into_iter();
    // In place of the sections of transports, of which there may be any number, those that come with the program.
    let transports =
        Config::default().policy.names().map(|name| format!("policy.{name}")).collect::<Vec<_>>();
    let sections = listed("no_such_section = 1").into_iter().filter(|section| section != "policy");
    let sections: Vec<_> = sections.chain(transports).collect();
    sections.iter().flat_map(|section| keys(section).map(move |key| format!("{section}.{key}"))).collect()
}

#[test]
fn the_documented_defaults_name_every_key_and_no_other() {
    assert!(existing().contains("cache.block_tokens") && existing().contains("model.path"));
    assert_eq!(documented(DEFAULTS), existing());
}

#[test]
fn every_key_can_be_set() {
    for key in existing() {
        let error = load(None, &[Override::new("test", &key, toml::Value::Array(Vec::new()))]).unwrap_err();
        assert!(error.problem.starts_with(&format!("`{key}`: ")), "{error}");
    }
}

#[test]
fn the_examples_are_valid() {
    for file in files("configs") {
        load(Some(&file), &[]).unwrap_or_else(|error| panic!("{error}"));
    }
    let sim = load(Some(&root().join("configs/sim.toml")), &[]).unwrap();
    assert_eq!((sim.model.device, sim.replay.clock), (DeviceSetting::Sim, config::ClockKind::Virtual));
}

#[test]
fn invalid_files_are_told_line_key_and_remedy() {
    let mut told = String::new();
    for file in files("tests/fixtures/configs/invalid") {
        let error = load(Some(&file), &[]).expect_err("this file must be refused").to_string();
        let folder = format!("{}/", file.parent().unwrap().display());
        told += &error.replace(&folder, "");
        told.push('\n');
    }
    insta::assert_snapshot!(told);
}
