//! Folders that lie: an error that names tensor and file, no panic, bounded memory.

use std::path::Path;

use escarp::config::Precision;
use escarp::model::{Folder, inspect, load};
use proptest::prelude::*;
use safetensors::Dtype;
use serde_json::{Value, json};

use super::draft::{Draft, Stored};
use super::{config, fixture, logits};

const LAYERS: &str = "language_model.model.layers";

fn hybrid() -> Draft {
    Draft::read(&fixture("qwen3.5-q4"))
}

fn experts() -> Draft {
    Draft::read(&fixture("moe-q6"))
}

#[track_caller]
fn assert_refused(folder: &Path, parts: &[&str]) {
    let error = load(&config(folder, Precision::Int8)).map(|_| ()).unwrap_err().to_string();
    assert!(error.starts_with(&*folder.to_string_lossy()), "{error}");
    for part in parts {
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
}

/// Changes `draft` and asserts that what it has become is refused.
#[track_caller]
fn refused(mut draft: Draft, change: impl FnOnce(&mut Draft), parts: &[&str]) {
    change(&mut draft);
    assert_refused(draft.write().path(), parts);
}

fn set(key: &str, value: Value) -> impl FnOnce(&mut Draft) {
    move |draft| {
        draft.text().insert(key.to_owned(), value);
    }
}

fn without(key: &str) -> impl FnOnce(&mut Draft) {
    move |draft| {
        draft.text().remove(key);
    }
}

#[test]
fn what_config_json_says_and_is_not_built_is_refused_by_key() {
    for (key, value, named) in [
        ("attention_bias", json!(true), "`attention_bias`"),
        ("hidden_act", json!("gelu"), "`hidden_act` of `gelu`"),
        ("sliding_window", json!(128), "`sliding_window`"),
        ("mtp_use_dedicated_embeddings", json!(true), "`mtp_use_dedicated_embeddings`"),
        ("rope_scaling", json!({"type": "yarn", "factor": 4}), "`rope_scaling` of type `yarn`"),
        ("rope_parameters", json!({"rope_type": "llama3", "rope_theta": 1e6}), "`rope_parameters`"),
        ("rope_traditional", json!(true), "`rope_traditional`"),
        ("full_attention_interval", json!(0), "`full_attention_interval`"),
        ("layer_types", json!(["full_attention"]), "`layer_types` has 1 entries for 8"),
        ("layer_types", json!(vec!["sliding_attention"; 8]), "`layer_types` has `\"sliding_attention\"`"),
        ("layer_types", json!(vec!["full_attention"; 8]), "disagree"),
        ("num_hidden_layers", json!(-8), "`num_hidden_layers` is not a whole number"),
        ("num_hidden_layers", json!(1_000_000), "`num_hidden_layers` is 1000000"),
        ("tie_word_embeddings", json!("yes"), "`tie_word_embeddings` is not true or false"),
        ("rms_norm_eps", json!(0), "norm epsilon"),
        ("linear_num_value_heads", json!(3), "3 recurrent value heads cannot share 2 key heads"),
        ("linear_value_head_dim", json!(1 << 24), "makes it 67108992x128"),
        ("hidden_size", json!(null), "`hidden_size` is missing"),
    ] {
        refused(hybrid(), set(key, value), &[named]);
    }
    let absurd = |draft: &mut Draft| {
        for key in ["linear_num_value_heads", "linear_value_head_dim"] {
            draft.text().insert(key.into(), json!(1 << 24));
        }
    };
    refused(hybrid(), absurd, &["config.json", "a state of 16777216 times 32x16777216"]);
    refused(hybrid(), set("rope_parameters", json!({"type": "default"})), &["`rope_theta` is missing"]);
    refused(hybrid(), without("linear_conv_kernel_dim"), &["`linear_conv_kernel_dim` is missing"]);
    refused(hybrid(), without("full_attention_interval"), &["`layer_types`", "`full_attention_interval`"]);
    for (key, value, named) in [
        ("decoder_sparse_step", json!(2), "`decoder_sparse_step` of 2"),
        ("mlp_only_layers", json!([0]), "`mlp_only_layers`"),
        ("num_experts_per_tok", json!(9), "9 experts a token of 8"),
        ("num_experts", json!(null), "`num_experts` is missing"),
        ("num_experts", json!(1 << 24), "`num_experts` is 16777216, more than 4096"),
    ] {
        refused(experts(), set(key, value), &["config.json", named]);
    }
    let dense = || Draft::read(&fixture("qwen3-q4"));
    refused(dense(), set("num_experts", json!(4)), &["`num_experts`", "`qwen3`"]);
    refused(dense(), set("use_sliding_window", json!(true)), &["`use_sliding_window`"]);
    refused(hybrid(), |draft| draft.config = json!([1]), &["config.json", "not an object"]);
}

#[test]
fn a_configuration_that_lies_about_layers_is_told_by_the_tensor() {
    let more = |draft: &mut Draft| {
        draft.text().insert("num_hidden_layers".into(), json!(12));
    };
    refused(
        hybrid(),
        more,
        &["`num_hidden_layers` is 12", "layer 8", "layers.8.input_layernorm.weight` is missing"],
    );
    let fewer = |draft: &mut Draft| {
        draft.text().insert("num_hidden_layers".into(), json!(4));
    };
    refused(
        hybrid(),
        fewer,
        &["model.safetensors", "layers.4.input_layernorm.weight", "layer 4", "`num_hidden_layers` is 4"],
    );
    let other_kinds = |draft: &mut Draft| {
        draft.text().insert("full_attention_interval".into(), json!(2));
    };
    refused(hybrid(), other_kinds, &["layers.1.self_attn.q_proj.weight` is missing"]);
}

#[test]
fn a_tensor_that_is_missing_misshapen_or_out_of_place_is_named_with_its_file() {
    let name = format!("{LAYERS}.3.self_attn.q_norm.weight");
    refused(hybrid(), |draft| drop(draft.take(&name)), &[&name, "is missing"]);
    let widen = |draft: &mut Draft| draft.put(&name, Stored::f32(&[33], &[1.0; 33]));
    refused(hybrid(), widen, &["model.safetensors", &name, "is 33", "makes it 32"]);
    let column = |draft: &mut Draft| draft.put(&name, Stored::f32(&[32, 1], &[1.0; 32]));
    refused(hybrid(), column, &[&name, "is 32x1"]);
    let bytes = |draft: &mut Draft| draft.put(&name, Stored::zeros(Dtype::F64, &[32]));
    refused(hybrid(), bytes, &["model.safetensors", &name, "F64"]);
    let bias = format!("{LAYERS}.3.self_attn.q_proj.bias");
    let biased = |draft: &mut Draft| draft.put(&bias, Stored::zeros(Dtype::F32, &[256]));
    refused(hybrid(), biased, &["model.safetensors", &bias, "no place in the `qwen3_5` architecture"]);
    let convolution = format!("{LAYERS}.0.linear_attn.conv1d.weight");
    let flat = |draft: &mut Draft| draft.tensors.get_mut(&convolution).unwrap().shape = vec![256, 4];
    refused(hybrid(), flat, &[&convolution, "256x4", "256x4x1"]);
    let mixed = |draft: &mut Draft| draft.tensors.get_mut(&convolution).unwrap().shape = vec![256, 1, 4];
    refused(hybrid(), mixed, &[&convolution, "different conventions"]);
    let twice = |draft: &mut Draft| {
        draft.put("model.embed_tokens.weight", Stored::zeros(Dtype::F32, &[320, 128]));
    };
    refused(hybrid(), twice, &["an embedding twice", "`language_model.model`"]);
    let untied = |draft: &mut Draft| {
        draft.text().insert("tie_word_embeddings".into(), json!(false));
    };
    refused(hybrid(), untied, &["lm_head.weight` is missing"]);
}

#[test]
fn a_prediction_head_must_be_whole() {
    let norm = |draft: &mut Draft| draft.put("mtp.norm.weight", Stored::zeros(Dtype::F32, &[128]));
    // Tensors of the head without a layer are no head.
    refused(hybrid(), norm, &["mtp.norm.weight", "no place"]);
    let layer = |draft: &mut Draft| {
        draft.put("mtp.layers.0.input_layernorm.weight", Stored::zeros(Dtype::F32, &[128]));
    };
    refused(hybrid(), layer, &["`mtp.fc.weight` is missing"]);
    let two = |draft: &mut Draft| {
        layer(draft);
        draft.text().insert("mtp_num_hidden_layers".into(), json!(2));
    };
    refused(hybrid(), two, &["prediction head has 1 layers", "says 2"]);
    for last in [4096, 99_999_999, usize::MAX - 1, usize::MAX] {
        let name = format!("mtp.layers.{last}.norm.weight");
        let many = |draft: &mut Draft| draft.put(&name, Stored::zeros(Dtype::F32, &[128]));
        refused(
            hybrid(),
            many,
            &["model.safetensors", &name, &format!("belongs to layer {last}"), "more than 4096"],
        );
    }
    // What is no number of a layer is no layer.
    let beyond = "mtp.layers.18446744073709551616.norm.weight";
    refused(
        hybrid(),
        |draft| draft.put(beyond, Stored::zeros(Dtype::F32, &[128])),
        &[beyond, "no place in the"],
    );
    let together = |draft: &mut Draft| {
        draft.put("mtp.layers.4090.norm.weight", Stored::zeros(Dtype::F32, &[128]));
    };
    refused(hybrid(), together, &["8 layers and 4091 of a prediction head are more than 4096 together"]);
    // A conversion may have dropped it and left the configuration as it was.
    let mut dropped = hybrid();
    dropped.text().insert("mtp_num_hidden_layers".into(), json!(1));
    assert_eq!(Folder::open(dropped.write().path()).unwrap().shape().prediction_layers, 0);
}

#[test]
fn packing_that_is_unknown_or_does_not_fit_is_named_with_the_tensor() {
    let packing = |key: &'static str, value: Value| {
        move |draft: &mut Draft| {
            draft.config.as_object_mut().unwrap().remove("quantization_config");
            draft.config["quantization"][key] = value;
        }
    };
    let embedding = "language_model.model.embed_tokens.weight";
    refused(
        hybrid(),
        packing("mode", json!("mxfp4")),
        &["model.safetensors", embedding, "`mxfp4`", "`affine`"],
    );
    refused(hybrid(), packing("bits", json!(7)), &[embedding, "7 bits"]);
    refused(hybrid(), packing("bits", json!(8)), &[embedding, "does not fit", "8 bits"]);
    refused(hybrid(), packing("group_size", json!(48)), &[embedding, "groups of 48"]);
    refused(hybrid(), packing("group_size", json!(null)), &[embedding, "lacks `bits` or `group_size`"]);
    refused(hybrid(), packing("quant_method", json!("gptq")), &["config.json", "`gptq`"]);
    let module = "language_model.model.layers.3.self_attn.k_proj";
    refused(hybrid(), packing(module, json!(false)), &[module, "is not packed"]);
    refused(hybrid(), packing(module, json!({"bits": 4})), &[module, "lacks"]);
    refused(
        hybrid(),
        packing(module, json!({"bits": 4, "group_size": 32, "mode": "nvfp4"})),
        &[module, "`nvfp4`"],
    );
    let none =
        |draft: &mut Draft| draft.config.as_object_mut().unwrap().retain(|key, _| !key.starts_with("quant"));
    refused(hybrid(), none, &[embedding, "no `quantization`"]);
    let scales = format!("{module}.scales");
    refused(hybrid(), |draft| drop(draft.take(&scales)), &["model.safetensors", &scales, "is missing"]);
    let other = |draft: &mut Draft| draft.put(&scales, Stored::zeros(Dtype::U8, &[64, 2]));
    refused(hybrid(), other, &[&scales, "is U8"]);
    // What is packed in another way but is not the model's own does no harm.
    let mut vision = hybrid();
    vision.config["quantization"]["vision_tower.proj"] =
        json!({"mode": "mxfp4", "bits": 4, "group_size": 32});
    vision.put("vision_tower.proj.weight", Stored::zeros(Dtype::U32, &[4, 4]));
    Folder::open(vision.write().path()).unwrap();
}

/// Makes number `index` of the tensor `name` something that is no number.
fn spoil(draft: &mut Draft, name: &str, index: usize) {
    let tensor = draft.tensors.get_mut(name).unwrap();
    let size = tensor.dtype.bitsize() / 8;
    let nan = match tensor.dtype {
        Dtype::F32 => f32::NAN.to_le_bytes().to_vec(),
        Dtype::BF16 => vec![0x80, 0xff],
        Dtype::F16 => vec![0, 0x7c],
        other => panic!("{other:?}"),
    };
    tensor.data[size * index..][..size].copy_from_slice(&nan);
}

/// Asserts that number `index` of the tensor `name` is refused by name, and in the shard it is in, however many shards there are.
#[track_caller]
fn assert_told_where(draft: &Draft, name: &str, index: usize) {
    let mut draft = draft.clone();
    spoil(&mut draft, name, index);
    for shards in [2, 3, 5] {
        let folder = draft.write_shards(shards);
        let map = std::fs::read(folder.path().join("model.safetensors.index.json")).unwrap();
        let map: Value = serde_json::from_slice(&map).unwrap();
        let shard = map["weight_map"][name].as_str().unwrap();
        let told = format!("{shard}: number {index} of tensor `{name}` is ");
        assert_refused(folder.path(), &[&told]);
        // Without reading weights nobody can know.
        inspect(folder.path()).unwrap();
    }
}

#[test]
fn numbers_that_are_none_are_named_with_tensor_and_file() {
    let module = format!("{LAYERS}.5.mlp.down_proj");
    for side in ["scales", "biases"] {
        assert_told_where(&hybrid(), &format!("{module}.{side}"), 7);
    }
    for dtype in [Dtype::F16, Dtype::BF16, Dtype::F32] {
        let name = format!("{LAYERS}.5.input_layernorm.weight");
        let mut draft = hybrid();
        draft.put(&name, Stored::zeros(dtype, &[128]));
        assert_told_where(&draft, &name, 127);
    }
}

#[test]
fn an_expert_whose_numbers_are_none_is_named_by_its_own_tensor() {
    let stacked = format!("{LAYERS}.2.mlp.switch_mlp");
    let groups = experts().tensors[&format!("{stacked}.up_proj.scales")].shape[2];
    assert_told_where(&experts(), &format!("{stacked}.up_proj.scales"), 5 * 64 * groups + 3);
    let mut apart = experts();
    apart.split_experts();
    for side in ["scales", "biases"] {
        for (expert, part) in [(0, "gate_proj"), (5, "up_proj"), (7, "down_proj")] {
            let name = format!("{LAYERS}.2.mlp.experts.{expert}.{part}.{side}");
            assert_told_where(&apart, &name, 11);
        }
    }
    // Of a tensor of all experts' gates and ups, its own numbers are counted.
    let mut fused = experts();
    fused.fuse_experts();
    let groups = fused.tensors[&format!("{LAYERS}.2.mlp.experts.gate_up_proj.scales")].shape[2];
    for (row, column) in [(5 * 128 + 3, 1), (5 * 128 + 64, 0), (8 * 128 - 1, groups - 1)] {
        let name = format!("{LAYERS}.2.mlp.experts.gate_up_proj.scales");
        assert_told_where(&fused, &name, row * groups + column);
    }
}

#[test]
fn scales_beside_a_plain_weight_are_a_contradiction() {
    for side in ["scales", "biases"] {
        for module in [format!("{LAYERS}.3.self_attn.q_norm"), format!("{LAYERS}.0.linear_attn.A_log")] {
            let name = format!("{module}.{side}");
            let beside = |draft: &mut Draft| draft.put(&name, Stored::zeros(Dtype::F32, &[1]));
            refused(hybrid(), beside, &["model.safetensors", &name, &module, "is F32"]);
        }
    }
}

/// A file with holes can claim any size.
#[test]
fn a_tensor_no_machine_can_hold_is_an_error_with_its_name_and_size() {
    // Where the system promises any memory, nothing fails before it is written.
    match std::fs::read_to_string("/proc/sys/vm/overcommit_memory") {
        Ok(mode) if mode.trim() != "1" => {}
        mode => return println!("skipped: this system's memory is not limited: {mode:?}"),
    }
    let (vocab, hidden) = (1 << 24, 1 << 16);
    let layer = "model.layers.0";
    let tensors = [
        ("model.embed_tokens.weight".to_owned(), vec![vocab, hidden]),
        ("model.norm.weight".into(), vec![hidden]),
        (format!("{layer}.input_layernorm.weight"), vec![hidden]),
        (format!("{layer}.post_attention_layernorm.weight"), vec![hidden]),
        (format!("{layer}.self_attn.q_proj.weight"), vec![2, hidden]),
        (format!("{layer}.self_attn.k_proj.weight"), vec![2, hidden]),
        (format!("{layer}.self_attn.v_proj.weight"), vec![2, hidden]),
        (format!("{layer}.self_attn.o_proj.weight"), vec![hidden, 2]),
        (format!("{layer}.mlp.gate_proj.weight"), vec![1, hidden]),
        (format!("{layer}.mlp.up_proj.weight"), vec![1, hidden]),
        (format!("{layer}.mlp.down_proj.weight"), vec![hidden, 1]),
    ];
    let mut end = 0;
    let entries = tensors.map(|(name, shape)| {
        let start = end;
        end += 4 * shape.iter().product::<u64>();
        (name, json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]}))
    });
    let header = Value::from_iter(entries).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, &bytes).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    if let Err(error) = file.set_len(bytes.len() as u64 + end) {
        return println!("skipped: no file of {end} bytes can be made here: {error}");
    }
    let config = json!({
        "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": 1, "intermediate_size": 1,
        "num_attention_heads": 1, "head_dim": 2, "vocab_size": vocab, "tie_word_embeddings": true,
    });
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let size = format!("cannot hold {} bytes of tensor `model.embed_tokens.weight`", vocab * hidden * 4);
    assert_refused(folder.path(), &["model.safetensors", &size]);
    assert_eq!(inspect(folder.path()).unwrap().vocab, vocab as usize);
}

#[test]
fn shards_must_be_what_the_index_says() {
    let folder = hybrid().write_shards(3);
    let (second, third) =
        (folder.path().join("model-00002-of-00003.safetensors"), "model-00003-of-00003.safetensors");
    let index = folder.path().join("model.safetensors.index.json");
    let text = std::fs::read_to_string(&index).unwrap();
    let write = |text: &str| std::fs::write(&index, text).unwrap();

    let listed = text.replacen("\"weight_map\":{", &format!("\"weight_map\":{{\"made.up\":\"{third}\","), 1);
    write(&listed);
    assert_refused(folder.path(), &[third, "`made.up`", "it is not"]);
    write(&text.replacen("\"weight_map\":{", "\"weight_map\":{\"x\":\"../secret.safetensors\",", 1));
    assert_refused(folder.path(), &["index.json", "../secret.safetensors"]);
    let (name, _) = text.split_once("\"weight_map\":{\"").unwrap().1.split_once('"').unwrap();
    write(&text.replacen("\"weight_map\":{", &format!("\"weight_map\":{{\"{name}\":\"{third}\","), 1));
    assert_refused(folder.path(), &["index.json", name, "twice"]);
    write("{\"weight_map\": 3}");
    assert_refused(folder.path(), &["index.json", "an object"]);

    write(&text);
    let bytes = std::fs::read(&second).unwrap();
    std::fs::copy(folder.path().join(third), &second).unwrap();
    assert_refused(folder.path(), &["model-00002-of-00003.safetensors", "says that tensor", "is in it"]);
    std::fs::write(&second, &bytes).unwrap();
    let extra = folder.path().join("model-00004-of-00003.safetensors");
    std::fs::copy(&second, &extra).unwrap();
    let mut map: Value = serde_json::from_str(&text).unwrap();
    let doubled = map["weight_map"].as_object().unwrap().iter();
    let doubled = doubled.filter(|(_, shard)| shard.as_str().unwrap().contains("00002"));
    let doubled = doubled.map(|(name, _)| name.clone()).next().unwrap();
    map["weight_map"][&doubled] = json!("model-00004-of-00003.safetensors");
    write(&map.to_string());
    assert_refused(folder.path(), &["model-00004", "is in this file and in", "model-00002"]);
    write(&text);
    std::fs::remove_file(&extra).unwrap();
    std::fs::remove_file(&second).unwrap();
    assert_refused(folder.path(), &["model-00002-of-00003.safetensors", "is missing", "says that tensor"]);
}

/// A file with `header` and `data` bytes of zeros, beside the configuration of the hybrid.
fn with_header(header: &str, data: usize) -> tempfile::TempDir {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(fixture("qwen3.5-q4").join("config.json"), folder.path().join("config.json")).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    folder
}

#[test]
fn headers_are_not_believed() {
    let entry = |name: &str, shape: &str, from: u64, to: u64| {
        format!("\"{name}\":{{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[{from},{to}]}}")
    };
    let a = entry("a", "[2]", 0, 8);
    for (header, named) in [
        (format!("{{{a},{a}}}"), "`a` is there twice"),
        (format!("{{{a},{}}}", entry("b", "[2]", 4, 12)), "`a` and `b` overlap"),
        (format!("{{{}}}", entry("a", "[3]", 0, 8)), "tensor `a` of shape [3]"),
        (format!("{{{}}}", entry("a", "[2]", 8, 0)), "tensor `a`"),
        (format!("{{{}}}", entry("a", "[100]", 0, 400)), "0..400 of 16"),
        (format!("{{{}}}", entry("a", "[4294967296,4294967296,4]", 0, 8)), "tensor `a`"),
        ("{\"a\":{\"dtype\":\"Q9\",\"shape\":[],\"data_offsets\":[0,0]}}".into(), "Q9"),
        ("[]".into(), "header"),
        ("{".into(), "header"),
    ] {
        assert_refused(with_header(&header, 16).path(), &["model.safetensors", named]);
    }
    // Metadata are no tensor, whatever they say.
    let folder = with_header(&format!("{{\"__metadata__\":{{\"format\":\"mlx\"}},{a}}}"), 8);
    assert_refused(folder.path(), &["embed_tokens.weight` is missing"]);
    let huge = tempfile::tempdir().unwrap();
    std::fs::copy(fixture("llama").join("config.json"), huge.path().join("config.json")).unwrap();
    std::fs::write(huge.path().join("model.safetensors"), u64::MAX.to_le_bytes()).unwrap();
    assert_refused(huge.path(), &["its header says it has 18446744073709551615 bytes"]);
}

#[test]
fn a_folder_cut_anywhere_is_an_error() {
    let draft = hybrid();
    let folder = draft.write();
    let path = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    for end in (0..bytes.len()).step_by(31_337).chain([0, 7, 8, bytes.len() - 1]) {
        std::fs::write(&path, &bytes[..end]).unwrap();
        assert_refused(folder.path(), &["model.safetensors"]);
    }
}

/// Numbers of a configuration, by path.
fn numbers(json: &Value, at: &str, out: &mut Vec<String>) {
    match json {
        Value::Number(_) => out.push(at.to_owned()),
        Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| numbers(value, &format!("{at}/{key}"), out))
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any number of the configuration may be any other: an error, or the same model where it did not matter.
    #[test]
    fn absurd_configurations_never_panic(
        which in 0usize..1000,
        value in prop_oneof![Just(0u64), Just(u64::MAX), Just(1 << 40), 1u64..1 << 24, 1u64..300],
        mixture in proptest::bool::ANY,
    ) {
        let source = fixture(if mixture { "moe-q6" } else { "qwen3.5-q4" });
        let mut json: Value = serde_json::from_slice(&std::fs::read(source.join("config.json")).unwrap()).unwrap();
        let mut all = Vec::new();
        numbers(&json, "", &mut all);
        *json.pointer_mut(&all[which % all.len()]).unwrap() = json!(value);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), json.to_string()).unwrap();
        std::fs::hard_link(source.join("model.safetensors"), folder.path().join("model.safetensors"))
            .or_else(|_| std::fs::copy(source.join("model.safetensors"), folder.path().join("model.safetensors")).map(drop))
            .unwrap();
        let _ = inspect(folder.path());
        if let Ok(mut loaded) = load(&config(folder.path(), Precision::Int8)) {
            let tokens = [1, 2];
            let tokens = &tokens[..tokens.len().min(loaded.executor.facts().context_tokens)];
            let rows = logits(&mut *loaded.executor, tokens, &[1]);
            prop_assert_eq!(rows.len(), tokens.len() * loaded.executor.facts().vocab);
        }
    }

    /// Any bytes of the header may be any others.
    #[test]
    fn corrupt_safetensors_headers_never_panic(changes in proptest::collection::vec((0usize..20_000, proptest::num::u8::ANY), 1..4)) {
        let draft = fixture("qwen3.5-q4");
        let mut bytes = std::fs::read(draft.join("model.safetensors")).unwrap();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(draft.join("config.json"), folder.path().join("config.json")).unwrap();
        std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        let _ = inspect(folder.path());
    }
}
