//! Debt: what a request leaves for those after it to compute again.
//!
//! *Canonical debt* is the part of a prompt that is not restorable when its request has ended. *Prefix-cache debt* is the running total of
//! tokens computed while the checkpoint stays behind a cliff: an observation, no claim of what would have been otherwise.
//! Of a suffix, the *recomputed* tokens are those that an earlier request of the run had computed already.

use serde::Serialize;

use crate::event::RequestId;

/// Who computed tokens that brought the canonical prefix forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Payer {
    /// The request itself, in its prefill, while somebody waited.
    Foreground,
    /// A background job, while nobody did.
    Recovery,
}

/// The debt account of one request. A field is `None` where what it rests on was not observed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DebtEntry {
    /// The request.
    pub request: RequestId,
    /// Longest restorable prefix of its prompt when it arrived: its checkpoint.
    pub canonical_before: Option<u64>,
    /// The same when it had ended.
    pub canonical_after: Option<u64>,
    /// `prompt_tokens − canonical_after`.
    pub canonical_debt: Option<u64>,
    /// `canonical_after − canonical_before`: debt that was repaid.
    pub repaid_tokens: Option<u64>,
    /// Who repaid it.
    pub paid_by: Option<Payer>,
    /// Tokens of the suffix that an earlier request had computed already.
    pub recomputed_tokens: Option<u64>,
    /// What those cost, on the run's curve.
    pub recomputed_s: Option<f64>,
    /// Running total of suffix tokens since the cliff, this request's included; 0 while the checkpoint is not behind one.
    pub prefix_cache_debt: Option<u64>,
    /// What that total cost, on the run's curve.
    pub prefix_cache_debt_s: Option<f64>,
    /// Requests in a row with this checkpoint, this one included.
    pub pinned_requests: u32,
}

impl DebtEntry {
    /// Whether the checkpoint counts as pinned: three requests in a row, with a growing suffix.
    pub const PINNED: u32 = 3;
}
