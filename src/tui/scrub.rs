//! A recording, and where in it we stand.

use crate::event::{Body, Event};
use crate::ledger::Ledger;

/// All events of a recording and a position in it. Positions that can be visited are the boundaries between
/// requests: before the first, before each later one, and the end.
#[derive(Debug)]
pub struct Recording {
    events: Vec<Event>,
    stops: Vec<usize>,
    stop: usize,
}

impl Recording {
    /// A recording, standing at its end.
    pub fn new(events: Vec<Event>) -> Recording {
        let arrivals = events
            .iter()
            .enumerate()
            .filter(|(_, event)| matches!(event.body, Body::Arrived(_)))
            .map(|(at, _)| at);
        let mut stops: Vec<usize> = arrivals.chain([events.len()]).collect();
        stops.dedup();
        let stop = stops.len() - 1;
        Recording { events, stops, stop }
    }

    /// The events up to where we stand.
    pub fn visible(&self) -> &[Event] {
        &self.events[..self.stops[self.stop]]
    }

    /// The ledger there. Folding from the start is fast enough (hundreds of thousands of events a second) that no
    /// earlier state needs keeping.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::new();
        for event in self.visible() {
            ledger.apply(event);
        }
        ledger
    }

    /// Requests before the position, and requests in all.
    pub fn progress(&self) -> (usize, usize) {
        (self.stop, self.stops.len() - 1)
    }

    /// Goes on to the next boundary.
    pub fn forward(&mut self) {
        self.stop = (self.stop + 1).min(self.stops.len() - 1);
    }

    /// Goes back to the previous boundary.
    pub fn back(&mut self) {
        self.stop = self.stop.saturating_sub(1);
    }

    /// Whether nothing comes before.
    pub fn at_start(&self) -> bool {
        self.stop == 0
    }

    /// Whether nothing comes after.
    pub fn at_end(&self) -> bool {
        self.stop + 1 == self.stops.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_recording_has_one_place_to_stand() {
        let mut recording = Recording::new(Vec::new());
        assert!(recording.at_start() && recording.at_end());
        recording.back();
        recording.forward();
        assert_eq!(recording.progress(), (0, 0));
        assert!(recording.visible().is_empty());
    }
}
