//! Debt: what a request leaves for those after it to compute again.
//!
//! *Canonical debt* is the part of a prompt that is not restorable when its request has ended. *Prefix-cache debt* is the running total of
//! tokens computed while the checkpoint stays behind a cliff: an observation, no claim of what would have been otherwise.
//! Of a suffix, the *recomputed* tokens are those that somebody had computed already: an earlier request of the run,
//! or one of an earlier run whose state is still there.

use serde::Serialize;

use super::recovery::Reach;
use super::verdict::{CheckpointStep, Standing, Walk};
use super::{Ledger, PrefillCurve, RequestFacts};
use crate::event::{LaneId, RequestId};

/// Who computed tokens that brought the canonical prefix forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Payer {
    /// The request itself, in its prefill, while somebody waited.
    Foreground,
    /// A background job, while nobody did.
    Recovery,
}

/// The debt account of one request. A field is `None` where what it rests on was not observed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DebtEntry {
    /// The request.
    pub request: RequestId,
    /// Longest restorable prefix of its prompt when it arrived: its checkpoint.
    pub canonical_before: Option<u64>,
    /// The same when it had ended.
    pub canonical_after: Option<u64>,
    /// `prompt_tokens − canonical_after`.
    pub canonical_debt: Option<u64>,
    /// What the request before it in the line of history owed when that ended, as far as this one made it restorable; tokens that are new with
    /// this request repay nothing. `None` beside the line.
    pub repaid_tokens: Option<u64>,
    /// Of that, what a background job had published by the time this request was restored; `None` as above.
    pub recovered_tokens: Option<u64>,
    /// Who repaid it, recovery where it repaid any of it; `None` where nothing was.
    pub paid_by: Option<Payer>,
    /// Tokens of the suffix that an earlier request had computed already.
    pub recomputed_tokens: Option<u64>,
    /// What those cost, on the run's curve.
    pub recomputed_s: Option<f64>,
    /// Running total of suffix tokens since the cliff, this request's included; 0 while the checkpoint is not behind one, `None`
    /// beside the line of history.
    pub prefix_cache_debt: Option<u64>,
    /// What that total cost, on the run's curve.
    pub prefix_cache_debt_s: Option<f64>,
    /// Requests in a row with this checkpoint, this one included; 0 beside the line of history.
    pub pinned_requests: u32,
}

impl DebtEntry {
    /// Requests in a row from which on a checkpoint with a growing suffix counts as pinned.
    pub const PINNED: u32 = CheckpointStep::PINNED;
}

/// The prefix-cache debt along a line of history: tokens, and seconds where there is a curve.
#[derive(Debug, Clone, Copy)]
struct RunningDebt {
    tokens: Option<u64>,
    seconds: Option<f64>,
}

impl RunningDebt {
    const NONE: RunningDebt = RunningDebt { tokens: Some(0), seconds: Some(0.0) };

    /// The debt with `standing`'s request. A suffix that nobody observed leaves the total unknown until the cliff has healed.
    fn with(self, standing: &Standing<'_>, curve: Option<PrefillCurve>) -> RunningDebt {
        if !standing.behind {
            return RunningDebt::NONE;
        }
        let seconds = curve
            .zip(standing.request.prompt_tokens)
            .map(|(curve, prompt)| curve.seconds(standing.checkpoint, prompt));
        RunningDebt {
            tokens: self.tokens.zip(standing.request.suffix()).map(|(sum, more)| sum.saturating_add(more)),
            seconds: self.seconds.zip(seconds).map(|(sum, more)| sum + more),
        }
    }
}

impl Ledger {
    /// What a prefill costs by this run's own chunks, or by whole prefills where no chunk was timed by itself. `None`
    /// before any was measured.
    pub fn prefill_curve(&self) -> Option<PrefillCurve> {
        self.chunk_curve.curve().or_else(|| self.prefill_curve.curve())
    }

    /// The debt account of a lane's history, one entry a request that was restored.
    pub fn debt(&self, lane: LaneId) -> Vec<DebtEntry> {
        self.accounts(lane).into_iter().map(|(_, entry)| entry).collect()
    }

    /// The debt account, each entry beside the step of the checkpoint.
    pub(super) fn accounts(&self, lane: LaneId) -> Vec<(Option<CheckpointStep>, DebtEntry)> {
        let curve = self.prefill_curve();
        let mut walk = Walk::default();
        let mut running = RunningDebt::NONE;
        let mut owed = Some(0);
        let mut left = None;
        let mut reach = Reach::default();
        let restored = self.history(lane).into_iter().filter(|request| request.restore.is_some());
        let account = |request: &RequestFacts| {
            let mut entry = own_entry(request, curve);
            let Some(standing) = walk.take(request) else { return (None, entry) };
            running = running.with(&standing, curve);
            entry.prefix_cache_debt = running.tokens;
            entry.prefix_cache_debt_s = running.seconds.filter(|_| running.tokens.is_some());
            entry.pinned_requests = standing.pinned;
            reach.arrive(request);
            let gained = entry.canonical_after.zip(entry.canonical_before);
            let gained = gained.map(|(after, before)| after.saturating_sub(before));
            let recovered = self.recovered_between(&reach, request, left);
            entry.repaid_tokens =
                gained.zip(owed).map(|(gained, owed)| gained.saturating_add(recovered).min(owed));
            entry.recovered_tokens = entry.repaid_tokens.map(|repaid| recovered.min(repaid));
            entry.paid_by = match (entry.recovered_tokens, entry.repaid_tokens) {
                (Some(1..), _) => Some(Payer::Recovery),
                (_, Some(1..)) => Some(Payer::Foreground),
                _ => None,
            };
            (owed, left) = (entry.canonical_debt, entry.canonical_after);
            reach.pass(request);
            (standing.step(), entry)
        };
        restored.map(account).collect()
    }

    /// Tokens of `request`'s checkpoint behind `left`, the canonical prefix that the request before it left, which a background job published.
    fn recovered_between(&self, reach: &Reach, request: &RequestFacts, left: Option<u64>) -> u64 {
        let Some((left, checkpoint)) = left.zip(request.checkpoint()) else { return 0 };
        let same = |other| reach.of(request, other);
        self.recovery.published_before(request.id, None, &(left..checkpoint), same)
    }
}

/// What `request`'s own facts say of its debt.
fn own_entry(request: &RequestFacts, curve: Option<PrefillCurve>) -> DebtEntry {
    let (before, after) = (request.checkpoint(), request.canonical_tokens);
    let recomputed = request.recomputed_tokens();
    let priced = curve.zip(before).zip(recomputed);
    DebtEntry {
        request: request.id,
        canonical_before: before,
        canonical_after: after,
        canonical_debt: request.canonical_debt(),
        repaid_tokens: None,
        recovered_tokens: None,
        paid_by: None,
        recomputed_tokens: recomputed,
        recomputed_s: priced.map(|((curve, from), tokens)| curve.seconds(from, from.saturating_add(tokens))),
        prefix_cache_debt: None,
        prefix_cache_debt_s: None,
        pinned_requests: 0,
    }
}

impl RequestFacts {
    /// Tokens of the suffix that somebody had computed already. `None` where no request came before.
    pub fn recomputed_tokens(&self) -> Option<u64> {
        let restore = self.restore.as_ref()?;
        let closest = restore.closest.map(|closest| closest.common_tokens);
        let shared = restore.common_prefix_tokens.max(closest)?;
        let known = shared.max(restore.matched_tokens).min(self.prompt_tokens?);
        Some(known.saturating_sub(restore.checkpoint_tokens))
    }
}
