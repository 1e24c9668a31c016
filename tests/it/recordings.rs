//! The recording that comes with the program: a published trace of a cache cliff, in this program's own format.
//!
//! Figures: Oliver Yu, *Reusable State Dynamics in Interactive LLM Inference* (EXP-001, Trace B), CC BY 4.0, evidence level 5
//! (request-level mechanism trace). `ESCARP_UPDATE_ASSETS=1` writes the recording anew.

use std::path::{Path, PathBuf};

use escarp::event::record::Recorder;
use escarp::event::*;
use escarp::ledger::{CheckpointStep, Ledger};
use escarp::recovery::job::{Declined, End, Tally};
use escarp::recovery::standing::Why;

const CREDIT: &str = "Oliver Yu, Reusable State Dynamics in Interactive LLM Inference (EXP-001, Trace B), \
                      https://github.com/tc3oliver/llm-inference-systems, CC BY 4.0; evidence level 5";

/// A restore of the trace: the clock, tokens restored, tokens left to compute, and the study's label for the phase.
type RestoreRow = (&'static str, u64, u64, &'static str);

const RESTORES: [RestoreRow; 20] = [
    ("00:39:37", 28_672, 4_473, "healthy"),
    ("00:39:59", 28_672, 4_623, "healthy"),
    ("00:40:23", 32_768, 702, "advancing"),
    ("00:40:30", 32_768, 896, "advancing"),
    ("00:40:40", 33_792, 176, "advancing"),
    ("00:40:50", 33_792, 1_591, "advancing"),
    ("00:42:00", 36_864, 933, "advancing"),
    ("00:42:10", 37_888, 236, "peak"),
    ("00:42:19", 37_888, 566, "peak"),
    ("00:42:25", 37_888, 6_902, "peak"),
    ("00:43:07", 28_672, 17_060, "cliff"),
    ("00:43:30", 28_672, 17_957, "latched"),
    ("00:43:55", 28_672, 18_554, "latched"),
    ("00:44:26", 28_672, 19_213, "latched"),
    ("00:44:54", 28_672, 19_692, "latched"),
    ("00:46:42", 28_672, 23_562, "latched"),
    ("00:47:14", 28_672, 29_762, "latched"),
    ("00:48:33", 28_672, 31_818, "latched"),
    ("00:49:48", 28_672, 33_584, "latched"),
    ("00:50:51", 28_672, 33_979, "latched"),
];

/// The request at which the checkpoint fell, and what the request before it had stored, by the trace's last store.
const CLIFF: u64 = 11;
const LAST_STORE: u64 = 44_032;

fn clock_seconds(clock: &str) -> u64 {
    clock.split(':').fold(0, |sum, part| sum * 60 + part.parse::<u64>().unwrap())
}

/// The trace as events. What it does not tell is left out: replies, times of a phase, routes, stores (which it attributes to no request).
fn trace() -> Vec<Event> {
    let start = clock_seconds(RESTORES[0].0);
    let mut events = Vec::new();
    let mut say = |clock: &str, request: Option<u64>, lane: Option<LaneId>, body| {
        let at = Stamp((clock_seconds(clock) - start) * 1_000_000_000);
        events.push(Event { seq: events.len() as u64, at, lane, request: request.map(RequestId), body });
    };
    let lane = Some(LaneId(0));
    let [(first, ..), .., (last, ..)] = RESTORES;
    say(first, None, None, Body::RunStarted(Box::new(run())));
    say(first, None, lane, Body::LaneOpened { parent: None, at_turn: None, title: "Trace B".into() });
    let ended = Body::GateChanged { gate: Gate::Ended, next_turn: None, turns: RESTORES.len() as u32 };
    say(first, None, lane, ended);
    for (request, row) in (1..).zip(&RESTORES) {
        say(row.0, Some(request), lane, Body::Arrived(Box::new(arrival(request, row))));
        say(row.0, Some(request), lane, Body::Restored(Box::new(restore(request, row))));
    }
    say(last, None, None, Body::RunEnded);
    events
}

fn run() -> RunFacts {
    RunFacts {
        version: String::new(),
        model: "model not told".into(),
        model_digest: String::new(),
        device: "oMLX".into(),
        kernel: "prototype".into(),
        precision: "none".into(),
        identity: Identity::Imported,
        block_tokens: 1_024,
        context_tokens: None,
        state_bytes_per_token: None,
        snapshot_bytes: None,
        snapshot_policy: None,
        placeholder_policy: None,
        enlarged_from: None,
        cache_dir: None,
        ram_bytes: None,
        clock: "wall".into(),
        session: "EXP-001 Trace B (Oliver Yu, CC BY 4.0, evidence level 5)".into(),
        session_requests: RESTORES.len() as u64,
        replay_mode: "recorded".into(),
        specprefill: None,
        speculation: None,
        recovery: None,
        session_settings: Vec::new(),
    }
}

fn arrival(request: u64, (_, checkpoint, suffix, _): &RestoreRow) -> Arrival {
    Arrival {
        turn: request as u32,
        name: format!("restore {request}"),
        source: Source::Replay,
        change: if request == 1 { HistoryChange::First } else { HistoryChange::Append },
        idle: None,
        prompt_tokens: checkpoint + suffix,
        segments: Vec::new(),
        items: Vec::new(),
        max_output_tokens: None,
        delayed: None,
    }
}

fn restore(request: u64, (_, checkpoint, suffix, _): &RestoreRow) -> Restore {
    let checkpoint = *checkpoint;
    let detail = match request {
        CLIFF => "request 10 had stored up to token 44,032".to_owned(),
        _ => String::new(),
    };
    Restore {
        common_prefix_tokens: None,
        closest: None,
        held_tokens: checkpoint,
        matched_tokens: checkpoint,
        matched_with_state_tokens: checkpoint,
        checkpoint_tokens: checkpoint,
        losses: vec![Loss { cause: Cause::Unknown, tokens: *suffix, detail, block: None }],
        cause: Cause::Unknown,
        divergence: None,
        blocks: Vec::new(),
        ssd: None,
        took: Nanos(0),
    }
}

fn ledger() -> Ledger {
    let mut ledger = Ledger::new();
    let events = escarp::event::record::open(Path::new("trace-b")).unwrap();
    events.iter().for_each(|event| ledger.apply(event));
    ledger
}

#[test]
fn the_published_trace_is_bundled_as_its_figures_say() {
    let head = format!(r#"{{"escarp_recording":1,"escarp":"0.1.0","credit":"{CREDIT}"}}"#);
    let lines = trace().into_iter().map(|event| serde_json::to_string(&event).unwrap());
    let text: String = [head].into_iter().chain(lines).map(|line| line + "\n").collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/recordings/trace-b.jsonl");
    if std::env::var_os("ESCARP_UPDATE_ASSETS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == text, "the recording is out of date; run this test with ESCARP_UPDATE_ASSETS=1");
    assert_eq!(escarp::event::record::read(&path).unwrap(), trace());
}

#[test]
fn the_figures_are_those_of_the_published_table() {
    let Some(shared) = std::env::var_os("ESCARP_SHARED").map(PathBuf::from) else {
        println!("skipped: ESCARP_SHARED is not set");
        return;
    };
    let folder = shared.join("data/published/exp-001");
    let table = std::fs::read_to_string(folder.join("trace-b-restores.csv")).unwrap();
    let rows: Vec<String> = (1..)
        .zip(&RESTORES)
        .map(|(seq, (clock, checkpoint, suffix, phase))| {
            format!("{seq},{clock},{checkpoint},{suffix},{phase}")
        })
        .collect();
    assert_eq!(table.lines().skip(1).collect::<Vec<_>>(), rows);
    let stores = std::fs::read_to_string(folder.join("trace-b-stores.csv")).unwrap();
    assert_eq!(stores.lines().last(), Some(format!("7,{LAST_STORE}").as_str()));
    // The last store is the whole blocks of request 10's prompt.
    let (_, checkpoint, suffix, _) = RESTORES[CLIFF as usize - 2];
    assert_eq!((checkpoint + suffix) / 1_024 * 1_024, LAST_STORE);
}

#[test]
fn the_published_trace_shows_its_cliff_in_the_ledger() {
    let ledger = ledger();
    let lane = LaneId(0);
    let cliffs = ledger.cliff_list(lane);
    let [cliff] = cliffs.as_slice() else { panic!("{cliffs:?}") };
    assert_eq!(cliff.request, RequestId(CLIFF));
    assert_eq!((cliff.from_tokens, cliff.to_tokens), (37_888, 28_672));
    assert_eq!((cliff.pinned_requests, cliff.healed_by), (10, None));
    assert_eq!((cliff.suffix_before, cliff.suffix_behind), (21_098, 245_181));
    assert_eq!(cliff.seconds_behind, None, "the trace times no prefill");
    let debt = ledger.debt(lane);
    let last = debt.last().unwrap();
    assert_eq!((last.prefix_cache_debt, last.prefix_cache_debt_s), (Some(245_181), None));
    assert_eq!((last.pinned_requests, last.canonical_debt, last.recomputed_tokens), (10, None, None));
    assert_eq!(debt[9].prefix_cache_debt, Some(0));
    let step = ledger.checkpoint_step(ledger.request(RequestId(20)).unwrap()).unwrap();
    assert!(step.ratchet && step.pinned >= CheckpointStep::PINNED);
}

#[test]
fn the_studys_phases_follow_from_the_checkpoints_alone() {
    let phases = ledger().checkpoint_phases(LaneId(0));
    let found: Vec<_> = phases.iter().map(|(request, phase)| (request.0, phase.word())).collect();
    let told: Vec<_> = (1..).zip(RESTORES.map(|(.., phase)| phase)).collect();
    assert_eq!(found, told);
}

#[test]
fn what_the_trace_does_not_tell_is_null_in_its_rows() {
    let rows = serde_json::to_value(ledger().rows()).unwrap();
    let row = &rows[10];
    for field in [
        "common_prefix_tokens",
        "held_tokens",
        "matched_tokens",
        "matched_with_state_tokens",
        "restore_s",
        "stored_tokens",
        "route",
        "canonical_tokens",
        "canonical_debt_tokens",
        "recomputed_tokens",
        "prefix_cache_debt_s",
        "idle_s",
        "queue_s",
        "ttft_s",
        "prefill_s",
        "output_tokens",
        "finish",
        "text",
    ] {
        assert!(row[field].is_null(), "{field} is {}", row[field]);
    }
    assert_eq!((&row["prompt_tokens"], &row["uncached_suffix"]), (&45_732.into(), &17_060.into()));
    assert_eq!((&row["cliff"], &row["checkpoint_delta"]), (&true.into(), &(-9_216).into()));
    assert_eq!(row["cause_kind"], "unknown");
}

/// One of each fact of recovery.
fn recovery_facts() -> Vec<Body> {
    let job = JobId(1);
    let budget = BudgetReading {
        owners: 2,
        windows: 3,
        spent: Nanos(2),
        spent_tokens: 512,
        carried: Nanos(1),
        allowance: Nanos(9),
        allowance_tokens: Some(4_096),
        service: Nanos(7),
    };
    let slice = RecoverySlice {
        job,
        from: 1_024,
        to: 1_536,
        wanted: 2_048,
        took: Nanos(2),
        restored: Some(1_024),
        gave_way: Some(Why::Arrival),
        steps: Steps { runnable: 3, scheduled: 1, yielded: 2, resumed: 1 },
        budget,
    };
    let publication = Publication {
        job,
        boundary: 2_048,
        stored: 2_048,
        read_back: 2_048,
        committed: 2_048,
        visible: 1_024,
        took: Nanos(3),
    };
    let considered = |taken| {
        Body::DebtConsidered(Box::new(DebtConsidered {
            taken,
            target_tokens: 4_096,
            canonical_tokens: 1_024,
        }))
    };
    let ended = JobEnded {
        job,
        end: End::ReadBackShort,
        detail: Some("block 3".into()),
        target: 4_096,
        committed: 1_024,
        tally: Tally {
            slices: 1,
            publications: 1,
            computed: 512,
            computed_again: 0,
            retired: 1,
            service: Nanos(2),
        },
        steps: slice.steps,
    };
    vec![
        Body::RecoverySet { enabled: true },
        considered(DebtTaken::Declined { why: Declined::NotSparse }),
        considered(DebtTaken::Began { job }),
        considered(DebtTaken::Extended { job, from: 2_048 }),
        considered(DebtTaken::Covered { job }),
        considered(DebtTaken::Replaced { job: JobId(2), replaced: job }),
        considered(DebtTaken::LeftOut { job }),
        Body::RecoverySlice(Box::new(slice)),
        Body::Published(Box::new(publication)),
        Body::Retired { job, why: Why::BudgetSpent, tokens: 512 },
        Body::CommitLowered { job, from: 2_048, to: 1_024 },
        Body::RecoveryWaits { job, why: Some(Why::BudgetSpent), next_window: Some(Nanos(5)) },
        Body::RecoveryWaits { job, why: None, next_window: None },
        Body::RecoveryEnded(Box::new(ended)),
    ]
}

#[test]
fn what_was_told_of_recovery_survives_a_recording() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recovery.jsonl");
    let (mut sink, recorder) = Recorder::create(&path).unwrap();
    let delayed = Arrival { delayed: Some(Nanos(40)), ..arrival(1, &RESTORES[0]) };
    let bodies = std::iter::once(Body::Arrived(Box::new(delayed))).chain(recovery_facts());
    let told: Vec<Event> = (0..)
        .zip(bodies)
        .map(|(seq, body)| {
            let (lane, request) = (Some(LaneId(0)), Some(RequestId(1)));
            Event { seq, at: Stamp(seq * 100), lane, request, body }
        })
        .collect();
    told.iter().for_each(|event| sink.emit(event));
    drop(sink);
    recorder.finish().unwrap();
    let kept = escarp::event::record::read(&path).unwrap();
    assert_eq!(kept, told);
    let fold = |events: &[Event]| {
        let mut ledger = Ledger::new();
        events.iter().for_each(|event| ledger.apply(event));
        ledger
    };
    let (live, recorded) = (fold(&told), fold(&kept));
    assert_eq!(live.recovery(), recorded.recovery());
    assert_eq!(live.facts_hash(), recorded.facts_hash());
    assert_eq!(serde_json::to_value(live.rows()).unwrap(), serde_json::to_value(recorded.rows()).unwrap());
}
