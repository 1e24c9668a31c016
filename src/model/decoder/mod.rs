//! The decoder stack of every architecture, written once against the operations of a device.

mod head;
mod load;

use std::ops::Range;

use crate::device::ops::{AttentionShape, Device, ExpertShape, Rows};
use crate::device::{DeviceError, Queries, Span};
use crate::event::ExpertsTouched;

use super::shape::{MlpKind, ModelShape};
use head::Head;

pub(super) use head::HeadOutput;

/// A layer: what mixes tokens, then what works on each.
struct Layer<D: Device> {
    input_norm: D::Gain,
    mixer: Mixer<D>,
    mlp_norm: D::Gain,
    mlp: Mlp<D>,
}

/// What mixes tokens. `index` counts the layers of the kind.
enum Mixer<D: Device> {
    Attention(Attention<D>),
    Recurrent { index: usize, projections: D::Linear, delta: D::Delta, output: D::Linear },
}

/// What mixes the tokens of an attention layer.
struct Attention<D: Device> {
    index: usize,
    qkv: D::Linear,
    /// Of queries and keys.
    norms: Option<[D::Gain; 2]>,
    output: D::Linear,
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
    /// The multi-token-prediction head, where it is loaded.
    head: Option<Head<D>>,
}

/// What is called between two layers of a forward.
pub type Between<'a, D> = dyn FnMut(&mut D, &<D as Device>::Hidden) -> Result<(), DeviceError> + 'a;

/// What a forward computes beside state.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Output {
    /// The logits asked for, `[rows, vocab]`.
    pub logits: Vec<f32>,
    /// The queries asked for.
    pub queries: Queries,
    /// The hidden states asked for, `[rows, hidden]`.
    pub hidden: Vec<f32>,
    /// Routed experts it touched, where the device tells.
    pub experts: Option<ExpertsTouched>,
}

/// A model's state on a device.
pub struct ModelState<D: Device> {
    /// Keys and values of the attention layers.
    pub kv: D::Kv,
    /// Slots of the recurrent layers, where there are any.
    pub states: Option<D::States>,
    /// Keys and values of the multi-token-prediction head, where it is loaded.
    pub head: Option<D::Kv>,
}

impl<D: Device> Decoder<D> {
    /// Its layers and sizes.
    pub fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// State for this model, without pages or slots.
    pub fn new_state(&self, device: &mut D, page_tokens: usize) -> Result<ModelState<D>, DeviceError> {
        Ok(ModelState {
            kv: device.new_kv(self.shape.kv(page_tokens))?,
            states: self.shape.states().map(|shape| device.new_states(shape)).transpose()?,
            head: self.head_kv(page_tokens).map(|shape| device.new_kv(shape)).transpose()?,
        })
    }

    /// Computes the spans in one batch; gives the logits and the queries they ask for. `between` is called before every layer but the first, with
    /// the hidden states so far; its error ends the forward.
    pub fn forward(
        &self,
        device: &mut D,
        state: &mut ModelState<D>,
        spans: &[Span<'_>],
        between: &mut Between<'_, D>,
    ) -> Result<Output, DeviceError> {
        let positions: Vec<u32> = spans.iter().flat_map(Span::token_positions).collect();
        let rows = Rows { spans, positions: &positions };
        let mut capture = Capture { rows: captured_rows(rows), layers: Vec::new() };
        let wanted = Wanted::of(rows);
        device.take_experts_touched();
        let last = self.last_hidden(device, state, rows, &wanted, &mut capture, between)?;
        let (logits, hidden) = match &last {
            Some(last) => self.outputs(device, last, &wanted)?,
            None => (Vec::new(), Vec::new()),
        };
        let queries = capture.read(device, self.shape.attention.heads)?;
        let experts = self.experts_touched(device, last.is_some());
        Ok(Output { logits, queries, hidden, experts })
    }

    /// The hidden states after the final norm of the rows that logits or hidden states are wanted of; `None` where there is none.
    fn last_hidden(
        &self,
        device: &mut D,
        state: &mut ModelState<D>,
        rows: Rows<'_>,
        wanted: &Wanted,
        capture: &mut Capture<D>,
        between: &mut Between<'_, D>,
    ) -> Result<Option<D::Hidden>, DeviceError> {
        let tokens: Vec<u32> = rows.spans.iter().flat_map(|span| span.tokens).copied().collect();
        let eps = self.shape.norm_eps;
        let mut x = device.embed(&self.table, &tokens);
        for (n, layer) in self.layers.iter().enumerate() {
            if n > 0 {
                between(device, &x)?;
            }
            let normed = device.rms_norm(&x, &layer.input_norm, eps);
            let (mut mixed, output) = self.mix(device, &layer.mixer, &normed, rows, state, capture)?;
            if n + 1 == self.layers.len() {
                // All state is written and all queries are taken; what follows serves logits and hidden states alone.
                if wanted.rows.is_empty() {
                    return Ok(None);
                }
                mixed = device.select_rows(&mixed, &wanted.rows);
                x = device.select_rows(&x, &wanted.rows);
            }
            let projected = device.linear(&mixed, output);
            device.add(&mut x, &projected);
            let normed = device.rms_norm(&x, &layer.mlp_norm, eps);
            let expanded = layer.mlp.forward(device, &normed);
            device.add(&mut x, &expanded);
        }
        Ok(Some(device.rms_norm(&x, &self.output_norm, eps)))
    }

    /// The logits and the hidden states that are wanted of `x`, the rows after the final norm.
    fn outputs(
        &self,
        device: &mut D,
        x: &D::Hidden,
        wanted: &Wanted,
    ) -> Result<(Vec<f32>, Vec<f32>), DeviceError> {
        let all = wanted.rows.len();
        let logits = match wanted.logits.len() {
            0 => Vec::new(),
            rows if rows == all => self.project(device, x)?,
            _ => {
                let rows = device.select_rows(x, &wanted.logits);
                self.project(device, &rows)?
            }
        };
        let hidden = match wanted.hidden.len() {
            0 => Vec::new(),
            rows if rows == all => device.read(x)?,
            _ => {
                let rows = device.select_rows(x, &wanted.hidden);
                device.read(&rows)?
            }
        };
        Ok((logits, hidden))
    }

    /// Logits of hidden states.
    fn project(&self, device: &mut D, x: &D::Hidden) -> Result<Vec<f32>, DeviceError> {
        match &self.output {
            Some(output) => device.logits(x, output),
            None => device.tied_logits(x, &self.table),
        }
    }

    /// The experts of this forward, whose last layer's MLP ran or did not.
    fn experts_touched(&self, device: &mut D, whole: bool) -> Option<ExpertsTouched> {
        let MlpKind::Experts { routing, .. } = self.shape.mlp else { return None };
        let touched = device.take_experts_touched()?;
        let layers = (self.layers.len() - usize::from(!whole)) as u64;
        Some(ExpertsTouched {
            touched,
            of_one_token: layers * routing.per_token as u64,
            experts: layers * routing.experts as u64,
        })
    }

    /// Queries, gates, keys and values of an attention layer, normed and rotated.
    fn qkv(&self, device: &mut D, attention: &Attention<D>, x: &D::Hidden, positions: &[u32]) -> D::Hidden {
        let shape = self.shape.attention_shape();
        let mut qkv = device.linear(x, &attention.qkv);
        if let Some([query, key]) = &attention.norms {
            device.norm_heads(&mut qkv, shape, query, key, self.shape.norm_eps);
        }
        device.rotary(&mut qkv, shape, self.shape.attention.rotary, positions);
        qkv
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
            Mixer::Attention(attention) => {
                let shape = self.shape.attention_shape();
                let qkv = self.qkv(device, attention, x, rows.positions);
                capture.take(device, &qkv, shape);
                let attended = device.attention(&qkv, shape, rows, &mut state.kv, attention.index, 0);
                Ok((attended, &attention.output))
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

/// The rows of the batch that something is asked of behind the last layer.
struct Wanted {
    /// All of them, by their place in the batch.
    rows: Vec<usize>,
    /// Those whose logits are, by their place in `rows`.
    logits: Vec<usize>,
    /// Those whose hidden states are, likewise.
    hidden: Vec<usize>,
}

impl Wanted {
    fn of(rows: Rows<'_>) -> Wanted {
        let mut wanted = Wanted { rows: Vec::new(), logits: Vec::new(), hidden: Vec::new() };
        for (range, span) in rows.ranges().into_iter().zip(rows.spans) {
            let logits_from = range.end - span.logits.count(range.len());
            for row in range {
                let (logits, hidden) = (row >= logits_from, span.hidden);
                let place = wanted.rows.len();
                if logits || hidden {
                    wanted.rows.push(row);
                }
                if logits {
                    wanted.logits.push(place);
                }
                if hidden {
                    wanted.hidden.push(place);
                }
            }
        }
        wanted
    }
}
