//! What keys do: actions, filters, the editor, and walking through a session or a recording.

use crossterm::event::KeyCode;
use escarp::engine::Command;
use escarp::event::*;
use escarp::tui::action::{ACTIONS, ActionId, Exists};
use escarp::tui::app::{Effect, Msg, Pane, perform, update};

use super::sample::Run;
use super::{Bench, event, rows, sample, troubled};

#[test]
fn every_action_has_a_key_that_reaches_it_and_a_line_in_the_help() {
    let mut live = sample();
    let mut recording = Bench::recording(sample::session().events());
    for bench in [&mut live, &mut recording] {
        bench.press('?');
        let help = bench.text(120, 140);
        bench.press('q');
        for action in ACTIONS {
            let exists = match action.exists {
                Exists::Always => true,
                Exists::Live => bench.model.recording.is_none(),
                Exists::Recording => bench.model.recording.is_some(),
            };
            assert_eq!(help.contains(action.description), exists, "{}", action.description);
            for key in action.keys.iter().filter(|_| exists) {
                let found = escarp::tui::action::for_key(&bench.model, key.event());
                assert_eq!(found.map(|a| a.id), Some(action.id), "{}", key.name());
            }
        }
    }
}

#[test]
fn every_enabled_action_does_something() {
    for action in ACTIONS.iter().filter(|a| a.exists != Exists::Recording) {
        let mut bench = troubled();
        let mut fork = Run::new();
        fork.say(
            Some(1),
            None,
            Body::LaneOpened { parent: Some(LaneId(0)), at_turn: Some(3), title: "fork".into() },
        );
        bench.feed(fork.peek()[3..].to_vec());
        bench.model.ui.focus = Pane::Transcript;
        if matches!(action.id, ActionId::FocusNext | ActionId::FocusPrevious) {
            bench.model.ui.focus = Pane::Session;
        }
        bench.model.ui.filter[Pane::Session.index()].clear();
        bench.frame(120, 40);
        if (action.enabled)(&bench.model).is_err() || matches!(action.id, ActionId::View(Pane::Transcript)) {
            continue;
        }
        let before = format!("{:?}", bench.model.ui);
        let effects = match action.keys.first() {
            Some(key) => update(&mut bench.model, Msg::Key(key.event())),
            None => perform(&mut bench.model, action),
        };
        let at_the_end = matches!(
            action.id,
            ActionId::Down | ActionId::PageDown | ActionId::Last | ActionId::Open | ActionId::Right
        );
        assert!(
            !effects.is_empty() || before != format!("{:?}", bench.model.ui) || at_the_end,
            "{:?} does nothing",
            action.id
        );
    }
}

#[test]
fn run_keys_send_commands_for_the_lane_in_view() {
    let lane = LaneId(0);
    let mut bench = sample();
    assert_eq!(bench.press('n'), [Effect::Send(Command::StepTurn { lane })]);
    assert_eq!(bench.press('s'), [Effect::Send(Command::StepPhase { lane })]);
    assert_eq!(bench.press('r'), [Effect::Send(Command::Run { lane })]);
    assert_eq!(bench.press('x'), [], "nothing runs");
    assert!(bench.text(80, 24).contains("no request is running"));

    let mut bench = troubled();
    assert_eq!(bench.press(' '), [Effect::Send(Command::Pause)]);
    assert_eq!(bench.press('x'), [Effect::Send(Command::Cancel { request: RequestId(9) })]);
    bench.feed(vec![event(900, Body::GateChanged { gate: Gate::Paused, next_turn: Some(10), turns: 12 })]);
    assert_eq!(bench.press(' '), [Effect::Send(Command::Run { lane })]);
}

#[test]
fn control_c_cancels_first_and_quits_second() {
    let mut bench = troubled();
    assert_eq!(bench.control('c'), [Effect::Send(Command::Cancel { request: RequestId(9) })]);
    assert_eq!(bench.control('c'), [Effect::Quit]);
    assert_eq!(sample().control('c'), [Effect::Quit], "nothing runs, nothing to cancel");
}

#[test]
fn quitting_asks_only_while_a_request_runs() {
    assert_eq!(sample().press('q'), [Effect::Quit]);
    let mut bench = troubled();
    assert_eq!(bench.press('q'), []);
    assert!(bench.text(80, 24).contains("request 9 is still running"));
    assert_eq!(bench.press('n'), []);
    assert_eq!(bench.press('q'), []);
    assert_eq!(bench.press('y'), [Effect::Quit]);
}

#[test]
fn escape_closes_one_layer_at_a_time() {
    let mut bench = sample();
    bench.write("z/floor");
    bench.key(KeyCode::Enter);
    bench.press('?');
    assert_eq!(bench.key(KeyCode::Esc), []);
    assert!(bench.model.ui.overlay.is_none());
    assert_eq!(bench.key(KeyCode::Esc), []);
    assert_eq!(bench.model.ui.filter[0], "");
    assert_eq!(bench.key(KeyCode::Esc), []);
    assert!(!bench.model.ui.zoom);
    assert_eq!(bench.key(KeyCode::Esc), [Effect::Quit]);
}

#[test]
fn injecting_sends_what_was_typed_and_letters_are_no_commands_there() {
    let mut bench = troubled();
    bench.write("inrxq?");
    bench.key(KeyCode::Enter);
    update(&mut bench.model, Msg::Paste("a\r\nb".into()));
    let [Effect::Send(Command::Inject { lane, messages, .. })] = &bench.control('d')[..] else { panic!() };
    assert_eq!((*lane, messages[0].content.as_str()), (LaneId(0), "nrxq?\na\nb"));
    assert!(bench.model.ui.overlay.is_none());
}

#[test]
fn editing_a_turn_forks_and_brings_the_new_lane_into_view() {
    let mut bench = sample();
    bench.frame(120, 40);
    bench.press('k');
    bench.press('e');
    bench.write(" Briefly.");
    let [Effect::Send(Command::Fork { lane, turn, content, .. })] = &bench.control('s')[..] else { panic!() };
    assert_eq!((*lane, *turn), (LaneId(0), 7));
    assert!(content.starts_with("Why does restore_walks_back fail?"));
    assert!(content.ends_with(" Briefly."));

    let mut fork = Run::new();
    fork.say(
        Some(1),
        None,
        Body::LaneOpened { parent: Some(LaneId(0)), at_turn: Some(7), title: "fork".into() },
    );
    fork.gate(Gate::BeforeTurn, 1, Some(7));
    bench.feed(fork.peek()[3..].to_vec());
    assert_eq!(bench.model.ui.lane, LaneId(1));
    let text = bench.text(120, 40);
    assert!(text.contains("lane B"), "{text}");
    assert!(!text.contains("turn 8 · run-tests"), "turns from the fork on belong to the other lane: {text}");
    bench.press('[');
    assert_eq!(bench.model.ui.lane, LaneId(0));
    assert!(bench.text(120, 40).contains("turn 8 · run-tests"), "the first lane is kept");
}

#[test]
fn the_header_names_the_session_of_the_lane_in_view() {
    let mut run = Run::new();
    let opened = |parent, title: &str| Body::LaneOpened { parent, at_turn: None, title: title.into() };
    run.say(Some(1), None, opened(None, "Another session"));
    run.say(Some(2), None, opened(Some(LaneId(1)), "B edited at turn 2"));
    let mut bench = Bench::live(run.events());
    let header = |bench: &mut Bench| bench.text(120, 40).lines().next().unwrap_or_default().to_owned();
    assert!(header(&mut bench).contains("tools-change · lane A"), "{}", header(&mut bench));
    for lane in ["B", "C"] {
        bench.press(']');
        let header = header(&mut bench);
        assert!(header.contains(&format!("Another session · lane {lane}")), "{header}");
    }
}

#[test]
fn the_session_can_be_walked_with_arrows_and_letters() {
    let mut bench = sample();
    bench.frame(120, 40);
    let turn = |bench: &Bench| bench.model.selected().unwrap().turn;
    assert_eq!(turn(&bench), 8);
    bench.key(KeyCode::Up);
    bench.press('k');
    assert_eq!(turn(&bench), 6);
    bench.press('g');
    assert_eq!(turn(&bench), 1);
    bench.key(KeyCode::Down);
    assert_eq!(turn(&bench), 2);
    bench.press('G');
    assert_eq!((turn(&bench), bench.model.ui.selection), (8, None), "the last one is followed");
    bench.write("3");
    bench.key(KeyCode::Left);
    let text = bench.text(120, 40);
    assert!(
        text.contains("▲ block 46 ■ restored from RAM · tokens 11,776–12,032 · written by request 7"),
        "{text}"
    );
}

#[test]
fn a_filter_hides_rows_and_says_so() {
    let mut bench = sample();
    bench.write("/tools");
    bench.key(KeyCode::Enter);
    let text = bench.text(80, 24);
    assert!(text.contains("filter: tools"), "{text}");
    assert!(text.contains("▼-7,680") && !text.contains("read-log"), "{text}");
    bench.write("5/restored");
    bench.key(KeyCode::Enter);
    let text = bench.text(80, 24);
    assert!(text.contains("restored") && !text.contains("gate_changed"), "{text}");
}

#[test]
fn the_palette_does_what_the_key_does() {
    let mut bench = sample();
    bench.write(":run to the end of the sess");
    assert_eq!(bench.key(KeyCode::Enter), [Effect::Send(Command::Run { lane: LaneId(0) })]);
}

#[test]
fn a_recording_is_walked_request_by_request_and_has_no_run_keys() {
    let mut bench = Bench::recording(sample::session().events());
    assert!(bench.text(80, 24).contains("RECORDING 8 of 8"));
    let last = bench.model.ledger().facts_hash();
    for _ in 0..3 {
        assert_eq!(bench.press('p'), []);
    }
    assert!(bench.text(80, 24).contains("RECORDING 5 of 8"));
    assert_eq!(bench.model.history().len(), 5);
    for _ in 0..20 {
        bench.press('p');
    }
    assert!(bench.text(80, 24).contains("before the first request"));
    for _ in 0..20 {
        bench.press('n');
    }
    assert_eq!(bench.model.ledger().facts_hash(), last);
    for key in ['r', 's', 'x', 'i', 'e', ' '] {
        assert_eq!(bench.press(key), []);
        assert!(bench.model.ui.overlay.is_none(), "{key}");
    }
}

#[test]
fn a_recording_shows_what_the_live_run_showed() {
    let events = sample::session().events();
    let mut live = Bench::live(events.clone());
    let mut recorded = Bench::recording(events);
    for digit in '2'..='5' {
        live.press(digit);
        recorded.press(digit);
        let body = |bench: &mut Bench| {
            rows(&bench.frame(120, 40))[1..39].join("\n").replace(" 9 … next", "         ")
        };
        assert_eq!(body(&mut live), body(&mut recorded));
    }
}

#[test]
fn a_key_pressed_before_the_model_is_there_is_told_so_until_it_is() {
    let mut bench = Bench::live(Vec::new());
    bench.press('r');
    assert!(bench.text(80, 24).contains("still loading"));
    bench.feed(Run::new().peek().to_vec());
    assert!(!bench.text(80, 24).contains("still loading"));
}
