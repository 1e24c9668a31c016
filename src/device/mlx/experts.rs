//! A mixture of experts.
//!
//! Packed experts of a layer lie in one stack, and MLX's gathered product takes each row to its experts. Where there are many rows, they
//! are put in order of their experts first, so that an expert's weights are read once. For plain experts MLX's bindings have
//! no such product; their matrices are gathered, a few rows at a time.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::{arange, argsort_axis, concatenate, gather_qmm, matmul, softmax_axis, sort_axis};
use mlx_rs::{Array, Dtype};

use super::delta::silu;
use super::failure::Built;
use super::hidden::{int, rows};
use super::weights::{Packed, Weight};
use crate::device::ops::{ExpertShape, GATHERED};

/// Pairs of a row and an expert from which on they are put in order.
const SORTED_FROM: i32 = 64;

/// The routed experts of a layer.
#[derive(Debug)]
pub struct Experts {
    /// Gate and up projections, `[experts, inner, columns]` each.
    pub(super) gate: Weight,
    pub(super) up: Weight,
    /// `[experts, columns, inner]`
    pub(super) down: Weight,
}

/// Which experts rows go to.
struct Routing {
    /// In ascending order, `[rows, per_token]` u32.
    experts: Array,
    /// What each counts, `[rows, per_token]` f32.
    weights: Array,
}

fn route(scores: &Array, shape: ExpertShape) -> Built<Routing> {
    let scores = scores.as_dtype(Dtype::Float32)?;
    // A stable order of falling scores: of equals the first.
    let falling = argsort_axis(scores.negative()?, -1)?;
    let experts = sort_axis(falling.try_index((.., ..int(shape.per_token)))?, -1)?;
    let weights = match shape.normalised {
        true => softmax_axis(scores.take_along_axis(&experts, -1)?, -1, true)?,
        false => softmax_axis(&scores, -1, true)?.take_along_axis(&experts, -1)?,
    };
    Ok(Routing { experts, weights })
}

impl Experts {
    /// What the experts of each row of `x` give, weighed and added.
    pub(super) fn forward(&self, x: &Array, scores: &Array, shape: ExpertShape) -> Built<Array> {
        let Routing { experts, weights } = route(scores, shape)?;
        let (n, each) = (rows(x), int(shape.per_token));
        let pairs = experts.reshape(&[-1])?;
        let given = if n * each < SORTED_FROM {
            let of =
                arange::<i32, u32>(0, n * each, 1)?.floor_divide(Array::from_slice(&[each as u32], &[1]))?;
            self.pairs(x, &of, &pairs, false)?
        } else {
            let order = argsort_axis(&pairs, 0)?;
            let back = argsort_axis(&order, 0)?;
            let of = order.floor_divide(Array::from_slice(&[each as u32], &[1]))?;
            let sorted = self.pairs(x, &of, &pairs.take_axis(&order, 0)?, true)?;
            sorted.take_axis(&back, 0)?
        };
        let given = given.reshape(&[n, each, -1])?;
        let weights = weights.as_dtype(given.dtype())?.expand_dims(-1)?;
        given.multiply(weights)?.sum_axis(1, false)
    }

    /// Gated MLPs of pairs: row `of[i]` of `x` through expert `experts[i]`. Gives `[pairs, columns]`.
    fn pairs(&self, x: &Array, of: &Array, experts: &Array, sorted: bool) -> Built<Array> {
        let x = x.take_axis(of, 0)?.expand_dims(1)?;
        let gate = gathered(&x, &self.gate, experts, sorted)?;
        let up = gathered(&x, &self.up, experts, sorted)?;
        gathered(&silu(&gate)?.multiply(up)?, &self.down, experts, sorted)?.squeeze_axes(&[1])
    }
}

/// `x[i] · W[experts[i]]ᵀ` for x `[pairs, 1, in]`; gives `[pairs, 1, out]`.
fn gathered(x: &Array, stack: &Weight, experts: &Array, sorted: bool) -> Built<Array> {
    match stack {
        Weight::Packed(Packed { words, scales, biases, group, bits }) => {
            gather_qmm(x, words, scales, Some(biases), None, Some(experts), true, *group, *bits, sorted)
        }
        Weight::Plain(stack) => {
            let matrix = (stack.dim(1) * stack.dim(2)).max(1) as usize;
            let step = int((GATHERED / matrix).max(1)) as usize;
            let parts: Vec<Array> = (0..rows(x))
                .step_by(step)
                .map(|from| {
                    let to = rows(x).min(from + int(step));
                    let matrices = stack.take_axis(experts.try_index(from..to)?, 0)?;
                    matmul(x.try_index(from..to)?, matrices.swap_axes(1, 2)?)
                })
                .collect::<Built<_>>()?;
            concatenate(&parts, 0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_go_to_the_greatest_scores_and_of_equals_to_the_first() {
        let shape = ExpertShape { experts: 4, per_token: 2, normalised: true };
        let scores = Array::from_slice(&[0f32, 1.0, 1.0, 1.0, 3.0, -1.0, 3.0, 2.0], &[2, 4]);
        let Routing { experts, weights } = route(&scores, shape).unwrap();
        assert_eq!(experts.as_slice::<u32>(), [1, 2, 0, 2]);
        assert!(weights.as_slice::<f32>().iter().all(|weight| *weight == 0.5));
    }

    #[test]
    fn weights_are_shares_of_the_softmax_over_all_or_over_the_chosen() {
        let scores = Array::from_slice(&[0f32, 2f32.ln(), 3f32.ln()], &[1, 3]);
        for (normalised, expected) in [(true, [0.4, 0.6]), (false, [2.0 / 6.0, 3.0 / 6.0])] {
            let shape = ExpertShape { experts: 3, per_token: 2, normalised };
            let weights = route(&scores, shape).unwrap().weights;
            let close = weights.as_slice::<f32>().iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6);
            assert!(close, "{weights:?}");
        }
    }
}
