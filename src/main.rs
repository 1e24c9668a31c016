//! The `escarp` binary: parse, run, exit code. Everything else is in the library.

use std::process::ExitCode;

use clap::Parser;
use escarp::cli::{self, Args};

fn main() -> ExitCode {
    match cli::run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
