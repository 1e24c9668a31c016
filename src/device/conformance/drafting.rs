//! What a prediction head asks of a device beside what layers ask: numbers put on it, rows side by side, keys and values written without being
//! attended to, and places at the start that nobody sees.

use super::operations::{attend, download, upload};
use super::weights::Rng;
use super::{Make, relative_error};
use crate::config::Precision;
use crate::device::ops::{AttentionShape, Device, KvShape, Rows};
use crate::device::{LogitRows, PageId, Span};
use crate::event::Identity;

/// A prediction head finds what it needs.
pub(crate) fn drafting<D: Device>(make: Make<'_, D>) {
    takes_numbers_and_puts_them_side_by_side(&mut make(Precision::F32));
    for precision in [Precision::F32, Precision::Int8] {
        let mut device = make(precision);
        for (head_dim, first, tokens) in [(16, 1, 70), (40, 1, 2), (8, 1, 300), (16, 5, 90), (64, 63, 64)] {
            leaves_first_places_unseen(&mut device, head_dim, first, tokens);
        }
    }
}

fn takes_numbers_and_puts_them_side_by_side<D: Device>(device: &mut D) {
    let mut rng = Rng(51);
    for (rows, left, right) in [(1, 16, 16), (3, 40, 8), (70, 24, 96)] {
        let [x, y] = [left, right].map(|columns| rng.units(rows * columns));
        let (a, b) = (device.upload(&x, left), device.upload(&y, right));
        assert!(device.read(&a).unwrap() == x, "numbers put on the device come back");
        let both = device.beside(&a, &b);
        let pairs = x.chunks_exact(left).zip(y.chunks_exact(right));
        let expected: Vec<f32> = pairs.flat_map(|(x, y)| [x, y].concat()).collect();
        assert!(device.read(&both).unwrap() == expected, "{rows} rows of {left} and {right}");
    }
}

/// Rows from `first` on, whatever lies before; in one pass, and the last of them after the others were written without being attended to.
fn leaves_first_places_unseen<D: Device>(device: &mut D, head_dim: usize, first: usize, tokens: usize) {
    let shape = AttentionShape { heads: 4, kv_heads: 2, head_dim, scale: 0.7, gated: false };
    let columns = shape.columns();
    let mut x = Rng(52).units(tokens * columns);
    // Keys and values that would be all there is to see.
    x[..first * columns].iter_mut().for_each(|x| *x = x.signum() * 200.0);
    let pages = [3, 1, 4, 0, 2].map(PageId);
    let ids = vec![0; tokens];
    let span = |start: usize, end: usize| Span {
        pages: &pages,
        start,
        tokens: &ids[start..end],
        positions: None,
        capture: 0,
        state: None,
        logits: LogitRows::None,
        hidden: false,
    };
    let positions: Vec<u32> = (0..tokens as u32).collect();
    let store = KvShape { layers: 2, kv_heads: 2, head_dim, page_tokens: 64 };
    let mut kvs = [0; 2].map(|_| {
        let mut kv = device.new_kv(store).unwrap();
        device.reserve_kv(&mut kv, 5).unwrap();
        kv
    });
    let [whole, stored] = &mut kvs;
    let before = upload(device, &x[..first * columns], columns);
    let rest = upload(device, &x[first * columns..], columns);
    for kv in [&mut *whole, &mut *stored] {
        let rows = Rows { spans: &[span(0, first)], positions: &positions[..first] };
        device.store(&before, shape, rows, kv, 1);
    }
    let rows = Rows { spans: &[span(first, tokens)], positions: &positions[first..] };
    let attended = device.attention(&rest, shape, rows, whole, 1, first);
    let attended = download(device, &attended, shape.queries());

    device.store(&rest, shape, rows, stored, 1);
    let last = upload(device, &x[(tokens - 1) * columns..], columns);
    let rows = Rows { spans: &[span(tokens - 1, tokens)], positions: &positions[tokens - 1..] };
    let alone = device.attention(&last, shape, rows, stored, 1, first);
    let alone = download(device, &alone, shape.queries());

    let rows: Vec<&[f32]> = x.chunks_exact(columns).collect();
    let mut expected = Vec::new();
    for (place, row) in rows.iter().enumerate().skip(first) {
        for head in 0..4 {
            let part = |at: usize| {
                let from = at + head / 2 * head_dim;
                rows[first..=place].iter().map(|row| &row[from..from + head_dim]).collect::<Vec<&[f32]>>()
            };
            let query = &row[head * head_dim..(head + 1) * head_dim];
            expected.extend(attend(query, &part(shape.keys_at()), &part(shape.values_at()), shape.scale));
        }
    }
    let bound = if device.precision() == "f32" { 2e-6 } else { 2e-3 };
    let error = relative_error(&attended, &expected);
    assert!(error < bound, "heads of {head_dim}, {tokens} tokens from {first}: {error}");
    let tail = &attended[attended.len() - shape.queries()..];
    match device.identity() {
        Identity::Bitwise => {
            assert!(alone == tail, "heads of {head_dim}: the last row alone has other bits");
            for (block, page) in pages.iter().enumerate().take(tokens.div_ceil(64)) {
                let filled = (tokens - block * 64).min(64);
                let held = [&*whole, &*stored].map(|kv| device.kv_digest(kv, *page, filled));
                assert!(held[0] == held[1], "heads of {head_dim}: other keys and values");
            }
        }
        _ => {
            let error = relative_error(&alone, &expected[expected.len() - shape.queries()..]);
            assert!(error < bound, "heads of {head_dim}, the last of {tokens} tokens from {first}: {error}");
        }
    }
}
