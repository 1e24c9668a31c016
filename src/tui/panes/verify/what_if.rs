//! What other depths and controllers would have made of the same reply, and how much of that was seen to happen.

use ratatui::text::Line;

use super::{Group, NAMES, Verify, flow, times};
use crate::decode::what_if::{Policy, Replayed};
use crate::ledger::WhatIf;
use crate::tui::text::{UNKNOWN, left, right};
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

/// A longer reply is not decoded again for every frame.
const LONGEST: u64 = 8_192;
/// Columns of a policy's name, and of its figures.
const NAME: usize = 11;
const FIGURE: usize = 10;

impl Verify<'_> {
    /// A row a policy. Where rows are scarce the first says the most.
    pub(super) fn what_if(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let said =
            |words: &str, tone| flow(canvas, "what if", [vec![canvas.span(words.to_owned(), tone)]], width);
        match self.request.output_tokens {
            None => return said("when the reply has ended", Tone::Dim),
            Some(tokens) if tokens > LONGEST => {
                return said("`escarp report` has it for so long a reply", Tone::Dim);
            }
            Some(_) => {}
        }
        let replayed = match self.model.ledger().what_if_of(&[self.request.id]) {
            None => return said("– without a dense step and the cost of a cycle", Tone::Dim),
            Some(Err(_)) => return said("withheld: an audit failed", Tone::Warn),
            Some(Ok(what_if)) => what_if,
        };
        let mut rows: Vec<(Policy, Replayed)> =
            replayed.policies.iter().map(|(policy, runs)| (*policy, WhatIf::sum(runs))).collect();
        rows.sort_by_key(|(policy, _)| rank(*policy));
        let rate = |run: &Replayed| run.speed_up().unwrap_or(0.0);
        let fixed = rows.iter().filter(|(policy, _)| matches!(policy, Policy::Fixed(1..)));
        let best = fixed.max_by(|a, b| rate(&a.1).total_cmp(&rate(&b.1)));
        let chosen =
            |(policy, _): &&(Policy, Replayed)| matches!(policy, Policy::Adaptive { .. } | Policy::Oracle);
        let recorded = rows.iter().find(|(policy, _)| *policy == Policy::Recorded);
        let headline = rows.iter().filter(chosen).chain(best).chain(recorded);
        let groups: Vec<Group> = headline
            .map(|(policy, run)| {
                vec![
                    canvas.span(format!("{} ", name(*policy)), Tone::Dim),
                    canvas.span(format!("{}  ", times(run.speed_up())), Tone::Strong),
                ]
            })
            .collect();
        let mut lines = flow(canvas, "what if", groups, width);
        lines.truncate(1);
        // The ledger of a lane knows no other lane's dense step.
        let of = if self.figures.across_lanes() { "lane's own" } else { "" };
        let head = ["x dense", "per cycle", "exact"].map(|head| right(head, FIGURE)).concat();
        lines.push(Line::from(
            canvas.span(format!("{}{}{head}", " ".repeat(NAMES), left(of, NAME)), Tone::Dim),
        ));
        lines.extend(rows.iter().map(|(policy, run)| row(canvas, &name(*policy), run)));
        lines
    }
}

/// Where a policy stands in the table: where rows are scarce the first are left.
fn rank(policy: Policy) -> u32 {
    match policy {
        Policy::Adaptive { .. } => 0,
        Policy::Oracle => 1,
        Policy::Recorded => 2,
        Policy::Fixed(depth) => depth.saturating_add(3),
    }
}

fn name(policy: Policy) -> String {
    match policy {
        Policy::Recorded => "recorded".to_owned(),
        Policy::Fixed(0) => "none".to_owned(),
        Policy::Fixed(depth) => format!("fixed {depth}"),
        Policy::Adaptive { .. } => "adaptive".to_owned(),
        Policy::Oracle => "oracle".to_owned(),
    }
}

fn row(canvas: &Canvas<'_>, name: &str, run: &Replayed) -> Line<'static> {
    let speed_up = run.speed_up();
    let tone = match speed_up {
        Some(times) if times > 1.0 => Tone::Good,
        Some(times) if times < 1.0 => Tone::Warn,
        _ => Tone::Dim,
    };
    // A cost that lies on a line between measurements is no measurement.
    let mark = if run.measured { "" } else { "≈" };
    let known =
        |value: Option<f64>, words: fn(f64) -> String| value.map_or_else(|| UNKNOWN.to_owned(), words);
    Line::from(vec![
        canvas.span(" ".repeat(NAMES), Tone::Dim),
        canvas.span(left(name, NAME), Tone::Text),
        canvas.span(right(&format!("{mark}{}", times(speed_up)), FIGURE), tone),
        canvas.span(right(&known(run.tokens_per_cycle(), |value| format!("{value:.2}")), FIGURE), Tone::Text),
        canvas.span(
            right(&known(run.exact_share(), |share| format!("{:.0} %", share * 100.0)), FIGURE),
            Tone::Dim,
        ),
    ])
}
