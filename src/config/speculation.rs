//! `[speculation]`: speculative decoding. Defaults of transports for it are in [`super::transport`].

use serde::{Deserialize, Serialize};

/// `[speculation]`: a drafter guesses the next tokens, and the target verifies them in one forward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SpeculationConfig {
    /// What guesses. Absent: nothing, unless a transport or the researcher asks for it.
    pub drafter: Option<DrafterKind>,
    /// Tokens drafted in a cycle: exactly so many where the controller is `fixed`, at most so many where it is `adaptive`. Absent:
    /// [`SpeculationConfig::DEPTH`].
    pub depth: Option<u32>,
    /// What chooses the depth. Absent: `adaptive`.
    pub controller: Option<ControllerKind>,
    /// Whether every cycle's state is compared with recomputation. It costs a dense decode beside the speculative one, which is not accounted.
    pub audit: bool,
    /// Whether the cost of forwards of 1 to 8 tokens is measured when a reply has ended.
    pub curve: bool,
    /// Tokens at the end of the context that must have occurred before, for `ngram` to draft what followed them then.
    pub ngram_tokens: usize,
    /// Upper bound of the draft model's own state in RAM, bytes; `"1GiB"` in a file. It is not part of `cache.ram_bytes`.
    #[serde(deserialize_with = "super::bytes::deserialize")]
    pub ram_bytes: u64,
}

impl SpeculationConfig {
    /// `speculation.depth` where nobody says.
    pub const DEPTH: u32 = 4;
    /// The greatest depth.
    pub const MAX_DEPTH: u32 = 16;

    /// What it says of the settings that a transport or the researcher may set too.
    pub fn says(&self) -> SpeculationOverride {
        SpeculationOverride { drafter: self.drafter, depth: self.depth, controller: self.controller }
    }
}

impl Default for SpeculationConfig {
    fn default() -> SpeculationConfig {
        SpeculationConfig {
            drafter: None,
            depth: None,
            controller: None,
            audit: false,
            curve: false,
            ngram_tokens: 3,
            ram_bytes: 1 << 30,
        }
    }
}

/// `speculation.drafter`
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DrafterKind {
    /// Nothing: ordinary decoding.
    None,
    /// The model's own multi-token-prediction head.
    Mtp,
    /// A smaller model with the same tokenizer: `model.draft`.
    Draft,
    /// What followed the last tokens where they occurred before in the context.
    Ngram,
}

impl DrafterKind {
    /// The word in configurations and reports.
    pub fn word(self) -> &'static str {
        match self {
            DrafterKind::None => "none",
            DrafterKind::Mtp => "mtp",
            DrafterKind::Draft => "draft",
            DrafterKind::Ngram => "ngram",
        }
    }
}

/// `speculation.controller`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ControllerKind {
    /// The configured depth, always.
    Fixed,
    /// The depth with the best expected rate, each cycle anew.
    Adaptive,
}

impl ControllerKind {
    /// The word in configurations and reports.
    pub fn word(self) -> &'static str {
        match self {
            ControllerKind::Fixed => "fixed",
            ControllerKind::Adaptive => "adaptive",
        }
    }
}

/// Settings that more than the configuration may say; `None` leaves a setting to what stands below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpeculationOverride {
    /// See [`SpeculationConfig::drafter`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drafter: Option<DrafterKind>,
    /// See [`SpeculationConfig::depth`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// See [`SpeculationConfig::controller`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<ControllerKind>,
}

impl SpeculationOverride {
    /// This, and where it says nothing what `below` says.
    pub fn over(self, below: SpeculationOverride) -> SpeculationOverride {
        SpeculationOverride {
            drafter: self.drafter.or(below.drafter),
            depth: self.depth.or(below.depth),
            controller: self.controller.or(below.controller),
        }
    }
}
