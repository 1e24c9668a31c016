//! The same bits by every route: chunking, batching, restarts, threads and instruction sets change nothing.

use std::path::Path;
use std::sync::OnceLock;

use escarp::config::Precision;
use escarp::device::cpu::{Cpu, CpuOptions, Kernel};
use escarp::device::{Executor, LogitRows, PageId, Span};
use escarp::model::{Checkpoint, Folder, Gguf, ModelShape, Resident};
use proptest::prelude::*;

use super::{from_environment, oracle_tokens, parity_folder};

const PAGE: usize = 64;

/// Logits of every token as bits, and the digest of every page.
#[derive(Debug, Clone, PartialEq)]
struct Trace {
    logits: Vec<u32>,
    pages: Vec<[u8; 32]>,
}

fn cpu(precision: Precision, kernel: Kernel, threads: usize) -> Cpu {
    Cpu::new(CpuOptions { precision, threads, kernel: Some(kernel) }).unwrap()
}

fn resident(checkpoint: &dyn Checkpoint, sizes: ModelShape, device: Cpu) -> Resident<Cpu> {
    let mut resident = Resident::load(device, checkpoint, sizes, "test".into(), PAGE).unwrap();
    resident.reserve(32, 0).unwrap();
    resident
}

fn parity(precision: Precision, kernel: Kernel, threads: usize) -> Resident<Cpu> {
    let folder = Folder::open(&parity_folder()).unwrap();
    resident(&folder, folder.shape().clone(), cpu(precision, kernel, threads))
}

fn pages(from: u32, tokens: usize) -> Vec<PageId> {
    (from..).take(tokens.div_ceil(PAGE)).map(PageId).collect()
}

fn bits(logits: &[f32]) -> impl Iterator<Item = u32> {
    logits.iter().map(|logit| logit.to_bits())
}

fn digests(executor: &dyn Executor, pages: &[PageId], tokens: usize) -> Vec<[u8; 32]> {
    let filled = |index: usize| (tokens - index * PAGE).min(PAGE);
    pages.iter().enumerate().map(|(index, page)| executor.page_digest(*page, filled(index))).collect()
}

/// Computes `tokens` in chunks of the given sizes, the last one repeated, on pages from number `from`.
fn run(executor: &mut dyn Executor, tokens: &[u32], chunks: &[usize], from: u32) -> Trace {
    let pages = pages(from, tokens.len());
    let mut logits = Vec::new();
    let mut start = 0;
    let mut sizes = chunks.iter().chain(std::iter::repeat(chunks.last().unwrap()));
    while start < tokens.len() {
        let end = tokens.len().min(start + sizes.next().unwrap());
        let span =
            Span { pages: &pages, start, tokens: &tokens[start..end], state: None, logits: LogitRows::All };
        logits.extend(bits(&executor.forward(&[span]).unwrap().logits));
        start = end;
    }
    Trace { logits, pages: digests(executor, &pages, tokens.len()) }
}

/// Computes `tokens` in chunks of `size` while another sequence runs in the same batches.
fn run_beside(executor: &mut dyn Executor, tokens: &[u32], size: usize, other: &[u32]) -> Trace {
    let (pages, other_pages) = (pages(0, tokens.len()), pages(16, other.len()));
    let vocab = executor.facts().vocab;
    let mut logits = Vec::new();
    for (round, chunk) in tokens.chunks(size).enumerate() {
        let mine =
            Span { pages: &pages, start: round * size, tokens: chunk, state: None, logits: LogitRows::All };
        // The neighbour goes first and moves at its own pace.
        let at = round * 5 % other.len();
        let its = &other[at..(at + 5).min(other.len())];
        let neighbour =
            Span { pages: &other_pages, start: at, tokens: its, state: None, logits: LogitRows::Last };
        let out = executor.forward(&[neighbour, mine]).unwrap().logits;
        logits.extend(bits(&out[vocab..]));
    }
    Trace { logits, pages: digests(executor, &pages, tokens.len()) }
}

/// Takes the first `boundary` tokens' pages as restored and computes the rest on fresh pages.
fn run_restored(executor: &mut dyn Executor, tokens: &[u32], boundary: usize) -> Trace {
    let whole = run(executor, tokens, &[tokens.len()], 0);
    let blocks = boundary / PAGE;
    let mut mixed = pages(0, tokens.len());
    for (index, page) in mixed.iter_mut().enumerate().skip(blocks) {
        *page = PageId(16 + index as u32);
    }
    let span = Span {
        pages: &mixed,
        start: boundary,
        tokens: &tokens[boundary..],
        state: None,
        logits: LogitRows::All,
    };
    let rest = executor.forward(&[span]).unwrap().logits;
    let kept = boundary * executor.facts().vocab;
    let logits = whole.logits[..kept].iter().copied().chain(bits(&rest)).collect();
    Trace { logits, pages: digests(executor, &mixed, tokens.len()) }
}

fn kernels() -> impl Iterator<Item = Kernel> {
    Kernel::ALL.into_iter().filter(|kernel| kernel.is_available())
}

fn sample(length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| (i * 7919 + i * i * 31) % 320).collect()
}

#[test]
fn chunks_threads_and_instruction_sets_change_no_bit() {
    let tokens = sample(520);
    for precision in [Precision::Int8, Precision::F32] {
        let reference = run(&mut parity(precision, Kernel::Portable, 1), &tokens, &[520], 0);
        for kernel in kernels() {
            // Token by token, two threads spend their time waiting for each other.
            for (threads, chunks) in [(1, &[1, 7, 64, 512, 520][..]), (2, &[7, 64, 520])] {
                let mut executor = parity(precision, kernel, threads);
                for &chunk in chunks {
                    let trace = run(&mut executor, &tokens, &[chunk], 0);
                    assert!(
                        trace == reference,
                        "{precision:?} {kernel} {threads} threads, chunks of {chunk}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_neighbour_in_the_batch_changes_no_bit() {
    let (tokens, other) = (sample(200), sample(77));
    for precision in [Precision::Int8, Precision::F32] {
        for kernel in kernels() {
            let mut executor = parity(precision, kernel, 2);
            let alone = run(&mut executor, &tokens, &[200], 0);
            for chunk in [1, 7, 64] {
                let beside = run_beside(&mut executor, &tokens, chunk, &other);
                assert!(beside == alone, "{precision:?} {kernel}, chunks of {chunk}");
            }
        }
    }
}

#[test]
fn a_restart_at_any_block_boundary_changes_no_bit() {
    let tokens = sample(300);
    for precision in [Precision::Int8, Precision::F32] {
        let mut executor = parity(precision, Kernel::best(), 2);
        let whole = run(&mut executor, &tokens, &[300], 0);
        for boundary in (PAGE..tokens.len()).step_by(PAGE) {
            assert!(run_restored(&mut executor, &tokens, boundary) == whole, "{precision:?} at {boundary}");
        }
    }
}

fn shared_parity() -> &'static (Vec<u32>, [Trace; 2]) {
    static SHARED: OnceLock<(Vec<u32>, [Trace; 2])> = OnceLock::new();
    SHARED.get_or_init(|| {
        let tokens = sample(180);
        let reference = [Precision::Int8, Precision::F32]
            .map(|precision| run(&mut parity(precision, Kernel::best(), 1), &tokens, &[180], 0));
        (tokens, reference)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_split_changes_a_bit(
        chunks in proptest::collection::vec(1usize..90, 1..12),
        threads in 1usize..3,
        kernel in proptest::sample::select(kernels().collect::<Vec<_>>()),
        exact in proptest::bool::ANY,
    ) {
        let (tokens, reference) = shared_parity();
        let precision = if exact { Precision::F32 } else { Precision::Int8 };
        let trace = run(&mut parity(precision, kernel, threads), tokens, &chunks, 3);
        prop_assert!(trace == reference[usize::from(exact)]);
    }
}

/// The real model, a short prompt: its shapes (9 heads over 3, 64 columns a head, mixed encodings) are not the parity model's.
#[test]
fn smollm2_gives_the_same_bits_by_every_route() {
    let (Some(path), Some(tokens)) = (from_environment("ESCARP_SMOLLM2"), oracle_tokens()) else { return };
    let tokens = &tokens[..70];
    let load = |kernel, threads| {
        let gguf = Gguf::open(Path::new(&path)).unwrap();
        let sizes = gguf.shape().unwrap();
        resident(&gguf, sizes, cpu(Precision::Int8, kernel, threads))
    };
    let mut executor = load(Kernel::best(), 2);
    let whole = run(&mut executor, tokens, &[70], 0);
    assert!(run(&mut executor, tokens, &[1], 0) == whole, "token by token");
    assert!(run(&mut executor, tokens, &[33, 7, 19], 4) == whole, "odd chunks");
    assert!(run_beside(&mut executor, tokens, 16, &tokens[20..50]) == whole, "beside another");
    assert!(run_restored(&mut executor, tokens, PAGE) == whole, "restored");
    assert!(run(&mut load(Kernel::best(), 1), tokens, &[70], 0) == whole, "one thread");
    for kernel in kernels() {
        assert!(
            run(&mut load(kernel, 2), &tokens[..20], &[20], 0).logits == whole.logits[..20 * 49_152],
            "{kernel}"
        );
    }
}
