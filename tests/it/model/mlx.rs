//! The `mlx` device on real models, on MLX's CPU backend: parity, routes within a tolerance, and sessions that show what they show on `cpu`.

use std::process::Command;

use escarp::config::{Config, DeviceSetting, PrecisionSetting};
use escarp::device::Executor;
use escarp::model::load;
use serde_json::Value;

use super::bits::{FOLDERS, PAGE, Trace, run, run_beside, run_drafted, run_restored, sample};
use super::fixture;
use super::parity::{agree_by_every_route, worst};

/// What routes may differ by, in deviations of the logits: the bar that parity is held to.
const TOLERANCE: f64 = 2e-3;

fn executor(folder: &str) -> Box<dyn Executor> {
    let mut config = Config::default();
    config.model.path = Some(fixture(folder));
    config.model.device = DeviceSetting::Mlx;
    config.model.precision = PrecisionSetting::F32;
    config.cache.block_tokens = PAGE;
    let mut executor = load(&config).unwrap().executor;
    executor.reserve(32, 8).unwrap();
    executor
}

#[test]
fn every_checkpoint_agrees_with_mlx_lm() {
    agree_by_every_route(DeviceSetting::Mlx);
}

/// Logits against those of one forward.
fn distance(trace: &Trace, whole: &Trace) -> f64 {
    let numbers = |trace: &Trace| trace.logits.iter().copied().map(f32::from_bits).collect::<Vec<f32>>();
    let (got, whole) = (numbers(trace), numbers(whole));
    let mean = whole.iter().map(|x| f64::from(*x)).sum::<f64>() / whole.len() as f64;
    let variance = whole.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / whole.len() as f64;
    worst(&got, &whole, variance.sqrt())
}

#[test]
fn chunks_neighbours_restores_and_rejected_drafts_stay_within_the_tolerance() {
    let (tokens, other) = (sample(200), sample(75));
    for folder in FOLDERS {
        let mut executor = executor(folder);
        let executor = &mut *executor;
        let whole = run(executor, &tokens, &[200], 0);
        let mut all = Vec::new();
        for chunk in [1, 7, 64] {
            all.push((format!("chunks of {chunk}"), run(executor, &tokens, &[chunk], 3)));
            all.push((format!("chunks of {chunk} beside"), run_beside(executor, &tokens, chunk, &other)));
        }
        for boundary in (PAGE..200).step_by(PAGE) {
            all.push((format!("restored at {boundary}"), run_restored(executor, &tokens, boundary)));
        }
        for drafts in [&[(3, 2, 1), (0, 5, 3), (8, 0, 0)][..], &[(1, 7, 0)], &[(0, 3, 40), (5, 1, 2)]] {
            all.push((format!("drafts {drafts:?}"), run_drafted(executor, &tokens, drafts)));
        }
        for (route, trace) in &all {
            let distance = distance(trace, &whole);
            println!("{folder}, {route}: {distance:.1e} deviations");
            assert!(distance < TOLERANCE, "{folder}, {route}: {distance} deviations");
        }
    }
}

#[test]
fn the_bundled_pair_agrees_with_itself_on_cpu_in_the_floats_of_its_file() {
    for name in escarp::model::bundled() {
        let logits = |device, precision| {
            let mut config = Config::default();
            config.model.path = Some(name.into());
            config.model.device = device;
            config.model.precision = precision;
            let mut loaded = load(&config).unwrap();
            let precision = loaded.executor.facts().precision;
            let tokens: Vec<u32> = (0..150).map(|i| (i * 7919 + i * i * 31) % 6_000).collect();
            (super::logits(&mut *loaded.executor, &tokens, &[40, 1]), precision)
        };
        let (expected, _) = logits(DeviceSetting::Cpu, PrecisionSetting::F32);
        let (got, precision) = logits(DeviceSetting::Mlx, PrecisionSetting::Auto);
        assert_eq!(precision, "f16", "{name}");
        let vocab = got.len() / 150;
        let best = |row: &[f32]| (0..vocab).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
        let rows = got.chunks_exact(vocab).zip(expected.chunks_exact(vocab));
        let same = rows.filter(|(a, b)| best(a) == best(b)).count();
        println!("{name}: the same token at {same} of 150 positions");
        assert!(same >= 146, "{name}: the same token at {same} of 150 positions");
    }
}

/// What the interface is about: where each request's checkpoint stands, how it was served, and why.
fn columns(device: &str) -> Vec<Vec<Value>> {
    let mut replay = Command::new(env!("CARGO_BIN_EXE_escarp"));
    replay.args(["replay", "--session", "quick", "--model", "talus", "--device", device, "--json"]);
    replay.args([
        "--set",
        "model.precision=f32",
        "--set",
        "cache.block_tokens=64",
        "--set",
        "scheduler.chunk_tokens=128",
    ]);
    let out = replay.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let report = String::from_utf8(out.stdout).unwrap();
    let columns = |line: &str| {
        let request: Value = serde_json::from_str(line).unwrap();
        let names = [
            "turn",
            "prompt_tokens",
            "checkpoint_tokens",
            "uncached_suffix",
            "stored_tokens",
            "route",
            "cliff",
            "cause",
        ];
        names
            .iter()
            .map(|name| request.get(name).unwrap_or_else(|| panic!("{name}: {line}")).clone())
            .collect()
    };
    report.lines().map(columns).collect()
}

#[test]
fn a_session_has_the_checkpoints_suffixes_routes_and_causes_it_has_on_cpu() {
    let expected = columns("cpu");
    assert!(expected.len() == 5 && expected.iter().any(|request| request[2].as_u64() > Some(500)));
    assert_eq!(columns("mlx"), expected);
}
