//! Why a command did not do its work, and the exit code that says so.

use std::process::ExitCode;

use crate::cache::tier::TierError;
use crate::compare::BadLane;
use crate::config::ConfigError;
use crate::event::record::RecordError;
use crate::model::ModelError;
use crate::report::printable;
use crate::session::file::SessionError;
use crate::tui::TuiError;

/// Why a command ended early.
#[derive(Debug)]
pub enum Failure {
    /// Something that came from outside is wrong: an option, a configuration, a model, a session. Exit code 2.
    Input(String),
    /// The input was fine and the run failed all the same. Exit code 1.
    Run(String),
    /// Whoever read standard output has gone, for example `head`. Not an error; exit code 0.
    OutputClosed,
    /// A signal asked the interface to end. Exit code 128 plus its number, as shells count.
    Signal(i32),
}

impl Failure {
    /// Bad input, in one sentence that names what is wrong and what to do.
    pub(super) fn input(message: impl std::fmt::Display) -> Failure {
        Failure::Input(message.to_string())
    }

    /// A failed run, in one sentence.
    pub(super) fn run(message: impl std::fmt::Display) -> Failure {
        Failure::Run(message.to_string())
    }

    /// Prints the failure to standard error and gives the process's exit code.
    pub fn report(self) -> ExitCode {
        let (message, code) = match self {
            Failure::OutputClosed => return ExitCode::SUCCESS,
            Failure::Signal(number) => return ExitCode::from(u8::try_from(128 + number).unwrap_or(1)),
            Failure::Input(message) => (message, 2),
            Failure::Run(message) => (message, 1),
        };
        // The message may quote a hostile file; the terminal must not act on it.
        eprintln!("escarp: {}", printable(&message));
        ExitCode::from(code)
    }
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Failure {
        Failure::input(error)
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Failure {
        Failure::input(error)
    }
}

impl From<BadLane> for Failure {
    fn from(error: BadLane) -> Failure {
        Failure::input(error)
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Failure {
        Failure::input(error)
    }
}

impl From<RecordError> for Failure {
    fn from(error: RecordError) -> Failure {
        Failure::input(error)
    }
}

impl From<TierError> for Failure {
    fn from(error: TierError) -> Failure {
        Failure::input(error)
    }
}

impl From<TuiError> for Failure {
    fn from(error: TuiError) -> Failure {
        match error {
            TuiError::NoTerminal(_) | TuiError::LogFile { .. } => Failure::input(error),
            TuiError::Terminal(_) | TuiError::Provoked => Failure::run(error),
        }
    }
}
