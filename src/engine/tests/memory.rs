//! The engine on devices that run short of memory: chunks shrink, batches are split, requests end, and nothing else changes.

use super::hybrid::{narrow, replies, restores};
use super::*;
use crate::device::{
    DeviceError, Executor, ExecutorFacts, Forward, LogitRows, MemoryUse, PageId, SlotId, Span, StateFlow,
};
use crate::event::{DeviceMemory, ShrunkChunk};
use crate::model;

/// What a [`Short`] device lacks.
#[derive(Clone, Copy)]
pub(super) struct Want {
    /// Tokens a forward admits at a position.
    pub(super) admits: fn(usize) -> usize,
    /// Whether a batch finds no memory.
    pub(super) refuses: Refuses,
    /// What that costs.
    pub(super) cost: Cost,
    /// The state it has memory for.
    pub(super) holds: Holds,
}

type Refuses = fn(&[Span<'_>]) -> bool;

/// The state a device has memory for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Holds {
    pub(super) pages: usize,
    pub(super) slots: usize,
    /// Forwards after which there is memory for any number.
    pub(super) until: u64,
}

/// What a forward without memory costs.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Cost {
    /// It fails before it writes.
    Nothing,
    /// It fails after it has written.
    Written,
    /// With it goes all state, and what was reserved for it.
    All,
}

const ALL: Holds = Holds { pages: usize::MAX, slots: usize::MAX, until: 0 };

pub(super) const NOTHING: Want =
    Want { admits: |_| usize::MAX, refuses: |_| false, cost: Cost::Nothing, holds: ALL };

/// A device that behaves like the one inside it until memory runs out.
pub(super) struct Short {
    inner: Box<dyn Executor>,
    want: Want,
    reserved: (usize, usize),
    forwards: u64,
}

impl Short {
    pub(super) fn around(Loaded { executor, text, scorer, draft }: Loaded, want: Want) -> Loaded {
        let short = Short { inner: executor, want, reserved: (0, 0), forwards: 0 };
        Loaded { executor: Box::new(short), text, scorer, draft }
    }
}

impl Short {
    /// Every page and slot holds the state of some other context from here on.
    fn spoil(&mut self) {
        let (pages, slots) = self.reserved;
        let page_tokens = self.inner.facts().page_tokens;
        for page in 0..pages as u32 {
            let to = (page as usize).checked_rem(slots).map(|slot| SlotId(slot as u32));
            let state = to.map(|to| StateFlow { from: None, to, revocable: false });
            let (pages, tokens) = ([PageId(page)], vec![1_000_000 + page; page_tokens]);
            let logits = LogitRows::None;
            self.inner
                .forward(&[Span {
                    positions: None,
                    capture: 0,
                    hidden: false,
                    pages: &pages,
                    start: 0,
                    tokens: &tokens,
                    state,
                    logits,
                }])
                .unwrap();
        }
    }
}

impl Executor for Short {
    delegate_state!();

    fn key_weights(
        &mut self,
        pages: &[PageId],
        window: std::ops::Range<usize>,
        queries: &crate::device::Queries,
    ) -> Result<crate::device::KeyWeights, DeviceError> {
        self.inner.key_weights(pages, window, queries)
    }

    fn reserve(&mut self, pages: usize, slots: usize) -> Result<(), DeviceError> {
        let Holds { pages: most_pages, slots: most_slots, until } = self.want.holds;
        if self.forwards < until && (pages > most_pages || slots > most_slots) {
            return Err(DeviceError::OutOfMemory { bytes: 1 << 20, problem: "state".to_owned() });
        }
        self.reserved = (pages.max(self.reserved.0), slots.max(self.reserved.1));
        self.inner.reserve(pages, slots)
    }

    fn forward(&mut self, spans: &[Span<'_>]) -> Result<Forward, DeviceError> {
        let (pages, slots) = self.reserved;
        let beyond = |span: &Span<'_>| {
            span.pages.iter().any(|page| page.0 as usize >= pages)
                || span.state.is_some_and(|flow| flow.to.0 as usize >= slots)
        };
        if spans.iter().any(beyond) {
            return Err(DeviceError::Contract("a place is not reserved".to_owned()));
        }
        if (self.want.refuses)(spans) {
            match self.want.cost {
                Cost::Nothing => {}
                Cost::Written => drop(self.inner.forward(spans)?),
                Cost::All => {
                    self.spoil();
                    self.reserved = (0, 0);
                    return Err(DeviceError::StateLost("scores".to_owned()));
                }
            }
            return Err(DeviceError::OutOfMemory { bytes: 1 << 30, problem: "scores".to_owned() });
        }
        self.forwards += 1;
        self.inner.forward(spans)
    }

    fn admits(&self, position: usize, tokens: usize) -> usize {
        (self.want.admits)(position).min(tokens)
    }

    fn memory(&self) -> Option<MemoryUse> {
        let active = 1_000 - self.forwards;
        Some(MemoryUse { active, peak: 1_000, cached: Some(self.forwards), limit: Some(4_000) })
    }
}

fn rows(spans: &[Span<'_>]) -> usize {
    spans.iter().map(|span| span.tokens.len()).sum()
}

/// Attention layers only, and a hybrid.
pub(super) fn grounds(max_sequences: usize) -> [Ground; 2] {
    let scheduling = SchedulerConfig { max_sequences, chunk_tokens: 100, ..SchedulerConfig::default() };
    let hybrid = narrow(SnapshotPolicy::EVERY, scheduling.clone(), BLOCK, 1_000, 40);
    [Ground::sliceable(scheduling, 100), hybrid]
}

pub(super) fn on(
    ground: &Ground,
    want: Want,
    work: impl FnOnce(&mut Scheduler<'_>, &mut Clock, &mut Emitter),
) -> Vec<Event> {
    let mut config = config();
    config.sim.snapshot_bytes = ground.budget.slot_bytes as usize;
    let ((), events) = ground.run_on(Short::around(loaded(&config), want), |scheduler, clock, out| {
        work(scheduler, clock, out);
        drain(scheduler, clock, out);
        let cache = scheduler.cache_mut();
        assert_eq!(cache.used_pages(), cache.cached_blocks(), "a page leaks");
        assert_eq!(cache.used_slots(), cache.cached_snapshots(), "a slot leaks");
    });
    events
}

pub(super) fn prompt(seed: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|i| (seed * 977 + i * 13) % 5_000).collect()
}

/// Three prompts, of which the last goes on from the first.
fn three(scheduler: &mut Scheduler<'_>, clock: &mut Clock, out: &mut Emitter) {
    for tokens in [prompt(0, 500), prompt(1, 30)] {
        scheduler.submit(submission(tokens, 6), clock, out);
    }
    drain(scheduler, clock, out);
    let next = [prompt(0, 500), prompt(2, 90)].concat();
    scheduler.submit(submission(next, 6), clock, out);
}

pub(super) fn failed(events: &[Event]) -> Vec<(u64, &str)> {
    events
        .iter()
        .filter_map(|event| match &event.body {
            Body::Failed { message } => Some((event.request.unwrap().0, message.as_str())),
            _ => None,
        })
        .collect()
}

fn folded(events: &[Event]) -> Ledger {
    events.iter().fold(Ledger::new(), |mut ledger, event| {
        ledger.apply(event);
        ledger
    })
}

#[test]
fn shrunk_chunks_are_told_and_change_nothing_else() {
    for ground in grounds(2) {
        let roomy = on(&ground, NOTHING, three);
        // At position 0 nothing is admitted, and one token is tried all the same.
        let tight = on(&ground, Want { admits: |position| position / 4, ..NOTHING }, three);
        assert_eq!(replies(&roomy), replies(&tight));
        assert_eq!(failed(&tight), []);
        let checkpoints =
            |events: &[Event]| restores(events).iter().map(|r| r.checkpoint_tokens).collect::<Vec<_>>();
        assert_eq!(checkpoints(&roomy), checkpoints(&tight));
        assert_eq!(checkpoints(&tight), [0, 0, 448]);

        let mut done_before = 0;
        let mut told = Vec::new();
        for event in tight.iter().filter(|event| event.request == Some(RequestId(1))) {
            let Body::PrefillProgress { done, shrunk, .. } = event.body else { continue };
            let chunk = done - done_before;
            let to_block_end = BLOCK as u64 - done_before % BLOCK as u64;
            let stop = if ground.budget.slot_bytes > 0 { to_block_end } else { u64::MAX };
            let wanted = stop.min(100).min(500 - done_before);
            let expected = (chunk < wanted).then_some(ShrunkChunk { wanted, admitted: chunk });
            assert_eq!(shrunk, expected, "the chunk at {done_before}");
            assert_eq!(chunk, wanted.min((done_before / 4).max(1)));
            told.extend(shrunk);
            done_before = done;
        }
        assert_eq!(done_before, 500);
        assert!(told.len() > 8);
        let ledger = folded(&tight);
        let shrunk = ledger.request(RequestId(1)).unwrap().shrunk.unwrap();
        assert_eq!((shrunk.chunks, shrunk.smallest_tokens), (told.len() as u64, 1));
        assert!(folded(&roomy).requests().all(|request| request.shrunk.is_none()));
        assert_eq!(ledger.facts_hash(), folded(&roomy).facts_hash());
    }
}

#[test]
fn a_batch_without_memory_is_computed_span_by_span() {
    let together = |scheduler: &mut Scheduler<'_>, clock: &mut Clock, out: &mut Emitter| {
        for (seed, tokens) in [(0, 20), (1, 300), (2, 150)] {
            scheduler.submit(submission(prompt(seed, tokens), 9), clock, out);
        }
    };
    for ground in grounds(3) {
        let roomy = on(&ground, NOTHING, together);
        // A whole chunk alone, or a few tokens together.
        let tight = Want { refuses: |spans| spans.len() > 1 && rows(spans) > 20, ..NOTHING };
        let split = on(&ground, tight, together);
        assert_eq!(failed(&split), []);
        assert_eq!(replies(&roomy), replies(&split));
    }
}

#[test]
fn only_the_request_that_does_not_fit_alone_ends() {
    let work = |scheduler: &mut Scheduler<'_>, clock: &mut Clock, out: &mut Emitter| {
        for (seed, tokens) in [(0, 20), (1, 300), (2, 40)] {
            scheduler.submit(submission(prompt(seed, tokens), 9), clock, out);
        }
        drain(scheduler, clock, out);
        scheduler.submit(submission(prompt(3, 45), 9), clock, out);
    };
    for ground in grounds(3) {
        let roomy = on(&ground, NOTHING, work);
        // However few tokens of the second prompt are tried, it ends where there is no memory.
        let refuses =
            |spans: &[Span<'_>]| rows(spans) > 50 || spans.iter().any(|s| s.start + s.tokens.len() > 200);
        let tight = on(&ground, Want { refuses, ..NOTHING }, work);
        let failed = failed(&tight);
        assert_eq!(failed.iter().map(|(request, _)| *request).collect::<Vec<_>>(), [2]);
        assert!(failed[0].1.contains("cannot hold 1073741824 more bytes: scores"), "{failed:?}");
        let mut expected = replies(&roomy);
        expected.remove(&RequestId(2));
        assert_eq!(replies(&tight), expected);
    }
}

#[test]
fn a_chunk_without_memory_is_tried_again_with_half_its_tokens() {
    let work = |scheduler: &mut Scheduler<'_>, clock: &mut Clock, out: &mut Emitter| {
        for (seed, tokens) in [(0, 20), (1, 300)] {
            scheduler.submit(submission(prompt(seed, tokens), 9), clock, out);
        }
    };
    let cases: [(Cost, Refuses); 3] = [
        (Cost::Nothing, |spans| rows(spans) > 30),
        // A hybrid's second half of a block overwrites the state it starts from, so it has to fit at once.
        (Cost::Written, |spans| rows(spans) > if spans[0].start % BLOCK == 0 { 60 } else { 33 }),
        (Cost::Nothing, |spans| spans.iter().any(|s| s.start > 0 && s.tokens.len() > 1)),
    ];
    for (ground, hybrid) in grounds(1).into_iter().zip([false, true]) {
        let roomy = on(&ground, NOTHING, work);
        for (case, (cost, refuses)) in cases.into_iter().enumerate() {
            let tight = on(&ground, Want { refuses, cost, ..NOTHING }, work);
            if hybrid && case == 2 {
                let failed = failed(&tight);
                assert!(matches!(failed[..], [(2, said)] if said.contains("cannot hold")), "{failed:?}");
                continue;
            }
            assert_eq!(failed(&tight), []);
            assert_eq!(replies(&tight), replies(&roomy));
            assert_eq!(folded(&tight).facts_hash(), folded(&roomy).facts_hash());
            let told = tight.iter().filter_map(|event| match event.body {
                Body::PrefillProgress { shrunk, .. } => shrunk,
                _ => None,
            });
            let told: Vec<ShrunkChunk> = told.collect();
            assert!(!told.is_empty());
            assert!(told.iter().all(|chunk| chunk.admitted <= chunk.wanted / 2), "{told:?}");
        }
    }
}

#[test]
fn a_forward_that_fails_midway_costs_at_most_computing_again_what_it_overwrote() {
    let together = |scheduler: &mut Scheduler<'_>, clock: &mut Clock, out: &mut Emitter| {
        for (seed, tokens) in [(0, 20), (1, 300), (2, 150)] {
            scheduler.submit(submission(prompt(seed, tokens), 9), clock, out);
        }
        drain(scheduler, clock, out);
        scheduler.submit(submission(prompt(3, 500), 9), clock, out);
    };
    for (ground, hybrid) in grounds(3).into_iter().zip([false, true]) {
        let roomy = on(&ground, NOTHING, together);
        let refuses = |spans: &[Span<'_>]| spans.len() > 1 && rows(spans) > 20;
        let midway = on(&ground, Want { refuses, cost: Cost::Written, ..NOTHING }, together);
        assert_eq!(failed(&midway), []);
        assert_eq!(replies(&midway), replies(&roomy));
        let made_way = midway.iter().any(|event| matches!(event.body, Body::Preempted { .. }));
        assert_eq!(made_way, hybrid, "only a hybrid's slots are overwritten");
    }
}

#[test]
fn state_that_the_device_lost_is_not_read_again() {
    let work = |scheduler: &mut Scheduler<'_>, clock: &mut Clock, out: &mut Emitter| {
        for (seed, tokens) in [(0, 200), (1, 30)] {
            scheduler.submit(submission(prompt(seed, tokens), 9), clock, out);
        }
        drain(scheduler, clock, out);
        // Two are under way when the second finds no memory, and another waits.
        for (seed, tokens) in [(2, 70), (3, 600), (0, 200)] {
            scheduler.submit(submission(prompt(seed, tokens), 200), clock, out);
        }
    };
    for ground in grounds(2) {
        let refuses = |spans: &[Span<'_>]| spans.iter().any(|s| s.tokens.len() > 1 && s.start >= 400);
        let roomy = on(&ground, NOTHING, work);
        let events = on(&ground, Want { refuses, cost: Cost::All, ..NOTHING }, work);
        let failed = failed(&events);
        assert_eq!(failed.iter().map(|(request, _)| *request).collect::<Vec<_>>(), [3, 4]);
        assert!(failed[0].1.contains("lost all state"), "{failed:?}");
        let checkpoints: Vec<u64> = restores(&roomy).iter().map(|r| r.checkpoint_tokens).collect();
        assert_eq!(checkpoints, [0, 0, 0, 0, 192]);
        assert_eq!(restores(&events)[4].checkpoint_tokens, 0, "the cache is empty");
        let (said, expected) = (replies(&events), replies(&roomy));
        for request in [1, 2, 5].map(RequestId) {
            assert_eq!(said[&request], expected[&request]);
        }
        assert!(expected[&RequestId(3)].starts_with(&said[&RequestId(3)]), "what was said before the loss");
    }
}

#[test]
fn the_session_goes_on_after_a_request_without_memory() {
    // The end of the second prompt, which later prefills do not stop at.
    let want = Want { refuses: |spans| spans.iter().any(|s| s.start + s.tokens.len() == 481), ..NOTHING };
    let (config, session) = (config(), session(5));
    let sim = config.clone();
    let mut bench = Bench::start_on(config, session, move || Short::around(loaded(&sim), want));
    bench.send(Command::Run { lane: A });
    bench.until_gate(Gate::Ended);
    let (_, ledger) = bench.end();
    let failed: Vec<bool> = ledger.requests().map(|request| request.error.is_some()).collect();
    assert_eq!(failed, [false, true, false, false, false]);
    assert_eq!(ledger.memory().unwrap().live_blocks, 0);
}

#[test]
fn memory_is_told_with_every_chunk_and_at_the_end() {
    let ground = Ground::sliceable(
        SchedulerConfig { max_sequences: 1, chunk_tokens: 100, ..SchedulerConfig::default() },
        100,
    );
    let events = on(&ground, NOTHING, |scheduler, clock, out| {
        scheduler.submit(submission(prompt(0, 250), 4), clock, out);
    });
    let told: Vec<DeviceMemory> = events
        .iter()
        .filter_map(|event| match event.body {
            Body::PrefillProgress { device, .. } | Body::Memory { device, .. } => device,
            _ => None,
        })
        .collect();
    assert_eq!(told.iter().map(|m| m.active_bytes).collect::<Vec<_>>(), [999, 998, 997, 994]);
    assert!(told.iter().all(|m| (m.peak_bytes, m.limit_bytes) == (1_000, Some(4_000))));
    let ended = events.iter().position(|event| matches!(event.body, Body::Finished { .. })).unwrap();
    let ledger = folded(&events[..=ended]);
    let row = serde_json::to_value(&ledger.rows()[0]).unwrap();
    let expected = serde_json::json!({
        "active_bytes": 994, "peak_bytes": 1_000, "cached_bytes": 6, "limit_bytes": 4_000
    });
    assert_eq!(row["device_memory"], expected, "known when the row is printed");
}

#[test]
fn the_sim_device_counts_no_memory() {
    let (events, ledger) = replay(config(), session(2));
    assert_eq!(ledger.device_memory(), None);
    assert!(!serde_json::to_string(&events).unwrap().contains("\"device\":{"));
    let row = serde_json::to_value(&ledger.rows()[0]).unwrap();
    assert!(row["device_memory"].is_null() && row["shrunk_chunks"].is_null());
}

#[test]
fn on_cpu_shrunk_chunks_give_the_same_reply_and_memory_is_counted() {
    let mut config = config();
    config.model.threads = 2;
    let scheduling = SchedulerConfig { max_sequences: 1, chunk_tokens: 100, ..SchedulerConfig::default() };
    let ground = narrow(SnapshotPolicy::EVERY, scheduling, BLOCK, 400, 10);
    let run = |loaded: Loaded| {
        ground.run_on(loaded, |scheduler, clock, out| {
            scheduler.submit(submission((0..300).map(|i| i * 5 % 400).collect(), 12), clock, out);
            drain(scheduler, clock, out);
        })
    };
    let load = || model::load(&config).unwrap();
    let weights = load().executor.memory().unwrap().active;
    assert!(weights > 1 << 20, "{weights}");
    let ((), whole) = run(load());
    let ((), shrunk) = run(Short::around(load(), Want { admits: |at| 7 + at % 50, ..NOTHING }));
    assert_eq!((failed(&whole), failed(&shrunk)), (vec![], vec![]));
    assert_eq!(replies(&whole), replies(&shrunk));
    assert!(folded(&shrunk).request(RequestId(1)).unwrap().shrunk.is_some());

    let memory = folded(&whole).device_memory().unwrap();
    let facts = load().executor.facts().clone();
    let state = (5 * facts.page_bytes + 4 * facts.slot_bytes) as u64;
    assert!(memory.active_bytes >= weights + state, "{memory:?}");
    assert!(memory.peak_bytes >= memory.active_bytes, "{memory:?}");
    assert!(memory.cached_bytes > Some(0) && memory.limit_bytes.is_none(), "{memory:?}");
}
