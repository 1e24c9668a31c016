//! A token's numbers by different routes: chunks, batches, restore points.

use super::weights::{Kind, Rng, Tensor};
use super::{Make, relative_error};
use crate::config::Precision;
use crate::device::ops::{AttentionShape, Device, KvShape, Rotary, Rows};
use crate::device::weights::{Float, RowOrder};
use crate::device::{LogitRows, PageId, Span};
use crate::event::Identity;

const VOCAB: usize = 77;
const PAGE: usize = 64;

/// How a sequence of tokens is cut into forwards.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Route {
    /// Tokens of each forward, repeated.
    pub(crate) chunks: Vec<usize>,
    /// Whether another sequence runs in the same batches.
    pub(crate) company: bool,
}

/// What a route left behind.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Trace {
    /// Logits of every token.
    pub(crate) logits: Vec<f32>,
    /// Digests of the sequence's pages.
    pub(crate) pages: Vec<[u8; 32]>,
}

/// Every route gives a token the same numbers.
pub(crate) fn routes<D: Device>(make: Make<'_, D>) {
    let route = |chunks: &[usize], company| Route { chunks: chunks.to_vec(), company };
    for precision in [Precision::Int8, Precision::F32] {
        let mut device = make(precision);
        let identity = device.identity();
        let whole = trace(&mut device, 7, 300, &route(&[300], false));
        assert!(whole.logits.iter().all(|x| x.is_finite()));
        for other in [
            route(&[1], false),
            route(&[7], false),
            route(&[64], false),
            route(&[128, 1, 1, 5], false),
            route(&[300], true),
            route(&[3, 100, 2], true),
        ] {
            let got = trace(&mut device, 7, 300, &other);
            if identity == Identity::Bitwise {
                assert!(got == whole, "{precision:?}: {other:?} gave other bits than one forward");
            } else {
                let expected: Vec<f64> = whole.logits.iter().map(|x| f64::from(*x)).collect();
                let error = relative_error(&got.logits, &expected);
                assert!(error < 1e-3, "{precision:?} {other:?}: {error}");
            }
        }
        let other = trace(&mut device, 8, 300, &route(&[300], false));
        assert!(other.pages != whole.pages, "digests do not tell states apart");
    }
}

/// Sizes and encodings of a model.
#[derive(Debug, Clone)]
pub(crate) struct Dims {
    pub(crate) hidden: usize,
    pub(crate) inner: usize,
    pub(crate) vocab: usize,
    pub(crate) layers: usize,
    pub(crate) page_tokens: usize,
    pub(crate) shape: AttentionShape,
    /// Of queries and keys, values, attention output, gate and up, down, embedding.
    pub(crate) kinds: [Kind; 6],
}

/// A small model of mixed encodings and awkward sizes.
pub(super) fn small() -> Dims {
    let affine = Kind::Affine { bits: 6, group: 32, float: Float::F16 };
    Dims {
        hidden: 96,
        inner: 160,
        vocab: VOCAB,
        layers: 2,
        page_tokens: 64,
        shape: AttentionShape { heads: 6, kv_heads: 2, head_dim: 16, scale: 0.25, gated: false },
        kinds: [Kind::Q4_1, Kind::Q8_0, Kind::Q4_0, Kind::Q4_1, affine, Kind::Q8_0],
    }
}

/// A model of the `llama` kind with random weights.
pub(crate) struct Toy<D: Device> {
    dims: Dims,
    table: D::Table,
    layers: Vec<Layer<D>>,
    norm: D::Gain,
}

struct Layer<D: Device> {
    norms: [D::Gain; 2],
    qkv: D::Linear,
    output: D::Linear,
    gate_up: D::Linear,
    down: D::Linear,
}

impl<D: Device> Toy<D> {
    /// Draws the weights.
    pub(crate) fn new(device: &mut D, dims: Dims) -> Toy<D> {
        let Dims { hidden, inner, shape, kinds, .. } = dims;
        let mut rng = Rng(11);
        let mut gain = |device: &mut D| {
            let tensor = Tensor::random(&mut rng, Kind::Plain(Float::F32), 1, hidden);
            device.load_gain(tensor.source()).unwrap()
        };
        let norm = gain(device);
        let norms: Vec<[D::Gain; 2]> = (0..dims.layers).map(|_| [gain(device), gain(device)]).collect();
        let mut rng = Rng(12);
        let mut linear = |device: &mut D, parts: &[(Kind, usize)], cols: usize, paired: bool| {
            let mut tensors: Vec<Tensor> =
                parts.iter().map(|(kind, rows)| Tensor::random(&mut rng, *kind, *rows, cols)).collect();
            if paired {
                tensors[0].order = RowOrder::Pairs { head_dim: shape.head_dim };
            }
            let sources: Vec<_> = tensors.iter().map(Tensor::source).collect();
            device.load_linear(&sources).unwrap()
        };
        let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let layers = norms
            .into_iter()
            .map(|norms| Layer {
                norms,
                qkv: linear(device, &[(kinds[0], q), (kinds[0], kv), (kinds[1], kv)], hidden, true),
                output: linear(device, &[(kinds[2], hidden)], q, false),
                gate_up: linear(device, &[(kinds[3], inner), (kinds[3], inner)], hidden, false),
                down: linear(device, &[(kinds[4], hidden)], inner, false),
            })
            .collect();
        let table = Tensor::random(&mut Rng(13), kinds[5], dims.vocab, hidden);
        Toy { table: device.load_table(table.source()).unwrap(), layers, norm, dims }
    }

    /// Room for `pages` pages of state.
    pub(crate) fn state(&self, device: &mut D, pages: usize) -> D::Kv {
        let Dims { layers, page_tokens, shape, .. } = self.dims;
        let AttentionShape { kv_heads, head_dim, .. } = shape;
        let mut kv = device.new_kv(KvShape { layers, kv_heads, head_dim, page_tokens }).unwrap();
        device.reserve_kv(&mut kv, pages).unwrap();
        kv
    }

    /// Logits of the last token of every span, or of all tokens.
    pub(crate) fn forward(&self, device: &mut D, kv: &mut D::Kv, spans: &[Span<'_>], all: bool) -> Vec<f32> {
        let shape = self.dims.shape;
        let tokens: Vec<u32> = spans.iter().flat_map(|span| span.tokens.iter().copied()).collect();
        let positions: Vec<u32> = spans.iter().flat_map(Span::token_positions).collect();
        let mut x = device.embed(&self.table, &tokens);
        for (index, layer) in self.layers.iter().enumerate() {
            let normed = device.rms_norm(&x, &layer.norms[0], 1e-5);
            let mut qkv = device.linear(&normed, &layer.qkv);
            let rotary = Rotary { base: 10_000.0, dims: shape.head_dim };
            device.rotary(&mut qkv, shape, rotary, &positions);
            let rows = Rows { spans, positions: &positions };
            let attended = device.attention(&qkv, shape, rows, kv, index, 0);
            let projected = device.linear(&attended, &layer.output);
            device.add(&mut x, &projected);
            let normed = device.rms_norm(&x, &layer.norms[1], 1e-5);
            let mlp = device.gated_mlp(&normed, &layer.gate_up, &layer.down);
            device.add(&mut x, &mlp);
        }
        if !all {
            let mut end = 0;
            let last: Vec<usize> = spans
                .iter()
                .map(|span| {
                    end += span.tokens.len();
                    end - 1
                })
                .collect();
            x = device.select_rows(&x, &last);
        }
        let x = device.rms_norm(&x, &self.norm, 1e-5);
        device.tied_logits(&x, &self.table).unwrap()
    }
}

/// Runs `tokens` random tokens of seed `seed` by a route.
pub(crate) fn trace<D: Device>(device: &mut D, seed: u64, tokens: usize, route: &Route) -> Trace {
    let toy = Toy::new(device, small());
    let count = tokens.div_ceil(PAGE);
    let mut kv = toy.state(device, 2 * count + 40);
    let draw = |seed: u64, n: usize| -> Vec<u32> {
        let mut rng = Rng(seed);
        (0..n).map(|_| rng.below(VOCAB) as u32).collect()
    };
    let sequence = draw(seed, tokens);
    let other = draw(seed + 1000, 2000);
    // Not the same pages for every route: state must not depend on where it lies.
    let first = route.chunks[0] as u32 % 7;
    let pages: Vec<PageId> = (0..count as u32).map(|i| PageId(2 * i + first)).collect();
    let others: Vec<PageId> = (0..(count + 30) as u32).map(|i| PageId(count as u32 * 2 + 8 + i)).collect();
    let mut logits = Vec::new();
    let (mut start, mut start_other) = (0, 0);
    let mut chunks = route.chunks.iter().cycle();
    while start < tokens {
        let n = (*chunks.next().unwrap()).min(tokens - start);
        let span = Span {
            positions: None,
            capture: 0,
            hidden: false,
            pages: &pages,
            start,
            tokens: &sequence[start..start + n],
            state: None,
            logits: LogitRows::All,
        };
        let mut spans = vec![span];
        let mut skip = 0;
        if route.company {
            skip = 1 + n % 5;
            let tokens = &other[start_other..start_other + skip];
            spans.insert(
                0,
                Span {
                    positions: None,
                    capture: 0,
                    hidden: false,
                    pages: &others,
                    start: start_other,
                    tokens,
                    state: None,
                    logits: LogitRows::All,
                },
            );
            start_other += skip;
        }
        let out = toy.forward(device, &mut kv, &spans, true);
        logits.extend_from_slice(&out[skip * VOCAB..]);
        start += n;
    }
    device.evaluate(&mut kv, None).unwrap();
    let pages = pages
        .iter()
        .enumerate()
        .map(|(i, page)| device.kv_digest(&kv, *page, PAGE.min(tokens - i * PAGE)))
        .collect();
    Trace { logits, pages }
}
