//! Model folders: every layout and convention gives the same tensors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use escarp::model::{Architecture, Checkpoint, Folder, LayerKind, MlpKind, TensorData, TensorRole, inspect};
use safetensors::Dtype;
use serde_json::json;

use super::draft::{Draft, Stored};
use super::fixture;

/// What a model is made of, by role, with names left out.
fn contents(folder: &Path) -> BTreeMap<String, (usize, usize, String)> {
    let folder = Folder::open(folder).unwrap();
    let tensor = |role: TensorRole| {
        let tensor = folder.tensor(role).unwrap()?;
        let data = match &tensor.data {
            TensorData::Plain(float, bytes) => {
                assert_eq!(bytes.len(), tensor.rows * tensor.cols * float.bytes(), "{role:?}");
                format!("{}", blake3::hash(bytes))
            }
            other => format!("{}", blake3::hash(format!("{other:?}").as_bytes())),
        };
        Some((format!("{role:?}"), (tensor.rows, tensor.cols, data)))
    };
    folder.shape().roles().filter_map(tensor).collect()
}

#[test]
fn every_parity_folder_has_the_shape_its_configuration_gives() {
    let shape = |name: &str| Folder::open(&fixture(name)).unwrap().shape().clone();
    let dense = shape("qwen3-q4");
    assert_eq!(dense.architecture, Architecture::Qwen3);
    assert_eq!(dense.layers, [LayerKind::Attention; 4]);
    assert!(dense.attention.head_norms && !dense.attention.gated);
    assert_eq!((dense.attention.rotary.base, dense.attention.rotary.dims), (1e6, 32));
    for name in ["qwen3.5-q4", "qwen3.5-q8"] {
        let hybrid = shape(name);
        assert_eq!(hybrid.architecture, Architecture::Qwen35);
        let kinds: Vec<bool> = hybrid.layers.iter().map(|kind| *kind == LayerKind::Attention).collect();
        assert_eq!(kinds, [false, false, false, true, false, false, false, true]);
        assert!(hybrid.attention.head_norms && hybrid.attention.gated);
        assert_eq!((hybrid.attention.rotary.base, hybrid.attention.rotary.dims), (1e5, 8));
        let delta = hybrid.delta.unwrap();
        assert_eq!((delta.key_heads, delta.value_heads, delta.taps), (2, 4, 4));
        assert_eq!(hybrid.mlp, MlpKind::Dense { intermediate: 192 });
    }
    let experts = shape("qwen3.5-moe-q6");
    assert_eq!(experts.architecture, Architecture::Qwen35Moe);
    let MlpKind::Experts { routing, intermediate, shared } = experts.mlp else { panic!("{experts:?}") };
    assert_eq!((routing.experts, routing.per_token, routing.normalised), (8, 2, true));
    assert_eq!((intermediate, shared), (64, 64));
}

#[test]
fn every_tensor_of_every_parity_folder_can_be_read() {
    let mut folders: Vec<PathBuf> =
        ["llama", "qwen3-q4", "qwen3.5-q4", "qwen3.5-q8", "qwen3.5-moe-q6"].map(fixture).into();
    if let Some(shared) = super::from_environment("ESCARP_SHARED") {
        folders.extend(["qwen3", "qwen3.5", "qwen3.5-moe"].map(|name| shared.join("data/parity").join(name)));
    }
    for folder in folders {
        let all = contents(&folder);
        println!("{}: {} tensors", folder.display(), all.len());
        assert!(all.len() >= 4 * 9 + 2, "{}", folder.display());
    }
}

/// An affine layer as MLX writes it: 4 bits in groups of 32.
#[test]
fn affine_tensors_are_checked_against_their_scales() {
    let mut draft = Draft::read(&fixture("llama"));
    draft.config["quantization"] = json!({"group_size": 32, "bits": 4});
    draft.put("model.embed_tokens.weight", Stored::zeros(Dtype::U32, &[320, 16]));
    for side in ["scales", "biases"] {
        draft.put(format!("model.embed_tokens.{side}"), Stored::zeros(Dtype::BF16, &[320, 4]));
    }
    let folder = draft.write();
    let tensor = Folder::open(folder.path()).unwrap().tensor(TensorRole::Embedding).unwrap().unwrap();
    assert_eq!((tensor.rows, tensor.cols), (320, 128));
    assert!(matches!(tensor.data, TensorData::Affine { bits: 4, group: 32, .. }));
    let summary = inspect(folder.path()).unwrap();
    assert_eq!(summary.tensor_types[1].kind, "affine4");
    assert_eq!(summary.tensor_types[1].elements, 320 * 128);
    draft.put("model.embed_tokens.scales", Stored::zeros(Dtype::BF16, &[320, 3]));
    let error = Folder::open(draft.write().path()).unwrap_err().to_string();
    assert!(error.contains("`model.embed_tokens.weight`") && error.contains("groups of 32"), "{error}");
}
