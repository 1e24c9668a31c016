//! The command line as a process: what goes in, what comes out, and with which exit code.

mod bad_input;
mod real_model;
mod tiers;

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use clap::CommandFactory;
use serde_json::Value;

/// The binary, in an environment that cannot change what it does.
fn escarp() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_escarp"));
    for name in ["ESCARP_MODEL", "RUST_LOG", "RUST_BACKTRACE"] {
        command.env_remove(name);
    }
    command
}

pub(crate) fn run<S: AsRef<OsStr>>(arguments: &[S]) -> Output {
    escarp().args(arguments).output().unwrap()
}

pub(crate) fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

pub(crate) fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// Standard output of a run that must succeed.
pub(crate) fn succeed<S: AsRef<OsStr>>(arguments: &[S]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output).to_owned()
}

/// What `replay --json` prints: one object a line.
pub(crate) fn rows(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) fn number(row: &Value, field: &str) -> u64 {
    row[field].as_u64().unwrap_or_else(|| panic!("`{field}` is {} in {row}", row[field]))
}

/// The `ledger: …` line of a summary.
fn ledger_hash(text: &str) -> &str {
    let hash = text.lines().find_map(|line| line.strip_prefix("ledger: "));
    hash.unwrap_or_else(|| panic!("no ledger hash in {text}"))
}

fn names() -> impl Iterator<Item = &'static str> {
    escarp::session::bundled().iter().map(|(name, _)| *name)
}

/// What must hold for every row of every replay.
pub(crate) fn check_rows(rows: &[Value]) {
    assert!(!rows.is_empty());
    let mut before = None;
    for row in rows {
        assert_eq!(row["error"], Value::Null, "{row}");
        let (checkpoint, prompt) = (number(row, "checkpoint_tokens"), number(row, "prompt_tokens"));
        assert_eq!(checkpoint + number(row, "uncached_suffix"), prompt, "{row}");
        assert!(checkpoint < prompt, "at least one token is computed: {row}");
        assert!(checkpoint <= number(row, "matched_with_state_tokens"), "{row}");
        assert!(number(row, "matched_with_state_tokens") <= number(row, "matched_tokens"), "{row}");
        if row["side"] == true {
            assert_eq!(row["cliff"], Value::Null, "a side request has no request before it: {row}");
            continue;
        }
        assert_eq!(row["cliff"].as_bool(), before.map(|b| checkpoint < b), "{row}");
        before = Some(checkpoint);
    }
}

#[test]
fn several_sessions_replay_at_once_each_as_it_does_by_itself() {
    let replay = |sessions: &[&str]| {
        let sessions: Vec<&str> = sessions.iter().flat_map(|session| ["--session", session]).collect();
        let sim = ["replay", "--device", "sim", "--json", "--set", "cache.snapshot_policy=every"];
        rows(&succeed(&[&sim[..], &sessions].concat()))
    };
    let of_lane = |rows: &[Value], lane: &str| -> Vec<Value> {
        rows.iter().filter(|row| row["lane"] == lane).cloned().collect()
    };
    // What a request restores does not depend on who runs beside it, as long as there is room for all; how long it takes does, and what the
    // pseudo-model says, whose vocabulary numbers words in the order in which it meets them.
    let told = |rows: &[Value]| -> Vec<_> {
        let keys = ["turn", "prompt_tokens", "checkpoint_tokens", "cliff", "cause_kind"];
        rows.iter().map(|row| keys.map(|key| row[key].clone())).collect()
    };
    let both = replay(&["quick", "tools-change"]);
    for (lane, session) in [("A", "quick"), ("B", "tools-change")] {
        let own = of_lane(&both, lane);
        check_rows(&own);
        assert_eq!(told(&own), told(&replay(&[session])), "{session}");
    }
    assert_eq!(both, replay(&["quick", "tools-change"]), "and it repeats exactly");
}

/// Every command with its full name, subcommands behind those they belong to.
fn commands(root: &clap::Command) -> Vec<(String, &clap::Command)> {
    let mut all = Vec::new();
    for command in root.get_subcommands() {
        let name = format!("escarp {}", command.get_name());
        // `help` has every command as a subcommand.
        let below = command.get_subcommands().filter(|_| command.get_name() != "help");
        let below: Vec<_> = below.filter(|below| below.get_name() != "help").collect();
        all.push((name.clone(), command));
        all.extend(below.into_iter().map(|below| (format!("{name} {}", below.get_name()), below)));
    }
    all
}

#[test]
fn help_of_every_command() {
    let mut all = String::new();
    let mut root = escarp::cli::Args::command().term_width(100);
    all += &root.render_help().to_string();
    for (name, command) in commands(&root) {
        // A subcommand by itself does not know whose it is.
        let help = command.clone().bin_name(&name).term_width(100).render_help();
        all += &format!("\n---- {name} --help\n{help}");
    }
    insta::assert_snapshot!(all);
}

#[test]
fn completions_generate() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(succeed(&["completions", shell]).contains("max-output-tokens"), "{shell}");
    }
}

#[test]
fn rows_of_every_bundled_session_add_up_on_sim() {
    for name in names() {
        let rows = rows(&succeed(&["replay", "--device", "sim", "--session", name, "--json"]));
        check_rows(&rows);
        for (index, row) in rows.iter().enumerate() {
            assert_eq!((number(row, "request"), number(row, "turn")), (index as u64 + 1, index as u64 + 1));
        }
    }
}

#[test]
fn the_same_replay_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let replay = |file: &str| {
        let path = folder.path().join(file);
        let arguments =
            ["replay", "--device", "sim", "--session", "quick", "--record", path.to_str().unwrap()];
        (succeed(&arguments), std::fs::read(&path).unwrap())
    };
    let (first, second) = (replay("first.jsonl"), replay("second.jsonl"));
    assert_eq!(first.0, second.0);
    assert!(first.1 == second.1, "the recordings differ");
}

/// Rows without what debt cost: that is reckoned on the prefill curve as far as it is measured when a row is made.
fn unpriced(rows: &[Value]) -> Vec<Value> {
    let mut rows = rows.to_vec();
    for field in ["recomputed_s", "prefix_cache_debt_s"] {
        rows.iter_mut().for_each(|row| row[field] = Value::Null);
    }
    rows
}

#[test]
fn a_recording_has_the_ledger_of_its_run_and_is_private() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    let path = path.to_str().unwrap();
    let table = succeed(&["replay", "--device", "sim", "--session", "quick", "--record", path]);
    let inspected = succeed(&["inspect", path]);
    assert_eq!(table.split_once("\n\n"), inspected.split_once("\n\n"), "the same table and the same summary");
    let json: Value = serde_json::from_str(&succeed(&["inspect", path, "--json"])).unwrap();
    assert_eq!(json["ledger"], ledger_hash(&table));
    assert_eq!((&json["complete"], &json["lost"]), (&Value::Bool(true), &Value::Array(Vec::new())));
    let replayed = rows(&succeed(&["replay", "--device", "sim", "--session", "quick", "--json"]));
    assert_eq!(unpriced(json["rows"].as_array().unwrap()), unpriced(&replayed));
    assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["run.jsonl"]);
}

#[test]
fn an_interrupted_replay_keeps_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    // On the wall clock the simulated device takes its time, so the interrupt comes in the middle.
    let child = escarp()
        .args([
            "replay",
            "--device",
            "sim",
            "--session",
            "quick",
            "--clock",
            "wall",
            "--idle",
            "zero",
            "--record",
        ])
        .arg(&path)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let partial = folder.path().join("run.jsonl.partial");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !std::fs::read_to_string(&partial).is_ok_and(|text| text.contains("\"routed\"")) {
        assert!(Instant::now() < deadline, "no request has begun");
        std::thread::sleep(Duration::from_millis(10));
    }
    // SAFETY: sends a signal to a child process that has not been waited for, so its number is still its own.
    assert_eq!(unsafe { libc::kill(i32::try_from(child.id()).unwrap(), libc::SIGINT) }, 0);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("interrupted"), "{}", stderr(&output));
    let recorded: Value =
        serde_json::from_str(&succeed(&["inspect", path.to_str().unwrap(), "--json"])).unwrap();
    assert_eq!(recorded["complete"], true);
    assert_eq!(recorded["ledger"], ledger_hash(stdout(&output)));
    assert!(!partial.exists());
}

#[test]
fn options_do_what_they_say() {
    let quick = ["replay", "--device", "sim", "--session", "quick", "--json"];
    let with = |more: &[&str]| rows(&succeed(&[&quick[..], more].concat()));
    let plain = with(&[]);
    assert_eq!(with(&["--turns", "2"]), plain[..2]);
    assert!(with(&["--idle", "0.5"]).iter().all(|row| row["idle_s"] == 0.5));
    assert!(with(&["--idle", "zero"]).iter().all(|row| row["idle_s"] == 0.0));
    assert_eq!(with(&["--set", "replay.idle=zero"]), with(&["--idle", "zero"]));
    let small = with(&["--set", "cache.block_tokens=64"]);
    assert!(small.iter().any(|row| !number(row, "checkpoint_tokens").is_multiple_of(256)));
    assert!(small.iter().all(|row| number(row, "checkpoint_tokens").is_multiple_of(64)));
    assert!(with(&["--set", "cache.enabled=false"]).iter().all(|row| number(row, "checkpoint_tokens") == 0));
    let live = with(&["--mode", "live"]);
    assert_eq!(live[0], plain[0]);
    assert_ne!(live[1]["prompt_tokens"], plain[1]["prompt_tokens"], "the model's own reply is another text");
}

#[test]
fn a_configuration_file_sets_what_flags_set() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sim.toml");
    std::fs::write(&path, "[model]\ndevice = \"sim\"\n[replay]\nidle = 2\n").unwrap();
    let from_file = succeed(&["replay", "--session", "quick", "--json", "--config", path.to_str().unwrap()]);
    assert_eq!(
        from_file,
        succeed(&["replay", "--session", "quick", "--json", "--device", "sim", "--idle", "2"])
    );
}

#[test]
fn a_reader_that_leaves_ends_the_command_quietly() {
    let mut child = escarp()
        .args(["logits", "--device", "sim", "--json", "--tokens", &vec!["1"; 4_096].join(",")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{:?}", output.status);
    assert_eq!(stderr(&output), "");
}

#[test]
fn logits_do_not_depend_on_the_chunk() {
    let logits = |chunk: &[&str]| {
        succeed(&[&["logits", "--device", "sim", "--tokens", "5,6,7,8,9", "--json"], chunk].concat())
    };
    let whole = logits(&[]);
    let json: Value = serde_json::from_str(&whole).unwrap();
    assert_eq!(json["tokens"], serde_json::json!([5, 6, 7, 8, 9]));
    let lengths: Vec<_> =
        json["logits"].as_array().unwrap().iter().map(|row| row.as_array().unwrap().len()).collect();
    assert!(lengths.len() == 5 && lengths.iter().all(|length| *length == lengths[0] && *length > 0));
    for chunk in ["1", "2", "4"] {
        assert_eq!(logits(&["--chunk", chunk]), whole, "chunks of {chunk}");
    }
}

#[test]
fn bench_prints_the_cost_model_on_sim() {
    let text = succeed(&["bench", "--device", "sim", "--sizes", "512,1024", "--json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.iter().map(|r| number(r, "prompt")).collect::<Vec<_>>(), [512, 1024]);
    // 3.83 ms a token and a little for depth; 40 ms a decoded token.
    let speeds = |field: &str| runs.iter().map(|r| r[field].as_f64().unwrap()).collect::<Vec<_>>();
    assert!(speeds("prefill_tps").iter().all(|s| (240.0..262.0).contains(s)), "{text}");
    assert!(speeds("decode_tps").iter().all(|s| (23.0..25.1).contains(s)), "{text}");
    assert!(runs.iter().all(|r| r["bandwidth_share"].is_null()), "nobody measured it: {text}");
}

#[test]
fn inspect_describes_a_session() {
    let json: Value = serde_json::from_str(&succeed(&["inspect", "quick", "--json"])).unwrap();
    let replayed = rows(&succeed(&["replay", "--device", "sim", "--session", "quick", "--json"]));
    let requests = json["requests"].as_array().unwrap();
    let names = |rows: &[Value]| rows.iter().map(|row| row["name"].clone()).collect::<Vec<_>>();
    assert_eq!(names(requests), names(&replayed));
    assert!(requests.iter().all(|r| r["prompt_tokens"].is_null()), "no tokenizer was given");
    assert!(succeed(&["inspect", "quick"]).lines().count() >= requests.len() + 4);
}

const WITH_SETTINGS: &str = r#"{"escarp_session":1,"title":"t","set":{"cache.block_tokens":64,"replay.idle":3}}
{"request":{"name":"r1","append":[{"role":"user","content":"hello"}]}}
{"request":{"name":"title","side":true,"append":[{"role":"user","content":"title?"}]}}
{"request":{"name":"r2","append":[{"role":"user","content":"go on"}]}}
"#;

#[test]
fn a_sessions_settings_hold_unless_something_else_sets_them_and_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (session, file, record) = (path("s.jsonl"), path("c.toml"), path("r.jsonl"));
    std::fs::write(&session, WITH_SETTINGS).unwrap();
    std::fs::write(&file, "[replay]\nidle = 5\n").unwrap();
    let on_sim = ["replay", "--device", "sim", "--session", &session];
    let with = |more: &[&str]| succeed(&[&on_sim[..], more].concat());
    let second_line = |text: &str| text.lines().nth(1).unwrap().to_owned();
    let plain = with(&["--record", &record]);
    assert_eq!(second_line(&plain), "set by the session: cache.block_tokens=64 · replay.idle=3");
    assert!(plain.lines().next().unwrap().contains("blocks of 64"), "{plain}");
    assert_eq!(succeed(&["inspect", &record]).split_once("\n\n"), plain.split_once("\n\n"));
    for more in [["--config", &file], ["--idle", "5"], ["--set", "replay.idle=5.0"]] {
        let text = with(&more);
        let line = "set by the session: cache.block_tokens=64 · replay.idle=3 (overridden)";
        assert_eq!(second_line(&text), line, "{more:?}");
    }
    let json = rows(&with(&["--json"]));
    assert!(json.iter().all(|row| row["idle_s"] == 3.0));
    let sides: Vec<_> = json.iter().map(|row| row["side"].as_bool().unwrap()).collect();
    assert_eq!(sides, [false, true, false]);
    check_rows(&json);
    let inspected = succeed(&["inspect", &session]);
    assert_eq!(inspected.lines().nth(2), Some("sets cache.block_tokens=64 · replay.idle=3"));
    let listed: Value = serde_json::from_str(&succeed(&["inspect", &session, "--json"])).unwrap();
    assert_eq!(listed["set"], serde_json::json!(["cache.block_tokens=64", "replay.idle=3"]));
    assert_eq!(listed["requests"][1]["side"], true);
}

#[test]
fn a_sessions_settings_are_checked_with_all_others() {
    let folder = tempfile::tempdir().unwrap();
    let session = folder.path().join("s.jsonl");
    let session = session.to_str().unwrap();
    std::fs::write(session, WITH_SETTINGS.replace(r#""replay.idle":3"#, r#""cache.ram_bytes":"8MiB""#))
        .unwrap();
    // Enough by itself; on the simulated device with its larger state it is not.
    let large = ["--set", "sim.state_bytes_per_token=1MiB"];
    let output = run(&[&["replay", "--device", "sim", "--session", session], &large[..]].concat());
    assert_eq!(output.status.code(), Some(2));
    let told = format!("{session}: `set`: `cache.ram_bytes` is ");
    assert!(stderr(&output).contains(&told), "{}", stderr(&output));
}

/// Every example that needs no file runs as it is printed.
#[test]
fn examples_on_the_simulated_device_run() {
    let folder = tempfile::tempdir().unwrap();
    let help = |command: &clap::Command| command.get_after_help().map(|h| h.to_string()).unwrap_or_default();
    let root = escarp::cli::Args::command();
    let texts: Vec<_> = commands(&root).into_iter().map(|(_, command)| help(command)).collect();
    let lines = texts.iter().flat_map(|text| text.lines()).map(str::trim);
    let runnable = |line: &&str| {
        let starts = ["escarp replay", "escarp logits", "escarp bench"].iter().any(|s| line.starts_with(s));
        (starts && line.contains("--device sim"))
            || line.starts_with("escarp completions")
            || *line == "escarp inspect steady"
    };
    let mut ran = 0;
    for line in lines.filter(runnable) {
        let arguments: Vec<_> = line.split_whitespace().skip(1).collect();
        let output = escarp().args(arguments).current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{line}: {}", stderr(&output));
        ran += 1;
    }
    assert!(ran >= 6, "only {ran} examples ran");
    assert!(Path::exists(&folder.path().join("run.jsonl")), "the example with --record leaves its file");
}
