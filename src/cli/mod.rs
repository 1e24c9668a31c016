//! The command line: one file a subcommand.
//!
//! Options that several commands share are in `options`; each is sugar for a configuration key, so a flag, a
//! `--set` and a line of a configuration file mean the same and are checked in one place. A command either does its
//! work or ends in a [`Failure`], which decides the exit code: 2 for bad input, 1 for a run that failed.

mod bench;
mod compare;
mod completions;
mod direct;
mod failure;
mod faults;
mod inspect;
mod launch;
mod logging;
mod logits;
mod options;
mod output;
mod progress;
mod replay;
mod report;
mod tui;

use clap::{Parser, Subcommand};

pub use failure::Failure;

/// What was typed.
#[derive(Debug, Parser)]
#[command(
    name = "escarp",
    version,
    about = "A terminal workbench for inference research: what does an optimisation leave behind for the next request?",
    args_conflicts_with_subcommands = true,
    max_term_width = 100,
    after_help = examples(EXAMPLES)
)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    tui: tui::Options,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Replay a session in the interface (the default).
    Tui(tui::Options),
    /// Replay a session without a terminal and print one row a request.
    Replay(replay::Options),
    /// Replay a session in several lanes side by side, dense and sparse among them, and say who was faster and what is owed.
    Compare(compare::Options),
    /// Write a report of recorded runs, with charts: one run, or lanes of the same session.
    Report(report::Options),
    /// Say what a model, a session, a recording or a cache folder contains.
    Inspect(inspect::Options),
    /// Print the logits of a token sequence.
    Logits(logits::Options),
    /// Measure prefill and decode speed, memory, and the share of memory bandwidth.
    Bench(bench::Options),
    /// Print a shell's completion script.
    Completions(completions::Options),
}

/// Runs the command in `args` to its end.
pub fn run(args: Args) -> Result<(), Failure> {
    match args.command.unwrap_or(Command::Tui(args.tui)) {
        Command::Tui(options) => tui::run(&options),
        Command::Replay(options) => replay::run(&options),
        Command::Compare(options) => compare::run(&options),
        Command::Report(options) => report::run(&options),
        Command::Inspect(options) => inspect::run(&options),
        Command::Logits(options) => logits::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Completions(options) => completions::run(&options),
    }
}

/// A command line that `--help` shows, and what it does. Tests parse all of them.
type Example = (&'static str, &'static str);

const EXAMPLES: &[Example] = &[
    ("escarp --device sim --session steady", "open the workbench without a model file"),
    ("escarp --model SmolLM2.gguf --session steady", "open it on a real model"),
    ("escarp replay --model SmolLM2.gguf --session tools-change", "the same, as a table"),
];

fn examples(examples: &[Example]) -> String {
    examples
        .iter()
        .fold(String::from("Examples:"), |text, (line, does)| text + "\n  # " + does + "\n  " + line)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn every_example_parses() {
        let all = [
            EXAMPLES,
            tui::EXAMPLES,
            replay::EXAMPLES,
            compare::EXAMPLES,
            report::EXAMPLES,
            inspect::EXAMPLES,
            logits::EXAMPLES,
            bench::EXAMPLES,
            bench::identity::EXAMPLES,
            bench::cache::EXAMPLES,
            bench::engine::EXAMPLES,
            bench::sparse::EXAMPLES,
            bench::speculation::EXAMPLES,
            bench::recovery::EXAMPLES,
            completions::EXAMPLES,
        ];
        for (line, _) in all.into_iter().flatten() {
            if let Err(error) = Args::try_parse_from(line.split_whitespace()) {
                panic!("{line}\n{error}");
            }
        }
    }

    #[test]
    fn every_command_shows_an_example() {
        let mut command = Args::command();
        command.build();
        check_examples("escarp", &command);
    }

    fn check_examples(of: &str, command: &clap::Command) {
        for sub in command.get_subcommands().filter(|c| c.get_name() != "help") {
            let name = format!("{of} {}", sub.get_name());
            let help = sub.get_after_help().map(|h| h.to_string()).unwrap_or_default();
            assert!(help.contains(&name), "{name}: {help}");
            check_examples(&name, sub);
        }
    }

    #[test]
    fn no_subcommand_means_tui() {
        let args = Args::try_parse_from(["escarp", "--device", "sim"]).unwrap();
        assert!(args.command.is_none());
        assert!(Args::try_parse_from(["escarp", "--device", "sim", "replay"]).is_err());
    }
}
