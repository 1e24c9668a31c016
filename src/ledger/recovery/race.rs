//! Who is sooner: the next request, or the job.

use serde::Serialize;

use super::JobFacts;
use crate::config::RecoveryConfig;
use crate::event::{Nanos, Phase, Stamp};
use crate::ledger::Ledger;
use crate::recovery::job::Mode;

/// The gaps of a session so far.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Gaps {
    /// The median, seconds.
    pub p50_s: f64,
    /// How many it is of.
    pub count: usize,
}

/// A job against the next arrival. Nobody knows when that will be: it is estimated from the gaps so far.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Race {
    /// The gaps.
    pub gaps: Gaps,
    /// Seconds until the next arrival, by their median; 0 where it is overdue.
    pub arrival_s: f64,
    /// Tokens that jobs have computed in a second of service so far.
    pub rate: f64,
    /// Seconds of service that the budget leaves it until then.
    pub service_s: f64,
    /// Tokens it will have committed by then, whole blocks.
    pub reaches: u64,
    /// Tokens it is to recover.
    pub target: u64,
}

impl Race {
    /// Whether the job reaches its target first.
    pub fn job_wins(&self) -> bool {
        self.reaches >= self.target
    }
}

impl Ledger {
    /// The gaps between requests so far, as the session has them; `None` without any.
    pub fn gaps(&self) -> Option<Gaps> {
        let line = self.requests().filter(|request| request.turn > 1 && !request.is_side());
        let mut gaps: Vec<f64> = line.filter_map(|request| Some(request.idle?.seconds())).collect();
        gaps.sort_by(f64::total_cmp);
        let middle = gaps.len().checked_sub(1)? / 2;
        let upper = gaps.len() / 2;
        Some(Gaps { p50_s: f64::midpoint(gaps[middle], gaps[upper]), count: gaps.len() })
    }

    /// Who is sooner. `None` where no job is under way, none has computed anything yet, or no gap was seen.
    pub fn race(&self) -> Option<Race> {
        let job = self.recovery.open()?;
        let facts = self.run.as_ref()?.recovery.as_ref()?;
        let gaps = self.gaps()?;
        let (target, committed) = job.target.zip(job.committed)?;
        let computed = self.recovery.jobs().fold(0, |sum: u64, job| sum.saturating_add(job.computed()));
        let spent: f64 = self.recovery.jobs().map(|job| job.spent().seconds()).sum();
        let rate = computed as f64 / spent;
        if !rate.is_finite() || rate <= 0.0 {
            return None;
        }
        let arrival_s = (gaps.p50_s - self.idle_for()).max(0.0);
        let service_s = service_within(job, facts, self.now, arrival_s);
        let stands = job.processed.unwrap_or(committed).max(committed);
        let block = self.run.as_ref()?.block_tokens.max(1);
        let computed = stands.saturating_add((rate * service_s) as u64).min(target);
        let reaches = match facts.mode {
            _ if computed >= target => target,
            Mode::Progressive => (computed / block * block).max(committed),
            Mode::Terminal => committed,
        };
        Some(Race { gaps, arrival_s, rate, service_s, reaches, target })
    }

    /// For how many seconds no request has run; 0 while one does.
    fn idle_for(&self) -> f64 {
        let ended = |request: &crate::ledger::RequestFacts| match request.phase {
            Phase::Done => {
                let took = request.took.map_or(0, |time| time.0);
                Some(Stamp(request.arrived_at.0.saturating_add(took)))
            }
            _ => None,
        };
        let mut latest = Some(Stamp(0));
        for request in self.requests() {
            latest = latest.zip(ended(request)).map(|(a, b)| a.max(b));
        }
        latest.map_or(0.0, |ended| self.now.since(ended).seconds())
    }
}

/// Seconds of service that the budget leaves `job` in the next `within` seconds. When the running window ends is known only while the job waits for
/// that; otherwise the windows to come count by their share of the time.
fn service_within(job: &JobFacts, facts: &RecoveryConfig, now: Stamp, within: f64) -> f64 {
    let budget = job.budget.as_ref();
    let allowance =
        budget.map_or(facts.window_s * facts.budget_pct / 100.0, |reading| reading.allowance.seconds());
    if facts.budget_pct >= 100.0 || facts.window_s <= 0.0 {
        return within;
    }
    let service = match job.waits.and_then(|waits| waits.left(now)) {
        Some(left) if left.seconds() >= within => 0.0,
        Some(left) => {
            let after = within - left.seconds();
            let whole = (after / facts.window_s).floor();
            whole * allowance + (after - whole * facts.window_s).min(allowance)
        }
        None => {
            let spent = budget.map_or(Nanos(0), |reading| reading.spent).seconds();
            (allowance - spent).max(0.0) + within / facts.window_s * allowance
        }
    };
    service.min(within)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Told, run_facts, under_way};
    use super::*;
    use crate::event::{Arrival, Body, FinishReason, JobId};
    use crate::recovery::standing::Why;

    /// A session of two turns, 20 s between them, the second over at `over` seconds and leaving a job that computes 1,000 tokens a second.
    fn told(budget_pct: f64, over: f64) -> Told {
        let mut told = Told::new();
        told.say(run_facts(budget_pct));
        told.under_way();
        told.at(16.0).say(Body::Finished { reason: FinishReason::Stop, took: Nanos::from_seconds(16.0) });
        let idle = Some(Nanos::from_seconds(20.0));
        told.next(Arrival { idle, prompt_tokens: 9_000, ..super::super::super::tests::arrival(2) });
        told.at(over)
            .say(Body::Finished { reason: FinishReason::Stop, took: Nanos::from_seconds(over - 16.0) });
        told
    }

    #[test]
    fn without_a_budget_the_whole_gap_is_the_jobs() {
        let told = told(100.0, 20.0);
        let race = told.ledger.race().unwrap();
        assert_eq!((race.gaps.count, race.gaps.p50_s, race.arrival_s), (1, 20.0, 20.0));
        assert!((race.rate - 2_048.0 / 2.5).abs() < 1.0, "{race:?}");
        assert_eq!((race.reaches, race.job_wins()), (8_192, true));
    }

    #[test]
    fn a_spent_window_leaves_nothing_until_the_next() {
        let mut told = told(10.0, 20.0);
        let wait = |left| Body::RecoveryWaits {
            job: JobId(1),
            why: Some(Why::BudgetSpent),
            next_window: Some(Nanos::from_seconds(left)),
        };
        told.say(wait(25.0));
        let race = told.ledger.race().unwrap();
        assert_eq!((race.service_s, race.reaches, race.job_wins()), (0.0, 7_168, false));
        told.say(wait(19.0));
        let race = told.ledger.race().unwrap();
        assert_eq!(race.service_s, 1.0, "a second of the next window is before the arrival");
    }

    #[test]
    fn without_a_gap_or_a_measured_rate_nobody_knows() {
        assert!(under_way().ledger.race().is_none(), "no gap was seen");
        let mut told = Told::new();
        told.say(run_facts(100.0)).request(8_200, 0, 0).stored(5_120);
        told.considered(crate::event::DebtTaken::Began { job: JobId(1) }, 5_120, 8_192);
        let idle = Some(Nanos::from_seconds(20.0));
        told.next(Arrival { idle, ..super::super::super::tests::arrival(2) });
        assert!(told.ledger.gaps().is_some() && told.ledger.race().is_none(), "nothing was computed yet");
    }
}
