//! `compare`: lanes of the same session side by side.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};

use clap::ValueHint;
use serde::Serialize;
use signal_hook::consts::SIGINT;
use tokio::sync::mpsc::unbounded_channel;

use super::faults::Timed;
use super::launch::LaneRuns;
use super::options::ReplayOptions;
use super::output::Output;
use super::progress::Progress;
use super::report::{self, command_line};
use super::{Example, Failure, examples, logging};
use crate::compare::{Comparison, Disagreement, LaneSpec, Lockstep, News, Verdict, lanes};
use crate::config::{ClockKind, Config, IdleConfig, IdleWord, ReplayConfig};
use crate::engine::Command;
use crate::event::{Body, Gate, LaneId};
use crate::ledger::Ledger;
use crate::report::{
    compare_table, cut_line, drafting_table, gap_line, lane_lines, notes, printable, run_line, settings_line,
    thousands, verdict_lines,
};
use crate::session::Session;
use crate::tui::log::RingLayer;
use crate::tui::{self, ExitReason, Source, TuiError, TuiOptions, terminal};

pub(super) const EXAMPLES: &[Example] = &[
    ("escarp compare --session append-heavy", "dense and sparse, step by step, with a verdict"),
    (
        "escarp compare --lane sparse --lane keep10:specprefill.enabled=true,specprefill.keep=0.1",
        "three lanes: dense is always among them",
    ),
    ("escarp compare --device sim --session steady --repeat 3 --json", "medians over three runs, as JSON"),
    (
        "escarp compare --session steady --lane ngram --lane mtp-2",
        "what drafting wins over dense decoding: adaptive, and at depth 2",
    ),
    (
        "escarp compare --session growing --lane sparse --lane terminal --lane progressive --set replay.idle_scale=0.04",
        "what recovery pays in the gaps between requests, and who waits for it",
    ),
    (
        "escarp compare --lane every:cache.snapshot_policy=every --record run.jsonl",
        "recordings run.dense.jsonl and run.every.jsonl",
    ),
];

/// Columns where standard output is no terminal.
const COLUMNS: usize = 80;

/// Options of `compare`.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(super) struct Options {
    /// A lane: `dense`, `sparse`; sparse with background recovery, `progressive` or `terminal`; a drafter, adaptive (`ngram`, `mtp`, `draft`) or at a fixed depth (`mtp-2`), or `none`; or
    /// `NAME:key=value,key=value`. May be repeated, for two to four lanes [default: dense and sparse]
    #[arg(long = "lane", value_name = "NAME[:KEY=VALUE,…]")]
    lanes: Vec<LaneSpec>,
    /// Compare without a dense lane: the first lane stands in for it
    #[arg(long)]
    without_dense: bool,
    /// Run all of it N times and print medians; each time another lane computes first
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99))]
    repeat: u32,
    /// Stop after N requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    turns: Option<u32>,
    /// Print one JSON object a request and lane, then one a verdict
    #[arg(long)]
    json: bool,
    /// Step the lanes in the interface instead of running them to the end
    #[arg(long, conflicts_with_all = ["json", "repeat", "report", "faults"])]
    tui: bool,
    /// Write a report to FILE (Markdown), with charts (SVG) beside it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    report: Option<PathBuf>,
    /// Have something go wrong in every lane before turn N, as in `replay`; may be repeated
    #[arg(long = "fault", value_name = "N:FAULT")]
    faults: Vec<Timed>,
    #[command(flatten)]
    replay: ReplayOptions,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let specs = lanes(&options.lanes, options.without_dense)?;
    options.replay.refuse_others("compare")?;
    let (mut session, configs) = options.replay.open_lanes(&specs)?;
    if let Some(turns) = options.turns {
        session.requests.truncate(turns as usize);
    }
    if options.repeat > 1 && configs.iter().any(|(_, config)| config.cache.dir.is_some()) {
        return Err(Failure::input(
            "`--repeat` starts every run from nothing, and `cache.dir` keeps state between runs; leave one of them out",
        ));
    }
    if let Some((name, _)) = configs.iter().find(|(_, config)| recovers_by_the_wall(config)) {
        return Err(Failure::input(format_args!(
            "lane {name}: under the wall clock a lane that is held goes on recovering while another computes, and both take longer for it; \
             leave `--clock wall` out, or compare without recovery"
        )));
    }
    if let Some(report) = &options.report {
        report::check_place(report)?;
    }
    if options.tui {
        return show(options, session, configs);
    }
    options.replay.model.start_log()?;
    let mut race = Race::new(options, specs, session, configs)?;
    for repeat in 0..options.repeat as usize {
        if race.run_once(repeat)? == Ending::Early {
            break;
        }
    }
    race.conclude()
}

/// Whether background work of this lane would run while it is another's turn.
fn recovers_by_the_wall(config: &Config) -> bool {
    config.recovery.runs_jobs() && config.replay.clock == ClockKind::Wall
}

/// What the gaps are by configuration: `15 s`, `as recorded`, with a factor and a cap where there is one.
fn gap_rule(replay: &ReplayConfig) -> String {
    let gap = match replay.idle {
        IdleConfig::Word(IdleWord::Recorded) => "as recorded".to_owned(),
        IdleConfig::Word(IdleWord::Zero) => "zero".to_owned(),
        IdleConfig::Seconds(seconds) => format!("{seconds} s"),
    };
    let factor =
        if replay.idle_scale == 1.0 { String::new() } else { format!(", times {}", replay.idle_scale) };
    let cap = replay.idle_cap_s.map(|cap| format!(", at most {cap} s")).unwrap_or_default();
    format!("{gap}{factor}{cap}")
}

/// Opens the interface on the lanes, each standing before its first turn.
fn show(options: &Options, session: Session, configs: Vec<(String, Config)>) -> Result<(), Failure> {
    // Found out before models are loaded for nothing.
    if let Some(obstacle) = terminal::obstacle(std::env::var("TERM").ok().as_deref()) {
        return Err(TuiError::NoTerminal(obstacle).into());
    }
    let (layer, log) = RingLayer::new();
    let log_file = options.replay.model.log.clone();
    logging::start(log_file.as_deref(), Some(Box::new(layer)))?;
    let ui = configs.first().map(|(_, config)| config.ui.clone()).unwrap_or_default();
    let names: Vec<String> = configs.iter().map(|(name, _)| name.clone()).collect();
    let (to_screen, news) = unbounded_channel();
    let (sender, starts) = mpsc::channel();
    // The main thread listens before the interface runs, and looks again after it; the interface may be gone before the lanes are.
    let sink = move |told: News| {
        if let News::Event { lane, event } = &told {
            match &event.body {
                Body::RunStarted(_) => drop(sender.send(Ok(*lane))),
                Body::EngineFailed { message } => drop(sender.send(Err((*lane, message.clone())))),
                _ => {}
            }
        }
        drop(to_screen.send(told));
    };
    let record = options.replay.record.as_deref();
    let runs = LaneRuns::start(configs, &Arc::new(session), record, 0, sink)?;
    let failed = |(lane, message): (usize, String)| format!("lane {}: {message}", names[lane]);
    // A model that cannot be loaded is reported like any other bad input, not on a screen that then goes away.
    if let Err(failure) = await_starts(&starts, names.len()) {
        runs.finish(false)?;
        return Err(Failure::Input(failed(failure)));
    }
    let conditions = options.replay.breakpoints.clone();
    if !conditions.is_empty() {
        runs.lockstep.send(Command::Break { conditions });
    }
    let send = Box::new(|to, command| runs.lockstep.tell(to, command));
    let source = Source::Lanes { names: names.clone(), send, news };
    let shown = tui::run(TuiOptions { ui, log, log_file, provoke: None }, source);
    runs.finish(true)?;
    match shown? {
        ExitReason::Signal(number) => return Err(Failure::Signal(number)),
        ExitReason::Quit => {}
    }
    match starts.try_iter().find_map(Result::err) {
        Some(failure) => Err(Failure::Run(failed(failure))),
        None => Ok(()),
    }
}

/// Waits until every lane's engine is ready, or one cannot be: then its place, and why.
fn await_starts(
    starts: &Receiver<Result<usize, (usize, String)>>,
    lanes: usize,
) -> Result<(), (usize, String)> {
    let mut progress = Progress::new();
    let mut started = 0;
    while started < lanes {
        match starts.recv_timeout(Progress::PACE) {
            Ok(start) => {
                start?;
                started += 1;
            }
            Err(RecvTimeoutError::Timeout) => progress.show(|| "loading the models".to_owned()),
            Err(RecvTimeoutError::Disconnected) => {
                return Err((started, "the engine ended before it was ready".to_owned()));
            }
        }
    }
    Ok(())
}

/// How a run of all lanes ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// At the session's end, in every lane.
    Complete,
    /// Before that: at a breakpoint, a failure, an interrupt.
    Early,
}

/// The last line of a lane in `--json`.
#[derive(Serialize)]
struct VerdictLine {
    verdict: Verdict,
    sentence: String,
    disagreements: Vec<Disagreement>,
}

/// Lanes as they are seen from outside the engines.
struct Race<'a> {
    options: &'a Options,
    session: Arc<Session>,
    configs: Vec<(String, Config)>,
    comparison: Comparison,
    interrupt: Arc<AtomicBool>,
    interrupted: bool,
    output: Output,
}

impl Race<'_> {
    fn new(
        options: &Options,
        specs: Vec<LaneSpec>,
        session: Session,
        configs: Vec<(String, Config)>,
    ) -> Result<Race<'_>, Failure> {
        let interrupt = Arc::new(AtomicBool::new(false));
        // The first interrupt ends the run in good order, the second one ends the process.
        signal_hook::flag::register_conditional_shutdown(SIGINT, 130, Arc::clone(&interrupt))
            .and_then(|_| signal_hook::flag::register(SIGINT, Arc::clone(&interrupt)))
            .map_err(Failure::run)?;
        Ok(Race {
            options,
            session: Arc::new(session),
            configs,
            comparison: Comparison::new(specs.into_iter().map(|spec| spec.name)),
            interrupt,
            interrupted: false,
            output: Output::stdout(),
        })
    }

    /// Runs all lanes to the session's end, or to what ends them before it.
    fn run_once(&mut self, repeat: usize) -> Result<Ending, Failure> {
        if repeat > 0 {
            self.comparison.begin_repeat();
        }
        let (sender, news) = mpsc::channel();
        let record = self.options.replay.record.as_deref().filter(|_| repeat == 0);
        let sink = move |told| drop(sender.send(told));
        let runs = LaneRuns::start(self.configs.clone(), &self.session, record, repeat, sink)?;
        let conditions = self.options.replay.breakpoints.clone();
        if !conditions.is_empty() {
            runs.lockstep.send(Command::Break { conditions });
        }
        let ending = self.follow(&runs.lockstep, &news);
        let started = self.ledgers().all(|(_, ledger)| ledger.run().is_some());
        runs.finish(started)?;
        // A model that cannot be loaded cannot be loaded a second time either.
        if let Some((name, message)) = self.unstarted().filter(|_| !self.interrupted) {
            return Err(Failure::input(format_args!("lane {name}: {message}")));
        }
        Ok(ending)
    }

    /// Drives the lanes and takes in what they tell.
    fn follow(&mut self, lockstep: &Lockstep, news: &Receiver<News>) -> Ending {
        let mut progress = Progress::new();
        let mut faults = self.options.faults.clone();
        let mut ending = Ending::Early;
        loop {
            if self.interrupt.load(Ordering::Relaxed) && !self.interrupted {
                self.interrupted = true;
                lockstep.send(Command::Shutdown);
            }
            match news.recv_timeout(Progress::PACE) {
                Ok(told) => {
                    self.comparison.apply(&told);
                    match told {
                        News::Gate(Gate::Running) => {}
                        News::Gate(Gate::BeforeTurn) if self.may_go_on() => self.go_on(lockstep, &mut faults),
                        News::Gate(gate) => {
                            if gate == Gate::Ended && self.may_go_on() && !self.interrupted {
                                ending = Ending::Complete;
                            }
                            lockstep.send(Command::Shutdown);
                        }
                        News::Event { lane, event } if matches!(event.body, Body::SessionCut { .. }) => {
                            self.tell_cut(lane, &mut progress);
                        }
                        News::Over => return ending,
                        News::Event { .. } | News::Round { .. } => {}
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return ending,
            }
            progress.show(|| self.position());
        }
    }

    fn ledgers(&self) -> impl Iterator<Item = (&str, &Ledger)> {
        let names = self.comparison.names().iter().enumerate();
        names.filter_map(|(lane, name)| Some((name.as_str(), self.comparison.ledger(lane)?)))
    }

    /// The first lane that did not get as far as to start, and why.
    fn unstarted(&self) -> Option<(&str, &str)> {
        let mut lanes = self.ledgers().filter(|(_, ledger)| ledger.run().is_none());
        lanes
            .next()
            .map(|(name, ledger)| (name, ledger.failure().unwrap_or("the engine ended before it was ready")))
    }

    /// Whether nothing has happened that the comparison is to end at. With a fault asked for, a request that fails of it is what was asked for.
    fn may_go_on(&self) -> bool {
        self.ledgers().all(|(_, ledger)| {
            let failed = ledger.requests().any(|request| request.error.is_some());
            let expected = !ledger.faults().is_empty();
            ledger.breakpoint_hit().is_none() && ledger.failure().is_none() && (!failed || expected)
        })
    }

    /// Has the faults happen that are due before the next turn, and runs on: to the turn's end where more are to come.
    fn go_on(&self, lockstep: &Lockstep, faults: &mut Vec<Timed>) {
        let lane = LaneId(0);
        let base = self.comparison.ledger(self.comparison.base());
        let next = base.and_then(|ledger| ledger.lane(lane)?.next_turn);
        let due = |timed: &Timed| next.is_some_and(|next| timed.turn <= next);
        for Timed { fault, .. } in faults.extract_if(.., |timed| due(timed)) {
            lockstep.send(Command::Fault { lane, fault });
        }
        lockstep.send(match faults.is_empty() {
            true => Command::Run { lane },
            false => Command::StepTurn { lane },
        });
    }

    fn tell_cut(&self, lane: usize, progress: &mut Progress) {
        let cut = self.comparison.ledger(lane).and_then(Ledger::session_cut);
        // All lanes of a model are cut alike; one line will do.
        if let Some(cut) = cut.filter(|_| lane == self.comparison.base() && self.comparison.repeats() == 1) {
            progress.wipe();
            eprintln!("escarp: {}", cut_line(cut));
        }
    }

    /// Where the run is, for the progress line.
    fn position(&self) -> String {
        let repeat = match self.options.repeat {
            1 => String::new(),
            of => format!("repeat {} of {of} · ", self.comparison.repeats()),
        };
        let current = self.ledgers().find_map(|(name, ledger)| Some((name, ledger, ledger.current()?)));
        let Some((name, ledger, request)) = current else { return format!("{repeat}starting") };
        let of = ledger.lane(request.lane).map_or(0, |lane| lane.turns);
        let phase = request.phase.word();
        let far = match request.scoring.or(request.progress) {
            Some((done, total)) if done < total => {
                format!(" {} of {} tokens", thousands(done), thousands(total))
            }
            _ => String::new(),
        };
        format!("{repeat}request {} of {of} · {name} · {phase}{far}", request.turn)
    }

    /// Prints what there is to print at the end, and says whether all went well.
    fn conclude(&mut self) -> Result<(), Failure> {
        if self.options.json {
            self.print_json()?;
        } else {
            let text = self.text();
            self.output.text(&text)?;
        }
        if let Some(path) = &self.options.report {
            let command = command_line(std::env::args_os());
            report::write(&self.comparison, path, &command)?;
        }
        for (name, ledger) in self.ledgers() {
            if let Some(failure) = ledger.failure() {
                return Err(Failure::run(format_args!("lane {name}: {failure}")));
            }
        }
        if self.interrupted {
            return Err(Failure::run("interrupted before the session's end"));
        }
        let failed = self.ledgers().find_map(|(name, ledger)| {
            Some((name, ledger.requests().find(|request| request.error.is_some())?))
        });
        match failed {
            Some((name, request)) => Err(Failure::run(format_args!(
                "lane {name}: request {} failed: {}",
                request.turn,
                request.error.as_deref().unwrap_or_default()
            ))),
            None if self.comparison.turns().is_empty() => Err(Failure::input(
                "no request of the session fits the model's context; use a model with a longer one, or another session",
            )),
            None => Ok(()),
        }
    }

    fn print_json(&mut self) -> Result<(), Failure> {
        for row in self.comparison.rows() {
            self.output.json(&row)?;
        }
        let disagreements = self.comparison.disagreements();
        for verdict in self.comparison.verdicts() {
            let of = |found: &&Disagreement| found.lane == verdict.lane || found.lane == verdict.against;
            let disagreements = disagreements.iter().filter(of).cloned().collect();
            self.output.json(&VerdictLine { sentence: verdict.sentence(), verdict, disagreements })?;
        }
        Ok(())
    }

    fn text(&self) -> String {
        let comparison = &self.comparison;
        let run = comparison.ledger_of(0, comparison.base()).and_then(Ledger::run);
        let head = run.map(run_line).into_iter().chain(run.and_then(settings_line));
        let rule = self.configs.first().map(|(_, config)| gap_rule(&config.replay)).unwrap_or_default();
        let gaps = gap_line(comparison).map(|line| format!("{line} (replay.idle: {rule})"));
        let head: Vec<String> =
            head.map(|line| printable(&line)).chain(lane_lines(comparison)).chain(gaps).collect();
        let hits = self.ledgers().filter_map(|(name, ledger)| {
            let hit = ledger.breakpoint_hit()?;
            Some(printable(&format!("paused in {name}: {} ({})", hit.condition, hit.observed)))
        });
        let hashes = self.ledgers().map(|(name, ledger)| format!("ledger {name}: {}", ledger.facts_hash()));
        let verdicts = verdict_lines(comparison).into_iter().map(|line| format!("verdict: {line}"));
        let foot: Vec<String> =
            notes(comparison).into_iter().chain(hits).chain(verdicts).chain(hashes).collect();
        let mut tables = compare_table(comparison, columns()).to_string();
        if let Some(table) = drafting_table(comparison, columns()) {
            tables += &format!("\n{table}");
        }
        format!("{}\n\n{tables}\n{}\n", head.join("\n"), foot.join("\n"))
    }
}

/// Columns of the terminal that standard output is.
fn columns() -> usize {
    use std::io::IsTerminal;
    let size = std::io::stdout().is_terminal().then(crossterm::terminal::size).and_then(Result::ok);
    size.map_or(COLUMNS, |(columns, _)| usize::from(columns).max(COLUMNS))
}
