//! Tests of the controller in a simulated decode: stationary and changing acceptance, several cost curves, noisy times.

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

/// A decode that is drawn by lot.
struct Decode<'a> {
    /// Cost of a cycle by tokens drafted, in dense steps.
    curve: &'a [f64; 9],
    /// The acceptance at a place of the reply and a position of the draft.
    acceptance: &'a dyn Fn(u64, u32) -> f64,
    /// Tokens the drafter gives at most at a place.
    offered: &'a dyn Fn(u64) -> u32,
    /// How long a cycle takes of what it should, by its number.
    noise: &'a dyn Fn(u64, &mut Random) -> f64,
}

impl Decode<'_> {
    /// What a reply of `tokens` costs without noise, in dense steps, and the decisions.
    fn run(&self, controller: &mut DepthController, tokens: u64, seed: u64) -> (f64, Vec<DepthDecision>) {
        let mut random = Random(seed);
        let (mut at, mut cost, mut decisions) = (0, 0.0, Vec::new());
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
            let took = of_curve * STEP * (self.noise)(decisions.len() as u64, &mut random);
            let took = Some(Nanos(took as u64));
            controller.observe(&Outcome { depth: decision.depth, drafted, accepted, took });
            at += u64::from(accepted) + 1;
            cost += of_curve;
            decisions.push(decision);
        }
        (cost, decisions)
    }
}

fn quiet(_: u64, _: &mut Random) -> f64 {
    1.0
}

fn outliers(_: u64, random: &mut Random) -> f64 {
    let jitter = 0.95 + 0.1 * random.unit();
    if random.unit() < 0.02 { jitter * 10.0 } else { jitter }
}

fn adaptive(depth_max: u32) -> DepthController {
    DepthController::new(ControllerKind::Adaptive, depth_max)
}

/// The mean cost of 256 tokens over many seeds, in dense steps: of the controller in its first reply, of itself in its third, and of the best
/// fixed depth.
fn figures(curve: &[f64; 9], acceptance: &dyn Fn(u64, u32) -> f64, depth_max: u32, noisy: bool) -> [f64; 3] {
    const SEEDS: u64 = 60;
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
