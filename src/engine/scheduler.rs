//! The scheduler: one loop of steps over many sequences.
//!
//! A step admits what has arrived, then runs one forward: one token of every sequence that is decoding together with a chunk of
//! the oldest unfinished prefill, or with as much of the prefills as the step's budget leaves (continuous batching). A sequence
//! whose reply is complete is stored by the step after. So a caller that steps can stop between any two phases of a request.
//!
//! Where there is no room for all that run, the one admitted last makes way: what of its state can be kept is stored, and it is
//! resumed from there when there is room again.

mod admit;
mod cycle;
mod debt;
mod disk;
mod forward;
mod plan;
mod preempt;
mod queue;
mod recover;
mod reserve;
mod sparse;
mod speculate;
mod store;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::background::Background;
use super::clock::Clock;
use super::emitter::Emitter;
use super::sequence::{Ended, Sequence, Stage, Submission};
use crate::cache::boundary::Boundaries;
use crate::cache::restore::Decode;
use crate::cache::served::Served;
use crate::cache::{Cache, CacheFull, StaleState};
use crate::config::{CacheConfig, PlaceholderPolicy, SchedulerConfig, SnapshotPolicy};
use crate::device::{DeviceError, Executor, MemoryUse};
use crate::event::{
    Arrival, Body, DeviceMemory, FinishReason, LaneId, Nanos, Phase, RequestId, SlotMemory, Stamp,
};
use crate::model::text::TextCodec;
use crate::recovery::arrivals::Announced;
use crate::recovery::job::Mode;
use reserve::Held;
pub use sparse::SparseSide;
pub(super) use speculate::Speculating;
pub use speculate::SpeculationSide;

/// What a step did.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepOutcome {
    /// Phases that ended in this step.
    pub phases: Vec<(RequestId, Phase)>,
    /// Requests that ended in this step.
    pub ended: Vec<Ended>,
}

/// What was known of a request before it was submitted.
#[derive(Debug, Default)]
pub(super) struct Late {
    /// Its presence in the process, where it was announced.
    pub(super) announced: Option<Announced>,
    /// How long it waited for a slice of background work to give way.
    pub(super) delayed: Option<Nanos>,
}

/// How the cache is used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Policies {
    /// Where recurrent state is captured.
    pub snapshot: SnapshotPolicy,
    /// What a match is worth whose end has none.
    pub placeholder: PlaceholderPolicy,
    /// How long a restore waits for the disk.
    pub ssd_wait: Duration,
}

impl Policies {
    /// The configured ones.
    pub fn of(config: &CacheConfig) -> Policies {
        Policies {
            snapshot: config.snapshot_policy,
            placeholder: config.placeholder_policy,
            ssd_wait: Duration::from_secs_f64(config.ssd_wait_s),
        }
    }
}

/// The sequences, the cache and the device they run on.
pub struct Scheduler<'a> {
    executor: Box<dyn Executor>,
    text: &'a TextCodec,
    cache: Cache,
    held: Held,
    config: SchedulerConfig,
    policies: Policies,
    sparse: SparseSide,
    speculation: SpeculationSide,
    /// Whether the logits that replies begin with are told.
    tell_logits: bool,
    served: Served,
    queue: VecDeque<Sequence<'a>>,
    running: Vec<Sequence<'a>>,
    background: Background,
    /// What a recovery job has computed since it last published, between two slices.
    live: Option<Sequence<'a>>,
    next_request: u64,
    stale_reads: u64,
    /// Time that went into choosing tokens.
    sampling: Nanos,
    /// The margins of the rows taken last; kept to save the allocation.
    margins: Vec<f32>,
    /// How often state was given back, or the device was to be asked anew: before that, there is no more room than there was.
    releases: u64,
    /// That the device lost all state, found where a request could not be ended for it.
    lost: Option<Arc<DeviceError>>,
}

impl Decode for TextCodec {
    fn decode(&self, tokens: &[u32]) -> String {
        TextCodec::decode(self, tokens, true)
    }
}

impl<'a> Scheduler<'a> {
    /// A scheduler without requests.
    pub fn new(
        executor: Box<dyn Executor>,
        text: &'a TextCodec,
        cache: Cache,
        config: SchedulerConfig,
        policies: Policies,
    ) -> Scheduler<'a> {
        Scheduler {
            executor,
            text,
            cache,
            held: Held::default(),
            config,
            policies,
            sparse: SparseSide::default(),
            speculation: SpeculationSide::default(),
            tell_logits: false,
            served: Served::default(),
            queue: VecDeque::new(),
            running: Vec::new(),
            background: Background::alone(),
            live: None,
            next_request: 1,
            stale_reads: 0,
            sampling: Nanos(0),
            margins: Vec::new(),
            releases: 0,
            lost: None,
        }
    }

    /// Has sparse prefill done by `sparse`, for requests that are admitted from now on.
    pub fn attach_sparse(&mut self, sparse: SparseSide) {
        self.sparse = sparse;
    }

    /// Has the logits told that replies begin with.
    pub fn tell_logits(&mut self, tell: bool) {
        self.tell_logits = tell;
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.running.is_empty()
    }

    /// Requests that run or wait.
    pub(super) fn in_work(&self) -> usize {
        self.queue.len() + self.running.len()
    }

    /// Time that went into choosing tokens so far.
    pub(super) fn sampling_time(&self) -> Nanos {
        self.sampling
    }

    /// Tokens the context holds.
    pub fn context_tokens(&self) -> usize {
        self.executor.facts().context_tokens
    }

    /// Drops cached state that no running request uses, the scorer's as well, and has the device asked again for what it refused to hold. Gives
    /// the blocks dropped.
    pub fn evict_all(&mut self, clock: &Clock) -> usize {
        let of_scorer = self.sparse.scorer_mut().map_or(0, |scorer| scorer.evict_all(clock.now()));
        let of_draft_model = self.evict_draft_model(clock.now());
        self.releases += 1;
        of_scorer + of_draft_model + self.cache.evict_all(clock.now())
    }

    /// Takes a request. It is visible from here on, though not admitted yet.
    pub fn submit(&mut self, submission: Submission, clock: &Clock, out: &mut Emitter) -> RequestId {
        self.submit_late(submission, Late::default(), clock, out)
    }

    /// The same of a request that had arrived already.
    pub(super) fn submit_late(
        &mut self,
        submission: Submission,
        late: Late,
        clock: &Clock,
        out: &mut Emitter,
    ) -> RequestId {
        let request = RequestId(self.next_request);
        self.next_request += 1;
        let arrival = Arrival {
            turn: submission.turn,
            name: submission.name.clone(),
            source: submission.source,
            change: submission.change,
            idle: Some(submission.idle),
            prompt_tokens: submission.prompt.len() as u64,
            segments: submission.segments.clone(),
            items: submission.items.clone(),
            max_output_tokens: Some(submission.max_output_tokens),
            delayed: late.delayed,
        };
        out.emit(clock.now(), Some(submission.lane), Some(request), Body::Arrived(Box::new(arrival)));
        let delayed = late.delayed.unwrap_or_default();
        let arrived_at = Stamp(clock.now().0.saturating_sub(delayed.0));
        let mut sequence = Sequence::new(request, arrived_at, submission, self.text.stream());
        sequence.announced = late.announced.or_else(|| Some(self.background.member.announce()));
        self.queue.push_back(sequence);
        request
    }

    /// How long a request that was due at `due` waited for a slice; `None` where none was in its way.
    pub(super) fn delay_of(&self, due: Stamp) -> Option<Nanos> {
        self.background.delay_of(due)
    }

    /// The same for what was sent at `at`.
    pub(super) fn delay_since(&self, at: Instant) -> Option<Nanos> {
        self.background.delay_since(at)
    }

    /// Takes note of a request that cannot run at all: it arrives and fails.
    pub fn reject(
        &mut self,
        submission: Submission,
        problem: String,
        clock: &Clock,
        out: &mut Emitter,
    ) -> Ended {
        let lane = submission.lane;
        let request = self.submit(submission, clock, out);
        self.queue.retain(|sequence| sequence.request != request);
        out.emit(clock.now(), Some(lane), Some(request), Body::Failed { message: problem });
        Ended { request, lane, text: String::new(), served: None }
    }

    /// Cancels a request. Whole blocks it has computed are stored: they are as good as any.
    pub fn cancel(&mut self, request: RequestId, clock: &mut Clock, out: &mut Emitter) -> Option<Ended> {
        let sequence = match self.running.iter().position(|s| s.request == request) {
            Some(index) => self.running.remove(index),
            None => {
                let index = self.queue.iter().position(|s| s.request == request)?;
                self.queue.remove(index)?
            }
        };
        let ended = self.finish(sequence, FinishReason::Cancelled, clock, out);
        self.background.member.serves(!self.is_idle());
        Some(ended)
    }

    /// Cancels everything.
    pub fn cancel_all(&mut self, clock: &mut Clock, out: &mut Emitter) -> Vec<Ended> {
        let requests: Vec<_> = self.running.iter().chain(&self.queue).map(|s| s.request).collect();
        requests.into_iter().filter_map(|request| self.cancel(request, clock, out)).collect()
    }

    /// Does one unit of work.
    pub fn step(&mut self, clock: &mut Clock, out: &mut Emitter) -> StepOutcome {
        self.make_way(clock, out);
        let mut outcome = StepOutcome::default();
        self.advance(&mut outcome, clock, out);
        self.background.member.serves(!self.is_idle());
        outcome
    }

    fn advance(&mut self, outcome: &mut StepOutcome, clock: &mut Clock, out: &mut Emitter) {
        if let Some(error) = self.lost.take() {
            return self.give_up_state(&error, outcome, clock, out);
        }
        if self.store_one(outcome, clock, out) || self.admit_one(outcome, clock, out) {
            return;
        }
        self.score_one(outcome, clock, out);
        if !outcome.phases.is_empty() {
            return;
        }
        self.prime_one(clock, out);
        self.forward(outcome, clock, out);
    }

    fn store_one(&mut self, outcome: &mut StepOutcome, clock: &mut Clock, out: &mut Emitter) -> bool {
        let found = self.running.iter().enumerate().find_map(|(index, s)| match s.stage {
            Stage::Storing(reason) => Some((index, reason)),
            _ => None,
        });
        let Some((index, reason)) = found else { return false };
        let sequence = self.running.remove(index);
        outcome.phases.push((sequence.request, Phase::Store));
        let ended = self.finish(sequence, reason, clock, out);
        outcome.ended.push(ended);
        true
    }

    /// Where the sequence's recurrent state is captured; `None` for a model that has none.
    fn boundaries(&self, sequence: &Sequence<'_>) -> Option<Boundaries> {
        let submission = &sequence.submission;
        if let Some(mode) = submission.recovers {
            return self.cache.is_recurrent().then(|| self.boundaries_of_job(sequence.prompt_tokens(), mode));
        }
        let policy = if submission.use_cache { self.policies.snapshot } else { SnapshotPolicy::None };
        let block_tokens = self.cache.block_tokens();
        let closest = || self.served.closest(&submission.prompt).map_or(0, |(_, common)| common);
        let branch = (policy == SnapshotPolicy::Branch).then(|| closest() / block_tokens * block_tokens);
        self.cache.is_recurrent().then(|| Boundaries {
            policy,
            block_tokens,
            prompt_tokens: sequence.prompt_tokens(),
            branch: branch.filter(|branch| *branch > 0),
            within: Boundaries::ANYWHERE,
        })
    }

    /// Where a recovery job captures: wherever it publishes.
    fn boundaries_of_job(&self, prompt_tokens: usize, mode: Mode) -> Boundaries {
        let block_tokens = self.cache.block_tokens();
        let target = prompt_tokens / block_tokens * block_tokens;
        Boundaries {
            policy: SnapshotPolicy::EVERY,
            block_tokens,
            // It holds no last token back, so the boundary at the prompt's end is one like the others.
            prompt_tokens: usize::MAX,
            branch: None,
            within: match mode {
                Mode::Progressive => Boundaries::ANYWHERE,
                Mode::Terminal => (target, target),
            },
        }
    }

    fn fail(
        &mut self,
        request: RequestId,
        refused: Refused,
        clock: &mut Clock,
        out: &mut Emitter,
    ) -> Option<Ended> {
        let index = self.running.iter().position(|s| s.request == request)?;
        let sequence = self.running.remove(index);
        Some(self.refuse(sequence, refused, clock, out))
    }

    /// Ends a request that cannot be served.
    fn refuse(
        &mut self,
        mut sequence: Sequence<'_>,
        refused: Refused,
        clock: &mut Clock,
        out: &mut Emitter,
    ) -> Ended {
        let (lane, request, text) = (sequence.submission.lane, sequence.request, sequence.text.clone());
        if matches!(refused, Refused::Stale(_)) {
            self.stale_reads += 1;
            // Whoever comes next must not find the same again.
            self.cache.discard_stale(&sequence.tokens, clock.now());
            let count = self.stale_reads;
            out.emit(clock.now(), Some(lane), Some(request), Body::StalePage { count });
        }
        self.release(&mut sequence);
        self.report_memory(lane, request, clock, out);
        let message = refused.to_string();
        out.emit(clock.now(), Some(lane), Some(request), Body::Failed { message });
        Ended { request, lane, text, served: None }
    }

    /// Gives back all that a sequence holds. A scoring begins anew, if it is to be.
    fn release(&mut self, sequence: &mut Sequence<'_>) {
        self.releases += 1;
        if let Some(speculating) = sequence.speculating.take() {
            self.give_back_drafter(*speculating, None);
        }
        let scoring = sequence.scoring.as_mut().and_then(|under| under.scoring.take());
        if let (Some(scorer), Some(scoring)) = (self.sparse.scorer_mut(), scoring) {
            scorer.abandon(scoring);
        }
        self.cache.release(&std::mem::take(&mut sequence.pages));
        if let Some(state) = sequence.recurrent.take() {
            state.release(&mut self.cache);
        }
        (sequence.head, sequence.computed) = (None, 0);
    }

    fn finish(
        &mut self,
        mut sequence: Sequence<'a>,
        reason: FinishReason,
        clock: &mut Clock,
        out: &mut Emitter,
    ) -> Ended {
        let (lane, request) = (sequence.submission.lane, sequence.request);
        if !matches!(sequence.stage, Stage::Storing(_)) {
            end_reply(&mut sequence, reason, clock, out);
        }
        self.end_speculation(&mut sequence, clock.now());
        if sequence.submission.use_cache {
            self.store(&mut sequence, clock, out);
        }
        let served = sequence.served().map(Arc::new);
        if let Some(served) = &served {
            self.served.keep(Arc::clone(served));
        }
        let ended = Ended { request, lane, served, text: sequence.text.clone() };
        let took = clock.now().since(sequence.arrived_at);
        if reason != FinishReason::Cancelled {
            self.consider_debt(&sequence, clock, out);
        }
        self.release(&mut sequence);
        self.report_memory(lane, request, clock, out);
        out.emit(clock.now(), Some(lane), Some(request), Body::Finished { reason, took });
        ended
    }

    fn device_memory(&self) -> Option<DeviceMemory> {
        let MemoryUse { active, peak, cached, limit } = self.executor.memory()?;
        Some(DeviceMemory {
            active_bytes: active,
            peak_bytes: peak,
            cached_bytes: cached,
            limit_bytes: limit,
        })
    }

    fn report_memory(&mut self, lane: LaneId, request: RequestId, clock: &Clock, out: &mut Emitter) {
        let (cached, used) = (self.cache.cached_blocks() as u64, self.cache.used_pages() as u64);
        let (snapshots, slots) = (self.cache.cached_snapshots() as u64, self.cache.used_slots() as u64);
        let budget = self.cache.budget();
        let body = Body::Memory {
            cached_blocks: cached,
            live_blocks: used.saturating_sub(cached),
            bytes: self.cache.used_bytes(),
            limit_bytes: budget.most_bytes(),
            slots: budget.is_recurrent().then(|| SlotMemory {
                snapshots,
                live: slots.saturating_sub(snapshots),
                bytes: slots * budget.slot_bytes,
            }),
            device: self.device_memory(),
        };
        out.emit(clock.now(), Some(lane), Some(request), body);
        self.report_tier(lane, request, clock, out);
    }

    #[cfg(test)]
    pub(super) fn held_pages(&self, request: RequestId) -> Vec<crate::cache::pool::PageRef> {
        self.running.iter().find(|s| s.request == request).map(|s| s.pages.clone()).unwrap_or_default()
    }

    #[cfg(test)]
    pub(super) fn held_slots(&self, request: RequestId) -> Vec<crate::cache::pool::SlotRef> {
        let sequence = self.running.iter().find(|s| s.request == request);
        sequence
            .and_then(|s| s.recurrent.as_ref())
            .map(crate::cache::recurrent::RecurrentState::slots)
            .unwrap_or_default()
    }

    /// Places computed and tokens of the reply of every running sequence.
    #[cfg(test)]
    pub(super) fn standings(&self) -> std::collections::BTreeMap<RequestId, (usize, usize)> {
        self.running.iter().map(|s| (s.request, (s.computed, s.output().len()))).collect()
    }

    /// Those that wait, first to last.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> Vec<RequestId> {
        self.queue.iter().map(|s| s.request).collect()
    }

    /// Every page that running sequences hold, as often as it is held.
    #[cfg(test)]
    pub(super) fn all_held_pages(&self) -> Vec<crate::cache::pool::PageRef> {
        self.running.iter().flat_map(|s| s.pages.iter().copied()).collect()
    }

    #[cfg(test)]
    pub(super) fn cache_mut(&mut self) -> &mut Cache {
        &mut self.cache
    }

    #[cfg(test)]
    pub(super) fn executor(&self) -> &dyn Executor {
        &*self.executor
    }
}

/// Why a request cannot be served.
#[derive(Debug, thiserror::Error)]
enum Refused {
    /// State it was to read is somebody else's.
    #[error(transparent)]
    Stale(#[from] StaleState),
    /// There is no room for its state.
    #[error(transparent)]
    Full(#[from] CacheFull),
    /// The device has no memory, or refused the work; it refuses a whole batch at once.
    #[error(transparent)]
    Device(Arc<DeviceError>),
}

impl Refused {
    /// Whether it is want of room, which others may make.
    fn wants_room(&self) -> bool {
        match self {
            Refused::Full(_) => true,
            Refused::Device(error) => matches!(**error, DeviceError::OutOfMemory { .. }),
            Refused::Stale(_) => false,
        }
    }
}

fn end_reply(sequence: &mut Sequence<'_>, reason: FinishReason, clock: &Clock, out: &mut Emitter) {
    let rest = sequence.stream.finish();
    sequence.text.push_str(&rest);
    sequence.stage = Stage::Storing(reason);
    let output_sha256 = hex(&Sha256::digest(sequence.text.as_bytes()));
    let body = Body::Decoded {
        reason,
        output_tokens: sequence.output().len() as u64,
        output_sha256,
        text: sequence.text.clone(),
        took: sequence.decode,
        shared_forwards: Some(sequence.shared_forwards),
    };
    out.emit(clock.now(), Some(sequence.submission.lane), Some(sequence.request), body);
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
