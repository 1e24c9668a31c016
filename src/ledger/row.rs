//! The row that tables and JSON print for a request.

use serde::Serialize;

use super::{Ledger, RequestFacts};

/// One request as `replay --json` prints it. A field is null where nobody measured it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The lane's letter.
    pub lane: String,
    /// Request number, from 1.
    pub request: u64,
    /// Turn number in the lane, from 1.
    pub turn: u32,
    /// The request's name in the session.
    pub name: String,
    /// Prompt length, tokens.
    pub prompt_tokens: Option<u64>,
    /// Tokens shared with the predecessor.
    pub common_prefix_tokens: Option<u64>,
    /// Tokens found through the hash chain.
    pub matched_tokens: Option<u64>,
    /// Of those, with state in every layer.
    pub matched_with_state_tokens: Option<u64>,
    /// Tokens restored.
    pub checkpoint_tokens: Option<u64>,
    /// Checkpoint now minus the predecessor's.
    pub checkpoint_delta: Option<i64>,
    /// `prompt_tokens − checkpoint_tokens`.
    pub uncached_suffix: Option<u64>,
    /// Prompt tokens the predecessor did not have.
    pub fresh_tokens: Option<u64>,
    /// Tokens newly stored.
    pub stored_tokens: Option<u64>,
    /// Snapshots of recurrent state; null for a model without recurrent layers.
    pub snapshots: Option<crate::event::SnapshotsStored>,
    /// `cache_hit`, `dense` or `sparse`.
    pub route: Option<&'static str>,
    /// Whether the checkpoint fell.
    pub cliff: Option<bool>,
    /// Why the checkpoint stands where it stands: a phrase that names the segment or block.
    pub cause: Option<String>,
    /// The cause's identifier.
    pub cause_kind: Option<crate::event::Cause>,
    /// Longest restorable prefix of the prompt afterwards.
    pub canonical_tokens: Option<u64>,
    /// `prompt_tokens − canonical_tokens`.
    pub canonical_debt_tokens: Option<u64>,
    /// Debt paid by background recovery; null while there is none.
    pub debt_paid_tokens: Option<u64>,
    /// Idle gap before the request, seconds.
    pub idle_s: Option<f64>,
    /// Time in the queue, seconds.
    pub queue_s: Option<f64>,
    /// From arrival to the first token, seconds.
    pub ttft_s: Option<f64>,
    /// Compute time of the prefill, seconds.
    pub prefill_s: Option<f64>,
    /// From the first token to the last, seconds.
    pub decode_s: Option<f64>,
    /// Reply tokens.
    pub output_tokens: Option<u64>,
    /// SHA-256 of the reply.
    pub output_sha256: Option<String>,
    /// Why the reply ended.
    pub finish: Option<&'static str>,
    /// The reply; null before it ended.
    pub text: Option<String>,
    /// Prefill chunks that memory shrank; null where it shrank none.
    pub shrunk_chunks: Option<super::ShrunkChunks>,
    /// The device's memory when the request ended, and the most it ever held by then; null where nobody counts it.
    pub device_memory: Option<crate::event::DeviceMemory>,
    /// What went wrong.
    pub error: Option<String>,
    /// Sparse-prefill facts; null on a request that took no sparse route.
    pub sparse: Option<()>,
    /// Speculation facts; null where no drafter ran.
    pub spec: Option<()>,
    /// Recovery facts; null where no job exists.
    pub recovery: Option<()>,
}

impl Row {
    /// The row of `request`.
    pub fn new(ledger: &Ledger, request: &RequestFacts) -> Row {
        let restore = request.restore.as_ref();
        let step = ledger.checkpoint_step(request);
        Row {
            lane: request.lane.label(),
            request: request.id.0,
            turn: request.turn,
            name: request.name.clone(),
            prompt_tokens: request.prompt_tokens,
            common_prefix_tokens: restore.and_then(|r| r.common_prefix_tokens),
            matched_tokens: restore.map(|r| r.matched_tokens),
            matched_with_state_tokens: restore.map(|r| r.matched_with_state_tokens),
            checkpoint_tokens: request.checkpoint(),
            checkpoint_delta: step.map(|s| s.delta),
            uncached_suffix: request.uncached_suffix,
            fresh_tokens: request.fresh_tokens(),
            stored_tokens: request.stored_tokens,
            snapshots: request.snapshots,
            route: request.route.map(|r| r.word()),
            cliff: step.map(|s| s.cliff),
            cause: request.cause_sentence(),
            cause_kind: restore.map(|r| r.cause),
            canonical_tokens: request.canonical_tokens,
            canonical_debt_tokens: request.canonical_debt(),
            debt_paid_tokens: None,
            idle_s: request.idle.map(|t| t.seconds()),
            queue_s: request.queued.map(|t| t.seconds()),
            ttft_s: request.ttft.map(|t| t.seconds()),
            prefill_s: request.prefill.map(|t| t.seconds()),
            decode_s: request.decode.map(|t| t.seconds()),
            output_tokens: request.output_tokens,
            output_sha256: request.output_sha256.clone(),
            finish: request.reason.map(|r| r.word()),
            text: request.output_tokens.map(|_| request.text.clone()),
            shrunk_chunks: request.shrunk,
            device_memory: request.device_memory,
            error: request.error.clone(),
            sparse: None,
            spec: None,
            recovery: None,
        }
    }
}

impl RequestFacts {
    /// Why the checkpoint stands where it stands, in words that name the segment or block. `None` before the
    /// restore.
    pub fn cause_sentence(&self) -> Option<String> {
        let restore = self.restore.as_ref()?;
        let detail = restore.losses.iter().find(|l| l.cause == restore.cause).map(|l| l.detail.as_str());
        Some(match detail {
            Some(detail) if !detail.is_empty() => format!("{}: {detail}", restore.cause.phrase()),
            _ => restore.cause.phrase().to_owned(),
        })
    }
}
