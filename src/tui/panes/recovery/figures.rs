//! Budget, steps, race, net return, and what requests felt.

use ratatui::text::{Line, Span};

use super::{Group, View, flow, words};
use crate::event::{BudgetReading, Nanos};
use crate::ledger::{NetReturn, Quantiles, Sides};
use crate::tui::text::{self, UNKNOWN, about, duration, thousands};
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

/// Columns of the window's gauge.
const GAUGE: usize = 10;

impl View<'_> {
    /// The window's gauge, then what the job has had of the wall's time.
    pub(super) fn budget(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let facts = self.ledger.run().and_then(|run| run.recovery.as_ref());
        let reading = self.job.and_then(|job| job.budget.as_ref());
        let bounded = facts.is_none_or(|facts| facts.budget_pct < 100.0 || facts.budget_tokens.is_some());
        let mut groups = Vec::new();
        match (reading, facts) {
            (_, Some(facts)) if !bounded => {
                let words_of =
                    format!("100 % of windows of {} s: idleness is the only bound", facts.window_s);
                groups.push(words(canvas, words_of, Tone::Text));
            }
            (Some(reading), _) => groups.extend(gauge(canvas, reading)),
            (None, _) => groups.push(words(canvas, "nothing charged yet", Tone::Dim)),
        }
        if let Some(facts) = facts.filter(|_| bounded) {
            let each = format!("{} % of windows of {} s", facts.budget_pct, facts.window_s);
            groups.push(words(canvas, each, Tone::Dim));
        }
        let mut lines = flow(canvas, "budget", groups, width);
        if let Some(job) = self.job.filter(|job| !job.slices.is_empty()) {
            let share = job
                .service_share(self.ledger.now())
                .map_or_else(|| UNKNOWN.to_owned(), |share| format!("{:.1} %", share * 100.0));
            let publishing = Nanos(job.spent().0 - job.service().0);
            let groups = vec![
                vec![
                    canvas.span(duration(Some(job.service())), Tone::Strong),
                    canvas.span(
                        format!(
                            " in {}, {} publishing",
                            counted(job.slices.len(), "slice"),
                            duration(Some(publishing))
                        ),
                        Tone::Text,
                    ),
                ],
                words(canvas, format!("= {share} of the wall time it was there"), Tone::Text),
            ];
            lines.extend(flow(canvas, "service", groups, width));
        }
        lines
    }

    /// Steps of the engine's loop, and what was waited for.
    pub(super) fn steps(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let Some(job) = self.job else { return Vec::new() };
        let steps = &job.steps;
        let figure = |name: &str, value: u64| -> Group {
            vec![
                canvas.span(format!("{name} "), Tone::Dim),
                canvas.span(format!("{}  ", thousands(value)), Tone::Text),
            ]
        };
        let groups = vec![
            figure("runnable", steps.runnable),
            figure("scheduled", steps.scheduled),
            figure("yielded", steps.yielded),
            figure("resumed", steps.resumed),
        ];
        let mut lines = flow(canvas, "steps", groups, width);
        let gave_way = job.slices.iter().filter(|slice| slice.gave_way.is_some()).count();
        let mut waits: Vec<Group> = Vec::new();
        if gave_way > 0 {
            waits.push(words(canvas, format!("{} gave way  ", counted(gave_way, "slice")), Tone::Text));
        }
        let mut waited: Vec<_> = job.waited.iter().filter(|(_, time)| time.0 > 0).collect();
        waited.sort_by_key(|(_, time)| std::cmp::Reverse(**time));
        for (why, time) in waited {
            waits.push(vec![
                canvas.span(duration(Some(*time)), Tone::Text),
                canvas.span(format!(" {}  ", why.words()), Tone::Dim),
            ]);
        }
        if !waits.is_empty() {
            lines.extend(flow(canvas, "waited", waits, width));
        }
        lines
    }

    /// When the next request is expected, and how far the job will have come by then.
    pub(super) fn race(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        if self.job.is_none_or(|job| job.end.is_some()) {
            return Vec::new();
        }
        let Some(race) = self.ledger.race() else {
            let words_of = match self.ledger.gaps() {
                None => "– no gap between requests was seen, so nobody knows when the next will come",
                Some(_) => "– nothing was computed yet, so there is no rate",
            };
            return flow(canvas, "race", [words(canvas, words_of, Tone::Dim)], width);
        };
        let (verdict, tone) = match race.job_wins() {
            true => ("THE JOB WINS", Tone::Good),
            false => ("the arrival wins", Tone::Warn),
        };
        let arrival = match race.arrival_s > 0.0 {
            true => format!(" in the {} to it  ", about(race.arrival_s)),
            false => ", and it is due  ".to_owned(),
        };
        let groups = vec![
            vec![
                canvas.span(verdict, tone),
                canvas.span(": reaches ", Tone::Text),
                canvas.span(thousands(race.reaches), Tone::Strong),
                canvas.span(format!(" of {}{arrival}", thousands(race.target)), Tone::Text),
            ],
            words(
                canvas,
                format!("by gaps of p50 {}, {} of them  ", seconds(race.gaps.p50_s), race.gaps.count),
                Tone::Dim,
            ),
            words(
                canvas,
                format!("at {:.0} tok/s for {} that the budget leaves", race.rate, seconds(race.service_s)),
                Tone::Dim,
            ),
        ];
        flow(canvas, "race", groups, width)
    }

    /// The three terms of the job's net return, what they rest on, and that of the whole run.
    pub(super) fn net_return(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let Some(own) = self.job.and_then(|job| self.returns.get(&job.id)) else { return Vec::new() };
        let mut lines = flow(canvas, "net return", terms(canvas, own), width);
        let mut ground = Vec::new();
        if own.credits.is_empty() {
            ground.push(words(canvas, "no later request has started from what it published", Tone::Dim));
        } else {
            let requests = counted(own.requests(), "request");
            let credit = format!(
                "{} tokens restored by {requests}, {} strictly  ",
                thousands(own.tokens()),
                own.strict()
            );
            ground.push(words(canvas, credit, Tone::Text));
            if let Some(by) = own.by() {
                ground.push(words(canvas, format!("priced by the {}", by.words()), Tone::Dim));
            }
        }
        lines.extend(flow(canvas, "", ground, width));
        if let Some(all) = self.ledger.net_return().filter(|_| self.returns.len() > 1) {
            lines.extend(flow(canvas, "  all jobs", terms(canvas, &all), width));
        }
        if let Some(pace) = self.ledger.pace(self.model.ui.lane) {
            let figures = format!(
                ": {} recovered, {} grown meanwhile",
                thousands(pace.recovered),
                thousands(pace.grown)
            );
            let groups =
                [vec![canvas.span(pace.class().words(), Tone::Strong), canvas.span(figures, Tone::Text)]];
            lines.extend(flow(canvas, "pace", groups, width));
        }
        lines
    }

    /// Latencies of requests with a job and without, and collisions, each against its target.
    pub(super) fn protection(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let protection = self.ledger.protection();
        let mut lines = Vec::new();
        for (name, sides) in [("ttft", protection.first_token), ("itl", protection.between_tokens)] {
            if sides.beside.is_some() || sides.alone.is_some() {
                lines.extend(flow(canvas, name, side_groups(canvas, &sides), width));
            }
        }
        let mut groups = vec![match protection.worst {
            None => words(canvas, "no arrival found a slice in its way  ", Tone::Good),
            Some(worst) => vec![
                canvas.span(counted(protection.collisions, "arrival"), Tone::Strong),
                canvas.span(" found a slice in the way, worst delay ", Tone::Text),
                canvas.span(format!("{}  ", duration(Some(worst))), Tone::Strong),
            ],
        }];
        groups.extend(target(canvas, protection.delay_target_s, protection.delay_holds()));
        lines.extend(flow(canvas, "collisions", groups, width));
        lines
    }
}

/// `│███████░░░│ 2.1s of 3.0s in window 4`, and what was carried and the tokens where they count.
fn gauge(canvas: &Canvas<'_>, reading: &BudgetReading) -> Vec<Group> {
    let part = |spent: u64, of: u64| if of == 0 { 1.0 } else { (spent as f64 / of as f64).min(1.0) };
    let filled = (part(reading.spent.0, reading.allowance.0) * GAUGE as f64).round() as usize;
    let over = reading.spent >= reading.allowance;
    let mut groups = vec![vec![
        canvas.span("│", Tone::Border),
        canvas.span("█".repeat(filled), if over { Tone::Warn } else { Tone::Checkpoint }),
        canvas.span("░".repeat(GAUGE - filled), Tone::Dim),
        canvas.span("│ ", Tone::Border),
        canvas.span(duration(Some(reading.spent)), Tone::Strong),
        canvas.span(
            format!(" of {} in window {}", duration(Some(reading.allowance)), thousands(reading.windows + 1)),
            Tone::Text,
        ),
    ]];
    if reading.carried.0 > 0 {
        groups.push(words(canvas, format!("{} carried into it", duration(Some(reading.carried))), Tone::Dim));
    }
    if let Some(allowance) = reading.allowance_tokens {
        let tokens = format!("{} of {} tokens", thousands(reading.spent_tokens), thousands(allowance));
        groups.push(words(canvas, tokens, Tone::Text));
    }
    if reading.owners > 1 {
        groups.push(words(canvas, format!("shared by {} engines", reading.owners), Tone::Dim));
    }
    groups
}

fn terms(canvas: &Canvas<'_>, account: &NetReturn) -> Vec<Group> {
    let (sum, tone) = match account.seconds() {
        None => (UNKNOWN.to_owned(), Tone::Dim),
        Some(net) => (signed_seconds(net), if net >= 0.0 { Tone::Good } else { Tone::Warn }),
    };
    let saved = account.saved_s.map_or_else(|| UNKNOWN.to_owned(), seconds);
    vec![vec![
        canvas.span(sum, tone),
        canvas.span(" = saved ", Tone::Dim),
        canvas.span(saved, Tone::Text),
        canvas.span(" − spent ", Tone::Dim),
        canvas.span(seconds(account.spent_s), Tone::Text),
        canvas.span(" − delayed ", Tone::Dim),
        canvas.span(seconds(account.delayed_s), Tone::Text),
    ]]
}

fn side_groups(canvas: &Canvas<'_>, sides: &Sides) -> Vec<Group> {
    let side = |name: &str, quantiles: Option<Quantiles>| -> Group {
        let name = canvas.span(format!("{name} "), Tone::Dim);
        let Some(q) = quantiles else { return vec![name, canvas.span(format!("{UNKNOWN}  "), Tone::Dim)] };
        let spans: [Span<'static>; 4] = [
            name,
            canvas.span(duration(Some(q.p50)), Tone::Strong),
            canvas.span(format!(" p99 {}", duration(Some(q.p99))), Tone::Text),
            canvas.span(format!(" of {}  ", thousands(q.count)), Tone::Dim),
        ];
        spans.into()
    };
    let mut groups = vec![side("with a job p50", sides.beside)];
    groups.extend(target(canvas, sides.target_s, sides.holds()));
    groups.push(side("without", sides.alone));
    groups
}

/// The target, and whether it is kept.
fn target(canvas: &Canvas<'_>, target_s: Option<f64>, holds: Option<bool>) -> Option<Group> {
    let target = format!("target {} ", seconds(target_s?));
    let (word, tone) = match holds {
        Some(true) => ("kept  ", Tone::Good),
        Some(false) => ("MISSED  ", Tone::Warn),
        None => ("–  ", Tone::Dim),
    };
    Some(vec![canvas.span(target, Tone::Dim), canvas.span(word, tone)])
}

/// A span of time that may be below nothing: `+4.2s`, `-310ms`.
pub(super) fn signed_seconds(value: f64) -> String {
    let sign = if value < 0.0 { "-" } else { "+" };
    format!("{sign}{}", seconds(value.abs()))
}

/// A span of time; what a route lost against another stands with its sign.
fn seconds(value: f64) -> String {
    let sign = if value < 0.0 { "-" } else { "" };
    format!("{sign}{}", duration(Some(Nanos::from_seconds(value.abs()))))
}

/// `1 slice`, `14 slices`.
pub(super) fn counted(number: usize, what: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {what}{ending}", text::thousands(number as u64))
}
