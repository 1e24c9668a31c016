//! Recurrent state of the pseudo-model: where each slot stands, and in which context.

use super::Digest;
use crate::device::{DeviceError, SlotId, StateFlow};

/// A point in a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Standing {
    /// Tokens before it.
    position: usize,
    state: Digest,
}

/// What a revocable span passed through on its way.
#[derive(Debug, Clone)]
struct Passed {
    flow: StateFlow,
    from: Standing,
    states: Vec<Digest>,
}

#[derive(Debug, Clone, Default)]
struct Slot {
    /// `None` until the slot is written.
    standing: Option<Standing>,
    passed: Option<Passed>,
}

/// The slots.
#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
}

fn broken<T>(problem: String) -> Result<T, DeviceError> {
    Err(DeviceError::Contract(problem))
}

impl Slots {
    pub(super) fn reserve(&mut self, slots: usize) {
        if self.slots.len() < slots {
            self.slots.resize_with(slots, Slot::default);
        }
    }

    /// No span may write what another reads or writes: the outcome would depend on their order.
    pub(super) fn check_batch(flows: impl Iterator<Item = StateFlow> + Clone) -> Result<(), DeviceError> {
        for (n, flow) in flows.clone().enumerate() {
            let clash = flows
                .clone()
                .enumerate()
                .any(|(other, o)| other != n && (o.to == flow.to || o.from == Some(flow.to)));
            if clash {
                return broken(format!("slot {} is written by one span and used by another", flow.to.0));
            }
        }
        Ok(())
    }

    /// The state before position `start`; `root` is the state of an empty context.
    pub(super) fn enter(&self, flow: StateFlow, start: usize, root: Digest) -> Result<Digest, DeviceError> {
        if flow.revocable && flow.from == Some(flow.to) {
            return broken(format!("{flow:?} cannot be revoked: it overwrites what it starts from"));
        }
        self.slot(flow.to)?;
        let Some(from) = flow.from else {
            return if start == 0 { Ok(root) } else { broken(format!("no state to start from at {start}")) };
        };
        match self.slot(from)?.standing {
            Some(standing) if standing.position == start => Ok(standing.state),
            Some(standing) => {
                broken(format!("slot {} stands at {}, the span at {start}", from.0, standing.position))
            }
            None => broken(format!("slot {} was never written", from.0)),
        }
    }

    /// Takes note of the states a span passed through; at least one.
    pub(super) fn leave(&mut self, flow: StateFlow, start: usize, before: Digest, states: Vec<Digest>) {
        let Some((slot, state)) = self.slots.get_mut(flow.to.0 as usize).zip(states.last().copied()) else {
            return;
        };
        slot.standing = Some(Standing { position: start + states.len(), state });
        let from = Standing { position: start, state: before };
        slot.passed = flow.revocable.then_some(Passed { flow, from, states });
    }

    pub(super) fn rewind(&mut self, flow: StateFlow, tokens: usize) -> Result<(), DeviceError> {
        let Some(passed) = self.slot(flow.to)?.passed.as_ref().filter(|passed| passed.flow == flow) else {
            return broken(format!("{flow:?} is not the last revocable span of its slot"));
        };
        if let Some(from) = flow.from
            && self.slot(from)?.standing != Some(passed.from)
        {
            return broken(format!("slot {} was overwritten since", from.0));
        }
        let state = match tokens.checked_sub(1) {
            None => passed.from.state,
            Some(last) => match passed.states.get(last) {
                Some(state) => *state,
                None => {
                    return broken(format!("a span of {} tokens has no first {tokens}", passed.states.len()));
                }
            },
        };
        let standing = Standing { position: passed.from.position + tokens, state };
        self.slots[flow.to.0 as usize].standing = Some(standing);
        Ok(())
    }

    /// Zeros for a slot that was never written.
    pub(super) fn digest(&self, slot: SlotId) -> Digest {
        let standing = self.slots.get(slot.0 as usize).and_then(|slot| slot.standing);
        standing.map_or([0; 32], |standing| standing.state)
    }

    fn slot(&self, slot: SlotId) -> Result<&Slot, DeviceError> {
        match self.slots.get(slot.0 as usize) {
            Some(slot) => Ok(slot),
            None => broken(format!("slot {} is not reserved", slot.0)),
        }
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
        let span = Span { pages: &PAGES, start, tokens, state: Some(flow), logits: LogitRows::Last };
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
        let span = Span { pages: &PAGES, start: 0, tokens: &[1], state: None, logits: LogitRows::None };
        assert!(sim.forward(&[span]).is_err(), "a hybrid's span without state");
    }

    #[test]
    fn spans_of_a_batch_do_not_share_what_they_write() {
        let check = |flows: [StateFlow; 2]| Slots::check_batch(flows.into_iter());
        assert!(check([flow(None, 0, false), flow(None, 0, false)]).is_err());
        assert!(check([flow(Some(1), 0, false), flow(None, 1, false)]).is_err());
        assert!(
            check([flow(Some(2), 0, false), flow(Some(2), 1, false)]).is_ok(),
            "two may start from one snapshot"
        );
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
