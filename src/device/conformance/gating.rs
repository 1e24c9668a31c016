//! Norms and gates of heads and rows, and mixtures of experts, against f64.

use super::operations::{download, upload};
use super::weights::{Kind, Rng, Tensor};
use super::{Make, relative_error};
use crate::config::Precision;
use crate::device::ops::{AttentionShape, Device, ExpertShape, ExpertSource, KvShape, Rotary, Rows};
use crate::device::weights::Float;
use crate::device::{LogitRows, PageId, Span};
use crate::event::Identity;

/// Gates, head norms and experts compute what they say.
pub(crate) fn gating<D: Device>(make: Make<'_, D>) {
    let mut device = make(Precision::F32);
    gates_rows(&mut device);
    norms_and_rotates_heads_but_not_gates(&mut device);
    gates_attention(&mut device);
    for precision in [Precision::F32, Precision::Int8] {
        mixes_experts(&mut make(precision));
    }
}

fn logistic(x: f32) -> f64 {
    1.0 / (1.0 + (-f64::from(x)).exp())
}

fn gates_rows<D: Device>(device: &mut D) {
    let mut rng = Rng(31);
    for (rows, cols) in [(1, 16), (5, 40), (80, 96)] {
        let (x, gates) = (rng.units(rows * cols), rng.units(rows));
        let mut hidden = upload(device, &x, cols);
        let gate = upload(device, &gates, 1);
        device.gate_rows(&mut hidden, &gate);
        let expected: Vec<f64> =
            x.iter().enumerate().map(|(i, x)| f64::from(*x) * logistic(gates[i / cols])).collect();
        let error = relative_error(&download(device, &hidden, cols), &expected);
        assert!(error < 1e-6, "{rows} by {cols}: {error}");
    }
}

fn norms_and_rotates_heads_but_not_gates<D: Device>(device: &mut D) {
    for (gated, head_dim) in [(false, 32), (true, 32), (true, 24)] {
        let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim, scale: 1.0, gated };
        let mut rng = Rng(32);
        let x = rng.units(3 * shape.columns());
        let gains = [0, 1].map(|_| Tensor::random(&mut rng, Kind::Plain(Float::F32), 1, head_dim));
        let [query, key] = [&gains[0], &gains[1]].map(|gain| device.load_gain(gain.source()).unwrap());
        let mut hidden = upload(device, &x, shape.columns());
        device.norm_heads(&mut hidden, shape, &query, &key, 1e-5);
        let rotary = Rotary { base: 10_000.0, dims: 8 };
        device.rotary(&mut hidden, shape, rotary, &[0, 3, 900]);
        let mut expected: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        for (row, position) in expected.chunks_exact_mut(shape.columns()).zip([0.0, 3.0, 900.0]) {
            let keys = shape.keys_at()..shape.values_at();
            for (heads, gain) in [(0..shape.queries(), &gains[0]), (keys, &gains[1])] {
                for head in row[heads].chunks_exact_mut(head_dim) {
                    let mean = head.iter().map(|x| x * x).sum::<f64>() / head_dim as f64;
                    let factor = 1.0 / (mean + 1e-5).sqrt();
                    head.iter_mut().zip(&gain.values).for_each(|(x, gain)| *x *= factor * f64::from(*gain));
                    for i in 0..4 {
                        let angle = position * 10_000f64.powf(-2.0 * i as f64 / 8.0);
                        let (a, b) = (head[i], head[i + 4]);
                        head[i] = a * angle.cos() - b * angle.sin();
                        head[i + 4] = b * angle.cos() + a * angle.sin();
                    }
                }
            }
        }
        let error = relative_error(&download(device, &hidden, shape.columns()), &expected);
        assert!(error < 1e-6, "{shape:?}: {error}");
    }
}

/// Gated attention is attention times the gates, which take no other part.
fn gates_attention<D: Device>(device: &mut D) {
    let plain = AttentionShape { heads: 6, kv_heads: 2, head_dim: 16, scale: 0.3, gated: false };
    let gated = AttentionShape { gated: true, ..plain };
    let x = Rng(33).units(90 * gated.columns());
    let rows: Vec<&[f32]> = x.chunks_exact(gated.columns()).collect();
    let ungated: Vec<f32> =
        rows.iter().flat_map(|row| [&row[..96], &row[gated.keys_at()..]].concat()).collect();
    let pages = [PageId(1), PageId(0)];
    let tokens = vec![0; 90];
    let positions: Vec<u32> = (0..90).collect();
    let mut attend = |x: &[f32], shape: AttentionShape| {
        let store = KvShape { layers: 1, kv_heads: 2, head_dim: 16, page_tokens: 64 };
        let mut kv = device.new_kv(store).unwrap();
        device.reserve_kv(&mut kv, 2).unwrap();
        let span = Span {
            positions: None,
            capture: 0,
            hidden: false,
            pages: &pages,
            start: 0,
            tokens: &tokens,
            state: None,
            logits: LogitRows::None,
        };
        let qkv = upload(device, x, shape.columns());
        let rows = Rows { spans: &[span], positions: &positions };
        let out = device.attention(&qkv, shape, rows, &mut kv, 0, 0);
        download(device, &out, 96)
    };
    let (without, with) = (attend(&ungated, plain), attend(&x, gated));
    let gates = rows.iter().flat_map(|row| &row[96..192]);
    let expected: Vec<f64> =
        without.iter().zip(gates).map(|(x, gate)| f64::from(*x) * logistic(*gate)).collect();
    let error = relative_error(&with, &expected);
    assert!(error < 1e-6, "{error}");
}

fn mixes_experts<D: Device>(device: &mut D) {
    let precise = device.precision() == "f32";
    let mut rng = Rng(34);
    let affine = Kind::Affine { bits: 6, group: 32, float: Float::Bf16 };
    for (experts, per_token, cols, inner, normalised) in
        [(5, 3, 64, 32, true), (8, 2, 96, 64, false), (4, 4, 32, 96, true)]
    {
        let stacks: Vec<[Tensor; 3]> = (0..experts)
            .map(|_| {
                [(inner, cols), (inner, cols), (cols, inner)]
                    .map(|(rows, cols)| Tensor::random(&mut rng, affine, rows, cols))
            })
            .collect();
        let sources: Vec<ExpertSource<'_>> = stacks
            .iter()
            .map(|[gate, up, down]| ExpertSource {
                gate: gate.source(),
                up: up.source(),
                down: down.source(),
            })
            .collect();
        let loaded = device.load_experts(&sources).unwrap();
        let shape = ExpertShape { experts, per_token, normalised };
        let x: Vec<f32> = rng.units(21 * cols).iter().map(|x| x * 4.0).collect();
        let scores: Vec<f32> = rng.units(21 * experts).iter().map(|x| x * 2.0).collect();
        let mut run = |x: &[f32], scores: &[f32]| {
            let (x, scores) = (upload(device, x, cols), upload(device, scores, experts));
            let out = device.experts(&x, &scores, shape, &loaded);
            download(device, &out, cols)
        };
        let together = run(&x, &scores);
        let mut expected = Vec::new();
        for (x, scores) in x.chunks_exact(cols).zip(scores.chunks_exact(experts)) {
            expected.extend(mixture(x, scores, shape, &stacks));
        }
        let error = relative_error(&together, &expected);
        assert!(error < if precise { 1e-5 } else { 2e-2 }, "{shape:?}: {error}");

        let alone: Vec<f32> = x
            .chunks_exact(cols)
            .zip(scores.chunks_exact(experts))
            .flat_map(|(x, scores)| run(x, scores))
            .collect();
        match device.identity() {
            Identity::Bitwise => assert!(alone == together, "{shape:?}: a row alone has other bits"),
            _ => assert!(relative_error(&alone, &expected) < 2e-2),
        }
    }
}

fn mixture(x: &[f32], scores: &[f32], shape: ExpertShape, stacks: &[[Tensor; 3]]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..shape.experts).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    order.truncate(shape.per_token);
    let weight = |expert: usize| f64::from(scores[expert]).exp();
    let total: f64 = match shape.normalised {
        true => order.iter().map(|expert| weight(*expert)).sum(),
        false => (0..shape.experts).map(weight).sum(),
    };
    let mut sum = vec![0.0; x.len()];
    for expert in order {
        let [gate, up, down] = &stacks[expert];
        let inner: Vec<f32> = gate
            .product(x)
            .iter()
            .zip(up.product(x))
            .map(|(gate, up)| (gate / (1.0 + (-gate).exp()) * up) as f32)
            .collect();
        for (sum, y) in sum.iter_mut().zip(down.product(&inner)) {
            *sum += weight(expert) / total * y;
        }
    }
    sum
}
