//! Background recovery in the interface: its view, its key, and what other panes say of it.

use crossterm::event::KeyCode;
use escarp::config::{RecoveryConfig, RecoveryPolicy};
use escarp::engine::Command;
use escarp::event::*;
use escarp::recovery::job::{Declined, End, Tally};
use escarp::recovery::standing::Why;
use escarp::tui::app::{Effect, Pane};

use super::sample::{Owing, Run};
use super::{Bench, MONO_ASCII, compare, rows, snapshot};

const JOB: JobId = JobId(1);
const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// Time of a slice of 128 tokens.
const SLICE: u64 = 250 * MS;

fn facts(enabled: bool) -> RecoveryConfig {
    RecoveryConfig {
        enabled,
        slice_tokens: 128,
        budget_pct: 20.0,
        delay_target_s: Some(0.05),
        ttft_target_s: Some(1.0),
        ..RecoveryConfig::default()
    }
}

/// A run, and the job in it.
struct Told {
    run: Run,
    request: u64,
    steps: Steps,
    service: u64,
    windows: u64,
    spent: u64,
    tally: Tally,
}

impl Told {
    fn new() -> Told {
        let run = Run::with(|run| {
            run.recovery = Some(facts(true));
            run.specprefill = Some(SpecPrefillFacts {
                enabled: Some(true),
                keep: 0.2,
                threshold: 1_024,
                scorer: "scorer".into(),
                leaves: "nothing".into(),
                tail_tokens: None,
                pool: None,
                aggregation: None,
            });
        });
        let (steps, tally) = (Steps::default(), Tally::default());
        Told { run, request: 0, steps, service: 0, windows: 1, spent: 0, tally }
    }

    fn say(&mut self, body: Body) {
        self.run.say(Some(0), Some(self.request), body);
    }

    fn turn(&mut self, prompt: u64, checkpoint: u64, canonical: u64, route: Route, delayed: Option<u64>) {
        self.request += 1;
        let delayed = delayed.map(Nanos);
        self.run.owing(self.request, &Owing { prompt, checkpoint, route, canonical, delayed });
    }

    fn considered(&mut self, taken: DebtTaken, canonical_tokens: u64, target_tokens: u64) {
        self.say(Body::DebtConsidered(Box::new(DebtConsidered { taken, target_tokens, canonical_tokens })));
    }

    /// Slices up to `to`, published at every block.
    fn recover(&mut self, from: u64, to: u64) {
        let mut at = from;
        while at < to {
            let resumed = self.steps.scheduled == 0 || at == from;
            self.run.wait(SLICE);
            self.service += SLICE;
            self.spent += SLICE;
            self.steps.runnable += 1;
            self.steps.scheduled += 1;
            self.steps.resumed += u64::from(resumed);
            self.tally.slices += 1;
            self.tally.computed += 128;
            self.tally.service = Nanos(self.service);
            let slice = RecoverySlice {
                job: JOB,
                from: at,
                to: at + 128,
                wanted: at + 128,
                took: Nanos(SLICE),
                restored: resumed.then_some(at),
                gave_way: None,
                steps: self.steps,
                budget: BudgetReading {
                    owners: 1,
                    windows: self.windows,
                    spent: Nanos(self.spent),
                    spent_tokens: self.tally.computed,
                    carried: Nanos(0),
                    allowance: Nanos(6 * SECOND),
                    allowance_tokens: None,
                    service: Nanos(self.service),
                },
            };
            self.say(Body::RecoverySlice(Box::new(slice)));
            at += 128;
            if at.is_multiple_of(256) {
                let took = Nanos(20 * MS);
                self.run.wait(20 * MS);
                self.tally.publications += 1;
                self.say(Body::Published(Box::new(Publication {
                    job: JOB,
                    boundary: at,
                    stored: at,
                    read_back: at,
                    committed: at,
                    visible: at,
                    took,
                })));
            }
        }
    }

    fn waits(&mut self, why: Why, next_window: Option<u64>) {
        let next_window = next_window.map(Nanos);
        self.say(Body::RecoveryWaits { job: JOB, why: Some(why), next_window });
    }

    fn retired(&mut self, why: Why, tokens: u64) {
        self.steps.runnable += 2;
        self.steps.yielded += 2;
        self.tally.retired += 1;
        self.say(Body::Retired { job: JOB, why, tokens });
    }

    fn ended(&mut self, end: End, detail: Option<&str>, target: u64, committed: u64) {
        let ended = JobEnded {
            job: JOB,
            end,
            detail: detail.map(str::to_owned),
            target,
            committed,
            tally: self.tally,
            steps: self.steps,
        };
        self.say(Body::RecoveryEnded(Box::new(ended)));
    }
}

/// A dense turn that owes nothing, a sparse one that owes 4,096 tokens, and a job that has come half way.
fn under_way() -> Told {
    let mut told = Told::new();
    told.turn(1_900, 0, 1_792, Route::Dense, None);
    told.considered(DebtTaken::Declined { why: Declined::NotSparse }, 1_792, 1_792);
    told.run.wait(14 * SECOND);
    told.turn(6_000, 1_792, 1_792, Route::Sparse, None);
    told.considered(DebtTaken::Began { job: JOB }, 1_792, 5_888);
    told.recover(1_792, 3_968);
    told
}

/// The next request comes into it and is itself sparse.
fn extended() -> Told {
    let mut told = under_way();
    told.retired(Why::Arrival, 128);
    told.waits(Why::ForegroundHere, None);
    told.turn(6_700, 3_840, 3_840, Route::Sparse, Some(62 * MS));
    told.considered(DebtTaken::Extended { job: JOB, from: 5_888 }, 3_840, 6_656);
    told
}

fn parked() -> Told {
    let mut told = extended();
    told.recover(3_840, 4_736);
    told.retired(Why::BudgetSpent, 128);
    told.waits(Why::BudgetSpent, Some(18 * SECOND));
    told.run.wait(6 * SECOND);
    told.run.gate(Gate::Running, 0, Some(4));
    told
}

fn died() -> Told {
    let mut told = extended();
    told.recover(3_840, 4_608);
    told.say(Body::CommitLowered { job: JOB, from: 4_608, to: 4_352 });
    told.ended(End::CacheReset, Some("slot 3 is of another generation"), 6_656, 4_352);
    told
}

fn complete() -> Told {
    let mut told = extended();
    (told.windows, told.spent) = (2, 0);
    told.recover(3_840, 6_656);
    told.ended(End::Complete, None, 6_656, 6_656);
    told.run.wait(3 * SECOND);
    told.turn(7_300, 6_656, 7_168, Route::Dense, None);
    told.considered(DebtTaken::Declined { why: Declined::NotSparse }, 7_168, 7_168);
    told
}

fn bench(told: Told) -> Bench {
    let mut bench = Bench::live(told.run.events());
    bench.press('R');
    bench
}

#[test]
fn frames_of_the_recovery_view() {
    for (name, told) in [
        ("recovery-under-way", under_way as fn() -> Told),
        ("recovery-parked", parked),
        ("recovery-died", died),
        ("recovery-complete", complete),
    ] {
        for (width, height) in [(80, 24), (160, 48)] {
            snapshot(&format!("{name}-{width}x{height}"), &bench(told()).frame(width, height));
        }
        let mut bench = bench(told());
        bench.theme = MONO_ASCII;
        let frame = bench.frame(80, 24);
        assert!(frame.content.iter().all(|cell| cell.symbol().is_ascii()));
        assert!(
            !rows(&frame).join("").contains('?') || rows(&frame)[23].contains('?'),
            "a glyph has no twin"
        );
        if name == "recovery-parked" {
            snapshot("recovery-parked-80x24-mono-ascii", &frame);
        }
    }
}

#[test]
fn a_job_says_how_far_it_has_come_and_what_it_waits_for() {
    let text = bench(under_way()).text(160, 48);
    assert!(text.contains("3,840 committed (2,048 by it)"), "{text}");
    assert!(text.contains("3,968 processed of 5,888"), "{text}");
    assert!(text.contains("▲ 3,840 the next request starts from"), "{text}");
    let text = bench(parked()).text(80, 24);
    assert!(text.contains("waits: the window's budget is spent, 12.0s left"), "{text}");
    assert!(text.contains("of 6.0s in window 2"), "{text}");
    let text = bench(died()).text(160, 48);
    assert!(text.contains("DROPPED: the cache lost its state (slot 3 is of another generation)"), "{text}");
    assert!(text.contains("the cache lost 256 committed tokens"), "{text}");
}

#[test]
fn what_it_was_worth_has_its_three_terms_and_says_what_the_price_rests_on() {
    let text = bench(complete()).text(160, 48);
    for words in
        ["saved", "− spent", "− delayed 62ms", "restored by 2 requests", "dense curve for a sparse route"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(text.contains("1 arrival found a slice in the way, worst delay 62ms"), "{text}");
    assert!(text.contains("target 50ms MISSED"), "{text}");
    assert!(text.contains("recovery > growth"), "{text}");
}

#[test]
fn before_anything_was_told_it_says_what_would_make_something_appear() {
    let silent = |recovery: Option<RecoveryConfig>| Run::with(|run| run.recovery = recovery).events();
    let text = |recovery| {
        let mut bench = Bench::live(silent(recovery));
        bench.press('R');
        bench.text(80, 24).replace("│\n│", "").split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(text(Some(facts(false))).contains("recovery is off: `O` switches it on"));
    assert!(text(Some(facts(true))).contains("recovery is on; `--set specprefill.enabled=true`"));
    let never = RecoveryConfig { policy: RecoveryPolicy::Never, ..facts(true) };
    assert!(text(Some(never)).contains("recovery.policy is never, which runs no job"));
    let mut bench = Bench::recording(silent(None));
    bench.press('R');
    assert!(bench.text(120, 40).contains("a recording of `escarp replay --set recovery.enabled=true"));
}

#[test]
fn a_key_switches_recovery_and_its_effect_is_told() {
    let mut bench = Bench::live(Run::with(|run| run.recovery = Some(facts(false))).events());
    assert_eq!(bench.press('O'), [Effect::Send(Command::Recovery { enabled: true })]);
    bench.feed(vec![super::event(900, Body::RecoverySet { enabled: true })]);
    assert!(bench.model.ui.toast.as_ref().unwrap().text.starts_with("recovery on"));
    assert_eq!(bench.press('O'), [Effect::Send(Command::Recovery { enabled: false })]);
    let mut none = Bench::live(Run::new().events());
    assert_eq!(none.press('O'), []);
    assert!(none.model.ui.toast.as_ref().unwrap().text.contains("tells of no recovery"));
}

#[test]
fn a_request_selected_by_hand_shows_its_job_or_why_it_has_none() {
    let mut bench = bench(complete());
    bench.key(KeyCode::Up);
    assert!(!bench.text(80, 24).contains("declined"), "turn 3 has the job");
    bench.key(KeyCode::Up);
    bench.key(KeyCode::Up);
    let text = bench.text(80, 24);
    assert!(text.contains("turn 1: declined, nothing of it was computed sparsely; below: job 1"), "{text}");
}

#[test]
fn the_time_line_zooms_to_the_recent_part_and_out_to_the_run() {
    let mut bench = bench(parked());
    assert!(bench.text(160, 48).contains("since it began"));
    bench.key(KeyCode::Right);
    assert!(bench.text(160, 48).contains("its last 1/2"));
    bench.key(KeyCode::Left);
    bench.key(KeyCode::Left);
    assert!(bench.text(160, 48).contains("the whole run"));
    bench.key(KeyCode::Left);
    assert_eq!(bench.model.ui.closeness, -1);
}

#[test]
fn what_has_no_room_is_seen_by_scrolling() {
    let mut bench = bench(complete());
    let text = bench.text(80, 16);
    assert!(text.contains("rows more: PgDn scrolls"), "{text}");
    bench.key(KeyCode::PageDown);
    bench.text(80, 16);
    bench.key(KeyCode::PageDown);
    let text = bench.text(80, 16);
    assert!(text.contains("jobs"), "{text}");
}

#[test]
fn the_debt_pane_says_that_recovery_paid() {
    let mut bench = Bench::live(complete().run.events());
    bench.press('8');
    let text = bench.text(160, 48);
    let row = text.lines().find(|line| line.contains("6,656") || line.contains("7,300")).unwrap_or_default();
    assert!(text.contains("recovery") && text.contains("by recovery"), "{row}\n{text}");
}

#[test]
fn a_recording_shows_the_same_view() {
    let events = parked().run.events();
    let mut live = Bench::live(events.clone());
    let mut recorded = Bench::recording(events);
    live.write("Rz");
    recorded.write("Rz");
    let body = |bench: &mut Bench| {
        let rows = rows(&bench.frame(160, 48));
        rows[2..rows.len() - 1].join("\n")
    };
    assert_eq!(body(&mut live), body(&mut recorded));
}

#[test]
fn absurd_facts_of_recovery_draw_too() {
    let huge = u64::MAX;
    let mut events = complete().run.events();
    for (index, event) in events.iter_mut().enumerate() {
        let value = [0, 1, huge][index % 3];
        match &mut event.body {
            Body::RecoverySlice(slice) => {
                (slice.from, slice.to, slice.took) = (value, huge - value, Nanos(value));
                slice.budget.spent = Nanos(huge);
                slice.budget.allowance = Nanos(value);
                slice.steps = Steps { runnable: huge, scheduled: huge, yielded: huge, resumed: huge };
            }
            Body::Published(told) => (told.boundary, told.committed, told.visible) = (value, huge, huge),
            Body::DebtConsidered(told) => (told.target_tokens, told.canonical_tokens) = (huge, value),
            Body::RecoveryWaits { next_window, .. } => *next_window = Some(Nanos(huge)),
            Body::RecoveryEnded(ended) => {
                (ended.target, ended.committed) = (huge, value);
                ended.detail = Some("\x1b[2J\u{202e}\n日本".repeat(50));
            }
            Body::Retired { tokens, .. } => *tokens = huge,
            Body::Arrived(arrival) => arrival.delayed = Some(Nanos(value)),
            _ => {}
        }
    }
    for pane in [Pane::Recovery, Pane::Debt, Pane::Events] {
        let mut bench = Bench::live(events.clone());
        bench.press(pane.key());
        for (width, height) in [(40, 10), (80, 24), (110, 30), (160, 48), (300, 80)] {
            let frame = bench.frame(width, height);
            assert!(frame.content.iter().all(|cell| !cell.symbol().chars().any(char::is_control)));
            bench.key(KeyCode::Up);
            bench.key(KeyCode::Right);
        }
    }
}

#[test]
fn every_size_draws_the_recovery_view() {
    for told in [under_way as fn() -> Told, parked, died, complete] {
        let mut bench = bench(told());
        bench.press('z');
        for (width, height) in
            (0..=130).step_by(3).flat_map(|width| (0..=40).map(move |height| (width, height)))
        {
            bench.frame(width, height);
        }
    }
}

#[test]
fn cards_side_by_side_say_what_recovery_has_paid_and_of_whose_time() {
    let mut sparse = Told::new();
    sparse.run = Run::with(|run| run.recovery = Some(facts(false)));
    sparse.turn(1_900, 0, 1_792, Route::Dense, None);
    sparse.turn(6_000, 1_792, 1_792, Route::Sparse, None);
    sparse.turn(6_700, 1_792, 1_792, Route::Sparse, None);
    let make = || {
        let recovering = compare::told(1, extended().run.events());
        let news = compare::told(0, sparse.run.peek().to_vec()).chain(recovering);
        compare::bench(&["sparse", "progressive"], news.collect())
    };
    for (width, height) in [(80, 24), (160, 48)] {
        snapshot(&format!("recovery-cards-{width}x{height}"), &make().frame(width, height));
    }
    let text = make().text(160, 48);
    for words in ["no recovery", "recovered 3,840/6,656", "pub 8", "waited 62ms"] {
        assert!(text.contains(words), "{words} is missing in\n{text}");
    }
}
