//! What was served before: the sequences a new prompt is compared with.
//!
//! The hash chain tells how many whole blocks are held; it cannot tell how far a prompt agrees with an earlier one inside a block, nor that it
//! agrees with one whose blocks are gone. For that the tokens of earlier sequences are kept, up to a bound: side requests come and go
//! between the turns of a session, so a handful would not do.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::event::RequestId;

/// A sequence that was computed: a prompt and the reply tokens after it.
#[derive(Debug, Clone, PartialEq)]
pub struct Predecessor {
    /// Its request.
    pub request: RequestId,
    /// Its prompt and the reply tokens that were computed after it.
    pub tokens: Vec<u32>,
    /// Of those, the prompt.
    pub prompt_tokens: usize,
    /// Leading tokens whose state was computed densely. What is behind them was computed with tokens missing, and never stored.
    pub dense_tokens: usize,
}

/// Sequences that are kept at most.
const KEPT_SEQUENCES: usize = 512;

/// Tokens that all kept sequences together have at most; the latest is kept whatever its length.
const KEPT_TOKENS: usize = 8 << 20;

/// Earlier sequences, oldest first.
#[derive(Debug, Default)]
pub struct Served {
    sequences: VecDeque<Arc<Predecessor>>,
    tokens: usize,
}

impl Served {
    /// Keeps a sequence, at the cost of the oldest.
    pub fn keep(&mut self, sequence: Arc<Predecessor>) {
        self.tokens += sequence.tokens.len();
        self.sequences.push_back(sequence);
        while self.sequences.len() > KEPT_SEQUENCES || (self.tokens > KEPT_TOKENS && self.sequences.len() > 1)
        {
            let Some(oldest) = self.sequences.pop_front() else { return };
            self.tokens -= oldest.tokens.len();
        }
    }

    /// The sequence that shares most with `prompt` from the start, the latest of several, and how many tokens. `None` where none
    /// shares any.
    pub fn closest(&self, prompt: &[u32]) -> Option<(&Predecessor, usize)> {
        let shared = self.sequences.iter().map(|s| (&**s, common_prefix(&s.tokens, prompt)));
        shared.max_by_key(|(_, common)| *common).filter(|(_, common)| *common > 0)
    }
}

/// Leading tokens that two sequences share.
pub fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    // Whole chunks are compared at once; only the one that differs is looked at token by token.
    const CHUNK: usize = 64;
    let chunks = a.chunks_exact(CHUNK).zip(b.chunks_exact(CHUNK));
    let equal = chunks.take_while(|(a, b)| a == b).count() * CHUNK;
    equal + a[equal..].iter().zip(&b[equal..]).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(request: u64, tokens: impl IntoIterator<Item = u32>) -> Arc<Predecessor> {
        let tokens: Vec<u32> = tokens.into_iter().collect();
        let (prompt_tokens, dense_tokens) = (tokens.len(), tokens.len());
        Arc::new(Predecessor { request: RequestId(request), prompt_tokens, dense_tokens, tokens })
    }

    #[test]
    fn the_closest_is_the_one_that_shares_most_and_of_equals_the_latest() {
        let mut served = Served::default();
        assert!(served.closest(&[1, 2]).is_none());
        served.keep(sequence(1, 0..500));
        served.keep(sequence(2, (0..300).chain([9; 50])));
        served.keep(sequence(3, (0..300).chain([8; 50])));
        let closest = |tokens: Vec<u32>| served.closest(&tokens).map(|(s, n)| (s.request.0, n));
        assert_eq!(closest((0..400).collect()), Some((1, 400)));
        assert_eq!(closest((0..300).chain([7]).collect()), Some((3, 300)));
        assert_eq!(closest((0..301).chain([7]).collect()), Some((1, 301)));
        assert_eq!(closest(vec![5]), None);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut served = Served::default();
        for request in 0..(KEPT_SEQUENCES as u64 + 10) {
            served.keep(sequence(request, [request as u32; 3]));
        }
        assert_eq!((served.sequences.len(), served.tokens), (KEPT_SEQUENCES, 3 * KEPT_SEQUENCES));
        served.keep(sequence(9_999, vec![1; KEPT_TOKENS + 1]));
        assert_eq!(served.sequences.len(), 1);
    }

    #[test]
    fn a_common_prefix_ends_at_the_first_difference_wherever_it_is() {
        let a: Vec<u32> = (0..300).collect();
        for at in [0, 1, 63, 64, 65, 128, 299] {
            let mut b = a.clone();
            b[at] = 1_000;
            assert_eq!(common_prefix(&a, &b), at);
        }
        assert_eq!(common_prefix(&a, &a[..100]), 100);
    }
}
