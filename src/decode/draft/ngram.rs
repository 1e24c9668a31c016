//! Lookup in the context: what followed the last tokens where they occurred before.
//!
//! Costs no model, and is strong where a reply repeats what was read: arguments of tools, edits of a file just seen. Every place of the context is
//! chained to the one before it with the same last tokens; of the places found the one with the longest common past wins, of equals the latest.
//!
//! Source: Saxena, "Prompt lookup decoding" (2023), with the chains of LZ77 coders.

use std::collections::HashMap;

use super::{Draft, DraftFailed, Drafter};
use crate::decode::Sampler;

/// Places of a chain that are looked at.
const TRIED: usize = 64;
/// Tokens of common past beyond which places are equal.
const LONGEST: usize = 64;
/// No earlier place.
const NONE: u32 = u32::MAX;

/// An index of a context by its last tokens.
#[derive(Debug, Clone)]
pub struct Ngram {
    /// Tokens that must agree.
    order: usize,
    /// The latest place that follows some tokens, by their hash.
    latest: HashMap<u64, u32>,
    /// For every place, the one before it that follows the same tokens.
    before: Vec<u32>,
}

impl Ngram {
    /// An index by the last `order` tokens, at least one, of nothing so far.
    pub fn new(order: usize) -> Ngram {
        Ngram { order: order.max(1), latest: HashMap::new(), before: Vec::new() }
    }

    /// Takes in what has become known. Places once taken in must not have changed. Gives how many are new.
    pub fn read(&mut self, known: &[u32]) -> usize {
        let done = self.before.len();
        for place in done..known.len() {
            let earlier = match place.checked_sub(self.order) {
                Some(first) => self.latest.insert(hash(&known[first..place]), place as u32).unwrap_or(NONE),
                None => NONE,
            };
            self.before.push(earlier);
        }
        known.len().saturating_sub(done)
    }

    /// The place whose past agrees with the end of `known` for most tokens.
    fn find(&self, known: &[u32]) -> Option<usize> {
        let first = known.len().checked_sub(self.order)?;
        let mut place = *self.latest.get(&hash(&known[first..]))?;
        let mut best: Option<(usize, usize)> = None;
        for _ in 0..TRIED {
            let common = common_past(known, place as usize);
            // A hash may stand for other tokens too.
            if common >= self.order && best.is_none_or(|(longest, _)| common > longest) {
                best = Some((common, place as usize));
            }
            if common >= LONGEST {
                break;
            }
            match self.before.get(place as usize) {
                Some(&before) if before != NONE => place = before,
                _ => break,
            }
        }
        best.map(|(_, place)| place)
    }
}

impl Drafter for Ngram {
    fn draft(&mut self, known: &[u32], depth: usize, _: &mut Sampler) -> Result<Draft, DraftFailed> {
        self.read(known);
        let mut draft = Draft::default();
        let Some(place) = self.find(known) else { return Ok(draft) };
        for offset in 0..depth {
            // What repeats with a period shorter than the draft goes on in the draft itself.
            let token = match known.get(place + offset) {
                Some(token) => *token,
                None => draft.tokens[place + offset - known.len()],
            };
            draft.push_certain(token);
        }
        Ok(draft)
    }
}

/// Tokens before `place` that agree with those at the end of `known`.
fn common_past(known: &[u32], place: usize) -> usize {
    let past = known[..place].iter().rev().zip(known.iter().rev());
    past.take(LONGEST).take_while(|(a, b)| a == b).count()
}

fn hash(tokens: &[u32]) -> u64 {
    // Fowler, Noll and Vo's, over tokens.
    tokens.iter().fold(0xcbf2_9ce4_8422_2325, |hash, token| {
        (hash ^ u64::from(*token)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::decode::Sampling;

    fn draft(index: &mut Ngram, known: &[u32], depth: usize) -> Vec<u32> {
        index.draft(known, depth, &mut Sampler::new(Sampling::default())).unwrap().tokens
    }

    #[test]
    fn what_followed_before_is_drafted() {
        let mut index = Ngram::new(2);
        assert_eq!(draft(&mut index, &[1, 2, 3, 4, 5, 1, 2], 3), [3, 4, 5]);
        assert_eq!(draft(&mut index, &[1, 2, 3, 4, 5, 1, 2, 9], 3), [0; 0], "9 never occurred before");
        assert_eq!(draft(&mut Ngram::new(2), &[1], 3), [0; 0]);
        assert_eq!(draft(&mut Ngram::new(2), &[], 3), [0; 0]);
    }

    #[test]
    fn the_longest_common_past_wins_and_of_equals_the_latest() {
        let known = [7, 1, 2, 3, 8, 1, 2, 4, 6, 1, 2, 5, 7, 1, 2];
        assert_eq!(draft(&mut Ngram::new(2), &known, 1), [3], "7 came before it too");
        let known = [9, 1, 2, 3, 8, 1, 2, 4, 6, 1, 2];
        assert_eq!(draft(&mut Ngram::new(2), &known, 1), [4]);
    }

    #[test]
    fn a_period_goes_on_in_the_draft() {
        assert_eq!(draft(&mut Ngram::new(2), &[5, 6, 5, 6, 5, 6], 5), [5, 6, 5, 6, 5]);
        assert_eq!(draft(&mut Ngram::new(1), &[4, 4], 6), [4; 6]);
    }

    proptest! {
        #[test]
        fn what_is_drafted_depends_on_the_tokens_alone(
            known in proptest::collection::vec(0u32..4, 0..60),
            cuts in proptest::collection::vec(0usize..60, 0..8),
            order in 1usize..5,
            depth in 0usize..9,
        ) {
            let whole = draft(&mut Ngram::new(order), &known, depth);
            let mut index = Ngram::new(order);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(known.len())).collect();
            cuts.sort_unstable();
            for cut in cuts {
                draft(&mut index, &known[..cut], depth);
            }
            prop_assert_eq!(&draft(&mut index, &known, depth), &whole);
            // Whatever is drafted did follow the last tokens somewhere.
            if let Some(first) = whole.first() {
                let last = &known[known.len() - order..];
                let followed = known.windows(order + 1).any(|w| w[..order] == *last && w[order] == *first);
                prop_assert!(followed);
            }
        }
    }
}
