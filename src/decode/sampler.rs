//! The sampler: greedy or drawn, reproducible by seed.
//!
//! The order is fixed: repetition penalty, temperature, top-k, top-p, min-p, draw. Each step sees what the one before
//! left, and probabilities are renormalised over what is left at the end. A logit that is not a number counts as minus
//! infinity; of equal logits the lower id comes first.
//!
//! Where a token was drafted, [`Sampler::verify`] decides whether it stands, so that what comes out has the distribution of what would
//! have been drawn without it: accepted with probability `min(1, p/q)`, else replaced by a draw from what `p` has more than `q`.
//!
//! Source of that rule: Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding" (2023), appendix A.1.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::{Row, Sampling};

/// Chooses tokens for one request.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    random: SplitMix64,
    /// Logits after the repetition penalty; kept to save the allocation.
    penalised: Vec<f32>,
    candidates: Vec<Candidate>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Candidate {
    token: u32,
    logit: f32,
    /// Probability times a factor that all candidates share.
    weight: f64,
}

/// The tokens that may be drawn from some logits, with their weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    candidates: Vec<Candidate>,
    total: f64,
}

impl Distribution {
    fn of(candidates: Vec<Candidate>) -> Distribution {
        let total = candidates.iter().map(|candidate| candidate.weight).sum();
        Distribution { candidates, total }
    }

    /// All of it on one token.
    pub fn certain(token: u32) -> Distribution {
        Distribution::of(vec![Candidate { token, logit: 0.0, weight: 1.0 }])
    }

    /// The probability of a token.
    pub fn probability(&self, token: u32) -> f64 {
        let found = self.candidates.iter().find(|candidate| candidate.token == token);
        found.map_or(0.0, |candidate| candidate.weight / self.total)
    }

    /// What this has more than `other`, token by token. All of this where that is nothing, as rounding may have it.
    fn beyond(&self, other: &Distribution) -> Distribution {
        let mut taken: Vec<(u32, f64)> = other
            .candidates
            .iter()
            .map(|candidate| (candidate.token, candidate.weight / other.total))
            .collect();
        taken.sort_unstable_by_key(|(token, _)| *token);
        let of_other = |token: u32| {
            taken.binary_search_by_key(&token, |(token, _)| *token).map_or(0.0, |found| taken[found].1)
        };
        let more = self.candidates.iter().filter_map(|candidate| {
            let weight = candidate.weight / self.total - of_other(candidate.token);
            (weight > 0.0).then_some(Candidate { weight, ..*candidate })
        });
        match Distribution::of(more.collect()) {
            nothing if nothing.candidates.is_empty() => self.clone(),
            more => more,
        }
    }
}

/// What became of a drafted token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It stands.
    Accepted,
    /// Another takes its place.
    Replaced(u32),
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

    /// The token after `seen` (prompt and reply so far), given the `row` of its logits, which is not empty. 0 when no logit is above minus
    /// infinity.
    pub fn choose(&mut self, row: &Row<'_>, seen: &[u32]) -> u32 {
        match self.cut(row, seen) {
            Some(token) => token,
            None => {
                let total = self.candidates.iter().map(|candidate| candidate.weight).sum();
                pick(&self.candidates, total, &mut self.random)
            }
        }
    }

    /// What the token after `seen` is drawn from.
    pub fn distribution(&mut self, logits: &[f32], seen: &[u32]) -> Distribution {
        match self.cut(&Row::of(logits), seen) {
            Some(token) => Distribution::certain(token),
            None => Distribution::of(self.candidates.clone()),
        }
    }

    /// Draws a token.
    pub fn draw(&mut self, from: &Distribution) -> u32 {
        match from.candidates[..] {
            [Candidate { token, .. }] => token,
            _ => pick(&from.candidates, from.total, &mut self.random),
        }
    }

    /// Whether `drafted`, which was drawn from `draft`, stands as the token after `seen`, whose logits `row` holds. Without temperature it stands
    /// exactly where it is the likeliest.
    pub fn verify(&mut self, row: &Row<'_>, seen: &[u32], drafted: u32, draft: &Distribution) -> Verdict {
        if let Some(token) = self.cut(row, seen) {
            return if token == drafted { Verdict::Accepted } else { Verdict::Replaced(token) };
        }
        let target = Distribution::of(self.candidates.clone());
        let (wanted, given) = (target.probability(drafted), draft.probability(drafted));
        if self.random.unit() * given < wanted {
            return Verdict::Accepted;
        }
        let rest = target.beyond(draft);
        Verdict::Replaced(self.draw(&rest))
    }

    /// Whether nothing is drawn: the likeliest token is taken.
    pub fn is_greedy(&self) -> bool {
        self.sampling.is_greedy()
    }

    /// What of the tokens seen so far matters to it: all of them, or none where nothing is penalised.
    pub fn seen<'a>(&self, known: &'a [u32]) -> Cow<'a, [u32]> {
        Cow::Borrowed(if self.sampling.repetition_penalty == 1.0 { &[] } else { known })
    }

    /// Leaves the tokens that may be drawn in `candidates`; gives the token where there is but one choice.
    fn cut(&mut self, row: &Row<'_>, seen: &[u32]) -> Option<u32> {
        let penalty = self.sampling.repetition_penalty;
        if penalty == 1.0 || penalty <= 0.0 || !penalty.is_finite() {
            return self.cut_effective(row);
        }
        let penalised = penalise(std::mem::take(&mut self.penalised), row.logits, seen, penalty);
        let choice = self.cut_effective(&Row::of(&penalised));
        self.penalised = penalised;
        choice
    }

    fn cut_effective(&mut self, row: &Row<'_>) -> Option<u32> {
        if self.is_greedy() || !row.peak().is_finite() {
            return Some(row.likeliest() as u32);
        }
        self.collect(row.logits, row.peak());
        None
    }

    /// Collects the candidates of finite logits whose maximum is `peak`.
    fn collect(&mut self, logits: &[f32], peak: f32) {
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
    }
}

/// Draws one of the candidates, whose weights add up to `total`.
fn pick(candidates: &[Candidate], total: f64, random: &mut SplitMix64) -> u32 {
    let mut left = random.unit() * total;
    for candidate in candidates {
        left -= candidate.weight;
        if left < 0.0 {
            return candidate.token;
        }
    }
    // Rounding can leave a crumb behind the last candidate.
    candidates.last().map_or(0, |candidate| candidate.token)
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
            counts[sampler.choose(&Row::of(logits), &[]) as usize] += 1;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_first_of_equals_and_ignores_what_is_no_number() {
        let mut sampler = Sampler::new(Sampling::default());
        assert_eq!(sampler.choose(&Row::of(&[f32::NAN, 1.0, 3.0, 3.0]), &[]), 2);
        assert_eq!(sampler.choose(&Row::of(&[f32::NEG_INFINITY, f32::NEG_INFINITY]), &[]), 0);
        assert_eq!(sampler.choose(&Row::of(&[f32::NAN, f32::NAN]), &[]), 0);
        assert_eq!(sampler.choose(&Row::of(&[1.0, f32::INFINITY, f32::INFINITY]), &[]), 1);
    }

    #[test]
    fn a_penalty_counts_each_seen_token_once_and_lowers_either_sign() {
        let mut sampler = Sampler::new(Sampling { repetition_penalty: 2.0, ..Sampling::default() });
        assert_eq!(sampler.choose(&Row::of(&[4.0, 2.5]), &[0, 0, 0]), 1);
        assert_eq!(sampler.choose(&Row::of(&[4.0, 1.5]), &[0, 0, 0]), 0);
        assert_eq!(sampler.choose(&Row::of(&[-1.0, -1.5]), &[0]), 1);
        // A token beyond the vocabulary is nobody's.
        assert_eq!(sampler.choose(&Row::of(&[4.0, 2.5]), &[7]), 0);
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
            (0..20).map(|_| sampler.choose(&Row::of(&logits), &[])).collect::<Vec<_>>()
        };
        assert_eq!(stream(1), stream(1));
        assert_ne!(stream(1), stream(2));
    }

    /// How often each token comes out where `drafts` are drawn from `draft` and verified against `target`, and how often one stands.
    fn verified(sampling: Sampling, target: &[f32], draft: &[f32], draws: u64) -> (Vec<f64>, f64) {
        let (mut counts, mut accepted) = (vec![0.0; target.len()], 0.0);
        for seed in 0..draws {
            let mut drafter = Sampler::new(Sampling { seed: !seed, ..sampling });
            let mut sampler = Sampler::new(Sampling { seed, ..sampling });
            let from = drafter.distribution(draft, &[]);
            let drafted = drafter.draw(&from);
            let token = match sampler.verify(&Row::of(target), &[], drafted, &from) {
                Verdict::Accepted => {
                    accepted += 1.0;
                    drafted
                }
                Verdict::Replaced(token) => token,
            };
            counts[token as usize] += 1.0;
        }
        (counts, accepted / draws as f64)
    }

    #[test]
    fn what_was_drafted_does_not_show_in_what_comes_out() {
        let target = [0.3f32, 1.2, -0.4, 2.0, 0.9, 1.1, -2.0, 0.0];
        let drafts: [&[f32]; 4] = [
            &[0.0; 8],
            &target,
            &[3.0, -1.0, 0.5, 0.5, 0.0, 0.0, 2.0, 1.0],
            // All of it on one token, as where nothing is drawn.
            &[
                f32::NEG_INFINITY,
                f32::NEG_INFINITY,
                1.0,
                f32::NEG_INFINITY,
                f32::NEG_INFINITY,
                f32::NEG_INFINITY,
                f32::NEG_INFINITY,
                f32::NEG_INFINITY,
            ],
        ];
        for sampling in
            [hot(), Sampling { top_k: 5, ..hot() }, Sampling { temperature: 0.7, top_p: 0.9, ..hot() }]
        {
            let expected = Sampler::new(sampling).distribution(&target, &[]);
            for draft in drafts {
                let draws = 20_000;
                let (counts, accepted) = verified(sampling, &target, draft, draws);
                let mut chi = 0.0;
                for (token, count) in counts.iter().enumerate() {
                    let mean = expected.probability(token as u32) * draws as f64;
                    if mean == 0.0 {
                        assert_eq!(*count, 0.0, "token {token} cannot be drawn");
                    } else {
                        chi += (count - mean).powi(2) / mean;
                    }
                }
                // Seven degrees of freedom: beyond 24.3 once in a thousand.
                assert!(chi < 24.3, "{sampling:?} {draft:?}: {chi}");
                let q = Sampler::new(sampling).distribution(draft, &[]);
                let overlap: f64 =
                    (0..8).map(|token| expected.probability(token).min(q.probability(token))).sum();
                assert!((accepted - overlap).abs() < 0.015, "accepted {accepted}, of {overlap}");
            }
        }
    }

    #[test]
    fn without_temperature_a_drafted_token_stands_exactly_where_it_is_the_likeliest() {
        let logits = [1.0, 4.0, 3.0];
        let mut sampler = Sampler::new(Sampling::default());
        let from = Distribution::certain(1);
        assert_eq!(sampler.verify(&Row::of(&logits), &[], 1, &from), Verdict::Accepted);
        assert_eq!(
            sampler.verify(&Row::of(&logits), &[], 2, &Distribution::certain(2)),
            Verdict::Replaced(1)
        );
        // The penalty of what was seen counts, as it would have without a draft.
        let mut sampler = Sampler::new(Sampling { repetition_penalty: 2.0, ..Sampling::default() });
        assert_eq!(sampler.verify(&Row::of(&logits), &[1], 1, &from), Verdict::Replaced(2));
    }

    #[test]
    fn drawing_from_a_distribution_is_choosing() {
        let logits: Vec<f32> = (0..500).map(|i| (i * 31 % 17) as f32 / 3.0).collect();
        let sampling = Sampling { top_p: 0.95, seed: 9, ..hot() };
        let (mut choosing, mut drawing) = (Sampler::new(sampling), Sampler::new(sampling));
        for _ in 0..50 {
            let from = drawing.distribution(&logits, &[]);
            assert_eq!(choosing.choose(&Row::of(&logits), &[]), drawing.draw(&from));
        }
    }

    #[test]
    fn a_large_flat_vocabulary_is_cut_right() {
        let logits = vec![0.5; 49_152];
        let mut sampler = Sampler::new(Sampling { top_p: 0.5, ..hot() });
        for _ in 0..20 {
            // Of equals the lower ids are kept.
            assert!(sampler.choose(&Row::of(&logits), &[]) <= 24_576);
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
            let token = Sampler::new(sampling).choose(&Row::of(&logits), &seen) as usize;
            prop_assert!(token < logits.len());
        }
    }
}
