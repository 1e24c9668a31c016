//! The row that JSON prints for a request in a lane.

use serde::Serialize;

use super::comparison::Comparison;
use super::turn::Cell;
use crate::ledger::{Ledger, Row};

/// One request in one lane, as `compare --json` prints it: the row of `replay --json`, its `lane` that of the comparison, and beside it what the
/// comparison says.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CompareRow {
    /// The row.
    #[serde(flatten)]
    pub row: Row,
    /// The comparison.
    pub compare: Compared,
}

/// What a comparison says of a request in a lane.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    /// The lane, as in the row.
    pub lane: String,
    /// The letter of the line of history within it: the session's is A, forks are B and on.
    pub line: String,
    /// The lane it is compared with; null in that lane itself.
    pub against: Option<String>,
    /// The lanes in the order in which they computed the request, in the first repeat; null where that was not told.
    pub order: Option<Vec<String>>,
    /// The figures.
    #[serde(flatten)]
    pub cell: Cell,
}

impl Comparison {
    /// One row a request and lane, requests in order, lanes in order within each.
    pub fn rows(&self) -> Vec<CompareRow> {
        let base = self.base();
        let lanes = 0..self.names().len();
        // Facts are the first repeat's, as those of the cells are.
        let rows: Vec<Vec<Row>> =
            lanes.map(|lane| self.ledger_of(0, lane).map(Ledger::rows).unwrap_or_default()).collect();
        let mut all = Vec::new();
        for turn in self.turns() {
            let order = turn.order.iter().map(|lane| self.name(*lane).to_owned()).collect::<Vec<_>>();
            for (lane, cell) in turn.cells.into_iter().enumerate() {
                let same = |row: &&Row| row.turn == turn.place.turn && row.lane == turn.place.line.label();
                let (Some(cell), Some(row)) = (cell, rows[lane].iter().find(same)) else { continue };
                let compare = Compared {
                    lane: self.name(lane).to_owned(),
                    line: row.lane.clone(),
                    against: (lane != base).then(|| self.name(base).to_owned()),
                    order: (!order.is_empty()).then(|| order.clone()),
                    cell,
                };
                let row = Row { lane: self.name(lane).to_owned(), ..row.clone() };
                all.push(CompareRow { row, compare });
            }
        }
        all
    }
}
