//! Lanes side by side.
use ratatui::layout::Rect;
use crate::tui::app::{Model, Pane};
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

pub(super) fn title_note(model: &Model, _room: usize) -> String {
    let names: Vec<&str> = (0..model.runs.count()).map(|place| model.runs.name(place)).collect();
    names.join(" · ")
}

/// Draws the pane.
pub fn draw(canvas: &mut Canvas<'_>, model: &Model, area: Rect) {
    canvas.note_page(Pane::Compare, 0, usize::from(area.height), 0);
    if !model.runs.are_compared() {
        canvas.put(area, 1, 0, "here: lanes of this session side by side, turn by turn", Tone::Dim);
    }
}
