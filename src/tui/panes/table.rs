//! What tables of requests have in common.

use crate::tui::text::{left, right};

/// The columns that fit `room`, in display order: what does not fit is left out from the end of `importance`.
pub(super) fn fitting(widths: &[usize], importance: &[usize], room: usize) -> Vec<usize> {
    let mut used = 0;
    let mut chosen = Vec::new();
    for index in importance {
        if used + widths[*index] + 1 > room {
            break;
        }
        used += widths[*index] + 1;
        chosen.push(*index);
    }
    chosen.sort_unstable();
    chosen
}

/// A value in its column, with the blank behind it.
pub(super) fn padded(value: &str, width: usize, to_the_right: bool) -> String {
    let value = if to_the_right { right(value, width) } else { left(value, width) };
    format!("{value} ")
}

/// The first row shown: the end while following, otherwise wherever keeps the selection in sight.
pub(super) fn first_row(lines: usize, height: usize, selected: Option<usize>, follow: bool) -> usize {
    let last = lines.saturating_sub(height);
    match selected {
        Some(at) if !follow => at.saturating_sub(height / 2).min(last),
        _ => last,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selection_is_always_in_sight() {
        for lines in 0..40 {
            for height in 1..10 {
                for at in 0..lines {
                    let top = first_row(lines, height, Some(at), false);
                    assert!((top..top + height).contains(&at), "{lines} {height} {at}");
                }
            }
        }
    }
}
