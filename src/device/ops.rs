//! The operations an architecture is written against.
//!
//! A batch is a flat list of rows, one a token; [`Rows`] says which sequence and position each belongs to. `Hidden` is a
//! `[rows, columns]` matrix of f32 on the device. Operations take `&mut self` so that a device can keep scratch
//! memory, or build a graph and evaluate it at [`Device::logits`].

use super::weights::WeightSource;
use super::{DeviceError, Identity, PageId};
use crate::device::Span;

/// The rows of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// The spans, in order; row `r` is the `r`-th token of their concatenation.
    pub spans: &'a [Span<'a>],
    /// Absolute position of every row.
    pub positions: &'a [u32],
}

impl Rows<'_> {
    /// The page and the offset in it of position `position` of `span`.
    pub fn slot(span: &Span<'_>, position: usize, page_tokens: usize) -> (PageId, usize) {
        (span.pages[position / page_tokens], position % page_tokens)
    }
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

/// A device: weights, activations, state, and the operations between them.
pub trait Device: Send {
    /// Activations, `[rows, columns]` f32.
    type Hidden: Send;
    /// A linear layer `[out, in]`, possibly several stacked by rows.
    type Linear: Send;
    /// A norm's gain, `[columns]`.
    type Gain: Send;
    /// A token embedding `[vocab, columns]`, which may also serve as the output projection.
    type Table: Send;
    /// Paged key/value state.
    type Kv: Send;

    /// `cpu`, `mlx`.
    fn name(&self) -> &'static str;
    /// The instruction set or backend in use.
    fn kernel(&self) -> String;
    /// `int8` or `f32`.
    fn precision(&self) -> &'static str;
    /// What it promises about routes.
    fn identity(&self) -> Identity;

    /// Takes linear layers of equal `cols`, stacked by rows.
    fn load_linear(&mut self, stacked: &[WeightSource<'_>]) -> Result<Self::Linear, DeviceError>;
    /// Takes a gain.
    fn load_gain(&mut self, source: WeightSource<'_>) -> Result<Self::Gain, DeviceError>;
    /// Takes an embedding.
    fn load_table(&mut self, source: WeightSource<'_>) -> Result<Self::Table, DeviceError>;

    /// An empty store.
    fn new_kv(&mut self, shape: KvShape) -> Result<Self::Kv, DeviceError>;
    /// Bytes of one page.
    fn kv_page_bytes(&self, shape: KvShape) -> usize;
    /// Makes pages `0..pages` usable.
    fn reserve_kv(&mut self, kv: &mut Self::Kv, pages: usize) -> Result<(), DeviceError>;
    /// Digest of the first `tokens` positions of a page.
    fn kv_digest(&self, kv: &Self::Kv, page: PageId, tokens: usize) -> [u8; 32];

    /// Looks tokens up.
    fn embed(&mut self, table: &Self::Table, tokens: &[u32]) -> Self::Hidden;
    /// Root-mean-square norm with gain.
    fn rms_norm(&mut self, x: &Self::Hidden, gain: &Self::Gain, eps: f32) -> Self::Hidden;
    /// `x · Wᵀ`.
    fn linear(&mut self, x: &Self::Hidden, w: &Self::Linear) -> Self::Hidden;
    /// `x += y`.
    fn add(&mut self, x: &mut Self::Hidden, y: &Self::Hidden);
    /// Rotates the query and key heads of `qkv` in place.
    fn rotary(&mut self, qkv: &mut Self::Hidden, shape: AttentionShape, rotary: Rotary, positions: &[u32]);
    /// Writes the rows' keys and values into `layer` of the store, then attends causally: each row to all positions of its sequence
    /// up to its own. Gives `[rows, heads·head_dim]`.
    fn attention(
        &mut self,
        qkv: &Self::Hidden,
        shape: AttentionShape,
        rows: Rows<'_>,
        kv: &mut Self::Kv,
        layer: usize,
    ) -> Self::Hidden;
    /// `down(silu(gate(x)) * up(x))`; `gate_up` stacks gate over up.
    fn gated_mlp(&mut self, x: &Self::Hidden, gate_up: &Self::Linear, down: &Self::Linear) -> Self::Hidden;
    /// The rows at `indices`, in order.
    fn select_rows(&mut self, x: &Self::Hidden, indices: &[usize]) -> Self::Hidden;
    /// Logits against the embedding (tied output), `[rows, vocab]`, evaluated.
    fn tied_logits(&mut self, x: &Self::Hidden, table: &Self::Table) -> Result<Vec<f32>, DeviceError>;
    /// Logits against an output layer, `[rows, vocab]`, evaluated.
    fn logits(&mut self, x: &Self::Hidden, output: &Self::Linear) -> Result<Vec<f32>, DeviceError>;
    /// Evaluates whatever is pending, so that a timer measures what it names.
    fn evaluate(&mut self, kv: &mut Self::Kv) -> Result<(), DeviceError>;
}
