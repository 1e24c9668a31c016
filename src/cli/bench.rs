//! `bench`: how fast prefill and decode are, and how near decode comes to what the memory delivers.
//!
//! Each prompt length is measured the way inference benches commonly do: a prompt of random tokens is computed from
//! nothing, then a few single tokens after it. It is the device that is measured, without the engine and its cache: no
//! prefill stops where the engine would capture a snapshot. The best of several repetitions counts, since whatever else
//! the machine does can only make a run slower.

pub(super) mod cache;
pub(super) mod engine;
pub(super) mod identity;
mod machine;
pub(super) mod recovery;
mod running;
pub(super) mod sparse;
pub(super) mod speculation;

use std::time::Instant;

use clap::builder::RangedU64ValueParser;
use serde::Serialize;

use self::machine::{ProcessMemory, read_bandwidth};
use super::direct::Sequence;
use super::options::{ArithmeticOptions, ModelOptions};
use super::output::Output;
use super::progress::Progress;
use super::{Example, Failure, examples};
use crate::config::{Config, DeviceKind};
use crate::device::{DeviceError, Executor, ExecutorFacts, LogitRows};
use crate::event::Identity;
use crate::model;
use crate::report::{Align, Table, bytes, or_dash, rate, seconds, thousands};

pub(super) const EXAMPLES: &[Example] = &[
    ("escarp bench", "the bundled model, prompts of 512 and 2,048 tokens"),
    ("escarp bench --model SmolLM2.gguf --sizes 512,2048,6144 --threads 2 --json", "as JSON"),
];

/// Options of `bench`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, after_help = examples(EXAMPLES))]
pub(super) struct Options {
    #[command(subcommand)]
    other: Option<Other>,
    /// Prompt lengths, tokens; each is computed from nothing, without the cache
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "512,2048", value_parser = positive())]
    sizes: Vec<usize>,
    /// Tokens decoded after each prompt
    #[arg(long, value_name = "N", default_value = "32", value_parser = positive())]
    decode: usize,
    /// Repetitions, of which the best counts
    #[arg(long, value_name = "N", default_value = "3", value_parser = positive())]
    repeat: usize,
    #[command(flatten)]
    arithmetic: ArithmeticOptions,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelOptions,
}

/// What else `bench` measures.
#[derive(Debug, clap::Subcommand)]
enum Other {
    /// Measure what changes when the same tokens are computed by another route: logits, likeliest tokens, text.
    Identity(identity::Options),
    /// Measure what a restore costs, from RAM and from the SSD tier, against computing the same tokens.
    Cache(cache::Options),
    /// Measure what the engine adds to a step of many sequences, and what many at once give against one.
    Engine(engine::Options),
    /// Measure what sparse prefill wins on cold prompts, scorer included, and from which length on it wins anything.
    Specprefill(sparse::Options),
    /// Measure what speculative decoding wins, by drafter, depth and kind of text, and whether its prediction holds.
    Speculation(speculation::Options),
    /// Measure what background recovery pays back, what it takes of idle time for that, and how long requests wait for it.
    Recovery(recovery::Options),
}

fn positive() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

/// Everything measured. A figure is null where it was not.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    device: &'static str,
    kernel: String,
    precision: &'static str,
    identity: Identity,
    threads: usize,
    chunk_tokens: usize,
    load_s: f64,
    /// Size of the model's files.
    file_bytes: Option<u64>,
    /// Resident memory that loading added.
    loaded_bytes: Option<u64>,
    /// The most that was ever resident: loading, prompts and state.
    peak_bytes: Option<u64>,
    /// Read bandwidth of main memory. Null on `sim`, which reads none.
    bandwidth_bytes_per_s: Option<f64>,
    runs: Vec<Run>,
}

/// One prompt length.
#[derive(Debug, Serialize)]
struct Run {
    prompt: usize,
    prefill_tps: f64,
    decode_tps: f64,
    /// What a decode step has to move: the weights it computes with, the keys and values of the tokens before it, and the
    /// recurrent state, which is read and written.
    decode_bytes_per_token: Option<u64>,
    /// That, times the speed, over the bandwidth. More than 1 where caches keep a part of it.
    bandwidth_share: Option<f64>,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    match &options.other {
        Some(Other::Identity(options)) => return identity::run(options),
        Some(Other::Cache(options)) => return cache::run(options),
        Some(Other::Engine(options)) => return engine::run(options),
        Some(Other::Specprefill(options)) => return sparse::run(options),
        Some(Other::Speculation(options)) => return speculation::run(options),
        Some(Other::Recovery(options)) => return recovery::run(options),
        None => {}
    }
    let config = options.model.config(options.arithmetic.sugar())?;
    options.model.start_log()?;
    let report = measure(options, &config)?;
    let mut output = Output::stdout();
    if options.json { output.json(&report) } else { output.text(&report.table()) }
}

fn measure(options: &Options, config: &Config) -> Result<Report, Failure> {
    let before = ProcessMemory::now();
    let started = Instant::now();
    let mut loaded = model::load(config)?;
    let load_s = started.elapsed().as_secs_f64();
    let loaded_bytes =
        ProcessMemory::now().resident.zip(before.resident).map(|(now, then)| now.saturating_sub(then));

    let facts = loaded.executor.facts().clone();
    let longest = options.sizes.iter().max().copied().unwrap_or_default() + options.decode;
    if longest > facts.context_tokens {
        let held = facts.context_tokens;
        return Err(Failure::input(format_args!(
            "--sizes: a prompt with its decoded tokens is {longest} tokens long and the context holds {held}; \
             leave longer prompts out"
        )));
    }
    let mut progress = Progress::new();
    let mut speeds = Vec::new();
    for prompt in &options.sizes {
        progress.show(|| format!("prompt of {} tokens", thousands(*prompt as u64)));
        speeds.push(
            best_speeds(&mut *loaded.executor, config.scheduler.chunk_tokens, *prompt, options)
                .map_err(Failure::run)?,
        );
    }
    // Before the bandwidth is measured: its buffer would count.
    let peak_bytes = ProcessMemory::now().peak;
    let threads = match config.model.threads {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        n => n,
    };
    progress.show(|| "memory bandwidth".to_owned());
    let measured = facts.identity != Identity::Simulated;
    let bandwidth = measured.then(|| read_bandwidth(threads));
    let path = config.model.path.as_deref().filter(|_| measured);
    let on_cpu = config.model.device.kind() == DeviceKind::Cpu;
    let precision = on_cpu.then(|| config.model.precision.on_cpu());
    let weights = path.map(|path| model::weight_bytes_per_token(path, precision));
    let weight_bytes = weights.transpose()?.flatten();
    let runs = options.sizes.iter().zip(speeds);
    let runs =
        runs.map(|(prompt, speed)| Run::new(*prompt, options.decode, speed, &facts, weight_bytes, bandwidth));
    Ok(Report {
        model: facts.model.clone(),
        device: facts.device,
        kernel: facts.kernel.clone(),
        precision: facts.precision,
        identity: facts.identity,
        threads,
        chunk_tokens: config.scheduler.chunk_tokens,
        load_s,
        file_bytes: path.and_then(model::size_of_files),
        loaded_bytes,
        peak_bytes,
        bandwidth_bytes_per_s: bandwidth,
        runs: runs.collect(),
    })
}

/// Tokens a second.
#[derive(Debug, Clone, Copy)]
struct Speed {
    prefill: f64,
    decode: f64,
}

fn best_speeds(
    executor: &mut dyn Executor,
    chunk_tokens: usize,
    prompt: usize,
    options: &Options,
) -> Result<Speed, DeviceError> {
    let mut random = RandomTokens { state: 1, vocab: executor.facts().vocab };
    let simulated = executor.facts().identity == Identity::Simulated;
    let mut sequence = Sequence::new(executor, prompt + options.decode)?;
    let mut best = Speed { prefill: 0.0, decode: 0.0 };
    for _ in 0..options.repeat {
        sequence.clear();
        let tokens: Vec<u32> = random.by_ref().take(prompt).collect();
        let (body, last) = tokens.split_at((prompt - 1) / chunk_tokens * chunk_tokens);
        let mut took = 0.0;
        for chunk in body.chunks(chunk_tokens) {
            took += timed(&mut sequence, chunk, LogitRows::None, simulated)?;
        }
        took += timed(&mut sequence, last, LogitRows::Last, simulated)?;
        best.prefill = best.prefill.max(prompt as f64 / took);
        let mut took = 0.0;
        for token in random.by_ref().take(options.decode) {
            took += timed(&mut sequence, &[token], LogitRows::Last, simulated)?;
        }
        best.decode = best.decode.max(options.decode as f64 / took);
    }
    Ok(best)
}

/// Seconds one forward takes: of real time, or on `sim` what the cost model says.
fn timed(
    sequence: &mut Sequence<'_>,
    tokens: &[u32],
    logits: LogitRows,
    simulated: bool,
) -> Result<f64, DeviceError> {
    let started = Instant::now();
    let forward = sequence.extend(tokens, logits)?;
    Ok(if simulated { forward.compute.seconds() } else { started.elapsed().as_secs_f64() })
}

/// An endless, reproducible stream of token ids (SplitMix64).
struct RandomTokens {
    state: u64,
    vocab: usize,
}

impl Iterator for RandomTokens {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from((mixed ^ (mixed >> 31)) % self.vocab as u64).ok()
    }
}

impl Run {
    fn new(
        prompt: usize,
        decoded: usize,
        speed: Speed,
        facts: &ExecutorFacts,
        weight_bytes: Option<u64>,
        bandwidth: Option<f64>,
    ) -> Run {
        let depth = prompt + decoded / 2;
        let attention = facts.page_bytes / facts.page_tokens.max(1) * depth;
        let recurrent = 2 * facts.slot_bytes;
        let decode_bytes_per_token = weight_bytes.map(|weights| weights + (attention + recurrent) as u64);
        Run {
            prompt,
            prefill_tps: speed.prefill,
            decode_tps: speed.decode,
            decode_bytes_per_token,
            bandwidth_share: decode_bytes_per_token
                .zip(bandwidth)
                .map(|(b, full)| b as f64 * speed.decode / full),
        }
    }
}

impl Report {
    fn table(&self) -> String {
        let mut table = Table::new(&[
            ("prompt", Align::Right),
            ("prefill tok/s", Align::Right),
            ("decode tok/s", Align::Right),
            ("moved a token", Align::Right),
            ("of bandwidth", Align::Right),
        ]);
        for run in &self.runs {
            table.row([
                thousands(run.prompt as u64),
                rate(run.prefill_tps),
                rate(run.decode_tps),
                or_dash(run.decode_bytes_per_token, bytes),
                or_dash(run.bandwidth_share, |share| format!("{:.0} %", share * 100.0)),
            ]);
        }
        let Report { model, device, kernel, precision, identity, threads, chunk_tokens, .. } = self;
        format!(
            "{model} {precision} · {device} {kernel} {} · threads {threads} · chunks of {chunk_tokens}\n\
             load {} · file {} · loading added {} · peak {} · memory reads {}\n\n{table}",
            identity.word(),
            seconds(self.load_s),
            or_dash(self.file_bytes, bytes),
            or_dash(self.loaded_bytes, bytes),
            or_dash(self.peak_bytes, bytes),
            or_dash(self.bandwidth_bytes_per_s, |b| format!("{:.1} GB/s", b / 1e9)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decoded_token_moves_weights_keys_values_and_twice_the_recurrent_state() {
        let hybrid = crate::config::SimConfig {
            state_bytes_per_token: 10,
            snapshot_bytes: 1_000,
            ..Default::default()
        };
        let sim = crate::device::sim::Sim::new(&hybrid, 64);
        let speed = Speed { prefill: 1.0, decode: 10.0 };
        let run = |weights| Run::new(500, 20, speed, sim.facts(), weights, Some(1e6));
        let known = run(Some(7));
        assert_eq!(known.decode_bytes_per_token, Some(7 + 510 * 10 + 2 * 1_000));
        assert_eq!(known.bandwidth_share, Some(71_070.0 / 1e6));
        let unknown = run(None);
        assert_eq!((unknown.decode_bytes_per_token, unknown.bandwidth_share), (None, None));
    }

    #[test]
    fn random_tokens_repeat_and_stay_in_the_vocabulary() {
        let stream = || RandomTokens { state: 1, vocab: 1000 };
        let tokens: Vec<_> = stream().take(10_000).collect();
        assert!(tokens.iter().all(|t| *t < 1000));
        assert!(tokens.iter().collect::<std::collections::BTreeSet<_>>().len() > 990);
        assert_eq!(tokens, stream().take(10_000).collect::<Vec<_>>());
    }
}
