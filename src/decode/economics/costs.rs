//! What a forward, or a cycle, costs by its width: what was measured, and a line through it where nobody did.

use serde::Serialize;

/// A cost that was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CostPoint {
    /// Tokens drafted.
    pub drafted: u32,
    /// Seconds.
    pub seconds: f64,
}

/// Costs by the number of drafted tokens.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Costs {
    points: Vec<CostPoint>,
}

impl Costs {
    /// From measurements in any order; of several for the same number the last counts, and what is no positive time is none.
    pub fn new(measured: impl IntoIterator<Item = (u32, f64)>) -> Costs {
        let sound = measured.into_iter().filter(|(_, seconds)| seconds.is_finite() && *seconds > 0.0);
        let by_number: std::collections::BTreeMap<u32, f64> = sound.collect();
        let points = by_number.into_iter().map(|(drafted, seconds)| CostPoint { drafted, seconds }).collect();
        Costs { points }
    }

    /// What was measured, by rising number.
    pub fn points(&self) -> &[CostPoint] {
        &self.points
    }

    /// The cost of drafting and verifying `drafted` tokens as it was measured, seconds.
    pub fn measured(&self, drafted: u32) -> Option<f64> {
        self.points.iter().find(|point| point.drafted == drafted).map(|point| point.seconds)
    }

    /// The same, or where nobody measured it, what a line through the nearest measurements says: between two of them, or on from the last two. A
    /// wider forward is never taken to cost less than the widest that was measured below it. `None` with fewer than two measurements.
    pub fn estimate(&self, drafted: u32) -> Option<f64> {
        if let Some(measured) = self.measured(drafted) {
            return Some(measured);
        }
        let above = self.points.iter().position(|point| point.drafted > drafted).unwrap_or(self.points.len());
        // The pair around it, or at an end the pair that is nearest.
        let second = above.clamp(1, self.points.len().checked_sub(1)?.max(1));
        let (a, b) = (self.points.get(second - 1)?, self.points.get(second)?);
        let slope = (b.seconds - a.seconds) / (f64::from(b.drafted) - f64::from(a.drafted));
        let between = above > 0 && above < self.points.len();
        let slope = if between { slope } else { slope.max(0.0) };
        let from = if above == 0 { a } else { b };
        let line = from.seconds + slope * (f64::from(drafted) - f64::from(from.drafted));
        Some(line.max(a.seconds.min(b.seconds) * 0.1))
    }
}
