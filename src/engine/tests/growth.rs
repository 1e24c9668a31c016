//! The engine on devices that refuse to hold more pages or slots: what they hold is the cache's size from then on.

use proptest::prelude::*;

use super::hybrid::{Script, narrow, replies, restores, step};
use super::memory::{Holds, NOTHING, Short, Want, failed, grounds, on, prompt};
use super::*;
use crate::cache::served::Predecessor;

/// A device with memory for so many pages and slots.
fn holding(pages: usize, slots: usize) -> Want {
    Want { holds: Holds { pages, slots, until: u64::MAX }, ..NOTHING }
}

fn serve(scheduler: &mut Scheduler<'_>, tokens: Vec<u32>, clock: &mut Clock, out: &mut Emitter) {
    scheduler.submit(submission(tokens, 6), clock, out);
    drain(scheduler, clock, out);
}

/// Blocks in use and the limit, each time memory is told.
fn memory(events: &[Event]) -> Vec<(u64, u64)> {
    events
        .iter()
        .filter_map(|event| match event.body {
            Body::Memory { cached_blocks, live_blocks, limit_bytes, .. } => {
                Some((cached_blocks + live_blocks, limit_bytes))
            }
            _ => None,
        })
        .collect()
}

#[test]
fn blocks_are_evicted_where_the_device_holds_no_more_pages() {
    let work = |scheduler: &mut Scheduler<'_>, clock: &mut Clock, out: &mut Emitter| {
        for tokens in [prompt(0, 500), prompt(1, 300), prompt(2, 400)] {
            serve(scheduler, tokens, clock, out);
        }
        let before = Predecessor {
            request: RequestId(1),
            tokens: prompt(0, 500),
            prompt_tokens: 500,
            dense_tokens: 500,
        };
        let next = submission([prompt(0, 500), prompt(3, 90)].concat(), 6);
        scheduler.submit(Submission { predecessor: Some(Arc::new(before)), ..next }, clock, out);
        drain(scheduler, clock, out);
        let (pages, _) = scheduler.cache_mut().reservation();
        assert!(pages == 12 || scheduler.cache_mut().budget().device.is_none());
    };
    for ground in grounds(1) {
        let roomy = on(&ground, NOTHING, work);
        let tight = on(&ground, holding(12, usize::MAX), work);
        assert_eq!(failed(&tight), []);
        assert_eq!(replies(&tight), replies(&roomy));
        let evicted: Vec<u64> = tight
            .iter()
            .filter_map(|event| match event.body {
                Body::Stored { evicted_blocks, .. } => Some(evicted_blocks),
                _ => None,
            })
            .collect();
        assert_eq!(evicted[..2], [0, 0], "all fits at first");
        assert!(evicted[2] > 0 && evicted[3] > 0, "{evicted:?}");
        let last = restores(&tight)[3];
        assert!(last.checkpoint_tokens < restores(&roomy)[3].checkpoint_tokens);
        let loss = last.losses.iter().find(|loss| loss.cause == Cause::Evicted).unwrap();
        assert!(loss.detail.contains("request 3"), "{}", loss.detail);
        let told = memory(&tight);
        assert_eq!(told[1].1, ground.budget.limit_bytes, "nothing was refused yet");
        assert!(told[3].0 <= 12 && told[3].1 < ground.budget.limit_bytes, "{told:?}");
    }
}

#[test]
fn a_request_that_the_device_cannot_hold_ends_and_the_next_is_served() {
    let work = |scheduler: &mut Scheduler<'_>, clock: &mut Clock, out: &mut Emitter| {
        for tokens in [prompt(0, 300), prompt(1, 900), prompt(2, 30), prompt(0, 310)] {
            serve(scheduler, tokens, clock, out);
        }
    };
    for ground in grounds(1) {
        let tight = on(&ground, holding(10, usize::MAX), work);
        let message = "the device has no memory for more than 10 blocks";
        assert!(
            matches!(failed(&tight)[..], [(2, said)] if said.starts_with(message)),
            "{:?}",
            failed(&tight)
        );
        let mut expected = replies(&on(&ground, NOTHING, work));
        expected.remove(&RequestId(2));
        assert_eq!(replies(&tight), expected);
    }
}

#[test]
fn a_request_that_finds_no_page_takes_none_from_the_others() {
    let work = |scheduler: &mut Scheduler<'_>, clock: &mut Clock, out: &mut Emitter| {
        for (seed, tokens) in [(0, 20), (1, 900), (2, 40)] {
            scheduler.submit(submission(prompt(seed, tokens), 30), clock, out);
        }
        drain(scheduler, clock, out);
        serve(scheduler, prompt(3, 400), clock, out);
    };
    for ground in grounds(3) {
        let mut expected = replies(&on(&ground, NOTHING, work));
        expected.remove(&RequestId(2));
        for pages in 7..14 {
            let tight = on(&ground, holding(pages, usize::MAX), work);
            assert!(matches!(failed(&tight)[..], [(2, _)]), "{pages} pages: {:?}", failed(&tight));
            assert_eq!(replies(&tight), expected);
        }
    }
}

#[test]
fn the_device_is_not_asked_for_pages_of_a_chunk_that_the_bound_does_not_allow() {
    let ground = Ground::sliceable(
        SchedulerConfig { max_sequences: 1, chunk_tokens: 100, ..SchedulerConfig::default() },
        3,
    );
    let events = on(&ground, holding(2, 0), |scheduler, clock, out| {
        for (seed, tokens) in [(0, 20), (1, 900)] {
            scheduler.submit(submission(prompt(seed, tokens), 30), clock, out);
        }
        drain(scheduler, clock, out);
        // Of the second chunk's two pages the bound allows one, which the device does not hold.
        assert!(scheduler.cache_mut().budget().device.is_none());
    });
    assert!(
        matches!(failed(&events)[..], [(2, said)] if said.contains("all 3 blocks that `cache.ram_bytes`"))
    );
}

#[test]
fn half_of_what_is_missing_is_better_than_nothing() {
    let scheduling = SchedulerConfig { max_sequences: 1, chunk_tokens: 1_000, ..SchedulerConfig::default() };
    let ground = Ground::sliceable(scheduling, 100);
    let events = on(&ground, holding(5, 0), |scheduler, clock, out| {
        // Nothing is held yet, and the first chunk wants 10 pages, of which there are 5; then 6 of which there are 3.
        serve(scheduler, prompt(0, 640), clock, out);
        serve(scheduler, prompt(1, 250), clock, out);
    });
    assert!(matches!(failed(&events)[..], [(1, said)] if said.contains("more than 5 blocks")));
    assert_eq!(replies(&events).len(), 1);
    let nothing = on(&ground, holding(0, 0), |scheduler, clock, out| {
        serve(scheduler, prompt(0, 30), clock, out);
        serve(scheduler, prompt(1, 30), clock, out);
    });
    assert!(failed(&nothing).iter().all(|(_, said)| said.contains("more than 0 blocks")));
    assert_eq!(failed(&nothing).len(), 2);
}

#[test]
fn memory_that_came_back_is_used_when_all_blocks_were_evicted_by_hand() {
    let work = |scheduler: &mut Scheduler<'_>, clock: &mut Clock, out: &mut Emitter| {
        for tokens in [prompt(0, 300), prompt(1, 900), prompt(1, 900)] {
            serve(scheduler, tokens, clock, out);
        }
        scheduler.evict_all(clock);
        serve(scheduler, prompt(1, 900), clock, out);
    };
    for ground in grounds(1) {
        let roomy = on(&ground, NOTHING, work);
        // There is memory again before the third request, which nobody asks for.
        let until = if ground.budget.is_recurrent() { 18 } else { 15 };
        let holds = Holds { pages: 10, slots: usize::MAX, until };
        let tight = on(&ground, Want { holds, ..NOTHING }, work);
        assert_eq!(failed(&tight).iter().map(|(request, _)| *request).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(replies(&tight)[&RequestId(4)], replies(&roomy)[&RequestId(4)]);
        let limits: Vec<u64> = memory(&tight).iter().map(|(_, limit)| *limit).collect();
        let all = ground.budget.limit_bytes;
        assert!(limits[2] < all && limits[3] == all, "{limits:?}");
    }
}

#[test]
fn sequences_wait_and_snapshots_are_dropped_where_the_device_holds_few_slots() {
    let work = |scheduler: &mut Scheduler<'_>, clock: &mut Clock, out: &mut Emitter| {
        for (seed, tokens) in [(0, 300), (1, 200), (2, 100), (0, 310)] {
            scheduler.submit(submission(prompt(seed, tokens), 9), clock, out);
        }
        drain(scheduler, clock, out);
        for tokens in [prompt(1, 200), [prompt(0, 300), prompt(3, 80)].concat()] {
            serve(scheduler, tokens, clock, out);
        }
    };
    let [_, ground] = grounds(3);
    let expected = replies(&on(&ground, NOTHING, work));
    for slots in 1..12 {
        let tight = on(&ground, holding(usize::MAX, slots), |scheduler, clock, out| {
            work(scheduler, clock, out);
            let cache = scheduler.cache_mut();
            assert!(cache.cached_snapshots() <= slots.saturating_sub(3));
            // Two of three are refused, and one is granted.
            assert_eq!(cache.budget().live_slots(), if slots < 3 { 1 } else { 3 });
        });
        assert_eq!(failed(&tight), [], "{slots} slots");
        assert_eq!(replies(&tight), expected);
        let restored = restores(&tight)[5].checkpoint_tokens;
        assert!(slots > 3 || restored == 0, "no slot is left for a snapshot");
        assert!(slots < 8 || restored > 0, "{slots} slots");
    }
    let none = on(&ground, holding(usize::MAX, 0), work);
    assert_eq!(failed(&none).len(), 6);
    assert!(
        failed(&none).iter().all(|(_, said)| said.contains("the recurrent state of more than 0 sequences"))
    );
}

#[test]
fn a_session_goes_on_where_the_device_holds_no_more() {
    for snapshot_bytes in [0, 1 << 10] {
        let mut config = config();
        config.sim.snapshot_bytes = snapshot_bytes;
        // Forks and other replies leave more behind than the longest prompt needs.
        let played = |want: Want| {
            let sim = config.clone();
            let mut bench =
                Bench::start_on(config.clone(), session(5), move || Short::around(loaded(&sim), want));
            bench.send(Command::Run { lane: A });
            bench.until_gate(Gate::Ended);
            let content = "another step. ".repeat(60);
            bench.send(Command::Fork { lane: A, turn: 1, role: Role::User, content });
            bench.until(|e| matches!(e.body, Body::LaneOpened { parent: Some(_), .. }));
            bench.send(Command::Run { lane: LaneId(1) });
            bench.until_gate(Gate::Ended);
            bench.end()
        };
        let (roomy, ledger) = played(NOTHING);
        let longest = ledger.requests().map(|r| r.prompt_tokens.unwrap()).max().unwrap();
        let pages = (longest as usize + 12).div_ceil(BLOCK) + 4;
        let (tight, ledger) = played(holding(pages, 4 + config.scheduler.max_sequences));
        assert_eq!(failed(&tight), []);
        assert_eq!(texts(&tight), texts(&roomy));
        assert!(ledger.requests().any(|r| r.evicted_blocks > Some(0)), "nothing was evicted");
        let memory = ledger.memory().unwrap();
        assert_eq!(memory.live_blocks, 0);
        assert!(memory.cached_blocks <= pages as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever a hybrid is asked, and however little the device holds beyond what the running sequences need: the replies are those of
    /// a device that holds everything, and nothing leaks.
    #[test]
    fn a_hybrid_says_the_same_on_a_device_that_holds_little(
        steps in prop::collection::vec(step(120), 1..14),
        chunk_tokens in 1_usize..120,
        max_sequences in 1_usize..4,
        spare in 0_usize..20,
        slots in 1_usize..30,
    ) {
        const SHORT: usize = 16;
        const LONGEST: usize = 480;
        let scheduling = SchedulerConfig { max_sequences, chunk_tokens, ..SchedulerConfig::default() };
        let ground = narrow(SnapshotPolicy::EVERY, scheduling, SHORT, LONGEST, 40);
        let mut config = config();
        config.cache.block_tokens = SHORT;
        config.sim.snapshot_bytes = ground.budget.slot_bytes as usize;
        // Half of a chunk may be refused on the way.
        let needed = max_sequences * (LONGEST + 24).div_ceil(SHORT) + chunk_tokens.div_ceil(SHORT);
        let script = Script { steps: &steps, use_cache: true, vocab: 5_000, longest: LONGEST };
        let play = |want: Want| {
            let loaded = Short::around(loaded(&config), want);
            ground.run_on(loaded, |scheduler, clock, out| script.play(&ground, scheduler, clock, out)).1
        };
        let (tight, roomy) = (play(holding(needed + spare, slots)), play(NOTHING));
        prop_assert_eq!(failed(&tight), []);
        for event in &tight {
            let Body::Memory { bytes, limit_bytes, .. } = event.body else { continue };
            prop_assert!(bytes <= limit_bytes);
        }
        let (tight, roomy) = (replies(&tight), replies(&roomy));
        for (n, _) in steps.iter().enumerate().filter(|(_, step)| step.cancel.is_none()) {
            let id = RequestId(n as u64 + 1);
            prop_assert_eq!(&tight[&id], &roomy[&id]);
        }
    }
}
