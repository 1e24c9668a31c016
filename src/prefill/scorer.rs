//! The scorer: a small model that reads the uncached suffix and says which of its tokens matter.
//!
//! It is a second resident model with a prefix cache of its own. What it reads is the *window*, the prompt from its origin on, as a
//! sequence that starts at position 0; so its cache is keyed by the window's tokens, and a window that starts elsewhere is another
//! sequence, read from nothing. A scoring goes in steps, so that its caller can do something else between them: prefill in chunks,
//! then a short look-ahead whose queries are captured, then what those queries make of the window's keys ([`Scorer::finish`]).
//!
//! Its recurrent state is captured once a scoring, at the last block boundary that the prefill can stop at
//! ([`last_reachable_boundary`]). What the look-ahead computes is never stored.
//!
//! Source: Liu, Chen, Zhang, "Speculative Prefill" (2025, arXiv 2502.02789), for capture and look-ahead; the cache and its boundary
//! after Oliver Yu's account of oMLX (CC BY 4.0).

use std::collections::HashMap;

use super::sparse::last_reachable_boundary;
use crate::cache::boundary::Boundaries;
use crate::cache::companion::{Companion, CompanionFailed, Held, Piece};
use crate::cache::served::common_prefix;
use crate::config::{QuerySource, SnapshotPolicy, SpecPrefillConfig};
use crate::decode::{Row, Sampler, Sampling};
use crate::device::{Executor, KeyWeights, LogitRows, Queries};
use crate::event::{LaneId, Nanos, RequestId, ScorerStart, Stamp};

/// Temperature and nucleus of the look-ahead: likely continuations, not only the likeliest.
const LOOKAHEAD: Sampling =
    Sampling { temperature: 0.6, top_k: 0, top_p: 0.95, min_p: 0.0, repetition_penalty: 1.0, seed: 0 };

/// Why a window could not be scored. The suffix is then computed densely.
#[derive(Debug, thiserror::Error)]
pub enum ScoringFailed {
    /// There is none.
    #[error(
        "no scorer is loaded: set `model.draft` to a smaller model with the same tokenizer, or `specprefill.scorer` to \
         `self:N` for the model's own first layers"
    )]
    NoScorer,
    /// The scorer's device refused, or there is no room for its state.
    #[error("the scorer: {0}")]
    Model(#[from] CompanionFailed),
    /// The window does not fit its context.
    #[error(
        "a window of {window} tokens and {steps} of look-ahead do not fit the scorer's context of {context}; \
         use a scorer with a longer context"
    )]
    Context {
        /// Tokens of the window.
        window: usize,
        /// Tokens to decode.
        steps: usize,
        /// Tokens the scorer's context holds.
        context: usize,
    },
}

/// What a scorer is set to do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScorerSettings {
    /// Steps of look-ahead, or tokens of the tail.
    pub lookahead: usize,
    /// Whose queries score.
    pub queries: QuerySource,
    /// Seed of the look-ahead.
    pub seed: u64,
    /// Tokens of a prefill chunk.
    pub chunk_tokens: usize,
    /// Upper bound of its state in RAM, bytes.
    pub ram_bytes: u64,
}

impl ScorerSettings {
    /// The configured ones, for a scorer that can decode or not.
    pub fn of(config: &SpecPrefillConfig, chunk_tokens: usize, decodes: bool) -> ScorerSettings {
        let queries = if decodes { config.queries } else { QuerySource::PromptTail };
        let SpecPrefillConfig { lookahead, seed, ram_bytes, .. } = *config;
        ScorerSettings { lookahead, queries, seed, chunk_tokens, ram_bytes }
    }

    /// Tokens that are decoded at most.
    fn steps(&self) -> usize {
        match self.queries {
            QuerySource::Lookahead => self.lookahead,
            QuerySource::PromptAndLookahead => self.lookahead.saturating_sub(1),
            QuerySource::PromptTail => 0,
        }
    }

    /// Tokens of a window before its last piece: the tokens that give queries, or one for its logits.
    fn tail_of(&self, window: usize) -> usize {
        window.saturating_sub(self.window_queries().max(1))
    }

    /// Queries that the window's own last tokens give.
    fn window_queries(&self) -> usize {
        match self.queries {
            QuerySource::Lookahead => 0,
            QuerySource::PromptAndLookahead => 1,
            QuerySource::PromptTail => self.lookahead,
        }
    }
}

/// The scorer, its cache, and what it read last in each lane.
pub struct Scorer {
    model: Companion,
    settings: ScorerSettings,
    /// Tokens that end a reply, and the look-ahead.
    stops: Vec<u32>,
    last: HashMap<LaneId, LastWindow>,
}

/// A window as it was read.
#[derive(Debug)]
struct LastWindow {
    origin: usize,
    tokens: Vec<u32>,
    /// Boundaries of it that were stored, tokens.
    stored: Vec<usize>,
}

/// A scoring under way. Ends with [`Scorer::finish`] or [`Scorer::abandon`].
#[derive(Debug)]
pub struct Scoring {
    held: Held,
    lane: LaneId,
    origin: usize,
    /// The window, then what was decoded.
    tokens: Vec<u32>,
    window: usize,
    computed: usize,
    cached: usize,
    start: ScorerStart,
    use_cache: bool,
    /// Where recurrent state is captured.
    boundary: Option<usize>,
    sampler: Sampler,
    queries: Queries,
    prefill: Nanos,
    lookahead: Nanos,
    stopped: bool,
}

impl Scoring {
    /// Tokens of the window that are prefilled, and that are to be.
    pub fn progress(&self) -> (u64, u64) {
        let done = self.computed.min(self.window) - self.cached;
        (done as u64, (self.window - self.cached) as u64)
    }

    /// Whether the window has been prefilled.
    fn is_prefilled(&self) -> bool {
        self.computed >= self.window
    }
}

/// What a scoring gave.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoredWindow {
    /// Absolute position of its first token.
    pub origin: usize,
    /// Tokens of the window.
    pub window: usize,
    /// Of those, tokens restored.
    pub cached: usize,
    /// Why it started there.
    pub start: ScorerStart,
    /// Boundary whose recurrent state was newly stored, tokens from the origin.
    pub stored: Option<usize>,
    /// Tokens decoded.
    pub steps: usize,
    /// Compute time of the prefill.
    pub prefill: Nanos,
    /// Compute time of the look-ahead.
    pub lookahead: Nanos,
    /// What the captured queries make of the window's keys.
    pub weights: KeyWeights,
}

impl Scorer {
    /// A scorer with an empty cache. `text` is the digest of the tokenizer, `stops` the tokens that end a reply.
    pub fn new(
        executor: Box<dyn Executor>,
        text: [u8; 32],
        stops: Vec<u32>,
        settings: ScorerSettings,
    ) -> Scorer {
        let model = Companion::new(executor, text, settings.ram_bytes, 1);
        Scorer { model, settings, stops, last: HashMap::new() }
    }

    /// Starts on a window, from what its cache holds of it, or from nothing where it is not to `use_cache`; its state is not stored then either. At least
    /// one token of it is computed. A scorer of recurrent layers has room for one scoring at a time.
    pub fn begin(
        &mut self,
        request: RequestId,
        lane: LaneId,
        window: Vec<u32>,
        origin: usize,
        use_cache: bool,
        now: Stamp,
    ) -> Result<Scoring, ScoringFailed> {
        let seed = self.settings.seed;
        let (steps, context) = (self.settings.steps(), self.model.facts().context_tokens);
        if window.is_empty() || window.len() + steps > context {
            return Err(ScoringFailed::Context { window: window.len(), steps, context });
        }
        // What gives queries is computed anew in one piece, warm or cold.
        let tail = self.settings.tail_of(window.len());
        let found = self.model.look_up(&window, tail + 1, use_cache)?;
        let cached = found.cached;
        let boundary = self.boundary(cached, window.len()).filter(|_| use_cache);
        let boundaries = Boundaries {
            policy: SnapshotPolicy::EVERY,
            block_tokens: self.model.block_tokens(),
            prompt_tokens: window.len(),
            branch: None,
            within: boundary.map_or((0, 0), |boundary| (boundary, boundary)),
        };
        let held = self.model.begin(request, found, boundaries, false, now)?;
        Ok(Scoring {
            held,
            lane,
            origin,
            start: match use_cache {
                true => self.start(lane, origin, &window, cached),
                false => ScorerStart::CacheOff,
            },
            use_cache,
            window: window.len(),
            tokens: window,
            computed: cached,
            cached,
            boundary,
            sampler: Sampler::new(Sampling { seed, ..LOOKAHEAD }),
            queries: Queries::default(),
            prefill: Nanos(0),
            lookahead: Nanos(0),
            stopped: false,
        })
    }

    /// Where the recurrent state of a window is captured: the last block boundary that its prefill can stop at.
    fn boundary(&self, cached: usize, window: usize) -> Option<usize> {
        let (block, tail) = (self.model.block_tokens(), self.settings.tail_of(window));
        let reachable = last_reachable_boundary(cached, tail + 1, self.settings.chunk_tokens, block);
        match reachable {
            // Behind the tail only the window's end is ever reached.
            Some(boundary) if boundary > tail && boundary < window => {
                Some(tail / block * block).filter(|boundary| *boundary > cached)
            }
            reachable => reachable,
        }
    }

    /// Why a window starts where it does.
    fn start(&self, lane: LaneId, origin: usize, window: &[u32], cached: usize) -> ScorerStart {
        match self.last.get(&lane) {
            _ if cached > 0 => ScorerStart::Warm,
            None => ScorerStart::First,
            Some(last) if last.origin != origin => ScorerStart::OriginMoved { from: last.origin as u64 },
            Some(last) => {
                let shared = common_prefix(&last.tokens, window);
                match last.stored.iter().any(|stored| *stored <= shared) {
                    true => ScorerStart::Evicted,
                    false => ScorerStart::Diverged { shared: shared as u64 },
                }
            }
        }
    }

    /// Does the next piece of work: a chunk of the prefill, or a token of the look-ahead. Gives the time it took; `None` once there is nothing
    /// left to do but to [`Scorer::finish`].
    pub fn step(&mut self, scoring: &mut Scoring, now: Stamp) -> Result<Option<Nanos>, ScoringFailed> {
        if scoring.is_prefilled() {
            return self.look_ahead(scoring, now);
        }
        let start = scoring.computed;
        let end = self.chunk_end(scoring);
        let last = end == scoring.window;
        let wants_logits = last && self.settings.steps() > 0;
        let capture = if last { self.settings.window_queries().min(end - start) } else { 0 };
        let took = self.forward(scoring, end, capture, wants_logits, now)?;
        scoring.prefill.0 += took.0;
        Ok(Some(took))
    }

    /// Where the chunk that comes next ends. The tokens that give queries are not divided among chunks.
    fn chunk_end(&self, scoring: &Scoring) -> usize {
        let (start, tail) = (scoring.computed, self.settings.tail_of(scoring.window));
        if start >= tail {
            return scoring.window;
        }
        let stop = scoring.held.recurrent.as_ref().and_then(|state| state.next_stop(start));
        let wanted = super::chunk(start, tail, self.settings.chunk_tokens, stop);
        let tokens = wanted.len();
        super::admitted(wanted, self.model.admits(start, tokens)).end
    }

    fn look_ahead(&mut self, scoring: &mut Scoring, now: Stamp) -> Result<Option<Nanos>, ScoringFailed> {
        let decoded = scoring.computed - scoring.window;
        if scoring.stopped || decoded >= self.settings.steps() {
            return Ok(None);
        }
        let end = scoring.computed + 1;
        let more = decoded + 1 < self.settings.steps();
        let took = self.forward(scoring, end, 1, more, now)?;
        scoring.lookahead.0 += took.0;
        Ok(Some(took))
    }

    /// Computes tokens up to `end`, and where logits are wanted draws the token after them.
    fn forward(
        &mut self,
        scoring: &mut Scoring,
        end: usize,
        capture: usize,
        wants_logits: bool,
        now: Stamp,
    ) -> Result<Nanos, ScoringFailed> {
        self.model.extend(&mut scoring.held, end, now)?;
        let piece = Piece {
            place: scoring.computed,
            tokens: &scoring.tokens[scoring.computed..end],
            positions: None,
            capture,
            state: scoring.held.recurrent.as_ref().map(|state| state.flow(end)),
            logits: if wants_logits { LogitRows::Last } else { LogitRows::None },
        };
        let forward = self.model.forward(&scoring.held, piece)?;
        scoring.computed = end;
        self.model.advance(&mut scoring.held, end);
        scoring.queries.append(forward.queries);
        // A stop token's query is still taken; nothing after it means anything.
        scoring.stopped |= end > scoring.window && self.stops.contains(&scoring.tokens[end - 1]);
        if wants_logits && !scoring.stopped {
            scoring.tokens.push(scoring.sampler.choose(&Row::of(&forward.logits), &scoring.tokens));
        }
        Ok(forward.compute)
    }

    /// Weighs the window's keys, stores the window's whole blocks and its captured state, and gives the rest back.
    pub fn finish(&mut self, scoring: Scoring, now: Stamp) -> Result<ScoredWindow, ScoringFailed> {
        let weights = match self.model.key_weights(&scoring.held, 0..scoring.window, &scoring.queries) {
            Ok(weights) => weights,
            Err(error) => {
                let error = error.into();
                self.give_up(scoring, &error);
                return Err(error);
            }
        };
        let stored = if scoring.use_cache { self.store(&scoring, now) } else { None };
        let scored = ScoredWindow {
            origin: scoring.origin,
            window: scoring.window,
            cached: scoring.cached,
            start: scoring.start,
            stored,
            steps: scoring.computed - scoring.window,
            prefill: scoring.prefill,
            lookahead: scoring.lookahead,
            weights,
        };
        self.abandon(scoring);
        Ok(scored)
    }

    /// Stores the window's whole blocks and its captured state. Gives the boundary up to which the next scoring can start from it, where that is new.
    fn store(&mut self, scoring: &Scoring, now: Stamp) -> Option<usize> {
        let window = &scoring.tokens[..scoring.window];
        let stored = self.model.store(window, &scoring.held, now);
        let block = self.model.block_tokens();
        let (boundary, is_new) = match self.model.is_recurrent() {
            true => (scoring.boundary, stored.new_snapshots > 0),
            false => (Some(window.len() / block * block), stored.new_blocks > 0),
        };
        let before = self.last.remove(&scoring.lane).filter(|last| last.origin == scoring.origin);
        let shared = before.as_ref().map_or(0, |last| common_prefix(&last.tokens, window));
        let kept = before.into_iter().flat_map(|last| last.stored).filter(|stored| *stored <= shared);
        // What this one started from is held too, whoever stored it.
        let stored = kept.chain(boundary).chain([scoring.cached]).filter(|stored| *stored > 0).collect();
        let last = LastWindow { origin: scoring.origin, tokens: window.to_vec(), stored };
        self.last.insert(scoring.lane, last);
        boundary.filter(|_| is_new)
    }

    /// Ends a scoring that failed; see [`Companion::give_up`].
    pub fn give_up(&mut self, scoring: Scoring, error: &ScoringFailed) {
        match error {
            ScoringFailed::Model(error) => self.model.give_up(scoring.held, error),
            ScoringFailed::NoScorer | ScoringFailed::Context { .. } => self.abandon(scoring),
        }
    }

    /// Gives back what a scoring holds; nothing of it is stored.
    pub fn abandon(&mut self, scoring: Scoring) {
        self.model.release(scoring.held);
    }

    /// Drops everything it has cached. Gives the blocks dropped.
    pub fn evict_all(&mut self, now: Stamp) -> usize {
        self.model.evict_all(now)
    }
}
