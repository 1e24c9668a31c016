//! From a file's encoding to weight tiles.
//!
//! A tile is sixteen consecutive output rows, stored so that the kernels read it front to back and every vector holds all sixteen
//! rows. The packed form is the same for every instruction set. Four-bit weights stay four bits wide.

use half::{bf16, f16};

use super::isa::{GROUP, LANES, U4_GROUP, U8_GROUP, u4_place, u8_place};
use super::memory::{Arena, Parts, Slab};
use super::pool::Pool;
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
    fn parameters(self) -> usize {
        match self {
            Meaning::Symmetric { .. } => 1,
            Meaning::Affine => 2,
        }
    }
}

/// Floats in the type the file has them in.
pub(super) enum Floats {
    /// IEEE binary32.
    F32(Slab<f32>),
    /// IEEE binary16.
    F16(Slab<u16>),
    /// bfloat16.
    Bf16(Slab<u16>),
}

impl Floats {
    fn new(float: Float, len: usize, name: &str, arena: &mut Arena) -> Result<Floats, DeviceError> {
        Ok(match float {
            Float::F32 => Floats::F32(arena.slab(len, name)?),
            Float::F16 => Floats::F16(arena.slab(len, name)?),
            Float::Bf16 => Floats::Bf16(arena.slab(len, name)?),
        })
    }

    /// Element `index`, widened.
    pub(super) fn get(&self, index: usize) -> f32 {
        match self {
            Floats::F32(x) => x[index],
            Floats::F16(x) => f16::from_bits(x[index]).to_f32(),
            Floats::Bf16(x) => bf16::from_bits(x[index]).to_f32(),
        }
    }
}

/// A matrix `[rows, cols]` in tiles; the last tile is padded with zero rows.
pub(super) struct Matrix {
    /// Output rows.
    pub(super) rows: usize,
    /// Input columns.
    pub(super) cols: usize,
    /// The weights.
    pub(super) weights: Weights,
}

/// The numbers of a [`Matrix`].
pub(super) enum Weights {
    /// `[tile][column][16]`
    Plain(Floats),
    /// Integers and scales.
    Packed(Packed),
}

/// Integers and scales of a quantised matrix.
pub(super) struct Packed {
    /// Width of the integers.
    pub(super) width: Width,
    /// What they mean.
    pub(super) meaning: Meaning,
    /// Groups of 32 columns that share a scale.
    pub(super) span: usize,
    /// `[tile][group][packed bytes]`, see [`u4_place`] and [`u8_place`].
    pub(super) data: Slab<u8>,
    /// `[tile][scale group][16 scales, then 16 minima if affine]`
    pub(super) scales: Floats,
}

impl Matrix {
    /// Tiles.
    pub(super) fn tiles(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    /// Writes row `row` in f32 to `out`.
    pub(super) fn read_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of a matrix of {} rows", self.rows);
        let (tile, lane) = (row / LANES, row % LANES);
        match &self.weights {
            Weights::Plain(x) => {
                for (column, out) in out.iter_mut().enumerate() {
                    *out = x.get((tile * self.cols + column) * LANES + lane);
                }
            }
            Weights::Packed(x) => x.read_row(tile, lane, self.cols / GROUP, out),
        }
    }
}

impl Packed {
    fn read_row(&self, tile: usize, lane: usize, groups: usize, out: &mut [f32]) {
        let bytes = self.width.group_bytes();
        let parameters = self.meaning.parameters();
        for (group, out) in out.chunks_exact_mut(GROUP).enumerate() {
            let data = &self.data[(tile * groups + group) * bytes..][..bytes];
            let at = (tile * (groups / self.span) + group / self.span) * parameters * LANES + lane;
            let scale = self.scales.get(at);
            for (column, out) in out.iter_mut().enumerate() {
                let u = match self.width {
                    Width::U4 => match u4_place(lane, column) {
                        (byte, false) => data[byte] & 15,
                        (byte, true) => data[byte] >> 4,
                    },
                    Width::U8 => data[u8_place(lane, column)],
                };
                *out = match self.meaning {
                    Meaning::Symmetric { zero } => scale * (i32::from(u) - zero) as f32,
                    Meaning::Affine => scale * f32::from(u) + self.scales.get(at + LANES),
                };
            }
        }
    }
}

/// Packs `stacked` sources, which must have equal columns, into as few matrices as their formats allow.
pub(super) fn pack(
    stacked: &[WeightSource<'_>],
    precision: Precision,
    pool: &mut Pool,
    arena: &mut Arena,
) -> Result<Vec<Matrix>, DeviceError> {
    let mut matrices = Vec::new();
    let mut rest = stacked;
    while let Some(first) = rest.first() {
        let format = checked_format(first, precision)?;
        let mut like = 0;
        for source in rest {
            if source.cols != stacked[0].cols {
                let problem = format!("{} columns, but it is stacked on {}", source.cols, stacked[0].cols);
                return Err(refuse(source, problem));
            }
            if checked_format(source, precision)? != format {
                break;
            }
            like += 1;
        }
        let (run, tail) = rest.split_at(like);
        matrices.push(pack_run(run, format, pool, arena)?);
        rest = tail;
    }
    Ok(matrices)
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

fn refuse(source: &WeightSource<'_>, problem: String) -> DeviceError {
    DeviceError::Weight { name: source.name.to_owned(), problem }
}

/// The format a source is kept in; checks that its shape and bytes agree.
fn checked_format(source: &WeightSource<'_>, precision: Precision) -> Result<Format, DeviceError> {
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
fn file_row(order: RowOrder, rows: usize, row: usize) -> usize {
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
fn float_at(float: Float, bytes: &[u8], index: usize) -> f32 {
    match float {
        Float::F32 => {
            let b = &bytes[4 * index..4 * index + 4];
            f32::from_le_bytes([b[0], b[1], b[2], b[3]])
        }
        Float::F16 => f16::from_bits(u16_at(bytes, 2 * index)).to_f32(),
        Float::Bf16 => bf16::from_bits(u16_at(bytes, 2 * index)).to_f32(),
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Row `row` of the file in f32.
fn read_row(source: &WeightSource<'_>, row: usize, out: &mut [f32]) {
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
fn integers(source: &WeightSource<'_>, row: usize, group: usize) -> [u8; GROUP] {
    let at = row * (source.cols / GROUP) + group;
    let nibbles = |block: &[u8]| -> [u8; GROUP] {
        std::array::from_fn(|i| if i < 16 { block[i] & 15 } else { block[i - 16] >> 4 })
    };
    match source.encoding {
        Encoding::Plain(..) => [0; GROUP],
        Encoding::Q4_0(bytes) => nibbles(&bytes[at * Q4_0_BYTES + 2..][..16]),
        Encoding::Q4_1(bytes) => nibbles(&bytes[at * Q4_1_BYTES + 4..][..16]),
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

/// Scale and minimum (0 where the encoding has none) of a group of 32 columns.
fn parameters(source: &WeightSource<'_>, row: usize, group: usize) -> (f32, f32) {
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

/// Packs sources of one format into one matrix, tile by tile on all threads.
fn pack_run(
    run: &[WeightSource<'_>],
    format: Format,
    pool: &mut Pool,
    arena: &mut Arena,
) -> Result<Matrix, DeviceError> {
    let (name, cols) = (run[0].name, run[0].cols);
    let rows = run.iter().map(|source| source.rows).sum();
    // Which source and which of its rows holds a row of the matrix; `None` past the end.
    let locate = |mut row: usize| {
        for source in run {
            if row < source.rows {
                return Some((source, file_row(source.order, source.rows, row)));
            }
            row -= source.rows;
        }
        None
    };
    let mut matrix = Matrix { rows, cols, weights: empty(format, rows, cols, name, arena)? };
    let tiles = matrix.tiles();
    match &mut matrix.weights {
        Weights::Plain(Floats::F32(out)) => {
            let out = Parts::new(out);
            pool.run(tiles, |tile| {
                // SAFETY: every task writes the part of its own tile.
                let out = unsafe { out.part(tile * cols * LANES..(tile + 1) * cols * LANES) };
                let mut numbers = vec![0.0; cols];
                for lane in 0..LANES {
                    if let Some((source, row)) = locate(tile * LANES + lane) {
                        read_row(source, row, &mut numbers);
                        for (out, x) in out.chunks_exact_mut(LANES).zip(&numbers) {
                            out[lane] = *x;
                        }
                    }
                }
            });
        }
        Weights::Plain(Floats::F16(out) | Floats::Bf16(out)) => {
            let out = Parts::new(out);
            pool.run(tiles, |tile| {
                // SAFETY: every task writes the part of its own tile.
                let out = unsafe { out.part(tile * cols * LANES..(tile + 1) * cols * LANES) };
                for lane in 0..LANES {
                    if let Some((WeightSource { encoding: Encoding::Plain(_, bytes), .. }, row)) =
                        locate(tile * LANES + lane)
                    {
                        for (column, out) in out.chunks_exact_mut(LANES).enumerate() {
                            out[lane] = u16_at(bytes, 2 * (row * cols + column));
                        }
                    }
                }
            });
        }
        Weights::Packed(packed) => {
            let (width, span, affine) = (packed.width, packed.span, packed.meaning == Meaning::Affine);
            let tile_bytes = cols / GROUP * width.group_bytes();
            let tile_scales = cols / GROUP / span * packed.meaning.parameters() * LANES;
            let data = Parts::new(&mut packed.data);
            let scales = ScaleParts::new(&mut packed.scales);
            pool.run(tiles, |tile| {
                // SAFETY: every task writes the parts of its own tile.
                let data = unsafe { data.part(tile * tile_bytes..(tile + 1) * tile_bytes) };
                for lane in 0..LANES {
                    let Some((source, row)) = locate(tile * LANES + lane) else { continue };
                    for (group, data) in data.chunks_exact_mut(width.group_bytes()).enumerate() {
                        put_group(source, row, group, width, lane, data);
                    }
                    for group in 0..cols / GROUP / span {
                        let (scale, min) = parameters(source, row, group * span);
                        let step = if affine { 2 * LANES } else { LANES };
                        let at = tile * tile_scales + group * step + lane;
                        // SAFETY: the elements belong to this task's tile.
                        unsafe {
                            scales.put(at, scale);
                            if affine {
                                scales.put(at + LANES, min);
                            }
                        }
                    }
                }
            });
        }
    }
    Ok(matrix)
}

/// Zeroed weights of a format.
fn empty(
    format: Format,
    rows: usize,
    cols: usize,
    name: &str,
    arena: &mut Arena,
) -> Result<Weights, DeviceError> {
    let tiles = rows.div_ceil(LANES);
    let elements = (tiles * LANES)
        .checked_mul(cols)
        .ok_or_else(|| DeviceError::OutOfMemory { bytes: u64::MAX, problem: format!("weight `{name}`") })?;
    Ok(match format {
        Format::Plain(float) => Weights::Plain(Floats::new(float, elements, name, arena)?),
        Format::Packed { width, meaning, scale, span } => Weights::Packed(Packed {
            width,
            meaning,
            span,
            data: arena.slab(tiles * (cols / GROUP) * width.group_bytes(), name)?,
            scales: Floats::new(scale, elements / GROUP / span * meaning.parameters(), name, arena)?,
        }),
    })
}

/// Writes a group's integers into lane `lane` of a tile's group.
fn put_group(
    source: &WeightSource<'_>,
    row: usize,
    group: usize,
    width: Width,
    lane: usize,
    data: &mut [u8],
) {
    // GGUF pairs column i with column i + 16 in a byte, and so does a tile: four words to copy.
    let at = row * (source.cols / GROUP) + group;
    let block = match source.encoding {
        Encoding::Q4_0(bytes) => Some(&bytes[at * Q4_0_BYTES + 2..][..16]),
        Encoding::Q4_1(bytes) => Some(&bytes[at * Q4_1_BYTES + 4..][..16]),
        _ => None,
    };
    if let Some(block) = block {
        for (quad, bytes) in block.chunks_exact(4).enumerate() {
            data[64 * quad + 4 * lane..][..4].copy_from_slice(bytes);
        }
        return;
    }
    let u = integers(source, row, group);
    match width {
        Width::U4 => {
            for column in 0..GROUP / 2 {
                data[u4_place(lane, column).0] = u[column] | u[column + GROUP / 2] << 4;
            }
        }
        Width::U8 => {
            for (quad, bytes) in u.chunks_exact(4).enumerate() {
                data[64 * quad + 4 * lane..][..4].copy_from_slice(bytes);
            }
        }
    }
}

/// [`Floats`] that several threads fill.
enum ScaleParts<'a> {
    F32(Parts<'a, f32>),
    F16(Parts<'a, u16>),
    Bf16(Parts<'a, u16>),
}

impl<'a> ScaleParts<'a> {
    fn new(floats: &'a mut Floats) -> ScaleParts<'a> {
        match floats {
            Floats::F32(x) => ScaleParts::F32(Parts::new(x)),
            Floats::F16(x) => ScaleParts::F16(Parts::new(x)),
            Floats::Bf16(x) => ScaleParts::Bf16(Parts::new(x)),
        }
    }

    /// Sets one element; exact, since `value` came from this type.
    ///
    /// # Safety
    /// No two threads may write the same element.
    unsafe fn put(&self, at: usize, value: f32) {
        // SAFETY: as the caller promises.
        unsafe {
            match self {
                ScaleParts::F32(x) => x.part(at..at + 1)[0] = value,
                ScaleParts::F16(x) => x.part(at..at + 1)[0] = f16::from_f32(value).to_bits(),
                ScaleParts::Bf16(x) => x.part(at..at + 1)[0] = bf16::from_f32(value).to_bits(),
            }
        }
    }
}
