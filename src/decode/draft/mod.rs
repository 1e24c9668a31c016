//! Drafters: what guesses the next tokens, behind one interface.
//!
//! A drafter is never right or wrong in what it leaves: the target verifies every token. So each may keep its own state as it likes, as long as
//! what it drafts depends on the tokens it was given and nothing else, and as long as tokens that were not accepted leave no trace in it.

mod head;
mod model;
mod ngram;

pub use head::{HeadDrafter, HeadEntries, Reading};
pub use model::{DraftModel, ModelDrafter, ModelSequence};
pub use ngram::Ngram;

use super::{Distribution, Sampler};
use crate::cache::companion::CompanionFailed;
use crate::device::DeviceError;
use crate::event::Nanos;

/// What was drafted.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Draft {
    /// The tokens, in order.
    pub tokens: Vec<u32>,
    /// What each was drawn from.
    pub from: Vec<Distribution>,
    /// Compute time that the devices reported.
    pub compute: Nanos,
}

impl Draft {
    /// Adds a token that is certain, as far as the drafter goes.
    fn push_certain(&mut self, token: u32) {
        self.tokens.push(token);
        self.from.push(Distribution::certain(token));
    }

    /// Adds a token drawn from a drafter's logits, by the sampler that mirrors the target's.
    fn push_drawn(&mut self, logits: &[f32], known: &[u32], sampler: &mut Sampler) -> u32 {
        let from = sampler.distribution(logits, known);
        let token = sampler.draw(&from);
        self.tokens.push(token);
        self.from.push(from);
        token
    }
}

/// Why nothing could be drafted. The sequence decodes ordinarily from then on.
#[derive(Debug, thiserror::Error)]
pub enum DraftFailed {
    /// The drafter's device refused, or there is no room for its state.
    #[error("the drafter: {0}")]
    Model(#[from] CompanionFailed),
    /// The context is longer than the drafter's.
    #[error(
        "{tokens} tokens do not fit the drafter's context of {context}; use a drafter with a longer context"
    )]
    Context {
        /// Tokens to read.
        tokens: usize,
        /// Tokens its context holds.
        context: usize,
    },
}

impl From<DeviceError> for DraftFailed {
    fn from(error: DeviceError) -> DraftFailed {
        DraftFailed::Model(error.into())
    }
}

impl DraftFailed {
    /// Whether the drafter's device lost all state.
    pub fn lost_state(&self) -> bool {
        matches!(self, DraftFailed::Model(CompanionFailed::Device(DeviceError::StateLost(_))))
    }
}

/// Guesses what comes next in one sequence.
pub trait Drafter {
    /// Drafts at most `depth` tokens to follow `known`, prompt and reply so far. The last of these is new to the target.
    fn draft(&mut self, known: &[u32], depth: usize, sampler: &mut Sampler) -> Result<Draft, DraftFailed>;
}
