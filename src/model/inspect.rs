//! What is in a model, without reading its weights.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::config::{Config, Precision};
use crate::device::DeviceError;
use crate::device::cpu::{Cpu, CpuOptions, kept_bits};
use crate::device::ops::Device;

use super::tensor::{Checkpoint, Fate, Part, TensorListing, TensorRole};
use super::{LayerKind, MlpKind, ModelError, ModelShape, Source};

/// Contexts whose memory is told where none are asked for, besides the model's longest.
const CONTEXTS: [u64; 3] = [4096, 32_768, 131_072];
/// Names of unknown tensors that are told.
const MAX_UNKNOWN: usize = 3;

/// What a model's files say about it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelSummary {
    /// The file or folder.
    pub path: PathBuf,
    /// Display name.
    pub name: String,
    /// `gguf` or `folder`.
    pub format: &'static str,
    /// Its family, as `model_type` names it.
    pub architecture: &'static str,
    /// Layers by kind.
    pub layers: BTreeMap<&'static str, usize>,
    /// Columns of the hidden state.
    pub hidden: usize,
    /// Columns inside the MLP, or inside one routed expert.
    pub intermediate: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Whether each query and key head has a norm.
    pub head_norms: bool,
    /// Whether what a head gives is gated.
    pub gated: bool,
    /// Columns of a head that rotate.
    pub rotary_dims: usize,
    /// Base of the rotary embedding.
    pub rotary_base: f64,
    /// The recurrent layers, where there are any.
    pub recurrent: Option<RecurrentSummary>,
    /// The experts, where there are any.
    pub experts: Option<ExpertSummary>,
    /// Layers of the multi-token-prediction head; 0 without one.
    pub prediction_layers: usize,
    /// Ids of the output.
    pub vocab: usize,
    /// Tokens the context holds.
    pub context_tokens: usize,
    /// Numbers in the tensors the model computes with.
    pub parameters: u64,
    /// The tensors the model computes with, by encoding.
    pub tensor_types: Vec<TensorTypeSummary>,
    /// All tensors, by what becomes of them; what there is none of is left out.
    pub tensor_fates: Vec<TensorFateSummary>,
    /// Names of tensors that belong to something unknown, the first few.
    pub unknown_tensors: Vec<String>,
    /// Bytes in the files of the tensors the model computes with; `None` when an encoding's size is unknown.
    pub weight_bytes: Option<u64>,
    /// Bytes of keys and values a token takes on the `cpu` device at `int8` precision, which stores f16; twice that at `f32`.
    pub state_bytes_per_token: u64,
    /// Bytes one snapshot of the recurrent state takes on the `cpu` device; `None` without recurrent layers.
    pub snapshot_bytes: Option<u64>,
    /// What it takes in memory, by context.
    pub memory: Vec<MemorySummary>,
    /// Ids the tokenizer has; `None` without a tokenizer.
    pub tokenizer_tokens: Option<usize>,
    /// Whether the chat template lays out tools itself; otherwise they are folded into messages.
    pub template_takes_tools: bool,
}

/// The recurrent layers' heads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecurrentSummary {
    /// Query and key heads.
    pub key_heads: usize,
    /// Value heads, each with a state of its own.
    pub value_heads: usize,
    /// Columns of a query or key head.
    pub key_dim: usize,
    /// Columns of a value head.
    pub value_dim: usize,
    /// Tokens the short convolution spans.
    pub taps: usize,
}

/// A layer's experts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExpertSummary {
    /// Routed experts.
    pub experts: usize,
    /// Routed experts a token goes to.
    pub per_token: usize,
    /// Columns inside the expert that every token goes to.
    pub shared: usize,
    /// Whether the weights of a token's experts are scaled to sum to 1.
    pub normalised: bool,
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

/// The tensors of one fate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TensorFateSummary {
    /// What becomes of them.
    pub fate: Fate,
    /// How many tensors.
    pub tensors: usize,
    /// Bytes of them; `None` when an encoding's size is unknown.
    pub bytes: Option<u64>,
}

/// Bytes of weights and of one sequence's state on the `cpu` device: keys and values in whole pages, and recurrent state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemorySummary {
    /// Tokens in context.
    pub tokens: u64,
    /// The state alone at `int8` precision.
    pub state: u64,
    /// With weights, at `int8` precision; `None` when the weights' size is unknown.
    pub int8: Option<u64>,
    /// With weights, at `f32` precision.
    pub f32: Option<u64>,
}

/// Reads configuration, tensor listing, tokenizer and template of the model at `path`. What memory it takes is told for a few usual
/// contexts and the longest.
pub fn inspect(path: &Path) -> Result<ModelSummary, ModelError> {
    inspect_at(path, &[])
}

/// The same with what memory it takes in contexts of `contexts` tokens, where there are any: each from 1 to what the model holds.
pub fn inspect_at(path: &Path, contexts: &[u64]) -> Result<ModelSummary, ModelError> {
    let source = Source::open(path)?;
    let shape = source.shape()?;
    let longest = shape.context as u64;
    if let Some(tokens) = contexts.iter().find(|tokens| **tokens == 0 || **tokens > longest) {
        let problem = format!("its context holds {longest} tokens, so there is none of {tokens}");
        return Err(ModelError::file(path, problem, "ask for one from 1 to that"));
    }
    let usual = CONTEXTS.into_iter().filter(|tokens| *tokens < longest).chain([longest]);
    let contexts = if contexts.is_empty() { usual.collect() } else { contexts.to_vec() };
    let state = |precision| {
        StateSize::new(&shape, precision)
            .map_err(|source| ModelError::Device { path: path.to_owned(), source })
    };
    let (int8, f32) = (state(Precision::Int8)?, state(Precision::F32)?);
    let text = source.text(shape.vocab)?;
    let listing = source.checkpoint().listing();
    let used: Vec<&TensorListing> = listing.iter().filter(|tensor| tensor.fate == Fate::Used).collect();
    let tensor_types = by_encoding(&used);
    let unknown = listing.iter().filter(|tensor| tensor.fate == Fate::Unknown);
    let (intermediate, experts) = match shape.mlp {
        MlpKind::Dense { intermediate } => (intermediate, None),
        MlpKind::Experts { routing, intermediate, shared } => {
            let (experts, per_token, normalised) = (routing.experts, routing.per_token, routing.normalised);
            (intermediate, Some(ExpertSummary { experts, per_token, shared, normalised }))
        }
    };
    let kinds = [LayerKind::Attention, LayerKind::Recurrent].map(|kind| (kind.name(), shape.count(kind)));
    Ok(ModelSummary {
        path: path.to_owned(),
        name: source.name(),
        format: match &source {
            Source::Gguf(_) => "gguf",
            Source::Folder(_) => "folder",
        },
        architecture: shape.architecture.name(),
        layers: kinds.into_iter().filter(|(_, count)| *count > 0).collect(),
        hidden: shape.hidden,
        intermediate,
        heads: shape.attention.heads,
        kv_heads: shape.attention.kv_heads,
        head_dim: shape.attention.head_dim,
        head_norms: shape.attention.head_norms,
        gated: shape.attention.gated,
        rotary_dims: shape.attention.rotary.dims,
        rotary_base: shape.attention.rotary.base,
        recurrent: shape.delta.map(|delta| RecurrentSummary {
            key_heads: delta.key_heads,
            value_heads: delta.value_heads,
            key_dim: delta.key_dim,
            value_dim: delta.value_dim,
            taps: delta.taps,
        }),
        experts,
        prediction_layers: shape.prediction_layers,
        vocab: shape.vocab,
        context_tokens: shape.context,
        parameters: tensor_types.iter().fold(0, |total, kind| total.saturating_add(kind.elements)),
        weight_bytes: total(used.iter().map(|tensor| tensor.bytes)),
        tensor_types,
        tensor_fates: by_fate(&listing),
        unknown_tensors: unknown.take(MAX_UNKNOWN).map(|tensor| tensor.name.clone()).collect(),
        state_bytes_per_token: int8.page / int8.page_tokens,
        snapshot_bytes: shape.states().map(|_| int8.slot),
        memory: memory(&contexts, int8, f32, &used),
        tokenizer_tokens: text.has_tokenizer().then(|| text.vocabulary_size()).flatten(),
        template_takes_tools: text.template_takes_tools(),
    })
}

/// Bytes of state on the `cpu` device, as it lays them out.
#[derive(Debug, Clone, Copy)]
struct StateSize {
    page_tokens: u64,
    page: u64,
    slot: u64,
}

impl StateSize {
    fn new(shape: &ModelShape, precision: Precision) -> Result<StateSize, DeviceError> {
        // One thread is the caller's, so none is started.
        let device = Cpu::new(CpuOptions { precision, threads: 1, kernel: None })?;
        let page_tokens = Config::default().cache.block_tokens;
        Ok(StateSize {
            page_tokens: page_tokens as u64,
            page: device.kv_page_bytes(shape.kv(page_tokens)) as u64,
            slot: shape.states().map_or(0, |states| device.slot_bytes(states)) as u64,
        })
    }

    /// Bytes of a sequence of `tokens` tokens.
    fn at(self, tokens: u64) -> u64 {
        tokens.div_ceil(self.page_tokens).saturating_mul(self.page).saturating_add(self.slot)
    }
}

/// Bytes of the weights in memory that decoding one token reads, on the `cpu` device at a precision or on another (`None`): of routed experts those the token goes to, and the
/// embedding only where it is the output projection too. `None` when an encoding's size is unknown.
pub fn weight_bytes_per_token(path: &Path, precision: Option<Precision>) -> Result<Option<u64>, ModelError> {
    let source = Source::open(path)?;
    let (shape, checkpoint) = (source.shape()?, source.checkpoint());
    let mut listing = checkpoint.listing();
    listing.retain(|tensor| tensor.fate == Fate::Used);
    Ok(read_bytes(&shape, checkpoint, &listing, precision))
}

fn read_bytes(
    shape: &ModelShape,
    checkpoint: &dyn Checkpoint,
    used: &[TensorListing],
    precision: Option<Precision>,
) -> Option<u64> {
    let name = |role| checkpoint.name_of(role);
    let is_there = |role| name(role).is_some_and(|name| used.iter().any(|tensor| tensor.name == name));
    let table = name(TensorRole::Embedding).filter(|_| is_there(TensorRole::Output));
    // Experts come in several layouts; what is read whole has one name.
    let whole: HashSet<String> = shape.roles().filter(|role| !is_routed(*role)).filter_map(name).collect();
    let (routed, whole): (Vec<_>, Vec<_>) = used
        .iter()
        .filter(|tensor| Some(&tensor.name) != table.as_ref())
        .partition(|tensor| !whole.contains(&tensor.name));
    let bytes =
        |tensors: &[&TensorListing]| total(tensors.iter().map(|tensor| resident_bytes(tensor, precision)));
    let routed = bytes(&routed)?;
    let routed = match shape.mlp {
        MlpKind::Dense { .. } => routed,
        MlpKind::Experts { routing, .. } => {
            (routed / routing.experts as u64).checked_mul(routing.per_token as u64)?
        }
    };
    bytes(&whole)?.checked_add(routed)
}

fn is_routed(role: TensorRole) -> bool {
    matches!(role, TensorRole::Layer(_, Part::ExpertGates | Part::ExpertUps | Part::ExpertDowns))
}

fn total(mut sizes: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    sizes.try_fold(0u64, |total, bytes| total.checked_add(bytes?))
}

fn by_encoding(tensors: &[&TensorListing]) -> Vec<TensorTypeSummary> {
    let mut kinds: BTreeMap<&str, Vec<&TensorListing>> = BTreeMap::new();
    for tensor in tensors {
        kinds.entry(&tensor.kind).or_default().push(tensor);
    }
    let summary = |(kind, tensors): (&str, Vec<&TensorListing>)| TensorTypeSummary {
        kind: kind.to_owned(),
        tensors: tensors.len(),
        elements: tensors.iter().fold(0, |total, tensor| total.saturating_add(tensor.elements)),
        bytes: total(tensors.iter().map(|tensor| tensor.bytes)),
    };
    kinds.into_iter().map(summary).collect()
}

fn by_fate(listing: &[TensorListing]) -> Vec<TensorFateSummary> {
    let summary = |fate: Fate| {
        let tensors = listing.iter().filter(|tensor| tensor.fate == fate);
        let bytes = total(tensors.clone().map(|tensor| tensor.bytes));
        TensorFateSummary { fate, tensors: tensors.count(), bytes }
    };
    Fate::ALL.into_iter().map(summary).filter(|summary| summary.tensors > 0).collect()
}

fn memory(contexts: &[u64], int8: StateSize, f32: StateSize, used: &[&TensorListing]) -> Vec<MemorySummary> {
    let weights = |precision| total(used.iter().map(|tensor| resident_bytes(tensor, Some(precision))));
    let weights = [weights(Precision::Int8), weights(Precision::F32)];
    let at = |tokens: u64| MemorySummary {
        tokens,
        state: int8.at(tokens),
        int8: weights[0].and_then(|weights| weights.checked_add(int8.at(tokens))),
        f32: weights[1].and_then(|weights| weights.checked_add(f32.at(tokens))),
    };
    contexts.iter().copied().map(at).collect()
}

/// Bytes of a tensor once the `cpu` device has it at a precision: plain numbers stay as they are, packed ones take the width it computes
/// with. Other devices (`None`) keep what the file has.
fn resident_bytes(tensor: &TensorListing, precision: Option<Precision>) -> Option<u64> {
    let bytes = tensor.bytes?;
    match (tensor.packed_bits, precision) {
        (None, _) | (_, None) => Some(bytes),
        (Some(bits), Some(Precision::Int8)) => {
            let wider = (kept_bits(bits) - bits) as u64;
            bytes.checked_add(tensor.elements.checked_mul(wider)? / 8)
        }
        (Some(_), Some(Precision::F32)) => tensor.elements.checked_mul(4),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
    }

    /// What is in memory, and what of it decoding a token leaves unread.
    fn kept_and_unread(name: &str) -> (u64, u64) {
        let path = fixture(name);
        let summary = inspect(&path).unwrap();
        let kept = summary.memory[0].int8.unwrap() - summary.memory[0].state;
        (kept, kept - weight_bytes_per_token(&path, Some(Precision::Int8)).unwrap().unwrap())
    }

    #[test]
    fn a_token_reads_its_experts_and_no_embedding_but_a_tied_one() {
        // Eight experts of three 128x64 matrices in each of four layers, of which two are read; 320 rows of embedding. All
        // of it 6-bit, kept in 8 bits, with a scale and a bias of 4 bytes for 64 weights.
        let (kept, unread) = kept_and_unread("parity-moe-q6");
        let weights = 4 * 6 * 3 * 128 * 64 + 320 * 128;
        assert_eq!(unread, weights + weights / 64 * 8);
        assert!(kept > inspect(&fixture("parity-moe-q6")).unwrap().weight_bytes.unwrap());
        // A tied embedding is the output projection.
        assert_eq!(kept_and_unread("parity-odd-hybrid").1, 0);
    }
}
