//! `bench engine`: what the engine adds to a step of many sequences, and what many at once give against one.

use serde::Serialize;

use super::super::options::{ArithmeticOptions, ModelOptions};
use super::super::output::Output;
use super::super::progress::Progress;
use super::super::{Example, Failure, examples};
use crate::config::{Config, DeviceSetting};
use crate::engine::measure::{Steps, Workload, decode_together};
use crate::model;
use crate::report::{Align, Table, or_dash, rate};

pub(in crate::cli) const EXAMPLES: &[Example] = &[
    (
        "escarp bench engine",
        "the scheduler's own time on `sim`, then the bundled model from 1 to 16 sequences",
    ),
    ("escarp bench engine --model Qwen3-0.6B --sequences 1,4,16,32 --steps 40 --json", "as JSON"),
];

/// Microseconds a step that the engine may add with [`Options::bookkeeping`] sequences.
const HOST_BAR_US: f64 = 50.0;

/// By how much 16 sequences are to be faster than one.
const RATIO_BAR: f64 = 4.0;

/// Options of `bench engine`.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(in crate::cli) struct Options {
    /// Sequences that decode at once; all are measured in turn, over and over
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,2,4,8,16", value_parser = super::positive())]
    sequences: Vec<usize>,
    /// Tokens of each prompt
    #[arg(long, value_name = "N", default_value = "64", value_parser = super::positive())]
    prompt: usize,
    /// Steps measured in a turn
    #[arg(long, value_name = "N", default_value = "24", value_parser = super::positive())]
    steps: usize,
    /// Turns
    #[arg(long, value_name = "N", default_value = "3", value_parser = super::positive())]
    repeat: usize,
    /// Sequences that decode on `sim` while the scheduler's own time is measured
    #[arg(long, value_name = "N", default_value = "64", value_parser = super::positive())]
    bookkeeping: usize,
    #[command(flatten)]
    arithmetic: ArithmeticOptions,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelOptions,
}

/// Everything measured. A figure is null where it was not.
#[derive(Debug, Serialize)]
struct Report {
    bookkeeping: Bookkeeping,
    model: String,
    device: &'static str,
    kernel: String,
    precision: &'static str,
    prompt_tokens: usize,
    throughput: Vec<Throughput>,
    /// The ratio that 16 sequences are to reach.
    ratio_bar: f64,
}

/// A step's time that is not the executor's, on `sim`.
#[derive(Debug, Serialize)]
struct Bookkeeping {
    sequences: usize,
    steps: u64,
    p50_us: Option<f64>,
    p90_us: Option<f64>,
    p99_us: Option<f64>,
    max_us: Option<f64>,
    /// The median that is not to be exceeded.
    bar_us: f64,
}

/// So many sequences on the model.
#[derive(Debug, Serialize)]
struct Throughput {
    sequences: usize,
    steps: u64,
    tokens_per_s: Option<f64>,
    /// Against one sequence; null where one was not measured.
    ratio: Option<f64>,
    /// A step, mean.
    step_s: Option<f64>,
    /// Of that, in the executor: products, attention, recurrent layers.
    executor_s: Option<f64>,
    /// In choosing tokens.
    sampling_s: Option<f64>,
    /// In bookkeeping.
    host_s: Option<f64>,
}

impl Bookkeeping {
    fn of(sequences: usize, steps: &Steps) -> Bookkeeping {
        let points = steps.host.quantiles();
        let us = |point: Option<crate::event::Nanos>| point.map(|point| point.0 as f64 / 1e3);
        Bookkeeping {
            sequences,
            steps: steps.steps,
            p50_us: us(points.map(|points| points.p50)),
            p90_us: us(points.map(|points| points.p90)),
            p99_us: us(points.map(|points| points.p99)),
            max_us: us(points.map(|points| points.max)),
            bar_us: HOST_BAR_US,
        }
    }
}

impl Throughput {
    fn of(sequences: usize, steps: &Steps, one: Option<f64>) -> Throughput {
        let tokens_per_s = steps.tokens_per_s();
        let parts = steps.of_a_step();
        let part = |index: usize| parts.map(|parts| parts[index]);
        Throughput {
            sequences,
            steps: steps.steps,
            tokens_per_s,
            ratio: tokens_per_s.zip(one).map(|(many, one)| many / one),
            step_s: part(0),
            executor_s: part(1),
            sampling_s: part(2),
            host_s: part(3),
        }
    }
}

pub(in crate::cli) fn run(options: &Options) -> Result<(), Failure> {
    let config = options.model.config(options.arithmetic.sugar())?;
    options.model.start_log()?;
    let report = measure(options, &config)?;
    let mut output = Output::stdout();
    if options.json { output.json(&report) } else { output.text(&report.table()) }
}

fn measure(options: &Options, config: &Config) -> Result<Report, Failure> {
    let mut progress = Progress::new();
    let bookkeeping = bookkeeping(options, &mut progress)?;
    progress.show(|| "loading the model".to_owned());
    let loaded = model::load(config)?;
    let facts = loaded.executor.facts().clone();
    let longest = options.prompt + 2 * options.steps + 256;
    if longest > facts.context_tokens {
        return Err(Failure::input(format_args!(
            "--prompt, --steps: a sequence of {longest} tokens does not fit the context of {}; ask for fewer",
            facts.context_tokens
        )));
    }
    let Options { sequences, prompt, steps, repeat, .. } = options;
    let workload = Workload { sequences, prompt_tokens: *prompt, steps: *steps, repeat: *repeat };
    let told = |sequences: usize| progress.show(|| format!("{sequences} sequences at once"));
    let measured = decode_together(loaded, config, workload, told).map_err(Failure::run)?;
    let one = measured.get(&1).and_then(Steps::tokens_per_s);
    let throughput = measured.iter().map(|(sequences, steps)| Throughput::of(*sequences, steps, one));
    Ok(Report {
        bookkeeping,
        model: facts.model.clone(),
        device: facts.device,
        kernel: facts.kernel.clone(),
        precision: facts.precision,
        prompt_tokens: *prompt,
        throughput: throughput.collect(),
        ratio_bar: RATIO_BAR,
    })
}

fn bookkeeping(options: &Options, progress: &mut Progress) -> Result<Bookkeeping, Failure> {
    const STEPS: usize = 400;
    let mut config = Config::default();
    config.model.device = DeviceSetting::Sim;
    config.model.path = None;
    let sequences = [options.bookkeeping];
    let workload =
        Workload { sequences: &sequences, prompt_tokens: 200, steps: STEPS, repeat: options.repeat };
    let told = |sequences: usize| progress.show(|| format!("bookkeeping of {sequences} sequences"));
    let measured = decode_together(model::load(&config)?, &config, workload, told).map_err(Failure::run)?;
    let steps = measured.get(&options.bookkeeping).ok_or_else(|| Failure::run("no step was measured"))?;
    Ok(Bookkeeping::of(options.bookkeeping, steps))
}

impl Report {
    fn table(&self) -> String {
        let Bookkeeping { sequences, steps, p50_us, p90_us, p99_us, max_us, bar_us } = &self.bookkeeping;
        let us = |value: &Option<f64>| or_dash(*value, |us| format!("{us:.0} µs"));
        let mut table = Table::new(&[
            ("sequences", Align::Right),
            ("tok/s", Align::Right),
            ("against one", Align::Right),
            ("a step", Align::Right),
            ("executor", Align::Right),
            ("sampling", Align::Right),
            ("bookkeeping", Align::Right),
        ]);
        let ms = |value: Option<f64>| or_dash(value, |s| format!("{:.3} ms", s * 1e3));
        for run in &self.throughput {
            table.row([
                run.sequences.to_string(),
                or_dash(run.tokens_per_s, rate),
                or_dash(run.ratio, |ratio| format!("{ratio:.2} ×")),
                ms(run.step_s),
                ms(run.executor_s),
                ms(run.sampling_s),
                ms(run.host_s),
            ]);
        }
        let Report { model, device, kernel, precision, prompt_tokens, ratio_bar, .. } = self;
        format!(
            "a step's time outside of the executor, {sequences} sequences decoding on sim, {steps} steps: \
             p50 {} · p90 {} · p99 {} · max {} (p50 to stay below {bar_us:.0} µs)\n\n\
             {model} {precision} · {device} {kernel} · prompts of {prompt_tokens} tokens, all decoding \
             (16 sequences to reach {ratio_bar:.1} × one)\n\n{table}",
            us(p50_us),
            us(p90_us),
            us(p99_us),
            us(max_us),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_a_dash() {
        let report = Report {
            bookkeeping: Bookkeeping::of(64, &Steps::default()),
            model: "m".to_owned(),
            device: "sim",
            kernel: "none".to_owned(),
            precision: "none",
            prompt_tokens: 5,
            throughput: vec![Throughput::of(4, &Steps::default(), None)],
            ratio_bar: RATIO_BAR,
        };
        let table = report.table();
        assert!(table.contains("p50 – · p90 – · p99 – · max –"), "{table}");
        let row = table.lines().last().unwrap();
        assert_eq!(row.matches('–').count(), 6, "{row}");
    }
}
