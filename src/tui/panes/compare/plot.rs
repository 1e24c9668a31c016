//! Summed times to first token over the turns, and a row for every lane that is compared: where it leads and where it is behind.

use ratatui::layout::Rect;

use super::{Lanes, lane_tone, time};
use crate::tui::panes::plot::window;
use crate::tui::text::{right, width};
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

/// Columns of the axis.
const AXIS: usize = 8;
/// Columns a turn takes at most.
const WIDEST: usize = 8;

/// The chart with its axes.
struct Chart {
    area: Rect,
    /// Columns a turn takes.
    column: usize,
    highest: f64,
}

impl Chart {
    fn row(&self, seconds: f64) -> usize {
        let last = usize::from(self.area.height).saturating_sub(1);
        let share = if self.highest > 0.0 { (seconds / self.highest).clamp(0.0, 1.0) } else { 0.0 };
        last - (share * last as f64).round() as usize
    }
}

/// A mark for each lane that no other has: the first letter of its name, otherwise its number.
fn marks(lanes: &Lanes<'_>) -> Vec<char> {
    let mut marks: Vec<char> = Vec::new();
    for place in 0..lanes.count() {
        let letter = lanes.name(place).chars().next().filter(char::is_ascii_alphanumeric);
        let number = char::from_digit(place as u32 + 1, 10).unwrap_or('?');
        marks.push(letter.filter(|letter| !marks.contains(letter)).unwrap_or(number));
    }
    marks
}

pub(super) fn draw(canvas: &mut Canvas<'_>, lanes: &Lanes<'_>, area: Rect) {
    if area.height == 0 || usize::from(area.width) <= AXIS + 4 {
        return;
    }
    if lanes.turns.is_empty() {
        canvas.put(area, 1, 0, "no turn yet: `n` runs one in every lane, `r` all of them", Tone::Dim);
        return;
    }
    let base = lanes.comparison().base();
    let others: Vec<usize> = (0..lanes.count()).filter(|place| *place != base).collect();
    // Rows below the chart: the turns' numbers, and who leads. The headline stands above it.
    let below = (1 + others.len()).min(usize::from(area.height).saturating_sub(1));
    let height = usize::from(area.height).saturating_sub(below + 1);
    let chart_area = Rect {
        x: area.x + AXIS as u16,
        y: area.y + 1,
        width: area.width - AXIS as u16,
        height: height as u16,
    };
    let turns = lanes.model.ledger().lane(lanes.model.ui.lane).map_or(0, |lane| lane.turns as usize);
    let columns = usize::from(chart_area.width);
    let column = (columns / lanes.turns.len().max(turns).max(1)).clamp(1, WIDEST);
    let shown = window(lanes.turns.len(), columns / column, lanes.at);
    let sum = |place: usize, at: usize| {
        Some(lanes.turns.get(at)?.cells.get(place)?.as_ref()?.ttft_sum_s.as_ref()?.median)
    };
    let highest = (0..lanes.count())
        .flat_map(|place| shown.clone().filter_map(move |at| sum(place, at)))
        .fold(0.0, f64::max);
    let chart = Chart { area: chart_area, column, highest };
    draw_headline(canvas, lanes, area);
    if height > 0 {
        canvas.put(area, 0, 1, &right(&time(Some(highest)), AXIS - 1), Tone::Dim);
        canvas.put(area, 0, height, &right("0", AXIS - 1), Tone::Dim);
    }
    for place in others.iter().copied().chain([base]) {
        let points: Vec<Option<f64>> = shown.clone().map(|at| sum(place, at)).collect();
        draw_line(canvas, &chart, &points, marks(lanes)[place], place);
    }
    draw_crossings(canvas, lanes, &chart, shown.clone(), &others);
    let foot = Rect { y: area.y + 1 + height as u16, height: area.height - 1 - height as u16, ..area };
    draw_numbers(canvas, lanes, &chart, shown.clone(), foot);
    for (row, place) in others.iter().enumerate() {
        draw_lead(canvas, lanes, &chart, shown.clone(), (*place, row + 1), foot);
    }
}

fn draw_headline(canvas: &mut Canvas<'_>, lanes: &Lanes<'_>, area: Rect) {
    let words = "cumulative time to first token ";
    canvas.put(area, 0, 0, words, Tone::Dim);
    let mut used = width(words);
    for (place, mark) in marks(lanes).into_iter().enumerate() {
        let legend = format!(" {mark} {} ", lanes.name(place));
        canvas.put(area, used, 0, &legend, lane_tone(place));
        used += width(&legend);
    }
}

/// A lane's sums: its mark at each turn, dots between them. Where two lanes are at one place, `=`.
fn draw_line(canvas: &mut Canvas<'_>, chart: &Chart, points: &[Option<f64>], mark: char, place: usize) {
    if chart.area.height == 0 {
        return;
    }
    for (index, pair) in points.windows(2).enumerate() {
        let [Some(from), Some(to)] = pair else { continue };
        for step in 1..chart.column {
            let seconds = from + (to - from) * step as f64 / chart.column as f64;
            put(canvas, chart, index * chart.column + step, chart.row(seconds), "·", place);
        }
    }
    for (index, seconds) in points.iter().enumerate() {
        let Some(seconds) = seconds else { continue };
        let mark = mark.to_string();
        put(canvas, chart, index * chart.column, chart.row(*seconds), &mark, place);
    }
}

fn put(canvas: &mut Canvas<'_>, chart: &Chart, column: usize, row: usize, glyph: &str, place: usize) {
    let (Ok(x), Ok(y)) = (u16::try_from(column), u16::try_from(row)) else { return };
    if x >= chart.area.width || y >= chart.area.height {
        return;
    }
    let there = canvas.buffer[(chart.area.x + x, chart.area.y + y)].symbol().to_owned();
    let taken = there != " " && there != "·" && glyph != "·";
    if there != " " && glyph == "·" {
        return;
    }
    let (glyph, tone) = if taken { ("=", Tone::Strong) } else { (glyph, lane_tone(place)) };
    canvas.put(chart.area, column, row, glyph, tone);
}

/// By how much a lane leads at a turn, seconds.
fn lead(lanes: &Lanes<'_>, place: usize, at: usize) -> Option<f64> {
    Some(lanes.turns.get(at)?.cells.get(place)?.as_ref()?.lead_s.as_ref()?.median)
}

/// Marks the turns at which a lane falls behind or takes the lead.
fn draw_crossings(
    canvas: &mut Canvas<'_>,
    lanes: &Lanes<'_>,
    chart: &Chart,
    shown: std::ops::Range<usize>,
    others: &[usize],
) {
    for place in others {
        for at in shown.clone().skip(1) {
            let (Some(before), Some(now)) = (lead(lanes, *place, at - 1), lead(lanes, *place, at)) else {
                continue;
            };
            let (mark, words) = match (before > 0.0, now > 0.0) {
                (true, false) => ("▼", "falls behind"),
                (false, true) if before < 0.0 => ("▲", "leads"),
                _ => continue,
            };
            let x = (at - shown.start) * chart.column;
            let words = format!("{words}: {}", lanes.name(*place));
            // It stands at the top, where the sums of these turns leave room, else at the bottom.
            let (x, words) = placed(mark, &words, x, usize::from(chart.area.width));
            let row =
                usize::from(at * 2 >= lanes.turns.len()) * usize::from(chart.area.height).saturating_sub(1);
            let free = (x..x + width(&words)).all(|x| is_free(canvas, chart, x, row));
            if free {
                let tone = if now > 0.0 { Tone::Good } else { Tone::Warn };
                canvas.put(chart.area, x, row, &words, tone);
            }
        }
    }
}

/// A mark in column `x` of `columns`, its words on the side that has room for them; and where it all begins.
fn placed(mark: &str, words: &str, x: usize, columns: usize) -> (usize, String) {
    let needed = width(words) + 2;
    if x + needed <= columns {
        (x, format!("{mark} {words}"))
    } else if x + 1 >= needed {
        (x + 1 - needed, format!("{words} {mark}"))
    } else {
        (x, mark.to_owned())
    }
}

fn is_free(canvas: &Canvas<'_>, chart: &Chart, column: usize, row: usize) -> bool {
    let (Ok(x), Ok(y)) = (u16::try_from(column), u16::try_from(row)) else { return false };
    x < chart.area.width
        && y < chart.area.height
        && canvas.buffer[(chart.area.x + x, chart.area.y + y)].symbol() == " "
}

fn draw_numbers(
    canvas: &mut Canvas<'_>,
    lanes: &Lanes<'_>,
    chart: &Chart,
    shown: std::ops::Range<usize>,
    foot: Rect,
) {
    canvas.put(foot, 0, 0, "turn", Tone::Dim);
    let mut free = 0;
    for at in shown.clone() {
        let x = (at - shown.start) * chart.column;
        let chosen = lanes.at == Some(at);
        let label = lanes.turns[at].place.label();
        let label = if chosen { format!("▲{label}") } else { label };
        if chosen || x >= free {
            let tone = if chosen { Tone::Key } else { Tone::Dim };
            canvas.put(foot, AXIS + x, 0, &label, tone);
            free = x + width(&label) + 1;
        }
    }
}

/// A row of marks: whether the lane leads at each turn; and by how much at the shown one, where there is room behind the marks.
fn draw_lead(
    canvas: &mut Canvas<'_>,
    lanes: &Lanes<'_>,
    chart: &Chart,
    shown: std::ops::Range<usize>,
    (place, row): (usize, usize),
    foot: Rect,
) {
    let name = crate::tui::text::fit(&lanes.name(place), AXIS - 1).into_owned();
    canvas.put(foot, 0, row, &name, lane_tone(place));
    for at in shown.clone() {
        let (glyph, tone) = match lead(lanes, place, at) {
            None => ("·", Tone::Dim),
            Some(lead) if lead > 0.0 => ("▲", Tone::Good),
            Some(lead) if lead < 0.0 => ("▼", Tone::Warn),
            Some(_) => ("=", Tone::Dim),
        };
        canvas.put(foot, AXIS + (at - shown.start) * chart.column, row, glyph, tone);
    }
    if let Some(lead) = lanes.at.and_then(|at| lead(lanes, place, at)) {
        let words = match lead {
            lead if lead > 0.0 => format!("  leads by {}", time(Some(lead))),
            lead if lead < 0.0 => format!("  behind by {}", time(Some(-lead))),
            _ => "  level".to_owned(),
        };
        let x = AXIS + (shown.len().saturating_sub(1)) * chart.column + 1;
        if x + width(&words) <= usize::from(foot.width) {
            let tone = if lead < 0.0 { Tone::Warn } else { Tone::Text };
            canvas.put(foot, x, row, &words, tone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_stays_in_its_turns_column_whichever_side_its_words_are_on() {
        for (x, columns, whole) in [(0, 20, "▼ behind"), (18, 20, "behind ▼"), (3, 8, "▼")] {
            let (from, words) = placed("▼", "behind", x, columns);
            assert_eq!(words, whole);
            let at = words.chars().position(|c| c == '▼').unwrap();
            assert_eq!(from + at, x, "{words}");
        }
    }
}
