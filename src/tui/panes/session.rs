//! The session: one row a request. A fall of the checkpoint is marked `▼`, a request beside the line of
//! history `side`; the turn that comes next is announced.

use std::collections::BTreeMap;

use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::table::{first_row, fitting, padded};
use super::verify::Figures;
use crate::event::{Cause, Phase, RequestId};
use crate::ledger::{CheckpointStep, RequestFacts};
use crate::tui::app::{Model, Pane, visible_requests};
use crate::tui::status::nothing_yet;
use crate::tui::text::{self, UNKNOWN, count, duration, signed};
use crate::tui::theme::Tone;
use crate::tui::view::{Canvas, row_of};

/// What a row is made from.
struct RowFacts<'a> {
    request: &'a RequestFacts,
    step: Option<CheckpointStep>,
    /// Tokens per cycle by the cost of a cycle, where something was drafted.
    cycles: Option<String>,
    /// Tokens of its checkpoint that recovery published and the request before it owed.
    recovered: Option<u64>,
}

struct Column {
    header: &'static str,
    right: bool,
    value: fn(&RowFacts<'_>) -> String,
}

/// In display order.
const COLUMNS: [Column; 15] = [
    Column { header: "#", right: true, value: |r| r.request.turn.to_string() },
    Column {
        header: "name",
        right: false,
        value: |r| text::fit(&text::sanitise(&r.request.name), 24).into(),
    },
    Column { header: "prompt", right: true, value: |r| count(r.request.prompt_tokens) },
    Column { header: "ckpt", right: true, value: |r| in_progress(r.request, r.request.checkpoint()) },
    Column { header: "Δckpt", right: true, value: delta },
    Column { header: "suffix", right: true, value: |r| in_progress(r.request, r.request.uncached_suffix) },
    Column { header: "comp", right: true, value: |r| in_progress(r.request, r.request.computed_tokens) },
    Column { header: "fresh", right: true, value: |r| count(r.request.fresh_tokens()) },
    Column { header: "route", right: false, value: |r| r.request.route.map_or(UNKNOWN, |x| x.word()).into() },
    Column { header: "why", right: false, value: why },
    Column { header: "ttft", right: true, value: |r| duration(r.request.ttft) },
    Column { header: "debt", right: true, value: |r| count(r.request.canonical_debt()) },
    Column { header: "out", right: true, value: |r| count(r.request.output_tokens) },
    Column { header: CYCLES, right: true, value: |r| r.cycles.clone().unwrap_or_else(|| UNKNOWN.into()) },
    Column { header: RECOVERED, right: true, value: |r| count(r.recovered) },
];

/// The column of tokens per cycle and their cost in dense steps. It is there where something was drafted.
const CYCLES: &str = "gives/costs";

/// The column of tokens that recovery paid. It is there where it paid any.
const RECOVERED: &str = "recovered";

/// Indices of [`COLUMNS`], most important first: what does not fit is left out from the end.
const IMPORTANCE: [usize; 15] = [0, 3, 4, 5, 9, 2, 10, 8, 7, 14, 13, 1, 11, 6, 12];
/// How many of them the workbench makes room for.
const PREFERRED: usize = 9;

fn in_progress(request: &RequestFacts, value: Option<u64>) -> String {
    match value {
        None if request.phase != Phase::Done => "…".to_owned(),
        value => count(value),
    }
}

fn delta(row: &RowFacts<'_>) -> String {
    match row.step {
        None if row.request.is_side() => "side".to_owned(),
        None => UNKNOWN.to_owned(),
        Some(step) if step.cliff => format!("▼{}", signed(step.delta)),
        Some(step) => signed(step.delta),
    }
}

fn why(row: &RowFacts<'_>) -> String {
    match (&row.request.error, &row.request.restore) {
        (Some(_), _) => "FAILED".to_owned(),
        (None, Some(restore)) => restore.cause.word().to_owned(),
        (None, None) if row.request.phase != Phase::Done => row.request.phase.word().to_owned(),
        (None, None) => UNKNOWN.to_owned(),
    }
}

/// The text a filter looks at, in lower case.
pub fn haystack(request: &RequestFacts) -> String {
    let cause = request.cause_sentence().unwrap_or_default();
    let word = request.restore.as_ref().map_or("", |r| r.cause.word());
    let route = request.route.map_or("", |r| r.word());
    let error = request.error.as_deref().unwrap_or_default();
    let side = if request.is_side() { "side" } else { "" };
    format!("{} {} {route} {word} {cause} {error} {side}", request.turn, request.name).to_lowercase()
}

/// The width in which all important columns fit, frame included.
pub fn preferred_width(model: &Model) -> u16 {
    let rows = rows(model);
    let mut widths = column_widths(&rows);
    widths[0] = widths[0].max(next_number(model).len());
    let wanted = wanted(&rows);
    let most = PREFERRED + usize::from(wanted.iter().any(|index| COLUMNS[*index].header == RECOVERED));
    let columns: usize = wanted.iter().take(most).map(|i| widths[*i] + 1).sum();
    u16::try_from(columns + 3).unwrap_or(u16::MAX)
}

fn rows(model: &Model) -> Vec<RowFacts<'_>> {
    let steps: BTreeMap<RequestId, CheckpointStep> =
        model.ledger().checkpoint_steps(model.ui.lane).into_iter().collect();
    let recovered: BTreeMap<RequestId, u64> = match model.ledger().recovery().is_silent() {
        true => BTreeMap::new(),
        false => {
            let debt = model.ledger().debt(model.ui.lane);
            debt.into_iter().filter_map(|entry| Some((entry.request, entry.recovered_tokens?))).collect()
        }
    };
    let row = |id: RequestId| {
        let request = model.ledger().request(id)?;
        let (step, recovered) = (steps.get(&id).copied(), recovered.get(&id).copied());
        Some(RowFacts { request, step, cycles: cycles(model, request), recovered })
    };
    visible_requests(model).into_iter().filter_map(row).collect()
}

/// `2.88/1.51`
fn cycles(model: &Model, request: &RequestFacts) -> Option<String> {
    let figures = Figures::of(model, request)?;
    if figures.failure().is_some() {
        return Some("AUDIT".to_owned());
    }
    let account = figures.account();
    let cost = account.cost_ratio().map_or_else(|| UNKNOWN.to_owned(), |cost| format!("{cost:.2}"));
    Some(format!("{:.2}/{cost}", account.tokens_per_cycle()?))
}

/// The columns that there is something to show in, most important first: that of cycles only where there are some, that of recovery where it paid.
fn wanted(rows: &[RowFacts<'_>]) -> Vec<usize> {
    let drafted = rows.iter().any(|row| row.cycles.is_some());
    let paid = rows.iter().any(|row| row.recovered.is_some_and(|tokens| tokens > 0));
    let shown = |index: &usize| match COLUMNS[*index].header {
        CYCLES => drafted,
        RECOVERED => paid,
        _ => true,
    };
    IMPORTANCE.into_iter().filter(shown).collect()
}

/// The columns that fit `room`, most important first.
fn columns(rows: &[RowFacts<'_>], widths: &[usize], room: usize) -> Vec<usize> {
    fitting(widths, &wanted(rows), room)
}

fn column_widths(rows: &[RowFacts<'_>]) -> [usize; COLUMNS.len()] {
    let mut widths = COLUMNS.each_ref().map(|column| text::width(column.header));
    for row in rows {
        for (width, column) in widths.iter_mut().zip(&COLUMNS) {
            *width = (*width).max(text::width(&(column.value)(row)));
        }
    }
    widths
}

/// Draws the pane.
pub fn draw(canvas: &mut Canvas<'_>, model: &Model, area: Rect) {
    let rows = rows(model);
    let mut widths = column_widths(&rows);
    widths[0] = widths[0].max(next_number(model).len());
    let columns = columns(&rows, &widths, usize::from(area.width).saturating_sub(1));
    let header: Vec<Span<'_>> =
        columns.iter().map(|i| cell(canvas, *i, &widths, COLUMNS[*i].header, Tone::Dim)).collect();
    canvas.line(area, 0, &Line::from([vec![Span::raw(" ")], header].concat()));

    let next = announcement(model);
    let lines = rows.len() + usize::from(next.is_some());
    let height = usize::from(area.height).saturating_sub(1);
    let selected = model.selected().map(|r| r.id);
    let at = rows.iter().position(|row| Some(row.request.id) == selected);
    let top = first_row(lines, height, at, model.ui.selection.is_none());
    canvas.note_page(Pane::Session, lines, height, top);
    if rows.is_empty() {
        let words =
            if model.history().is_empty() { nothing_yet(model) } else { "no request matches the filter" };
        canvas.put(area, 1, 1, words, Tone::Dim);
    }
    for (line, row) in rows.iter().enumerate().skip(top).take(height) {
        let is_selected = at == Some(line);
        draw_row(canvas, area, line - top + 1, row, &columns, &widths, is_selected);
    }
    if let Some(next) = next
        && (top..top + height).contains(&rows.len())
        && !rows.is_empty()
    {
        let text = format!(" {} {next}", text::right(&next_number(model), widths[0]));
        canvas.put(area, 0, rows.len() - top + 1, &text, Tone::Dim);
    }
}

fn draw_row(
    canvas: &mut Canvas<'_>,
    area: Rect,
    line: usize,
    row: &RowFacts<'_>,
    columns: &[usize],
    widths: &[usize; COLUMNS.len()],
    selected: bool,
) {
    let cliff = row.step.is_some_and(|s| s.cliff);
    let failed = row.request.error.is_some();
    let marker = if selected { "▸" } else { " " };
    let mut spans = vec![canvas.span(marker, Tone::Key)];
    for index in columns {
        let tone = match COLUMNS[*index].header {
            "#" | "Δckpt" if row.request.is_side() => Tone::Dim,
            "#" => Tone::Lane(row.request.lane),
            "Δckpt" if cliff => Tone::Warn,
            CYCLES if row.cycles.as_deref() == Some("AUDIT") => Tone::Warn,
            "why" if cliff || failed || is_loss(row) => Tone::Warn,
            "ckpt" => Tone::Strong,
            "name" | "fresh" | "out" => Tone::Dim,
            _ => Tone::Text,
        };
        spans.push(cell(canvas, *index, widths, &(COLUMNS[*index].value)(row), tone));
    }
    if selected {
        canvas.tint(area, line, Tone::Selected);
    }
    canvas.line(area, line, &Line::from(spans));
    if let Some(rect) = row_of(area, line) {
        canvas.layout.rows.push((rect, row.request.id));
    }
}

fn is_loss(row: &RowFacts<'_>) -> bool {
    row.request.restore.as_ref().is_some_and(|r| Cause::is_loss(r.cause))
}

fn cell<'a>(
    canvas: &Canvas<'_>,
    index: usize,
    widths: &[usize; COLUMNS.len()],
    value: &str,
    tone: Tone,
) -> Span<'a> {
    canvas.span(padded(value, widths[index], COLUMNS[index].right), tone)
}

fn next_number(model: &Model) -> String {
    let next = model.ledger().lane(model.ui.lane).and_then(|lane| lane.next_turn);
    next.map(|turn| turn.to_string()).unwrap_or_default()
}

/// The row that announces the turn to come, when nothing of it has arrived yet.
fn announcement(model: &Model) -> Option<String> {
    if model.recording.is_some()
        || model.ledger().failure().is_some()
        || !model.ui.filter[Pane::Session.index()].is_empty()
    {
        return None;
    }
    let lane = model.ledger().lane(model.ui.lane)?;
    let next = lane.next_turn?;
    let arrived = model.ledger().lane_requests(model.ui.lane).any(|r| r.turn == next);
    (!arrived).then(|| "… next".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_panes_keep_what_matters_most() {
        let widths = column_widths(&[]);
        let headers =
            |room| -> Vec<_> { columns(&[], &widths, room).into_iter().map(|i| COLUMNS[i].header).collect() };
        assert_eq!(headers(26), ["#", "ckpt", "Δckpt", "suffix", "why"]);
        assert_eq!(headers(0), Vec::<&str>::new());
        assert_eq!(headers(200).len(), COLUMNS.len() - 2, "nothing was drafted or recovered");
    }
}
