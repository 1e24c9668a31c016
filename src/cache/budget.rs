//! How `cache.ram_bytes` is divided between pages and slots.
//!
//! The device never gives memory back, so what counts is how many of each were ever in use at once. A page or a slot that
//! was never handed out before is taken only while all of them together stay within the bound. Two rules keep the one
//! kind from starving the other: a live slot for every sequence that may run is set aside from the start, and snapshots
//! get at most half of what remains, so that a prompt which fits the other half is served whatever was captured before.

/// The bound, and what it has to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Upper bound of all state, bytes.
    pub limit_bytes: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Bytes of a slot; 0 for a model without recurrent layers, which uses none.
    pub slot_bytes: u64,
    /// Sequences that may run at once.
    pub sequences: usize,
}

impl Budget {
    /// Whether there is recurrent state at all.
    pub fn is_recurrent(&self) -> bool {
        self.slot_bytes > 0
    }

    /// Slots set aside for running sequences, one each; fewer where the bound does not hold them.
    pub fn live_slots(&self) -> usize {
        self.sequences.min(count(self.limit_bytes, self.slot_bytes))
    }

    /// The most slots that may hold snapshots.
    pub fn most_snapshots(&self) -> usize {
        let live = self.live_slots() as u64 * self.slot_bytes;
        count((self.limit_bytes - live) / 2, self.slot_bytes)
    }

    /// Whether so many pages and slots are within the bound.
    pub fn allows(&self, pages: usize, slots: usize) -> bool {
        let bytes = |count: usize, each: u64| (count as u64).checked_mul(each);
        let total = bytes(pages, self.page_bytes)
            .zip(bytes(slots, self.slot_bytes))
            .and_then(|(pages, slots)| pages.checked_add(slots));
        total.is_some_and(|total| total <= self.limit_bytes)
    }

    /// The most pages beside `slots` slots.
    pub fn most_pages(&self, slots: usize) -> usize {
        let left = self.limit_bytes.saturating_sub((slots as u64).saturating_mul(self.slot_bytes));
        count(left, self.page_bytes)
    }
}

/// How many of `each` bytes fit `bytes`; none of what takes no room.
fn count(bytes: u64, each: u64) -> usize {
    bytes.checked_div(each).map_or(0, |count| usize::try_from(count).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_slots_come_first_and_snapshots_get_half_of_the_rest() {
        let budget = Budget { limit_bytes: 100, page_bytes: 3, slot_bytes: 10, sequences: 4 };
        assert_eq!((budget.live_slots(), budget.most_snapshots(), budget.most_pages(7)), (4, 3, 10));
        assert!(budget.allows(10, 7) && !budget.allows(11, 7));
        let tight = Budget { limit_bytes: 25, ..budget };
        assert_eq!((tight.live_slots(), tight.most_snapshots()), (2, 0));
    }

    #[test]
    fn without_recurrent_layers_all_of_it_is_for_pages() {
        let budget = Budget { limit_bytes: 100, page_bytes: 3, slot_bytes: 0, sequences: 4 };
        assert_eq!((budget.live_slots(), budget.most_snapshots(), budget.most_pages(9)), (0, 0, 33));
        assert!(!budget.is_recurrent() && budget.allows(33, 9) && !budget.allows(usize::MAX, 0));
    }
}
