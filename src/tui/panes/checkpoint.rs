//! The checkpoint over the requests: how far each prompt reached, how much of it was restored, how much had to be computed.
//! A fall is marked where it happened, and its cause is written below. Requests beside the line of history are left out.

use std::collections::{BTreeMap, BTreeSet};

use ratatui::layout::Rect;

use super::plot::{EIGHTHS, Plot, window};
use super::request::culprit_words;
use crate::event::{LaneId, RequestId};
use crate::ledger::{CheckpointPhase, CheckpointStep, Cliff, DebtEntry, RequestFacts};
use crate::tui::app::{Model, Pane};
use crate::tui::text::{self, about, count, kilo, right, thousands};
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

/// Columns of the y axis.
const AXIS: usize = 5;

/// One request of the chart.
struct Bar {
    id: RequestId,
    turn: u32,
    prompt: u64,
    checkpoint: Option<u64>,
    cliff: bool,
    phase: Option<CheckpointPhase>,
    /// The highest checkpoint so far, before this request.
    best: u64,
}

/// Draws the pane.
pub fn draw(canvas: &mut Canvas<'_>, model: &Model, area: Rect) {
    let bars = bars(model);
    let notes = wrapped(notes(model), area);
    if bars.is_empty() {
        canvas.put(area, 1, 0, "here: how much of each prompt was restored (█)", Tone::Dim);
        canvas.put(area, 1, 1, "and how much had to be computed (░)", Tone::Dim);
        return;
    }
    let phases = usize::from(area.height >= 10);
    let below = (notes.len() + 1 + phases).min(usize::from(area.height) / 2) as u16;
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
    // Of those, as many are taken for turns beside the line as there were so far.
    let turns = model.ledger().lane(model.ui.lane).map_or(0, |lane| lane.turns as usize);
    let to_come = turns.saturating_mul(bars.len()).div_ceil(model.history().len().max(1));
    let column = (usize::from(chart.width) / bars.len().max(to_come)).clamp(1, 6);
    let fitting = usize::from(chart.width) / column;
    let selected = model.selected().map(|r| r.id);
    let at = bars.iter().position(|bar| Some(bar.id) == selected);
    let bars = &bars[window(bars.len(), fitting, at)];
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
    canvas.put(area, 0, usize::from(plot.area.height), "turn", Tone::Dim);
    let labels: Vec<(String, bool)> = bars.iter().map(|bar| (bar.turn.to_string(), bar.cliff)).collect();
    plot.numbers(canvas, &labels, bars.iter().position(|bar| Some(bar.id) == selected));
    if phases > 0 {
        draw_phases(canvas, &plot, bars, area);
    }
    for (row, (note, tone)) in notes.iter().enumerate().take(usize::from(below).saturating_sub(1 + phases)) {
        let note = text::fit(note, usize::from(area.width)).into_owned();
        canvas.put(area, 0, usize::from(chart.height) + 1 + phases + row, &note, *tone);
    }
}

fn bars(model: &Model) -> Vec<Bar> {
    let mut best = 0;
    let mut bars = Vec::new();
    let steps: BTreeMap<RequestId, CheckpointStep> =
        model.ledger().checkpoint_steps(model.ui.lane).into_iter().collect();
    let phases: BTreeMap<RequestId, CheckpointPhase> =
        model.ledger().checkpoint_phases(model.ui.lane).into_iter().collect();
    for request in model.history().into_iter().filter(|request| !request.is_side()) {
        let Some(prompt) = request.prompt_tokens else { continue };
        let checkpoint = request.checkpoint();
        let cliff = steps.get(&request.id).is_some_and(|step| step.cliff);
        let phase = phases.get(&request.id).copied();
        bars.push(Bar { id: request.id, turn: request.turn, prompt, checkpoint, cliff, phase, best });
        best = best.max(checkpoint.unwrap_or(0));
    }
    bars
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
    let width = plot.bar_width();
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

/// What the study calls each stretch, in the row below the turn numbers.
fn draw_phases(canvas: &mut Canvas<'_>, plot: &Plot, bars: &[Bar], area: Rect) {
    let row = usize::from(plot.area.height) + 1;
    let mut from = 0;
    while from < bars.len() {
        let phase = bars[from].phase;
        let count = bars[from..].iter().take_while(|bar| bar.phase == phase).count();
        if let Some(phase) = phase {
            // A blank between two stretches; behind the last one there is room.
            let gap = usize::from(from + count < bars.len());
            let room = (count * plot.column).saturating_sub(gap).max(1);
            let word = match room {
                0..=4 => phase.word().chars().take(room).collect(),
                _ => text::fit(phase.word(), room).into_owned(),
            };
            let fell = matches!(phase, CheckpointPhase::Cliff | CheckpointPhase::Latched);
            let tone = if fell { Tone::Warn } else { Tone::Dim };
            canvas.put(area, AXIS + from * plot.column, row, &word, tone);
        }
        from += count;
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

/// What stands below: the cliff and its cause, then how long the checkpoint has stood still and what that costs.
fn notes(model: &Model) -> Vec<(String, Tone)> {
    let mut out = Vec::new();
    let selected = model.selected().map(|request| request.id);
    let cliffs = cliffs(model);
    let shown = cliffs.iter().find(|cliff| Some(cliff.request) == selected).or(cliffs.last());
    if let Some(cliff) = shown {
        let others = if cliffs.len() > 1 { format!(" ({} cliffs)", cliffs.len()) } else { String::new() };
        let turn = model.ledger().request(cliff.request).map_or(0, |request| request.turn);
        let words = cliff_words(model, cliff);
        out.push((format!("▼ cliff at turn {turn}{others}: {words}"), Tone::Warn));
    }
    let account = model.ledger().debt(model.ui.lane);
    let latest = account.iter().rev().find(|entry| entry.pinned_requests > 0);
    out.extend(latest.map(|entry| standing_words(model, entry)));
    out
}

/// `tool schema changed: block 4, written by request 5; …`.
fn cliff_words(model: &Model, cliff: &Cliff) -> String {
    let sentence = model.ledger().request(cliff.request).and_then(RequestFacts::cause_sentence);
    let sentence = sentence.unwrap_or_else(|| cliff.cause.phrase().to_owned());
    let sentence = text::sanitise(&sentence).replace('\n', " ");
    match cliff.block {
        Some(culprit) if !culprit.is_named_in(&sentence) => {
            format!("{sentence} · {}", culprit_words(culprit))
        }
        _ => sentence,
    }
}

/// Where the checkpoint stands, for how long, and what that costs each turn.
fn standing_words(model: &Model, entry: &DebtEntry) -> (String, Tone) {
    let request = model.ledger().request(entry.request);
    let level = request.and_then(RequestFacts::checkpoint);
    let behind = entry.prefix_cache_debt.is_some_and(|tokens| tokens > 0);
    let takes = |seconds: Option<f64>| seconds.map_or_else(String::new, |s| format!(" {}", about(s)));
    let mut words = match entry.pinned_requests {
        pinned if behind => {
            format!("pinned {pinned} request{} at {}", if pinned == 1 { "" } else { "s" }, count(level))
        }
        1 => format!("stands at {}", count(level)),
        still => format!("stands at {} for {still} requests", count(level)),
    };
    match entry.recomputed_tokens.filter(|_| behind) {
        Some(again) => {
            words.push_str(&format!(" · {} tok again{} a turn", thousands(again), takes(entry.recomputed_s)));
        }
        None => {
            let debt = entry.canonical_debt;
            words.push_str(
                &debt.map_or_else(String::new, |debt| format!(" · canonical debt {} tok", thousands(debt))),
            );
        }
    }
    if let Some(total) = entry.prefix_cache_debt.filter(|_| behind) {
        words.push_str(&format!(
            " · {} tok{} since the cliff",
            thousands(total),
            takes(entry.prefix_cache_debt_s)
        ));
    }
    (words, if behind { Tone::Warn } else { Tone::Dim })
}

/// The cliffs of the history in view, those of ancestors before the fork included.
fn cliffs(model: &Model) -> Vec<Cliff> {
    let history: BTreeMap<RequestId, LaneId> =
        model.history().into_iter().map(|request| (request.id, request.lane)).collect();
    let lanes: BTreeSet<LaneId> = history.values().copied().collect();
    let own = |cliff: &Cliff| history.contains_key(&cliff.request);
    let mut cliffs: Vec<Cliff> =
        lanes.into_iter().flat_map(|lane| model.ledger().cliff_list(lane)).filter(own).collect();
    cliffs.sort_by_key(|cliff| cliff.request);
    cliffs
}
