//! Drafting by a smaller model with the same tokenizer.
//!
//! It is a second resident model with a prefix cache of its own. Of every sequence it keeps the state after the tokens that are known: what it drafts
//! goes to a slot and to places that the next known tokens take. So nothing has to be taken back, and the tokens that were accepted are read
//! together, in one pass, before the next draft.

use super::{Draft, DraftFailed, Drafter};
use crate::cache::boundary::Boundaries;
use crate::cache::companion::{Companion, Held, Piece};
use crate::config::SnapshotPolicy;
use crate::decode::Sampler;
use crate::device::{Executor, Forward, LogitRows, StateFlow};
use crate::event::{Nanos, RequestId, Stamp};

/// Tokens of a reply that are read before a draft at most. Further back they are passed over: after a long time without drafting, reading all of it would
/// cost more than the draft can win.
const CATCH_UP: usize = 32;

/// The draft model.
pub struct DraftModel {
    model: Companion,
    chunk_tokens: usize,
    /// Ids of the target: logits beyond them are nobody's.
    vocab: usize,
}

/// What the draft model keeps of a sequence. Ends with [`DraftModel::finish`].
#[derive(Debug)]
pub struct ModelSequence {
    held: Held,
    prompt: usize,
    use_cache: bool,
    cached: usize,
    /// Tokens that were read, or passed over.
    read: usize,
    /// Tokens that were read: the next one's place.
    places: usize,
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
        DraftModel { model: Companion::new(executor, text, ram_bytes, sequences), chunk_tokens, vocab }
    }

    /// Starts on a prompt, from what its cache holds of it, or from nothing where it is not to `use_cache`.
    pub fn begin(
        &mut self,
        request: RequestId,
        prompt: &[u32],
        use_cache: bool,
        now: Stamp,
    ) -> Result<ModelSequence, DraftFailed> {
        let context = self.model.facts().context_tokens;
        if prompt.len() >= context {
            return Err(DraftFailed::Context { tokens: prompt.len(), context });
        }
        let found = self.model.look_up(prompt, prompt.len(), use_cache)?;
        let cached = found.cached;
        let boundaries = Boundaries {
            policy: if use_cache { SnapshotPolicy::Last } else { SnapshotPolicy::None },
            block_tokens: self.model.block_tokens(),
            prompt_tokens: prompt.len(),
            branch: None,
            within: (0, prompt.len()),
        };
        let held = self.model.begin(request, found, boundaries, true, now)?;
        Ok(ModelSequence { held, prompt: prompt.len(), use_cache, cached, read: cached, places: cached })
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
        let stop = sequence.held.recurrent.as_ref().and_then(|state| state.next_stop(start));
        let wanted = crate::prefill::chunk(start, prompt.len(), self.chunk_tokens, stop);
        let tokens = wanted.len();
        let chunk = crate::prefill::admitted(wanted, self.model.admits(start, tokens));
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
        self.model.extend(&mut sequence.held, end, now)?;
        let flow = sequence.held.recurrent.as_ref().map(|state| state.flow(end));
        let forward = self.forward(sequence, sequence.places, sequence.read, tokens, flow, logits)?;
        sequence.places = end;
        self.model.advance(&mut sequence.held, end);
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
    ) -> Result<Forward, DraftFailed> {
        let positions: Option<Vec<u32>> = (place != position)
            .then(|| (position..position + tokens.len()).map(|position| position as u32).collect());
        let positions = positions.as_deref();
        Ok(self
            .model
            .forward(&sequence.held, Piece { place, tokens, positions, capture: 0, state, logits })?)
    }

    /// Stores the prompt's whole blocks, if all of it was read, and gives everything back.
    pub fn finish(&mut self, sequence: ModelSequence, prompt: &[u32], now: Stamp) {
        if sequence.use_cache && sequence.read >= prompt.len() {
            self.model.store(prompt, &sequence.held, now);
        }
        self.abandon(sequence);
    }

    /// Gives back what a sequence holds; nothing of it is stored.
    pub fn abandon(&mut self, sequence: ModelSequence) {
        self.model.release(sequence.held);
    }

    /// Ends a sequence that failed; see [`Companion::give_up`].
    pub fn give_up(&mut self, sequence: ModelSequence, error: &DraftFailed) {
        match error {
            DraftFailed::Model(error) => self.model.give_up(sequence.held, error),
            DraftFailed::Context { .. } => self.model.release(sequence.held),
        }
    }

    /// Drops everything it has cached. Gives the blocks dropped.
    pub fn evict_all(&mut self, now: Stamp) -> usize {
        self.model.evict_all(now)
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
        let context = model.model.facts().context_tokens;
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
        model.model.extend(&mut sequence.held, places + depth - 1, *now)?;
        // Drafted tokens go to the spare slot, and to places that the next known tokens take.
        let mut flow = sequence.held.recurrent.as_ref().map(|state| state.flow_apart(places + 1, false));
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
