//! Sparse prefill of a request: what admission decided and by what, what the scorer did, and which units are kept, on the axis of the other
//! rows.

use ratatui::layout::Rect;
use ratatui::text::Line;

use super::super::flow::Group;
use super::{Drawing, NAMES, flow};
use crate::event::{Scored, SparseAdmission, SparseVerdict};
use crate::tui::sparse::{fraction, rescore_price, setting, start_words, verdict_words};
use crate::tui::text::{duration, fit, sanitise, thousands};
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

/// Columns of the text on each side of a boundary.
const EXCERPT: usize = 24;

/// What became of the tokens of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::tui) enum Kept {
    /// Restored, or computed before the window.
    Densely,
    /// All of them.
    Whole,
    /// Some of them.
    Partly,
    /// None.
    Dropped,
}

impl Kept {
    /// The glyph and tone of the kept map.
    pub(in crate::tui) fn look(self) -> (&'static str, Tone) {
        match self {
            Kept::Densely => ("─", Tone::Dim),
            Kept::Whole => ("█", Tone::Good),
            Kept::Partly => ("▒", Tone::Good),
            Kept::Dropped => ("·", Tone::Dim),
        }
    }
}

/// What became of tokens `from..to`.
pub(in crate::tui) fn kept_of(scored: &Scored, from: u64, to: u64) -> Kept {
    let window = scored.origin.max(scored.dense_until);
    if to <= window {
        return Kept::Densely;
    }
    let from = from.max(window);
    match scored.kept_between(from, to) {
        0 => Kept::Dropped,
        kept if kept >= to - from => Kept::Whole,
        _ => Kept::Partly,
    }
}

impl Drawing<'_> {
    /// Which tokens the target computes.
    pub(super) fn kept(&self, canvas: &mut Canvas<'_>, area: Rect, at: usize) {
        canvas.put(area, 0, at, "kept", Tone::Dim);
        let Some(scored) = &self.request.scored else { return };
        for column in 0..self.scale.columns {
            let from = self.scale.token(column);
            let to = self.scale.token(column + 1).max(from.saturating_add(1));
            let (glyph, tone) = kept_of(scored, from, to).look();
            canvas.put(area, NAMES + column, at, glyph, tone);
        }
    }

    /// What the scorer restored of its own state, and what it prefilled.
    pub(super) fn draft(&self, canvas: &mut Canvas<'_>, area: Rect, at: usize) {
        canvas.put(area, 0, at, "draft", Tone::Dim);
        let Some(scored) = &self.request.scored else { return };
        let end = scored.origin.saturating_add(scored.scored_tokens);
        let warm = scored.origin.saturating_add(scored.draft_cached_tokens.min(scored.scored_tokens));
        let [from, warm, end] = [scored.origin, warm, end].map(|position| self.scale.column(position));
        canvas.put(area, NAMES + from, at, &"■".repeat(warm.saturating_sub(from)), Tone::Checkpoint);
        let cold = warm.max(from);
        canvas.put(area, NAMES + cold, at, &"░".repeat(end.saturating_sub(cold)), Tone::Suffix);
        if let Some(stored) = scored.draft_stored_tokens {
            let column = self.scale.column(scored.origin.saturating_add(stored));
            canvas.put(area, NAMES + column.saturating_sub(1).max(from), at, "●", Tone::Checkpoint);
        }
    }

    /// What was decided, by which settings, and what the scorer did. A fallback stands alone and first.
    pub(super) fn sparse(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let mut lines = Vec::new();
        if let Some(message) = &self.request.fell_back {
            let words = format!("FELL BACK TO DENSE: {}", sanitise(message).replace('\n', " "));
            let room = width.saturating_sub(NAMES);
            lines.extend(flow(
                canvas,
                "sparse",
                [vec![canvas.span(fit(&words, room).into_owned(), Tone::Warn)]],
                width,
            ));
        }
        let Some(admission) = &self.request.admission else { return lines };
        let name = if lines.is_empty() { "sparse" } else { "" };
        let mut groups = admission_groups(canvas, admission);
        if let Some(scored) = &self.request.scored {
            groups.extend(scored_groups(canvas, scored));
        }
        lines.extend(flow(canvas, name, groups, width));
        lines
    }
}

fn admission_groups(canvas: &Canvas<'_>, admission: &SparseAdmission) -> Vec<Group> {
    let settings = &admission.settings;
    let on = if settings.enabled.value { "on" } else { "off" };
    let words = match admission.verdict {
        // Who switched it off is what a reader wants to know.
        SparseVerdict::Off => setting("dense:", "off", &settings.enabled),
        verdict => format!("{}, {}", verdict_words(verdict), setting("", on, &settings.enabled).trim_start()),
    };
    let tone = if admission.verdict == SparseVerdict::Sparse { Tone::Strong } else { Tone::Text };
    let plain = |words: String| vec![canvas.span(words, Tone::Text)];
    let mut groups = vec![vec![canvas.span(words, tone)]];
    groups.push(plain(format!(
        " · {}",
        setting("threshold", &thousands(settings.threshold.value), &settings.threshold)
    )));
    groups.push(plain(format!(" · {}", setting("keep", &fraction(settings.keep.value), &settings.keep))));
    groups.push(plain(format!(
        " · suffix {}, to score {}",
        thousands(admission.suffix_tokens),
        thousands(admission.to_score_tokens)
    )));
    let [before, after] = [&admission.boundary_before, &admission.boundary_after].map(|text| one_line(text));
    let before: String = {
        let skip = before.chars().count().saturating_sub(EXCERPT);
        before.chars().skip(skip).collect()
    };
    groups.push(vec![
        canvas.span(format!(" · protected {} ", thousands(admission.protected_tokens)), Tone::Text),
        canvas.span(format!("\"{before}"), Tone::Dim),
        canvas.span("│", Tone::Key),
        canvas.span(format!("{}\"", fit(&after, EXCERPT)), Tone::Dim),
    ]);
    groups
}

fn scored_groups(canvas: &Canvas<'_>, scored: &Scored) -> Vec<Group> {
    let (start, cold) = start_words(scored, rescore_price(scored));
    let share = scored.selected_tokens as f64 * 100.0 / scored.scored_tokens.max(1) as f64;
    let stored = scored
        .draft_stored_tokens
        .map_or_else(|| "nothing new".to_owned(), |tokens| format!("up to {}", thousands(tokens)));
    vec![
        vec![canvas.span(format!(" · origin {}", thousands(scored.origin)), Tone::Text)],
        vec![canvas.span(format!(" · scored {}", thousands(scored.scored_tokens)), Tone::Text)],
        vec![
            canvas.span(format!(" · kept {}", thousands(scored.selected_tokens)), Tone::Strong),
            canvas.span(format!(" ({share:.1} %)"), Tone::Dim),
        ],
        vec![canvas.span(
            format!(" · draft cached {}", thousands(scored.draft_cached_tokens)),
            if cold { Tone::Warn } else { Tone::Text },
        )],
        vec![canvas.span(format!(" · {start}"), if cold { Tone::Warn } else { Tone::Dim })],
        vec![
            canvas.span(format!(" · scorer {}", duration(Some(scored.took()))), Tone::Strong),
            canvas.span(
                format!(
                    " (prefill {}, look-ahead of {} {}, scores {})",
                    duration(Some(scored.prefill)),
                    thousands(scored.lookahead_steps),
                    duration(Some(scored.lookahead)),
                    duration(Some(scored.importance))
                ),
                Tone::Dim,
            ),
        ],
        vec![canvas.span(format!(" · draft stored {stored}"), Tone::Dim)],
    ]
}

/// Foreign text on one line, line ends seen.
fn one_line(text: &str) -> String {
    sanitise(text).replace('\n', "↵")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Nanos, ScorerStart};

    fn scored(kept: &[(u64, u64)]) -> Scored {
        Scored {
            origin: 100,
            scored_tokens: 100,
            draft_cached_tokens: 0,
            start: ScorerStart::First,
            draft_stored_tokens: None,
            lookahead_steps: 8,
            prefill: Nanos(0),
            lookahead: Nanos(0),
            importance: Nanos(0),
            unit_tokens: 10,
            unit_scores: Vec::new(),
            selected_tokens: 0,
            kept: kept.to_vec(),
            dense_until: 110,
        }
    }

    #[test]
    fn tokens_are_counted_over_the_dense_part_and_the_kept_ranges() {
        let scored = scored(&[(120, 130), (150, 170), (190, 200)]);
        assert_eq!(scored.kept_between(0, 100), 100, "what is before the window is there");
        assert_eq!(scored.kept_between(100, 200), 10 + 10 + 20 + 10);
        assert_eq!(scored.kept_between(125, 155), 10);
        assert_eq!(scored.kept_between(130, 150), 0);
        assert_eq!(scored.kept_between(160, 160), 0);
    }

    #[test]
    fn a_column_says_what_became_of_its_tokens() {
        let scored = scored(&[(120, 130)]);
        assert_eq!(kept_of(&scored, 90, 105), Kept::Densely);
        assert_eq!(kept_of(&scored, 110, 120), Kept::Dropped);
        assert_eq!(kept_of(&scored, 120, 130), Kept::Whole);
        assert_eq!(kept_of(&scored, 125, 135), Kept::Partly);
    }

    #[test]
    fn ranges_that_make_no_sense_are_counted_all_the_same() {
        let scored = scored(&[(u64::MAX, 0), (5, u64::MAX), (7, 3)]);
        for (from, to) in [(0, u64::MAX), (u64::MAX, 0), (150, 150)] {
            assert!(scored.kept_between(from, to) <= to.saturating_sub(from));
        }
    }
}
