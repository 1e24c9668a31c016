//! Each operation against f64.

use super::weights::{Kind, Rng, Tensor};
use super::{Make, relative_error};
use crate::config::Precision;
use crate::device::ops::{AttentionShape, Device, KvShape, Rotary, Rows};
use crate::device::weights::{Encoding, Float, RowOrder, WeightSource};
use crate::device::{DeviceError, LogitRows, PageId, Span};
use crate::event::Identity;

/// Every operation computes what it says.
pub(crate) fn operations<D: Device>(make: Make<'_, D>) {
    linear_layers(make);
    mixed_stacks_and_reordered_rows(make);
    tables(make);
    rows_of_numbers(make);
    attends_to_all_earlier_positions(make);
    refuses_bad_weights(make);
}

/// A device matrix with known contents, by way of an embedding.
pub(super) fn upload<D: Device>(device: &mut D, x: &[f32], cols: usize) -> D::Hidden {
    let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
    let rows = x.len() / cols;
    let encoding = Encoding::Plain(Float::F32, &bytes);
    let source = WeightSource { name: "input", rows, cols, encoding, order: RowOrder::Halves };
    let table = device.load_table(source).unwrap();
    let tokens: Vec<u32> = (0..rows as u32).collect();
    device.embed(&table, &tokens)
}

/// A device matrix's contents, by way of logits against the identity, whose products are exact.
pub(super) fn download<D: Device>(device: &mut D, x: &D::Hidden, cols: usize) -> Vec<f32> {
    let identity: Vec<u8> = (0..cols * cols)
        .flat_map(|i| if i / cols == i % cols { 1f32.to_le_bytes() } else { 0f32.to_le_bytes() })
        .collect();
    let encoding = Encoding::Plain(Float::F32, &identity);
    let order = RowOrder::Halves;
    let source = WeightSource { name: "identity", rows: cols, cols, encoding, order };
    let layer = device.load_linear(&[source]).unwrap();
    device.logits(x, &layer).unwrap()
}

fn product<D: Device>(device: &mut D, stack: &[&Tensor], x: &[f32]) -> Vec<f32> {
    let sources: Vec<WeightSource<'_>> = stack.iter().map(|t| t.source()).collect();
    let layer = device.load_linear(&sources).unwrap();
    let x = upload(device, x, stack[0].cols);
    device.logits(&x, &layer).unwrap()
}

fn linear_layers<D: Device>(make: Make<'_, D>) {
    for (precision, bound) in [(Precision::F32, 1e-5), (Precision::Int8, 0.012)] {
        let mut device = make(precision);
        let mut rng = Rng(1);
        for kind in Kind::all() {
            for (rows, cols, tokens) in [(16, 128, 1), (33, 384, 3), (40, 128, 15)] {
                let tensor = Tensor::random(&mut rng, kind, rows, cols);
                let x = rng.units(tokens * cols);
                let error = relative_error(&product(&mut device, &[&tensor], &x), &tensor.product(&x));
                assert!(error < bound, "{precision:?} {kind:?} {rows}x{cols}, {tokens} tokens: {error}");
            }
        }
        // The widths of a real model, odd numbers of groups included.
        for cols in [32, 96, 192, 576, 1536] {
            let tensor = Tensor::random(&mut rng, Kind::Q4_1, 17, cols);
            let x = rng.units(9 * cols);
            let error = relative_error(&product(&mut device, &[&tensor], &x), &tensor.product(&x));
            assert!(error < bound, "{precision:?} {cols} columns: {error}");
        }
    }
}

fn mixed_stacks_and_reordered_rows<D: Device>(make: Make<'_, D>) {
    let mut device = make(Precision::F32);
    let mut rng = Rng(2);
    let kinds = [Kind::Q4_1, Kind::Q4_1, Kind::Q8_0, Kind::Plain(Float::F16), Kind::Q4_0];
    let mut stack: Vec<Tensor> = kinds.iter().map(|kind| Tensor::random(&mut rng, *kind, 24, 64)).collect();
    stack[0].order = RowOrder::Pairs { head_dim: 8 };
    stack[2].order = RowOrder::Pairs { head_dim: 12 };
    stack[3].order = RowOrder::GatedHeads { head_dim: 4 };
    let x = rng.units(5 * 64);
    let stacked: Vec<&Tensor> = stack.iter().collect();
    let actual = product(&mut device, &stacked, &x);
    let mut expected = Vec::new();
    for x in x.chunks_exact(64) {
        expected.extend(stack.iter().flat_map(|tensor| tensor.product(x)));
    }
    let error = relative_error(&actual, &expected);
    assert!(error < 1e-5, "{error}");
}

fn tables<D: Device>(make: Make<'_, D>) {
    for precision in [Precision::F32, Precision::Int8] {
        let mut device = make(precision);
        let mut rng = Rng(3);
        for kind in Kind::all() {
            let tensor = Tensor::random(&mut rng, kind, 21, 128);
            let table = device.load_table(tensor.source()).unwrap();
            let tokens = [20, 0, 3, 3, 16];
            let rows = device.embed(&table, &tokens);
            let actual = download(&mut device, &rows, 128);
            let expected: Vec<f64> = tokens
                .iter()
                .flat_map(|t| &tensor.values[*t as usize * 128..(*t as usize + 1) * 128])
                .map(|x| f64::from(*x))
                .collect();
            let error = relative_error(&actual, &expected);
            assert!(error < 1e-6, "{precision:?} {kind:?}: {error}");
            let logits = device.tied_logits(&rows, &table).unwrap();
            let error = relative_error(&logits, &tensor.product(&actual));
            let bound = if precision == Precision::F32 { 1e-5 } else { 0.02 };
            assert!(error < bound, "{precision:?} {kind:?}: {error}");
        }
    }
}

fn rows_of_numbers<D: Device>(make: Make<'_, D>) {
    let mut device = make(Precision::F32);
    let mut rng = Rng(4);
    for (rows, cols) in [(1, 16), (3, 40), (9, 96), (70, 576)] {
        let x = rng.units(rows * cols);
        let y = rng.units(rows * cols);
        let gain = Tensor::random(&mut rng, Kind::Plain(Float::F32), 1, cols);
        let g = device.load_gain(gain.source()).unwrap();
        let mut a = upload(&mut device, &x, cols);
        let b = upload(&mut device, &y, cols);
        device.add(&mut a, &b);
        let sums: Vec<f64> = x.iter().zip(&y).map(|(x, y)| f64::from(*x) + f64::from(*y)).collect();
        assert!(relative_error(&download(&mut device, &a, cols), &sums) < 1e-6, "sum of {rows} by {cols}");

        let normed = device.rms_norm(&a, &g, 1e-5);
        let mut expected = Vec::new();
        for row in sums.chunks_exact(cols) {
            let mean = row.iter().map(|x| x * x).sum::<f64>() / cols as f64;
            let factor = 1.0 / (mean + 1e-5).sqrt();
            expected.extend(row.iter().zip(&gain.values).map(|(x, g)| x * factor * f64::from(*g)));
        }
        let error = relative_error(&download(&mut device, &normed, cols), &expected);
        assert!(error < 1e-6, "norm of {rows} by {cols}: {error}");

        let picked = device.select_rows(&a, &[rows - 1, 0]);
        let picked = download(&mut device, &picked, cols);
        let expected: Vec<f64> = sums[(rows - 1) * cols..].iter().chain(&sums[..cols]).copied().collect();
        assert!(relative_error(&picked, &expected) < 1e-6);
    }
    gates(&mut device, &mut rng);
    rotates(&mut device, &mut rng);
}

fn gates<D: Device>(device: &mut D, rng: &mut Rng) {
    for (cols, inner) in [(32, 48), (64, 96), (64, 128)] {
        let [gate, up] = [0; 2].map(|_| Tensor::random(rng, Kind::Plain(Float::F32), inner, cols));
        let down = Tensor::random(rng, Kind::Plain(Float::F32), cols, inner);
        let gate_up = device.load_linear(&[gate.source(), up.source()]).unwrap();
        let down_layer = device.load_linear(&[down.source()]).unwrap();
        let x: Vec<f32> = rng.units(5 * cols).iter().map(|x| x * 8.0).collect();
        let hidden = upload(device, &x, cols);
        let out = device.gated_mlp(&hidden, &gate_up, &down_layer);
        let silu = |x: f64| x / (1.0 + (-x).exp());
        let gated: Vec<f32> =
            gate.product(&x).iter().zip(up.product(&x)).map(|(g, u)| (silu(*g) * u) as f32).collect();
        let error = relative_error(&download(device, &out, cols), &down.product(&gated));
        assert!(error < 1e-5, "gated MLP of {cols}, {inner}: {error}");
    }
}

fn rotates<D: Device>(device: &mut D, rng: &mut Rng) {
    for (head_dim, dims) in [(64, 64), (32, 32), (16, 8), (80, 40)] {
        let shape = AttentionShape { heads: 3, kv_heads: 1, head_dim, scale: 1.0, gated: false };
        let cols = 5 * head_dim;
        let x = rng.units(4 * cols);
        let positions = [0, 1, 77, 5000];
        let mut hidden = upload(device, &x, cols);
        device.rotary(&mut hidden, shape, Rotary { base: 10_000.0, dims }, &positions);
        let mut expected: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        for (row, position) in expected.chunks_exact_mut(cols).zip(positions) {
            for head in row[..4 * head_dim].chunks_exact_mut(head_dim) {
                for i in 0..dims / 2 {
                    let angle = f64::from(position) * 10_000f64.powf(-2.0 * i as f64 / dims as f64);
                    let (a, b) = (head[i], head[i + dims / 2]);
                    head[i] = a * angle.cos() - b * angle.sin();
                    head[i + dims / 2] = b * angle.cos() + a * angle.sin();
                }
            }
        }
        let error = relative_error(&download(device, &hidden, cols), &expected);
        // An angle of thousands, held in f32, is off by its last bits; only a device that promises bits takes it in f64.
        let bound = if device.identity() == Identity::Bitwise { 1e-6 } else { 1e-4 };
        assert!(error < bound, "rotary of {head_dim}, {dims}: {error}");
    }
}

/// Softmax attention of one row in f64; keys and values are those of all positions up to its own.
pub(super) fn attend(q: &[f32], keys: &[&[f32]], values: &[&[f32]], scale: f32) -> Vec<f64> {
    let dot = |k: &[f32]| q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
    let scores: Vec<f64> = keys.iter().map(|k| dot(k) * f64::from(scale)).collect();
    let greatest = scores.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - greatest).exp()).collect();
    let total: f64 = weights.iter().sum();
    (0..values[0].len())
        .map(|d| weights.iter().zip(values).map(|(w, v)| w * f64::from(v[d])).sum::<f64>() / total)
        .collect()
}

fn attends_to_all_earlier_positions<D: Device>(make: Make<'_, D>) {
    for (precision, bound) in [(Precision::F32, 2e-6), (Precision::Int8, 2e-3)] {
        for (heads, kv_heads, head_dim, lengths) in
            [(2, 2, 8, vec![70, 3]), (3, 1, 64, vec![300, 1]), (4, 2, 80, vec![65]), (8, 1, 32, vec![200])]
        {
            let mut device = make(precision);
            let mut rng = Rng(5);
            let shape = AttentionShape { heads, kv_heads, head_dim, scale: 0.7, gated: false };
            let cols = (heads + 2 * kv_heads) * head_dim;
            let shape_kv = KvShape { layers: 2, kv_heads, head_dim, page_tokens: 64 };
            let mut kv = device.new_kv(shape_kv).unwrap();
            device.reserve_kv(&mut kv, 12).unwrap();
            let tokens = vec![0; 300];
            // Pages out of order, so that nothing may rely on neighbours.
            let pages: Vec<Vec<PageId>> =
                vec![[9, 2, 7, 0, 5].map(PageId).to_vec(), [4, 1].map(PageId).to_vec()];
            let spans: Vec<Span<'_>> = lengths
                .iter()
                .zip(&pages)
                .map(|(n, pages)| Span {
                    positions: None,
                    capture: 0,
                    hidden: false,
                    pages,
                    start: 0,
                    tokens: &tokens[..*n],
                    state: None,
                    logits: LogitRows::None,
                })
                .collect();
            let rows: usize = lengths.iter().sum();
            let positions: Vec<u32> = lengths.iter().flat_map(|n| 0..*n as u32).collect();
            let x: Vec<f32> = rng.units(rows * cols).iter().map(|x| x * 2.0).collect();
            let qkv = upload(&mut device, &x, cols);
            let rows = Rows { spans: &spans, positions: &positions };
            let out = device.attention(&qkv, shape, rows, &mut kv, 1, 0);
            let actual = download(&mut device, &out, heads * head_dim);

            let mut expected = Vec::new();
            let mut first = 0;
            for n in &lengths {
                let rows: Vec<&[f32]> = x[first * cols..(first + n) * cols].chunks_exact(cols).collect();
                for (i, row) in rows.iter().enumerate() {
                    for head in 0..heads {
                        let own = head * kv_heads / heads;
                        let part = |at: usize| {
                            rows[..=i]
                                .iter()
                                .map(|r| &r[at * head_dim..(at + 1) * head_dim])
                                .collect::<Vec<_>>()
                        };
                        let (k, v) = (part(heads + own), part(heads + kv_heads + own));
                        expected.extend(attend(&row[head * head_dim..(head + 1) * head_dim], &k, &v, 0.7));
                    }
                }
                first += n;
            }
            let error = relative_error(&actual, &expected);
            assert!(error < bound, "{precision:?} {heads}/{kv_heads} heads of {head_dim}: {error}");
        }
    }
}

fn refuses_bad_weights<D: Device>(make: Make<'_, D>) {
    let mut device = make(Precision::Int8);
    let mut rng = Rng(6);
    let mut refused = |source: WeightSource<'_>| {
        let outcome = device.load_linear(&[source]).map(|_| ());
        assert!(matches!(outcome, Err(DeviceError::Weight { .. })), "{source:?} was taken");
    };
    for kind in Kind::all() {
        let tensor = Tensor::random(&mut rng, kind, 16, 128);
        let good = tensor.source();
        refused(WeightSource { rows: 15, ..good });
        refused(WeightSource { rows: 0, ..good });
        refused(WeightSource { cols: 96, ..good });
        refused(WeightSource { cols: 127, ..good });
        refused(WeightSource { rows: usize::MAX / 2, ..good });
        refused(WeightSource { order: RowOrder::Pairs { head_dim: 3 }, ..good });
        refused(WeightSource { order: RowOrder::Pairs { head_dim: 0 }, ..good });
    }
    let a = Tensor::random(&mut rng, Kind::Q4_0, 16, 128);
    let b = Tensor::random(&mut rng, Kind::Q4_0, 16, 64);
    assert!(device.load_linear(&[a.source(), b.source()]).is_err(), "a stack of unequal columns was taken");
    assert!(device.load_linear(&[]).is_err(), "a layer of nothing was taken");
    let shape = KvShape { layers: 1, kv_heads: 1, head_dim: 8, page_tokens: 100 };
    assert!(device.new_kv(shape).is_err(), "a page of 100 tokens was taken");
}
