//! Judgements over a lane: where the checkpoint stepped, and which step is a cliff.

use super::{Ledger, RequestFacts};
use crate::event::{Cause, LaneId};

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

impl Ledger {
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
