//! The contract of a prediction head, kept once for every executor: how many places of each page have the head's entry, and the target's hidden
//! state at its last place, from which the entry behind it is made.

use super::{DeviceError, HeadSpan, PageId, Span};

/// Notes on pages.
#[derive(Debug)]
pub(crate) struct HeadPages {
    page_tokens: usize,
    /// Numbers of a hidden state.
    hidden: usize,
    pages: Vec<Note>,
}

#[derive(Debug, Clone, Default)]
struct Note {
    /// Places, from the page's first on, that have their entry. The sequence's first place counts though nothing is there to be made.
    entries: usize,
    /// The hidden state at the last place.
    end: Option<Vec<f32>>,
}

impl HeadPages {
    pub(crate) fn new(page_tokens: usize, hidden: usize) -> HeadPages {
        HeadPages { page_tokens, hidden, pages: Vec::new() }
    }

    pub(crate) fn reserve(&mut self, pages: usize) {
        self.pages.resize_with(pages.max(self.pages.len()), Note::default);
    }

    /// Bytes that [`HeadPages::export`] gives of a page.
    pub(crate) fn bytes(&self) -> usize {
        2 * size_of::<u32>() + self.hidden * size_of::<f32>()
    }

    /// A forward is about to write. Where a span keeps no hidden states, nobody makes entries of its tokens, so those that are there belong to others.
    pub(crate) fn forward(&mut self, spans: &[Span<'_>]) {
        for span in spans {
            let end = span.start + span.tokens.len();
            for block in span.start / self.page_tokens..end.div_ceil(self.page_tokens) {
                let note = &mut self.pages[span.pages[block].0 as usize];
                note.end = None;
                if !span.hidden {
                    note.entries = note.entries.min(span.start.saturating_sub(block * self.page_tokens));
                }
            }
        }
    }

    /// Keeps the hidden states at the ends of pages, of those that a forward gave, `[rows, hidden]`.
    pub(crate) fn keep_ends(&mut self, spans: &[Span<'_>], hidden: &[f32]) {
        let mut rows = hidden.chunks_exact(self.hidden);
        for span in spans.iter().filter(|span| span.hidden) {
            for (place, row) in (span.start..).zip(rows.by_ref().take(span.tokens.len())) {
                if (place + 1).is_multiple_of(self.page_tokens) {
                    self.pages[span.pages[place / self.page_tokens].0 as usize].end = Some(row.to_vec());
                }
            }
        }
    }

    /// The hidden state at a page's last place.
    pub(crate) fn end(&self, page: PageId) -> Option<&[f32]> {
        self.pages.get(page.0 as usize)?.end.as_deref()
    }

    /// Places of a page that have their entry.
    pub(crate) fn entries(&self, page: PageId) -> usize {
        self.pages.get(page.0 as usize).map_or(0, |note| note.entries)
    }

    /// Checks a span of the head: its numbers, and that every place before it has its entry. Its pages are there, which was checked before.
    pub(crate) fn check(&self, span: &HeadSpan<'_>) -> Result<(), DeviceError> {
        let HeadSpan { pages, start, tokens, hidden, .. } = *span;
        let broken = if start == 0 {
            "the head has no entry at place 0".to_owned()
        } else if hidden.len() != tokens.len() * self.hidden {
            format!("{} numbers of {} hidden states of {}", hidden.len(), tokens.len(), self.hidden)
        } else {
            let before = pages.iter().take(start.div_ceil(self.page_tokens)).enumerate();
            let missing = before.filter_map(|(block, page)| {
                let first = block * self.page_tokens;
                // The sequence's first place has none.
                let held = self.entries(*page).max(usize::from(block == 0));
                (held < (start - first).min(self.page_tokens)).then_some(first + held)
            });
            let missing = missing.min();
            match missing {
                None => return Ok(()),
                Some(place) => format!("the head reads place {start}, and place {place} has no entry"),
            }
        };
        Err(DeviceError::Contract(broken))
    }

    /// The head has written a span, or was about to where it `failed`.
    pub(crate) fn wrote(&mut self, span: &HeadSpan<'_>, failed: bool) {
        let end = span.start + span.tokens.len();
        let entries = match (failed, span.start) {
            (false, _) => end,
            // What lies at place 0 is written with the first entry.
            (true, 1) => 0,
            (true, start) => start,
        };
        for block in span.start / self.page_tokens..end.div_ceil(self.page_tokens) {
            let held = entries.saturating_sub(block * self.page_tokens).min(self.page_tokens);
            self.pages[span.pages[block].0 as usize].entries = held;
        }
    }

    /// All state is lost.
    pub(crate) fn lose(&mut self) {
        self.pages.clear();
    }

    /// Notes on a page, as bytes: places with an entry, whether the end is there, and the end.
    pub(crate) fn export(&self, page: PageId) -> Vec<u8> {
        let none = Note::default();
        let Note { entries, end } = self.pages.get(page.0 as usize).unwrap_or(&none);
        let mut bytes = Vec::with_capacity(self.bytes());
        bytes.extend((*entries as u32).to_le_bytes());
        bytes.extend(u32::from(end.is_some()).to_le_bytes());
        match end {
            Some(end) => bytes.extend(end.iter().flat_map(|x| x.to_le_bytes())),
            None => bytes.resize(self.bytes(), 0),
        }
        bytes
    }

    /// Takes such bytes, as many as there are of a page.
    pub(crate) fn import(&mut self, page: PageId, bytes: &[u8]) -> Result<(), DeviceError> {
        let (words, _) = bytes.as_chunks::<4>();
        let [entries, ended, end @ ..] = words else {
            return Err(DeviceError::exported_length("the notes on a page", self.bytes(), bytes.len()));
        };
        let (entries, ended) = (u32::from_le_bytes(*entries) as usize, u32::from_le_bytes(*ended));
        if entries > self.page_tokens || ended > 1 {
            let problem = format!("a page of {} tokens with {entries} entries of the head", self.page_tokens);
            return Err(DeviceError::Contract(problem));
        }
        let end = (ended == 1).then(|| end.iter().map(|word| f32::from_le_bytes(*word)).collect());
        self.pages[page.0 as usize] = Note { entries, end };
        Ok(())
    }
}
