//! What recovery did to requests: their latencies while a job had something left to do, beside those while none had.

use serde::Serialize;

use crate::event::{Nanos, RequestId};
use crate::ledger::{Latency, Ledger, Quantiles};

/// Latencies of requests that arrived while a job had something left to do, or of those that did not.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Latencies {
    first_token: Latency,
    between_tokens: Latency,
}

impl Latencies {
    pub(super) fn first_token(&mut self, time: Nanos) {
        self.first_token.record(time);
    }

    pub(super) fn between_tokens(&mut self, time: Nanos) {
        self.between_tokens.record(time);
    }
}

/// One latency on both sides, against its target.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Sides {
    /// With a job that had something left to do.
    pub beside: Option<Quantiles>,
    /// Without one.
    pub alone: Option<Quantiles>,
    /// What is to be kept, seconds; `None` where nobody set it.
    pub target_s: Option<f64>,
}

impl Sides {
    /// Whether what is to be kept is: by the median with a job. `None` without a target or a value.
    pub fn holds(&self) -> Option<bool> {
        Some(self.beside?.p50.seconds() <= self.target_s?)
    }
}

/// What recovery did to requests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Protection {
    /// Time to the first token, a delay by background work included.
    pub first_token: Sides,
    /// Time between tokens.
    pub between_tokens: Sides,
    /// Arrivals that found background work in their way.
    pub collisions: usize,
    /// The worst of their delays; `None` without any.
    pub worst: Option<Nanos>,
    /// The most a delay is to be, seconds; `None` where nobody set it.
    pub delay_target_s: Option<f64>,
}

impl Protection {
    /// Whether no delay exceeds its target. `None` without a target or a delay.
    pub fn delay_holds(&self) -> Option<bool> {
        Some(self.worst?.seconds() <= self.delay_target_s?)
    }
}

impl Ledger {
    /// What recovery did to requests, against what is to be kept.
    pub fn protection(&self) -> Protection {
        let facts = self.run.as_ref().and_then(|run| run.recovery.as_ref());
        let [beside, alone] = [&self.recovery.beside, &self.recovery.alone];
        let collisions = self.recovery.collisions();
        Protection {
            first_token: Sides {
                beside: beside.first_token.quantiles(),
                alone: alone.first_token.quantiles(),
                target_s: facts.and_then(|facts| facts.ttft_target_s),
            },
            between_tokens: Sides {
                beside: beside.between_tokens.quantiles(),
                alone: alone.between_tokens.quantiles(),
                target_s: facts.and_then(|facts| facts.itl_target_s),
            },
            collisions: collisions.len(),
            worst: collisions.iter().map(|collision| collision.delayed).max(),
            delay_target_s: facts.and_then(|facts| facts.delay_target_s),
        }
    }

    /// Takes a request's time to its first token in.
    pub(in crate::ledger) fn record_first_token(&mut self, request: RequestId, time: Nanos) {
        self.first_token.record(time);
        self.recovery.side_of(request).first_token(time);
    }

    /// Takes a request's time between two tokens in.
    pub(in crate::ledger) fn record_between_tokens(&mut self, request: RequestId, time: Nanos) {
        self.between_tokens.record(time);
        self.recovery.side_of(request).between_tokens(time);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Told, under_way};
    use super::*;
    use crate::event::Body;
    use crate::recovery::job::End;

    fn tokens(told: &mut Told, from: f64) {
        for index in 0..3 {
            let body = Body::Token { token: 1, text: "x".to_owned(), index, margin: None };
            told.at(from + index as f64 / 8.0).say(body);
        }
    }

    #[test]
    fn a_request_belongs_to_the_side_it_arrived_on() {
        let mut told = under_way();
        told.at(16.0).delayed(9_000, 8_200, 7_168, Some(0.5));
        tokens(&mut told, 17.0);
        told.ended(1, End::Complete, 8_192, 8_192).at(30.0).request(9_500, 9_000, 7_168);
        tokens(&mut told, 34.0);
        let protection = told.ledger.protection();
        let seconds = |side: Option<Quantiles>| (side.unwrap().p50.seconds() * 100.0).round() / 100.0;
        let first = protection.first_token;
        assert_eq!((seconds(first.beside), seconds(first.alone)), (1.5, 4.0), "the delay is part of it");
        assert_eq!(protection.between_tokens.beside.unwrap().count, 2);
        assert_eq!((protection.collisions, protection.worst), (1, Some(Nanos::from_seconds(0.5))));
        assert_eq!((protection.delay_holds(), first.holds()), (None, None), "nobody set a target");
    }

    #[test]
    fn a_target_is_kept_by_the_median_and_a_delay_by_the_worst() {
        let at = |p50| Quantiles { count: 1, p50, p90: p50, p99: p50, max: p50 };
        let beside = Some(at(Nanos::from_seconds(2.0)));
        let sides = |target_s| Sides { beside, alone: None, target_s };
        assert_eq!((sides(Some(2.0)).holds(), sides(Some(1.9)).holds()), (Some(true), Some(false)));
        let protection = Protection {
            first_token: sides(None),
            between_tokens: sides(None),
            collisions: 1,
            worst: Some(Nanos::from_seconds(0.3)),
            delay_target_s: Some(0.25),
        };
        assert_eq!(protection.delay_holds(), Some(false));
    }
}
