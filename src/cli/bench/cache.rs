//! `bench cache`: what a restore costs against computing the same tokens, from RAM and from the SSD tier, through the engine itself.
//!
//! One prompt is computed from nothing, restored from RAM by forks that ask the same again, and restored from disk by engines that are
//! started anew on the folder it was kept in, after the system was asked to drop the files from its page cache. What a lookup and what the
//! checks of generation tags cost is measured by themselves, on a cache with as many blocks.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueHint;
use serde::Serialize;

use super::super::options::ModelOptions;
use super::super::output::Output;
use super::super::progress::Progress;
use super::super::{Example, Failure, examples};
use super::running::{Running, session_of};
use crate::cache::Cache;
use crate::cache::budget::{Budget, DeviceLimits};
use crate::cache::chain::Identity;
use crate::config::{Config, Override};
use crate::event::{LaneId, RequestId, Restore, Route, Stamp};
use crate::report::{Align, Table, bytes, or_dash, seconds, thousands};

pub(in crate::cli) const EXAMPLES: &[Example] = &[
    ("escarp bench cache", "a prompt of about 24,000 tokens, in a temporary folder"),
    ("escarp bench cache --tokens 6000 --folder /mnt/ssd/cache-bench", "on a disk of your choice"),
];

/// Options of `bench cache`.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(in crate::cli) struct Options {
    /// Length of the prompt, tokens, about
    #[arg(long, value_name = "N", default_value = "24000", value_parser = super::positive())]
    tokens: usize,
    /// Repetitions of each restore; the median counts
    #[arg(long, value_name = "N", default_value = "5", value_parser = super::positive())]
    repeat: usize,
    /// The folder to keep blocks in: it must not exist, and is removed afterwards [default: one in the system's temporary folder]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    folder: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelOptions,
}

/// Everything measured. A figure is null where it was not.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    device: String,
    kernel: String,
    precision: String,
    block_tokens: u64,
    prompt_tokens: u64,
    /// Computing the prompt from nothing.
    prefill_s: f64,
    /// A decode step behind it, mean.
    decode_step_s: f64,
    ram: Source,
    ssd: Source,
    /// Bytes read from the disk.
    ssd_bytes: u64,
    /// Whether the system dropped the files from its page cache before they were read.
    page_cache_dropped: bool,
    /// Naming and looking up every block of such a prompt.
    lookup_s: f64,
    /// Checking the generation tag of every page of such a sequence, as every step does.
    generation_checks_s: f64,
    generation_checks_of_decode: f64,
}

/// A tier.
#[derive(Debug, Serialize)]
struct Source {
    restored_tokens: u64,
    restore_s: f64,
    /// Against computing the same tokens.
    of_prefill: f64,
}

pub(in crate::cli) fn run(options: &Options) -> Result<(), Failure> {
    let folder = match &options.folder {
        Some(folder) if folder.exists() => {
            return Err(Failure::input(format_args!(
                "--folder: {} exists; name one that does not, it is removed afterwards",
                folder.display()
            )));
        }
        Some(folder) => folder.clone(),
        None => std::env::temp_dir().join(format!("escarp-bench-cache-{}", std::process::id())),
    };
    let dir = folder.to_str().ok_or_else(|| Failure::input("--folder: not UTF-8; rename it"))?;
    let sugar = [
        Override::new("--folder", "cache.dir", dir),
        Override::new("bench cache", "replay.clock", "virtual"),
        Override::new("bench cache", "sampling.temperature", 0.0),
    ];
    let config = options.model.config(sugar)?;
    options.model.start_log()?;
    let measured = measure(options, &config, &folder);
    // What is left of the folder after a failed run is of no use either.
    let _ = std::fs::remove_dir_all(&folder);
    let report = measured?;
    let mut output = Output::stdout();
    if options.json { output.json(&report) } else { output.text(&report.table()) }
}

fn measure(options: &Options, config: &Config, folder: &Path) -> Result<Report, Failure> {
    let mut progress = Progress::new();
    progress.show(|| "loading the model".to_owned());
    let session = Arc::new(session_of(options.tokens, config)?);
    progress.show(|| "computing the prompt from nothing".to_owned());
    let mut first = Running::start(config, &session)?;
    let cold = first.turn(LaneId(0))?;
    let mut warm = Vec::new();
    for repeat in 0..options.repeat {
        progress.show(|| format!("from RAM, {} of {}", repeat + 1, options.repeat));
        let lane = first.fork_same(&session)?;
        warm.push(first.turn(lane)?.restore);
    }
    let run = first.end()?;
    let mut read = Vec::new();
    let mut dropped = true;
    for repeat in 0..options.repeat {
        progress.show(|| format!("from disk, {} of {}", repeat + 1, options.repeat));
        dropped &= drop_from_page_cache(folder);
        let mut again = Running::start(config, &session)?;
        read.push(again.turn(LaneId(0))?.restore);
        again.end()?;
    }
    progress.wipe();
    let full = cold.prefill.seconds();
    let ssd_bytes = read.first().and_then(|restore| restore.ssd).map_or(0, |ssd| ssd.bytes);
    let blocks = usize::try_from(cold.prompt_tokens / run.block_tokens.max(1)).unwrap_or(usize::MAX);
    let (lookup, checks) = by_themselves(blocks.max(1), run.block_tokens as usize);
    let decode_step_s = cold.decode_step_s;
    Ok(Report {
        ram: Source::of(&warm, full, cold.prompt_tokens)?,
        ssd: Source::of(&read, full, cold.prompt_tokens)?,
        model: run.model,
        device: run.device,
        kernel: run.kernel,
        precision: run.precision,
        block_tokens: run.block_tokens,
        prompt_tokens: cold.prompt_tokens,
        prefill_s: full,
        decode_step_s,
        ssd_bytes,
        page_cache_dropped: dropped,
        lookup_s: lookup.as_secs_f64(),
        generation_checks_s: checks.as_secs_f64(),
        generation_checks_of_decode: checks.as_secs_f64() / decode_step_s,
    })
}

impl Source {
    fn of(restores: &[Restore], prefill_s: f64, prompt_tokens: u64) -> Result<Source, Failure> {
        let mut took: Vec<f64> = restores.iter().map(|restore| restore.took.seconds()).collect();
        took.sort_by(f64::total_cmp);
        let restored = restores.iter().map(|restore| restore.checkpoint_tokens).min().unwrap_or(0);
        if restored == 0 {
            return Err(Failure::run(
                "nothing was restored: `cache.ram_bytes` or `cache.ssd_bytes` has no room for the prompt",
            ));
        }
        let restore_s = took[took.len() / 2];
        // Tokens are computed dearer the deeper they stand, so this share is on the high side by what the last tokens cost.
        let computed_s = prefill_s * restored as f64 / prompt_tokens as f64;
        Ok(Source { restored_tokens: restored, restore_s, of_prefill: restore_s / computed_s })
    }
}

/// What a lookup of `blocks` blocks takes, and what checking as many generation tags takes.
fn by_themselves(blocks: usize, block_tokens: usize) -> (Duration, Duration) {
    let identity =
        Identity { model: [0; 32], text: [0; 32], precision: "none", family: "none", block_tokens };
    let budget = Budget {
        limit_bytes: u64::MAX,
        page_bytes: 1,
        slot_bytes: 0,
        sequences: 1,
        context_pages: blocks,
        device: DeviceLimits::default(),
    };
    let mut cache = Cache::new(&identity, block_tokens, budget);
    let tokens: Vec<u32> = (0..blocks * block_tokens).map(|n| n as u32).collect();
    let mut pages = Vec::new();
    while pages.len() < blocks {
        match cache.allocate(RequestId(1), pages.last().copied(), Stamp(0)) {
            Ok(page) => pages.push(page),
            Err(_) => break,
        }
    }
    cache.store(&tokens, &pages, &[], RequestId(1), Route::Dense, Stamp(0));
    let lookup = best(|| {
        std::hint::black_box(cache.look_up(&tokens));
    });
    let checks = best(|| {
        let fresh = pages.iter().all(|page| cache.check(*page).is_ok());
        std::hint::black_box(fresh);
    });
    (lookup, checks)
}

/// The best of many.
fn best(mut work: impl FnMut()) -> Duration {
    let timed = |_| {
        let began = Instant::now();
        work();
        began.elapsed()
    };
    (0..50).map(timed).min().unwrap_or_default()
}

/// Asks the system to forget the contents of all files in a folder that it has written. `false` where it cannot be asked.
fn drop_from_page_cache(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().all(|entry| {
        let path = entry.path();
        if path.is_dir() { drop_from_page_cache(&path) } else { drop_file(&path) }
    })
}

#[cfg(target_os = "linux")]
fn drop_file(path: &Path) -> bool {
    use rustix::fs::{Advice, fadvise};
    let Ok(file) = std::fs::File::open(path) else { return false };
    fadvise(&file, 0, None, Advice::DontNeed).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn drop_file(_: &Path) -> bool {
    false
}

/// A time that may be far below a microsecond.
fn nanoseconds(time: f64) -> String {
    if time < 1e-6 { format!("{:.0} ns", time * 1e9) } else { seconds(time) }
}

impl Report {
    fn table(&self) -> String {
        let mut table = Table::new(&[
            ("from", Align::Left),
            ("tokens", Align::Right),
            ("takes", Align::Right),
            ("of prefill", Align::Right),
            ("bound", Align::Right),
        ]);
        let share = |share: f64| format!("{:.2} %", share * 100.0);
        let prefill = seconds(self.prefill_s);
        table.row([
            "nothing".to_owned(),
            thousands(self.prompt_tokens),
            prefill,
            "100 %".to_owned(),
            String::new(),
        ]);
        for (name, source, bound) in [("RAM", &self.ram, "1 %"), ("SSD", &self.ssd, "10 %")] {
            table.row([
                name.to_owned(),
                thousands(source.restored_tokens),
                seconds(source.restore_s),
                share(source.of_prefill),
                bound.to_owned(),
            ]);
        }
        let Report { model, device, kernel, precision, .. } = self;
        let dropped = match self.page_cache_dropped {
            true => "dropped from the page cache before",
            false => "not dropped from the page cache before",
        };
        let rate = (self.ssd.restore_s > 0.0).then(|| self.ssd_bytes as f64 / self.ssd.restore_s / 1e6);
        format!(
            "{model} {precision} · {device} {kernel} · blocks of {}\n\n{table}\n\
             read from disk {}, {}, files {dropped}\n\
             lookup of all its blocks {} (bound 1 ms) · generation checks of a decode step {}, {} of the step's {} (bound 1 %)\n",
            self.block_tokens,
            bytes(self.ssd_bytes),
            or_dash(rate, |rate| format!("{rate:.0} MB/s")),
            seconds(self.lookup_s),
            nanoseconds(self.generation_checks_s),
            share(self.generation_checks_of_decode),
            seconds(self.decode_step_s),
        )
    }
}
