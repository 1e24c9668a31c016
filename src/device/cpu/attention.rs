//! Causal attention over the paged store, with an online softmax whose order is fixed by positions alone.
//!
//! A query reads tiles of 64 keys in ascending order. Runs of [`RUN`] positions, which start at multiples of it, are each summed
//! by themselves and then merged in ascending order, whether one thread does them one after another (prefill) or several at
//! once (decode). Within a tile: scores are sums over columns in order; the greatest score so far sets the scale; weights are
//! summed in sixteen lanes; values are added in order of keys. Keys past the query's own position take no part, nor do those before the first
//! place that is seen.

use std::ops::Range;

use super::elementwise::{exp, load_some, logistic, store_some};
use super::isa::{Isa, LANES};
use super::kernel::{Kernel, Task};
use super::kv::{Element, Kv, Pages, TILE};
use super::memory::{Parts, Scratch, Tally};
use super::pool::Pool;
use crate::device::PageId;
use crate::device::ops::{AttentionShape, Rows};

/// Positions whose contributions are summed before they are merged with those of earlier ones; a multiple of [`TILE`].
const RUN: usize = 256;

/// Rows (a query head of a token each) that go through a tile together.
pub(super) const ROWS: usize = 6;

/// Tokens of a prefill task.
const QUERY_TOKENS: usize = 16;

/// Memory for attention, reused.
pub(super) struct AttentionScratch {
    partials: Scratch<f32>,
}

impl AttentionScratch {
    /// Nothing yet.
    pub(super) fn new(tally: &Tally) -> AttentionScratch {
        AttentionScratch { partials: Scratch::new(tally) }
    }
}

/// Consecutive tokens of one sequence and one key/value head.
#[derive(Clone, Copy)]
struct Query<'a> {
    pages: &'a [PageId],
    /// Position of the first token.
    position: usize,
    /// Its row in the batch.
    row: usize,
    tokens: usize,
    head: usize,
}

impl Query<'_> {
    /// Runs the last token reads.
    fn runs(&self) -> usize {
        (self.position + self.tokens).div_ceil(RUN)
    }
}

/// What all tasks share.
#[derive(Clone, Copy)]
struct Layer<'a, E> {
    pages: &'a Pages<'a, E>,
    layer: usize,
    shape: AttentionShape,
    /// The first place that is seen; it lies in the first tile.
    first: usize,
    /// `[rows, shape.columns()]`
    qkv: &'a [f32],
}

/// A call of attention; keys and values of the rows themselves are in the store already.
pub(super) struct Attention<'a> {
    /// `[rows, shape.columns()]`
    pub(super) qkv: &'a [f32],
    pub(super) shape: AttentionShape,
    pub(super) rows: Rows<'a>,
    pub(super) kv: &'a Kv,
    pub(super) layer: usize,
    /// The first place that is seen.
    pub(super) first: usize,
    /// `[rows, heads·head_dim]`
    pub(super) out: &'a mut [f32],
}

impl Attention<'_> {
    /// The work: [`QUERY_TOKENS`] tokens at a time, for every key/value head; the heaviest first, so that threads finish
    /// together.
    fn queries(&self) -> Vec<Query<'_>> {
        let mut queries = Vec::new();
        let mut row = 0;
        for span in self.rows.spans {
            for first in (0..span.tokens.len()).step_by(QUERY_TOKENS) {
                let tokens = QUERY_TOKENS.min(span.tokens.len() - first);
                for head in 0..self.shape.kv_heads {
                    let position = span.start + first;
                    queries.push(Query { pages: span.pages, position, row: row + first, tokens, head });
                }
            }
            row += span.tokens.len();
        }
        queries.sort_by_key(|query| std::cmp::Reverse(query.runs()));
        queries
    }
}

/// Attends.
pub(super) fn attend<E: Element>(
    mut call: Attention<'_>,
    scratch: &mut AttentionScratch,
    kernel: Kernel,
    pool: &mut Pool,
) {
    let out = std::mem::take(&mut call.out);
    let queries = call.queries();
    let Attention { qkv, shape, kv, layer, first, .. } = call;
    assert!(first < TILE, "the first place seen lies in the first tile");
    let pages = kv.read::<E>();
    let layer = Layer { pages: &pages, layer, shape, first, qkv };
    let group = shape.heads / shape.kv_heads;
    let stride = kv.layout().value_stride();
    let state = State::elements(stride);
    let out = Parts::new(out);
    if queries.len() >= 4 * pool.threads() {
        let most = QUERY_TOKENS * group * state * 2;
        pool.run(queries.len(), |task| {
            let query = queries[task];
            let mut states = vec![0.0; most];
            let (total, run) = states.split_at_mut(most / 2);
            for index in 0..query.runs() {
                let states = if index == 0 { &mut *total } else { &mut *run };
                kernel.dispatch(Run { layer, query, run: index, states });
                if index > 0 {
                    kernel.dispatch(Merge { total, run, stride });
                }
            }
            kernel.dispatch(Finish { layer, query, states: total, out, stride });
        });
        return;
    }
    // Few queries: their runs are tasks too.
    let tasks: Vec<(usize, usize)> =
        queries.iter().enumerate().flat_map(|(q, query)| (0..query.runs()).map(move |r| (q, r))).collect();
    let size = QUERY_TOKENS * group * state;
    let partials = scratch.partials.take(tasks.len() * size);
    let parts = Parts::new(&mut *partials);
    pool.run(tasks.len(), |task| {
        let (query, run) = tasks[task];
        // SAFETY: every task has its own part.
        let states = unsafe { parts.part(task * size..(task + 1) * size) };
        kernel.dispatch(Run { layer, query: queries[query], run, states });
    });
    let mut rest = partials;
    for query in &queries {
        let (mine, others) = rest.split_at_mut(query.runs() * size);
        rest = others;
        let (total, runs) = mine.split_at_mut(size);
        for run in runs.chunks_exact(size) {
            kernel.dispatch(Merge { total, run, stride });
        }
        kernel.dispatch(Finish { layer, query: *query, states: total, out, stride });
    }
}

/// A row's softmax so far, as numbers in memory: greatest score in lane 0 of sixteen, sums of weights in sixteen lanes, weighted
/// values.
struct State;

impl State {
    /// Numbers of one row's state.
    fn elements(stride: usize) -> usize {
        2 * LANES + stride
    }
}

/// One query against one run.
struct Run<'a, E> {
    layer: Layer<'a, E>,
    query: Query<'a>,
    run: usize,
    /// One a row.
    states: &'a mut [f32],
}

impl<E: Element> Task for Run<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Run { layer, query, run, states } = self;
        let Layer { shape, qkv, .. } = layer;
        let head_dim = shape.head_dim;
        let group = shape.heads / shape.kv_heads;
        let stride = layer.pages.layout().value_stride();
        let rows = query.tokens * group;
        let size = State::elements(stride);
        for state in states[..rows * size].chunks_exact_mut(size) {
            state.fill(0.0);
            state[..LANES].fill(f32::NEG_INFINITY);
        }
        // Queries of a block of rows, `[column][rows]`, scaled.
        let mut q = vec![0.0; rows * head_dim];
        let columns = shape.columns();
        for row in 0..rows {
            let first = row / ROWS * ROWS;
            let n = ROWS.min(rows - first);
            let from = &qkv
                [(query.row + row / group) * columns + (query.head * group + row % group) * head_dim..]
                [..head_dim];
            for (out, x) in q[first * head_dim..][..n * head_dim].chunks_exact_mut(n).zip(from) {
                out[row - first] = x * shape.scale;
            }
        }
        let end = (query.position + query.tokens).min((run + 1) * RUN);
        for start in (run * RUN..end).step_by(TILE) {
            let (keys, values) = layer.pages.tile(query.pages, start, layer.layer, query.head);
            let unseen = layer.first.saturating_sub(start);
            for first in (0..rows).step_by(ROWS) {
                let n = ROWS.min(rows - first);
                // Keys of this tile a row sees: up to its own position.
                let seen =
                    |i: usize| (query.position + (first + i) / group + 1).saturating_sub(start).min(TILE);
                let q = &q[first * head_dim..][..n * head_dim];
                let states = &mut states[first * size..][..n * size];
                let step = Step { keys, values, q, seen, unseen, states, stride };
                match n {
                    1 => step.run::<I, 1>(isa),
                    2 => step.run::<I, 2>(isa),
                    3 => step.run::<I, 3>(isa),
                    4 => step.run::<I, 4>(isa),
                    5 => step.run::<I, 5>(isa),
                    _ => step.run::<I, ROWS>(isa),
                }
            }
        }
    }
}

/// A block of rows against a tile.
struct Step<'a, E, S> {
    keys: &'a [[E; TILE]],
    values: &'a [E],
    q: &'a [f32],
    /// Keys of the tile that a row sees, up to its own.
    seen: S,
    /// Keys at the start of the tile that none sees.
    unseen: usize,
    states: &'a mut [f32],
    stride: usize,
}

/// Vectors of a tile's scores.
pub(super) const VECTORS: usize = TILE / LANES;

impl<E: Element, S: Fn(usize) -> usize> Step<'_, E, S> {
    #[inline(always)]
    fn run<I: Isa, const N: usize>(self, isa: I) {
        let Step { keys, values, q, seen, unseen, states, stride } = self;
        let seen: [usize; N] = std::array::from_fn(seen);
        if seen[N - 1] == 0 {
            return;
        }
        let mut scores = [[[0.0; LANES]; VECTORS]; N];
        isa.apart(Scores { keys, q: q.as_chunks::<N>().0, scores: &mut scores });
        for scores in &mut scores {
            scores.as_flattened_mut()[..unseen].fill(f32::NEG_INFINITY);
        }
        let mut weights = [[0.0; TILE]; N];
        let size = State::elements(stride);
        for i in 0..N {
            if seen[i] > 0 {
                let state = &mut states[i * size..(i + 1) * size];
                soften(isa, &scores[i], unseen..seen[i], state, &mut weights[i]);
            }
        }
        // Keys every row sees go through all rows at once, the rest (on the diagonal) row by row.
        let shared = seen.iter().copied().min().unwrap_or(0);
        accumulate::<I, E, N>(isa, &weights, &values[..shared * stride], states, stride);
        for i in 0..N {
            if seen[i] > shared {
                let weights: &[f32; TILE] = &weights[i];
                let mut rest = [0.0; TILE];
                rest[..seen[i] - shared].copy_from_slice(&weights[shared..seen[i]]);
                let state = &mut states[i * size..(i + 1) * size];
                accumulate::<I, E, 1>(
                    isa,
                    &[rest],
                    &values[shared * stride..seen[i] * stride],
                    state,
                    stride,
                );
            }
        }
    }
}

/// Turns a row's scores into weights and brings its state to the new scale.
#[inline(always)]
fn soften<I: Isa>(
    isa: I,
    scores: &[[f32; LANES]; VECTORS],
    seen: Range<usize>,
    state: &mut [f32],
    weights: &mut [f32; TILE],
) {
    let least = isa.splat(f32::NEG_INFINITY);
    let mut seen_scores = [least; VECTORS];
    for (v, score) in seen_scores.iter_mut().enumerate() {
        *score = isa.keep_first(isa.load(&scores[v]), seen.end.saturating_sub(v * LANES), least);
    }
    let scores = seen_scores;
    let before = state[0];
    let mut greatest = scores[0];
    for v in &scores[1..] {
        greatest = isa.max(greatest, *v);
    }
    let tile_greatest = isa.greatest(greatest);
    let now = if tile_greatest > before { tile_greatest } else { before };
    if now != before {
        let factor = exp(isa, isa.splat(before - now));
        state[..LANES].fill(now);
        for x in state[LANES..].as_chunks_mut::<LANES>().0 {
            let scaled = isa.mul(isa.load(x), factor);
            isa.store(scaled, x);
        }
    }
    let (sums, _) = state[LANES..].as_chunks_mut::<LANES>();
    let mut sum = isa.load(&sums[0]);
    for (v, out) in weights.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        let weight = exp(isa, isa.sub(scores[v], isa.splat(now)));
        let mut weight = isa.keep_first(weight, seen.end.saturating_sub(v * LANES), isa.splat(0.0));
        if seen.start > v * LANES {
            // What is kept is taken from itself, the rest from nothing.
            weight = isa.sub(weight, isa.keep_first(weight, seen.start - v * LANES, isa.splat(0.0)));
        }
        sum = isa.add(sum, weight);
        isa.store(weight, out);
    }
    isa.store(sum, &mut sums[0]);
}

/// Scores of `N` rows against a tile.
pub(super) struct Scores<'a, E, const N: usize> {
    pub(super) keys: &'a [[E; TILE]],
    pub(super) q: &'a [[f32; N]],
    pub(super) scores: &'a mut [[[f32; LANES]; VECTORS]; N],
}

impl<E: Element, const N: usize> Task for Scores<'_, E, N> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let mut sums = [[isa.splat(0.0); VECTORS]; N];
        for (keys, q) in self.keys.iter().zip(self.q) {
            let (keys, _) = keys.as_chunks::<LANES>();
            let keys: [I::F; VECTORS] = E::load_all(isa, keys);
            for i in 0..N {
                let q = isa.splat(q[i]);
                for v in 0..VECTORS {
                    sums[i][v] = isa.fma(q, keys[v], sums[i][v]);
                }
            }
        }
        for (sum, score) in sums.into_iter().flatten().zip(self.scores.iter_mut().flatten()) {
            isa.store(sum, score);
        }
    }
}

/// Adds weighted values, in order of keys, to the states of `N` rows.
#[inline(always)]
fn accumulate<I: Isa, E: Element, const N: usize>(
    isa: I,
    weights: &[[f32; TILE]; N],
    values: &[E],
    states: &mut [f32],
    stride: usize,
) {
    let mut column = 0;
    while column < stride {
        if stride - column >= 4 * LANES {
            isa.apart(Accumulate::<E, N, 4> { weights, values, states: &mut *states, stride, column });
            column += 4 * LANES;
        } else {
            isa.apart(Accumulate::<E, N, 1> { weights, values, states: &mut *states, stride, column });
            column += LANES;
        }
    }
}

/// The same for `V` vectors of columns.
struct Accumulate<'a, E, const N: usize, const V: usize> {
    weights: &'a [[f32; TILE]; N],
    values: &'a [E],
    states: &'a mut [f32],
    stride: usize,
    column: usize,
}

impl<E: Element, const N: usize, const V: usize> Task for Accumulate<'_, E, N, V> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Accumulate { weights, values, states, stride, column } = self;
        let size = State::elements(stride);
        let at = |i: usize| i * size + 2 * LANES + column;
        let mut sums = [[isa.splat(0.0); V]; N];
        for (i, sums) in sums.iter_mut().enumerate() {
            *sums = f32::load_all(isa, states[at(i)..at(i) + V * LANES].as_chunks().0);
        }
        for (key, values) in values.chunks_exact(stride).enumerate().take(TILE) {
            let x: [I::F; V] = E::load_all(isa, values[column..column + V * LANES].as_chunks().0);
            for i in 0..N {
                let weight = isa.splat(weights[i][key]);
                for v in 0..V {
                    sums[i][v] = isa.fma(weight, x[v], sums[i][v]);
                }
            }
        }
        for i in 0..N {
            let (x, _) = states[at(i)..at(i) + V * LANES].as_chunks_mut::<LANES>();
            for v in 0..V {
                isa.store(sums[i][v], &mut x[v]);
            }
        }
    }
}

/// Merges the states of a later run into the total, row by row.
struct Merge<'a> {
    total: &'a mut [f32],
    run: &'a [f32],
    stride: usize,
}

impl Task for Merge<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let size = State::elements(self.stride);
        for (total, run) in self.total.chunks_exact_mut(size).zip(self.run.chunks_exact(size)) {
            // A row that saw nothing of the run is left as it is.
            if run[0] == f32::NEG_INFINITY {
                continue;
            }
            let now = if run[0] > total[0] { run[0] } else { total[0] };
            let before = exp(isa, isa.splat(total[0] - now));
            let after = exp(isa, isa.splat(run[0] - now));
            total[..LANES].fill(now);
            let (total, _) = total[LANES..].as_chunks_mut::<LANES>();
            for (total, run) in total.iter_mut().zip(run[LANES..].as_chunks::<LANES>().0) {
                let scaled = isa.mul(isa.load(total), before);
                isa.store(isa.fma(isa.load(run), after, scaled), total);
            }
        }
    }
}

/// Divides by the sum of weights, gates, and writes a query's rows.
struct Finish<'a, E> {
    layer: Layer<'a, E>,
    query: Query<'a>,
    states: &'a [f32],
    out: Parts<'a, f32>,
    stride: usize,
}

impl<E: Element> Task for Finish<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let AttentionShape { heads, kv_heads, head_dim, .. } = self.layer.shape;
        let group = heads / kv_heads;
        let size = State::elements(self.stride);
        let states = self.states.chunks_exact(size).take(self.query.tokens * group);
        for (row, state) in states.enumerate() {
            let (sums, values) = state[LANES..].split_at(LANES);
            let (sums, _) = sums.as_chunks::<LANES>();
            let factor = isa.splat(1.0 / isa.sum(isa.load(&sums[0])));
            let at = (self.query.row + row / group) * heads * head_dim
                + (self.query.head * group + row % group) * head_dim;
            // SAFETY: every row and head belongs to one query, and every query to one task.
            let out = unsafe { self.out.part(at..at + head_dim) };
            let gates = self.layer.shape.gated.then(|| {
                let shape = self.layer.shape;
                let head = self.query.head * group + row % group;
                let from = (self.query.row + row / group) * shape.columns() + shape.queries();
                &self.layer.qkv[from + head * head_dim..][..head_dim]
            });
            for (index, (out, x)) in out.chunks_mut(LANES).zip(values.as_chunks::<LANES>().0).enumerate() {
                let mut given = isa.mul(isa.load(x), factor);
                if let Some(gates) = gates {
                    given = isa.mul(given, logistic(isa, load_some(isa, &gates[index * LANES..])));
                }
                store_some(isa, given, out);
            }
        }
    }
}
