//! Which tensors serve which role, and whether all of them fit: decided from the listing, before a weight is read.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use safetensors::Dtype;

use crate::device::weights::Float;
use crate::model::ModelError;
use crate::model::safetensors::{Place, Shards};
use crate::model::shape::{MlpKind, ModelShape};
use crate::model::tensor::{Fate, Part, Site, TensorRole};

use super::config::Configuration;
use super::names::Names;
use super::quantised::{Packing, Quantisation};

const REFETCH: &str = "fetch the model again, or use the config.json that belongs to it";

/// Where the tensor of every role comes from.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) sources: HashMap<TensorRole, Source>,
    /// What becomes of every tensor, by name.
    pub(super) fates: BTreeMap<String, Fate>,
}

/// Where one tensor comes from: rows of one tensor in the folder, or of several, one below the other.
#[derive(Debug)]
pub(super) struct Source {
    /// The name of the first of them.
    pub(super) name: String,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) encoding: Stored,
    /// Whether 1 is to be added: the folder has a norm's gain less 1.
    pub(super) less_one: bool,
    pub(super) slices: Vec<Slice>,
}

/// How numbers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    Plain(Float),
    Affine { packing: Packing, scales: Float, biases: Float },
}

/// Some rows of a tensor in the folder.
#[derive(Debug, Clone)]
pub(super) struct Slice {
    pub(super) weight: Bytes,
    /// Scales and biases, where it is packed.
    pub(super) sides: Option<(Bytes, Bytes)>,
}

/// Bytes of a shard, from the start of its data.
#[derive(Debug, Clone)]
pub(super) struct Bytes {
    pub(super) shard: usize,
    pub(super) range: Range<u64>,
}

/// A tensor in the folder: a weight, with scales and biases where it is packed.
struct Found<'a> {
    name: String,
    /// Its shape in numbers, not in words.
    dims: Vec<usize>,
    stored: Stored,
    weight: &'a Place,
    sides: Option<(&'a Place, &'a Place)>,
}

impl Plan {
    /// Finds every tensor the model needs and checks its shape. A tensor of the model's own that has no role is an error: to leave it out
    /// would silently compute something else.
    pub(super) fn new(
        shards: &Shards,
        names: Names,
        configuration: &Configuration,
    ) -> Result<Plan, ModelError> {
        let planner = Planner { shards, names, configuration };
        let less_one = planner.norms_are_less_one()?;
        let mut plan = Plan { sources: HashMap::new(), fates: BTreeMap::new() };
        for role in configuration.shape.roles() {
            if role == TensorRole::Output && configuration.tied == Some(true) {
                continue;
            }
            let found = planner.find(role)?;
            if found.is_empty() {
                if role == TensorRole::Output && configuration.tied.is_none() {
                    continue;
                }
                return Err(planner.missing(role));
            }
            let fate = if role.is_prediction() { Fate::Prediction } else { Fate::Used };
            for (found, _) in &found {
                plan.fates.insert(found.name.clone(), fate);
            }
            plan.sources.insert(role, planner.source(role, found, less_one && role.is_plain_norm()));
        }
        for (name, place) in shards.iter() {
            if plan.fates.contains_key(name) || is_side(name, &plan.fates) {
                continue;
            }
            let fate = names.fate(name, configuration.tied == Some(true));
            let fate = fate.ok_or_else(|| planner.stranger(name, place))?;
            plan.fates.insert(name.to_owned(), fate);
        }
        Ok(plan)
    }
}

/// Whether `name` is scales or biases of a tensor that has a fate.
fn is_side(name: &str, fates: &BTreeMap<String, Fate>) -> bool {
    let module = name.strip_suffix(".scales").or_else(|| name.strip_suffix(".biases"));
    module.is_some_and(|module| fates.contains_key(&format!("{module}.weight")))
}

struct Planner<'a> {
    shards: &'a Shards,
    names: Names,
    configuration: &'a Configuration,
}

impl<'a> Planner<'a> {
    fn shape(&self) -> &'a ModelShape {
        &self.configuration.shape
    }

    /// The convention of norms shows in that of convolutions: who writes `[channels, 1, taps]` writes gains less 1.
    fn norms_are_less_one(&self) -> Result<bool, ModelError> {
        let mut seen: Option<(&str, bool)> = None;
        for (name, place) in self.shards.iter().filter(|(name, _)| name.ends_with(".conv1d.weight")) {
            let less_one = matches!(place.shape[..], [_, 1, taps] if taps != 1);
            match seen {
                Some((first, other)) if other != less_one => {
                    let problem = format!("tensors `{first}` and `{name}` follow different conventions");
                    return Err(ModelError::file(self.shards.folder(), problem, REFETCH));
                }
                _ => seen = Some((name, less_one)),
            }
        }
        Ok(seen.is_some_and(|(_, less_one)| less_one))
    }

    /// The tensors of `role` and which rows of each belong to it; empty without any.
    fn find(&self, role: TensorRole) -> Result<Vec<(Found<'a>, Range<usize>)>, ModelError> {
        let (rows, cols) = self.shape().tensor(role);
        let whole = |found: Option<Found<'a>>| found.into_iter().map(|found| (found, 0..rows)).collect();
        let module = self.names.module(role);
        let name = self.names.tensor(role);
        match role {
            TensorRole::Layer(site, part @ (Part::ExpertGates | Part::ExpertUps | Part::ExpertDowns)) => {
                self.find_experts(site, part, (rows, cols))
            }
            TensorRole::Layer(_, Part::DeltaConvolution) => {
                let mut found = self.get(&name, &module)?;
                if let Some(found) = &mut found {
                    self.check(found, &[&[rows, cols, 1], &[rows, 1, cols]])?;
                    // Either way a channel's taps are beside each other.
                    found.dims = vec![rows, cols];
                }
                Ok(whole(found))
            }
            _ => {
                let found = self.get(&name, &module)?;
                if let Some(found) = &found {
                    // A matrix of one row is no vector: a norm of one column a row would pass for it.
                    let vector: &[usize] = &[cols];
                    let matrix: &[usize] = &[rows, cols];
                    self.check(found, &[if role.is_vector() { vector } else { matrix }])?;
                }
                Ok(whole(found))
            }
        }
    }

    /// Routed experts: stacked in one tensor, with gates above ups in one tensor, or each in a tensor of its own.
    fn find_experts(
        &self,
        site: Site,
        part: Part,
        (rows, cols): (usize, usize),
    ) -> Result<Vec<(Found<'a>, Range<usize>)>, ModelError> {
        let MlpKind::Experts { routing, .. } = self.shape().mlp else { return Ok(Vec::new()) };
        let (experts, each) = (routing.experts, rows / routing.experts);
        let role = TensorRole::Layer(site, part);
        if let Some(found) = self.get(&self.names.tensor(role), &self.names.module(role))? {
            self.check(&found, &[&[experts, each, cols]])?;
            return Ok(vec![(found, 0..rows)]);
        }
        let below = format!("{}.mlp.experts", self.names.layer(site));
        let (fused, fused_rows, at, own) = match part {
            Part::ExpertGates => ("gate_up_proj", 2 * each, 0, "gate_proj"),
            Part::ExpertUps => ("gate_up_proj", 2 * each, each, "up_proj"),
            _ => ("down_proj", each, 0, "down_proj"),
        };
        let fused = format!("{below}.{fused}");
        let mut all = Vec::new();
        if self.shards.get(&fused).is_some() {
            for expert in 0..experts {
                let Some(found) = self.get(&fused, &fused)? else { continue };
                self.check(&found, &[&[experts, fused_rows, cols]])?;
                let first = expert * fused_rows + at;
                all.push((found, first..first + each));
            }
            return Ok(all);
        }
        if !self.shards.has_under(&format!("{below}.")) {
            return Ok(all);
        }
        for expert in 0..experts {
            let module = format!("{below}.{expert}.{own}");
            let name = format!("{module}.weight");
            let Some(found) = self.get(&name, &module)? else {
                let problem = format!("tensor `{name}` is missing");
                return Err(ModelError::file(self.shards.folder(), problem, REFETCH));
            };
            self.check(&found, &[&[each, cols]])?;
            if let Some((first, _)) = all.first()
                && !same_encoding(first, &found)
            {
                let first: &Found<'_> = first;
                let problem = format!("tensors `{}` and `{name}` are encoded differently", first.name);
                return Err(ModelError::file(self.shards.file_of(found.weight), problem, REFETCH));
            }
            all.push((found, 0..each));
        }
        Ok(all)
    }

    /// The tensor `name`, with scales and biases of `module` where it is packed.
    fn get(&self, name: &str, module: &str) -> Result<Option<Found<'a>>, ModelError> {
        let Some(weight) = self.shards.get(name) else { return Ok(None) };
        let file = self.shards.file_of(weight);
        let name = name.to_owned();
        if weight.dtype == Dtype::U32 {
            return self.packed(name, module, weight).map(Some);
        }
        let Some(kind) = float(weight.dtype) else {
            let problem = format!("tensor `{name}` is {}", weight.dtype);
            let remedy = "use a model in F32, F16, BF16 or MLX's affine quantisation";
            return Err(ModelError::file(file, problem, remedy));
        };
        let (dims, stored) = (weight.shape.clone(), Stored::Plain(kind));
        Ok(Some(Found { name, dims, stored, weight, sides: None }))
    }

    fn packed(&self, name: String, module: &str, weight: &'a Place) -> Result<Found<'a>, ModelError> {
        let file = self.shards.file_of(weight);
        let wrong =
            |problem: String| ModelError::file(file, problem, "use a model quantised by MLX's affine mode");
        let quantisation: &Quantisation = self.configuration.quantisation.as_ref().ok_or_else(|| {
            wrong(format!("tensor `{name}` is packed, but config.json has no `quantization`"))
        })?;
        let packing =
            quantisation.of(module).map_err(|e| wrong(format!("tensor `{name}` is packed, but {e}")))?;
        let side = |suffix: &str| {
            let name = format!("{module}.{suffix}");
            let place = self.shards.get(&name).ok_or_else(|| wrong(format!("tensor `{name}` is missing")))?;
            let kind =
                float(place.dtype).ok_or_else(|| wrong(format!("tensor `{name}` is {}", place.dtype)))?;
            Ok::<_, ModelError>((kind, place))
        };
        let (scales, biases) = (side("scales")?, side("biases")?);
        let Packing { bits, group } = packing;
        let dims = match (&weight.shape[..], &scales.1.shape[..]) {
            ([rows @ .., words], [scale_rows @ .., groups]) if rows == scale_rows && !rows.is_empty() => {
                let cols = groups.checked_mul(group);
                let fits = |cols: &usize| {
                    let bits = cols.checked_mul(bits);
                    bits.is_some_and(|bits| Some(bits) == words.checked_mul(32))
                };
                cols.filter(fits).map(|cols| [rows, &[cols]].concat())
            }
            _ => None,
        };
        match dims {
            Some(dims) if scales.1.shape == biases.1.shape => {
                let stored = Stored::Affine { packing, scales: scales.0, biases: biases.0 };
                Ok(Found { name, dims, stored, weight, sides: Some((scales.1, biases.1)) })
            }
            _ => Err(wrong(format!(
                "tensor `{name}` of shape {:?} does not fit scales of shape {:?} and biases of shape {:?} in groups of {group} and {bits} bits",
                weight.shape, scales.1.shape, biases.1.shape
            ))),
        }
    }

    /// Checks that the shape of `found` is one of `allowed`.
    fn check(&self, found: &Found<'_>, allowed: &[&[usize]]) -> Result<(), ModelError> {
        if allowed.contains(&&found.dims[..]) {
            return Ok(());
        }
        let problem = format!(
            "tensor `{}` is {}, but the configuration makes it {}",
            found.name,
            by(&found.dims),
            by(allowed[0])
        );
        Err(ModelError::file(self.shards.file_of(found.weight), problem, REFETCH))
    }

    fn source(&self, role: TensorRole, found: Vec<(Found<'a>, Range<usize>)>, less_one: bool) -> Source {
        let (rows, cols) = self.shape().tensor(role);
        let (first, _) = &found[0];
        let (name, encoding) = (first.name.clone(), first.stored);
        let slices = found.iter().map(|(found, rows)| found.slice(rows)).collect();
        Source { name, rows, cols, encoding, less_one, slices }
    }

    fn missing(&self, role: TensorRole) -> ModelError {
        let name = self.names.tensor(role);
        let folder = self.shards.folder();
        if let TensorRole::Layer(site @ Site::Main(n), _) = role
            && !self.shards.has_under(&format!("{}.", self.names.layer(site)))
        {
            let layers = self.shape().layers.len();
            let problem = format!(
                "config.json says `num_hidden_layers` is {layers}, but no tensor belongs to layer {n}: `{name}` is missing"
            );
            return ModelError::file(folder, problem, REFETCH);
        }
        ModelError::file(folder, format!("tensor `{name}` is missing"), REFETCH)
    }

    fn stranger(&self, name: &str, place: &Place) -> ModelError {
        let file = self.shards.file_of(place);
        let layers = self.shape().layers.len();
        let beyond = self.names.main_layer(name).filter(|layer| *layer >= layers);
        if let Some(layer) = beyond {
            let problem = format!(
                "tensor `{name}` belongs to layer {layer}, but config.json says `num_hidden_layers` is {layers}"
            );
            return ModelError::file(file, problem, REFETCH);
        }
        let architecture = self.shape().architecture.name();
        let problem = format!("tensor `{name}` has no place in the `{architecture}` architecture");
        let remedy = "use a model without it; leaving it out would silently compute something else";
        ModelError::file(file, problem, remedy)
    }
}

impl Found<'_> {
    /// The bytes of some rows.
    fn slice(&self, rows: &Range<usize>) -> Slice {
        let all: usize = self.dims[..self.dims.len() - 1].iter().product();
        let part = |place: &Place| {
            let row = place.bytes() / (all.max(1) as u64);
            let range = place.start() + row * rows.start as u64..place.start() + row * rows.end as u64;
            Bytes { shard: place.shard(), range }
        };
        Slice {
            weight: part(self.weight),
            sides: self.sides.map(|(scales, biases)| (part(scales), part(biases))),
        }
    }
}

fn same_encoding(a: &Found<'_>, b: &Found<'_>) -> bool {
    a.stored == b.stored
}

fn by(dims: &[usize]) -> String {
    dims.iter().map(usize::to_string).collect::<Vec<_>>().join("x")
}

fn float(dtype: Dtype) -> Option<Float> {
    match dtype {
        Dtype::F32 => Some(Float::F32),
        Dtype::F16 => Some(Float::F16),
        Dtype::BF16 => Some(Float::Bf16),
        _ => None,
    }
}
