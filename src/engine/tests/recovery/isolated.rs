//! Which debt is taken on, and what a job has nothing of.

use super::*;

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
fn f16_nothing_of_the_scorers_state_survives_its_eviction() {
    let (_, events) = run(&recovering(), |scheduler, clock, out| {
        serve(tokens(0, 600), scheduler, clock, out);
        scheduler.evict_all(clock);
        serve(tokens(0, 700), scheduler, clock, out);
    });
    let scored = crate::engine::tests::sparse::scored(&events);
    assert_eq!(scored.iter().map(|s| s.draft_cached_tokens).collect::<Vec<_>>(), [0, 0]);
}
