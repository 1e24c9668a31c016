//! Model folders in memory, to be changed and written again.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};

/// A tensor: type, shape, bytes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Stored {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) data: Vec<u8>,
}

impl Stored {
    pub(super) fn f32(shape: &[usize], numbers: &[f32]) -> Stored {
        assert_eq!(shape.iter().product::<usize>(), numbers.len());
        let data = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        Stored { dtype: Dtype::F32, shape: shape.to_vec(), data }
    }

    pub(super) fn zeros(dtype: Dtype, shape: &[usize]) -> Stored {
        let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        Stored { dtype, shape: shape.to_vec(), data: vec![0; bytes] }
    }

    pub(super) fn numbers(&self) -> Vec<f32> {
        assert_eq!(self.dtype, Dtype::F32);
        self.data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    fn view(&self) -> TensorView<'_> {
        TensorView::new(self.dtype, self.shape.clone(), &self.data).unwrap()
    }
}

/// A folder's configuration and tensors.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    pub(super) config: Value,
    pub(super) tensors: BTreeMap<String, Stored>,
}

impl Draft {
    pub(super) fn read(folder: &Path) -> Draft {
        let config = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        Draft { config, tensors: Draft::read_tensors(&folder.join("model.safetensors")) }
    }

    /// The tensors of one file.
    pub(super) fn read_tensors(path: &Path) -> BTreeMap<String, Stored> {
        let bytes = std::fs::read(path).unwrap();
        let read = SafeTensors::deserialize(&bytes).unwrap();
        let stored = |view: &TensorView<'_>| Stored {
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            data: view.data().to_vec(),
        };
        read.iter().map(|(name, view)| (name.to_owned(), stored(&view))).collect()
    }

    /// The part of the configuration that describes the text model.
    pub(super) fn text(&mut self) -> &mut serde_json::Map<String, Value> {
        let inner = self.config.get("text_config").is_some();
        let text = if inner { &mut self.config["text_config"] } else { &mut self.config };
        text.as_object_mut().unwrap()
    }

    /// Layers it says it has.
    pub(super) fn layers(&mut self) -> usize {
        self.text()["num_hidden_layers"].as_u64().unwrap() as usize
    }

    pub(super) fn rename(&mut self, new: impl Fn(&str) -> String) {
        self.tensors =
            std::mem::take(&mut self.tensors).into_iter().map(|(name, t)| (new(&name), t)).collect();
    }

    pub(super) fn take(&mut self, name: &str) -> Stored {
        self.tensors.remove(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    pub(super) fn put(&mut self, name: impl Into<String>, tensor: Stored) {
        self.tensors.insert(name.into(), tensor);
    }

    /// Gives every expert tensors of its own, as Hugging Face once did.
    pub(super) fn split_experts(&mut self) {
        for name in self.named("switch_mlp") {
            let all = self.take(&name);
            let experts = all.shape[0];
            for (expert, data) in all.data.chunks(all.data.len() / experts).enumerate() {
                let stored = Stored { dtype: all.dtype, shape: all.shape[1..].to_vec(), data: data.to_vec() };
                self.put(name.replace("switch_mlp", &format!("experts.{expert}")), stored);
            }
        }
    }

    /// Puts the gates of all experts above their ups, expert by expert, in one tensor without the suffix of a weight, and scales and
    /// biases likewise, as Hugging Face does now.
    pub(super) fn fuse_experts(&mut self) {
        let unsuffixed = |name: &str| name.strip_suffix(".weight").unwrap_or(name).to_owned();
        for name in self.named("switch_mlp.gate_proj") {
            let (gates, ups) = (self.take(&name), self.take(&name.replace("gate_proj", "up_proj")));
            let mut shape = gates.shape.clone();
            shape[1] *= 2;
            let bytes = gates.data.len() / shape[0];
            let pairs = gates.data.chunks(bytes).zip(ups.data.chunks(bytes));
            let data = pairs.flat_map(|(gate, up)| [gate, up].concat()).collect();
            let new = name.replace("switch_mlp.gate_proj", "experts.gate_up_proj");
            self.put(unsuffixed(&new), Stored { dtype: gates.dtype, shape, data });
        }
        for name in self.named("switch_mlp.down_proj") {
            let downs = self.take(&name);
            self.put(unsuffixed(&name.replace("switch_mlp", "experts")), downs);
        }
    }

    /// Adds a prediction head of one layer: its attention layer is the last layer's copy, its norms and its projection are plain.
    pub(super) fn add_prediction_head(&mut self) {
        let hidden = self.text()["hidden_size"].as_u64().unwrap() as usize;
        let below = format!("language_model.model.layers.{}.", self.layers() - 1);
        for name in self.named(&below) {
            let tensor = self.tensors[&name].clone();
            self.put(name.replace(&below, "mtp.layers.0."), tensor);
        }
        let table = self.config.get_mut("quantization").and_then(Value::as_object_mut);
        if let Some(table) = table
            && let Some(own) = table.get(&format!("{below}mlp.gate")).cloned()
        {
            table.insert("mtp.layers.0.mlp.gate".into(), own.clone());
            table.insert("mtp.layers.0.mlp.shared_expert_gate".into(), own);
        }
        let drawn = |i: usize| ((i * 7919 + i * i * 31) % 1009) as f32 / 1009.0 - 0.5;
        let scale = 2.0 / (hidden as f32).sqrt();
        let numbers: Vec<f32> = (0..2 * hidden * hidden).map(|i| drawn(i) * scale).collect();
        self.put("mtp.fc.weight", Stored::f32(&[hidden, 2 * hidden], &numbers));
        for norm in ["pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"] {
            let gains: Vec<f32> = (0..hidden).map(|i| 1.5 + drawn(i) / 2.0).collect();
            self.put(format!("mtp.{norm}.weight"), Stored::f32(&[hidden], &gains));
        }
    }

    /// The names that contain `part`.
    fn named(&self, part: &str) -> Vec<String> {
        self.tensors.keys().filter(|name| name.contains(part)).cloned().collect()
    }

    /// Writes one file.
    pub(super) fn write(&self) -> tempfile::TempDir {
        let folder = self.write_config();
        write_tensors(&folder.path().join("model.safetensors"), self.tensors.iter());
        folder
    }

    /// Writes `count` files and their index.
    pub(super) fn write_shards(&self, count: usize) -> tempfile::TempDir {
        let folder = self.write_config();
        let file = |shard: usize| format!("model-{:05}-of-{count:05}.safetensors", shard + 1);
        let mut map = serde_json::Map::new();
        for shard in 0..count {
            let part = self.tensors.iter().enumerate().filter(|(i, _)| i % count == shard).map(|(_, t)| t);
            write_tensors(&folder.path().join(file(shard)), part.clone());
            map.extend(part.map(|(name, _)| (name.clone(), json!(file(shard)))));
        }
        let index = json!({"metadata": {"total_size": 1}, "weight_map": map}).to_string();
        std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
        folder
    }

    fn write_config(&self) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), self.config.to_string()).unwrap();
        folder
    }
}

fn write_tensors<'a>(path: &Path, tensors: impl Iterator<Item = (&'a String, &'a Stored)>) {
    let views = tensors.map(|(name, tensor)| (name, tensor.view()));
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}
