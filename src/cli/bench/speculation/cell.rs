//! What the runs of a cell say.

use serde::Serialize;

use super::matrix::{Told, Way};
use super::prompts::Kind;
use crate::compare::{HELD_WITHIN, Spread};
use crate::config::DrafterKind;
use crate::decode::economics::{Counters, CycleTime, Economics, ratio};
use crate::ledger::RequestFacts;

/// A drafter at a depth, on one kind of text. Figures are medians over repeats of ratios within each repeat: of a run and the mean of the two
/// runs without a drafter around it.
#[derive(Debug, Serialize)]
pub(super) struct Cell {
    pub(super) prompt: Kind,
    pub(super) drafter: DrafterKind,
    /// The fixed depth; null where the controller chose.
    pub(super) depth: Option<u32>,
    pub(super) output_tokens: u64,
    pub(super) counters: Counters,
    pub(super) tokens_per_cycle: Option<Spread>,
    pub(super) cost_ratio: Option<Spread>,
    pub(super) share: Option<Spread>,
    /// Speed-up of decoding by the identities.
    pub(super) predicted: Option<Spread>,
    /// Speed-up of decoding.
    pub(super) measured: Option<Spread>,
    /// By how much the prediction exceeds the measurement, as a fraction of it.
    pub(super) deviation: Option<f64>,
    /// Why that is more than it may be.
    pub(super) reason: Option<String>,
    /// Speed-up of one request from nothing: prefill and priming, then a reply.
    pub(super) whole: Option<Spread>,
    /// Time the drafter took to read a prompt of which nothing was restored.
    pub(super) priming_s: Option<Spread>,
    /// Whether every reply is that of ordinary decoding.
    pub(super) identical: bool,
    /// Why a reply was decoded without drafting.
    pub(super) ended: Option<String>,
}

impl Cell {
    pub(super) fn way(&self) -> Way {
        Way { drafter: self.drafter, depth: self.depth }
    }

    pub(super) fn held(&self) -> bool {
        self.deviation.is_some_and(|deviation| deviation.abs() <= HELD_WITHIN)
    }

    pub(super) fn speed_up(&self) -> Option<f64> {
        Some(self.measured?.median)
    }
}

/// One run: its requests' figures together.
#[derive(Debug, Clone, Default)]
pub(super) struct Decoding {
    pub(super) counters: Counters,
    pub(super) cycles_ms: Option<f64>,
    pub(super) decode_ms: f64,
    /// Tokens after the first ones of the replies.
    pub(super) steps: u64,
    pub(super) replies: Vec<Option<String>>,
    pub(super) ended: Option<String>,
}

impl Decoding {
    pub(super) fn of(requests: &[RequestFacts]) -> Decoding {
        let mut all = Decoding { cycles_ms: Some(0.0), ..Decoding::default() };
        for request in requests {
            let speculation = request.speculation.as_deref();
            let cycles = speculation.map(|s| s.cycles.as_slice()).unwrap_or_default();
            let output = request.output_tokens.unwrap_or(0);
            all.counters.add(&Counters::of(cycles, output));
            let more = CycleTime::of(cycles).map(|time| time.total().seconds() * 1e3);
            all.cycles_ms = all.cycles_ms.zip(more).map(|(sum, more)| sum + more);
            all.decode_ms += request.decode.map_or(0.0, |took| took.seconds() * 1e3);
            all.steps += output.saturating_sub(1);
            all.replies.push(request.output_sha256.clone());
            all.ended = all.ended.or_else(|| speculation?.ended.clone());
        }
        all
    }

    fn ms_per_token(&self) -> Option<f64> {
        ratio(self.decode_ms, self.steps as f64)
    }

    /// Steps that were no part of a cycle, and the time one took.
    fn ordinary_steps(&self) -> (u64, Option<f64>) {
        let steps = self.steps.saturating_sub(self.counters.cycle_tokens());
        let took = self.cycles_ms.and_then(|cycles| ratio(self.decode_ms - cycles, steps as f64));
        (steps, took)
    }
}

/// A run and the ones without a drafter before and after it.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub(super) before: Decoding,
    pub(super) own: Decoding,
    pub(super) after: Decoding,
}

impl Sample {
    fn dense_ms(&self) -> Option<f64> {
        Some(self.before.ms_per_token()?.midpoint(self.after.ms_per_token()?))
    }

    fn economics(&self) -> Economics {
        Economics::of(&self.own.counters, self.own.cycles_ms, self.dense_ms())
    }

    fn measured(&self) -> Option<f64> {
        ratio(self.dense_ms()?, self.own.ms_per_token()?)
    }

    /// By how much the two runs around it differ.
    fn drift(&self) -> Option<f64> {
        let (before, after) = (self.before.ms_per_token()?, self.after.ms_per_token()?);
        ratio((after - before).abs(), before.midpoint(after))
    }

    /// What the identities leave out, as a share of the decode time: time that is neither a cycle's nor as many dense steps as were ordinary.
    fn unaccounted(&self) -> Option<f64> {
        let (ordinary, _) = self.own.ordinary_steps();
        let accounted = self.own.cycles_ms? + ordinary as f64 * self.dense_ms()?;
        ratio(self.own.decode_ms - accounted, self.own.decode_ms).or(Some(0.0))
    }

    /// What an ordinary step within the run took, in dense steps.
    fn ordinary_cost(&self) -> Option<f64> {
        ratio(self.own.ordinary_steps().1?, self.dense_ms()?)
    }
}

/// A cold request: its time to the first token and what of it was the drafter's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cold {
    pub(super) drafter: DrafterKind,
    pub(super) ttft_s: f64,
    pub(super) priming_s: f64,
}

impl Cold {
    fn of(told: &Told) -> Option<Cold> {
        let request = told.requests.first()?;
        let start = request.speculation.as_deref().and_then(|s| s.start.as_ref());
        Some(Cold {
            drafter: told.run.way.drafter,
            ttft_s: request.ttft?.seconds(),
            priming_s: start.map_or(0.0, |start| start.took.seconds()),
        })
    }
}

/// What was told, put into cells: a kind's ways in the order in which they were asked for.
pub(super) fn cells(told: &[Told], kinds: &[Kind], ways: &[Way]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for kind in kinds {
        let of_kind: Vec<&Told> = told.iter().filter(|told| told.run.kind == *kind).collect();
        // What comes first only warms up.
        let counted = of_kind.get(1 + ways.len()..).unwrap_or_default();
        let cold: Vec<Cold> =
            counted.iter().filter(|told| told.run.cold).filter_map(|told| Cold::of(told)).collect();
        let warm: Vec<(Way, Decoding)> = counted
            .iter()
            .filter(|told| !told.run.cold)
            .map(|told| (told.run.way, Decoding::of(&told.requests)))
            .collect();
        for way in ways {
            let samples: Vec<Sample> = warm
                .windows(3)
                .filter(|around| around[1].0 == *way && around[0].0 == Way::NONE && around[2].0 == Way::NONE)
                .map(|around| Sample {
                    before: around[0].1.clone(),
                    own: around[1].1.clone(),
                    after: around[2].1.clone(),
                })
                .collect();
            cells.push(cell(*kind, *way, &samples, &cold));
        }
    }
    cells
}

fn cell(kind: Kind, way: Way, samples: &[Sample], cold: &[Cold]) -> Cell {
    let over = |figure: &dyn Fn(&Sample) -> Option<f64>| Spread::of(samples.iter().map(figure));
    let of = |drafter| cold.iter().filter(move |cold| cold.drafter == drafter);
    let predicted = over(&|sample| sample.economics().predicted_speedup());
    let measured = over(&Sample::measured);
    let deviation = predicted.zip(measured).and_then(|(p, m)| Some(ratio(p.median, m.median)? - 1.0));
    let identical = samples.iter().all(|sample| {
        let same = |other: &Decoding| other.replies == sample.own.replies;
        same(&sample.before) && same(&sample.after) && !sample.own.replies.contains(&None)
    });
    let whole =
        samples.iter().zip(of(DrafterKind::None).zip(of(way.drafter))).map(|(sample, (none, own))| {
            let asks = sample.own.replies.len().max(1) as f64;
            let per_reply = |ms: f64| ms / 1e3 / asks;
            let dense = per_reply(sample.before.decode_ms.midpoint(sample.after.decode_ms));
            ratio(none.ttft_s + dense, own.ttft_s + per_reply(sample.own.decode_ms))
        });
    let whole = Spread::of(whole).filter(|_| identical);
    let first = samples.first();
    let reason = deviation.filter(|deviation| deviation.abs() > HELD_WITHIN).map(|_| reason(samples));
    Cell {
        prompt: kind,
        drafter: way.drafter,
        depth: way.depth,
        output_tokens: first.map_or(0, |sample| sample.own.counters.output_tokens),
        counters: first.map(|sample| sample.own.counters.clone()).unwrap_or_default(),
        tokens_per_cycle: over(&|sample| sample.own.counters.tokens_per_cycle()),
        cost_ratio: over(&|sample| sample.economics().cost_ratio),
        share: over(&|sample| sample.own.counters.share()),
        // A reply that is not what it has to be has no speed-up.
        predicted: predicted.filter(|_| identical),
        measured: measured.filter(|_| identical),
        deviation: deviation.filter(|_| identical),
        reason,
        whole,
        priming_s: Spread::of(of(way.drafter).map(|cold| Some(cold.priming_s))),
        identical,
        ended: samples.iter().find_map(|sample| sample.own.ended.clone()),
    }
}

/// What the measurement has that the identities leave out, from the split of the time.
fn reason(samples: &[Sample]) -> String {
    let over = |figure: &dyn Fn(&Sample) -> Option<f64>| Spread::of(samples.iter().map(figure));
    let mut words = Vec::new();
    if let Some(drift) = over(&Sample::drift) {
        words.push(format!("dense steps around a run differ by {:.0} %", drift.median * 100.0));
    }
    if let Some(cost) = over(&Sample::ordinary_cost) {
        words.push(format!("an ordinary step between cycles takes {:.2} dense steps", cost.median));
    }
    if let Some(left) = over(&Sample::unaccounted) {
        words.push(format!("{:+.0} % of the time are neither cycles nor dense steps", left.median * 100.0));
    }
    words.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of `steps` tokens after the first: `cycles` of them, accepting `accepted`, each `cycle_ms` long; the rest ordinary, `dense_ms` each.
    fn decoding(steps: u64, cycles: u64, accepted: u64, cycle_ms: f64, dense_ms: f64) -> Decoding {
        let counters = Counters {
            output_tokens: steps + 1,
            replies: 1,
            cycles,
            accepted,
            tested: accepted,
            drafted: accepted,
            ..Counters::default()
        };
        let cycles_ms = cycles as f64 * cycle_ms;
        let ordinary = (steps - counters.cycle_tokens()) as f64;
        Decoding {
            counters,
            cycles_ms: Some(cycles_ms),
            decode_ms: cycles_ms + ordinary * dense_ms,
            steps,
            replies: vec![Some("same".to_owned())],
            ended: None,
        }
    }

    fn sample(dense: (f64, f64), own: Decoding) -> Sample {
        let plain = |ms| decoding(own.steps, 0, 0, 0.0, ms);
        Sample { before: plain(dense.0), after: plain(dense.1), own: own.clone() }
    }

    fn made(samples: &[Sample], cold: &[Cold]) -> Cell {
        cell(Kind::Copy, Way { drafter: DrafterKind::Mtp, depth: Some(2) }, samples, cold)
    }

    #[test]
    fn a_run_is_held_against_those_around_it() {
        // The machine grows slower by half while it runs: 1.0, then 1.5 ms a dense step, so 1.25 in the middle.
        let cell = made(&[sample((1.0, 1.5), decoding(1_000, 400, 600, 2.5, 1.25))], &[]);
        assert_eq!(cell.cost_ratio.unwrap().median, 2.0);
        assert_eq!(cell.tokens_per_cycle.unwrap().median, 2.5);
        assert_eq!(cell.measured.unwrap().median, 1.25);
        let predicted = cell.predicted.unwrap().median;
        assert!((predicted - 1.25).abs() < 0.001 && cell.held(), "{predicted}");
    }

    #[test]
    fn what_the_identities_leave_out_is_told_where_it_matters() {
        let mut own = decoding(1_000, 400, 600, 2.5, 1.0);
        own.decode_ms += 300.0;
        let cell = made(&[sample((1.0, 1.0), own)], &[]);
        assert!(!cell.held() && cell.deviation.unwrap() > 0.25, "{:?}", cell.deviation);
        assert!(cell.reason.unwrap().contains("+23 % of the time"));
    }

    #[test]
    fn another_reply_has_no_speed_up() {
        let mut sample = sample((1.0, 1.0), decoding(100, 50, 50, 1.0, 1.0));
        sample.own.replies = vec![Some("another".to_owned())];
        let cell = made(&[sample], &[]);
        assert!(!cell.identical);
        assert_eq!((cell.measured, cell.predicted, cell.whole), (None, None, None));
    }

    #[test]
    fn end_to_end_counts_the_cold_first_token() {
        let of = |drafter, ttft_s, priming_s| Cold { drafter, ttft_s, priming_s };
        let cold = [of(DrafterKind::None, 1.0, 0.0), of(DrafterKind::Mtp, 1.3, 0.3)];
        // A second of decoding becomes half a second.
        let cell = made(&[sample((1.0, 1.0), decoding(1_000, 500, 500, 1.0, 1.0))], &cold);
        let whole = cell.whole.unwrap().median;
        assert!((whole - 2.0 / 1.8).abs() < 1e-9, "{whole}");
        assert_eq!(cell.priming_s.unwrap().median, 0.3);
    }
}
