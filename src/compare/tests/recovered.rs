//! What a comparison says of background recovery, from events made by hand.

use super::figures::{Told, lanes, run, scored, tell, told};
use super::*;
use crate::config::RecoveryConfig;
use crate::event::{
    Body, BudgetReading, DebtConsidered, DebtTaken, JobId, Nanos, Publication, RecoverySlice, RequestId,
    Stamp, Steps,
};
use crate::recovery::job::Declined;

fn facts() -> RecoveryConfig {
    RecoveryConfig { enabled: true, ..RecoveryConfig::default() }
}

fn slice(from: u64, to: u64, seconds: f64) -> Body {
    Body::RecoverySlice(Box::new(RecoverySlice {
        job: JobId(1),
        from,
        to,
        wanted: to,
        took: Nanos::from_seconds(seconds),
        restored: None,
        gave_way: None,
        steps: Steps::default(),
        budget: BudgetReading {
            owners: 1,
            windows: 0,
            spent: Nanos(0),
            spent_tokens: 0,
            carried: Nanos(0),
            allowance: Nanos(0),
            allowance_tokens: None,
            service: Nanos(0),
        },
    }))
}

fn publication(boundary: u64) -> Body {
    Body::Published(Box::new(Publication {
        job: JobId(1),
        boundary,
        stored: boundary,
        read_back: boundary,
        committed: boundary,
        visible: boundary,
        took: Nanos(0),
    }))
}

/// Dense, sparse, and a lane whose first debt is paid in two gaps.
fn recovered() -> Comparison {
    let mut comparison = lanes(&["dense", "sparse", "progressive"]);
    let sparse = |prompt, checkpoint, canonical, ttft| Told {
        scored: Some(scored(0, &[(500, 532)], 1.0)),
        ..told(prompt, checkpoint, canonical, ttft)
    };
    tell(
        &mut comparison,
        0,
        &[told(1000, 0, 960, 10.0), told(1100, 960, 1088, 1.0), told(1200, 1088, 1152, 1.0)],
    );
    tell(&mut comparison, 1, &[sparse(1000, 0, 0, 4.0), sparse(1100, 0, 0, 5.0), sparse(1200, 0, 0, 6.0)]);
    tell(
        &mut comparison,
        2,
        &[sparse(1000, 0, 0, 4.0), sparse(1100, 512, 512, 3.0), told(1200, 1088, 1152, 1.0)],
    );
    let mut say = |seconds: f64, request: u64, body: Body| {
        let at = Stamp(Nanos::from_seconds(seconds).0);
        comparison.apply_event(
            2,
            &Event { seq: 0, at, lane: Some(LaneId(0)), request: Some(RequestId(request)), body },
        );
    };
    say(0.0, 1, Body::RunStarted(Box::new(crate::event::RunFacts { recovery: Some(facts()), ..run() })));
    let debt = |taken, target_tokens, canonical_tokens| {
        Body::DebtConsidered(Box::new(DebtConsidered { taken, target_tokens, canonical_tokens }))
    };
    // The requests end after 5, 9 and 11 seconds.
    say(5.0, 1, debt(DebtTaken::Began { job: JobId(1) }, 960, 0));
    say(6.0, 1, slice(0, 512, 1.0));
    say(6.0, 1, publication(512));
    say(9.0, 2, debt(DebtTaken::Extended { job: JobId(1), from: 960 }, 1088, 512));
    say(9.5, 2, slice(512, 1088, 0.5));
    say(9.5, 2, publication(1088));
    say(11.0, 3, debt(DebtTaken::Declined { why: Declined::NotSparse }, 1152, 1152));
    comparison
}

#[test]
fn each_gap_has_its_publications_and_sums_go_on() {
    let comparison = recovered();
    let turns = comparison.turns();
    let cell = |turn: usize, lane: usize| turns[turn].cells[lane].as_ref().unwrap();
    assert!((0..3).all(|turn| cell(turn, 0).recovery.is_none() && cell(turn, 1).recovery.is_none()));
    let told = |turn: usize| {
        let of = cell(turn, 2).recovery.as_ref().unwrap();
        let service = (of.service_s.unwrap().median, of.service_sum_s.unwrap().median);
        (of.committed_tokens, of.target_tokens, of.left_tokens, of.publications_sum, service)
    };
    assert_eq!(told(0), (Some(512), Some(960), Some(448), 1, (1.0, 1.0)));
    assert_eq!(told(1), (Some(1088), Some(1088), Some(0), 2, (0.5, 1.5)));
    assert_eq!(told(2), (Some(1152), Some(1152), Some(0), 2, (0.0, 1.5)));
    assert_eq!(cell(2, 2).ttft_sum_s.unwrap().median, 8.0, "service is no request's time");
}

#[test]
fn the_verdict_names_the_lead_over_sparse_and_who_pays() {
    let comparison = recovered();
    let verdicts = comparison.verdicts();
    assert!(verdicts[0].recovery.is_none());
    let of = verdicts[1].recovery.as_ref().unwrap();
    assert_eq!((of.lead_over_sparse_s.unwrap().median, of.dropped, of.worst_delay_s), (7.0, 0, None));
    let sentence = verdicts[1].sentence();
    assert!(
        sentence.contains(
            "it ends 7.00 s ahead of sparse; idle time pays, beside these sums: 1.50 s of compute, though there was none, for 2 publications, \
             1,152 of 1,152 tokens restorable at the end; no request waited for it"
        ),
        "{sentence}"
    );
    assert!(!verdicts[0].sentence().contains("idle time"), "{}", verdicts[0].sentence());
}

#[test]
fn a_lane_that_recovered_nothing_says_so_and_one_without_recovery_says_nothing() {
    let mut comparison = lanes(&["dense", "progressive"]);
    tell(&mut comparison, 0, &[told(1000, 0, 960, 1.0)]);
    tell(&mut comparison, 1, &[told(1000, 0, 960, 1.0)]);
    let silent = comparison.verdicts()[0].sentence();
    assert!(!silent.contains("recovery"), "{silent}");
    let started = Body::RunStarted(Box::new(crate::event::RunFacts { recovery: Some(facts()), ..run() }));
    comparison.apply_event(1, &Event { seq: 0, at: Stamp(0), lane: None, request: None, body: started });
    assert!(comparison.recovers(1) && !comparison.recovers(0));
    let sentence = comparison.verdicts()[0].sentence();
    assert!(sentence.contains("recovery had nothing to do, or no time for it"), "{sentence}");
}
