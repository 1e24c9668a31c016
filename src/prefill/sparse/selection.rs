//! Which units are kept.

use std::ops::Range;

/// What is kept of a scoring window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// Kept ranges, tokens counted from the window's start, ascending, not touching each other.
    pub kept: Vec<Range<usize>>,
    /// Tokens in them.
    pub selected_tokens: usize,
}

impl Selection {
    /// The kept ranges by position, for a window that begins at `origin`.
    pub fn positions_from(&self, origin: usize) -> Vec<(u64, u64)> {
        self.kept.iter().map(|kept| ((origin + kept.start) as u64, (origin + kept.end) as u64)).collect()
    }
}

/// Chooses from a window of `window_tokens` tokens, cut into units of `unit` with a last one that may be short.
///
/// Of `n` units, `k = ceil(keep · n)` are kept: those with the greatest scores, the earlier one where two are equal. The units that hold any of the
/// last `tail_tokens` tokens are always among them, the last unit in any case. They count into `k`; only where they alone are more than `k` are more
/// kept. A score that is not a number ranks last.
///
/// This gives every `selected` figure that the study of Oliver Yu published (109 rows in five files, CC BY 4.0; the rule is derived): with units of
/// 32, `32·k` less what the last unit lacks.
pub fn select(
    unit_scores: &[f32],
    window_tokens: usize,
    unit: usize,
    keep: f64,
    tail_tokens: usize,
) -> Selection {
    let unit = unit.max(1);
    let units = window_tokens.div_ceil(unit);
    let quota = quota(keep, units);
    // The last unit is kept even with a tail of no tokens.
    let tail = window_tokens.saturating_sub(tail_tokens.max(1)) / unit;
    let mut kept: Vec<bool> = (0..units).map(|index| index >= tail).collect();
    let score = |index: usize| match unit_scores.get(index) {
        // Adding zero makes -0 the 0 it equals, which a total order would tell apart.
        Some(score) if !score.is_nan() => *score + 0.0,
        _ => f32::NEG_INFINITY,
    };
    let mut candidates: Vec<usize> = (0..tail.min(units)).collect();
    candidates.sort_by(|a, b| score(*b).total_cmp(&score(*a)).then(a.cmp(b)));
    for index in candidates.into_iter().take(quota.saturating_sub(units - tail.min(units))) {
        kept[index] = true;
    }
    let mut selection = Selection { kept: Vec::new(), selected_tokens: 0 };
    for (index, _) in kept.iter().enumerate().filter(|(_, kept)| **kept) {
        let (start, end) = (index * unit, window_tokens.min((index + 1) * unit));
        selection.selected_tokens += end - start;
        match selection.kept.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => selection.kept.push(start..end),
        }
    }
    selection
}

/// `ceil(keep · units)`, at least one and at most all. A fraction is meant as it is written in decimal: 0.07 of 100 is 7, though the nearest binary
/// fraction makes the product a little more.
fn quota(keep: f64, units: usize) -> usize {
    let product = keep * units as f64;
    let nearest = product.round();
    let quota = if (product - nearest).abs() <= nearest.abs() * 1e-12 { nearest } else { product.ceil() };
    (quota as usize).clamp(1, units.max(1))
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of one range are meant")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_best_units_are_kept_and_neighbours_are_one_range() {
        let scores = [0.1, 0.9, 0.8, 0.2, 0.7, 0.0];
        let selection = select(&scores, 23, 4, 0.5, 0);
        // Three of six: the two best, and the last unit, which is one token short.
        assert_eq!(selection.kept, [4..12, 20..23]);
        assert_eq!(selection.selected_tokens, 11);
        assert_eq!(selection.positions_from(100), [(104, 112), (120, 123)]);
    }

    #[test]
    fn of_equal_scores_the_earlier_unit_is_kept() {
        assert_eq!(select(&[0.5; 8], 32, 4, 0.5, 0).kept, [0..12, 28..32]);
        // Equal is equal: zero has one rank whatever its sign.
        assert_eq!(select(&[-0.0, 0.0, 0.0, 0.0], 16, 4, 0.5, 0).kept, [0..4, 12..16]);
    }

    #[test]
    fn the_tail_counts_into_the_quota_and_wins_where_the_quota_is_less() {
        let scores = [9.0, 8.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        // A tail of 9 tokens reaches into the third unit from the end.
        assert_eq!(select(&scores, 40, 4, 0.4, 9).kept, [0..4, 28..40]);
        assert_eq!(select(&scores, 40, 4, 0.1, 9).kept, [28..40]);
        assert_eq!(select(&scores, 40, 4, 0.1, 4).kept, [36..40]);
        assert_eq!(select(&scores, 40, 4, 0.1, 4000).kept, [0..40]);
    }

    #[test]
    fn scores_that_are_no_numbers_rank_last() {
        let scores = [f32::NAN, 0.1, f32::NEG_INFINITY, f32::INFINITY, 0.0];
        assert_eq!(select(&scores, 20, 4, 0.6, 0).kept, [4..8, 12..20]);
        assert_eq!(select(&[], 20, 4, 0.4, 0).kept, [0..4, 16..20]);
        assert_eq!(select(&[f32::NAN; 5], 20, 4, 0.4, 0).kept, [0..4, 16..20]);
    }

    #[test]
    fn a_quota_is_what_its_decimal_says() {
        assert_eq!(quota(0.07, 100), 7);
        assert_eq!(quota(0.29, 100), 29);
        assert_eq!(quota(0.2, 1280), 256);
        assert_eq!(quota(0.2, 1281), 257);
        assert_eq!((quota(0.001, 10), quota(1.0, 10), quota(7.0, 10), quota(f64::NAN, 10)), (1, 10, 10, 1));
    }

    #[test]
    fn an_empty_window_keeps_nothing() {
        assert_eq!(select(&[], 0, 32, 0.2, 512), Selection { kept: vec![], selected_tokens: 0 });
        assert_eq!(select(&[1.0], 1, 0, 0.2, 0).kept, [0..1]);
    }

    fn covers(selection: &Selection, token: usize) -> bool {
        selection.kept.iter().any(|kept| kept.contains(&token))
    }

    proptest! {
        #[test]
        fn what_is_kept_is_the_quota_the_tail_and_the_best(
            scores in prop::collection::vec(0_u8..20, 1..80),
            unit in 1_usize..40,
            missing in 0_usize..40,
            keep in 0.01_f64..1.0,
            tail in 0_usize..300,
        ) {
            let scores: Vec<f32> = scores.into_iter().map(f32::from).collect();
            let units = scores.len();
            let window = units * unit - missing % unit;
            let selection = select(&scores, window, unit, keep, tail);
            let kept = |index: usize| covers(&selection, index * unit);
            prop_assert_eq!(selection.kept.iter().map(|r| r.len()).sum::<usize>(), selection.selected_tokens);
            prop_assert!(selection.kept.windows(2).all(|pair| pair[0].end < pair[1].start));
            // Whole units only, and the last tokens whatever they score.
            for token in 0..window {
                prop_assert_eq!(covers(&selection, token), kept(token / unit));
            }
            prop_assert!((window.saturating_sub(tail.max(1))..window).all(|token| covers(&selection, token)));
            let count = (0..units).filter(|index| kept(*index)).count();
            let tail_units = units - window.saturating_sub(tail.max(1)) / unit;
            prop_assert_eq!(count, quota(keep, units).max(tail_units));
            // No dropped unit outside the tail scores more than a kept one, nor as much as a later one.
            for dropped in (0..units).filter(|index| !kept(*index)) {
                for chosen in (0..units - tail_units).filter(|index| kept(*index)) {
                    prop_assert!(
                        scores[chosen] > scores[dropped] || (scores[chosen] == scores[dropped] && chosen < dropped)
                    );
                }
            }
        }

        #[test]
        fn all_is_kept_where_all_is_asked_for(window in 1_usize..5000, unit in 1_usize..70, tail in 0_usize..600) {
            let selection = select(&[], window, unit, 1.0, tail);
            prop_assert_eq!(&selection.kept, &[0..window]);
            prop_assert_eq!(selection.selected_tokens, window);
        }
    }
}
