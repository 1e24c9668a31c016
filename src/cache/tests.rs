//! The cache against a model of itself.

use std::collections::HashMap;

use proptest::prelude::*;

use super::chain::Identity;
use super::pool::PageRef;
use super::*;

const BLOCK: usize = 4;

fn cache(pages: usize) -> Cache {
    let identity =
        Identity { model: [0; 32], text: [0; 32], precision: "int8", family: "test", block_tokens: BLOCK };
    Cache::new(&identity, BLOCK, pages)
}

/// Runs a request of `tokens` as the engine does: find, hold, allocate the rest, store, release. Gives the blocks found.
fn serve(cache: &mut Cache, tokens: &[u32], request: u64) -> Result<usize, CacheFull> {
    let found = cache.find(tokens).pages;
    cache.hold(&found);
    let mut pages = found.clone();
    while pages.len() < tokens.len().div_ceil(BLOCK) {
        match cache.allocate(RequestId(request), Stamp(request)) {
            Ok(page) => pages.push(page),
            Err(full) => {
                cache.release(&pages);
                return Err(full);
            }
        }
    }
    cache.store(tokens, &pages, RequestId(request), Route::Dense, Stamp(request));
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
            prop_assert_eq!(cache.held_prefix(tokens), tokens.len() / BLOCK * BLOCK);
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
                    let held = cache.held_prefix(tokens) / BLOCK;
                    cache.hashes(tokens).into_iter().take(held).collect::<Vec<_>>()
                })
                .collect();
            prop_assert_eq!(reachable.len(), cache.cached_blocks());
        }
    }

    /// Pages against a map from page to holders.
    #[test]
    fn the_pool_counts_holders(operations in prop::collection::vec((0_u8..3, any::<prop::sample::Index>()), 1..200)) {
        let mut pool = pool::PagePool::new(6);
        let mut model: HashMap<PageRef, u32> = HashMap::new();
        let mut dead: Vec<PageRef> = Vec::new();
        for (operation, index) in operations {
            let live: Vec<PageRef> = model.keys().copied().collect();
            match operation {
                0 => match pool.allocate() {
                    Some(page) => prop_assert!(model.insert(page, 1).is_none()),
                    None => prop_assert_eq!(model.len(), 6),
                },
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
                _ => {}
            }
            prop_assert_eq!(pool.used(), model.len());
            for (page, holders) in &model {
                prop_assert_eq!(pool.holders(*page), *holders);
                prop_assert!(pool.check(*page).is_ok());
            }
            prop_assert!(dead.iter().all(|page| pool.check(*page).is_err()));
        }
    }
}

#[test]
fn running_requests_keep_their_pages_and_a_full_cache_says_so() {
    let mut cache = cache(3);
    let held: Vec<_> = (0..3).map(|_| cache.allocate(RequestId(1), Stamp(0)).unwrap()).collect();
    let full = cache.allocate(RequestId(2), Stamp(0)).unwrap_err();
    assert_eq!(full.limit, 3);
    cache.release(&held[..1]);
    assert!(cache.allocate(RequestId(2), Stamp(0)).is_ok());
}

#[test]
fn an_evicted_block_is_remembered_with_who_wrote_it_and_for_whom() {
    let mut cache = cache(2);
    let old = [1, 1, 1, 1, 2, 2, 2, 2];
    serve(&mut cache, &old, 1).unwrap();
    serve(&mut cache, &[7; 8], 2).unwrap();
    let hashes = cache.hashes(&old);
    let evicted = cache.evicted(&hashes[1]).unwrap();
    assert_eq!((evicted.provenance.written_by, evicted.for_request), (RequestId(1), Some(RequestId(2))));
}

#[test]
fn a_page_that_was_reused_is_noticed() {
    let mut cache = cache(1);
    let page = cache.allocate(RequestId(1), Stamp(0)).unwrap();
    cache.release(&[page]);
    let reused = cache.allocate(RequestId(2), Stamp(0)).unwrap();
    assert_eq!(page.id(), reused.id());
    assert!(cache.check(reused).is_ok());
    let stale = cache.check(page).unwrap_err();
    assert_eq!((stale.expected, stale.found), (0, 1));
}

mod restore_facts {
    use super::super::restore::{Decode, Predecessor, Prompt, plan};
    use super::*;
    use crate::event::{Cause, HistoryChange, Segment, SegmentRun};

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
        let prompt = Prompt { tokens, segments: RUNS, change, use_cache: true };
        let predecessor = before.map(|tokens| Predecessor {
            request: RequestId(1),
            tokens: tokens.to_vec(),
            prompt_tokens: tokens.len(),
        });
        let plan = plan(cache, prompt, predecessor.as_ref(), &Numbers);
        assert_eq!(plan.blocks * BLOCK, plan.facts.checkpoint_tokens as usize);
        plan.facts
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
    fn without_a_predecessor_everything_is_cold() {
        let facts = facts(&mut cache(4), &[1, 2, 3, 4, 5], HistoryChange::First, None);
        assert_eq!((facts.cause, facts.common_prefix_tokens), (Cause::Cold, None));
    }
}
