//! The cache against a model of itself.

use std::collections::HashMap;

use proptest::prelude::*;

use super::budget::{Budget, DeviceLimits};
use super::chain::Identity;
use super::lookup::{Candidate, End};
use super::pool::PageRef;
use super::*;

const BLOCK: usize = 4;

fn identity() -> Identity {
    Identity { model: [0; 32], text: [0; 32], precision: "int8", family: "test", block_tokens: BLOCK }
}

fn cache(pages: usize) -> Cache {
    let budget = Budget {
        limit_bytes: pages as u64,
        page_bytes: 1,
        slot_bytes: 0,
        sequences: 1,
        context_pages: 1,
        device: DeviceLimits::default(),
    };
    Cache::new(&identity(), BLOCK, budget)
}

/// What is held of `tokens`, marked as used.
fn find(cache: &mut Cache, tokens: &[u32]) -> Vec<Candidate> {
    let found = cache.look_up(tokens);
    cache.touch(&found.chain());
    found.blocks
}

/// Runs a request of `tokens` as the engine does: find, hold, allocate the rest, store, release. Gives the blocks found.
fn serve(cache: &mut Cache, tokens: &[u32], request: u64) -> Result<usize, CacheFull> {
    let found: Vec<_> = find(cache, tokens).iter().filter_map(Candidate::page).collect();
    cache.hold(&found);
    let mut pages = found.clone();
    while pages.len() < tokens.len().div_ceil(BLOCK) {
        match cache.allocate(RequestId(request), None, Stamp(request)) {
            Ok(page) => pages.push(page),
            Err(full) => {
                cache.release(&pages);
                return Err(full);
            }
        }
    }
    cache.store(tokens, &pages, &[], RequestId(request), Route::Dense, Stamp(request));
    cache.release(&pages);
    Ok(found.len())
}

/// A prompt as a path in a small tree, so that prefixes are shared often.
fn prompt() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0_u32..2, 1..6)
        .prop_map(|path| path.iter().flat_map(|step| [*step; BLOCK]).chain([9, 9]).collect())
}

proptest! {
    /// What is found is always a prefix that some earlier request computed; nothing is found twice over; no page leaks.
    #[test]
    fn a_bounded_cache_never_finds_what_was_not_computed(prompts in prop::collection::vec(prompt(), 1..60), pages in 8_usize..24) {
        let mut cache = cache(pages);
        let mut computed: Vec<Vec<u32>> = Vec::new();
        for (request, tokens) in prompts.iter().enumerate() {
            let found = serve(&mut cache, tokens, request as u64).unwrap();
            let prefix = &tokens[..found * BLOCK];
            prop_assert!(found == 0 || computed.iter().any(|c| c.starts_with(prefix)));
            prop_assert!(cache.used_pages() <= pages);
            prop_assert_eq!(cache.used_pages(), cache.cached_blocks());
            prop_assert_eq!(cache.restorable_prefix(tokens), tokens.len() / BLOCK * BLOCK);
            computed.push(tokens.clone());
        }
        let held = cache.cached_blocks();
        prop_assert_eq!(cache.evict_all(Stamp(0)), held);
        prop_assert_eq!(cache.used_pages(), 0);
    }

    /// A block whose parent is gone could never be found again; least recently used goes first, so neither can its page be wasted.
    #[test]
    fn eviction_takes_leaves_and_keeps_the_newest_chain(prompts in prop::collection::vec(prompt(), 2..40)) {
        let mut cache = cache(12);
        for (request, tokens) in prompts.iter().enumerate() {
            serve(&mut cache, tokens, request as u64).unwrap();
            let reachable: std::collections::HashSet<_> = prompts[..=request]
                .iter()
                .flat_map(|tokens| {
                    let held = cache.restorable_prefix(tokens) / BLOCK;
                    cache.hashes(tokens).into_iter().take(held).collect::<Vec<_>>()
                })
                .collect();
            prop_assert_eq!(reachable.len(), cache.cached_blocks());
        }
    }

    /// Pages against a map from page to holders.
    #[test]
    fn the_pool_counts_holders(operations in prop::collection::vec((0_u8..4, any::<prop::sample::Index>()), 1..200)) {
        let mut pool = pool::Pool::<PageId>::default();
        let mut model: HashMap<PageRef, u32> = HashMap::new();
        let mut dead: Vec<PageRef> = Vec::new();
        let mut granted = 0;
        for (operation, index) in operations {
            let live: Vec<PageRef> = model.keys().copied().collect();
            match operation {
                0 => {
                    let grown = |pool: &mut pool::Pool<PageId>| (pool.high_water() < 6).then(|| pool.grow())?;
                    match pool.reuse().or_else(|| grown(&mut pool)) {
                        Some(page) => {
                            granted = granted.max(page.id().0 as usize + 1);
                            prop_assert!(model.insert(page, 1).is_none());
                        }
                        None => prop_assert_eq!(model.len(), 6),
                    }
                }
                1 if !live.is_empty() => {
                    let page = *index.get(&live);
                    pool.hold(page);
                    *model.get_mut(&page).unwrap() += 1;
                }
                2 if !live.is_empty() => {
                    let page = *index.get(&live);
                    pool.release(page);
                    *model.get_mut(&page).unwrap() -= 1;
                    if model[&page] == 0 {
                        model.remove(&page);
                        dead.push(page);
                    }
                }
                3 => {
                    let held = live.iter().map(|page| page.id().0 as usize + 1).max().unwrap_or(0);
                    granted = held + index.index(granted + 1 - held);
                    pool.shrink(granted);
                }
                _ => {}
            }
            prop_assert_eq!(pool.used(), model.len());
            prop_assert_eq!(pool.high_water(), granted);
            for (page, holders) in &model {
                prop_assert_eq!(pool.holders(*page), *holders);
                prop_assert!(pool.check(*page).is_ok());
            }
            prop_assert!(dead.iter().all(|page| pool.check(*page).is_err()));
        }
    }
}

#[test]
fn a_sequence_gets_pages_that_follow_each_other_where_they_are_free() {
    let mut pool = pool::Pool::<PageId>::default();
    let pages: Vec<PageRef> = (0..9).map(|_| pool.grow().unwrap()).collect();
    for index in [6, 2, 5, 4, 8] {
        pool.release(pages[index]);
    }
    let mut mine = vec![pages[3]];
    while let Some(page) = pool.reuse_after(mine.last().copied()) {
        mine.push(page);
    }
    // The next ones, then the first that is free and those after it.
    assert_eq!(mine.iter().map(|page| page.id().0).collect::<Vec<_>>(), [3, 4, 5, 6, 2, 8]);
}

#[test]
fn running_requests_keep_their_pages_and_a_full_cache_says_so() {
    let mut cache = cache(3);
    let held: Vec<_> = (0..3).map(|_| cache.allocate(RequestId(1), None, Stamp(0)).unwrap()).collect();
    let full = cache.allocate(RequestId(2), None, Stamp(0)).unwrap_err();
    assert_eq!(full, CacheFull::Pages { limit: 3 });
    cache.release(&held[..1]);
    assert!(cache.allocate(RequestId(2), None, Stamp(0)).is_ok());
}

#[test]
fn an_evicted_block_is_remembered_with_who_wrote_it_and_for_whom() {
    let mut cache = cache(2);
    let old = [1, 1, 1, 1, 2, 2, 2, 2];
    serve(&mut cache, &old, 1).unwrap();
    serve(&mut cache, &[7; 8], 2).unwrap();
    let hashes = cache.hashes(&old);
    let evicted = cache.evicted(&hashes[1]).unwrap();
    assert_eq!(
        (evicted.provenance.written_by, evicted.why),
        (RequestId(1), index::Eviction::MadeRoom(RequestId(2)))
    );
}

/// A cache of a hybrid with one running sequence and room for at least `pages` pages beside `snapshots` snapshots.
fn hybrid(pages: usize, snapshots: usize) -> Cache {
    let slot_bytes = (pages / snapshots) as u64;
    // Snapshots get a quarter of what the live slot leaves.
    let limit_bytes = slot_bytes + 4 * pages as u64;
    let device = DeviceLimits::default();
    let budget =
        Budget { limit_bytes, page_bytes: 1, slot_bytes, sequences: 1, context_pages: usize::MAX, device };
    Cache::new(&identity(), BLOCK, budget)
}

/// Stores `tokens` with a snapshot at the end of each of the `ends` (in blocks) for which there is room.
fn store_with_snapshots(cache: &mut Cache, tokens: &[u32], ends: &[usize], request: u64) {
    let (request, now) = (RequestId(request), Stamp(request));
    let pages: Vec<_> =
        (0..tokens.len() / BLOCK).map(|_| cache.allocate(request, None, now).unwrap()).collect();
    let mut captured = Vec::new();
    for blocks in ends {
        if let Some(slot) = cache.allocate_snapshot(request, now) {
            captured.push(Captured { blocks: *blocks, slot });
        }
    }
    cache.store(tokens, &pages, &captured, request, Route::Dense, now);
    cache.release(&pages);
    captured.iter().for_each(|c| cache.release_snapshot(c.slot));
}

fn snapshots_at(cache: &mut Cache, tokens: &[u32]) -> Vec<usize> {
    let found = find(cache, tokens);
    found.iter().enumerate().filter(|(_, c)| c.slot().is_some()).map(|(at, _)| at + 1).collect()
}

#[test]
fn the_least_recently_used_snapshot_makes_room_and_its_block_stays() {
    let mut cache = hybrid(40, 3);
    let (old, new): (Vec<u32>, Vec<u32>) = ((0..16).collect(), (100..116).collect());
    store_with_snapshots(&mut cache, &old, &[1, 2, 3], 1);
    let (hash, slot) = (cache.hashes(&old)[0], find(&mut cache, &old)[0].slot().unwrap());
    cache.hold_snapshot(&hash, slot);
    cache.release_snapshot(slot);
    store_with_snapshots(&mut cache, &new, &[4], 2);
    assert_eq!(snapshots_at(&mut cache, &old), [1, 3], "the first one was used since");
    assert_eq!(snapshots_at(&mut cache, &new), [4]);
    assert_eq!((cache.cached_blocks(), cache.dropped_snapshots()), (8, 1));
    let dropped = find(&mut cache, &old)[1].end;
    assert_eq!(dropped, End::Dropped(Dropped { at: Stamp(2), for_request: Some(RequestId(2)) }));
    assert_eq!((cache.restorable_prefix(&old), cache.restorable_prefix(&old[..11])), (12, 4));
}

#[test]
fn there_are_no_more_snapshots_than_were_allowed() {
    let mut cache = hybrid(40, 3);
    cache.limit_snapshots(2);
    let tokens: Vec<u32> = (0..16).collect();
    store_with_snapshots(&mut cache, &tokens, &[1, 2], 1);
    store_with_snapshots(&mut cache, &tokens, &[3], 2);
    assert_eq!(snapshots_at(&mut cache, &tokens), [2, 3]);
    assert_eq!((cache.cached_blocks(), cache.dropped_snapshots()), (4, 1));
    let mut none = hybrid(40, 3);
    none.limit_snapshots(0);
    assert_eq!(none.allocate_snapshot(RequestId(1), Stamp(1)), None);
}

#[test]
fn a_block_that_lost_its_snapshot_takes_another() {
    let tokens: Vec<u32> = (0..16).collect();
    for (room, stays) in [(3, true), (2, false)] {
        let mut cache = hybrid(40, room);
        store_with_snapshots(&mut cache, &tokens, &[1], 1);
        let first = find(&mut cache, &tokens)[0].end;
        store_with_snapshots(&mut cache, &tokens, &[1, 2], 2);
        assert_eq!(find(&mut cache, &tokens)[0].end == first, stays);
        assert_eq!(snapshots_at(&mut cache, &tokens), [1, 2]);
        assert_eq!(cache.used_slots(), 2);
    }
}

#[test]
fn an_evicted_block_takes_its_snapshot_along() {
    let mut cache = hybrid(4, 2);
    store_with_snapshots(&mut cache, &(0..16).collect::<Vec<_>>(), &[2, 4], 1);
    assert_eq!((cache.used_pages(), cache.used_slots()), (4, 2));
    assert_eq!(cache.evict_all(Stamp(2)), 4);
    assert_eq!((cache.used_pages(), cache.used_slots(), cache.cached_snapshots()), (0, 0, 0));
}

#[test]
fn a_snapshot_in_use_is_not_dropped() {
    let mut cache = hybrid(40, 1);
    let tokens: Vec<u32> = (0..16).collect();
    store_with_snapshots(&mut cache, &tokens, &[2], 1);
    let (hash, slot) = (cache.hashes(&tokens)[1], find(&mut cache, &tokens)[1].slot().unwrap());
    cache.hold_snapshot(&hash, slot);
    assert_eq!(cache.allocate_snapshot(RequestId(2), Stamp(2)), None);
    assert!(cache.check_slot(slot).is_ok());
    cache.release_snapshot(slot);
    assert!(cache.allocate_snapshot(RequestId(2), Stamp(2)).is_some());
    assert!(cache.check_slot(slot).is_err(), "its slot has other contents now");
}

#[test]
fn a_running_sequence_finds_a_slot_whatever_was_captured() {
    let mut cache = hybrid(4, 4);
    store_with_snapshots(&mut cache, &(0..16).collect::<Vec<_>>(), &[1, 2, 3, 4], 1);
    let live = cache.allocate_live_slot().unwrap();
    assert!(!cache.has_live_slot());
    assert_eq!(cache.allocate_live_slot(), Err(CacheFull::LiveSlots { limit: 1, slot_bytes: 1 }));
    assert!(cache.used_bytes() <= cache.budget().limit_bytes);
    cache.release_live_slot(live);
    assert!(cache.has_live_slot() && cache.check_slot(live).is_err());
}

proptest! {
    /// Bytes ever handed out stay within the bound, a live slot for every sequence is always to be had, and three quarters of the
    /// rest are always to be had as pages.
    #[test]
    fn pages_and_slots_share_the_bound(
        operations in prop::collection::vec((0_u8..7, any::<prop::sample::Index>()), 1..120),
        limit_bytes in 20_u64..80,
        slot_bytes in 1_u64..6,
        sequences in 1_usize..4,
    ) {
        let device = DeviceLimits::default();
        let budget = Budget { limit_bytes, page_bytes: 2, slot_bytes, sequences, context_pages: usize::MAX, device };
        let mut cache = Cache::new(&identity(), BLOCK, budget);
        let (mut pages, mut live, mut snapshots) = (Vec::new(), Vec::new(), Vec::new());
        for (step, (operation, index)) in operations.iter().enumerate() {
            let (request, now) = (RequestId(step as u64), Stamp(step as u64));
            match operation {
                0 => pages.extend(cache.allocate(request, None, now)),
                1 => match cache.allocate_live_slot() {
                    Ok(slot) => live.push(slot),
                    Err(_) => prop_assert_eq!(live.len(), sequences),
                },
                2 => snapshots.extend(cache.allocate_snapshot(request, now)),
                3 if !pages.is_empty() => cache.release(&[pages.swap_remove(index.index(pages.len()))]),
                4 if !live.is_empty() => cache.release_live_slot(live.swap_remove(index.index(live.len()))),
                5 if !snapshots.is_empty() => {
                    cache.release_snapshot(snapshots.swap_remove(index.index(snapshots.len())));
                }
                6 => {
                    let tokens: Vec<u32> = (0..12).map(|i| i + step as u32 % 5 * 100).collect();
                    let room = budget.limit_bytes - (sequences as u64 * slot_bytes);
                    if pages.len() as u64 + 3 <= room * 3 / 4 / budget.page_bytes {
                        store_with_snapshots(&mut cache, &tokens, &[1, 3], step as u64);
                    }
                }
                _ => {}
            }
            let (to_hold_pages, to_hold_slots) = cache.reservation();
            let to_hold = to_hold_pages as u64 * 2 + to_hold_slots as u64 * slot_bytes;
            prop_assert!(to_hold <= limit_bytes, "{to_hold} of {limit_bytes}");
            prop_assert_eq!(cache.used_pages(), pages.len() + cache.cached_blocks());
            prop_assert_eq!(cache.used_slots(), live.len() + snapshots.len() + cache.cached_snapshots());
        }
    }
}

#[test]
fn a_page_that_was_reused_is_noticed() {
    let mut cache = cache(1);
    let page = cache.allocate(RequestId(1), None, Stamp(0)).unwrap();
    cache.release(&[page]);
    let reused = cache.allocate(RequestId(2), None, Stamp(0)).unwrap();
    assert_eq!(page.id(), reused.id());
    assert!(cache.check(reused).is_ok());
    let stale = cache.check(page).unwrap_err();
    assert_eq!((stale.expected, stale.found), (0, 1));
}

mod restore_facts {
    use super::super::restore::{Before, Decode, Prompt, facts as told};
    use super::super::served::{Predecessor, Served};
    use super::*;
    use crate::config::PlaceholderPolicy;
    use crate::event::{Cause, HistoryChange, Residency, Segment, SegmentRun};

    struct Numbers;

    impl Decode for Numbers {
        fn decode(&self, tokens: &[u32]) -> String {
            format!("{tokens:?}")
        }
    }

    const RUNS: &[SegmentRun] = &[
        SegmentRun { segment: Segment::System, tokens: 4 },
        SegmentRun { segment: Segment::ToolSchema, tokens: 8 },
        SegmentRun { segment: Segment::User, tokens: 1000 },
    ];

    fn facts(
        cache: &mut Cache,
        tokens: &[u32],
        change: HistoryChange,
        before: Option<&[u32]>,
    ) -> crate::event::Restore {
        facts_under(PlaceholderPolicy::WalkBack, cache, tokens, change, before, &Served::default())
    }

    fn facts_under(
        policy: PlaceholderPolicy,
        cache: &mut Cache,
        tokens: &[u32],
        change: HistoryChange,
        before: Option<&[u32]>,
        served: &Served,
    ) -> crate::event::Restore {
        let prompt = Prompt { tokens, segments: RUNS, change, branches: false, use_cache: true, shown: None };
        let predecessor = before.map(|tokens| Predecessor {
            request: RequestId(1),
            tokens: tokens.to_vec(),
            prompt_tokens: tokens.len(),
            dense_tokens: tokens.len(),
        });
        let found = cache.look_up(tokens);
        cache.touch(&found.chain());
        let choice = found.choose(cache, tokens.len(), prompt.static_tokens(), policy);
        let before = Before { predecessor: predecessor.as_ref(), closest: served.closest(tokens) };
        let facts = told(cache, prompt, &found, choice, before, &Numbers);
        assert_eq!(choice.blocks * BLOCK, facts.checkpoint_tokens as usize);
        facts
    }

    proptest! {
        /// Every token of the suffix is accounted for by exactly one loss, whatever was served before.
        #[test]
        fn the_losses_add_up_to_the_suffix(
            prompts in prop::collection::vec(prompt(), 1..30),
            pages in 8_usize..16,
            change in prop::sample::select(vec![HistoryChange::Append, HistoryChange::Edit, HistoryChange::Compaction]),
        ) {
            let mut cache = cache(pages);
            let mut before: Option<Vec<u32>> = None;
            for (request, tokens) in prompts.iter().enumerate() {
                let facts = facts(&mut cache, tokens, change, before.as_deref());
                let lost: u64 = facts.losses.iter().map(|l| l.tokens).sum();
                prop_assert_eq!(lost + facts.checkpoint_tokens, tokens.len() as u64);
                prop_assert!(facts.losses.iter().all(|l| l.tokens > 0));
                prop_assert!(facts.losses.iter().any(|l| l.cause == facts.cause));
                prop_assert!(facts.checkpoint_tokens <= facts.matched_with_state_tokens);
                prop_assert!(facts.matched_with_state_tokens <= facts.matched_tokens);
                prop_assert!(facts.checkpoint_tokens < tokens.len() as u64);
                serve(&mut cache, tokens, request as u64).unwrap();
                before = Some(tokens.clone());
            }
        }
    }

    #[test]
    fn a_grown_prompt_loses_its_new_tokens_and_the_partial_block() {
        let mut cache = cache(16);
        let first: Vec<u32> = (0..18).collect();
        serve(&mut cache, &first, 1).unwrap();
        let grown: Vec<u32> = (0..25).collect();
        let facts = facts(&mut cache, &grown, HistoryChange::Append, Some(&first));
        assert_eq!((facts.checkpoint_tokens, facts.cause), (16, Cause::BlockFloor));
        let named: Vec<_> = facts.losses.iter().map(|l| (l.cause, l.tokens)).collect();
        assert_eq!(named, [(Cause::Appended, 7), (Cause::BlockFloor, 2)]);
        assert_eq!(facts.divergence, None);
    }

    #[test]
    fn a_changed_tool_schema_is_named_with_its_place() {
        let mut cache = cache(16);
        let first: Vec<u32> = (0..24).collect();
        serve(&mut cache, &first, 1).unwrap();
        let mut changed = first.clone();
        changed[9] = 99;
        let facts = facts(&mut cache, &changed, HistoryChange::Append, Some(&first));
        assert_eq!((facts.checkpoint_tokens, facts.cause), (8, Cause::ToolSchemaChanged));
        let loss = &facts.losses[0];
        assert_eq!(loss.tokens, 15);
        assert!(loss.detail.contains("token 9") && loss.detail.contains("a tool schema"), "{}", loss.detail);
        let divergence = facts.divergence.unwrap();
        assert_eq!((divergence.position, divergence.segment), (9, Some(Segment::ToolSchema)));
        assert_eq!(divergence.after, "[5, 6, 7, 8, 99, 10, 11, 12, 13, 14, 15, 16]");
    }

    #[test]
    fn a_prompt_held_whole_still_computes_its_last_token() {
        let mut cache = cache(16);
        let tokens: Vec<u32> = (0..16).collect();
        serve(&mut cache, &tokens, 1).unwrap();
        let facts = facts(&mut cache, &tokens, HistoryChange::Append, Some(&tokens));
        assert_eq!((facts.matched_tokens, facts.checkpoint_tokens), (16, 12));
        assert_eq!(facts.cause, Cause::LastTokenComputed);
    }

    #[test]
    fn an_evicted_block_is_the_cause_and_says_by_whom() {
        let mut cache = cache(6);
        let first: Vec<u32> = (0..16).collect();
        serve(&mut cache, &first, 1).unwrap();
        serve(&mut cache, &[50; 16], 2).unwrap();
        let facts = facts(&mut cache, &(0..20).collect::<Vec<_>>(), HistoryChange::Append, Some(&first));
        assert_eq!(facts.cause, Cause::Evicted);
        let loss = facts.losses.iter().find(|l| l.cause == Cause::Evicted).unwrap();
        assert!(
            loss.detail.contains("written by request 1") && loss.detail.contains("request 2"),
            "{}",
            loss.detail
        );
        assert_eq!(facts.checkpoint_tokens + loss.tokens, 16);
    }

    #[test]
    fn a_hybrid_walks_back_to_the_last_snapshot_and_names_it() {
        let mut cache = hybrid(40, 4);
        let first: Vec<u32> = (0..26).collect();
        store_with_snapshots(&mut cache, &first, &[2, 4], 7);
        let grown: Vec<u32> = (0..30).collect();
        let facts = facts(&mut cache, &grown, HistoryChange::Append, Some(&first));
        assert_eq!(
            (facts.matched_tokens, facts.matched_with_state_tokens, facts.checkpoint_tokens),
            (24, 16, 16)
        );
        assert_eq!(facts.cause, Cause::NoSnapshot);
        let loss = facts.losses.iter().find(|l| l.cause == Cause::NoSnapshot).unwrap();
        assert_eq!(loss.tokens, 8);
        let words = "block 3 has the last one; block 5, written by request 7, was stored without";
        assert_eq!(loss.detail, words);
        let rack: Vec<_> =
            facts.blocks.iter().map(|b| (b.residency, b.recurrent.map(|end| end.is_real()))).collect();
        use Residency::{Held, Missing, Ram};
        assert_eq!(
            rack,
            [
                (Ram, Some(false)),
                (Ram, Some(true)),
                (Ram, Some(false)),
                (Ram, Some(true)),
                (Held, Some(false)),
                (Held, Some(false)),
                (Missing, None),
            ]
        );
    }

    #[test]
    fn a_snapshot_behind_the_last_token_is_out_of_reach_and_a_dropped_one_is_remembered() {
        let mut cache = hybrid(40, 2);
        let prompt: Vec<u32> = (0..16).collect();
        store_with_snapshots(&mut cache, &prompt, &[3, 4], 1);
        let again = facts(&mut cache, &prompt, HistoryChange::Append, Some(&prompt));
        assert_eq!((again.checkpoint_tokens, again.cause), (12, Cause::LastTokenComputed));
        assert_eq!(again.blocks[3].residency, Residency::Held);
        store_with_snapshots(&mut cache, &[50; 8], &[1, 2], 2);
        let after = facts(&mut cache, &prompt, HistoryChange::Append, Some(&prompt));
        assert_eq!((after.checkpoint_tokens, after.cause), (0, Cause::NoSnapshot));
        let loss = after.losses.iter().find(|l| l.cause == Cause::NoSnapshot).unwrap();
        assert!(loss.detail.starts_with("no block has one; block 2"), "{}", loss.detail);
        assert!(loss.detail.ends_with("to make room for request 2"), "{}", loss.detail);
    }

    #[test]
    fn without_a_predecessor_everything_is_cold() {
        let facts = facts(&mut cache(4), &[1, 2, 3, 4, 5], HistoryChange::First, None);
        assert_eq!((facts.cause, facts.common_prefix_tokens), (Cause::Cold, None));
    }
}
