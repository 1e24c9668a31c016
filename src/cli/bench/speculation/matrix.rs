//! Runs the matrix: every cell between two runs without a drafter, so that a machine whose speed wanders is measured against itself.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use super::prompts::{Kind, SYSTEM, tools};
use crate::cli::Failure;
use crate::config::{Config, ControllerKind, DrafterKind, SpeculationOverride};
use crate::engine::{Command, Engine, Setup};
use crate::event::{Body, Event, Gate, LaneId, Nanos, RunFacts};
use crate::ledger::{Ledger, RequestFacts};
use crate::model;
use crate::session::{RequestOverrides, RequestSpec, Session};

/// How a cell drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Way {
    /// What drafts.
    pub(super) drafter: DrafterKind,
    /// The fixed depth; `None` where the controller chooses.
    pub(super) depth: Option<u32>,
}

impl Way {
    /// Ordinary decoding.
    pub(super) const NONE: Way = Way { drafter: DrafterKind::None, depth: None };

    fn says(self) -> SpeculationOverride {
        SpeculationOverride {
            drafter: Some(self.drafter),
            depth: self.depth,
            controller: Some(match self.depth {
                Some(_) => ControllerKind::Fixed,
                None => ControllerKind::Adaptive,
            }),
        }
    }
}

/// All asks of a kind, one after another, decoded one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) kind: Kind,
    pub(super) way: Way,
    /// Whether nothing is restored: then it is the time to the first token that counts.
    pub(super) cold: bool,
}

/// What is run, in order.
pub(super) fn schedule(kinds: &[Kind], ways: &[Way], repeats: usize) -> Vec<Run> {
    let mut runs = Vec::new();
    for kind in kinds.iter().copied() {
        let warm = |way| Run { kind, way, cold: false };
        // Fills the cache, and the controllers' averages, before anything counts.
        runs.push(warm(Way::NONE));
        runs.extend(ways.iter().copied().map(warm));
        for repeat in 0..repeats {
            for drafter in with_none(ways) {
                runs.push(Run { kind, way: Way { drafter, depth: None }, cold: true });
            }
            let mut order = ways.to_vec();
            if repeat % 2 == 1 {
                order.reverse();
            }
            runs.push(warm(Way::NONE));
            for way in order {
                runs.extend([warm(way), warm(Way::NONE)]);
            }
        }
    }
    runs
}

/// Ordinary decoding, and each drafter once.
pub(super) fn with_none(ways: &[Way]) -> Vec<DrafterKind> {
    let mut drafters = vec![DrafterKind::None];
    for way in ways {
        if !drafters.contains(&way.drafter) {
            drafters.push(way.drafter);
        }
    }
    drafters
}

/// An engine that serves the runs of its drafters, one request at a time.
struct Server {
    engine: Engine,
    events: Receiver<Event>,
    ledger: Ledger,
    served: usize,
}

impl Server {
    fn start(config: Config, requests: Vec<RequestSpec>) -> Result<Server, Failure> {
        let (sender, events) = mpsc::channel();
        let session = Session {
            title: "bench speculation".to_owned(),
            description: String::new(),
            transport: None,
            settings: Vec::new(),
            system: Some(SYSTEM.to_owned()),
            tools: tools(),
            requests,
        };
        let for_load = config.clone();
        let setup = Setup {
            config,
            session: Arc::new(session),
            load: Box::new(move || model::load(&for_load)),
            sink: Box::new(move |event: &Event| drop(sender.send(event.clone()))),
        };
        let engine = Engine::start(setup).map_err(Failure::run)?;
        let mut server = Server { engine, events, ledger: Ledger::new(), served: 0 };
        server.until(|event| matches!(event.body, Body::GateChanged { .. }))?;
        Ok(server)
    }

    /// Takes events in up to the one that `last` holds for.
    fn until(&mut self, last: impl Fn(&Event) -> bool) -> Result<(), Failure> {
        loop {
            let event = self.events.recv().map_err(|_| Failure::run("the engine ended early"))?;
            self.ledger.apply(&event);
            match &event.body {
                Body::EngineFailed { message } => return Err(Failure::input(message)),
                Body::Failed { message } => return Err(Failure::run(message)),
                _ if last(&event) => return Ok(()),
                _ => {}
            }
        }
    }

    /// Serves the next request.
    fn serve(&mut self) -> Result<RequestFacts, Failure> {
        self.engine.send(Command::StepTurn { lane: LaneId(0) });
        let running = |event: &Event| matches!(event.body, Body::GateChanged { gate: Gate::Running, .. });
        let stopped =
            |event: &Event| matches!(event.body, Body::GateChanged { gate, .. } if gate != Gate::Running);
        self.until(running)?;
        self.until(stopped)?;
        let request = self.ledger.requests().nth(self.served).cloned();
        self.served += 1;
        request.ok_or_else(|| {
            Failure::input("the prompts do not fit the model's context; use a model with a longer one")
        })
    }

    fn end(self) -> Option<RunFacts> {
        self.engine.send(Command::Shutdown);
        self.engine.join();
        self.ledger.run().cloned()
    }
}

/// What was told of a run: its requests, in order.
pub(super) struct Told {
    pub(super) run: Run,
    pub(super) requests: Vec<RequestFacts>,
}

/// Runs all of `schedule`. A loaded prediction head reads along whoever drafts, so its runs have an engine of their own, and ordinary decoding is
/// measured without it; no two engines compute at once.
pub(super) fn run(
    config: &Config,
    schedule: &[Run],
    output_tokens: u64,
    mut watch: impl FnMut(usize, &Run),
) -> Result<(RunFacts, Vec<Told>), Failure> {
    let by_head = |run: &&Run| run.way.drafter == DrafterKind::Mtp;
    let requests = |runs: Vec<&Run>| {
        let mut requests = Vec::new();
        for run in runs {
            requests.extend(requests_of(run, output_tokens, requests.len()));
        }
        requests
    };
    // Each request says what it is decoded by; here it is said what has to be loaded.
    let with = |drafter: DrafterKind| {
        let mut config = config.clone();
        config.policy.forget_speculation();
        config.speculation.drafter = Some(drafter);
        config
    };
    let drafts = schedule.iter().any(|run| run.way.drafter == DrafterKind::Draft);
    let (of_head, others) =
        (with(DrafterKind::Mtp), with(if drafts { DrafterKind::Draft } else { DrafterKind::Ngram }));
    let plain = schedule.iter().filter(|run| !by_head(run)).collect();
    let mut plain = Server::start(others, requests(plain))?;
    let of_runs: Vec<&Run> = schedule.iter().filter(by_head).collect();
    let mut head = match of_runs.is_empty() {
        true => None,
        false => Some(Server::start(of_head, requests(of_runs))?),
    };
    let mut told = Vec::new();
    for (index, run) in schedule.iter().enumerate() {
        watch(index, run);
        let server = match &mut head {
            Some(head) if by_head(&run) => head,
            _ => &mut plain,
        };
        let requests = asks_of(run).map(|_| server.serve()).collect::<Result<Vec<_>, _>>()?;
        told.push(Told { run: *run, requests });
    }
    if let Some(head) = head {
        head.end();
    }
    let facts = plain.end().ok_or_else(|| Failure::run("the engine told nothing of its run"))?;
    Ok((facts, told))
}

/// How many of a kind's asks a run asks: a cold one asks the first.
fn asks_of(run: &Run) -> std::ops::Range<usize> {
    0..if run.cold { 1 } else { run.kind.asks().len() }
}

fn requests_of(run: &Run, output_tokens: u64, before: usize) -> Vec<RequestSpec> {
    let asks = run.kind.asks();
    // The budget is a run's; what a reply leaves of its part is nobody's.
    let budget = (output_tokens / asks.len() as u64).max(2) * if asks.len() > 1 { 2 } else { 1 };
    let request = |ask: usize| RequestSpec {
        name: format!("{}", before + ask),
        idle: Nanos(0),
        side: true,
        rewrites: Vec::new(),
        append: asks[ask].clone(),
        reply: None,
        overrides: RequestOverrides {
            max_output_tokens: Some(budget),
            cache: run.cold.then_some(false),
            speculation: run.way.says(),
            ..RequestOverrides::default()
        },
    };
    asks_of(run).map(request).collect()
}
