//! Whoever comes goes first: arrivals, budget, the end of the engine.

use super::*;

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
