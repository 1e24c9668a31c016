//! Tensors as files carry them, and the names architectures ask for them by.

use crate::device::weights::{Encoding, Float, RowOrder, WeightSource};

use super::ModelError;

/// A tensor of a `llama` model by its part in it. Layers count from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorRole {
    /// Token embedding.
    Embedding,
    /// Norm before the output projection.
    OutputNorm,
    /// Output projection, where it is not the embedding.
    Output,
    /// Norm before attention.
    AttentionNorm(usize),
    /// Query projection.
    Query(usize),
    /// Key projection.
    Key(usize),
    /// Value projection.
    Value(usize),
    /// Projection of what attention gives.
    AttentionOutput(usize),
    /// Norm before the gated MLP.
    MlpNorm(usize),
    /// Gate of the gated MLP.
    Gate(usize),
    /// Up projection of the gated MLP.
    Up(usize),
    /// Down projection of the gated MLP.
    Down(usize),
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
        let order = match self.order {
            RowOrder::Halves => 0,
            RowOrder::Pairs { head_dim } => head_dim,
        };
        hasher.update(self.name.as_bytes());
        for number in [self.name.len(), self.rows, self.cols, order] {
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

    /// The name `role` goes by here, for errors.
    fn name_of(&self, role: TensorRole) -> String;

    /// How the rows of query and key heads of `head_dim` rows are ordered here.
    fn head_order(&self, head_dim: usize) -> RowOrder;

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
}
