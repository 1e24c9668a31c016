//! The two-request calculator: one dense request and one speculative one predict what speculation is worth, and later requests show whether it held.

use serde::Serialize;

use super::account::{AuditFailure, DenseSource, DenseStep, SpeculationAccount};
use crate::event::RequestId;
use crate::ledger::{Ledger, RequestFacts};

/// A prediction holds where it lies within this part of what was measured.
pub const HELD_WITHIN: f64 = 0.10;

/// What two requests predict of a reply's decoding with the drafter of the second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Prediction {
    /// Request that gave the dense step.
    pub dense: RequestId,
    /// Request that gave tokens per cycle, cost and share.
    pub speculative: RequestId,
    /// How much faster decoding is.
    pub speed_up: f64,
    /// Tokens of the prompts of both: costs grow with the context, so a prediction is for prompts of about that length.
    pub prompt_tokens: [Option<u64>; 2],
}

/// What a later request made of a prediction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PredictionCheck {
    /// The request.
    pub request: RequestId,
    /// How much faster than the dense step it decoded.
    pub measured: f64,
    /// By how much the prediction exceeds it, as a part of it.
    pub error: f64,
    /// Whether that is within [`HELD_WITHIN`].
    pub held: bool,
}

impl PredictionCheck {
    /// `held`, or `did not hold, by 14 %`.
    pub fn words(&self) -> String {
        match self.held {
            true => "held".to_owned(),
            false => format!("did not hold, by {:.0} %", self.error.abs() * 100.0),
        }
    }
}

/// The dense step of a request that nothing was drafted in, or that of a speculative one's own ordinary steps; `None` where others shared forwards.
fn dense_step(request: &RequestFacts) -> Option<DenseStep> {
    match request.speculation_account() {
        Some(account) if account.counters.cycles > 0 => {
            Some(DenseStep { from: DenseSource::StepsOf(request.id), ..account.dense()? })
        }
        _ => Some(DenseStep { ms: request.ms_per_token()?, from: DenseSource::Request(request.id) }),
    }
}

impl Prediction {
    /// What `dense` and `speculative` predict. Inner `None` where one of them lacks a figure; the failure where an audit of the second failed.
    pub fn of(dense: &RequestFacts, speculative: &RequestFacts) -> Result<Option<Prediction>, AuditFailure> {
        let Some(account) = speculative.speculation_account() else { return Ok(None) };
        let account = account.against(dense_step(dense));
        let speed_up = account.speed_up().map_err(Clone::clone)?;
        Ok(speed_up.map(|speed_up| Prediction {
            dense: dense.id,
            speculative: speculative.id,
            speed_up,
            prompt_tokens: [dense.prompt_tokens, speculative.prompt_tokens],
        }))
    }

    /// Whether it held for another request with the same drafter, against the same dense step.
    pub fn check(&self, dense: &RequestFacts, later: &RequestFacts) -> Option<PredictionCheck> {
        let account = later.speculation_account()?;
        let own = account.ms_per_token.filter(|_| account.is_sound())?;
        let measured = crate::decode::economics::measured_speedup(dense_step(dense)?.ms, own)?;
        let error = crate::decode::economics::prediction_error(self.speed_up, measured)?;
        Some(PredictionCheck { request: later.id, measured, error, held: error.abs() <= HELD_WITHIN })
    }
}

impl Ledger {
    /// What two requests predict; see [`Prediction::of`]. `None` also where one of them is not known.
    pub fn prediction(
        &self,
        dense: RequestId,
        speculative: RequestId,
    ) -> Option<Result<Prediction, AuditFailure>> {
        let (dense, speculative) = (self.request(dense)?, self.request(speculative)?);
        Prediction::of(dense, speculative).transpose()
    }

    /// What requests after both made of a prediction, those that decoded with the same drafter, controller and greatest depth.
    pub fn prediction_checks(&self, prediction: &Prediction) -> Vec<PredictionCheck> {
        let both = self.request(prediction.dense).zip(self.request(prediction.speculative));
        let Some((dense, speculative)) = both else { return Vec::new() };
        let set = |request: &RequestFacts| {
            let account: SpeculationAccount = request.speculation_account()?;
            Some((account.drafter?, account.controller?, account.depth_max?))
        };
        let after = prediction.dense.max(prediction.speculative);
        let later = self.requests().filter(|request| request.id > after && set(request) == set(speculative));
        later.filter_map(|request| prediction.check(dense, request)).collect()
    }

    /// The account of a request; where it has too few ordinary steps of its own, against those of the nearest request in its lane's history that has, one
    /// that nothing was drafted in before others; or else against the verify curve.
    pub fn speculation_account(&self, id: RequestId) -> Option<SpeculationAccount> {
        let request = self.request(id)?;
        let account = request.speculation_account()?;
        if account.dense().is_some() {
            return Some(account);
        }
        let history = self.history(request.lane);
        let near = history.iter().filter(|other| other.id != id).filter_map(|other| {
            let drafted = other.speculation.as_ref().is_some_and(|told| !told.cycles.is_empty());
            Some(((drafted, other.id.0.abs_diff(id.0)), dense_step(other)?))
        });
        let nearest = near.min_by_key(|(distance, _)| *distance).map(|(_, step)| step);
        let curve = request.speculation.as_ref().and_then(|told| told.curve.as_ref());
        let one = curve.and_then(|curve| curve.points.iter().find(|(width, took)| *width == 1 && took.0 > 0));
        let of_curve = one.map(|(_, took)| DenseStep { ms: took.seconds() * 1e3, from: DenseSource::Curve });
        Some(account.against(nearest.or(of_curve)))
    }
}
