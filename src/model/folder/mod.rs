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
use std::sync::OnceLock;

use half::{bf16, f16};

use crate::device::weights::{Float, RowOrder};

use super::ModelError;
use super::file::{read_small, reserve};
use super::safetensors::{Place, Shards};
use super::shape::{MAX_LAYERS, ModelShape};
use super::tensor::{Checkpoint, Fate, Part, Tensor, TensorData, TensorListing, TensorRole};
use config::Configuration;
use names::{Names, module_of, owner};
use plan::{Field, Plan, Source, Stored};

/// Bytes of `config.json` at most.
const MAX_CONFIG: u64 = 4 << 20;

/// Means of a norm's numbers that tell neither gains, which are about 1, nor gains less 1.
const AMBIGUOUS_MEANS: std::ops::RangeInclusive<f64> = 0.35..=0.65;

/// A model folder, its tensors not yet read.
#[derive(Debug)]
pub struct Folder {
    shards: Shards,
    configuration: Configuration,
    names: Names,
    plan: Plan,
    /// Whether the norms of the prediction head are stored less 1, once it has been asked for.
    prediction_less_one: OnceLock<bool>,
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
        let last = names.last_prediction_layer(&shards);
        if let Some((layer, name)) = last.filter(|(layer, _)| *layer >= MAX_LAYERS) {
            let problem = format!(
                "tensor `{name}` belongs to layer {layer} of the prediction head, and more than {MAX_LAYERS} layers are absurd"
            );
            let file = shards.get(name).map_or(path, |place| shards.file_of(place));
            return Err(ModelError::file(file, problem, "fetch the model again"));
        }
        let layers = last.map_or(0, |(layer, _)| layer + 1);
        if let Some(said) = configuration.prediction_layers.filter(|said| layers > 0 && *said != layers) {
            let problem = format!("its prediction head has {layers} layers, but config.json says {said}");
            return Err(ModelError::file(path, problem, "use the config.json that belongs to the model"));
        }
        configuration.shape = configuration
            .shape
            .with_prediction(layers)
            .map_err(|problem| ModelError::file(path, problem, "fetch the model again"))?;
        let plan = Plan::new(&shards, names, &configuration)?;
        Ok(Folder { shards, configuration, names, plan, prediction_less_one: OnceLock::new() })
    }

    /// The model's layers and sizes.
    pub fn shape(&self) -> &ModelShape {
        &self.configuration.shape
    }

    fn read(&self, source: &Source) -> Result<Tensor, ModelError> {
        let data = match source.encoding {
            Stored::Plain(kind) => TensorData::Plain(kind, self.gather(source, Field::Weight, Some(kind))?),
            Stored::Affine { packing, scales, biases } => TensorData::Affine {
                bits: packing.bits,
                group: packing.group,
                packed: self.gather(source, Field::Weight, None)?,
                scales: (scales, self.gather(source, Field::Scales, Some(scales))?),
                biases: (biases, self.gather(source, Field::Biases, Some(biases))?),
            },
        };
        let Source { name, rows, cols, .. } = source;
        Ok(Tensor { name: name.clone(), rows: *rows, cols: *cols, order: RowOrder::Halves, data })
    }

    /// The bytes of `field` of every piece, one below the other. Where they are numbers, one that is none would make all of them none, so
    /// it is an error that names the tensor and file it is in.
    fn gather(&self, source: &Source, field: Field, numbers: Option<Float>) -> Result<Vec<u8>, ModelError> {
        let pieces = || source.pieces.iter().filter_map(|piece| Some((piece, piece.runs(field)?)));
        let mut out = Vec::new();
        if let Some((first, runs)) = pieces().next() {
            let total = pieces().fold(0u64, |total, (_, runs)| total.saturating_add(runs.total()));
            let tensor = format!("tensor `{}`", first.name(field));
            reserve(&mut out, total, self.shards.path_of(runs.shard), &tensor)?;
        }
        for (piece, runs) in pieces() {
            let start = out.len();
            for range in runs.ranges() {
                self.shards.read_into(runs.shard, range, &mut out)?;
            }
            let Some(kind) = numbers else { continue };
            if let Some((index, number)) = first_not_finite(kind, &out[start..]) {
                let size = kind.bytes() as u64;
                let index = runs.place(index as u64 * size) / size;
                let problem = format!("number {index} of tensor `{}` is {number}", piece.name(field));
                return Err(ModelError::file(
                    self.shards.path_of(runs.shard),
                    problem,
                    "fetch the model again",
                ));
            }
        }
        Ok(out)
    }

    /// Whether 1 is to be added to `role`'s numbers: the folder has a norm's gain less 1.
    fn is_less_one(&self, role: TensorRole) -> Result<bool, ModelError> {
        match role.is_plain_norm() {
            false => Ok(false),
            true if role.is_prediction() => self.is_prediction_less_one(),
            true => Ok(self.plan.less_one),
        }
    }

    /// Whether the folder has the gains of the prediction head's norms less 1. The rest of the model does not say: heads are handed on by
    /// themselves, in Hugging Face's convention, beside models in MLX's. Trained gains scatter about 1, so what is stored scatters
    /// about 1 or 0, and the head's norms, which follow one convention, are told by the middle one of their means.
    fn is_prediction_less_one(&self) -> Result<bool, ModelError> {
        if let Some(known) = self.prediction_less_one.get() {
            return Ok(*known);
        }
        let shape = self.shape();
        // Only architectures with recurrent layers have this convention at all.
        if shape.delta.is_none() {
            return Ok(false);
        }
        let mut means = Vec::new();
        for role in shape.roles().filter(|role| role.is_prediction() && role.is_plain_norm()) {
            if let Some(source) = self.plan.sources.get(&role)
                && let TensorData::Plain(kind, bytes) = self.read(source)?.data
            {
                let sum: f64 = numbers(kind, &bytes).map(f64::from).sum();
                means.push((sum / source.cols as f64, source));
            }
        }
        means.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let Some((mean, source)) = means.get(means.len() / 2) else { return Ok(false) };
        if AMBIGUOUS_MEANS.contains(mean) {
            let place = self.shards.get(&source.name);
            let file = place.map_or(self.shards.folder(), |place| self.shards.file_of(place));
            let problem = format!(
                "the numbers of tensor `{}` are {mean:.2} on average, the middle one of the prediction head's norms, so that it \
                 cannot be told whether they are gains, which are about 1, or gains less 1",
                source.name
            );
            return Err(ModelError::file(file, problem, "use the prediction head of a trained model"));
        }
        Ok(*self.prediction_less_one.get_or_init(|| *mean < *AMBIGUOUS_MEANS.start()))
    }
}

impl Checkpoint for Folder {
    fn tensor(&self, role: TensorRole) -> Result<Option<Tensor>, ModelError> {
        let Some(source) = self.plan.sources.get(&role) else { return Ok(None) };
        let mut tensor = self.read(source)?;
        if let TensorData::Plain(kind, bytes) = &tensor.data
            && self.is_less_one(role)?
        {
            let gain = numbers(*kind, bytes).flat_map(|x| (x + 1.0).to_le_bytes()).collect();
            tensor.data = TensorData::Plain(Float::F32, gain);
        }
        Ok(Some(tensor))
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
            if owner(&self.shards, name).is_some() {
                continue;
            }
            let module = module_of(name);
            let packed = self.configuration.quantisation.as_ref().filter(|_| place.is_packed());
            let packing = packed.and_then(|quantisation| quantisation.of(module).ok());
            let side = |suffix| {
                let side = format!("{module}.{suffix}");
                let is_own = owner(&self.shards, &side).is_some_and(|owner| owner == name);
                self.shards.get(&side).filter(|_| is_own).map_or(0, Place::bytes)
            };
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

/// The numbers of `kind` in `bytes`, widened.
fn numbers(kind: Float, bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(kind.bytes()).map(move |number| match (kind, number) {
        (Float::F32, [a, b, c, d]) => f32::from_le_bytes([*a, *b, *c, *d]),
        (Float::F16, [a, b]) => f16::from_le_bytes([*a, *b]).to_f32(),
        (_, [a, b]) => bf16::from_le_bytes([*a, *b]).to_f32(),
        _ => f32::NAN,
    })
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
    let number = numbers(kind, &bytes[index * kind.bytes()..]).next()?;
    Some((index, number))
}
