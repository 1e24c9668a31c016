//! What a forward gave a sequence that decodes: which tokens stand, what is taken back, what is told.

use std::sync::Arc;

use super::forward::Work;
use super::{Scheduler, StepOutcome, end_reply};
use crate::cache::pool::SlotRef;
use crate::decode::controller::Outcome;
use crate::decode::draft::Draft;
use crate::decode::{Accepted, verify};
use crate::device::{DeviceError, Executor, LogitRows, PageId, Span, StateFlow};
use crate::engine::clock::{Clock, Laps};
use crate::engine::emitter::Emitter;
use crate::engine::sequence::Sequence;
use crate::event::{
    Audit, Body, Cycle, ExpertsTouched, FinishReason, Identity, Logits, Nanos, Phase, RequestId, VerifyCurve,
};
use crate::model::text::TextCodec;

/// By how many standard deviations of a row of logits recomputation may differ, on a device that promises no bits.
const TOLERANCE: f32 = 0.05;

/// Widths whose cost is measured, and how often each.
const CURVE: (std::ops::RangeInclusive<usize>, usize) = (1..=8, 5);

/// A forward's part for one sequence.
pub(super) struct Rows<'a> {
    /// Logits of the rows that wanted them.
    pub(super) logits: &'a [f32],
    /// Compute time of the whole forward.
    pub(super) compute: Nanos,
    /// Other sequences in it.
    pub(super) neighbours: usize,
    pub(super) experts: Option<ExpertsTouched>,
}

/// What is left to do for a sequence when all of a forward's rows are taken: nothing else may be computed before, or what others drafted could not be
/// taken back any more.
pub(super) struct Left<'a> {
    request: RequestId,
    work: Work,
    kept: usize,
    /// Where its recurrent state stood before.
    before: Option<SlotRef>,
    logits: &'a [f32],
    audits: bool,
    /// The cycle, to be told.
    cycle: Option<Box<Cycle>>,
    ended: Option<FinishReason>,
}

/// A token of a reply on its way out.
struct Piece {
    token: u32,
    text: String,
    end: Option<FinishReason>,
}

impl Scheduler<'_> {
    /// Takes the rows of a sequence that decodes, or that has just been prefilled: `work` is its part of the forward, which is over.
    pub(super) fn take_rows<'r>(
        &mut self,
        work: &Work,
        rows: &Rows<'r>,
        clock: &mut Clock,
        out: &mut Emitter,
    ) -> Result<Left<'r>, DeviceError> {
        let (vocab, context, tell) = (self.executor.facts().vocab, self.context_tokens(), self.tell_logits);
        let audits = self.audits(work);
        let before = self.running[work.sequence].recurrent.as_ref().and_then(|state| state.stands_at());
        let sequence = &mut self.running[work.sequence];
        let (lane, request) = (Some(sequence.submission.lane), Some(sequence.request));
        let first = sequence.output().len();
        if tell && first == 0 {
            let logits = Logits(rows.logits[..vocab].to_vec());
            out.emit(clock.now(), lane, request, Body::ReplyLogits { logits });
        }
        let proposal =
            sequence.speculating.as_mut().map(|s| std::mem::take(&mut s.proposal)).unwrap_or_default();
        let given = proposal.draft.tokens.len() as u32;
        if let Some(decision) = proposal.ordinary {
            out.emit(clock.now(), lane, request, Body::DepthDecided(decision));
        }
        let draft = if work.drafted > 0 { proposal.draft } else { Draft::default() };
        let prompt = sequence.prompt_tokens();
        let (stops, most) = (self.text.end_of_turn(), sequence.submission.max_output_tokens);
        let end = |known: &[u32]| end_of(known, prompt, stops, most, context);
        let (Sequence { sampler, tokens, .. }, margins) = (&mut *sequence, &mut self.margins);
        margins.clear();
        let mut laps = Laps::begin();
        let Accepted { tokens: emitted, tested, ended_drafted } =
            verify(sampler, rows.logits, vocab, &draft, tokens, margins, |known| end(known).is_some());
        let sample = laps.lap(clock);
        self.sampling.0 += sample.0;
        // The last of them is new to the target: the tokens before it are what was computed of use.
        let decoding = first > 0;
        let kept = if decoding { work.start + emitted } else { work.end };
        let rewound = work.flow.filter(|_| kept < work.end);
        let rollback = match rewound {
            Some(flow) => {
                let rewound = self.executor.rewind(flow, emitted);
                let took = laps.lap(clock);
                rewound?;
                took
            }
            None => Nanos(0),
        };
        let sequence = &mut self.running[work.sequence];
        sequence.computed = kept;
        match &mut sequence.recurrent {
            Some(state) if work.apart => state.advance_apart(work.end, &mut self.cache),
            Some(state) => state.advance(work.end, &mut self.cache),
            None => {}
        }
        if let Some(entries) = &mut sequence.head {
            entries.forget(kept);
        }
        let pieces = pieces(sequence, first, self.text, |known| end(known));
        let commit = laps.lap(clock);
        let drafting = proposal.took;
        if decoding {
            sequence.shared_forwards += u64::from(rows.neighbours > 0);
            sequence.decode.0 += rows.compute.0 + drafting.0 + sample.0 + rollback.0 + commit.0;
        }
        let ended = pieces.last().and_then(|piece| piece.end);
        let at = laps.stamp(clock);
        for (offset, (piece, margin)) in pieces.into_iter().zip(&self.margins).enumerate() {
            let Piece { token, text, .. } = piece;
            let (index, margin) = ((first + offset) as u64, Some(*margin));
            out.emit(at, lane, request, Body::Token { token, text, index, margin });
        }
        let mut cycle = None;
        if let Some(speculating) = sequence.speculating.as_mut().filter(|_| decoding) {
            let alone = rows.neighbours == 0;
            let took = Nanos(rows.compute.0 + drafting.0 + sample.0 + rollback.0 + commit.0);
            let (drafted, accepted) = (draft.tokens.len() as u32, emitted as u32 - 1);
            let depth = proposal.depth.unwrap_or(0);
            // What was drafted for nothing, because memory did not allow it, says nothing of the cost.
            let measured = alone && drafted == given;
            let (took, seen) = (measured.then_some(took), (drafted, accepted));
            // A drafted token that ended the reply stood, and those behind it were not put to the test.
            let seen = if ended_drafted { (accepted + 1, accepted + 1) } else { seen };
            let took = took.filter(|_| !ended_drafted);
            speculating.observe(&Outcome { depth, drafted: seen.0, accepted: seen.1, took });
            let told = proposal.depth.map(|depth| Cycle {
                first: first as u64,
                context_tokens: work.start as u64,
                depth,
                drafted,
                tested: tested as u32,
                accepted,
                proposed: draft.tokens.iter().map(|token| self.text.decode(&[*token], true)).collect(),
                draft: drafting,
                verify: alone.then_some(rows.compute),
                sample,
                rollback,
                commit,
                neighbours: rows.neighbours as u32,
                experts: rows.experts.filter(|_| alone),
                audit: None,
            });
            cycle = told.map(Box::new);
        }
        let request = sequence.request;
        Ok(Left { request, work: *work, kept, before, logits: rows.logits, audits, cycle, ended })
    }

    /// Does what is left when all rows of a forward are taken: audits, tells the cycle, ends the reply.
    pub(super) fn do_left(
        &mut self,
        left: Left<'_>,
        outcome: &mut StepOutcome,
        clock: &mut Clock,
        out: &mut Emitter,
    ) -> Result<(), DeviceError> {
        let Left { request, work, kept, before, logits, audits, cycle, ended } = left;
        let index = work.sequence;
        let lane = Some(self.running[index].submission.lane);
        if let Some(mut cycle) = cycle {
            if audits {
                cycle.audit = self.audit(&work, kept, before, logits)?;
            }
            out.emit(clock.now(), lane, Some(request), Body::Cycled(cycle));
        }
        if let Some(reason) = ended {
            outcome.phases.push((request, Phase::Decode));
            self.tell_curve(index, clock, out);
            end_reply(&mut self.running[index], reason, clock, out);
        }
        Ok(())
    }

    /// Whether what this forward leaves is to be compared with recomputation.
    fn audits(&self, work: &Work) -> bool {
        let sequence = &self.running[work.sequence];
        let audited = sequence.speculating.as_ref().is_some_and(|s| s.audits);
        // What was overwritten cannot be computed again.
        let overwritten = work.flow.is_some_and(|flow| flow.from == Some(flow.to));
        audited && !sequence.output().is_empty() && !overwritten
    }

    /// Computes the tokens that a cycle kept once more, one after another from the state before it, and compares state and logits: all bits, or where
    /// the device promises none the logits, those of the next token among them. The time it takes is not part of the cycle; a wall clock runs on.
    /// `None` where there is no slot to do it in.
    fn audit(
        &mut self,
        work: &Work,
        kept: usize,
        before: Option<SlotRef>,
        logits: &[f32],
    ) -> Result<Option<Audit>, DeviceError> {
        let sequence = &self.running[work.sequence];
        let how = self.executor.facts().identity;
        let pages: Vec<PageId> = sequence.pages.iter().map(|page| page.id()).collect();
        let slot = sequence.recurrent.as_ref().and_then(|state| state.audit_slot());
        if sequence.recurrent.is_some() && slot.is_none() {
            return Ok(None);
        }
        let stands = work.flow.map(|flow| flow.to);
        let (vocab, block) = (self.executor.facts().vocab, self.cache.block_tokens());
        let executor = &mut *self.executor;
        let digests = |executor: &dyn Executor, slot: Option<_>| {
            let touched = work.start / block..kept.div_ceil(block);
            let of_pages =
                touched.map(|page| executor.page_digest(pages[page], block.min(kept - page * block)));
            let of_pages: Vec<_> = of_pages.collect();
            (of_pages, slot.map(|slot| executor.slot_digest(slot)))
        };
        // Without hidden states it would give up the head's entries of these places.
        let hidden = sequence.head.is_some();
        let compute = |executor: &mut dyn Executor, place: usize, from| {
            let state = slot.map(|slot| StateFlow { from, to: slot.id(), revocable: false });
            let positions = sequence.positions_at(place..place + 1);
            let span = Span {
                pages: &pages,
                start: place,
                tokens: &sequence.tokens_at(place..place + 1),
                positions: positions.as_deref(),
                capture: 0,
                hidden,
                state,
                logits: LogitRows::Last,
            };
            executor.forward(&[span])
        };
        let agree = |a: &[f32], b: &[f32]| match how {
            Identity::Tolerance => within(a, b),
            _ => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits()),
        };
        let left = digests(executor, stands);
        // Where bits are not promised, what is left is judged by what comes of it: the logits of the token that is new.
        let fits = kept < pages.len() * block && sequence.tokens.len() < executor.facts().context_tokens;
        let probes = how == Identity::Tolerance && fits;
        let next = if probes { Some(compute(executor, kept, stands)?.logits) } else { None };
        let mut from = before.map(SlotRef::id);
        let mut problem = None;
        for (row, place) in (work.start..kept).enumerate() {
            let dense = compute(executor, place, from)?;
            from = slot.map(SlotRef::id);
            let given = &logits[row * vocab..(row + 1) * vocab];
            let kept_hidden = sequence.head.as_ref().and_then(|entries| entries.hidden(place));
            let differs = match () {
                () if !agree(&dense.logits, given) => Some("the logits"),
                // The head's entries are made of these.
                () if kept_hidden.is_some_and(|hidden| !agree(&dense.hidden, hidden)) => {
                    Some("the hidden state")
                }
                () => None,
            };
            if let (Some(what), None) = (differs, &problem) {
                problem = Some(format!("{what} after token {} of the cycle", row + 1));
            }
        }
        if let (Some(next), None) = (next, &problem) {
            let dense = compute(executor, kept, from)?.logits;
            problem = (!within(&dense, &next)).then(|| "what comes of the state that was kept".to_owned());
        }
        if how != Identity::Tolerance && problem.is_none() {
            let (pages, state) = digests(executor, slot.map(SlotRef::id));
            problem = match () {
                () if pages != left.0 => Some("keys and values of the tokens that were kept".to_owned()),
                () if slot.is_some() && state != left.1 => {
                    Some("the recurrent state that was kept".to_owned())
                }
                () => None,
            };
        }
        Ok(Some(Audit { passed: problem.is_none(), how, problem }))
    }

    /// Measures what forwards of several widths cost on the state that a reply leaves, where that is wanted, and tells it. That state stays as it is,
    /// and so does the request's accounted time; a wall clock runs on.
    fn tell_curve(&mut self, index: usize, clock: &Clock, out: &mut Emitter) {
        let (widths, repeats) = CURVE;
        if !self.speculation.measures || !self.reserve_ahead(index, *widths.end(), clock.now()) {
            return;
        }
        let sequence = &self.running[index];
        let start = sequence.computed;
        let context = sequence.tokens.len() + widths.end();
        if context > self.context_tokens() {
            return;
        }
        let pages: Vec<PageId> = sequence.pages.iter().map(|page| page.id()).collect();
        let positions = sequence.positions_at(start..start + widths.end());
        // Other tokens each, since with experts equal ones would share theirs.
        let tokens: Vec<u32> = sequence.tokens.iter().rev().cycle().take(*widths.end()).copied().collect();
        let mut measured: Vec<Vec<Nanos>> = vec![Vec::new(); *widths.end()];
        for _ in 0..repeats {
            for width in widths.clone() {
                let end = start + width;
                let span = Span {
                    pages: &pages,
                    start,
                    tokens: &tokens[..width],
                    positions: positions.as_ref().map(|positions| &positions[..width]),
                    capture: 0,
                    hidden: sequence.head.is_some(),
                    state: sequence.recurrent.as_ref().map(|state| state.flow_apart(end, width > 1)),
                    logits: LogitRows::All,
                };
                match self.executor.forward(&[span]) {
                    Ok(forward) => {
                        measured[width - 1].push(forward.compute);
                        self.executor.take_back(forward);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the cost of verifying cannot be measured");
                        if matches!(error, DeviceError::StateLost(_)) {
                            self.lost = Some(Arc::new(error));
                        }
                        return;
                    }
                }
            }
        }
        let median = |mut times: Vec<Nanos>| {
            times.sort_unstable();
            times[times.len() / 2]
        };
        let points = widths.map(|width| (width as u32, median(std::mem::take(&mut measured[width - 1]))));
        let curve =
            VerifyCurve { context_tokens: start as u64, points: points.collect(), repeats: repeats as u32 };
        let (lane, request) = (Some(sequence.submission.lane), Some(sequence.request));
        out.emit(clock.now(), lane, request, Body::VerifyCurve(Box::new(curve)));
    }
}

/// Why a reply ends with the last of the tokens known, if it does.
fn end_of(known: &[u32], prompt: usize, stops: &[u32], most: u64, context: usize) -> Option<FinishReason> {
    let output = known.len() - prompt;
    if known.last().is_some_and(|token| stops.contains(token)) {
        Some(FinishReason::Stop)
    } else if output as u64 >= most {
        Some(FinishReason::Length)
    } else if known.len() >= context {
        Some(FinishReason::Context)
    } else {
        None
    }
}

/// The reply's tokens from place `first` on, as text.
fn pieces(
    sequence: &mut Sequence<'_>,
    first: usize,
    text: &TextCodec,
    end: impl Fn(&[u32]) -> Option<FinishReason>,
) -> Vec<Piece> {
    let prompt = sequence.prompt_tokens();
    let mut pieces = Vec::new();
    for place in prompt + first..sequence.tokens.len() {
        let token = sequence.tokens[place];
        let stop = text.end_of_turn().contains(&token);
        let piece = if stop { String::new() } else { sequence.stream.push(token) };
        sequence.text.push_str(&piece);
        pieces.push(Piece { token, text: piece, end: end(&sequence.tokens[..=place]) });
    }
    pieces
}

/// Whether two rows of logits are within [`TOLERANCE`] of each other.
fn within(a: &[f32], b: &[f32]) -> bool {
    let mean = a.iter().sum::<f32>() / a.len().max(1) as f32;
    let deviation = (a.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / a.len().max(1) as f32).sqrt();
    a.iter().zip(b).all(|(a, b)| (a - b).abs() <= TOLERANCE * deviation.max(f32::MIN_POSITIVE))
}
