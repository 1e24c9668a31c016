//! What a restore found, and why it found no more.

use serde::{Deserialize, Serialize};

use super::{Nanos, RequestId, Segment, Stamp};

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
    /// Blocks are held, but no snapshot of the recurrent layers' state at their end.
    NoSnapshot,
    /// A block is held, but recurrent layers have only a placeholder there, and the whole match is refused for it.
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
            Cause::NoSnapshot => "no recurrent snapshot",
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
            Cause::NoSnapshot => "SNAPSHOT",
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
    /// Whether it holds a snapshot of the recurrent layers' state at its end, and can be restored from. `None` for a block
    /// that is not held, and for a model without recurrent layers, where every held block can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<bool>,
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
    /// Of those, up to the deepest block whose every layer has real state at its end; with recurrent layers, the deepest
    /// such block before the prompt's last token.
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
