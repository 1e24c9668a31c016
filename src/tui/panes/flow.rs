//! Rows of figures under a name, as the request pane and the verify pane have them.

use ratatui::text::{Line, Span};

use crate::tui::text::left;
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

/// Columns of the row names on the left.
pub(super) const NAMES: usize = 11;

/// Words that stay together on a line.
pub(super) type Group = Vec<Span<'static>>;

/// Groups of spans on as many lines as they need, at least one, behind the row's name.
pub(super) fn flow(
    canvas: &Canvas<'_>,
    name: &str,
    groups: impl IntoIterator<Item = Group>,
    width: usize,
) -> Vec<Line<'static>> {
    let mut lines = vec![vec![canvas.span(left(name, NAMES), Tone::Dim)]];
    let mut used = NAMES;
    for group in groups {
        // The two blanks that end a group may hang over the edge.
        let size: usize = group.iter().map(Span::width).sum();
        if used + size > width + 2 && used > NAMES {
            lines.push(vec![canvas.span(" ".repeat(NAMES), Tone::Dim)]);
            used = NAMES;
        }
        used += size;
        if let Some(line) = lines.last_mut() {
            line.extend(group);
        }
    }
    lines.into_iter().map(Line::from).collect()
}
