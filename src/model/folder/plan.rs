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
use super::names::{Names, module_of, owner};
use super::quantised::{Packing, Quantisation};

const REFETCH: &str = "fetch the model again, or use the config.json that belongs to it";

/// Where the tensor of every role comes from.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) sources: HashMap<TensorRole, Source>,
    /// Whether the folder has the gains of the model's own plain norms less 1. Those of a prediction head have a convention of their own.
    pub(super) less_one: bool,
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
    pub(super) pieces: Vec<Piece>,
}

/// How numbers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    Plain(Float),
    Affine { packing: Packing, scales: Float, biases: Float },
}

/// Some rows of a tensor in the folder.
#[derive(Debug)]
pub(super) struct Piece {
    /// The weight's name.
    name: String,
    weight: Runs,
    /// Scales and biases, where it is packed.
    sides: Option<(Runs, Runs)>,
}

/// One of the tensors a packed weight is in; a plain one has the first alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Weight,
    Scales,
    Biases,
}

impl Piece {
    /// The name of the tensor of `field`.
    pub(super) fn name(&self, field: Field) -> String {
        match field {
            Field::Weight => self.name.clone(),
            Field::Scales => format!("{}.scales", module_of(&self.name)),
            Field::Biases => format!("{}.biases", module_of(&self.name)),
        }
    }

    /// Its bytes of `field`; `None` where it has no such tensor.
    pub(super) fn runs(&self, field: Field) -> Option<&Runs> {
        match (field, &self.sides) {
            (Field::Weight, _) => Some(&self.weight),
            (Field::Scales, Some((scales, _))) => Some(scales),
            (Field::Biases, Some((_, biases))) => Some(biases),
            (_, None) => None,
        }
    }
}

/// Bytes of a tensor: runs of one length, at one distance from each other.
#[derive(Debug)]
pub(super) struct Runs {
    /// The shard the tensor is in.
    pub(super) shard: usize,
    /// Where the tensor begins, from the start of the shard's data.
    tensor: u64,
    /// Where the first run begins, from the start of the tensor.
    first: u64,
    /// Bytes of a run.
    bytes: u64,
    /// From the start of a run to that of the next.
    stride: u64,
    count: u64,
}

impl Runs {
    /// Bytes of all of them. They lie inside a file and do not overlap, so this is bounded by what is on disk.
    pub(super) fn total(&self) -> u64 {
        self.bytes * self.count
    }

    /// Where they are, from the start of the shard's data.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let start = self.tensor + self.first;
        (0..self.count).map(move |n| start + n * self.stride..start + n * self.stride + self.bytes)
    }

    /// Where byte `at` of all of them, one behind the other, is in the tensor.
    pub(super) fn place(&self, at: u64) -> u64 {
        self.first + at / self.bytes * self.stride + at % self.bytes
    }
}

/// Blocks of rows of a tensor, at one distance from each other: of all experts in it, those that serve one role.
#[derive(Debug, Clone, Copy)]
struct Blocks {
    first: usize,
    /// Rows of a block.
    rows: usize,
    /// From the first row of a block to that of the next.
    stride: usize,
    count: usize,
}

impl Blocks {
    /// One block.
    fn all(rows: usize) -> Blocks {
        Blocks { first: 0, rows, stride: rows, count: 1 }
    }
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
        let mut plan = Plan { sources: HashMap::new(), less_one, fates: BTreeMap::new() };
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
            plan.sources.insert(role, planner.source(role, &found));
        }
        for (name, place) in shards.iter() {
            if plan.fates.contains_key(name) || planner.is_side(name, place, &plan.fates)? {
                continue;
            }
            let fate = names.fate(name, configuration.tied == Some(true));
            let fate = fate.ok_or_else(|| planner.stranger(name, place))?;
            plan.fates.insert(name.to_owned(), fate);
        }
        Ok(plan)
    }
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

    /// Whether `name` is scales or biases of a packed tensor that has a role. Beside a plain one they are a contradiction.
    fn is_side(&self, name: &str, place: &Place, fates: &BTreeMap<String, Fate>) -> Result<bool, ModelError> {
        let Some(owner) = owner(self.shards, name) else { return Ok(false) };
        if !matches!(fates.get(&owner), Some(Fate::Used | Fate::Prediction)) {
            return Ok(false);
        }
        match self.shards.get(&owner) {
            Some(weight) if !weight.is_packed() => {
                let problem =
                    format!("tensor `{name}` belongs to packed weights, but `{owner}` is {}", weight.dtype);
                Err(ModelError::file(self.shards.file_of(place), problem, REFETCH))
            }
            weight => Ok(weight.is_some()),
        }
    }

    /// The tensors of `role` and which rows of each belong to it; empty without any.
    fn find(&self, role: TensorRole) -> Result<Vec<(Found<'a>, Blocks)>, ModelError> {
        let (rows, cols) = self.shape().tensor(role);
        let whole =
            |found: Option<Found<'a>>| found.into_iter().map(|found| (found, Blocks::all(rows))).collect();
        let name = self.names.tensor(role);
        match role {
            TensorRole::Layer(site, part @ (Part::ExpertGates | Part::ExpertUps | Part::ExpertDowns)) => {
                self.find_experts(site, part, (rows, cols))
            }
            TensorRole::Layer(_, Part::DeltaConvolution) => {
                let mut found = self.get(&name)?;
                if let Some(found) = &mut found {
                    self.check(found, &[&[rows, cols, 1], &[rows, 1, cols]])?;
                    // Either way a channel's taps are beside each other.
                    found.dims = vec![rows, cols];
                }
                Ok(whole(found))
            }
            _ => {
                let found = self.get(&name)?;
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
    ) -> Result<Vec<(Found<'a>, Blocks)>, ModelError> {
        let MlpKind::Experts { routing, .. } = self.shape().mlp else { return Ok(Vec::new()) };
        let (experts, each) = (routing.experts, rows / routing.experts);
        let role = TensorRole::Layer(site, part);
        if let Some(found) = self.get(&self.names.tensor(role))? {
            self.check(&found, &[&[experts, each, cols]])?;
            return Ok(vec![(found, Blocks::all(rows))]);
        }
        let below = format!("{}.mlp.experts", self.names.layer(site));
        let (fused, fused_rows, at, own) = match part {
            Part::ExpertGates => ("gate_up_proj", 2 * each, 0, "gate_proj"),
            Part::ExpertUps => ("gate_up_proj", 2 * each, each, "up_proj"),
            _ => ("down_proj", each, 0, "down_proj"),
        };
        if let Some(found) = self.get(&format!("{below}.{fused}"))? {
            self.check(&found, &[&[experts, fused_rows, cols]])?;
            return Ok(vec![(found, Blocks { first: at, rows: each, stride: fused_rows, count: experts })]);
        }
        let mut all = Vec::new();
        if !self.shards.has_under(&format!("{below}.")) {
            return Ok(all);
        }
        for expert in 0..experts {
            let name = format!("{below}.{expert}.{own}.weight");
            let Some(found) = self.get(&name)? else {
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
            all.push((found, Blocks::all(each)));
        }
        Ok(all)
    }

    /// The tensor `name`, with its scales and biases where it is packed.
    fn get(&self, name: &str) -> Result<Option<Found<'a>>, ModelError> {
        let Some(weight) = self.shards.get(name) else { return Ok(None) };
        let file = self.shards.file_of(weight);
        let name = name.to_owned();
        if weight.is_packed() {
            return self.packed(name, weight).map(Some);
        }
        let Some(kind) = float(weight.dtype) else {
            let problem = format!("tensor `{name}` is {}", weight.dtype);
            let remedy = "use a model in F32, F16, BF16 or MLX's affine quantisation";
            return Err(ModelError::file(file, problem, remedy));
        };
        let (dims, stored) = (weight.shape.clone(), Stored::Plain(kind));
        Ok(Some(Found { name, dims, stored, weight, sides: None }))
    }

    fn packed(&self, name: String, weight: &'a Place) -> Result<Found<'a>, ModelError> {
        let module = module_of(&name);
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

    fn source(&self, role: TensorRole, found: &[(Found<'a>, Blocks)]) -> Source {
        let (rows, cols) = self.shape().tensor(role);
        let (first, _) = &found[0];
        let (name, encoding) = (first.name.clone(), first.stored);
        let pieces = found.iter().map(|(found, blocks)| found.piece(*blocks)).collect();
        Source { name, rows, cols, encoding, pieces }
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
    /// Some of its rows.
    fn piece(&self, blocks: Blocks) -> Piece {
        let all: usize = self.dims[..self.dims.len() - 1].iter().product();
        let runs = |place: &Place| {
            let row = place.bytes() / (all.max(1) as u64);
            let [first, bytes, stride] =
                [blocks.first, blocks.rows, blocks.stride].map(|rows| row * rows as u64);
            let (shard, tensor) = (place.shard(), place.start());
            Runs { shard, tensor, first, bytes, stride, count: blocks.count as u64 }
        };
        Piece {
            name: self.name.clone(),
            weight: runs(self.weight),
            sides: self.sides.map(|(scales, biases)| (runs(scales), runs(biases))),
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
