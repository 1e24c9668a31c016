//! Background recovery, told: which debts are taken on, every slice, every publication, and every way in which something is given up.
//!
//! The event's request is the one whose debt is being paid: of a job that went on to a longer prompt, the latest.

use serde::{Deserialize, Serialize};

use super::Nanos;
use crate::recovery::job::{Declined, End, Tally};
use crate::recovery::standing::Why;

/// A recovery job, numbered from 1 in its engine's run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub u64);

/// What became of the debt of a request that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "taken", rename_all = "snake_case")]
pub enum DebtTaken {
    /// Nobody pays it: why.
    Declined {
        /// Why.
        why: Declined,
    },
    /// A job began.
    Began {
        /// The job.
        job: JobId,
    },
    /// A job of the same history goes on to a later target.
    Extended {
        /// The job.
        job: JobId,
        /// Its target before.
        from: u64,
    },
    /// A job recovers all of it already.
    Covered {
        /// The job.
        job: JobId,
    },
    /// A job began in place of one of another history.
    Replaced {
        /// The job.
        job: JobId,
        /// The one that made room.
        replaced: JobId,
    },
    /// The policy keeps the job of another history that is under way.
    LeftOut {
        /// The job that goes on.
        job: JobId,
    },
}

impl DebtTaken {
    /// The job that pays it.
    pub fn job(self) -> Option<JobId> {
        match self {
            DebtTaken::Began { job }
            | DebtTaken::Extended { job, .. }
            | DebtTaken::Covered { job }
            | DebtTaken::Replaced { job, .. } => Some(job),
            DebtTaken::Declined { .. } | DebtTaken::LeftOut { .. } => None,
        }
    }
}

/// A request's debt, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DebtConsidered {
    /// What became of it.
    #[serde(flatten)]
    pub taken: DebtTaken,
    /// Tokens that the job is to recover: the whole blocks of the prompt.
    pub target_tokens: u64,
    /// Of these, tokens that were restorable when the request had ended.
    pub canonical_tokens: u64,
}

/// Steps of the engine's loop while a job had something left to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Steps {
    /// All of them.
    pub runnable: u64,
    /// Those in which a slice ran.
    pub scheduled: u64,
    /// Those in which something else came first. Waiting for a window costs no step.
    pub yielded: u64,
    /// Those in which live state was built from what is published, of the scheduled.
    pub resumed: u64,
}

/// The budget after a slice, or while one waits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BudgetReading {
    /// Engines that charge it.
    pub owners: u64,
    /// Windows that have ended.
    pub windows: u64,
    /// Spent in the running window, what was carried into it included.
    pub spent: Nanos,
    /// Tokens of the same.
    pub spent_tokens: u64,
    /// Of that, carried into it.
    pub carried: Nanos,
    /// Wall time that a window may take.
    pub allowance: Nanos,
    /// Tokens that it may take, where their number is bounded.
    pub allowance_tokens: Option<u64>,
    /// Everything ever charged, by all engines.
    pub service: Nanos,
}

/// A slice that ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecoverySlice {
    /// Its job.
    pub job: JobId,
    /// Tokens that live state stood after before it.
    pub from: u64,
    /// Tokens it stands after now: fewer than `wanted` where the slice gave way.
    pub to: u64,
    /// Tokens it was to compute up to.
    pub wanted: u64,
    /// Time it took, the restore before it included.
    pub took: Nanos,
    /// Tokens restored for it, where live state was built anew.
    pub restored: Option<u64>,
    /// Why it gave way, where it did.
    pub gave_way: Option<Why>,
    /// The job's steps by now.
    pub steps: Steps,
    /// The budget by now.
    pub budget: BudgetReading,
}

/// A publication.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Publication {
    /// Its job.
    pub job: JobId,
    /// Tokens that were to be published.
    pub boundary: u64,
    /// Tokens that the store says it holds.
    pub stored: u64,
    /// Tokens that the lookup which serves requests found afterwards.
    pub read_back: u64,
    /// Tokens that are committed now.
    pub committed: u64,
    /// Tokens that the next request of this history is shown.
    pub visible: u64,
    /// Time of the store and the lookup.
    pub took: Nanos,
}

/// A job that is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEnded {
    /// The job.
    pub job: JobId,
    /// How.
    pub end: End,
    /// In words, where there is more to say.
    pub detail: Option<String>,
    /// Tokens it was to recover.
    pub target: u64,
    /// Tokens it published.
    pub committed: u64,
    /// What it has done.
    pub tally: Tally,
    /// Its steps.
    pub steps: Steps,
}
