//! Every lane operation against its portable twin, bit for bit.

use proptest::prelude::*;

use super::super::elementwise::{exp, silu_times};
use super::super::kernel::{Kernel, Task};
use super::*;

/// Rows of the largest block.
const MOST_ROWS: usize = 8;

/// Inputs of one call of every operation.
#[derive(Debug, Clone)]
struct Inputs {
    a: [f32; LANES],
    b: [f32; LANES],
    c: [f32; LANES],
    small: [f32; LANES],
    halves: [u16; LANES],
    keep: usize,
    u4: Vec<u8>,
    u8: Vec<u8>,
    activations: Vec<[i16; GROUP]>,
    init: [i32; MOST_ROWS],
}

/// The bits of all results.
struct Everything<'a>(&'a Inputs);

impl Task for Everything<'_> {
    type Output = Vec<u32>;

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> Vec<u32> {
        let x = self.0;
        let (a, b, c, small) = (isa.load(&x.a), isa.load(&x.b), isa.load(&x.c), isa.load(&x.small));
        let mut bits = Vec::new();
        let results = [
            isa.splat(x.a[3]),
            isa.load_f16(&x.halves),
            isa.load_bf16(&x.halves),
            isa.add(a, b),
            isa.sub(a, b),
            isa.mul(a, b),
            isa.div(a, b),
            isa.fma(a, b, c),
            isa.max(a, b),
            isa.abs(a),
            isa.round(small),
            isa.round(b),
            isa.keep_first(a, x.keep, b),
            exp(isa, small),
            silu_times(isa, small, b),
        ];
        let mut sums = Vec::new();
        dots::<I, 1>(isa, x, &mut sums);
        dots::<I, 3>(isa, x, &mut sums);
        dots::<I, 5>(isa, x, &mut sums);
        dots::<I, MOST_ROWS>(isa, x, &mut sums);
        for v in results.into_iter().chain(sums.into_iter().map(|sum| isa.to_f32(sum))) {
            let mut out = [0.0; LANES];
            isa.store(v, &mut out);
            bits.extend(out.map(f32::to_bits));
        }
        let mut whole = [0; LANES];
        isa.store_i16(isa.mul(small, isa.splat(257.0)), &mut whole);
        bits.extend(whole.map(|x| x as u32));
        bits.extend([isa.sum(a), isa.greatest(a)].map(f32::to_bits));
        bits
    }
}

/// The dot products of the first `N` rows.
#[inline(always)]
fn dots<I: Isa, const N: usize>(isa: I, x: &Inputs, sums: &mut Vec<I::I>) {
    let (activations, init) = (x.activations.first_chunk::<N>().unwrap(), *x.init.first_chunk().unwrap());
    sums.extend(isa.dot_u4(x.u4.first_chunk().unwrap(), activations, init));
    sums.extend(isa.dot_u8(x.u8.first_chunk().unwrap(), activations, init));
}

fn numbers(range: std::ops::Range<f32>) -> impl Strategy<Value = [f32; LANES]> {
    proptest::array::uniform16(range)
}

prop_compose! {
    fn inputs()(
        a in proptest::array::uniform16(proptest::num::f32::NORMAL | proptest::num::f32::SUBNORMAL | proptest::num::f32::ZERO),
        b in numbers(-3.0..3.0),
        c in numbers(-1e3..1e3),
        small in numbers(-127.4..127.4),
        halves in proptest::array::uniform16(0u16..0x7c00),
        keep in 0usize..20,
        u4 in proptest::collection::vec(any::<u8>(), U4_GROUP),
        u8 in proptest::collection::vec(any::<u8>(), U8_GROUP),
        activations in proptest::collection::vec(proptest::array::uniform32(-i16::MAX..=i16::MAX), MOST_ROWS),
        init in proptest::array::uniform8(-100_000i32..100_000),
    ) -> Inputs {
        Inputs { a, b, c, small, halves, keep, u4, u8, activations, init }
    }
}

proptest! {
    #[test]
    fn instruction_sets_agree_bit_for_bit(inputs in inputs()) {
        let expected = Kernel::Portable.dispatch(Everything(&inputs));
        for kernel in Kernel::ALL.into_iter().filter(|kernel| kernel.is_available()) {
            prop_assert_eq!(&kernel.dispatch(Everything(&inputs)), &expected, "{}", kernel);
        }
    }
}

#[test]
fn extreme_dot_products_are_exact() {
    for (weight, activation) in [(0xff, i16::MAX), (0xff, -i16::MAX), (0x88, -i16::MAX), (0x0f, i16::MAX)] {
        let inputs = Inputs {
            a: [1.0; LANES],
            b: [1.0; LANES],
            c: [1.0; LANES],
            small: [-127.5 + 0.25; LANES],
            halves: [0x3c00; LANES],
            keep: 3,
            u4: vec![weight; U4_GROUP],
            u8: vec![weight; U8_GROUP],
            activations: vec![[activation; GROUP]; MOST_ROWS],
            init: [0, 1, -1, 2, -2, 3, -3, 4],
        };
        let expected = Kernel::Portable.dispatch(Everything(&inputs));
        for kernel in Kernel::ALL.into_iter().filter(|kernel| kernel.is_available()) {
            assert_eq!(kernel.dispatch(Everything(&inputs)), expected, "{kernel}");
        }
    }
}

#[test]
fn exp_is_within_two_units_in_the_last_place() {
    struct Exp([f32; LANES]);
    impl Task for Exp {
        type Output = [f32; LANES];
        #[inline(always)]
        fn run<I: Isa>(self, isa: I) -> [f32; LANES] {
            let mut out = [0.0; LANES];
            isa.store(exp(isa, isa.load(&self.0)), &mut out);
            out
        }
    }
    let mut x = -86.5f32;
    while x < 87.9 {
        let inputs = std::array::from_fn(|i| x + i as f32 * 0.000_37);
        for (x, y) in inputs.iter().zip(Kernel::best().dispatch(Exp(inputs))) {
            let exact = f64::from(*x).exp();
            let error = (f64::from(y) - exact).abs() / exact;
            assert!(error < 2.0 * f64::from(f32::EPSILON), "exp({x}) = {y}, off by {error:e}");
        }
        x += 0.006;
    }
    let edges = Kernel::best().dispatch(Exp([f32::NEG_INFINITY; LANES]));
    assert!(edges[0] > 0.0 && edges[0] < 1e-37);
    assert_eq!(Kernel::best().dispatch(Exp([0.0; LANES])), [1.0; LANES]);
    assert!(Kernel::best().dispatch(Exp([f32::INFINITY; LANES]))[0].is_finite());
}
