//! Recurrent state in slots.
//!
//! A slot holds, for every recurrent layer, the last inputs of its convolution, `[taps - 1][channels]`, and a matrix a value head.
//! A matrix is kept in strips of up to 64 value columns, `[strip][key column][value columns padded to whole vectors]`: a strip is
//! what a thread works on and stays in its first cache. Numbers are f32 at every precision, since a rounded state would not
//! be the state that goes on.
//!
//! A revocable span leaves a log of what it wrote, until the next forward: with it and the state before, the state after any of its
//! tokens is had by writing that many tokens again, in the same order, to the same bits.

use std::collections::HashMap;
use std::ops::Range;

use super::isa::LANES;
use super::memory::{Arena, Slab, Tally};
use crate::device::ops::{DeltaShape, StateShape};
use crate::device::{DeviceError, SlotId, StateFlow};

/// Vectors of a full strip.
pub(super) const STRIP: usize = 4;

/// Recurrent state of all layers, in slots.
pub struct States {
    layout: Layout,
    arena: Arena,
    /// `None` while a span writes it.
    slots: Vec<Option<Slab<f32>>>,
    logs: HashMap<SlotId, Log>,
}

/// Where numbers lie in a slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    shape: StateShape,
}

/// What a revocable span wrote, layer by layer.
pub(super) struct Log {
    flow: StateFlow,
    pub(super) layers: Vec<LayerLog>,
}

/// What a revocable span wrote in one layer.
pub(super) struct LayerLog {
    /// The rows the recurrence took.
    pub(super) prepared: Vec<f32>,
    /// The rows the convolution took.
    pub(super) inputs: Vec<f32>,
}

impl Layout {
    fn new(shape: StateShape) -> Result<Layout, DeviceError> {
        shape.check()?;
        Ok(Layout { shape })
    }

    /// Its heads.
    pub(super) fn delta(&self) -> DeltaShape {
        self.shape.delta
    }

    /// The strips of a layer.
    pub(super) fn strips(self, layer: usize) -> impl Iterator<Item = StripPlace> {
        let DeltaShape { value_heads, key_dim, value_dim, .. } = self.shape.delta;
        let vectors = value_dim.div_ceil(LANES);
        let first = self.tail(layer).start + self.tail_elements();
        let strip = move |head: usize, vector: usize| {
            let column = vector * LANES;
            let vectors = STRIP.min(vectors - vector);
            let start = first + head * self.matrix_elements() + column * key_dim;
            StripPlace { head, column, vectors, range: start..start + key_dim * vectors * LANES }
        };
        (0..value_heads).flat_map(move |head| (0..vectors).step_by(STRIP).map(move |v| strip(head, v)))
    }

    fn matrix_elements(&self) -> usize {
        self.shape.delta.key_dim * self.shape.delta.value_dim.next_multiple_of(LANES)
    }

    fn tail_elements(&self) -> usize {
        ((self.shape.delta.taps - 1) * self.shape.delta.channels()).next_multiple_of(LANES)
    }

    fn layer_elements(&self) -> usize {
        self.tail_elements() + self.shape.delta.value_heads * self.matrix_elements()
    }

    /// Elements of a slot.
    fn elements(&self) -> usize {
        self.shape.layers * self.layer_elements()
    }

    /// Bytes of a slot.
    pub(super) fn slot_bytes(&self) -> usize {
        self.elements() * size_of::<f32>()
    }

    /// A layer's last inputs of the convolution.
    pub(super) fn tail(&self, layer: usize) -> Range<usize> {
        let start = layer * self.layer_elements();
        start..start + (self.shape.delta.taps - 1) * self.shape.delta.channels()
    }
}

/// A strip of a value head's matrix.
#[derive(Debug, Clone)]
pub(super) struct StripPlace {
    /// The head.
    pub(super) head: usize,
    /// Its first value column.
    pub(super) column: usize,
    /// Vectors of columns.
    pub(super) vectors: usize,
    /// Where it lies in a slot, `[key column][columns]`.
    pub(super) range: Range<usize>,
}

/// A slot that a span writes, taken out of the store.
pub(super) struct Taken {
    flow: StateFlow,
    /// Its numbers.
    pub(super) to: Slab<f32>,
}

/// The state before a span.
#[derive(Clone, Copy)]
pub(super) enum Before<'a> {
    /// The start of a sequence.
    Zero,
    /// What the written slot holds.
    InPlace,
    /// What another slot holds.
    Slot(&'a [f32]),
}

impl States {
    /// No slots.
    pub(super) fn new(shape: StateShape, tally: &Tally) -> Result<States, DeviceError> {
        let layout = Layout::new(shape)?;
        Ok(States { layout, arena: Arena::new(tally), slots: Vec::new(), logs: HashMap::new() })
    }

    /// Bytes a slot of `shape` takes.
    pub(super) fn slot_bytes(shape: StateShape) -> usize {
        Layout::new(shape).map_or(0, |layout| layout.slot_bytes())
    }

    /// Where numbers lie.
    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    /// Makes slots `0..slots` usable.
    pub(super) fn reserve(&mut self, slots: usize) -> Result<(), DeviceError> {
        while self.slots.len() < slots {
            self.slots.push(Some(self.arena.slab(self.layout.elements(), "a recurrent state")?));
        }
        Ok(())
    }

    /// Takes out the slot that a span writes. Put it back with [`States::put_back`].
    pub(super) fn take(&mut self, flow: StateFlow) -> Taken {
        let to = self.slots[flow.to.0 as usize].take();
        Taken { flow, to: to.expect("a slot is written by one span of a batch") }
    }

    /// Puts a slot back.
    pub(super) fn put_back(&mut self, taken: Taken) {
        self.slots[taken.flow.to.0 as usize] = Some(taken.to);
    }

    /// The state before a span.
    pub(super) fn before(&self, taken: &Taken) -> Before<'_> {
        match taken.flow.from {
            None => Before::Zero,
            Some(from) if from == taken.flow.to => Before::InPlace,
            Some(from) => match &self.slots[from.0 as usize] {
                Some(slot) => Before::Slot(slot),
                None => panic!("slot {} is read by one span of a batch and written by another", from.0),
            },
        }
    }

    /// A layer's inputs of the convolution before a span.
    pub(super) fn tail_before(&self, taken: &Taken, layer: usize) -> Vec<f32> {
        let tail = self.layout.tail(layer);
        match self.before(taken) {
            Before::Zero => vec![0.0; tail.len()],
            Before::InPlace => taken.to[tail].to_vec(),
            Before::Slot(slot) => slot[tail].to_vec(),
        }
    }

    /// Forgets the logs: a forward begins.
    pub(super) fn forget_logs(&mut self) {
        self.logs.clear();
    }

    /// Notes what a revocable span wrote in the next layer.
    pub(super) fn log(&mut self, flow: StateFlow, written: LayerLog) {
        let log = self.logs.entry(flow.to).or_insert_with(|| Log { flow, layers: Vec::new() });
        log.layers.push(written);
    }

    /// The log that leads to `flow.to`, taken out. Put it back with [`States::put_log`].
    pub(super) fn take_log(&mut self, flow: StateFlow) -> Result<Log, DeviceError> {
        match self.logs.remove(&flow.to) {
            Some(log) if log.flow == flow && log.layers.len() == self.layout.shape.layers => Ok(log),
            other => {
                self.logs.extend(other.map(|log| (flow.to, log)));
                Err(DeviceError::Contract(format!("{flow:?} is no revocable span of the last forward")))
            }
        }
    }

    /// Puts a log back.
    pub(super) fn put_log(&mut self, log: Log) {
        self.logs.insert(log.flow.to, log);
    }

    /// A slot's numbers, in the order they lie in.
    pub(super) fn bytes(&self, slot: SlotId) -> Option<&[u8]> {
        Some(bytemuck::cast_slice(self.slots.get(slot.0 as usize)?.as_deref()?))
    }

    /// The same, to be written; no span that touched the slot can be taken back any more.
    pub(super) fn bytes_mut(&mut self, slot: SlotId) -> Option<&mut [u8]> {
        self.logs.retain(|_, log| log.flow.to != slot && log.flow.from != Some(slot));
        Some(bytemuck::cast_slice_mut(self.slots.get_mut(slot.0 as usize)?.as_deref_mut()?))
    }

    /// Digest of a slot.
    pub(super) fn digest(&self, slot: SlotId) -> [u8; 32] {
        let state = self.slots.get(slot.0 as usize).and_then(Option::as_deref).unwrap_or_default();
        *blake3::hash(bytemuck::cast_slice(state)).as_bytes()
    }
}
