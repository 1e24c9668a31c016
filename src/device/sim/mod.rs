//! The `sim` device: no arithmetic, a pseudo-model and a cost model.
//!
//! State is a digest: position *i* of a page holds a hash over the tokens up to *i*, so restored state can be told from
//! recomputed state as surely as on a device that computes. Logits are drawn from that hash, so a reply depends on
//! the whole context and on nothing else. A forward takes as long as a linear cost model says; it is the engine's clock
//! that lets that time pass. So the scheduler, the cache and the interface run without weights, and repeat exactly.
//!
//! A token's position takes part where it is not its place, so state behind a gap is told from state without. For scoring there is one
//! pseudo-layer with one head: a query is its token's state, and what it makes of a key is drawn from the two states.
//!
//! Its drafters, a prediction head and a draft model, agree with it as often as `sim.acceptance` says (`drafting`).
//!
//! With `sim.snapshot_bytes` above zero the pseudo-model is a hybrid: the running state is read from a slot and written to
//! a slot (`slots`), and pages only have to agree with it.

mod drafting;
mod scoring;
mod slots;

use std::ops::RangeInclusive;

use crate::config::SimConfig;
use crate::device::head_pages::HeadPages;
use crate::device::slots::MAX_REVOCABLE;
use crate::device::{
    DeviceError, Executor, ExecutorFacts, Forward, HeadSpan, KeyWeights, LogitRows, PageId, Predicted,
    Queries, SlotId, Span, StateFlow,
};
use crate::event::{Identity, Nanos};
use drafting::{Drafter, HIDDEN, hidden_of, predicted};
use scoring::{QUERY_COLUMNS, drawn_from_key, drawn_from_query, pseudo_weights, query_of};
use slots::Slots;

/// Tokens of a forward that verifies drafts, where it asks for all logits.
const VERIFIED: RangeInclusive<usize> = 2..=MAX_REVOCABLE;

/// Digest of a context: the state of its last position.
type Digest = [u8; 32];

/// The pseudo-model.
#[derive(Debug)]
pub struct Sim {
    config: SimConfig,
    facts: ExecutorFacts,
    /// The state of an empty context.
    root: Digest,
    /// Whose logits it gives where they are not its own.
    drafts: Option<Drafter>,
    pages: Vec<Box<[Digest]>>,
    slots: Slots,
    /// Where a prediction head is loaded.
    head: Option<HeadPages>,
}

impl Sim {
    /// Size of the pseudo-model's vocabulary: the ids its replies are drawn from. Prompts may hold larger ids.
    pub const VOCAB: usize = 512;

    /// A pseudo-model whose pages hold `page_tokens` tokens.
    pub fn new(config: &SimConfig, page_tokens: usize) -> Sim {
        Sim::named("pseudo-model", "", config, page_tokens)
    }

    /// The same with a prediction head, which is an attention layer more.
    pub fn with_head(mut self) -> Sim {
        let head = HeadPages::new(self.facts.page_tokens, HIDDEN);
        self.facts.page_bytes += self.facts.page_bytes / self.facts.attention_layers as usize + head.bytes();
        self.facts.digest =
            *blake3::Hasher::new_keyed(&self.facts.digest).update(b"head").finalize().as_bytes();
        self.facts.head_layers = 1;
        self.facts.hidden = HIDDEN;
        self.head = Some(head);
        self
    }

    /// A smaller pseudo-model that drafts for one of `config`: it knows what that one will say, and agrees with it as often as `config` tells. It
    /// costs what the scorer does.
    pub fn draft(config: &SimConfig, page_tokens: usize) -> Sim {
        let root = Sim::new(config, page_tokens).root;
        let scorer = Sim::scorer(config, page_tokens);
        let sim = Sim::named("pseudo-draft", "draft", &scorer.config, page_tokens);
        Sim { root, drafts: Some(Drafter::Model), ..sim }
    }

    /// A smaller pseudo-model that scores for one of `config`: of the same kind, with a cost model of its own.
    pub fn scorer(config: &SimConfig, page_tokens: usize) -> Sim {
        let own = SimConfig {
            prefill_us_per_token: config.scorer_us_per_token,
            prefill_us_per_token_per_kilotoken: 0.0,
            decode_us_per_token: config.scorer_decode_us_per_token,
            state_bytes_per_token: config.scorer_state_bytes_per_token,
            ..config.clone()
        };
        Sim::named("pseudo-scorer", "scorer", &own, page_tokens)
    }

    /// The first `layers` layers of a pseudo-model of `config`, which cost their share of it. An error says why there are not so many.
    pub fn first_layers(config: &SimConfig, page_tokens: usize, layers: usize) -> Result<Sim, String> {
        let whole = Sim::new(config, page_tokens).facts;
        // As in the hybrid it stands for, every fourth layer attends.
        let (all, attends_every) = match whole.recurrent_layers {
            0 => (whole.attention_layers as usize, 1),
            recurrent => ((whole.attention_layers + recurrent) as usize, 4),
        };
        if layers > all {
            return Err(format!("the pseudo-model has {all} layers, not {layers}"));
        }
        let attention = layers / attends_every;
        if attention == 0 {
            return Err(format!(
                "the first {layers} layers of the pseudo-model hold no attention layer; {attends_every} do"
            ));
        }
        let recurrent = layers - attention;
        let part = |of: usize, layers: usize, all: usize| (of * layers).div_ceil(all.max(1));
        let share = layers as f64 / all as f64;
        let own = SimConfig {
            prefill_us_per_token: config.prefill_us_per_token * share,
            prefill_us_per_token_per_kilotoken: config.prefill_us_per_token_per_kilotoken * share,
            decode_us_per_token: config.decode_us_per_token * share,
            state_bytes_per_token: part(
                config.state_bytes_per_token,
                attention,
                whole.attention_layers as usize,
            ),
            snapshot_bytes: part(config.snapshot_bytes, recurrent, whole.recurrent_layers as usize),
            ..config.clone()
        };
        let mut sim = Sim::named("pseudo-model", &format!("first {layers} layers"), &own, page_tokens);
        sim.facts.attention_layers = attention as u32;
        sim.facts.recurrent_layers = recurrent as u32;
        Ok(sim)
    }

    fn named(model: &str, part: &str, config: &SimConfig, page_tokens: usize) -> Sim {
        let mut hasher = blake3::Hasher::new_derive_key("escarp pseudo-model 1");
        hasher.update(&config.seed.to_le_bytes());
        hasher.update(part.as_bytes());
        let facts = ExecutorFacts {
            model: model.to_owned(),
            digest: *hasher.finalize().as_bytes(),
            device: "sim",
            kernel: "cost model".to_owned(),
            family: "sim",
            precision: "none",
            identity: Identity::Simulated,
            vocab: Sim::VOCAB,
            context_tokens: config.context_tokens,
            page_tokens,
            page_bytes: page_tokens * config.state_bytes_per_token,
            slot_bytes: config.snapshot_bytes,
            attention_layers: 16,
            head_layers: 0,
            hidden: 0,
            recurrent_layers: if config.snapshot_bytes > 0 { 48 } else { 0 },
        };
        Sim {
            config: config.clone(),
            root: facts.digest,
            facts,
            drafts: None,
            pages: Vec::new(),
            slots: Slots::default(),
            head: None,
        }
    }

    /// The state before the span's first token, as its pages hold it.
    fn state_before(&self, span: &Span<'_>) -> Digest {
        span.start.checked_sub(1).map_or(self.root, |last| self.state_at(span.pages, last))
    }

    fn check(&self, span: &Span<'_>) -> Result<(), DeviceError> {
        let end = span.start + span.tokens.len();
        let covered = span.pages.len() * self.facts.page_tokens;
        if end > covered {
            return Err(DeviceError::Contract(format!("{end} positions in pages for {covered}")));
        }
        if span.tokens.is_empty() {
            return Err(DeviceError::Contract("a span has no tokens".to_owned()));
        }
        if let Some(page) = span.pages.iter().find(|page| page.0 as usize >= self.pages.len()) {
            return Err(not_reserved(*page));
        }
        if span.hidden && self.head.is_none() {
            return Err(DeviceError::Contract("hidden states are for a prediction head".to_owned()));
        }
        span.check_positions(self.facts.context_tokens)
    }

    /// Logits after a context of this state.
    fn logits(&self, state: Digest, out: &mut Vec<f32>) {
        match self.drafts {
            Some(drafter) => drafter.logits(state, self.config.acceptance, out),
            None => pseudo_logits(state, out),
        }
    }

    /// The state at a place of a sequence.
    fn state_at(&self, pages: &[PageId], place: usize) -> Digest {
        self.pages[pages[place / self.facts.page_tokens].0 as usize][place % self.facts.page_tokens]
    }

    /// The state before the span's first token. Both kinds of layers must stand at the same place of the same context.
    fn enter(&self, span: &Span<'_>) -> Result<Digest, DeviceError> {
        let attention = self.state_before(span);
        let recurrent = span.state.map(|flow| self.slots.before(flow, self.root));
        if recurrent.is_none_or(|recurrent| recurrent == attention) {
            return Ok(attention);
        }
        let (start, flow) = (span.start, span.state);
        Err(DeviceError::Contract(format!("{flow:?} at {start} and the span's pages are of two contexts")))
    }

    /// Checks where recurrent state comes from and goes to.
    fn check_slots(&self, spans: &[Span<'_>]) -> Result<(), DeviceError> {
        match (self.facts.slot_bytes, spans.iter().find_map(|span| span.state)) {
            (0, None) => Ok(()),
            (0, Some(flow)) => {
                Err(DeviceError::Contract(format!("{flow:?} of a model without recurrent layers")))
            }
            _ => self.slots.check(spans),
        }
    }

    /// Microseconds of one span: every token costs its share, more the more tokens were computed before it: those attention reads.
    fn span_us(&self, span: &Span<'_>) -> f64 {
        let tokens = span.tokens.len() as f64;
        if span.tokens.len() == 1 && span.start > 0 {
            return self.config.decode_us_per_token;
        }
        if VERIFIED.contains(&span.tokens.len()) && span.start > 0 && span.logits == LogitRows::All {
            return self.config.decode_us_per_token + (tokens - 1.0) * self.config.verify_us_per_token;
        }
        let middle = span.start as f64 + tokens / 2.0;
        let depth = self.config.prefill_us_per_token_per_kilotoken * middle / 1000.0;
        tokens * (self.config.prefill_us_per_token + depth)
    }
}

fn not_reserved(page: PageId) -> DeviceError {
    DeviceError::Contract(format!("page {} is not reserved", page.0))
}

fn advance(state: Digest, token: u32, place: usize, position: u32) -> Digest {
    let mut hasher = blake3::Hasher::new_keyed(&state);
    hasher.update(&token.to_le_bytes());
    if place != position as usize {
        hasher.update(&position.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}

/// Logits in [0, 8), drawn from the state.
fn pseudo_logits(state: Digest, out: &mut Vec<f32>) {
    let mut bytes = [0; Sim::VOCAB * 2];
    blake3::Hasher::new_keyed(&state).update(b"logits").finalize_xof().fill(&mut bytes);
    out.extend(bytes.chunks_exact(2).map(|b| f32::from(u16::from_le_bytes([b[0], b[1]])) / 8192.0));
}

impl Executor for Sim {
    fn facts(&self) -> &ExecutorFacts {
        &self.facts
    }

    fn reserve(&mut self, pages: usize, slots: usize) -> Result<(), DeviceError> {
        self.slots.reserve(slots);
        let page_tokens = self.facts.page_tokens;
        if self.pages.len() < pages {
            self.pages.resize_with(pages, || vec![[0; 32]; page_tokens].into_boxed_slice());
            self.head.iter_mut().for_each(|head| head.reserve(pages));
        }
        Ok(())
    }

    fn forward(&mut self, spans: &[Span<'_>]) -> Result<Forward, DeviceError> {
        let mut logits = Vec::new();
        let mut captured = Vec::new();
        let mut hidden = Vec::new();
        let mut us = self.config.forward_us;
        spans.iter().try_for_each(|span| self.check(span))?;
        self.check_slots(spans)?;
        let before = spans.iter().map(|span| self.enter(span)).collect::<Result<Vec<_>, _>>()?;
        self.slots.advance(spans);
        self.head.iter_mut().for_each(|head| head.forward(spans));
        for (span, before) in spans.iter().zip(before) {
            let mut state = before;
            let mut passed = vec![before];
            for (offset, (token, position)) in span.tokens.iter().zip(span.token_positions()).enumerate() {
                let place = span.start + offset;
                state = advance(state, *token, place, position);
                passed.push(state);
                let page = span.pages[place / self.facts.page_tokens];
                self.pages[page.0 as usize][place % self.facts.page_tokens] = state;
                let last = offset + 1 == span.tokens.len();
                if span.logits == LogitRows::All || (span.logits == LogitRows::Last && last) {
                    self.logits(state, &mut logits);
                }
                if span.hidden {
                    hidden.extend(hidden_of(state));
                }
            }
            let queries = &passed[passed.len() - span.capture..];
            captured.extend(queries.iter().flat_map(|state| query_of(*state)));
            if let Some(flow) = span.state {
                self.slots.write(flow, passed);
            }
            us += self.span_us(span);
        }
        self.head.iter_mut().for_each(|head| head.keep_ends(spans, &hidden));
        let tokens = captured.len() / QUERY_COLUMNS;
        let queries = match tokens {
            0 => Queries::default(),
            _ => Queries { tokens, layers: 1, heads: 1, values: captured },
        };
        Ok(Forward { logits, queries, hidden, experts: None, compute: Nanos::from_seconds(us / 1e6) })
    }

    fn forward_while(
        &mut self,
        spans: &[Span<'_>],
        go_on: &mut dyn FnMut(Nanos) -> bool,
    ) -> Result<Forward, DeviceError> {
        spans.iter().try_for_each(|span| self.check(span))?;
        self.check_slots(spans)?;
        let us = self.config.forward_us + spans.iter().map(|span| self.span_us(span)).sum::<f64>();
        // Layers cost alike.
        let layers = (self.facts.attention_layers + self.facts.recurrent_layers).max(1);
        for layer in 1..layers {
            let after = Nanos::from_seconds(us / 1e6 * f64::from(layer) / f64::from(layers));
            if !go_on(after) {
                return Err(DeviceError::Interrupted { after });
            }
        }
        self.forward(spans)
    }

    fn rewind(&mut self, flow: StateFlow, tokens: usize) -> Result<(), DeviceError> {
        self.slots.rewind(flow, tokens)
    }

    fn predict(&mut self, spans: &[HeadSpan<'_>]) -> Result<Predicted, DeviceError> {
        let Some(head) = &self.head else {
            return Err(DeviceError::Contract("no prediction head is loaded".to_owned()));
        };
        let spans: Vec<(HeadSpan<'_>, Span<'_>)> = spans.iter().map(|span| (*span, span.span())).collect();
        for (span, written) in &spans {
            self.check(written)?;
            head.check(span)?;
        }
        let given = predicted(&self.config, &spans);
        self.head.iter_mut().for_each(|head| spans.iter().for_each(|(span, _)| head.wrote(span, false)));
        Ok(given)
    }

    fn page_end(&self, page: PageId) -> Option<Vec<f32>> {
        Some(self.head.as_ref()?.end(page)?.to_vec())
    }

    fn key_weights(
        &mut self,
        pages: &[PageId],
        window: std::ops::Range<usize>,
        queries: &Queries,
    ) -> Result<KeyWeights, DeviceError> {
        let Queries { tokens, layers, heads, ref values } = *queries;
        if window.is_empty() || window.end > pages.len() * self.facts.page_tokens {
            return Err(DeviceError::Contract(format!(
                "a window of keys {window:?} in {} pages",
                pages.len()
            )));
        }
        if (layers, heads) != (1, 1) || values.is_empty() || values.len() != tokens * QUERY_COLUMNS {
            return Err(DeviceError::Contract("queries that are not the pseudo-model's".to_owned()));
        }
        if let Some(page) = pages.iter().find(|page| page.0 as usize >= self.pages.len()) {
            return Err(not_reserved(*page));
        }
        let keys: Vec<u64> =
            window.clone().map(|place| drawn_from_key(self.state_at(pages, place))).collect();
        let queries = values.chunks_exact(QUERY_COLUMNS).map(drawn_from_query);
        let weights = queries.flat_map(|query| pseudo_weights(query, &keys)).collect();
        // As what depth adds to that many tokens.
        let kilotokens = window.len() as f64 / 1000.0;
        let us = tokens as f64 * kilotokens * self.config.prefill_us_per_token_per_kilotoken;
        let compute = Nanos::from_seconds((self.config.forward_us + us) / 1e6);
        Ok(KeyWeights { tokens, layers, heads, window: window.len(), weights, compute })
    }

    fn exported_bytes(&self) -> (usize, usize) {
        let slot = if self.facts.slot_bytes > 0 { size_of::<Digest>() } else { 0 };
        let notes = self.head.as_ref().map_or(0, HeadPages::bytes);
        (self.facts.page_tokens * size_of::<Digest>() + notes, slot)
    }

    fn export_page(&self, page: PageId) -> Result<Vec<u8>, DeviceError> {
        let held = self.pages.get(page.0 as usize).ok_or_else(|| not_reserved(page))?;
        let mut bytes = held.as_flattened().to_vec();
        bytes.extend(self.head.iter().flat_map(|head| head.export(page)));
        Ok(bytes)
    }

    fn import_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), DeviceError> {
        let expected = self.exported_bytes().0;
        let held = self.pages.get_mut(page.0 as usize).ok_or_else(|| not_reserved(page))?.as_flattened_mut();
        if expected != bytes.len() {
            return Err(DeviceError::exported_length("a page", expected, bytes.len()));
        }
        let (states, notes) = bytes.split_at(held.len());
        held.copy_from_slice(states);
        self.head.as_mut().map_or(Ok(()), |head| head.import(page, notes))
    }

    fn export_slot(&self, slot: SlotId) -> Result<Vec<u8>, DeviceError> {
        self.slots.export(slot)
    }

    fn import_slot(&mut self, slot: SlotId, position: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.slots.import(slot, position, bytes)
    }

    fn slot_digest(&self, slot: SlotId) -> [u8; 32] {
        self.slots.digest(slot)
    }

    fn restore_cost(&self, tokens: usize) -> Nanos {
        Nanos::from_seconds(tokens as f64 / 1000.0 * self.config.restore_us_per_kilotoken / 1e6)
    }

    fn page_digest(&self, page: PageId, tokens: usize) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        let state = self.pages.get(page.0 as usize).map(|page| &page[..]).unwrap_or_default();
        for digest in state.iter().take(tokens) {
            hasher.update(digest);
        }
        *hasher.finalize().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(sim: &mut Sim, chunks: &[&[u32]]) -> Vec<f32> {
        let pages: Vec<PageId> = (0..4).map(PageId).collect();
        sim.reserve(4, 0).unwrap();
        let mut start = 0;
        let mut logits = Vec::new();
        for tokens in chunks {
            let span = Span {
                positions: None,
                capture: 0,
                hidden: false,
                pages: &pages,
                start,
                tokens,
                state: None,
                logits: LogitRows::Last,
            };
            logits = sim.forward(&[span]).unwrap().logits;
            start += tokens.len();
        }
        logits
    }

    #[test]
    fn logits_depend_on_the_context_and_not_on_how_it_was_cut() {
        let tokens: Vec<u32> = (0..40).collect();
        let mut sim = Sim::new(&SimConfig::default(), 16);
        let whole = run(&mut sim, &[&tokens]);
        let digest = sim.page_digest(PageId(2), 8);
        let mut other = Sim::new(&SimConfig::default(), 16);
        assert_eq!(whole, run(&mut other, &[&tokens[..7], &tokens[7..8], &tokens[8..]]));
        assert_eq!(digest, other.page_digest(PageId(2), 8));
        assert_ne!(whole, run(&mut other, &[&tokens[1..]]));
    }

    #[test]
    fn a_deeper_token_costs_more() {
        let mut sim = Sim::new(&SimConfig::default(), 64);
        sim.reserve(64, 0).unwrap();
        let pages: Vec<PageId> = (0..64).map(PageId).collect();
        let tokens = [7; 64];
        let mut cost = |start| {
            let span = Span {
                positions: None,
                capture: 0,
                hidden: false,
                pages: &pages,
                start,
                tokens: &tokens,
                state: None,
                logits: LogitRows::None,
            };
            sim.forward(&[span]).unwrap().compute
        };
        assert!(cost(2048) > cost(0));
    }

    #[test]
    fn a_span_outside_its_pages_is_refused() {
        let mut sim = Sim::new(&SimConfig::default(), 4);
        sim.reserve(1, 0).unwrap();
        let span = |pages| Span {
            positions: None,
            capture: 0,
            hidden: false,
            pages,
            start: 0,
            tokens: &[1, 2, 3, 4, 5],
            state: None,
            logits: LogitRows::None,
        };
        assert!(sim.forward(&[span(&[PageId(0)])]).is_err());
        assert!(sim.forward(&[span(&[PageId(0), PageId(1)])]).is_err());
    }

    /// Runs chunks of tokens at positions, in one page; gives the queries of the last two tokens and what they make of the first keys.
    fn scored(sim: &mut Sim, tokens: &[u32], positions: Option<&[u32]>, cuts: &[usize]) -> KeyWeights {
        sim.reserve(4, 0).unwrap();
        let pages = [PageId(2), PageId(0), PageId(3)];
        let mut queries = Queries::default();
        let mut start = 0;
        for end in cuts {
            let span = Span {
                pages: &pages,
                start,
                tokens: &tokens[start..*end],
                positions: positions.map(|positions| &positions[start..*end]),
                capture: end.saturating_sub(start.max(tokens.len() - 2)),
                hidden: false,
                state: None,
                logits: LogitRows::None,
            };
            queries.append(sim.forward(&[span]).unwrap().queries);
            start = *end;
        }
        sim.key_weights(&pages, 3..30, &queries).unwrap()
    }

    #[test]
    fn weights_hang_on_content_alone() {
        let tokens: Vec<u32> = (0..40).collect();
        let sim = || Sim::new(&SimConfig::default(), 16);
        let whole = scored(&mut sim(), &tokens, None, &[40]);
        assert_eq!((whole.tokens, whole.layers, whole.heads, whole.window), (2, 1, 1, 27));
        for row in whole.weights.chunks_exact(27) {
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5);
        }
        assert_ne!(whole.weights[..27], whole.weights[27..], "each query has its own");
        for cuts in [&[7, 8, 39, 40][..], &[16, 38, 40]] {
            assert_eq!(scored(&mut sim(), &tokens, None, cuts).weights, whole.weights, "{cuts:?}");
        }
        let mut other = tokens.clone();
        other[20] = 99;
        assert_ne!(scored(&mut sim(), &other, None, &[40]).weights, whole.weights);
        assert_ne!(
            scored(&mut Sim::scorer(&SimConfig::default(), 16), &tokens, None, &[40]).weights,
            whole.weights
        );
    }

    #[test]
    fn a_gap_is_told_from_none_and_a_place_said_is_a_place() {
        let tokens: Vec<u32> = (0..40).collect();
        let places: Vec<u32> = (0..40).collect();
        let digests = |positions: Option<&[u32]>, cuts: &[usize]| {
            let mut sim = Sim::new(&SimConfig::default(), 16);
            scored(&mut sim, &tokens, positions, cuts);
            [(2, 16), (0, 16), (3, 8)].map(|(page, tokens)| sim.page_digest(PageId(page), tokens))
        };
        let dense = digests(None, &[40]);
        assert_eq!(digests(Some(&places), &[40]), dense);
        let gap: Vec<u32> = (0..20).chain(30..50).collect();
        let sparse = digests(Some(&gap), &[40]);
        assert_eq!(sparse[0], dense[0], "before the gap nothing differs");
        assert!(sparse[1] != dense[1] && sparse[2] != dense[2]);
        assert_eq!(digests(Some(&gap), &[20, 21, 40]), sparse);
        let wider: Vec<u32> = (0..20).chain(31..51).collect();
        assert_ne!(digests(Some(&wider), &[40])[1], sparse[1]);
    }

    #[test]
    fn a_sparse_span_costs_by_what_was_computed_before_it() {
        let mut sim = Sim::new(&SimConfig::default(), 64);
        sim.reserve(64, 0).unwrap();
        let pages: Vec<PageId> = (0..64).map(PageId).collect();
        let tokens = [7; 64];
        let far: Vec<u32> = (60_000..60_064).collect();
        let mut cost = |positions| {
            let span = Span {
                pages: &pages,
                start: 640,
                tokens: &tokens,
                positions,
                capture: 0,
                hidden: false,
                state: None,
                logits: LogitRows::None,
            };
            sim.forward(&[span]).unwrap().compute
        };
        assert_eq!(cost(Some(&far[..])), cost(None));
    }

    #[test]
    fn a_scorer_costs_what_its_keys_say_and_first_layers_their_share() {
        let config = SimConfig { snapshot_bytes: 4_800, ..SimConfig::default() };
        let seconds = |sim: &mut Sim, tokens: usize| {
            sim.reserve(400, 1).unwrap();
            let pages: Vec<PageId> = (0..400).map(PageId).collect();
            let tokens = vec![1; tokens];
            let span = Span {
                pages: &pages,
                start: 0,
                tokens: &tokens,
                positions: None,
                capture: 0,
                hidden: false,
                state: Some(StateFlow { from: None, to: SlotId(0), revocable: false }),
                logits: LogitRows::None,
            };
            sim.forward(&[span]).unwrap().compute.seconds()
        };
        let mut scorer = Sim::scorer(&config, 64);
        assert!((seconds(&mut scorer, 24_954) - 3.6).abs() < 0.01);
        assert_eq!((scorer.facts.page_bytes, scorer.facts.slot_bytes), (64 * 12 * 1024, 4_800));
        let whole = seconds(&mut Sim::new(&config, 64), 1_000) - 0.0005;
        let mut part = Sim::first_layers(&config, 64, 8).unwrap();
        assert!(((seconds(&mut part, 1_000) - 0.0005) / whole - 0.125).abs() < 1e-6);
        assert_eq!((part.facts.attention_layers, part.facts.recurrent_layers), (2, 6));
        assert_eq!((part.facts.page_bytes, part.facts.slot_bytes), (64 * 8 * 1024, 600));
        assert!(Sim::first_layers(&config, 64, 3).unwrap_err().contains("no attention layer"));
        assert!(Sim::first_layers(&config, 64, 65).unwrap_err().contains("has 64 layers"));
        let plain = SimConfig::default();
        assert_eq!(Sim::first_layers(&plain, 64, 4).unwrap().facts.attention_layers, 4);
    }
}
