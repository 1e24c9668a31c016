//! The charts of a comparison.

use std::collections::BTreeMap;

use super::super::speculation_chart::depth_chart;
use super::super::svg::{Anchor, Svg, lane_class, ticks};
use super::super::{seconds, thousands};
use super::economics_chart::economics;
use crate::compare::{Cell, Comparison, Turn, Verdict};
use crate::event::Scored;

/// A chart: what its file is called after the report's name, its text alternative, its SVG.
pub struct Chart {
    /// `checkpoint`, `ttft`, `drafting`, `kept-sparse`, `depth-ngram`.
    pub name: String,
    /// What it shows, in words.
    pub alternative: String,
    /// The file.
    pub svg: String,
}

const WIDTH: f64 = 900.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 24.0;
const PLOT: f64 = WIDTH - LEFT - RIGHT;
const HEAD: f64 = 56.0;
const FOOT: f64 = 44.0;

/// All charts that there is something to draw for.
pub fn charts(comparison: &Comparison) -> Vec<Chart> {
    let turns = comparison.turns();
    if turns.is_empty() {
        return Vec::new();
    }
    let mut charts = vec![checkpoints(comparison, &turns), times(comparison, &turns)];
    charts.extend(economics(comparison, &turns));
    charts.extend((0..comparison.names().len()).filter_map(|lane| kept_map(comparison, lane, &turns)));
    charts.extend((0..comparison.names().len()).filter_map(|lane| {
        let name = comparison.name(lane);
        let (alternative, svg) = depth_chart(name, comparison.ledger_of(0, lane)?)?;
        Some(Chart { name: format!("depth-{name}"), alternative, svg })
    }));
    charts
}

/// A vertical axis: a value's height in a plot of `height` below `top`.
struct Scale {
    top: f64,
    height: f64,
    steps: Vec<f64>,
}

impl Scale {
    fn new(top: f64, height: f64, max: f64) -> Scale {
        Scale { top, height, steps: ticks(max) }
    }

    fn y(&self, value: f64) -> f64 {
        let most = self.steps.last().copied().filter(|most| *most > 0.0).unwrap_or(1.0);
        self.top + self.height * (1.0 - value / most)
    }

    /// Grid, numbers, and the axis' name.
    fn draw(&self, svg: &mut Svg, name: &str, text: impl Fn(f64) -> String) {
        for step in &self.steps {
            let y = self.y(*step);
            svg.line((LEFT, y), (WIDTH - RIGHT, y), if *step == 0.0 { "axis" } else { "grid" });
            svg.text(LEFT - 8.0, y + 4.0, Anchor::End, "faint", &text(*step));
        }
        svg.upward_text(16.0, self.top + self.height / 2.0, name);
    }
}

fn tokens(value: f64) -> String {
    thousands(value.round() as u64)
}

/// Where request `index` of `count` stands on the horizontal axis, and how wide its place is.
fn column(index: usize, count: usize) -> (f64, f64) {
    let width = PLOT / count.max(1) as f64;
    (LEFT + width * index as f64, width)
}

/// Numbers of requests under the horizontal axis, as many as there is room for.
fn draw_requests(svg: &mut Svg, turns: &[Turn], y: f64) {
    let every = turns.len().div_ceil(24).max(1);
    for (index, turn) in turns.iter().enumerate().filter(|(index, _)| index % every == 0) {
        let (x, width) = column(index, turns.len());
        svg.text(x + width / 2.0, y + 16.0, Anchor::Middle, "faint", &turn.place.label());
    }
    svg.text(LEFT + PLOT / 2.0, y + 34.0, Anchor::Middle, "faint", "request (turn)");
}

fn cell(turn: &Turn, lane: usize) -> Option<&Cell> {
    turn.cells.get(lane)?.as_ref()
}

/// Checkpoint and suffix of every request, a panel a lane.
fn checkpoints(comparison: &Comparison, turns: &[Turn]) -> Chart {
    const PANEL: f64 = 150.0;
    const GAP: f64 = 26.0;
    let lanes = comparison.names().len();
    let last = |lane: usize| turns.iter().rev().find_map(|turn| cell(turn, lane));
    let parts: Vec<String> = (0..lanes)
        .map(|lane| match last(lane).and_then(|cell| cell.checkpoint_tokens.zip(cell.uncached_suffix)) {
            Some((checkpoint, suffix)) => format!(
                "{} ends with a checkpoint of {} and a suffix of {} tokens",
                comparison.name(lane),
                thousands(checkpoint),
                thousands(suffix)
            ),
            None => format!("{} has no checkpoint observed", comparison.name(lane)),
        })
        .collect();
    let alternative = format!("Checkpoint and uncached suffix of each request: {}.", parts.join("; "));
    let height = HEAD + (PANEL + GAP) * lanes as f64 + FOOT;
    let mut svg = Svg::new(WIDTH, height, "Checkpoint and uncached suffix by request", &alternative);
    svg.rect((LEFT, 34.0), (12.0, 12.0), "l0 bar", 1.0);
    svg.text(LEFT + 18.0, 44.0, Anchor::Start, "faint", "checkpoint: restored");
    svg.rect((LEFT + 160.0, 34.0), (12.0, 12.0), "l0 bar", 0.35);
    svg.text(LEFT + 178.0, 44.0, Anchor::Start, "faint", "suffix: behind the checkpoint");
    let cells = || turns.iter().flat_map(|turn| turn.cells.iter().flatten());
    let max = cells().filter_map(|cell| cell.prompt_tokens).max().unwrap_or(0) as f64;
    for lane in 0..lanes {
        let top = HEAD + GAP + (PANEL + GAP) * lane as f64;
        let scale = Scale::new(top, PANEL, max);
        svg.text(LEFT, top - 8.0, Anchor::Start, "ink", comparison.name(lane));
        scale.draw(&mut svg, "tokens", tokens);
        let class = format!("{} bar", lane_class(lane));
        for (index, turn) in turns.iter().enumerate() {
            let Some(cell) = cell(turn, lane) else { continue };
            let (Some(checkpoint), Some(prompt)) = (cell.checkpoint_tokens, cell.prompt_tokens) else {
                continue;
            };
            let (x, width) = column(index, turns.len());
            let gap = (width * 0.15).min(3.0);
            let (x, width) = (x + gap / 2.0, width - gap);
            let (floor, mark, head) = (scale.y(0.0), scale.y(checkpoint as f64), scale.y(prompt as f64));
            svg.rect((x, mark), (width, floor - mark), &class, 1.0);
            svg.rect((x, head), (width, mark - head), &class, 0.35);
        }
    }
    draw_requests(&mut svg, turns, height - FOOT);
    Chart { name: "checkpoint".to_owned(), alternative, svg: svg.finish() }
}

/// Time to first token summed over the session, a line a lane.
fn times(comparison: &Comparison, turns: &[Turn]) -> Chart {
    const HEIGHT: f64 = 280.0;
    let lanes = 0..comparison.names().len();
    let sum = |turn: &Turn, lane: usize| Some(cell(turn, lane)?.ttft_sum_s?.median);
    let ends: Vec<String> = lanes
        .clone()
        .map(|lane| match turns.iter().rev().find_map(|turn| sum(turn, lane)) {
            Some(end) => format!("{} {}", comparison.name(lane), seconds(end)),
            None => format!("{} not measured", comparison.name(lane)),
        })
        .collect();
    let verdicts = comparison.verdicts();
    let sentences: Vec<String> = verdicts.iter().map(|verdict| verdict.sentence() + ".").collect();
    let alternative =
        format!("Summed time to first token at the end: {}. {}", ends.join(", "), sentences.join(" "));
    let basis = if comparison.is_simulated() { "simulated" } else { "measured" };
    let title = format!("Summed time to first token ({basis})");
    let mut svg = Svg::new(WIDTH, HEAD + HEIGHT + FOOT + 16.0, &title, &alternative);
    let max =
        turns.iter().flat_map(|turn| lanes.clone().filter_map(|lane| sum(turn, lane))).fold(0.0, f64::max);
    let scale = Scale::new(HEAD + 8.0, HEIGHT, max);
    scale.draw(&mut svg, "seconds", |value| format!("{value}"));
    let floor = scale.y(0.0);
    for (index, names) in leads_end(&verdicts, turns) {
        let (x, width) = column(index, turns.len());
        let x = x + width / 2.0;
        // The words stand where there is room for them.
        let (anchor, beside) = if x > LEFT + PLOT * 0.7 { (Anchor::End, -5.0) } else { (Anchor::Start, 5.0) };
        svg.line((x, scale.top), (x, floor), "axis");
        let words = format!("{} led until here", names.join(", "));
        svg.text(x + beside, scale.top + 12.0, anchor, "faint", &words);
    }
    for (slot, lane) in lanes.enumerate() {
        let points: Vec<(f64, f64)> = turns
            .iter()
            .enumerate()
            .filter_map(|(index, turn)| {
                let (x, width) = column(index, turns.len());
                Some((x + width / 2.0, scale.y(sum(turn, lane)?)))
            })
            .collect();
        svg.curve(&points, lane);
        for (x, y) in &points {
            svg.rect((x - 2.5, y - 2.5), (5.0, 5.0), &format!("{} mark", lane_class(lane)), 1.0);
        }
        let x = LEFT + 200.0 * slot as f64;
        svg.curve(&[(x, 40.0), (x + 26.0, 40.0)], lane);
        svg.text(x + 32.0, 44.0, Anchor::Start, "faint", &ends[slot]);
    }
    draw_requests(&mut svg, turns, floor);
    Chart { name: "ttft".to_owned(), alternative, svg: svg.finish() }
}

/// After which request lanes lost their lead, by its place among the turns; not those that lead to the end.
fn leads_end<'a>(verdicts: &'a [Verdict], turns: &[Turn]) -> BTreeMap<usize, Vec<&'a str>> {
    let mut ends: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for verdict in verdicts {
        let until = verdict.led_until.filter(|until| Some(*until) != verdict.last);
        if let Some(index) = until.and_then(|until| turns.iter().position(|turn| turn.place == until)) {
            ends.entry(index).or_default().push(&verdict.lane);
        }
    }
    ends
}

/// Shades of kept tokens, so that a row is a few hundred rectangles and not one a range.
const SHADES: u64 = 4;

/// What of each prompt was restored, computed, and dropped, a row a request. `None` where the lane scored nothing.
fn kept_map(comparison: &Comparison, lane: usize, turns: &[Turn]) -> Option<Chart> {
    let ledger = comparison.ledger_of(0, lane)?;
    let rows: Vec<_> = turns
        .iter()
        .filter_map(|turn| {
            let mut requests = ledger.lane_requests(turn.place.line);
            let request = requests.find(|request| request.turn == turn.place.turn)?;
            Some((turn, request.prompt_tokens?, request.checkpoint()?, request.scored.as_ref()))
        })
        .collect();
    let scored = rows.iter().filter(|(.., scored)| scored.is_some()).count();
    if scored == 0 {
        return None;
    }
    let row = (420.0 / rows.len() as f64).clamp(4.0, 22.0);
    let floor = HEAD + 8.0 + row * rows.len() as f64;
    let name = comparison.name(lane);
    let alternative = format!(
        "Kept map of lane {name}: along each prompt, what was restored, what was computed and what a sparse prefill dropped; {scored} of {} \
         requests were scored.",
        rows.len()
    );
    let title = format!("What {name} kept of each prompt");
    let mut svg = Svg::new(WIDTH, floor + FOOT, &title, &alternative);
    let class = lane_class(lane);
    let legend = [("restored", "pale", 1.0), ("computed", "bar", 1.0), ("dropped", "bar", 0.12)];
    for (slot, (word, fill, opacity)) in legend.into_iter().enumerate() {
        let x = LEFT + 110.0 * slot as f64;
        svg.rect((x, 34.0), (12.0, 12.0), &format!("{class} {fill}"), opacity);
        svg.text(x + 18.0, 44.0, Anchor::Start, "faint", word);
    }
    let steps = ticks(rows.iter().map(|(_, prompt, ..)| *prompt).max().unwrap_or(0) as f64);
    let most = steps.last().copied().filter(|most| *most > 0.0).unwrap_or(1.0);
    let x = |position: f64| LEFT + PLOT * position / most;
    for step in &steps {
        svg.line((x(*step), HEAD + 8.0), (x(*step), floor), "grid");
        svg.text(x(*step), floor + 16.0, Anchor::Middle, "faint", &tokens(*step));
    }
    svg.text(LEFT + PLOT / 2.0, floor + 34.0, Anchor::Middle, "faint", "position in the prompt, tokens");
    svg.upward_text(16.0, HEAD + 8.0 + (floor - HEAD) / 2.0, "request (turn)");
    let every = (14.0 / row).ceil() as usize;
    let bar = format!("{class} bar");
    for (index, (turn, prompt, checkpoint, scored)) in rows.iter().enumerate() {
        let top = HEAD + 8.0 + row * index as f64;
        let height = row - (row * 0.15).min(2.0);
        let mut draw = |from: f64, to: f64, class: &str, opacity: f64| {
            svg.rect((x(from), top), (x(to) - x(from), height), class, opacity);
        };
        draw(0.0, *checkpoint as f64, "pale", 1.0);
        match scored {
            None => draw(*checkpoint as f64, *prompt as f64, &bar, 1.0),
            Some(scored) => {
                draw(*checkpoint as f64, scored.origin as f64, &bar, 1.0);
                for (from, to, shade) in shades(scored, *prompt, most) {
                    draw(from, to, &bar, 0.12 + 0.88 * shade as f64 / SHADES as f64);
                }
            }
        }
        if index % every == 0 {
            svg.text(LEFT - 8.0, top + row / 2.0 + 4.0, Anchor::End, "faint", &turn.place.label());
        }
    }
    Some(Chart { name: format!("kept-{name}"), alternative, svg: svg.finish() })
}

/// How much was kept of the window, from where to where, in [`SHADES`] steps: what falls on one unit of the drawing is one value.
fn shades(scored: &Scored, prompt: u64, most: f64) -> Vec<(f64, f64, u64)> {
    let pixel = (most / PLOT).ceil().max(1.0) as u64;
    let mut runs: Vec<(f64, f64, u64)> = Vec::new();
    let mut from = scored.origin;
    while from < prompt {
        let to = from.saturating_add(pixel).min(prompt);
        let share = scored.kept_between(from, to) as f64 / (to - from) as f64;
        // Never drawn as all or nothing unless it is.
        let shade = match share {
            share if share <= 0.0 => 0,
            share if share >= 1.0 => SHADES,
            share => ((share * SHADES as f64).round() as u64).clamp(1, SHADES - 1),
        };
        match runs.last_mut() {
            Some(run) if run.2 == shade => run.1 = to as f64,
            _ => runs.push((from as f64, to as f64, shade)),
        }
        from = to;
    }
    runs
}
