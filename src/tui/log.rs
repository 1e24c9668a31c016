//! The program's own log, kept for the log pane: a ring of lines that `tracing` writes and the pane reads.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tracing::field::{Field, Visit};
use tracing::{Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Lines kept.
const CAPACITY: usize = 2_000;
/// Bytes of a line kept.
const LINE_BYTES: usize = 1_000;

/// One line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// How serious it is.
    pub level: Level,
    /// Which module says it.
    pub target: String,
    /// The message and its fields.
    pub text: String,
}

#[derive(Debug, Default)]
struct Shared {
    lines: Mutex<VecDeque<LogLine>>,
    written: Notify,
}

/// The latest lines of the log. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct LogRing(Arc<Shared>);

impl LogRing {
    /// Adds a line, dropping the oldest when full.
    pub fn push(&self, mut line: LogLine) {
        if line.text.len() > LINE_BYTES {
            let cut = (0..=LINE_BYTES).rev().find(|at| line.text.is_char_boundary(*at)).unwrap_or(0);
            line.text.truncate(cut);
            line.text.push('…');
        }
        let mut lines = self.lock();
        if lines.len() == CAPACITY {
            lines.pop_front();
        }
        lines.push_back(line);
        drop(lines);
        self.0.written.notify_one();
    }

    /// Copies of the lines that `keep` accepts, oldest first.
    pub fn lines(&self, keep: impl Fn(&LogLine) -> bool) -> Vec<LogLine> {
        self.lock().iter().filter(|line| keep(line)).cloned().collect()
    }

    /// Waits until a line is written. One waiter at a time.
    pub async fn written(&self) {
        self.0.written.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<LogLine>> {
        // A panic while the lock was held cannot have left half a line.
        self.0.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A `tracing` layer that writes into a [`LogRing`].
#[derive(Debug, Clone)]
pub struct RingLayer(LogRing);

impl RingLayer {
    /// A layer and the ring it fills.
    pub fn new() -> (RingLayer, LogRing) {
        let ring = LogRing::default();
        (RingLayer(ring.clone()), ring)
    }
}

impl<S: Subscriber> Layer<S> for RingLayer {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut text = LineText::default();
        event.record(&mut text);
        let metadata = event.metadata();
        self.0.push(LogLine {
            level: *metadata.level(),
            target: metadata.target().to_owned(),
            text: text.finish(),
        });
    }
}

#[derive(Default)]
struct LineText {
    message: String,
    fields: String,
}

impl LineText {
    fn finish(self) -> String {
        format!("{}{}", self.message, self.fields)
    }
}

impl Visit for LineText {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing into a string cannot fail.
        let _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            write!(self.fields, " {}={value:?}", field.name())
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
        } else {
            self.record_debug(field, &value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt;

    #[test]
    fn lines_carry_level_message_and_fields_and_the_ring_stays_bounded() {
        let (layer, ring) = RingLayer::new();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::warn!(block = 28, "evicted");
            for _ in 0..CAPACITY + 10 {
                tracing::info!("{}", "x".repeat(LINE_BYTES * 2));
            }
        });
        assert!(ring.lines(|line| line.level == Level::WARN).is_empty(), "the oldest line is gone");
        let lines = ring.lines(|_| true);
        assert_eq!(lines.len(), CAPACITY);
        assert!(lines[0].text.len() <= LINE_BYTES + '…'.len_utf8());

        let (layer, ring) = RingLayer::new();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::warn!(block = 28, "evicted");
        });
        assert_eq!(ring.lines(|_| true)[0].text, "evicted block=28");
    }
}
