//! The same bits by every route: chunking, batching, restarts, threads and instruction sets change nothing.

use std::path::Path;
use std::sync::OnceLock;

use escarp::config::Precision;
use escarp::device::cpu::{Cpu, CpuOptions, Kernel};
use escarp::device::{Executor, LogitRows, PageId, SlotId, Span, StateFlow};
use escarp::model::{Checkpoint, Folder, Gguf, ModelShape, Resident};
use proptest::prelude::*;

use super::{from_environment, oracle_tokens};

pub(super) const PAGE: usize = 64;

/// Attention alone; recurrent layers; sizes that fill no vector and heads that threads share unevenly; three experts of five;
/// packed experts.
pub(super) const FOLDERS: [&str; 5] = ["llama", "qwen3.5-q4", "odd-hybrid", "odd-moe", "moe-q6"];

/// Logits of every token as bits, and digests of every page and of the recurrent state at the end.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Trace {
    pub(super) logits: Vec<u32>,
    pages: Vec<[u8; 32]>,
    state: [u8; 32],
}

fn cpu(precision: Precision, kernel: Kernel, threads: usize) -> Cpu {
    Cpu::new(CpuOptions { precision, threads, kernel: Some(kernel) }).unwrap()
}

fn resident(checkpoint: &dyn Checkpoint, shape: ModelShape, device: Cpu) -> Resident<Cpu> {
    let mut resident = Resident::load(device, checkpoint, shape, "test".into(), PAGE).unwrap();
    resident.reserve(32, 8).unwrap();
    resident
}

fn parity(folder: &str, precision: Precision, kernel: Kernel, threads: usize) -> Resident<Cpu> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let folder = Folder::open(&root.join(format!("parity-{folder}"))).unwrap();
    resident(&folder, folder.shape().clone(), cpu(precision, kernel, threads))
}

fn pages(from: u32, tokens: usize) -> Vec<PageId> {
    (from..).take(tokens.div_ceil(PAGE)).map(PageId).collect()
}

fn bits(logits: &[f32]) -> impl Iterator<Item = u32> {
    logits.iter().map(|logit| logit.to_bits())
}

/// From slot `from` to slot `to`, where there are slots.
fn flow(executor: &dyn Executor, from: Option<u32>, to: u32, revocable: bool) -> Option<StateFlow> {
    let flow = StateFlow { from: from.map(SlotId), to: SlotId(to), revocable };
    (executor.facts().slot_bytes > 0).then_some(flow)
}

fn trace(executor: &dyn Executor, logits: Vec<u32>, pages: &[PageId], tokens: usize, slot: u32) -> Trace {
    let filled = |index: usize| (tokens - index * PAGE).min(PAGE);
    let digest = |(index, page): (usize, &PageId)| executor.page_digest(*page, filled(index));
    Trace {
        logits,
        pages: pages.iter().enumerate().map(digest).collect(),
        state: executor.slot_digest(SlotId(slot)),
    }
}

/// Computes `tokens` in chunks of the given sizes, the last one repeated, on pages from number `from`.
pub(super) fn run(executor: &mut dyn Executor, tokens: &[u32], chunks: &[usize], from: u32) -> Trace {
    let pages = pages(from, tokens.len());
    let mut logits = Vec::new();
    let mut start = 0;
    let mut sizes = chunks.iter().chain(std::iter::repeat(chunks.last().unwrap()));
    while start < tokens.len() {
        let end = tokens.len().min(start + sizes.next().unwrap());
        let state = flow(executor, (start > 0).then_some(0), 0, false);
        let span = Span {
            positions: None,
            capture: 0,
            hidden: false,
            pages: &pages,
            start,
            tokens: &tokens[start..end],
            state,
            logits: LogitRows::All,
        };
        logits.extend(bits(&executor.forward(&[span]).unwrap().logits));
        start = end;
    }
    trace(executor, logits, &pages, tokens.len(), 0)
}

/// Computes `tokens` in chunks of `size` while another sequence runs in the same batches.
pub(super) fn run_beside(executor: &mut dyn Executor, tokens: &[u32], size: usize, other: &[u32]) -> Trace {
    let (pages, other_pages) = (pages(0, tokens.len()), pages(16, other.len()));
    let vocab = executor.facts().vocab;
    let mut logits = Vec::new();
    for (round, chunk) in tokens.chunks(size).enumerate() {
        let start = round * size;
        // From slot to slot and back, as if a snapshot were taken after every chunk.
        let state = flow(executor, (round > 0).then_some(1 - round as u32 % 2), round as u32 % 2, false);
        let mine = Span {
            positions: None,
            capture: 0,
            hidden: false,
            pages: &pages,
            start,
            tokens: chunk,
            state,
            logits: LogitRows::All,
        };
        // The neighbour goes first and moves at its own pace.
        let at = round * 5 % other.len();
        let state = flow(executor, (at > 0).then_some(2), 2, false);
        let tokens = &other[at..(at + 5).min(other.len())];
        let neighbour = Span {
            positions: None,
            capture: 0,
            hidden: false,
            pages: &other_pages,
            start: at,
            tokens,
            state,
            logits: LogitRows::Last,
        };
        let out = executor.forward(&[neighbour, mine]).unwrap().logits;
        logits.extend(bits(&out[vocab..]));
    }
    let last = (tokens.len().div_ceil(size) as u32 + 1) % 2;
    trace(executor, logits, &pages, tokens.len(), last)
}

/// Takes the state after the first `boundary` tokens as restored, pages and snapshot, and computes the rest on fresh pages.
pub(super) fn run_restored(executor: &mut dyn Executor, tokens: &[u32], boundary: usize) -> Trace {
    let whole = run(executor, tokens, &[boundary], 0);
    run(executor, &tokens[..boundary], &[boundary], 0);
    let snapshot = executor.slot_digest(SlotId(0));
    let blocks = boundary / PAGE;
    let mut mixed = pages(0, tokens.len());
    for (index, page) in mixed.iter_mut().enumerate().skip(blocks) {
        *page = PageId(16 + index as u32);
    }
    let state = flow(executor, Some(0), 3, false);
    let rest = &tokens[boundary..];
    let span = Span {
        positions: None,
        capture: 0,
        hidden: false,
        pages: &mixed,
        start: boundary,
        tokens: rest,
        state,
        logits: LogitRows::All,
    };
    let rest = executor.forward(&[span]).unwrap().logits;
    assert_eq!(executor.slot_digest(SlotId(0)), snapshot, "the snapshot changed");
    let kept = boundary * executor.facts().vocab;
    let logits = whole.logits[..kept].iter().copied().chain(bits(&rest)).collect();
    trace(executor, logits, &mixed, tokens.len(), 3)
}

/// Computes `tokens` with drafts: each is a number of tokens that turn out right, a number that turn out wrong, and a
/// number that are computed plainly afterwards.
pub(super) fn run_drafted(
    executor: &mut dyn Executor,
    tokens: &[u32],
    drafts: &[(usize, usize, usize)],
) -> Trace {
    let pages = pages(0, tokens.len() + 32);
    let vocab = executor.facts().vocab;
    let (mut logits, mut start, mut slot) = (Vec::new(), 0, 0);
    for (right, wrong, plain) in drafts.iter().cycle() {
        let right = (*right).min(tokens.len() - start);
        let mut drafted = tokens[start..start + right].to_vec();
        drafted.extend((0..*wrong).map(|i| (tokens[0] + 1 + i as u32) % vocab as u32));
        if !drafted.is_empty() {
            let state = flow(executor, (start > 0).then_some(slot), 1 - slot, true);
            let span = Span {
                positions: None,
                capture: 0,
                hidden: false,
                pages: &pages,
                start,
                tokens: &drafted,
                state,
                logits: LogitRows::All,
            };
            logits.extend(bits(&executor.forward(&[span]).unwrap().logits[..right * vocab]));
            if let Some(flow) = state.filter(|_| *wrong > 0) {
                executor.rewind(flow, right).unwrap();
            }
            start += right;
            slot = 1 - slot;
        }
        let end = tokens.len().min(start + plain);
        if start < end {
            let state = flow(executor, (start > 0).then_some(slot), slot, false);
            let span = Span {
                positions: None,
                capture: 0,
                hidden: false,
                pages: &pages,
                start,
                tokens: &tokens[start..end],
                state,
                logits: LogitRows::All,
            };
            logits.extend(bits(&executor.forward(&[span]).unwrap().logits));
            start = end;
        }
        if start == tokens.len() {
            break;
        }
    }
    trace(executor, logits, &pages[..tokens.len().div_ceil(PAGE)], tokens.len(), slot)
}

pub(super) fn kernels() -> impl Iterator<Item = Kernel> {
    Kernel::ALL.into_iter().filter(|kernel| kernel.is_available())
}

pub(super) fn sample(length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| (i * 7919 + i * i * 31) % 257).collect()
}

#[test]
fn chunks_threads_and_instruction_sets_change_no_bit() {
    for folder in FOLDERS {
        let length = if folder == "llama" { 520 } else { 200 };
        let tokens = sample(length);
        for precision in [Precision::Int8, Precision::F32] {
            let reference = run(&mut parity(folder, precision, Kernel::Portable, 1), &tokens, &[length], 0);
            for kernel in kernels() {
                // Token by token, two threads spend their time waiting for each other.
                for (threads, chunks) in [(1, &[1, 7, 64, 512, 520][..]), (2, &[7, 64, 520])] {
                    let mut executor = parity(folder, precision, kernel, threads);
                    for &chunk in chunks {
                        let trace = run(&mut executor, &tokens, &[chunk], 0);
                        assert!(
                            trace == reference,
                            "{folder} {precision:?} {kernel} {threads} threads, chunks of {chunk}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_neighbour_in_the_batch_changes_no_bit() {
    let (tokens, other) = (sample(200), sample(75));
    for folder in FOLDERS {
        for precision in [Precision::Int8, Precision::F32] {
            for kernel in kernels() {
                let mut executor = parity(folder, precision, kernel, 2);
                let alone = run(&mut executor, &tokens, &[200], 0);
                for chunk in [1, 7, 64] {
                    let beside = run_beside(&mut executor, &tokens, chunk, &other);
                    assert!(beside == alone, "{folder} {precision:?} {kernel}, chunks of {chunk}");
                }
            }
        }
    }
}

#[test]
fn a_restart_at_any_block_boundary_changes_no_bit() {
    let tokens = sample(300);
    for folder in FOLDERS {
        for precision in [Precision::Int8, Precision::F32] {
            let mut executor = parity(folder, precision, Kernel::best(), 2);
            let whole = run(&mut executor, &tokens, &[300], 0);
            for boundary in (PAGE..tokens.len()).step_by(PAGE) {
                let restored = run_restored(&mut executor, &tokens, boundary);
                assert!(restored == whole, "{folder} {precision:?} at {boundary}");
            }
        }
    }
}

/// Tokens and, by folder and precision, what one forward on one thread makes of them.
fn shared_parity() -> &'static (Vec<u32>, Vec<[Trace; 2]>) {
    static SHARED: OnceLock<(Vec<u32>, Vec<[Trace; 2]>)> = OnceLock::new();
    SHARED.get_or_init(|| {
        let tokens = sample(180);
        let whole = |folder: &str, precision| {
            run(&mut parity(folder, precision, Kernel::best(), 1), &tokens, &[180], 0)
        };
        let traces = FOLDERS.map(|folder| [Precision::Int8, Precision::F32].map(|p| whole(folder, p)));
        (tokens.clone(), traces.into())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_split_changes_a_bit(
        chunks in proptest::collection::vec(1usize..90, 1..12),
        threads in 1usize..3,
        kernel in proptest::sample::select(kernels().collect::<Vec<_>>()),
        exact in proptest::bool::ANY,
        folder in 0..FOLDERS.len(),
    ) {
        let (tokens, references) = shared_parity();
        let precision = if exact { Precision::F32 } else { Precision::Int8 };
        let trace = run(&mut parity(FOLDERS[folder], precision, kernel, threads), tokens, &chunks, 3);
        prop_assert!(trace == references[folder][usize::from(exact)]);
    }

    #[test]
    fn no_rejected_token_changes_a_bit(
        drafts in proptest::collection::vec((0usize..9, 0usize..9, 0usize..20), 1..12),
        kernel in proptest::sample::select(kernels().collect::<Vec<_>>()),
        exact in proptest::bool::ANY,
        folder in 0..FOLDERS.len(),
    ) {
        prop_assume!(drafts.iter().any(|(right, _, plain)| right + plain > 0));
        let (tokens, references) = shared_parity();
        let precision = if exact { Precision::F32 } else { Precision::Int8 };
        let trace = run_drafted(&mut parity(FOLDERS[folder], precision, kernel, 2), tokens, &drafts);
        prop_assert!(trace == references[folder][usize::from(exact)]);
    }
}

/// The real model, a short prompt: its shapes (9 heads over 3, 64 columns a head, mixed encodings) are not the parity model's.
#[test]
fn smollm2_gives_the_same_bits_by_every_route() {
    let (Some(path), Some(tokens)) = (from_environment("ESCARP_SMOLLM2"), oracle_tokens()) else { return };
    let tokens = &tokens[..70];
    let load = |kernel, threads| {
        let gguf = Gguf::open(Path::new(&path)).unwrap();
        let shape = gguf.shape().unwrap();
        resident(&gguf, shape, cpu(Precision::Int8, kernel, threads))
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
