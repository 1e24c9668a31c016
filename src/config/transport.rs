//! `[policy.NAME]`: the defaults of transports.
//!
//! A server cannot tell a disposable long prompt, where sparse prefill wins, from the continuation of a conversation, where it leaves the next
//! request more to compute. What a request came by can: an agent goes on, a long-context query does not. So each *transport* has defaults of its
//! own, over the model's settings and below what the request says. Whether its replies are worth drafting differs likewise: tool arguments repeat what
//! was read, prose does not.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use super::suggest::nearest;
use super::{ConfigError, ControllerKind, DrafterKind, SparseOverride, SpeculationOverride};

/// The longest name of a transport, characters.
pub const MAX_TRANSPORT_CHARS: usize = 32;

/// What a transport says of the settings that a request may set too; `None` leaves a setting to what stands below.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransportPolicy {
    /// See [`SparseOverride::enabled`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// See [`SparseOverride::keep`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<f64>,
    /// See [`SparseOverride::threshold`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold: Option<u64>,
    /// See [`SpeculationOverride::drafter`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drafter: Option<DrafterKind>,
    /// See [`SpeculationOverride::depth`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// See [`SpeculationOverride::controller`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<ControllerKind>,
}

impl TransportPolicy {
    /// The names of its keys, in order.
    pub(super) const KEYS: [&str; 6] = ["enabled", "keep", "threshold", "drafter", "depth", "controller"];

    /// One that says this and that.
    pub fn of(specprefill: SparseOverride, speculation: SpeculationOverride) -> TransportPolicy {
        let SparseOverride { enabled, keep, threshold } = specprefill;
        let SpeculationOverride { drafter, depth, controller } = speculation;
        TransportPolicy { enabled, keep, threshold, drafter, depth, controller }
    }

    /// What it says of sparse prefill.
    pub fn specprefill(&self) -> SparseOverride {
        SparseOverride { enabled: self.enabled, keep: self.keep, threshold: self.threshold }
    }

    /// What it says of speculative decoding.
    pub fn speculation(&self) -> SpeculationOverride {
        SpeculationOverride { drafter: self.drafter, depth: self.depth, controller: self.controller }
    }

    /// This, and where it says nothing what `below` says.
    fn over(self, below: TransportPolicy) -> TransportPolicy {
        TransportPolicy::of(
            self.specprefill().over(below.specprefill()),
            self.speculation().over(below.speculation()),
        )
    }
}

/// The transports, by name, and their defaults.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Transports(BTreeMap<String, TransportPolicy>);

impl Default for Transports {
    /// `agent`, which has sparse prefill off, and `long-context`, which keeps the model's settings.
    fn default() -> Transports {
        let off = TransportPolicy { enabled: Some(false), ..TransportPolicy::default() };
        let known = [("agent", off), ("long-context", TransportPolicy::default())];
        Transports(known.map(|(name, policy)| (name.to_owned(), policy)).into())
    }
}

impl Transports {
    /// Those given, and none that come with the program.
    #[cfg(test)]
    pub(crate) fn of<const N: usize>(given: [(&str, TransportPolicy); N]) -> Transports {
        Transports(given.map(|(name, policy)| (name.to_owned(), policy)).into())
    }

    /// Has no transport say anything of speculative decoding.
    pub fn forget_speculation(&mut self) {
        for policy in self.0.values_mut() {
            *policy = TransportPolicy::of(policy.specprefill(), SpeculationOverride::default());
        }
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The defaults of a transport; `None` where there is none of that name.
    pub fn get(&self, name: &str) -> Option<TransportPolicy> {
        self.0.get(name).copied()
    }

    /// The defaults of a transport that `origin` names.
    pub fn named(&self, origin: &str, name: &str) -> Result<TransportPolicy, ConfigError> {
        self.get(name).ok_or_else(|| ConfigError {
            origin: origin.to_owned(),
            problem: format!("unknown transport `{name}`"),
            remedy: match nearest(name, self.names()) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => {
                    let names = self.names().collect::<Vec<_>>().join(", ");
                    format!("the transports are {names}; a section [policy.{name}] adds it")
                }
            },
        })
    }
}

impl<'de> Deserialize<'de> for Transports {
    /// Puts what is given over what comes with the program, key by key.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Transports, D::Error> {
        let given = BTreeMap::<String, TransportPolicy>::deserialize(deserializer)?;
        let mut transports = Transports::default();
        for (name, policy) in given {
            if !is_transport_name(&name) {
                return Err(serde::de::Error::custom(format!(
                    "a transport's name is lower-case letters, digits, `-` and `_`, at most {MAX_TRANSPORT_CHARS} of them"
                )));
            }
            let stands = transports.0.entry(name).or_default();
            *stands = policy.over(*stands);
        }
        Ok(transports)
    }
}

/// Whether `name` can be the name of a transport.
pub fn is_transport_name(name: &str) -> bool {
    let fits = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-' || c == b'_';
    (1..=MAX_TRANSPORT_CHARS).contains(&name.len()) && name.bytes().all(fits)
}

impl SparseOverride {
    /// This, and where it says nothing what `below` says.
    pub fn over(self, below: SparseOverride) -> SparseOverride {
        SparseOverride {
            enabled: self.enabled.or(below.enabled),
            keep: self.keep.or(below.keep),
            threshold: self.threshold.or(below.threshold),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_transports_are_plain_words() {
        assert!(["agent", "long-context", "a_1"].into_iter().all(is_transport_name));
        let long = "x".repeat(33);
        assert!(!["", "Agent", "a.b", "a b", "naïve", &long].into_iter().any(is_transport_name));
    }
}
