//! What the ledger knows of a request's speculative decoding.

use serde::Serialize;

use crate::event::{Cycle, DepthDecision, DrafterStart, VerifyCurve};

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
