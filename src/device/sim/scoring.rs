//! Queries of the pseudo-model, and what they make of keys.

use super::Digest;

/// Columns of a query: the state's bytes in pairs, each a number that f32 holds exactly.
pub(super) const QUERY_COLUMNS: usize = size_of::<Digest>() / 2;

/// The query of a token with this state.
pub(super) fn query_of(state: Digest) -> impl Iterator<Item = f32> {
    (0..QUERY_COLUMNS).map(move |i| f32::from(u16::from_le_bytes([state[2 * i], state[2 * i + 1]])))
}

/// A 64-bit number that stands for a query.
pub(super) fn drawn_from_query(query: &[f32]) -> u64 {
    let bytes: Vec<u8> = query.iter().flat_map(|x| x.to_bits().to_le_bytes()).collect();
    drawn_from_key(*blake3::hash(&bytes).as_bytes())
}

/// The same of a key.
pub(super) fn drawn_from_key(state: Digest) -> u64 {
    u64::from_le_bytes(*state.first_chunk().unwrap_or(&[0; 8]))
}

/// What a query makes of keys: a softmax over scores in `[0, 8)`, each drawn from the two.
pub(super) fn pseudo_weights(query: u64, keys: &[u64]) -> impl Iterator<Item = f32> {
    let score = move |key: &u64| {
        let mut mixed = query ^ key.rotate_left(32);
        for _ in 0..2 {
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed ^= mixed >> 27;
        }
        (mixed >> 40) as f64 / f64::from(1 << 21)
    };
    let weights: Vec<f64> = keys.iter().map(|key| libm::exp(score(key) - 8.0)).collect();
    let total: f64 = weights.iter().sum();
    weights.into_iter().map(move |weight| (weight / total) as f32)
}
