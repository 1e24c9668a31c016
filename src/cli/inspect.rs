//! `inspect`: what a file contains, whichever kind it is.

use std::path::PathBuf;

use clap::ValueHint;

use super::{Example, Failure, examples};

pub(super) const EXAMPLES: &[Example] = &[
    ("escarp inspect SmolLM2.gguf", "a model: architecture, tensors, tokenizer"),
    ("escarp inspect steady", "a bundled session: its requests and how history changes"),
    ("escarp inspect my-session.jsonl --model SmolLM2.gguf", "a session, counted in this model's tokens"),
    ("escarp inspect run.jsonl --json", "a recording: the run, its rows, its ledger hash"),
];

/// Options of `inspect`.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(super) struct Options {
    /// A model (GGUF file or folder), a session (bundled name or file), or a recording
    #[arg(value_name = "WHAT", value_hint = ValueHint::AnyPath)]
    what: PathBuf,
    /// Count a session's tokens with this model's tokenizer
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    model: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let _ = (&options.what, &options.model, options.json);
    Err(Failure::run("not built yet"))
}
