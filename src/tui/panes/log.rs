//! The log: what the program itself reports.

use ratatui::layout::Rect;
use ratatui::text::Line;
use tracing::Level;

use super::events::shifted;
use crate::tui::app::{Model, Page, Pane};
use crate::tui::text::sanitise;
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

/// Draws the pane.
pub fn draw(canvas: &mut Canvas<'_>, model: &Model, area: Rect) {
    let slot = Pane::Log.index();
    let filter = model.ui.filter[slot].to_lowercase();
    let lines = model.log.lines(|line| {
        filter.is_empty()
            || format!("{} {} {}", line.level, line.target, line.text).to_lowercase().contains(&filter)
    });
    let height = usize::from(area.height);
    let top = Page::top_for(lines.len(), height, model.ui.scroll[slot]);
    canvas.note_page(Pane::Log, lines.len(), height, top);
    if lines.is_empty() {
        let words = if filter.is_empty() { "nothing reported yet" } else { "no line matches the filter" };
        canvas.put(area, 1, 0, words, Tone::Dim);
    }
    for (row, line) in lines.iter().skip(top).take(height).enumerate() {
        let tone = match line.level {
            Level::ERROR | Level::WARN => Tone::Warn,
            Level::INFO => Tone::Good,
            _ => Tone::Dim,
        };
        let text = sanitise(&line.text).replace('\n', " ");
        let spans = vec![
            canvas.span(format!("{:5} ", line.level.as_str()), tone),
            canvas.span(format!("{} ", sanitise(&line.target)), Tone::Dim),
            canvas.span(shifted(&text, model.ui.shift).to_owned(), Tone::Text),
        ];
        canvas.line(area, row, &Line::from(spans));
    }
}
