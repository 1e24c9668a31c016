//! Norm, activation function, rotary embedding and the exponential they and attention share.

use super::isa::{Isa, LANES};
use super::kernel::Task;
use crate::device::ops::{AttentionShape, Rotary};

/// Arguments below this give `exp` of this, a number of no consequence: 2^-125.
const EXP_LEAST: f32 = -86.6;
/// Arguments above this give `exp` of this.
const EXP_GREATEST: f32 = 88.0;
/// Adding it rounds a small float to an integer, which is then in the low mantissa bits.
const ROUND: f32 = 12_582_912.0;
/// ln 2, rounded to f32.
const LN_2: f32 = std::f32::consts::LN_2;
/// ln 2 minus [`LN_2`].
const LN_2_REST: f32 = -1.904_654_2e-9;

/// `e^x` to about one unit in the last place, clamped to the normal range.
#[inline(always)]
pub(super) fn exp<I: Isa>(isa: I, x: I::F) -> I::F {
    let x = isa.max(x, isa.splat(EXP_LEAST));
    // min(x, g) as -max(-x, -g)
    let negated = isa.sub(isa.splat(0.0), x);
    let x = isa.sub(isa.splat(0.0), isa.max(negated, isa.splat(-EXP_GREATEST)));
    let shifted = isa.fma(x, isa.splat(std::f32::consts::LOG2_E), isa.splat(ROUND));
    let k = isa.sub(shifted, isa.splat(ROUND));
    let r = isa.fma(k, isa.splat(-LN_2), x);
    let r = isa.fma(k, isa.splat(-LN_2_REST), r);
    // Taylor's series: the next term is below 6e-9 for |r| <= ln(2)/2.
    let mut p = isa.splat(1.0 / 5040.0);
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = isa.fma(p, r, isa.splat(c));
    }
    isa.scale_by_exponent(p, shifted)
}

/// `x / (1 + e^-x) · y`
#[inline(always)]
pub(super) fn silu_times<I: Isa>(isa: I, x: I::F, y: I::F) -> I::F {
    let e = exp(isa, isa.sub(isa.splat(0.0), x));
    isa.mul(isa.div(x, isa.add(isa.splat(1.0), e)), y)
}

/// `1 / (1 + e^-x)`
#[inline(always)]
pub(super) fn logistic<I: Isa>(isa: I, x: I::F) -> I::F {
    let e = exp(isa, isa.sub(isa.splat(0.0), x));
    isa.div(isa.splat(1.0), isa.add(isa.splat(1.0), e))
}

/// Up to sixteen numbers, zeros after them.
#[inline(always)]
pub(super) fn load_some<I: Isa>(isa: I, x: &[f32]) -> I::F {
    match x.first_chunk::<LANES>() {
        Some(x) => isa.load(x),
        None => {
            let mut padded = [0.0; LANES];
            padded[..x.len()].copy_from_slice(x);
            isa.load(&padded)
        }
    }
}

/// The first `out.len()` lanes, at most sixteen.
#[inline(always)]
pub(super) fn store_some<I: Isa>(isa: I, v: I::F, out: &mut [f32]) {
    match out.first_chunk_mut::<LANES>() {
        Some(out) => isa.store(v, out),
        None => {
            let mut all = [0.0; LANES];
            isa.store(v, &mut all);
            out.copy_from_slice(&all[..out.len()]);
        }
    }
}

/// Sum of squares, in sixteen lanes.
#[inline(always)]
pub(super) fn squares<I: Isa>(isa: I, x: &[f32]) -> f32 {
    let mut squares = isa.splat(0.0);
    for x in x.chunks(LANES) {
        let x = load_some(isa, x);
        squares = isa.fma(x, x, squares);
    }
    isa.sum(squares)
}

/// One over the root mean square, in all lanes.
#[inline(always)]
pub(super) fn norm_factor<I: Isa>(isa: I, x: &[f32], eps: f32) -> I::F {
    let mean = squares(isa, x) / x.len() as f32;
    isa.splat(1.0 / (mean + eps).sqrt())
}

/// Root-mean-square norm of rows as long as `gain`.
pub(super) struct RmsNorm<'a> {
    pub(super) x: &'a [f32],
    pub(super) gain: &'a [f32],
    pub(super) eps: f32,
    pub(super) out: &'a mut [f32],
}

impl Task for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let cols = self.gain.len();
        for (x, out) in self.x.chunks_exact(cols).zip(self.out.chunks_exact_mut(cols)) {
            let factor = norm_factor(isa, x, self.eps);
            for ((x, gain), out) in x.chunks(LANES).zip(self.gain.chunks(LANES)).zip(out.chunks_mut(LANES)) {
                let normed = isa.mul(load_some(isa, x), factor);
                store_some(isa, isa.mul(normed, load_some(isa, gain)), out);
            }
        }
    }
}

/// Root-mean-square norm of the query and key heads of rows of `shape`, in place.
pub(super) struct NormHeads<'a> {
    pub(super) x: &'a mut [f32],
    pub(super) shape: AttentionShape,
    pub(super) query: &'a [f32],
    pub(super) key: &'a [f32],
    pub(super) eps: f32,
}

impl Task for NormHeads<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let shape = self.shape;
        for row in self.x.chunks_exact_mut(shape.columns()) {
            for (heads, gain) in
                [(0..shape.queries(), self.query), (shape.keys_at()..shape.values_at(), self.key)]
            {
                for head in row[heads].chunks_exact_mut(shape.head_dim) {
                    let factor = norm_factor(isa, head, self.eps);
                    for (x, gain) in head.chunks_mut(LANES).zip(gain.chunks(LANES)) {
                        let normed = isa.mul(load_some(isa, x), factor);
                        store_some(isa, isa.mul(normed, load_some(isa, gain)), x);
                    }
                }
            }
        }
    }
}

/// Multiplies rows of `cols` columns by the logistic function of their gates.
pub(super) struct GateRows<'a> {
    pub(super) x: &'a mut [f32],
    pub(super) gates: &'a [f32],
    pub(super) cols: usize,
}

impl Task for GateRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        for (row, gate) in self.x.chunks_exact_mut(self.cols).zip(self.gates) {
            let gate = logistic(isa, isa.splat(*gate));
            for x in row.chunks_mut(LANES) {
                store_some(isa, isa.mul(load_some(isa, x), gate), x);
            }
        }
    }
}

/// `out[r] = silu(gate[r]) · up[r]` where a row of `x` is gate, then up.
pub(super) struct Gate<'a> {
    pub(super) x: &'a [f32],
    pub(super) out: &'a mut [f32],
    pub(super) cols: usize,
}

impl Task for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        for (x, out) in self.x.chunks_exact(2 * self.cols).zip(self.out.chunks_exact_mut(self.cols)) {
            let (gate, up) = x.split_at(self.cols);
            for ((gate, up), out) in gate.chunks(LANES).zip(up.chunks(LANES)).zip(out.chunks_mut(LANES)) {
                let gated = silu_times(isa, load_some(isa, gate), load_some(isa, up));
                store_some(isa, gated, out);
            }
        }
    }
}

/// `x += y`
pub(super) struct Add<'a> {
    pub(super) x: &'a mut [f32],
    pub(super) y: &'a [f32],
}

impl Task for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        for (x, y) in self.x.chunks_mut(LANES).zip(self.y.chunks(LANES)) {
            let sum = isa.add(load_some(isa, x), load_some(isa, y));
            store_some(isa, sum, x);
        }
    }
}

/// Cosines and sines of a [`Rotary`], computed in f64 as far as positions were seen.
pub(super) struct RotaryTable {
    rotary: Rotary,
    frequencies: Vec<f64>,
    /// `[position][dims/2 cosines, dims/2 sines]`
    table: Vec<f32>,
}

impl RotaryTable {
    /// An empty table.
    pub(super) fn new(rotary: Rotary) -> RotaryTable {
        let frequencies = (0..rotary.dims / 2)
            .map(|i| libm::pow(rotary.base, -2.0 * i as f64 / rotary.dims as f64))
            .collect();
        RotaryTable { rotary, frequencies, table: Vec::new() }
    }

    /// What it is a table of.
    pub(super) fn rotary(&self) -> Rotary {
        self.rotary
    }

    /// Extends it to positions `0..positions`.
    pub(super) fn extend(&mut self, positions: usize) {
        let width = 2 * self.frequencies.len();
        if width == 0 {
            return;
        }
        for position in self.table.len() / width..positions {
            let angle = |f: &f64| position as f64 * f;
            self.table.extend(self.frequencies.iter().map(|f| libm::cos(angle(f)) as f32));
            self.table.extend(self.frequencies.iter().map(|f| libm::sin(angle(f)) as f32));
        }
    }

    /// Cosines and sines of a position.
    fn at(&self, position: usize) -> (&[f32], &[f32]) {
        let half = self.frequencies.len();
        self.table[position * 2 * half..(position + 1) * 2 * half].split_at(half)
    }
}

/// Rotates query and key heads of rows of `cols` columns.
pub(super) struct Rotate<'a> {
    pub(super) x: &'a mut [f32],
    pub(super) cols: usize,
    pub(super) shape: AttentionShape,
    pub(super) table: &'a RotaryTable,
    pub(super) positions: &'a [u32],
}

impl Task for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let shape = self.shape;
        let half = self.table.frequencies.len();
        for (row, position) in self.x.chunks_exact_mut(self.cols).zip(self.positions) {
            let (cosines, sines) = self.table.at(*position as usize);
            for heads in [0..shape.queries(), shape.keys_at()..shape.values_at()] {
                for head in row[heads].chunks_exact_mut(shape.head_dim) {
                    let (first, second) = head[..2 * half].split_at_mut(half);
                    let pairs = first.chunks_mut(LANES).zip(second.chunks_mut(LANES));
                    for ((a, b), (c, s)) in pairs.zip(cosines.chunks(LANES).zip(sines.chunks(LANES))) {
                        let (x, y) = (load_some(isa, a), load_some(isa, b));
                        let (c, s) = (load_some(isa, c), load_some(isa, s));
                        let negated = isa.sub(isa.splat(0.0), y);
                        store_some(isa, isa.fma(negated, s, isa.mul(x, c)), a);
                        store_some(isa, isa.fma(y, c, isa.mul(x, s)), b);
                    }
                }
            }
        }
    }
}
