//! What the ledger knows of a request, a lane, and the run's memory, tier and faults.

use serde::Serialize;

use super::Speculation;

use crate::event::{
    DeviceMemory, FinishReason, HistoryChange, JobId, LaneId, Logits, Nanos, Phase, RequestId, Restore,
    Route, Scored, SegmentRun, ShrunkChunk, SlotMemory, SnapshotsStored, Source, SparseAdmission, Stamp,
    Survival, TierStored, TierTrouble, TranscriptItem,
};

/// Everything known about one request.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RequestFacts {
    /// Its number.
    pub id: RequestId,
    /// The lane it belongs to.
    pub lane: LaneId,
    /// Turn number in the lane, from 1.
    pub turn: u32,
    /// Its name.
    pub name: String,
    /// Why it exists; `None` when its arrival was not seen.
    pub source: Option<Source>,
    /// How its history relates to the turn before it.
    pub change: Option<HistoryChange>,
    /// When it arrived.
    pub arrived_at: Stamp,
    /// Where it is now.
    pub phase: Phase,
    /// Prompt length.
    pub prompt_tokens: Option<u64>,
    /// Segments of the prompt.
    pub segments: Vec<SegmentRun>,
    /// Messages it added.
    pub items: Vec<TranscriptItem>,
    /// Reply tokens allowed.
    pub max_output_tokens: Option<u64>,
    /// The idle gap before it.
    pub idle: Option<Nanos>,
    /// How long background work was in its way; `None` where none was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delayed: Option<Nanos>,
    /// The job that pays its debt; `None` where none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery: Option<JobId>,
    /// Time in the queue.
    pub queued: Option<Nanos>,
    /// What the restore found.
    pub restore: Option<Restore>,
    /// The route taken.
    pub route: Option<Route>,
    /// What decided whether the suffix is computed sparsely; `None` where no scorer was loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission: Option<SparseAdmission>,
    /// Tokens the scorer has prefilled so far and in all, while it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scoring: Option<(u64, u64)>,
    /// What the scorer did; `None` where it was not asked, or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scored: Option<Scored>,
    /// Tokens the draft model has read so far and in all, while it reads the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priming: Option<(u64, u64)>,
    /// Why the suffix was computed densely though it was to be computed sparsely.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fell_back: Option<String>,
    /// What was left of the identifiers that the recorded reply uses; `None` where nothing was dropped or no reply is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub survival: Option<Survival>,
    /// The uncached suffix.
    pub uncached_suffix: Option<u64>,
    /// Suffix tokens computed so far and in all.
    pub progress: Option<(u64, u64)>,
    /// Tokens the prefill computed.
    pub computed_tokens: Option<u64>,
    /// Compute time of the prefill.
    pub prefill: Option<Nanos>,
    /// From arrival to the first reply token.
    pub ttft: Option<Nanos>,
    /// When its latest token came; `None` before the first and when it has ended.
    #[serde(skip)]
    pub(super) last_token: Option<Stamp>,
    /// From the first reply token to the last.
    pub decode: Option<Nanos>,
    /// Forwards of the decoding that other sequences shared, so that its time is no measurement; `None` where nobody told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_forwards: Option<u64>,
    /// Reply tokens.
    pub output_tokens: Option<u64>,
    /// SHA-256 of the reply, hex.
    pub output_sha256: Option<String>,
    /// Its speculative decoding; `None` where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculation: Option<Box<Speculation>>,
    /// The reply, as far as it has come.
    pub text: String,
    /// Its tokens, as far as they were told.
    pub tokens: Vec<ReplyToken>,
    /// The logits its first token was chosen from, where they are told.
    #[serde(skip)]
    pub reply_logits: Option<Logits>,
    /// Why the reply ended.
    pub reason: Option<FinishReason>,
    /// Tokens newly stored.
    pub stored_tokens: Option<u64>,
    /// Longest restorable prefix of the prompt afterwards.
    pub canonical_tokens: Option<u64>,
    /// Blocks evicted to make room.
    pub evicted_blocks: Option<u64>,
    /// What went to the SSD tier; `None` without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<TierStored>,
    /// Snapshots of recurrent state; `None` for a model without recurrent layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<SnapshotsStored>,
    /// Prefill chunks that memory shrank; `None` where it shrank none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shrunk: Option<ShrunkChunks>,
    /// How often it had to make way for others.
    pub preemptions: u32,
    /// The device's memory as it was last told while the request ran, and the peak by then; `None` where nobody counts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<DeviceMemory>,
    /// From arrival to the end.
    pub took: Option<Nanos>,
    /// What went wrong, where something did.
    pub error: Option<String>,
}

/// A token of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ReplyToken {
    /// Its id.
    pub token: u32,
    /// By how much its logit exceeds the next one's; `None` in recordings of earlier versions.
    #[serde(skip)]
    pub margin: Option<f32>,
    /// Bytes of the reply up to the end of what it completes.
    #[serde(skip)]
    pub end: usize,
}

impl RequestFacts {
    pub(super) fn unseen(id: RequestId, lane: LaneId, at: Stamp) -> RequestFacts {
        RequestFacts {
            id,
            lane,
            turn: 0,
            name: String::new(),
            source: None,
            change: None,
            arrived_at: at,
            phase: Phase::Queued,
            prompt_tokens: None,
            segments: Vec::new(),
            items: Vec::new(),
            max_output_tokens: None,
            idle: None,
            delayed: None,
            recovery: None,
            queued: None,
            restore: None,
            route: None,
            admission: None,
            scoring: None,
            scored: None,
            priming: None,
            fell_back: None,
            survival: None,
            speculation: None,
            uncached_suffix: None,
            progress: None,
            computed_tokens: None,
            prefill: None,
            ttft: None,
            last_token: None,
            decode: None,
            shared_forwards: None,
            output_tokens: None,
            output_sha256: None,
            text: String::new(),
            tokens: Vec::new(),
            reply_logits: None,
            reason: None,
            stored_tokens: None,
            canonical_tokens: None,
            evicted_blocks: None,
            tier: None,
            snapshots: None,
            shrunk: None,
            preemptions: 0,
            device_memory: None,
            took: None,
            error: None,
        }
    }

    /// The reusable checkpoint: tokens restored. `None` before the restore.
    pub fn checkpoint(&self) -> Option<u64> {
        self.restore.as_ref().map(|r| r.checkpoint_tokens)
    }

    /// The bytes of the reply that the token at `place` completes; none inside a character of several tokens. `None` where the token was not told, or the
    /// reply as it ended is not what its tokens said.
    pub fn token_bytes(&self, place: usize) -> Option<std::ops::Range<usize>> {
        let end = self.tokens.get(place)?.end;
        let start = place.checked_sub(1).map_or(Some(0), |before| Some(self.tokens.get(before)?.end))?;
        let whole = self.text.len() == self.tokens.last()?.end;
        (whole && start <= end && self.text.is_char_boundary(start) && self.text.is_char_boundary(end))
            .then_some(start..end)
    }

    /// `prompt_tokens − canonical_tokens`, once both are known.
    pub fn canonical_debt(&self) -> Option<u64> {
        Some(self.prompt_tokens?.saturating_sub(self.canonical_tokens?))
    }

    /// The route that the uncached suffix and the threshold in force give: what was decided at admission is [`RequestFacts::route`], and may be
    /// another for a reason. `None` where the suffix is not known, or nobody told the threshold.
    pub fn derived_route(&self) -> Option<Route> {
        let suffix = self.uncached_suffix?;
        if suffix <= 1 {
            return Some(Route::CacheHit);
        }
        let settings = &self.admission.as_ref()?.settings;
        let sparse = settings.enabled.value && suffix > settings.threshold.value;
        Some(if sparse { Route::Sparse } else { Route::Dense })
    }

    /// Prompt tokens that the predecessor did not have. `None` without a predecessor.
    pub fn fresh_tokens(&self) -> Option<u64> {
        let common = self.restore.as_ref()?.common_prefix_tokens?;
        Some(self.prompt_tokens?.saturating_sub(common))
    }
}

/// Prefill chunks that were made smaller because the device had no memory for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ShrunkChunks {
    /// How many.
    pub chunks: u64,
    /// Tokens of the smallest.
    pub smallest_tokens: u64,
}

impl ShrunkChunks {
    pub(super) fn with(before: Option<ShrunkChunks>, chunk: ShrunkChunk) -> ShrunkChunks {
        let before = before.unwrap_or(ShrunkChunks { chunks: 0, smallest_tokens: u64::MAX });
        ShrunkChunks {
            chunks: before.chunks.saturating_add(1),
            smallest_tokens: before.smallest_tokens.min(chunk.admitted),
        }
    }
}

/// Everything known about one lane.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct LaneFacts {
    /// Its name.
    pub title: String,
    /// The lane it was forked from.
    pub parent: Option<LaneId>,
    /// The first turn that differs from the parent.
    pub at_turn: Option<u32>,
    /// Its requests, oldest first.
    pub requests: Vec<RequestId>,
    /// The turn that would come next.
    pub next_turn: Option<u32>,
    /// Turns known.
    pub turns: u32,
}

/// Memory figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MemoryFacts {
    /// Blocks holding cached state.
    pub cached_blocks: u64,
    /// Blocks in use by running requests.
    pub live_blocks: u64,
    /// Bytes of both, slots included.
    pub bytes: u64,
    /// The bound.
    pub limit_bytes: u64,
    /// Slots; `None` for a model without recurrent layers.
    pub slots: Option<SlotMemory>,
}

/// Requests that a session cut left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SessionCutFacts {
    /// Requests that can run.
    pub kept_requests: u64,
    /// Requests in the file.
    pub of_requests: u64,
    /// Prompt tokens of the first one that does not fit.
    pub prompt_tokens: u64,
    /// Tokens the context holds.
    pub context_tokens: u64,
}

impl RequestFacts {
    /// What does not depend on the machine's speed, memory and disk.
    pub(super) fn lasting(&self) -> RequestFacts {
        let mut facts = self.clone();
        (facts.shrunk, facts.device_memory, facts.tier) = (None, None, None);
        // Who decodes beside whom depends on how fast each got there, and so does who has to make way.
        (facts.shared_forwards, facts.preemptions) = (None, 0);
        // Whether a job went on or a new one began depends on how far it got.
        (facts.delayed, facts.recovery) = (None, None);
        facts.arrived_at = Stamp::default();
        for time in
            [&mut facts.queued, &mut facts.prefill, &mut facts.ttft, &mut facts.decode, &mut facts.took]
        {
            *time = None;
        }
        // That it fell back stays; the words may say how much memory was free.
        facts.fell_back.iter_mut().for_each(String::clear);
        if let Some(speculation) = &mut facts.speculation {
            speculation.lasting();
        }
        if let Some(scored) = &mut facts.scored {
            (scored.prefill, scored.lookahead, scored.importance) = Default::default();
        }
        if let Some(restore) = &mut facts.restore {
            restore.took = Nanos::default();
            if let Some(ssd) = &mut restore.ssd {
                ssd.took = Nanos::default();
            }
            for block in &mut restore.blocks {
                block.written_at = None;
            }
            // The words may say when a block was lost; cause, tokens and block, which they put into words, stay.
            for loss in &mut restore.losses {
                loss.detail.clear();
            }
        }
        facts
    }
}

/// Something that went wrong with the SSD tier, or works again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TierTroubleFacts {
    /// When.
    pub at: Stamp,
    /// The request it concerns, where it concerns one.
    pub request: Option<RequestId>,
    /// What.
    pub trouble: TierTrouble,
    /// In words, with the file.
    pub detail: String,
}

/// A fault that was injected by hand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FaultFacts {
    /// When.
    pub at: Stamp,
    /// The fault, as it was asked for.
    pub fault: String,
    /// What it did, or why it could do nothing.
    pub outcome: String,
}

/// A condition that held, at which the replay paused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BreakpointFacts {
    /// When.
    pub at: Stamp,
    /// The request it held for, where the event names one.
    pub request: Option<RequestId>,
    /// The condition.
    pub condition: String,
    /// What was observed: `suffix 4,312`.
    pub observed: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Effective, SetBy, SparseSettings, SparseVerdict};

    #[test]
    fn f18_the_route_taken_and_the_one_derived_are_told_apart() {
        let by = |enabled: bool, threshold: u64| SparseAdmission {
            settings: SparseSettings {
                enabled: Effective { value: enabled, set_by: SetBy::Default },
                keep: Effective { value: 0.2, set_by: SetBy::Default },
                threshold: Effective { value: threshold, set_by: SetBy::Default },
            },
            verdict: SparseVerdict::Sparse,
            protected_tokens: 0,
            boundary_before: String::new(),
            boundary_after: String::new(),
            suffix_tokens: 100,
            to_score_tokens: 100,
        };
        let mut request = RequestFacts::unseen(RequestId(1), LaneId(0), Stamp(0));
        assert_eq!(request.derived_route(), None);
        request.uncached_suffix = Some(100);
        assert_eq!(request.derived_route(), None, "nobody told the threshold");
        for (admission, route) in
            [(by(true, 99), Route::Sparse), (by(true, 100), Route::Dense), (by(false, 99), Route::Dense)]
        {
            request.admission = Some(admission);
            assert_eq!(request.derived_route(), Some(route));
        }
        // A scorer that failed: told dense, derived sparse, and the row says that they disagree.
        (request.admission, request.route) = (Some(by(true, 99)), Some(Route::Dense));
        let ledger = crate::ledger::Ledger::new();
        let row = crate::ledger::Row::with(&ledger, &request, None, &Default::default());
        assert_eq!((row.route, row.route_derived), (Some("dense"), Some("sparse")));
        assert_eq!(row.route_disagrees, Some(true));
        request.uncached_suffix = Some(1);
        assert_eq!(request.derived_route(), Some(Route::CacheHit));
    }

    #[test]
    fn a_token_knows_its_bytes_unless_the_reply_became_another() {
        let mut request = RequestFacts::unseen(RequestId(1), LaneId(0), Stamp(0));
        assert_eq!(request.token_bytes(0), None);
        request.text = "a日b".to_owned();
        let told = |end| ReplyToken { token: 0, margin: None, end };
        // The character in the middle takes two tokens: the first of them completes nothing.
        request.tokens = [1, 1, 4, 5].map(told).to_vec();
        let bytes = |request: &RequestFacts| [0, 1, 2, 3, 4].map(|place| request.token_bytes(place));
        assert_eq!(bytes(&request), [Some(0..1), Some(1..1), Some(1..4), Some(4..5), None]);
        request.text = "a".to_owned();
        assert_eq!(bytes(&request), [None, None, None, None, None]);
    }
}
