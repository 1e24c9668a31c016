//! The prefix cache: what earlier requests left behind, and what a new prompt can take from it.
//!
//! A prompt is split into whole blocks. [`chain`] names each block by a hash over its tokens and everything before
//! it; [`pool`] counts who holds a page or a slot of state, and [`budget`] says how many of each there may be; [`index`]
//! remembers which block's state lives in which page, who wrote it, and what was evicted; [`tier`] keeps blocks and snapshots on the
//! disk. [`lookup`] finds what the two hold of a prompt and decides where it starts; [`restore`] turns that into the counts and the named
//! losses a reader sees, with the help of what was [`served`] before. [`Cache`] ties them together and is the only owner of pages and slots.
//!
//! Attention layers are sliceable: their state at any block's end is in the pages up to it. Recurrent layers are not: their
//! state at a block's end exists only where it was captured ([`boundary`] says where that is), as a snapshot in a slot.
//!
//! Pages and snapshots are immutable once they are indexed, so restoring is sharing: no state is copied.

pub mod boundary;
pub mod budget;
pub mod chain;
pub mod companion;
pub mod index;
pub mod lookup;
pub mod pool;
pub mod recurrent;
pub mod restore;
pub mod served;
pub mod tier;

use crate::device::{PageId, SlotId};
use crate::event::{RequestId, Route, Stamp};
use budget::{Budget, DeviceLimits};
use chain::{BlockHash, Identity};
use index::{Dropped, Evicted, Eviction, PrefixIndex, Provenance, Removed};
use lookup::Candidate;
use pool::{PageRef, Pool, SlotRef};
use tier::{Place, Tier};

/// Running requests hold all the state there may be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CacheFull {
    /// No page is free, and none can be freed.
    #[error("all {limit} blocks that `cache.ram_bytes` allows are in use by running requests; raise it")]
    Pages {
        /// Blocks the bound allows.
        limit: usize,
    },
    /// The same, where the device holds fewer pages than the bound allows.
    #[error(
        "the device has no memory for more than {limit} blocks, and running requests need them all; run fewer or \
         shorter ones, use a smaller model, or free memory and evict all cached blocks, which has the device asked again"
    )]
    DevicePages {
        /// Blocks the device holds.
        limit: usize,
    },
    /// Every slot set aside for running sequences is in use.
    #[error(
        "`cache.ram_bytes` has room for the recurrent state of {limit} sequences, {slot_bytes} bytes each, and they \
         are in use by running requests; raise it"
    )]
    LiveSlots {
        /// Sequences the bound allows.
        limit: usize,
        /// Bytes of a sequence's recurrent state.
        slot_bytes: u64,
    },
    /// The same, where the device holds fewer slots than the bound allows.
    #[error(
        "the device has no memory for the recurrent state of more than {limit} sequences, {slot_bytes} bytes each, \
         and running requests need them all; lower `scheduler.max_sequences`, or free memory and evict all cached \
         blocks, which has the device asked again"
    )]
    DeviceSlots {
        /// Sequences whose state the device holds.
        limit: usize,
        /// Bytes of a sequence's recurrent state.
        slot_bytes: u64,
    },
}

/// A page or slot was reused while somebody still held a reference to its earlier contents.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {index} holds generation {found}, expected {expected}: its state belongs to somebody else")]
pub struct StaleState {
    /// `page` or `slot`.
    pub kind: &'static str,
    /// Its index.
    pub index: u32,
    /// The generation the reference carries.
    pub expected: u32,
    /// The generation it has.
    pub found: u32,
}

/// Recurrent state at the end of a sequence's block, held by the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Captured {
    /// Blocks before it.
    pub blocks: usize,
    /// Where it is.
    pub slot: SlotRef,
}

/// What a store did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreOutcome {
    /// Blocks that were not held before.
    pub new_blocks: usize,
    /// Snapshots that were not held before.
    pub new_snapshots: usize,
}

/// Pages and slots, their holders, and the index over them.
///
/// It hands out places before the device holds them: have the device hold the [`Cache::reservation`] before it reads or writes one. Where it
/// refuses, release what it does not hold, [`Cache::shrink`], and for want of memory [`Cache::limit`]: what the device holds is the
/// cache's size from then on, and allocating again evicts instead of growing.
#[derive(Debug)]
pub struct Cache {
    root: BlockHash,
    block_tokens: usize,
    budget: Budget,
    /// The most snapshots there may be, whatever the budget has room for.
    max_snapshots: usize,
    pages: Pool<PageId>,
    slots: Pool<SlotId>,
    /// Slots in use as live state of running sequences; all others in use hold snapshots.
    live_slots: usize,
    index: PrefixIndex,
    tier: Option<Tier>,
    /// The run's name in files of the tier.
    run: String,
    evictions: u64,
    dropped_snapshots: u64,
}

impl Cache {
    /// An empty cache of blocks of `block_tokens` tokens.
    pub fn new(identity: &Identity, block_tokens: usize, budget: Budget) -> Cache {
        assert!(block_tokens > 0, "a block holds at least one token");
        Cache {
            root: identity.root(),
            block_tokens,
            budget,
            max_snapshots: usize::MAX,
            pages: Pool::default(),
            slots: Pool::default(),
            live_slots: 0,
            index: PrefixIndex::default(),
            tier: None,
            run: String::new(),
            evictions: 0,
            dropped_snapshots: 0,
        }
    }

    /// Allows at most `most` snapshots from here on, also where the budget has room for more.
    pub fn limit_snapshots(&mut self, most: usize) {
        self.max_snapshots = most;
    }

    /// Tokens a block holds.
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// Whether a block's end needs a snapshot to be restored from.
    pub fn is_recurrent(&self) -> bool {
        self.budget.is_recurrent()
    }

    /// Pages and slots that the device has to hold: all that are granted, and the live slots that are set aside.
    pub fn reservation(&self) -> (usize, usize) {
        (self.pages.high_water(), self.committed_slots(self.snapshots_in_use()))
    }

    /// Grants only the first `pages` pages and the first `slots` slots from here on; nobody may hold any of the others. They may be granted
    /// again, in generations of their own.
    pub fn shrink(&mut self, pages: usize, slots: usize) {
        self.pages.shrink(pages);
        self.slots.shrink(slots);
    }

    /// Takes note of what the device has refused to hold; what is known of the other kind stays. No more are granted until
    /// [`Cache::evict_all`].
    pub fn limit(&mut self, refused: DeviceLimits) {
        let known = &mut self.budget.device;
        known.pages = refused.pages.or(known.pages);
        known.slots = refused.slots.or(known.slots);
    }

    /// Blocks in the index.
    pub fn cached_blocks(&self) -> usize {
        self.index.len()
    }

    /// Snapshots in the index.
    pub fn cached_snapshots(&self) -> usize {
        self.index.snapshots()
    }

    /// Pages in use, cached or live.
    pub fn used_pages(&self) -> usize {
        self.pages.used()
    }

    /// Slots in use, of snapshots or live.
    pub fn used_slots(&self) -> usize {
        self.slots.used()
    }

    /// Bytes of all pages and slots in use.
    pub fn used_bytes(&self) -> u64 {
        self.used_pages() as u64 * self.budget.page_bytes + self.used_slots() as u64 * self.budget.slot_bytes
    }

    /// What all of it is bound by.
    pub fn budget(&self) -> Budget {
        self.budget
    }

    /// Blocks evicted since the start, whatever for.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Snapshots dropped since the start, whatever for, their blocks staying or not.
    pub fn dropped_snapshots(&self) -> u64 {
        self.dropped_snapshots
    }

    /// The chain hash of every whole block of `tokens`.
    pub fn hashes(&self, tokens: &[u32]) -> Vec<BlockHash> {
        chain::hashes(self.root, tokens, self.block_tokens)
    }

    /// Keeps blocks and snapshots in a tier on disk as well, under this run's name.
    pub fn attach_tier(&mut self, tier: Tier, run: String) {
        self.tier = Some(tier);
        self.run = run;
    }

    /// The tier on disk.
    pub fn tier(&self) -> Option<&Tier> {
        self.tier.as_ref()
    }

    /// The same, to be changed.
    pub fn tier_mut(&mut self) -> Option<&mut Tier> {
        self.tier.as_mut()
    }

    /// The run's name in files of the tier; empty without one.
    pub fn run(&self) -> &str {
        &self.run
    }

    /// Marks a chain, first block first, as just used.
    pub fn touch(&mut self, chain: &[BlockHash]) {
        self.index.touch_chain(chain);
        if let Some(tier) = &mut self.tier {
            tier.touch(chain);
        }
    }

    /// Who wrote a held block.
    pub fn provenance(&self, hash: &BlockHash) -> Option<Provenance> {
        Some(self.index.get(hash)?.provenance)
    }

    /// What is known about the eviction of a block, if it was evicted.
    pub fn evicted(&self, hash: &BlockHash) -> Option<Evicted> {
        self.index.evicted(hash)
    }

    /// Whether a block is held.
    pub fn holds(&self, hash: &BlockHash) -> bool {
        self.index.get(hash).is_some()
    }

    /// Adds a holder to each page.
    pub fn hold(&mut self, pages: &[PageRef]) {
        for page in pages {
            self.pages.hold(*page);
        }
    }

    /// Removes a holder from each page; pages without holders become free.
    pub fn release(&mut self, pages: &[PageRef]) {
        for page in pages {
            self.pages.release(*page);
        }
    }

    /// Adds a holder to a snapshot of the block named `hash` and marks it as just used.
    pub fn hold_snapshot(&mut self, hash: &BlockHash, slot: SlotRef) {
        self.slots.hold(slot);
        self.index.touch_snapshot(hash);
    }

    /// Removes a holder from a snapshot.
    pub fn release_snapshot(&mut self, slot: SlotRef) {
        self.slots.release(slot);
    }

    /// Fails when a page no longer holds what it held when the reference was made.
    pub fn check(&self, page: PageRef) -> Result<(), StaleState> {
        self.pages.check(page)
    }

    /// Fails when a slot no longer holds what it held when the reference was made.
    pub fn check_slot(&self, slot: SlotRef) -> Result<(), StaleState> {
        self.slots.check(slot)
    }

    /// A free page with one holder, if possible the one that follows `before`, evicting the least recently used blocks as needed on behalf
    /// of `request`.
    pub fn allocate(
        &mut self,
        request: RequestId,
        before: Option<PageRef>,
        now: Stamp,
    ) -> Result<PageRef, CacheFull> {
        loop {
            if let Some(page) = self.pages.reuse_after(before) {
                return Ok(page);
            }
            let slots = self.committed_slots(self.snapshots_in_use());
            if self.budget.allows(self.pages.high_water() + 1, slots)
                && let Some(page) = self.pages.grow()
            {
                return Ok(page);
            }
            if !self.evict_one(Eviction::MadeRoom(request), now) {
                return Err(self.out_of_pages(slots));
            }
        }
    }

    fn out_of_pages(&self, slots: usize) -> CacheFull {
        let limit = self.budget.most_pages(slots);
        match self.budget.device.pages {
            Some(device) if device < limit => CacheFull::DevicePages { limit: device },
            _ => CacheFull::Pages { limit },
        }
    }

    /// The slot in which a sequence's recurrent state lives. Give it back with [`Cache::release_live_slot`].
    pub fn allocate_live_slot(&mut self) -> Result<SlotRef, CacheFull> {
        let limit = self.budget.live_slots();
        let slot = match self.live_slots < limit {
            true => self.slots.reuse().or_else(|| self.slots.grow()),
            false => None,
        };
        self.live_slots += usize::from(slot.is_some());
        let slot_bytes = self.budget.slot_bytes;
        slot.ok_or(match limit < self.budget.live_slots_within_bound() {
            true => CacheFull::DeviceSlots { limit, slot_bytes },
            false => CacheFull::LiveSlots { limit, slot_bytes },
        })
    }

    /// Whether [`Cache::allocate_live_slot`] would give one.
    pub fn has_live_slot(&self) -> bool {
        self.live_slots < self.budget.live_slots()
    }

    /// Gives a live slot back.
    pub fn release_live_slot(&mut self, slot: SlotRef) {
        self.slots.release(slot);
        self.live_slots -= 1;
    }

    /// A slot for a snapshot, with one holder, dropping the least recently used other snapshot if need be. `None` when all
    /// that the bound allows are in use.
    pub fn allocate_snapshot(&mut self, request: RequestId, now: Stamp) -> Option<SlotRef> {
        let snapshots = self.snapshots_in_use() + 1;
        let slots = self.committed_slots(snapshots);
        let most = self.budget.most_snapshots().min(self.max_snapshots);
        let room = snapshots <= most && self.budget.allows(self.pages.high_water(), slots);
        if room {
            return self.slots.reuse().or_else(|| self.slots.grow());
        }
        let pool = &self.slots;
        let dropped = Dropped { at: now, for_request: Some(request) };
        let slot = self.index.drop_snapshot(dropped, |slot| pool.holders(slot) == 1)?;
        self.slots.release(slot);
        self.dropped_snapshots += 1;
        self.slots.reuse()
    }

    fn snapshots_in_use(&self) -> usize {
        self.slots.used() - self.live_slots
    }

    /// Slots that memory has to be kept for, with so many snapshots in use: those granted, and the live ones set aside.
    fn committed_slots(&self, snapshots: usize) -> usize {
        self.slots.high_water().max(snapshots + self.budget.live_slots())
    }

    /// Puts the whole blocks of `tokens` into the index; `pages[i]` holds the state of block `i`, `captured` what was captured
    /// at blocks' ends. Blocks already held keep their page, snapshot and provenance.
    pub fn store(
        &mut self,
        tokens: &[u32],
        pages: &[PageRef],
        captured: &[Captured],
        request: RequestId,
        route: Route,
        now: Stamp,
    ) -> StoreOutcome {
        let hashes = self.hashes(tokens);
        let mut parent = None;
        let mut new_blocks = 0;
        for ((hash, block), page) in hashes.iter().zip(tokens.chunks_exact(self.block_tokens)).zip(pages) {
            if self.index.get(hash).is_none() {
                // One that was given away is nobody's block, and what is behind it could not be reached.
                if self.pages.check(*page).is_err() {
                    break;
                }
                self.pages.hold(*page);
                let provenance =
                    Provenance { written_by: request, earlier_run: false, written_at: Some(now), route };
                self.index.insert(*hash, parent, *page, block.into(), provenance);
                new_blocks += 1;
            }
            parent = Some(*hash);
        }
        self.index.touch_chain(&hashes[..hashes.len().min(pages.len())]);
        let mut new_snapshots = 0;
        for Captured { blocks, slot } in captured {
            let hash = blocks.checked_sub(1).and_then(|last| hashes.get(last));
            if hash.is_some_and(|hash| self.index.attach_snapshot(hash, *slot)) {
                self.slots.hold(*slot);
                new_snapshots += 1;
            }
        }
        StoreOutcome { new_blocks, new_snapshots }
    }

    /// Puts a block that came back from the tier into the index; its state is in `page`, which somebody holds. Touch its chain afterwards.
    pub fn adopt_block(&mut self, place: &Place, page: PageRef, tokens: &[u32], provenance: Provenance) {
        if self.index.get(&place.hash).is_none() {
            self.pages.hold(page);
            self.index.insert(place.hash, place.parent, page, tokens.into(), provenance);
        }
    }

    /// Puts a snapshot that came back from the tier at the end of a held block; its state is in `slot`, which somebody holds.
    pub fn adopt_snapshot(&mut self, hash: &BlockHash, slot: SlotRef) {
        if self.index.attach_snapshot(hash, slot) {
            self.slots.hold(slot);
        }
    }

    /// Tokens of the longest prefix of `tokens` that can be restored from any tier, a block multiple.
    pub fn restorable_prefix(&self, tokens: &[u32]) -> usize {
        let found = self.look_up(tokens);
        let restorable = |candidate: &Candidate| !self.is_recurrent() || candidate.end.is_real();
        found.blocks.iter().rposition(restorable).map_or(0, |block| (block + 1) * self.block_tokens)
    }

    /// Drops every block that no running request uses. Gives how many. What the device refused to hold it will be asked for again, as
    /// memory may have come back.
    pub fn evict_all(&mut self, now: Stamp) -> usize {
        self.budget.device = DeviceLimits::default();
        std::iter::from_fn(|| self.evict_one(Eviction::ByHand, now).then_some(())).count()
    }

    fn evict_one(&mut self, why: Eviction, now: Stamp) -> bool {
        let pool = &self.pages;
        let removed = self.index.evict(now, why, |page| pool.holders(page) == 1);
        removed.map(|removed| self.let_go(removed)).is_some()
    }

    /// Drops the first block of `tokens` whose page or snapshot is somebody else's now, and all blocks behind it, so that
    /// the next prompt takes what is before them.
    pub fn discard_stale(&mut self, tokens: &[u32], now: Stamp) {
        let is_stale = |entry: &index::Entry| {
            let snapshot = entry.endpoint.snapshot();
            self.check(entry.page).is_err() || snapshot.is_some_and(|slot| self.check_slot(slot).is_err())
        };
        let hashes = self.hashes(tokens);
        let mut held = hashes.iter().map_while(|hash| Some((*hash, self.index.get(hash)?)));
        let Some((first, _)) = held.find(|(_, entry)| is_stale(entry)) else { return };
        for removed in self.index.remove_from(first, now, Eviction::Stale) {
            self.let_go(removed);
        }
    }

    /// Drops a block from RAM and all behind it, by hand. Gives how many.
    pub fn evict_from(&mut self, hash: BlockHash, now: Stamp) -> usize {
        let removed = self.index.remove_from(hash, now, Eviction::ByHand);
        let count = removed.len();
        removed.into_iter().for_each(|removed| self.let_go(removed));
        count
    }

    /// Drops the snapshot at a block's end from RAM, by hand. `false` where there is none.
    pub fn drop_snapshot_of(&mut self, hash: &BlockHash, now: Stamp) -> bool {
        let Some(slot) = self.index.drop_snapshot_of(hash, Dropped { at: now, for_request: None }) else {
            return false;
        };
        self.slots.release(slot);
        self.dropped_snapshots += 1;
        true
    }

    /// Gives the page of a held block away under the eyes of whoever refers to it, by hand. `false` where the block is not held.
    pub fn change_generation(&mut self, hash: &BlockHash) -> bool {
        let Some(entry) = self.index.get(hash) else { return false };
        self.pages.give_away(entry.page);
        true
    }

    /// Takes the index's hold off what left it.
    fn let_go(&mut self, Removed { page, snapshot }: Removed) {
        self.pages.release(page);
        if let Some(slot) = snapshot {
            self.slots.release(slot);
            self.dropped_snapshots += 1;
        }
        self.evictions += 1;
    }

    /// Every held block: the tokens up to its end, its page, its snapshot.
    #[cfg(test)]
    pub(crate) fn held(&self) -> Vec<(Vec<u32>, PageRef, Option<SlotRef>)> {
        let chains = self.index.chains();
        chains.into_iter().map(|(tokens, entry)| (tokens, entry.page, entry.endpoint.snapshot())).collect()
    }

    #[cfg(test)]
    pub(crate) fn corrupt_generation(&mut self, page: PageRef) {
        self.pages.bump_generation(page);
    }

    #[cfg(test)]
    pub(crate) fn corrupt_slot_generation(&mut self, slot: SlotRef) {
        self.slots.bump_generation(slot);
    }
}

#[cfg(test)]
mod tests;
