//! The bound against what MLX's allocator counts, and the guard that rests on it.
//!
//! The allocator counts for the whole process, so these tests run in a process of their own, one after another.
#![cfg(feature = "mlx")]

use std::path::{Path, PathBuf};

use super::Work;
use crate::config::MlxConfig;
use crate::device::mlx::{Floats, Mlx};
use crate::device::ops::Device;
use crate::device::{DeviceError, Executor, LogitRows, PageId, SlotId, Span, StateFlow};
use crate::model::{DRAFT, Folder, Resident, TARGET};

fn load(folder: &Folder, memory_limit: Option<u64>) -> Resident<Mlx> {
    let config = MlxConfig { memory_limit, ..MlxConfig::default() };
    let device = Mlx::new(Floats::F32, &config).unwrap();
    let mut executor = Resident::load(device, folder, folder.shape().clone(), "test".into(), 64).unwrap();
    executor.reserve(20, 2).unwrap();
    executor
}

/// Computes tokens `start..end` of a sequence whose pages lie apart, so that keys have to be put together.
fn forward(
    executor: &mut Resident<Mlx>,
    start: usize,
    end: usize,
    logits: LogitRows,
) -> Result<Vec<f32>, DeviceError> {
    let pages: Vec<PageId> = (0..10).map(|n| PageId(2 * n)).collect();
    let tokens: Vec<u32> = (0..640).map(|n| n * 31 % 250).collect();
    let from = (start > 0).then_some(SlotId(0));
    let flow = StateFlow { from, to: SlotId(0), revocable: false };
    let state = (executor.facts().slot_bytes > 0).then_some(flow);
    let span = Span {
        positions: None,
        capture: 0,
        hidden: false,
        pages: &pages,
        start,
        tokens: &tokens[start..end],
        state,
        logits,
    };
    executor.forward(&[span]).map(|forward| forward.logits)
}

#[test]
#[ignore = "run by the last test, alone in a process"]
fn takes_what_is_expected_and_not_much_less() {
    let fixtures = ["llama", "qwen3.5-q4", "odd-hybrid", "odd-moe", "moe-q6"];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let fixtures = fixtures.map(|name| root.join(format!("parity-{name}")));
    let mut wrong = Vec::new();
    for path in fixtures.into_iter().chain([TARGET, DRAFT].map(PathBuf::from)) {
        let folder = Folder::open(&path).unwrap();
        let mut executor = load(&folder, None);
        for (start, end, logits) in [
            (0, 256, LogitRows::None),
            (256, 512, LogitRows::Last),
            (512, 576, LogitRows::All),
            (576, 577, LogitRows::Last),
        ] {
            let before = executor.memory().unwrap().active;
            mlx_rs::memory::reset_peak_memory().unwrap();
            forward(&mut executor, start, end, logits).unwrap();
            let taken = executor.memory().unwrap().peak.saturating_sub(before);
            let work = Work { rows: end - start, spans: 1, end, logits: logits.count(end - start) };
            let expected = folder.shape().work_bytes(work, executor.device.float_bytes());
            let told = format!("{} {start}..{end}: {taken} of {expected} bytes", path.display());
            println!("{told}");
            if taken > expected || expected > 8 * taken + (1 << 20) {
                wrong.push(told);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
#[ignore = "run by the last test, alone in a process"]
fn a_forward_that_would_pass_the_limit_is_refused_and_a_smaller_one_is_not() {
    let before = mlx_rs::memory::memory_limit().unwrap();
    let folder = Folder::open(Path::new(TARGET)).unwrap();
    let expected = {
        let mut free = load(&folder, None);
        forward(&mut free, 0, 256, LogitRows::None).unwrap();
        forward(&mut free, 256, 512, LogitRows::Last).unwrap()
    };
    let work = |rows| folder.shape().work_bytes(Work { rows, spans: 1, end: 512, logits: 1 }, 4);
    // What the executor itself holds, and room for a forward of 128 tokens but none of 256.
    let held = {
        let executor = load(&folder, None);
        executor.memory().unwrap().active
    };
    let limit = held + work(128) + (work(256) - work(128)) / 4;
    let mut executor = load(&folder, Some(limit));
    assert_eq!(executor.memory().unwrap().limit, Some(limit));
    assert_eq!(executor.admits(256, 256), 128);
    assert_eq!(executor.admits(256, 100), 100);
    forward(&mut executor, 0, 128, LogitRows::None).unwrap();
    forward(&mut executor, 128, 256, LogitRows::None).unwrap();
    let refused = forward(&mut executor, 256, 512, LogitRows::Last).unwrap_err();
    assert!(matches!(refused, DeviceError::OutOfMemory { .. }), "{refused}");
    assert!(refused.to_string().contains("256 tokens up to position 512"), "{refused}");
    forward(&mut executor, 256, 384, LogitRows::None).unwrap();
    let got = forward(&mut executor, 384, 512, LogitRows::Last).unwrap();
    let worst = got.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-3, "{worst}");

    // Where even the state does not fit, that is told.
    let config = MlxConfig { memory_limit: Some(1), ..MlxConfig::default() };
    let device = Mlx::new(Floats::F32, &config).unwrap();
    let mut none = Resident::load(device, &folder, folder.shape().clone(), "test".into(), 64).unwrap();
    assert!(matches!(none.reserve(20, 2), Err(DeviceError::OutOfMemory { .. })));
    assert_eq!(none.admits(0, 256), 1, "one token is always tried");
    mlx_rs::memory::set_memory_limit(before).unwrap();
}

#[test]
fn mlx_keeps_to_the_bound_and_the_limit() {
    let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
    alone.args(["model::work::mlx::", "--ignored", "--nocapture", "--test-threads=1"]);
    let out = alone.output().unwrap();
    let told = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    println!("{told}");
    assert!(out.status.success() && told.contains("2 passed"), "{told}");
}
