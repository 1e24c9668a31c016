//! Recurrent state of the pseudo-model: the digest of its context that each slot holds.

use std::collections::HashMap;

use super::Digest;
use crate::device::slots::SlotTable;
use crate::device::{DeviceError, SlotId, Span, StateFlow};

/// The slots.
#[derive(Debug, Default)]
pub(super) struct Slots {
    table: SlotTable,
    /// Zeros until a slot is written.
    states: Vec<Digest>,
    /// What the revocable spans of the last forward passed through: the state before, and after each token.
    passed: HashMap<SlotId, Vec<Digest>>,
}

impl Slots {
    pub(super) fn reserve(&mut self, slots: usize) {
        self.table.reserve(slots);
        self.states.resize(self.table.len(), Digest::default());
    }

    /// Checks the spans of a forward.
    pub(super) fn check(&self, spans: &[Span<'_>]) -> Result<(), DeviceError> {
        self.table.check(spans)
    }

    /// The state that `flow` starts from; `root` is that of an empty context.
    pub(super) fn before(&self, flow: StateFlow, root: Digest) -> Digest {
        flow.from.map_or(root, |from| self.states[from.0 as usize])
    }

    /// Takes note of a forward that is about to write.
    pub(super) fn advance(&mut self, spans: &[Span<'_>]) {
        self.table.advance(spans);
        self.passed.clear();
    }

    /// Writes the states a span passed through, the one before it first.
    pub(super) fn write(&mut self, flow: StateFlow, passed: Vec<Digest>) {
        if let Some(last) = passed.last() {
            self.states[flow.to.0 as usize] = *last;
        }
        if flow.revocable {
            self.passed.insert(flow.to, passed);
        }
    }

    pub(super) fn rewind(&mut self, flow: StateFlow, tokens: usize) -> Result<(), DeviceError> {
        self.table.check_rewind(flow, tokens)?;
        self.table.rewind(flow, tokens);
        if let Some(state) = self.passed.get(&flow.to).and_then(|passed| passed.get(tokens)) {
            self.states[flow.to.0 as usize] = *state;
        }
        Ok(())
    }

    pub(super) fn export(&self, slot: SlotId) -> Result<Vec<u8>, DeviceError> {
        self.table.check_written(slot)?;
        Ok(self.states[slot.0 as usize].to_vec())
    }

    pub(super) fn import(&mut self, slot: SlotId, position: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        let state = Digest::try_from(bytes)
            .map_err(|_| DeviceError::exported_length("a slot", size_of::<Digest>(), bytes.len()))?;
        self.table.import(slot, position)?;
        self.passed.remove(&slot);
        self.states[slot.0 as usize] = state;
        Ok(())
    }

    /// Zeros for a slot that was never written.
    pub(super) fn digest(&self, slot: SlotId) -> Digest {
        self.states.get(slot.0 as usize).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Sim;
    use super::*;
    use crate::config::SimConfig;
    use crate::device::{Executor, LogitRows, PageId, Span};

    const PAGES: [PageId; 2] = [PageId(0), PageId(1)];

    fn hybrid() -> Sim {
        let mut sim = Sim::new(&SimConfig { snapshot_bytes: 1 << 20, ..SimConfig::default() }, 16);
        sim.reserve(2, 3).unwrap();
        sim
    }

    fn flow(from: Option<u32>, to: u32, revocable: bool) -> StateFlow {
        StateFlow { from: from.map(SlotId), to: SlotId(to), revocable }
    }

    fn run(sim: &mut Sim, start: usize, tokens: &[u32], flow: StateFlow) -> Result<Vec<f32>, DeviceError> {
        let span = Span {
            positions: None,
            capture: 0,
            hidden: false,
            pages: &PAGES,
            start,
            tokens,
            state: Some(flow),
            logits: LogitRows::Last,
        };
        sim.forward(&[span]).map(|forward| forward.logits)
    }

    #[test]
    fn a_snapshot_stays_while_the_sequence_goes_on_and_serves_again() {
        let mut sim = hybrid();
        run(&mut sim, 0, &[1, 2, 3], flow(None, 0, false)).unwrap();
        let kept = sim.slot_digest(SlotId(0));
        let first = run(&mut sim, 3, &[4, 5], flow(Some(0), 1, false)).unwrap();
        assert_eq!(sim.slot_digest(SlotId(0)), kept);
        assert_eq!(run(&mut sim, 3, &[4, 5], flow(Some(0), 2, false)).unwrap(), first);
        assert_eq!(sim.slot_digest(SlotId(1)), sim.slot_digest(SlotId(2)));
    }

    #[test]
    fn state_of_another_place_or_context_is_refused() {
        let mut sim = hybrid();
        assert!(run(&mut sim, 0, &[1], flow(Some(0), 1, false)).is_err(), "never written");
        run(&mut sim, 0, &[1, 2, 3], flow(None, 0, false)).unwrap();
        assert!(run(&mut sim, 2, &[3], flow(Some(0), 0, false)).is_err(), "another place");
        assert!(run(&mut sim, 3, &[3], flow(None, 0, false)).is_err(), "no state");
        assert!(run(&mut sim, 3, &[3], flow(Some(0), 9, false)).is_err(), "not reserved");
        run(&mut sim, 0, &[7, 8, 9], flow(None, 1, false)).unwrap();
        assert!(run(&mut sim, 3, &[4], flow(Some(0), 0, false)).is_err(), "pages of another context");
        let span = Span {
            positions: None,
            capture: 0,
            hidden: false,
            pages: &PAGES,
            start: 0,
            tokens: &[1],
            state: None,
            logits: LogitRows::None,
        };
        assert!(sim.forward(&[span]).is_err(), "a hybrid's span without state");
    }

    #[test]
    fn rewinding_is_as_if_the_rest_had_never_run() {
        for kept in 0..=3 {
            let mut sim = hybrid();
            run(&mut sim, 0, &[1, 2], flow(None, 0, false)).unwrap();
            let draft = flow(Some(0), 1, true);
            run(&mut sim, 2, &[3, 4, 5], draft).unwrap();
            sim.rewind(draft, kept).unwrap();
            let mut plain = hybrid();
            let tokens = [1, 2, 3, 4, 5];
            run(&mut plain, 0, &tokens[..2 + kept], flow(None, 1, false)).unwrap();
            assert_eq!(sim.slot_digest(SlotId(1)), plain.slot_digest(SlotId(1)));
            let next = |sim: &mut Sim| run(sim, 2 + kept, &[6], flow(Some(1), 1, false)).unwrap();
            assert_eq!(next(&mut sim), next(&mut plain));
        }
    }

    #[test]
    fn only_the_last_revocable_span_can_be_rewound() {
        let mut sim = hybrid();
        assert!(run(&mut sim, 0, &[1], flow(Some(0), 0, true)).is_err(), "it would overwrite its start");
        run(&mut sim, 0, &[1, 2], flow(None, 0, false)).unwrap();
        assert!(sim.rewind(flow(None, 0, false), 1).is_err(), "not revocable");
        let draft = flow(Some(0), 1, true);
        run(&mut sim, 2, &[3, 4], draft).unwrap();
        assert!(sim.rewind(draft, 3).is_err(), "longer than the span");
        run(&mut sim, 0, &[9, 9], flow(None, 0, false)).unwrap();
        assert!(sim.rewind(draft, 1).is_err(), "its start is gone");
    }
}
