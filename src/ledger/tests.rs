//! The fold: total, deterministic, independent of how the stream was cut.

use proptest::prelude::*;

use super::*;
use crate::event::{
    Arrival, Cause, Closest, Culprit, DebtConsidered, DebtTaken, DeviceMemory, FinishReason, HistoryChange,
    JobEnded, JobId, Loss, Nanos, Publication, RecoverySlice, Restore, ShrunkChunk, SnapshotsStored, Source,
    SsdRead, Steps, TierStored, TierTrouble,
};
use crate::recovery::job::{Declined, End, Tally};
use crate::recovery::standing::Why;

mod accounts;
mod speculation;

pub(super) fn restore(checkpoint: u64) -> Restore {
    Restore {
        common_prefix_tokens: Some(checkpoint),
        closest: None,
        held_tokens: checkpoint,
        ssd: None,
        matched_tokens: checkpoint,
        matched_with_state_tokens: checkpoint,
        checkpoint_tokens: checkpoint,
        losses: vec![Loss { cause: Cause::BlockFloor, tokens: 3, detail: String::new(), block: None }],
        cause: Cause::BlockFloor,
        divergence: None,
        blocks: Vec::new(),
        took: Nanos(5),
    }
}

pub(super) fn arrival(turn: u32) -> Arrival {
    Arrival {
        turn,
        name: format!("r{turn}"),
        source: Source::Replay,
        change: HistoryChange::Append,
        idle: Some(Nanos(0)),
        prompt_tokens: 100,
        segments: Vec::new(),
        items: Vec::new(),
        max_output_tokens: Some(8),
        delayed: None,
    }
}

fn device() -> impl Strategy<Value = DeviceMemory> {
    (any::<(u64, u64)>(), any::<(Option<u64>, Option<u64>)>()).prop_map(
        |((active_bytes, peak_bytes), (cached_bytes, limit_bytes))| DeviceMemory {
            active_bytes,
            peak_bytes,
            cached_bytes,
            limit_bytes,
        },
    )
}

/// Restores of every kind, few checkpoints among them so that rows of equal ones come about.
fn any_restore() -> impl Strategy<Value = Restore> {
    let checkpoint = prop_oneof![4 => (0_u64..4).prop_map(|n| n * 10), 1 => any::<u64>()];
    let closest = prop::option::of(any::<(u64, u64)>());
    let ssd = prop::option::of(any::<u64>());
    let cause = prop::sample::select(Cause::ALL.to_vec());
    (checkpoint, prop::option::of(any::<u64>()), any::<u64>(), closest, ssd, cause).prop_map(
        |(checkpoint, common_prefix_tokens, matched_tokens, closest, ssd, cause)| Restore {
            common_prefix_tokens,
            matched_tokens,
            closest: closest
                .map(|(request, common_tokens)| Closest { request: RequestId(request), common_tokens }),
            ssd: ssd.map(|n| SsdRead { blocks: n, snapshots: n, bytes: n, took: Nanos(n) }),
            cause,
            ..restore(checkpoint)
        },
    )
}

fn any_arrival() -> impl Strategy<Value = Arrival> {
    let source = prop::sample::select(vec![Source::Replay, Source::Replay, Source::Side, Source::Edit]);
    let turn = prop_oneof![9 => 0_u32..20, 1 => Just(u32::MAX)];
    let prompt_tokens = prop_oneof![Just(100_u64), any::<u64>()];
    let delayed = prop::option::of(any::<u64>().prop_map(Nanos));
    (turn, source, prompt_tokens, delayed).prop_map(|(turn, source, prompt_tokens, delayed)| Arrival {
        source,
        prompt_tokens,
        delayed,
        ..arrival(turn)
    })
}

/// What was told of the disk, of faults, and of pauses.
fn aside() -> impl Strategy<Value = Body> {
    prop_oneof![
        any::<u64>().prop_map(|n| Body::Tier(Box::new(TierReading { blocks: n, ..TierReading::default() }))),
        Just(Body::TierTrouble { trouble: TierTrouble::Failed, detail: "d".into() }),
        Just(Body::FaultInjected { fault: "f".into(), outcome: "o".into() }),
        Just(Body::BreakpointsSet { conditions: vec!["cliff".into()] }),
        Just(Body::BreakpointHit { condition: "cliff".into(), observed: "o".into() }),
        any::<(u64, u64)>().prop_map(|(ticket, prompt_tokens)| {
            Body::Previewed(Box::new(Preview {
                ticket,
                prompt_tokens,
                restore: None,
                sparse: None,
                problem: None,
            }))
        }),
    ]
}

/// What was told of recovery: few jobs and few boundaries, so that events concern each other.
fn recovery_body() -> impl Strategy<Value = Body> {
    let tokens = || prop_oneof![6 => (0_u64..6).prop_map(|n| n * 10), 1 => any::<u64>()];
    let job = || (0_u64..3).prop_map(JobId);
    let taken = (job(), job(), 0..6_usize, tokens()).prop_map(|(job, replaced, kind, from)| match kind {
        0 => DebtTaken::Declined { why: Declined::NotSparse },
        1 => DebtTaken::Began { job },
        2 => DebtTaken::Extended { job, from },
        3 => DebtTaken::Covered { job },
        4 => DebtTaken::Replaced { job, replaced },
        _ => DebtTaken::LeftOut { job },
    });
    prop_oneof![
        (taken, tokens(), tokens()).prop_map(|(taken, target_tokens, canonical_tokens)| {
            Body::DebtConsidered(Box::new(DebtConsidered { taken, target_tokens, canonical_tokens }))
        }),
        (job(), tokens(), tokens(), any::<u64>()).prop_map(|(job, from, to, took)| {
            let slice = recovery::tests::slice(job.0, from, from.saturating_add(to), 1.0);
            Body::RecoverySlice(Box::new(RecoverySlice { took: Nanos(took), ..slice }))
        }),
        (job(), tokens(), tokens()).prop_map(|(job, boundary, read_back)| {
            let told = recovery::tests::publication(job.0, boundary);
            Body::Published(Box::new(Publication { read_back, ..told }))
        }),
        (job(), tokens()).prop_map(|(job, tokens)| Body::Retired { job, why: Why::Arrival, tokens }),
        (job(), tokens(), tokens()).prop_map(|(job, from, to)| Body::CommitLowered { job, from, to }),
        (job(), prop::option::of(any::<u64>())).prop_map(|(job, left)| Body::RecoveryWaits {
            job,
            why: left.map(|_| Why::BudgetSpent),
            next_window: left.map(Nanos),
        }),
        (job(), tokens()).prop_map(|(job, target)| {
            let (tally, steps) = (Tally::default(), Steps::default());
            let (end, detail) = (End::Replaced, None);
            Body::RecoveryEnded(Box::new(JobEnded { job, end, detail, target, committed: 0, tally, steps }))
        }),
        any::<bool>().prop_map(|enabled| Body::RecoverySet { enabled }),
    ]
}

fn body() -> impl Strategy<Value = Body> {
    let lane = prop::option::of((0_u32..4).prop_map(LaneId));
    prop_oneof![
        any_arrival().prop_map(|arrival| Body::Arrived(Box::new(arrival))),
        aside(),
        recovery_body(),
        any::<u64>().prop_map(|t| Body::Admitted { queued: Nanos(t) }),
        any_restore().prop_map(|restore| Body::Restored(Box::new(restore))),
        any::<u64>().prop_map(|n| Body::Routed { route: Route::Dense, uncached_suffix: n }),
        (any::<(u64, u64, u64)>(), prop::option::of(device())).prop_map(|((done, total, wanted), device)| {
            let shrunk = wanted.is_multiple_of(2).then_some(ShrunkChunk { wanted, admitted: wanted / 2 });
            Body::PrefillProgress {
                done,
                total,
                shrunk,
                device,
                took: (done % 3 > 0).then_some(Nanos(total)),
            }
        }),
        (any::<u64>(), prop::option::of(device())).prop_map(|(n, device)| Body::Memory {
            cached_blocks: n,
            live_blocks: n,
            bytes: n,
            limit_bytes: n,
            slots: None,
            device,
        }),
        any::<u64>().prop_map(|n| Body::Prefilled { computed_tokens: n, took: Nanos(n) }),
        any::<u64>().prop_map(|index| Body::Token { token: 1, text: "x".into(), index, margin: None }),
        any::<u64>().prop_map(|n| Body::Decoded {
            reason: FinishReason::Stop,
            output_tokens: n,
            output_sha256: String::new(),
            text: "y".into(),
            took: Nanos(n),
            shared_forwards: None
        }),
        any::<u64>().prop_map(|n| Body::Stored {
            stored_tokens: n,
            canonical_tokens: n,
            evicted_blocks: n,
            snapshots: n.is_multiple_of(2).then_some(SnapshotsStored { stored: n, not_taken: n, dropped: n }),
            tier: (n % 3 == 0).then_some(TierStored { blocks: n, snapshots: n, declined: n }),
        }),
        any::<u64>().prop_map(|n| Body::Finished { reason: FinishReason::Stop, took: Nanos(n) }),
        Just(Body::Failed { message: "m".into() }),
        (lane, prop::option::of(0_u32..9)).prop_map(|(parent, at_turn)| Body::LaneOpened {
            parent,
            at_turn,
            title: "t".into()
        }),
        any::<(u64, u64)>().prop_map(|(from, to)| Body::Gap { from, to }),
        Just(Body::RunEnded),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    (any::<u64>(), any::<u64>(), prop::option::of(0_u32..4), prop::option::of(0_u64..6), body()).prop_map(
        |(seq, at, lane, request, body)| Event {
            seq,
            at: Stamp(at),
            lane: lane.map(LaneId),
            request: request.map(RequestId),
            body,
        },
    )
}

proptest! {
    #[test]
    fn any_events_in_any_order_fold_without_panic_into_the_same_ledger(events in prop::collection::vec(event(), 0..80)) {
        let mut ledger = Ledger::new();
        let mut again = Ledger::new();
        for event in &events {
            ledger.apply(event);
            // Reading between events must not change anything, and must not panic either.
            for (lane, _) in ledger.lanes() {
                let _ = (ledger.history(lane).len(), ledger.cliffs(lane).count(), ledger.pace(lane));
                accounts::hold_together(&ledger, lane)?;
            }
            let _ = (ledger.rows(), ledger.net_return(), ledger.race(), ledger.protection());
        }
        events.iter().for_each(|event| again.apply(event));
        prop_assert_eq!(&ledger, &again);
        prop_assert_eq!(ledger.facts_hash(), again.facts_hash());
    }

    #[test]
    fn events_survive_the_file_format(event in event()) {
        let line = serde_json::to_string(&event).unwrap();
        prop_assert!(!line.contains('\n'));
        prop_assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
    }

    #[test]
    fn the_facts_hash_ignores_how_fast_machine_and_disk_were(slowness in 1_u64..1_000_000) {
        let run = |factor: u64| {
            let ssd = SsdRead { blocks: 2, snapshots: 1, bytes: 9, took: Nanos(factor) };
            let reading = TierReading { queued_files: factor, ..TierReading::default() };
            let stored = TierStored { blocks: factor, snapshots: 0, declined: factor };
            let detail = format!("block 3 was evicted at {factor} s");
            let losses = vec![Loss { cause: Cause::Evicted, tokens: 3, detail, block: None }];
            let restored = Restore { took: Nanos(factor), ssd: Some(ssd), losses, ..restore(96) };
            let mut ledger = Ledger::new();
            let bodies = [
                Body::Arrived(Box::new(arrival(1))),
                Body::Admitted { queued: Nanos(3 * factor) },
                Body::Restored(Box::new(restored)),
                Body::PrefillProgress { done: 4, total: 4, shrunk: None, device: None, took: Some(Nanos(factor)) },
                Body::Token { token: 1, text: "x".into(), index: 0, margin: None },
                Body::Stored {
                    stored_tokens: 9,
                    canonical_tokens: 9,
                    evicted_blocks: 0,
                    snapshots: None,
                    tier: Some(stored),
                },
                Body::Finished { reason: FinishReason::Stop, took: Nanos(9 * factor) },
                Body::Tier(Box::new(reading)),
                Body::TierTrouble { trouble: TierTrouble::Suspended, detail: format!("after {factor} ms") },
                Body::BreakpointHit { condition: "ttft>1".into(), observed: format!("ttft {factor}") },
            ];
            for (seq, body) in bodies.into_iter().enumerate() {
                let (lane, request) = (Some(LaneId(0)), Some(RequestId(1)));
                ledger.apply(&Event { seq: seq as u64, at: Stamp(seq as u64 * factor), lane, request, body });
            }
            ledger
        };
        prop_assert_eq!(run(1).facts_hash(), run(slowness).facts_hash());
    }
}

#[test]
fn f24_what_nobody_measured_is_null_and_what_was_measured_as_zero_is_zero() {
    let mut ledger = Ledger::new();
    let event =
        |body| Event { seq: 0, at: Stamp(0), lane: Some(LaneId(0)), request: Some(RequestId(1)), body };
    ledger.apply(&event(Body::Arrived(Box::new(arrival(1)))));
    let row = serde_json::to_value(&ledger.rows()[0]).unwrap();
    for field in ["checkpoint_tokens", "uncached_suffix", "ttft_s", "stored_tokens", "text", "cliff", "spec"]
    {
        assert!(row[field].is_null(), "{field} is {}", row[field]);
    }
    ledger.apply(&event(Body::Restored(Box::new(restore(0)))));
    ledger.apply(&event(Body::Stored {
        stored_tokens: 0,
        canonical_tokens: 0,
        evicted_blocks: 0,
        snapshots: None,
        tier: None,
    }));
    let row = serde_json::to_value(&ledger.rows()[0]).unwrap();
    assert_eq!((&row["checkpoint_tokens"], &row["stored_tokens"]), (&0.into(), &0.into()));
}

#[test]
fn of_the_devices_memory_the_latest_reading_stays_and_the_highest_peak() {
    let mut ledger = Ledger::new();
    let reading = |active_bytes, peak_bytes| {
        Some(DeviceMemory { active_bytes, peak_bytes, cached_bytes: None, limit_bytes: Some(100) })
    };
    let mut apply = |request, body| {
        let request = Some(RequestId(request));
        ledger.apply(&Event { seq: 0, at: Stamp(0), lane: Some(LaneId(0)), request, body });
    };
    let progress = |device, shrunk| Body::PrefillProgress { done: 1, total: 9, shrunk, device, took: None };
    let memory = |device| Body::Memory {
        cached_blocks: 0,
        live_blocks: 0,
        bytes: 0,
        limit_bytes: 0,
        slots: None,
        device,
    };
    let shrunk = |wanted, admitted| Some(ShrunkChunk { wanted, admitted });
    apply(1, progress(reading(50, 90), shrunk(256, 64)));
    apply(1, progress(None, None));
    apply(1, progress(reading(60, 70), shrunk(256, 200)));
    apply(1, memory(reading(20, 80)));
    apply(2, progress(None, None));
    apply(3, progress(reading(30, 95), None));
    assert_eq!(ledger.device_memory(), reading(30, 95));
    let of = |request| ledger.request(RequestId(request)).unwrap();
    assert_eq!(of(1).device_memory, reading(20, 90));
    assert_eq!(of(1).shrunk, Some(ShrunkChunks { chunks: 2, smallest_tokens: 64 }));
    assert_eq!((of(2).device_memory, of(2).shrunk), (None, None));
    assert_eq!((of(3).device_memory, of(3).shrunk), (reading(30, 95), None));
    let rows = serde_json::to_value(ledger.rows()).unwrap();
    let expected = serde_json::json!({
        "active_bytes": 20, "peak_bytes": 90, "cached_bytes": null, "limit_bytes": 100
    });
    assert_eq!(rows[0]["device_memory"], expected);
    assert!(rows[1]["device_memory"].is_null() && rows[1]["shrunk_chunks"].is_null());
}

#[test]
fn the_facts_hash_ignores_how_much_memory_there_was() {
    let hash = |shrunk, device| {
        let mut ledger = Ledger::new();
        let body = Body::PrefillProgress { done: 1, total: 9, shrunk, device, took: None };
        let (lane, request) = (Some(LaneId(0)), Some(RequestId(1)));
        ledger.apply(&Event { seq: 0, at: Stamp(0), lane, request, body });
        ledger.facts_hash()
    };
    let device = DeviceMemory { active_bytes: 1, peak_bytes: 2, cached_bytes: Some(3), limit_bytes: None };
    let shrunk = ShrunkChunk { wanted: 256, admitted: 1 };
    assert_eq!(hash(None, None), hash(Some(shrunk), Some(device)));
}

#[test]
fn a_forks_history_is_its_parents_up_to_the_edited_turn() {
    let mut ledger = Ledger::new();
    let mut seq = 0;
    let mut apply = |lane: u32, request: Option<u64>, body: Body| {
        seq += 1;
        let event =
            Event { seq, at: Stamp(seq), lane: Some(LaneId(lane)), request: request.map(RequestId), body };
        ledger.apply(&event);
    };
    for turn in 1..=4 {
        apply(0, Some(u64::from(turn)), Body::Arrived(Box::new(arrival(turn))));
        apply(0, Some(u64::from(turn)), Body::Restored(Box::new(restore(u64::from(turn) * 10))));
    }
    apply(1, None, Body::LaneOpened { parent: Some(LaneId(0)), at_turn: Some(3), title: "fork".into() });
    apply(1, Some(5), Body::Arrived(Box::new(arrival(3))));
    apply(1, Some(5), Body::Restored(Box::new(restore(15))));
    let history: Vec<_> = ledger.history(LaneId(1)).iter().map(|r| r.id.0).collect();
    assert_eq!(history, [1, 2, 5]);
    let step = ledger.checkpoint_step(ledger.request(RequestId(5)).unwrap()).unwrap();
    assert_eq!((step.delta, step.cliff), (-5, true));
}
