//! The `llama` architecture, written once against the operations of a device.

use std::collections::HashSet;

use crate::device::ops::{AttentionShape, Device, KvShape, Rotary, Rows};
use crate::device::weights::WeightSource;
use crate::device::{DeviceError, LogitRows, Span};

use super::ModelError;
use super::tensor::{Checkpoint, Tensor, TensorRole};

/// Sizes of a `llama` model, checked against each other.
#[derive(Debug, Clone, PartialEq)]
pub struct LlamaConfig {
    /// Layers.
    pub layers: usize,
    /// Columns of the hidden state.
    pub hidden: usize,
    /// Columns inside the gated MLP.
    pub intermediate: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Columns of a head; even.
    pub head_dim: usize,
    /// Ids.
    pub vocab: usize,
    /// Tokens the context holds.
    pub context: usize,
    /// Epsilon of the norms.
    pub norm_eps: f32,
    /// Rotary embedding.
    pub rotary: Rotary,
}

impl LlamaConfig {
    /// Checks the sizes against each other; the error names the offending ones.
    pub(super) fn checked(self) -> Result<LlamaConfig, String> {
        // Above any model there is, and small enough that products of two fit comfortably.
        const LIMIT: usize = 1 << 24;
        let sizes = [
            ("layers", self.layers),
            ("hidden size", self.hidden),
            ("MLP size", self.intermediate),
            ("heads", self.heads),
            ("key/value heads", self.kv_heads),
            ("head size", self.head_dim),
            ("vocabulary", self.vocab),
            ("context", self.context),
        ];
        if let Some((name, size)) = sizes.iter().find(|(_, size)| *size == 0 || *size > LIMIT) {
            return Err(format!("the {name} of {size} is not from 1 to {LIMIT}"));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(format!(
                "{} heads cannot share {} key/value heads evenly",
                self.heads, self.kv_heads
            ));
        }
        if !self.rotary.dims.is_multiple_of(2) || self.rotary.dims > self.head_dim || self.rotary.dims == 0 {
            return Err(format!(
                "{} rotary dimensions do not fit heads of {}",
                self.rotary.dims, self.head_dim
            ));
        }
        if !(self.rotary.base.is_finite() && self.rotary.base >= 1.0) {
            return Err(format!("the rotary base of {} is not a number of at least 1", self.rotary.base));
        }
        if !(self.norm_eps > 0.0 && self.norm_eps < 1.0) {
            return Err(format!("the norm epsilon of {} is not between 0 and 1", self.norm_eps));
        }
        Ok(self)
    }

    /// The attention layers' heads.
    pub fn attention(&self) -> AttentionShape {
        AttentionShape {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            scale: (1.0 / (self.head_dim as f64).sqrt()) as f32,
        }
    }

    /// The key/value store a model of these sizes needs.
    pub fn kv(&self, page_tokens: usize) -> KvShape {
        KvShape { layers: self.layers, kv_heads: self.kv_heads, head_dim: self.head_dim, page_tokens }
    }

    /// Rows and columns of the tensor of `role`.
    fn shape(&self, role: TensorRole) -> (usize, usize) {
        match role {
            TensorRole::Embedding | TensorRole::Output => (self.vocab, self.hidden),
            TensorRole::OutputNorm | TensorRole::AttentionNorm(_) | TensorRole::MlpNorm(_) => {
                (1, self.hidden)
            }
            TensorRole::Query(_) => (self.heads * self.head_dim, self.hidden),
            TensorRole::Key(_) | TensorRole::Value(_) => (self.kv_heads * self.head_dim, self.hidden),
            TensorRole::AttentionOutput(_) => (self.hidden, self.heads * self.head_dim),
            TensorRole::Gate(_) | TensorRole::Up(_) => (self.intermediate, self.hidden),
            TensorRole::Down(_) => (self.hidden, self.intermediate),
        }
    }
}

/// The tensors of one layer.
struct Layer<D: Device> {
    attention_norm: D::Gain,
    qkv: D::Linear,
    attention_output: D::Linear,
    mlp_norm: D::Gain,
    gate_up: D::Linear,
    down: D::Linear,
}

/// A `llama` model on a device.
pub struct Llama<D: Device> {
    config: LlamaConfig,
    table: D::Table,
    layers: Vec<Layer<D>>,
    output_norm: D::Gain,
    /// `None` when the embedding serves as output projection.
    output: Option<D::Linear>,
}

/// Reads tensors one at a time, checks their shapes and feeds their bytes to the model's digest.
struct Loader<'a> {
    checkpoint: &'a dyn Checkpoint,
    config: &'a LlamaConfig,
    hasher: &'a mut blake3::Hasher,
    /// Names of the tensors read so far.
    used: HashSet<String>,
}

impl Loader<'_> {
    fn find(&mut self, role: TensorRole) -> Result<Option<Tensor>, ModelError> {
        let Some(mut tensor) = self.checkpoint.tensor(role)? else { return Ok(None) };
        let (rows, cols) = self.config.shape(role);
        if (tensor.rows, tensor.cols) != (rows, cols) {
            let problem = format!(
                "tensor `{}` is {}x{}, but the configuration makes it {rows}x{cols}",
                tensor.name, tensor.rows, tensor.cols
            );
            return Err(ModelError::file(self.checkpoint.path(), problem, "fetch the model again"));
        }
        if matches!(role, TensorRole::Query(_) | TensorRole::Key(_)) {
            tensor.order = self.checkpoint.head_order(self.config.head_dim);
        }
        tensor.hash_into(self.hasher);
        self.used.insert(tensor.name.clone());
        Ok(Some(tensor))
    }

    fn need(&mut self, role: TensorRole) -> Result<Tensor, ModelError> {
        self.find(role)?.ok_or_else(|| {
            let problem = format!("tensor `{}` is missing", self.checkpoint.name_of(role));
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
            let derived = tensor.name.ends_with("rotary_emb.inv_freq") || tensor.name == tied_copy;
            !derived && !self.used.contains(&tensor.name)
        });
        match stranger {
            None => Ok(()),
            Some(tensor) => {
                let problem = format!("tensor `{}` has no place in the `llama` architecture", tensor.name);
                let remedy = "use a model without it; leaving it out would silently compute something else";
                Err(ModelError::file(self.checkpoint.path(), problem, remedy))
            }
        }
    }

    fn refused(&self, source: DeviceError) -> ModelError {
        ModelError::Device { path: self.checkpoint.path().to_owned(), source }
    }
}

impl<D: Device> Llama<D> {
    /// Loads every tensor onto `device` and adds configuration and tensors to `hasher`. A tensor the architecture has no
    /// place for is an error: leaving it out would silently compute something else.
    pub fn load(
        device: &mut D,
        checkpoint: &dyn Checkpoint,
        config: LlamaConfig,
        hasher: &mut blake3::Hasher,
    ) -> Result<Llama<D>, ModelError> {
        hasher.update(format!("llama {config:?}\n").as_bytes());
        let mut loader = Loader { checkpoint, config: &config, hasher, used: HashSet::new() };
        let table = loader.need(TensorRole::Embedding)?;
        let table = device.load_table(table.source()).map_err(|e| loader.refused(e))?;
        let mut layers = Vec::new();
        for n in 0..config.layers {
            layers.push(Layer {
                attention_norm: loader.gain(device, TensorRole::AttentionNorm(n))?,
                qkv: loader
                    .linear(device, &[TensorRole::Query(n), TensorRole::Key(n), TensorRole::Value(n)])?,
                attention_output: loader.linear(device, &[TensorRole::AttentionOutput(n)])?,
                mlp_norm: loader.gain(device, TensorRole::MlpNorm(n))?,
                gate_up: loader.linear(device, &[TensorRole::Gate(n), TensorRole::Up(n)])?,
                down: loader.linear(device, &[TensorRole::Down(n)])?,
            });
        }
        let output_norm = loader.gain(device, TensorRole::OutputNorm)?;
        let output = match loader.find(TensorRole::Output)? {
            Some(tensor) => Some(device.load_linear(&[tensor.source()]).map_err(|e| loader.refused(e))?),
            None => None,
        };
        loader.refuse_strangers()?;
        Ok(Llama { table, layers, output_norm, output, config })
    }

    /// Its sizes.
    pub fn config(&self) -> &LlamaConfig {
        &self.config
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
        let (shape, eps) = (self.config.attention(), self.config.norm_eps);
        let wanted = wanted_rows(spans);
        let mut x = device.embed(&self.table, &tokens);
        for (n, layer) in self.layers.iter().enumerate() {
            let normed = device.rms_norm(&x, &layer.attention_norm, eps);
            let mut qkv = device.linear(&normed, &layer.qkv);
            device.rotary(&mut qkv, shape, self.config.rotary, &positions);
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
