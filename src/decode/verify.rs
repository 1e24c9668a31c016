//! Verification: which drafted tokens stand, by the target's logits.

use super::draft::Draft;
use super::{Row, Sampler, Verdict};

/// What verification made of a draft.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Accepted {
    /// Tokens added to those known: what was accepted, and one more.
    pub tokens: usize,
    /// Drafted tokens put to the test, but for one that ended the reply: it counts as the cycle's own.
    pub tested: usize,
    /// Whether the reply ended with a drafted token that stood.
    pub ended_drafted: bool,
}

impl Accepted {
    /// Drafted tokens that stand. Where the reply ended with a drafted token, that one counts as the cycle's own.
    pub fn accepted(&self) -> usize {
        self.tokens.saturating_sub(1)
    }
}

/// Chooses the tokens after `known` and adds them to it: one a row of `logits`, `vocab` long each, as long as it is the drafted one. `ends` says after
/// each whether the reply ends with it. `margins` takes by how much the greatest logit of each row exceeds the next one.
///
/// Row `i` holds the logits after the `i`-th drafted token; there is one row more than drafted tokens.
pub fn verify(
    sampler: &mut Sampler,
    logits: &[f32],
    vocab: usize,
    draft: &Draft,
    known: &mut Vec<u32>,
    margins: &mut Vec<f32>,
    mut ends: impl FnMut(&[u32]) -> bool,
) -> Accepted {
    let mut result = Accepted::default();
    for (row, logits) in logits.chunks_exact(vocab).enumerate() {
        let of_row = Row::of(logits);
        margins.push(of_row.margin());
        let drafted = draft.tokens.get(row).zip(draft.from.get(row));
        let (token, stands) = match drafted {
            None => (sampler.choose(&of_row, known), false),
            Some((drafted, from)) => {
                result.tested += 1;
                match sampler.verify(&of_row, known, *drafted, from) {
                    Verdict::Accepted => (*drafted, true),
                    Verdict::Replaced(token) => (token, false),
                }
            }
        };
        known.push(token);
        result.tokens += 1;
        if !stands {
            break;
        }
        if ends(known) {
            result.tested -= 1;
            result.ended_drafted = true;
            break;
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Distribution, Sampling};

    const VOCAB: usize = 8;

    /// Logits whose likeliest tokens are these, row after row.
    fn rows(likeliest: &[u32]) -> Vec<f32> {
        likeliest
            .iter()
            .flat_map(|token| (0..VOCAB as u32).map(move |t| if t == *token { 5.0 } else { 0.0 }))
            .collect()
    }

    fn run(drafted: &[u32], target: &[u32], stop: u32) -> (Vec<u32>, Accepted) {
        let draft = Draft {
            tokens: drafted.to_vec(),
            from: drafted.iter().map(|token| Distribution::certain(*token)).collect(),
            ..Draft::default()
        };
        let mut known = vec![7];
        let mut sampler = Sampler::new(Sampling::default());
        let ends = |known: &[u32]| known.last() == Some(&stop);
        let mut margins = Vec::new();
        let result = verify(&mut sampler, &rows(target), VOCAB, &draft, &mut known, &mut margins, ends);
        assert_eq!(margins, vec![5.0; result.tokens], "one for every token added");
        (known[1..].to_vec(), result)
    }

    #[test]
    fn the_tokens_are_those_of_ordinary_decoding_whatever_was_drafted() {
        let accepted = |tokens, tested| Accepted { tokens, tested, ended_drafted: false };
        assert_eq!(run(&[], &[3], 0), (vec![3], accepted(1, 0)));
        assert_eq!(run(&[3, 4], &[3, 4, 5], 0), (vec![3, 4, 5], accepted(3, 2)));
        assert_eq!(run(&[3, 1], &[3, 4, 5], 0), (vec![3, 4], accepted(2, 2)));
        assert_eq!(run(&[1, 4], &[3, 4, 5], 0), (vec![3], accepted(1, 1)));
    }

    #[test]
    fn nothing_follows_the_end_of_a_reply() {
        let (tokens, result) = run(&[3, 4], &[3, 4, 5], 3);
        assert_eq!((tokens, result.tokens, result.accepted()), (vec![3], 1, 0));
        assert!(result.ended_drafted && result.tested == 0, "it was no rejection");
        let (tokens, result) = run(&[3, 4], &[3, 4, 5], 4);
        assert_eq!((tokens, result.accepted(), result.tested), (vec![3, 4], 1, 1));
    }
}
