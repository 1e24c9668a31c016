//! A folder in Hugging Face's or MLX's layout: `config.json`, safetensors, and a tokenizer where there is one.

use std::path::Path;

use safetensors::Dtype;
use serde::Deserialize;
use serde_json::Value as Json;

use crate::device::ops::Rotary;
use crate::device::weights::{Float, RowOrder};

use super::ModelError;
use super::file::read_small;
use super::safetensors::{Place, Shards};
use super::shape::{Architecture, AttentionSizes, LayerKind, MAX_LAYERS, MlpKind, ModelShape};
use super::tensor::{Checkpoint, Part, Site, Tensor, TensorData, TensorListing, TensorRole};

/// Bytes of `config.json` at most.
const MAX_CONFIG: u64 = 4 << 20;

/// A model folder, its tensors not yet read.
#[derive(Debug)]
pub struct Folder {
    shards: Shards,
    config: FolderConfig,
    quantization: Option<Quantization>,
}

/// The keys of `config.json` that matter to a `llama` model.
#[derive(Debug, Deserialize)]
struct FolderConfig {
    hidden_size: usize,
    num_hidden_layers: usize,
    intermediate_size: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: usize,
    #[serde(default = "default_context")]
    max_position_embeddings: usize,
    #[serde(default = "default_eps")]
    rms_norm_eps: f32,
    rope_theta: Option<f64>,
    rope_scaling: Option<Json>,
    rope_parameters: Option<Json>,
    rope_traditional: Option<bool>,
    partial_rotary_factor: Option<f64>,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    hidden_act: Option<String>,
    sliding_window: Option<Json>,
    quantization: Option<Json>,
    quantization_config: Option<Json>,
}

fn default_context() -> usize {
    2048
}

fn default_eps() -> f32 {
    1e-6
}

/// MLX's `quantization`: affine, with exceptions by tensor.
#[derive(Debug, Clone)]
struct Quantization {
    group: usize,
    bits: usize,
    table: serde_json::Map<String, Json>,
}

impl Folder {
    /// Reads `config.json` and the tensors' places. Gives the folder and its `model_type`.
    pub fn open(path: &Path) -> Result<Folder, ModelError> {
        let config_path = path.join("config.json");
        let text = read_small(&config_path, MAX_CONFIG)?.ok_or_else(|| {
            ModelError::file(path, "it has no config.json", "give a model folder, or a GGUF file")
        })?;
        let wrong = |problem: String| {
            ModelError::file(&config_path, problem, "use the config.json that belongs to the model")
        };
        let json: Json = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
        let model_type = json.get("model_type").and_then(Json::as_str).unwrap_or_default();
        super::check_architecture(&config_path, "model_type", model_type)?;
        let config: FolderConfig = serde_json::from_value(json).map_err(|e| wrong(e.to_string()))?;
        let quantization = match config.quantization.as_ref().or(config.quantization_config.as_ref()) {
            Some(json) => Some(Quantization::new(json).map_err(wrong)?),
            None => None,
        };
        let shards = Shards::open(path)?;
        Ok(Folder { shards, config, quantization })
    }

    /// The model's sizes, or what about them is unsupported.
    pub fn shape(&self) -> Result<ModelShape, ModelError> {
        let c = &self.config;
        let unsupported = |problem: String| {
            ModelError::file(
                &self.shards.folder().join("config.json"),
                problem,
                "use a model without it; leaving it out would silently compute something else",
            )
        };
        let rope = c.rope_parameters.as_ref().or(c.rope_scaling.as_ref());
        if let Some(kind) = rope.and_then(rope_kind)
            && kind != "default"
        {
            return Err(unsupported(format!("`rope_scaling` of type `{kind}` is not supported")));
        }
        for (name, on) in [("attention_bias", c.attention_bias), ("mlp_bias", c.mlp_bias)] {
            if on == Some(true) {
                return Err(unsupported(format!("`{name}` is not supported")));
            }
        }
        if let Some(act) = c.hidden_act.as_deref().filter(|act| *act != "silu") {
            return Err(unsupported(format!("`hidden_act` of `{act}` is not supported, only `silu`")));
        }
        if c.sliding_window.as_ref().is_some_and(|window| !window.is_null()) {
            return Err(unsupported("`sliding_window` is not supported".into()));
        }
        let wrong = |problem: String| {
            let remedy = "use the config.json that belongs to the model";
            ModelError::file(&self.shards.folder().join("config.json"), problem, remedy)
        };
        if c.num_attention_heads == 0 {
            return Err(wrong("`num_attention_heads` is 0".into()));
        }
        let head_dim = match c.head_dim {
            Some(head_dim) => head_dim,
            None if c.hidden_size.is_multiple_of(c.num_attention_heads) => {
                c.hidden_size / c.num_attention_heads
            }
            None => {
                let (hidden, heads) = (c.hidden_size, c.num_attention_heads);
                return Err(wrong(format!("`hidden_size` {hidden} is not a multiple of {heads} heads")));
            }
        };
        let base = rope.and_then(|r| r.get("rope_theta")).and_then(Json::as_f64).or(c.rope_theta);
        if c.num_hidden_layers > MAX_LAYERS {
            return Err(wrong(format!(
                "`num_hidden_layers` is {}, more than {MAX_LAYERS}",
                c.num_hidden_layers
            )));
        }
        let shape = ModelShape {
            architecture: Architecture::Llama,
            layers: vec![LayerKind::Attention; c.num_hidden_layers],
            hidden: c.hidden_size,
            vocab: c.vocab_size,
            context: c.max_position_embeddings,
            norm_eps: c.rms_norm_eps,
            attention: AttentionSizes {
                heads: c.num_attention_heads,
                kv_heads: c.num_key_value_heads.unwrap_or(c.num_attention_heads),
                head_dim,
                rotary: Rotary {
                    base: base.unwrap_or(10_000.0),
                    dims: (head_dim as f64 * c.partial_rotary_factor.unwrap_or(1.0)) as usize,
                },
                head_norms: false,
                gated: false,
            },
            delta: None,
            mlp: MlpKind::Dense { intermediate: c.intermediate_size },
            prediction_layers: 0,
        };
        shape.checked().map_err(wrong)
    }

    fn affine(&self, base: &str, weight: &Place) -> Result<Tensor, ModelError> {
        let name = format!("{base}.weight");
        let path = self.shards.folder();
        let wrong =
            |problem: String| ModelError::file(path, problem, "use a model quantised by MLX's affine mode");
        let quantization = self.quantization.as_ref().ok_or_else(|| {
            wrong(format!("tensor `{name}` is packed, but config.json has no `quantization`"))
        })?;
        let (group, bits) = quantization.of(base).map_err(wrong)?;
        let part = |suffix: &str| {
            let name = format!("{base}.{suffix}");
            let place = self.shards.get(&name).ok_or_else(|| wrong(format!("tensor `{name}` is missing")))?;
            let kind =
                float(place.dtype).ok_or_else(|| wrong(format!("tensor `{name}` is {}", place.dtype)))?;
            Ok::<_, ModelError>((kind, place))
        };
        let (scales, biases) = (part("scales")?, part("biases")?);
        let shape = |place: &Place| match place.shape[..] {
            [rows, cols] => Ok((rows, cols)),
            _ => Err(wrong(format!("tensor `{name}` or its scales are not matrices"))),
        };
        let (rows, words) = shape(weight)?;
        let (scale_rows, groups) = shape(scales.1)?;
        let cols = groups.saturating_mul(group);
        let fits = cols.checked_mul(bits).is_some_and(|b| Some(b) == words.checked_mul(32));
        if !fits || scale_rows != rows || scales.1.shape != biases.1.shape {
            return Err(wrong(format!(
                "tensor `{name}` of shape {:?} does not fit scales of shape {:?} in groups of {group} and {bits} bits",
                weight.shape, scales.1.shape
            )));
        }
        let data = TensorData::Affine {
            bits,
            group,
            packed: self.shards.read(weight)?,
            scales: (scales.0, self.shards.read(scales.1)?),
            biases: (biases.0, self.shards.read(biases.1)?),
        };
        Ok(Tensor { name, rows, cols, order: RowOrder::Halves, data })
    }

    fn plain(&self, name: String, place: &Place) -> Result<Tensor, ModelError> {
        let path = self.shards.folder();
        let Some(kind) = float(place.dtype) else {
            let problem = format!("tensor `{name}` is {}", place.dtype);
            return Err(ModelError::file(
                path,
                problem,
                "use a model in F32, F16, BF16 or MLX's affine quantisation",
            ));
        };
        let (rows, cols) = match place.shape[..] {
            [cols] => (1, cols),
            [rows, cols] => (rows, cols),
            _ => {
                let problem = format!("tensor `{name}` has the shape {:?}", place.shape);
                return Err(ModelError::file(path, problem, "fetch the model again"));
            }
        };
        let data = TensorData::Plain(kind, self.shards.read(place)?);
        Ok(Tensor { name, rows, cols, order: RowOrder::Halves, data })
    }

    fn base_of(&self, role: TensorRole) -> String {
        let (layer, part) = match role {
            TensorRole::Embedding => return "model.embed_tokens".into(),
            TensorRole::OutputNorm => return "model.norm".into(),
            TensorRole::Output => return "lm_head".into(),
            TensorRole::Layer(Site::Main(layer), part) => (layer, part),
            _ => return "mtp".into(),
        };
        let part = match part {
            Part::InputNorm => "input_layernorm",
            Part::Query => "self_attn.q_proj",
            Part::Key => "self_attn.k_proj",
            Part::Value => "self_attn.v_proj",
            Part::AttentionOutput => "self_attn.o_proj",
            Part::MlpNorm => "post_attention_layernorm",
            Part::Gate => "mlp.gate_proj",
            Part::Up => "mlp.up_proj",
            Part::Down => "mlp.down_proj",
            _ => "unknown",
        };
        format!("model.layers.{layer}.{part}")
    }
}

impl Checkpoint for Folder {
    fn tensor(&self, role: TensorRole) -> Result<Option<Tensor>, ModelError> {
        // With tied embeddings an output projection in the file is a copy.
        if role == TensorRole::Output && self.config.tie_word_embeddings == Some(true) {
            return Ok(None);
        }
        let base = self.base_of(role);
        let name = format!("{base}.weight");
        match self.shards.get(&name) {
            None => Ok(None),
            Some(place) if place.dtype == Dtype::U32 => self.affine(&base, place).map(Some),
            Some(place) => self.plain(name, place).map(Some),
        }
    }

    fn name_of(&self, role: TensorRole) -> Option<String> {
        Some(format!("{}.weight", self.base_of(role)))
    }

    fn head_order(&self, head_dim: usize) -> RowOrder {
        match self.config.rope_traditional {
            Some(true) => RowOrder::Pairs { head_dim },
            _ => RowOrder::Halves,
        }
    }

    fn path(&self) -> &Path {
        self.shards.folder()
    }

    fn listing(&self) -> Vec<TensorListing> {
        let mut listing = Vec::new();
        for (name, place) in self.shards.iter() {
            // Scales and biases count with the weight they belong to.
            let packed_base = name
                .strip_suffix(".scales")
                .or_else(|| name.strip_suffix(".biases"))
                .filter(|base| self.shards.get(&format!("{base}.weight")).is_some());
            if packed_base.is_some() {
                continue;
            }
            let base = name.strip_suffix(".weight").unwrap_or(name);
            let packed = self.quantization.as_ref().filter(|_| place.dtype == Dtype::U32);
            let side = |suffix| self.shards.get(&format!("{base}.{suffix}")).map_or(0, Place::bytes);
            listing.push(match packed.and_then(|q| q.of(base).ok()) {
                Some((_, bits)) => TensorListing {
                    name: name.to_owned(),
                    kind: format!("affine{bits}"),
                    elements: place.elements().saturating_mul(32) / bits.max(1) as u64,
                    bytes: Some(place.bytes() + side("scales") + side("biases")),
                },
                None => TensorListing {
                    name: name.to_owned(),
                    kind: place.dtype.to_string(),
                    elements: place.elements(),
                    bytes: Some(place.bytes()),
                },
            });
        }
        listing
    }
}

impl Quantization {
    fn new(json: &Json) -> Result<Quantization, String> {
        let table = json.as_object().cloned().ok_or("`quantization` is not an object")?;
        if let Some(mode) = table.get("mode").and_then(Json::as_str).filter(|mode| *mode != "affine") {
            return Err(format!("`quantization.mode` of `{mode}` is not supported, only `affine`"));
        }
        if let Some(method) = table.get("quant_method").and_then(Json::as_str) {
            return Err(format!("`quantization_config.quant_method` of `{method}` is not supported"));
        }
        let (group, bits) = group_and_bits(&table).ok_or("`quantization` lacks `group_size` or `bits`")?;
        let quantization = Quantization { group, bits, table };
        quantization.of("")?;
        Ok(quantization)
    }

    /// Group size and bits of the layer `base`.
    fn of(&self, base: &str) -> Result<(usize, usize), String> {
        let own = self.table.get(base).and_then(Json::as_object).and_then(group_and_bits);
        let (group, bits) = own.unwrap_or((self.group, self.bits));
        if !matches!(bits, 2 | 3 | 4 | 5 | 6 | 8) || !matches!(group, 16 | 32 | 64 | 128) {
            return Err(format!("`quantization` of `{base}` has {bits} bits in groups of {group}"));
        }
        Ok((group, bits))
    }
}

fn group_and_bits(table: &serde_json::Map<String, Json>) -> Option<(usize, usize)> {
    let number = |key: &str| table.get(key).and_then(Json::as_u64).and_then(|n| usize::try_from(n).ok());
    Some((number("group_size")?, number("bits")?))
}

fn rope_kind(rope: &Json) -> Option<&str> {
    if rope.is_null() {
        return None;
    }
    let kind = rope.get("rope_type").or_else(|| rope.get("type"));
    match kind {
        Some(kind) => Some(kind.as_str().unwrap_or("unnamed")),
        None if rope.get("factor").is_some() => Some("unnamed"),
        None => None,
    }
}

fn float(dtype: Dtype) -> Option<Float> {
    match dtype {
        Dtype::F32 => Some(Float::F32),
        Dtype::F16 => Some(Float::F16),
        Dtype::BF16 => Some(Float::Bf16),
        _ => None,
    }
}
