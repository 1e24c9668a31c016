//! One line on standard error that says how far a long command is.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use crate::report::printable;

/// A command that ends sooner shows no progress.
const QUIET_FOR: Duration = Duration::from_millis(500);
/// The line. Shown only on a terminal; wiped when dropped.
pub(super) struct Progress {
    enabled: bool,
    due: Instant,
    shown: bool,
}

impl Progress {
    /// The shortest time between two changes of the line.
    pub(super) const PACE: Duration = Duration::from_millis(100);

    /// Nothing is shown yet.
    pub(super) fn new() -> Progress {
        Progress { enabled: stderr().is_terminal(), due: Instant::now() + QUIET_FOR, shown: false }
    }

    /// Shows `line` in place of the one before, if it is time for that.
    pub(super) fn show(&mut self, line: impl FnOnce() -> String) {
        if !self.enabled || Instant::now() < self.due {
            return;
        }
        self.due = Instant::now() + Progress::PACE;
        self.shown = true;
        // Progress that cannot be shown must not end the command.
        let _ = write!(stderr(), "\r\x1b[K{}", printable(&line()));
    }

    /// Wipes the line, so that something else can be written.
    pub(super) fn wipe(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.wipe();
    }
}
