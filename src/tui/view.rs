//! From the model to a frame. Nothing here changes a fact; what a frame put where comes back as a [`Layout`].

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Widget};

use super::app::{Layout, Model, Page, Pane};
use super::panes::{self, transcript::WrapCache};
use super::status::{draw_footer, draw_status, draw_warnings, has_watch_line, warnings};
use super::text;
use super::theme::{Theme, Tone};

/// The smallest terminal anything can be read on.
pub const LEAST: (u16, u16) = (40, 10);
/// From this size on the panes stand side by side.
pub const WORKBENCH: (u16, u16) = (110, 30);

/// A frame being drawn.
pub struct Canvas<'a> {
    /// The cells.
    pub buffer: &'a mut Buffer,
    /// The styles.
    pub theme: Theme,
    /// What goes where.
    pub layout: Layout,
    /// Wrapped text kept between frames.
    pub wrapped: &'a mut WrapCache,
}

impl Canvas<'_> {
    /// The style of `tone`.
    pub fn style(&self, tone: Tone) -> Style {
        self.theme.style(tone)
    }

    /// A piece of text.
    pub fn span<'s>(&self, text: impl Into<std::borrow::Cow<'s, str>>, tone: Tone) -> Span<'s> {
        Span::styled(text, self.style(tone))
    }

    /// Writes `line` at row `row` of `area`, cut at its right edge. Rows outside are ignored.
    pub fn line(&mut self, area: Rect, row: usize, line: &Line<'_>) {
        if let Some(rect) = row_of(area, row) {
            self.buffer.set_line(rect.x, rect.y, line, rect.width);
        }
    }

    /// Writes one piece of text at a column and row of `area`, cut at its right edge.
    pub fn put(&mut self, area: Rect, column: usize, row: usize, text: &str, tone: Tone) {
        let (Some(rect), Ok(column)) = (row_of(area, row), u16::try_from(column)) else { return };
        if column < rect.width {
            let style = self.style(tone);
            self.buffer.set_stringn(rect.x + column, rect.y, text, usize::from(rect.width - column), style);
        }
    }

    /// Adds `tone` to a row's style, over all its columns.
    pub fn tint(&mut self, area: Rect, row: usize, tone: Tone) {
        if let Some(rect) = row_of(area, row) {
            let style = self.style(tone);
            self.buffer.set_style(rect, style);
        }
    }

    /// Notes that `pane` shows `lines` lines, of which `height` fit, from `top`.
    pub fn note_page(&mut self, pane: Pane, lines: usize, height: usize, top: usize) {
        let page = &mut self.layout.pages[pane.index()];
        (page.lines, page.height, page.top) = (lines, height, top);
    }
}

/// Row `row` of `area`, if it has one.
pub fn row_of(area: Rect, row: usize) -> Option<Rect> {
    let row = u16::try_from(row).ok()?;
    (row < area.height && area.width > 0).then(|| Rect { y: area.y + row, height: 1, ..area })
}

/// Draws the whole screen.
pub fn view(model: &Model, theme: Theme, wrapped: &mut WrapCache, buffer: &mut Buffer) -> Layout {
    let area = buffer.area;
    let mut canvas = Canvas { buffer, theme, layout: Layout::default(), wrapped };
    if area.width < LEAST.0 || area.height < LEAST.1 {
        draw_too_small(&mut canvas, area);
    } else {
        draw_screen(&mut canvas, model, area);
    }
    let layout = canvas.layout;
    theme.finish(buffer);
    layout
}

fn draw_too_small(canvas: &mut Canvas<'_>, area: Rect) {
    let message =
        format!("terminal too small: {}x{}, needs {}x{}", area.width, area.height, LEAST.0, LEAST.1);
    let mut lines = Vec::new();
    text::wrap_line(&message, usize::from(area.width), &mut lines);
    for (row, line) in lines.iter().enumerate() {
        canvas.put(area, 0, row, line, Tone::Text);
    }
}

fn draw_screen(canvas: &mut Canvas<'_>, model: &Model, area: Rect) {
    let warnings = warnings(model);
    let shown = warnings.len().min(if area.height < WORKBENCH.1 { 1 } else { 3 });
    let (head, rest) = split_top(area, if has_watch_line(model) { 3 } else { 2 });
    let (banner, rest) = split_top(rest, shown as u16);
    let (body, foot) = split_top(rest, rest.height.saturating_sub(1));

    draw_status(canvas, model, head);
    draw_warnings(canvas, &warnings, banner);
    let single = model.ui.zoom || area.width < WORKBENCH.0 || area.height < WORKBENCH.1;
    canvas.layout.single = single;
    if single {
        draw_pane(canvas, model, model.ui.focus, body);
    } else {
        draw_workbench(canvas, model, body);
    }
    draw_footer(canvas, model, foot);
    if let Some(overlay) = &model.ui.overlay {
        super::overlay::draw(canvas, model, overlay, body, foot);
    }
}

/// Session and checkpoint side by side, the request below them, transcript (or events, or log) at the bottom; or, below them, a tall pane.
fn draw_workbench(canvas: &mut Canvas<'_>, model: &Model, body: Rect) {
    let tall = model.ui.lower_pane().is_tall();
    // What explains a request in many lines takes some of those above it.
    let explains = matches!(model.ui.lower_pane(), Pane::Divergence | Pane::Debt);
    let request_height = match body.height {
        _ if tall => 0,
        44.. if !explains => 18,
        36.. => 14,
        _ => 12,
    };
    let above = body.height - request_height;
    let top_height = if tall {
        above.saturating_sub(24).clamp(9, 16)
    } else if explains {
        above.saturating_sub(18).clamp(9, 24)
    } else {
        (above * 13 / 20).clamp(9, 24)
    };
    let (top, rest) = split_top(body, top_height);
    let (middle, bottom) = split_top(rest, request_height);
    let session_width = panes::session::preferred_width(model).clamp(56, body.width * 3 / 5);
    let (left, right) = split_left(top, session_width);
    draw_pane(canvas, model, Pane::Session, left);
    draw_pane(canvas, model, Pane::Checkpoint, right);
    if !tall {
        draw_pane(canvas, model, Pane::Request, middle);
    }
    draw_pane(canvas, model, model.ui.lower_pane(), bottom);
}

fn split_top(area: Rect, height: u16) -> (Rect, Rect) {
    let height = height.min(area.height);
    (Rect { height, ..area }, Rect { y: area.y + height, height: area.height - height, ..area })
}

fn split_left(area: Rect, width: u16) -> (Rect, Rect) {
    let width = width.min(area.width);
    (Rect { width, ..area }, Rect { x: area.x + width, width: area.width - width, ..area })
}

fn draw_pane(canvas: &mut Canvas<'_>, model: &Model, pane: Pane, area: Rect) {
    if area.width < 4 || area.height < 3 {
        return;
    }
    let focused = model.ui.focus == pane;
    let border = canvas.style(if focused { Tone::BorderFocused } else { Tone::Border });
    let title_tone = if focused { Tone::BorderFocused } else { Tone::Strong };
    let marker = if focused { "▸" } else { " " };
    let name = format!("{marker}{} {} ", pane.key(), pane.word());
    // Two corners, and a blank behind the note.
    let room = usize::from(area.width).saturating_sub(text::width(&name) + 3);
    let mut title = vec![canvas.span(name, title_tone)];
    let note = panes::title_note(model, pane, room);
    if !note.is_empty() {
        title.push(canvas.span(format!("{note} "), Tone::Dim));
    }
    let filter = &model.ui.filter[pane.index()];
    if !filter.is_empty() {
        title.push(canvas.span(format!("filter: {} ", text::sanitise(filter)), Tone::Warn));
    }
    let block = Block::bordered().border_style(border).title(Line::from(title));
    let inner = block.inner(area);
    block.render(area, canvas.buffer);
    canvas.layout.pages[pane.index()] = Page { area, ..Page::default() };
    match pane {
        Pane::Session => panes::session::draw(canvas, model, inner),
        Pane::Checkpoint => panes::checkpoint::draw(canvas, model, inner),
        Pane::Request => panes::request::draw(canvas, model, inner),
        Pane::Transcript => panes::transcript::draw(canvas, model, inner),
        Pane::Events => panes::events::draw(canvas, model, inner),
        Pane::Log => panes::log::draw(canvas, model, inner),
        Pane::Divergence => panes::divergence::draw(canvas, model, inner),
        Pane::Debt => panes::debt::draw(canvas, model, inner),
        Pane::Compare => panes::compare::draw(canvas, model, inner),
        Pane::Verify => panes::verify::draw(canvas, model, inner),
        Pane::Recovery => panes::recovery::draw(canvas, model, inner),
    }
}
