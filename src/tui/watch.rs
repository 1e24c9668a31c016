//! Breakpoints as the interface shows them: the conditions set, and the one at which the replay stands.

use super::app::Model;
use crate::event::Gate;
use crate::ledger::BreakpointFacts;

/// The conditions at which the replay pauses.
pub(super) fn conditions(model: &Model) -> &[String] {
    model.ledger().breakpoints()
}

/// A condition that was hit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hit<'a> {
    /// The place of its run.
    place: usize,
    facts: &'a BreakpointFacts,
}

/// The condition that was hit; `None` once the replay has gone on, or served another request.
///
/// Of lanes that are compared, all stop where one was hit: the one in focus is looked at before others.
pub(super) fn hit(model: &Model) -> Option<Hit<'_>> {
    if matches!(model.runs.gate(), Some((Gate::Running, _))) {
        return None;
    }
    let focus = model.runs.focus();
    let places = std::iter::once(focus).chain((0..model.runs.count()).filter(|place| *place != focus));
    let of = |place| {
        let ledger = model.runs.ledger_of(place);
        let facts = ledger.breakpoint_hit()?;
        let latest = ledger.requests().next_back().map(|request| request.id);
        (facts.request.is_none() || facts.request == latest).then_some(Hit { place, facts })
    };
    places.into_iter().find_map(of)
}

/// The hit in words: what held, for which request, and what was observed.
pub(super) fn hit_words(model: &Model, hit: Hit<'_>) -> String {
    let Hit { place, facts } = hit;
    let request = facts.request.and_then(|id| model.runs.ledger_of(place).request(id));
    let lane = model.runs.label(place);
    let at = request.map_or_else(String::new, |request| format!(" at turn {}", request.turn));
    format!("BREAKPOINT {lane}{}{at}: {}", facts.condition, facts.observed)
}
