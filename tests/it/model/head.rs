//! The multi-token-prediction head: what it computes, the same bits by every route, and what it refuses.

use std::path::Path;

use escarp::config::{Config, DrafterKind, Precision};
use escarp::device::{Executor, HeadSpan, LogitRows, PageId, Predicted, SlotId, Span, StateFlow};
use escarp::model::load;
use serde_json::Value;

use super::config;

/// A configuration that loads the head.
fn with_head(path: &Path, precision: Precision) -> Config {
    let mut config = config(path, precision);
    config.speculation.drafter = Some(DrafterKind::Mtp);
    config
}

/// Hidden states of every token, computed in chunks of a size, in slot 0.
fn hidden_states(executor: &mut dyn Executor, pages: &[PageId], tokens: &[u32], chunk: usize) -> Vec<f32> {
    let recurrent = executor.facts().slot_bytes > 0;
    let mut hidden = Vec::new();
    for (index, part) in tokens.chunks(chunk).enumerate() {
        let from = (index > 0).then_some(SlotId(0));
        let flow = StateFlow { from, to: SlotId(0), revocable: false };
        let span = Span {
            pages,
            start: index * chunk,
            tokens: part,
            positions: None,
            capture: 0,
            state: recurrent.then_some(flow),
            logits: LogitRows::None,
            hidden: true,
        };
        hidden.extend(executor.forward(&[span]).unwrap().hidden);
    }
    hidden
}

/// What the head makes of one token.
fn predict(
    executor: &mut dyn Executor,
    pages: &[PageId],
    place: usize,
    token: u32,
    hidden: &[f32],
) -> Predicted {
    let span = HeadSpan { pages, start: place, tokens: &[token], positions: None, hidden, predict: true };
    executor.predict(&[span]).unwrap()
}

/// The greatest logits that the head was trained to give at one to three tokens' distance, on the weights as exported.
#[test]
fn the_bundled_head_is_the_network_that_was_trained() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/fixtures/bundled-head.json");
    let reference: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let tokens = super::ids(&reference["tokens"]);
    for (precision, bound) in [(Precision::F32, 5e-4), (Precision::Int8, 0.02)] {
        let mut loaded = load(&with_head(Path::new("scarp"), precision)).unwrap();
        let executor = &mut *loaded.executor;
        let (vocab, columns) = (executor.facts().vocab, executor.facts().hidden);
        let pages: Vec<PageId> = (0..8).map(PageId).collect();
        executor.reserve(8, 1).unwrap();
        let hidden = hidden_states(executor, &pages, &tokens, 100);
        // By depth and row.
        let mut rows = vec![vec![Vec::new(); tokens.len()]; 3];
        for first in 0..tokens.len() - 1 {
            let mut before = hidden[first * columns..(first + 1) * columns].to_vec();
            for (depth, rows) in rows.iter_mut().enumerate() {
                let Some(token) = tokens.get(first + depth + 1) else { break };
                let given = predict(executor, &pages, first + depth + 1, *token, &before);
                assert_eq!((given.logits.len(), given.hidden.len()), (vocab, columns));
                rows[first + depth] = given.logits;
                before = given.hidden;
            }
        }
        for (depth, expected) in reference["depths"].as_array().unwrap().iter().enumerate() {
            let expected = expected.as_array().unwrap();
            assert!(expected.len() > 20);
            let mut worst = 0f64;
            for row in expected {
                let got = &rows[depth][row[0].as_u64().unwrap() as usize];
                for pair in row[1].as_array().unwrap() {
                    let id = pair[0].as_u64().unwrap() as usize;
                    worst = worst.max((f64::from(got[id]) - pair[1].as_f64().unwrap()).abs());
                }
            }
            println!("{precision:?}, depth {}: off by {worst:.1e}", depth + 1);
            assert!(worst < bound, "{precision:?}, depth {}: off by {worst}", depth + 1);
        }
    }
}
