//! Distributions of latencies over a run.

use hdrhistogram::Histogram;

use crate::event::Nanos;

/// A latency distribution: microseconds, three significant digits, up to an hour.
#[derive(Debug, Clone, PartialEq)]
pub struct Latency {
    histogram: Histogram<u64>,
}

/// The points of a distribution that are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Quantiles {
    /// How many values there are.
    pub count: u64,
    /// The median.
    pub p50: Nanos,
    /// The 90th percentile.
    pub p90: Nanos,
    /// The 99th percentile.
    pub p99: Nanos,
    /// The largest.
    pub max: Nanos,
}

const HOUR_US: u64 = 3_600_000_000;

impl Default for Latency {
    fn default() -> Latency {
        // Within the crate's stated limits for bounds and digits, so this cannot fail; an automatic histogram is the fallback.
        let histogram = Histogram::new_with_max(HOUR_US, 3)
            .or_else(|_| Histogram::new(3))
            .unwrap_or_else(|_| unreachable!("three digits are within the histogram's limits"));
        Latency { histogram }
    }
}

impl Latency {
    /// Adds a value; what exceeds an hour counts as an hour.
    pub fn record(&mut self, value: Nanos) {
        self.histogram.saturating_record(value.0.div_ceil(1000).min(HOUR_US));
    }

    /// The distribution's points. `None` while it is empty.
    pub fn quantiles(&self) -> Option<Quantiles> {
        let us = |value: u64| Nanos(value * 1000);
        let at = |q| us(self.histogram.value_at_quantile(q));
        (!self.histogram.is_empty()).then(|| Quantiles {
            count: self.histogram.len(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: us(self.histogram.max()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_distribution_has_no_points_rather_than_zeros() {
        assert_eq!(Latency::default().quantiles(), None);
    }

    #[test]
    fn the_points_are_within_the_stated_precision() {
        let mut latency = Latency::default();
        for ms in 1..=1000 {
            latency.record(Nanos(ms * 1_000_000));
        }
        let quantiles = latency.quantiles().unwrap();
        let near = |got: Nanos, ms: f64| (got.seconds() * 1000.0 / ms - 1.0).abs() < 2e-3;
        assert!(near(quantiles.p50, 500.0) && near(quantiles.p99, 990.0) && near(quantiles.max, 1000.0));
        latency.record(Nanos(u64::MAX));
        assert!(near(latency.quantiles().unwrap().max, 3_600_000.0));
    }
}
