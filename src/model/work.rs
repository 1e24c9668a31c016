//! What a forward works with beside weights and state: an upper bound, from the shape alone.
//!
//! A device that builds a graph frees a result once its last use is computed, and hands out memory for operations before those ahead of
//! them are done. So what is alive at once is counted as the residual stream and one layer of every kind. Operations are counted as the
//! `mlx` device builds them, the one that holds most; a test holds this bound to what its allocator counts.

use crate::device::ops::{GATHERED, SCORES};

use super::shape::{LayerKind, MlpKind, ModelShape};

/// Tokens of a chunk of the gated delta rule.
const DELTA_CHUNK: usize = 64;

/// A forward, for its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Work {
    /// Rows of the batch.
    pub(super) rows: usize,
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
        [attention, delta, mlp, logits].into_iter().fold(stream, usize::saturating_add) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Folder, TARGET};

    #[test]
    fn work_grows_with_rows_positions_and_logits() {
        let folder = Folder::open(TARGET.as_ref()).unwrap();
        let bytes = |rows, end, logits| folder.shape().work_bytes(Work { rows, end, logits }, 2);
        assert!(bytes(1, 100, 1) < bytes(2, 100, 1) && bytes(2, 100, 1) < bytes(512, 512, 1));
        assert!(bytes(256, 256, 0) < bytes(256, 20_000, 0));
        assert!(bytes(512, 512, 1) < bytes(512, 512, 512));
        // Scores are held block by block, so a long context costs little more than its keys.
        assert!(bytes(512, 24_000, 0) < 2 * bytes(256, 24_000, 0));
    }

    /// What forwards of a model take, and what they are expected to take, in a process that does nothing else: MLX counts for all of it.
    #[cfg(feature = "mlx")]
    #[test]
    #[ignore = "run by the test below, alone in a process"]
    fn mlx_work_alone() {
        use std::path::Path;

        use crate::config::MlxConfig;
        use crate::device::mlx::{Floats, Mlx};
        use crate::device::ops::Device;
        use crate::device::{Executor, LogitRows, PageId, SlotId, Span, StateFlow};
        use crate::model::Resident;

        let fixtures = ["llama", "qwen3.5-q4", "odd-hybrid", "odd-moe", "moe-q6"];
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let mut wrong = Vec::new();
        let folders = fixtures.map(|name| root.join(format!("parity-{name}")));
        for path in folders.iter().map(|path| &**path).chain([Path::new("scarp"), Path::new("talus")]) {
            let folder = Folder::open(path).unwrap();
            let device = Mlx::new(Floats::F32, &MlxConfig::default()).unwrap();
            let float = device.float_bytes();
            let shape = folder.shape().clone();
            let mut executor = Resident::load(device, &folder, shape, "test".into(), 64).unwrap();
            executor.reserve(20, 2).unwrap();
            // Pages apart, so that keys have to be put together.
            let pages: Vec<PageId> = (0..10).map(|n| PageId(2 * n)).collect();
            let tokens: Vec<u32> = (0..600).map(|n| n * 31 % 250).collect();
            let recurrent = executor.facts().slot_bytes > 0;
            for (start, end, logits) in [
                (0, 256, LogitRows::None),
                (256, 512, LogitRows::Last),
                (512, 576, LogitRows::All),
                (576, 577, LogitRows::Last),
            ] {
                let from = (start > 0).then_some(SlotId(0));
                let state = recurrent.then_some(StateFlow { from, to: SlotId(0), revocable: false });
                let span = Span { pages: &pages, start, tokens: &tokens[start..end], state, logits };
                let before = executor.memory().unwrap().active;
                mlx_rs::memory::reset_peak_memory().unwrap();
                executor.forward(&[span]).unwrap();
                let taken = executor.memory().unwrap().peak.saturating_sub(before);
                let work = Work { rows: end - start, end, logits: logits.count(end - start) };
                let expected = folder.shape().work_bytes(work, float);
                let told = format!("{} {start}..{end}: {taken} of {expected} bytes", path.display());
                println!("{told}");
                if taken > expected || expected > 8 * taken + (1 << 20) {
                    wrong.push(told);
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[cfg(feature = "mlx")]
    #[test]
    fn mlx_takes_what_is_expected_and_not_much_less() {
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        alone.args(["model::work::tests::mlx_work_alone", "--exact", "--ignored", "--nocapture"]);
        let out = alone.output().unwrap();
        let told =
            format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        println!("{told}");
        assert!(out.status.success() && told.contains("1 passed"), "{told}");
    }
}
