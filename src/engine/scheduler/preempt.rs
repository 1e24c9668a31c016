//! Making way: what becomes of those that run when there is no room for all of them.
//!
//! The sequence admitted last gives everything back, having stored what may be stored, and waits at the head of the queue with the reply it has written
//! so far. When there is room again it restores what the cache still has of prompt and reply, computes the rest and goes on, to the same tokens:
//! a token's state does not depend on how it came about. The oldest never makes way while it can compute, so something always ends.

use std::sync::Arc;

use super::forward::Work;
use super::store::{Kept, not_taken, together};
use super::{Refused, Scheduler, StepOutcome};
use crate::device::DeviceError;
use crate::engine::clock::Clock;
use crate::engine::emitter::Emitter;
use crate::engine::sequence::{Sequence, Stage, WaitsForRoom};
use crate::event::{Body, RequestId, Stamp};

/// A sequence for whose part of a forward the device had no memory.
pub(super) struct Starved {
    pub(super) request: RequestId,
    pub(super) error: Arc<DeviceError>,
    /// Whether the state it starts from may be gone.
    pub(super) overwritten: bool,
}

impl<'a> Scheduler<'a> {
    /// The running sequence that makes way for the others: the one admitted last, but for the oldest and for those that have not got anywhere since
    /// they made way before.
    fn last_admitted(&self) -> Option<usize> {
        let block_tokens = self.cache.block_tokens();
        let gives_way = |sequence: &Sequence<'_>| {
            !matches!(sequence.stage, Stage::Storing(_)) && !sequence.is_protected(block_tokens)
        };
        (1..self.running.len()).rev().find(|index| gives_way(&self.running[*index]))
    }

    /// Has one sequence make way for those that got no pages for their part of `work`; the next step plans anew. Where none can, those of them wait
    /// that need not go on, and the others compute as much as their pages hold.
    pub(super) fn make_room(
        &mut self,
        cramped: &[usize],
        work: &mut Vec<Work>,
        clock: &mut Clock,
        out: &mut Emitter,
    ) {
        if let Some(last) = self.last_admitted() {
            work.clear();
            return self.preempt(last, false, clock, out);
        }
        let block_tokens = self.cache.block_tokens();
        let fitting = work.drain(..).filter_map(|w| match cramped.contains(&w.sequence) {
            false => Some(w),
            true => {
                let sequence = &self.running[w.sequence];
                let held = sequence.pages.len() * block_tokens;
                sequence.is_protected(block_tokens).then(|| w.up_to(held)).flatten()
            }
        });
        let fitting: Vec<Work> = fitting.collect();
        if fitting.is_empty() && !self.is_reading() {
            // Whoever was resumed was given a block to compute, so this is not to be; it must not be the end of all progress either.
            return self.preempt(self.running.len() - 1, true, clock, out);
        }
        *work = fitting;
    }

    /// Whether a scorer or a draft model reads for a running sequence, which goes on without a forward.
    fn is_reading(&self) -> bool {
        self.running.iter().any(|s| s.stage == Stage::Scoring || s.is_priming())
    }

    /// Has sequences make way after a forward for which the device had no memory. Where only one runs and its state is whole, it ends.
    pub(super) fn relieve(
        &mut self,
        starved: Vec<Starved>,
        outcome: &mut StepOutcome,
        clock: &mut Clock,
        out: &mut Emitter,
    ) {
        let others_run = self.running.len() > 1;
        let place = |scheduler: &Self, request| scheduler.running.iter().position(|s| s.request == request);
        let (overwritten, whole): (Vec<_>, Vec<_>) =
            starved.into_iter().partition(|s| s.overwritten && others_run);
        for Starved { request, .. } in overwritten.iter().rev() {
            if let Some(index) = place(self, *request) {
                self.preempt(index, true, clock, out);
            }
        }
        // Those that have just made way may have made enough room.
        let Some(Starved { request, error, .. }) =
            whole.into_iter().last().filter(|_| overwritten.is_empty())
        else {
            return;
        };
        let Some(index) = place(self, request) else { return };
        if !others_run {
            outcome.ended.extend(self.fail(request, Refused::Device(error), clock, out));
            return;
        }
        match self.last_admitted() {
            Some(last) => self.preempt(last, last == index, clock, out),
            // It cannot go on, so that it has not got anywhere protects it from nothing.
            None if index > 0 => self.preempt(index, true, clock, out),
            // Those that have not got anywhere yet may never, as long as the oldest is in their way: it is tried alone.
            None => self.leave_alone_the_oldest(clock, out),
        }
    }

    /// Has the last of those behind the oldest make way, whether it got anywhere or not.
    fn leave_alone_the_oldest(&mut self, clock: &mut Clock, out: &mut Emitter) {
        let last = (1..self.running.len()).next_back();
        if let Some(last) = last.filter(|last| !matches!(self.running[*last].stage, Stage::Storing(_))) {
            self.preempt(last, false, clock, out);
        }
    }

    /// Has a running sequence make way. Where it is to be `alone` when it is resumed, it waits until nothing else runs.
    fn preempt(&mut self, index: usize, alone: bool, clock: &mut Clock, out: &mut Emitter) {
        let mut sequence = self.running.remove(index);
        let (lane, request) = (sequence.submission.lane, sequence.request);
        let drafts = sequence.speculating.is_some();
        self.end_speculation(&mut sequence, clock.now());
        let kept = sequence.submission.use_cache.then(|| self.keep(&mut sequence, clock));
        let restorable =
            kept.as_ref().map_or(0, |kept| self.cache.restorable_prefix(&sequence.tokens[..kept.storable]));
        let body = Body::Preempted {
            blocks_stored: kept.as_ref().map_or(0, |kept| kept.stored.new_blocks as u64),
            tokens_lost: sequence.computed.saturating_sub(restorable) as u64,
        };
        let (reached, left_out) = (sequence.reached(), not_taken(&sequence));
        let earlier = &mut sequence.earlier;
        earlier.preemptions += 1;
        (earlier.reached, earlier.drafts) = (reached, drafts);
        earlier.not_taken += left_out;
        if let Some(Kept { stored, tier, .. }) = kept {
            earlier.snapshots += stored.new_snapshots as u64;
            earlier.tier = together(earlier.tier, tier);
        }
        self.put_back(sequence, alone);
        out.emit(clock.now(), Some(lane), Some(request), body);
        self.report_memory(lane, request, clock, out);
    }

    /// Has a sequence give back what it holds and wait for room, before all others.
    pub(super) fn put_back(&mut self, mut sequence: Sequence<'a>, alone: bool) {
        self.release(&mut sequence);
        sequence.stage = Stage::Queued;
        sequence.resumed_at = None;
        sequence.waits = Some(WaitsForRoom { alone, releases: self.releases });
        self.queue.push_front(sequence);
    }

    /// Goes on with a sequence that had made way and is the last of those running: finds and attaches what the cache still has of it.
    pub(super) fn resume(
        &mut self,
        set_aside: Result<(), Refused>,
        outcome: &mut StepOutcome,
        clock: &mut Clock,
        out: &mut Emitter,
    ) {
        let Some(sequence) = self.running.last() else { return };
        let (lane, request, now) = (Some(sequence.submission.lane), sequence.request, clock.now());
        let (attached, _) = self.counting_evictions(|scheduler| {
            clock.measure(|| set_aside.and_then(|()| scheduler.bring_back(now)))
        });
        self.report_tier_trouble(lane, Some(request), clock, out);
        if let Err(refused) = attached {
            return self.turn_away(request, refused, outcome, clock, out);
        }
        let Some(sequence) = self.running.last_mut() else { return };
        sequence.resumed_at = Some((sequence.computed, sequence.output().len()));
        // A scoring that was under way begins anew.
        sequence.stage = if sequence.scoring.is_some() { Stage::Scoring } else { Stage::Prefilling };
        let (restored, drafts) = (sequence.computed, sequence.earlier.drafts);
        let body = Body::Resumed {
            restored_tokens: restored as u64,
            to_compute_tokens: sequence.reached().saturating_sub(restored) as u64,
        };
        clock.spend(self.executor.restore_cost(restored));
        out.emit(clock.now(), lane, Some(request), body);
        if drafts {
            self.begin_speculation(clock, out);
        }
    }

    /// Attaches what the cache has of the sequence admitted last, and gets it the next block's page, so that it can get somewhere.
    fn bring_back(&mut self, now: Stamp) -> Result<(), Refused> {
        let index = self.running.len() - 1;
        let sequence = &self.running[index];
        let known = sequence.findable().to_vec();
        let submission = sequence.submission.clone();
        let mut prompt = super::admit::prompt_of(&submission);
        prompt.tokens = &known;
        self.fetch(index, prompt, now).attached?;
        let next = self.running[index].computed + 1;
        self.allocate_held_state(index, next, now)
    }
}
