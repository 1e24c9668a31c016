//! Sparse prefill on the bundled pair: with everything kept it is the dense run, with less it leaves nothing that a dense run would not have
//! left, and whatever goes wrong with the scorer costs time only.

use std::collections::{BTreeMap, BTreeSet};

use super::hybrid::{narrow, replies, restores};
use super::resident::{HeldState, assert_recomputes, held_state};
use super::*;
use crate::config::{DeviceSetting, QuerySource, RecoveryPolicy, SparseLeaves};
use crate::event::{Loss, Restore, Route, Scored, ScorerStart, SparseVerdict};
use crate::model;
use crate::prefill::scorer::{Scorer, ScorerSettings};

pub(super) const LONGEST: usize = 2_400;

/// The bundled pair, in small blocks, with a low threshold.
fn pair() -> Config {
    let mut config = Config::default();
    config.model.device = DeviceSetting::Cpu;
    config.model.threads = 2;
    config.cache.block_tokens = BLOCK;
    config.specprefill.enabled = Some(true);
    config.specprefill.threshold = Some(200);
    config.specprefill.tail_tokens = 64;
    config.scheduler = SchedulerConfig { max_sequences: 2, chunk_tokens: 96, ..SchedulerConfig::default() };
    config
}

pub(super) fn on_sim() -> Config {
    let mut config = pair();
    config.model.device = DeviceSetting::Sim;
    config.sim.snapshot_bytes = 1;
    config
}

/// Runs `work` on a scheduler set up as the configuration says, with its scorer.
pub(super) fn run_pair<T>(
    config: &Config,
    work: impl FnOnce(&mut Scheduler<'_>, &mut Clock, &mut Emitter) -> T,
) -> (T, Vec<Event>) {
    let Loaded { executor, text, scorer, .. } = model::load(config).unwrap();
    let ground = narrow(config.cache.snapshot_policy, config.scheduler.clone(), BLOCK, LONGEST, 200);
    ground.run_on(Loaded { executor, text, scorer: None, draft: None }, |scheduler, clock, out| {
        attach_scorer(scorer, config, scheduler);
        scheduler.tell_logits(true);
        work(scheduler, clock, out)
    })
}

/// Has a scheduler score with the configuration's scorer; where sparse prefill is ruled out there is none.
pub(super) fn attach_scorer(scorer: Option<LoadedScorer>, config: &Config, scheduler: &mut Scheduler<'_>) {
    let scorer = scorer.map(|scorer| {
        let settings = ScorerSettings::of(&config.specprefill, 96, scorer.decodes);
        Scorer::new(scorer.executor, [0; 32], Vec::new(), settings)
    });
    scheduler.attach_sparse(SparseSide::new(scorer, config.clone()));
}

pub(super) fn tokens(seed: usize, length: usize) -> Vec<u32> {
    (0..length).map(|i| ((seed * 31 + 3) * 101 + i * i % 977 + i * 7) as u32 % 5_000).collect()
}

pub(super) fn ask(tokens: Vec<u32>, enabled: Option<bool>) -> Submission {
    let specprefill = SparseOverride { enabled, ..SparseOverride::default() };
    Submission { specprefill, ..submission(tokens, 8) }
}

/// Serves the prompts one after another, each in the history of the one before it.
pub(super) fn serve_all(
    prompts: &[(Vec<u32>, Option<bool>)],
    scheduler: &mut Scheduler<'_>,
    clock: &mut Clock,
    out: &mut Emitter,
) {
    let mut predecessor = None;
    for (tokens, enabled) in prompts {
        let submission = Submission { predecessor: predecessor.take(), ..ask(tokens.clone(), *enabled) };
        scheduler.submit(submission, clock, out);
        while !scheduler.is_idle() {
            for ended in scheduler.step(clock, out).ended {
                predecessor = ended.served;
            }
        }
        let cache = scheduler.cache_mut();
        assert_eq!(cache.used_pages(), cache.cached_blocks(), "a page leaks");
        assert_eq!(cache.used_slots(), cache.cached_snapshots(), "a slot leaks");
    }
}

/// A session that grows, with every request as the configuration has it.
pub(super) fn growing(requests: usize) -> Vec<(Vec<u32>, Option<bool>)> {
    (1..=requests).map(|n| (tokens(0, 400 + n * 300), None)).collect()
}

pub(super) fn scored(events: &[Event]) -> Vec<&Scored> {
    let scored = events.iter().filter_map(|event| match &event.body {
        Body::Scored(scored) => Some(&**scored),
        _ => None,
    });
    scored.collect()
}

fn routes(events: &[Event]) -> Vec<Route> {
    let routed = events.iter().filter_map(|event| match event.body {
        Body::Routed { route, .. } => Some((event.request, route)),
        _ => None,
    });
    // The last word counts: a scoring may fail.
    routed.collect::<BTreeMap<_, _>>().into_values().collect()
}

/// Bits of the logits each reply begins with, by request.
fn logits(events: &[Event]) -> Vec<Vec<u32>> {
    let told = events.iter().filter_map(|event| match &event.body {
        Body::ReplyLogits { logits } => Some(logits.0.iter().map(|x| x.to_bits()).collect()),
        _ => None,
    });
    told.collect()
}

#[test]
fn with_everything_kept_a_sparse_run_is_the_dense_run_bit_for_bit_and_leaves_the_same() {
    for config in [pair(), on_sim()] {
        let run = |enabled: bool, leaves| {
            let mut config = config.clone();
            config.specprefill.enabled = Some(enabled);
            config.specprefill.keep = Some(1.0);
            config.specprefill.leaves = leaves;
            run_pair(&config, |scheduler, clock, out| {
                serve_all(&growing(4), scheduler, clock, out);
                held_state(scheduler)
            })
        };
        let (dense_state, dense) = run(false, SparseLeaves::Nothing);
        let (sparse_state, sparse) = run(true, SparseLeaves::FirstSkip);
        assert!(routes(&sparse).contains(&Route::Sparse) && !routes(&dense).contains(&Route::Sparse));
        assert!(logits(&sparse) == logits(&dense));
        assert_eq!(replies(&sparse), replies(&dense));
        let by_tokens = |held: Vec<HeldState>| held.into_iter().collect::<BTreeSet<_>>();
        let (sparse_state, dense_state) = (by_tokens(sparse_state), by_tokens(dense_state));
        assert!(sparse_state == dense_state, "{} and {} blocks", sparse_state.len(), dense_state.len());
        let (nothing, published) = run(true, SparseLeaves::Nothing);
        assert_eq!(logits(&published), logits(&dense));
        assert!(nothing.is_empty(), "a sparse request left something");
    }
}

#[test]
fn f11_a_sparse_request_adds_no_canonical_tokens_and_the_next_one_is_told_so() {
    for config in [pair(), on_sim()] {
        let mut prompts = growing(4);
        prompts[0].1 = Some(false);
        let mut config = config;
        // What a request says only counts below an explicit `false`, so the first is dense by its own word.
        config.specprefill.enabled = Some(true);
        let ((), events) =
            run_pair(&config, |scheduler, clock, out| serve_all(&prompts, scheduler, clock, out));
        assert_eq!(routes(&events), [Route::Dense, Route::Sparse, Route::Sparse, Route::Sparse]);
        let stored = events.iter().filter_map(|event| match event.body {
            Body::Stored { stored_tokens, canonical_tokens, .. } => Some((stored_tokens, canonical_tokens)),
            _ => None,
        });
        let first = (700 / BLOCK * BLOCK) as u64;
        let with_reply = (708 / BLOCK * BLOCK) as u64;
        assert_eq!(stored.collect::<Vec<_>>(), [(with_reply, first), (0, first), (0, first), (0, first)]);
        let restores = restores(&events);
        let checkpoints: Vec<u64> = restores.iter().map(|restore| restore.checkpoint_tokens).collect();
        assert_eq!(checkpoints, [0, first, first, first], "the checkpoint is pinned");
        for (n, restore) in restores.iter().enumerate().skip(2) {
            let Restore { losses, cause, .. } = restore;
            let sparse: Vec<&Loss> = losses.iter().filter(|l| l.cause == Cause::SparseRefused).collect();
            assert_eq!((sparse.len(), *cause), (1, Cause::SparseRefused), "request {n}: {losses:?}");
            let before = 400 + n as u64 * 300;
            assert_eq!(sparse[0].tokens, before / BLOCK as u64 * BLOCK as u64 - first);
            assert_eq!(sparse[0].block.unwrap().written_by, Some(RequestId(n as u64)));
        }
    }
}

#[test]
fn what_a_sparse_request_leaves_is_what_a_dense_run_computes() {
    for (leaves, policy) in [
        (SparseLeaves::FirstSkip, SnapshotPolicy::EVERY),
        (SparseLeaves::NextBoundary, SnapshotPolicy::EVERY),
        (SparseLeaves::NextBoundary, SnapshotPolicy::Last),
        (SparseLeaves::NextBoundary, SnapshotPolicy::Branch),
    ] {
        let mut config = pair();
        config.specprefill.leaves = leaves;
        config.cache.snapshot_policy = policy;
        let (held, events) = run_pair(&config, |scheduler, clock, out| {
            serve_all(&growing(5), scheduler, clock, out);
            held_state(scheduler)
        });
        let checkpoints: Vec<u64> = restores(&events).iter().map(|r| r.checkpoint_tokens).collect();
        if leaves == SparseLeaves::NextBoundary {
            let steps: Vec<u64> = (0..5).map(|n| n * BLOCK as u64).collect();
            assert_eq!(checkpoints, steps, "{policy:?}: the checkpoint moves by a block a request");
        }
        let mut executor = model::load(&config).unwrap().executor;
        assert_recomputes(&mut *executor, &held);
    }
}

#[test]
fn f14_the_same_seed_selects_the_same_and_says_the_same_whether_the_scorer_is_warm_or_cold() {
    for queries in [QuerySource::Lookahead, QuerySource::PromptAndLookahead, QuerySource::PromptTail] {
        let mut config = pair();
        config.specprefill.queries = queries;
        let play = |prompts: &[(Vec<u32>, Option<bool>)]| {
            run_pair(&config, |scheduler, clock, out| serve_all(prompts, scheduler, clock, out)).1
        };
        let all = growing(4);
        let (warm, again) = (play(&all), play(&all));
        let facts =
            |scored: &Scored| (scored.unit_scores.clone(), scored.kept.clone(), scored.selected_tokens);
        assert_eq!(
            scored(&warm).into_iter().map(facts).collect::<Vec<_>>(),
            scored(&again).into_iter().map(facts).collect::<Vec<_>>()
        );
        for (n, prompt) in all.iter().enumerate() {
            let cold = play(std::slice::from_ref(prompt));
            let (warm_scored, cold_scored) = (scored(&warm)[n], scored(&cold)[0]);
            assert_eq!(facts(warm_scored), facts(cold_scored), "{queries:?}, request {n}");
            assert_eq!(
                replies(&warm)[&RequestId(n as u64 + 1)],
                replies(&cold)[&RequestId(1)],
                "{queries:?}, request {n}"
            );
            let start = if n == 0 { ScorerStart::First } else { ScorerStart::Warm };
            assert_eq!((warm_scored.start, cold_scored.start), (start, ScorerStart::First));
            assert_eq!(warm_scored.draft_cached_tokens > 0, n > 0);
        }
        // A warm scoring prefills exactly what it has not restored.
        let mut done: BTreeMap<RequestId, u64> = BTreeMap::new();
        for event in &warm {
            if let Body::ScoringProgress { done: now, .. } = event.body {
                done.insert(event.request.unwrap(), now);
            }
        }
        let expected = scored(&warm).into_iter().map(|s| s.scored_tokens - s.draft_cached_tokens);
        assert_eq!(done.into_values().collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }
}

#[test]
fn a_moved_origin_is_read_from_nothing_and_named_with_the_old_one() {
    let config = pair();
    let mut prompts = growing(3);
    // The first is dense, so the window of the second begins at its end; then everything is dropped, and it begins at 0.
    prompts[0].1 = Some(false);
    let ((), events) = run_pair(&config, |scheduler, clock, out| {
        serve_all(&prompts[..2], scheduler, clock, out);
        scheduler.cache_mut().evict_all(clock.now());
        serve_all(&prompts[2..], scheduler, clock, out);
    });
    let from = (700 / BLOCK * BLOCK) as u64;
    let starts: Vec<_> = scored(&events).into_iter().map(|s| (s.origin, s.start)).collect();
    assert_eq!(starts, [(from, ScorerStart::First), (0, ScorerStart::OriginMoved { from })]);
}

#[test]
fn a_scoring_that_fails_or_is_cancelled_costs_nothing_but_time() {
    let config = on_sim();
    // No scorer at all.
    let Loaded { executor, text, .. } = model::load(&config).unwrap();
    let ground = narrow(SnapshotPolicy::EVERY, config.scheduler.clone(), BLOCK, LONGEST, 200);
    let ((), events) =
        ground.run_on(Loaded { executor, text, scorer: None, draft: None }, |scheduler, clock, out| {
            scheduler.attach_sparse(SparseSide::new(None, config.clone()));
            serve_all(&growing(2), scheduler, clock, out);
        });
    let fell_back = events.iter().filter(|e| matches!(e.body, Body::SparseFellBack { .. })).count();
    assert_eq!((fell_back, routes(&events)), (2, vec![Route::Dense, Route::Dense]));
    let mut dense = config.clone();
    dense.specprefill.enabled = Some(false);
    let ((), expected) = run_pair(&dense, |s, clock, out| serve_all(&growing(2), s, clock, out));
    assert_eq!(replies(&events), replies(&expected));
    // Cancelled after every number of steps.
    for steps in 0..40 {
        run_pair(&config, |scheduler, clock, out| {
            let request = scheduler.submit(ask(tokens(0, 900), None), clock, out);
            for _ in 0..steps {
                scheduler.step(clock, out);
            }
            scheduler.cancel(request, clock, out);
            let cache = scheduler.cache_mut();
            assert_eq!(
                (cache.used_pages(), cache.used_slots()),
                (cache.cached_blocks(), cache.cached_snapshots())
            );
            serve_all(&growing(1), scheduler, clock, out);
        })
        .1
        .iter()
        .for_each(|event| {
            assert!(!matches!(event.body, Body::SparseFellBack { .. }), "after {steps} steps: {event:?}")
        });
    }
}

#[test]
fn admission_is_by_the_suffix_and_again_behind_the_protected_prefix() {
    let config = on_sim();
    let verdicts = |protected_tokens: usize, length: usize| {
        let ((), events) = run_pair(&config, |scheduler, clock, out| {
            let submission = Submission { protected_tokens, ..ask(tokens(0, length), None) };
            scheduler.submit(submission, clock, out);
            drain(scheduler, clock, out);
        });
        let told = events.iter().find_map(|event| match &event.body {
            Body::SparseAdmitted(admission) => Some(admission.verdict),
            _ => None,
        });
        (told.unwrap(), scored(&events).first().map(|scored| scored.origin))
    };
    assert_eq!(verdicts(0, 200), (SparseVerdict::ShortSuffix, None));
    assert_eq!(verdicts(0, 201), (SparseVerdict::Sparse, Some(0)));
    assert_eq!(verdicts(50, 250), (SparseVerdict::ShortBehindProtected, None));
    assert_eq!(verdicts(50, 251), (SparseVerdict::Sparse, Some(50)));
}

#[test]
fn every_nth_request_that_would_be_sparse_is_a_dense_turn_and_leaves_a_checkpoint() {
    let mut config = on_sim();
    config.recovery.enabled = true;
    config.recovery.policy = RecoveryPolicy::Dense { every: 3 };
    let told = |config: &Config| {
        let ((), events) = run_pair(config, |s, clock, out| serve_all(&growing(7), s, clock, out));
        let verdicts = events.iter().filter_map(|event| match &event.body {
            Body::SparseAdmitted(admission) => Some(admission.verdict),
            _ => None,
        });
        let restored = restores(&events).iter().map(|restore| restore.checkpoint_tokens).collect::<Vec<_>>();
        (verdicts.collect::<Vec<_>>(), routes(&events), restored)
    };
    use SparseVerdict::{DenseTurn, Sparse};
    let (verdicts, routes, checkpoints) = told(&config);
    assert_eq!(verdicts, [Sparse, Sparse, DenseTurn, Sparse, Sparse, DenseTurn, Sparse]);
    assert_eq!(routes[1..4], [Route::Sparse, Route::Dense, Route::Sparse]);
    assert_eq!(checkpoints[1], 0, "a sparse request leaves nothing");
    assert!(checkpoints[3] > 0 && checkpoints[6] > checkpoints[3], "{checkpoints:?}");
    config.recovery.enabled = false;
    assert_eq!(told(&config).0, [Sparse; 7], "a policy that is off decides nothing");
}

#[test]
fn a_request_beside_the_line_of_history_takes_no_dense_turn() {
    let mut config = on_sim();
    config.recovery.enabled = true;
    config.recovery.policy = RecoveryPolicy::Dense { every: 2 };
    let ((), events) = run_pair(&config, |scheduler, clock, out| {
        for source in [Source::Replay, Source::Side, Source::Side, Source::Replay] {
            scheduler.submit(Submission { source, ..ask(tokens(0, 900), None) }, clock, out);
            drain(scheduler, clock, out);
        }
    });
    assert_eq!(routes(&events), [Route::Sparse, Route::Sparse, Route::Sparse, Route::Dense]);
}

#[test]
fn f12_the_protected_prefix_is_computed_densely_and_positions_are_the_prompts_own() {
    let config = pair();
    let ((), events) = run_pair(&config, |scheduler, clock, out| {
        let submission = Submission { protected_tokens: 333, ..ask(tokens(0, 1_500), None) };
        scheduler.submit(submission, clock, out);
        drain(scheduler, clock, out);
    });
    let scored = scored(&events)[0];
    assert_eq!((scored.origin, scored.dense_until, scored.scored_tokens), (333, 333, 1_500 - 333));
    assert!(scored.kept.iter().all(|(start, end)| 333 <= *start && start < end && *end <= 1_500));
    assert_eq!(scored.kept.last().unwrap().1, 1_500, "the kickoff token is kept");
    let computed = events.iter().find_map(|event| match event.body {
        Body::Prefilled { computed_tokens, .. } => Some(computed_tokens),
        _ => None,
    });
    assert_eq!(computed, Some(333 + scored.selected_tokens));
}

#[test]
fn another_choice_from_the_captured_attention_needs_no_scorer() {
    let config = pair();
    run_pair(&config, |scheduler, clock, out| {
        let knobs =
            Rescore { keep: 0.2, pool: 13, unit: 32, tail_tokens: 64, aggregation: Aggregation::MaxMean };
        assert!(scheduler.rescore(1, RequestId(1), knobs).problem.is_some(), "nothing has been scored");
        serve_all(&growing(1), scheduler, clock, out);
        let same = scheduler.rescore(2, RequestId(1), knobs);
        let more = scheduler.rescore(3, RequestId(1), Rescore { keep: 0.5, ..knobs });
        assert_eq!((same.ticket, same.problem), (2, None));
        assert!(more.selected_tokens > same.selected_tokens);
        assert!(scheduler.rescore(5, RequestId(2), knobs).problem.is_some(), "another request's attention");
        assert!(scheduler.rescore(4, RequestId(1), Rescore { pool: 2, ..knobs }).problem.is_some());
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Sparse and dense requests of several histories, together and one after another, cancelled and not: what is held is what a dense run computes,
    /// and a dense request says what it says alone.
    #[test]
    fn no_sparse_state_ever_enters_the_dense_key_space(
        steps in prop::collection::vec((0_usize..3, any::<bool>(), 0_usize..60, any::<bool>()), 1..8),
        leaves in prop::sample::select(vec![
            SparseLeaves::Nothing, SparseLeaves::FirstSkip, SparseLeaves::NextBoundary,
        ]),
    ) {
        let mut config = on_sim();
        config.specprefill.leaves = leaves;
        let mut lengths = [300_usize; 3];
        let mut asked = Vec::new();
        for (history, sparse, cancel, together) in &steps {
            lengths[*history] = (lengths[*history] + 230).min(LONGEST);
            asked.push((tokens(*history, lengths[*history]), *sparse, *cancel, *together));
        }
        let (held, events) = run_pair(&config, |scheduler, clock, out| {
            for (tokens, sparse, cancel, together) in &asked {
                let request = scheduler.submit(ask(tokens.clone(), sparse.then_some(true).or(Some(false))), clock, out);
                for _ in 0..*cancel {
                    scheduler.step(clock, out);
                }
                if *cancel % 3 == 0 {
                    scheduler.cancel(request, clock, out);
                }
                if !together {
                    drain(scheduler, clock, out);
                }
            }
            drain(scheduler, clock, out);
            let cache = scheduler.cache_mut();
            assert_eq!((cache.used_pages(), cache.used_slots()), (cache.cached_blocks(), cache.cached_snapshots()));
            held_state(scheduler)
        });
        let failed = events.iter().find(|e| {
            matches!(e.body, Body::Failed { .. } | Body::StalePage { .. } | Body::SparseFellBack { .. })
        });
        prop_assert_eq!(failed, None);
        let mut executor = model::load(&config).unwrap().executor;
        assert_recomputes(&mut *executor, &held);
        let said = replies(&events);
        for (n, (tokens, sparse, cancel, _)) in asked.iter().enumerate() {
            if *sparse || cancel % 3 == 0 {
                continue;
            }
            let ((), alone) = run_pair(&config, |scheduler, clock, out| {
                scheduler.submit(ask(tokens.clone(), Some(false)), clock, out);
                drain(scheduler, clock, out);
            });
            prop_assert_eq!(&said[&RequestId(n as u64 + 1)], &replies(&alone)[&RequestId(1)]);
        }
    }
}

#[test]
fn a_request_that_uses_no_cache_is_scored_from_nothing_and_leaves_the_scorer_nothing() {
    let config = on_sim();
    let ((), events) = run_pair(&config, |scheduler, clock, out| {
        for use_cache in [false, true, false, true] {
            scheduler.submit(Submission { use_cache, ..ask(tokens(0, 900), None) }, clock, out);
            drain(scheduler, clock, out);
        }
    });
    let starts: Vec<_> = scored(&events).iter().map(|scored| scored.start).collect();
    assert_eq!(starts, [ScorerStart::CacheOff, ScorerStart::First, ScorerStart::CacheOff, ScorerStart::Warm]);
}

#[test]
fn stepping_by_phase_stops_between_the_scoring_and_the_prefill() {
    let config = on_sim();
    run_pair(&config, |scheduler, clock, out| {
        scheduler.submit(ask(tokens(0, 900), None), clock, out);
        let mut ended = Vec::new();
        while !scheduler.is_idle() {
            let phases = scheduler.step(clock, out).phases;
            assert!(phases.len() <= 2, "{phases:?}");
            let scored = phases.iter().any(|(_, phase)| *phase == Phase::Score);
            assert!(!scored || phases.len() == 1, "{phases:?}");
            ended.extend(phases.into_iter().map(|(_, phase)| phase));
        }
        assert_eq!(ended[..3], [Phase::Restore, Phase::Score, Phase::Prefill]);
    });
}
