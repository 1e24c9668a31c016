//! Which positions the target computes.

use super::{Admission, Selection};
use crate::config::SparseLeaves;

/// What the target computes of a prompt whose first tokens were restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The positions, ascending: `cached..dense_until`, then the kept ones. The last is that of the last prompt token, the kickoff token.
    pub positions: Vec<u32>,
    /// Everything before this position is computed whatever it scored: the protected prefix, and what [`SparseLeaves::NextBoundary`] adds.
    pub dense_until: usize,
    /// The first position that is not computed; `None` where all are. Whole blocks before it are as a dense prefill would leave them.
    pub first_skipped: Option<usize>,
}

impl Plan {
    /// The plan for an admitted prompt and what was selected of its scoring window. Blocks are of `block_tokens` tokens.
    ///
    /// No position before the window is ever skipped: positions before `dense_until` do not depend on the selection, and the selection counts from the
    /// window's start.
    pub fn new(
        admission: &Admission,
        selection: &Selection,
        leaves: SparseLeaves,
        block_tokens: usize,
    ) -> Plan {
        let (cached, origin, end) = (admission.cached(), admission.origin, admission.prompt_tokens());
        let dense_until = match leaves {
            SparseLeaves::Nothing | SparseLeaves::FirstSkip => origin,
            // Where the prompt ends before it, computing up to the boundary would leave nothing and win nothing.
            SparseLeaves::NextBoundary => {
                next_boundary(origin, block_tokens).filter(|b| *b <= end).unwrap_or(origin)
            }
        };
        let mut positions: Vec<u32> = Vec::with_capacity(dense_until - cached + selection.selected_tokens);
        let mut add = |range: std::ops::Range<usize>| positions.extend(range.map(position));
        add(cached..dense_until);
        let mut next = dense_until;
        for kept in &selection.kept {
            let (from, to) = ((origin + kept.start).max(next), (origin + kept.end).min(end));
            add(from..to);
            next = next.max(to);
        }
        if next < end {
            add(end - 1..end);
        }
        let skipped = (cached..).zip(&positions).find(|(meant, found)| position(*meant) != **found);
        let first_skipped = skipped.map(|(meant, _)| meant);
        Plan { positions, dense_until, first_skipped }
    }
}

/// The first block boundary behind `position`.
fn next_boundary(position: usize, block_tokens: usize) -> Option<usize> {
    (position / block_tokens.max(1)).checked_add(1)?.checked_mul(block_tokens.max(1))
}

/// A position as devices take it. Contexts are far shorter than what it holds.
fn position(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of one range are meant")]
mod tests {
    use proptest::prelude::*;

    use super::super::{admit, select};
    use super::*;

    fn selection(kept: &[std::ops::Range<usize>]) -> Selection {
        Selection { kept: kept.to_vec(), selected_tokens: kept.iter().map(|r| r.len()).sum() }
    }

    fn positions(ranges: &[std::ops::Range<u32>]) -> Vec<u32> {
        ranges.iter().cloned().flatten().collect()
    }

    #[test]
    fn f12_positions_are_indices_and_the_origin_behind_a_dense_protected_prefix() {
        let admission = admit(1000, 256, 300, 0);
        let plan = Plan::new(&admission, &selection(&[32..64, 96..128, 690..700]), SparseLeaves::Nothing, 64);
        assert_eq!(plan.positions, positions(&[256..300, 332..364, 396..428, 990..1000]));
        assert_eq!((plan.dense_until, plan.first_skipped), (300, Some(300)));
        // The first kept unit may continue the protected prefix.
        let plan = Plan::new(&admission, &selection(&[0..32, 690..700]), SparseLeaves::FirstSkip, 64);
        assert_eq!((plan.dense_until, plan.first_skipped), (300, Some(332)));
    }

    #[test]
    fn the_next_boundary_is_reached_densely_and_lies_behind_the_origin() {
        let kept = selection(&[0..16, 40..72, 690..700]);
        let plan = |prompt, cached, system, kept: &Selection| {
            Plan::new(&admit(prompt, cached, system, 0), kept, SparseLeaves::NextBoundary, 64)
        };
        let found = plan(1000, 256, 300, &kept);
        assert_eq!(found.positions, positions(&[256..320, 340..372, 990..1000]));
        assert_eq!((found.dense_until, found.first_skipped), (320, Some(320)));
        // From a boundary on, a whole block.
        let found = plan(1000, 320, 300, &selection(&[40..72, 670..680]));
        assert_eq!(found.positions, positions(&[320..392, 990..1000]));
        assert_eq!((found.dense_until, found.first_skipped), (384, Some(392)));
        // The prompt ends before the boundary.
        let found = plan(330, 320, 0, &selection(&[8..10]));
        assert_eq!((found.positions, found.dense_until), (vec![328, 329], 320));
    }

    #[test]
    fn the_kickoff_token_is_computed_even_if_nobody_kept_it() {
        let plan = Plan::new(&admit(100, 0, 0, 0), &selection(&[0..10]), SparseLeaves::Nothing, 64);
        assert_eq!(plan.positions, positions(&[0..10, 99..100]));
        let hostile = Plan::new(&admit(100, 0, 0, 0), &selection(&[90..900]), SparseLeaves::Nothing, 0);
        assert_eq!(hostile.positions, positions(&[90..100]));
    }

    proptest! {
        /// A kept index `i` is computed at `origin + i`, and no position of the protected prefix is ever dropped.
        #[test]
        fn f17_nothing_protected_is_dropped_and_everything_kept_is_computed_where_it_stood(
            prompt in 1_usize..4000,
            cached_blocks in 0_usize..40,
            system in 0_usize..4000,
            scores in prop::collection::vec(any::<f32>(), 0..130),
            keep in 0.01_f64..=1.0,
            tail in 0_usize..700,
            leaves in prop::sample::select(vec![SparseLeaves::Nothing, SparseLeaves::FirstSkip, SparseLeaves::NextBoundary]),
        ) {
            let (unit, block) = (32, 64);
            let cached = (cached_blocks * block).min((prompt - 1) / block * block);
            let admission = admit(prompt, cached, system, 0);
            let selection = select(&scores, admission.to_score, unit, keep, tail);
            let plan = Plan::new(&admission, &selection, leaves, block);
            let computed = |position: usize| plan.positions.binary_search(&(position as u32)).is_ok();
            prop_assert!(plan.positions.is_sorted_by(|a, b| a < b));
            prop_assert!(plan.positions.iter().all(|p| (cached..prompt).contains(&(*p as usize))));
            prop_assert!((cached..system.min(prompt)).all(computed));
            prop_assert!((cached..plan.dense_until).all(computed));
            prop_assert!(computed(prompt - 1));
            for kept in &selection.kept {
                prop_assert!(kept.clone().all(|index| computed(admission.origin + index)));
            }
            if leaves != SparseLeaves::NextBoundary {
                let alone = usize::from(admission.to_score == 0 && admission.protected_uncached == 0);
                prop_assert_eq!(plan.positions.len(), admission.protected_uncached + selection.selected_tokens + alone);
            }
            prop_assert_eq!(plan.first_skipped, (cached..prompt).find(|p| !computed(*p)));
            if keep == 1.0 {
                prop_assert_eq!(plan.first_skipped, None);
                prop_assert_eq!(plan.positions.len(), prompt - cached);
            }
        }
    }
}
