//! `config.json`: what it says the model is.
//!
//! Keys are read one by one and not into a struct: which are needed, and what they default to, depends on the architecture. A key that
//! would change what is computed in a way that is not built is refused by name.

use std::path::Path;

use serde_json::{Map, Value as Json};

use crate::device::ops::{DeltaShape, ExpertShape, Rotary};
use crate::model::ModelError;
use crate::model::shape::{
    Architecture, AttentionSizes, LayerKind, MAX_EXPERTS, MAX_LAYERS, MlpKind, ModelShape,
};

use super::quantised::Quantisation;

/// What `config.json` says.
#[derive(Debug)]
pub(super) struct Configuration {
    /// Layers and sizes, those of the prediction head aside: whether there is one, the tensors say.
    pub(super) shape: ModelShape,
    /// Layers of the prediction head, where it says how many. A folder need not have kept them.
    pub(super) prediction_layers: Option<usize>,
    /// Whether the embedding is the output projection, where it says so.
    pub(super) tied: Option<bool>,
    /// Whether adjacent rows of a head rotate against each other, not its halves.
    pub(super) adjacent_rotary: bool,
    /// How weights are packed.
    pub(super) quantisation: Option<Quantisation>,
}

/// What is wrong with `config.json`, before the file's name is put to it.
#[derive(Debug)]
struct Fault {
    problem: String,
    remedy: String,
}

impl Fault {
    fn wrong(problem: impl Into<String>) -> Fault {
        Fault { problem: problem.into(), remedy: "use the config.json that belongs to the model".into() }
    }

    fn unsupported(problem: impl Into<String>) -> Fault {
        let remedy = "use a model without it; leaving it out would silently compute something else".into();
        Fault { problem: problem.into(), remedy }
    }
}

impl Configuration {
    /// Reads the text of the file at `path`.
    pub(super) fn parse(path: &Path, text: &str) -> Result<Configuration, ModelError> {
        read(text).map_err(|Fault { problem, remedy }| ModelError::file(path, problem, remedy))
    }
}

fn read(text: &str) -> Result<Configuration, Fault> {
    let json: Json = serde_json::from_str(text).map_err(|e| Fault::wrong(e.to_string()))?;
    let outer = Keys(json.as_object().ok_or_else(|| Fault::wrong("it is not an object"))?);
    let inner = outer.object("text_config")?.unwrap_or(outer);
    let mut architecture = architecture(outer)?;
    if inner.has("model_type") {
        architecture = self::architecture(inner)?;
    }
    if architecture == Architecture::Qwen35 && inner.size("num_experts")?.is_some_and(|n| n > 0) {
        architecture = Architecture::Qwen35Moe;
    }
    refuse_extensions(architecture, inner)?;
    let either = |key: &str| Ok(inner.flag(key)?.or(outer.flag(key)?));
    let packing = ["quantization", "quantization_config"]
        .into_iter()
        .find_map(|key| inner.present(key).or_else(|| outer.present(key)).map(|json| (key, json)));
    let quantisation = packing.map(|(key, json)| Quantisation::new(key, json)).transpose();
    let prediction_layers = match inner.size("mtp_num_hidden_layers")? {
        Some(layers) => Some(layers),
        None => inner.size("num_nextn_predict_layers")?,
    };
    Ok(Configuration {
        shape: shape(architecture, inner)?,
        prediction_layers,
        tied: either("tie_word_embeddings")?,
        adjacent_rotary: inner.flag("rope_traditional")? == Some(true),
        quantisation: quantisation.map_err(Fault::wrong)?,
    })
}

/// The architecture `model_type` names; that of the text part of a model for several media has `_text` behind it.
fn architecture(keys: Keys<'_>) -> Result<Architecture, Fault> {
    let found = keys.text("model_type")?.unwrap_or_default();
    let name = found.strip_suffix("_text").unwrap_or(found);
    Architecture::ALL.into_iter().find(|known| known.name() == name).ok_or_else(|| {
        let problem = match found {
            "" => "`model_type` is missing".to_owned(),
            _ => format!("`model_type` is `{found}`, an unknown architecture"),
        };
        let known: Vec<&str> = Architecture::ALL.into_iter().map(Architecture::name).collect();
        Fault { problem, remedy: format!("use a model of one of: {}", known.join(", ")) }
    })
}

fn is_hybrid(architecture: Architecture) -> bool {
    matches!(architecture, Architecture::Qwen35 | Architecture::Qwen35Moe)
}

/// Refuses keys that would change what is computed: to ignore them would give another model.
fn refuse_extensions(architecture: Architecture, keys: Keys<'_>) -> Result<(), Fault> {
    for key in ["attention_bias", "mlp_bias", "use_sliding_window", "mtp_use_dedicated_embeddings"] {
        if keys.flag(key)? == Some(true) {
            return Err(Fault::unsupported(format!("`{key}` is not supported")));
        }
    }
    if let Some(act) = keys.text("hidden_act")?.filter(|act| *act != "silu") {
        let problem = format!("`hidden_act` of `{act}` is not supported, only `silu`");
        return Err(Fault::unsupported(problem));
    }
    if keys.present("sliding_window").is_some() && keys.flag("use_sliding_window")? != Some(false) {
        return Err(Fault::unsupported("`sliding_window` is not supported"));
    }
    for key in ["rope_parameters", "rope_scaling"] {
        let kind = keys.object(key)?.map(Keys::rotary_kind).transpose()?.flatten();
        if let Some(kind) = kind.filter(|kind| *kind != "default") {
            return Err(Fault::unsupported(format!("`{key}` of type `{kind}` is not supported")));
        }
    }
    if is_hybrid(architecture) {
        if keys.flag("rope_traditional")? == Some(true) {
            return Err(Fault::unsupported("`rope_traditional` is not supported with gated attention"));
        }
    } else {
        for key in ["num_experts", "num_local_experts"] {
            if keys.size(key)?.is_some_and(|n| n > 0) {
                let problem = format!("`{key}` is not supported in a `{}` model", architecture.name());
                return Err(Fault::unsupported(problem));
            }
        }
    }
    if architecture == Architecture::Qwen35Moe {
        if let Some(step) = keys.size("decoder_sparse_step")?.filter(|step| *step != 1) {
            let problem = format!("`decoder_sparse_step` of {step} is not supported, only 1");
            return Err(Fault::unsupported(problem));
        }
        if keys.list("mlp_only_layers")?.is_some_and(|layers| !layers.is_empty()) {
            return Err(Fault::unsupported("`mlp_only_layers` is not supported"));
        }
    }
    Ok(())
}

fn shape(architecture: Architecture, keys: Keys<'_>) -> Result<ModelShape, Fault> {
    let hybrid = is_hybrid(architecture);
    let hidden = keys.need("hidden_size")?;
    let heads = keys.need("num_attention_heads")?;
    let layers = layers(hybrid, keys)?;
    let head_dim = match keys.size("head_dim")? {
        Some(head_dim) => head_dim,
        None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let problem =
                format!("`hidden_size` {hidden} is not a multiple of {heads} `num_attention_heads`");
            return Err(Fault::wrong(problem));
        }
    };
    let context = match keys.size("max_position_embeddings")? {
        Some(context) => context,
        None if architecture == Architecture::Llama => 2048,
        None => return Err(Fault::wrong("`max_position_embeddings` is missing")),
    };
    let attention = AttentionSizes {
        heads,
        kv_heads: keys.size("num_key_value_heads")?.unwrap_or(heads),
        head_dim,
        rotary: rotary(architecture, head_dim, keys)?,
        head_norms: architecture != Architecture::Llama,
        gated: hybrid && keys.flag("attn_output_gate")?.unwrap_or(true),
    };
    let delta = match layers.contains(&LayerKind::Recurrent) {
        false => None,
        true => Some(DeltaShape {
            key_heads: keys.need("linear_num_key_heads")?,
            value_heads: keys.need("linear_num_value_heads")?,
            key_dim: keys.need("linear_key_head_dim")?,
            value_dim: keys.need("linear_value_head_dim")?,
            taps: keys.need("linear_conv_kernel_dim")?,
        }),
    };
    if let Some(experts) = keys.size("num_experts")?.filter(|experts| *experts > MAX_EXPERTS) {
        return Err(Fault::wrong(format!("`num_experts` is {experts}, more than {MAX_EXPERTS}")));
    }
    let mlp = match architecture {
        Architecture::Qwen35Moe => MlpKind::Experts {
            routing: ExpertShape {
                experts: keys.need("num_experts")?,
                per_token: keys.need("num_experts_per_tok")?,
                normalised: keys.flag("norm_topk_prob")?.unwrap_or(true),
            },
            intermediate: keys.need("moe_intermediate_size")?,
            shared: keys.need("shared_expert_intermediate_size")?,
        },
        _ => MlpKind::Dense { intermediate: keys.need("intermediate_size")? },
    };
    let shape = ModelShape {
        architecture,
        layers,
        hidden,
        vocab: keys.need("vocab_size")?,
        context,
        norm_eps: keys.number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        attention,
        delta,
        mlp,
        prediction_layers: 0,
    };
    shape.checked().map_err(Fault::wrong)
}

/// The layers' kinds: a list, or every so many an attention layer.
fn layers(hybrid: bool, keys: Keys<'_>) -> Result<Vec<LayerKind>, Fault> {
    let count = keys.need("num_hidden_layers")?;
    if count > MAX_LAYERS {
        return Err(Fault::wrong(format!("`num_hidden_layers` is {count}, more than {MAX_LAYERS}")));
    }
    let interval = match hybrid {
        false => Some(1),
        true => keys.size("full_attention_interval")?,
    };
    if interval == Some(0) {
        return Err(Fault::wrong("`full_attention_interval` is 0"));
    }
    let every = |interval: usize| -> Vec<LayerKind> {
        let kind = |layer: usize| match (layer + 1).is_multiple_of(interval) {
            true => LayerKind::Attention,
            false => LayerKind::Recurrent,
        };
        (0..count).map(kind).collect()
    };
    let Some(list) = keys.list("layer_types")? else {
        return match interval {
            Some(interval) => Ok(every(interval)),
            None => Err(Fault::wrong("both `layer_types` and `full_attention_interval` are missing")),
        };
    };
    let kind = |json: &Json| match json.as_str() {
        Some("full_attention") => Ok(LayerKind::Attention),
        Some("linear_attention") => Ok(LayerKind::Recurrent),
        _ => Err(Fault::unsupported(format!("`layer_types` has `{json}`, which is not supported"))),
    };
    let layers: Vec<LayerKind> = list.iter().map(kind).collect::<Result<_, _>>()?;
    if layers.len() != count {
        let problem = format!("`layer_types` has {} entries for {count} `num_hidden_layers`", layers.len());
        return Err(Fault::wrong(problem));
    }
    match interval {
        Some(1) if !hybrid && layers != every(1) => {
            Err(Fault::unsupported("`layer_types` has layers without full attention"))
        }
        Some(interval) if layers != every(interval) => {
            let problem = format!("`layer_types` and `full_attention_interval` of {interval} disagree");
            Err(Fault::wrong(problem))
        }
        _ => Ok(layers),
    }
}

/// Positions of text are the same in every section of a multi-section embedding, so `mrope_section` changes nothing.
fn rotary(architecture: Architecture, head_dim: usize, keys: Keys<'_>) -> Result<Rotary, Fault> {
    let nested = [keys.object("rope_parameters")?, keys.object("rope_scaling")?];
    let number = |key: &str| -> Result<Option<f64>, Fault> {
        for place in nested.into_iter().flatten().chain([keys]) {
            if let Some(number) = place.number(key)? {
                return Ok(Some(number));
            }
        }
        Ok(None)
    };
    let base = match number("rope_theta")? {
        Some(base) => base,
        None if architecture == Architecture::Llama => 10_000.0,
        None => return Err(Fault::wrong("`rope_theta` is missing")),
    };
    let share = number("partial_rotary_factor")?.unwrap_or(if is_hybrid(architecture) { 0.25 } else { 1.0 });
    if !(share > 0.0 && share <= 1.0) {
        return Err(Fault::wrong(format!("`partial_rotary_factor` is {share}, not above 0 and at most 1")));
    }
    Ok(Rotary { base, dims: (head_dim as f64 * share) as usize })
}

/// An object's keys. `null` is the same as absent.
#[derive(Clone, Copy)]
struct Keys<'a>(&'a Map<String, Json>);

impl<'a> Keys<'a> {
    fn present(self, key: &str) -> Option<&'a Json> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    fn has(self, key: &str) -> bool {
        self.present(key).is_some()
    }

    fn get<T>(
        self,
        key: &str,
        wanted: &str,
        read: impl FnOnce(&'a Json) -> Option<T>,
    ) -> Result<Option<T>, Fault> {
        let Some(value) = self.present(key) else { return Ok(None) };
        match read(value) {
            Some(found) => Ok(Some(found)),
            None => Err(Fault::wrong(format!("`{key}` is not {wanted}"))),
        }
    }

    fn size(self, key: &str) -> Result<Option<usize>, Fault> {
        self.get(key, "a whole number", |value| value.as_u64().and_then(|n| usize::try_from(n).ok()))
    }

    fn need(self, key: &str) -> Result<usize, Fault> {
        self.size(key)?.ok_or_else(|| Fault::wrong(format!("`{key}` is missing")))
    }

    fn number(self, key: &str) -> Result<Option<f64>, Fault> {
        self.get(key, "a number", Json::as_f64)
    }

    fn flag(self, key: &str) -> Result<Option<bool>, Fault> {
        self.get(key, "true or false", Json::as_bool)
    }

    fn text(self, key: &str) -> Result<Option<&'a str>, Fault> {
        self.get(key, "a string", Json::as_str)
    }

    fn list(self, key: &str) -> Result<Option<&'a Vec<Json>>, Fault> {
        self.get(key, "a list", Json::as_array)
    }

    fn object(self, key: &str) -> Result<Option<Keys<'a>>, Fault> {
        self.get(key, "an object", |value| value.as_object().map(Keys))
    }

    /// The kind of rotary embedding these parameters describe, where they say.
    fn rotary_kind(self) -> Result<Option<&'a str>, Fault> {
        let kind = match self.text("rope_type")? {
            Some(kind) => Some(kind),
            None => self.text("type")?,
        };
        Ok(kind.or(self.has("factor").then_some("unnamed")))
    }
}
