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
use crate::recovery::neighbours::Neighbours;
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

    fn says(self, adaptive_max: u32) -> SpeculationOverride {
        SpeculationOverride {
            drafter: Some(self.drafter),
            depth: Some(self.depth.unwrap_or(adaptive_max)),
            controller: Some(match self.depth {
                Some(_) => ControllerKind::Fixed,
                None => ControllerKind::Adaptive,
            }),
        }
    }
}

/// What a run is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// It fills the cache, and the controllers' averages.
    WarmUp,
    /// It shows how an adaptive depth does without any averages. A run that drafts has an engine that has served nobody.
    First,
    /// It counts.
    Counted,
}

/// All asks of a kind, one after another, decoded one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) stage: Stage,
    pub(super) kind: Kind,
    pub(super) way: Way,
    /// Whether nothing is restored: then it is the time to the first token that counts.
    pub(super) cold: bool,
}

impl Run {
    /// Whether it is by an engine of its own.
    fn is_alone(&self) -> bool {
        self.stage == Stage::First && self.way != Way::NONE
    }
}

/// What is run, in order. First runs are of the first kind.
pub(super) fn schedule(kinds: &[Kind], ways: &[Way], repeats: usize) -> Vec<Run> {
    let mut runs = Vec::new();
    for kind in kinds.iter().copied() {
        runs.extend(with_none_first(ways).map(|way| Run { stage: Stage::WarmUp, kind, way, cold: false }));
        for repeat in 0..repeats {
            let (mut drafters, mut order) = (with_none(ways)[1..].to_vec(), ways.to_vec());
            if repeat % 2 == 1 {
                drafters.reverse();
                order.reverse();
            }
            let cold = drafters.into_iter().map(|drafter| Way { drafter, depth: None });
            runs.extend(between_none(Stage::Counted, kind, cold, true));
            if kinds.first() == Some(&kind) {
                let adaptive = order.iter().copied().filter(|way| way.depth.is_none());
                runs.extend(between_none(Stage::First, kind, adaptive, false));
            }
            runs.extend(between_none(Stage::Counted, kind, order, false));
        }
    }
    runs
}

fn with_none_first(ways: &[Way]) -> impl Iterator<Item = Way> {
    [Way::NONE].into_iter().chain(ways.iter().copied())
}

/// Each of `ways` between two runs without a drafter.
fn between_none(stage: Stage, kind: Kind, ways: impl IntoIterator<Item = Way>, cold: bool) -> Vec<Run> {
    let mut runs = vec![Run { stage, kind, way: Way::NONE, cold }];
    for way in ways {
        runs.extend([way, Way::NONE].map(|way| Run { stage, kind, way, cold }));
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

/// What is asked of every run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    /// Reply tokens at most, over all questions.
    pub(super) output_tokens: u64,
    /// The greatest depth that a controller may choose.
    pub(super) adaptive_max: u32,
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
            neighbours: Neighbours::open(&config.recovery),
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

/// The configuration that loads what `drafter` needs. By what a request is decoded it says itself.
fn with(config: &Config, drafter: DrafterKind) -> Config {
    let mut config = config.clone();
    config.policy.forget_speculation();
    config.speculation.drafter = Some(drafter);
    config
}

/// Why `drafter` cannot draft for the model, where it cannot though the model itself loads.
pub(super) fn lacking(config: &Config, drafter: DrafterKind) -> Option<String> {
    let loads = |drafter| model::load(&with(config, drafter)).map(drop);
    match drafter {
        DrafterKind::None | DrafterKind::Ngram => None,
        DrafterKind::Mtp | DrafterKind::Draft => {
            loads(drafter).err().filter(|_| loads(DrafterKind::Ngram).is_ok()).map(|error| error.to_string())
        }
    }
}

/// Runs all of `schedule`. A loaded prediction head reads along whoever drafts, so its runs have an engine of their own, and ordinary decoding is
/// measured without it; a first run has one that starts for it. No two engines compute at once.
pub(super) fn run(
    config: &Config,
    schedule: &[Run],
    asked: Asked,
    mut watch: impl FnMut(usize, &Run),
) -> Result<(RunFacts, Vec<Told>), Failure> {
    let by_head = |run: &&Run| run.way.drafter == DrafterKind::Mtp;
    let requests = |runs: Vec<&Run>| {
        let mut requests = Vec::new();
        for run in runs {
            requests.extend(requests_of(run, asked, requests.len()));
        }
        requests
    };
    let drafts = schedule.iter().any(|run| run.way.drafter == DrafterKind::Draft);
    let (of_head, others) = (
        with(config, DrafterKind::Mtp),
        with(config, if drafts { DrafterKind::Draft } else { DrafterKind::Ngram }),
    );
    let shared = || schedule.iter().filter(|run| !run.is_alone());
    let mut plain = Server::start(others.clone(), requests(shared().filter(|run| !by_head(run)).collect()))?;
    let of_runs: Vec<&Run> = shared().filter(by_head).collect();
    let mut head = match of_runs.is_empty() {
        true => None,
        false => Some(Server::start(of_head.clone(), requests(of_runs))?),
    };
    let mut told = Vec::new();
    for (index, run) in schedule.iter().enumerate() {
        watch(index, run);
        let serve = |server: &mut Server| asks_of(run).map(|_| server.serve()).collect::<Result<Vec<_>, _>>();
        let requests = match &mut head {
            _ if run.is_alone() => {
                let config = if by_head(&run) { &of_head } else { &others };
                let mut server = Server::start(config.clone(), requests(vec![run]))?;
                let served = serve(&mut server);
                server.end();
                served
            }
            Some(head) if by_head(&run) => serve(head),
            _ => serve(&mut plain),
        };
        told.push(Told { run: *run, requests: requests? });
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

fn requests_of(run: &Run, asked: Asked, before: usize) -> Vec<RequestSpec> {
    let asks = run.kind.asks();
    let budgets = budgets(asked.output_tokens, asks.len() as u64);
    let request = |(ask, budget): (usize, u64)| RequestSpec {
        name: format!("{}", before + ask),
        idle: Nanos(0),
        side: true,
        rewrites: Vec::new(),
        append: asks[ask].clone(),
        reply: None,
        overrides: RequestOverrides {
            max_output_tokens: Some(budget),
            cache: run.cold.then_some(false),
            speculation: run.way.says(asked.adaptive_max),
            ..RequestOverrides::default()
        },
    };
    asks_of(run).zip(budgets).map(request).collect()
}

/// Reply tokens of each of `asks` questions, which add up to `tokens`.
fn budgets(tokens: u64, asks: u64) -> impl Iterator<Item = u64> {
    (0..asks).map(move |ask| tokens / asks + u64::from(ask < tokens % asks))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways() -> Vec<Way> {
        let way = |drafter, depth| Way { drafter, depth };
        vec![
            way(DrafterKind::Ngram, Some(2)),
            way(DrafterKind::Ngram, None),
            way(DrafterKind::Mtp, Some(2)),
            way(DrafterKind::Mtp, None),
        ]
    }

    #[test]
    fn every_run_that_counts_is_between_two_without_a_drafter() {
        let runs = schedule(&[Kind::Copy], &ways(), 2);
        let around = |stage: Stage, cold: bool, way: &dyn Fn(&Way) -> bool| {
            let of: Vec<&Run> = runs.iter().filter(|run| (run.stage, run.cold) == (stage, cold)).collect();
            let plain = |run: &Run| run.way.drafter == DrafterKind::None;
            of.windows(3).filter(|w| plain(w[0]) && way(&w[1].way) && plain(w[2])).count()
        };
        for way in ways() {
            assert_eq!(around(Stage::Counted, false, &|other| *other == way), 2, "{way:?}");
            assert_eq!(around(Stage::Counted, true, &|other| other.drafter == way.drafter), 2, "{way:?}");
            let first = around(Stage::First, false, &|other| *other == way);
            assert_eq!(first, if way.depth.is_none() { 2 } else { 0 }, "{way:?}");
        }
        let counted = |run: &&Run| run.stage == Stage::Counted && run.way != Way::NONE;
        let order = |cold: bool| runs.iter().filter(counted).filter(move |run| run.cold == cold);
        let cold: Vec<DrafterKind> = order(true).map(|run| run.way.drafter).collect();
        assert_eq!(cold, [DrafterKind::Ngram, DrafterKind::Mtp, DrafterKind::Mtp, DrafterKind::Ngram]);
    }

    #[test]
    fn the_questions_of_a_run_share_its_tokens() {
        assert_eq!(budgets(512, 7).sum::<u64>(), 512);
        assert_eq!(budgets(16, 7).collect::<Vec<_>>(), [3, 3, 2, 2, 2, 2, 2]);
    }

    #[test]
    fn an_adaptive_depth_has_a_limit_of_its_own() {
        let depth = |depth| Way { drafter: DrafterKind::Mtp, depth }.says(8).depth;
        assert_eq!((depth(Some(3)), depth(None)), (Some(3), Some(8)));
    }
}
