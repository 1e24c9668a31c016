//! Engine-clock time, in whole nanoseconds.

use serde::{Deserialize, Serialize};

/// Engine-clock time in nanoseconds since the run began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stamp(pub u64);

impl Stamp {
    /// Seconds since the run began.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The time so much later.
    pub fn after(self, by: Nanos) -> Stamp {
        Stamp(self.0.saturating_add(by.0))
    }

    /// Nanoseconds from `earlier` to `self`; zero when `earlier` is later.
    pub fn since(self, earlier: Stamp) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A duration in whole nanoseconds: exact, so that a virtual-clock run repeats byte for byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The duration in seconds.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// `seconds` rounded to whole nanoseconds; negative or non-finite values become zero.
    pub fn from_seconds(seconds: f64) -> Nanos {
        if seconds.is_finite() && seconds > 0.0 { Nanos((seconds * 1e9).round() as u64) } else { Nanos(0) }
    }
}

impl From<std::time::Duration> for Nanos {
    fn from(d: std::time::Duration) -> Nanos {
        Nanos(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
    }
}
