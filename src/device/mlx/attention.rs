//! Attention over runs of pages.
//!
//! Where a sequence's keys lie in one run, MLX's own attention reads them in place. Where they lie in a few, a few rows (decode, a
//! verify cycle) take each run by itself and share one softmax, so nothing is copied. Many rows (prefill) make it worth to copy the
//! runs together first; so do many runs, which would cost more in the number of operations than the copy does.

use mlx_rs::fast::{ScaledDotProductAttentionMask, scaled_dot_product_attention};
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::{arange, concatenate, matmul, select, softmax_axis};
use mlx_rs::{Array, Dtype};

use super::failure::Built;
use super::hidden::{int, rows};
use crate::device::ops::{AttentionShape, SCORES};

/// Rows up to which runs are read where they lie.
const FEW_ROWS: usize = 8;

/// Runs up to which they are.
pub(super) const FEW_RUNS: usize = 8;

/// Causal attention of the last rows of a sequence, queries `[rows, heads, head_dim]`, to all of its positions, which lie in `runs`.
/// Gives `[rows, heads·head_dim]`.
pub(super) fn attend(queries: &Array, runs: &[[Array; 2]], shape: AttentionShape) -> Built<Array> {
    match runs {
        [[keys, values]] => whole(queries, keys, values, shape),
        _ if rows(queries) as usize <= FEW_ROWS => in_runs(queries, runs, shape),
        _ => {
            let joined =
                |which: usize| concatenate(&runs.iter().map(|run| &run[which]).collect::<Vec<&Array>>(), 0);
            whole(queries, &joined(0)?, &joined(1)?, shape)
        }
    }
}

/// `[n, heads, head_dim]` as `[1, heads, n, head_dim]`.
fn by_heads(x: &Array) -> Built<Array> {
    x.transpose_axes(&[1, 0, 2])?.expand_dims(0)
}

/// Keys in one piece. Rows go in blocks, so that the scores of a block stay below [`SCORES`]: MLX
/// holds all of them where it has no kernel for a head's columns.
fn whole(queries: &Array, keys: &Array, values: &Array, shape: AttentionShape) -> Built<Array> {
    let (n, positions) = (rows(queries), rows(keys));
    let block = SCORES / (shape.heads * positions.max(1) as usize);
    let block = int(block.max(1)).min(n.max(1));
    let blocks: Vec<Array> = (0..n)
        .step_by(block as usize)
        .map(|from| {
            let to = n.min(from + block);
            let seen = positions - n + to;
            let queries = by_heads(&queries.try_index(from..to)?)?;
            let (keys, values) = (by_heads(&keys.try_index(..seen)?)?, by_heads(&values.try_index(..seen)?)?);
            let mask = (to - from > 1).then_some(ScaledDotProductAttentionMask::Causal);
            let out = scaled_dot_product_attention(queries, keys, values, shape.scale, mask, None)?;
            out.squeeze_axes(&[0])?.transpose_axes(&[1, 0, 2])?.reshape(&[to - from, -1])
        })
        .collect::<Built<_>>()?;
    joined(blocks)
}

fn joined(mut blocks: Vec<Array>) -> Built<Array> {
    match blocks.len() {
        1 => Ok(blocks.swap_remove(0)),
        _ => concatenate(&blocks, 0),
    }
}

/// A few rows over keys in several pieces.
fn in_runs(queries: &Array, runs: &[[Array; 2]], shape: AttentionShape) -> Built<Array> {
    let AttentionShape { heads, kv_heads, head_dim, scale, .. } = shape;
    let (n, share) = (rows(queries), int(heads / kv_heads));
    let (heads, kv_heads, head_dim) = (int(heads), int(kv_heads), int(head_dim));
    // [kv_heads, share·n, head_dim]: the query heads that share a key head are rows of one product.
    let queries = queries.transpose_axes(&[1, 0, 2])?.reshape(&[kv_heads, share * n, head_dim])?;
    let queries = queries.multiply(Array::from_f32(scale).as_dtype(queries.dtype())?)?;
    let scores: Vec<Array> = runs
        .iter()
        .map(|[keys, _]| matmul(&queries, keys.transpose_axes(&[1, 2, 0])?))
        .collect::<Built<_>>()?;
    let mut scores = concatenate(&scores, -1)?;
    let positions = scores.dim(-1);
    if n > 1 {
        // Row i of the n sees all but the last n - 1 - i positions.
        let last = arange::<i32, i32>(positions - n, positions, 1)?.reshape(&[n, 1])?;
        let seen = arange::<i32, i32>(0, positions, 1)?.reshape(&[1, positions])?.le(&last)?;
        let unseen = Array::from_f32(f32::NEG_INFINITY).as_dtype(scores.dtype())?;
        let split = scores.reshape(&[kv_heads, share, n, positions])?;
        scores = select(&seen, &split, &unseen)?.reshape(&[kv_heads, share * n, positions])?;
    }
    let weights = softmax_axis(&scores, -1, true)?;
    let mut from = 0;
    let mut sum: Option<Array> = None;
    for [_, values] in runs {
        let to = from + rows(values);
        let part = matmul(weights.try_index((.., .., from..to))?, values.transpose_axes(&[1, 0, 2])?)?
            .as_dtype(Dtype::Float32)?;
        sum = Some(match sum {
            Some(sum) => sum.add(&part)?,
            None => part,
        });
        from = to;
    }
    let sum = sum.map_or_else(|| mlx_rs::ops::zeros_dtype(&[0], Dtype::Float32), Ok)?;
    let sum = sum.as_dtype(queries.dtype())?;
    sum.reshape(&[heads, n, head_dim])?.transpose_axes(&[1, 0, 2])?.reshape(&[n, -1])
}

/// What queries `[n, heads, head_dim]` make of the keys in `runs`, in f32: `[n, heads, keys]`.
pub(super) fn weigh(queries: &Array, runs: &[[Array; 2]], shape: AttentionShape) -> Built<Array> {
    let AttentionShape { heads, kv_heads, head_dim, scale, .. } = shape;
    let (n, share) = (rows(queries), int(heads / kv_heads));
    let (heads, kv_heads, head_dim) = (int(heads), int(kv_heads), int(head_dim));
    let queries = queries.multiply(Array::from_f32(scale))?;
    let queries = queries.transpose_axes(&[1, 0, 2])?.reshape(&[kv_heads, share * n, head_dim])?;
    let single = |keys: &Array| keys.as_dtype(Dtype::Float32)?.transpose_axes(&[1, 2, 0]);
    let scores: Vec<Array> =
        runs.iter().map(|[keys, _]| matmul(&queries, single(keys)?)).collect::<Built<_>>()?;
    let weights = softmax_axis(&joined_along(scores)?, -1, true)?;
    weights.reshape(&[heads, n, -1])?.transpose_axes(&[1, 0, 2])
}

fn joined_along(mut pieces: Vec<Array>) -> Built<Array> {
    match pieces.len() {
        1 => Ok(pieces.swap_remove(0)),
        _ => concatenate(&pieces, -1),
    }
}

#[cfg(test)]
mod tests {
    use mlx_rs::random;

    use super::super::kv::numbers;
    use super::*;

    fn draw(shape: &[i32]) -> Array {
        random::uniform::<_, f32>(-2.0, 2.0, shape, None).unwrap()
    }

    #[test]
    fn keys_in_runs_or_in_blocks_of_rows_give_what_keys_in_one_piece_do() {
        for (heads, kv_heads, head_dim) in [(4, 2, 16), (3, 3, 8), (8, 1, 32)] {
            let shape = AttentionShape { heads, kv_heads, head_dim, scale: 0.4, gated: false };
            for (n, positions) in [(1, 50), (2, 3), (7, 7), (8, 90), (30, 64)] {
                let queries = draw(&[n, int(heads), int(head_dim)]);
                let [keys, values] = [0; 2].map(|_| draw(&[positions, int(kv_heads), int(head_dim)]));
                let expected = numbers(&whole(&queries, &keys, &values, shape).unwrap()).unwrap();

                let cut = |x: &Array, c: &[i32]| x.try_index(c[0]..c[1]).unwrap();
                let runs: Vec<[Array; 2]> = [0, 1, positions / 2, positions]
                    .windows(2)
                    .filter(|c| c[0] < c[1])
                    .map(|c| [cut(&keys, c), cut(&values, c)])
                    .collect();

                for got in [in_runs(&queries, &runs, shape), attend(&queries, &runs, shape)] {
                    let got = numbers(&got.unwrap()).unwrap();
                    let worst = got.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(worst < 1e-5, "{n} rows, {positions} positions: {worst}");
                }
            }
        }
    }
}
