//! Speculative decoding in the interface: the verify view, its keys, and what other panes say of it.

use crossterm::event::KeyCode;
use escarp::config::{ControllerKind, DrafterKind, SpeculationOverride};
use escarp::engine::Command;
use escarp::event::*;
use escarp::tui::app::{Effect, Pane};

use super::sample::{Run, Turn};
use super::{ANSI, Bench, MONO_ASCII, event, rows, snapshot};

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
    run.turn(&Turn { request: 1, turn: 1, name: "read-file", reply: REPLY, ..Turn::default() });
    run
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
}

const PLAIN: Told = Told { script: WINNING, neighbours: 0, curve: true, ends: true, fails: None };

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
    for (index, (depth, drafted, accepted)) in told.script.iter().enumerate() {
        if *depth == PARK {
            run.say(lane, request, Body::DepthDecided(Box::new(decision(at, 0, DepthReason::Parked))));
            for _ in 0..*drafted {
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
    let output_sha256 = "cd".repeat(32);
    run.say(
        lane,
        request,
        Body::Decoded { reason, output_tokens: at, output_sha256, text, took: Nanos(took) },
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
        for (width, height) in [(80, 24), (120, 40), (160, 48)] {
            snapshot(&format!("{name}-{width}x{height}"), &told(told_as).frame(width, height));
        }
        let mut bench = told(told_as);
        bench.theme = MONO_ASCII;
        let frame = bench.frame(80, 24);
        assert!(frame.content.iter().all(|cell| cell.symbol().is_ascii()));
        snapshot(&format!("{name}-80x24-mono-ascii"), &frame);
    }
    let _ = (ANSI, rows(&told(PLAIN).frame(80, 24)), event(0, Body::RunEnded), KeyCode::Up, Pane::Verify);
    let _ = Effect::Send(Command::Speculation(SpeculationOverride::default()));
}
