//! Bars over requests.

use std::ops::Range;

use ratatui::layout::Rect;

use crate::tui::text;
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

/// Lower blocks by eighths of a cell.
pub(super) const EIGHTHS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// Where the chart stands and how it is scaled.
pub(super) struct Plot {
    pub(super) area: Rect,
    pub(super) highest: u64,
    /// Columns a request takes.
    pub(super) column: usize,
}

impl Plot {
    /// The height of `tokens`, in eighths of a row.
    pub(super) fn eighths(&self, tokens: u64) -> u64 {
        let full = u128::from(self.area.height) * 8;
        u64::try_from(u128::from(tokens) * full / u128::from(self.highest.max(1))).unwrap_or(0)
    }

    /// The row in which the level `tokens` lies, from the top.
    pub(super) fn row(&self, tokens: u64) -> usize {
        let rows = u64::from(self.area.height);
        let from_bottom = self.eighths(tokens).saturating_sub(1) / 8;
        usize::try_from(rows.saturating_sub(1).saturating_sub(from_bottom)).unwrap_or(0)
    }

    /// The columns a bar fills: one column between bars keeps requests apart where there is room for it.
    pub(super) fn bar_width(&self) -> usize {
        if self.column >= 3 { self.column - 1 } else { self.column }
    }

    /// A plain bar; a value that is not 0 is seen, however small.
    pub(super) fn bar(&self, canvas: &mut Canvas<'_>, index: usize, tokens: Option<u64>, tone: Tone) {
        let (x, width) = (index * self.column, self.bar_width());
        let rows = usize::from(self.area.height);
        let Some(tokens) = tokens else {
            canvas.put(self.area, x, rows.saturating_sub(1), &"·".repeat(width), Tone::Dim);
            return;
        };
        let height = self.eighths(tokens).max(u64::from(tokens > 0));
        for row in 0..rows {
            let floor = (rows - 1 - row) as u64 * 8;
            let eighth = height.saturating_sub(floor).min(8);
            if eighth > 0 {
                canvas.put(self.area, x, row, &EIGHTHS[eighth as usize].repeat(width), tone);
            }
        }
    }

    /// Turn numbers under the chart, as many as fit; the one at `chosen` is marked, the ones that warn are kept before others.
    pub(super) fn numbers(&self, canvas: &mut Canvas<'_>, labels: &[(String, bool)], chosen: Option<usize>) {
        let mut spans: Vec<(usize, String, Tone)> = Vec::new();
        if let Some((index, (label, _))) = chosen.and_then(|index| Some((index, labels.get(index)?))) {
            let (x, size) = (index * self.column, text::width(label));
            // At the right edge the number stands before its mark.
            let marked = match x + size < usize::from(self.area.width) {
                true => (x, format!("▲{label}"), Tone::Key),
                false => (x.saturating_sub(size), format!("{label}▲"), Tone::Key),
            };
            spans.push(marked);
        }
        let warned = labels.iter().enumerate().filter(|(_, (_, warns))| *warns);
        let others = labels.iter().enumerate().filter(|(_, (_, warns))| !*warns);
        for (index, (label, warns)) in warned.chain(others) {
            let x = index * self.column;
            let tone = if *warns { Tone::Warn } else { Tone::Dim };
            let size = text::width(label);
            let overlaps =
                spans.iter().any(|(at, text, _)| x < at + text::width(text) + 1 && *at < x + size + 1);
            if !overlaps {
                spans.push((x, label.clone(), tone));
            }
        }
        let below = Rect { y: self.area.y + self.area.height, height: 1, ..self.area };
        for (x, label, tone) in spans {
            canvas.put(below, x, 0, &label, tone);
        }
    }
}

/// The part of `count` requests that fits: the latest, unless the selected one is older.
pub(super) fn window(count: usize, fitting: usize, selected: Option<usize>) -> Range<usize> {
    let last = count.saturating_sub(fitting);
    let at = selected.unwrap_or(count);
    let from = last.min(at.saturating_sub(fitting / 4));
    from..(from + fitting).min(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_holds_the_latest_requests_or_the_selected_one() {
        assert_eq!(window(50, 10, None), 40..50);
        assert_eq!(window(50, 10, Some(49)), 40..50);
        assert_eq!(window(50, 10, Some(2)), 0..10);
        assert_eq!(window(50, 100, None), 0..50);
        assert_eq!(window(0, 10, None), 0..0);
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
