//! The sampler: greedy or drawn, reproducible by seed.

use super::Sampling;

/// Chooses tokens for one request.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
}

impl Sampler {
    /// A sampler at the start of its random stream.
    pub fn new(sampling: Sampling) -> Sampler {
        Sampler { sampling }
    }

    /// The token after `seen` (prompt and reply so far), given its `logits` (one per vocabulary entry, not empty).
    pub fn choose(&mut self, logits: &[f32], seen: &[u32]) -> u32 {
        let _ = (logits, seen, self.sampling);
        unimplemented!()
    }
}
