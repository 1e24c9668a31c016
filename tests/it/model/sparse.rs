//! Tokens that are skipped, queries that are captured, and the models that score.

use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use escarp::config::{Config, Precision, ScorerChoice};
use escarp::device::{
    DeviceError, Executor, Forward, KeyWeights, LogitRows, PageId, Queries, SlotId, Span, StateFlow,
};
use escarp::event::Identity;
use escarp::model::{bundled, load};

use super::bits::{PAGE, sample};
use super::{config, fixture};

/// Attention alone, with norms of heads, recurrent layers, three heads over one, five layers of experts.
pub(super) const FOLDERS: [&str; 5] = ["llama", "qwen3-q4", "qwen3.5-q4", "odd-hybrid", "odd-moe"];

/// On the `cpu` device.
pub(super) fn executor(path: &Path, precision: Precision) -> Box<dyn Executor> {
    let mut config = config(path, precision);
    config.cache.block_tokens = PAGE;
    config.specprefill.enabled = Some(false);
    let mut executor = load(&config).unwrap().executor;
    executor.reserve(32, 6).unwrap();
    executor
}

/// One sequence.
pub(super) struct Track {
    pub(super) pages: Vec<PageId>,
    /// Tokens computed.
    places: usize,
    slot: SlotId,
}

impl Track {
    pub(super) fn new(first_page: u32, slot: u32) -> Track {
        Track { pages: (first_page..first_page + 10).map(PageId).collect(), places: 0, slot: SlotId(slot) }
    }

    /// On every `apart`th page.
    pub(super) fn spread(apart: u32) -> Track {
        Track { pages: (0..10).map(|n| PageId(n * apart)).collect(), places: 0, slot: SlotId(0) }
    }

    fn span<'a>(
        &'a self,
        executor: &dyn Executor,
        tokens: &'a [u32],
        positions: Option<&'a [u32]>,
        capture: usize,
        logits: LogitRows,
    ) -> Span<'a> {
        let flow =
            StateFlow { from: (self.places > 0).then_some(self.slot), to: self.slot, revocable: false };
        Span {
            pages: &self.pages,
            start: self.places,
            tokens,
            positions,
            capture,
            hidden: false,
            state: (executor.facts().slot_bytes > 0).then_some(flow),
            logits,
        }
    }

    /// Computes tokens at positions; gives the last one's logits and the queries of the last `capture`.
    pub(super) fn run(
        &mut self,
        executor: &mut dyn Executor,
        tokens: &[u32],
        positions: Option<&[u32]>,
        capture: usize,
    ) -> Forward {
        let span = self.span(executor, tokens, positions, capture, LogitRows::Last);
        let forward = executor.forward(&[span]).unwrap();
        self.places += tokens.len();
        forward
    }

    fn digests(&self, executor: &dyn Executor) -> Vec<[u8; 32]> {
        let blocks = self.pages.iter().take(self.places.div_ceil(PAGE)).enumerate();
        let digest = |(index, page): (usize, &PageId)| {
            executor.page_digest(*page, (self.places - index * PAGE).min(PAGE))
        };
        blocks.map(digest).chain([executor.slot_digest(self.slot)]).collect()
    }
}

/// Whether two runs gave the same: bits where they are promised, and closeness elsewhere.
pub(super) fn assert_same(executor: &dyn Executor, got: &[f32], expected: &[f32], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    if executor.facts().identity == Identity::Bitwise {
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(bits(got) == bits(expected), "{what}: other bits");
        return;
    }
    let norm: f64 = expected.iter().map(|x| f64::from(*x).powi(2)).sum();
    let off: f64 = got.iter().zip(expected).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
    let error = (off / norm).sqrt();
    assert!(error < 5e-3, "{what}: {error}");
}

/// Runs `check` on every checkpoint and precision of the `cpu` device.
fn everywhere(check: impl Fn(&mut dyn Executor, &str)) {
    for folder in FOLDERS {
        for precision in [Precision::Int8, Precision::F32] {
            check(&mut *executor(&fixture(folder), precision), &format!("{folder} {precision:?}"));
        }
    }
    for name in bundled() {
        check(&mut *executor(Path::new(name), Precision::Int8), name);
    }
}

#[test]
fn a_run_that_keeps_everything_is_the_dense_run() {
    everywhere(keeps_everything);
}

pub(super) fn keeps_everything(executor: &mut dyn Executor, what: &str) {
    let tokens = sample(200);
    let mut dense = Track::new(0, 0);
    let expected = dense.run(executor, &tokens, None, 0).logits;
    let mut kept = Track::new(10, 1);
    let mut got = Vec::new();
    for (n, chunk) in [0..90, 90..91, 91..200].into_iter().enumerate() {
        let positions: Vec<u32> = (chunk.start as u32..chunk.end as u32).collect();
        // The second of three says nothing, which is the same.
        let said = (n != 1).then_some(&positions[..]);
        got = kept.run(executor, &tokens[chunk], said, 0).logits;
    }
    assert_same(executor, &got, &expected, what);
    if executor.facts().identity == Identity::Bitwise {
        assert_eq!(kept.digests(executor), dense.digests(executor), "{what}: other state");
    }
}

/// Positions that a run with two gaps keeps of 200.
fn kept() -> Vec<u32> {
    (0..32).chain(64..96).chain(150..200).collect()
}

fn at(tokens: &[u32], positions: &[u32]) -> Vec<u32> {
    positions.iter().map(|position| tokens[*position as usize]).collect()
}

#[test]
fn a_sparse_run_is_the_same_however_it_is_cut_and_decodes_at_the_prompt_s_length() {
    everywhere(cuts_and_decodes);
}

pub(super) fn cuts_and_decodes(executor: &mut dyn Executor, what: &str) {
    let prompt = sample(200);
    // The kickoff token and two decoded ones behind it.
    let positions: Vec<u32> = kept().into_iter().chain([200, 201]).collect();
    let tokens: Vec<u32> = at(&prompt, &kept()).into_iter().chain([7, 11]).collect();
    let n = tokens.len();
    let mut whole = Track::new(0, 0);
    let expected = whole.run(executor, &tokens, Some(&positions), 0).logits;
    let mut cut = Track::new(10, 1);
    let mut got = Vec::new();
    for range in [0..40, 40..41, 41..n - 3, n - 3..n - 2, n - 2..n - 1, n - 1..n] {
        got = cut.run(executor, &tokens[range.clone()], Some(&positions[range]), 0).logits;
    }
    assert_same(executor, &got, &expected, what);
    if executor.facts().identity == Identity::Bitwise {
        assert_eq!(cut.digests(executor), whole.digests(executor), "{what}: other state");
    }
    // Where the last tokens stand matters.
    let mut near: Vec<u32> = positions.clone();
    near[n - 1] = 2000;
    let far = Track::new(20, 2).run(executor, &tokens, Some(&near), 0).logits;
    assert_ne!(far, expected, "{what}");
}

#[test]
fn queries_are_captured_by_every_route_and_change_nothing() {
    everywhere(captures);
}

pub(super) fn captures(executor: &mut dyn Executor, what: &str) {
    let tokens = sample(200);
    let mut plain = Track::new(0, 0);
    let none = plain.run(executor, &tokens, None, 0);
    assert_eq!(none.queries, Queries::default(), "{what}");
    let mut taking = Track::new(10, 1);
    let whole = taking.run(executor, &tokens, None, 8);
    assert_same(executor, &whole.logits, &none.logits, what);
    if executor.facts().identity == Identity::Bitwise {
        assert_eq!(taking.digests(executor), plain.digests(executor), "{what}: other state");
    }
    let facts = executor.facts().clone();
    assert_eq!((whole.queries.tokens, whole.queries.layers), (8, facts.attention_layers as usize), "{what}");

    // Over two forwards, without logits; then token by token.
    for cuts in [vec![0..195, 195..200], vec![0..192, 192..193, 193..194, 194..200]] {
        let mut track = Track::new(20, 2);
        let mut queries = Queries::default();
        for range in cuts {
            let capture = usize::saturating_sub(range.end, range.start.max(192));
            let span = track.span(executor, &tokens[range.clone()], None, capture, LogitRows::None);
            let forward = executor.forward(&[span]).unwrap();
            assert!(forward.logits.is_empty());
            queries.append(forward.queries);
            track.places = range.end;
        }
        assert_eq!((queries.tokens, queries.heads), (8, whole.queries.heads), "{what}");
        assert_same(executor, &queries.values, &whole.queries.values, what);
    }

    // Beside two others, of which one captures too.
    let [mut first, mut second, third] =
        [(0, 0), (10, 1), (20, 2)].map(|(page, slot)| Track::new(page, slot));
    first.run(executor, &tokens[..192], None, 0);
    second.run(executor, &tokens[..50], None, 0);
    let spans = [
        third.span(executor, &tokens[..30], None, 3, LogitRows::None),
        second.span(executor, &tokens[50..60], None, 0, LogitRows::Last),
        first.span(executor, &tokens[192..], None, 8, LogitRows::Last),
    ];
    let together = executor.forward(&spans).unwrap().queries;
    assert_eq!(together.tokens, 11, "{what}");
    let each = whole.queries.values.len() / 8;
    assert_same(executor, &together.values[3 * each..], &whole.queries.values, what);
    let alone = Track::new(20, 2).run(executor, &tokens[..30], None, 3).queries;
    assert_same(executor, &together.values[..3 * each], &alone.values, what);
}

/// Keys of a sequence, `[attention layers, places, kv_heads, head_dim]`, read out of exported pages of the `cpu` device.
fn stored_keys(executor: &dyn Executor, track: &Track, kv_heads: usize, head_dim: usize) -> Vec<Vec<f32>> {
    const TILE: usize = 64;
    let layers = executor.facts().attention_layers as usize;
    let half = executor.facts().precision == "int8";
    let stride = head_dim.next_multiple_of(16);
    let mut keys = vec![Vec::new(); layers];
    for (block, page) in track.pages.iter().enumerate().take(track.places.div_ceil(PAGE)) {
        let bytes = executor.export_page(*page).unwrap();
        let number = |index: usize| match half {
            true => half::f16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]).to_f32(),
            false => f32::from_le_bytes(bytes[4 * index..4 * index + 4].try_into().unwrap()),
        };
        for (layer, keys) in keys.iter_mut().enumerate() {
            for offset in 0..PAGE.min(track.places - block * PAGE) {
                for head in 0..kv_heads {
                    let start = (layer * kv_heads + head) * PAGE * (head_dim + stride);
                    let tile = start + offset / TILE * TILE * head_dim;
                    keys.extend((0..head_dim).map(|column| number(tile + column * TILE + offset % TILE)));
                }
            }
        }
    }
    keys
}

/// Key/value heads, and columns of a head.
fn heads_of(path: &Path) -> (usize, usize) {
    let text = match bundled().find(|name| path == Path::new(name)) {
        Some(name) => {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/models").join(name);
            std::fs::read_to_string(root.join("config.json")).unwrap()
        }
        None => std::fs::read_to_string(path.join("config.json")).unwrap(),
    };
    let config: serde_json::Value = serde_json::from_str(&text).unwrap();
    let text = config.get("text_config").unwrap_or(&config);
    let number = |key: &str| text[key].as_u64().unwrap() as usize;
    (number("num_key_value_heads"), number("head_dim"))
}

#[test]
fn captured_queries_on_stored_keys_are_softmax_weights() {
    let paths = FOLDERS.map(fixture).into_iter().chain(bundled().map(Into::into));
    for path in paths {
        for precision in [Precision::Int8, Precision::F32] {
            let mut executor = executor(&path, precision);
            let (kv_heads, head_dim) = heads_of(&path);
            let mut track = Track::spread(3);
            let tokens = sample(200);
            let queries = track.run(&mut *executor, &tokens, None, 5).queries;
            let keys = stored_keys(&*executor, &track, kv_heads, head_dim);
            for window in [0..200, 37..163] {
                let given = executor.key_weights(&track.pages, window.clone(), &queries).unwrap();
                let expected = weights(&queries, &keys, window, kv_heads, head_dim);
                let worst = given.weights.iter().zip(&expected);
                let worst = worst.map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
                assert!(worst < 1e-5, "{} {precision:?}: {worst}", path.display());
            }
        }
    }
}

/// In f64, from numbers alone.
fn weights(
    queries: &Queries,
    keys: &[Vec<f32>],
    window: Range<usize>,
    kv_heads: usize,
    head_dim: usize,
) -> Vec<f64> {
    let Queries { layers, heads, .. } = *queries;
    let scale = 1.0 / (head_dim as f64).sqrt();
    let mut out = Vec::new();
    for (row, query) in queries.values.chunks_exact(head_dim).enumerate() {
        let (layer, head) = (row / heads % layers, row % heads);
        let score = |place: usize| {
            let at = (place * kv_heads + head / (heads / kv_heads)) * head_dim;
            let key = &keys[layer][at..at + head_dim];
            query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() * scale
        };
        let scores: Vec<f64> = window.clone().map(score).collect();
        let greatest = scores.iter().copied().fold(f64::MIN, f64::max);
        let total: f64 = scores.iter().map(|score| (score - greatest).exp()).sum();
        out.extend(scores.iter().map(|score| (score - greatest).exp() / total));
    }
    out
}

/// A model whose first layer attends: there, what is stored of a token hangs on the token and its position alone.
#[test]
fn layer_0_keys_of_kept_tokens_are_the_dense_ones() {
    for folder in ["llama", "qwen3-q4"] {
        for precision in [Precision::Int8, Precision::F32] {
            let path = fixture(folder);
            let mut executor = executor(&path, precision);
            let (kv_heads, head_dim) = heads_of(&path);
            let tokens = sample(200);
            let (mut dense, mut sparse) = (Track::new(0, 0), Track::new(10, 1));
            dense.run(&mut *executor, &tokens, None, 0);
            sparse.run(&mut *executor, &at(&tokens, &kept()), Some(&kept()), 0);
            let [all, few] =
                [&dense, &sparse].map(|track| stored_keys(&*executor, track, kv_heads, head_dim));
            let columns = kv_heads * head_dim;
            let of = |keys: &[f32], place: usize| keys[place * columns..][..columns].to_vec();
            for (place, position) in kept().into_iter().enumerate() {
                assert_eq!(
                    of(&few[0], place),
                    of(&all[0], position as usize),
                    "{folder} {precision:?} {position}"
                );
            }
            assert_ne!(
                of(&few[1], 90),
                of(&all[1], kept()[90] as usize),
                "{folder}: layer 1 saw what was skipped"
            );

            // At other positions it has other keys.
            let mut shifted = Track::new(20, 2);
            let positions: Vec<u32> = (1..201).collect();
            shifted.run(&mut *executor, &tokens, Some(&positions), 0);
            let turned = stored_keys(&*executor, &shifted, kv_heads, head_dim);
            assert_ne!(of(&turned[0], 5), of(&all[0], 5), "{folder} {precision:?}");
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let mut executor = executor(&fixture("qwen3.5-q4"), Precision::Int8);
    let tokens = sample(64);
    let mut track = Track::new(0, 0);
    let queries = track.run(&mut *executor, &tokens, None, 2).queries;
    let held = track.digests(&*executor);
    let context = executor.facts().context_tokens as u32;
    let told = |result: Result<_, DeviceError>| match result {
        Err(DeviceError::Contract(told)) => told,
        other => panic!("{other:?}"),
    };
    let next = [1, 2, 3];
    for (positions, expected) in [
        (&[64, 65][..], "2 positions for 3 tokens"),
        (&[64, 66, 66], "must ascend"),
        (&[70, 69, 71], "must ascend"),
        (&[63, 64, 65], "position 63 of a token with 64 before it"),
        (&[64, 65, context], "beyond the context"),
    ] {
        let span = track.span(&*executor, &next, Some(positions), 0, LogitRows::None);
        let refused = told(executor.forward(&[span]));
        assert!(refused.contains(expected), "{positions:?}: {refused}");
    }
    let span = track.span(&*executor, &next, None, 4, LogitRows::None);
    assert!(told(executor.forward(&[span])).contains("queries of 4 tokens of a span of 3"));

    let told = |result: Result<KeyWeights, DeviceError>| {
        told(result.map(|_| Forward {
            logits: Vec::new(),
            queries: Queries::default(),
            hidden: Vec::new(),
            experts: None,
            compute: escarp::event::Nanos(0),
        }))
    };
    let pages = &track.pages;
    assert!(told(executor.key_weights(pages, 5..5, &queries)).contains("no keys"));
    assert!(told(executor.key_weights(pages, 0..641, &queries)).contains("0..641"));
    assert!(told(executor.key_weights(&[PageId(99)], 0..1, &queries)).contains("page 99"));
    assert!(told(executor.key_weights(pages, 0..9, &Queries::default())).contains("no queries"));
    let foreign = Queries { heads: queries.heads + 1, ..queries.clone() };
    assert!(told(executor.key_weights(pages, 0..9, &foreign)).contains("not this model's"));
    let short = Queries { values: queries.values[1..].to_vec(), ..queries.clone() };
    assert!(told(executor.key_weights(pages, 0..9, &short)).contains("not this model's"));
    executor.key_weights(pages, 0..64, &queries).unwrap();
    assert_eq!(track.digests(&*executor), held);
}

fn scoring(path: &Path, set: impl FnOnce(&mut Config)) -> Config {
    let mut config = config(path, Precision::Int8);
    config.cache.block_tokens = PAGE;
    set(&mut config);
    config
}

#[test]
fn the_bundled_draft_scores_for_the_bundled_model() {
    let loaded = load(&scoring(Path::new("scarp"), |_| ())).unwrap();
    let scorer = loaded.scorer.unwrap();
    assert_eq!((scorer.name.as_str(), scorer.decodes), ("talus", true));
    let (target, scorer) = (loaded.executor.facts(), scorer.executor.facts());
    assert_ne!(target.digest, scorer.digest);
    assert_eq!((target.vocab, target.page_tokens), (scorer.vocab, scorer.page_tokens));
    assert!(scorer.page_bytes < target.page_bytes);
    let off = load(&scoring(Path::new("scarp"), |c| c.specprefill.enabled = Some(false))).unwrap();
    assert!(off.scorer.is_none(), "nothing can come to need it");
    let other = load(&scoring(&fixture("llama"), |_| ())).unwrap();
    assert!(other.scorer.is_none(), "another model has no bundled draft");
}

#[test]
fn a_model_s_own_first_layers_ask_what_they_ask_in_the_whole() {
    for (path, layers, attends) in [
        (fixture("llama"), 2, 2),
        (fixture("qwen3-q4"), 1, 1),
        (fixture("qwen3.5-q4"), 5, 1),
        (fixture("odd-moe"), 4, 1),
        ("scarp".into(), 4, 1),
        ("talus".into(), 4, 1),
    ] {
        let choose = |c: &mut Config| c.specprefill.scorer = ScorerChoice::OwnLayers(layers);
        let mut loaded = load(&scoring(&path, choose)).unwrap();
        let mut scorer = loaded.scorer.unwrap();
        assert!(!scorer.decodes);
        let last = format!("{}", layers - 1);
        assert!(scorer.name.ends_with(&last), "{}", scorer.name);
        assert_eq!(scorer.executor.facts().attention_layers, attends, "{}", scorer.name);
        let tokens = sample(150);
        let [whole, own] = [&mut *loaded.executor, &mut *scorer.executor].map(|executor| {
            executor.reserve(32, 4).unwrap();
            Track::new(0, 0).run(executor, &tokens, None, 4).queries
        });
        let (each, all) = (own.values.len() / 4, whole.values.len() / 4);
        for token in 0..4 {
            let [own, whole] =
                [&own.values[token * each..], &whole.values[token * all..]].map(|q| &q[..each]);
            assert!(own == whole, "{}: its queries differ from the target's", scorer.name);
        }
    }
}

#[test]
fn a_scorer_that_cannot_be_had_says_why() {
    let refused = |config: &Config| load(config).map(|_| ()).unwrap_err().to_string();
    let own = |path: &Path, layers| {
        refused(&scoring(path, |c| c.specprefill.scorer = ScorerChoice::OwnLayers(layers)))
    };
    let told = own(&fixture("llama"), 5);
    assert!(told.contains("`specprefill.scorer`") && told.contains("it has 4 layers, not 5"), "{told}");
    let told = own(&fixture("qwen3.5-q4"), 3);
    assert!(told.contains("layer 3, so 4 at least"), "{told}");

    // A tokenizer of its own; another vocabulary without one.
    let scarp =
        |draft: &Path| refused(&scoring(Path::new("scarp"), |c| c.model.draft = Some(draft.to_owned())));
    let told = scarp(&fixture("llama"));
    assert!(told.starts_with("`model.draft`: ") && told.contains("parity-llama"), "{told}");
    assert!(told.contains("is not that of scarp") && told.contains("self:N"), "{told}");
    let odd = scoring(&fixture("llama"), |c| {
        c.specprefill.scorer = ScorerChoice::Model(fixture("odd-hybrid"));
    });
    let told = refused(&odd);
    assert!(told.contains("320 ids and the other 257"), "{told}");
    let told = scarp(Path::new("no-such-model"));
    assert!(told.contains("no-such-model: cannot be read"), "{told}");

    let on = scoring(&fixture("llama"), |c| c.specprefill.enabled = Some(true));
    assert!(refused(&on).contains("set `model.draft`"), "{}", refused(&on));
}

#[test]
fn a_draft_without_tokenizer_serves_a_target_without_one() {
    let config = scoring(&fixture("llama"), |c| c.model.draft = Some(fixture("qwen3-q4")));
    let scorer = load(&config).unwrap().scorer.unwrap();
    assert_eq!((scorer.name.as_str(), scorer.decodes), ("parity-qwen3-q4", true));
}

/// Not a fact but a figure: `cargo test --release --test it sparse::timing -- --ignored --nocapture`.
#[test]
#[ignore = "prints timings; run it in release"]
fn timing() {
    let mut scorer =
        load(&scoring(Path::new("scarp"), |c| c.cache.block_tokens = 256)).unwrap().scorer.unwrap();
    let executor = &mut *scorer.executor;
    executor.reserve(130, 2).unwrap();
    let pages: Vec<PageId> = (0..130).map(PageId).collect();
    let tokens: Vec<u32> = (0..32_000).map(|i| (i * 7919 + i % 97 * 31) % 6_000).collect();
    let mut queries = Queries::default();
    let began = Instant::now();
    for (n, chunk) in tokens.chunks(256).enumerate() {
        let from = (n > 0).then_some(SlotId(0));
        let span = Span {
            pages: &pages,
            start: n * 256,
            tokens: chunk,
            positions: None,
            capture: 8,
            hidden: false,
            state: Some(StateFlow { from, to: SlotId(0), revocable: false }),
            logits: LogitRows::None,
        };
        queries = executor.forward(&[span]).unwrap().queries;
    }
    println!("prefill of {} tokens {:>8.1?}", tokens.len(), began.elapsed());
    for _ in 0..5 {
        let given = executor.key_weights(&pages, 0..tokens.len(), &queries).unwrap();
        println!("weights of {} keys, 8 queries {:.2} ms", given.window, given.compute.seconds() * 1e3);
    }
}
