//! `[specprefill]`: sparse prefill. What decides about a request is in [`super::transport`].

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// `[specprefill]`: a scorer reads the suffix, and the target computes only the units it chose.
///
/// Defaults are those of the reference (Liu, Chen, Zhang, "Speculative Prefill", 2025, arXiv 2502.02789) and of the study (keep 0.2,
/// threshold 8,192, tail 512).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SpecPrefillConfig {
    /// Whether long suffixes are computed sparsely. Absent: off, unless a request asks for it. `false` said here beats every request.
    pub enabled: Option<bool>,
    /// Fraction of the scored units that is computed. Absent: [`SpecPrefillConfig::KEEP`].
    pub keep: Option<f64>,
    /// A suffix of more tokens than this is computed sparsely. Absent: [`SpecPrefillConfig::THRESHOLD`].
    pub threshold: Option<u64>,
    /// Tokens the scorer decodes; their queries are what scores are made of.
    pub lookahead: usize,
    /// Width of the average that smooths scores along positions; odd.
    pub pool: usize,
    /// Tokens that are kept or dropped together.
    pub unit: usize,
    /// Last tokens of the prompt that are always kept.
    pub tail_tokens: usize,
    /// How the scores of heads, layers and steps become one.
    pub aggregation: Aggregation,
    /// Whose queries score.
    pub queries: QuerySource,
    /// Which model scores.
    pub scorer: ScorerChoice,
    /// Seed of the scorer's sampling.
    pub seed: u64,
    /// What a sparse request leaves for the ones after it.
    pub leaves: SparseLeaves,
    /// Upper bound of the scorer's own state in RAM, bytes; `"1GiB"` in a file. It is not part of `cache.ram_bytes`.
    #[serde(deserialize_with = "super::bytes::deserialize")]
    pub ram_bytes: u64,
}

impl SpecPrefillConfig {
    /// `specprefill.keep` where nobody says.
    pub const KEEP: f64 = 0.2;
    /// `specprefill.threshold` where nobody says.
    pub const THRESHOLD: u64 = 8192;

    /// What it says of the settings that a request may set too.
    pub fn says(&self) -> SparseOverride {
        SparseOverride { enabled: self.enabled, keep: self.keep, threshold: self.threshold }
    }
}

impl Default for SpecPrefillConfig {
    fn default() -> SpecPrefillConfig {
        SpecPrefillConfig {
            enabled: None,
            keep: None,
            threshold: None,
            lookahead: 8,
            pool: 13,
            unit: 32,
            tail_tokens: 512,
            aggregation: Aggregation::MaxMean,
            queries: QuerySource::Lookahead,
            scorer: ScorerChoice::Draft,
            seed: 0,
            leaves: SparseLeaves::Nothing,
            ram_bytes: 1 << 30,
        }
    }
}

/// `specprefill.aggregation`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aggregation {
    /// The greatest over layers and heads, then the mean over queries: the reference.
    MaxMean,
    /// The mean over layers and heads, then over queries.
    MeanMean,
    /// The greatest over layers, heads and queries.
    MaxMax,
}

/// `specprefill.queries`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuerySource {
    /// Those of the decoded tokens.
    Lookahead,
    /// That of the prompt's last token, counted as the first step, and those of the decoded tokens.
    PromptAndLookahead,
    /// Those of the prompt's last tokens, `lookahead` of them; nothing is decoded.
    PromptTail,
}

/// `specprefill.leaves`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SparseLeaves {
    /// Nothing: the published behaviour.
    Nothing,
    /// Whole blocks before the first skipped token.
    FirstSkip,
    /// The next block boundary: up to there everything is computed, and behind it the chosen units.
    NextBoundary,
}

impl SparseLeaves {
    /// The word in configurations and reports.
    pub fn word(self) -> &'static str {
        match self {
            SparseLeaves::Nothing => "nothing",
            SparseLeaves::FirstSkip => "first_skip",
            SparseLeaves::NextBoundary => "next_boundary",
        }
    }
}

/// `specprefill.scorer`
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScorerChoice {
    /// `model.draft`; the bundled draft for the bundled model.
    Draft,
    /// The target's own first layers: `self:4`.
    OwnLayers(usize),
    /// Another model with the same tokenizer.
    Model(PathBuf),
}

impl fmt::Display for ScorerChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScorerChoice::Draft => f.write_str("draft"),
            ScorerChoice::OwnLayers(layers) => write!(f, "self:{layers}"),
            ScorerChoice::Model(path) => path.display().fmt(f),
        }
    }
}

impl Serialize for ScorerChoice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ScorerChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ScorerChoice, D::Error> {
        let word = String::deserialize(deserializer)?;
        match word.strip_prefix("self:") {
            Some(layers) => match layers.parse() {
                Ok(layers) if layers > 0 => Ok(ScorerChoice::OwnLayers(layers)),
                _ => Err(serde::de::Error::custom(format!(
                    "`{word}`: expected a number of layers, as in `self:4`"
                ))),
            },
            None if word == "draft" => Ok(ScorerChoice::Draft),
            None if word.is_empty() => Err(serde::de::Error::custom(
                "expected `draft`, `self:N` for the target's first N layers, or a model's path",
            )),
            None => Ok(ScorerChoice::Model(word.into())),
        }
    }
}

/// What the model's settings, a transport, a request, or the researcher's hand says about sparse prefill. `None` leaves it to what stands below.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SparseOverride {
    /// Whether.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// See [`SpecPrefillConfig::keep`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<f64>,
    /// See [`SpecPrefillConfig::threshold`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold: Option<u64>,
}
