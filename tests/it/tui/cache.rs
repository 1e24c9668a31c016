//! What the cache explains: losses and the blocks responsible, divergences, debt, breakpoints, costs before they are paid, faults, tiers.

use crossterm::event::KeyCode;
use escarp::engine::{Command, Fault, Subject};
use escarp::event::*;
use escarp::tui::app::{Effect, Msg, Pane, update};

use super::sample::{Run, Turn};
use super::{ANSI, Bench, MONO_ASCII, event, rows, sample, snapshot};

/// Both sizes in colour, and the smaller one without colour and beyond ASCII nothing.
fn snapshots(name: &str, make: impl Fn() -> Bench) {
    for (variant, theme, width, height) in
        [("80x24", ANSI, 80, 24), ("160x48", ANSI, 160, 48), ("80x24-mono-ascii", MONO_ASCII, 80, 24)]
    {
        let mut bench = make();
        bench.theme = theme;
        let frame = bench.frame(width, height);
        assert!(theme == ANSI || frame.content.iter().all(|cell| cell.symbol().is_ascii()), "{name}");
        snapshot(&format!("{name}-{variant}"), &frame);
    }
}

fn row_with<'a>(rows: &'a [String], words: &str) -> &'a str {
    rows.iter().find(|row| row.contains(words)).unwrap_or_else(|| panic!("{words} is not in {rows:#?}"))
}

fn last_restore(events: &mut [Event]) -> &mut Restore {
    let restores = events.iter_mut().rev().filter_map(|event| match &mut event.body {
        Body::Restored(restore) => Some(restore),
        _ => None,
    });
    let mut restores = restores;
    restores.next().unwrap()
}

/// A hybrid whose last request found its blocks in every place a block can be.
fn everywhere() -> Bench {
    use Residency::*;
    let mut events = sample::session().events();
    let restore = last_restore(&mut events);
    let run = |from: usize, to: usize, residency: Residency, recurrent: Option<EndState>| {
        (from..to).map(move |at| (at, residency, recurrent))
    };
    let states = run(0, 9, Ram, Some(EndState::Placeholder))
        .chain(run(9, 10, Ram, Some(EndState::Ram)))
        .chain(run(10, 19, Ssd, Some(EndState::Placeholder)))
        .chain(run(19, 20, Ssd, Some(EndState::Ssd)))
        .chain(run(20, 30, Held, Some(EndState::Dropped)))
        .chain(run(30, 37, HeldSsd, Some(EndState::Placeholder)))
        .chain(run(37, 38, Damaged, None))
        .chain(run(38, 42, Evicted, None));
    for (at, residency, recurrent) in states {
        let block = &mut restore.blocks[at];
        (block.residency, block.recurrent) = (residency, recurrent);
        block.earlier_run = residency == Ssd;
    }
    let block =
        |index, writer| Some(Culprit { index, written_by: Some(RequestId(writer)), earlier_run: false });
    restore.checkpoint_tokens = 20 * sample::BLOCK;
    restore.matched_with_state_tokens = 20 * sample::BLOCK;
    restore.matched_tokens = 37 * sample::BLOCK;
    restore.held_tokens = 42 * sample::BLOCK;
    restore.closest = Some(Closest { request: RequestId(3), common_tokens: 12_400 });
    restore.ssd = Some(SsdRead { blocks: 10, snapshots: 1, bytes: 14 << 20, took: Nanos(5_200_000) });
    restore.cause = Cause::NoSnapshot;
    restore.losses = vec![
        Loss { cause: Cause::Appended, tokens: 14_188 - 12_083, detail: String::new(), block: None },
        Loss { cause: Cause::BlockFloor, tokens: 12_083 - 11_776, detail: String::new(), block: None },
        Loss {
            cause: Cause::Damaged,
            tokens: 11_776 - 9_472,
            detail: "checksum of 1f/1f03…; moved aside".into(),
            block: block(37, 4),
        },
        Loss {
            cause: Cause::NoSnapshot,
            tokens: 9_472 - 5_120,
            detail: "its snapshot was dropped to make room for request 7".into(),
            block: block(20, 5),
        },
    ];
    let mut bench = Bench::live(events);
    bench.press('3');
    bench
}

#[test]
fn every_loss_is_named_with_its_block_and_writer_and_every_place_has_a_glyph_and_a_count() {
    snapshots("request-everywhere", everywhere);
    let rows = rows(&everywhere().frame(160, 48));
    for words in [
        "common prefix with request 7 12,083 › with request 3 12,400 › held 10,752 › matched 9,472",
        "with state 5,120 › checkpoint 5,120",
        "FILE DAMAGED: block 37, written by request 4; checksum of 1f/1f03…; moved aside",
        "NO RECURRENT SNAPSHOT: block 20, written by request 5; its snapshot was dropped to make room",
        "attention: ■ 15 RAM  ▣ 10 SSD  ▒ 10 held  ░ 7 held on SSD  ▫ 4 evicted  ✗ 1 damaged  · 8 not held",
        "recurrent: ● 1 snapshot  ◉ 1 snapshot on SSD",
        "▲ block 20 ▒ held in RAM, not restored, snapshot at its end dropped · tokens 5,120–5,376",
        "10 blocks, 1 snapshot from SSD: 14.0 MiB in 5.2ms",
    ] {
        row_with(&rows, words);
    }
}

fn token(id: u32, text: &str) -> TokenText {
    TokenText { id, text: text.into() }
}

/// The session whose tool list changes at turn 6, with the divergence that the engine tells of.
fn departed() -> Bench {
    let mut events = sample::session().events();
    let changed = events.iter_mut().find_map(|event| match &mut event.body {
        Body::Restored(restore) if restore.cause == Cause::ToolSchemaChanged => Some(restore),
        _ => None,
    });
    changed.unwrap().divergence = Some(Divergence {
        position: 1_099,
        segment: Some(Segment::ToolSchema),
        before: "\"run\",\n  \"parameters\": {\"timeout\": {\"type\": \"integer\", \"minimum\": 1}".into(),
        after: "\"run\",\n  \"parameters\": {\"timeout_s\": {\"type\": \"number\", \"minimum\": 0.1".into(),
        against: Some(RequestId(5)),
        shared_tokens: vec![
            token(330, "\"run"),
            token(2_217, "\",\n"),
            token(216, " "),
            token(476, " \""),
            token(38_423, "parameters"),
            token(1_799, "\":"),
            token(19_341, " {\""),
        ],
        tokens_before: vec![
            token(34_254, "timeout"),
            token(1_799, "\":"),
            token(19_341, " {\""),
            token(2_043, "type"),
            token(1_799, "\":"),
            token(476, " \""),
            token(18_904, "integer"),
        ],
        tokens_after: vec![
            token(34_254 + 7, "timeout_"),
            token(99, "s"),
            token(1_799, "\":"),
            token(19_341, " {\""),
            token(2_043, "type"),
            token(1_799, "\":"),
            token(476, " \""),
            token(4_230, "number"),
        ],
    });
    Bench::live(events)
}

#[test]
fn a_divergence_is_shown_in_ids_text_and_words() {
    let open = || {
        let mut bench = departed();
        bench.frame(80, 24);
        bench.write("3kk");
        bench.key(KeyCode::Enter);
        assert_eq!(bench.model.ui.focus, Pane::Divergence, "Enter on such a request leads there");
        bench
    };
    snapshots("divergence-tools", open);
    let shown = rows(&open().frame(160, 48));
    row_with(
        &shown,
        "request 6 departs from request 5 at token 1,099, in the tool schema (tokens 400–1,100)",
    );
    row_with(&shown, "first sent by turn 1");
    row_with(&shown, "\"timeout\" became \"timeout_s\"");
    assert!(row_with(&shown, "request 5    ").contains("▸timeout"));
    assert!(row_with(&shown, "request 6    ").contains("▸timeout_"));
    assert!(row_with(&shown, "id").contains("34254"), "ids are shown");
    let mut bench = open();
    bench.key(KeyCode::Enter);
    assert_eq!(bench.model.ui.focus, Pane::Transcript);
}

#[test]
fn where_nothing_departs_the_microscope_says_why_and_leads_to_where_something_does() {
    let mut bench = departed();
    bench.press('7');
    snapshots("divergence-none", || {
        let mut bench = departed();
        bench.press('7');
        bench
    });
    assert!(bench.text(80, 24).contains("Request 8 only appends to request 7"));
    bench.key(KeyCode::Left);
    assert!(bench.text(80, 24).contains("request 6 departs from request 5"));
    bench.key(KeyCode::Left);
    assert!(bench.text(80, 24).contains("no earlier prompt of this lane departs"));
    bench.press('g');
    assert!(bench.text(80, 24).contains("Request 1 is the first"));
    assert!(Bench::live(Vec::new()).model.selected().is_none());
}

#[test]
fn a_divergence_from_a_hostile_recording_is_text_and_nothing_else() {
    let mut events = sample::session().events();
    let hostile = "\x1b]0;x\x07\u{202e}\r".repeat(5_000);
    last_restore(&mut events).divergence = Some(Divergence {
        position: u64::MAX,
        segment: None,
        before: hostile.clone(),
        after: format!("{hostile}x"),
        against: Some(RequestId(u64::MAX)),
        shared_tokens: vec![token(u32::MAX, &hostile); 300],
        tokens_before: vec![token(u32::MAX, &hostile); 300],
        tokens_after: vec![token(u32::MAX, ""); 1],
    });
    let mut bench = Bench::live(events);
    bench.press('7');
    for (width, height) in [(40, 10), (80, 24), (160, 48), (400, 12)] {
        for cell in &bench.frame(width, height).content {
            assert!(!cell.symbol().chars().any(char::is_control));
        }
    }
}

/// A checkpoint that rises, falls at request 5 and is pinned while the suffix grows.
fn latched() -> Bench {
    Bench::live(sample::latched().events())
}

#[test]
fn debt_is_plotted_listed_and_summed() {
    let open = || {
        let mut bench = latched();
        bench.press('8');
        bench
    };
    snapshots("debt-latched", open);
    snapshots("checkpoint-latched", || {
        let mut bench = latched();
        bench.press('2');
        bench
    });
    for (width, height) in [(80, 24), (160, 48)] {
        let shown = rows(&open().frame(width, height));
        row_with(&shown, "▼ cliff");
        assert!(row_with(&shown, "pinned 4 ▲").contains("▸8"), "{shown:#?}");
        row_with(&shown, "▼5");
        row_with(&shown, "Σ recomputed ");
        row_with(&shown, "canonical debt");
    }
    let shown = rows(&latched().frame(160, 48));
    row_with(&shown, "▼ cliff at turn 5: no recurrent snapshot · block 4, written by request 3");
    assert!(row_with(&shown, "pinned 4 requests at 1,024 · 5,020 tok again ").contains(" a turn"));
    assert!(row_with(&shown, " latched").contains(" advancing "));
}

#[test]
fn a_side_request_is_marked_and_stands_beside_the_checkpoint_line() {
    let mut run = sample::session();
    run.side(9, 9, "title");
    let mut bench = Bench::live(run.events());
    let shown = rows(&bench.frame(160, 48));
    assert!(row_with(&shown, "▸9 ").contains(" side "), "{shown:#?}");
    assert!(row_with(&shown, "A turn 9 side").contains("ckpt 1,024"));
    bench.press('2');
    let shown = rows(&bench.frame(80, 24));
    row_with(&shown, "stands at 12,032");
    assert!(!row_with(&shown, "turn 1 ").contains('9'), "{shown:#?}");
}

fn with_breakpoints(hit: bool) -> Bench {
    let mut run = sample::session();
    run.say(None, None, Body::BreakpointsSet { conditions: vec!["suffix>4000".into(), "cliff".into()] });
    let turn = Turn { request: 9, turn: 9, name: "run-tests", fresh: 5_000, ..Turn::default() };
    run.gate(Gate::Running, 0, Some(10));
    run.begin(&turn);
    if hit {
        let observed = "suffix 5,108".to_owned();
        run.say(Some(0), Some(9), Body::BreakpointHit { condition: "suffix>4000".into(), observed });
        run.gate(Gate::Paused, 0, Some(10));
    }
    let mut bench = Bench::live(run.events());
    bench.key(KeyCode::Null);
    bench
}

#[test]
fn breakpoints_are_always_in_sight_and_a_hit_cannot_be_overlooked() {
    snapshots("break-set", || with_breakpoints(false));
    snapshots("break-hit", || with_breakpoints(true));
    for (width, height) in [(80, 24), (160, 48)] {
        let shown = rows(&with_breakpoints(false).frame(width, height));
        assert_eq!(shown[2].trim(), "pauses at suffix>4000, cliff");
        let shown = rows(&with_breakpoints(true).frame(width, height));
        assert_eq!(shown[2].trim(), "▶ BREAKPOINT suffix>4000 at turn 9: suffix 5,108");
        assert!(shown[0].contains("BREAK TURN 9 of 12: prefill"), "{}", shown[0]);
    }
    let mut bench = with_breakpoints(true);
    bench.feed(vec![event(2_000, Body::GateChanged { gate: Gate::Running, next_turn: Some(10), turns: 12 })]);
    assert!(!bench.text(80, 24).contains("BREAKPOINT"), "it has gone on");
}

#[test]
fn breakpoints_are_typed_on_a_line_that_says_what_is_wrong() {
    let mut bench = with_breakpoints(false);
    bench.press('b');
    let text = bench.text(80, 24);
    assert!(text.contains("▸ suffix>4000, cliff▌"), "those set stand there already: {text}");
    assert!(text.contains("Held for turns 6, 9 of this lane."), "{text}");
    snapshots("over-break", || {
        let mut bench = with_breakpoints(false);
        bench.write("b, colour>3");
        bench.key(KeyCode::Enter);
        bench
    });
    bench.write(", colour>3");
    assert_eq!(bench.key(KeyCode::Enter), []);
    let text = bench.text(80, 24);
    assert!(text.contains("`colour>3` is no condition"), "{text}");
    bench.control('w');
    assert!(!bench.text(80, 24).contains("is no condition"), "the error goes with its text");
    bench.write("debt>8000");
    let [Effect::Send(Command::Break { conditions })] = &bench.key(KeyCode::Enter)[..] else { panic!() };
    let words: Vec<String> = conditions.iter().map(ToString::to_string).collect();
    assert_eq!(words, ["suffix>4000", "cliff", "debt>8000"]);
    bench.press('b');
    bench.control('u');
    assert_eq!(bench.key(KeyCode::Enter), [Effect::Send(Command::Break { conditions: Vec::new() })]);
}

fn previewed(ticket: u64, prompt: u64, problem: Option<&str>) -> Body {
    let mut events = sample::session().events();
    let mut restore = last_restore(&mut events).clone();
    restore.losses.retain(|loss| loss.cause == Cause::BlockFloor);
    let restore = problem.is_none().then(|| Box::new(restore));
    let problem = problem.map(str::to_owned);
    Body::Previewed(Box::new(Preview { ticket, prompt_tokens: prompt, restore, sparse: None, problem }))
}

#[test]
fn the_cost_of_a_turn_is_asked_for_after_a_pause_and_shown_before_it_is_sent() {
    let mut bench = latched();
    assert_eq!(bench.press('i'), []);
    assert_eq!(bench.press('W'), [Effect::AwaitTypingPause]);
    assert_eq!(bench.press('h'), [Effect::AwaitTypingPause]);
    let ask = |bench: &mut Bench| update(&mut bench.model, Msg::TypingPaused);
    let [Effect::Send(Command::Preview { ticket: 1, lane: LaneId(0), subject })] = &ask(&mut bench)[..]
    else {
        panic!()
    };
    let Subject::Injection(messages) = subject else { panic!() };
    assert_eq!(messages[0].content, "Wh");
    bench.press('y');
    assert!(matches!(&ask(&mut bench)[..], [Effect::Send(Command::Preview { ticket: 2, .. })]));
    bench.feed(vec![event(900, previewed(1, 99_999, None))]);
    assert!(!bench.text(80, 24).contains("99,999"), "an answer to an older question is no answer");
    bench.feed(vec![event(901, previewed(2, 12_900, None))]);
    let text = bench.text(80, 24);
    assert!(text.contains("prompt 12,900 = checkpoint 12,032 + suffix 868"), "{text}");
    assert!(text.contains(", measured curve of this run"), "{text}");
    snapshots("over-preview", || {
        let mut bench = latched();
        bench.write("iWhy did the restore walk back?");
        update(&mut bench.model, Msg::TypingPaused);
        bench.feed(vec![event(901, previewed(1, 12_900, None))]);
        bench
    });
    bench.press('?');
    assert!(bench.text(80, 24).contains("of the text before"), "what is outdated says so");
    assert!(matches!(&ask(&mut bench)[..], [Effect::Send(Command::Preview { ticket: 3, .. })]));
    bench
        .feed(vec![event(902, previewed(3, 80_000, Some("80,000 tokens do not fit the context of 65,536")))]);
    assert!(bench.text(80, 24).contains("80,000 tokens do not fit the context of 65,536"));
    bench.key(KeyCode::Esc);
    assert_eq!(ask(&mut bench), [], "nothing is asked once the editor is closed");

    let mut bench = sample();
    bench.press('i');
    bench.press('x');
    ask(&mut bench);
    bench.feed(vec![event(900, previewed(1, 12_900, None))]);
    bench.feed(vec![event(901, Body::Finished { reason: FinishReason::Stop, took: Nanos(1) })]);
    assert!(bench.text(80, 24).contains("of the text before"), "what it meets may be another cache now");
}

#[test]
fn an_edited_turn_is_previewed_as_the_fork_it_will_be() {
    let mut bench = sample();
    bench.press('k');
    assert_eq!(
        bench.press('e'),
        [Effect::AwaitTypingPause],
        "its cost is asked for before anything is typed"
    );
    let effects = update(&mut bench.model, Msg::TypingPaused);
    let [Effect::Send(Command::Preview { subject: Subject::Fork { turn: 7, .. }, .. })] = &effects[..] else {
        panic!("{effects:?}")
    };
    bench.control('u');
    for _ in 0..200 {
        bench.key(KeyCode::Backspace);
    }
    assert_eq!(update(&mut bench.model, Msg::TypingPaused), [], "an empty text costs nothing");
}

#[test]
fn a_fault_takes_the_chosen_block_and_its_outcome_is_told() {
    let mut bench = everywhere();
    bench.write(":fault evict");
    snapshots("over-fault-palette", || {
        let mut bench = everywhere();
        bench.write(":fault");
        bench
    });
    let text = bench.text(80, 24);
    assert!(text.contains("fault evict-block:20 · drop block 20 from RAM, with all behind it"), "{text}");
    let lane = LaneId(0);
    let sent = bench.key(KeyCode::Enter);
    assert_eq!(sent, [Effect::Send(Command::Fault { lane, fault: Fault::EvictBlock(20) })]);
    let outcome = "block 20 and 17 behind it dropped".to_owned();
    bench.feed(vec![event(900, Body::FaultInjected { fault: "evict-block:20".into(), outcome })]);
    assert!(bench.text(80, 24).contains("evict-block:20: block 20 and 17 behind it dropped"));
    bench.press('5');
    let shown = rows(&bench.frame(80, 24));
    row_with(&shown, "fault_injected");
}

#[test]
fn a_fault_that_nothing_can_happen_to_says_so_and_one_without_a_block_asks() {
    let mut bench = sample();
    bench.write(":fault fill");
    assert_eq!(bench.key(KeyCode::Enter), []);
    assert!(bench.text(80, 24).contains("there is no SSD tier"));
    bench.write(":fault drop-snap");
    assert_eq!(bench.key(KeyCode::Enter), []);
    assert!(bench.text(80, 24).contains("no recurrent layers"));

    bench.press('f');
    snapshots("over-fault", || {
        let mut bench = sample();
        bench.press('f');
        bench
    });
    let text = bench.text(80, 24);
    assert!(text.contains("▸ evict-block:47▌"), "the chosen block stands there: {text}");
    assert!(text.contains("lane A's latest prompt, which has 55"), "{text}");
    bench.control('u');
    bench.write("evict-block:x");
    bench.key(KeyCode::Enter);
    assert!(bench.text(80, 24).contains("a block is a number, from 0"));
    bench.key(KeyCode::Backspace);
    bench.press('7');
    let fault = Fault::EvictBlock(7);
    assert_eq!(bench.key(KeyCode::Enter), [Effect::Send(Command::Fault { lane: LaneId(0), fault })]);
}

fn with_tier(problem: Option<&str>) -> Bench {
    let mut run = sample::session();
    let tier = TierReading {
        blocks: 1_204,
        snapshots: 30,
        bytes: 812 << 20,
        limit_bytes: 8 << 30,
        queued_files: 12,
        written_files: 1_234,
        problem: problem.map(str::to_owned),
        ..TierReading::default()
    };
    run.say(None, None, Body::Tier(Box::new(tier)));
    let mut bench = Bench::live(run.events());
    bench.press('3');
    bench
}

#[test]
fn the_ssd_tier_is_in_sight_and_its_trouble_stands_out() {
    snapshots("tier", || with_tier(None));
    snapshots("tier-trouble", || with_tier(Some("writing is suspended: no space left on device")));
    let shown = rows(&with_tier(None).frame(80, 24));
    row_with(&shown, "ssd 1,204 blocks · 30 snapshots · 812.0 MiB of 8.0 GiB");
    let shown = rows(&with_tier(None).frame(160, 48));
    row_with(&shown, "· 12 queued");
    for (width, height) in [(80, 24), (160, 48)] {
        let problem = Some("writing is suspended: no space left on device");
        let shown = rows(&with_tier(problem).frame(width, height));
        row_with(&shown, "! SSD tier: writing is suspended: no space left on device");
    }
}

#[test]
fn absurd_figures_of_tier_debt_and_divergence_draw_too() {
    let huge = u64::MAX;
    for make in [latched, everywhere, departed] {
        let mut bench = make();
        let tier = TierReading {
            blocks: huge,
            snapshots: huge,
            bytes: huge,
            foreign_bytes: huge,
            queued_files: huge,
            declined: huge,
            damaged: huge,
            failed_writes: huge,
            problem: Some("x".repeat(10_000)),
            ..TierReading::default()
        };
        let mut events = vec![event(5_000, Body::Tier(Box::new(tier)))];
        events.push(event(5_001, Body::BreakpointsSet { conditions: vec!["y".repeat(5_000); 20] }));
        let hit = Body::BreakpointHit { condition: "z".repeat(9_000), observed: "\x1b[2J".repeat(900) };
        events.push(event(5_002, hit));
        let mut restored = sample::session().events();
        let restore = last_restore(&mut restored);
        (restore.checkpoint_tokens, restore.held_tokens, restore.matched_tokens) = (huge, huge, huge);
        restore.common_prefix_tokens = Some(huge);
        restore.closest = Some(Closest { request: RequestId(huge), common_tokens: huge });
        restore.losses = vec![
            Loss {
                cause: Cause::Evicted,
                tokens: huge,
                detail: "d".repeat(3_000),
                block: Some(Culprit {
                    index: u32::MAX,
                    written_by: Some(RequestId(huge)),
                    earlier_run: true
                }),
            };
            3
        ];
        restore.ssd = Some(SsdRead { blocks: huge, snapshots: huge, bytes: huge, took: Nanos(huge) });
        let body = Body::Restored(Box::new(restore.clone()));
        for request in [huge - 1, huge] {
            events.push(Event { request: Some(RequestId(request)), ..event(huge, body.clone()) });
        }
        bench.feed(events);
        for pane in Pane::ALL {
            bench.press(pane.key());
            for (width, height) in [(40, 10), (80, 24), (110, 30), (160, 48), (300, 80)] {
                bench.frame(width, height);
            }
        }
    }
}

#[test]
fn the_help_explains_the_panes_and_their_words() {
    let mut bench = Bench::live(Run::new().events());
    bench.press('?');
    let text = bench.text(160, 130);
    for words in [
        "divergence: the token at which a prompt departs",
        "debt: what is computed again, and who pays for it",
        "pause when a condition holds",
        "evict-block:N",
        "canonical debt",
        "with state",
        "the rest of the prompt: nobody can restore it",
    ] {
        assert!(text.contains(words), "{words} is missing in {text}");
    }
}
