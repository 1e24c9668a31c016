//! From the model to a frame. Nothing here changes a fact; what a frame put where comes back as a [`Layout`].

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Widget};

use super::action;
use super::app::{Layout, Model, Page, Pane, gate_words};
use super::panes::{self, transcript::WrapCache};
use super::text::{self, count, fit, signed, thousands};
use super::theme::{Theme, Tone};
use crate::event::Phase;
use crate::ledger::RequestFacts;

/// The smallest terminal anything can be read on.
pub const LEAST: (u16, u16) = (40, 10);
/// From this size on the panes stand side by side.
const WORKBENCH: (u16, u16) = (110, 30);

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
    let (head, rest) = split_top(area, 2);
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

/// Session and checkpoint side by side, the request below them, transcript (or events, or log) at the bottom.
fn draw_workbench(canvas: &mut Canvas<'_>, model: &Model, body: Rect) {
    let request_height = if body.height >= 44 { 16 } else { 12 };
    let top_height = ((body.height - request_height) * 11 / 20).clamp(9, 24);
    let (top, rest) = split_top(body, top_height);
    let (middle, bottom) = split_top(rest, request_height);
    let session_width = panes::session::preferred_width(model).clamp(56, body.width * 3 / 5);
    let (left, right) = split_left(top, session_width);
    draw_pane(canvas, model, Pane::Session, left);
    draw_pane(canvas, model, Pane::Checkpoint, right);
    draw_pane(canvas, model, Pane::Request, middle);
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
    let mut title = vec![canvas.span(format!("{marker}{} {} ", pane.digit(), pane.word()), title_tone)];
    let note = panes::title_note(model, pane);
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
    }
}

/// The two lines that are always there: the run and its gate; the request in view and why its checkpoint stands there.
fn draw_status(canvas: &mut Canvas<'_>, model: &Model, area: Rect) {
    let gate = gate_words(model);
    let gate_width = text::width(&gate) + 2;
    let room = usize::from(area.width).saturating_sub(gate_width + 1);
    let run = run_words(model);
    let head = Line::from(vec![
        canvas.span(" escarp ", Tone::Key),
        canvas.span(fit(&run, room.saturating_sub(8)).into_owned(), Tone::Text),
    ]);
    canvas.line(area, 0, &head);
    let column = usize::from(area.width).saturating_sub(gate_width);
    canvas.put(area, column, 0, &format!(" {gate} "), Tone::Selected);
    let line = match model.selected() {
        Some(request) => request_line(canvas, model, request, usize::from(area.width)),
        None => Line::from(canvas.span(format!(" {}", nothing_yet(model)), Tone::Dim)),
    };
    canvas.line(area, 1, &line);
}

/// What to say while there is no request.
pub fn nothing_yet(model: &Model) -> &'static str {
    if model.recording.is_some() {
        "before the first request: `n` goes on"
    } else if model.ledger.failure().is_some() {
        "no request was served"
    } else if model.ledger.run().is_none() {
        "loading the model…"
    } else {
        "no request yet: `n` runs the first turn, `r` all of them, `i` injects one"
    }
}

fn run_words(model: &Model) -> String {
    let lane = if model.ledger.lanes().count() > 1 {
        format!(" · lane {}", model.ui.lane.label())
    } else {
        String::new()
    };
    match model.ledger.run() {
        None => format!("starting{lane}"),
        Some(run) => format!(
            "{}{lane} · {} {} · {} {} · {}",
            text::sanitise(&run.session),
            text::sanitise(&run.model),
            run.precision,
            run.device,
            run.identity.word(),
            run.replay_mode
        ),
    }
}

/// One request on one line. What does not fit is left out from the least important on; checkpoint, suffix, route and cause
/// stay.
fn request_line<'a>(canvas: &Canvas<'_>, model: &Model, request: &RequestFacts, width: usize) -> Line<'a> {
    let step = model.ledger.checkpoint_step(request);
    let cliff = step.is_some_and(|s| s.cliff);
    let warn = |tone| if cliff { Tone::Warn } else { tone };
    let delta = step.map(|s| format!(" {}{}", if s.cliff { "▼" } else { "" }, signed(s.delta)));
    let mut spans = vec![
        canvas.span(format!(" {}{} ", request.lane.label(), request.turn), Tone::Lane(request.lane)),
        canvas.span("ckpt ", Tone::Dim),
        canvas.span(count(request.checkpoint()), Tone::Strong),
        canvas.span(delta.unwrap_or_default(), warn(Tone::Text)),
        canvas.span("  suffix ", Tone::Dim),
        canvas.span(count(request.uncached_suffix), Tone::Strong),
        canvas.span("  ", Tone::Dim),
        canvas.span(request.route.map_or(text::UNKNOWN, |r| r.word()), Tone::Text),
        canvas.span("  ", Tone::Dim),
    ];
    let used: usize = spans.iter().map(|s| s.width()).sum();
    let room = width.saturating_sub(used);
    let prompt = format!("prompt {}  ", count(request.prompt_tokens));
    let cause = cause_words(request, room);
    if text::width(&cause) + text::width(&prompt) <= room {
        spans.insert(1, canvas.span(prompt, Tone::Dim));
    }
    spans.push(canvas.span(cause, warn(Tone::Text)));
    Line::from(spans)
}

/// The cause as a sentence where there is room for it, otherwise as a word.
fn cause_words(request: &RequestFacts, room: usize) -> String {
    if let Some(error) = &request.error {
        return fit(&format!("FAILED: {}", text::sanitise(error)), room).into_owned();
    }
    let Some(restore) = &request.restore else {
        return if request.phase == Phase::Done { text::UNKNOWN.to_owned() } else { "…".to_owned() };
    };
    let sentence = request.cause_sentence().unwrap_or_default();
    let sentence = text::sanitise(&sentence).replace('\n', " ");
    if text::width(&sentence) <= room || room >= 30 {
        fit(&sentence, room).into_owned()
    } else {
        fit(restore.cause.word(), room).into_owned()
    }
}

/// Everything that must not be overlooked, most serious first.
fn warnings(model: &Model) -> Vec<String> {
    let ledger = &model.ledger;
    let mut out = Vec::new();
    if let Some(failure) = ledger.failure() {
        out.push(format!("engine failed: {failure}"));
    }
    out.extend(model.panics.last().map(|panic| format!("a thread panicked: {panic} (the log has more)")));
    if let Some((from, _)) = ledger.lost().first() {
        let lost: u64 =
            ledger.lost().iter().map(|(from, to)| to.saturating_sub(*from).saturating_add(1)).sum();
        out.push(format!("incomplete since event {}: {} events lost", thousands(*from), thousands(lost)));
    }
    if ledger.stale_pages() > 0 {
        out.push(format!("{} reads of stale pages: their requests failed", thousands(ledger.stale_pages())));
    }
    if let Some(cut) = ledger.session_cut() {
        out.push(format!(
            "session cut to {} of {} requests: the next has {} tokens, the context holds {}",
            cut.kept_requests,
            cut.of_requests,
            thousands(cut.prompt_tokens),
            thousands(cut.context_tokens)
        ));
    }
    out
}

fn draw_warnings(canvas: &mut Canvas<'_>, warnings: &[String], area: Rect) {
    for (row, warning) in warnings.iter().take(usize::from(area.height)).enumerate() {
        let more = warnings.len() - usize::from(area.height);
        let tail = if row + 1 == usize::from(area.height) && more > 0 {
            format!(" (and {more} more)")
        } else {
            String::new()
        };
        let warning = text::sanitise(warning).replace('\n', " ");
        let room = usize::from(area.width).saturating_sub(3 + text::width(&tail));
        canvas.put(area, 0, row, &format!(" ! {}{tail}", fit(&warning, room)), Tone::Warn);
    }
}

/// Hints for the actions that make sense now, or the message of the moment.
fn draw_footer(canvas: &mut Canvas<'_>, model: &Model, area: Rect) {
    if let Some(toast) = &model.ui.toast {
        let tone = if toast.warning { Tone::Warn } else { Tone::Good };
        let message = text::sanitise(&toast.text).replace('\n', " ");
        canvas.put(area, 1, 0, &fit(&message, usize::from(area.width).saturating_sub(2)), tone);
        return;
    }
    let mut used = 1;
    let limit = usize::from(area.width);
    let ends = |id| matches!(id, action::ActionId::Help | action::ActionId::Palette | action::ActionId::Back);
    let hints: Vec<_> = action::existing(model)
        .filter(|a| !a.hint.is_empty() && (a.enabled)(model).is_ok())
        .map(|a| (a.keys[0].name(), hint_words(model, a), ends(a.id)))
        .collect();
    let size = |key: &str, words: &str| key.len() + text::width(words) + 3;
    let mut reserve: usize = hints.iter().filter(|h| h.2).map(|h| size(&h.0, h.1)).sum();
    let views = "1-6 views";
    if canvas.layout.single {
        canvas.put(area, used, 0, "1-6", Tone::Key);
        canvas.put(area, used + 4, 0, "views", Tone::Dim);
        used += views.len() + 2;
    }
    for (key, words, is_end) in &hints {
        let size = size(key, words);
        if *is_end {
            reserve -= size;
        }
        if used + size + reserve > limit + 2 {
            continue;
        }
        canvas.put(area, used, 0, key, Tone::Key);
        canvas.put(area, used + key.len() + 1, 0, words, Tone::Dim);
        used += size;
    }
}

fn hint_words(model: &Model, action: &action::Action) -> &'static str {
    use crate::event::Gate;
    match (action.id, model.ledger.gate()) {
        (action::ActionId::Pause, Some((Gate::Paused | Gate::AfterPhase, _))) => "go on",
        (action::ActionId::Back, _) if model.ui.zoom => "back",
        _ => action.hint,
    }
}
