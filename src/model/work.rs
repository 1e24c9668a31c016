//! What a forward works with beside weights and state: an upper bound, from the shape alone.
//!
//! A device that builds a graph frees a result once its last use is computed, and hands out memory for operations before those ahead of
//! them are done. So what is alive at once is counted as the residual stream and one layer of every kind. Operations are counted as the
//! `mlx` device builds them, the one that holds most; a test holds this bound to what its allocator counts.

use crate::device::ops::{AHEAD_FROM, GATHERED, SCORES};

use super::shape::{LayerKind, MlpKind, ModelShape};

/// Tokens of a chunk of the gated delta rule.
const DELTA_CHUNK: usize = 64;

/// A forward, for its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Work {
    /// Rows of the batch.
    pub(super) rows: usize,
    /// Spans they are of.
    pub(super) spans: usize,
    /// The furthest position of any row.
    pub(super) end: usize,
    /// Rows whose logits are asked for.
    pub(super) logits: usize,
}

impl ModelShape {
    /// Bytes a forward works with at most, with activations of `float` bytes.
    pub(super) fn work_bytes(&self, work: Work, float: usize) -> u64 {
        let wide = |numbers: usize| numbers.saturating_mul(float);
        let single = |numbers: usize| numbers.saturating_mul(size_of::<f32>());
        let rows = |columns: usize| work.rows.saturating_mul(columns);
        // What goes by a layer: the residual stream, its sum, and the normed input.
        let stream = wide(rows(3 * self.hidden));
        let attention = {
            let shape = self.attention_shape();
            let scores = rows(shape.heads).saturating_mul(work.end).min(SCORES.max(shape.heads * work.end));
            // Projections, their parts normed and rotated, and the output; keys and values in one piece; scores with their mask and softmax.
            let joined = 2 * work.end.saturating_mul(shape.kv_heads * shape.head_dim);
            // Of a few rows several layers are under way at once.
            let joined = joined.saturating_mul(if work.rows < AHEAD_FROM { 4 } else { 1 });
            wide(rows(3 * shape.columns())).saturating_add(wide(joined)).saturating_add(single(3 * scores))
        };
        let delta = self.delta.map_or(0, |delta| {
            // Everything the rule makes of a chunk, as if none of it were freed before its end: MLX hands out memory for operations before
            // those ahead of them are done.
            let heads = delta.value_heads * (11 * delta.key_dim + 10 * delta.value_dim + 16 * DELTA_CHUNK);
            let padded = work.rows.next_multiple_of(DELTA_CHUNK.min(work.rows.max(1).next_power_of_two()));
            let single = single(padded.saturating_mul(heads + 4 * delta.channels()));
            wide(rows(3 * delta.columns())).saturating_add(single)
        });
        // The states after the spans, of all layers, beside those before; and of the layer under way a few that lead there.
        let states = self.states().map_or(0, |shape| {
            let after = work.spans.saturating_mul(shape.layers).saturating_mul(shape.delta.state_elements());
            single(after.saturating_add(work.spans.saturating_mul(4 * shape.delta.state_elements())))
        });
        let mlp = match self.mlp {
            MlpKind::Dense { intermediate } => wide(rows(6 * intermediate)),
            MlpKind::Experts { routing, intermediate, shared } => {
                let pair = 2 * self.hidden + 5 * intermediate;
                let plain = rows(routing.per_token).saturating_mul(self.hidden * intermediate);
                wide(rows(routing.per_token * pair + 6 * shared))
                    .saturating_add(wide(2 * plain.min(GATHERED.max(self.hidden * intermediate))))
                    .saturating_add(single(rows(4 * routing.experts)))
            }
        };
        let logits = work.logits.saturating_mul(self.vocab);
        let logits = wide(logits).saturating_add(single(logits));
        let delta = if self.layers.contains(&LayerKind::Recurrent) { delta } else { 0 };
        [attention, delta, states, mlp, logits].into_iter().fold(stream, usize::saturating_add) as u64
    }
}

#[cfg(test)]
mod mlx;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Folder, TARGET};

    #[test]
    fn work_grows_with_rows_positions_and_logits() {
        let folder = Folder::open(TARGET.as_ref()).unwrap();
        let bytes = |rows, end, logits| folder.shape().work_bytes(Work { rows, spans: 1, end, logits }, 2);
        assert!(bytes(1, 100, 1) < bytes(2, 100, 1) && bytes(2, 100, 1) < bytes(512, 512, 1));
        assert!(bytes(256, 256, 0) < bytes(256, 20_000, 0));
        assert!(bytes(512, 512, 1) < bytes(512, 512, 512));
        // Scores are held block by block, so a long context costs little more than its keys.
        assert!(bytes(512, 24_000, 0) < 2 * bytes(256, 24_000, 0));
    }
}
