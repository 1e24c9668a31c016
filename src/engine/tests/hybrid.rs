//! The engine on a hybrid: recurrent state restored from snapshots, against the same requests without a cache.

use std::collections::BTreeMap;

use super::*;
use crate::cache::lookup::Candidate;
use crate::cache::served::Predecessor;
use crate::event::{Residency, Restore, SlotMemory};

/// Tokens a block holds here: many boundaries in short prompts.
const SHORT: usize = 16;

/// Tokens no prompt here exceeds.
const LONGEST: usize = 480;

const REPLY: u64 = 24;

/// Ground with room for every running sequence at its longest, and for `snapshots` snapshots or a few more.
fn ground(policy: SnapshotPolicy, chunk_tokens: usize, max_sequences: usize, snapshots: usize) -> Ground {
    let scheduling = SchedulerConfig { max_sequences, chunk_tokens, ..SchedulerConfig::default() };
    narrow(policy, scheduling, SHORT, LONGEST, snapshots)
}

/// The same for blocks of `block_tokens` and prompts of `longest` tokens at most.
pub(super) fn narrow(
    policy: SnapshotPolicy,
    scheduling: SchedulerConfig,
    block_tokens: usize,
    longest: usize,
    snapshots: usize,
) -> Ground {
    let sequences = scheduling.max_sequences;
    let needed = sequences * (longest + REPLY as usize).div_ceil(block_tokens);
    // A quarter of what the live slots leave is for snapshots.
    let quarter = needed.div_ceil(3).max(snapshots);
    let slot_bytes = quarter.checked_div(snapshots).unwrap_or(quarter + 1);
    let budget = Budget {
        limit_bytes: (sequences * slot_bytes + 4 * quarter) as u64,
        page_bytes: 1,
        slot_bytes: slot_bytes as u64,
        sequences,
        context_pages: usize::MAX,
        device: DeviceLimits::default(),
    };
    Ground::of(scheduling, policy, block_tokens, budget)
}

pub(super) fn prompt(seed: usize, length: usize) -> Vec<u32> {
    (0..length).map(|i| ((seed + 3) * 101 + i * 7) as u32 % 5_000).collect()
}

pub(super) fn request(tokens: Vec<u32>) -> Submission {
    submission(tokens, REPLY)
}

pub(super) fn serve(
    scheduler: &mut Scheduler<'_>,
    tokens: Vec<u32>,
    clock: &mut Clock,
    out: &mut Emitter,
) -> RequestId {
    let id = scheduler.submit(request(tokens), clock, out);
    drain(scheduler, clock, out);
    id
}

pub(super) fn restores(events: &[Event]) -> Vec<&Restore> {
    events
        .iter()
        .filter_map(|event| match &event.body {
            Body::Restored(restore) => Some(&**restore),
            _ => None,
        })
        .collect()
}

/// What a request said, by number.
pub(super) fn replies(events: &[Event]) -> BTreeMap<RequestId, Vec<u32>> {
    let mut replies: BTreeMap<RequestId, Vec<u32>> = BTreeMap::new();
    for event in events {
        if let Body::Token { token, .. } = event.body {
            replies.entry(event.request.unwrap()).or_default().push(token);
        }
    }
    replies
}

/// Something a researcher does to one of the histories.
#[derive(Debug, Clone)]
enum Change {
    /// The next turn, after the model's reply or after another one.
    Append { live: bool },
    /// Another text from some point on, in the same history or in a new one.
    Edit { at: prop::sample::Index, fork: bool },
    /// The same prompt again.
    Again,
}

#[derive(Debug, Clone)]
pub(super) struct Step {
    lane: prop::sample::Index,
    change: Change,
    tokens: usize,
    /// Scheduler steps after which the request is cancelled.
    pub(super) cancel: Option<usize>,
    /// Runs together with the request before it.
    together: bool,
    evict_first: bool,
    /// A fault to what is held of the history the step goes on from.
    pub(super) fault: Option<Fault>,
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => any::<bool>().prop_map(|live| Change::Append { live }),
        2 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(at, fork)| Change::Edit { at, fork }),
        1 => Just(Change::Again),
    ]
}

/// Something that goes wrong. Without a tier some of it changes nothing.
fn fault() -> impl Strategy<Value = Fault> {
    let kinds: Vec<fn(u32) -> Fault> = vec![
        Fault::EvictBlock,
        Fault::LoseBlock,
        Fault::DropSnapshot,
        Fault::CorruptFile,
        Fault::TruncateFile,
        Fault::CorruptSnapshot,
        |_| Fault::FillDisk,
        |_| Fault::FreeDisk,
    ];
    (prop::sample::select(kinds), 0_u32..24).prop_map(|(kind, block)| kind(block))
}

/// A step that adds at most `most` tokens.
pub(super) fn step(most: usize) -> impl Strategy<Value = Step> {
    let cancel = prop_oneof![5 => Just(None), 1 => (0_usize..30).prop_map(Some)];
    (
        any::<prop::sample::Index>(),
        change(),
        1..=most,
        cancel,
        prop::bool::weighted(0.3),
        prop::bool::weighted(0.05),
        prop::option::weighted(0.2, fault()),
    )
        .prop_map(|(lane, change, tokens, cancel, together, evict_first, fault)| Step {
            lane,
            change,
            tokens,
            cancel,
            together,
            evict_first,
            fault,
        })
}

/// A history: its last prompt, and what the model said after it.
#[derive(Debug, Clone, Default)]
struct History {
    prompt: Vec<u32>,
    reply: Vec<u32>,
}

impl History {
    fn next(&self, seed: usize, step: &Step, longest: usize) -> Vec<u32> {
        let fresh = prompt(seed, step.tokens);
        let mut tokens = self.prompt.clone();
        match step.change {
            Change::Append { live: true } => tokens.extend(&self.reply),
            Change::Append { live: false } => {}
            Change::Edit { at, .. } => tokens.truncate(at.index(tokens.len() + 1)),
            Change::Again if !tokens.is_empty() => return tokens,
            Change::Again => {}
        }
        tokens.extend(fresh);
        tokens.truncate(longest);
        tokens
    }
}

/// Runs the steps on `sim`.
fn play(ground: &Ground, steps: &[Step], use_cache: bool) -> Vec<Event> {
    let script = Script { steps, use_cache, vocab: 5_000, longest: LONGEST };
    ground.run(|scheduler, clock, out| script.play(ground, scheduler, clock, out)).1
}

/// Steps to run.
pub(super) struct Script<'a> {
    pub(super) steps: &'a [Step],
    pub(super) use_cache: bool,
    /// Prompts are of ids below it.
    pub(super) vocab: u32,
    /// Tokens no prompt exceeds.
    pub(super) longest: usize,
}

impl Script<'_> {
    /// Runs the steps and checks after each group that nothing leaks.
    pub(super) fn play(
        &self,
        ground: &Ground,
        scheduler: &mut Scheduler<'_>,
        clock: &mut Clock,
        out: &mut Emitter,
    ) {
        let Script { steps, use_cache, vocab, longest } = *self;
        let mut histories = vec![History::default()];
        let mut at = 0;
        while at < steps.len() {
            let together = 1 + steps[at + 1..].iter().take_while(|step| step.together).count();
            if steps[at].evict_first {
                scheduler.evict_all(clock);
            }
            let mut lanes = BTreeMap::new();
            for (n, step) in steps.iter().enumerate().skip(at).take(together) {
                let mut lane = step.lane.index(histories.len());
                if let Some(fault) = step.fault {
                    scheduler.inject(fault, &histories[lane].prompt, clock);
                }
                let mut tokens = histories[lane].next(n, step, longest);
                tokens.iter_mut().for_each(|token| *token %= vocab);
                if matches!(step.change, Change::Edit { fork: true, .. }) {
                    histories.push(histories[lane].clone());
                    lane = histories.len() - 1;
                }
                let submission = Submission { use_cache, ..request(tokens.clone()) };
                lanes.insert(scheduler.submit(submission, clock, out), (n, lane, tokens));
            }
            for count in 0.. {
                for (id, (n, ..)) in &lanes {
                    if steps[*n].cancel == Some(count) {
                        scheduler.cancel(*id, clock, out);
                    }
                }
                if scheduler.is_idle() {
                    break;
                }
                for ended in scheduler.step(clock, out).ended {
                    let (n, lane, prompt) = lanes.remove(&ended.request).unwrap();
                    let served = ended.served.expect("the request was served");
                    let reply = served.tokens[served.prompt_tokens..].to_vec();
                    // A request that was to be cancelled may have ended before, with a cache and not without one.
                    if steps[n].cancel.is_none() {
                        histories[lane] = History { prompt, reply };
                    }
                }
            }
            let cache = scheduler.cache_mut();
            assert_eq!(cache.used_pages(), cache.cached_blocks(), "a page leaks");
            assert_eq!(cache.used_slots(), cache.cached_snapshots(), "a slot leaks");
            let (pages, slots) = cache.reservation();
            assert!(ground.budget.allows(pages, slots), "{pages} pages and {slots} slots");
            at += together;
        }
    }
}

fn policy() -> impl Strategy<Value = SnapshotPolicy> {
    prop::sample::select(vec![SnapshotPolicy::EVERY, SnapshotPolicy::Last, SnapshotPolicy::None])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is appended, edited, forked, cancelled and evicted, with however little room: the replies are those without
    /// a cache, every figure adds up, and no state is ever read that does not stand where it should (the device would refuse).
    #[test]
    fn a_hybrid_says_the_same_with_and_without_a_cache(
        steps in prop::collection::vec(step(120), 1..14),
        policy in policy(),
        chunk_tokens in 1_usize..120,
        max_sequences in 1_usize..4,
        snapshots in 0_usize..40,
    ) {
        let ground = ground(policy, chunk_tokens, max_sequences, snapshots);
        let cached = play(&ground, &steps, true);
        let uncached = play(&ground, &steps, false);
        for events in [&cached, &uncached] {
            let failed = events.iter().find(|e| matches!(e.body, Body::Failed { .. } | Body::StalePage { .. }));
            prop_assert_eq!(failed, None);
        }
        let (cached_replies, uncached_replies) = (replies(&cached), replies(&uncached));
        for (n, _) in steps.iter().enumerate().filter(|(_, step)| step.cancel.is_none()) {
            let id = RequestId(n as u64 + 1);
            prop_assert_eq!(&cached_replies[&id], &uncached_replies[&id]);
        }
        let prompts: BTreeMap<_, _> = cached
            .iter()
            .filter_map(|event| match &event.body {
                Body::Arrived(arrival) => Some((event.request, arrival.prompt_tokens)),
                _ => None,
            })
            .collect();
        for event in &cached {
            match &event.body {
                Body::Restored(restore) => {
                    let lost: u64 = restore.losses.iter().map(|loss| loss.tokens).sum();
                    prop_assert_eq!(lost + restore.checkpoint_tokens, prompts[&event.request]);
                    prop_assert!(restore.checkpoint_tokens <= restore.matched_with_state_tokens);
                    prop_assert!(restore.matched_with_state_tokens <= restore.matched_tokens);
                    prop_assert!(policy != SnapshotPolicy::None || restore.checkpoint_tokens == 0);
                    for block in &restore.blocks {
                        let held = !matches!(block.residency, Residency::Missing | Residency::Evicted);
                        prop_assert_eq!(block.recurrent.is_some(), held);
                    }
                }
                Body::Memory { bytes, limit_bytes, slots, .. } => {
                    prop_assert!(bytes <= limit_bytes);
                    prop_assert!(slots.is_some_and(|slots| slots.bytes <= *bytes));
                }
                _ => {}
            }
        }
    }
}

#[test]
fn with_snapshots_everywhere_a_hybrid_restores_what_attention_layers_would() {
    let hybrid = ground(SnapshotPolicy::EVERY, 50, 1, 200);
    let sliceable = Ground { budget: Budget { slot_bytes: 0, ..hybrid.budget }, ..hybrid.clone() };
    let first = prompt(0, 300);
    let edited: Vec<u32> = first[..170].iter().copied().chain(prompt(1, 90)).collect();
    let checkpoints = |ground: &Ground| {
        let ((), events) = ground.run(|scheduler, clock, out| {
            for tokens in [&first, &edited, &first] {
                serve(scheduler, tokens.clone(), clock, out);
            }
        });
        restores(&events).iter().map(|restore| restore.checkpoint_tokens).collect::<Vec<_>>()
    };
    assert_eq!(checkpoints(&hybrid), checkpoints(&sliceable));
    assert_eq!(checkpoints(&hybrid), [0, 160, 288]);
}

#[test]
fn the_last_policy_serves_appending_and_not_editing() {
    let ground = ground(SnapshotPolicy::Last, 1_000, 1, 10);
    let first = prompt(0, 300);
    let (_, events) = ground.run(|scheduler, clock, out| {
        serve(scheduler, first.clone(), clock, out);
        let appended = first.iter().copied().chain(prompt(1, 50)).collect();
        serve(scheduler, appended, clock, out);
        let edited = first[..200].iter().copied().chain(prompt(2, 50)).collect();
        serve(scheduler, edited, clock, out);
    });
    let restores = restores(&events);
    assert_eq!(restores.iter().map(|r| r.checkpoint_tokens).collect::<Vec<_>>(), [0, 288, 0]);
    assert_eq!((restores[2].matched_tokens, restores[2].cause), (192, Cause::NoSnapshot));
    let stored = events.iter().find_map(|event| match event.body {
        Body::Stored { snapshots, .. } => snapshots,
        _ => None,
    });
    // The reply passes the boundary at 304 and does not reach the next one.
    let stored = stored.unwrap();
    assert_eq!((stored.stored, stored.not_taken, stored.dropped), (2, 0, 0));
}

#[test]
fn a_live_reply_is_restored_up_to_its_last_whole_block() {
    for policy in [SnapshotPolicy::EVERY, SnapshotPolicy::Last] {
        let ground = ground(policy, 64, 1, 40);
        let (_, events) = ground.run(|scheduler, clock, out| {
            let first = prompt(0, 60);
            scheduler.submit(Submission { max_output_tokens: 60, ..request(first) }, clock, out);
            let mut served = None;
            while !scheduler.is_idle() {
                served = scheduler.step(clock, out).ended.pop().and_then(|ended| ended.served).or(served);
            }
            let mut tokens = served.unwrap().tokens.clone();
            tokens.extend(prompt(1, 5));
            serve(scheduler, tokens, clock, out);
        });
        let restored = restores(&events)[1].checkpoint_tokens;
        assert_eq!(restored, 112, "{policy:?}: 60 tokens and 59 of the reply");
    }
}

#[test]
fn with_one_slot_for_snapshots_the_newest_boundary_wins() {
    let ground = ground(SnapshotPolicy::EVERY, 8, 1, 1);
    let (_, events) = ground.run(|scheduler, clock, out| {
        let first = prompt(0, 200);
        scheduler.submit(Submission { max_output_tokens: 4, ..request(first.clone()) }, clock, out);
        drain(scheduler, clock, out);
        serve(scheduler, first.into_iter().chain(prompt(1, 50)).collect(), clock, out);
    });
    assert_eq!(restores(&events)[1].checkpoint_tokens, 192);
    let ledger = events.iter().fold(Ledger::new(), |mut ledger, event| {
        ledger.apply(event);
        ledger
    });
    let stored = ledger.requests().next().unwrap().snapshots.unwrap();
    assert_eq!((stored.stored, stored.not_taken), (1, 11));
}

#[test]
fn a_cancelled_prefill_of_a_hybrid_can_be_taken_up_again() {
    let ground = ground(SnapshotPolicy::EVERY, 40, 1, 40);
    let (_, events) = ground.run(|scheduler, clock, out| {
        let tokens = prompt(0, 300);
        let id = scheduler.submit(request(tokens.clone()), clock, out);
        for _ in 0..5 {
            scheduler.step(clock, out);
        }
        scheduler.cancel(id, clock, out);
        serve(scheduler, tokens, clock, out);
    });
    assert!(restores(&events)[1].checkpoint_tokens >= 3 * SHORT as u64);
}

#[test]
fn memory_counts_snapshots_and_live_slots() {
    let ground = ground(SnapshotPolicy::EVERY, 64, 1, 40);
    let ((used_bytes, snapshots), events) = ground.run(|scheduler, clock, out| {
        serve(scheduler, prompt(0, 100), clock, out);
        (scheduler.cache_mut().used_bytes(), scheduler.cache_mut().cached_snapshots() as u64)
    });
    let memory = events.iter().rev().find_map(|event| match event.body {
        Body::Memory { bytes, slots, .. } => Some((bytes, slots)),
        _ => None,
    });
    let slots = SlotMemory { snapshots, live: 0, bytes: snapshots * ground.budget.slot_bytes };
    assert_eq!(memory, Some((used_bytes, Some(slots))));
    assert!(snapshots >= 6);
}

#[test]
fn a_stale_live_slot_ends_the_request_and_harms_no_other() {
    let ground = ground(SnapshotPolicy::EVERY, 32, 2, 40);
    let ((), events) = ground.run(|scheduler, clock, out| {
        let victim = scheduler.submit(request(prompt(0, 200)), clock, out);
        scheduler.submit(request(prompt(1, 100)), clock, out);
        for _ in 0..5 {
            scheduler.step(clock, out);
        }
        let live = scheduler.held_slots(victim)[0];
        scheduler.cache_mut().corrupt_slot_generation(live);
        drain(scheduler, clock, out);
    });
    assert_one_stale_read(&events, 1);
}

#[test]
fn a_stale_snapshot_is_refused_before_it_is_read() {
    let ground = ground(SnapshotPolicy::EVERY, 32, 2, 40);
    let ((), events) = ground.run(|scheduler, clock, out| {
        let tokens = prompt(0, 200);
        serve(scheduler, tokens.clone(), clock, out);
        let found = scheduler.cache_mut().look_up(&tokens).blocks;
        let deepest = found.iter().rev().find_map(Candidate::slot).unwrap();
        scheduler.cache_mut().corrupt_slot_generation(deepest);
        serve(scheduler, tokens, clock, out);
        serve(scheduler, prompt(1, 100), clock, out);
    });
    assert_one_stale_read(&events, 2);
}

/// A stale entry fails the request that finds it and no other.
#[test]
fn a_stale_entry_leaves_the_index_with_all_behind_it() {
    type Corrupt = fn(&mut Cache, &[u32]);
    // The snapshot at 160; the page before it, whose own end nobody restores from.
    let slot: Corrupt = |cache, tokens| {
        let slot = cache.look_up(tokens).blocks[9].slot().unwrap();
        cache.corrupt_slot_generation(slot);
    };
    let page: Corrupt = |cache, tokens| {
        let page = cache.look_up(tokens).blocks[9].page().unwrap();
        cache.corrupt_generation(page);
    };
    let ground = ground(SnapshotPolicy::EVERY, 32, 2, 60);
    for (corrupt, restored_before) in [(slot, 160), (page, 192)] {
        // The first restores from 160, where only the snapshot it starts from and pages are read.
        let first = prompt(0, 200);
        let cut = if restored_before == 160 { 170 } else { 200 };
        let ((dropped, left), events) = ground.run(|scheduler, clock, out| {
            serve(scheduler, first.clone(), clock, out);
            corrupt(scheduler.cache_mut(), &first);
            let before = scheduler.cache_mut().cached_blocks();
            serve(scheduler, first[..cut].to_vec(), clock, out);
            let dropped = before - scheduler.cache_mut().cached_blocks();
            let left = scheduler.cache_mut().look_up(&first).blocks.len();
            let predecessor = Predecessor {
                request: RequestId(1),
                tokens: first.clone(),
                prompt_tokens: 200,
                dense_tokens: first.len(),
            };
            let after = Submission { predecessor: Some(Arc::new(predecessor)), ..request(first.clone()) };
            scheduler.submit(after, clock, out);
            drain(scheduler, clock, out);
            serve(scheduler, first.clone(), clock, out);
            scheduler.evict_all(clock);
            assert_eq!(scheduler.cache_mut().cached_blocks(), 0);
            (dropped, left)
        });
        // 223 tokens were stored.
        assert_eq!((dropped, left), (13 - 9, 9));
        let checkpoints: Vec<_> = restores(&events).iter().map(|r| r.checkpoint_tokens).collect();
        assert_eq!(checkpoints, [0, restored_before, 144, 192]);
        let told = &restores(&events)[2].losses;
        assert!(
            told.iter().any(|loss| loss.cause == Cause::Evicted && loss.detail.contains("somebody else's")),
            "{told:?}"
        );
        let failed = events.iter().filter(|e| matches!(e.body, Body::Failed { .. })).count();
        assert!(failed == 1 && events.iter().any(|event| event.body == Body::StalePage { count: 1 }));
        let replies = replies(&events);
        assert!(
            replies[&RequestId(1)] == replies[&RequestId(3)]
                && replies[&RequestId(1)] == replies[&RequestId(4)]
        );
    }
}

#[test]
fn a_dropped_snapshot_is_counted_once_at_the_request_that_needed_the_room() {
    let ground = ground(SnapshotPolicy::EVERY, 32, 2, 20);
    let ((by_hand, all), events) = ground.run(|scheduler, clock, out| {
        serve(scheduler, prompt(0, 300), clock, out);
        let dropped = |scheduler: &mut Scheduler<'_>| scheduler.cache_mut().dropped_snapshots();
        scheduler.submit(request(prompt(1, 300)), clock, out);
        scheduler.submit(request(prompt(2, 300)), clock, out);
        for _ in 0..8 {
            scheduler.step(clock, out);
        }
        let before = dropped(scheduler);
        scheduler.evict_all(clock);
        let by_hand = dropped(scheduler) - before;
        drain(scheduler, clock, out);
        serve(scheduler, prompt(3, 300), clock, out);
        (by_hand, dropped(scheduler))
    });
    let told: Vec<_> = events
        .iter()
        .filter_map(|event| match event.body {
            Body::Stored { snapshots, .. } => snapshots.map(|s| s.dropped),
            _ => None,
        })
        .collect();
    assert!(
        by_hand > 0 && told[0] == 0 && told.iter().filter(|dropped| **dropped > 0).count() >= 2,
        "{told:?}"
    );
    assert_eq!(told.iter().sum::<u64>(), all - by_hand);
}

fn assert_one_stale_read(events: &[Event], finished: usize) {
    let failed: Vec<_> = events
        .iter()
        .filter_map(|event| match &event.body {
            Body::Failed { message } => Some(message),
            _ => None,
        })
        .collect();
    assert!(failed.len() == 1 && failed[0].starts_with("slot "), "{failed:?}");
    assert!(events.iter().any(|event| event.body == Body::StalePage { count: 1 }));
    assert_eq!(events.iter().filter(|e| matches!(e.body, Body::Finished { .. })).count(), finished);
}

#[test]
fn a_bound_without_room_for_one_sequence_says_so() {
    let mut ground = ground(SnapshotPolicy::EVERY, 64, 2, 0);
    ground.budget.limit_bytes = ground.budget.slot_bytes - 1;
    let ((), events) = ground.run(|scheduler, clock, out| {
        serve(scheduler, prompt(0, 20), clock, out);
        assert_eq!((scheduler.cache_mut().used_pages(), scheduler.cache_mut().used_slots()), (0, 0));
    });
    let failed = events.iter().find_map(|event| match &event.body {
        Body::Failed { message } => Some(message.as_str()),
        _ => None,
    });
    assert!(failed.is_some_and(|message| message.contains("cache.ram_bytes")), "{failed:?}");
}

#[test]
fn sequences_wait_for_a_live_slot_where_the_bound_holds_fewer_than_may_run() {
    let mut ground = ground(SnapshotPolicy::None, 64, 3, 0);
    ground.budget = Budget { limit_bytes: 25, slot_bytes: 10, ..ground.budget };
    let ((), events) = ground.run(|scheduler, clock, out| {
        for n in 0..3 {
            scheduler.submit(request(prompt(n, 10)), clock, out);
        }
        drain(scheduler, clock, out);
    });
    assert_eq!(events.iter().filter(|e| matches!(e.body, Body::Finished { .. })).count(), 3);
}

#[test]
fn a_hybrid_session_replays_with_forks_and_its_events_repeat() {
    let config = || {
        let mut config = config();
        config.sim.snapshot_bytes = 1 << 20;
        config
    };
    let events = |config| serde_json::to_vec(&replay(config, session(5)).0).unwrap();
    assert_eq!(events(config()), events(config()));
    let (_, plain) = replay(super::config(), session(5));
    let (events, hybrid) = replay(config(), session(5));
    let checkpoints = |ledger: &Ledger| ledger.requests().map(|r| r.checkpoint()).collect::<Vec<_>>();
    assert_eq!(checkpoints(&plain), checkpoints(&hybrid));
    assert!(
        hybrid.run().unwrap().snapshot_bytes == Some(1 << 20)
            && plain.run().unwrap().snapshot_bytes.is_none()
    );
    assert!(events.iter().all(|event| !matches!(event.body, Body::Failed { .. })));
    assert_eq!(hybrid.memory().unwrap().slots.unwrap().live, 0);

    let mut bench = Bench::start(config(), session(4));
    bench.send(Command::Run { lane: A });
    bench.until_gate(Gate::Ended);
    bench.send(Command::Fork { lane: A, turn: 2, role: Role::User, content: "another step. ".repeat(30) });
    bench.until(|e| matches!(e.body, Body::LaneOpened { parent: Some(_), .. }));
    bench.send(Command::Run { lane: LaneId(1) });
    bench.until_gate(Gate::Ended);
    bench.send(Command::EvictAll);
    let (_, ledger) = bench.end();
    let fork = ledger.lane_requests(LaneId(1)).next().unwrap();
    assert!(fork.checkpoint().unwrap() >= ledger.lane_requests(A).next().unwrap().canonical_tokens.unwrap());
}

#[test]
fn without_snapshots_every_request_starts_over_and_says_why() {
    let mut config = config();
    config.sim.snapshot_bytes = 1 << 20;
    config.cache.snapshot_policy = SnapshotPolicy::None;
    let (_, ledger) = replay(config, session(3));
    let requests: Vec<_> = ledger.requests().collect();
    assert!(requests.iter().all(|request| request.checkpoint() == Some(0)));
    let restore = requests[2].restore.as_ref().unwrap();
    assert_eq!((restore.cause, restore.matched_with_state_tokens), (Cause::NoSnapshot, 0));
    assert!(restore.matched_tokens > 0 && restore.blocks[0].residency == Residency::Held);
    assert_eq!(requests[2].canonical_tokens, Some(0));
}
