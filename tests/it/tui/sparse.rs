//! Sparse prefill in the interface: what was decided and by whom, what the scorer did, what is kept, and what another choice would have done.

use crossterm::event::KeyCode;
use escarp::config::SparseOverride;
use escarp::engine::Command;
use escarp::event::*;
use escarp::tui::app::{Effect, Pane};

use super::sample::{Run, Turn};
use super::{ANSI, Bench, MONO_ASCII, event, snapshot};

fn by<T>(value: T, set_by: SetBy) -> Effective<T> {
    Effective { value, set_by }
}

fn settings(enabled: Effective<bool>) -> SparseSettings {
    SparseSettings { enabled, keep: by(0.2, SetBy::Model), threshold: by(2_000, SetBy::Hand) }
}

/// The run as it would be on a device with a scorer.
fn with_scorer(mut events: Vec<Event>) -> Vec<Event> {
    if let Some(Body::RunStarted(run)) = events.first_mut().map(|event| &mut event.body) {
        run.specprefill = Some(SpecPrefillFacts {
            enabled: Some(true),
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

fn session() -> Vec<Event> {
    with_scorer(super::sample::session().events())
}

/// The scoring of `window` tokens from `origin` on: every fourth unit, and the last.
fn scored(origin: u64, window: u64, start: ScorerStart) -> Scored {
    let units = window.div_ceil(32);
    let is_kept = |unit: u64| unit % 4 == 1 || unit + 1 == units;
    let range = |unit: u64| (origin + unit * 32, origin + window.min((unit + 1) * 32));
    let kept: Vec<(u64, u64)> = (0..units).filter(|unit| is_kept(*unit)).map(range).collect();
    Scored {
        origin,
        scored_tokens: window,
        draft_cached_tokens: if start == ScorerStart::Warm { window / 2 } else { 0 },
        start,
        draft_stored_tokens: Some(window / 256 * 256),
        lookahead_steps: 8,
        prefill: Nanos(900_000_000),
        lookahead: Nanos(80_000_000),
        importance: Nanos(4_000_000),
        unit_tokens: 32,
        unit_scores: (0..units).map(|unit| if is_kept(unit) { 1.0 } else { 0.1 }).collect(),
        selected_tokens: kept.iter().map(|(from, to)| to - from).sum(),
        kept,
        dense_until: origin,
    }
}

/// A request of which 4,000 tokens are new, up to its admission.
fn admitted(verdict: SparseVerdict, enabled: Effective<bool>) -> (Run, Turn, u64, u64) {
    let mut run = super::sample::session();
    let turn = Turn { request: 9, turn: 9, name: "read-log", fresh: 4_000, ..Turn::default() };
    run.gate(Gate::Running, 0, Some(10));
    let (prompt, suffix) = run.begin(&turn);
    let admission = SparseAdmission {
        settings: settings(enabled),
        verdict,
        protected_tokens: 1_100,
        boundary_before: "…\"timeout_s\": 30}\n".into(),
        boundary_after: "<|user|>\nWhy does".into(),
        suffix_tokens: suffix,
        to_score_tokens: suffix,
    };
    run.say(Some(0), Some(9), Body::SparseAdmitted(Box::new(admission)));
    (run, turn, prompt, suffix)
}

fn bench(run: &Run) -> Bench {
    Bench::live(with_scorer(run.peek().to_vec()))
}

/// A whole sparse request.
fn sparse(start: ScorerStart) -> Bench {
    let (mut run, turn, prompt, suffix) = admitted(SparseVerdict::Sparse, by(true, SetBy::Hand));
    let (lane, request) = (Some(0), Some(9));
    run.say(lane, request, Body::Routed { route: Route::Sparse, uncached_suffix: suffix });
    let scored = scored(prompt - suffix, suffix, start);
    let kept = scored.selected_tokens;
    run.say(lane, request, Body::Scored(Box::new(scored)));
    run.prefill(&turn, kept, kept);
    run.say(lane, request, Body::Prefilled { computed_tokens: kept, took: Nanos(kept * 3_400_000) });
    run.token(&turn, 0, "The log ");
    run.say(lane, request, Body::Finished { reason: FinishReason::Stop, took: Nanos(9_000_000_000) });
    run.gate(Gate::BeforeTurn, 0, Some(10));
    bench(&run)
}

#[test]
fn the_request_pane_tells_what_was_decided_by_whom_and_what_is_kept() {
    for (name, theme, width, height) in [
        ("sparse-80x24", ANSI, 80, 24),
        ("sparse-120x40", ANSI, 120, 40),
        ("sparse-160x48", ANSI, 160, 48),
        ("sparse-80x24-mono-ascii", MONO_ASCII, 80, 24),
    ] {
        let mut bench = sparse(ScorerStart::Warm);
        bench.theme = theme;
        bench.press('3');
        snapshot(name, &bench.frame(width, height));
    }
    let mut bench = sparse(ScorerStart::Warm);
    bench.write("3z");
    let text = bench.text(160, 48);
    for words in [
        "SPARSE, on (by hand)",
        "threshold 2,000 (by hand)",
        "keep 0.20 (model)",
        "protected 1,100",
        "timeout_s\": 30}↵│<|user|>↵Why does\"",
        "draft cached 2,",
        "scorer 984ms",
        "sparse >2,000 keep 0.20 (by hand)",
    ] {
        assert!(text.contains(words), "{words} is missing in\n{text}");
    }
    let row = |name: &str| text.lines().find(|line| line.contains(name)).unwrap().to_owned();
    assert!(row("│kept ").contains('▒') && row("│kept ").contains('─'), "{text}");
    assert!(row("│draft ").contains("■■") && row("│draft ").contains("░░"), "{text}");
}

#[test]
fn a_moved_origin_is_a_cold_rescore_with_its_price() {
    let mut bench = sparse(ScorerStart::OriginMoved { from: 9_216 });
    bench.write("3z");
    let text = bench.text(160, 48);
    assert!(text.contains("COLD RESCORE: origin moved from 9,216 to"), "{text}");
    assert!(text.contains("tokens again, ≈ 0.90 s"), "{text}");
}

#[test]
fn scoring_is_seen_while_it_lasts_and_a_fallback_is_loud() {
    let (mut run, ..) = admitted(SparseVerdict::Sparse, by(true, SetBy::Model));
    run.say(Some(0), Some(9), Body::ScoringProgress { done: 3_072, total: 4_064 });
    let mut bench_ = bench(&run);
    bench_.press('3');
    let text = bench_.text(120, 40);
    assert!(text.contains("scoring ") && text.contains("3,072/4,064 75 %"), "{text}");
    assert!(text.contains("TURN 9 of 12: score 75 %"), "{text}");
    run.say(Some(0), Some(9), Body::SparseFellBack { message: "the scorer's pages are used up".into() });
    let mut bench_ = bench(&run);
    bench_.press('3');
    for (width, height) in [(80, 24), (160, 48)] {
        let text = bench_.text(width, height);
        assert!(text.contains("turn 9 fell back to dense: the scorer's pages are used up"), "{text}");
        assert!(text.contains("FELL BACK TO DENSE: the scorer's pages"), "{text}");
    }
}

#[test]
fn a_transport_that_has_it_off_is_named() {
    let agent = by(false, SetBy::Transport("agent".into()));
    let (run, ..) = admitted(SparseVerdict::Off, agent);
    let mut bench = bench(&run);
    bench.press('3');
    let text = bench.text(120, 40);
    assert!(text.contains("sparse off (agent)"), "{text}");
    assert!(text.contains("dense: off (agent)"), "{text}");
}

#[test]
fn the_key_switches_it_and_says_what_is_in_effect_or_stands_against_it() {
    let set = |enabled| {
        let set = SparseOverride { enabled: Some(enabled), ..SparseOverride::default() };
        [Effect::Send(Command::SpecPrefill(set))]
    };
    let told = |enabled| Body::SpecPrefillSet { enabled: Some(enabled), keep: None, threshold: None };
    let mut bench = Bench::live(session());
    assert_eq!(bench.press('o'), set(false), "the model's settings have it on");
    bench.feed(vec![event(900, told(false))]);
    let text = bench.text(120, 40);
    assert!(text.contains("SpecPrefill off by hand from the next request on"), "{text}");
    assert!(text.contains("sparse off (by hand)"), "{text}");
    assert_eq!(bench.press('o'), set(true));
    bench.feed(vec![event(901, told(true))]);
    let text = bench.text(120, 40);
    assert!(
        text.contains("on by hand from the next request on: suffixes above 8,192 tokens, keep 0.20"),
        "{text}"
    );

    let mut events = session();
    if let Body::RunStarted(run) = &mut events[0].body {
        run.specprefill.as_mut().unwrap().enabled = Some(false);
    }
    let mut bench = Bench::live(events);
    bench.feed(vec![event(900, told(true))]);
    let text = bench.text(120, 40);
    assert!(text.contains("stays off: `specprefill.enabled = false`"), "{text}");

    let mut bench = super::sample();
    assert_eq!(bench.press('o'), []);
    assert!(bench.text(120, 40).contains("no scorer is loaded"));
}

#[test]
fn the_transcript_marks_what_is_kept_by_more_than_colour() {
    for (name, theme, width, height) in
        [("kept-160x48", ANSI, 160, 48), ("kept-80x24-mono-ascii", MONO_ASCII, 80, 24)]
    {
        let mut bench = sparse(ScorerStart::Warm);
        bench.theme = theme;
        bench.write("4z");
        snapshot(name, &bench.frame(width, height));
    }
    let mut bench = sparse(ScorerStart::Warm);
    bench.write("4z");
    let text = bench.text(160, 48);
    assert!(text.contains("dropped at turn 9, lines approx."), "{text}");
    assert!(
        text.lines().any(|line| line.contains("%▒") || line.contains("% ▒") || line.contains("%█")),
        "{text}"
    );
}

#[test]
fn the_explorer_moves_keep_and_threshold_and_asks_for_other_scores() {
    for (name, theme, width, height) in [
        ("what-if-80x24", ANSI, 80, 24),
        ("what-if-160x48", ANSI, 160, 48),
        ("what-if-80x24-mono-ascii", MONO_ASCII, 80, 24),
    ] {
        let mut bench = sparse(ScorerStart::First);
        bench.theme = theme;
        bench.press('t');
        bench.key(KeyCode::Right);
        bench.key(KeyCode::Right);
        snapshot(name, &bench.frame(width, height));
    }
    let mut bench = sparse(ScorerStart::First);
    bench.press('t');
    let text = bench.text(160, 48);
    assert!(text.contains("predicted   sooner by ") && text.contains(": sparse ≈ "), "{text}");
    for _ in 0..30 {
        bench.key(KeyCode::Right);
    }
    let text = bench.text(160, 48);
    assert!(text.contains("100.0%") && text.contains("keep 1.00"), "all is kept: {text}");
    bench.key(KeyCode::Down);
    for _ in 0..4 {
        assert_eq!(bench.key(KeyCode::Right), []);
    }
    let text = bench.text(160, 48);
    assert!(text.contains("dense: suffix within the threshold"), "{text}");
    let [Effect::Send(Command::SpecPrefill(set))] = &bench.key(KeyCode::Enter)[..] else { panic!() };
    assert_eq!((set.enabled, set.keep, set.threshold), (None, Some(1.0), Some(6_144)));
    bench.key(KeyCode::Down);
    bench.key(KeyCode::Down);
    let [Effect::Send(Command::Rescore { ticket, knobs, .. })] = bench.key(KeyCode::Left)[..] else {
        panic!()
    };
    assert_eq!((knobs.pool, knobs.unit, knobs.tail_tokens), (9, 32, 64));
    assert!(bench.text(160, 48).contains("asking for other scores…"));
    let scored = bench.model.selected().unwrap().scored.clone().unwrap();
    let answer = Rescored {
        request: RequestId(1),
        ticket,
        unit_scores: scored.unit_scores.clone(),
        unit_tokens: 32,
        selected_tokens: scored.selected_tokens,
        kept: scored.kept.clone(),
        problem: None,
    };
    bench.feed(vec![event(950, Body::Rescored(Box::new(answer)))]);
    let text = bench.text(160, 48);
    assert!(text.contains("would keep") && !text.contains("asking"), "{text}");
    bench.key(KeyCode::Esc);
    assert!(bench.model.ui.overlay.is_none());
}

#[test]
fn an_explorer_without_a_scoring_says_what_it_waits_for() {
    let mut bench = Bench::live(session());
    bench.press('t');
    let text = bench.text(80, 24);
    assert!(text.contains("nothing was scored for this request"), "{text}");
    assert!(text.contains("is told once something was scored"), "{text}");
    let mut bench = super::sample();
    bench.press('t');
    assert!(bench.model.ui.overlay.is_none());
}

#[test]
fn absurd_scorings_draw_too() {
    let huge = u64::MAX;
    let ranges = [vec![(huge, 0), (0, huge), (5, 2)], Vec::new()];
    for (kept, unit_tokens) in ranges.iter().flat_map(|kept| [0, 1, huge].map(|unit| (kept.clone(), unit))) {
        let mut events = session();
        let scored = Scored {
            origin: huge - 5,
            scored_tokens: huge,
            draft_cached_tokens: huge,
            draft_stored_tokens: Some(huge),
            unit_tokens,
            unit_scores: vec![f32::NAN, f32::INFINITY, 1.0],
            selected_tokens: huge,
            kept,
            dense_until: huge,
            ..scored(0, 64, ScorerStart::OriginMoved { from: huge })
        };
        let mut admission = SparseAdmission {
            settings: settings(by(true, SetBy::Request)),
            verdict: SparseVerdict::Sparse,
            protected_tokens: huge,
            boundary_before: "\u{1b}[31m".repeat(50),
            boundary_after: "\u{202e}日本\n".repeat(50),
            suffix_tokens: huge,
            to_score_tokens: huge,
        };
        admission.settings.keep.value = f64::NAN;
        let of = |body| Event { request: Some(RequestId(8)), ..event(1_000, body) };
        events.push(of(Body::SparseAdmitted(Box::new(admission))));
        events.push(of(Body::ScoringProgress { done: huge, total: 0 }));
        events.push(of(Body::Scored(Box::new(scored))));
        events.push(of(Body::SparseFellBack { message: "\u{1b}]0;x\u{7}".into() }));
        for pane in Pane::ALL {
            let mut bench = Bench::live(events.clone());
            bench.press(pane.key());
            for (width, height) in [(80, 24), (40, 10), (160, 48)] {
                bench.frame(width, height);
            }
        }
        let mut bench = Bench::live(events.clone());
        bench.press('t');
        for key in [KeyCode::Right, KeyCode::Down, KeyCode::Right, KeyCode::Down, KeyCode::Right] {
            bench.key(key);
            for (width, height) in [(80, 24), (40, 10), (160, 48)] {
                bench.frame(width, height);
            }
        }
    }
}
