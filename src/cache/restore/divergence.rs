//! Where a prompt departs from its predecessor, in tokens and in text.

use super::{Decode, Prompt};
use crate::cache::served::Predecessor;
use crate::event::{Divergence, TokenText, segment_at};

/// Tokens of text shown on each side of a divergence.
const CONTEXT: usize = 8;

/// Tokens told one by one before the divergence, and from it on.
const SHARED_TOKENS: usize = 16;
const DIFFERING_TOKENS: usize = 24;

/// The place where `prompt` departs from its predecessor. `None` where it does not before the predecessor's reply: departing there is what
/// recorded replies do, and it costs nothing that was stored.
pub(super) fn divergence(
    predecessor: &Predecessor,
    prompt: Prompt<'_>,
    common: usize,
    text: &dyn Decode,
) -> Option<Divergence> {
    if common >= predecessor.prompt_tokens {
        return None;
    }
    let around = |tokens: &[u32]| {
        let end = tokens.len().min(common + CONTEXT);
        text.decode(&tokens[common.saturating_sub(CONTEXT / 2).min(end)..end])
    };
    let one_by_one = |tokens: &[u32], from: usize, count: usize| -> Vec<TokenText> {
        let end = tokens.len().min(from + count);
        let tokens = &tokens[from.min(end)..end];
        tokens.iter().map(|id| TokenText { id: *id, text: text.decode(&[*id]) }).collect()
    };
    let shared = common.min(SHARED_TOKENS);
    Some(Divergence {
        position: common as u64,
        segment: segment_at(prompt.segments, common as u64),
        before: around(&predecessor.tokens),
        after: around(prompt.tokens),
        against: Some(predecessor.request),
        shared_tokens: one_by_one(prompt.tokens, common - shared, shared),
        tokens_before: one_by_one(&predecessor.tokens, common, DIFFERING_TOKENS),
        tokens_after: one_by_one(prompt.tokens, common, DIFFERING_TOKENS),
    })
}

/// Whether the two go on with the same text from token `common` on, in other tokens, as far as the shorter one goes.
pub(super) fn is_same_text(
    predecessor: &Predecessor,
    prompt: Prompt<'_>,
    common: usize,
    text: &dyn Decode,
) -> bool {
    // A few tokens earlier, so that a character that is spread over tokens is whole on both sides.
    let from = common.saturating_sub(CONTEXT);
    let old = text.decode(&predecessor.tokens[from..predecessor.prompt_tokens]);
    let new = text.decode(&prompt.tokens[from..]);
    old.starts_with(&new) || new.starts_with(&old)
}
