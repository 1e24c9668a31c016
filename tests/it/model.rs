//! Real models: what llama.cpp and MLX compute is what escarp computes, by every route.

use std::path::PathBuf;

use escarp::model::Gguf;
use escarp::model::text::TextCodec;
use serde_json::Value;

/// The path in the environment variable `name`, or a printed line and `None`.
fn from_environment(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os(name).map(PathBuf::from);
    if path.is_none() {
        println!("skipped: {name} is unset");
    }
    path
}

fn oracle() -> Option<Value> {
    let path = from_environment("ESCARP_SHARED")?.join("data/oracle/smollm2-llamacpp.json");
    Some(serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap())
}

fn ids(json: &Value) -> Vec<u32> {
    json.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
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
