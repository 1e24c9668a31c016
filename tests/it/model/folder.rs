//! Model folders: every layout and convention gives the same tensors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use escarp::config::Precision;
use escarp::device::cpu::{Cpu, CpuOptions};
use escarp::device::ops::Device;
use escarp::device::weights::Float;
use escarp::model::{
    Architecture, Checkpoint, Fate, Folder, LayerKind, MlpKind, Part, Site, TensorData, TensorRole, inspect,
    inspect_at, load,
};
use safetensors::Dtype;
use serde_json::json;

use super::draft::{Draft, Stored};
use super::{config, fixture};

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
    let hybrid = shape("qwen3.5-q4");
    assert_eq!(hybrid.architecture, Architecture::Qwen35);
    let kinds: Vec<bool> = hybrid.layers.iter().map(|kind| *kind == LayerKind::Attention).collect();
    assert_eq!(kinds, [false, false, false, true, false, false, false, true]);
    assert!(hybrid.attention.head_norms && hybrid.attention.gated);
    assert_eq!((hybrid.attention.rotary.base, hybrid.attention.rotary.dims), (1e5, 8));
    let delta = hybrid.delta.unwrap();
    assert_eq!((delta.key_heads, delta.value_heads, delta.taps), (2, 4, 4));
    assert_eq!(hybrid.mlp, MlpKind::Dense { intermediate: 192 });
    let experts = shape("moe-q6");
    assert_eq!(experts.architecture, Architecture::Qwen35Moe);
    let MlpKind::Experts { routing, intermediate, shared } = experts.mlp else { panic!("{experts:?}") };
    assert_eq!((routing.experts, routing.per_token, routing.normalised), (8, 2, true));
    assert_eq!((intermediate, shared), (64, 64));
}

#[test]
fn every_tensor_of_every_parity_folder_can_be_read() {
    let mut folders: Vec<PathBuf> =
        ["llama", "qwen3-q4", "qwen3.5-q4", "moe-q6", "odd-hybrid", "odd-moe"].map(fixture).into();
    if let Some(shared) = super::from_environment("ESCARP_SHARED") {
        folders.extend(
            ["qwen3", "qwen3.5", "qwen3.5-q8", "qwen3.5-moe", "qwen3.5-moe-q6"]
                .map(|name| shared.join("data/parity").join(name)),
        );
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
    draft.put("model.embed_tokens.weight", Stored::zeros(Dtype::U32, &[320, 8]));
    for side in ["scales", "biases"] {
        draft.put(format!("model.embed_tokens.{side}"), Stored::zeros(Dtype::BF16, &[320, 2]));
    }
    let folder = draft.write();
    let tensor = Folder::open(folder.path()).unwrap().tensor(TensorRole::Embedding).unwrap().unwrap();
    assert_eq!((tensor.rows, tensor.cols), (320, 64));
    assert!(matches!(tensor.data, TensorData::Affine { bits: 4, group: 32, .. }));
    let summary = inspect(folder.path()).unwrap();
    assert_eq!(summary.tensor_types[1].kind, "affine4");
    assert_eq!(summary.tensor_types[1].elements, 320 * 64);
    draft.put("model.embed_tokens.scales", Stored::zeros(Dtype::BF16, &[320, 3]));
    let error = Folder::open(draft.write().path()).unwrap_err().to_string();
    assert!(error.contains("`model.embed_tokens.weight`") && error.contains("groups of 32"), "{error}");
}

/// What Hugging Face writes: convolutions as `[channels, 1, taps]`, and norms less 1.
fn huggingface_convention(draft: &mut Draft) {
    for (name, tensor) in &mut draft.tensors {
        if name.ends_with("conv1d.weight") {
            tensor.shape.swap(1, 2);
        }
        let plain_norm = ["layernorm.weight", "q_norm.weight", "k_norm.weight", "model.norm.weight"];
        if is_head_norm(name) || plain_norm.iter().any(|end| name.ends_with(end)) {
            let less_one: Vec<f32> = tensor.numbers().iter().map(|x| x - 1.0).collect();
            *tensor = Stored::f32(&tensor.shape, &less_one);
        }
    }
}

/// Heads are handed on by themselves: what convention the rest of the folder follows says nothing about their norms.
#[test]
fn the_convention_of_a_prediction_heads_norms_is_its_own() {
    for rest_less_one in [false, true] {
        let mut draft = Draft::read(&fixture("qwen3.5-q4"));
        round_norms(&mut draft);
        draft.add_prediction_head();
        if rest_less_one {
            huggingface_convention(&mut draft);
        }
        // A gain may be far from 1, as those of heads' keys are wont to be.
        let mut complete = draft;
        let far = "mtp.layers.0.self_attn.k_norm.weight";
        let expected = |draft: &Draft| contents(draft.write().path());
        let head: Vec<String> = complete.tensors.keys().filter(|n| is_head_norm(n)).cloned().collect();
        assert_eq!(head.len(), 7);
        for name in &head {
            let shape = complete.tensors[name].shape.clone();
            let gain: Vec<f32> = (0..shape[0]).map(|i| 0.875 + (i % 8) as f32 / 32.0).collect();
            complete.put(name, Stored::f32(&shape, &gain));
        }
        complete.put(far, Stored::f32(&[32], &[2.5; 32]));
        let mut raw = complete.clone();
        for name in &head {
            let less_one: Vec<f32> = raw.tensors[name].numbers().iter().map(|x| x - 1.0).collect();
            let shape = raw.tensors[name].shape.clone();
            raw.put(name, Stored::f32(&shape, &less_one));
        }
        assert!(expected(&raw) == expected(&complete), "the rest less one: {rest_less_one}");
        let folder = Folder::open(complete.write().path()).unwrap();
        let role = TensorRole::Layer(Site::Prediction(0), Part::KeyNorm);
        let TensorData::Plain(Float::F32, gain) = folder.tensor(role).unwrap().unwrap().data else {
            panic!()
        };
        assert_eq!(gain, [2.5f32; 32].map(f32::to_le_bytes).concat());

        let mut neither = complete;
        for name in &head {
            let shape = neither.tensors[name].shape.clone();
            neither.put(name, Stored::f32(&shape, &vec![0.5; shape[0]]));
        }
        let folder = neither.write();
        let opened = Folder::open(folder.path()).unwrap();
        let error = opened.tensor(role).unwrap_err().to_string();
        assert!(error.contains("model.safetensors: the numbers of tensor `mtp."), "{error}");
        assert!(error.contains("0.50 on average") && error.contains("cannot be told"), "{error}");
        // The model itself does not need the head.
        assert!(opened.tensor(TensorRole::OutputNorm).is_ok());
    }
}

fn is_head_norm(name: &str) -> bool {
    name.contains("mtp.") && name.contains("norm")
}

/// A norm's numbers such that one less and one more is the same again.
fn round_norms(draft: &mut Draft) {
    for (_, tensor) in draft.tensors.iter_mut().filter(|(name, _)| name.contains("norm")) {
        let rounded: Vec<f32> = tensor.numbers().iter().map(|x| (x * 1024.0).round() / 1024.0).collect();
        *tensor = Stored::f32(&tensor.shape, &rounded);
    }
}

#[test]
fn every_layout_and_convention_gives_the_same_tensors() {
    for name in ["qwen3.5-q4", "moe-q6"] {
        let mut draft = Draft::read(&fixture(name));
        round_norms(&mut draft);
        draft.add_prediction_head();
        let expected = contents(draft.write().path());
        let same = |what: &str, folder: &Path| assert!(contents(folder) == expected, "{name}: {what}");

        same("three shards", draft.write_shards(3).path());
        let mut huggingface = draft.clone();
        huggingface.rename(|name| name.replace("language_model.model.", "model.language_model."));
        same("`model.language_model`", huggingface.write().path());
        huggingface.rename(|name| name.replace("language_model.lm_head", "lm_head"));
        huggingface_convention(&mut huggingface);
        same("Hugging Face's convention", huggingface.write_shards(2).path());

        let mut text_alone = draft.clone();
        text_alone.rename(|name| name.strip_prefix("language_model.").unwrap_or(name).to_owned());
        let mut config = text_alone.text().clone();
        config.insert("quantization".into(), text_alone.config["quantization"].clone());
        text_alone.config = config.into();
        same("a configuration and names of text alone", text_alone.write().path());
        text_alone.rename(|name| name.replace("mtp.", "language_model.mtp."));
        same("`language_model.mtp`", text_alone.write().path());

        let mut nested = draft.clone();
        let quantization = nested.config.as_object_mut().unwrap().remove("quantization").unwrap();
        nested.config.as_object_mut().unwrap().remove("quantization_config");
        nested.text().insert("quantization".into(), quantization);
        same("`quantization` in `text_config`", nested.write().path());

        let mut listed = draft.clone();
        let kinds =
            (1..=listed.layers()).map(|n| if n % 4 == 0 { "full_attention" } else { "linear_attention" });
        listed.text().insert("layer_types".into(), kinds.collect());
        listed.text().remove("full_attention_interval");
        same("`layer_types`", listed.write().path());
    }
}

/// Experts stacked as Hugging Face does it, gates above ups, and each in a tensor of its own: the numbers are the same.
#[test]
fn experts_can_be_stacked_fused_or_apart() {
    let (experts, inside, hidden) = (8, 64, 128);
    let mut draft = Draft::read(&fixture("moe-q6"));
    let packed: Vec<String> =
        draft.tensors.keys().filter(|name| name.contains("switch_mlp")).cloned().collect();
    for (n, name) in packed.iter().enumerate() {
        draft.take(name);
        if name.ends_with(".weight") {
            let numbers: Vec<f32> = (0..experts * inside * hidden).map(|i| (i * 7 + n) as f32).collect();
            let (rows, cols) = if name.contains("down") { (hidden, inside) } else { (inside, hidden) };
            draft.put(name, Stored::f32(&[experts, rows, cols], &numbers));
        }
    }
    let expected = contents(draft.write().path());
    let bytes = inside * hidden * 4;
    let (mut fused, mut apart) = (draft.clone(), draft);
    for layer in 0..apart.layers() {
        let below = format!("language_model.model.layers.{layer}.mlp");
        let [gates, ups, downs] = ["gate", "up", "down"].map(|part| {
            apart.take(&format!("{below}.switch_mlp.{part}_proj.weight"));
            fused.take(&format!("{below}.switch_mlp.{part}_proj.weight"))
        });
        let parts = gates.data.chunks(bytes).zip(ups.data.chunks(bytes));
        let data = parts.flat_map(|(gate, up)| [gate, up].concat()).collect();
        let shape = vec![experts, 2 * inside, hidden];
        fused.put(format!("{below}.experts.gate_up_proj"), Stored { dtype: Dtype::F32, shape, data });
        for (part, all) in [("gate", gates), ("up", ups), ("down", downs.clone())] {
            for (expert, data) in all.data.chunks(bytes).enumerate() {
                let stored =
                    Stored { dtype: Dtype::F32, shape: all.shape[1..].to_vec(), data: data.to_vec() };
                apart.put(format!("{below}.experts.{expert}.{part}_proj.weight"), stored);
            }
        }
        fused.put(format!("{below}.experts.down_proj"), downs);
    }
    assert!(contents(fused.write().path()) == expected, "fused");
    assert!(contents(apart.write_shards(2).path()) == expected, "apart");
    apart.take("language_model.model.layers.3.mlp.experts.5.up_proj.weight");
    let error = Folder::open(apart.write().path()).unwrap_err().to_string();
    assert!(error.contains("layers.3.mlp.experts.5.up_proj.weight` is missing"), "{error}");
    let turned = fused.tensors.get_mut("language_model.model.layers.3.mlp.experts.gate_up_proj").unwrap();
    turned.shape = vec![experts, hidden, 2 * inside];
    turned.shape.swap(0, 1);
    let error = Folder::open(fused.write().path()).unwrap_err().to_string();
    assert!(error.contains("layers.3.mlp.experts.gate_up_proj` is 128x8x128"), "{error}");
}

#[test]
fn packed_experts_can_be_apart_or_fused() {
    let draft = Draft::read(&fixture("moe-q6"));
    let whole = draft.write();
    let (mut apart, mut fused) = (draft.clone(), draft);
    apart.split_experts();
    assert!(contents(apart.write().path()) == contents(whole.path()), "apart");
    fused.fuse_experts();
    let folder = fused.write();
    assert!(contents(folder.path()) == contents(whole.path()), "fused");
    let [of_whole, of_fused] = [&whole, &folder].map(|folder| inspect(folder.path()).unwrap());
    assert_eq!(of_fused.weight_bytes, of_whole.weight_bytes);
    assert_eq!(of_fused.parameters, of_whole.parameters);
    assert_eq!(of_fused.tensor_fates.len(), 1, "scales and biases count with their weights");
}

/// Whether packing is told by full name, by a name without prefix or with another one makes no difference.
#[test]
fn exceptions_from_packing_are_found_under_every_prefix() {
    let draft = Draft::read(&fixture("moe-q6"));
    let expected = contents(draft.write().path());
    for prefix in ["", "model.", "model.language_model."] {
        let mut changed = draft.clone();
        changed.config.as_object_mut().unwrap().remove("quantization_config");
        let table = changed.config["quantization"].as_object_mut().unwrap();
        *table = std::mem::take(table)
            .into_iter()
            .map(|(key, value)| (key.replace("language_model.model.", prefix), value))
            .collect();
        assert!(contents(changed.write().path()) == expected, "{prefix}");
    }
    let mut plain = draft;
    let name = "language_model.model.layers.0.mlp.gate";
    for side in ["scales", "biases"] {
        plain.take(&format!("{name}.{side}"));
    }
    plain.put(format!("{name}.weight"), Stored::f32(&[8, 128], &[0.25; 1024]));
    plain.config["quantization"][name] = json!(false);
    let folder = plain.write();
    let role = TensorRole::Layer(Site::Main(0), Part::Router);
    let tensor = Folder::open(folder.path()).unwrap().tensor(role).unwrap().unwrap();
    assert!(matches!(tensor.data, TensorData::Plain(Float::F32, _)));
}

#[test]
fn what_is_not_the_model_itself_is_skipped_and_counted() {
    let mut draft = Draft::read(&fixture("qwen3.5-q4"));
    draft.add_prediction_head();
    let before = contents(draft.write().path());
    draft.put("vision_tower.blocks.0.attn.qkv.weight", Stored::zeros(Dtype::BF16, &[6, 2]));
    draft.put("model.visual.merger.mlp.0.bias", Stored::zeros(Dtype::F32, &[5]));
    draft.put("language_model.lm_head.weight", Stored::zeros(Dtype::BF16, &[320, 128]));
    for name in ["a", "b", "c", "d"] {
        draft.put(format!("audio_tower.{name}"), Stored::zeros(Dtype::I64, &[2]));
    }
    let folder = draft.write();
    assert!(contents(folder.path()) == before);
    let summary = inspect(folder.path()).unwrap();
    let fates: Vec<_> = summary.tensor_fates.iter().map(|f| (f.fate, f.tensors, f.bytes)).collect();
    assert_eq!(
        fates[2..],
        [(Fate::Vision, 2, Some(44)), (Fate::Derived, 1, Some(81_920)), (Fate::Unknown, 4, Some(64)),]
    );
    assert_eq!((fates[0].0, fates[1].0, fates[1].1), (Fate::Used, Fate::Prediction, 15));
    assert_eq!(summary.unknown_tensors, ["audio_tower.a", "audio_tower.b", "audio_tower.c"]);
    assert_eq!(
        (summary.prediction_layers, summary.layers["recurrent"], summary.layers["attention"]),
        (1, 6, 2)
    );
    assert_eq!(summary.weight_bytes, inspect(&fixture("qwen3.5-q4")).unwrap().weight_bytes);
}

/// What MLX packs is what the device reads, for every width, group and type of scales: `mx.quantize` and `mx.dequantize` of mlx 0.32.4 made
/// the fixture from normal deviates, the latter with scales and biases widened to f32. Both multiply and then add in f32,
/// rounding twice, so the numbers are the same to the last bit.
#[test]
fn every_affine_encoding_is_read_as_mlx_reads_it() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/affine.safetensors");
    let made = Draft::read_tensors(&path);
    let mut draft = Draft::read(&fixture("qwen3.5-q4"));
    let (module, vocab, mut read) = ("language_model.model.embed_tokens", 320, 0);
    for (name, expected) in &made {
        let Some(case) = name.strip_suffix(".expected") else { continue };
        let [bits, group, _] = case.split('.').collect::<Vec<_>>()[..] else { panic!("{case}") };
        let (bits, group): (usize, usize) = (bits.parse().unwrap(), group.parse().unwrap());
        draft.config["quantization"][module] = json!({"group_size": group, "bits": bits});
        for field in ["weight", "scales", "biases"] {
            let one = &made[&format!("{case}.{field}")];
            // Rows but the last are zeros.
            let mut all = Stored::zeros(one.dtype, &[vocab, one.shape[1]]);
            let last = all.data.len() - one.data.len();
            all.data[last..].copy_from_slice(&one.data);
            draft.put(format!("{module}.{field}"), all);
        }
        let written = draft.write();
        let tensor = Folder::open(written.path()).unwrap().tensor(TensorRole::Embedding).unwrap().unwrap();
        for precision in [Precision::F32, Precision::Int8] {
            let mut device = Cpu::new(CpuOptions { precision, threads: 1, kernel: None }).unwrap();
            let table = device.load_table(tensor.source()).unwrap();
            let row = device.embed(&table, &[vocab as u32 - 1]);
            let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(row.data()), bits(&expected.numbers()), "{case} at {precision:?}");
        }
        read += 1;
    }
    assert_eq!(read, 6 * 3 * 3);
}

/// What inspection promises is what a run takes, padding included.
#[test]
fn inspection_and_the_device_agree_on_state() {
    for name in ["llama", "qwen3-q4", "qwen3.5-q4", "moe-q6", "odd-hybrid", "odd-moe"] {
        let summary = inspect(&fixture(name)).unwrap();
        for (precision, wider) in [(Precision::Int8, 1), (Precision::F32, 2)] {
            let loaded = load(&config(&fixture(name), precision)).unwrap();
            let facts = loaded.executor.facts();
            assert_eq!(summary.snapshot_bytes.unwrap_or(0), facts.slot_bytes as u64, "{name}");
            let page = summary.state_bytes_per_token * facts.page_tokens as u64 * wider;
            assert_eq!(page, facts.page_bytes as u64, "{name} at {precision:?}");
        }
    }
}

#[test]
fn memory_is_told_at_the_contexts_asked_for() {
    let path = fixture("odd-hybrid");
    let whole = inspect(&path).unwrap();
    let contexts: Vec<u64> =
        inspect_at(&path, &[300, 1, 257]).unwrap().memory.iter().map(|at| at.tokens).collect();
    assert_eq!(contexts, [300, 1, 257]);
    let state = |tokens: u64| inspect_at(&path, &[tokens]).unwrap().memory[0].state;
    // Pages of 256 tokens are whole.
    let page = 256 * whole.state_bytes_per_token;
    assert_eq!(state(1), page + whole.snapshot_bytes.unwrap());
    assert_eq!((state(256), state(257)), (state(1), state(1) + page));
    let longest = whole.context_tokens as u64;
    assert_eq!(inspect_at(&path, &[longest]).unwrap().memory.last(), whole.memory.last());
    for absurd in [0, longest + 1, u64::MAX] {
        let error = inspect_at(&path, &[absurd]).unwrap_err().to_string();
        assert!(error.contains(&format!("holds {longest} tokens")), "{error}");
    }
}

#[test]
fn inspection_says_what_state_costs() {
    let summary = inspect(&fixture("qwen3.5-q4")).unwrap();
    assert_eq!(summary.name, "parity-qwen3.5-q4");
    // Two attention layers, keys and values, two heads of 32 columns, f16.
    assert_eq!(summary.state_bytes_per_token, 2 * 2 * 2 * 32 * 2);
    // Six recurrent layers: three inputs of 256 channels, four heads of 32x32.
    assert_eq!(summary.snapshot_bytes, Some(6 * (3 * 256 + 4 * 32 * 32) * 4));
    let at = &summary.memory[0];
    let state = 4096 * summary.state_bytes_per_token + summary.snapshot_bytes.unwrap();
    assert_eq!((at.tokens, at.state, summary.memory.len()), (4096, state, 1));
    assert_eq!(at.int8, summary.weight_bytes.map(|weights| weights + state));
    // Six bits are computed with as eight, and packed weights become f32 at that precision.
    let summary = inspect(&fixture("moe-q6")).unwrap();
    let six = summary.tensor_types.iter().find(|kind| kind.kind == "affine6").unwrap();
    let state = summary.memory[0].state;
    assert_eq!(summary.memory[0].int8, summary.weight_bytes.map(|bytes| bytes + six.elements / 4 + state));
    let experts = summary.experts.unwrap();
    assert_eq!((experts.experts, experts.per_token, experts.shared), (8, 2, 64));
    assert_eq!(inspect(&fixture("llama")).unwrap().snapshot_bytes, None);
}
