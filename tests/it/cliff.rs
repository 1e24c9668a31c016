//! The bundled session `cliff` on the bundled hybrid: a cache cliff that nobody injected.
//!
//! Its shape is that of the published trace (request 11 of EXP-001's Trace B falls to the last whole block inside the system
//! prompt and the tools, and ten requests stay there). Here the cause can be seen: sub-agents run beside the main line, and
//! their snapshots take the place of its own.

use std::path::Path;

use escarp::event::{Body, Event, Segment, record};
use serde_json::Value;

use super::cli::{check_rows, number, rows, succeed};

const BLOCK: u64 = 256;
/// Main requests before the first sub-agent.
const HEALTHY: usize = 10;
/// Room for all snapshots there can be.
const ROOM: [&str; 2] = ["--set", "cache.max_snapshots=1000"];

fn replay(more: &[&str]) -> Vec<Value> {
    let rows = rows(&succeed(&[&["replay", "--session", "cliff", "--json"], more].concat()));
    check_rows(&rows);
    rows
}

/// The rows of the main line.
fn main_line(rows: &[Value]) -> Vec<&Value> {
    rows.iter().filter(|row| row["side"] == false).collect()
}

fn column(rows: &[&Value], field: &str) -> Vec<u64> {
    rows.iter().map(|row| number(row, field)).collect()
}

/// Tokens of the system prompt and the tools, which all prompts begin with.
fn static_prefix(recording: &Path) -> u64 {
    let of_prompt = |event: &Event| match &event.body {
        Body::Arrived(arrival) => {
            let (mut end, mut last) = (0, 0);
            for run in &arrival.segments {
                end += run.tokens;
                if matches!(run.segment, Segment::System | Segment::ToolSchema) {
                    last = end;
                }
            }
            Some(last)
        }
        _ => None,
    };
    let ends: Vec<u64> = record::read(recording).unwrap().iter().filter_map(of_prompt).collect();
    assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
    ends[0]
}

#[test]
fn the_checkpoint_advances_falls_into_the_static_prefix_and_stays_there() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("cliff.jsonl");
    let rows = replay(&["--record", recording.to_str().unwrap()]);
    let main = main_line(&rows);
    let (healthy, behind) = main.split_at(HEALTHY);

    let advancing = column(healthy, "checkpoint_tokens");
    assert!(advancing.windows(2).all(|pair| pair[0] <= pair[1]), "{advancing:?}");
    let advances = advancing.windows(2).filter(|pair| pair[0] < pair[1]).count();
    assert!(advances >= 5, "{advancing:?}");

    let static_tokens = static_prefix(&recording);
    let foot = static_tokens / BLOCK * BLOCK;
    assert!(
        (3..=5).contains(&(foot / BLOCK)) && foot < advancing[HEALTHY - 1],
        "{static_tokens}: {advancing:?}"
    );
    assert_eq!(
        number(main[0], "prompt_tokens") / BLOCK * BLOCK,
        foot,
        "the first prompt ends in the same block"
    );

    assert!(behind.len() > 8);
    assert!(column(behind, "checkpoint_tokens").iter().all(|tokens| *tokens == foot));
    let suffixes = column(behind, "uncached_suffix");
    assert!(suffixes.windows(2).all(|pair| pair[0] < pair[1]), "{suffixes:?}");
    let cliffs: Vec<_> = main.iter().filter(|row| row["cliff"] == true).map(|row| &row["name"]).collect();
    assert_eq!(cliffs, [&behind[0]["name"]]);
    assert_eq!(number(main[main.len() - 1], "pinned_requests"), behind.len() as u64);
}

#[test]
fn the_fall_names_the_block_its_writer_and_the_request_its_snapshot_made_room_for() {
    let rows = replay(&[]);
    let main = main_line(&rows);
    for (before, row) in main[HEALTHY - 1..].iter().zip(&main[HEALTHY..]) {
        assert_eq!(row["cause_kind"], "no_snapshot", "{row}");
        // All that the request before left is held: it is the snapshots that are gone.
        let common = number(row, "common_prefix_tokens");
        assert_eq!(number(row, "matched_tokens"), common / BLOCK * BLOCK, "{row}");
        assert!(number(row, "matched_tokens") > number(row, "matched_with_state_tokens"), "{row}");
        let evicted = |loss: &Value| loss["cause"] == "evicted";
        assert!(!row["losses"].as_array().unwrap().iter().any(evicted), "{row}");

        let block = &row["cause_block"];
        let (index, writer) = (number(block, "index"), number(block, "written_by"));
        assert!(index >= number(row, "checkpoint_tokens") / BLOCK, "{row}");
        assert!(main.iter().any(|main| number(main, "request") == writer), "written by the main line: {row}");
        let cause = row["cause"].as_str().unwrap();
        assert!(
            cause.contains(&format!("block {index}, written by request {writer}, lost its own")),
            "{cause}"
        );
        let room_for: u64 = cause.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(number(before, "request") < room_for && room_for < number(row, "request"), "{cause}");
        let taker = rows.iter().find(|row| number(row, "request") == room_for).unwrap();
        assert!(taker["side"] == true && taker["name"].as_str().unwrap().contains("-sub"), "{taker}");
    }
}

#[test]
fn with_room_for_the_snapshots_there_is_no_cliff_and_the_same_is_asked_and_answered() {
    let with_cliff = replay(&[]);
    let words = |rows: &[Value]| -> Vec<(Value, Value)> {
        rows.iter().map(|row| (row["prompt_tokens"].clone(), row["output_sha256"].clone())).collect()
    };
    for more in [&ROOM[..], &[&ROOM[..], &["--set", "cache.snapshot_policy=every"]].concat()] {
        let rows = replay(more);
        let checkpoints = column(&main_line(&rows), "checkpoint_tokens");
        assert!(checkpoints.windows(2).all(|pair| pair[0] <= pair[1]), "{more:?}: {checkpoints:?}");
        assert!(rows.iter().all(|row| row["cliff"] != true), "{more:?}");
        assert_eq!(words(&rows), words(&with_cliff), "{more:?}");
    }
}

#[test]
fn a_plain_replay_tells_the_cliff_and_what_the_session_sets() {
    let text = succeed(&["replay", "--session", "cliff"]);
    let set = "set by the session: cache.snapshot_policy=last · cache.max_snapshots=3";
    assert_eq!(text.lines().nth(1), Some(set), "{text}");
    let fallen: Vec<_> = text.lines().filter(|line| line.contains('▼')).collect();
    assert!(fallen.len() == 1 && fallen[0].contains(" delegate "), "{fallen:?}");
    let summary = text.rsplit_once("\n\n").unwrap().1;
    assert!(summary.contains("cliff") && !summary.contains("no cliff"), "{summary}");
}
