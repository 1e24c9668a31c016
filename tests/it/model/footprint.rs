//! What loading takes: the weights, and for a moment one tensor, or the few that become one.

use std::fs::File;
use std::io::Write;
use std::time::Instant;

use escarp::config::Precision;
use escarp::model::{inspect, load};
use serde_json::{Map, Value, json};

use super::config;

const HIDDEN: usize = 2048;
const INSIDE: usize = 5632;
const LAYERS: usize = 10;
const VOCAB: usize = 32_000;
const GROUP: usize = 64;

/// A folder of zeros, about 300 MB of weights of 4 bits; the file has holes, so that writing it takes no time.
fn synthetic() -> tempfile::TempDir {
    let mut header = Map::new();
    let mut end = 0;
    let mut put = |name: String, dtype: &str, shape: &[usize], bytes: usize| {
        let bytes = shape.iter().product::<usize>() * bytes;
        header.insert(name, json!({"dtype": dtype, "shape": shape, "data_offsets": [end, end + bytes]}));
        end += bytes;
    };
    let mut linear = |module: String, rows: usize, cols: usize| {
        put(format!("{module}.weight"), "U32", &[rows, cols / 8], 4);
        put(format!("{module}.scales"), "BF16", &[rows, cols / GROUP], 2);
        put(format!("{module}.biases"), "BF16", &[rows, cols / GROUP], 2);
    };
    linear("model.embed_tokens".into(), VOCAB, HIDDEN);
    for n in 0..LAYERS {
        let attention = [("q", HIDDEN), ("k", 512), ("v", 512), ("o", HIDDEN)];
        for (part, rows) in attention {
            linear(format!("model.layers.{n}.self_attn.{part}_proj"), rows, HIDDEN);
        }
        for (part, rows, cols) in [("gate", INSIDE, HIDDEN), ("up", INSIDE, HIDDEN), ("down", HIDDEN, INSIDE)]
        {
            linear(format!("model.layers.{n}.mlp.{part}_proj"), rows, cols);
        }
    }
    put("model.norm.weight".into(), "BF16", &[HIDDEN], 2);
    for n in 0..LAYERS {
        for norm in ["input", "post_attention"] {
            put(format!("model.layers.{n}.{norm}_layernorm.weight"), "BF16", &[HIDDEN], 2);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let header = Value::from(header).to_string();
    let mut file = File::create(folder.path().join("model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len((8 + header.len() + end) as u64).unwrap();
    let config = json!({
        "model_type": "llama", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "intermediate_size": INSIDE,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": VOCAB,
        "tie_word_embeddings": true, "quantization": {"bits": 4, "group_size": GROUP},
    });
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    folder
}

/// A line of `/proc/self/status`, in bytes.
fn status(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// `cargo test --release --test it model::footprint -- --ignored --nocapture`, by itself: the figures are the process's.
#[test]
#[ignore = "measures the process it runs in, so it must run alone"]
fn loading_takes_the_weights_and_one_tensor_at_a_time() {
    let folder = synthetic();
    let weights = inspect(folder.path()).unwrap().weight_bytes.unwrap();
    let largest = (VOCAB * HIDDEN / 2 + 2 * 2 * VOCAB * HIDDEN / GROUP) as u64;
    // Forgets the peak so far.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status("VmRSS");
    let began = Instant::now();
    let loaded = load(&config(folder.path(), Precision::Int8)).unwrap();
    let took = began.elapsed();
    let (peak, after) = (status("VmHWM") - before, status("VmRSS") - before);
    drop(loaded);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!("weights      {:>8.1} MiB", mib(weights));
    println!("largest      {:>8.1} MiB", mib(largest));
    println!("peak         {:>8.1} MiB", mib(peak));
    println!("afterwards   {:>8.1} MiB", mib(after));
    println!("time         {took:>8.1?}");
    // Buffers of the allocator and of threads.
    let slack = 16 << 20;
    assert!(
        peak < weights + largest + slack,
        "{peak} bytes for {weights} of weights, {largest} in the largest tensor"
    );
}
