//! One token sequence on an executor, without an engine: what `logits` and `bench` measure with.

use crate::device::{DeviceError, Executor, Forward, LogitRows, PageId, SlotId, Span, StateFlow};

/// The slot in which the sequence's recurrent state lives.
const LIVE: SlotId = SlotId(0);

/// A sequence that grows from position 0 in pages of its own.
pub(super) struct Sequence<'a> {
    executor: &'a mut dyn Executor,
    pages: Vec<PageId>,
    position: usize,
}

impl<'a> Sequence<'a> {
    /// An empty sequence with room for `capacity` tokens.
    pub(super) fn new(executor: &'a mut dyn Executor, capacity: usize) -> Result<Sequence<'a>, DeviceError> {
        let pages = capacity.div_ceil(executor.facts().page_tokens);
        let slots = usize::from(executor.facts().slot_bytes > 0);
        executor.reserve(pages, slots)?;
        let numbered = u32::try_from(pages)
            .map_err(|_| DeviceError::Contract(format!("{pages} pages are more than a page number holds")))?;
        Ok(Sequence { executor, pages: (0..numbered).map(PageId).collect(), position: 0 })
    }

    /// Starts over: the next token stands at position 0.
    pub(super) fn clear(&mut self) {
        self.position = 0;
    }

    /// Computes `tokens` after what is there, in one forward.
    pub(super) fn extend(&mut self, tokens: &[u32], logits: LogitRows) -> Result<Forward, DeviceError> {
        let end = self.position + tokens.len();
        let pages = end.div_ceil(self.executor.facts().page_tokens);
        let pages = self
            .pages
            .get(..pages)
            .ok_or_else(|| DeviceError::Contract(format!("position {end} is beyond the reserved pages")))?;
        let from = (self.position > 0).then_some(LIVE);
        let state =
            (self.executor.facts().slot_bytes > 0).then_some(StateFlow { from, to: LIVE, revocable: false });
        let span = Span {
            positions: None,
            capture: 0,
            hidden: false,
            pages,
            start: self.position,
            tokens,
            state,
            logits,
        };
        let forward = self.executor.forward(&[span])?;
        self.position = end;
        Ok(forward)
    }
}
