//! Background recovery in words: what it is, how it is switched by hand, and what it waits for.

use std::borrow::Cow;

use super::app::{Effect, Model};
use super::text::duration;
use crate::config::RecoveryPolicy;
use crate::engine::Command;
use crate::event::Stamp;
use crate::ledger::{JobFacts, Ledger};
use crate::recovery::job::End;

/// What the words about recovery mean, for the help.
pub static WORDS: &[(&str, &str)] = &[
    ("job", "what a sparse request skipped is computed densely, while nobody waits"),
    ("slice", "what it computes at once; it gives way between two layers"),
    ("committed", "published, and found again by the lookup that serves requests"),
    ("processed", "computed on top of that in live state, which goes when anybody comes"),
    ("yielded", "steps in which something else came first"),
    ("window", "the time its budget is counted in; what is unused is not kept"),
    ("collision", "an arrival that had to wait until a slice gave way"),
    ("net return", "seconds saved later requests, less computed, less in their way"),
    ("strict", "the first restore after a publication found exactly its boundary"),
];

/// Why recovery cannot be switched by hand, if it cannot.
pub(super) fn obstacle(ledger: &Ledger) -> Result<(), Cow<'static, str>> {
    let Some(run) = ledger.run() else { return Err("the model is still loading".into()) };
    match run.recovery.as_ref().map(|facts| facts.policy) {
        None => Err("this engine tells of no recovery".into()),
        Some(policy @ (RecoveryPolicy::Never | RecoveryPolicy::Dense { .. })) => {
            Err(format!("recovery.policy is {policy}, which runs no job").into())
        }
        Some(_) => Ok(()),
    }
}

/// Switches it, of lanes in the one in focus.
pub(super) fn toggle(model: &Model) -> Vec<Effect> {
    let enabled = model.ledger().recovery_on() != Some(true);
    vec![model.send_to_focus(Command::Recovery { enabled })]
}

/// What is told once it was switched.
pub(super) fn set_words(ledger: &Ledger, enabled: bool) -> &'static str {
    let scorer = ledger.run().is_some_and(|run| run.specprefill.is_some());
    match (enabled, scorer) {
        (true, true) => "recovery on: the next sparse request leaves a debt that a job pays",
        (true, false) => "recovery on; without a scorer nothing is sparse, so nothing is owed",
        (false, _) => "recovery off: what was published stays",
    }
}

/// Whether an end says that something is wrong, rather than that history went another way.
pub(super) fn is_worrying(end: End) -> bool {
    match end {
        End::StoreFailed | End::ReadBackShort | End::OutOfMemory | End::DeviceFailed => true,
        End::Complete | End::NothingLeft | End::CacheReset | End::Replaced | End::Cancelled => false,
    }
}

/// What a job does now or waits for: the words, and what is left of a window.
pub(super) fn doing(job: &JobFacts, now: Stamp) -> String {
    if let Some(end) = &job.end {
        return match end.end {
            End::Complete => "complete: all of its target is published".to_owned(),
            End::NothingLeft => format!("over: {}", end.end.words()),
            _ => format!("DROPPED: {}", end.end.words()),
        };
    }
    let Some(waits) = &job.waits else {
        return match job.slices.is_empty() {
            true => "no slice yet: it begins as soon as nobody is served".to_owned(),
            false => "runs".to_owned(),
        };
    };
    let left = waits.left(now).map_or_else(String::new, |left| format!(", {} left", duration(Some(left))));
    format!("waits: {}{left}", waits.why.words())
}
