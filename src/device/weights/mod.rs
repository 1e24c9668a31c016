//! Weights as files carry them, before a device takes them.

pub(super) mod read;

/// How a matrix's rows are ordered for rotary embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// As escarp's architectures expect: the two halves of a head rotate against each other (Hugging Face's convention).
    Halves,
    /// Adjacent rows of a head rotate against each other (GGUF's `llama` convention); the device reorders on load.
    Pairs {
        /// Rows of one head.
        head_dim: usize,
    },
    /// Each head's rows are followed by its gate's rows; the device puts the rows of all heads before those of all gates.
    GatedHeads {
        /// Rows of one head.
        head_dim: usize,
    },
}

/// The element type of a plain tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Float {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
}

impl Float {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Float::F32 => 4,
            Float::F16 | Float::Bf16 => 2,
        }
    }
}

/// Bytes of a tensor and what they mean; little-endian, row-major `[out, in]`, possibly unaligned.
#[derive(Debug, Clone, Copy)]
pub enum Encoding<'a> {
    /// Plain numbers.
    Plain(Float, &'a [u8]),
    /// GGUF Q4_0: groups of 32, `w = d·(q − 8)`.
    Q4_0(&'a [u8]),
    /// GGUF Q4_1: groups of 32, `w = d·q + m`.
    Q4_1(&'a [u8]),
    /// GGUF Q8_0: groups of 32, `w = d·q`, q signed.
    Q8_0(&'a [u8]),
    /// MLX affine: `w = scale·q + bias`, unsigned q of `bits` bits packed into little-endian u32 words.
    Affine {
        /// Bits of one weight.
        bits: usize,
        /// Columns that share a scale.
        group: usize,
        /// The packed weights.
        packed: &'a [u8],
        /// Scales, `[out, in/group]`.
        scales: (Float, &'a [u8]),
        /// Biases, `[out, in/group]`.
        biases: (Float, &'a [u8]),
    },
}

/// One tensor of a model file.
#[derive(Debug, Clone, Copy)]
pub struct WeightSource<'a> {
    /// Its name in the file, for errors.
    pub name: &'a str,
    /// Rows (`out`); 1 for a vector.
    pub rows: usize,
    /// Columns (`in`).
    pub cols: usize,
    /// Its contents.
    pub encoding: Encoding<'a>,
    /// The order of its rows.
    pub order: RowOrder,
}

impl<'a> WeightSource<'a> {
    /// Rows `rows` alone, in the file's order. Bytes that are missing show as a shape error when a device takes it.
    pub fn slice(&self, rows: std::ops::Range<usize>) -> WeightSource<'a> {
        let part = |bytes: &'a [u8]| {
            let row = bytes.len() / self.rows.max(1);
            bytes.get(rows.start * row..rows.end * row).unwrap_or(&[])
        };
        let encoding = match self.encoding {
            Encoding::Plain(float, bytes) => Encoding::Plain(float, part(bytes)),
            Encoding::Q4_0(bytes) => Encoding::Q4_0(part(bytes)),
            Encoding::Q4_1(bytes) => Encoding::Q4_1(part(bytes)),
            Encoding::Q8_0(bytes) => Encoding::Q8_0(part(bytes)),
            Encoding::Affine { bits, group, packed, scales, biases } => Encoding::Affine {
                bits,
                group,
                packed: part(packed),
                scales: (scales.0, part(scales.1)),
                biases: (biases.0, part(biases.1)),
            },
        };
        WeightSource { rows: rows.len(), encoding, ..*self }
    }
}
