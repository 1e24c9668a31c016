//! A mixture of experts: which expert a row goes to, and the sum of what they give.
//!
//! Experts are taken in ascending order, each with all its rows of the batch, so a row's sum has one order whatever else is in the
//! batch.

use super::Linear;
use super::elementwise::{load_some, store_some};
use super::isa::{Isa, LANES};
use super::kernel::Task;
use crate::device::ops::ExpertShape;

/// The routed experts of a layer.
pub struct Experts {
    pub(super) experts: Vec<Expert>,
}

/// One of them.
pub(super) struct Expert {
    pub(super) gate_up: Linear,
    pub(super) down: Linear,
}

/// The rows an expert gets, and what its outputs count in each.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Share {
    pub(super) rows: Vec<usize>,
    pub(super) weights: Vec<f32>,
}

/// Routes rows by their scores, `[rows, experts]`; gives every expert's share.
pub(super) fn route(scores: &[f32], shape: ExpertShape) -> Vec<Share> {
    let mut shares = vec![Share::default(); shape.experts];
    let mut order: Vec<usize> = Vec::with_capacity(shape.experts);
    for (row, scores) in scores.chunks_exact(shape.experts).enumerate() {
        order.clear();
        order.extend(0..shape.experts);
        // The greatest first, of equals the first; a total order even where a score is not a number.
        let first = |a: &usize, b: &usize| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b));
        order.select_nth_unstable_by(shape.per_token - 1, first);
        let chosen = &mut order[..shape.per_token];
        chosen.sort_unstable();
        let greatest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |expert: usize| libm::exp(f64::from(scores[expert]) - f64::from(greatest));
        let total: f64 = match shape.normalised {
            true => chosen.iter().map(|expert| weight(*expert)).sum(),
            false => (0..shape.experts).map(weight).sum(),
        };
        for expert in chosen {
            shares[*expert].rows.push(row);
            shares[*expert].weights.push((weight(*expert) / total) as f32);
        }
    }
    shares
}

/// `out[rows[i]] += weights[i]·x[i]`
pub(super) struct Gather<'a> {
    pub(super) x: &'a [f32],
    pub(super) share: &'a Share,
    pub(super) cols: usize,
    pub(super) out: &'a mut [f32],
}

impl Task for Gather<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Gather { x, share, cols, out } = self;
        for (x, (row, weight)) in x.chunks_exact(cols).zip(share.rows.iter().zip(&share.weights)) {
            let weight = isa.splat(*weight);
            let out = &mut out[row * cols..(row + 1) * cols];
            for (x, out) in x.chunks(LANES).zip(out.chunks_mut(LANES)) {
                store_some(isa, isa.fma(weight, load_some(isa, x), load_some(isa, out)), out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_go_to_the_greatest_scores_and_of_equals_to_the_first() {
        let shape = ExpertShape { experts: 4, per_token: 2, normalised: true };
        let shares = route(&[0.0, 1.0, 1.0, 1.0, 3.0, -1.0, 3.0, 2.0], shape);
        let rows: Vec<&[usize]> = shares.iter().map(|share| &share.rows[..]).collect();
        assert_eq!(rows, [&[1][..], &[0], &[0, 1], &[]]);
        assert!(shares.iter().flat_map(|share| &share.weights).all(|weight| *weight == 0.5));
    }

    #[test]
    fn weights_are_shares_of_the_softmax_over_all_or_over_the_chosen() {
        let scores = [0.0, 2f32.ln(), 3f32.ln()];
        let weights = |normalised| {
            let shape = ExpertShape { experts: 3, per_token: 2, normalised };
            route(&scores, shape).into_iter().flat_map(|share| share.weights).collect::<Vec<f32>>()
        };
        let close = |a: &[f32], b: [f32; 2]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(close(&weights(true), [0.4, 0.6]) && close(&weights(false), [2.0 / 6.0, 3.0 / 6.0]));
    }

    #[test]
    fn a_score_that_is_not_a_number_routes_somewhere() {
        let shape = ExpertShape { experts: 3, per_token: 1, normalised: true };
        let shares = route(&[f32::NAN, 1.0, 2.0], shape);
        assert_eq!(shares.iter().map(|share| share.rows.len()).sum::<usize>(), 1);
    }
}
