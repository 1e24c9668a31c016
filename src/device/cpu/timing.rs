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
        shape: AttentionShape { heads: 9, kv_heads: 3, head_dim: 64, scale: 0.125 },
        kinds: [q4, q4, q4, q4, q4, Kind::Q8_0],
    }
}

#[test]
#[ignore = "prints timings"]
fn prefill_and_decode() {
    let (chunk, threads) = (512, 2);
    for kernel in [Kernel::Avx512, Kernel::Avx2] {
        let options = CpuOptions { precision: Precision::Int8, threads, kernel: Some(kernel) };
        let Ok(mut device) = Cpu::new(options) else { continue };
        let toy = Toy::new(&mut device, smollm2());
        let pages: Vec<PageId> = (0..40).map(PageId).collect();
        let mut kv = toy.state(&mut device, pages.len());
        let tokens = vec![5; 8192];
        for prompt in [512, 2048, 6144] {
            let mut best = [f64::MAX; 2];
            for _ in 0..3 {
                let begun = Instant::now();
                for start in (0..prompt).step_by(chunk) {
                    let n = chunk.min(prompt - start);
                    let span = Span { pages: &pages, start, tokens: &tokens[..n], logits: LogitRows::Last };
                    toy.forward(&mut device, &mut kv, &[span], false);
                }
                best[0] = best[0].min(begun.elapsed().as_secs_f64() / prompt as f64);
                let begun = Instant::now();
                for i in 0..64 {
                    let span =
                        Span { pages: &pages, start: prompt + i, tokens: &[7], logits: LogitRows::Last };
                    toy.forward(&mut device, &mut kv, &[span], false);
                }
                best[1] = best[1].min(begun.elapsed().as_secs_f64() / 64.0);
            }
            println!("{kernel} {prompt}: prefill {:.0}/s, decode {:.1}/s", 1.0 / best[0], 1.0 / best[1]);
        }
    }
}
