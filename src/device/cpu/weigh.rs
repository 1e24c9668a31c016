//! What queries make of keys: a softmax over a window, without values.
//!
//! Scores form as in attention, tile by tile and with the same operations. Then, of every row: the greatest score sets the scale; weights are
//! summed in sixteen lanes, key `i` of the window in lane `i % 16`, in ascending order; and each is multiplied by one over the sum. Threads
//! share tiles, then rows, so they change no bits.

use super::attention::{ROWS, Scores, VECTORS};
use super::elementwise::{exp, load_some, store_some};
use super::isa::{Isa, LANES};
use super::kernel::{Kernel, Task};
use super::kv::{Element, Kv, Pages, TILE};
use super::memory::Parts;
use super::pool::Pool;
use crate::device::ops::{AttentionShape, Keys};

/// Places of a scoring task; a multiple of [`TILE`].
const TASK: usize = 1024;

/// A call.
pub(super) struct Weigh<'a> {
    /// `[queries, heads·head_dim]`
    pub(super) queries: &'a [f32],
    pub(super) shape: AttentionShape,
    pub(super) kv: &'a Kv,
    pub(super) layer: usize,
    pub(super) keys: Keys<'a>,
}

/// Gives `[queries, heads, window]`.
pub(super) fn weigh<E: Element>(call: Weigh<'_>, kernel: Kernel, pool: &mut Pool) -> Vec<f32> {
    let Weigh { queries, shape, kv, layer, keys } = call;
    let AttentionShape { heads, kv_heads, head_dim, .. } = shape;
    let window = keys.window.len();
    let rows = queries.len() / head_dim;
    let mut weights = vec![0.0; rows * window];
    if weights.is_empty() {
        return weights;
    }
    let pages = kv.read::<E>();
    let mine = rows / kv_heads;
    let scaled: Vec<Vec<f32>> = (0..kv_heads).map(|head| scaled_queries(queries, shape, head)).collect();
    let first = keys.window.start / TASK;
    let tasks = keys.window.end.div_ceil(TASK) - first;
    let out = Parts::new(&mut weights);
    pool.run(kv_heads * tasks, |task| {
        let head = task / tasks;
        let start = (first + task % tasks) * TASK;
        let places = start..start + TASK;
        let q = &scaled[head];
        kernel.dispatch(Score { pages: &pages, keys: &keys, layer, head, heads, q, rows: mine, places, out });
    });
    pool.run(rows, |row| {
        // SAFETY: every task has its own row.
        kernel.dispatch(Soften { row: unsafe { out.part(row * window..(row + 1) * window) } });
    });
    weights
}

/// The queries that read a key head, scaled: blocks of [`ROWS`] of them, `[column][rows]`.
fn scaled_queries(queries: &[f32], shape: AttentionShape, head: usize) -> Vec<f32> {
    let AttentionShape { heads, kv_heads, head_dim, scale, .. } = shape;
    let rows = queries.len() / head_dim / kv_heads;
    let mut scaled = vec![0.0; rows * head_dim];
    for row in 0..rows {
        let first = row / ROWS * ROWS;
        let n = ROWS.min(rows - first);
        let from = &queries[query_row(row, head, heads, kv_heads) * head_dim..][..head_dim];
        for (out, x) in scaled[first * head_dim..][..n * head_dim].chunks_exact_mut(n).zip(from) {
            out[row - first] = x * scale;
        }
    }
    scaled
}

/// Which of `[queries, heads]` is the `row`th that reads key head `head`.
fn query_row(row: usize, head: usize, heads: usize, kv_heads: usize) -> usize {
    let group = heads / kv_heads;
    row / group * heads + head * group + row % group
}

/// Scores of a key head's queries at some places.
struct Score<'a, E> {
    pages: &'a Pages<'a, E>,
    keys: &'a Keys<'a>,
    layer: usize,
    head: usize,
    /// Query heads.
    heads: usize,
    q: &'a [f32],
    rows: usize,
    /// Whole tiles; those outside the window are left out.
    places: std::ops::Range<usize>,
    out: Parts<'a, f32>,
}

impl<E: Element> Task for Score<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let window = &self.keys.window;
        let first = self.places.start.max(window.start / TILE * TILE);
        let head_dim = self.pages.layout().shape.head_dim;
        for start in (first..self.places.end.min(window.end)).step_by(TILE) {
            let (keys, _) = self.pages.tile(self.keys.pages, start, self.layer, self.head);
            for first in (0..self.rows).step_by(ROWS) {
                let n = ROWS.min(self.rows - first);
                let q = &self.q[first * head_dim..][..n * head_dim];
                match n {
                    1 => self.block::<I, 1>(isa, keys, q, start, first),
                    2 => self.block::<I, 2>(isa, keys, q, start, first),
                    3 => self.block::<I, 3>(isa, keys, q, start, first),
                    4 => self.block::<I, 4>(isa, keys, q, start, first),
                    5 => self.block::<I, 5>(isa, keys, q, start, first),
                    _ => self.block::<I, ROWS>(isa, keys, q, start, first),
                }
            }
        }
    }
}

impl<E: Element> Score<'_, E> {
    /// A block of rows, from number `first` on, against the tile at `start`.
    #[inline(always)]
    fn block<I: Isa, const N: usize>(
        &self,
        isa: I,
        keys: &[[E; TILE]],
        q: &[f32],
        start: usize,
        first: usize,
    ) {
        let mut scores = [[[0.0; LANES]; VECTORS]; N];
        isa.apart(Scores { keys, q: q.as_chunks::<N>().0, scores: &mut scores });
        let window = &self.keys.window;
        let seen = start.max(window.start)..(start + TILE).min(window.end);
        let kv_heads = self.pages.layout().shape.kv_heads;
        for (i, scores) in scores.iter().enumerate() {
            let row = query_row(first + i, self.head, self.heads, kv_heads);
            let at = row * window.len() + seen.start - window.start;
            // SAFETY: every row belongs to one key head, every place to one tile, and both to one task.
            let out = unsafe { self.out.part(at..at + seen.len()) };
            out.copy_from_slice(&scores.as_flattened()[seen.start - start..seen.end - start]);
        }
    }
}

/// Turns a row's scores into weights.
struct Soften<'a> {
    row: &'a mut [f32],
}

impl Task for Soften<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let least = isa.splat(f32::NEG_INFINITY);
        let mut greatest = least;
        for x in self.row.chunks(LANES) {
            greatest = isa.max(greatest, isa.keep_first(load_some(isa, x), x.len(), least));
        }
        let greatest = isa.splat(isa.greatest(greatest));
        let mut sum = isa.splat(0.0);
        for x in self.row.chunks_mut(LANES) {
            let weight = exp(isa, isa.sub(load_some(isa, x), greatest));
            sum = isa.add(sum, isa.keep_first(weight, x.len(), isa.splat(0.0)));
            store_some(isa, weight, x);
        }
        let factor = isa.splat(1.0 / isa.sum(sum));
        for x in self.row.chunks_mut(LANES) {
            store_some(isa, isa.mul(load_some(isa, x), factor), x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Precision;
    use crate::device::PageId;
    use crate::device::cpu::{Cpu, CpuOptions};
    use crate::device::ops::{Device, KvShape};

    /// Out of order.
    const PAGES: [u32; 20] = [3, 1, 19, 0, 2, 5, 4, 6, 8, 7, 9, 10, 12, 11, 13, 14, 18, 17, 16, 15];

    /// `e^x` as [`exp`] takes it, of one number.
    fn scalar_exp(x: f32) -> f32 {
        let x = x.max(-86.6);
        let shifted = x.mul_add(std::f32::consts::LOG2_E, 12_582_912.0);
        let k = shifted - 12_582_912.0;
        let r = k.mul_add(1.904_654_2e-9, k.mul_add(-std::f32::consts::LN_2, x));
        let terms = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
        let p = terms.iter().fold(1.0f32 / 5040.0, |p, c| p.mul_add(r, *c));
        f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23))
    }

    /// One number at a time. `keys` of all places, `[places, kv_heads, head_dim]`.
    fn scalar(
        queries: &[f32],
        keys: &[f32],
        window: std::ops::Range<usize>,
        shape: AttentionShape,
    ) -> Vec<f32> {
        let AttentionShape { heads, kv_heads, head_dim, scale, .. } = shape;
        let mut out = Vec::new();
        for (row, q) in queries.chunks_exact(head_dim).enumerate() {
            let kv_head = row % heads / (heads / kv_heads);
            let score = |place: usize| {
                let key = &keys[(place * kv_heads + kv_head) * head_dim..][..head_dim];
                q.iter().zip(key).fold(0.0f32, |sum, (q, k)| (q * scale).mul_add(*k, sum))
            };
            let scores: Vec<f32> = window.clone().map(score).collect();
            let greatest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weights: Vec<f32> = scores.iter().map(|score| scalar_exp(score - greatest)).collect();
            let mut lanes = [0.0f32; 16];
            weights.iter().enumerate().for_each(|(i, weight)| lanes[i % 16] += weight);
            for width in [8, 4, 2, 1] {
                (0..width).for_each(|i| lanes[i] += lanes[i + width]);
            }
            let factor = 1.0 / lanes[0];
            out.extend(weights.iter().map(|weight| weight * factor));
        }
        out
    }

    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        let mixed = |i: u32| (i.wrapping_mul(2_654_435_761) ^ seed).wrapping_mul(2_246_822_519) >> 8;
        (0..n as u32).map(|i| mixed(i) as f32 / (1u32 << 22) as f32 - 2.0).collect()
    }

    #[test]
    fn weights_are_the_scalar_twin_s_bits_on_every_instruction_set_and_any_number_of_threads() {
        for (heads, kv_heads, head_dim) in [(2, 1, 64), (6, 2, 16), (3, 3, 24), (7, 1, 8)] {
            let shape = AttentionShape { heads, kv_heads, head_dim, scale: 0.3, gated: false };
            let pages = PAGES.map(PageId);
            let keys = numbers(1280 * kv_heads * head_dim, 1);
            for (kernel, threads) in Kernel::ALL.into_iter().flat_map(|kernel| [(kernel, 1), (kernel, 3)]) {
                let options = CpuOptions { precision: Precision::F32, threads, kernel: Some(kernel) };
                let Ok(mut cpu) = Cpu::new(options) else { continue };
                let mut kv = cpu.new_kv(KvShape { layers: 2, kv_heads, head_dim, page_tokens: 64 }).unwrap();
                cpu.reserve_kv(&mut kv, pages.len()).unwrap();
                for (place, key) in keys.chunks_exact(kv_heads * head_dim).enumerate() {
                    kv.write(pages[place / 64], 1, place % 64, key, key);
                }
                for (queries, window) in
                    [(1, 0..1), (8, 0..1280), (3, 5..130), (5, 70..1111), (2, 1023..1025)]
                {
                    let queries = numbers(queries * heads * head_dim, 2);
                    let keys_at = Keys { pages: &pages, window: window.clone() };
                    let got = cpu.key_weights(&mut kv, 1, keys_at, &queries, shape).unwrap();
                    let expected = scalar(&queries, &keys, window.clone(), shape);
                    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    assert!(
                        bits(&got) == bits(&expected),
                        "{kernel}, {threads} threads, {shape:?}, {window:?}"
                    );
                }
            }
        }
    }
}
