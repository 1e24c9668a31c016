//! The interface without a terminal: frames, keys, and the loop between them.

mod driving;
mod sample;

use std::fmt::Write as _;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use escarp::config::ThemeName;
use escarp::engine::Command;
use escarp::event::*;
use escarp::tui::action::{ACTIONS, ActionId, Exists};
use escarp::tui::app::{Effect, Model, Msg, Pane, update};
use escarp::tui::log::{LogLine, LogRing};
use escarp::tui::panes::transcript::WrapCache;
use escarp::tui::theme::Theme;
use escarp::tui::view::view;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier};
use sample::{Run, Turn};

const ANSI: Theme = Theme::new(ThemeName::Ansi, false);
const MONO_ASCII: Theme = Theme::new(ThemeName::Mono, true);

/// A model and what is kept between its frames.
struct Bench {
    model: Model,
    wrapped: WrapCache,
    theme: Theme,
}

impl Bench {
    fn live(events: Vec<Event>) -> Bench {
        let log = LogRing::default();
        log.push(LogLine {
            level: tracing::Level::INFO,
            target: "escarp::engine".into(),
            text: "model loaded".into(),
        });
        log.push(LogLine {
            level: tracing::Level::WARN,
            target: "escarp::cache".into(),
            text: "evicted block=28".into(),
        });
        let mut bench = Bench { model: Model::live(log), wrapped: WrapCache::default(), theme: ANSI };
        bench.feed(events);
        bench
    }

    fn recording(events: Vec<Event>) -> Bench {
        Bench {
            model: Model::recording(events, LogRing::default()),
            wrapped: WrapCache::default(),
            theme: ANSI,
        }
    }

    fn feed(&mut self, events: Vec<Event>) {
        update(&mut self.model, Msg::Events(events));
    }

    fn frame(&mut self, width: u16, height: u16) -> Buffer {
        let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
        self.model.ui.layout = view(&self.model, self.theme, &mut self.wrapped, &mut buffer);
        buffer
    }

    fn text(&mut self, width: u16, height: u16) -> String {
        rows(&self.frame(width, height)).join("\n")
    }

    fn key(&mut self, code: KeyCode) -> Vec<Effect> {
        update(&mut self.model, Msg::Key(KeyEvent::new(code, KeyModifiers::NONE)))
    }

    fn press(&mut self, key: char) -> Vec<Effect> {
        self.key(KeyCode::Char(key))
    }

    fn control(&mut self, key: char) -> Vec<Effect> {
        update(&mut self.model, Msg::Key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::CONTROL)))
    }

    fn write(&mut self, text: &str) {
        for c in text.chars() {
            self.press(c);
        }
    }
}

fn rows(buffer: &Buffer) -> Vec<String> {
    let area = buffer.area;
    (0..area.height)
        .map(|y| {
            let mut row = String::new();
            let mut x = 0;
            while x < area.width {
                let symbol = buffer[(x, y)].symbol();
                row.push_str(symbol);
                x += unicode_width::UnicodeWidthStr::width(symbol).max(1) as u16;
            }
            row.trim_end().to_owned()
        })
        .collect()
}

/// Text, then the styles as runs: `row: columns style`.
fn dump(buffer: &Buffer) -> String {
    let mut out = rows(buffer).join("\n");
    out.push_str("\n--- styles\n");
    for y in 0..buffer.area.height {
        let mut runs: Vec<(u16, u16, String)> = Vec::new();
        for x in 0..buffer.area.width {
            let name = style_name(&buffer[(x, y)]);
            match runs.last_mut() {
                Some((_, end, last)) if *last == name => *end = x,
                _ => runs.push((x, x, name)),
            }
        }
        let runs: Vec<String> = runs
            .into_iter()
            .filter(|r| !r.2.is_empty())
            .map(|(a, b, name)| format!("{a}-{b} {name}"))
            .collect();
        if !runs.is_empty() {
            let _ = writeln!(out, "{y}: {}", runs.join(", "));
        }
    }
    out
}

fn style_name(cell: &ratatui::buffer::Cell) -> String {
    let mut parts = Vec::new();
    if cell.fg != Color::Reset {
        parts.push(format!("{}", cell.fg));
    }
    if cell.bg != Color::Reset {
        parts.push(format!("on {}", cell.bg));
    }
    for (modifier, word) in [
        (Modifier::BOLD, "bold"),
        (Modifier::DIM, "dim"),
        (Modifier::REVERSED, "reversed"),
        (Modifier::UNDERLINED, "underlined"),
    ] {
        if cell.modifier.contains(modifier) {
            parts.push(word.to_owned());
        }
    }
    parts.join("+")
}

fn sample() -> Bench {
    Bench::live(sample::session().events())
}

/// A run in the middle of a prefill, after a loss of events and a session cut.
fn troubled() -> Bench {
    let mut run = sample::session();
    run.say(None, None, Body::Gap { from: 120, to: 141 });
    let cut =
        Body::SessionCut { kept_requests: 12, of_requests: 24, prompt_tokens: 9_120, context_tokens: 8_192 };
    run.say(None, None, cut);
    let turn = Turn { request: 9, turn: 9, name: "run-tests", fresh: 3_000, ..Turn::default() };
    run.gate(Gate::Running, 0, Some(10));
    let (_, suffix) = run.begin(&turn);
    run.prefill(&turn, suffix * 72 / 100, suffix);
    Bench::live(run.events())
}

fn snapshot(name: &str, buffer: &Buffer) {
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!(name, dump(buffer));
    });
}

#[test]
fn frames_of_every_view_at_three_sizes() {
    for (width, height) in [(80, 24), (120, 40), (200, 60)] {
        for pane in Pane::ALL {
            let mut bench = sample();
            bench.press(char::from_digit(pane.digit() as u32, 10).unwrap());
            snapshot(&format!("{}-{width}x{height}", pane.word()), &bench.frame(width, height));
        }
    }
}

#[test]
fn frames_without_colour_and_in_ascii() {
    for pane in Pane::ALL {
        let mut bench = sample();
        bench.theme = MONO_ASCII;
        bench.press(char::from_digit(pane.digit() as u32, 10).unwrap());
        let frame = bench.frame(80, 24);
        for cell in &frame.content {
            assert!(cell.symbol().is_ascii(), "{:?}", cell.symbol());
            assert_eq!((cell.fg, cell.bg), (Color::Reset, Color::Reset));
        }
        snapshot(&format!("{}-80x24-mono-ascii", pane.word()), &frame);
    }
}

#[test]
fn frames_of_what_lies_over_the_panes_and_of_trouble() {
    for (name, keys) in [("help", "?"), ("palette", ":turn"), ("editor", "iWhy?"), ("filter", "/floor")] {
        let mut bench = sample();
        bench.write(keys);
        snapshot(&format!("over-{name}-80x24"), &bench.frame(80, 24));
    }
    let mut bench = troubled();
    snapshot("trouble-80x24", &bench.frame(80, 24));
    snapshot("trouble-120x40", &bench.frame(120, 40));
    bench.press('q');
    snapshot("over-quit-80x24", &bench.frame(80, 24));
    snapshot("before-the-first-turn-120x40", &Bench::live(Run::new().events()).frame(120, 40));
    snapshot("too-small-30x8", &sample().frame(30, 8));
}

#[test]
fn every_size_draws_every_view_and_overlay() {
    let mut benches: Vec<Bench> = Vec::new();
    for pane in Pane::ALL {
        let mut bench = troubled();
        bench.press(char::from_digit(pane.digit() as u32, 10).unwrap());
        benches.push(bench);
    }
    for keys in ["?", ":", "iabc", "/x", "q", "z"] {
        let mut bench = troubled();
        bench.write(keys);
        benches.push(bench);
    }
    benches.push(Bench::live(Vec::new()));
    benches.push(Bench::recording(Vec::new()));
    let small = (0..=60).flat_map(|width| (0..=20).map(move |height| (width, height)));
    let large =
        [(80, 24), (110, 30), (111, 31), (120, 36), (200, 60), (400, 12), (12, 200), (320, 90), (1_000, 40)];
    for (width, height) in small.chain(large) {
        for bench in &mut benches {
            bench.frame(width, height);
        }
    }
}

#[test]
fn absurd_figures_draw_too() {
    let huge = u64::MAX;
    let mut events = sample::session().events();
    for (index, event) in events.iter_mut().enumerate().filter(|(index, _)| index % 3 != 0) {
        event.at = Stamp(huge - index as u64);
        match &mut event.body {
            Body::Arrived(arrival) => {
                arrival.prompt_tokens = huge;
                arrival.segments.iter_mut().for_each(|run| run.tokens = huge);
            }
            Body::Restored(restore) => {
                restore.checkpoint_tokens = huge - 1;
                restore.losses.iter_mut().for_each(|loss| loss.tokens = huge);
                restore.blocks.iter_mut().for_each(|block| block.index = u32::MAX);
            }
            Body::PrefillProgress { done, total } => (*done, *total) = (huge, 1),
            Body::Stored { stored_tokens, canonical_tokens, .. } => {
                (*stored_tokens, *canonical_tokens) = (huge, huge)
            }
            Body::Memory { cached_blocks, live_blocks, .. } => (*cached_blocks, *live_blocks) = (huge, huge),
            Body::GateChanged { turns, next_turn, .. } => (*turns, *next_turn) = (u32::MAX, Some(u32::MAX)),
            Body::RunStarted(run) => run.block_tokens = 0,
            _ => {}
        }
    }
    for from in [0, 100] {
        events.push(event(huge, Body::Gap { from, to: huge }));
    }
    for pane in Pane::ALL {
        let mut bench = Bench::live(events.clone());
        bench.press(char::from_digit(pane.digit() as u32, 10).unwrap());
        for (width, height) in [(80, 24), (120, 40), (40, 10), (300, 80)] {
            bench.frame(width, height);
        }
    }
}

#[test]
fn the_fall_its_cause_and_its_size_are_visible_together_without_a_key() {
    let mut run = sample::session();
    run.gate(Gate::BeforeTurn, 0, Some(9));
    let text = Bench::live(run.events()).text(120, 36);
    assert!(text.contains("▼-7,680"), "{text}");
    assert!(text.contains("▼ cliff at turn 6: tool schema changed"), "{text}");
    assert!(text.contains("TOOLS"));
}

#[test]
fn at_80x24_the_status_line_keeps_checkpoint_suffix_route_and_cause_in_sight() {
    for pane in Pane::ALL {
        let mut bench = sample();
        bench.press(char::from_digit(pane.digit() as u32, 10).unwrap());
        let frame = rows(&bench.frame(80, 24));
        for part in ["cpu bitwise", "recorded", "int8", "tools-change", "BEFORE TURN 9 of 12"] {
            assert!(frame[0].contains(part), "{part} is missing in `{}`", frame[0]);
        }
        for part in ["ckpt 12,032 +1,024", "suffix 2,156", "dense", "tail does not fill a block"] {
            assert!(frame[1].contains(part), "{part} is missing in `{}`", frame[1]);
        }
    }
}

#[test]
fn loss_and_cut_are_told_at_every_size_that_can_tell_anything() {
    for (width, height) in [(80, 24), (120, 40)] {
        let text = troubled().text(width, height);
        assert!(text.contains("incomplete since event 120: 22 events lost"), "{text}");
    }
    let text = troubled().text(120, 40);
    assert!(text.contains("session cut to 12 of 24 requests: the next has 9,120 tokens"), "{text}");
}

#[test]
fn progress_is_shown_with_numbers_while_the_prefill_runs() {
    let mut bench = troubled();
    let text = bench.text(120, 40);
    assert!(text.contains("RUNNING TURN 9 of 12: prefill 71 %"), "{text}");
    assert!(text.contains("2,283/3,172 71 %"), "{text}");
    assert!(text.contains("ttft –"), "what was not measured yet is not zero: {text}");
}

#[test]
fn what_nobody_measured_is_a_dash() {
    let mut run = Run::new();
    let turn = Turn::default();
    run.begin(&turn);
    let mut events = run.events();
    events.retain(|event| !matches!(event.body, Body::Restored(_) | Body::Routed { .. }));
    let mut bench = Bench::live(events);
    let row = rows(&bench.frame(120, 40)).into_iter().find(|row| row.contains("▸1  ")).unwrap();
    let cells: Vec<&str> = row.split('│').nth(1).unwrap().split_whitespace().collect();
    assert_eq!(cells, ["▸1", "700", "…", "–", "…", "–", "–", "restore", "–"], "{row}");
}

#[test]
fn model_text_cannot_reach_the_terminal_as_anything_but_text() {
    let mut run = Run::new();
    let hostile = "\x1b]0;owned\x07\x1b[2J\u{9b}31m\u{202e}\r\x08tail";
    let turn = Turn { name: "\x1b[31mname", reply: hostile, loss: None, ..Turn::default() };
    run.turn(&turn);
    run.say(Some(0), Some(1), Body::Failed { message: hostile.into() });
    run.say(None, None, Body::EngineFailed { message: hostile.into() });
    run.say(
        Some(1),
        None,
        Body::LaneOpened { parent: Some(LaneId(0)), at_turn: Some(1), title: hostile.into() },
    );
    for pane in Pane::ALL {
        let mut bench = Bench::live(Vec::new());
        bench.feed(run_events(&run));
        bench.press(char::from_digit(pane.digit() as u32, 10).unwrap());
        for (width, height) in [(80, 24), (120, 40)] {
            for cell in &bench.frame(width, height).content {
                assert!(
                    !cell.symbol().chars().any(char::is_control),
                    "{:?} in {}",
                    cell.symbol(),
                    pane.word()
                );
            }
        }
    }
}

fn run_events(run: &Run) -> Vec<Event> {
    run.peek().to_vec()
}

#[test]
fn every_action_has_a_key_that_reaches_it_and_a_line_in_the_help() {
    let mut live = sample();
    let mut recording = Bench::recording(sample::session().events());
    for bench in [&mut live, &mut recording] {
        bench.press('?');
        let help = bench.text(120, 90);
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
        let effects = update(&mut bench.model, Msg::Key(action.keys[0].event()));
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

fn event(seq: u64, body: Body) -> Event {
    Event { seq, at: Stamp(seq), lane: Some(LaneId(0)), request: None, body }
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
    let [Effect::Send(Command::Fork { lane, turn, messages })] = &bench.control('s')[..] else { panic!() };
    assert_eq!((*lane, *turn), (LaneId(0), 7));
    assert!(messages[0].content.starts_with("Why does restore_walks_back fail?"));
    assert!(messages[0].content.ends_with(" Briefly."));

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
    let last = bench.model.ledger.facts_hash();
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
    assert_eq!(bench.model.ledger.facts_hash(), last);
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
fn a_long_transcript_costs_a_window_of_lines_a_frame() {
    let line = "the restore walks back over blocks until every layer has real state, then attaches it\n";
    let reply: &'static str = Box::leak(line.repeat(60).into_boxed_str());
    let mut run = Run::new();
    for number in 1..=24 {
        run.turn(&Turn { request: number, turn: number as u32, reply, ..Turn::default() });
    }
    let mut bench = Bench::live(run.events());
    bench.write("4z");
    bench.frame(120, 40);
    let wrapped = bench.wrapped.bytes_wrapped;
    assert!(wrapped > 100_000, "some 30,000 tokens: {wrapped} bytes");
    let visited = bench.wrapped.lines_visited;
    for _ in 0..50 {
        bench.key(KeyCode::PageUp);
        bench.frame(120, 40);
    }
    assert_eq!(bench.wrapped.bytes_wrapped, wrapped, "scrolling wraps nothing again");
    assert!(bench.wrapped.lines_visited - visited <= 50 * 40, "a frame touches the lines it shows");
    let turn = Turn { request: 25, turn: 25, reply, ..Turn::default() };
    let mut more = Run::new();
    more.begin(&turn);
    more.token(&turn, 0, "One more word");
    bench.feed(more.peek()[3..].to_vec());
    bench.frame(120, 40);
    assert!(bench.wrapped.bytes_wrapped - wrapped < 500, "a new token wraps the line it stands in");
}

#[test]
fn a_followed_transcript_stays_at_the_end_and_a_scrolled_one_stays_put() {
    let mut bench = sample();
    bench.write("4z");
    bench.frame(80, 24);
    let turn = Turn { request: 9, turn: 9, ..Turn::default() };
    let mut more = Run::new();
    more.begin(&turn);
    more.token(&turn, 0, "a fresh word");
    let before = bench.text(80, 24);
    bench.key(KeyCode::Up);
    bench.key(KeyCode::PageUp);
    let scrolled = bench.text(80, 24);
    assert_ne!(before, scrolled);
    bench.feed(more.peek()[3..].to_vec());
    assert!(!bench.text(80, 24).contains("a fresh word"));
    bench.press('G');
    assert!(bench.text(80, 24).contains("a fresh word"));
}

/// Six turns of `tools-change` on SmolLM2, as `escarp tui --record` wrote them.
fn recorded_run() -> Vec<Event> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/fixtures/tools-change.jsonl");
    escarp::event::record::read(&path).unwrap()
}

/// The README's picture. `ESCARP_UPDATE_ASSETS=1` writes it anew.
#[test]
fn the_picture_is_a_frame_of_a_real_run() {
    // The picture shows the moment before the interface was left.
    let events = recorded_run().into_iter().take_while(|event| event.body != Body::RunEnded).collect();
    let mut bench = Bench::live(events);
    bench.theme = Theme::new(ThemeName::Dark, false);
    let picture = escarp::tui::svg::svg(&bench.frame(140, 42));
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/workbench.svg");
    if std::env::var_os("ESCARP_UPDATE_ASSETS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &picture).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == picture, "the picture is out of date; run this test with ESCARP_UPDATE_ASSETS=1");
}
