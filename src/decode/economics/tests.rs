//! Tests of the accounting.

use proptest::prelude::*;

use super::*;

fn counted(cycles: &[(u32, u32, u32)], output_tokens: u64) -> Counters {
    let mut counters = Counters { output_tokens, replies: 1, ..Counters::default() };
    for (drafted, tested, accepted) in cycles {
        counters.count(*drafted, *tested, *accepted);
    }
    counters
}

#[test]
fn a_reply_is_accounted_by_hand() {
    // Three cycles of depth 3: all accepted, the second rejected, the first rejected; a zero cycle; two tokens of ordinary steps.
    let counters = counted(&[(3, 3, 3), (3, 2, 1), (3, 1, 0), (0, 0, 0)], 10);
    assert_eq!((counters.drafted, counters.tested, counters.accepted), (9, 6, 4));
    assert_eq!((counters.cycles, counters.zero_cycles), (4, 1));
    assert_eq!(counters.tokens_per_cycle(), Some(2.0));
    assert_eq!(counters.share(), Some(0.8));
    assert_eq!(counters.accepted_of_tested(), Some(4.0 / 6.0));
    assert_eq!(counters.accepted_of_drafted(), Some(4.0 / 9.0));
    let positions: Vec<_> = counters.positions.iter().map(|p| (p.tested, p.accepted)).collect();
    assert_eq!(positions, [(3, 2), (2, 1), (1, 1)]);
    assert_eq!(counters.positions[1].hazard(), Some(0.5));
    assert_eq!(counters.problem(), None);

    // 4 cycles took 12 ms, a dense step takes 2: a cycle costs 1.5 and gives 2.
    let economics = Economics::of(&counters, Some(12.0), Some(2.0));
    assert_eq!((economics.ms_per_cycle, economics.cost_ratio), (Some(3.0), Some(1.5)));
    assert_eq!(economics.pays(), Some(true));
    // 8 of 10 tokens at 4/3 of the speed: 1 / (0.6 + 0.2).
    assert!((economics.published_speedup().unwrap() - 1.25).abs() < 1e-12);
    // Decoding made 9 of the 10: 8 in 4 cycles of 1.5 dense steps, and one more step.
    assert_eq!(counters.decoded_share(), Some(8.0 / 9.0));
    assert!((economics.predicted_speedup().unwrap() - 9.0 / 7.0).abs() < 1e-12);
}

#[test]
fn where_cycles_gave_all_that_was_decoded_the_prediction_is_tokens_by_cost() {
    // Two replies of 9 tokens, each 2 cycles of 4 tokens after the first one, at 2.5 dense steps of 2 ms.
    let mut both = counted(&[(3, 3, 3), (3, 3, 3)], 9);
    both.add(&both.clone());
    assert_eq!((both.replies, both.decoded_tokens(), both.decoded_share()), (2, 16, Some(1.0)));
    let economics = Economics::of(&both, Some(20.0), Some(2.0));
    assert_eq!(economics.predicted_speedup(), Some(4.0 / 2.5));
    // So it is what measuring the same reply gives: 20 ms for 16 tokens.
    assert_eq!(economics.predicted_speedup(), ratio(2.0, 20.0 / 16.0));
    assert!(economics.published_speedup() < economics.predicted_speedup());
}

#[test]
fn what_is_not_defined_is_none_and_never_zero() {
    let nothing = Counters::default();
    assert_eq!(nothing.tokens_per_cycle(), None);
    assert_eq!(nothing.share(), None);
    assert_eq!(nothing.accepted_of_tested(), None);
    assert_eq!(Position::default().acceptance(), None);
    // A reply without a cycle has a share, and it is zero.
    assert_eq!(counted(&[], 5).share(), Some(0.0));
    // Nothing tested is no acceptance, though a zero cycle gives a token.
    let zero = counted(&[(0, 0, 0)], 5);
    assert_eq!((zero.tokens_per_cycle(), zero.accepted_of_tested()), (Some(1.0), None));
    let economics = Economics::of(&zero, None, Some(2.0));
    assert_eq!((economics.cost_ratio, economics.pays(), economics.predicted_speedup()), (None, None, None));
    assert_eq!(ratio(1.0, 0.0), None);
    assert_eq!(ratio(f64::NAN, 1.0), None);
    assert_eq!(predicted_speedup(1.0, 0.0, 1.0), None);
    assert_eq!(decode_ms_per_token(1.0, 0), None);
    assert_eq!(decode_ms_per_token(1.0, 1), None);
    assert_eq!(decode_ms_per_token(1.0, 3), Some(500.0));
}

#[test]
fn counters_that_cannot_be_are_told() {
    assert_eq!(counted(&[(2, 2, 2)], 3).problem(), None);
    assert!(counted(&[(2, 2, 2)], 2).problem().unwrap().contains("more tokens than the reply"));
    // Figures of a recording are kept as they are told, and the first thing that cannot be is named.
    let told = counted(&[(1, 2, 3)], 9);
    assert_eq!((told.drafted, told.tested, told.accepted), (1, 2, 3));
    assert!(told.problem().unwrap().contains("tested than drafted"));
    assert!(counted(&[(2, 1, 2)], 9).problem().unwrap().contains("accepted than tested"));
    let beyond = counted(&[(u32::MAX, u32::MAX, u32::MAX)], 9);
    assert!(beyond.positions.len() <= 16 && beyond.problem().is_some());
    // A drafted token that ends the reply is put to no test, and there is one of these to a reply.
    assert_eq!(counted(&[(2, 2, 2), (1, 0, 0)], 5).problem(), None);
    assert!(counted(&[(1, 0, 0), (1, 0, 0)], 5).problem().unwrap().contains("ends its reply"));
    let mut counters = counted(&[(2, 2, 2)], 3);
    counters.positions[1].tested += 1;
    assert!(counters.problem().unwrap().contains("do not add up"));
    counters.tested += 1;
    counters.drafted += 1;
    assert!(counters.problem().unwrap().contains("the one before it was rejected"));
}

#[test]
fn equal_acceptances_give_leviathans_formula() {
    for alpha in [0.0, 0.3, 0.8, 0.99] {
        for gamma in 0..9 {
            let closed = (1.0 - f64::powi(alpha, gamma + 1)) / (1.0 - alpha);
            assert!((leviathan_tokens(alpha, gamma as u32) - closed).abs() < 1e-9, "{alpha} {gamma}");
        }
    }
    assert_eq!(leviathan_tokens(1.0, 4), 5.0);
    // Unequal ones do not.
    assert!((expected_tokens([0.9, 0.5, 0.1]) - (1.0 + 0.9 + 0.45 + 0.045)).abs() < 1e-12);
}

#[test]
fn the_best_depth_weighs_tokens_against_cost() {
    let dear = |depth: u32| [1.0, 1.5, 2.1, 2.7, 3.3].get(depth as usize).copied();
    let cheap = |depth: u32| [1.0, 1.1, 1.2, 1.37, 1.9].get(depth as usize).copied();
    let best = |p: f64, costs: &dyn Fn(u32) -> Option<f64>| best_depth(&[p; 4], costs).unwrap().0;
    assert_eq!([0.3, 0.6, 0.9, 1.0].map(|p| best(p, &dear)), [0, 1, 2, 4]);
    assert_eq!([0.0, 0.3, 0.6, 0.9, 1.0].map(|p| best(p, &cheap)), [0, 1, 2, 3, 3]);
    assert_eq!(best_depth(&[0.9], |_| None), None);
    // Equal rates: the lesser depth.
    assert_eq!(best_depth(&[0.5], |depth| Some([1.0, 1.5][depth as usize])), Some((0, 1.0)));
}

#[test]
fn costs_nobody_measured_lie_on_a_line() {
    let costs = Costs::new([(3, 2.7), (0, 1.0), (1, 1.5), (7, f64::NAN), (8, 0.0)]);
    assert_eq!(costs.points().len(), 3);
    assert_eq!(costs.measured(2), None);
    assert!((costs.estimate(2).unwrap() - 2.1).abs() < 1e-12);
    assert!((costs.estimate(5).unwrap() - 3.9).abs() < 1e-12);
    // On from the last two, never downwards.
    let falling = Costs::new([(0, 1.0), (2, 2.0), (3, 1.8)]);
    assert_eq!(falling.estimate(6), Some(1.8));
    assert!((Costs::new([(1, 1.5), (2, 2.1)]).estimate(0).unwrap() - 0.9).abs() < 1e-12);
    assert_eq!(Costs::new([(1, 1.5)]).estimate(0), None);
    assert_eq!(Costs::default().estimate(0), None);
}

proptest! {
    #[test]
    fn counters_of_any_cycles_hold_together(
        cycles in proptest::collection::vec((0u32..9, 0u32..9), 0..60),
    ) {
        let mut counters = Counters::default();
        for (drafted, would) in cycles {
            let accepted = would.min(drafted);
            counters.count(drafted, (accepted + 1).min(drafted), accepted);
            counters.output_tokens += u64::from(accepted) + 1;
        }
        prop_assert_eq!(counters.problem(), None);
        if counters.cycles > 0 {
            prop_assert_eq!(counters.share(), Some(1.0));
            let tokens = counters.tokens_per_cycle().unwrap();
            prop_assert!((1.0..=9.0).contains(&tokens));
        }
    }

    #[test]
    fn no_figure_is_other_than_a_number(values in proptest::collection::vec(proptest::num::f64::ANY, 5)) {
        let [a, b, c, d, e] = values[..] else { unreachable!() };
        for figure in [ratio(a, b), predicted_speedup(a, b, c), cost_ratio(d, e), decode_ms_per_token(a, 9)] {
            prop_assert!(figure.is_none_or(f64::is_finite));
        }
        let costs = Costs::new([(0, a), (1, b), (4, c)]);
        for drafted in 0..20 {
            prop_assert!(costs.estimate(drafted).is_none_or(|cost| cost > 0.0));
        }
    }
}
