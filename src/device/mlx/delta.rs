//! The gated delta rule with its short convolution.
//!
//! A few tokens take the rule as it stands, one after another. More are taken in chunks: with `γ` the running sum of logarithms of the
//! decays in a chunk, `L` the strictly lower part of `β·(K·Kᵀ)·exp(γᵢ - γⱼ)` and `T = (1 + L)⁻¹`, what the tokens of a chunk write is
//! `T·(β·V) - T·(β·exp(γ)·K)·S`, so all products but those with the state `S` before the chunk are had for all chunks at
//! once. `T` is built from diagonal blocks of 1, 2, 4, … rows, two products each, which stays exact where a power series in `L` would
//! cancel: equal keys make its terms as large as binomial coefficients.
//!
//! Source: Yang, Wang, Zhang, Shen, Kim, "Parallelizing Linear Transformers with the Delta Rule" (2024), section 3, with
//! the decay of "Gated Delta Networks" (2024), section 3.3. Everything is computed in f32.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::{
    broadcast_to, concatenate, conv1d, cumsum, exp, logaddexp, matmul, pad, rsqrt, select, sigmoid,
    zeros_dtype,
};
use mlx_rs::{Array, Dtype};

use super::failure::Built;
use super::hidden::{columns, int, rows};
use super::states::LayerState;
use crate::device::ops::{DELTA_CHUNK, DeltaShape};

/// Keeps the length of a zero query or key from dividing by zero.
const LENGTH_EPS: f32 = 1e-6;

/// Tokens up to which the rule is taken step by step.
const STEPS: i32 = 4;

/// Which cells of a chunk's `[size, size]` matrices count, made once for every size.
#[derive(Debug)]
pub(super) struct Masks(Vec<Mask>);

#[derive(Debug)]
struct Mask {
    size: i32,
    /// `j ≤ i`
    lower: Array,
    /// The identity, f32.
    one: Array,
    /// The lower left quarters of the diagonal blocks of 2, 4, 8, … rows.
    corners: Vec<Array>,
}

impl Masks {
    /// Those of all sizes.
    pub(super) fn new() -> Masks {
        let sizes = (0..).map(|power| 1 << power).take_while(|size| *size <= int(DELTA_CHUNK));
        Masks(sizes.map(Mask::new).collect())
    }

    /// Those of the chunk that `tokens` tokens, of which there is one, are best taken in.
    fn of(&self, tokens: i32) -> &Mask {
        let power = (tokens as u32).next_power_of_two().trailing_zeros() as usize;
        &self.0[power.min(self.0.len() - 1)]
    }
}

impl Mask {
    fn new(size: i32) -> Mask {
        let cells = |holds: &dyn Fn(i32, i32) -> bool| {
            let cells = (0..size).flat_map(|i| (0..size).map(move |j| (i, j)));
            Array::from_iter(cells.map(|(i, j)| holds(i, j)), &[size, size])
        };
        let halves = (0..).map(|power| 1 << power).take_while(|half| *half < size);
        let corner = |half: i32| cells(&|i, j| i / (2 * half) == j / (2 * half) && i / half > j / half);
        let diagonal = (0..size * size).map(|cell| f32::from(u8::from(cell % (size + 1) == 0)));
        Mask {
            size,
            lower: cells(&|i, j| j <= i),
            one: Array::from_iter(diagonal, &[size, size]),
            corners: halves.map(corner).collect(),
        }
    }
}

/// What a gated delta layer has beside its projections.
#[derive(Debug)]
pub struct Delta {
    pub(super) shape: DeltaShape,
    /// `[channels, taps, 1]`
    pub(super) convolution: Array,
    /// Decay rate of each value head, `[value_heads]` f32.
    pub(super) rates: Array,
    /// `[value_heads]` f32
    pub(super) biases: Array,
    /// `[value_dim]` f32
    pub(super) gain: Array,
}

/// The numbers a span's states follow from.
#[derive(Debug)]
pub(super) struct Prepared {
    /// Inputs of the convolution with those before, `[taps - 1 + tokens, channels]`.
    inputs: Array,
    /// `[value_heads, tokens, key_dim]` f32, scaled.
    queries: Array,
    /// `[value_heads, tokens, key_dim]` f32, of length 1.
    keys: Array,
    /// `[value_heads, tokens, value_dim]` f32
    values: Array,
    /// Logarithm of what a token keeps of the state, `[value_heads, tokens]` f32.
    keeps: Array,
    /// What a token writes by, `[value_heads, tokens]` f32.
    writes: Array,
}

/// `x / (1 + exp(-x))`
pub(super) fn silu(x: &Array) -> Built<Array> {
    x.multiply(sigmoid(x)?)
}

impl Delta {
    /// Prepares a span's rows `[tokens, shape.columns()]`, given the state before it.
    pub(super) fn prepare(&self, x: &Array, before: Option<&LayerState>) -> Built<Prepared> {
        let shape = self.shape;
        let channels = shape.channels();
        let new = columns(x, 0, channels)?;
        let inputs = match before {
            Some(state) => concatenate(&[&state.tail, &new], 0)?,
            None => pad(&new, &[(int(shape.taps - 1), 0), (0, 0)], None, None)?,
        };
        let convolved =
            conv1d(inputs.expand_dims(0)?, &self.convolution, 1, 0, 1, int(channels))?.squeeze_axes(&[0])?;
        let convolved = silu(&convolved)?.as_dtype(Dtype::Float32)?;
        let keys_at = shape.key_heads * shape.key_dim;
        let queries = self.key_heads(&columns(&convolved, 0, keys_at)?)?;
        let scale = Array::from_f32(1.0 / (shape.key_dim as f32).sqrt());
        let last = shape.columns() - 2 * shape.value_heads;
        let float = |from| columns(x, from, from + shape.value_heads)?.as_dtype(Dtype::Float32);
        let decays = float(last + shape.value_heads)?.add(&self.biases)?;
        // softplus(x) = log(exp(x) + exp(0))
        let keeps = logaddexp(decays, Array::from_f32(0.0))?.multiply(&self.rates)?.negative()?;
        Ok(Prepared {
            inputs,
            queries: queries.multiply(scale)?,
            keys: self.key_heads(&columns(&convolved, keys_at, 2 * keys_at)?)?,
            values: columns(&convolved, 2 * keys_at, channels)?
                .reshape(&[rows(x), int(shape.value_heads), int(shape.value_dim)])?
                .transpose_axes(&[1, 0, 2])?,
            keeps: keeps.transpose()?,
            writes: sigmoid(float(last)?)?.transpose()?,
        })
    }

    /// Queries or keys `[tokens, key_heads·key_dim]` scaled to length 1, for every value head: `[value_heads, tokens, key_dim]`.
    fn key_heads(&self, x: &Array) -> Built<Array> {
        let DeltaShape { key_heads, value_heads, key_dim, .. } = self.shape;
        let (n, key_heads, key_dim) = (rows(x), int(key_heads), int(key_dim));
        let x = x.reshape(&[n, key_heads, key_dim])?;
        let squares = x.square()?.sum_axis(-1, true)?;
        let x = x.multiply(rsqrt(squares.add(Array::from_f32(LENGTH_EPS))?)?)?;
        let x = x.transpose_axes(&[1, 0, 2])?.expand_dims(1)?;
        let shared = int(value_heads) / key_heads;
        broadcast_to(x, &[key_heads, shared, n, key_dim])?.reshape(&[int(value_heads), n, key_dim])
    }

    /// Norms each value head of `[tokens, value_heads, value_dim]` and multiplies by silu of its gates, the row's.
    pub(super) fn finish(&self, given: &Array, x: &Array, eps: f32) -> Built<Array> {
        let shape = self.shape;
        let normed = mlx_rs::fast::rms_norm(given, Some(&self.gain), eps)?.reshape(&[rows(x), -1])?;
        let gates = columns(x, shape.channels(), shape.channels() + shape.values())?;
        normed.multiply(silu(&gates.as_dtype(Dtype::Float32)?)?)?.as_dtype(x.dtype())
    }
}

impl Prepared {
    /// Tokens of the span.
    pub(super) fn tokens(&self) -> usize {
        self.keeps.dim(-1) as usize
    }

    /// The state after the first `tokens` tokens.
    pub(super) fn state_after(
        &self,
        before: Option<&LayerState>,
        tokens: usize,
        masks: &Masks,
    ) -> Built<LayerState> {
        let n = int(tokens);
        let cut = |x: &Array| x.try_index((.., ..n));
        let first = Prepared {
            inputs: self.inputs.try_index(..self.inputs.dim(0) - int(self.tokens()) + n)?,
            queries: cut(&self.queries)?,
            keys: cut(&self.keys)?,
            values: cut(&self.values)?,
            keeps: cut(&self.keeps)?,
            writes: cut(&self.writes)?,
        };
        first.advance(before, masks).map(|(_, state)| state)
    }

    /// Takes all tokens. Gives their outputs `[tokens, value_heads, value_dim]` and the state after.
    pub(super) fn advance(&self, before: Option<&LayerState>, masks: &Masks) -> Built<(Array, LayerState)> {
        let [heads, n, key_dim] = [0, 1, 2].map(|axis| self.keys.dim(axis));
        let value_dim = self.values.dim(2);
        let matrix = match before {
            Some(state) => state.matrix.clone(),
            None => zeros_dtype(&[heads, key_dim, value_dim], Dtype::Float32)?,
        };
        let (given, matrix) = match n {
            0 => (zeros_dtype(&[heads, 0, value_dim], Dtype::Float32)?, matrix),
            _ if n <= STEPS => self.steps(matrix)?,
            _ => self.chunks(matrix, masks.of(n))?,
        };
        // A copy, so that the tail does not keep all inputs alive.
        let tail = self.inputs.try_index(n..)?.contiguous()?;
        Ok((given.transpose_axes(&[1, 0, 2])?, LayerState { tail, matrix }))
    }

    /// The rule, token by token. Gives `[value_heads, tokens, value_dim]`.
    fn steps(&self, mut state: Array) -> Built<(Array, Array)> {
        let (keeps, writes) = (exp(&self.keeps)?.expand_dims(-1)?, self.writes.expand_dims(-1)?);
        let mut given = Vec::new();
        for t in 0..int(self.tokens()) {
            // [value_heads, 1, ·]
            let at = |x: &Array| x.try_index((.., t..t + 1));
            let key = at(&self.keys)?;
            state = state.multiply(at(&keeps)?)?;
            let difference = at(&self.values)?.subtract(matmul(&key, &state)?)?.multiply(at(&writes)?)?;
            state = state.add(key.swap_axes(1, 2)?.multiply(difference)?)?;
            given.push(matmul(at(&self.queries)?, &state)?);
        }
        Ok((concatenate(&given, 1)?, state))
    }

    /// The rule, chunk by chunk. Gives `[value_heads, tokens, value_dim]`.
    fn chunks(&self, mut state: Array, mask: &Mask) -> Built<(Array, Array)> {
        let (n, size) = (int(self.tokens()), mask.size);
        let count = (n + size - 1) / size;
        // Tokens that keep everything and write nothing fill the last chunk.
        let cut = |x: &Array| {
            let mut widths = vec![(0, 0); x.ndim()];
            widths[1] = (0, count * size - n);
            let padded = pad(x, &widths[..], None, None)?;
            let mut shape = vec![x.dim(0), count, size];
            shape.extend_from_slice(&x.shape()[2..]);
            padded.reshape(&shape)
        };
        let (queries, keys, values) = (cut(&self.queries)?, cut(&self.keys)?, cut(&self.values)?);
        let writes = cut(&self.writes)?.expand_dims(-1)?;
        let sums = cumsum(cut(&self.keeps)?, -1, None, None)?;
        let (column, row) = (sums.expand_dims(-1)?, sums.expand_dims(-2)?);
        // exp(γᵢ - γⱼ) for j ≤ i; above the diagonal the difference may be anything, so it is cut off before exp.
        let none = Array::from_f32(f32::NEG_INFINITY);
        let decays = exp(select(&mask.lower, column.subtract(&row)?, &none)?)?;
        let kept = exp(&column)?;
        let keys_across = keys.swap_axes(-1, -2)?;
        let overlaps = matmul(&keys, &keys_across)?.multiply(&decays)?.multiply(&writes)?;
        let inverse = unit_lower_inverse(&overlaps, mask)?;
        let written = matmul(&inverse, values.multiply(&writes)?)?;
        let erased = matmul(&inverse, keys.multiply(&writes)?.multiply(&kept)?)?;
        let attention = matmul(&queries, &keys_across)?.multiply(&decays)?;
        let queries = queries.multiply(&kept)?;
        let end = column.try_index((.., .., size - 1..))?;
        let keys_to_end = keys.multiply(exp(end.subtract(&column)?)?)?.swap_axes(-1, -2)?;
        let kept_to_end = exp(&end)?;
        let mut given = Vec::new();
        for chunk in 0..count {
            let at = |x: &Array| x.try_index((.., chunk));
            let new = at(&written)?.subtract(matmul(at(&erased)?, &state)?)?;
            given.push(matmul(at(&queries)?, &state)?.add(matmul(at(&attention)?, &new)?)?);
            state = state.multiply(at(&kept_to_end)?)?.add(matmul(at(&keys_to_end)?, &new)?)?;
        }
        Ok((concatenate(&given, 1)?.try_index((.., ..n))?, state))
    }
}

/// `(1 + L)⁻¹` for the strictly lower part `L` of `[.., size, size]`, `size` a power of two.
///
/// The inverse of `[[A, 0], [B, D]]` is `[[A⁻¹, 0], [-D⁻¹·B·A⁻¹, D⁻¹]]`. With `T` the inverse of all diagonal blocks of `half` rows and
/// `B` what lies in the lower left of those of twice as many, the next is `T - T·B·T`.
fn unit_lower_inverse(x: &Array, mask: &Mask) -> Built<Array> {
    let zero = Array::from_f32(0.0);
    let mut inverse = mask.one.clone();
    for corner in &mask.corners {
        let corner = select(corner, x, &zero)?;
        inverse = inverse.subtract(matmul(matmul(&inverse, &corner)?, &inverse)?)?;
    }
    Ok(inverse)
}

#[cfg(test)]
mod tests {
    use mlx_rs::random;

    use super::super::kv::numbers;
    use super::*;

    fn draw(low: f32, high: f32, shape: &[i32]) -> Array {
        random::uniform::<_, f32>(low, high, shape, None).unwrap()
    }

    fn unit(x: &Array) -> Array {
        let length = x.square().unwrap().sum_axis(-1, true).unwrap().sqrt().unwrap();
        x.divide(length).unwrap()
    }

    fn prepared(n: i32, keys: Array, keeps: Array) -> Prepared {
        Prepared {
            inputs: zeros_dtype(&[3 + n, 8], Dtype::Float32).unwrap(),
            queries: unit(&draw(-1.0, 1.0, &[2, n, 16])),
            keys,
            values: draw(-1.0, 1.0, &[2, n, 24]),
            keeps,
            writes: draw(0.0, 1.0, &[2, n]),
        }
    }

    #[test]
    fn chunks_give_what_steps_do_whatever_the_keys_and_decays() {
        let before = draw(-1.0, 1.0, &[2, 16, 24]);
        let same = |n| broadcast_to(unit(&draw(-1.0, 1.0, &[2, 1, 16])), &[2, n, 16]).unwrap();
        for n in [5, 8, 63, 64, 65, 130] {
            let random = unit(&draw(-1.0, 1.0, &[2, n, 16]));
            let nothing = zeros_dtype(&[2, n], Dtype::Float32).unwrap();
            let strong = draw(-40.0, 0.0, &[2, n]);
            for (name, prepared) in [
                ("random keys", prepared(n, random.clone(), draw(-1.0, 0.0, &[2, n]))),
                ("decays that leave nothing", prepared(n, random, strong)),
                ("equal keys without decay", prepared(n, same(n), nothing)),
            ] {
                let (stepped, after_steps) = prepared.steps(before.clone()).unwrap();
                let (chunked, after_chunks) = prepared.chunks(before.clone(), Masks::new().of(n)).unwrap();
                for (a, b) in [(stepped, chunked), (after_steps, after_chunks)] {
                    let (a, b) = (numbers(&a).unwrap(), numbers(&b).unwrap());
                    let worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(worst < 2e-5, "{name}, {n} tokens: {worst}");
                }
            }
        }
    }

    #[test]
    fn the_inverse_of_a_lower_matrix_times_it_is_one() {
        for size in [1, 2, 8, 64] {
            let masks = Masks::new();
            let mask = masks.of(size);
            let zero = Array::from_f32(0.0);
            let lower = select(&mask.lower, draw(0.0, 1.0, &[3, size, size]), &zero).unwrap();
            let strict = select(mask.one.gt(&zero).unwrap(), &zero, lower).unwrap();
            let inverse = unit_lower_inverse(&strict, mask).unwrap();
            let product = matmul(inverse, strict.add(&mask.one).unwrap()).unwrap();
            let difference = numbers(&product.subtract(&mask.one).unwrap()).unwrap();
            assert!(difference.iter().all(|x| x.abs() < 1e-4), "{size}");
        }
    }
}
