//! What a turn would cost if it were sent now: asked for after each pause in typing, shown below the text.

use ratatui::text::Line;

use super::app::Model;
use super::text::{about, fit, sanitise, thousands, width};
use super::theme::Tone;
use super::view::Canvas;
use crate::event::{Preview, SparseAdmission, SparseVerdict};

/// What was asked of the engine, and its latest answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CostQuestion {
    /// The number of the question that was sent last.
    ticket: Option<u64>,
    /// The last answer.
    answer: Option<Box<Preview>>,
    /// Whether the text has changed since.
    outdated: bool,
}

impl CostQuestion {
    /// The text, or what it would meet, has changed.
    pub fn outdate(&mut self) {
        self.outdated = true;
        // An answer to what was asked before is none to this.
        self.ticket = None;
    }

    /// There is nothing to ask about.
    pub fn withdraw(&mut self) {
        *self = CostQuestion::default();
    }

    /// The question was sent under `ticket`.
    pub fn asked(&mut self, ticket: u64) {
        self.ticket = Some(ticket);
    }

    /// Takes an answer; what was asked before the last question is ignored.
    pub fn answered(&mut self, preview: &Preview) {
        if self.ticket == Some(preview.ticket) {
            self.answer = Some(Box::new(preview.clone()));
            self.outdated = false;
        }
    }
}

/// Two lines: the figures and what they take, then the cause or the problem.
pub(super) fn lines(
    canvas: &Canvas<'_>,
    model: &Model,
    cost: &CostQuestion,
    room: usize,
) -> [Line<'static>; 2] {
    let dim = |words: &str| Line::from(canvas.span(words.to_owned(), Tone::Dim));
    let Some(preview) = &cost.answer else {
        let words = if cost.ticket.is_some() || cost.outdated {
            "cost  asking…"
        } else {
            "cost  shown here once there is text: prompt, checkpoint, suffix, seconds"
        };
        return [dim(words), Line::default()];
    };
    let old = if cost.outdated { " (of the text before; asking…)" } else { "" };
    if let Some(problem) = &preview.problem {
        let problem =
            fit(&sanitise(problem).replace('\n', " "), room.saturating_sub(width(old) + 6)).into_owned();
        let figures = format!("cost  prompt {}{old}", thousands(preview.prompt_tokens));
        return [dim(&figures), Line::from(canvas.span(format!("      {problem}"), Tone::Warn))];
    }
    let Some(restore) = &preview.restore else {
        return [dim(&format!("cost  prompt {}{old}", thousands(preview.prompt_tokens))), Line::default()];
    };
    let checkpoint = restore.checkpoint_tokens;
    let suffix = preview.prompt_tokens.saturating_sub(checkpoint);
    let figures = Line::from(vec![
        canvas.span("cost  prompt ", Tone::Dim),
        canvas.span(thousands(preview.prompt_tokens), Tone::Strong),
        canvas.span(" = checkpoint ", Tone::Dim),
        canvas.span(thousands(checkpoint), Tone::Checkpoint),
        canvas.span(" + suffix ", Tone::Dim),
        canvas.span(thousands(suffix), Tone::Suffix),
        canvas.span(old, Tone::Dim),
    ]);
    let cause = restore.losses.iter().find(|loss| loss.cause == restore.cause);
    let detail = cause.map(|loss| sanitise(&loss.detail).replace('\n', " ")).unwrap_or_default();
    let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
    let sparse = preview.sparse.as_ref().filter(|admission| admission.verdict == SparseVerdict::Sparse);
    let seconds = match sparse {
        Some(admission) => sparse_words(model, checkpoint, admission),
        None => seconds_words(model, checkpoint, preview.prompt_tokens),
    };
    let cause = format!(" · {}{detail}", restore.cause.phrase());
    let cause = fit(&cause, room.saturating_sub(width(&seconds) + 6)).into_owned();
    let tone = if restore.cause.is_loss() { Tone::Warn } else { Tone::Dim };
    let why =
        Line::from(vec![canvas.span(format!("      {seconds}"), Tone::Strong), canvas.span(cause, tone)]);
    [figures, why]
}

/// What scoring the suffix and computing what is kept of it would take, from a cold scorer, on what the run has measured of both.
fn sparse_words(model: &Model, checkpoint: u64, admission: &SparseAdmission) -> String {
    let keep = admission.settings.keep.value;
    let gain =
        model.ledger().break_even().and_then(|both| both.gain(admission.suffix_tokens, checkpoint, keep));
    match gain {
        None => format!("sparse, keep {keep}: – no sparse prefill measured yet"),
        Some(gain) => {
            let dense = about(gain.dense.seconds);
            let sparse = about(gain.sparse().seconds);
            format!("sparse, keep {keep}: {sparse}, scorer cold; dense {dense}")
        }
    }
}

/// What prefilling tokens `from..to` would take on the run's own curve.
fn seconds_words(model: &Model, from: u64, to: u64) -> String {
    match model.ledger().prefill_curve() {
        None => "– no prefill measured yet".to_owned(),
        Some(curve) => {
            let beyond = if to > curve.deepest.saturating_mul(2) { ", extrapolated" } else { "" };
            format!("{}, measured curve of this run{beyond}", about(curve.seconds(from, to)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_answer_to_the_last_question_counts() {
        let preview = |ticket| Preview {
            ticket,
            prompt_tokens: 10 * ticket,
            restore: None,
            sparse: None,
            problem: None,
        };
        let mut cost = CostQuestion::default();
        cost.answered(&preview(1));
        assert_eq!(cost.answer, None, "nothing was asked");
        cost.outdate();
        cost.asked(1);
        cost.asked(2);
        cost.answered(&preview(1));
        assert!(cost.answer.is_none() && cost.outdated);
        cost.answered(&preview(2));
        assert_eq!(cost.answer.as_ref().unwrap().prompt_tokens, 20);
        assert!(!cost.outdated);
    }
}
