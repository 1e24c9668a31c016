//! The engine on real hybrids of random weights: what it replies, and what it keeps, is what computing everything anew gives.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::hybrid::{Script, Step, narrow, replies, restores, step};
use super::*;
use crate::cache::pool::{PageRef, SlotRef};
use crate::config::{ControllerKind, DeviceSetting, DrafterKind, PrecisionSetting};
use crate::device::{DeviceError, Executor, LogitRows, PageId, SlotId, Span, StateFlow};
use crate::event::Identity;
use crate::model;

/// Tokens no prompt here exceeds.
const LONGEST: usize = 1_200;

/// A model of random weights, and where it runs.
#[derive(Debug, Clone, Copy)]
struct Fixture {
    name: &'static str,
    device: DeviceSetting,
    /// Tokens drafted in a cycle by lookup, where the cache is used; 0 drafts none.
    drafts: u32,
}

impl Fixture {
    fn load(self) -> Loaded {
        let mut config = Config::default();
        config.model.device = self.device;
        // Where bits are not promised, rounding must at least not decide between two tokens.
        if self.device == DeviceSetting::Mlx {
            config.model.precision = PrecisionSetting::F32;
        }
        config.model.path =
            Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(self.name));
        config.model.threads = 2;
        config.cache.block_tokens = BLOCK;
        model::load(&config).unwrap()
    }
}

impl Fixture {
    /// Drafts often and badly, so that much is taken back, and has every cycle audited.
    fn drafting(self) -> Config {
        let mut config = Config::default();
        config.speculation.drafter = Some(DrafterKind::Ngram);
        config.speculation.controller = Some(ControllerKind::Fixed);
        config.speculation.depth = Some(self.drafts);
        config.speculation.ngram_tokens = 1;
        config.speculation.audit = true;
        config
    }
}

/// A block the cache holds: the tokens up to its end, the digest of its page and, where it has one, of its snapshot.
pub(super) type HeldState = (Vec<u32>, [u8; 32], Option<[u8; 32]>);

pub(super) fn held_state(scheduler: &mut Scheduler<'_>) -> Vec<HeldState> {
    let held = scheduler.cache_mut().held();
    let executor = scheduler.executor();
    let digests = |(tokens, page, snapshot): (Vec<u32>, PageRef, Option<SlotRef>)| {
        let snapshot = snapshot.map(|slot| executor.slot_digest(slot.id()));
        (tokens, executor.page_digest(page.id(), BLOCK), snapshot)
    };
    held.into_iter().map(digests).collect()
}

/// The digests of page and recurrent state at every block's end of `tokens`, computed from nothing block by block.
fn recomputed(executor: &mut dyn Executor, tokens: &[u32]) -> Vec<([u8; 32], [u8; 32])> {
    let blocks = tokens.len() / BLOCK;
    let pages: Vec<PageId> = (0..blocks as u32).map(PageId).collect();
    let slot = SlotId(0);
    executor.reserve(blocks, 1).unwrap();
    let mut digests = Vec::new();
    for (index, block) in tokens.chunks_exact(BLOCK).enumerate() {
        let from = (index > 0).then_some(slot);
        let state = Some(StateFlow { from, to: slot, revocable: false });
        let span = Span {
            positions: None,
            capture: 0,
            hidden: false,
            pages: &pages,
            start: index * BLOCK,
            tokens: block,
            state,
            logits: LogitRows::None,
        };
        executor.forward(&[span]).unwrap();
        digests.push((executor.page_digest(pages[index], BLOCK), executor.slot_digest(slot)));
    }
    digests
}

pub(super) fn assert_recomputes(executor: &mut dyn Executor, held: &[HeldState]) {
    let by_tokens: BTreeMap<&[u32], _> = held.iter().map(|(t, page, slot)| (&t[..], (page, slot))).collect();
    // A chain is part of another where its successor in order goes on from it.
    let mut chains = by_tokens.keys().copied().peekable();
    while let Some(chain) = chains.next() {
        if chains.peek().is_some_and(|next| next.starts_with(chain)) {
            continue;
        }
        for (index, (page, slot)) in recomputed(executor, chain).iter().enumerate() {
            let (held_page, held_slot) = by_tokens[&chain[..(index + 1) * BLOCK]];
            assert!(held_page == page, "the page of block {index} of {} tokens", chain.len());
            assert!(
                held_slot.is_none_or(|held| held == *slot),
                "the snapshot of block {index} of {} tokens",
                chain.len()
            );
        }
    }
}

/// What the runs of a test came by: without any of it they would prove nothing.
#[derive(Debug, Default)]
struct Seen {
    restored: usize,
    from_disk: usize,
    without_snapshot: usize,
    dropped: u64,
    snapshots: usize,
    distinct: BTreeSet<u32>,
    accepted: u64,
    taken_back: u64,
}

impl Seen {
    fn add(&mut self, events: &[Event], held: &[HeldState]) {
        for restore in restores(events) {
            self.restored += usize::from(restore.checkpoint_tokens > 0);
            self.from_disk += usize::from(restore.ssd.is_some());
            self.without_snapshot += usize::from(restore.matched_with_state_tokens < restore.matched_tokens);
        }
        for event in events {
            match event.body {
                Body::Stored { snapshots: Some(snapshots), .. } => self.dropped += snapshots.dropped,
                Body::Token { token, .. } => {
                    self.distinct.insert(token);
                }
                Body::Cycled(ref cycle) => {
                    self.accepted += u64::from(cycle.accepted);
                    self.taken_back += u64::from(cycle.drafted - cycle.accepted);
                    let audit = cycle.audit.as_ref();
                    assert!(audit.is_none_or(|audit| audit.passed), "{cycle:?}");
                }
                _ => {}
            }
        }
        self.snapshots += held.iter().filter(|(_, _, snapshot)| snapshot.is_some()).count();
    }
}

/// Plays what `steps` says with a cache, several sequences at once, against one at a time in one chunk without.
fn compare(model: Fixture, ground: &Ground, steps: &[Step], seen: &mut Seen) {
    let Loaded { executor, text, scorer, .. } = model.load();
    let vocab = executor.facts().vocab as u32;
    let script = |use_cache| Script { steps, use_cache, vocab, longest: LONGEST };
    let (held, cached) =
        ground.run_on(Loaded { executor, text, scorer, draft: None }, |scheduler, clock, out| {
            if model.drafts > 0 {
                scheduler.attach_speculation(SpeculationSide::new(None, model.drafting()));
            }
            script(true).play(ground, scheduler, clock, out);
            held_state(scheduler)
        });
    let alone = self::ground(SnapshotPolicy::None, 10_000, 1, 0);
    let ((), uncached) = alone.run_on(model.load(), |scheduler, clock, out| {
        script(false).play(&alone, scheduler, clock, out);
    });
    for events in [&cached, &uncached] {
        let failed = events.iter().find(|e| matches!(e.body, Body::Failed { .. } | Body::StalePage { .. }));
        assert_eq!(failed, None);
    }
    let (replies, expected) = (replies(&cached), replies(&uncached));
    for (n, step) in steps.iter().enumerate() {
        let id = RequestId(n as u64 + 1);
        match step.cancel {
            None => assert_eq!(replies[&id], expected[&id], "request {} on {ground:?}", id.0),
            // What was said before it was cancelled, sooner in one run than in the other.
            Some(_) => {
                let said = replies.get(&id).into_iter().flatten();
                assert!(said.zip(expected.get(&id).into_iter().flatten()).all(|(a, b)| a == b));
            }
        }
    }
    let mut executor = model.load().executor;
    if executor.facts().identity == Identity::Bitwise {
        assert_recomputes(&mut *executor, &held);
    }
    seen.add(&cached, &held);
}

fn ground(policy: SnapshotPolicy, chunk_tokens: usize, max_sequences: usize, snapshots: usize) -> Ground {
    narrow(
        policy,
        SchedulerConfig { max_sequences, chunk_tokens, ..SchedulerConfig::default() },
        BLOCK,
        LONGEST,
        snapshots,
    )
}

fn compare_all(name: &'static str) {
    let model = Fixture { name, device: DeviceSetting::Cpu, drafts: 0 };
    let mut random = TestRunner::deterministic();
    let mut seen = Seen::default();
    for policy in [SnapshotPolicy::EVERY, SnapshotPolicy::Last, SnapshotPolicy::None] {
        for (chunk_tokens, max_sequences, snapshots) in [(7, 3, 3), (64, 2, 30), (150, 3, 8), (500, 2, 1)] {
            let steps = prop::collection::vec(step(300), 10).new_tree(&mut random).unwrap().current();
            compare(model, &ground(policy, chunk_tokens, max_sequences, snapshots), &steps, &mut seen);
        }
    }
    assert!(seen.restored > 20 && seen.without_snapshot > 20 && seen.dropped > 20, "{seen:?}");
    assert!(seen.snapshots > 20 && seen.distinct.len() > 50, "{seen:?}");
}

#[test]
fn what_is_drafted_leaves_no_trace_among_neighbours_cancels_and_evictions() {
    let mut random = TestRunner::deterministic();
    let mut seen = Seen::default();
    for name in ["parity-odd-hybrid", "parity-odd-moe"] {
        for (policy, drafts, chunk_tokens, snapshots) in [
            (SnapshotPolicy::EVERY, 1, 64, 12),
            (SnapshotPolicy::EVERY, 5, 150, 30),
            (SnapshotPolicy::Last, 16, 64, 9),
            (SnapshotPolicy::None, 3, 500, 8),
        ] {
            let model = Fixture { name, device: DeviceSetting::Cpu, drafts };
            let steps = prop::collection::vec(step(300), 10).new_tree(&mut random).unwrap().current();
            compare(model, &ground(policy, chunk_tokens, 3, snapshots), &steps, &mut seen);
        }
    }
    // Of weights at random hardly anything is guessed twice.
    assert!(seen.accepted > 20 && seen.taken_back > 50 && seen.restored > 10, "{seen:?}");
}

#[test]
fn a_dense_hybrid_replies_and_keeps_what_computing_anew_gives() {
    compare_all("parity-odd-hybrid");
}

#[test]
fn a_hybrid_of_experts_replies_and_keeps_what_computing_anew_gives() {
    compare_all("parity-odd-moe");
}

/// Engines one after the other on one folder, with faults, and with little room in RAM.
fn compare_over_restarts(model: Fixture, rounds: usize) -> Seen {
    let mut random = TestRunner::deterministic();
    let mut seen = Seen::default();
    for (policy, snapshots, limit_bytes) in
        [("every", 3, 1 << 30), ("every:2", 20, 4 << 20), ("branch", 8, 1 << 30)]
    {
        let dir = tempfile::tempdir().unwrap();
        let policy = SnapshotPolicy::parse(policy).unwrap();
        let tier = TierGround { dir: dir.path().to_owned(), limit_bytes, tuning: Tuning::default() };
        let ground = Ground { tier: Some(tier), ..ground(policy, 64, 2, snapshots) };
        for _ in 0..rounds {
            let steps = prop::collection::vec(step(300), 8).new_tree(&mut random).unwrap().current();
            compare(model, &ground, &steps, &mut seen);
        }
    }
    seen
}

#[test]
fn what_comes_back_from_disk_is_what_computing_anew_gives() {
    for name in ["parity-odd-hybrid", "parity-odd-moe"] {
        let seen = compare_over_restarts(Fixture { name, device: DeviceSetting::Cpu, drafts: 0 }, 3);
        assert!(seen.from_disk >= 8 && seen.snapshots > 20, "{name}: {seen:?}");
    }
}

#[cfg(feature = "mlx")]
#[test]
fn on_mlx_what_comes_back_from_disk_gives_the_same_replies() {
    let seen = compare_over_restarts(
        Fixture { name: "parity-odd-hybrid", device: DeviceSetting::Mlx, drafts: 0 },
        2,
    );
    assert!(seen.from_disk > 2 && seen.snapshots > 20, "{seen:?}");
}

#[cfg(feature = "mlx")]
#[test]
fn on_mlx_hybrids_reply_what_computing_anew_gives() {
    for name in ["parity-odd-hybrid", "parity-odd-moe"] {
        let model = Fixture { name, device: DeviceSetting::Mlx, drafts: 0 };
        let mut random = TestRunner::deterministic();
        let mut seen = Seen::default();
        for (policy, chunk_tokens, max_sequences, snapshots) in [
            (SnapshotPolicy::EVERY, 64, 3, 30),
            (SnapshotPolicy::EVERY, 150, 2, 3),
            (SnapshotPolicy::Last, 40, 2, 8),
        ] {
            let steps = prop::collection::vec(step(300), 8).new_tree(&mut random).unwrap().current();
            compare(model, &ground(policy, chunk_tokens, max_sequences, snapshots), &steps, &mut seen);
        }
        assert!(seen.restored > 5 && seen.snapshots > 5 && seen.distinct.len() > 20, "{name}: {seen:?}");
    }
}

/// A forward over a chunk of another sequence's prompt, interrupted before every layer in turn.
fn interrupted_forwards_leave_nothing(mut executor: Box<dyn Executor>) {
    let facts = executor.facts().clone();
    executor.reserve(6, 4).unwrap();
    let (mine, others): (Vec<PageId>, Vec<PageId>) =
        ((0..3).map(PageId).collect(), (3..6).map(PageId).collect());
    let tokens: Vec<u32> = (0..2 * BLOCK as u32).map(|i| i * 31 % 97).collect();
    let (first, second) = tokens.split_at(BLOCK);
    let recurrent = facts.recurrent_layers > 0;
    let flow = |from: Option<u32>, to: u32| {
        recurrent.then(|| StateFlow { from: from.map(SlotId), to: SlotId(to), revocable: false })
    };
    let span = |pages, start, tokens, state| Span {
        pages,
        start,
        tokens,
        positions: None,
        capture: 0,
        hidden: false,
        state,
        logits: LogitRows::Last,
    };
    let digests = |executor: &dyn Executor, pages: &[PageId], slot: u32| {
        let pages: Vec<_> = pages[..2].iter().map(|page| executor.page_digest(*page, BLOCK)).collect();
        (pages, recurrent.then(|| executor.slot_digest(SlotId(slot))))
    };
    // A sequence that stands at the end of two blocks, and one that stands at the end of the first.
    executor.forward(&[span(&others, 0, &tokens[..], flow(None, 3))]).unwrap();
    executor.forward(&[span(&mine, 0, first, flow(None, 0))]).unwrap();
    let before = digests(&*executor, &others, 3);
    let expected = executor.forward(&[span(&mine, BLOCK, second, flow(Some(0), 1))]).unwrap().logits;
    let left = digests(&*executor, &mine, 1);
    let layers = facts.attention_layers + facts.recurrent_layers;
    for stop in 1..=layers {
        let mut asked = 0;
        let mut latest = Nanos(0);
        let slice = span(&mine, BLOCK, second, flow(Some(0), 2));
        let outcome = executor.forward_while(&[slice], &mut |after| {
            asked += 1;
            assert!(after >= latest, "time goes on");
            latest = after;
            asked < stop
        });
        if stop == layers {
            assert_eq!((outcome.unwrap().logits, asked), (expected.clone(), layers - 1), "nobody stopped it");
        } else {
            let Err(DeviceError::Interrupted { after }) = outcome else {
                panic!("interrupted at layer {stop}")
            };
            assert_eq!((after, asked), (latest, stop));
        }
        // What others hold is as it was, and the same slice can be computed again, to the same state.
        assert_eq!(digests(&*executor, &others, 3), before, "layer {stop}");
        let again = executor.forward(&[span(&mine, BLOCK, second, flow(Some(0), 1))]).unwrap();
        assert_eq!(again.logits, expected, "layer {stop}");
        assert_eq!(digests(&*executor, &mine, 1), left, "layer {stop}");
    }
}

#[test]
fn a_forward_that_is_interrupted_between_any_two_layers_leaves_nothing_and_can_be_repeated() {
    for name in ["parity-odd-hybrid", "parity-llama", "parity-odd-moe"] {
        let model = Fixture { name, device: DeviceSetting::Cpu, drafts: 0 };
        interrupted_forwards_leave_nothing(model.load().executor);
    }
    for snapshot_bytes in [0, 1 << 20] {
        let mut config = Config::default().sim;
        config.snapshot_bytes = snapshot_bytes;
        interrupted_forwards_leave_nothing(Box::new(Sim::new(&config, BLOCK)));
    }
}

#[cfg(feature = "mlx")]
#[test]
fn on_mlx_a_forward_that_is_interrupted_leaves_nothing_and_can_be_repeated() {
    for name in ["parity-odd-hybrid", "parity-llama"] {
        let model = Fixture { name, device: DeviceSetting::Mlx, drafts: 0 };
        interrupted_forwards_leave_nothing(model.load().executor);
    }
}
