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
    /// Computed densely by a recovery job, while nobody waited: no request takes this route, it says where a block comes from.
    Recovery,
}

impl Route {
    /// The word shown in tables.
    pub fn word(self) -> &'static str {
        match self {
            Route::CacheHit => "cache_hit",
            Route::Dense => "dense",
            Route::Sparse => "sparse",
            Route::Recovery => "recovery",
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
    /// The same in the first request of a fork: tokens in which the branch departs from the lane it was forked from.
    Branch,
    /// The prompt differs from the previous one inside the system prompt.
    SystemChanged,
    /// The prompt differs from the previous one inside a tool definition.
    ToolSchemaChanged,
    /// The history was edited: it differs inside an earlier message.
    HistoryEdited,
    /// The history was replaced by a summary.
    Compaction,
    /// The session only appended, yet the template rendered an earlier turn to another text.
    TemplateRerendered,
    /// The same text became other tokens.
    RetokenisationDrift,
    /// The tail of the common prefix that does not fill a whole block.
    BlockFloor,
    /// A block that was once stored has been evicted, from RAM and from the SSD tier where there is one.
    Evicted,
    /// A file of the SSD tier failed a check; it was moved aside and never read as state.
    Damaged,
    /// The SSD tier holds the block and could not give it: the disk did not answer in time, or refused.
    Unread,
    /// The SSD tier holds these tokens as another model, precision, device or block size left them.
    IdentityChanged,
    /// The common prefix was computed before but never stored, for example by a cancelled request.
    NeverStored,
    /// Blocks are held, but no snapshot of the recurrent layers' state at their end.
    NoSnapshot,
    /// A block is held, but recurrent layers have only a placeholder there, and the whole match is refused for it.
    PlaceholderRefused,
    /// Blocks that background recovery published and that are not adopted yet: `recovery.adoption` says when they are shown.
    NotAdopted,
    /// State that a sparse prefill left, which is never restored.
    SparseRefused,
    /// The cache holds the whole prompt; the last token is computed all the same, for its logits.
    LastTokenComputed,
    /// The cache is switched off.
    CacheOff,
    /// An imported trace tells how much was lost and not why. Legal in such a recording only: for this program's own engine, which
    /// observes every cause, it would be a bug.
    Unknown,
}

impl Cause {
    /// All causes, in the order of the waterfall.
    pub const ALL: [Cause; 22] = [
        Cause::Cold,
        Cause::Appended,
        Cause::Branch,
        Cause::SystemChanged,
        Cause::ToolSchemaChanged,
        Cause::HistoryEdited,
        Cause::Compaction,
        Cause::TemplateRerendered,
        Cause::RetokenisationDrift,
        Cause::BlockFloor,
        Cause::Evicted,
        Cause::NeverStored,
        Cause::Damaged,
        Cause::Unread,
        Cause::IdentityChanged,
        Cause::LastTokenComputed,
        Cause::NoSnapshot,
        Cause::PlaceholderRefused,
        Cause::NotAdopted,
        Cause::SparseRefused,
        Cause::CacheOff,
        Cause::Unknown,
    ];

    /// The name in recordings and rows.
    pub fn identifier(self) -> &'static str {
        match self {
            Cause::Cold => "cold",
            Cause::Appended => "appended",
            Cause::Branch => "branch",
            Cause::SystemChanged => "system_changed",
            Cause::ToolSchemaChanged => "tool_schema_changed",
            Cause::HistoryEdited => "history_edited",
            Cause::Compaction => "compaction",
            Cause::TemplateRerendered => "template_rerendered",
            Cause::RetokenisationDrift => "retokenisation_drift",
            Cause::BlockFloor => "block_floor",
            Cause::Evicted => "evicted",
            Cause::Damaged => "damaged",
            Cause::Unread => "unread",
            Cause::IdentityChanged => "identity_changed",
            Cause::NeverStored => "never_stored",
            Cause::NoSnapshot => "no_snapshot",
            Cause::PlaceholderRefused => "placeholder_refused",
            Cause::NotAdopted => "not_adopted",
            Cause::SparseRefused => "sparse_refused",
            Cause::LastTokenComputed => "last_token_computed",
            Cause::CacheOff => "cache_off",
            Cause::Unknown => "unknown",
        }
    }

    /// The phrase shown to a reader.
    pub fn phrase(self) -> &'static str {
        match self {
            Cause::Cold => "cold: nothing cached yet",
            Cause::Appended => "new tokens of this turn",
            Cause::Branch => "branch: an edited turn",
            Cause::SystemChanged => "system prompt changed",
            Cause::ToolSchemaChanged => "tool schema changed",
            Cause::HistoryEdited => "history edited",
            Cause::Compaction => "history compacted",
            Cause::TemplateRerendered => "template re-rendered an earlier turn",
            Cause::RetokenisationDrift => "same text, other tokens",
            Cause::BlockFloor => "tail does not fill a block",
            Cause::Evicted => "block evicted",
            Cause::Damaged => "file damaged",
            Cause::Unread => "disk did not give the block",
            Cause::IdentityChanged => "stored under another identity",
            Cause::NeverStored => "computed before, never stored",
            Cause::NoSnapshot => "no recurrent snapshot",
            Cause::PlaceholderRefused => "placeholder refused",
            Cause::NotAdopted => "recovered, not adopted yet",
            Cause::SparseRefused => "sparse state refused",
            Cause::LastTokenComputed => "last token is always computed",
            Cause::CacheOff => "cache is off",
            Cause::Unknown => "not in the trace",
        }
    }

    /// A word of at most 9 columns for narrow tables.
    pub fn word(self) -> &'static str {
        match self {
            Cause::Cold => "cold",
            Cause::Appended => "new",
            Cause::Branch => "branch",
            Cause::SystemChanged => "SYSTEM",
            Cause::ToolSchemaChanged => "TOOLS",
            Cause::HistoryEdited => "EDITED",
            Cause::Compaction => "COMPACTED",
            Cause::TemplateRerendered => "TEMPLATE",
            Cause::RetokenisationDrift => "RETOKEN",
            Cause::BlockFloor => "floor",
            Cause::Evicted => "EVICTED",
            Cause::Damaged => "DAMAGED",
            Cause::Unread => "UNREAD",
            Cause::IdentityChanged => "IDENTITY",
            Cause::NeverStored => "unstored",
            Cause::NoSnapshot => "SNAPSHOT",
            Cause::PlaceholderRefused => "PLACEH.",
            Cause::NotAdopted => "UNADOPTED",
            Cause::SparseRefused => "SPARSE",
            Cause::LastTokenComputed => "last tok",
            Cause::CacheOff => "off",
            Cause::Unknown => "unknown",
        }
    }

    /// Whether the cause is something gone wrong rather than the ordinary cost of a turn.
    pub fn is_loss(self) -> bool {
        !matches!(
            self,
            Cause::Cold
                | Cause::Appended
                | Cause::Branch
                | Cause::BlockFloor
                | Cause::LastTokenComputed
                | Cause::CacheOff
                | Cause::Unknown
        )
    }
}

/// The block at which a loss begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Culprit {
    /// Its position in the prompt, from 0.
    pub index: u32,
    /// The request that wrote it, where one is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_by: Option<RequestId>,
    /// Whether that was a request of an earlier run, whose state came back from the SSD tier.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub earlier_run: bool,
}

impl Culprit {
    /// Whether a text names the block: `block 3`, not `block 37`.
    pub fn is_named_in(&self, text: &str) -> bool {
        let name = format!("block {}", self.index);
        let mut places = text.match_indices(&name);
        places.any(|(at, _)| !text[at + name.len()..].starts_with(|c: char| c.is_ascii_digit()))
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
    /// The block responsible, where a block is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<Culprit>,
}

/// A token and its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenText {
    /// Its id.
    pub id: u32,
    /// The text it decodes to by itself; may be a piece of a character.
    pub text: String,
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
    /// The request whose prompt it departs from; `None` in recordings of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<RequestId>,
    /// Tokens that both have just before it.
    #[serde(default)]
    pub shared_tokens: Vec<TokenText>,
    /// The old tokens from it on.
    #[serde(default)]
    pub tokens_before: Vec<TokenText>,
    /// The new tokens from it on.
    #[serde(default)]
    pub tokens_after: Vec<TokenText>,
}

/// The earlier request that shares most with a prompt, whichever lane it was in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closest {
    /// The request.
    pub request: RequestId,
    /// Tokens shared from the start, prompt and computed reply.
    pub common_tokens: u64,
}

/// What came from the SSD tier for a restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SsdRead {
    /// Blocks read.
    pub blocks: u64,
    /// Snapshots read.
    pub snapshots: u64,
    /// Bytes of state read.
    pub bytes: u64,
    /// Time it took, part of [`Restore::took`].
    pub took: Nanos,
}

/// Where a block of the prompt, its attention state, stands after the restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Residency {
    /// Restored from RAM.
    Ram,
    /// Restored from the SSD tier.
    Ssd,
    /// Held in RAM, but not restored: beyond the checkpoint.
    #[serde(alias = "placeholder")]
    Held,
    /// Held on the SSD tier only, and not restored.
    HeldSsd,
    /// Its file failed a check just now.
    Damaged,
    /// Was stored once, evicted since.
    Evicted,
    /// Not held.
    Missing,
}

impl Residency {
    /// Whether the block is part of the checkpoint.
    pub fn is_restored(self) -> bool {
        matches!(self, Residency::Ram | Residency::Ssd)
    }

    /// Whether some tier holds it.
    pub fn is_held(self) -> bool {
        self.is_restored() || matches!(self, Residency::Held | Residency::HeldSsd)
    }
}

/// What a held block has of the recurrent layers' state at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndState {
    /// A snapshot in RAM.
    Ram,
    /// A snapshot on the SSD tier.
    Ssd,
    /// A placeholder: nobody captured it.
    Placeholder,
    /// A placeholder: its snapshot was dropped to make room.
    Dropped,
}

impl EndState {
    /// Whether the block can be restored from.
    pub fn is_real(self) -> bool {
        matches!(self, EndState::Ram | EndState::Ssd)
    }
}

/// One block of a prompt at restore time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BlockFact {
    /// Position of the block in the prompt, from 0.
    pub index: u32,
    /// Where its attention state stands.
    pub residency: Residency,
    /// The recurrent layers' state at its end. `None` for a block that is not held or out of reach behind a hole, and for a model without
    /// recurrent layers, where every held block can be restored from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recurrent: Option<EndState>,
    /// The request that wrote it, where one is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_by: Option<RequestId>,
    /// Whether that was a request of an earlier run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub earlier_run: bool,
    /// When it was written, in this run's time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_at: Option<Stamp>,
    /// The route by which it was computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<Route>,
}

/// What a restore found. `checkpoint ≤ matched_with_state ≤ matched ≤ held`, and the losses add up to
/// `prompt_tokens − checkpoint_tokens`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Restore {
    /// Tokens this prompt shares with its predecessor (prompt and computed reply), from the start. `None`
    /// without a predecessor.
    pub common_prefix_tokens: Option<u64>,
    /// The earlier request of this run that shares most with the prompt. `None` where none came before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closest: Option<Closest>,
    /// Tokens of the prompt's blocks that RAM or the SSD tier holds, within reach of the chain or behind a hole.
    #[serde(default)]
    pub held_tokens: u64,
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
    /// What came from the SSD tier; `None` where nothing was read from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssd: Option<SsdRead>,
    /// Time the restore took.
    pub took: Nanos,
}

impl Restore {
    /// The loss that [`Restore::cause`] names.
    pub fn cause_loss(&self) -> Option<&Loss> {
        self.losses.iter().find(|loss| loss.cause == self.cause)
    }

    /// Whether more than the checkpoint was observed. An imported trace may know nothing else; what was held and matched then only repeats
    /// it, as the least that it can have been.
    pub fn is_observed(&self) -> bool {
        self.cause != Cause::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_has_one_name_in_code_and_files() {
        for cause in Cause::ALL {
            assert_eq!(serde_json::to_value(cause).unwrap(), cause.identifier());
        }
    }
}
