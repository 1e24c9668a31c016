//! From attention to scores.

use crate::config::Aggregation;
use crate::device::KeyWeights;

/// One score a token of the window: every row of weights is smoothed along positions by an average over `pool` of them, zeros beyond the ends (so the
/// ends come out low); then rows become one as `aggregation` says.
///
/// That is the order of the reference (Liu, Chen, Zhang, arXiv 2502.02789): smoothing comes before the maximum. Every sum has a fixed order and
/// looks at its own surroundings only, so equal weights give equal scores.
pub fn importance(weights: &KeyWeights, pool: usize, aggregation: Aggregation) -> Vec<f32> {
    let window = weights.window;
    let rows_per_query = weights.layers * weights.heads;
    if window == 0 || rows_per_query == 0 {
        return vec![0.0; window];
    }
    let queries = weights.weights.chunks_exact(window * rows_per_query);
    let count = queries.len();
    let mut smoothed = vec![0.0; window];
    let mut of_query = vec![0.0; window];
    let mut scores = vec![0.0; window];
    for query in queries {
        for (index, row) in query.chunks_exact(window).enumerate() {
            smooth(row, pool, &mut smoothed);
            match aggregation {
                _ if index == 0 => of_query.copy_from_slice(&smoothed),
                Aggregation::MaxMean | Aggregation::MaxMax => merge(&mut of_query, &smoothed, greater),
                Aggregation::MeanMean => merge(&mut of_query, &smoothed, |a, b| a + b),
            }
        }
        match aggregation {
            Aggregation::MaxMax => merge(&mut scores, &of_query, greater),
            Aggregation::MaxMean | Aggregation::MeanMean => merge(&mut scores, &of_query, |a, b| a + b),
        }
    }
    let divisor = match aggregation {
        Aggregation::MaxMean => count,
        Aggregation::MeanMean => count * rows_per_query,
        Aggregation::MaxMax => 1,
    };
    let factor = 1.0 / divisor.max(1) as f32;
    scores.iter_mut().for_each(|score| *score *= factor);
    scores
}

/// Mean score of every unit of `unit` tokens; the last unit may be short.
pub fn unit_scores(importance: &[f32], unit: usize) -> Vec<f32> {
    importance.chunks(unit.max(1)).map(|unit| unit.iter().sum::<f32>() / unit.len() as f32).collect()
}

fn greater(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

fn merge(into: &mut [f32], from: &[f32], both: impl Fn(f32, f32) -> f32) {
    for (a, b) in into.iter_mut().zip(from) {
        *a = both(*a, *b);
    }
}

/// `smoothed[i]` = the sum of `row[i - pool/2 ..= i + pool/2]` over `pool`. One pass an offset, each over the whole row: that vectorises, and
/// unlike a running sum it carries no rounding from one end of the row to the other.
fn smooth(row: &[f32], pool: usize, smoothed: &mut [f32]) {
    let half = pool.max(1) / 2;
    let factor = 1.0 / (2 * half + 1) as f32;
    smoothed.copy_from_slice(row);
    for offset in 1..=half.min(row.len().saturating_sub(1)) {
        let end = row.len() - offset;
        merge(&mut smoothed[..end], &row[offset..], |a, b| a + b);
        merge(&mut smoothed[offset..], &row[..end], |a, b| a + b);
    }
    smoothed.iter_mut().for_each(|x| *x *= factor);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::Nanos;

    fn weights(tokens: usize, layers: usize, heads: usize, window: usize, values: Vec<f32>) -> KeyWeights {
        assert_eq!(values.len(), tokens * layers * heads * window);
        KeyWeights { tokens, layers, heads, window, weights: values, compute: Nanos(0) }
    }

    #[test]
    fn one_row_is_smoothed_and_its_ends_are_low() {
        let flat = weights(1, 1, 1, 6, vec![1.0; 6]);
        let scores = importance(&flat, 5, Aggregation::MaxMean);
        let expected = [0.6, 0.8, 1.0, 1.0, 0.8, 0.6];
        assert!(scores.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{scores:?}");
        assert_eq!(importance(&flat, 1, Aggregation::MaxMean), [1.0; 6]);
        // Wider than the row: everything is seen from everywhere.
        let wide = importance(&flat, 13, Aggregation::MaxMean);
        assert!(wide.iter().all(|x| (x - 6.0 / 13.0).abs() < 1e-6), "{wide:?}");
    }

    #[test]
    fn rows_become_one_as_the_aggregation_says() {
        // Two queries of two heads; no smoothing.
        let values = [[1.0, 8.0], [3.0, 2.0], [5.0, 0.0], [1.0, 6.0]].concat();
        let four = weights(2, 1, 2, 2, values.clone());
        assert_eq!(importance(&four, 1, Aggregation::MaxMean), [4.0, 7.0]);
        assert_eq!(importance(&four, 1, Aggregation::MeanMean), [2.5, 4.0]);
        assert_eq!(importance(&four, 1, Aggregation::MaxMax), [5.0, 8.0]);
        // Layers count like heads.
        assert_eq!(importance(&weights(2, 2, 1, 2, values), 1, Aggregation::MaxMean), [4.0, 7.0]);
    }

    #[test]
    fn smoothing_comes_before_the_maximum() {
        // Each head looks at its own end; the middle sees both only if the maximum came first.
        let two = weights(1, 1, 2, 3, vec![3.0, 0.0, 0.0, 0.0, 0.0, 3.0]);
        assert_eq!(importance(&two, 3, Aggregation::MaxMean), [1.0, 1.0, 1.0]);
    }

    #[test]
    fn units_are_means_and_the_last_may_be_short() {
        assert_eq!(unit_scores(&[1.0, 3.0, 2.0, 4.0, 9.0], 2), [2.0, 3.0, 9.0]);
        assert!(unit_scores(&[], 32).is_empty());
        assert!(importance(&weights(0, 1, 1, 0, vec![]), 13, Aggregation::MaxMean).is_empty());
    }

    /// The definition, in f64.
    fn by_definition(weights: &KeyWeights, pool: usize, aggregation: Aggregation) -> Vec<f64> {
        let (half, rows) = ((pool / 2) as isize, weights.layers * weights.heads);
        let smooth = |row: &[f32], at: usize| {
            let at = at as isize;
            let inside = (at - half..=at + half).filter_map(|i| row.get(usize::try_from(i).ok()?));
            inside.map(|x| f64::from(*x)).sum::<f64>() / pool as f64
        };
        let at = |position: usize| {
            let queries: Vec<Vec<f64>> = weights
                .weights
                .chunks_exact(rows * weights.window)
                .map(|query| query.chunks_exact(weights.window).map(|row| smooth(row, position)).collect())
                .collect();
            let greatest = |all: &[f64]| all.iter().copied().fold(0.0, f64::max);
            let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
            let each = |f: &dyn Fn(&[f64]) -> f64| queries.iter().map(|q| f(q)).collect::<Vec<_>>();
            match aggregation {
                Aggregation::MaxMean => mean(&each(&greatest)),
                Aggregation::MeanMean => mean(&each(&mean)),
                Aggregation::MaxMax => greatest(&each(&greatest)),
            }
        };
        (0..weights.window).map(at).collect()
    }

    proptest! {
        #[test]
        fn scores_are_the_definition_and_the_same_each_time(
            values in prop::collection::vec(0.0_f32..1.0, 3 * 2 * 2 * 23),
            half in 0_usize..8,
            aggregation in prop::sample::select(vec![Aggregation::MaxMean, Aggregation::MeanMean, Aggregation::MaxMax]),
        ) {
            let weights = weights(3, 2, 2, 23, values);
            let pool = 2 * half + 1;
            let found = importance(&weights, pool, aggregation);
            for (found, meant) in found.iter().zip(by_definition(&weights, pool, aggregation)) {
                prop_assert!((f64::from(*found) - meant).abs() < 1e-5, "{found} {meant}");
            }
            prop_assert_eq!(found, importance(&weights, pool, aggregation));
        }
    }
}
