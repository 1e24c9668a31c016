//! Restore, told: from a lookup and a choice to the counts, the named losses and the place where a prompt departs from an earlier one.
//!
//! The waterfall runs prompt → shared with what was served before → held → matched → with state → checkpoint. Each step down is a
//! [`Loss`]; together they account for every token of the uncached suffix.

mod divergence;
mod losses;

use super::lookup::{Choice, Found, Home};
use super::served::{Predecessor, common_prefix};
use super::tier::{self, Part};
use super::{Cache, chain};
use crate::event::{
    BlockFact, Cause, Closest, HistoryChange, Loss, Nanos, Residency, Restore, Segment, SegmentRun,
};
use losses::Known;

/// A prompt about to be restored.
#[derive(Debug, Clone, Copy)]
pub struct Prompt<'a> {
    /// Its tokens; at least one.
    pub tokens: &'a [u32],
    /// Their segments.
    pub segments: &'a [SegmentRun],
    /// How its history relates to its predecessor's.
    pub change: HistoryChange,
    /// Whether it is the first request of a fork.
    pub branches: bool,
    /// Whether the cache may be read.
    pub use_cache: bool,
    /// Leading blocks that it may start from, where recovery has published more than is adopted yet; `None` withholds nothing.
    pub shown: Option<usize>,
}

impl Prompt<'_> {
    /// Tokens of the static prefix: system prompt and tools, and what the template puts around them.
    pub fn static_tokens(&self) -> usize {
        let is_static =
            |run: &&SegmentRun| matches!(run.segment, Segment::System | Segment::ToolSchema | Segment::Glue);
        let tokens: u64 = self.segments.iter().take_while(is_static).map(|run| run.tokens).sum();
        usize::try_from(tokens).unwrap_or(usize::MAX).min(self.tokens.len())
    }
}

/// Words for the text around a divergence.
pub trait Decode {
    /// The text of some tokens.
    fn decode(&self, tokens: &[u32]) -> String;
}

/// What a prompt is compared with.
#[derive(Debug, Clone, Copy, Default)]
pub struct Before<'a> {
    /// The request before it in its lane's history.
    pub predecessor: Option<&'a Predecessor>,
    /// The earlier request that shares most with it, and how many tokens.
    pub closest: Option<(&'a Predecessor, usize)>,
}

/// The facts of a restore, with [`Restore::took`] still zero and nothing said of what was read from the disk.
pub fn facts(
    cache: &Cache,
    prompt: Prompt<'_>,
    found: &Found,
    choice: Choice,
    before: Before<'_>,
    text: &dyn Decode,
) -> Restore {
    let block = cache.block_tokens();
    let common = before.predecessor.map(|p| common_prefix(&p.tokens, prompt.tokens));
    let foreign = foreign_match(cache, prompt, found);
    let matched = found.blocks.len() * block;
    let known = Known {
        common: common.unwrap_or(0),
        known: common
            .unwrap_or(0)
            .max(before.closest.map_or(0, |(_, common)| common))
            .max(foreign.as_ref().map_or(0, |foreign| foreign.tokens))
            .max(found.at_first * block),
        foreign,
    };
    let losses = losses::losses(cache, prompt, found, choice, before, &known, text);
    let blocks = block_facts(cache, found, choice, prompt.use_cache);
    let held = blocks.iter().filter(|fact| fact.residency.is_held()).count() * block;
    let with_state = if cache.is_recurrent() { deepest_state(found, choice) } else { found.blocks.len() };
    Restore {
        common_prefix_tokens: common.map(|c| c as u64),
        closest: before
            .closest
            .map(|(closest, common)| Closest { request: closest.request, common_tokens: common as u64 }),
        held_tokens: held as u64,
        matched_tokens: matched as u64,
        matched_with_state_tokens: (with_state * block) as u64,
        checkpoint_tokens: (choice.blocks * block) as u64,
        cause: principal_cause(&losses),
        losses,
        divergence: before
            .predecessor
            .and_then(|p| divergence::divergence(p, prompt, common.unwrap_or(0), text)),
        blocks,
        ssd: None,
        took: Nanos(0),
    }
}

/// Blocks up to the deepest reachable one with real recurrent state.
fn deepest_state(found: &Found, choice: Choice) -> usize {
    let ends = &found.blocks[..choice.reachable.min(found.blocks.len())];
    ends.iter().rposition(|candidate| candidate.end.is_real()).map_or(0, |block| block + 1)
}

/// Tokens of the prompt that another identity left on disk, where that is more than was found.
fn foreign_match(cache: &Cache, prompt: Prompt<'_>, found: &Found) -> Option<tier::ForeignMatch> {
    let tier = cache.tier().filter(|_| prompt.use_cache)?;
    let matched = found.blocks.len() * cache.block_tokens();
    tier.foreign_match(prompt.tokens).filter(|foreign| foreign.tokens > matched)
}

/// The loss a reader should look at: the largest that is not the ordinary cost of a turn; else the block floor; else
/// what there is.
fn principal_cause(losses: &[Loss]) -> Cause {
    losses
        .iter()
        .filter(|loss| loss.cause.is_loss())
        .max_by_key(|loss| loss.tokens)
        .or_else(|| losses.iter().find(|loss| loss.cause == Cause::BlockFloor))
        .or_else(|| losses.iter().find(|loss| loss.cause == Cause::LastTokenComputed))
        .or_else(|| losses.first())
        .map_or(Cause::Appended, |loss| loss.cause)
}

fn block_facts(cache: &Cache, found: &Found, choice: Choice, use_cache: bool) -> Vec<BlockFact> {
    let describe = |(index, place): (usize, &tier::Place)| {
        let candidate = found.blocks.get(index);
        let struck = found.struck_block.as_ref().filter(|_| index == found.blocks.len());
        let evicted = cache.evicted(&place.hash);
        // Behind a hole blocks may be held all the same.
        let in_ram = cache.provenance(&place.hash).filter(|_| use_cache);
        let on_disk = cache.on_disk(Part::Block, &place.hash).filter(|_| use_cache);
        let residency = match candidate.map(|candidate| candidate.home) {
            Some(Home::Ram(_)) if index < choice.blocks => Residency::Ram,
            Some(Home::Ssd) if index < choice.blocks => Residency::Ssd,
            Some(Home::Ram(_)) => Residency::Held,
            Some(Home::Ssd) => Residency::HeldSsd,
            None if struck.is_some_and(|struck| struck.cause == Cause::Damaged) => Residency::Damaged,
            None if in_ram.is_some() => Residency::Held,
            None if on_disk.is_some() => Residency::HeldSsd,
            None if evicted.is_some() => Residency::Evicted,
            None => Residency::Missing,
        };
        let provenance = candidate
            .map(|candidate| candidate.provenance)
            .or(struck.map(|struck| struck.provenance))
            .or(in_ram)
            .or(on_disk)
            .or(evicted.map(|evicted| evicted.provenance));
        BlockFact {
            index: index as u32,
            residency,
            recurrent: candidate.filter(|_| cache.is_recurrent()).map(|candidate| candidate.end.state()),
            written_by: provenance.map(|p| p.written_by),
            earlier_run: provenance.is_some_and(|p| p.earlier_run),
            written_at: provenance.and_then(|p| p.written_at),
            route: provenance.map(|p| p.route),
        }
    };
    found.places.iter().enumerate().map(describe).collect()
}

/// The name of block `index` of `tokens` in `cache`, where they have so many blocks.
fn name_of(cache: &Cache, tokens: &[u32], index: usize) -> Option<chain::BlockHash> {
    let end = index.checked_add(1)?.checked_mul(cache.block_tokens())?;
    cache.hashes(tokens.get(..end)?).pop()
}
