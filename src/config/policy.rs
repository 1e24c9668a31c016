//! Policies for the state of recurrent layers.

use std::fmt;
use std::num::NonZeroU32;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// At which block boundaries the state of recurrent layers is captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotPolicy {
    /// At every one, or every so many blocks: `every`, `every:4`.
    Every(NonZeroU32),
    /// At the prompt's last one from which its last token can still be computed, and at the reply's last one.
    Last,
    /// Where the prompt departs from an earlier sequence, and at the last one of the sequence: after Marconi (Pan et al., 2024, arXiv
    /// 2411.19379), which saves state at branch points and at the last decoded token.
    Branch,
    /// At none.
    None,
}

impl SnapshotPolicy {
    /// At every boundary.
    pub const EVERY: SnapshotPolicy = SnapshotPolicy::Every(NonZeroU32::MIN);

    /// The policy that a configuration's word means.
    pub fn parse(word: &str) -> Option<SnapshotPolicy> {
        match word {
            "every" => Some(SnapshotPolicy::EVERY),
            "last" => Some(SnapshotPolicy::Last),
            "branch" => Some(SnapshotPolicy::Branch),
            "none" => Some(SnapshotPolicy::None),
            _ => Some(SnapshotPolicy::Every(word.strip_prefix("every:")?.parse().ok()?)),
        }
    }
}

impl fmt::Display for SnapshotPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SnapshotPolicy::Every(NonZeroU32::MIN) => f.write_str("every"),
            SnapshotPolicy::Every(blocks) => write!(f, "every:{blocks}"),
            SnapshotPolicy::Last => f.write_str("last"),
            SnapshotPolicy::Branch => f.write_str("branch"),
            SnapshotPolicy::None => f.write_str("none"),
        }
    }
}

impl Serialize for SnapshotPolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SnapshotPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SnapshotPolicy, D::Error> {
        deserializer.deserialize_str(Word)
    }
}

struct Word;

impl Visitor<'_> for Word {
    type Value = SnapshotPolicy;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"every\", \"every:N\" for every N blocks, \"last\", \"branch\" or \"none\"")
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<SnapshotPolicy, E> {
        SnapshotPolicy::parse(word).ok_or_else(|| E::invalid_value(Unexpected::Str(word), &self))
    }
}

/// What becomes of a match whose last block holds a placeholder in place of the recurrent layers' state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlaceholderPolicy {
    /// Walk back to the last block with real state.
    WalkBack,
    /// Refuse the match, and start from the last real state inside the static prefix (system prompt and tools), or from nothing:
    /// what the runtime of the study did.
    Strict,
}

impl PlaceholderPolicy {
    /// The word in a configuration.
    pub fn word(self) -> &'static str {
        match self {
            PlaceholderPolicy::WalkBack => "walk_back",
            PlaceholderPolicy::Strict => "strict",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_written_as_it_is_read() {
        for word in ["every", "every:4", "last", "branch", "none"] {
            assert_eq!(SnapshotPolicy::parse(word).unwrap().to_string(), word);
        }
        assert_eq!(SnapshotPolicy::parse("every:1"), Some(SnapshotPolicy::EVERY));
        for word in ["", "every:", "every:0", "every:-1", "sometimes"] {
            assert_eq!(SnapshotPolicy::parse(word), None, "{word}");
        }
    }
}
