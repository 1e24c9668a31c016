//! Which parts of a prompt a sparse prefill kept.

use serde::Serialize;

use crate::event::{Scored, Segment, SegmentRun};

/// Tokens of one kind of segment behind the scoring window's origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SegmentKept {
    /// The segment.
    pub segment: Segment,
    /// Tokens that were computed.
    pub kept: u64,
    /// Tokens there were.
    pub total: u64,
}

impl SegmentKept {
    /// What was kept of the window of a prompt of these segments, by segment in display order. Tokens before the window are no part of it: their
    /// state was restored, or they cannot be dropped.
    pub fn of(segments: &[SegmentRun], scored: &Scored) -> Vec<SegmentKept> {
        let mut sums = Segment::ALL.map(|segment| SegmentKept { segment, kept: 0, total: 0 });
        let mut start = 0_u64;
        for run in segments {
            let end = start.saturating_add(run.tokens);
            let from = start.max(scored.origin);
            if let Some(sum) = sums.iter_mut().find(|sum| sum.segment == run.segment) {
                sum.total = sum.total.saturating_add(end.saturating_sub(from));
                sum.kept = sum.kept.saturating_add(scored.kept_between(from, end));
            }
            start = end;
        }
        sums.into_iter().filter(|sum| sum.total > 0).collect()
    }
}
