//! Judgements over a lane: where the checkpoint stepped, which step is a cliff, and what came of it.
//!
//! They are made over the *line of history*: the lane's requests and its ancestors' before the fork, in order, once they were restored.
//! A request beside that line ([`Source::Side`]) has no part in it: history goes on without it, so the checkpoint it restored says nothing
//! about the line's.

use serde::Serialize;

use super::{Ledger, RequestFacts};
use crate::event::{Cause, Culprit, LaneId, RequestId, Source};

/// How the checkpoint moved from one request of a lane to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointStep {
    /// Checkpoint tokens now minus before.
    pub delta: i64,
    /// The checkpoint fell: a cache cliff.
    pub cliff: bool,
    /// The cause recorded by the restore.
    pub cause: Cause,
    /// Requests in a row with this checkpoint, this one included.
    pub pinned: u32,
    /// The checkpoint is pinned for [`CheckpointStep::PINNED`] requests or more, and each of the last of them had a longer suffix than the one
    /// before it.
    pub ratchet: bool,
}

impl CheckpointStep {
    /// Requests in a row with the same checkpoint from which on it counts as pinned.
    pub const PINNED: u32 = 3;
}

/// A cache cliff: the checkpoint fell behind the context, and what came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cliff {
    /// The request at whose restore it fell.
    pub request: RequestId,
    /// The checkpoint of the request before it.
    pub from_tokens: u64,
    /// The checkpoint it fell to.
    pub to_tokens: u64,
    /// Why.
    pub cause: Cause,
    /// The block responsible, where a block is.
    pub block: Option<Culprit>,
    /// Requests with the checkpoint it fell to, in a row, the first included.
    pub pinned_requests: u32,
    /// The request at whose restore the checkpoint was first above what it fell to; `None` while none is.
    pub healed_by: Option<RequestId>,
    /// Sum of the uncached suffixes of the line's requests before the cliff, since the cliff before (its request included) or the start.
    pub suffix_before: u64,
    /// The same of the requests that were pinned behind it.
    pub suffix_behind: u64,
    /// What those cost, on the run's curve.
    pub seconds_behind: Option<f64>,
}

/// Where a request stands between the cliffs of its line: the study's labels. They are given afterwards, when it is known what followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointPhase {
    /// The checkpoint stands where the line began.
    Healthy,
    /// It has risen since the line began, or since it left the foot of a cliff.
    Advancing,
    /// It stands where it stood last before a cliff.
    Peak,
    /// It fell.
    Cliff,
    /// It stays where it fell to.
    Latched,
}

impl CheckpointPhase {
    /// The study's word for it.
    pub fn word(self) -> &'static str {
        match self {
            CheckpointPhase::Healthy => "healthy",
            CheckpointPhase::Advancing => "advancing",
            CheckpointPhase::Peak => "peak",
            CheckpointPhase::Cliff => "cliff",
            CheckpointPhase::Latched => "latched",
        }
    }
}

/// A request of a line of history, and how its checkpoint stands to those before it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing<'a> {
    pub(super) request: &'a RequestFacts,
    pub(super) checkpoint: u64,
    /// The checkpoint of the request before it; `None` for the first.
    pub(super) before: Option<u64>,
    pub(super) pinned: u32,
    pub(super) ratchet: bool,
    /// It is behind a cliff that is not healed, the cliff's own request included.
    pub(super) behind: bool,
}

impl Standing<'_> {
    fn fell(&self) -> bool {
        self.before.is_some_and(|before| self.checkpoint < before)
    }

    pub(super) fn step(&self) -> Option<CheckpointStep> {
        let signed = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
        Some(CheckpointStep {
            delta: signed(self.checkpoint) - signed(self.before?),
            cliff: self.fell(),
            cause: self.request.restore.as_ref()?.cause,
            pinned: self.pinned,
            ratchet: self.ratchet,
        })
    }
}

/// Goes along a line of history, oldest request first.
#[derive(Debug, Default)]
pub(super) struct Walk {
    checkpoint: Option<u64>,
    suffix: Option<u64>,
    pinned: u32,
    /// Requests in a row, within the pinned ones, whose suffix was longer than the one before.
    grown: u32,
    /// What the checkpoint fell to at cliffs that are not healed. Each is below the one before it.
    feet: Vec<u64>,
}

impl Walk {
    /// The next request's standing; `None` for one that is no part of the line.
    pub(super) fn take<'a>(&mut self, request: &'a RequestFacts) -> Option<Standing<'a>> {
        let checkpoint = request.line_checkpoint()?;
        let before = self.checkpoint.replace(checkpoint);
        let suffix_before = std::mem::replace(&mut self.suffix, request.suffix());
        let stays = before == Some(checkpoint);
        let grew = stays && suffix_before.zip(self.suffix).is_some_and(|(before, now)| now > before);
        self.pinned = if stays { self.pinned.saturating_add(1) } else { 1 };
        self.grown = if grew { self.grown.saturating_add(1) } else { 0 };
        while self.feet.last().is_some_and(|foot| *foot < checkpoint) {
            self.feet.pop();
        }
        if before.is_some_and(|before| checkpoint < before) {
            self.feet.push(checkpoint);
        }
        let ratchet = self.pinned >= CheckpointStep::PINNED && self.grown >= CheckpointStep::PINNED - 1;
        let behind = !self.feet.is_empty();
        Some(Standing { request, checkpoint, before, pinned: self.pinned, ratchet, behind })
    }
}

impl RequestFacts {
    /// The uncached suffix, as it was routed or, before that, by its definition: `prompt_tokens − checkpoint`.
    pub fn suffix(&self) -> Option<u64> {
        let defined = || Some(self.prompt_tokens?.saturating_sub(self.checkpoint()?));
        self.uncached_suffix.or_else(defined)
    }

    /// Whether the request stands beside its lane's line of history.
    pub fn is_side(&self) -> bool {
        self.source == Some(Source::Side)
    }

    /// The checkpoint, as far as it is one of the line of history.
    fn line_checkpoint(&self) -> Option<u64> {
        self.checkpoint().filter(|_| !self.is_side())
    }
}

impl Ledger {
    /// The line of history of a lane.
    fn line(&self, lane: LaneId) -> impl Iterator<Item = Standing<'_>> {
        let mut walk = Walk::default();
        self.history(lane).into_iter().filter_map(move |request| walk.take(request))
    }

    /// The cliffs of a lane's own requests, in order.
    pub fn cliff_list(&self, lane: LaneId) -> Vec<Cliff> {
        let curve = self.prefill_curve();
        let mut cliffs: Vec<Cliff> = Vec::new();
        let mut open: Vec<usize> = Vec::new();
        let mut since = 0_u64;
        for standing in self.line(lane) {
            let (request, checkpoint) = (standing.request, standing.checkpoint);
            while let Some(index) = open.pop_if(|index| cliffs[*index].to_tokens < checkpoint) {
                cliffs[index].healed_by = Some(request.id);
            }
            let suffix = request.suffix().unwrap_or(0);
            let seconds = curve.zip(request.prompt_tokens).map(|(curve, end)| curve.seconds(checkpoint, end));
            if let (true, Some(from_tokens), Some(restore)) =
                (standing.fell(), standing.before, &request.restore)
            {
                open.push(cliffs.len());
                cliffs.push(Cliff {
                    request: request.id,
                    from_tokens,
                    to_tokens: checkpoint,
                    cause: restore.cause,
                    block: restore.cause_loss().and_then(|loss| loss.block),
                    pinned_requests: 1,
                    healed_by: None,
                    suffix_before: std::mem::take(&mut since),
                    suffix_behind: suffix,
                    seconds_behind: seconds,
                });
            } else if let Some(last) = cliffs.last_mut().filter(|last| last.healed_by.is_none()) {
                last.pinned_requests = standing.pinned;
                last.suffix_behind = last.suffix_behind.saturating_add(suffix);
                last.seconds_behind = last.seconds_behind.zip(seconds).map(|(sum, more)| sum + more);
            }
            since = since.saturating_add(suffix);
        }
        cliffs.retain(|cliff| self.request(cliff.request).is_some_and(|request| request.lane == lane));
        cliffs
    }

    /// The phase of every request of a lane's line of history.
    pub fn checkpoint_phases(&self, lane: LaneId) -> Vec<(RequestId, CheckpointPhase)> {
        let mut phases: Vec<(RequestId, CheckpointPhase)> = Vec::new();
        let mut phase = CheckpointPhase::Healthy;
        let mut flat = 0_usize;
        for standing in self.line(lane) {
            let rose = standing.before.is_some_and(|before| standing.checkpoint > before);
            if standing.fell() {
                // Only a line that has risen has a peak.
                for (_, before) in phases.iter_mut().rev().take(flat) {
                    if *before == CheckpointPhase::Advancing {
                        *before = CheckpointPhase::Peak;
                    }
                }
                phase = CheckpointPhase::Cliff;
            } else if rose {
                phase = CheckpointPhase::Advancing;
            } else if phase == CheckpointPhase::Cliff {
                phase = CheckpointPhase::Latched;
            }
            flat = standing.pinned as usize;
            phases.push((standing.request.id, phase));
        }
        phases
    }

    /// The step of every request of a lane's line of history but the first.
    pub fn checkpoint_steps(&self, lane: LaneId) -> Vec<(RequestId, CheckpointStep)> {
        self.line(lane).filter_map(|standing| Some((standing.request.id, standing.step()?))).collect()
    }

    /// The step of `request` against the request before it in its lane's line of history. `None` for the first one, for
    /// one beside the line, and before the restore.
    pub fn checkpoint_step(&self, request: &RequestFacts) -> Option<CheckpointStep> {
        request.line_checkpoint()?;
        self.line(request.lane).find(|standing| standing.request.id == request.id)?.step()
    }

    /// The request before `request` in its lane's history; those beside the line are passed over.
    pub fn predecessor(&self, request: &RequestFacts) -> Option<&RequestFacts> {
        let own: Vec<_> = self.lane_requests(request.lane).collect();
        let position = own.iter().position(|r| r.id == request.id)?;
        let before = own[..position].iter().rfind(|r| !r.is_side()).copied();
        before.or_else(|| {
            self.history(request.lane).into_iter().rfind(|r| r.lane != request.lane && !r.is_side())
        })
    }

    /// The cliffs of a lane: requests whose checkpoint fell.
    pub fn cliffs(&self, lane: LaneId) -> impl Iterator<Item = &RequestFacts> {
        self.line(lane).filter(move |s| s.fell() && s.request.lane == lane).map(|standing| standing.request)
    }
}
