//! The figures as text.

use super::delay::{Arrivals, Delays, Quantiles};
use super::grid::Grid;
use super::lanes::{Lanes, Total};
use super::{Claim, Report, signed_percent};
use crate::compare::{Recovered, Spread};
use crate::report::{Align, Table, UNMEASURED, or_dash, seconds, thousands};

/// Everything that was measured, part by part, and what should hold of it.
pub(super) fn text(report: &Report) -> String {
    let Report { model, draft_model, device, kernel, precision, session, simulated, .. } = report;
    let scorer = draft_model.as_ref().map(|draft| format!(" scored by {draft}")).unwrap_or_default();
    let basis = if *simulated { " · times are a cost model's" } else { "" };
    let mut parts = vec![format!("{model} {precision}{scorer} · {device} {kernel} · {session}{basis}\n")];
    parts.extend(report.lanes.as_ref().map(lanes));
    parts.extend(report.grid.as_ref().map(grid));
    parts.extend(report.delay.as_ref().map(delay));
    if !report.claims.is_empty() {
        parts.push(report.claims.iter().map(claim).collect());
    }
    parts.join("\n")
}

fn claim(Claim { claim, holds, because }: &Claim) -> String {
    format!("{} {claim} ({because})\n", if *holds { "pass" } else { "MISS" })
}

fn median(spread: Option<Spread>) -> String {
    or_dash(spread, |spread| seconds(spread.median))
}

/// `3,328/12,544`.
fn published(recovery: &Recovered) -> String {
    format!(
        "{}/{}",
        or_dash(recovery.committed_tokens, thousands),
        or_dash(recovery.target_tokens, thousands)
    )
}

fn lanes(lanes: &Lanes) -> String {
    let names: Vec<&str> = lanes.totals.iter().map(|total| total.lane.as_str()).collect();
    let mut columns = vec![("turn", Align::Right), ("prompt", Align::Right)];
    columns.extend(names.iter().map(|name| (*name, Align::Right)));
    let mut table = Table::new(&columns);
    for turn in &lanes.turns {
        let mut row = vec![turn.turn.to_string(), or_dash(turn.prompt_tokens, thousands)];
        row.extend(names.iter().map(|name| {
            let lane = turn.lanes.iter().find(|lane| lane.lane == *name);
            let route = lane.and_then(|lane| lane.route).map(|route| format!(" {}", &route[..1]));
            lane.map_or_else(
                || UNMEASURED.to_owned(),
                |lane| median(lane.ttft_s) + &route.unwrap_or_default(),
            )
        }));
        table.row(row);
    }
    let sum = std::iter::once(String::new()).chain(std::iter::once("Σ".to_owned()));
    table.row(sum.chain(lanes.totals.iter().map(|total| median(total.ttft_sum_s))));
    let mut text = format!(
        "Four lanes: time to the first token by turn (d dense, s sparse, c from the cache), medians of {}\n\
         this machine computes the first prompt densely at {:.3} ms a token, the study at {:.2}: its gaps of 15 s are {} here (times {:.4})\n\n{table}\n",
        lanes.repeats,
        lanes.dense_s_per_token.median * 1e3,
        lanes.study_s_per_token * 1e3,
        seconds(lanes.idle_s),
        lanes.factor,
    );
    text += &totals(&lanes.totals).to_string();
    text.push('\n');
    for verdict in &lanes.verdicts {
        text += &format!("verdict: {verdict}\n");
    }
    if let Some(line) = lanes.zero_idle_line() {
        text += &format!("{line}\n");
    }
    text
}

/// Recovery beside the sums, never in them.
fn totals(totals: &[Total]) -> Table {
    let mut table = Table::new(&[
        ("lane", Align::Left),
        ("Σ ttft", Align::Right),
        ("min..max", Align::Right),
        ("debt", Align::Right),
        ("recovered", Align::Right),
        ("publications", Align::Right),
        ("service", Align::Right),
        ("idle used", Align::Right),
        ("waited", Align::Right),
    ]);
    for Total { lane, ttft_sum_s, recovery, debt_tokens } in totals {
        let of = |text: fn(&Recovered) -> String| recovery.as_ref().map(text).unwrap_or_default();
        table.row([
            lane.clone(),
            median(*ttft_sum_s),
            or_dash(*ttft_sum_s, |sum| format!("{}..{}", seconds(sum.min), seconds(sum.max))),
            or_dash(*debt_tokens, thousands),
            of(published),
            of(|recovery| thousands(recovery.publications_sum)),
            of(|recovery| median(recovery.service_sum_s)),
            of(|recovery| or_dash(recovery.idle_used, percent)),
            of(|recovery| median(recovery.delayed_sum_s)),
        ]);
    }
    table
}

fn percent(fraction: f64) -> String {
    format!("{:.0} %", fraction * 100.0)
}

fn grid(grid: &Grid) -> String {
    let mut table = Table::new(&[
        ("idle", Align::Right),
        ("slice", Align::Right),
        ("grain", Align::Right),
        ("budget", Align::Right),
        ("Σ ttft", Align::Right),
        ("vs sparse", Align::Right),
        ("recovered", Align::Right),
        ("publications", Align::Right),
        ("service", Align::Right),
        ("of all", Align::Right),
        ("of idle", Align::Right),
        ("waited", Align::Right),
        ("worst", Align::Right),
        ("net", Align::Right),
    ]);
    for cell in &grid.cells {
        let against = cell.lead_s().zip(cell.sparse_ttft_sum_s).map(|(lead, sparse)| -lead / sparse);
        let signed = |value: f64| format!("{}{}", if value < 0.0 { "-" } else { "+" }, seconds(value.abs()));
        table.row([
            seconds(cell.idle_s),
            thousands(cell.slice_tokens),
            thousands(cell.adoption_blocks),
            format!("{} %", cell.budget_pct),
            or_dash(cell.ttft_sum_s, seconds),
            or_dash(against, signed_percent),
            format!(
                "{}/{}",
                or_dash(cell.committed_tokens, thousands),
                or_dash(cell.target_tokens, thousands)
            ),
            thousands(cell.publications),
            seconds(cell.service_s),
            or_dash(cell.service_share, percent),
            or_dash(cell.idle_used, percent),
            thousands(cell.collisions),
            or_dash(cell.worst_delay_s, seconds),
            or_dash(cell.net_return_s, signed),
        ]);
    }
    let longer = |block: &u64| grid.cells.iter().filter(|cell| cell.slice_tokens > *block).count() > 0;
    let blocks = grid.block_tokens.filter(longer);
    let blocks = blocks.map(|block| {
        format!("; a slice ends with its block of {} tokens, so longer ones are alike", thousands(block))
    });
    let blocks = blocks.unwrap_or_default();
    format!(
        "Grid: block by block, one run a cell, turn by turn beside the sparse lane without recovery{blocks}\n\n{table}\n\
         `of all` is recovery's service as a share of all time, which the budget caps, `of idle` as a share of the gaps; `waited` counts requests that found a \
         slice in their way; `net` is what requests took less than in the sparse lane, less the service\n"
    )
}

fn delay(delays: &Delays) -> String {
    let mut table = Table::new(&[
        ("slices", Align::Left),
        ("arrivals", Align::Right),
        ("waited", Align::Right),
        ("delay p50", Align::Right),
        ("p90", Align::Right),
        ("max", Align::Right),
        ("ttft p50", Align::Right),
        ("p90", Align::Right),
        ("max", Align::Right),
        ("slice p50", Align::Right),
        ("max", Align::Right),
    ]);
    let mut row = |name: &str, of: &Arrivals| {
        let slice = |which: fn(Quantiles) -> f64| or_dash(of.slice_s, |slice| seconds(which(slice)));
        table.row([
            name.to_owned(),
            thousands(of.arrivals),
            thousands(of.collisions),
            seconds(of.delay_s.p50),
            seconds(of.delay_s.p90),
            seconds(of.delay_s.max),
            seconds(of.ttft_s.p50),
            seconds(of.ttft_s.p90),
            seconds(of.ttft_s.max),
            slice(|slice| slice.p50),
            slice(|slice| slice.max),
        ]);
    };
    row("give way between layers", &delays.interruptible);
    row("run to their end", &delays.uninterruptible);
    format!(
        "Delay: requests of a few words sent into a running job of {} tokens, slices of {}, wall clock, one of either kind in turn\n\n{table}",
        thousands(delays.prompt_tokens),
        thousands(delays.slice_tokens)
    )
}
