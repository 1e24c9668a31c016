//! The lanes at one turn: a card each where there is room for them, otherwise a line each.

use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::{Lanes, lane_tone, time};
use crate::compare::{Cell, Recovered, ReplyDifference, SpeedUp, Spread};
use crate::event::Phase;
use crate::tui::panes::plot::EIGHTHS;
use crate::tui::panes::table::padded;
use crate::tui::text::{self, UNKNOWN, count, fit, thousands};
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

/// Rows of a card: its head, six lines, two more where lanes speculate, two more where lanes recover, and the line below it.
pub(super) fn height(lanes: &Lanes<'_>) -> usize {
    8 + if speculates(lanes) { 2 } else { 0 } + if recovers(lanes) { 2 } else { 0 }
}

/// Whether background recovery is on in any lane.
fn recovers(lanes: &Lanes<'_>) -> bool {
    (0..lanes.count()).any(|place| lanes.comparison().recovers(place))
}

/// Whether there is a lane at the shown turn, or at any, that drafts.
fn speculates(lanes: &Lanes<'_>) -> bool {
    let drafts = |request: &crate::ledger::RequestFacts| request.speculation.is_some();
    (0..lanes.count()).any(|place| lanes.model.runs.ledger_of(place).requests().any(drafts))
}

/// Cards beside each other, parted by lines.
pub(super) fn draw_cards(canvas: &mut Canvas<'_>, lanes: &Lanes<'_>, area: Rect) {
    let count = lanes.count();
    let width = usize::from(area.width) / count;
    let highest = highest(lanes);
    let height = height(lanes);
    for place in 0..count {
        let x = place * width;
        let width = if place + 1 == count { usize::from(area.width) - x } else { width - 1 };
        let card = Rect { x: area.x + x as u16, width: width as u16, ..area };
        draw_head(canvas, lanes, place, card);
        for (row, line) in
            card_lines(canvas, lanes, place, width.saturating_sub(1), highest).iter().enumerate()
        {
            canvas.line(Rect { x: card.x + 1, width: card.width.saturating_sub(1), ..card }, row + 1, line);
        }
        if place > 0 {
            for row in 0..height - 1 {
                canvas.put(area, x - 1, row, "│", Tone::Border);
            }
        }
    }
    canvas.put(area, 0, height - 1, &"─".repeat(usize::from(area.width)), Tone::Border);
}

fn draw_head(canvas: &mut Canvas<'_>, lanes: &Lanes<'_>, place: usize, card: Rect) {
    let focused = lanes.model.runs.focus() == place;
    let marker = if focused { "▸" } else { " " };
    let state = state_words(lanes, place);
    let route = lanes.cell(place).and_then(|cell| cell.route).unwrap_or("");
    let others = 1 + text::width(route) + 4 + text::width(&state.0);
    let name = lanes.name(place);
    let name = fit(&name, usize::from(card.width).saturating_sub(others)).into_owned();
    let head = Line::from(vec![
        canvas.span(marker, Tone::Key),
        canvas
            .span(name, if focused { Tone::Strong } else { Tone::Text })
            .patch_style(canvas.style(lane_tone(place))),
        canvas.span(format!("  {route}  "), Tone::Dim),
        canvas.span(state.0, state.1),
    ]);
    canvas.line(card, 0, &head);
}

/// What the lane does at the shown turn.
fn state_words(lanes: &Lanes<'_>, place: usize) -> (String, Tone) {
    if lanes.model.runs.ledger_of(place).failure().is_some() {
        return ("ENGINE FAILED".to_owned(), Tone::Warn);
    }
    let Some(request) = lanes.request(place) else { return ("waits".to_owned(), Tone::Dim) };
    if request.error.is_some() {
        return ("FAILED".to_owned(), Tone::Warn);
    }
    if request.fell_back.is_some() {
        return ("FELL BACK".to_owned(), Tone::Warn);
    }
    let share = |(done, total): (u64, u64)| u128::from(done.min(total)) * 100 / u128::from(total.max(1));
    if let Some(progress) = request.priming {
        return (format!("prime {} %", share(progress)), Tone::Good);
    }
    match request.phase {
        Phase::Done => (String::new(), Tone::Dim),
        Phase::Score => match request.scoring {
            Some(progress) => (format!("score {} %", share(progress)), Tone::Good),
            None => ("score".to_owned(), Tone::Good),
        },
        Phase::Prefill => match request.progress {
            Some(progress) => (format!("prefill {} %", share(progress)), Tone::Good),
            None => ("prefill".to_owned(), Tone::Good),
        },
        phase => (phase.word().to_owned(), Tone::Good),
    }
}

fn median(spread: Option<Spread>) -> Option<f64> {
    spread.map(|spread| spread.median)
}

/// A named figure of a card.
struct Figure {
    long: &'static str,
    short: &'static str,
    value: String,
    tone: Tone,
    /// The one with the greatest goes first where there is no room for all.
    goes: u8,
}

impl Figure {
    fn new(long: &'static str, short: &'static str, value: String, tone: Tone, goes: u8) -> Figure {
        Figure { long, short, value, tone, goes }
    }

    fn words(&self, short: bool) -> (&'static str, &str) {
        (if short { self.short } else { self.long }, &self.value)
    }
}

/// Figures on a line: by their long names where these fit, otherwise by their short ones, and of these as many whole ones as fit.
fn figures(canvas: &Canvas<'_>, width: usize, mut figures: Vec<Figure>) -> Line<'static> {
    let needed = |figures: &[Figure], (short, gap): (bool, usize)| -> usize {
        let each = figures.iter().map(|figure| {
            let (name, value) = figure.words(short);
            text::width(name) + 1 + text::width(value)
        });
        each.sum::<usize>() + gap * figures.len().saturating_sub(1)
    };
    const FORMS: [(bool, usize); 3] = [(false, 2), (true, 2), (true, 1)];
    let form = loop {
        if let Some(form) = FORMS.into_iter().find(|form| needed(&figures, *form) <= width) {
            break form;
        }
        let first = (0..figures.len()).max_by_key(|at| figures[*at].goes);
        let Some(first) = first.filter(|_| figures.len() > 1) else { break FORMS[2] };
        figures.remove(first);
    };
    let (short, gap) = form;
    let mut spans = Vec::new();
    for (at, figure) in figures.iter().enumerate() {
        let (name, value) = figure.words(short);
        let gap = if at == 0 { 0 } else { gap };
        spans.push(canvas.span(format!("{:gap$}{name} ", ""), Tone::Dim));
        spans.push(canvas.span(value.to_owned(), figure.tone));
    }
    Line::from(spans)
}

fn card_lines(
    canvas: &Canvas<'_>,
    lanes: &Lanes<'_>,
    place: usize,
    width: usize,
    highest: u64,
) -> Vec<Line<'static>> {
    let cell = lanes.cell(place);
    let get = |field: fn(&Cell) -> Option<u64>| count(cell.and_then(field));
    let of_time = |field: fn(&Cell) -> Option<Spread>| time(cell.and_then(|cell| median(field(cell))));
    let pinned = lanes.pinned(place).map(|pinned| pinned.to_string());
    let share = cell.and_then(|cell| cell.scorer_share).filter(|share| *share > 0.0);
    let share = share.map(|share| format!("{:.0} %", share * 100.0));
    let checkpoints = lanes.checkpoints(place);
    let room = width.saturating_sub("checkpoint ".len());
    let (reply, tone) = reply_words(lanes, place, width);
    let mut lines = vec![
        // The pinned count is the last to go.
        figures(
            canvas,
            width,
            vec![
                Figure::new("ckpt", "ckpt", get(|cell| cell.checkpoint_tokens), Tone::Checkpoint, 1),
                Figure::new("suffix", "sfx", get(|cell| cell.uncached_suffix), Tone::Suffix, 2),
            ]
            .into_iter()
            .chain(pinned.map(|pinned| Figure::new("pinned", "pin", pinned, Tone::Warn, 0)))
            .collect(),
        ),
        figures(
            canvas,
            width,
            vec![
                Figure::new("ttft", "ttft", of_time(|cell| cell.ttft_s), Tone::Strong, 0),
                Figure::new("Σ", "Σ", of_time(|cell| cell.ttft_sum_s), Tone::Strong, 1),
            ]
            .into_iter()
            .chain(share.map(|share| Figure::new("scorer", "sc", share, Tone::Text, 2)))
            .collect(),
        ),
        figures(
            canvas,
            width,
            vec![
                Figure::new("computed", "comp", get(|cell| cell.computed_tokens), Tone::Text, 1),
                Figure::new("owes", "owes", get(|cell| cell.canonical_debt_tokens), Tone::Text, 0),
            ],
        ),
        Line::from(vec![
            canvas.span("checkpoint ", Tone::Dim),
            canvas.span(sparkline(&checkpoints, highest, room), Tone::Checkpoint),
        ]),
        Line::from(canvas.span(reply, tone)),
        Line::from(kept_spans(canvas, cell, width)),
    ];
    if speculates(lanes) {
        lines.extend(speculation_lines(canvas, lanes, place, width));
    }
    if recovers(lanes) {
        lines.extend(recovery_lines(canvas, cell.and_then(|cell| cell.recovery.as_ref()), width));
    }
    lines
}

/// What recovery has done up to the gap behind the shown turn: what is published of what is owed, and what that took of whose time.
fn recovery_lines(canvas: &Canvas<'_>, recovered: Option<&Recovered>, width: usize) -> Vec<Line<'static>> {
    let Some(recovered) = recovered else {
        return vec![
            Line::from(canvas.span(fit("no recovery", width).into_owned(), Tone::Dim)),
            Line::default(),
        ];
    };
    let of = format!("{}/{}", count(recovered.committed_tokens), count(recovered.target_tokens));
    let paid = recovered.left_tokens == Some(0);
    let used =
        recovered.idle_used.map_or_else(|| UNKNOWN.to_owned(), |used| format!("{:.0} %", used * 100.0));
    let waited = recovered.delayed_sum_s.filter(|delayed| delayed.max > 0.0);
    let waited =
        waited.map(|delayed| Figure::new("waited", "wait", time(Some(delayed.median)), Tone::Warn, 2));
    vec![
        figures(
            canvas,
            width,
            vec![
                Figure::new("recovered", "rec", of, if paid { Tone::Good } else { Tone::Text }, 0),
                Figure::new("pub", "pub", thousands(recovered.publications_sum), Tone::Text, 1),
            ],
        ),
        figures(
            canvas,
            width,
            vec![
                Figure::new("idle used", "idle", used, Tone::Text, 0),
                Figure::new("of it", "Σ", time(median(recovered.service_sum_s)), Tone::Text, 1),
            ]
            .into_iter()
            .chain(waited)
            .collect(),
        ),
    ]
}

/// What drafting was worth at the shown turn: decoding and end to end, then what cycles gave for their cost; or what failed, in their place.
fn speculation_lines(
    canvas: &Canvas<'_>,
    lanes: &Lanes<'_>,
    place: usize,
    width: usize,
) -> Vec<Line<'static>> {
    let said = |words: &str, tone| Line::from(canvas.span(fit(words, width).into_owned(), tone));
    if place == lanes.comparison().base() {
        return vec![said("no drafter: dense steps", Tone::Dim)];
    }
    if let Some(failure) = lanes.comparison().speculation_failure(place) {
        let failure = text::sanitise(&failure).replace('\n', " ");
        return vec![said("NO SPEED-UP COUNTS", Tone::Warn), said(&failure, Tone::Warn)];
    }
    let Some(speculated) = lanes.cell(place).and_then(|cell| cell.speculation.as_ref()) else {
        return vec![said("nothing was drafted", Tone::Dim)];
    };
    let speed_up = speculated.speed_up().copied().unwrap_or_default();
    let times = |spread: Option<Spread>| {
        median(spread).map_or_else(|| UNKNOWN.to_owned(), |times| format!("{times:.2}x"))
    };
    let tone = |spread: Option<Spread>| match median(spread) {
        Some(times) if times > 1.0 => Tone::Good,
        Some(_) => Tone::Warn,
        None => Tone::Dim,
    };
    let number = |spread| median(spread).map_or_else(|| UNKNOWN.to_owned(), |value| format!("{value:.2}"));
    let gives = format!("{}/{}", number(speculated.tokens_per_cycle), number(speculated.cost_ratio));
    vec![
        figures(
            canvas,
            width,
            vec![
                Figure::new("decode", "dec", times(speed_up.decode), tone(speed_up.decode), 0),
                Figure::new("end to end", "e2e", times(speed_up.whole), tone(speed_up.whole), 1),
            ],
        ),
        figures(
            canvas,
            width,
            vec![
                Figure::new("gives/costs", "g/c", gives, Tone::Text, 0),
                Figure::new("predicted", "pred", times(speed_up.predicted), Tone::Dim, 1),
            ],
        ),
    ]
}

/// The reply against the compared lane's, in as many words as fit.
fn reply_words(lanes: &Lanes<'_>, place: usize, width: usize) -> (String, Tone) {
    let comparison = lanes.comparison();
    if place == comparison.base() {
        let forms = ["the others are compared with it", "others compared with it", "compared with"];
        return (longest(forms.map(str::to_owned), width), Tone::Dim);
    }
    let Some(cell) = lanes.cell(place) else { return (UNKNOWN.to_owned(), Tone::Dim) };
    if cell.same_prompt == Some(false) {
        let forms = ["another prompt: replies differ from here on", "another prompt from here on"];
        return (longest(forms.map(str::to_owned), width), Tone::Warn);
    }
    let Some(reply) = &cell.reply else { return (UNKNOWN.to_owned(), Tone::Dim) };
    let (forms, tone) = difference_words(reply);
    let mut words = longest(forms, width);
    if let Some(close) = &reply.closeness {
        let top1 = if close.top1_agrees { "top-1 ✓" } else { "top-1 ✗" };
        let more = format!("{words}  KL {:.4} {top1}", close.kl_nats);
        if text::width(&more) <= width {
            words = more;
        }
    }
    (words, tone)
}

/// The first of `forms`, longest first, that fits; the last one cut where none does.
fn longest(forms: impl IntoIterator<Item = String>, width: usize) -> String {
    let mut last = String::new();
    for form in forms {
        if text::width(&form) <= width {
            return form;
        }
        last = form;
    }
    fit(&last, width).into_owned()
}

/// How a reply differs, in words, the most of them first. Tokens are counted from 1 here.
fn difference_words(reply: &ReplyDifference) -> (Vec<String>, Tone) {
    let one = |words: &str, tone| (vec![words.to_owned()], tone);
    match (reply.same_text, reply.first_differing) {
        (_, Some(index)) => {
            let words = format!("differs at token {}", thousands(index.saturating_add(1)));
            let margin = reply.margin.map(|margin| format!("margin {margin:.2}"));
            let first = (index == 0).then(|| "the first".to_owned());
            let notes: Vec<String> = first.iter().cloned().chain(margin.clone()).collect();
            let mut forms = vec![notes, margin.into_iter().collect(), first.into_iter().collect()];
            forms.retain(|notes| !notes.is_empty());
            let noted = forms.into_iter().map(|notes| format!("{words} ({})", notes.join(", ")));
            (noted.chain([words.clone()]).collect(), Tone::Warn)
        }
        (Some(true), None) => one("same text ✓", Tone::Good),
        (Some(false), None) => one("another text", Tone::Warn),
        (None, None) => one("same so far", Tone::Dim),
    }
}

/// `kept u 40 %  t 12 %  names 9/12`: shares of the scored window by segment, then identifiers that survive somewhere.
fn kept_spans(canvas: &Canvas<'_>, cell: Option<&Cell>, width: usize) -> Vec<Span<'static>> {
    let Some(cell) = cell.filter(|cell| !cell.kept.is_empty()) else { return Vec::new() };
    let mut spans = vec![canvas.span("kept ", Tone::Dim)];
    let mut used = 5;
    for kept in &cell.kept {
        let share = (kept.kept as f64 * 100.0 / kept.total.max(1) as f64).min(100.0);
        let words = format!("{} {share:.0}% ", kept.segment.letter());
        if used + text::width(&words) > width {
            break;
        }
        used += text::width(&words);
        spans.push(canvas.span(words, Tone::Segment(kept.segment)));
    }
    if let Some(survived) = cell.survival.filter(|survived| survived.identifiers > 0) {
        let words = format!("names {}/{}", survived.anywhere, survived.identifiers);
        if used + text::width(&words) <= width {
            let lost = survived.anywhere < survived.identifiers;
            spans.push(canvas.span(words, if lost { Tone::Warn } else { Tone::Good }));
        }
    }
    spans
}

/// The greatest checkpoint of any lane: all sparklines have one scale.
fn highest(lanes: &Lanes<'_>) -> u64 {
    let all = (0..lanes.count()).flat_map(|place| lanes.checkpoints(place));
    all.flatten().max().unwrap_or(0)
}

/// The latest values that fit, a column each; `·` where nobody measured.
fn sparkline(values: &[Option<u64>], highest: u64, room: usize) -> String {
    let from = values.len().saturating_sub(room);
    let bar = |value: &Option<u64>| match value {
        None => "·",
        Some(value) => {
            let eighths = u128::from(*value) * 8 / u128::from(highest.max(1));
            EIGHTHS[eighths.clamp(1, 8) as usize]
        }
    };
    values[from..].iter().map(bar).collect()
}

/// A line a lane. What does not fit is left out from the end.
pub(super) fn draw_table(canvas: &mut Canvas<'_>, lanes: &Lanes<'_>, area: Rect) {
    const HEADERS: [&str; 15] = [
        "lane",
        "ckpt",
        "suffix",
        "pin",
        "ttft",
        "Σ",
        "recovered",
        "idle",
        "scorer",
        "text",
        "decode",
        "e2e",
        "comp",
        "owes",
        "kept",
    ];
    let rows: Vec<Vec<String>> = (0..lanes.count()).map(|place| table_row(lanes, place)).collect();
    let widths: Vec<usize> = HEADERS
        .iter()
        .enumerate()
        .map(|(at, header)| {
            rows.iter().map(|row| text::width(&row[at])).max().unwrap_or(0).max(text::width(header))
        })
        .collect();
    let to_the_right = |at: usize| !matches!(at, 0 | 9 | 14);
    let (speculates, recovers) = (speculates(lanes), recovers(lanes));
    let mut room = usize::from(area.width).saturating_sub(1);
    // Without a drafter anywhere nothing is sped up, without recovery nothing is recovered.
    let shown: Vec<usize> = (0..HEADERS.len())
        .filter(|at| speculates || !matches!(at, 10 | 11))
        .filter(|at| recovers || !matches!(at, 6 | 7))
        .take_while(|at| {
            let fits = widths[*at] < room;
            room = room.saturating_sub(widths[*at] + 1);
            fits
        })
        .collect();
    let line = |canvas: &Canvas<'_>, marker: &'static str, row: &[String], place: Option<usize>| {
        let mut spans = vec![canvas.span(marker, Tone::Key)];
        for at in &shown {
            let tone = match (place, at) {
                (None, _) => Tone::Dim,
                (Some(place), 0) => lane_tone(place),
                (_, 1) => Tone::Checkpoint,
                (_, 2) => Tone::Suffix,
                (_, 9) if row[*at].starts_with("differs") => Tone::Warn,
                _ => Tone::Text,
            };
            spans.push(canvas.span(padded(&row[*at], widths[*at], to_the_right(*at)), tone));
        }
        Line::from(spans)
    };
    let headers = HEADERS.map(str::to_owned);
    canvas.line(area, 0, &line(canvas, " ", &headers, None));
    for (place, row) in rows.iter().enumerate() {
        let marker = if lanes.model.runs.focus() == place { "▸" } else { " " };
        canvas.line(area, place + 1, &line(canvas, marker, row, Some(place)));
    }
}

/// `1.42x`; `FAILED` where no speed-up counts.
fn sped_up(lanes: &Lanes<'_>, place: usize, which: fn(&SpeedUp) -> Option<Spread>) -> String {
    if lanes.comparison().speculation_failure(place).is_some() {
        return "FAILED".to_owned();
    }
    let speculated = lanes.cell(place).and_then(|cell| cell.speculation.as_ref());
    let speed_up = speculated.and_then(|speculated| speculated.speed_up()).and_then(which);
    median(speed_up).map_or_else(|| UNKNOWN.to_owned(), |times| format!("{times:.2}x"))
}

fn table_row(lanes: &Lanes<'_>, place: usize) -> Vec<String> {
    let cell = lanes.cell(place);
    let get = |field: fn(&Cell) -> Option<u64>| count(cell.and_then(field));
    let dash = || UNKNOWN.to_owned();
    let share = cell.and_then(|cell| cell.scorer_share);
    let recovered = cell.and_then(|cell| cell.recovery.as_ref());
    let (state, tone) = state_words(lanes, place);
    let reply = match tone {
        Tone::Warn | Tone::Good if !state.is_empty() => state,
        _ if place == lanes.comparison().base() => "compared".to_owned(),
        _ => cell
            .and_then(|cell| cell.reply.as_ref())
            .map_or_else(dash, |reply| difference_words(reply).0.swap_remove(0)),
    };
    let kept = cell.map(|cell| {
        cell.kept.iter().fold((0u64, 0u64), |(kept, total), segment| {
            (kept.saturating_add(segment.kept), total.saturating_add(segment.total))
        })
    });
    let kept = kept.filter(|(_, total)| *total > 0);
    vec![
        lanes.name(place),
        get(|cell| cell.checkpoint_tokens),
        get(|cell| cell.uncached_suffix),
        lanes.pinned(place).map_or_else(dash, |pinned| pinned.to_string()),
        time(cell.and_then(|cell| median(cell.ttft_s))),
        time(cell.and_then(|cell| median(cell.ttft_sum_s))),
        recovered
            .map_or_else(dash, |of| format!("{}/{}", count(of.committed_tokens), count(of.target_tokens))),
        recovered.and_then(|of| of.idle_used).map_or_else(dash, |used| format!("{:.0}%", used * 100.0)),
        share.map_or_else(dash, |share| format!("{:.0}%", share * 100.0)),
        reply,
        sped_up(lanes, place, |speed_up| speed_up.decode),
        sped_up(lanes, place, |speed_up| speed_up.whole),
        get(|cell| cell.computed_tokens),
        get(|cell| cell.canonical_debt_tokens),
        kept.map_or_else(dash, |(kept, total)| format!("{:.0}%", kept as f64 * 100.0 / total as f64)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_shows_the_latest_and_what_is_unknown() {
        assert_eq!(sparkline(&[Some(0), Some(50), None, Some(100)], 100, 9), "▁▄·█");
        assert_eq!(sparkline(&[Some(0), Some(50), None, Some(100)], 100, 2), "·█");
        assert_eq!(sparkline(&[Some(u64::MAX)], 0, 2), "█");
        assert_eq!(sparkline(&[], 0, 0), "");
    }

    #[test]
    fn a_reply_is_the_same_or_differs_somewhere() {
        let words = |reply: ReplyDifference| longest(difference_words(&reply).0, 80);
        let none = ReplyDifference::default();
        assert_eq!(words(ReplyDifference { same_text: Some(true), ..none }), "same text ✓");
        let differs = ReplyDifference { first_differing: Some(3), margin: Some(0.04), ..none };
        assert_eq!(words(differs), "differs at token 4 (margin 0.04)");
        let first = ReplyDifference { first_differing: Some(0), ..none };
        assert_eq!(
            words(first),
            "differs at token 1 (the first)",
            "from 1 on, though it is from 0 in the facts"
        );
        let both = ReplyDifference { first_differing: Some(0), ..differs };
        assert_eq!(words(both), "differs at token 1 (the first, margin 0.04)");
        assert_eq!(longest(difference_words(&both).0, 20), "differs at token 1");
        assert_eq!(words(none), "same so far");
    }
}
