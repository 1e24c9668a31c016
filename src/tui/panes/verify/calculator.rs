//! The two-request calculator: one dense request and one speculative predict how much faster the drafter makes decoding; later speculative
//! requests show whether it held.

use ratatui::text::Line;

use super::figures::{dense_counterpart, is_dense};
use super::{Group, Verify, flow, times};
use crate::ledger::{Prediction, PredictionCheck, RequestFacts};
use crate::tui::app::Model;
use crate::tui::speculation::is_speculative;
use crate::tui::text::kilo;
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

/// Contexts of which one is so many times the other are far apart: a dense step costs more in a longer one.
const FAR: f64 = 2.0;

/// Two requests weighed against each other.
pub(super) struct Weighing<'a> {
    dense: &'a RequestFacts,
    speculative: &'a RequestFacts,
    prediction: Option<Prediction>,
    check: Option<PredictionCheck>,
}

impl<'a> Weighing<'a> {
    /// The chosen pair; what was not chosen is the selected request, or its nearest counterpart.
    pub(super) fn of(model: &'a Model, selected: &'a RequestFacts) -> Option<Weighing<'a>> {
        let chosen = |id: Option<_>| id.and_then(|id| model.ledger().request(id));
        let speculative = chosen(model.ui.weighed.speculative).unwrap_or(selected);
        let speculative = Some(speculative).filter(|request| is_speculative(request))?;
        let dense = chosen(model.ui.weighed.dense).filter(|request| is_dense(request));
        let dense = dense.or_else(|| dense_counterpart(model, speculative))?;
        let prediction = Prediction::of(dense, speculative).ok().flatten();
        let check = prediction.and_then(|prediction| prediction.check(dense, speculative));
        Some(Weighing { dense, speculative, prediction, check })
    }

    /// How much faster the speculative one decoded, and the turn of the dense one.
    pub(super) fn measured(&self) -> Option<(f64, u32)> {
        Some((self.check?.measured, self.dense.turn))
    }

    /// What requests after the pair made of the prediction; of lanes that are compared, each against its own counterpart.
    fn checks(&self, model: &Model) -> Vec<PredictionCheck> {
        let Some(prediction) = &self.prediction else { return Vec::new() };
        if !model.runs.are_compared() {
            return model.ledger().prediction_checks(prediction);
        }
        let others = model.ledger().requests();
        let others = others.filter(|other| other.id != self.speculative.id && is_speculative(other));
        others.filter_map(|other| prediction.check(dense_counterpart(model, other)?, other)).collect()
    }
}

/// By how much something measured was beyond a prediction, in percent of it.
fn beyond(check: &PredictionCheck) -> String {
    let percent = (1.0 / (1.0 + check.error) - 1.0) * 100.0;
    if percent.abs() < 0.5 { "0 %".to_owned() } else { format!("{percent:+.0} %") }
}

impl Verify<'_> {
    /// The pair and its prediction, whether that held, and whether it held for the turns after them.
    pub(super) fn calculator(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let plain = |words: String, tone| vec![canvas.span(words, tone)];
        let Some(weighing) = Weighing::of(self.model, self.request) else {
            let words = "a dense turn and a speculative one predict; `u` picks them".to_owned();
            return flow(canvas, "calculator", [plain(words, Tone::Dim)], width);
        };
        let Weighing { dense, speculative, prediction, check } = &weighing;
        if prediction.is_none() && check.is_none() {
            let words = format!("turn {} weighs nothing: its figures do not count", speculative.turn);
            return flow(canvas, "calculator", [plain(words, Tone::Dim)], width);
        }
        let mut groups: Vec<Group> = vec![
            plain(format!("turn {} dense, {} drafted: ", dense.turn, speculative.turn), Tone::Text),
            vec![
                canvas.span(times(prediction.map(|prediction| prediction.speed_up)), Tone::Strong),
                canvas.span(" predicted, ", Tone::Dim),
                canvas.span(times(check.map(|check| check.measured)), Tone::Strong),
                canvas.span(" measured  ", Tone::Dim),
            ],
        ];
        if let Some(check) = check {
            let tone = if check.held { Tone::Good } else { Tone::Warn };
            groups.push(plain(format!("{}  ", check.words()), tone));
        }
        let mut lines = flow(canvas, "calculator", groups, width);
        let mut groups = Vec::new();
        let checks = weighing.checks(self.model);
        let worst = checks.iter().max_by(|a, b| a.error.abs().total_cmp(&b.error.abs()));
        if let Some(worst) = worst {
            let held = checks.iter().filter(|check| check.held).count();
            let tone = if held == checks.len() { Tone::Good } else { Tone::Text };
            let turn = self.model.ledger().request(worst.request).map_or(0, |request| request.turn);
            groups.push(plain(format!("held in {held} of {} other turns  ", checks.len()), tone));
            groups.push(plain(format!("worst: turn {turn}, {}  ", beyond(worst)), Tone::Dim));
        } else {
            groups.push(plain("later turns will show whether it holds  ".to_owned(), Tone::Dim));
        }
        let [a, b] = [dense, speculative].map(|request| request.prompt_tokens.unwrap_or(0) as f64);
        if a.max(b) > FAR * a.min(b) {
            let words = format!("contexts of {} and {} are far apart  ", kilo(a as u64), kilo(b as u64));
            groups.push(plain(words, Tone::Warn));
        }
        if let Some(ms) = dense.ms_per_token() {
            groups.push(plain(format!("dense {ms:.2} ms a token  "), Tone::Dim));
        }
        lines.extend(flow(canvas, "", groups, width));
        lines
    }
}
