//! Background recovery in the list of events.

use super::safe;
use crate::event::{Body, JobEnded, JobId, Publication};
use crate::event::{BudgetReading, DebtTaken, Nanos, RecoverySlice};
use crate::tui::text::{duration, thousands};

/// The name and the figures of an event of recovery; `None` of any other.
pub(super) fn describe(body: &Body) -> Option<(&'static str, String)> {
    Some(match body {
        Body::DebtConsidered(considered) => {
            let (canonical, target) =
                (thousands(considered.canonical_tokens), thousands(considered.target_tokens));
            ("debt_considered", format!("{}; {canonical} of {target} restorable", taken(considered.taken)))
        }
        Body::RecoverySlice(slice) => ("recovery_slice", of_slice(slice)),
        Body::Published(publication) => ("published", of_publication(publication)),
        Body::Retired { job, why, tokens } => (
            "retired",
            format!("{}: {}; {} tokens not published go", name(*job), why.words(), thousands(*tokens)),
        ),
        Body::CommitLowered { job, from, to } => (
            "commit_lowered",
            format!(
                "{}: {} were committed, the cache restores {}",
                name(*job),
                thousands(*from),
                thousands(*to)
            ),
        ),
        Body::RecoveryWaits { job, why, next_window } => ("recovery_waits", waits(*job, *why, *next_window)),
        Body::RecoveryEnded(ended) => ("recovery_ended", of_end(ended)),
        Body::RecoverySet { enabled } => {
            ("recovery_set", format!("switched {} by hand", if *enabled { "on" } else { "off" }))
        }
        _ => return None,
    })
}

fn name(job: JobId) -> String {
    format!("job {}", job.0)
}

fn taken(taken: DebtTaken) -> String {
    match taken {
        DebtTaken::Declined { why } => format!("declined, {}", why.words()),
        DebtTaken::Began { job } => format!("{} begins", name(job)),
        DebtTaken::Extended { job, from } => format!("{} goes on beyond {}", name(job), thousands(from)),
        DebtTaken::Covered { job } => format!("{} recovers it already", name(job)),
        DebtTaken::Replaced { job, replaced } => {
            format!("{} takes the place of {}", name(job), name(replaced))
        }
        DebtTaken::LeftOut { job } => format!("left out, {} goes on", name(job)),
    }
}

fn of_slice(slice: &RecoverySlice) -> String {
    let tokens = format!("{}–{}", thousands(slice.from), thousands(slice.to));
    let restored = slice.restored.map_or_else(String::new, |n| format!(", {} restored for it", thousands(n)));
    let gave_way = slice.gave_way.map_or_else(String::new, |why| {
        format!(", gave way before {}: {}", thousands(slice.wanted), why.words())
    });
    let took = duration(Some(slice.took));
    format!("{}: {tokens} in {took}{restored}{gave_way}; {}", name(slice.job), of_budget(&slice.budget))
}

fn of_budget(budget: &BudgetReading) -> String {
    let (spent, allowed) = (duration(Some(budget.spent)), duration(Some(budget.allowance)));
    format!("window {}: {spent} of {allowed}", budget.windows + 1)
}

fn of_publication(publication: &Publication) -> String {
    let &Publication { job, boundary, stored, read_back, committed, visible, took } = publication;
    let found = match stored >= boundary && read_back >= boundary {
        true => "and read back".to_owned(),
        false => format!("stored {}, read back {}", thousands(stored), thousands(read_back)),
    };
    let shown = match visible < committed {
        true => format!(", of which requests see {}", thousands(visible)),
        false => String::new(),
    };
    format!("{}: {} {found} in {}{shown}", name(job), thousands(boundary), duration(Some(took)))
}

fn waits(job: JobId, why: Option<crate::recovery::standing::Why>, next_window: Option<Nanos>) -> String {
    let Some(why) = why else { return format!("{} goes on", name(job)) };
    let until = next_window.map_or_else(String::new, |left| format!(", {} left of it", duration(Some(left))));
    format!("{} waits: {}{until}", name(job), why.words())
}

fn of_end(ended: &JobEnded) -> String {
    let detail = ended.detail.as_ref().map_or_else(String::new, |detail| format!(" ({})", safe(detail)));
    format!(
        "{}: {}{detail}; {} of {} published, {} computed in {}",
        name(ended.job),
        ended.end.words(),
        thousands(ended.committed),
        thousands(ended.target),
        thousands(ended.tally.computed),
        duration(Some(ended.tally.service))
    )
}
