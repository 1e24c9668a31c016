//! Prefill: which tokens of the uncached suffix are computed, and in which pieces.
//!
//! The dense route computes all of them. On the sparse route (SpecPrefill) a [`scorer`] reads the suffix first, and the rules of [`sparse`]
//! choose what of it the target computes.

pub mod scorer;
pub mod sparse;
pub mod survival;

use std::ops::Range;

/// The next chunk of a prefill, as places: from `computed` on, at most `chunk_tokens`, never past those of the prompt, nor past `stop`,
/// where recurrent state is to be captured. Empty when the prompt is computed.
pub fn chunk(
    computed: usize,
    prompt_places: usize,
    chunk_tokens: usize,
    stop: Option<usize>,
) -> Range<usize> {
    let end = prompt_places.min(computed.saturating_add(chunk_tokens.max(1)));
    let end = stop.map_or(end, |stop| end.min(stop));
    computed.min(end)..end
}

/// `chunk` as far as there is memory for it: its first `admitted` tokens, and one where that is none.
pub fn admitted(chunk: Range<usize>, admitted: usize) -> Range<usize> {
    chunk.start..chunk.end.min(chunk.start.saturating_add(admitted.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_suffix_once_and_in_order() {
        for most in [0, 1, 7, 64, 1000] {
            let mut computed = 13;
            while computed < 300 {
                let next = chunk(computed, 300, most, None);
                assert_eq!(next.start, computed);
                assert!(!next.is_empty() && next.len() <= most.max(1));
                computed = next.end;
            }
            assert_eq!(computed, 300);
            assert!(chunk(computed, 300, most, None).is_empty());
        }
    }

    #[test]
    fn a_chunk_ends_where_state_is_captured() {
        assert_eq!(chunk(0, 300, 100, Some(64)), 0..64);
        assert_eq!(chunk(64, 300, 100, Some(256)), 64..164);
        assert_eq!(chunk(164, 300, 100, Some(256)), 164..256);
    }

    #[test]
    fn memory_shrinks_a_chunk_and_never_empties_or_extends_it() {
        assert_eq!(admitted(64..164, 30), 64..94);
        assert_eq!(admitted(64..164, 0), 64..65);
        assert_eq!(admitted(64..164, usize::MAX), 64..164);
        assert!(admitted(64..64, 10).is_empty());
    }
}
