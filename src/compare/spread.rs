//! A figure over repeats.

use serde::Serialize;

/// A figure of one or more repeats of the same run: times in seconds, unless its place says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// The middle one; of an even number, the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// How many repeats it was measured in.
    pub repeats: u64,
}

impl Spread {
    /// Over `values`, one a repeat. `None` without any, and where a repeat has none: a median over other repeats than its neighbours' would
    /// not be comparable with them.
    pub fn of(values: impl IntoIterator<Item = Option<f64>>) -> Option<Spread> {
        let mut values = values.into_iter().collect::<Option<Vec<f64>>>()?;
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Spread { median: low.midpoint(high), min, max, repeats: values.len() as u64 })
    }

    /// Whether zero lies within it.
    pub fn holds_zero(&self) -> bool {
        self.min <= 0.0 && self.max >= 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_the_ends() {
        let of = |values: &[f64]| Spread::of(values.iter().map(|v| Some(*v)));
        let odd = of(&[3.0, 1.0, 2.5]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max, odd.repeats), (2.5, 1.0, 3.0, 3));
        assert_eq!(of(&[4.0, 1.0]).unwrap().median, 2.5);
        assert_eq!(of(&[7.0]).unwrap(), Spread { median: 7.0, min: 7.0, max: 7.0, repeats: 1 });
    }

    #[test]
    fn what_one_repeat_did_not_measure_is_no_figure() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([Some(1.0), None]), None);
    }

    #[test]
    fn zero_within_the_ends_is_within() {
        assert!(Spread::of([Some(-0.1), Some(0.2)]).unwrap().holds_zero());
        assert!(Spread::of([Some(0.0)]).unwrap().holds_zero());
        assert!(!Spread::of([Some(0.1), Some(0.2)]).unwrap().holds_zero());
    }
}
