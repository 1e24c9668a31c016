//! Sequences on a device, and how each route brings one through it.

use super::{Plan, Route, positions};
use crate::device::{DeviceError, Executor, LogitRows, PageId, SlotId, Span, StateFlow};

/// The slots of the sequence that is measured: a revocable forward goes from one to the other.
const OWN: [SlotId; 2] = [SlotId(0), SlotId(1)];
/// The slot of the sequence that a restore takes its state from.
const SNAPSHOT: SlotId = SlotId(2);
/// The slots of the neighbours in a batch.
const NEIGHBOURS: [SlotId; 3] = [SlotId(3), SlotId(4), SlotId(5)];

/// Tokens that each neighbour computes beside a prefill chunk. Beside a decoded token it is one, as in a decode batch.
const NEIGHBOUR_CHUNKS: [usize; 3] = [37, 5, 112];

/// Why a route was not measured to its end.
pub(super) enum Obstacle {
    /// It cannot be measured here; everything else may go on.
    Unmeasured(String),
    /// The device failed.
    Device(DeviceError),
}

impl From<DeviceError> for Obstacle {
    fn from(error: DeviceError) -> Obstacle {
        match error {
            // Every route computes all it needs from the start, so lost state is the next one's no concern.
            DeviceError::OutOfMemory { .. } | DeviceError::StateLost(_) => {
                Obstacle::Unmeasured(error.to_string())
            }
            error => Obstacle::Device(error),
        }
    }
}

/// Takes the logits at a position.
pub(super) type Sink<'a> = &'a mut dyn FnMut(usize, &[f32]);

/// Which rows of logits of the prompt are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    /// All, as far as they may be held.
    Every,
    /// The last token's, as the engine asks.
    Last,
}

/// One sequence: where its state is.
pub(super) struct Track {
    pages: Vec<PageId>,
    pub(super) position: usize,
    /// The slot with the recurrent state after `position` tokens; `None` at the start.
    pub(super) at: Option<SlotId>,
    slots: [SlotId; 2],
}

impl Track {
    fn new(pages: Vec<PageId>, slots: [SlotId; 2]) -> Track {
        Track { pages, position: 0, at: None, slots }
    }

    /// In place; or into the other slot, so that the state before stays.
    fn flow(&self, revocable: bool) -> StateFlow {
        let [first, second] = self.slots;
        let to = match self.at {
            Some(at) if at == first && revocable => second,
            Some(at) if at == second && !revocable => second,
            _ => first,
        };
        StateFlow { from: self.at, to, revocable }
    }
}

/// Another sequence in the same batches. It starts over when it has no room left.
struct Neighbour {
    track: Track,
    tokens: Vec<u32>,
    chunk: usize,
}

/// A device set up for one plan.
pub(super) struct Rig<'a> {
    executor: &'a mut dyn Executor,
    pub(super) plan: Plan<'a>,
    watch: &'a mut dyn FnMut(&str, usize),
    label: String,
    vocab: usize,
    page_tokens: usize,
    recurrent: bool,
    /// Pages that hold the whole plan, the generated tokens included.
    blocks: usize,
    /// The cuts of the reference's prefill: less than the plan's where memory admits less.
    cuts: Vec<usize>,
}

impl<'a> Rig<'a> {
    /// Reserves pages and slots for every route.
    pub(super) fn new(
        executor: &'a mut dyn Executor,
        plan: &Plan<'a>,
        watch: &'a mut dyn FnMut(&str, usize),
    ) -> Result<Rig<'a>, DeviceError> {
        let facts = executor.facts();
        let (vocab, page_tokens, recurrent) = (facts.vocab, facts.page_tokens, facts.slot_bytes > 0);
        let longest = positions(plan.tokens.len(), plan.decoded, plan.generated);
        if longest > facts.context_tokens {
            let held = facts.context_tokens;
            return Err(DeviceError::Contract(format!("{longest} positions, and the context holds {held}")));
        }
        let blocks = longest.div_ceil(page_tokens);
        let slots = if recurrent { OWN.len() + 1 + NEIGHBOURS.len() } else { 0 };
        executor.reserve(blocks * (2 + NEIGHBOURS.len()), slots)?;
        let label = "reference".to_owned();
        Ok(Rig {
            executor,
            plan: *plan,
            watch,
            label,
            vocab,
            page_tokens,
            recurrent,
            blocks,
            cuts: Vec::new(),
        })
    }

    /// Says what is measured from now on.
    pub(super) fn name(&mut self, label: String) {
        self.label = label;
    }

    pub(super) fn vocab(&self) -> usize {
        self.vocab
    }

    pub(super) fn page_tokens(&self) -> usize {
        self.page_tokens
    }

    /// Pages of the `set`th sequence.
    fn pages(&self, set: usize) -> Vec<PageId> {
        let first = (set * self.blocks) as u32;
        (first..).take(self.blocks).map(PageId).collect()
    }

    fn track(&self) -> Track {
        Track::new(self.pages(0), OWN)
    }

    fn neighbours(&self, count: usize) -> Vec<Neighbour> {
        let room = self.plan.tokens.len();
        let neighbour = |(index, (slot, chunk)): (usize, (&SlotId, &usize))| Neighbour {
            track: Track::new(self.pages(2 + index), [*slot; 2]),
            // The same words in another order, and no two neighbours alike.
            tokens: self.plan.tokens.iter().rev().cycle().skip(index * 17).take(room).copied().collect(),
            chunk: *chunk,
        };
        NEIGHBOURS.iter().zip(&NEIGHBOUR_CHUNKS).enumerate().take(count).map(neighbour).collect()
    }

    /// One forward of `tokens` after `track`. Gives the logits of the rows asked for.
    pub(super) fn forward(
        &mut self,
        track: &mut Track,
        tokens: &[u32],
        revocable: bool,
        logits: LogitRows,
    ) -> Result<Vec<f32>, Obstacle> {
        self.forward_beside(track, tokens, revocable, logits, &mut [])
    }

    fn forward_beside(
        &mut self,
        track: &mut Track,
        tokens: &[u32],
        revocable: bool,
        logits: LogitRows,
        neighbours: &mut [Neighbour],
    ) -> Result<Vec<f32>, Obstacle> {
        (self.watch)(&self.label, track.position);
        let admitted = self.executor.admits(track.position, tokens.len());
        if admitted < tokens.len() {
            let wanted = tokens.len();
            let problem = format!("memory admits {admitted} tokens a forward here, and it takes {wanted}");
            return Err(Obstacle::Unmeasured(problem));
        }
        for neighbour in neighbours.iter_mut() {
            if neighbour.track.position == neighbour.tokens.len() {
                neighbour.track = Track::new(neighbour.track.pages.clone(), neighbour.track.slots);
            }
        }
        let decodes = tokens.len() == 1;
        let mut spans: Vec<Span<'_>> = Vec::with_capacity(neighbours.len() + 1);
        for neighbour in neighbours.iter() {
            let start = neighbour.track.position;
            let take = if decodes { 1 } else { neighbour.chunk };
            let tokens = &neighbour.tokens[start..neighbour.tokens.len().min(start + take)];
            spans.push(self.span(&neighbour.track, tokens, neighbour.track.flow(false), LogitRows::Last));
        }
        let flow = track.flow(revocable);
        // Not at the batch's edge when there are several.
        let place = neighbours.len().div_ceil(2);
        spans.insert(place, self.span(track, tokens, flow, logits));
        let mut rows = self.executor.forward(&spans)?.logits;
        let mut taken: Vec<usize> = spans.iter().map(|span| span.tokens.len()).collect();
        drop(spans);
        track.position += taken.remove(place);
        track.at = Some(flow.to);
        for (neighbour, taken) in neighbours.iter_mut().zip(&taken) {
            neighbour.track.at = Some(neighbour.track.flow(false).to);
            neighbour.track.position += taken;
        }
        let own = logits.count(tokens.len());
        if rows.len() != (own + neighbours.len()) * self.vocab {
            let problem = format!("{} logits for {own} rows of {}", rows.len(), self.vocab);
            return Err(Obstacle::Device(DeviceError::Contract(problem)));
        }
        rows.truncate((place + own) * self.vocab);
        rows.drain(..place * self.vocab);
        Ok(rows)
    }

    fn span<'s>(&self, track: &'s Track, tokens: &'s [u32], flow: StateFlow, logits: LogitRows) -> Span<'s> {
        let pages = (track.position + tokens.len()).div_ceil(self.page_tokens).min(track.pages.len());
        let state = self.recurrent.then_some(flow);
        Span {
            positions: None,
            capture: 0,
            hidden: false,
            pages: &track.pages[..pages],
            start: track.position,
            tokens,
            state,
            logits,
        }
    }

    /// Keeps the first `tokens` of the last forward, which started at `start` and was revocable.
    pub(super) fn rewind(
        &mut self,
        track: &mut Track,
        start: usize,
        from: Option<SlotId>,
        tokens: usize,
    ) -> Result<(), Obstacle> {
        if let (true, Some(to)) = (self.recurrent, track.at) {
            self.executor.rewind(StateFlow { from, to, revocable: true }, tokens)?;
        }
        track.position = start + tokens;
        Ok(())
    }

    /// Which rows a forward of so many tokens is asked for.
    fn rows(&self, tokens: usize) -> LogitRows {
        let bytes = tokens.saturating_mul(self.vocab).saturating_mul(size_of::<f32>());
        if bytes <= self.plan.logit_bytes { LogitRows::All } else { LogitRows::Last }
    }

    /// Hands rows over: those of the tokens from `start` on, or the last one's of `tokens`.
    fn hand_over(&self, rows: &[f32], start: usize, tokens: usize, sink: Sink<'_>) {
        let first = start + tokens - (rows.len() / self.vocab).min(tokens);
        for (position, row) in (first..).zip(rows.chunks_exact(self.vocab)) {
            sink(position, row);
        }
    }

    /// Computes `tokens[track.position..end]` of the plan in forwards of the sizes given, the last of them repeated.
    fn extend(
        &mut self,
        track: &mut Track,
        end: usize,
        sizes: &[usize],
        want: Want,
        neighbours: &mut [Neighbour],
        sink: Sink<'_>,
    ) -> Result<(), Obstacle> {
        let tokens = self.plan.tokens;
        let mut sizes = sizes.iter().copied().chain(std::iter::repeat(sizes.last().copied().unwrap_or(1)));
        while track.position < end {
            let start = track.position;
            let next = end.min(start + sizes.next().unwrap_or(1).max(1));
            let logits = match want {
                Want::Every => self.rows(next - start),
                Want::Last if next == end => LogitRows::Last,
                Want::Last => LogitRows::None,
            };
            let rows = self.forward_beside(track, &tokens[start..next], false, logits, neighbours)?;
            self.hand_over(&rows, start, next - start, sink);
        }
        Ok(())
    }

    /// The reference's route, in cuts that memory admits. Gives the digest of the state it leaves.
    pub(super) fn reference(&mut self, sink: Sink<'_>) -> Result<[u8; 32], DeviceError> {
        let plan = self.plan;
        let mut computed = 0;
        while computed < plan.prompt() {
            let wanted = plan.chunk_tokens.min(plan.prompt() - computed);
            let cut = self.executor.admits(computed, wanted).clamp(1, wanted);
            self.cuts.push(cut);
            computed += cut;
        }
        self.walk(Route::Again, sink).map_err(|obstacle| match obstacle {
            Obstacle::Device(error) => error,
            Obstacle::Unmeasured(problem) => DeviceError::OutOfMemory { bytes: 0, problem },
        })
    }

    /// Brings the plan's tokens through the device by `route`. Gives the digest of the state it leaves.
    pub(super) fn run(&mut self, route: Route, sink: Sink<'_>) -> Result<[u8; 32], Obstacle> {
        self.name(route.label());
        self.walk(route, sink)
    }

    fn walk(&mut self, route: Route, sink: Sink<'_>) -> Result<[u8; 32], Obstacle> {
        let mut neighbours = match route {
            Route::Beside(count) => self.neighbours(count),
            _ => Vec::new(),
        };
        let mut track = self.prefill_beside(route, Want::Every, &mut neighbours, sink)?;
        let end = self.plan.tokens.len();
        match route {
            Route::Verify(rows) => self.extend(&mut track, end, &[rows], Want::Every, &mut [], sink)?,
            Route::TakeBack { drafted, kept } => self.take_back(&mut track, drafted, kept, sink)?,
            _ => self.extend(&mut track, end, &[1], Want::Every, &mut neighbours, sink)?,
        }
        Ok(self.digest(&track))
    }

    /// The prompt by `route`, alone.
    pub(super) fn prefill(&mut self, route: Route, want: Want, sink: Sink<'_>) -> Result<Track, Obstacle> {
        self.prefill_beside(route, want, &mut [], sink)
    }

    fn prefill_beside(
        &mut self,
        route: Route,
        want: Want,
        neighbours: &mut [Neighbour],
        sink: Sink<'_>,
    ) -> Result<Track, Obstacle> {
        let prompt = self.plan.prompt();
        let sizes = match route {
            Route::Chunks(tokens) => vec![tokens],
            Route::Whole => vec![prompt],
            _ => self.cuts.clone(),
        };
        let (mut track, sizes) = match route {
            Route::Restore(boundary) => (self.restored(boundary, want, sink)?, vec![self.plan.chunk_tokens]),
            _ => (self.track(), sizes),
        };
        self.extend(&mut track, prompt, &sizes, want, neighbours, sink)?;
        Ok(track)
    }

    /// A sequence whose state up to a block's end is another's: pages are shared, the snapshot is only read.
    fn restored(&mut self, boundary: usize, want: Want, sink: Sink<'_>) -> Result<Track, Obstacle> {
        if boundary >= self.plan.prompt() {
            let (prompt, block) = (self.plan.prompt(), self.page_tokens);
            let problem =
                format!("the prompt of {prompt} tokens has no whole block of {block} before its end");
            return Err(Obstacle::Unmeasured(problem));
        }
        let mut donor = Track::new(self.pages(1), [SNAPSHOT; 2]);
        let cuts = self.cuts.clone();
        self.extend(&mut donor, boundary, &cuts, want, &mut [], sink)?;
        let blocks = boundary / self.page_tokens;
        let mut track = self.track();
        track.pages[..blocks].copy_from_slice(&donor.pages[..blocks]);
        track.position = boundary;
        track.at = donor.at;
        Ok(track)
    }

    /// What follows the prompt in drafts: `kept` right tokens and wrong ones behind them in one forward that is then taken back to the right
    /// ones; between drafts a token as decode computes it.
    fn take_back(
        &mut self,
        track: &mut Track,
        drafted: usize,
        kept: usize,
        sink: Sink<'_>,
    ) -> Result<(), Obstacle> {
        let tokens = self.plan.tokens;
        while track.position < tokens.len() {
            let (start, from) = (track.position, track.at);
            let right = kept.min(tokens.len() - start);
            let mut draft = tokens[start..start + right].to_vec();
            let wrong = (0..drafted - kept).map(|offset| tokens[(start + right + offset) % tokens.len()]);
            draft.extend(wrong.map(|token| self.other_than(token)));
            let rows = self.forward(track, &draft, true, LogitRows::All)?;
            self.rewind(track, start, from, right)?;
            self.hand_over(&rows[..right * self.vocab], start, right, sink);
            let next = tokens.len().min(track.position + 1);
            self.extend(track, next, &[1], Want::Every, &mut [], sink)?;
        }
        Ok(())
    }

    /// A token that is not this one.
    pub(super) fn other_than(&self, token: u32) -> u32 {
        (token + 1) % self.vocab as u32
    }

    /// Digest of all that is stored of a sequence.
    fn digest(&self, track: &Track) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for (index, page) in track.pages.iter().enumerate() {
            let filled = track.position.saturating_sub(index * self.page_tokens).min(self.page_tokens);
            if filled > 0 {
                hasher.update(&self.executor.page_digest(*page, filled));
            }
        }
        if let Some(slot) = track.at.filter(|_| self.recurrent) {
            hasher.update(&self.executor.slot_digest(slot));
        }
        *hasher.finalize().as_bytes()
    }
}
