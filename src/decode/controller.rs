//! What chooses how many tokens a cycle drafts.
//!
//! A controller sees what happened and decides what comes next; it knows nothing of models, and no clock but the times it is told. Equal
//! histories give equal decisions, so it can be run again over a recorded run: see [`super::what_if`].
//!
//! # The adaptive controller
//!
//! It keeps, as a moving average, how often a draft position is accepted given that those before it were, and from the latest times what a cycle
//! costs by the tokens drafted in it; and takes the depth d with the best expected rate, `(1 + Σ_j Π_{i ≤ j} p_i) / cost(d)`. Depth 0, an ordinary
//! step, is a depth like any other, but that others must promise a little more. What it does not know it tries: depth 1 first, one more after each
//! draft that was accepted whole. Standing probes keep what it knows fresh: an ordinary step now and then, and now and then a depth beside the best.
//!
//! Where no depth beats the ordinary step, after a losing streak, and when its credit is spent, it *parks* the sequence: ordinary steps until
//! a cooldown is over, then one token is drafted again. A trial that loses parks it for twice as long, one that wins resets the cooldown.
//!
//! The credit bounds what all of this can cost. It is counted in dense steps: a cycle that gives more tokens than it costs fills it, one that
//! gives fewer drains it, and every token adds a little. While it is overdrawn, the sequence stays parked until tokens have paid for it.

mod acceptance;
mod costs;
#[cfg(test)]
mod tests;

use super::economics::expected_tokens;
use crate::config::ControllerKind;
use crate::event::{DepthDecision, DepthReason, Nanos};
use acceptance::Acceptance;
use costs::CycleCosts;

/// Losing cycles in a row after which a sequence is parked.
const LOSING: u32 = 6;
/// Ordinary steps of the first cooldown, and of the longest.
const COOLDOWN: (u32, u32) = (8, 64);
/// Ordinary steps in a row at most, however much is owed.
const LONGEST: u32 = 512;
/// Cycles between ordinary steps that are made to know what one costs: until three were measured, and from then on.
const DENSE_PROBES: (u32, u32) = (12, 40);
/// Cycles after which a depth beside the best is tried again.
const DEPTH_PROBES: u32 = 32;
/// A depth is not tried for the sake of knowing where it is expected to have less than this part of the best rate: while few depths were measured,
/// and from then on.
const WORTH_TRYING: (f64, f64) = (0.75, 0.86);
/// How many are few.
const FEW_DEPTHS: usize = 4;
/// Trials of depth 1 before its acceptance is believed to be too low.
const TRIALS: u32 = 2;
/// Dense steps of credit: at first, gained with every token, and at most.
const CREDIT: (f64, f64, f64) = (2.0, 0.01, 6.0);
/// A credit overdrawn by as many dense steps parks the sequence, whatever is expected.
const OVERDRAFT: f64 = 2.0;
/// Multiple of what a cycle usually costs beyond which its time is cut.
const CUT: f64 = 1.5;
/// By what factor a depth must promise more than an ordinary step: what is expected of it is uncertain, and where the two are nearly equal, drafting
/// wins nothing.
const WORTH_DRAFTING: f64 = 1.015;
/// What each drafted token is taken to add to a cycle, in dense steps, until two widths were measured.
const ASSUMED_SLOPE: f64 = 0.5;

/// What a cycle, or an ordinary step, turned out to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// The depth that was decided on.
    pub depth: u32,
    /// Tokens the drafter gave; 0 is an ordinary step.
    pub drafted: u32,
    /// Of those, tokens that were accepted.
    pub accepted: u32,
    /// All of its time; `None` where other sequences shared it.
    pub took: Option<Nanos>,
}

/// What chooses the depth of one drafter's cycles. What it has learned of costs and acceptance holds for the requests to come too.
#[derive(Debug, Clone)]
pub struct DepthController {
    kind: ControllerKind,
    depth_max: u32,
    acceptance: Acceptance,
    costs: CycleCosts,
    losing_streak: u32,
    credit: f64,
    /// Ordinary steps left, where the sequence is parked.
    parked: Option<u32>,
    /// The next cooldown.
    cooldown: u32,
    /// Whether speculation is on trial after a cooldown.
    on_trial: bool,
    /// Cycles since a depth was last measured, by depth; at a reply's beginning none has been.
    since: Vec<u32>,
    /// Whether an ordinary step of the reply was measured.
    dense_known: bool,
    /// Tokens drafted and accepted in the last cycle that drafted.
    last: Option<(u32, u32)>,
}

impl DepthController {
    /// One that has seen nothing.
    pub fn new(kind: ControllerKind, depth_max: u32) -> DepthController {
        DepthController {
            kind,
            depth_max,
            acceptance: Acceptance::new(depth_max),
            costs: CycleCosts::new(depth_max),
            losing_streak: 0,
            credit: CREDIT.0,
            parked: None,
            cooldown: COOLDOWN.0,
            on_trial: false,
            since: vec![0; depth_max as usize + 1],
            dense_known: false,
            last: None,
        }
    }

    /// A reply begins: what concerned the one before it alone is forgotten, and what it taught counts less.
    pub fn start_reply(&mut self) {
        self.acceptance.start_reply();
        self.costs.start_reply();
        self.losing_streak = 0;
        self.parked = None;
        self.cooldown = COOLDOWN.0;
        self.on_trial = false;
        self.dense_known = false;
        self.last = None;
    }

    /// Whether the sequence is parked: its steps are ordinary ones, and no cycles.
    #[cfg(test)]
    fn is_parked(&self) -> bool {
        self.parked.is_some()
    }

    /// Decides on the depth of the cycle that will give the token at place `first` of the reply, where there is room for `room` drafted tokens.
    /// To be asked once for each cycle and each ordinary step.
    pub fn decide(&mut self, first: u64, room: u32) -> DepthDecision {
        let adaptive = self.kind == ControllerKind::Adaptive;
        if let Some(left) = self.parked.filter(|left| adaptive && *left > 0) {
            self.parked = Some(left - 1);
            return self.parked_step(first, room, left);
        }
        let rates = self.rates();
        let (depth, reason) = match self.kind {
            ControllerKind::Fixed if room < self.depth_max => (room, DepthReason::Limited),
            ControllerKind::Fixed => (self.depth_max, DepthReason::Fixed),
            ControllerKind::Adaptive => self.choose(room, &rates),
        };
        DepthDecision {
            first,
            depth,
            reason,
            room,
            acceptance: (0..self.depth_max as usize).map(|position| self.acceptance.seen(position)).collect(),
            cost: (0..=self.depth_max).map(|depth| self.costs.measured(depth).map(nanos)).collect(),
            rate: rates.iter().map(|rate| rate.known.then_some(rate.per_second)).collect(),
            losing_streak: self.losing_streak,
            cooldown: None,
        }
    }

    /// A step of a cooldown, of which `left` are left with it: nothing else decides.
    fn parked_step(&self, first: u64, room: u32, left: u32) -> DepthDecision {
        DepthDecision {
            first,
            depth: 0,
            reason: DepthReason::Parked,
            room,
            acceptance: Vec::new(),
            cost: Vec::new(),
            rate: Vec::new(),
            losing_streak: self.losing_streak,
            cooldown: Some(left),
        }
    }

    /// Takes note of what a cycle or an ordinary step turned out to be.
    pub fn observe(&mut self, outcome: &Outcome) {
        let drafted = outcome.drafted.min(self.depth_max);
        let accepted = outcome.accepted.min(drafted);
        let gain = self.gain(drafted, accepted, outcome.took);
        self.acceptance.observe(drafted, accepted);
        if let Some(took) = outcome.took {
            // One that may have been misjudged is measured again soon.
            let again = drafted > 0 && self.costs.is_surprising(drafted, took);
            self.costs.observe(drafted, took.0 as f64);
            if let Some(since) = self.since.get_mut(drafted as usize) {
                *since = if again { DEPTH_PROBES } else { 0 };
            }
            self.dense_known |= drafted == 0;
        } else {
            self.costs.not_told();
        }
        self.credit = (self.credit + CREDIT.1 * f64::from(accepted + 1)).min(CREDIT.2);
        if drafted == 0 {
            return;
        }
        self.since.iter_mut().for_each(|since| *since = since.saturating_add(1));
        self.last = Some((drafted, accepted));
        let Some(gain) = gain else {
            // Nobody knows what it cost: a trial is decided by whether acceptance still promises anything.
            let promising = best(&self.rates()) > 0;
            let tried = std::mem::take(&mut self.on_trial);
            if tried && promising && accepted > 0 {
                self.cooldown = COOLDOWN.0;
            } else if tried && !promising {
                self.park();
            }
            return;
        };
        self.credit = (self.credit + gain).min(CREDIT.2);
        if gain >= 0.0 {
            self.losing_streak = 0;
            self.cooldown = COOLDOWN.0;
            self.on_trial = false;
            return;
        }
        self.losing_streak = self.losing_streak.saturating_add(1);
        // One bad cycle of a depth that is worth it nevertheless fails no trial.
        let failed = std::mem::take(&mut self.on_trial) && best(&self.rates()) == 0;
        if failed || self.losing_streak >= LOSING || self.credit < -OVERDRAFT {
            self.park();
        }
    }

    /// Dense steps that a cycle gained: the tokens it gave less what it cost. `None` for an ordinary step, and where it is not known. A time far
    /// beyond what such a cycle costs says something about the machine rather than the cycle, and is cut.
    fn gain(&self, drafted: u32, accepted: u32, took: Option<Nanos>) -> Option<f64> {
        if drafted == 0 {
            return None;
        }
        let dense = self.costs.measured(0)?;
        let usual = self.costs.measured(drafted);
        let assumed = usual.unwrap_or(dense * (1.0 + ASSUMED_SLOPE * f64::from(drafted)));
        let cost = match took {
            Some(took) => (took.0 as f64).min(assumed * CUT),
            None => usual?,
        };
        Some(f64::from(accepted + 1) - cost / dense)
    }

    fn park(&mut self) {
        let owed = (-self.credit / CREDIT.1).max(0.0).ceil().min(f64::from(LONGEST)) as u32;
        self.parked = Some(self.cooldown.max(owed));
        self.cooldown = self.cooldown.saturating_mul(2).min(COOLDOWN.1);
        self.on_trial = false;
        self.losing_streak = 0;
        // What was learned grows old while nothing is tried.
        self.acceptance.doubt();
    }

    fn choose(&mut self, room: u32, rates: &[Rate]) -> (u32, DepthReason) {
        let cap = self.depth_max.min(room);
        if self.parked.is_some() {
            if cap == 0 {
                return (0, DepthReason::Limited);
            }
            self.parked = None;
            self.on_trial = true;
        }
        if self.dense_probe_due() {
            return (0, DepthReason::DenseProbe);
        }
        if cap == 0 {
            return (0, DepthReason::Limited);
        }
        if self.on_trial {
            return (1, DepthReason::Reentry);
        }
        // What nobody has measured is approached one by one.
        let deepest =
            (0..=self.depth_max).rev().find(|depth| self.costs.measurements(*depth) > 0).unwrap_or(0);
        let near = if self.costs.are_not_told() { self.depth_max } else { self.depth_max.min(deepest + 1) };
        let best = best(&rates[..=near as usize]);
        if best == 0 {
            if self.acceptance.tests(0) < f64::from(TRIALS) * 0.9 {
                return (1, DepthReason::Explore);
            }
            self.park();
            return (0, DepthReason::Best);
        }
        if let Some(depth) = self.unknown_depth(rates, best).filter(|depth| *depth <= cap) {
            return (depth, DepthReason::Explore);
        }
        match best <= cap {
            true if self.costs.measurements(best) == 0 => (best, DepthReason::Explore),
            true => (best, DepthReason::Best),
            false => (self::best(&rates[..=cap as usize]), DepthReason::Limited),
        }
    }

    fn dense_probe_due(&self) -> bool {
        // Where sequences share forwards nothing is measured, however often it is tried.
        if self.costs.are_not_told() {
            return false;
        }
        let interval = if self.costs.measurements(0) < 3 { DENSE_PROBES.0 } else { DENSE_PROBES.1 };
        !self.dense_known
            || self.costs.measurements(0) < 2
            || self.since[0] >= interval
            || self.costs.wants_dense_step()
    }

    /// A depth that would be good to know more about.
    fn unknown_depth(&self, rates: &[Rate], best: u32) -> Option<u32> {
        let measured = (0..=self.depth_max).filter(|depth| self.costs.measurements(*depth) > 0).count();
        let part = if measured < FEW_DEPTHS { WORTH_TRYING.0 } else { WORTH_TRYING.1 };
        let promising = |depth: u32| {
            let (rate, best) = (rates.get(depth as usize)?, rates.get(best as usize)?);
            (rate.per_second >= best.per_second * part).then_some(depth)
        };
        // One more than a draft that was accepted whole.
        let next =
            self.last.filter(|(drafted, accepted)| drafted == accepted).map(|(drafted, _)| drafted + 1);
        let unmeasured =
            next.filter(|depth| self.costs.measurements(*depth) == 0 && !self.costs.are_not_told());
        if let Some(depth) = unmeasured.filter(|depth| *depth <= self.depth_max).and_then(promising) {
            return Some(depth);
        }
        // What was measured long ago may have been measured at a bad moment: it is tried if it promises enough by a line through the best and the
        // ordinary step.
        let stale = |depth: &u32| self.since.get(*depth as usize).is_some_and(|since| *since >= DEPTH_PROBES);
        let promising = |depth: u32| {
            let cost = |depth| self.costs.measured(depth);
            let line = cost(0)
                .zip(cost(best))
                .map(|(dense, at)| dense + (at - dense) * f64::from(depth) / f64::from(best));
            let (rate, best) = (rates.get(depth as usize)?, rates.get(best as usize)?);
            let by_line = line.map_or(0.0, |line| self.tokens(depth) / line * 1e9);
            (rate.per_second.max(by_line) >= best.per_second * part).then_some(depth)
        };
        [best + 1, best - 1].into_iter().filter(|depth| *depth > 0).filter(stale).find_map(promising)
    }

    /// Tokens expected of a cycle.
    fn tokens(&self, depth: u32) -> f64 {
        expected_tokens((0..depth as usize).map(|position| self.acceptance.estimate(position)))
    }

    /// The expected rate at each depth.
    fn rates(&self) -> Vec<Rate> {
        let lines = self.costs.lines();
        let dense = self.costs.measured(0).unwrap_or(1.0);
        let rate = |depth: u32| {
            let known = lines.expected(depth);
            let cost = known.unwrap_or(dense * (1.0 + ASSUMED_SLOPE * f64::from(depth)));
            Rate { per_second: self.tokens(depth) / cost * 1e9, known: known.is_some() }
        };
        (0..=self.depth_max).map(rate).collect()
    }
}

/// An expected rate.
#[derive(Debug, Clone, Copy)]
struct Rate {
    /// Tokens per second.
    per_second: f64,
    /// Whether its cost was measured, or lies on a line through what was.
    known: bool,
}

/// The depth with the greatest rate, the least of equals; 0 where none is [`WORTH_DRAFTING`].
fn best(rates: &[Rate]) -> u32 {
    let mut best = (0, rates[0].per_second * WORTH_DRAFTING);
    for (depth, rate) in rates.iter().enumerate().skip(1) {
        if rate.per_second > best.1 {
            best = (depth as u32, rate.per_second);
        }
    }
    best.0
}

fn nanos(time: f64) -> Nanos {
    Nanos::from_seconds(time / 1e9)
}
