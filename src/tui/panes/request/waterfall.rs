//! The waterfall: the levels from the whole prompt down to the checkpoint, and what was lost between them.

use ratatui::text::{Line, Span};

use super::{Drawing, NAMES, flow};
use crate::event::{Cause, Culprit, Loss, Restore};
use crate::tui::text::{self, count, left, right, thousands};
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

/// What a loss looks like in the bar.
pub(super) fn loss_look(loss: &Loss) -> (&'static str, Tone) {
    match loss.cause {
        cause if cause.is_loss() => ("▒", Tone::Warn),
        Cause::Appended | Cause::Cold | Cause::Branch => ("░", Tone::Suffix),
        _ => ("·", Tone::Dim),
    }
}

impl Drawing<'_> {
    /// `prompt 45,732 = checkpoint 28,672 + suffix 17,060`, then the progress of the prefill or the error, then fresh and stored
    /// tokens and how the reply ended.
    pub(super) fn equation(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let request = self.request;
        let mut groups = vec![vec![
            canvas.span(count(request.prompt_tokens), Tone::Strong),
            canvas.span(" = checkpoint ", Tone::Dim),
            canvas.span(count(request.checkpoint()), Tone::Checkpoint),
            canvas.span(" + suffix ", Tone::Dim),
            canvas.span(format!("{}  ", count(request.uncached_suffix)), Tone::Suffix),
        ]];
        if let Some(error) = &request.error {
            let error = text::sanitise(error).replace('\n', " ");
            groups[0].push(canvas.span(format!(" FAILED: {error}"), Tone::Warn));
        } else if let Some(words) = super::prefill_words(self.model, request, 20) {
            groups.push(vec![canvas.span(words, Tone::Good)]);
        } else {
            let figures = [("fresh", request.fresh_tokens()), ("stored", request.stored_tokens)];
            groups.extend(figures.map(|(name, tokens)| {
                vec![
                    canvas.span(format!("{name} "), Tone::Dim),
                    canvas.span(format!("{}  ", count(tokens)), Tone::Text),
                ]
            }));
            let reply = request.reason.map(|reason| {
                let words = format!("reply {} tok, {}", count(request.output_tokens), reason.word());
                vec![canvas.span(words, Tone::Dim)]
            });
            groups.extend(reply);
        }
        flow(canvas, "prompt", groups, width)
    }

    /// The levels by name, from what the prompt shares with others down to the checkpoint.
    pub(super) fn levels(&self, canvas: &Canvas<'_>, restore: &Restore, width: usize) -> Vec<Line<'static>> {
        let predecessor = self.model.ledger().predecessor(self.request).map(|request| request.id);
        let with = predecessor.map_or_else(String::new, |id| format!(" with request {}", id.0));
        let mut levels = vec![(format!("common prefix{with}"), restore.common_prefix_tokens)];
        if let Some(closest) = closest_that_shares_more(restore) {
            levels.push((format!("with request {}", closest.request.0), Some(closest.common_tokens)));
        }
        // Recordings of earlier versions do not tell what is held.
        let held = Some(restore.held_tokens).filter(|held| *held >= restore.matched_tokens);
        let observed = |tokens: u64| restore.is_observed().then_some(tokens);
        levels.extend([
            ("held".to_owned(), held.and_then(observed)),
            ("matched".to_owned(), observed(restore.matched_tokens)),
            ("with state".to_owned(), observed(restore.matched_with_state_tokens)),
            ("checkpoint".to_owned(), Some(restore.checkpoint_tokens)),
        ]);
        let last = levels.len() - 1;
        let groups = levels.into_iter().enumerate().map(|(at, (name, tokens))| {
            let tone = if at == last { Tone::Checkpoint } else { Tone::Text };
            let arrow = if at == last { "" } else { " › " };
            vec![
                canvas.span(format!("{name} "), Tone::Dim),
                canvas.span(count(tokens), tone),
                canvas.span(arrow, Tone::Dim),
            ]
        });
        flow(canvas, "levels", groups, width)
    }

    /// One step of the waterfall: what was lost, why, which block is responsible, and the level that remains.
    pub(super) fn loss(
        &self,
        canvas: &Canvas<'_>,
        restore: &Restore,
        index: usize,
        width: usize,
    ) -> Vec<Line<'static>> {
        let loss = &restore.losses[index];
        let lost = restore.losses[..=index].iter().fold(0u64, |sum, loss| sum.saturating_add(loss.tokens));
        let remaining = self.scale.tokens.saturating_sub(lost);
        let (glyph, tone) = loss_look(loss);
        let words_tone = if loss.cause.is_loss() { Tone::Warn } else { Tone::Text };
        let level = format!(
            "→ {} {}",
            left(level_name(restore, remaining, index), 13),
            right(&thousands(remaining), 7)
        );
        let room = width.saturating_sub(NAMES + text::width(&level) + 3);

        let mut pieces = Vec::new();
        text::wrap_line(&loss_words(loss), room, &mut pieces);
        let mut lines = vec![Line::from(vec![
            canvas.span(format!("−{} {glyph} ", right(&thousands(loss.tokens), NAMES - 3)), tone),
            canvas.span(left(&pieces[0], room), words_tone),
            canvas.span(format!(" {level}"), Tone::Strong),
        ])];
        for piece in &pieces[1..] {
            let indent = " ".repeat(NAMES + 1);
            lines.push(Line::from(Span::styled(format!("{indent}{piece}"), canvas.style(words_tone))));
        }
        lines
    }
}

/// The earlier request that shares more with the prompt than its predecessor does.
fn closest_that_shares_more(restore: &Restore) -> Option<crate::event::Closest> {
    restore.closest.filter(|closest| closest.common_tokens > restore.common_prefix_tokens.unwrap_or(0))
}

/// The cause in capitals where something went wrong, the block responsible, and what happened.
fn loss_words(loss: &Loss) -> String {
    let phrase = loss.cause.phrase();
    let phrase = if loss.cause.is_loss() { phrase.to_uppercase() } else { phrase.to_owned() };
    let detail = text::sanitise(&loss.detail).replace('\n', " ");
    // Many details begin with the block themselves.
    let culprit = loss.block.filter(|culprit| !culprit.is_named_in(&detail)).map(culprit_words);
    let parts: Vec<String> =
        [culprit, Some(detail)].into_iter().flatten().filter(|part| !part.is_empty()).collect();
    if parts.is_empty() { phrase } else { format!("{phrase}: {}", parts.join("; ")) }
}

/// `block 37, written by request 10`.
pub(in crate::tui) fn culprit_words(culprit: Culprit) -> String {
    let run = if culprit.earlier_run { " of an earlier run" } else { "" };
    let writer = culprit.written_by.map(|id| format!(", written by request {}{run}", thousands(id.0)));
    format!("block {}{}", culprit.index, writer.unwrap_or_default())
}

/// The name of the waterfall's level at `remaining` tokens, behind the loss number `index`.
fn level_name(restore: &Restore, remaining: u64, index: usize) -> &'static str {
    let is_last = index + 1 == restore.losses.len();
    match remaining {
        level if is_last && level == restore.checkpoint_tokens => "checkpoint",
        level if restore.common_prefix_tokens == Some(level) => "common prefix",
        level if restore.closest.is_some_and(|closest| closest.common_tokens == level) => "known tokens",
        level if level == restore.held_tokens => "held",
        level if level == restore.matched_tokens => "matched",
        level if level == restore.matched_with_state_tokens => "with state",
        level if level == restore.checkpoint_tokens => "checkpoint",
        _ => "leaves",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::RequestId;

    #[test]
    fn a_loss_names_its_block_and_writer_once() {
        let block = Some(Culprit { index: 37, written_by: Some(RequestId(10)), earlier_run: false });
        let loss =
            |detail: &str, block| Loss { cause: Cause::Evicted, tokens: 5, detail: detail.into(), block };
        assert_eq!(loss_words(&loss("", block)), "BLOCK EVICTED: block 37, written by request 10");
        assert_eq!(
            loss_words(&loss("to make room for request 11", block)),
            "BLOCK EVICTED: block 37, written by request 10; to make room for request 11"
        );
        assert_eq!(loss_words(&loss("block 37 evicted", block)), "BLOCK EVICTED: block 37 evicted");
        assert!(loss_words(&loss("block 370 stays", block)).starts_with("BLOCK EVICTED: block 37, written"));
        assert_eq!(loss_words(&loss("", None)), "BLOCK EVICTED");
        let earlier = Culprit { index: 2, written_by: Some(RequestId(4)), earlier_run: true };
        assert_eq!(culprit_words(earlier), "block 2, written by request 4 of an earlier run");
        assert_eq!(culprit_words(Culprit { written_by: None, ..earlier }), "block 2");
    }
}
