//! The runs in view: one, or the lanes of a comparison. Panes show the one in focus; the compare pane shows all.

use super::panes::events::EventList;
use crate::compare::{Comparison, News};
use crate::event::{Event, Gate, LaneId, Phase};
use crate::ledger::{Ledger, RequestFacts};

/// What is known of every run. There is always one at least.
#[derive(Debug)]
pub struct Runs {
    comparison: Comparison,
    /// The raw events of each, one line each.
    events: Vec<EventList>,
    focus: usize,
    /// What a run that does not exist has told.
    nothing: Ledger,
}

impl Default for Runs {
    fn default() -> Runs {
        Runs::new([String::new()])
    }
}

impl Runs {
    /// Runs of which nothing is known but their names.
    pub fn new(names: impl IntoIterator<Item = String>) -> Runs {
        let names: Vec<String> = names.into_iter().collect();
        let names = if names.is_empty() { vec![String::new()] } else { names };
        let events = names.iter().map(|_| EventList::default()).collect();
        Runs { comparison: Comparison::new(names), events, focus: 0, nothing: Ledger::new() }
    }

    /// Folds in what happened.
    pub fn apply(&mut self, news: &News) {
        self.comparison.apply(news);
        if let News::Event { lane, event } = news
            && let Some(events) = self.events.get_mut(*lane)
        {
            events.push(event);
        }
    }

    /// Shows these events of a single run, in place of all that was known of it.
    pub fn show(&mut self, events: &[Event]) {
        *self = Runs::default();
        for event in events {
            self.apply(&News::Event { lane: 0, event: event.clone() });
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.events.len()
    }

    /// Whether there is more than one.
    pub fn are_compared(&self) -> bool {
        self.count() > 1
    }

    /// Place of the one in focus.
    pub fn focus(&self) -> usize {
        self.focus
    }

    /// Moves the focus by `by` places, around the ends.
    pub fn move_focus(&mut self, by: isize) {
        self.focus = (self.focus as isize + by).rem_euclid(self.count() as isize) as usize;
    }

    /// The name of the run at `place`; empty for a run by itself.
    pub fn name(&self, place: usize) -> &str {
        self.comparison.names().get(place).map_or("", String::as_str)
    }

    /// `lane sparse: ` before words about the run at `place`; nothing where there is one run only.
    pub fn label(&self, place: usize) -> String {
        if self.are_compared() { format!("lane {}: ", self.name(place)) } else { String::new() }
    }

    /// What the runs have told whose engines go on.
    pub fn living(&self) -> impl Iterator<Item = &Ledger> {
        let all = (0..self.count()).map(|place| self.ledger_of(place));
        all.filter(|ledger| ledger.failure().is_none() && !ledger.ended())
    }

    /// What the run in focus has told.
    pub fn ledger(&self) -> &Ledger {
        self.ledger_of(self.focus)
    }

    /// What the run at `place` has told.
    pub fn ledger_of(&self, place: usize) -> &Ledger {
        self.comparison.ledger(place).unwrap_or(&self.nothing)
    }

    /// The raw events of the run in focus.
    pub fn events(&self) -> &EventList {
        &self.events[self.focus.min(self.events.len() - 1)]
    }

    /// All of them together.
    pub fn comparison(&self) -> &Comparison {
        &self.comparison
    }

    /// Whether they go on by themselves, and the line of history concerned. Of several, all of them together.
    pub fn gate(&self) -> Option<(Gate, LaneId)> {
        let own = self.ledger().gate();
        match self.comparison.gate() {
            Some(gate) if self.are_compared() => {
                Some((gate, own.map_or(LaneId::default(), |(_, lane)| lane)))
            }
            _ => own,
        }
    }

    /// The request under way, and the place of its run: that in focus before others.
    pub fn current(&self) -> Option<(usize, &RequestFacts)> {
        let places = std::iter::once(self.focus).chain((0..self.count()).filter(|at| *at != self.focus));
        let mut held = None;
        for place in places {
            let ledger = self.ledger_of(place);
            if ledger.ended() || ledger.failure().is_some() {
                continue;
            }
            match ledger.current() {
                Some(request) if request.phase == Phase::Queued => {
                    held = held.or(Some((place, request)));
                }
                Some(request) => return Some((place, request)),
                None => {}
            }
        }
        held
    }
}
