//! What cycles of a recorded run cost by their width.

use serde::Serialize;

use crate::decode::economics::Costs;
use crate::event::{Cycle, VerifyCurve};

/// Costs of cycles by the tokens drafted, seconds: as the run's own cycles took, or as its verify curve and what its cycles took beside their forwards
/// let expect, and a line through both elsewhere.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CycleCosts {
    dense: f64,
    costs: Costs,
    /// Tokens drafted in the cycles that were measured.
    own: Vec<u32>,
}

impl CycleCosts {
    /// Of a reply's cycles, its curve, and the seconds of a dense step. `None` where the cost of a dense step is not known, or that of no other width.
    pub fn of(cycles: &[Cycle], curve: Option<&VerifyCurve>, dense_s: Option<f64>) -> Option<CycleCosts> {
        let alone = || cycles.iter().filter(|cycle| cycle.neighbours == 0);
        let point = |width: u32| Some(curve?.points.iter().find(|(w, _)| *w == width)?.1.seconds());
        let by_width = |drafted: u32| {
            let took = alone().filter(|cycle| cycle.drafted == drafted);
            usual(took.filter_map(|cycle| Some(cycle.took()?.seconds())).collect())
        };
        let dense = dense_s.or_else(|| by_width(0)).or_else(|| point(1)).filter(|dense| *dense > 0.0)?;
        let widest = alone().map(|cycle| cycle.drafted).max().unwrap_or(0).min(64);
        let own = (1..=widest).filter_map(|drafted| Some((drafted, by_width(drafted)?)));
        let own: Vec<(u32, f64)> = own.collect();
        // A curve measures forwards alone, at another moment: what else a cycle does comes on top, and the forward goes by the run's own dense step.
        let drafting = usual(
            alone().filter(|c| c.drafted > 0).map(|c| c.draft.seconds() / f64::from(c.drafted)).collect(),
        );
        let drafting = drafting.unwrap_or(0.0);
        // Sampling, rollback and commit.
        let beside = |c: &Cycle| {
            Some(c.took()?.seconds() - c.draft.seconds() - c.verify?.seconds()).filter(|rest| *rest >= 0.0)
        };
        let rest = usual(alone().filter(|c| c.drafted > 0).filter_map(beside).collect()).unwrap_or(0.0);
        let of_curve = |drafted: u32| {
            Some(point(drafted + 1)? * dense / point(1)? + drafting * f64::from(drafted) + rest)
        };
        let widths =
            curve.iter().flat_map(|curve| &curve.points).filter_map(|(width, _)| width.checked_sub(1));
        let known = |drafted: u32| own.iter().any(|(width, _)| *width == drafted);
        let of_curve = widths.filter(|d| *d > 0 && !known(*d)).filter_map(|d| Some((d, of_curve(d)?)));
        let costs = Costs::new([(0, dense)].into_iter().chain(of_curve).chain(own.iter().copied()));
        let own = own.into_iter().map(|(drafted, _)| drafted).collect();
        (costs.points().len() > 1).then_some(CycleCosts { dense, costs, own })
    }

    /// Seconds of a cycle in which `drafted` tokens are drafted.
    pub fn cycle(&self, drafted: u32) -> f64 {
        self.costs.estimate(drafted).unwrap_or(self.dense)
    }

    /// The same in dense steps.
    pub fn dense_steps(&self, drafted: u32) -> f64 {
        self.cycle(drafted) / self.dense
    }

    /// Seconds of a dense step.
    pub fn dense(&self) -> f64 {
        self.dense
    }

    /// Whether the run's own cycles measured it. What rests on the verify curve did not.
    pub fn is_measured(&self, drafted: u32) -> bool {
        drafted == 0 || self.own.contains(&drafted)
    }
}

/// The mean, without what is far beyond the middle one: the machine was at something else then. `None` without a time.
fn usual(mut times: Vec<f64>) -> Option<f64> {
    times.retain(|time| time.is_finite() && *time >= 0.0);
    times.sort_by(f64::total_cmp);
    let middle = *times.get(times.len() / 2)?;
    let kept: Vec<f64> = times.into_iter().filter(|time| *time <= middle * 3.0).collect();
    crate::decode::economics::ratio(kept.iter().sum(), kept.len() as f64)
}
