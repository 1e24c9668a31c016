//! The fold of recovery, and what is said of it.

use super::super::tests::{arrival, restore};
use super::*;
use crate::config::RecoveryConfig;
use crate::event::{Arrival, LaneId, Restore, Route, RunFacts};

/// A ledger being told of a session whose requests owe, with the time in seconds.
pub(super) struct Told {
    pub(super) ledger: Ledger,
    requests: u64,
    now: f64,
}

impl Told {
    pub(super) fn new() -> Told {
        Told { ledger: Ledger::new(), requests: 0, now: 0.0 }
    }

    pub(super) fn at(&mut self, seconds: f64) -> &mut Told {
        self.now = seconds;
        self
    }

    pub(super) fn say(&mut self, body: Body) -> &mut Told {
        let (lane, request) = (Some(LaneId(0)), Some(RequestId(self.requests)));
        let at = Stamp(Nanos::from_seconds(self.now).0);
        self.ledger.apply(&Event { seq: 0, at, lane, request, body });
        self
    }

    /// The next request: its prompt, what it shares with the one before it, and its checkpoint.
    pub(super) fn request(&mut self, prompt: u64, common: u64, checkpoint: u64) -> &mut Told {
        self.delayed(prompt, common, checkpoint, None)
    }

    pub(super) fn delayed(
        &mut self,
        prompt_tokens: u64,
        common: u64,
        checkpoint: u64,
        delayed: Option<f64>,
    ) -> &mut Told {
        self.requests += 1;
        let delayed = delayed.map(Nanos::from_seconds);
        let arrived = Arrival { prompt_tokens, delayed, ..arrival(self.requests as u32) };
        let found = Restore { common_prefix_tokens: Some(common), ..restore(checkpoint) };
        self.say(Body::Arrived(Box::new(arrived)))
            .say(Body::Restored(Box::new(found)))
            .say(Body::Routed { route: Route::Dense, uncached_suffix: prompt_tokens - checkpoint })
    }

    /// The request ends with so many tokens restorable.
    pub(super) fn stored(&mut self, canonical_tokens: u64) -> &mut Told {
        self.say(Body::Stored {
            stored_tokens: 0,
            canonical_tokens,
            evicted_blocks: 0,
            snapshots: None,
            tier: None,
        })
    }

    pub(super) fn considered(&mut self, taken: DebtTaken, canonical: u64, target: u64) -> &mut Told {
        self.say(Body::DebtConsidered(Box::new(DebtConsidered {
            taken,
            target_tokens: target,
            canonical_tokens: canonical,
        })))
    }

    pub(super) fn slice(&mut self, job: u64, from: u64, to: u64, seconds: f64) -> &mut Told {
        self.say(Body::RecoverySlice(Box::new(slice(job, from, to, seconds))))
    }

    pub(super) fn published(&mut self, job: u64, boundary: u64) -> &mut Told {
        self.say(Body::Published(Box::new(publication(job, boundary))))
    }

    pub(super) fn ended(&mut self, job: u64, end: End, target: u64, committed: u64) -> &mut Told {
        let (tally, steps) = (Tally::default(), Steps::default());
        let ended = JobEnded { job: JobId(job), end, detail: None, target, committed, tally, steps };
        self.say(Body::RecoveryEnded(Box::new(ended)))
    }

    /// See [`under_way`].
    pub(super) fn under_way(&mut self) -> &mut Told {
        self.request(8_200, 0, 0).stored(5_120).at(10.0);
        self.considered(DebtTaken::Began { job: JobId(1) }, 5_120, 8_192);
        self.at(12.0).slice(1, 5_120, 6_144, 1.0).published(1, 6_144);
        self.at(14.0).slice(1, 6_144, 7_168, 1.5).published(1, 7_168)
    }

    /// The next request, of which nothing but its arrival is known.
    pub(super) fn next(&mut self, arrived: Arrival) -> &mut Told {
        self.requests += 1;
        self.say(Body::Arrived(Box::new(arrived)))
    }

    pub(super) fn job(&self, id: u64) -> &JobFacts {
        self.ledger.recovery().job(JobId(id)).unwrap()
    }
}

pub(in crate::ledger) fn slice(job: u64, from: u64, to: u64, seconds: f64) -> RecoverySlice {
    RecoverySlice {
        job: JobId(job),
        from,
        to,
        wanted: to,
        took: Nanos::from_seconds(seconds),
        restored: None,
        gave_way: None,
        steps: Steps { runnable: 2, scheduled: 1, yielded: 1, resumed: 0 },
        budget: BudgetReading {
            owners: 1,
            windows: 0,
            spent: Nanos::from_seconds(seconds),
            spent_tokens: to - from,
            carried: Nanos(0),
            allowance: Nanos::from_seconds(3.0),
            allowance_tokens: None,
            service: Nanos::from_seconds(seconds),
        },
    }
}

pub(in crate::ledger) fn publication(job: u64, boundary: u64) -> Publication {
    Publication {
        job: JobId(job),
        boundary,
        stored: boundary,
        read_back: boundary,
        committed: boundary,
        visible: boundary,
        took: Nanos(1),
    }
}

/// The start of a run of 1,024-token blocks, with windows of 30 s.
pub(super) fn run_facts(budget_pct: f64) -> Body {
    let recovery = RecoveryConfig { enabled: true, budget_pct, ..RecoveryConfig::default() };
    Body::RunStarted(Box::new(RunFacts {
        block_tokens: 1_024,
        recovery: Some(recovery),
        ..RunFacts::of_test()
    }))
}

/// A request that left 5,120 of 8,192 tokens, and a job that has published 7,168 of them.
pub(super) fn under_way() -> Told {
    let mut told = Told::new();
    told.under_way();
    told
}

#[test]
fn a_job_stands_where_its_publications_and_slices_brought_it() {
    let mut told = under_way();
    told.at(15.0).slice(1, 7_168, 7_680, 0.5);
    let job = told.job(1);
    assert_eq!((job.committed_at_start, job.committed), (Some(5_120), Some(7_168)));
    assert_eq!((job.processed, job.target), (Some(7_680), Some(8_192)));
    assert_eq!((job.service().seconds(), job.computed(), job.state()), (3.0, 2_560, JobState::Running));
    assert_eq!(job.service_share(told.ledger.now()), Some((3.0 + 2e-9) / 5.0));
    assert_eq!(job.slices[0].began().seconds(), 11.0);

    told.say(Body::Retired { job: JobId(1), why: Why::Arrival, tokens: 512 });
    assert_eq!(told.job(1).processed, Some(7_168), "what was not published went");
    told.say(Body::CommitLowered { job: JobId(1), from: 7_168, to: 6_144 });
    assert_eq!((told.job(1).committed, told.job(1).visible), (Some(6_144), Some(6_144)));
}

#[test]
fn a_publication_that_was_not_found_again_commits_nothing_and_does_not_count() {
    let mut told = under_way();
    let short = Publication { read_back: 7_168, committed: 7_168, ..publication(1, 8_192) };
    told.say(Body::Published(Box::new(short))).ended(1, End::ReadBackShort, 8_192, 7_168);
    let job = told.job(1);
    assert_eq!((job.published().count(), job.publications.len()), (2, 3));
    assert_eq!((job.state(), job.drop_reason()), (JobState::Dropped, Some(End::ReadBackShort)));
    assert_eq!(told.ledger.recovery().paid_tokens(RequestId(1)), Some(2_048));
    assert!(told.ledger.recovery().open().is_none());
}

#[test]
fn waits_add_up_by_what_was_waited_for_and_a_window_runs_down() {
    let mut told = under_way();
    let wait = |why, left| Body::RecoveryWaits {
        job: JobId(1),
        why,
        next_window: Option::map(left, Nanos::from_seconds),
    };
    told.at(20.0).say(wait(Some(Why::BudgetSpent), Some(12.0)));
    let waits = told.job(1).waits.unwrap();
    assert_eq!(waits.left(Stamp(24_000_000_000)), Some(Nanos::from_seconds(8.0)));
    assert_eq!(waits.left(Stamp(90_000_000_000)), Some(Nanos(0)));
    assert_eq!(told.job(1).state(), JobState::Waiting);
    told.at(26.0).say(wait(Some(Why::Arrival), None)).at(27.0).slice(1, 7_168, 7_680, 0.5);
    let waited: Vec<_> = told.job(1).waited.iter().map(|(why, time)| (*why, time.seconds())).collect();
    assert_eq!(waited, [(Why::Arrival, 1.0), (Why::BudgetSpent, 6.0)]);
    assert_eq!((told.job(1).waits, told.job(1).state()), (None, JobState::Running));
}

#[test]
fn a_longer_prompt_extends_a_job_and_both_requests_are_paid_by_it() {
    let mut told = under_way();
    told.at(16.0).request(10_300, 8_200, 7_168).stored(7_168);
    told.considered(DebtTaken::Extended { job: JobId(1), from: 8_192 }, 7_168, 10_240);
    told.at(20.0).published(1, 8_192).published(1, 9_216);
    let job = told.job(1);
    assert_eq!((job.requests.as_slice(), job.target), (&[RequestId(1), RequestId(2)][..], Some(10_240)));
    let paid = |request| told.ledger.recovery().paid_tokens(RequestId(request));
    assert_eq!((paid(1), paid(2)), (Some(3_072), Some(2_048)), "each what it owed itself");
    assert_eq!(told.ledger.request(RequestId(2)).unwrap().recovery, Some(JobId(1)));
}

#[test]
fn the_next_request_says_that_recovery_repaid_what_its_predecessor_left_owing() {
    let mut told = under_way();
    told.at(16.0).request(9_000, 8_200, 7_168).stored(7_168);
    let entry = &told.ledger.debt(LaneId(0))[1];
    assert_eq!((entry.repaid_tokens, entry.recovered_tokens), (Some(2_048), Some(2_048)));
    assert_eq!(entry.paid_by, Some(super::super::Payer::Recovery));
    // A prompt that departs below what was published gets only what it shares.
    let mut told = under_way();
    told.at(16.0).request(9_000, 6_000, 5_120).stored(5_120);
    let entry = &told.ledger.debt(LaneId(0))[1];
    assert_eq!((entry.recovered_tokens, entry.paid_by), (Some(0), None));
}

#[test]
fn what_was_published_after_a_restore_repaid_nothing_of_it() {
    let mut told = Told::new();
    told.request(8_200, 0, 0).stored(5_120);
    told.considered(DebtTaken::Began { job: JobId(1) }, 5_120, 8_192);
    told.request(9_000, 8_200, 8_192).published(1, 8_192).stored(8_192);
    assert_eq!(told.ledger.debt(LaneId(0))[1].recovered_tokens, Some(0));
}

#[test]
fn a_request_that_found_a_slice_in_its_way_arrived_before_the_event() {
    let mut told = under_way();
    told.at(16.0).delayed(9_000, 8_200, 7_168, Some(0.25));
    let request = told.ledger.request(RequestId(2)).unwrap();
    assert_eq!(request.arrived_at.seconds(), 15.75);
    let collision = told.ledger.recovery().collisions()[0];
    assert_eq!((collision.at.seconds(), collision.delayed.seconds()), (15.75, 0.25));
    let row = &told.ledger.rows()[1];
    let recovery = row.recovery.as_ref().unwrap();
    assert_eq!((recovery.delayed_s, recovery.state, recovery.job), (Some(0.25), None, None));
}

#[test]
fn a_declined_debt_says_why_and_names_no_job() {
    let mut told = Told::new();
    told.request(100, 0, 0).considered(DebtTaken::Declined { why: Declined::NotSparse }, 64, 64);
    told.request(200, 100, 64).considered(DebtTaken::Declined { why: Declined::NoBudget }, 64, 192);
    assert_eq!(told.ledger.recovery().declines(), [(Declined::NotSparse, 1), (Declined::NoBudget, 1)]);
    let rows = serde_json::to_value(told.ledger.rows()).unwrap();
    let row = &rows[0]["recovery"];
    assert_eq!((&row["state"], &row["declined"]), (&"declined".into(), &"not_sparse".into()));
    assert!(row["service_s"].is_null() && row["job"].is_null() && rows[0]["debt_paid_tokens"].is_null());
}

#[test]
fn a_row_has_the_figures_of_the_job_that_pays() {
    let mut told = under_way();
    told.say(Body::Retired { job: JobId(1), why: Why::BudgetSpent, tokens: 0 });
    let row = told.ledger.rows().remove(0);
    let recovery = row.recovery.unwrap();
    assert_eq!((recovery.job, recovery.state), (Some(1), Some("running")));
    assert_eq!((recovery.committed_tokens, recovery.publications), (Some(7_168), Some(2)));
    assert_eq!((recovery.runnable_steps, recovery.yielded_steps), (Some(2), Some(1)));
    assert_eq!((recovery.service_s, recovery.budget_share), (Some(2.5), Some((2.5 + 2e-9) / 4.0)));
    assert_eq!(row.debt_paid_tokens, Some(2_048));
}

#[test]
fn recovery_is_on_as_the_run_began_until_it_is_switched_by_hand() {
    let mut ledger = Ledger::new();
    assert_eq!(ledger.recovery_on(), None);
    let at = Stamp(0);
    let body = Body::RecoverySet { enabled: true };
    ledger.apply(&Event { seq: 0, at, lane: None, request: None, body });
    assert_eq!(ledger.recovery_on(), Some(true));
}

#[test]
fn the_facts_hash_ignores_how_far_recovery_got() {
    let hash = |slices: u64| {
        let mut told = Told::new();
        told.request(8_200, 0, 0).stored(5_120);
        told.considered(DebtTaken::Began { job: JobId(slices) }, 5_120, 8_192);
        for n in 0..slices {
            told.at(n as f64).slice(slices, 5_120, 5_632, 1.0);
        }
        told.ledger.facts_hash()
    };
    assert_eq!(hash(1), hash(3));
}

#[test]
fn facts_of_a_job_whose_beginning_was_lost_are_unknown_rather_than_zero() {
    let mut told = Told::new();
    told.slice(4, 512, 1_024, 1.0);
    let job = told.job(4);
    assert_eq!((job.target, job.committed, job.visible), (None, None, None));
    told.published(4, 1_024);
    assert_eq!(told.job(4).publications[0].tokens(), 1_024..1_024, "from where is not known");
}
