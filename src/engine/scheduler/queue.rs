//! Whose turn it is: which of those that wait is admitted next.
//!
//! Places go to the lanes evenly: the oldest request of the lane that has the fewest running comes next, so that a lane that floods the queue does
//! not lock the others out. A lane with nothing running ties with every other such lane, and then the older request wins; so nobody waits for
//! ever. Who had to make way comes before them all, since it was admitted before.

use std::collections::BTreeSet;

use super::Scheduler;
use crate::engine::sequence::{Sequence, WaitsForRoom};
use crate::event::LaneId;

/// The place in `waiting`, oldest first, of the request that comes next while the requests of the lanes `running` run.
fn next_of_lanes(waiting: impl Iterator<Item = LaneId>, running: &[LaneId]) -> Option<usize> {
    let of_lane = |lane: LaneId| running.iter().filter(|other| **other == lane).count();
    waiting.enumerate().min_by_key(|(place, lane)| (of_lane(*lane), *place)).map(|(place, _)| place)
}

impl Scheduler<'_> {
    /// The place in the queue of the request that is admitted next. `None` where none waits, or the one whose turn it is waits for room.
    pub(super) fn next_to_admit(&mut self) -> Option<usize> {
        let first = self.queue.front()?;
        if let Some(waits) = first.waits {
            let fits = self.has_room_for(first, waits);
            let releases = self.releases;
            if let (false, Some(first)) = (fits, self.queue.front_mut()) {
                first.waits = Some(WaitsForRoom { releases, ..waits });
            }
            return fits.then_some(0);
        }
        let running: Vec<LaneId> = self.running.iter().map(|s| s.submission.lane).collect();
        next_of_lanes(self.queue.iter().map(|s| s.submission.lane), &running)
    }

    /// Whether a sequence for which there was no room may be tried again: where nothing else runs always, else where what it knows fits beside the
    /// others, and a block more.
    fn has_room_for(&self, sequence: &Sequence<'_>, waits: WaitsForRoom) -> bool {
        if self.running.is_empty() {
            return true;
        }
        if waits.alone || waits.releases == self.releases {
            return false;
        }
        let held: BTreeSet<_> =
            self.running.iter().flat_map(|s| s.pages.iter().map(|page| page.id())).collect();
        let found = self.cache.look_up(sequence.findable()).blocks;
        let shared = found.iter().map_while(|block| block.page()).filter(|page| held.contains(&page.id()));
        let needed = sequence.places().div_ceil(self.cache.block_tokens()) + 1;
        let budget = self.cache.budget();
        let (_, slots) = self.cache.reservation();
        let most = budget.most_pages(slots).min(budget.device.pages.unwrap_or(usize::MAX));
        needed.saturating_sub(shared.count()) <= most.saturating_sub(held.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn next(waiting: &[u32], running: &[u32]) -> Option<usize> {
        let running: Vec<LaneId> = running.iter().map(|lane| LaneId(*lane)).collect();
        next_of_lanes(waiting.iter().map(|lane| LaneId(*lane)), &running)
    }

    #[test]
    fn the_lane_with_the_fewest_running_comes_next_and_of_several_the_oldest_request() {
        assert_eq!(next(&[], &[0]), None);
        assert_eq!(next(&[0, 0, 1], &[0]), Some(2));
        assert_eq!(next(&[1, 0], &[]), Some(0));
        assert_eq!(next(&[0, 1, 2], &[0, 0, 1]), Some(2));
    }

    proptest! {
        /// However the others flood, a request is admitted before more than a bounded number of those that arrived after it: one of every other
        /// lane for each of its own lane's that is ahead of it or runs, and for itself.
        #[test]
        fn no_request_waits_for_ever(
            ahead in prop::collection::vec(0_u32..4, 0..12),
            flood in prop::collection::vec(0_u32..4, 1..6),
            places in 1_usize..5,
            ends in prop::collection::vec(any::<prop::sample::Index>(), 200),
        ) {
            let mine = LaneId(0);
            let mut waiting: Vec<(LaneId, bool)> = ahead.iter().map(|lane| (LaneId(*lane), false)).collect();
            let before = waiting.len();
            waiting.push((mine, true));
            let mut running: Vec<LaneId> = Vec::new();
            let mut admitted_after = 0;
            for (round, end) in ends.iter().enumerate() {
                // As many of every other lane as anybody could want are always there.
                waiting.extend(flood.iter().map(|lane| (LaneId(1 + lane % 3), false)));
                while running.len() < places {
                    let Some(next) = next_of_lanes(waiting.iter().map(|(lane, _)| *lane), &running) else { break };
                    let (lane, awaited) = waiting.remove(next);
                    if awaited {
                        prop_assert!(admitted_after <= 4 * (before + 1 + places), "{admitted_after}");
                        return Ok(());
                    }
                    admitted_after += usize::from(round > 0);
                    running.push(lane);
                }
                // Every request ends: none runs through more ends than there are places.
                let ended = if round % places == 0 { 0 } else { end.index(running.len()) };
                running.remove(ended);
            }
            prop_assert!(false, "it waits still");
        }
    }
}
