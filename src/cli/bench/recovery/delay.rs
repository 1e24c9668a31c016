//! How long a request waits for a slice: requests sent at random moments into a job that runs, under the wall clock.
//!
//! Two engines, alike but for whether a slice gives way between two layers, take turns, an arrival each, so that a machine that grows slow is slow for both.
//! While one is measured the other's job stands still: somebody is announced to it. What is sent is a question of a few words in a lane of its own, which
//! owes nothing, so that the job goes on afterwards.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::super::running::session_of;
use super::{Claim, Options};
use crate::cli::Failure;
use crate::cli::progress::Progress;
use crate::config::{ClockKind, Config, IdleConfig, IdleWord};
use crate::engine::{Command, Engine, Setup};
use crate::event::{Body, Event, Gate, LaneId, Nanos, RunFacts, Stamp};
use crate::model;
use crate::recovery::arrivals::Announced;
use crate::recovery::neighbours::{Member, Neighbours};
use crate::report::seconds;
use crate::session::{Message, Role, Session};

/// The part of an uninterrupted slice that a request may wait for one that gives way.
const PART: f64 = 0.1;
/// A slice is awaited no longer than this.
const PATIENCE: Duration = Duration::from_secs(60);
/// Jobs that may come to their end before all requests are sent.
const MOST_JOBS: usize = 50;

/// What arrivals met, slices that give way beside such that do not.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Delays {
    /// Tokens of a slice.
    pub(super) slice_tokens: u64,
    /// Tokens of the prompt that the job recovers.
    pub(super) prompt_tokens: u64,
    pub(super) interruptible: Arrivals,
    pub(super) uninterruptible: Arrivals,
}

/// What arrivals met.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Arrivals {
    /// Requests sent while the job ran.
    pub(super) arrivals: u64,
    /// Of these, such that a slice was in the way of.
    pub(super) collisions: u64,
    /// How long, over all of them, seconds; 0 where none was.
    pub(super) delay_s: Quantiles,
    /// Their time to the first token, that delay included, seconds.
    pub(super) ttft_s: Quantiles,
    /// How long a slice took that ran to its end at full length, seconds; null where none was seen.
    pub(super) slice_s: Option<Quantiles>,
}

/// Quantiles by nearest rank.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Quantiles {
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) max: f64,
}

impl Quantiles {
    /// `None` without values.
    fn of(values: impl IntoIterator<Item = f64>) -> Option<Quantiles> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let at =
            |part: f64| values.get(((values.len() as f64 * part).ceil() as usize).saturating_sub(1)).copied();
        Some(Quantiles { p50: at(0.5)?, p90: at(0.9)?, max: at(1.0)? })
    }
}

impl Delays {
    /// What should hold of them; `None` where no slice ran to its end to be compared with.
    pub(super) fn claim(&self) -> Option<Claim> {
        let (worst, slice) = (self.interruptible.delay_s.max, self.uninterruptible.slice_s?.p50);
        Some(Claim {
            claim: format!(
                "a slice that gives way delays a request by less than {PART} of one that does not"
            ),
            holds: worst < slice * PART,
            because: format!("at most {} against a slice of {}, median", seconds(worst), seconds(slice)),
        })
    }
}

/// Moments that look random and are the same in every run (splitmix64).
struct Moments(u64);

impl Moments {
    /// In 0 to 1.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Sends requests into the jobs of two engines in turn.
pub(super) fn measure(
    options: &Options,
    config: &Config,
    progress: &mut Progress,
    facts: &mut Option<RunFacts>,
) -> Result<Delays, Failure> {
    let mut config = config.clone();
    config.replay.clock = ClockKind::Wall;
    config.replay.idle = IdleConfig::Word(IdleWord::Zero);
    config.replay.tell_logits = false;
    config.specprefill.threshold = Some((options.job_tokens / 2) as u64);
    // A slice ends at a block's end, so a block must have room for one.
    config.cache.block_tokens = config.cache.block_tokens.max(2 * options.job_slice);
    config.recovery.enabled = true;
    config.recovery.slice_tokens = options.job_slice as u64;
    config.recovery.budget_pct = 100.0;
    config.recovery.budget_tokens = None;
    progress.show(|| "a long prompt".to_owned());
    let session = Arc::new(session_of(options.job_tokens, &config)?);
    let start = |interruptible: bool| {
        let mut config = config.clone();
        config.recovery.interruptible = interruptible;
        Probe::start(config, Arc::clone(&session))
    };
    let mut probes = [start(true)?, start(false)?];
    let mut moments = Moments(20_260);
    for arrival in 0..options.arrivals {
        for probe in &mut probes {
            progress.show(|| {
                let kind = if probe.config.recovery.interruptible { "giving way" } else { "not giving way" };
                format!("arrival {} of {}, slices {kind}", arrival + 1, options.arrivals)
            });
            probe.arrive(moments.next())?;
        }
    }
    let prompt_tokens = probes[0].prompt_tokens;
    *facts = facts.take().or_else(|| probes[0].run.clone());
    let [interruptible, uninterruptible] = probes;
    Ok(Delays {
        slice_tokens: options.job_slice as u64,
        prompt_tokens,
        interruptible: interruptible.end()?,
        uninterruptible: uninterruptible.end()?,
    })
}

/// An engine whose job requests are sent into.
struct Probe {
    config: Config,
    session: Arc<Session>,
    engine: Engine,
    events: Receiver<Event>,
    /// Who is announced to the engine while its job is to stand still.
    beside: Member,
    hold: Option<Announced>,
    run: Option<RunFacts>,
    prompt_tokens: u64,
    /// The lane of the questions.
    questions: LaneId,
    lanes: u32,
    jobs: usize,
    job_ended: bool,
    arrived: Option<(Stamp, Option<Nanos>)>,
    first_token: Option<Stamp>,
    delays: Vec<f64>,
    waited: u64,
    ttfts: Vec<f64>,
    slices: Vec<f64>,
}

impl Probe {
    fn start(config: Config, session: Arc<Session>) -> Result<Probe, Failure> {
        let (sender, events) = mpsc::channel();
        let neighbours = Neighbours::open(&config.recovery);
        let for_load = config.clone();
        let setup = Setup {
            neighbours: neighbours.clone(),
            config: config.clone(),
            session: Arc::clone(&session),
            load: Box::new(move || model::load(&for_load)),
            sink: Box::new(move |event: &Event| drop(sender.send(event.clone()))),
        };
        let engine = Engine::start(setup).map_err(Failure::run)?;
        let beside = neighbours.join();
        let hold = Some(beside.announce());
        let mut probe = Probe {
            config,
            session,
            engine,
            events,
            beside,
            hold,
            run: None,
            prompt_tokens: 0,
            questions: LaneId(1),
            lanes: 1,
            jobs: 0,
            job_ended: false,
            arrived: None,
            first_token: None,
            delays: Vec::new(),
            waited: 0,
            ttfts: Vec::new(),
            slices: Vec::new(),
        };
        probe.until(|event| matches!(event.body, Body::GateChanged { .. }))?;
        probe.take_on_a_debt(LaneId(0))?;
        probe.questions = probe.fork("A question of a few words: which block is next?".to_owned())?;
        probe.turn(Command::StepTurn { lane: probe.questions })?;
        Ok(probe)
    }

    /// Takes events in up to the one that `last` holds for.
    fn until(&mut self, last: impl Fn(&Event) -> bool) -> Result<(), Failure> {
        let end = Instant::now() + PATIENCE * 10;
        loop {
            let wait = end.saturating_duration_since(Instant::now());
            let event =
                self.events.recv_timeout(wait).map_err(|_| Failure::run("the engine says nothing"))?;
            self.take(&event)?;
            if last(&event) {
                return Ok(());
            }
        }
    }

    /// Takes note of what an event tells.
    fn take(&mut self, event: &Event) -> Result<(), Failure> {
        match &event.body {
            Body::RunStarted(run) => self.run = Some((**run).clone()),
            Body::Failed { message } | Body::EngineFailed { message } => {
                return Err(Failure::run(message));
            }
            Body::Arrived(arrival) => {
                (self.arrived, self.first_token) = (Some((event.at, arrival.delayed)), None);
                self.prompt_tokens = self.prompt_tokens.max(arrival.prompt_tokens);
            }
            Body::Token { index: 0, .. } => self.first_token = Some(event.at),
            Body::RecoverySlice(slice) => {
                let whole = slice.to - slice.from == self.config.recovery.slice_tokens;
                if whole && slice.restored.is_none() {
                    self.slices.push(slice.took.seconds());
                }
            }
            Body::RecoveryEnded(_) => self.job_ended = true,
            _ => {}
        }
        Ok(())
    }

    /// Has a turn run to its end.
    fn turn(&mut self, command: Command) -> Result<(), Failure> {
        self.engine.send(command);
        self.until(|event| matches!(event.body, Body::Finished { .. }))?;
        self.until(|event| matches!(event.body, Body::GateChanged { gate, .. } if gate != Gate::Running))
    }

    /// A lane that begins with other words.
    fn fork(&mut self, content: String) -> Result<LaneId, Failure> {
        self.engine.send(Command::Fork { lane: LaneId(0), turn: 1, role: Role::User, content });
        self.until(|event| matches!(event.body, Body::LaneOpened { .. }))?;
        let lane = LaneId(self.lanes);
        self.lanes += 1;
        Ok(lane)
    }

    /// Has the long prompt served sparsely, so that there is a job.
    fn take_on_a_debt(&mut self, lane: LaneId) -> Result<(), Failure> {
        self.jobs += 1;
        self.job_ended = false;
        self.turn(Command::StepTurn { lane })
    }

    /// Lets the job run, sends a question at a moment of one of its slices, and stops it again.
    fn arrive(&mut self, moment: f64) -> Result<(), Failure> {
        // What it did before it was stopped tells nothing of what it does now.
        while let Ok(event) = self.events.try_recv() {
            self.take(&event)?;
        }
        self.hold = None;
        let started = |event: &Event| matches!(event.body, Body::RecoverySlice(_) | Body::RecoveryEnded(_));
        let began = Instant::now();
        loop {
            self.until(started)?;
            if !self.job_ended {
                break;
            }
            if self.jobs >= MOST_JOBS || began.elapsed() > PATIENCE * 10 {
                return Err(Failure::run(
                    "jobs end before a request can be sent into one; use a longer --job-tokens",
                ));
            }
            // Other words at the front: nothing of it is cached.
            let content = format!("{}. {}", self.jobs, self.session.requests[0].append[0].content);
            self.hold = Some(self.beside.announce());
            let lane = self.fork(content)?;
            self.take_on_a_debt(lane)?;
            self.hold = None;
        }
        // Anywhere in the slices that come next.
        let slice = self.slices.last().copied().unwrap_or(0.05);
        std::thread::sleep(Duration::from_secs_f64(2.0 * slice * moment));
        let question = Message::text(Role::User, format!("And the one after block {}?", self.delays.len()));
        let lane = self.questions;
        self.turn(Command::Inject { lane, messages: vec![question], max_output_tokens: Some(1) })?;
        self.hold = Some(self.beside.announce());
        let Some(((at, delayed), first)) = self.arrived.zip(self.first_token) else {
            return Err(Failure::run("the request told no token"));
        };
        let delay = delayed.map_or(0.0, |delayed| delayed.seconds());
        self.waited += u64::from(delayed.is_some());
        self.delays.push(delay);
        self.ttfts.push(first.since(at).seconds() + delay);
        Ok(())
    }

    fn end(self) -> Result<Arrivals, Failure> {
        self.engine.send(Command::Shutdown);
        self.engine.join();
        let nothing = || Failure::run("no request was sent");
        Ok(Arrivals {
            arrivals: self.delays.len() as u64,
            collisions: self.waited,
            delay_s: Quantiles::of(self.delays).ok_or_else(nothing)?,
            ttft_s: Quantiles::of(self.ttfts).ok_or_else(nothing)?,
            slice_s: Quantiles::of(self.slices),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        assert_eq!(Quantiles::of([]), None);
        assert_eq!(Quantiles::of([3.0]), Some(Quantiles { p50: 3.0, p90: 3.0, max: 3.0 }));
        let ten = (1..=10).rev().map(f64::from);
        assert_eq!(Quantiles::of(ten), Some(Quantiles { p50: 5.0, p90: 9.0, max: 10.0 }));
    }

    #[test]
    fn the_claim_is_about_the_worst_delay_and_a_typical_slice() {
        let same = |value| Quantiles { p50: value, p90: value, max: value };
        let of = |delay: f64, slice: Option<f64>| Arrivals {
            arrivals: 9,
            collisions: 5,
            delay_s: same(delay),
            ttft_s: same(0.1),
            slice_s: slice.map(same),
        };
        let holds = |delay: f64, slice: Option<f64>| {
            let delays = Delays {
                slice_tokens: 512,
                prompt_tokens: 9_000,
                interruptible: of(delay, None),
                uninterruptible: of(0.3, slice),
            };
            delays.claim().map(|claim| claim.holds)
        };
        assert_eq!(holds(0.019, Some(0.2)), Some(true));
        assert_eq!(holds(0.021, Some(0.2)), Some(false));
        assert_eq!(holds(0.0, None), None, "no slice ran to its end");
    }

    #[test]
    fn moments_are_within_one_and_differ() {
        let mut moments = Moments(1);
        let all: Vec<f64> = (0..100).map(|_| moments.next()).collect();
        assert!(all.iter().all(|moment| (0.0..1.0).contains(moment)));
        assert!(
            all.windows(2).all(|pair| pair[0] != pair[1])
                && all.iter().any(|m| *m > 0.9)
                && all.iter().any(|m| *m < 0.1)
        );
    }
}
