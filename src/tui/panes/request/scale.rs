//! The token axis that bar, segments and blocks share.

use crate::event::{Segment, SegmentRun};

/// Prompt tokens to columns.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    pub(super) tokens: u64,
    pub(super) columns: usize,
}

impl Scale {
    /// The column at which token `position` begins.
    pub(super) fn column(self, position: u64) -> usize {
        if self.tokens == 0 {
            return 0;
        }
        let column = u128::from(position) * self.columns as u128 / u128::from(self.tokens);
        usize::try_from(column).unwrap_or(usize::MAX).min(self.columns)
    }

    /// The first token of `column`.
    pub(super) fn token(self, column: usize) -> u64 {
        let token = column as u128 * u128::from(self.tokens) / self.columns.max(1) as u128;
        u64::try_from(token).unwrap_or(u64::MAX)
    }
}

/// The segment that has most of each column's tokens.
pub(super) fn ruler(runs: &[SegmentRun], scale: Scale) -> Vec<Option<Segment>> {
    let mut out = vec![None; scale.columns];
    let mut weights = vec![0u64; scale.columns];
    let mut position = 0u64;
    for run in runs {
        let end = position.saturating_add(run.tokens);
        let last = scale.column(end.saturating_sub(1).max(position));
        let first = scale.column(position);
        let columns = out.iter_mut().zip(&mut weights).enumerate().skip(first).take(last + 1 - first);
        for (column, (slot, heaviest)) in columns {
            let overlap = end.min(scale.token(column + 1)).saturating_sub(position.max(scale.token(column)));
            // Template tokens are many and small; they win a column only where nothing else is in it.
            let weight =
                if run.segment == Segment::Glue { overlap.min(1) } else { overlap.saturating_add(1) };
            if weight > *heaviest || slot.is_none() {
                *slot = Some(run.segment);
                *heaviest = weight;
            }
        }
        position = end;
    }
    out
}

/// A round distance between axis labels that leaves room for them.
pub(super) fn nice_step(scale: Scale) -> u64 {
    let wanted = (scale.tokens / (scale.columns as u64 / 12).max(1)).max(1);
    let mut step = 1u64;
    for factor in [2, 5, 10].into_iter().cycle() {
        let decade = 10u64.saturating_pow(step.ilog10());
        if step >= wanted || step > u64::MAX / 20 {
            break;
        }
        step = if factor == 10 { decade * 10 } else { decade * factor };
    }
    step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ruler_shows_the_segment_that_fills_a_column() {
        let run = |segment, tokens| SegmentRun { segment, tokens };
        let runs = [
            run(Segment::Glue, 2),
            run(Segment::System, 38),
            run(Segment::User, 40),
            run(Segment::Assistant, 20),
        ];
        let letters: String = ruler(&runs, Scale { tokens: 100, columns: 10 })
            .into_iter()
            .map(|s| s.map_or(' ', Segment::letter))
            .collect();
        assert_eq!(letters, "SSSSuuuuaa");
        assert!(ruler(&runs, Scale { tokens: 100, columns: 0 }).is_empty());
        assert_eq!(
            ruler(&[run(Segment::User, u64::MAX)], Scale { tokens: 0, columns: 3 })[0],
            Some(Segment::User)
        );
    }

    #[test]
    fn axis_labels_stand_at_round_numbers() {
        assert_eq!(nice_step(Scale { tokens: 45_732, columns: 100 }), 10_000);
        assert_eq!(nice_step(Scale { tokens: 8_192, columns: 60 }), 2_000);
        assert_eq!(nice_step(Scale { tokens: 0, columns: 0 }), 1);
        assert!(nice_step(Scale { tokens: u64::MAX, columns: 1 }) > 0);
    }
}
