use super::*;
use crate::event::{Body, Phase};
use crate::model::ModelError;
use crate::session::{Message, Role};

#[test]
fn no_two_lanes_compute_at_once_and_they_take_turns_at_going_first() {
    let mut bench = Bench::alike(3, 4);
    bench.until_gate(Gate::BeforeTurn);
    bench.obey(Command::Run { lane: A }, Gate::Ended);
    assert_eq!(bench.ended(), [4, 4, 4]);
    assert_eq!(bench.orders(), [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]].map(Vec::from));
    let mut computing: Option<usize> = None;
    let mut finished = Vec::new();
    for (lane, event) in bench.events() {
        match event.body {
            // Told anew when the turn that comes next is another.
            Body::GateChanged { gate: Gate::Running, .. } => {
                let before = computing.replace(lane);
                assert!(before.is_none() || before == Some(lane), "a lane began while another computed");
            }
            Body::GateChanged { .. } if computing == Some(lane) => computing = None,
            Body::Finished { .. } => finished.push(lane),
            _ => {}
        }
    }
    assert_eq!(finished, bench.orders().concat());
    let turns = bench.comparison.turns();
    assert_eq!(turns.iter().map(|turn| turn.order.clone()).collect::<Vec<_>>(), bench.orders());
    bench.finish();
}

#[test]
fn a_repeat_begins_with_another_lane() {
    let session = session(2);
    let lanes = ["dense", "b"].map(|name| lane(name, sim(), &session));
    let mut bench = Bench::start(lanes.into(), 1);
    bench.until_gate(Gate::BeforeTurn);
    bench.obey(Command::Run { lane: A }, Gate::Ended);
    assert_eq!(bench.orders(), [[1, 0], [0, 1]].map(Vec::from));
    bench.finish();
}

#[test]
fn a_turn_is_one_turn_of_each_and_a_phase_one_phase_of_each() {
    let mut bench = Bench::alike(2, 3);
    bench.until_gate(Gate::BeforeTurn);
    bench.obey(Command::StepTurn { lane: A }, Gate::BeforeTurn);
    assert_eq!(bench.ended(), [1, 1]);
    bench.obey(Command::StepPhase { lane: A }, Gate::AfterPhase);
    let phase =
        |bench: &Bench, lane| bench.comparison.ledger(lane).unwrap().current().map(|r| (r.turn, r.phase));
    assert!(phase(&bench, 0).is_some_and(|(turn, phase)| turn == 2 && phase != Phase::Done));
    assert_eq!(phase(&bench, 0), phase(&bench, 1));
    // The turn under way is ended, and no other begun.
    bench.obey(Command::StepTurn { lane: A }, Gate::BeforeTurn);
    assert_eq!(bench.ended(), [2, 2]);
    bench.obey(Command::StepTurn { lane: A }, Gate::Ended);
    bench.finish();
}

#[test]
fn a_lane_driven_by_itself_is_caught_up_with() {
    let mut bench = Bench::alike(2, 3);
    bench.until_gate(Gate::BeforeTurn);
    bench.lockstep.send_to(1, Command::StepTurn { lane: A });
    bench.until_gate(Gate::Running);
    bench.until_gate(Gate::BeforeTurn);
    assert_eq!(bench.ended(), [0, 1]);
    bench.obey(Command::StepTurn { lane: A }, Gate::BeforeTurn);
    assert_eq!(bench.ended(), [1, 1], "the other did nothing meanwhile");
    bench.finish();
}

#[test]
fn a_breakpoint_in_one_lane_stops_all_before_the_next_turn() {
    let mut bench = Bench::alike(2, 5);
    bench.until_gate(Gate::BeforeTurn);
    let conditions = vec!["prompt>3000".parse().unwrap()];
    bench.lockstep.send_to(1, Command::Break { conditions });
    bench.obey(Command::Run { lane: A }, Gate::Paused);
    let hit = bench.comparison.ledger(1).unwrap().breakpoint_hit().unwrap().request.unwrap().0 as usize;
    assert!((2..5).contains(&hit), "{hit}");
    assert_eq!(bench.ended(), [hit, hit - 1], "the other lane ends the turn that this one is held in");
    // Going on ends that turn first.
    bench.obey(Command::StepTurn { lane: A }, Gate::BeforeTurn);
    assert_eq!(bench.ended(), [hit, hit]);
    bench.finish();
}

#[test]
fn a_pause_holds_the_lane_that_computes_and_lets_no_other_begin() {
    // Idle gaps that pass leave time to pause in.
    let mut config = sim();
    config.replay.clock = crate::config::ClockKind::Wall;
    config.replay.idle = crate::config::IdleConfig::Seconds(0.1);
    let session = session(5);
    let lanes = ["dense", "b"].map(|name| lane(name, config.clone(), &session));
    let mut bench = Bench::start(lanes.into(), 0);
    bench.until_gate(Gate::BeforeTurn);
    bench.lockstep.send(Command::Run { lane: A });
    bench.until(
        |told| matches!(told, News::Event { event, .. } if matches!(event.body, Body::Finished { .. })),
    );
    bench.lockstep.send(Command::Pause);
    bench.until(|told| matches!(told, News::Gate(gate) if *gate != Gate::Running));
    let ended = bench.ended();
    assert!(ended.iter().all(|ended| *ended < 5), "{ended:?}");
    bench.obey(Command::Run { lane: A }, Gate::Ended);
    assert_eq!(bench.ended(), [5, 5], "after {ended:?}");
    bench.finish();
}

#[test]
fn injected_turns_and_forks_come_in_every_lane() {
    let mut bench = Bench::alike(2, 2);
    bench.until_gate(Gate::BeforeTurn);
    bench.obey(Command::StepPhase { lane: A }, Gate::AfterPhase);
    // Asked for in the middle of a turn: that is ended first.
    let messages = vec![Message::text(Role::User, "And now something else.")];
    bench.obey(Command::Inject { lane: A, messages, max_output_tokens: Some(2) }, Gate::BeforeTurn);
    assert_eq!(bench.ended(), [2, 2]);
    bench.lockstep.send(Command::Fork {
        lane: A,
        turn: 1,
        role: Role::User,
        content: "Begin elsewhere.".into(),
    });
    bench.obey(Command::Run { lane: LaneId(1) }, Gate::Ended);
    let ended = bench.ended();
    assert!(ended[0] > 2 && ended[0] == ended[1], "{ended:?}");
    let forked = bench.comparison.turns().into_iter().filter(|turn| turn.place.line == LaneId(1));
    assert!(
        forked.clone().count() > 0 && forked.into_iter().all(|turn| turn.cells.iter().all(Option::is_some))
    );
    bench.finish();
}

#[test]
fn what_cannot_be_done_holds_nothing_up() {
    let mut bench = Bench::alike(2, 2);
    bench.until_gate(Gate::BeforeTurn);
    bench.lockstep.send(Command::StepTurn { lane: LaneId(7) });
    bench.lockstep.send(Command::Inject {
        lane: LaneId(7),
        messages: vec![Message::text(Role::User, "x")],
        max_output_tokens: None,
    });
    bench.lockstep.send(Command::Inject { lane: A, messages: vec![], max_output_tokens: None });
    bench.lockstep.send(Command::Fork { lane: A, turn: 9, role: Role::User, content: "x".into() });
    bench.lockstep.send_to(9, Command::StepTurn { lane: A });
    bench.lockstep.send(Command::Run { lane: A });
    bench.until_gate(Gate::Ended);
    assert_eq!(bench.ended(), [2, 2]);
    // At the end there is nothing to run.
    bench.lockstep.send(Command::Run { lane: A });
    bench.lockstep.send(Command::StepTurn { lane: A });
    bench.finish();
}

#[test]
fn a_lane_that_cannot_start_is_told_and_the_others_can_go_on() {
    let session = session(2);
    let mut broken = lane("broken", sim(), &session);
    let refused =
        || ModelError::File { path: "x".into(), problem: "is broken".into(), remedy: "none".into() };
    broken.setup.load = Box::new(move || Err(refused()));
    let mut bench = Bench::start(vec![lane("dense", sim(), &session), broken], 0);
    bench.until_gate(Gate::BeforeTurn);
    bench.obey(Command::Run { lane: A }, Gate::Ended);
    assert_eq!(bench.ended(), [2, 0]);
    let comparison = bench.finish();
    assert!(comparison.ledger(1).unwrap().failure().unwrap().contains("is broken"));
    let verdict = &comparison.verdicts()[0];
    assert_eq!((verdict.requests, verdict.outcome), (0, None));
    assert!(verdict.sentence().contains("no request has been answered in both"));
}

#[test]
fn a_panic_in_one_lane_ends_that_lane_alone() {
    let mut bench = Bench::alike(2, 3);
    bench.until_gate(Gate::BeforeTurn);
    bench.obey(Command::StepPhase { lane: A }, Gate::AfterPhase);
    bench.lockstep.send_to(1, Command::Panic);
    bench.until(
        |told| matches!(told, News::Event { event, .. } if matches!(event.body, Body::EngineFailed { .. })),
    );
    bench.obey(Command::Run { lane: A }, Gate::Ended);
    assert!(bench.comparison.ledger(1).unwrap().failure().unwrap().contains("panicked"));
    assert_eq!(bench.ended(), [3, 0]);
    assert!(bench.finish().ledger(0).unwrap().failure().is_none());
}

#[test]
fn lanes_end_whenever_they_are_told_to() {
    for after in 0..6 {
        let mut bench = Bench::alike(2, 3);
        let mut told = 0;
        bench.lockstep.send(Command::Run { lane: A });
        bench.until(|_| {
            told += 1;
            told > after * 9
        });
        bench.finish();
    }
    // Nobody listens, and nobody ends them.
    let bench = Bench::alike(2, 3);
    drop(bench.news);
    bench.lockstep.send(Command::Run { lane: A });
    drop(bench.lockstep);
}
