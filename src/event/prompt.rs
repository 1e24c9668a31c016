//! What a request asks: its prompt's segments, its place in the history, its arrival.

use serde::{Deserialize, Serialize};

use super::Nanos;

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
    let mut end = 0_u64;
    runs.iter().find_map(|run| {
        end = end.saturating_add(run.tokens);
        (position < end).then_some(run.segment)
    })
}

/// Why a request exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The next request of the session file.
    Replay,
    /// A request of the session file beside its line of history, such as a title, a summary or a sub-agent's: its prompt shares the system
    /// prompt and the tools, and history goes on without it.
    Side,
    /// A turn typed in by the researcher.
    Inject,
    /// An earlier turn that was edited; the first request of a fork.
    Edit,
}

/// How the history of a request relates to that of the one before it in its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistoryChange {
    /// No request precedes it in its history: the first one of a lane's, and every side request.
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
    /// The idle gap before it, as the session or the configuration says; `None` where an imported run does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<Nanos>,
    /// Prompt length.
    pub prompt_tokens: u64,
    /// Segments of the prompt, in order; their tokens add up to `prompt_tokens`. Empty where an imported run does not tell.
    pub segments: Vec<SegmentRun>,
    /// Messages this turn adds to the transcript.
    pub items: Vec<TranscriptItem>,
    /// Reply tokens allowed; `None` as above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u64>,
    /// How long it had been there when background work gave way and it was taken note of: a collision. The request arrived so long before the event.
    /// `None` where nothing was in its way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delayed: Option<Nanos>,
}
