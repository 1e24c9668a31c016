//! The contract of recurrent state, kept once for every executor: where each slot stands, and what the last forward may take back.
//!
//! A mistake of the engine (a stale slot, a snapshot of another position, a state that two spans write) is an error here and never a
//! number that looks right.

use super::{DeviceError, SlotId, Span, StateFlow};

/// Tokens a revocable span has at most: what it wrote is kept until the next forward.
pub const MAX_REVOCABLE: usize = 64;

/// Where slots stand.
#[derive(Debug, Default)]
pub struct SlotTable {
    /// Tokens before each slot's state; `None` until it is written.
    positions: Vec<Option<usize>>,
    /// The revocable spans of the last forward.
    revocable: Vec<Revocable>,
}

#[derive(Debug, Clone, Copy)]
struct Revocable {
    flow: StateFlow,
    start: usize,
    tokens: usize,
}

fn broken<T>(problem: String) -> Result<T, DeviceError> {
    Err(DeviceError::Contract(problem))
}

impl SlotTable {
    /// Slots there are.
    pub fn len(&self) -> usize {
        self.positions.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// Makes slots `0..slots` usable.
    pub fn reserve(&mut self, slots: usize) {
        self.positions.resize(slots.max(self.positions.len()), None);
    }

    /// Checks the spans of a forward: each starts from a state at its own position, and what one writes no other uses.
    pub fn check(&self, spans: &[Span<'_>]) -> Result<(), DeviceError> {
        for (index, span) in spans.iter().enumerate() {
            let Some(flow) = span.state else {
                return broken("a span of a recurrent model has no state".to_owned());
            };
            self.check_flow(flow, span.start, span.tokens.len())?;
            let others = spans.iter().enumerate().filter(|(other, _)| *other != index);
            let mut flows = others.filter_map(|(_, span)| span.state);
            if flows.any(|other| other.to == flow.to || other.from == Some(flow.to)) {
                return broken(format!("slot {} is written by one span and used by another", flow.to.0));
            }
        }
        Ok(())
    }

    fn check_flow(&self, flow: StateFlow, start: usize, tokens: usize) -> Result<(), DeviceError> {
        let StateFlow { from, to, revocable } = flow;
        self.position(to)?;
        if revocable && from == Some(to) {
            return broken(format!("{flow:?} cannot be taken back: it overwrites what it starts from"));
        }
        if revocable && tokens > MAX_REVOCABLE {
            return broken(format!("{tokens} tokens to take back are more than {MAX_REVOCABLE}"));
        }
        match from.map(|from| (from, self.position(from))) {
            None if start == 0 => Ok(()),
            None => broken(format!("there is no state to start from at {start}")),
            Some((_, Ok(Some(position)))) if position == start && start > 0 => Ok(()),
            Some((from, Ok(Some(position)))) => {
                broken(format!("slot {} stands at {position}, the span at {start}", from.0))
            }
            Some((from, Ok(None))) => broken(format!("slot {} was never written", from.0)),
            Some((_, Err(error))) => Err(error),
        }
    }

    fn position(&self, slot: SlotId) -> Result<Option<usize>, DeviceError> {
        match self.positions.get(slot.0 as usize) {
            Some(position) => Ok(*position),
            None => broken(format!("slot {} is not reserved", slot.0)),
        }
    }

    /// Takes note of a forward that was checked and is about to write. Whatever an earlier one could take back stands now.
    pub fn advance(&mut self, spans: &[Span<'_>]) {
        self.revocable.clear();
        for span in spans {
            let Some(flow) = span.state else { continue };
            let (start, tokens) = (span.start, span.tokens.len());
            self.positions[flow.to.0 as usize] = Some(start + tokens);
            if flow.revocable {
                self.revocable.push(Revocable { flow, start, tokens });
            }
        }
    }

    /// Takes note that state after `position` tokens was put into a slot. What led there or started there cannot be taken back.
    pub fn import(&mut self, slot: SlotId, position: usize) -> Result<(), DeviceError> {
        self.position(slot)?;
        self.revocable.retain(|span| span.flow.to != slot && span.flow.from != Some(slot));
        self.positions[slot.0 as usize] = Some(position);
        Ok(())
    }

    /// Fails where a slot is not reserved.
    pub fn check_reserved(&self, slot: SlotId) -> Result<(), DeviceError> {
        self.position(slot).map(|_| ())
    }

    /// Fails where a slot was never written.
    pub fn check_written(&self, slot: SlotId) -> Result<(), DeviceError> {
        match self.position(slot)? {
            Some(_) => Ok(()),
            None => broken(format!("slot {} was never written", slot.0)),
        }
    }

    /// Takes note that a forward that was about to write failed: nothing stands in the slots it was to write, and nothing can be taken back.
    pub fn fail(&mut self, spans: &[Span<'_>]) {
        self.revocable.clear();
        for flow in spans.iter().filter_map(|span| span.state) {
            self.positions[flow.to.0 as usize] = None;
        }
    }

    /// Takes note that all state is lost.
    pub fn lose(&mut self) {
        self.revocable.clear();
        self.positions.fill(None);
    }

    /// Checks that the last forward can be taken back to `tokens` tokens of the span of `flow`.
    pub fn check_rewind(&self, flow: StateFlow, tokens: usize) -> Result<(), DeviceError> {
        match self.revocable.iter().find(|span| span.flow == flow) {
            Some(span) if tokens <= span.tokens => Ok(()),
            Some(span) => broken(format!("a span of {} tokens has no first {tokens}", span.tokens)),
            None => broken(format!("{flow:?} is no revocable span of the last forward")),
        }
    }

    /// Takes note of a rewind that was checked.
    pub fn rewind(&mut self, flow: StateFlow, tokens: usize) {
        if let Some(span) = self.revocable.iter().find(|span| span.flow == flow) {
            self.positions[flow.to.0 as usize] = Some(span.start + tokens);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::LogitRows;

    const TOKENS: [u32; 100] = [0; 100];

    fn flow(from: Option<u32>, to: u32, revocable: bool) -> StateFlow {
        StateFlow { from: from.map(SlotId), to: SlotId(to), revocable }
    }

    fn span(start: usize, tokens: usize, state: StateFlow) -> Span<'static> {
        let tokens = &TOKENS[..tokens];
        Span {
            positions: None,
            capture: 0,
            hidden: false,
            pages: &[],
            start,
            tokens,
            state: Some(state),
            logits: LogitRows::None,
        }
    }

    #[test]
    fn after_a_failure_nothing_starts_from_what_was_to_be_written() {
        let mut table = SlotTable::default();
        table.reserve(3);
        run(&mut table, &[span(0, 5, flow(None, 0, false))]).unwrap();
        let drafted = flow(Some(0), 1, true);
        run(&mut table, &[span(5, 3, drafted)]).unwrap();
        let next = span(8, 2, flow(Some(1), 1, false));
        table.check(&[next]).unwrap();
        table.advance(&[next]);
        table.fail(&[next]);
        assert!(table.check(&[next]).is_err() && table.check_rewind(drafted, 2).is_err());
        table.check(&[span(5, 3, drafted)]).unwrap();
        table.lose();
        assert!(table.check(&[span(5, 3, drafted)]).is_err());
        table.check(&[span(0, 5, flow(None, 2, false))]).unwrap();
    }

    fn run(table: &mut SlotTable, spans: &[Span<'_>]) -> Result<(), DeviceError> {
        table.check(spans)?;
        table.advance(spans);
        Ok(())
    }

    fn table() -> SlotTable {
        let mut table = SlotTable::default();
        table.reserve(4);
        run(&mut table, &[span(0, 10, flow(None, 0, false))]).unwrap();
        table
    }

    #[test]
    fn f15_a_span_starts_where_its_slot_stands() {
        let mut table = table();
        for (start, from) in
            [(9, Some(0)), (11, Some(0)), (10, None), (10, Some(1)), (10, Some(7)), (0, Some(0))]
        {
            assert!(
                run(&mut table, &[span(start, 1, flow(from, 2, false))]).is_err(),
                "{start} from {from:?}"
            );
        }
        run(&mut table, &[span(10, 3, flow(Some(0), 1, false))]).unwrap();
        run(&mut table, &[span(10, 1, flow(Some(0), 2, false)), span(13, 1, flow(Some(1), 1, false))])
            .unwrap();
        assert!(run(&mut table, &[span(0, 1, flow(None, 4, false))]).is_err(), "a slot that is not reserved");
        assert!(table.check(&[Span { state: None, ..span(0, 1, flow(None, 0, false)) }]).is_err());
    }

    #[test]
    fn what_one_span_writes_no_other_uses() {
        let table = table();
        let reads = span(10, 1, flow(Some(0), 1, false));
        for other in [flow(None, 0, false), flow(None, 1, false)] {
            assert!(table.check(&[reads, span(0, 1, other)]).is_err(), "{other:?}");
        }
        assert!(
            table.check(&[reads, span(10, 1, flow(Some(0), 2, false))]).is_ok(),
            "both read one snapshot"
        );
    }

    #[test]
    fn only_the_last_forward_is_taken_back() {
        let mut table = table();
        let draft = flow(Some(0), 1, true);
        run(&mut table, &[span(10, 5, draft)]).unwrap();
        assert!(table.check_rewind(draft, 6).is_err(), "longer than the span");
        for tokens in [5, 2, 3] {
            table.check_rewind(draft, tokens).unwrap();
            table.rewind(draft, tokens);
        }
        assert!(
            table.check(&[span(13, 1, flow(Some(1), 1, false))]).is_ok(),
            "it stands where it was taken back to"
        );
        // Back into the slot it came from: the first draft's start is gone.
        run(&mut table, &[span(13, 2, flow(Some(1), 0, true))]).unwrap();
        assert!(table.check_rewind(draft, 1).is_err());
        assert!(table.check(&[span(15, 1, flow(Some(0), 0, true))]).is_err(), "overwrites its own start");
        assert!(table.check(&[span(15, 65, flow(Some(0), 1, true))]).is_err(), "more than may be kept");
    }
}
