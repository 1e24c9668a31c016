//! The recurrent state of a running sequence: the slot it lives in, the snapshot it started from, those it captured.
//!
//! State moves by being written elsewhere. A span that ends at a boundary to be captured writes a fresh slot, which is
//! from then on a snapshot; the next span reads that slot and writes the live one. No pass of its own is needed for it.
//!
//! A span of drafted tokens may have to be taken back, so it goes *apart*: it leaves the state it starts from as it was. Live slot and spare slot
//! then take turns. The spare one is taken from the room for snapshots, when the first such span is due.

use super::boundary::Boundaries;
use super::chain::BlockHash;
use super::pool::SlotRef;
use super::{Cache, CacheFull, Captured, StaleState};
use crate::device::StateFlow;
use crate::event::{RequestId, Stamp};

/// Slots a sequence holds, and where its state is among them.
#[derive(Debug)]
pub struct RecurrentState {
    boundaries: Boundaries,
    live: SlotRef,
    /// What a span apart writes while the state stands in the live slot.
    spare: Option<SlotRef>,
    /// What the recomputation of an audited span writes.
    audit: Option<SlotRef>,
    /// The slot with the state after the tokens computed so far; `None` before the first.
    at: Option<SlotRef>,
    /// The snapshot that was restored, held until the first span has read it.
    restored: Option<SlotRef>,
    /// A slot for the capture that comes next.
    fresh: Option<SlotRef>,
    captured: Vec<Captured>,
    not_taken: u64,
}

impl RecurrentState {
    /// The state of a sequence that starts from a snapshot at a block's end, or from nothing.
    pub fn start(
        cache: &mut Cache,
        boundaries: Boundaries,
        snapshot: Option<(BlockHash, SlotRef)>,
    ) -> Result<RecurrentState, CacheFull> {
        let live = cache.allocate_live_slot()?;
        let restored = snapshot.map(|(block, slot)| {
            cache.hold_snapshot(&block, slot);
            slot
        });
        Ok(RecurrentState {
            boundaries,
            live,
            spare: None,
            audit: None,
            at: restored,
            restored,
            fresh: None,
            captured: Vec::new(),
            not_taken: 0,
        })
    }

    /// Gets a slot for a snapshot that is to be read, if there is room for one.
    pub fn prepare_load(&mut self, request: RequestId, cache: &mut Cache, now: Stamp) {
        self.fresh = cache.allocate_snapshot(request, now);
    }

    /// The slot that a snapshot is to be read into: the one prepared, or the live one.
    pub fn load_target(&self) -> SlotRef {
        self.fresh.unwrap_or(self.live)
    }

    /// Takes note that the snapshot of the block named `hash` has been read. The sequence starts from it, and a slot that was prepared for it
    /// is that block's from now on.
    pub fn loaded(&mut self, hash: &BlockHash, cache: &mut Cache) {
        self.at = Some(self.load_target());
        self.restored = self.fresh.take();
        if let Some(slot) = self.restored {
            cache.adopt_snapshot(hash, slot);
        }
    }

    /// Has nothing captured behind `position` from here on.
    pub fn capture_up_to(&mut self, position: usize) {
        let Boundaries { within, prompt_tokens, .. } = &mut self.boundaries;
        within.1 = within.1.min(position);
        // The last boundary of the prompt is then the last one up to there.
        *prompt_tokens = (*prompt_tokens).min(position.saturating_add(1));
    }

    /// Where the prefill chunk that starts at `position` must end at the latest.
    pub fn next_stop(&self, position: usize) -> Option<usize> {
        self.boundaries.next_in_prompt(position)
    }

    /// Gets a slot for the capture at `end`, if there is to be one and room for it.
    pub fn prepare(&mut self, end: usize, request: RequestId, cache: &mut Cache, now: Stamp) {
        if !self.boundaries.captures(end) || self.fresh.is_some() {
            return;
        }
        self.fresh = cache.allocate_snapshot(request, now).or_else(|| self.replace_own(end));
    }

    /// The slot of an earlier capture of this sequence that the one at `end` is worth more than.
    fn replace_own(&mut self, end: usize) -> Option<SlotRef> {
        let boundaries = self.boundaries;
        let replaceable = |captured: &Captured| {
            // The state itself may be standing there.
            Some(captured.slot) != self.at
                && boundaries.replaces(end, captured.blocks * boundaries.block_tokens)
        };
        let oldest = self.captured.iter().position(replaceable)?;
        let Captured { blocks, slot } = self.captured.remove(oldest);
        // One that would have been dropped anyway is no loss.
        let superseded = boundaries.supersedes(end, blocks * boundaries.block_tokens);
        self.not_taken += u64::from(!superseded);
        Some(slot)
    }

    /// Gives the slot for the next capture back, which nothing has been written to.
    pub fn give_back_fresh(&mut self, cache: &mut Cache) {
        if let Some(slot) = self.fresh.take() {
            cache.release_snapshot(slot);
        }
    }

    /// Fails when a slot that the next span reads or writes is not the sequence's any more.
    pub fn check(&self, cache: &Cache) -> Result<(), StaleState> {
        [Some(self.live), self.spare, self.audit, self.at, self.fresh]
            .into_iter()
            .flatten()
            .try_for_each(|slot| cache.check_slot(slot))
    }

    /// The flow of the span that ends at `end`.
    pub fn flow(&self, end: usize) -> StateFlow {
        StateFlow { from: self.at.map(SlotRef::id), to: self.target(end).id(), revocable: false }
    }

    fn target(&self, end: usize) -> SlotRef {
        self.fresh.filter(|_| self.boundaries.captures(end)).unwrap_or(self.live)
    }

    /// Gets the spare slot, if there is room for one. `false` where there is none: no span can go apart then.
    pub fn prepare_apart(&mut self, request: RequestId, cache: &mut Cache, now: Stamp) -> bool {
        if self.spare.is_none() {
            self.spare = cache.allocate_snapshot(request, now);
        }
        self.spare.is_some()
    }

    /// Gets the slot for recomputation, if there is room for one.
    pub fn prepare_audit(&mut self, request: RequestId, cache: &mut Cache, now: Stamp) -> bool {
        if self.audit.is_none() {
            self.audit = cache.allocate_snapshot(request, now);
        }
        self.audit.is_some()
    }

    /// The slot for recomputation.
    pub fn audit_slot(&self) -> Option<SlotRef> {
        self.audit
    }

    /// Gives the slots back that spans apart and audits need, as far as the state does not stand there: the device does not hold them, or nothing
    /// is drafted any more.
    pub fn give_back_spare(&mut self, cache: &mut Cache) {
        if let Some(audit) = self.audit.take() {
            cache.release_snapshot(audit);
        }
        if let Some(spare) = self.spare.take_if(|spare| self.at != Some(*spare)) {
            cache.release_snapshot(spare);
        }
    }

    /// The flow of a span apart that ends at `end`. A `revocable` one may be rewound.
    pub fn flow_apart(&self, end: usize, revocable: bool) -> StateFlow {
        StateFlow { from: self.at.map(SlotRef::id), to: self.target_apart(end).id(), revocable }
    }

    fn target_apart(&self, end: usize) -> SlotRef {
        match (self.fresh, self.spare) {
            (Some(fresh), _) if self.boundaries.captures(end) => fresh,
            (_, Some(spare)) if self.at == Some(self.live) => spare,
            _ => self.live,
        }
    }

    /// Tokens that a span from `position` on may have at most, so that none but a single one ends at a boundary to be captured or passes it: what is
    /// rewound is no capture.
    pub fn room_apart(&self, position: usize, wanted: usize) -> usize {
        let free = (1..=wanted).take_while(|tokens| !self.boundaries.captures(position + tokens)).count();
        free.max(1)
    }

    /// Takes note that the span apart which ends at `end` has been computed, and rewound as far as it had to be.
    pub fn advance_apart(&mut self, end: usize, cache: &mut Cache) {
        let target = self.target_apart(end);
        self.move_to(target, end, cache);
    }

    /// Takes note that the span which ends at `end` has been computed.
    pub fn advance(&mut self, end: usize, cache: &mut Cache) {
        let target = self.target(end);
        self.move_to(target, end, cache);
    }

    fn move_to(&mut self, target: SlotRef, end: usize, cache: &mut Cache) {
        self.at = Some(target);
        if let Some(restored) = self.restored.take() {
            cache.release_snapshot(restored);
        }
        if !self.boundaries.captures(end) {
            return;
        }
        let Some(slot) = self.fresh.take() else {
            self.not_taken += 1;
            return;
        };
        let Boundaries { block_tokens, .. } = self.boundaries;
        let boundaries = self.boundaries;
        self.captured.retain(|earlier| {
            let superseded = boundaries.supersedes(end, earlier.blocks * block_tokens);
            if superseded {
                cache.release_snapshot(earlier.slot);
            }
            !superseded
        });
        self.captured.push(Captured { blocks: end / block_tokens, slot });
    }

    /// The slot with the state after the tokens computed so far; `None` before the first.
    pub fn stands_at(&self) -> Option<SlotRef> {
        self.at
    }

    /// What was captured and not given up since.
    pub fn captured(&self) -> &[Captured] {
        &self.captured
    }

    /// Boundaries that were to be captured and are not.
    pub fn not_taken(&self) -> u64 {
        self.not_taken
    }

    /// Gives every slot back.
    pub fn release(self, cache: &mut Cache) {
        let captured = self.captured.iter().map(|captured| captured.slot);
        for slot in captured.chain(self.restored).chain(self.fresh).chain(self.spare).chain(self.audit) {
            cache.release_snapshot(slot);
        }
        cache.release_live_slot(self.live);
    }

    /// Slots the next span reads or writes.
    #[cfg(test)]
    pub fn slots(&self) -> Vec<SlotRef> {
        [Some(self.live), self.spare, self.at].into_iter().flatten().collect()
    }
}
