//! A recorded reply, decoded again on paper by another controller: what would it have cost?
//!
//! From the cycles of a reply follows a *tape*: for each place, how many drafted tokens would have been accepted there. Any controller can be run
//! over it, with costs by width as the run measured them; and somebody who knows the tape can choose the best depth at every place, which is the
//! *oracle*, the bound of them all. A tape is not all fact: each place says what its entry rests on, and a result says how much of it was seen.

mod costs;
mod oracle;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Serialize;

use super::controller::{DepthController, Outcome};
use crate::config::{ControllerKind, SpeculationConfig};
use crate::event::{Cycle, DepthReason, Nanos};

pub use costs::CycleCosts;

/// Longest reply that a tape is made of, tokens: recordings may claim any.
const LONGEST: u64 = 1 << 20;

/// What an entry of a tape rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// A cycle began here, and a drafted token of it was rejected: so many are accepted, whatever the depth.
    Exact,
    /// A cycle began here, and all it drafted was accepted: so many at least. How many more is assumed from the run's acceptance.
    AtLeast,
    /// A cycle passed here: what was left of its accepted tokens.
    Inferred,
    /// No cycle was here: what the cycles around it let assume.
    Assumed,
}

/// What drafting at a place of the reply brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Drafted tokens that are accepted, if so many are drafted.
    pub accepted: u32,
    /// Tokens the drafter has to give at most; `None` where it gave as many as it was asked for.
    pub offered: Option<u32>,
    /// Of those, tokens that a cycle of the run saw accepted right here.
    pub seen: u32,
    /// What that rests on.
    pub basis: Basis,
}

/// What drafting brings at each place of a reply.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Tape {
    places: Vec<Place>,
    /// Depths as they were decided on, by place; a place without one that no cycle passed was an ordinary step of a parked sequence.
    recorded: BTreeMap<u64, u32>,
}

impl Tape {
    /// The tape of a reply of `output_tokens` from its cycles. `None` without a cycle that drafted, and of a reply of one token.
    pub fn of(cycles: &[Cycle], output_tokens: u64) -> Option<Tape> {
        // The first token comes out of the prefill: no cycle gives it.
        let inside = |cycle: &&Cycle| (1..output_tokens).contains(&cycle.first);
        let cycles: Vec<&Cycle> = cycles.iter().filter(inside).collect();
        let drafting: Vec<&Cycle> = cycles.iter().copied().filter(|cycle| cycle.depth > 0).collect();
        if drafting.is_empty() || output_tokens > LONGEST {
            return None;
        }
        let sum = |of: fn(&Cycle) -> u32| drafting.iter().map(|cycle| f64::from(of(cycle))).sum::<f64>();
        let acceptance = (sum(|cycle| cycle.accepted) + 1.0) / (sum(|cycle| cycle.tested) + 2.0);
        let mut places: Vec<Option<Place>> = vec![None; output_tokens as usize];
        for cycle in &drafting {
            let entry = entry(cycle, acceptance.min(0.98));
            places[cycle.first as usize] = Some(entry);
        }
        for cycle in &drafting {
            let Some(Some(Place { accepted, .. })) = places.get(cycle.first as usize).copied() else {
                continue;
            };
            for passed in 1..=cycle.accepted.min(SpeculationConfig::MAX_DEPTH) {
                let place = cycle.first.saturating_add(u64::from(passed)) as usize;
                if let Some(slot @ None) = places.get_mut(place) {
                    let left = accepted.saturating_sub(passed);
                    *slot = Some(Place { accepted: left, offered: None, seen: 0, basis: Basis::Inferred });
                }
            }
        }
        let assumed = |place: usize| assumed(&drafting, place as u64, acceptance.min(0.98));
        let places = places.into_iter().enumerate();
        let places = places.map(|(place, known)| known.unwrap_or_else(|| assumed(place))).collect();
        let recorded = cycles.iter().map(|cycle| (cycle.first, cycle.depth)).collect();
        Some(Tape { places, recorded })
    }

    /// The entries, by place in the reply.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Tokens of the reply.
    pub fn output_tokens(&self) -> u64 {
        self.places.len() as u64
    }

    /// What drafting `depth` tokens at `place` gives: tokens drafted, and accepted.
    fn outcome(&self, place: usize, depth: u32) -> (u32, u32) {
        let Some(Place { accepted, offered, .. }) = self.places.get(place).copied() else { return (0, 0) };
        let drafted = offered.map_or(depth, |offered| depth.min(offered)).min(SpeculationConfig::MAX_DEPTH);
        // One token of what is left is the target's own.
        (drafted, accepted.min(drafted).min(self.room(place)))
    }

    /// Tokens that can be drafted at `place` at most: one token is the target's own.
    fn room(&self, place: usize) -> u32 {
        let left = self.places.len().saturating_sub(place + 1);
        left.min(SpeculationConfig::MAX_DEPTH as usize) as u32
    }
}

/// The entry of a cycle.
fn entry(cycle: &Cycle, acceptance: f64) -> Place {
    let drafted = cycle.drafted.min(SpeculationConfig::MAX_DEPTH);
    let accepted = cycle.accepted.min(drafted);
    let offered = (drafted < cycle.depth).then_some(drafted);
    if accepted < drafted || offered.is_some() {
        return Place { accepted, offered, seen: accepted, basis: Basis::Exact };
    }
    let more = further(cycle.first, acceptance);
    let all = accepted.saturating_add(more).min(SpeculationConfig::MAX_DEPTH);
    Place { accepted: all, offered, seen: accepted, basis: Basis::AtLeast }
}

/// The entry of a place that no cycle passed: that of one of the cycles around it, all of them taken in turn.
fn assumed(cycles: &[&Cycle], place: u64, acceptance: f64) -> Place {
    const AROUND: usize = 8;
    let after = cycles.partition_point(|cycle| cycle.first < place);
    let from = after.saturating_sub(AROUND / 2).min(cycles.len().saturating_sub(AROUND));
    let around = &cycles[from..cycles.len().min(from + AROUND)];
    let chosen = (spread(place) * around.len() as f64) as usize;
    let like = around.get(chosen).map(|cycle| entry(cycle, acceptance));
    let nothing = Place { accepted: 0, offered: None, seen: 0, basis: Basis::Assumed };
    like.map_or(nothing, |place| Place { seen: 0, basis: Basis::Assumed, ..place })
}

/// Further tokens of a draft that was accepted whole, if each is accepted with the same probability: over the places of a reply as many as that
/// probability lets expect.
fn further(place: u64, acceptance: f64) -> u32 {
    let tokens = libm::log(1.0 - spread(place)) / libm::log(acceptance);
    if tokens.is_finite() { tokens as u32 } else { 0 }
}

/// Numbers in [0, 1) that are spread evenly over consecutive places, the same for every run.
fn spread(place: u64) -> f64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    (place.wrapping_mul(GOLDEN) >> 11) as f64 / (1u64 << 53) as f64
}

/// Who chooses depths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// The depths as they were recorded.
    Recorded,
    /// The same depth always; 0 is ordinary decoding.
    Fixed(u32),
    /// The adaptive controller, which knows nothing when the first reply begins.
    Adaptive {
        /// Tokens drafted in a cycle at most.
        depth_max: u32,
    },
    /// Somebody who knows the tape.
    Oracle,
}

/// What replaying a tape came to.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Replayed {
    /// Tokens after the first.
    pub tokens: u64,
    /// Cycles, those of depth 0 included.
    pub cycles: u64,
    /// Of those, cycles whose outcome the run saw at their very place.
    pub exact: u64,
    /// Of those, cycles at places that a recorded cycle began at or passed.
    pub seen: u64,
    /// Ordinary steps of a parked sequence.
    pub parked_steps: u64,
    /// What it takes, seconds.
    pub seconds: f64,
    /// What dense decoding takes, seconds.
    pub dense_seconds: f64,
    /// Whether cycles of the run measured every cost it met; otherwise some rest on the verify curve, or on a line between those that are known.
    pub measured: bool,
}

impl Replayed {
    /// How much faster than dense decoding.
    pub fn speed_up(&self) -> Option<f64> {
        super::economics::ratio(self.dense_seconds, self.seconds)
    }

    /// Tokens per cycle.
    pub fn tokens_per_cycle(&self) -> Option<f64> {
        super::economics::ratio(self.tokens.saturating_sub(self.parked_steps) as f64, self.cycles as f64)
    }

    /// The part of the cycles that rest on what was seen to be accepted and rejected at their place.
    pub fn exact_share(&self) -> Option<f64> {
        super::economics::ratio(self.exact as f64, self.cycles as f64)
    }

    /// The sum of both.
    pub fn plus(&self, other: &Replayed) -> Replayed {
        Replayed {
            tokens: self.tokens + other.tokens,
            cycles: self.cycles + other.cycles,
            exact: self.exact + other.exact,
            seen: self.seen + other.seen,
            parked_steps: self.parked_steps + other.parked_steps,
            seconds: self.seconds + other.seconds,
            dense_seconds: self.dense_seconds + other.dense_seconds,
            measured: self.measured && other.measured,
        }
    }
}

/// Replays replies one after another, each with its costs: an adaptive controller takes what it learns from one to the next.
pub fn replay(replies: &[(Tape, CycleCosts)], policy: Policy) -> Vec<Replayed> {
    let mut controller = match policy {
        Policy::Fixed(depth) => Some(DepthController::new(ControllerKind::Fixed, depth)),
        Policy::Adaptive { depth_max } => Some(DepthController::new(ControllerKind::Adaptive, depth_max)),
        Policy::Recorded | Policy::Oracle => None,
    };
    let one = |(tape, costs): &(Tape, CycleCosts)| match (&mut controller, policy) {
        (Some(controller), _) => {
            controller.start_reply();
            run(tape, costs, |place, room| {
                let decision = controller.decide(place as u64, room);
                let (drafted, accepted) = tape.outcome(place, decision.depth);
                let took = Some(Nanos::from_seconds(costs.cycle(drafted)));
                controller.observe(&Outcome { depth: decision.depth, drafted, accepted, took });
                (decision.reason != DepthReason::Parked).then_some(decision.depth)
            })
        }
        (None, Policy::Oracle) => {
            let depths = oracle::depths(tape, costs);
            run(tape, costs, |place, _| depths.get(place).copied())
        }
        (None, _) => run(tape, costs, |place, _| tape.recorded.get(&(place as u64)).copied()),
    };
    replies.iter().map(one).collect()
}

/// Goes over a tape with the depths that `depth` gives by place and room; `None` is an ordinary step of a parked sequence.
fn run(tape: &Tape, costs: &CycleCosts, mut depth: impl FnMut(usize, u32) -> Option<u32>) -> Replayed {
    let mut sum = Replayed { measured: true, ..Replayed::default() };
    let mut place = 1;
    while let Some(entry) = tape.places.get(place) {
        let chosen = depth(place, tape.room(place));
        let (drafted, accepted) = tape.outcome(place, chosen.unwrap_or(0));
        sum.measured &= costs.is_measured(drafted);
        sum.seconds += costs.cycle(drafted);
        sum.tokens += u64::from(accepted) + 1;
        sum.dense_seconds += costs.cycle(0) * (f64::from(accepted) + 1.0);
        match chosen {
            Some(_) => {
                sum.cycles += 1;
                // An ordinary step gives a token, whatever drafting would bring.
                sum.exact += u64::from(drafted == 0 || entry.basis == Basis::Exact || drafted <= entry.seen);
                sum.seen += u64::from(drafted == 0 || entry.basis != Basis::Assumed);
            }
            None => sum.parked_steps += 1,
        }
        place += accepted as usize + 1;
    }
    sum
}
