//! The event model: everything the outside learns about a run.
//!
//! Producers are the engine on any device and, later, importers of other runtimes' logs. Consumers are the
//! interface, the recorder, the ledger, the reports and the tests. An event carries facts, never presentation, and
//! never a reference into the engine. A value that nobody measured is `None`; zero is a measurement.
//!
//! [`Sink`] is how a producer hands events over without knowing, or waiting for, who listens. [`record`] is the
//! on-disk form.

mod memory;
mod prompt;
pub mod record;
mod recovery;
mod restore;
mod sink;
mod sparse;
mod speculation;
mod tier;
mod time;

use serde::{Deserialize, Serialize};

use crate::config::{ControllerKind, DrafterKind, RecoveryConfig};
use crate::recovery::standing::Why;

pub use memory::{DeviceMemory, ShrunkChunk, SlotMemory, SnapshotsStored};
pub use prompt::{Arrival, HistoryChange, Segment, SegmentRun, Source, TranscriptItem, segment_at};
pub use recovery::{
    BudgetReading, DebtConsidered, DebtTaken, JobEnded, JobId, Publication, RecoverySlice, Steps,
};
pub use restore::{
    BlockFact, Cause, Closest, Culprit, Divergence, EndState, Loss, Residency, Restore, Route, SsdRead,
    TokenText,
};
pub use sink::{ChannelSink, Fanout, Sink};
pub use sparse::{
    Effective, Logits, Rescored, Scored, ScorerStart, SetBy, SparseAdmission, SparseSettings, SparseVerdict,
    SpecPrefillFacts, Survival, SurvivingIdentifier,
};
pub use speculation::{
    Audit, Cycle, DepthDecision, DepthReason, DrafterStart, ExpertsTouched, SpeculationFacts, VerifyCurve,
};
pub use tier::{TierReading, TierStored, TierTrouble};
pub use time::{Nanos, Stamp};

/// One request to the engine: one prompt, one reply. Numbered from 1 in order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestId(pub u64);

/// One line of history: the session itself is lane 0; each further session and each fork opens another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LaneId(pub u32);

impl LaneId {
    /// The letter the interface shows for this lane: `A`, `B`, … `Z`, then `L26`, ….
    pub fn label(self) -> String {
        match u8::try_from(self.0) {
            Ok(n) if n < 26 => char::from(b'A' + n).to_string(),
            _ => format!("L{}", self.0),
        }
    }
}

/// An event: a fact, when it became true, and whom it concerns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Position in the run's event stream, from 0, without holes: a hole means loss.
    pub seq: u64,
    /// Engine-clock time.
    pub at: Stamp,
    /// The lane it belongs to, where it belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<LaneId>,
    /// The request it belongs to, where it belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestId>,
    /// The fact.
    #[serde(flatten)]
    pub body: Body,
}

/// What a device promises about equal inputs reaching it by different routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Identity {
    /// The same bits by every route.
    Bitwise,
    /// Close, not equal: differences within a stated tolerance.
    Tolerance,
    /// No arithmetic happens: figures are simulated.
    Simulated,
    /// Another runtime's run, told by its log: nothing is promised for it.
    Imported,
}

impl Identity {
    /// The word shown beside every identity verdict.
    pub fn word(self) -> &'static str {
        match self {
            Identity::Bitwise => "bitwise",
            Identity::Tolerance => "tolerance",
            Identity::Simulated => "simulated",
            Identity::Imported => "imported",
        }
    }
}

/// Facts that hold for a whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunFacts {
    /// The program's version.
    pub version: String,
    /// The model's display name.
    pub model: String,
    /// Hex digest of the model's weights, tokenizer and template.
    pub model_digest: String,
    /// The device: `cpu`, `mlx`, `sim`; of an imported run, the runtime.
    pub device: String,
    /// The instruction set or backend the device chose, for example `avx512-vnni`; of an imported run, the runtime's build.
    pub kernel: String,
    /// The precision: `int8`, `f32`, or `none` on the sim device.
    pub precision: String,
    /// What the device promises.
    pub identity: Identity,
    /// Tokens a cache block holds.
    pub block_tokens: u64,
    /// Tokens the model's context holds; `None` where an imported run does not tell.
    pub context_tokens: Option<u64>,
    /// Bytes of per-token state; `None` as above.
    pub state_bytes_per_token: Option<u64>,
    /// Bytes of a snapshot of all recurrent layers' state; `None` for a model without recurrent layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_bytes: Option<u64>,
    /// At which block boundaries snapshots are captured: `every`, `every:4`, `last`, `branch`, `none`; `None` as above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_policy: Option<String>,
    /// What a match whose end holds a placeholder is worth: `walk_back`, `strict`; `None` as above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placeholder_policy: Option<String>,
    /// The configured block size, where the model's recurrent layers enlarged it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enlarged_from: Option<u64>,
    /// Folder of the SSD tier; `None` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_dir: Option<String>,
    /// Upper bound of cached state in RAM, bytes; `None` where an imported run does not tell.
    pub ram_bytes: Option<u64>,
    /// `wall` or `virtual`.
    pub clock: String,
    /// Title of the session.
    pub session: String,
    /// Requests in the session file.
    pub session_requests: u64,
    /// `recorded` or `live`.
    pub replay_mode: String,
    /// How sparse prefill is set up; `None` where no scorer is loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub specprefill: Option<SpecPrefillFacts>,
    /// How speculative decoding is set up; `None` in recordings of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speculation: Option<SpeculationFacts>,
    /// How recovery is configured; `None` in recordings of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<RecoveryConfig>,
    /// The configuration that the session is meant for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub session_settings: Vec<SessionSetting>,
}

#[cfg(test)]
impl RunFacts {
    /// A run of a dense model on a device of bits, of which nothing is told that need not be.
    pub(crate) fn of_test() -> RunFacts {
        RunFacts {
            version: "0".into(),
            model: "m".into(),
            model_digest: "d".into(),
            device: "cpu".into(),
            kernel: "k".into(),
            precision: "int8".into(),
            identity: Identity::Bitwise,
            block_tokens: 256,
            context_tokens: None,
            state_bytes_per_token: None,
            snapshot_bytes: None,
            snapshot_policy: None,
            placeholder_policy: None,
            enlarged_from: None,
            cache_dir: None,
            ram_bytes: None,
            clock: "virtual".into(),
            session: "s".into(),
            session_requests: 0,
            replay_mode: "recorded".into(),
            specprefill: None,
            speculation: None,
            recovery: None,
            session_settings: Vec::new(),
        }
    }
}

/// A value of the configuration that a session is meant for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSetting {
    /// `section.key=value`.
    pub setting: String,
    /// Whether the run has it: `false` where a file or an option set another value.
    pub in_effect: bool,
}

/// Why a reply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended its turn.
    Stop,
    /// The output budget is spent.
    Length,
    /// The context is full.
    Context,
    /// Cancelled.
    Cancelled,
}

impl FinishReason {
    /// The word shown in tables.
    pub fn word(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Context => "context full",
            FinishReason::Cancelled => "cancelled",
        }
    }
}

/// A request's phases, in order. Stepping by phase stops after each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Arrived, waiting for a place.
    Queued,
    /// Looking the prompt up and attaching what can be reused.
    Restore,
    /// Scoring the uncached suffix for a sparse prefill.
    Score,
    /// Computing the uncached suffix.
    Prefill,
    /// Writing the reply.
    Decode,
    /// Storing whole blocks.
    Store,
    /// Finished, cancelled or failed.
    Done,
}

impl Phase {
    /// The word shown in the status line.
    pub fn word(self) -> &'static str {
        match self {
            Phase::Queued => "queued",
            Phase::Restore => "restore",
            Phase::Score => "score",
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
            Phase::Store => "store",
            Phase::Done => "done",
        }
    }
}

/// The cost of a turn that has not been sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Preview {
    /// The number that was given with the question.
    pub ticket: u64,
    /// Prompt length.
    pub prompt_tokens: u64,
    /// What a restore would find now. Nothing was read, held or marked as used for it.
    pub restore: Option<Box<Restore>>,
    /// Whether the suffix would be computed sparsely, and what decides it; `None` where no scorer is loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sparse: Option<Box<SparseAdmission>>,
    /// Why the turn could not run, if it could not.
    pub problem: Option<String>,
}

/// Whether the engine goes on by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// Goes on to the end of the session.
    Running,
    /// Stops before the next turn.
    BeforeTurn,
    /// Stopped after a phase of the current request.
    AfterPhase,
    /// Paused by hand.
    Paused,
    /// The session has no further request; injecting is still possible.
    Ended,
}

/// The facts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Body {
    /// The engine is ready.
    RunStarted(Box<RunFacts>),
    /// A lane exists: a session itself, or a fork of `parent` before its turn `at_turn`.
    LaneOpened {
        /// The lane it was forked from.
        parent: Option<LaneId>,
        /// The first turn that differs from the parent.
        at_turn: Option<u32>,
        /// Its name.
        title: String,
    },
    /// The gate that decides whether the engine goes on has changed.
    GateChanged {
        /// Its new state.
        gate: Gate,
        /// The turn that would come next in the event's lane, if there is one.
        next_turn: Option<u32>,
        /// Turns known in the lane.
        turns: u32,
    },
    /// The session is cut short because a request would not fit the context.
    SessionCut {
        /// Requests that can run.
        kept_requests: u64,
        /// Requests in the file.
        of_requests: u64,
        /// Prompt tokens of the first request that does not fit.
        prompt_tokens: u64,
        /// Tokens the context holds.
        context_tokens: u64,
    },
    /// A request has arrived. It is visible from here on, before admission.
    Arrived(Box<Arrival>),
    /// It has a place in the batch.
    Admitted {
        /// Time it waited.
        queued: Nanos,
    },
    /// Reusable state has been looked up and attached.
    Restored(Box<Restore>),
    /// The way the suffix will be computed.
    Routed {
        /// The route.
        route: Route,
        /// `prompt_tokens − checkpoint_tokens`.
        uncached_suffix: u64,
    },
    /// Whether the suffix is to be computed sparsely, and what decided it. Told where a scorer is loaded.
    SparseAdmitted(Box<SparseAdmission>),
    /// Progress of the scorer's prefill, once a chunk.
    ScoringProgress {
        /// Tokens prefilled so far.
        done: u64,
        /// Tokens to prefill.
        total: u64,
    },
    /// The suffix has been scored and its units chosen.
    Scored(Box<Scored>),
    /// What a sparse prefill left of the identifiers that the recorded reply uses. Told when the request has ended, where a reply is recorded.
    Survived(Survival),
    /// Scoring failed; the suffix is computed densely.
    SparseFellBack {
        /// Why.
        message: String,
    },
    /// Progress of the prefill, once a chunk.
    PrefillProgress {
        /// Tokens computed so far.
        done: u64,
        /// Tokens to compute: the suffix, or where it is computed sparsely what is kept of it.
        total: u64,
        /// What memory made of the chunk; `None` where it did not shrink it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shrunk: Option<ShrunkChunk>,
        /// The device's memory after the chunk; `None` where nobody counts it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<DeviceMemory>,
        /// Compute time of the chunk; `None` where other sequences shared it, and in recordings of earlier versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        took: Option<Nanos>,
    },
    /// The whole suffix is computed.
    Prefilled {
        /// Tokens computed.
        computed_tokens: u64,
        /// Compute time.
        took: Nanos,
    },
    /// A reply token.
    Token {
        /// Its id.
        token: u32,
        /// The text it completes; may be empty inside a multi-byte character.
        text: String,
        /// Position in the reply, from 0.
        index: u64,
        /// By how much its logit exceeds the next one's, before any sampling; `None` in recordings of earlier versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        margin: Option<f32>,
    },
    /// The logits that the reply's first token was chosen from. Told where `replay.tell_logits` asks for it.
    ReplyLogits {
        /// One a token of the vocabulary.
        logits: Logits,
    },
    /// Progress of the draft model's reading of the prompt, once a chunk.
    PrimingProgress {
        /// Tokens read so far, those of its own cache included.
        done: u64,
        /// Tokens to read.
        total: u64,
    },
    /// The drafter is ready, and the reply begins. Told where one drafts.
    DrafterStarted(Box<DrafterStart>),
    /// Nothing is drafted for the rest of the request: it decodes ordinarily.
    DraftingEnded {
        /// Why.
        message: String,
    },
    /// The depth of the next cycle was decided on.
    DepthDecided(Box<DepthDecision>),
    /// A verify cycle is over.
    Cycled(Box<Cycle>),
    /// What forwards of several widths cost, measured when the reply had ended.
    VerifyCurve(Box<VerifyCurve>),
    /// The reply has ended.
    Decoded {
        /// Why.
        reason: FinishReason,
        /// Tokens in the reply, the end marker included.
        output_tokens: u64,
        /// SHA-256 of the reply's text, hex.
        output_sha256: String,
        /// The reply.
        text: String,
        /// Compute time from the first token to the last.
        took: Nanos,
        /// Forwards among those that other sequences shared: with any, `took` is no measurement of the request. `None` in recordings of earlier
        /// versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shared_forwards: Option<u64>,
    },
    /// A running request has made way, since there was no room for all: it holds nothing now and waits, before all others, to be resumed.
    Preempted {
        /// Whole blocks of it that the cache did not hold before and holds now.
        blocks_stored: u64,
        /// Tokens that had been computed and must be computed again, if nothing more of it is evicted meanwhile.
        tokens_lost: u64,
    },
    /// It runs again.
    Resumed {
        /// Tokens of its prompt and reply that were restored.
        restored_tokens: u64,
        /// Tokens that had been computed and are computed again.
        to_compute_tokens: u64,
    },
    /// Whole blocks have been stored.
    Stored {
        /// Tokens newly stored.
        stored_tokens: u64,
        /// Length of the longest prefix of the prompt that is restorable now, a block multiple.
        canonical_tokens: u64,
        /// Blocks evicted to make room.
        evicted_blocks: u64,
        /// Snapshots; `None` for a model without recurrent layers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        snapshots: Option<SnapshotsStored>,
        /// What went to the SSD tier; `None` without one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tier: Option<TierStored>,
    },
    /// The request is over.
    Finished {
        /// How its reply ended.
        reason: FinishReason,
        /// From arrival to here.
        took: Nanos,
    },
    /// The request ended with an error.
    Failed {
        /// What went wrong and what to do about it.
        message: String,
    },
    /// Memory figures, when a request has given back what it held.
    Memory {
        /// Blocks holding cached state.
        cached_blocks: u64,
        /// Blocks in use by running requests.
        live_blocks: u64,
        /// Bytes of both, slots included.
        bytes: u64,
        /// The bound: `cache.ram_bytes`, or less where the device has refused to hold so much.
        limit_bytes: u64,
        /// Slots; `None` for a model without recurrent layers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        slots: Option<SlotMemory>,
        /// The device's memory; `None` where nobody counts it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<DeviceMemory>,
    },
    /// The generation of a page, or of a slot, did not match when it was to be read; the request that held it has failed.
    StalePage {
        /// How many such reads this run has seen.
        count: u64,
    },
    /// The SSD tier, when the run starts and when a request has ended.
    Tier(Box<TierReading>),
    /// Something went wrong with the SSD tier, or works again.
    TierTrouble {
        /// What.
        trouble: TierTrouble,
        /// In words, with the file.
        detail: String,
    },
    /// A fault was injected by hand.
    FaultInjected {
        /// The fault, as it was asked for.
        fault: String,
        /// What it did, or why it could do nothing.
        outcome: String,
    },
    /// The conditions at which the replay pauses.
    BreakpointsSet {
        /// All of them, as they were asked for.
        conditions: Vec<String>,
    },
    /// A condition holds for the event's request, and the replay pauses.
    BreakpointHit {
        /// The condition.
        condition: String,
        /// What was observed: `suffix 4,312`.
        observed: String,
    },
    /// The answer to a question for a turn's cost.
    Previewed(Box<Preview>),
    /// The answer to a question for another choice of units.
    Rescored(Box<Rescored>),
    /// The researcher set sparse prefill by hand, for requests from here on; `None` leaves a setting to what stands below.
    SpecPrefillSet {
        /// Whether.
        enabled: Option<bool>,
        /// Fraction of the scored units that is computed.
        keep: Option<f64>,
        /// A suffix of more tokens is computed sparsely.
        threshold: Option<u64>,
    },
    /// The researcher set speculative decoding by hand, for requests from here on; `None` leaves a setting to what stands below.
    SpeculationSet {
        /// What guesses.
        drafter: Option<DrafterKind>,
        /// Tokens drafted in a cycle at most.
        depth: Option<u32>,
        /// What chooses the depth.
        controller: Option<ControllerKind>,
    },
    /// A request has ended, and this became of its debt. Told while recovery is on.
    DebtConsidered(Box<DebtConsidered>),
    /// A slice of a recovery job ran.
    RecoverySlice(Box<RecoverySlice>),
    /// A recovery job published, or tried to.
    Published(Box<Publication>),
    /// A recovery job's live state was given up.
    Retired {
        /// The job.
        job: JobId,
        /// For what.
        why: Why,
        /// Tokens of it that were not published.
        tokens: u64,
    },
    /// The cache restores less than a recovery job had committed: some of it was lost.
    CommitLowered {
        /// The job.
        job: JobId,
        /// Tokens committed before.
        from: u64,
        /// Tokens committed now.
        to: u64,
    },
    /// What a recovery job that does not run waits for; `None` when it goes on.
    RecoveryWaits {
        /// The job.
        job: JobId,
        /// For what.
        why: Option<Why>,
        /// Until the budget's next window, where that is what it waits for.
        next_window: Option<Nanos>,
    },
    /// A recovery job is over.
    RecoveryEnded(Box<JobEnded>),
    /// The researcher switched recovery on or off.
    RecoverySet {
        /// Whether it is on.
        enabled: bool,
    },
    /// Events were lost between the engine and a consumer.
    Gap {
        /// First sequence number lost.
        from: u64,
        /// Last sequence number lost.
        to: u64,
    },
    /// The engine itself failed; no further request will run.
    EngineFailed {
        /// What went wrong.
        message: String,
    },
    /// The run is over.
    RunEnded,
}
