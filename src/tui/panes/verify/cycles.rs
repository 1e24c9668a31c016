//! The cycles of a reply, a row each: a bar of what the cycle took, on it and behind it the tokens it gave. Bar and tokens have one scale,
//! dense steps: the n-th token stands where ordinary decoding would have had it. A cycle wins whose tokens reach beyond its bar.

use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::Verify;
use crate::event::{Cycle, DepthDecision, DepthReason};
use crate::ledger::RequestFacts;
use crate::tui::app::Pane;
use crate::tui::panes::table::first_row;
use crate::tui::speculation::one_line;
use crate::tui::text::{self, fit, right, thousands};
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

/// Tokens beyond so many are not on the scale.
const MOST_STEPS: f64 = 24.0;

/// A row of the list.
pub(super) enum Entry<'a> {
    /// A verify cycle, or an ordinary step that a controller chose.
    Cycle(&'a Cycle),
    /// Ordinary steps of a parked sequence.
    Parked {
        /// Place in the reply of their first token.
        first: u64,
        /// How many tokens they gave so far.
        tokens: u64,
        /// The decision that parked it, where it was told.
        decision: Option<&'a DepthDecision>,
    },
}

impl Entry<'_> {
    /// Place in the reply of its first token, from 0.
    pub(super) fn first(&self) -> u64 {
        match self {
            Entry::Cycle(cycle) => cycle.first,
            Entry::Parked { first, .. } => *first,
        }
    }

    /// Tokens it gave.
    pub(super) fn tokens(&self) -> u64 {
        match self {
            Entry::Cycle(cycle) => u64::from(cycle.accepted).saturating_add(1),
            Entry::Parked { tokens, .. } => *tokens,
        }
    }
}

/// The cycles of a reply in order, and between them the spans in which it was parked.
pub(super) fn entries(request: &RequestFacts) -> Vec<Entry<'_>> {
    let Some(speculation) = &request.speculation else { return Vec::new() };
    let mut out = Vec::with_capacity(speculation.cycles.len());
    let parked_at = |from: u64, to: u64| {
        let parks = |decision: &&DepthDecision| {
            decision.reason == DepthReason::Parked && (from..to).contains(&decision.first)
        };
        speculation.decisions.iter().find(parks)
    };
    // What an earlier reply taught a controller may have it begin parked.
    let begins = speculation.decisions.iter().find(|decision| decision.reason == DepthReason::Parked);
    let mut next: Option<u64> = begins
        .map(|decision| decision.first)
        .filter(|first| speculation.cycles.first().is_none_or(|cycle| *first < cycle.first));
    for cycle in &speculation.cycles {
        if let Some(next) = next.filter(|next| *next < cycle.first) {
            let decision = parked_at(next, cycle.first);
            out.push(Entry::Parked { first: next, tokens: cycle.first - next, decision });
        }
        next = Some(cycle.first.saturating_add(u64::from(cycle.accepted)).saturating_add(1));
        out.push(Entry::Cycle(cycle));
    }
    let written = request.output_tokens.unwrap_or(request.tokens.len() as u64);
    if let Some(next) = next.filter(|next| *next < written)
        && let Some(decision) = parked_at(next, u64::MAX)
    {
        out.push(Entry::Parked { first: next, tokens: written - next, decision: Some(decision) });
    }
    out
}

/// Parts of a cycle's time: its name, glyph and tone.
pub(super) const PARTS: [(&str, &str, Tone); 5] = [
    ("draft", "▒", Tone::Prompt),
    ("verify", "█", Tone::Checkpoint),
    ("sample", "▓", Tone::Dim),
    ("rollback", "░", Tone::Suffix),
    ("commit", "▁", Tone::Dim),
];

/// What a cycle took, by [`PARTS`]; `None` where sequences shared its forward.
pub(super) fn parts(cycle: &Cycle) -> Option<[u64; 5]> {
    Some([cycle.draft.0, cycle.verify?.0, cycle.sample.0, cycle.rollback.0, cycle.commit.0])
}

/// How rows are scaled.
struct Scale {
    /// Columns of the bar.
    columns: usize,
    /// Nanoseconds of all columns.
    full: f64,
    /// Nanoseconds of a dense step, where they are known.
    dense: Option<f64>,
}

impl Scale {
    fn column(&self, nanos: f64) -> usize {
        let share = if self.full > 0.0 { nanos / self.full } else { 0.0 };
        // The cast saturates, and what is no number becomes 0.
        ((share * self.columns as f64).round() as usize).min(self.columns)
    }
}

impl Verify<'_> {
    /// The list, the selected row in sight.
    pub(super) fn draw_cycles(&self, canvas: &mut Canvas<'_>, area: Rect) {
        if area.height == 0 {
            return;
        }
        let width = usize::from(area.width);
        let height = usize::from(area.height) - 1;
        let selected = self.selected();
        let top = first_row(self.entries.len(), height, selected, self.model.ui.cycle.is_none());
        canvas.note_page(Pane::Verify, self.entries.len(), height, top);
        let legend = PARTS.iter().flat_map(|(name, glyph, tone)| {
            [canvas.span(format!(" {glyph}"), *tone), canvas.span((*name).to_owned(), Tone::Dim)]
        });
        let head = std::iter::once(canvas.span("  at d".to_owned(), Tone::Dim)).chain(legend);
        let head: Vec<Span<'static>> = head.chain([canvas.span(" ●accepted ○own ", Tone::Dim)]).collect();
        canvas.line(area, 0, &Line::from(head));
        if self.entries.is_empty() {
            canvas.put(area, 1, 1, "no cycle yet", Tone::Dim);
            return;
        }
        let shown = &self.entries[top..self.entries.len().min(top + height)];
        let scale = self.scale(shown, width);
        for (row, entry) in shown.iter().enumerate() {
            let chosen = selected == Some(top + row);
            if chosen {
                canvas.tint(area, row + 1, Tone::Selected);
            }
            let line = match entry {
                Entry::Cycle(cycle) => self.cycle(canvas, cycle, chosen, &scale, width),
                Entry::Parked { first, tokens, decision } => {
                    parked(canvas, *first, *tokens, *decision, chosen, width)
                }
            };
            canvas.line(area, row + 1, &line);
        }
    }

    /// One scale for all rows in sight: bars and tokens fit, but for bars that are far longer than the others.
    fn scale(&self, shown: &[Entry<'_>], width: usize) -> Scale {
        // After a failed audit rows have no scale from which to read how fast it was.
        let dense = self.figures.dense_nanos().filter(|_| self.figures.failure().is_none());
        let columns = (width * 2 / 5).saturating_sub(6).clamp(8, 64);
        let cycles = || {
            shown.iter().filter_map(|entry| match entry {
                Entry::Cycle(cycle) => Some(*cycle),
                Entry::Parked { .. } => None,
            })
        };
        let took = |cycle: &Cycle| cycle.took().map_or(0.0, |took| took.0 as f64);
        let steps = dense.unwrap_or(0.0);
        let tokens = cycles().map(|cycle| steps * (f64::from(cycle.accepted) + 1.0).min(MOST_STEPS));
        let tokens = tokens.fold(0.0, f64::max);
        let mut bars: Vec<f64> = cycles().map(took).collect();
        bars.sort_by(f64::total_cmp);
        let usual = bars.get(bars.len() / 2).copied().unwrap_or(0.0);
        let longest = bars.last().copied().unwrap_or(0.0).min(usual.max(tokens) * 2.0);
        Scale { columns, full: tokens.max(longest), dense }
    }

    fn cycle(
        &self,
        canvas: &Canvas<'_>,
        cycle: &Cycle,
        chosen: bool,
        scale: &Scale,
        width: usize,
    ) -> Line<'static> {
        let mut spans = vec![
            canvas.span(if chosen { "▸" } else { " " }, Tone::Key),
            canvas.span(right(&thousands(cycle.first.saturating_add(1)), 5), Tone::Dim),
            canvas.span(right(&cycle.drafted.to_string(), 3), Tone::Strong),
            canvas.span(" ", Tone::Text),
        ];
        spans.extend(bar(canvas, cycle, scale));
        let cost = cycle.took().zip(scale.dense).map(|(took, dense)| took.0 as f64 / dense);
        let emitted = f64::from(cycle.accepted) + 1.0;
        let (cost_words, tone) = match (cost, cycle.took()) {
            (Some(cost), _) if cost.is_finite() => {
                (super::figure(Some(cost), true), if emitted > cost { Tone::Good } else { Tone::Text })
            }
            _ if self.figures.failure().is_some() => (text::UNKNOWN.to_owned(), Tone::Dim),
            (_, Some(took)) => (text::duration(Some(took)), Tone::Text),
            (_, None) => (text::UNKNOWN.to_owned(), Tone::Dim),
        };
        spans.push(canvas.span(right(&cost_words, 7), tone));
        spans.push(canvas.span(right(&format!("+{}", u64::from(cycle.accepted) + 1), 4), Tone::Strong));
        spans.push(canvas.span("  ", Tone::Text));
        let used: usize = spans.iter().map(Span::width).sum();
        spans.extend(words(canvas, cycle, width.saturating_sub(used)));
        Line::from(spans)
    }
}

/// The bar, with the tokens on it and behind it.
fn bar(canvas: &Canvas<'_>, cycle: &Cycle, scale: &Scale) -> Vec<Span<'static>> {
    let mut cells: Vec<(&'static str, Tone)> = vec![(" ", Tone::Text); scale.columns];
    match parts(cycle) {
        Some(parts) => {
            let mut sum = 0.0;
            let mut from = 0;
            for (nanos, (_, glyph, tone)) in parts.into_iter().zip(PARTS) {
                sum += nanos as f64;
                let to = scale.column(sum).max(from);
                cells[from..to].fill((glyph, tone));
                from = to;
            }
            if sum > scale.full * 1.001
                && let Some(last) = cells.last_mut()
            {
                *last = ("…", Tone::Warn);
            }
        }
        None => {
            let note = format!("– shared by {}", u64::from(cycle.neighbours) + 1);
            return vec![canvas.span(text::left(&note, scale.columns), Tone::Dim)];
        }
    }
    if let Some(dense) = scale.dense {
        for place in 1..=u64::from(cycle.accepted).saturating_add(1).min(scale.columns as u64) {
            let column = scale.column(dense * place as f64).max(1) - 1;
            let own = place > u64::from(cycle.accepted);
            cells[column] = if own { ("○", Tone::Strong) } else { ("●", Tone::Key) };
        }
    }
    let mut spans: Vec<Span<'static>> = Vec::new();
    let mut run = (String::new(), Tone::Text);
    for (glyph, tone) in cells {
        if tone != run.1 && !run.0.is_empty() {
            spans.push(canvas.span(std::mem::take(&mut run.0), run.1));
        }
        run.1 = tone;
        run.0.push_str(glyph);
    }
    spans.push(canvas.span(run.0, run.1));
    spans
}

/// What was accepted, then what was not.
fn words(canvas: &Canvas<'_>, cycle: &Cycle, room: usize) -> Vec<Span<'static>> {
    if let Some(audit) = cycle.audit.as_ref().filter(|audit| !audit.passed) {
        let problem = audit.problem.as_deref().unwrap_or("state differs");
        return vec![
            canvas.span(fit(&format!("AUDIT FAILED: {}", one_line(problem)), room).into_owned(), Tone::Warn),
        ];
    }
    if cycle.drafted == 0 {
        let words = if cycle.depth == 0 { "ordinary step" } else { "nothing to draft" };
        return vec![canvas.span(fit(words, room).into_owned(), Tone::Dim)];
    }
    let accepted = usize::try_from(cycle.accepted).unwrap_or(usize::MAX).min(cycle.proposed.len());
    let (kept, refused) = cycle.proposed.split_at(accepted);
    let (kept, refused) = (one_line(&kept.concat()), one_line(&refused.concat()));
    let mut spans = Vec::new();
    let mut left = room;
    if !kept.is_empty() {
        // What was refused keeps a third of the room where it needs it.
        let most = left.saturating_sub(if refused.is_empty() {
            0
        } else {
            (text::width(&refused) + 3).min(left / 3)
        });
        let kept = fit(&kept, most).into_owned();
        left = left.saturating_sub(text::width(&kept));
        spans.push(canvas.span(kept, Tone::Accepted));
    }
    if !refused.is_empty() && left > 3 {
        spans.push(canvas.span(if accepted == 0 { "✗ " } else { " ✗ " }, Tone::Warn));
        let used = if accepted == 0 { 2 } else { 3 };
        spans.push(canvas.span(fit(&refused, left - used).into_owned(), Tone::Dim));
    }
    spans
}

fn parked(
    canvas: &Canvas<'_>,
    first: u64,
    tokens: u64,
    decision: Option<&DepthDecision>,
    chosen: bool,
    width: usize,
) -> Line<'static> {
    let steps = if tokens == 1 { "step" } else { "steps" };
    let why = match decision {
        Some(decision) if decision.losing_streak > 0 => {
            format!(" after {} losing cycles", decision.losing_streak)
        }
        _ => String::new(),
    };
    let words = format!("━━ parked: {} ordinary {steps}{why} ", thousands(tokens));
    let words = fit(&words, width.saturating_sub(10)).into_owned();
    Line::from(vec![
        canvas.span(if chosen { "▸" } else { " " }, Tone::Key),
        canvas.span(right(&thousands(first.saturating_add(1)), 5), Tone::Dim),
        canvas.span("  P ", Tone::Warn),
        canvas.span(words, Tone::Warn),
    ])
}
