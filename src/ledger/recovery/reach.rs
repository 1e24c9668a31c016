//! Which tokens of a prompt are another's too, and how many a set of ranges covers.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::event::RequestId;
use crate::ledger::RequestFacts;

/// How many tokens of the prompts before it a request of a line of history begins with.
#[derive(Debug, Default)]
pub(in crate::ledger) struct Reach {
    /// Oldest first; none begins with more of an older prompt than of a younger one.
    passed: Vec<(RequestId, u64)>,
    places: BTreeMap<RequestId, usize>,
}

impl Reach {
    /// The line goes on with `request`.
    pub(in crate::ledger) fn arrive(&mut self, request: &RequestFacts) {
        let common = request.restore.as_ref().and_then(|restore| restore.common_prefix_tokens).unwrap_or(0);
        let longer = self.passed.iter_mut().rev().take_while(|(_, reach)| *reach > common);
        longer.for_each(|(_, reach)| *reach = common);
    }

    /// `request` is part of the line from here on.
    pub(in crate::ledger) fn pass(&mut self, request: &RequestFacts) {
        self.places.insert(request.id, self.passed.len());
        self.passed.push((request.id, u64::MAX));
    }

    /// Tokens of `other`'s prompt that `request`, which arrived last, begins with, as far as is known.
    pub(in crate::ledger) fn of(&self, request: &RequestFacts, other: RequestId) -> u64 {
        let line = self.places.get(&other).and_then(|place| self.passed.get(*place)).map(|(_, reach)| *reach);
        let closest = request.restore.as_ref().and_then(|restore| restore.closest);
        let beside = closest.filter(|closest| closest.request == other).map(|closest| closest.common_tokens);
        line.max(beside).unwrap_or(0)
    }
}

/// How many of the numbers in `within` are in one of `ranges`.
pub(super) fn covered(within: &Range<u64>, mut ranges: Vec<Range<u64>>) -> u64 {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut at = within.start;
    let mut count = 0;
    for range in ranges {
        let (from, to) = (range.start.max(at), range.end.min(within.end));
        if to > from {
            count += to - from;
            at = to;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_publications_count_once() {
        assert_eq!(covered(&(10..100), vec![20..40, 0..15, 30..50, 45..48, 90..200]), 5 + 30 + 10);
        let nothing = 10..10;
        assert_eq!(covered(&nothing, vec![0..40, 50..100]), 0);
    }
}
