//! `bench speculation`: what drafting wins, by drafter, depth and kind of text, and whether its prediction holds.

mod cell;
mod curve;
mod matrix;
mod prompts;
mod view;

use serde::Serialize;

use self::cell::{Cell, cells};
use self::curve::Curve;
use self::matrix::{Asked, Stage, Way, schedule};
use self::prompts::Kind;
use self::view::Claim;
use crate::cli::options::{ArithmeticOptions, ModelOptions};
use crate::cli::output::Output;
use crate::cli::progress::Progress;
use crate::cli::{Example, Failure, examples};
use crate::config::{Config, DrafterKind, Override, SpeculationConfig};
use crate::event::Identity;
use crate::report::thousands;

pub(crate) const EXAMPLES: &[Example] = &[
    (
        "escarp bench speculation",
        "three drafters, depths 1 to 4 and adaptive, three kinds of text: some minutes",
    ),
    (
        "escarp bench speculation --drafters ngram --depths 4,adaptive --prompts copy --repeat 3",
        "a part of it",
    ),
    ("escarp bench speculation --contexts 1000,8000 --prompts copy --json", "as JSON"),
];

/// Options of `bench speculation`.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(super) struct Options {
    /// Drafters: `ngram`, `mtp`, `draft`; all that the model has unless given
    #[arg(long, value_name = "WORD,WORD", value_delimiter = ',', value_parser = drafter)]
    drafters: Option<Vec<DrafterKind>>,
    /// Depths, each 1 to 16, and `adaptive`
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,2,3,4,adaptive", value_parser = depth)]
    depths: Vec<Depth>,
    /// The greatest depth that `adaptive` may choose
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u32).range(1..=i64::from(SpeculationConfig::MAX_DEPTH)))]
    adaptive_max: u32,
    /// Kinds of text
    #[arg(long, value_name = "WORD,WORD", value_delimiter = ',', default_value = "code,prose,copy")]
    prompts: Vec<Kind>,
    /// Repetitions of every cell, of which the median counts
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..=99))]
    repeat: u32,
    /// Reply tokens of a run at most; several questions share them evenly
    #[arg(long, value_name = "N", default_value = "512", value_parser = clap::value_parser!(u64).range(16..=65_536))]
    output_tokens: u64,
    /// Contexts at which forwards of 1 to 8 tokens are measured, tokens; 0 for none
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1000,4000,14000")]
    contexts: Vec<usize>,
    #[command(flatten)]
    arithmetic: ArithmeticOptions,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelOptions,
}

/// A depth as it is asked for; `None` is adaptive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Depth(Option<u32>);

fn drafter(word: &str) -> Result<DrafterKind, String> {
    let found = DrafterKind::parse(word).filter(|drafter| *drafter != DrafterKind::None);
    found.ok_or_else(|| "expected `ngram`, `mtp` or `draft`".to_owned())
}

fn depth(word: &str) -> Result<Depth, String> {
    let most = SpeculationConfig::MAX_DEPTH;
    match word {
        "adaptive" => Ok(Depth(None)),
        word => match word.parse() {
            Ok(depth) if (1..=most).contains(&depth) => Ok(Depth(Some(depth))),
            _ => Err(format!("expected `adaptive`, or a depth from 1 to {most}")),
        },
    }
}

/// Everything measured. A figure is null where it was not.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    draft_model: Option<String>,
    device: String,
    kernel: String,
    precision: String,
    identity: Identity,
    repeats: u32,
    adaptive_max: u32,
    /// Drafters that the model has not, and why.
    skipped: Vec<Skipped>,
    cells: Vec<Cell>,
    claims: Vec<Claim>,
    curves: Vec<Curve>,
}

/// A drafter of which there are no cells.
#[derive(Debug, Serialize)]
struct Skipped {
    drafter: DrafterKind,
    reason: String,
}

impl Options {
    /// The drafters that were asked for; where none were, those that the model has, and why it has not the others.
    fn drafters(&self, config: &Config) -> (Vec<DrafterKind>, Vec<Skipped>) {
        if let Some(drafters) = &self.drafters {
            return (drafters.clone(), Vec::new());
        }
        let (mut drafters, mut skipped) = (Vec::new(), Vec::new());
        for drafter in [DrafterKind::Ngram, DrafterKind::Mtp, DrafterKind::Draft] {
            match matrix::lacking(config, drafter) {
                Some(reason) => skipped.push(Skipped { drafter, reason }),
                None => drafters.push(drafter),
            }
        }
        (drafters, skipped)
    }
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let option = "bench speculation";
    let sugar = [
        Override::new(option, "replay.clock", "virtual"),
        Override::new(option, "sampling.temperature", 0.0),
        Override::new(option, "specprefill.enabled", false),
        Override::new(option, "speculation.audit", false),
        Override::new(option, "speculation.curve", false),
    ];
    let config = options.model.config(options.arithmetic.sugar().chain(sugar))?;
    options.model.start_log()?;
    let mut ways = Vec::new();
    let (drafters, skipped) = options.drafters(&config);
    for drafter in &drafters {
        ways.extend(options.depths.iter().map(|Depth(depth)| Way { drafter: *drafter, depth: *depth }));
    }
    let runs = schedule(&options.prompts, &ways, options.repeat as usize);
    let mut progress = Progress::new();
    let asked = Asked { output_tokens: options.output_tokens, adaptive_max: options.adaptive_max };
    // First, since they take seconds and a context that the model has not is an error.
    let mut curves = Vec::new();
    for tokens in options.contexts.iter().filter(|tokens| **tokens > 0) {
        progress.show(|| format!("forwards at {} tokens", thousands(*tokens as u64)));
        curves.push(curve::measure(&config, *tokens)?);
    }
    let (facts, told) = matrix::run(&config, &runs, asked, |index, run| {
        progress.show(|| {
            let name = match (run.way.drafter, run.cold) {
                (DrafterKind::None, _) => "no drafter".to_owned(),
                (drafter, true) => drafter.word().to_owned(),
                (drafter, false) => view::name(drafter, run.way.depth),
            };
            let what = match (run.stage, run.cold) {
                (_, true) => ", cold",
                (Stage::First, _) if run.way != Way::NONE => ", first run",
                _ => "",
            };
            format!("run {} of {}: {}, {name}{what}", index + 1, runs.len(), run.kind.word())
        });
    })?;
    progress.wipe();
    let cells = cells(&told, &options.prompts, &ways);
    let report = Report {
        draft_model: facts.speculation.as_ref().and_then(|facts| facts.draft_model.clone()),
        model: facts.model,
        device: facts.device,
        kernel: facts.kernel,
        precision: facts.precision,
        identity: facts.identity,
        repeats: options.repeat,
        adaptive_max: options.adaptive_max,
        skipped,
        claims: view::claims(&cells, facts.identity),
        cells,
        curves,
    };
    let mut output = Output::stdout();
    if options.json {
        output.json(&report)?;
    } else {
        output.text(&view::text(&report))?;
    }
    let broken = report.cells.iter().any(|cell| !cell.identical);
    match report.identity {
        Identity::Bitwise | Identity::Simulated if broken => Err(Failure::run(format_args!(
            "a reply is not that of ordinary decoding, and {} promises the same bits",
            report.device
        ))),
        _ => Ok(()),
    }
}
