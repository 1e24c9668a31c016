//! `replay`: a session, headless, through the same engine as the interface.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};

use signal_hook::consts::SIGINT;

use super::faults::Timed;
use super::launch::Run;
use super::options::ReplayOptions;
use super::output::Output;
use super::progress::Progress;
use super::{Example, Failure, examples};
use crate::engine::{Command, Engine};
use crate::event::{Body, Event, Fanout, Gate, LaneId, RequestId};
use crate::ledger::{Ledger, Row};
use crate::report::{cut_line, printable, request_table, run_line, settings_line, summary, thousands};

pub(super) const EXAMPLES: &[Example] = &[
    ("escarp replay --device sim --session steady", "one row a request, no model file needed"),
    ("escarp replay --model SmolLM2.gguf --session compaction --json", "one JSON object a request"),
    (
        "escarp replay --device sim --session steady --turns 3 --record run.jsonl",
        "keep the events of three requests",
    ),
    (
        "escarp replay --device sim --session steady --session compaction",
        "two sessions at once on one engine and one cache, a lane each",
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
    /// Have something go wrong before turn N, for example `8:evict-block:3`; may be repeated. Faults: evict-block:B,
    /// lose-block:B, drop-snapshot:B, corrupt-file:B, truncate-file:B, corrupt-snapshot:B, change-generation:B (block B of the latest prompt,
    /// from 0), stall-disk:SECONDS, fill-disk, free-disk
    #[arg(long = "fault", value_name = "N:FAULT")]
    faults: Vec<Timed>,
    #[command(flatten)]
    replay: ReplayOptions,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let (mut session, config) = options.replay.open()?;
    options.replay.model.start_log()?;
    let mut others = options.replay.open_others(&config)?;
    if !others.is_empty() && !options.faults.is_empty() {
        return Err(Failure::input(
            "--fault: which session's turn is meant is not clear; give one --session",
        ));
    }
    if let Some(turns) = options.turns {
        let all = std::iter::once(&mut session).chain(&mut others);
        all.for_each(|session| session.requests.truncate(turns as usize));
    }
    let sessions = 1 + others.len();
    let (sender, events) = mpsc::channel();
    // The receiver outlives the engine thread unless standard output is closed; then nobody misses the events.
    let sink = Fanout::new().with(move |event: &Event| drop(sender.send(event.clone())));
    let run = Run::start(config, session, options.replay.record.as_deref(), sink)?;
    let conditions = options.replay.breakpoints.clone();
    if !conditions.is_empty() {
        run.engine.send(Command::Break { conditions });
    }
    for session in others {
        run.engine.send(Command::Open { session: Arc::new(session) });
    }
    let mut replay = Replay {
        sessions,
        started: false,
        ended: BTreeSet::new(),
        ledger: Ledger::new(),
        output: Output::stdout(),
        json: options.json,
        interrupted: false,
        faults: options.faults.clone(),
    };
    let followed = replay.follow(&run.engine, &events);
    run.finish(replay.ledger.run().is_some())?;
    followed?;
    replay.conclude()
}

/// A replay as it is seen from outside the engine.
struct Replay {
    /// Sessions, each in a lane of its own.
    sessions: usize,
    /// Whether several have been started.
    started: bool,
    /// Lanes that have come to their end, where there are several.
    ended: BTreeSet<LaneId>,
    ledger: Ledger,
    output: Output,
    json: bool,
    interrupted: bool,
    /// Faults that are still to come.
    faults: Vec<Timed>,
}

impl Replay {
    /// Drives the engine to the end of the session and takes in what it tells.
    fn follow(&mut self, engine: &Engine, events: &Receiver<Event>) -> Result<(), Failure> {
        let interrupt = Arc::new(AtomicBool::new(false));
        // The first interrupt ends the run in good order, the second one ends the process.
        signal_hook::flag::register_conditional_shutdown(SIGINT, 130, Arc::clone(&interrupt))
            .and_then(|_| signal_hook::flag::register(SIGINT, Arc::clone(&interrupt)))
            .map_err(Failure::run)?;
        let mut progress = Progress::new();
        loop {
            if interrupt.load(Ordering::Relaxed) && !self.interrupted {
                self.interrupted = true;
                engine.send(Command::Shutdown);
            }
            match events.recv_timeout(Progress::PACE) {
                Ok(event) => {
                    self.ledger.apply(&event);
                    if !self.take(&event, engine, &mut progress)? {
                        return Ok(());
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            progress.show(|| self.position());
        }
    }

    /// Acts on an event. `false` when there is nothing more to wait for.
    fn take(&mut self, event: &Event, engine: &Engine, progress: &mut Progress) -> Result<bool, Failure> {
        match &event.body {
            Body::SessionCut { .. } => {
                if let Some(cut) = self.ledger.session_cut() {
                    progress.wipe();
                    eprintln!("escarp: {}", cut_line(cut));
                }
            }
            Body::Finished { .. } | Body::Failed { .. } if self.json => {
                progress.wipe();
                self.print_row(event.request)?;
            }
            Body::GateChanged { gate, .. } if self.sessions > 1 => {
                self.take_gate_of_several(event.lane.unwrap_or_default(), *gate, engine);
            }
            Body::GateChanged { gate: Gate::BeforeTurn, next_turn, .. } if self.may_go_on() => {
                self.go_on(event.lane.unwrap_or_default(), *next_turn, engine);
            }
            Body::GateChanged { gate, .. } if *gate != Gate::Running => {
                engine.send(Command::Shutdown);
            }
            Body::RunEnded | Body::EngineFailed { .. } => return Ok(false),
            _ => {}
        }
        Ok(true)
    }

    /// Has all sessions begin when every one has its lane, and the engine end when every one has ended.
    fn take_gate_of_several(&mut self, lane: LaneId, gate: Gate, engine: &Engine) {
        match gate {
            Gate::Ended => self.ended.insert(lane),
            _ => self.ended.remove(&lane),
        };
        if !self.started {
            // The last lane to open tells its gate last. What comes before any of them runs is the same each time.
            self.started = self.ledger.lanes().count() == self.sessions;
            if self.started {
                engine.send(Command::RunAll);
            }
        } else if self.ended.len() == self.sessions || (gate != Gate::Running && !self.may_go_on()) {
            engine.send(Command::Shutdown);
        }
    }

    /// Whether nothing has happened that the replay is to end at. With a fault asked for, a request that fails of it is what was asked for.
    fn may_go_on(&self) -> bool {
        let failed = self.failed_requests() > 0 && self.ledger.faults().is_empty();
        !failed && self.ledger.breakpoint_hit().is_none()
    }

    /// Has the faults happen that are due before the next turn, and runs on: to the turn's end where more are to come.
    fn go_on(&mut self, lane: LaneId, next_turn: Option<u32>, engine: &Engine) {
        let due = |timed: &Timed| next_turn.is_some_and(|next| timed.turn <= next);
        for Timed { fault, .. } in self.faults.extract_if(.., |timed| due(timed)) {
            engine.send(Command::Fault { lane, fault });
        }
        engine.send(match self.faults.is_empty() {
            true => Command::Run { lane },
            false => Command::StepTurn { lane },
        });
    }

    fn print_row(&mut self, request: Option<RequestId>) -> Result<(), Failure> {
        match request.and_then(|id| self.ledger.request(id)) {
            Some(facts) => self.output.json(&Row::new(&self.ledger, facts)),
            None => Ok(()),
        }
    }

    fn failed_requests(&self) -> usize {
        self.ledger.requests().filter(|r| r.error.is_some()).count()
    }

    /// Where the run is, for the progress line.
    fn position(&self) -> String {
        let Some(request) = self.ledger.current() else { return "starting".to_owned() };
        let of = self.ledger.lane(request.lane).map_or(0, |lane| lane.turns);
        let turn = format!("request {} of {of} · {}", request.turn, request.phase.word());
        match request.progress {
            Some((done, total)) if done < total => {
                format!("{turn} {} of {} tokens", thousands(done), thousands(total))
            }
            _ => turn,
        }
    }

    /// Prints what there is to print at the end, and says whether all went well.
    fn conclude(&mut self) -> Result<(), Failure> {
        let Some(facts) = self.ledger.run() else {
            // Nothing has run, so it was the model that could not be loaded.
            return Err(Failure::input(
                self.ledger.failure().unwrap_or("the engine ended before it was ready"),
            ));
        };
        let summary = summary(&self.ledger);
        if self.json {
            eprint!("{summary}");
        } else {
            let head = [Some(run_line(facts)), settings_line(facts)];
            let head: String = head.iter().flatten().map(|line| printable(line) + "\n").collect();
            let table = request_table(&self.ledger);
            self.output.text(&format!("{head}\n{table}\n{summary}"))?;
        }
        if let Some(failure) = self.ledger.failure() {
            return Err(Failure::run(failure));
        }
        if self.interrupted {
            return Err(Failure::run("interrupted before the session's end"));
        }
        match self.ledger.requests().find(|r| r.error.is_some()) {
            Some(request) => Err(Failure::run(format_args!(
                "request {} failed: {}",
                request.turn,
                request.error.as_deref().unwrap_or_default()
            ))),
            None if self.ledger.requests().next().is_none() => Err(Failure::input(
                "no request of the session fits the model's context; use a model with a longer one, or another session",
            )),
            None => Ok(()),
        }
    }
}
