//! Background recovery, as far as it was told: every debt and what became of it, every job, every arrival that found a slice in its way.
//!
//! The fold keeps what happened; what it was worth is in [`NetReturn`], who is sooner in [`Race`], and what it did to requests in [`Protection`].

mod net_return;
mod pace;
mod protection;
mod race;
mod reach;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::Serialize;

use super::Ledger;
use crate::event::{
    Body, BudgetReading, DebtConsidered, DebtTaken, Event, JobEnded, JobId, Nanos, Publication,
    RecoverySlice, RequestId, Stamp, Steps,
};
use crate::recovery::job::{Declined, End, Tally};
use crate::recovery::standing::Why;
pub use net_return::{Credit, NetReturn, SavedBy};
pub use pace::{Pace, PaceClass};
use protection::Latencies;
pub use protection::{Protection, Sides};
pub use race::{Gaps, Race};
pub(super) use reach::Reach;
use reach::covered;

/// A recovery job. A field is `None` where its beginning was not seen.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobFacts {
    /// The job.
    pub id: JobId,
    /// The requests whose debt it pays, oldest first: a later prompt of the same history extends it.
    pub requests: Vec<RequestId>,
    /// When it began.
    pub began: Stamp,
    /// Tokens it is to recover: the whole blocks of the latest prompt.
    pub target: Option<u64>,
    /// Of these, tokens that were restorable when it began.
    pub committed_at_start: Option<u64>,
    /// Tokens that are published and restorable.
    pub committed: Option<u64>,
    /// Of these, tokens that the next request is shown; `None` before a publication.
    pub visible: Option<u64>,
    /// Tokens that are published or stand in live state.
    pub processed: Option<u64>,
    /// Steps of the engine's loop while it had something left to do.
    pub steps: Steps,
    /// Its slices, oldest first.
    pub slices: Vec<SliceFacts>,
    /// What it published or tried to, oldest first.
    pub publications: Vec<PublicationFacts>,
    /// When live state was given up, oldest first.
    pub retirements: Vec<RetirementFacts>,
    /// When the cache turned out to restore less than was committed, oldest first.
    pub lowered: Vec<LoweredFacts>,
    /// What it waits for, while it does.
    pub waits: Option<WaitFacts>,
    /// How long it has waited for what, the wait under way not included.
    pub waited: BTreeMap<Why, Nanos>,
    /// The budget after its latest slice.
    pub budget: Option<BudgetReading>,
    /// How it ended; `None` while it has not.
    pub end: Option<EndFacts>,
}

/// A slice that ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SliceFacts {
    /// When it had ended.
    pub at: Stamp,
    /// Time it took, the restore before it included.
    pub took: Nanos,
    /// Tokens that live state stood after before it.
    pub from: u64,
    /// Tokens it stood after afterwards.
    pub to: u64,
    /// Tokens restored for it, where live state was built anew.
    pub restored: Option<u64>,
    /// Why it gave way, where it did.
    pub gave_way: Option<Why>,
}

impl SliceFacts {
    /// When it began.
    pub fn began(&self) -> Stamp {
        Stamp(self.at.0.saturating_sub(self.took.0))
    }

    /// Tokens it computed.
    pub fn computed(&self) -> u64 {
        self.to.saturating_sub(self.from)
    }
}

/// A publication, or an attempt at one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PublicationFacts {
    /// When.
    pub at: Stamp,
    /// The request whose debt was being paid.
    pub request: Option<RequestId>,
    /// Tokens that were committed before; the boundary itself where nobody told.
    pub from: u64,
    /// Tokens that were to be published.
    pub boundary: u64,
    /// Tokens that the store says it holds.
    pub stored: u64,
    /// Tokens that the lookup which serves requests found afterwards.
    pub read_back: u64,
    /// Tokens committed by it.
    pub committed: u64,
    /// Tokens that the next request is shown.
    pub visible: u64,
    /// Time of the store and the lookup.
    pub took: Nanos,
    /// Its place among all events, which orders it against a restore in the same instant.
    pub order: u64,
}

impl PublicationFacts {
    /// Whether it counts: it is stored and was found again.
    pub fn holds(&self) -> bool {
        self.stored >= self.boundary && self.read_back >= self.boundary
    }

    /// The tokens it made restorable.
    pub fn tokens(&self) -> Range<u64> {
        if self.holds() { self.from..self.committed.max(self.from) } else { self.from..self.from }
    }
}

/// Live state that was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RetirementFacts {
    /// When.
    pub at: Stamp,
    /// For what.
    pub why: Why,
    /// Tokens of it that were not published.
    pub tokens: u64,
}

/// Committed tokens that the cache lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LoweredFacts {
    /// When it was found out.
    pub at: Stamp,
    /// Tokens committed before.
    pub from: u64,
    /// Tokens committed then.
    pub to: u64,
}

/// A wait under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct WaitFacts {
    /// Since when.
    pub since: Stamp,
    /// For what.
    pub why: Why,
    /// Until the budget's next window, seen from there, where that is what it waits for.
    pub next_window: Option<Nanos>,
}

impl WaitFacts {
    /// What is left at `now` until the budget's next window.
    pub fn left(&self, now: Stamp) -> Option<Nanos> {
        let waited = now.since(self.since).0;
        Some(Nanos(self.next_window?.0.saturating_sub(waited)))
    }
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EndFacts {
    /// When.
    pub at: Stamp,
    /// How.
    pub end: End,
    /// In words, where there is more to say.
    pub detail: Option<String>,
    /// What it had done.
    pub tally: Tally,
}

/// A debt and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConsideredFacts {
    /// When.
    pub at: Stamp,
    /// The request that owes.
    pub request: Option<RequestId>,
    /// What became of it.
    pub considered: DebtConsidered,
}

/// An arrival that found background work in its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Collision {
    /// The request.
    pub request: Option<RequestId>,
    /// When it arrived.
    pub at: Stamp,
    /// How long it was in the way.
    pub delayed: Nanos,
    /// The job under way then, where one is known.
    pub job: Option<JobId>,
}

/// What a job has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// It runs, or has not told why not.
    Running,
    /// It waits.
    Waiting,
    /// All of its target is restorable.
    Complete,
    /// It ended before that.
    Dropped,
}

impl JobState {
    /// The word in tables.
    pub fn word(self) -> &'static str {
        match self {
            JobState::Running => "running",
            JobState::Waiting => "waiting",
            JobState::Complete => "complete",
            JobState::Dropped => "dropped",
        }
    }
}

impl JobFacts {
    fn unseen(id: JobId, at: Stamp) -> JobFacts {
        JobFacts {
            id,
            requests: Vec::new(),
            began: at,
            target: None,
            committed_at_start: None,
            committed: None,
            visible: None,
            processed: None,
            steps: Steps::default(),
            slices: Vec::new(),
            publications: Vec::new(),
            retirements: Vec::new(),
            lowered: Vec::new(),
            waits: None,
            waited: BTreeMap::new(),
            budget: None,
            end: None,
        }
    }

    /// What it has come to.
    pub fn state(&self) -> JobState {
        match (&self.end, &self.waits) {
            (Some(end), _) if matches!(end.end, End::Complete | End::NothingLeft) => JobState::Complete,
            (Some(_), _) => JobState::Dropped,
            (None, Some(_)) => JobState::Waiting,
            (None, None) => JobState::Running,
        }
    }

    /// Why it ended before all was published; `None` where it did not.
    pub fn drop_reason(&self) -> Option<End> {
        self.end.as_ref().map(|end| end.end).filter(|_| self.state() == JobState::Dropped)
    }

    /// Publications that count.
    pub fn published(&self) -> impl DoubleEndedIterator<Item = &PublicationFacts> {
        self.publications.iter().filter(|publication| publication.holds())
    }

    /// Compute time it has had: that of its slices.
    pub fn service(&self) -> Nanos {
        let told = self.end.as_ref().map_or(0, |end| end.tally.service.0);
        Nanos(self.slices.iter().fold(0, |sum: u64, slice| sum.saturating_add(slice.took.0)).max(told))
    }

    /// What the budget is charged with for it: slices, and stores with the lookup behind each.
    pub fn spent(&self) -> Nanos {
        let publications = self.publications.iter().map(|publication| publication.took.0);
        Nanos(publications.fold(self.service().0, u64::saturating_add))
    }

    /// Tokens it has computed, again or for the first time.
    pub fn computed(&self) -> u64 {
        let told = self.end.as_ref().map_or(0, |end| end.tally.computed);
        self.slices.iter().fold(0, |sum: u64, slice| sum.saturating_add(slice.computed())).max(told)
    }

    /// How long it has been there at `now`.
    pub fn age(&self, now: Stamp) -> Nanos {
        self.end.as_ref().map_or(now, |end| end.at).since(self.began)
    }

    /// What the budget is charged with for it, as a share of the wall time it was there; `None` where that is nothing.
    pub fn service_share(&self, now: Stamp) -> Option<f64> {
        let age = self.age(now).seconds();
        (age > 0.0).then(|| self.spent().seconds() / age)
    }

    fn end_wait(&mut self, at: Stamp) {
        let Some(wait) = self.waits.take() else { return };
        let waited = self.waited.entry(wait.why).or_default();
        waited.0 = waited.0.saturating_add(at.since(wait.since).0);
    }

    fn slice(&mut self, at: Stamp, slice: &RecoverySlice) {
        self.end_wait(at);
        self.processed = Some(slice.to);
        self.steps = slice.steps;
        self.budget = Some(slice.budget);
        self.slices.push(SliceFacts {
            at,
            took: slice.took,
            from: slice.from,
            to: slice.to,
            restored: slice.restored,
            gave_way: slice.gave_way,
        });
    }

    fn publication(&mut self, event: &Event, told: &Publication, order: u64) {
        let from = self.committed.unwrap_or(told.boundary);
        self.publications.push(PublicationFacts {
            at: event.at,
            request: event.request.or(self.requests.last().copied()),
            from,
            boundary: told.boundary,
            stored: told.stored,
            read_back: told.read_back,
            committed: told.committed,
            visible: told.visible,
            took: told.took,
            order,
        });
        (self.committed, self.visible) = (Some(told.committed), Some(told.visible));
        self.processed = self.processed.max(self.committed);
    }

    fn ended(&mut self, at: Stamp, told: &JobEnded) {
        self.end_wait(at);
        (self.target, self.steps) = (Some(told.target), told.steps);
        (self.committed, self.processed) = (Some(told.committed), Some(told.committed));
        self.end = Some(EndFacts { at, end: told.end, detail: told.detail.clone(), tally: told.tally });
    }
}

/// What the run has told of background recovery.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Recovery {
    jobs: BTreeMap<JobId, JobFacts>,
    considered: Vec<ConsideredFacts>,
    collisions: Vec<Collision>,
    by_hand: Option<bool>,
    /// Of every request, how many events came before its restore.
    restored: BTreeMap<RequestId, u64>,
    /// Requests that arrived while a job had something left to do, and the latencies of these and of the others.
    with_job: BTreeSet<RequestId>,
    beside: Latencies,
    alone: Latencies,
}

impl Recovery {
    /// The jobs, in order.
    pub fn jobs(&self) -> impl DoubleEndedIterator<Item = &JobFacts> + ExactSizeIterator {
        self.jobs.values()
    }

    /// One job.
    pub fn job(&self, id: JobId) -> Option<&JobFacts> {
        self.jobs.get(&id)
    }

    /// The job that has not ended, if there is one.
    pub fn open(&self) -> Option<&JobFacts> {
        self.jobs.values().rev().find(|job| job.end.is_none())
    }

    /// Debts and what became of them, oldest first.
    pub fn considered(&self) -> &[ConsideredFacts] {
        &self.considered
    }

    /// What became of a request's debt; `None` where nobody considered it.
    pub fn debt_of(&self, request: RequestId) -> Option<&DebtConsidered> {
        let of = |facts: &&ConsideredFacts| facts.request == Some(request);
        self.considered.iter().rev().find(of).map(|facts| &facts.considered)
    }

    /// How often a debt was declined, by reason: the reasons that occurred, in the order of [`Declined`].
    pub fn declines(&self) -> Vec<(Declined, usize)> {
        let count = |reason: Declined| {
            let declined = DebtTaken::Declined { why: reason };
            (reason, self.considered.iter().filter(|facts| facts.considered.taken == declined).count())
        };
        let all = [Declined::NotSparse, Declined::NoBudget, Declined::NothingOwed, Declined::Unrestorable];
        all.into_iter().map(count).filter(|(_, count)| *count > 0).collect()
    }

    /// Arrivals that found background work in their way, oldest first.
    pub fn collisions(&self) -> &[Collision] {
        &self.collisions
    }

    /// What the researcher set by hand.
    pub fn by_hand(&self) -> Option<bool> {
        self.by_hand
    }

    /// Whether anything was told of it.
    pub fn is_silent(&self) -> bool {
        self.jobs.is_empty() && self.considered.is_empty() && self.collisions.is_empty()
    }

    /// Tokens of `within` that `job`, or any where none is named, had published when `request` was restored; `reach` says how many tokens of a
    /// request's prompt are the same in this one's.
    pub(super) fn published_before(
        &self,
        request: RequestId,
        job: Option<JobId>,
        within: &Range<u64>,
        reach: impl Fn(RequestId) -> u64,
    ) -> u64 {
        let Some(order) = self.restored.get(&request) else { return 0 };
        let jobs = self.jobs.values().filter(|facts| job.is_none_or(|id| facts.id == id));
        let concerns = |told: &&PublicationFacts| {
            let tokens = told.tokens();
            told.order < *order && tokens.start < within.end && within.start < tokens.end
        };
        let publications = jobs.flat_map(JobFacts::published).filter(concerns);
        let reached = publications.map(|told| {
            let same = told.request.map_or(0, &reach);
            told.tokens().start..told.tokens().end.min(same)
        });
        covered(within, reached.collect())
    }

    /// Whether `request` was the first of all to be restored after a publication of `job`, and was so from exactly its boundary.
    fn is_strict(&self, job: JobId, request: RequestId, checkpoint: u64) -> bool {
        let Some(order) = self.restored.get(&request) else { return false };
        let mut before = self.job(job).into_iter().flat_map(JobFacts::published);
        let Some(last) = before.rfind(|told| told.order < *order) else { return false };
        let between = |other: &u64| (last.order..*order).contains(other);
        last.boundary == checkpoint && !self.restored.values().any(between)
    }

    /// How long `job` was in somebody's way.
    fn delayed_by(&self, job: JobId) -> Nanos {
        let own = self.collisions.iter().filter(|collision| collision.job == Some(job));
        Nanos(own.fold(0, |sum, collision| collision.delayed.0.saturating_add(sum)))
    }

    /// The latencies that those of `request` belong to.
    fn side_of(&mut self, request: RequestId) -> &mut Latencies {
        if self.with_job.contains(&request) { &mut self.beside } else { &mut self.alone }
    }

    /// Tokens of `request`'s own debt that its job has published: those behind what was restorable when it had ended, up to the whole blocks of its
    /// prompt. `None` where no job pays it.
    pub fn paid_tokens(&self, request: RequestId) -> Option<u64> {
        let facts = self.considered.iter().rev().find(|facts| facts.request == Some(request))?;
        let job = self.job(facts.considered.taken.job()?)?;
        let owed = facts.considered.canonical_tokens..facts.considered.target_tokens;
        Some(covered(&owed, job.published().map(PublicationFacts::tokens).collect()))
    }

    fn job_mut(&mut self, id: JobId, at: Stamp) -> &mut JobFacts {
        self.jobs.entry(id).or_insert_with(|| JobFacts::unseen(id, at))
    }

    /// Folds a fact of recovery in and says which request is linked to which job by it.
    fn apply(&mut self, event: &Event, order: u64) -> Option<(RequestId, JobId)> {
        let at = event.at;
        match &event.body {
            Body::DebtConsidered(considered) => return self.consider(event, considered),
            Body::RecoverySlice(slice) => self.job_mut(slice.job, at).slice(at, slice),
            Body::Published(publication) => {
                self.job_mut(publication.job, at).publication(event, publication, order)
            }
            Body::Retired { job: id, why, tokens } => {
                let job = self.job_mut(*id, at);
                job.retirements.push(RetirementFacts { at, why: *why, tokens: *tokens });
                job.processed = job.committed;
            }
            Body::CommitLowered { job: id, from, to } => {
                let job = self.job_mut(*id, at);
                job.lowered.push(LoweredFacts { at, from: *from, to: *to });
                (job.committed, job.processed) = (Some(*to), Some(*to));
                job.visible = job.visible.map(|visible| visible.min(*to));
            }
            Body::RecoveryWaits { job: id, why, next_window } => {
                let job = self.job_mut(*id, at);
                job.end_wait(at);
                job.waits = why.map(|why| WaitFacts { since: at, why, next_window: *next_window });
            }
            Body::RecoveryEnded(ended) => self.job_mut(ended.job, at).ended(at, ended),
            Body::RecoverySet { enabled } => self.by_hand = Some(*enabled),
            _ => {}
        }
        None
    }

    fn consider(&mut self, event: &Event, considered: &DebtConsidered) -> Option<(RequestId, JobId)> {
        let facts = ConsideredFacts { at: event.at, request: event.request, considered: considered.clone() };
        self.considered.push(facts);
        let id = considered.taken.job()?;
        let job = self.job_mut(id, event.at);
        job.requests.extend(event.request);
        match considered.taken {
            DebtTaken::Began { .. } | DebtTaken::Replaced { .. } => {
                job.began = event.at;
                job.target = Some(considered.target_tokens);
                job.committed_at_start = Some(considered.canonical_tokens);
                job.committed = Some(considered.canonical_tokens);
                job.processed = Some(considered.canonical_tokens);
            }
            DebtTaken::Extended { .. } => job.target = Some(considered.target_tokens),
            DebtTaken::Covered { .. } | DebtTaken::Declined { .. } | DebtTaken::LeftOut { .. } => {}
        }
        event.request.map(|request| (request, id))
    }

    /// Takes note of an arrival that was in background work's way for `delayed`, and of a restore.
    pub(super) fn note_request(&mut self, request: RequestId, event: &Event, order: u64) {
        match &event.body {
            Body::Arrived(arrival) => {
                let job = self.open().map(|job| job.id);
                if job.is_some() {
                    self.with_job.insert(request);
                }
                let Some(delayed) = arrival.delayed else { return };
                let at = Stamp(event.at.0.saturating_sub(delayed.0));
                self.collisions.push(Collision { request: Some(request), at, delayed, job });
            }
            Body::Restored(_) => {
                self.restored.insert(request, order);
            }
            _ => {}
        }
    }
}

impl Ledger {
    /// Background recovery.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Whether recovery is on: as it was set by hand, or else as the run began. `None` where neither was told.
    pub fn recovery_on(&self) -> Option<bool> {
        let at_start = || Some(self.run.as_ref()?.recovery.as_ref()?.enabled);
        self.recovery.by_hand.or_else(at_start)
    }

    /// Folds a fact of recovery in. The job is linked to the request; a request that nobody has told of stays unknown.
    pub(super) fn apply_to_recovery(&mut self, event: &Event) {
        let Some((request, job)) = self.recovery.apply(event, self.events) else { return };
        if let Some(request) = self.requests.get_mut(&request) {
            request.recovery = Some(job);
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
