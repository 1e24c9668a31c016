//! Lanes as arrays: the definition the other instruction sets are tested against, and what `aarch64` runs (its baseline has
//! fused multiply-add, so the compiler makes NEON of these loops).

use half::{bf16, f16};

use super::super::kernel::Task;
use super::{GROUP, Isa, LANES, U4_GROUP, U8_GROUP, activation_place, u4_place, u8_place};

/// Arrays and loops; every processor has them.
#[derive(Clone, Copy)]
pub(in crate::device::cpu) struct Portable;

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

/// A halving tree over the lanes.
#[inline(always)]
fn tree(mut x: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            x[i] = f(x[i], x[i + width]);
        }
    }
    x[0]
}

impl Isa for Portable {
    type F = [f32; LANES];
    type I = [i32; LANES];

    #[inline(never)]
    fn apart<T: Task>(self, task: T) -> T::Output {
        task.run(self)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::F {
        *x
    }

    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> Self::F {
        x.map(|bits| f16::from_bits(bits).to_f32())
    }

    #[inline(always)]
    fn load_bf16(self, x: &[u16; LANES]) -> Self::F {
        x.map(|bits| bf16::from_bits(bits).to_f32())
    }

    #[inline(always)]
    fn store(self, v: Self::F, out: &mut [f32; LANES]) {
        *out = v;
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        a.map(f32::abs)
    }

    #[inline(always)]
    fn keep_first(self, v: Self::F, n: usize, other: Self::F) -> Self::F {
        std::array::from_fn(|i| if i < n { v[i] } else { other[i] })
    }

    #[inline(always)]
    fn scale_by_exponent(self, v: Self::F, shifted: Self::F) -> Self::F {
        zip(v, shifted, |v, s| f32::from_bits(v.to_bits().wrapping_add(s.to_bits() << 23)))
    }

    #[inline(always)]
    fn round(self, v: Self::F) -> Self::F {
        v.map(f32::round_ties_even)
    }

    #[inline(always)]
    fn store_i16(self, v: Self::F, out: &mut [i16; LANES]) {
        *out = v.map(|x| x.round_ties_even() as i32 as i16);
    }

    #[inline(always)]
    fn to_f32(self, v: Self::I) -> Self::F {
        v.map(|x| x as f32)
    }

    #[inline(always)]
    fn dot_u4<const N: usize>(
        self,
        w: &[u8; U4_GROUP],
        a: &[[i16; GROUP]; N],
        init: [i32; N],
    ) -> [Self::I; N] {
        let mut sums = init.map(|x| [x; LANES]);
        for column in 0..GROUP / 2 {
            let (low, high) = (activation_place(column), activation_place(column + GROUP / 2));
            for row in 0..LANES {
                let byte = i32::from(w[u4_place(row, column).0]);
                for (sum, a) in sums.iter_mut().zip(a) {
                    sum[row] += (byte & 15) * i32::from(a[low]) + (byte >> 4) * i32::from(a[high]);
                }
            }
        }
        sums
    }

    #[inline(always)]
    fn dot_u8<const N: usize>(
        self,
        w: &[u8; U8_GROUP],
        a: &[[i16; GROUP]; N],
        init: [i32; N],
    ) -> [Self::I; N] {
        let mut sums = init.map(|x| [x; LANES]);
        for column in 0..GROUP {
            let place = activation_place(column);
            for row in 0..LANES {
                let weight = i32::from(w[u8_place(row, column)]);
                for (sum, a) in sums.iter_mut().zip(a) {
                    sum[row] += weight * i32::from(a[place]);
                }
            }
        }
        sums
    }

    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        tree(v, |a, b| a + b)
    }

    #[inline(always)]
    fn greatest(self, v: Self::F) -> f32 {
        tree(v, |a, b| if a > b { a } else { b })
    }
}
