//! The forward of a step: what goes into it, what comes of it, and who ends when it fails.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::cycle::{Left, Rows};
use super::plan::note_shrunk;
use super::preempt::Starved;
use super::{Refused, Scheduler, StepOutcome};
use crate::cache::{CacheFull, StaleState};
use crate::device::{DeviceError, Executor, Forward, LogitRows, PageId, Span, StateFlow};
use crate::engine::clock::Clock;
use crate::engine::emitter::Emitter;
use crate::engine::sequence::{Sequence, Stage};
use crate::event::{Body, DeviceMemory, Nanos, Phase, RequestId, ShrunkChunk, Stamp};
use crate::recovery::job::End;

/// What a span borrows, but for its pages.
struct SpanParts<'a> {
    tokens: Cow<'a, [u32]>,
    positions: Option<Vec<u32>>,
}

impl<'a> SpanParts<'a> {
    fn of(sequence: &'a Sequence<'_>, work: &Work) -> SpanParts<'a> {
        let mut tokens = sequence.tokens_at(work.start..work.end - work.drafted);
        if work.drafted > 0 {
            tokens.to_mut().extend_from_slice(&sequence.drafted()[..work.drafted]);
        }
        SpanParts { tokens, positions: sequence.positions_at(work.start..work.end) }
    }
}

/// Part of a forward: places `start..end` of a running sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    pub(super) sequence: usize,
    pub(super) start: usize,
    pub(super) end: usize,
    /// How many of the last tokens are drafted.
    pub(super) drafted: usize,
    wants_logits: bool,
    /// Whether the state it starts from stays as it was.
    pub(super) apart: bool,
    /// Where its recurrent state comes from and goes to.
    pub(super) flow: Option<StateFlow>,
    /// What memory made of it.
    shrunk: Option<ShrunkChunk>,
}

impl Work {
    /// Places whose logits nobody reads.
    pub(super) fn unread(sequence: usize, start: usize, end: usize, flow: Option<StateFlow>) -> Work {
        Work { sequence, start, end, drafted: 0, wants_logits: false, apart: false, flow, shrunk: None }
    }

    /// The token of a sequence that decodes, and those drafted behind it.
    pub(super) fn decoding(index: usize, sequence: &Sequence<'_>) -> Work {
        let drafted = sequence.drafted().len();
        Work {
            sequence: index,
            start: sequence.computed,
            end: sequence.places() + drafted,
            drafted,
            wants_logits: true,
            apart: drafted > 0 || sequence.speculating.as_ref().is_some_and(|s| s.audits),
            flow: None,
            shrunk: None,
        }
    }

    /// A chunk of a prefill.
    pub(super) fn prefilling(
        index: usize,
        sequence: &Sequence<'_>,
        chunk: Range<usize>,
        shrunk: Option<ShrunkChunk>,
    ) -> Work {
        // Where there is a reply already, its next token is chosen when its last one has been computed.
        let wants_logits = sequence.output().is_empty() && chunk.end == sequence.prompt_places();
        let Range { start, end } = chunk;
        Work { sequence: index, start, end, drafted: 0, wants_logits, apart: false, flow: None, shrunk }
    }

    /// Tokens it computes.
    pub(super) fn tokens(&self) -> usize {
        self.end - self.start
    }

    /// As much of it as fits the places before `end`; `None` where that is nothing.
    pub(super) fn up_to(self, end: usize) -> Option<Work> {
        match () {
            () if end <= self.start => None,
            () if end >= self.end => Some(self),
            // The first token of a reply's span is known, and the others can be done without.
            () if self.wants_logits && self.drafted > 0 => {
                Some(Work { end: self.end - self.drafted, drafted: 0, ..self })
            }
            () => Some(Work { end, wants_logits: false, ..self }),
        }
    }

    /// Whether it leaves nothing of the state that it starts from.
    fn overwrites(&self) -> bool {
        self.flow.is_some_and(|flow| flow.from == Some(flow.to))
    }

    /// Rows of logits it wants: one, and where tokens are drafted one for each.
    pub(super) fn rows(&self) -> usize {
        if self.wants_logits { 1 + self.drafted } else { 0 }
    }
}

/// What became of a forward's spans that gave nothing.
#[derive(Default)]
struct Computed {
    /// Requests for which something failed.
    failed: Vec<(RequestId, Arc<DeviceError>)>,
    /// Those for which there was no memory.
    starved: Vec<Starved>,
}

impl Scheduler<'_> {
    pub(super) fn forward(&mut self, outcome: &mut StepOutcome, clock: &mut Clock, out: &mut Emitter) {
        self.go_on_decoding(clock, out);
        self.draft_all(outcome, clock, out);
        let mut work = self.plan_forward();
        self.prepare_state(&mut work, outcome, clock, out);
        if work.is_empty() {
            return;
        }
        let Computed { failed, starved } = self.compute(&work, outcome, clock, out);
        let lost = failed.iter().map(|(_, error)| error).find(|e| matches!(***e, DeviceError::StateLost(_)));
        let lost = lost.map(Arc::clone);
        // Ending a request moves the others in the list, so none ends before all spans were tried.
        for (request, error) in failed {
            outcome.ended.extend(self.fail(request, Refused::Device(error), clock, out));
        }
        match lost {
            Some(error) => self.give_up_state(&error, outcome, clock, out),
            None => self.relieve(starved, outcome, clock, out),
        }
    }

    /// Ends every running request and empties the cache: nothing that was computed so far may be read again.
    pub(super) fn give_up_state(
        &mut self,
        error: &Arc<DeviceError>,
        outcome: &mut StepOutcome,
        clock: &mut Clock,
        out: &mut Emitter,
    ) {
        for sequence in std::mem::take(&mut self.running) {
            outcome.ended.push(self.refuse(sequence, Refused::Device(Arc::clone(error)), clock, out));
        }
        self.cache.evict_all(clock.now());
        self.end_recovery(End::CacheReset, clock, out);
        self.lose_all();
    }

    /// Computes `work` in one forward; where there is no memory for all of it, span by span and those of a prefill by fewer tokens, so that
    /// only those are starved that do not fit alone.
    fn compute(
        &mut self,
        work: &[Work],
        outcome: &mut StepOutcome,
        clock: &mut Clock,
        out: &mut Emitter,
    ) -> Computed {
        let error = match self.try_compute(work, outcome, clock, out) {
            Ok(failed) => return Computed { failed, starved: Vec::new() },
            Err(error) => Arc::new(error),
        };
        let alone = work.len() == 1;
        let no_memory = matches!(*error, DeviceError::OutOfMemory { .. });
        let mut computed = Computed::default();
        for w in work {
            let request = self.running[w.sequence].request;
            let next = match no_memory {
                true if alone => self.halved(*w),
                true => Some(*w),
                false => None,
            };
            match next.map(|w| self.compute_alone(w, outcome, clock, out)) {
                Some(Ok(after)) => computed.failed.extend(after),
                Some(Err(own @ DeviceError::OutOfMemory { .. })) => {
                    let (error, overwritten) = (Arc::new(own), w.overwrites());
                    computed.starved.push(Starved { request, error, overwritten });
                }
                Some(Err(lost @ DeviceError::StateLost(_))) => {
                    computed.failed.push((request, Arc::new(lost)));
                    break;
                }
                // Where the batch has overwritten the state that the span starts from, the batch is the reason.
                Some(Err(_)) | None if no_memory => {
                    let (error, overwritten) = (Arc::clone(&error), w.overwrites());
                    computed.starved.push(Starved { request, error, overwritten });
                }
                Some(Err(_)) | None => computed.failed.push((request, Arc::clone(&error))),
            }
        }
        computed
    }

    /// Computes a span, or as much of it as there is memory for.
    fn compute_alone(
        &mut self,
        mut work: Work,
        outcome: &mut StepOutcome,
        clock: &mut Clock,
        out: &mut Emitter,
    ) -> Result<Vec<(RequestId, Arc<DeviceError>)>, DeviceError> {
        loop {
            let error = match self.try_compute(&[work], outcome, clock, out) {
                Ok(failed) => return Ok(failed),
                Err(error) => error,
            };
            let no_memory = matches!(error, DeviceError::OutOfMemory { .. });
            let Some(half) = no_memory.then(|| self.halved(work)).flatten() else { return Err(error) };
            work = half;
        }
    }

    /// The first half of a span for which there was no memory. `None` where it cannot be shorter, or where the device may have overwritten the
    /// state that it starts from.
    fn halved(&mut self, work: Work) -> Option<Work> {
        let sequence = &mut self.running[work.sequence];
        let tokens = work.end - work.start;
        let overwritten = work.overwrites();
        if work.drafted > 0 && !overwritten {
            // What is drafted can be done without.
            let end = work.end - work.drafted;
            let flow = sequence.recurrent.as_ref().map(|state| state.flow_apart(end, false));
            return Some(Work { end, drafted: 0, flow, ..work });
        }
        if sequence.stage != Stage::Prefilling || tokens < 2 || overwritten {
            return None;
        }
        let wanted = work.shrunk.map_or(tokens as u64, |shrunk| shrunk.wanted);
        let shrunk = ShrunkChunk { wanted, admitted: (tokens / 2) as u64 };
        note_shrunk(sequence, shrunk);
        let end = work.start + tokens / 2;
        let flow = sequence.recurrent.as_ref().map(|state| state.flow(end));
        Some(Work { end, wants_logits: false, flow, shrunk: Some(shrunk), ..work })
    }

    /// Computes `work` in one forward and takes its results. Gives those for which something failed after the forward.
    fn try_compute(
        &mut self,
        work: &[Work],
        outcome: &mut StepOutcome,
        clock: &mut Clock,
        out: &mut Emitter,
    ) -> Result<Vec<(RequestId, Arc<DeviceError>)>, DeviceError> {
        let forward = self.run(work)?;
        clock.spend(forward.compute);
        let failed = self.take_results(work, &forward, outcome, clock, out);
        self.executor.take_back(forward);
        Ok(failed)
    }

    fn run(&mut self, work: &[Work]) -> Result<Forward, DeviceError> {
        self.run_with(work, |executor, spans| executor.forward(spans))
    }

    /// The same for work that gives way between two layers.
    pub(super) fn run_while(
        &mut self,
        work: &[Work],
        go_on: &mut dyn FnMut(Nanos) -> bool,
    ) -> Result<Forward, DeviceError> {
        self.run_with(work, |executor, spans| executor.forward_while(spans, go_on))
    }

    fn run_with(
        &mut self,
        work: &[Work],
        forward: impl FnOnce(&mut dyn Executor, &[Span<'_>]) -> Result<Forward, DeviceError>,
    ) -> Result<Forward, DeviceError> {
        let parts: Vec<SpanParts<'_>> =
            work.iter().map(|w| SpanParts::of(&self.running[w.sequence], w)).collect();
        // The pages of all spans in one list, rather than a list for each of many sequences.
        let of_span = |w: &Work| self.running[w.sequence].pages.iter().map(|page| page.id());
        let pages: Vec<PageId> = work.iter().flat_map(of_span).collect();
        let mut pages = &pages[..];
        let spans: Vec<Span<'_>> = work
            .iter()
            .zip(&parts)
            .map(|(w, parts)| Span {
                pages: pages.split_off(..self.running[w.sequence].pages.len()).unwrap_or_default(),
                start: w.start,
                tokens: &parts.tokens,
                positions: parts.positions.as_deref(),
                capture: 0,
                hidden: self.running[w.sequence].head.is_some(),
                state: w.flow,
                logits: match w.rows() {
                    0 => LogitRows::None,
                    1 => LogitRows::Last,
                    _ => LogitRows::All,
                },
            })
            .collect();
        forward(&mut *self.executor, &spans)
    }

    /// Gives every span the pages and the slot it writes to and checks what it reads. A request that cannot be served ends here; where there is no
    /// room for all, one makes way.
    fn prepare_state(
        &mut self,
        work: &mut Vec<Work>,
        outcome: &mut StepOutcome,
        clock: &mut Clock,
        out: &mut Emitter,
    ) {
        let (mut refused, mut cramped) = (Vec::new(), Vec::new());
        let now = clock.now();
        for w in work.iter() {
            match self.extend_state(w.sequence, w.end, now) {
                Ok(()) => {}
                Err(problem) if problem.wants_room() && self.running.len() > 1 => cramped.push(w.sequence),
                Err(problem) => refused.push((self.running[w.sequence].request, problem)),
            }
        }
        if !refused.is_empty() {
            // Ending a request moves the others in the list; the next step plans anew for those that remain.
            work.clear();
            for (request, problem) in refused {
                outcome.ended.extend(self.fail(request, problem, clock, out));
            }
            return;
        }
        if !cramped.is_empty() {
            self.make_room(&cramped, work, clock, out);
        }
        for w in work.iter_mut() {
            let state = self.running[w.sequence].recurrent.as_ref();
            w.flow = state.map(|state| match w.apart {
                true => state.flow_apart(w.end, w.drafted > 0),
                false => state.flow(w.end),
            });
        }
    }

    pub(super) fn extend_state(&mut self, sequence: usize, end: usize, now: Stamp) -> Result<(), Refused> {
        let (evictions, dropped) = (self.cache.evictions(), self.cache.dropped_snapshots());
        let allocated = self.allocate_held_state(sequence, end, now);
        let running = &mut self.running[sequence];
        running.evicted_blocks += self.cache.evictions() - evictions;
        running.dropped_snapshots += self.cache.dropped_snapshots() - dropped;
        allocated?;
        Ok(self.check_state(sequence)?)
    }

    /// Gets the pages and the slot of the span that ends at `end`, on the device as well.
    pub(super) fn allocate_held_state(
        &mut self,
        sequence: usize,
        end: usize,
        now: Stamp,
    ) -> Result<(), Refused> {
        // Once for what is missing, and again at most once for each kind that the device refuses.
        loop {
            if let Err(full) = self.allocate_state(sequence, end, now) {
                // Part of a chunk's pages is of no use; nobody need ask the device for them.
                self.give_back(sequence);
                return Err(full.into());
            }
            if self.hold_state(sequence)? {
                return Ok(());
            }
        }
    }

    /// Gets the pages and the slot of the span that ends at `end`, at the cost of what is cached.
    fn allocate_state(&mut self, sequence: usize, end: usize, now: Stamp) -> Result<(), CacheFull> {
        let needed = end.div_ceil(self.cache.block_tokens());
        let running = &mut self.running[sequence];
        while running.pages.len() < needed {
            let last = running.pages.last().copied();
            running.pages.push(self.cache.allocate(running.request, last, now)?);
        }
        if let Some(state) = &mut running.recurrent {
            state.prepare(end, running.request, &mut self.cache, now);
        }
        Ok(())
    }

    fn check_state(&self, sequence: usize) -> Result<(), StaleState> {
        let sequence = &self.running[sequence];
        sequence.pages.iter().try_for_each(|page| self.cache.check(*page))?;
        sequence.recurrent.as_ref().map_or(Ok(()), |state| state.check(&self.cache))
    }

    /// Takes what a forward gave each sequence. Gives those for which something failed after it.
    fn take_results(
        &mut self,
        work: &[Work],
        forward: &Forward,
        outcome: &mut StepOutcome,
        clock: &mut Clock,
        out: &mut Emitter,
    ) -> Vec<(RequestId, Arc<DeviceError>)> {
        let vocab = self.executor.facts().vocab;
        let prefilling = work.iter().any(|w| self.running[w.sequence].stage == Stage::Prefilling);
        let device = self.device_memory().filter(|_| prefilling);
        let (mut logits, mut hidden) = (&forward.logits[..], &forward.hidden[..]);
        let (mut failed, mut left) = (Vec::new(), Vec::with_capacity(work.len()));
        for w in work {
            let (of_span, rest) = logits.split_at(w.rows() * vocab);
            logits = rest;
            let sequence = &mut self.running[w.sequence];
            let request = sequence.request;
            if let Some(entries) = &mut sequence.head {
                let (of_span, rest) = hidden.split_at((w.end - w.start) * self.executor.facts().hidden);
                hidden = rest;
                entries.record(w.start, of_span);
            }
            let took = (work.len() == 1).then_some(forward.compute);
            let rows = Rows {
                logits: of_span,
                compute: forward.compute,
                neighbours: work.len() - 1,
                experts: forward.experts,
            };
            let taken = match sequence.stage {
                Stage::Prefilling => self.take_prefilled(w, &rows, (took, device), outcome, clock, out),
                _ => self.take_rows(w, &rows, clock, out).map(Some),
            };
            match taken {
                Ok(of_sequence) => left.extend(of_sequence.map(|left| (request, left))),
                Err(error) => failed.push((request, Arc::new(error))),
            }
        }
        for (request, left) in left {
            if let Err(error) = self.do_left(left, outcome, clock, out) {
                failed.push((request, Arc::new(error)));
            }
        }
        failed
    }

    /// Takes a chunk of a prefill; its last one gives the reply's first token.
    fn take_prefilled<'r>(
        &mut self,
        w: &Work,
        rows: &Rows<'r>,
        (took, device): (Option<Nanos>, Option<DeviceMemory>),
        outcome: &mut StepOutcome,
        clock: &mut Clock,
        out: &mut Emitter,
    ) -> Result<Option<Left<'r>>, DeviceError> {
        let sequence = &mut self.running[w.sequence];
        let (lane, request) = (Some(sequence.submission.lane), Some(sequence.request));
        // What is computed again is told by what it delays; progress and time of the prefill are those of its first computation.
        let again = w.end <= sequence.earlier.reached;
        sequence.prefill.0 += if again { 0 } else { rows.compute.0 };
        let total = (sequence.prompt_places() - sequence.restored) as u64;
        let done = w.end.saturating_sub(sequence.restored) as u64;
        let executor = &mut *self.executor;
        let (read, head) = clock.account(|| {
            let before = sequence.head.as_ref().map_or(0, |entries| entries.written());
            let written = Scheduler::write_entries(executor, sequence, w.end);
            let compute = *written.as_ref().unwrap_or(&Nanos(0));
            let after = sequence.head.as_ref().map_or(0, |entries| entries.written());
            (written.map(|_| (after - before) as u64), compute)
        });
        let read = match read {
            Ok(read) => read,
            Err(lost @ DeviceError::StateLost(_)) => return Err(lost),
            Err(error) => {
                self.go_on_without_head(w.sequence, error, clock.now(), out);
                0
            }
        };
        let sequence = &mut self.running[w.sequence];
        if !again {
            sequence.head_priming.0 += read;
            sequence.head_priming.1.0 += head.0;
            let body = Body::PrefillProgress { done, total, shrunk: w.shrunk, device, took };
            out.emit(clock.now(), lane, request, body);
        }
        if w.rows() == 0 {
            sequence.computed = w.end;
            if let Some(state) = &mut sequence.recurrent {
                state.advance(w.end, &mut self.cache);
            }
            return Ok(None);
        }
        let took = sequence.prefill;
        out.emit(clock.now(), lane, request, Body::Prefilled { computed_tokens: total, took });
        sequence.start_drafting(clock, out);
        sequence.stage = Stage::Decoding;
        outcome.phases.push((sequence.request, Phase::Prefill));
        self.take_rows(w, rows, clock, out).map(Some)
    }
}
