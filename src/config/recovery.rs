//! `[recovery]`: background recovery of what sparse requests left to be computed again.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::recovery::job::Mode;

/// `[recovery]`: while nobody waits, the prompts of sparse requests are computed densely and published, a slice at a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecoveryConfig {
    /// Whether.
    pub enabled: bool,
    /// Which debts are paid, and by whom.
    pub policy: RecoveryPolicy,
    /// When a job publishes.
    pub mode: Mode,
    /// Tokens of a slice at most. A slice ends at a block boundary too.
    pub slice_tokens: u64,
    /// Whether a slice gives way between two layers as soon as somebody else wants the device. Otherwise it runs to its end, and they wait.
    pub interruptible: bool,
    /// Share of the wall time of a window that slices may take, percent; 0 allows nothing, 100 leaves it to idleness.
    pub budget_pct: f64,
    /// Tokens that slices may compute in a window. Without it their number is not bounded.
    pub budget_tokens: Option<u64>,
    /// Length of a window, seconds.
    pub window_s: f64,
    /// When what is published is shown to requests.
    pub adoption: AdoptionRule,
    /// Blocks of its steps.
    pub adoption_blocks: u64,
    /// The most that a request is to wait for a slice, seconds: a line in the interface, nothing more.
    pub delay_target_s: Option<f64>,
    /// The same for the time to the first token.
    pub ttft_target_s: Option<f64>,
    /// The same for the time between tokens.
    pub itl_target_s: Option<f64>,
}

impl Default for RecoveryConfig {
    fn default() -> RecoveryConfig {
        RecoveryConfig {
            enabled: false,
            policy: RecoveryPolicy::Newest,
            mode: Mode::Progressive,
            slice_tokens: 512,
            interruptible: true,
            budget_pct: 100.0,
            budget_tokens: None,
            window_s: 30.0,
            adoption: AdoptionRule::Fixed,
            adoption_blocks: 1,
            delay_target_s: None,
            ttft_target_s: None,
            itl_target_s: None,
        }
    }
}

impl RecoveryConfig {
    /// Whether jobs run: it is on, and the policy is one of jobs.
    pub fn runs_jobs(&self) -> bool {
        self.enabled && !matches!(self.policy, RecoveryPolicy::Never | RecoveryPolicy::Dense { .. })
    }

    /// Every how many sparse requests of a lane one is computed densely instead, where that is the policy.
    pub fn dense_every(&self) -> Option<u64> {
        match self.policy {
            RecoveryPolicy::Dense { every } if self.enabled => Some(every),
            _ => None,
        }
    }
}

/// `recovery.policy`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum RecoveryPolicy {
    /// None.
    Never,
    /// The job under way goes on to its end; another history's debt is taken on only when there is none.
    Idle,
    /// Of two histories the one that owes less.
    Cheapest,
    /// Of two histories the one whose request came last.
    Newest,
    /// No job: every so many sparse requests of a lane one is computed densely, while somebody waits.
    Dense {
        /// How many.
        every: u64,
    },
}

impl fmt::Display for RecoveryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecoveryPolicy::Never => f.write_str("never"),
            RecoveryPolicy::Idle => f.write_str("idle"),
            RecoveryPolicy::Cheapest => f.write_str("cheapest"),
            RecoveryPolicy::Newest => f.write_str("newest"),
            RecoveryPolicy::Dense { every } => write!(f, "dense:{every}"),
        }
    }
}

impl From<RecoveryPolicy> for String {
    fn from(policy: RecoveryPolicy) -> String {
        policy.to_string()
    }
}

impl FromStr for RecoveryPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<RecoveryPolicy, String> {
        let every = |digits: &str| digits.parse().ok().filter(|every| *every > 0);
        match text {
            "never" => Ok(RecoveryPolicy::Never),
            "idle" => Ok(RecoveryPolicy::Idle),
            "cheapest" => Ok(RecoveryPolicy::Cheapest),
            "newest" => Ok(RecoveryPolicy::Newest),
            _ => match text.strip_prefix("dense:").and_then(every) {
                Some(every) => Ok(RecoveryPolicy::Dense { every }),
                None => Err(format!(
                    "`{text}` is no policy: write never, idle, cheapest, newest, or dense:N with N from 1"
                )),
            },
        }
    }
}

impl TryFrom<String> for RecoveryPolicy {
    type Error = String;

    fn try_from(text: String) -> Result<RecoveryPolicy, String> {
        text.parse()
    }
}

/// `recovery.adoption`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdoptionRule {
    /// In steps of `adoption_blocks`.
    Fixed,
    /// All at once, as soon as it lags by `adoption_blocks`.
    Hysteresis,
    /// As soon as what it saves of target prefill is worth more than scoring the window anew.
    Cost,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_written_as_it_is_read() {
        for text in ["never", "idle", "cheapest", "newest", "dense:4"] {
            assert_eq!(text.parse::<RecoveryPolicy>().unwrap().to_string(), text);
        }
        for text in ["", "dense", "dense:", "dense:0", "dense:x", "oldest"] {
            assert!(text.parse::<RecoveryPolicy>().unwrap_err().contains("write never"), "{text}");
        }
    }
}
