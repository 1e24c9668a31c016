//! Which block's state lives in which page, and at which block's end recurrent state was captured.
//!
//! Least recently used first out, leaves before their parents: every use of a chain stamps it from its deepest block
//! up, so a parent is always more recently used than its children and the oldest entry is always a leaf.
//!
//! Snapshots have an order of use of their own: one is used when it is stored and when a prompt starts from it, not when
//! the chain it stands in is walked. So of a long chain the shallow ones go first and the deep ones, where the
//! session stands, stay.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::chain::BlockHash;
use super::pool::{PageRef, SlotRef};
use crate::event::{RequestId, Route, Stamp};

/// Who wrote a block, when, and by which route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Provenance {
    /// The request.
    pub written_by: RequestId,
    /// Whether that was a request of an earlier run.
    pub earlier_run: bool,
    /// Engine-clock time; `None` where this run's clock did not see it.
    pub written_at: Option<Stamp>,
    /// The route by which the state was computed.
    pub route: Route,
}

/// What a held block has of the recurrent layers' state at its end. Without recurrent layers it is a placeholder that
/// nobody asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// Nothing: nobody captured it.
    Placeholder,
    /// All of it.
    Snapshot(SlotRef),
    /// Nothing any more.
    Dropped(Dropped),
}

impl Endpoint {
    /// The snapshot, where there is one.
    pub fn snapshot(self) -> Option<SlotRef> {
        match self {
            Endpoint::Snapshot(slot) => Some(slot),
            Endpoint::Placeholder | Endpoint::Dropped(_) => None,
        }
    }
}

/// When a snapshot was dropped, and for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropped {
    /// When.
    pub at: Stamp,
    /// The request that needed its slot; `None` where it was dropped by hand.
    pub for_request: Option<RequestId>,
}

/// A block that is held.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its state in attention layers.
    pub page: PageRef,
    /// Its end's state in recurrent layers.
    pub endpoint: Endpoint,
    /// Its tokens, so that a match is proven rather than assumed.
    pub tokens: Box<[u32]>,
    /// Where it comes from.
    pub provenance: Provenance,
    parent: Option<BlockHash>,
    children: u32,
    used: u64,
    snapshot_used: u64,
}

/// State that left the index; its holds pass to the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// The block's page.
    pub page: PageRef,
    /// Its snapshot, where it had one.
    pub snapshot: Option<SlotRef>,
}

/// Why a block is no longer held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eviction {
    /// It made room for a request.
    MadeRoom(RequestId),
    /// The cache was cleared by hand.
    ByHand,
    /// Its page or its snapshot, or those of a block before it, held somebody else's state.
    Stale,
}

/// A block that is no longer held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evicted {
    /// When it was evicted.
    pub at: Stamp,
    /// Why.
    pub why: Eviction,
    /// Where it came from.
    pub provenance: Provenance,
}

/// Evictions that are remembered. Older ones read as blocks never stored.
const REMEMBERED_EVICTIONS: usize = 16_384;

/// The index.
#[derive(Debug, Default)]
pub struct PrefixIndex {
    entries: HashMap<BlockHash, Entry>,
    by_use: BTreeMap<u64, BlockHash>,
    snapshots_by_use: BTreeMap<u64, BlockHash>,
    /// Evictions with their number.
    evicted: HashMap<BlockHash, (u64, Evicted)>,
    eviction_order: VecDeque<(u64, BlockHash)>,
    tick: u64,
}

impl PrefixIndex {
    /// Blocks held.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no block is held.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A held block.
    pub fn get(&self, hash: &BlockHash) -> Option<&Entry> {
        self.entries.get(hash)
    }

    /// What is known about a block's eviction.
    pub fn evicted(&self, hash: &BlockHash) -> Option<Evicted> {
        self.evicted.get(hash).map(|(_, evicted)| *evicted)
    }

    /// Adds a block that is not held yet. Touch its chain afterwards.
    pub fn insert(
        &mut self,
        hash: BlockHash,
        parent: Option<BlockHash>,
        page: PageRef,
        tokens: Box<[u32]>,
        provenance: Provenance,
    ) {
        assert!(!self.entries.contains_key(&hash), "a block is held once");
        if let Some(entry) = parent.and_then(|parent| self.entries.get_mut(&parent)) {
            entry.children += 1;
        }
        self.tick += 1;
        self.by_use.insert(self.tick, hash);
        self.evicted.remove(&hash);
        let entry = Entry {
            page,
            endpoint: Endpoint::Placeholder,
            tokens,
            provenance,
            parent,
            children: 0,
            used: self.tick,
            snapshot_used: 0,
        };
        self.entries.insert(hash, entry);
    }

    /// Snapshots held.
    pub fn snapshots(&self) -> usize {
        self.snapshots_by_use.len()
    }

    /// Puts a snapshot at the end of a held block that has none, and marks it as just used. `false` where it is not needed.
    pub fn attach_snapshot(&mut self, hash: &BlockHash, slot: SlotRef) -> bool {
        let Some(entry) = self.entries.get_mut(hash).filter(|entry| entry.endpoint.snapshot().is_none())
        else {
            return false;
        };
        entry.endpoint = Endpoint::Snapshot(slot);
        self.tick += 1;
        entry.snapshot_used = self.tick;
        self.snapshots_by_use.insert(self.tick, *hash);
        true
    }

    /// Marks a block's snapshot as just used.
    pub fn touch_snapshot(&mut self, hash: &BlockHash) {
        let Some(entry) = self.entries.get_mut(hash) else { return };
        if self.snapshots_by_use.remove(&entry.snapshot_used).is_some() {
            self.tick += 1;
            entry.snapshot_used = self.tick;
            self.snapshots_by_use.insert(self.tick, *hash);
        }
    }

    /// Drops the least recently used snapshot that is `evictable`; its block stays. Gives its slot, whose hold passes to
    /// the caller.
    pub fn drop_snapshot(
        &mut self,
        dropped: Dropped,
        evictable: impl Fn(SlotRef) -> bool,
    ) -> Option<SlotRef> {
        let (used, hash, slot) = self.snapshots_by_use.iter().find_map(|(used, hash)| {
            let slot = self.entries.get(hash)?.endpoint.snapshot()?;
            evictable(slot).then_some((*used, *hash, slot))
        })?;
        self.snapshots_by_use.remove(&used);
        if let Some(entry) = self.entries.get_mut(&hash) {
            entry.endpoint = Endpoint::Dropped(dropped);
        }
        Some(slot)
    }

    /// Drops the snapshot of one block. Gives its slot, whose hold passes to the caller.
    pub fn drop_snapshot_of(&mut self, hash: &BlockHash, dropped: Dropped) -> Option<SlotRef> {
        let entry = self.entries.get_mut(hash)?;
        let slot = entry.endpoint.snapshot()?;
        self.snapshots_by_use.remove(&entry.snapshot_used);
        entry.endpoint = Endpoint::Dropped(dropped);
        Some(slot)
    }

    /// Marks a chain, first block first, as just used.
    pub fn touch_chain(&mut self, chain: &[BlockHash]) {
        for hash in chain.iter().rev() {
            let Some(entry) = self.entries.get_mut(hash) else { continue };
            self.by_use.remove(&entry.used);
            self.tick += 1;
            entry.used = self.tick;
            self.by_use.insert(self.tick, *hash);
        }
    }

    /// Removes the least recently used leaf whose page is `evictable`, and its snapshot with it.
    pub fn evict(
        &mut self,
        now: Stamp,
        why: Eviction,
        evictable: impl Fn(PageRef) -> bool,
    ) -> Option<Removed> {
        let hash = *self.by_use.values().find(|hash| {
            self.entries.get(hash).is_some_and(|entry| entry.children == 0 && evictable(entry.page))
        })?;
        self.remove(hash, now, why)
    }

    /// Removes a block and all behind it, which could not be reached any more; deepest first.
    pub fn remove_from(&mut self, hash: BlockHash, now: Stamp, why: Eviction) -> Vec<Removed> {
        let mut children: HashMap<BlockHash, Vec<BlockHash>> = HashMap::new();
        for (child, entry) in &self.entries {
            if let Some(parent) = entry.parent {
                children.entry(parent).or_default().push(*child);
            }
        }
        let mut chain = vec![hash];
        let mut next = 0;
        while let Some(hash) = chain.get(next) {
            chain.extend(children.remove(hash).unwrap_or_default());
            next += 1;
        }
        chain.into_iter().rev().filter_map(|hash| self.remove(hash, now, why)).collect()
    }

    fn remove(&mut self, hash: BlockHash, now: Stamp, why: Eviction) -> Option<Removed> {
        let entry = self.entries.remove(&hash)?;
        self.by_use.remove(&entry.used);
        let snapshot = entry.endpoint.snapshot();
        if snapshot.is_some() {
            self.snapshots_by_use.remove(&entry.snapshot_used);
        }
        if let Some(parent) = entry.parent.and_then(|parent| self.entries.get_mut(&parent)) {
            parent.children -= 1;
        }
        self.remember(hash, Evicted { at: now, why, provenance: entry.provenance });
        Some(Removed { page: entry.page, snapshot })
    }

    /// Every held block by the tokens up to its end.
    #[cfg(test)]
    pub(crate) fn chains(&self) -> Vec<(Vec<u32>, &Entry)> {
        let tokens = |entry: &Entry| {
            let mut blocks = vec![&entry.tokens];
            let mut parent = entry.parent;
            while let Some(entry) = parent.map(|parent| &self.entries[&parent]) {
                blocks.push(&entry.tokens);
                parent = entry.parent;
            }
            blocks.iter().rev().flat_map(|block| block.iter().copied()).collect()
        };
        self.entries.values().map(|entry| (tokens(entry), entry)).collect()
    }

    fn remember(&mut self, hash: BlockHash, evicted: Evicted) {
        if self.eviction_order.len() == REMEMBERED_EVICTIONS
            && let Some((number, oldest)) = self.eviction_order.pop_front()
            && self.evicted.get(&oldest).is_some_and(|(latest, _)| *latest == number)
        {
            self.evicted.remove(&oldest);
        }
        self.tick += 1;
        self.eviction_order.push_back((self.tick, hash));
        self.evicted.insert(hash, (self.tick, evicted));
    }
}
