//! Which block's state lives in which page.
//!
//! Least recently used first out, leaves before their parents: every use of a chain stamps it from its deepest block
//! up, so a parent is always more recently used than its children and the oldest entry is always a leaf.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::chain::BlockHash;
use super::pool::PageRef;
use crate::event::{RequestId, Route, Stamp};

/// Who wrote a block, when, and by which route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Provenance {
    /// The request.
    pub written_by: RequestId,
    /// Engine-clock time.
    pub written_at: Stamp,
    /// The route by which the state was computed.
    pub route: Route,
}

/// A block that is held.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its state.
    pub page: PageRef,
    /// Its tokens, so that a match is proven rather than assumed.
    pub tokens: Box<[u32]>,
    /// Where it comes from.
    pub provenance: Provenance,
    parent: Option<BlockHash>,
    children: u32,
    used: u64,
}

/// A block that is no longer held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evicted {
    /// When it was evicted.
    pub at: Stamp,
    /// The request it made room for; `None` when the cache was cleared by hand.
    pub for_request: Option<RequestId>,
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
    evicted: HashMap<BlockHash, Evicted>,
    eviction_order: VecDeque<BlockHash>,
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
        self.evicted.get(hash).copied()
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
        self.entries.insert(hash, Entry { page, tokens, provenance, parent, children: 0, used: self.tick });
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

    /// Removes the least recently used leaf whose page is `evictable` and gives its page, whose hold passes to the caller.
    pub fn evict(
        &mut self,
        now: Stamp,
        for_request: Option<RequestId>,
        evictable: impl Fn(PageRef) -> bool,
    ) -> Option<PageRef> {
        let hash = *self.by_use.values().find(|hash| {
            self.entries.get(hash).is_some_and(|entry| entry.children == 0 && evictable(entry.page))
        })?;
        let entry = self.entries.remove(&hash)?;
        self.by_use.remove(&entry.used);
        if let Some(parent) = entry.parent.and_then(|parent| self.entries.get_mut(&parent)) {
            parent.children -= 1;
        }
        self.remember(hash, Evicted { at: now, for_request, provenance: entry.provenance });
        Some(entry.page)
    }

    fn remember(&mut self, hash: BlockHash, evicted: Evicted) {
        if self.eviction_order.len() == REMEMBERED_EVICTIONS
            && let Some(oldest) = self.eviction_order.pop_front()
        {
            self.evicted.remove(&oldest);
        }
        self.eviction_order.push_back(hash);
        self.evicted.insert(hash, evicted);
    }
}
