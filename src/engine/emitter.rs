//! Numbering and stamping events on their way out.

use crate::event::{Body, Event, LaneId, RequestId, Sink, Stamp};

/// Gives events their sequence numbers and hands them to the sink.
pub(super) struct Emitter {
    sink: Box<dyn Sink>,
    next: u64,
}

impl Emitter {
    pub(super) fn new(sink: Box<dyn Sink>) -> Emitter {
        Emitter { sink, next: 0 }
    }

    pub(super) fn emit(&mut self, at: Stamp, lane: Option<LaneId>, request: Option<RequestId>, body: Body) {
        let event = Event { seq: self.next, at, lane, request, body };
        self.next += 1;
        self.sink.emit(&event);
    }
}
