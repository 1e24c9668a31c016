//! Weights in a file's encoding: whether their bytes agree with their shape, and their numbers.

use half::{bf16, f16};

use super::{Encoding, Float, RowOrder, WeightSource};
use crate::device::DeviceError;

/// Columns of the smallest group that shares a scale, in any encoding.
pub(in crate::device) const GROUP: usize = 32;

/// A source as plain f32, row-major.
pub(in crate::device) fn plain(source: &WeightSource<'_>) -> Result<Vec<f32>, DeviceError> {
    check(source)?;
    let mut out = vec![0.0; source.rows * source.cols];
    for (row, out) in out.chunks_exact_mut(source.cols).enumerate() {
        read_row(source, file_row(source.order, source.rows, row), out);
    }
    Ok(out)
}

/// The same, of a shape that is known.
pub(in crate::device) fn plain_of(
    source: &WeightSource<'_>,
    rows: usize,
    cols: usize,
) -> Result<Vec<f32>, DeviceError> {
    if (source.rows, source.cols) != (rows, cols) {
        let problem = format!("it is {} by {}, expected {rows} by {cols}", source.rows, source.cols);
        return Err(refuse(source, problem));
    }
    plain(source)
}

pub(in crate::device) fn refuse(source: &WeightSource<'_>, problem: String) -> DeviceError {
    DeviceError::Weight { name: source.name.to_owned(), problem }
}

/// Checks that a source's shape, encoding and bytes agree.
pub(in crate::device) fn check(source: &WeightSource<'_>) -> Result<(), DeviceError> {
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
    match source.encoding {
        Encoding::Plain(float, bytes) => expect("the tensor", bytes, cols, float.bytes()),
        Encoding::Q4_0(bytes) => {
            divisible(GROUP)?;
            expect("the tensor", bytes, cols / GROUP, Q4_0_BYTES)
        }
        Encoding::Q4_1(bytes) => {
            divisible(GROUP)?;
            expect("the tensor", bytes, cols / GROUP, Q4_1_BYTES)
        }
        Encoding::Q8_0(bytes) => {
            divisible(GROUP)?;
            expect("the tensor", bytes, cols / GROUP, Q8_0_BYTES)
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
            expect("`biases`", biases.1, cols / group, biases.0.bytes())
        }
    }
}

/// Bytes of a block of 32 weights: f16 scale, 16 bytes of nibbles.
const Q4_0_BYTES: usize = 18;
/// f16 scale, f16 minimum, 16 bytes of nibbles.
const Q4_1_BYTES: usize = 20;
/// f16 scale, 32 signed bytes.
const Q8_0_BYTES: usize = 34;

/// The row of the file that holds row `row` of the layer.
pub(in crate::device) fn file_row(order: RowOrder, rows: usize, row: usize) -> usize {
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
pub(in crate::device) fn float_at(float: Float, bytes: &[u8], index: usize) -> f32 {
    match float {
        Float::F32 => {
            let b = &bytes[4 * index..4 * index + 4];
            f32::from_le_bytes([b[0], b[1], b[2], b[3]])
        }
        Float::F16 => f16::from_bits(u16_at(bytes, 2 * index)).to_f32(),
        Float::Bf16 => bf16::from_bits(u16_at(bytes, 2 * index)).to_f32(),
    }
}

pub(in crate::device) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Row `row` of the file in f32.
pub(in crate::device) fn read_row(source: &WeightSource<'_>, row: usize, out: &mut [f32]) {
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
pub(in crate::device) fn integers(source: &WeightSource<'_>, row: usize, group: usize) -> [u8; GROUP] {
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
pub(in crate::device) fn nibbles<'a>(
    source: &WeightSource<'a>,
    row: usize,
    group: usize,
) -> Option<&'a [u8]> {
    let at = row * (source.cols / GROUP) + group;
    match source.encoding {
        Encoding::Q4_0(bytes) => Some(&bytes[at * Q4_0_BYTES + 2..][..16]),
        Encoding::Q4_1(bytes) => Some(&bytes[at * Q4_1_BYTES + 4..][..16]),
        _ => None,
    }
}

/// Scale and minimum (0 where the encoding has none) of a group of 32 columns.
pub(in crate::device) fn parameters(source: &WeightSource<'_>, row: usize, group: usize) -> (f32, f32) {
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
