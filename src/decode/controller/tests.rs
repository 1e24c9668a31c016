//! Tests of the controller in a simulated decode: stationary and changing acceptance, several cost curves, noisy times.

use proptest::prelude::*;

use super::*;

/// What forwards of 1, 2, 3, … tokens cost in dense steps on the bundled model at a short context, its cost beyond 5 drawn on.
const MEASURED: [f64; 9] = [1.0, 1.5, 2.1, 2.7, 3.3, 3.9, 4.5, 5.0, 5.6];
/// The same at a long context.
const LONG: [f64; 9] = [1.0, 1.27, 1.64, 2.1, 2.5, 2.95, 3.4, 3.8, 4.25];
/// A device that hides most of it up to 4.
const CHEAP: [f64; 9] = [1.0, 1.1, 1.2, 1.37, 1.9, 2.3, 2.7, 3.0, 3.4];
/// A drafter that is nearly as large as its target.
const DEAR: [f64; 9] = [1.0, 2.2, 3.4, 4.6, 5.8, 7.0, 8.2, 9.4, 10.6];
const STEP: f64 = 177_000.0;

/// Uniform numbers in [0, 1).
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A cycle and what was before it.
#[derive(Clone, Copy)]
struct Moment {
    /// Tokens drafted.
    drafted: u32,
    /// The same of the cycle before; `None` at a reply's beginning.
    before: Option<u32>,
}

/// A decode that is drawn by lot.
struct Decode<'a> {
    /// Cost of a cycle by tokens drafted, in dense steps.
    curve: &'a [f64; 9],
    /// The acceptance at a place of the reply and a position of the draft.
    acceptance: &'a dyn Fn(u64, u32) -> f64,
    /// Tokens the drafter gives at most at a place.
    offered: &'a dyn Fn(u64) -> u32,
    /// How long a cycle takes of what it should.
    noise: &'a dyn Fn(Moment, &mut Random) -> f64,
}

impl Decode<'_> {
    /// What a reply of `tokens` costs without noise, in dense steps, and the decisions.
    fn run(&self, controller: &mut DepthController, tokens: u64, seed: u64) -> (f64, Vec<DepthDecision>) {
        let mut random = Random(seed);
        let (mut at, mut cost, mut decisions, mut before) = (0, 0.0, Vec::new(), None);
        controller.start_reply();
        while at < tokens {
            let room = (tokens - at - 1).min(16) as u32;
            let decision = controller.decide(at, room);
            assert!(decision.depth <= room);
            let drafted = decision.depth.min((self.offered)(at));
            let accepted =
                (0..drafted).take_while(|position| random.unit() < (self.acceptance)(at, *position)).count();
            let accepted = accepted as u32;
            let of_curve = self.curve[drafted as usize];
            let took = of_curve * STEP * (self.noise)(Moment { drafted, before }, &mut random);
            before = Some(drafted);
            let took = Some(Nanos(took as u64));
            controller.observe(&Outcome { depth: decision.depth, drafted, accepted, took });
            at += u64::from(accepted) + 1;
            cost += of_curve;
            decisions.push(decision);
        }
        (cost, decisions)
    }
}

fn quiet(_: Moment, _: &mut Random) -> f64 {
    1.0
}

fn outliers(_: Moment, random: &mut Random) -> f64 {
    let jitter = 0.95 + 0.1 * random.unit();
    if random.unit() < 0.02 { jitter * 10.0 } else { jitter }
}

fn adaptive(depth_max: u32) -> DepthController {
    DepthController::new(ControllerKind::Adaptive, depth_max)
}

/// The mean cost of 256 tokens over many seeds, in dense steps: of the controller in its first reply, of itself in its third, and of the best
/// fixed depth.
fn figures(curve: &[f64; 9], acceptance: &dyn Fn(u64, u32) -> f64, depth_max: u32, noisy: bool) -> [f64; 3] {
    const SEEDS: u64 = 30;
    let quiet = Decode { curve, acceptance, offered: &|_| 16, noise: &quiet };
    let fixed = (0..=depth_max).map(|depth| {
        let run = |seed| quiet.run(&mut DepthController::new(ControllerKind::Fixed, depth), 256, seed).0;
        (0..SEEDS).map(run).sum::<f64>() / SEEDS as f64
    });
    let best = fixed.fold(f64::MAX, f64::min);
    let decode = Decode { noise: if noisy { &outliers } else { &self::quiet }, ..quiet };
    let (mut cold, mut warm) = (0.0, 0.0);
    for seed in 0..SEEDS {
        let mut controller = adaptive(depth_max);
        cold += decode.run(&mut controller, 256, seed).0;
        decode.run(&mut controller, 256, seed + 1_000);
        warm += decode.run(&mut controller, 256, seed + 2_000).0;
    }
    [cold / SEEDS as f64, warm / SEEDS as f64, best]
}

#[test]
fn it_comes_close_to_the_best_fixed_depth_within_a_reply() {
    let mut failed = Vec::new();
    for (name, curve) in [("measured", &MEASURED), ("long", &LONG), ("cheap", &CHEAP), ("dear", &DEAR)] {
        for depth_max in [4, 8] {
            for p in [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 1.0] {
                for fading in [1.0, 0.8] {
                    let acceptance = |_: u64, position: u32| p * f64::powi(fading, position as i32);
                    let [cold, warm, best] = figures(curve, &acceptance, depth_max, false);
                    let line = format!(
                        "{name} max {depth_max} p {p} fading {fading}: cold {:.3} warm {:.3} of the best {best:.1}",
                        cold / best,
                        warm / best
                    );
                    if cold > best * 1.05 || warm > best * 1.05 {
                        failed.push(line);
                    }
                }
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn noise_and_outliers_do_not_mislead_it_much() {
    for (name, curve) in [("measured", &MEASURED), ("cheap", &CHEAP)] {
        for p in [0.0, 0.3, 0.6, 0.8, 0.95, 1.0] {
            let [cold, warm, best] = figures(curve, &|_, _| p, 4, true);
            assert!(
                cold <= best * 1.08 && warm <= best * 1.07,
                "{name} p {p}: cold {:.3} warm {:.3}",
                cold / best,
                warm / best
            );
        }
    }
}

#[test]
fn nothing_accepted_costs_at_most_4_percent_of_a_reply() {
    // With times that are ten times too long now and then, two of three at the wrong moment cost a little more.
    for (noise, bound, mean_bound) in
        [(&quiet as &dyn Fn(Moment, &mut Random) -> f64, 1.04, 1.03), (&outliers, 1.07, 1.03)]
    {
        for curve in [&MEASURED, &LONG, &CHEAP, &DEAR] {
            for depth_max in [1, 4, 8] {
                let mut costs = Vec::new();
                for seed in 0..40 {
                    let mut controller = adaptive(depth_max);
                    let decode = Decode { curve, acceptance: &|_, _| 0.0, offered: &|_| 16, noise };
                    for reply in 0..3 {
                        let (cost, decisions) = decode.run(&mut controller, 256, seed * 3 + reply);
                        assert!(cost <= 256.0 * bound, "{cost} dense steps for 256 tokens at {curve:?}");
                        let parked = decisions.iter().filter(|d| d.reason == DepthReason::Parked).count();
                        assert!(parked > 150, "parked for {parked} tokens");
                        costs.push(cost);
                    }
                }
                let mean = costs.iter().sum::<f64>() / costs.len() as f64;
                assert!(mean <= 256.0 * mean_bound, "{mean} dense steps at {curve:?}");
            }
        }
    }
}

/// A drafter whose cycles nearly pay, on a machine on which an ordinary step by itself takes a quarter longer than one of many every other time, and
/// a third longer at a reply's beginning.
#[test]
fn ordinary_steps_that_are_disturbed_by_cycles_do_not_make_drafting_look_cheap() {
    let noise = |moment: Moment, random: &mut Random| {
        let jitter = 0.98 + 0.04 * random.unit();
        match moment {
            Moment { before: None, .. } => jitter * 1.33,
            Moment { drafted: 0, before: Some(1..) } if random.unit() < 0.5 => jitter * 1.25,
            _ => jitter,
        }
    };
    let curve = &[1.0, 1.9, 2.75, 3.6, 4.45, 5.3, 6.15, 7.0, 7.85];
    for p in [0.3, 0.5, 0.6, 0.7, 0.8, 0.85] {
        for machine in [1.0, 2.0] {
            let acceptance = |_: u64, position: u32| p * f64::powi(0.9, position as i32);
            let noise = |moment: Moment, random: &mut Random| machine * noise(moment, random);
            let decode = Decode { curve, acceptance: &acceptance, offered: &|_| 16, noise: &noise };
            let (mut worst, mut sum) = (0.0f64, 0.0);
            for seed in 0..40 {
                let mut controller = adaptive(8);
                for reply in 0..4 {
                    let (cost, _) = decode.run(&mut controller, 256, seed * 4 + reply);
                    worst = worst.max(cost / 256.0);
                    sum += cost / 256.0 / 160.0;
                }
            }
            assert!(
                sum <= 1.03 && worst <= 1.07,
                "p {p}: {sum:.3} of ordinary decoding, {worst:.3} at worst"
            );
        }
    }
}

/// Many replies in which drafting does not pay, and in which a cycle after a long pause takes longer, then one that is copied.
#[test]
fn costs_that_were_learned_at_bad_moments_are_corrected_when_drafting_pays() {
    let noise = |moment: Moment, random: &mut Random| {
        let jitter = 0.97 + 0.06 * random.unit();
        if moment.drafted > 0 && moment.before == Some(0) { jitter * 1.4 } else { jitter }
    };
    for curve in [&MEASURED, &LONG] {
        let accepts = |p: f64| move |_: u64, _: u32| p;
        let (rarely, nearly) = (accepts(0.35), accepts(0.99));
        let seldom = Decode { curve, acceptance: &rarely, offered: &|_| 2, noise: &noise };
        let copy = Decode { acceptance: &nearly, offered: &|_| 16, ..seldom };
        let mut controller = adaptive(8);
        for seed in 0..12 {
            seldom.run(&mut controller, 128, seed);
        }
        let best = (0..=8).map(|depth| {
            let quiet = Decode { noise: &quiet, ..copy };
            quiet.run(&mut DepthController::new(ControllerKind::Fixed, depth), 512, 3).0
        });
        let best = best.fold(f64::MAX, f64::min);
        let (first, second) = (copy.run(&mut controller, 512, 3).0, copy.run(&mut controller, 512, 4).0);
        assert!(first <= best * 1.2 && second <= best * 1.05, "{first} and {second} against {best}");
    }
}

/// Of every width the first cycle takes several times as long, as a forward that gets its memory does.
#[test]
fn a_width_that_was_measured_badly_at_first_is_tried_again() {
    for curve in [&MEASURED, &LONG, &CHEAP] {
        let seen = std::cell::RefCell::new(Vec::new());
        let noise = |moment: Moment, random: &mut Random| {
            let first = !seen.borrow().contains(&moment.drafted);
            seen.borrow_mut().push(moment.drafted);
            if first { 5.0 } else { 0.97 + 0.06 * random.unit() }
        };
        let decode = Decode { curve, acceptance: &|_, _| 0.99, offered: &|_| 16, noise: &noise };
        let best = (0..=8).map(|depth| {
            let quiet = Decode { noise: &quiet, ..decode };
            quiet.run(&mut DepthController::new(ControllerKind::Fixed, depth), 256, 3).0
        });
        let best = best.fold(f64::MAX, f64::min);
        let mut controller = adaptive(8);
        let first = decode.run(&mut controller, 256, 3).0;
        let second = decode.run(&mut controller, 256, 3).0;
        assert!(first <= best * 1.12 && second <= best * 1.05, "{first} and {second} against {best}");
    }
}

/// The lengths of the spans in which a sequence was parked.
fn parked_spans(decisions: &[DepthDecision]) -> Vec<usize> {
    let parked: Vec<bool> = decisions.iter().map(|d| d.reason == DepthReason::Parked).collect();
    parked.chunk_by(|a, b| a == b).filter(|span| span[0]).map(<[bool]>::len).collect()
}

#[test]
fn cooldowns_double_and_a_win_resets_them() {
    let decode = |acceptance| Decode { curve: &LONG, acceptance, offered: &|_| 16, noise: &quiet };
    let (_, decisions) = decode(&|_, _| 0.0).run(&mut adaptive(4), 400, 1);
    let spans = parked_spans(&decisions);
    assert_eq!(spans[..4], [8, 16, 32, 64], "{spans:?}");
    // Each span is followed by a trial of one token.
    for pair in decisions.windows(2) {
        if pair[0].reason == DepthReason::Parked && pair[1].reason != DepthReason::Parked {
            assert_eq!((pair[1].reason, pair[1].depth), (DepthReason::Reentry, 1));
        }
    }
    let cooldowns: Vec<_> = decisions.iter().filter_map(|d| d.cooldown).collect();
    assert_eq!(cooldowns[..9], [8, 7, 6, 5, 4, 3, 2, 1, 16]);

    // What is copied from place 100 to 200 is accepted: the trial after it wins, and the next cooldown is the first again.
    let (_, decisions) =
        decode(&|at, _| if (100..200).contains(&at) { 1.0 } else { 0.0 }).run(&mut adaptive(4), 500, 1);
    let after: Vec<_> = decisions.iter().skip_while(|d| d.first < 200).cloned().collect();
    assert_eq!(parked_spans(&after)[..3], [8, 16, 32]);
    let deep = decisions.iter().filter(|d| (130..190).contains(&d.first)).map(|d| d.depth).max();
    assert_eq!(deep, Some(4));
}

#[test]
fn it_follows_a_reply_that_turns_from_prose_to_copy_and_back() {
    let acceptance = |at: u64, _: u32| if at / 150 % 2 == 1 { 1.0 } else { 0.1 };
    let decode = Decode { curve: &MEASURED, acceptance: &acceptance, offered: &|_| 16, noise: &quiet };
    let mean = |run: &dyn Fn(u64) -> f64| (0..20).map(run).sum::<f64>() / 20.0;
    let adaptive = mean(&|seed| decode.run(&mut adaptive(4), 1_200, seed).0);
    let fixed = |depth| {
        mean(&|seed| decode.run(&mut DepthController::new(ControllerKind::Fixed, depth), 1_200, seed).0)
    };
    let best = (0..=4).map(fixed).fold(f64::MAX, f64::min);
    assert!(adaptive < best * 0.95, "{adaptive} against {best}");
}

#[test]
fn a_drafter_without_a_draft_is_an_ordinary_step() {
    // Matches at every tenth place only, and what they offer is accepted: the rest neither parks nor spoils it.
    let offered = |at: u64| if at % 10 < 3 { 4 } else { 0 };
    let decode = Decode { curve: &MEASURED, acceptance: &|_, _| 1.0, offered: &offered, noise: &quiet };
    let mut controller = adaptive(4);
    let (cost, decisions) = decode.run(&mut controller, 512, 1);
    assert!(decisions.iter().all(|d| d.reason != DepthReason::Parked));
    assert!(cost < 0.85 * 512.0, "{cost}");
    assert_eq!(controller.acceptance.seen(0), Some(controller.acceptance.estimate(0)));
    assert!(controller.acceptance.estimate(0) > 0.9);
    assert!((controller.costs.measured(0).unwrap() / STEP - 1.0).abs() < 0.02);

    // One that never gives any costs nothing at all.
    let never = Decode { offered: &|_| 0, ..decode };
    let (cost, decisions) = never.run(&mut adaptive(4), 512, 1);
    assert_eq!(cost, 512.0);
    assert!(decisions.iter().all(|d| d.reason != DepthReason::Parked));
}

#[test]
fn forwards_that_others_share_teach_acceptance_and_no_cost() {
    let mut controller = adaptive(4);
    controller.start_reply();
    for first in 0..200 {
        let decision = controller.decide(first, 16);
        let accepted = decision.depth.min(3);
        controller.observe(&Outcome { depth: decision.depth, drafted: decision.depth, accepted, took: None });
    }
    let decision = controller.decide(200, 16);
    assert!(decision.cost.iter().all(Option::is_none));
    assert!(decision.rate.iter().all(Option::is_none));
    assert!(decision.acceptance[..3].iter().all(|p| p.is_some_and(|p| p > 0.8)), "{:?}", decision.acceptance);
    assert!(decision.depth >= 2);
    assert!(!controller.is_parked());
}

#[test]
fn shared_forwards_that_accept_nothing_are_not_tried_for_ever() {
    let mut controller = adaptive(4);
    for reply in 0..3 {
        controller.start_reply();
        let mut decisions = Vec::new();
        for first in 0..400 {
            let decision = controller.decide(first, 16);
            let drafted = decision.depth;
            controller.observe(&Outcome { depth: decision.depth, drafted, accepted: 0, took: None });
            decisions.push(decision);
        }
        let drafting = decisions.iter().filter(|decision| decision.depth > 0).count();
        assert!(drafting < 20, "reply {reply}: {drafting} of 400 steps drafted");
        let parked = decisions.iter().filter(|decision| decision.reason == DepthReason::Parked).count();
        assert!(parked > 350, "reply {reply}: parked for {parked}");
        assert_eq!(parked_spans(&decisions)[..4], [8, 16, 32, 64]);
    }
    // What begins to be accepted is taken up again.
    controller.start_reply();
    let mut depths = Vec::new();
    for first in 0..200 {
        let decision = controller.decide(first, 16);
        let (depth, drafted) = (decision.depth, decision.depth);
        controller.observe(&Outcome { depth, drafted, accepted: drafted, took: None });
        depths.push(depth);
    }
    assert!(depths[150..].iter().all(|depth| *depth > 0), "{depths:?}");
}

#[test]
fn a_decision_carries_what_it_was_made_from() {
    let decode = Decode { curve: &MEASURED, acceptance: &|_, _| 0.95, offered: &|_| 16, noise: &quiet };
    let mut controller = adaptive(4);
    let (_, decisions) = decode.run(&mut controller, 256, 7);
    // The first step of a reply may have caught the device asleep, so there are two.
    for probe in &decisions[..2] {
        assert_eq!((probe.reason, probe.depth), (DepthReason::DenseProbe, 0));
    }
    assert_eq!((decisions[2].reason, decisions[2].depth), (DepthReason::Explore, 1));
    // Nobody has measured depth 1 yet, and nobody seen a draft.
    assert_eq!((decisions[2].cost[1], decisions[2].acceptance[0]), (None, None));
    assert!(decisions[2].cost[0].is_some());
    let last = decisions.iter().rfind(|d| d.reason == DepthReason::Best).unwrap();
    let cost = |depth: usize| last.cost[depth].unwrap().0 as f64 / STEP;
    for (depth, expected) in MEASURED.iter().enumerate().take(5) {
        assert!((cost(depth) / expected - 1.0).abs() < 0.02, "{:?}", last.cost);
        let acceptance = last.acceptance[..depth].iter().map(|p| p.unwrap());
        let rate = expected_tokens(acceptance) / last.cost[depth].unwrap().seconds();
        assert!((rate / last.rate[depth].unwrap() - 1.0).abs() < 1e-6);
    }
    let best = last.rate.iter().flatten().copied().fold(0.0, f64::max);
    assert_eq!(last.rate[last.depth as usize], Some(best));
}

#[test]
fn what_it_learned_holds_for_the_next_reply() {
    let decode = Decode { curve: &MEASURED, acceptance: &|_, _| 1.0, offered: &|_| 16, noise: &quiet };
    let mut controller = adaptive(4);
    decode.run(&mut controller, 256, 1);
    let (_, decisions) = decode.run(&mut controller, 256, 2);
    assert_eq!((decisions[0].reason, decisions[1].depth), (DepthReason::DenseProbe, 4));
    // A machine that is half as fast from now on changes no ratio of costs, so it is as sure as before.
    let slow = Decode { noise: &|_, _| 2.0, ..decode };
    let (cost, decisions) = slow.run(&mut controller, 256, 3);
    assert!(
        decisions[1..]
            .iter()
            .all(|d| d.depth > 0 || matches!(d.reason, DepthReason::DenseProbe | DepthReason::Limited))
    );
    assert!(cost < 180.0, "{cost}");
}

#[test]
fn fixed_drafts_what_it_is_told_and_knows_what_it_saw() {
    let decode = Decode {
        curve: &MEASURED,
        acceptance: &|_, p| [1.0, 0.0][p.min(1) as usize],
        offered: &|_| 16,
        noise: &quiet,
    };
    let mut controller = DepthController::new(ControllerKind::Fixed, 3);
    let (_, decisions) = decode.run(&mut controller, 100, 1);
    assert!(decisions.iter().all(|d| match d.reason {
        DepthReason::Fixed => d.depth == 3,
        DepthReason::Limited => d.depth == d.room && d.depth < 3,
        _ => false,
    }));
    let last = &decisions[40];
    assert!(last.acceptance[0].unwrap() > 0.95 && last.acceptance[1].unwrap() < 0.1);
    assert_eq!((last.acceptance[2], last.cost[1]), (None, None));
    assert!(last.cost[3].is_some());
}

proptest! {
    #[test]
    fn equal_histories_give_equal_decisions_within_what_there_is_room_for(
        depth_max in 0u32..17,
        history in proptest::collection::vec((0u32..20, 0u32..20, 0u32..20, proptest::option::of(0u64..u64::MAX), any::<bool>()), 0..200),
    ) {
        let mut controllers = [adaptive(depth_max), adaptive(depth_max)];
        for (first, (room, drafted, accepted, took, new_reply)) in history.into_iter().enumerate() {
            let decisions = controllers.each_mut().map(|controller| {
                if new_reply && first % 7 == 0 {
                    controller.start_reply();
                }
                let decision = controller.decide(first as u64, room);
                let took = took.map(Nanos);
                // What comes back may be anything.
                controller.observe(&Outcome { depth: decision.depth, drafted, accepted, took });
                decision
            });
            prop_assert!(decisions[0].depth <= depth_max.min(room));
            prop_assert_eq!(&decisions[0], &decisions[1]);
            let numbers = decisions[0].rate.iter().chain(&decisions[0].acceptance).flatten();
            prop_assert!(numbers.into_iter().all(|number| number.is_finite()));
            prop_assert_eq!(decisions[0].cooldown.is_some(), decisions[0].reason == DepthReason::Parked);
        }
    }
}
