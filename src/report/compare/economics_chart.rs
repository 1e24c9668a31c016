//! The chart of what a cycle gives against what it costs.

use super::super::svg::{Anchor, Svg, lane_class, ticks};
use super::charts::Chart;
use crate::compare::{Comparison, Speculated, Turn};

const WIDTH: f64 = 900.0;
const LEFT: f64 = 78.0;
const TOP: f64 = 64.0;
const PLOT: (f64, f64) = (640.0, 360.0);
const FOOT: f64 = 52.0;

/// A lane's requests by cost and tokens per cycle: above the line a cycle gives more tokens than it costs dense steps. `None` where no lane drafts.
pub(super) fn economics(comparison: &Comparison, turns: &[Turn]) -> Option<Chart> {
    let verdicts = comparison.verdicts();
    let lanes: Vec<(usize, &Speculated)> = comparison
        .others()
        .filter_map(|lane| {
            let verdict = verdicts.iter().find(|verdict| verdict.lane == comparison.name(lane))?;
            Some((lane, verdict.speculation.as_ref()?))
        })
        .collect();
    let place = |of: &Speculated| Some((of.cost_ratio?.median, of.tokens_per_cycle?.median));
    let points = |lane: usize| {
        turns.iter().filter_map(move |turn| place(turn.cells.get(lane)?.as_ref()?.speculation.as_ref()?))
    };
    let most =
        lanes.iter().flat_map(|(lane, _)| points(*lane)).fold(0.0, |most: f64, (x, y)| most.max(x).max(y));
    if most <= 0.0 {
        return None;
    }
    let words = |(lane, of): &(usize, &Speculated)| {
        let name = comparison.name(*lane);
        match (of.failure(), place(of)) {
            (Some(_), _) => format!("{name} failed"),
            (None, Some((cost, gives))) => {
                format!("{name} gives {gives:.2} tokens a cycle for {cost:.2} dense steps")
            }
            (None, None) => format!("{name} was not measured"),
        }
    };
    let ends: Vec<String> = lanes.iter().map(words).collect();
    let alternative = format!(
        "Tokens per cycle over cost in dense steps, a mark a request; over the break-even line drafting wins. {}.",
        ends.join("; ")
    );
    let steps = ticks(most);
    let end = steps.last().copied().filter(|end| *end > 0.0).unwrap_or(1.0);
    let x = |value: f64| LEFT + PLOT.0 * value / end;
    let y = |value: f64| TOP + PLOT.1 * (1.0 - value / end);
    let mut svg = Svg::new(WIDTH, TOP + PLOT.1 + FOOT, "What a cycle gives and what it costs", &alternative);
    for step in &steps {
        svg.line((LEFT, y(*step)), (LEFT + PLOT.0, y(*step)), if *step == 0.0 { "axis" } else { "grid" });
        svg.line((x(*step), TOP), (x(*step), TOP + PLOT.1), if *step == 0.0 { "axis" } else { "grid" });
        svg.text(LEFT - 8.0, y(*step) + 4.0, Anchor::End, "faint", &format!("{step}"));
        svg.text(x(*step), TOP + PLOT.1 + 16.0, Anchor::Middle, "faint", &format!("{step}"));
    }
    svg.upward_text(16.0, TOP + PLOT.1 / 2.0, "tokens per cycle");
    svg.text(
        LEFT + PLOT.0 / 2.0,
        TOP + PLOT.1 + 36.0,
        Anchor::Middle,
        "faint",
        "cost of a cycle, dense steps",
    );
    svg.line((x(0.0), y(0.0)), (x(end), y(end)), "axis");
    svg.text(x(end) + 6.0, y(end) + 4.0, Anchor::Start, "faint", "break-even");
    for (slot, (lane, of)) in lanes.iter().enumerate() {
        let class = format!("{} mark", lane_class(*lane));
        let row = TOP + 40.0 + 20.0 * slot as f64;
        svg.rect((LEFT + PLOT.0 + 26.0, row - 9.0), (10.0, 10.0), &class, 1.0);
        let failed = if of.failure().is_some() { ": failed" } else { "" };
        let name = format!("{}{failed}", comparison.name(*lane));
        svg.text(LEFT + PLOT.0 + 44.0, row, Anchor::Start, "faint", &name);
        if of.failure().is_some() {
            continue;
        }
        for (cost, gives) in points(*lane) {
            svg.rect((x(cost) - 2.5, y(gives) - 2.5), (5.0, 5.0), &class, 0.7);
        }
        if let Some((cost, gives)) = place(of) {
            svg.rect((x(cost) - 5.0, y(gives) - 5.0), (10.0, 10.0), &class, 1.0);
        }
    }
    Some(Chart { name: "drafting".to_owned(), alternative, svg: svg.finish() })
}
