//! What lies over the panes: help, palette, editor, filter line, the question before quitting.

use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Widget};

use super::action::{self, Action, TEXT_KEYS};
use super::app::{Model, Overlay};
use super::editor::Editor;
use super::memory;
use super::text::{self, fit, left, sanitise};
use super::theme::Tone;
use super::view::Canvas;

/// Draws `overlay` over `body`; the filter line takes the footer's place.
pub fn draw(canvas: &mut Canvas<'_>, model: &Model, overlay: &Overlay, body: Rect, foot: Rect) {
    match overlay {
        Overlay::Help { top } => draw_help(canvas, model, *top, body),
        Overlay::Palette { query, chosen } => draw_palette(canvas, model, query, *chosen, body),
        Overlay::Editor(editor) => draw_editor(canvas, editor, body),
        Overlay::Filter { text } => draw_filter(canvas, model, text, foot),
        Overlay::ConfirmQuit => draw_confirm(canvas, model, body),
    }
}

/// A framed box of at most `width` by `height` in the middle of `area`; returns its inside.
fn boxed(canvas: &mut Canvas<'_>, area: Rect, width: u16, height: u16, title: &str, hint: &str) -> Rect {
    let width = width.min(area.width);
    let height = height.min(area.height);
    let outer =
        Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    Clear.render(outer, canvas.buffer);
    let block = Block::bordered()
        .border_style(canvas.style(Tone::BorderFocused))
        .title(Line::from(canvas.span(format!(" {title} "), Tone::BorderFocused)))
        .title_bottom(Line::from(canvas.span(format!(" {hint} "), Tone::Dim)));
    let inner = block.inner(outer);
    block.render(outer, canvas.buffer);
    inner
}

/// One line of the help.
enum HelpLine {
    Group(&'static str),
    Entry(String, &'static str, bool),
    Blank,
}

fn help_lines(model: &Model) -> Vec<HelpLine> {
    let mut lines = Vec::new();
    let mut group = "";
    for action in action::existing(model) {
        if action.group != group {
            if !group.is_empty() {
                lines.push(HelpLine::Blank);
            }
            group = action.group;
            lines.push(HelpLine::Group(group));
        }
        let enabled = (action.enabled)(model).is_ok();
        lines.push(HelpLine::Entry(action::key_names(action), action.description, enabled));
    }
    lines.push(HelpLine::Blank);
    lines.push(HelpLine::Group("While typing"));
    lines.extend(TEXT_KEYS.iter().map(|(keys, words)| HelpLine::Entry((*keys).to_owned(), words, true)));
    lines.push(HelpLine::Blank);
    lines.push(HelpLine::Group("Memory, where the device counts it"));
    let counted = model.ledger.device_memory().is_some();
    lines.extend(
        memory::WORDS.iter().map(|(word, means)| HelpLine::Entry((*word).to_owned(), means, counted)),
    );
    lines
}

fn draw_help(canvas: &mut Canvas<'_>, model: &Model, top: usize, area: Rect) {
    let lines = help_lines(model);
    let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX);
    let inner = boxed(canvas, area, 100, height, "help", "Up/Down scroll · q closes · dimmed: not now");
    let fitting = usize::from(inner.height);
    canvas.layout.overlay = (lines.len(), fitting);
    let top = top.min(lines.len().saturating_sub(fitting));
    let keys = lines
        .iter()
        .map(|line| if let HelpLine::Entry(keys, ..) = line { text::width(keys) } else { 0 })
        .max()
        .unwrap_or(0)
        .min(usize::from(inner.width) / 3);
    for (row, line) in lines.iter().skip(top).take(fitting).enumerate() {
        match line {
            HelpLine::Blank => {}
            HelpLine::Group(name) => canvas.put(inner, 1, row, name, Tone::Strong),
            HelpLine::Entry(names, words, enabled) => {
                let line = Line::from(vec![
                    canvas.span(
                        format!("  {}  ", left(names, keys)),
                        if *enabled { Tone::Key } else { Tone::Dim },
                    ),
                    canvas.span(*words, if *enabled { Tone::Text } else { Tone::Dim }),
                ]);
                canvas.line(inner, row, &line);
            }
        }
    }
}

fn draw_palette(canvas: &mut Canvas<'_>, model: &Model, query: &str, chosen: usize, area: Rect) {
    let found = action::search(model, query);
    let height = u16::try_from(found.len() + 3).unwrap_or(u16::MAX).clamp(4, 18);
    let inner = boxed(canvas, area, 84, height, "palette", "Enter does it · Up/Down choose · Esc leaves");
    let prompt = Line::from(vec![
        canvas.span(":", Tone::Key),
        canvas.span(sanitise(query).into_owned(), Tone::Text),
        canvas.span("▌", Tone::Key),
    ]);
    canvas.line(inner, 0, &prompt);
    let rows = usize::from(inner.height).saturating_sub(1);
    canvas.layout.overlay = (found.len(), rows);
    let top = (chosen + 1).saturating_sub(rows);
    if found.is_empty() {
        canvas.put(inner, 1, 1, "no action has these letters", Tone::Dim);
    }
    for (row, (index, action)) in found.iter().enumerate().skip(top).take(rows).enumerate() {
        draw_entry(canvas, model, inner, row + 1, action, index == chosen);
    }
}

fn draw_entry(canvas: &mut Canvas<'_>, model: &Model, area: Rect, row: usize, action: &Action, chosen: bool) {
    let enabled = (action.enabled)(model);
    let tone = if enabled.is_ok() { Tone::Text } else { Tone::Dim };
    let keys = action::key_names(action);
    let room = usize::from(area.width).saturating_sub(text::width(&keys) + 4);
    let words = match enabled {
        Ok(()) => action.description.to_owned(),
        Err(why) => format!("{} ({why})", action.description),
    };
    if chosen {
        canvas.tint(area, row, Tone::Selected);
    }
    let line = Line::from(vec![
        canvas.span(if chosen { "▸ " } else { "  " }, Tone::Key),
        canvas.span(left(&words, room), tone),
        canvas.span(format!(" {keys}"), Tone::Key),
    ]);
    canvas.line(area, row, &line);
}

fn draw_editor(canvas: &mut Canvas<'_>, editor: &Editor, area: Rect) {
    let height = (area.height * 3 / 4).max(8);
    let hint = "Ctrl-D submits · Ctrl-T user/tool · Esc leaves";
    let inner = boxed(canvas, area, 100, height, &editor.title(), hint);
    if inner.width > 0 && inner.height > 0 {
        editor.area.render(inner, canvas.buffer);
    }
}

fn draw_filter(canvas: &mut Canvas<'_>, model: &Model, text: &str, foot: Rect) {
    Clear.render(foot, canvas.buffer);
    let line = Line::from(vec![
        canvas.span(format!(" filter {}: ", model.ui.focus.word()), Tone::Key),
        canvas.span(sanitise(text).into_owned(), Tone::Text),
        canvas.span("▌", Tone::Key),
        canvas.span("  Enter keeps it · Esc shows everything", Tone::Dim),
    ]);
    canvas.line(foot, 0, &line);
}

fn draw_confirm(canvas: &mut Canvas<'_>, model: &Model, area: Rect) {
    let inner = boxed(canvas, area, 46, 4, "quit?", "y quits · n stays");
    let words = match model.running() {
        Some(request) => format!("request {} is still running", request.id.0),
        None => "nothing is running any more".to_owned(),
    };
    let room = usize::from(inner.width).saturating_sub(1);
    canvas.put(inner, 1, 0, &fit(&words, room), Tone::Warn);
    canvas.put(inner, 1, 1, &fit("quitting cancels it", room), Tone::Text);
}
