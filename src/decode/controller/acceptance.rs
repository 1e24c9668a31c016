//! How often drafted tokens are accepted, by position, as a moving average.

/// Tests that a position's average remembers.
const MEMORY: f64 = 24.0;
/// Tests it still remembers when a reply begins.
const REMEMBERED: f64 = 6.0;
/// Tests it still remembers when it has turned out wrong, or has grown old.
const DOUBTED: f64 = 2.0;
/// Tests that the position before counts for.
const SHRINKAGE: f64 = 2.0;
/// What the first position is taken to be like before anything is known: an acceptance, and the tests it counts for.
const PRIOR: (f64, f64) = (0.6, 1.0);
/// A run of equal results at the first position that was less likely than this says that acceptance has changed.
const SURPRISE: f64 = 0.02;

#[derive(Debug, Clone, Copy, Default)]
struct Average {
    tests: f64,
    accepted: f64,
}

impl Average {
    fn add(&mut self, accepted: bool) {
        let keep = 1.0 - 1.0 / MEMORY;
        self.tests = self.tests * keep + 1.0;
        self.accepted = self.accepted * keep + f64::from(u8::from(accepted));
    }

    /// Makes it count for at most `tests`; it stays what it is.
    fn forget(&mut self, tests: f64) {
        if self.tests > tests {
            self.accepted *= tests / self.tests;
            self.tests = tests;
        }
    }
}

/// Acceptance by position.
#[derive(Debug, Clone)]
pub(super) struct Acceptance {
    positions: Vec<Average>,
    /// The result of the latest tests of the first position, and how likely so many of it in a row were.
    run: Option<(bool, f64)>,
}

impl Acceptance {
    pub(super) fn new(depth_max: u32) -> Acceptance {
        Acceptance { positions: vec![Average::default(); depth_max as usize], run: None }
    }

    /// Tests that a position's average counts for.
    pub(super) fn tests(&self, position: usize) -> f64 {
        self.positions.get(position).map_or(0.0, |average| average.tests)
    }

    /// The acceptance at a position; `None` where nobody has seen it.
    pub(super) fn seen(&self, position: usize) -> Option<f64> {
        (self.tests(position) > 0.0).then(|| self.estimate(position))
    }

    /// The same, and where little was seen what the positions before it let expect.
    pub(super) fn estimate(&self, position: usize) -> f64 {
        let (mut estimate, mut weight) = PRIOR;
        for average in self.positions.iter().take(position + 1) {
            estimate = (average.accepted + weight * estimate) / (average.tests + weight);
            weight = SHRINKAGE;
        }
        estimate
    }

    pub(super) fn observe(&mut self, drafted: u32, accepted: u32) {
        if drafted == 0 {
            return;
        }
        let first = accepted > 0;
        let likely = if first { self.estimate(0) } else { 1.0 - self.estimate(0) };
        let before = self.run.filter(|(result, _)| *result == first).map_or(1.0, |(_, likely)| likely);
        self.run = Some((first, before * likely));
        if before * likely < SURPRISE {
            self.doubt();
        }
        // A test beyond the accepted ones is the one that failed.
        let tested = (accepted + 1).min(drafted);
        for (position, average) in self.positions.iter_mut().enumerate().take(tested as usize) {
            average.add((position as u32) < accepted);
        }
    }

    /// What is known may no longer be so: it counts for little from here on.
    pub(super) fn doubt(&mut self) {
        self.positions.iter_mut().for_each(|average| average.forget(DOUBTED));
        self.run = None;
    }

    pub(super) fn start_reply(&mut self) {
        self.positions.iter_mut().for_each(|average| average.forget(REMEMBERED));
        self.run = None;
    }
}
