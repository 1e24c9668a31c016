//! AVX-512: a vector is one register, and `vpdpwssd` does sixteen two-way dot products at once.

use std::arch::x86_64::*;

use super::super::kernel::Task;
use super::{GROUP, Isa, LANES, U4_GROUP, U8_GROUP};

/// Proof that the processor has AVX-512 F, BW, DQ, VL and VNNI.
#[derive(Clone, Copy)]
pub(in crate::device::cpu) struct Avx512(());

impl Avx512 {
    /// The proof, if the processor has them.
    #[inline]
    pub(in crate::device::cpu) fn detect() -> Option<Avx512> {
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni"))
        .then_some(Avx512(()))
    }

    /// Runs a task with the instructions enabled.
    #[inline]
    pub(in crate::device::cpu) fn run<T: Task>(self, task: T) -> T::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
        fn enabled<T: Task>(isa: Avx512, task: T) -> T::Output {
            task.run(isa)
        }
        // SAFETY: `self` proves that the processor has the features.
        unsafe { enabled(self, task) }
    }
}

/// Two activations as one 32-bit element in every lane.
#[inline(always)]
fn pair(_: Avx512, a: &[i16; GROUP], index: usize) -> __m512i {
    let [low, high] = [a[2 * index] as u16, a[2 * index + 1] as u16].map(u32::from);
    // SAFETY: the token proves AVX-512F.
    unsafe { _mm512_set1_epi32((low | high << 16) as i32) }
}

/// Adds to every row's sums the products of its pair `index` of activations with weights, sixteen bits each.
#[inline(always)]
fn add_products<const N: usize>(
    isa: Avx512,
    sums: &mut [__m512i; N],
    weights: __m512i,
    a: &[[i16; GROUP]; N],
    index: usize,
) {
    for (sum, a) in sums.iter_mut().zip(a) {
        // SAFETY: the token proves AVX-512 VNNI.
        unsafe { *sum = _mm512_dpwssd_epi32(*sum, weights, pair(isa, a, index)) };
    }
}

/// 64 bytes of a packed group.
#[inline(always)]
fn bytes(_: Avx512, w: &[u8], index: usize) -> __m512i {
    let w = &w[64 * index..64 * (index + 1)];
    // SAFETY: the token proves AVX-512F; the slice has 64 bytes and the load needs no alignment.
    unsafe { _mm512_loadu_si512(w.as_ptr().cast()) }
}

impl Isa for Avx512 {
    type F = __m512;
    type I = __m512i;

    #[inline(never)]
    fn apart<T: Task>(self, task: T) -> T::Output {
        self.run(task)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> __m512 {
        // SAFETY: `self` proves AVX-512F; the array has sixteen f32 and the load needs no alignment.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> __m512 {
        // SAFETY: `self` proves AVX-512F; the array has 32 bytes and the load needs no alignment.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_bf16(self, x: &[u16; LANES]) -> __m512 {
        // SAFETY: `self` proves AVX-512F; the array has 32 bytes and the load needs no alignment.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    fn store(self, v: __m512, out: &mut [f32; LANES]) {
        // SAFETY: `self` proves AVX-512F; the array has sixteen f32 and the store needs no alignment.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn abs(self, a: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_abs_ps(a) }
    }

    #[inline(always)]
    fn keep_first(self, v: __m512, n: usize, other: __m512) -> __m512 {
        let mask = if n >= LANES { !0 } else { (1u16 << n) - 1 };
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_mask_blend_ps(mask, other, v) }
    }

    #[inline(always)]
    fn scale_by_exponent(self, v: __m512, shifted: __m512) -> __m512 {
        // SAFETY: `self` proves AVX-512F.
        unsafe {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(v), exponent))
        }
    }

    #[inline(always)]
    fn round(self, v: __m512) -> __m512 {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_roundscale_ps::<NEAREST>(v) }
    }

    #[inline(always)]
    fn store_i16(self, v: __m512, out: &mut [i16; LANES]) {
        // SAFETY: `self` proves AVX-512F; the array has 32 bytes and the store needs no alignment.
        unsafe {
            let low = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(v));
            _mm256_storeu_si256(out.as_mut_ptr().cast(), low);
        }
    }

    #[inline(always)]
    fn to_f32(self, v: __m512i) -> __m512 {
        // SAFETY: `self` proves AVX-512F.
        unsafe { _mm512_cvtepi32_ps(v) }
    }

    #[inline(always)]
    fn dot_u4<const N: usize>(
        self,
        w: &[u8; U4_GROUP],
        a: &[[i16; GROUP]; N],
        init: [i32; N],
    ) -> [__m512i; N] {
        // SAFETY: `self` proves AVX-512F, BW and VNNI; nothing here touches memory but through references.
        unsafe {
            let mut sums = init.map(|x| _mm512_set1_epi32(x));
            let nibble = _mm512_set1_epi16(15);
            for i in 0..4 {
                let packed = bytes(self, w, i);
                let weights = [
                    (_mm512_and_si512(packed, nibble), 2 * i),
                    (_mm512_and_si512(_mm512_srli_epi16::<8>(packed), nibble), 2 * i + 1),
                    (_mm512_and_si512(_mm512_srli_epi16::<4>(packed), nibble), 2 * i + 8),
                    (_mm512_srli_epi16::<12>(packed), 2 * i + 9),
                ];
                for (weights, index) in weights {
                    add_products(self, &mut sums, weights, a, index);
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
    ) -> [__m512i; N] {
        // SAFETY: `self` proves AVX-512F, BW and VNNI; nothing here touches memory but through references.
        unsafe {
            let mut sums = init.map(|x| _mm512_set1_epi32(x));
            let byte = _mm512_set1_epi16(255);
            for i in 0..8 {
                let packed = bytes(self, w, i);
                let weights =
                    [(_mm512_and_si512(packed, byte), 2 * i), (_mm512_srli_epi16::<8>(packed), 2 * i + 1)];
                for (weights, index) in weights {
                    add_products(self, &mut sums, weights, a, index);
                }
            }
            sums
        }
    }

    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        // SAFETY: `self` proves AVX-512F and DQ.
        unsafe {
            let (low, high) = (_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            tree_of_eight!(_mm_add_ps, _mm256_add_ps(low, high))
        }
    }

    #[inline(always)]
    fn greatest(self, v: __m512) -> f32 {
        // SAFETY: `self` proves AVX-512F and DQ.
        unsafe {
            let (low, high) = (_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            tree_of_eight!(_mm_max_ps, _mm256_max_ps(low, high))
        }
    }
}
