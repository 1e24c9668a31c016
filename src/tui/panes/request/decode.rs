//! How the reply was decoded, where something was drafted for it.

use ratatui::text::Line;

use super::{Drawing, flow};
use crate::tui::panes::verify::Figures;
use crate::tui::speculation::{depth_mark, one_line};
use crate::tui::text::{UNKNOWN, duration};
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

impl Drawing<'_> {
    /// Drafter, tokens per cycle against their cost, share, and what priming added to the time to the first token.
    pub(super) fn decode(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let Some(speculation) = &self.request.speculation else { return Vec::new() };
        let Some(start) = &speculation.start else { return Vec::new() };
        let Some(figures) = Figures::of(self.model, self.request) else { return Vec::new() };
        let account = figures.account();
        let dim = |words: String| vec![canvas.span(words, Tone::Dim)];
        let depth = depth_mark(start.depth_max, start.controller);
        let mut groups =
            vec![vec![canvas.span(
                format!("{} {depth} {}  ", start.drafter.word(), start.controller.word()),
                Tone::Strong,
            )]];
        if figures.failure().is_some() {
            groups.push(vec![canvas.span("AUDIT FAILED: no speed-up counts  ", Tone::Warn)]);
        } else if let Some(gives) = account.tokens_per_cycle() {
            let number = |value: Option<f64>| value.map_or_else(|| UNKNOWN.to_owned(), |v| format!("{v:.2}"));
            let cost = account.cost_ratio();
            let tone = match cost {
                Some(cost) if gives > cost => Tone::Good,
                Some(_) => Tone::Warn,
                None => Tone::Text,
            };
            groups.push(vec![
                canvas.span(format!("{gives:.2}"), tone),
                canvas.span(" tokens per cycle for ", Tone::Dim),
                canvas.span(number(cost), tone),
                canvas.span(" dense steps  ", Tone::Dim),
            ]);
            if let Some(shared) = figures.shared() {
                groups.push(vec![canvas.span(format!("– measured: {shared}  "), Tone::Warn)]);
            }
            if let Some(share) = account.share() {
                groups.push(dim(format!("share {:.0} %  ", share * 100.0)));
            }
        } else {
            groups.push(dim("no cycle yet  ".to_owned()));
        }
        groups.push(dim(format!("priming {} in ttft  ", duration(Some(start.took)))));
        if let Some(message) = &speculation.ended {
            groups.push(vec![canvas.span(format!("drafting ended: {}  ", one_line(message)), Tone::Warn)]);
        }
        flow(canvas, "decode", groups, width)
    }
}
