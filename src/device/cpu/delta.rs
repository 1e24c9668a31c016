//! The gated delta rule with its short convolution.
//!
//! Three passes. Rows are *prepared* side by side: convolution, activation, lengths, and the two factors of every head. Then each value
//! head, in strips of columns, takes a sequence's rows one after another, which fixes the order whatever the chunk. Then
//! rows are normed and gated side by side. The sums over key columns run in ascending order, one multiply-add each.

use std::ops::Range;

use super::by_rows;
use super::elementwise::{load_some, norm_factor, silu_times, squares, store_some};
use super::isa::{Isa, LANES};
use super::kernel::{Kernel, Task};
use super::memory::{Parts, Scratch, Tally};
use super::pool::Pool;
use super::quantise::rows_a_task;
use super::states::{Before, LayerLog, Log, STRIP, States, StripPlace, Taken};
use crate::device::ops::{DeltaShape, MAX_TAPS, Rows};
use crate::device::{DeviceError, StateFlow};

/// Keeps the length of a zero query or key from dividing by zero.
const LENGTH_EPS: f32 = 1e-6;

/// What a gated delta layer has beside its projections.
pub struct Delta {
    shape: DeltaShape,
    /// `[tap][channel]`, the oldest first.
    taps: Vec<f32>,
    /// Decay rate of each value head.
    rates: Vec<f64>,
    /// What is added to each value head's decay.
    biases: Vec<f64>,
    /// Of the norm of each value head.
    gain: Vec<f32>,
}

impl Delta {
    /// From the file's numbers: convolution `[channel][tap]`, logarithms of rates.
    pub(super) fn new(
        shape: DeltaShape,
        convolution: &[f32],
        decay_rate: &[f32],
        decay_bias: &[f32],
        gain: Vec<f32>,
    ) -> Delta {
        let taps = (0..shape.taps)
            .flat_map(|tap| convolution.iter().skip(tap).step_by(shape.taps).copied())
            .collect();
        Delta {
            shape,
            taps,
            rates: decay_rate.iter().map(|x| libm::exp(f64::from(*x))).collect(),
            biases: decay_bias.iter().map(|x| f64::from(*x)).collect(),
            gain,
        }
    }

    /// Its heads.
    pub(super) fn shape(&self) -> DeltaShape {
        self.shape
    }
}

/// Memory for prepared rows, reused.
pub(super) struct DeltaScratch {
    prepared: Scratch<f32>,
}

impl DeltaScratch {
    /// Nothing yet.
    pub(super) fn new(tally: &Tally) -> DeltaScratch {
        DeltaScratch { prepared: Scratch::new(tally) }
    }
}

/// Columns of a prepared row: queries, keys, values, then a factor to keep and a factor to write by for every value head.
fn prepared_columns(shape: DeltaShape) -> usize {
    shape.channels() + 2 * shape.value_heads
}

/// A layer's work on a batch.
pub(super) struct Call<'a> {
    /// `[rows, shape.columns()]`
    pub(super) x: &'a [f32],
    pub(super) delta: &'a Delta,
    pub(super) rows: Rows<'a>,
    pub(super) layer: usize,
    pub(super) eps: f32,
    /// `[rows, value_heads·value_dim]`
    pub(super) out: &'a mut [f32],
}

/// Computes a layer.
pub(super) fn gated_delta(
    call: Call<'_>,
    states: &mut States,
    scratch: &mut DeltaScratch,
    kernel: Kernel,
    pool: &mut Pool,
) {
    let Call { x, delta, rows, layer, eps, out } = call;
    let shape = delta.shape;
    let (columns, width, values) = (shape.columns(), prepared_columns(shape), shape.values());
    let layout = states.layout();
    let ranges = rows.ranges();
    if layer == 0 {
        states.forget_logs();
    }
    let mut taken: Vec<Taken> = rows.spans.iter().map(|span| states.take(span.flow())).collect();
    let tails: Vec<Vec<f32>> = taken.iter().map(|taken| states.tail_before(taken, layer)).collect();

    let prepared = scratch.prepared.take(x.len() / columns * width);
    prepare(x, delta, &ranges, &tails, prepared, kernel, pool);

    let sums = Parts::new(&mut *out);
    let mut strips = Vec::new();
    for (range, taken) in ranges.iter().zip(&mut taken) {
        let before = states.before(taken);
        let to = Parts::new(&mut taken.to[..]);
        let prepared = &prepared[range.start * width..range.end * width];
        let outputs = Some(Outputs { sums, row: range.start, values });
        strips.extend(layout.strips(layer).map(|place| Strip {
            shape,
            prepared,
            place,
            before,
            to,
            outputs,
        }));
    }
    pool.run(strips.len(), |index| kernel.dispatch(strips[index].clone()));

    for (((range, taken), tail), span) in ranges.iter().zip(&mut taken).zip(&tails).zip(rows.spans) {
        let inputs = x[range.start * columns..range.end * columns].chunks_exact(columns);
        let inputs = inputs.map(|row| &row[..shape.channels()]);
        advance_tail(shape.channels(), tail, inputs.clone(), &mut taken.to[layout.tail(layer)]);
        if span.flow().revocable {
            let prepared = prepared[range.start * width..range.end * width].to_vec();
            states.log(span.flow(), LayerLog { prepared, inputs: inputs.flatten().copied().collect() });
        }
    }
    taken.into_iter().for_each(|taken| states.put_back(taken));

    by_rows(pool, x.len() / columns, values, out, |rows, out| {
        kernel.dispatch(Finish { x: &x[rows.start * columns..rows.end * columns], delta, eps, out });
    });
}

/// Brings `flow.to` to the state after the first `tokens` tokens of the log.
pub(super) fn rewind(
    states: &mut States,
    flow: StateFlow,
    tokens: usize,
    kernel: Kernel,
    pool: &mut Pool,
) -> Result<(), DeviceError> {
    let log = states.take_log(flow)?;
    let rewound = write_again(states, flow, &log, tokens, kernel, pool);
    states.put_log(log);
    rewound
}

fn write_again(
    states: &mut States,
    flow: StateFlow,
    log: &Log,
    tokens: usize,
    kernel: Kernel,
    pool: &mut Pool,
) -> Result<(), DeviceError> {
    let layout = states.layout();
    let shape = layout.delta();
    let width = prepared_columns(shape);
    if log.layers.iter().any(|log| log.prepared.len() / width < tokens) {
        return Err(DeviceError::Contract(format!("{flow:?} has no {tokens} tokens to rewind to")));
    }
    let mut taken = states.take(flow);
    for (layer, log) in log.layers.iter().enumerate() {
        let tail = states.tail_before(&taken, layer);
        let before = states.before(&taken);
        let to = Parts::new(&mut taken.to[..]);
        let prepared = &log.prepared[..tokens * width];
        let strip = |place| Strip { shape, prepared, place, before, to, outputs: None };
        let strips: Vec<Strip<'_>> = layout.strips(layer).map(strip).collect();
        pool.run(strips.len(), |index| kernel.dispatch(strips[index].clone()));
        let inputs = log.inputs.chunks_exact(shape.channels()).take(tokens);
        advance_tail(shape.channels(), &tail, inputs, &mut taken.to[layout.tail(layer)]);
    }
    states.put_back(taken);
    Ok(())
}

/// Writes the last inputs, of those `before` and then these, to `tail`.
fn advance_tail<'a>(
    channels: usize,
    before: &'a [f32],
    inputs: impl DoubleEndedIterator<Item = &'a [f32]>,
    tail: &mut [f32],
) {
    let newest_first = inputs.rev().chain(before.chunks_exact(channels).rev());
    for (out, row) in tail.chunks_exact_mut(channels).rev().zip(newest_first) {
        out.copy_from_slice(row);
    }
}

/// Prepares all rows of a batch.
fn prepare(
    x: &[f32],
    delta: &Delta,
    ranges: &[Range<usize>],
    tails: &[Vec<f32>],
    out: &mut [f32],
    kernel: Kernel,
    pool: &mut Pool,
) {
    let (columns, width) = (delta.shape.columns(), prepared_columns(delta.shape));
    let rows = x.len() / columns;
    // A row is a microsecond of exponentials, so that two are already worth a thread each.
    let chunk = rows_a_task(rows, columns).min(rows.div_ceil(pool.threads())).max(1);
    // Pieces of one span each.
    let jobs: Vec<(usize, Range<usize>)> = ranges
        .iter()
        .enumerate()
        .flat_map(|(span, range)| {
            let end = range.end;
            range.clone().step_by(chunk).map(move |start| (span, start..end.min(start + chunk)))
        })
        .collect();
    let out = Parts::new(out);
    pool.run(jobs.len(), |job| {
        let (span, rows) = jobs[job].clone();
        // SAFETY: jobs have distinct rows.
        let out = unsafe { out.part(rows.start * width..rows.end * width) };
        let span_x = &x[ranges[span].start * columns..ranges[span].end * columns];
        let first = rows.start - ranges[span].start;
        kernel.dispatch(Prepare { x: span_x, delta, tail: &tails[span], first, out });
    });
}

/// Prepares some rows of a span.
struct Prepare<'a> {
    /// All rows of the span.
    x: &'a [f32],
    delta: &'a Delta,
    /// The rows the convolution took before them.
    tail: &'a [f32],
    /// The first row to prepare.
    first: usize,
    /// `[rows, prepared columns]`
    out: &'a mut [f32],
}

impl Task for Prepare<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Prepare { x, delta, tail, first, out } = self;
        let shape = delta.shape;
        let (columns, channels, key_dim) = (shape.columns(), shape.channels(), shape.key_dim);
        let keys = shape.key_heads * key_dim;
        let scale = 1.0 / (key_dim as f32).sqrt();
        for (index, out) in out.chunks_exact_mut(prepared_columns(shape)).enumerate() {
            let row = first + index;
            // The rows under the convolution, the oldest first.
            let mut window = [&[] as &[f32]; MAX_TAPS];
            for (tap, input) in window[..shape.taps].iter_mut().enumerate() {
                *input = match (row + tap + 1).checked_sub(shape.taps) {
                    Some(row) => &x[row * columns..][..channels],
                    None => &tail[(row + tap) * channels..][..channels],
                };
            }
            let (convolved, factors) = out.split_at_mut(channels);
            for (chunk, out) in convolved.chunks_mut(LANES).enumerate() {
                let at = chunk * LANES;
                let end = at + out.len();
                let mut sum = isa.splat(0.0);
                for (taps, input) in delta.taps.chunks_exact(channels).zip(&window) {
                    sum = isa.fma(load_some(isa, &taps[at..end]), load_some(isa, &input[at..end]), sum);
                }
                store_some(isa, silu_times(isa, sum, isa.splat(1.0)), out);
            }
            let (queries, rest) = convolved.split_at_mut(keys);
            queries.chunks_exact_mut(key_dim).for_each(|head| set_length(isa, head, scale));
            rest[..keys].chunks_exact_mut(key_dim).for_each(|head| set_length(isa, head, 1.0));
            let (betas, decays) = x[row * columns..(row + 1) * columns][columns - 2 * shape.value_heads..]
                .split_at(shape.value_heads);
            let (keep, write) = factors.split_at_mut(shape.value_heads);
            for (head, (keep, write)) in keep.iter_mut().zip(write).enumerate() {
                *keep = kept(delta.rates[head], f64::from(decays[head]) + delta.biases[head]);
                *write = logistic(f64::from(betas[head]));
            }
        }
    }
}

/// `exp(-rate·ln(1 + e^x))`: how much of a state is kept.
fn kept(rate: f64, x: f64) -> f32 {
    let softplus = x.max(0.0) + libm::log1p(libm::exp(-x.abs()));
    libm::exp(-rate * softplus) as f32
}

/// `1 / (1 + e^-x)`
fn logistic(x: f64) -> f32 {
    (1.0 / (1.0 + libm::exp(-x))) as f32
}

/// Scales a head to a length.
#[inline(always)]
fn set_length<I: Isa>(isa: I, head: &mut [f32], length: f32) {
    let factor = isa.splat(1.0 / (squares(isa, head) + LENGTH_EPS).sqrt() * length);
    for x in head.chunks_mut(LANES) {
        store_some(isa, isa.mul(load_some(isa, x), factor), x);
    }
}

/// Where a span's outputs go: rows of `values` numbers from row `row` on.
#[derive(Clone, Copy)]
struct Outputs<'a> {
    sums: Parts<'a, f32>,
    row: usize,
    values: usize,
}

/// A strip of a value head's state through a sequence's rows.
#[derive(Clone)]
struct Strip<'a> {
    shape: DeltaShape,
    prepared: &'a [f32],
    place: StripPlace,
    before: Before<'a>,
    to: Parts<'a, f32>,
    outputs: Option<Outputs<'a>>,
}

impl Task for Strip<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        // SAFETY: strips do not overlap, and each is one task's.
        let state = unsafe { self.to.part(self.place.range.clone()) };
        // The first row takes what another slot holds from there, which saves a copy.
        let mut before = None;
        match self.before {
            Before::Zero => state.fill(0.0),
            Before::InPlace => {}
            Before::Slot(slot) if self.prepared.is_empty() => {
                state.copy_from_slice(&slot[self.place.range.clone()]);
            }
            Before::Slot(slot) => before = Some(&slot[self.place.range.clone()]),
        }
        match self.place.vectors {
            1 => self.rows::<I, 1>(isa, before, state),
            2 => self.rows::<I, 2>(isa, before, state),
            3 => self.rows::<I, 3>(isa, before, state),
            _ => self.rows::<I, STRIP>(isa, before, state),
        }
    }
}

impl Strip<'_> {
    #[inline(always)]
    fn rows<I: Isa, const V: usize>(&self, isa: I, before: Option<&[f32]>, state: &mut [f32]) {
        let DeltaShape { key_heads, value_heads, key_dim, value_dim, .. } = self.shape;
        let StripPlace { head, column, .. } = self.place;
        let keys = key_heads * key_dim;
        let key_head = head / (value_heads / key_heads) * key_dim;
        let first_value = head * value_dim + column;
        let columns = (V * LANES).min(value_dim - column);
        let (state, _) = state.as_chunks_mut::<LANES>();
        let (state, _) = state.as_chunks_mut::<V>();
        let mut before = before.map(|before| before.as_chunks::<LANES>().0.as_chunks::<V>().0);
        for (index, row) in self.prepared.chunks_exact(prepared_columns(self.shape)).enumerate() {
            let (convolved, factors) = row.split_at(self.shape.channels());
            let query = &convolved[key_head..][..key_dim];
            let key = &convolved[keys + key_head..][..key_dim];
            let value = &convolved[2 * keys + first_value..][..columns];
            let (kept, written) = (factors[head], factors[value_heads + head]);
            let held = match before.take() {
                Some(before) => keep_from::<I, V>(isa, before, state, key, kept),
                None => keep::<I, V>(isa, state, key, kept),
            };
            let difference = difference::<I, V>(isa, held, value, written);
            let sums = write::<I, V>(isa, state, key, query, difference);
            if let Some(Outputs { sums: out, row, values }) = self.outputs {
                let at = (row + index) * values + first_value;
                // SAFETY: every row's columns of a strip are one task's.
                let out = unsafe { out.part(at..at + columns) };
                for (out, sum) in out.chunks_mut(LANES).zip(sums) {
                    store_some(isa, sum, out);
                }
            }
        }
    }
}

/// `S ← keep·S`; gives `Sᵀk`.
#[inline(always)]
fn keep<I: Isa, const V: usize>(
    isa: I,
    state: &mut [[[f32; LANES]; V]],
    key: &[f32],
    keep: f32,
) -> [I::F; V] {
    let keep = isa.splat(keep);
    let mut sums = [isa.splat(0.0); V];
    for (state, key) in state.iter_mut().zip(key) {
        let key = isa.splat(*key);
        for v in 0..V {
            let kept = isa.mul(isa.load(&state[v]), keep);
            isa.store(kept, &mut state[v]);
            sums[v] = isa.fma(key, kept, sums[v]);
        }
    }
    sums
}

/// `S ← keep·before`; gives `Sᵀk`.
#[inline(always)]
fn keep_from<I: Isa, const V: usize>(
    isa: I,
    before: &[[[f32; LANES]; V]],
    state: &mut [[[f32; LANES]; V]],
    key: &[f32],
    keep: f32,
) -> [I::F; V] {
    let keep = isa.splat(keep);
    let mut sums = [isa.splat(0.0); V];
    for (before, (state, key)) in before.iter().zip(state.iter_mut().zip(key)) {
        let key = isa.splat(*key);
        for v in 0..V {
            let kept = isa.mul(isa.load(&before[v]), keep);
            isa.store(kept, &mut state[v]);
            sums[v] = isa.fma(key, kept, sums[v]);
        }
    }
    sums
}

/// `write·(v − held)`
#[inline(always)]
fn difference<I: Isa, const V: usize>(isa: I, held: [I::F; V], value: &[f32], write: f32) -> [I::F; V] {
    let write = isa.splat(write);
    let mut differences = held;
    for (v, difference) in differences.iter_mut().enumerate() {
        let value = load_some(isa, &value[(v * LANES).min(value.len())..]);
        *difference = isa.mul(isa.sub(value, *difference), write);
    }
    differences
}

/// `S ← S + k·differenceᵀ`; gives `Sᵀq`.
#[inline(always)]
fn write<I: Isa, const V: usize>(
    isa: I,
    state: &mut [[[f32; LANES]; V]],
    key: &[f32],
    query: &[f32],
    difference: [I::F; V],
) -> [I::F; V] {
    let mut sums = [isa.splat(0.0); V];
    for (state, (key, query)) in state.iter_mut().zip(key.iter().zip(query)) {
        let (key, query) = (isa.splat(*key), isa.splat(*query));
        for v in 0..V {
            let written = isa.fma(key, difference[v], isa.load(&state[v]));
            isa.store(written, &mut state[v]);
            sums[v] = isa.fma(query, written, sums[v]);
        }
    }
    sums
}

/// Norms and gates the heads of some rows.
struct Finish<'a> {
    /// The rows' projections.
    x: &'a [f32],
    delta: &'a Delta,
    eps: f32,
    /// `[rows, value_heads·value_dim]`
    out: &'a mut [f32],
}

impl Task for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Finish { x, delta, eps, out } = self;
        let shape = delta.shape;
        for (x, out) in x.chunks_exact(shape.columns()).zip(out.chunks_exact_mut(shape.values())) {
            let gates = x[shape.channels()..][..shape.values()].chunks_exact(shape.value_dim);
            for (head, gate) in out.chunks_exact_mut(shape.value_dim).zip(gates) {
                let factor = norm_factor(isa, head, eps);
                let columns = head.chunks_mut(LANES).zip(gate.chunks(LANES)).zip(delta.gain.chunks(LANES));
                for ((x, gate), gain) in columns {
                    let normed = isa.mul(isa.mul(load_some(isa, x), factor), load_some(isa, gain));
                    store_some(isa, silu_times(isa, load_some(isa, gate), normed), x);
                }
            }
        }
    }
}
