//! `tui`: the interface.

use std::path::PathBuf;

use clap::ValueHint;

use super::options::ReplayOptions;
use super::{Example, Failure, examples};

pub(super) const EXAMPLES: &[Example] = &[
    ("escarp tui --device sim --session steady", "no model file needed"),
    ("escarp tui --model SmolLM2.gguf --session tools-change", "a session whose tool list changes"),
    ("escarp tui --recording run.jsonl", "open a recorded run in the same panes"),
];

/// Options of `tui`.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(super) struct Options {
    /// Open a recording instead of running an engine
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    recording: Option<PathBuf>,
    #[command(flatten)]
    replay: ReplayOptions,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let _ = (&options.recording, &options.replay);
    Err(Failure::run("the interface is not built yet"))
}
