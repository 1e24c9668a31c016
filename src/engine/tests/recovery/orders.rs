//! Any order of arrivals, cancels, losses and slices.

use super::*;

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
                        scheduler.end_recovery(End::CacheReset, clock, out);
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
