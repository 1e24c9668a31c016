//! The chart of depths over a run: what was drafted, what of it was accepted, and where the sequence was parked.

use super::svg::{Anchor, Svg, ticks};
use super::thousands;
use crate::ledger::{Ledger, RequestFacts};

const WIDTH: f64 = 900.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 64.0;
const HEIGHT: f64 = 150.0;
const FOOT: f64 = 48.0;

/// Reply tokens of requests that drafted, one after another, as they are drawn.
struct Line<'a> {
    request: &'a RequestFacts,
    /// Tokens of the requests before it.
    from: u64,
    tokens: u64,
}

/// Depth, accepted tokens and parked spans over the replies of a lane that is called `name`: its text alternative and its SVG. `None` where nothing
/// drafted.
pub(super) fn depth_chart(name: &str, ledger: &Ledger) -> Option<(String, String)> {
    let mut lines = Vec::new();
    let mut all = 0;
    for request in ledger.requests() {
        let Some(told) = request.speculation.as_deref().filter(|told| !told.cycles.is_empty()) else {
            continue;
        };
        let last =
            told.cycles.iter().map(|cycle| cycle.first.saturating_add(u64::from(cycle.emitted()))).max();
        let tokens = request.output_tokens.or(last).unwrap_or(0).min(1 << 20);
        lines.push(Line { request, from: all, tokens });
        all += tokens;
    }
    if all == 0 {
        return None;
    }
    let cycles =
        || lines.iter().flat_map(|line| line.request.speculation.iter().flat_map(|told| &told.cycles));
    let deepest = cycles().map(|cycle| cycle.depth).max().unwrap_or(0).clamp(1, 16);
    let parked: u64 = lines
        .iter()
        .filter_map(|line| line.request.speculation_account()?.parked_steps)
        .fold(0, u64::saturating_add);
    let alternative = format!(
        "Depth of {name}'s verify cycles over {} reply tokens of {} replies: {} cycles at depths up to {deepest}, {} tokens accepted, {} ordinary \
         steps outside of cycles.",
        thousands(all),
        lines.len(),
        thousands(cycles().count() as u64),
        thousands(cycles().map(|cycle| u64::from(cycle.accepted)).sum()),
        thousands(parked),
    );
    let mut svg =
        Svg::new(WIDTH, TOP + HEIGHT + FOOT, &format!("Depth over the replies of {name}"), &alternative);
    let steps = ticks(f64::from(deepest));
    let most = steps.last().copied().filter(|most| *most > 0.0).unwrap_or(1.0);
    let x = |token: u64| LEFT + (WIDTH - LEFT - RIGHT) * token as f64 / all as f64;
    let y = |depth: f64| TOP + HEIGHT * (1.0 - depth / most);
    svg.text(
        12.0,
        44.0,
        Anchor::Start,
        "faint",
        "drafted pale, accepted in colour; marked below the axis: ordinary steps outside of cycles",
    );
    for step in &steps {
        svg.line((LEFT, y(*step)), (WIDTH - RIGHT, y(*step)), if *step == 0.0 { "axis" } else { "grid" });
        svg.text(LEFT - 8.0, y(*step) + 4.0, Anchor::End, "faint", &format!("{step}"));
    }
    svg.upward_text(16.0, TOP + HEIGHT / 2.0, "tokens drafted");
    for line in &lines {
        let mut next = 1;
        let Some(told) = line.request.speculation.as_deref() else { continue };
        let parked = |svg: &mut Svg, from: u64, to: u64| {
            let (from, to) = (x(line.from + from.min(line.tokens)), x(line.from + to.min(line.tokens)));
            svg.rect((from, y(0.0) + 3.0), (to - from, 6.0), "mark l1", 0.8);
        };
        for cycle in told.cycles.iter().filter(|cycle| cycle.first < line.tokens) {
            parked(&mut svg, next, cycle.first.max(next));
            next = cycle.first.saturating_add(u64::from(cycle.emitted()));
            let (from, to) = (x(line.from + cycle.first), x(line.from + next.min(line.tokens)));
            let bar = |svg: &mut Svg, height: u32, class: &str| {
                let height = f64::from(height.min(16));
                svg.rect((from, y(height)), (to - from, y(0.0) - y(height)), class, 1.0);
            };
            bar(&mut svg, cycle.drafted, "pale");
            bar(&mut svg, cycle.accepted.min(cycle.drafted), "bar l0");
        }
        if line.request.output_tokens.is_some() {
            parked(&mut svg, next, line.tokens);
        }
        svg.line((x(line.from), TOP), (x(line.from), y(0.0) + 12.0), "axis");
        if line.tokens * 24 >= all {
            svg.text(
                x(line.from) + 3.0,
                y(0.0) + 24.0,
                Anchor::Start,
                "faint",
                &line.request.turn.to_string(),
            );
        }
    }
    svg.text(LEFT, y(0.0) + 40.0, Anchor::Start, "faint", "turn, its reply tokens from left to right");
    Some((alternative, svg.finish()))
}
