//! Tensors as files carry them, and the names architectures ask for them by.

use std::collections::HashSet;

use serde::Serialize;

use crate::device::weights::{Encoding, Float, RowOrder, WeightSource};

use super::ModelError;
use super::shape::ModelShape;

/// A tensor by its part in a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorRole {
    /// Token embedding.
    Embedding,
    /// Norm before the output projection.
    OutputNorm,
    /// Output projection, where it is not the embedding.
    Output,
    /// A part of a layer.
    Layer(Site, Part),
    /// The multi-token-prediction head's projection of token and hidden state, stacked by columns.
    PredictionInput,
    /// Its norm of the token's embedding.
    PredictionTokenNorm,
    /// Its norm of the hidden state.
    PredictionHiddenNorm,
    /// Its norm before the output projection.
    PredictionOutputNorm,
}

impl TensorRole {
    /// Whether it belongs to the multi-token-prediction head.
    pub fn is_prediction(self) -> bool {
        match self {
            TensorRole::Embedding | TensorRole::OutputNorm | TensorRole::Output => false,
            TensorRole::Layer(site, _) => matches!(site, Site::Prediction(_)),
            TensorRole::PredictionInput
            | TensorRole::PredictionTokenNorm
            | TensorRole::PredictionHiddenNorm
            | TensorRole::PredictionOutputNorm => true,
        }
    }

    /// Whether it is a norm of the hidden state or of a query or key head. The norm of a recurrent layer's value heads is another kind.
    pub(super) fn is_plain_norm(self) -> bool {
        match self {
            TensorRole::OutputNorm
            | TensorRole::PredictionTokenNorm
            | TensorRole::PredictionHiddenNorm
            | TensorRole::PredictionOutputNorm => true,
            TensorRole::Layer(_, part) => {
                matches!(part, Part::InputNorm | Part::MlpNorm | Part::QueryNorm | Part::KeyNorm)
            }
            TensorRole::Embedding | TensorRole::Output | TensorRole::PredictionInput => false,
        }
    }

    /// Whether it is a vector.
    pub(super) fn is_vector(self) -> bool {
        let recurrent = [Part::DeltaDecayRate, Part::DeltaDecayBias, Part::DeltaNorm];
        self.is_plain_norm() || matches!(self, TensorRole::Layer(_, part) if recurrent.contains(&part))
    }
}

/// Which layer. Layers count from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Site {
    /// A layer of the model itself.
    Main(usize),
    /// A layer of the multi-token-prediction head, which is always an attention layer.
    Prediction(usize),
}

/// A part of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// Norm before attention or recurrence.
    InputNorm,
    /// Query projection; where attention is gated, each head's query rows are followed by its gate rows.
    Query,
    /// Key projection.
    Key,
    /// Value projection.
    Value,
    /// Norm of each query head.
    QueryNorm,
    /// Norm of each key head.
    KeyNorm,
    /// Projection of what attention gives.
    AttentionOutput,
    /// Recurrent queries, keys and values.
    DeltaQkv,
    /// Gate of what the recurrence gives (`z`).
    DeltaGate,
    /// How much of the difference is written (`b`).
    DeltaBeta,
    /// How much of the state is kept (`a`).
    DeltaDecay,
    /// The short convolution, `[channels, taps]`.
    DeltaConvolution,
    /// Logarithm of the decay rate of each value head (`A_log`).
    DeltaDecayRate,
    /// What is added to the decay of each value head (`dt_bias`).
    DeltaDecayBias,
    /// Norm of each value head.
    DeltaNorm,
    /// Projection of what the recurrence gives.
    DeltaOutput,
    /// Norm before the MLP.
    MlpNorm,
    /// Gate of the gated MLP.
    Gate,
    /// Up projection of the gated MLP.
    Up,
    /// Down projection of the gated MLP.
    Down,
    /// Scores of the experts.
    Router,
    /// Gates of the routed experts, one below the other.
    ExpertGates,
    /// Up projections of the routed experts.
    ExpertUps,
    /// Down projections of the routed experts.
    ExpertDowns,
    /// How much the shared expert counts.
    SharedRouter,
    /// Gate of the shared expert.
    SharedGate,
    /// Up projection of the shared expert.
    SharedUp,
    /// Down projection of the shared expert.
    SharedDown,
}

/// One tensor, read into memory.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// Its name in the file.
    pub name: String,
    /// Rows (`out`); 1 for a vector.
    pub rows: usize,
    /// Columns (`in`).
    pub cols: usize,
    /// The order of its rows.
    pub order: RowOrder,
    /// Its contents.
    pub data: TensorData,
}

/// The owned counterpart of [`Encoding`].
#[derive(Debug, Clone)]
pub enum TensorData {
    /// Plain numbers.
    Plain(Float, Vec<u8>),
    /// GGUF Q4_0.
    Q4_0(Vec<u8>),
    /// GGUF Q4_1.
    Q4_1(Vec<u8>),
    /// GGUF Q8_0.
    Q8_0(Vec<u8>),
    /// MLX affine.
    Affine {
        /// Bits of one weight.
        bits: usize,
        /// Columns that share a scale.
        group: usize,
        /// The packed weights.
        packed: Vec<u8>,
        /// Scales.
        scales: (Float, Vec<u8>),
        /// Biases.
        biases: (Float, Vec<u8>),
    },
}

impl Tensor {
    /// The view a device takes.
    pub fn source(&self) -> WeightSource<'_> {
        let encoding = match &self.data {
            TensorData::Plain(float, bytes) => Encoding::Plain(*float, bytes),
            TensorData::Q4_0(bytes) => Encoding::Q4_0(bytes),
            TensorData::Q4_1(bytes) => Encoding::Q4_1(bytes),
            TensorData::Q8_0(bytes) => Encoding::Q8_0(bytes),
            TensorData::Affine { bits, group, packed, scales, biases } => Encoding::Affine {
                bits: *bits,
                group: *group,
                packed,
                scales: (scales.0, &scales.1),
                biases: (biases.0, &biases.1),
            },
        };
        WeightSource { name: &self.name, rows: self.rows, cols: self.cols, encoding, order: self.order }
    }

    /// Adds name, shape, order and contents to `hasher`.
    pub(super) fn hash_into(&self, hasher: &mut blake3::Hasher) {
        let (order, head_dim) = match self.order {
            RowOrder::Halves => (0, 0),
            RowOrder::Pairs { head_dim } => (1, head_dim),
            RowOrder::GatedHeads { head_dim } => (2, head_dim),
        };
        hasher.update(self.name.as_bytes());
        for number in [self.name.len(), self.rows, self.cols, order, head_dim] {
            hasher.update(&(number as u64).to_le_bytes());
        }
        let mut part = |tag: usize, bytes: &[u8]| {
            hasher.update(&(tag as u64).to_le_bytes());
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        let float = |float: Float| float as usize;
        match &self.data {
            TensorData::Plain(kind, bytes) => part(float(*kind), bytes),
            TensorData::Q4_0(bytes) => part(10, bytes),
            TensorData::Q4_1(bytes) => part(11, bytes),
            TensorData::Q8_0(bytes) => part(12, bytes),
            TensorData::Affine { bits, group, packed, scales, biases } => {
                part(20 + bits, packed);
                part(*group, &[]);
                part(float(scales.0), &scales.1);
                part(float(biases.0), &biases.1);
            }
        }
    }
}

/// Where an architecture gets its tensors from: a GGUF file or a folder.
pub trait Checkpoint: Sync {
    /// The tensor of `role`, rows as the file has them; `None` when the checkpoint has none.
    fn tensor(&self, role: TensorRole) -> Result<Option<Tensor>, ModelError>;

    /// The name `role` goes by here, for errors; `None` where the format has no such thing.
    fn name_of(&self, role: TensorRole) -> Option<String>;

    /// How the rows of `role`'s tensor are ordered here, in a model of `shape`.
    fn order(&self, role: TensorRole, shape: &ModelShape) -> RowOrder;

    /// A tensor of the model itself that no role in `read` takes: to leave it out would silently compute something else. What is kept
    /// for prediction, and what follows from other tensors, is none.
    fn stranger(&self, read: &HashSet<TensorRole>) -> Option<String>;

    /// The file or folder, for errors.
    fn path(&self) -> &std::path::Path;

    /// Every tensor, without contents.
    fn listing(&self) -> Vec<TensorListing>;
}

/// A tensor of a checkpoint without its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorListing {
    /// Its name in the file.
    pub name: String,
    /// The word for its encoding: `F32`, `Q4_1`, `affine4`.
    pub kind: String,
    /// Numbers it stands for.
    pub elements: u64,
    /// Bytes it takes in the file, scales and biases included; `None` for an encoding of unknown size.
    pub bytes: Option<u64>,
    /// Bits of a weight, scales and biases aside, where weights are packed; `None` for plain numbers.
    pub packed_bits: Option<usize>,
    /// What becomes of it.
    pub fate: Fate,
}

/// What becomes of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// The model computes with it.
    Used,
    /// It belongs to the multi-token-prediction head.
    Prediction,
    /// It belongs to a part that reads images.
    Vision,
    /// It says nothing that others do not: a copy, or a table.
    Derived,
    /// It belongs to something else.
    Unknown,
}

impl Fate {
    /// Every one.
    pub const ALL: [Fate; 5] = [Fate::Used, Fate::Prediction, Fate::Vision, Fate::Derived, Fate::Unknown];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Fate::Used => "used",
            Fate::Prediction => "prediction",
            Fate::Vision => "vision",
            Fate::Derived => "derived",
            Fate::Unknown => "unknown",
        }
    }
}
