//! The checkpoint over the requests: how far each prompt reached, how much of it was restored, how much had to be computed.
//! A fall is marked where it happened, and its cause is written below.

use ratatui::layout::Rect;

use crate::event::RequestId;
use crate::ledger::RequestFacts;
use crate::tui::app::{Model, Pane};
use crate::tui::text::{self, kilo, right, thousands};
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

/// Columns of the y axis.
const AXIS: usize = 5;
/// Lower blocks by eighths of a cell.
const EIGHTHS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// One request of the chart.
struct Bar {
    id: RequestId,
    turn: u32,
    prompt: u64,
    checkpoint: Option<u64>,
    cliff: bool,
    /// The highest checkpoint so far, before this request.
    best: u64,
}

/// Where the chart stands and how it is scaled.
struct Plot {
    area: Rect,
    highest: u64,
    /// Columns a request takes.
    column: usize,
}

impl Plot {
    /// The height of `tokens`, in eighths of a row.
    fn eighths(&self, tokens: u64) -> u64 {
        let full = u128::from(self.area.height) * 8;
        u64::try_from(u128::from(tokens) * full / u128::from(self.highest.max(1))).unwrap_or(0)
    }

    /// The row in which the level `tokens` lies, from the top.
    fn row(&self, tokens: u64) -> usize {
        let rows = u64::from(self.area.height);
        let from_bottom = self.eighths(tokens).saturating_sub(1) / 8;
        usize::try_from(rows.saturating_sub(1).saturating_sub(from_bottom)).unwrap_or(0)
    }
}

/// Draws the pane.
pub fn draw(canvas: &mut Canvas<'_>, model: &Model, area: Rect) {
    let bars = bars(model);
    let notes = wrapped(notes(model, &bars), area);
    if bars.is_empty() {
        canvas.put(area, 1, 0, "here: how much of each prompt was restored (█)", Tone::Dim);
        canvas.put(area, 1, 1, "and how much had to be computed (░)", Tone::Dim);
        return;
    }
    let below = (notes.len() + 1).min(usize::from(area.height) / 2) as u16;
    let chart = Rect {
        x: area.x + AXIS as u16,
        y: area.y,
        width: area.width.saturating_sub(AXIS as u16),
        height: area.height - below,
    };
    if chart.width == 0 || chart.height == 0 {
        return;
    }
    // Room is kept for the turns to come, so that the chart does not change its scale with every step.
    let to_come = model.ledger.lane(model.ui.lane).map_or(0, |lane| lane.turns as usize);
    let column = (usize::from(chart.width) / bars.len().max(to_come)).clamp(1, 6);
    let fitting = usize::from(chart.width) / column;
    let selected = model.selected().map(|r| r.id);
    let bars = window(&bars, fitting, selected);
    let highest = bars.iter().map(|b| b.prompt.max(b.checkpoint.unwrap_or(0)).max(b.best)).max().unwrap_or(1);
    let plot = Plot { area: chart, highest, column };
    canvas.note_page(Pane::Checkpoint, fitting, fitting, 0);
    draw_axis(canvas, &plot, bars, area);
    for (index, bar) in bars.iter().enumerate() {
        draw_bar(canvas, &plot, index, bar);
    }
    for (index, bar) in bars.iter().enumerate().filter(|(_, bar)| bar.cliff) {
        draw_cliff(canvas, &plot, index, bar, bars);
    }
    draw_numbers(canvas, &plot, bars, selected, area);
    for (row, (note, tone)) in notes.iter().enumerate().take(usize::from(below).saturating_sub(1)) {
        let note = text::fit(note, usize::from(area.width)).into_owned();
        canvas.put(area, 0, usize::from(chart.height) + 1 + row, &note, *tone);
    }
}

fn bars(model: &Model) -> Vec<Bar> {
    let mut best = 0;
    let mut bars = Vec::new();
    for request in model.history() {
        let Some(prompt) = request.prompt_tokens else { continue };
        let checkpoint = request.checkpoint();
        let cliff = model.ledger.checkpoint_step(request).is_some_and(|s| s.cliff);
        bars.push(Bar { id: request.id, turn: request.turn, prompt, checkpoint, cliff, best });
        best = best.max(checkpoint.unwrap_or(0));
    }
    bars
}

/// The part of `bars` that fits: the latest, unless the selected one is older.
fn window(bars: &[Bar], fitting: usize, selected: Option<RequestId>) -> &[Bar] {
    let last = bars.len().saturating_sub(fitting);
    let at = bars.iter().position(|bar| Some(bar.id) == selected).unwrap_or(bars.len());
    let from = last.min(at.saturating_sub(fitting / 4));
    &bars[from..(from + fitting).min(bars.len())]
}

fn draw_axis(canvas: &mut Canvas<'_>, plot: &Plot, bars: &[Bar], area: Rect) {
    let bottom = usize::from(plot.area.height) - 1;
    let mut labels = vec![(0, plot.highest), (bottom, 0)];
    let latest = bars.iter().rev().find_map(|bar| bar.checkpoint);
    let fallen = bars.iter().rev().find(|bar| bar.cliff).map(|bar| bar.best);
    labels.extend([latest, fallen].into_iter().flatten().map(|level| (plot.row(level), level)));
    let mut taken = Vec::new();
    for (row, level) in labels {
        if !taken.contains(&row) {
            taken.push(row);
            canvas.put(area, 0, row, &right(&kilo(level), AXIS - 1), Tone::Dim);
        }
    }
}

fn draw_bar(canvas: &mut Canvas<'_>, plot: &Plot, index: usize, bar: &Bar) {
    let x = index * plot.column;
    // One column between bars keeps requests apart where there is room for it.
    let width = if plot.column >= 3 { plot.column - 1 } else { plot.column };
    let rows = u64::from(plot.area.height);
    let top = plot.eighths(bar.prompt);
    let level = plot.eighths(bar.checkpoint.unwrap_or(0));
    for row in 0..rows {
        let floor = (rows - 1 - row) * 8;
        let (glyph, tone) = if level >= floor + 8 {
            ("█", Tone::Checkpoint)
        } else if level > floor {
            (EIGHTHS[(level - floor) as usize], Tone::Checkpoint)
        } else if top > floor + 8 {
            if bar.checkpoint.is_some() { ("░", Tone::Suffix) } else { ("·", Tone::Dim) }
        } else if top > floor {
            ("▁", Tone::Prompt)
        } else {
            continue;
        };
        canvas.put(plot.area, x, row as usize, &glyph.repeat(width), tone);
    }
}

/// A cliff: `▼` from the lost level down to the new one, and the lost level as a line until it is reached again.
fn draw_cliff(canvas: &mut Canvas<'_>, plot: &Plot, index: usize, bar: &Bar, bars: &[Bar]) {
    let x = index * plot.column;
    let lost = plot.row(bar.best);
    let now = plot.row(bar.checkpoint.unwrap_or(0));
    for row in lost..=now {
        let glyph = if row == now || row == lost { "▼" } else { "┃" };
        canvas.put(plot.area, x, row, glyph, Tone::Warn);
    }
    let reached = bars[index..].iter().position(|b| b.checkpoint.is_some_and(|c| c >= bar.best));
    let end = reached.map_or(bars.len(), |after| index + after);
    let columns = ((end - index) * plot.column).saturating_sub(1);
    canvas.put(plot.area, x + 1, lost, &"━".repeat(columns), Tone::Warn);
}

/// Turn numbers under the chart, as many as fit; the selected one is marked.
fn draw_numbers(canvas: &mut Canvas<'_>, plot: &Plot, bars: &[Bar], selected: Option<RequestId>, area: Rect) {
    let row = usize::from(plot.area.height);
    canvas.put(area, 0, row, "turn", Tone::Dim);
    let chosen = bars.iter().position(|bar| Some(bar.id) == selected);
    let mut spans: Vec<(usize, String, Tone)> = Vec::new();
    if let Some(index) = chosen {
        spans.push((index * plot.column, format!("▲{}", bars[index].turn), Tone::Key));
    }
    for (index, bar) in bars.iter().enumerate() {
        let x = index * plot.column;
        let tone = if bar.cliff { Tone::Warn } else { Tone::Dim };
        let label = bar.turn.to_string();
        let overlaps =
            spans.iter().any(|(at, text, _)| x < at + text::width(text) + 1 && *at < x + label.len() + 1);
        if !overlaps {
            spans.push((x, label, tone));
        }
    }
    for (x, label, tone) in spans {
        canvas.put(plot.area_below(), x, 0, &label, tone);
    }
}

impl Plot {
    /// The row under the chart.
    fn area_below(&self) -> Rect {
        Rect { y: self.area.y + self.area.height, height: 1, ..self.area }
    }
}

/// The notes as lines; what is longer than a line takes another one where the pane is tall enough for it.
fn wrapped(notes: Vec<(String, Tone)>, area: Rect) -> Vec<(String, Tone)> {
    let most = if area.height >= 9 { 2 } else { 1 };
    let columns = usize::from(area.width).max(2);
    let mut out = Vec::new();
    for (note, tone) in notes {
        let mut lines = Vec::new();
        text::wrap_line(&note, columns, &mut lines);
        let rest = lines.split_off(lines.len().min(most)).join(" ");
        if let (false, Some(last)) = (rest.is_empty(), lines.last_mut()) {
            *last = text::fit(&format!("{last} {rest}"), columns).into();
        }
        out.extend(lines.into_iter().map(|line| (line.into_string(), tone)));
    }
    out
}

/// What stands below: the cliff and its cause, then how long the checkpoint has stood still and the debt.
fn notes(model: &Model, bars: &[Bar]) -> Vec<(String, Tone)> {
    let mut out = Vec::new();
    let history = model.history();
    let selected = model.selected();
    let cliffs: Vec<&&RequestFacts> =
        history.iter().filter(|r| bars.iter().any(|b| b.id == r.id && b.cliff)).collect();
    let shown = cliffs.iter().find(|r| Some(r.id) == selected.map(|s| s.id)).or(cliffs.last());
    if let Some(request) = shown {
        let sentence = request.cause_sentence().unwrap_or_default();
        let sentence = text::sanitise(&sentence).replace('\n', " ");
        let others = if cliffs.len() > 1 { format!(" ({} cliffs)", cliffs.len()) } else { String::new() };
        out.push((format!("▼ cliff at turn {}{others}: {sentence}", request.turn), Tone::Warn));
    }
    let standing: Vec<&RequestFacts> =
        history.iter().rev().filter(|r| r.restore.is_some()).copied().collect();
    if let Some(level) = standing.first().and_then(|r| r.checkpoint()) {
        let still = standing.iter().take_while(|r| r.checkpoint() == Some(level)).count();
        let mut words = format!("stands at {}", thousands(level));
        if still > 1 {
            words.push_str(&format!(" for {still} requests"));
        }
        if let Some(debt) = history.iter().rev().find_map(|r| r.canonical_debt()) {
            words.push_str(&format!(" · debt {} tok", thousands(debt)));
        }
        out.push((words, Tone::Dim));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(turn: u32, checkpoint: u64) -> Bar {
        Bar {
            id: RequestId(u64::from(turn)),
            turn,
            prompt: checkpoint + 500,
            checkpoint: Some(checkpoint),
            cliff: false,
            best: 0,
        }
    }

    #[test]
    fn the_window_holds_the_latest_requests_or_the_selected_one() {
        let bars: Vec<Bar> = (1..=50).map(|n| bar(n, 256 * u64::from(n))).collect();
        let turns = |selected: Option<u64>| {
            let shown = window(&bars, 10, selected.map(RequestId));
            (shown[0].turn, shown[shown.len() - 1].turn)
        };
        assert_eq!(turns(None), (41, 50));
        assert_eq!(turns(Some(50)), (41, 50));
        assert_eq!(turns(Some(3)), (1, 10));
        assert_eq!(window(&bars, 100, None).len(), 50);
    }

    #[test]
    fn levels_map_to_rows_without_leaving_the_chart() {
        let plot = Plot { area: Rect::new(0, 0, 10, 7), highest: 60_000, column: 1 };
        assert_eq!(plot.row(60_000), 0);
        assert_eq!(plot.row(0), 6);
        assert_eq!(plot.eighths(30_000), 28);
        let huge = Plot { highest: u64::MAX, ..plot };
        assert_eq!(huge.row(u64::MAX), 0);
    }
}
