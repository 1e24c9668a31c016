//! Drafting by a smaller model with the same tokenizer.
//!
//! It is a second resident model with a prefix cache of its own. Of every sequence it keeps the state after the tokens that are known: what it drafts
//! goes to a slot and to places that the next known tokens take. So nothing has to be taken back, and the tokens that were accepted are read
//! together, in one pass, before the next draft.

use super::{Draft, DraftFailed, Drafter};
use crate::cache::boundary::Boundaries;
use crate::cache::budget::Budget;
use crate::cache::chain::BlockHash;
use crate::cache::lookup::End;
use crate::cache::pool::{PageRef, SlotRef};
use crate::cache::recurrent::RecurrentState;
use crate::cache::{Cache, CacheFull, chain};
use crate::config::{PlaceholderPolicy, SnapshotPolicy};
use crate::decode::Sampler;
use crate::device::{DeviceError, Executor, Forward, LogitRows, PageId, Span, StateFlow};
use crate::event::{Nanos, RequestId, Route, Stamp};

/// Tokens of a reply that are read before a draft at most. Further back they are passed over: after a long time without drafting, reading all of it would
/// cost more than the draft can win.
const CATCH_UP: usize = 32;

/// The draft model and its cache.
pub struct DraftModel {
    executor: Box<dyn Executor>,
    cache: Cache,
    chunk_tokens: usize,
    /// Ids of the target: logits beyond them are nobody's.
    vocab: usize,
    /// Pages and slots the device holds.
    held: (usize, usize),
}

/// What the draft model keeps of a sequence. Ends with [`DraftModel::finish`].
#[derive(Debug)]
pub struct ModelSequence {
    request: RequestId,
    prompt: usize,
    use_cache: bool,
    cached: usize,
    /// Tokens that were read, or passed over.
    read: usize,
    /// Tokens that were read: the next one's place.
    places: usize,
    pages: Vec<PageRef>,
    recurrent: Option<RecurrentState>,
}

impl ModelSequence {
    /// Tokens of the prompt that its cache held.
    pub fn cached(&self) -> usize {
        self.cached
    }

    /// Tokens of the prompt that are read, those of its cache included, and that are to be.
    pub fn progress(&self) -> (usize, usize) {
        (self.read.min(self.prompt), self.prompt)
    }
}

impl DraftModel {
    /// A draft model for a target of `vocab` ids, with an empty cache of at most `ram_bytes` for `sequences` at once. `text` is the digest of the
    /// tokenizer.
    pub fn new(
        executor: Box<dyn Executor>,
        text: [u8; 32],
        vocab: usize,
        ram_bytes: u64,
        sequences: usize,
        chunk_tokens: usize,
    ) -> DraftModel {
        let facts = executor.facts();
        let identity = chain::Identity::of(facts, text);
        let budget = Budget::of(facts, ram_bytes, sequences);
        let cache = Cache::new(&identity, facts.page_tokens, budget);
        DraftModel { executor, cache, chunk_tokens, vocab, held: (0, 0) }
    }

    /// Starts on a prompt, from what its cache holds of it, or from nothing where it is not to `use_cache`.
    pub fn begin(
        &mut self,
        request: RequestId,
        prompt: &[u32],
        use_cache: bool,
        now: Stamp,
    ) -> Result<ModelSequence, DraftFailed> {
        let context = self.executor.facts().context_tokens;
        if prompt.len() >= context {
            return Err(DraftFailed::Context { tokens: prompt.len(), context });
        }
        let mut found = self.cache.look_up(prompt);
        if !use_cache {
            found.blocks.clear();
        }
        self.cache.touch(&found.chain());
        let choice = found.choose(&self.cache, prompt.len(), 0, PlaceholderPolicy::WalkBack);
        let pages: Vec<PageRef> =
            found.blocks[..choice.blocks].iter().filter_map(|candidate| candidate.page()).collect();
        pages.iter().try_for_each(|page| self.cache.check(*page))?;
        let snapshot = choice.blocks.checked_sub(1).and_then(|last| match found.blocks[last].end {
            End::Ram(slot) => Some((found.places[last].hash, slot)),
            _ => None,
        });
        snapshot.map_or(Ok(()), |(_, slot)| self.cache.check_slot(slot))?;
        self.cache.hold(&pages);
        let cached = choice.blocks * self.cache.block_tokens();
        let mut sequence = ModelSequence {
            request,
            prompt: prompt.len(),
            use_cache,
            cached,
            read: cached,
            places: cached,
            pages,
            recurrent: None,
        };
        match self.give_slots(&mut sequence, snapshot, now) {
            Ok(()) => Ok(sequence),
            Err(error) => {
                self.give_up(sequence, &error);
                Err(error)
            }
        }
    }

    /// Gets the slots a sequence needs, on the device as well.
    fn give_slots(
        &mut self,
        sequence: &mut ModelSequence,
        snapshot: Option<(BlockHash, SlotRef)>,
        now: Stamp,
    ) -> Result<(), DraftFailed> {
        if self.cache.is_recurrent() {
            let boundaries = Boundaries {
                policy: if sequence.use_cache { SnapshotPolicy::Last } else { SnapshotPolicy::None },
                block_tokens: self.cache.block_tokens(),
                prompt_tokens: sequence.prompt,
                branch: None,
                within: (0, sequence.prompt),
            };
            let state = RecurrentState::start(&mut self.cache, boundaries, snapshot)?;
            let state = sequence.recurrent.insert(state);
            if !state.prepare_apart(sequence.request, &mut self.cache, now) {
                let slot_bytes = self.cache.budget().slot_bytes;
                return Err(CacheFull::LiveSlots { limit: 1, slot_bytes }.into());
            }
        }
        Ok(self.reserve()?)
    }

    /// Reads the next chunk of the prompt. `None` when all of it is read.
    pub fn prime(
        &mut self,
        sequence: &mut ModelSequence,
        prompt: &[u32],
        now: Stamp,
    ) -> Result<Option<Nanos>, DraftFailed> {
        let start = sequence.read;
        if start >= prompt.len() {
            return Ok(None);
        }
        let stop = sequence.recurrent.as_ref().and_then(|state| state.next_stop(start));
        let wanted = crate::prefill::chunk(start, prompt.len(), self.chunk_tokens, stop);
        let tokens = wanted.len();
        let chunk = crate::prefill::admitted(wanted, self.executor.admits(start, tokens));
        let forward = self.read(sequence, &prompt[chunk.clone()], LogitRows::None, now)?;
        sequence.read = chunk.end;
        Ok(Some(forward.compute))
    }

    /// Reads tokens that follow those read or passed over before; the state after them stays.
    fn read(
        &mut self,
        sequence: &mut ModelSequence,
        tokens: &[u32],
        logits: LogitRows,
        now: Stamp,
    ) -> Result<Forward, DraftFailed> {
        let end = sequence.places + tokens.len();
        self.extend(sequence, end, now)?;
        let flow = sequence.recurrent.as_ref().map(|state| state.flow(end));
        let forward = self.forward(sequence, sequence.places, sequence.read, tokens, flow, logits)?;
        sequence.places = end;
        if let Some(state) = &mut sequence.recurrent {
            state.advance(end, &mut self.cache);
        }
        Ok(forward)
    }

    /// Computes tokens at places from `place` and positions from `position` on.
    fn forward(
        &mut self,
        sequence: &ModelSequence,
        place: usize,
        position: usize,
        tokens: &[u32],
        state: Option<StateFlow>,
        logits: LogitRows,
    ) -> Result<Forward, DeviceError> {
        let pages: Vec<PageId> = sequence.pages.iter().map(|page| page.id()).collect();
        let positions: Option<Vec<u32>> = (place != position)
            .then(|| (position..position + tokens.len()).map(|position| position as u32).collect());
        let positions = positions.as_deref();
        let span =
            Span { pages: &pages, start: place, tokens, positions, capture: 0, hidden: false, state, logits };
        self.executor.forward(&[span])
    }

    /// Gets the pages and the slot of tokens that end at place `end`.
    fn extend(&mut self, sequence: &mut ModelSequence, end: usize, now: Stamp) -> Result<(), DraftFailed> {
        while sequence.pages.len() < end.div_ceil(self.cache.block_tokens()) {
            let last = sequence.pages.last().copied();
            sequence.pages.push(self.cache.allocate(sequence.request, last, now)?);
        }
        if let Some(state) = &mut sequence.recurrent {
            state.prepare(end, sequence.request, &mut self.cache, now);
        }
        self.reserve()?;
        sequence.pages.iter().try_for_each(|page| self.cache.check(*page))?;
        sequence.recurrent.as_ref().map_or(Ok(()), |state| state.check(&self.cache))?;
        Ok(())
    }

    /// Has the device hold what the cache has handed out.
    fn reserve(&mut self) -> Result<(), DeviceError> {
        let (pages, slots) = self.cache.reservation();
        if pages > self.held.0 || slots > self.held.1 {
            let wanted = (pages.max(self.held.0), slots.max(self.held.1));
            self.executor.reserve(wanted.0, wanted.1)?;
            self.held = wanted;
        }
        Ok(())
    }

    /// Stores the prompt's whole blocks, if all of it was read, and gives everything back.
    pub fn finish(&mut self, sequence: ModelSequence, prompt: &[u32], now: Stamp) {
        if sequence.use_cache && sequence.read >= prompt.len() {
            let captured = sequence.recurrent.as_ref().map(RecurrentState::captured).unwrap_or_default();
            self.cache.store(prompt, &sequence.pages, captured, sequence.request, Route::Dense, now);
        }
        self.abandon(sequence);
    }

    /// Gives back what a sequence holds; nothing of it is stored.
    pub fn abandon(&mut self, sequence: ModelSequence) {
        self.cache.release(&sequence.pages);
        if let Some(state) = sequence.recurrent {
            state.release(&mut self.cache);
        }
    }

    /// Ends a sequence that failed. Where the device lost its state, or has no memory for more, everything cached is dropped. After a loss no other
    /// sequence may be left.
    pub fn give_up(&mut self, sequence: ModelSequence, error: &DraftFailed) {
        self.abandon(sequence);
        match error {
            DraftFailed::Device(DeviceError::StateLost(_)) => self.held = (0, 0),
            DraftFailed::Device(DeviceError::OutOfMemory { .. }) => {}
            _ => return,
        }
        self.cache.evict_all(Stamp::default());
        self.cache.shrink(self.held.0, self.held.1);
    }

    /// Drops everything it has cached. Gives the blocks dropped.
    pub fn evict_all(&mut self, now: Stamp) -> usize {
        self.cache.evict_all(now)
    }
}

/// Drafts by the draft model in one sequence.
pub struct ModelDrafter<'a> {
    /// The model.
    pub model: &'a mut DraftModel,
    /// What it keeps of the sequence.
    pub sequence: &'a mut ModelSequence,
    /// Now.
    pub now: Stamp,
}

impl Drafter for ModelDrafter<'_> {
    fn draft(&mut self, known: &[u32], depth: usize, sampler: &mut Sampler) -> Result<Draft, DraftFailed> {
        let ModelDrafter { model, sequence, now } = self;
        let mut draft = Draft::default();
        let context = model.executor.facts().context_tokens;
        if depth == 0 || known.len() + depth > context {
            return Ok(draft);
        }
        let first = known.len() - (known.len() - sequence.read).min(CATCH_UP);
        sequence.read = first;
        let forward = model.read(sequence, &known[first..], LogitRows::Last, *now)?;
        sequence.read = known.len();
        let mut seen = sampler.seen(known);
        draft.compute.0 += forward.compute.0;
        let vocab = model.vocab.min(forward.logits.len());
        let mut token = draft.push_drawn(&forward.logits[..vocab], &seen, sampler);
        let places = sequence.places;
        model.extend(sequence, places + depth - 1, *now)?;
        // Drafted tokens go to the spare slot, and to places that the next known tokens take.
        let mut flow = sequence.recurrent.as_ref().map(|state| state.flow_apart(places + 1, false));
        for offset in 0..depth - 1 {
            seen.to_mut().push(token);
            let (place, position) = (places + offset, known.len() + offset);
            let forward = model.forward(sequence, place, position, &[token], flow, LogitRows::Last)?;
            flow = flow.map(|flow| StateFlow { from: Some(flow.to), ..flow });
            draft.compute.0 += forward.compute.0;
            token = draft.push_drawn(&forward.logits[..vocab], &seen, sampler);
        }
        Ok(draft)
    }
}
