//! Activations: a matrix, or the blocks of columns an attention layer works on.

use mlx_rs::Array;
use mlx_rs::ops::concatenate;
use mlx_rs::ops::indexing::TryIndexOp;

use super::failure::Built;
use crate::device::ops::AttentionShape;

/// Activations, not necessarily computed yet.
#[derive(Debug)]
pub struct Hidden(Columns);

#[derive(Debug)]
enum Columns {
    /// `[rows, columns]`
    Whole(Array),
    /// Cut by heads. They stay apart from the first operation that works on heads to the attention that consumes them, which saves a copy
    /// for every operation between.
    Heads(Heads),
}

/// The blocks of a row of an attention layer.
#[derive(Debug, Clone)]
pub(super) struct Heads {
    /// `[rows, heads, head_dim]`
    pub(super) queries: Array,
    /// `[rows, heads·head_dim]`
    pub(super) gates: Option<Array>,
    /// `[rows, kv_heads, head_dim]`
    pub(super) keys: Array,
    /// `[rows, kv_heads, head_dim]`
    pub(super) values: Array,
}

/// Rows of an array, 0 for a scalar.
pub(super) fn rows(x: &Array) -> i32 {
    x.shape().first().copied().unwrap_or(0)
}

/// A size as MLX wants it.
pub(super) fn int(size: usize) -> i32 {
    i32::try_from(size).unwrap_or(i32::MAX)
}

/// Columns `from..to` of a matrix.
pub(super) fn columns(x: &Array, from: usize, to: usize) -> Built<Array> {
    x.try_index((.., int(from)..int(to)))
}

impl Hidden {
    /// A matrix `[rows, columns]`.
    pub(super) fn whole(x: Array) -> Hidden {
        Hidden(Columns::Whole(x))
    }

    /// The matrix.
    pub(super) fn matrix(&self) -> Built<Array> {
        match &self.0 {
            Columns::Whole(x) => Ok(x.clone()),
            Columns::Heads(Heads { queries, gates, keys, values }) => {
                let flat = |x: &Array| x.reshape(&[rows(x), -1]);
                let blocks = [Some(flat(queries)?), gates.clone(), Some(flat(keys)?), Some(flat(values)?)];
                concatenate(&blocks.into_iter().flatten().collect::<Vec<Array>>(), 1)
            }
        }
    }

    /// Its blocks, cut if need be.
    pub(super) fn heads(&self, shape: AttentionShape) -> Built<Heads> {
        let x = match &self.0 {
            Columns::Heads(heads) => return Ok(heads.clone()),
            Columns::Whole(x) => x,
        };
        let AttentionShape { heads, kv_heads, head_dim, gated, .. } = shape;
        let cut = |from, heads: usize| {
            columns(x, from, from + heads * head_dim)?.reshape(&[rows(x), int(heads), int(head_dim)])
        };
        Ok(Heads {
            queries: cut(0, heads)?,
            gates: gated.then(|| columns(x, shape.queries(), 2 * shape.queries())).transpose()?,
            keys: cut(shape.keys_at(), kv_heads)?,
            values: cut(shape.values_at(), kv_heads)?,
        })
    }

    /// Puts changed blocks in the place of what was there.
    pub(super) fn put_heads(&mut self, heads: Heads) {
        self.0 = Columns::Heads(heads);
    }
}
