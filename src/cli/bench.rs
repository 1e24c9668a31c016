//! `bench`: how fast prefill and decode are, and how near decode comes to what the memory delivers.

use super::options::ModelOptions;
use super::{Example, Failure, examples};

pub(super) const EXAMPLES: &[Example] = &[
    ("escarp bench --model SmolLM2.gguf", "prompts of 512 and 2,048 tokens"),
    ("escarp bench --model SmolLM2.gguf --sizes 512,2048,6144 --json", "as JSON"),
];

/// Options of `bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(super) struct Options {
    /// Prompt lengths, tokens
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "512,2048")]
    sizes: Vec<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelOptions,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let _ = (&options.sizes, options.json, &options.model);
    Err(Failure::run("not built yet"))
}
