//! What a cycle costs by the tokens drafted in it, as a moving average that bears a machine whose speed wanders.
//!
//! A cost is a product: the speed of the machine, which is the time of an ordinary step, and the width's own part. So the ratios of costs, and these
//! alone decide, hold while the machine slows down, also those of widths nobody measures meanwhile: cycles that are much slower than expected ask
//! for an ordinary step, and that tells whether it is the machine. No measurement is believed alone, since it may have caught the machine at
//! something else.

use crate::decode::economics::Costs;

/// Measurements in whose light a further one is seen.
const WINDOW: usize = 3;
/// Bounds of what they may say at once: a part and a multiple of what was expected.
const CLIP: f64 = 2.0;
/// The same while it is not known how fast the machine is.
const CLIP_SETTLING: f64 = 4.0;
/// By how much cycles with drafts must be slower or faster than expected to raise the question whether the machine is.
const STEADY: f64 = 1.15;
/// Cycles after an ordinary step in which there is no question.
const FRESH: u32 = 3;

/// A width's cost.
#[derive(Debug, Clone)]
enum Width {
    /// Its first times, as they were measured.
    New(Vec<f64>),
    /// Its cost in ordinary steps, and the latest measurement as a multiple of what was expected.
    Known { own: f64, latest: f64 },
}

/// Costs in nanoseconds by the tokens drafted.
#[derive(Debug, Clone)]
pub(super) struct CycleCosts {
    /// From one drafted token on.
    widths: Vec<Width>,
    /// Time of an ordinary step.
    speed: Option<f64>,
    /// The speed that was known when the reply began, until enough measurements of the reply tell how fast the machine is now.
    before: Option<f64>,
    /// The latest ordinary steps.
    dense: Vec<f64>,
    /// The latest cycles with drafts, as multiples of what was expected.
    drafting: Vec<f64>,
    /// Cycles since the latest ordinary step.
    since_dense: u32,
    /// Whether the machine may have become faster or slower.
    in_question: bool,
    /// Ordinary steps that were measured.
    dense_steps: usize,
    /// Outcomes in a row without a time.
    untold: u32,
}

impl CycleCosts {
    pub(super) fn new(depth_max: u32) -> CycleCosts {
        CycleCosts {
            widths: vec![Width::New(Vec::new()); depth_max as usize],
            speed: None,
            before: None,
            dense: Vec::new(),
            drafting: Vec::new(),
            since_dense: 0,
            in_question: false,
            dense_steps: 0,
            untold: 0,
        }
    }

    pub(super) fn start_reply(&mut self) {
        self.before = self.speed;
        self.dense.clear();
        self.drafting.clear();
    }

    /// Measurements of a width, up to as many as make it known.
    pub(super) fn measurements(&self, drafted: u32) -> usize {
        match (drafted as usize).checked_sub(1).map(|index| self.widths.get(index)) {
            None => self.dense_steps.min(WINDOW),
            Some(Some(Width::New(first))) => first.len(),
            Some(Some(Width::Known { .. })) => WINDOW,
            Some(None) => 0,
        }
    }

    /// The cost of a width; `None` where nobody has measured it. An ordinary step is never taken to cost more than a cycle with a draft.
    pub(super) fn measured(&self, drafted: u32) -> Option<f64> {
        let Some(index) = (drafted as usize).checked_sub(1) else {
            let of_new = self.widths.iter().filter_map(|width| match width {
                Width::New(first) => least_or_middle(first),
                Width::Known { .. } => None,
            });
            return Some(of_new.fold(self.speed?, f64::min));
        };
        match self.widths.get(index)? {
            Width::New(first) => least_or_middle(first),
            Width::Known { own, .. } => Some(own * self.speed?),
        }
    }

    /// Whether an ordinary step should be measured: cycles are slower or faster than expected, or one with a draft was measured to take less than an
    /// ordinary step, so that one of the two was measured at a bad moment.
    pub(super) fn wants_dense_step(&self) -> bool {
        let dense = self.speed;
        let less = |drafted: usize| self.measured(drafted as u32).zip(dense).is_some_and(|(a, b)| a < b);
        self.in_question || self.since_dense > 1 && (1..=self.widths.len()).any(less)
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
        let widths = 0..=self.widths.len() as u32;
        let without = |left_out: Option<u32>| {
            let points = widths.clone().filter(|drafted| Some(*drafted) != left_out);
            Costs::new(points.filter_map(|drafted| Some((drafted, self.measured(drafted)?))))
        };
        let unsure = widths
            .clone()
            .filter(|drafted| *drafted > 0 && (1..WINDOW).contains(&self.measurements(*drafted)));
        Lines {
            all: without(None),
            without: unsure.map(|drafted| (drafted, without(Some(drafted)))).collect(),
        }
    }

    /// Takes note of a time.
    pub(super) fn observe(&mut self, drafted: u32, took: f64) {
        if !(took.is_finite() && took > 0.0) {
            return;
        }
        self.untold = 0;
        let Some(index) = (drafted as usize).checked_sub(1) else {
            return self.observe_dense(took);
        };
        self.since_dense = self.since_dense.saturating_add(1);
        let (speed, settled) = (self.speed, self.before.is_none());
        match self.widths.get_mut(index) {
            None => {}
            Some(width @ Width::New(_)) => {
                let Width::New(first) = &mut *width else { return };
                push(first, took);
                let cost = least_or_middle(first).filter(|_| first.len() == WINDOW);
                if let Some((cost, speed)) = cost.zip(speed) {
                    *width = Width::Known { own: (cost / speed).max(1.0), latest: 1.0 };
                }
            }
            Some(Width::Known { own, latest }) => {
                let Some(speed) = speed else { return };
                let off = (took / (*own * speed)).clamp(1.0 / CLIP, CLIP);
                let before = std::mem::replace(latest, off);
                push(&mut self.drafting, off);
                let seen = least_or_middle(&self.drafting).filter(|_| self.drafting.len() == WINDOW);
                let steady = seen.is_none_or(|off| (1.0 / STEADY..=STEADY).contains(&off));
                if !steady && self.since_dense > FRESH {
                    self.in_question = true;
                } else if settled {
                    // Of what is expected, this one and the one before, what lies in the middle.
                    let agreed = off.min(before).max(off.max(before).min(1.0));
                    let agreed = if steady { agreed.sqrt().sqrt().sqrt() } else { agreed.sqrt().sqrt() };
                    *own = (*own * agreed).max(1.0);
                }
            }
        }
    }

    fn observe_dense(&mut self, took: f64) {
        self.dense_steps = self.dense_steps.saturating_add(1);
        self.since_dense = 0;
        let Some(speed) = self.speed else {
            self.dense.push(took);
            self.speed = Some(took);
            return;
        };
        if self.in_question {
            self.in_question = false;
            self.before = Some(speed);
            self.dense.clear();
            self.drafting.clear();
        }
        push(&mut self.dense, took);
        let many = self.dense.len() == WINDOW;
        let Some(seen) = least_or_middle(&self.dense) else { return };
        self.speed = Some(match self.before {
            Some(before) => before * (seen / before).clamp(1.0 / CLIP_SETTLING, CLIP_SETTLING),
            // Nothing else is known of the machine yet.
            None if self.dense_steps < WINDOW => seen,
            None if many => speed * (seen / speed).clamp(1.0 / CLIP, CLIP).sqrt(),
            None => speed,
        });
        self.before = self.before.filter(|_| !many);
    }
}

/// Adds a measurement to the latest ones.
fn push(latest: &mut Vec<f64>, measured: f64) {
    if latest.len() == WINDOW {
        latest.remove(0);
    }
    latest.push(measured);
}

/// Of one or two measurements the least, since what disturbs a measurement makes it longer; of three the one in the middle.
fn least_or_middle(measured: &[f64]) -> Option<f64> {
    let mut sorted = measured.to_vec();
    sorted.sort_by(f64::total_cmp);
    if sorted.len() < WINDOW { sorted.first().copied() } else { sorted.get(sorted.len() / 2).copied() }
}

/// See [`CycleCosts::lines`].
#[derive(Debug)]
pub(super) struct Lines {
    all: Costs,
    without: Vec<(u32, Costs)>,
}

impl Lines {
    /// What a width is expected to cost. A cost that was measured once or twice may have caught the machine at something else, so it is not
    /// believed to be more than a line through the others says. `None` before two widths were measured, and this one is not among them.
    pub(super) fn expected(&self, drafted: u32) -> Option<f64> {
        let cost = self.all.estimate(drafted)?;
        let without = self.without.iter().find(|(left_out, _)| *left_out == drafted);
        let line = without.and_then(|(_, line)| line.estimate(drafted));
        Some(line.map_or(cost, |line| cost.min(line)))
    }
}
