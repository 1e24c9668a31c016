//! Lanes side by side: the compare pane, the lane in focus, commands for all of them, and the way there and back.

use crossterm::event::KeyCode;
use escarp::compare::News;
use escarp::config::SparseOverride;
use escarp::engine::Command;
use escarp::event::*;
use escarp::tui::app::{Effect, Model, Msg, Pane, update};
use escarp::tui::log::LogRing;
use escarp::tui::panes::transcript::WrapCache;

use super::sample::{Run, Turn};
use super::{ANSI, Bench, MONO_ASCII, rows, snapshot};

pub(super) fn bench(names: &[&str], news: Vec<News>) -> Bench {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    let mut bench =
        Bench { model: Model::live(names, LogRing::default()), wrapped: WrapCache::default(), theme: ANSI };
    update(&mut bench.model, Msg::News(news));
    bench
}

pub(super) fn told(lane: usize, events: Vec<Event>) -> impl Iterator<Item = News> {
    events.into_iter().map(move |event| News::Event { lane, event })
}

/// Eight turns whose times to first token are those of `run`, times `factor(turn)`, with a checkpoint that stands still behind the third where
/// `pinned`.
fn lane(factor: impl Fn(u32) -> f64, pinned: bool, reply: &'static str) -> Vec<Event> {
    let mut run = Run::new();
    for number in 1..=8 {
        run.turn(&Turn { request: number, turn: number as u32, fresh: 1_500, reply, ..Turn::default() });
    }
    let mut events = run.events();
    let (mut turn, mut arrived, mut shift) = (0, 0, 0i64);
    for event in &mut events {
        event.at = Stamp(event.at.0.saturating_add_signed(shift));
        let old = event.at.0;
        match &mut event.body {
            Body::Arrived(arrival) => (turn, arrived) = (arrival.turn, old),
            Body::Restored(restore) if pinned && turn > 3 => restore.checkpoint_tokens = 2_304,
            Body::Token { index: 0, .. } => {
                let waited = (old - arrived) as f64 * factor(turn);
                event.at = Stamp(arrived + waited as u64);
                shift += event.at.0 as i64 - old as i64;
            }
            Body::Stored { canonical_tokens, .. } if pinned && turn > 2 => *canonical_tokens = 2_304,
            _ => {}
        }
    }
    events
}

const REPLY: &str = "I'll look at the restore first.";

/// A sparse lane that leads and falls behind, whose replies depart from the dense ones at their fourth token.
fn two() -> Bench {
    let mut dense = lane(|_| 1.0, false, REPLY);
    let mut sparse = lane(|turn| if turn < 5 { 0.4 } else { 2.5 }, true, "I'll look at the log first.");
    for event in dense.iter_mut().chain(&mut sparse) {
        match &mut event.body {
            Body::Token { index: 3, margin, .. } => *margin = Some(0.04),
            Body::Decoded { text, output_sha256, .. } => output_sha256.clone_from(text),
            _ => {}
        }
    }
    for event in &mut sparse {
        if let Body::Token { index: 3, token, .. } = &mut event.body {
            *token += 50;
        }
    }
    let news = told(0, dense).chain(told(1, sparse));
    bench(&["dense", "sparse"], news.chain([News::Gate(Gate::BeforeTurn)]).collect())
}

fn four() -> Bench {
    let news = told(0, lane(|_| 1.0, false, REPLY))
        .chain(told(1, lane(|turn| 0.2 * f64::from(turn), true, REPLY)))
        .chain(told(2, lane(|_| 0.7, false, REPLY)))
        .chain(told(3, lane(|_| 1.3, true, REPLY)));
    bench(&["dense", "sparse", "keep10", "deep"], news.chain([News::Gate(Gate::BeforeTurn)]).collect())
}

#[test]
fn lanes_side_by_side_at_every_size() {
    for (name, make) in [("lanes-two", two as fn() -> Bench), ("lanes-four", four)] {
        for (variant, theme, width, height) in [
            ("80x24", ANSI, 80, 24),
            ("120x40", ANSI, 120, 40),
            ("160x48", ANSI, 160, 48),
            ("80x24-mono-ascii", MONO_ASCII, 80, 24),
        ] {
            let mut bench = make();
            bench.theme = theme;
            let frame = bench.frame(width, height);
            assert!(theme == ANSI || frame.content.iter().all(|cell| cell.symbol().is_ascii()), "{name}");
            snapshot(&format!("{name}-{variant}"), &frame);
        }
    }
}

#[test]
fn who_leads_who_falls_behind_and_the_verdict_are_in_sight_without_a_key() {
    for (width, height) in [(80, 24), (120, 40)] {
        let mut bench = two();
        let text = bench.text(width, height);
        for words in ["falls behind: sparse", "verdict: sparse led until turn", "owes ", "differs at token"] {
            assert!(text.contains(words), "{words} is missing in\n{text}");
        }
        let marks = text.lines().find(|line| line.starts_with("│sparse ")).unwrap();
        assert!(marks.contains('▲') && marks.contains('▼'), "{marks}");
    }
    let text = two().text(120, 40);
    for words in ["ckpt 2,304", "pinned ", "checkpoint ▁"] {
        assert!(text.contains(words), "{words} is missing in\n{text}");
    }
}

#[test]
fn the_other_panes_show_the_lane_in_focus_and_the_status_line_names_it() {
    let mut bench = two();
    assert!(rows(&bench.frame(120, 40))[0].contains("tools-change · dense"));
    bench.write(".1");
    let frame = rows(&bench.frame(120, 40));
    assert!(frame[0].contains("tools-change · sparse"), "{}", frame[0]);
    assert!(frame[1].contains("ckpt 2,304"), "{}", frame[1]);
    bench.press('9');
    bench.key(KeyCode::Left);
    assert!(rows(&bench.frame(120, 40))[0].contains("tools-change · dense"));
    bench.key(KeyCode::Up);
    let text = bench.text(120, 40);
    assert!(text.contains("9 compare turn 7"), "{text}");
    bench.press(',');
    assert!(bench.text(120, 40).contains("9 compare turn 7"), "the turn stays");
}

#[test]
fn every_pane_draws_every_lane_and_the_request_has_its_place_back_when_it_is_looked_at() {
    for pane in Pane::ALL {
        for (width, height) in [(80, 24), (110, 30), (120, 40), (40, 10), (300, 80), (60, 12)] {
            let mut bench = four();
            for _ in 0..4 {
                bench.press(pane.key());
                bench.frame(width, height);
                bench.press('.');
            }
            let text = bench.text(width, height);
            assert!(width < 80 || text.contains(&format!("{} {}", pane.key(), pane.word())), "{text}");
        }
    }
}

#[test]
fn run_keys_go_to_all_lanes_through_one_way() {
    let lane = LaneId(0);
    let mut bench = two();
    assert_eq!(bench.press('n'), [Effect::Send(Command::StepTurn { lane })]);
    assert_eq!(bench.press('r'), [Effect::Send(Command::Run { lane })]);
    update(&mut bench.model, Msg::News(vec![News::Gate(Gate::Running)]));
    assert_eq!(bench.press(' '), [Effect::Send(Command::Pause)], "it is the gate of all that counts");
    update(&mut bench.model, Msg::News(vec![News::Gate(Gate::Paused)]));
    assert_eq!(bench.press(' '), [Effect::Send(Command::Run { lane })]);
}

#[test]
fn a_request_under_way_in_another_lane_is_told_as_that_ones() {
    let mut bench = two();
    let mut run = super::sample::session();
    let turn = Turn { request: 9, turn: 9, fresh: 3_000, ..Turn::default() };
    let before = run.peek().len();
    run.begin(&turn);
    let events = run.events().split_off(before);
    let news = events.into_iter().map(|event| News::Event { lane: 1, event });
    update(&mut bench.model, Msg::News(news.chain([News::Gate(Gate::Running)]).collect()));
    let frame = rows(&bench.frame(120, 40));
    assert!(frame[0].contains("RUNNING SPARSE TURN 9"), "{}", frame[0]);
    bench.press('.');
    let text = bench.text(120, 40);
    assert!(text.contains("waits"), "dense has not begun this turn: {text}");
    bench.press('q');
    assert!(bench.text(120, 40).contains("request 9 is still running"));
}

#[test]
fn an_engine_that_failed_is_named_by_its_lane() {
    let mut bench = two();
    let failed = Event {
        seq: 9_000,
        at: Stamp(9_000),
        lane: None,
        request: None,
        body: Body::EngineFailed { message: "out of pages".into() },
    };
    update(&mut bench.model, Msg::News(vec![News::Event { lane: 1, event: failed }]));
    let text = bench.text(120, 40);
    assert!(text.contains("engine of lane sparse failed: out of pages"), "{text}");
    assert!(text.contains("ENGINE FAILED"), "{text}");
}

/// A scorer for the lane whose events these are, so that sparse prefill can be switched there.
fn with_scorer(mut events: Vec<Event>) -> Vec<Event> {
    if let Some(Body::RunStarted(run)) = events.first_mut().map(|event| &mut event.body) {
        run.specprefill = Some(SpecPrefillFacts {
            enabled: None,
            keep: 0.2,
            threshold: 8_192,
            scorer: "talus".into(),
            leaves: "nothing".into(),
            tail_tokens: Some(64),
            pool: Some(13),
            aggregation: None,
        });
    }
    events
}

/// Dense, and two sparse lanes.
fn three() -> Bench {
    let news = told(0, lane(|_| 1.0, false, REPLY))
        .chain(told(1, with_scorer(lane(|_| 0.5, false, REPLY))))
        .chain(told(2, with_scorer(lane(|_| 0.7, false, REPLY))));
    bench(&["dense", "sparse", "keep10"], news.chain([News::Gate(Gate::BeforeTurn)]).collect())
}

fn of_lane(lane: usize, body: Body) -> News {
    News::Event { lane, event: Event { request: None, ..super::event(9_000, body) } }
}

#[test]
fn what_is_set_by_hand_goes_to_the_lane_in_focus_alone_and_the_words_name_it() {
    let mut bench = three();
    assert_eq!(bench.press('o'), []);
    let words = "lane dense has no scorer; `.` puts another lane in focus";
    assert!(bench.text(80, 24).contains(words), "{}", bench.text(80, 24));
    assert_eq!(bench.press('t'), []);
    assert!(bench.text(80, 24).contains(words), "{}", bench.text(80, 24));

    bench.press('.');
    let set = SparseOverride { enabled: Some(true), ..SparseOverride::default() };
    assert_eq!(bench.press('o'), [Effect::SendTo(1, Command::SpecPrefill(set))], "only the switch changes");
    let told = Body::SpecPrefillSet { enabled: Some(true), keep: None, threshold: None };
    update(&mut bench.model, Msg::News(vec![of_lane(1, told)]));
    assert!(bench.text(120, 40).contains("lane sparse: SpecPrefill on by hand"), "{}", bench.text(120, 40));

    bench.press('.');
    bench.press('t');
    bench.key(KeyCode::Right);
    let [Effect::SendTo(2, Command::SpecPrefill(set))] = &bench.key(KeyCode::Enter)[..] else { panic!() };
    assert_eq!((set.enabled, set.keep, set.threshold), (None, Some(0.25), Some(8_192)));
    let told = Body::SpecPrefillSet { enabled: None, keep: Some(0.25), threshold: Some(8_192) };
    update(&mut bench.model, Msg::News(vec![of_lane(2, told)]));
    let text = bench.text(120, 40);
    assert!(text.contains("lane keep10: keep 0.25, threshold 8,192 by hand"), "{text}");
    assert!(text.contains("the switch as configured"), "{text}");
}

#[test]
fn a_breakpoint_that_hits_in_another_lane_is_told_as_that_ones() {
    let mut bench = two();
    let hit = Body::BreakpointHit { condition: "suffix>4000".into(), observed: "suffix 4,096".into() };
    let request = Some(RequestId(8));
    let event = Event { request, ..super::event(9_000, hit) };
    update(&mut bench.model, Msg::News(vec![News::Event { lane: 1, event }]));
    let frame = rows(&bench.frame(120, 40));
    assert!(frame[0].contains("BREAK BEFORE TURN 9"), "{}", frame[0]);
    assert!(frame[2].contains("BREAKPOINT lane sparse: suffix>4000 at turn 8: suffix 4,096"), "{}", frame[2]);
}

#[test]
fn narrow_cards_keep_the_pinned_count_and_cut_no_figure() {
    let text = four().text(120, 40);
    let row = text.lines().find(|line| line.contains("ckpt 2,304")).unwrap();
    assert_eq!(row.matches("pin 5").count(), 2, "{row}");
}

#[test]
fn a_status_line_in_little_room_has_no_empty_names() {
    let mut bench = two();
    let mut run = super::sample::session();
    let turn = Turn { request: 9, turn: 9, fresh: 3_000, ..Turn::default() };
    let before = run.peek().len();
    run.begin(&turn);
    let news = told(1, run.events().split_off(before));
    update(&mut bench.model, Msg::News(news.chain([News::Gate(Gate::Paused)]).collect()));
    for width in 60..120 {
        let head = rows(&bench.frame(width, 24)).swap_remove(0);
        let empty = head.trim_start().starts_with('·') || head.contains("·  ");
        assert!(!empty && head.contains("dense"), "{width}: {head}");
    }
}

#[test]
fn the_footer_says_that_the_key_returns() {
    let mut bench = two();
    bench.model.beside = true;
    assert!(bench.text(160, 48).contains("c back"), "{}", bench.text(160, 48));
}

#[test]
fn lanes_that_go_on_are_driven_though_the_one_in_focus_has_failed() {
    let failed = || Body::EngineFailed { message: "out of pages".into() };
    let mut bench = two();
    update(&mut bench.model, Msg::News(vec![of_lane(0, failed())]));
    let lane = LaneId(0);
    assert_eq!(bench.press('n'), [Effect::Send(Command::StepTurn { lane })]);
    assert_eq!(bench.press('r'), [Effect::Send(Command::Run { lane })]);
    assert!(rows(&bench.frame(120, 40))[0].contains("BEFORE TURN 9"));
    update(&mut bench.model, Msg::News(vec![of_lane(1, failed())]));
    assert_eq!(bench.press('n'), []);
    assert!(rows(&bench.frame(120, 40))[0].contains("ENGINE FAILED"));
}

#[test]
fn a_run_by_itself_says_how_to_compare() {
    let mut bench = super::sample();
    bench.press('9');
    assert!(bench.text(120, 40).contains("`escarp compare --tui` runs a session"));
    assert_eq!(bench.press('c'), []);
    bench.model.can_compare = true;
    assert!(bench.text(120, 40).contains("`c` runs the session in two lanes"));
    assert_eq!(bench.press('c'), [Effect::Compare]);
    assert_eq!(bench.press('.'), []);
    assert!(bench.text(120, 40).contains("nothing is compared"));
}
