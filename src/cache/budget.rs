//! How many pages and slots there may be: how `cache.ram_bytes` is divided between them, and what the device has memory for.
//!
//! The device never gives memory back, so what counts is how many of each were ever in use at once. A page or a slot that
//! was never handed out before is taken only while all of them together stay within the bound. Two rules keep the one
//! kind from starving the other. A live slot for every sequence that may run is set aside from the start. And snapshots
//! get what whole contexts of all these sequences leave, or a quarter of the room where that is more: a prompt that fits
//! the rest is served whatever was captured before.
//!
//! The bound is what the user allows; the device may have memory for less, which nobody knows before it refuses. From then on what it
//! holds is all there is ([`DeviceLimits`]), divided by the same rules.
//!
//! One live slot is enough while every computed token stays. A span that may be rewound has to leave the state it starts
//! from as it was, so a sequence that verifies drafted tokens takes a second slot from the room for snapshots: the one read
//! and the one written take turns. Where there is no room, it decodes ordinarily.

use crate::device::ExecutorFacts;

/// How many pages and slots a device has memory for, as far as it has refused more; `None` where it has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceLimits {
    /// Pages.
    pub pages: Option<usize>,
    /// Slots.
    pub slots: Option<usize>,
}

impl DeviceLimits {
    /// Whether the device has refused nothing.
    pub fn is_none(&self) -> bool {
        *self == DeviceLimits::default()
    }
}

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
    /// What the device has memory for, where that is known.
    pub device: DeviceLimits,
}

impl Budget {
    /// `limit_bytes` for the state of a resident model of which `sequences` may run at once.
    pub fn of(facts: &ExecutorFacts, limit_bytes: u64, sequences: usize) -> Budget {
        Budget {
            limit_bytes,
            page_bytes: facts.page_bytes.max(1) as u64,
            slot_bytes: facts.slot_bytes as u64,
            sequences,
            context_pages: facts.context_tokens.div_ceil(facts.page_tokens.max(1)),
            device: DeviceLimits::default(),
        }
    }

    /// Whether there is recurrent state at all.
    pub fn is_recurrent(&self) -> bool {
        self.slot_bytes > 0
    }

    /// Slots set aside for running sequences, one each; fewer where the bound or the device does not hold them.
    pub fn live_slots(&self) -> usize {
        self.live_slots_within_bound().min(self.device.slots.unwrap_or(usize::MAX))
    }

    /// Live slots that the bound holds, whatever the device does.
    pub fn live_slots_within_bound(&self) -> usize {
        self.sequences.min(count(self.limit_bytes, self.slot_bytes))
    }

    /// The most slots that may hold snapshots.
    pub fn most_snapshots(&self) -> usize {
        let room = self.limit_bytes - self.live_slots() as u64 * self.slot_bytes;
        let contexts =
            (self.sequences as u64).saturating_mul(self.context_pages as u64).saturating_mul(self.page_bytes);
        let within_bound = count(room.saturating_sub(contexts).max(room / 4), self.slot_bytes);
        let on_device = self.device.slots.map(|slots| slots.saturating_sub(self.live_slots()));
        within_bound.min(on_device.unwrap_or(usize::MAX))
    }

    /// Whether so many pages and slots are within the bound, and the device is not known to lack memory for them.
    pub fn allows(&self, pages: usize, slots: usize) -> bool {
        let refused = |count: usize, limit: Option<usize>| limit.is_some_and(|limit| count > limit);
        if refused(pages, self.device.pages) || refused(slots, self.device.slots) {
            return false;
        }
        let bytes = |count: usize, each: u64| (count as u64).checked_mul(each);
        let total = bytes(pages, self.page_bytes)
            .zip(bytes(slots, self.slot_bytes))
            .and_then(|(pages, slots)| pages.checked_add(slots));
        total.is_some_and(|total| total <= self.limit_bytes)
    }

    /// The most pages within the bound beside `slots` slots, whatever the device has memory for.
    pub fn most_pages(&self, slots: usize) -> usize {
        let left = self.limit_bytes.saturating_sub((slots as u64).saturating_mul(self.slot_bytes));
        count(left, self.page_bytes)
    }

    /// Bytes that pages and slots may take: the bound, or less where the device does not hold so many pages.
    pub fn most_bytes(&self) -> u64 {
        let Some(pages) = self.device.pages else { return self.limit_bytes };
        let slots = (self.live_slots() + self.most_snapshots()) as u64 * self.slot_bytes;
        (pages as u64).saturating_mul(self.page_bytes).saturating_add(slots).min(self.limit_bytes)
    }
}

/// How many of `each` bytes fit `bytes`; none of what takes no room.
fn count(bytes: u64, each: u64) -> usize {
    bytes.checked_div(each).map_or(0, |count| usize::try_from(count).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(limit_bytes: u64, slot_bytes: u64, sequences: usize, context_pages: usize) -> Budget {
        let device = DeviceLimits::default();
        Budget { limit_bytes, page_bytes: 3, slot_bytes, sequences, context_pages, device }
    }

    #[test]
    fn what_the_device_holds_is_divided_by_the_same_rules() {
        let roomy = budget(120, 10, 4, 50);
        assert_eq!((roomy.live_slots(), roomy.most_snapshots(), roomy.most_bytes()), (4, 2, 120));
        let on = |pages, slots| Budget { device: DeviceLimits { pages, slots }, ..roomy };
        let few_pages = on(Some(7), None);
        assert!(few_pages.allows(7, 6) && !few_pages.allows(8, 0));
        assert_eq!((few_pages.live_slots(), few_pages.most_snapshots(), few_pages.most_bytes()), (4, 2, 81));
        let few_slots = on(None, Some(5));
        assert!(few_slots.allows(20, 5) && !few_slots.allows(0, 6));
        assert_eq!((few_slots.live_slots(), few_slots.most_snapshots(), few_slots.most_bytes()), (4, 1, 120));
        let fewer = on(Some(1_000), Some(3));
        assert_eq!((fewer.live_slots(), fewer.most_snapshots(), fewer.most_bytes()), (3, 0, 120));
        assert_eq!(fewer.live_slots_within_bound(), 4);
    }

    #[test]
    fn live_slots_come_first_then_pages_of_contexts_or_three_quarters() {
        let tight = budget(120, 10, 4, 50);
        assert_eq!((tight.live_slots(), tight.most_snapshots(), tight.most_pages(6)), (4, 2, 20));
        assert!(tight.allows(20, 6) && !tight.allows(21, 6));
        assert_eq!(Budget { context_pages: 2, ..tight }.most_snapshots(), 5);
        let tighter = Budget { limit_bytes: 25, ..tight };
        assert_eq!((tighter.live_slots(), tighter.most_snapshots()), (2, 0));
    }

    #[test]
    fn without_recurrent_layers_all_of_it_is_for_pages() {
        let budget = budget(100, 0, 4, 1);
        assert_eq!((budget.live_slots(), budget.most_snapshots(), budget.most_pages(9)), (0, 0, 33));
        assert!(!budget.is_recurrent() && budget.allows(33, 9) && !budget.allows(usize::MAX, 0));
    }
}
