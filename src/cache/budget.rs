//! How `cache.ram_bytes` is divided between pages and slots.
//!
//! The device never gives memory back, so what counts is how many of each were ever in use at once. A page or a slot that
//! was never handed out before is taken only while all of them together stay within the bound. Two rules keep the one
//! kind from starving the other. A live slot for every sequence that may run is set aside from the start. And snapshots
//! get what whole contexts of all these sequences leave, or a quarter of the room where that is more: a prompt that fits
//! the rest is served whatever was captured before.
//!
//! One live slot is enough while every computed token stays. A span that may be rewound has to leave the state it starts
//! from as it was, so speculation will have to reserve two live slots for every sequence that verifies: the one read and
//! the one written, in turn.

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
    /// Pages of a whole context.
    pub context_pages: usize,
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
        let room = self.limit_bytes - self.live_slots() as u64 * self.slot_bytes;
        let contexts =
            (self.sequences as u64).saturating_mul(self.context_pages as u64).saturating_mul(self.page_bytes);
        count(room.saturating_sub(contexts).max(room / 4), self.slot_bytes)
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
    fn live_slots_come_first_then_pages_of_contexts_or_three_quarters() {
        let tight =
            Budget { limit_bytes: 120, page_bytes: 3, slot_bytes: 10, sequences: 4, context_pages: 50 };
        assert_eq!((tight.live_slots(), tight.most_snapshots(), tight.most_pages(6)), (4, 2, 20));
        assert!(tight.allows(20, 6) && !tight.allows(21, 6));
        assert_eq!(Budget { context_pages: 2, ..tight }.most_snapshots(), 5);
        let tighter = Budget { limit_bytes: 25, ..tight };
        assert_eq!((tighter.live_slots(), tighter.most_snapshots()), (2, 0));
    }

    #[test]
    fn without_recurrent_layers_all_of_it_is_for_pages() {
        let budget =
            Budget { limit_bytes: 100, page_bytes: 3, slot_bytes: 0, sequences: 4, context_pages: 1 };
        assert_eq!((budget.live_slots(), budget.most_snapshots(), budget.most_pages(9)), (0, 0, 33));
        assert!(!budget.is_recurrent() && budget.allows(33, 9) && !budget.allows(usize::MAX, 0));
    }
}
