//! How far the job has come: one bar over block ticks, and what it does now.

use ratatui::text::{Line, Span};

use super::{NAMES, View, flow, words};
use crate::ledger::JobFacts;
use crate::tui::recovery::doing;
use crate::tui::text::{self, count, sanitise, thousands};
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

/// Columns that a tick has at least.
const TICK: u64 = 6;

/// Tokens `0..target` on so many columns.
struct Scale {
    target: u64,
    columns: usize,
}

impl Scale {
    /// The columns that `tokens` fill.
    fn at(&self, tokens: u64) -> usize {
        let filled = u128::from(tokens.min(self.target)) * self.columns as u128;
        usize::try_from(filled / u128::from(self.target.max(1))).unwrap_or(self.columns)
    }
}

impl View<'_> {
    /// The bar, its ticks, its figures, and what the job does or waits for.
    pub(super) fn standing(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let mut lines = Vec::new();
        if let Some(unpaid) = self.unpaid() {
            lines.push(Line::from(
                canvas.span(text::fit(&format!(" {unpaid}"), width).into_owned(), Tone::Warn),
            ));
        }
        let Some(job) = self.job else {
            lines.push(Line::from(canvas.span(" no job yet: no debt was taken on", Tone::Text)));
            return lines;
        };
        if let Some(target) = job.target.filter(|target| *target > 0) {
            let scale = Scale { target, columns: width.saturating_sub(NAMES + 2).max(1) };
            lines.push(self.bar(canvas, job, &scale));
            lines.push(self.ticks(canvas, job, &scale));
        }
        lines.extend(self.tokens(canvas, job, width));
        lines.extend(self.now(canvas, job, width));
        lines
    }

    /// `█` restorable before the job, `▓` published by it, `░` computed in live state, `·` still to do.
    fn bar(&self, canvas: &Canvas<'_>, job: &JobFacts, scale: &Scale) -> Line<'static> {
        let committed = job.committed.unwrap_or(0);
        let before = job.committed_at_start.unwrap_or(0).min(committed);
        let processed = job.processed.unwrap_or(committed).max(committed);
        let mut spans = vec![
            canvas.span(text::left(&format!("job {}", job.id.0), NAMES), Tone::Strong),
            canvas.span("│", Tone::Border),
        ];
        let mut from = 0;
        for (until, glyph, tone) in [
            (before, "█", Tone::Prompt),
            (committed, "▓", Tone::Checkpoint),
            (processed, "░", Tone::Suffix),
            (scale.target, "·", Tone::Dim),
        ] {
            let until = scale.at(until).max(from);
            spans.push(canvas.span(glyph.repeat(until - from), tone));
            from = until;
        }
        spans.push(canvas.span("│", Tone::Border));
        Line::from(spans)
    }

    /// A tick for every so many blocks, and where the next request starts.
    fn ticks(&self, canvas: &Canvas<'_>, job: &JobFacts, scale: &Scale) -> Line<'static> {
        let block = self.ledger.run().map_or(0, |run| run.block_tokens).max(1);
        let blocks = scale.target / block;
        let every = TICK.saturating_mul(blocks).div_ceil(scale.columns.max(1) as u64).max(1);
        let mut cells = vec![' '; scale.columns + 1];
        let mut ticks = 0;
        for tick in (0..=blocks).step_by(usize::try_from(every).unwrap_or(usize::MAX)) {
            cells[scale.at(tick * block)] = '┴';
            ticks += 1;
        }
        let mark = shown(job).map(|tokens| scale.at(tokens));
        let part = |range: &[char]| range.iter().collect::<String>();
        let name = match every {
            _ if ticks < 2 => String::new(),
            1 => format!("┴ {block}"),
            every => format!("┴ {every}x{block}"),
        };
        let mut spans: Vec<Span<'static>> = vec![canvas.span(text::left(&name, NAMES), Tone::Dim)];
        match mark {
            Some(at) => {
                spans.push(canvas.span(part(&cells[..at]), Tone::Dim));
                spans.push(canvas.span("▲", Tone::Key));
                spans.push(canvas.span(part(&cells[at + 1..]), Tone::Dim));
            }
            None => spans.push(canvas.span(part(&cells), Tone::Dim)),
        }
        Line::from(spans)
    }

    fn tokens(&self, canvas: &Canvas<'_>, job: &JobFacts, width: usize) -> Vec<Line<'static>> {
        let committed = job.committed.unwrap_or(0);
        let by_job = committed.saturating_sub(job.committed_at_start.unwrap_or(committed));
        let mut groups = vec![
            vec![
                canvas.span(count(job.committed), Tone::Checkpoint),
                canvas.span(format!(" committed ({} by it)  ", thousands(by_job)), Tone::Text),
            ],
            vec![
                canvas.span(count(job.processed), Tone::Strong),
                canvas.span(format!(" processed of {}  ", count(job.target)), Tone::Text),
            ],
        ];
        groups.push(match shown(job) {
            Some(tokens) => {
                let held = committed.saturating_sub(tokens);
                let lag =
                    if held == 0 { String::new() } else { format!(" ({} not shown yet)", thousands(held)) };
                vec![
                    canvas.span("▲ ", Tone::Key),
                    canvas.span(thousands(tokens), Tone::Strong),
                    canvas.span(format!(" the next request starts from{lag}"), Tone::Text),
                ]
            }
            None => words(canvas, "where the next request starts from was not told", Tone::Dim),
        });
        flow(canvas, "tokens", groups, width)
    }

    fn now(&self, canvas: &Canvas<'_>, job: &JobFacts, width: usize) -> Vec<Line<'static>> {
        let tone = match (&job.end, &job.waits) {
            (Some(_), _) if job.drop_reason().is_some() => Tone::Warn,
            (Some(_), _) => Tone::Good,
            (None, Some(_)) => Tone::Strong,
            (None, None) => Tone::Good,
        };
        let detail = job.end.as_ref().and_then(|end| end.detail.as_deref());
        let detail =
            detail.map_or_else(String::new, |detail| format!(" ({})", sanitise(detail).replace('\n', " ")));
        let doing = format!("{}{detail}  ", doing(job, self.ledger.now()));
        let mut groups = vec![words(canvas, doing, tone)];
        if let Some(slice) = job.slices.last().filter(|_| job.end.is_none()) {
            let last = format!(
                "last slice {}–{} in {}",
                thousands(slice.from),
                thousands(slice.to),
                text::duration(Some(slice.took))
            );
            groups.push(words(canvas, last, Tone::Dim));
        }
        flow(canvas, "now", groups, width)
    }
}

/// The checkpoint that the next request of its history is shown.
fn shown(job: &JobFacts) -> Option<u64> {
    job.visible.or(job.committed)
}
