//! What a cycle costs by the tokens drafted in it, as a moving average that bears a machine whose speed wanders.
//!
//! A cost is a product: the speed of the machine, which all widths share, and the width's own part. A measurement moves the first quickly and the
//! second slowly. So the ratios of costs, and these alone decide, hold while the machine slows down, also those of widths nobody measures
//! meanwhile.

use crate::decode::economics::Costs;

/// Measurements of a width before a further one only corrects it.
const FIRST: usize = 3;
/// Measurements at a reply's beginning that tell how fast the machine is now.
const SETTLING: u32 = 3;
/// Bounds of what one measurement may say: a part and a multiple of what was expected.
const CLIP: f64 = 2.0;
/// The same while it is not known how fast the machine is.
const CLIP_SETTLING: f64 = 4.0;

#[derive(Debug, Clone, Default)]
struct Width {
    /// The first measurements, in units of the machine's speed then.
    first: Vec<f64>,
    /// The width's own part of the cost.
    own: Option<f64>,
}

/// Costs in nanoseconds by the tokens drafted.
#[derive(Debug, Clone)]
pub(super) struct CycleCosts {
    widths: Vec<Width>,
    speed: f64,
    settling: u32,
    /// Outcomes in a row without a time.
    untold: u32,
    told: bool,
}

impl CycleCosts {
    pub(super) fn new(depth_max: u32) -> CycleCosts {
        let widths = vec![Width::default(); depth_max as usize + 1];
        CycleCosts { widths, speed: 1.0, settling: 0, untold: 0, told: false }
    }

    pub(super) fn start_reply(&mut self) {
        if self.told {
            self.settling = SETTLING;
        }
    }

    /// Measurements of a width, as far as they are counted.
    pub(super) fn measurements(&self, drafted: u32) -> usize {
        self.widths.get(drafted as usize).map_or(0, |width| width.first.len())
    }

    /// The cost of a width; `None` where nobody has measured it.
    pub(super) fn measured(&self, drafted: u32) -> Option<f64> {
        Some(self.widths.get(drafted as usize)?.own? * self.speed)
    }

    /// Whether outcomes come without times: other sequences share the forwards.
    pub(super) fn are_not_told(&self) -> bool {
        self.untold >= 3
    }

    pub(super) fn not_told(&mut self) {
        self.untold = self.untold.saturating_add(1);
    }

    /// Lines through what was measured; for each width that was measured too seldom to be sure, one that leaves it out.
    pub(super) fn lines(&self) -> Lines {
        let without = |left_out: Option<usize>| {
            let points = self.widths.iter().enumerate().filter(|(drafted, _)| Some(*drafted) != left_out);
            Costs::new(points.filter_map(|(drafted, width)| Some((drafted as u32, width.own? * self.speed))))
        };
        let unsure = self.widths.iter().enumerate();
        let unsure =
            unsure.filter(|(drafted, width)| *drafted > 0 && (1..FIRST).contains(&width.first.len()));
        Lines {
            all: without(None),
            without: unsure.map(|(drafted, _)| (drafted as u32, without(Some(drafted)))).collect(),
        }
    }

    /// What a width is expected to cost. A cost that was measured once or twice may have caught the machine at something else, so it is not
    /// believed to be more than a line through the others says. `None` before two widths were measured, and this one is not among them.
    pub(super) fn expected(&self, lines: &Lines, drafted: u32) -> Option<f64> {
        let cost = lines.all.estimate(drafted)?;
        let without = lines.without.iter().find(|(left_out, _)| *left_out == drafted);
        let line = without.and_then(|(_, line)| line.estimate(drafted));
        Some(line.map_or(cost, |line| cost.min(line)))
    }

    pub(super) fn observe(&mut self, drafted: u32, took: f64) {
        let Some(width) = self.widths.get_mut(drafted as usize) else { return };
        if !(took.is_finite() && took > 0.0) {
            return;
        }
        if !self.told {
            // The first measurement of all: the machine's speed is what it says.
            (self.told, self.speed) = (true, took);
        }
        self.untold = 0;
        let expected = width.own.map(|own| own * self.speed);
        if let Some(expected) = expected.filter(|_| self.settling > 0) {
            self.settling -= 1;
            let off = (took / expected).clamp(1.0 / CLIP_SETTLING, CLIP_SETTLING);
            self.speed *= off.sqrt() * off.sqrt().sqrt();
        }
        if width.first.len() < FIRST {
            width.first.push(took / self.speed);
            width.own = Some(least_or_middle(&width.first));
            return;
        }
        let own = width.own.unwrap_or(1.0);
        let off = (took / (own * self.speed)).clamp(1.0 / CLIP, CLIP);
        let fourth = off.sqrt().sqrt();
        self.speed *= fourth;
        width.own = Some(own * fourth.sqrt().sqrt());
    }
}

/// Of one or two measurements the least, since what disturbs a measurement makes it longer; of three the one in the middle.
fn least_or_middle(measured: &[f64]) -> f64 {
    let mut sorted = measured.to_vec();
    sorted.sort_by(f64::total_cmp);
    if sorted.len() < FIRST { sorted[0] } else { sorted[FIRST / 2] }
}

/// See [`CycleCosts::lines`].
#[derive(Debug)]
pub(super) struct Lines {
    all: Costs,
    without: Vec<(u32, Costs)>,
}
