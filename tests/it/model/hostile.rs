//! Model files that lie: a clear error each, no panic, bounded memory.

use std::io::Write;
use std::path::Path;

use escarp::config::Precision;
use escarp::model::text::TextCodec;
use escarp::model::{Gguf, ModelError, inspect, load};
use proptest::prelude::*;

use super::{config, parity_folder};

/// A GGUF file under construction.
struct Builder {
    values: Vec<u8>,
    value_count: u64,
    tensors: Vec<u8>,
    tensor_count: u64,
    data: Vec<u8>,
}

fn string(text: &[u8], out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}

impl Builder {
    fn new() -> Builder {
        Builder { values: Vec::new(), value_count: 0, tensors: Vec::new(), tensor_count: 0, data: Vec::new() }
    }

    fn value(mut self, key: &str, kind: u32, bytes: &[u8]) -> Builder {
        string(key.as_bytes(), &mut self.values);
        self.values.extend(kind.to_le_bytes());
        self.values.extend(bytes);
        self.value_count += 1;
        self
    }

    fn text(self, key: &str, text: &str) -> Builder {
        let mut bytes = Vec::new();
        string(text.as_bytes(), &mut bytes);
        self.value(key, 8, &bytes)
    }

    fn uint(self, key: &str, value: u32) -> Builder {
        self.value(key, 4, &value.to_le_bytes())
    }

    fn float(self, key: &str, value: f32) -> Builder {
        self.value(key, 6, &value.to_le_bytes())
    }

    fn strings(self, key: &str, all: &[&str]) -> Builder {
        let mut bytes = 8u32.to_le_bytes().to_vec();
        bytes.extend((all.len() as u64).to_le_bytes());
        all.iter().for_each(|text| string(text.as_bytes(), &mut bytes));
        self.value(key, 9, &bytes)
    }

    fn tensor(mut self, name: &str, dims: &[u64], kind: u32, bytes: usize) -> Builder {
        string(name.as_bytes(), &mut self.tensors);
        self.tensors.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| self.tensors.extend(dim.to_le_bytes()));
        self.tensors.extend(kind.to_le_bytes());
        self.tensors.extend((self.data.len() as u64).to_le_bytes());
        self.data.resize((self.data.len() + bytes).next_multiple_of(32), 0);
        self.tensor_count += 1;
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend(self.tensor_count.to_le_bytes());
        out.extend(self.value_count.to_le_bytes());
        out.extend(&self.values);
        out.extend(&self.tensors);
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(&self.data);
        out
    }
}

/// A whole model of one tiny layer, with a tokenizer of four tokens.
fn tiny() -> Builder {
    let mut builder = Builder::new()
        .text("general.architecture", "llama")
        .uint("llama.block_count", 1)
        .uint("llama.context_length", 256)
        .uint("llama.embedding_length", 32)
        .uint("llama.feed_forward_length", 64)
        .uint("llama.attention.head_count", 2)
        .uint("llama.attention.head_count_kv", 1)
        .float("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "smollm")
        .strings("tokenizer.ggml.tokens", &["a", "b", "ab", "<|im_end|>"])
        .strings("tokenizer.ggml.merges", &["a b"])
        .uint("tokenizer.ggml.eos_token_id", 3)
        .tensor("token_embd.weight", &[32, 4], 0, 32 * 4 * 4)
        .tensor("output_norm.weight", &[32], 0, 128);
    for (name, rows, cols) in [
        ("attn_norm", 1, 32),
        ("attn_q", 32, 32),
        ("attn_k", 16, 32),
        ("attn_v", 16, 32),
        ("attn_output", 32, 32),
        ("ffn_norm", 1, 32),
        ("ffn_gate", 64, 32),
        ("ffn_up", 64, 32),
        ("ffn_down", 32, 64),
    ] {
        let dims = if rows == 1 { vec![cols] } else { vec![cols, rows] };
        builder = builder.tensor(&format!("blk.0.{name}.weight"), &dims, 0, (rows * cols * 4) as usize);
    }
    builder
}

fn write(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn try_load(path: &Path) -> Result<(), ModelError> {
    load(&config(path, Precision::Int8)).map(|_| ())
}

/// The error that loading `bytes` gives, with the file's name taken out.
fn error_of(bytes: &[u8]) -> String {
    let file = write(bytes);
    let error = try_load(file.path()).unwrap_err().to_string();
    assert!(error.contains(&*file.path().to_string_lossy()), "{error}");
    error.replace(&*file.path().to_string_lossy(), "FILE")
}

fn assert_error(bytes: &[u8], parts: &[&str]) {
    let error = error_of(bytes);
    for part in parts {
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
}

#[test]
fn the_tiny_model_itself_loads() {
    try_load(write(&tiny().bytes()).path()).unwrap();
}

#[test]
fn a_file_cut_anywhere_is_an_error() {
    let bytes = tiny().bytes();
    for end in (0..bytes.len()).step_by(if bytes.len() > 4096 { 37 } else { 1 }) {
        let error = error_of(&bytes[..end]);
        assert!(error.starts_with("FILE: "), "cut at {end}: {error}");
    }
}

#[test]
fn absurd_counts_are_refused_before_anything_is_allocated() {
    let mut bytes = tiny().bytes();
    bytes[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_error(&bytes, &["18446744073709551615 tensors", "fetch it again"]);
    let mut bytes = tiny().bytes();
    bytes[16..24].copy_from_slice(&(1u64 << 40).to_le_bytes());
    assert_error(&bytes, &["metadata values"]);
    let mut absurd = 8u32.to_le_bytes().to_vec();
    absurd.extend((1u64 << 60).to_le_bytes());
    assert_error(&tiny().value("x.many", 9, &absurd).bytes(), &["`x.many`", "strings"]);
    let mut absurd = 4u32.to_le_bytes().to_vec();
    absurd.extend((u64::MAX / 4 + 2).to_le_bytes());
    assert_error(&tiny().value("x.many", 9, &absurd).bytes(), &["`x.many`", "elements"]);
    assert_error(&tiny().value("x.long", 8, &u64::MAX.to_le_bytes()).bytes(), &["x.long"]);
    assert_error(&tiny().tensor("x.big", &[1 << 40, 1 << 40], 0, 0).bytes(), &["`x.big`"]);
    assert_error(&tiny().tensor("x.big", &[1 << 30], 0, 0).bytes(), &["`x.big`", "outside"]);
    assert_error(
        &tiny().uint("llama.block_count2", 0).uint("general.alignment", 0).bytes(),
        &["general.alignment"],
    );
}

#[test]
fn what_is_not_a_little_endian_gguf_is_named() {
    assert_error(b"PK\x03\x04 this is a zip", &["`GGUF`", "config.json"]);
    assert_error(b"", &["magic"]);
    let mut bytes = tiny().bytes();
    bytes[4..8].copy_from_slice(&3u32.to_be_bytes());
    assert_error(&bytes, &["big-endian"]);
    bytes[4..8].copy_from_slice(&1u32.to_le_bytes());
    assert_error(&bytes, &["version is 1"]);
    let nested = [9u32.to_le_bytes().as_slice(), &1u64.to_le_bytes()].concat();
    assert_error(&tiny().value("x.nested", 9, &nested).bytes(), &["`x.nested`", "array of arrays"]);
}

#[test]
fn unknown_architectures_and_rules_are_named_with_what_is_known() {
    let other = Builder::new().text("general.architecture", "mamba");
    assert_error(&other.bytes(), &["`general.architecture` is `mamba`", "one of: llama"]);
    assert_error(&Builder::new().bytes(), &["`general.architecture` is missing"]);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), r#"{"model_type": "gpt_neox"}"#).unwrap();
    let error = try_load(folder.path()).unwrap_err().to_string();
    assert!(error.contains("`model_type` is `gpt_neox`") && error.contains("llama"), "{error}");
    let bytes = tiny().bytes();
    let at = bytes.windows(6).position(|window| window == b"smollm").unwrap();
    let mut changed = bytes.clone();
    changed[at..at + 6].copy_from_slice(b"smolll");
    assert_error(&changed, &["`tokenizer.ggml.pre` is `smolll`", "qwen2"]);
}

#[test]
fn what_would_compute_something_else_is_refused() {
    assert_error(&tiny().text("llama.rope.scaling.type", "yarn").bytes(), &["`llama.rope.scaling.type`"]);
    assert_error(&tiny().uint("llama.expert_count", 8).bytes(), &["`llama.expert_count`"]);
    assert_error(&tiny().tensor("rope_freqs.weight", &[8], 0, 32).bytes(), &["`rope_freqs.weight`"]);
    assert_error(&tiny().tensor("blk.0.attn_q.bias", &[32], 0, 128).bytes(), &["`blk.0.attn_q.bias`"]);
    assert_error(
        &tiny().tensor("output.weight", &[256, 4], 12, 576).bytes(),
        &["`output.weight`", "Q4_K", "Q4_1"],
    );
    assert_error(&tiny().tensor("output.weight", &[64, 4], 0, 1024).bytes(), &["4x64", "4x32"]);
    for (from, to, named) in [
        (&b"\"rope_theta\": 10000.0"[..], &b"\"mlp_bias\": true"[..], "`mlp_bias`"),
        (b"\"rope_theta\": 10000.0", b"\"sliding_window\": 64", "`sliding_window`"),
        (b"\"rope_theta\": 10000.0", b"\"rope_scaling\": {\"type\": \"linear\"}", "`rope_scaling`"),
        (b"\"num_key_value_heads\": 2", b"\"num_key_value_heads\": 3", "3 key/value heads"),
        (b"\"head_dim\": 32", b"\"head_dim\": 31", "heads of 31"),
        (b"\"hidden_size\": 64", b"\"hidden_size\": 65", "320x65"),
    ] {
        let copy = tempfile::tempdir().unwrap();
        let mut json = std::fs::read(parity_folder().join("config.json")).unwrap();
        let at = json.windows(from.len()).position(|window| window == from).unwrap();
        json.splice(at..at + from.len(), to.iter().copied());
        std::fs::write(copy.path().join("config.json"), json).unwrap();
        std::fs::copy(parity_folder().join("model.safetensors"), copy.path().join("model.safetensors"))
            .unwrap();
        let error = try_load(copy.path()).unwrap_err().to_string();
        assert!(error.contains(named), "`{named}` is not in: {error}");
    }
}

#[test]
fn templates_that_loop_or_do_not_parse_are_errors() {
    let looping =
        "{% for a in range(99999) %}{% for b in range(99999) %}{% set x = b %}{% endfor %}{% endfor %}";
    let file = write(&tiny().text("tokenizer.chat_template", looping).bytes());
    let codec = TextCodec::from_gguf(&Gguf::open(file.path()).unwrap()).unwrap();
    let error = codec.render(&Default::default()).unwrap_err().to_string();
    assert!(error.contains("instructions"), "{error}");
    let broken = tiny().text("tokenizer.chat_template", "{% for %}").bytes();
    assert_error(&broken, &["chat template", "line 1"]);
}

#[test]
fn a_path_that_leads_nowhere_says_what_to_give() {
    let error = try_load(Path::new("/nonexistent/model.gguf")).unwrap_err().to_string();
    assert!(error.contains("cannot be read"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let error = try_load(folder.path()).unwrap_err().to_string();
    assert!(error.contains("config.json"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any bytes changed anywhere in the header: an error or a model, never a panic.
    #[test]
    fn corrupt_headers_never_panic(changes in proptest::collection::vec((0usize..2000, proptest::num::u8::ANY), 1..5)) {
        let mut bytes = tiny().bytes();
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        let file = write(&bytes);
        let _ = inspect(file.path());
        let _ = try_load(file.path());
    }

    /// Eight bytes at a time, so that counts, lengths and offsets become absurd.
    #[test]
    fn corrupt_counts_never_panic(at in 8usize..2000, value in prop_oneof![Just(u64::MAX), Just(1 << 40), proptest::num::u64::ANY, 0u64..5000]) {
        let mut bytes = tiny().bytes();
        let at = at.min(bytes.len() - 8);
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        let file = write(&bytes);
        let _ = inspect(file.path());
        let _ = try_load(file.path());
    }
}
