//! What weights in a file's encoding are kept as.

use super::isa::{U4_GROUP, U8_GROUP};
use crate::config::Precision;
use crate::device::DeviceError;
use crate::device::weights::read::{GROUP, check};
use crate::device::weights::{Encoding, Float, WeightSource};

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

/// The format a source is kept in; checks that its shape and bytes agree.
pub(super) fn checked_format(source: &WeightSource<'_>, precision: Precision) -> Result<Format, DeviceError> {
    check(source)?;
    let packed = |width, meaning, scale, span| Format::Packed { width, meaning, scale, span };
    let format = match source.encoding {
        Encoding::Plain(float, _) => return Ok(Format::Plain(float)),
        Encoding::Q4_0(_) => packed(Width::U4, Meaning::Symmetric { zero: 8 }, Float::F16, 1),
        Encoding::Q4_1(_) => packed(Width::U4, Meaning::Affine, Float::F16, 1),
        Encoding::Q8_0(_) => packed(Width::U8, Meaning::Symmetric { zero: 128 }, Float::F16, 1),
        Encoding::Affine { bits, group, scales, biases, .. } => {
            let scale = if scales.0 == biases.0 { scales.0 } else { Float::F32 };
            packed(Width::of(bits), Meaning::Affine, scale, group / GROUP)
        }
    };
    Ok(match precision {
        Precision::Int8 => format,
        Precision::F32 => Format::Plain(Float::F32),
    })
}
