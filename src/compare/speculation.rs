//! What drafting was worth in a lane, against the ordinary decoding of the lane it is compared with.

use serde::Serialize;

use super::comparison::{Comparison, Repeat};
use super::deviation::{Split, why_off};
use super::reply::ReplyDifference;
use super::spread::Spread;
use super::turn::Place;
use crate::config::{ControllerKind, DrafterKind};
use crate::decode::economics::{Counters, CycleTime, Economics, prediction_error, ratio};
use crate::event::{Cycle, Identity, Nanos};
use crate::ledger::{Ledger, RequestFacts};

pub use crate::ledger::HELD_WITHIN;

/// Speculative decoding of a request, or of a lane's requests together. Counts are those of the first repeat, figures are over all.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Speculated {
    /// What drafted; `None` where nothing did.
    pub drafter: Option<DrafterKind>,
    /// Tokens drafted in a cycle at most.
    pub depth_max: Option<u32>,
    /// What chose the depth.
    pub controller: Option<ControllerKind>,
    /// Why a reply was decoded without drafting, from its start or from some token on.
    pub ended: Option<String>,
    /// What was drafted and accepted.
    pub counters: Counters,
    /// Cycles whose state and logits were compared with recomputation.
    pub audited_cycles: u64,
    /// Of the replies that can be held beside the other lane's, how many are the same, and how many there are.
    pub same_replies: (u64, u64),
    /// Tokens per cycle.
    pub tokens_per_cycle: Option<Spread>,
    /// The share of the reply that cycles gave.
    pub share: Option<Spread>,
    /// What a cycle costs in the other lane's steps of the same turn; `None` where that lane drafts too, for its steps are no dense ones.
    pub cost_ratio: Option<Spread>,
    /// Time the drafters took to read the prompt. It is a part of the time to first token. `None` where none started.
    pub priming_s: Option<Spread>,
    /// Whether a reply was sampled: then it need not be the other lane's.
    pub sampled: bool,
    /// Whether the other lane drafts too: then there is no ordinary decoding to compare with.
    pub against_drafts: bool,
    /// What the prediction leaves out, where it does not hold.
    pub off: Option<String>,
    /// What it was worth, or why that is not to be shown.
    #[serde(flatten)]
    pub worth: Worth,
}

/// Either speed-ups or a failure: where the state or the reply is not what it has to be, how fast it came is of no interest.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Worth {
    /// Nothing is known to be wrong.
    SpeedUp(SpeedUp),
    /// What failed in the lane, at which turn.
    Failure(String),
}

/// How many times as fast as the other lane.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct SpeedUp {
    /// Decoding, as the identities predict it from tokens per cycle, cost and share.
    pub predicted: Option<Spread>,
    /// Decoding, as it was measured: by time a token after the first. `None` where other sequences shared a forward.
    pub decode: Option<Spread>,
    /// End to end, from arrival to the last token: priming and the rest of the prefill included. `None` where replies are not equally long, and where
    /// other sequences shared a forward.
    pub whole: Option<Spread>,
    /// The same, had priming taken no time.
    pub whole_unprimed: Option<Spread>,
    /// By how much the prediction exceeds what was measured, as a fraction of that.
    pub deviation: Option<f64>,
    /// Whether the prediction lies within [`HELD_WITHIN`].
    pub held: Option<bool>,
}

impl Speculated {
    /// The speed-ups, where nothing failed.
    pub fn speed_up(&self) -> Option<&SpeedUp> {
        match &self.worth {
            Worth::SpeedUp(speed_up) => Some(speed_up),
            Worth::Failure(_) => None,
        }
    }

    /// What failed.
    pub fn failure(&self) -> Option<&str> {
        match &self.worth {
            Worth::Failure(failure) => Some(failure),
            Worth::SpeedUp(_) => None,
        }
    }
}

/// What one repeat tells of requests: sums, so that several add up.
#[derive(Debug, Clone, Default)]
struct Told {
    counters: Counters,
    /// Time of all cycles; `None` where other sequences shared one.
    cycles: Option<Nanos>,
    /// `None` where no drafter started.
    priming: Option<Nanos>,
    own: Option<Decoded>,
    other: Option<Decoded>,
    /// Whether the other lane drafts.
    against_drafts: bool,
    sampled: bool,
    /// Whether replies are equally long.
    alike: bool,
    audited: u64,
    same: (u64, u64),
}

/// Decoding of one or more replies.
#[derive(Debug, Clone, Copy)]
struct Decoded {
    steps: u64,
    took_s: f64,
    whole_s: f64,
}

impl Decoded {
    /// `None` where it was not measured, and where a forward was shared: then its time is not this reply's.
    fn of(request: &RequestFacts) -> Option<Decoded> {
        let shared = request.shared_forwards.is_some_and(|shared| shared > 0);
        (!shared).then_some(())?;
        Some(Decoded {
            steps: request.output_tokens?.saturating_sub(1),
            took_s: request.decode?.seconds(),
            whole_s: request.took?.seconds(),
        })
    }

    fn plus(self, more: Decoded) -> Decoded {
        Decoded {
            steps: self.steps + more.steps,
            took_s: self.took_s + more.took_s,
            whole_s: self.whole_s + more.whole_s,
        }
    }

    fn ms_per_token(&self) -> Option<f64> {
        ratio(self.took_s * 1e3, self.steps as f64)
    }
}

impl Told {
    fn of(own: &RequestFacts, other: Option<&RequestFacts>) -> Told {
        let speculation = own.speculation.as_deref();
        let cycles = cycles_of(own);
        let start = speculation.and_then(|s| s.start.as_ref());
        let told = |request: Option<&RequestFacts>| request.and_then(Decoded::of);
        let same = other.and_then(|other| ReplyDifference::of(other, own, None).same_text);
        Told {
            counters: Counters::of(cycles, own.output_tokens.unwrap_or(0)),
            cycles: CycleTime::of(cycles).map(|time| time.total()),
            priming: start.map(|start| start.took),
            own: told(Some(own)),
            other: told(other),
            against_drafts: other.is_some_and(|other| !cycles_of(other).is_empty()),
            sampled: start.is_some_and(|start| !start.greedy),
            alike: other.is_some_and(|other| other.output_tokens == own.output_tokens),
            audited: cycles.iter().filter(|cycle| cycle.audit.is_some()).count() as u64,
            same: same.map_or((0, 0), |same| (same.into(), 1)),
        }
    }

    fn add(&mut self, more: &Told) {
        self.counters.add(&more.counters);
        self.cycles = self.cycles.zip(more.cycles).map(|(a, b)| Nanos(a.0.saturating_add(b.0)));
        // A reply that nothing was primed for adds nothing.
        self.priming = match (self.priming, more.priming) {
            (Some(a), Some(b)) => Some(Nanos(a.0.saturating_add(b.0))),
            (one, none) => one.or(none),
        };
        self.against_drafts |= more.against_drafts;
        self.sampled |= more.sampled;
        self.own = self.own.zip(more.own).map(|(a, b)| a.plus(b));
        self.other = self.other.zip(more.other).map(|(a, b)| a.plus(b));
        self.alike &= more.alike;
        self.audited += more.audited;
        self.same = (self.same.0 + more.same.0, self.same.1 + more.same.1);
    }

    fn cycles_ms(&self) -> Option<f64> {
        Some(self.cycles?.seconds() * 1e3)
    }

    /// Time of a dense step, which only a lane that does not draft can tell.
    fn dense_ms(&self) -> Option<f64> {
        self.other.filter(|_| !self.against_drafts)?.ms_per_token()
    }

    fn economics(&self) -> Economics {
        Economics::of(&self.counters, self.cycles_ms(), self.dense_ms())
    }

    fn decode_speed_up(&self) -> Option<f64> {
        ratio(self.other?.ms_per_token()?, self.own?.ms_per_token()?)
    }

    fn whole_speed_up(&self) -> Option<f64> {
        ratio(self.other?.whole_s, self.own?.whole_s).filter(|_| self.alike)
    }

    fn whole_unprimed(&self) -> Option<f64> {
        ratio(self.other?.whole_s, self.own?.whole_s - self.priming?.seconds()).filter(|_| self.alike)
    }

    fn split(&self) -> Option<Split> {
        let own = self.own?;
        Some(Split {
            decode_ms: own.took_s * 1e3,
            cycles_ms: self.cycles_ms(),
            steps: own.steps,
            cycle_tokens: self.counters.cycle_tokens(),
            dense_ms: self.dense_ms(),
            drift: None,
        })
    }
}

fn cycles_of(request: &RequestFacts) -> &[Cycle] {
    request.speculation.as_deref().map(|s| s.cycles.as_slice()).unwrap_or_default()
}

impl Comparison {
    /// What drafting was worth for the requests at `places`, those in which nothing was drafted included; `None` where the lane was not asked to draft in
    /// any, and in the lane that the others are compared with. `failure` is the lane's ([`Comparison::speculation_failure`]).
    pub(super) fn speculated(
        &self,
        lane: usize,
        places: &[Place],
        failure: Option<&str>,
    ) -> Option<Speculated> {
        let base = self.base();
        let first = self.all().first()?;
        let requests = || places.iter().filter_map(|place| first.request(lane, *place));
        let of = |request: &'_ RequestFacts| request.speculation.is_some();
        if lane == base || !requests().any(of) {
            return None;
        }
        let told: Vec<Told> =
            self.all().iter().map(|repeat| repeat.told(lane, base, places)).collect::<Option<_>>()?;
        let over = |figure: &dyn Fn(&Told) -> Option<f64>| Spread::of(told.iter().map(figure));
        let speculations = || requests().filter_map(|request| request.speculation.as_deref());
        let start = speculations().find_map(|s| s.start.as_ref());
        let worth = match failure {
            Some(failure) => Worth::Failure(failure.to_owned()),
            None => {
                let predicted = over(&|told| told.economics().predicted_speedup());
                let decode = over(&Told::decode_speed_up);
                let deviation = predicted.zip(decode).and_then(|(p, d)| prediction_error(p.median, d.median));
                let held = deviation.map(|deviation| deviation.abs() <= HELD_WITHIN);
                let whole = over(&Told::whole_speed_up);
                let whole_unprimed = over(&Told::whole_unprimed);
                Worth::SpeedUp(SpeedUp { predicted, decode, whole, whole_unprimed, deviation, held })
            }
        };
        let off = match &worth {
            Worth::SpeedUp(SpeedUp { held: Some(false), .. }) => {
                told.iter().map(Told::split).collect::<Option<Vec<_>>>().and_then(|splits| why_off(&splits))
            }
            _ => None,
        };
        let [one, ..] = told.as_slice() else { return None };
        Some(Speculated {
            drafter: start.map(|start| start.drafter),
            depth_max: start.map(|start| start.depth_max),
            controller: start.map(|start| start.controller),
            ended: speculations().find_map(|s| s.ended.clone()),
            counters: one.counters.clone(),
            audited_cycles: one.audited,
            same_replies: one.same,
            tokens_per_cycle: over(&|told| told.counters.tokens_per_cycle()),
            share: over(&|told| told.counters.share()),
            cost_ratio: over(&|told| told.economics().cost_ratio),
            priming_s: over(&|told| Some(told.priming?.seconds())),
            sampled: told.iter().any(|told| told.sampled),
            against_drafts: told.iter().any(|told| told.against_drafts),
            off,
            worth,
        })
    }

    /// The first thing that is wrong with a lane's speculative decoding, or with that of the lane it is compared with: an audit that failed, or a reply that
    /// is not the other lane's though the device promises the same bits and both are greedy.
    pub fn speculation_failure(&self, lane: usize) -> Option<String> {
        let base = self.base();
        let own = self.all().iter().find_map(|repeat| {
            let run = repeat.ledgers.get(lane).and_then(Ledger::run)?;
            repeat.places(lane).into_iter().filter(|_| lane != base).find_map(|place| {
                let request = repeat.request(lane, place)?;
                let what = audit_failure(request)
                    .or_else(|| repeat.other_reply(base, lane, place, run.identity, self.name(base)))?;
                Some(format!("turn {}: {what}", place.label()))
            })
        });
        own.or_else(|| {
            self.all().iter().find_map(|repeat| {
                repeat.places(base).into_iter().find_map(|place| {
                    let what = audit_failure(repeat.request(base, place)?)?;
                    let at = place.label();
                    Some(match lane == base {
                        true => format!("turn {at}: {what}"),
                        false => {
                            format!("turn {at} of {}, which it is compared with: {what}", self.name(base))
                        }
                    })
                })
            })
        })
    }
}

fn audit_failure(request: &RequestFacts) -> Option<String> {
    let cycles = &request.speculation.as_deref()?.cycles;
    let (number, audit) = cycles.iter().enumerate().find_map(|(number, cycle)| {
        Some((number + 1, cycle.audit.as_ref().filter(|audit| !audit.passed)?))
    })?;
    let problem = audit.problem.as_deref().unwrap_or("state differs from recomputation");
    Some(format!("the audit of cycle {number} failed: {problem}"))
}

impl Repeat {
    /// What is told of a lane's requests at `places`; `None` where one of them has not ended in it.
    fn told(&self, lane: usize, base: usize, places: &[Place]) -> Option<Told> {
        let told = places.iter().map(|place| {
            let own = self.request(lane, *place)?;
            // Beside another prompt's reply there is nothing to compare.
            let other =
                self.request(base, *place).filter(|other| self.same_prompt((base, other), (lane, own)));
            Some(Told::of(own, other))
        });
        told.reduce(|sum, more| {
            let (mut sum, more) = sum.zip(more)?;
            sum.add(&more);
            Some(sum)
        })?
    }

    /// Why a lane's reply is not what it has to be, as far as replies have come.
    fn other_reply(
        &self,
        base: usize,
        lane: usize,
        place: Place,
        identity: Identity,
        against: &str,
    ) -> Option<String> {
        let (own, other) = (self.request(lane, place)?, self.request(base, place)?);
        let start = own.speculation.as_deref()?.start.as_ref()?;
        // A sparse prefill changes replies by itself.
        let comparable = own.scored.is_none() && other.scored.is_none() && start.greedy;
        let promised = matches!(identity, Identity::Bitwise | Identity::Simulated);
        if !promised || !comparable || !self.same_prompt((base, other), (lane, own)) {
            return None;
        }
        match ReplyDifference::of(other, own, None) {
            ReplyDifference { first_differing: Some(index), .. } => {
                Some(format!("the reply is not {against}'s from token {} on", index + 1))
            }
            ReplyDifference { same_text: Some(false), .. } => Some(format!("the reply is not {against}'s")),
            _ => None,
        }
    }
}
