//! What is in a model, without reading its weights.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{MlpKind, ModelError, Source};

/// What a model's files say about it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelSummary {
    /// The file or folder.
    pub path: PathBuf,
    /// Display name.
    pub name: String,
    /// `gguf` or `folder`.
    pub format: &'static str,
    /// `llama`.
    pub architecture: &'static str,
    /// Layers by kind.
    pub layers: BTreeMap<&'static str, usize>,
    /// Columns of the hidden state.
    pub hidden: usize,
    /// Columns inside the MLP.
    pub intermediate: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Ids of the output.
    pub vocab: usize,
    /// Tokens the context holds.
    pub context_tokens: usize,
    /// Base of the rotary embedding.
    pub rotary_base: f64,
    /// Numbers in all tensors.
    pub parameters: u64,
    /// Tensors by encoding.
    pub tensor_types: Vec<TensorTypeSummary>,
    /// Bytes of all tensors; `None` when an encoding's size is unknown.
    pub weight_bytes: Option<u64>,
    /// Bytes of key/value state a token has at `int8` precision, which stores f16; twice that at `f32`.
    pub state_bytes_per_token: u64,
    /// Ids the tokenizer has; `None` without a tokenizer.
    pub tokenizer_tokens: Option<usize>,
    /// Whether the chat template lays out tools itself; otherwise they are folded into messages.
    pub template_takes_tools: bool,
}

impl ModelSummary {
    /// Bytes of weights and state with `tokens` tokens in context; `None` when the weights' size is unknown.
    pub fn memory_bytes(&self, tokens: u64) -> Option<u64> {
        self.weight_bytes?.checked_add(self.state_bytes_per_token.checked_mul(tokens)?)
    }
}

/// The tensors of one encoding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TensorTypeSummary {
    /// Its word: `F32`, `Q4_1`, `affine4`.
    pub kind: String,
    /// How many tensors.
    pub tensors: usize,
    /// Numbers in them.
    pub elements: u64,
    /// Bytes of them; `None` when the encoding's size is unknown.
    pub bytes: Option<u64>,
}

/// Reads configuration, tensor listing, tokenizer and template of the model at `path`.
pub fn inspect(path: &Path) -> Result<ModelSummary, ModelError> {
    let source = Source::open(path)?;
    let shape = source.shape()?;
    let text = source.text(shape.vocab)?;
    let mut kinds: BTreeMap<String, TensorTypeSummary> = BTreeMap::new();
    for tensor in source.checkpoint().listing() {
        let kind = kinds.entry(tensor.kind.clone()).or_insert_with(|| TensorTypeSummary {
            kind: tensor.kind.clone(),
            tensors: 0,
            elements: 0,
            bytes: Some(0),
        });
        kind.tensors += 1;
        kind.elements = kind.elements.saturating_add(tensor.elements);
        kind.bytes = kind.bytes.zip(tensor.bytes).map(|(a, b)| a.saturating_add(b));
    }
    let tensor_types: Vec<TensorTypeSummary> = kinds.into_values().collect();
    let sum = |total: Option<u64>, kind: &TensorTypeSummary| total?.checked_add(kind.bytes?);
    Ok(ModelSummary {
        path: path.to_owned(),
        name: source.name(),
        format: match &source {
            Source::Gguf(_) => "gguf",
            Source::Folder(_) => "folder",
        },
        architecture: shape.architecture.name(),
        layers: BTreeMap::from([("attention", shape.layers.len())]),
        hidden: shape.hidden,
        intermediate: match shape.mlp {
            MlpKind::Dense { intermediate } | MlpKind::Experts { intermediate, .. } => intermediate,
        },
        heads: shape.attention.heads,
        kv_heads: shape.attention.kv_heads,
        head_dim: shape.attention.head_dim,
        vocab: shape.vocab,
        context_tokens: shape.context,
        rotary_base: shape.attention.rotary.base,
        parameters: tensor_types.iter().fold(0, |total, kind| total.saturating_add(kind.elements)),
        weight_bytes: tensor_types.iter().fold(Some(0), sum),
        tensor_types,
        state_bytes_per_token: 2
            * 2
            * (shape.layers.len() * shape.attention.kv_heads * shape.attention.head_dim) as u64,
        tokenizer_tokens: text.has_tokenizer().then(|| text.vocabulary_size()).flatten(),
        template_takes_tools: text.template_takes_tools(),
    })
}
