//! What a tokenizer is to the rest: text to ids, ids to bytes, and the special tokens cut out before it sees the text.

use std::borrow::Cow;
use std::ops::Range;

use super::TextError;

/// In place of an id, for what a vocabulary that grows has not seen.
pub(super) const UNSEEN: u32 = u32::MAX;

/// A vocabulary that turns text without special tokens into ids and back.
pub(super) trait Vocabulary: Send + Sync {
    /// Appends the ids of `text` to `out`.
    fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TextError>;

    /// As `encode`, but learns nothing: what would get a new id is [`UNSEEN`]. The same where the vocabulary does not grow.
    fn recognise(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TextError> {
        self.encode(text, out)
    }

    /// Appends the bytes `id` stands for; nothing for an id it does not know.
    fn append_bytes(&self, id: u32, out: &mut Vec<u8>);

    /// The form of `text` whose bytes the ids add up to. Most vocabularies keep text as it is.
    fn normalise<'a>(&self, text: &'a str) -> Result<Cow<'a, str>, TextError> {
        Ok(Cow::Borrowed(text))
    }

    /// Ids it has, special tokens included; `None` when it grows.
    fn size(&self) -> Option<usize>;

    /// Whether it is more than a stand-in.
    fn is_tokenizer(&self) -> bool {
        true
    }
}

/// A token that is cut out of text before the vocabulary sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Special {
    /// Its text.
    pub(super) text: String,
    /// Its id.
    pub(super) id: u32,
    /// Control tokens steer the model: they are recognised in templates, never in messages, and never shown as text. The others
    /// (`user_defined` in GGUF, `"special": false` in `tokenizer.json`) are ordinary text with an id of their own.
    pub(super) control: bool,
}

/// The special tokens of one vocabulary.
#[derive(Debug, Clone, Default)]
pub(super) struct Specials {
    /// Longest first among those that start with the same byte, so that the first match is the longest.
    entries: Vec<Special>,
    /// Range of `entries` for each first byte.
    by_first_byte: Vec<Range<usize>>,
    /// Indices of `entries` by id.
    by_id: std::collections::HashMap<u32, usize>,
}

impl Specials {
    pub(super) fn new(mut entries: Vec<Special>) -> Specials {
        entries.retain(|special| !special.text.is_empty());
        entries.sort_by(|a, b| {
            let first = |s: &Special| s.text.as_bytes().first().copied();
            (first(a), b.text.len(), &a.text, a.id).cmp(&(first(b), a.text.len(), &b.text, b.id))
        });
        let mut by_first_byte = vec![0..0; 256];
        let mut by_id = std::collections::HashMap::with_capacity(entries.len());
        for (index, special) in entries.iter().enumerate() {
            let range = &mut by_first_byte[usize::from(special.text.as_bytes()[0])];
            *range = if (*range).is_empty() { index..index + 1 } else { range.start..index + 1 };
            by_id.insert(special.id, index);
        }
        Specials { entries, by_first_byte, by_id }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Special> {
        self.entries.iter()
    }

    pub(super) fn get(&self, id: u32) -> Option<&Special> {
        self.by_id.get(&id).map(|index| &self.entries[*index])
    }

    /// The first special token of `text`, the longest of those that start there. Control tokens count when `control`.
    pub(super) fn find(&self, text: &str, control: bool) -> Option<(Range<usize>, u32)> {
        if self.entries.is_empty() {
            return None;
        }
        let bytes = text.as_bytes();
        bytes.iter().enumerate().find_map(|(start, first)| {
            let candidates = &self.entries[self.by_first_byte[usize::from(*first)].clone()];
            candidates
                .iter()
                .find(|s| (control || !s.control) && bytes[start..].starts_with(s.text.as_bytes()))
                .map(|s| (start..start + s.text.len(), s.id))
        })
    }
}

/// The vocabulary of a model folder that brings no tokenizer: one id a byte, in byte order; further ids stand for nothing.
pub(super) struct BytesOnly {
    /// Ids the model has.
    pub(super) size: usize,
}

impl Vocabulary for BytesOnly {
    fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TextError> {
        for byte in text.bytes() {
            if usize::from(byte) >= self.size {
                return Err(TextError::Tokenizer(format!(
                    "the model has {} ids and no tokenizer, so byte {byte} has no id; add a tokenizer.json",
                    self.size
                )));
            }
            out.push(u32::from(byte));
        }
        Ok(())
    }

    fn append_bytes(&self, id: u32, out: &mut Vec<u8>) {
        if (id as usize) < self.size {
            out.extend(u8::try_from(id));
        }
    }

    fn size(&self) -> Option<usize> {
        Some(self.size)
    }

    fn is_tokenizer(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn special(text: &str, id: u32, control: bool) -> Special {
        Special { text: text.into(), id, control }
    }

    #[test]
    fn the_leftmost_then_longest_special_token_is_found() {
        let specials = Specials::new(vec![
            special("<|a|>", 1, true),
            special("<|a|>b", 2, true),
            special("<x>", 3, false),
        ]);
        assert_eq!(specials.find("zz<|a|>b<x>", true), Some((2..8, 2)));
        assert_eq!(specials.find("zz<|a|>c<x>", true), Some((2..7, 1)));
        assert_eq!(specials.find("zz<|a|>c<x>", false), Some((8..11, 3)));
        assert_eq!(specials.find("plain < text", true), None);
        assert_eq!(specials.get(3).map(|s| s.text.as_str()), Some("<x>"));
    }
}
