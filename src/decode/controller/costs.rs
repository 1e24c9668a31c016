//! What a cycle costs by the tokens drafted in it, on a machine whose speed wanders.
//!
//! A time is taken to be a product: the speed of the machine, the width's own cost, and a disturbance that only ever makes it longer. Ratios of
//! own costs alone decide on a depth, and they hold while the machine slows down, also those of widths nobody measures meanwhile. So every time is
//! seen in units of the speed of its moment, and the speed follows what the latest times of all widths have in common.
//!
//! An ordinary step amid cycles is disturbed more than one of many: the threads of the device were at something else just before. A cycle is disturbed
//! more if it is the first after many steps, which its drafter has yet to read. So of the latest times of a width one of the shortest counts.

use std::collections::VecDeque;

use crate::decode::economics::Costs;
use crate::event::Nanos;

/// Latest times of an ordinary step, and of a width, that count.
const KEPT: (usize, usize) = (6, 5);
/// Latest times, of whatever width, that tell the speed.
const RECENT: usize = 5;
/// By how much these must differ from what was expected for the machine to have changed. What is less may be chance.
const STEADY: f64 = 1.1;
/// Multiple of what a line through the sure widths says, beyond which a cost that is not sure is not believed.
const SUSPECT: f64 = 1.4;
/// Times of a width before what they say is sure.
const SURE: usize = 3;

/// Costs in nanoseconds by the tokens drafted.
#[derive(Debug, Clone)]
pub(super) struct CycleCosts {
    /// Nanoseconds of a unit of cost.
    speed: Option<f64>,
    /// The latest costs of each width, in units; the first is the ordinary step.
    widths: Vec<VecDeque<f64>>,
    /// The latest times as multiples of what was expected.
    recent: VecDeque<f64>,
    /// The speed at the latest ordinary step.
    speed_at_dense: Option<f64>,
    /// Cycles since then.
    since_dense: u32,
    /// Outcomes in a row without a time.
    untold: u32,
}

impl CycleCosts {
    pub(super) fn new(depth_max: u32) -> CycleCosts {
        CycleCosts {
            speed: None,
            widths: vec![VecDeque::new(); depth_max as usize + 1],
            recent: VecDeque::new(),
            speed_at_dense: None,
            since_dense: 0,
            untold: 0,
        }
    }

    /// A reply begins: whatever the machine did meanwhile, it is another moment.
    pub(super) fn start_reply(&mut self) {
        self.recent.clear();
    }

    /// Measurements of a width, up to as many as make it sure.
    pub(super) fn measurements(&self, drafted: u32) -> usize {
        self.widths.get(drafted as usize).map_or(0, |width| width.len().min(SURE))
    }

    /// The cost of a width; `None` where nobody has measured it. An ordinary step is never taken to cost more than a cycle with a draft.
    pub(super) fn measured(&self, drafted: u32) -> Option<f64> {
        Some(self.own(drafted)? * self.speed?)
    }

    /// The cost of a width in units.
    fn own(&self, drafted: u32) -> Option<f64> {
        match drafted as usize {
            0 => {
                let own = lower(&self.widths[0])?;
                Some(self.widths[1..].iter().filter_map(lower).fold(own, f64::min))
            }
            index => lower(self.widths.get(index)?),
        }
    }

    /// Whether an ordinary step should be measured: the speed has changed since the last one, or a cycle with a draft was measured to take less, so
    /// that one of the two was measured at a bad moment.
    pub(super) fn wants_dense_step(&self) -> bool {
        let changed = self.speed.zip(self.speed_at_dense).is_some_and(|(now, then)| !is_steady(now / then));
        let dense = lower(&self.widths[0]);
        let less = |width| lower(width).zip(dense).is_some_and(|(cycle, dense)| cycle < dense);
        self.since_dense > 1 && (changed || self.widths[1..].iter().any(less))
    }

    /// Whether outcomes come without times: other sequences share the forwards.
    pub(super) fn are_not_told(&self) -> bool {
        self.untold >= 3
    }

    pub(super) fn not_told(&mut self) {
        self.untold = self.untold.saturating_add(1);
    }

    /// Lines through what was measured.
    pub(super) fn lines(&self) -> Lines {
        let is_sure = |width: &VecDeque<f64>| width.len() >= SURE;
        let line = |counts: &dyn Fn(usize) -> bool| {
            let widths =
                (0..self.widths.len()).filter(|drafted| counts(*drafted)).map(|drafted| drafted as u32);
            Costs::new(widths.filter_map(|drafted| Some((drafted, self.measured(drafted)?))))
        };
        let unsure = self.widths.iter().map(|width| !width.is_empty() && !is_sure(width)).collect();
        Lines {
            all: line(&|_| true),
            of_sure: line(&|drafted| drafted == 0 || is_sure(&self.widths[drafted])),
            unsure,
        }
    }

    /// Whether a time is much shorter than was to be expected, so that what is known of its width may be of a bad moment.
    pub(super) fn is_surprising(&self, drafted: u32, took: Nanos) -> bool {
        self.measured(drafted).is_some_and(|expected| (took.0 as f64) < expected / STEADY)
    }

    /// Takes note of a time.
    pub(super) fn observe(&mut self, drafted: u32, took: f64) {
        if !(took.is_finite() && took > 0.0) {
            return;
        }
        self.untold = 0;
        let speed = *self.speed.get_or_insert(took);
        if let Some(own) = self.own(drafted).filter(|_| self.measurements(drafted) == SURE) {
            self.follow(took / (own * speed));
        }
        let speed = self.speed.unwrap_or(speed);
        let kept = if drafted == 0 { KEPT.0 } else { KEPT.1 };
        if let Some(width) = self.widths.get_mut(drafted as usize) {
            push(width, took / speed, kept);
        }
        if drafted == 0 {
            (self.since_dense, self.speed_at_dense) = (0, Some(speed));
        } else {
            self.since_dense = self.since_dense.saturating_add(1);
        }
    }

    /// Has the speed follow a time that was `off` times what was expected. It moves in steps: a speed that followed every small deviation would creep
    /// away from the widths that are not measured meanwhile.
    fn follow(&mut self, off: f64) {
        push(&mut self.recent, off, RECENT);
        let common = lower(&self.recent).filter(|_| self.recent.len() == RECENT);
        let (Some(common), Some(speed)) = (common, &mut self.speed) else { return };
        if !is_steady(common) {
            *speed *= common;
            self.recent.clear();
        }
    }
}

fn is_steady(off: f64) -> bool {
    (1.0 / STEADY..=STEADY).contains(&off)
}

/// Adds a measurement to the latest ones.
fn push(latest: &mut VecDeque<f64>, measured: f64, kept: usize) {
    if latest.len() == kept {
        latest.pop_front();
    }
    latest.push_back(measured);
}

/// The second shortest of four or more measurements, the shortest of fewer: what disturbs a measurement makes it longer.
fn lower(measured: &VecDeque<f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = measured.iter().copied().collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(usize::from(sorted.len() > SURE)).or(sorted.first()).copied()
}

/// See [`CycleCosts::lines`].
#[derive(Debug)]
pub(super) struct Lines {
    /// Through every width that was measured.
    all: Costs,
    /// Through those that are sure.
    of_sure: Costs,
    /// Widths that were measured and are not sure.
    unsure: Vec<bool>,
}

impl Lines {
    /// What a width is expected to cost. One that was measured once or twice may have caught the machine at something else, as the first forward of a
    /// width does, which gets its memory; so it is not believed to cost much more than a line through the sure ones says. `None` before two widths
    /// were measured, and this one is not among them.
    pub(super) fn expected(&self, drafted: u32) -> Option<f64> {
        let cost = self.all.estimate(drafted)?;
        let unsure = self.unsure.get(drafted as usize).is_some_and(|unsure| *unsure);
        let line = self.of_sure.estimate(drafted).filter(|line| unsure && cost > line * SUSPECT);
        Some(line.unwrap_or(cost))
    }
}
