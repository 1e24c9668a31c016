//! `logits`: the logits of a token sequence, straight from the executor.

use clap::builder::RangedU64ValueParser;
use serde::Serialize;

use super::direct::Sequence;
use super::options::ModelOptions;
use super::output::Output;
use super::{Example, Failure, examples};
use crate::config::Override;
use crate::device::LogitRows;
use crate::model;
use crate::report::{Align, Table};

pub(super) const EXAMPLES: &[Example] = &[
    ("escarp logits --model SmolLM2.gguf --tokens 1,2,3 --json", "every logit, float32, one row a token"),
    (
        "escarp logits --model SmolLM2.gguf --tokens 1,2,3 --precision f32 --chunk 1",
        "the likeliest next token at each position, computed token by token in f32",
    ),
    ("escarp logits --device sim --tokens 1,2,3", "of the pseudo-model"),
];

/// Options of `logits`.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(super) struct Options {
    /// The tokens' ids
    #[arg(long, value_name = "IDS", value_delimiter = ',', required = true)]
    tokens: Vec<u32>,
    /// Precision of the linear layers [default: int8 on cpu, the file's floats on mlx]
    #[arg(long, value_parser = ["f32", "int8"], value_name = "PRECISION")]
    precision: Option<String>,
    /// Compute N tokens at a time [default: all at once]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    chunk: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelOptions,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Logits<'a> {
    tokens: &'a [u32],
    logits: Vec<&'a [f32]>,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let precision = options.precision.as_deref().map(|p| Override::new("--precision", "model.precision", p));
    let config = options.model.config(precision)?;
    options.model.start_log()?;
    let mut loaded = model::load(&config)?;
    let facts = loaded.executor.facts().clone();
    let tokens = options.tokens.as_slice();
    if let Some(token) = tokens.iter().find(|t| **t as usize >= facts.vocab) {
        let message =
            format!("--tokens: {token} is not in the vocabulary; ids go from 0 to {}", facts.vocab - 1);
        return Err(Failure::input(message));
    }
    if tokens.len() > facts.context_tokens {
        let (given, held) = (tokens.len(), facts.context_tokens);
        let message = format!("--tokens: {given} are more than the context holds; give at most {held}");
        return Err(Failure::input(message));
    }
    let mut sequence = Sequence::new(&mut *loaded.executor, tokens.len()).map_err(Failure::run)?;
    let mut flat = Vec::with_capacity(tokens.len() * facts.vocab);
    for chunk in tokens.chunks(options.chunk.unwrap_or(tokens.len())) {
        flat.extend(sequence.extend(chunk, LogitRows::All).map_err(Failure::run)?.logits);
    }
    let rows: Vec<_> = flat.chunks_exact(facts.vocab).collect();
    let mut output = Output::stdout();
    if options.json {
        return output.json(&Logits { tokens, logits: rows });
    }
    let mut table = Table::new(&[
        ("position", Align::Right),
        ("token", Align::Right),
        ("text", Align::Left),
        ("likeliest next", Align::Right),
        ("logit", Align::Right),
        ("text", Align::Left),
    ]);
    for ((position, token), row) in tokens.iter().enumerate().zip(rows) {
        let Some((next, logit)) = likeliest(row) else { continue };
        table.row([
            position.to_string(),
            token.to_string(),
            loaded.text.decode(&[*token], true),
            next.to_string(),
            format!("{logit:.4}"),
            loaded.text.decode(&[next], true),
        ]);
    }
    output.text(&table.to_string())
}

/// The first of the highest logits, with its id.
fn likeliest(row: &[f32]) -> Option<(u32, f32)> {
    let best =
        row.iter().copied().enumerate().reduce(|best, next| if next.1 > best.1 { next } else { best })?;
    Some((u32::try_from(best.0).ok()?, best.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tie_goes_to_the_lower_id() {
        assert_eq!(likeliest(&[0.0, 2.0, 2.0, -1.0]), Some((1, 2.0)));
        assert_eq!(likeliest(&[]), None);
    }
}
