//! What the runs of a cell say.

use serde::Serialize;

use super::matrix::{Stage, Told, Way};
use super::prompts::Kind;
use crate::compare::{HELD_WITHIN, Split, Spread, why_off};
use crate::config::DrafterKind;
use crate::decode::economics::{Counters, CycleTime, Economics, prediction_error, ratio};
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
    /// Of the first of its runs.
    pub(super) counters: Counters,
    /// Runs in which anything was drafted: a controller may find that it is not worth it.
    pub(super) drafting_runs: usize,
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
    /// Speed-up of a request of which nothing is restored, composed of two measurements: the time to its first token, and the mean time to decode a reply.
    pub(super) whole: Option<Spread>,
    /// Speed-up of decoding by an adaptive depth without any averages, by engines that have served nobody; measured on the first text only.
    pub(super) first: Option<Spread>,
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

    /// The measured speed-up; `None` also where nothing was drafted, for that measures no drafter.
    pub(super) fn speed_up(&self) -> Option<f64> {
        Some(self.measured.filter(|_| self.drafted())?.median)
    }

    pub(super) fn drafted(&self) -> bool {
        self.drafting_runs > 0
    }
}

/// One run: its requests' figures together.
#[derive(Debug, Clone, Default)]
pub(super) struct Decoding {
    pub(super) counters: Counters,
    pub(super) cycles_ms: Option<f64>,
    /// `None` where a reply did not end, or was not decoded alone.
    pub(super) decode_ms: Option<f64>,
    /// Tokens after the first ones of the replies.
    pub(super) steps: u64,
    pub(super) replies: Vec<Option<String>>,
    pub(super) ended: Option<String>,
}

impl Decoding {
    pub(super) fn of(requests: &[RequestFacts]) -> Decoding {
        let mut all = Decoding { cycles_ms: Some(0.0), decode_ms: Some(0.0), ..Decoding::default() };
        for request in requests {
            let speculation = request.speculation.as_deref();
            let cycles = speculation.map(|s| s.cycles.as_slice()).unwrap_or_default();
            let output = request.output_tokens.unwrap_or(0);
            all.counters.add(&Counters::of(cycles, output));
            let more = CycleTime::of(cycles).map(|time| time.total().seconds() * 1e3);
            all.cycles_ms = all.cycles_ms.zip(more).map(|(sum, more)| sum + more);
            let alone = request.shared_forwards.is_none_or(|shared| shared == 0);
            let more = request.decode.filter(|_| alone).map(|took| took.seconds() * 1e3);
            all.decode_ms = all.decode_ms.zip(more).map(|(sum, more)| sum + more);
            all.steps += output.saturating_sub(1);
            all.replies.push(request.output_sha256.clone());
            all.ended = all.ended.or_else(|| speculation?.ended.clone());
        }
        all
    }

    fn ms_per_token(&self) -> Option<f64> {
        ratio(self.decode_ms?, self.steps as f64)
    }

    fn seconds_per_reply(&self) -> Option<f64> {
        ratio(self.decode_ms? / 1e3, self.replies.len() as f64)
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

    fn split(&self) -> Option<Split> {
        Some(Split {
            decode_ms: self.own.decode_ms?,
            cycles_ms: self.own.cycles_ms,
            steps: self.own.steps,
            cycle_tokens: self.own.counters.cycle_tokens(),
            dense_ms: self.dense_ms(),
            drift: self.drift(),
        })
    }

    fn of(around: &[(Way, Decoding)], way: Way) -> Option<Sample> {
        match around {
            [(Way::NONE, before), (own_way, own), (Way::NONE, after)] if *own_way == way => {
                Some(Sample { before: before.clone(), own: own.clone(), after: after.clone() })
            }
            _ => None,
        }
    }
}

/// A request of which nothing is restored, between two without a drafter: times to the first token, and what of its own was the drafter's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cold {
    pub(super) drafter: DrafterKind,
    /// The mean of those before and after.
    pub(super) plain_ttft_s: f64,
    pub(super) ttft_s: f64,
    /// `None` where the drafter did not start.
    pub(super) priming_s: Option<f64>,
}

impl Cold {
    fn of(around: &[&Told]) -> Option<Cold> {
        let [before, own, after] = around else { return None };
        let ttft = |told: &Told| Some(told.requests.first()?.ttft?.seconds());
        let plain = |told: &Told| told.run.way.drafter == DrafterKind::None;
        let between = plain(before) && !plain(own) && plain(after);
        between.then_some(())?;
        let start = own.requests.first()?.speculation.as_deref().and_then(|s| s.start.as_ref());
        Some(Cold {
            drafter: own.run.way.drafter,
            plain_ttft_s: ttft(before)?.midpoint(ttft(after)?),
            ttft_s: ttft(own)?,
            priming_s: start.map(|start| start.took.seconds()),
        })
    }
}

/// What was told, put into cells: a kind's ways in the order in which they were asked for.
pub(super) fn cells(told: &[Told], kinds: &[Kind], ways: &[Way]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for kind in kinds {
        let of_kind: Vec<&Told> = told.iter().filter(|told| told.run.kind == *kind).collect();
        let of = |stage: Stage, cold: bool| {
            of_kind.iter().copied().filter(move |told| told.run.stage == stage && told.run.cold == cold)
        };
        let cold: Vec<&Told> = of(Stage::Counted, true).collect();
        let cold: Vec<Cold> = cold.windows(3).filter_map(Cold::of).collect();
        let warm = |stage: Stage| -> Vec<(Way, Decoding)> {
            of(stage, false).map(|told| (told.run.way, Decoding::of(&told.requests))).collect()
        };
        let (first, counted) = (warm(Stage::First), warm(Stage::Counted));
        let samples = |runs: &[(Way, Decoding)], way: Way| -> Vec<Sample> {
            runs.windows(3).filter_map(|around| Sample::of(around, way)).collect()
        };
        for way in ways {
            cells.push(cell(*kind, *way, &samples(&counted, *way), &cold, &samples(&first, *way)));
        }
    }
    cells
}

fn cell(kind: Kind, way: Way, samples: &[Sample], cold: &[Cold], first: &[Sample]) -> Cell {
    let over = |figure: &dyn Fn(&Sample) -> Option<f64>| Spread::of(samples.iter().map(figure));
    let cold = || cold.iter().filter(|cold| cold.drafter == way.drafter);
    let predicted = over(&|sample| sample.economics().predicted_speedup());
    let measured = over(&Sample::measured);
    let deviation = predicted.zip(measured).and_then(|(p, m)| prediction_error(p.median, m.median));
    let identical = samples.iter().all(|sample| {
        let same = |other: &Decoding| other.replies == sample.own.replies;
        same(&sample.before) && same(&sample.after) && !sample.own.replies.contains(&None)
    });
    let whole = samples.iter().zip(cold()).map(|(sample, cold)| {
        let dense = sample.before.seconds_per_reply()?.midpoint(sample.after.seconds_per_reply()?);
        ratio(cold.plain_ttft_s + dense, cold.ttft_s + sample.own.seconds_per_reply()?)
    });
    let whole = Spread::of(whole).filter(|_| identical);
    let one = samples.first();
    let off = deviation.filter(|deviation| identical && deviation.abs() > HELD_WITHIN);
    let splits = || samples.iter().map(Sample::split).collect::<Option<Vec<_>>>();
    Cell {
        prompt: kind,
        drafter: way.drafter,
        depth: way.depth,
        output_tokens: one.map_or(0, |sample| sample.own.counters.output_tokens),
        counters: one.map(|sample| sample.own.counters.clone()).unwrap_or_default(),
        drafting_runs: samples.iter().filter(|sample| sample.own.counters.drafted > 0).count(),
        tokens_per_cycle: over(&|sample| sample.own.counters.tokens_per_cycle()),
        cost_ratio: over(&|sample| sample.economics().cost_ratio),
        share: over(&|sample| sample.own.counters.share()),
        // A reply that is not what it has to be has no speed-up.
        predicted: predicted.filter(|_| identical),
        measured: measured.filter(|_| identical),
        deviation: deviation.filter(|_| identical),
        reason: off.and_then(|_| why_off(&splits()?)),
        whole,
        first: Spread::of(first.iter().map(Sample::measured))
            .filter(|_| identical && first.iter().any(|sample| sample.own.counters.drafted > 0)),
        priming_s: Spread::of(cold().map(|cold| cold.priming_s)),
        identical,
        ended: samples.iter().find_map(|sample| sample.own.ended.clone()),
    }
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
            decode_ms: Some(cycles_ms + ordinary * dense_ms),
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
        cell(Kind::Copy, Way { drafter: DrafterKind::Mtp, depth: Some(2) }, samples, cold, &[])
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
        own.decode_ms = own.decode_ms.map(|ms| ms + 300.0);
        let cell = made(&[sample((1.0, 1.0), own)], &[]);
        assert!(!cell.held() && cell.deviation.unwrap() > 0.25, "{:?}", cell.deviation);
        assert!(cell.reason.unwrap().contains("+23 % of the decode time"));
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
        let cold = [Cold { drafter: DrafterKind::Mtp, plain_ttft_s: 1.0, ttft_s: 1.3, priming_s: Some(0.3) }];
        // A second of decoding becomes half a second.
        let cell = made(&[sample((1.0, 1.0), decoding(1_000, 500, 500, 1.0, 1.0))], &cold);
        let whole = cell.whole.unwrap().median;
        assert!((whole - 2.0 / 1.8).abs() < 1e-9, "{whole}");
        assert_eq!(cell.priming_s.unwrap().median, 0.3);
    }
}
