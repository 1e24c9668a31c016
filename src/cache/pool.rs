//! Places of state and their holders.
//!
//! A place is a page or a slot of the device. It has a generation that rises whenever it is freed. A reference carries the
//! generation it was made for, so a reference that outlived its place's contents is noticed before anything is read
//! through it.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::marker::PhantomData;

use super::StaleState;
use crate::device::{PageId, SlotId};

/// An index into a device's state of one kind.
pub trait Place: Copy + Debug + Eq + Hash {
    /// The word for it in messages.
    const WORD: &'static str;

    /// The place number `index`.
    fn numbered(index: u32) -> Self;

    /// Its number.
    fn number(self) -> u32;
}

impl Place for PageId {
    const WORD: &'static str = "page";

    fn numbered(index: u32) -> PageId {
        PageId(index)
    }

    fn number(self) -> u32 {
        self.0
    }
}

impl Place for SlotId {
    const WORD: &'static str = "slot";

    fn numbered(index: u32) -> SlotId {
        SlotId(index)
    }

    fn number(self) -> u32 {
        self.0
    }
}

/// A place and the generation of its contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ref<P> {
    id: P,
    generation: u32,
}

/// A page of a block of tokens.
pub type PageRef = Ref<PageId>;

/// A slot of recurrent state.
pub type SlotRef = Ref<SlotId>;

impl<P: Place> Ref<P> {
    /// The place, for the device. Check the reference first.
    pub fn id(self) -> P {
        self.id
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    generation: u32,
    holders: u32,
}

/// Places with their holder counts. How many there may be is the caller's to say, by calling [`Pool::grow`] or not, and
/// [`Pool::shrink`] where there turn out to be fewer.
#[derive(Debug)]
pub struct Pool<P> {
    /// Every place that was ever granted. Those from `granted` on keep the generation they ended with, so that no reference to them becomes
    /// good again when they are granted anew.
    cells: Vec<Cell>,
    granted: usize,
    /// The granted places that have no holder.
    free: BTreeSet<u32>,
    kind: PhantomData<P>,
}

impl<P> Default for Pool<P> {
    fn default() -> Pool<P> {
        Pool { cells: Vec::new(), granted: 0, free: BTreeSet::new(), kind: PhantomData }
    }
}

impl<P: Place> Pool<P> {
    /// Places that are granted: every place in use has a lower number.
    pub fn high_water(&self) -> usize {
        self.granted
    }

    /// Places that have a holder.
    pub fn used(&self) -> usize {
        self.granted - self.free.len()
    }

    /// A granted place that is free, with one holder.
    pub fn reuse(&mut self) -> Option<Ref<P>> {
        let index = self.free.pop_first()?;
        Some(self.first_hold(index))
    }

    /// The same; the one that follows `before` if that is free. Places that follow each other are read in one run by devices that keep them
    /// side by side.
    pub fn reuse_after(&mut self, before: Option<Ref<P>>) -> Option<Ref<P>> {
        let next = before.and_then(|place| place.id.number().checked_add(1));
        match next.filter(|next| self.free.remove(next)) {
            Some(index) => Some(self.first_hold(index)),
            None => self.reuse(),
        }
    }

    /// Grants one more place, with one holder. `None` when numbers run out.
    pub fn grow(&mut self) -> Option<Ref<P>> {
        let index = u32::try_from(self.granted).ok()?;
        if self.granted == self.cells.len() {
            self.cells.push(Cell::default());
        }
        self.granted += 1;
        Some(self.first_hold(index))
    }

    /// Grants only the first `places` places from here on; nobody may hold one of the others. [`Pool::grow`] may grant them again.
    pub fn shrink(&mut self, places: usize) {
        let Some(beyond @ 1..) = self.granted.checked_sub(places) else { return };
        let Ok(first) = u32::try_from(places) else { return };
        let taken_back = self.free.split_off(&first);
        assert_eq!(taken_back.len(), beyond, "taking back a {} that is held", P::WORD);
        self.granted = places;
    }

    fn first_hold(&mut self, index: u32) -> Ref<P> {
        let cell = &mut self.cells[index as usize];
        cell.holders = 1;
        Ref { id: P::numbered(index), generation: cell.generation }
    }

    /// Adds a holder.
    pub fn hold(&mut self, place: Ref<P>) {
        assert!(self.check(place).is_ok() && self.holders(place) > 0, "holding a free {}", P::WORD);
        self.cells[place.id.number() as usize].holders += 1;
    }

    /// Removes a holder. The last one frees the place and ends its generation.
    pub fn release(&mut self, place: Ref<P>) {
        if self.check(place).is_err() {
            // Whoever reads through the stale reference gets the error; the place's present holders keep it.
            return;
        }
        let cell = &mut self.cells[place.id.number() as usize];
        assert!(cell.holders > 0, "releasing a free {}", P::WORD);
        cell.holders = cell.holders.saturating_sub(1);
        if cell.holders == 0 {
            cell.generation = cell.generation.wrapping_add(1);
            self.free.insert(place.id.number());
        }
    }

    /// Holders of a place.
    pub fn holders(&self, place: Ref<P>) -> u32 {
        self.cells.get(place.id.number() as usize).map_or(0, |cell| cell.holders)
    }

    /// Fails when the place's contents are no longer those the reference was made for.
    pub fn check(&self, place: Ref<P>) -> Result<(), StaleState> {
        let index = place.id.number();
        let found = self.cells.get(index as usize).map_or(0, |cell| cell.generation);
        if found == place.generation {
            return Ok(());
        }
        Err(StaleState { kind: P::WORD, index, expected: place.generation, found })
    }

    /// Takes a place from all its holders, which keep a reference to what it held: a fault, to see that they notice.
    pub fn give_away(&mut self, place: Ref<P>) {
        if self.check(place).is_ok() && self.holders(place) > 0 {
            let cell = &mut self.cells[place.id.number() as usize];
            *cell = Cell { generation: cell.generation.wrapping_add(1), holders: 0 };
            self.free.insert(place.id.number());
        }
    }

    #[cfg(test)]
    pub(crate) fn bump_generation(&mut self, place: Ref<P>) {
        self.cells[place.id.number() as usize].generation =
            self.cells[place.id.number() as usize].generation.wrapping_add(1);
    }
}
