//! Prefill: how the uncached suffix is cut into chunks.
//!
//! Only the dense route exists so far; the sparse one (SpecPrefill) will decide here which tokens are computed at all.

use std::ops::Range;

/// The next chunk of a dense prefill: from `computed` on, at most `chunk_tokens`, never past the prompt. Empty when
/// the prompt is computed.
pub fn dense_chunk(computed: usize, prompt_tokens: usize, chunk_tokens: usize) -> Range<usize> {
    let end = prompt_tokens.min(computed.saturating_add(chunk_tokens.max(1)));
    computed.min(end)..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_suffix_once_and_in_order() {
        for chunk in [0, 1, 7, 64, 1000] {
            let mut computed = 13;
            while computed < 300 {
                let next = dense_chunk(computed, 300, chunk);
                assert_eq!(next.start, computed);
                assert!(!next.is_empty() && next.len() <= chunk.max(1));
                computed = next.end;
            }
            assert_eq!(computed, 300);
            assert!(dense_chunk(computed, 300, chunk).is_empty());
        }
    }
}
