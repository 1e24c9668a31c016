//! What a prefill costs: the curve measured in this run.
//!
//! A token at depth `d` costs `per_token + per_depth · d`: linear layers cost the same everywhere, attention in proportion to
//! what it looks back on. So tokens `from..to` cost `per_token · n + per_depth · (to² − from²) / 2`, fitted by least squares to
//! the run's own chunks.

use serde::Serialize;

/// The curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PrefillCurve {
    /// Seconds of a token at depth 0.
    pub per_token: f64,
    /// Seconds that each token of depth adds.
    pub per_depth: f64,
    /// Chunks it is fitted to.
    pub samples: u64,
    /// The deepest position that was measured; beyond it the curve is extrapolated.
    pub deepest: u64,
}

impl PrefillCurve {
    /// Seconds to prefill tokens `from..to`.
    pub fn seconds(&self, from: u64, to: u64) -> f64 {
        let (from, to) = (from as f64, to.max(from) as f64);
        self.per_token * (to - from) + self.per_depth * (to * to - from * from) / 2.0
    }
}
