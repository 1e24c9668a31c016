//! Requests that make way where there is no room for all: what is told of it, and that the replies know nothing of it.

use std::collections::BTreeMap;

use super::hybrid::{replies, restores};
use super::memory::{Cost, NOTHING, Short, Want, failed, grounds, on, prompt};
use super::*;
use crate::cache::tier::Tuning;
use crate::device::Span;

/// Ground with room for so many pages beside the slots, on attention layers only or on a hybrid.
pub(super) fn tight(scheduling: SchedulerConfig, pages: usize, hybrid: bool) -> Ground {
    let sequences = scheduling.max_sequences;
    let slots = if hybrid { sequences + pages / 3 } else { 0 };
    let budget = Budget {
        limit_bytes: (pages + slots) as u64,
        page_bytes: 1,
        slot_bytes: u64::from(hybrid),
        sequences,
        context_pages: usize::MAX,
        device: DeviceLimits::default(),
    };
    Ground::of(scheduling, SnapshotPolicy::EVERY, BLOCK, budget)
}

pub(super) fn scheduling(max_sequences: usize, chunk_tokens: usize) -> SchedulerConfig {
    SchedulerConfig { max_sequences, chunk_tokens, ..SchedulerConfig::default() }
}

/// How often each request made way.
pub(super) fn preemptions(events: &[Event]) -> BTreeMap<RequestId, usize> {
    let mut times = BTreeMap::new();
    for event in events.iter().filter(|event| matches!(event.body, Body::Preempted { .. })) {
        *times.entry(event.request.unwrap()).or_default() += 1;
    }
    times
}

/// Three requests whose replies grow until there is no room for all of them.
fn three(scheduler: &mut Scheduler<'_>, clock: &mut Clock, out: &mut Emitter) {
    for (seed, tokens) in [(0, 250), (1, 300), (2, 200)] {
        let mut request = submission(prompt(seed, tokens), 150);
        request.sampling = Sampling { temperature: 0.8, seed: u64::from(seed), ..Sampling::default() };
        scheduler.submit(request, clock, out);
    }
}

fn without_times(mut restore: crate::event::Restore) -> crate::event::Restore {
    restore.took = Nanos(0);
    restore
}

#[test]
fn whoever_makes_way_says_what_it_would_have_said() {
    for hybrid in [false, true] {
        let roomy = on(&tight(scheduling(3, 100), 200, hybrid), NOTHING, three);
        assert_eq!(preemptions(&roomy), BTreeMap::new());
        for pages in [9, 11, 14] {
            let cramped = on(&tight(scheduling(3, 100), pages, hybrid), NOTHING, three);
            assert_eq!(failed(&cramped), [], "{pages} pages");
            assert_eq!(replies(&cramped), replies(&roomy));
            assert_eq!(texts(&cramped), texts(&roomy));
            let times = preemptions(&cramped);
            assert!(
                !times.is_empty() && !times.contains_key(&RequestId(1)),
                "the oldest never does: {times:?}"
            );
        }
    }
}

#[test]
fn f19_what_a_request_was_admitted_with_is_told_once_and_not_changed_by_its_own_progress() {
    for hybrid in [false, true] {
        let roomy = on(&tight(scheduling(3, 100), 200, hybrid), NOTHING, three);
        let cramped = on(&tight(scheduling(3, 100), 10, hybrid), NOTHING, three);
        let first = |events: &[Event], id: u64| {
            let of = events.iter().filter(|event| event.request == Some(RequestId(id)));
            let told: Vec<&Body> = of.map(|event| &event.body).collect();
            let count = |is: fn(&Body) -> bool| told.iter().filter(|body| is(body)).count();
            assert_eq!(count(|body| matches!(body, Body::Admitted { .. })), 1);
            assert_eq!(count(|body| matches!(body, Body::Restored(_))), 1);
            assert_eq!(count(|body| matches!(body, Body::Routed { .. })), 1);
            assert_eq!(count(|body| matches!(body, Body::Prefilled { .. })), 1);
            let restored = told.iter().find_map(|body| match body {
                Body::Restored(restore) => Some(without_times((**restore).clone())),
                _ => None,
            });
            restored.unwrap()
        };
        let ledger = |events: &[Event]| {
            let mut ledger = Ledger::new();
            events.iter().for_each(|event| ledger.apply(event));
            ledger
        };
        let (told, expected) = (ledger(&cramped), ledger(&roomy));
        for id in 1..=3 {
            let (restored, unharmed) = (first(&cramped, id), first(&roomy, id));
            assert_eq!(restored.checkpoint_tokens, unharmed.checkpoint_tokens);
            assert_eq!(restored.losses, unharmed.losses);
            let (request, of_roomy) =
                (told.request(RequestId(id)).unwrap(), expected.request(RequestId(id)).unwrap());
            assert_eq!(request.uncached_suffix, of_roomy.uncached_suffix);
            assert_eq!(request.computed_tokens, of_roomy.computed_tokens);
            assert_eq!(request.checkpoint(), of_roomy.checkpoint());
            assert_eq!(request.output_sha256, of_roomy.output_sha256);
            assert_eq!(
                request.preemptions as usize,
                preemptions(&cramped).get(&RequestId(id)).copied().unwrap_or(0)
            );
        }
        assert!(told.requests().any(|request| request.preemptions > 0));
        let mut done: BTreeMap<_, u64> = BTreeMap::new();
        for event in &cramped {
            if let Body::PrefillProgress { done: now, total, .. } = event.body {
                let before = done.insert(event.request, now).unwrap_or(0);
                assert!(
                    before < now && now <= total,
                    "progress is of what is new: {before} to {now} of {total}"
                );
            }
        }
    }
}

#[test]
fn whoever_was_resumed_gets_somewhere_before_it_makes_way_again() {
    for hybrid in [false, true] {
        for (pages, chunk_tokens, step_tokens) in [(9, 100, None), (11, 7, None), (10, 40, Some(16))] {
            let ground = tight(SchedulerConfig { step_tokens, ..scheduling(3, chunk_tokens) }, pages, hybrid);
            let mut stood: BTreeMap<RequestId, (usize, usize)> = BTreeMap::new();
            let mut resumptions = 0;
            ground.run(|scheduler, clock, out| {
                three(scheduler, clock, out);
                let mut before = scheduler.standings();
                while !scheduler.is_idle() {
                    scheduler.step(clock, out);
                    let now = scheduler.standings();
                    for (id, (computed, output)) in &now {
                        if !before.contains_key(id) {
                            resumptions += usize::from(*output > 0);
                            stood.insert(*id, (*computed, *output));
                        }
                    }
                    for (id, (computed, output)) in &before {
                        let waits = !now.contains_key(id) && scheduler.waiting().contains(id);
                        if let Some((at, said)) = stood.get(id).filter(|_| waits) {
                            assert!(
                                *output > *said || *computed >= at + BLOCK || *said == 0,
                                "{id:?} got nowhere"
                            );
                        }
                    }
                    before = now;
                }
            });
            assert!(resumptions > 0, "{pages} pages");
        }
    }
}

#[test]
fn what_a_preemption_costs_is_told() {
    let events = on(&tight(scheduling(3, 100), 10, false), NOTHING, three);
    let mut lost: BTreeMap<RequestId, u64> = BTreeMap::new();
    for event in &events {
        match event.body {
            Body::Preempted { tokens_lost, .. } => {
                assert!(tokens_lost < BLOCK as u64, "attention state is kept by whole blocks: {tokens_lost}");
                lost.insert(event.request.unwrap(), tokens_lost);
            }
            Body::Resumed { restored_tokens, to_compute_tokens } => {
                assert!(restored_tokens.is_multiple_of(BLOCK as u64));
                // What the others evicted meanwhile comes on top.
                assert!(to_compute_tokens >= lost[&event.request.unwrap()]);
            }
            _ => {}
        }
    }
    assert!(!lost.is_empty());
}

#[test]
fn a_request_that_is_cancelled_while_it_waits_to_be_resumed_ends_with_the_reply_so_far() {
    for hybrid in [false, true] {
        let roomy = on(&tight(scheduling(3, 100), 200, hybrid), NOTHING, three);
        let mut cancelled = None;
        let cramped = on(&tight(scheduling(3, 100), 10, hybrid), NOTHING, |scheduler, clock, out| {
            three(scheduler, clock, out);
            let mut said = BTreeMap::new();
            while !scheduler.is_idle() && cancelled.is_none() {
                scheduler.step(clock, out);
                said.extend(scheduler.standings());
                let waits = |id: &RequestId| scheduler.waiting().contains(id);
                let preempted = said.iter().find(|(id, (_, output))| *output > 1 && waits(id));
                if let Some((id, (_, output))) = preempted.map(|(id, stood)| (*id, *stood)) {
                    let ended = scheduler.cancel(id, clock, out).unwrap();
                    let served = ended.served.as_ref().unwrap();
                    assert_eq!(served.tokens.len(), served.prompt_tokens + output - 1, "all it had computed");
                    cancelled = Some((id, output, ended.text));
                }
            }
        });
        let (id, output, text) = cancelled.expect("one made way");
        let (said, expected) = (&replies(&cramped)[&id], &replies(&roomy)[&id]);
        assert_eq!((said.len(), &said[..]), (output, &expected[..output]));
        let whole = texts(&roomy).into_iter().find(|(of, _)| *of == id).unwrap().1;
        assert!(!text.is_empty() && whole.starts_with(text.trim_end_matches('\u{fffd}')));
        let finished = cramped
            .iter()
            .filter(|event| event.request == Some(id))
            .filter(|event| matches!(event.body, Body::Finished { reason: FinishReason::Cancelled, .. }));
        assert_eq!(finished.count(), 1);
        assert_eq!(failed(&cramped), []);
    }
}

#[test]
fn a_batch_whose_state_was_overwritten_is_computed_again_one_after_another() {
    let work = |scheduler: &mut Scheduler<'_>, clock: &mut Clock, out: &mut Emitter| {
        for (seed, tokens) in [(0, 20), (1, 300), (2, 150)] {
            scheduler.submit(submission(prompt(seed, tokens), 9), clock, out);
        }
    };
    for (ground, hybrid) in grounds(3).into_iter().zip([false, true]) {
        let roomy = on(&ground, NOTHING, work);
        let refuses = |spans: &[Span<'_>]| spans.len() > 1 && spans.iter().any(|span| span.tokens.len() > 1);
        let midway = on(&ground, Want { refuses, cost: Cost::Written, ..NOTHING }, work);
        assert_eq!(failed(&midway), []);
        assert_eq!(replies(&midway), replies(&roomy));
        assert_eq!(preemptions(&midway).is_empty(), !hybrid, "only a hybrid's slots are overwritten");
    }
}

#[test]
fn a_batch_budget_changes_when_tokens_are_computed_and_nothing_else() {
    let run = |step_tokens| {
        let ground = tight(SchedulerConfig { step_tokens, ..scheduling(3, 100) }, 200, false);
        on(&ground, NOTHING, three)
    };
    let (plain, budgeted) = (run(None), run(Some(24)));
    assert_eq!(replies(&plain), replies(&budgeted));
    let chunks = |events: &[Event]| {
        events.iter().filter(|event| matches!(event.body, Body::PrefillProgress { .. })).count()
    };
    assert!(chunks(&budgeted) > 2 * chunks(&plain));
}

#[test]
fn a_preempted_request_finds_on_disk_what_ram_had_no_room_for() {
    let dir = tempfile::tempdir().unwrap();
    let tier = TierGround { dir: dir.path().to_owned(), limit_bytes: 1 << 30, tuning: Tuning::default() };
    let ground = Ground { tier: Some(tier), ..tight(scheduling(3, 100), 10, false) };
    let roomy = on(&tight(scheduling(3, 100), 200, false), NOTHING, three);
    let mut config = config();
    config.sim.snapshot_bytes = 0;
    let ((), cramped) = ground.run_on(Short::around(loaded(&config), NOTHING), |scheduler, clock, out| {
        three(scheduler, clock, out);
        drain(scheduler, clock, out);
    });
    assert_eq!(replies(&cramped), replies(&roomy));
    assert!(!preemptions(&cramped).is_empty());
    let resumed = cramped.iter().filter_map(|event| match event.body {
        Body::Resumed { restored_tokens, .. } => Some(restored_tokens),
        _ => None,
    });
    assert!(resumed.max() > Some(0));
    assert!(restores(&cramped).iter().all(|restore| restore.checkpoint_tokens == 0));
}
