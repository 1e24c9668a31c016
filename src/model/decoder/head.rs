//! The multi-token-prediction head: from a hidden state and the token that followed it, what follows that token.
//!
//! The entry at place `p` is made of the target's hidden state at place `p - 1`, after the final norm, and of the token at place `p`: both
//! are normed and projected together, the token first, and go through one attention layer of the trunk's kind, which reads the entries
//! before. What that gives is normed and multiplied by the trunk's output projection. Chained, the head's own normed output takes the place of the
//! hidden state. Place 0 has no entry; zeros lie there, and no query sees them.

use crate::device::ops::{Device, KvShape, Rows};
use crate::device::{DeviceError, HeadSpan, Span};
use crate::model::ModelError;
use crate::model::shape::ModelShape;
use crate::model::tensor::{Part, Site, TensorRole};

use super::load::Loader;
use super::{Attention, Decoder, Mlp};

/// The first place with an entry.
const FIRST: usize = 1;

/// The head on a device.
pub(super) struct Head<D: Device> {
    token_norm: D::Gain,
    hidden_norm: D::Gain,
    /// From both, side by side, to a hidden state.
    input: D::Linear,
    layer_norm: D::Gain,
    attention: Attention<D>,
    mlp_norm: D::Gain,
    mlp: Mlp<D>,
    output_norm: D::Gain,
}

/// What a pass of the head gives for the spans that predict.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HeadOutput {
    /// `[spans, vocab]`
    pub logits: Vec<f32>,
    /// The head's hidden states, `[spans, hidden]`.
    pub hidden: Vec<f32>,
}

impl<D: Device> Head<D> {
    /// Loads the head of the checkpoint, which has one of one layer.
    pub(super) fn load(loader: &mut Loader<'_>, device: &mut D) -> Result<Head<D>, ModelError> {
        check_layers(loader)?;
        let site = Site::Prediction(0);
        let norm = |part| TensorRole::Layer(site, part);
        Ok(Head {
            token_norm: loader.gain(device, TensorRole::PredictionTokenNorm)?,
            hidden_norm: loader.gain(device, TensorRole::PredictionHiddenNorm)?,
            input: loader.matrix(device, TensorRole::PredictionInput)?,
            layer_norm: loader.gain(device, norm(Part::InputNorm))?,
            attention: loader.attention(device, site, 0)?,
            mlp_norm: loader.gain(device, norm(Part::MlpNorm))?,
            mlp: loader.mlp(device, site)?,
            output_norm: loader.gain(device, TensorRole::PredictionOutputNorm)?,
        })
    }
}

fn check_layers(loader: &Loader<'_>) -> Result<(), ModelError> {
    const REMEDY: &str = "use a model with a head of one layer, or another drafter: \"ngram\", or \"draft\" with a smaller model";
    let problem = match loader.shape.prediction_layers {
        1 => return Ok(()),
        0 => {
            let name = loader.checkpoint.name_of(TensorRole::PredictionInput);
            let name = name.map(|name| format!(": tensor `{name}` is missing")).unwrap_or_default();
            format!(
                "`speculation.drafter` is \"mtp\", and the model has no multi-token-prediction head{name}"
            )
        }
        layers => format!(
            "`speculation.drafter` is \"mtp\", and the model's multi-token-prediction head has {layers} layers; no more than one is supported"
        ),
    };
    Err(ModelError::file(loader.checkpoint.path(), problem, REMEDY))
}

impl ModelShape {
    /// The key/value store of the multi-token-prediction head.
    pub(in crate::model) fn head_kv(&self, page_tokens: usize) -> KvShape {
        KvShape { layers: self.prediction_layers, ..self.kv(page_tokens) }
    }
}

impl<D: Device> Decoder<D> {
    /// The store of the head's keys and values; `None` where no head is loaded.
    pub fn head_kv(&self, page_tokens: usize) -> Option<KvShape> {
        self.head.as_ref().map(|_| self.shape.head_kv(page_tokens))
    }

    /// Has the head read the spans in one pass: writes their entries to `kv`, and gives the logits and hidden states that are asked for.
    pub(in crate::model) fn predict(
        &self,
        device: &mut D,
        kv: &mut D::Kv,
        spans: &[HeadSpan<'_>],
    ) -> Result<HeadOutput, DeviceError> {
        let Some(head) = &self.head else {
            return Err(DeviceError::Contract("no prediction head is loaded".to_owned()));
        };
        let (eps, shape) = (self.shape.norm_eps, self.shape.attention_shape());
        let written: Vec<Span<'_>> = spans.iter().map(HeadSpan::span).collect();
        let positions: Vec<u32> = written.iter().flat_map(Span::token_positions).collect();
        let rows = Rows { spans: &written, positions: &positions };
        self.clear_first(device, kv, &written);

        let mut x = self.merge(device, head, spans);
        let normed = device.rms_norm(&x, &head.layer_norm, eps);
        let mut qkv = self.qkv(device, &head.attention, &normed, &positions);
        // Keys and values come from every row, and attention serves the predicting ones alone.
        let predicting: Vec<usize> = rows
            .ranges()
            .iter()
            .zip(spans)
            .filter(|(_, span)| span.predict)
            .map(|(range, _)| range.end - 1)
            .collect();
        if predicting.len() < positions.len() {
            device.store(&qkv, shape, rows, kv, head.attention.index);
            if predicting.is_empty() {
                return Ok(HeadOutput::default());
            }
            qkv = device.select_rows(&qkv, &predicting);
            x = device.select_rows(&x, &predicting);
        }
        let last: Vec<Span<'_>> = spans.iter().filter(|span| span.predict).map(last).collect();
        let positions: Vec<u32> = predicting.iter().map(|row| positions[*row]).collect();
        let rows = Rows { spans: &last, positions: &positions };
        let attended = device.attention(&qkv, shape, rows, kv, head.attention.index, FIRST);
        let projected = device.linear(&attended, &head.attention.output);
        device.add(&mut x, &projected);
        let normed = device.rms_norm(&x, &head.mlp_norm, eps);
        let expanded = head.mlp.forward(device, &normed);
        device.add(&mut x, &expanded);
        let hidden = device.rms_norm(&x, &head.output_norm, eps);
        Ok(HeadOutput { logits: self.project(device, &hidden)?, hidden: device.read(&hidden)? })
    }

    /// The input of the head's layer, of all rows.
    fn merge(&self, device: &mut D, head: &Head<D>, spans: &[HeadSpan<'_>]) -> D::Hidden {
        let eps = self.shape.norm_eps;
        let tokens: Vec<u32> = spans.iter().flat_map(|span| span.tokens).copied().collect();
        let tokens = device.embed(&self.table, &tokens);
        let tokens = device.rms_norm(&tokens, &head.token_norm, eps);
        let hidden = match spans {
            [span] => device.upload(span.hidden, self.shape.hidden),
            _ => {
                let all: Vec<f32> = spans.iter().flat_map(|span| span.hidden).copied().collect();
                device.upload(&all, self.shape.hidden)
            }
        };
        let hidden = device.rms_norm(&hidden, &head.hidden_norm, eps);
        let both = device.beside(&tokens, &hidden);
        device.linear(&both, &head.input)
    }

    /// Puts zeros where place 0 of the sequences that begin would have its entry, so that what a page holds hangs on its tokens alone.
    fn clear_first(&self, device: &mut D, kv: &mut D::Kv, spans: &[Span<'_>]) {
        let firsts: Vec<Span<'_>> = spans
            .iter()
            .filter(|span| span.start == FIRST)
            .map(|span| Span { start: 0, tokens: &span.tokens[..1], positions: None, ..*span })
            .collect();
        if firsts.is_empty() {
            return;
        }
        let shape = self.shape.attention_shape();
        let zeros = device.upload(&vec![0.0; firsts.len() * shape.columns()], shape.columns());
        let positions = vec![0; firsts.len()];
        device.store(&zeros, shape, Rows { spans: &firsts, positions: &positions }, kv, 0);
    }
}

/// The last token of a span, which a check found to be there.
fn last<'a>(span: &HeadSpan<'a>) -> Span<'a> {
    let span = span.span();
    let before = span.tokens.len() - 1;
    Span {
        start: span.start + before,
        tokens: &span.tokens[before..],
        positions: span.positions.map(|positions| &positions[before..]),
        ..span
    }
}
