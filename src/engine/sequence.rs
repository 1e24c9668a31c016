//! One request on its way through the engine.

use crate::cache::pool::PageRef;
use crate::cache::recurrent::RecurrentState;
use crate::cache::served::Predecessor;
use crate::decode::{Sampler, Sampling};
use crate::event::{
    FinishReason, HistoryChange, LaneId, Nanos, RequestId, SegmentRun, Source, Stamp, TranscriptItem,
};
use crate::model::text::TextStream;

/// A request as it is handed to the scheduler.
#[derive(Debug, Clone)]
pub struct Submission {
    /// The lane it belongs to.
    pub lane: LaneId,
    /// Turn number in the lane, from 1.
    pub turn: u32,
    /// Its name.
    pub name: String,
    /// Why it exists.
    pub source: Source,
    /// How its history relates to its predecessor's.
    pub change: HistoryChange,
    /// The idle gap that came before it.
    pub idle: Nanos,
    /// The prompt; at least one token.
    pub prompt: Vec<u32>,
    /// The prompt's segments.
    pub segments: Vec<SegmentRun>,
    /// What it adds to the transcript.
    pub items: Vec<TranscriptItem>,
    /// Reply tokens allowed.
    pub max_output_tokens: u64,
    /// How reply tokens are chosen.
    pub sampling: Sampling,
    /// Whether the prefix cache is read and written.
    pub use_cache: bool,
    /// The request before it in its lane's history.
    pub predecessor: Option<std::sync::Arc<Predecessor>>,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// The request.
    pub request: RequestId,
    /// The lane.
    pub lane: LaneId,
    /// Its reply; what there was of it when it was cancelled or failed.
    pub text: String,
    /// What the next request of the lane is compared with. `None` when nothing was computed.
    pub served: Option<std::sync::Arc<Predecessor>>,
}

/// Where a sequence stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Queued,
    Prefilling,
    Decoding,
    /// The reply is complete; blocks remain to be stored.
    Storing(FinishReason),
}

/// A sequence: a request with its state.
pub(super) struct Sequence<'a> {
    pub(super) request: RequestId,
    pub(super) arrived_at: Stamp,
    pub(super) stage: Stage,
    /// Prompt, then reply.
    pub(super) tokens: Vec<u32>,
    /// Leading tokens whose state exists.
    pub(super) computed: usize,
    /// Leading tokens that were restored rather than computed.
    pub(super) restored: usize,
    pub(super) pages: Vec<PageRef>,
    /// `None` before admission, and for a model without recurrent layers.
    pub(super) recurrent: Option<RecurrentState>,
    pub(super) sampler: Sampler,
    pub(super) stream: TextStream<'a>,
    pub(super) text: String,
    pub(super) prefill: Nanos,
    pub(super) decode: Nanos,
    /// Blocks evicted to make room for this request.
    pub(super) evicted_blocks: u64,
    /// Snapshots dropped to make room for this request, with their blocks or without.
    pub(super) dropped_snapshots: u64,
    /// Whether a chunk of it was shrunk for want of memory.
    pub(super) shrunk: bool,
    pub(super) submission: Submission,
}

impl Sequence<'_> {
    pub(super) fn prompt_tokens(&self) -> usize {
        self.submission.prompt.len()
    }

    pub(super) fn output(&self) -> &[u32] {
        &self.tokens[self.prompt_tokens()..]
    }

    /// What a later request can be compared with: the tokens whose state existed.
    pub(super) fn served(&self) -> Option<Predecessor> {
        (self.computed > 0).then(|| Predecessor {
            request: self.request,
            tokens: self.tokens[..self.computed].to_vec(),
            prompt_tokens: self.prompt_tokens().min(self.computed),
        })
    }
}
