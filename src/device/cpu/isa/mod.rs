//! Sixteen lanes, one algorithm.
//!
//! Every kernel of the device is written once, generic over [`Isa`]: sixteen f32 lanes and the exact integer dot
//! products. The implementations differ only in which instructions carry a lane operation, and each lane operation is
//! exactly defined (IEEE with one rounding, or exact integers), so every instruction set gives the same bits by
//! construction. A value of an [`Isa`] type is proof that the processor has its instructions.

/// The tree of [`Isa::sum`] from eight lanes on, by an instruction of two operands. Needs AVX.
#[cfg(target_arch = "x86_64")]
macro_rules! tree_of_eight {
    ($of_two:ident, $eight:expr) => {{
        let eight = $eight;
        let four = $of_two(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = $of_two(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32($of_two(two, _mm_shuffle_ps::<1>(two, two)))
    }};
}

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(super) use avx512::Avx512;
pub(super) use portable::Portable;

use super::kernel::Task;

/// Lanes of a vector; also the rows of a weight tile and the fixed width of every horizontal sum.
pub(super) const LANES: usize = 16;

/// Columns that share an activation scale, and over which a dot product is exact in i32.
pub(super) const GROUP: usize = 32;

/// Packed bytes of a group of a 4-bit weight tile: 16 rows × 32 columns.
pub(super) const U4_GROUP: usize = LANES * GROUP / 2;

/// Packed bytes of a group of an 8-bit weight tile.
pub(super) const U8_GROUP: usize = LANES * GROUP;

/// The operations kernels are written in.
///
/// A closure handed to a function of the standard library (`array::map`, `array::from_fn`) is compiled without the instructions, and where it is not
/// inlined every operation in it becomes a call. So lanes go through loops.
pub(super) trait Isa: Copy + Send + Sync {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen i32.
    type I: Copy;

    /// Runs a task as a function of its own: an inner loop that wants every register must not share them with its
    /// caller's constants.
    fn apart<T: Task>(self, task: T) -> T::Output;

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::F;
    /// Sixteen f32 from memory.
    fn load(self, x: &[f32; LANES]) -> Self::F;
    /// Sixteen IEEE binary16 from memory, widened.
    fn load_f16(self, x: &[u16; LANES]) -> Self::F;
    /// Sixteen bfloat16 from memory, widened.
    fn load_bf16(self, x: &[u16; LANES]) -> Self::F;
    /// Sixteen f32 to memory.
    fn store(self, v: Self::F, out: &mut [f32; LANES]);

    /// `a + b`
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a · b`
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a · b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a > b ? a : b`
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `|a|`
    fn abs(self, a: Self::F) -> Self::F;
    /// `v` in the first `n` lanes, `other` in the rest.
    fn keep_first(self, v: Self::F, n: usize, other: Self::F) -> Self::F;
    /// `v · 2^k`, where `k` is the integer in the low mantissa bits of `shifted` (a float of the form `1.5·2^23 + k`). The result
    /// must be normal.
    fn scale_by_exponent(self, v: Self::F, shifted: Self::F) -> Self::F;
    /// The nearest integer, ties to even.
    fn round(self, v: Self::F) -> Self::F;
    /// Rounds to the nearest integer, ties to even, and keeps the low half. Lanes must be within ±32767.5 or NaN (which gives 0).
    fn store_i16(self, v: Self::F, out: &mut [i16; LANES]);

    /// Integers as f32, to the nearest, ties to even.
    fn to_f32(self, v: Self::I) -> Self::F;
    /// For each of `N` activation rows: `init + Σ weight·activation` over one group, sixteen weight rows at once, 4-bit weights. Activations are
    /// where [`activation_place`] says. Exact while it and all of its parts are in the range of an i32.
    fn dot_u4<const N: usize>(
        self,
        w: &[u8; U4_GROUP],
        a: &[[i16; GROUP]; N],
        init: [i32; N],
    ) -> [Self::I; N];
    /// The same for 8-bit weights.
    fn dot_u8<const N: usize>(
        self,
        w: &[u8; U8_GROUP],
        a: &[[i16; GROUP]; N],
        init: [i32; N],
    ) -> [Self::I; N];

    /// Sum of the lanes, in the fixed order of a halving tree: lane `i` takes lane `i + 8`, then `i + 4`, `i + 2` and `i + 1`.
    fn sum(self, v: Self::F) -> f32;
    /// Greatest lane, by the same tree of [`Isa::max`].
    fn greatest(self, v: Self::F) -> f32;
}

/// Where the weight of row `row`, column `column` of a group lies in a packed 4-bit group: byte, and whether it is the high
/// nibble. Byte `64·i + 4·row + j` holds column `4·i + j` low and column `16 + 4·i + j` high, so that one load
/// gives four operands of a two-way dot product: bytes 0 and 2 of every lane, and 1 and 3, low and high.
#[inline(always)]
pub(super) fn u4_place(row: usize, column: usize) -> (usize, bool) {
    let half = column % 16;
    (64 * (half / 4) + 4 * row + half % 4, column >= 16)
}

/// The same for an 8-bit group: byte `64·i + 4·row + j` holds column `4·i + j`.
#[inline(always)]
pub(super) fn u8_place(row: usize, column: usize) -> usize {
    64 * (column / 4) + 4 * row + column % 4
}

/// Where the activation of a column lies in a group: columns 0, 2, 1 and 3 of four, so that those that meet in a lane's two halves when the even or
/// the odd bytes of weights are taken lie side by side.
#[inline(always)]
pub(super) fn activation_place(column: usize) -> usize {
    column / 4 * 4 + [0, 2, 1, 3][column % 4]
}
