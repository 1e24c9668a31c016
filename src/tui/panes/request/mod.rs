//! One request: how much of its prompt was reusable and what became of the rest. Bar, segments and blocks share one scale
//! from the first prompt token to the last, so the block that is responsible stands under the tokens it cost.

mod decode;
mod rack;
mod scale;
mod sparse;
mod waterfall;

use std::ops::RangeInclusive;

use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;

use super::flow::{NAMES, flow};
use crate::event::{BlockFact, Nanos, Restore, Segment, SsdRead};
use crate::ledger::RequestFacts;
use crate::tui::app::{Model, Pane};
use crate::tui::panes::verify::shared_forwards;
use crate::tui::sections::{Section, allot};
use crate::tui::text::{duration, kilo, thousands};
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;
use crate::tui::{memory, tier};
use rack::LayerClass;
pub(in crate::tui) use rack::{chosen_block, endpoint_glyphs};
use scale::{Scale, nice_step, ruler};
pub(in crate::tui) use sparse::{Kept, kept_of};
pub(in crate::tui) use waterfall::culprit_words;
use waterfall::loss_look;

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
    let rows = allot(drawing.sections(canvas, width), usize::from(area.height));
    for (at, row) in rows.into_iter().enumerate() {
        match row {
            Row::Axis => drawing.axis(canvas, area, at),
            Row::Bar => drawing.bar(canvas, area, at),
            Row::Segments => drawing.segments(canvas, area, at),
            Row::Kept => drawing.kept(canvas, area, at),
            Row::Draft => drawing.draft(canvas, area, at),
            Row::Layers(class) => drawing.layers(canvas, area, at, class),
            Row::Words(line) => canvas.line(area, at, &line),
        }
    }
}

enum Row {
    Axis,
    Bar,
    Segments,
    Kept,
    Draft,
    Layers(LayerClass),
    Words(Line<'static>),
}

fn words(lines: Vec<Line<'static>>) -> Vec<Row> {
    lines.into_iter().map(Row::Words).collect()
}

struct Drawing<'a> {
    model: &'a Model,
    request: &'a RequestFacts,
    restore: Option<&'a Restore>,
    scale: Scale,
}

impl Drawing<'_> {
    /// What the pane shows, from the top: how the prompt divides, the rack, the losses, the times. Where rows are scarce the
    /// legends go first, and a loss keeps its first line longest.
    fn sections(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Section<Row>> {
        let equation = words(self.equation(canvas, width));
        let under_way = self.request.progress.is_some() && self.request.prefill.is_none();
        let certain = if under_way { equation.len() } else { 1 };
        let mut sections = vec![
            Section::new(0, equation).at_least(certain, 6),
            Section::new(6, vec![Row::Axis]),
            Section::new(0, vec![Row::Bar]),
        ];
        let has_segments = !self.request.segments.is_empty();
        if has_segments {
            sections.push(Section::new(2, vec![Row::Segments]));
        }
        if self.request.scored.is_some() {
            sections.push(Section::new(0, vec![Row::Kept]));
            sections.push(Section::new(3, vec![Row::Draft]));
        }
        if let Some(restore) = self.restore {
            let levels = words(self.levels(canvas, restore, width));
            sections.insert(1, Section::new(4, levels).at_least(1, 5));
            let layers = LayerClass::present(restore).map(Row::Layers).collect();
            sections.push(Section::new(0, layers));
            let block = words(self.block_detail(canvas, restore, width));
            sections.push(Section::new(1, block).at_least(1, 4));
            if !restore.blocks.is_empty() {
                let legend = words(self.rack_legend(canvas, restore, width));
                sections.push(Section::new(5, legend).at_least(1, 5));
            }
            for index in 0..restore.losses.len() {
                let loss = words(self.loss(canvas, restore, index, width));
                sections.push(Section::new(0, loss).at_least(1, 3));
            }
        }
        let sparse = words(self.sparse(canvas, width));
        let certain = 1 + usize::from(self.request.fell_back.is_some());
        sections.push(Section::new(0, sparse).at_least(certain, 3));
        sections.push(Section::new(1, words(self.decode(canvas, width))).at_least(1, 7));
        sections.push(Section::new(1, words(self.timing(canvas, width))).at_least(1, 7));
        sections.extend(self.memory(canvas, width));
        if has_segments {
            sections.push(Section::new(7, words(self.segment_legend(canvas, width))));
        }
        sections
    }

    /// The device's memory and the SSD tier. That memory shrank a chunk explains the time, so it is told like a loss.
    fn memory(&self, canvas: &Canvas<'_>, width: usize) -> Option<Section<Row>> {
        let room = width.saturating_sub(NAMES);
        let mut groups = memory::of_request(canvas, self.request, room);
        if let Some(gauge) = tier::of_request(self.model, self.request, room) {
            groups.push(vec![canvas.span(gauge, Tone::Text), canvas.span("  ", Tone::Dim)]);
        }
        if groups.is_empty() {
            return None;
        }
        let lines = words(flow(canvas, "memory", groups, width));
        let certain = self.request.shrunk.iter().len();
        Some(Section::new(1, lines).at_least(certain, 6))
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

    /// A row of the rack. A column that holds several blocks shows the one that says most.
    fn layers(&self, canvas: &mut Canvas<'_>, area: Rect, at: usize, class: LayerClass) {
        canvas.put(area, 0, at, class.name(), Tone::Dim);
        let Some(restore) = self.restore else { return };
        let chosen = chosen_block(self.model, restore);
        for column in 0..self.scale.columns {
            let range = self.blocks_of(column);
            if let Some(look) = class.look_of_all(self.blocks_in(restore, &range)) {
                canvas.put(area, NAMES + column, at, look.glyph, look.tone);
            }
            if chosen.is_some_and(|chosen| range.contains(&chosen))
                && let Some(cell) = cell_of(area, NAMES + column, at)
            {
                let style: Style = canvas.style(Tone::Selected);
                canvas.buffer.set_style(cell, style);
            }
        }
    }

    fn blocks_in<'r>(
        &self,
        restore: &'r Restore,
        range: &RangeInclusive<usize>,
    ) -> impl Iterator<Item = &'r BlockFact> + use<'r> {
        restore.blocks.iter().take(range.end().saturating_add(1)).skip(*range.start())
    }

    /// The blocks of which some tokens stand in `column`.
    fn blocks_of(&self, column: usize) -> RangeInclusive<usize> {
        let index = |token: u64| usize::try_from(token / self.block_tokens()).unwrap_or(usize::MAX);
        let first = self.scale.token(column);
        let last = self.scale.token(column + 1).saturating_sub(1).max(first);
        index(first)..=index(last)
    }

    fn block_tokens(&self) -> u64 {
        self.model.ledger().run().map_or(256, |run| run.block_tokens).max(1)
    }

    /// The chosen block: what it holds, its tokens, who wrote it.
    fn block_detail(&self, canvas: &Canvas<'_>, restore: &Restore, width: usize) -> Vec<Line<'static>> {
        let Some(index) = chosen_block(self.model, restore) else {
            if restore.blocks.is_empty() {
                return Vec::new();
            }
            let words = "all whole blocks restored";
            return flow(canvas, "", [vec![canvas.span(words, Tone::Dim)]], width);
        };
        let block = &restore.blocks[index];
        let look = LayerClass::Attention.look(block);
        let (glyph, tone) = look.map_or((" ", Tone::Text), |look| (look.glyph, look.tone));
        let from = u64::from(block.index).saturating_mul(self.block_tokens());
        let to = from.saturating_add(self.block_tokens());
        let mut groups = vec![
            vec![
                canvas.span(format!("▲ block {} ", block.index), Tone::Key),
                canvas.span(format!("{glyph} {}", rack::state_words(block)), tone),
            ],
            vec![canvas.span(format!(" · tokens {}–{}", thousands(from), thousands(to)), Tone::Text)],
        ];
        if let Some(words) = rack::provenance(block) {
            groups.push(vec![canvas.span(format!(" · {words}"), Tone::Text)]);
        }
        flow(canvas, "", groups, width)
    }

    /// What the glyphs of the rack mean, and how many blocks there are of each.
    fn rack_legend(&self, canvas: &Canvas<'_>, restore: &Restore, width: usize) -> Vec<Line<'static>> {
        let groups = LayerClass::present(restore).flat_map(|class| {
            class.counts(&restore.blocks).into_iter().enumerate().map(move |(at, (look, count))| {
                let class = if at == 0 { format!("{}: ", class.name()) } else { String::new() };
                vec![
                    canvas.span(class, Tone::Dim),
                    canvas.span(look.glyph, look.tone),
                    canvas.span(format!(" {} {}  ", thousands(count as u64), look.word), Tone::Dim),
                ]
            })
        });
        flow(canvas, "blocks", groups.collect::<Vec<_>>(), width)
    }

    fn segment_legend(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
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
        flow(canvas, "segments", entries, width)
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
        let failed = request.speculation_account().is_some_and(|account| account.audit.failure().is_some());
        let decode = match shared_forwards(request) {
            // How fast a wrong reply came is of no interest.
            _ if failed => String::new(),
            Some(forwards) => format!(" ({} forwards shared)", thousands(forwards)),
            None => speed(request.output_tokens.map(|n| n.saturating_sub(1)), request.decode),
        };
        let parts = [
            ("queue", request.queued, String::new(), Tone::Text),
            ("restore", self.restore.filter(|r| r.is_observed()).map(|r| r.took), String::new(), Tone::Text),
            ("prefill", request.prefill, prefill, Tone::Text),
            ("scorer", request.scored.as_ref().map(|scored| scored.took()), String::new(), Tone::Text),
            ("ttft", request.ttft, String::new(), Tone::Strong),
            ("decode", request.decode, decode, Tone::Text),
            ("total", request.took, String::new(), Tone::Text),
        ];
        let has_scorer = request.scored.is_some();
        let parts = parts.into_iter().filter(|part| part.0 != "scorer" || has_scorer);
        let parts = parts.map(|(name, time, rate, tone)| {
            vec![
                canvas.span(format!("{name} "), Tone::Dim),
                canvas.span(duration(time), tone),
                canvas.span(format!("{rate}  "), Tone::Dim),
            ]
        });
        let ssd = self.restore.and_then(|restore| restore.ssd).map(ssd_words);
        let ssd = ssd.map(|words| vec![canvas.span(words, Tone::Dim)]);
        flow(canvas, "time", parts.chain(ssd), width)
    }
}

/// What came from the SSD tier.
fn ssd_words(read: SsdRead) -> String {
    let SsdRead { blocks, snapshots, bytes, took } = read;
    let count = |count: u64, word: &str| match count {
        0 => None,
        1 => Some(format!("1 {word}")),
        many => Some(format!("{} {word}s", thousands(many))),
    };
    let what: Vec<String> =
        [count(blocks, "block"), count(snapshots, "snapshot")].into_iter().flatten().collect();
    let (bytes, took) = (crate::tui::text::bytes(bytes), duration(Some(took)));
    format!("{} from SSD: {bytes} in {took}  ", what.join(", "))
}

fn cell_of(area: Rect, column: usize, row: usize) -> Option<Rect> {
    let (column, row) = (u16::try_from(column).ok()?, u16::try_from(row).ok()?);
    (column < area.width && row < area.height).then(|| Rect::new(area.x + column, area.y + row, 1, 1))
}

/// A bar and figures for a scoring, a prefill, or a draft model's reading that is under way, `None` at any other time. The bar has `columns` columns.
pub fn prefill_words(model: &Model, request: &RequestFacts, columns: usize) -> Option<String> {
    if !model.runs_now(request) {
        return None;
    }
    let (word, (done, total)) = match (request.scoring, request.priming, request.progress) {
        (Some(scoring), ..) => ("scoring", scoring),
        (_, Some(priming), _) => ("priming", priming),
        (.., Some(progress)) if request.prefill.is_none() => ("prefill", progress),
        _ => return None,
    };
    let done = done.min(total);
    let filled = (u128::from(done) * columns as u128 / u128::from(total.max(1))) as usize;
    let percent = u128::from(done) * 100 / u128::from(total.max(1));
    Some(format!(
        "{word} {}{} {}/{} {percent} %",
        "█".repeat(filled),
        "░".repeat(columns.saturating_sub(filled)),
        thousands(done),
        thousands(total)
    ))
}
