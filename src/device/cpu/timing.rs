//! Timings of a model of SmolLM2-135M's shape with random weights. Nothing is asserted; run with
//! `cargo test --release --lib device::cpu::timing -- --ignored --nocapture`.

use std::time::Instant;

use super::*;
use crate::device::conformance::{Dims, Kind, Toy};
use crate::device::{LogitRows, Span};

fn smollm2() -> Dims {
    let q4 = Kind::Q4_1;
    Dims {
        hidden: 576,
        inner: 1536,
        vocab: 49_152,
        layers: 30,
        page_tokens: 256,
        shape: AttentionShape { heads: 9, kv_heads: 3, head_dim: 64, scale: 0.125, gated: false },
        kinds: [q4, q4, q4, q4, q4, Kind::Q8_0],
    }
}

/// CPU seconds this process has used: unlike the wall clock, steady on a busy machine.
fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Prefill and decode rates of a prompt, by CPU and by wall time.
fn rates(device: &mut Cpu, toy: &Toy<Cpu>, prompt: usize) {
    const CHUNK: usize = 512;
    const DECODED: usize = 24;
    let pages: Vec<PageId> = (0..40).map(PageId).collect();
    let mut kv = toy.state(device, pages.len());
    let tokens = vec![5; CHUNK];
    let mut forward = |device: &mut Cpu, start: usize, n: usize| {
        let span = Span {
            positions: None,
            capture: 0,
            hidden: false,
            pages: &pages,
            start,
            tokens: &tokens[..n],
            state: None,
            logits: LogitRows::Last,
        };
        toy.forward(device, &mut kv, &[span], false);
    };
    forward(device, 0, CHUNK.min(prompt));
    let (cpu, wall) = (cpu_seconds(), Instant::now());
    for start in (0..prompt).step_by(CHUNK) {
        forward(device, start, CHUNK.min(prompt - start));
    }
    let prefill = [cpu_seconds() - cpu, wall.elapsed().as_secs_f64()].map(|s| prompt as f64 / s);
    let (cpu, wall) = (cpu_seconds(), Instant::now());
    for i in 0..DECODED {
        forward(device, prompt + i, 1);
    }
    let decode = [cpu_seconds() - cpu, wall.elapsed().as_secs_f64()].map(|s| DECODED as f64 / s);
    println!(
        "{} {prompt}: tokens a CPU second (a second): prefill {:.0} ({:.0}), decode {:.1} ({:.1})",
        device.kernel(),
        prefill[0],
        prefill[1],
        decode[0],
        decode[1]
    );
}

#[test]
#[ignore = "prints timings"]
fn prefill_and_decode() {
    for (kernel, threads) in [(Kernel::Avx512, 1), (Kernel::Avx512, 2), (Kernel::Avx2, 1)] {
        let options = CpuOptions { precision: Precision::Int8, threads, kernel: Some(kernel) };
        let Ok(mut device) = Cpu::new(options) else { continue };
        let toy = Toy::new(&mut device, smollm2());
        println!("{threads} threads");
        for prompt in [512, 2048] {
            rates(&mut device, &toy, prompt);
        }
    }
}

#[test]
#[ignore = "prints timings"]
fn decode() {
    for threads in [1, 2] {
        let options = CpuOptions { precision: Precision::Int8, threads, kernel: None };
        let mut device = Cpu::new(options).unwrap();
        let toy = Toy::new(&mut device, smollm2());
        for _ in 0..16 {
            rates(&mut device, &toy, 64);
        }
    }
}

#[test]
#[ignore = "prints timings"]
fn regions() {
    let mut pool = Pool::new(2).unwrap();
    for tasks in [2, 8] {
        let begun = Instant::now();
        for _ in 0..200_000 {
            pool.run(tasks, |task| {
                std::hint::black_box(task);
            });
        }
        println!("{tasks} empty tasks: {:.2} us a region", begun.elapsed().as_secs_f64() * 1e6 / 200_000.0);
        // Two tasks of 5 us each: what is lost when both threads have to come.
        let work = || {
            let begun = Instant::now();
            while begun.elapsed().as_nanos() < 5_000 {}
        };
        let begun = Instant::now();
        for _ in 0..20_000 {
            pool.run(2, |_| work());
            work();
        }
        println!(
            "5 us of parallel after 5 us of serial work: {:.2} us",
            begun.elapsed().as_secs_f64() * 1e6 / 20_000.0
        );
    }
}
