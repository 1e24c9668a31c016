//! The matrix as text, and what is to be said of it.

use serde::Serialize;

use super::cell::Cell;
use super::prompts::Kind;
use super::{Report, Skipped};
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
pub(super) fn claims(cells: &[Cell], identity: Identity) -> Vec<Claim> {
    let of = Cells { cells, identity };
    let claims = [
        of.same_replies(),
        of.predicted(),
        of.adaptive_loss(),
        of.adaptive_start(),
        of.adaptive_lag(),
        of.copy(),
    ];
    claims.into_iter().flatten().collect()
}

struct Cells<'a> {
    cells: &'a [Cell],
    identity: Identity,
}

impl<'a> Cells<'a> {
    fn same_replies(&self) -> Option<Claim> {
        let other: Vec<String> = self.cells.iter().filter(|cell| !cell.identical).map(full_name).collect();
        let idle: Vec<String> = self.cells.iter().filter(|cell| !cell.drafted()).map(full_name).collect();
        let same = self.cells.iter().filter(|cell| cell.identical && cell.drafted()).count();
        let mut because = format!("{same} of {} cells", self.cells.len());
        for (what, names) in [("other replies", other), ("nothing drafted", idle)] {
            if !names.is_empty() {
                because += &format!("; {what}: {}", names.join(", "));
            }
        }
        (!self.cells.is_empty()).then(|| Claim {
            claim: "every reply is that of ordinary decoding".to_owned(),
            holds: same == self.cells.len(),
            because: because + self.allowance(),
        })
    }

    /// What is to be added where a device does not promise the same replies and gave others.
    fn allowance(&self) -> &'static str {
        match self.identity {
            Identity::Tolerance if self.cells.iter().any(|cell| !cell.identical) => {
                "; the device promises closeness, so replies may differ, and of those no speed-up is shown"
            }
            _ => "",
        }
    }

    /// Whether a cell gave another reply, and the device does not promise the same.
    fn forgiven(&self, cell: &Cell) -> bool {
        self.identity == Identity::Tolerance && !cell.identical
    }

    /// A claim over `cells`, each by its figure: it holds where every one has a figure that `holds`. The worst is the least by `rank`. A cell without a
    /// figure fails it, unless the device does not promise the same reply and gave another. `None` where there are no such cells.
    fn claim(
        &self,
        claim: String,
        cells: impl Iterator<Item = (&'a Cell, Option<f64>)>,
        rank: impl Fn(f64) -> f64,
        holds: impl Fn(f64) -> bool,
        words: impl Fn(f64) -> String,
    ) -> Option<Claim> {
        let cells: Vec<_> = cells.collect();
        (!cells.is_empty()).then_some(())?;
        let measured: Vec<(&Cell, f64)> =
            cells.iter().filter_map(|(cell, figure)| Some((*cell, (*figure)?))).collect();
        let missing = cells.iter().filter(|(cell, figure)| figure.is_none() && !self.forgiven(cell)).count();
        let good = measured.iter().filter(|(_, figure)| holds(*figure)).count();
        let worst = measured.iter().min_by(|(_, a), (_, b)| rank(*a).total_cmp(&rank(*b)));
        let worst = worst.map(|(cell, figure)| format!("; worst {}: {}", full_name(cell), words(*figure)));
        Some(Claim {
            claim,
            holds: missing == 0 && good > 0 && good == measured.len(),
            because: format!(
                "{} of {} cells measured, {good} hold{}{}",
                measured.len(),
                cells.len(),
                worst.unwrap_or_default(),
                self.allowance()
            ),
        })
    }

    fn predicted(&self) -> Option<Claim> {
        self.claim(
            format!("the prediction lies within {:.0} % of the measurement", HELD_WITHIN * 100.0),
            self.cells.iter().map(|cell| (cell, cell.deviation.filter(|_| cell.drafted()))),
            |off| -off.abs(),
            |off| off.abs() <= HELD_WITHIN,
            |off| format!("{:+.1} %", off * 100.0),
        )
    }

    fn adaptive(&self) -> impl Iterator<Item = &'a Cell> {
        self.cells.iter().filter(|cell| cell.depth.is_none())
    }

    fn adaptive_loss(&self) -> Option<Claim> {
        self.claim(
            format!(
                "adaptive depth, once it has averages, is never more than {:.0} % slower than no drafter",
                ADAPTIVE_LOSS * 100.0
            ),
            self.adaptive().map(|cell| (cell, cell.speed_up())),
            |speed_up| speed_up,
            |speed_up| speed_up >= 1.0 - ADAPTIVE_LOSS,
            |speed_up| format!("{speed_up:.2}x"),
        )
    }

    fn adaptive_start(&self) -> Option<Claim> {
        let first = self.cells.first()?.prompt;
        self.claim(
            format!("nor is it in a first run, by an engine that has none ({} text)", first.word()),
            self.adaptive()
                .filter(|cell| cell.prompt == first)
                .map(|cell| (cell, cell.first.map(|first| first.median))),
            |speed_up| speed_up,
            |speed_up| speed_up >= 1.0 - ADAPTIVE_LOSS,
            |speed_up| format!("{speed_up:.2}x"),
        )
    }

    fn adaptive_lag(&self) -> Option<Claim> {
        let fixed = |cell: &Cell| {
            let of = (cell.drafter, cell.prompt);
            self.cells
                .iter()
                .filter(move |other| other.depth.is_some() && (other.drafter, other.prompt) == of)
        };
        let of_best = |cell: &Cell| {
            let counting = fixed(cell).filter(|other| !self.forgiven(other));
            let best = counting.map(Cell::speed_up).collect::<Option<Vec<f64>>>()?;
            Some(cell.speed_up()? / best.into_iter().reduce(f64::max)?)
        };
        self.claim(
            format!("adaptive depth is within {:.0} % of the best fixed one", ADAPTIVE_LAG * 100.0),
            self.adaptive().filter(|cell| fixed(cell).next().is_some()).map(|cell| (cell, of_best(cell))),
            |share| share,
            |share| share >= 1.0 - ADAPTIVE_LAG,
            |share| format!("{:.0} % of it", share * 100.0),
        )
    }

    /// One cell is enough for it.
    fn copy(&self) -> Option<Claim> {
        let drafts = |cell: &&Cell| {
            cell.prompt == Kind::Copy && matches!(cell.drafter, DrafterKind::Mtp | DrafterKind::Ngram)
        };
        let asked = self.cells.iter().filter(drafts).count();
        let measured: Vec<(&Cell, f64)> =
            self.cells.iter().filter(drafts).filter_map(|cell| Some((cell, cell.speed_up()?))).collect();
        let best = measured.iter().max_by(|(_, a), (_, b)| a.total_cmp(b));
        (asked > 0).then(|| Claim {
            claim: format!("the head or the lookup decodes copied text {COPY_SPEED_UP}x as fast"),
            holds: best.is_some_and(|(_, best)| *best >= COPY_SPEED_UP),
            because: format!(
                "{} of {asked} cells measured{}{}",
                measured.len(),
                best.map(|(cell, best)| format!("; best {}: {best:.2}x", full_name(cell)))
                    .unwrap_or_default(),
                self.allowance()
            ),
        })
    }
}

pub(super) fn text(report: &Report) -> String {
    let Report { model, draft_model, device, kernel, precision, identity, repeats, .. } = report;
    let Report { adaptive_max, skipped, cells, claims, curves, .. } = report;
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
    for Skipped { drafter, reason } in skipped {
        text += &format!("\n{} is left out: {reason}", drafter.word());
    }
    let reasons = cells.iter().filter_map(|cell| Some((cell, cell.reason.as_ref()?)));
    for (cell, reason) in reasons {
        text += &format!("\n! {}: {reason}", full_name(cell));
    }
    let ended = cells.iter().filter_map(|cell| Some((cell, cell.ended.as_ref()?)));
    for (cell, why) in ended {
        text += &format!("\n{}: not all was drafted: {why}", full_name(cell));
    }
    text += &format!(
        "\ncost: a cycle in dense steps; predicted and decode: of the tokens after the first; adaptive: up to {adaptive_max} a cycle, by averages of earlier runs\n\
         end to end: composed of the time to the first token of a prompt read from nothing, priming included, and the mean time to decode a reply, each \
         between two runs without a drafter\n\n"
    );
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::economics::Counters;

    fn cell(drafter: DrafterKind, depth: Option<u32>, speed_up: Option<f64>) -> Cell {
        let of = |value: f64| Spread { median: value, min: value, max: value, repeats: 1 };
        Cell {
            prompt: Kind::Copy,
            drafter,
            depth,
            output_tokens: 100,
            counters: Counters { drafted: 10, ..Counters::default() },
            drafting_runs: 1,
            tokens_per_cycle: None,
            cost_ratio: None,
            share: None,
            predicted: speed_up.map(of),
            measured: speed_up.map(of),
            deviation: speed_up.map(|_| 0.0),
            reason: None,
            whole: None,
            first: speed_up.filter(|_| depth.is_none()).map(of),
            priming_s: None,
            identical: true,
            ended: None,
        }
    }

    fn verdicts(cells: &[Cell], identity: Identity) -> Vec<bool> {
        claims(cells, identity).iter().map(|claim| claim.holds).collect()
    }

    fn good() -> Vec<Cell> {
        vec![cell(DrafterKind::Mtp, Some(2), Some(1.6)), cell(DrafterKind::Mtp, None, Some(1.55))]
    }

    #[test]
    fn claims_hold_where_every_cell_says_so() {
        assert_eq!(verdicts(&good(), Identity::Bitwise), [true; 6]);
        let mut slow = good();
        slow[1] = cell(DrafterKind::Mtp, None, Some(0.9));
        assert_eq!(verdicts(&slow, Identity::Bitwise), [true, true, false, false, false, true]);
        let because = &claims(&slow, Identity::Bitwise)[2].because;
        assert_eq!(because, "1 of 1 cells measured, 0 hold; worst copy mtp adaptive: 0.90x");
    }

    #[test]
    fn a_cell_that_was_not_measured_or_drafted_nothing_passes_nothing() {
        for spoil in [(|cell: &mut Cell| cell.drafting_runs = 0) as fn(&mut Cell), |cell| {
            (cell.measured, cell.deviation, cell.first) = (None, None, None)
        }] {
            let mut cells = good();
            spoil(&mut cells[1]);
            let told = claims(&cells, Identity::Bitwise);
            assert!(told[1..3].iter().all(|claim| !claim.holds) && !told[4].holds, "{told:?}");
            assert!(told[1].because.starts_with("1 of 2 cells measured"), "{told:?}");
        }
    }

    #[test]
    fn another_reply_is_forgiven_where_the_device_promises_closeness_only() {
        let mut cells = good();
        cells.push(Cell { identical: false, ..cell(DrafterKind::Ngram, Some(2), None) });
        let close = claims(&cells, Identity::Tolerance);
        assert!(close[1].holds && close[1].because.contains("2 of 3 cells measured"), "{close:?}");
        assert!(close[1].because.contains("promises closeness"), "{close:?}");
        assert!(!claims(&cells, Identity::Bitwise)[1].holds);
    }
}
