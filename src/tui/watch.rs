//! Breakpoints as the interface shows them: the conditions set, and the one at which the replay stands.

use super::app::Model;
use crate::event::Gate;
use crate::ledger::BreakpointFacts;

/// The conditions at which the replay pauses.
pub(super) fn conditions(model: &Model) -> &[String] {
    model.ledger().breakpoints()
}

/// The condition that was hit; `None` once the replay has gone on, or served another request.
pub(super) fn hit(model: &Model) -> Option<&BreakpointFacts> {
    let hit = model.ledger().breakpoint_hit()?;
    let running = matches!(model.runs.gate(), Some((Gate::Running, _)));
    let latest = model.ledger().requests().next_back().map(|request| request.id);
    (!running && (hit.request.is_none() || hit.request == latest)).then_some(hit)
}

/// The hit in words: what held, for which request, and what was observed.
pub(super) fn hit_words(model: &Model, hit: &BreakpointFacts) -> String {
    let request = hit.request.and_then(|id| model.ledger().request(id));
    let at = request.map_or_else(String::new, |request| format!(" at turn {}", request.turn));
    format!("BREAKPOINT {}{at}: {}", hit.condition, hit.observed)
}
