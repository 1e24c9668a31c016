//! One request: how much of its prompt was reusable and what became of the rest. Bar, segments and blocks share one scale
//! from the first prompt token to the last, so the block that is responsible stands under the tokens it cost.

use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use crate::event::{BlockFact, Loss, Nanos, Residency, Restore, Segment, SegmentRun, Stamp};
use crate::ledger::RequestFacts;
use crate::tui::app::{Model, Pane};
use crate::tui::text::{self, count, duration, kilo, left, right, thousands};
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

/// Columns of the row names on the left.
const NAMES: usize = 11;

/// Draws the pane.
pub fn draw(canvas: &mut Canvas<'_>, model: &Model, area: Rect) {
    canvas.note_page(Pane::Request, 0, usize::from(area.height), 0);
    let Some(request) = model.selected() else {
        canvas.put(area, 1, 0, "here: which tokens of a prompt could not be reused, and why", Tone::Dim);
        return;
    };
    let width = usize::from(area.width);
    let scale =
        Scale { tokens: request.prompt_tokens.unwrap_or(0), columns: width.saturating_sub(NAMES + 1) };
    let mut rows = vec![Row::Equation, Row::Bar, Row::Segments];
    let restore = request.restore.as_ref();
    if restore.is_some() {
        rows.push(Row::Blocks);
        rows.push(Row::BlockDetail);
    }
    let losses = restore.map_or(0, |r| r.losses.len());
    let height = usize::from(area.height);
    // The axis, the legend and a blank line are the first to go when rows are scarce.
    let spare = height.saturating_sub(rows.len() + losses + 1);
    if spare >= 1 {
        rows.insert(1, Row::Axis);
    }
    if spare >= 2 {
        rows.push(Row::Legend);
    }
    rows.extend((0..losses).map(Row::Loss));
    let timing = rows.len().min(height.saturating_sub(1));
    rows.truncate(timing);
    rows.push(Row::Timing);
    let drawing = Drawing { model, request, restore, scale };
    for (at, row) in rows.into_iter().enumerate() {
        drawing.row(canvas, area, at, row);
    }
}

enum Row {
    Equation,
    Axis,
    Bar,
    Segments,
    Blocks,
    BlockDetail,
    Legend,
    Loss(usize),
    Timing,
}

/// Prompt tokens to columns.
#[derive(Clone, Copy)]
struct Scale {
    tokens: u64,
    columns: usize,
}

impl Scale {
    /// The column at which token `position` begins.
    fn column(self, position: u64) -> usize {
        if self.tokens == 0 {
            return 0;
        }
        let column = u128::from(position) * self.columns as u128 / u128::from(self.tokens);
        usize::try_from(column).unwrap_or(usize::MAX).min(self.columns)
    }

    /// The first token of `column`.
    fn token(self, column: usize) -> u64 {
        let token = column as u128 * u128::from(self.tokens) / self.columns.max(1) as u128;
        u64::try_from(token).unwrap_or(u64::MAX)
    }
}

/// The block whose state is missing where the checkpoint ends: the first one that was not restored.
pub fn responsible_block(restore: &Restore) -> Option<usize> {
    restore.blocks.iter().position(|block| block.residency != Residency::Ram)
}

/// What a block's residency looks like.
fn block_look(residency: Residency) -> (&'static str, Tone, &'static str) {
    match residency {
        Residency::Ram => ("■", Tone::Checkpoint, "restored from RAM"),
        Residency::Held => ("▒", Tone::Suffix, "held, not restorable"),
        Residency::Placeholder => ("□", Tone::Warn, "placeholder"),
        Residency::Evicted => ("▫", Tone::Warn, "evicted"),
        Residency::Missing => ("·", Tone::Dim, "not held"),
    }
}

/// How alarming a residency is, for columns that hold several blocks.
fn severity(residency: Residency) -> u8 {
    match residency {
        Residency::Ram => 0,
        Residency::Missing => 1,
        Residency::Held => 2,
        Residency::Placeholder => 3,
        Residency::Evicted => 4,
    }
}

struct Drawing<'a> {
    model: &'a Model,
    request: &'a RequestFacts,
    restore: Option<&'a Restore>,
    scale: Scale,
}

impl Drawing<'_> {
    fn row(&self, canvas: &mut Canvas<'_>, area: Rect, at: usize, row: Row) {
        match row {
            Row::Equation => self.equation(canvas, area, at),
            Row::Axis => self.axis(canvas, area, at),
            Row::Bar => self.bar(canvas, area, at),
            Row::Segments => self.segments(canvas, area, at),
            Row::Blocks => self.blocks(canvas, area, at),
            Row::BlockDetail => self.block_detail(canvas, area, at),
            Row::Legend => self.legend(canvas, area, at),
            Row::Loss(index) => self.loss(canvas, area, at, index),
            Row::Timing => self.timing(canvas, area, at),
        }
    }

    /// `prompt 45,732 = checkpoint 28,672 + suffix 17,060`, the progress of the prefill, or the error.
    fn equation(&self, canvas: &mut Canvas<'_>, area: Rect, at: usize) {
        let request = self.request;
        let mut spans = vec![
            canvas.span(left("prompt", NAMES), Tone::Dim),
            canvas.span(count(request.prompt_tokens), Tone::Strong),
            canvas.span(" = checkpoint ", Tone::Dim),
            canvas.span(count(request.checkpoint()), Tone::Checkpoint),
            canvas.span(" + suffix ", Tone::Dim),
            canvas.span(count(request.uncached_suffix), Tone::Suffix),
        ];
        if let Some(error) = &request.error {
            spans.push(
                canvas.span(format!("   FAILED: {}", text::sanitise(error).replace('\n', " ")), Tone::Warn),
            );
        } else if let Some(words) = prefill_words(self.model, request, 20) {
            spans.push(canvas.span(format!("   {words}"), Tone::Good));
        } else if let Some(reason) = request.reason {
            let out = count(request.output_tokens);
            spans.push(canvas.span(format!("   reply {out} tok, {}", reason.word()), Tone::Dim));
        }
        canvas.line(area, at, &Line::from(spans));
    }

    fn axis(&self, canvas: &mut Canvas<'_>, area: Rect, at: usize) {
        canvas.put(area, 0, at, "token", Tone::Dim);
        let step = nice_step(self.scale);
        let mut free = 0;
        let mut position = 0;
        while step > 0 && position < self.scale.tokens {
            let column = self.scale.column(position);
            let label = if position == 0 { "0".to_owned() } else { kilo(position) };
            if column >= free && column + label.len() <= self.scale.columns {
                canvas.put(area, NAMES + column, at, &label, Tone::Dim);
                free = column + label.len() + 1;
            }
            position = position.saturating_add(step);
        }
    }

    /// The prompt as one bar: the checkpoint, then every loss in the order of the tokens it covers.
    fn bar(&self, canvas: &mut Canvas<'_>, area: Rect, at: usize) {
        canvas.put(area, 0, at, "reusable", Tone::Dim);
        let Some(restore) = self.restore else {
            canvas.put(area, NAMES, at, &"·".repeat(self.scale.columns), Tone::Dim);
            return;
        };
        let mut position = restore.checkpoint_tokens;
        let end = self.scale.column(position);
        canvas.put(area, NAMES, at, &"█".repeat(end), Tone::Checkpoint);
        let mut from = end;
        for loss in restore.losses.iter().rev() {
            position = position.saturating_add(loss.tokens);
            let to = self.scale.column(position).max(from);
            let (glyph, tone) = loss_look(loss);
            canvas.put(area, NAMES + from, at, &glyph.repeat(to - from), tone);
            from = to;
        }
        if let Some((done, _)) = self.request.progress.filter(|_| self.request.prefill.is_none()) {
            let to = self.scale.column(restore.checkpoint_tokens.saturating_add(done));
            canvas.put(area, NAMES + end, at, &"▓".repeat(to.saturating_sub(end)), Tone::Good);
        }
        if restore.losses.iter().any(|l| l.cause.is_loss() && l.tokens > 0) && end < self.scale.columns {
            canvas.put(area, NAMES + end, at, "▼", Tone::Warn);
        }
    }

    fn segments(&self, canvas: &mut Canvas<'_>, area: Rect, at: usize) {
        canvas.put(area, 0, at, "segment", Tone::Dim);
        for (column, segment) in ruler(&self.request.segments, self.scale).into_iter().enumerate() {
            if let Some(segment) = segment {
                let letter = segment.letter().to_string();
                canvas.put(area, NAMES + column, at, &letter, Tone::Segment(segment));
            }
        }
    }

    fn blocks(&self, canvas: &mut Canvas<'_>, area: Rect, at: usize) {
        canvas.put(area, 0, at, "block", Tone::Dim);
        let Some(restore) = self.restore else { return };
        let chosen = self.chosen_block(restore);
        let block_tokens = self.block_tokens();
        for column in 0..self.scale.columns {
            let first = self.scale.token(column) / block_tokens;
            let last =
                self.scale.token(column + 1).saturating_sub(1).max(self.scale.token(column)) / block_tokens;
            let range =
                usize::try_from(first).unwrap_or(usize::MAX)..=usize::try_from(last).unwrap_or(usize::MAX);
            let blocks =
                restore.blocks.iter().enumerate().skip(*range.start()).take(range.end() - range.start() + 1);
            let Some((_, worst)) = blocks.max_by_key(|(_, block)| severity(block.residency)) else {
                continue;
            };
            let (glyph, tone, _) = block_look(worst.residency);
            canvas.put(area, NAMES + column, at, glyph, tone);
            if chosen.is_some_and(|chosen| range.contains(&chosen))
                && let Some(cell) = cell_of(area, NAMES + column, at)
            {
                let style: Style = canvas.style(Tone::Selected);
                canvas.buffer.set_style(cell, style);
            }
        }
    }

    fn chosen_block(&self, restore: &Restore) -> Option<usize> {
        match self.model.ui.block {
            Some(block) => Some((block as usize).min(restore.blocks.len().saturating_sub(1))),
            None => responsible_block(restore),
        }
        .filter(|at| *at < restore.blocks.len())
    }

    fn block_tokens(&self) -> u64 {
        self.model.ledger.run().map_or(256, |run| run.block_tokens).max(1)
    }

    /// The selected block: its tokens, its state, who wrote it.
    fn block_detail(&self, canvas: &mut Canvas<'_>, area: Rect, at: usize) {
        let Some(restore) = self.restore else { return };
        let counts = residency_counts(&restore.blocks);
        let Some(index) = self.chosen_block(restore) else {
            canvas.put(area, NAMES, at, &format!("all whole blocks restored · {counts}"), Tone::Dim);
            return;
        };
        let block = &restore.blocks[index];
        let (glyph, tone, words) = block_look(block.residency);
        let from = u64::from(block.index).saturating_mul(self.block_tokens());
        let to = from.saturating_add(self.block_tokens());
        let spans = vec![
            canvas.span(" ".repeat(NAMES), Tone::Dim),
            canvas.span(format!("▲ block {} ", block.index), Tone::Key),
            canvas.span(format!("{glyph} {words}"), tone),
            canvas.span(
                format!(" · tokens {}–{}{}", thousands(from), thousands(to), written_by(block)),
                Tone::Text,
            ),
            canvas.span(format!("   {counts}"), Tone::Dim),
        ];
        canvas.line(area, at, &Line::from(spans));
    }

    fn legend(&self, canvas: &mut Canvas<'_>, area: Rect, at: usize) {
        let mut spans = vec![canvas.span(" ".repeat(NAMES), Tone::Dim)];
        let mut present: Vec<Segment> = Vec::new();
        for run in &self.request.segments {
            if !present.contains(&run.segment) {
                present.push(run.segment);
            }
        }
        present.sort();
        for segment in present {
            spans.push(canvas.span(segment.letter().to_string(), Tone::Segment(segment)));
            spans.push(canvas.span(format!(" {}  ", segment.word()), Tone::Dim));
        }
        canvas.line(area, at, &Line::from(spans));
    }

    /// One step of the waterfall: what was lost, why, and the level that remains.
    fn loss(&self, canvas: &mut Canvas<'_>, area: Rect, at: usize, index: usize) {
        let Some(restore) = self.restore else { return };
        let Some(loss) = restore.losses.get(index) else { return };
        let lost: u64 = restore.losses[..=index].iter().map(|l| l.tokens).sum();
        let remaining = self.scale.tokens.saturating_sub(lost);
        let (glyph, tone) = loss_look(loss);
        let phrase = if loss.cause.is_loss() {
            loss.cause.phrase().to_uppercase()
        } else {
            loss.cause.phrase().to_owned()
        };
        let detail = text::sanitise(&loss.detail).replace('\n', " ");
        let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
        let level = format!(
            "→ {} {}",
            left(level_name(restore, remaining, index), 13),
            right(&thousands(remaining), 7)
        );
        let head = format!("−{} ", right(&thousands(loss.tokens), NAMES - 3));
        let room = usize::from(area.width).saturating_sub(NAMES + text::width(&level) + 3);
        let spans: Vec<Span<'_>> = vec![
            canvas.span(head, tone),
            canvas.span(format!("{glyph} "), tone),
            canvas.span(
                left(&format!("{phrase}{detail}"), room),
                if loss.cause.is_loss() { Tone::Warn } else { Tone::Text },
            ),
            canvas.span(format!(" {level}"), Tone::Strong),
        ];
        canvas.line(area, at, &Line::from(spans));
    }

    fn timing(&self, canvas: &mut Canvas<'_>, area: Rect, at: usize) {
        let request = self.request;
        let speed = |tokens: Option<u64>, time: Option<Nanos>| {
            let rate = tokens.zip(time).map(|(tokens, time)| (tokens as f64, time.seconds()));
            match rate.filter(|(tokens, seconds)| *tokens > 0.0 && *seconds > 0.0) {
                Some((tokens, seconds)) => format!(" {:.0} tok/s", tokens / seconds),
                None => String::new(),
            }
        };
        let prefill = speed(request.computed_tokens, request.prefill);
        let decode = speed(request.output_tokens.map(|n| n.saturating_sub(1)), request.decode);
        let parts = [
            ("queue", request.queued, String::new(), Tone::Text),
            ("restore", self.restore.map(|r| r.took), String::new(), Tone::Text),
            ("prefill", request.prefill, prefill, Tone::Text),
            ("ttft", request.ttft, String::new(), Tone::Strong),
            ("decode", request.decode, decode, Tone::Text),
            ("total", request.took, String::new(), Tone::Text),
        ];
        let mut spans = vec![canvas.span(left("time", NAMES), Tone::Dim)];
        for (name, time, rate, tone) in parts {
            spans.push(canvas.span(format!("{name} "), Tone::Dim));
            spans.push(canvas.span(duration(time), tone));
            spans.push(canvas.span(format!("{rate}  "), Tone::Dim));
        }
        canvas.line(area, at, &Line::from(spans));
    }
}

fn cell_of(area: Rect, column: usize, row: usize) -> Option<Rect> {
    let (column, row) = (u16::try_from(column).ok()?, u16::try_from(row).ok()?);
    (column < area.width && row < area.height).then(|| Rect::new(area.x + column, area.y + row, 1, 1))
}

/// A bar and figures for a prefill that is under way, `None` at any other time. The bar has `columns` columns.
pub fn prefill_words(model: &Model, request: &RequestFacts, columns: usize) -> Option<String> {
    let running = model.running().is_some_and(|r| r.id == request.id);
    let (done, total) = request.progress.filter(|_| running && request.prefill.is_none())?;
    let done = done.min(total);
    let filled = (u128::from(done) * columns as u128 / u128::from(total.max(1))) as usize;
    let percent = u128::from(done) * 100 / u128::from(total.max(1));
    Some(format!(
        "prefill {}{} {}/{} {percent} %",
        "█".repeat(filled),
        "░".repeat(columns.saturating_sub(filled)),
        thousands(done),
        thousands(total)
    ))
}

fn loss_look(loss: &Loss) -> (&'static str, Tone) {
    use crate::event::Cause;
    match loss.cause {
        cause if cause.is_loss() => ("▒", Tone::Warn),
        Cause::Appended | Cause::Cold => ("░", Tone::Suffix),
        _ => ("·", Tone::Dim),
    }
}

/// The name of the waterfall's level at `remaining` tokens, behind the loss number `index`.
fn level_name(restore: &Restore, remaining: u64, index: usize) -> &'static str {
    let is_last = index + 1 == restore.losses.len();
    match remaining {
        level if is_last && level == restore.checkpoint_tokens => "checkpoint",
        level if restore.common_prefix_tokens == Some(level) => "common prefix",
        level if level == restore.matched_tokens => "held",
        level if level == restore.matched_with_state_tokens => "restorable",
        level if level == restore.checkpoint_tokens => "checkpoint",
        _ => "leaves",
    }
}

fn written_by(block: &BlockFact) -> String {
    let Some(request) = block.written_by else { return String::new() };
    let route = block.route.map_or_else(String::new, |route| format!(" ({})", route.word()));
    let at = block.written_at.map_or_else(String::new, |at| format!(" at {}", clock(at)));
    format!(" · written by request {}{route}{at}", request.0)
}

/// A point in the run: `12.3s` after its start.
fn clock(at: Stamp) -> String {
    duration(Some(Nanos(at.0)))
}

/// How many blocks there are of each residency, restored first.
fn residency_counts(blocks: &[BlockFact]) -> String {
    use Residency::{Evicted, Held, Missing, Placeholder, Ram};
    let parts: Vec<String> = [Ram, Held, Placeholder, Evicted, Missing]
        .into_iter()
        .filter_map(|kind| {
            let n = blocks.iter().filter(|b| b.residency == kind).count();
            let (glyph, _, words) = block_look(kind);
            (n > 0).then(|| format!("{glyph} {n} {words}"))
        })
        .collect();
    parts.join("  ")
}

/// The segment that has most of each column's tokens.
fn ruler(runs: &[SegmentRun], scale: Scale) -> Vec<Option<Segment>> {
    let mut out = vec![None; scale.columns];
    let mut weights = vec![0u64; scale.columns];
    let mut position = 0u64;
    for run in runs {
        let end = position.saturating_add(run.tokens);
        let last = scale.column(end.saturating_sub(1).max(position));
        let first = scale.column(position);
        let columns = out.iter_mut().zip(&mut weights).enumerate().skip(first).take(last + 1 - first);
        for (column, (slot, heaviest)) in columns {
            let overlap = end.min(scale.token(column + 1)).saturating_sub(position.max(scale.token(column)));
            // Template tokens are many and small; they win a column only where nothing else is in it.
            let weight =
                if run.segment == Segment::Glue { overlap.min(1) } else { overlap.saturating_add(1) };
            if weight > *heaviest || slot.is_none() {
                *slot = Some(run.segment);
                *heaviest = weight;
            }
        }
        position = end;
    }
    out
}

/// A round distance between axis labels that leaves room for them.
fn nice_step(scale: Scale) -> u64 {
    let wanted = (scale.tokens / (scale.columns as u64 / 12).max(1)).max(1);
    let mut step = 1u64;
    for factor in [2, 5, 10].into_iter().cycle() {
        let decade = 10u64.saturating_pow(step.ilog10());
        if step >= wanted || step > u64::MAX / 20 {
            break;
        }
        step = if factor == 10 { decade * 10 } else { decade * factor };
    }
    step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ruler_shows_the_segment_that_fills_a_column() {
        let run = |segment, tokens| SegmentRun { segment, tokens };
        let runs = [
            run(Segment::Glue, 2),
            run(Segment::System, 38),
            run(Segment::User, 40),
            run(Segment::Assistant, 20),
        ];
        let letters: String = ruler(&runs, Scale { tokens: 100, columns: 10 })
            .into_iter()
            .map(|s| s.map_or(' ', Segment::letter))
            .collect();
        assert_eq!(letters, "SSSSuuuuaa");
        assert!(ruler(&runs, Scale { tokens: 100, columns: 0 }).is_empty());
        assert_eq!(
            ruler(&[run(Segment::User, u64::MAX)], Scale { tokens: 0, columns: 3 })[0],
            Some(Segment::User)
        );
    }

    #[test]
    fn axis_labels_stand_at_round_numbers() {
        assert_eq!(nice_step(Scale { tokens: 45_732, columns: 100 }), 10_000);
        assert_eq!(nice_step(Scale { tokens: 8_192, columns: 60 }), 2_000);
        assert_eq!(nice_step(Scale { tokens: 0, columns: 0 }), 1);
        assert!(nice_step(Scale { tokens: u64::MAX, columns: 1 }) > 0);
    }
}
