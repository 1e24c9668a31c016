//! What background recovery did in a lane, gap by gap: what it published, what it took of the idle time, and what requests had to wait for it.
//!
//! Its compute is nobody's time to the first token, so it stands beside the sums over requests and never in them. What a request waited for a slice is in
//! its own time, and is told again here.

use std::collections::BTreeMap;

use serde::Serialize;

use super::comparison::{Comparison, Repeat};
use super::lane::SPARSE;
use super::spread::Spread;
use super::turn::Place;
use crate::event::{LaneId, RequestId, Stamp};
use crate::ledger::{JobFacts, Ledger, RequestFacts};
use crate::recovery::job::{End, Mode};

/// What background recovery did behind a request, in the gap before the next one. Tokens are those of the first repeat, times are over all.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Recovered {
    /// The whole blocks of the request's prompt, tokens: what there was to recover. `None` while its debt was not considered.
    pub target_tokens: Option<u64>,
    /// Of these, tokens that were restorable when the gap was over.
    pub committed_tokens: Option<u64>,
    /// The difference: what is still owed of whole blocks.
    pub left_tokens: Option<u64>,
    /// Publications in the gap.
    pub publications: u64,
    /// The same, summed up to here.
    pub publications_sum: u64,
    /// Compute time of the slices that began in the gap, seconds.
    pub service_s: Option<Spread>,
    /// The same, summed up to here.
    pub service_sum_s: Option<Spread>,
    /// Length of the gap, seconds; `None` behind the last request.
    pub idle_s: Option<f64>,
    /// The lengths of the gaps up to here, summed, seconds.
    pub idle_sum_s: f64,
    /// `service_sum_s` over `idle_sum_s`; `None` where nothing was idle.
    pub idle_used: Option<f64>,
    /// How long recovery was in this request's way, seconds; 0 where it was not. It is part of the time to the first token.
    pub delayed_s: Option<Spread>,
    /// The same, summed up to here.
    pub delayed_sum_s: Option<Spread>,
}

/// What background recovery came to in a lane, over the requests that a verdict is on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RecoverySums {
    /// When its jobs publish.
    pub mode: Mode,
    /// What the last request had to recover, what of it was restorable in the end, how much recovery took in all.
    #[serde(flatten)]
    pub at_the_end: Recovered,
    /// The longest that a request waited for it, seconds; `None` where none did.
    pub worst_delay_s: Option<f64>,
    /// Jobs that ended before all they were to recover was published, those left out that the engine's own end ended.
    pub dropped: u64,
    /// By how much the summed time to the first token of the sparse lane without recovery exceeds this one's, seconds. `None` without such a lane, and
    /// where all are compared with that one anyway.
    pub lead_over_sparse_s: Option<Spread>,
}

/// A gap in one repeat, and the sums up to it.
#[derive(Debug, Clone, Copy, Default)]
struct Gap {
    target: Option<u64>,
    committed: Option<u64>,
    publications: u64,
    service: f64,
    idle: Option<f64>,
    delayed: f64,
    publications_sum: u64,
    service_sum: f64,
    idle_sum: f64,
    delayed_sum: f64,
}

impl Gap {
    /// The gap behind `request`, which ended at `from`, up to the end of the next one.
    fn of(ledger: &Ledger, request: &RequestFacts, (from, until): (Stamp, Option<Stamp>)) -> Gap {
        let within = |at: Stamp| from <= at && until.is_none_or(|until| at < until);
        let recovery = ledger.recovery();
        let debt = recovery.debt_of(request.id);
        let mut gap = Gap {
            target: debt.map(|debt| debt.target_tokens),
            committed: debt.map(|debt| debt.canonical_tokens.min(debt.target_tokens)),
            delayed: request.delayed.map_or(0.0, |time| time.seconds()),
            ..Gap::default()
        };
        for job in recovery.jobs() {
            let slices = job.slices.iter().filter(|slice| within(slice.began()));
            gap.service += slices.map(|slice| slice.took.seconds()).sum::<f64>();
            let pays = job.requests.contains(&request.id);
            for publication in job.published().filter(|publication| within(publication.at)) {
                gap.publications += 1;
                if pays {
                    gap.committed = gap.committed.max(Some(publication.committed));
                }
            }
        }
        gap
    }

    /// The same, with the sums behind `before`.
    fn behind(mut self, before: &Gap) -> Gap {
        self.publications_sum = before.publications_sum + self.publications;
        self.service_sum = before.service_sum + self.service;
        self.idle_sum = before.idle_sum + self.idle.unwrap_or(0.0);
        self.delayed_sum = before.delayed_sum + self.delayed;
        self
    }
}

/// Every gap of one lane in one repeat, by the request before it.
struct Gaps(BTreeMap<Place, Gap>);

impl Gaps {
    /// `None` where recovery was never on.
    fn of(repeat: &Repeat, lane: usize, base: usize) -> Option<Gaps> {
        let ledger = repeat.ledgers.get(lane).filter(|ledger| recovers(ledger))?;
        let mut ends: Vec<(Stamp, RequestId)> =
            ledger.requests().filter_map(|request| Some((ended(request)?, request.id))).collect();
        ends.sort_unstable();
        let until = |end: Stamp| ends.iter().map(|(at, _)| *at).find(|at| *at > end);
        let lines: Vec<LaneId> = repeat.places(base).iter().map(|place| place.line).collect();
        let mut gaps = BTreeMap::new();
        for line in lines.into_iter().collect::<std::collections::BTreeSet<_>>() {
            let places = repeat.line(base, line);
            let mut before = Gap::default();
            for (index, place) in places.iter().enumerate() {
                let Some(request) = repeat.request(lane, *place) else { break };
                let next = places.get(index + 1).and_then(|next| repeat.request(lane, *next));
                let mut gap = ended(request)
                    .map_or_else(Gap::default, |from| Gap::of(ledger, request, (from, until(from))));
                gap.idle = next.and_then(|next| next.idle).map(|idle| idle.seconds());
                let gap = gap.behind(&before);
                if place.line == line {
                    gaps.insert(*place, gap);
                }
                before = gap;
            }
        }
        Some(Gaps(gaps))
    }
}

/// When a request ended; `None` while it has not.
fn ended(request: &RequestFacts) -> Option<Stamp> {
    Some(request.arrived_at.after(request.took?))
}

/// Whether recovery was on at any time of a run.
fn recovers(ledger: &Ledger) -> bool {
    ledger.recovery_on() == Some(true) || !ledger.recovery().is_silent()
}

impl Recovered {
    /// Of one gap in every repeat.
    fn of(gaps: &[Gap]) -> Option<Recovered> {
        let first = gaps.first()?;
        let over = |field: fn(&Gap) -> f64| Spread::of(gaps.iter().map(|gap| Some(field(gap))));
        let service_sum_s = over(|gap| gap.service_sum);
        let used = service_sum_s.filter(|_| first.idle_sum > 0.0).map(|sum| sum.median / first.idle_sum);
        Some(Recovered {
            target_tokens: first.target,
            committed_tokens: first.committed,
            left_tokens: first.target.zip(first.committed).map(|(target, done)| target.saturating_sub(done)),
            publications: first.publications,
            publications_sum: first.publications_sum,
            service_s: over(|gap| gap.service),
            service_sum_s,
            idle_s: first.idle,
            idle_sum_s: first.idle_sum,
            idle_used: used,
            delayed_s: over(|gap| gap.delayed),
            delayed_sum_s: over(|gap| gap.delayed_sum),
        })
    }
}

impl Comparison {
    /// Whether background recovery is on in a lane.
    pub fn recovers(&self, lane: usize) -> bool {
        self.ledger_of(0, lane).is_some_and(recovers)
    }

    /// What recovery did behind each of `places` in a lane; `None` in one without it.
    pub(super) fn recovered(&self, lane: usize, places: &[Place]) -> Vec<Option<Recovered>> {
        let base = self.base();
        let gaps: Option<Vec<Gaps>> = self.all().iter().map(|repeat| Gaps::of(repeat, lane, base)).collect();
        let at = |place: &Place| {
            let gaps: Option<Vec<Gap>> =
                gaps.as_ref()?.iter().map(|gaps| gaps.0.get(place).copied()).collect();
            Recovered::of(&gaps?)
        };
        places.iter().map(at).collect()
    }

    /// What recovery came to in a lane by the last of `places`.
    pub(super) fn recovery_sums(&self, lane: usize, places: &[Place]) -> Option<RecoverySums> {
        let ledger = self.ledger_of(0, lane)?;
        let at_the_end = self.recovered(lane, places).pop()??;
        // That the engine ended is nobody's failure.
        let dropped = |job: &&JobFacts| job.drop_reason().is_some_and(|end| end != End::Cancelled);
        let delays =
            self.all().iter().filter_map(|repeat| repeat.ledgers.get(lane)).flat_map(Ledger::requests);
        let delays = delays.filter_map(|request| request.delayed).map(|time| time.seconds());
        Some(RecoverySums {
            mode: ledger.run()?.recovery.as_ref()?.mode,
            at_the_end,
            worst_delay_s: delays.max_by(f64::total_cmp),
            dropped: ledger.recovery().jobs().filter(dropped).count() as u64,
            lead_over_sparse_s: self.lead_over_sparse(lane, places),
        })
    }

    fn lead_over_sparse(&self, lane: usize, places: &[Place]) -> Option<Spread> {
        let sparse = self.names().iter().position(|name| name == SPARSE)?;
        if sparse == lane || sparse == self.base() {
            return None;
        }
        let last = places.len().checked_sub(1)?;
        let sum = |repeat: &Repeat, lane: usize| repeat.sums(lane, lane, places).0.get(last)?.ttft_sum;
        Spread::of(self.all().iter().map(|repeat| Some(sum(repeat, sparse)? - sum(repeat, lane)?)))
    }
}
