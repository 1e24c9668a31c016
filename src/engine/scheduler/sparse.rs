//! Sparse prefill in a request's life: admission after the restore, the scoring, the choice of what is computed.
//!
//! Whether a suffix is computed sparsely is decided once, between the restore and the first chunk. Then the scorer works, a piece a step, so that
//! other sequences go on decoding meanwhile. Whatever goes wrong with it, the suffix is computed densely, and that is told.

use std::collections::BTreeMap;

use super::{Scheduler, StepOutcome};
use crate::config::{Config, SparseLeaves, SparseOverride};
use crate::device::KeyWeights;
use crate::engine::Rescore;
use crate::engine::clock::Clock;
use crate::engine::emitter::Emitter;
use crate::engine::sequence::{Course, Sequence, Stage, Submission, UnderScoring};
use crate::event::{
    Body, LaneId, Nanos, Phase, RequestId, Rescored, Route, Scored, Source, SparseAdmission, SparseVerdict,
    Stamp,
};
use crate::model::text::TextCodec;
use crate::prefill::scorer::{ScoredWindow, Scorer, Scoring, ScoringFailed};
use crate::prefill::sparse::{Admission, Plan, admit, importance, resolve, select, unit_scores};

/// Tokens of text shown on either side of the protected prefix's end.
const BOUNDARY_TOKENS: usize = 8;

/// The scorer, and what decides on its use.
#[derive(Default)]
pub struct SparseSide {
    scorer: Option<Scorer>,
    config: Config,
    by_hand: SparseOverride,
    captured: Option<Captured>,
    /// Requests that were to be computed sparsely, by lane: every so many, one pays the debt.
    owing: BTreeMap<LaneId, u64>,
}

/// The attention that the latest scoring captured.
struct Captured {
    request: RequestId,
    origin: usize,
    weights: KeyWeights,
}

impl SparseSide {
    /// A scorer, where there is one, used as the configuration says.
    pub fn new(scorer: Option<Scorer>, config: Config) -> SparseSide {
        SparseSide { scorer, config, ..SparseSide::default() }
    }

    /// The fraction of the scored units that is computed, as configured or set by hand.
    pub(super) fn keep(&self) -> f64 {
        let nobody = SparseOverride::default();
        resolve(&self.config, None, nobody, self.by_hand).keep.value
    }

    pub(super) fn scorer_mut(&mut self) -> Option<&mut Scorer> {
        self.scorer.as_mut()
    }
}

impl Scheduler<'_> {
    /// Sets sparse prefill by hand, for requests that are admitted from now on.
    pub fn set_sparse_by_hand(&mut self, by_hand: SparseOverride) {
        self.sparse.by_hand = by_hand;
    }

    /// Whether there is a scorer, so that submissions need their protected prefix measured.
    pub fn has_scorer(&self) -> bool {
        self.sparse.scorer.is_some()
    }

    /// Decides how the suffix of the sequence admitted last is computed, and tells that. `false` where it is computed densely, which is still
    /// to be told.
    pub(super) fn consider_sparse(&mut self, uncached_suffix: u64, clock: &Clock, out: &mut Emitter) -> bool {
        let Some(sequence) = self.running.last_mut() else { return false };
        let submission = &sequence.submission;
        let (lane, request) = (Some(submission.lane), Some(sequence.request));
        let Some((admission, told)) = self.sparse.admission(submission, sequence.restored, self.text) else {
            return false;
        };
        let (verdict, keep) = (told.verdict, told.settings.keep.value);
        self.sparse.count(submission, verdict);
        if self.sparse.scorer.is_some() {
            out.emit(clock.now(), lane, request, Body::SparseAdmitted(Box::new(told)));
        }
        if verdict != SparseVerdict::Sparse {
            return false;
        }
        out.emit(clock.now(), lane, request, Body::Routed { route: Route::Sparse, uncached_suffix });
        if self.sparse.scorer.is_some() {
            sequence.scoring = Some(UnderScoring { scoring: None, admitted: (admission, keep) });
            sequence.stage = Stage::Scoring;
        } else {
            fall_back(sequence, &ScoringFailed::NoScorer, clock, out);
        }
        true
    }

    /// Does a piece of the oldest scoring's work.
    pub(super) fn score_one(&mut self, outcome: &mut StepOutcome, clock: &mut Clock, out: &mut Emitter) {
        let Some(scorer) = &mut self.sparse.scorer else { return };
        let Some(sequence) = self.running.iter_mut().find(|s| s.stage == Stage::Scoring) else { return };
        let Some(UnderScoring { scoring, admitted }) = sequence.scoring.take() else { return };
        let (lane, request) = (Some(sequence.submission.lane), sequence.request);
        let begun = match scoring {
            Some(scoring) => Ok(scoring),
            None => begin(scorer, sequence, admitted.0.origin, clock.now()),
        };
        let mut scoring = match begun {
            Ok(scoring) => scoring,
            Err(error) => return fall_back(sequence, &error, clock, out),
        };
        match scorer.step(&mut scoring, clock.now()) {
            Err(error) => {
                scorer.give_up(scoring, &error);
                fall_back(sequence, &error, clock, out);
            }
            Ok(Some(took)) => {
                clock.spend(took);
                let (done, total) = scoring.progress();
                out.emit(clock.now(), lane, Some(request), Body::ScoringProgress { done, total });
                sequence.scoring = Some(UnderScoring { scoring: Some(scoring), admitted });
            }
            Ok(None) => match scorer.finish(scoring, clock.now()) {
                Err(error) => fall_back(sequence, &error, clock, out),
                Ok(window) => {
                    let block_tokens = self.cache.block_tokens();
                    let scored = self.sparse.choose(sequence, window, admitted, block_tokens, clock);
                    self.background.note_scoring(scored.took());
                    out.emit(clock.now(), lane, Some(request), Body::Scored(Box::new(scored)));
                    let last = sequence.last_storable();
                    if let Some(state) = &mut sequence.recurrent {
                        state.capture_up_to(last);
                    }
                    sequence.stage = Stage::Prefilling;
                    outcome.phases.push((request, Phase::Score));
                }
            },
        }
    }

    /// Chooses again from the attention that the latest scoring captured, which must be that of `request`.
    pub fn rescore(&self, ticket: u64, request: RequestId, knobs: Rescore) -> Rescored {
        let answer = |problem: Option<String>| Rescored {
            ticket,
            request,
            unit_scores: Vec::new(),
            unit_tokens: knobs.unit as u64,
            selected_tokens: 0,
            kept: Vec::new(),
            problem,
        };
        let Some(Captured { request: captured, origin, weights }) = &self.sparse.captured else {
            return answer(Some("nothing has been scored yet".to_owned()));
        };
        if *captured != request {
            let problem = format!("only the attention of request {}, scored last, is kept", captured.0);
            return answer(Some(problem));
        }
        if let Err(problem) = knobs.check() {
            return answer(Some(problem.to_owned()));
        }
        let scores = unit_scores(&importance(weights, knobs.pool, knobs.aggregation), knobs.unit);
        let selection = select(&scores, weights.window, knobs.unit, knobs.keep, knobs.tail_tokens);
        Rescored {
            selected_tokens: selection.selected_tokens as u64,
            kept: selection.positions_from(*origin),
            unit_scores: scores,
            ..answer(None)
        }
    }
}

impl SparseSide {
    /// How the suffix of a submission behind `restored` tokens is computed, and what decides it. `None` where nobody asks: sparse prefill is off and
    /// no scorer is loaded.
    pub(super) fn admission(
        &self,
        submission: &Submission,
        restored: usize,
        text: &TextCodec,
    ) -> Option<(Admission, SparseAdmission)> {
        let Submission { prompt, specprefill, protected_tokens, .. } = submission;
        let settings = resolve(&self.config, submission.transport.as_deref(), *specprefill, self.by_hand);
        if self.scorer.is_none() && !settings.enabled.value {
            return None;
        }
        let threshold = usize::try_from(settings.threshold.value).unwrap_or(usize::MAX);
        let end = *protected_tokens;
        let admission = admit(prompt.len(), restored, end, threshold);
        let around = |from: usize, to: usize| {
            text.decode(prompt.get(from..to.min(prompt.len())).unwrap_or_default(), true)
        };
        let verdict = match admission.verdict {
            _ if !settings.enabled.value => SparseVerdict::Off,
            SparseVerdict::Sparse if self.is_dense_turn(submission) => SparseVerdict::DenseTurn,
            verdict => verdict,
        };
        let told = SparseAdmission {
            verdict,
            protected_tokens: end as u64,
            boundary_before: around(end.saturating_sub(BOUNDARY_TOKENS), end),
            boundary_after: around(end, end + BOUNDARY_TOKENS),
            suffix_tokens: admission.suffix as u64,
            to_score_tokens: admission.to_score as u64,
            settings,
        };
        Some((admission, told))
    }

    /// Whether a submission that would be computed sparsely is the one of so many that pays the lane's debt.
    fn is_dense_turn(&self, submission: &Submission) -> bool {
        let Some(every) = self.config.recovery.dense_every() else { return false };
        let before = self.owing.get(&submission.lane).copied().unwrap_or(0);
        pays(submission) && (before + 1).is_multiple_of(every)
    }

    /// Switches dense turns on or off, where the policy is one of them.
    pub(super) fn switch_dense_turns(&mut self, on: bool) {
        self.config.recovery.enabled = on;
    }

    /// Takes note of an admission, for the dense turns of its lane.
    fn count(&mut self, submission: &Submission, verdict: SparseVerdict) {
        if matches!(verdict, SparseVerdict::Sparse | SparseVerdict::DenseTurn) && pays(submission) {
            *self.owing.entry(submission.lane).or_default() += 1;
        }
    }

    /// Chooses what is computed of a window that was scored, and sets the sequence on that course.
    fn choose(
        &mut self,
        sequence: &mut Sequence<'_>,
        scored: ScoredWindow,
        (admission, keep): (Admission, f64),
        block_tokens: usize,
        clock: &mut Clock,
    ) -> Scored {
        let ScoredWindow { origin, window, cached, start, stored, steps, prefill, lookahead, weights } =
            scored;
        let knobs = &self.config.specprefill;
        let ((scores, selection, plan), chosen) = clock.measure(|| {
            let scores = unit_scores(&importance(&weights, knobs.pool, knobs.aggregation), knobs.unit);
            let selection = select(&scores, window, knobs.unit, keep, knobs.tail_tokens);
            let plan = Plan::new(&admission, &selection, knobs.leaves, block_tokens);
            (scores, selection, plan)
        });
        clock.spend(weights.compute);
        let Plan { positions, dense_until, first_skipped } = plan;
        let positions: Vec<u32> = (0..sequence.restored as u32).chain(positions).collect();
        let dense = first_skipped.unwrap_or(positions.len());
        let stores = knobs.leaves != SparseLeaves::Nothing;
        sequence.course = Course::Sparse { positions, dense, stores };
        let scored = Scored {
            origin: origin as u64,
            scored_tokens: window as u64,
            draft_cached_tokens: cached as u64,
            start,
            draft_stored_tokens: stored.map(|stored| stored as u64),
            lookahead_steps: steps as u64,
            prefill,
            lookahead,
            importance: Nanos(weights.compute.0 + chosen.0),
            unit_tokens: knobs.unit as u64,
            unit_scores: scores,
            selected_tokens: selection.selected_tokens as u64,
            kept: selection.positions_from(origin),
            dense_until: dense_until as u64,
        };
        self.captured = Some(Captured { request: sequence.request, origin, weights });
        scored
    }
}

/// Whether what a submission stores helps the requests after it. One beside the line of history pays nothing for those on it.
fn pays(submission: &Submission) -> bool {
    submission.source != Source::Side
}

/// Starts the scorer on a sequence's window.
fn begin(
    scorer: &mut Scorer,
    sequence: &Sequence<'_>,
    origin: usize,
    now: Stamp,
) -> Result<Scoring, ScoringFailed> {
    let Submission { prompt, lane, use_cache, .. } = &sequence.submission;
    scorer.begin(sequence.request, *lane, prompt[origin..].to_vec(), origin, *use_cache, now)
}

/// Has the suffix computed densely after all.
fn fall_back(sequence: &mut Sequence<'_>, error: &ScoringFailed, clock: &Clock, out: &mut Emitter) {
    let (lane, request) = (Some(sequence.submission.lane), Some(sequence.request));
    let message = error.to_string();
    tracing::warn!(request = sequence.request.0, message, "the suffix is computed densely");
    out.emit(clock.now(), lane, request, Body::SparseFellBack { message });
    let uncached_suffix = (sequence.prompt_tokens() - sequence.restored) as u64;
    out.emit(clock.now(), lane, request, Body::Routed { route: Route::Dense, uncached_suffix });
    sequence.stage = Stage::Prefilling;
}
