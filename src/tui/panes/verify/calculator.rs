//! The two-request calculator: one dense request and one speculative predict how much faster the drafter makes decoding; every further
//! speculative request shows whether it held.

use ratatui::text::Line;

use super::figures::{dense_counterpart, is_dense, ms_per_token};
use super::{Figures, Group, Verify, figure, flow, times};
use crate::decode::economics::ratio;
use crate::ledger::RequestFacts;
use crate::tui::app::Model;
use crate::tui::speculation::is_speculative;
use crate::tui::text::kilo;
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

/// A prediction holds that is off by no more than this part of it.
const HOLDS: f64 = 0.10;
/// Contexts of which one is so many times the other are far apart: a dense step costs more in a longer one.
const FAR: f64 = 2.0;

/// Two requests weighed against each other.
pub(super) struct Weighing<'a> {
    dense: &'a RequestFacts,
    speculative: &'a RequestFacts,
    predicted: Option<f64>,
    measured: Option<f64>,
}

impl<'a> Weighing<'a> {
    /// The chosen pair; what was not chosen is the selected request, or its nearest counterpart.
    pub(super) fn of(model: &'a Model, selected: &'a RequestFacts) -> Option<Weighing<'a>> {
        let chosen = |id: Option<_>| id.and_then(|id| model.ledger().request(id));
        let speculative = chosen(model.ui.weighed.speculative).or(Some(selected))?;
        let speculative = Some(speculative).filter(|request| is_speculative(request))?;
        let dense = chosen(model.ui.weighed.dense).filter(|request| is_dense(request));
        let dense = dense.or_else(|| dense_counterpart(model, speculative))?;
        let figures = Figures::of(model, speculative);
        let sound = figures.failure().is_none() && figures.shared().is_none();
        let predicted = figures.against(ms_per_token(dense)).predicted_speedup().filter(|_| sound);
        let measured = measured(dense, speculative).filter(|_| sound);
        Some(Weighing { dense, speculative, predicted, measured })
    }

    /// By how much `request` was faster or slower than predicted, as a part of the prediction.
    fn beyond(&self, request: &RequestFacts) -> Option<f64> {
        Some(ratio(measured(self.dense, request)?, self.predicted?)? - 1.0)
    }

    pub(super) fn measured(&self) -> Option<(f64, u32)> {
        Some((self.measured?, self.dense.turn))
    }
}

/// How much faster `request` made a token than `dense`.
fn measured(dense: &RequestFacts, request: &RequestFacts) -> Option<f64> {
    ratio(ms_per_token(dense)?, ms_per_token(request)?)
}

/// `held (-2 %)`, `DID NOT HOLD (-14 %)`.
fn held(beyond: f64) -> (String, Tone) {
    let percent = format!("{:+.0} %", beyond * 100.0);
    if beyond.abs() <= HOLDS {
        (format!("held ({percent})"), Tone::Good)
    } else {
        (format!("DID NOT HOLD ({percent})"), Tone::Warn)
    }
}

impl Verify<'_> {
    /// The pair and its prediction, whether that held, and whether it held for the session's other speculative requests.
    pub(super) fn calculator(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let plain = |words: String, tone| vec![canvas.span(words, tone)];
        let Some(weighing) = Weighing::of(self.model, self.request) else {
            let words = "a dense turn and a speculative one predict; `u` picks them".to_owned();
            return flow(canvas, "calculator", [plain(words, Tone::Dim)], width);
        };
        let Weighing { dense, speculative, predicted, measured } = &weighing;
        if predicted.is_none() && measured.is_none() {
            let words = format!("turn {} weighs nothing: its figures do not count", speculative.turn);
            return flow(canvas, "calculator", [plain(words, Tone::Dim)], width);
        }
        let mut groups: Vec<Group> = vec![
            plain(format!("turn {} dense, {} drafted: ", dense.turn, speculative.turn), Tone::Text),
            vec![
                canvas.span(times(*predicted), Tone::Strong),
                canvas.span(" predicted, ", Tone::Dim),
                canvas.span(times(*measured), Tone::Strong),
                canvas.span(" measured  ", Tone::Dim),
            ],
        ];
        if let Some((words, tone)) = weighing.beyond(speculative).map(held) {
            groups.push(plain(format!("{words}  "), tone));
        }
        let mut lines = flow(canvas, "calculator", groups, width);
        let others: Vec<(u32, f64)> = self
            .model
            .ledger()
            .requests()
            .filter(|request| request.id != speculative.id && is_speculative(request))
            .filter_map(|request| Some((request.turn, weighing.beyond(request)?)))
            .collect();
        let mut groups = Vec::new();
        if let Some((turn, worst)) = others.iter().max_by(|a, b| a.1.abs().total_cmp(&b.1.abs())) {
            let within = others.iter().filter(|other| other.1.abs() <= HOLDS).count();
            let tone = if within == others.len() { Tone::Good } else { Tone::Text };
            groups.push(plain(format!("held in {within} of {} other turns  ", others.len()), tone));
            groups.push(plain(format!("worst: turn {turn}, {:+.0} %  ", worst * 100.0), Tone::Dim));
        }
        let [a, b] = [dense, speculative].map(|request| request.prompt_tokens.unwrap_or(0) as f64);
        if a.max(b) > FAR * a.min(b) {
            let words = format!("contexts of {} and {} are far apart  ", kilo(a as u64), kilo(b as u64));
            groups.push(plain(words, Tone::Warn));
        }
        let cost = Figures::of(self.model, speculative).against(ms_per_token(dense)).cost_ratio;
        groups.push(plain(
            format!(
                "dense {} ms a token, a cycle {} of them  ",
                figure(ms_per_token(dense), true),
                figure(cost, true)
            ),
            Tone::Dim,
        ));
        lines.extend(flow(canvas, "", groups, width));
        lines
    }
}
