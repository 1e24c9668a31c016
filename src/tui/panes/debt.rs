//! The debt account of a lane: what each request left unrestorable, what had to be computed again, and who paid. Two plots first, for those
//! who look rather than read.

use std::collections::BTreeMap;

use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::plot::{Plot, window};
use super::table::{first_row, fitting, padded};
use crate::event::RequestId;
use crate::ledger::{CheckpointStep, DebtEntry, Payer};
use crate::tui::app::{Model, Pane};
use crate::tui::text::{self, UNKNOWN, about, count, fit, kilo, right, signed, thousands};
use crate::tui::theme::Tone;
use crate::tui::view::{Canvas, row_of};

/// What the words of the account mean, for the help.
pub static WORDS: &[(&str, &str)] = &[
    ("canonical", "longest prefix of the prompt that can be restored afterwards"),
    ("canonical debt", "the rest of the prompt: nobody can restore it"),
    ("recomputed", "suffix tokens that an earlier request had computed already"),
    ("cache debt", "all suffix tokens since the cliff, until the checkpoint advances"),
    ("pinned", "the checkpoint has stood still for three requests or more"),
];

/// Columns of a plot's axis.
const AXIS: usize = 6;
/// The narrowest pane in which the plots stand beside the table.
const BESIDE: u16 = 110;

/// One line of the account.
struct DebtRow {
    entry: DebtEntry,
    turn: u32,
    prompt: Option<u64>,
    step: Option<CheckpointStep>,
    /// It stands beside the line of history.
    side: bool,
    /// Canonical debt now minus that of the request before.
    change: Option<i64>,
}

struct Column {
    header: &'static str,
    right: bool,
    value: fn(&DebtRow) -> String,
}

/// In display order.
const COLUMNS: [Column; 12] = [
    Column { header: "#", right: true, value: |r| r.turn.to_string() },
    Column { header: "prompt", right: true, value: |r| count(r.prompt) },
    Column { header: "canonical", right: true, value: |r| count(r.entry.canonical_after) },
    Column { header: "debt", right: true, value: |r| count(r.entry.canonical_debt) },
    Column { header: "Δdebt", right: true, value: |r| r.change.map_or_else(|| UNKNOWN.to_owned(), signed) },
    Column { header: "repaid", right: true, value: |r| count(r.entry.repaid_tokens) },
    Column { header: "by", right: false, value: |r| r.entry.paid_by.map_or(UNKNOWN, payer).to_owned() },
    Column { header: "recomputed", right: true, value: |r| count(r.entry.recomputed_tokens) },
    Column { header: "takes", right: true, value: |r| seconds(r.entry.recomputed_s) },
    Column { header: "cache debt", right: true, value: |r| count(r.entry.prefix_cache_debt) },
    Column { header: "takes", right: true, value: |r| seconds(r.entry.prefix_cache_debt_s) },
    Column { header: "checkpoint", right: false, value: mark },
];

/// Indices of [`COLUMNS`], most important first.
const IMPORTANCE: [usize; 12] = [0, 11, 3, 7, 8, 9, 10, 2, 5, 4, 6, 1];

fn payer(payer: Payer) -> &'static str {
    match payer {
        Payer::Foreground => "itself",
        Payer::Recovery => "recovery",
    }
}

fn seconds(value: Option<f64>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), |s| if s == 0.0 { "0 s".to_owned() } else { about(s) })
}

/// What stands out about the checkpoint: the cliff, or for how long it has been pinned; `▲` where the suffix grows meanwhile.
fn mark(row: &DebtRow) -> String {
    if row.side {
        return "side".to_owned();
    }
    if row.step.is_some_and(|step| step.cliff) {
        return "▼ cliff".to_owned();
    }
    let pinned = row.entry.pinned_requests;
    if pinned < DebtEntry::PINNED {
        return String::new();
    }
    let growing = if row.step.is_some_and(|step| step.ratchet) { " ▲" } else { "" };
    format!("pinned {pinned}{growing}")
}

fn rows(model: &Model) -> Vec<DebtRow> {
    let steps: BTreeMap<RequestId, CheckpointStep> =
        model.ledger().checkpoint_steps(model.ui.lane).into_iter().collect();
    let mut before = None;
    let row = |entry: DebtEntry| {
        let request = model.ledger().request(entry.request);
        let signed = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
        let side = request.is_some_and(|request| request.is_side());
        let change = entry.canonical_debt.zip(before).map(|(now, before)| signed(now) - signed(before));
        if !side {
            before = entry.canonical_debt;
        }
        DebtRow {
            turn: request.map_or(0, |request| request.turn),
            prompt: request.and_then(|request| request.prompt_tokens),
            step: steps.get(&entry.request).copied(),
            change: change.filter(|_| !side),
            side,
            entry,
        }
    };
    model.ledger().debt(model.ui.lane).into_iter().map(row).collect()
}

/// Draws the pane.
pub fn draw(canvas: &mut Canvas<'_>, model: &Model, area: Rect) {
    let rows = rows(model);
    if rows.is_empty() {
        canvas.note_page(Pane::Debt, 0, usize::from(area.height), 0);
        canvas.put(area, 1, 0, "here: what each request left that has to be computed again,", Tone::Dim);
        canvas.put(area, 1, 1, "what that took, and who paid", Tone::Dim);
        return;
    }
    let totals = totals(model, &rows, usize::from(area.width));
    let foot = u16::try_from(totals.len()).unwrap_or(u16::MAX).min(area.height / 4);
    for (at, (words, tone)) in totals.iter().take(usize::from(foot)).enumerate() {
        canvas.put(area, 1, usize::from(area.height - foot) + at, words, *tone);
    }
    let body = Rect { height: area.height - foot, ..area };
    let selected = model.selected().map(|request| request.id);
    let at = rows.iter().position(|row| Some(row.entry.request) == selected);
    if body.height < 12 && body.width >= BESIDE {
        let (left, table) = split(body, body.width.saturating_sub(100).max(body.width * 2 / 5));
        draw_plots(canvas, &rows, at, left, 1);
        draw_table(canvas, model, &rows, at, table);
    } else if body.height >= 10 {
        let free =
            body.height.saturating_sub(u16::try_from(rows.len()).unwrap_or(u16::MAX).saturating_add(1));
        let plot = free.max(body.height * 2 / 5).clamp(5, 14);
        let top = Rect { height: plot, ..body };
        draw_plots(canvas, &rows, at, top, 2);
        let table = Rect { y: body.y + plot, height: body.height - plot, ..body };
        draw_table(canvas, model, &rows, at, table);
    } else {
        draw_table(canvas, model, &rows, at, body);
    }
}

fn split(area: Rect, width: u16) -> (Rect, Rect) {
    let width = width.min(area.width);
    (Rect { width, ..area }, Rect { x: area.x + width, width: area.width - width, ..area })
}

/// A value that is plotted.
type Value = fn(&DebtRow) -> Option<u64>;

/// The account's plots side by side, as many as there are columns for `most`.
fn draw_plots(canvas: &mut Canvas<'_>, rows: &[DebtRow], at: Option<usize>, area: Rect, most: u16) {
    let canonical: Value = |row| row.entry.canonical_debt;
    let cache: Value = |row| row.entry.prefix_cache_debt;
    // What stands beside the line of history has no place in its curve.
    let chosen = at.and_then(|at| rows.get(at)).map(|row| row.entry.request);
    let line: Vec<&DebtRow> = rows.iter().filter(|row| !row.side).collect();
    let at = line.iter().position(|row| Some(row.entry.request) == chosen);
    let known = line.iter().any(|row| canonical(row).is_some());
    let fell = line.iter().any(|row| cache(row).is_some_and(|tokens| tokens > 0));
    let canonical = ("canonical debt", Tone::Suffix, canonical);
    let cache = ("cache debt", Tone::Warn, cache);
    match (known, most) {
        (true, 2..) => {
            let (left, right) = split(area, area.width / 2);
            draw_plot(canvas, &line, at, left, canonical);
            draw_plot(canvas, &line, at, right, cache);
        }
        (true, _) if !fell => draw_plot(canvas, &line, at, area, canonical),
        _ => draw_plot(canvas, &line, at, area, cache),
    }
}

/// One value over the requests, the cliffs marked at the turn numbers.
fn draw_plot(
    canvas: &mut Canvas<'_>,
    rows: &[&DebtRow],
    at: Option<usize>,
    area: Rect,
    (title, tone, value): (&str, Tone, Value),
) {
    let chart = Rect {
        x: area.x + AXIS as u16,
        y: area.y + 1,
        width: area.width.saturating_sub(AXIS as u16 + 1),
        height: area.height.saturating_sub(2),
    };
    if area.width <= AXIS as u16 + 1 || chart.height == 0 {
        return;
    }
    let column = (usize::from(chart.width) / rows.len().max(1)).clamp(1, 5);
    let fitting = usize::from(chart.width) / column;
    let shown = window(rows.len(), fitting, at);
    let rows_shown = &rows[shown.clone()];
    let highest = rows_shown.iter().filter_map(|row| value(row)).max().unwrap_or(0);
    let now = rows.last().and_then(|row| value(row));
    let head = format!(" {title} {} (most {})", count(now), thousands(highest));
    canvas.put(area, 0, 0, &fit(&head, usize::from(area.width)), Tone::Strong);
    canvas.put(area, 0, 1, &right(&kilo(highest), AXIS - 1), Tone::Dim);
    canvas.put(area, 0, usize::from(chart.height), &right("0", AXIS - 1), Tone::Dim);
    let plot = Plot { area: chart, highest, column };
    for (index, row) in rows_shown.iter().enumerate() {
        plot.bar(canvas, index, value(row), tone);
    }
    let label = |row: &DebtRow| {
        let cliff = row.step.is_some_and(|step| step.cliff);
        (if cliff { format!("▼{}", row.turn) } else { row.turn.to_string() }, cliff)
    };
    let labels: Vec<(String, bool)> = rows_shown.iter().map(|row| label(row)).collect();
    canvas.put(area, 0, usize::from(chart.height) + 1, &right("turn", AXIS - 1), Tone::Dim);
    let chosen = at.filter(|at| shown.contains(at)).map(|at| at - shown.start);
    plot.numbers(canvas, &labels, chosen);
}

fn draw_table(canvas: &mut Canvas<'_>, model: &Model, rows: &[DebtRow], at: Option<usize>, area: Rect) {
    let mut widths = COLUMNS.each_ref().map(|column| text::width(column.header));
    for row in rows {
        for (width, column) in widths.iter_mut().zip(&COLUMNS) {
            *width = (*width).max(text::width(&(column.value)(row)));
        }
    }
    let columns = fitting(&widths, &IMPORTANCE, usize::from(area.width).saturating_sub(1));
    let cell = |index: usize, value: &str| padded(value, widths[index], COLUMNS[index].right);
    let header: String = columns.iter().map(|index| cell(*index, COLUMNS[*index].header)).collect();
    canvas.put(area, 1, 0, &header, Tone::Dim);
    let height = usize::from(area.height).saturating_sub(1);
    let top = first_row(rows.len(), height, at, model.ui.selection.is_none());
    canvas.note_page(Pane::Debt, rows.len(), height, top);
    for (line, row) in rows.iter().enumerate().skip(top).take(height) {
        let selected = at == Some(line);
        let mut spans = vec![canvas.span(if selected { "▸" } else { " " }, Tone::Key)];
        for index in &columns {
            let tone = match COLUMNS[*index].header {
                "checkpoint" => Tone::Warn,
                "debt" | "recomputed" => Tone::Strong,
                "cache debt" if row.entry.prefix_cache_debt.is_some_and(|tokens| tokens > 0) => Tone::Warn,
                "prompt" | "by" | "takes" => Tone::Dim,
                _ => Tone::Text,
            };
            spans.push(Span::styled(cell(*index, &(COLUMNS[*index].value)(row)), canvas.style(tone)));
        }
        let at_row = line - top + 1;
        if selected {
            canvas.tint(area, at_row, Tone::Selected);
        }
        canvas.line(area, at_row, &Line::from(spans));
        if let Some(rect) = row_of(area, at_row) {
            canvas.layout.rows.push((rect, row.entry.request));
        }
    }
}

/// What stands below the table: the sums, then what is owed now and where the seconds come from.
fn totals(model: &Model, rows: &[DebtRow], width: usize) -> Vec<(String, Tone)> {
    let sum = |value: fn(&DebtEntry) -> Option<u64>| {
        let known = rows.iter().filter_map(|row| value(&row.entry));
        known.reduce(u64::saturating_add)
    };
    let recomputed_s = rows.iter().filter_map(|row| row.entry.recomputed_s).reduce(|a, b| a + b);
    let paid = |by: Payer| {
        let own = rows.iter().filter(|row| row.entry.paid_by == Some(by));
        own.filter_map(|row| row.entry.repaid_tokens).reduce(u64::saturating_add)
    };
    let recovered =
        paid(Payer::Recovery).map_or_else(String::new, |n| format!(", {} by recovery", thousands(n)));
    let sums = format!(
        "Σ recomputed {} tok{} · repaid {} tok in the foreground{recovered}",
        count(sum(|entry| entry.recomputed_tokens)),
        recomputed_s.map_or_else(String::new, |s| format!(" {}", about(s))),
        count(paid(Payer::Foreground)),
    );
    let last = rows.iter().rev().find(|row| row.entry.pinned_requests > 0);
    let owed = last.map_or_else(String::new, |row| {
        let entry = &row.entry;
        let takes = entry.prefix_cache_debt_s.filter(|s| *s > 0.0);
        let pinned = if entry.pinned_requests >= DebtEntry::PINNED {
            format!(" · pinned {} requests", entry.pinned_requests)
        } else {
            String::new()
        };
        format!(
            "now: canonical debt {} tok · cache debt {} tok{}{pinned} · ",
            count(entry.canonical_debt),
            count(entry.prefix_cache_debt),
            takes.map_or_else(String::new, |s| format!(" {}", about(s))),
        )
    });
    let curve = match model.ledger().prefill_curve() {
        None => "– no prefill measured yet, so no seconds".to_owned(),
        Some(curve) => format!("≈ on the curve of this run's {} prefill chunks", thousands(curve.samples)),
    };
    let behind = last.is_some_and(|row| row.entry.prefix_cache_debt.is_some_and(|tokens| tokens > 0));
    let mut lines = Vec::new();
    text::wrap_line(&format!("{owed}{curve}"), width.saturating_sub(2), &mut lines);
    let tone = if behind { Tone::Warn } else { Tone::Text };
    let owed = lines.into_iter().map(|line| (line.into_string(), tone));
    std::iter::once((fit(&sums, width.saturating_sub(2)).into_owned(), Tone::Text)).chain(owed).collect()
}
