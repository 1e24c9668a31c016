//! `bench specprefill`: the time to the first token of cold prompts, dense and sparse, through the engine itself.
//!
//! Every prompt length is computed densely and with each keep fraction, in an order that turns round with every repetition, so that a machine that
//! grows warm or busy is not read as an effect. Before each, everything cached is dropped, the scorer's state as well: a cold prompt is the case that
//! sparse prefill is made for. What it costs the requests after it is `compare`'s matter.

use std::sync::Arc;

use clap::ValueHint;
use serde::Serialize;

use super::super::options::ModelOptions;
use super::super::output::Output;
use super::super::progress::Progress;
use super::super::{Example, Failure, examples};
use super::running::{Running, Turn, session_of};
use crate::compare::Spread;
use crate::config::{Config, Override, SparseOverride};
use crate::engine::Command;
use crate::event::LaneId;
use crate::report::{Align, Table, or_dash, seconds, thousands};

pub(in crate::cli) const EXAMPLES: &[Example] = &[
    ("escarp bench specprefill", "the bundled pair, prompts of 500 to 32,000 tokens"),
    ("escarp bench specprefill --sizes 16000 --keep 0.1,0.2,0.4 --repeat 5 --json", "one length, as JSON"),
    ("escarp bench specprefill --scorer self:4", "scored by the model's own first four layers"),
];

/// Options of `bench specprefill`.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(in crate::cli) struct Options {
    /// Prompt lengths, tokens, about
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "500,1000,2000,4000,8000,16000,32000", value_parser = super::positive())]
    sizes: Vec<usize>,
    /// Fractions of the scored units to compute
    #[arg(long, value_name = "F,F", value_delimiter = ',', default_value = "0.1,0.2,0.4")]
    keep: Vec<f64>,
    /// Which model scores: `draft`, `self:N`, or a path
    #[arg(long, value_name = "SCORER", value_hint = ValueHint::AnyPath)]
    scorer: Option<String>,
    /// Repetitions; the median counts
    #[arg(long, value_name = "N", default_value = "3", value_parser = super::positive())]
    repeat: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelOptions,
}

/// Everything measured.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    scorer: String,
    device: String,
    kernel: String,
    precision: String,
    runs: Vec<Run>,
    /// For every keep fraction, where sparse is faster.
    crossover: Vec<Crossover>,
}

/// One prompt length.
#[derive(Debug, Serialize)]
struct Run {
    prompt_tokens: u64,
    dense: Spread,
    sparse: Vec<Sparse>,
}

/// One keep fraction.
#[derive(Debug, Serialize)]
struct Sparse {
    keep: f64,
    selected_tokens: u64,
    ttft_s: Spread,
    scorer_s: Spread,
    target_s: Spread,
    /// Dense over sparse time to the first token.
    gain: f64,
}

#[derive(Debug, Serialize)]
struct Crossover {
    keep: f64,
    faster: Faster,
    /// About the length from which on it is, where there is one.
    prompt_tokens: Option<u64>,
}

/// At which of the lengths measured sparse is faster.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Faster {
    Everywhere,
    /// At all from some length on.
    From,
    Nowhere,
    /// At some, but not at the longest.
    Mixed,
}

pub(in crate::cli) fn run(options: &Options) -> Result<(), Failure> {
    if let Some(keep) = options.keep.iter().find(|keep| !(**keep > 0.0 && **keep <= 1.0)) {
        return Err(Failure::input(format_args!("--keep: {keep} is no fraction above 0, up to 1")));
    }
    let mut sugar = vec![
        Override::new("bench specprefill", "replay.clock", "virtual"),
        Override::new("bench specprefill", "cache.enabled", false),
    ];
    sugar.extend(options.scorer.as_deref().map(|it| Override::new("--scorer", "specprefill.scorer", it)));
    let config = options.model.config(sugar)?;
    options.model.start_log()?;
    let report = measure(options, &config)?;
    let mut output = Output::stdout();
    if options.json { output.json(&report) } else { output.text(&report.table()) }
}

/// What a prompt is computed with: everything, or a fraction.
type Way = Option<f64>;

fn measure(options: &Options, config: &Config) -> Result<Report, Failure> {
    let mut progress = Progress::new();
    let ways: Vec<Way> = std::iter::once(None).chain(options.keep.iter().copied().map(Some)).collect();
    let (mut runs, mut facts) = (Vec::new(), None);
    for size in &options.sizes {
        progress.show(|| format!("a prompt of {} tokens", thousands(*size as u64)));
        let session = Arc::new(session_of(*size, config)?);
        let mut engine = Running::start(config, &session)?;
        // The first forward of a process pays for memory that the system has yet to hand over.
        cold(&mut engine, LaneId(0), None)?;
        let mut turns: Vec<Vec<Turn>> = ways.iter().map(|_| Vec::new()).collect();
        for repeat in 0..options.repeat {
            for step in 0..ways.len() {
                let way = if repeat % 2 == 0 { step } else { ways.len() - 1 - step };
                progress.show(|| {
                    let what = ways[way].map_or("dense".to_owned(), |keep| format!("keep {keep}"));
                    format!(
                        "{} tokens, {what}, {} of {}",
                        thousands(*size as u64),
                        repeat + 1,
                        options.repeat
                    )
                });
                let lane = engine.fork_same(&session)?;
                turns[way].push(cold(&mut engine, lane, ways[way])?);
            }
        }
        facts = Some(engine.end()?);
        runs.push(Run::of(&ways, &turns)?);
    }
    progress.wipe();
    let run = facts.ok_or_else(|| Failure::input("--sizes: give at least one"))?;
    let scorer = run.specprefill.map(|facts| facts.scorer);
    Ok(Report {
        model: run.model,
        scorer: scorer
            .ok_or_else(|| Failure::input("there is no scorer: set `model.draft`, or use --scorer self:N"))?,
        device: run.device,
        kernel: run.kernel,
        precision: run.precision,
        crossover: options.keep.iter().map(|keep| Crossover::of(*keep, &runs)).collect(),
        runs,
    })
}

/// Serves the request with nothing cached.
fn cold(engine: &mut Running, lane: LaneId, way: Way) -> Result<Turn, Failure> {
    engine.send(Command::EvictAll);
    engine.send(Command::SpecPrefill(SparseOverride {
        enabled: Some(way.is_some()),
        keep: way,
        threshold: Some(1),
    }));
    let turn = engine.turn(lane)?;
    if way.is_some() && turn.scored.is_none() {
        return Err(Failure::run(
            "the prompt was computed densely; see --log for why it could not be scored",
        ));
    }
    Ok(turn)
}

/// Times over the repetitions, seconds.
fn spread(times: impl Iterator<Item = f64>) -> Result<Spread, Failure> {
    Spread::of(times.map(Some)).ok_or_else(|| Failure::run("nothing was measured"))
}

impl Run {
    fn of(ways: &[Way], turns: &[Vec<Turn>]) -> Result<Run, Failure> {
        let dense = spread(turns[0].iter().map(|turn| turn.ttft.seconds()))?;
        let sparse = |(keep, turns): (f64, &Vec<Turn>)| {
            let ttft_s = spread(turns.iter().map(|turn| turn.ttft.seconds()))?;
            let scored = || turns.iter().filter_map(|turn| turn.scored.as_ref());
            Ok(Sparse {
                keep,
                selected_tokens: scored().map(|scored| scored.selected_tokens).max().unwrap_or(0),
                gain: dense.median / ttft_s.median,
                ttft_s,
                scorer_s: spread(scored().map(|scored| scored.took().seconds()))?,
                target_s: spread(turns.iter().map(|turn| turn.prefill.seconds()))?,
            })
        };
        let with_keep = ways.iter().zip(turns).filter_map(|(way, turns)| Some(((*way)?, turns)));
        Ok(Run {
            prompt_tokens: turns[0].first().map_or(0, |turn| turn.prompt_tokens),
            dense,
            sparse: with_keep.map(sparse).collect::<Result<_, Failure>>()?,
        })
    }
}

impl Crossover {
    /// Where the gain passes 1, by a straight line between the two lengths around it.
    fn of(keep: f64, runs: &[Run]) -> Crossover {
        let mut gains: Vec<(f64, f64)> = runs
            .iter()
            .flat_map(|run| run.sparse.iter().map(move |sparse| (run, sparse)))
            .filter(|(_, sparse)| sparse.keep == keep)
            .map(|(run, sparse)| (run.prompt_tokens as f64, run.dense.median - sparse.ttft_s.median))
            .collect();
        gains.sort_by(|a, b| a.0.total_cmp(&b.0));
        let longer = gains.iter().rev().take_while(|(_, gain)| *gain > 0.0).count();
        let (below, from) = gains.split_at(gains.len() - longer);
        let (faster, prompt_tokens) = match (below.last(), from.first()) {
            (_, None) if below.iter().any(|(_, gain)| *gain > 0.0) => (Faster::Mixed, None),
            (_, None) => (Faster::Nowhere, None),
            (None, Some(_)) => (Faster::Everywhere, None),
            (Some((short, loss)), Some((long, gain))) => {
                (Faster::From, Some((short + (long - short) * -loss / (gain - loss)) as u64))
            }
        };
        Crossover { keep, faster, prompt_tokens }
    }
}

impl Report {
    fn table(&self) -> String {
        let mut table = Table::new(&[
            ("prompt", Align::Right),
            ("keep", Align::Right),
            ("computed", Align::Right),
            ("scorer", Align::Right),
            ("target", Align::Right),
            ("first token", Align::Right),
            ("range", Align::Right),
            ("gain", Align::Right),
        ]);
        let range = |spread: Spread| format!("{}–{}", seconds(spread.min), seconds(spread.max));
        for run in &self.runs {
            let prompt = thousands(run.prompt_tokens);
            table.row([
                prompt.clone(),
                "all".to_owned(),
                prompt.clone(),
                "–".to_owned(),
                seconds(run.dense.median),
                seconds(run.dense.median),
                range(run.dense),
                "1.00x".to_owned(),
            ]);
            for sparse in &run.sparse {
                table.row([
                    String::new(),
                    format!("{}", sparse.keep),
                    thousands(sparse.selected_tokens),
                    seconds(sparse.scorer_s.median),
                    seconds(sparse.target_s.median),
                    seconds(sparse.ttft_s.median),
                    range(sparse.ttft_s),
                    format!("{:.2}x", sparse.gain),
                ]);
            }
        }
        let Report { model, scorer, device, kernel, precision, .. } = self;
        let crossings = self.crossover.iter().map(|crossover| {
            let where_faster = match crossover.faster {
                Faster::Everywhere => "faster at every length measured".to_owned(),
                Faster::Nowhere => "faster at no length measured".to_owned(),
                Faster::Mixed => "faster at some lengths, but not at the longest".to_owned(),
                Faster::From => {
                    let from = or_dash(crossover.prompt_tokens, thousands);
                    format!("faster from about {from} tokens on")
                }
            };
            format!("keep {}: {where_faster}", crossover.keep)
        });
        format!(
            "{model} {precision} scored by {scorer} · {device} {kernel} · cold prompts, nothing cached\n\n{table}\n{}\n",
            crossings.collect::<Vec<_>>().join(" · ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crossover_is_where_the_gain_passes_nought_whatever_the_order_of_lengths() {
        let crossover = |gains: &[(u64, f64)]| {
            let spread = |median| Spread { median, min: median, max: median, repeats: 1 };
            let run = |(prompt_tokens, gain): &(u64, f64)| Run {
                prompt_tokens: *prompt_tokens,
                dense: spread(10.0),
                sparse: vec![Sparse {
                    keep: 0.2,
                    selected_tokens: 1,
                    ttft_s: spread(10.0 - gain),
                    scorer_s: spread(1.0),
                    target_s: spread(1.0),
                    gain: 1.0,
                }],
            };
            let runs: Vec<Run> = gains.iter().map(run).collect();
            let found = Crossover::of(0.2, &runs);
            (found.faster, found.prompt_tokens)
        };
        assert_eq!(crossover(&[(1000, -1.0), (3000, 1.0)]), (Faster::From, Some(2000)));
        assert_eq!(crossover(&[(3000, 1.0), (1000, -1.0)]), (Faster::From, Some(2000)));
        assert_eq!(crossover(&[(1000, 1.0), (3000, 2.0)]), (Faster::Everywhere, None));
        assert_eq!(crossover(&[(1000, -1.0), (3000, 0.0)]), (Faster::Nowhere, None));
        assert_eq!(crossover(&[(1000, 1.0), (3000, -1.0)]), (Faster::Mixed, None));
    }
}
