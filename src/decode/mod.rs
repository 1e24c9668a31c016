//! Decoding: from logits to a token, or with drafted tokens to several.

pub mod controller;
pub mod draft;
pub mod economics;
mod row;
mod sampler;
pub mod settings;
mod verify;
pub mod what_if;

use serde::{Deserialize, Serialize};

pub use row::Row;
pub use sampler::{Distribution, Sampler, Verdict};
pub use verify::{Accepted, verify};

/// How a token is chosen. A temperature of 0 is greedy.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sampling {
    /// Softmax temperature; 0 means greedy.
    pub temperature: f32,
    /// Keep the `top_k` likeliest tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the likeliest tokens whose probabilities reach this sum; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this fraction as likely as the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Divides (positive) or multiplies (negative) the logits of tokens already seen; 1 does nothing.
    pub repetition_penalty: f32,
    /// Seed of the random stream; each request starts it anew.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0, seed: 0 }
    }
}

impl Sampling {
    /// Whether the likeliest token is always taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature <= 0.0 || self.temperature.is_nan()
    }
}

/// Per-request changes to [`Sampling`]; `None` keeps the configured value.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplingOverride {
    /// See [`Sampling::temperature`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// See [`Sampling::top_k`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<usize>,
    /// See [`Sampling::top_p`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    /// See [`Sampling::min_p`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    /// See [`Sampling::repetition_penalty`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f32>,
    /// See [`Sampling::seed`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

impl SamplingOverride {
    /// `base` with this override's values put over it.
    pub fn over(self, base: Sampling) -> Sampling {
        Sampling {
            temperature: self.temperature.unwrap_or(base.temperature),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(base.repetition_penalty),
            seed: self.seed.unwrap_or(base.seed),
        }
    }
}
