//! Weights in a file's encoding: what they are kept as, and their numbers.

use half::{bf16, f16};

use super::isa::{GROUP, U4_GROUP, U8_GROUP};
use crate::config::Precision;
use crate::device::DeviceError;
use crate::device::weights::{Encoding, Float, RowOrder, WeightSource};

/// How a matrix is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// Plain numbers, `[tile][column][16]`.
    Plain(Float),
    /// Unsigned integers with scales.
    Packed {
        /// Width of an integer.
        width: Width,
        /// What an integer means.
        meaning: Meaning,
        /// Type of scales and minima.
        scale: Float,
        /// Groups of 32 columns that share a scale.
        span: usize,
    },
}

/// Bits of a packed weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    /// Four.
    U4,
    /// Eight.
    U8,
}

impl Width {
    /// The width that weights of `bits` bits are kept in.
    fn of(bits: usize) -> Width {
        if bits <= 4 { Width::U4 } else { Width::U8 }
    }

    /// Bytes of one group of 32 columns of a tile.
    pub(super) fn group_bytes(self) -> usize {
        match self {
            Width::U4 => U4_GROUP,
            Width::U8 => U8_GROUP,
        }
    }
}

/// Bits that a weight packed in `bits` bits takes in memory under `int8`, scales aside.
pub fn kept_bits(bits: usize) -> usize {
    match Width::of(bits) {
        Width::U4 => 4,
        Width::U8 => 8,
    }
}

/// What a packed weight `u` stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// `scale·(u − zero)`
    Symmetric {
        /// The integer that means 0.
        zero: i32,
    },
    /// `scale·u + min`
    Affine,
}

impl Meaning {
    /// Numbers a row has a scale group: scale, or scale and minimum.
    pub(super) fn parameters(self) -> usize {
        match self {
            Meaning::Symmetric { .. } => 1,
            Meaning::Affine => 2,
        }
    }
}

/// A source as plain f32, row-major.
pub(super) fn plain(source: &WeightSource<'_>) -> Result<Vec<f32>, DeviceError> {
    checked_format(source, Precision::F32)?;
    let mut out = vec![0.0; source.rows * source.cols];
    for (row, out) in out.chunks_exact_mut(source.cols).enumerate() {
        read_row(source, file_row(source.order, source.rows, row), out);
    }
    Ok(out)
}

/// The same, of a shape that is known.
pub(super) fn plain_of(source: &WeightSource<'_>, rows: usize, cols: usize) -> Result<Vec<f32>, DeviceError> {
    if (source.rows, source.cols) != (rows, cols) {
        let problem = format!("it is {} by {}, expected {rows} by {cols}", source.rows, source.cols);
        return Err(refuse(source, problem));
    }
    plain(source)
}

pub(super) fn refuse(source: &WeightSource<'_>, problem: String) -> DeviceError {
    DeviceError::Weight { name: source.name.to_owned(), problem }
}

/// The format a source is kept in; checks that its shape and bytes agree.
pub(super) fn checked_format(source: &WeightSource<'_>, precision: Precision) -> Result<Format, DeviceError> {
    let WeightSource { rows, cols, .. } = *source;
    if rows == 0 || cols == 0 {
        return Err(refuse(source, format!("it is empty ({rows} by {cols})")));
    }
    if let RowOrder::Pairs { head_dim } = source.order
        && (head_dim == 0 || head_dim % 2 != 0 || rows % head_dim != 0)
    {
        return Err(refuse(source, format!("{rows} rows cannot be heads of {head_dim} rows in pairs")));
    }
    if let RowOrder::GatedHeads { head_dim } = source.order
        && (head_dim == 0 || rows % (2 * head_dim) != 0)
    {
        return Err(refuse(source, format!("{rows} rows cannot be gated heads of {head_dim} rows")));
    }
    let divisible = |by: usize| match cols % by {
        0 => Ok(()),
        _ => Err(refuse(source, format!("{cols} columns are not a multiple of {by}"))),
    };
    // `bits` a weight, then `per_group` more bytes for every `group` columns.
    let expect = |what: &str, bytes: &[u8], units: usize, unit_bytes: usize| match rows
        .checked_mul(units)
        .and_then(|n| n.checked_mul(unit_bytes))
    {
        Some(expected) if expected == bytes.len() => Ok(()),
        _ => Err(refuse(
            source,
            format!("{what} has {} bytes, which is not {rows} by {units} of {unit_bytes} bytes", bytes.len()),
        )),
    };
    let packed = |width, meaning, scale, span| Format::Packed { width, meaning, scale, span };
    let format = match source.encoding {
        Encoding::Plain(float, bytes) => {
            expect("the tensor", bytes, cols, float.bytes())?;
            return Ok(Format::Plain(float));
        }
        Encoding::Q4_0(bytes) => {
            divisible(GROUP)?;
            expect("the tensor", bytes, cols / GROUP, Q4_0_BYTES)?;
            packed(Width::U4, Meaning::Symmetric { zero: 8 }, Float::F16, 1)
        }
        Encoding::Q4_1(bytes) => {
            divisible(GROUP)?;
            expect("the tensor", bytes, cols / GROUP, Q4_1_BYTES)?;
            packed(Width::U4, Meaning::Affine, Float::F16, 1)
        }
        Encoding::Q8_0(bytes) => {
            divisible(GROUP)?;
            expect("the tensor", bytes, cols / GROUP, Q8_0_BYTES)?;
            packed(Width::U8, Meaning::Symmetric { zero: 128 }, Float::F16, 1)
        }
        Encoding::Affine { bits, group, packed: bytes, scales, biases } => {
            if !matches!(bits, 2 | 3 | 4 | 5 | 6 | 8) {
                return Err(refuse(source, format!("weights of {bits} bits are unknown (2, 3, 4, 5, 6, 8)")));
            }
            if !matches!(group, 32 | 64 | 128) {
                return Err(refuse(source, format!("groups of {group} columns are unknown (32, 64, 128)")));
            }
            divisible(group)?;
            expect("the tensor", bytes, cols / 8, bits)?;
            expect("`scales`", scales.1, cols / group, scales.0.bytes())?;
            expect("`biases`", biases.1, cols / group, biases.0.bytes())?;
            let width = Width::of(bits);
            let scale = if scales.0 == biases.0 { scales.0 } else { Float::F32 };
            packed(width, Meaning::Affine, scale, group / GROUP)
        }
    };
    Ok(match precision {
        Precision::Int8 => format,
        Precision::F32 => Format::Plain(Float::F32),
    })
}

/// Bytes of a block of 32 weights: f16 scale, 16 bytes of nibbles.
const Q4_0_BYTES: usize = 18;
/// f16 scale, f16 minimum, 16 bytes of nibbles.
const Q4_1_BYTES: usize = 20;
/// f16 scale, 32 signed bytes.
const Q8_0_BYTES: usize = 34;

/// The row of the file that holds row `row` of the layer.
pub(super) fn file_row(order: RowOrder, rows: usize, row: usize) -> usize {
    match order {
        RowOrder::Halves => row,
        RowOrder::Pairs { head_dim } => {
            let (head, within) = (row / head_dim, row % head_dim);
            let half = head_dim / 2;
            head * head_dim + 2 * (within % half) + within / half
        }
        RowOrder::GatedHeads { head_dim } => {
            let (row, gate) = if row < rows / 2 { (row, 0) } else { (row - rows / 2, head_dim) };
            row / head_dim * 2 * head_dim + gate + row % head_dim
        }
    }
}

/// Element `index` of little-endian floats.
pub(super) fn float_at(float: Float, bytes: &[u8], index: usize) -> f32 {
    match float {
        Float::F32 => {
            let b = &bytes[4 * index..4 * index + 4];
            f32::from_le_bytes([b[0], b[1], b[2], b[3]])
        }
        Float::F16 => f16::from_bits(u16_at(bytes, 2 * index)).to_f32(),
        Float::Bf16 => bf16::from_bits(u16_at(bytes, 2 * index)).to_f32(),
    }
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Row `row` of the file in f32.
pub(super) fn read_row(source: &WeightSource<'_>, row: usize, out: &mut [f32]) {
    if let Encoding::Plain(float, bytes) = source.encoding {
        for (column, out) in out.iter_mut().enumerate() {
            *out = float_at(float, bytes, row * source.cols + column);
        }
        return;
    }
    for (group, out) in out.chunks_exact_mut(GROUP).enumerate() {
        let u = integers(source, row, group);
        let (scale, min) = parameters(source, row, group);
        for (out, u) in out.iter_mut().zip(u) {
            *out = match source.encoding {
                Encoding::Q4_0(_) => scale * (i32::from(u) - 8) as f32,
                Encoding::Q8_0(_) => scale * (i32::from(u) - 128) as f32,
                _ => scale * f32::from(u) + min,
            };
        }
    }
}

/// The 32 unsigned integers of a group.
pub(super) fn integers(source: &WeightSource<'_>, row: usize, group: usize) -> [u8; GROUP] {
    if let Some(block) = nibbles(source, row, group) {
        return std::array::from_fn(|i| if i < 16 { block[i] & 15 } else { block[i - 16] >> 4 });
    }
    let at = row * (source.cols / GROUP) + group;
    match source.encoding {
        Encoding::Plain(..) | Encoding::Q4_0(_) | Encoding::Q4_1(_) => [0; GROUP],
        Encoding::Q8_0(bytes) => {
            let block = &bytes[at * Q8_0_BYTES + 2..][..GROUP];
            std::array::from_fn(|i| block[i] ^ 0x80)
        }
        Encoding::Affine { bits, packed, .. } => {
            // A little-endian stream of bits; 32 weights are a whole number of bytes.
            let block = &packed[at * GROUP * bits / 8..][..GROUP * bits / 8];
            std::array::from_fn(|i| {
                let (byte, shift) = (i * bits / 8, i * bits % 8);
                let next = block.get(byte + 1).copied().unwrap_or(0);
                let word = u16::from_le_bytes([block[byte], next]);
                (word >> shift) as u8 & ((1u16 << bits) - 1) as u8
            })
        }
    }
}

/// The sixteen bytes of a group whose integers GGUF keeps in halves of bytes: column `i` low, column `i + 16` high.
pub(super) fn nibbles<'a>(source: &WeightSource<'a>, row: usize, group: usize) -> Option<&'a [u8]> {
    let at = row * (source.cols / GROUP) + group;
    match source.encoding {
        Encoding::Q4_0(bytes) => Some(&bytes[at * Q4_0_BYTES + 2..][..16]),
        Encoding::Q4_1(bytes) => Some(&bytes[at * Q4_1_BYTES + 4..][..16]),
        _ => None,
    }
}

/// Scale and minimum (0 where the encoding has none) of a group of 32 columns.
pub(super) fn parameters(source: &WeightSource<'_>, row: usize, group: usize) -> (f32, f32) {
    let at = row * (source.cols / GROUP) + group;
    let f16_at = |bytes: &[u8], at: usize| f16::from_bits(u16_at(bytes, at)).to_f32();
    match source.encoding {
        Encoding::Plain(..) => (1.0, 0.0),
        Encoding::Q4_0(bytes) => (f16_at(bytes, at * Q4_0_BYTES), 0.0),
        Encoding::Q4_1(bytes) => (f16_at(bytes, at * Q4_1_BYTES), f16_at(bytes, at * Q4_1_BYTES + 2)),
        Encoding::Q8_0(bytes) => (f16_at(bytes, at * Q8_0_BYTES), 0.0),
        Encoding::Affine { group: columns, scales, biases, .. } => {
            let at = row * (source.cols / columns) + group * GROUP / columns;
            (float_at(scales.0, scales.1, at), float_at(biases.0, biases.1, at))
        }
    }
}
