//! A run's replies decoded again on paper by other controllers.

use serde::Serialize;

use super::account::AuditFailure;
use crate::config::SpeculationConfig;
use crate::decode::what_if::{CycleCosts, Policy, Replayed, Tape, replay};
use crate::event::RequestId;
use crate::ledger::Ledger;

/// The greatest fixed depth that is tried.
const DEEPEST_FIXED: u32 = 8;

/// What a run's replies come to with other controllers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WhatIf {
    /// The requests, in order of arrival: those that drafted and whose costs are known.
    pub requests: Vec<RequestId>,
    /// Requests that are left out since an audit of them failed.
    pub failed: Vec<(RequestId, AuditFailure)>,
    /// Each controller, and what it comes to request by request.
    pub policies: Vec<(Policy, Vec<Replayed>)>,
    /// Seconds their decoding took as it was recorded, where that was measured.
    pub recorded_s: Option<f64>,
}

impl WhatIf {
    /// All requests of a controller together.
    pub fn sum(replayed: &[Replayed]) -> Replayed {
        let first = Replayed { measured: true, ..Replayed::default() };
        replayed.iter().fold(first, |sum, one| sum.plus(one))
    }
}

impl Ledger {
    /// What the run's replies would have come to with ordinary decoding, fixed depths, the adaptive controller, and the oracle. `None` where no reply
    /// that drafted has ended, or none has costs. Requests of which an audit failed are left out; the first failure where no other is left.
    pub fn what_if(&self) -> Option<Result<WhatIf, AuditFailure>> {
        self.what_if_of(&self.requests().map(|request| request.id).collect::<Vec<_>>())
    }

    /// The same for some requests only; what an adaptive controller learns it takes from one to the next.
    pub fn what_if_of(&self, requests: &[RequestId]) -> Option<Result<WhatIf, AuditFailure>> {
        let mut replies: Vec<(Tape, CycleCosts)> = Vec::new();
        let (mut told, mut failed, mut depth_max, mut recorded_s) = (Vec::new(), Vec::new(), 1, Some(0.0));
        for request in requests.iter().filter_map(|id| self.request(*id)) {
            let Some(account) = self.speculation_account(request.id) else { continue };
            if let Some(failure) = account.audit.failure() {
                failed.push((request.id, failure.clone()));
                continue;
            }
            let Some(speculation) = request.speculation.as_deref() else { continue };
            let tape = request.output_tokens.and_then(|tokens| Tape::of(&speculation.cycles, tokens));
            let Some(reply) = tape.zip(request.cycle_costs(&account)) else { continue };
            replies.push(reply);
            told.push(request.id);
            depth_max = account.depth_max.unwrap_or(0).max(depth_max).min(SpeculationConfig::MAX_DEPTH);
            let took = request.decode_alone().filter(|_| account.time.is_some());
            recorded_s = recorded_s.zip(took).map(|(sum, took)| sum + took.seconds());
        }
        if replies.is_empty() {
            return failed.into_iter().next().map(|(_, failure)| Err(failure));
        }
        let fixed = (0..=DEEPEST_FIXED).map(Policy::Fixed);
        let policies = [Policy::Recorded].into_iter().chain(fixed);
        let policies = policies.chain([Policy::Adaptive { depth_max }, Policy::Oracle]);
        let policies = policies.map(|policy| (policy, replay(&replies, policy))).collect();
        Some(Ok(WhatIf { requests: told, failed, policies, recorded_s }))
    }
}
