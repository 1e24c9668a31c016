//! Handing events over without waiting.

use tokio::sync::mpsc::{self, error::TrySendError};

use super::{Body, Event};

/// Takes events from a producer. `emit` must not block on a consumer.
pub trait Sink: Send {
    /// Takes one event.
    fn emit(&mut self, event: &Event);
}

impl<F: FnMut(&Event) + Send> Sink for F {
    fn emit(&mut self, event: &Event) {
        self(event);
    }
}

/// Hands every event to several sinks, in order.
#[derive(Default)]
pub struct Fanout {
    sinks: Vec<Box<dyn Sink>>,
}

impl Fanout {
    /// A fan-out without sinks: events go nowhere.
    pub fn new() -> Fanout {
        Fanout::default()
    }

    /// Adds a sink.
    pub fn with(mut self, sink: impl Sink + 'static) -> Fanout {
        self.sinks.push(Box::new(sink));
        self
    }
}

impl Sink for Fanout {
    fn emit(&mut self, event: &Event) {
        for sink in &mut self.sinks {
            sink.emit(event);
        }
    }
}

/// A bounded channel. When the consumer falls behind, events are dropped, counted, and announced as one
/// [`Body::Gap`] as soon as there is room again: a loss is shown, never silent.
pub struct ChannelSink {
    sender: mpsc::Sender<Event>,
    lost: Option<(u64, u64)>,
}

impl ChannelSink {
    /// A sink holding at most `capacity` undelivered events, and its consumer's end.
    pub fn bounded(capacity: usize) -> (ChannelSink, mpsc::Receiver<Event>) {
        let (sender, receiver) = mpsc::channel(capacity);
        (ChannelSink { sender, lost: None }, receiver)
    }

    fn announce_loss(&mut self, next: &Event) -> bool {
        let Some((from, to)) = self.lost else { return true };
        let gap = Event { seq: to, at: next.at, lane: None, request: None, body: Body::Gap { from, to } };
        match self.sender.try_send(gap) {
            Ok(()) => {
                self.lost = None;
                true
            }
            Err(TrySendError::Full(_)) => false,
            Err(TrySendError::Closed(_)) => true,
        }
    }
}

impl Sink for ChannelSink {
    fn emit(&mut self, event: &Event) {
        let delivered = self.announce_loss(event)
            && !matches!(self.sender.try_send(event.clone()), Err(TrySendError::Full(_)));
        if !delivered {
            let from = self.lost.map_or(event.seq, |(from, _)| from);
            self.lost = Some((from, event.seq));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Stamp;

    fn event(seq: u64) -> Event {
        Event { seq, at: Stamp(seq), lane: None, request: None, body: Body::RunEnded }
    }

    #[test]
    fn a_full_channel_reports_exactly_what_it_lost() {
        let (mut sink, mut receiver) = ChannelSink::bounded(2);
        for seq in 0..5 {
            sink.emit(&event(seq));
        }
        assert_eq!(receiver.try_recv().unwrap().seq, 0);
        assert_eq!(receiver.try_recv().unwrap().seq, 1);
        sink.emit(&event(5));
        assert_eq!(receiver.try_recv().unwrap().body, Body::Gap { from: 2, to: 4 });
        assert_eq!(receiver.try_recv().unwrap().seq, 5);
    }

    #[test]
    fn a_closed_channel_is_no_loss_and_no_panic() {
        let (mut sink, receiver) = ChannelSink::bounded(1);
        drop(receiver);
        sink.emit(&event(0));
        sink.emit(&event(1));
        assert!(sink.lost.is_none());
    }
}
