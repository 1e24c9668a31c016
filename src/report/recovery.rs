//! Background recovery in the end summary of a run.

use super::{counted, seconds, thousands};
use crate::ledger::{Ledger, NetReturn, Quantiles};

/// What recovery did, what it was worth, and what it did to requests; nothing where nothing was told of it.
pub fn recovery_text(ledger: &Ledger) -> String {
    if ledger.recovery().is_silent() {
        return String::new();
    }
    let mut lines = vec![work(ledger)];
    lines.extend(ledger.net_return().map(|account| worth(&account)));
    lines.extend(pace(ledger));
    lines.push(felt(ledger));
    lines.extend(drops(ledger));
    lines.into_iter().map(|line| line + "\n").collect()
}

fn work(ledger: &Ledger) -> String {
    let recovery = ledger.recovery();
    let declined: Vec<String> =
        recovery.declines().iter().map(|(why, number)| format!("{number} {}", why.words())).collect();
    let declined = match declined.as_slice() {
        [] => String::new(),
        reasons => format!(", declined: {}", reasons.join(", ")),
    };
    let considered = counted(recovery.considered().len() as u64, "debt");
    let jobs = counted(recovery.jobs().len() as u64, "job");
    let sum = |of: fn(&crate::ledger::JobFacts) -> u64| recovery.jobs().map(of).fold(0, u64::saturating_add);
    let published = sum(|job| {
        let tokens = job.published().map(|told| told.tokens());
        tokens.fold(0, |sum, tokens| sum.saturating_add(tokens.end - tokens.start))
    });
    let spent: f64 = recovery.jobs().map(|job| job.spent().seconds()).sum();
    let wall = ledger.now().seconds();
    let share =
        if wall > 0.0 { format!(", {:.1} % of the run", spent * 100.0 / wall) } else { String::new() };
    format!(
        "recovery: {considered} considered{declined} · {jobs} · {} tokens published, {} computed in {} taking {}{share}",
        thousands(published),
        thousands(sum(|job| job.computed())),
        counted(sum(|job| job.slices.len() as u64), "slice"),
        seconds(spent),
    )
}

fn worth(account: &NetReturn) -> String {
    let signed = |value: f64| format!("{}{}", if value < 0.0 { "-" } else { "+" }, seconds(value.abs()));
    let or_dash = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), signed);
    let by = account.by().map_or_else(String::new, |by| format!(", priced by the {}", by.words()));
    format!(
        "recovery's net return: {} = saved {} − spent {} − delayed {}; {} tokens restored by {}, {} strictly{by}",
        or_dash(account.seconds()),
        account
            .saved_s
            .map_or_else(|| "–".to_owned(), |saved| signed(saved).trim_start_matches('+').to_owned()),
        seconds(account.spent_s),
        seconds(account.delayed_s),
        thousands(account.tokens()),
        counted(account.requests() as u64, "request"),
        account.strict(),
    )
}

/// Of every lane that recovery paid for.
fn pace(ledger: &Ledger) -> Vec<String> {
    let lanes = ledger.lanes().filter_map(|(lane, _)| Some((lane, ledger.pace(lane)?)));
    let line = |(lane, pace): (crate::event::LaneId, crate::ledger::Pace)| {
        format!(
            "recovery's pace, lane {}: {}: {} tokens recovered, {} grown meanwhile",
            lane.label(),
            pace.class().words(),
            thousands(pace.recovered),
            thousands(pace.grown)
        )
    };
    lanes.map(line).collect()
}

fn felt(ledger: &Ledger) -> String {
    let protection = ledger.protection();
    let p50 = |quantiles: Option<Quantiles>| {
        quantiles.map_or_else(|| "–".to_owned(), |q| format!("{} of {}", seconds(q.p50.seconds()), q.count))
    };
    let collisions = match protection.worst {
        None => "no arrival found a slice in its way".to_owned(),
        Some(worst) => format!(
            "{} found a slice in the way, worst {}",
            counted(protection.collisions as u64, "arrival"),
            seconds(worst.seconds())
        ),
    };
    let (first, between) = (protection.first_token, protection.between_tokens);
    format!(
        "{collisions} · first token p50 with a job {}, without {} · between tokens p50 with a job {}, without {}",
        p50(first.beside),
        p50(first.alone),
        p50(between.beside),
        p50(between.alone)
    )
}

/// Jobs that ended before all was published.
fn drops(ledger: &Ledger) -> Vec<String> {
    let dropped = ledger.recovery().jobs().filter_map(|job| Some((job, job.drop_reason()?)));
    let known = |tokens: Option<u64>| tokens.map_or_else(|| "–".to_owned(), thousands);
    let line = |(job, end): (&crate::ledger::JobFacts, crate::recovery::job::End)| {
        format!(
            "recovery job {} dropped at {} of {} tokens: {}",
            job.id.0,
            known(job.committed),
            known(job.target),
            end.words()
        )
    };
    dropped.map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{
        Body, DebtConsidered, DebtTaken, Event, JobEnded, JobId, LaneId, Publication, RequestId, Stamp, Steps,
    };
    use crate::recovery::job::{End, Tally};

    fn told(bodies: Vec<Body>) -> String {
        let mut ledger = Ledger::new();
        for (seq, body) in (0..).zip(bodies) {
            let (lane, request) = (Some(LaneId(0)), Some(RequestId(1)));
            ledger.apply(&Event { seq, at: Stamp(seq * 1_000_000_000), lane, request, body });
        }
        recovery_text(&ledger)
    }

    #[test]
    fn a_run_without_recovery_says_nothing_of_it() {
        assert_eq!(told(Vec::new()), "");
    }

    #[test]
    fn a_job_that_died_is_named_with_how_far_it_came() {
        let taken = DebtTaken::Began { job: JobId(1) };
        let text = told(vec![
            Body::DebtConsidered(Box::new(DebtConsidered {
                taken,
                target_tokens: 2_048,
                canonical_tokens: 512,
            })),
            Body::Published(Box::new(Publication {
                job: JobId(1),
                boundary: 1_024,
                stored: 1_024,
                read_back: 1_024,
                committed: 1_024,
                visible: 1_024,
                took: crate::event::Nanos(1_000_000),
            })),
            Body::RecoveryEnded(Box::new(JobEnded {
                job: JobId(1),
                end: End::OutOfMemory,
                detail: None,
                target: 2_048,
                committed: 1_024,
                tally: Tally::default(),
                steps: Steps::default(),
            })),
        ]);
        assert!(text.starts_with("recovery: 1 debt considered · 1 job · 512 tokens published"), "{text}");
        assert!(text.contains("recovery job 1 dropped at 1,024 of 2,048 tokens: out of memory\n"), "{text}");
        assert!(text.contains("no arrival found a slice in its way"), "{text}");
    }
}
