//! `bench recovery`: what background recovery pays back, what it takes for that, and who waits for it.
//!
//! Three parts. *Lanes*: dense, sparse, and sparse with recovery that publishes at the end or block by block, on a session that grows; its gaps are the
//! study's 15 s, scaled by how much faster this machine computes. *Grid*: block-by-block recovery over gaps, slices, adoption grains and budgets. *Delay*:
//! requests sent at random moments into a job that runs, under the wall clock, with slices that give way between layers and such that do not.

mod delay;
mod grid;
mod lanes;
mod view;

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};

use clap::{ValueEnum, ValueHint};
use serde::Serialize;

use super::super::launch::LaneRuns;
use super::super::options::ModelOptions;
use super::super::output::Output;
use super::super::progress::Progress;
use super::super::{Example, Failure, examples};
use crate::compare::{Comparison, LaneSpec, News};
use crate::config::{Config, Override};
use crate::engine::Command;
use crate::event::{Gate, LaneId, RunFacts};
use crate::session::{self, Session};

pub(in crate::cli) const EXAMPLES: &[Example] = &[
    ("escarp bench recovery", "the bundled pair: four lanes, the grid, and how long requests wait"),
    ("escarp bench recovery --parts lanes --repeat 5", "the four lanes only, medians of five"),
    (
        "escarp bench recovery --parts grid --idle 0.5,2 --slice 128 --grain 1,4,16 --budget 100 --json",
        "a part of the grid, as JSON",
    ),
    ("escarp bench recovery --parts delay --arrivals 200", "200 arrivals of either kind"),
];

/// Options of `bench recovery`.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(in crate::cli) struct Options {
    /// What to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "lanes,grid,delay")]
    parts: Vec<Part>,
    /// The session of lanes and grid: a bundled session's name, or a session file
    #[arg(long, value_name = "NAME|FILE", default_value = "growing", value_hint = ValueHint::FilePath)]
    session: String,
    /// Stop after N requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(3..))]
    turns: Option<u32>,
    /// Runs of the four lanes, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    repeat: u32,
    /// Gaps of the grid, seconds
    #[arg(long, value_name = "S,S", value_delimiter = ',', default_value = "0,1,5")]
    idle: Vec<f64>,
    /// Tokens of a slice, in the grid
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "64,128,256", value_parser = super::positive())]
    slice: Vec<usize>,
    /// Blocks that a request adopts at a time, in the grid
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,4", value_parser = super::positive())]
    grain: Vec<usize>,
    /// Shares of a window that slices may take, percent, in the grid
    #[arg(long, value_name = "P,P", value_delimiter = ',', default_value = "10,50,100")]
    budget: Vec<f64>,
    /// Requests sent into a running job, of either kind
    #[arg(long, value_name = "N", default_value = "60", value_parser = super::positive())]
    arrivals: usize,
    /// Tokens of the prompt that the job recovers meanwhile, about
    #[arg(long, value_name = "N", default_value = "48000", value_parser = super::positive())]
    job_tokens: usize,
    /// Tokens of its slices
    #[arg(long, value_name = "N", default_value = "512", value_parser = super::positive())]
    job_slice: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelOptions,
}

/// A part of the bench.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Four lanes on a session
    Lanes,
    /// Gaps, slices, grains and budgets
    Grid,
    /// How long requests wait for a slice
    Delay,
}

/// Everything measured. A part that was not asked for is null.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    draft_model: Option<String>,
    device: String,
    kernel: String,
    precision: String,
    /// Whether times are a cost model's.
    simulated: bool,
    session: String,
    lanes: Option<lanes::Lanes>,
    grid: Option<grid::Grid>,
    delay: Option<delay::Delays>,
    claims: Vec<Claim>,
}

/// Something that should hold of the figures, and whether it does.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Claim {
    claim: String,
    holds: bool,
    /// The figures it hangs on.
    because: String,
}

/// The session, and the settings that it, the options and a lane add up to.
struct Ground<'a> {
    options: &'a Options,
    session: Arc<Session>,
}

impl Ground<'_> {
    /// The configuration of a lane, with `further` settings over everything else.
    fn config(&self, lane: &LaneSpec, further: Vec<Override>) -> Result<(String, Config), Failure> {
        let option = "bench recovery";
        let sugar = vec![
            Override::new(option, "replay.clock", "virtual"),
            Override::new(option, "replay.idle_scale", 1.0),
            Override::new(option, "sampling.temperature", 0.0),
            Override::new(option, "speculation.drafter", "none"),
        ];
        let sugar = sugar.into_iter().chain(lane.overrides.iter().cloned()).chain(further);
        let base = self.session.overrides(&self.options.session);
        let config = self.options.model.config_over(&base, sugar)?;
        if config.cache.dir.is_some() {
            return Err(Failure::input(
                "`cache.dir` keeps state between runs, and every run here starts from nothing; leave it out",
            ));
        }
        Ok((lane.name.clone(), lane.finish(config)))
    }
}

/// The gap before each request, as a setting.
fn gap(seconds: f64) -> Vec<Override> {
    vec![Override::new("bench recovery", "replay.idle", seconds)]
}

/// Runs lanes of a session to its end, so many times. `watch` is told the repeat, the lane and the turn under way.
fn race(
    lanes: &[(String, Config)],
    session: &Arc<Session>,
    repeats: u32,
    mut watch: impl FnMut(&Comparison),
) -> Result<Comparison, Failure> {
    let mut comparison = Comparison::new(lanes.iter().map(|(name, _)| name.clone()));
    for repeat in 0..repeats as usize {
        if repeat > 0 {
            comparison.begin_repeat();
        }
        let (sender, news) = mpsc::channel();
        let runs =
            LaneRuns::start(lanes.to_vec(), session, None, repeat, move |told| drop(sender.send(told)))?;
        loop {
            match news.recv_timeout(Progress::PACE) {
                Ok(told) => {
                    comparison.apply(&told);
                    match told {
                        News::Gate(Gate::BeforeTurn) if failure(&comparison).is_none() => {
                            runs.lockstep.send(Command::Run { lane: LaneId(0) });
                        }
                        News::Gate(Gate::Running) | News::Event { .. } | News::Round { .. } => {}
                        News::Gate(_) => {
                            runs.lockstep.send(Command::Shutdown);
                        }
                        News::Over => break,
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            watch(&comparison);
        }
        runs.finish(true)?;
        if let Some(failure) = failure(&comparison) {
            return Err(Failure::run(failure));
        }
    }
    Ok(comparison)
}

/// What went wrong in the latest run, if anything did.
fn failure(comparison: &Comparison) -> Option<String> {
    let ledgers = (0..comparison.names().len()).filter_map(|lane| Some((lane, comparison.ledger(lane)?)));
    ledgers.into_iter().find_map(|(lane, ledger)| {
        let error = ledger.requests().find_map(|request| request.error.clone());
        let why = ledger.failure().map(str::to_owned).or(error)?;
        Some(format!("lane {}: {why}", comparison.name(lane)))
    })
}

/// A difference in percent, with its sign: `-26 %`.
fn signed_percent(fraction: f64) -> String {
    format!("{:+.0} %", fraction * 100.0)
}

/// Where a race is, for the progress line.
fn position(comparison: &Comparison) -> String {
    let under_way = (0..comparison.names().len()).find_map(|lane| {
        let request = comparison.ledger(lane)?.current()?;
        Some(format!("{}, request {}", comparison.name(lane), request.turn))
    });
    format!("run {}: {}", comparison.repeats(), under_way.unwrap_or_else(|| "starting".to_owned()))
}

pub(in crate::cli) fn run(options: &Options) -> Result<(), Failure> {
    let in_range = |name: &str, values: &[f64], most: f64| match values
        .iter()
        .find(|value| !(0.0..=most).contains(*value))
    {
        Some(value) => Err(Failure::input(format_args!("{name}: {value} is not within 0 to {most}"))),
        None => Ok(()),
    };
    in_range("--idle", &options.idle, 86_400.0)?;
    in_range("--budget", &options.budget, 100.0)?;
    let mut session = session::open(&options.session)?;
    session.requests.truncate(options.turns.map_or(usize::MAX, |turns| turns as usize));
    let ground = Ground { options, session: Arc::new(session) };
    // Found out before anything is measured: settings that are wrong, a model that does not load.
    let (_, config) = ground.config(&LaneSpec::sparse(), Vec::new())?;
    options.model.start_log()?;
    let mut progress = Progress::new();
    let asked = |part: Part| options.parts.contains(&part);
    let mut facts: Option<RunFacts> = None;
    let lanes =
        if asked(Part::Lanes) { Some(lanes::measure(&ground, &mut progress, &mut facts)?) } else { None };
    let grid =
        if asked(Part::Grid) { Some(grid::measure(&ground, &mut progress, &mut facts)?) } else { None };
    let delay = if asked(Part::Delay) {
        Some(delay::measure(options, &config, &mut progress, &mut facts)?)
    } else {
        None
    };
    progress.wipe();
    let facts = facts.ok_or_else(|| Failure::input("--parts: give at least one"))?;
    let claims =
        lanes.iter().flat_map(lanes::Lanes::claims).chain(delay.iter().filter_map(delay::Delays::claim));
    let report = Report {
        simulated: facts.identity == crate::event::Identity::Simulated,
        draft_model: facts.specprefill.as_ref().map(|facts| facts.scorer.clone()),
        model: facts.model,
        device: facts.device,
        kernel: facts.kernel,
        precision: facts.precision,
        session: ground.session.title.clone(),
        claims: claims.collect(),
        lanes,
        grid,
        delay,
    };
    let mut output = Output::stdout();
    if options.json { output.json(&report) } else { output.text(&view::text(&report)) }
}
