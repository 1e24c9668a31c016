//! Loading a model's tensors onto a device.

use std::collections::HashSet;

use crate::device::DeviceError;
use crate::device::ops::{DeltaShape, DeltaSource, Device, ExpertSource};
use crate::device::weights::WeightSource;
use crate::model::ModelError;
use crate::model::shape::{LayerKind, MlpKind, ModelShape};
use crate::model::tensor::{Checkpoint, Part, Site, Tensor, TensorRole};

use super::head::Head;
use super::{Attention, Decoder, GatedMlp, Layer, Mixer, Mlp};

/// Reads tensors one at a time, checks their shapes and feeds their bytes to the model's digest.
pub(super) struct Loader<'a> {
    pub(super) checkpoint: &'a dyn Checkpoint,
    pub(super) shape: &'a ModelShape,
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

    /// A linear layer of one tensor.
    pub(super) fn matrix<D: Device>(
        &mut self,
        device: &mut D,
        role: TensorRole,
    ) -> Result<D::Linear, ModelError> {
        let tensor = self.need(role)?;
        device.load_linear(&[tensor.source()]).map_err(|e| self.refused(e))
    }

    /// A norm's gain.
    pub(super) fn gain<D: Device>(
        &mut self,
        device: &mut D,
        role: TensorRole,
    ) -> Result<D::Gain, ModelError> {
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

    /// An attention layer's part that mixes tokens; `index` numbers it in its store.
    pub(super) fn attention<D: Device>(
        &mut self,
        device: &mut D,
        site: Site,
        index: usize,
    ) -> Result<Attention<D>, ModelError> {
        let norm = |part| TensorRole::Layer(site, part);
        let norms = match self.shape.attention.head_norms {
            true => {
                Some([self.gain(device, norm(Part::QueryNorm))?, self.gain(device, norm(Part::KeyNorm))?])
            }
            false => None,
        };
        Ok(Attention {
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

    /// A layer's MLP.
    pub(super) fn mlp<D: Device>(&mut self, device: &mut D, site: Site) -> Result<Mlp<D>, ModelError> {
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
    /// place for is an error: leaving it out would silently compute something else. The multi-token-prediction head is loaded where it is asked for.
    pub fn load(
        device: &mut D,
        checkpoint: &dyn Checkpoint,
        shape: ModelShape,
        with_head: bool,
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
                    Mixer::Attention(loader.attention(device, site, attention - 1)?)
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
        let head = with_head.then(|| Head::load(&mut loader, device)).transpose()?;
        Ok(Decoder { table, layers, output_norm, output, head, shape })
    }
}
