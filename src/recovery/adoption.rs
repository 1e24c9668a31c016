//! Adoption: how much of what is durable a request is shown.
//!
//! Publication makes blocks durable one by one. Adopting them is another matter: where the scorer of sparse prefill reads a window that begins at the
//! checkpoint, every block the checkpoint moves makes it read its window anew. So the *visible* frontier may lag behind the durable one, by a rule. It
//! never passes it, and never hides more than the rule says; the recovery job's own restore is exempt, for it would compute again what is there.

use serde::Serialize;

/// When the visible frontier follows the durable one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Adoption {
    /// In multiples of so many blocks; 1 adopts every block at once.
    Fixed {
        /// Blocks of a step.
        blocks: u64,
    },
    /// All at once, as soon as it lags by so many blocks.
    Hysteresis {
        /// Blocks.
        blocks: u64,
    },
    /// As soon as what the next request saves of target prefill is worth more than what it costs to score anew.
    CostBased,
}

/// What a decision is made from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Frontier {
    /// Tokens that are durable.
    pub durable: u64,
    /// Tokens that were visible to the request before.
    pub visible: u64,
    /// Tokens of a block.
    pub block_tokens: u64,
    /// Seconds of target prefill that a token saves, at this depth; `None` where nobody has measured it.
    pub saved_s_per_token: Option<f64>,
    /// Seconds that scoring the window anew costs; `None` where nobody has measured it, or nothing is scored.
    pub rescore_s: Option<f64>,
}

impl Adoption {
    /// The frontier the next request is shown: whole blocks, never beyond what is durable. Where the durable one fell back, the visible one does too.
    pub fn visible(self, frontier: Frontier) -> u64 {
        let Frontier { durable, visible, block_tokens, saved_s_per_token, rescore_s } = frontier;
        let block = block_tokens.max(1);
        let whole = durable / block * block;
        let before = visible.min(whole) / block * block;
        let gained = whole - before;
        match self {
            Adoption::Fixed { blocks } => {
                let step = block.saturating_mul(blocks.max(1));
                // What was visible stays so: to hide it would cost what was computed.
                (whole / step * step).max(before)
            }
            Adoption::Hysteresis { blocks } if gained >= block.saturating_mul(blocks.max(1)) => whole,
            Adoption::Hysteresis { .. } => before,
            Adoption::CostBased => match saved_s_per_token.zip(rescore_s) {
                Some((saved, rescore)) if gained as f64 * saved <= rescore => before,
                // Without a scorer nothing speaks against it.
                _ => whole,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frontier(durable: u64, visible: u64) -> Frontier {
        Frontier { durable, visible, block_tokens: 256, saved_s_per_token: None, rescore_s: None }
    }

    #[test]
    fn a_fixed_grain_moves_in_its_steps_and_a_hysteresis_all_at_once() {
        let fixed = |durable, visible| Adoption::Fixed { blocks: 4 }.visible(frontier(durable, visible));
        assert_eq!(
            [fixed(1_023, 0), fixed(1_024, 0), fixed(2_047, 1_024), fixed(2_048, 1_024)],
            [0, 1_024, 1_024, 2_048]
        );
        let lazy = |durable, visible| Adoption::Hysteresis { blocks: 4 }.visible(frontier(durable, visible));
        assert_eq!(
            [lazy(1_023, 0), lazy(1_300, 0), lazy(2_200, 1_280), lazy(2_304, 1_280)],
            [0, 1_280, 1_280, 2_304]
        );
    }

    #[test]
    fn by_cost_a_block_is_adopted_when_it_saves_more_than_the_rescore() {
        // A quarter of a second a block saved, five seconds to score anew: twenty blocks do not pay, twenty-one do.
        let costs = |durable| Frontier {
            saved_s_per_token: Some(0.25 / 256.0),
            rescore_s: Some(5.0),
            ..frontier(durable, 0)
        };
        assert_eq!(Adoption::CostBased.visible(costs(20 * 256)), 0);
        assert_eq!(Adoption::CostBased.visible(costs(21 * 256)), 21 * 256);
        assert_eq!(Adoption::CostBased.visible(frontier(512, 0)), 512, "nothing speaks against it");
    }

    proptest! {
        #[test]
        fn f20_what_is_visible_is_whole_blocks_within_what_is_durable_and_falls_back_only_with_it(
            steps in proptest::collection::vec(0u64..20_000, 1..40),
            blocks in 0u64..6,
            rule in 0usize..3,
        ) {
            let rule = [Adoption::Fixed { blocks }, Adoption::Hysteresis { blocks }, Adoption::CostBased][rule];
            let mut visible = 0;
            for durable in steps {
                let now = rule.visible(Frontier {
                    saved_s_per_token: Some(0.001),
                    rescore_s: Some(1.0),
                    ..frontier(durable, visible)
                });
                prop_assert!(now <= durable && now.is_multiple_of(256));
                prop_assert!(now >= visible.min(durable / 256 * 256), "what was visible and is durable stays visible");
                visible = now;
            }
        }
    }
}
