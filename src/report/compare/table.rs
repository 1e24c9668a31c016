//! The table of a comparison: one line a request and lane.

use super::super::{Align, Table, UNMEASURED, or_dash, seconds, thousands};
use crate::compare::{Cell, Comparison, ReplyDifference, SegmentKept, Spread, Turn};

/// A column, and how early it goes when there is no room: the one with the greatest number first, 0 never.
struct Column {
    title: &'static str,
    align: Align,
    goes: u8,
    text: fn(&Line<'_>) -> String,
}

/// What a line of the table is made from.
struct Line<'a> {
    comparison: &'a Comparison,
    turn: &'a Turn,
    lane: usize,
    cell: &'a Cell,
    /// Whether it is the first line of its request.
    heads: bool,
}

const COLUMNS: [Column; 20] = [
    Column { title: "turn", align: Align::Right, goes: 0, text: |line| head(line, line.turn.place.label()) },
    Column { title: "request", align: Align::Left, goes: 9, text: name },
    Column {
        title: "lane",
        align: Align::Left,
        goes: 0,
        text: |line| line.comparison.name(line.lane).to_owned(),
    },
    Column {
        title: "prompt",
        align: Align::Right,
        goes: 5,
        text: |line| head(line, or_dash(line.cell.prompt_tokens, thousands)),
    },
    Column {
        title: "ckpt",
        align: Align::Right,
        goes: 0,
        text: |line| or_dash(line.cell.checkpoint_tokens, thousands),
    },
    Column {
        title: "suffix",
        align: Align::Right,
        goes: 1,
        text: |line| or_dash(line.cell.uncached_suffix, thousands),
    },
    Column {
        title: "computed",
        align: Align::Right,
        goes: 4,
        text: |line| or_dash(line.cell.computed_tokens, thousands),
    },
    Column {
        title: "debt",
        align: Align::Right,
        goes: 0,
        text: |line| or_dash(line.cell.canonical_debt_tokens, thousands),
    },
    Column {
        title: "scorer",
        align: Align::Right,
        goes: 3,
        text: |line| or_dash(line.cell.scorer_s, scorer),
    },
    Column { title: "ttft", align: Align::Right, goes: 0, text: |line| or_dash(line.cell.ttft_s, median) },
    Column {
        title: "min..max",
        align: Align::Right,
        goes: 10,
        text: |line| or_dash(line.cell.ttft_s, range),
    },
    Column {
        title: "Σ ttft",
        align: Align::Right,
        goes: 0,
        text: |line| or_dash(line.cell.ttft_sum_s, median),
    },
    Column { title: "lead", align: Align::Right, goes: 6, text: |line| lead(line) },
    Column { title: "published", align: Align::Right, goes: 1, text: published },
    Column { title: "idle used", align: Align::Right, goes: 4, text: idle_used },
    Column { title: "waited", align: Align::Right, goes: 7, text: waited },
    Column { title: "reply", align: Align::Left, goes: 2, text: reply },
    Column { title: "KL", align: Align::Right, goes: 7, text: kl },
    Column { title: "kept", align: Align::Right, goes: 8, text: kept },
    Column { title: "names kept", align: Align::Left, goes: 8, text: names },
];

/// One line a request and lane, with every column that says something.
pub(super) fn full_table(comparison: &Comparison) -> Table {
    compare_table(comparison, usize::MAX)
}

/// One line a request and lane, as many columns as `width` has room for. A figure nobody measured is `–`.
pub fn compare_table(comparison: &Comparison, width: usize) -> Table {
    let turns = comparison.turns();
    let repeated = comparison.repeats() > 1;
    let mut columns: Vec<&Column> =
        COLUMNS.iter().filter(|column| repeated || column.title != "min..max").collect();
    columns.retain(|column| column.goes == 0 || says_something(comparison, &turns, column));
    loop {
        let table = with_columns(comparison, &turns, &columns);
        let last = columns.iter().map(|column| column.goes).max().unwrap_or(0);
        if table.width() <= width || last == 0 {
            return table;
        }
        columns.retain(|column| column.goes != last);
    }
}

/// The lines of the table, requests in order, lanes in order within each.
fn lines<'a>(comparison: &'a Comparison, turns: &'a [Turn]) -> impl Iterator<Item = Line<'a>> {
    turns.iter().flat_map(move |turn| {
        let cells = turn.cells.iter().enumerate().filter_map(|(lane, cell)| Some((lane, cell.as_ref()?)));
        cells.enumerate().map(move |(index, (lane, cell))| Line {
            comparison,
            turn,
            lane,
            cell,
            heads: index == 0,
        })
    })
}

fn says_something(comparison: &Comparison, turns: &[Turn], column: &Column) -> bool {
    lines(comparison, turns).any(|line| !["", UNMEASURED].contains(&(column.text)(&line).as_str()))
}

fn with_columns(comparison: &Comparison, turns: &[Turn], columns: &[&Column]) -> Table {
    let titles: Vec<_> = columns.iter().map(|column| (column.title, column.align)).collect();
    let mut table = Table::new(&titles);
    for line in lines(comparison, turns) {
        table.row(columns.iter().map(|column| (column.text)(&line)));
    }
    table
}

fn head(line: &Line<'_>, text: String) -> String {
    if line.heads { text } else { String::new() }
}

fn name(line: &Line<'_>) -> String {
    let side = if line.turn.side { " (side)" } else { "" };
    head(line, format!("{}{side}", line.turn.name))
}

fn median(spread: Spread) -> String {
    seconds(spread.median)
}

fn range(spread: Spread) -> String {
    format!("{}..{}", seconds(spread.min), seconds(spread.max))
}

fn scorer(spread: Spread) -> String {
    // A lane that was not asked to score has spent nothing on it.
    if spread.max == 0.0 { "0 s".to_owned() } else { median(spread) }
}

/// `+6.30 s` where the lane leads, `-16.3 s` where it is behind; nothing in the lane that the others are compared with.
fn lead(line: &Line<'_>) -> String {
    match line.cell.lead_s {
        _ if line.lane == line.comparison.base() => String::new(),
        lead => or_dash(lead, |lead| signed_seconds(lead.median)),
    }
}

/// A difference of times with its sign.
pub(super) fn signed_seconds(value: f64) -> String {
    let sign = if value > 0.0 {
        "+"
    } else if value < 0.0 {
        "-"
    } else {
        ""
    };
    format!("{sign}{}", seconds(value.abs()))
}

/// `same`; `≠ 3 (0.04)`: the third token is the first that differs, and by how much the compared lane preferred its own. Nothing in that lane itself.
fn reply(line: &Line<'_>) -> String {
    let unknown = || if line.lane == line.comparison.base() { String::new() } else { UNMEASURED.to_owned() };
    let Some(ReplyDifference { same_text, first_differing, margin, .. }) = line.cell.reply else {
        return unknown();
    };
    let margin = margin.map(|m| format!(" ({m:.2})")).unwrap_or_default();
    match (first_differing, same_text) {
        (Some(index), _) => format!("≠ {}{margin}", index + 1),
        (None, Some(true)) => "same".to_owned(),
        (None, Some(false)) => "differs".to_owned(),
        (None, None) => unknown(),
    }
}

fn kl(line: &Line<'_>) -> String {
    let close = line.cell.reply.and_then(|reply| reply.closeness);
    match close {
        _ if line.lane == line.comparison.base() => String::new(),
        close => or_dash(close, |close| {
            format!("{:.3}{}", close.kl_nats, if close.top1_agrees { "" } else { " ≠1" })
        }),
    }
}

fn kept(line: &Line<'_>) -> String {
    let sum = |field: fn(&SegmentKept) -> u64| line.cell.kept.iter().map(field).sum::<u64>();
    let (kept, total) = (sum(|s| s.kept), sum(|s| s.total));
    if total == 0 { String::new() } else { format!("{:.0} %", kept as f64 * 100.0 / total as f64) }
}

fn names(line: &Line<'_>) -> String {
    line.cell.survival.map(|s| format!("{} of {}", s.anywhere, s.identifiers)).unwrap_or_default()
}

/// `3,328/12,544`: of what recovery was to recover behind the request, what was restorable before the next one.
fn published(line: &Line<'_>) -> String {
    let Some(recovery) = &line.cell.recovery else { return String::new() };
    format!(
        "{}/{}",
        or_dash(recovery.committed_tokens, thousands),
        or_dash(recovery.target_tokens, thousands)
    )
}

/// `0.41 of 0.60 s`: compute time of recovery in the gap behind the request, and the gap. Nothing behind the last request.
fn idle_used(line: &Line<'_>) -> String {
    let gap = line.cell.recovery.as_ref().and_then(|recovery| recovery.service_s.zip(recovery.idle_s));
    gap.map(|(service, idle)| format!("{} of {}", seconds(service.median), seconds(idle))).unwrap_or_default()
}

/// How long the request waited for recovery.
fn waited(line: &Line<'_>) -> String {
    let waited = line.cell.recovery.as_ref().and_then(|recovery| recovery.delayed_s);
    waited.map(|spread| seconds(spread.median)).unwrap_or_default()
}
