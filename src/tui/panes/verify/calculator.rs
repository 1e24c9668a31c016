//! The two-request calculator: one dense request and one speculative predict how much faster the drafter makes decoding; later speculative
//! requests show whether it held. Until two are picked it weighs the request in view, against the dense step of the whole pane.

use ratatui::text::Line;

use super::figures::{dense_counterpart, is_dense, shared_forwards};
use super::{Group, Verify, flow, times};
use crate::ledger::{DenseSource, Prediction, PredictionCheck, RequestFacts, SpeculationAccount};
use crate::tui::app::Model;
use crate::tui::speculation::is_speculative;
use crate::tui::text::kilo;
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

/// Contexts of which one is so many times the other are far apart: a dense step costs more in a longer one.
const FAR: f64 = 2.0;

/// A prediction and what became of it.
struct Weighing<'a> {
    /// The request whose tokens per cycle, cost and share predict.
    speculative: &'a RequestFacts,
    /// The request whose steps are dense steps; the speculative one where they are its own, none where they are the curve's.
    dense: Option<&'a RequestFacts>,
    /// `turn 1 dense, 2 drafted: `.
    pair: String,
    predicted: Option<f64>,
    /// What the speculative request itself made of it.
    check: Option<PredictionCheck>,
    /// What others did.
    others: Vec<PredictionCheck>,
}

impl Verify<'_> {
    /// The pair that was picked, or the request in view against the pane's dense step.
    fn weighing(&self) -> Option<Weighing<'_>> {
        self.picked().or_else(|| self.in_view())
    }

    /// What was picked by hand; of the two what was not is the request in view, or its nearest counterpart.
    fn picked(&self) -> Option<Weighing<'_>> {
        let model = self.model;
        let chosen = |id: Option<_>| id.and_then(|id| model.ledger().request(id));
        let (dense, speculative) = (chosen(model.ui.weighed.dense), chosen(model.ui.weighed.speculative));
        if dense.is_none() && speculative.is_none() {
            return None;
        }
        let speculative =
            Some(speculative.unwrap_or(self.request)).filter(|request| is_speculative(request))?;
        let dense =
            dense.filter(|request| is_dense(request)).or_else(|| dense_counterpart(model, speculative))?;
        let prediction = Prediction::of(dense, speculative).ok().flatten();
        let check = prediction.filter(|_| is_sound(speculative));
        Some(Weighing {
            speculative,
            dense: Some(dense),
            pair: format!("turn {} dense, {} drafted: ", dense.turn, speculative.turn),
            predicted: prediction.map(|prediction| prediction.speed_up),
            check: check.and_then(|prediction| prediction.check(dense, speculative)),
            others: prediction.map(|prediction| others(model, &prediction, speculative)).unwrap_or_default(),
        })
    }

    fn in_view(&self) -> Option<Weighing<'_>> {
        let (model, request) = (self.model, self.request);
        if !is_speculative(request) {
            return None;
        }
        let from = self.figures.account().dense()?.from;
        let dense = match from {
            _ if self.figures.across_lanes() => dense_counterpart(model, request),
            DenseSource::Own { .. } => Some(request),
            DenseSource::Request(id) => model.ledger().request(id),
            _ => None,
        };
        let prediction = dense.and_then(|dense| Prediction::of(dense, request).ok().flatten());
        let check = prediction.zip(dense).filter(|_| self.figures.measured().is_some());
        Some(Weighing {
            speculative: request,
            dense,
            pair: match dense.filter(|dense| dense.id != request.id || self.figures.across_lanes()) {
                Some(dense) => format!("turn {} dense, {} drafted: ", dense.turn, request.turn),
                None => {
                    format!("turn {} by {}: ", request.turn, self.figures.dense_words().unwrap_or_default())
                }
            },
            predicted: self.figures.predicted(),
            check: check.and_then(|(prediction, dense)| prediction.check(dense, request)),
            others: prediction.map(|prediction| others(model, &prediction, request)).unwrap_or_default(),
        })
    }

    /// The pair and its prediction, whether that held, and whether it held for the turns after them.
    pub(super) fn calculator(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let plain = |words: String, tone| vec![canvas.span(words, tone)];
        let Some(weighing) = self.weighing() else {
            let words = "a dense turn and a speculative one predict; `u` picks them".to_owned();
            return flow(canvas, "calculator", [plain(words, Tone::Dim)], width);
        };
        let Weighing { speculative, dense, pair, predicted, check, others } = &weighing;
        if predicted.is_none() && check.is_none() {
            let words = format!("turn {} weighs nothing: its figures do not count", speculative.turn);
            return flow(canvas, "calculator", [plain(words, Tone::Dim)], width);
        }
        let mut groups: Vec<Group> = vec![
            plain(pair.clone(), Tone::Text),
            vec![
                canvas.span(times(*predicted), Tone::Strong),
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
        let worst = others.iter().max_by(|a, b| a.error.abs().total_cmp(&b.error.abs()));
        if let Some(worst) = worst {
            let held = others.iter().filter(|check| check.held).count();
            let tone = if held == others.len() { Tone::Good } else { Tone::Text };
            let turn = self.model.ledger().request(worst.request).map_or(0, |request| request.turn);
            groups.push(plain(format!("held in {held} of {} other turns  ", others.len()), tone));
            groups.push(plain(format!("worst: turn {turn}, off {}  ", off(worst)), Tone::Dim));
        } else {
            groups.push(plain("later turns will show whether it holds  ".to_owned(), Tone::Dim));
        }
        if let Some(dense) = dense {
            let [a, b] = [dense, speculative].map(|request| request.prompt_tokens.unwrap_or(0) as f64);
            if a.max(b) > FAR * a.min(b) {
                let words = format!("contexts of {} and {} are far apart  ", kilo(a as u64), kilo(b as u64));
                groups.push(plain(words, Tone::Warn));
            }
            if let Some(ms) = dense.ms_per_token().filter(|_| is_dense(dense)) {
                groups.push(plain(format!("dense {ms:.2} ms a token  "), Tone::Dim));
            }
        }
        lines.extend(flow(canvas, "", groups, width));
        lines
    }
}

/// What other requests than `speculative` made of the prediction: those that later decoded with the same drafter, depth and controller and whose
/// figures count; of lanes that are compared, each against its own counterpart.
fn others(model: &Model, prediction: &Prediction, speculative: &RequestFacts) -> Vec<PredictionCheck> {
    let ledger = model.ledger();
    if !model.runs.are_compared() {
        let checks = ledger.prediction_checks(prediction).into_iter();
        return checks.filter(|check| ledger.request(check.request).is_some_and(is_sound)).collect();
    }
    let alike = |other: &&RequestFacts| {
        other.id != speculative.id
            && set(other).is_some()
            && set(other) == set(speculative)
            && is_sound(other)
    };
    let others = ledger.requests().filter(alike);
    others.filter_map(|other| prediction.check(dense_counterpart(model, other)?, other)).collect()
}

/// What it was drafted by, and how deep.
fn set(request: &RequestFacts) -> Option<(crate::config::DrafterKind, crate::config::ControllerKind, u32)> {
    let start = request.speculation.as_ref()?.start.as_ref()?;
    Some((start.drafter, start.controller, start.depth_max))
}

/// Whether its time counts as measured: no audit failed, and nobody shared its forwards.
fn is_sound(request: &RequestFacts) -> bool {
    let alone = |account: SpeculationAccount| account.audit.failure().is_none() && account.neighbours == 0;
    shared_forwards(request).is_none() && request.speculation_account().is_some_and(alone)
}

/// By how much a prediction exceeds what was measured, in percent of it: as the ledger, reports and the matrix have it.
fn off(check: &PredictionCheck) -> String {
    let percent = check.error * 100.0;
    if percent.abs() < 0.5 { "0 %".to_owned() } else { format!("{percent:+.0} %") }
}
