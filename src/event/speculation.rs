//! Speculative decoding, told: which drafter, every depth that was decided on and why, every cycle and what it cost.

use serde::{Deserialize, Serialize};

use super::{Nanos, SetBy};
use crate::config::{ControllerKind, DrafterKind};

/// How speculative decoding is set up for a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SpeculationFacts {
    /// The drafter that requests get unless they or their transport say otherwise.
    pub drafter: DrafterKind,
    /// Drafters that are loaded, `ngram` always among them.
    pub loaded: Vec<DrafterKind>,
    /// Display name of the draft model, where one is loaded.
    pub draft_model: Option<String>,
    /// Tokens drafted in a cycle at most.
    pub depth_max: u32,
    /// What chooses the depth.
    pub controller: ControllerKind,
    /// Whether every cycle's state is compared with recomputation.
    pub audit: bool,
}

/// The drafter of a request, when its reply begins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DrafterStart {
    /// Which.
    pub drafter: DrafterKind,
    /// Tokens drafted in a cycle at most.
    pub depth_max: u32,
    /// What chooses the depth.
    pub controller: ControllerKind,
    /// Who set the drafter, the depth and the controller.
    pub set_by: [SetBy; 3],
    /// Whether the likeliest token is always taken: then the reply is that of ordinary decoding, token for token.
    pub greedy: bool,
    /// Tokens it read before the first draft, beyond those it had in its own cache.
    pub primed_tokens: u64,
    /// Tokens it had in its own cache: of the prompt's pages for the prediction head, of its own prefix cache for a draft model.
    pub cached_tokens: u64,
    /// Time the priming took. It lies before the first token.
    pub took: Nanos,
}

/// Why a depth was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DepthReason {
    /// It is fixed.
    Fixed,
    /// It has the greatest expected rate.
    Best,
    /// Its cost, or the acceptance at it, is not known yet.
    Explore,
    /// A standing probe: an ordinary step, measured so that the cost of a dense step stays known.
    DenseProbe,
    /// The cooldown is over: speculation is tried again.
    Reentry,
    /// Speculation has lost for too long: the sequence is parked, and decodes ordinarily until the cooldown is over.
    Parked,
    /// The reply's budget, the context's end or a block boundary leaves no room for more.
    Limited,
}

/// A decision on the depth of the next cycle, with what it was made from. While a cooldown runs that is the cooldown alone, and the lists are
/// empty.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DepthDecision {
    /// Place in the reply of the first token that the cycle will give, from 0.
    pub first: u64,
    /// The depth decided on; 0 is an ordinary step.
    pub depth: u32,
    /// Why.
    pub reason: DepthReason,
    /// Tokens that the context, the reply's budget and the device leave room for.
    pub room: u32,
    /// Acceptance of each draft position, given that those before it were accepted; `None` where nobody has seen it. Moving averages.
    pub acceptance: Vec<Option<f64>>,
    /// Cost of a cycle at depth 0, 1, 2, …; `None` where nobody has measured it. Moving averages.
    pub cost: Vec<Option<Nanos>>,
    /// Expected tokens per second at depth 0, 1, 2, ….
    pub rate: Vec<Option<f64>>,
    /// Cycles in a row that were slower than as many dense steps as they gave tokens.
    pub losing_streak: u32,
    /// Ordinary steps until speculation is tried again, where the sequence is parked.
    pub cooldown: Option<u32>,
}

/// How many experts a forward touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertsTouched {
    /// Distinct routed experts, summed over layers.
    pub touched: u64,
    /// What one token touches, summed over layers.
    pub of_one_token: u64,
    /// All there are, summed over layers.
    pub experts: u64,
}

/// What comparing a cycle's state with recomputation showed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Audit {
    /// Whether they agree.
    pub passed: bool,
    /// How they were compared: `bitwise` by digest of all state and by logits, `tolerance` by logits.
    pub how: super::Identity,
    /// What differs first.
    pub problem: Option<String>,
}

/// One verify cycle: tokens drafted, one forward of the target over them, the accepted ones emitted with one more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cycle {
    /// Place in the reply of the first token it gave, from 0.
    pub first: u64,
    /// Tokens of the sequence that were computed before it.
    pub context_tokens: u64,
    /// The depth decided on.
    pub depth: u32,
    /// Tokens the drafter gave, at most `depth`. The forward was over one more.
    pub drafted: u32,
    /// Of those, tokens that were put to the test: those whose predecessors were all accepted.
    pub tested: u32,
    /// Of those, tokens that were accepted. The cycle emitted one more.
    pub accepted: u32,
    /// The drafted tokens' texts, in order.
    pub proposed: Vec<String>,
    /// Time to draft.
    pub draft: Nanos,
    /// Time of the target's forward; `None` where other sequences shared it, since a share is no measurement.
    pub verify: Option<Nanos>,
    /// Time to accept and sample.
    pub sample: Nanos,
    /// Time to take back what was not accepted.
    pub rollback: Nanos,
    /// Time to keep what was: bookkeeping, text, the drafter's own state.
    pub commit: Nanos,
    /// Other sequences in the forward.
    pub neighbours: u32,
    /// Experts the forward touched; `None` for a model without, and where the device does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<ExpertsTouched>,
    /// The audit, where it is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<Audit>,
}

impl Cycle {
    /// Tokens it emitted.
    pub fn emitted(&self) -> u32 {
        self.accepted + 1
    }

    /// All of its time; `None` where part of it is no measurement.
    pub fn took(&self) -> Option<Nanos> {
        Some(Nanos(self.verify?.0 + self.draft.0 + self.sample.0 + self.rollback.0 + self.commit.0))
    }
}

/// What a forward of the target costs by its width, measured on the state a reply left.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VerifyCurve {
    /// Tokens of the sequence.
    pub context_tokens: u64,
    /// Tokens of the forward, and the median time it took.
    pub points: Vec<(u32, Nanos)>,
    /// Measurements of each, taken in turn.
    pub repeats: u32,
}
