//! What a model is made of: its layers, their kinds and their sizes, checked against each other.
//!
//! A file format fills a [`ModelShape`] in from its own configuration; the decoder, the cache and `inspect` read it. So what follows
//! from sizes alone (columns, state, memory) is said once, here.

use crate::device::ops::{AttentionShape, DeltaShape, ExpertShape, KvShape, MAX_TAPS, Rotary, StateShape};

use super::tensor::{Part, Site, TensorRole};

/// Layers at most. Formats check it before they make the list of them.
pub(super) const MAX_LAYERS: usize = 4096;
/// Experts of a layer at most. What a device keeps for each adds up even where their weights are small.
pub(super) const MAX_EXPERTS: usize = 4096;

/// A family of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Attention and a gated MLP.
    Llama,
    /// The same with norms on queries and keys.
    Qwen3,
    /// Gated delta layers with gated attention every few layers.
    Qwen35,
    /// The same with a mixture of experts for its MLP.
    Qwen35Moe,
}

impl Architecture {
    /// Every one.
    pub const ALL: [Architecture; 4] =
        [Architecture::Llama, Architecture::Qwen3, Architecture::Qwen35, Architecture::Qwen35Moe];

    /// Its `model_type` in `config.json`, and its `general.architecture` in GGUF.
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Llama => "llama",
            Architecture::Qwen3 => "qwen3",
            Architecture::Qwen35 => "qwen3_5",
            Architecture::Qwen35Moe => "qwen3_5_moe",
        }
    }
}

/// What a layer keeps of the tokens before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LayerKind {
    /// Keys and values of every token: state that can be cut at any position.
    Attention,
    /// A state of fixed size: it exists only at the positions where somebody captured it.
    Recurrent,
}

impl LayerKind {
    /// The word for it: `attention`, `recurrent`.
    pub fn name(self) -> &'static str {
        match self {
            LayerKind::Attention => "attention",
            LayerKind::Recurrent => "recurrent",
        }
    }
}

/// The attention layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionSizes {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Rotary embedding.
    pub rotary: Rotary,
    /// Whether each query and key head has a norm.
    pub head_norms: bool,
    /// Whether what a head gives is multiplied by a gate that is projected beside its query.
    pub gated: bool,
}

/// The part of a layer after attention or recurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MlpKind {
    /// One gated MLP.
    Dense {
        /// Columns inside.
        intermediate: usize,
    },
    /// A router, routed experts, and an expert that every token goes to.
    Experts {
        /// How tokens are routed.
        routing: ExpertShape,
        /// Columns inside a routed expert.
        intermediate: usize,
        /// Columns inside the shared expert.
        shared: usize,
    },
}

/// A model's layers and sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelShape {
    /// The family.
    pub architecture: Architecture,
    /// The layers' kinds, in order.
    pub layers: Vec<LayerKind>,
    /// Columns of the hidden state.
    pub hidden: usize,
    /// Ids.
    pub vocab: usize,
    /// Tokens the context holds.
    pub context: usize,
    /// Epsilon of the norms.
    pub norm_eps: f32,
    /// The attention layers.
    pub attention: AttentionSizes,
    /// The recurrent layers, where there are any.
    pub delta: Option<DeltaShape>,
    /// The MLPs.
    pub mlp: MlpKind,
    /// Layers of the multi-token-prediction head; 0 without one.
    pub prediction_layers: usize,
}

impl ModelShape {
    /// Checks the sizes against each other; the error names the offending ones.
    pub(super) fn checked(self) -> Result<ModelShape, String> {
        // Above any model there is, and small enough that products of two fit comfortably.
        const LIMIT: usize = 1 << 24;
        let AttentionSizes { heads, kv_heads, head_dim, rotary, .. } = self.attention;
        let mut sizes = vec![
            ("number of layers", self.layers.len()),
            ("hidden size", self.hidden),
            ("number of heads", heads),
            ("number of key/value heads", kv_heads),
            ("head size", head_dim),
            ("vocabulary", self.vocab),
            ("context", self.context),
        ];
        match self.mlp {
            MlpKind::Dense { intermediate } => sizes.push(("MLP size", intermediate)),
            MlpKind::Experts { routing, intermediate, shared } => sizes.extend([
                ("number of experts", routing.experts),
                ("number of experts a token", routing.per_token),
                ("expert size", intermediate),
                ("shared expert's size", shared),
            ]),
        }
        if let Some(delta) = self.delta {
            sizes.extend([
                ("number of recurrent key heads", delta.key_heads),
                ("number of recurrent value heads", delta.value_heads),
                ("recurrent key size", delta.key_dim),
                ("recurrent value size", delta.value_dim),
                ("convolution", delta.taps),
            ]);
        }
        if let Some((name, size)) = sizes.iter().find(|(_, size)| *size == 0 || *size > LIMIT) {
            return Err(format!("the {name} of {size} is not from 1 to {LIMIT}"));
        }
        let (own, predicting) = (self.layers.len(), self.prediction_layers);
        if own.saturating_add(predicting) > MAX_LAYERS {
            return Err(format!(
                "{own} layers and {predicting} of a prediction head are more than {MAX_LAYERS} together"
            ));
        }
        // So that bytes of pages of them can be told.
        if heads * head_dim > 1 << 32 {
            return Err(format!("{heads} heads of {head_dim} columns are absurd"));
        }
        let shares = |many: usize, what: &str, few: usize, shared: &str| match many.is_multiple_of(few) {
            true => Ok(()),
            false => Err(format!("{many} {what} cannot share {few} {shared} evenly")),
        };
        shares(heads, "heads", kv_heads, "key/value heads")?;
        if let Some(delta) = self.delta {
            shares(delta.value_heads, "recurrent value heads", delta.key_heads, "key heads")?;
            let (keys, values) = (delta.key_heads * delta.key_dim, delta.values());
            let matrices = delta.key_dim.checked_mul(values);
            if keys > 1 << 32 || values > 1 << 32 || matrices.is_none_or(|elements| elements > 1 << 40) {
                let DeltaShape { value_heads, key_dim, value_dim, .. } = delta;
                return Err(format!("a state of {value_heads} times {key_dim}x{value_dim} is absurd"));
            }
            if delta.taps > MAX_TAPS {
                return Err(format!("a convolution over {} tokens is longer than {MAX_TAPS}", delta.taps));
            }
        }
        if self.delta.is_some() != self.layers.contains(&LayerKind::Recurrent) {
            return Err("recurrent layers and their sizes do not go together".into());
        }
        if !self.layers.contains(&LayerKind::Attention) {
            return Err("no layer is an attention layer".into());
        }
        if let MlpKind::Experts { routing: ExpertShape { experts, per_token, .. }, .. } = self.mlp {
            if experts > MAX_EXPERTS {
                return Err(format!("{experts} experts are more than {MAX_EXPERTS}"));
            }
            if per_token > experts {
                return Err(format!("{per_token} experts a token of {experts} experts"));
            }
        }
        if !rotary.dims.is_multiple_of(2) || rotary.dims > head_dim || rotary.dims == 0 {
            return Err(format!("{} rotary dimensions do not fit heads of {head_dim}", rotary.dims));
        }
        if !(rotary.base.is_finite() && rotary.base >= 1.0) {
            return Err(format!("the rotary base of {} is not a number of at least 1", rotary.base));
        }
        if !(self.norm_eps > 0.0 && self.norm_eps < 1.0) {
            return Err(format!("the norm epsilon of {} is not between 0 and 1", self.norm_eps));
        }
        Ok(self)
    }

    /// The same with a multi-token-prediction head of `layers` layers, checked.
    pub(super) fn with_prediction(&self, layers: usize) -> Result<ModelShape, String> {
        ModelShape { prediction_layers: layers, ..self.clone() }.checked()
    }

    /// The first `layers` layers as a model of its own, without a prediction head.
    pub(super) fn first_layers(&self, layers: usize) -> Result<ModelShape, String> {
        let own = self.layers.len();
        if layers > own {
            return Err(format!("it has {own} layers, not {layers}"));
        }
        let kinds = self.layers[..layers].to_vec();
        if !kinds.contains(&LayerKind::Attention) {
            let first = self.layers.iter().position(|kind| *kind == LayerKind::Attention).unwrap_or(own);
            return Err(format!(
                "none of its first {layers} layers is an attention layer, whose queries score; that is layer {first}, so {} at least",
                first + 1
            ));
        }
        let delta = self.delta.filter(|_| kinds.contains(&LayerKind::Recurrent));
        ModelShape { layers: kinds, delta, prediction_layers: 0, ..self.clone() }.checked()
    }

    /// The role of every tensor a model of this shape has. [`TensorRole::Output`] is among them, though the embedding may serve for it.
    pub fn roles(&self) -> impl Iterator<Item = TensorRole> {
        let AttentionSizes { head_norms, .. } = self.attention;
        let experts = matches!(self.mlp, MlpKind::Experts { .. });
        let layer = move |site: Site, kind: LayerKind| {
            let inner: &[Part] = match kind {
                LayerKind::Attention => &[Part::Query, Part::Key, Part::Value, Part::AttentionOutput],
                LayerKind::Recurrent => &[
                    Part::DeltaQkv,
                    Part::DeltaGate,
                    Part::DeltaBeta,
                    Part::DeltaDecay,
                    Part::DeltaConvolution,
                    Part::DeltaDecayRate,
                    Part::DeltaDecayBias,
                    Part::DeltaNorm,
                    Part::DeltaOutput,
                ],
            };
            let norms: &[Part] = match kind {
                LayerKind::Attention if head_norms => &[Part::QueryNorm, Part::KeyNorm],
                _ => &[],
            };
            let mlp: &[Part] = match experts {
                false => &[Part::Gate, Part::Up, Part::Down],
                true => &[
                    Part::Router,
                    Part::ExpertGates,
                    Part::ExpertUps,
                    Part::ExpertDowns,
                    Part::SharedRouter,
                    Part::SharedGate,
                    Part::SharedUp,
                    Part::SharedDown,
                ],
            };
            let outer = &[Part::InputNorm, Part::MlpNorm];
            let parts = outer.iter().chain(inner).chain(norms).chain(mlp);
            parts.map(move |part| TensorRole::Layer(site, *part))
        };
        let main = self.layers.iter().enumerate().flat_map(move |(n, kind)| layer(Site::Main(n), *kind));
        let prediction =
            (0..self.prediction_layers).flat_map(move |n| layer(Site::Prediction(n), LayerKind::Attention));
        let head: &[TensorRole] = match self.prediction_layers {
            0 => &[],
            _ => &[
                TensorRole::PredictionInput,
                TensorRole::PredictionTokenNorm,
                TensorRole::PredictionHiddenNorm,
                TensorRole::PredictionOutputNorm,
            ],
        };
        [TensorRole::Embedding, TensorRole::OutputNorm, TensorRole::Output]
            .into_iter()
            .chain(main)
            .chain(head.iter().copied())
            .chain(prediction)
    }

    /// Layers of a kind.
    pub fn count(&self, kind: LayerKind) -> usize {
        self.layers.iter().filter(|layer| **layer == kind).count()
    }

    /// The attention layers' heads.
    pub fn attention_shape(&self) -> AttentionShape {
        let AttentionSizes { heads, kv_heads, head_dim, gated, .. } = self.attention;
        let scale = (1.0 / (head_dim as f64).sqrt()) as f32;
        AttentionShape { heads, kv_heads, head_dim, scale, gated }
    }

    /// The key/value store the attention layers need.
    pub fn kv(&self, page_tokens: usize) -> KvShape {
        let AttentionSizes { kv_heads, head_dim, .. } = self.attention;
        KvShape { layers: self.count(LayerKind::Attention), kv_heads, head_dim, page_tokens }
    }

    /// The recurrent state the recurrent layers need; `None` without such layers.
    pub fn states(&self) -> Option<StateShape> {
        self.delta.map(|delta| StateShape { layers: self.count(LayerKind::Recurrent), delta })
    }

    /// Rows and columns of the tensor of `role`; stacked experts count as rows below each other.
    pub(super) fn tensor(&self, role: TensorRole) -> (usize, usize) {
        let hidden = self.hidden;
        let AttentionSizes { heads, kv_heads, head_dim, gated, .. } = self.attention;
        let delta = self.delta.unwrap_or(DeltaShape::NONE);
        let (dense, experts, expert, shared) = match self.mlp {
            MlpKind::Dense { intermediate } => (intermediate, 0, 0, 0),
            MlpKind::Experts { routing, intermediate, shared } => (0, routing.experts, intermediate, shared),
        };
        let part = match role {
            TensorRole::Embedding | TensorRole::Output => return (self.vocab, hidden),
            TensorRole::OutputNorm => return (1, hidden),
            TensorRole::PredictionInput => return (hidden, 2 * hidden),
            TensorRole::PredictionTokenNorm
            | TensorRole::PredictionHiddenNorm
            | TensorRole::PredictionOutputNorm => return (1, hidden),
            TensorRole::Layer(_, part) => part,
        };
        match part {
            Part::InputNorm | Part::MlpNorm => (1, hidden),
            Part::Query => (heads * head_dim * if gated { 2 } else { 1 }, hidden),
            Part::Key | Part::Value => (kv_heads * head_dim, hidden),
            Part::QueryNorm | Part::KeyNorm => (1, head_dim),
            Part::AttentionOutput => (hidden, heads * head_dim),
            Part::DeltaQkv => (delta.channels(), hidden),
            Part::DeltaGate => (delta.values(), hidden),
            Part::DeltaBeta | Part::DeltaDecay => (delta.value_heads, hidden),
            Part::DeltaConvolution => (delta.channels(), delta.taps),
            Part::DeltaDecayRate | Part::DeltaDecayBias => (1, delta.value_heads),
            Part::DeltaNorm => (1, delta.value_dim),
            Part::DeltaOutput => (hidden, delta.values()),
            Part::Gate | Part::Up => (dense, hidden),
            Part::Down => (hidden, dense),
            Part::Router => (experts, hidden),
            Part::ExpertGates | Part::ExpertUps => (experts * expert, hidden),
            Part::ExpertDowns => (experts * hidden, expert),
            Part::SharedRouter => (1, hidden),
            Part::SharedGate | Part::SharedUp => (shared, hidden),
            Part::SharedDown => (hidden, shared),
        }
    }
}
