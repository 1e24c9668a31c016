//! A folder in Hugging Face's or MLX's layout: `config.json`, safetensors, and a tokenizer where there is one.
//!
//! Opening it reads `config.json` and the tensors' listing and settles which tensors serve which role ([`plan::Plan`]); weights are read
//! when they are asked for, one role at a time.

mod config;
mod names;
mod plan;
mod quantised;

use std::collections::HashSet;
use std::path::Path;

use half::{bf16, f16};

use crate::device::weights::{Float, RowOrder};

use super::ModelError;
use super::file::read_small;
use super::safetensors::{Place, Shards};
use super::shape::ModelShape;
use super::tensor::{Checkpoint, Fate, Part, Tensor, TensorData, TensorListing, TensorRole};
use config::Configuration;
use names::Names;
use plan::{Bytes, Plan, Slice, Source, Stored};

/// Bytes of `config.json` at most.
const MAX_CONFIG: u64 = 4 << 20;

/// A model folder, its tensors not yet read.
#[derive(Debug)]
pub struct Folder {
    shards: Shards,
    configuration: Configuration,
    names: Names,
    plan: Plan,
}

impl Folder {
    /// Reads `config.json` and the tensors' places. Everything that can be wrong with a model apart from the numbers in it is found here:
    /// what is not supported, a tensor that is missing, one of another shape than the configuration makes it, one without a place.
    pub fn open(path: &Path) -> Result<Folder, ModelError> {
        let config_path = path.join("config.json");
        let text = read_small(&config_path, MAX_CONFIG)?.ok_or_else(|| {
            ModelError::file(path, "it has no config.json", "give a model folder, or a GGUF file")
        })?;
        let mut configuration = Configuration::parse(&config_path, &text)?;
        let shards = Shards::open(path)?;
        let names = Names::of(&shards)?;
        let layers = names.prediction_layers(&shards);
        if let Some(said) = configuration.prediction_layers.filter(|said| layers > 0 && *said != layers) {
            let problem = format!("its prediction head has {layers} layers, but config.json says {said}");
            return Err(ModelError::file(path, problem, "use the config.json that belongs to the model"));
        }
        configuration.shape = configuration
            .shape
            .with_prediction(layers)
            .map_err(|problem| ModelError::file(path, problem, "fetch the model again"))?;
        let plan = Plan::new(&shards, names, &configuration)?;
        Ok(Folder { shards, configuration, names, plan })
    }

    /// The model's layers and sizes.
    pub fn shape(&self) -> &ModelShape {
        &self.configuration.shape
    }

    fn read(&self, source: &Source) -> Result<Tensor, ModelError> {
        let Source { name, rows, cols, encoding, less_one, slices } = source;
        let weight = self.gather(slices, |slice| Some(&slice.weight))?;
        let data = match *encoding {
            Stored::Plain(kind) => {
                self.check_finite(name, kind, &weight, &slices[0].weight)?;
                if *less_one { plus_one(kind, &weight) } else { TensorData::Plain(kind, weight) }
            }
            Stored::Affine { packing, scales: scale_kind, biases: bias_kind } => {
                let module = name.strip_suffix(".weight").unwrap_or(name);
                let side = |what: &str, kind, pick: fn(&(Bytes, Bytes)) -> &Bytes| {
                    let bytes = self.gather(slices, |slice| slice.sides.as_ref().map(pick))?;
                    self.check_finite(&format!("{module}.{what}"), kind, &bytes, &slices[0].weight)?;
                    Ok::<_, ModelError>((kind, bytes))
                };
                TensorData::Affine {
                    bits: packing.bits,
                    group: packing.group,
                    packed: weight,
                    scales: side("scales", scale_kind, |sides| &sides.0)?,
                    biases: side("biases", bias_kind, |sides| &sides.1)?,
                }
            }
        };
        Ok(Tensor { name: name.clone(), rows: *rows, cols: *cols, order: RowOrder::Halves, data })
    }

    /// The bytes `part` picks of every slice, one behind the other.
    fn gather<'a>(
        &self,
        slices: &'a [Slice],
        part: impl Fn(&'a Slice) -> Option<&'a Bytes>,
    ) -> Result<Vec<u8>, ModelError> {
        let parts = || slices.iter().filter_map(&part);
        // All parts lie inside files, and no two overlap, so this is bounded by what is on disk.
        let total: u64 = parts().map(|bytes| bytes.range.end - bytes.range.start).sum();
        let mut out = Vec::with_capacity(usize::try_from(total).unwrap_or(0));
        for bytes in parts() {
            self.shards.read_into(bytes.shard, bytes.range.clone(), &mut out)?;
        }
        Ok(out)
    }

    /// One number that is none would make all of them none.
    fn check_finite(&self, name: &str, kind: Float, bytes: &[u8], at: &Bytes) -> Result<(), ModelError> {
        match first_not_finite(kind, bytes) {
            None => Ok(()),
            Some((index, number)) => {
                let problem = format!("number {index} of tensor `{name}` is {number}");
                Err(ModelError::file(self.shards.path_of(at.shard), problem, "fetch the model again"))
            }
        }
    }
}

impl Checkpoint for Folder {
    fn tensor(&self, role: TensorRole) -> Result<Option<Tensor>, ModelError> {
        self.plan.sources.get(&role).map(|source| self.read(source)).transpose()
    }

    fn name_of(&self, role: TensorRole) -> Option<String> {
        Some(self.names.tensor(role))
    }

    fn order(&self, role: TensorRole, shape: &ModelShape) -> RowOrder {
        let head_dim = shape.attention.head_dim;
        match role {
            TensorRole::Layer(_, Part::Query) if shape.attention.gated => RowOrder::GatedHeads { head_dim },
            TensorRole::Layer(_, Part::Query | Part::Key) if self.configuration.adjacent_rotary => {
                RowOrder::Pairs { head_dim }
            }
            _ => RowOrder::Halves,
        }
    }

    fn stranger(&self, read: &HashSet<TensorRole>) -> Option<String> {
        let mut left =
            self.plan.sources.iter().filter(|(role, _)| !role.is_prediction() && !read.contains(role));
        left.next().map(|(_, source)| source.name.clone())
    }

    fn path(&self) -> &Path {
        self.shards.folder()
    }

    fn listing(&self) -> Vec<TensorListing> {
        let mut listing = Vec::new();
        for (name, place) in self.shards.iter() {
            // Scales and biases count with the weight they belong to.
            let module = name.strip_suffix(".scales").or_else(|| name.strip_suffix(".biases"));
            if module.is_some_and(|module| self.shards.get(&format!("{module}.weight")).is_some()) {
                continue;
            }
            let module = name.strip_suffix(".weight").unwrap_or(name);
            let packed = self.configuration.quantisation.as_ref().filter(|_| place.is_packed());
            let packing = packed.and_then(|quantisation| quantisation.of(module).ok());
            let side = |suffix| self.shards.get(&format!("{module}.{suffix}")).map_or(0, Place::bytes);
            let packed_bits = packing.map(|packing| packing.bits);
            let (kind, elements) = match packed_bits {
                Some(bits) => (format!("affine{bits}"), place.elements().saturating_mul(32) / bits as u64),
                None => (place.dtype.to_string(), place.elements()),
            };
            let bytes = Some(place.bytes() + side("scales") + side("biases"));
            let fate = self.plan.fates.get(name).copied().unwrap_or(Fate::Unknown);
            listing.push(TensorListing { name: name.to_owned(), kind, elements, bytes, packed_bits, fate });
        }
        listing
    }
}

/// A norm's gain as numbers of `kind` in `bytes`, and 1 more.
fn plus_one(kind: Float, bytes: &[u8]) -> TensorData {
    let add = |x: f32| (x + 1.0).to_le_bytes();
    let gain: Vec<u8> = match kind {
        Float::F32 => bytes.as_chunks().0.iter().flat_map(|b| add(f32::from_le_bytes(*b))).collect(),
        Float::F16 => bytes.as_chunks().0.iter().flat_map(|b| add(f16::from_le_bytes(*b).to_f32())).collect(),
        Float::Bf16 => {
            bytes.as_chunks().0.iter().flat_map(|b| add(bf16::from_le_bytes(*b).to_f32())).collect()
        }
    };
    TensorData::Plain(Float::F32, gain)
}

/// The first number of `bytes` that is infinite or none, and its index.
fn first_not_finite(kind: Float, bytes: &[u8]) -> Option<(usize, f32)> {
    // In all three formats such numbers have every bit of the exponent set, and it is in the last two bytes.
    let exponent: u16 = match kind {
        Float::F32 | Float::Bf16 => 0x7f80,
        Float::F16 => 0x7c00,
    };
    let set = |high: [u8; 2]| u16::from_le_bytes(high) & exponent == exponent;
    let index = match kind {
        Float::F32 => bytes.as_chunks().0.iter().position(|b: &[u8; 4]| set([b[2], b[3]])),
        Float::F16 | Float::Bf16 => bytes.as_chunks().0.iter().position(|b| set(*b)),
    }?;
    let at = &bytes[index * kind.bytes()..][..kind.bytes()];
    let number = match (kind, at) {
        (Float::F32, [a, b, c, d]) => f32::from_le_bytes([*a, *b, *c, *d]),
        (Float::F16, [a, b]) => f16::from_le_bytes([*a, *b]).to_f32(),
        (_, [a, b]) => bf16::from_le_bytes([*a, *b]).to_f32(),
        _ => f32::NAN,
    };
    Some((index, number))
}
