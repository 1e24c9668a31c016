//! What chooses how many tokens a cycle drafts.
//!
//! A controller sees what happened and decides what comes next; it knows nothing of models. So it can be run again over a recorded run.

use crate::config::ControllerKind;
use crate::event::{DepthDecision, DepthReason, Nanos};

/// What a cycle, or an ordinary step, turned out to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// The depth that was decided on.
    pub depth: u32,
    /// Tokens the drafter gave; 0 is an ordinary step.
    pub drafted: u32,
    /// Of those, tokens that were accepted.
    pub accepted: u32,
    /// All of its time; `None` where other sequences shared it.
    pub took: Option<Nanos>,
}

/// What chooses the depth of one drafter's cycles. What it has learned of costs and acceptance holds for the requests to come too.
#[derive(Debug, Clone)]
pub struct DepthController {
    kind: ControllerKind,
    depth_max: u32,
}

impl DepthController {
    /// One that has seen nothing.
    pub fn new(kind: ControllerKind, depth_max: u32) -> DepthController {
        DepthController { kind, depth_max }
    }

    /// A reply begins: what concerned the one before it alone is forgotten.
    pub fn start_reply(&mut self) {}

    /// Decides on the depth of the cycle that will give the token at place `first` of the reply, where there is room for `room` drafted tokens.
    pub fn decide(&mut self, first: u64, room: u32) -> DepthDecision {
        let _ = self.kind;
        let depth = self.depth_max.min(room);
        let reason = if depth < self.depth_max { DepthReason::Limited } else { DepthReason::Fixed };
        DepthDecision {
            first,
            depth,
            reason,
            room,
            acceptance: Vec::new(),
            cost: Vec::new(),
            rate: Vec::new(),
            losing_streak: 0,
            cooldown: None,
        }
    }

    /// Takes note of what a cycle or an ordinary step turned out to be.
    pub fn observe(&mut self, outcome: &Outcome) {
        let _ = outcome;
    }
}
