//! Debt: what becomes of it when a request has ended, and how much of what was paid the next request is shown.

use super::Scheduler;
use super::recover::Over;
use crate::cache::lookup::Found;
use crate::config::{AdoptionRule, PlaceholderPolicy, RecoveryPolicy, SnapshotPolicy};
use crate::engine::clock::Clock;
use crate::engine::emitter::Emitter;
use crate::engine::sequence::{Course, Sequence, Submission};
use crate::event::{Body, DebtConsidered, DebtTaken, LaneId, Route, SparseVerdict};
use crate::recovery::budget::Grant;
use crate::recovery::job::{Candidate, Declined, End, Job, Taken};

impl Scheduler<'_> {
    /// Decides what becomes of the debt of a sequence that has ended.
    pub(super) fn consider_debt(&mut self, sequence: &Sequence<'_>, clock: &Clock, out: &mut Emitter) {
        if !self.background.is_on() || !sequence.submission.use_cache {
            return;
        }
        let candidate = self.candidate(sequence);
        let block_tokens = self.cache.block_tokens() as u64;
        let target = candidate.prompt.len() as u64 / block_tokens * block_tokens;
        let lane = sequence.submission.lane;
        let taken = self.take_debt(&candidate, lane, clock, out);
        let considered = DebtConsidered {
            taken,
            target_tokens: target,
            canonical_tokens: candidate.canonical.min(target),
        };
        let request = Some(sequence.request);
        out.emit(clock.now(), Some(lane), request, Body::DebtConsidered(Box::new(considered)));
    }

    fn candidate(&self, sequence: &Sequence<'_>) -> Candidate {
        let skipped = matches!(&sequence.course, Course::Sparse { positions, .. } if positions.len() < sequence.prompt_tokens());
        Candidate {
            request: sequence.request,
            prompt: sequence.submission.prompt.as_slice().into(),
            route: if skipped { Route::Sparse } else { Route::Dense },
            canonical: self.cache.restorable_prefix(&sequence.submission.prompt) as u64,
        }
    }

    fn take_debt(
        &mut self,
        candidate: &Candidate,
        lane: LaneId,
        clock: &Clock,
        out: &mut Emitter,
    ) -> DebtTaken {
        let block_tokens = self.cache.block_tokens() as u64;
        let (mode, policy) = (self.background.config.mode, self.background.config.policy);
        let budget = self.background.grant(clock) != Grant::Nothing;
        if self.cache.is_recurrent() && self.policies.snapshot == SnapshotPolicy::None {
            return DebtTaken::Declined { why: Declined::Unrestorable };
        }
        if let Ok(new) = Job::of(candidate, mode, block_tokens, budget)
            && let Some(rival) = self.background.place.rival(candidate)
        {
            let stays = match policy {
                RecoveryPolicy::Idle => true,
                RecoveryPolicy::Cheapest => rival.owes() <= new.owes(),
                _ => false,
            };
            if stays {
                return DebtTaken::LeftOut { job: self.background.id };
            }
        }
        let before = self.background.id;
        match self.background.place.take(candidate, mode, block_tokens, budget) {
            Taken::Declined(why) => DebtTaken::Declined { why },
            Taken::Covered => DebtTaken::Covered { job: before },
            Taken::Extended { from } => {
                // No live state is left to be lengthened: the request took its place.
                self.background.lane = lane;
                DebtTaken::Extended { job: before, from }
            }
            Taken::Began => {
                self.background.lane = lane;
                DebtTaken::Began { job: self.background.begin() }
            }
            Taken::Replaced(old) => {
                if let Some(mut live) = self.live.take() {
                    self.release(&mut live);
                }
                self.tell_end_of_job(&old, Over::by(End::Replaced), clock, out);
                self.background.lane = lane;
                DebtTaken::Replaced { job: self.background.begin(), replaced: before }
            }
        }
    }

    /// Tokens that the next request of the job's lane is shown of these, which are published.
    pub(super) fn visible_of(&self, tokens: &[u32]) -> u64 {
        let block_tokens = self.cache.block_tokens();
        let durable = tokens.len() / block_tokens;
        if self.background.adopts_at_once() {
            return (durable * block_tokens) as u64;
        }
        let recovered = self.recovered_from(&self.cache.look_up(tokens), durable);
        let keep = self.sparse.keep();
        let lane = self.background.lane;
        let visible =
            self.background.visible(lane, durable, recovered.unwrap_or(durable), block_tokens, keep);
        (visible * block_tokens) as u64
    }

    /// Leading blocks that a request may start from, where recovery has published more than is adopted; `None` withholds nothing.
    pub(super) fn shown(&self, submission: &Submission) -> Option<usize> {
        let recovers = submission.recovers.is_some();
        if recovers || self.background.adopts_at_once() || !submission.use_cache {
            return None;
        }
        let block_tokens = self.cache.block_tokens();
        let found = self.cache.look_up(&submission.prompt);
        let choice = found.choose(&self.cache, submission.prompt.len(), 0, PlaceholderPolicy::WalkBack);
        let recovered = self.recovered_from(&found, choice.blocks)?;
        if self.background.config.adoption == AdoptionRule::Cost {
            // Where the suffix is short enough for the dense route nothing is scored, so nothing speaks against all of it.
            let start = choice.blocks * block_tokens;
            let admission = self.sparse.admission(submission, start, self.text)?;
            if admission.1.verdict != SparseVerdict::Sparse {
                return None;
            }
        }
        let keep = self.sparse.keep();
        Some(self.background.visible(submission.lane, choice.blocks, recovered, block_tokens, keep))
    }

    /// The first of the leading `blocks` that a job published.
    fn recovered_from(&self, found: &Found, blocks: usize) -> Option<usize> {
        let leading = &found.blocks[..blocks.min(found.blocks.len())];
        leading.iter().position(|candidate| candidate.provenance.route == Route::Recovery)
    }
}
