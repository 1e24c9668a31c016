//! Sparse prefill, told: what decided on it, what the scorer did, what was kept.

use serde::{Deserialize, Serialize};

use super::{Nanos, RequestId};
use crate::config::Aggregation;

/// Where an effective setting comes from. Later ones win over earlier ones; but `false` wins over everything.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "by", content = "name")]
pub enum SetBy {
    /// Nobody said anything.
    Default,
    /// The configuration: the model's settings.
    Model,
    /// The defaults of a transport, by its name.
    Transport(String),
    /// The request itself.
    Request,
    /// The researcher, while the run was under way.
    Hand,
}

/// A setting in effect, and who set it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Effective<T> {
    /// The value.
    pub value: T,
    /// Who.
    pub set_by: SetBy,
}

/// The settings a request is served by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SparseSettings {
    /// Whether long suffixes are computed sparsely.
    pub enabled: Effective<bool>,
    /// Fraction of the scored units that is computed.
    pub keep: Effective<f64>,
    /// A suffix of more tokens is computed sparsely.
    pub threshold: Effective<u64>,
}

/// What admission decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SparseVerdict {
    /// The suffix is scored and computed sparsely.
    Sparse,
    /// Dense: it is off.
    Off,
    /// Dense: the suffix is not longer than the threshold.
    ShortSuffix,
    /// Dense: what is left of the suffix behind the protected prefix is not longer than the threshold.
    ShortBehindProtected,
    /// Dense: the threshold would have it sparse, and it is the lane's turn to pay its debt (`recovery.policy = "dense:N"`).
    DenseTurn,
}

/// The admission of a request: after its restore, before anything is computed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SparseAdmission {
    /// What it was decided by.
    pub settings: SparseSettings,
    /// The outcome.
    pub verdict: SparseVerdict,
    /// Tokens of the protected prefix: those that cannot depend on the conversation.
    pub protected_tokens: u64,
    /// The text right before that boundary.
    pub boundary_before: String,
    /// The text right after it.
    pub boundary_after: String,
    /// Prompt tokens behind the checkpoint.
    pub suffix_tokens: u64,
    /// Of those, tokens behind the protected prefix.
    pub to_score_tokens: u64,
}

/// Where the scorer's own state starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScorerStart {
    /// Nothing was scored before in this lane.
    First,
    /// From a snapshot of its own cache.
    Warm,
    /// From nothing: the window begins elsewhere than the last one did.
    OriginMoved {
        /// Where that one began.
        from: u64,
    },
    /// From nothing: the window begins where the last one did, and no snapshot lies at or below the place where they differ.
    Diverged {
        /// Tokens of the window that both share.
        shared: u64,
    },
    /// From nothing: what was stored has been evicted.
    Evicted,
    /// From nothing: the request neither reads nor writes caches.
    CacheOff,
}

/// A scoring.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scored {
    /// Absolute position of the window's first token: `max(checkpoint, protected prefix)`.
    pub origin: u64,
    /// Tokens of the window.
    pub scored_tokens: u64,
    /// Of those, tokens the scorer restored from its own cache.
    pub draft_cached_tokens: u64,
    /// Why it started there.
    pub start: ScorerStart,
    /// Boundary up to which the scorer's state was stored, tokens from the origin; `None` where none was reachable or new.
    pub draft_stored_tokens: Option<u64>,
    /// Tokens it decoded to look ahead.
    pub lookahead_steps: u64,
    /// Compute time of its prefill.
    pub prefill: Nanos,
    /// Compute time of the look-ahead.
    pub lookahead: Nanos,
    /// Compute time of scores, pooling and aggregation.
    pub importance: Nanos,
    /// Tokens of a unit.
    pub unit_tokens: u64,
    /// Score of every unit of the window, in order.
    pub unit_scores: Vec<f32>,
    /// Tokens of the window that are kept, the kickoff token among them.
    pub selected_tokens: u64,
    /// Kept ranges, absolute, first and past-the-end, ascending; the protected prefix is not among them.
    pub kept: Vec<(u64, u64)>,
    /// Everything before this position is computed densely.
    pub dense_until: u64,
}

impl Scored {
    /// Time the scorer took in all.
    pub fn took(&self) -> Nanos {
        Nanos(self.prefill.0 + self.lookahead.0 + self.importance.0)
    }

    /// Whether a position is computed, or was restored.
    pub fn keeps(&self, position: u64) -> bool {
        self.kept_between(position, position.saturating_add(1)) > 0
    }

    /// Tokens at positions `from..to` that are computed, or were restored: those before `dense_until`, and those of kept ranges.
    pub fn kept_between(&self, from: u64, to: u64) -> u64 {
        let dense = to.min(self.dense_until).saturating_sub(from);
        let behind = from.max(self.dense_until);
        let first = self.kept.partition_point(|(_, end)| *end <= behind);
        let ranges = self.kept[first..].iter().take_while(|(start, _)| *start < to);
        let kept = ranges.map(|(start, end)| (*end).min(to).saturating_sub((*start).max(behind)));
        kept.fold(dense, u64::saturating_add).min(to.saturating_sub(from))
    }
}

/// What the kept tokens of a sparse prefill still spell of what the recorded reply goes on to use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survival {
    /// Identifiers of the recorded reply that the prompt contains, in the reply's order; the first few hundred.
    pub identifiers: Vec<SurvivingIdentifier>,
}

/// An identifier: a path, a name, a number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SurvivingIdentifier {
    /// It.
    pub text: String,
    /// How often it occurs in the prompt.
    pub occurrences: u64,
    /// Of those, occurrences whose tokens were all restored or computed.
    pub kept: u64,
}

/// Another choice from the attention that a scoring captured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rescored {
    /// The number that was given with the question.
    pub ticket: u64,
    /// The request whose scoring was asked for.
    pub request: RequestId,
    /// Score of every unit of the window, in order; empty where there is a problem.
    pub unit_scores: Vec<f32>,
    /// Tokens of a unit.
    pub unit_tokens: u64,
    /// Tokens that would be kept.
    pub selected_tokens: u64,
    /// Kept ranges, absolute.
    pub kept: Vec<(u64, u64)>,
    /// Why there is no answer, if there is none.
    pub problem: Option<String>,
}

/// How sparse prefill is set up for a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SpecPrefillFacts {
    /// Whether the model's settings have it on; `None` where they do not say.
    pub enabled: Option<bool>,
    /// The model's keep fraction.
    pub keep: f64,
    /// The model's threshold.
    pub threshold: u64,
    /// Display name of the scorer.
    pub scorer: String,
    /// `nothing`, `first_skip`, `next_boundary`.
    pub leaves: String,
    /// Last tokens of a prompt that are always kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail_tokens: Option<u64>,
    /// Width of the average that smooths scores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<u64>,
    /// How scores become one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregation: Option<Aggregation>,
}

/// A row of logits. On disk: base64 of little-endian f32.
#[derive(Debug, Clone, PartialEq)]
pub struct Logits(pub Vec<f32>);

impl Serialize for Logits {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use base64::Engine as _;
        let bytes: Vec<u8> = self.0.iter().flat_map(|x| x.to_le_bytes()).collect();
        serializer.serialize_str(&base64::engine::general_purpose::STANDARD.encode(bytes))
    }
}

impl<'de> Deserialize<'de> for Logits {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Logits, D::Error> {
        use base64::Engine as _;
        use serde::de::Error as _;
        let text = String::deserialize(deserializer)?;
        let bytes = base64::engine::general_purpose::STANDARD.decode(text).map_err(D::Error::custom)?;
        let (floats, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(D::Error::custom("logits end within a number"));
        }
        Ok(Logits(floats.iter().map(|b| f32::from_le_bytes(*b)).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_keep_their_bits_on_disk() {
        let logits = Logits(vec![0.0, -0.0, 1.5e-38, f32::MAX, -7.25]);
        let text = serde_json::to_string(&logits).unwrap();
        let read: Logits = serde_json::from_str(&text).unwrap();
        let bits = |logits: &Logits| logits.0.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&read), bits(&logits));
        assert!(serde_json::from_str::<Logits>("\"AAAAAAA=\"").is_err());
        assert!(serde_json::from_str::<Logits>("\"!\"").is_err());
    }
}
