//! The depth over the reply, and what the selected depth was chosen from.

use ratatui::text::Line;

use super::cycles::Entry;
use super::{NAMES, Verify, flow};
use crate::event::{DepthDecision, Nanos};
use crate::tui::speculation::reason_words;
use crate::tui::text::{self, UNKNOWN, duration, thousands};
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

/// The reply's tokens on the columns there are.
struct Axis {
    begins: u64,
    per_column: u64,
    /// Columns in use, at least one.
    used: usize,
}

impl Axis {
    /// Of the tokens `begins..ends` on at most `columns`.
    fn new(begins: u64, ends: u64, columns: usize) -> Axis {
        let span = ends.saturating_sub(begins).max(1);
        let per_column = span.div_ceil(columns.max(1) as u64);
        let used = usize::try_from(span.div_ceil(per_column)).unwrap_or(columns).max(1);
        Axis { begins, per_column, used }
    }

    /// The column of the token at `place`; the nearest where it is not on the axis.
    fn column(&self, place: u64) -> usize {
        let at = place.saturating_sub(self.begins) / self.per_column;
        usize::try_from(at).unwrap_or(usize::MAX).min(self.used - 1)
    }
}

impl Verify<'_> {
    /// The depth of the cycle at each token, `━` where the sequence was parked, `·` for the further tokens of a cycle; and the selected
    /// cycle's place below.
    pub(super) fn history(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let columns = width.saturating_sub(NAMES + 1);
        let tokens = self.entries.iter().map(|entry| entry.first().saturating_add(entry.tokens())).max();
        let Some(tokens) = tokens.filter(|_| columns > 0) else { return Vec::new() };
        let begins = self.entries.first().map_or(0, Entry::first);
        let axis = Axis::new(begins, tokens, columns);
        let mut spans = vec![canvas.span(text::left("depth", NAMES), Tone::Dim)];
        spans.extend(self.depth_cells(&axis).into_iter().map(|(glyph, tone)| canvas.span(glyph, tone)));
        let scale = match axis.per_column {
            1 => String::new(),
            tokens => format!("{} tokens a column", thousands(tokens)),
        };
        let note = [scale, self.parked_words()];
        let note: Vec<String> = note.into_iter().filter(|words| !words.is_empty()).collect();
        let selected = self.selected().map(|at| axis.column(self.entries[at].first()));
        vec![Line::from(spans), below(canvas, selected, &note.join(" · "), columns)]
    }

    fn depth_cells(&self, axis: &Axis) -> Vec<(&'static str, Tone)> {
        let mut cells = vec![("·", Tone::Dim); axis.used];
        for entry in &self.entries {
            let from = axis.column(entry.first());
            match entry {
                Entry::Cycle(cycle) => cells[from] = depth_cell(cycle.drafted),
                Entry::Parked { first, tokens, .. } => {
                    let to = axis.column(first.saturating_add(*tokens).saturating_sub(1));
                    cells[from..=to.max(from)].fill(("━", Tone::Warn));
                }
            }
        }
        cells
    }

    fn parked_words(&self) -> String {
        let parked = self.entries.iter().filter(|entry| matches!(entry, Entry::Parked { .. }));
        let tokens = parked.clone().fold(0u64, |sum, entry| sum.saturating_add(entry.tokens()));
        match parked.count() {
            0 => String::new(),
            1 => format!("━ parked for {} tokens", thousands(tokens)),
            spans => format!("━ parked {spans} times, for {} tokens", thousands(tokens)),
        }
    }

    /// The decision that the selected cycle, or parked span, came from.
    fn chosen_decision(&self) -> Option<&DepthDecision> {
        let entry = &self.entries[self.selected()?];
        if let Entry::Parked { decision, .. } = entry {
            return *decision;
        }
        let decisions = &self.request.speculation.as_ref()?.decisions;
        decisions.iter().rfind(|decision| decision.first == entry.first())
    }

    /// The selected decision: depth and reason, then its inputs.
    pub(super) fn decision(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let Some(decision) = self.chosen_decision() else {
            let words = if self.entries.is_empty() {
                String::new()
            } else {
                "no decision was told for it".to_owned()
            };
            return flow(canvas, "decision", [vec![canvas.span(words, Tone::Dim)]], width);
        };
        let plain = |words: String| vec![canvas.span(words, Tone::Text)];
        let mut groups = vec![
            vec![
                canvas.span(format!("depth {}", decision.depth), Tone::Strong),
                canvas
                    .span(format!(" at token {}: ", thousands(decision.first.saturating_add(1))), Tone::Text),
                canvas.span(reason_words(decision.reason), Tone::Key),
            ],
            plain(format!(" · room {}", thousands(u64::from(decision.room)))),
        ];
        if decision.losing_streak > 0 {
            groups.push(plain(format!(" · losing streak {}", decision.losing_streak)));
        }
        if let Some(cooldown) = decision.cooldown {
            groups.push(plain(format!(" · again in {} steps", thousands(u64::from(cooldown)))));
        }
        let mut lines = flow(canvas, "decision", groups, width);
        let acceptance = decision.acceptance.iter().map(|p| p.map_or_else(dash, |p| format!("{p:.2}")));
        let cost = decision.cost.iter().map(|cost| cost.map_or_else(dash, |cost| self.steps(cost)));
        let best = decision
            .rate
            .iter()
            .enumerate()
            .filter_map(|(depth, rate)| Some((depth, rate.filter(|rate| rate.is_finite())?)))
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(depth, _)| depth);
        let rate = decision.rate.iter().enumerate().map(|(depth, rate)| {
            let mark = if best == Some(depth) { "◂" } else { "" };
            rate.filter(|rate| rate.is_finite()).map_or_else(dash, |rate| format!("{rate:.0}{mark}"))
        });
        let unit = if self.figures.dense_nanos().is_some() { "steps" } else { "time" };
        let counts = self.figures.failure().is_none();
        for (name, unit, values) in [
            ("accepted", "at position 1, 2, …", acceptance.collect::<Vec<_>>()),
            ("costs", &*format!("{unit} at depth 0, 1, …"), cost.collect()),
            ("tok/s", "expected at depth 0, 1, …", rate.collect()),
        ] {
            if !values.is_empty() && (counts || name == "accepted") {
                let values =
                    values.into_iter().map(|value| vec![canvas.span(format!("{value}  "), Tone::Text)]);
                let note = vec![canvas.span(unit.to_owned(), Tone::Dim)];
                lines.extend(
                    flow(canvas, &format!("  {name}"), values.chain([note]), width).into_iter().take(1),
                );
            }
        }
        lines
    }

    /// A cost in dense steps, or as a time where they are unknown.
    fn steps(&self, cost: Nanos) -> String {
        match self.figures.dense_nanos() {
            Some(dense) => super::figure(Some(cost.0 as f64 / dense), true),
            None => duration(Some(cost)),
        }
    }
}

/// The mark of the selected cycle, and the note on the side of it that has room.
fn below(canvas: &Canvas<'_>, mark: Option<usize>, note: &str, columns: usize) -> Line<'static> {
    let (mark, size) = (mark.unwrap_or(0), text::width(note));
    let (before, after) = match () {
        () if size < mark => (text::left(note, mark), String::new()),
        () if mark + 2 + size <= columns => (" ".repeat(mark), format!(" {note}")),
        () => (" ".repeat(mark), String::new()),
    };
    Line::from(vec![
        canvas.span(" ".repeat(NAMES), Tone::Dim),
        canvas.span(before, Tone::Dim),
        canvas.span("▲", Tone::Key),
        canvas.span(after, Tone::Dim),
    ])
}

fn dash() -> String {
    UNKNOWN.to_owned()
}

const DIGITS: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];

/// The depth as a digit; what has two digits is `+`.
fn depth_cell(depth: u32) -> (&'static str, Tone) {
    let digit = usize::try_from(depth).ok().and_then(|depth| DIGITS.get(depth)).copied().unwrap_or("+");
    (digit, if depth == 0 { Tone::Dim } else { Tone::Strong })
}
