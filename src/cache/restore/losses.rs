//! The losses of a restore: every token between the prompt's end and its checkpoint, by cause.

use super::divergence::is_same_text;
use super::{Before, Decode, Prompt, name_of};
use crate::cache::Cache;
use crate::cache::index::{Eviction, Provenance};
use crate::cache::lookup::{Choice, End, Found, Struck};
use crate::cache::served::Predecessor;
use crate::cache::tier::{ForeignMatch, Lookup, Part};
use crate::event::{Cause, Culprit, HistoryChange, Loss, RequestId, Segment, segment_at};

/// What is known of the prompt's tokens from before.
#[derive(Debug, Clone)]
pub(super) struct Known {
    /// Tokens shared with the predecessor.
    pub(super) common: usize,
    /// Tokens that somebody had before: the predecessor, another request, the tiers, or another identity.
    pub(super) known: usize,
    /// What another identity left, where it reaches farther than what was found.
    pub(super) foreign: Option<ForeignMatch>,
}

/// Every token of the suffix, outermost first.
pub(super) fn losses(
    cache: &Cache,
    prompt: Prompt<'_>,
    found: &Found,
    choice: Choice,
    before: Before<'_>,
    known: &Known,
    text: &dyn Decode,
) -> Vec<Loss> {
    let total = prompt.tokens.len();
    if !prompt.use_cache {
        return vec![loss(
            Cause::CacheOff,
            total,
            "neither read nor written by this request".to_owned(),
            None,
        )];
    }
    let mut losses = match before.predecessor {
        Some(predecessor) => changed_or_new(cache, prompt, predecessor, known, text),
        None if known.known == 0 => {
            vec![loss(Cause::Cold, total, "nothing that begins like it came before".to_owned(), None)]
        }
        None if prompt.branches => vec![loss(Cause::Branch, total - known.known, String::new(), None)],
        None => vec![loss(Cause::Appended, total - known.known, String::new(), None)],
    };
    losses.extend(not_held(cache, found, before, known));
    let block = cache.block_tokens();
    losses.push(loss(
        Cause::LastTokenComputed,
        (found.blocks.len() - choice.reachable) * block,
        format!("the last of {} held blocks is computed again", found.blocks.len()),
        None,
    ));
    losses.extend(not_adopted(found, choice, block));
    losses.extend(without_state(found, choice, block));
    losses.retain(|loss| loss.tokens > 0);
    losses
}

fn loss(cause: Cause, tokens: usize, detail: String, block: Option<Culprit>) -> Loss {
    Loss { cause, tokens: tokens as u64, detail, block }
}

fn culprit(index: usize, provenance: Option<Provenance>) -> Option<Culprit> {
    Some(Culprit {
        index: index as u32,
        written_by: provenance.map(|p| p.written_by),
        earlier_run: provenance.is_some_and(|p| p.earlier_run),
    })
}

/// Who wrote a block, in words.
fn writer(provenance: Provenance) -> String {
    let earlier = if provenance.earlier_run { " of an earlier run" } else { "" };
    format!("written by request {}{earlier}", provenance.written_by.0)
}

/// The tokens that nobody had: those that replace what the predecessor had, then those that are new.
fn changed_or_new(
    cache: &Cache,
    prompt: Prompt<'_>,
    predecessor: &Predecessor,
    known: &Known,
    text: &dyn Decode,
) -> Vec<Loss> {
    let &Known { common, known, .. } = known;
    let total = prompt.tokens.len();
    let replaced = predecessor.prompt_tokens.min(total).saturating_sub(known);
    let new = total - known - replaced;
    let new_cause = if prompt.branches { Cause::Branch } else { Cause::Appended };
    let mut losses = vec![loss(new_cause, new, String::new(), None)];
    if replaced > 0 {
        let segment = segment_at(prompt.segments, common as u64);
        let place = segment.map_or("past its end".to_owned(), |s| format!("in {}", with_article(s)));
        let index = common / cache.block_tokens();
        let old = name_of(cache, &predecessor.tokens, index).and_then(|name| cache.provenance(&name));
        let block = match old {
            Some(old) => format!("; block {index}, {}, holds the old text", writer(old)),
            None => String::new(),
        };
        let request = predecessor.request.0;
        let detail = format!("token {common}, {place}, differs from request {request}'s{block}");
        let cause = change_cause(prompt, predecessor, segment, common, text);
        losses.push(loss(cause, replaced, detail, culprit(index, old)));
    }
    losses
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
/// appended, the segment decides, and of a message that changed all the same its text.
fn change_cause(
    prompt: Prompt<'_>,
    predecessor: &Predecessor,
    segment: Option<Segment>,
    common: usize,
    text: &dyn Decode,
) -> Cause {
    match (prompt.change, segment) {
        (HistoryChange::Compaction, _) => Cause::Compaction,
        (HistoryChange::SystemChange, _) => Cause::SystemChanged,
        (HistoryChange::ToolChange, _) => Cause::ToolSchemaChanged,
        (HistoryChange::Edit, _) if prompt.branches => Cause::Branch,
        (HistoryChange::Edit, _) => Cause::HistoryEdited,
        (_, Some(Segment::System)) => Cause::SystemChanged,
        (_, Some(Segment::ToolSchema)) => Cause::ToolSchemaChanged,
        _ if is_same_text(predecessor, prompt, common, text) => Cause::RetokenisationDrift,
        _ => Cause::TemplateRerendered,
    }
}

/// Why a block that was known is not among those found.
enum Gone {
    Struck,
    Evicted(String, Option<Provenance>),
    Foreign,
    /// A sparse prefill computed it, with tokens missing before it or in it.
    Sparse(RequestId),
    NeverStored,
}

/// What was known and not found, by reason, outermost first. A block behind a hole is out of reach whether or not it is held: it counts with
/// the hole.
fn not_held(cache: &Cache, found: &Found, before: Before<'_>, known: &Known) -> Vec<Loss> {
    let block = cache.block_tokens();
    let matched = found.blocks.len() * block;
    let floor = known.known / block * block;
    let tail = known.known - floor.max(matched);
    let mut losses = vec![loss(Cause::BlockFloor, tail, format!("blocks hold {block} tokens"), None)];
    let mut spans: Vec<Loss> = Vec::new();
    for index in found.blocks.len()..floor / block {
        let (cause, detail, culprit) = match gone(cache, found, before, known, index) {
            Some(gone) => describe(found, before, known, index, gone),
            None => match spans.last_mut() {
                Some(last) => {
                    last.tokens += block as u64;
                    continue;
                }
                None => continue,
            },
        };
        match spans.iter_mut().find(|span| span.cause == cause) {
            Some(span) => span.tokens += block as u64,
            None => spans.push(loss(cause, block, detail, culprit)),
        }
    }
    losses.extend(spans);
    losses
}

/// Why a block was not found; `None` where it is held, out of reach behind another.
fn gone(cache: &Cache, found: &Found, before: Before<'_>, known: &Known, index: usize) -> Option<Gone> {
    let place = &found.places[index];
    if index == found.blocks.len() && found.struck_block.is_some() {
        return Some(Gone::Struck);
    }
    if index > found.blocks.len()
        && (cache.holds(&place.hash) || cache.on_disk(Part::Block, &place.hash).is_some())
    {
        return None;
    }
    let on_disk = cache.tier().map(|tier| tier.lookup(Part::Block, &place.hash));
    if let Some(Lookup::Evicted(evicted)) = on_disk {
        let from = cache.evicted(&place.hash).map(|fact| fact.provenance);
        let at = evicted.at.seconds();
        let wherefore = made_room(evicted.for_request, " on the SSD tier");
        return Some(Gone::Evicted(format!("evicted at {at:.1} s {wherefore}"), from));
    }
    if let Some(fact) = cache.evicted(&place.hash) {
        let at = fact.at.seconds();
        let wherefore = match fact.why {
            Eviction::MadeRoom(request) => format!("evicted at {at:.1} s {}", made_room(Some(request), "")),
            Eviction::ByHand => format!("cleared by hand at {at:.1} s"),
            Eviction::Stale => format!("dropped at {at:.1} s because somebody else's state stood there"),
        };
        return Some(Gone::Evicted(wherefore, Some(fact.provenance)));
    }
    let end = (index + 1) * cache.block_tokens();
    let foreign = known.foreign.as_ref().is_some_and(|foreign| end <= foreign.tokens);
    let holder = before.predecessor.filter(|_| end <= known.common);
    let holder = holder.or(before.closest.filter(|(_, common)| end <= *common).map(|(closest, _)| closest));
    let sparse = holder.filter(|holder| holder.dense_tokens < end).map(|holder| holder.request);
    Some(match sparse {
        _ if foreign => Gone::Foreign,
        Some(request) => Gone::Sparse(request),
        None => Gone::NeverStored,
    })
}

fn made_room(request: Option<RequestId>, place: &str) -> String {
    match request {
        Some(request) => format!("to make room for request {}{place}", request.0),
        None => format!("to make room{place}"),
    }
}

fn describe(
    found: &Found,
    before: Before<'_>,
    known: &Known,
    index: usize,
    gone: Gone,
) -> (Cause, String, Option<Culprit>) {
    match gone {
        Gone::Struck => {
            let Some(Struck { cause, what, provenance }) = &found.struck_block else {
                return (Cause::NeverStored, String::new(), None);
            };
            let detail = format!("block {index}, {}: {what}", writer(*provenance));
            (*cause, detail, culprit(index, Some(*provenance)))
        }
        Gone::Evicted(wherefore, from) => {
            let by = from.map_or(String::new(), |from| format!("{}, ", writer(from)));
            (Cause::Evicted, format!("block {index}, {by}{wherefore}"), culprit(index, from))
        }
        Gone::Foreign => {
            let differs = known.foreign.as_ref().map_or("", |foreign| foreign.differs.as_str());
            (Cause::IdentityChanged, format!("block {index} on: {differs}"), culprit(index, None))
        }
        Gone::Sparse(request) => {
            let detail = format!(
                "from block {index} on request {} computed them sparsely and left nothing",
                request.0
            );
            let culprit = Culprit { index: index as u32, written_by: Some(request), earlier_run: false };
            (Cause::SparseRefused, detail, Some(culprit))
        }
        Gone::NeverStored => {
            let earlier = before.predecessor.or(before.closest.map(|(closest, _)| closest));
            let by = earlier.map_or(String::new(), |p| format!("request {} did not store them", p.request.0));
            (Cause::NeverStored, by, culprit(index, None))
        }
    }
}

/// What recovery published and is not shown yet.
fn not_adopted(found: &Found, choice: Choice, block: usize) -> Option<Loss> {
    let first = found.blocks.get(choice.blocks).filter(|_| choice.withheld > 0)?;
    let detail = format!("{} recovered blocks, shown when `recovery.adoption` says", choice.withheld);
    Some(loss(
        Cause::NotAdopted,
        choice.withheld * block,
        detail,
        culprit(choice.blocks, Some(first.provenance)),
    ))
}

/// What was found and has no recurrent state to start from.
fn without_state(found: &Found, choice: Choice, block: usize) -> Option<Loss> {
    let restorable = choice.blocks + choice.withheld;
    let tokens = (choice.reachable - restorable) * block;
    let deepest = choice.reachable.checked_sub(1).filter(|_| tokens > 0)?;
    if let Some((at, Struck { cause, what, provenance })) = &found.struck_end
        && (restorable..choice.reachable).contains(at)
    {
        let detail = format!("the snapshot of block {at}, {}: {what}", writer(*provenance));
        return Some(loss(*cause, tokens, detail, culprit(*at, Some(*provenance))));
    }
    let candidate = &found.blocks[deepest];
    let fate = match candidate.end {
        End::Dropped(dropped) => {
            let at = dropped.at.seconds();
            match dropped.for_request {
                Some(request) => format!("lost its own at {at:.1} s to make room for request {}", request.0),
                None => format!("lost its own by hand at {at:.1} s"),
            }
        }
        _ => "was stored without".to_owned(),
    };
    let last = match restorable.checked_sub(1) {
        Some(last) => format!("block {last} has the last one"),
        None => "no block has one".to_owned(),
    };
    let responsible = culprit(deepest, Some(candidate.provenance));
    let by = writer(candidate.provenance);
    Some(if choice.refused {
        let start = match choice.blocks {
            0 => "from the start".to_owned(),
            blocks => format!("from the static prefix's block {}", blocks - 1),
        };
        let detail = format!(
            "block {deepest}, {by}, {fate}: all {} matched blocks are refused, and the request starts {start}",
            choice.reachable
        );
        loss(Cause::PlaceholderRefused, tokens, detail, responsible)
    } else {
        loss(Cause::NoSnapshot, tokens, format!("{last}; block {deepest}, {by}, {fate}"), responsible)
    })
}
