//! What each depth costs and gives: as cycles showed, otherwise as the verify curve and acceptance by position let expect.

use serde::Serialize;

use crate::config::SpeculationConfig;
use crate::decode::economics::{best_depth, expected_tokens};
use crate::decode::what_if::CycleCosts;
use crate::ledger::{RequestFacts, SpeculationAccount};

/// What a depth costs and gives.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DepthCost {
    /// Tokens drafted.
    pub depth: u32,
    /// Cycles that drafted so many.
    pub cycles: u64,
    /// What such a cycle costs in dense steps.
    pub cost: f64,
    /// Whether cycles measured it; otherwise it rests on the verify curve, or lies on a line through what is known.
    pub measured: bool,
    /// Tokens it is expected to give by acceptance at each position; `None` where a position was never tested.
    pub gives: Option<f64>,
}

/// What depths cost and give, and which is best.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DepthCosts {
    /// By rising depth, from 0.
    pub depths: Vec<DepthCost>,
    /// Of those whose acceptance is known, the one with the greatest expected rate.
    pub best: u32,
    /// Tokens per dense step there.
    pub best_rate: f64,
}

impl RequestFacts {
    /// What depths cost and give, up to the greatest depth and as far as the curve goes; `None` where costs are not known. `account` is the
    /// request's.
    pub fn depth_costs(&self, account: &SpeculationAccount) -> Option<DepthCosts> {
        let speculation = self.speculation.as_deref()?;
        let costs = self.cycle_costs(account)?;
        let widest = speculation
            .curve
            .iter()
            .flat_map(|curve| &curve.points)
            .map(|(width, _)| width.saturating_sub(1));
        let widest =
            widest.max().unwrap_or(0).max(account.depth_max.unwrap_or(0)).min(SpeculationConfig::MAX_DEPTH);
        let seen = account.counters.positions.iter().map_while(|position| position.acceptance());
        let acceptance: Vec<f64> = seen.take(widest as usize).collect();
        let one = |depth: u32| DepthCost {
            depth,
            cycles: speculation.cycles.iter().filter(|cycle| cycle.drafted == depth).count() as u64,
            cost: costs.dense_steps(depth),
            measured: costs.is_measured(depth),
            gives: acceptance.get(..depth as usize).map(|known| expected_tokens(known.iter().copied())),
        };
        let (best, best_rate) = best_depth(&acceptance, |depth| Some(costs.dense_steps(depth)))?;
        Some(DepthCosts { depths: (0..=widest).map(one).collect(), best, best_rate })
    }

    /// What its cycles cost by width, for what-if replays; `None` where the cost of a dense step or of every other width is not known, and where an
    /// audit failed or the counters cannot be.
    pub fn cycle_costs(&self, account: &SpeculationAccount) -> Option<CycleCosts> {
        let speculation = self.speculation.as_deref().filter(|_| account.is_sound())?;
        let dense_s = account.dense().map(|dense| dense.ms / 1e3);
        CycleCosts::of(&speculation.cycles, speculation.curve.as_ref(), dense_s)
    }
}
