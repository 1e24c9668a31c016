//! The pseudo-model's drafters: a prediction head and a draft model that agree with it as often as they are told to.
//!
//! Both know what the pseudo-model will say, and say it, or something else where a draw from the context's state decides so. The head's hidden
//! state is the state itself, so chained drafts follow the tokens they are given.

use super::scoring::{QUERY_COLUMNS, query_of};
use super::{Digest, advance, pseudo_logits};
use crate::config::SimConfig;
use crate::device::{HeadSpan, Predicted, Span};
use crate::event::Nanos;

/// Numbers of a hidden state: those of a query.
pub(super) const HIDDEN: usize = QUERY_COLUMNS;

/// Who drafts: their misses are drawn apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drafter {
    Head,
    Model,
}

impl Drafter {
    fn label(self) -> &'static [u8] {
        match self {
            Drafter::Head => b"head",
            Drafter::Model => b"draft",
        }
    }

    /// Its logits after a context of this state: the pseudo-model's own with a probability of `acceptance`.
    pub(super) fn logits(self, state: Digest, acceptance: f64, out: &mut Vec<f32>) {
        let own = *blake3::Hasher::new_keyed(&state).update(self.label()).finalize().as_bytes();
        let drawn = u64::from_le_bytes(*own.first_chunk().unwrap_or(&[0; 8])) >> 11;
        let agrees = (drawn as f64) < acceptance * (1u64 << 53) as f64;
        pseudo_logits(if agrees { state } else { own }, out);
    }
}

/// The hidden state of a context.
pub(super) fn hidden_of(state: Digest) -> impl Iterator<Item = f32> {
    query_of(state)
}

/// The context of a hidden state.
fn state_of(hidden: &[f32]) -> Digest {
    let mut state = Digest::default();
    for (bytes, number) in state.as_chunks_mut().0.iter_mut().zip(hidden) {
        *bytes = (*number as u16).to_le_bytes();
    }
    state
}

/// What the head makes of its spans.
pub(super) fn predicted(config: &SimConfig, spans: &[(HeadSpan<'_>, Span<'_>)]) -> Predicted {
    let mut given = Predicted::default();
    let mut tokens = 0;
    for (span, written) in spans {
        tokens += span.tokens.len();
        let (Some(token), Some(position)) = (span.tokens.last(), written.token_positions().last()) else {
            continue;
        };
        if !span.predict {
            continue;
        }
        let before = state_of(&span.hidden[span.hidden.len() - HIDDEN..]);
        let state = advance(before, *token, span.start + span.tokens.len() - 1, position);
        Drafter::Head.logits(state, config.acceptance, &mut given.logits);
        given.hidden.extend(hidden_of(state));
    }
    given.compute = Nanos::from_seconds(tokens as f64 * config.head_us_per_token / 1e6);
    given
}

#[cfg(test)]
mod tests {
    use super::super::Sim;
    use super::*;
    use crate::device::{DeviceError, Executor, LogitRows, PageId};

    const PAGES: [PageId; 3] = [PageId(1), PageId(0), PageId(2)];

    fn forward(sim: &mut Sim, start: usize, tokens: &[u32], hidden: bool) -> crate::device::Forward {
        let span = Span {
            pages: &PAGES,
            start,
            tokens,
            positions: None,
            capture: 0,
            state: None,
            logits: LogitRows::All,
            hidden,
        };
        sim.forward(&[span]).unwrap()
    }

    fn read(sim: &mut Sim, start: usize, tokens: &[u32], hidden: &[f32]) -> Result<Predicted, DeviceError> {
        sim.predict(&[HeadSpan { pages: &PAGES, start, tokens, positions: None, hidden, predict: true }])
    }

    fn sim(acceptance: f64) -> Sim {
        let config = SimConfig { acceptance, ..SimConfig::default() };
        let mut sim = Sim::new(&config, 16).with_head();
        sim.reserve(3, 0).unwrap();
        sim
    }

    #[test]
    fn a_head_that_always_agrees_says_what_the_model_says_at_every_depth() {
        let tokens: Vec<u32> = (0..40).map(|i| i * 7 % 100).collect();
        let mut sim = sim(1.0);
        let given = forward(&mut sim, 0, &tokens, true);
        let row = |place: usize| &given.logits[place * Sim::VOCAB..(place + 1) * Sim::VOCAB];
        let hidden = |place: usize| &given.hidden[place * HIDDEN..(place + 1) * HIDDEN];
        let prompt = read(&mut sim, 1, &tokens[1..31], &given.hidden[..30 * HIDDEN]).unwrap();
        assert_eq!(prompt.logits, row(30));
        assert_eq!(prompt.compute, Nanos::from_seconds(30.0 * 430e-6));
        let mut before = prompt.hidden;
        for place in 31..34 {
            assert_eq!(before, hidden(place - 1));
            let next = read(&mut sim, place, &tokens[place..place + 1], &before).unwrap();
            assert_eq!(next.logits, row(place));
            before = next.hidden;
        }
    }

    #[test]
    fn drafters_agree_as_often_as_they_are_told_to_and_miss_apart() {
        let tokens: Vec<u32> = (0..40).collect();
        let config = SimConfig { acceptance: 0.7, ..SimConfig::default() };
        let (mut agreed, mut both, mut rounds) = ([0, 0], 0, 0);
        for seed in 0..40 {
            let config = SimConfig { seed, ..config.clone() };
            let mut sim = Sim::new(&config, 16).with_head();
            let mut draft = Sim::draft(&config, 16);
            sim.reserve(3, 0).unwrap();
            draft.reserve(3, 0).unwrap();
            let given = forward(&mut sim, 0, &tokens, true);
            let drafted = forward(&mut draft, 0, &tokens, false).logits;
            assert_ne!(draft.facts().digest, sim.facts().digest);
            for place in 1..40 {
                let row = place * Sim::VOCAB..(place + 1) * Sim::VOCAB;
                let before = &given.hidden[(place - 1) * HIDDEN..place * HIDDEN];
                let head = read(&mut sim, place, &tokens[place..=place], before).unwrap().logits;
                let same = [head == given.logits[row.clone()], drafted[row.clone()] == given.logits[row]];
                (0..2).for_each(|i| agreed[i] += usize::from(same[i]));
                both += usize::from(same[0] && same[1]);
                rounds += 1;
            }
        }
        let share = |count: usize| count as f64 / rounds as f64;
        assert!(agreed.iter().all(|count| (share(*count) - 0.7).abs() < 0.04), "{agreed:?} of {rounds}");
        assert!((share(both) - 0.49).abs() < 0.04, "{both} of {rounds}");
    }

    #[test]
    fn a_verify_forward_costs_what_its_keys_say() {
        let mut sim = sim(0.5);
        let tokens = [3; 40];
        let cost = |sim: &mut Sim, start: usize, tokens: &[u32]| {
            forward(sim, start, tokens, false).compute.seconds() * 1e3
        };
        cost(&mut sim, 0, &tokens[..20]);
        assert!((cost(&mut sim, 20, &tokens[..1]) - 40.5).abs() < 1e-6);
        assert!((cost(&mut sim, 20, &tokens[..2]) - 47.0).abs() < 1e-6);
        assert!((cost(&mut sim, 20, &tokens[..5]) - 66.5).abs() < 1e-6);
    }

    #[test]
    fn a_page_keeps_the_hidden_state_at_its_end_until_it_is_written_again() {
        let mut sim = sim(0.8);
        let tokens: Vec<u32> = (0..40).collect();
        let given = forward(&mut sim, 0, &tokens, true);
        assert_eq!(sim.page_end(PageId(1)).as_deref(), Some(&given.hidden[15 * HIDDEN..16 * HIDDEN]));
        assert_eq!(sim.page_end(PageId(0)).as_deref(), Some(&given.hidden[31 * HIDDEN..32 * HIDDEN]));
        assert_eq!(sim.page_end(PageId(2)), None);
        let bytes = sim.export_page(PageId(1)).unwrap();
        assert_eq!(bytes.len(), sim.exported_bytes().0);
        forward(&mut sim, 10, &tokens[10..17], false);
        assert_eq!(sim.page_end(PageId(1)), None);
        sim.import_page(PageId(1), &bytes).unwrap();
        assert_eq!(sim.page_end(PageId(1)).as_deref(), Some(&given.hidden[15 * HIDDEN..16 * HIDDEN]));
    }

    #[test]
    fn an_entry_without_those_before_it_is_refused() {
        let mut sim = sim(0.8);
        let tokens: Vec<u32> = (0..40).collect();
        let hidden = forward(&mut sim, 0, &tokens, true).hidden;
        let of =
            |places: std::ops::Range<usize>| &hidden[(places.start - 1) * HIDDEN..(places.end - 1) * HIDDEN];
        assert!(read(&mut sim, 2, &tokens[2..4], of(2..4)).is_err());
        read(&mut sim, 1, &tokens[1..20], of(1..20)).unwrap();
        assert!(read(&mut sim, 21, &tokens[21..22], of(21..22)).is_err());
        assert!(read(&mut sim, 20, &tokens[20..22], of(20..21)).is_err(), "a hidden state too few");
        read(&mut sim, 18, &tokens[18..22], of(18..22)).unwrap();
        let mut plain = Sim::new(&SimConfig::default(), 16);
        plain.reserve(3, 0).unwrap();
        assert!(read(&mut plain, 1, &tokens[1..2], of(1..2)).is_err(), "no head");
    }
}
