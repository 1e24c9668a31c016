//! The main job on real models: every bundled session on the bundled hybrid, and what fits SmolLM2-135M-Instruct on that.

use serde_json::Value;

use super::{check_rows, names, number, rows, run, stderr, stdout};

const BLOCK: u64 = 256;

/// SmolLM2's path, or `None` with a line that says what was skipped.
fn smollm2(test: &str) -> Option<String> {
    let path = std::env::var("ESCARP_SMOLLM2").ok();
    if path.is_none() {
        eprintln!("skipped {test}: ESCARP_SMOLLM2 is not set");
    }
    path
}

/// A session's rows, and what was said on standard error. The shortest replies: they cost the most and show the least here.
fn replay(model: &[&str], session: &str) -> (Vec<Value>, String) {
    let short = ["--session", session, "--json", "--set", "replay.max_output_tokens=4"];
    let output = run(&[&["replay"], model, &short].concat());
    assert!(output.status.success(), "{session}: {}", stderr(&output));
    let rows = rows(stdout(&output));
    check_rows(&rows);
    (rows, stderr(&output).to_owned())
}

#[test]
fn every_bundled_session_replays_on_the_bundled_model() {
    for name in names() {
        let (rows, said) = replay(&[], name);
        let known = escarp::session::open(name).unwrap().requests.len();
        assert_eq!(rows.len(), known, "{name}; {said}");
        // With a snapshot at every block, a hybrid loses no more than an attention model would.
        let by_default = escarp::session::open(name).unwrap().settings.is_empty();
        for row in rows.iter().filter(|_| by_default) {
            let (matched, restorable) =
                (number(row, "matched_tokens"), number(row, "matched_with_state_tokens"));
            assert_eq!(matched, restorable, "{name}: {row}");
        }
        the_session_shows_what_it_says(name, &rows);
    }
}

/// What is restored, from whichever snapshot, goes on exactly as what is computed anew.
#[test]
fn the_cache_and_its_snapshots_change_no_word_of_a_hybrid_s_replies() {
    let said = |settings: &[&str]| -> Vec<String> {
        let settings: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
        let (rows, _) = replay(&settings, "compaction");
        rows.iter().map(|row| row["output_sha256"].as_str().unwrap().to_owned()).collect()
    };
    let anew = said(&["cache.enabled=false"]);
    assert!(anew.len() > 10);
    for policy in ["every", "last", "none"] {
        assert_eq!(said(&[&format!("cache.snapshot_policy={policy}")]), anew, "{policy}");
    }
    assert_eq!(said(&["cache.block_tokens=64", "scheduler.chunk_tokens=100"]), anew, "other cuts");
}

/// Their forwards are shared, and so are pages and slots.
#[test]
fn sessions_side_by_side_change_no_word_of_each_other_s_replies() {
    let said = |sessions: &[&str]| {
        let sessions = sessions.iter().flat_map(|session| ["--session", session]).collect::<Vec<_>>();
        let short = ["replay", "--json", "--set", "replay.max_output_tokens=4"];
        let output = run(&[&short[..], &sessions].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let mut said: std::collections::BTreeMap<String, Vec<Value>> = Default::default();
        for row in rows(stdout(&output)) {
            assert_eq!(row["error"], Value::Null, "{row}");
            let lane = row["lane"].as_str().unwrap().to_owned();
            said.entry(lane).or_default().push(row["output_sha256"].clone());
        }
        said.into_values().collect::<Vec<_>>()
    };
    let sessions = ["quick", "tools-change", "quick"];
    let alone: Vec<_> = sessions.iter().flat_map(|session| said(&[session])).collect();
    assert_eq!(said(&sessions), alone);
}

#[test]
fn bundled_sessions_replay_on_smollm2_as_far_as_its_context_reaches() {
    const CONTEXT: u64 = 8_192;
    let Some(model) = smollm2("bundled_sessions_replay_on_smollm2_as_far_as_its_context_reaches") else {
        return;
    };
    // `cliff` is 62 requests, more than two minutes, about snapshots, of which this model has none.
    for name in names().filter(|name| !["growing", "cliff"].contains(name)) {
        let (rows, said) = replay(&["--model", &model], name);
        let longest = rows.iter().map(|row| number(row, "prompt_tokens")).max().unwrap();
        assert!(longest < CONTEXT, "{name}");
        let known = escarp::session::open(name).unwrap().requests.len();
        let cut = said.contains("session cut after") && said.contains("8,192");
        assert_eq!(rows.len() < known, cut, "{name}: {} of {known} requests ran; {said}", rows.len());
        assert_eq!(cut, name == "append-heavy", "one session is longer than the context");
        the_session_shows_what_it_says(name, &rows);
    }
    let output = run(&["replay", "--model", &model, "--session", "growing", "--json"]);
    assert_eq!(output.status.code(), Some(2), "nothing of it fits: {}", stderr(&output));
    let said = stderr(&output);
    assert!(said.contains("8,192") && said.contains("use a model with a longer one"), "{said}");
}

fn the_session_shows_what_it_says(name: &str, rows: &[Value]) {
    match name {
        "steady" => the_checkpoint_rises_by_whole_blocks(rows),
        "tools-change" => the_falls_name_tools_and_system_prompt(rows),
        "compaction" => the_falls_name_edit_and_compaction(rows),
        _ => {}
    }
}

fn the_checkpoint_rises_by_whole_blocks(rows: &[Value]) {
    let checkpoints: Vec<_> = rows.iter().map(|row| number(row, "checkpoint_tokens")).collect();
    assert!(checkpoints.iter().all(|tokens| tokens % BLOCK == 0), "{checkpoints:?}");
    assert!(checkpoints.windows(2).all(|pair| pair[0] <= pair[1]), "{checkpoints:?}");
    let risen = checkpoints.windows(2).filter(|pair| pair[0] < pair[1]).count();
    assert!(risen * 2 >= rows.len(), "it rises in most turns: {checkpoints:?}");
}

/// The requests whose checkpoint fell, and the kinds and sentences of the causes.
fn falls(rows: &[Value]) -> (Vec<&str>, Vec<&str>) {
    let fell = rows.iter().filter(|row| row["cliff"] == true);
    fell.map(|row| (row["cause_kind"].as_str().unwrap(), row["cause"].as_str().unwrap())).unzip()
}

fn the_falls_name_tools_and_system_prompt(rows: &[Value]) {
    let (kinds, sentences) = falls(rows);
    assert_eq!(kinds, ["tool_schema_changed", "system_changed"]);
    assert!(sentences[0].contains("in a tool schema"), "{sentences:?}");
    assert!(sentences[1].contains("in the system prompt"), "{sentences:?}");
}

fn the_falls_name_edit_and_compaction(rows: &[Value]) {
    let (kinds, _) = falls(rows);
    assert_eq!(kinds, ["history_edited", "compaction"]);
}
