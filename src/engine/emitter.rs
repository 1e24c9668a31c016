//! Numbering and stamping events on their way out, and watching them for breakpoints.

use super::watch::{Hit, Watch};
use crate::event::{Body, Event, LaneId, RequestId, Scored, Sink, Stamp};
use crate::ledger::Breakpoint;

/// Gives events their sequence numbers and hands them to the sink.
pub(super) struct Emitter {
    sink: Box<dyn Sink>,
    next: u64,
    watch: Watch,
}

impl Emitter {
    pub(super) fn new(sink: Box<dyn Sink>) -> Emitter {
        Emitter { sink, next: 0, watch: Watch::default() }
    }

    pub(super) fn emit(&mut self, at: Stamp, lane: Option<LaneId>, request: Option<RequestId>, body: Body) {
        let event = Event { seq: self.next, at, lane, request, body };
        self.next += 1;
        log(&event);
        self.watch.see(&event);
        self.sink.emit(&event);
    }

    /// Watches for these conditions from now on, in place of those before.
    pub(super) fn break_at(&mut self, conditions: Vec<Breakpoint>) {
        self.watch.set(conditions);
    }

    /// What a request's scoring chose, if it was scored.
    pub(super) fn scored(&self, request: RequestId) -> Option<&Scored> {
        self.watch.scored(request)
    }

    /// Conditions that have come true since the last call.
    pub(super) fn take_hits(&mut self) -> Vec<Hit> {
        self.watch.take_hits()
    }
}

/// Writes the few events that a log's reader would look for into the log.
fn log(event: &Event) {
    let request = event.request.map(|r| r.0);
    let at = event.at.seconds();
    match &event.body {
        Body::RunStarted(run) => {
            tracing::info!(model = run.model, device = run.device, kernel = run.kernel, "run started");
        }
        Body::SessionCut { kept_requests, of_requests, prompt_tokens, context_tokens } => {
            tracing::warn!(kept_requests, of_requests, prompt_tokens, context_tokens, "session cut");
        }
        Body::Restored(restore) => {
            tracing::info!(at, request, checkpoint = restore.checkpoint_tokens, cause = ?restore.cause, "restored");
        }
        Body::Stored { stored_tokens, evicted_blocks, .. } => {
            tracing::info!(at, request, stored_tokens, evicted_blocks, "stored");
        }
        Body::Finished { reason, took } => {
            tracing::info!(at, request, reason = reason.word(), seconds = took.seconds(), "finished");
        }
        Body::Failed { message } => tracing::error!(at, request, message, "request failed"),
        Body::StalePage { count } => tracing::error!(at, request, count, "stale page"),
        Body::EngineFailed { message } => tracing::error!(message, "engine failed"),
        _ => {}
    }
}
