//! What is published is what a dense run leaves, and stays.

use super::*;

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
fn s2_a_job_that_is_dropped_gives_back_every_page_and_keeps_what_it_published() {
    type Drop<'d> = &'d dyn Fn(&mut Scheduler<'_>, &mut Clock, &mut Emitter);
    let off: Drop<'_> = &|scheduler, clock, out| scheduler.set_recovery(false, clock, out);
    let ended: Drop<'_> = &|scheduler, clock, out| scheduler.end_recovery(End::Cancelled, clock, out);
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
