//! Where keys come from.

use std::future::Future;
use std::io;

use crossterm::event::{Event, EventStream};
use futures_util::StreamExt;

/// A source of terminal events. `next` must be safe to drop before it is done.
pub trait EventSource {
    /// The next event; `None` when there will be no more.
    fn next(&mut self) -> impl Future<Output = Option<io::Result<Event>>>;
    /// Lets go of the terminal: a reader that merely is not polled may still take bytes meant for somebody else.
    fn pause(&mut self);
}

/// The terminal.
#[derive(Default)]
pub struct TerminalEvents(Option<EventStream>);

impl EventSource for TerminalEvents {
    async fn next(&mut self) -> Option<io::Result<Event>> {
        self.0.get_or_insert_with(EventStream::new).next().await
    }

    fn pause(&mut self) {
        self.0 = None;
    }
}
