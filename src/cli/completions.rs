//! `completions`: a shell's completion script.

use clap::CommandFactory;
use clap_complete::Shell;

use super::output::Output;
use super::{Args, Example, Failure, examples};

pub(super) const EXAMPLES: &[Example] = &[
    ("escarp completions bash", "print the script for bash; source it from ~/.bashrc"),
    ("escarp completions fish", "print the script for fish"),
];

/// Options of `completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(super) struct Options {
    /// The shell.
    shell: Shell,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Args::command(), "escarp", &mut script);
    Output::stdout().text(&String::from_utf8_lossy(&script))
}
