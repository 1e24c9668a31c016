//! The verdict in a sentence, where a cycle's time goes, the calculator, what other depths would have done, and what was accepted.

use ratatui::text::Line;

use super::cycles::PARTS;
use super::{Group, Verify, figure, flow, times};
use crate::decode::economics::ratio;
use crate::ledger::AuditVerdict;
use crate::tui::sparse::who;
use crate::tui::speculation::{measures_curve, one_line};
use crate::tui::text::{self, UNKNOWN, duration, thousands};
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

impl Verify<'_> {
    /// Whether it wins: tokens per cycle against what a cycle costs, predicted and measured; or why nothing can be said.
    pub(super) fn verdict(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let figures = &self.figures;
        if let Some(failure) = figures.failure() {
            let words = format!(
                " AUDIT FAILED at token {}: {}",
                thousands(failure.first.saturating_add(1)),
                one_line(&failure.problem)
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
        let (gives, cost) = (figures.account().tokens_per_cycle(), figures.account().cost_ratio());
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
        if let Some(shared) = figures.shared() {
            let words = format!("– measured: {shared}, and a share is no measurement  ");
            groups.push(vec![canvas.span(words, Tone::Warn)]);
        }
        if let Some(message) = self.request.speculation.as_ref().and_then(|s| s.ended.as_deref()) {
            groups.push(vec![canvas.span(format!("drafting ended: {}  ", one_line(message)), Tone::Warn)]);
        }
        groups.push(dim(format!(
            "{} cycles, share {}  ",
            thousands(figures.account().counters.cycles),
            percent(figures.account().share())
        )));
        match figures.account().dense().zip(figures.dense_words()) {
            Some((dense, from)) => {
                groups.push(dim(format!("dense step {:.2} ms ({from})  ", dense.ms)));
                if figures.measured().is_none()
                    && figures.shared().is_none()
                    && self.request.output_tokens.is_some()
                {
                    groups.push(dim("a dense turn would measure it: `u` picks one  ".to_owned()));
                }
            }
            None => groups
                .push(dim("dense step –: `v` measures it, or let a turn run without a drafter  ".to_owned())),
        }
        if let AuditVerdict::Passed { cycles, how } = &figures.account().audit {
            let words = format!("audit passed in {} cycles ({})  ", thousands(*cycles), how.word());
            groups.push(vec![canvas.span(words, Tone::Good)]);
        }
        if !figures.has_curve() && !measures_curve(self.model) && self.model.recording.is_none() {
            groups.push(dim("`v` measures the verify curve  ".to_owned()));
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
        if let Some(start) = self.request.speculation.as_ref().and_then(|s| s.start.as_ref()) {
            let [drafter, depth, controller] = &start.set_by;
            let (drafter, depth, controller) = (who(drafter), who(depth), who(controller));
            groups.push(dim(format!("set: drafter {drafter}, depth {depth}, controller {controller}  ")));
        }
        flow(canvas, "", groups, width)
    }

    /// Where the time of a cycle goes.
    pub(super) fn split(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let Some(time) = self.figures.account().time else { return Vec::new() };
        let all = time.total().0 as f64;
        let groups = time.parts().into_iter().zip(PARTS).map(|((name, part), (_, glyph, tone))| {
            let share = percent(ratio(part.0 as f64, all));
            vec![canvas.span(glyph, tone), canvas.span(format!(" {name} {share}  "), Tone::Text)]
        });
        let experts = self.figures.account().experts.map(|experts| {
            let words = format!(
                "experts {:.1} of {} a forward, {} for one token  ",
                experts.touched,
                thousands(experts.experts),
                thousands(experts.of_one_token)
            );
            vec![canvas.span(words, Tone::Text)]
        });
        flow(canvas, "cycle time", groups.chain(experts), width)
    }

    /// Acceptance: by position, in all, by kind of text.
    pub(super) fn acceptance(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let counters = &self.figures.account().counters;
        let mut groups: Vec<Group> = (1..)
            .zip(&counters.positions)
            .map(|(at, position)| {
                vec![
                    canvas.span(format!("{at}: "), Tone::Dim),
                    canvas.span(format!("{}  ", percent(position.acceptance())), Tone::Text),
                ]
            })
            .collect();
        if counters.tested > 0 {
            let words = format!(
                "all {} of {} tested, {} of {} drafted",
                percent(counters.accepted_of_tested()),
                thousands(counters.tested),
                percent(counters.accepted_of_drafted()),
                thousands(counters.drafted)
            );
            groups.push(vec![canvas.span(words, Tone::Dim)]);
        }
        let mut lines = flow(canvas, "accepted", groups, width);
        let kinds = self.request.acceptance_by_kind().into_iter().filter(|kind| kind.drafts.tested > 0);
        let kinds: Vec<Group> = kinds
            .map(|kind| {
                vec![
                    canvas.span(format!("{} ", kind.kind.word()), Tone::Dim),
                    canvas.span(percent(kind.drafts.acceptance()), Tone::Text),
                    canvas.span(format!(" of {}  ", thousands(kind.drafts.tested)), Tone::Dim),
                ]
            })
            .collect();
        if !kinds.is_empty() {
            lines.extend(flow(canvas, "  by kind", kinds, width));
        }
        lines
    }
}

/// `82 %`
fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| UNKNOWN.to_owned(), |share| format!("{:.0} %", share * 100.0))
}
