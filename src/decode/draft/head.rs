//! Drafting by the model's own multi-token-prediction head.
//!
//! The head keeps an entry for every place, made of the target's hidden state before it and of its token. Entries are part of a page's state: they are
//! written for every token that is computed, in time before its block is stored, and a prompt that is restored comes with them. What the head
//! drafts beyond its first token rests on entries made of its own hidden states; these lie behind [`HeadEntries::written`] and are written again
//! from the target's.

use std::borrow::Cow;

use super::{Draft, DraftFailed, Drafter};
use crate::decode::Sampler;
use crate::device::{DeviceError, Executor, HeadSpan, PageId};
use crate::event::Nanos;

/// Which places of a sequence have their entry, and the hidden states for those that have not.
#[derive(Debug, Clone)]
pub struct HeadEntries {
    /// Numbers of a hidden state.
    width: usize,
    /// Places from 1 up to here have their entry.
    written: usize,
    /// The place of the first hidden state kept.
    first: usize,
    /// `[places, width]`
    hidden: Vec<f32>,
}

/// What the head is to read, and by what.
pub struct Reading<'a> {
    /// The target.
    pub executor: &'a mut dyn Executor,
    /// The sequence's pages.
    pub pages: &'a [PageId],
    /// Tokens at the places from [`HeadEntries::written`] on.
    pub tokens: Cow<'a, [u32]>,
    /// Their positions, and those of the tokens to be drafted; `None` where these are the places themselves.
    pub positions: Option<Vec<u32>>,
}

impl HeadEntries {
    /// Those of a sequence of which nothing is computed; a hidden state has `width` numbers.
    pub fn none(width: usize) -> HeadEntries {
        HeadEntries { width, written: 1, first: 0, hidden: Vec::new() }
    }

    /// Those of a sequence whose first `places` places were restored, the last of them with this hidden state.
    pub fn restored(width: usize, places: usize, last: Vec<f32>) -> HeadEntries {
        HeadEntries { width, written: places, first: places.saturating_sub(1), hidden: last }
    }

    /// Places from 1 up to here have their entry.
    pub fn written(&self) -> usize {
        self.written
    }

    /// Takes note of the hidden states of a span that began at place `start`. What was known of places from there on is forgotten.
    pub fn record(&mut self, start: usize, hidden: &[f32]) {
        self.hidden.truncate(start.saturating_sub(self.first) * self.width);
        self.hidden.extend_from_slice(hidden);
    }

    /// The hidden state of a place, if it is kept.
    pub fn hidden(&self, place: usize) -> Option<&[f32]> {
        let first = place.checked_sub(self.first)? * self.width;
        self.hidden.get(first..first + self.width)
    }

    /// Forgets what is known of places from `computed` on.
    pub fn forget(&mut self, computed: usize) {
        self.hidden.truncate(computed.saturating_sub(self.first) * self.width);
        self.written = self.written.min(computed.max(1));
    }

    /// Has the entries written of the places whose tokens are given. Every one of them must have a hidden state before it.
    pub fn write(&mut self, reading: Reading<'_>) -> Result<Nanos, DeviceError> {
        let Reading { executor, pages, tokens, positions } = reading;
        if tokens.is_empty() {
            return Ok(Nanos(0));
        }
        let span = self.span(pages, &tokens, positions.as_deref(), false)?;
        let predicted = executor.predict(&[span])?;
        self.advance(tokens.len());
        Ok(predicted.compute)
    }

    fn span<'a>(
        &'a self,
        pages: &'a [PageId],
        tokens: &'a [u32],
        positions: Option<&'a [u32]>,
        predict: bool,
    ) -> Result<HeadSpan<'a>, DeviceError> {
        let from = (self.written - 1 - self.first) * self.width;
        let hidden = self.hidden.get(from..from + tokens.len() * self.width);
        let hidden = hidden.ok_or_else(|| {
            let (start, end) = (self.written, self.written + tokens.len());
            DeviceError::Contract(format!("no hidden states for the head's entries {start}..{end}"))
        })?;
        let positions = positions.map(|positions| &positions[..tokens.len()]);
        Ok(HeadSpan { pages, start: self.written, tokens, positions, hidden, predict })
    }

    /// Takes note that so many further entries are written; hidden states that no entry will need are dropped.
    fn advance(&mut self, tokens: usize) {
        self.written += tokens;
        let needless = self.written - 1 - self.first;
        self.hidden.drain(..(needless * self.width).min(self.hidden.len()));
        self.first += needless;
    }
}

/// Drafts by the head: one token from the target's last hidden state, each further one from the head's own.
pub struct HeadDrafter<'a> {
    /// The sequence's entries. Afterwards the entry of the last known token is among those written.
    pub entries: &'a mut HeadEntries,
    /// What it reads: the tokens up to the last known one.
    pub reading: Reading<'a>,
}

impl Drafter for HeadDrafter<'_> {
    fn draft(&mut self, known: &[u32], depth: usize, sampler: &mut Sampler) -> Result<Draft, DraftFailed> {
        let mut draft = Draft::default();
        if depth == 0 {
            return Ok(draft);
        }
        let Reading { executor, pages, tokens, positions } = &mut self.reading;
        let span = self.entries.span(pages, tokens, positions.as_deref(), true)?;
        let mut predicted = executor.predict(&[span])?;
        self.entries.advance(tokens.len());
        let mut seen = sampler.seen(known);
        loop {
            draft.compute.0 += predicted.compute.0;
            let token = draft.push_drawn(&predicted.logits, &seen, sampler);
            if draft.tokens.len() == depth {
                return Ok(draft);
            }
            seen.to_mut().push(token);
            let offset = tokens.len() + draft.tokens.len() - 1;
            let position = positions.as_ref().and_then(|positions| positions.get(offset..offset + 1));
            let span = HeadSpan {
                pages,
                start: self.entries.written + draft.tokens.len() - 1,
                tokens: &[token],
                positions: position,
                hidden: &predicted.hidden,
                predict: true,
            };
            predicted = executor.predict(&[span])?;
        }
    }
}
