//! A model resident on a device: the executor the engine drives.

use std::time::Instant;

use crate::device::ops::Device;
use crate::device::slots::SlotTable;
use crate::device::{
    DeviceError, Executor, ExecutorFacts, Forward, MemoryUse, PageId, SlotId, Span, StateFlow,
};
use crate::event::Nanos;

use super::ModelError;
use super::decoder::{Decoder, ModelState};
use super::shape::ModelShape;
use super::tensor::Checkpoint;

/// A model, its device and its paged state.
pub struct Resident<D: Device> {
    device: D,
    model: Decoder<D>,
    state: ModelState<D>,
    pages: usize,
    slots: SlotTable,
    facts: ExecutorFacts,
}

impl<D: Device> Resident<D> {
    /// Loads a model onto `device`.
    pub fn load(
        mut device: D,
        checkpoint: &dyn Checkpoint,
        shape: ModelShape,
        name: String,
        page_tokens: usize,
    ) -> Result<Resident<D>, ModelError> {
        let mut hasher = blake3::Hasher::new();
        let model = Decoder::load(&mut device, checkpoint, shape, &mut hasher)?;
        let state = model
            .new_state(&mut device, page_tokens)
            .map_err(|source| ModelError::Device { path: checkpoint.path().to_owned(), source })?;
        let facts = ExecutorFacts {
            model: name,
            digest: *hasher.finalize().as_bytes(),
            device: device.name(),
            kernel: device.kernel(),
            // All kernels of a device give the same state.
            family: device.name(),
            precision: device.precision(),
            identity: device.identity(),
            vocab: model.shape().vocab,
            context_tokens: model.shape().context,
            page_tokens,
            page_bytes: device.kv_page_bytes(model.shape().kv(page_tokens)),
            slot_bytes: model.shape().states().map_or(0, |shape| device.slot_bytes(shape)),
        };
        Ok(Resident { device, model, state, pages: 0, slots: SlotTable::default(), facts })
    }

    fn check(&self, span: &Span<'_>) -> Result<(), DeviceError> {
        let end = span.start + span.tokens.len();
        let covered = span.pages.len() * self.facts.page_tokens;
        let broken = if span.tokens.is_empty() {
            "a span has no tokens".to_owned()
        } else if end > covered {
            format!("{end} positions do not fit {} pages of {}", span.pages.len(), self.facts.page_tokens)
        } else if end > self.facts.context_tokens {
            format!("position {end} lies beyond the context of {} tokens", self.facts.context_tokens)
        } else if let Some(page) = span.pages.iter().find(|page| page.0 as usize >= self.pages) {
            format!("page {} is not reserved", page.0)
        } else if let Some(token) = span.tokens.iter().find(|token| **token as usize >= self.facts.vocab) {
            format!("token {token} is not in the vocabulary of {}", self.facts.vocab)
        } else {
            return Ok(());
        };
        Err(DeviceError::Contract(broken))
    }

    /// Checks where recurrent state comes from and goes to.
    fn check_slots(&self, spans: &[Span<'_>]) -> Result<(), DeviceError> {
        match (&self.state.states, spans.iter().find_map(|span| span.state)) {
            (Some(_), _) => self.slots.check(spans),
            (None, None) => Ok(()),
            (None, Some(flow)) => {
                Err(DeviceError::Contract(format!("{flow:?} of a model without recurrent layers")))
            }
        }
    }
}

impl<D: Device> Executor for Resident<D>
where
    D::Table: Send,
{
    fn facts(&self) -> &ExecutorFacts {
        &self.facts
    }

    fn reserve(&mut self, pages: usize, slots: usize) -> Result<(), DeviceError> {
        if pages > self.pages {
            self.device.reserve_kv(&mut self.state.kv, pages)?;
            self.pages = pages;
        }
        if let Some(states) = &mut self.state.states {
            self.device.reserve_slots(states, slots)?;
            self.slots.reserve(slots);
        }
        Ok(())
    }

    fn forward(&mut self, spans: &[Span<'_>]) -> Result<Forward, DeviceError> {
        spans.iter().try_for_each(|span| self.check(span))?;
        self.check_slots(spans)?;
        let began = Instant::now();
        if spans.is_empty() {
            return Ok(Forward { logits: Vec::new(), compute: Nanos(0) });
        }
        self.slots.advance(spans);
        let logits = self.model.forward(&mut self.device, &mut self.state, spans)?;
        self.device.evaluate(&mut self.state.kv, self.state.states.as_mut())?;
        Ok(Forward { logits, compute: Nanos::from(began.elapsed()) })
    }

    fn memory(&self) -> Option<MemoryUse> {
        self.device.memory()
    }

    fn page_digest(&self, page: PageId, tokens: usize) -> [u8; 32] {
        self.device.kv_digest(&self.state.kv, page, tokens)
    }

    fn rewind(&mut self, flow: StateFlow, tokens: usize) -> Result<(), DeviceError> {
        self.slots.check_rewind(flow, tokens)?;
        if let Some(states) = &mut self.state.states {
            self.device.rewind(states, flow, tokens)?;
        }
        self.slots.rewind(flow, tokens);
        Ok(())
    }

    fn slot_digest(&self, slot: SlotId) -> [u8; 32] {
        self.state.states.as_ref().map_or([0; 32], |states| self.device.slot_digest(states, slot))
    }
}
