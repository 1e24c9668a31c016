//! A model resident on a device: the executor the engine drives.

use std::ops::Range;
use std::time::Instant;

use crate::device::head_pages::HeadPages;
use crate::device::ops::{AttentionShape, Device, Keys};
use crate::device::slots::SlotTable;
use crate::device::{
    DeviceError, Executor, ExecutorFacts, Forward, HeadSpan, KeyWeights, MemoryUse, PageId, Predicted,
    Queries, SlotId, Span, StateFlow,
};
use crate::event::Nanos;

use super::ModelError;
use super::decoder::{Between, Decoder, HeadOutput, ModelState, Output};
use super::shape::ModelShape;
use super::tensor::Checkpoint;
use super::work::Work;

/// A model, its device and its paged state.
pub struct Resident<D: Device> {
    pub(super) device: D,
    model: Decoder<D>,
    state: ModelState<D>,
    pages: usize,
    slots: SlotTable,
    /// Where a prediction head is loaded.
    head: Option<HeadPages>,
    facts: ExecutorFacts,
}

impl<D: Device> Resident<D> {
    /// Loads a model onto `device`, without a prediction head.
    pub fn load(
        device: D,
        checkpoint: &dyn Checkpoint,
        shape: ModelShape,
        name: String,
        page_tokens: usize,
    ) -> Result<Resident<D>, ModelError> {
        Resident::load_whole(device, checkpoint, shape, name, page_tokens, false)
    }

    /// Loads a model onto `device`, and with it its multi-token-prediction head where that is wanted. The head makes it another model to the
    /// cache: pages hold its entries too.
    pub fn load_whole(
        mut device: D,
        checkpoint: &dyn Checkpoint,
        shape: ModelShape,
        name: String,
        page_tokens: usize,
        with_head: bool,
    ) -> Result<Resident<D>, ModelError> {
        let mut hasher = blake3::Hasher::new();
        let model = Decoder::load(&mut device, checkpoint, shape, with_head, &mut hasher)?;
        let state = model
            .new_state(&mut device, page_tokens)
            .map_err(|source| ModelError::Device { path: checkpoint.path().to_owned(), source })?;
        let shape = model.shape();
        let head = with_head.then(|| HeadPages::new(page_tokens, shape.hidden));
        let of_head = model.head_kv(page_tokens);
        let head_bytes =
            of_head.map_or(0, |kv| device.kv_page_bytes(kv)) + head.as_ref().map_or(0, HeadPages::bytes);
        let facts = ExecutorFacts {
            model: name,
            digest: *hasher.finalize().as_bytes(),
            device: device.name(),
            kernel: device.kernel(),
            family: device.family(),
            precision: device.precision(),
            identity: device.identity(),
            vocab: shape.vocab,
            context_tokens: shape.context,
            page_tokens,
            page_bytes: device.kv_page_bytes(shape.kv(page_tokens)) + head_bytes,
            slot_bytes: shape.states().map_or(0, |shape| device.slot_bytes(shape)),
            attention_layers: shape.kv(page_tokens).layers as u32,
            head_layers: of_head.map_or(0, |kv| kv.layers as u32),
            hidden: if with_head { shape.hidden } else { 0 },
            recurrent_layers: shape.states().map_or(0, |shape| shape.layers as u32),
        };
        Ok(Resident { device, model, state, pages: 0, slots: SlotTable::default(), head, facts })
    }

    fn check(&self, span: &Span<'_>) -> Result<(), DeviceError> {
        let end = span.start + span.tokens.len();
        let covered = span.pages.len() * self.facts.page_tokens;
        let broken = if span.tokens.is_empty() {
            "a span has no tokens".to_owned()
        } else if end > covered {
            format!("{end} tokens do not fit {} pages of {}", span.pages.len(), self.facts.page_tokens)
        } else if end > self.facts.context_tokens {
            format!("position {end} lies beyond the context of {} tokens", self.facts.context_tokens)
        } else if let Some(page) = span.pages.iter().find(|page| page.0 as usize >= self.pages) {
            format!("page {} is not reserved", page.0)
        } else if let Some(token) = span.tokens.iter().find(|token| **token as usize >= self.facts.vocab) {
            format!("token {token} is not in the vocabulary of {}", self.facts.vocab)
        } else if span.hidden && self.head.is_none() {
            "hidden states are for a prediction head, and none is loaded".to_owned()
        } else {
            return span.check_positions(self.facts.context_tokens);
        };
        Err(DeviceError::Contract(broken))
    }

    /// What the head gives, with all its state computed.
    fn compute_head(&mut self, spans: &[HeadSpan<'_>]) -> Result<HeadOutput, DeviceError> {
        let Some(kv) = &mut self.state.head else { return Err(no_head()) };
        let output = self.model.predict(&mut self.device, kv, spans)?;
        self.device.evaluate(kv, None)?;
        Ok(output)
    }

    /// See [`Executor::forward`]; `between` is called between two layers.
    fn forward_with(
        &mut self,
        spans: &[Span<'_>],
        between: &mut Between<'_, D>,
    ) -> Result<Forward, DeviceError> {
        spans.iter().try_for_each(|span| self.check(span))?;
        self.check_slots(spans)?;
        self.check_memory(spans)?;
        let began = Instant::now();
        if spans.is_empty() {
            return Ok(Forward {
                logits: Vec::new(),
                queries: Queries::default(),
                hidden: Vec::new(),
                experts: None,
                compute: Nanos(0),
            });
        }
        self.slots.advance(spans);
        self.head.iter_mut().for_each(|head| head.forward(spans));
        match self.compute(spans, between) {
            Ok(Output { logits, queries, hidden, experts }) => {
                self.head.iter_mut().for_each(|head| head.keep_ends(spans, &hidden));
                Ok(Forward { logits, queries, hidden, experts, compute: Nanos::from(began.elapsed()) })
            }
            Err(error) => {
                self.slots.fail(spans);
                Err(self.recovered(error))
            }
        }
    }

    /// What is asked for, with all state computed.
    fn compute(&mut self, spans: &[Span<'_>], between: &mut Between<'_, D>) -> Result<Output, DeviceError> {
        let output = self.model.forward(&mut self.device, &mut self.state, spans, between)?;
        self.device.evaluate(&mut self.state.kv, self.state.states.as_mut())?;
        Ok(output)
    }

    /// Checks that queries are this model's, and that a window of keys lies in reserved pages.
    fn check_queries(
        &self,
        pages: &[PageId],
        window: &Range<usize>,
        queries: &Queries,
    ) -> Result<(), DeviceError> {
        let shape = self.model.shape();
        let expected = (self.facts.attention_layers as usize, shape.attention.heads);
        let columns = expected.0 * shape.attention_shape().queries();
        let covered = pages.len() * self.facts.page_tokens;
        let broken = if window.is_empty() {
            format!("a window of no keys, {window:?}")
        } else if window.end > covered {
            format!("keys {window:?} of pages for {covered}")
        } else if queries.tokens == 0 {
            "no queries".to_owned()
        } else if (queries.layers, queries.heads) != expected
            || queries.values.len() != queries.tokens * columns
        {
            let Queries { tokens, layers, heads, values } = queries;
            format!(
                "{tokens} queries of {layers} layers and {heads} heads in {} numbers: not this model's",
                values.len()
            )
        } else {
            return pages.iter().try_for_each(|page| self.check_page(*page));
        };
        Err(DeviceError::Contract(broken))
    }

    /// Room for all weights, zeros, or why there is none. Beside them a layer takes its keys, and scores with their softmax.
    fn room_for_weights(&self, window: usize, queries: &Queries) -> Result<Vec<f32>, DeviceError> {
        let AttentionShape { kv_heads, head_dim, .. } = self.model.shape().attention_shape();
        let rows = queries.tokens.saturating_mul(queries.heads);
        let all = rows.saturating_mul(queries.layers).saturating_mul(window);
        let layer = window.saturating_mul(3 * kv_heads * head_dim + 4 * rows);
        let bytes = all.saturating_add(layer).saturating_mul(size_of::<f32>()) as u64;
        let refused = |problem| DeviceError::OutOfMemory { bytes, problem };
        if let Some(free) = self.free().filter(|free| *free < bytes) {
            return Err(refused(format!("the weights of {window} keys, with {free} bytes free")));
        }
        let mut weights = Vec::new();
        weights.try_reserve_exact(all).map_err(|_| refused(format!("the weights of {window} keys")))?;
        weights.resize(all, 0.0);
        Ok(weights)
    }

    /// Memory a forward may still take; `None` where nothing keeps it below a limit.
    fn free(&self) -> Option<u64> {
        let MemoryUse { active, limit, .. } = self.device.memory()?;
        Some(limit?.saturating_sub(active))
    }

    /// Bytes a forward works with.
    fn work_bytes(&self, work: Work) -> u64 {
        self.model.shape().work_bytes(work, self.device.float_bytes())
    }

    /// Refuses what there is no memory for, before anything is touched.
    fn check_memory(&self, spans: &[Span<'_>]) -> Result<(), DeviceError> {
        let Some(free) = self.free() else { return Ok(()) };
        let rows = spans.iter().map(|span| span.tokens.len()).sum();
        let logits = spans.iter().map(|span| span.logits.count(span.tokens.len())).sum();
        let end = spans.iter().map(|span| span.start + span.tokens.len()).max().unwrap_or(0);
        let bytes = self.work_bytes(Work { rows, spans: spans.len(), end, logits });
        if bytes <= free {
            return Ok(());
        }
        let problem = format!("a forward of {rows} tokens up to position {end}, with {free} bytes free");
        Err(DeviceError::OutOfMemory { bytes, problem })
    }

    /// What an error is to the outside, with the device fit for work again.
    fn recovered(&mut self, error: DeviceError) -> DeviceError {
        let ModelState { kv, states, head } = &mut self.state;
        let mut error = self.device.recover(error, kv, states.as_mut());
        if let Some(head) = head {
            error = self.device.recover(error, head, None);
        }
        if matches!(error, DeviceError::StateLost(_)) {
            self.slots.lose();
            self.head.iter_mut().for_each(HeadPages::lose);
            self.pages = 0;
        }
        error
    }

    /// Puts an exported page where its parts belong: the model's keys and values, then the head's, then notes.
    fn import_parts(&mut self, page: PageId, bytes: &[u8]) -> Result<(), DeviceError> {
        let (Some(kv), Some(head)) = (&mut self.state.head, &mut self.head) else {
            return self.device.import_page(&mut self.state.kv, page, bytes);
        };
        let (bytes, notes) = bytes.split_at(bytes.len() - head.bytes());
        let of_head =
            self.model.head_kv(self.facts.page_tokens).map_or(0, |kv| self.device.kv_page_bytes(kv));
        let (own, entries) = bytes.split_at(bytes.len() - of_head);
        self.device.import_page(&mut self.state.kv, page, own)?;
        self.device.import_page(kv, page, entries)?;
        head.import(page, notes)
    }

    fn check_page(&self, page: PageId) -> Result<(), DeviceError> {
        if (page.0 as usize) < self.pages {
            return Ok(());
        }
        Err(DeviceError::Contract(format!("page {} is not reserved", page.0)))
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

fn check_length(what: &str, expected: usize, bytes: &[u8]) -> Result<(), DeviceError> {
    if bytes.len() == expected {
        return Ok(());
    }
    Err(DeviceError::exported_length(what, expected, bytes.len()))
}

fn no_head() -> DeviceError {
    DeviceError::Contract("no prediction head is loaded".to_owned())
}

fn no_recurrent_layers() -> DeviceError {
    DeviceError::Contract("recurrent state of a model without recurrent layers".to_owned())
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
            if let (Some(kv), Some(head)) = (&mut self.state.head, &mut self.head) {
                self.device.reserve_kv(kv, pages)?;
                head.reserve(pages);
            }
            self.pages = pages;
        }
        if let Some(states) = &mut self.state.states {
            self.device.reserve_slots(states, slots)?;
            self.slots.reserve(slots);
        }
        Ok(())
    }

    fn take_back(&mut self, forward: Forward) {
        self.device.take_back(forward.logits);
    }

    fn forward(&mut self, spans: &[Span<'_>]) -> Result<Forward, DeviceError> {
        self.forward_with(spans, &mut |_, _| Ok(()))
    }

    fn forward_while(
        &mut self,
        spans: &[Span<'_>],
        go_on: &mut dyn FnMut(Nanos) -> bool,
    ) -> Result<Forward, DeviceError> {
        let began = Instant::now();
        self.forward_with(spans, &mut |device, x| {
            // A device that computes when it is asked for numbers is asked for some, or all layers would be computed at the end.
            let row = device.select_rows(x, &[0]);
            device.read(&row)?;
            let after = Nanos::from(began.elapsed());
            if go_on(after) { Ok(()) } else { Err(DeviceError::Interrupted { after }) }
        })
    }

    fn predict(&mut self, spans: &[HeadSpan<'_>]) -> Result<Predicted, DeviceError> {
        let Some(head) = &self.head else { return Err(no_head()) };
        let written: Vec<Span<'_>> = spans.iter().map(HeadSpan::span).collect();
        for (span, written) in spans.iter().zip(&written) {
            self.check(written)?;
            head.check(span)?;
        }
        self.check_memory(&written)?;
        if spans.is_empty() {
            return Ok(Predicted::default());
        }
        let began = Instant::now();
        let outcome = self.compute_head(spans);
        if let Some(head) = &mut self.head {
            spans.iter().for_each(|span| head.wrote(span, outcome.is_err()));
        }
        match outcome {
            Ok(HeadOutput { logits, hidden }) => {
                Ok(Predicted { logits, hidden, compute: Nanos::from(began.elapsed()) })
            }
            Err(error) => Err(self.recovered(error)),
        }
    }

    fn page_end(&self, page: PageId) -> Option<Vec<f32>> {
        Some(self.head.as_ref()?.end(page)?.to_vec())
    }

    fn admits(&self, position: usize, tokens: usize) -> usize {
        let Some(free) = self.free() else { return tokens };
        let fits =
            |rows: usize| self.work_bytes(Work { rows, spans: 1, end: position + rows, logits: 1 }) <= free;
        // Halves, so that chunks keep sizes that the device has met before.
        let halves = std::iter::successors(Some(tokens), |rows| Some(rows / 2));
        halves.take_while(|rows| *rows > 1).find(|rows| fits(*rows)).unwrap_or(tokens.min(1))
    }

    fn memory(&self) -> Option<MemoryUse> {
        self.device.memory()
    }

    fn key_weights(
        &mut self,
        pages: &[PageId],
        window: Range<usize>,
        queries: &Queries,
    ) -> Result<KeyWeights, DeviceError> {
        self.check_queries(pages, &window, queries)?;
        let began = Instant::now();
        let mut weights = self.room_for_weights(window.len(), queries)?;
        let Queries { tokens, layers, heads, .. } = *queries;
        let shape = self.model.shape().attention_shape();
        let (columns, each) = (shape.queries(), heads * window.len());
        for layer in 0..layers {
            let of_layer = queries.values.chunks_exact(columns).skip(layer).step_by(layers);
            let of_layer: Vec<f32> = of_layer.flatten().copied().collect();
            let keys = Keys { pages, window: window.clone() };
            let given = self.device.key_weights(&mut self.state.kv, layer, keys, &of_layer, shape);
            let given = given.map_err(|error| self.recovered(error))?;
            let rows = weights.chunks_exact_mut(each).skip(layer).step_by(layers);
            rows.zip(given.chunks_exact(each)).for_each(|(row, given)| row.copy_from_slice(given));
        }
        let compute = Nanos::from(began.elapsed());
        Ok(KeyWeights { tokens, layers, heads, window: window.len(), weights, compute })
    }

    fn page_digest(&self, page: PageId, tokens: usize) -> [u8; 32] {
        let own = self.device.kv_digest(&self.state.kv, page, tokens);
        let entries = self.head.as_ref().map_or(0, |head| head.entries(page).min(tokens));
        match &self.state.head {
            Some(kv) if entries > 0 => {
                let mut hasher = blake3::Hasher::new();
                hasher.update(&own).update(&self.device.kv_digest(kv, page, entries));
                *hasher.finalize().as_bytes()
            }
            _ => own,
        }
    }

    fn export_page(&self, page: PageId) -> Result<Vec<u8>, DeviceError> {
        self.check_page(page)?;
        let mut bytes = self.device.export_page(&self.state.kv, page)?;
        if let (Some(kv), Some(head)) = (&self.state.head, &self.head) {
            bytes.extend(self.device.export_page(kv, page)?);
            bytes.extend(head.export(page));
        }
        Ok(bytes)
    }

    fn import_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check_page(page)?;
        check_length("a page", self.facts.page_bytes, bytes)?;
        let imported = self.import_parts(page, bytes);
        imported.map_err(|error| self.recovered(error))
    }

    fn export_slot(&self, slot: SlotId) -> Result<Vec<u8>, DeviceError> {
        self.slots.check_written(slot)?;
        let states = self.state.states.as_ref().ok_or_else(no_recurrent_layers)?;
        self.device.export_slot(states, slot)
    }

    fn import_slot(&mut self, slot: SlotId, position: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        check_length("a slot", self.facts.slot_bytes, bytes)?;
        let states = self.state.states.as_mut().ok_or_else(no_recurrent_layers)?;
        self.slots.check_reserved(slot)?;
        let imported = self.device.import_slot(states, slot, bytes);
        imported.map_err(|error| self.recovered(error))?;
        self.slots.import(slot, position)
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
