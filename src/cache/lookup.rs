//! Lookup: what the tiers hold of a prompt's chain, and where the prompt is to start.
//!
//! A walk from the first block on finds each block in RAM or else on disk, and ends at the first that neither holds. Then one of the
//! found blocks' ends is chosen to start from: the deepest for a model of attention layers only, else the deepest with real recurrent
//! state (*walk-back*), or under the strict policy none at all where the last one found has a placeholder. What turns out not to be
//! readable is struck out, and the choice made again.

use super::Cache;
use super::chain::BlockHash;
use super::index::{Dropped, Endpoint, Provenance};
use super::pool::{PageRef, SlotRef};
use super::tier::{self, Part, Place};
use crate::config::PlaceholderPolicy;
use crate::event::{Cause, EndState};

/// Where a block's attention state is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    /// In a page.
    Ram(PageRef),
    /// In a file.
    Ssd,
}

/// What a block has of the recurrent layers' state at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// A snapshot in a slot.
    Ram(SlotRef),
    /// A snapshot in a file.
    Ssd,
    /// Nothing: nobody captured it.
    Placeholder,
    /// Nothing any more.
    Dropped(Dropped),
    /// A snapshot in a file that could not be read just now.
    Struck,
}

impl End {
    /// Whether it can be restored from.
    pub fn is_real(self) -> bool {
        matches!(self, End::Ram(_) | End::Ssd)
    }

    /// The same for those outside.
    pub fn state(self) -> EndState {
        match self {
            End::Ram(_) => EndState::Ram,
            End::Ssd => EndState::Ssd,
            End::Placeholder | End::Struck => EndState::Placeholder,
            End::Dropped(_) => EndState::Dropped,
        }
    }
}

/// A block that some tier holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Where its attention state is.
    pub home: Home,
    /// Its end's recurrent state.
    pub end: End,
    /// Who wrote it.
    pub provenance: Provenance,
}

impl Candidate {
    /// Its page, where RAM has it.
    pub fn page(&self) -> Option<PageRef> {
        match self.home {
            Home::Ram(page) => Some(page),
            Home::Ssd => None,
        }
    }
}

#[cfg(test)]
impl Candidate {
    /// The slot of its snapshot, where RAM has that.
    pub(crate) fn slot(&self) -> Option<SlotRef> {
        match self.end {
            End::Ram(slot) => Some(slot),
            _ => None,
        }
    }
}

/// Why something that is held could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Struck {
    /// [`Cause::Damaged`], [`Cause::Unread`] or [`Cause::IdentityChanged`].
    pub cause: Cause,
    /// In words.
    pub what: String,
    /// Who wrote it.
    pub provenance: Provenance,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Found {
    /// Every whole block of the prompt.
    pub places: Vec<Place>,
    /// The leading ones that are held.
    pub blocks: Vec<Candidate>,
    /// How many were found at first, with those struck out since.
    pub at_first: usize,
    /// The block behind those, where it was held and could not be read.
    pub struck_block: Option<Struck>,
    /// The deepest snapshot that could not be read, by its block.
    pub struck_end: Option<(usize, Struck)>,
}

/// Where a prompt starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// Found blocks from which a prompt can start at all: those before its last token.
    pub reachable: usize,
    /// Blocks to restore.
    pub blocks: usize,
    /// Whether the match was refused for the placeholder at its end.
    pub refused: bool,
    /// Blocks behind those that could be restored and are withheld, because they are not adopted yet.
    pub withheld: usize,
}

impl Cache {
    /// Looks `tokens` up from the first block on. Nothing is marked as used, held or read.
    pub fn look_up(&self, tokens: &[u32]) -> Found {
        let places = tier::places(self.root, tokens, self.block_tokens);
        let blocks = tokens.chunks_exact(self.block_tokens);
        let found = places.iter().zip(blocks).map_while(|(place, block)| self.candidate(place, block));
        let blocks: Vec<Candidate> = found.collect();
        Found { places, at_first: blocks.len(), blocks, ..Found::default() }
    }

    fn candidate(&self, place: &Place, block: &[u32]) -> Option<Candidate> {
        // Equal hashes are not taken for equal tokens: a restored block must be the prompt's own.
        let Some(entry) = self.index.get(&place.hash).filter(|entry| entry.tokens[..] == *block) else {
            let provenance = self.on_disk(Part::Block, &place.hash)?;
            let end = self.end_on_disk(&place.hash).unwrap_or(End::Placeholder);
            return Some(Candidate { home: Home::Ssd, end, provenance });
        };
        let end = match entry.endpoint {
            Endpoint::Snapshot(slot) => End::Ram(slot),
            Endpoint::Placeholder => self.end_on_disk(&place.hash).unwrap_or(End::Placeholder),
            Endpoint::Dropped(dropped) => match self.end_on_disk(&place.hash) {
                Some(End::Ssd) => End::Ssd,
                _ => End::Dropped(dropped),
            },
        };
        Some(Candidate { home: Home::Ram(entry.page), end, provenance: entry.provenance })
    }

    /// What the disk has of the recurrent state at a block's end, or had; `None` where it never did.
    fn end_on_disk(&self, hash: &BlockHash) -> Option<End> {
        match self.tier.as_ref()?.lookup(Part::Snapshot, hash) {
            tier::Lookup::Held(_) => Some(End::Ssd),
            tier::Lookup::Evicted(evicted) => {
                Some(End::Dropped(Dropped { at: evicted.at, for_request: evicted.for_request }))
            }
            tier::Lookup::Absent => None,
        }
    }

    /// Who wrote what the disk holds of a block.
    pub(super) fn on_disk(&self, part: Part, hash: &BlockHash) -> Option<Provenance> {
        let tier::Lookup::Held(origin) = self.tier.as_ref()?.lookup(part, hash) else { return None };
        Some(self.provenance_of(hash, origin))
    }

    /// Who wrote a file, in this run's terms.
    pub fn provenance_of(&self, hash: &BlockHash, origin: &tier::Origin) -> Provenance {
        let earlier_run = origin.run != self.run;
        let evicted = self.evicted(hash).filter(|_| !earlier_run);
        Provenance {
            written_by: origin.request,
            earlier_run,
            written_at: evicted.and_then(|evicted| evicted.provenance.written_at),
            route: origin.route,
        }
    }
}

impl Found {
    /// Names of the blocks found.
    pub fn chain(&self) -> Vec<BlockHash> {
        self.places.iter().take(self.blocks.len()).map(|place| place.hash).collect()
    }

    /// Chooses where the prompt starts. `static_tokens` is the length of its system prompt and tools.
    pub fn choose(
        &self,
        cache: &Cache,
        prompt_tokens: usize,
        static_tokens: usize,
        policy: PlaceholderPolicy,
    ) -> Choice {
        // The prompt's last token is always computed, because its logits start the reply.
        let reachable = self.blocks.len().min(prompt_tokens.saturating_sub(1) / cache.block_tokens);
        let within = |blocks: usize| {
            let ends = &self.blocks[..blocks];
            ends.iter().rposition(|candidate| candidate.end.is_real()).map_or(0, |block| block + 1)
        };
        let (blocks, refused) = match policy {
            _ if !cache.is_recurrent() => (reachable, false),
            PlaceholderPolicy::WalkBack => (within(reachable), false),
            PlaceholderPolicy::Strict => match within(reachable) {
                blocks if blocks == reachable => (blocks, false),
                _ => (within(reachable.min(static_tokens / cache.block_tokens)), true),
            },
        };
        Choice { reachable, blocks, refused, withheld: 0 }
    }

    /// The same with no more than the first `shown` blocks; `None` withholds nothing.
    pub fn withhold(&self, cache: &Cache, choice: Choice, shown: Option<usize>) -> Choice {
        let Some(shown) = shown.filter(|shown| *shown < choice.blocks) else { return choice };
        let real = |candidate: &Candidate| !cache.is_recurrent() || candidate.end.is_real();
        let blocks = self.blocks[..shown].iter().rposition(real).map_or(0, |block| block + 1);
        Choice { blocks, withheld: choice.blocks - blocks, ..choice }
    }

    /// Takes note that a block could not be read: the chain ends before it.
    pub fn strike_block(&mut self, block: usize, cause: Cause, what: String) {
        let Some(Candidate { provenance, .. }) = self.blocks.get(block).copied() else { return };
        self.blocks.truncate(block);
        self.struck_block = Some(Struck { cause, what, provenance });
    }

    /// Takes note that a snapshot could not be read.
    pub fn strike_end(&mut self, block: usize, cause: Cause, what: String) {
        let Some(candidate) = self.blocks.get_mut(block) else { return };
        candidate.end = End::Struck;
        let struck = Struck { cause, what, provenance: candidate.provenance };
        if self.struck_end.as_ref().is_none_or(|(deepest, _)| *deepest < block) {
            self.struck_end = Some((block, struck));
        }
    }
}
