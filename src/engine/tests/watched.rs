//! The scorer of sparse prefill, and the target it works for, watched and made to fail.

use std::sync::{Arc, Mutex};

use super::hybrid::{narrow, replies};
use super::sparse::{LONGEST, ask, growing, on_sim, run_pair, scored, serve_all, tokens};
use super::*;
use crate::config::QuerySource;
use crate::device::{
    DeviceError, Executor, ExecutorFacts, Forward, KeyWeights, PageId, Queries, SlotId, Span, StateFlow,
};
use crate::event::ScorerStart;
use crate::model;
use crate::prefill::scorer::{Scorer, ScorerSettings};

/// A device that fails at one call, and tells what it was asked for.
struct Watched {
    inner: Box<dyn Executor>,
    /// Calls that succeed before one fails.
    left: usize,
    failure: fn() -> DeviceError,
    spans: Arc<Mutex<Vec<Seen>>>,
}

/// A span: its place, its tokens, their positions.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    start: usize,
    tokens: Vec<u32>,
    positions: Option<Vec<u32>>,
}

impl Watched {
    fn passes(&mut self) -> Result<(), DeviceError> {
        self.left = self.left.wrapping_sub(1);
        if self.left == usize::MAX { Err((self.failure)()) } else { Ok(()) }
    }
}

impl Executor for Watched {
    delegate_state!();

    fn reserve(&mut self, pages: usize, slots: usize) -> Result<(), DeviceError> {
        self.passes()?;
        self.inner.reserve(pages, slots)
    }

    fn forward(&mut self, spans: &[Span<'_>]) -> Result<Forward, DeviceError> {
        self.passes()?;
        self.spans.lock().unwrap().extend(spans.iter().map(|span| Seen {
            start: span.start,
            tokens: span.tokens.to_vec(),
            positions: span.positions.map(<[u32]>::to_vec),
        }));
        self.inner.forward(spans)
    }

    fn key_weights(
        &mut self,
        pages: &[PageId],
        window: std::ops::Range<usize>,
        queries: &Queries,
    ) -> Result<KeyWeights, DeviceError> {
        self.passes()?;
        self.inner.key_weights(pages, window, queries)
    }
}

/// Serves the requests with a scorer that fails at its `nth` call, and gives the events.
fn with_failing_scorer(nth: usize, failure: fn() -> DeviceError, requests: usize) -> Vec<Event> {
    let config = on_sim();
    let Loaded { executor, text, scorer, .. } = model::load(&config).unwrap();
    let inner = scorer.unwrap().executor;
    let spans = Arc::default();
    let scorer = Box::new(Watched { inner, left: nth, failure, spans });
    let ground = narrow(SnapshotPolicy::EVERY, config.scheduler.clone(), BLOCK, LONGEST, 200);
    let run = ground.run_on(Loaded { executor, text, scorer: None, draft: None }, |scheduler, clock, out| {
        let settings = ScorerSettings::of(&config.specprefill, 96, true);
        let scorer = Scorer::new(scorer, [0; 32], Vec::new(), settings);
        scheduler.attach_sparse(SparseSide::new(Some(scorer), config.clone()));
        serve_all(&growing(requests), scheduler, clock, out);
    });
    run.1
}

#[test]
fn a_scorer_that_fails_anywhere_costs_one_request_its_scoring_and_no_reply_a_word() {
    let mut dense = on_sim();
    dense.specprefill.enabled = Some(false);
    let ((), dense) = run_pair(&dense, |s, clock, out| serve_all(&growing(3), s, clock, out));
    let failures: [fn() -> DeviceError; 3] = [
        || DeviceError::Contract("asked to".to_owned()),
        || DeviceError::OutOfMemory { bytes: 1, problem: "asked to".to_owned() },
        || DeviceError::StateLost("asked to".to_owned()),
    ];
    for failure in failures {
        for nth in 0..24 {
            let events = with_failing_scorer(nth, failure, 3);
            let fell_back: Vec<_> = events
                .iter()
                .filter(|event| matches!(event.body, Body::SparseFellBack { .. }))
                .filter_map(|event| event.request)
                .collect();
            assert_eq!(fell_back.len(), 1, "call {nth}, {}", failure());
            let dense_reply = &replies(&dense)[&fell_back[0]];
            assert_eq!(&replies(&events)[&fell_back[0]], dense_reply, "call {nth}");
            assert_eq!(scored(&events).len(), 2, "call {nth}: the other requests are scored");
        }
    }
}

#[test]
fn kept_tokens_stand_at_their_own_positions_and_the_reply_at_the_prompts_end() {
    let config = on_sim();
    let Loaded { executor, text, scorer, .. } = model::load(&config).unwrap();
    let spans: Arc<Mutex<Vec<Seen>>> = Arc::default();
    let watched = Watched {
        inner: executor,
        left: usize::MAX,
        failure: || DeviceError::Contract(String::new()),
        spans: Arc::clone(&spans),
    };
    let ground = narrow(SnapshotPolicy::EVERY, config.scheduler.clone(), BLOCK, LONGEST, 200);
    let prompt = tokens(0, 1_500);
    let loaded = Loaded { executor: Box::new(watched), text, scorer: None, draft: None };
    let ((), events) = ground.run_on(loaded, |scheduler, clock, out| {
        let settings = ScorerSettings::of(&config.specprefill, 96, true);
        let scorer = Scorer::new(scorer.unwrap().executor, [0; 32], Vec::new(), settings);
        scheduler.attach_sparse(SparseSide::new(Some(scorer), config.clone()));
        scheduler.submit(Submission { protected_tokens: 130, ..ask(prompt.clone(), None) }, clock, out);
        drain(scheduler, clock, out);
    });
    let scored = scored(&events)[0];
    let reply = &replies(&events)[&RequestId(1)];
    let kept = scored.kept.iter().flat_map(|(start, end)| *start as u32..*end as u32);
    let wanted: Vec<u32> = (0..130).chain(kept).chain(1_500..1_500 + reply.len() as u32 - 1).collect();
    let spans = spans.lock().unwrap();
    let mut computed = Vec::new();
    for span in spans.iter() {
        assert_eq!(span.start, computed.len(), "places follow each other");
        let plain = || (span.start as u32..).take(span.tokens.len()).collect();
        let positions = span.positions.clone().unwrap_or_else(plain);
        for (position, token) in positions.iter().zip(&span.tokens) {
            let said = (*position as usize).checked_sub(1_500).map(|n| reply[n]);
            assert_eq!(*token, said.unwrap_or_else(|| prompt[*position as usize]));
        }
        computed.extend(positions);
    }
    assert_eq!(computed, wanted);
    let first = spans.iter().find(|span| span.positions.is_some()).unwrap();
    let positions = first.positions.as_ref().unwrap();
    let spread = (positions[positions.len() - 1] - positions[0]) as usize + 1;
    assert!(spread > positions.len(), "the first sparse chunk is no dense run: {positions:?}");
}

#[test]
fn a_scorer_can_be_restored_from_whatever_the_length_of_the_window_before() {
    for queries in [QuerySource::Lookahead, QuerySource::PromptAndLookahead, QuerySource::PromptTail] {
        let mut config = on_sim();
        config.specprefill.queries = queries;
        for length in 570..570 + BLOCK + 2 {
            let prompts = [(tokens(0, length), None), (tokens(0, length + 400), None)];
            let ((), events) = run_pair(&config, |s, clock, out| serve_all(&prompts, s, clock, out));
            let scored = scored(&events);
            assert_eq!(scored[1].start, ScorerStart::Warm, "{queries:?}: a window of {length}");
            assert_eq!(
                scored[0].draft_stored_tokens,
                Some(scored[1].draft_cached_tokens),
                "{queries:?}: {length}"
            );
        }
    }
}
