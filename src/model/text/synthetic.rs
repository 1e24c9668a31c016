//! The vocabulary of the `sim` device: pieces of about four characters, numbered as they are first seen.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::TextError;
use super::vocabulary::{UNSEEN, Vocabulary};

/// Characters of a piece at most, its leading space included.
const PIECE_CHARS: usize = 6;

/// Short words, so that replies of the `sim` device read like text. None has five letters: [`append_reserved_word`] makes those.
const WORDS: [&str; 64] = [
    "the", "a", "of", "and", "to", "in", "it", "is", "be", "as", "at", "so", "we", "he", "by", "or", "on",
    "do", "if", "me", "my", "up", "an", "go", "no", "us", "am", "not", "for", "you", "with", "from", "this",
    "that", "then", "when", "here", "file", "test", "line", "code", "run", "read", "edit", "fix", "call",
    "tool", "list", "type", "name", "data", "path", "loop", "case", "item", "next", "last", "done", "pass",
    "fail", "good", "more", "less", "than",
];

const CONSONANTS: &[u8; 16] = b"bdfgklmnprstvwxz";
const VOWELS: &[u8; 5] = b"aeiou";

/// Ids below `reserved` decode to words of a fixed list and are given to no other piece; the piece that *is* such a word
/// gets that id, so a reply that comes back as history is the same tokens again.
pub(super) struct Synthetic {
    reserved: u32,
    /// The first id for pieces; special tokens lie between `reserved` and it.
    first: u32,
    interned: Mutex<Interned>,
}

#[derive(Default)]
struct Interned {
    ids: HashMap<String, u32>,
    pieces: Vec<String>,
}

impl Synthetic {
    pub(super) fn new(reserved: u32, specials: u32) -> Synthetic {
        let word = |id| {
            let mut word = Vec::new();
            append_reserved_word(id, &mut word);
            String::from_utf8_lossy(&word).into_owned()
        };
        let ids = (0..reserved).map(|id| (word(id), id)).rev().collect();
        let interned = Mutex::new(Interned { ids, pieces: Vec::new() });
        Synthetic { reserved, first: reserved.saturating_add(specials), interned }
    }

    fn interned(&self) -> MutexGuard<'_, Interned> {
        self.interned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Vocabulary for Synthetic {
    fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TextError> {
        let mut interned = self.interned();
        for piece in pieces(text) {
            let id = match interned.ids.get(piece) {
                Some(id) => *id,
                None => {
                    let id =
                        u32::try_from(interned.pieces.len()).ok().and_then(|n| self.first.checked_add(n));
                    let id = id.ok_or_else(|| TextError::Tokenizer("out of synthetic ids".into()))?;
                    interned.pieces.push(piece.to_owned());
                    interned.ids.insert(piece.to_owned(), id);
                    id
                }
            };
            out.push(id);
        }
        Ok(())
    }

    fn recognise(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TextError> {
        let interned = self.interned();
        out.extend(pieces(text).map(|piece| interned.ids.get(piece).copied().unwrap_or(UNSEEN)));
        Ok(())
    }

    fn append_bytes(&self, id: u32, out: &mut Vec<u8>) {
        if id < self.reserved {
            append_reserved_word(id, out);
        } else if let Some(index) = id.checked_sub(self.first)
            && let Some(piece) = self.interned().pieces.get(index as usize)
        {
            out.extend_from_slice(piece.as_bytes());
        }
    }

    fn size(&self) -> Option<usize> {
        None
    }
}

/// Appends the word `id` decodes to, with its leading space: a real word first, then pseudo-words of five letters.
fn append_reserved_word(id: u32, out: &mut Vec<u8>) {
    out.push(b' ');
    if let Some(word) = WORDS.get(id as usize) {
        return out.extend_from_slice(word.as_bytes());
    }
    let mut rest = id as usize - WORDS.len();
    for letters in [&CONSONANTS[..], &VOWELS[..], &CONSONANTS[..], &VOWELS[..], &CONSONANTS[..]] {
        out.push(letters[rest % letters.len()]);
        rest /= letters.len();
    }
}

#[derive(PartialEq, Clone, Copy)]
enum Class {
    Word,
    Space,
    Mark,
}

fn class(c: char) -> Class {
    if c.is_alphanumeric() || c == '_' {
        Class::Word
    } else if c.is_whitespace() {
        Class::Space
    } else {
        Class::Mark
    }
}

/// Splits text into runs of one class, each at most [`PIECE_CHARS`] long; a single space joins the word after it.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut chars = rest.char_indices();
        let (_, first) = chars.next()?;
        let mut run = class(first);
        let mut end = rest.len();
        for (taken, (at, c)) in chars.enumerate() {
            let joins_word = taken == 0 && first == ' ' && class(c) == Class::Word;
            if joins_word {
                run = Class::Word;
            }
            // A run of spaces leaves its last one to the word that follows.
            let leaves_space = run == Class::Space
                && c == ' '
                && rest[at + 1..].chars().next().is_some_and(|next| class(next) == Class::Word);
            if taken + 1 == PIECE_CHARS || class(c) != run || leaves_space {
                end = at;
                break;
            }
        }
        let (piece, tail) = rest.split_at(end);
        rest = tail;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(vocabulary: &Synthetic, text: &str) -> Vec<u32> {
        let mut out = Vec::new();
        vocabulary.encode(text, &mut out).unwrap();
        out
    }

    fn text(vocabulary: &Synthetic, ids: &[u32]) -> String {
        let mut bytes = Vec::new();
        ids.iter().for_each(|id| vocabulary.append_bytes(*id, &mut bytes));
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn pieces_are_short_runs_of_one_class() {
        let all: Vec<&str> = pieces("def  parse_header(x):\n    return 42").collect();
        assert_eq!(all, ["def", " ", " parse", "_heade", "r", "(", "x", "):", "\n   ", " retur", "n", " 42"]);
    }

    #[test]
    fn ids_are_given_in_order_of_appearance_and_decode_to_the_text() {
        let vocabulary = Synthetic::new(100, 2);
        let sample = "fn main() {\n\n\tprintln!(\"naïve 日本語のテキスト 🙂\");   }  ";
        let first = ids(&vocabulary, sample);
        assert!(first.iter().all(|id| *id >= 102));
        assert_eq!(first, ids(&vocabulary, sample));
        assert_eq!(text(&vocabulary, &first), sample);
    }

    #[test]
    fn what_was_not_seen_is_recognised_as_such_and_stays_unseen() {
        let vocabulary = Synthetic::new(16, 2);
        let seen = ids(&vocabulary, "alpha beta");
        let mut found = Vec::new();
        vocabulary.recognise("alpha gamma", &mut found).unwrap();
        assert_eq!(found, [seen[0], UNSEEN]);
        assert_eq!(ids(&vocabulary, " delta"), [seen[1] + 1]);
    }

    #[test]
    fn reserved_words_encode_to_their_own_ids() {
        let vocabulary = Synthetic::new(4096, 2);
        let reply: Vec<u32> = (0..4096).rev().collect();
        assert_eq!(ids(&vocabulary, &text(&vocabulary, &reply)), reply);
    }

    #[test]
    fn prose_has_about_four_characters_a_token() {
        let vocabulary = Synthetic::new(16, 2);
        let sample = "The scheduler is one loop of steps over many sequences: admission, chunked prefill, \
                      continuous-batched decode, then background work. An arrival is visible before admission.";
        let per_token = sample.chars().count() as f64 / ids(&vocabulary, sample).len() as f64;
        assert!((3.5..5.0).contains(&per_token), "{per_token}");
    }
}
