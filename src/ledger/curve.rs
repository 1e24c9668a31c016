//! What a prefill costs: the curve measured in this run.
//!
//! A token at depth `d` costs `per_token + per_depth · d`: linear layers cost the same everywhere, attention in proportion to
//! what it looks back on. So tokens `from..to` cost `per_token · n + per_depth · (to² − from²) / 2`, fitted by least squares to
//! the run's own chunks.

use serde::Serialize;

use crate::event::Nanos;

/// The curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PrefillCurve {
    /// Seconds of a token at depth 0.
    pub per_token: f64,
    /// Seconds that each token of depth adds.
    pub per_depth: f64,
    /// Chunks it is fitted to; whole prefills, where no chunk was timed by itself.
    pub samples: u64,
    /// The deepest position that was measured; beyond it the curve is extrapolated.
    pub deepest: u64,
}

impl PrefillCurve {
    /// Seconds to prefill tokens `from..to`.
    pub fn seconds(&self, from: u64, to: u64) -> f64 {
        let [tokens, depth] = terms(from, to);
        self.per_token * tokens + self.per_depth * depth
    }
}

/// What `per_token` and `per_depth` are multiplied by for tokens `from..to`.
fn terms(from: u64, to: u64) -> [f64; 2] {
    let tokens = to.saturating_sub(from) as f64;
    // As a product, since the difference of two squares would cancel.
    [tokens, tokens * (to as f64 + from as f64) / 2.0]
}

/// The least squares of a run in progress: sums only, whatever the run's length.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct CurveFit {
    /// The first sample, which pays for warming up; used only while there is no other.
    first: Option<Sums>,
    rest: Sums,
}

/// The normal equations' coefficients: products of the two terms and of the seconds, each with each.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Sums {
    tokens_tokens: f64,
    tokens_depth: f64,
    depth_depth: f64,
    tokens_seconds: f64,
    depth_seconds: f64,
    samples: u64,
    deepest: u64,
}

impl CurveFit {
    /// Takes in that tokens `from..to` took so long.
    pub(super) fn add(&mut self, from: u64, to: u64, took: Nanos) {
        if to <= from {
            return;
        }
        let mut sample = Sums::default();
        sample.add(from, to, took.seconds());
        match &self.first {
            None => self.first = Some(sample),
            Some(_) => self.rest.add(from, to, took.seconds()),
        }
    }

    /// The curve, once something was measured that took time.
    pub(super) fn curve(&self) -> Option<PrefillCurve> {
        self.rest.solve().or_else(|| self.first?.solve())
    }

    /// The curve of all samples, the first one too: where samples are few and each takes long, warming up is little of it.
    pub(super) fn whole(&self) -> Option<PrefillCurve> {
        let mut all = self.rest;
        if let Some(first) = &self.first {
            all.merge(first);
        }
        all.solve()
    }
}

impl Sums {
    fn add(&mut self, from: u64, to: u64, seconds: f64) {
        let [tokens, depth] = terms(from, to);
        self.tokens_tokens += tokens * tokens;
        self.tokens_depth += tokens * depth;
        self.depth_depth += depth * depth;
        self.tokens_seconds += tokens * seconds;
        self.depth_seconds += depth * seconds;
        self.samples = self.samples.saturating_add(1);
        self.deepest = self.deepest.max(to);
    }

    fn merge(&mut self, other: &Sums) {
        self.tokens_tokens += other.tokens_tokens;
        self.tokens_depth += other.tokens_depth;
        self.depth_depth += other.depth_depth;
        self.tokens_seconds += other.tokens_seconds;
        self.depth_seconds += other.depth_seconds;
        self.samples = self.samples.saturating_add(other.samples);
        self.deepest = self.deepest.max(other.deepest);
    }

    /// The best curve whose parameters are not negative. Samples that cannot tell the two apart, because they are few or all alike,
    /// give a flat one.
    fn solve(&self) -> Option<PrefillCurve> {
        let curve = |per_token, per_depth| PrefillCurve {
            per_token,
            per_depth,
            samples: self.samples,
            deepest: self.deepest,
        };
        if self.tokens_seconds <= 0.0 {
            return None;
        }
        let flat = self.tokens_seconds / self.tokens_tokens;
        let product = self.tokens_tokens * self.depth_depth;
        let determinant = product - self.tokens_depth * self.tokens_depth;
        if determinant <= product * 1e-9 {
            return Some(curve(flat, 0.0));
        }
        let per_token =
            (self.tokens_seconds * self.depth_depth - self.depth_seconds * self.tokens_depth) / determinant;
        let per_depth =
            (self.depth_seconds * self.tokens_tokens - self.tokens_seconds * self.tokens_depth) / determinant;
        Some(match (per_token >= 0.0, per_depth >= 0.0) {
            (true, true) => curve(per_token, per_depth),
            (false, _) => curve(0.0, self.depth_seconds / self.depth_depth),
            (true, false) => curve(flat, 0.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fit(samples: &[(u64, u64, f64)]) -> Option<PrefillCurve> {
        let mut fit = CurveFit::default();
        for (from, to, seconds) in samples {
            fit.add(*from, *to, Nanos::from_seconds(*seconds));
        }
        fit.curve()
    }

    #[test]
    fn chunks_that_lie_on_a_curve_give_it_back_whatever_the_first_one_took() {
        let truth = PrefillCurve { per_token: 1.5e-3, per_depth: 2e-8, samples: 40, deepest: 41 * 512 };
        let mut samples: Vec<_> =
            (0..41).map(|i| (i * 512, (i + 1) * 512, truth.seconds(i * 512, (i + 1) * 512))).collect();
        samples[0].2 += 30.0;
        let found = fit(&samples).unwrap();
        assert!((found.per_token / truth.per_token - 1.0).abs() < 1e-6, "{found:?}");
        assert!((found.per_depth / truth.per_depth - 1.0).abs() < 1e-4, "{found:?}");
        assert_eq!((found.samples, found.deepest), (40, 41 * 512));
    }

    #[test]
    fn a_curve_adds_up_over_a_split() {
        let curve = PrefillCurve { per_token: 1e-3, per_depth: 3e-8, samples: 1, deepest: 1 };
        let parts = curve.seconds(28_672, 40_000) + curve.seconds(40_000, 62_651);
        assert!((parts / curve.seconds(28_672, 62_651) - 1.0).abs() < 1e-12);
        assert_eq!(curve.seconds(9, 3), 0.0);
    }

    #[test]
    fn without_a_difference_in_depth_the_curve_is_flat_and_without_time_there_is_none() {
        let one = fit(&[(0, 100, 0.2)]).unwrap();
        assert_eq!((one.per_token, one.per_depth, one.samples), (0.002, 0.0, 1));
        let alike = fit(&[(0, 100, 9.0), (0, 100, 0.1), (0, 100, 0.3)]).unwrap();
        assert!((alike.per_token - 0.002).abs() < 1e-12 && alike.per_depth == 0.0, "{alike:?}");
        assert_eq!(fit(&[]), None);
        assert_eq!(fit(&[(0, 100, 0.0), (100, 200, 0.0), (7, 7, 1.0)]), None);
    }

    #[test]
    fn neither_parameter_is_ever_negative() {
        // Faster with depth: flat is the best that can be said.
        let faster = fit(&[(0, 1, 0.0), (0, 100, 1.0), (100, 200, 0.9), (200, 300, 0.8)]).unwrap();
        assert!(faster.per_token > 0.0 && faster.per_depth == 0.0, "{faster:?}");
        // Steeper than depth alone explains.
        let steeper = fit(&[(0, 1, 0.0), (0, 100, 0.0), (100, 200, 0.1), (200, 300, 1.0)]).unwrap();
        assert!(steeper.per_token == 0.0 && steeper.per_depth > 0.0, "{steeper:?}");
    }

    proptest! {
        #[test]
        fn whatever_is_measured_the_curve_is_finite(samples in prop::collection::vec(any::<(u64, u64, u64)>(), 0..12)) {
            let mut fit = CurveFit::default();
            samples.iter().for_each(|(from, to, took)| fit.add(*from, *to, Nanos(*took)));
            if let Some(curve) = fit.curve() {
                prop_assert!(curve.per_token.is_finite() && curve.per_token >= 0.0, "{curve:?}");
                prop_assert!(curve.per_depth.is_finite() && curve.per_depth >= 0.0, "{curve:?}");
                prop_assert!(curve.seconds(0, u64::MAX).is_finite());
            }
        }
    }
}
