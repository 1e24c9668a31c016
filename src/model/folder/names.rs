//! What tensors are called, in every layout folders come in.
//!
//! A tensor below the model's own prefixes that has no place in the architecture is refused, deliberately: a bias, a norm or a layer more
//! would change what the model computes, and to leave it out would compute something else without a word. What lies outside
//! of them (a vision tower, another model) changes nothing here, so it is skipped and counted ([`Names::fate`]).
//!
//! Scales and biases of a packed weight are no tensors of their own but its sides ([`owner`]). A weight is called `{module}.weight`,
//! or `{module}` where the layout gives it no suffix, as it does for fused experts; its sides are `{module}.scales` and
//! `{module}.biases` either way.

use crate::model::ModelError;
use crate::model::safetensors::Shards;
use crate::model::tensor::{Fate, Part, Site, TensorRole};

/// Where the layers are: below what MLX writes, below what Hugging Face writes for a model of several media, or for one of text alone.
const MODELS: &[&str] = &["language_model.model", "model.language_model", "model"];
/// Where the output projection is.
const OUTPUTS: &[&str] = &["language_model.lm_head", "lm_head", "model.lm_head"];
/// Where the prediction head is.
const PREDICTIONS: &[&str] = &["mtp", "language_model.mtp", "model.mtp", "model.language_model.mtp"];

/// The layout of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Names {
    model: &'static str,
    output: &'static str,
    prediction: &'static str,
}

impl Names {
    /// The layout the tensors of `shards` follow. A part that is there in two layouts is an error.
    pub(super) fn of(shards: &Shards) -> Result<Names, ModelError> {
        let one = |what: &str, all: &[&'static str], sign: &str| {
            let mut there = all.iter().filter(|prefix| shards.has_under(&format!("{prefix}{sign}")));
            match (there.next(), there.next()) {
                (Some(first), Some(second)) => {
                    let problem = format!("it has {what} twice, below `{first}` and below `{second}`");
                    Err(ModelError::file(shards.folder(), problem, "leave one of them in the folder"))
                }
                (first, _) => Ok(first.copied()),
            }
        };
        Ok(Names {
            model: one("an embedding", MODELS, ".embed_tokens.")?.unwrap_or("model"),
            output: one("an output projection", OUTPUTS, ".")?.unwrap_or("lm_head"),
            prediction: one("a prediction head", PREDICTIONS, ".")?.unwrap_or("mtp"),
        })
    }

    /// The module of `role`: its tensor's name without `.weight`. Where experts have a tensor each, this is what they would
    /// be called together.
    fn module(self, role: TensorRole) -> String {
        let Names { model, output, prediction } = self;
        match role {
            TensorRole::Embedding => format!("{model}.embed_tokens"),
            TensorRole::OutputNorm => format!("{model}.norm"),
            TensorRole::Output => output.to_owned(),
            TensorRole::Layer(site, part) => format!("{}.{}", self.layer(site), part_name(part)),
            TensorRole::PredictionInput => format!("{prediction}.fc"),
            TensorRole::PredictionTokenNorm => format!("{prediction}.pre_fc_norm_embedding"),
            TensorRole::PredictionHiddenNorm => format!("{prediction}.pre_fc_norm_hidden"),
            TensorRole::PredictionOutputNorm => format!("{prediction}.norm"),
        }
    }

    /// The name of `role`'s tensor.
    pub(super) fn tensor(self, role: TensorRole) -> String {
        let module = self.module(role);
        match role {
            TensorRole::Layer(_, Part::DeltaDecayRate | Part::DeltaDecayBias) => module,
            _ => format!("{module}.weight"),
        }
    }

    /// What is before the names of a layer's parts.
    pub(super) fn layer(self, site: Site) -> String {
        match site {
            Site::Main(n) => format!("{}.layers.{n}", self.model),
            Site::Prediction(n) => format!("{}.layers.{n}", self.prediction),
        }
    }

    /// The last layer of the prediction head, by the greatest number in the names, and a tensor of it; `None` without a head.
    pub(super) fn last_prediction_layer(self, shards: &Shards) -> Option<(usize, &str)> {
        let layers = shards.iter().filter_map(|(name, _)| Some((layer_number(self.prediction, name)?, name)));
        layers.max_by_key(|(layer, _)| *layer)
    }

    /// The layer of the model itself that the tensor `name` belongs to.
    pub(super) fn main_layer(self, name: &str) -> Option<usize> {
        layer_number(self.model, name)
    }

    /// What becomes of a tensor that has no role; `None` if it is one of the model's own, so that something else is meant.
    pub(super) fn fate(self, name: &str, tied: bool) -> Option<Fate> {
        let below = |prefix: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'));
        let is_vision = |part: &str| part.starts_with("vision") || part.starts_with("visual");
        if name.split('.').take(2).any(is_vision) {
            Some(Fate::Vision)
        } else if name.ends_with("rotary_emb.inv_freq") || (tied && below(self.output)) {
            Some(Fate::Derived)
        } else if below(self.model) || below(self.output) || below(self.prediction) {
            None
        } else {
            Some(Fate::Unknown)
        }
    }
}

/// The `n` of a name that begins with `{prefix}.layers.{n}.`.
fn layer_number(prefix: &str, name: &str) -> Option<usize> {
    name.strip_prefix(prefix)?.strip_prefix(".layers.")?.split_once('.')?.0.parse().ok()
}

/// The module of the tensor `name`.
pub(super) fn module_of(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

/// The tensor of `shards` that `name` is the scales or biases of, by its name; `None` if it is neither.
pub(super) fn owner(shards: &Shards, name: &str) -> Option<String> {
    let module = name.strip_suffix(".scales").or_else(|| name.strip_suffix(".biases"))?;
    [format!("{module}.weight"), module.to_owned()].into_iter().find(|owner| shards.get(owner).is_some())
}

/// A quantised module's key in `quantization`, whatever layout it is written in.
pub(super) fn canonical(module: &str) -> &str {
    let mut rest = module;
    while let Some(next) = rest.strip_prefix("language_model.").or_else(|| rest.strip_prefix("model.")) {
        rest = next;
    }
    rest
}

fn part_name(part: Part) -> &'static str {
    match part {
        Part::InputNorm => "input_layernorm",
        Part::Query => "self_attn.q_proj",
        Part::Key => "self_attn.k_proj",
        Part::Value => "self_attn.v_proj",
        Part::QueryNorm => "self_attn.q_norm",
        Part::KeyNorm => "self_attn.k_norm",
        Part::AttentionOutput => "self_attn.o_proj",
        Part::DeltaQkv => "linear_attn.in_proj_qkv",
        Part::DeltaGate => "linear_attn.in_proj_z",
        Part::DeltaBeta => "linear_attn.in_proj_b",
        Part::DeltaDecay => "linear_attn.in_proj_a",
        Part::DeltaConvolution => "linear_attn.conv1d",
        Part::DeltaDecayRate => "linear_attn.A_log",
        Part::DeltaDecayBias => "linear_attn.dt_bias",
        Part::DeltaNorm => "linear_attn.norm",
        Part::DeltaOutput => "linear_attn.out_proj",
        Part::MlpNorm => "post_attention_layernorm",
        Part::Gate => "mlp.gate_proj",
        Part::Up => "mlp.up_proj",
        Part::Down => "mlp.down_proj",
        Part::Router => "mlp.gate",
        Part::ExpertGates => "mlp.switch_mlp.gate_proj",
        Part::ExpertUps => "mlp.switch_mlp.up_proj",
        Part::ExpertDowns => "mlp.switch_mlp.down_proj",
        Part::SharedRouter => "mlp.shared_expert_gate",
        Part::SharedGate => "mlp.shared_expert.gate_proj",
        Part::SharedUp => "mlp.shared_expert.up_proj",
        Part::SharedDown => "mlp.shared_expert.down_proj",
    }
}
