//! One request: how much of its prompt was reusable and what became of the rest. Bar, segments and blocks share one scale
//! from the first prompt token to the last, so the block that is responsible stands under the tokens it cost.

use std::ops::RangeInclusive;

use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use crate::event::{BlockFact, EndState, Loss, Nanos, Residency, Restore, Segment, SegmentRun, Stamp};
use crate::ledger::RequestFacts;
use crate::tui::app::{Model, Pane};
use crate::tui::memory;
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
    let drawing = Drawing { model, request, restore: request.restore.as_ref(), scale };
    for (at, row) in drawing.rows(canvas, width, usize::from(area.height)).into_iter().enumerate() {
        match row {
            Row::Axis => drawing.axis(canvas, area, at),
            Row::Bar => drawing.bar(canvas, area, at),
            Row::Segments => drawing.segments(canvas, area, at),
            Row::Blocks => drawing.blocks(canvas, area, at),
            Row::Snapshots => drawing.snapshots(canvas, area, at),
            Row::Words(line) => canvas.line(area, at, &line),
        }
    }
}

enum Row {
    Axis,
    Bar,
    Segments,
    Blocks,
    Snapshots,
    Words(Line<'static>),
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
    restore.blocks.iter().position(|block| !block.residency.is_restored())
}

/// What a block's residency looks like.
fn block_look(residency: Residency) -> (&'static str, Tone, &'static str) {
    match residency {
        Residency::Ram => ("■", Tone::Checkpoint, "restored from RAM"),
        Residency::Ssd => ("▣", Tone::Checkpoint, "restored from SSD"),
        Residency::Held => ("▒", Tone::Suffix, "held, not restorable"),
        Residency::HeldSsd => ("░", Tone::Suffix, "held on SSD only, not restorable"),
        Residency::Damaged => ("✗", Tone::Warn, "file damaged"),
        Residency::Evicted => ("▫", Tone::Warn, "evicted"),
        Residency::Missing => ("·", Tone::Dim, "not held"),
    }
}

/// What a held block's end looks like in recurrent layers.
fn endpoint_look(snapshot: bool) -> (&'static str, Tone, &'static str) {
    match snapshot {
        true => ("●", Tone::Checkpoint, "snapshot"),
        false => ("□", Tone::Dim, "placeholder"),
    }
}

/// Whether the model has recurrent layers, as far as the blocks can tell.
fn has_snapshots(restore: &Restore) -> bool {
    restore.blocks.iter().any(|block| block.recurrent.is_some())
}

/// What the glyphs of the recurrent layers' row mean, where there is such a row.
pub fn endpoint_glyphs(restore: &Restore) -> Option<String> {
    has_snapshots(restore).then(|| {
        let [(real, _, snapshot), (none, _, placeholder)] = [true, false].map(endpoint_look);
        format!("{real} {snapshot}  {none} {placeholder}")
    })
}

/// How alarming a residency is, for columns that hold several blocks.
fn severity(residency: Residency) -> u8 {
    match residency {
        Residency::Ram => 0,
        Residency::Ssd => 1,
        Residency::Missing => 2,
        Residency::Held => 3,
        Residency::HeldSsd => 4,
        Residency::Evicted => 5,
        Residency::Damaged => 6,
    }
}

struct Drawing<'a> {
    model: &'a Model,
    request: &'a RequestFacts,
    restore: Option<&'a Restore>,
    scale: Scale,
}

impl Drawing<'_> {
    /// What the pane shows, from the top. Where rows are scarce the axis and the legend go first; where there are some
    /// to spare, texts that are longer than a line get another one.
    fn rows(&self, canvas: &Canvas<'_>, width: usize, height: usize) -> Vec<Row> {
        let losses: Vec<_> = self
            .restore
            .map(|restore| {
                (0..restore.losses.len()).map(|at| self.loss(canvas, restore, at, width)).collect()
            })
            .unwrap_or_default();
        let timing = self.timing(canvas, width);
        let legend = self.legend(canvas, width);
        let block = self.restore.map(|restore| self.block_detail(canvas, restore));
        let memory = memory::of_request(canvas, self.request, width.saturating_sub(NAMES));
        let memory = if memory.is_empty() { Vec::new() } else { flow(canvas, "memory", memory, width) };
        let snapshots = self.restore.is_some_and(has_snapshots);
        // That memory shrank a chunk explains the time, so it is told like a loss.
        let memory_certain = memory.len().min(self.request.shrunk.iter().len());
        let certain = 4 + losses.len() + 2 * block.iter().len() + usize::from(snapshots) + memory_certain;
        let mut spare = height.saturating_sub(certain);
        let mut grant = |wanted: usize| {
            let granted = wanted.min(spare);
            spare -= granted;
            granted
        };
        let axis = grant(1);
        let legend_lines = grant(1);
        let loss_lines: Vec<usize> = losses.iter().map(|lines| 1 + grant(lines.len() - 1)).collect();
        let timing_lines = 1 + grant(timing.len() - 1);
        let memory_lines = memory_certain + grant(memory.len() - memory_certain);
        let legend_lines = legend_lines + grant(legend.len() - legend_lines);

        let mut rows = vec![Row::Words(self.equation(canvas))];
        rows.extend((0..axis).map(|_| Row::Axis));
        rows.extend([Row::Bar, Row::Segments]);
        if let Some(line) = block {
            rows.push(Row::Blocks);
            rows.extend(snapshots.then_some(Row::Snapshots));
            rows.push(Row::Words(line));
        }
        rows.extend(legend.into_iter().take(legend_lines).map(Row::Words));
        let shown =
            losses.into_iter().zip(loss_lines).flat_map(|(lines, shown)| lines.into_iter().take(shown));
        rows.extend(shown.map(Row::Words));
        rows.truncate(height.saturating_sub(1 + memory_certain));
        rows.extend(timing.into_iter().take(timing_lines).map(Row::Words));
        rows.extend(memory.into_iter().take(memory_lines).map(Row::Words));
        rows
    }

    /// `prompt 45,732 = checkpoint 28,672 + suffix 17,060`, the progress of the prefill, or the error.
    fn equation(&self, canvas: &Canvas<'_>) -> Line<'static> {
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
            let error = text::sanitise(error).replace('\n', " ");
            spans.push(canvas.span(format!("   FAILED: {error}"), Tone::Warn));
        } else if let Some(words) = prefill_words(self.model, request, 20) {
            spans.push(canvas.span(format!("   {words}"), Tone::Good));
        } else if let Some(reason) = request.reason {
            let out = count(request.output_tokens);
            spans.push(canvas.span(format!("   reply {out} tok, {}", reason.word()), Tone::Dim));
        }
        Line::from(spans)
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
        for column in 0..self.scale.columns {
            let range = self.blocks_of(column);
            let blocks = restore.blocks.iter().take(range.end().saturating_add(1)).skip(*range.start());
            let Some(worst) = blocks.max_by_key(|block| severity(block.residency)) else { continue };
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

    /// Where the recurrent layers' state exists: a column shows a snapshot if any of its blocks has one.
    fn snapshots(&self, canvas: &mut Canvas<'_>, area: Rect, at: usize) {
        canvas.put(area, 0, at, "recurrent", Tone::Dim);
        let Some(restore) = self.restore else { return };
        for column in 0..self.scale.columns {
            let range = self.blocks_of(column);
            let blocks = restore.blocks.iter().take(range.end().saturating_add(1)).skip(*range.start());
            let Some(snapshot) = blocks.filter_map(|block| block.recurrent.map(EndState::is_real)).max()
            else {
                continue;
            };
            let (glyph, tone, _) = endpoint_look(snapshot);
            canvas.put(area, NAMES + column, at, glyph, tone);
        }
    }

    /// The blocks of which some tokens stand in `column`.
    fn blocks_of(&self, column: usize) -> RangeInclusive<usize> {
        let index = |token: u64| usize::try_from(token / self.block_tokens()).unwrap_or(usize::MAX);
        let first = self.scale.token(column);
        let last = self.scale.token(column + 1).saturating_sub(1).max(first);
        index(first)..=index(last)
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
    fn block_detail(&self, canvas: &Canvas<'_>, restore: &Restore) -> Line<'static> {
        let indent = canvas.span(" ".repeat(NAMES), Tone::Dim);
        let counts = residency_counts(&restore.blocks);
        let Some(index) = self.chosen_block(restore) else {
            let words = format!("all whole blocks restored · {counts}");
            return Line::from(vec![indent, canvas.span(words, Tone::Dim)]);
        };
        let block = &restore.blocks[index];
        let (glyph, tone, words) = block_look(block.residency);
        let from = u64::from(block.index).saturating_mul(self.block_tokens());
        let to = from.saturating_add(self.block_tokens());
        let origin = written_by(block);
        let endpoint = match block.recurrent {
            Some(EndState::Ram) => ", snapshot at its end",
            Some(EndState::Ssd) => ", snapshot at its end on SSD",
            Some(EndState::Placeholder) => ", placeholder at its end",
            Some(EndState::Dropped) => ", snapshot at its end dropped",
            None => "",
        };
        Line::from(vec![
            indent,
            canvas.span(format!("▲ block {} ", block.index), Tone::Key),
            canvas.span(format!("{glyph} {words}{endpoint}"), tone),
            canvas.span(format!(" · tokens {}–{}{origin}", thousands(from), thousands(to)), Tone::Text),
            canvas.span(format!("   {counts}"), Tone::Dim),
        ])
    }

    fn legend(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let mut present: Vec<Segment> = Vec::new();
        for run in &self.request.segments {
            if !present.contains(&run.segment) {
                present.push(run.segment);
            }
        }
        present.sort();
        let entries = present.into_iter().map(|segment| {
            vec![
                canvas.span(segment.letter().to_string(), Tone::Segment(segment)),
                canvas.span(format!(" {}  ", segment.word()), Tone::Dim),
            ]
        });
        flow(canvas, "", entries.chain(self.endpoint_legend(canvas)), width)
    }

    /// How many blocks have which state of recurrent layers at their end.
    fn endpoint_legend(&self, canvas: &Canvas<'_>) -> Vec<Vec<Span<'static>>> {
        let blocks = self.restore.map(|restore| restore.blocks.as_slice()).unwrap_or_default();
        let entry = |snapshot| {
            let n = blocks
                .iter()
                .filter(|block| block.recurrent.map(EndState::is_real) == Some(snapshot))
                .count();
            let (glyph, tone, word) = endpoint_look(snapshot);
            let plural = if n == 1 { "" } else { "s" };
            (n > 0).then(|| {
                vec![canvas.span(glyph, tone), canvas.span(format!(" {n} {word}{plural}  "), Tone::Dim)]
            })
        };
        [true, false].into_iter().filter_map(entry).collect()
    }

    /// One step of the waterfall: what was lost, why, and the level that remains.
    fn loss(&self, canvas: &Canvas<'_>, restore: &Restore, index: usize, width: usize) -> Vec<Line<'static>> {
        let loss = &restore.losses[index];
        let lost = restore.losses[..=index].iter().fold(0u64, |sum, loss| sum.saturating_add(loss.tokens));
        let remaining = self.scale.tokens.saturating_sub(lost);
        let (glyph, tone) = loss_look(loss);
        let words_tone = if loss.cause.is_loss() { Tone::Warn } else { Tone::Text };
        let phrase = loss.cause.phrase();
        let phrase = if loss.cause.is_loss() { phrase.to_uppercase() } else { phrase.to_owned() };
        let detail = text::sanitise(&loss.detail).replace('\n', " ");
        let words = if detail.is_empty() { phrase } else { format!("{phrase}: {detail}") };
        let name = left(level_name(restore, remaining, index), 13);
        let level = format!("→ {name} {}", right(&thousands(remaining), 7));
        let room = width.saturating_sub(NAMES + text::width(&level) + 3);

        let mut pieces = Vec::new();
        text::wrap_line(&words, room, &mut pieces);
        let mut lines = vec![Line::from(vec![
            canvas.span(format!("−{} {glyph} ", right(&thousands(loss.tokens), NAMES - 3)), tone),
            canvas.span(left(&pieces[0], room), words_tone),
            canvas.span(format!(" {level}"), Tone::Strong),
        ])];
        for piece in &pieces[1..] {
            let indent = " ".repeat(NAMES + 1);
            lines.push(Line::from(canvas.span(format!("{indent}{piece}"), words_tone)));
        }
        lines
    }

    fn timing(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
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
        let parts = parts.into_iter().map(|(name, time, rate, tone)| {
            vec![
                canvas.span(format!("{name} "), Tone::Dim),
                canvas.span(duration(time), tone),
                canvas.span(format!("{rate}  "), Tone::Dim),
            ]
        });
        flow(canvas, "time", parts, width)
    }
}

/// Groups of spans on as many lines as they need, at least one, behind the row's name.
fn flow(
    canvas: &Canvas<'_>,
    name: &str,
    groups: impl IntoIterator<Item = Vec<Span<'static>>>,
    width: usize,
) -> Vec<Line<'static>> {
    let mut lines = vec![vec![canvas.span(left(name, NAMES), Tone::Dim)]];
    let mut used = NAMES;
    for group in groups {
        // The two blanks that end a group may hang over the edge.
        let size: usize = group.iter().map(Span::width).sum();
        if used + size > width + 2 && used > NAMES {
            lines.push(vec![canvas.span(" ".repeat(NAMES), Tone::Dim)]);
            used = NAMES;
        }
        used += size;
        if let Some(line) = lines.last_mut() {
            line.extend(group);
        }
    }
    lines.into_iter().map(Line::from).collect()
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
    use Residency::{Damaged, Evicted, Held, HeldSsd, Missing, Ram, Ssd};
    let parts: Vec<String> = [Ram, Ssd, Held, HeldSsd, Damaged, Evicted, Missing]
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
