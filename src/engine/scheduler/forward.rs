//! The forward of a step: what goes into it, what comes of it, and who ends when it fails.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::{Refused, Scheduler, StepOutcome, end_reply};
use crate::cache::{CacheFull, StaleState};
use crate::device::{DeviceError, Executor, Forward, LogitRows, PageId, Span};
use crate::engine::clock::Clock;
use crate::engine::emitter::Emitter;
use crate::engine::sequence::{Sequence, Stage};
use crate::event::{Body, FinishReason, Logits, Phase, RequestId, ShrunkChunk, Stamp};
use crate::model::text::TextCodec;
use crate::{decode, prefill};

/// What a span borrows.
struct SpanParts<'a> {
    pages: Vec<PageId>,
    tokens: Cow<'a, [u32]>,
    positions: Option<Vec<u32>>,
}

impl<'a> SpanParts<'a> {
    fn of(sequence: &'a Sequence<'_>, places: Range<usize>) -> SpanParts<'a> {
        SpanParts {
            pages: sequence.pages.iter().map(|page| page.id()).collect(),
            tokens: sequence.tokens_at(places.clone()),
            positions: sequence.positions_at(places),
        }
    }
}

/// Part of a forward: places `start..end` of a running sequence.
#[derive(Debug, Clone, Copy)]
struct Work {
    sequence: usize,
    start: usize,
    end: usize,
    wants_logits: bool,
    /// What memory made of it.
    shrunk: Option<ShrunkChunk>,
}

impl Scheduler<'_> {
    pub(super) fn forward(&mut self, outcome: &mut StepOutcome, clock: &mut Clock, out: &mut Emitter) {
        let mut work = self.plan_forward();
        self.prepare_state(&mut work, outcome, clock, out);
        if work.is_empty() {
            return;
        }
        let failed = self.compute(&work, outcome, clock, out);
        let lost = failed.iter().map(|(_, error)| error).find(|e| matches!(***e, DeviceError::StateLost(_)));
        let lost = lost.map(Arc::clone);
        // Ending a request moves the others in the list, so none ends before all spans were tried.
        for (request, error) in failed {
            outcome.ended.extend(self.fail(request, Refused::Device(error), clock, out));
        }
        if let Some(error) = lost {
            self.give_up_state(&error, outcome, clock, out);
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
        self.lose_all();
    }

    /// Computes `work` in one forward; where there is no memory for all of it, span by span and those of a prefill by fewer tokens, so that
    /// only those end that do not fit alone. Gives those that failed.
    fn compute(
        &mut self,
        work: &[Work],
        outcome: &mut StepOutcome,
        clock: &mut Clock,
        out: &mut Emitter,
    ) -> Vec<(RequestId, Arc<DeviceError>)> {
        let Err(error) = self.try_compute(work, outcome, clock, out) else { return Vec::new() };
        let error = Arc::new(error);
        let alone = work.len() == 1;
        let mut failed = Vec::new();
        for w in work {
            let request = self.running[w.sequence].request;
            let next = match *error {
                DeviceError::OutOfMemory { .. } if alone => self.halved(*w),
                DeviceError::OutOfMemory { .. } => Some(*w),
                _ => None,
            };
            match next.map(|w| self.compute_alone(w, outcome, clock, out)) {
                Some(Ok(())) => {}
                Some(Err(own @ DeviceError::OutOfMemory { .. })) => failed.push((request, Arc::new(own))),
                Some(Err(lost @ DeviceError::StateLost(_))) => {
                    failed.push((request, Arc::new(lost)));
                    break;
                }
                // Where the batch has overwritten the state that the span starts from, the batch is the reason.
                Some(Err(_)) | None => failed.push((request, Arc::clone(&error))),
            }
        }
        failed
    }

    /// Computes a span, or as much of it as there is memory for.
    fn compute_alone(
        &mut self,
        mut work: Work,
        outcome: &mut StepOutcome,
        clock: &mut Clock,
        out: &mut Emitter,
    ) -> Result<(), DeviceError> {
        loop {
            let Err(error) = self.try_compute(&[work], outcome, clock, out) else { return Ok(()) };
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
        let flow = sequence.recurrent.as_ref().map(|state| state.flow(work.end));
        let overwritten = flow.is_some_and(|flow| flow.from == Some(flow.to));
        if sequence.stage != Stage::Prefilling || tokens < 2 || overwritten {
            return None;
        }
        let wanted = work.shrunk.map_or(tokens as u64, |shrunk| shrunk.wanted);
        let shrunk = ShrunkChunk { wanted, admitted: (tokens / 2) as u64 };
        note_shrunk(sequence, shrunk);
        Some(Work { end: work.start + tokens / 2, wants_logits: false, shrunk: Some(shrunk), ..work })
    }

    /// Computes `work` in one forward and takes its results.
    fn try_compute(
        &mut self,
        work: &[Work],
        outcome: &mut StepOutcome,
        clock: &mut Clock,
        out: &mut Emitter,
    ) -> Result<(), DeviceError> {
        let forward = self.run(work)?;
        clock.spend(forward.compute);
        self.take_results(work, &forward, outcome, clock, out);
        Ok(())
    }

    fn run(&mut self, work: &[Work]) -> Result<Forward, DeviceError> {
        let parts: Vec<SpanParts<'_>> =
            work.iter().map(|w| SpanParts::of(&self.running[w.sequence], w.start..w.end)).collect();
        let spans: Vec<Span<'_>> = work
            .iter()
            .zip(&parts)
            .map(|(w, parts)| Span {
                pages: &parts.pages,
                start: w.start,
                tokens: &parts.tokens,
                positions: parts.positions.as_deref(),
                capture: 0,
                hidden: false,
                state: self.running[w.sequence].recurrent.as_ref().map(|state| state.flow(w.end)),
                logits: if w.wants_logits { LogitRows::Last } else { LogitRows::None },
            })
            .collect();
        self.executor.forward(&spans)
    }

    fn plan_forward(&mut self) -> Vec<Work> {
        let mut work = Vec::new();
        let mut prefilling = false;
        for (index, sequence) in self.running.iter_mut().enumerate() {
            match sequence.stage {
                Stage::Prefilling if !prefilling => {
                    prefilling = true;
                    let (chunk, shrunk) = plan_chunk(sequence, self.config.chunk_tokens, &*self.executor);
                    let wants_logits = chunk.end == sequence.prompt_places();
                    let Range { start, end } = chunk;
                    work.push(Work { sequence: index, start, end, wants_logits, shrunk });
                }
                Stage::Decoding => {
                    let (start, end) = (sequence.computed, sequence.places());
                    work.push(Work { sequence: index, start, end, wants_logits: true, shrunk: None });
                }
                _ => {}
            }
        }
        work
    }

    /// Gives every span the pages and the slot it writes to and checks what it reads. A request that cannot be served ends here.
    fn prepare_state(
        &mut self,
        work: &mut Vec<Work>,
        outcome: &mut StepOutcome,
        clock: &mut Clock,
        out: &mut Emitter,
    ) {
        let mut refused = Vec::new();
        for w in work.iter() {
            if let Err(problem) = self.extend_state(w.sequence, w.end, clock.now()) {
                refused.push((self.running[w.sequence].request, problem));
            }
        }
        if refused.is_empty() {
            return;
        }
        // Ending a request moves the others in the list; the next step plans anew for those that remain.
        work.clear();
        for (request, problem) in refused {
            outcome.ended.extend(self.fail(request, problem, clock, out));
        }
    }

    fn extend_state(&mut self, sequence: usize, end: usize, now: Stamp) -> Result<(), Refused> {
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

    fn take_results(
        &mut self,
        work: &[Work],
        forward: &Forward,
        outcome: &mut StepOutcome,
        clock: &Clock,
        out: &mut Emitter,
    ) {
        let vocab = self.executor.facts().vocab;
        let mut rows = forward.logits.chunks_exact(vocab);
        let context = self.context_tokens();
        let prefilling = work.iter().any(|w| self.running[w.sequence].stage == Stage::Prefilling);
        let device = self.device_memory().filter(|_| prefilling);
        for w in work {
            let sequence = &mut self.running[w.sequence];
            let (lane, request) = (Some(sequence.submission.lane), Some(sequence.request));
            sequence.computed = w.end;
            if let Some(state) = &mut sequence.recurrent {
                state.advance(w.end, &mut self.cache);
            }
            if sequence.stage == Stage::Prefilling {
                let took = (work.len() == 1).then_some(forward.compute);
                sequence.prefill.0 += forward.compute.0;
                let total = (sequence.prompt_places() - sequence.restored) as u64;
                let done = (w.end - sequence.restored) as u64;
                out.emit(
                    clock.now(),
                    lane,
                    request,
                    Body::PrefillProgress { done, total, shrunk: w.shrunk, device, took },
                );
                if !w.wants_logits {
                    continue;
                }
                let took = sequence.prefill;
                out.emit(clock.now(), lane, request, Body::Prefilled { computed_tokens: total, took });
                sequence.stage = Stage::Decoding;
                outcome.phases.push((sequence.request, Phase::Prefill));
            } else {
                sequence.decode.0 += forward.compute.0;
            }
            let Some(logits) = rows.next() else { continue };
            if self.tell_logits && sequence.output().is_empty() {
                let logits = Logits(logits.to_vec());
                out.emit(clock.now(), lane, request, Body::ReplyLogits { logits });
            }
            let ended = next_token(sequence, logits, self.text, context, clock, out);
            if let Some(reason) = ended {
                outcome.phases.push((sequence.request, Phase::Decode));
                end_reply(sequence, reason, clock, out);
            }
        }
    }
}

/// The next chunk of a prefill, as far as there is memory for it, and what memory made of it.
fn plan_chunk(
    sequence: &mut Sequence<'_>,
    chunk_tokens: usize,
    executor: &dyn Executor,
) -> (Range<usize>, Option<ShrunkChunk>) {
    let start = sequence.computed;
    let stop = sequence.recurrent.as_ref().and_then(|state| state.next_stop(start));
    // What is computed densely and what sparsely do not share a chunk.
    let turn = Some(sequence.dense_places()).filter(|turn| start < *turn && *turn < sequence.prompt_places());
    let stop = stop.into_iter().chain(turn).min();
    let wanted = prefill::chunk(start, sequence.prompt_places(), chunk_tokens, stop);
    let wanted_tokens = wanted.len();
    let chunk = prefill::admitted(wanted, executor.admits(start, wanted_tokens));
    if chunk.len() == wanted_tokens {
        return (chunk, None);
    }
    let shrunk = ShrunkChunk { wanted: wanted_tokens as u64, admitted: chunk.len() as u64 };
    note_shrunk(sequence, shrunk);
    (chunk, Some(shrunk))
}

/// Says in the log that a chunk of the sequence shrinks, once.
fn note_shrunk(sequence: &mut Sequence<'_>, ShrunkChunk { wanted, admitted }: ShrunkChunk) {
    if !std::mem::replace(&mut sequence.shrunk, true) {
        let (request, start) = (sequence.request.0, sequence.computed);
        tracing::warn!(
            request,
            start,
            wanted,
            admitted,
            "a prefill chunk shrinks to fit in memory; later ones of the request may too"
        );
    }
}

/// Chooses the next token and says whether the reply ends with it.
fn next_token(
    sequence: &mut Sequence<'_>,
    logits: &[f32],
    text: &TextCodec,
    context: usize,
    clock: &Clock,
    out: &mut Emitter,
) -> Option<FinishReason> {
    let margin = Some(decode::margin(logits));
    let token = sequence.sampler.choose(logits, &sequence.tokens);
    let index = sequence.output().len() as u64;
    sequence.tokens.push(token);
    let stop = text.end_of_turn().contains(&token);
    let piece = if stop { String::new() } else { sequence.stream.push(token) };
    sequence.text.push_str(&piece);
    let (lane, request) = (Some(sequence.submission.lane), Some(sequence.request));
    out.emit(clock.now(), lane, request, Body::Token { token, text: piece, index, margin });
    if stop {
        Some(FinishReason::Stop)
    } else if index + 1 >= sequence.submission.max_output_tokens {
        Some(FinishReason::Length)
    } else if sequence.tokens.len() >= context {
        Some(FinishReason::Context)
    } else {
        None
    }
}
