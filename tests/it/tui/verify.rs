//! Speculative decoding in the interface: the verify view, its keys, and what other panes say of it.

use crossterm::event::KeyCode;
use escarp::compare::News;
use escarp::config::{ControllerKind, DrafterKind, SpeculationOverride};
use escarp::engine::Command;
use escarp::event::*;
use escarp::tui::app::{Effect, Model, Msg, Pane, update};
use escarp::tui::log::LogRing;
use escarp::tui::panes::transcript::WrapCache;

use super::sample::{Run, Turn};
use super::{Bench, MONO_ASCII, event, rows, snapshot};

/// Nanoseconds of a dense step in the sample.
const STEP: u64 = 1_000_000;
/// Thousandths of a dense step that a forward of 1, 2, … tokens takes.
const FORWARD: [u64; 9] = [1_000, 1_080, 1_190, 1_370, 1_930, 2_300, 2_800, 3_300, 3_900];

/// The reply of the sample, token by token.
const REPLY: &str = "{\"path\": \"src/cache/restore.rs\", \"old\": \"walk_back(blocks)\", \"new\": \"walk_back(&blocks)\"}\n\
    I changed the call so that the blocks are borrowed and not moved; the walk stops at the deepest one.\n\
    fn walk_back(blocks: &[Block]) -> Option<usize> {\n    blocks.iter().rposition(|block| block.has_state())\n}\n";

fn pieces() -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for c in REPLY.chars() {
        let begins = out.last().is_none_or(|last| last.len() >= 5 || !c.is_alphanumeric());
        if begins {
            out.push(String::new());
        }
        out.last_mut().unwrap().push(c);
    }
    out
}

/// What a cycle of the sample does: depth, tokens drafted, tokens accepted; a depth of `PARK` decodes ordinarily for as many tokens.
type Script = &'static [(u32, u32, u32)];

const PARK: u32 = u32::MAX;

/// Wins: most of what is drafted is accepted, and it is parked once.
const WINNING: Script = &[
    (0, 0, 0),
    (4, 4, 4),
    (4, 4, 2),
    (4, 4, 4),
    (3, 3, 3),
    (3, 3, 3),
    (3, 3, 1),
    (2, 2, 0),
    (2, 2, 0),
    (PARK, 9, 0),
    (1, 1, 1),
    (3, 3, 3),
    (3, 1, 1),
    (3, 3, 2),
    (4, 4, 0),
    (3, 3, 3),
    (3, 3, 3),
];

/// Loses: nothing that was drafted is accepted.
const LOSING: Script = &[(4, 4, 0), (4, 4, 1), (4, 4, 0), (0, 0, 0), (4, 4, 0)];

fn facts() -> SpeculationFacts {
    SpeculationFacts {
        drafter: DrafterKind::None,
        loaded: vec![DrafterKind::Ngram, DrafterKind::Mtp],
        draft_model: None,
        depth_max: 4,
        controller: ControllerKind::Adaptive,
        audit: false,
    }
}

/// A run that has told which drafters are loaded, and a dense turn.
fn begun() -> Run {
    let mut run = Run::with(|run| run.speculation = Some(facts()));
    dense(&mut run, 1);
    run
}

/// A turn that nothing drafts for: every token is a dense step.
fn dense(run: &mut Run, number: u64) {
    let turn = Turn { request: number, turn: number as u32, fresh: 300, reply: REPLY, ..Turn::default() };
    let (lane, request) = (Some(0), Some(number));
    let (_, suffix) = run.begin(&turn);
    run.prefill(&turn, suffix, suffix);
    run.say(lane, request, Body::Prefilled { computed_tokens: suffix, took: Nanos(suffix * 3_400_000) });
    let pieces = pieces();
    for (at, text) in (0..).zip(&pieces) {
        run.wait(STEP);
        run.say(
            lane,
            request,
            Body::Token { token: 1_000 + at as u32, text: text.clone(), index: at, margin: None },
        );
    }
    let (output_tokens, reason) = (pieces.len() as u64, FinishReason::Length);
    let took = Nanos((output_tokens - 1) * STEP);
    let output_sha256 = "ab".repeat(32);
    run.say(
        lane,
        request,
        Body::Decoded {
            reason,
            output_tokens,
            output_sha256,
            text: REPLY.into(),
            took,
            shared_forwards: None,
        },
    );
    run.say(lane, request, Body::Finished { reason, took: Nanos(took.0 + suffix * 3_400_000) });
    run.gate(Gate::BeforeTurn, 0, Some(number as u32 + 1));
}

/// How a speculative turn is told.
#[derive(Clone, Copy)]
struct Told {
    script: Script,
    /// Other sequences in every forward.
    neighbours: u32,
    /// Whether the curve is measured.
    curve: bool,
    /// Whether the reply ends.
    ends: bool,
    /// The cycle whose audit fails.
    fails: Option<usize>,
    /// Whether the script goes on until the whole reply is written.
    whole: bool,
}

const PLAIN: Told =
    Told { script: WINNING, neighbours: 0, curve: true, ends: true, fails: None, whole: false };

fn decision(first: u64, depth: u32, reason: DepthReason) -> DepthDecision {
    DepthDecision {
        first,
        depth,
        reason,
        room: 48,
        acceptance: vec![Some(0.86), Some(0.78), Some(0.71), None],
        cost: FORWARD.iter().take(5).map(|part| Some(Nanos(part * STEP / 1_000))).collect(),
        rate: vec![Some(1_000.0), Some(1_722.0), Some(2_134.0), Some(2_201.0), None],
        losing_streak: if reason == DepthReason::Parked { 2 } else { 0 },
        cooldown: (reason == DepthReason::Parked).then_some(9),
    }
}

/// A turn whose reply a drafter had a part in.
fn speculative(run: &mut Run, number: u64, told: Told) {
    let turn = Turn {
        request: number,
        turn: number as u32,
        name: "edit-file",
        fresh: 300,
        reply: REPLY,
        ..Turn::default()
    };
    let (lane, request) = (Some(0), Some(number));
    let (prompt, suffix) = run.begin(&turn);
    run.prefill(&turn, suffix, suffix);
    run.say(lane, request, Body::Prefilled { computed_tokens: suffix, took: Nanos(suffix * 3_400_000) });
    let pieces = pieces();
    let start = DrafterStart {
        drafter: DrafterKind::Ngram,
        depth_max: 4,
        controller: ControllerKind::Adaptive,
        greedy: true,
        set_by: [SetBy::Hand, SetBy::Default, SetBy::Default],
        primed_tokens: prompt,
        cached_tokens: 0,
        took: Nanos(4_000_000),
    };
    run.say(lane, request, Body::DrafterStarted(Box::new(start)));
    let token = |run: &mut Run, at: u64| {
        let text = pieces.get(at as usize).cloned().unwrap_or_default();
        run.say(lane, request, Body::Token { token: 1_000 + at as u32, text, index: at, margin: None });
    };
    token(run, 0);
    let mut at = 1;
    let mut took = 0;
    let rounds = if told.whole { usize::MAX } else { 1 };
    for (index, (depth, drafted, accepted)) in
        told.script.iter().cycle().take(told.script.len().saturating_mul(rounds)).enumerate()
    {
        let left = (pieces.len() as u64).saturating_sub(at) as u32;
        if told.whole && left == 0 {
            break;
        }
        let (drafted, accepted) = if told.whole {
            (&(*drafted).min(left), &(*accepted).min(left - 1).min(*drafted))
        } else {
            (drafted, accepted)
        };
        if *depth == PARK {
            for _ in 0..*drafted {
                run.say(lane, request, Body::DepthDecided(Box::new(decision(at, 0, DepthReason::Parked))));
                run.wait(STEP);
                took += STEP;
                token(run, at);
                at += 1;
            }
            continue;
        }
        let reason = if *depth == 0 { DepthReason::DenseProbe } else { DepthReason::Best };
        run.say(lane, request, Body::DepthDecided(Box::new(decision(at, *depth, reason))));
        let proposed = (0..u64::from(*drafted)).map(|place| {
            let right = pieces.get((at + place) as usize).cloned().unwrap_or_default();
            if place < u64::from(*accepted) { right } else { format!(" wrong{place}\n") }
        });
        let audit = told.fails.map(|fails| Audit {
            passed: index != fails,
            how: Identity::Bitwise,
            problem: (index == fails).then(|| "layer 3: keys differ at position 812".into()),
        });
        let cycle = Cycle {
            first: at,
            context_tokens: prompt + at,
            depth: *depth,
            drafted: *drafted,
            tested: (*accepted + 1).min(*drafted),
            accepted: *accepted,
            proposed: proposed.collect(),
            draft: Nanos(u64::from(*drafted) * 30_000),
            verify: (told.neighbours == 0).then_some(Nanos(FORWARD[*drafted as usize] * STEP / 1_000)),
            sample: Nanos(20_000),
            rollback: Nanos(if accepted < drafted { 60_000 } else { 0 }),
            commit: Nanos(15_000),
            neighbours: told.neighbours,
            experts: None,
            audit,
        };
        let took_now = cycle.took().map_or(STEP, |took| took.0);
        run.wait(took_now);
        took += took_now;
        run.say(lane, request, Body::Cycled(Box::new(cycle)));
        for _ in 0..=*accepted {
            token(run, at);
            at += 1;
        }
    }
    if !told.ends {
        return;
    }
    let text: String = pieces.iter().take(at as usize).map(String::as_str).collect();
    let reason = FinishReason::Length;
    let output_sha256 = "ab".repeat(32);
    run.say(
        lane,
        request,
        Body::Decoded {
            reason,
            output_tokens: at,
            output_sha256,
            text,
            took: Nanos(took),
            shared_forwards: None,
        },
    );
    if told.curve {
        let points = (1..=8).zip(FORWARD).map(|(width, part)| (width, Nanos(part * STEP / 1_000)));
        let curve = VerifyCurve { context_tokens: prompt + at, points: points.collect(), repeats: 5 };
        run.say(lane, request, Body::VerifyCurve(Box::new(curve)));
    }
    run.say(lane, request, Body::Finished { reason, took: Nanos(took + suffix * 3_400_000) });
    run.gate(Gate::BeforeTurn, 0, Some(number as u32 + 1));
}

fn told(told: Told) -> Bench {
    let mut run = begun();
    speculative(&mut run, 2, told);
    let mut bench = Bench::live(run.events());
    bench.press('0');
    bench
}

#[test]
fn frames_of_the_verify_view() {
    for (name, told_as) in [
        ("verify-wins", PLAIN),
        ("verify-live", Told { ends: false, curve: false, ..PLAIN }),
        ("verify-loses", Told { script: LOSING, curve: false, ..PLAIN }),
        ("verify-shared", Told { neighbours: 2, curve: false, ..PLAIN }),
        ("verify-audit-failed", Told { fails: Some(4), ..PLAIN }),
    ] {
        if name == "verify-wins" {
            let mut bench = told(told_as);
            bench.press('w');
            snapshot("verify-sheet-80x24", &bench.frame(80, 24));
        }
        for (width, height) in [(80, 24), (120, 40), (160, 48)] {
            snapshot(&format!("{name}-{width}x{height}"), &told(told_as).frame(width, height));
        }
        let mut bench = told(told_as);
        bench.theme = MONO_ASCII;
        let frame = bench.frame(80, 24);
        assert!(frame.content.iter().all(|cell| cell.symbol().is_ascii()));
        snapshot(&format!("{name}-80x24-mono-ascii"), &frame);
    }
}

fn by_hand(effects: Vec<Effect>) -> SpeculationOverride {
    match effects.as_slice() {
        [Effect::Send(Command::Speculation(by_hand))] => *by_hand,
        other => panic!("{other:?}"),
    }
}

/// Has the engine obey.
fn obey(bench: &mut Bench, set: SpeculationOverride) {
    let SpeculationOverride { drafter, depth, controller } = set;
    bench.feed(vec![event(9_000, Body::SpeculationSet { drafter, depth, controller })]);
}

#[test]
fn keys_set_drafter_depth_and_controller_and_keep_what_else_was_set() {
    let mut bench = Bench::live(begun().events());
    let mut expected = SpeculationOverride::default();
    for drafter in [DrafterKind::Ngram, DrafterKind::Mtp, DrafterKind::None, DrafterKind::Ngram] {
        expected.drafter = Some(drafter);
        let set = by_hand(bench.press('d'));
        assert_eq!(set, expected, "only what is loaded can be chosen");
        obey(&mut bench, set);
    }
    let toast = bench.model.ui.toast.clone().unwrap().text;
    assert!(
        toast.starts_with("ngram by hand from the next request on: up to 4 tokens a cycle, adaptive"),
        "{toast}"
    );
    expected.depth = Some(5);
    let set = by_hand(bench.press('+'));
    assert_eq!(set, expected);
    obey(&mut bench, set);
    expected.depth = Some(4);
    let set = by_hand(bench.press('-'));
    assert_eq!(set, expected);
    obey(&mut bench, set);
    expected.controller = Some(ControllerKind::Fixed);
    let set = by_hand(bench.press('a'));
    assert_eq!(set, expected);
    obey(&mut bench, set);
    assert!(bench.text(160, 48).contains("4 tokens a cycle, fixed"));
    obey(&mut bench, SpeculationOverride { depth: Some(16), ..expected });
    assert_eq!(bench.press('+'), []);
    assert!(bench.text(120, 40).contains("this is the greatest depth"));
    obey(&mut bench, SpeculationOverride { depth: Some(1), ..expected });
    assert_eq!(bench.press('-'), []);
}

#[test]
fn depth_and_controller_without_a_drafter_say_how_to_get_one() {
    let mut bench = Bench::live(begun().events());
    let set = by_hand(bench.press('a'));
    obey(&mut bench, set);
    let text = bench.text(120, 40);
    assert!(text.contains("there is no drafter: `d` chooses one"), "{text}");
}

#[test]
fn an_engine_that_tells_of_no_drafter_cannot_be_set() {
    let mut bench = super::sample();
    for key in ['d', '+', '-', 'a'] {
        assert_eq!(bench.press(key), []);
        assert!(bench.text(120, 40).contains("tells of no drafter"), "{key}");
    }
}

#[test]
fn the_curve_is_asked_for_and_called_off() {
    let mut bench = told(Told { curve: false, ..PLAIN });
    assert!(bench.text(120, 40).contains("`v` measures the verify curve"));
    assert_eq!(bench.press('v'), [Effect::Send(Command::MeasureVerify(true))]);
    assert_eq!(bench.press('v'), [Effect::Send(Command::MeasureVerify(false))]);
    let mut bench = told(PLAIN);
    assert_eq!(
        bench.press('v'),
        [Effect::Send(Command::MeasureVerify(false))],
        "the latest reply was measured"
    );
}

#[test]
fn the_verdict_is_whether_a_cycle_gives_more_than_it_costs() {
    let text = told(PLAIN).text(120, 40);
    assert!(
        text.contains("WINS  2.88 tokens per cycle > 1.56 dense steps: 1.62x predicted, – measured"),
        "{text}"
    );
    let text = told(Told { script: LOSING, ..PLAIN }).text(120, 40);
    assert!(text.contains("LOSES  1.20 tokens per cycle < 1."), "{text}");
}

#[test]
fn the_pane_has_one_dense_step_and_one_prediction_until_two_turns_are_picked() {
    let mut bench = told(PLAIN);
    let text = bench.text(160, 48);
    assert!(text.contains("turn 2 by its own 10 ordinary steps:"), "{text}");
    assert_eq!(text.matches("x predicted").count(), text.matches("1.62x predicted").count(), "{text}");
    assert!(text.contains("a dense turn would measure it: `u` picks one"), "{text}");
    bench.key(KeyCode::Left);
    bench.press('u');
    bench.key(KeyCode::Right);
    let text = bench.text(160, 48);
    assert!(text.contains("turn 1 dense, 2 drafted: 1.6") && text.contains("1.61x measured"), "{text}");
    // A reply without ordinary steps of its own is held against the dense turn, predicted and measured.
    let text = told(Told { script: &[(4, 4, 3), (4, 4, 4)], whole: true, ..PLAIN }).text(160, 48);
    assert!(text.contains("measured (turn 1)") && text.contains("(turn 1, dense)"), "{text}");
    assert!(text.contains("turn 1 dense, 2 drafted: "), "{text}");
}

#[test]
fn what_has_no_room_is_marked_and_can_be_scrolled_to() {
    for (width, height) in [(80, 24), (100, 30), (120, 30)] {
        let mut bench = told(PLAIN);
        let text = bench.text(width, height);
        assert!(text.contains("rows more: `w` shows all figures"), "{text}");
        bench.press('w');
        let mut seen = bench.text(width, height);
        assert!(seen.contains("all figures: rows 1–") && seen.contains("WINS"), "{seen}");
        for _ in 0..60 {
            bench.key(KeyCode::Down);
            seen.push_str(&bench.text(width, height));
        }
        let sheet = [
            "draft 5 %",
            "rollback",
            "commit",
            "by kind",
            "JSON keys",
            "4: 100 %",
            "oracle",
            "tok/s",
            "fixed 8",
        ];
        for words in sheet {
            assert!(seen.contains(words), "{words} is missing at {width}x{height} in\n{seen}");
        }
        assert_eq!(bench.model.ui.cycle, None, "the sheet scrolls and selects no cycle");
        bench.press('g');
        assert!(bench.text(width, height).contains("all figures: rows 1–"));
        bench.press('w');
        assert!(bench.text(width, height).contains("○own"));
    }
}

#[test]
fn experts_per_forward_stand_with_the_cycle_time() {
    let mut run = begun();
    speculative(&mut run, 2, PLAIN);
    let mut events = run.events();
    for event in &mut events {
        if let Body::Cycled(cycle) = &mut event.body {
            cycle.experts = Some(ExpertsTouched { touched: 12, of_one_token: 4, experts: 64 });
        }
    }
    let mut bench = Bench::live(events);
    bench.write("0wG");
    let mut seen = bench.text(80, 24);
    for _ in 0..40 {
        bench.key(KeyCode::Up);
        seen.push_str(&bench.text(80, 24));
    }
    assert!(seen.contains("experts 12.0 of 64 a forward, 4 for one token"), "{seen}");
}

#[test]
fn a_parked_stretch_is_one_span_and_one_line_however_many_steps_it_had() {
    let mut bench = told(Told { script: &[(PARK, 40, 0), (3, 3, 3), (PARK, 9, 0)], ends: false, ..PLAIN });
    let text = bench.text(160, 48);
    assert_eq!(text.matches("━━ parked: ").count(), 2, "{text}");
    assert!(text.contains("━━ parked: 40 ordinary steps"), "a reply may begin parked: {text}");
    assert!(text.contains("━ parked 2 times, for 49 tokens"), "{text}");
    bench.write("5z");
    let text = bench.text(160, 200);
    assert_eq!(text.matches("Parked").count(), 2, "{text}");
    assert!(text.contains("0 at 1: Parked, for 40 steps") && text.contains("for 9 steps"), "{text}");
}

#[test]
fn a_draft_model_that_reads_the_prompt_is_seen_to() {
    let mut run = begun();
    let turn = Turn { request: 2, turn: 2, fresh: 300, reply: REPLY, ..Turn::default() };
    let (prompt, suffix) = run.begin(&turn);
    run.prefill(&turn, 0, suffix);
    run.say(Some(0), Some(2), Body::PrimingProgress { done: prompt / 2, total: prompt });
    run.gate(Gate::Running, 0, Some(3));
    let mut bench = Bench::live(run.events());
    let text = bench.text(80, 24);
    assert!(text.contains("TURN 2 of 12: prime 50 %"), "{text}");
    bench.press('3');
    let text = bench.text(120, 40);
    assert!(text.contains("priming █"), "{text}");
}

#[test]
fn a_dense_turn_whose_forwards_were_shared_measures_nothing() {
    let mut run = begun();
    speculative(&mut run, 2, Told { script: &[(4, 4, 3), (4, 4, 4)], whole: true, curve: false, ..PLAIN });
    let mut events = run.events();
    for event in &mut events {
        if let Body::Decoded { shared_forwards, .. } = &mut event.body {
            *shared_forwards = Some(7);
        }
    }
    let mut bench = Bench::live(events);
    bench.press('0');
    let text = bench.text(160, 48);
    assert!(text.contains("– measured: 7 forwards were shared, and a share is no measurement"), "{text}");
    assert!(!text.contains("x measured"), "{text}");
    bench.key(KeyCode::Left);
    let text = bench.text(160, 48);
    assert!(text.contains("– for a dense step: 7 forwards were shared"), "{text}");
    assert_eq!(bench.press('u'), []);
    assert!(bench.text(160, 48).contains("other sequences shared its forwards"));
    bench.press('3');
    assert!(bench.text(160, 48).contains("(7 forwards shared)"));
}

#[test]
fn what_other_depths_would_have_done_and_what_was_accepted_where_stand_below() {
    let text = told(PLAIN).text(160, 48);
    for words in ["what if    adaptive 1.", "oracle 2.", "x dense per cycle", "by kind  JSON keys"] {
        assert!(text.contains(words), "{words} is missing in\n{text}");
    }
    let text = told(Told { ends: false, ..PLAIN }).text(160, 48);
    assert!(text.contains("what if    when the reply has ended"), "{text}");
}

#[test]
fn two_turns_predict_and_the_later_ones_say_whether_it_held() {
    let mut run = begun();
    for number in 2..=4 {
        speculative(&mut run, number, Told { whole: true, ..PLAIN });
    }
    let mut bench = Bench::live(run.events());
    bench.write("0");
    for _ in 0..2 {
        bench.key(KeyCode::Left);
    }
    bench.press('u');
    assert_eq!(bench.model.ui.weighed.speculative, Some(RequestId(2)));
    bench.key(KeyCode::Left);
    bench.press('u');
    assert_eq!(bench.model.ui.weighed.dense, Some(RequestId(1)));
    bench.key(KeyCode::Right);
    let text = bench.text(160, 48);
    assert!(
        text.contains("turn 1 dense, 2 drafted: 1.") && text.contains("held in 2 of 2 other turns"),
        "{text}"
    );
}

#[test]
fn a_failed_audit_leaves_no_speed_up_anywhere() {
    let mut bench = told(Told { fails: Some(4), ..PLAIN });
    for (width, height) in [(80, 24), (120, 40), (160, 48)] {
        let text = bench.text(width, height);
        assert!(text.contains("AUDIT FAILED at token 16: layer 3: keys differ at position 812"), "{text}");
        assert!(!text.contains("predicted") && !text.contains("WINS") && !text.contains("◂"), "{text}");
        assert!(!text.contains("1.49") && !text.contains("tok/s"), "no cost, no rate: {text}");
    }
}

#[test]
fn what_sequences_shared_is_no_measurement() {
    let text = told(Told { neighbours: 2, curve: false, ..PLAIN }).text(120, 40);
    assert!(text.contains("2.88 tokens per cycle vs – dense steps"), "{text}");
    assert!(text.contains("3 sequences shared forwards"), "{text}");
    assert!(text.contains("– predicted, – measured"), "{text}");
}

#[test]
fn a_turn_without_a_drafter_says_what_to_do() {
    let mut bench = Bench::live(begun().events());
    bench.press('0');
    let text = bench.text(80, 24);
    assert!(text.contains("turn 1 decoded without a drafter"), "{text}");
    assert!(text.contains("`d` sets a drafter from the next request on: ngram, mtp"), "{text}");
    assert!(text.contains("a dense step took 1.00 ms on average"), "{text}");
    let mut bench = Bench::live(Run::new().events());
    bench.press('0');
    assert!(bench.text(80, 24).contains("here: what a verify cycle costs in dense steps"));
}

#[test]
fn cycles_are_selected_with_up_and_down_and_followed_at_the_end() {
    let mut bench = told(PLAIN);
    bench.frame(120, 40);
    let chosen = |bench: &mut Bench| {
        let rows = rows(&bench.frame(120, 40));
        rows.iter().filter_map(|row| row.split("│ ▸").nth(1).map(str::to_owned)).next().unwrap_or_default()
    };
    assert!(chosen(&mut bench).trim_start().starts_with("53"), "{}", chosen(&mut bench));
    bench.key(KeyCode::Up);
    assert!(chosen(&mut bench).trim_start().starts_with("49"));
    bench.press('g');
    assert!(chosen(&mut bench).trim_start().starts_with("2 "));
    assert!(bench.text(120, 40).contains("depth 0 at token 2: dense probe"));
    bench.press('G');
    assert_eq!(bench.model.ui.cycle, None);
    for _ in 0..7 {
        bench.key(KeyCode::Up);
    }
    assert!(
        bench.text(120, 40).contains("depth 0 at token 28: PARKED"),
        "a parked span has its decision too"
    );
    bench.key(KeyCode::Left);
    assert_eq!(bench.model.ui.cycle, None, "another request's cycles are other cycles");
    assert_eq!(bench.model.selected().map(|request| request.id.0), Some(1));
}

#[test]
fn hostile_and_absurd_cycles_draw_too() {
    let mut run = begun();
    speculative(&mut run, 2, PLAIN);
    let mut events = run.events();
    let huge = u64::MAX;
    for (index, event) in events.iter_mut().enumerate() {
        match &mut event.body {
            Body::Cycled(cycle) => {
                let value = |at: usize| [0, 1, huge][(index + at) % 3];
                cycle.draft = Nanos(value(0) / 8);
                cycle.verify = Some(Nanos(value(1) / 8));
                cycle.sample = Nanos(value(2) / 8);
                cycle.first = if index % 2 == 0 { huge - index as u64 } else { cycle.first };
                (cycle.depth, cycle.drafted, cycle.tested, cycle.accepted) =
                    (u32::MAX, u32::MAX, u32::MAX, if index % 5 == 0 { u32::MAX } else { 3 });
                cycle.neighbours = if index % 7 == 0 { u32::MAX } else { 0 };
                cycle.proposed = vec!["\x1b[2J\u{202e}\n日本".repeat(50)];
            }
            Body::DepthDecided(decision) => {
                decision.first = if index % 2 == 0 { huge } else { 0 };
                (decision.depth, decision.room, decision.losing_streak) = (u32::MAX, u32::MAX, u32::MAX);
                decision.cooldown = Some(u32::MAX);
                decision.acceptance = vec![Some(f64::NAN), Some(f64::INFINITY), None];
                decision.cost = vec![Some(Nanos(0)), Some(Nanos(huge)), None];
                decision.rate = vec![Some(f64::NAN), Some(f64::INFINITY), Some(-1.0), None];
            }
            Body::VerifyCurve(curve) => {
                curve.points = vec![(0, Nanos(0)), (1, Nanos(huge)), (u32::MAX, Nanos(1))]
            }
            Body::DrafterStarted(start) => {
                (start.depth_max, start.primed_tokens, start.took) = (u32::MAX, huge, Nanos(huge));
            }
            _ => {}
        }
    }
    for pane in Pane::ALL {
        let mut bench = Bench::live(events.clone());
        bench.press(pane.key());
        for (width, height) in [(40, 10), (80, 24), (111, 31), (120, 40), (300, 80)] {
            let frame = bench.frame(width, height);
            assert!(frame.content.iter().all(|cell| !cell.symbol().chars().any(char::is_control)));
            bench.key(KeyCode::Up);
        }
    }
}

#[test]
fn every_size_draws_the_verify_view() {
    for told_as in [PLAIN, Told { ends: false, ..PLAIN }, Told { fails: Some(2), ..PLAIN }] {
        let mut bench = told(told_as);
        for (width, height) in
            (0..=130).step_by(3).flat_map(|width| (0..=44).map(move |height| (width, height)))
        {
            bench.frame(width, height);
        }
    }
}

/// Two lanes of the same turns: dense, and with a drafter.
fn lanes(told_as: Told) -> Bench {
    let turns = |speculates: bool| {
        let mut run = Run::with(|run| run.speculation = Some(facts()));
        for number in 1..=3 {
            if speculates { speculative(&mut run, number, told_as) } else { dense(&mut run, number) }
        }
        run.events()
    };
    let news =
        |lane: usize, events: Vec<Event>| events.into_iter().map(move |event| News::Event { lane, event });
    let all = news(0, turns(false)).chain(news(1, turns(true))).chain([News::Gate(Gate::BeforeTurn)]);
    let names = ["dense", "ngram"].map(str::to_owned).to_vec();
    let model = Model::live(names, LogRing::default());
    let mut bench = Bench { model, wrapped: WrapCache::default(), theme: super::ANSI };
    update(&mut bench.model, Msg::News(all.collect()));
    bench
}

#[test]
fn lanes_that_draft_show_what_it_was_worth_or_what_failed() {
    let whole = Told { whole: true, curve: false, ..PLAIN };
    for (name, width, height) in [
        ("lanes-drafted-80x24", 80, 24),
        ("lanes-drafted-120x40", 120, 40),
        ("lanes-drafted-160x48", 160, 48),
    ] {
        let frame = lanes(whole).frame(width, height);
        let text = rows(&frame).join("\n");
        assert!(text.contains("decode") && text.contains("1.5"), "{text}");
        snapshot(name, &frame);
        let text = lanes(Told { fails: Some(4), ..whole }).text(width, height);
        assert!(text.contains(if width < 110 { "FAILED" } else { "NO SPEED-UP COUNTS" }), "{text}");
    }
    let mut bench = lanes(whole);
    bench.write(".0");
    let text = bench.text(120, 40);
    assert!(text.contains("measured (turn 3)"), "the same turn of the dense lane is the counterpart: {text}");
}

/// What the winning script accepts of the reply, line ends left out.
fn accepted_text() -> String {
    let (pieces, mut at, mut out) = (pieces(), 1, String::new());
    for (depth, drafted, accepted) in WINNING {
        let (accepted, tokens) = if *depth == PARK { (0, *drafted) } else { (*accepted, accepted + 1) };
        out.extend(pieces[at..at + accepted as usize].iter().map(|piece| piece.replace('\n', "")));
        at += tokens as usize;
    }
    out
}

#[test]
fn the_transcript_marks_accepted_drafts_by_more_than_colour() {
    for theme in [super::ANSI, MONO_ASCII] {
        let mut bench = told(PLAIN);
        bench.theme = theme;
        bench.press('4');
        let frame = bench.frame(160, 48);
        let marked: String = frame
            .content
            .chunks(160)
            .skip_while(|row| !row.iter().map(|cell| cell.symbol()).collect::<String>().contains("asst"))
            .flatten()
            .filter(|cell| cell.modifier.contains(ratatui::style::Modifier::UNDERLINED))
            .map(|cell| cell.symbol())
            .collect();
        assert_eq!(marked, accepted_text());
        assert!(bench.text(160, 48).contains("accepted drafts underlined"));
    }
    let mut bench = Bench::live(begun().events());
    bench.press('4');
    assert!(!bench.text(160, 48).contains("underlined"));
}

#[test]
fn session_and_request_say_how_a_reply_was_decoded() {
    let mut bench = told(PLAIN);
    bench.write("1z");
    let text = bench.text(160, 48);
    assert!(text.contains("gives/costs") && text.contains("2.88/1.56"), "{text}");
    bench.write("z3");
    let text = bench.text(160, 48);
    assert!(
        text.contains("decode     ngram ≤4 adaptive  2.88 tokens per cycle for 1.56 dense steps"),
        "{text}"
    );
    assert!(text.contains("priming 4.0ms in ttft"), "{text}");
    let mut bench = Bench::live(begun().events());
    assert!(!bench.text(160, 48).contains("gives/costs"), "nothing was drafted");
}
