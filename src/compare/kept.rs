//! Which parts of a prompt a sparse prefill kept.

use serde::Serialize;

use crate::event::{Scored, Segment};
use crate::ledger::RequestFacts;

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
    /// What `request` kept of the window, by segment in display order; empty where nothing was scored. Tokens before the window are no part
    /// of it: their state was restored, or they cannot be dropped.
    pub fn of(request: &RequestFacts) -> Vec<SegmentKept> {
        let Some(scored) = &request.scored else { return Vec::new() };
        let kept = kept_ranges(scored);
        let mut sums = Segment::ALL.map(|segment| SegmentKept { segment, kept: 0, total: 0 });
        let mut start = 0_u64;
        for run in &request.segments {
            let end = start.saturating_add(run.tokens);
            let window = (start.max(scored.origin), end);
            if let Some(sum) = sums.iter_mut().find(|sum| sum.segment == run.segment) {
                sum.total += length(window);
                // Both lists ascend, so the ranges that end before the run are out of the way for all runs behind it.
                let first = kept.partition_point(|range| range.1 <= window.0);
                let within = kept[first..].iter().take_while(|range| range.0 < window.1);
                sum.kept +=
                    within.map(|range| length((range.0.max(window.0), range.1.min(window.1)))).sum::<u64>();
            }
            start = end;
        }
        sums.into_iter().filter(|sum| sum.total > 0).collect()
    }
}

fn length((start, end): (u64, u64)) -> u64 {
    end.saturating_sub(start)
}

/// The ranges that are computed of the window, absolute, ascending, disjoint: those chosen, and what is dense whatever was chosen.
pub fn kept_ranges(scored: &Scored) -> Vec<(u64, u64)> {
    let mut ranges = Vec::with_capacity(scored.kept.len() + 1);
    ranges.push((scored.origin, scored.dense_until));
    ranges.extend(&scored.kept);
    ranges.retain(|range| length(*range) > 0);
    ranges.sort_unstable();
    ranges.dedup_by(|next, before| {
        let joins = next.0 <= before.1;
        if joins {
            before.1 = before.1.max(next.1);
        }
        joins
    });
    ranges
}
