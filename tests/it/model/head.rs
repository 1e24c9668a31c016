//! The multi-token-prediction head: what it computes, the same bits by every route, and what it refuses.

mod twin;

use std::path::Path;
use std::sync::OnceLock;

use escarp::config::{Config, DrafterKind, Precision};
use escarp::device::cpu::{Cpu, CpuOptions, Kernel};
use escarp::device::{
    DeviceError, Executor, Forward, HeadSpan, LogitRows, PageId, Predicted, SlotId, Span, StateFlow,
};
use escarp::model::{Folder, Resident, load};
use proptest::prelude::*;
use serde_json::Value;

use super::bits::{PAGE, kernels, sample};
use super::draft::Draft;
use super::{config, fixture};

/// Folders a head is added to: plain and packed, of dense layers and of experts.
pub(super) const FOLDERS: [&str; 4] = ["odd-hybrid", "qwen3.5-q4", "odd-moe", "moe-q6"];

/// A parity folder with a head of random numbers.
pub(super) fn folder(name: &str) -> &'static Path {
    static FOLDERS_WRITTEN: OnceLock<Vec<(String, tempfile::TempDir)>> = OnceLock::new();
    let write = |name: &str| {
        let mut draft = Draft::read(&fixture(name));
        draft.add_prediction_head();
        (name.to_owned(), draft.write())
    };
    let written = FOLDERS_WRITTEN.get_or_init(|| FOLDERS.map(write).into());
    written.iter().find(|(known, _)| known == name).map(|(_, folder)| folder.path()).unwrap()
}

/// A configuration that loads the head.
pub(super) fn with_head(path: &Path, precision: Precision) -> Config {
    let mut config = config(path, precision);
    config.speculation.drafter = Some(DrafterKind::Mtp);
    config
}

fn executor(name: &str, precision: Precision, kernel: Kernel, threads: usize) -> Resident<Cpu> {
    let folder = Folder::open(folder(name)).unwrap();
    let device = Cpu::new(CpuOptions { precision, threads, kernel: Some(kernel) }).unwrap();
    let mut executor =
        Resident::load_whole(device, &folder, folder.shape().clone(), "test".into(), PAGE, true).unwrap();
    executor.reserve(40, 8).unwrap();
    executor
}

/// A sequence with its pages and slot.
pub(super) struct Track {
    pages: Vec<PageId>,
    /// Where recurrent state is; the next free one is `slot ^ 1`.
    slot: u32,
    /// Tokens computed.
    len: usize,
}

impl Track {
    /// On pages from number `page` and two slots.
    pub(super) fn new(page: u32, slot: u32) -> Track {
        Track { pages: (page..page + 8).map(PageId).collect(), slot, len: 0 }
    }

    fn span<'a>(&'a self, executor: &dyn Executor, tokens: &'a [u32], revocable: bool) -> Span<'a> {
        let from = (self.len > 0).then_some(SlotId(self.slot));
        let to = SlotId(if revocable { self.slot ^ 1 } else { self.slot });
        Span {
            pages: &self.pages,
            start: self.len,
            tokens,
            positions: None,
            capture: 0,
            state: (executor.facts().slot_bytes > 0).then_some(StateFlow { from, to, revocable }),
            logits: LogitRows::All,
            hidden: true,
        }
    }

    /// Computes tokens.
    fn forward(&mut self, executor: &mut dyn Executor, tokens: &[u32]) -> Forward {
        let given = executor.forward(&[self.span(executor, tokens, false)]).unwrap();
        self.len += tokens.len();
        given
    }

    fn read<'a>(&'a self, start: usize, tokens: &'a [u32], hidden: &'a [f32]) -> HeadSpan<'a> {
        HeadSpan { pages: &self.pages, start, tokens, positions: None, hidden, predict: true }
    }

    /// Has the head read tokens; gives what it makes of the last.
    fn predict(
        &self,
        executor: &mut dyn Executor,
        start: usize,
        tokens: &[u32],
        hidden: &[f32],
    ) -> Predicted {
        executor.predict(&[self.read(start, tokens, hidden)]).unwrap()
    }
}

/// What a sequence came to: logits of the target and the head, and digests of all state.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Spoken {
    /// Of every token from the first on.
    pub(super) target: Vec<f32>,
    /// At places from which the head drafted, by place.
    pub(super) head: Vec<Option<Vec<f32>>>,
    pages: Vec<[u8; 32]>,
    ends: Vec<Option<Vec<u32>>>,
    state: [u8; 32],
}

impl Spoken {
    fn of(executor: &dyn Executor, track: &Track, target: Vec<f32>, head: Vec<Option<Vec<f32>>>) -> Spoken {
        let filled = |block: usize| track.len.saturating_sub(block * PAGE).min(PAGE);
        let pages = track.pages.iter().enumerate().take_while(|(block, _)| filled(*block) > 0);
        let bits = |end: Vec<f32>| end.iter().map(|x| x.to_bits()).collect();
        Spoken {
            target,
            head,
            pages: pages.clone().map(|(block, page)| executor.page_digest(*page, filled(block))).collect(),
            ends: pages
                .filter(|(block, _)| filled(*block) == PAGE)
                .map(|(_, page)| executor.page_end(*page).map(bits))
                .collect(),
            state: executor.slot_digest(SlotId(track.slot)),
        }
    }
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Tokens of the prompt.
const PROMPT: usize = 50;

/// Computes the prompt and then one token after another, each read by the head at once.
pub(super) fn dense(executor: &mut dyn Executor, track: &mut Track, tokens: &[u32]) -> Spoken {
    let columns = executor.facts().hidden;
    let (mut target, mut head) = (Vec::new(), vec![None; tokens.len()]);
    let mut before: Option<Vec<f32>> = None;
    for (place, token) in tokens.iter().enumerate() {
        let given = track.forward(executor, &[*token]);
        assert_eq!(given.hidden.len(), columns);
        target.extend(given.logits);
        if let Some(before) = &before {
            head[place] = Some(track.predict(executor, place, &[*token], before).logits);
        }
        before = Some(given.hidden);
    }
    Spoken::of(executor, track, target, head)
}

/// The same with verify cycles, each of a number of drafted tokens that turn out right and a number that turn out wrong.
pub(super) fn speculate(
    executor: &mut dyn Executor,
    track: &mut Track,
    tokens: &[u32],
    cycles: &[(usize, usize)],
) -> Spoken {
    let (vocab, columns) = (executor.facts().vocab, executor.facts().hidden);
    let mut head = vec![None; tokens.len()];
    let given = track.forward(executor, &tokens[..PROMPT]);
    let mut target = given.logits;
    track.predict(executor, 1, &tokens[1..PROMPT], &given.hidden[..(PROMPT - 1) * columns]);
    let mut before = given.hidden[(PROMPT - 1) * columns..].to_vec();
    for (right, wrong) in cycles.iter().cycle() {
        let start = track.len;
        if start == tokens.len() {
            break;
        }
        let right = (*right).min(tokens.len() - start - 1);
        let mut chain = tokens[start..=start + right].to_vec();
        chain.extend((0..*wrong).map(|i| (tokens[start] + 1 + i as u32) % vocab as u32));
        // The head drafts each token from the one before; what it says does not matter here.
        let mut hidden = before.clone();
        for (depth, token) in chain[..(right + wrong).max(1)].iter().enumerate() {
            let given = track.predict(executor, start + depth, &[*token], &hidden);
            if depth == 0 {
                head[start] = Some(given.logits);
            }
            hidden = given.hidden;
        }
        let span = track.span(executor, &chain, true);
        let state = span.state;
        let given = executor.forward(&[span]).unwrap();
        target.extend(&given.logits[..(right + 1) * vocab]);
        if let Some(flow) = state.filter(|_| *wrong > 0) {
            executor.rewind(flow, right + 1).unwrap();
        }
        track.slot ^= 1;
        track.len += right + 1;
        if right > 0 {
            let hidden = &given.hidden[..right * columns];
            track.predict(executor, start + 1, &chain[1..=right], hidden);
        }
        before = given.hidden[right * columns..(right + 1) * columns].to_vec();
    }
    Spoken::of(executor, track, target, head)
}

fn agree(got: &Spoken, whole: &Spoken, what: &str) {
    assert!(same_bits(&got.target, &whole.target), "{what}: other logits");
    for (place, (got, whole)) in got.head.iter().zip(&whole.head).enumerate() {
        let (Some(got), Some(whole)) = (got, whole) else { continue };
        assert!(same_bits(got, whole), "{what}: other logits of the head at {place}");
    }
    assert!(got.pages == whole.pages, "{what}: other pages");
    assert!(got.ends == whole.ends, "{what}: other ends of pages");
    assert!(got.state == whole.state, "{what}: another recurrent state");
}

/// The greatest logits that the head was trained to give at one to three tokens' distance, on the weights as exported.
pub(super) fn is_the_network_that_was_trained(config: &Config, bound: f64) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/fixtures/bundled-head.json");
    let reference: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let tokens = super::ids(&reference["tokens"]);
    let mut loaded = load(config).unwrap();
    let executor = &mut *loaded.executor;
    let (vocab, columns) = (executor.facts().vocab, executor.facts().hidden);
    executor.reserve(8, 1).unwrap();
    let mut track = Track::new(0, 0);
    let hidden: Vec<f32> =
        tokens.chunks(100).flat_map(|tokens| track.forward(executor, tokens).hidden).collect();
    // By depth and row.
    let mut rows = vec![vec![Vec::new(); tokens.len()]; 3];
    for first in 0..tokens.len() - 1 {
        let mut before = hidden[first * columns..(first + 1) * columns].to_vec();
        for (depth, rows) in rows.iter_mut().enumerate() {
            let Some(token) = tokens.get(first + depth + 1) else { break };
            let given = track.predict(executor, first + depth + 1, &[*token], &before);
            assert_eq!((given.logits.len(), given.hidden.len()), (vocab, columns));
            rows[first + depth] = given.logits;
            before = given.hidden;
        }
    }
    for (depth, expected) in reference["depths"].as_array().unwrap().iter().enumerate() {
        let expected = expected.as_array().unwrap();
        assert!(expected.len() > 20);
        let mut worst = 0f64;
        for row in expected {
            let got = &rows[depth][row[0].as_u64().unwrap() as usize];
            for pair in row[1].as_array().unwrap() {
                let id = pair[0].as_u64().unwrap() as usize;
                worst = worst.max((f64::from(got[id]) - pair[1].as_f64().unwrap()).abs());
            }
        }
        println!("depth {}: off by {worst:.1e}", depth + 1);
        assert!(worst < bound, "depth {}: off by {worst}", depth + 1);
    }
}

#[test]
fn the_bundled_head_is_the_network_that_was_trained() {
    for (precision, bound) in [(Precision::F32, 5e-4), (Precision::Int8, 0.02)] {
        is_the_network_that_was_trained(&with_head(Path::new("scarp"), precision), bound);
    }
}

#[test]
fn chains_of_drafts_are_what_the_formulas_give() {
    let draft = Draft::read(folder("odd-hybrid"));
    let twin = twin::Twin::new(draft);
    let tokens = sample(30);
    let mut executor = executor("odd-hybrid", Precision::F32, Kernel::best(), 1);
    let columns = executor.facts().hidden;
    let mut track = Track::new(3, 0);
    let hidden = track.forward(&mut executor, &tokens).hidden;
    let row = |place: usize| hidden[place * columns..(place + 1) * columns].to_vec();
    for first in 1..27 {
        let mut entries: Vec<twin::Entry> = (1..=first)
            .map(|place| twin::Entry { place, token: tokens[place], hidden: row(place - 1) })
            .collect();
        for depth in 0..3 {
            let last = entries.last().unwrap();
            let given = track.predict(&mut executor, last.place, &[last.token], &last.hidden);
            let (expected, own) = twin.read(&entries);
            for (got, expected, what) in
                [(&given.logits, expected, "logits"), (&given.hidden, own, "hidden states")]
            {
                let scale = expected.iter().map(|x| x.abs()).fold(0.0, f64::max);
                let worst =
                    got.iter().zip(&expected).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
                assert!(
                    got.len() == expected.len() && worst < 2e-4 * scale,
                    "{what} at {first}, {depth}: {worst} of {scale}"
                );
            }
            let place = first + depth + 1;
            entries.push(twin::Entry { place, token: tokens[place], hidden: given.hidden });
        }
    }
}

#[test]
fn the_head_gives_the_same_bits_by_every_route() {
    let tokens = sample(150);
    for name in FOLDERS {
        for precision in [Precision::Int8, Precision::F32] {
            let mut first = executor(name, precision, Kernel::Portable, 1);
            let columns = first.facts().hidden;
            let whole = dense(&mut first, &mut Track::new(0, 0), &tokens);
            for kernel in kernels() {
                for (threads, chunk) in [(1, 7), (2, 64)] {
                    let mut executor = executor(name, precision, kernel, threads);
                    // Beside another sequence, whose tokens come first and are others; and neither begins in fresh pages.
                    let (mut other, mut track) = (Track::new(20, 4), Track::new(5, 0));
                    let company = sample(151);
                    for (track, seed) in [(Track::new(5, 0), 3), (Track::new(20, 4), 9)] {
                        let mut track = track;
                        let stale: Vec<u32> = tokens.iter().map(|token| (token + seed) % 250).collect();
                        let hidden = track.forward(&mut executor, &stale).hidden;
                        track.predict(&mut executor, 1, &stale[1..], &hidden[..149 * columns]);
                    }
                    let hidden = track.forward(&mut executor, &tokens);
                    let besides = other.forward(&mut executor, &company[1..]).hidden;
                    let mut head = vec![None; tokens.len()];
                    for start in (1..tokens.len()).step_by(chunk) {
                        let end = tokens.len().min(start + chunk);
                        let places = (start - 1) * columns..(end - 1) * columns;
                        let mine = track.read(start, &tokens[start..end], &hidden.hidden[places.clone()]);
                        let its = other.read(start, &company[1 + start..1 + end], &besides[places]);
                        // Who is not to predict takes no row of what is given.
                        let its = HeadSpan { predict: start % 2 == 0, ..its };
                        let given = executor.predict(&[its, mine]).unwrap().logits;
                        let vocab = executor.facts().vocab;
                        head[end - 1] = Some(given[given.len() - vocab..].to_vec());
                    }
                    let got = Spoken::of(&executor, &track, hidden.logits, head);
                    agree(&got, &whole, &format!("{name} {precision:?} {kernel} {threads} {chunk}"));
                }
            }
        }
    }
}

#[test]
fn an_exported_page_brings_its_entries_and_its_end() {
    let tokens = sample(150);
    for name in ["odd-hybrid", "moe-q6"] {
        let mut executors = [0, 1].map(|_| executor(name, Precision::Int8, Kernel::best(), 2));
        let [from, to] = &mut executors;
        let mut track = Track::new(0, 0);
        let whole = dense(from, &mut track, &tokens);
        for block in 0..2 {
            let bytes = from.export_page(track.pages[block]).unwrap();
            assert_eq!(bytes.len(), from.facts().page_bytes, "{name}");
            to.import_page(PageId(30 + block as u32), &bytes).unwrap();
        }
        // The snapshot at the boundary, from a run that ends there.
        let mut short = Track::new(10, 2);
        dense(from, &mut short, &tokens[..2 * PAGE]);
        to.import_slot(SlotId(0), 2 * PAGE, &from.export_slot(SlotId(2)).unwrap()).unwrap();
        let mut restored = Track::new(30, 0);
        restored.len = 2 * PAGE;
        let columns = to.facts().hidden;
        let given = restored.forward(to, &tokens[2 * PAGE..]);
        let mut hidden = to.page_end(PageId(31)).unwrap();
        hidden.extend(&given.hidden[..given.hidden.len() - columns]);
        let last = restored.predict(to, 2 * PAGE, &tokens[2 * PAGE..], &hidden);
        assert!(same_bits(&last.logits, whole.head.last().unwrap().as_ref().unwrap()), "{name}");
        let got = Spoken::of(to, &restored, whole.target.clone(), Vec::new());
        agree(&got, &Spoken { head: Vec::new(), ..whole }, name);
        // Bytes that say of a page what cannot be.
        let mut bytes = from.export_page(track.pages[0]).unwrap();
        let notes = bytes.len() - 4 * columns - 8;
        bytes[notes + 1] = 9;
        assert!(matches!(to.import_page(PageId(30), &bytes), Err(DeviceError::Contract(_))), "{name}");
    }
}

#[test]
fn what_nobody_asked_for_costs_nothing_and_changes_nothing() {
    let tokens = sample(100);
    for name in FOLDERS {
        let bare = Folder::open(folder(name)).unwrap();
        let device =
            || Cpu::new(CpuOptions { precision: Precision::Int8, threads: 1, kernel: None }).unwrap();
        let mut plain = Resident::load(device(), &bare, bare.shape().clone(), "test".into(), PAGE).unwrap();
        plain.reserve(40, 8).unwrap();
        let facts = plain.facts().clone();
        assert_eq!((facts.head_layers, facts.hidden), (0, 0));
        let mut headed = executor(name, Precision::Int8, Kernel::best(), 1);
        assert_ne!(headed.facts().digest, facts.digest, "pages with a head's entries are other pages");
        assert_eq!(headed.facts().attention_layers, facts.attention_layers);
        assert!(headed.facts().page_bytes > facts.page_bytes);
        let run = |executor: &mut dyn Executor, hidden| {
            let track = Track::new(2, 0);
            let span = Span { hidden, logits: LogitRows::Last, ..track.span(executor, &tokens, false) };
            let given = executor.forward(&[span]).unwrap();
            let pages = [2, 3].map(|page| executor.page_digest(PageId(page), 36));
            (given.logits, given.hidden.len(), pages, executor.slot_digest(SlotId(0)))
        };
        let expected = run(&mut plain, false);
        assert_eq!(expected.1, 0);
        assert_eq!(run(&mut headed, false), expected, "{name}");
        let columns = headed.facts().hidden;
        assert_eq!(run(&mut headed, true), (expected.0, 100 * columns, expected.2, expected.3), "{name}");
        // Without a head nobody reads hidden states.
        let track = Track::new(0, 0);
        assert!(plain.forward(&[track.span(&plain, &tokens, false)]).is_err());
        assert!(plain.predict(&[track.read(1, &tokens[..1], &[0.0; 64])]).is_err());
    }
}

#[test]
fn a_span_of_the_head_that_breaks_the_contract_is_refused() {
    let tokens = sample(100);
    let mut executor = executor("odd-hybrid", Precision::F32, Kernel::best(), 1);
    let mut track = Track::new(0, 0);
    let columns = executor.facts().hidden;
    let hidden = track.forward(&mut executor, &tokens).hidden;
    let of = |from: usize, to: usize| &hidden[(from - 1) * columns..(to - 1) * columns];
    let mut outcome = |start: usize, tokens: &[u32], hidden: &[f32]| match executor
        .predict(&[track.read(start, tokens, hidden)])
    {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    };
    assert!(outcome(0, &tokens[..1], of(1, 2)).contains("place 0"));
    assert!(outcome(3, &tokens[3..4], of(3, 4)).contains("place 1 has no entry"));
    assert!(outcome(1, &tokens[1..3], of(1, 2)).contains("hidden states"));
    assert!(outcome(1, &[], &[]).contains("no tokens"));
    assert!(outcome(1, &[100_000], of(1, 2)).contains("vocabulary"));
    assert!(outcome(8 * PAGE, &tokens[..1], of(1, 2)).contains("pages"));
    assert_eq!(outcome(1, &tokens[1..70], of(1, 70)), "");
    assert!(outcome(71, &tokens[71..72], of(71, 72)).contains("place 70 has no entry"));
    assert_eq!(outcome(66, &tokens[66..68], of(66, 68)), "");
    assert!(outcome(69, &tokens[69..70], of(69, 70)).contains("place 68 has no entry"), "rewritten, shorter");
}

/// A head that is not there or not of one layer; a draft model that is not there or reads other tokens.
#[test]
fn a_drafter_that_cannot_be_had_is_told_with_its_remedy() {
    let refused = |config: &Config, parts: &[&str]| {
        let error = load(config).map(|_| ()).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "`{part}` is not in: {error}");
        }
    };
    let path = fixture("qwen3.5-q4");
    let named = path.to_string_lossy();
    refused(
        &with_head(&path, Precision::Int8),
        &[&named, "`speculation.drafter` is \"mtp\"", "`mtp.fc.weight` is missing", "\"ngram\""],
    );
    if let Some(model) = super::from_environment("ESCARP_SMOLLM2") {
        refused(&with_head(&model, Precision::Int8), &["no multi-token-prediction head", "\"ngram\""]);
    }
    let mut two = Draft::read(folder("odd-hybrid"));
    for name in two.tensors.keys().cloned().collect::<Vec<_>>() {
        if name.starts_with("mtp.layers.0.") {
            let tensor = two.tensors[&name].clone();
            two.put(name.replace("layers.0", "layers.1"), tensor);
        }
    }
    refused(&with_head(two.write().path(), Precision::Int8), &["has 2 layers", "one layer"]);
    let change = |change: &dyn Fn(&mut Draft)| {
        let mut draft = Draft::read(folder("odd-hybrid"));
        change(&mut draft);
        draft.write()
    };
    let short = change(&|draft| {
        let fc = super::draft::Stored::f32(&[64, 64], &[0.5; 64 * 64]);
        draft.put("mtp.fc.weight", fc);
    });
    refused(&with_head(short.path(), Precision::Int8), &["`mtp.fc.weight`", "64", "128"]);
    let missing = change(&|draft| drop(draft.take("mtp.layers.0.self_attn.o_proj.weight")));
    refused(
        &with_head(missing.path(), Precision::Int8),
        &["`mtp.layers.0.self_attn.o_proj.weight` is missing"],
    );

    let drafting = |target: &Path, draft: Option<&Path>| {
        let mut config = config(target, Precision::Int8);
        config.specprefill.enabled = Some(false);
        config.speculation.drafter = Some(DrafterKind::Draft);
        config.model.draft = draft.map(Path::to_owned);
        config
    };
    refused(&drafting(&path, None), &["`speculation.drafter` is \"draft\"", "`model.draft`"]);
    refused(&drafting(Path::new("scarp"), Some(Path::new("/nowhere"))), &["`model.draft`", "/nowhere"]);
    refused(
        &drafting(Path::new("scarp"), Some(&path)),
        &["`model.draft`", &named, "its tokenizer is not that of scarp", "\"mtp\""],
    );
    let loaded = load(&drafting(Path::new("scarp"), None)).unwrap();
    let draft = loaded.draft.unwrap();
    assert_eq!((draft.name.as_str(), draft.executor.facts().vocab), ("talus", 6144));
    assert!(loaded.scorer.is_none());
    assert!(load(&config(Path::new("scarp"), Precision::Int8)).unwrap().draft.is_none());
}

/// Distinct experts of a forward, against what equal and independent routing would touch: `E·(1 - ((E - K)/E)^t)`.
#[test]
fn a_forward_tells_how_many_experts_it_touched() {
    for (name, experts, per_token, layers) in [("moe-q6", 8.0, 2.0, 4.0), ("odd-moe", 5.0, 3.0, 4.0)] {
        let mut executor = executor(name, Precision::Int8, Kernel::best(), 1);
        let mut mean = |tokens: usize| {
            let rounds = 24;
            let touched = (0..rounds).map(|round| {
                let tokens: Vec<u32> = sample(400)[round * 16..].iter().copied().take(tokens).collect();
                let given = Track::new(0, 0).forward(&mut executor, &tokens).experts.unwrap();
                assert_eq!(given.of_one_token as f64, per_token * layers);
                assert_eq!(given.experts as f64, experts * layers);
                assert!(given.touched <= given.experts && given.touched >= given.of_one_token);
                given.touched as f64
            });
            touched.sum::<f64>() / rounds as f64 / layers
        };
        assert_eq!(mean(1), per_token);
        let mut before = per_token;
        for tokens in [2, 4, 8, 16] {
            let even = experts * (1.0 - (1.0 - per_token / experts).powi(tokens as i32));
            let touched = mean(tokens);
            println!("{name}, {tokens} tokens: {touched:.2} of {experts}, {even:.2} where routing is even");
            assert!(touched >= before && touched < even * 1.15, "{name}, {tokens}: {touched}, even {even}");
            before = touched;
        }
        let none = LogitRows::None;
        let track = Track::new(0, 0);
        let tokens = sample(3);
        let span = Span { logits: none, hidden: false, ..track.span(&executor, &tokens, false) };
        let given = executor.forward(&[span]).unwrap().experts.unwrap();
        assert_eq!(given.experts as f64, experts * (layers - 1.0), "the last layer's serve logits alone");
    }
    let mut dense = executor("odd-hybrid", Precision::Int8, Kernel::best(), 1);
    assert_eq!(Track::new(0, 0).forward(&mut dense, &sample(3)).experts, None);
}

/// Tokens and, by folder and precision, what token after token makes of them.
fn references() -> &'static (Vec<u32>, Vec<[Spoken; 2]>) {
    static REFERENCES: OnceLock<(Vec<u32>, Vec<[Spoken; 2]>)> = OnceLock::new();
    REFERENCES.get_or_init(|| {
        let tokens = sample(210);
        let whole = |name: &str, precision| {
            dense(&mut executor(name, precision, Kernel::best(), 1), &mut Track::new(0, 0), &tokens)
        };
        let all =
            FOLDERS.map(|name| [Precision::Int8, Precision::F32].map(|precision| whole(name, precision)));
        (tokens.clone(), all.into())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Cycles of 1 to 17 tokens, over page boundaries, in both slots by turns, the head's own entries written and written again.
    #[test]
    fn after_any_accepted_drafts_state_is_that_of_one_token_after_another(
        cycles in proptest::collection::vec((0usize..9, 0usize..9), 1..12),
        kernel in proptest::sample::select(kernels().collect::<Vec<_>>()),
        exact in proptest::bool::ANY,
        name in 0..FOLDERS.len(),
    ) {
        let (tokens, references) = references();
        let precision = if exact { Precision::F32 } else { Precision::Int8 };
        let mut executor = executor(FOLDERS[name], precision, kernel, 2);
        let got = speculate(&mut executor, &mut Track::new(7, 2), tokens, &cycles);
        agree(&got, &references[name][usize::from(exact)], &format!("{} {precision:?} {kernel} {cycles:?}", FOLDERS[name]));
    }
}
