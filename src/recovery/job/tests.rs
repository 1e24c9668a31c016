//! Tests of the job against a cache that is a number of restorable tokens, and against itself under another grain of slices.

use proptest::prelude::*;

use super::*;

const BLOCK: u64 = 256;

fn candidate(tokens: u64, canonical: u64) -> Candidate {
    history(0, tokens, canonical)
}

/// A prompt of `tokens` tokens of history `of`; longer ones of a history go on with shorter ones.
fn history(of: u32, tokens: u64, canonical: u64) -> Candidate {
    let prompt = (0..tokens as u32).map(|token| token ^ (of << 24)).collect();
    Candidate { request: RequestId(tokens), prompt, route: Route::Sparse, canonical }
}

fn job(tokens: u64, canonical: u64) -> Job {
    Job::of(&candidate(tokens, canonical), Mode::Progressive, BLOCK, true).unwrap()
}

/// Runs a job to its end by slices of `slice` tokens. Gives the boundaries it published, and the slices.
fn run(job: &mut Job, slice: u64) -> (Vec<u64>, Vec<Range<u64>>) {
    let (mut boundaries, mut slices) = (Vec::new(), Vec::new());
    job.build(job.committed());
    while let Some(range) = job.next_slice(slice) {
        slices.push(range.clone());
        job.computed(range.end, Nanos(1));
        if let Some(boundary) = job.due() {
            job.published(boundary, boundary, boundary).unwrap();
            boundaries.push(boundary);
        }
    }
    (boundaries, slices)
}

#[test]
fn h6_a_prompt_of_exactly_n_blocks_recovers_n() {
    for (tokens, blocks) in
        [(BLOCK, 1), (2 * BLOCK, 2), (2 * BLOCK + 1, 2), (2 * BLOCK + 77, 2), (3 * BLOCK - 1, 2)]
    {
        let mut job = job(tokens, 0);
        assert_eq!(job.target(), blocks * BLOCK, "{tokens}");
        let (boundaries, _) = run(&mut job, 100);
        assert_eq!(boundaries.last(), Some(&(blocks * BLOCK)));
        assert!(job.is_complete());
    }
    assert_eq!(
        Job::of(&candidate(BLOCK - 1, 0), Mode::Progressive, BLOCK, true).unwrap_err(),
        Declined::NothingOwed
    );
}

#[test]
fn f4_boundaries_are_the_same_in_the_same_order_whatever_the_slice() {
    let expected: Vec<u64> = (1..=9).map(|block| block * BLOCK).collect();
    for slice in [1, 77, 255, 256, 512, 1_024, 2_048, 4_096] {
        let mut job = job(9 * BLOCK + 100, 0);
        let (boundaries, slices) = run(&mut job, slice);
        assert_eq!(boundaries, expected, "{slice}");
        assert!(
            slices
                .iter()
                .all(|range| range.end - range.start <= slice
                    && range.start / BLOCK == (range.end - 1) / BLOCK)
        );
        assert_eq!((job.tally().computed, job.tally().computed_again), (9 * BLOCK, 0));
    }
}

#[test]
fn a_terminal_job_publishes_all_at_once_when_all_is_computed() {
    let mut job = Job::of(&candidate(3 * BLOCK, 0), Mode::Terminal, BLOCK, true).unwrap();
    assert_eq!(run(&mut job, 256).0, [3 * BLOCK]);
}

#[test]
fn a_debt_that_is_none_is_declined_by_name() {
    let of =
        |candidate: Candidate, budget| Job::of(&candidate, Mode::Progressive, BLOCK, budget).unwrap_err();
    for route in [Route::Dense, Route::CacheHit] {
        assert_eq!(of(Candidate { route, ..candidate(2_000, 0) }, true), Declined::NotSparse);
    }
    assert_eq!(of(candidate(2_000, 0), false), Declined::NoBudget);
    assert_eq!(of(candidate(2_000, 7 * BLOCK), true), Declined::NothingOwed);
}

#[test]
fn f6_a_finished_job_has_no_slice_left() {
    let mut place = Place::default();
    assert!(matches!(place.take(&candidate(600, 0), Mode::Progressive, BLOCK, true), Taken::Began));
    run(place.job_mut().unwrap(), 256);
    assert!(!place.is_runnable());
    let job = place.job_mut().unwrap();
    job.build(512);
    assert_eq!((job.next_slice(256), job.due()), (None, None));
}

#[test]
fn h5_the_watermark_may_move_down_to_whole_blocks_and_up_by_a_publication_only() {
    let mut job = job(20 * BLOCK, 0);
    run(&mut job, 256);
    assert_eq!(job.committed(), 20 * BLOCK);
    job.retire(Why::Arrival);
    job.ground(Some(5 * BLOCK + 100));
    assert_eq!(job.committed(), 5 * BLOCK);
    job.ground(Some(9 * BLOCK));
    assert_eq!(job.committed(), 5 * BLOCK, "more on disk is no publication");
    job.build(5 * BLOCK);
    assert_eq!(job.next_slice(1_000), Some(5 * BLOCK..6 * BLOCK));
    assert_eq!(job.due(), None);
}

#[test]
fn h5b_a_zero_from_a_model_that_cannot_say_lowers_nothing() {
    let mut job = job(4 * BLOCK, 0);
    run(&mut job, 256);
    job.ground(None);
    assert_eq!(job.committed(), 4 * BLOCK);
    job.ground(Some(0));
    assert_eq!(job.committed(), 0);
}

#[test]
fn f1_a_store_that_reports_success_is_no_evidence() {
    let begun = || {
        let mut job = job(4 * BLOCK, 0);
        job.build(0);
        job.computed(BLOCK, Nanos(1));
        job
    };
    assert_eq!(begun().published(BLOCK, BLOCK, BLOCK - 1), Err(End::ReadBackShort));
    assert_eq!(begun().published(BLOCK, 0, BLOCK), Err(End::StoreFailed));
    // Nor is a boundary that live state does not stand at.
    assert_eq!(begun().published(2 * BLOCK, 2 * BLOCK, 2 * BLOCK), Err(End::StoreFailed));
    let mut failed = begun();
    failed.published(BLOCK, BLOCK, 0).unwrap_err();
    assert_eq!((failed.committed(), failed.tally().publications), (0, 0));
}

#[test]
fn h2_live_state_is_disposable_and_what_is_published_is_not() {
    let mut job = job(4 * BLOCK, 0);
    job.build(0);
    for end in [256, 356, 456] {
        job.computed(end, Nanos(10));
        if let Some(boundary) = job.due() {
            job.published(boundary, boundary, boundary).unwrap();
        }
    }
    assert_eq!((job.committed(), job.processed()), (256, 456));
    job.retire(Why::BudgetSpent);
    assert_eq!((job.committed(), job.processed(), job.is_live()), (256, 256, false));
    assert_eq!(job.next_slice(100), None, "nothing is live");
    job.build(256);
    job.computed(512, Nanos(10));
    let tally = job.tally();
    assert_eq!((tally.computed, tally.computed_again, tally.retired), (712, 200, 1));
}

#[test]
fn a_slice_that_was_interrupted_costs_time_and_counts_for_nothing() {
    let mut job = job(2 * BLOCK, 0);
    job.build(0);
    job.computed(100, Nanos(5));
    job.computed(100, Nanos(7));
    assert_eq!((job.processed(), job.tally().computed, job.tally().service), (100, 100, Nanos(12)));
    assert_eq!(job.next_slice(1_000), Some(100..256));
}

#[test]
fn h7_another_history_replaces_a_longer_prompt_extends_and_nothing_queues() {
    let mut place = Place::default();
    let mut take = |candidate: &Candidate| place.take(candidate, Mode::Progressive, BLOCK, true);
    assert!(matches!(take(&history(1, 1_000, 0)), Taken::Began));
    assert!(matches!(take(&history(1, 1_600, 256)), Taken::Extended { from: 768 }));
    // A request that is repeated, or a shorter one of the same history, changes nothing.
    assert!(matches!(take(&history(1, 1_600, 256)), Taken::Extended { from: 1_536 }));
    assert!(matches!(take(&history(1, 900, 256)), Taken::Covered));
    let Taken::Replaced(old) = take(&history(2, 800, 0)) else { panic!("another history") };
    assert_eq!((old.target(), old.committed()), (1_536, 0));
    for of in 3..40 {
        assert!(matches!(take(&history(of, 800, 0)), Taken::Replaced(_)));
    }
    let last = place.end().unwrap();
    assert_eq!(last.request(), RequestId(800));
    assert!(place.job().is_none() && !place.is_runnable());
}

#[test]
fn f23_what_was_generated_is_no_part_of_it() {
    // The next prompt renders the reply in its own way; the history is that of the prompts.
    let mut place = Place::default();
    place.take(&history(1, 1_000, 0), Mode::Progressive, BLOCK, true);
    let mut next = history(1, 1_000, 0);
    next.prompt = next.prompt.iter().copied().chain([7; 500]).collect();
    assert!(matches!(place.take(&next, Mode::Progressive, BLOCK, true), Taken::Extended { from: 768 }));
    assert_eq!(place.job().unwrap().tokens().len(), 1_280);
}

/// What happens to a job.
#[derive(Debug, Clone)]
enum Event {
    Request { of: u32, tokens: u64 },
    Slice { tokens: u64 },
    Interrupted,
    Retire,
    Evict { to: u64 },
    StoreFails,
    ReadBackShort,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0u32..2, 1u64..4_000).prop_map(|(of, tokens)| Event::Request { of, tokens }),
        12 => (1u64..700).prop_map(|tokens| Event::Slice { tokens }),
        2 => Just(Event::Interrupted),
        2 => Just(Event::Retire),
        1 => (0u64..4_000).prop_map(|to| Event::Evict { to }),
        1 => Just(Event::StoreFails),
        1 => Just(Event::ReadBackShort),
    ]
}

/// The cache, as far as a job sees it: leading tokens of a history that a restore finds, in whole blocks.
#[derive(Default)]
struct Cache {
    restorable: [u64; 2],
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn counts_hold_under_any_order_of_requests_slices_evictions_and_faults(events in proptest::collection::vec(event(), 1..200)) {
        let (mut place, mut cache, mut of) = (Place::default(), Cache::default(), 0usize);
        for event in events {
            // The job that this event finds, until another takes its place.
            let mut before = place.job().cloned();
            match event {
                Event::Request { of: history_of, tokens } => {
                    let canonical = cache.restorable[history_of as usize].min(tokens / BLOCK * BLOCK);
                    let taken = place.take(&history(history_of, tokens, canonical), Mode::Progressive, BLOCK, true);
                    match taken {
                        Taken::Began | Taken::Replaced(_) => (of, before) = (history_of as usize, None),
                        Taken::Extended { from } => {
                            prop_assert_eq!(of, history_of as usize);
                            prop_assert!(place.job().unwrap().target() >= from);
                        }
                        Taken::Covered => prop_assert_eq!(of, history_of as usize),
                        Taken::Declined(_) => prop_assert_eq!(place.job().map(Job::committed), before.as_ref().map(Job::committed)),
                    }
                }
                Event::Slice { tokens } => {
                    let Some(job) = place.job_mut() else { continue };
                    if !job.is_live() {
                        job.build(cache.restorable[of].min(job.target()));
                    }
                    if let Some(range) = job.next_slice(tokens) {
                        prop_assert!(range.start < range.end && range.end - range.start <= tokens && range.end <= job.target());
                        prop_assert_eq!(range.start, job.processed());
                        job.computed(range.end, Nanos(1));
                    }
                    if let Some(boundary) = job.due() {
                        cache.restorable[of] = cache.restorable[of].max(boundary);
                        prop_assert!(job.published(boundary, boundary, cache.restorable[of]).is_ok());
                    }
                }
                Event::Interrupted => {
                    if let Some(job) = place.job_mut() {
                        job.computed(job.processed(), Nanos(1));
                    }
                }
                Event::Retire => {
                    if let Some(job) = place.job_mut() {
                        job.retire(Why::Arrival);
                    }
                }
                Event::Evict { to } => {
                    cache.restorable = cache.restorable.map(|tokens| tokens.min(to / BLOCK * BLOCK));
                    if let Some(job) = place.job_mut() {
                        job.ground(Some(cache.restorable[of]));
                    }
                }
                Event::StoreFails | Event::ReadBackShort => {
                    let Some(job) = place.job_mut() else { continue };
                    let Some(boundary) = job.due() else { continue };
                    let short = matches!(event, Event::ReadBackShort);
                    let stored = if short { boundary } else { 0 };
                    prop_assert!(job.published(boundary, stored, 0).is_err());
                    place.end();
                }
            }
            let Some(job) = place.job() else { continue };
            prop_assert!(job.committed() <= cache.restorable[of], "committed beyond what a restore finds");
            prop_assert!(job.committed().is_multiple_of(BLOCK) && job.target().is_multiple_of(BLOCK));
            prop_assert!(job.committed() <= job.target() && job.processed() <= job.target());
            prop_assert!(job.tally().computed_again <= job.tally().computed);
            if let Some(before) = before {
                let rose = job.committed() > before.committed();
                prop_assert!(!rose || job.tally().publications > before.tally().publications);
            }
        }
    }
}
