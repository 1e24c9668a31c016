//! Several lanes at once: each runs its own turns in order, with gaps of its own, and its requests share the scheduler with the others'.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

const B: LaneId = LaneId(1);

/// A session whose prompts are its own.
fn named(title: &str, turns: usize) -> Session {
    let mut session = session(turns);
    session.title = title.to_owned();
    session.system = Some(format!("You work on {title}. ").repeat(20));
    session
}

fn open(bench: &mut Bench, session: Session) {
    bench.send(Command::Open { session: Arc::new(session) });
    bench.until(|event| matches!(event.body, Body::LaneOpened { .. }));
    bench.until_gate(Gate::BeforeTurn);
}

/// Waits until the gates of so many lanes say that they have ended.
fn until_all_ended(bench: &mut Bench, lanes: usize) {
    let mut ended = BTreeSet::new();
    bench.until(|event| {
        if let Body::GateChanged { gate: Gate::Ended, .. } = event.body {
            ended.insert(event.lane);
        }
        ended.len() == lanes
    });
}

/// Two sessions, at once or one after the other. The synthetic tokenizer numbers words as it meets them, so both are opened first.
fn both(at_once: bool) -> (Vec<Event>, Ledger) {
    let mut config = config();
    config.replay.idle = crate::config::IdleConfig::Seconds(0.01);
    let mut bench = Bench::start(config, named("one", 4));
    open(&mut bench, named("another", 5));
    if at_once {
        bench.send(Command::RunAll);
        until_all_ended(&mut bench, 2);
    } else {
        for lane in [A, B] {
            bench.send(Command::Run { lane });
            let ended = |event: &Event| matches!(event.body, Body::GateChanged { gate: Gate::Ended, .. });
            bench.until(|event| event.lane == Some(lane) && ended(event));
        }
    }
    bench.end()
}

/// Replies of a lane, by turn.
fn said(ledger: &Ledger, lane: LaneId) -> Vec<(u32, Option<String>)> {
    ledger.lane_requests(lane).map(|request| (request.turn, request.output_sha256.clone())).collect()
}

#[test]
fn lanes_run_at_once_each_in_order_and_each_says_what_it_says_alone() {
    let (events, ledger) = both(true);
    let (_, apart) = both(false);
    let mut under_way: BTreeMap<RequestId, LaneId> = BTreeMap::new();
    let mut shared = 0;
    for event in &events {
        let (Some(id), Some(lane)) = (event.request, event.lane) else { continue };
        match event.body {
            Body::Arrived(_) => {
                assert!(under_way.values().all(|other| *other != lane), "a lane has one request at a time");
                under_way.insert(id, lane);
                shared += usize::from(under_way.len() > 1);
            }
            Body::Finished { .. } => drop(under_way.remove(&id)),
            _ => {}
        }
    }
    assert!(shared >= 3, "{shared} requests arrived while another lane's was under way");
    for (lane, title, turns) in [(A, "one", 4), (B, "another", 5)] {
        let of_lane = said(&ledger, lane);
        assert_eq!(
            of_lane.iter().map(|(turn, _)| *turn).collect::<Vec<_>>(),
            (1..=turns).collect::<Vec<_>>()
        );
        assert_eq!(of_lane, said(&apart, lane), "{title}");
        assert_eq!(ledger.lane(lane).unwrap().title, title);
        assert!(ledger.lane_requests(lane).all(|request| request.error.is_none()));
    }
}

#[test]
fn several_lanes_give_the_same_events_byte_for_byte() {
    let bytes = || serde_json::to_vec(&both(true).0).unwrap();
    assert_eq!(bytes(), bytes());
}

#[test]
fn a_lane_that_is_told_to_run_does_not_stop_the_one_that_runs() {
    let mut bench = Bench::start(config(), named("one", 3));
    open(&mut bench, named("another", 3));
    bench.send(Command::Run { lane: A });
    bench.send(Command::Run { lane: B });
    until_all_ended(&mut bench, 2);
    let (_, ledger) = bench.end();
    assert_eq!((ledger.lane_requests(A).count(), ledger.lane_requests(B).count()), (3, 3));
}

#[test]
fn a_pause_holds_every_lane_and_stepping_one_leaves_the_other_where_it_is() {
    let mut bench = Bench::start(config(), named("one", 3));
    open(&mut bench, named("another", 3));
    bench.send(Command::StepTurn { lane: B });
    bench.until(|event| event.lane == Some(B) && matches!(event.body, Body::Finished { .. }));
    bench.until_gate(Gate::BeforeTurn);
    assert_eq!(bench.ledger.lane_requests(A).count(), 0);
    bench.send(Command::RunAll);
    bench.send(Command::Pause);
    let mut held = BTreeSet::new();
    bench.until(|event| {
        if let Body::GateChanged { gate, .. } = event.body {
            match gate {
                Gate::Running => drop(held.remove(&event.lane)),
                _ => drop(held.insert(event.lane)),
            }
        }
        held.len() == 2
    });
    bench.send(Command::RunAll);
    until_all_ended(&mut bench, 2);
    let (_, ledger) = bench.end();
    assert_eq!((ledger.lane_requests(A).count(), ledger.lane_requests(B).count()), (3, 3));
}

#[test]
fn a_shutdown_ends_the_requests_of_all_lanes() {
    let mut bench = Bench::start(config(), named("one", 3));
    open(&mut bench, named("another", 3));
    bench.send(Command::RunAll);
    bench.until(|event| event.lane == Some(B) && matches!(event.body, Body::Arrived(_)));
    let (events, _) = bench.end();
    let count = |is: fn(&Body) -> bool| events.iter().filter(|event| is(&event.body)).count();
    let arrived = count(|body| matches!(body, Body::Arrived(_)));
    assert_eq!(arrived, count(|body| matches!(body, Body::Finished { .. } | Body::Failed { .. })));
}
