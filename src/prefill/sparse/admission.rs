//! Whether a suffix is computed sparsely.

use crate::event::SparseVerdict;

/// What admission found. Counts are tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// Prompt tokens behind the checkpoint.
    pub suffix: usize,
    /// Of those, tokens of the protected prefix: they are computed whatever they would score.
    pub protected_uncached: usize,
    /// Of the suffix, tokens behind the protected prefix: the scoring window.
    pub to_score: usize,
    /// Position of the window's first token: the checkpoint or the end of the protected prefix, whichever is further.
    pub origin: usize,
    /// What follows; never [`SparseVerdict::Off`] or [`SparseVerdict::DenseTurn`], which are decided elsewhere.
    pub verdict: SparseVerdict,
}

impl Admission {
    /// The checkpoint: where computing starts.
    pub fn cached(&self) -> usize {
        self.origin - self.protected_uncached
    }

    /// Tokens of the prompt, where the window ends.
    pub fn prompt_tokens(&self) -> usize {
        self.origin + self.to_score
    }
}

/// Decides on a prompt of which `cached` tokens were restored and of which those before `system_end` cannot depend on the conversation.
///
/// A suffix is computed sparsely if it is longer than `threshold`, and so is what is left of it behind the protected prefix: strictly longer both
/// times (the study has a suffix of 8,193 tokens that went the sparse route at a threshold of 8,192). The last prompt token is always computed,
/// so a checkpoint at the prompt's end counts as one before it.
pub fn admit(prompt_tokens: usize, cached: usize, system_end: usize, threshold: usize) -> Admission {
    let cached = cached.min(prompt_tokens.saturating_sub(1));
    let origin = cached.max(system_end.min(prompt_tokens));
    let suffix = prompt_tokens - cached;
    let to_score = prompt_tokens - origin;
    let verdict = match () {
        // One token is computed whatever is held: nothing of it could be left out.
        () if suffix <= threshold.max(1) => SparseVerdict::ShortSuffix,
        () if to_score <= threshold => SparseVerdict::ShortBehindProtected,
        () => SparseVerdict::Sparse,
    };
    Admission { suffix, protected_uncached: origin - cached, to_score, origin, verdict }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_threshold_is_exceeded_twice_or_the_prompt_is_dense() {
        let verdict = |prompt, cached, system| admit(prompt, cached, system, 8192).verdict;
        assert_eq!(verdict(8192, 0, 0), SparseVerdict::ShortSuffix);
        assert_eq!(verdict(8193, 0, 0), SparseVerdict::Sparse);
        assert_eq!(verdict(28_673, 20_480, 0), SparseVerdict::Sparse);
        assert_eq!(verdict(28_672, 20_480, 0), SparseVerdict::ShortSuffix);
        assert_eq!(verdict(8193, 0, 1), SparseVerdict::ShortBehindProtected);
        assert_eq!(verdict(8194, 0, 1), SparseVerdict::Sparse);
        // What is protected and cached already costs nothing.
        assert_eq!(verdict(28_673, 20_480, 20_480), SparseVerdict::Sparse);
        assert_eq!(verdict(28_673, 20_480, 20_481), SparseVerdict::ShortBehindProtected);
    }

    #[test]
    fn the_window_begins_at_the_checkpoint_or_behind_the_protected_prefix() {
        let found = admit(55_182, 20_480, 15_960, 8192);
        assert_eq!((found.origin, found.to_score, found.protected_uncached), (20_480, 34_702, 0));
        let found = admit(60_914, 15_360, 20_108, 8192);
        assert_eq!((found.origin, found.to_score, found.protected_uncached), (20_108, 40_806, 4_748));
        assert_eq!((found.suffix, found.verdict), (45_554, SparseVerdict::Sparse));
    }

    #[test]
    fn the_last_token_is_computed_even_where_all_are_cached() {
        let found = admit(100, 100, 0, 0);
        assert_eq!((found.suffix, found.origin, found.verdict), (1, 99, SparseVerdict::ShortSuffix));
        assert_eq!(admit(101, 99, 0, 0).verdict, SparseVerdict::Sparse);
        let empty = admit(0, 7, 7, 0);
        assert_eq!((empty.suffix, empty.to_score, empty.verdict), (0, 0, SparseVerdict::ShortSuffix));
    }

    proptest! {
        #[test]
        fn nothing_protected_is_in_the_window(prompt in 0_usize..100_000, cached in 0_usize..100_000, system in 0_usize..100_000, threshold in 0_usize..20_000) {
            let found = admit(prompt, cached, system, threshold);
            prop_assert!(found.origin >= system.min(prompt));
            prop_assert!(found.cached() <= cached && found.prompt_tokens() == prompt);
            prop_assert_eq!(found.protected_uncached + found.to_score, found.suffix);
            let sparse = found.suffix > threshold.max(1) && found.to_score > threshold;
            prop_assert_eq!(found.verdict == SparseVerdict::Sparse, sparse);
        }
    }
}
