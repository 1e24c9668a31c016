//! Pages and their holders.
//!
//! A page has a generation that rises whenever it is freed. A reference carries the generation it was made for, so a
//! reference that outlived its page is noticed before anything is read through it.

use super::StalePage;
use crate::device::PageId;

/// A page and the generation of its contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageRef {
    id: PageId,
    generation: u32,
}

impl PageRef {
    /// The page, for the device. Check the reference first.
    pub fn id(self) -> PageId {
        self.id
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    generation: u32,
    holders: u32,
}

/// A bounded number of pages with their holder counts.
#[derive(Debug)]
pub struct PagePool {
    slots: Vec<Slot>,
    free: Vec<u32>,
    limit: usize,
}

impl PagePool {
    /// A pool of at most `limit` pages, none in use.
    pub fn new(limit: usize) -> PagePool {
        PagePool { slots: Vec::new(), free: Vec::new(), limit: limit.min(u32::MAX as usize) }
    }

    /// Pages the bound allows.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Pages ever handed out.
    pub fn high_water(&self) -> usize {
        self.slots.len()
    }

    /// Pages that have a holder.
    pub fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// A free page, with one holder. `None` when all are in use.
    pub fn allocate(&mut self) -> Option<PageRef> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < self.limit => {
                self.slots.push(Slot::default());
                (self.slots.len() - 1) as u32
            }
            None => return None,
        };
        let slot = &mut self.slots[index as usize];
        slot.holders = 1;
        Some(PageRef { id: PageId(index), generation: slot.generation })
    }

    /// Adds a holder.
    pub fn hold(&mut self, page: PageRef) {
        assert!(self.check(page).is_ok() && self.holders(page) > 0, "holding a free page");
        self.slots[page.id.0 as usize].holders += 1;
    }

    /// Removes a holder. The last one frees the page and ends its generation.
    pub fn release(&mut self, page: PageRef) {
        if self.check(page).is_err() {
            // Whoever reads through the stale reference gets the error; the page's present holders keep it.
            return;
        }
        let slot = &mut self.slots[page.id.0 as usize];
        assert!(slot.holders > 0, "releasing a free page");
        slot.holders = slot.holders.saturating_sub(1);
        if slot.holders == 0 {
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(page.id.0);
        }
    }

    /// Holders of a page.
    pub fn holders(&self, page: PageRef) -> u32 {
        self.slots.get(page.id.0 as usize).map_or(0, |slot| slot.holders)
    }

    /// Fails when the page's contents are no longer those the reference was made for.
    pub fn check(&self, page: PageRef) -> Result<(), StalePage> {
        let found = self.slots.get(page.id.0 as usize).map_or(0, |slot| slot.generation);
        if found == page.generation {
            return Ok(());
        }
        Err(StalePage { page: page.id.0, expected: page.generation, found })
    }

    #[cfg(test)]
    pub(crate) fn bump_generation(&mut self, page: PageRef) {
        self.slots[page.id.0 as usize].generation += 1;
    }
}
