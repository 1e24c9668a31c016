//! Weights as MLX computes with them.
//!
//! MLX's affine packing is taken as it is; GGUF's blocks are written in that form, with the same integers. Rows are put in their
//! order while they are copied out of the file. Scales, biases and plain weights get the type of the activations, since MLX would
//! otherwise convert them in every product; where the file keeps them in another type, they are rounded to it.

use half::{bf16, f16};
use mlx_rs::ops::{concatenate, dequantize, matmul, quantized_matmul};
use mlx_rs::{Array, Dtype};

use super::failure::{Built, device_error};
use super::hidden::int;
use crate::device::DeviceError;
use crate::device::weights::read::{GROUP, check, file_row, integers, parameters};
use crate::device::weights::{Encoding, Float, WeightSource};

/// A matrix `[rows, cols]`, or a stack of them `[stack, rows, cols]`.
#[derive(Debug, Clone)]
pub(super) enum Weight {
    /// Plain numbers.
    Plain(Array),
    /// Packed integers with scales.
    Packed(Packed),
}

/// MLX's affine form.
#[derive(Debug, Clone)]
pub(super) struct Packed {
    /// `[.., rows, cols·bits/32]` u32
    pub(super) words: Array,
    /// `[.., rows, cols/group]`
    pub(super) scales: Array,
    /// `[.., rows, cols/group]`
    pub(super) biases: Array,
    pub(super) group: i32,
    pub(super) bits: i32,
}

/// What sources must share to lie in one matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain(Float),
    Packed { bits: usize, group: usize, scales: Float, biases: Float },
}

/// MLX's type for a file's.
pub(super) fn dtype(float: Float) -> Dtype {
    match float {
        Float::F32 => Dtype::Float32,
        Float::F16 => Dtype::Float16,
        Float::Bf16 => Dtype::Bfloat16,
    }
}

/// The type a file keeps numbers or scales in.
pub(super) fn stored(source: &WeightSource<'_>) -> Dtype {
    match form(source) {
        Form::Plain(float) | Form::Packed { scales: float, .. } => dtype(float),
    }
}

fn form(source: &WeightSource<'_>) -> Form {
    let blocks = |bits| Form::Packed { bits, group: GROUP, scales: Float::F16, biases: Float::F16 };
    match source.encoding {
        Encoding::Plain(float, _) => Form::Plain(float),
        Encoding::Q4_0(_) | Encoding::Q4_1(_) => blocks(4),
        Encoding::Q8_0(_) => blocks(8),
        Encoding::Affine { bits, group, scales, biases, .. } => {
            Form::Packed { bits, group, scales: scales.0, biases: biases.0 }
        }
    }
}

/// Sources of equal columns, stacked by rows, as few matrices as their forms allow; numbers in type `float`.
pub(super) fn load(sources: &[WeightSource<'_>], float: Dtype) -> Result<Vec<Weight>, DeviceError> {
    let Some(first) = sources.first() else {
        return Err(DeviceError::Contract("a layer of no tensors".to_owned()));
    };
    sources.iter().try_for_each(check)?;
    if let Some(other) = sources.iter().find(|source| source.cols != first.cols) {
        let problem = format!("it has {} columns and `{}` has {}", other.cols, first.name, first.cols);
        return Err(DeviceError::Weight { name: other.name.to_owned(), problem });
    }
    sources.chunk_by(|a, b| form(a) == form(b)).map(|alike| matrix(alike, float)).collect()
}

/// The same for sources of one form and one shape, `[stack, rows, cols]`.
pub(super) fn load_stack(
    sources: &[WeightSource<'_>],
    stack: usize,
    float: Dtype,
) -> Result<Weight, DeviceError> {
    let matrices = load(sources, float)?;
    let [weight] = &matrices[..] else {
        let problem = "the experts of a layer are encoded in different ways".to_owned();
        return Err(DeviceError::Weight { name: sources[0].name.to_owned(), problem });
    };
    weight.stacked(int(stack)).map_err(|e| device_error(&e, "loading experts"))
}

/// Plain numbers of any encoding, `[rows, cols]` in type `float`.
pub(super) fn load_plain(source: &WeightSource<'_>, float: Dtype) -> Result<Array, DeviceError> {
    let values = crate::device::weights::read::plain(source)?;
    let array = Array::from_slice(&values, &[int(source.rows), int(source.cols)]);
    cast(array, float).map_err(|e| device_error(&e, "loading a tensor"))
}

/// In type `float`, computed.
fn cast(x: Array, float: Dtype) -> Built<Array> {
    let x = if x.dtype() == float { x } else { x.as_dtype(float)? };
    // Now, so that what it was made from is let go before the next tensor is read.
    x.eval()?;
    Ok(x)
}

fn matrix(alike: &[WeightSource<'_>], float: Dtype) -> Result<Weight, DeviceError> {
    let built = match form(&alike[0]) {
        Form::Plain(stored) => plain(alike, stored, float).map(Weight::Plain),
        Form::Packed { bits, group, scales, biases } => {
            packed(alike, bits, group, [scales, biases], float).map(Weight::Packed)
        }
    };
    built.map_err(|e| device_error(&e, &format!("loading `{}`", alike[0].name)))
}

fn total_rows(alike: &[WeightSource<'_>]) -> i32 {
    int(alike.iter().map(|source| source.rows).sum())
}

fn plain(alike: &[WeightSource<'_>], stored: Float, float: Dtype) -> Built<Array> {
    floats(alike, stored, alike[0].cols, float, |source, row, out| {
        if let Encoding::Plain(_, bytes) = source.encoding {
            let row_bytes = source.cols * stored.bytes();
            out.copy_from_slice(&bytes[row * row_bytes..(row + 1) * row_bytes]);
        }
    })
}

fn packed(
    alike: &[WeightSource<'_>],
    bits: usize,
    group: usize,
    [scales, biases]: [Float; 2],
    float: Dtype,
) -> Built<Packed> {
    let cols = alike[0].cols;
    let columns = cols * bits / 32;
    let words: Vec<u32> = from_rows(alike, columns, words);
    let words = Array::from_slice(&words, &[total_rows(alike), int(columns)]);
    let scales = floats(alike, scales, cols / group, float, |source, row, out| factors(source, row, 0, out))?;
    let biases = floats(alike, biases, cols / group, float, |source, row, out| factors(source, row, 1, out))?;
    Ok(Packed { words, scales, biases, group: int(group), bits: int(bits) })
}

/// A matrix of `columns` elements a row, whose bytes `write` fills in row by row, in the order of the layer.
fn from_rows<T: bytemuck::Pod + Default>(
    alike: &[WeightSource<'_>],
    columns: usize,
    write: impl Fn(&WeightSource<'_>, usize, &mut [u8]),
) -> Vec<T> {
    let rows: usize = alike.iter().map(|source| source.rows).sum();
    let mut elements = vec![T::default(); rows * columns];
    let mut bytes = bytemuck::cast_slice_mut(&mut elements).chunks_exact_mut(columns * size_of::<T>());
    for source in alike {
        for (row, out) in (0..source.rows).zip(bytes.by_ref()) {
            write(source, file_row(source.order, source.rows, row), out);
        }
    }
    elements
}

/// A matrix of floats whose rows `write` gives in the file's type.
fn floats(
    alike: &[WeightSource<'_>],
    stored: Float,
    cols: usize,
    float: Dtype,
    write: impl Fn(&WeightSource<'_>, usize, &mut [u8]),
) -> Built<Array> {
    let shape = [total_rows(alike), int(cols)];
    let array = match stored {
        Float::F32 => Array::from_slice(&from_rows::<f32>(alike, cols, write), &shape),
        Float::F16 => Array::from_slice(&from_rows::<f16>(alike, cols, write), &shape),
        Float::Bf16 => Array::from_slice(&from_rows::<bf16>(alike, cols, write), &shape),
    };
    cast(array, float)
}

/// The packed integers of a row.
fn words(source: &WeightSource<'_>, row: usize, out: &mut [u8]) {
    match source.encoding {
        Encoding::Affine { bits, packed, .. } => {
            let row_bytes = source.cols * bits / 8;
            out.copy_from_slice(&packed[row * row_bytes..(row + 1) * row_bytes]);
        }
        Encoding::Q8_0(_) => {
            for (group, out) in out.chunks_exact_mut(GROUP).enumerate() {
                out.copy_from_slice(&integers(source, row, group));
            }
        }
        _ => {
            for (group, out) in out.chunks_exact_mut(GROUP / 2).enumerate() {
                let integers = integers(source, row, group);
                for (out, pair) in out.iter_mut().zip(integers.chunks_exact(2)) {
                    *out = pair[0] | pair[1] << 4;
                }
            }
        }
    }
}

/// The scales (`which` 0) or biases (1) of a row, in the file's type.
fn factors(source: &WeightSource<'_>, row: usize, which: usize, out: &mut [u8]) {
    if let Encoding::Affine { group, scales, biases, .. } = source.encoding {
        let (float, bytes) = [scales, biases][which];
        let row_bytes = source.cols / group * float.bytes();
        out.copy_from_slice(&bytes[row * row_bytes..(row + 1) * row_bytes]);
        return;
    }
    // What the integer 0 stands for: the minimum, or `zero` steps below 0; 8 and 128 are powers of two, so f16 holds it exactly but
    // where it overflows, far beyond any weight.
    let zero = match source.encoding {
        Encoding::Q4_0(_) => Some(8.0),
        Encoding::Q8_0(_) => Some(128.0),
        _ => None,
    };
    for (group, out) in out.chunks_exact_mut(2).enumerate() {
        let (scale, min) = parameters(source, row, group);
        let bias = zero.map_or(min, |zero| -zero * scale);
        out.copy_from_slice(&f16::from_f32([scale, bias][which]).to_le_bytes());
    }
}

impl Weight {
    /// The same as `stack` matrices of equally many rows.
    fn stacked(&self, stack: i32) -> Built<Weight> {
        let cut = |x: &Array| x.reshape(&[stack, -1, x.dim(-1)]);
        Ok(match self {
            Weight::Plain(x) => Weight::Plain(cut(x)?),
            Weight::Packed(Packed { words, scales, biases, group, bits }) => Weight::Packed(Packed {
                words: cut(words)?,
                scales: cut(scales)?,
                biases: cut(biases)?,
                group: *group,
                bits: *bits,
            }),
        })
    }

    /// `x · Wᵀ`, x `[rows, cols]`.
    pub(super) fn product(&self, x: &Array) -> Built<Array> {
        match self {
            Weight::Plain(w) => matmul(x, w.transpose()?),
            Weight::Packed(Packed { words, scales, biases, group, bits }) => {
                quantized_matmul(x, words, scales, Some(biases), true, *group, *bits)
            }
        }
    }

    /// Rows `indices`, `[n]`, as numbers.
    pub(super) fn rows(&self, indices: &Array) -> Built<Array> {
        match self {
            Weight::Plain(w) => w.take_axis(indices, 0),
            Weight::Packed(Packed { words, scales, biases, group, bits }) => dequantize(
                words.take_axis(indices, 0)?,
                scales.take_axis(indices, 0)?,
                Some(&biases.take_axis(indices, 0)?),
                *group,
                *bits,
            ),
        }
    }
}

/// `x · Wᵀ` of matrices stacked by rows.
pub(super) fn product(x: &Array, weights: &[Weight]) -> Built<Array> {
    match weights {
        [weight] => weight.product(x),
        _ => concatenate(&weights.iter().map(|w| w.product(x)).collect::<Built<Vec<Array>>>()?, -1),
    }
}
