//! The decoder stack of every architecture, written once against the operations of a device.

use std::collections::HashSet;

use crate::device::ops::{Device, Rows};
use crate::device::weights::WeightSource;
use crate::device::{DeviceError, LogitRows, Span};

use super::ModelError;
use super::shape::ModelShape;
use super::tensor::{Checkpoint, Part, Site, Tensor, TensorRole};

/// The tensors of one layer.
struct Layer<D: Device> {
    attention_norm: D::Gain,
    qkv: D::Linear,
    attention_output: D::Linear,
    mlp_norm: D::Gain,
    gate_up: D::Linear,
    down: D::Linear,
}

/// A model on a device.
pub struct Decoder<D: Device> {
    shape: ModelShape,
    table: D::Table,
    layers: Vec<Layer<D>>,
    output_norm: D::Gain,
    /// `None` when the embedding serves as output projection.
    output: Option<D::Linear>,
}

/// Reads tensors one at a time, checks their shapes and feeds their bytes to the model's digest.
struct Loader<'a> {
    checkpoint: &'a dyn Checkpoint,
    shape: &'a ModelShape,
    hasher: &'a mut blake3::Hasher,
    /// Names of the tensors read so far.
    used: HashSet<String>,
}

impl Loader<'_> {
    fn find(&mut self, role: TensorRole) -> Result<Option<Tensor>, ModelError> {
        let Some(mut tensor) = self.checkpoint.tensor(role)? else { return Ok(None) };
        let (rows, cols) = self.shape.tensor(role);
        if (tensor.rows, tensor.cols) != (rows, cols) {
            let problem = format!(
                "tensor `{}` is {}x{}, but the configuration makes it {rows}x{cols}",
                tensor.name, tensor.rows, tensor.cols
            );
            return Err(ModelError::file(self.checkpoint.path(), problem, "fetch the model again"));
        }
        if matches!(role, TensorRole::Layer(_, Part::Query | Part::Key)) {
            tensor.order = self.checkpoint.head_order(self.shape.attention.head_dim);
        }
        tensor.hash_into(self.hasher);
        self.used.insert(tensor.name.clone());
        Ok(Some(tensor))
    }

    fn need(&mut self, role: TensorRole) -> Result<Tensor, ModelError> {
        self.find(role)?.ok_or_else(|| {
            let name = self.checkpoint.name_of(role).unwrap_or_else(|| format!("{role:?}"));
            let problem = format!("tensor `{name}` is missing");
            ModelError::file(self.checkpoint.path(), problem, "fetch the model again")
        })
    }

    fn linear<D: Device>(&mut self, device: &mut D, roles: &[TensorRole]) -> Result<D::Linear, ModelError> {
        let tensors: Vec<Tensor> = roles.iter().map(|role| self.need(*role)).collect::<Result<_, _>>()?;
        let sources: Vec<WeightSource<'_>> = tensors.iter().map(Tensor::source).collect();
        device.load_linear(&sources).map_err(|e| self.refused(e))
    }

    fn gain<D: Device>(&mut self, device: &mut D, role: TensorRole) -> Result<D::Gain, ModelError> {
        let tensor = self.need(role)?;
        device.load_gain(tensor.source()).map_err(|e| self.refused(e))
    }

    /// A tensor without a place in the architecture means that another architecture is meant.
    fn refuse_strangers(&self) -> Result<(), ModelError> {
        let tied_copy = self.checkpoint.name_of(TensorRole::Output);
        let stranger = self.checkpoint.listing().into_iter().find(|tensor| {
            let derived =
                tensor.name.ends_with("rotary_emb.inv_freq") || Some(&tensor.name) == tied_copy.as_ref();
            !derived && !self.used.contains(&tensor.name)
        });
        match stranger {
            None => Ok(()),
            Some(tensor) => {
                let problem = format!(
                    "tensor `{}` has no place in the `{}` architecture",
                    tensor.name,
                    self.shape.architecture.name()
                );
                let remedy = "use a model without it; leaving it out would silently compute something else";
                Err(ModelError::file(self.checkpoint.path(), problem, remedy))
            }
        }
    }

    fn refused(&self, source: DeviceError) -> ModelError {
        ModelError::Device { path: self.checkpoint.path().to_owned(), source }
    }
}

impl<D: Device> Decoder<D> {
    /// Loads every tensor onto `device` and adds configuration and tensors to `hasher`. A tensor the architecture has no
    /// place for is an error: leaving it out would silently compute something else.
    pub fn load(
        device: &mut D,
        checkpoint: &dyn Checkpoint,
        shape: ModelShape,
        hasher: &mut blake3::Hasher,
    ) -> Result<Decoder<D>, ModelError> {
        hasher.update(format!("{shape:?}\n").as_bytes());
        let mut loader = Loader { checkpoint, shape: &shape, hasher, used: HashSet::new() };
        let table = loader.need(TensorRole::Embedding)?;
        let table = device.load_table(table.source()).map_err(|e| loader.refused(e))?;
        let mut layers = Vec::new();
        for n in 0..shape.layers.len() {
            let part = |part| TensorRole::Layer(Site::Main(n), part);
            layers.push(Layer {
                attention_norm: loader.gain(device, part(Part::InputNorm))?,
                qkv: loader.linear(device, &[part(Part::Query), part(Part::Key), part(Part::Value)])?,
                attention_output: loader.linear(device, &[part(Part::AttentionOutput)])?,
                mlp_norm: loader.gain(device, part(Part::MlpNorm))?,
                gate_up: loader.linear(device, &[part(Part::Gate), part(Part::Up)])?,
                down: loader.linear(device, &[part(Part::Down)])?,
            });
        }
        let output_norm = loader.gain(device, TensorRole::OutputNorm)?;
        let output = match loader.find(TensorRole::Output)? {
            Some(tensor) => Some(device.load_linear(&[tensor.source()]).map_err(|e| loader.refused(e))?),
            None => None,
        };
        loader.refuse_strangers()?;
        Ok(Decoder { table, layers, output_norm, output, shape })
    }

    /// Its layers and sizes.
    pub fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// Computes the spans in one batch; gives the logits they ask for, `[rows, vocab]`.
    pub fn forward(
        &self,
        device: &mut D,
        kv: &mut D::Kv,
        spans: &[Span<'_>],
    ) -> Result<Vec<f32>, DeviceError> {
        let tokens: Vec<u32> = spans.iter().flat_map(|span| span.tokens).copied().collect();
        let positions: Vec<u32> = spans
            .iter()
            .flat_map(|span| (span.start..span.start + span.tokens.len()).map(|position| position as u32))
            .collect();
        let rows = Rows { spans, positions: &positions };
        let (shape, eps) = (self.shape.attention_shape(), self.shape.norm_eps);
        let wanted = wanted_rows(spans);
        let mut x = device.embed(&self.table, &tokens);
        for (n, layer) in self.layers.iter().enumerate() {
            let normed = device.rms_norm(&x, &layer.attention_norm, eps);
            let mut qkv = device.linear(&normed, &layer.qkv);
            device.rotary(&mut qkv, shape, self.shape.attention.rotary, &positions);
            let mut attended = device.attention(&qkv, shape, rows, kv, n);
            if n + 1 == self.layers.len() {
                // All state is written; what follows serves the logits alone.
                if wanted.is_empty() {
                    return Ok(Vec::new());
                }
                attended = device.select_rows(&attended, &wanted);
                x = device.select_rows(&x, &wanted);
            }
            let projected = device.linear(&attended, &layer.attention_output);
            device.add(&mut x, &projected);
            let normed = device.rms_norm(&x, &layer.mlp_norm, eps);
            let expanded = device.gated_mlp(&normed, &layer.gate_up, &layer.down);
            device.add(&mut x, &expanded);
        }
        let x = device.rms_norm(&x, &self.output_norm, eps);
        match &self.output {
            Some(output) => device.logits(&x, output),
            None => device.tied_logits(&x, &self.table),
        }
    }
}

/// The rows of the batch whose logits are asked for.
fn wanted_rows(spans: &[Span<'_>]) -> Vec<usize> {
    let mut wanted = Vec::new();
    let mut start = 0;
    for span in spans {
        let end = start + span.tokens.len();
        match span.logits {
            LogitRows::None => {}
            LogitRows::Last => wanted.extend((start..end).last()),
            LogitRows::All => wanted.extend(start..end),
        }
        start = end;
    }
    wanted
}
