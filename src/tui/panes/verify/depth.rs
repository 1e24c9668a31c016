//! Cost against gain by depth: a bar of the tokens a cycle gives, a line at its cost in dense steps. What reaches beyond the line is won.

use ratatui::text::{Line, Span};

use super::figures::DepthRow;
use super::{Verify, figure, times};
use crate::tui::text::{self, duration, left, right};
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

/// Columns of the depth, with the mark of the present one.
const DEPTH: usize = 4;
/// Columns of the forward's time, and the narrowest table that has them.
const FORWARD: usize = 8;
const WITH_FORWARD: usize = 64;
/// Columns of cost and tokens, and of their quotient.
const FIGURE: usize = 6;
const QUOTIENT: usize = 9;
/// Columns of the note behind a row.
const NOTE: usize = 7;
/// Bars do not grow beyond this many dense steps.
const MOST: f64 = 24.0;

impl Verify<'_> {
    /// A row a depth. Depths that nobody can tell anything of are left out.
    pub(super) fn depths(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let (rows, best) = self.figures.by_depth();
        let forward = if width >= WITH_FORWARD { FORWARD } else { 0 };
        let bar = width.saturating_sub(DEPTH + forward + 2 * FIGURE + QUOTIENT + NOTE).clamp(6, 60);
        let names = ["▇ tokens per cycle  ┃ break-even", "▇ gives  ┃ break-even", "▇ gives ┃ costs", ""];
        let head = format!(
            "{}{}{}{}{}{}",
            left("  d", DEPTH),
            right(if forward > 0 { "T(d+1) " } else { "" }, forward),
            left(names.into_iter().find(|name| text::width(name) <= bar).unwrap_or(""), bar),
            right("cost", FIGURE),
            right("gives", FIGURE),
            right("per step", QUOTIENT),
        );
        let mut lines = vec![Line::from(canvas.span(text::fit(&head, width).into_owned(), Tone::Dim))];
        if self.figures.failure().is_some() {
            lines.push(Line::from(canvas.span("    no figure counts after a failed audit", Tone::Warn)));
            return lines;
        }
        // Rows that nothing is given for, and far-off costs, do not squeeze the others.
        let known = rows.iter().filter_map(|row| Some((row.gives?.0, row.cost?.0)));
        let most = known.fold(2.0, |most: f64, (gives, cost)| most.max(gives).max(cost.min(gives * 3.0)));
        let most = most.min(MOST);
        let now = self.figures.depth_now();
        for row in &rows {
            let marks = (now == Some(row.depth), best == Some(row.depth));
            lines.push(depth_row(canvas, row, forward, (bar, most), marks));
        }
        if rows.is_empty() {
            lines.push(Line::from(canvas.span("    no cycle yet", Tone::Dim)));
        }
        lines
    }
}

fn depth_row(
    canvas: &Canvas<'_>,
    row: &DepthRow,
    forward: usize,
    (bar, most): (usize, f64),
    (now, best): (bool, bool),
) -> Line<'static> {
    let of = |value: Option<(f64, bool)>| figure(value.map(|(v, _)| v), value.is_none_or(|(_, m)| m));
    let rate = row.rate();
    let wins = rate.map(|rate| rate > 1.0);
    let mut spans = vec![
        canvas.span(if now { "▸" } else { " " }, Tone::Key),
        canvas.span(right(&row.depth.to_string(), 2), Tone::Strong),
        canvas.span(" ", Tone::Text),
    ];
    if forward > 0 {
        spans.push(canvas.span(right(&format!("{} ", duration(row.forward)), forward), Tone::Dim));
    }
    spans.extend(gain(canvas, row.gives.map(|g| g.0), row.cost.map(|c| c.0), bar, most));
    let tone = |value: Option<(f64, bool)>| match value {
        Some((_, true)) => Tone::Strong,
        _ => Tone::Dim,
    };
    spans.push(canvas.span(right(&of(row.cost), FIGURE), tone(row.cost)));
    spans.push(canvas.span(right(&of(row.gives), FIGURE), tone(row.gives)));
    let verdict = match wins {
        _ if row.depth == 0 => Tone::Dim,
        Some(true) => Tone::Good,
        Some(false) => Tone::Warn,
        None => Tone::Dim,
    };
    spans.push(canvas.span(right(&times(rate), QUOTIENT), verdict));
    let note = match (now, best) {
        (_, true) => " ◂ best",
        (true, false) => " ◂ now",
        (false, false) => "",
    };
    spans.push(canvas.span(note, Tone::Key));
    Line::from(spans)
}

/// The bar: `▇` up to the line, `█` what is won beyond it, `░` what is missing up to it.
fn gain(
    canvas: &Canvas<'_>,
    gives: Option<f64>,
    cost: Option<f64>,
    columns: usize,
    most: f64,
) -> Vec<Span<'static>> {
    // The line takes a column of its own, so what is won or missing by less than a column is still on its side.
    let column = |value: f64| ((value / most * (columns - 1) as f64).round() as usize).min(columns - 1);
    let known = |value: Option<f64>| value.filter(|value| value.is_finite() && *value >= 0.0);
    let (gives, cost) = (known(gives), known(cost));
    let (bar, line) = (gives.map(column).unwrap_or(0), cost.map(column));
    let Some(line) = line else {
        return vec![canvas.span(left(&"▇".repeat(bar), columns), Tone::Dim)];
    };
    let wins = gives.zip(cost).is_some_and(|(gives, cost)| gives > cost);
    let before = bar.min(line);
    let missing = line - before;
    let beyond = bar.saturating_sub(line).max(usize::from(wins)).min(columns - 1 - line);
    let used = before + missing + 1 + beyond;
    vec![
        canvas.span("▇".repeat(before), Tone::Text),
        canvas.span(if gives.is_some() { "░" } else { " " }.repeat(missing), Tone::Warn),
        canvas.span("┃", Tone::Key),
        canvas.span("█".repeat(beyond), Tone::Good),
        canvas.span(" ".repeat(columns.saturating_sub(used)), Tone::Text),
    ]
}
