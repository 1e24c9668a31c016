//! Gated delta layers: against f64, by different routes, and taken back.

use super::operations::{download, upload};
use super::weights::{Kind, Rng, Tensor};
use super::{Make, relative_error};
use crate::config::Precision;
use crate::device::ops::{DeltaShape, DeltaSource, Device, Rows, StateShape};
use crate::device::weights::Float;
use crate::device::{DeviceError, LogitRows, SlotId, Span, StateFlow};
use crate::event::Identity;

const EPS: f32 = 1e-5;

/// Heads of every awkward kind: shared keys, value columns that fill no vector, more of them than a strip, no memory in the
/// convolution.
fn shapes() -> [DeltaShape; 4] {
    let shape = |key_heads, value_heads, key_dim, value_dim, taps| DeltaShape {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        taps,
    };
    [shape(2, 4, 32, 32, 4), shape(1, 3, 16, 40, 4), shape(3, 3, 24, 144, 2), shape(2, 2, 64, 64, 1)]
}

/// Recurrent layers behave.
pub(crate) fn recurrent<D: Device>(make: Make<'_, D>) {
    for precision in [Precision::F32, Precision::Int8] {
        for shape in shapes() {
            computes_the_rule(&mut make(precision), shape);
            routes_agree(&mut make(precision), shape);
            takes_back(&mut make(precision), shape);
        }
    }
}

/// The numbers of a layer.
struct Parameters {
    convolution: Tensor,
    rate: Tensor,
    bias: Tensor,
    norm: Tensor,
}

impl Parameters {
    fn random(shape: DeltaShape) -> Parameters {
        let mut rng = Rng(21);
        let mut draw = |rows, cols| Tensor::random(&mut rng, Kind::Plain(Float::F32), rows, cols);
        Parameters {
            convolution: draw(shape.channels(), shape.taps),
            rate: draw(1, shape.value_heads),
            bias: draw(1, shape.value_heads),
            norm: draw(1, shape.value_dim),
        }
    }

    fn source(&self) -> DeltaSource<'_> {
        DeltaSource {
            convolution: self.convolution.source(),
            decay_rate: self.rate.source(),
            decay_bias: self.bias.source(),
            norm: self.norm.source(),
        }
    }
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// The rule in f64 over one sequence from its start.
fn reference(x: &[f32], shape: DeltaShape, parameters: &Parameters) -> Vec<f64> {
    let DeltaShape { key_heads, value_heads, key_dim, value_dim, taps } = shape;
    let (channels, keys) = (shape.channels(), key_heads * key_dim);
    let rows: Vec<&[f32]> = x.chunks_exact(shape.columns()).collect();
    let value = |tensor: &Tensor, index: usize| f64::from(tensor.values[index]);
    let unit = |head: &[f64]| {
        let length = (head.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
        head.iter().map(|x| x / length).collect::<Vec<f64>>()
    };
    let mut states = vec![vec![0.0; key_dim * value_dim]; value_heads];
    let mut out = Vec::new();
    for (t, row) in rows.iter().enumerate() {
        let convolved: Vec<f64> = (0..channels)
            .map(|channel| {
                let inputs = (0..taps).filter_map(|tap| {
                    let input = rows[(t + tap + 1).checked_sub(taps)?][channel];
                    Some(value(&parameters.convolution, channel * taps + tap) * f64::from(input))
                });
                silu(inputs.sum())
            })
            .collect();
        for (head, state) in states.iter_mut().enumerate() {
            let from = head / (value_heads / key_heads) * key_dim;
            let query = unit(&convolved[from..from + key_dim]);
            let key = unit(&convolved[keys + from..keys + from + key_dim]);
            let values = &convolved[2 * keys + head * value_dim..][..value_dim];
            let last = shape.columns() - 2 * value_heads;
            let (beta, decay) = (f64::from(row[last + head]), f64::from(row[last + value_heads + head]));
            let softplus = (decay + value(&parameters.bias, head)).exp().ln_1p();
            let keep = (-value(&parameters.rate, head).exp() * softplus).exp();
            let write = 1.0 / (1.0 + (-beta).exp());
            let mut given = vec![0.0; value_dim];
            for column in 0..value_dim {
                let at = |i: usize| i * value_dim + column;
                (0..key_dim).for_each(|i| state[at(i)] *= keep);
                let held: f64 = (0..key_dim).map(|i| key[i] * state[at(i)]).sum();
                let difference = write * (values[column] - held);
                (0..key_dim).for_each(|i| state[at(i)] += key[i] * difference);
                let scale = 1.0 / (key_dim as f64).sqrt();
                given[column] = (0..key_dim).map(|i| query[i] * scale * state[at(i)]).sum();
            }
            let mean = given.iter().map(|x| x * x).sum::<f64>() / value_dim as f64;
            let factor = 1.0 / (mean + f64::from(EPS)).sqrt();
            let gates = &row[channels + head * value_dim..];
            out.extend((0..value_dim).map(|column| {
                given[column] * factor * value(&parameters.norm, column) * silu(f64::from(gates[column]))
            }));
        }
    }
    out
}

/// A layer with its state: the last of three recurrent layers, so that nothing may rely on being the first.
struct Layer<'a, D: Device> {
    device: &'a mut D,
    shape: DeltaShape,
    delta: D::Delta,
    states: D::States,
}

const LAYERS: usize = 3;

impl<'a, D: Device> Layer<'a, D> {
    fn new(device: &'a mut D, shape: DeltaShape, slots: usize) -> Layer<'a, D> {
        let delta = device.load_delta(shape, Parameters::random(shape).source()).unwrap();
        let mut states = device.new_states(StateShape { layers: LAYERS, delta: shape }).unwrap();
        device.reserve_slots(&mut states, slots).unwrap();
        Layer { device, shape, delta, states }
    }

    /// Computes pieces of sequences, each with where its state comes from and goes to.
    fn run(&mut self, pieces: &[(&[f32], StateFlow)]) -> Vec<f32> {
        let columns = self.shape.columns();
        let x: Vec<f32> = pieces.iter().flat_map(|(x, _)| x.iter().copied()).collect();
        let tokens = vec![0; x.len() / columns];
        let spans: Vec<Span<'_>> = pieces
            .iter()
            .map(|(x, flow)| Span {
                positions: None,
                capture: 0,
                hidden: false,
                pages: &[],
                start: 0,
                tokens: &tokens[..x.len() / columns],
                state: Some(*flow),
                logits: LogitRows::None,
            })
            .collect();
        let positions = tokens.clone();
        let rows = Rows { spans: &spans, positions: &positions };
        let x = upload(self.device, &x, columns);
        let mut out = Vec::new();
        for layer in 0..LAYERS {
            let given = self.device.gated_delta(&x, &self.delta, rows, &mut self.states, layer, EPS);
            out = download(self.device, &given, self.shape.values());
        }
        out
    }

    fn digest(&self, slot: u32) -> [u8; 32] {
        self.device.slot_digest(&self.states, SlotId(slot))
    }
}

fn flow(from: Option<u32>, to: u32) -> StateFlow {
    StateFlow { from: from.map(SlotId), to: SlotId(to), revocable: false }
}

fn random_rows(shape: DeltaShape, seed: u64, tokens: usize) -> Vec<f32> {
    Rng(seed).units(tokens * shape.columns()).iter().map(|x| x * 3.0).collect()
}

fn computes_the_rule<D: Device>(device: &mut D, shape: DeltaShape) {
    let (a, b) = (random_rows(shape, 5, 90), random_rows(shape, 6, 3));
    let precise = device.precision() == "f32";
    let mut layer = Layer::new(device, shape, 4);
    let actual = layer.run(&[(&a, flow(None, 2)), (&b, flow(None, 0))]);
    let parameters = Parameters::random(shape);
    let expected = [reference(&a, shape, &parameters), reference(&b, shape, &parameters)].concat();
    let error = relative_error(&actual, &expected);
    assert!(error < if precise { 1e-5 } else { 1e-2 }, "{shape:?}: {error}");
}

/// Chunks, neighbours, slots and restores change nothing, and a slot that is only read keeps what it held.
fn routes_agree<D: Device>(device: &mut D, shape: DeltaShape) {
    let columns = shape.columns();
    let x = random_rows(shape, 7, 70);
    let other = random_rows(shape, 8, 70);
    let mut layer = Layer::new(device, shape, 9);
    let whole = layer.run(&[(&x, flow(None, 0))]);
    let expected: Vec<f64> = whole.iter().map(|x| f64::from(*x)).collect();
    let digest = layer.digest(0);
    let same = |got: Vec<f32>, end: [u8; 32], route: &str, identity: Identity| match identity {
        Identity::Bitwise => {
            assert!(got == whole, "{shape:?}: {route} gave other outputs");
            assert!(end == digest, "{shape:?}: {route} left another state");
        }
        _ => assert!(relative_error(&got, &expected) < 1e-3, "{shape:?}: {route}"),
    };
    for chunk in [1, 2, 7, 64] {
        let (mut got, mut from) = (Vec::new(), None);
        for x in x.chunks(chunk * columns) {
            got.extend(layer.run(&[(x, flow(from, 1))]));
            from = Some(1);
        }
        same(got, layer.digest(1), "a chunk in place", layer.device.identity());

        // From slot to slot, beside another sequence.
        let (mut got, mut from) = (Vec::new(), None);
        for (index, (x, y)) in x.chunks(chunk * columns).zip(other.chunks(chunk * columns)).enumerate() {
            let (to, before) = (2 + index as u32 % 2, from.map(|slot| layer.digest(slot)));
            let company = flow((index > 0).then_some(4), 4);
            let out = layer.run(&[(y, company), (x, flow(from, to))]);
            got.extend_from_slice(&out[y.len() / columns * shape.values()..]);
            assert_eq!(from.map(|slot| layer.digest(slot)), before, "a slot that was only read changed");
            from = Some(to);
        }
        let last = from.unwrap_or_default();
        same(got, layer.digest(last), "a chunk from slot to slot", layer.device.identity());
    }
    // Two sequences start from one snapshot in the same batch.
    let (first, rest) = x.split_at(33 * columns);
    layer.run(&[(first, flow(None, 5))]);
    let out = layer.run(&[(rest, flow(Some(5), 6)), (&other, flow(Some(5), 7)), (rest, flow(Some(5), 8))]);
    let rows = rest.len() / columns * shape.values();
    let (a, b) = (&out[..rows], &out[out.len() - rows..]);
    assert_eq!(a, b, "{shape:?}: equal continuations of one snapshot differ");
    assert_eq!(layer.digest(6), layer.digest(8));
    assert_ne!(layer.digest(6), layer.digest(7), "digests do not tell states apart");
    let got = [&whole[..33 * shape.values()], a].concat();
    same(got, layer.digest(6), "a restore", layer.device.identity());
}

/// After any number of rejected tokens the state is that of the accepted ones.
fn takes_back<D: Device>(device: &mut D, shape: DeltaShape) {
    let columns = shape.columns();
    let x = random_rows(shape, 9, 20);
    let bitwise = device.identity() == Identity::Bitwise;
    for start in [0, 2, 11] {
        for accepted in 0..=6 {
            let mut layer = Layer::new(device, shape, 6);
            let at = |tokens: usize| (start + tokens) * columns;
            let from = (start > 0).then_some(0);
            if start > 0 {
                layer.run(&[(&x[..at(0)], flow(None, 0))]);
            }
            let drafted = StateFlow { revocable: true, ..flow(from, 1) };
            layer.run(&[(&x[at(0)..at(6)], drafted)]);
            layer.device.rewind(&mut layer.states, drafted, accepted).unwrap();
            let expected = [&x[..at(accepted)], &x[at(7)..at(9)]].concat();
            let whole = layer.run(&[(&expected, flow(None, 2))]);
            let rest = layer.run(&[(&x[at(7)..at(9)], flow(Some(1), 3))]);
            let tail = &whole[whole.len() - rest.len()..];
            if bitwise {
                assert!(rest == tail, "{shape:?}: {accepted} of 6 tokens kept after {start}");
                assert_eq!(layer.digest(3), layer.digest(2), "{shape:?}: {accepted} kept after {start}");
            } else {
                let tail: Vec<f64> = tail.iter().map(|x| f64::from(*x)).collect();
                assert!(relative_error(&rest, &tail) < 1e-3);
            }
            // What an earlier forward wrote, or was not revocable, cannot be taken back.
            let mut refuse = |flow, tokens| {
                let outcome = layer.device.rewind(&mut layer.states, flow, tokens);
                assert!(matches!(outcome, Err(DeviceError::Contract(_))), "{flow:?} {tokens}");
            };
            refuse(drafted, accepted);
            refuse(flow(Some(1), 3), 1);
        }
    }
    // Two drafts in a batch, one of them taken back, again and to fewer tokens; too many are refused and nothing is lost by it.
    let mut layer = Layer::new(device, shape, 6);
    let [first, second] = [1, 2].map(|to| StateFlow { revocable: true, ..flow(Some(0), to) });
    layer.run(&[(&x[..4 * columns], flow(None, 0))]);
    layer.run(&[(&x[4 * columns..9 * columns], first), (&x[9 * columns..], second)]);
    let kept = layer.digest(1);
    for tokens in [9, 3] {
        layer.device.rewind(&mut layer.states, second, tokens).unwrap();
        assert!(layer.device.rewind(&mut layer.states, second, 12).is_err());
        let expected = [&x[..4 * columns], &x[9 * columns..(9 + tokens) * columns]].concat();
        let mut plain = Layer::new(layer.device, shape, 1);
        plain.run(&[(&expected, flow(None, 0))]);
        let expected = plain.digest(0);
        assert_eq!(layer.digest(1), kept, "{shape:?}: the other draft");
        if bitwise {
            assert_eq!(layer.digest(2), expected, "{shape:?}: {tokens} of 11");
        }
    }
    if !bitwise {
        // Digests say nothing here: what follows must be what follows the three tokens that are left.
        let whole = [&x[..4 * columns], &x[9 * columns..12 * columns], &x[..2 * columns]].concat();
        let whole = layer.run(&[(&whole, flow(None, 3))]);
        let rest = layer.run(&[(&x[..2 * columns], flow(Some(2), 4))]);
        let tail: Vec<f64> = whole[whole.len() - rest.len()..].iter().map(|x| f64::from(*x)).collect();
        assert!(relative_error(&rest, &tail) < 1e-3, "{shape:?}: taken back twice");
    }
    let mut layer = Layer::new(device, shape, 2);
    let drafted = StateFlow { revocable: true, ..flow(None, 1) };
    layer.run(&[(&x[..3 * columns], drafted)]);
    assert!(layer.device.rewind(&mut layer.states, drafted, 4).is_err());
}
