//! Speculative decoding in a request's life: the drafter it gets, the priming, and before every forward what is drafted.
//!
//! A cycle is one step: a depth is decided on, tokens are drafted, one forward verifies them together with whatever else is decoding, and what does not
//! stand is taken back. Whatever goes wrong with the drafter, the sequence decodes ordinarily, and that is told.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::{Refused, Scheduler, StepOutcome};
use crate::cache::companion::CompanionFailed;
use crate::config::{Config, ControllerKind, DrafterKind, SpeculationConfig, SpeculationOverride};
use crate::decode::controller::{DepthController, Outcome};
use crate::decode::draft::{
    Draft, DraftFailed, DraftModel, Drafter, HeadDrafter, HeadEntries, ModelDrafter, ModelSequence, Ngram,
    Reading,
};
use crate::decode::settings::{SpeculationSettings, resolve};
use crate::decode::{Sampler, Sampling};
use crate::device::{DeviceError, Executor, PageId};
use crate::engine::clock::Clock;
use crate::engine::emitter::Emitter;
use crate::engine::sequence::{Sequence, Stage};
use crate::event::{Body, DepthDecision, DepthReason, DrafterStart, Nanos, RequestId, Stamp};

/// Mixed into a request's seed for what is drawn while drafting, so that the target's stream stays its own.
const DRAFT_SEED: u64 = 0x5eed_d4af_7000_0001;

/// What drafts, and what was learned about it.
#[derive(Default)]
pub struct SpeculationSide {
    config: Config,
    by_hand: SpeculationOverride,
    model: Option<DraftModel>,
    /// What controllers know when a reply has ended, for the next one.
    controllers: HashMap<(DrafterKind, ControllerKind, u32), DepthController>,
    /// Whether the cost of forwards of several widths is measured when a reply has ended.
    pub(super) measures: bool,
}

impl SpeculationSide {
    /// A draft model, where there is one, used as the configuration says.
    pub fn new(model: Option<DraftModel>, config: Config) -> SpeculationSide {
        let measures = config.speculation.curve;
        SpeculationSide { config, model, measures, ..SpeculationSide::default() }
    }
}

/// A sequence whose tokens are drafted.
pub(in crate::engine) struct Speculating {
    settings: SpeculationSettings,
    source: Source,
    controller: DepthController,
    sampler: Sampler,
    /// Whether every cycle is audited. Where there is no room for that, nothing is drafted.
    pub(super) audits: bool,
    /// Tokens read and time taken before the first draft.
    primed: (u64, Nanos),
    /// What is drafted for the forward that comes next.
    pub(super) proposal: Proposal,
}

/// What drafts in a sequence.
enum Source {
    Ngram(Ngram),
    /// Its entries are kept by the sequence, whatever drafts.
    Head,
    Model(ModelSequence),
}

/// What is drafted for a forward.
#[derive(Debug, Default)]
pub(super) struct Proposal {
    /// Place in the reply of the token it is to be followed by; `None` where nothing was decided yet.
    first: Option<u64>,
    /// The depth decided on, where that makes a cycle; `None` while the sequence is parked.
    pub(super) depth: Option<u32>,
    pub(super) draft: Draft,
    pub(super) took: Nanos,
    /// The decision for an ordinary step, which is still to be told.
    pub(super) ordinary: Option<Box<DepthDecision>>,
}

impl Speculating {
    /// Whether the draft model still has some of the prompt to read.
    fn is_priming(&self) -> bool {
        match &self.source {
            Source::Model(sequence) => {
                let (read, prompt) = sequence.progress();
                read < prompt
            }
            Source::Ngram(_) | Source::Head => false,
        }
    }

    pub(super) fn observe(&mut self, outcome: &Outcome) {
        self.controller.observe(outcome);
    }
}

impl Sequence<'_> {
    /// Whether its drafter has to read the prompt before the target does.
    pub(super) fn is_priming(&self) -> bool {
        self.stage == Stage::Prefilling && self.speculating.as_ref().is_some_and(|s| s.is_priming())
    }

    /// Tokens drafted for its next forward.
    pub(super) fn drafted(&self) -> &[u32] {
        self.speculating.as_ref().map(|s| &s.proposal.draft.tokens[..]).unwrap_or_default()
    }
}

impl Scheduler<'_> {
    /// Has tokens drafted by `side`, for requests that are admitted from now on.
    pub fn attach_speculation(&mut self, side: SpeculationSide) {
        self.speculation = side;
    }

    /// Sets speculative decoding by hand, for requests that are admitted from now on.
    pub fn set_speculation_by_hand(&mut self, by_hand: SpeculationOverride) {
        self.speculation.by_hand = by_hand;
    }

    /// Has the cost of forwards of several widths measured whenever a reply has ended, or no longer.
    pub fn measure_verify(&mut self, measure: bool) {
        self.speculation.measures = measure;
    }

    /// Gives the sequence admitted last its drafter.
    pub(super) fn begin_speculation(&mut self, clock: &Clock, out: &mut Emitter) {
        let Some(sequence) = self.running.last_mut() else { return };
        let side = &mut self.speculation;
        let submission = &sequence.submission;
        let (lane, request, now) = (Some(submission.lane), sequence.request, clock.now());
        let settings =
            resolve(&side.config, submission.transport.as_deref(), submission.speculation, side.by_hand);
        let loaded = self.executor.facts().head_layers > 0;
        let source = match settings.drafter.value {
            DrafterKind::None => return,
            DrafterKind::Ngram => Ok(Source::Ngram(Ngram::new(side.config.speculation.ngram_tokens))),
            DrafterKind::Mtp if loaded => Ok(Source::Head),
            DrafterKind::Mtp => Err(not_loaded(DrafterKind::Mtp)),
            DrafterKind::Draft => match &mut side.model {
                None => Err(not_loaded(DrafterKind::Draft)),
                Some(model) => model
                    .begin(request, &submission.prompt, submission.use_cache, now)
                    .map(Source::Model)
                    .map_err(|error| error.to_string()),
            },
        };
        let source = match source {
            Ok(source) => source,
            Err(message) => return tell_end(lane, request, message, now, out),
        };
        let mut controller = side.controller(&settings);
        controller.start_reply();
        let seed = submission.sampling.seed ^ DRAFT_SEED;
        let sampler = Sampler::new(Sampling { seed, ..submission.sampling });
        sequence.speculating = Some(Box::new(Speculating {
            settings,
            source,
            controller,
            sampler,
            audits: side.config.speculation.audit,
            primed: (0, Nanos(0)),
            proposal: Proposal::default(),
        }));
    }

    /// Has the draft model read a chunk of the oldest prompt that it has not read.
    pub(super) fn prime_one(&mut self, clock: &mut Clock, out: &mut Emitter) {
        let Some(sequence) = self.running.iter_mut().find(|s| s.is_priming()) else { return };
        let Some(model) = &mut self.speculation.model else { return };
        let Some(speculating) = &mut sequence.speculating else { return };
        let Source::Model(of_model) = &mut speculating.source else { return };
        let (lane, request, now) = (Some(sequence.submission.lane), sequence.request, clock.now());
        let before = of_model.progress().0;
        let prompt = &sequence.submission.prompt;
        let (read, took) = clock.account(|| {
            let read = model.prime(of_model, prompt, now);
            let compute = read.as_ref().ok().copied().flatten().unwrap_or_default();
            (read, compute)
        });
        match read {
            Ok(_) => {
                let (done, total) = of_model.progress();
                let (tokens, time) = &mut speculating.primed;
                *tokens += (done - before) as u64;
                time.0 += took.0;
                let body = Body::PrimingProgress { done: done as u64, total: total as u64 };
                out.emit(clock.now(), lane, Some(request), body);
            }
            Err(error) => self.stop_drafting(request, &error, clock.now(), out),
        }
    }

    /// Drafts for every sequence whose tokens are drafted and that decodes.
    pub(super) fn draft_all(&mut self, outcome: &mut StepOutcome, clock: &mut Clock, out: &mut Emitter) {
        for index in 0..self.running.len() {
            let sequence = &self.running[index];
            if sequence.stage != Stage::Decoding || sequence.speculating.is_none() {
                continue;
            }
            let Err(lost) = self.draft_one(index, clock, out) else { continue };
            let lost = Arc::new(lost);
            return self.give_up_state(&lost, outcome, clock, out);
        }
    }

    /// Decides on a depth and drafts. An error is that the target has lost all state.
    fn draft_one(&mut self, index: usize, clock: &mut Clock, out: &mut Emitter) -> Result<(), DeviceError> {
        let now = clock.now();
        let room = self.room(index) as u32;
        let sequence = &mut self.running[index];
        let (lane, request) = (Some(sequence.submission.lane), Some(sequence.request));
        let first = sequence.output().len() as u64;
        let Some(speculating) = &mut sequence.speculating else { return Ok(()) };
        if speculating.proposal.first == Some(first) {
            // The forward it was for came to nothing, through no fault of this sequence.
            return Ok(());
        }
        let mut decision = speculating.controller.decide(first, room);
        let parked = decision.reason == DepthReason::Parked;
        let depth = decision.depth.min(room) as usize;
        let ahead = depth > 0 || speculating.audits;
        if ahead && !self.reserve_ahead(index, depth, now) {
            (decision.depth, decision.room) = (0, 0);
            decision.reason = if parked { DepthReason::Parked } else { DepthReason::Limited };
        }
        let depth = decision.depth.min(room) as usize;
        let sequence = &mut self.running[index];
        let Some(speculating) = &mut sequence.speculating else { return Ok(()) };
        let cycle = (!parked).then_some(depth as u32);
        speculating.proposal = Proposal { first: Some(first), depth: cycle, ..Proposal::default() };
        let decision = Box::new(decision);
        if depth == 0 {
            // Told with the token it leads to: whoever listens would wake up on the cores that the forward is about to use.
            speculating.proposal.ordinary = Some(decision);
            return Ok(());
        }
        out.emit(now, lane, request, Body::DepthDecided(decision));
        let Some(request) = request else { return Ok(()) };
        let (drafted, took) = clock.account(|| {
            let drafted = draft(&mut *self.executor, &mut self.speculation.model, sequence, depth, now);
            let compute = drafted.as_ref().map_or(Nanos(0), |draft| draft.compute);
            (drafted, compute)
        });
        match drafted {
            Ok(mut draft) => {
                draft.tokens.truncate(depth);
                let Some(speculating) = &mut self.running[index].speculating else { return Ok(()) };
                speculating.proposal.draft = draft;
                speculating.proposal.took = took;
                Ok(())
            }
            Err(error) => {
                let by_head = self.running[index].drafts_by_head();
                self.stop_drafting(request, &error, clock.now(), out);
                match error {
                    DraftFailed::Model(CompanionFailed::Device(lost @ DeviceError::StateLost(_)))
                        if by_head =>
                    {
                        Err(lost)
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    /// Tokens that can be drafted for a sequence at most: what the reply's budget, the context and the next boundary to be captured leave.
    fn room(&self, index: usize) -> usize {
        let sequence = &self.running[index];
        let output = sequence.output().len() as u64;
        let budget = sequence.submission.max_output_tokens.saturating_sub(output + 1);
        let context = self.context_tokens().saturating_sub(sequence.tokens.len() + 1);
        let room = (SpeculationConfig::MAX_DEPTH as usize).min(context).min(budget as usize);
        match &sequence.recurrent {
            Some(state) => state.room_apart(sequence.computed, 1 + room) - 1,
            None => room,
        }
    }

    /// Gets the pages of a forward over `drafted` tokens more than the one that is known, and the slot it writes. `false` where there is no room.
    pub(super) fn reserve_ahead(&mut self, index: usize, drafted: usize, now: Stamp) -> bool {
        let end = self.running[index].computed + 1 + drafted;
        let needed = end.div_ceil(self.cache.block_tokens());
        let (evictions, dropped) = (self.cache.evictions(), self.cache.dropped_snapshots());
        let running = &mut self.running[index];
        let mut granted = true;
        while granted && running.pages.len() < needed {
            let last = running.pages.last().copied();
            match self.cache.allocate(running.request, last, now) {
                Ok(page) => running.pages.push(page),
                Err(_) => granted = false,
            }
        }
        let audits = running.speculating.as_ref().is_some_and(|s| s.audits);
        if let Some(state) = &mut running.recurrent {
            granted &= state.prepare_apart(running.request, &mut self.cache, now);
            granted &= !audits || state.prepare_audit(running.request, &mut self.cache, now);
        }
        running.evicted_blocks += self.cache.evictions() - evictions;
        running.dropped_snapshots += self.cache.dropped_snapshots() - dropped;
        granted && matches!(self.hold_state(index), Ok(true))
    }

    /// Has a sequence decode ordinarily from now on, since its drafter failed.
    pub(super) fn stop_drafting(
        &mut self,
        request: RequestId,
        error: &DraftFailed,
        now: Stamp,
        out: &mut Emitter,
    ) {
        let Some(index) = self.running.iter().position(|s| s.request == request) else { return };
        if error.lost_state() && self.running[index].drafts_by_model() {
            // What the draft model knew of the others is gone with it.
            let others = self.running.iter().filter(|s| s.request != request && s.drafts_by_model());
            for other in others.map(|s| s.request).collect::<Vec<_>>() {
                self.end_drafting(other, error, None, now, out);
            }
        }
        self.end_drafting(request, error, Some(error), now, out);
    }

    /// Tells that a sequence decodes ordinarily from now on, and gives back what its drafter holds. `failed` is what failed in it.
    fn end_drafting(
        &mut self,
        request: RequestId,
        error: &DraftFailed,
        failed: Option<&DraftFailed>,
        now: Stamp,
        out: &mut Emitter,
    ) {
        let Some(sequence) = self.running.iter_mut().find(|s| s.request == request) else { return };
        tell_end(Some(sequence.submission.lane), request, error.to_string(), now, out);
        if let Some(state) = &mut sequence.recurrent {
            state.give_back_spare(&mut self.cache);
        }
        if let Some(speculating) = sequence.speculating.take() {
            self.give_back_drafter(*speculating, failed);
        }
    }

    /// Has a sequence go on without the prediction head, which failed to read its tokens. Nothing of it is stored any more.
    pub(super) fn go_on_without_head(
        &mut self,
        index: usize,
        error: DeviceError,
        now: Stamp,
        out: &mut Emitter,
    ) {
        let sequence = &mut self.running[index];
        sequence.head = None;
        let request = sequence.request;
        tracing::warn!(request = request.0, %error, "the prediction head does not go on; nothing of the request is stored");
        if sequence.drafts_by_head() {
            self.stop_drafting(request, &DraftFailed::from(error), now, out);
        }
    }

    /// Ends the drafting of a reply that is complete: what was learned of its depths stays, and so does what the draft model read.
    pub(super) fn end_speculation(&mut self, sequence: &mut Sequence<'_>, now: Stamp) {
        let Some(speculating) = sequence.speculating.take() else { return };
        let Speculating { settings, source, controller, .. } = *speculating;
        let side = &mut self.speculation;
        side.controllers.insert(key(&settings), controller);
        if let (Source::Model(of_model), Some(model)) = (source, &mut side.model) {
            model.finish(of_model, &sequence.submission.prompt, now);
        }
    }

    /// Gives back what a drafter holds; nothing of it is stored.
    pub(super) fn give_back_drafter(&mut self, speculating: Speculating, error: Option<&DraftFailed>) {
        if let (Source::Model(of_model), Some(model)) = (speculating.source, &mut self.speculation.model) {
            match error {
                Some(error) => model.give_up(of_model, error),
                None => model.abandon(of_model),
            }
        }
    }

    /// Drops what the draft model has cached. Gives the blocks dropped.
    pub(super) fn evict_draft_model(&mut self, now: Stamp) -> usize {
        self.speculation.model.as_mut().map_or(0, |model| model.evict_all(now))
    }

    /// Has the prediction head's entries written up to place `end` of a sequence, as far as the tokens there are known. Gives the time it took.
    pub(super) fn write_entries(
        executor: &mut dyn Executor,
        sequence: &mut Sequence<'_>,
        end: usize,
    ) -> Result<Nanos, DeviceError> {
        let Some(mut entries) = sequence.head.take() else { return Ok(Nanos(0)) };
        let places = entries.written()..end.max(entries.written());
        let pages: Vec<PageId> = sequence.pages.iter().map(|page| page.id()).collect();
        let written = entries.write(Reading {
            executor,
            pages: &pages,
            tokens: sequence.tokens_at(places.clone()),
            positions: sequence.positions_at(places),
        });
        sequence.head = Some(entries);
        written
    }

    /// The same a chunk at a time.
    pub(super) fn write_due(
        executor: &mut dyn Executor,
        sequence: &mut Sequence<'_>,
        end: usize,
        chunk_tokens: usize,
    ) -> Result<Nanos, DeviceError> {
        let mut took = Nanos(0);
        while let Some(written) = sequence.head.as_ref().map(HeadEntries::written).filter(|w| *w < end) {
            let chunk = end.min(written + chunk_tokens.max(1));
            took.0 += Scheduler::write_entries(executor, sequence, chunk)?.0;
        }
        Ok(took)
    }

    /// The entries of a sequence of which `computed` places are restored; `None` where no head is loaded.
    pub(super) fn entries_of(&self, index: usize, computed: usize) -> Result<Option<HeadEntries>, Refused> {
        let facts = self.executor.facts();
        if facts.head_layers == 0 {
            return Ok(None);
        }
        let Some(last) = computed.checked_sub(1) else { return Ok(Some(HeadEntries::none(facts.hidden))) };
        let page = self.running[index].pages[last / facts.page_tokens].id();
        match self.executor.page_end(page) {
            Some(hidden) => Ok(Some(HeadEntries::restored(facts.hidden, computed, hidden))),
            None => {
                let problem = format!("page {} was stored without its last hidden state", page.0);
                Err(Refused::Device(Arc::new(DeviceError::Contract(problem))))
            }
        }
    }
}

impl SpeculationSide {
    /// A controller with what is known from earlier replies.
    fn controller(&self, settings: &SpeculationSettings) -> DepthController {
        let known = self.controllers.get(&key(settings)).cloned();
        known.unwrap_or_else(|| DepthController::new(settings.controller.value, settings.depth.value))
    }
}

impl Sequence<'_> {
    fn drafts_by_head(&self) -> bool {
        self.speculating.as_ref().is_some_and(|s| matches!(s.source, Source::Head))
    }

    fn drafts_by_model(&self) -> bool {
        self.speculating.as_ref().is_some_and(|s| matches!(s.source, Source::Model(_)))
    }

    /// Takes in the prompt where the drafter has yet to, and tells that the drafter is ready: the reply begins. Where it goes on, that was told.
    pub(super) fn start_drafting(&mut self, clock: &mut Clock, out: &mut Emitter) {
        let (lane, request) = (Some(self.submission.lane), Some(self.request));
        let (restored, head_priming) = (self.restored as u64, self.head_priming);
        let Some(speculating) = &mut self.speculating else { return };
        let (mut tokens, mut took) = speculating.primed;
        let cached = match &mut speculating.source {
            Source::Ngram(index) => {
                let (read, time) = clock.measure(|| index.read(&self.tokens));
                (tokens, took) = (read as u64, time);
                0
            }
            Source::Head => {
                (tokens, took) = head_priming;
                restored
            }
            Source::Model(of_model) => of_model.cached() as u64,
        };
        if self.tokens.len() > self.submission.prompt.len() {
            return;
        }
        let SpeculationSettings { drafter, depth, controller } = speculating.settings.clone();
        let start = DrafterStart {
            drafter: drafter.value,
            depth_max: depth.value,
            controller: controller.value,
            set_by: [drafter.set_by, depth.set_by, controller.set_by],
            greedy: self.submission.sampling.is_greedy(),
            primed_tokens: tokens,
            cached_tokens: cached,
            took,
        };
        out.emit(clock.now(), lane, request, Body::DrafterStarted(Box::new(start)));
    }
}

fn key(settings: &SpeculationSettings) -> (DrafterKind, ControllerKind, u32) {
    let SpeculationSettings { drafter, depth, controller } = settings;
    (drafter.value, controller.value, depth.value)
}

fn not_loaded(drafter: DrafterKind) -> String {
    let word = drafter.word();
    format!("the drafter `{word}` is not loaded: start with `speculation.drafter` = \"{word}\"")
}

fn tell_end(
    lane: Option<crate::event::LaneId>,
    request: RequestId,
    message: String,
    now: Stamp,
    out: &mut Emitter,
) {
    tracing::warn!(request = request.0, message, "the reply is decoded without drafting");
    out.emit(now, lane, Some(request), Body::DraftingEnded { message });
}

/// Drafts at most `depth` tokens for a sequence.
fn draft(
    executor: &mut dyn Executor,
    model: &mut Option<DraftModel>,
    sequence: &mut Sequence<'_>,
    depth: usize,
    now: Stamp,
) -> Result<Draft, DraftFailed> {
    let Some(mut speculating) = sequence.speculating.take() else { return Ok(Draft::default()) };
    let Speculating { source, sampler, .. } = &mut *speculating;
    let drafted = match source {
        Source::Ngram(index) => index.draft(&sequence.tokens, depth, sampler),
        Source::Model(of_model) => match model {
            Some(model) => {
                ModelDrafter { model, sequence: of_model, now }.draft(&sequence.tokens, depth, sampler)
            }
            None => Ok(Draft::default()),
        },
        Source::Head => draft_by_head(executor, sequence, depth, sampler),
    };
    sequence.speculating = Some(speculating);
    drafted
}

fn draft_by_head(
    executor: &mut dyn Executor,
    sequence: &mut Sequence<'_>,
    depth: usize,
    sampler: &mut Sampler,
) -> Result<Draft, DraftFailed> {
    let Some(mut entries) = sequence.head.take() else { return Ok(Draft::default()) };
    let (written, known) = (entries.written(), sequence.computed + 1);
    let pages: Vec<PageId> = sequence.pages.iter().map(|page| page.id()).collect();
    let tokens: Cow<'_, [u32]> = sequence.tokens_at(written..known);
    let positions = sequence.positions_at(written..known + depth - 1);
    let reading = Reading { executor, pages: &pages, tokens, positions };
    let drafted = HeadDrafter { entries: &mut entries, reading }.draft(&sequence.tokens, depth, sampler);
    sequence.head = Some(entries);
    drafted
}
