use super::*;
use crate::config::{ControllerKind, DrafterKind};
use crate::event::{
    Arrival, Audit, Body, Cycle, DrafterStart, FinishReason, HistoryChange, Identity, Nanos, RequestId,
    RunFacts, SetBy, Source, SpeculationFacts, Stamp,
};
use crate::report::{drafting_table, notes};

/// A request as a lane tells it: eleven reply tokens.
#[derive(Clone)]
struct Told {
    ttft: f64,
    decode: f64,
    reply: Vec<u32>,
    start: Option<DrafterStart>,
    cycles: Vec<Cycle>,
    ended: Option<String>,
    shared_forwards: Option<u64>,
}

fn seconds(time: f64) -> Nanos {
    Nanos::from_seconds(time)
}

/// Decoded ordinarily, a tenth of a second a token.
fn dense() -> Told {
    Told {
        ttft: 1.0,
        decode: 1.0,
        reply: (0..11).collect(),
        start: None,
        cycles: Vec::new(),
        ended: None,
        shared_forwards: Some(0),
    }
}

fn start() -> DrafterStart {
    DrafterStart {
        drafter: DrafterKind::Mtp,
        depth_max: 2,
        controller: ControllerKind::Fixed,
        set_by: [SetBy::Model, SetBy::Model, SetBy::Model],
        greedy: true,
        primed_tokens: 100,
        cached_tokens: 0,
        took: seconds(0.6),
    }
}

fn cycle(first: u64, accepted: u32) -> Cycle {
    Cycle {
        first,
        context_tokens: 100,
        depth: 2,
        drafted: 2,
        tested: (accepted + 1).min(2),
        accepted,
        proposed: Vec::new(),
        draft: seconds(0.02),
        verify: Some(seconds(0.13)),
        sample: Nanos(0),
        rollback: Nanos(0),
        commit: Nanos(0),
        neighbours: 0,
        experts: None,
        audit: None,
    }
}

/// Ten tokens in four cycles of 0.15 s: two and a half tokens for one and a half dense steps. The head read the prompt for 0.6 s.
fn drafted() -> Told {
    let cycles = vec![cycle(1, 2), cycle(4, 2), cycle(7, 1), cycle(9, 1)];
    Told { ttft: 1.6, decode: 0.6, start: Some(start()), cycles, ..dense() }
}

fn run(identity: Identity, drafter: DrafterKind) -> RunFacts {
    let speculation = SpeculationFacts {
        drafter,
        loaded: vec![drafter, DrafterKind::Ngram],
        draft_model: None,
        depth_max: 2,
        controller: ControllerKind::Fixed,
        audit: false,
    };
    RunFacts {
        identity,
        // A head that is loaded is part of it.
        model_digest: drafter.word().to_owned(),
        speculation: Some(speculation),
        ..figures::run()
    }
}

fn tell(comparison: &mut Comparison, lane: usize, identity: Identity, requests: &[Told]) {
    let mut now = 0.0;
    let mut say = |at: f64, request: Option<u64>, body: Body| {
        let (at, request) = (Stamp(seconds(at).0), request.map(RequestId));
        comparison.apply_event(lane, &Event { seq: 0, at, lane: Some(A), request, body });
    };
    let drafter = if lane == 0 { DrafterKind::None } else { DrafterKind::Mtp };
    say(0.0, None, Body::RunStarted(Box::new(run(identity, drafter))));
    for (index, told) in requests.iter().enumerate() {
        let id = Some(index as u64 + 1);
        let arrival = Arrival {
            turn: index as u32 + 1,
            name: format!("r{index}"),
            source: Source::Replay,
            change: HistoryChange::Append,
            idle: None,
            prompt_tokens: 100,
            segments: Vec::new(),
            items: Vec::new(),
            max_output_tokens: None,
            delayed: None,
        };
        say(now, id, Body::Arrived(Box::new(arrival)));
        if let Some(message) = &told.ended {
            say(now, id, Body::DraftingEnded { message: message.clone() });
        }
        if let Some(start) = &told.start {
            say(now + told.ttft, id, Body::DrafterStarted(Box::new(start.clone())));
        }
        for (place, token) in told.reply.iter().enumerate() {
            let (token, index) = (*token, place as u64);
            say(now + told.ttft, id, Body::Token { token, text: "x".into(), index, margin: Some(1.0) });
        }
        for cycle in &told.cycles {
            say(now + told.ttft, id, Body::Cycled(Box::new(cycle.clone())));
        }
        let decoded = Body::Decoded {
            reason: FinishReason::Stop,
            output_tokens: told.reply.len() as u64,
            output_sha256: format!("{:?}", told.reply),
            text: String::new(),
            took: seconds(told.decode),
            shared_forwards: told.shared_forwards,
        };
        say(now + told.ttft + told.decode, id, decoded);
        let took = told.ttft + told.decode;
        say(now + took, id, Body::Finished { reason: FinishReason::Stop, took: seconds(took) });
        now += took;
    }
}

fn beside(identity: Identity, lane: &[Told]) -> Comparison {
    let mut comparison = Comparison::new(["none", "mtp-2"].map(str::to_owned));
    tell(&mut comparison, 0, identity, &vec![dense(); lane.len()]);
    tell(&mut comparison, 1, identity, lane);
    comparison
}

fn of_cell(comparison: &Comparison, turn: usize) -> Speculated {
    comparison.turns()[turn].cells[1].as_ref().unwrap().speculation.clone().unwrap()
}

#[test]
fn what_drafting_is_worth_follows_from_the_identities_and_is_held_against_the_clock() {
    let comparison = beside(Identity::Bitwise, &[drafted(), drafted()]);
    let near = |spread: Option<Spread>, wanted: f64| (spread.unwrap().median - wanted).abs() < 1e-6;
    let verdict = comparison.verdicts().remove(0);
    for of in [of_cell(&comparison, 0), of_cell(&comparison, 1), verdict.speculation.clone().unwrap()] {
        assert!(near(of.tokens_per_cycle, 2.5) && near(of.cost_ratio, 1.5) && near(of.share, 10.0 / 11.0));
        let speed_up = *of.speed_up().unwrap();
        // Cycles gave all ten tokens after the first.
        assert!(near(speed_up.predicted, 2.5 / 1.5) && near(speed_up.decode, 1.0 / 0.6), "{speed_up:?}");
        assert!(near(speed_up.whole, 2.0 / 2.2) && near(speed_up.whole_unprimed, 2.0 / 1.6));
        assert_eq!(speed_up.held, Some(true));
        assert_eq!((of.drafter, of.depth_max), (Some(DrafterKind::Mtp), Some(2)));
    }
    let all = verdict.speculation.as_ref().unwrap();
    assert!(near(all.priming_s, 1.2) && all.same_replies == (2, 2) && all.counters.cycles == 8);
    assert_eq!(
        verdict.sentence(),
        "mtp-2 decodes 1.67x as fast as ordinary decoding: a cycle gives 2.50 tokens for 1.50 dense steps (1.67x predicted, held); end to end it is \
         0.91x as fast: decoding wins and the whole request loses, by 1.20 s of priming (one run)"
    );
    assert!(comparison.turns()[0].cells[0].as_ref().unwrap().speculation.is_none());
}

#[test]
fn a_prediction_that_does_not_hold_is_marked() {
    let slow = Told { decode: 0.9, ..drafted() };
    let comparison = beside(Identity::Bitwise, &[slow]);
    assert_eq!(of_cell(&comparison, 0).speed_up().unwrap().held, Some(false));
    let text = drafting_table(&comparison, 200).unwrap().to_string();
    assert!(text.contains("1.67x!"), "{text}");
    let sentence = comparison.verdicts()[0].sentence();
    let why = "+50 % off, more than 10 %: +33 % of the decode time is neither cycles nor dense steps";
    assert!(sentence.contains(why), "{sentence}");
}

#[test]
fn a_lane_whose_audit_failed_shows_no_speed_up_at_any_turn() {
    let mut wrong = drafted();
    let problem = Some("the recurrent state that was kept".to_owned());
    wrong.cycles[1].audit = Some(Audit { passed: false, how: Identity::Bitwise, problem });
    let comparison = beside(Identity::Bitwise, &[drafted(), wrong]);
    for turn in [0, 1] {
        let of = of_cell(&comparison, turn);
        assert!(of.speed_up().is_none());
        let failure = of.failure().unwrap();
        assert_eq!(failure, "turn 2: the audit of cycle 2 failed: the recurrent state that was kept");
    }
    let sentence = comparison.verdicts()[0].sentence();
    assert!(sentence.starts_with("mtp-2 FAILED, so no speed-up is shown: turn 2: the audit"), "{sentence}");
    let text = drafting_table(&comparison, 200).unwrap().to_string();
    assert!(text.contains("FAILED") && !text.contains("7x"), "{text}");
    let json = serde_json::to_value(&comparison.rows()[1]).unwrap();
    assert!(json["compare"]["speculation"]["speed_up"].is_null());
    assert!(json["compare"]["speculation"]["failure"].as_str().unwrap().contains("audit"));
}

#[test]
fn another_reply_is_a_failure_where_the_same_bits_are_promised() {
    let mut other = drafted();
    other.reply[4] = 99;
    let lane = |identity, told: &Told| beside(identity, std::slice::from_ref(told));
    let promised = lane(Identity::Bitwise, &other);
    assert_eq!(of_cell(&promised, 0).failure(), Some("turn 1: the reply is not none's from token 5 on"));
    assert!(notes(&promised).iter().any(|line| line.contains("FAILED at turn 1")));
    let close = lane(Identity::Tolerance, &other);
    assert!(of_cell(&close, 0).speed_up().is_some_and(|speed_up| speed_up.decode.is_some()));
    assert!(notes(&close).iter().any(|line| line.contains("within tolerance")));
    other.start.as_mut().unwrap().greedy = false;
    assert!(of_cell(&lane(Identity::Bitwise, &other), 0).failure().is_none(), "sampled");
}

#[test]
fn a_lane_that_could_not_draft_says_why() {
    let why = "the drafter `mtp` is not loaded".to_owned();
    let idle = Told { ended: Some(why), ..dense() };
    let comparison = beside(Identity::Bitwise, &[idle]);
    let verdict = comparison.verdicts().remove(0);
    assert_eq!(verdict.sentence(), "mtp-2 drafted nothing: the drafter `mtp` is not loaded");
    let of = verdict.speculation.unwrap();
    assert_eq!((of.tokens_per_cycle, of.priming_s), (None, None), "nothing was primed");
}

#[test]
fn a_lane_that_drafts_is_no_ordinary_decoding() {
    let mut comparison = Comparison::new(["ngram", "mtp-2"].map(str::to_owned));
    for lane in 0..2 {
        tell(&mut comparison, lane, Identity::Bitwise, &[drafted()]);
    }
    let of = of_cell(&comparison, 0);
    assert!(of.against_drafts);
    assert_eq!((of.cost_ratio, of.speed_up().unwrap().predicted), (None, None));
    let sentence = comparison.verdicts()[0].sentence();
    assert!(sentence.contains("1.00x as fast as ngram: there is no lane without a drafter"), "{sentence}");
    let mut wrong = Comparison::new(["ngram", "mtp-2"].map(str::to_owned));
    let mut failing = drafted();
    failing.cycles[0].audit = Some(Audit { passed: false, how: Identity::Bitwise, problem: None });
    for (lane, told) in [failing, drafted()].into_iter().enumerate() {
        tell(&mut wrong, lane, Identity::Bitwise, &[told]);
    }
    let failure = of_cell(&wrong, 0).failure().unwrap().to_owned();
    assert!(failure.starts_with("turn 1 of ngram, which it is compared with: the audit"), "{failure}");
}

#[test]
fn a_whole_that_priming_does_not_explain_is_not_laid_to_it() {
    let mut slow = drafted();
    slow.ttft = 3.0;
    let sentence = beside(Identity::Bitwise, &[slow]).verdicts()[0].sentence();
    assert!(sentence.contains("the whole request loses, which is not explained by priming"), "{sentence}");
    let none = Told { decode: 1.2, ttft: 0.5, ..drafted() };
    let sentence = beside(Identity::Bitwise, &[none]).verdicts()[0].sentence();
    assert!(sentence.contains("the whole request wins, which is not explained by decoding"), "{sentence}");
}

#[test]
fn bits_are_said_to_be_the_same_only_where_they_were_compared() {
    let said = |identity, told: Told| {
        let lines = notes(&beside(identity, &[told]));
        lines.into_iter().find(|line| line.starts_with("mtp-2 beside none")).unwrap()
    };
    let line = said(Identity::Bitwise, drafted());
    assert!(line.ends_with(": replies the same; state not compared"), "{line}");
    let mut audited = drafted();
    for cycle in &mut audited.cycles {
        cycle.audit = Some(Audit { passed: true, how: Identity::Bitwise, problem: None });
    }
    let line = said(Identity::Bitwise, audited.clone());
    assert!(line.ends_with("all the same, bit for bit"), "{line}");
    audited.start.as_mut().unwrap().greedy = false;
    audited.reply[4] = 99;
    let line = said(Identity::Bitwise, audited);
    assert!(line.ends_with("0 of 1 reply the same, state and logits of 4 cycles compared with recomputation: sampled: replies need not be the same"), "{line}");
}

#[test]
fn what_other_sequences_shared_has_no_cost() {
    let mut shared = drafted();
    for cycle in &mut shared.cycles {
        (cycle.verify, cycle.neighbours) = (None, 1);
    }
    let of = of_cell(&beside(Identity::Bitwise, &[shared]), 0);
    assert_eq!((of.cost_ratio, of.speed_up().unwrap().predicted), (None, None));
    assert!(of.tokens_per_cycle.is_some());
    let beside_others = Told { shared_forwards: Some(3), ..drafted() };
    let of = of_cell(&beside(Identity::Bitwise, &[beside_others]), 0);
    let speed_up = of.speed_up().unwrap();
    assert_eq!((speed_up.decode, speed_up.whole, speed_up.whole_unprimed), (None, None, None));
}

#[test]
fn a_comparison_without_drafting_has_no_such_table() {
    let comparison = beside(Identity::Bitwise, &[dense()]);
    assert!(drafting_table(&comparison, 80).is_none());
    assert!(comparison.verdicts()[0].speculation.is_none());
}

#[test]
fn lanes_of_drafters_on_the_simulated_device_say_what_they_are_worth() {
    let session = session(3);
    let lanes = ["none", "ngram"].map(|name| {
        let spec: LaneSpec = name.parse().unwrap();
        let mut config = crate::config::load(None, &spec.overrides).unwrap();
        config.model.device = crate::config::DeviceSetting::Sim;
        config.replay.max_output_tokens = 24;
        lane(name, spec.finish(config), &session)
    });
    let mut bench = Bench::start(lanes.into(), 0);
    bench.until_gate(Gate::BeforeTurn);
    bench.obey(Command::Run { lane: A }, Gate::Ended);
    let comparison = bench.finish();
    let verdict = comparison.verdicts().remove(0);
    let of = verdict.speculation.unwrap();
    assert_eq!((of.drafter, of.same_replies), (Some(DrafterKind::Ngram), (3, 3)));
    assert_eq!(of.failure(), None);
}
