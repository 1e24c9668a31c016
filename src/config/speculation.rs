//! `[speculation]`: speculative decoding. Defaults of transports for it are in [`super::transport`].

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::Config;

/// `[speculation]`: a drafter guesses the next tokens, and the target verifies them in one forward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SpeculationConfig {
    /// What guesses. Absent: nothing, unless a transport, a request or the researcher asks for it. `none` said here beats them all.
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
    /// The greatest depth: a forward over one more token is the widest that a device takes for a sequence whose state can be taken back.
    pub const MAX_DEPTH: u32 = 16;

    /// What it says of the settings that a transport, a request or the researcher may set too.
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

/// Every drafter that the configuration or one of its transports names: what has to be loaded. None where `speculation.drafter` is `none`, which no
/// transport, request or hand overrides.
pub fn drafters_wanted(config: &Config) -> BTreeSet<DrafterKind> {
    let of_model = config.speculation.drafter;
    if of_model == Some(DrafterKind::None) {
        return BTreeSet::new();
    }
    let of_transports =
        config.policy.names().filter_map(|name| config.policy.get(name)).filter_map(|policy| policy.drafter);
    of_model.into_iter().chain(of_transports).filter(|drafter| *drafter != DrafterKind::None).collect()
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
    /// All of them.
    pub const ALL: [DrafterKind; 4] =
        [DrafterKind::None, DrafterKind::Mtp, DrafterKind::Draft, DrafterKind::Ngram];

    /// The one that a word means.
    pub fn parse(word: &str) -> Option<DrafterKind> {
        DrafterKind::ALL.into_iter().find(|drafter| drafter.word() == word)
    }

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ControllerKind {
    /// The configured depth, always.
    Fixed,
    /// The depth with the best expected rate, each cycle anew.
    Adaptive,
}

impl ControllerKind {
    /// All of them.
    pub const ALL: [ControllerKind; 2] = [ControllerKind::Fixed, ControllerKind::Adaptive];

    /// The one that a word means.
    pub fn parse(word: &str) -> Option<ControllerKind> {
        ControllerKind::ALL.into_iter().find(|controller| controller.word() == word)
    }

    /// The word in configurations and reports.
    pub fn word(self) -> &'static str {
        match self {
            ControllerKind::Fixed => "fixed",
            ControllerKind::Adaptive => "adaptive",
        }
    }
}

/// What the model's settings, a transport, a request, or the researcher's hand says about speculative decoding. `None` leaves a setting to what stands
/// below.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Override, load};

    fn wanted(settings: &[&str]) -> Vec<&'static str> {
        let settings: Vec<_> = settings.iter().map(|setting| Override::parse(setting).unwrap()).collect();
        let config = load(None, &settings).unwrap();
        drafters_wanted(&config).into_iter().map(DrafterKind::word).collect()
    }

    #[test]
    fn what_the_configuration_or_a_transport_names_is_wanted() {
        assert!(wanted(&[]).is_empty());
        assert_eq!(wanted(&["speculation.drafter=mtp"]), ["mtp"]);
        assert_eq!(wanted(&["policy.agent.drafter=draft"]), ["draft"]);
        let all = ["speculation.drafter=ngram", "policy.agent.drafter=draft", "policy.mine.drafter=mtp"];
        assert_eq!(wanted(&all), ["mtp", "draft", "ngram"]);
        assert_eq!(wanted(&["speculation.drafter=mtp", "policy.agent.drafter=none"]), ["mtp"]);
    }

    #[test]
    fn what_is_switched_off_for_all_is_not_loaded() {
        assert!(wanted(&["speculation.drafter=none", "policy.agent.drafter=mtp"]).is_empty());
    }

    #[test]
    fn words_mean_what_they_are() {
        for drafter in DrafterKind::ALL {
            assert_eq!(DrafterKind::parse(drafter.word()), Some(drafter));
        }
        for controller in ControllerKind::ALL {
            assert_eq!(ControllerKind::parse(controller.word()), Some(controller));
        }
        assert_eq!((DrafterKind::parse("mpt"), ControllerKind::parse("")), (None, None));
    }
}
