//! `replay`: a session, headless, through the same engine as the interface.

use super::options::ReplayOptions;
use super::{Example, Failure, examples};

pub(super) const EXAMPLES: &[Example] = &[
    ("escarp replay --device sim --session steady", "one row a request, no model file needed"),
    ("escarp replay --model SmolLM2.gguf --session compaction --json", "one JSON object a request"),
    (
        "escarp replay --device sim --session steady --turns 3 --record run.jsonl",
        "keep the events of three requests",
    ),
    ("escarp replay --device sim --set cache.block_tokens=128 --idle zero", "with other settings"),
];

/// Options of `replay`.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(super) struct Options {
    /// Stop after N requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    turns: Option<u32>,
    /// Print one JSON object a request
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    replay: ReplayOptions,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let _ = (options.turns, options.json, &options.replay);
    Err(Failure::run("the engine is not built yet"))
}
