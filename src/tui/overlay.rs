//! What lies over the panes: help, palette, editor, filter line, the questions.

use std::borrow::Cow;

use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Widget};

use super::action::{self, Action, TEXT_KEYS};
use super::app::{Model, Overlay};
use super::ask::Ask;
use super::editor::Editor;
use super::explorer;
use super::line::LineInput;
use super::text::{self, fit, left, sanitise};
use super::theme::Tone;
use super::view::Canvas;
use super::{memory, panes, preview, recovery, sparse, speculation, tier};

/// Draws `overlay` over `body`; the filter line takes the footer's place.
pub fn draw(canvas: &mut Canvas<'_>, model: &Model, overlay: &Overlay, body: Rect, foot: Rect) {
    match overlay {
        Overlay::Help { top } => draw_help(canvas, model, *top, body),
        Overlay::Palette { query, chosen } => draw_palette(canvas, model, query, *chosen, body),
        Overlay::Editor(editor) => draw_editor(canvas, model, editor, body),
        Overlay::Filter { line } => draw_filter(canvas, model, line, foot),
        Overlay::Ask(ask) => draw_ask(canvas, model, ask, body),
        Overlay::Explorer(explorer) => {
            let hint = "arrows turn · Enter sets keep and threshold · 0 as served · Esc leaves";
            let inner = boxed(canvas, body, 124, 25, "what if", hint);
            explorer::draw(canvas, model, explorer, inner);
        }
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
#[derive(Clone)]
enum HelpLine {
    Group(&'static str),
    /// Keys or a word; what it does or means; whether now.
    Entry(String, Cow<'static, str>, bool),
    Blank,
}

/// What the levels of the waterfall mean.
static WATERFALL: &[(&str, &str)] = &[
    ("common prefix", "tokens the prompt shares with the request before it"),
    ("held", "of its whole blocks, what RAM or the SSD tier holds"),
    ("matched", "of these, what the chain of hashes leads to from the start"),
    ("with state", "of these, up to the last block with state in every layer"),
    ("checkpoint", "tokens restored; everything behind it, the suffix, is computed"),
];

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
        lines.push(HelpLine::Entry(action::key_names(action), action.description.into(), enabled));
    }
    lines.push(HelpLine::Blank);
    lines.push(HelpLine::Group("While typing"));
    lines.extend(
        TEXT_KEYS.iter().map(|(keys, words)| HelpLine::Entry((*keys).to_owned(), (*words).into(), true)),
    );
    let glossary = [
        ("The waterfall of a request", WATERFALL, true),
        ("Debt", panes::debt::WORDS, true),
        ("Sparse prefill, where there is a scorer", sparse::WORDS, sparse::obstacle(model.ledger()).is_ok()),
        (
            "Speculative decoding, where there is a drafter",
            speculation::WORDS,
            speculation::obstacle(model.ledger()).is_ok(),
        ),
        (
            "Recovery, where it was told of",
            recovery::WORDS,
            model.ledger().recovery_on().is_some() || !model.ledger().recovery().is_silent(),
        ),
        ("Compare, where there are lanes", panes::compare::WORDS, model.runs.are_compared()),
        ("Memory, where the device counts it", memory::WORDS, model.ledger().device_memory().is_some()),
        ("The SSD tier, where there is one", tier::WORDS, model.ledger().tier().is_some()),
    ];
    for (group, words, exists) in glossary {
        lines.push(HelpLine::Blank);
        lines.push(HelpLine::Group(group));
        lines.extend(
            words.iter().map(|(word, means)| HelpLine::Entry((*word).to_owned(), (*means).into(), exists)),
        );
    }
    lines
}

/// Columns of the widest help.
const HELP: u16 = 100;

/// The lines with what does not fit into `columns` beside the keys continued on lines of its own.
fn wrapped(lines: &[HelpLine], columns: usize) -> Vec<HelpLine> {
    let wrap = |line: &HelpLine| match line {
        HelpLine::Entry(keys, words, enabled) if text::width(words) > columns => {
            let mut pieces = Vec::new();
            text::wrap_line(words, columns.max(2), &mut pieces);
            let names = std::iter::once(keys.clone()).chain(std::iter::repeat(String::new()));
            let entry = |(names, piece): (String, Box<str>)| {
                HelpLine::Entry(names, piece.into_string().into(), *enabled)
            };
            names.zip(pieces).map(entry).collect()
        }
        line => vec![line.clone()],
    };
    lines.iter().flat_map(wrap).collect()
}

fn draw_help(canvas: &mut Canvas<'_>, model: &Model, top: usize, area: Rect) {
    let lines = help_lines(model);
    let columns = usize::from(area.width.min(HELP)).saturating_sub(2);
    let keys = lines
        .iter()
        .map(|line| if let HelpLine::Entry(keys, ..) = line { text::width(keys) } else { 0 })
        .max()
        .unwrap_or(0)
        .min(columns / 3);
    let lines = wrapped(&lines, columns.saturating_sub(keys + 4));
    let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX);
    let inner = boxed(canvas, area, HELP, height, "help", "Up/Down scroll · q closes · dimmed: not now");
    let fitting = usize::from(inner.height);
    canvas.layout.overlay = (lines.len(), fitting);
    let top = top.min(lines.len().saturating_sub(fitting));
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
                    canvas.span(words.clone(), if *enabled { Tone::Text } else { Tone::Dim }),
                ]);
                canvas.line(inner, row, &line);
            }
        }
    }
}

fn draw_palette(canvas: &mut Canvas<'_>, model: &Model, query: &LineInput, chosen: usize, area: Rect) {
    let found = action::search(model, query.text());
    let height = u16::try_from(found.len() + 3).unwrap_or(u16::MAX).clamp(4, 18);
    let inner = boxed(canvas, area, 84, height, "palette", "Enter does it · Up/Down choose · Esc leaves");
    let room = usize::from(inner.width).saturating_sub(1);
    let prompt = Line::from([vec![canvas.span(":", Tone::Key)], typed(canvas, query, room)].concat());
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
    let keys = if action.keys.is_empty() { String::new() } else { action::key_names(action) };
    let room = usize::from(area.width).saturating_sub(text::width(&keys) + 4);
    let words = match enabled {
        Ok(()) => action::label(model, action),
        Err(why) => {
            let label = action::label(model, action);
            // Of a fault its name is enough: what it lacks must be read.
            format!("{} ({why})", label.split(" · ").next().unwrap_or_default())
        }
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

fn draw_editor(canvas: &mut Canvas<'_>, model: &Model, editor: &Editor, area: Rect) {
    let height = (area.height * 3 / 4).max(8);
    let hint = "Ctrl-D submits · Ctrl-T user/tool · Esc leaves";
    let inner = boxed(canvas, area, 100, height, &editor.title(), hint);
    if inner.width == 0 || inner.height < 4 {
        return;
    }
    let text = Rect { height: inner.height - 3, ..inner };
    editor.area.render(text, canvas.buffer);
    let foot = Rect { y: inner.y + text.height, height: 3, ..inner };
    let width = usize::from(inner.width);
    canvas.put(foot, 0, 0, &"─".repeat(width), Tone::Border);
    for (at, line) in preview::lines(canvas, model, &editor.cost, width).iter().enumerate() {
        canvas.line(foot, at + 1, line);
    }
}

/// A line being typed, with its cursor; its beginning is cut where it is too long.
fn typed(canvas: &Canvas<'_>, line: &LineInput, room: usize) -> Vec<Span<'static>> {
    let (before, behind) = line.halves();
    let before = sanitise(before).into_owned();
    let mut from = 0;
    for (at, _) in before.char_indices() {
        from = at;
        if text::width(&before[at..]) < room {
            break;
        }
    }
    vec![
        canvas.span(before[from..].to_owned(), Tone::Text),
        canvas.span("▌", Tone::Key),
        canvas.span(sanitise(behind).into_owned(), Tone::Text),
    ]
}

fn draw_ask(canvas: &mut Canvas<'_>, model: &Model, ask: &Ask, area: Rect) {
    let notes = ask.notes(model);
    let mut below: Vec<(Box<str>, Tone)> = Vec::new();
    let mut wrap = |words: &str, tone| {
        let mut lines = Vec::new();
        text::wrap_line(words, usize::from(area.width.min(90)).saturating_sub(4), &mut lines);
        below.extend(lines.into_iter().map(|line| (line, tone)));
    };
    if let Some(error) = &ask.error {
        wrap(&sanitise(error).replace('\n', " "), Tone::Warn);
    }
    for note in &notes {
        wrap(note, Tone::Dim);
    }
    let height = u16::try_from(below.len() + 3).unwrap_or(u16::MAX);
    let inner = boxed(canvas, area, 90, height, ask.title(), "Enter sets it · Esc leaves");
    let room = usize::from(inner.width).saturating_sub(3);
    let line = [vec![canvas.span(" ▸ ", Tone::Key)], typed(canvas, &ask.line, room)].concat();
    canvas.line(inner, 0, &Line::from(line));
    for (at, (words, tone)) in below.iter().enumerate() {
        canvas.put(inner, 1, at + 1, words, *tone);
    }
}

fn draw_filter(canvas: &mut Canvas<'_>, model: &Model, line: &LineInput, foot: Rect) {
    Clear.render(foot, canvas.buffer);
    let mut spans = vec![canvas.span(format!(" filter {}: ", model.ui.focus.word()), Tone::Key)];
    spans.extend(typed(canvas, line, usize::from(foot.width) / 2));
    spans.push(canvas.span("  Enter keeps it · Esc shows everything", Tone::Dim));
    canvas.line(foot, 0, &Line::from(spans));
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
