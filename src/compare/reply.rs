//! How a lane's reply differs from the dense lane's.

use serde::Serialize;

use crate::event::Logits;
use crate::ledger::RequestFacts;

/// A reply beside that of the lane it is compared with. A field is `None` where it was not, or not yet, observed.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct ReplyDifference {
    /// Whether both texts are the same; `None` before both have ended.
    pub same_text: Option<bool>,
    /// The first token that differs, from 0; `None` where none does.
    pub first_differing: Option<u64>,
    /// By how much the other lane preferred its token there to its next choice: a small margin is easily overturned.
    pub margin: Option<f32>,
    /// How far the logits that the replies begin with are apart.
    #[serde(flatten)]
    pub closeness: Option<Closeness>,
}

impl ReplyDifference {
    /// Of `reply` against `base`, whose prompts are the same.
    pub(super) fn of(
        base: &RequestFacts,
        reply: &RequestFacts,
        closeness: Option<Closeness>,
    ) -> ReplyDifference {
        let same_text = base.output_sha256.as_ref().zip(reply.output_sha256.as_ref()).map(|(a, b)| a == b);
        let first_differing = first_differing(base, reply);
        let margin = first_differing.and_then(|index| base.tokens.get(index)?.margin);
        let first_differing = first_differing.map(|index| index as u64);
        ReplyDifference { same_text, first_differing, margin, closeness }
    }
}

fn first_differing(base: &RequestFacts, reply: &RequestFacts) -> Option<usize> {
    let (a, b) = (&base.tokens, &reply.tokens);
    if let Some(index) = a.iter().zip(b).position(|(a, b)| a.token != b.token) {
        return Some(index);
    }
    let ended = base.output_tokens.is_some() && reply.output_tokens.is_some();
    // Recordings may have no tokens; then nothing is known of them.
    let told = !a.is_empty() && !b.is_empty();
    (ended && told && a.len() != b.len()).then(|| a.len().min(b.len()))
}

/// Two distributions over the next token.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Closeness {
    /// Kullback-Leibler divergence KL(base ‖ lane), nats.
    pub kl_nats: f64,
    /// Whether both prefer the same token.
    pub top1_agrees: bool,
}

impl Closeness {
    /// Of `lane`'s logits to `base`'s. `None` where they are not over the same vocabulary, or not numbers.
    pub fn of(base: &Logits, lane: &Logits) -> Option<Closeness> {
        let (base, lane) = (&base.0, &lane.0);
        let comparable = !base.is_empty() && base.len() == lane.len();
        if !comparable || base.iter().chain(lane).any(|x| !x.is_finite()) {
            return None;
        }
        let (p_zero, q_zero) = (log_sum_exp(base), log_sum_exp(lane));
        let kl: f64 = base
            .iter()
            .zip(lane)
            .map(|(p, q)| {
                let (log_p, log_q) = (f64::from(*p) - p_zero, f64::from(*q) - q_zero);
                log_p.exp() * (log_p - log_q)
            })
            .sum();
        // A divergence is never negative; rounding can make it so.
        Some(Closeness { kl_nats: kl.max(0.0), top1_agrees: greatest(base) == greatest(lane) })
    }
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    max + logits.iter().map(|x| (f64::from(*x) - max).exp()).sum::<f64>().ln()
}

/// Place of the greatest logit, the first one among equals: the token that greedy decoding takes.
fn greatest(logits: &[f32]) -> Option<usize> {
    (0..logits.len()).reduce(|best, next| if logits[next] > logits[best] { next } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the definition, with probabilities.
    fn kl(p: &[f64], q: &[f64]) -> f64 {
        p.iter().zip(q).map(|(p, q)| if *p > 0.0 { p * (p / q).ln() } else { 0.0 }).sum()
    }

    fn softmax(logits: &[f32]) -> Vec<f64> {
        let powers: Vec<f64> = logits.iter().map(|x| f64::from(*x).exp()).collect();
        let sum: f64 = powers.iter().sum();
        powers.iter().map(|p| p / sum).collect()
    }

    #[test]
    fn the_divergence_is_that_of_the_probabilities() {
        let (a, b) = (vec![0.3_f32, -1.2, 2.5, 0.0], vec![1.0_f32, 0.4, 1.9, -3.0]);
        let wanted = kl(&softmax(&a), &softmax(&b));
        let found = Closeness::of(&Logits(a.clone()), &Logits(b.clone())).unwrap();
        assert!((found.kl_nats - wanted).abs() < 1e-12 && wanted > 0.1, "{found:?} {wanted}");
        assert!(found.top1_agrees);
        let back = Closeness::of(&Logits(b), &Logits(a)).unwrap();
        assert!((back.kl_nats - found.kl_nats).abs() > 1e-3, "it is not symmetric");
        // (1/2, 1/2) against (3/4, 1/4): ln 2 − ln 3 / 2, whatever is added to all logits.
        let even = Logits(vec![900.0, 900.0]);
        let odd = Logits(vec![3.0_f32.ln() - 700.0, -700.0]);
        let found = Closeness::of(&even, &odd).unwrap();
        assert!((found.kl_nats - (2.0_f64.ln() - 3.0_f64.ln() / 2.0)).abs() < 1e-4, "{found:?}");
    }

    #[test]
    fn equal_logits_are_at_no_distance() {
        let logits = Logits(vec![0.1, 7.5, -3.0]);
        assert_eq!(Closeness::of(&logits, &logits), Some(Closeness { kl_nats: 0.0, top1_agrees: true }));
        let other = Logits(vec![7.6, 7.5, -3.0]);
        assert!(!Closeness::of(&logits, &other).unwrap().top1_agrees);
    }

    #[test]
    fn what_cannot_be_compared_is_null() {
        let two = Logits(vec![0.0, 1.0]);
        for other in [vec![], vec![0.0], vec![0.0, f32::NAN], vec![f32::INFINITY, 0.0]] {
            assert_eq!(Closeness::of(&two, &Logits(other.clone())), None, "{other:?}");
        }
        assert_eq!(Closeness::of(&Logits(vec![]), &Logits(vec![])), None);
    }
}
