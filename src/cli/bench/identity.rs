//! `bench identity`: what changes when the same tokens are computed by another route, and what the device promises about it.

mod view;

use std::sync::Arc;

use clap::builder::RangedU64ValueParser;

use self::view::{Subject, View};
use super::RandomTokens;
use crate::cli::options::{ArithmeticOptions, ModelOptions};
use crate::cli::output::Output;
use crate::cli::progress::Progress;
use crate::cli::{Example, Failure, examples};
use crate::device::ExecutorFacts;
use crate::device::identity::{Plan, measure, positions};
use crate::model;
use crate::model::text::TextCodec;
use crate::report::thousands;
use crate::session::{self, Player, ReplayMode};

pub(crate) const EXAMPLES: &[Example] = &[
    ("escarp bench identity", "the bundled model: every route, one table"),
    ("escarp bench identity --model SmolLM2.gguf --tokens 300 --json", "as JSON"),
    (
        "escarp bench identity --device sim --tokens 600",
        "of the pseudo-model, whose logits are drawn from a digest",
    ),
];

/// Tokens after the prompt that the routes compute one at a time or several at once.
const DECODED: usize = 32;
/// Bytes of reference logits that are held: 640 positions of a vocabulary of 49,152.
const LOGIT_BYTES: usize = 128 << 20;

/// Options of `bench identity`.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(super) struct Options {
    /// Tokens of the sequence, the last 32 of which are computed after the prompt [default: two and a half blocks]
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(DECODED as u64 + 2..))]
    tokens: Option<usize>,
    /// Tokens of greedy text; 0 compares logits only
    #[arg(long, value_name = "N", default_value = "64")]
    generate: usize,
    /// The session whose rendered prompt is the text; a model without tokenizer gets random tokens
    #[arg(long, value_name = "NAME|FILE", default_value = "steady")]
    session: String,
    #[command(flatten)]
    arithmetic: ArithmeticOptions,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelOptions,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let config = options.model.config(options.arithmetic.sugar())?;
    options.model.start_log()?;
    let mut loaded = model::load(&config)?;
    let facts = loaded.executor.facts().clone();
    let length = length(options, &facts)?;
    let source = loaded.text.has_tokenizer().then_some(options.session.as_str());
    let tokens = match source {
        Some(session) => words(session, &loaded.text, length)?,
        None => RandomTokens { state: 1, vocab: facts.vocab }.take(length).collect(),
    };
    let plan = Plan {
        tokens: &tokens,
        decoded: DECODED,
        chunk_tokens: config.scheduler.chunk_tokens,
        generated: options.generate,
        logit_bytes: LOGIT_BYTES,
    };
    let mut progress = Progress::new();
    let mut watch = |what: &str, position: usize| {
        progress.show(|| format!("{what}: token {}", thousands(position as u64)));
    };
    let measured = measure(&mut *loaded.executor, &plan, &mut watch).map_err(Failure::run)?;
    drop(progress);
    let spell = |token: u32| loaded.text.decode(&[token], true);
    let view = View { subject: Subject::new(&facts, &plan, source), measured: &measured, spell: &spell };
    let mut output = Output::stdout();
    if options.json {
        output.json(&view.json())?
    } else {
        output.text(&view.text())?
    }
    if measured.promise_kept() {
        return Ok(());
    }
    let device = facts.device;
    Err(Failure::run(format_args!("{device} does not keep what it promises; see the rows that differ")))
}

/// Tokens of the sequence.
fn length(options: &Options, facts: &ExecutorFacts) -> Result<usize, Failure> {
    let positions = |length| positions(length, DECODED, options.generate);
    let least = DECODED + 2;
    let held = facts.context_tokens;
    let Some(most) = held.checked_sub(positions(least)).map(|left| least + left) else {
        return Err(Failure::input(format_args!(
            "--generate: {} tokens of text take {} positions and the context holds {held}; generate fewer",
            options.generate,
            positions(least)
        )));
    };
    let default = (facts.page_tokens * 5 / 2).clamp(256, 1024).min(most);
    match options.tokens {
        Some(asked) if positions(asked) > held => Err(Failure::input(format_args!(
            "--tokens: {asked} tokens take {} positions with what is generated, and the context holds {held}; give at most {most}",
            positions(asked)
        ))),
        asked => Ok(asked.unwrap_or(default)),
    }
}

/// The first `length` tokens of a session's rendered prompts; fewer where its longest has fewer.
fn words(session: &str, text: &TextCodec, length: usize) -> Result<Vec<u32>, Failure> {
    let mut player = Player::new(Arc::new(session::open(session)?), ReplayMode::Recorded);
    let mut longest = Vec::new();
    while let Some(turn) = player.take() {
        let rendered = text.render(&turn.conversation).map_err(Failure::input)?.tokens;
        if rendered.len() > longest.len() {
            longest = rendered;
        }
        if longest.len() >= length {
            break;
        }
        player.reply("");
    }
    longest.truncate(length);
    if longest.len() < DECODED + 2 {
        let (found, least) = (longest.len(), DECODED + 2);
        return Err(Failure::input(format_args!(
            "--session: the prompts of `{session}` have {found} tokens at most; give a session with {least}"
        )));
    }
    Ok(longest)
}
