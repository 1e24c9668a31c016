//! What has been asked of an engine and not been taken yet, as its thread sees it while it computes.
//!
//! A slice of background work looks at it between two layers. So a command that leads to work for somebody, or to the end, waits for a layer at most; one
//! that only asks or sets something waits for the slice, which is short.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use super::Command;
use crate::recovery::arrivals::Announced;

/// A command on its way.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) command: Command,
    /// When it was sent.
    pub(super) at: Instant,
    /// Where it leads to a request: that request's presence, until the request has one of its own.
    pub(super) announced: Option<Announced>,
}

/// Counts of commands that are on their way.
#[derive(Debug, Default)]
pub(super) struct Asked {
    urgent: AtomicUsize,
    closing: AtomicBool,
}

impl Asked {
    /// A command is about to be sent.
    pub(super) fn note(&self, command: &Command) {
        if command.is_urgent() {
            self.urgent.fetch_add(1, Ordering::Relaxed);
        }
        if *command == Command::Shutdown {
            self.closing.store(true, Ordering::Relaxed);
        }
    }

    /// A command has been taken.
    pub(super) fn taken(&self, command: &Command) {
        if command.is_urgent() {
            self.urgent.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether a command waits for which background work gives way.
    pub(super) fn is_urgent(&self) -> bool {
        self.urgent.load(Ordering::Relaxed) > 0
    }

    /// Whether the engine is to end.
    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }
}

impl Command {
    /// Whether it leads to a request.
    pub(super) fn brings_request(&self) -> bool {
        matches!(
            self,
            Command::StepTurn { .. }
                | Command::StepPhase { .. }
                | Command::Run { .. }
                | Command::RunAll
                | Command::Inject { .. }
        )
    }

    /// Whether background work gives way to it at once.
    fn is_urgent(&self) -> bool {
        let ends = matches!(self, Command::Shutdown | Command::Panic | Command::EvictAll);
        ends || self.brings_request() || matches!(self, Command::Recovery { enabled: false })
    }
}
