//! The accounting of speculative decoding: one place for every identity, for the ledger, reports, panes and benches alike.
//!
//! Acceptance alone decides nothing. A cycle gives `(accepted + cycles) / cycles` tokens and costs so and so many dense steps; speculation wins
//! where the first exceeds the second. The identities are those of Oliver Yu's EXP-002 (CC BY 4.0), and
//! `tests/it/speculation_accounts.rs` derives its published rows from its raw counters with the functions here.
//!
//! A quotient whose parts nobody measured, or whose divisor is zero, is `None`.

mod costs;
mod matched;
#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::event::{Cycle, Nanos};

pub use costs::{CostPoint, Costs};
pub use matched::{Matched, MatchedRun, prediction_error, relative_width};

/// What happened at one draft position, over cycles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Position {
    /// Tokens that were put to the test there: those whose predecessors in the draft were all accepted.
    pub tested: u64,
    /// Of those, tokens that were accepted.
    pub accepted: u64,
}

impl Position {
    /// Acceptance, given that everything before was accepted.
    pub fn acceptance(&self) -> Option<f64> {
        ratio(self.accepted as f64, self.tested as f64)
    }

    /// `1 − acceptance`: the risk that a draft which got here ends here. Acceptances of positions are not independent, so there is one each.
    pub fn hazard(&self) -> Option<f64> {
        Some(1.0 - self.acceptance()?)
    }
}

/// The raw counters of a reply, or of several.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Counters {
    /// Tokens of the replies, those from ordinary steps included.
    pub output_tokens: u64,
    /// Replies: the first token of each comes out of the prefill, and no step or cycle gives it.
    pub replies: u64,
    /// Verify cycles, those of depth 0 included. Steps of a parked sequence are none.
    pub cycles: u64,
    /// Of those, cycles in which nothing was drafted.
    pub zero_cycles: u64,
    /// Tokens the drafter gave.
    pub drafted: u64,
    /// Of those, tokens that were put to the test. EXP-002 calls these the drafted ones.
    pub tested: u64,
    /// Of those, tokens that were accepted.
    pub accepted: u64,
    /// The same by position in the draft.
    pub positions: Vec<Position>,
}

impl Counters {
    /// Those of `cycles`, for a reply of `output_tokens`.
    pub fn of<'a>(cycles: impl IntoIterator<Item = &'a Cycle>, output_tokens: u64) -> Counters {
        let replies = u64::from(output_tokens > 0);
        let mut counters = Counters { output_tokens, replies, ..Counters::default() };
        for cycle in cycles {
            counters.count(cycle.drafted, cycle.tested, cycle.accepted);
        }
        counters
    }

    /// Counts a cycle in as it is told, also where it cannot be: see [`Counters::problem`].
    pub fn count(&mut self, drafted: u32, tested: u32, accepted: u32) {
        self.cycles = self.cycles.saturating_add(1);
        self.zero_cycles = self.zero_cycles.saturating_add(u64::from(drafted == 0));
        self.drafted = self.drafted.saturating_add(u64::from(drafted));
        self.tested = self.tested.saturating_add(u64::from(tested));
        self.accepted = self.accepted.saturating_add(u64::from(accepted));
        // A recording may say anything; no draft is longer than the greatest depth.
        let tested = (tested as usize).min(crate::config::SpeculationConfig::MAX_DEPTH as usize);
        if self.positions.len() < tested {
            self.positions.resize(tested, Position::default());
        }
        for (position, counted) in self.positions.iter_mut().enumerate().take(tested) {
            counted.tested += 1;
            counted.accepted += u64::from((position as u32) < accepted);
        }
    }

    /// Adds another reply's.
    pub fn add(&mut self, other: &Counters) {
        let Counters { output_tokens, replies, cycles, zero_cycles, drafted, tested, accepted, positions } =
            other;
        let pairs = [
            (&mut self.output_tokens, output_tokens),
            (&mut self.replies, replies),
            (&mut self.cycles, cycles),
            (&mut self.zero_cycles, zero_cycles),
            (&mut self.drafted, drafted),
            (&mut self.tested, tested),
            (&mut self.accepted, accepted),
        ];
        for (sum, value) in pairs {
            *sum = sum.saturating_add(*value);
        }
        if self.positions.len() < positions.len() {
            self.positions.resize(positions.len(), Position::default());
        }
        for (sum, position) in self.positions.iter_mut().zip(positions) {
            sum.tested = sum.tested.saturating_add(position.tested);
            sum.accepted = sum.accepted.saturating_add(position.accepted);
        }
    }

    /// Tokens that cycles gave.
    pub fn cycle_tokens(&self) -> u64 {
        self.accepted.saturating_add(self.cycles)
    }

    /// `(accepted + cycles) / cycles`. Not output tokens by cycles: those of ordinary steps are no cycle's.
    pub fn tokens_per_cycle(&self) -> Option<f64> {
        ratio(self.cycle_tokens() as f64, self.cycles as f64)
    }

    /// `(accepted + cycles) / output_tokens`: the share of the reply that cycles gave. It is 0 where there was no cycle.
    pub fn share(&self) -> Option<f64> {
        ratio(self.cycle_tokens() as f64, self.output_tokens as f64)
    }

    /// Tokens that decoding gave: all but the first of each reply.
    pub fn decoded_tokens(&self) -> u64 {
        self.output_tokens.saturating_sub(self.replies)
    }

    /// `(accepted + cycles) / (output_tokens − replies)`: the share of what was decoded that cycles gave. It is 1 where every token after the first
    /// is a cycle's, which the published share never is. A server whose cycles give the first token too has no more than 1.
    pub fn decoded_share(&self) -> Option<f64> {
        ratio(self.cycle_tokens().min(self.decoded_tokens()) as f64, self.decoded_tokens() as f64)
    }

    /// Accepted tokens by tested ones: how good the drafter's guesses are where they count.
    pub fn accepted_of_tested(&self) -> Option<f64> {
        ratio(self.accepted as f64, self.tested as f64)
    }

    /// Accepted tokens by drafted ones: how much of the drafting was of use.
    pub fn accepted_of_drafted(&self) -> Option<f64> {
        ratio(self.accepted as f64, self.drafted as f64)
    }

    /// What of the counters cannot be: the first identity that does not hold.
    pub fn problem(&self) -> Option<String> {
        let sum = |field: fn(&Position) -> u64| self.positions.iter().map(field).fold(0, u64::saturating_add);
        let first = self.positions.first().map_or(0, |position| position.tested);
        let checks = [
            (self.tested <= self.drafted, "more tokens were tested than drafted"),
            (self.accepted <= self.tested, "more tokens were accepted than tested"),
            (sum(|p| p.tested) == self.tested, "the positions' tests do not add up"),
            (sum(|p| p.accepted) == self.accepted, "the positions' accepted tokens do not add up"),
            // A drafted token that ended the reply was put to no test: it may be the first of a reply's last cycle.
            (
                first
                    .checked_add(self.zero_cycles)
                    .and_then(|told| self.cycles.checked_sub(told))
                    .is_some_and(|untested| untested <= self.replies),
                "a cycle tests a first token, drafts none, or ends its reply",
            ),
            (
                self.positions.windows(2).all(|pair| pair[1].tested <= pair[0].accepted),
                "a position was tested though the one before it was rejected",
            ),
            (self.cycle_tokens() <= self.output_tokens, "cycles gave more tokens than the reply has"),
        ];
        checks.iter().find(|(holds, _)| !holds).map(|(_, problem)| (*problem).to_owned())
    }
}

/// Where the time of cycles went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct CycleTime {
    /// Time to draft.
    pub draft: Nanos,
    /// Time of the target's forwards.
    pub verify: Nanos,
    /// Time to accept and sample.
    pub sample: Nanos,
    /// Time to take back what was not accepted.
    pub rollback: Nanos,
    /// Time to keep what was.
    pub commit: Nanos,
}

impl CycleTime {
    /// That of `cycles`; `None` where a forward of one was shared with other sequences, since a share is no measurement.
    pub fn of<'a>(cycles: impl IntoIterator<Item = &'a Cycle>) -> Option<CycleTime> {
        cycles.into_iter().try_fold(CycleTime::default(), |sum, cycle| {
            let Cycle { draft, verify, sample, rollback, commit, .. } = cycle;
            let verify = verify.filter(|_| cycle.neighbours == 0)?;
            let cycle =
                CycleTime { draft: *draft, verify, sample: *sample, rollback: *rollback, commit: *commit };
            Some(sum.plus(cycle))
        })
    }

    /// The sum of both.
    pub fn plus(self, other: CycleTime) -> CycleTime {
        let sum = |a: Nanos, b: Nanos| Nanos(a.0.saturating_add(b.0));
        CycleTime {
            draft: sum(self.draft, other.draft),
            verify: sum(self.verify, other.verify),
            sample: sum(self.sample, other.sample),
            rollback: sum(self.rollback, other.rollback),
            commit: sum(self.commit, other.commit),
        }
    }

    /// All of it.
    pub fn total(&self) -> Nanos {
        self.parts().iter().fold(Nanos(0), |sum, (_, part)| Nanos(sum.0.saturating_add(part.0)))
    }

    /// Its parts with their names, in the order in which they happen.
    pub fn parts(&self) -> [(&'static str, Nanos); 5] {
        [
            ("draft", self.draft),
            ("verify", self.verify),
            ("sample", self.sample),
            ("rollback", self.rollback),
            ("commit", self.commit),
        ]
    }
}

/// `part / whole`; `None` where that is no number.
pub fn ratio(part: f64, whole: f64) -> Option<f64> {
    let quotient = part / whole;
    (whole > 0.0 && quotient.is_finite()).then_some(quotient)
}

/// What a cycle costs in dense steps: `ms_per_cycle / dense_ms_per_token`. It is also the break-even, the tokens a cycle must give to be worth it.
pub fn cost_ratio(ms_per_cycle: f64, dense_ms_per_token: f64) -> Option<f64> {
    ratio(ms_per_cycle, dense_ms_per_token)
}

/// How much faster decoding was than dense decoding, measured: both are of the tokens after the first.
pub fn measured_speedup(dense_ms_per_token: f64, ms_per_token: f64) -> Option<f64> {
    ratio(dense_ms_per_token, ms_per_token)
}

/// The speed-up of decoding that counters and a cost predict: `1 / (share / (tokens_per_cycle / cost_ratio) + 1 − share)`. What cycles gave is
/// faster by the tokens they give for their cost; the rest takes dense steps.
pub fn predicted_speedup(share: f64, tokens_per_cycle: f64, cost_ratio: f64) -> Option<f64> {
    let faster = ratio(tokens_per_cycle, cost_ratio)?;
    ratio(1.0, ratio(share, faster)? + 1.0 - share)
}

/// Milliseconds a token of a reply took to decode: the first token comes out of the prefill, so decoding makes one fewer than the reply has.
pub fn decode_ms_per_token(decode_s: f64, output_tokens: u64) -> Option<f64> {
    ratio(decode_s * 1e3, output_tokens.checked_sub(1)? as f64)
}

/// Tokens a cycle is expected to give that drafts as many tokens as `acceptance` has positions: `1 + Σ_j Π_{i ≤ j} p_i`, where `p_i` is the
/// acceptance of position i given that those before it were accepted.
pub fn expected_tokens(acceptance: impl IntoIterator<Item = f64>) -> f64 {
    let mut reached = 1.0;
    acceptance.into_iter().fold(1.0, |tokens, p| {
        reached *= p;
        tokens + reached
    })
}

/// Leviathan, Kalman and Matias (ICML 2023, arXiv 2211.17192): tokens a cycle is expected to give if every one of its `depth` drafted tokens were
/// accepted with the same probability, whatever came before: `(1 − α^(γ+1)) / (1 − α)`.
pub fn leviathan_tokens(acceptance: f64, depth: u32) -> f64 {
    expected_tokens(std::iter::repeat_n(acceptance, depth as usize))
}

/// Of the depths from 0 on, the one with the greatest expected tokens by `costs`, and that rate; the least of equals. Depths without a cost are
/// left out, and `None` is returned where none has one.
pub fn best_depth(acceptance: &[f64], costs: impl Fn(u32) -> Option<f64>) -> Option<(u32, f64)> {
    let mut best: Option<(u32, f64)> = None;
    for depth in 0..=acceptance.len() {
        let tokens = expected_tokens(acceptance[..depth].iter().copied());
        let Some(rate) = costs(depth as u32).and_then(|cost| ratio(tokens, cost)) else { continue };
        if best.is_none_or(|(_, before)| rate > before) {
            best = Some((depth as u32, rate));
        }
    }
    best
}

/// What cycles gave and cost. A speed-up is not among it: that is for those who know what the audit showed, see
/// [`SpeculationAccount::speed_up`](crate::ledger::SpeculationAccount::speed_up).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Economics {
    /// Tokens per cycle.
    pub tokens_per_cycle: Option<f64>,
    /// The share of the reply that cycles gave, as it is published: its first token is in the divisor.
    pub share: Option<f64>,
    /// The share of the tokens after the first that cycles gave.
    pub decoded_share: Option<f64>,
    /// Milliseconds a cycle took on average.
    pub ms_per_cycle: Option<f64>,
    /// Milliseconds a dense step takes.
    pub dense_ms_per_token: Option<f64>,
    /// What a cycle costs in dense steps: the tokens per cycle at which it breaks even.
    pub cost_ratio: Option<f64>,
}

impl Economics {
    /// Of counters, the time of all cycles, and the time of a dense step.
    pub fn of(counters: &Counters, cycles_ms: Option<f64>, dense_ms_per_token: Option<f64>) -> Economics {
        let ms_per_cycle = cycles_ms.and_then(|ms| ratio(ms, counters.cycles as f64));
        let gave = Economics {
            tokens_per_cycle: counters.tokens_per_cycle(),
            share: counters.share(),
            decoded_share: counters.decoded_share(),
            ..Economics::default()
        };
        gave.costing(ms_per_cycle, dense_ms_per_token)
    }

    /// The same cycles at a cost.
    fn costing(self, ms_per_cycle: Option<f64>, dense_ms_per_token: Option<f64>) -> Economics {
        let cost_ratio = ms_per_cycle.zip(dense_ms_per_token).and_then(|(ms, dense)| cost_ratio(ms, dense));
        Economics { ms_per_cycle, dense_ms_per_token, cost_ratio, ..self }
    }

    /// Whether a cycle gives more tokens than it costs dense steps.
    pub fn pays(&self) -> Option<bool> {
        Some(self.tokens_per_cycle? > self.cost_ratio?)
    }

    /// The speed-up of decoding that is predicted, over the same tokens as it is measured over: those after the first. It is tokens per cycle by
    /// cost where all of these are of cycles. For those who have made sure that the replies are what they should be.
    pub fn predicted_speedup(&self) -> Option<f64> {
        predicted_speedup(self.decoded_share?, self.tokens_per_cycle?, self.cost_ratio?)
    }

    /// The same as EXP-002 has it, by the published share: a reply's first token counts as a dense step.
    pub fn published_speedup(&self) -> Option<f64> {
        predicted_speedup(self.share?, self.tokens_per_cycle?, self.cost_ratio?)
    }
}
