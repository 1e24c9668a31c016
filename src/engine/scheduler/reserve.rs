//! What the device holds of the cache's pages and slots, and what becomes of a request when it has no memory for more.

use std::sync::Arc;

use super::{Refused, Scheduler};
use crate::cache::budget::DeviceLimits;
use crate::device::DeviceError;

/// Pages and slots that the device has reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Held {
    pages: usize,
    slots: usize,
}

impl Scheduler<'_> {
    /// Has the device hold a live slot for every sequence that may run, or for as many as it has memory for.
    pub(super) fn set_aside_live_slots(&mut self) -> Result<(), Refused> {
        let refused = self.reserve()?;
        self.limit(refused);
        Ok(())
    }

    /// Has the device hold the places that the cache has just handed out to a running sequence. `false` where it has no memory for all of them:
    /// the sequence has given the others back, and if it asks for them again the cache will evict instead.
    pub(super) fn hold_state(&mut self, sequence: usize) -> Result<bool, Refused> {
        let reserved = self.reserve();
        if !reserved.as_ref().is_ok_and(DeviceLimits::is_none) {
            self.give_back(sequence);
        }
        let refused = reserved?;
        self.limit(refused);
        Ok(refused.is_none())
    }

    /// Has the device hold the cache's reservation. Gives what it refused for want of memory.
    fn reserve(&mut self) -> Result<DeviceLimits, Refused> {
        let (pages, slots) = self.cache.reservation();
        let executor = &mut *self.executor;
        let held = &mut self.held;
        // One kind at a time, so that the device says which it refuses. Slots come first: they are few, and without one no sequence runs.
        let failed = |error| Refused::Device(Arc::new(error));
        held.slots =
            extend(held.slots, slots, |slots| executor.reserve(held.pages, slots)).map_err(failed)?;
        held.pages =
            extend(held.pages, pages, |pages| executor.reserve(pages, held.slots)).map_err(failed)?;
        let refused = |held: usize, wanted: usize| (held < wanted).then_some(held);
        Ok(DeviceLimits { pages: refused(held.pages, pages), slots: refused(held.slots, slots) })
    }

    /// Takes from a running sequence, and from the cache, the places that the device does not hold. None of them has been computed.
    pub(super) fn give_back(&mut self, sequence: usize) {
        let Held { pages, slots } = self.held;
        let running = &mut self.running[sequence];
        if let Some(first) = running.pages.iter().position(|page| page.id().0 as usize >= pages) {
            self.cache.release(&running.pages.split_off(first));
        }
        if let Some(state) = &mut running.recurrent {
            state.give_back_fresh(&mut self.cache);
            state.give_back_spare(&mut self.cache);
        }
        self.cache.shrink(pages, slots);
    }

    /// Starts over with a device that holds nothing any more. No place may be in use.
    pub(super) fn lose_all(&mut self) {
        self.held = Held::default();
        self.cache.shrink(0, 0);
    }

    /// Makes what the device holds the cache's size where it refused to hold more.
    fn limit(&mut self, refused: DeviceLimits) {
        if refused.is_none() {
            return;
        }
        self.cache.limit(refused);
        let (Held { pages, slots }, budget) = (self.held, self.cache.budget());
        tracing::warn!(
            pages,
            slots,
            page_bytes = budget.page_bytes,
            slot_bytes = budget.slot_bytes,
            ram_bytes = budget.limit_bytes,
            "the device has no memory for more cached state; from now on it is evicted earlier than \
             `cache.ram_bytes` says, until all of it is evicted by hand"
        );
    }
}

/// Goes from `held` places to `wanted`, or by half of the way, or by half of that, until `reserve` finds the memory. Gives what is held then.
fn extend(
    held: usize,
    wanted: usize,
    mut reserve: impl FnMut(usize) -> Result<(), DeviceError>,
) -> Result<usize, DeviceError> {
    let mut more = wanted.saturating_sub(held);
    while more > 0 {
        match reserve(held + more) {
            Ok(()) => break,
            Err(DeviceError::OutOfMemory { .. }) => more /= 2,
            Err(error) => return Err(error),
        }
    }
    Ok(held + more)
}
