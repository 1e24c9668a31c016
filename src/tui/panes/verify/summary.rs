//! The verdict in a sentence, where a cycle's time goes, the calculator, what other depths would have done, and what was accepted.

use ratatui::text::Line;

use super::cycles::{PARTS, parts};
use super::figures::DenseSource;
use super::{Group, Verify, figure, flow, times};
use crate::event::Nanos;
use crate::tui::speculation::{measures_curve, one_line};
use crate::tui::text::{self, UNKNOWN, duration, thousands};
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

impl Verify<'_> {
    /// Whether it wins: tokens per cycle against what a cycle costs, predicted and measured; or why nothing can be said.
    pub(super) fn verdict(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let figures = &self.figures;
        if let Some((cycle, audit)) = figures.failure() {
            let problem = audit.problem.as_deref().unwrap_or("state differs from recomputation");
            let words = format!(
                " AUDIT FAILED at token {}: {}",
                thousands(cycle.first.saturating_add(1)),
                one_line(problem)
            );
            return vec![
                Line::from(canvas.span(text::fit(&words, width).into_owned(), Tone::Warn)),
                Line::from(
                    canvas.span(
                        text::fit(" no speed-up is shown: a speed that cost the state is none", width)
                            .into_owned(),
                        Tone::Warn,
                    ),
                ),
            ];
        }
        let gives = figures.tokens_per_cycle();
        let cost = figures.cost();
        let (word, tone) = match gives.zip(cost) {
            Some((gives, cost)) if gives > cost => ("WINS", Tone::Good),
            Some((gives, cost)) if gives < cost => ("LOSES", Tone::Warn),
            Some(_) => ("BREAKS EVEN", Tone::Strong),
            None => (UNKNOWN, Tone::Dim),
        };
        let sign = match gives.zip(cost) {
            Some((gives, cost)) if gives > cost => ">",
            Some((gives, cost)) if gives < cost => "<",
            _ => "vs",
        };
        let (per_cycle, steps) =
            if width < 90 { ("tok/cycle", "steps") } else { ("tokens per cycle", "dense steps") };
        let mut spans = vec![
            canvas.span(format!(" {word}  "), tone),
            canvas.span(figure(gives, true), Tone::Strong),
            canvas.span(format!(" {per_cycle} "), Tone::Text),
            canvas.span(sign, tone),
            canvas.span(format!(" {}", figure(cost, true)), Tone::Strong),
            canvas.span(format!(" {steps}: "), Tone::Text),
            canvas.span(times(figures.predicted()), tone),
            canvas.span(" predicted, ", Tone::Dim),
        ];
        match figures.measured() {
            Some((measured, against)) => {
                spans.push(canvas.span(times(Some(measured)), Tone::Strong));
                spans.push(canvas.span(format!(" measured (turn {against})"), Tone::Dim));
            }
            None => spans.push(canvas.span(format!("{UNKNOWN} measured"), Tone::Dim)),
        }
        let mut lines = vec![Line::from(spans)];
        lines.extend(self.ground(canvas, width));
        lines
    }

    /// What the verdict rests on: cycles, share, the dense step; or what is missing for one.
    fn ground(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let figures = &self.figures;
        let dim = |words: String| vec![canvas.span(words, Tone::Dim)];
        let mut groups = Vec::new();
        if let Some(others) = figures.shared() {
            groups.push(vec![canvas.span(
                format!(
                    "– cost: {} sequences shared forwards, and a share is no measurement  ",
                    thousands(others + 1)
                ),
                Tone::Warn,
            )]);
        }
        if let Some(message) = self.request.speculation.as_ref().and_then(|s| s.ended.as_deref()) {
            groups.push(vec![canvas.span(format!("drafting ended: {}  ", one_line(message)), Tone::Warn)]);
        }
        groups.push(dim(format!(
            "{} cycles, share {}  ",
            thousands(self.figures.cycle_count() as u64),
            figures.share().map_or_else(|| UNKNOWN.to_owned(), |share| format!("{:.0} %", share * 100.0))
        )));
        match figures.dense() {
            Some(dense) => {
                let from = match dense.from {
                    DenseSource::Own => "its own ordinary steps".to_owned(),
                    DenseSource::Curve => "its verify curve".to_owned(),
                    DenseSource::Request(turn) => format!("turn {turn}, dense"),
                };
                groups.push(dim(format!(
                    "dense step {} ({from})  ",
                    duration(Some(Nanos(dense.nanos as u64)))
                )));
            }
            None => groups
                .push(dim("dense step –: `v` measures it, or let a turn run without a drafter  ".to_owned())),
        }
        if let Some(start) = self.request.speculation.as_ref().and_then(|s| s.start.as_ref())
            && (start.took.0 > 0 || start.primed_tokens > 0)
        {
            groups.push(dim(format!(
                "priming {} in TTFT ({} tokens)  ",
                duration(Some(start.took)),
                thousands(start.primed_tokens)
            )));
        }
        if !figures.has_curve() && !measures_curve(self.model) && self.model.recording.is_none() {
            groups.push(dim("`v` measures the verify curve  ".to_owned()));
        }
        flow(canvas, "", groups, width)
    }

    /// Where the time of a cycle goes.
    pub(super) fn split(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let cycles = self.request.speculation.as_ref().map_or(&[][..], |s| &s.cycles);
        let mut sums = [0u64; 5];
        for parts in cycles.iter().filter_map(parts) {
            for (sum, part) in sums.iter_mut().zip(parts) {
                *sum = sum.saturating_add(part);
            }
        }
        let all: f64 = sums.iter().map(|sum| *sum as f64).sum();
        if all <= 0.0 {
            return Vec::new();
        }
        let groups = sums.iter().zip(PARTS).map(|(sum, (name, glyph, tone))| {
            vec![
                canvas.span(glyph, tone),
                canvas.span(format!(" {name} {:.0} %  ", *sum as f64 * 100.0 / all), Tone::Text),
            ]
        });
        flow(canvas, "cycle time", groups, width)
    }

    /// One dense request and one speculative: what they predict, and whether it held.
    pub(super) fn calculator(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let words = "`u` on a dense and on a speculative turn weighs them".to_owned();
        flow(canvas, "calculator", [vec![canvas.span(words, Tone::Dim)]], width)
    }

    /// What other depths and controllers would have made of the same reply.
    pub(super) fn what_if(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let _ = (canvas, width);
        Vec::new()
    }

    /// Acceptance: by position, in all.
    pub(super) fn acceptance(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let percent = |part: u64, whole: u64| part as f64 * 100.0 / whole as f64;
        let positions = self.figures.positions();
        let mut groups: Vec<Group> = positions
            .iter()
            .enumerate()
            .map(|(at, (tested, accepted))| {
                vec![
                    canvas.span(format!("{}: ", at + 1), Tone::Dim),
                    canvas.span(format!("{:.0} %  ", percent(*accepted, (*tested).max(1))), Tone::Text),
                ]
            })
            .collect();
        let (drafted, tested, accepted) =
            (self.figures.drafted(), self.figures.tested(), self.figures.accepted());
        if tested > 0 {
            let words = format!(
                "all {:.0} % of {} tested, {} drafted",
                percent(accepted, tested),
                thousands(tested),
                thousands(drafted)
            );
            groups.push(vec![canvas.span(words, Tone::Dim)]);
        }
        flow(canvas, "accepted", groups, width)
    }
}
