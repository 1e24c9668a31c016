//! Background recovery in the scheduler: what is published is what a dense run leaves, whoever comes goes first, and nothing is left behind.

use std::collections::BTreeMap;

use super::hybrid::narrow;
use super::resident::{self, HeldState, assert_recomputes};
use super::sparse::{LONGEST, ask, on_sim, tokens};
use super::*;
use crate::config::{DeviceSetting, RecoveryConfig, RecoveryPolicy};
use crate::engine::asked::Asked;
use crate::engine::background::Rest;
use crate::event::{DebtTaken, JobEnded, Publication, RecoverySlice, Route};
use crate::model;
use crate::prefill::scorer::{Scorer, ScorerSettings};
use crate::recovery::job::{Declined, End, Mode};
use crate::recovery::standing::Why;

/// The pseudo-model with its scorer, a low threshold, and recovery on.
fn recovering() -> Config {
    let mut config = on_sim();
    config.specprefill.tail_tokens = 16;
    config.specprefill.threshold = Some(20);
    config.recovery.enabled = true;
    config.recovery.slice_tokens = 48;
    config
}

fn on_cpu() -> Config {
    let mut config = recovering();
    config.model.device = DeviceSetting::Cpu;
    config.model.threads = 2;
    config
}

/// Runs `work` on a scheduler set up as the configuration says, among `neighbours`.
fn run_among<T>(
    config: &Config,
    neighbours: &Neighbours,
    work: impl FnOnce(&mut Scheduler<'_>, &mut Clock, &mut Emitter) -> T,
) -> (T, Vec<Event>) {
    let Loaded { executor, text, scorer, .. } = model::load(config).unwrap();
    let ground = narrow(config.cache.snapshot_policy, config.scheduler.clone(), BLOCK, LONGEST, 200);
    ground.run_on(Loaded { executor, text, scorer: None, draft: None }, |scheduler, clock, out| {
        let scorer = scorer.map(|scorer| {
            let settings = ScorerSettings::of(&config.specprefill, 96, scorer.decodes);
            Scorer::new(scorer.executor, [0; 32], Vec::new(), settings)
        });
        scheduler.attach_sparse(SparseSide::new(scorer, config.clone()));
        let member = Arc::new(neighbours.join());
        scheduler.attach_background(Background::new(config.recovery.clone(), member, Arc::default()));
        let result = work(scheduler, clock, out);
        assert!(scheduler.is_idle());
        scheduler.end_recovery(clock, out);
        assert_nothing_is_held(scheduler);
        result
    })
}

fn run<T>(
    config: &Config,
    work: impl FnOnce(&mut Scheduler<'_>, &mut Clock, &mut Emitter) -> T,
) -> (T, Vec<Event>) {
    run_among(config, &Neighbours::open(&config.recovery), work)
}

/// What the cache holds, in the order of its tokens.
fn held_state(scheduler: &mut Scheduler<'_>) -> Vec<HeldState> {
    let mut held = resident::held_state(scheduler);
    held.sort();
    held
}

/// Every page and slot in use is the cache's.
fn assert_nothing_is_held(scheduler: &mut Scheduler<'_>) {
    // A page that was given away under a block is one that the index knows and nobody uses.
    let cache = scheduler.cache_mut();
    assert!(cache.used_pages() <= cache.cached_blocks(), "a page leaks");
    assert!(cache.used_slots() <= cache.cached_snapshots(), "a slot leaks");
}

fn serve(tokens: Vec<u32>, scheduler: &mut Scheduler<'_>, clock: &mut Clock, out: &mut Emitter) {
    scheduler.submit(ask(tokens, None), clock, out);
    while !scheduler.is_idle() {
        scheduler.step(clock, out);
        assert!(!scheduler.has_live(), "a request finds live state gone within the step");
    }
}

fn serve_dense(tokens: Vec<u32>, scheduler: &mut Scheduler<'_>, clock: &mut Clock, out: &mut Emitter) {
    scheduler.submit(ask(tokens, Some(false)), clock, out);
    while !scheduler.is_idle() {
        scheduler.step(clock, out);
    }
}

/// Lets so much time pass as the engine's loop would.
fn idle(seconds: f64, scheduler: &mut Scheduler<'_>, clock: &mut Clock, out: &mut Emitter) {
    let until = clock.now().after(Nanos::from_seconds(seconds));
    while clock.now() < until {
        match scheduler.background_step(Some(until), clock, out) {
            Rest::No => assert_sound(scheduler),
            Rest::For(time) => clock.skip_to(clock.now().after(Nanos::from(time)).min(until)),
            Rest::Open => clock.skip_to(until),
        }
    }
}

/// What is committed is restorable, and live state stands on top of it.
fn assert_sound(scheduler: &mut Scheduler<'_>) {
    let Some((tokens, committed, processed)) =
        scheduler.job().map(|job| (job.tokens().to_vec(), job.committed(), job.processed()))
    else {
        return assert_nothing_is_held(scheduler);
    };
    if !scheduler.has_live() {
        // What is lost between two slices is found out when the next one builds on it.
        return;
    }
    let restorable = scheduler.cache_mut().restorable_prefix(&tokens) as u64;
    assert!(committed <= restorable, "{committed} committed, {restorable} restorable");
    assert!(processed >= committed.min(restorable));
}

fn slices(events: &[Event]) -> Vec<&RecoverySlice> {
    let of = |event: &'_ Event| matches!(event.body, Body::RecoverySlice(_));
    let slices = events.iter().filter(|event| of(event)).map(|event| match &event.body {
        Body::RecoverySlice(slice) => &**slice,
        _ => unreachable!(),
    });
    slices.collect()
}

fn publications(events: &[Event]) -> Vec<&Publication> {
    let publications = events.iter().filter_map(|event| match &event.body {
        Body::Published(publication) => Some(&**publication),
        _ => None,
    });
    publications.collect()
}

fn ends(events: &[Event]) -> Vec<&JobEnded> {
    let ends = events.iter().filter_map(|event| match &event.body {
        Body::RecoveryEnded(ended) => Some(&**ended),
        _ => None,
    });
    ends.collect()
}

fn taken(events: &[Event]) -> Vec<DebtTaken> {
    let taken = events.iter().filter_map(|event| match &event.body {
        Body::DebtConsidered(considered) => Some(considered.taken),
        _ => None,
    });
    taken.collect()
}

fn retired(events: &[Event]) -> Vec<Why> {
    let retired = events.iter().filter_map(|event| match event.body {
        Body::Retired { why, .. } => Some(why),
        _ => None,
    });
    retired.collect()
}

const B: usize = BLOCK;

#[test]
fn h6_a_prompt_of_exactly_n_blocks_recovers_n_and_any_other_its_whole_blocks() {
    for length in [2 * B, 3 * B, 3 * B + 1, 3 * B + 37, 4 * B - 1] {
        let (restorable, events) = run(&recovering(), |scheduler, clock, out| {
            serve(tokens(0, length), scheduler, clock, out);
            idle(1e3, scheduler, clock, out);
            scheduler.cache_mut().restorable_prefix(&tokens(0, length))
        });
        let target = length / B * B;
        assert_eq!(restorable, target, "{length}");
        assert_eq!(publications(&events).last().unwrap().committed, target as u64);
        let ends = ends(&events);
        assert_eq!((ends.len(), ends[0].end), (1, End::Complete));
        // A request, on the other hand, computes its last token whatever is there.
        let (_, events) = run(&recovering(), |scheduler, clock, out| {
            serve(tokens(0, 3 * B), scheduler, clock, out);
            idle(1e3, scheduler, clock, out);
            serve(tokens(0, 3 * B), scheduler, clock, out);
        });
        let checkpoints: Vec<u64> = restored(&events);
        assert_eq!(checkpoints, [0, 2 * B as u64]);
    }
}

fn restored(events: &[Event]) -> Vec<u64> {
    let restored = events.iter().filter_map(|event| match &event.body {
        Body::Restored(restore) => Some(restore.checkpoint_tokens),
        _ => None,
    });
    restored.collect()
}

#[test]
fn f10_what_recovery_publishes_is_what_a_dense_run_leaves_bit_for_bit() {
    for slice_tokens in [17, 64, 300] {
        let mut config = on_cpu();
        config.recovery.slice_tokens = slice_tokens;
        let (state, events) = run(&config, |scheduler, clock, out| {
            serve(tokens(0, 700), scheduler, clock, out);
            idle(1e3, scheduler, clock, out);
            serve(tokens(0, 1_000), scheduler, clock, out);
            idle(1e3, scheduler, clock, out);
            held_state(scheduler)
        });
        assert!(state.iter().any(|(tokens, ..)| tokens.len() == 960));
        assert!(state.iter().all(|(.., snapshot)| snapshot.is_some()), "every end can be restored from");
        assert_eq!(ends(&events).iter().map(|e| e.end).collect::<Vec<_>>(), [End::Complete; 2]);
        let mut executor = model::load(&config).unwrap().executor;
        assert_recomputes(&mut *executor, &state);
    }
}

#[test]
fn f2_with_a_prediction_head_a_published_block_has_its_entries_too() {
    let mut config = on_cpu();
    config.speculation.drafter = Some(DrafterKind::Mtp);
    let (recovered, events) = run(&config, |scheduler, clock, out| {
        serve(tokens(0, 4 * B), scheduler, clock, out);
        idle(1e3, scheduler, clock, out);
        held_state(scheduler)
    });
    assert_eq!(ends(&events)[0].end, End::Complete);
    assert_eq!(recovered.len(), 4, "the last block too");
    let (dense, _) = run(&config, |scheduler, clock, out| {
        serve_dense(tokens(0, 4 * B + 9), scheduler, clock, out);
        held_state(scheduler)
    });
    assert_eq!(recovered, dense[..4]);
}

#[test]
fn f4_the_boundaries_published_are_the_same_for_any_slice() {
    let published = |slice_tokens| {
        let mut config = recovering();
        config.recovery.slice_tokens = slice_tokens;
        let (_, events) = run(&config, |scheduler, clock, out| {
            serve(tokens(0, 900), scheduler, clock, out);
            idle(1e3, scheduler, clock, out);
        });
        assert!(slices(&events).iter().all(|slice| slice.to - slice.from <= slice_tokens));
        publications(&events).iter().map(|p| p.boundary).collect::<Vec<_>>()
    };
    let blocks: Vec<u64> = (1..=14).map(|block| block * B as u64).collect();
    for slice_tokens in [16, 48, 64, 100, 4_096] {
        assert_eq!(published(slice_tokens), blocks, "{slice_tokens}");
    }
}

#[test]
fn f5_the_slice_bounds_recovery_and_no_chunk_of_a_request() {
    let chunks = |slice_tokens| {
        let mut config = recovering();
        config.recovery.slice_tokens = slice_tokens;
        let (_, events) = run(&config, |scheduler, clock, out| {
            scheduler.submit(ask(tokens(0, 700), Some(false)), clock, out);
            while !scheduler.is_idle() {
                scheduler.step(clock, out);
            }
        });
        let done = events.iter().filter_map(|event| match event.body {
            Body::PrefillProgress { done, .. } => Some(done),
            _ => None,
        });
        done.collect::<Vec<_>>()
    };
    assert_eq!(chunks(8), chunks(4_096));
}

#[test]
fn a_terminal_job_publishes_once_and_leaves_what_a_progressive_one_does_at_its_end() {
    for config in [recovering(), on_cpu()] {
        let run_in = |mode| {
            let mut config = config.clone();
            config.recovery.mode = mode;
            run(&config, |scheduler, clock, out| {
                serve(tokens(0, 500), scheduler, clock, out);
                idle(1e3, scheduler, clock, out);
                held_state(scheduler)
            })
        };
        let (progressive, _) = run_in(Mode::Progressive);
        let (terminal, events) = run_in(Mode::Terminal);
        assert_eq!(publications(&events).iter().map(|p| p.boundary).collect::<Vec<_>>(), [448]);
        let pages = |state: &[HeldState]| {
            state.iter().map(|(tokens, page, _)| (tokens.clone(), *page)).collect::<Vec<_>>()
        };
        assert_eq!(pages(&progressive), pages(&terminal));
        assert_eq!(progressive.last(), terminal.last(), "the last end is captured by both");
    }
}

#[test]
fn h2_whoever_comes_finds_live_state_gone_within_a_step_and_what_was_published_stays() {
    let foreign = Neighbours::open(&RecoveryConfig::default());
    let stranger = foreign.join();
    type Trigger<'t> = &'t dyn Fn(&mut Scheduler<'_>, &mut Clock, &mut Emitter);
    let request: Trigger<'_> = &|scheduler, clock, out| {
        scheduler.submit(ask(tokens(7, 100), Some(false)), clock, out);
        scheduler.step(clock, out);
    };
    let rejected: Trigger<'_> = &|scheduler, clock, out| {
        scheduler.submit(ask(tokens(7, 100), Some(false)), clock, out);
        scheduler.background_step(None, clock, out);
    };
    let announced: Trigger<'_> = &|scheduler, clock, out| {
        let _arrival = stranger.announce();
        scheduler.background_step(None, clock, out);
    };
    let served_elsewhere: Trigger<'_> = &|scheduler, clock, out| {
        stranger.serves(true);
        scheduler.background_step(None, clock, out);
        stranger.serves(false);
    };
    let spent: Trigger<'_> = &|scheduler, clock, out| {
        scheduler.charge_background(Nanos::from_seconds(100.0), clock);
        scheduler.background_step(None, clock, out);
        clock.skip_to(clock.now().after(Nanos::from_seconds(200.0)));
    };
    let triggers = [
        (Why::ForegroundHere, request),
        (Why::ForegroundHere, rejected),
        (Why::Arrival, announced),
        (Why::ForegroundElsewhere, served_elsewhere),
        (Why::BudgetSpent, spent),
    ];
    for (why, trigger) in triggers {
        let (_, events) = run_among(&recovering(), &foreign, |scheduler, clock, out| {
            serve(tokens(0, 900), scheduler, clock, out);
            // Until live state stands between two boundaries, some of it published.
            loop {
                scheduler.background_step(None, clock, out);
                let job = scheduler.job().unwrap();
                if job.committed() >= 2 * B as u64 && job.processed() > job.committed() {
                    break;
                }
            }
            let (committed, pages) = (scheduler.job().unwrap().committed(), held_state(scheduler));
            assert!(scheduler.has_live());
            trigger(scheduler, clock, out);
            assert!(!scheduler.has_live(), "{why:?}");
            assert_eq!(scheduler.job().unwrap().committed(), committed);
            let still: Vec<_> = held_state(scheduler);
            assert!(pages.iter().all(|block| still.contains(block)), "what was published stays");
            while !scheduler.is_idle() {
                scheduler.step(clock, out);
            }
            idle(1e3, scheduler, clock, out);
        });
        assert_eq!(retired(&events)[0], why);
        let again: Vec<u64> = ends(&events).iter().map(|e| e.tally.computed_again).collect();
        assert!(again[0] > 0 && again[0] < B as u64, "less than a block is computed again: {again:?}");
        assert_eq!(ends(&events)[0].end, End::Complete);
    }
}

#[test]
fn f25_a_slice_never_runs_while_a_request_is_there_and_every_resumption_is_told() {
    let (_, events) = run(&recovering(), |scheduler, clock, out| {
        for turn in 1..8 {
            serve(tokens(0, 300 + 150 * turn), scheduler, clock, out);
            idle(0.3 * turn as f64, scheduler, clock, out);
        }
    });
    let mut present = 0;
    for event in &events {
        match event.body {
            Body::Arrived(_) => present += 1,
            Body::Finished { .. } | Body::Failed { .. } => present -= 1,
            Body::RecoverySlice(_) | Body::Published(_) => assert_eq!(present, 0, "{event:?}"),
            _ => {}
        }
    }
    let of_job = |n: u64| slices(&events).into_iter().filter(move |slice| slice.job.0 == n);
    for job in 1..=ends(&events).len() as u64 {
        let resumed = of_job(job).filter(|slice| slice.restored.is_some()).count() as u64;
        if let Some(last) = of_job(job).next_back() {
            assert_eq!(last.steps.resumed, resumed);
            assert_eq!(last.steps.scheduled, of_job(job).count() as u64);
            assert_eq!(last.steps.runnable, last.steps.scheduled + last.steps.yielded);
        }
    }
}

#[test]
fn a_slice_that_is_overtaken_gives_way_between_two_layers_unless_it_must_not() {
    let delay = |interruptible| {
        let mut config = recovering();
        config.recovery.interruptible = interruptible;
        config.recovery.slice_tokens = 64;
        let (delay, events) = run(&config, |scheduler, clock, out| {
            serve(tokens(0, 900), scheduler, clock, out);
            // In the middle of a slice of a quarter of a second.
            let due = clock.now().after(Nanos::from_seconds(0.9));
            while clock.now() < due {
                scheduler.background_step(Some(due), clock, out);
            }
            scheduler.delay_of(due).unwrap().seconds()
        });
        (delay, slices(&events).last().unwrap().gave_way)
    };
    let (whole, ran) = delay(false);
    let (layer, gave_way) = delay(true);
    assert_eq!((ran, gave_way), (None, Some(Why::Arrival)));
    assert!(whole > 0.05 && layer < 0.25 / 4.0 && layer < whole, "{layer} s against {whole} s");
}

#[test]
fn h5_what_the_cache_lost_lowers_the_commit_and_is_published_again() {
    let (_, events) = run(&recovering(), |scheduler, clock, out| {
        serve(tokens(0, 900), scheduler, clock, out);
        while scheduler.job().unwrap().committed() < 5 * B as u64 {
            scheduler.background_step(None, clock, out);
        }
        serve_dense(tokens(7, 100), scheduler, clock, out);
        scheduler.inject(Fault::LoseBlock(2), &tokens(0, 900), clock);
        idle(1e3, scheduler, clock, out);
        assert_eq!(scheduler.cache_mut().restorable_prefix(&tokens(0, 900)), 14 * B);
    });
    let lowered: Vec<(u64, u64)> = events
        .iter()
        .filter_map(|event| match event.body {
            Body::CommitLowered { from, to, .. } => Some((from, to)),
            _ => None,
        })
        .collect();
    assert_eq!(lowered, [(5 * B as u64, 2 * B as u64)]);
    let committed: Vec<u64> = publications(&events).iter().map(|p| p.committed / B as u64).collect();
    assert_eq!(committed, [1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
}

#[test]
fn h7_another_history_takes_the_place_and_nothing_queues() {
    let (_, events) = run(&recovering(), |scheduler, clock, out| {
        for seed in 0..5 {
            serve(tokens(seed, 600), scheduler, clock, out);
        }
        idle(1e3, scheduler, clock, out);
    });
    let ends: Vec<End> = ends(&events).iter().map(|e| e.end).collect();
    assert_eq!(ends, [End::Replaced, End::Replaced, End::Replaced, End::Replaced, End::Complete]);
    assert!(slices(&events).iter().all(|slice| slice.job.0 == 5), "only the last is worked for");
}

#[test]
fn policies_choose_between_two_histories() {
    let kept = |policy, first: usize, second: usize| {
        let mut config = recovering();
        config.recovery.policy = policy;
        let (_, events) = run(&config, |scheduler, clock, out| {
            serve(tokens(0, first), scheduler, clock, out);
            serve(tokens(1, second), scheduler, clock, out);
        });
        matches!(taken(&events)[1], DebtTaken::LeftOut { .. })
    };
    assert!(kept(RecoveryPolicy::Idle, 900, 300));
    assert!(!kept(RecoveryPolicy::Newest, 300, 900));
    assert!(kept(RecoveryPolicy::Cheapest, 300, 900) && !kept(RecoveryPolicy::Cheapest, 900, 300));
}

#[test]
fn a_longer_prompt_of_the_same_history_extends_the_job() {
    let (_, events) = run(&recovering(), |scheduler, clock, out| {
        serve(tokens(0, 600), scheduler, clock, out);
        while scheduler.job().unwrap().committed() < 3 * B as u64 {
            scheduler.background_step(None, clock, out);
        }
        serve(tokens(0, 900), scheduler, clock, out);
        idle(1e3, scheduler, clock, out);
    });
    assert!(matches!(taken(&events)[1], DebtTaken::Extended { from: 576, .. }), "{:?}", taken(&events));
    let ends = ends(&events);
    assert_eq!((ends.len(), ends[0].end, ends[0].committed), (1, End::Complete, 896));
    assert_eq!(restored(&events), [0, 3 * B as u64], "the second request finds what was published");
}

#[test]
fn f6_a_finished_job_takes_no_step_and_no_budget() {
    let (_, events) = run(&recovering(), |scheduler, clock, out| {
        serve(tokens(0, 300), scheduler, clock, out);
        idle(1e3, scheduler, clock, out);
        assert_eq!(scheduler.background_step(None, clock, out), Rest::Open);
        assert_eq!(scheduler.rest(clock), Rest::Open);
    });
    let after = slices(&events).len();
    let (_, longer) = run(&recovering(), |scheduler, clock, out| {
        serve(tokens(0, 300), scheduler, clock, out);
        idle(1e6, scheduler, clock, out);
    });
    assert_eq!(slices(&longer).len(), after);
}

#[test]
fn f9_a_parked_job_costs_no_step_and_goes_on_when_the_window_ends() {
    let mut config = recovering();
    (config.recovery.budget_pct, config.recovery.window_s) = (5.0, 30.0);
    let ((), events) = run(&config, |scheduler, clock, out| {
        serve(tokens(0, 2_000), scheduler, clock, out);
        let mut parked = 0;
        let until = clock.now().after(Nanos::from_seconds(120.0));
        while clock.now() < until {
            match scheduler.background_step(Some(until), clock, out) {
                Rest::No => {}
                Rest::For(time) => {
                    assert_eq!(scheduler.rest(clock), Rest::For(time), "the question changes nothing");
                    let window_ends = clock.now().after(Nanos::from(time));
                    assert_eq!(window_ends.0 % 30_000_000_000, 0);
                    parked += 1;
                    clock.skip_to(window_ends.min(until));
                }
                Rest::Open => clock.skip_to(until),
            }
        }
        assert!((3..=5).contains(&parked), "once a window: {parked}");
    });
    let last = slices(&events).last().unwrap().budget;
    assert!(last.service.seconds() <= 0.05 * 150.0 + 0.3, "{last:?}");
    let news = events.iter().filter(|event| {
        matches!(event.body, Body::RecoveryWaits { why: Some(Why::BudgetSpent), next_window: Some(_), .. })
    });
    assert!(news.count() >= 3);
}

#[test]
fn f7_without_a_budget_no_debt_is_taken_on() {
    let mut config = recovering();
    config.recovery.budget_pct = 0.0;
    let (_, events) = run(&config, |scheduler, clock, out| {
        serve(tokens(0, 600), scheduler, clock, out);
        idle(1e3, scheduler, clock, out);
    });
    assert_eq!(taken(&events), [DebtTaken::Declined { why: Declined::NoBudget }]);
    assert!(slices(&events).is_empty());
}

#[test]
fn a_dense_request_owes_nothing_and_a_cancelled_one_is_not_asked() {
    let (_, events) = run(&recovering(), |scheduler, clock, out| {
        scheduler.submit(ask(tokens(0, 300), Some(false)), clock, out);
        while !scheduler.is_idle() {
            scheduler.step(clock, out);
        }
        let request = scheduler.submit(ask(tokens(1, 600), None), clock, out);
        for _ in 0..4 {
            scheduler.step(clock, out);
        }
        scheduler.cancel(request, clock, out);
    });
    assert_eq!(taken(&events), [DebtTaken::Declined { why: Declined::NotSparse }]);
}

#[test]
fn h1_a_job_has_no_drafter_no_reply_and_no_arrival() {
    let mut config = on_cpu();
    config.speculation.drafter = Some(DrafterKind::Mtp);
    let (_, events) = run(&config, |scheduler, clock, out| {
        scheduler.attach_speculation(SpeculationSide::new(None, config.clone()));
        serve(tokens(0, 600), scheduler, clock, out);
        idle(1e3, scheduler, clock, out);
        serve(tokens(0, 700), scheduler, clock, out);
    });
    let started = events.iter().filter(|event| matches!(event.body, Body::DrafterStarted(_)));
    assert_eq!(started.count(), 2, "one a request");
    let first_slice = events.iter().position(|event| matches!(event.body, Body::RecoverySlice(_))).unwrap();
    let last_slice = events.iter().rposition(|event| matches!(event.body, Body::RecoverySlice(_))).unwrap();
    for event in &events[first_slice..=last_slice] {
        assert!(
            matches!(
                event.body,
                Body::RecoverySlice(_)
                    | Body::Published(_)
                    | Body::RecoveryWaits { .. }
                    | Body::Retired { .. }
            ),
            "{event:?}"
        );
    }
}

#[test]
fn s2_a_job_that_is_dropped_gives_back_every_page_and_keeps_what_it_published() {
    type Drop<'d> = &'d dyn Fn(&mut Scheduler<'_>, &mut Clock, &mut Emitter);
    let off: Drop<'_> = &|scheduler, clock, out| scheduler.set_recovery(false, clock, out);
    let ended: Drop<'_> = &|scheduler, clock, out| scheduler.end_recovery(clock, out);
    let replaced: Drop<'_> = &|scheduler, clock, out| serve(tokens(9, 600), scheduler, clock, out);
    for drop in [off, ended, replaced] {
        run(&recovering(), |scheduler, clock, out| {
            serve(tokens(0, 900), scheduler, clock, out);
            while scheduler.job().unwrap().committed() < 3 * B as u64 {
                scheduler.background_step(None, clock, out);
            }
            scheduler.background_step(None, clock, out);
            assert!(scheduler.has_live());
            drop(scheduler, clock, out);
            assert!(!scheduler.has_live());
            assert_nothing_is_held(scheduler);
            assert_eq!(scheduler.cache_mut().restorable_prefix(&tokens(0, 900)), 3 * B);
        });
    }
}

#[test]
fn s3_where_recurrent_state_is_captured_nowhere_there_is_no_job() {
    let mut config = recovering();
    config.cache.snapshot_policy = SnapshotPolicy::None;
    let (_, events) = run(&config, |scheduler, clock, out| {
        serve(tokens(0, 600), scheduler, clock, out);
        idle(1e3, scheduler, clock, out);
    });
    assert_eq!(taken(&events), [DebtTaken::Declined { why: Declined::Unrestorable }]);
}

#[test]
fn s4_a_request_that_never_ran_leaves_nothing_that_keeps_a_job_from_running() {
    let (_, events) = run(&recovering(), |scheduler, clock, out| {
        serve(tokens(0, 600), scheduler, clock, out);
        scheduler.reject(ask(tokens(1, 10), None), "refused".to_owned(), clock, out);
        let request = scheduler.submit(ask(tokens(2, 100), None), clock, out);
        scheduler.cancel(request, clock, out);
        idle(1e3, scheduler, clock, out);
    });
    assert_eq!(ends(&events)[0].end, End::Complete);
}

#[test]
fn a_stale_page_under_a_job_ends_it_and_nothing_wrong_is_published() {
    let (_, events) = run(&recovering(), |scheduler, clock, out| {
        serve(tokens(0, 900), scheduler, clock, out);
        while scheduler.job().unwrap().committed() < 3 * B as u64 {
            scheduler.background_step(None, clock, out);
        }
        scheduler.inject(Fault::ChangeGeneration(1), &tokens(0, 900), clock);
        idle(1e3, scheduler, clock, out);
        scheduler.cache_mut().restorable_prefix(&tokens(0, 900))
    });
    let ended = ends(&events)[0];
    assert_eq!(ended.end, End::CacheReset, "{ended:?}");
}

#[test]
fn h3_an_arrival_on_one_engine_withdraws_the_grant_of_another_until_it_departs() {
    let neighbours = Neighbours::open(&RecoveryConfig::default());
    let other = neighbours.join();
    run_among(&recovering(), &neighbours, |scheduler, clock, out| {
        serve(tokens(0, 900), scheduler, clock, out);
        let step = |scheduler: &mut Scheduler<'_>, clock: &mut Clock, out: &mut Emitter| {
            scheduler.background_step(None, clock, out);
            scheduler.background_step(None, clock, out);
            scheduler.background_step(None, clock, out)
        };
        assert_eq!(step(scheduler, clock, out), Rest::No);
        let arrival = other.announce();
        assert!(matches!(step(scheduler, clock, out), Rest::For(_)));
        drop(arrival);
        assert_eq!(step(scheduler, clock, out), Rest::No);
        assert_eq!(other.present().total(), 0, "the job itself is no arrival");
    });
    assert_eq!(neighbours.arrivals().entries_held(), 0);
}

#[test]
fn the_engine_recovers_in_a_virtual_gap_and_takes_no_longer_for_it() {
    let mut config = recovering();
    config.cache.block_tokens = BLOCK;
    let run_with = |enabled| {
        let mut config = config.clone();
        config.recovery.enabled = enabled;
        let mut bench = Bench::start_on(config.clone(), session(5), move || model::load(&config).unwrap());
        bench.send(Command::Run { lane: A });
        bench.until_gate(Gate::Ended);
        bench.end()
    };
    let (events, ledger) = run_with(true);
    let (_, without) = run_with(false);
    let checkpoints =
        |ledger: &Ledger| ledger.requests().map(|r| r.checkpoint().unwrap()).collect::<Vec<_>>();
    assert!(checkpoints(&without).iter().all(|checkpoint| *checkpoint == 0));
    let checkpoints = checkpoints(&ledger);
    assert!(checkpoints.windows(2).all(|pair| pair[0] < pair[1]), "{checkpoints:?}");
    assert!(publications(&events).len() >= 4);
    // A gap lasts as long as without: arrivals are where they were, but for the layer that had to end.
    let requests: Vec<_> = ledger.requests().collect();
    for pair in requests.windows(2) {
        let ended = pair[0].arrived_at.0 + pair[0].took.unwrap().0;
        assert_eq!(pair[1].arrived_at.0 - ended, 10_000_000_000);
    }
}

#[test]
fn f27_an_engine_that_is_to_end_does_not_wait_for_a_slice() {
    let mut config = recovering();
    config.recovery.interruptible = false;
    config.recovery.slice_tokens = 4_096;
    config.cache.block_tokens = 1_024;
    config.sim.prefill_us_per_token = 20_000.0;
    config.specprefill.threshold = Some(20);
    config.replay.clock = ClockKind::Wall;
    config.replay.idle = crate::config::IdleConfig::Seconds(3_600.0);
    config.specprefill.keep = Some(0.01);
    let mut session = session(2);
    session.requests[0].idle = Nanos(0);
    session.requests[0].append = vec![Message::text(Role::User, "read the file and tell. ".repeat(700))];
    config.replay.idle = crate::config::IdleConfig::Word(crate::config::IdleWord::Recorded);
    session.requests[1].idle = Nanos::from_seconds(3_600.0);
    let mut bench = Bench::start_on(config.clone(), session, move || model::load(&config).unwrap());
    bench.send(Command::StepTurn { lane: A });
    bench.until(|event| matches!(event.body, Body::DebtConsidered(_)));
    bench.until_gate(Gate::BeforeTurn);
    // A slice of a block takes 20 s.
    std::thread::sleep(Duration::from_millis(300));
    let began = std::time::Instant::now();
    bench.send(Command::Shutdown);
    let ended = bench.until(|event| matches!(event.body, Body::RecoveryEnded(_)));
    assert!(matches!(&ended.body, Body::RecoveryEnded(ended) if ended.end == End::Cancelled));
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    bench.engine.join();
}

/// One of the things that can happen to a scheduler with a job.
#[derive(Debug, Clone)]
enum Op {
    Serve { history: usize, length: usize },
    Submit { history: usize, length: usize },
    Step(usize),
    Cancel(usize),
    Background(usize),
    Idle(u32),
    Foreign(bool),
    Lose(u32),
    DropSnapshot(u32),
    Stale(u32),
    EvictAll,
    Switch(bool),
}

fn op() -> impl Strategy<Value = Op> {
    let prompt = || (0usize..3, 20usize..700);
    prop_oneof![
        3 => prompt().prop_map(|(history, length)| Op::Serve { history, length }),
        2 => prompt().prop_map(|(history, length)| Op::Submit { history, length }),
        3 => (1usize..12).prop_map(Op::Step),
        1 => (0usize..4).prop_map(Op::Cancel),
        5 => (1usize..20).prop_map(Op::Background),
        3 => (1u32..60).prop_map(Op::Idle),
        1 => any::<bool>().prop_map(Op::Foreign),
        1 => (0u32..10).prop_map(Op::Lose),
        1 => (0u32..10).prop_map(Op::DropSnapshot),
        1 => (0u32..10).prop_map(Op::Stale),
        1 => Just(Op::EvictAll),
        1 => any::<bool>().prop_map(Op::Switch),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn any_order_of_arrivals_cancels_losses_and_slices_keeps_every_invariant(
        ops in proptest::collection::vec(op(), 1..60),
        slice_tokens in 5u64..200,
        terminal in any::<bool>(),
        budget_pct in prop::sample::select(vec![5.0, 40.0, 100.0]),
    ) {
        let mut config = recovering();
        config.recovery.slice_tokens = slice_tokens;
        config.recovery.mode = if terminal { Mode::Terminal } else { Mode::Progressive };
        (config.recovery.budget_pct, config.recovery.window_s) = (budget_pct, 5.0);
        let neighbours = Neighbours::open(&config.recovery);
        let other = neighbours.join();
        let (_, events) = run_among(&config, &neighbours, |scheduler, clock, out| {
            let mut foreign = None;
            let mut submitted = Vec::new();
            for op in &ops {
                match *op {
                    Op::Serve { history, length } => serve(tokens(history, length), scheduler, clock, out),
                    Op::Submit { history, length } => {
                        submitted.push(scheduler.submit(ask(tokens(history, length), None), clock, out));
                    }
                    Op::Step(steps) => {
                        for _ in 0..steps {
                            if !scheduler.is_idle() {
                                scheduler.step(clock, out);
                                assert!(!scheduler.has_live());
                            }
                        }
                    }
                    Op::Cancel(which) => {
                        if let Some(request) = submitted.get(which) {
                            scheduler.cancel(*request, clock, out);
                        }
                    }
                    Op::Background(steps) => {
                        for _ in 0..steps {
                            scheduler.background_step(None, clock, out);
                            if scheduler.is_idle() {
                                assert_sound(scheduler);
                            }
                        }
                    }
                    Op::Idle(tenths) if scheduler.is_idle() => {
                        idle(f64::from(tenths) / 10.0, scheduler, clock, out);
                    }
                    Op::Idle(_) => {}
                    Op::Foreign(present) => foreign = present.then(|| other.announce()),
                    Op::Lose(block) => {
                        scheduler.inject(Fault::EvictBlock(block), &tokens(0, 700), clock);
                    }
                    Op::DropSnapshot(block) => {
                        scheduler.inject(Fault::DropSnapshot(block), &tokens(0, 700), clock);
                    }
                    Op::Stale(block) => {
                        scheduler.inject(Fault::ChangeGeneration(block), &tokens(0, 700), clock);
                    }
                    Op::EvictAll => {
                        scheduler.lose_recovery(clock, out);
                        scheduler.evict_all(clock);
                    }
                    Op::Switch(on) => scheduler.set_recovery(on, clock, out),
                }
            }
            drop(foreign);
            while !scheduler.is_idle() {
                scheduler.step(clock, out);
            }
        });
        check_history(&events);
        prop_assert_eq!(neighbours.arrivals().entries_held(), 0);
    }
}

/// What the events say holds together: every job begins once and ends once, commits rise by publications that were found again and fall only where
/// that is told, and no slice is told while a request is there.
fn check_history(events: &[Event]) {
    let mut committed: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut open, mut present) = (None, 0);
    for event in events {
        match &event.body {
            Body::Arrived(_) => present += 1,
            Body::Finished { .. } | Body::Failed { .. } => present -= 1,
            Body::DebtConsidered(considered) => match considered.taken {
                DebtTaken::Began { job } | DebtTaken::Replaced { job, .. } => {
                    assert_eq!(open, None, "the one before has ended");
                    open = Some(job);
                    committed.insert(job.0, considered.canonical_tokens);
                }
                DebtTaken::Extended { job, .. } => {
                    assert_eq!(open, Some(job));
                    // Its own restore finds what others did; what they lost it takes note of.
                    let known = committed.get_mut(&job.0).unwrap();
                    *known = (*known).min(considered.canonical_tokens);
                }
                _ => {}
            },
            Body::RecoverySlice(slice) => {
                assert_eq!((open, present), (Some(slice.job), 0));
                assert!(slice.from <= slice.to && slice.to <= slice.wanted);
                assert_eq!(slice.gave_way.is_some(), slice.to < slice.wanted);
            }
            Body::Published(publication) => {
                assert_eq!((open, present), (Some(publication.job), 0));
                if publication.stored >= publication.boundary && publication.read_back >= publication.boundary
                {
                    assert_eq!(publication.committed, publication.boundary);
                    committed.insert(publication.job.0, publication.committed);
                } else {
                    assert_eq!(Some(&publication.committed), committed.get(&publication.job.0));
                }
            }
            Body::CommitLowered { job, from, to } => {
                assert_eq!(Some(from), committed.get(&job.0));
                assert!(to < from);
                committed.insert(job.0, *to);
            }
            Body::RecoveryEnded(ended) => {
                assert_eq!(open.take(), Some(ended.job));
                assert_eq!(committed.get(&ended.job.0), Some(&ended.committed));
                assert_eq!(ended.end == End::Complete, ended.committed == ended.target);
            }
            Body::Retired { job, .. } => assert_eq!(open, Some(*job)),
            _ => {}
        }
    }
    assert_eq!(open, None, "a job is left open");
    let recovered = |route: &Option<Route>| *route == Some(Route::Recovery);
    let told = events.iter().filter_map(|event| match &event.body {
        Body::Restored(restore) => Some(restore.blocks.iter().any(|block| recovered(&block.route))),
        _ => None,
    });
    if told.into_iter().any(|recovered| recovered) {
        assert!(events.iter().any(|event| matches!(event.body, Body::Published(_))));
    }
}

#[test]
fn a_command_that_only_asks_does_not_overtake_a_slice_and_one_that_serves_does() {
    let asked = Asked::default();
    let preview = Command::Preview { ticket: 1, lane: A, subject: Subject::Injection(Vec::new()) };
    asked.note(&preview);
    assert!(!asked.is_urgent());
    let run = Command::Run { lane: A };
    asked.note(&run);
    assert!(asked.is_urgent() && !asked.is_closing());
    asked.taken(&run);
    assert!(!asked.is_urgent());
    asked.note(&Command::Shutdown);
    assert!(asked.is_urgent() && asked.is_closing());
}

#[test]
fn f20_adoption_changes_what_a_request_is_shown_and_never_what_is_durable() {
    let run_with = |blocks: u64| {
        let mut config = recovering();
        config.recovery.adoption_blocks = blocks;
        let (state, events) = run(&config, |scheduler, clock, out| {
            for turn in 0..4 {
                serve(tokens(0, 400 + 150 * turn), scheduler, clock, out);
                idle(1e3, scheduler, clock, out);
            }
            held_state(scheduler)
        });
        let committed: Vec<u64> = publications(&events).iter().map(|p| p.committed).collect();
        let visible: Vec<u64> = publications(&events).iter().map(|p| p.visible).collect();
        (state, committed, visible, restored(&events), events)
    };
    let (state, committed, visible, checkpoints, _) = run_with(1);
    assert_eq!(visible, committed);
    assert_eq!(checkpoints, [0, 384, 512, 640]);
    for blocks in [4, 8] {
        let (grained, grained_committed, visible, checkpoints, events) = run_with(blocks);
        assert_eq!(state, grained, "the same is published");
        assert_eq!(committed, grained_committed);
        let grain = blocks * B as u64;
        assert!(visible.iter().all(|visible| visible % grain == 0));
        assert_eq!(checkpoints, [0, 384, 512, 640].map(|durable| durable / grain * grain));
        // Every token of the suffix has its reason all the same.
        for event in &events {
            if let Body::Restored(restore) = &event.body {
                let withheld: u64 = restore
                    .losses
                    .iter()
                    .filter(|loss| loss.cause == Cause::NotAdopted)
                    .map(|loss| loss.tokens)
                    .sum();
                let durable = restore.checkpoint_tokens + withheld;
                assert!([0, 384, 512, 640].contains(&durable), "{durable}");
            }
        }
    }
}

#[test]
fn what_is_withheld_counts_among_the_losses_which_add_up() {
    let mut config = recovering();
    config.recovery.adoption_blocks = 4;
    let (_, events) = run(&config, |scheduler, clock, out| {
        serve(tokens(0, 600), scheduler, clock, out);
        idle(1e3, scheduler, clock, out);
        serve(tokens(0, 640), scheduler, clock, out);
    });
    let restores: Vec<_> = events
        .iter()
        .filter_map(|event| match &event.body {
            Body::Restored(restore) => Some(restore),
            _ => None,
        })
        .collect();
    let second = restores[1];
    assert_eq!(second.checkpoint_tokens, 512);
    assert_eq!(second.losses.iter().map(|loss| loss.tokens).sum::<u64>(), 640 - 512);
    assert_eq!(second.cause, Cause::NotAdopted);
}

#[test]
fn h1b_a_request_after_a_job_is_primed_as_one_before_it() {
    let mut config = on_cpu();
    config.speculation.drafter = Some(DrafterKind::Mtp);
    let primed = |recovers: bool| {
        let (_, events) = run(&config, |scheduler, clock, out| {
            scheduler.attach_speculation(SpeculationSide::new(None, config.clone()));
            scheduler.set_recovery(recovers, clock, out);
            serve(tokens(0, 300), scheduler, clock, out);
            idle(1e3, scheduler, clock, out);
            serve(tokens(5, 300), scheduler, clock, out);
        });
        let started = events.iter().filter_map(|event| match &event.body {
            Body::DrafterStarted(start) => Some((start.drafter, start.primed_tokens, start.cached_tokens)),
            _ => None,
        });
        started.collect::<Vec<_>>()
    };
    assert_eq!(primed(true), primed(false));
}

#[test]
fn h2c_a_request_that_needs_the_memory_finds_live_state_gone_before_anything_is_evicted_for_it() {
    let (_, events) = run(&recovering(), |scheduler, clock, out| {
        serve(tokens(0, 900), scheduler, clock, out);
        for _ in 0..6 {
            scheduler.background_step(None, clock, out);
        }
        assert!(scheduler.has_live());
        let before = scheduler.cache_mut().evictions();
        scheduler.submit(ask(tokens(3, 2_000), Some(false)), clock, out);
        scheduler.step(clock, out);
        assert!(!scheduler.has_live());
        assert_eq!(scheduler.cache_mut().evictions(), before);
        while !scheduler.is_idle() {
            scheduler.step(clock, out);
        }
    });
    assert_eq!(retired(&events), [Why::ForegroundHere]);
    assert!(!events.iter().any(|event| matches!(event.body, Body::Failed { .. })));
}

#[test]
fn h2d_asking_whether_a_step_is_wanted_changes_nothing() {
    run(&recovering(), |scheduler, clock, out| {
        serve(tokens(0, 900), scheduler, clock, out);
        for _ in 0..6 {
            scheduler.background_step(None, clock, out);
        }
        let state = held_state(scheduler);
        let of = |scheduler: &Scheduler<'_>| {
            let job = scheduler.job().unwrap();
            (job.committed(), job.processed(), job.tally(), scheduler.has_live())
        };
        let before = of(scheduler);
        for _ in 0..1_000 {
            assert_eq!(scheduler.rest(clock), Rest::No);
        }
        assert_eq!((of(scheduler), held_state(scheduler)), (before, state));
    });
}

#[test]
fn f3_a_sparse_prefill_that_was_cut_short_leaves_no_positions_behind_for_a_slice() {
    let config = on_cpu();
    let (state, _) = run(&config, |scheduler, clock, out| {
        serve(tokens(0, 500), scheduler, clock, out);
        // Another sparse request ends in the middle of its prefill, and the job goes on right behind it.
        let request = scheduler.submit(ask(tokens(1, 900), None), clock, out);
        let mut steps = 0;
        while scheduler.stage_of(request) != Some("prefilling") && steps < 200 {
            scheduler.step(clock, out);
            steps += 1;
        }
        scheduler.step(clock, out);
        scheduler.cancel(request, clock, out);
        idle(1e3, scheduler, clock, out);
        assert_eq!(scheduler.cache_mut().restorable_prefix(&tokens(0, 500)), 448);
        held_state(scheduler)
    });
    let mut executor = model::load(&config).unwrap().executor;
    assert_recomputes(&mut *executor, &state);
}

#[test]
fn f16_nothing_of_the_scorers_state_survives_its_eviction() {
    let (_, events) = run(&recovering(), |scheduler, clock, out| {
        serve(tokens(0, 600), scheduler, clock, out);
        scheduler.evict_all(clock);
        serve(tokens(0, 700), scheduler, clock, out);
    });
    let scored = super::sparse::scored(&events);
    assert_eq!(scored.iter().map(|s| s.draft_cached_tokens).collect::<Vec<_>>(), [0, 0]);
}

#[test]
fn s1_background_work_stores_the_way_a_request_does() {
    let state = |recovers: bool| {
        run(&recovering(), |scheduler, clock, out| {
            match recovers {
                true => {
                    serve(tokens(0, 600), scheduler, clock, out);
                    idle(1e3, scheduler, clock, out);
                }
                false => {
                    scheduler.submit(ask(tokens(0, 600), Some(false)), clock, out);
                    while !scheduler.is_idle() {
                        scheduler.step(clock, out);
                    }
                }
            }
            let cache = scheduler.cache_mut();
            (cache.cached_blocks(), cache.cached_snapshots(), cache.used_pages(), cache.used_slots())
        })
        .0
    };
    assert_eq!(state(true), state(false), "the same blocks, each with one holder");
}
