//! The explorer on the screen: knobs, what they choose, what that would take, and the map of where sparse prefill pays.

use ratatui::layout::Rect;
use ratatui::text::Line;

use super::{Choice, Explorer, Knob, Knobs};
use crate::compare::SegmentKept;
use crate::config::Aggregation;
use crate::event::{Scored, SparseVerdict};
use crate::ledger::{Basis, BreakEven, Gain, RequestFacts};
use crate::prefill::sparse::admit;
use crate::tui::app::Model;
use crate::tui::panes::request::{Kept, kept_of};
use crate::tui::sparse::{fraction, verdict_words, who};
use crate::tui::text::{self, about, fit, kilo, left, thousands};
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

/// Columns of the row names.
const NAMES: usize = 12;
/// Columns of a suffix on the map.
const STEP: usize = 6;
/// Keep fractions of the map, from the top.
const ROWS: [f64; 8] = [1.0, 0.7, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05];

/// Draws the inside of the explorer.
pub(in crate::tui) fn draw(canvas: &mut Canvas<'_>, model: &Model, explorer: &Explorer, area: Rect) {
    let ledger = model.ledger();
    let request = explorer.request.and_then(|id| ledger.request(id));
    let break_even = break_even(model);
    let choice = request.and_then(|request| explorer.choice(request));
    let mut row = 0;
    for line in head(canvas, explorer, request) {
        canvas.line(area, row, &line);
        row += 1;
    }
    for (at, knob) in Knob::ALL.into_iter().enumerate() {
        let line = knob_line(canvas, explorer, request, knob, at == explorer.knob);
        canvas.line(area, row, &line);
        row += 1;
    }
    if let Some(request) = request {
        row = draw_choice(canvas, explorer, request, choice.as_ref(), area, row);
        if let Some(cost) = Cost::of(request, choice.as_ref(), break_even.as_ref()) {
            canvas.put(area, 0, row, &left("predicted", NAMES), Tone::Dim);
            let room = usize::from(area.width).saturating_sub(NAMES);
            for words in cost.lines(room) {
                canvas.put(area, NAMES, row, &fit(&words, room), Tone::Strong);
                row += 1;
            }
        } else if choice.is_none() {
            let words = explorer.obstacle(ledger, request);
            let room = usize::from(area.width).saturating_sub(NAMES);
            canvas.put(area, NAMES, row, &fit(&text::sanitise(&words).replace('\n', " "), room), Tone::Warn);
            row += 1;
        }
    }
    match break_even {
        Some(break_even) => draw_map(canvas, explorer, request, &break_even, area, row),
        None => {
            let words = "where sparse prefill pays is told once something was scored in this run";
            canvas.put(area, 0, row, words, Tone::Dim);
        }
    }
}

/// What the run in focus has measured, the dense route as the dense lane measured it where there is one.
fn break_even(model: &Model) -> Option<BreakEven> {
    let base = model.runs.ledger_of(model.runs.comparison().base());
    let own = model.ledger().break_even_against(base);
    // Of lanes that are compared, one that scored speaks for the machine.
    own.or_else(|| {
        (0..model.runs.count()).find_map(|place| model.runs.ledger_of(place).break_even_against(base))
    })
}

fn head(canvas: &Canvas<'_>, explorer: &Explorer, request: Option<&RequestFacts>) -> Vec<Line<'static>> {
    let Some(request) = request else {
        return vec![Line::from(canvas.span("no request yet: `n` runs the first turn", Tone::Dim))];
    };
    let admission = request.admission.as_ref();
    let suffix = admission.map(|admission| admission.suffix_tokens).or(request.uncached_suffix);
    let mut spans = vec![
        canvas.span(format!("turn {}", request.turn), Tone::Strong),
        canvas.span(format!("  suffix {}", text::count(suffix)), Tone::Text),
    ];
    if let Some(scored) = &request.scored {
        let words =
            format!("  scored {} from {} on", thousands(scored.scored_tokens), thousands(scored.origin));
        spans.push(canvas.span(words, Tone::Text));
    }
    if let Some(verdict) = verdict_at(request, explorer.knobs.threshold) {
        let now = admission.map(|admission| admission.verdict);
        // That it was a dense turn is no matter of the threshold.
        let now = now.map(|now| if now == SparseVerdict::DenseTurn { SparseVerdict::Sparse } else { now });
        let differs = now.is_some_and(|now| now != SparseVerdict::Off && now != verdict);
        let tone = if differs { Tone::Warn } else { Tone::Text };
        spans.push(
            canvas.span(
                format!("  at {}: {}", thousands(explorer.knobs.threshold), verdict_words(verdict)),
                tone,
            ),
        );
    }
    vec![Line::from(spans)]
}

/// What admission would decide at another threshold.
fn verdict_at(request: &RequestFacts, threshold: u64) -> Option<SparseVerdict> {
    let (prompt, checkpoint) = (request.prompt_tokens?, request.checkpoint()?);
    let protected = request.admission.as_ref()?.protected_tokens;
    let [prompt, checkpoint, protected, threshold] =
        [prompt, checkpoint, protected, threshold].map(|value| usize::try_from(value).unwrap_or(usize::MAX));
    Some(admit(prompt, checkpoint, protected, threshold).verdict)
}

fn value(knobs: &Knobs, knob: Knob) -> String {
    match knob {
        Knob::Keep => fraction(knobs.keep),
        Knob::Threshold => thousands(knobs.threshold),
        Knob::Tail => thousands(knobs.tail),
        Knob::Pool => knobs.pool.to_string(),
        Knob::Unit => knobs.unit.to_string(),
        Knob::Aggregation => match knobs.aggregation {
            Aggregation::MaxMean => "max, mean".to_owned(),
            Aggregation::MeanMean => "mean, mean".to_owned(),
            Aggregation::MaxMax => "max, max".to_owned(),
        },
    }
}

fn knob_line(
    canvas: &Canvas<'_>,
    explorer: &Explorer,
    request: Option<&RequestFacts>,
    knob: Knob,
    chosen: bool,
) -> Line<'static> {
    let (now, served) = (value(&explorer.knobs, knob), value(&explorer.served, knob));
    let marker = if chosen { "▸ " } else { "  " };
    let settings = request.and_then(|request| Some(&request.admission.as_ref()?.settings));
    let by = Explorer::set_by(knob, settings);
    let by = by.map_or_else(String::new, |by| format!(" ({})", who(&by)));
    let arrows = if chosen { ("‹ ", " ›") } else { ("  ", "  ") };
    let tone = if now == served { Tone::Text } else { Tone::Strong };
    let mut spans = vec![
        canvas.span(marker, Tone::Key),
        canvas.span(left(knob.name(), NAMES), if chosen { Tone::Strong } else { Tone::Dim }),
        canvas.span(arrows.0, Tone::Key),
        canvas.span(text::right(&now, 10), tone),
        canvas.span(arrows.1, Tone::Key),
    ];
    if now != served || !by.is_empty() {
        spans.push(canvas.span(format!("  in effect {served}{by}"), Tone::Dim));
    }
    if chosen && knob.asks() {
        spans.push(canvas.span("  scored anew from the attention that was kept", Tone::Dim));
    }
    Line::from(spans)
}

/// Two kept maps, what was and what would be, and shares by segment. Returns the next row.
fn draw_choice(
    canvas: &mut Canvas<'_>,
    explorer: &Explorer,
    request: &RequestFacts,
    choice: Option<&Choice>,
    area: Rect,
    mut row: usize,
) -> usize {
    let Some(scored) = &request.scored else { return row };
    let Some(choice) = choice else { return row };
    let would = Scored { kept: choice.kept.clone(), selected_tokens: choice.tokens, ..scored.clone() };
    let changed = explorer.knobs != explorer.served;
    let columns = usize::from(area.width).saturating_sub(NAMES + 18);
    for (name, scored) in
        [("kept", scored), ("would keep", &would)].into_iter().take(1 + usize::from(changed))
    {
        canvas.put(area, 0, row, &left(name, NAMES), Tone::Dim);
        for column in 0..columns {
            let (glyph, tone) = kept_in_column(scored, column, columns).look();
            canvas.put(area, NAMES + column, row, glyph, tone);
        }
        let share = scored.selected_tokens as f64 * 100.0 / scored.scored_tokens.max(1) as f64;
        let words = format!(" {} {share:.1}%", thousands(scored.selected_tokens));
        canvas.put(area, NAMES + columns, row, &words, Tone::Strong);
        row += 1;
    }
    let was = SegmentKept::of(&request.segments, scored);
    let would = SegmentKept::of(&request.segments, &would);
    canvas.put(area, 0, row, &left("by segment", NAMES), Tone::Dim);
    let mut used = NAMES;
    for (was, would) in was.iter().zip(&would) {
        let share = |kept: &SegmentKept| (kept.kept as f64 * 100.0 / kept.total.max(1) as f64).min(100.0);
        let words = match changed {
            true => format!("{} {:.0}→{:.0}%  ", was.segment.word(), share(was), share(would)),
            false => format!("{} {:.0}%  ", was.segment.word(), share(was)),
        };
        if used + text::width(&words) > usize::from(area.width) {
            break;
        }
        canvas.put(area, used, row, &words, Tone::Segment(was.segment));
        used += text::width(&words);
    }
    row + 1
}

fn kept_in_column(scored: &Scored, column: usize, columns: usize) -> Kept {
    let at = |column: usize| {
        let offset = u128::from(scored.scored_tokens) * column as u128 / columns.max(1) as u128;
        scored.origin.saturating_add(u64::try_from(offset).unwrap_or(u64::MAX))
    };
    let from = at(column);
    kept_of(scored, from, at(column + 1).max(from.saturating_add(1)))
}

/// What the choice would take, and the whole suffix densely.
struct Cost(Gain);

impl Cost {
    fn of(request: &RequestFacts, choice: Option<&Choice>, break_even: Option<&BreakEven>) -> Option<Cost> {
        let (scored, choice, break_even) = (request.scored.as_ref()?, choice?, break_even?);
        let checkpoint = request.checkpoint()?;
        let suffix = request.prompt_tokens?.checked_sub(checkpoint)?;
        let protected = scored.origin.saturating_sub(checkpoint);
        let kept = choice.tokens.saturating_add(protected);
        let gain =
            break_even.compare(checkpoint, suffix, scored.scored_tokens, scored.draft_cached_tokens, kept);
        Some(Cost(gain))
    }

    /// In words: on one line where there is room for it, otherwise with what the sparse route consists of on a second one.
    fn lines(&self, room: usize) -> Vec<String> {
        let gain = &self.0;
        let sooner = match gain.seconds() {
            seconds if seconds >= 0.0 => format!("sooner by {}", bare(seconds)),
            seconds => format!("LATER by {}", bare(-seconds)),
        };
        let (sparse, dense) = (about(gain.sparse().seconds), about(gain.dense.seconds));
        let parts = format!("scorer {} + target {}", bare(gain.scorer.seconds), bare(gain.kept.seconds));
        let basis = basis_word(gain.basis());
        let line = format!("{sooner}: sparse {sparse} ({parts}), dense {dense} ({basis})");
        if text::width(&line) <= room {
            return vec![line];
        }
        vec![format!("{sooner}: sparse {sparse}, dense {dense} ({basis})"), format!("sparse = {parts}")]
    }
}

/// A predicted time without its sign.
fn bare(seconds: f64) -> String {
    about(seconds).trim_start_matches("≈ ").to_owned()
}

fn basis_word(basis: Basis) -> &'static str {
    match basis {
        Basis::Measured => "measured",
        Basis::Extrapolated => "extrapolated",
        Basis::Borrowed => "with the other route's curve",
    }
}

/// What a place on the map looks like: sparse or dense sooner, measured or not.
fn look(gain: &Gain) -> (&'static str, Tone) {
    match (gain.seconds() > 0.0, gain.basis()) {
        (true, Basis::Measured) => ("▲", Tone::Good),
        (true, _) => ("+", Tone::Good),
        (false, Basis::Measured) => ("▼", Tone::Suffix),
        (false, _) => ("-", Tone::Dim),
    }
}

/// Suffix against keep fraction: which route is sooner, behind as many tokens as the request's checkpoint has. The request stands on it.
fn draw_map(
    canvas: &mut Canvas<'_>,
    explorer: &Explorer,
    request: Option<&RequestFacts>,
    break_even: &BreakEven,
    area: Rect,
    row: usize,
) {
    let depth = request.and_then(RequestFacts::checkpoint).unwrap_or(0);
    let suffix = request.and_then(|request| request.uncached_suffix);
    let crossover = crossover_words(break_even, depth, explorer.knobs.keep);
    let beside = text::width(&crossover) + 3;
    let fits = beside + text::width(LEGEND) <= usize::from(area.width);
    canvas.put(area, 0, row, &fit(&crossover, usize::from(area.width)), Tone::Strong);
    let row = if fits { row } else { row + 1 };
    canvas.put(area, if fits { beside } else { 0 }, row, LEGEND, Tone::Dim);
    let height = usize::from(area.height).saturating_sub(row + 2);
    if height == 0 {
        return;
    }
    let columns = (usize::from(area.width).saturating_sub(NAMES) / STEP).min(20);
    let suffixes = suffixes(suffix, columns);
    let keeps = keeps(explorer.knobs.keep, height);
    let grid = break_even.grid(&suffixes, depth, &keeps);
    let at = suffix.map(|suffix| nearest(&suffixes, suffix));
    for (line, (keep, gains)) in keeps.iter().zip(&grid).enumerate() {
        let here = *keep == explorer.knobs.keep;
        let name = format!("{}keep {}", if here { "▸" } else { " " }, fraction(*keep));
        canvas.put(area, 0, row + 1 + line, &name, if here { Tone::Key } else { Tone::Dim });
        for (column, gain) in gains.iter().enumerate() {
            let Some(gain) = gain else { continue };
            let (glyph, tone) = look(gain);
            let marked = here && at == Some(column);
            let cell = if marked { format!("[{glyph}]") } else { format!(" {glyph} ") };
            let tone = if marked { Tone::Strong } else { tone };
            canvas.put(area, NAMES + column * STEP, row + 1 + line, &cell, tone);
        }
    }
    let foot = row + 1 + keeps.len();
    canvas.put(area, 0, foot, "suffix", Tone::Dim);
    for (column, suffix) in suffixes.iter().enumerate() {
        let tone = if at == Some(column) { Tone::Key } else { Tone::Dim };
        canvas.put(area, NAMES + column * STEP, foot, &kilo(*suffix), tone);
    }
}

/// What the marks of the map mean.
const LEGEND: &str = "▲ sparse ▼ dense, + - unmeasured, [ ] here";

fn crossover_words(break_even: &BreakEven, depth: u64, keep: f64) -> String {
    match break_even.wins(depth, keep) {
        None => format!("never sooner at keep {} on this machine", fraction(keep)),
        Some(wins) => {
            let basis = break_even.gain(wins.start, depth, keep).map_or("", |gain| basis_word(gain.basis()));
            let end = match wins.end {
                u64::MAX => String::new(),
                end => format!(" up to {}", thousands(end)),
            };
            format!(
                "sparse is sooner from a suffix of {} tokens on{end} at keep {} ({basis})",
                thousands(wins.start),
                fraction(keep)
            )
        }
    }
}

/// Suffixes by doubling, in steps of half a doubling, up to beyond `suffix`.
fn suffixes(suffix: Option<u64>, columns: usize) -> Vec<u64> {
    let top = suffix.unwrap_or(16_384).max(4_096).checked_next_power_of_two().unwrap_or(1 << 40);
    let mut power = top.min(1 << 40).saturating_mul(2);
    let mut out = Vec::new();
    while out.len() < columns && power >= 64 {
        out.push(power);
        if out.len() < columns {
            out.push(power / 4 * 3);
        }
        power /= 2;
    }
    out.reverse();
    out
}

/// Keep fractions for `height` rows, `keep` among them.
fn keeps(keep: f64, height: usize) -> Vec<f64> {
    let mut keeps: Vec<f64> = ROWS.into_iter().filter(|row| *row != keep).collect();
    while keeps.len() + 1 > height.max(1) && !keeps.is_empty() {
        // The one farthest from what is looked at goes first; that everything is kept goes last.
        let away = |row: &f64| if *row == 1.0 { -1.0 } else { (row / keep).ln().abs() };
        let farthest = (0..keeps.len()).max_by(|a, b| away(&keeps[*a]).total_cmp(&away(&keeps[*b])));
        keeps.remove(farthest.unwrap_or(0));
    }
    keeps.push(keep);
    keeps.sort_by(|a, b| b.total_cmp(a));
    keeps
}

/// The column whose suffix is nearest by ratio.
fn nearest(suffixes: &[u64], suffix: u64) -> usize {
    let away = |at: usize| (suffixes[at] as f64 / suffix.max(1) as f64).ln().abs();
    (0..suffixes.len()).min_by(|a, b| away(*a).total_cmp(&away(*b))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_reaches_beyond_the_suffix_and_holds_the_fraction_looked_at() {
        let all = suffixes(Some(9_000), 12);
        assert!(all.is_sorted() && all.len() == 12 && all[all.len() - 1] > 9_000, "{all:?}");
        assert_eq!(all[nearest(&all, 9_000)], 8_192);
        for suffix in [0, 1, u64::MAX] {
            let all = suffixes(Some(suffix), 20);
            assert!(nearest(&all, suffix) < all.len());
        }
        assert!(suffixes(None, 0).is_empty());
        let rows = keeps(0.2, 4);
        assert_eq!(rows, [1.0, 0.4, 0.3, 0.2]);
        assert_eq!(keeps(0.07, 1), [0.07]);
    }
}
