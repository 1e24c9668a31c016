//! The interface without a terminal: frames here, keys and the loop in their own modules.

mod cache;
mod compare;
mod driving;
mod keys;
mod published;
mod recovery;
mod sample;
mod sparse;
mod verify;

use std::fmt::Write as _;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use escarp::compare::News;
use escarp::config::ThemeName;
use escarp::event::*;
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
        let mut bench =
            Bench { model: Model::live(Vec::new(), log), wrapped: WrapCache::default(), theme: ANSI };
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
        let news = events.into_iter().map(|event| News::Event { lane: 0, event });
        update(&mut self.model, Msg::News(news.collect()));
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

fn event(seq: u64, body: Body) -> Event {
    Event { seq, at: Stamp(seq), lane: Some(LaneId(0)), request: None, body }
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
            bench.press(pane.key());
            snapshot(&format!("{}-{width}x{height}", pane.word()), &bench.frame(width, height));
        }
    }
}

#[test]
fn frames_without_colour_and_in_ascii() {
    for pane in Pane::ALL {
        let mut bench = sample();
        bench.theme = MONO_ASCII;
        bench.press(pane.key());
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
        bench.press(pane.key());
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
            Body::PrefillProgress { done, total, shrunk, device, .. } => {
                (*done, *total) = (huge, 1);
                *shrunk = Some(ShrunkChunk { wanted: huge, admitted: huge });
                *device = Some(DeviceMemory {
                    active_bytes: huge,
                    peak_bytes: 0,
                    cached_bytes: Some(huge),
                    limit_bytes: Some(0),
                });
            }
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
        bench.press(pane.key());
        for (width, height) in [(80, 24), (120, 40), (40, 10), (300, 80)] {
            bench.frame(width, height);
        }
    }
}

/// A hybrid of which the last request found blocks beyond its last snapshot.
fn hybrid() -> Bench {
    let mut events = sample::session().events();
    let last = events.iter().rposition(|event| matches!(event.body, Body::Restored(_))).unwrap();
    let Body::Restored(restore) = &mut events[last].body else { unreachable!() };
    let held = restore.blocks.iter().filter(|block| block.residency == Residency::Ram).count();
    let restored = held - 12;
    for (index, block) in restore.blocks[..held].iter_mut().enumerate() {
        let real = index < restored && (index + 1) % 7 == restored % 7;
        block.recurrent = Some(if real { EndState::Ram } else { EndState::Placeholder });
        if index >= restored {
            block.residency = Residency::Held;
        }
    }
    let lost = 12 * sample::BLOCK;
    restore.checkpoint_tokens -= lost;
    restore.matched_with_state_tokens -= lost;
    restore.cause = Cause::NoSnapshot;
    let detail = format!(
        "block {} has the last one; block {}, written by request 7, was stored without",
        restored - 1,
        held - 1
    );
    restore.losses.push(Loss { cause: Cause::NoSnapshot, tokens: lost, detail, block: None });
    let suffix = events.iter_mut().rev().find_map(|event| match &mut event.body {
        Body::Routed { uncached_suffix, .. } => Some(uncached_suffix),
        _ => None,
    });
    *suffix.unwrap() += lost;
    Bench::live(events)
}

#[test]
fn a_hybrid_shows_which_blocks_hold_a_snapshot() {
    for (name, theme, width, height) in
        [("request-hybrid-120x40", ANSI, 120, 40), ("request-hybrid-80x24-mono-ascii", MONO_ASCII, 80, 24)]
    {
        let mut bench = hybrid();
        bench.theme = theme;
        bench.press('3');
        let frame = bench.frame(width, height);
        let rows = rows(&frame);
        let row = |name: &str| {
            rows.iter().find(|row| row.contains(name)).unwrap_or_else(|| panic!("{name}: {rows:?}"))
        };
        let recurrent = row("recurrent  ");
        let glyphs: &[char] = if theme == ANSI { &['●', '□'] } else { &['*', 'o'] };
        assert!(glyphs.iter().all(|glyph| recurrent.contains(*glyph)), "{recurrent}");
        assert!(row("request 8").contains(&format!("{} snapshot  {} placeholder", glyphs[0], glyphs[1])));
        row("NO RECURRENT SNAPSHOT: block 34 has the");
        snapshot(name, &frame);
    }
    assert!(!sample().text(120, 40).contains("recurrent"), "attention layers alone need no such row");
}

/// A device with a limit, in the middle of a prefill whose chunks it shrinks.
fn short_of_memory() -> Bench {
    let gib = |tenths: u64| tenths * (1 << 30) / 10;
    let mut run = sample::session();
    let turn = Turn { request: 9, turn: 9, name: "run-tests", fresh: 3_000, ..Turn::default() };
    run.gate(Gate::Running, 0, Some(10));
    let (_, total) = run.begin(&turn);
    for (done, admitted, active) in [(256, None, 281), (384, Some(128), 340), (448, Some(64), 402)] {
        let shrunk = admitted.map(|admitted| ShrunkChunk { wanted: 256, admitted });
        let device = Some(DeviceMemory {
            active_bytes: gib(active),
            peak_bytes: gib(431),
            cached_bytes: Some(gib(3)),
            limit_bytes: Some(gib(480)),
        });
        run.say(Some(0), Some(9), Body::PrefillProgress { done, total, shrunk, device, took: None });
    }
    Bench::live(run.events())
}

#[test]
fn the_devices_memory_and_what_it_did_to_a_prefill_are_told() {
    let gauge = "device 40.2 GiB · peak 43.1 · buffer cache 307.2 MiB · limit 48.0 GiB ████████░░";
    for (name, theme, width, height) in [
        ("memory-80x24", ANSI, 80, 24),
        ("memory-160x48", ANSI, 160, 48),
        ("memory-80x24-mono-ascii", MONO_ASCII, 80, 24),
        ("memory-160x48-mono-ascii", MONO_ASCII, 160, 48),
    ] {
        let mut bench = short_of_memory();
        bench.theme = theme;
        bench.press('3');
        let frame = bench.frame(width, height);
        let text = rows(&frame).join("\n");
        assert!(
            text.contains("memory     2 prefill chunks shrunk to fit in memory, smallest 64 tok"),
            "{text}"
        );
        assert!(width < 160 || theme != ANSI || text.contains(gauge), "{text}");
        let head = text.lines().next().unwrap();
        assert!(width < 160 || head.contains("device 40.2 GiB") && head.contains("limit 48.0 GiB"), "{head}");
        snapshot(name, &frame);
    }
    let mut bench = short_of_memory();
    bench.press('5');
    let text = bench.text(160, 48);
    assert!(
        text.contains("448/3,172, chunk of 256 shrunk to 64 for want of memory; device 40.2 GiB"),
        "{text}"
    );
    bench.press('6');
    let title = rows(&bench.frame(80, 24)).swap_remove(2);
    assert!(title.contains("55 blocks · device 40.2 GiB ─"), "{title}");
}

#[test]
fn where_nobody_counts_memory_there_is_no_gauge() {
    let mut events = sample::session().events();
    for event in &mut events {
        if let Body::PrefillProgress { device, .. } | Body::Memory { device, .. } = &mut event.body {
            *device = None;
        }
    }
    for pane in Pane::ALL {
        let mut bench = Bench::live(events.clone());
        bench.press(pane.key());
        let text = bench.text(160, 48);
        assert!(!text.contains("device ") && !text.contains("\n│memory "), "{text}");
    }
}

#[test]
fn the_help_explains_the_words_of_the_gauge() {
    let mut bench = sample();
    bench.press('?');
    let text = bench.text(160, 160);
    for words in ["buffer cache ", "limit ", "prefill chunks shrink to stay below it"] {
        assert!(text.contains(words), "{words} is missing in {text}");
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
        bench.press(pane.key());
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
        bench.press(pane.key());
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

/// Six turns of `tools-change` on the bundled model, as `escarp tui --record` wrote them.
fn recorded_run() -> Vec<Event> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/fixtures/tools-change.jsonl");
    escarp::event::record::read(&path).unwrap()
}

#[test]
fn a_recording_from_before_memory_was_told_reads_and_shows_none() {
    let mut ledger = escarp::ledger::Ledger::new();
    recorded_run().iter().for_each(|event| ledger.apply(event));
    assert_eq!(ledger.requests().count(), 6);
    assert_eq!(ledger.device_memory(), None);
    assert!(ledger.memory().is_some());
    assert!(ledger.requests().all(|request| request.device_memory.is_none() && request.shrunk.is_none()));
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
