//! The operations an architecture is written against.
//!
//! A batch is a flat list of rows, one a token; [`Rows`] says which sequence and position each belongs to. `Hidden` is a
//! `[rows, columns]` matrix of floats on the device. Operations take `&mut self` so that a device can keep scratch
//! memory, or build a graph and evaluate it at [`Device::logits`].

use super::weights::WeightSource;
use super::{DeviceError, Identity, MemoryUse, PageId, SlotId, Span, StateFlow};

/// The rows of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// The spans, in order; row `r` is the `r`-th token of their concatenation.
    pub spans: &'a [Span<'a>],
    /// Position of every row, for its rotary embedding. Where its state lies goes by [`Span::start`] instead.
    pub positions: &'a [u32],
}

impl Rows<'_> {
    /// The rows of every span.
    pub fn ranges(&self) -> Vec<std::ops::Range<usize>> {
        let mut end = 0;
        let range = |span: &Span<'_>| {
            let start = end;
            end += span.tokens.len();
            start..end
        };
        self.spans.iter().map(range).collect()
    }

    /// The page and the offset in it of place `place` of `span`'s sequence.
    pub fn slot(span: &Span<'_>, place: usize, page_tokens: usize) -> (PageId, usize) {
        (span.pages[place / page_tokens], place % page_tokens)
    }
}

/// Keys of a sequence.
#[derive(Debug, Clone)]
pub struct Keys<'a> {
    /// The sequence's pages, from place 0.
    pub pages: &'a [PageId],
    /// The places.
    pub window: std::ops::Range<usize>,
}

/// Rotary embedding: `theta_i = base^(-2i/dims)` for `i < dims/2`, halves convention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rotary {
    /// The base.
    pub base: f64,
    /// Leading dimensions of each head that rotate.
    pub dims: usize,
}

/// Heads of an attention layer. A row of its input is queries, gates if there are any, keys, values:
/// `[heads·head_dim | heads·head_dim if gated | kv_heads·head_dim | kv_heads·head_dim]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Factor on the scores, usually `1/sqrt(head_dim)`.
    pub scale: f32,
    /// Whether what a head gives is multiplied by the logistic function of its gate.
    pub gated: bool,
}

impl AttentionShape {
    /// Columns of all query heads.
    pub fn queries(&self) -> usize {
        self.heads * self.head_dim
    }

    /// First column of the keys.
    pub fn keys_at(&self) -> usize {
        self.queries() * if self.gated { 2 } else { 1 }
    }

    /// First column of the values.
    pub fn values_at(&self) -> usize {
        self.keys_at() + self.kv_heads * self.head_dim
    }

    /// Columns of a row.
    pub fn columns(&self) -> usize {
        self.values_at() + self.kv_heads * self.head_dim
    }
}

/// Attention scores a device holds at once, of all heads together, where it holds any: rows go in blocks for that.
pub const SCORES: usize = 1 << 26;

/// Rows from which on what an attention layer writes is computed before it is written, on a device that computes late. A forward of so many
/// that fails then leaves the store as it was, and no more than the layers between two attention layers is under way at once. Fewer
/// take little memory, and waiting for them would cost.
pub const AHEAD_FROM: usize = 32;

/// Tokens of a chunk of the gated delta rule, on a device that takes it in chunks; a power of two.
pub const DELTA_CHUNK: usize = 64;

/// Numbers of plain expert matrices a device puts side by side at once, where it has no product that takes each row to its own.
pub const GATHERED: usize = 1 << 24;

/// Tokens a short convolution spans at most.
pub const MAX_TAPS: usize = 16;

/// Heads of a gated delta layer. A row of its input is `[queries | keys | values | gates | betas | decays]`:
/// `[key_heads·key_dim | key_heads·key_dim | value_heads·value_dim | value_heads·value_dim | value_heads | value_heads]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaShape {
    /// Query and key heads.
    pub key_heads: usize,
    /// Value heads, each with a state of its own; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Columns of a query or key head.
    pub key_dim: usize,
    /// Columns of a value head.
    pub value_dim: usize,
    /// Tokens the short convolution spans, the current one included.
    pub taps: usize,
}

impl DeltaShape {
    /// The shape of no layer.
    pub const NONE: DeltaShape =
        DeltaShape { key_heads: 0, value_heads: 0, key_dim: 0, value_dim: 0, taps: 0 };

    /// Columns of all value heads.
    pub fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Columns the convolution works on: queries, keys, values.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.values()
    }

    /// Columns of a row.
    pub fn columns(&self) -> usize {
        self.channels() + self.values() + 2 * self.value_heads
    }

    /// Numbers of a layer's state: the last `taps - 1` inputs of the convolution, and a `[key_dim, value_dim]` matrix a value head.
    pub fn state_elements(&self) -> usize {
        self.taps.saturating_sub(1) * self.channels() + self.key_dim * self.values()
    }
}

/// The shape of recurrent state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateShape {
    /// Recurrent layers.
    pub layers: usize,
    /// Their heads.
    pub delta: DeltaShape,
}

impl StateShape {
    /// Refuses state of nothing, and value heads that do not share key heads evenly.
    pub fn check(&self) -> Result<(), DeviceError> {
        let DeltaShape { key_heads, value_heads, key_dim, value_dim, taps } = self.delta;
        let sizes = [self.layers, key_heads, value_heads, key_dim, value_dim, taps];
        if sizes.contains(&0) || !value_heads.is_multiple_of(key_heads) {
            return Err(DeviceError::Contract(format!("recurrent state of {self:?}")));
        }
        Ok(())
    }
}

/// How tokens go to experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertShape {
    /// Experts.
    pub experts: usize,
    /// Experts a token goes to: those with the greatest scores.
    pub per_token: usize,
    /// Whether the weights of a token's experts are scaled to sum to 1.
    pub normalised: bool,
}

/// The shape of a paged key/value store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Attention layers.
    pub layers: usize,
    /// Key/value heads a layer.
    pub kv_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Tokens a page holds.
    pub page_tokens: usize,
}

/// Tokens of a page are a multiple of this, so that devices can lay keys out in tiles.
pub const PAGE_MULTIPLE: usize = 64;

impl KvShape {
    /// Refuses a store of nothing, and pages that are no multiple of [`PAGE_MULTIPLE`].
    pub fn check(&self) -> Result<(), DeviceError> {
        let KvShape { layers, kv_heads, head_dim, page_tokens } = *self;
        if [layers, kv_heads, head_dim, page_tokens].contains(&0)
            || !page_tokens.is_multiple_of(PAGE_MULTIPLE)
        {
            return Err(DeviceError::Contract(format!(
                "a key/value store of {layers} layers, {kv_heads} heads of {head_dim} and pages of {page_tokens} tokens; pages must \
                 be multiples of {PAGE_MULTIPLE}"
            )));
        }
        Ok(())
    }
}

/// What a gated delta layer has beside its projections.
#[derive(Debug, Clone, Copy)]
pub struct DeltaSource<'a> {
    /// The short convolution, `[channels, taps]`.
    pub convolution: WeightSource<'a>,
    /// Logarithm of each value head's decay rate, `[1, value_heads]`.
    pub decay_rate: WeightSource<'a>,
    /// What is added to each value head's decay, `[1, value_heads]`.
    pub decay_bias: WeightSource<'a>,
    /// Gain of the norm of each value head, `[1, value_dim]`.
    pub norm: WeightSource<'a>,
}

/// One expert of a mixture.
#[derive(Debug, Clone, Copy)]
pub struct ExpertSource<'a> {
    /// Gate, `[inner, columns]`.
    pub gate: WeightSource<'a>,
    /// Up projection, `[inner, columns]`.
    pub up: WeightSource<'a>,
    /// Down projection, `[columns, inner]`.
    pub down: WeightSource<'a>,
}

/// A device: weights, activations, state, and the operations between them.
pub trait Device: Send {
    /// Activations, `[rows, columns]`.
    type Hidden: Send;
    /// A linear layer `[out, in]`, possibly several stacked by rows.
    type Linear: Send;
    /// A norm's gain, `[columns]`.
    type Gain: Send;
    /// A token embedding `[vocab, columns]`, which may also serve as the output projection.
    type Table: Send;
    /// Convolution, decay and norm of a gated delta layer.
    type Delta: Send;
    /// The routed experts of a layer.
    type Experts: Send;
    /// Paged key/value state.
    type Kv: Send;
    /// Recurrent state in slots.
    type States: Send;

    /// `cpu`, `mlx`.
    fn name(&self) -> &'static str;
    /// Its arithmetic, which all its kernels share: another word as soon as the bits of what is stored become others, so that nobody restores the old.
    fn family(&self) -> &'static str {
        self.name()
    }
    /// The instruction set or backend in use.
    fn kernel(&self) -> String;
    /// `int8`, `f32`, `bf16` or `f16`.
    fn precision(&self) -> &'static str;
    /// What it promises about routes.
    fn identity(&self) -> Identity;
    /// Bytes of a number of [`Device::Hidden`].
    fn float_bytes(&self) -> usize {
        size_of::<f32>()
    }
    /// Memory held now; `None` where nobody counts it.
    fn memory(&self) -> Option<MemoryUse> {
        None
    }

    /// Takes linear layers of equal `cols`, stacked by rows.
    fn load_linear(&mut self, stacked: &[WeightSource<'_>]) -> Result<Self::Linear, DeviceError>;
    /// Takes a gain.
    fn load_gain(&mut self, source: WeightSource<'_>) -> Result<Self::Gain, DeviceError>;
    /// Takes an embedding.
    fn load_table(&mut self, source: WeightSource<'_>) -> Result<Self::Table, DeviceError>;
    /// Takes what a gated delta layer has beside its projections.
    fn load_delta(&mut self, shape: DeltaShape, source: DeltaSource<'_>) -> Result<Self::Delta, DeviceError>;
    /// Takes the experts of a layer, in order.
    fn load_experts(&mut self, experts: &[ExpertSource<'_>]) -> Result<Self::Experts, DeviceError>;

    /// An empty store.
    fn new_kv(&mut self, shape: KvShape) -> Result<Self::Kv, DeviceError>;
    /// Bytes of one page.
    fn kv_page_bytes(&self, shape: KvShape) -> usize;
    /// Makes pages `0..pages` usable.
    fn reserve_kv(&mut self, kv: &mut Self::Kv, pages: usize) -> Result<(), DeviceError>;
    /// Digest of the first `tokens` positions of a page.
    fn kv_digest(&self, kv: &Self::Kv, page: PageId, tokens: usize) -> [u8; 32];

    /// A page's numbers in the device's own order: as many bytes as [`Device::kv_page_bytes`] says.
    fn export_page(&self, kv: &Self::Kv, page: PageId) -> Result<Vec<u8>, DeviceError>;
    /// Puts exported numbers into a page.
    fn import_page(&mut self, kv: &mut Self::Kv, page: PageId, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Empty recurrent state.
    fn new_states(&mut self, shape: StateShape) -> Result<Self::States, DeviceError>;
    /// Bytes of one slot.
    fn slot_bytes(&self, shape: StateShape) -> usize;
    /// Makes slots `0..slots` usable.
    fn reserve_slots(&mut self, states: &mut Self::States, slots: usize) -> Result<(), DeviceError>;
    /// Digest of a slot.
    fn slot_digest(&self, states: &Self::States, slot: SlotId) -> [u8; 32];
    /// A slot's numbers in the device's own order: as many bytes as [`Device::slot_bytes`] says.
    fn export_slot(&self, states: &Self::States, slot: SlotId) -> Result<Vec<u8>, DeviceError>;
    /// Puts exported numbers into a slot.
    fn import_slot(
        &mut self,
        states: &mut Self::States,
        slot: SlotId,
        bytes: &[u8],
    ) -> Result<(), DeviceError>;
    /// Makes `flow.to` the state after the first `tokens` tokens of its span in the last forward; see
    /// [`Executor::rewind`](crate::device::Executor::rewind).
    fn rewind(
        &mut self,
        states: &mut Self::States,
        flow: StateFlow,
        tokens: usize,
    ) -> Result<(), DeviceError>;

    /// The numbers as activations: `[numbers / columns, columns]`.
    fn upload(&mut self, numbers: &[f32], columns: usize) -> Self::Hidden;
    /// Looks tokens up.
    fn embed(&mut self, table: &Self::Table, tokens: &[u32]) -> Self::Hidden;
    /// Root-mean-square norm with gain.
    fn rms_norm(&mut self, x: &Self::Hidden, gain: &Self::Gain, eps: f32) -> Self::Hidden;
    /// `x · Wᵀ`.
    fn linear(&mut self, x: &Self::Hidden, w: &Self::Linear) -> Self::Hidden;
    /// Each row of `x` with that of `y` behind it: `[rows, columns of x + columns of y]`.
    fn beside(&mut self, x: &Self::Hidden, y: &Self::Hidden) -> Self::Hidden;
    /// `x += y`.
    fn add(&mut self, x: &mut Self::Hidden, y: &Self::Hidden);
    /// Root-mean-square norm of each query head by one gain and of each key head by another, in place.
    fn norm_heads(
        &mut self,
        qkv: &mut Self::Hidden,
        shape: AttentionShape,
        query: &Self::Gain,
        key: &Self::Gain,
        eps: f32,
    );
    /// Rotates the query and key heads of `qkv` in place.
    fn rotary(&mut self, qkv: &mut Self::Hidden, shape: AttentionShape, rotary: Rotary, positions: &[u32]);
    /// The queries of some rows of `qkv` as they are now: `[indices, heads·head_dim]`.
    fn queries(&mut self, qkv: &Self::Hidden, shape: AttentionShape, indices: &[usize]) -> Self::Hidden;
    /// The numbers of activations, evaluated.
    fn read(&mut self, x: &Self::Hidden) -> Result<Vec<f32>, DeviceError>;
    /// What `queries`, `[queries, heads·head_dim]`, make of the keys at places `window` of a sequence, in `layer` of the store: for every
    /// query and head `softmax(q·k·scale)` over the window, in f32. Gives `[queries, heads, window]`. The store is only read.
    fn key_weights(
        &mut self,
        kv: &mut Self::Kv,
        layer: usize,
        keys: Keys<'_>,
        queries: &[f32],
        shape: AttentionShape,
    ) -> Result<Vec<f32>, DeviceError>;
    /// Writes the rows' keys and values into `layer` of the store, at the places of its tokens.
    fn store(
        &mut self,
        qkv: &Self::Hidden,
        shape: AttentionShape,
        rows: Rows<'_>,
        kv: &mut Self::Kv,
        layer: usize,
    );
    /// [`Device::store`], then causal attention: each row to the places of its sequence from `first` up to its own, which is not before. Gives
    /// `[rows, heads·head_dim]`.
    fn attention(
        &mut self,
        qkv: &Self::Hidden,
        shape: AttentionShape,
        rows: Rows<'_>,
        kv: &mut Self::Kv,
        layer: usize,
        first: usize,
    ) -> Self::Hidden;
    /// Short convolution, gated delta rule and gated norm. For every row: queries, keys and values are convolved over the last `taps`
    /// rows of their sequence and go through silu; queries and keys are scaled to length 1, queries further by `key_dim^-1/2`;
    /// with `g = exp(-exp(rate)·softplus(decay + bias))` and `b = logistic(beta)` each value head's state becomes
    /// `S ← g·S + k·(b·(v − (g·S)ᵀk))ᵀ` and gives `Sᵀq`, which is normed and multiplied by `silu(gate)`. Reads and writes recurrent
    /// layer `layer` of the slots the spans name. Gives `[rows, value_heads·value_dim]`.
    ///
    /// Source: Yang, Kautz, Hatamizadeh, "Gated Delta Networks" (2024), equation 10.
    fn gated_delta(
        &mut self,
        x: &Self::Hidden,
        delta: &Self::Delta,
        rows: Rows<'_>,
        states: &mut Self::States,
        layer: usize,
        eps: f32,
    ) -> Self::Hidden;
    /// A mixture of gated MLPs: the softmax of a row's `scores`, `[rows, experts]`, weighs the experts with the greatest of them (of
    /// equals the first), and their outputs are added in ascending order of experts.
    fn experts(
        &mut self,
        x: &Self::Hidden,
        scores: &Self::Hidden,
        shape: ExpertShape,
        experts: &Self::Experts,
    ) -> Self::Hidden;
    /// Routed experts that rows went to since this was last asked, each counted once a call of [`Device::experts`]; `None` where that is not told.
    fn take_experts_touched(&mut self) -> Option<u64> {
        None
    }
    /// Multiplies each row by the logistic function of its gate, `[rows, 1]`.
    fn gate_rows(&mut self, x: &mut Self::Hidden, gate: &Self::Hidden);
    /// `down(silu(gate(x)) * up(x))`; `gate_up` stacks gate over up.
    fn gated_mlp(&mut self, x: &Self::Hidden, gate_up: &Self::Linear, down: &Self::Linear) -> Self::Hidden;
    /// The rows at `indices`, in order.
    fn select_rows(&mut self, x: &Self::Hidden, indices: &[usize]) -> Self::Hidden;
    /// Logits against the embedding (tied output), `[rows, vocab]`, evaluated.
    fn tied_logits(&mut self, x: &Self::Hidden, table: &Self::Table) -> Result<Vec<f32>, DeviceError>;
    /// Logits against an output layer, `[rows, vocab]`, evaluated.
    fn logits(&mut self, x: &Self::Hidden, output: &Self::Linear) -> Result<Vec<f32>, DeviceError>;
    /// Takes back the memory of logits, for the next ones.
    fn take_back(&mut self, logits: Vec<f32>) {
        drop(logits);
    }
    /// After a forward that failed with `error`: makes sure that state which it did not write is still there, and gives the error. Where that is
    /// not so it gives [`DeviceError::StateLost`], and there are no pages and no slots any more until they are reserved anew.
    fn recover(
        &mut self,
        error: DeviceError,
        kv: &mut Self::Kv,
        states: Option<&mut Self::States>,
    ) -> DeviceError {
        let _ = (kv, states);
        error
    }
    /// Evaluates whatever is pending, so that a timer measures what it names.
    fn evaluate(&mut self, kv: &mut Self::Kv, states: Option<&mut Self::States>) -> Result<(), DeviceError>;
}
