//! Who may set speculative decoding, and what is in effect.

use crate::config::{Config, ControllerKind, DrafterKind, SpeculationConfig, SpeculationOverride};
use crate::event::{Effective, SetBy};

/// The settings a request decodes by.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeculationSettings {
    /// What guesses.
    pub drafter: Effective<DrafterKind>,
    /// Tokens drafted in a cycle at most.
    pub depth: Effective<u32>,
    /// What chooses the depth.
    pub controller: Effective<ControllerKind>,
}

/// The settings in effect for a request: the model's give way to the defaults of its transport, those to what was set by hand.
pub fn resolve(config: &Config, transport: Option<&str>, hand: SpeculationOverride) -> SpeculationSettings {
    let _ = transport;
    let levels = [(SetBy::Model, config.speculation.says()), (SetBy::Hand, hand)];
    SpeculationSettings {
        drafter: last_said(&levels, DrafterKind::None, |says| says.drafter),
        depth: last_said(&levels, SpeculationConfig::DEPTH, |says| says.depth),
        controller: last_said(&levels, ControllerKind::Adaptive, |says| says.controller),
    }
}

/// What the last level that says anything says.
fn last_said<T>(
    levels: &[(SetBy, SpeculationOverride)],
    default: T,
    setting: impl Fn(&SpeculationOverride) -> Option<T>,
) -> Effective<T> {
    let said = |(by, says): &(SetBy, SpeculationOverride)| {
        Some(Effective { value: setting(says)?, set_by: by.clone() })
    };
    levels.iter().rev().find_map(said).unwrap_or(Effective { value: default, set_by: SetBy::Default })
}
