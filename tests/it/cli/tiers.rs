//! The cache folder, faults and breakpoints, as a user meets them.

use std::path::Path;

use serde_json::Value;

use super::{number, rows, run, stderr, stdout, succeed};

/// `replay --json` of the shortest session on the small bundled model.
fn replay(folder: &Path, more: &[&str]) -> Vec<Value> {
    let folder = folder.to_str().unwrap();
    let mut arguments =
        vec!["replay", "--model", "talus", "--session", "quick", "--json", "--cache-dir", folder];
    arguments.extend(more);
    rows(&succeed(&arguments))
}

fn replies(rows: &[Value]) -> Vec<&Value> {
    rows.iter().map(|row| &row["output_sha256"]).collect()
}

#[test]
fn a_second_run_starts_where_the_first_one_ended_and_replies_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("cache");
    let (first, second) = (replay(&folder, &[]), replay(&folder, &[]));
    assert_eq!((number(&first[0], "checkpoint_tokens"), replies(&first)), (0, replies(&second)));
    for (before, after) in first.iter().zip(&second) {
        let whole_blocks = (number(after, "prompt_tokens") - 1) / 256 * 256;
        assert_eq!(number(after, "checkpoint_tokens"), whole_blocks);
        assert!(number(before, "checkpoint_tokens") <= whole_blocks);
    }
    // Under another precision the same files explain the miss, and are not used.
    let third = replay(&folder, &["--set", "model.precision=f32"]);
    assert_eq!(number(&third[0], "checkpoint_tokens"), 0);
    assert_eq!(third[0]["cause_kind"], "identity_changed");
    assert!(third[0]["cause"].as_str().unwrap().contains("precision"), "{}", third[0]["cause"]);
}

#[cfg(unix)]
#[test]
fn a_cache_folder_is_its_owners_alone_and_one_process_has_it() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("cache");
    replay(&folder, &[]);
    let mut folders = vec![folder.clone()];
    let mut files = 0;
    while let Some(path) = folders.pop() {
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700, "{}", path.display());
        for entry in std::fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            files += 1;
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
        }
    }
    assert!(files > 5);
    let lock = std::fs::File::open(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    let shown = folder.to_str().unwrap();
    let refused = run(&["replay", "--device", "sim", "--session", "quick", "--cache-dir", shown]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    let said = stderr(&refused);
    assert!(said.contains(shown) && said.contains("in use by") && said.contains("another folder"), "{said}");
}

#[test]
fn faults_are_named_and_change_no_reply() {
    let dir = tempfile::tempdir().unwrap();
    let sound = replay(&dir.path().join("a"), &[]);
    let faults = ["--fault", "3:drop-snapshot:1", "--fault", "4:corrupt-file:1"];
    let faulty = replay(&dir.path().join("b"), &faults);
    assert_eq!(replies(&sound), replies(&faulty));
    assert_eq!(faulty[3]["cause_kind"], "damaged", "{}", faulty[3]["cause"]);
    assert!(faulty[3]["cause"].as_str().unwrap().contains("block 1, written by request"));
    let lost = run(&["replay", "--model", "talus", "--session", "quick", "--fault", "3:change-generation:0"]);
    assert_eq!(lost.status.code(), Some(1), "a stale page is an error: {}", stdout(&lost));
    assert!(stderr(&lost).contains("request 3 failed"), "{}", stderr(&lost));
}

#[test]
fn a_breakpoint_ends_a_replay_where_it_holds() {
    let arguments = ["replay", "--model", "talus", "--session", "quick", "--json", "--break", "prompt>600"];
    let all = rows(&succeed(&arguments[..6]));
    let stopped = run(&arguments);
    assert!(stopped.status.success(), "{}", stderr(&stopped));
    let first = all.iter().position(|row| number(row, "prompt_tokens") > 600).unwrap();
    // The request is held after its restore, and cancelled with the run.
    let told = rows(stdout(&stopped));
    assert_eq!((told.len(), &told[first]["finish"]), (first + 1, &Value::from("cancelled")));
    assert_eq!(told[first]["checkpoint_tokens"], all[first]["checkpoint_tokens"]);
    assert!(stderr(&stopped).contains("prompt>600"), "{}", stderr(&stopped));
    let bad = run(&["replay", "--break", "suffix>>3"]);
    assert_eq!(bad.status.code(), Some(2));
    assert!(stderr(&bad).contains("suffix>4000"), "{}", stderr(&bad));
}

#[test]
fn bench_cache_measures_both_tiers() {
    let report: Value = serde_json::from_str(&succeed(&[
        "bench", "cache", "--model", "talus", "--tokens", "1500", "--repeat", "1", "--json",
    ]))
    .unwrap();
    let prompt = number(&report, "prompt_tokens");
    assert!((1_400..1_600).contains(&prompt), "{report}");
    for tier in ["ram", "ssd"] {
        assert_eq!(number(&report[tier], "restored_tokens"), (prompt - 1) / 256 * 256, "{report}");
        assert!(report[tier]["restore_s"].as_f64().unwrap() > 0.0, "{report}");
    }
    assert!(number(&report, "ssd_bytes") > 0);
}
