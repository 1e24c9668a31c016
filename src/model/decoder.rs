//! The decoder stack of every architecture, written once against the operations of a device.

use std::collections::HashSet;
use std::ops::Range;

use crate::device::ops::{AttentionShape, DeltaShape, DeltaSource, Device, ExpertShape, ExpertSource, Rows};
use crate::device::weights::WeightSource;
use crate::device::{DeviceError, LogitRows, Queries, Span};

use super::ModelError;
use super::shape::{LayerKind, MlpKind, ModelShape};
use super::tensor::{Checkpoint, Part, Site, Tensor, TensorRole};

/// A layer: what mixes tokens, then what works on each.
struct Layer<D: Device> {
    input_norm: D::Gain,
    mixer: Mixer<D>,
    mlp_norm: D::Gain,
    mlp: Mlp<D>,
}

/// What mixes tokens. `index` counts the layers of the kind.
enum Mixer<D: Device> {
    Attention {
        index: usize,
        qkv: D::Linear,
        /// Of queries and keys.
        norms: Option<[D::Gain; 2]>,
        output: D::Linear,
    },
    Recurrent {
        index: usize,
        projections: D::Linear,
        delta: D::Delta,
        output: D::Linear,
    },
}

enum Mlp<D: Device> {
    Dense(GatedMlp<D>),
    Experts {
        routing: ExpertShape,
        router: D::Linear,
        routed: D::Experts,
        shared_router: D::Linear,
        shared: GatedMlp<D>,
    },
}

struct GatedMlp<D: Device> {
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

/// What a forward computes beside state.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Output {
    /// The logits asked for, `[rows, vocab]`.
    pub logits: Vec<f32>,
    /// The queries asked for.
    pub queries: Queries,
}

/// A model's state on a device.
pub struct ModelState<D: Device> {
    /// Keys and values of the attention layers.
    pub kv: D::Kv,
    /// Slots of the recurrent layers, where there are any.
    pub states: Option<D::States>,
}

/// Reads tensors one at a time, checks their shapes and feeds their bytes to the model's digest.
struct Loader<'a> {
    checkpoint: &'a dyn Checkpoint,
    shape: &'a ModelShape,
    hasher: &'a mut blake3::Hasher,
    /// What has been read so far.
    read: HashSet<TensorRole>,
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
        tensor.order = self.checkpoint.order(role, self.shape);
        tensor.hash_into(self.hasher);
        self.read.insert(role);
        Ok(Some(tensor))
    }

    fn need(&mut self, role: TensorRole) -> Result<Tensor, ModelError> {
        self.find(role)?.ok_or_else(|| {
            let name = self.checkpoint.name_of(role).unwrap_or_else(|| format!("{role:?}"));
            let problem = format!("tensor `{name}` is missing");
            ModelError::file(self.checkpoint.path(), problem, "fetch the model again")
        })
    }

    fn linear<D: Device>(
        &mut self,
        device: &mut D,
        site: Site,
        parts: &[Part],
    ) -> Result<D::Linear, ModelError> {
        let tensors = self.tensors(site, parts)?;
        let sources: Vec<WeightSource<'_>> = tensors.iter().map(Tensor::source).collect();
        device.load_linear(&sources).map_err(|e| self.refused(e))
    }

    fn tensors(&mut self, site: Site, parts: &[Part]) -> Result<Vec<Tensor>, ModelError> {
        parts.iter().map(|part| self.need(TensorRole::Layer(site, *part))).collect()
    }

    fn gain<D: Device>(&mut self, device: &mut D, role: TensorRole) -> Result<D::Gain, ModelError> {
        let tensor = self.need(role)?;
        device.load_gain(tensor.source()).map_err(|e| self.refused(e))
    }

    fn table<D: Device>(&mut self, device: &mut D) -> Result<D::Table, ModelError> {
        let tensor = self.need(TensorRole::Embedding)?;
        device.load_table(tensor.source()).map_err(|e| self.refused(e))
    }

    fn layer<D: Device>(
        &mut self,
        device: &mut D,
        site: Site,
        mixer: Mixer<D>,
    ) -> Result<Layer<D>, ModelError> {
        Ok(Layer {
            input_norm: self.gain(device, TensorRole::Layer(site, Part::InputNorm))?,
            mixer,
            mlp_norm: self.gain(device, TensorRole::Layer(site, Part::MlpNorm))?,
            mlp: self.mlp(device, site)?,
        })
    }

    fn attention<D: Device>(
        &mut self,
        device: &mut D,
        site: Site,
        index: usize,
    ) -> Result<Mixer<D>, ModelError> {
        let norm = |part| TensorRole::Layer(site, part);
        let norms = match self.shape.attention.head_norms {
            true => {
                Some([self.gain(device, norm(Part::QueryNorm))?, self.gain(device, norm(Part::KeyNorm))?])
            }
            false => None,
        };
        Ok(Mixer::Attention {
            index,
            qkv: self.linear(device, site, &[Part::Query, Part::Key, Part::Value])?,
            norms,
            output: self.linear(device, site, &[Part::AttentionOutput])?,
        })
    }

    fn recurrent<D: Device>(
        &mut self,
        device: &mut D,
        site: Site,
        index: usize,
        shape: DeltaShape,
    ) -> Result<Mixer<D>, ModelError> {
        let projections = [Part::DeltaQkv, Part::DeltaGate, Part::DeltaBeta, Part::DeltaDecay];
        let own = [Part::DeltaConvolution, Part::DeltaDecayRate, Part::DeltaDecayBias, Part::DeltaNorm];
        let projections = self.linear(device, site, &projections)?;
        let own = self.tensors(site, &own)?;
        let source = DeltaSource {
            convolution: own[0].source(),
            decay_rate: own[1].source(),
            decay_bias: own[2].source(),
            norm: own[3].source(),
        };
        let delta = device.load_delta(shape, source).map_err(|e| self.refused(e))?;
        Ok(Mixer::Recurrent {
            index,
            projections,
            delta,
            output: self.linear(device, site, &[Part::DeltaOutput])?,
        })
    }

    fn mlp<D: Device>(&mut self, device: &mut D, site: Site) -> Result<Mlp<D>, ModelError> {
        Ok(match self.shape.mlp {
            MlpKind::Dense { .. } => Mlp::Dense(GatedMlp {
                gate_up: self.linear(device, site, &[Part::Gate, Part::Up])?,
                down: self.linear(device, site, &[Part::Down])?,
            }),
            MlpKind::Experts { routing, intermediate, .. } => Mlp::Experts {
                routing,
                router: self.linear(device, site, &[Part::Router])?,
                routed: self.experts(device, site, routing.experts, intermediate)?,
                shared_router: self.linear(device, site, &[Part::SharedRouter])?,
                shared: GatedMlp {
                    gate_up: self.linear(device, site, &[Part::SharedGate, Part::SharedUp])?,
                    down: self.linear(device, site, &[Part::SharedDown])?,
                },
            },
        })
    }

    fn experts<D: Device>(
        &mut self,
        device: &mut D,
        site: Site,
        experts: usize,
        intermediate: usize,
    ) -> Result<D::Experts, ModelError> {
        let hidden = self.shape.hidden;
        let stacks = self.tensors(site, &[Part::ExpertGates, Part::ExpertUps, Part::ExpertDowns])?;
        let part = |stack: usize, expert: usize, rows: usize| {
            stacks[stack].source().slice(expert * rows..(expert + 1) * rows)
        };
        let sources: Vec<ExpertSource<'_>> = (0..experts)
            .map(|expert| ExpertSource {
                gate: part(0, expert, intermediate),
                up: part(1, expert, intermediate),
                down: part(2, expert, hidden),
            })
            .collect();
        device.load_experts(&sources).map_err(|e| self.refused(e))
    }

    /// A tensor without a place in the architecture means that another architecture is meant.
    fn refuse_strangers(&self) -> Result<(), ModelError> {
        let Some(name) = self.checkpoint.stranger(&self.read) else { return Ok(()) };
        let architecture = self.shape.architecture.name();
        let problem = format!("tensor `{name}` has no place in the `{architecture}` architecture");
        let remedy = "use a model without it; leaving it out would silently compute something else";
        Err(ModelError::file(self.checkpoint.path(), problem, remedy))
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
        let mut loader = Loader { checkpoint, shape: &shape, hasher, read: HashSet::new() };
        let table = loader.table(device)?;
        let mut layers = Vec::new();
        let (mut attention, mut recurrent) = (0, 0);
        for (n, kind) in shape.layers.iter().enumerate() {
            let site = Site::Main(n);
            // Layers of a kind share a store, in which they are numbered by themselves.
            let mixer = match (kind, shape.delta) {
                (LayerKind::Attention, _) => {
                    attention += 1;
                    loader.attention(device, site, attention - 1)?
                }
                (LayerKind::Recurrent, Some(delta)) => {
                    recurrent += 1;
                    loader.recurrent(device, site, recurrent - 1, delta)?
                }
                (LayerKind::Recurrent, None) => {
                    let problem = format!("layer {n} is recurrent, and nothing says of what sizes");
                    return Err(ModelError::file(checkpoint.path(), problem, "fetch the model again"));
                }
            };
            layers.push(loader.layer(device, site, mixer)?);
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

    /// State for this model, without pages or slots.
    pub fn new_state(&self, device: &mut D, page_tokens: usize) -> Result<ModelState<D>, DeviceError> {
        Ok(ModelState {
            kv: device.new_kv(self.shape.kv(page_tokens))?,
            states: self.shape.states().map(|shape| device.new_states(shape)).transpose()?,
        })
    }

    /// Computes the spans in one batch; gives the logits and the queries they ask for.
    pub fn forward(
        &self,
        device: &mut D,
        state: &mut ModelState<D>,
        spans: &[Span<'_>],
    ) -> Result<Output, DeviceError> {
        let positions: Vec<u32> = spans.iter().flat_map(Span::token_positions).collect();
        let rows = Rows { spans, positions: &positions };
        let mut capture = Capture { rows: captured_rows(rows), layers: Vec::new() };
        let logits = self.logits(device, state, rows, &mut capture)?;
        let queries = capture.read(device, self.shape.attention.heads)?;
        Ok(Output { logits, queries })
    }

    fn logits(
        &self,
        device: &mut D,
        state: &mut ModelState<D>,
        rows: Rows<'_>,
        capture: &mut Capture<D>,
    ) -> Result<Vec<f32>, DeviceError> {
        let tokens: Vec<u32> = rows.spans.iter().flat_map(|span| span.tokens).copied().collect();
        let wanted = wanted_rows(rows);
        let eps = self.shape.norm_eps;
        let mut x = device.embed(&self.table, &tokens);
        for (n, layer) in self.layers.iter().enumerate() {
            let normed = device.rms_norm(&x, &layer.input_norm, eps);
            let (mut mixed, output) = self.mix(device, &layer.mixer, &normed, rows, state, capture)?;
            if n + 1 == self.layers.len() {
                // All state is written and all queries are taken; what follows serves the logits alone.
                if wanted.is_empty() {
                    return Ok(Vec::new());
                }
                mixed = device.select_rows(&mixed, &wanted);
                x = device.select_rows(&x, &wanted);
            }
            let projected = device.linear(&mixed, output);
            device.add(&mut x, &projected);
            let normed = device.rms_norm(&x, &layer.mlp_norm, eps);
            let expanded = layer.mlp.forward(device, &normed);
            device.add(&mut x, &expanded);
        }
        let x = device.rms_norm(&x, &self.output_norm, eps);
        match &self.output {
            Some(output) => device.logits(&x, output),
            None => device.tied_logits(&x, &self.table),
        }
    }

    /// What a mixer gives, and the projection it is still to go through.
    fn mix<'a>(
        &self,
        device: &mut D,
        mixer: &'a Mixer<D>,
        x: &D::Hidden,
        rows: Rows<'_>,
        state: &mut ModelState<D>,
        capture: &mut Capture<D>,
    ) -> Result<(D::Hidden, &'a D::Linear), DeviceError> {
        let eps = self.shape.norm_eps;
        match mixer {
            Mixer::Attention { index, qkv, norms, output } => {
                let shape = self.shape.attention_shape();
                let mut qkv = device.linear(x, qkv);
                if let Some([query, key]) = norms {
                    device.norm_heads(&mut qkv, shape, query, key, eps);
                }
                device.rotary(&mut qkv, shape, self.shape.attention.rotary, rows.positions);
                capture.take(device, &qkv, shape);
                Ok((device.attention(&qkv, shape, rows, &mut state.kv, *index), output))
            }
            Mixer::Recurrent { index, projections, delta, output } => {
                let Some(states) = &mut state.states else {
                    return Err(DeviceError::Contract("a recurrent layer without recurrent state".into()));
                };
                let projected = device.linear(x, projections);
                Ok((device.gated_delta(&projected, delta, rows, states, *index, eps), output))
            }
        }
    }
}

impl<D: Device> Mlp<D> {
    fn forward(&self, device: &mut D, x: &D::Hidden) -> D::Hidden {
        match self {
            Mlp::Dense(mlp) => device.gated_mlp(x, &mlp.gate_up, &mlp.down),
            Mlp::Experts { routing, router, routed, shared_router, shared } => {
                let scores = device.linear(x, router);
                let mut sum = device.experts(x, &scores, *routing, routed);
                let gate = device.linear(x, shared_router);
                let mut common = device.gated_mlp(x, &shared.gate_up, &shared.down);
                device.gate_rows(&mut common, &gate);
                device.add(&mut sum, &common);
                sum
            }
        }
    }
}

/// Queries on their way out of a forward.
struct Capture<D: Device> {
    /// Rows of the batch they are of.
    rows: Vec<usize>,
    /// Those of the attention layers so far.
    layers: Vec<D::Hidden>,
}

impl<D: Device> Capture<D> {
    /// Takes those of a layer.
    fn take(&mut self, device: &mut D, qkv: &D::Hidden, shape: AttentionShape) {
        if !self.rows.is_empty() {
            self.layers.push(device.queries(qkv, shape, &self.rows));
        }
    }

    /// All of them, token by token.
    fn read(&self, device: &mut D, heads: usize) -> Result<Queries, DeviceError> {
        let tokens = self.rows.len();
        if tokens == 0 {
            return Ok(Queries::default());
        }
        let layers = self.layers.iter().map(|layer| device.read(layer)).collect::<Result<Vec<_>, _>>()?;
        let of_token = |token: usize| {
            layers.iter().flat_map(move |layer| {
                let columns = layer.len() / tokens;
                &layer[token * columns..][..columns]
            })
        };
        let values = (0..tokens).flat_map(of_token).copied().collect();
        Ok(Queries { tokens, layers: layers.len(), heads, values })
    }
}

/// The rows of the batch whose queries are asked for.
fn captured_rows(rows: Rows<'_>) -> Vec<usize> {
    let last = |(range, span): (Range<usize>, &Span<'_>)| range.end.saturating_sub(span.capture)..range.end;
    rows.ranges().into_iter().zip(rows.spans).flat_map(last).collect()
}

/// The rows of the batch whose logits are asked for.
fn wanted_rows(rows: Rows<'_>) -> Vec<usize> {
    let wanted = |(range, span): (Range<usize>, &Span<'_>)| match span.logits {
        LogitRows::None => range.end..range.end,
        LogitRows::Last => range.end - 1..range.end,
        LogitRows::All => range,
    };
    rows.ranges().into_iter().zip(rows.spans).flat_map(wanted).collect()
}
