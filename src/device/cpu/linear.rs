//! Matrix products: tiles of sixteen outputs against blocks of rows.
//!
//! For quantised weights a group of 32 columns gives an exact integer `D`; the f32 part of an output is, over groups in ascending order,
//! `acc = fma(D·scale_w, scale_a, acc)` and for affine weights `acc = fma(min_w, scale_a·Σq, acc)`.
//! For plain weights it is `acc = fma(w, x, acc)` over columns in ascending order. Nothing else touches an output, so its bits
//! depend on its row and its weights alone.

use std::marker::PhantomData;
use std::ops::Range;

use super::encoding::{Meaning, Width};
use super::isa::{GROUP, Isa, LANES, U4_GROUP, U8_GROUP};
use super::kernel::{Kernel, Task};
use super::memory::Parts;
use super::pack::{Floats, Matrix, Packed, Weights};
use super::pool::Pool;
use super::quantise::{BLOCK, Operands, Quantised, Regrouped, blocks};

/// Rows of activations a thread holds against a tile before it moves to the next, so that they stay in its L2 cache.
const ROWS_HELD: usize = 256;

/// Where products go: rows of `stride` numbers, this matrix's from column `column` on.
#[derive(Clone, Copy)]
struct Output<'a> {
    data: Parts<'a, f32>,
    stride: usize,
    column: usize,
}

/// Writes `x · Wᵀ` for matrices stacked by rows; `x` is `[rows, cols]`, `out` is `[rows, Σ matrix rows]`.
pub(super) fn multiply(
    matrices: &[Matrix],
    x: &[f32],
    out: &mut [f32],
    operands: &mut Operands,
    kernel: Kernel,
    pool: &mut Pool,
) {
    let stride = matrices.iter().map(|matrix| matrix.rows).sum();
    let data = Parts::new(out);
    let mut column = 0;
    for matrix in matrices {
        let out = Output { data, stride, column };
        multiply_one(matrix, x, out, operands, kernel, pool);
        column += matrix.rows;
    }
}

fn multiply_one(
    matrix: &Matrix,
    x: &[f32],
    out: Output<'_>,
    operands: &mut Operands,
    kernel: Kernel,
    pool: &mut Pool,
) {
    let rows = x.len() / matrix.cols;
    let tiles = matrix.tiles();
    let row_chunks = rows.div_ceil(ROWS_HELD);
    // With few rows the time goes into reading weights, which is fastest front to back in one piece a thread; with many, a few
    // tasks a thread let one that is late cost little.
    let tasks = pool.threads() * if rows <= BLOCK { 1 } else { 4 };
    let tile_chunks = tiles.min(tasks.div_ceil(row_chunks.max(1)));
    let cut = |task: usize| {
        let (row_chunk, tile_chunk) = (task / tile_chunks, task % tile_chunks);
        let part = |i| i * tiles / tile_chunks;
        (part(tile_chunk)..part(tile_chunk + 1), row_chunk * ROWS_HELD..rows.min((row_chunk + 1) * ROWS_HELD))
    };
    match &matrix.weights {
        Weights::Packed(packed) => {
            let x = operands.quantise(x, matrix.cols, packed.meaning, kernel, pool);
            pool.run(row_chunks * tile_chunks, |task| {
                let (tiles, rows) = cut(task);
                kernel.dispatch(PackedProduct { packed, matrix, x, out, tiles, rows });
            });
        }
        Weights::Plain(weights) => {
            let x = operands.regroup(x, matrix.cols);
            pool.run(row_chunks * tile_chunks, |task| {
                let (tiles, rows) = cut(task);
                kernel.dispatch(PlainProduct { weights, matrix, x, out, tiles, rows });
            });
        }
    }
}

impl Output<'_> {
    /// Stores a tile's outputs of consecutive rows.
    ///
    /// # Safety
    /// No other thread may write these outputs.
    #[inline(always)]
    unsafe fn store<I: Isa, const N: usize>(
        &self,
        isa: I,
        sums: [I::F; N],
        row: usize,
        tile: usize,
        matrix: &Matrix,
    ) {
        let width = LANES.min(matrix.rows - tile * LANES);
        for (i, sum) in sums.into_iter().enumerate() {
            let at = (row + i) * self.stride + self.column + tile * LANES;
            // SAFETY: as the caller promises.
            let out = unsafe { self.data.part(at..at + width) };
            super::elementwise::store_some(isa, sum, out);
        }
    }
}

/// Some tiles of a quantised matrix against some rows.
struct PackedProduct<'a> {
    packed: &'a Packed,
    matrix: &'a Matrix,
    x: Quantised<'a>,
    out: Output<'a>,
    tiles: Range<usize>,
    rows: Range<usize>,
}

impl Task for PackedProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        match (self.packed.width, self.packed.meaning) {
            (Width::U4, Meaning::Affine) => self.tiles::<I, U4, true>(isa),
            (Width::U4, Meaning::Symmetric { .. }) => self.tiles::<I, U4, false>(isa),
            (Width::U8, Meaning::Affine) => self.tiles::<I, U8, true>(isa),
            (Width::U8, Meaning::Symmetric { .. }) => self.tiles::<I, U8, false>(isa),
        }
    }
}

impl PackedProduct<'_> {
    #[inline(always)]
    fn tiles<I: Isa, W: Integers, const AFFINE: bool>(&self, isa: I) {
        let per_tile = self.x.groups / self.packed.span * if AFFINE { 2 } else { 1 };
        // Scales are widened once a tile, which keeps their type out of the inner loop.
        let mut widened = vec![[0.0; LANES]; per_tile];
        for tile in self.tiles.clone() {
            for (i, out) in widened.iter_mut().enumerate() {
                isa.store(load_sixteen(isa, &self.packed.scales, tile * per_tile + i), out);
            }
            for (row, n) in blocks(self.rows.start, self.rows.end) {
                match n {
                    BLOCK => isa.apart(PackedBlock::<W, AFFINE, BLOCK>::new(self, &widened, tile, row)),
                    5 => isa.apart(PackedBlock::<W, AFFINE, 5>::new(self, &widened, tile, row)),
                    4 => isa.apart(PackedBlock::<W, AFFINE, 4>::new(self, &widened, tile, row)),
                    3 => isa.apart(PackedBlock::<W, AFFINE, 3>::new(self, &widened, tile, row)),
                    2 => isa.apart(PackedBlock::<W, AFFINE, 2>::new(self, &widened, tile, row)),
                    _ => isa.apart(PackedBlock::<W, AFFINE, 1>::new(self, &widened, tile, row)),
                }
            }
        }
    }
}

/// One tile against a block of `N` rows.
struct PackedBlock<'a, W, const AFFINE: bool, const N: usize> {
    product: &'a PackedProduct<'a>,
    /// Of each scale group: the scales, then the minima if affine.
    parameters: &'a [[f32; LANES]],
    tile: usize,
    row: usize,
    width: PhantomData<W>,
}

impl<'a, W: Integers, const AFFINE: bool, const N: usize> PackedBlock<'a, W, AFFINE, N> {
    #[inline(always)]
    fn new(product: &'a PackedProduct<'a>, parameters: &'a [[f32; LANES]], tile: usize, row: usize) -> Self {
        PackedBlock { product, parameters, tile, row, width: PhantomData }
    }
}

impl<W: Integers, const AFFINE: bool, const N: usize> Task for PackedBlock<'_, W, AFFINE, N> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let PackedBlock { product, parameters, tile, row, .. } = self;
        let Quantised { groups, data, scales, corrections } = product.x;
        let span = product.packed.span;
        let tile_bytes = groups * size_of::<W::Group>();
        let weights: &[W::Group] =
            bytemuck::cast_slice(&product.packed.data[tile * tile_bytes..(tile + 1) * tile_bytes]);
        let (a, _) = data[row * groups * GROUP..(row + N) * groups * GROUP].as_chunks::<GROUP>();
        let (a, _) = a.as_chunks::<N>();
        let (s, _) = scales[row * groups..(row + N) * groups].as_chunks::<N>();
        let (c, _) = corrections[row * groups..(row + N) * groups].as_chunks::<N>();
        let mut sums = [isa.splat(0.0); N];
        let mut groups = weights.iter().zip(a.iter().zip(s.iter().zip(c)));
        for parameters in parameters.chunks_exact(if AFFINE { 2 } else { 1 }) {
            for (w, (a, (s, c))) in groups.by_ref().take(span) {
                let dots = W::dot(isa, w, a, if AFFINE { [0; N] } else { *c });
                let scale = isa.load(&parameters[0]);
                for i in 0..N {
                    let scaled = isa.mul(isa.to_f32(dots[i]), scale);
                    sums[i] = isa.fma(scaled, isa.splat(s[i]), sums[i]);
                }
                if AFFINE {
                    let min = isa.load(&parameters[1]);
                    for i in 0..N {
                        sums[i] = isa.fma(min, isa.splat(f32::from_bits(c[i] as u32)), sums[i]);
                    }
                }
            }
        }
        // SAFETY: tasks have distinct tiles or distinct rows.
        unsafe { product.out.store(isa, sums, row, tile, product.matrix) };
    }
}

/// Sixteen floats: numbers `16·index` and on.
#[inline(always)]
fn load_sixteen<I: Isa>(isa: I, floats: &Floats, index: usize) -> I::F {
    match floats {
        Floats::F32(x) => isa.load(&x.as_chunks().0[index]),
        Floats::F16(x) => isa.load_f16(&x.as_chunks().0[index]),
        Floats::Bf16(x) => isa.load_bf16(&x.as_chunks().0[index]),
    }
}

/// A width of packed integers.
trait Integers {
    /// A tile's group.
    type Group: bytemuck::Pod;
    /// See [`Isa::dot_u4`].
    fn dot<I: Isa, const N: usize>(
        isa: I,
        w: &Self::Group,
        a: &[[i16; GROUP]; N],
        init: [i32; N],
    ) -> [I::I; N];
}

struct U4;
struct U8;

impl Integers for U4 {
    type Group = [u8; U4_GROUP];

    #[inline(always)]
    fn dot<I: Isa, const N: usize>(
        isa: I,
        w: &Self::Group,
        a: &[[i16; GROUP]; N],
        init: [i32; N],
    ) -> [I::I; N] {
        isa.dot_u4(w, a, init)
    }
}

impl Integers for U8 {
    type Group = [u8; U8_GROUP];

    #[inline(always)]
    fn dot<I: Isa, const N: usize>(
        isa: I,
        w: &Self::Group,
        a: &[[i16; GROUP]; N],
        init: [i32; N],
    ) -> [I::I; N] {
        isa.dot_u8(w, a, init)
    }
}

/// Some tiles of a plain matrix against some rows.
struct PlainProduct<'a> {
    weights: &'a Floats,
    matrix: &'a Matrix,
    x: Regrouped<'a>,
    out: Output<'a>,
    tiles: Range<usize>,
    rows: Range<usize>,
}

impl Task for PlainProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        for tile in self.tiles.clone() {
            for (row, n) in blocks(self.rows.start, self.rows.end) {
                match n {
                    BLOCK => self.block::<I, BLOCK>(isa, tile, row),
                    5 => self.block::<I, 5>(isa, tile, row),
                    4 => self.block::<I, 4>(isa, tile, row),
                    3 => self.block::<I, 3>(isa, tile, row),
                    2 => self.block::<I, 2>(isa, tile, row),
                    _ => self.block::<I, 1>(isa, tile, row),
                }
            }
        }
    }
}

impl PlainProduct<'_> {
    #[inline(always)]
    fn block<I: Isa, const N: usize>(&self, isa: I, tile: usize, row: usize) {
        let cols = self.matrix.cols;
        let (x, _) = self.x.data[row * cols..(row + N) * cols].as_chunks::<N>();
        let range = tile * cols * LANES..(tile + 1) * cols * LANES;
        let sums = match self.weights {
            Floats::F32(w) => columns(isa, &w[range], x, |isa, w| isa.load(w)),
            Floats::F16(w) => columns(isa, &w[range], x, |isa, w| isa.load_f16(w)),
            Floats::Bf16(w) => columns(isa, &w[range], x, |isa, w| isa.load_bf16(w)),
        };
        // SAFETY: tasks have distinct tiles or distinct rows.
        unsafe { self.out.store(isa, sums, row, tile, self.matrix) };
    }
}

/// The sums of a tile over all columns.
#[inline(always)]
fn columns<I: Isa, T, const N: usize>(
    isa: I,
    w: &[T],
    x: &[[f32; N]],
    load: impl Fn(I, &[T; LANES]) -> I::F,
) -> [I::F; N] {
    let mut sums = [isa.splat(0.0); N];
    for (w, x) in w.as_chunks::<LANES>().0.iter().zip(x) {
        let w = load(isa, w);
        for i in 0..N {
            sums[i] = isa.fma(w, isa.splat(x[i]), sums[i]);
        }
    }
    sums
}
