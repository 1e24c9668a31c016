//! Slices, publications and what was given up over the engine's time, above the requests that came meanwhile.

use ratatui::text::Line;

use super::{NAMES, View};
use crate::event::Stamp;
use crate::ledger::{JobFacts, RequestFacts};
use crate::tui::panes::plot::EIGHTHS;
use crate::tui::text::{self, clock, duration};
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

/// A part of the engine's time on so many columns.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Span {
    from: u64,
    to: u64,
    columns: usize,
}

impl Span {
    fn length(&self) -> u64 {
        self.to.saturating_sub(self.from).max(1)
    }

    /// The column of an instant; `None` outside.
    fn column(&self, at: Stamp) -> Option<usize> {
        let since = at.0.checked_sub(self.from).filter(|_| at.0 <= self.to)?;
        let column = u128::from(since) * self.columns as u128 / u128::from(self.length());
        Some(usize::try_from(column).unwrap_or(usize::MAX).min(self.columns - 1))
    }

    /// For every column, which share of it `spans` fill, from 0 to 1.
    fn shares(&self, spans: impl Iterator<Item = (Stamp, Stamp)>) -> Vec<f64> {
        let width = self.length() as f64 / self.columns as f64;
        let mut shares = vec![0.0; self.columns];
        for (began, ended) in spans {
            let place = |at: Stamp| (at.0.clamp(self.from, self.to) - self.from) as f64 / width;
            let (first, last) = (place(began), place(ended));
            for (column, share) in shares
                .iter_mut()
                .enumerate()
                .skip(first as usize)
                .take((last as usize + 1).saturating_sub(first as usize))
            {
                let within = last.min(column as f64 + 1.0) - first.max(column as f64);
                *share += within.max(0.0);
            }
        }
        shares
    }
}

impl View<'_> {
    /// The rows over time; nothing before anything was computed.
    pub(super) fn timeline(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let columns = width.saturating_sub(NAMES + 1);
        let Some(job) = self.job.filter(|_| columns > 0) else { return Vec::new() };
        let span = self.span(job, columns);
        let row = |name: &str, cells: Vec<(&'static str, Tone)>| {
            let mut spans = vec![canvas.span(text::left(name, NAMES), Tone::Dim)];
            spans.extend(cells.into_iter().map(|(glyph, tone)| canvas.span(glyph, tone)));
            Line::from(spans)
        };
        vec![
            row("slices", self.slices(&span)),
            row("published", self.published(&span)),
            row("given up", self.given_up(&span)),
            row("requests", self.requests(&span)),
            self.axis(canvas, job, &span),
        ]
    }

    /// Since the job began, all of the run, or the last part of the job's time.
    fn span(&self, job: &JobFacts, columns: usize) -> Span {
        let latest = self.ledger.recovery().jobs().next_back().map(|job| job.id) == Some(job.id);
        let end = job.end.as_ref().filter(|_| !latest).map(|end| end.at);
        let to = end.unwrap_or(self.ledger.now()).0;
        let began = job.began.0.min(to);
        let from = match self.closeness(job) {
            0 => began,
            closeness @ 1.. => to - (to - began) / (1 << closeness.min(super::CLOSEST)),
            _ => 0,
        };
        Span { from, to: to.max(from.saturating_add(1)), columns }
    }

    /// How close the time is looked at. A job that has not run yet has no time of its own.
    fn closeness(&self, job: &JobFacts) -> i8 {
        if job.slices.is_empty() { -1 } else { self.model.ui.closeness }
    }

    fn slices(&self, span: &Span) -> Vec<(&'static str, Tone)> {
        let slices = self.ledger.recovery().jobs().flat_map(|job| &job.slices);
        let shares = span.shares(slices.map(|slice| (slice.began(), slice.at)));
        let cell = |share: f64| match (share * 8.0).ceil() as usize {
            0 => (" ", Tone::Dim),
            eighths => (EIGHTHS[eighths.min(8)], Tone::Suffix),
        };
        shares.into_iter().map(cell).collect()
    }

    fn marks(
        &self,
        span: &Span,
        marks: impl Iterator<Item = (Stamp, (&'static str, Tone))>,
    ) -> Vec<(&'static str, Tone)> {
        let mut cells = vec![(" ", Tone::Dim); span.columns];
        for (at, mark) in marks {
            if let Some(column) = span.column(at) {
                cells[column] = mark;
            }
        }
        cells
    }

    fn published(&self, span: &Span) -> Vec<(&'static str, Tone)> {
        let told = self.ledger.recovery().jobs().flat_map(|job| &job.publications);
        let mark = |holds| if holds { ("●", Tone::Checkpoint) } else { ("!", Tone::Warn) };
        self.marks(span, told.map(|told| (told.at, mark(told.holds()))))
    }

    fn given_up(&self, span: &Span) -> Vec<(&'static str, Tone)> {
        let jobs = || self.ledger.recovery().jobs();
        let retired = jobs().flat_map(|job| &job.retirements).map(|told| (told.at, ("○", Tone::Text)));
        let lowered = jobs().flat_map(|job| &job.lowered).map(|told| (told.at, ("▼", Tone::Warn)));
        let dropped = jobs().filter(|job| job.drop_reason().is_some()).filter_map(|job| job.end.as_ref());
        self.marks(span, retired.chain(lowered).chain(dropped.map(|end| (end.at, ("✗", Tone::Warn)))))
    }

    /// Requests while they run, `▲` where one arrived, `!` where it found a slice in its way.
    fn requests(&self, span: &Span) -> Vec<(&'static str, Tone)> {
        let ended = |request: &RequestFacts| match request.took {
            Some(took) => Stamp(request.arrived_at.0.saturating_add(took.0)),
            None => Stamp(span.to),
        };
        let running = self.ledger.requests().map(|request| (request.arrived_at, ended(request)));
        let shares = span.shares(running.filter(|(_, ended)| ended.0 >= span.from));
        let mut cells: Vec<_> = shares
            .into_iter()
            .map(|share| if share > 0.0 { ("─", Tone::Text) } else { (" ", Tone::Dim) })
            .collect();
        for request in self.ledger.requests() {
            if let Some(column) = span.column(request.arrived_at) {
                let collided = request.delayed.is_some() || cells[column].0 == "!";
                cells[column] = if collided { ("!", Tone::Warn) } else { ("▲", Tone::Key) };
            }
        }
        cells
    }

    /// From when to when, what the marks mean, and how to look closer.
    fn axis(&self, canvas: &Canvas<'_>, job: &JobFacts, span: &Span) -> Line<'static> {
        let part = match self.closeness(job) {
            0 => "since it began".to_owned(),
            closeness @ 1.. => format!("its last 1/{}", 1_u32 << closeness.min(super::CLOSEST)),
            _ => "the whole run".to_owned(),
        };
        let (from, to) = (clock(Stamp(span.from)), clock(Stamp(span.to)));
        let room = span.columns.saturating_sub(text::width(&from) + text::width(&to) + 2);
        let column = duration(Some(crate::event::Nanos(span.length() / span.columns as u64)));
        let forms = [
            format!("{part}, {column} a column · `h` `l` zoom · ! collision ○ live state ✗ job ▼ lost"),
            format!("{part} · `h` `l` zoom · ! collision ○ live state ✗ job ▼ lost"),
            format!("{part} · `h` `l` zoom"),
        ];
        let note = forms.into_iter().find(|note| text::width(note) <= room).unwrap_or_default();
        let gap = room - text::width(&note);
        Line::from(vec![
            canvas.span(text::left("", NAMES), Tone::Dim),
            canvas.span(format!("{from} "), Tone::Text),
            canvas.span(" ".repeat(gap / 2), Tone::Dim),
            canvas.span(note, Tone::Dim),
            canvas.span(" ".repeat(gap - gap / 2), Tone::Dim),
            canvas.span(format!(" {to}"), Tone::Text),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Span = Span { from: 100, to: 200, columns: 10 };

    #[test]
    fn an_instant_has_a_column_within_the_span_and_none_outside() {
        let columns = [99, 100, 109, 110, 199, 200, 201].map(|at| SPAN.column(Stamp(at)));
        assert_eq!(columns, [None, Some(0), Some(0), Some(1), Some(9), Some(9), None]);
    }

    #[test]
    fn a_column_is_filled_by_the_share_of_its_time() {
        let shares = SPAN.shares([(Stamp(95), Stamp(105)), (Stamp(118), Stamp(132))].into_iter());
        let expected = [0.5, 0.2, 1.0, 0.2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        assert!(shares.iter().zip(expected).all(|(a, b): (&f64, f64)| (a - b).abs() < 1e-9), "{shares:?}");
        assert!(SPAN.shares([(Stamp(300), Stamp(400))].into_iter()).iter().all(|share| *share == 0.0));
    }
}
