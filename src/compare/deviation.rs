//! Why a prediction of the decode speed-up does not hold, from the split of the time.

use super::spread::Spread;
use crate::decode::economics::ratio;

/// The times of one decoding beside ordinary decoding. The prediction takes it to be made of cycles and of dense steps and of nothing else, so what it misses
/// is what remains.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Split {
    /// Time of all tokens after the first, milliseconds.
    pub decode_ms: f64,
    /// Time of all cycles, milliseconds; `None` where one was shared.
    pub cycles_ms: Option<f64>,
    /// Tokens after the first.
    pub steps: u64,
    /// Of those, tokens that cycles gave.
    pub cycle_tokens: u64,
    /// Time of a dense step, milliseconds.
    pub dense_ms: Option<f64>,
    /// By how much dense steps before and after the decoding differ, as a part of their mean; `None` where they were not measured twice.
    pub drift: Option<f64>,
}

impl Split {
    fn ordinary_steps(&self) -> u64 {
        self.steps.saturating_sub(self.cycle_tokens)
    }

    /// What is neither a cycle's time nor that of as many dense steps as were ordinary, as a part of the decode time.
    fn unaccounted(&self) -> Option<f64> {
        let ordinary = match self.ordinary_steps() {
            0 => 0.0,
            steps => steps as f64 * self.dense_ms?,
        };
        ratio(self.decode_ms - self.cycles_ms? - ordinary, self.decode_ms)
    }

    /// What an ordinary step took, in dense steps, if all time outside of cycles was theirs.
    fn ordinary_cost(&self) -> Option<f64> {
        ratio(ratio(self.decode_ms - self.cycles_ms?, self.ordinary_steps() as f64)?, self.dense_ms?)
    }
}

/// What the measurement has that the prediction leaves out, over repeats; `None` where none of it was measured.
pub fn why_off(splits: &[Split]) -> Option<String> {
    let over = |figure: fn(&Split) -> Option<f64>| Some(Spread::of(splits.iter().map(figure))?.median);
    let mut words = Vec::new();
    if let Some(left) = over(Split::unaccounted) {
        words.push(format!("{:+.0} % of the decode time is neither cycles nor dense steps", left * 100.0));
    }
    if let Some(cost) = over(Split::ordinary_cost) {
        words.push(format!("steps outside of cycles take {cost:.2} dense steps each"));
    }
    if let Some(drift) = over(|split| split.drift) {
        words.push(format!("dense steps before and after differ by {:.0} %", drift * 100.0));
    }
    (!words.is_empty()).then(|| words.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten tokens: eight of four cycles of 1.5 ms, two ordinary ones of a millisecond.
    fn split() -> Split {
        Split {
            decode_ms: 8.0,
            cycles_ms: Some(6.0),
            steps: 10,
            cycle_tokens: 8,
            dense_ms: Some(1.0),
            drift: None,
        }
    }

    #[test]
    fn what_is_made_of_cycles_and_dense_steps_leaves_nothing() {
        assert_eq!((split().unaccounted(), split().ordinary_cost()), (Some(0.0), Some(1.0)));
        let slow = Split { decode_ms: 10.0, drift: Some(0.5), ..split() };
        assert_eq!(
            why_off(&[slow]).unwrap(),
            "+20 % of the decode time is neither cycles nor dense steps; steps outside of cycles take 2.00 dense steps each; dense steps before and after \
             differ by 50 %"
        );
    }

    #[test]
    fn what_was_not_measured_is_no_zero() {
        let shared = Split { cycles_ms: None, ..split() };
        assert_eq!((shared.unaccounted(), shared.ordinary_cost(), why_off(&[shared])), (None, None, None));
        let unmeasured = Split { dense_ms: None, ..split() };
        assert_eq!(unmeasured.unaccounted(), None);
        // Cycles gave all of it, so that no dense step is needed to tell what else there was.
        let all = Split { steps: 8, dense_ms: None, ..split() };
        assert_eq!((all.unaccounted(), all.ordinary_cost()), (Some(0.25), None));
    }
}
