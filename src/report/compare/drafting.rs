//! The table of what drafting was worth: one line a request and lane that drafts, and one a lane for all of them.

use super::super::{Align, Table, UNMEASURED, or_dash, seconds, thousands};
use crate::compare::{Comparison, Speculated, Spread};

/// A column, and how early it goes when there is no room: the one with the greatest number first, 0 never.
struct Column {
    title: &'static str,
    goes: u8,
    text: fn(&Speculated) -> String,
}

const COLUMNS: [Column; 11] = [
    Column { title: "drafted", goes: 3, text: |of| thousands(of.counters.drafted) },
    Column { title: "tested", goes: 5, text: |of| thousands(of.counters.tested) },
    Column { title: "accepted", goes: 4, text: |of| thousands(of.counters.accepted) },
    Column { title: "cycles", goes: 2, text: |of| thousands(of.counters.cycles) },
    Column { title: "tok/cycle", goes: 0, text: |of| figure(of.tokens_per_cycle) },
    Column { title: "cost", goes: 0, text: |of| figure(of.cost_ratio) },
    Column { title: "share", goes: 1, text: |of| figure(of.share) },
    Column { title: "predicted", goes: 0, text: predicted },
    Column { title: "decode", goes: 0, text: |of| factor(of, |speed_up| speed_up.decode) },
    Column { title: "end to end", goes: 0, text: |of| factor(of, |speed_up| speed_up.whole) },
    Column { title: "priming", goes: 1, text: |of| or_dash(of.priming_s, |time| seconds(time.median)) },
];

/// One line a request and lane that was asked to draft, then one a lane; as many columns as `width` has room for. `None` where no lane drafts.
pub fn drafting_table(comparison: &Comparison, width: usize) -> Option<Table> {
    let turns = comparison.turns();
    let mut lines: Vec<(String, &str, Speculated)> = Vec::new();
    for turn in &turns {
        let mut label = turn.place.label();
        for lane in comparison.others() {
            let cell = turn.cells.get(lane).and_then(Option::as_ref);
            if let Some(of) = cell.and_then(|cell| cell.speculation.clone()) {
                lines.push((std::mem::take(&mut label), comparison.name(lane), of));
            }
        }
    }
    if lines.is_empty() {
        return None;
    }
    let verdicts = comparison.verdicts();
    for verdict in &verdicts {
        if let Some(of) = &verdict.speculation {
            lines.push(("all".to_owned(), &verdict.lane, of.clone()));
        }
    }
    let mut columns: Vec<&Column> = COLUMNS.iter().collect();
    loop {
        let mut titles = vec![("turn", Align::Right), ("lane", Align::Left)];
        titles.extend(columns.iter().map(|column| (column.title, Align::Right)));
        let mut table = Table::new(&titles);
        for (label, lane, of) in &lines {
            let cells = columns.iter().map(|column| (column.text)(of));
            table.row([label.clone(), (*lane).to_owned()].into_iter().chain(cells));
        }
        let last = columns.iter().map(|column| column.goes).max().unwrap_or(0);
        if table.width() <= width || last == 0 {
            return Some(table);
        }
        columns.retain(|column| column.goes != last);
    }
}

fn figure(spread: Option<Spread>) -> String {
    or_dash(spread, |spread| format!("{:.2}", spread.median))
}

/// `1.62x`; the word `FAILED` where nothing is to be shown.
fn factor(of: &Speculated, which: fn(&crate::compare::SpeedUp) -> Option<Spread>) -> String {
    match of.speed_up() {
        None => "FAILED".to_owned(),
        Some(speed_up) => or_dash(which(speed_up), |spread| format!("{:.2}x", spread.median)),
    }
}

/// `1.60x`, with a `!` where it did not hold.
fn predicted(of: &Speculated) -> String {
    let mark = match of.speed_up().and_then(|speed_up| speed_up.held) {
        Some(false) => "!",
        _ => "",
    };
    match factor(of, |speed_up| speed_up.predicted) {
        text if text == UNMEASURED => text,
        text => text + mark,
    }
}
