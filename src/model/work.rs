//! What a forward works with beside weights and state: an upper bound, from the shape alone.
//!
//! A device that builds a graph frees a result once its last use is computed, and hands out memory for operations before those ahead of
//! them are done. So what is alive at once is counted as the residual stream and one layer of every kind. Operations are counted as the
//! `mlx` device builds them, the one that holds most; a test holds this bound to what its allocator counts.

use crate::device::ops::{AHEAD_FROM, DELTA_CHUNK, GATHERED, SCORES};

use super::shape::{LayerKind, MlpKind, ModelShape};

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
    use crate::device::ops::{DeltaShape, ExpertShape, Rotary};
    use crate::model::{Architecture, AttentionSizes, Folder, TARGET};

    /// A hybrid of Qwen's 3.5 family: every fourth layer attends.
    fn qwen(layers: usize, hidden: usize, heads: [usize; 2], value_heads: usize, mlp: MlpKind) -> ModelShape {
        let kind = |n| if n % 4 == 3 { LayerKind::Attention } else { LayerKind::Recurrent };
        let [heads, kv_heads] = heads;
        let rotary = Rotary { base: 1e7, dims: 64 };
        ModelShape {
            architecture: Architecture::Qwen35,
            layers: (0..layers).map(kind).collect(),
            hidden,
            vocab: 248_320,
            context: 262_144,
            norm_eps: 1e-6,
            attention: AttentionSizes {
                heads,
                kv_heads,
                head_dim: 256,
                rotary,
                head_norms: true,
                gated: true,
            },
            delta: Some(DeltaShape { key_heads: 16, value_heads, key_dim: 128, value_dim: 128, taps: 4 }),
            mlp,
            prediction_layers: 0,
        }
    }

    /// What the README says of a folder: weights of `bits` bits with a 16-bit scale and bias for 64 of them, and state in bf16.
    fn told(shape: &ModelShape, bits: u64) -> String {
        let (tokens, gib) = (80_000, (1u64 << 30) as f64);
        let elements: usize =
            shape.roles().map(|role| shape.tensor(role)).map(|(rows, cols)| rows * cols).sum();
        let weights = elements as f64 * (bits as f64 + 0.5) / 8e9;
        let kv = shape.kv(64);
        let token = 2 * 2 * kv.layers * kv.kv_heads * kv.head_dim;
        let states = shape.states().unwrap();
        let (tail, all) = (3 * states.delta.channels(), states.delta.state_elements());
        let snapshot = states.layers * (2 * tail + 4 * (all - tail));
        let work = shape.work_bytes(Work { rows: 256, spans: 1, end: tokens, logits: 1 }, 2);
        format!(
            "| {weights:.1} GB | {} KiB a token, {:.1} GiB at 80,000 | {:.0} MiB | {:.1} GiB |",
            token / 1024,
            (token * tokens) as f64 / gib,
            snapshot as f64 / f64::from(1 << 20),
            work as f64 / gib,
        )
    }

    #[test]
    fn the_readme_s_memory_table_follows_from_the_shapes() {
        let readme = include_str!("../../README.md");
        let routing = ExpertShape { experts: 256, per_token: 8, normalised: true };
        let dense = qwen(64, 5_120, [24, 4], 48, MlpKind::Dense { intermediate: 17_408 });
        let experts =
            qwen(40, 2_048, [16, 2], 32, MlpKind::Experts { routing, intermediate: 512, shared: 512 });
        for (name, shape, bits) in
            [("Qwen3.5-27B, 4 bits", dense, 4), ("Qwen3.5-35B-A3B, 6 bits", experts, 6)]
        {
            let row = format!("| {name} {}", told(&shape, bits));
            assert!(readme.contains(&row), "README.md lacks: {row}");
        }
    }

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
