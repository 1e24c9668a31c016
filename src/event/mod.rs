//! The event model: everything the outside learns about a run.
//!
//! Producers are the engine on any device and, later, importers of other runtimes' logs. Consumers are the
//! interface, the recorder, the ledger, the reports and the tests. An event carries facts, never presentation, and
//! never a reference into the engine. A value that nobody measured is `None`; zero is a measurement.
//!
//! [`Sink`] is how a producer hands events over without knowing, or waiting for, who listens. [`record`] is the
//! on-disk form.

pub mod record;
mod sink;

use serde::{Deserialize, Serialize};

pub use sink::{ChannelSink, Fanout, Sink};

/// Engine-clock time in nanoseconds since the run began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stamp(pub u64);

impl Stamp {
    /// Seconds since the run began.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Nanoseconds from `earlier` to `self`; zero when `earlier` is later.
    pub fn since(self, earlier: Stamp) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A duration in whole nanoseconds: exact, so that a virtual-clock run repeats byte for byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The duration in seconds.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// `seconds` rounded to whole nanoseconds; negative or non-finite values become zero.
    pub fn from_seconds(seconds: f64) -> Nanos {
        if seconds.is_finite() && seconds > 0.0 { Nanos((seconds * 1e9).round() as u64) } else { Nanos(0) }
    }
}

impl From<std::time::Duration> for Nanos {
    fn from(d: std::time::Duration) -> Nanos {
        Nanos(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// One request to the engine: one prompt, one reply. Numbered from 1 in order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestId(pub u64);

/// One line of history: the session itself is lane 0; each fork opens another.
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

/// Where a token of a rendered prompt comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Segment {
    /// The system prompt.
    System,
    /// A tool definition.
    ToolSchema,
    /// Text of a user message.
    User,
    /// Text of an assistant message.
    Assistant,
    /// A tool call inside an assistant message.
    ToolCall,
    /// What a tool returned.
    ToolResult,
    /// What the chat template puts around messages.
    Glue,
    /// A message that was injected by hand, whatever its role.
    Injected,
}

impl Segment {
    /// All segments, in display order.
    pub const ALL: [Segment; 8] = [
        Segment::System,
        Segment::ToolSchema,
        Segment::User,
        Segment::Assistant,
        Segment::ToolCall,
        Segment::ToolResult,
        Segment::Glue,
        Segment::Injected,
    ];

    /// The word used in tables and panes.
    pub fn word(self) -> &'static str {
        match self {
            Segment::System => "system",
            Segment::ToolSchema => "tool schema",
            Segment::User => "user",
            Segment::Assistant => "assistant",
            Segment::ToolCall => "tool call",
            Segment::ToolResult => "tool result",
            Segment::Glue => "template",
            Segment::Injected => "injected",
        }
    }

    /// The one-letter marker of the token ruler.
    pub fn letter(self) -> char {
        match self {
            Segment::System => 'S',
            Segment::ToolSchema => 'T',
            Segment::User => 'u',
            Segment::Assistant => 'a',
            Segment::ToolCall => 'c',
            Segment::ToolResult => 't',
            Segment::Glue => '.',
            Segment::Injected => 'i',
        }
    }
}

/// A run of consecutive tokens of one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentRun {
    /// The segment.
    pub segment: Segment,
    /// How many tokens it covers.
    pub tokens: u64,
}

/// The segment of token `position` in `runs`, or `None` past their end.
pub fn segment_at(runs: &[SegmentRun], position: u64) -> Option<Segment> {
    let mut end = 0;
    runs.iter().find_map(|run| {
        end += run.tokens;
        (position < end).then_some(run.segment)
    })
}

/// Why a request exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The next request of the session file.
    Replay,
    /// A turn typed in by the researcher.
    Inject,
    /// An earlier turn that was edited; the first request of a fork.
    Edit,
}

/// How the history of a request relates to that of the one before it in its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistoryChange {
    /// The first request of a lane that has no predecessor.
    First,
    /// The previous prompt is a prefix of this one.
    Append,
    /// An earlier turn was edited.
    Edit,
    /// The history was replaced by a summary.
    Compaction,
    /// The system prompt changed.
    SystemChange,
    /// The tool definitions changed.
    ToolChange,
}

/// Who wrote a message, as the transcript shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TranscriptItem {
    /// Its role.
    pub segment: Segment,
    /// Its text, as it went into the prompt before templating.
    pub text: String,
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
}

impl Identity {
    /// The word shown beside every identity verdict.
    pub fn word(self) -> &'static str {
        match self {
            Identity::Bitwise => "bitwise",
            Identity::Tolerance => "tolerance",
            Identity::Simulated => "simulated",
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
    /// The device: `cpu`, `mlx`, `sim`.
    pub device: String,
    /// The instruction set or backend the device chose, for example `avx512-vnni`.
    pub kernel: String,
    /// The precision: `int8`, `f32`, or `none` on the sim device.
    pub precision: String,
    /// What the device promises.
    pub identity: Identity,
    /// Tokens a cache block holds.
    pub block_tokens: u64,
    /// Tokens the model's context holds.
    pub context_tokens: u64,
    /// Bytes of per-token state.
    pub state_bytes_per_token: u64,
    /// Upper bound of cached state in RAM, bytes.
    pub ram_bytes: u64,
    /// `wall` or `virtual`.
    pub clock: String,
    /// Title of the session.
    pub session: String,
    /// Requests in the session file.
    pub session_requests: u64,
    /// `recorded` or `live`.
    pub replay_mode: String,
}

/// The way a prompt's uncached suffix is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    /// Nothing but the token that must always be computed is left to do.
    CacheHit,
    /// Every token of the suffix is computed.
    Dense,
    /// Part of the suffix is computed (SpecPrefill).
    Sparse,
}

impl Route {
    /// The word shown in tables.
    pub fn word(self) -> &'static str {
        match self {
            Route::CacheHit => "cache_hit",
            Route::Dense => "dense",
            Route::Sparse => "sparse",
        }
    }
}

/// Why some tokens of a prompt are not covered by the checkpoint. Each is one step of the request waterfall
/// prompt → common prefix → held → restorable → checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Nothing was served before: there is nothing to reuse.
    Cold,
    /// Tokens that no earlier request had: the turn's own, fresh tokens.
    Appended,
    /// The prompt differs from the previous one inside the system prompt.
    SystemChanged,
    /// The prompt differs from the previous one inside a tool definition.
    ToolSchemaChanged,
    /// The history was edited: it differs inside an earlier message.
    HistoryEdited,
    /// The history was replaced by a summary.
    Compaction,
    /// The same text became other tokens.
    RetokenisationDrift,
    /// The tail of the common prefix that does not fill a whole block.
    BlockFloor,
    /// A block that was once stored has been evicted.
    Evicted,
    /// The common prefix was computed before but never stored, for example by a cancelled request.
    NeverStored,
    /// A block is held, but recurrent layers have only a placeholder there.
    PlaceholderRefused,
    /// The cache holds the whole prompt; the last token is computed all the same, for its logits.
    LastTokenComputed,
    /// The cache is switched off.
    CacheOff,
}

impl Cause {
    /// The phrase shown to a reader.
    pub fn phrase(self) -> &'static str {
        match self {
            Cause::Cold => "cold: nothing cached yet",
            Cause::Appended => "new tokens of this turn",
            Cause::SystemChanged => "system prompt changed",
            Cause::ToolSchemaChanged => "tool schema changed",
            Cause::HistoryEdited => "history edited",
            Cause::Compaction => "history compacted",
            Cause::RetokenisationDrift => "same text, other tokens",
            Cause::BlockFloor => "tail does not fill a block",
            Cause::Evicted => "block evicted",
            Cause::NeverStored => "computed before, never stored",
            Cause::PlaceholderRefused => "placeholder refused",
            Cause::LastTokenComputed => "last token is always computed",
            Cause::CacheOff => "cache is off",
        }
    }

    /// A word of at most 9 columns for narrow tables.
    pub fn word(self) -> &'static str {
        match self {
            Cause::Cold => "cold",
            Cause::Appended => "new",
            Cause::SystemChanged => "SYSTEM",
            Cause::ToolSchemaChanged => "TOOLS",
            Cause::HistoryEdited => "EDITED",
            Cause::Compaction => "COMPACTED",
            Cause::RetokenisationDrift => "RETOKEN",
            Cause::BlockFloor => "floor",
            Cause::Evicted => "EVICTED",
            Cause::NeverStored => "unstored",
            Cause::PlaceholderRefused => "PLACEH.",
            Cause::LastTokenComputed => "last tok",
            Cause::CacheOff => "off",
        }
    }

    /// Whether the cause is something gone wrong rather than the ordinary cost of a turn.
    pub fn is_loss(self) -> bool {
        !matches!(
            self,
            Cause::Cold | Cause::Appended | Cause::BlockFloor | Cause::LastTokenComputed | Cause::CacheOff
        )
    }
}

/// One step of the waterfall: how many tokens were lost and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    /// Why.
    pub cause: Cause,
    /// How many prompt tokens.
    pub tokens: u64,
    /// What happened, in words, with figures: `block 28 evicted by request 9`.
    pub detail: String,
}

/// The first token at which two prompts differ.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Divergence {
    /// Its position, tokens from the start.
    pub position: u64,
    /// The segment it lies in, in the new prompt; `None` past its end.
    pub segment: Option<Segment>,
    /// The old text around it, decoded.
    pub before: String,
    /// The new text around it, decoded.
    pub after: String,
}

/// Where a block of the prompt stands after the restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Residency {
    /// Restored from RAM.
    Ram,
    /// Held, but not restored: beyond the checkpoint.
    Held,
    /// Held as structure without recurrent state.
    Placeholder,
    /// Was stored once, evicted since.
    Evicted,
    /// Not held.
    Missing,
}

/// One block of a prompt at restore time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BlockFact {
    /// Position of the block in the prompt, from 0.
    pub index: u32,
    /// Where it stands.
    pub residency: Residency,
    /// The request that wrote it, where one is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_by: Option<RequestId>,
    /// When it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_at: Option<Stamp>,
    /// The route by which it was computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<Route>,
}

/// What a restore found. `checkpoint ≤ matched_with_state ≤ matched`, and the losses add up to
/// `prompt_tokens − checkpoint_tokens`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Restore {
    /// Tokens this prompt shares with its predecessor (prompt and computed reply), from the start. `None`
    /// without a predecessor.
    pub common_prefix_tokens: Option<u64>,
    /// Tokens covered by blocks found through the hash chain.
    pub matched_tokens: u64,
    /// Of those, up to the deepest block whose every layer has real state.
    pub matched_with_state_tokens: u64,
    /// The reusable checkpoint: tokens restored; computation starts here.
    pub checkpoint_tokens: u64,
    /// The waterfall, outermost loss first.
    pub losses: Vec<Loss>,
    /// The loss that a reader should look at.
    pub cause: Cause,
    /// Where the prompt departs from its predecessor, if it does before the predecessor's end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub divergence: Option<Divergence>,
    /// The prompt's whole blocks, in order.
    pub blocks: Vec<BlockFact>,
    /// Time the restore took.
    pub took: Nanos,
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
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
            Phase::Store => "store",
            Phase::Done => "done",
        }
    }
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

/// A request as it arrives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Arrival {
    /// Turn number in its lane, from 1.
    pub turn: u32,
    /// The request's name in the session file, or a made-up one.
    pub name: String,
    /// Why it exists.
    pub source: Source,
    /// How its history relates to the request before it.
    pub change: HistoryChange,
    /// The idle gap before it, as the session or the configuration says.
    pub idle: Nanos,
    /// Prompt length.
    pub prompt_tokens: u64,
    /// Segments of the prompt, in order; their tokens add up to `prompt_tokens`.
    pub segments: Vec<SegmentRun>,
    /// Messages this turn adds to the transcript.
    pub items: Vec<TranscriptItem>,
    /// Reply tokens allowed.
    pub max_output_tokens: u64,
}

/// The facts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Body {
    /// The engine is ready.
    RunStarted(Box<RunFacts>),
    /// A lane exists: the session itself, or a fork of `parent` before its turn `at_turn`.
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
    /// Progress of the prefill, once a chunk.
    PrefillProgress {
        /// Suffix tokens computed so far.
        done: u64,
        /// Suffix tokens in all.
        total: u64,
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
    },
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
    },
    /// Whole blocks have been stored.
    Stored {
        /// Tokens newly stored.
        stored_tokens: u64,
        /// Length of the longest prefix of the prompt that is restorable now, a block multiple.
        canonical_tokens: u64,
        /// Blocks evicted to make room.
        evicted_blocks: u64,
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
    /// Memory figures, after each request.
    Memory {
        /// Blocks holding cached state.
        cached_blocks: u64,
        /// Blocks in use by running requests.
        live_blocks: u64,
        /// Bytes of both.
        bytes: u64,
        /// The bound.
        limit_bytes: u64,
    },
    /// A page's generation did not match when it was to be read; the request that held it has failed.
    StalePage {
        /// How many such reads this run has seen.
        count: u64,
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
