//! From a file's encoding to weight tiles.
//!
//! A tile is sixteen consecutive output rows, stored so that the kernels read it front to back and every vector holds all sixteen
//! rows. The packed form is the same for every instruction set. Four-bit weights stay four bits wide.

use half::{bf16, f16};

use super::encoding::{Format, Meaning, Width, checked_format};
use super::isa::{GROUP, LANES, u4_place, u8_place};
use super::memory::{Arena, Parts, Slab};
use super::pool::Pool;
use crate::config::Precision;
use crate::device::DeviceError;
use crate::device::weights::read::{file_row, integers, nibbles, parameters, read_row, refuse, u16_at};
use crate::device::weights::{Encoding, Float, WeightSource};

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
    if let Some(block) = nibbles(source, row, group) {
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
