//! Steps, cliffs, phases, debt and breakpoints over a line of history.

use std::collections::BTreeMap;

use super::*;

const A: LaneId = LaneId(0);

/// A ledger being told of requests, numbered from 1.
struct Told {
    ledger: Ledger,
    requests: u64,
    lane: LaneId,
}

impl Told {
    fn new() -> Told {
        Told { ledger: Ledger::new(), requests: 0, lane: A }
    }

    fn say(&mut self, body: Body) -> &mut Told {
        let (lane, request) = (Some(self.lane), Some(RequestId(self.requests)));
        self.ledger.apply(&Event { seq: 0, at: Stamp(0), lane, request, body });
        self
    }

    fn arrive(&mut self, turn: u32, source: Source, prompt_tokens: u64) -> &mut Told {
        self.requests += 1;
        self.say(Body::Arrived(Box::new(Arrival { source, prompt_tokens, ..arrival(turn) })))
    }

    /// A request of the line of history, restored.
    fn line(&mut self, checkpoint: u64, suffix: u64) -> &mut Told {
        let turn = self.requests as u32 + 1;
        self.arrive(turn, Source::Replay, checkpoint + suffix)
            .say(Body::Restored(Box::new(restore(checkpoint))))
    }

    /// A request beside it.
    fn side(&mut self, checkpoint: u64, suffix: u64) -> &mut Told {
        let turn = self.requests as u32 + 1;
        self.arrive(turn, Source::Side, checkpoint + suffix)
            .say(Body::Restored(Box::new(restore(checkpoint))))
    }

    fn fork(&mut self, lane: u32, at_turn: u32) -> &mut Told {
        let parent = Some(self.lane);
        self.lane = LaneId(lane);
        let body = Body::LaneOpened { parent, at_turn: Some(at_turn), title: "fork".into() };
        self.ledger.apply(&Event { seq: 0, at: Stamp(0), lane: Some(self.lane), request: None, body });
        self
    }

    fn step(&self, request: u64) -> Option<CheckpointStep> {
        self.ledger.checkpoint_step(self.ledger.request(RequestId(request)).unwrap())
    }

    fn debts(&self) -> Vec<Option<u64>> {
        self.ledger.debt(self.lane).iter().map(|entry| entry.prefix_cache_debt).collect()
    }

    fn phases(&self) -> Vec<&'static str> {
        self.ledger.checkpoint_phases(self.lane).iter().map(|(_, phase)| phase.word()).collect()
    }

    fn observes(&self, condition: &str) -> Option<String> {
        self.ledger.observes(&condition.parse().unwrap(), RequestId(self.requests))
    }
}

fn line(requests: &[(u64, u64)]) -> Told {
    let mut told = Told::new();
    for (checkpoint, suffix) in requests {
        told.line(*checkpoint, *suffix);
    }
    told
}

/// Whatever the events were, the accounts of a lane agree with each other and with the facts they are made of.
pub(super) fn hold_together(ledger: &Ledger, lane: LaneId) -> Result<(), TestCaseError> {
    let steps: BTreeMap<_, _> = ledger.checkpoint_steps(lane).into_iter().collect();
    let debt: BTreeMap<_, _> = ledger.debt(lane).into_iter().map(|entry| (entry.request, entry)).collect();
    let phases: BTreeMap<_, _> = ledger.checkpoint_phases(lane).into_iter().collect();
    let cliffs = ledger.cliff_list(lane);
    let fallen: Vec<_> = ledger.cliffs(lane).map(|request| request.id).collect();
    prop_assert_eq!(cliffs.iter().map(|cliff| cliff.request).collect::<Vec<_>>(), fallen);
    for cliff in &cliffs {
        prop_assert!(cliff.to_tokens < cliff.from_tokens && cliff.pinned_requests > 0);
        prop_assert!(steps[&cliff.request].cliff && phases[&cliff.request] == CheckpointPhase::Cliff);
        if let Some(healer) = cliff.healed_by {
            prop_assert!(ledger.request(healer).unwrap().checkpoint() > Some(cliff.to_tokens));
        }
        let _ = ledger.observes(&"cliff".parse().unwrap(), cliff.request);
    }
    for (request, step) in &steps {
        prop_assert_eq!(step.pinned, debt[request].pinned_requests);
        prop_assert!(!step.ratchet || step.pinned >= CheckpointStep::PINNED);
    }
    for (id, entry) in &debt {
        let request = ledger.request(*id).unwrap();
        prop_assert_eq!(request.is_side(), entry.pinned_requests == 0);
        prop_assert_eq!(phases.contains_key(id), !request.is_side());
        if let Some(recomputed) = entry.recomputed_tokens {
            let suffix = request.prompt_tokens.unwrap().saturating_sub(request.checkpoint().unwrap());
            prop_assert!(recomputed <= suffix, "{recomputed} of a suffix of {suffix}");
        }
        for condition in ["suffix>4", "debt>=1", "canonical-debt<9", "pinned>=2", "ttft<1", "cause=floor"] {
            let _ = ledger.observes(&condition.parse().unwrap(), *id);
        }
    }
    Ok(())
}

#[test]
fn a_checkpoint_is_pinned_from_the_request_that_set_it_until_it_moves() {
    let told = line(&[(10, 5), (10, 6), (20, 1), (20, 2), (20, 3), (20, 3), (20, 4), (30, 9)]);
    let pinned: Vec<_> = (2..=8).map(|request| told.step(request).unwrap().pinned).collect();
    assert_eq!(pinned, [2, 1, 2, 3, 4, 5, 1]);
    let ratchet: Vec<_> = (1..=8).filter(|n| told.step(*n).is_some_and(|s| s.ratchet)).collect();
    assert_eq!(ratchet, [5], "only there did the suffix grow twice in a row behind the same checkpoint");
    assert_eq!(told.step(1), None);
}

#[test]
fn requests_beside_the_line_neither_fall_nor_make_others_fall() {
    let mut told = Told::new();
    told.line(0, 50).line(40, 10).side(8, 20).line(40, 12).side(0, 9).line(48, 12);
    assert_eq!(told.step(3), None);
    assert_eq!((told.step(4).unwrap().delta, told.step(4).unwrap().pinned), (0, 2));
    assert_eq!(told.step(6).unwrap().delta, 8);
    assert!(told.ledger.cliff_list(A).is_empty());
    let of =
        |request| told.ledger.predecessor(told.ledger.request(RequestId(request)).unwrap()).unwrap().id.0;
    assert_eq!((of(4), of(3)), (2, 2));
    assert_eq!(told.debts(), [Some(0), Some(0), None, Some(0), None, Some(0)]);
    let rows = serde_json::to_value(told.ledger.rows()).unwrap();
    assert_eq!(rows[2]["side"], true);
    assert!(rows[2]["cliff"].is_null() && rows[2]["pinned_requests"].is_null());
    assert_eq!((&rows[3]["side"], &rows[3]["pinned_requests"]), (&false.into(), &2.into()));
}

#[test]
fn a_request_that_failed_before_its_restore_hides_no_cliff() {
    let mut told = Told::new();
    told.line(40, 10).arrive(2, Source::Replay, 60).say(Body::Failed { message: "m".into() }).line(8, 60);
    assert_eq!(told.step(3).unwrap().delta, -32);
    assert_eq!(told.ledger.debt(A).len(), 2);
}

#[test]
fn a_cliff_is_pinned_and_healed_and_its_suffixes_are_summed() {
    let told = line(&[(0, 9), (40, 5), (40, 6), (16, 40), (16, 50), (16, 60), (24, 55), (64, 3)]);
    let cliffs = told.ledger.cliff_list(A);
    let [cliff] = cliffs.as_slice() else { panic!("{cliffs:?}") };
    assert_eq!((cliff.request, cliff.from_tokens, cliff.to_tokens), (RequestId(4), 40, 16));
    assert_eq!((cliff.pinned_requests, cliff.healed_by), (3, Some(RequestId(7))));
    assert_eq!((cliff.suffix_before, cliff.suffix_behind), (20, 150));
    assert_eq!(told.debts(), [0, 0, 0, 40, 90, 150, 0, 0].map(Some));
    let advancing = "advancing";
    assert_eq!(
        told.phases(),
        ["healthy", "peak", "peak", "cliff", "latched", "latched", advancing, advancing],
    );
}

#[test]
fn a_cliff_at_the_foot_of_another_leaves_the_debt_running_until_both_are_healed() {
    let told = line(&[(100, 1), (50, 2), (50, 3), (10, 4), (30, 5), (60, 6), (60, 7)]);
    let cliffs = told.ledger.cliff_list(A);
    let of = |c: &Cliff| {
        (c.request.0, c.pinned_requests, c.healed_by.map(|r| r.0), c.suffix_before, c.suffix_behind)
    };
    assert_eq!(cliffs.iter().map(of).collect::<Vec<_>>(), [(2, 2, Some(6), 1, 5), (4, 1, Some(5), 5, 4)]);
    assert_eq!(told.debts(), [0, 2, 5, 9, 14, 0, 0].map(Some));
    assert_eq!(
        told.phases(),
        ["healthy", "cliff", "latched", "cliff", "advancing", "advancing", "advancing"]
    );
}

#[test]
fn a_fork_carries_its_parents_debt_and_lists_its_own_cliffs() {
    let mut told = line(&[(40, 1), (16, 30), (16, 35), (48, 1)]);
    told.fork(1, 4).line(16, 50);
    let entries = told.ledger.debt(LaneId(1));
    assert_eq!(entries.iter().map(|entry| entry.request.0).collect::<Vec<_>>(), [1, 2, 3, 5]);
    assert_eq!(told.debts(), [0, 30, 65, 115].map(Some));
    assert_eq!(entries[3].pinned_requests, 3);
    assert!(told.ledger.cliff_list(LaneId(1)).is_empty());
    assert_eq!(told.ledger.cliff_list(A)[0].healed_by, Some(RequestId(4)));
    told.line(8, 60);
    assert_eq!(told.ledger.cliff_list(LaneId(1))[0].suffix_before, 30 + 35 + 50);
}

#[test]
fn recomputed_is_what_somebody_had_computed_already_and_the_checkpoint_does_not_cover() {
    let recomputed = |common, closest: Option<u64>, matched, checkpoint| {
        let mut told = Told::new();
        told.arrive(1, Source::Replay, 100).say(Body::Restored(Box::new(Restore {
            common_prefix_tokens: common,
            closest: closest.map(|common_tokens| Closest { request: RequestId(9), common_tokens }),
            matched_tokens: matched,
            ..restore(checkpoint)
        })));
        told.ledger.debt(A)[0].recomputed_tokens
    };
    assert_eq!(recomputed(Some(90), Some(70), 64, 32), Some(58));
    assert_eq!(recomputed(Some(20), Some(70), 64, 32), Some(38), "another lane had computed them");
    assert_eq!(recomputed(Some(20), None, 64, 32), Some(32), "an earlier run had");
    assert_eq!(recomputed(None, None, 64, 32), None);
    assert_eq!(recomputed(Some(500), None, 0, 32), Some(68), "never more than the suffix");
    assert_eq!(recomputed(Some(20), None, 0, 32), Some(0));
}

#[test]
fn debt_is_repaid_by_the_request_that_stores_and_priced_at_the_runs_own_curve() {
    let mut told = Told::new();
    // Two milliseconds a token; the first chunk pays for warming up.
    for (checkpoint, suffix) in [(0, 100), (96, 100), (32, 168)] {
        told.line(checkpoint, suffix);
        told.say(Body::Routed { route: Route::Dense, uncached_suffix: suffix });
        let took = Some(Nanos::from_seconds(if checkpoint == 0 { 5.0 } else { suffix as f64 * 2e-3 }));
        told.say(Body::PrefillProgress { done: suffix, total: suffix, shrunk: None, device: None, took });
        told.say(Body::Stored {
            stored_tokens: 64,
            canonical_tokens: checkpoint + suffix - 4,
            evicted_blocks: 0,
            snapshots: None,
            tier: None,
        });
    }
    let curve = told.ledger.prefill_curve().unwrap();
    assert_eq!((curve.samples, curve.deepest), (2, 200));
    let entry = &told.ledger.debt(A)[2];
    assert_eq!(
        (entry.canonical_before, entry.canonical_after, entry.canonical_debt),
        (Some(32), Some(196), Some(4))
    );
    assert_eq!((entry.repaid_tokens, entry.paid_by), (Some(4), Some(Payer::Foreground)));
    let first = &told.ledger.debt(A)[0];
    assert_eq!((first.repaid_tokens, first.paid_by), (Some(0), None), "nobody owed anything");
    assert_eq!(entry.prefix_cache_debt, Some(168));
    let seconds = entry.prefix_cache_debt_s.unwrap();
    assert!((seconds - 0.336).abs() < 1e-6, "{seconds}");
    assert_eq!(told.ledger.cliff_list(A)[0].seconds_behind, Some(seconds));
    let rows = serde_json::to_value(told.ledger.rows()).unwrap();
    assert_eq!(rows[2]["prefix_cache_debt_tokens"], 168);
    assert_eq!((&rows[2]["repaid_tokens"], &rows[2]["paid_by"]), (&4.into(), &"foreground".into()));
    assert_eq!(rows[2]["canonical_before_tokens"], 32);
    assert!(rows[2]["debt_paid_tokens"].is_null());
    let alone = Row::new(&told.ledger, told.ledger.request(RequestId(3)).unwrap());
    assert_eq!(serde_json::to_value(alone).unwrap(), rows[2]);
}

#[test]
fn conditions_hold_for_what_was_observed_and_not_for_what_was_not() {
    let mut told = line(&[(40, 10), (16, 4_312)]);
    for (condition, observed) in [
        ("suffix>4000", Some("suffix 4,312")),
        ("suffix>4312", None),
        ("suffix>=4312", Some("suffix 4,312")),
        ("suffix<10", None),
        ("checkpoint<17", Some("checkpoint 16")),
        ("prompt=4328", Some("prompt 4,328")),
        ("debt>4000", Some("debt 4,312")),
        ("pinned>=1", Some("pinned 1")),
        ("pinned>=2", None),
        ("cliff", Some("checkpoint 40 → 16")),
        ("cause=floor", Some("tail does not fill a block")),
        ("cause=tools", None),
        ("canonical-debt>=0", None),
        ("ttft>=0", None),
    ] {
        assert_eq!(told.observes(condition).as_deref(), observed, "{condition}");
    }
    told.say(Body::Token { token: 1, text: "x".into(), index: 0, margin: None });
    assert_eq!(told.observes("ttft>=0").as_deref(), Some("ttft 0 s"));
    told.side(0, 7);
    assert_eq!(told.observes("cliff"), None);
    assert_eq!(told.observes("debt>=0"), None, "it is no part of the line's debt");
    assert_eq!(told.ledger.observes(&"suffix>1".parse().unwrap(), RequestId(99)), None);
}

#[test]
fn a_condition_says_when_it_can_first_be_asked() {
    for (condition, when) in [
        ("suffix>1", KnownAt::Restored),
        ("debt>1", KnownAt::Restored),
        ("cliff", KnownAt::Restored),
        ("cause=cold", KnownAt::Restored),
        ("ttft>1", KnownAt::FirstToken),
        ("canonical-debt>1", KnownAt::Stored),
    ] {
        assert_eq!(condition.parse::<Breakpoint>().unwrap().known_at(), when, "{condition}");
    }
}

#[test]
fn what_was_told_of_disk_faults_and_pauses_is_kept() {
    let mut told = Told::new();
    told.line(0, 10);
    for blocks in [3, 5] {
        told.say(Body::Tier(Box::new(TierReading { blocks, ..TierReading::default() })));
    }
    for n in 0..300 {
        told.say(Body::TierTrouble { trouble: TierTrouble::Damaged, detail: format!("file {n}") });
    }
    told.say(Body::FaultInjected { fault: "evict".into(), outcome: "block 3 is gone".into() })
        .say(Body::BreakpointsSet { conditions: vec!["cliff".into(), "ttft>2".into()] })
        .say(Body::BreakpointHit { condition: "cliff".into(), observed: "checkpoint 9 → 1".into() });
    for ticket in [1, 3, 2] {
        let preview =
            Preview { ticket, prompt_tokens: ticket * 10, restore: None, sparse: None, problem: None };
        told.say(Body::Previewed(Box::new(preview)));
    }
    let ledger = &told.ledger;
    assert_eq!(ledger.tier().unwrap().blocks, 5);
    let troubles: Vec<_> = ledger.tier_troubles().map(|trouble| trouble.detail.as_str()).collect();
    assert_eq!((troubles.len(), troubles[0], troubles[255]), (256, "file 44", "file 299"));
    assert_eq!(ledger.faults()[0].outcome, "block 3 is gone");
    assert_eq!(ledger.breakpoints(), ["cliff", "ttft>2"]);
    assert_eq!(ledger.breakpoint_hit().unwrap().request, Some(RequestId(1)));
    assert_eq!(ledger.preview().unwrap().prompt_tokens, 30);
    let tier = TierStored { blocks: 2, snapshots: 1, declined: 0 };
    told.say(Body::Stored {
        stored_tokens: 0,
        canonical_tokens: 0,
        evicted_blocks: 0,
        snapshots: None,
        tier: Some(tier),
    });
    assert_eq!(told.ledger.request(RequestId(1)).unwrap().tier, Some(tier));
}

#[test]
fn a_row_tells_the_block_and_every_loss_with_nulls_where_there_is_none() {
    let mut told = Told::new();
    let block = Some(Culprit { index: 37, written_by: Some(RequestId(10)), earlier_run: false });
    let loss = |cause, tokens, block| Loss { cause, tokens, detail: "d".into(), block };
    told.arrive(1, Source::Replay, 100).say(Body::Restored(Box::new(Restore {
        losses: vec![loss(Cause::Appended, 20, None), loss(Cause::NoSnapshot, 16, block)],
        cause: Cause::NoSnapshot,
        ssd: Some(SsdRead { blocks: 4, snapshots: 1, bytes: 4_096, took: Nanos(5) }),
        closest: Some(Closest { request: RequestId(7), common_tokens: 80 }),
        ..restore(64)
    })));
    let row = serde_json::to_value(told.ledger.rows()).unwrap()[0].clone();
    let block = serde_json::json!({"index": 37, "written_by": 10, "earlier_run": false});
    assert_eq!(row["cause_block"], block);
    assert_eq!(row["losses"][0]["block"], serde_json::Value::Null);
    assert_eq!(
        row["losses"][1],
        serde_json::json!({"cause": "no_snapshot", "tokens": 16, "detail": "d", "block": block})
    );
    assert_eq!((&row["ssd_blocks"], &row["ssd_bytes"]), (&4.into(), &4_096.into()));
    assert_eq!((&row["closest_prefix_tokens"], &row["closest_request"]), (&80.into(), &7.into()));
    assert!(row["divergence"].is_null());
}
