//! The fold over several lanes' events.

use crate::event::{Event, Gate};
use crate::ledger::Ledger;

use super::lane::DENSE;
use super::lockstep::News;

/// Lanes of one session, each with its ledger, and what they are compared with.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    names: Vec<String>,
    ledgers: Vec<Ledger>,
    orders: Vec<(u64, Vec<usize>)>,
    gate: Option<Gate>,
    over: bool,
}

impl Comparison {
    /// Nothing told yet of lanes with these names.
    pub fn new(names: impl IntoIterator<Item = String>) -> Comparison {
        let names: Vec<String> = names.into_iter().collect();
        let ledgers = names.iter().map(|_| Ledger::new()).collect();
        Comparison { names, ledgers, orders: Vec::new(), gate: None, over: false }
    }

    /// Folds in what the lanes tell. Accepts anything in any order.
    pub fn apply(&mut self, news: &News) {
        match news {
            News::Event { lane, event } => self.apply_event(*lane, event),
            News::Round { turn, order } => self.orders.push((*turn, order.clone())),
            News::Gate(gate) => self.gate = Some(*gate),
            News::Over => self.over = true,
        }
    }

    /// Folds in an event of one lane, as a recording of it holds them.
    pub fn apply_event(&mut self, lane: usize, event: &Event) {
        if let Some(ledger) = self.ledgers.get_mut(lane) {
            ledger.apply(event);
        }
    }

    /// The lanes' names, by their places.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// A lane's ledger.
    pub fn ledger(&self, lane: usize) -> Option<&Ledger> {
        self.ledgers.get(lane)
    }

    /// Place of the lane that the others are compared with: the dense one, or the first.
    pub fn base(&self) -> usize {
        self.names.iter().position(|name| name == DENSE).unwrap_or(0)
    }

    /// Whether the lanes together go on by themselves; `None` before all have started.
    pub fn gate(&self) -> Option<Gate> {
        self.gate
    }

    /// Whether every engine has ended.
    pub fn over(&self) -> bool {
        self.over
    }
}
