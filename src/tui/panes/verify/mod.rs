//! What speculative decoding costs and gives in one request: whether it wins, a cycle at a time and by depth; how the depth was chosen; what
//! was accepted, last and small. The cycles follow the reply while it is written.

mod calculator;
mod cycles;
mod depth;
mod figures;
mod history;
mod summary;
mod what_if;

use ratatui::layout::Rect;
use ratatui::text::Line;

use super::flow::{Group, NAMES, flow};
use crate::config::DrafterKind;
use crate::event::Identity;
use crate::ledger::RequestFacts;
use crate::tui::app::{Model, Page, Pane};
use crate::tui::sections::{Section, allot};
use crate::tui::speculation::depth_mark;
use crate::tui::text;
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;
use cycles::Entry;
pub(in crate::tui) use figures::{Figures, shared_forwards};

/// The narrowest pane in which cycles stand beside the figures.
const BESIDE: u16 = 110;
/// What the pane's title says: the request, its drafter, and what the device promises.
pub(super) fn title_note(model: &Model, room: usize) -> String {
    let Some(request) = model.selected() else { return String::new() };
    let start = request.speculation.as_ref().and_then(|speculation| speculation.start.as_ref());
    let drafter = start.map(|start| {
        format!(
            "{} {} {}",
            start.drafter.word(),
            depth_mark(start.depth_max, start.controller),
            start.controller.word()
        )
    });
    let identity = model.ledger().run().and_then(|run| match run.identity {
        Identity::Bitwise => Some("greedy replies are dense ones bit for bit"),
        Identity::Tolerance => Some("replies are dense ones within tolerance"),
        Identity::Simulated => Some("simulated times"),
        Identity::Imported => None,
    });
    let turn = format!("{} · turn {}", request.id.0, request.turn);
    let parts = [Some(turn), drafter, identity.map(str::to_owned)];
    text::fit(&parts.into_iter().flatten().collect::<Vec<_>>().join(" · "), room).into_owned()
}

/// The places in the reply at which a cycle, or a parked span, begins: what can be selected.
pub fn places(model: &Model) -> Vec<u64> {
    model.selected().map(cycles::entries).unwrap_or_default().iter().map(Entry::first).collect()
}

/// Whether any drafted token of its reply was accepted.
pub(super) fn has_accepted(request: &RequestFacts) -> bool {
    request.speculation.as_ref().is_some_and(|told| told.cycles.iter().any(|cycle| cycle.accepted > 0))
}

/// Draws the pane.
pub fn draw(canvas: &mut Canvas<'_>, model: &Model, area: Rect) {
    canvas.note_page(Pane::Verify, 0, usize::from(area.height), 0);
    let Some(request) = model.selected() else {
        canvas.put(
            area,
            1,
            0,
            "here: what a verify cycle costs in dense steps, and how many tokens it gives",
            Tone::Dim,
        );
        return;
    };
    let drafted = request.speculation.as_ref().is_some_and(|speculation| speculation.start.is_some());
    let Some(figures) = Figures::of(model, request).filter(|_| drafted) else {
        draw_without(canvas, model, request, area);
        return;
    };
    let view = Verify { model, request, figures, entries: cycles::entries(request) };
    view.draw(canvas, area);
}

/// One request's speculative decoding, ready to be drawn.
struct Verify<'a> {
    model: &'a Model,
    request: &'a RequestFacts,
    figures: Figures<'a>,
    entries: Vec<Entry<'a>>,
}

impl Verify<'_> {
    fn draw(&self, canvas: &mut Canvas<'_>, area: Rect) {
        if self.model.ui.sheet {
            self.draw_sheet(canvas, area);
        } else if area.width >= BESIDE {
            self.draw_beside(canvas, area);
        } else {
            self.draw_below(canvas, area);
        }
    }

    /// All figures below each other, as far down as it was scrolled: what has no room beside the cycles has it here.
    fn draw_sheet(&self, canvas: &mut Canvas<'_>, area: Rect) {
        let columns = usize::from(area.width);
        let parts = [
            self.verdict(canvas, columns),
            self.depths(canvas, columns),
            self.calculator(canvas, columns),
            self.what_if(canvas, columns),
            self.split(canvas, columns),
            self.acceptance(canvas, columns),
            self.history(canvas, columns),
            self.decision(canvas, columns),
        ];
        let lines = parts.concat();
        let (head, rest) = split_top(area, 1);
        let height = usize::from(rest.height);
        let top = Page::top_for(lines.len(), height, self.model.ui.scroll[Pane::Verify.index()]);
        canvas.note_page(Pane::Verify, lines.len(), height, top);
        let end = lines.len().min(top + height);
        let words = format!(
            " all figures: rows {}–{end} of {} · up, down scroll · `w` back to the cycles",
            (top + 1).min(end),
            lines.len()
        );
        put_lines(
            canvas,
            head,
            &[Line::from(canvas.span(text::fit(&words, columns).into_owned(), Tone::Key))],
        );
        put_lines(canvas, rest, &lines[top..end]);
    }

    /// Figures on the left, cycles on the right, the verdict over both.
    fn draw_beside(&self, canvas: &mut Canvas<'_>, area: Rect) {
        let width = usize::from(area.width);
        let head = self.verdict(canvas, width);
        let (top, rest) = split_top(area, head.len());
        put_lines(canvas, top, &head);
        let left_width = (area.width * 9 / 20).clamp(54, 76);
        let left = Rect { width: left_width, ..rest };
        let right = Rect { x: rest.x + left_width + 2, width: rest.width - left_width - 2, ..rest };
        for row in 0..usize::from(rest.height) {
            canvas.put(rest, usize::from(left_width), row, "│", Tone::Border);
        }
        let columns = usize::from(left_width);
        let sections = vec![
            Section::new(0, self.depths(canvas, columns)),
            Section::new(1, self.calculator(canvas, columns)).at_least(3, 7),
            Section::new(2, self.what_if(canvas, columns)).at_least(1, 6),
            Section::new(3, self.split(canvas, columns)).at_least(1, 5),
            Section::new(4, self.acceptance(canvas, columns)),
        ];
        let total: usize = sections.iter().map(Section::len).sum();
        let cut = total > usize::from(left.height);
        let mut figures = allot(sections, usize::from(left.height).saturating_sub(usize::from(cut)));
        if cut {
            figures.push(cut_mark(canvas, total - figures.len(), columns));
        }
        put_lines(canvas, left, &figures);
        let columns = usize::from(right.width);
        let history = self.history(canvas, columns);
        let decision = self.decision(canvas, columns);
        let below = decision.len().min(usize::from(right.height) / 4);
        let (above, foot) = split_top(right, usize::from(right.height) - below);
        put_lines(canvas, foot, &decision[..below]);
        let (curve, list) = split_top(above, history.len().min(usize::from(above.height) / 3));
        put_lines(canvas, curve, &history);
        self.draw_cycles(canvas, list);
    }

    /// All below each other: what decides first, the cycles in what room is left, acceptance last.
    fn draw_below(&self, canvas: &mut Canvas<'_>, area: Rect) {
        let columns = usize::from(area.width);
        let height = usize::from(area.height);
        let cycles = 4.min(height / 4);
        let (decision, accepted) = (self.decision(canvas, columns), self.acceptance(canvas, columns));
        let sections = vec![
            Section::new(0, self.verdict(canvas, columns)).at_least(2, 8),
            Section::new(2, self.depths(canvas, columns)).at_least(6, 6),
            Section::new(4, self.calculator(canvas, columns)).at_least(1, 8),
            Section::new(5, self.what_if(canvas, columns)).at_least(1, 10),
            Section::new(3, self.history(canvas, columns)),
            Section::new(7, self.split(canvas, columns)).at_least(1, 9),
            Section::new(9, accepted.iter().skip(1).cloned().collect()),
        ];
        let total = sections.iter().map(Section::len).sum::<usize>() + decision.len().saturating_sub(1);
        let room = height.saturating_sub(cycles + 2);
        let cut = total > room;
        let above = allot(sections, room.saturating_sub(usize::from(cut)));
        let (top, rest) = split_top(area, above.len());
        put_lines(canvas, top, &above);
        let mut foot: Vec<Line<'static>> = decision.into_iter().take(1).collect();
        foot.extend(accepted.into_iter().take(1));
        if cut {
            foot.push(cut_mark(canvas, total - above.len(), columns));
        }
        let room = usize::from(rest.height).saturating_sub(cycles);
        foot.truncate(room);
        let (list, foot_area) = split_top(rest, usize::from(rest.height) - foot.len());
        self.draw_cycles(canvas, list);
        put_lines(canvas, foot_area, &foot);
    }

    /// The entry that is selected: the latest unless one was chosen.
    fn selected(&self) -> Option<usize> {
        let chosen = self.model.ui.cycle;
        let at = chosen.and_then(|first| self.entries.iter().position(|entry| entry.first() == first));
        at.or(self.entries.len().checked_sub(1))
    }
}

/// A request that nothing drafted for: what would have to be done for something to.
fn draw_without(canvas: &mut Canvas<'_>, model: &Model, request: &RequestFacts, area: Rect) {
    let ended = request.speculation.as_ref().and_then(|speculation| speculation.ended.as_deref());
    let facts = model.ledger().run().and_then(|run| run.speculation.as_ref());
    let mut lines = Vec::new();
    let decoded = request.output_tokens.is_some();
    lines.push(if decoded {
        (format!("turn {} decoded without a drafter: every token was a dense step", request.turn), Tone::Text)
    } else {
        (format!("turn {} drafts nothing", request.turn), Tone::Text)
    });
    if let Some(message) = ended {
        lines.push((format!("drafting ended: {}", text::sanitise(message).replace('\n', " ")), Tone::Warn));
    }
    if let Some(forwards) = shared_forwards(request) {
        let forwards = text::thousands(forwards);
        let words =
            format!("– for a dense step: {forwards} forwards were shared, and a share is no measurement");
        lines.push((words, Tone::Warn));
    } else if let Some(step) = request.ms_per_token() {
        lines.push((format!("a dense step took {step:.2} ms on average"), Tone::Text));
    }
    let by_hand =
        model.ledger().speculation_by_hand().drafter.filter(|drafter| *drafter != DrafterKind::None);
    if let Some(drafter) = by_hand.filter(|_| request.output_tokens.is_some()) {
        let words =
            "is set by hand for requests that arrive from then on; `none` in settings or request beats it";
        lines.push((format!("{} {words}", drafter.word()), Tone::Text));
    }
    lines.push((String::new(), Tone::Text));
    let loaded: Vec<&str> = facts
        .map(|facts| {
            facts.loaded.iter().filter(|drafter| **drafter != DrafterKind::None).map(|d| d.word()).collect()
        })
        .unwrap_or_default();
    let how = match (model.recording.is_some(), loaded.as_slice()) {
        (true, _) => {
            "a recording of `escarp replay --set speculation.drafter=ngram --record FILE` has cycles to show"
                .to_owned()
        }
        (false, []) => {
            "this engine has no drafter; `escarp tui --set speculation.drafter=ngram` starts one with"
                .to_owned()
        }
        (false, loaded) => format!("`d` sets a drafter from the next request on: {}", loaded.join(", ")),
    };
    lines.push((how, Tone::Key));
    lines.push((
        "here then: the cost of a verify cycle in dense steps against the tokens it gives, cycle by cycle"
            .to_owned(),
        Tone::Dim,
    ));
    let columns = usize::from(area.width).saturating_sub(2);
    let mut row = 0;
    for (words, tone) in lines {
        let mut pieces = Vec::new();
        text::wrap_line(&words, columns, &mut pieces);
        for piece in pieces {
            canvas.put(area, 1, row, &piece, tone);
            row += 1;
        }
    }
}

/// That rows were left out, and how they are seen.
fn cut_mark(canvas: &Canvas<'_>, rows: usize, width: usize) -> Line<'static> {
    let rows = match rows {
        1 => "1 row more".to_owned(),
        rows => format!("{rows} rows more"),
    };
    let words = format!("  … {rows}: `w` shows all figures");
    Line::from(canvas.span(text::fit(&words, width).into_owned(), Tone::Key))
}

fn split_top(area: Rect, height: usize) -> (Rect, Rect) {
    let height = u16::try_from(height).unwrap_or(u16::MAX).min(area.height);
    (Rect { height, ..area }, Rect { y: area.y + height, height: area.height - height, ..area })
}

fn put_lines(canvas: &mut Canvas<'_>, area: Rect, lines: &[Line<'static>]) {
    for (row, line) in lines.iter().enumerate().take(usize::from(area.height)) {
        canvas.line(area, row, line);
    }
}

/// `1.37`; `≈1.37` where it was not measured; `–` where nobody knows.
fn figure(value: Option<f64>, measured: bool) -> String {
    match value {
        None => text::UNKNOWN.to_owned(),
        Some(value) if !value.is_finite() => text::UNKNOWN.to_owned(),
        Some(value) if value.abs() >= 1_000.0 => format!("{value:.0}"),
        Some(value) if measured => format!("{value:.2}"),
        Some(value) => format!("≈{value:.2}"),
    }
}

/// `1.81x`.
fn times(value: Option<f64>) -> String {
    match value.filter(|value| value.is_finite()) {
        Some(value) if value < 1_000.0 => format!("{value:.2}x"),
        Some(_) => ">999x".to_owned(),
        None => text::UNKNOWN.to_owned(),
    }
}
