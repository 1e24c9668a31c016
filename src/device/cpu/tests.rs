//! The device as a whole: the conformance suite on every instruction set, and equal bits between them.

use proptest::prelude::*;

use super::*;
use crate::device::conformance::{self, Route, trace};

fn kernels() -> impl Iterator<Item = Kernel> {
    Kernel::ALL.into_iter().filter(|kernel| {
        if !kernel.is_available() {
            println!("skipped: this processor has no {kernel}");
        }
        kernel.is_available()
    })
}

fn cpu(precision: Precision, threads: usize, kernel: Kernel) -> Cpu {
    Cpu::new(CpuOptions { precision, threads, kernel: Some(kernel) }).unwrap()
}

#[test]
fn every_instruction_set_conforms() {
    for kernel in kernels() {
        println!("{kernel}");
        conformance::conforms(&|precision| cpu(precision, 2, kernel));
    }
}

#[test]
fn instruction_sets_and_thread_counts_give_the_same_bits() {
    for precision in [Precision::Int8, Precision::F32] {
        let route = Route { chunks: vec![270, 30], company: false };
        let expected = trace(&mut cpu(precision, 1, Kernel::Portable), 1, 310, &route);
        for kernel in kernels() {
            for threads in [1, 2, 3] {
                let got = trace(&mut cpu(precision, threads, kernel), 1, 310, &route);
                assert!(got == expected, "{precision:?}: {kernel} with {threads} threads");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_route_gives_the_same_bits(
        chunks in proptest::collection::vec(1usize..90, 1..6),
        company: bool,
        tokens in 1usize..280,
        threads in 1usize..4,
        int8: bool,
    ) {
        let precision = if int8 { Precision::Int8 } else { Precision::F32 };
        let whole = Route { chunks: vec![tokens], company: false };
        let best = Kernel::best();
        let expected = trace(&mut cpu(precision, 1, best), 3, tokens, &whole);
        let got = trace(&mut cpu(precision, threads, best), 3, tokens, &Route { chunks, company });
        prop_assert!(got == expected);
    }
}

#[test]
fn an_instruction_set_the_processor_lacks_is_an_error() {
    for kernel in Kernel::ALL.into_iter().filter(|kernel| !kernel.is_available()) {
        let options = CpuOptions { precision: Precision::Int8, threads: 1, kernel: Some(kernel) };
        assert!(Cpu::new(options).is_err());
    }
}
