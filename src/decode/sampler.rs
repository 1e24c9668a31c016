//! The sampler: greedy or drawn, reproducible by seed.
//!
//! The order is fixed: repetition penalty, temperature, top-k, top-p, min-p, draw. Each step sees what the one before
//! left, and probabilities are renormalised over what is left at the end. A logit that is not a number counts as minus
//! infinity; of equal logits the lower id comes first.

use std::cmp::Ordering;

use super::Sampling;

/// Chooses tokens for one request.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    random: SplitMix64,
    /// Logits after the repetition penalty; kept to save the allocation.
    penalised: Vec<f32>,
    candidates: Vec<Candidate>,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    token: u32,
    logit: f32,
    /// Probability times a factor that all candidates share.
    weight: f64,
}

/// Likelier first, then lower id: a total order, since no logit is NaN here.
fn by_likelihood(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

impl Sampler {
    /// A sampler at the start of its random stream.
    pub fn new(sampling: Sampling) -> Sampler {
        let random = SplitMix64 { state: sampling.seed };
        Sampler { sampling, random, penalised: Vec::new(), candidates: Vec::new() }
    }

    /// The token after `seen` (prompt and reply so far), given its `logits` (one per vocabulary entry, not empty).
    /// 0 when no logit is above minus infinity.
    pub fn choose(&mut self, logits: &[f32], seen: &[u32]) -> u32 {
        let penalty = self.sampling.repetition_penalty;
        let penalised = std::mem::take(&mut self.penalised);
        let penalised = if penalty != 1.0 && penalty > 0.0 && penalty.is_finite() {
            penalise(penalised, logits, seen, penalty)
        } else {
            penalised
        };
        let effective = if penalised.is_empty() { logits } else { &penalised };
        let likeliest = argmax(effective);
        let peak = effective.get(likeliest).copied().unwrap_or(f32::NEG_INFINITY);
        let greedy = self.sampling.temperature <= 0.0 || self.sampling.temperature.is_nan();
        let choice = if greedy || !peak.is_finite() { likeliest as u32 } else { self.draw(effective, peak) };
        self.penalised = penalised;
        self.penalised.clear();
        choice
    }

    /// Draws from finite logits whose maximum is `peak`.
    fn draw(&mut self, logits: &[f32], peak: f32) -> u32 {
        let temperature = self.sampling.temperature;
        let Sampling { top_k, top_p, min_p, .. } = self.sampling;
        self.candidates.clear();
        self.candidates.extend((0..).zip(logits).filter(|(_, logit)| **logit > f32::NEG_INFINITY).map(
            |(token, logit)| {
                let weight = f64::from(libm::expf((*logit - peak) / temperature));
                Candidate { token, logit: *logit, weight }
            },
        ));
        if top_k > 0 && top_k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(top_k, by_likelihood);
            self.candidates.truncate(top_k);
            // Sums below must not depend on how selection happened to leave the order.
            self.candidates.sort_unstable_by(by_likelihood);
        }
        if top_p < 1.0 {
            keep_mass(&mut self.candidates, f64::from(top_p));
        }
        if min_p > 0.0 {
            // The likeliest weighs 1 by construction, and stays whatever `min_p` says.
            let least = f64::from(min_p.min(1.0));
            self.candidates.retain(|candidate| candidate.weight >= least);
        }
        let total: f64 = self.candidates.iter().map(|candidate| candidate.weight).sum();
        let mut left = self.random.unit() * total;
        for candidate in &self.candidates {
            left -= candidate.weight;
            if left < 0.0 {
                return candidate.token;
            }
        }
        // Rounding can leave a crumb behind the last candidate.
        self.candidates.last().map_or(0, |candidate| candidate.token)
    }
}

/// Keeps the likeliest candidates whose weights reach `share` of all; at least one. Leaves them in order.
fn keep_mass(candidates: &mut Vec<Candidate>, share: f64) {
    let goal = share * candidates.iter().map(|candidate| candidate.weight).sum::<f64>();
    // Sorting a whole vocabulary costs milliseconds, and the likeliest few hundred usually suffice.
    let mut sorted = 256;
    loop {
        if sorted < candidates.len() {
            candidates.select_nth_unstable_by(sorted, by_likelihood);
        }
        let head = sorted.min(candidates.len());
        candidates[..head].sort_unstable_by(by_likelihood);
        let mut mass = 0.0;
        let reached = candidates[..head].iter().position(|candidate| {
            mass += candidate.weight;
            mass >= goal
        });
        if let Some(last) = reached {
            candidates.truncate(last + 1);
            return;
        }
        if head == candidates.len() {
            return;
        }
        sorted *= 8;
    }
}

/// The first index of the largest number; 0 when there is none above minus infinity.
fn argmax(logits: &[f32]) -> usize {
    let mut best = (0, f32::NEG_INFINITY);
    for (index, logit) in logits.iter().enumerate() {
        // False for NaN.
        if *logit > best.1 {
            best = (index, *logit);
        }
    }
    best.0
}

/// Writes `logits` into `out`, those of seen tokens made less likely, each once.
fn penalise(mut out: Vec<f32>, logits: &[f32], seen: &[u32], penalty: f32) -> Vec<f32> {
    out.clear();
    out.extend_from_slice(logits);
    let mut done = vec![0u64; logits.len().div_ceil(64)];
    for token in seen {
        let index = *token as usize;
        let Some(logit) = out.get_mut(index) else { continue };
        let bit = 1 << (index % 64);
        if done[index / 64] & bit == 0 {
            done[index / 64] |= bit;
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        }
    }
    out
}

/// Steele, Lea and Flood's generator: 64 bits of state, and any seed is a good one.
#[derive(Debug, Clone)]
struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1).
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hot() -> Sampling {
        Sampling { temperature: 1.0, ..Sampling::default() }
    }

    fn counts(sampling: Sampling, logits: &[f32], draws: usize) -> Vec<usize> {
        let mut sampler = Sampler::new(sampling);
        let mut counts = vec![0; logits.len()];
        for _ in 0..draws {
            counts[sampler.choose(logits, &[]) as usize] += 1;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_first_of_equals_and_ignores_what_is_no_number() {
        let mut sampler = Sampler::new(Sampling::default());
        assert_eq!(sampler.choose(&[f32::NAN, 1.0, 3.0, 3.0], &[]), 2);
        assert_eq!(sampler.choose(&[f32::NEG_INFINITY, f32::NEG_INFINITY], &[]), 0);
        assert_eq!(sampler.choose(&[f32::NAN, f32::NAN], &[]), 0);
        assert_eq!(sampler.choose(&[1.0, f32::INFINITY, f32::INFINITY], &[]), 1);
    }

    #[test]
    fn a_penalty_counts_each_seen_token_once_and_lowers_either_sign() {
        let mut sampler = Sampler::new(Sampling { repetition_penalty: 2.0, ..Sampling::default() });
        assert_eq!(sampler.choose(&[4.0, 2.5], &[0, 0, 0]), 1);
        assert_eq!(sampler.choose(&[4.0, 1.5], &[0, 0, 0]), 0);
        assert_eq!(sampler.choose(&[-1.0, -1.5], &[0]), 1);
        // A token beyond the vocabulary is nobody's.
        assert_eq!(sampler.choose(&[4.0, 2.5], &[7]), 0);
    }

    #[test]
    fn draws_follow_the_softmax() {
        let logits = [0.0f32, (2.0f32).ln(), (5.0f32).ln()];
        let counts = counts(hot(), &logits, 80_000);
        for (count, share) in counts.iter().zip([1.0, 2.0, 5.0]) {
            let expected = share * 10_000.0;
            assert!((*count as f64 - expected).abs() < 400.0, "{counts:?}");
        }
    }

    #[test]
    fn each_cut_leaves_what_it_says() {
        let logits = [0.0, 3.0, 2.0, 1.0];
        let kept = |sampling| -> Vec<usize> {
            let counts = counts(sampling, &logits, 4_000);
            (0..4).filter(|i| counts[*i] > 0).collect()
        };
        assert_eq!(kept(hot()), [0, 1, 2, 3]);
        assert_eq!(kept(Sampling { top_k: 2, ..hot() }), [1, 2]);
        // Probabilities are 0.64, 0.24, 0.09, 0.03.
        assert_eq!(kept(Sampling { top_p: 0.6, ..hot() }), [1]);
        assert_eq!(kept(Sampling { top_p: 0.9, ..hot() }), [1, 2, 3]);
        assert_eq!(kept(Sampling { top_p: 0.0, ..hot() }), [1]);
        assert_eq!(kept(Sampling { min_p: 0.3, ..hot() }), [1, 2]);
        assert_eq!(kept(Sampling { min_p: 9.0, ..hot() }), [1]);
        assert_eq!(kept(Sampling { top_k: 3, top_p: 0.99, min_p: 0.2, ..hot() }), [1, 2]);
    }

    #[test]
    fn the_seed_decides_the_stream() {
        let logits: Vec<f32> = (0..500).map(|i| (i % 7) as f32).collect();
        let stream = |seed| {
            let mut sampler = Sampler::new(Sampling { seed, top_p: 0.95, ..hot() });
            (0..20).map(|_| sampler.choose(&logits, &[])).collect::<Vec<_>>()
        };
        assert_eq!(stream(1), stream(1));
        assert_ne!(stream(1), stream(2));
    }

    #[test]
    fn a_large_flat_vocabulary_is_cut_right() {
        let logits = vec![0.5; 49_152];
        let mut sampler = Sampler::new(Sampling { top_p: 0.5, ..hot() });
        for _ in 0..20 {
            // Of equals the lower ids are kept.
            assert!(sampler.choose(&logits, &[]) <= 24_576);
        }
    }

    proptest! {
        #[test]
        fn any_logits_and_settings_give_a_token(
            logits in proptest::collection::vec(proptest::num::f32::ANY, 1..60),
            seen in proptest::collection::vec(0u32..80, 0..20),
            temperature in proptest::num::f32::ANY,
            top_k in 0usize..70,
            top_p in proptest::num::f32::ANY,
            min_p in proptest::num::f32::ANY,
            repetition_penalty in proptest::num::f32::ANY,
            seed in proptest::num::u64::ANY,
        ) {
            let sampling = Sampling { temperature, top_k, top_p, min_p, repetition_penalty, seed };
            let token = Sampler::new(sampling).choose(&logits, &seen) as usize;
            prop_assert!(token < logits.len());
        }
    }
}
