//! Tests of replays on paper.

use proptest::prelude::*;

use super::*;

const STEP: u64 = 1_000;

/// A cycle whose time goes by a curve.
fn cycle(first: u64, depth: u32, drafted: u32, accepted: u32) -> Cycle {
    let verify = Some(Nanos(STEP + 400 * u64::from(drafted)));
    Cycle {
        first,
        context_tokens: 100 + first,
        depth,
        drafted,
        tested: (accepted + 1).min(drafted),
        accepted,
        proposed: Vec::new(),
        draft: Nanos(50 * u64::from(drafted)),
        verify,
        sample: Nanos(0),
        rollback: Nanos(0),
        commit: Nanos(0),
        neighbours: 0,
        experts: None,
        audit: None,
    }
}

/// Cycles of a reply that accepts as many of `depth` drafted tokens as `accepted` says in turn, and its length.
fn reply(depth: u32, accepted: &[u32]) -> (Vec<Cycle>, u64) {
    let mut place = 1;
    let cycles = accepted.iter().map(|accepted| {
        let accepted = (*accepted).min(depth);
        let cycle = cycle(place, depth, depth, accepted);
        place += u64::from(accepted) + 1;
        cycle
    });
    let cycles: Vec<Cycle> = cycles.collect();
    (cycles, place)
}

fn paper(cycles: &[Cycle], tokens: u64) -> (Tape, CycleCosts) {
    (Tape::of(cycles, tokens).unwrap(), CycleCosts::of(cycles, None, Some(STEP as f64 / 1e9)).unwrap())
}

#[test]
fn a_tape_says_what_each_entry_rests_on() {
    // At 1 two of four, at 4 all of four, at 9 a parked step, at 10 nothing.
    let cycles = [cycle(1, 4, 4, 2), cycle(4, 4, 4, 4), cycle(10, 4, 4, 0)];
    let tape = Tape::of(&cycles, 12).unwrap();
    let at = |place: usize| (tape.places()[place].accepted, tape.places()[place].basis);
    assert_eq!(at(1), (2, Basis::Exact));
    assert_eq!((at(2), at(3)), ((1, Basis::Inferred), (0, Basis::Inferred)));
    assert_eq!(at(4).1, Basis::AtLeast);
    assert!(at(4).0 >= 4);
    assert_eq!(at(5), (at(4).0 - 1, Basis::Inferred));
    assert_eq!(at(9).1, Basis::Assumed);
    assert_eq!(at(10), (0, Basis::Exact));
    assert_eq!(at(11).1, Basis::Assumed);
    // What a drafter did not have it does not give on paper either.
    let short = Tape::of(&[cycle(1, 4, 2, 2)], 8).unwrap();
    assert_eq!((short.places()[1].offered, short.places()[1].basis), (Some(2), Basis::Exact));
    assert_eq!(short.outcome(1, 8), (2, 2));
}

#[test]
fn nothing_drafted_is_no_tape() {
    assert_eq!(Tape::of(&[], 10), None);
    assert_eq!(Tape::of(&[cycle(1, 0, 0, 0)], 10), None);
    assert_eq!(Tape::of(&[cycle(1, 4, 4, 4)], 1), None);
    assert_eq!(Tape::of(&[cycle(1, 4, 4, 4)], u64::MAX), None);
    assert_eq!(CycleCosts::of(&[cycle(1, 4, 4, 4)], None, None), None);
    assert_eq!(CycleCosts::of(&[cycle(1, 0, 0, 0)], None, None), None);
}

#[test]
fn what_was_recorded_is_reproduced() {
    let (cycles, tokens) = reply(3, &[3, 1, 0, 2, 3, 0, 0, 1, 3, 3]);
    let replies = [paper(&cycles, tokens)];
    let took: f64 = cycles.iter().map(|cycle| cycle.took().unwrap().seconds()).sum();
    for policy in [Policy::Recorded, Policy::Fixed(3)] {
        let again = replay(&replies, policy)[0];
        assert_eq!((again.cycles, again.tokens, again.parked_steps), (10, tokens - 1, 0));
        // At a reply's end there is no room for three: drafting fewer is cheaper.
        assert!((again.seconds / took - 1.0).abs() < 0.05, "{policy:?}: {} of {took}", again.seconds);
        assert!(again.exact_share().unwrap() > 0.9);
    }
    let dense = replay(&replies, Policy::Fixed(0))[0];
    assert_eq!((dense.tokens, dense.cycles, dense.speed_up()), (tokens - 1, tokens - 1, Some(1.0)));
}

#[test]
fn ordinary_steps_of_a_parked_sequence_are_no_cycles_on_paper() {
    let (mut cycles, _) = reply(2, &[2, 0, 0]);
    cycles.push(cycle(30, 2, 2, 1));
    let again = replay(&[paper(&cycles, 33)], Policy::Recorded)[0];
    assert_eq!(again.cycles, 4);
    // From place 6 to 29, and the last.
    assert_eq!((again.parked_steps, again.tokens), (25, 32));
}

#[test]
fn a_deeper_draft_than_was_recorded_is_assumed_to_go_on_as_the_run_did() {
    // Everything accepted: 8 tokens deep gives more on paper too, and says that it was not seen.
    let (cycles, tokens) = reply(4, &[4; 40]);
    let replies = [paper(&cycles, tokens)];
    let deeper = replay(&replies, Policy::Fixed(8))[0];
    assert!(deeper.tokens_per_cycle().unwrap() > 7.0, "{deeper:?}");
    assert!(deeper.exact_share().unwrap() < 0.2 && !deeper.measured);
    // Two of four each: nothing comes of depth.
    let (cycles, tokens) = reply(4, &[2; 40]);
    let replies = [paper(&cycles, tokens)];
    assert_eq!(replay(&replies, Policy::Fixed(8))[0].tokens_per_cycle(), Some(3.0));
    let oracle = replay(&replies, Policy::Oracle)[0];
    assert_eq!(oracle.tokens_per_cycle(), Some(3.0));
    let best = replay(&replies, Policy::Fixed(2))[0];
    assert!((oracle.seconds - best.seconds).abs() < 1e-12);
}

#[test]
fn an_adaptive_controller_carries_over_what_it_learned() {
    let (cycles, tokens) = reply(4, &[4; 30]);
    let replies = [paper(&cycles, tokens), paper(&cycles, tokens)];
    let adaptive = replay(&replies, Policy::Adaptive { depth_max: 4 });
    assert!(adaptive[1].seconds < adaptive[0].seconds);
    assert!(adaptive[1].speed_up().unwrap() > 1.5);
}

#[test]
fn a_curve_fills_in_what_no_cycle_measured() {
    let cycles = [cycle(1, 2, 2, 1), cycle(3, 2, 2, 0)];
    let points = (1..=8).map(|width| (width, Nanos(2 * (STEP + 400 * u64::from(width - 1))))).collect();
    let curve = VerifyCurve { context_tokens: 100, points, repeats: 3 };
    let costs = CycleCosts::of(&cycles, Some(&curve), Some(1e-6)).unwrap();
    // The machine was half as fast when the curve was measured.
    for drafted in 0..8 {
        let expected = 1.0 + 0.45 * f64::from(drafted);
        assert!(
            (costs.dense_steps(drafted) - expected).abs() < 1e-9,
            "{drafted}: {}",
            costs.dense_steps(drafted)
        );
        // Only what cycles of the run took is measured.
        assert_eq!(costs.is_measured(drafted), [0, 2].contains(&drafted));
    }
    assert!(!costs.is_measured(8));
    // What cycles take to sample, roll back and commit is no part of a forward, and comes on top of the curve's.
    let cycles = [Cycle { sample: Nanos(20), rollback: Nanos(70), commit: Nanos(10), ..cycle(1, 2, 2, 1) }];
    let costs = CycleCosts::of(&cycles, Some(&curve), Some(1e-6)).unwrap();
    assert!((costs.dense_steps(4) - (1.0 + 0.45 * 4.0 + 0.1)).abs() < 1e-9, "{}", costs.dense_steps(4));
}

use crate::event::VerifyCurve;

proptest! {
    #[test]
    fn nobody_is_faster_than_the_oracle(
        depth in 1u32..6,
        accepted in proptest::collection::vec(0u32..7, 1..60),
        parked in 0u64..30,
        costs in proptest::collection::vec(1u64..5_000, 17),
    ) {
        let (mut cycles, tokens) = reply(depth, &accepted);
        for cycle in &mut cycles {
            cycle.verify = Some(Nanos(costs[cycle.drafted as usize]));
        }
        let replies = [paper(&cycles, tokens + parked)];
        let oracle = replay(&replies, Policy::Oracle)[0];
        prop_assert_eq!(oracle.tokens, tokens + parked - 1);
        let policies = (0..=8).map(Policy::Fixed).chain([Policy::Recorded, Policy::Adaptive { depth_max: depth }]);
        for policy in policies {
            let other = replay(&replies, policy)[0];
            prop_assert_eq!(other.tokens, oracle.tokens);
            prop_assert!(oracle.seconds <= other.seconds * (1.0 + 1e-12), "{policy:?}");
            prop_assert!(other.seen >= other.exact && other.cycles >= other.seen);
        }
    }

    #[test]
    fn recordings_that_cannot_be_are_borne(
        cycles in proptest::collection::vec((any::<u64>(), any::<u32>(), any::<u32>(), any::<u32>()), 0..20),
        output_tokens in 0u64..100,
    ) {
        let cycles: Vec<Cycle> = cycles
            .into_iter()
            .map(|(first, depth, drafted, accepted)| Cycle {
                depth,
                drafted,
                accepted,
                ..cycle(first % 120, 1, 1, 0)
            })
            .collect();
        let Some(tape) = Tape::of(&cycles, output_tokens) else { return Ok(()) };
        let Some(costs) = CycleCosts::of(&cycles, None, Some(1e-6)) else { return Ok(()) };
        for policy in [Policy::Recorded, Policy::Fixed(4), Policy::Oracle, Policy::Adaptive { depth_max: 4 }] {
            let again = replay(&[(tape.clone(), costs.clone())], policy)[0];
            prop_assert_eq!(again.tokens, output_tokens - 1);
        }
    }
}
