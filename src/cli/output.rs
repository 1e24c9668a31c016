//! Standard output, written so that a closed pipe ends the command quietly.

use std::io::{self, BufWriter, ErrorKind, Write};

use serde::Serialize;

use super::Failure;

/// Standard output, locked and buffered.
pub(super) struct Output(BufWriter<io::StdoutLock<'static>>);

impl Output {
    /// Locks standard output.
    pub(super) fn stdout() -> Output {
        Output(BufWriter::new(io::stdout().lock()))
    }

    /// Writes `text` and flushes.
    pub(super) fn text(&mut self, text: &str) -> Result<(), Failure> {
        self.0.write_all(text.as_bytes()).and_then(|()| self.0.flush()).map_err(write_failure)
    }

    /// Writes `value` as one line of JSON and flushes.
    pub(super) fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let line = serde_json::to_string(value).map_err(Failure::run)?;
        self.text(&(line + "\n"))
    }
}

fn write_failure(error: io::Error) -> Failure {
    match error.kind() {
        ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::run(format_args!("standard output: {error}")),
    }
}
