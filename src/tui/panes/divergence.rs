//! The divergence microscope: the first token at which a prompt departs from an earlier one, in ids and text, what changed in words, and
//! which part of the prompt it lies in.

use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use unicode_segmentation::UnicodeSegmentation;

use crate::event::{Divergence, RequestId, Segment, SegmentRun, TokenText};
use crate::ledger::RequestFacts;
use crate::tui::app::{Model, Pane};
use crate::tui::sections::{Section, allot};
use crate::tui::text::{self, fit, left, ordinal, thousands};
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

/// Columns of the row names on the left.
const NAMES: usize = 13;
/// The most columns a token takes.
const TOKEN: usize = 18;
/// The most words of an excerpt that are compared.
const WORDS: usize = 64;
/// The most characters of an excerpt that are looked at.
const EXCERPT: usize = 2_000;
/// The most characters of a change that are quoted in a sentence.
const QUOTE: usize = 24;

/// The divergence of the selected request, if its prompt has one.
pub fn of_selected(model: &Model) -> Option<&Divergence> {
    model.selected()?.restore.as_ref()?.divergence.as_ref()
}

/// The requests of the history in view whose prompts depart from what came before, oldest first.
pub fn departing(model: &Model) -> Vec<RequestId> {
    let departs = |request: &&RequestFacts| request.restore.as_ref().is_some_and(|r| r.divergence.is_some());
    model.history().into_iter().filter(departs).map(|request| request.id).collect()
}

/// Draws the pane.
pub fn draw(canvas: &mut Canvas<'_>, model: &Model, area: Rect) {
    canvas.note_page(Pane::Divergence, 0, usize::from(area.height), 0);
    let width = usize::from(area.width);
    let lines = match (model.selected(), of_selected(model)) {
        (Some(request), Some(divergence)) => {
            let microscope = Microscope { model, request, divergence };
            allot(microscope.sections(canvas, width), usize::from(area.height))
        }
        (request, _) => nothing(canvas, model, request, width),
    };
    for (row, line) in lines.iter().enumerate() {
        canvas.line(area, row, line);
    }
}

/// Why there is no divergence to show, and where there is one.
fn nothing(
    canvas: &Canvas<'_>,
    model: &Model,
    request: Option<&RequestFacts>,
    width: usize,
) -> Vec<Line<'static>> {
    let others: Vec<String> = departing(model)
        .into_iter()
        .filter_map(|id| model.ledger().request(id))
        .map(|request| request.turn.to_string())
        .collect();
    let hint = match &others[..] {
        [] => "It shows the first token at which a prompt departs from an earlier one.".to_owned(),
        [turn] => format!("Turn {turn} departs from what came before: Left and Right lead there."),
        many => format!("Turns {} depart from what came before: Left and Right lead there.", many.join(", ")),
    };
    let mut lines = Vec::new();
    text::wrap_line(&why_none(model, request), width.saturating_sub(2), &mut lines);
    let why = lines.len();
    text::wrap_line(&hint, width.saturating_sub(2), &mut lines);
    let tone = |at: usize| if at < why { Tone::Text } else { Tone::Dim };
    lines.iter().enumerate().map(|(at, line)| Line::from(canvas.span(format!(" {line}"), tone(at)))).collect()
}

fn why_none(model: &Model, request: Option<&RequestFacts>) -> String {
    let Some(request) = request else { return "No request yet.".to_owned() };
    let id = request.id.0;
    let Some(restore) = &request.restore else {
        return format!("Request {id} has not been compared with the cache yet.");
    };
    let Some(before) = model.ledger().predecessor(request) else {
        return format!("Request {id} is the first: there is nothing to depart from.");
    };
    if restore.common_prefix_tokens.is_none() {
        return format!("It is not known what request {id} shares with request {}.", before.id.0);
    }
    let shared = restore.common_prefix_tokens.zip(request.fresh_tokens()).map(|(shared, fresh)| {
        format!(": {} tokens are shared, {} are new", thousands(shared), thousands(fresh))
    });
    let shared = shared.unwrap_or_default();
    if restore.common_prefix_tokens == request.prompt_tokens {
        return format!(
            "Request {id} is a beginning of request {}: nothing differs up to its end.",
            before.id.0
        );
    }
    format!("Request {id} only appends to request {}{shared}.", before.id.0)
}

struct Microscope<'a> {
    model: &'a Model,
    request: &'a RequestFacts,
    divergence: &'a Divergence,
}

impl Microscope<'_> {
    /// What the pane shows, from the top. The sentence and the two token rows stay longest.
    fn sections(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Section<Line<'static>>> {
        let mut sections = vec![
            Section::new(0, vec![self.place(canvas, width)]),
            Section::new(1, vec![self.change(canvas, width)]),
        ];
        sections.extend(self.streams(canvas, width));
        sections.extend(self.excerpts(canvas, width));
        sections.push(Section::new(4, self.cost(canvas, width)));
        sections.push(Section::new(7, vec![self.legend(canvas)]));
        sections
    }

    fn against(&self) -> String {
        let against = self.divergence.against.or_else(|| {
            let before = self.model.ledger().predecessor(self.request)?;
            Some(before.id)
        });
        against.map_or_else(|| "before".to_owned(), |id| format!("request {}", id.0))
    }

    /// Where it is: the token, the segment it lies in, and since when that segment has been in the prompt.
    fn place(&self, canvas: &Canvas<'_>, width: usize) -> Line<'static> {
        let position = self.divergence.position;
        let head = format!("request {} departs from {} at ", self.request.id.0, self.against());
        let token = format!("token {}", thousands(position));
        let tail = place_words(&self.request.segments, position, self.divergence.segment);
        let owner = self.owner().map_or_else(String::new, |turn| format!(", first sent by turn {turn}"));
        let room = width.saturating_sub(text::width(&head) + text::width(&token) + 1);
        Line::from(vec![
            canvas.span(format!(" {head}"), Tone::Text),
            canvas.span(token, Tone::Warn),
            canvas.span(fit(&format!("{tail}{owner}"), room).into_owned(), Tone::Text),
        ])
    }

    /// The first turn of the history whose prompt reached as far.
    fn owner(&self) -> Option<u32> {
        let reaches = |r: &&RequestFacts| r.prompt_tokens.is_some_and(|n| n > self.divergence.position);
        self.model.history().into_iter().find(reaches).map(|request| request.turn)
    }

    /// What changed, in words.
    fn change(&self, canvas: &Canvas<'_>, width: usize) -> Line<'static> {
        let words = change_words(self.divergence);
        Line::from(vec![
            canvas.span(left(" changed", NAMES), Tone::Dim),
            canvas.span(fit(&words, width.saturating_sub(NAMES)).into_owned(), Tone::Strong),
        ])
    }

    /// The two token streams one above the other, column by column, the first that differ marked.
    fn streams(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Section<Line<'static>>> {
        let divergence = self.divergence;
        if divergence.tokens_before.is_empty() && divergence.tokens_after.is_empty() {
            return Vec::new();
        }
        let columns = TokenColumns::fitting(divergence, width.saturating_sub(NAMES));
        let row = |name: String, tone: Tone, cells: &dyn Fn(&TokenColumn) -> (String, Tone)| {
            let mut spans = vec![canvas.span(left(&format!(" {name}"), NAMES), tone)];
            for column in &columns.columns {
                let (words, tone) = cells(column);
                let style: Style = canvas.style(tone);
                let marked = column.first_that_differs && tone == Tone::Warn;
                let style = if marked { style.patch(canvas.style(Tone::Selected)) } else { style };
                let separator = if column.first_that_differs { "▸" } else { " " };
                spans.push(canvas.span(separator, Tone::Warn));
                spans.push(Span::styled(left(&words, column.width), style));
            }
            Line::from(spans)
        };
        let tone = |column: &TokenColumn| match () {
            () if column.first_that_differs => Tone::Warn,
            () if column.shared => Tone::Dim,
            () => Tone::Text,
        };
        let position = row("token".to_owned(), Tone::Dim, &|column| {
            let label = if column.first_that_differs {
                format!("▼ {}", thousands(column.position))
            } else {
                String::new()
            };
            (label, if column.first_that_differs { Tone::Warn } else { Tone::Dim })
        });
        let texts = |side: Side, name: String| {
            row(name, Tone::Strong, &|column| {
                (side(column).map_or_else(String::new, |token| visible(&token.text)), tone(column))
            })
        };
        let ids = |side: Side| {
            row("  id".to_owned(), Tone::Dim, &|column| {
                let id = side(column).map_or_else(String::new, |token| token.id.to_string());
                (id, Tone::Dim)
            })
        };
        let after_name = format!("request {}", self.request.id.0);
        let [before, after]: [Side; 2] = [|column| column.before.as_ref(), |column| column.after.as_ref()];
        vec![
            Section::new(3, vec![position]),
            Section::new(0, vec![texts(before, self.against())]),
            Section::new(5, vec![ids(before)]),
            Section::new(0, vec![texts(after, after_name)]),
            Section::new(5, vec![ids(after)]),
        ]
    }

    /// The text around it on both sides.
    fn excerpts(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Section<Line<'static>>> {
        let (before, after) = (excerpt(&self.divergence.before), excerpt(&self.divergence.after));
        let same = common_start(before, after);
        let side = |name: &str, text: &str| {
            let name = canvas.span(left(name, NAMES), Tone::Dim);
            let room = width.saturating_sub(NAMES + 2);
            let (shared, rest) = (visible(&text[..same]), visible(&text[same..]));
            // What differs stands in the first half of the line, what precedes it is cut on the left.
            let kept = tail_of(&shared, room / 2);
            let cut = if kept.len() < shared.len() { "…" } else { "" };
            let left_over = room.saturating_sub(text::width(kept) + text::width(cut));
            Line::from(vec![
                name,
                canvas.span(format!("{cut}{kept}"), Tone::Dim),
                canvas.span("▸", Tone::Warn),
                canvas.span(fit(&rest, left_over).into_owned(), Tone::Strong),
            ])
        };
        if before.is_empty() && after.is_empty() {
            return Vec::new();
        }
        vec![Section::new(2, vec![side(" text before", before), side(" text now", after)])]
    }

    /// What it cost.
    fn cost(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let Some(restore) = &self.request.restore else { return Vec::new() };
        let prompt = self.request.prompt_tokens.unwrap_or(0);
        let behind = prompt.saturating_sub(self.divergence.position);
        let words = format!(
            "{} of {} prompt tokens lie behind it; checkpoint {}: {}",
            thousands(behind),
            thousands(prompt),
            thousands(restore.checkpoint_tokens),
            restore.cause.phrase()
        );
        let tone = if restore.cause.is_loss() { Tone::Warn } else { Tone::Text };
        vec![Line::from(vec![
            canvas.span(left(" cost", NAMES), Tone::Dim),
            canvas.span(fit(&words, width.saturating_sub(NAMES)).into_owned(), tone),
        ])]
    }

    fn legend(&self, canvas: &Canvas<'_>) -> Line<'static> {
        let words = "▸ first that differs   ␣ space   ↵ line end   ⇥ tab   Left/Right other departures";
        Line::from(canvas.span(format!("{}{words}", left("", NAMES)), Tone::Dim))
    }
}

/// One position in both streams.
#[derive(Debug)]
struct TokenColumn {
    position: u64,
    before: Option<TokenText>,
    after: Option<TokenText>,
    shared: bool,
    first_that_differs: bool,
    width: usize,
}

/// One of the two streams.
type Side = fn(&TokenColumn) -> Option<&TokenText>;

#[derive(Debug)]
struct TokenColumns {
    columns: Vec<TokenColumn>,
}

impl TokenColumns {
    /// As many positions as `room` columns hold: shared tokens up to a third of them, then what differs.
    fn fitting(divergence: &Divergence, room: usize) -> TokenColumns {
        let column = |position, before: Option<&TokenText>, after: Option<&TokenText>, shared| {
            let size = |token: &TokenText| {
                text::width(&visible(&token.text)).clamp(1, TOKEN).max(token.id.to_string().len())
            };
            let first_that_differs = position == divergence.position;
            let label = if first_that_differs { thousands(position).len() + 2 } else { 1 };
            let width = [before, after].into_iter().flatten().map(size).max().unwrap_or(1).max(label);
            TokenColumn {
                position,
                before: before.cloned(),
                after: after.cloned(),
                shared,
                first_that_differs,
                width,
            }
        };
        let shared = divergence.shared_tokens.iter().rev().zip(1u64..).map(|(token, back)| {
            column(divergence.position.saturating_sub(back), Some(token), Some(token), true)
        });
        let mut used = 0;
        let mut columns: Vec<TokenColumn> = Vec::new();
        for token in shared {
            if used + token.width + 1 > room / 3 {
                break;
            }
            used += token.width + 1;
            columns.push(token);
        }
        columns.reverse();
        let longest = divergence.tokens_before.len().max(divergence.tokens_after.len());
        for at in 0..longest {
            let (before, after) = (divergence.tokens_before.get(at), divergence.tokens_after.get(at));
            let mut token = column(divergence.position.saturating_add(at as u64), before, after, false);
            token.first_that_differs = at == 0;
            if used + token.width + 1 > room && at > 0 {
                break;
            }
            used += token.width + 1;
            columns.push(token);
        }
        TokenColumns { columns }
    }
}

/// Text on one line, with its whitespace made visible.
fn visible(text: &str) -> String {
    // Made visible first: what is left has no line ends or tabs that would move the columns.
    let text: String = text
        .chars()
        .map(|c| match c {
            ' ' => '␣',
            '\n' => '↵',
            '\t' => '⇥',
            other => other,
        })
        .collect();
    text::sanitise(&text).into_owned()
}

/// The beginning of a text from outside, so that the work does not depend on how long it is.
fn excerpt(text: &str) -> &str {
    text.char_indices().nth(EXCERPT).map_or(text, |(end, _)| &text[..end])
}

/// How many bytes two texts have in common at their start, whole graphemes only.
fn common_start(a: &str, b: &str) -> usize {
    let same = a.graphemes(true).zip(b.graphemes(true)).take_while(|(a, b)| a == b);
    same.map(|(a, _)| a.len()).sum()
}

/// The end of `text` that fits `columns`.
fn tail_of(text: &str, columns: usize) -> &str {
    let mut used = 0;
    let mut from = text.len();
    for (at, grapheme) in text.grapheme_indices(true).rev() {
        used += text::width(grapheme);
        if used > columns {
            break;
        }
        from = at;
    }
    &text[from..]
}

/// `, in the tool schema (tokens 400–1,100)`.
fn place_words(runs: &[SegmentRun], position: u64, segment: Option<Segment>) -> String {
    let Some(segment) = segment else { return ", behind the end of the prompt".to_owned() };
    let mut from = 0u64;
    let mut number = 0;
    for run in runs {
        let to = from.saturating_add(run.tokens);
        number += usize::from(run.segment == segment);
        if position < to {
            let many = runs.iter().filter(|other| other.segment == run.segment).count() > 1;
            let which = if many { ordinal(number) } else { String::new() };
            let which = if which.is_empty() { String::new() } else { format!("{which} ") };
            return format!(
                ", in the {which}{} (tokens {}–{})",
                part(segment),
                thousands(from),
                thousands(to)
            );
        }
        from = to;
    }
    format!(", in the {}", part(segment))
}

/// A segment as a part of a prompt.
fn part(segment: Segment) -> &'static str {
    match segment {
        Segment::System => "system prompt",
        Segment::User => "user message",
        Segment::Assistant => "assistant message",
        Segment::Glue => "template's own text",
        Segment::Injected => "injected message",
        segment => segment.word(),
    }
}

/// What changed, in words: `"timeout" became "timeout_s"`, an insertion, a deletion, whitespace only, or other tokens for the same text.
fn change_words(divergence: &Divergence) -> String {
    let (before, after) = (excerpt(&divergence.before), excerpt(&divergence.after));
    if divergence.tokens_after.is_empty() && !divergence.tokens_before.is_empty() {
        return format!(
            "the prompt ends here, where \"{}\" stood",
            quoted(&before[common_start(before, after)..])
        );
    }
    // The excerpts end some tokens further on, which may be at different places of the same text.
    if before.starts_with(after) || after.starts_with(before) {
        let tokens = |tokens: &[TokenText]| {
            tokens
                .first()
                .map(|token| format!(" ({} \"{}\")", token.id, quoted(&token.text)))
                .unwrap_or_default()
        };
        return format!(
            "nothing in the text: the same characters are other tokens{} → {}",
            tokens(&divergence.tokens_before),
            tokens(&divergence.tokens_after).trim_start()
        )
        .trim_end_matches(" → ")
        .to_owned();
    }
    let same = common_start(before, after);
    // A word that changed at its end is quoted from its beginning.
    let inside = |text: &str| text[same..].starts_with(is_word);
    let start = if inside(before) || inside(after) { word_start(before, same) } else { same };
    let (old, new) = (&before[start..], &after[start..]);
    let (old, new) = without_common_end(old, new);
    let squeezed = |text: &str| text.split_whitespace().collect::<String>();
    match (old.is_empty(), new.is_empty()) {
        (true, _) => format!("\"{}\" was inserted", quoted(new)),
        (_, true) => format!("\"{}\" was removed", quoted(old)),
        _ if squeezed(old) == squeezed(new) => {
            format!("only whitespace: \"{}\" became \"{}\"", quoted(old), quoted(new))
        }
        _ => format!("\"{}\" became \"{}\"", quoted(old), quoted(new)),
    }
}

/// The start of the word in which byte `at` of `text` lies.
fn word_start(text: &str, at: usize) -> usize {
    text[..at].char_indices().rev().take_while(|(_, c)| is_word(*c)).last().map_or(at, |(start, _)| start)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Both texts without what they have in common at their end, word for word. Excerpts that end at different places have nothing in
/// common there; then their first words stand for them.
fn without_common_end<'t>(old: &'t str, new: &'t str) -> (&'t str, &'t str) {
    let pieces = |text: &'t str| text.split_word_bounds().take(WORDS).collect::<Vec<_>>();
    let (a, b) = (pieces(old), pieces(new));
    // The longest stretch of words right behind the change that both have.
    for distance in 0..a.len() + b.len() {
        for skip_old in 0..=distance.min(a.len()) {
            let skip_new = distance - skip_old;
            if skip_new > b.len() {
                continue;
            }
            let (rest_a, rest_b) = (&a[skip_old..], &b[skip_new..]);
            let shorter = rest_a.len().min(rest_b.len());
            let agree = rest_a.iter().zip(rest_b).take_while(|(a, b)| a == b).count();
            if agree >= 3 || (agree == shorter && (agree > 0 || rest_a.len() == rest_b.len())) {
                let cut =
                    |text: &'t str, words: &[&str]| &text[..words.iter().map(|w| w.len()).sum::<usize>()];
                return (cut(old, &a[..skip_old]), cut(new, &b[..skip_new]));
            }
        }
    }
    (old, new)
}

/// `text` as it stands in a sentence: whitespace visible, not too long.
fn quoted(text: &str) -> String {
    fit(&visible(text), QUOTE).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divergence(before: &str, after: &str) -> Divergence {
        Divergence {
            position: 1_105,
            segment: Some(Segment::ToolSchema),
            before: before.into(),
            after: after.into(),
            against: None,
            shared_tokens: Vec::new(),
            tokens_before: vec![TokenText { id: 7, text: "ab".into() }],
            tokens_after: vec![TokenText { id: 8, text: "a".into() }],
        }
    }

    #[test]
    fn what_changed_is_said_in_words() {
        let words = |before, after| change_words(&divergence(before, after));
        assert_eq!(
            words("{\"timeout\":{\"type\":\"integer\"}", "{\"timeout_s\":{\"type\":\"integer\""),
            "\"timeout\" became \"timeout_s\""
        );
        assert_eq!(words("run the tests now", "run all the tests now"), "\"all␣\" was inserted");
        assert_eq!(words("run all the tests now", "run the tests now"), "\"all␣\" was removed");
        assert_eq!(words("a b\nc d e", "a b c d e"), "only whitespace: \"↵\" became \"␣\"");
        assert_eq!(
            words("abc", "abc"),
            "nothing in the text: the same characters are other tokens (7 \"ab\") → (8 \"a\")"
        );
        assert!(words("entirely", "different").contains("\"entirely\" became \"different\""));
        assert_eq!(words("one two three", "one six two three"), "\"six␣\" was inserted");
        assert!(words("the same text", "the same te").starts_with("nothing in the text"));
        let ended = Divergence { tokens_after: Vec::new(), ..divergence("ab cd", "ab ") };
        assert_eq!(change_words(&ended), "the prompt ends here, where \"cd\" stood");
        assert!(words(&"x ".repeat(400), &"y ".repeat(400)).len() < 120);
    }

    #[test]
    fn a_place_is_named_by_the_run_of_its_segment() {
        let run = |segment, tokens| SegmentRun { segment, tokens };
        let runs = [run(Segment::System, 400), run(Segment::User, 100), run(Segment::User, 50)];
        assert_eq!(place_words(&runs, 10, Some(Segment::System)), ", in the system prompt (tokens 0–400)");
        assert_eq!(
            place_words(&runs, 510, Some(Segment::User)),
            ", in the 2nd user message (tokens 500–550)"
        );
        assert_eq!(place_words(&runs, 999, None), ", behind the end of the prompt");
        assert_eq!(
            place_words(&[run(Segment::User, u64::MAX); 2], u64::MAX, Some(Segment::User)),
            ", in the user message"
        );
    }

    #[test]
    fn the_token_that_differs_is_always_in_sight() {
        let token = |id: u32, text: &str| TokenText { id, text: text.into() };
        let mut divergence = divergence("", "");
        divergence.shared_tokens = (0..40).map(|n| token(n, " shared")).collect();
        divergence.tokens_before = (0..40).map(|n| token(n, " before")).collect();
        for room in 0..200 {
            let columns = TokenColumns::fitting(&divergence, room).columns;
            let first = columns.iter().position(|column| column.first_that_differs).unwrap();
            let used: usize = columns[..first].iter().map(|column| column.width + 1).sum();
            assert!(used <= room / 3, "{room}");
        }
        divergence.position = u64::MAX;
        assert!(!TokenColumns::fitting(&divergence, 100).columns.is_empty());
    }
}
