//! What recovery was worth: seconds it saved later requests, less those it computed and those it was in somebody's way.
//!
//! Beside the line of history as it was goes the line as it would have been: a checkpoint that only requests brought forward, each by the route it
//! would have taken. What a request saved is the cost of its suffix behind that checkpoint less the cost of its suffix as it was, both on the run's
//! curves. It is credited to the jobs whose publications the checkpoint rests on, in proportion to their tokens.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{JobFacts, Reach};
use crate::event::{JobId, LaneId, Nanos, RequestId, Route};
use crate::ledger::{BreakEven, Ledger, PrefillCurve, RequestFacts};

/// What the seconds that a request saved rest on, worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SavedBy {
    /// It would have computed its suffix densely: the run's curve.
    Dense,
    /// It would have computed its suffix sparsely: the run's curves of scorer and target.
    Sparse,
    /// It would have computed its suffix sparsely, which nobody has measured: the dense curve stands in, and says too much.
    DenseForSparse,
}

impl SavedBy {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            SavedBy::Dense => "dense curve",
            SavedBy::Sparse => "sparse route, measured",
            SavedBy::DenseForSparse => "dense curve for a sparse route nobody measured",
        }
    }
}

/// What a request owes to a job.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Credit {
    /// The request.
    pub request: RequestId,
    /// Tokens of its checkpoint that the job published and that would not have been restorable otherwise.
    pub tokens: u64,
    /// Whether it is the first restore of all after a publication and found exactly its boundary. Otherwise some later restore found that much or
    /// more, which holds for ever once others have stored behind it.
    pub strict: bool,
    /// Seconds saved; negative where the route it took costs more. `None` without a curve.
    pub saved_s: Option<f64>,
    /// What they rest on.
    pub by: SavedBy,
}

/// The account of a job, or of all.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NetReturn {
    /// What later requests owe to it, in the order of arrival.
    pub credits: Vec<Credit>,
    /// Seconds saved them; `None` where one of them cannot be priced.
    pub saved_s: Option<f64>,
    /// Seconds computed: slices and publications.
    pub spent_s: f64,
    /// Seconds in which it was in the way of arrivals.
    pub delayed_s: f64,
}

impl NetReturn {
    /// Saved less spent less delayed, seconds.
    pub fn seconds(&self) -> Option<f64> {
        Some(self.saved_s? - self.spent_s - self.delayed_s)
    }

    /// Tokens that requests owe to it.
    pub fn tokens(&self) -> u64 {
        self.credits.iter().fold(0, |sum, credit| sum.saturating_add(credit.tokens))
    }

    /// Requests that owe to it.
    pub fn requests(&self) -> usize {
        self.credits.iter().map(|credit| credit.request).collect::<BTreeSet<_>>().len()
    }

    /// What the worst of its credits rests on; `None` without any.
    pub fn by(&self) -> Option<SavedBy> {
        self.credits.iter().map(|credit| credit.by).max()
    }

    /// Credits that are strict.
    pub fn strict(&self) -> usize {
        self.credits.iter().filter(|credit| credit.strict).count()
    }

    fn of(job: &JobFacts, credits: Vec<Credit>, delayed: Nanos) -> NetReturn {
        NetReturn {
            saved_s: sum(credits.iter().map(|credit| credit.saved_s)),
            credits,
            spent_s: job.spent().seconds(),
            delayed_s: delayed.seconds(),
        }
    }
}

fn sum(seconds: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    seconds.sum()
}

/// The line of history as it would have been.
#[derive(Debug, Default)]
struct Without {
    /// Tokens that would be restorable.
    canonical: u64,
    /// Where the scorer's window of the request before would have begun, and where it would have ended.
    window: Option<(u64, u64)>,
}

/// What a request would have had to compute.
struct Counterfactual {
    checkpoint: u64,
    sparse: bool,
    /// Tokens of the window that the scorer would have restored.
    draft_cached: u64,
}

impl Without {
    fn take(&mut self, request: &RequestFacts, prompt: u64, checkpoint: u64) -> Counterfactual {
        let common = request.restore.as_ref().and_then(|restore| restore.common_prefix_tokens).unwrap_or(0);
        let would = self.canonical.min(common).min(checkpoint);
        let sparse = goes_sparse(request, prompt, would);
        let origin = would.max(protected(request));
        let warm = self.window.filter(|(before, _)| *before == origin);
        let draft_cached = warm.map_or(0, |(_, end)| end.min(common).saturating_sub(origin));
        self.window = sparse.then_some((origin, prompt));
        let left = request.canonical_tokens.unwrap_or(would);
        self.canonical = match (sparse, request.route == Some(Route::Sparse)) {
            // A dense request leaves what it left: all of it, but for what the cache dropped.
            (false, false) => left,
            // What a sparse one stores behind its checkpoint is a policy; it would have stored as much there.
            (true, true) => would.saturating_add(left.saturating_sub(checkpoint)),
            _ => would,
        };
        Counterfactual { checkpoint: would, sparse, draft_cached }
    }
}

fn protected(request: &RequestFacts) -> u64 {
    request.admission.as_ref().map_or(0, |admission| admission.protected_tokens)
}

/// Whether a suffix behind `checkpoint` would be computed sparsely, by the settings of the request.
fn goes_sparse(request: &RequestFacts, prompt: u64, checkpoint: u64) -> bool {
    let Some(admission) = &request.admission else { return request.route == Some(Route::Sparse) };
    let threshold = admission.settings.threshold.value;
    let to_score = prompt.saturating_sub(checkpoint.max(admission.protected_tokens));
    admission.settings.enabled.value && to_score > threshold
}

/// The run's curves.
struct Prices {
    dense: Option<PrefillCurve>,
    sparse: Option<BreakEven>,
}

impl Prices {
    /// Seconds to compute what is behind `checkpoint`, and whether the dense curve stood in for a sparse route.
    fn of(
        &self,
        request: &RequestFacts,
        prompt: u64,
        at: &Counterfactual,
        stand_in: bool,
    ) -> Option<(f64, SavedBy)> {
        let dense = |by| Some((self.dense?.seconds(at.checkpoint, prompt), by));
        match &self.sparse {
            _ if !at.sparse => dense(SavedBy::Dense),
            Some(curves) if !stand_in => {
                let keep = request.admission.as_ref().map_or(1.0, |admission| admission.settings.keep.value);
                let origin = at.checkpoint.max(protected(request)).min(prompt);
                let window = prompt - origin;
                let kept = ((window as f64 * keep).ceil() as u64).max(window.min(curves.tail_tokens));
                let kept = kept.saturating_add(origin.saturating_sub(at.checkpoint));
                let gain = curves.compare(
                    at.checkpoint,
                    prompt.saturating_sub(at.checkpoint),
                    window,
                    at.draft_cached,
                    kept,
                );
                Some((gain.sparse().seconds, SavedBy::Sparse))
            }
            _ => dense(SavedBy::DenseForSparse),
        }
    }

    /// Seconds that `request` saved, its checkpoint standing where it stands rather than where it would have stood.
    fn saved(&self, request: &RequestFacts, prompt: u64, would: &Counterfactual) -> (Option<f64>, SavedBy) {
        let did = Counterfactual {
            checkpoint: request.checkpoint().unwrap_or(0),
            sparse: request.route == Some(Route::Sparse),
            draft_cached: request.scored.as_ref().map_or(0, |scored| scored.draft_cached_tokens),
        };
        // Both by the same curves: a sparse route is priced as one where that was measured, and for both or neither.
        let stand_in = self.sparse.is_none();
        let costs = self.of(request, prompt, would, stand_in).zip(self.of(request, prompt, &did, stand_in));
        let by = match (would.sparse, stand_in) {
            (false, _) => SavedBy::Dense,
            (true, false) => SavedBy::Sparse,
            (true, true) => SavedBy::DenseForSparse,
        };
        (costs.map(|((would, _), (did, _))| would - did), by)
    }
}

impl Ledger {
    /// What every request owes to every job, by job.
    fn credits(&self) -> BTreeMap<JobId, Vec<Credit>> {
        let mut credits: BTreeMap<JobId, Vec<Credit>> = BTreeMap::new();
        if self.recovery.jobs.values().any(|job| job.published().next().is_some()) {
            let prices = Prices { dense: self.prefill_curve(), sparse: self.break_even() };
            for lane in self.lanes.keys() {
                self.credit_lane(*lane, &prices, &mut credits);
            }
        }
        credits.values_mut().for_each(|own| own.sort_by_key(|credit| credit.request));
        credits
    }

    fn credit_lane(&self, lane: LaneId, prices: &Prices, credits: &mut BTreeMap<JobId, Vec<Credit>>) {
        let (mut without, mut reach) = (Without::default(), Reach::default());
        for request in self.history(lane).into_iter().filter(|request| !request.is_side()) {
            let Some((prompt, checkpoint)) = request.prompt_tokens.zip(request.checkpoint()) else {
                continue;
            };
            reach.arrive(request);
            let would = without.take(request, prompt, checkpoint);
            reach.pass(request);
            let owed = would.checkpoint..checkpoint;
            if request.lane != lane || owed.is_empty() {
                continue;
            }
            let same = |other| reach.of(request, other);
            let published =
                |job: &JobFacts| self.recovery.published_before(request.id, Some(job.id), &owed, same);
            let shares: Vec<(JobId, u64)> =
                self.recovery.jobs().map(|job| (job.id, published(job))).filter(|(_, n)| *n > 0).collect();
            let all: u64 = shares.iter().fold(0, |sum, (_, tokens)| tokens.saturating_add(sum));
            let (saved, by) = prices.saved(request, prompt, &would);
            for (job, tokens) in shares {
                let saved_s = saved.map(|seconds| seconds * tokens as f64 / all as f64);
                let strict = self.recovery.is_strict(job, request.id, checkpoint);
                credits.entry(job).or_default().push(Credit {
                    request: request.id,
                    tokens,
                    strict,
                    saved_s,
                    by,
                });
            }
        }
    }

    /// What every job was worth, those that died among them, in their order.
    pub fn net_returns(&self) -> Vec<(JobId, NetReturn)> {
        let mut credits = self.credits();
        let of = |job: &JobFacts| {
            let own = credits.remove(&job.id).unwrap_or_default();
            (job.id, NetReturn::of(job, own, self.recovery.delayed_by(job.id)))
        };
        self.recovery.jobs().map(of).collect()
    }

    /// What all of recovery was worth so far; `None` without a job.
    pub fn net_return(&self) -> Option<NetReturn> {
        let jobs = self.net_returns().into_iter().map(|(_, account)| account);
        let mut all = jobs.reduce(|sum, one| NetReturn {
            credits: [sum.credits, one.credits].concat(),
            saved_s: sum.saved_s.zip(one.saved_s).map(|(a, b)| a + b),
            spent_s: sum.spent_s + one.spent_s,
            delayed_s: 0.0,
        })?;
        // Whatever was in somebody's way, whether or not its job is known.
        let delays = self.recovery.collisions().iter().map(|collision| collision.delayed.seconds());
        all.delayed_s = delays.sum();
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Told, under_way};
    use super::*;
    use crate::event::{Body, DebtTaken};
    use crate::recovery::job::End;

    /// Prefill at a millisecond a token.
    fn measured(told: &mut Told) -> &mut Told {
        told.say(Body::PrefillProgress {
            done: 1_000,
            total: 1_000,
            shrunk: None,
            device: None,
            took: Some(Nanos::from_seconds(1.0)),
        })
    }

    #[test]
    fn what_a_request_restores_of_a_publication_is_saved_and_the_rest_is_not() {
        let mut told = under_way();
        told.at(16.0).request(9_000, 8_200, 7_168);
        measured(&mut told).stored(8_960);
        let (_, account) = told.ledger.net_returns().remove(0);
        assert_eq!(account.tokens(), 2_048);
        assert_eq!((account.saved_s, account.spent_s), (Some(2.048), 2.5 + 2e-9));
        assert!(account.seconds().unwrap() < 0.0, "it computed for longer than it saved");
        // The dense request stored all of its prompt itself, so the next one owes nothing any more.
        told.request(9_500, 9_000, 8_960).stored(9_472);
        assert_eq!(told.ledger.net_returns()[0].1.credits.len(), 1);
    }

    #[test]
    fn without_a_curve_nothing_has_a_price_and_without_credit_nothing_was_saved() {
        let mut told = under_way();
        assert_eq!(told.ledger.net_return().unwrap().saved_s, Some(0.0));
        told.at(16.0).request(9_000, 8_200, 7_168);
        let account = told.ledger.net_return().unwrap();
        assert_eq!((account.tokens(), account.saved_s, account.seconds()), (2_048, None, None));
        assert_eq!(Told::new().ledger.net_return(), None);
    }

    #[test]
    fn a_job_that_died_has_its_return_like_any_other() {
        let mut told = under_way();
        told.ended(1, End::CacheReset, 8_192, 7_168).at(16.0).delayed(9_000, 8_200, 7_168, Some(0.5));
        measured(&mut told);
        let account = told.ledger.net_return().unwrap();
        assert_eq!((account.saved_s, account.delayed_s), (Some(2.048), 0.5));
        let row = told.ledger.rows().remove(0).recovery.unwrap();
        assert_eq!(row.drop_reason, Some(End::CacheReset));
        assert!(row.net_return_s.is_some());
    }

    #[test]
    fn only_the_first_restore_that_finds_exactly_the_boundary_is_strict() {
        let mut told = under_way();
        let sparse = Body::Routed { route: Route::Sparse, uncached_suffix: 1_832 };
        told.request(9_000, 8_200, 7_168).say(sparse).stored(7_168).request(10_000, 9_000, 7_168);
        let strict: Vec<_> = told.ledger.net_returns()[0].1.credits.iter().map(|c| c.strict).collect();
        assert_eq!(strict, [true, false]);
        let mut told = under_way();
        told.request(9_000, 8_200, 6_144);
        assert!(!told.ledger.net_returns()[0].1.credits[0].strict, "it found less than the last boundary");
    }

    #[test]
    fn two_jobs_share_what_rests_on_both() {
        let mut told = under_way();
        told.ended(1, End::Replaced, 8_192, 7_168);
        told.considered(DebtTaken::Began { job: JobId(2) }, 7_168, 8_192).published(2, 8_192);
        told.request(9_000, 8_200, 8_192);
        measured(&mut told);
        let saved: Vec<_> = told.ledger.net_returns().iter().map(|(_, account)| account.saved_s).collect();
        assert_eq!(saved, [Some(2.048), Some(1.024)]);
    }
}
