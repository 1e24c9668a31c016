//! Restore: from a lookup to the checkpoint, and from the checkpoint to named losses.
//!
//! The waterfall runs prompt → common prefix with the predecessor → held by the cache → restorable → checkpoint. Each
//! step down is a [`Loss`]; together they account for every token of the uncached suffix.

use std::ops::Range;

use super::chain::BlockHash;
use super::index::{Endpoint, Eviction};
use super::pool::SlotRef;
use super::{Cache, Found};
use crate::event::{
    BlockFact, Cause, Divergence, EndState, HistoryChange, Loss, Nanos, RequestId, Residency, Restore,
    Segment, SegmentRun, segment_at,
};

/// The request a new prompt is compared with: the one before it in its lane's history.
#[derive(Debug, Clone, PartialEq)]
pub struct Predecessor {
    /// Its number.
    pub request: RequestId,
    /// Its prompt and the reply tokens that were computed after it.
    pub tokens: Vec<u32>,
    /// Of those, the prompt.
    pub prompt_tokens: usize,
}

/// A prompt about to be restored.
#[derive(Debug, Clone, Copy)]
pub struct Prompt<'a> {
    /// Its tokens; at least one.
    pub tokens: &'a [u32],
    /// Their segments.
    pub segments: &'a [SegmentRun],
    /// How its history relates to its predecessor's.
    pub change: HistoryChange,
    /// Whether the cache may be read.
    pub use_cache: bool,
}

/// Words for the text around a divergence.
pub trait Decode {
    /// The text of some tokens.
    fn decode(&self, tokens: &[u32]) -> String;
}

/// Tokens shown on each side of a divergence.
const DIVERGENCE_CONTEXT: usize = 8;

/// A restore that has been decided on: what to attach, and what to tell.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Blocks of `found` to attach; the checkpoint in blocks.
    pub blocks: usize,
    /// What the lookup found.
    pub found: Found,
    /// The recurrent state at the checkpoint, and the name of the block whose end it is. `None` for a checkpoint of 0, and
    /// where the model has no recurrent layers.
    pub snapshot: Option<(BlockHash, SlotRef)>,
    /// The facts, with [`Restore::took`] still zero.
    pub facts: Restore,
}

/// Looks the prompt up and decides what to restore. Nothing is attached yet.
pub fn plan(
    cache: &mut Cache,
    prompt: Prompt<'_>,
    predecessor: Option<&Predecessor>,
    text: &dyn Decode,
) -> Plan {
    let found = if prompt.use_cache { cache.find(prompt.tokens) } else { Found::default() };
    let block = cache.block_tokens();
    let hashes = cache.hashes(prompt.tokens);
    // The prompt's last token is always computed, because its logits start the reply.
    let reachable = found.pages.len().min((prompt.tokens.len() - 1) / block);
    let snapshot = walk_back(&found.endpoints[..reachable]);
    let (blocks, with_state) = match (cache.is_recurrent(), snapshot) {
        (false, _) => (reachable, found.pages.len()),
        (true, Some((blocks, _))) => (blocks, blocks),
        (true, None) => (0, 0),
    };

    let common = predecessor.map(|p| common_prefix(&p.tokens, prompt.tokens));
    let counts = Counts {
        common: common.unwrap_or(0),
        matched: found.pages.len() * block,
        reachable: reachable * block,
        checkpoint: blocks * block,
    };
    let losses = losses(cache, &hashes, prompt, predecessor, counts, &found);
    let facts = Restore {
        common_prefix_tokens: common.map(|c| c as u64),
        closest: None,
        held_tokens: counts.matched as u64,
        matched_tokens: counts.matched as u64,
        matched_with_state_tokens: (with_state * block) as u64,
        checkpoint_tokens: counts.checkpoint as u64,
        cause: principal_cause(&losses),
        losses,
        divergence: predecessor.and_then(|p| divergence(p, prompt, counts.common, text)),
        blocks: block_facts(cache, &hashes, &found, blocks),
        ssd: None,
        took: Nanos(0),
    };
    let snapshot = snapshot.map(|(blocks, slot)| (hashes[blocks - 1], slot));
    Plan { blocks, found, snapshot, facts }
}

/// The deepest block with real recurrent state: how many blocks end there, and the state.
fn walk_back(endpoints: &[Endpoint]) -> Option<(usize, SlotRef)> {
    endpoints.iter().enumerate().rev().find_map(|(at, endpoint)| Some((at + 1, endpoint.snapshot()?)))
}

/// Tokens at each level of the waterfall.
#[derive(Debug, Clone, Copy)]
struct Counts {
    common: usize,
    matched: usize,
    /// Of those matched, the whole blocks before the prompt's last token.
    reachable: usize,
    checkpoint: usize,
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn losses(
    cache: &Cache,
    hashes: &[BlockHash],
    prompt: Prompt<'_>,
    predecessor: Option<&Predecessor>,
    counts: Counts,
    found: &Found,
) -> Vec<Loss> {
    let total = prompt.tokens.len();
    if !prompt.use_cache {
        let detail = "neither read nor written by this request".to_owned();
        return vec![loss(Cause::CacheOff, total, detail)];
    }
    let known = counts.common.max(counts.matched);
    let mut losses = match predecessor {
        Some(predecessor) => changed_or_new(prompt, predecessor, counts.common, known),
        None if counts.matched == 0 => {
            vec![loss(Cause::Cold, total, "no request came before this one".to_owned())]
        }
        None => vec![loss(Cause::Appended, total - known, String::new())],
    };
    losses.extend(not_held(cache, hashes, predecessor, counts.matched, known));
    losses.push(loss(
        Cause::LastTokenComputed,
        counts.matched - counts.reachable,
        format!("the last of {} held blocks is computed again", found.pages.len()),
    ));
    let block = cache.block_tokens();
    let placeholders = counts.checkpoint / block..counts.reachable / block;
    let detail = if placeholders.is_empty() { String::new() } else { without_snapshot(found, placeholders) };
    losses.push(loss(Cause::NoSnapshot, counts.reachable - counts.checkpoint, detail));
    losses.retain(|loss| loss.tokens > 0);
    losses
}

/// Which block had the last snapshot, and what became of the deepest block's. `placeholders` is not empty.
fn without_snapshot(found: &Found, placeholders: Range<usize>) -> String {
    let deepest = placeholders.end - 1;
    let writer = found.provenance[deepest].written_by.0;
    let fate = match found.endpoints[deepest] {
        Endpoint::Dropped(dropped) => {
            let (at, request) = (dropped.at.seconds(), dropped.for_request.0);
            format!("lost its own at {at:.1} s to make room for request {request}")
        }
        _ => "was stored without".to_owned(),
    };
    let last = match placeholders.start.checked_sub(1) {
        Some(last) => format!("block {last} has the last one"),
        None => "no block has one".to_owned(),
    };
    format!("{last}; block {deepest}, written by request {writer}, {fate}")
}

fn loss(cause: Cause, tokens: usize, detail: String) -> Loss {
    Loss { cause, tokens: tokens as u64, detail, block: None }
}

/// The tokens beyond the common prefix: those that replace what the predecessor had, then those that are new.
fn changed_or_new(prompt: Prompt<'_>, predecessor: &Predecessor, common: usize, known: usize) -> Vec<Loss> {
    let total = prompt.tokens.len();
    let replaced = predecessor.prompt_tokens.min(total).saturating_sub(known);
    let new = total - known - replaced;
    let segment = segment_at(prompt.segments, common as u64);
    let place = segment.map_or("past its end".to_owned(), |s| format!("in {}", with_article(s)));
    let detail = format!("token {common}, {place}, differs from request {}'s", predecessor.request.0);
    vec![
        loss(Cause::Appended, new, String::new()),
        loss(change_cause(prompt.change, segment), replaced, detail),
    ]
}

fn with_article(segment: Segment) -> &'static str {
    match segment {
        Segment::System => "the system prompt",
        Segment::ToolSchema => "a tool schema",
        Segment::User => "a user message",
        Segment::Assistant => "an assistant message",
        Segment::ToolCall => "a tool call",
        Segment::ToolResult => "a tool result",
        Segment::Glue => "the template's own text",
        Segment::Injected => "an injected message",
    }
}

/// Why a prompt departs from its predecessor. What the session says it did comes first; where it says that it only
/// appended, the segment decides, and a message that changed all the same is drift.
fn change_cause(change: HistoryChange, segment: Option<Segment>) -> Cause {
    match (change, segment) {
        (HistoryChange::Compaction, _) => Cause::Compaction,
        (HistoryChange::SystemChange, _) => Cause::SystemChanged,
        (HistoryChange::ToolChange, _) => Cause::ToolSchemaChanged,
        (HistoryChange::Edit, _) => Cause::HistoryEdited,
        (_, Some(Segment::System)) => Cause::SystemChanged,
        (_, Some(Segment::ToolSchema)) => Cause::ToolSchemaChanged,
        _ => Cause::RetokenisationDrift,
    }
}

/// The part of the common prefix that the cache does not hold, by reason, outermost first.
fn not_held(
    cache: &Cache,
    hashes: &[BlockHash],
    predecessor: Option<&Predecessor>,
    matched: usize,
    known: usize,
) -> Vec<Loss> {
    let block = cache.block_tokens();
    let floor = known / block * block;
    let mut losses =
        vec![loss(Cause::BlockFloor, known - floor.max(matched), format!("blocks hold {block} tokens"))];
    let first_missing = matched / block;
    let (mut evicted, mut never_stored) = (0, 0);
    let mut eviction = None;
    for (index, hash) in hashes.iter().enumerate().take(floor / block).skip(first_missing) {
        match cache.evicted(hash) {
            Some(fact) => {
                eviction.get_or_insert((index, fact));
                evicted += block;
            }
            // A block behind an evicted one is out of reach whether or not it is still held.
            None if cache.holds(hash) => evicted += block,
            None => never_stored += block,
        }
    }
    if let Some((index, fact)) = eviction {
        let at = fact.at.seconds();
        let wherefore = match fact.why {
            Eviction::MadeRoom(request) => {
                format!("evicted at {at:.1} s to make room for request {}", request.0)
            }
            Eviction::ByHand => format!("cleared by hand at {at:.1} s"),
            Eviction::Stale => format!("dropped at {at:.1} s because somebody else's state stood there"),
        };
        let detail =
            format!("block {index}, written by request {}, {wherefore}", fact.provenance.written_by.0);
        losses.push(loss(Cause::Evicted, evicted, detail));
    }
    let by = predecessor.map_or(String::new(), |p| format!("request {} did not store them", p.request.0));
    losses.push(loss(Cause::NeverStored, never_stored, by));
    losses
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

fn divergence(
    predecessor: &Predecessor,
    prompt: Prompt<'_>,
    common: usize,
    text: &dyn Decode,
) -> Option<Divergence> {
    // Departing inside the predecessor's reply is what recorded replies do; it costs nothing that was stored.
    if common >= predecessor.prompt_tokens {
        return None;
    }
    let around = |tokens: &[u32]| {
        let end = tokens.len().min(common + DIVERGENCE_CONTEXT);
        text.decode(&tokens[common.saturating_sub(DIVERGENCE_CONTEXT / 2).min(end)..end])
    };
    Some(Divergence {
        position: common as u64,
        segment: segment_at(prompt.segments, common as u64),
        before: around(&predecessor.tokens),
        after: around(prompt.tokens),
        against: Some(predecessor.request),
        shared_tokens: Vec::new(),
        tokens_before: Vec::new(),
        tokens_after: Vec::new(),
    })
}

fn block_facts(cache: &Cache, hashes: &[BlockHash], found: &Found, restored: usize) -> Vec<BlockFact> {
    let describe = |(index, hash): (usize, &BlockHash)| {
        let held = found.provenance.get(index).copied();
        let evicted = cache.evicted(hash);
        let end = found.endpoints.get(index).map(|endpoint| match endpoint {
            Endpoint::Snapshot(_) => EndState::Ram,
            Endpoint::Placeholder => EndState::Placeholder,
            Endpoint::Dropped(_) => EndState::Dropped,
        });
        let residency = match held {
            Some(_) if index < restored => Residency::Ram,
            Some(_) => Residency::Held,
            None if evicted.is_some() => Residency::Evicted,
            None => Residency::Missing,
        };
        let provenance = held.or(evicted.map(|e| e.provenance));
        BlockFact {
            index: index as u32,
            residency,
            recurrent: end.filter(|_| cache.is_recurrent()),
            earlier_run: false,
            written_by: provenance.map(|p| p.written_by),
            written_at: provenance.map(|p| p.written_at),
            route: provenance.map(|p| p.route),
        }
    };
    hashes.iter().enumerate().map(describe).collect()
}
