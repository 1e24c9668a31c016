//! Watching a run for the conditions at which it is to pause.
//!
//! The same fold that the outside keeps runs here as well, so that a condition means what the reader of the ledger sees, and the engine stops in
//! the very step in which it comes true.

use std::collections::BTreeSet;

use crate::event::{Body, Event, LaneId, RequestId, Scored};
use crate::ledger::{Breakpoint, Ledger};

/// A condition that came true.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Hit {
    pub(super) lane: Option<LaneId>,
    pub(super) request: RequestId,
    pub(super) condition: String,
    pub(super) observed: String,
}

/// The fold and the conditions.
#[derive(Debug, Default)]
pub(super) struct Watch {
    ledger: Ledger,
    conditions: Vec<Breakpoint>,
    /// Conditions that were told of a request, by their place: each is told once.
    told: BTreeSet<(RequestId, usize)>,
    hits: Vec<Hit>,
}

impl Watch {
    /// Watches for these conditions from now on.
    pub(super) fn set(&mut self, conditions: Vec<Breakpoint>) {
        self.conditions = conditions;
        self.told.clear();
        self.hits.clear();
    }

    /// Takes an event in.
    pub(super) fn see(&mut self, event: &Event) {
        self.ledger.apply(event);
        let Some(request) = event.request else { return };
        // The moments at which something a condition can ask for becomes known.
        let known = match event.body {
            Body::Routed { .. } | Body::Stored { .. } => true,
            Body::Token { index, .. } => index == 0,
            _ => false,
        };
        if !known {
            return;
        }
        for (place, condition) in self.conditions.iter().enumerate() {
            if self.told.contains(&(request, place)) {
                continue;
            }
            if let Some(observed) = self.ledger.observes(condition, request) {
                self.told.insert((request, place));
                let condition = condition.to_string();
                self.hits.push(Hit { lane: event.lane, request, condition, observed });
            }
        }
    }

    /// What a request's scoring chose, if it was scored.
    pub(super) fn scored(&self, request: RequestId) -> Option<&Scored> {
        self.ledger.request(request)?.scored.as_ref()
    }

    /// What came true since the last call.
    pub(super) fn take_hits(&mut self) -> Vec<Hit> {
        std::mem::take(&mut self.hits)
    }
}
