//! Which of the messages a sparse prefill kept: the prompt's runs of tokens, matched with what was said.
//!
//! Events tell the tokens of each message, not where within it a line begins; lines are taken to have equal shares of them, which is an
//! approximation and is called one.

use std::collections::HashMap;

use super::Part;
use crate::event::{RequestId, Scored, Segment};
use crate::ledger::RequestFacts;
use crate::tui::panes::request::{Kept, kept_of};

/// What became of messages in the prompt of one request.
pub(super) struct KeptTexts<'a> {
    scored: &'a Scored,
    /// The tokens of each text, absolute.
    tokens: HashMap<(RequestId, Part), (u64, u64)>,
}

impl<'a> KeptTexts<'a> {
    /// Of the texts of `history` in the prompt of `request`, the last of them that counts. `replies` says whether the model's own replies became
    /// history. `None` where nothing was scored.
    pub(super) fn of(
        request: &'a RequestFacts,
        history: &[&RequestFacts],
        replies: bool,
    ) -> Option<KeptTexts<'a>> {
        let scored = request.scored.as_ref()?;
        let mut end = 0u64;
        let runs: Vec<(Segment, u64, u64)> = request
            .segments
            .iter()
            .map(|run| {
                let start = end;
                end = end.saturating_add(run.tokens);
                (run.segment, start, end)
            })
            .filter(|run| run.0 != Segment::Glue)
            .collect();
        // From the end back: what was said last stands last, whatever became of the beginning.
        let mut left = &runs[..];
        let mut tokens = HashMap::new();
        let up_to = history.iter().position(|earlier| earlier.id == request.id)?;
        for earlier in history[..=up_to].iter().rev().filter(|earlier| {
            // A request beside the line of history is in no other prompt.
            !earlier.is_side() || earlier.id == request.id
        }) {
            let reply = (replies && earlier.id != request.id && !earlier.text.is_empty())
                .then_some((Part::Reply, Segment::Assistant));
            let items = earlier.items.iter().enumerate().map(|(at, item)| (Part::Item(at), item.segment));
            for (part, segment) in items.chain(reply).rev() {
                let Some(at) = left.iter().rposition(|run| run.0 == segment) else { continue };
                tokens.insert((earlier.id, part), (left[at].1, left[at].2));
                left = &left[..at];
            }
        }
        Some(KeptTexts { scored, tokens })
    }

    /// What became of line `line` of `lines` of a text; `None` where the text is not in the prompt.
    pub(super) fn line(&self, text: (RequestId, Part), line: usize, lines: usize) -> Option<Kept> {
        let (from, to) = *self.tokens.get(&text)?;
        let at = |line: usize| {
            let offset = u128::from(to - from) * line as u128 / lines.max(1) as u128;
            from.saturating_add(u64::try_from(offset).unwrap_or(u64::MAX))
        };
        let start = at(line);
        Some(kept_of(self.scored, start, at(line + 1).max(start.saturating_add(1))))
    }

    /// Percent of a text's tokens that are kept; `None` where it is not in the prompt, or none of it in the window.
    pub(super) fn percent(&self, text: (RequestId, Part)) -> Option<u64> {
        let (from, to) = *self.tokens.get(&text)?;
        let tokens = to.checked_sub(from).filter(|tokens| *tokens > 0)?;
        if to <= self.scored.origin {
            return None;
        }
        let kept = self.scored.kept_between(from, to);
        u64::try_from(u128::from(kept) * 100 / u128::from(tokens)).ok()
    }
}
