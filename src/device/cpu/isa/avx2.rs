//! AVX2 with FMA and F16C: a vector is two registers; dot products go through `vpmaddwd`.

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

/// Two activations as one 32-bit element in every lane.
#[inline(always)]
fn pair(_: Avx2, a: &[i16; GROUP], index: usize) -> __m256i {
    let [low, high] = [a[2 * index] as u16, a[2 * index + 1] as u16].map(u32::from);
    // SAFETY: the token proves AVX2.
    unsafe { _mm256_set1_epi32((low | high << 16) as i32) }
}

/// The same activations, as far as anyone can tell another array: what both halves of a tile broadcast would otherwise be kept for the second, and
/// there are fewer registers than that.
#[inline(always)]
#[expect(clippy::pointers_in_nomem_asm_block, reason = "nothing is read or written in it")]
fn afresh<const N: usize>(a: &[[i16; GROUP]; N]) -> &[[i16; GROUP]; N] {
    let mut at: *const [[i16; GROUP]; N] = a;
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

/// Adds to every row's sums the products of its pair `index` of activations with weights, sixteen bits each.
#[inline(always)]
fn add_products<const N: usize>(
    isa: Avx2,
    dots: &mut [__m256i; N],
    weights: __m256i,
    a: &[[i16; GROUP]; N],
    index: usize,
) {
    for (dot, a) in dots.iter_mut().zip(a) {
        // SAFETY: the token proves AVX2.
        unsafe {
            let products = _mm256_madd_epi16(weights, pair(isa, a, index));
            *dot = _mm256_add_epi32(*dot, products);
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
    fn store_i16(self, v: Pair, out: &mut [i16; LANES]) {
        let mut wide = [0i32; LANES];
        // SAFETY: `self` proves AVX2; both stores lie in the array and need no alignment.
        unsafe {
            _mm256_storeu_si256(wide.as_mut_ptr().cast(), _mm256_cvtps_epi32(v[0]));
            _mm256_storeu_si256(wide.as_mut_ptr().add(8).cast(), _mm256_cvtps_epi32(v[1]));
        }
        *out = wide.map(|x| x as i16);
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
        a: &[[i16; GROUP]; N],
        init: [i32; N],
    ) -> [[__m256i; 2]; N] {
        // SAFETY: `self` proves AVX2; nothing here touches memory but through references.
        unsafe {
            let mut sums = [[_mm256_setzero_si256(); 2]; N];
            let nibble = _mm256_set1_epi16(15);
            for half in 0..2 {
                let a = afresh(a);
                let mut dots = [_mm256_setzero_si256(); N];
                for i in 0..4 {
                    let packed = bytes(self, w, 2 * i + half);
                    let weights = [
                        (_mm256_and_si256(packed, nibble), 2 * i),
                        (_mm256_and_si256(_mm256_srli_epi16::<8>(packed), nibble), 2 * i + 1),
                        (_mm256_and_si256(_mm256_srli_epi16::<4>(packed), nibble), 2 * i + 8),
                        (_mm256_srli_epi16::<12>(packed), 2 * i + 9),
                    ];
                    for (weights, index) in weights {
                        add_products(self, &mut dots, weights, a, index);
                    }
                }
                for ((sum, dot), init) in sums.iter_mut().zip(dots).zip(init) {
                    sum[half] = _mm256_add_epi32(_mm256_set1_epi32(init), dot);
                }
            }
            sums
        }
    }

    #[inline(always)]
    fn dot_u8<const N: usize>(
        self,
        w: &[u8; U8_GROUP],
        a: &[[i16; GROUP]; N],
        init: [i32; N],
    ) -> [[__m256i; 2]; N] {
        // SAFETY: `self` proves AVX2; nothing here touches memory but through references.
        unsafe {
            let mut sums = [[_mm256_setzero_si256(); 2]; N];
            let byte = _mm256_set1_epi16(255);
            for half in 0..2 {
                let a = afresh(a);
                let mut dots = [_mm256_setzero_si256(); N];
                for i in 0..8 {
                    let packed = bytes(self, w, 2 * i + half);
                    let weights = [
                        (_mm256_and_si256(packed, byte), 2 * i),
                        (_mm256_srli_epi16::<8>(packed), 2 * i + 1),
                    ];
                    for (weights, index) in weights {
                        add_products(self, &mut dots, weights, a, index);
                    }
                }
                for ((sum, dot), init) in sums.iter_mut().zip(dots).zip(init) {
                    sum[half] = _mm256_add_epi32(_mm256_set1_epi32(init), dot);
                }
            }
            sums
        }
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
