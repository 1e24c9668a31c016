//! The transcript: what was said in the lane's history, and the reply as it is being written.
//!
//! Wrapped lines are kept between frames and only the visible ones are touched, so a long transcript scrolls as fast as a
//! short one; of a growing reply, only what follows its last line feed is wrapped again.

mod accepted;
mod kept;

use std::collections::HashMap;
use std::ops::Range;

use ratatui::layout::Rect;
use ratatui::text::Line;

use super::request::Kept;
use crate::event::{Phase, RequestId, Segment};
use crate::ledger::RequestFacts;
use crate::tui::app::{Model, Page, Pane};
use crate::tui::text::{self, count, sanitise, wrap_line};
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;
use accepted::{accepted_bytes, marked_lines};
use kept::KeptTexts;

/// Columns of the role markers.
const GUTTER: usize = 7;

/// Which text a cache entry belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Part {
    /// A message the request added, by its position.
    Item(usize),
    /// The reply.
    Reply,
}

/// One text, wrapped.
#[derive(Debug, Default)]
struct Wrapped {
    lines: Vec<Box<str>>,
    /// Bytes of the text up to and including its last line feed: they are wrapped for good.
    settled_bytes: usize,
    /// Lines those bytes became.
    settled_lines: usize,
    /// Length of the text when it was wrapped.
    text_bytes: usize,
    /// Whether the text was final then.
    is_final: bool,
}

impl Wrapped {
    /// Brings the lines up to date with `text`; returns the bytes that had to be wrapped.
    fn update(&mut self, text: &str, is_final: bool, columns: usize) -> usize {
        let unchanged = self.text_bytes == text.len() && self.is_final == is_final && !self.lines.is_empty();
        if unchanged {
            return 0;
        }
        // A final text may differ from what was streamed, and a shorter one certainly does.
        if self.is_final != is_final
            || text.len() < self.text_bytes
            || !text.is_char_boundary(self.settled_bytes)
        {
            *self = Wrapped::default();
        }
        self.lines.truncate(self.settled_lines);
        let tail = &text[self.settled_bytes..];
        let (settled, open) = tail.split_at(tail.rfind('\n').map_or(0, |at| at + 1));
        for line in settled.split_terminator('\n') {
            wrap_line(&sanitise(line), columns, &mut self.lines);
        }
        self.settled_bytes += settled.len();
        self.settled_lines = self.lines.len();
        if !open.is_empty() || self.lines.is_empty() {
            wrap_line(&sanitise(open), columns, &mut self.lines);
        }
        self.text_bytes = text.len();
        self.is_final = is_final;
        tail.len()
    }
}

/// Wrapped text, kept between frames.
#[derive(Debug, Default)]
pub struct WrapCache {
    columns: usize,
    texts: HashMap<(RequestId, Part), Wrapped>,
    /// Bytes wrapped so far: what a test of the work done looks at.
    pub bytes_wrapped: usize,
    /// Lines handed out for drawing so far.
    pub lines_visited: usize,
}

impl WrapCache {
    /// Forgets everything if the width changed.
    fn set_columns(&mut self, columns: usize) {
        if self.columns != columns {
            self.texts.clear();
            self.columns = columns;
        }
    }

    fn lines(&mut self, key: (RequestId, Part), text: &str, is_final: bool) -> usize {
        let wrapped = self.texts.entry(key).or_default();
        self.bytes_wrapped += wrapped.update(text, is_final, self.columns);
        wrapped.lines.len()
    }

    /// The marked stretches of each line of a text that was wrapped.
    fn marks(&self, key: (RequestId, Part), text: &str, marks: &[Range<usize>]) -> Vec<Vec<Range<usize>>> {
        let Some(wrapped) = self.texts.get(&key).filter(|_| !marks.is_empty()) else { return Vec::new() };
        marked_lines(text, marks, wrapped.lines.iter().map(|line| &**line))
    }

    fn line(&mut self, key: (RequestId, Part), index: usize) -> &str {
        self.lines_visited += 1;
        self.texts.get(&key).and_then(|w| w.lines.get(index)).map_or("", |line| line)
    }
}

/// A stretch of transcript lines.
struct Stretch<'a> {
    request: &'a RequestFacts,
    kind: Kind,
    lines: usize,
}

#[derive(Clone, Copy)]
enum Kind {
    /// The line that opens a turn.
    Turn,
    /// A text and who wrote it.
    Text(Part, Segment),
}

/// Who said it. Of two replies to a turn, the model's is its own; the one that history carries in recorded mode is told apart.
fn role_word(part: Part, segment: Segment) -> &'static str {
    match segment {
        Segment::Assistant if part != Part::Reply => "record",
        Segment::System => "system",
        Segment::ToolSchema => "tools",
        Segment::User => "user",
        Segment::Assistant => "asst",
        Segment::ToolCall => "call",
        Segment::ToolResult => "result",
        Segment::Glue => "tmpl",
        Segment::Injected => "inject",
    }
}

/// Draws the pane.
pub fn draw(canvas: &mut Canvas<'_>, model: &Model, area: Rect) {
    let columns = usize::from(area.width).saturating_sub(GUTTER + 1);
    canvas.wrapped.set_columns(columns);
    let filter = model.ui.filter[Pane::Transcript.index()].to_lowercase();
    let history = model.history();
    let stretches = stretches(canvas.wrapped, &history, &filter);
    let lines: usize = stretches.iter().map(|s| s.lines).sum();
    let live = model.ledger().run().is_some_and(|run| run.replay_mode == "live");
    let kept = model.selected().and_then(|request| KeptTexts::of(request, &history, live));
    let progress = history.last().and_then(|r| super::request::prefill_words(model, r, columns.min(40)));
    let height = usize::from(area.height).saturating_sub(usize::from(progress.is_some()));
    let top = Page::top_for(lines, height, model.ui.scroll[Pane::Transcript.index()]);
    canvas.note_page(Pane::Transcript, lines, height, top);
    if stretches.is_empty() {
        let words = if filter.is_empty() {
            "here: what was said, and the reply as it is written"
        } else {
            "no message matches the filter"
        };
        canvas.put(area, 1, 0, words, Tone::Dim);
    }
    draw_window(canvas, area, &stretches, kept.as_ref(), top, height);
    if let Some(words) = progress {
        canvas.put(area, GUTTER, height, &words, Tone::Good);
    }
}

fn stretches<'a>(cache: &mut WrapCache, history: &[&'a RequestFacts], filter: &str) -> Vec<Stretch<'a>> {
    let mut out = Vec::new();
    let keep = |text: &str| filter.is_empty() || text.to_lowercase().contains(filter);
    for request in history {
        let opened = out.len();
        out.push(Stretch { request, kind: Kind::Turn, lines: 1 });
        for (index, item) in request.items.iter().enumerate().filter(|(_, item)| keep(&item.text)) {
            let part = Part::Item(index);
            let lines = cache.lines((request.id, part), &item.text, true);
            out.push(Stretch { request, kind: Kind::Text(part, item.segment), lines });
        }
        let is_final = request.output_tokens.is_some() || request.phase == Phase::Done;
        if !request.text.is_empty() && keep(&request.text) {
            let lines = cache.lines((request.id, Part::Reply), &request.text, is_final);
            out.push(Stretch { request, kind: Kind::Text(Part::Reply, Segment::Assistant), lines });
        }
        if !filter.is_empty() && out.len() == opened + 1 {
            out.pop();
        }
    }
    out
}

fn draw_window(
    canvas: &mut Canvas<'_>,
    area: Rect,
    stretches: &[Stretch<'_>],
    kept: Option<&KeptTexts<'_>>,
    top: usize,
    height: usize,
) {
    let mut first = 0;
    for stretch in stretches {
        if matches!(stretch.kind, Kind::Turn) {
            canvas.layout.turns.push((stretch.request.id, first));
        }
        let end = first + stretch.lines;
        let visible = first.max(top)..end.min(top + height);
        let marks = match stretch.kind {
            Kind::Text(Part::Reply, _) if !visible.is_empty() => {
                let (request, accepted) = (stretch.request, accepted_bytes(stretch.request));
                canvas.wrapped.marks((request.id, Part::Reply), &request.text, &accepted)
            }
            _ => Vec::new(),
        };
        for line in visible {
            let marks = marks.get(line - first).map_or(&[][..], Vec::as_slice);
            draw_line(canvas, area, line - top, stretch, kept, (line - first, marks));
        }
        first = end;
    }
}

fn draw_line(
    canvas: &mut Canvas<'_>,
    area: Rect,
    row: usize,
    stretch: &Stretch<'_>,
    kept: Option<&KeptTexts<'_>>,
    (index, marks): (usize, &[Range<usize>]),
) {
    let request = stretch.request;
    let (part, segment) = match stretch.kind {
        Kind::Turn => {
            let name = sanitise(&request.name).into_owned();
            let words =
                format!("── turn {} · {name} · prompt {} ", request.turn, count(request.prompt_tokens));
            let rule = "─".repeat(usize::from(area.width).saturating_sub(text::width(&words)));
            canvas.put(area, 0, row, &format!("{words}{rule}"), Tone::Dim);
            return;
        }
        Kind::Text(part, segment) => (part, segment),
    };
    let text = (request.id, part);
    let became = kept.and_then(|kept| kept.line(text, index, stretch.lines));
    let share = kept.filter(|_| index == 1).and_then(|kept| kept.percent(text));
    let marker = match (index, share) {
        (0, _) => role_word(part, segment).to_owned(),
        (_, Some(share)) => text::right(&format!("{share}%"), GUTTER - 2),
        _ => String::new(),
    };
    let writing = part == Part::Reply && request.phase == Phase::Decode && index + 1 == stretch.lines;
    let tone = match segment {
        _ if became == Some(Kept::Dropped) => Tone::Dim,
        _ if matches!(became, Some(Kept::Whole | Kept::Partly)) => Tone::Text,
        Segment::System | Segment::ToolSchema | Segment::Glue => Tone::Dim,
        _ => Tone::Text,
    };
    let (rail, rail_tone) = match became {
        None | Some(Kept::Densely) => (if index == 0 { " " } else { "│" }, Tone::Segment(segment)),
        Some(became) => became.look(),
    };
    let line = canvas.wrapped.line((request.id, part), index).to_owned();
    let mut spans = vec![
        canvas.span(text::left(&marker, GUTTER - 1), Tone::Segment(segment)),
        canvas.span(rail, rail_tone),
    ];
    let mut drawn = 0;
    for mark in marks {
        let plain = line.get(drawn..mark.start).unwrap_or_default().to_owned();
        let marked = line.get(mark.clone()).unwrap_or_default().to_owned();
        spans.extend([canvas.span(plain, tone), canvas.span(marked, Tone::Accepted)]);
        drawn = mark.end;
    }
    spans.push(canvas.span(line.get(drawn..).unwrap_or_default().to_owned(), tone));
    if writing {
        spans.push(canvas.span("▌", Tone::Key));
    }
    canvas.line(area, row, &Line::from(spans));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_growing_text_is_wrapped_from_its_last_line_feed_on() {
        let mut wrapped = Wrapped::default();
        let mut text = String::new();
        let mut work = 0;
        for token in 1..=2_000 {
            text.push_str(if token % 80 == 0 { "word\n" } else { "word " });
            work += wrapped.update(&text, false, 60);
        }
        assert!(work < 2_000 * 500, "wrapped {work} bytes for {} tokens", 2_000);
        let mut whole = Wrapped::default();
        whole.update(&text, false, 60);
        assert_eq!(wrapped.lines, whole.lines, "piecemeal and at once give the same lines");
        assert_eq!(wrapped.update(&text, false, 60), 0, "nothing to do when nothing changed");
    }

    #[test]
    fn a_final_text_that_differs_replaces_what_was_streamed() {
        let mut wrapped = Wrapped::default();
        wrapped.update("one\ntwo\nthree", false, 20);
        wrapped.update("uno\ndos\ntres!", true, 20);
        assert_eq!(wrapped.lines.iter().map(|l| &**l).collect::<Vec<_>>(), ["uno", "dos", "tres!"]);
        wrapped.update("", false, 20);
        assert_eq!(wrapped.lines.len(), 1);
    }
}
