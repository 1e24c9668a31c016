//! Recurrent state in slots.
//!
//! MLX's arrays never change, so a slot is a handful of handles: a snapshot or a fork copies nothing, and a span that writes another
//! slot than it reads leaves the first as it was by construction. A revocable span keeps what it computed the state from until
//! the next forward; going back takes the first tokens of that again, from the state before.

use std::collections::HashMap;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use super::delta::{Masks, Prepared};
use super::failure::Built;
use super::hidden::int;
use super::kv::{array_of, float_bytes, float_bytes_of, numbers};
use crate::device::ops::{DeltaShape, StateShape};
use crate::device::{DeviceError, SlotId, StateFlow};

/// Recurrent state of all layers, in slots.
#[derive(Debug)]
pub struct States {
    shape: StateShape,
    /// A layer that was never written is `None`.
    slots: Vec<Vec<Option<LayerState>>>,
    logs: HashMap<SlotId, Log>,
    /// Slots written since the last evaluation.
    pending: Vec<SlotId>,
}

/// What a layer remembers of a sequence.
#[derive(Debug, Clone)]
pub(super) struct LayerState {
    /// The last inputs of the convolution, `[taps - 1, channels]`.
    pub(super) tail: Array,
    /// `[value_heads, key_dim, value_dim]` f32
    pub(super) matrix: Array,
}

/// What a revocable span computed its state from.
#[derive(Debug)]
struct Log {
    flow: StateFlow,
    layers: Vec<Prepared>,
}

impl States {
    /// No slots.
    pub(super) fn new(shape: StateShape) -> Result<States, DeviceError> {
        shape.check()?;
        Ok(States { shape, slots: Vec::new(), logs: HashMap::new(), pending: Vec::new() })
    }

    /// Its heads.
    pub(super) fn delta(&self) -> DeltaShape {
        self.shape.delta
    }

    /// Makes slots `0..slots` usable.
    pub(super) fn reserve(&mut self, slots: usize) {
        let empty = vec![None; self.shape.layers];
        self.slots.resize(slots.max(self.slots.len()), empty);
    }

    /// A layer of the state before a span; `None` at the start of a sequence. An error where nothing was ever written to the slot that the
    /// span starts from.
    pub(super) fn before(&self, flow: StateFlow, layer: usize) -> Built<Option<&LayerState>> {
        let Some(from) = flow.from else { return Ok(None) };
        match &self.slots[from.0 as usize][layer] {
            Some(state) => Ok(Some(state)),
            None => Err(Exception::custom(format!("slot {} holds no state", from.0))),
        }
    }

    /// Puts a layer of the state after a span into its slot.
    pub(super) fn put(&mut self, slot: SlotId, layer: usize, state: LayerState) {
        self.slots[slot.0 as usize][layer] = Some(state);
        if !self.pending.contains(&slot) {
            self.pending.push(slot);
        }
    }

    /// Forgets what revocable spans computed from: a forward begins.
    pub(super) fn forget_logs(&mut self) {
        self.logs.clear();
    }

    /// Keeps what a revocable span computed its next layer from.
    pub(super) fn log(&mut self, flow: StateFlow, prepared: Prepared) {
        self.logs.entry(flow.to).or_insert_with(|| Log { flow, layers: Vec::new() }).layers.push(prepared);
    }

    /// Makes the slot the state after the first `tokens` tokens of a revocable span.
    pub(super) fn rewind(
        &mut self,
        flow: StateFlow,
        tokens: usize,
        masks: &Masks,
    ) -> Result<Built<()>, DeviceError> {
        let log = self.logs.remove(&flow.to);
        let known = log.filter(|log| log.flow == flow && log.layers.len() == self.shape.layers);
        let Some(log) = known else {
            return Err(DeviceError::Contract(format!("{flow:?} is no revocable span of the last forward")));
        };
        let held = log.layers.iter().map(Prepared::tokens).min().unwrap_or(0);
        let outcome = if tokens > held {
            Err(DeviceError::Contract(format!("{tokens} tokens of a span of {held}")))
        } else {
            Ok(self.rewind_layers(&log, tokens, masks))
        };
        self.logs.insert(flow.to, log);
        outcome
    }

    fn rewind_layers(&mut self, log: &Log, tokens: usize, masks: &Masks) -> Built<()> {
        for (layer, prepared) in log.layers.iter().enumerate() {
            let state = prepared.state_after(self.before(log.flow, layer)?, tokens, masks)?;
            self.put(log.flow.to, layer, state);
        }
        Ok(())
    }

    /// The arrays written since the last evaluation.
    pub(super) fn pending(&self) -> impl Iterator<Item = &Array> {
        let layers = self.pending.iter().flat_map(|slot| self.slots[slot.0 as usize].iter().flatten());
        layers.flat_map(|layer| [&layer.tail, &layer.matrix])
    }

    /// They were evaluated.
    pub(super) fn settle(&mut self) {
        self.pending.clear();
    }

    /// Forgets what was written since the last evaluation, which failed.
    pub(super) fn drop_pending(&mut self) {
        for slot in std::mem::take(&mut self.pending) {
            self.slots[slot.0 as usize].iter_mut().for_each(|layer| *layer = None);
        }
        self.logs.clear();
    }

    /// Forgets everything: the slots are as if just reserved.
    pub(super) fn clear(&mut self) {
        self.slots.iter_mut().flatten().for_each(|layer| *layer = None);
        self.logs.clear();
        self.pending.clear();
    }

    /// A slot's numbers as bytes: for every layer the tail in `float`, then the matrix in f32.
    pub(super) fn bytes(&self, slot: SlotId, float: Dtype) -> Built<Vec<u8>> {
        let mut bytes = Vec::new();
        for layer in self.slots.get(slot.0 as usize).into_iter().flatten().flatten() {
            float_bytes_of(&layer.tail, float, &mut bytes)?;
            float_bytes_of(&layer.matrix, Dtype::Float32, &mut bytes)?;
        }
        Ok(bytes)
    }

    /// Puts such bytes, as many as a slot has, into a slot.
    pub(super) fn put_bytes(&mut self, slot: SlotId, float: Dtype, bytes: &[u8]) -> Built<()> {
        let DeltaShape { value_heads, key_dim, value_dim, taps, .. } = self.shape.delta;
        let channels = self.shape.delta.channels();
        let tail_bytes = (taps - 1) * channels * float_bytes(float);
        let each = tail_bytes + value_heads * key_dim * value_dim * size_of::<f32>();
        for (layer, bytes) in bytes.chunks_exact(each).take(self.shape.layers).enumerate() {
            let (tail, matrix) = bytes.split_at(tail_bytes);
            let tail = array_of(tail, float, &[int(taps - 1), int(channels)])?;
            let matrix = array_of(matrix, Dtype::Float32, &[int(value_heads), int(key_dim), int(value_dim)])?;
            mlx_rs::transforms::eval([&tail, &matrix])?;
            self.slots[slot.0 as usize][layer] = Some(LayerState { tail, matrix });
        }
        self.logs.retain(|_, log| log.flow.to != slot && log.flow.from != Some(slot));
        Ok(())
    }

    /// A slot's numbers as f32, layer after layer.
    pub(super) fn numbers(&self, slot: SlotId) -> Built<Vec<f32>> {
        let mut all = Vec::new();
        for layer in self.slots.get(slot.0 as usize).into_iter().flatten().flatten() {
            all.extend(numbers(&layer.tail)?);
            all.extend(numbers(&layer.matrix)?);
        }
        Ok(all)
    }
}
