//! AVX2 with FMA and F16C: a vector is two registers; dot products go through `vpmaddubsw`.

use std::arch::x86_64::*;

use super::super::kernel::Task;
use super::{GROUP, Isa, LANES, U4_GROUP, U8_GROUP};

/// Proof that the processor has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(in crate::device::cpu) struct Avx2(());

impl Avx2 {
    /// The proof, if the processor has them.
    #[inline]
    pub(in crate::device::cpu) fn detect() -> Option<Avx2> {
        (is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c"))
        .then_some(Avx2(()))
    }

    /// Runs a task with the instructions enabled.
    #[inline]
    pub(in crate::device::cpu) fn run<T: Task>(self, task: T) -> T::Output {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn enabled<T: Task>(isa: Avx2, task: T) -> T::Output {
            task.run(isa)
        }
        // SAFETY: `self` proves that the processor has the features.
        unsafe { enabled(self, task) }
    }
}

/// Lanes 0..8 and 8..16.
type Pair = [__m256; 2];

/// Four activations as one 32-bit element in every lane.
#[inline(always)]
fn quad(_: Avx2, a: &[i8; GROUP], index: usize) -> __m256i {
    let bytes = [a[4 * index] as u8, a[4 * index + 1] as u8, a[4 * index + 2] as u8, a[4 * index + 3] as u8];
    // SAFETY: the token proves AVX2.
    unsafe { _mm256_set1_epi32(i32::from_le_bytes(bytes)) }
}

/// The same activations, as far as anyone can tell another array: what both halves of a tile broadcast would otherwise be kept for the second, and
/// there are fewer registers than that.
#[inline(always)]
fn afresh<const N: usize>(a: &[[i8; GROUP]; N]) -> &[[i8; GROUP]; N] {
    let mut at: *const [[i8; GROUP]; N] = a;
    // SAFETY: there is no instruction in it, so the pointer stays what it is: a reference.
    unsafe {
        std::arch::asm!("/* {0} */", inout(reg) at, options(pure, nomem, nostack, preserves_flags));
        &*at
    }
}

/// 32 bytes of a packed group: four columns of eight rows.
#[inline(always)]
fn bytes(_: Avx2, w: &[u8], index: usize) -> __m256i {
    let w = &w[32 * index..32 * (index + 1)];
    // SAFETY: the token proves AVX2; the slice has 32 bytes and the load needs no alignment.
    unsafe { _mm256_loadu_si256(w.as_ptr().cast()) }
}

/// The low and the high nibble of every byte.
#[inline(always)]
fn nibbles(_: Avx2, packed: __m256i) -> (__m256i, __m256i) {
    // SAFETY: the token proves AVX2.
    unsafe {
        let nibble = _mm256_set1_epi8(15);
        let high = _mm256_and_si256(_mm256_srli_epi16::<4>(packed), nibble);
        (_mm256_and_si256(packed, nibble), high)
    }
}

/// Rows of activations whose two accumulators each for [`dots_u8`] find place in registers beside what they are made of.
const ROWS_HELD: usize = 4;

/// [`Isa::dot_u8`] of so many rows.
#[inline(always)]
fn dots_u8<const N: usize>(
    isa: Avx2,
    w: &[u8; U8_GROUP],
    a: &[[i8; GROUP]; N],
    init: &[i32; N],
    sums: &mut [[__m256i; 2]; N],
) {
    // SAFETY: the token proves AVX2; nothing here touches memory but through references.
    unsafe {
        let (ones, sixteens) = (_mm256_set1_epi16(1), _mm256_set1_epi16(16));
        for half in 0..2 {
            let a = afresh(a);
            // Whole bytes would saturate `vpmaddubsw`, so the nibbles go separately, as in `dot_u4`.
            let mut narrow = [[_mm256_setzero_si256(); 2]; N];
            for i in 0..8 {
                let (low, high) = nibbles(isa, bytes(isa, w, 2 * i + half));
                for (sum, a) in narrow.iter_mut().zip(a) {
                    let a = quad(isa, a, i);
                    sum[0] = _mm256_add_epi16(sum[0], _mm256_maddubs_epi16(low, a));
                    sum[1] = _mm256_add_epi16(sum[1], _mm256_maddubs_epi16(high, a));
                }
            }
            for ((sum, narrow), init) in sums.iter_mut().zip(narrow).zip(init) {
                let low = _mm256_madd_epi16(narrow[0], ones);
                let high = _mm256_madd_epi16(narrow[1], sixteens);
                sum[half] = _mm256_add_epi32(_mm256_set1_epi32(*init), _mm256_add_epi32(low, high));
            }
        }
    }
}

/// Applies a two-operand instruction to both halves.
macro_rules! both {
    ($f:ident, $a:expr, $b:expr) => {{
        let (a, b) = ($a, $b);
        // SAFETY: the caller's `self` proves AVX2.
        unsafe { [$f(a[0], b[0]), $f(a[1], b[1])] }
    }};
}

impl Isa for Avx2 {
    type F = Pair;
    type I = [__m256i; 2];

    #[inline(never)]
    fn apart<T: Task>(self, task: T) -> T::Output {
        self.run(task)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Pair {
        // SAFETY: `self` proves AVX2.
        unsafe { [_mm256_set1_ps(x); 2] }
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Pair {
        // SAFETY: `self` proves AVX2; both loads lie in the array and need no alignment.
        unsafe { [_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))] }
    }

    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> Pair {
        // SAFETY: `self` proves F16C; both loads lie in the array and need no alignment.
        unsafe {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().add(8).cast())),
            ]
        }
    }

    #[inline(always)]
    fn load_bf16(self, x: &[u16; LANES]) -> Pair {
        // SAFETY: `self` proves AVX2; both loads lie in the array and need no alignment.
        unsafe {
            let widen = |half| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(half)));
            [widen(_mm_loadu_si128(x.as_ptr().cast())), widen(_mm_loadu_si128(x.as_ptr().add(8).cast()))]
        }
    }

    #[inline(always)]
    fn store(self, v: Pair, out: &mut [f32; LANES]) {
        // SAFETY: `self` proves AVX2; both stores lie in the array and need no alignment.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), v[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), v[1]);
        }
    }

    #[inline(always)]
    fn add(self, a: Pair, b: Pair) -> Pair {
        both!(_mm256_add_ps, a, b)
    }

    #[inline(always)]
    fn sub(self, a: Pair, b: Pair) -> Pair {
        both!(_mm256_sub_ps, a, b)
    }

    #[inline(always)]
    fn mul(self, a: Pair, b: Pair) -> Pair {
        both!(_mm256_mul_ps, a, b)
    }

    #[inline(always)]
    fn div(self, a: Pair, b: Pair) -> Pair {
        both!(_mm256_div_ps, a, b)
    }

    #[inline(always)]
    fn fma(self, a: Pair, b: Pair, c: Pair) -> Pair {
        // SAFETY: `self` proves FMA.
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }

    #[inline(always)]
    fn max(self, a: Pair, b: Pair) -> Pair {
        both!(_mm256_max_ps, a, b)
    }

    #[inline(always)]
    fn abs(self, a: Pair) -> Pair {
        // SAFETY: `self` proves AVX2.
        let sign = unsafe { [_mm256_set1_ps(-0.0); 2] };
        both!(_mm256_andnot_ps, sign, a)
    }

    #[inline(always)]
    fn keep_first(self, v: Pair, n: usize, other: Pair) -> Pair {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let n = _mm256_set1_epi32(n.min(LANES) as i32);
            let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let low = _mm256_cmpgt_epi32(n, lane);
            let high = _mm256_cmpgt_epi32(n, _mm256_add_epi32(lane, _mm256_set1_epi32(8)));
            [
                _mm256_blendv_ps(other[0], v[0], _mm256_castsi256_ps(low)),
                _mm256_blendv_ps(other[1], v[1], _mm256_castsi256_ps(high)),
            ]
        }
    }

    #[inline(always)]
    fn scale_by_exponent(self, v: Pair, shifted: Pair) -> Pair {
        // SAFETY: `self` proves AVX2.
        let scale = |v, shifted| unsafe {
            let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
            _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v), exponent))
        };
        [scale(v[0], shifted[0]), scale(v[1], shifted[1])]
    }

    #[inline(always)]
    fn round(self, v: Pair) -> Pair {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: `self` proves AVX2.
        unsafe { [_mm256_round_ps::<NEAREST>(v[0]), _mm256_round_ps::<NEAREST>(v[1])] }
    }

    #[inline(always)]
    fn store_i8(self, v: Pair, out: &mut [i8; LANES]) {
        let mut wide = [0i32; LANES];
        // SAFETY: `self` proves AVX2; both stores lie in the array and need no alignment.
        unsafe {
            _mm256_storeu_si256(wide.as_mut_ptr().cast(), _mm256_cvtps_epi32(v[0]));
            _mm256_storeu_si256(wide.as_mut_ptr().add(8).cast(), _mm256_cvtps_epi32(v[1]));
        }
        *out = wide.map(|x| x as i8);
    }

    #[inline(always)]
    fn to_f32(self, v: [__m256i; 2]) -> Pair {
        // SAFETY: `self` proves AVX2.
        unsafe { [_mm256_cvtepi32_ps(v[0]), _mm256_cvtepi32_ps(v[1])] }
    }

    #[inline(always)]
    fn dot_u4<const N: usize>(
        self,
        w: &[u8; U4_GROUP],
        a: &[[i8; GROUP]; N],
        init: [i32; N],
    ) -> [[__m256i; 2]; N] {
        // SAFETY: `self` proves AVX2; nothing here touches memory but through references.
        unsafe {
            let mut sums = [[_mm256_setzero_si256(); 2]; N];
            let ones = _mm256_set1_epi16(1);
            for half in 0..2 {
                let a = afresh(a);
                // A pair of products is at most 2·15·127 = 3810 in magnitude, and a lane takes eight pairs: 30480 fits i16.
                let mut narrow = [_mm256_setzero_si256(); N];
                for i in 0..4 {
                    let (low, high) = nibbles(self, bytes(self, w, 2 * i + half));
                    for (sum, a) in narrow.iter_mut().zip(a) {
                        let low = _mm256_maddubs_epi16(low, quad(self, a, i));
                        let high = _mm256_maddubs_epi16(high, quad(self, a, i + 4));
                        *sum = _mm256_add_epi16(*sum, _mm256_add_epi16(low, high));
                    }
                }
                for ((sum, narrow), init) in sums.iter_mut().zip(narrow).zip(init) {
                    sum[half] = _mm256_add_epi32(_mm256_set1_epi32(init), _mm256_madd_epi16(narrow, ones));
                }
            }
            sums
        }
    }

    #[inline(always)]
    fn dot_u8<const N: usize>(
        self,
        w: &[u8; U8_GROUP],
        a: &[[i8; GROUP]; N],
        init: [i32; N],
    ) -> [[__m256i; 2]; N] {
        // SAFETY: `self` proves AVX2.
        let mut sums = unsafe { [[_mm256_setzero_si256(); 2]; N] };
        if N == 2 * ROWS_HELD {
            let (of_a, of_init) = (a.as_chunks().0, init.as_chunks().0);
            for ((a, init), sums) in of_a.iter().zip(of_init).zip(sums.as_chunks_mut().0) {
                dots_u8::<ROWS_HELD>(self, w, a, init, sums);
            }
        } else {
            dots_u8::<N>(self, w, a, &init, &mut sums);
        }
        sums
    }

    #[inline(always)]
    fn sum(self, [low, high]: Pair) -> f32 {
        // SAFETY: `self` proves AVX2.
        unsafe { tree_of_eight!(_mm_add_ps, _mm256_add_ps(low, high)) }
    }

    #[inline(always)]
    fn greatest(self, [low, high]: Pair) -> f32 {
        // SAFETY: `self` proves AVX2.
        unsafe { tree_of_eight!(_mm_max_ps, _mm256_max_ps(low, high)) }
    }
}
