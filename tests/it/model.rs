//! Real models: what llama.cpp and MLX compute is what escarp computes, by every route.

mod bits;
mod draft;
mod folder;
mod footprint;
mod head;
mod hostile;
mod hostile_folder;
#[cfg(feature = "mlx")]
mod mlx;
mod parity;
mod sparse;

use std::path::{Path, PathBuf};

use escarp::config::{Config, DeviceSetting, Precision};
use escarp::device::{Executor, LogitRows, PageId, SlotId, Span, StateFlow};
use escarp::model::text::TextCodec;
use escarp::model::{Gguf, inspect, load};
use serde_json::Value;

/// The path in the environment variable `name`, or a printed line and `None`.
fn from_environment(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os(name).map(PathBuf::from);
    if path.is_none() {
        println!("skipped: {name} is unset");
    }
    path
}

/// The parity folder of a model.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/parity-{name}"))
}

fn parity_folder() -> PathBuf {
    fixture("llama")
}

fn oracle() -> Option<Value> {
    let path = from_environment("ESCARP_SHARED")?.join("data/oracle/smollm2-llamacpp.json");
    Some(serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap())
}

fn oracle_tokens() -> Option<Vec<u32>> {
    Some(ids(&oracle()?["forced"]["tokens"]))
}

fn ids(json: &Value) -> Vec<u32> {
    json.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn config(path: &Path, precision: Precision) -> Config {
    let mut config = Config::default();
    config.model.path = Some(path.to_owned());
    config.model.device = DeviceSetting::Cpu;
    config.model.precision = precision.into();
    config
}

/// Logits of every token, computed in chunks of the sizes given, the last of them repeated.
fn logits(executor: &mut dyn Executor, tokens: &[u32], chunks: &[usize]) -> Vec<f32> {
    let blocks = tokens.len().div_ceil(executor.facts().page_tokens);
    let recurrent = executor.facts().slot_bytes > 0;
    executor.reserve(blocks, usize::from(recurrent)).unwrap();
    let pages: Vec<PageId> = (0..blocks as u32).map(PageId).collect();
    let mut logits = Vec::new();
    let mut sizes = chunks.iter().chain(std::iter::repeat(chunks.last().unwrap()));
    let mut start = 0;
    while start < tokens.len() {
        let end = tokens.len().min(start + sizes.next().unwrap());
        let from = (start > 0).then_some(SlotId(0));
        let flow = StateFlow { from, to: SlotId(0), revocable: false };
        let state = recurrent.then_some(flow);
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
        logits.extend(executor.forward(&[span]).unwrap().logits);
        start = end;
    }
    logits
}

#[test]
fn the_tokenizer_gives_the_ids_llama_cpp_gives() {
    let (Some(model), Some(oracle)) = (from_environment("ESCARP_SMOLLM2"), oracle()) else { return };
    let codec = TextCodec::from_gguf(&Gguf::open(&model).unwrap()).unwrap();
    let cases = oracle["tokenizer"].as_array().unwrap();
    assert_eq!(cases.len(), 20);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        assert_eq!(codec.encode(text, true).unwrap(), ids(&case["ids"]), "{text:?}");
        assert_eq!(codec.decode(&codec.encode(text, true).unwrap(), true), text);
    }
}

#[test]
fn smollm2_agrees_with_llama_cpp() {
    let (Some(model), Some(oracle)) = (from_environment("ESCARP_SMOLLM2"), oracle()) else { return };
    let tokens = ids(&oracle["forced"]["tokens"]);
    for precision in [Precision::Int8, Precision::F32] {
        let mut loaded = load(&config(&model, precision)).unwrap();
        let vocab = loaded.executor.facts().vocab;
        let logits = logits(&mut *loaded.executor, &tokens, &[tokens.len()]);
        let (mut same, mut difference, mut compared) = (0, 0.0, 0);
        let positions = oracle["forced"]["logprobs_top10"].as_array().unwrap();
        for position in positions {
            let at = position["pos"].as_u64().unwrap() as usize;
            let row = &logits[at * vocab..(at + 1) * vocab];
            let peak = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let total: f64 = row.iter().map(|logit| f64::from(logit - peak).exp()).sum();
            let best = row.iter().position(|logit| *logit == peak).unwrap();
            for (rank, entry) in position["top"].as_array().unwrap().iter().enumerate() {
                let id = entry[0].as_u64().unwrap() as usize;
                same += usize::from(rank == 0 && id == best);
                let logprob = f64::from(row[id] - peak) - total.ln();
                difference += (logprob - entry[1].as_f64().unwrap()).abs();
                compared += 1;
            }
        }
        let (share, mean) = (same as f64 / positions.len() as f64, difference / f64::from(compared));
        println!("{precision:?}: same top-1 at {share:.3}, mean |Δ log p| {mean:.4}");
        assert!(share >= 0.9, "{precision:?}: the same top-1 at {share:.3} of positions");
        assert!(mean < 0.15, "{precision:?}: top-10 log probabilities differ by {mean:.4}");
    }
}

#[test]
fn a_folder_without_tokenizer_still_loads_with_bytes_for_text() {
    let loaded = load(&config(&parity_folder(), Precision::Int8)).unwrap();
    assert_eq!(loaded.text.encode("aé", true).unwrap(), [97, 0xc3, 0xa9]);
    assert!(!loaded.text.has_tokenizer());
    assert_eq!(loaded.executor.facts().vocab, 320);
}

#[test]
fn the_digest_binds_weights_and_configuration() {
    let digest = |folder: &Path| load(&config(folder, Precision::Int8)).unwrap().executor.facts().digest;
    let original = digest(&parity_folder());
    assert_eq!(original, digest(&parity_folder()));
    for (file, from, to) in [
        ("config.json", &b"\"rope_theta\": 10000.0"[..], &b"\"rope_theta\": 10001.0"[..]),
        ("model.safetensors", b"", b""),
    ] {
        let copy = tempfile::tempdir().unwrap();
        for name in ["config.json", "model.safetensors"] {
            let mut bytes = std::fs::read(parity_folder().join(name)).unwrap();
            if name == file && from.is_empty() {
                let last = bytes.len() - 2;
                bytes[last] ^= 1;
            } else if name == file {
                let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
                bytes[at..at + to.len()].copy_from_slice(to);
            }
            std::fs::write(copy.path().join(name), bytes).unwrap();
        }
        assert_ne!(original, digest(copy.path()), "{file} changed");
    }
}

#[test]
fn inspection_counts_what_is_there() {
    let summary = inspect(&parity_folder()).unwrap();
    assert_eq!((summary.architecture, summary.format), ("llama", "folder"));
    assert_eq!(summary.layers["attention"], 4);
    assert_eq!(summary.tensor_types.len(), 1);
    assert_eq!(summary.weight_bytes, Some(summary.parameters * 4));
    assert_eq!(summary.tokenizer_tokens, None);
    let Some(model) = from_environment("ESCARP_SMOLLM2") else { return };
    let summary = inspect(&model).unwrap();
    assert_eq!(summary.parameters, 134_515_008);
    assert_eq!(summary.tokenizer_tokens, Some(49_152));
    let kinds: Vec<_> = summary.tensor_types.iter().map(|kind| (kind.kind.as_str(), kind.tensors)).collect();
    assert_eq!(kinds, [("F32", 61), ("Q4_1", 210), ("Q8_0", 1)]);
    assert!(!summary.template_takes_tools);
}

/// Not a fact but a figure: `cargo test --release --test it model::timing -- --ignored --nocapture`.
#[test]
#[ignore = "prints timings; run it in release"]
fn timing() {
    use std::time::Instant;
    let Some(model) = from_environment("ESCARP_SMOLLM2") else { return };
    let began = Instant::now();
    let gguf = Gguf::open(&model).unwrap();
    println!("header       {:>8.1?}", began.elapsed());
    let began = Instant::now();
    let codec = TextCodec::from_gguf(&gguf).unwrap();
    println!("tokenizer    {:>8.1?}", began.elapsed());
    let began = Instant::now();
    let loaded = load(&config(&model, Precision::Int8)).unwrap();
    println!("load         {:>8.1?}", began.elapsed());
    drop(loaded);
    let session = escarp::session::open("append-heavy").unwrap();
    let mut player = escarp::session::Player::new(session.into(), escarp::session::ReplayMode::Recorded);
    let mut largest = Default::default();
    while let Some(turn) = player.take() {
        let began = Instant::now();
        let tokens = codec.render(&turn.conversation).unwrap().tokens.len();
        println!("render       {:>8.1?} for {tokens} tokens", began.elapsed());
        largest = turn.conversation;
        player.reply("");
    }
    let fresh = TextCodec::from_gguf(&gguf).unwrap();
    for round in ["cold", "warm"] {
        let began = Instant::now();
        let tokens = fresh.render(&largest).unwrap().tokens.len();
        println!("render {round}  {:>8.1?} for {tokens} tokens", began.elapsed());
    }
}
