//! The matrix as text, and what is to be said of it.

use serde::Serialize;

use super::Report;
use super::cell::Cell;
use super::prompts::Kind;
use crate::compare::{HELD_WITHIN, Spread};
use crate::config::DrafterKind;
use crate::event::Identity;
use crate::report::{Align, Table, or_dash, seconds, thousands};

/// How much slower than ordinary decoding the adaptive depth may be.
const ADAPTIVE_LOSS: f64 = 0.05;
/// How much slower than the best fixed depth it may be.
const ADAPTIVE_LAG: f64 = 0.10;
/// What the head or the lookup must win where text is copied.
const COPY_SPEED_UP: f64 = 1.5;

/// Something that should hold of the matrix, and whether it does.
#[derive(Debug, Serialize)]
pub(super) struct Claim {
    claim: String,
    holds: bool,
    /// The cells or the figure it hangs on.
    because: String,
}

/// `mtp 2`, `ngram adaptive`.
pub(super) fn name(drafter: DrafterKind, depth: Option<u32>) -> String {
    match depth {
        Some(depth) => format!("{} {depth}", drafter.word()),
        None => format!("{} adaptive", drafter.word()),
    }
}

fn full_name(cell: &Cell) -> String {
    format!("{} {}", cell.prompt.word(), name(cell.drafter, cell.depth))
}

/// What the cells say of the claims that they can say something of.
pub(super) fn claims(cells: &[Cell]) -> Vec<Claim> {
    [identity(cells), prediction(cells), adaptive_loss(cells), adaptive_lag(cells), copy(cells)]
        .into_iter()
        .flatten()
        .collect()
}

fn identity(cells: &[Cell]) -> Option<Claim> {
    let other: Vec<String> = cells.iter().filter(|cell| !cell.identical).map(full_name).collect();
    (!cells.is_empty()).then(|| Claim {
        claim: "every reply is that of ordinary decoding".to_owned(),
        holds: other.is_empty(),
        because: if other.is_empty() { format!("{} cells", cells.len()) } else { other.join(", ") },
    })
}

fn prediction(cells: &[Cell]) -> Option<Claim> {
    let told: Vec<&Cell> = cells.iter().filter(|cell| cell.deviation.is_some()).collect();
    let held = told.iter().filter(|cell| cell.held()).count();
    let worst = told
        .iter()
        .filter_map(|cell| Some((full_name(cell), cell.deviation?)))
        .max_by(|(_, a), (_, b)| a.abs().total_cmp(&b.abs()))?;
    Some(Claim {
        claim: format!("the prediction lies within {:.0} % of the measurement", HELD_WITHIN * 100.0),
        holds: held == told.len(),
        because: format!("{held} of {} cells; worst {}: {:+.1} %", told.len(), worst.0, worst.1 * 100.0),
    })
}

/// The worst of some cells by a figure, with its name.
fn worst<'a>(figures: impl Iterator<Item = (&'a Cell, f64)>) -> Option<(&'a Cell, f64)> {
    figures.min_by(|(_, a), (_, b)| a.total_cmp(b))
}

fn adaptive(cells: &[Cell]) -> impl Iterator<Item = &Cell> {
    cells.iter().filter(|cell| cell.depth.is_none())
}

fn adaptive_loss(cells: &[Cell]) -> Option<Claim> {
    let (cell, speed_up) = worst(adaptive(cells).filter_map(|cell| Some((cell, cell.speed_up()?))))?;
    Some(Claim {
        claim: format!(
            "adaptive depth is never more than {:.0} % slower than no drafter",
            ADAPTIVE_LOSS * 100.0
        ),
        holds: speed_up >= 1.0 - ADAPTIVE_LOSS,
        because: format!("worst {}: {speed_up:.2}x", full_name(cell)),
    })
}

fn adaptive_lag(cells: &[Cell]) -> Option<Claim> {
    let of_best = |cell: &Cell| {
        let same = |other: &&Cell| {
            other.depth.is_some() && (other.drafter, other.prompt) == (cell.drafter, cell.prompt)
        };
        let best = cells.iter().filter(same).filter_map(Cell::speed_up).reduce(f64::max)?;
        Some(cell.speed_up()? / best)
    };
    let (cell, share) = worst(adaptive(cells).filter_map(|cell| Some((cell, of_best(cell)?))))?;
    Some(Claim {
        claim: format!("adaptive depth is within {:.0} % of the best fixed one", ADAPTIVE_LAG * 100.0),
        holds: share >= 1.0 - ADAPTIVE_LAG,
        because: format!("worst {}: {:.0} % of it", full_name(cell), share * 100.0),
    })
}

fn copy(cells: &[Cell]) -> Option<Claim> {
    let drafts = |cell: &&Cell| {
        cell.prompt == Kind::Copy && matches!(cell.drafter, DrafterKind::Mtp | DrafterKind::Ngram)
    };
    let figures = cells.iter().filter(drafts).filter_map(|cell| Some((cell, cell.speed_up()?)));
    let (cell, best) = figures.max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    Some(Claim {
        claim: format!("the head or the lookup decodes copied text {COPY_SPEED_UP} times as fast"),
        holds: best >= COPY_SPEED_UP,
        because: format!("best {}: {best:.2}x", full_name(cell)),
    })
}

pub(super) fn text(report: &Report) -> String {
    let Report { model, draft_model, device, kernel, precision, identity, repeats, cells, claims, curves } =
        report;
    let promise = match identity {
        Identity::Bitwise => "same bits",
        Identity::Tolerance => "tolerance",
        Identity::Simulated => "simulated",
        Identity::Imported => "imported",
    };
    let draft = draft_model.as_ref().map(|draft| format!(", draft {draft}")).unwrap_or_default();
    let medians =
        if *repeats == 1 { "one run of each cell".to_owned() } else { format!("medians of {repeats}") };
    let mut text = format!(
        "{model} {precision}{draft} · {device} {kernel} · {promise} · {medians}, each run between two without a drafter\n\n{}",
        table(cells)
    );
    let reasons = cells.iter().filter_map(|cell| Some((cell, cell.reason.as_ref()?)));
    for (cell, reason) in reasons {
        text += &format!("\n! {}: {reason}", full_name(cell));
    }
    let ended = cells.iter().filter_map(|cell| Some((cell, cell.ended.as_ref()?)));
    for (cell, why) in ended {
        text += &format!("\n{}: not all was drafted: {why}", full_name(cell));
    }
    text.push('\n');
    for Claim { claim, holds, because } in claims {
        let verdict = if *holds { "pass" } else { "MISS" };
        text += &format!("{verdict}  {claim} ({because})\n");
    }
    if !curves.is_empty() {
        text += "\na forward of so many tokens, in dense steps\n";
        text += &curve_table(report).to_string();
    }
    text
}

fn table(cells: &[Cell]) -> Table {
    let right = ["tok/cycle", "cost", "share", "predicted", "decode", "off", "end to end", "priming"];
    let mut titles = vec![("text", Align::Left), ("drafter", Align::Left), ("depth", Align::Left)];
    titles.extend(right.map(|title| (title, Align::Right)));
    titles.push(("reply", Align::Left));
    let mut table = Table::new(&titles);
    let mut before = None;
    for cell in cells {
        let way = cell.way();
        let figure = |spread: Option<Spread>| or_dash(spread, |spread| format!("{:.2}", spread.median));
        let factor = |spread: Option<Spread>| or_dash(spread, |spread| format!("{:.2}x", spread.median));
        let mark = if cell.deviation.is_some() && !cell.held() { "!" } else { "" };
        let new = |what: &dyn Fn(&Cell) -> String| match before {
            Some(before) if what(before) == what(cell) => String::new(),
            _ => what(cell),
        };
        let heads = new(&|cell| cell.prompt.word().to_owned());
        let drafter = if heads.is_empty() {
            new(&|cell| cell.drafter.word().to_owned())
        } else {
            cell.drafter.word().to_owned()
        };
        table.row([
            heads,
            drafter,
            or_dash(way.depth.map(u64::from), thousands).replace('–', "adaptive"),
            figure(cell.tokens_per_cycle),
            figure(cell.cost_ratio),
            figure(cell.share),
            factor(cell.predicted),
            factor(cell.measured),
            or_dash(cell.deviation, |off| format!("{:+.0} %{mark}", off * 100.0)),
            factor(cell.whole),
            or_dash(cell.priming_s, |time| seconds(time.median)),
            if cell.identical { "same" } else { "DIFFERS" }.to_owned(),
        ]);
        before = Some(cell);
    }
    table
}

fn curve_table(report: &Report) -> Table {
    let widths: Vec<u32> = report
        .curves
        .first()
        .map(|curve| curve.points.iter().map(|(width, _)| *width).collect())
        .unwrap_or_default();
    let names: Vec<String> = widths.iter().map(u32::to_string).collect();
    let mut titles = vec![("context", Align::Right), ("dense step", Align::Right)];
    titles.extend(names.iter().map(|name| (name.as_str(), Align::Right)));
    let mut table = Table::new(&titles);
    for curve in &report.curves {
        let point =
            |width: &u32| curve.points.iter().find(|(other, _)| other == width).map(|(_, cost)| *cost);
        let costs = widths.iter().map(|width| or_dash(point(width), |cost| format!("{cost:.2}")));
        let head = [thousands(curve.context_tokens), seconds(curve.dense_step_s)];
        table.row(head.into_iter().chain(costs));
    }
    table
}
