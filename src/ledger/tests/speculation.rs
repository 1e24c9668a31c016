//! The account of speculation: what it counts, what it withholds, what it predicts.

use super::*;
use crate::config::{ControllerKind, DrafterKind};
use crate::event::{Audit, Cycle, DrafterStart, ExpertsTouched, Identity, SetBy, VerifyCurve};

const STEP: u64 = 1_000_000;

fn start() -> DrafterStart {
    DrafterStart {
        drafter: DrafterKind::Ngram,
        depth_max: 3,
        controller: ControllerKind::Fixed,
        set_by: [SetBy::Default, SetBy::Default, SetBy::Hand],
        greedy: true,
        primed_tokens: 90,
        cached_tokens: 0,
        took: Nanos(STEP / 2),
    }
}

/// A cycle that costs `1 + drafted / 2` dense steps, a tenth of it drafting.
fn cycle(first: u64, drafted: u32, accepted: u32) -> Cycle {
    let took = STEP + u64::from(drafted) * STEP / 2;
    Cycle {
        first,
        context_tokens: 100,
        depth: 3,
        drafted,
        tested: (accepted + 1).min(drafted),
        accepted,
        proposed: Vec::new(),
        draft: Nanos(took / 10),
        verify: Some(Nanos(took - took / 10)),
        sample: Nanos(0),
        rollback: Nanos(0),
        commit: Nanos(0),
        neighbours: 0,
        experts: None,
        audit: None,
    }
}

/// A ledger in which request `id` is told of.
struct Told {
    ledger: Ledger,
    seq: u64,
    shared_forwards: Option<u64>,
}

impl Told {
    fn new() -> Told {
        Told { ledger: Ledger::new(), seq: 0, shared_forwards: None }
    }

    fn tell(&mut self, id: u64, body: Body) {
        let event = Event {
            seq: self.seq,
            at: Stamp(self.seq),
            lane: Some(LaneId(0)),
            request: Some(RequestId(id)),
            body,
        };
        self.ledger.apply(&event);
        self.seq += 1;
    }

    /// A reply of the given tokens that took so many steps to decode.
    fn reply(&mut self, id: u64, cycles: &[Cycle], tokens: &[&str], steps: f64) {
        self.tell(id, Body::Arrived(Box::new(arrival(id as u32))));
        if !cycles.is_empty() {
            self.tell(id, Body::DrafterStarted(Box::new(start())));
        }
        for (index, text) in tokens.iter().enumerate() {
            self.tell(
                id,
                Body::Token { token: 1, text: (*text).to_owned(), index: index as u64, margin: None },
            );
        }
        for cycle in cycles {
            self.tell(id, Body::Cycled(Box::new(cycle.clone())));
        }
        let text = tokens.concat();
        let took = Nanos((steps * STEP as f64) as u64);
        let (output_tokens, output_sha256) = (tokens.len() as u64, String::new());
        self.tell(
            id,
            Body::Decoded {
                reason: FinishReason::Stop,
                output_tokens,
                output_sha256,
                text,
                took,
                shared_forwards: self.shared_forwards,
            },
        );
    }

    fn account(&self, id: u64) -> SpeculationAccount {
        self.ledger.speculation_account(RequestId(id)).unwrap()
    }
}

/// Three cycles of 3, 1 and 2 drafted, with 3, 0 and 1 accepted: 7 tokens for 2.5 + 1.5 + 2 steps. And three parked steps.
fn cycles() -> Vec<Cycle> {
    vec![cycle(1, 3, 3), cycle(5, 1, 0), cycle(6, 2, 1)]
}

#[test]
fn an_account_is_kept_in_the_requests_own_dense_steps() {
    let mut told = Told::new();
    told.reply(1, &cycles(), &["x"; 16], 6.0 + 8.0);
    let account = told.account(1);
    assert_eq!((account.counters.cycles, account.counters.drafted, account.counters.accepted), (3, 6, 4));
    assert_eq!(account.counters.problem(), None);
    assert_eq!((account.parked_steps, account.problem.as_deref()), (Some(8), None));
    let dense = account.dense().unwrap();
    assert_eq!((dense.from, dense.ms), (DenseSource::Own { steps: 8 }, 1.0));
    assert_eq!((account.tokens_per_cycle(), account.cost_ratio()), (Some(7.0 / 3.0), Some(2.0)));
    assert_eq!(account.share(), Some(7.0 / 16.0));
    // Decoding made 15 tokens: 7 in cycles that cost 6 dense steps, and 8 more in as many.
    let expected = 15.0 / (6.0 + 8.0);
    assert!((account.speed_up().unwrap().unwrap() - expected).abs() < 1e-12);
    assert_eq!(account.time.unwrap().total(), Nanos(6 * STEP));
    assert_eq!(account.priming, Some(Nanos(STEP / 2)));

    let row = serde_json::to_value(&told.ledger.rows()[0]).unwrap();
    let spec = &row["spec"];
    assert_eq!(
        (&spec["drafter"], &spec["depth_max"], &spec["parked"]),
        (&"ngram".into(), &3.into(), &8.into())
    );
    assert_eq!(spec["accepted_per_position"][0], serde_json::json!({ "tested": 3, "accepted": 2 }));
    assert_eq!((&spec["cost_ratio"], &spec["break_even"]), (&2.0.into(), &2.0.into()));
    assert_eq!((&spec["priming_s"], &spec["draft_s"]), (&0.0005.into(), &0.0006.into()));
    assert!(spec["experts"].is_null() && spec["fell_back"].is_null());
}

#[test]
fn without_ordinary_steps_of_its_own_it_is_kept_in_those_of_a_dense_request() {
    let mut told = Told::new();
    // All of the reply came in cycles: there is no cost before somebody measures a dense step.
    told.reply(1, &cycles(), &["x"; 8], 6.0);
    let account = told.account(1);
    assert_eq!((account.dense(), account.cost_ratio(), account.speed_up()), (None, None, Ok(None)));
    assert_eq!(told.ledger.rows()[0].spec.as_ref().unwrap().predicted_speedup, None);
    told.reply(2, &[], &["x"; 5], 8.0);
    let account = told.account(1);
    assert_eq!(account.dense(), Some(DenseStep { ms: 2.0, from: DenseSource::Request(RequestId(2)) }));
    assert_eq!(account.cost_ratio(), Some(1.0));
    assert!((account.measured_speed_up().unwrap().unwrap() - 2.0 / (6.0 / 7.0)).abs() < 1e-12);
    assert_eq!(told.ledger.rows()[1].spec, None);
}

#[test]
fn after_a_failed_audit_no_speed_up_is_shown_only_the_failure() {
    let mut told = Told::new();
    let mut audited = cycles();
    let audit = |passed, problem: Option<&str>| {
        Some(Audit { passed, how: Identity::Bitwise, problem: problem.map(str::to_owned) })
    };
    for cycle in &mut audited {
        cycle.audit = audit(true, None);
    }
    told.reply(1, &audited, &["x"; 16], 14.0);
    assert_eq!(told.account(1).audit, AuditVerdict::Passed { cycles: 3, how: Identity::Bitwise });
    assert!(told.account(1).speed_up().unwrap().is_some());
    assert!(told.ledger.what_if().unwrap().is_ok());

    audited[1].audit = audit(false, Some("the recurrent state that was kept"));
    told.reply(2, &audited, &["x"; 16], 14.0);
    let account = told.account(2);
    let failure = account.speed_up().unwrap_err();
    assert_eq!((failure.cycle, failure.first), (2, 5));
    assert_eq!(failure.problem, "the recurrent state that was kept");
    assert!(account.measured_speed_up().is_err());
    // What was counted stays, what it was worth does not: not in the row, not on paper, not as a prediction.
    let row = serde_json::to_value(&told.ledger.rows()[1]).unwrap();
    assert!(row["spec"]["predicted_speedup"].is_null());
    assert_eq!(
        (&row["spec"]["audit"]["verdict"], &row["spec"]["audit"]["cycle"]),
        (&"failed".into(), &2.into())
    );
    assert!(row["spec"]["cost_ratio"].is_null() && row["spec"]["dense_step"].is_null());
    assert_eq!((account.cost_ratio(), account.pays(), account.dense()), (None, None, None));
    assert!(told.ledger.request(RequestId(2)).unwrap().depth_costs(&account).is_none());
    // On paper the other reply is decoded again, and this one is left out.
    let what_if = told.ledger.what_if().unwrap().unwrap();
    assert_eq!((what_if.requests, what_if.failed[0].0), (vec![RequestId(1)], RequestId(2)));
    assert!(told.ledger.what_if_of(&[RequestId(2)]).unwrap().is_err());
    assert!(told.ledger.prediction(RequestId(1), RequestId(2)).unwrap().is_err());
    assert!(crate::report::speculation_text(&told.ledger).contains("FAILED at cycle 2"));
}

#[test]
fn what_other_sequences_shared_is_no_measurement() {
    let mut told = Told::new();
    let mut shared = cycles();
    (shared[2].neighbours, shared[2].verify) = (1, None);
    told.reply(1, &shared, &["x"; 11], 9.0);
    let account = told.account(1);
    assert_eq!((account.time, account.dense(), account.cost_ratio()), (None, None, None));
    assert_eq!((account.neighbours, account.tokens_per_cycle()), (1, Some(7.0 / 3.0)));
    assert_eq!((account.speed_up(), account.ms_per_token), (Ok(None), None));
    let row = serde_json::to_value(&told.ledger.rows()[0]).unwrap();
    assert!(row["spec"]["verify_s"].is_null() && row["spec"]["cost_ratio"].is_null());

    // So are the steps of a reply without a drafter, and those outside of cycles.
    let shared = |told: &mut Told, id: u64, cycles: &[Cycle], tokens: &[&str], steps: f64| {
        told.shared_forwards = Some(1);
        told.reply(id, cycles, tokens, steps);
        told.shared_forwards = None;
    };
    let mut told = Told::new();
    shared(&mut told, 1, &[], &["x"; 9], 8.0);
    shared(&mut told, 2, &cycles(), &["x"; 16], 14.0);
    assert_eq!(told.ledger.request(RequestId(1)).unwrap().ms_per_token(), None);
    let account = told.account(2);
    assert_eq!((account.dense(), account.ms_per_token, account.cost_ratio()), (None, None, None));
    assert_eq!(account.measured_speed_up(), Ok(None));
    assert_eq!(told.ledger.prediction(RequestId(1), RequestId(2)), None);
}

#[test]
fn two_requests_predict_and_later_ones_show_whether_it_held() {
    let mut told = Told::new();
    told.reply(1, &[], &["x"; 9], 8.0);
    told.reply(2, &cycles(), &["x"; 8], 6.0);
    let prediction = told.ledger.prediction(RequestId(1), RequestId(2)).unwrap().unwrap();
    // All 7 tokens after the first at 7/3 for 2.
    let expected = 7.0 / 6.0;
    assert!((prediction.speed_up - expected).abs() < 1e-12);
    assert_eq!(prediction.prompt_tokens, [Some(100), Some(100)]);
    assert!(told.ledger.prediction_checks(&prediction).is_empty());
    told.reply(3, &cycles(), &["x"; 8], 6.1);
    told.reply(4, &cycles(), &["x"; 8], 9.0);
    told.reply(5, &[], &["x"; 9], 8.0);
    let checks = told.ledger.prediction_checks(&prediction);
    assert_eq!(checks.iter().map(|check| check.request.0).collect::<Vec<_>>(), [3, 4]);
    assert_eq!(checks[0].words(), "held");
    // 7 steps' worth of tokens in 9: the prediction was {expected}.
    let off = (expected / (7.0 / 9.0) - 1.0) * 100.0;
    assert_eq!(checks[1].words(), format!("did not hold, by {off:.0} %"));
    assert_eq!(told.ledger.prediction(RequestId(2), RequestId(1)), None);
}

#[test]
fn steps_between_another_requests_cycles_are_no_dense_reply() {
    let mut told = Told::new();
    told.reply(1, &cycles(), &["x"; 16], 6.0 + 8.0);
    // Its own steps are too few, so those of the first serve; nothing is measured against them.
    told.reply(2, &cycles(), &["x"; 11], 6.0 + 9.0);
    let account = told.account(2);
    assert_eq!(account.dense(), Some(DenseStep { ms: 1.0, from: DenseSource::StepsOf(RequestId(1)) }));
    assert_eq!((account.cost_ratio(), account.measured_speed_up()), (Some(2.0), Ok(None)));
    // A whole dense reply comes before them, however far.
    told.reply(9, &[], &["x"; 5], 4.0);
    assert_eq!(told.account(2).dense().unwrap().from, DenseSource::Request(RequestId(9)));
    assert!(told.account(2).measured_speed_up().unwrap().is_some());
    assert_eq!(told.account(1).dense().unwrap().from, DenseSource::Own { steps: 8 });
}

#[test]
fn what_a_zero_cycle_did_for_the_drafter_is_no_dense_step() {
    let mut told = Told::new();
    let zero = |first| Cycle {
        draft: Nanos(STEP),
        verify: Some(Nanos(STEP)),
        sample: Nanos(STEP / 4),
        rollback: Nanos(STEP),
        commit: Nanos(STEP / 4),
        ..cycle(first, 0, 0)
    };
    let mut all = cycles();
    all.extend((8..16).map(zero));
    told.reply(1, &all, &["x"; 16], 6.0 + 8.0 * 3.5);
    let dense = told.account(1).dense().unwrap();
    assert_eq!((dense.from, dense.ms), (DenseSource::Own { steps: 8 }, 1.5));
}

#[test]
fn counters_that_cannot_be_are_told_and_nothing_follows_from_them() {
    let mut told = Told::new();
    let mut cycles = cycles();
    cycles[1].accepted = 4;
    told.reply(1, &cycles, &["x"; 30], 30.0);
    let account = told.account(1);
    assert_eq!(account.counters.accepted, 8);
    assert!(account.problem.as_ref().unwrap().contains("accepted"));
    assert_eq!((account.cost_ratio(), account.speed_up(), account.dense()), (None, Ok(None), None));
    assert!(crate::report::speculation_text(&told.ledger).contains("CANNOT BE"));
    let row = serde_json::to_value(&told.ledger.rows()[0]).unwrap();
    assert!(row["spec"]["counters_problem"].is_string());
}

#[test]
fn a_draft_counts_for_the_kind_of_text_it_was_tested_in() {
    let mut told = Told::new();
    let tokens = ["So: ", "{", "\"path", "\"", ": ", "\"src", "/ab.rs", "\"", "}", " ok"];
    told.reply(1, &[cycle(1, 3, 2), cycle(4, 3, 3), cycle(8, 1, 0)], &tokens, 9.0);
    let kinds = told.ledger.request(RequestId(1)).unwrap().acceptance_by_kind();
    let of = |kind| {
        let told = kinds.iter().find(|told| told.kind == kind)?;
        Some((told.tokens, told.drafts.tested, told.drafts.accepted))
    };
    // The first cycle tests places 1 to 3, the second 4 to 6, the third 8.
    assert_eq!(of(ReplyKind::JsonKey), Some((2, 2, 1)));
    assert_eq!(of(ReplyKind::Path), Some((1, 1, 1)));
    assert_eq!(of(ReplyKind::JsonValue), Some((5, 4, 3)));
    assert_eq!(of(ReplyKind::Prose), Some((2, 0, 0)));
    assert_eq!(of(ReplyKind::Code), None);
}

#[test]
fn the_curve_fills_in_depths_and_the_optimum_is_predicted() {
    let mut told = Told::new();
    told.reply(1, &cycles(), &["x"; 16], 14.0);
    let request = |told: &Told| told.ledger.request(RequestId(1)).unwrap().clone();
    let costs = request(&told).depth_costs(&told.account(1)).unwrap();
    assert_eq!(costs.depths.iter().map(|depth| depth.cost).collect::<Vec<_>>(), [1.0, 1.5, 2.0, 2.5]);
    assert!(costs.depths.iter().all(|depth| depth.measured));
    // Acceptance 2/3, 1/2, 1: a token in vain is dearer than what the second and third bring.
    assert_eq!(costs.best, 1);
    assert!((costs.best_rate - (5.0 / 3.0) / 1.5).abs() < 1e-12);
    assert!((costs.depths[3].gives.unwrap() - 7.0 / 3.0).abs() < 1e-12);
    let points = (1..=8).map(|width| (width, Nanos(STEP * u64::from(width)))).collect();
    told.tell(1, Body::VerifyCurve(Box::new(VerifyCurve { context_tokens: 116, points, repeats: 5 })));
    let costs = request(&told).depth_costs(&told.account(1)).unwrap();
    assert_eq!(costs.depths.len(), 8);
    assert_eq!((costs.depths[3].cost, costs.depths[3].cycles, costs.depths[5].cycles), (2.5, 1, 0));
    assert!(costs.depths[5].cost > 6.0 && costs.depths[5].gives.is_none());
}

#[test]
fn replies_are_decoded_again_on_paper() {
    let mut told = Told::new();
    told.reply(1, &cycles(), &["x"; 16], 14.0);
    told.reply(2, &cycles(), &["x"; 8], 6.0);
    let what_if = told.ledger.what_if().unwrap().unwrap();
    assert_eq!(what_if.requests, [RequestId(1), RequestId(2)]);
    assert!((what_if.recorded_s.unwrap() - 0.020).abs() < 1e-12);
    let of = |policy| {
        let (_, replayed) = what_if.policies.iter().find(|(p, _)| *p == policy).unwrap();
        WhatIf::sum(replayed)
    };
    use crate::decode::what_if::Policy;
    assert!((of(Policy::Recorded).seconds - 0.020).abs() < 1e-9);
    assert_eq!((of(Policy::Fixed(0)).speed_up(), of(Policy::Fixed(0)).tokens), (Some(1.0), 22));
    for (policy, replayed) in &what_if.policies {
        assert!(of(Policy::Oracle).seconds <= WhatIf::sum(replayed).seconds + 1e-12, "{policy:?}");
    }
    let text = crate::report::speculation_text(&told.ledger);
    for words in
        ["Drafting by request", "predicted optimum", "draft position 3", "oracle", "fixed 8", "adaptive ≤3"]
    {
        assert!(text.contains(words), "{words} is missing:\n{text}");
    }
    assert_eq!(crate::report::speculation_text(&Ledger::new()), "");
}

#[test]
fn experts_are_averaged_over_the_forwards_of_the_request_alone() {
    let mut told = Told::new();
    let mut cycles = cycles();
    for (cycle, touched) in cycles.iter_mut().zip([20, 10, 90]) {
        cycle.experts = Some(ExpertsTouched { touched, of_one_token: 8, experts: 256 });
    }
    (cycles[2].neighbours, cycles[2].verify) = (2, None);
    told.reply(1, &cycles, &["x"; 11], 9.0);
    let experts = told.account(1).experts.unwrap();
    assert_eq!((experts.touched, experts.of_one_token, experts.experts), (15.0, 8, 256));
}

#[test]
fn the_facts_hash_has_what_a_fixed_depth_gave_and_no_times() {
    let hash = |factor: u64, accepted: u32, controller: ControllerKind| {
        let mut told = Told::new();
        let start = DrafterStart { took: Nanos(factor), controller, ..start() };
        told.tell(1, Body::DrafterStarted(Box::new(start)));
        let slow = Cycle {
            draft: Nanos(factor),
            verify: Some(Nanos(factor)),
            commit: Nanos(factor),
            ..cycle(1, 3, accepted)
        };
        told.tell(1, Body::Cycled(Box::new(slow)));
        let curve = VerifyCurve { context_tokens: 9, points: vec![(1, Nanos(factor))], repeats: 1 };
        told.tell(1, Body::VerifyCurve(Box::new(curve)));
        told.ledger.facts_hash()
    };
    let (fixed, adaptive) = (ControllerKind::Fixed, ControllerKind::Adaptive);
    assert_eq!(hash(1, 2, fixed), hash(7, 2, fixed));
    assert_ne!(hash(1, 2, fixed), hash(1, 3, fixed));
    // An adaptive depth goes by times.
    assert_eq!(hash(1, 2, adaptive), hash(7, 3, adaptive));
}
