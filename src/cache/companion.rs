//! A second resident model beside the target, with a prefix cache of its own: what the scorer of sparse prefill and a draft model have in common.
//!
//! It reads sequences of its own, from what its cache holds of them, and gives back what it held when they end. What it stores is the caller's choice.

use super::boundary::Boundaries;
use super::budget::Budget;
use super::chain::{self, BlockHash};
use super::lookup::End;
use super::pool::{PageRef, SlotRef};
use super::recurrent::RecurrentState;
use super::{Cache, CacheFull, StaleState, StoreOutcome};
use crate::config::PlaceholderPolicy;
use crate::device::{
    DeviceError, Executor, ExecutorFacts, Forward, KeyWeights, LogitRows, PageId, Queries, Span, StateFlow,
};
use crate::event::{RequestId, Route, Stamp};

/// Why such a model could not go on.
#[derive(Debug, thiserror::Error)]
pub enum CompanionFailed {
    /// Its device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No room for its state.
    #[error(transparent)]
    Full(#[from] CacheFull),
    /// State it was to read is somebody else's.
    #[error(transparent)]
    Stale(#[from] StaleState),
}

/// The model and its cache.
pub struct Companion {
    executor: Box<dyn Executor>,
    cache: Cache,
    /// Pages and slots the device holds.
    held: (usize, usize),
}

/// What its cache has of a sequence.
#[derive(Debug)]
pub struct Found {
    pages: Vec<PageRef>,
    snapshot: Option<(BlockHash, SlotRef)>,
    /// Leading tokens that need not be read.
    pub cached: usize,
}

/// What a sequence holds. Ends with [`Companion::release`] or [`Companion::give_up`].
#[derive(Debug)]
pub struct Held {
    request: RequestId,
    pages: Vec<PageRef>,
    /// `None` for a model without recurrent layers.
    pub recurrent: Option<RecurrentState>,
}

/// Tokens to be computed: at which places and positions, and what is wanted of them.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// Place of the first.
    pub place: usize,
    /// The tokens.
    pub tokens: &'a [u32],
    /// Position of each, where these are not the places.
    pub positions: Option<&'a [u32]>,
    /// See [`Span::capture`].
    pub capture: usize,
    /// Where recurrent state comes from and goes to.
    pub state: Option<StateFlow>,
    /// Which logits are wanted.
    pub logits: LogitRows,
}

impl Companion {
    /// A model with an empty cache of at most `ram_bytes` for `sequences` at once. `text` is the digest of the tokenizer.
    pub fn new(executor: Box<dyn Executor>, text: [u8; 32], ram_bytes: u64, sequences: usize) -> Companion {
        let facts = executor.facts();
        let identity = chain::Identity::of(facts, text);
        let cache = Cache::new(&identity, facts.page_tokens, Budget::of(facts, ram_bytes, sequences));
        Companion { executor, cache, held: (0, 0) }
    }

    /// What the model is.
    pub fn facts(&self) -> &ExecutorFacts {
        self.executor.facts()
    }

    /// See [`Executor::admits`].
    pub fn admits(&self, position: usize, tokens: usize) -> usize {
        self.executor.admits(position, tokens)
    }

    /// Whether it has recurrent layers.
    pub fn is_recurrent(&self) -> bool {
        self.cache.is_recurrent()
    }

    /// What the cache has of `tokens`, at most all but the last of the first `upto`; nothing where it is not to be used.
    pub fn look_up(
        &mut self,
        tokens: &[u32],
        upto: usize,
        use_cache: bool,
    ) -> Result<Found, CompanionFailed> {
        let mut found = self.cache.look_up(tokens);
        if !use_cache {
            found.blocks.clear();
        }
        self.cache.touch(&found.chain());
        let choice = found.choose(&self.cache, upto, 0, PlaceholderPolicy::WalkBack);
        let pages: Vec<PageRef> =
            found.blocks[..choice.blocks].iter().filter_map(|candidate| candidate.page()).collect();
        pages.iter().try_for_each(|page| self.cache.check(*page))?;
        let snapshot = choice.blocks.checked_sub(1).and_then(|last| match found.blocks[last].end {
            End::Ram(slot) => Some((found.places[last].hash, slot)),
            _ => None,
        });
        snapshot.map_or(Ok(()), |(_, slot)| self.cache.check_slot(slot))?;
        Ok(Found { pages, snapshot, cached: choice.blocks * self.cache.block_tokens() })
    }

    /// Starts a sequence from what was found, its state captured at `boundaries`; `apart` with a second slot, for tokens that may not stay. After an
    /// error nothing is held.
    pub fn begin(
        &mut self,
        request: RequestId,
        found: Found,
        boundaries: Boundaries,
        apart: bool,
        now: Stamp,
    ) -> Result<Held, CompanionFailed> {
        self.cache.hold(&found.pages);
        let mut held = Held { request, pages: found.pages, recurrent: None };
        match self.give_slots(&mut held, found.snapshot, boundaries, apart, now) {
            Ok(()) => Ok(held),
            Err(error) => {
                self.give_up(held, &error);
                Err(error)
            }
        }
    }

    fn give_slots(
        &mut self,
        held: &mut Held,
        snapshot: Option<(BlockHash, SlotRef)>,
        boundaries: Boundaries,
        apart: bool,
        now: Stamp,
    ) -> Result<(), CompanionFailed> {
        if self.cache.is_recurrent() {
            let state = RecurrentState::start(&mut self.cache, boundaries, snapshot)?;
            let state = held.recurrent.insert(state);
            if apart && !state.prepare_apart(held.request, &mut self.cache, now) {
                let slot_bytes = self.cache.budget().slot_bytes;
                return Err(CacheFull::LiveSlots { limit: 1, slot_bytes }.into());
            }
        }
        Ok(self.reserve()?)
    }

    /// Gets the pages and the slot of tokens that end at place `end`.
    pub fn extend(&mut self, held: &mut Held, end: usize, now: Stamp) -> Result<(), CompanionFailed> {
        while held.pages.len() < end.div_ceil(self.cache.block_tokens()) {
            let last = held.pages.last().copied();
            held.pages.push(self.cache.allocate(held.request, last, now)?);
        }
        if let Some(state) = &mut held.recurrent {
            state.prepare(end, held.request, &mut self.cache, now);
        }
        self.reserve()?;
        held.pages.iter().try_for_each(|page| self.cache.check(*page))?;
        held.recurrent.as_ref().map_or(Ok(()), |state| state.check(&self.cache))?;
        Ok(())
    }

    /// Computes tokens, whose pages and slots were got before.
    pub fn forward(&mut self, held: &Held, piece: Piece<'_>) -> Result<Forward, CompanionFailed> {
        let Piece { place, tokens, positions, capture, state, logits } = piece;
        let pages = held.page_ids();
        let span =
            Span { pages: &pages, start: place, tokens, positions, capture, hidden: false, state, logits };
        Ok(self.executor.forward(&[span])?)
    }

    /// Takes note that the tokens up to place `end` were computed, and stay.
    pub fn advance(&mut self, held: &mut Held, end: usize) {
        if let Some(state) = &mut held.recurrent {
            state.advance(end, &mut self.cache);
        }
    }

    /// See [`Executor::key_weights`].
    pub fn key_weights(
        &mut self,
        held: &Held,
        window: std::ops::Range<usize>,
        queries: &Queries,
    ) -> Result<KeyWeights, CompanionFailed> {
        Ok(self.executor.key_weights(&held.page_ids(), window, queries)?)
    }

    /// Stores whole blocks of `tokens`, and the state that was captured.
    pub fn store(&mut self, tokens: &[u32], held: &Held, now: Stamp) -> StoreOutcome {
        let captured = held.recurrent.as_ref().map(RecurrentState::captured).unwrap_or_default();
        self.cache.store(tokens, &held.pages, captured, held.request, Route::Dense, now)
    }

    /// Gives back what a sequence holds.
    pub fn release(&mut self, held: Held) {
        self.cache.release(&held.pages);
        if let Some(state) = held.recurrent {
            state.release(&mut self.cache);
        }
    }

    /// Ends a sequence that failed. Where its device lost its state, or has no memory for more, everything cached is dropped: what the device still
    /// holds serves the sequences to come, and only a longer one asks it for more again. After a loss no other sequence may be left.
    pub fn give_up(&mut self, held: Held, error: &CompanionFailed) {
        self.release(held);
        match error {
            CompanionFailed::Device(DeviceError::StateLost(_)) => self.held = (0, 0),
            CompanionFailed::Device(DeviceError::OutOfMemory { .. }) => {}
            _ => return,
        }
        self.cache.evict_all(Stamp::default());
        self.cache.shrink(self.held.0, self.held.1);
    }

    /// Drops everything cached. Gives the blocks dropped.
    pub fn evict_all(&mut self, now: Stamp) -> usize {
        self.cache.evict_all(now)
    }

    /// Tokens of a block.
    pub fn block_tokens(&self) -> usize {
        self.cache.block_tokens()
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
}

impl Held {
    fn page_ids(&self) -> Vec<PageId> {
        self.pages.iter().map(|page| page.id()).collect()
    }
}
