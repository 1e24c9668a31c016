//! Queries taken out of a forward, and what they make of keys; places and positions that differ.

use super::operations::{download, upload};
use super::routes::{Toy, small};
use super::weights::Rng;
use super::{Make, relative_error};
use crate::config::Precision;
use crate::device::ops::{AttentionShape, Device, Keys, KvShape, Rows};
use crate::device::{LogitRows, PageId, Span};
use crate::event::Identity;

/// Scoring computes what it says, and a skipped token changes nobody's own numbers.
pub(crate) fn scoring<D: Device>(make: Make<'_, D>) {
    takes_queries(&mut make(Precision::F32));
    for precision in [Precision::F32, Precision::Int8] {
        weighs_keys_as_attention_does(&mut make(precision));
        keeps_a_token_s_numbers_by_its_position(&mut make(precision));
    }
}

fn takes_queries<D: Device>(device: &mut D) {
    for gated in [false, true] {
        let shape = AttentionShape { heads: 3, kv_heads: 1, head_dim: 24, scale: 1.0, gated };
        let x = Rng(41).units(9 * shape.columns());
        let mut qkv = upload(device, &x, shape.columns());
        let expect = |x: &[f32], indices: &[usize]| -> Vec<f64> {
            let row = |index: &usize| &x[index * shape.columns()..][..shape.queries()];
            indices.iter().flat_map(row).map(|x| f64::from(*x)).collect()
        };
        for indices in [&[0][..], &[8, 2, 3], &[0, 1, 2, 3, 4, 5, 6, 7, 8]] {
            let taken = device.queries(&qkv, shape, indices);
            let read = device.read(&taken).unwrap();
            assert!(relative_error(&read, &expect(&x, indices)) < 1e-6, "{shape:?} {indices:?}");
        }
        // After rotary embedding they are the rotated ones.
        let rotary = crate::device::ops::Rotary { base: 10_000.0, dims: 16 };
        let positions: Vec<u32> = (0..9).map(|i| i * 37).collect();
        device.rotary(&mut qkv, shape, rotary, &positions);
        let taken = device.queries(&qkv, shape, &[7, 1]);
        let read = device.read(&taken).unwrap();
        let rotated = download(device, &qkv, shape.columns());
        assert!(relative_error(&read, &expect(&rotated, &[7, 1])) < 1e-6);
        assert!(relative_error(&read, &expect(&x, &[7, 1])) > 0.1);
    }
}

/// Weights against f64, and weighted values against attention itself.
fn weighs_keys_as_attention_does<D: Device>(device: &mut D) {
    let bound = if device.precision() == "f32" { 3e-6 } else { 2e-3 };
    for (heads, kv_heads, head_dim, tokens) in
        [(2, 1, 64, 300), (6, 2, 16, 130), (3, 3, 40, 65), (5, 1, 8, 1)]
    {
        let shape = AttentionShape { heads, kv_heads, head_dim, scale: 0.6, gated: false };
        let columns = shape.columns();
        let x = Rng(42).units(tokens * columns);
        let mut kv = device.new_kv(KvShape { layers: 2, kv_heads, head_dim, page_tokens: 64 }).unwrap();
        device.reserve_kv(&mut kv, 8).unwrap();
        // Some apart and some that follow each other.
        let pages = [6, 2, 3, 4, 0].map(PageId);
        let ids = vec![0; tokens];
        let span = Span {
            pages: &pages,
            start: 0,
            tokens: &ids,
            positions: None,
            capture: 0,
            hidden: false,
            state: None,
            logits: LogitRows::None,
        };
        let positions: Vec<u32> = (0..tokens as u32).collect();
        let qkv = upload(device, &x, columns);
        let rows = Rows { spans: &[span], positions: &positions };
        let attended = device.attention(&qkv, shape, rows, &mut kv, 1, 0);
        let attended = download(device, &attended, shape.queries());
        let held = device.kv_digest(&kv, pages[0], 64.min(tokens));

        let number = |row: usize, column: usize| f64::from(x[row * columns + column]);
        for (first, window) in
            [(tokens - 1, 0..tokens), (tokens.saturating_sub(8), 0..tokens), (0, tokens / 3..tokens)]
        {
            let queries: Vec<f32> = (first..tokens.min(first + 8))
                .flat_map(|row| &x[row * columns..][..shape.queries()])
                .copied()
                .collect();
            let keys = Keys { pages: &pages, window: window.clone() };
            let weights = device.key_weights(&mut kv, 1, keys, &queries, shape).unwrap();
            assert_eq!(weights.len(), queries.len() / head_dim * window.len());
            let mut expected = Vec::new();
            for (row, q) in queries.chunks_exact(head_dim).enumerate() {
                let keys_at = shape.keys_at() + row % heads / (heads / kv_heads) * head_dim;
                let score = |place: usize| {
                    let dot: f64 =
                        q.iter().enumerate().map(|(d, q)| f64::from(*q) * number(place, keys_at + d)).sum();
                    (dot * f64::from(shape.scale)).exp()
                };
                let scores: Vec<f64> = window.clone().map(score).collect();
                let total: f64 = scores.iter().sum();
                expected.extend(scores.iter().map(|score| score / total));
            }
            let error = relative_error(&weights, &expected);
            assert!(error < bound, "{shape:?}, {window:?}: {error}");
            for row in weights.chunks_exact(window.len()) {
                let sum: f64 = row.iter().map(|weight| f64::from(*weight)).sum();
                assert!((sum - 1.0).abs() < 1e-5, "{shape:?}, {window:?}: weights sum to {sum}");
            }
            // The last token sees the whole window: with its weights, values add up to what attention gave it.
            if window.start == 0 && first + 1 == tokens {
                let mut sums = Vec::new();
                for (head, weights) in weights.chunks_exact(window.len()).enumerate() {
                    let values_at = shape.values_at() + head / (heads / kv_heads) * head_dim;
                    let column = |d: usize| {
                        weights
                            .iter()
                            .enumerate()
                            .map(|(place, w)| f64::from(*w) * number(place, values_at + d))
                            .sum()
                    };
                    sums.extend((0..head_dim).map(column).collect::<Vec<f64>>());
                }
                let error = relative_error(&attended[first * shape.queries()..], &sums);
                assert!(error < bound, "{shape:?}: attention, {error}");
            }
        }
        assert_eq!(device.kv_digest(&kv, pages[0], 64.min(tokens)), held, "the store changed");
    }
}

/// In a model of one layer a token's key and value hang on the token and its position alone: a sparse run stores those of a dense run, at
/// other places.
fn keeps_a_token_s_numbers_by_its_position<D: Device>(device: &mut D) {
    const PAGE: usize = 64;
    let toy = Toy::new(device, super::Dims { layers: 1, ..small() });
    let mut rng = Rng(43);
    let tokens: Vec<u32> = (0..4 * PAGE).map(|_| rng.below(small().vocab) as u32).collect();
    let all: Vec<PageId> = [3, 0, 5, 1].map(PageId).to_vec();
    let mut kv = toy.state(device, 6);
    let span = |pages, start, tokens, positions| Span {
        pages,
        start,
        tokens,
        positions,
        capture: 0,
        hidden: false,
        state: None,
        logits: LogitRows::Last,
    };
    let exact = device.identity() == Identity::Bitwise;
    let close = |a: &[f32], b: &[f32], what: &str| match exact {
        true => assert!(a == b, "{what}: other bits"),
        false => {
            let b: Vec<f64> = b.iter().map(|x| f64::from(*x)).collect();
            let error = relative_error(a, &b);
            assert!(error < 1e-3, "{what}: {error}");
        }
    };

    let dense = toy.forward(device, &mut kv, &[span(&all, 0, &tokens, None)], false);
    device.evaluate(&mut kv, None).unwrap();
    let digest = |device: &D, kv: &D::Kv, page| device.kv_digest(kv, page, PAGE);
    let held: Vec<[u8; 32]> = all.iter().map(|page| digest(device, &kv, *page)).collect();

    // Said or not said, positions that are places are the same.
    let positions: Vec<u32> = (0..tokens.len() as u32).collect();
    let mut said = toy.state(device, 6);
    let explicit = toy.forward(device, &mut said, &[span(&all, 0, &tokens, Some(&positions))], false);
    device.evaluate(&mut said, None).unwrap();
    close(&explicit, &dense, "positions said");
    if exact {
        let told: Vec<[u8; 32]> = all.iter().map(|page| digest(device, &said, *page)).collect();
        assert!(told == held, "positions said: other state");
    }

    // Blocks 0 and 2, in two forwards; then what both see of the keys by the same queries.
    let kept: Vec<usize> = (0..PAGE).chain(2 * PAGE..3 * PAGE).collect();
    let few: Vec<u32> = kept.iter().map(|at| tokens[*at]).collect();
    let at: Vec<u32> = kept.iter().map(|at| *at as u32).collect();
    let pages = [PageId(4), PageId(2)];
    let mut sparse = toy.state(device, 6);
    toy.forward(device, &mut sparse, &[span(&pages, 0, &few[..90], Some(&at[..90]))], false);
    toy.forward(device, &mut sparse, &[span(&pages, 90, &few[90..], Some(&at[90..]))], false);
    device.evaluate(&mut sparse, None).unwrap();
    if exact {
        let told = pages.map(|page| digest(device, &sparse, page));
        assert!(told == [held[0], held[2]], "a kept token's state is not that of the dense run");
    }
    let shape = small().shape;
    let queries = rng.units(3 * shape.queries());
    for (places, there) in [(0..PAGE, 0..PAGE), (PAGE..2 * PAGE, 2 * PAGE..3 * PAGE)] {
        let keys = Keys { pages: &pages, window: places };
        let mine = device.key_weights(&mut sparse, 0, keys, &queries, shape).unwrap();
        let keys = Keys { pages: &all, window: there };
        let dense = device.key_weights(&mut kv, 0, keys, &queries, shape).unwrap();
        close(&mine, &dense, "weights of kept keys");
    }

    // A shift turns keys; what is relative stays.
    let shifted: Vec<u32> = positions.iter().map(|position| position + 1000).collect();
    let mut elsewhere = toy.state(device, 6);
    toy.forward(device, &mut elsewhere, &[span(&all, 0, &tokens, Some(&shifted))], false);
    device.evaluate(&mut elsewhere, None).unwrap();
    assert_ne!(digest(device, &elsewhere, all[0]), held[0], "keys do not hang on positions");
}
