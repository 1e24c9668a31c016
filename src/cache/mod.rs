//! The prefix cache: what earlier requests left behind, and what a new prompt can take from it.
//!
//! A prompt is split into whole blocks. [`chain`] names each block by a hash over its tokens and everything before
//! it; [`pool`] counts who holds a page of state; [`index`] remembers which block's state lives in which page, who
//! wrote it, and what was evicted; [`restore`] turns a lookup into the counts and the named losses a reader sees.
//! [`Cache`] ties the first three together and is the only owner of pages.
//!
//! Pages are immutable once they are indexed, so restoring is sharing: no state is copied.

pub mod chain;
pub mod index;
pub mod pool;
pub mod restore;

use crate::event::{RequestId, Route, Stamp};
use chain::{BlockHash, Identity};
use index::{Evicted, PrefixIndex, Provenance};
use pool::{PagePool, PageRef};

/// No page is free, and none can be freed: running requests hold them all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("all {limit} blocks that `cache.ram_bytes` allows are in use by running requests; raise it")]
pub struct CacheFull {
    /// Blocks the bound allows.
    pub limit: usize,
}

/// A page was reused while somebody still held a reference to its earlier contents.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("page {page} holds generation {found}, expected {expected}: its state belongs to somebody else")]
pub struct StalePage {
    /// The page's index.
    pub page: u32,
    /// The generation the reference carries.
    pub expected: u32,
    /// The generation the page has.
    pub found: u32,
}

/// Blocks of a prompt found in the cache, in order from the first.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The page of each block.
    pub pages: Vec<PageRef>,
    /// Who wrote each block.
    pub provenance: Vec<Provenance>,
}

/// What a store did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreOutcome {
    /// Blocks that were not held before.
    pub new_blocks: usize,
}

/// Pages, their holders, and the index over them.
#[derive(Debug)]
pub struct Cache {
    root: BlockHash,
    block_tokens: usize,
    pool: PagePool,
    index: PrefixIndex,
    evictions: u64,
}

impl Cache {
    /// An empty cache of at most `pages` pages of `block_tokens` tokens.
    pub fn new(identity: &Identity, block_tokens: usize, pages: usize) -> Cache {
        assert!(block_tokens > 0, "a block holds at least one token");
        Cache {
            root: identity.root(),
            block_tokens,
            pool: PagePool::new(pages),
            index: PrefixIndex::default(),
            evictions: 0,
        }
    }

    /// Tokens a block holds.
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// Pages the bound allows.
    pub fn limit(&self) -> usize {
        self.pool.limit()
    }

    /// Highest page index ever handed out, plus one: what the device must have reserved.
    pub fn high_water(&self) -> usize {
        self.pool.high_water()
    }

    /// Blocks in the index.
    pub fn cached_blocks(&self) -> usize {
        self.index.len()
    }

    /// Pages in use, cached or live.
    pub fn used_pages(&self) -> usize {
        self.pool.used()
    }

    /// Blocks evicted since the start.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// The chain hash of every whole block of `tokens`.
    pub fn hashes(&self, tokens: &[u32]) -> Vec<BlockHash> {
        chain::hashes(self.root, tokens, self.block_tokens)
    }

    /// Looks `tokens` up from the first block on and marks what is found as just used. The pages stay the cache's;
    /// [`Cache::hold`] what is to be used.
    pub fn find(&mut self, tokens: &[u32]) -> Found {
        let mut found = Found { pages: Vec::new(), provenance: Vec::new() };
        let mut held = Vec::new();
        for (hash, block) in self.hashes(tokens).into_iter().zip(tokens.chunks_exact(self.block_tokens)) {
            // Equal hashes are not taken for equal tokens: a restored block must be the prompt's own.
            let Some(entry) = self.index.get(&hash).filter(|entry| entry.tokens[..] == *block) else { break };
            found.pages.push(entry.page);
            found.provenance.push(entry.provenance);
            held.push(hash);
        }
        self.index.touch_chain(&held);
        found
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
            self.pool.hold(*page);
        }
    }

    /// Removes a holder from each page; pages without holders become free.
    pub fn release(&mut self, pages: &[PageRef]) {
        for page in pages {
            self.pool.release(*page);
        }
    }

    /// Fails when a page no longer holds what it held when the reference was made.
    pub fn check(&self, page: PageRef) -> Result<(), StalePage> {
        self.pool.check(page)
    }

    /// A free page with one holder, evicting the least recently used blocks as needed on behalf of `request`.
    pub fn allocate(&mut self, request: RequestId, now: Stamp) -> Result<PageRef, CacheFull> {
        loop {
            if let Some(page) = self.pool.allocate() {
                return Ok(page);
            }
            if !self.evict_one(Some(request), now) {
                return Err(CacheFull { limit: self.pool.limit() });
            }
        }
    }

    /// Puts the whole blocks of `tokens` into the index; `pages[i]` holds the state of block `i`. Blocks already held
    /// keep their page and their provenance.
    pub fn store(
        &mut self,
        tokens: &[u32],
        pages: &[PageRef],
        request: RequestId,
        route: Route,
        now: Stamp,
    ) -> StoreOutcome {
        let hashes = self.hashes(tokens);
        let mut parent = None;
        let mut new_blocks = 0;
        for ((hash, block), page) in hashes.iter().zip(tokens.chunks_exact(self.block_tokens)).zip(pages) {
            if self.index.get(hash).is_none() {
                self.pool.hold(*page);
                let provenance = Provenance { written_by: request, written_at: now, route };
                self.index.insert(*hash, parent, *page, block.into(), provenance);
                new_blocks += 1;
            }
            parent = Some(*hash);
        }
        self.index.touch_chain(&hashes[..hashes.len().min(pages.len())]);
        StoreOutcome { new_blocks }
    }

    /// Tokens of the longest prefix of `tokens` that is held, a block multiple.
    pub fn held_prefix(&self, tokens: &[u32]) -> usize {
        self.hashes(tokens).iter().take_while(|hash| self.holds(hash)).count() * self.block_tokens
    }

    /// Drops every block that no running request uses. Gives how many.
    pub fn evict_all(&mut self, now: Stamp) -> usize {
        std::iter::from_fn(|| self.evict_one(None, now).then_some(())).count()
    }

    fn evict_one(&mut self, request: Option<RequestId>, now: Stamp) -> bool {
        let pool = &self.pool;
        let Some(page) = self.index.evict(now, request, |page| pool.holders(page) == 1) else { return false };
        self.pool.release(page);
        self.evictions += 1;
        true
    }

    #[cfg(test)]
    pub(crate) fn corrupt_generation(&mut self, page: PageRef) {
        self.pool.bump_generation(page);
    }
}

#[cfg(test)]
mod tests;
