//! Four lanes of a session: dense, sparse, and sparse with recovery of either kind.

use std::sync::Arc;

use serde::Serialize;

use super::super::running::Running;
use super::{Claim, Ground, gap, position, race, signed_percent};
use crate::cli::Failure;
use crate::cli::progress::Progress;
use crate::compare::{Cell, Comparison, DENSE, LaneSpec, PROGRESSIVE, Recovered, SPARSE, Spread};
use crate::config::Override;
use crate::engine::Command;
use crate::event::{LaneId, RunFacts};
use crate::recovery::job::Mode;
use crate::report::{seconds, thousands};
use crate::session::Session;

/// The study's dense prefill, seconds a token at a depth of 24,600 tokens.
const STUDY_S_PER_TOKEN: f64 = 4.78e-3;
/// The study's gap, seconds.
const STUDY_IDLE_S: f64 = 15.0;
/// How much more than the second request's the last one's time to the first token may be.
const FLAT: f64 = 0.15;
/// How much less than the sparse lane's the summed time to the first token must be.
const AHEAD: f64 = 0.20;
/// Measurements of the dense rate, of which the median counts.
const RATE_RUNS: usize = 3;

/// The lanes' figures.
#[derive(Debug, Serialize)]
pub(super) struct Lanes {
    /// This machine's dense prefill of the session's first prompt, seconds a token.
    pub(super) dense_s_per_token: Spread,
    /// The study's.
    pub(super) study_s_per_token: f64,
    /// The first over the second.
    pub(super) factor: f64,
    /// The gap before each request: the study's, times the factor, seconds.
    pub(super) idle_s: f64,
    /// Runs.
    pub(super) repeats: u32,
    pub(super) turns: Vec<TurnRow>,
    pub(super) totals: Vec<Total>,
    /// The same without any gap.
    pub(super) at_zero_idle: Vec<Total>,
    /// What the comparison says of each lane beside the dense one.
    pub(super) verdicts: Vec<String>,
}

/// A request in every lane.
#[derive(Debug, Serialize)]
pub(super) struct TurnRow {
    pub(super) turn: u32,
    pub(super) name: String,
    pub(super) prompt_tokens: Option<u64>,
    pub(super) lanes: Vec<LaneTurn>,
}

/// A request in one lane.
#[derive(Debug, Serialize)]
pub(super) struct LaneTurn {
    pub(super) lane: String,
    pub(super) route: Option<&'static str>,
    pub(super) checkpoint_tokens: Option<u64>,
    pub(super) ttft_s: Option<Spread>,
    pub(super) recovery: Option<Recovered>,
}

/// A lane at its end.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Total {
    pub(super) lane: String,
    /// Time to the first token, summed over the requests, seconds.
    pub(super) ttft_sum_s: Option<Spread>,
    /// What recovery came to, which is in no sum of times; null in a lane without.
    pub(super) recovery: Option<Recovered>,
    /// Prompt tokens of the last request that are not restorable when it has ended.
    pub(super) debt_tokens: Option<u64>,
}

/// Runs the lanes with the study's gap, scaled, and those that are sparse without any.
pub(super) fn measure(
    ground: &Ground<'_>,
    progress: &mut Progress,
    facts: &mut Option<RunFacts>,
) -> Result<Lanes, Failure> {
    let specs = [
        LaneSpec::dense(),
        LaneSpec::sparse(),
        LaneSpec::recovering(Mode::Terminal),
        LaneSpec::recovering(Mode::Progressive),
    ];
    let rate = dense_rate(ground, progress)?;
    let factor = rate.median / STUDY_S_PER_TOKEN;
    let idle_s = STUDY_IDLE_S * factor;
    let lanes = |idle: f64, specs: &[LaneSpec]| -> Result<Vec<_>, Failure> {
        specs.iter().map(|lane| ground.config(lane, gap(idle))).collect()
    };
    let repeats = ground.options.repeat;
    let run = race(&lanes(idle_s, &specs)?, &ground.session, repeats, |run| {
        progress.show(|| format!("four lanes, {}", position(run)));
    })?;
    let zero = race(&lanes(0.0, &specs[1..])?, &ground.session, repeats, |run| {
        progress.show(|| format!("no gaps, {}", position(run)));
    })?;
    *facts = run.ledger_of(0, 0).and_then(|ledger| ledger.run()).cloned().or(facts.take());
    Ok(Lanes {
        dense_s_per_token: rate,
        study_s_per_token: STUDY_S_PER_TOKEN,
        factor,
        idle_s,
        repeats,
        turns: turn_rows(&run),
        totals: totals(&run),
        at_zero_idle: totals(&zero),
        verdicts: run.verdicts().iter().map(|verdict| verdict.sentence()).collect(),
    })
}

/// Seconds a token of the session's first prompt, computed densely from nothing.
fn dense_rate(ground: &Ground<'_>, progress: &mut Progress) -> Result<Spread, Failure> {
    let first = Session { requests: ground.session.requests[..1].to_vec(), ..(*ground.session).clone() };
    let first = Arc::new(first);
    let no_cache = vec![Override::new("bench recovery", "cache.enabled", false)];
    let (_, config) = ground.config(&LaneSpec::dense(), no_cache)?;
    let mut engine = Running::start(&config, &first)?;
    let mut rates = Vec::new();
    // The first forward of a process pays for memory that the system has yet to hand over.
    for run in 0..=RATE_RUNS {
        progress.show(|| format!("this machine's dense prefill, {run} of {RATE_RUNS}"));
        let lane = if run == 0 { LaneId(0) } else { engine.fork_same(&first)? };
        engine.send(Command::EvictAll);
        let turn = engine.turn(lane)?;
        if run > 0 {
            rates.push(Some(turn.prefill.seconds() / turn.prompt_tokens.max(1) as f64));
        }
    }
    engine.end()?;
    Spread::of(rates).ok_or_else(|| Failure::run("the dense prefill was not measured"))
}

fn turn_rows(run: &Comparison) -> Vec<TurnRow> {
    let row = |turn: crate::compare::Turn| TurnRow {
        turn: turn.place.turn,
        name: turn.name,
        prompt_tokens: turn.cells.iter().flatten().find_map(|cell| cell.prompt_tokens),
        lanes: (turn.cells.into_iter().enumerate())
            .filter_map(|(lane, cell)| {
                let Cell { route, checkpoint_tokens, ttft_s, recovery, .. } = cell?;
                Some(LaneTurn { lane: run.name(lane).to_owned(), route, checkpoint_tokens, ttft_s, recovery })
            })
            .collect(),
    };
    run.turns().into_iter().map(row).collect()
}

/// Every lane at its end.
pub(super) fn totals(run: &Comparison) -> Vec<Total> {
    let last = run.turns().pop();
    let total = |lane: usize| {
        let cell = last.as_ref().and_then(|turn| turn.cells.get(lane)?.as_ref());
        Total {
            lane: run.name(lane).to_owned(),
            ttft_sum_s: cell.and_then(|cell| cell.ttft_sum_s),
            recovery: cell.and_then(|cell| cell.recovery.clone()),
            debt_tokens: cell.and_then(|cell| cell.canonical_debt_tokens),
        }
    };
    (0..run.names().len()).map(total).collect()
}

impl Lanes {
    /// What should hold of them.
    pub(super) fn claims(&self) -> Vec<Claim> {
        [self.stays_flat(), self.is_ahead()].into_iter().flatten().collect()
    }

    fn ttft(&self, turn: &TurnRow) -> Option<f64> {
        turn.lanes.iter().find(|lane| lane.lane == PROGRESSIVE)?.ttft_s.map(|spread| spread.median)
    }

    fn stays_flat(&self) -> Option<Claim> {
        let (second, last) = (self.turns.get(1)?, self.turns.last()?);
        let (from, to) = (self.ttft(second)?, self.ttft(last)?);
        Some(Claim {
            claim: format!(
                "{PROGRESSIVE}: the last first token takes at most {:.0} % longer than the second",
                FLAT * 100.0
            ),
            holds: to <= from * (1.0 + FLAT),
            because: format!(
                "turn {} {}, turn {} {}: {}",
                second.turn,
                seconds(from),
                last.turn,
                seconds(to),
                signed_percent(to / from - 1.0)
            ),
        })
    }

    fn is_ahead(&self) -> Option<Claim> {
        let sum = |name: &str| self.totals.iter().find(|total| total.lane == name)?.ttft_sum_s;
        let (own, sparse) = (sum(PROGRESSIVE)?.median, sum(SPARSE)?.median);
        let dense = sum(DENSE).map(|dense| format!(", dense {}", seconds(dense.median))).unwrap_or_default();
        Some(Claim {
            claim: format!(
                "{PROGRESSIVE}: at least {:.0} % less first-token time in all than {SPARSE}",
                AHEAD * 100.0
            ),
            holds: own <= sparse * (1.0 - AHEAD),
            because: format!(
                "{} against {}: {}{dense}",
                seconds(own),
                seconds(sparse),
                signed_percent(own / sparse - 1.0)
            ),
        })
    }

    /// What recovery is worth where nobody is ever idle: as it is, since nothing is promised of it.
    pub(super) fn zero_idle_line(&self) -> Option<String> {
        let of = |name: &str| self.at_zero_idle.iter().find(|total| total.lane == name);
        let (own, sparse) = (of(PROGRESSIVE)?, of(SPARSE)?.ttft_sum_s?);
        let time = own.ttft_sum_s?;
        let outcome = match (time.max < sparse.min, time.min > sparse.max) {
            (true, _) => "wins",
            (_, true) => "loses",
            _ => "ties",
        };
        let recovery = own.recovery.as_ref();
        let published = recovery.map_or(0, |recovery| recovery.publications_sum);
        Some(format!(
            "without gaps {PROGRESSIVE} {outcome}: {} against {SPARSE}'s {} ({}), {} publications",
            seconds(time.median),
            seconds(sparse.median),
            signed_percent(time.median / sparse.median - 1.0),
            thousands(published)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(median: f64) -> Option<Spread> {
        Spread::of([Some(median)])
    }

    fn lanes(ttfts: &[f64], totals: [f64; 2]) -> Lanes {
        let turn = |(index, ttft): (usize, &f64)| TurnRow {
            turn: index as u32 + 1,
            name: String::new(),
            prompt_tokens: None,
            lanes: vec![LaneTurn {
                lane: PROGRESSIVE.to_owned(),
                route: None,
                checkpoint_tokens: None,
                ttft_s: spread(*ttft),
                recovery: None,
            }],
        };
        let total = |lane: &str, sum: f64| Total {
            lane: lane.to_owned(),
            ttft_sum_s: spread(sum),
            recovery: None,
            debt_tokens: None,
        };
        let totals = vec![total(SPARSE, totals[0]), total(PROGRESSIVE, totals[1])];
        Lanes {
            dense_s_per_token: spread(0.001).unwrap(),
            study_s_per_token: STUDY_S_PER_TOKEN,
            factor: 0.2,
            idle_s: 3.0,
            repeats: 1,
            turns: ttfts.iter().enumerate().map(turn).collect(),
            at_zero_idle: totals.clone(),
            totals,
            verdicts: Vec::new(),
        }
    }

    #[test]
    fn claims_hold_up_to_their_edge_and_not_beyond() {
        let holds = |lanes: &Lanes| lanes.claims().iter().map(|claim| claim.holds).collect::<Vec<_>>();
        assert_eq!(holds(&lanes(&[9.0, 2.0, 5.0, 2.3], [10.0, 8.0])), [true, true]);
        assert_eq!(holds(&lanes(&[9.0, 2.0, 1.0, 2.31], [10.0, 8.01])), [false, false]);
        let because = &lanes(&[9.0, 2.0, 1.0], [10.0, 7.0]).claims()[1].because;
        assert_eq!(because, "7.00 s against 10.0 s: -30 %");
        assert!(
            holds(&lanes(&[], [10.0, 8.0])).len() == 1,
            "nothing is claimed of requests that were not measured"
        );
    }

    #[test]
    fn without_gaps_it_is_said_as_it_is() {
        let line = |totals| lanes(&[1.0], totals).zero_idle_line().unwrap();
        assert!(
            line([10.0, 10.4])
                .starts_with("without gaps progressive loses: 10.4 s against sparse's 10.0 s (+4 %)")
        );
        assert!(line([10.0, 10.0]).contains(" ties: "));
        assert!(line([10.0, 9.0]).contains(" wins: "));
    }
}
