//! Byte-level BPE through the `tokenizers` crate.

use std::borrow::Cow;

use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    Model, ModelWrapper, NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType,
    PreTokenizedString, PreTokenizer, PreTokenizerWrapper, SplitDelimiterBehavior,
};

use super::TextError;
use super::vocabulary::Vocabulary;

/// A byte-level BPE vocabulary.
pub(super) struct ByteLevelBpe {
    model: ModelWrapper,
    pre_tokenizer: PreTokenizerWrapper,
    normalizer: Option<NormalizerWrapper>,
    bytes: TokenBytes,
}

/// The bytes of every token, one after the other.
#[derive(Default)]
pub(super) struct TokenBytes {
    bytes: Vec<u8>,
    /// Where each token's bytes end.
    ends: Vec<u32>,
}

impl TokenBytes {
    /// Appends the next id's token, written in the byte-level alphabet. A token with characters outside it is its own text.
    pub(super) fn push(&mut self, token: &str, alphabet: &Alphabet) {
        let start = self.bytes.len();
        for c in token.chars() {
            match alphabet.byte(c) {
                Some(byte) => self.bytes.push(byte),
                None => {
                    self.bytes.truncate(start);
                    self.bytes.extend_from_slice(token.as_bytes());
                    break;
                }
            }
        }
        self.ends.push(self.bytes.len() as u32);
    }

    fn get(&self, id: u32) -> &[u8] {
        let index = id as usize;
        let Some(end) = self.ends.get(index) else { return &[] };
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..*end as usize]
    }
}

/// GPT-2's alphabet: every byte has a printable character.
pub(super) struct Alphabet {
    /// Byte by code point; the alphabet ends below U+0180.
    bytes: [Option<u8>; 0x180],
}

impl Alphabet {
    pub(super) fn new() -> Alphabet {
        let mut bytes = [None; 0x180];
        let mut next = 256;
        for byte in 0..=255u8 {
            let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
            let code = if printable { usize::from(byte) } else { next };
            next += usize::from(!printable);
            bytes[code] = Some(byte);
        }
        Alphabet { bytes }
    }

    fn byte(&self, c: char) -> Option<u8> {
        self.bytes.get(c as usize).copied().flatten()
    }
}

/// How GGUF names the rule that cuts text into words before BPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cutting {
    /// GPT-2's expression.
    Gpt2,
    /// Single digits, then GPT-2's expression.
    SmolLm,
    /// Llama 3's expression; a word that is a token is not merged further.
    Llama3,
    /// Qwen 2's expression.
    Qwen2,
}

impl Cutting {
    const NAMES: &[(&str, Cutting)] = &[
        ("default", Cutting::Gpt2),
        ("gpt2", Cutting::Gpt2),
        ("gpt-2", Cutting::Gpt2),
        ("smollm", Cutting::SmolLm),
        ("llama-bpe", Cutting::Llama3),
        ("llama3", Cutting::Llama3),
        ("qwen2", Cutting::Qwen2),
    ];

    /// The rule `tokenizer.ggml.pre` names, or the names there are.
    pub(super) fn named(name: &str) -> Result<Cutting, String> {
        match Cutting::NAMES.iter().find(|(known, _)| *known == name) {
            Some((_, cutting)) => Ok(*cutting),
            None => Err(Cutting::NAMES.iter().map(|(known, _)| *known).collect::<Vec<_>>().join(", ")),
        }
    }

    fn pre_tokenizer(self) -> Result<PreTokenizerWrapper, TextError> {
        let words = |digits: &str| {
            format!(
                "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{{L}}\\p{{N}}]?\\p{{L}}+|\\p{{N}}{digits}| \
                 ?[^\\s\\p{{L}}\\p{{N}}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
            )
        };
        let split = |pattern: String| {
            Split::new(SplitPattern::Regex(pattern), SplitDelimiterBehavior::Isolated, false)
                .map_err(|e| TextError::Tokenizer(e.to_string()))
        };
        let first: PreTokenizerWrapper = match self {
            Cutting::Gpt2 => return Ok(ByteLevel::new(false, false, true).into()),
            Cutting::SmolLm => Digits::new(true).into(),
            Cutting::Llama3 => split(words("{1,3}"))?.into(),
            Cutting::Qwen2 => split(words(""))?.into(),
        };
        let byte_level = ByteLevel::new(false, false, self == Cutting::SmolLm);
        Ok(Sequence::new(vec![first, byte_level.into()]).into())
    }
}

impl ByteLevelBpe {
    /// A vocabulary from its tokens in the byte-level alphabet, in order of id, and its merges in order of rank.
    pub(super) fn new(
        tokens: Vec<String>,
        merges: Merges,
        cutting: Cutting,
    ) -> Result<ByteLevelBpe, TextError> {
        let failed = |e: tokenizers::Error| TextError::Tokenizer(e.to_string());
        let alphabet = Alphabet::new();
        let mut bytes = TokenBytes::default();
        let mut longest = 0;
        let mut vocab = Vocab::with_capacity(tokens.len());
        for (id, token) in (0..).zip(tokens) {
            bytes.push(&token, &alphabet);
            longest = longest.max(token.len());
            vocab.insert(token, id);
        }
        check_merges(merges.iter().map(|(a, b)| (a.as_str(), b.as_str())), longest)?;
        let bpe = BPE::builder()
            .vocab_and_merges(vocab, merges)
            .ignore_merges(cutting == Cutting::Llama3)
            .build()
            .map_err(failed)?;
        Ok(ByteLevelBpe {
            model: ModelWrapper::BPE(bpe),
            pre_tokenizer: cutting.pre_tokenizer()?,
            normalizer: None,
            bytes,
        })
    }

    /// A vocabulary from the parts of a `tokenizer.json`.
    pub(super) fn from_parts(
        model: ModelWrapper,
        pre_tokenizer: PreTokenizerWrapper,
        normalizer: Option<NormalizerWrapper>,
        bytes: TokenBytes,
    ) -> ByteLevelBpe {
        ByteLevelBpe { model, pre_tokenizer, normalizer, bytes }
    }
}

/// Refuses merges whose result is longer than the longest token: the `tokenizers` crate trusts that it is not.
pub(super) fn check_merges<'a>(
    mut merges: impl Iterator<Item = (&'a str, &'a str)>,
    longest: usize,
) -> Result<(), TextError> {
    match merges.find(|(a, b)| a.len() + b.len() > longest) {
        Some((a, b)) => Err(TextError::Tokenizer(format!("the merge of `{a}` and `{b}` is not a token"))),
        None => Ok(()),
    }
}

impl Vocabulary for ByteLevelBpe {
    fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TextError> {
        let failed = |e: tokenizers::Error| TextError::Tokenizer(e.to_string());
        let mut words = PreTokenizedString::from(text);
        self.pre_tokenizer.pre_tokenize(&mut words).map_err(failed)?;
        for (word, ..) in words.get_splits(OffsetReferential::Normalized, OffsetType::Byte) {
            out.extend(self.model.tokenize(word).map_err(failed)?.iter().map(|token| token.id));
        }
        Ok(())
    }

    fn append_bytes(&self, id: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(self.bytes.get(id));
    }

    fn normalise<'a>(&self, text: &'a str) -> Result<Cow<'a, str>, TextError> {
        let Some(normalizer) = &self.normalizer else { return Ok(Cow::Borrowed(text)) };
        let mut normalized = NormalizedString::from(text);
        normalizer.normalize(&mut normalized).map_err(|e| TextError::Tokenizer(e.to_string()))?;
        Ok(if normalized.get() == text {
            Cow::Borrowed(text)
        } else {
            Cow::Owned(normalized.get().to_owned())
        })
    }

    fn size(&self) -> Option<usize> {
        Some(self.bytes.ends.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All 256 bytes as tokens, then the merges' results.
    pub(crate) fn tiny(merges: &[(&str, &str)], cutting: Cutting) -> ByteLevelBpe {
        let alphabet = Alphabet::new();
        let mut tokens = vec![String::new(); 256];
        for (code, byte) in alphabet.bytes.iter().enumerate() {
            if let Some(byte) = byte {
                tokens[usize::from(*byte)] = char::from_u32(code as u32).unwrap().to_string();
            }
        }
        let merges: Merges = merges.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        tokens.extend(merges.iter().map(|(a, b)| format!("{a}{b}")));
        ByteLevelBpe::new(tokens, merges, cutting).unwrap()
    }

    fn words(cutting: Cutting, text: &str) -> Vec<String> {
        // Merging everything the rule leaves together shows where it cuts.
        let bpe = tiny(&[], cutting);
        let mut words = PreTokenizedString::from(text);
        bpe.pre_tokenizer.pre_tokenize(&mut words).unwrap();
        let splits = words.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.iter().map(|(_, (from, to), _)| text[*from..*to].to_owned()).collect()
    }

    #[test]
    fn merges_apply_in_order_of_rank() {
        let bpe = tiny(&[("l", "l"), ("h", "e"), ("he", "ll"), ("Ġ", "hell")], Cutting::Gpt2);
        let mut ids = Vec::new();
        bpe.encode("hell hell", &mut ids).unwrap();
        assert_eq!(ids, [258, 259]);
        let mut text = Vec::new();
        ids.iter().for_each(|id| bpe.append_bytes(*id, &mut text));
        assert_eq!(text, b"hell hell");
    }

    #[test]
    fn each_rule_cuts_as_its_family_does() {
        assert_eq!(words(Cutting::Gpt2, "it's 2024  x"), ["it", "'s", " 2024", " ", " x"]);
        assert_eq!(words(Cutting::SmolLm, "it's 2024"), ["it", "'s", " ", "2", "0", "2", "4"]);
        assert_eq!(words(Cutting::Llama3, "it's 20245\n\n x"), ["it", "'s", " ", "202", "45", "\n\n", " x"]);
        assert_eq!(words(Cutting::Qwen2, "it's 24);\n"), ["it", "'s", " ", "2", "4", ");\n"]);
    }

    #[test]
    fn a_merge_that_makes_no_token_is_refused() {
        let tokens = vec!["a".to_owned(), "b".to_owned()];
        let merges = vec![("a".to_owned(), "b".to_owned())];
        assert!(ByteLevelBpe::new(tokens.clone(), merges, Cutting::Gpt2).is_err());
        let merges = vec![("a".to_owned(), "bbbbbbbbbbbbbbb".to_owned())];
        assert!(ByteLevelBpe::new(tokens, merges, Cutting::Gpt2).is_err());
    }
}
