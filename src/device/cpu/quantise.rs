//! Activations as a linear layer takes them: quantised to i16 by groups of 32 columns, or regrouped in f32.
//!
//! Sixteen bits make activations as good as exact; eight would leave the rest of a group coarse beside a large activation, and a mixture of
//! experts would route by the rounding. A dot product of a group with weights of eight bits still fits an i32: 32 · 255 · 32767 < 2^31.
//!
//! Rows are taken in blocks of 8, the last few in one or two of 1 to 5, and a block's numbers are interleaved so that a kernel reads one stream. How
//! rows fall into blocks never changes a row's numbers.

use super::encoding::Meaning;
use super::isa::{GROUP, Isa, LANES, activation_place};
use super::kernel::{Kernel, Task};
use super::memory::{Parts, Scratch, Tally};
use super::pool::Pool;

/// Rows of the largest block.
pub(super) const BLOCK: usize = 8;

/// Groups whose greatest magnitude is below this are zero: its reciprocal must stay finite.
const TINY: f32 = 1e-30;

/// What the greatest magnitude of a group becomes.
const GREATEST: f32 = i16::MAX as f32;

/// The blocks of rows `start..end`; `start` must be a multiple of [`BLOCK`].
#[inline(always)]
pub(super) fn blocks(start: usize, end: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut at = start;
    std::iter::from_fn(move || {
        let left = end - at;
        let rows = match left {
            0 => return None,
            1..=5 => left,
            // Of like size: a short block costs a row more than a long one.
            6 => 3,
            7 => 4,
            _ => BLOCK,
        };
        at += rows;
        Some((at - rows, rows))
    })
}

/// Memory for activations, reused.
pub(super) struct Operands {
    data: Scratch<i16>,
    scales: Scratch<f32>,
    corrections: Scratch<i32>,
    plain: Scratch<f32>,
}

/// Quantised activations. A block of `n` rows starting at row `r` lies at element `r·groups`·(32 for data) and is `[group][n]`.
#[derive(Clone, Copy)]
pub(super) struct Quantised<'a> {
    /// Groups of 32 columns.
    pub(super) groups: usize,
    /// The integers, those of a group where [`activation_place`] says.
    pub(super) data: &'a [i16],
    /// Their scales.
    pub(super) scales: &'a [f32],
    /// What the weights' zero point or minimum is multiplied by or replaced with: for symmetric weights the i32
    /// `−zero·Σq`, for affine ones the bits of the f32 `scale·Σq`.
    pub(super) corrections: &'a [i32],
}

/// f32 activations: a block of `n` rows starting at row `r` lies at element `r·cols` and is `[column][n]`.
#[derive(Clone, Copy)]
pub(super) struct Regrouped<'a> {
    /// The numbers.
    pub(super) data: &'a [f32],
}

impl Operands {
    /// Nothing yet.
    pub(super) fn new(tally: &Tally) -> Operands {
        Operands {
            data: Scratch::new(tally),
            scales: Scratch::new(tally),
            corrections: Scratch::new(tally),
            plain: Scratch::new(tally),
        }
    }

    /// Quantises `x`, `[rows, cols]`, for weights of meaning `meaning`.
    pub(super) fn quantise(
        &mut self,
        x: &[f32],
        cols: usize,
        meaning: Meaning,
        kernel: Kernel,
        pool: &mut Pool,
    ) -> Quantised<'_> {
        let (rows, groups) = (x.len() / cols, cols / GROUP);
        let data = self.data.take(rows * groups * GROUP);
        let scales = self.scales.take(rows * groups);
        let corrections = self.corrections.take(rows * groups);
        let (d, s, c) = (Parts::new(&mut *data), Parts::new(&mut *scales), Parts::new(&mut *corrections));
        let chunk = rows_a_task(rows, cols);
        pool.run(rows.div_ceil(chunk), |task| {
            for (start, n) in blocks(task * chunk, rows.min((task + 1) * chunk)) {
                let end = start + n;
                // SAFETY: blocks do not overlap, and every block is done by one task.
                let (data, scales, corrections) = unsafe {
                    (
                        d.part(start * groups * GROUP..end * groups * GROUP),
                        s.part(start * groups..end * groups),
                        c.part(start * groups..end * groups),
                    )
                };
                let x = &x[start * cols..end * cols];
                kernel.dispatch(Quantise { x, rows: n, meaning, data, scales, corrections });
            }
        });
        Quantised { groups, data, scales, corrections }
    }

    /// Regroups `x`, `[rows, cols]`, in f32.
    pub(super) fn regroup(&mut self, x: &[f32], cols: usize) -> Regrouped<'_> {
        let rows = x.len() / cols;
        let data = self.plain.take(x.len());
        for (start, n) in blocks(0, rows) {
            let out = &mut data[start * cols..(start + n) * cols];
            for (row, x) in x[start * cols..(start + n) * cols].chunks_exact(cols).enumerate() {
                for (out, x) in out.chunks_exact_mut(n).zip(x) {
                    out[row] = *x;
                }
            }
        }
        Regrouped { data }
    }
}

/// Rows a task takes, a multiple of [`BLOCK`]: enough work to be worth a thread.
pub(super) fn rows_a_task(rows: usize, cols: usize) -> usize {
    const ELEMENTS: usize = 16 << 10;
    (ELEMENTS / cols.max(1)).max(1).next_multiple_of(BLOCK).min(rows.next_multiple_of(BLOCK)).max(BLOCK)
}

/// Quantises one block.
struct Quantise<'a> {
    x: &'a [f32],
    rows: usize,
    meaning: Meaning,
    data: &'a mut [i16],
    scales: &'a mut [f32],
    corrections: &'a mut [i32],
}

impl Task for Quantise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let cols = self.x.len() / self.rows;
        for (row, x) in self.x.chunks_exact(cols).enumerate() {
            let (x, _) = x.as_chunks::<GROUP>();
            let (data, _) = self.data.as_chunks_mut::<GROUP>();
            for (group, x) in x.iter().enumerate() {
                let (halves, _) = x.as_chunks::<LANES>();
                let at = group * self.rows + row;
                let x = [isa.load(&halves[0]), isa.load(&halves[1])];
                let (scale, sum) = quantise_group(isa, x, &mut data[at]);
                self.scales[at] = scale;
                self.corrections[at] = correction(self.meaning, scale, sum);
            }
        }
    }
}

/// What [`Quantised::corrections`] holds for a group of scale `scale` whose integers sum to `sum`.
#[inline(always)]
pub(super) fn correction(meaning: Meaning, scale: f32, sum: i32) -> i32 {
    match meaning {
        Meaning::Symmetric { zero } => -zero * sum,
        Meaning::Affine => (scale * sum as f32).to_bits() as i32,
    }
}

/// Quantises a group; gives its scale and the sum of its integers.
#[inline(always)]
pub(super) fn quantise_group<I: Isa>(isa: I, x: [I::F; 2], out: &mut [i16; GROUP]) -> (f32, i32) {
    let greatest = isa.greatest(isa.max(isa.abs(x[0]), isa.abs(x[1])));
    if !(greatest > TINY && greatest < f32::INFINITY) {
        *out = [0; GROUP];
        return (0.0, 0);
    }
    let factor = isa.splat(GREATEST / greatest);
    let mut in_order = [0; GROUP];
    let (halves, _) = in_order.as_chunks_mut::<LANES>();
    let mut sum = isa.splat(0.0);
    for (x, half) in x.into_iter().zip(halves) {
        let whole = isa.round(isa.mul(x, factor));
        isa.store_i16(whole, half);
        sum = isa.add(sum, whole);
    }
    for (column, x) in in_order.into_iter().enumerate() {
        out[activation_place(column)] = x;
    }
    // Exact: a sum of 32 integers below 2^15 in magnitude.
    (greatest / GREATEST, isa.sum(sum) as i32)
}
