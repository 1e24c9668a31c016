//! What the ledger knows of a request's speculative decoding, and what it makes of it.

mod account;
mod calculator;
mod depth;
mod kind;
mod what_if;

use serde::Serialize;

use crate::event::{Cycle, DepthDecision, DrafterStart, Nanos, VerifyCurve};

pub use account::{
    AuditFailure, AuditVerdict, DenseSource, DenseStep, ExpertsPerForward, SpeculationAccount,
};
pub use calculator::{HELD_WITHIN, Prediction, PredictionCheck};
pub use depth::{DepthCost, DepthCosts};
pub use kind::{KindAcceptance, ReplyKind, reply_kinds};
pub use what_if::WhatIf;

/// A request's speculative decoding, as it was told.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Speculation {
    /// The drafter; `None` where nothing drafted.
    pub start: Option<DrafterStart>,
    /// Why nothing was drafted any more from some token on.
    pub ended: Option<String>,
    /// Decisions on the depth, in order.
    pub decisions: Vec<DepthDecision>,
    /// Cycles, in order.
    pub cycles: Vec<Cycle>,
    /// What forwards of several widths cost when the reply had ended.
    pub curve: Option<VerifyCurve>,
}

impl Speculation {
    /// What does not depend on the machine's speed. An adaptive controller goes by times, so its decisions and cycles do.
    pub(super) fn lasting(&mut self) {
        use crate::config::ControllerKind;
        self.curve = None;
        self.decisions.clear();
        let fixed = self.start.as_ref().is_some_and(|start| start.controller == ControllerKind::Fixed);
        if !fixed {
            self.cycles.clear();
        }
        if let Some(start) = &mut self.start {
            start.took = Nanos(0);
        }
        // That it ended stays; the words may say how much memory was free.
        self.ended.iter_mut().for_each(String::clear);
        for cycle in &mut self.cycles {
            for time in [&mut cycle.draft, &mut cycle.sample, &mut cycle.rollback, &mut cycle.commit] {
                *time = Nanos(0);
            }
            // Who else was in the forward depends on who was ready.
            (cycle.verify, cycle.neighbours, cycle.experts) = (None, 0, None);
        }
    }
}
