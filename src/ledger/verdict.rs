//! Judgements over a lane: where the checkpoint stepped, and which step is a cliff.

use serde::Serialize;

use super::{Breakpoint, DebtEntry, Ledger, PrefillCurve, RequestFacts};
use crate::event::{Cause, Culprit, LaneId, RequestId};

/// How the checkpoint moved from one request of a lane to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointStep {
    /// Checkpoint tokens now minus before.
    pub delta: i64,
    /// The checkpoint fell: a cache cliff.
    pub cliff: bool,
    /// The cause recorded by the restore.
    pub cause: Cause,
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
    /// The request at whose restore the checkpoint advanced again; `None` while it has not.
    pub healed_by: Option<RequestId>,
    /// Sum of the uncached suffixes of the lane's requests before the cliff, since the one before or the start.
    pub suffix_before: u64,
    /// The same of the requests that were pinned behind it.
    pub suffix_behind: u64,
}

impl Ledger {
    /// What a prefill costs by this run's own chunks. `None` before any was measured.
    pub fn prefill_curve(&self) -> Option<PrefillCurve> {
        None
    }

    /// The cliffs of a lane's own requests, in order.
    pub fn cliff_list(&self, lane: LaneId) -> Vec<Cliff> {
        let _ = lane;
        Vec::new()
    }

    /// The debt account of a lane's history, one entry a request that was restored.
    pub fn debt(&self, lane: LaneId) -> Vec<DebtEntry> {
        let _ = lane;
        Vec::new()
    }

    /// What was observed, where `condition` holds for `request`.
    pub fn observes(&self, condition: &Breakpoint, request: RequestId) -> Option<String> {
        let _ = (condition, request);
        None
    }

    /// The step of `request` against the request before it in its lane's history. `None` for the first one, or
    /// before the restore.
    pub fn checkpoint_step(&self, request: &RequestFacts) -> Option<CheckpointStep> {
        let restore = request.restore.as_ref()?;
        let before = self.predecessor(request)?.checkpoint()?;
        let signed = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
        let delta = signed(restore.checkpoint_tokens) - signed(before);
        Some(CheckpointStep { delta, cliff: delta < 0, cause: restore.cause })
    }

    /// The request before `request` in its lane's history.
    pub fn predecessor(&self, request: &RequestFacts) -> Option<&RequestFacts> {
        let own: Vec<_> = self.lane_requests(request.lane).collect();
        let position = own.iter().position(|r| r.id == request.id)?;
        if position > 0 {
            return Some(own[position - 1]);
        }
        self.history(request.lane).into_iter().rfind(|r| r.lane != request.lane)
    }

    /// The cliffs of a lane: requests whose checkpoint fell.
    pub fn cliffs(&self, lane: LaneId) -> impl Iterator<Item = &RequestFacts> {
        self.lane_requests(lane).filter(|r| self.checkpoint_step(r).is_some_and(|s| s.cliff))
    }
}
