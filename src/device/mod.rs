//! The seam between models and arithmetic.
//!
//! Two traits. [`Executor`] is a model resident on a device, as the engine sees it: pages of state and one
//! `forward` over a batch of spans. [`ops::Device`] is what an architecture is written against: a dozen coarse
//! operations that a device may fuse as it likes. `cpu` and `mlx` implement [`ops::Device`] and get their executor from
//! [`crate::model`]; `sim` does no arithmetic and implements [`Executor`] directly.

#[cfg(test)]
pub(crate) mod conformance;
pub mod cpu;
pub(crate) mod head_pages;
pub mod identity;
#[cfg(any(feature = "mlx", target_os = "macos"))]
pub mod mlx;
pub mod ops;
pub mod sim;
pub mod slots;
pub mod weights;

use crate::event::{ExpertsTouched, Identity, Nanos};

/// Index of a page: the state of one block of tokens in every layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u32);

/// Index of a slot: what all recurrent layers remember of one sequence at one position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u32);

/// Which recurrent state a span starts from and where the state after its last token goes.
///
/// A span that reads one slot and writes another leaves the first as it was: a snapshot, a restore and a fork each cost a slot, and
/// whatever copying they need is part of the pass that computes the span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateFlow {
    /// The state before the span's first token; `None` for the start of a sequence.
    pub from: Option<SlotId>,
    /// The state after its last token. May be `from`.
    pub to: SlotId,
    /// Whether [`Executor::rewind`] may follow. `from` must then be another slot than `to`.
    pub revocable: bool,
}

/// Why a device could not do something.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// A weight has a shape or encoding the device cannot take.
    #[error("weight `{name}`: {problem}")]
    Weight {
        /// The tensor's name.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Memory ran out.
    #[error("the device cannot hold {}: {problem}; lower `cache.ram_bytes` or use a smaller model", more(*bytes))]
    OutOfMemory {
        /// Bytes asked for; 0 where the device does not say.
        bytes: u64,
        /// What was being allocated.
        problem: String,
    },
    /// A forward failed in the middle, and with it went state that it only read.
    #[error("the device lost all state ({0}); whatever was cached is computed anew")]
    StateLost(String),
    /// A forward that may be interrupted was, between two layers.
    #[error("the forward was interrupted between two layers, after {} µs", after.0 / 1_000)]
    Interrupted {
        /// Compute time until then.
        after: Nanos,
    },
    /// A call broke the interface's contract.
    #[error("device contract broken: {0}")]
    Contract(String),
}

impl DeviceError {
    /// Exported state that is not `expected` bytes long.
    pub(crate) fn exported_length(what: &str, expected: usize, found: usize) -> DeviceError {
        DeviceError::Contract(format!("{what} of {expected} bytes was given {found}"))
    }
}

fn more(bytes: u64) -> String {
    if bytes == 0 { "more".to_owned() } else { format!("{bytes} more bytes") }
}

/// What an executor is, for the engine and for the cache's identity.
#[derive(Debug, Clone, PartialEq)]
pub struct ExecutorFacts {
    /// Display name of the model.
    pub model: String,
    /// Digest of weights and configuration; part of the cache identity.
    pub digest: [u8; 32],
    /// `cpu`, `mlx`, `sim`.
    pub device: &'static str,
    /// Instruction set or backend chosen at run time.
    pub kernel: String,
    /// The kernel family: executors of one family produce the same state, so they may share cached state.
    pub family: &'static str,
    /// `int8`, `f32`, `bf16`, `f16`, `none`.
    pub precision: &'static str,
    /// What the device promises about routes.
    pub identity: Identity,
    /// Vocabulary size: length of a row of logits.
    pub vocab: usize,
    /// Tokens the context holds.
    pub context_tokens: usize,
    /// Tokens a page holds.
    pub page_tokens: usize,
    /// Bytes a page holds, all attention layers.
    pub page_bytes: usize,
    /// Bytes a slot holds, all recurrent layers; 0 where there are none, and then spans have no [`StateFlow`].
    pub slot_bytes: usize,
    /// Layers whose state is in pages.
    pub attention_layers: u32,
    /// Layers whose state is in slots.
    pub recurrent_layers: u32,
    /// Layers of the multi-token-prediction head, whose state is in pages too; 0 where none is loaded.
    pub head_layers: u32,
    /// Numbers of a hidden state: length of a row of [`Forward::hidden`]; 0 where no head is loaded.
    pub hidden: usize,
}

/// Which rows of logits a span wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitRows {
    /// None.
    None,
    /// The last token's.
    Last,
    /// Every token's.
    All,
}

impl LogitRows {
    /// How many rows of a span of `tokens` tokens.
    pub fn count(self, tokens: usize) -> usize {
        match self {
            LogitRows::None => 0,
            LogitRows::Last => tokens.min(1),
            LogitRows::All => tokens,
        }
    }
}

/// Consecutive tokens of one sequence, to be computed in one forward.
#[derive(Debug, Clone, Copy)]
pub struct Span<'a> {
    /// The sequence's pages from place 0, covering at least `start + tokens.len()` places. Those before `start` hold computed state;
    /// those from `start` on are written and belong to this sequence alone.
    pub pages: &'a [PageId],
    /// Tokens of the sequence that were computed before: the first token's place in the pages. Where no token was skipped before it, also its
    /// position.
    pub start: usize,
    /// The tokens.
    pub tokens: &'a [u32],
    /// Position of every token, ascending, where some before it or among them were skipped: what rotary embedding goes by. `None` means
    /// `start..start + tokens.len()`.
    pub positions: Option<&'a [u32]>,
    /// How many of the last tokens' queries are wanted, of all attention layers.
    pub capture: usize,
    /// Recurrent state; `Some` exactly where the model has recurrent layers.
    pub state: Option<StateFlow>,
    /// Which logits are wanted.
    pub logits: LogitRows,
    /// Whether every token's hidden state is wanted, for the prediction head; only where one is loaded.
    pub hidden: bool,
}

impl Span<'_> {
    /// Position of each token, in order.
    pub fn token_positions(&self) -> impl Iterator<Item = u32> {
        let place = self.start as u32;
        (0..self.tokens.len()).map(move |index| match self.positions {
            Some(positions) => positions[index],
            None => place + index as u32,
        })
    }

    /// Checks its list of positions and how many queries it asks for, against each other and a context of `context` tokens.
    pub(crate) fn check_positions(&self, context: usize) -> Result<(), DeviceError> {
        let (tokens, capture) = (self.tokens.len(), self.capture);
        if capture > tokens {
            return Err(DeviceError::Contract(format!("queries of {capture} tokens of a span of {tokens}")));
        }
        let Some(positions) = self.positions else { return Ok(()) };
        let first = positions.first().map_or(0, |first| *first as usize);
        let problem = if positions.len() != tokens {
            format!("{} positions for {tokens} tokens", positions.len())
        } else if let Some(pair) = positions.windows(2).find(|pair| pair[0] >= pair[1]) {
            format!("position {} behind {}: positions must ascend", pair[1], pair[0])
        } else if first < self.start {
            format!("position {first} of a token with {} before it", self.start)
        } else if let Some(last) = positions.last().filter(|last| **last as usize >= context) {
            format!("position {last} lies beyond the context of {context} tokens")
        } else {
            return Ok(());
        };
        Err(DeviceError::Contract(problem))
    }

    /// Where its recurrent state comes from and goes to, for a device at work on a recurrent layer: [`slots::SlotTable::check`] lets no span of a
    /// recurrent model through without.
    pub(crate) fn flow(&self) -> StateFlow {
        self.state.expect("a span of a recurrent model names its state")
    }
}

/// What a forward produced.
#[derive(Debug, Clone, PartialEq)]
pub struct Forward {
    /// The logits asked for, row after row in span order, each `vocab` long.
    pub logits: Vec<f32>,
    /// The queries asked for. Those of the spans follow each other.
    pub queries: Queries,
    /// Hidden states after the final norm of the spans that want them, row after row in span order, each [`ExecutorFacts::hidden`] long.
    pub hidden: Vec<f32>,
    /// Routed experts that the forward touched; `None` for a model without, and where the device does not tell.
    pub experts: Option<ExpertsTouched>,
    /// Compute time: measured, or what the cost model says.
    pub compute: Nanos,
}

/// Queries of some tokens, after their rotary embedding.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Queries {
    /// Tokens.
    pub tokens: usize,
    /// Attention layers.
    pub layers: usize,
    /// Query heads of a layer.
    pub heads: usize,
    /// `[tokens, layers, heads, head_dim]`
    pub values: Vec<f32>,
}

impl Queries {
    /// Puts those of further tokens behind these.
    pub fn append(&mut self, more: Queries) {
        if self.tokens == 0 {
            *self = more;
        } else {
            self.tokens += more.tokens;
            self.values.extend(more.values);
        }
    }
}

/// Consecutive tokens of one sequence, to be read by the prediction head in one pass.
///
/// The head's entry at place `p` is made of the token there and of a hidden state: the target's at place `p - 1`, or, while the head drafts several
/// tokens in a row, its own. Place 0 has none, and none reads it. Entries made of the target's hidden states depend on the tokens up to their place
/// and on nothing else, so they are part of a page's state; those made of the head's own have to be written again before anything is stored.
#[derive(Debug, Clone, Copy)]
pub struct HeadSpan<'a> {
    /// The sequence's pages from place 0, covering at least `start + tokens.len()` places. The entries of places from `start` on are written.
    pub pages: &'a [PageId],
    /// Place of the first token, at least 1. Every place from 1 to it has its entry.
    pub start: usize,
    /// The tokens.
    pub tokens: &'a [u32],
    /// Position of every token, as in [`Span::positions`].
    pub positions: Option<&'a [u32]>,
    /// The hidden state before every token, `[tokens, hidden]`.
    pub hidden: &'a [f32],
    /// Whether the logits of what follows the last token are wanted, and the head's own hidden state there.
    pub predict: bool,
}

impl<'a> HeadSpan<'a> {
    /// The places it writes, as a span of the model itself.
    pub(crate) fn span(&self) -> Span<'a> {
        let HeadSpan { pages, start, tokens, positions, predict, .. } = *self;
        let logits = if predict { LogitRows::Last } else { LogitRows::None };
        Span { pages, start, tokens, positions, capture: 0, state: None, logits, hidden: false }
    }
}

/// What the prediction head made of its spans.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Predicted {
    /// Logits of the spans that want them, in order, each `vocab` long.
    pub logits: Vec<f32>,
    /// The head's hidden state after its output norm, of the same spans, each [`ExecutorFacts::hidden`] long.
    pub hidden: Vec<f32>,
    /// Compute time.
    pub compute: Nanos,
}

/// What queries make of keys: for every query, layer and head a softmax over a window of keys.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyWeights {
    /// Queries.
    pub tokens: usize,
    /// Attention layers.
    pub layers: usize,
    /// Query heads of a layer.
    pub heads: usize,
    /// Keys.
    pub window: usize,
    /// `[tokens, layers, heads, window]`
    pub weights: Vec<f32>,
    /// Compute time.
    pub compute: Nanos,
}

/// Memory a device holds, bytes, as its allocator counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// In use: weights, state, and what a forward works with.
    pub active: u64,
    /// The most that was ever in use.
    pub peak: u64,
    /// Freed and kept for the next allocation; `None` where the allocator keeps nothing.
    pub cached: Option<u64>,
    /// What `active` is kept below; `None` where nothing keeps it.
    pub limit: Option<u64>,
}

/// A model resident on a device.
pub trait Executor: Send {
    /// What it is.
    fn facts(&self) -> &ExecutorFacts;

    /// Makes pages `0..pages` and slots `0..slots` usable. Their contents are undefined until written. There
    /// are never fewer than before, but after [`DeviceError::StateLost`] there are none until they are reserved anew.
    fn reserve(&mut self, pages: usize, slots: usize) -> Result<(), DeviceError>;

    /// Computes the spans, each of another sequence, in one batch. After an error the positions and slots it was to write are undefined, and all
    /// others hold what they held, but after [`DeviceError::StateLost`], which leaves nothing defined. So after
    /// [`DeviceError::OutOfMemory`] a span that does not overwrite the slot it starts from may be asked for again.
    fn forward(&mut self, spans: &[Span<'_>]) -> Result<Forward, DeviceError>;

    /// The same for work that gives way: before every layer but the first it asks whether to `go_on`, with the compute time so far, and where the answer
    /// is no it ends with [`DeviceError::Interrupted`]. That is as any other error of a forward: what it was to write is undefined, all else holds what
    /// it held, and the spans may be asked for again from the state they started from. A span must not overwrite that state, or it cannot be. An
    /// executor without layers to stop between does not ask.
    fn forward_while(
        &mut self,
        spans: &[Span<'_>],
        go_on: &mut dyn FnMut(Nanos) -> bool,
    ) -> Result<Forward, DeviceError> {
        let _ = go_on;
        self.forward(spans)
    }

    /// Takes back the memory of what a forward gave, for the next one. Logits of a few rows are large enough that an allocator returns theirs to the
    /// system each time.
    fn take_back(&mut self, forward: Forward) {
        drop(forward);
    }

    /// Makes `flow.to` the state after the first `tokens` tokens of its span in the last forward, which was revocable and of at most
    /// [`slots::MAX_REVOCABLE`] tokens. May be repeated until the next forward. Pages need no such thing: positions are
    /// overwritten.
    fn rewind(&mut self, flow: StateFlow, tokens: usize) -> Result<(), DeviceError>;

    /// How many of the next `tokens` tokens of a sequence that stands at `position` a forward can take with the memory there is now: from 1
    /// to `tokens`. A forward of more may fail with [`DeviceError::OutOfMemory`]; so may one of a single token.
    fn admits(&self, position: usize, tokens: usize) -> usize {
        let _ = position;
        tokens
    }

    /// Has the prediction head read the spans, each of another sequence, in one pass. An error is as for [`Executor::forward`]; where no head is
    /// loaded it is one of the contract.
    fn predict(&mut self, spans: &[HeadSpan<'_>]) -> Result<Predicted, DeviceError> {
        let _ = spans;
        Err(DeviceError::Contract("no prediction head is loaded".to_owned()))
    }

    /// The target's hidden state of a full page's last token, which is part of the page's state where a head is loaded: the first entry of the page
    /// behind it is made of it. `None` where it was not asked for when the token was computed.
    fn page_end(&self, page: PageId) -> Option<Vec<f32>> {
        let _ = page;
        None
    }

    /// Memory held now; `None` where nobody counts it.
    fn memory(&self) -> Option<MemoryUse> {
        None
    }

    /// What `queries` make of the keys at places `window` of a sequence's pages: `softmax(q·k·scale)` over the window, in f32, for every query,
    /// layer and head, whether or not the query's own place lies behind a key. State is only read.
    fn key_weights(
        &mut self,
        pages: &[PageId],
        window: std::ops::Range<usize>,
        queries: &Queries,
    ) -> Result<KeyWeights, DeviceError>;

    /// Time it takes to attach `tokens` restored tokens, beyond what the engine itself measures. Zero except on `sim`.
    fn restore_cost(&self, tokens: usize) -> Nanos {
        let _ = tokens;
        Nanos(0)
    }

    /// Bytes that [`Executor::export_page`] and [`Executor::export_slot`] give.
    fn exported_bytes(&self) -> (usize, usize) {
        (self.facts().page_bytes, self.facts().slot_bytes)
    }

    /// A full page's state, all layers, as bytes that any executor of the same family, model and precision takes.
    fn export_page(&self, page: PageId) -> Result<Vec<u8>, DeviceError>;

    /// Puts exported state into a reserved page. After an error the page is undefined.
    fn import_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), DeviceError>;

    /// A written slot's state, all layers, as bytes.
    fn export_slot(&self, slot: SlotId) -> Result<Vec<u8>, DeviceError>;

    /// Puts exported state, that after `position` tokens, into a reserved slot. After an error the slot is undefined.
    fn import_slot(&mut self, slot: SlotId, position: usize, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Digest of the first `tokens` positions of a page's state, all layers: equal state, equal digest.
    fn page_digest(&self, page: PageId, tokens: usize) -> [u8; 32];

    /// Digest of a slot's state, all layers.
    fn slot_digest(&self, slot: SlotId) -> [u8; 32];
}
