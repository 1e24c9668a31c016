//! The engine with a tier on disk: what came back is what computing anew gives, over restarts and faults.

use std::path::Path;

use super::hybrid::{Script, narrow, prompt, replies, request, restores, serve, step};
use super::*;
use crate::cache::tier::Tuning;
use crate::config::PlaceholderPolicy;
use crate::event::{EndState, Residency, Restore, TierReading, TierTrouble};

const SHORT: usize = 16;
const LONGEST: usize = 480;
/// Room that no test here fills.
const AMPLE: u64 = 1 << 30;

fn ground(policy: SnapshotPolicy, snapshots: usize, dir: &Path, limit_bytes: u64) -> Ground {
    let scheduling = SchedulerConfig { max_sequences: 2, chunk_tokens: 50, ..SchedulerConfig::default() };
    let tier = Some(TierGround { dir: dir.to_owned(), limit_bytes, tuning: Tuning::default() });
    Ground { tier, ..narrow(policy, scheduling, SHORT, LONGEST, snapshots) }
}

fn policy() -> impl Strategy<Value = SnapshotPolicy> {
    prop::sample::select(vec!["every", "every:3", "last", "branch", "none"])
        .prop_map(|word| SnapshotPolicy::parse(word).unwrap())
}

/// Bytes of all files below a folder, but for the lock, the format's marker and the index.
fn bytes_on_disk(dir: &Path) -> u64 {
    let mut bytes = 0;
    for part in ["blocks", "snapshots", "damaged"] {
        let mut folders = vec![dir.join(part)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                match path.is_dir() {
                    true => folders.push(path),
                    false if path.extension().is_some_and(|e| e == "safetensors") => {
                        bytes += entry.metadata().unwrap().len();
                    }
                    false => {}
                }
            }
        }
    }
    bytes
}

fn last_reading(events: &[Event]) -> TierReading {
    let readings = events.iter().rev().filter_map(|event| match &event.body {
        Body::Tier(reading) => Some((**reading).clone()),
        _ => None,
    });
    readings.take(1).next().expect("a tier was told of")
}

fn check_restores(events: &[Event]) -> Result<(), TestCaseError> {
    let mut prompts = std::collections::BTreeMap::new();
    for event in events {
        match &event.body {
            Body::Arrived(arrival) => drop(prompts.insert(event.request, arrival.prompt_tokens)),
            Body::Restored(restore) => {
                let lost: u64 = restore.losses.iter().map(|loss| loss.tokens).sum();
                prop_assert_eq!(lost + restore.checkpoint_tokens, prompts[&event.request], "{:?}", restore);
                prop_assert!(restore.checkpoint_tokens <= restore.matched_with_state_tokens);
                prop_assert!(restore.matched_with_state_tokens <= restore.matched_tokens);
                prop_assert!(restore.matched_tokens <= restore.held_tokens);
                let restored = restore.blocks.iter().filter(|block| block.residency.is_restored()).count();
                prop_assert_eq!(restored * SHORT, restore.checkpoint_tokens as usize);
            }
            _ => {}
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever is appended, edited, forked, cancelled, evicted, damaged and restarted, with however little room in RAM and on disk, and
    /// under every policy: the replies are those without a cache, every figure adds up, and the bytes accounted are those on disk.
    #[test]
    fn over_tiers_restarts_and_faults_the_replies_are_those_of_computing_anew(
        rounds in prop::collection::vec(prop::collection::vec(step(120), 1..10), 1..4),
        policy in policy(),
        placeholder in prop::sample::select(vec![PlaceholderPolicy::WalkBack, PlaceholderPolicy::Strict]),
        snapshots in 0_usize..40,
        limit_bytes in prop::sample::select(vec![12_000_u64, 60_000, AMPLE]),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("cache");
        let with = Ground { placeholder, ..ground(policy, snapshots, &folder, limit_bytes) };
        let without = Ground { tier: None, ..with.clone() };
        for steps in &rounds {
            let play = |ground: &Ground, use_cache| {
                let script = Script { steps, use_cache, vocab: 5_000, longest: LONGEST };
                ground.run(|scheduler, clock, out| {
                    script.play(ground, scheduler, clock, out);
                    scheduler.close_tier(clock, out);
                }).1
            };
            let (cached, uncached) = (play(&with, true), play(&without, false));
            for events in [&cached, &uncached] {
                let failed = events.iter().find(|e| matches!(e.body, Body::Failed { .. } | Body::StalePage { .. }));
                prop_assert_eq!(failed, None);
            }
            let (said, expected) = (replies(&cached), replies(&uncached));
            for (n, _) in steps.iter().enumerate().filter(|(_, step)| step.cancel.is_none()) {
                let id = RequestId(n as u64 + 1);
                prop_assert_eq!(&said[&id], &expected[&id]);
            }
            check_restores(&cached)?;
            let reading = last_reading(&cached);
            prop_assert!(reading.bytes <= limit_bytes);
            let on_disk = bytes_on_disk(&folder);
            // A file that was cut short behind the tier's back counts in full until somebody reads it.
            let cut = rounds.iter().flatten().any(|step| matches!(step.fault, Some(Fault::TruncateFile(_))));
            prop_assert!(reading.bytes == on_disk || (cut && reading.bytes > on_disk), "{on_disk} {reading:?}");
        }
    }
}

fn run(ground: &Ground, prompts: &[Vec<u32>]) -> Vec<Event> {
    ground
        .run(|scheduler, clock, out| {
            for tokens in prompts {
                serve(scheduler, tokens.clone(), clock, out);
            }
            scheduler.close_tier(clock, out);
        })
        .1
}

fn told(restore: &Restore) -> (u64, Cause) {
    (restore.checkpoint_tokens, restore.cause)
}

#[test]
fn a_restart_restores_from_disk_and_says_who_wrote_it() {
    let dir = tempfile::tempdir().unwrap();
    let ground = ground(SnapshotPolicy::EVERY, 40, dir.path(), AMPLE);
    let tokens = prompt(0, 200);
    let before = run(&ground, std::slice::from_ref(&tokens));
    let after = run(&ground, &[tokens.clone(), tokens]);
    let [first, second] = restores(&after)[..] else { panic!("two restores") };
    assert_eq!(told(first), (192, Cause::Appended), "nobody of this run had the tail");
    let ssd = first.ssd.expect("it came from disk");
    assert_eq!((ssd.blocks, ssd.snapshots), (12, 1));
    let block = &first.blocks[11];
    assert_eq!((block.residency, block.recurrent), (Residency::Ssd, Some(EndState::Ssd)));
    assert_eq!((block.written_by, block.earlier_run), (Some(RequestId(1)), true));
    assert_eq!((told(second), second.ssd), ((192, Cause::BlockFloor), None), "RAM has it now");
    assert_eq!(second.blocks[11].residency, Residency::Ram);
    assert_eq!(replies(&before)[&RequestId(1)], replies(&after)[&RequestId(1)]);
}

/// Does a fault between two requests for the same prompt. Gives the second's restore, and all events.
fn with_fault(fault: &str, snapshots: usize) -> (Restore, Vec<Event>) {
    let dir = tempfile::tempdir().unwrap();
    let ground = ground(SnapshotPolicy::EVERY, snapshots, dir.path(), AMPLE);
    let tokens = prompt(0, 200);
    let (outcome, events) = ground.run(|scheduler, clock, out| {
        serve(scheduler, tokens.clone(), clock, out);
        let outcome = scheduler.inject(fault.parse().unwrap(), &tokens, clock);
        serve(scheduler, tokens.clone(), clock, out);
        scheduler.inject("free-disk".parse().unwrap(), &tokens, clock);
        scheduler.close_tier(clock, out);
        outcome
    });
    assert!(!outcome.starts_with("nothing"), "{outcome}");
    let said = replies(&events);
    assert_eq!(said.get(&RequestId(2)), said.get(&RequestId(1)).filter(|_| fault != "change-generation:3"));
    (restores(&events)[1].clone(), events)
}

#[test]
fn every_fault_ends_as_a_named_cause_and_never_as_another_reply() {
    for (fault, checkpoint, cause) in [
        ("evict-block:3", 192, Cause::BlockFloor),
        ("lose-block:3", 48, Cause::Evicted),
        ("drop-snapshot:11", 176, Cause::NoSnapshot),
        ("corrupt-file:3", 48, Cause::Damaged),
        ("truncate-file:3", 48, Cause::Damaged),
        ("corrupt-snapshot:11", 176, Cause::Damaged),
        ("fill-disk", 192, Cause::BlockFloor),
    ] {
        let (restore, events) = with_fault(fault, 40);
        assert_eq!(told(&restore), (checkpoint, cause), "{fault}: {:?}", restore.losses);
        let named = restore.losses.iter().find(|loss| loss.cause == cause).unwrap();
        if cause != Cause::BlockFloor {
            assert_eq!(named.block.and_then(|block| block.written_by), Some(RequestId(1)), "{fault}");
        }
        let damaged = events
            .iter()
            .any(|event| matches!(event.body, Body::TierTrouble { trouble: TierTrouble::Damaged, .. }));
        assert_eq!(damaged, cause == Cause::Damaged, "{fault}");
    }
    let (_, events) = with_fault("change-generation:3", 40);
    let memory = events.iter().rev().find_map(|event| match event.body {
        Body::Memory { live_blocks, .. } => Some(live_blocks),
        _ => None,
    });
    assert_eq!(memory, Some(0), "the page is given away, not lost");
    let failed = events.iter().filter(|event| matches!(event.body, Body::Failed { .. })).count();
    let stale = events.iter().filter(|event| matches!(event.body, Body::StalePage { .. })).count();
    assert_eq!((failed, stale), (1, 1), "an error, not a reply");
}

#[test]
fn a_disk_that_stands_still_is_waited_for_and_then_done_without() {
    let dir = tempfile::tempdir().unwrap();
    let ground = ground(SnapshotPolicy::EVERY, 40, dir.path(), AMPLE);
    let tokens = prompt(0, 200);
    run(&ground, std::slice::from_ref(&tokens));
    let impatient = Ground { ssd_wait: Duration::from_millis(50), ..ground };
    let began = std::time::Instant::now();
    let (_, events) = impatient.run(|scheduler, clock, out| {
        scheduler.inject("stall-disk:600".parse().unwrap(), &[], clock);
        serve(scheduler, tokens.clone(), clock, out);
        scheduler.inject("stall-disk:0".parse().unwrap(), &[], clock);
    });
    assert!(began.elapsed() < Duration::from_secs(60));
    assert_eq!(told(restores(&events)[0]), (0, Cause::Unread));
}

#[test]
fn a_full_disk_stops_writing_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let ground = ground(SnapshotPolicy::EVERY, 40, dir.path(), AMPLE);
    let prompts: Vec<_> = (0..4).map(|seed| prompt(seed, 200)).collect();
    let (_, events) = ground.run(|scheduler, clock, out| {
        scheduler.inject("fill-disk".parse().unwrap(), &[], clock);
        for tokens in &prompts {
            serve(scheduler, tokens.clone(), clock, out);
        }
        serve(scheduler, prompts[0].clone(), clock, out);
        scheduler.close_tier(clock, out);
    });
    let reading = last_reading(&events);
    assert!(reading.problem.is_some() && reading.failed_writes > 0, "{reading:?}");
    assert_eq!(replies(&events)[&RequestId(5)], replies(&events)[&RequestId(1)]);
    assert_eq!(bytes_on_disk(dir.path()), 0);
}

#[test]
fn the_strict_policy_refuses_a_match_that_ends_in_a_placeholder() {
    let dir = tempfile::tempdir().unwrap();
    let walk_back = ground(SnapshotPolicy::Last, 40, dir.path(), AMPLE);
    let strict = Ground { placeholder: PlaceholderPolicy::Strict, tier: None, ..walk_back };
    // Static prefix of 40 tokens; under `last` only the last boundary of each prompt has a snapshot.
    let short = prompt(0, 45);
    let long = prompt(0, 200);
    let departing: Vec<u32> = [prompt(0, 150), prompt(9, 40)].concat();
    let with_segments = |tokens: &Vec<u32>| Submission {
        segments: vec![
            crate::event::SegmentRun { segment: Segment::System, tokens: 40 },
            crate::event::SegmentRun { segment: Segment::User, tokens: tokens.len() as u64 - 40 },
        ],
        ..request(tokens.clone())
    };
    let (_, events) = strict.run(|scheduler, clock, out| {
        for tokens in [&short, &long, &departing] {
            scheduler.submit(with_segments(tokens), clock, out);
            drain(scheduler, clock, out);
        }
    });
    let restores = restores(&events);
    assert_eq!(told(restores[1]), (32, Cause::BlockFloor));
    assert_eq!(told(restores[2]), (32, Cause::PlaceholderRefused));
    let loss = restores[2].losses.iter().find(|loss| loss.cause == Cause::PlaceholderRefused).unwrap();
    assert_eq!((loss.tokens, loss.block.map(|block| block.index)), (112, Some(8)));
    assert!(loss.detail.contains("the static prefix's block 1"), "{}", loss.detail);
}

#[test]
fn branch_points_are_captured_when_a_second_prompt_shows_them() {
    let dir = tempfile::tempdir().unwrap();
    let ground = Ground { tier: None, ..ground(SnapshotPolicy::Branch, 40, dir.path(), AMPLE) };
    let prompts: Vec<Vec<u32>> = (1..4).map(|seed| [prompt(0, 100), prompt(seed, 60)].concat()).collect();
    let events = ground
        .run(|scheduler, clock, out| {
            for tokens in &prompts {
                serve(scheduler, tokens.clone(), clock, out);
            }
        })
        .1;
    let checkpoints: Vec<_> = restores(&events).iter().map(|r| r.checkpoint_tokens).collect();
    assert_eq!(checkpoints, [0, 0, 96], "the second shows the branch point, the third starts from it");
}

#[test]
fn another_identity_explains_a_miss_and_is_never_state() {
    let dir = tempfile::tempdir().unwrap();
    let ground = ground(SnapshotPolicy::EVERY, 40, dir.path(), AMPLE);
    let tokens = prompt(0, 200);
    run(&ground, std::slice::from_ref(&tokens));
    let other = Ground { block_tokens: 32, ..ground };
    let events = run(&other, &[tokens]);
    let restore = restores(&events)[0];
    assert_eq!(told(restore), (0, Cause::IdentityChanged));
    let loss = restore.losses.iter().find(|loss| loss.cause == Cause::IdentityChanged).unwrap();
    assert!(loss.detail.contains("16") && loss.tokens == 192, "{loss:?}");
}

#[test]
fn a_snapshot_comes_back_where_no_slot_is_left_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = prompt(0, 200);
    run(&ground(SnapshotPolicy::EVERY, 40, dir.path(), AMPLE), std::slice::from_ref(&tokens));
    let none_left = ground(SnapshotPolicy::EVERY, 0, dir.path(), AMPLE);
    let events = run(&none_left, &[tokens.clone(), tokens]);
    let restores = restores(&events);
    assert!(restores.iter().all(|restore| restore.checkpoint_tokens == 192), "{restores:?}");
    assert_eq!(restores[1].ssd.map(|ssd| (ssd.blocks, ssd.snapshots)), Some((0, 1)), "blocks stay in RAM");
}

#[test]
fn damage_of_an_earlier_runs_file_costs_what_is_behind_it_by_its_own_name() {
    let dir = tempfile::tempdir().unwrap();
    let ground = ground(SnapshotPolicy::EVERY, 40, dir.path(), AMPLE);
    let tokens = prompt(0, 200);
    run(&ground, std::slice::from_ref(&tokens));
    let (_, events) = ground.run(|scheduler, clock, out| {
        scheduler.inject("corrupt-file:3".parse().unwrap(), &tokens, clock);
        serve(scheduler, tokens.clone(), clock, out);
    });
    let restore = restores(&events)[0];
    assert_eq!(told(restore), (48, Cause::Damaged));
    let named: Vec<_> = restore.losses.iter().map(|loss| (loss.cause, loss.tokens)).collect();
    assert_eq!(named, [(Cause::Appended, 8), (Cause::Damaged, 144)]);
}

#[test]
fn a_fork_of_the_first_turn_is_a_branch() {
    let scheduling = SchedulerConfig { max_sequences: 1, chunk_tokens: 64, ..SchedulerConfig::default() };
    let (_, events) = with_scheduler(scheduling, 64, |scheduler, clock, out| {
        serve(scheduler, prompt(0, 200), clock, out);
        let fork = [prompt(0, 100), prompt(7, 60)].concat();
        scheduler.submit(Submission { source: Source::Edit, ..request(fork) }, clock, out);
        drain(scheduler, clock, out);
    });
    let losses = &restores(&events)[1].losses;
    assert!(losses.iter().any(|loss| loss.cause == Cause::Branch), "{losses:?}");
    assert!(losses.iter().all(|loss| loss.cause != Cause::Appended), "{losses:?}");
}
