//! Runs of the same prompt, without a drafter and with one, set against each other.

use serde::Serialize;

use super::{Counters, Economics, measured_speedup, ratio};
use crate::compare::Spread;

/// What one run of a reply measured.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MatchedRun {
    /// Its counters; those of a run without a drafter say nothing but its tokens.
    pub counters: Counters,
    /// Milliseconds a token of the reply took to decode: see [`super::decode_ms_per_token`].
    pub ms_per_token: Option<f64>,
    /// Seconds from the request's arrival to its end.
    pub end_to_end_s: Option<f64>,
    /// Milliseconds of all its cycles.
    pub cycles_ms: Option<f64>,
}

/// Repeats with a drafter against repeats without: medians over the repeats of each side, and quotients of these medians.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Matched {
    /// Milliseconds a dense step takes.
    pub dense_ms_per_token: Option<Spread>,
    /// Milliseconds a token takes with the drafter.
    pub ms_per_token: Option<Spread>,
    /// How much faster decoding is, measured.
    pub decode_speedup: Option<f64>,
    /// How much faster the whole request is, measured: what the drafter read before the first token is in it.
    pub end_to_end_speedup: Option<f64>,
    /// Accepted tokens by tested ones.
    pub acceptance: Option<f64>,
    /// What cycles gave and cost.
    pub economics: Economics,
    /// What is predicted of `decode_speedup`: see [`Economics::predicted_speedup`].
    pub predicted_speedup: Option<f64>,
    /// The same as EXP-002 publishes it: see [`Economics::published_speedup`].
    pub published_speedup: Option<f64>,
}

impl Matched {
    /// Of `dense` and `speculative` repeats.
    pub fn of(dense: &[MatchedRun], speculative: &[MatchedRun]) -> Matched {
        fn over(runs: &[MatchedRun], figure: impl Fn(&MatchedRun) -> Option<f64>) -> Option<Spread> {
            Spread::of(runs.iter().map(figure))
        }
        let median = |figure: fn(&MatchedRun) -> Option<f64>| Some(over(speculative, figure)?.median);
        let faster =
            |before: Option<Spread>, after: Option<Spread>| measured_speedup(before?.median, after?.median);
        let [dense_ms, ms] = [dense, speculative].map(|runs| over(runs, |run| run.ms_per_token));
        let [dense_all, all] = [dense, speculative].map(|runs| over(runs, |run| run.end_to_end_s));
        let dense_ms_per_token = dense_ms.map(|spread| spread.median);
        let ms_per_cycle = median(|run| ratio(run.cycles_ms?, run.counters.cycles as f64));
        let gave = Economics {
            tokens_per_cycle: median(|run| run.counters.tokens_per_cycle()),
            share: median(|run| run.counters.share()),
            decoded_share: median(|run| run.counters.decoded_share()),
            ..Economics::default()
        };
        let economics = gave.costing(ms_per_cycle, dense_ms_per_token);
        Matched {
            dense_ms_per_token: dense_ms,
            ms_per_token: ms,
            decode_speedup: faster(dense_ms, ms),
            end_to_end_speedup: faster(dense_all, all),
            acceptance: median(|run| run.counters.accepted_of_tested()),
            economics,
            predicted_speedup: economics.predicted_speedup(),
            published_speedup: economics.published_speedup(),
        }
    }

    /// By how much the prediction exceeds what was measured, as a part of the measured speed-up: 0.02 is 2 % too much.
    pub fn prediction_error(&self) -> Option<f64> {
        prediction_error(self.predicted_speedup?, self.decode_speedup?)
    }
}

/// `predicted / measured − 1`: positive where the prediction promised too much.
pub fn prediction_error(predicted: f64, measured: f64) -> Option<f64> {
    Some(ratio(predicted, measured)? - 1.0)
}

/// How wide repeats lie, as a part of their median.
pub fn relative_width(spread: Spread) -> Option<f64> {
    ratio(spread.max - spread.min, spread.median)
}
