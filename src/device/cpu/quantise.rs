//! Activations as a linear layer takes them: quantised to i8 by groups of 32 columns, or regrouped in f32.
//!
//! A group has two planes: the i8 numbers, and the i8 numbers of what rounding left over, with a scale of their own. That
//! doubles the integer work of a product and makes its activations as good as exact.
//!
//! Rows are taken in blocks of 8, the last few in one or two of 1 to 5, and a block's numbers are interleaved so that a kernel reads one stream. How
//! rows fall into blocks never changes a row's numbers.

use super::encoding::Meaning;
use super::isa::{GROUP, Isa, LANES};
use super::kernel::{Kernel, Task};
use super::memory::{Parts, Scratch, Tally};
use super::pool::Pool;

/// Rows of the largest block.
pub(super) const BLOCK: usize = 8;

/// Groups whose greatest magnitude is below this are zero: its reciprocal must stay finite.
const TINY: f32 = 1e-30;

/// Planes of a group: some fifteen bits of an activation. One plane would leave the rest of a group coarse beside a large
/// activation, and a mixture of experts would route by the rounding.
pub(super) const PLANES: usize = 2;

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
    data: Scratch<i8>,
    scales: Scratch<f32>,
    corrections: Scratch<i32>,
    plain: Scratch<f32>,
}

/// Quantised activations. A block of `n` rows starting at row `r` lies at element `r·groups·planes`·(32 for data) and is
/// `[group][plane][n]`.
#[derive(Clone, Copy)]
pub(super) struct Quantised<'a> {
    /// Groups of 32 columns.
    pub(super) groups: usize,
    /// The integers.
    pub(super) data: &'a [i8],
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
        let parts = groups * PLANES;
        let data = self.data.take(rows * parts * GROUP);
        let scales = self.scales.take(rows * parts);
        let corrections = self.corrections.take(rows * parts);
        let (d, s, c) = (Parts::new(&mut *data), Parts::new(&mut *scales), Parts::new(&mut *corrections));
        let chunk = rows_a_task(rows, cols);
        pool.run(rows.div_ceil(chunk), |task| {
            for (start, n) in blocks(task * chunk, rows.min((task + 1) * chunk)) {
                let end = start + n;
                // SAFETY: blocks do not overlap, and every block is done by one task.
                let (data, scales, corrections) = unsafe {
                    (
                        d.part(start * parts * GROUP..end * parts * GROUP),
                        s.part(start * parts..end * parts),
                        c.part(start * parts..end * parts),
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
    data: &'a mut [i8],
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
                let mut rest = [isa.load(&halves[0]), isa.load(&halves[1])];
                for plane in 0..PLANES {
                    let at = (group * PLANES + plane) * self.rows + row;
                    let (scale, sum) = quantise_group(isa, &mut rest, &mut data[at]);
                    self.scales[at] = scale;
                    self.corrections[at] = correction(self.meaning, scale, sum);
                }
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

/// Quantises a group; gives its scale and the sum of its integers, and leaves what rounding left over.
#[inline(always)]
pub(super) fn quantise_group<I: Isa>(isa: I, x: &mut [I::F; 2], out: &mut [i8; GROUP]) -> (f32, i32) {
    let greatest = isa.greatest(isa.max(isa.abs(x[0]), isa.abs(x[1])));
    if !(greatest > TINY && greatest < f32::INFINITY) {
        *out = [0; GROUP];
        return (0.0, 0);
    }
    let scale = greatest / 127.0;
    let (factor, less) = (isa.splat(127.0 / greatest), isa.splat(-scale));
    let (out, _) = out.as_chunks_mut::<LANES>();
    let mut whole = *x;
    for i in 0..2 {
        whole[i] = isa.round(isa.mul(x[i], factor));
        isa.store_i8(whole[i], &mut out[i]);
        x[i] = isa.fma(whole[i], less, x[i]);
    }
    // Exact: a sum of 32 integers below 128 in magnitude.
    (scale, isa.sum(isa.add(whole[0], whole[1])) as i32)
}
