//! Many sequences decoding at once, step by step, and where the time of a step goes: what benches ask for.
//!
//! A scheduler runs here by itself, without lanes and commands, on the wall's clock. Only steps count in which all sequences decode and nothing else
//! is computed. Of each it is told what the executor took, what choosing tokens took, and what is left: the engine's own bookkeeping, events and
//! the fold over them included.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use super::clock::Clock;
use super::emitter::Emitter;
use super::scheduler::{Policies, Scheduler};
use super::sequence::Submission;
use crate::cache::budget::Budget;
use crate::cache::{Cache, chain};
use crate::config::{ClockKind, Config, SchedulerConfig};
use crate::device::{
    DeviceError, Executor, ExecutorFacts, Forward, HeadSpan, KeyWeights, MemoryUse, PageId, Predicted,
    Queries, SlotId, Span, StateFlow,
};
use crate::event::{Body, Event, LaneId, Nanos};
use crate::ledger::Latency;
use crate::model::Loaded;

/// Steps that may pass for one that counts.
const STEPS_FOR_ONE: usize = 16;

/// How the sequences are.
#[derive(Debug, Clone, Copy)]
pub struct Workload<'a> {
    /// How many decode at once; each of these is measured in turn.
    pub sequences: &'a [usize],
    /// Tokens of a prompt.
    pub prompt_tokens: usize,
    /// Steps measured in a turn.
    pub steps: usize,
    /// Turns.
    pub repeat: usize,
}

/// What the steps of so many sequences took.
#[derive(Debug, Clone, Default)]
pub struct Steps {
    /// Steps measured.
    pub steps: u64,
    /// Tokens they gave.
    pub tokens: u64,
    /// From the beginning of each to its end.
    pub wall: Nanos,
    /// In the executor.
    pub executor: Nanos,
    /// In choosing tokens.
    pub sampling: Nanos,
    /// What of a step was not the executor's.
    pub host: Latency,
}

/// What of an executor's time is told.
#[derive(Debug, Default)]
struct Spent {
    nanos: AtomicU64,
    /// Spans of the latest forward where each is of one token, else 0.
    rows: AtomicUsize,
}

/// Measures how long steps of many sequences take. `told` is called with every turn.
pub fn decode_together(
    loaded: Loaded,
    config: &Config,
    workload: Workload<'_>,
    mut told: impl FnMut(usize),
) -> Result<BTreeMap<usize, Steps>, String> {
    let Loaded { executor, text, .. } = loaded;
    let facts = executor.facts().clone();
    let spent = Arc::new(Spent::default());
    let executor = Box::new(Timed { inner: executor, spent: Arc::clone(&spent) });
    let most = workload.sequences.iter().copied().max().unwrap_or(1);
    let scheduling = SchedulerConfig { max_sequences: most, ..config.scheduler.clone() };
    let budget = Budget::of(&facts, config.cache.ram_bytes, most);
    let identity = chain::Identity::of(&facts, text.digest());
    let cache = Cache::new(&identity, facts.page_tokens, budget);
    let mut clock = Clock::start(ClockKind::Wall, false);
    let failure = Arc::new(std::sync::Mutex::new(None));
    let (tokens, failed) = (Arc::new(AtomicU64::new(0)), Arc::clone(&failure));
    let counted = Arc::clone(&tokens);
    let mut out = Emitter::new(Box::new(move |event: &Event| match &event.body {
        Body::Token { .. } => drop(counted.fetch_add(1, Ordering::Relaxed)),
        Body::Failed { message } => {
            if let Ok(mut failed) = failed.lock() {
                *failed = Some(message.clone());
            }
        }
        _ => {}
    }));
    let mut scheduler = Scheduler::new(executor, &text, cache, scheduling, Policies::of(&config.cache));
    let mut measured: BTreeMap<usize, Steps> = BTreeMap::new();
    let mut seed = 0;
    for _ in 0..workload.repeat {
        for &sequences in workload.sequences {
            told(sequences);
            let steps = measured.entry(sequences).or_default();
            let mut left = workload.steps;
            // Every sequence takes some steps to begin with, and replies that end make others begin.
            let mut most = (workload.steps + sequences * workload.prompt_tokens) * STEPS_FOR_ONE + 1_000;
            while left > 0 {
                most = most.checked_sub(1).ok_or_else(|| {
                    format!("replies end too soon for {sequences} sequences to decode at once; ask for fewer steps")
                })?;
                for _ in scheduler.in_work()..sequences {
                    seed += 1;
                    let request = request(seed, &facts, workload);
                    scheduler.submit(request, &clock, &mut out);
                }
                let before = Reading::of(&scheduler, &spent, &tokens);
                spent.rows.store(0, Ordering::Relaxed);
                let began = Instant::now();
                scheduler.step(&mut clock, &mut out);
                let wall = Nanos::from(began.elapsed());
                let after = Reading::of(&scheduler, &spent, &tokens);
                if let Ok(mut failed) = failure.lock()
                    && let Some(message) = failed.take()
                {
                    return Err(message);
                }
                if spent.rows.load(Ordering::Relaxed) == sequences {
                    steps.add(wall, before..after);
                    left -= 1;
                }
            }
            scheduler.cancel_all(&mut clock, &mut out);
        }
    }
    Ok(measured)
}

/// Counters at a moment.
struct Reading {
    executor: u64,
    sampling: u64,
    tokens: u64,
}

impl Reading {
    fn of(scheduler: &Scheduler<'_>, spent: &Spent, tokens: &AtomicU64) -> Reading {
        Reading {
            executor: spent.nanos.load(Ordering::Relaxed),
            sampling: scheduler.sampling_time().0,
            tokens: tokens.load(Ordering::Relaxed),
        }
    }
}

impl Steps {
    fn add(&mut self, wall: Nanos, Range { start, end }: Range<Reading>) {
        let executor = end.executor - start.executor;
        self.steps += 1;
        self.tokens += end.tokens - start.tokens;
        self.wall.0 += wall.0;
        self.executor.0 += executor;
        self.sampling.0 += end.sampling - start.sampling;
        self.host.record(Nanos(wall.0.saturating_sub(executor)));
    }

    /// Tokens a second; `None` where nothing was measured.
    pub fn tokens_per_s(&self) -> Option<f64> {
        (self.wall.0 > 0).then(|| self.tokens as f64 / self.wall.seconds())
    }

    /// Seconds of a step, mean: all of it, in the executor, in choosing tokens, in the rest.
    pub fn of_a_step(&self) -> Option<[f64; 4]> {
        let rest = self.wall.0.saturating_sub(self.executor.0 + self.sampling.0);
        let mean = |time: u64| Nanos(time).seconds() / self.steps as f64;
        (self.steps > 0).then(|| [self.wall.0, self.executor.0, self.sampling.0, rest].map(mean))
    }
}

/// A request whose reply lasts for the measurement, of a prompt that no other shares.
fn request(seed: u64, facts: &ExecutorFacts, workload: Workload<'_>) -> Submission {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let prompt = (0..workload.prompt_tokens.max(1)).map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % facts.vocab.max(1) as u64) as u32
    });
    let prompt: Vec<u32> = prompt.collect();
    let room = facts.context_tokens.saturating_sub(prompt.len()).max(1) as u64;
    // While the others prefill it decodes already.
    let most = room.min(2 * workload.steps as u64 + 256);
    Submission { use_cache: false, ..Submission::of(LaneId(0), prompt, most) }
}

/// An executor whose time is counted.
struct Timed {
    inner: Box<dyn Executor>,
    spent: Arc<Spent>,
}

impl Timed {
    fn timed<T>(&mut self, work: impl FnOnce(&mut dyn Executor) -> T) -> T {
        let began = Instant::now();
        let result = work(&mut *self.inner);
        self.spent.nanos.fetch_add(Nanos::from(began.elapsed()).0, Ordering::Relaxed);
        result
    }
}

impl Executor for Timed {
    delegate_state!(but rewind, predict);

    fn reserve(&mut self, pages: usize, slots: usize) -> Result<(), DeviceError> {
        self.timed(|inner| inner.reserve(pages, slots))
    }

    fn forward(&mut self, spans: &[Span<'_>]) -> Result<Forward, DeviceError> {
        let single = spans.iter().all(|span| span.tokens.len() == 1);
        self.spent.rows.store(if single { spans.len() } else { 0 }, Ordering::Relaxed);
        self.timed(|inner| inner.forward(spans))
    }

    fn take_back(&mut self, forward: Forward) {
        self.timed(|inner| inner.take_back(forward));
    }

    fn rewind(&mut self, flow: StateFlow, tokens: usize) -> Result<(), DeviceError> {
        self.timed(|inner| inner.rewind(flow, tokens))
    }

    fn predict(&mut self, spans: &[HeadSpan<'_>]) -> Result<Predicted, DeviceError> {
        self.timed(|inner| inner.predict(spans))
    }

    fn admits(&self, position: usize, tokens: usize) -> usize {
        self.inner.admits(position, tokens)
    }

    fn memory(&self) -> Option<MemoryUse> {
        self.inner.memory()
    }

    fn key_weights(
        &mut self,
        pages: &[PageId],
        window: Range<usize>,
        queries: &Queries,
    ) -> Result<KeyWeights, DeviceError> {
        self.timed(|inner| inner.key_weights(pages, window, queries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model;

    #[test]
    fn every_step_that_counts_gives_a_token_of_every_sequence() {
        let mut config = Config::default();
        config.model.device = crate::config::DeviceSetting::Sim;
        let workload = Workload { sequences: &[1, 5], prompt_tokens: 20, steps: 30, repeat: 2 };
        let loaded = model::load(&config).unwrap();
        let mut turns = Vec::new();
        let measured = decode_together(loaded, &config, workload, |sequences| turns.push(sequences)).unwrap();
        assert_eq!(turns, [1, 5, 1, 5], "they are measured in turn");
        for (sequences, steps) in &measured {
            assert_eq!((steps.steps, steps.tokens), (60, 60 * *sequences as u64));
            assert_eq!(steps.host.quantiles().unwrap().count, 60);
            assert!(steps.executor.0 > 0 && steps.executor.0 + steps.sampling.0 <= steps.wall.0);
            let [all, executor, sampling, rest] = steps.of_a_step().unwrap();
            assert!((executor + sampling + rest - all).abs() < 1e-9);
        }
        assert_eq!(Steps::default().tokens_per_s(), None);
    }

    #[test]
    fn what_cannot_run_is_an_error() {
        let mut config = Config::default();
        config.model.device = crate::config::DeviceSetting::Sim;
        config.cache.ram_bytes = 1;
        let workload = Workload { sequences: &[1], prompt_tokens: 20, steps: 3, repeat: 1 };
        let refused = decode_together(model::load(&config).unwrap(), &config, workload, |_| ());
        assert!(refused.unwrap_err().contains("cache.ram_bytes"));
    }
}
