//! Text on its way to tokens and back: tokenizer and chat template as a model file carries them.
//!
//! A prompt is tokenised in *pieces*: text between special tokens, cut once more where the template's generation prompt
//! ends. There the model's own reply began, so a reply that became history is the same tokens behind the same tokens, and
//! rendering is append-only as far as the template is: one that rewrites earlier messages cannot be mended here.
//! Segments do not cut: a token belongs to the segment its first byte lies in. Pieces are remembered, because consecutive turns of
//! a session share almost all of them.

mod agree;
mod bpe;
mod carried;
mod prompt;
mod protected;
mod synthetic;
mod template;
mod vocabulary;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crate::event::{Segment, SegmentRun};
use crate::session::Conversation;
use prompt::{Habits, Part, Prompt};
use synthetic::Synthetic;
use template::ChatTemplate;
use vocabulary::{BytesOnly, Special, Specials, Vocabulary};

/// Why a prompt could not be rendered.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The chat template failed.
    #[error("chat template: {problem}; {remedy}")]
    Template {
        /// What went wrong, with the template's line.
        problem: String,
        /// What to do about it.
        remedy: String,
    },
    /// The tokenizer failed.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
}

/// A conversation as the model reads it.
#[derive(Debug, Clone, PartialEq)]
pub struct Rendered {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// The segment of every token, as runs that add up to `tokens.len()`; neighbouring runs differ.
    pub segments: Vec<SegmentRun>,
}

impl Rendered {
    /// The segment of the token at `position`.
    pub fn segment_at(&self, position: usize) -> Option<Segment> {
        crate::event::segment_at(&self.segments, position as u64)
    }

    fn push(&mut self, token: u32, segment: Segment) {
        self.tokens.push(token);
        match self.segments.last_mut() {
            Some(run) if run.segment == segment => run.tokens += 1,
            _ => self.segments.push(SegmentRun { segment, tokens: 1 }),
        }
    }
}

/// Tokenizer and chat template of one model.
pub struct TextCodec {
    vocabulary: Box<dyn Vocabulary>,
    specials: Specials,
    template: ChatTemplate,
    habits: Habits,
    end_of_turn: Vec<u32>,
    digest: [u8; 32],
    /// Digest of the tokenizer alone.
    tokens_digest: [u8; 32],
    pieces: Mutex<PieceCache>,
    probed: Mutex<Option<protected::Probed>>,
}

/// What a codec is put together from.
struct Parts {
    vocabulary: Box<dyn Vocabulary>,
    specials: Vec<Special>,
    template: ChatTemplate,
    end_of_turn: Vec<u32>,
    /// Digest of the vocabulary's data.
    vocabulary_digest: [u8; 32],
}

impl TextCodec {
    /// The codec of the `sim` device: pieces of about four characters, numbered as they are first seen, in a ChatML-style
    /// template. Needs no file. Ids below `reserved` are never given to new pieces, and decode to words of a fixed list.
    pub fn synthetic(reserved: u32) -> TextCodec {
        let specials = ["<|im_start|>", "<|im_end|>"];
        let specials: Vec<Special> = (reserved..)
            .zip(specials)
            .map(|(id, text)| Special { text: text.into(), id, control: true })
            .collect();
        TextCodec::assemble(Parts {
            vocabulary: Box::new(Synthetic::new(reserved, 2)),
            end_of_turn: specials.iter().skip(1).map(|s| s.id).collect(),
            specials,
            template: ChatTemplate::chatml(),
            vocabulary_digest: *blake3::hash(format!("synthetic {reserved}").as_bytes()).as_bytes(),
        })
    }

    /// The codec of a model without tokenizer: one id a byte, ChatML as plain text, nothing ends a turn.
    pub fn bytes_only(vocab: usize) -> TextCodec {
        TextCodec::assemble(Parts {
            vocabulary: Box::new(BytesOnly { size: vocab }),
            specials: Vec::new(),
            template: ChatTemplate::chatml(),
            end_of_turn: Vec::new(),
            vocabulary_digest: *blake3::hash(format!("bytes {vocab}").as_bytes()).as_bytes(),
        })
    }

    fn assemble(parts: Parts) -> TextCodec {
        let specials = Specials::new(parts.specials);
        let mut hasher = blake3::Hasher::new();
        hasher.update(&parts.vocabulary_digest);
        for special in specials.iter() {
            hasher.update(&special.id.to_le_bytes());
            hasher.update(&[u8::from(special.control)]);
            hasher.update(&(special.text.len() as u64).to_le_bytes());
            hasher.update(special.text.as_bytes());
        }
        let tokens_digest = *hasher.finalize().as_bytes();
        hasher.update(parts.template.source().as_bytes());
        TextCodec {
            tokens_digest,
            vocabulary: parts.vocabulary,
            specials,
            habits: Habits::of(&parts.template),
            template: parts.template,
            end_of_turn: parts.end_of_turn,
            digest: *hasher.finalize().as_bytes(),
            pieces: Mutex::default(),
            probed: Mutex::default(),
        }
    }

    /// Renders a conversation with the generation prompt at its end, so that the model's reply comes next. Rendering is
    /// append-only: appending the reply and further messages leaves these tokens a strict prefix.
    ///
    /// Text that a template adds of itself, a default system prompt included, is [`Segment::Glue`].
    pub fn render(&self, conversation: &Conversation) -> Result<Rendered, TextError> {
        let prompt = prompt::render(&self.template, &self.habits, conversation)?;
        let prompt = self.normalise(prompt)?;
        let mut rendered = Rendered { tokens: Vec::new(), segments: Vec::new() };
        let mut parts = prompt.parts.iter().peekable();
        let mut segment_of = |offset: usize| {
            while parts.peek().is_some_and(|part| part.range.end <= offset) {
                parts.next();
            }
            parts.peek().map_or(Segment::Glue, |part| part.segment)
        };
        for piece in self.cut(&prompt) {
            match piece {
                Piece::Special { id, at } => rendered.push(id, segment_of(at)),
                Piece::Text(range) => {
                    let tokens = self.piece_tokens(&prompt.text[range.clone()])?;
                    let mut offset = range.start;
                    for token in tokens.iter() {
                        rendered.push(token.id, segment_of(offset.min(range.end - 1)));
                        offset += token.bytes as usize;
                    }
                }
            }
        }
        Ok(rendered)
    }

    /// Plain text to ids, without template; special tokens in the text are recognised when `special`.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, TextError> {
        let text = self.vocabulary.normalise(text)?;
        let mut tokens = Vec::new();
        let mut rest = text.as_ref();
        while let Some((range, id)) = self.specials.find(rest, special) {
            if range.start > 0 {
                self.vocabulary.encode(&rest[..range.start], &mut tokens)?;
            }
            tokens.push(id);
            rest = &rest[range.end..];
        }
        if !rest.is_empty() {
            self.vocabulary.encode(rest, &mut tokens)?;
        }
        Ok(tokens)
    }

    /// Ids to text, special tokens included when `special`; bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, tokens: &[u32], special: bool) -> String {
        let mut bytes = Vec::new();
        for token in tokens {
            self.append_bytes(*token, special, &mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The text of `tokens`, special ones included, and the byte at which each token's part of it ends. `None` where it is not UTF-8, as that of
    /// a part of a prompt may not be.
    pub fn spelled(&self, tokens: &[u32]) -> Option<(String, Vec<usize>)> {
        let mut bytes = Vec::new();
        let mut ends = Vec::with_capacity(tokens.len());
        for token in tokens {
            self.append_bytes(*token, true, &mut bytes);
            ends.push(bytes.len());
        }
        Some((String::from_utf8(bytes).ok()?, ends))
    }

    /// Ids that end the model's turn.
    pub fn end_of_turn(&self) -> &[u32] {
        &self.end_of_turn
    }

    /// A decoder for a reply that arrives token by token.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream { codec: self, pending: Vec::new() }
    }

    /// Digest of tokenizer and template, part of the cache identity.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Ids the tokenizer has; `None` when it grows with the text it sees.
    pub fn vocabulary_size(&self) -> Option<usize> {
        self.vocabulary.size()
    }

    /// Whether the model brought a tokenizer.
    pub fn has_tokenizer(&self) -> bool {
        self.vocabulary.is_tokenizer()
    }

    /// Whether the template itself lays out tools and tool calls; otherwise they are folded into messages.
    pub fn template_takes_tools(&self) -> bool {
        self.template.takes_tools && self.template.takes_tool_calls
    }

    fn append_bytes(&self, token: u32, special: bool, out: &mut Vec<u8>) {
        match self.specials.get(token) {
            Some(s) if special || !s.control => out.extend_from_slice(s.text.as_bytes()),
            Some(_) => {}
            None => self.vocabulary.append_bytes(token, out),
        }
    }

    /// Normalises part by part, so that parts keep their places.
    fn normalise(&self, prompt: Prompt) -> Result<Prompt, TextError> {
        let mut text = String::new();
        let mut parts = Vec::with_capacity(prompt.parts.len());
        let mut changed = false;
        for part in &prompt.parts {
            let piece = self.vocabulary.normalise(&prompt.text[part.range.clone()])?;
            changed |= matches!(piece, std::borrow::Cow::Owned(_));
            let start = text.len();
            text.push_str(&piece);
            parts.push(Part { range: start..text.len(), ..part.clone() });
        }
        Ok(if changed { Prompt { text, parts } } else { prompt })
    }

    /// Cuts a prompt at special tokens and behind generation prompts.
    fn cut(&self, prompt: &Prompt) -> Vec<Piece> {
        let boundaries = self.reply_starts(prompt);
        let mut boundaries = boundaries.iter().copied().peekable();
        let mut pieces: Vec<Piece> = Vec::new();
        let mut push_text = |mut range: Range<usize>, pieces: &mut Vec<Piece>| {
            while !range.is_empty() {
                while boundaries.peek().is_some_and(|b| *b < range.start) {
                    boundaries.next();
                }
                let at_boundary = boundaries.peek() == Some(&range.start);
                let cut = boundaries.clone().find(|b| *b > range.start).unwrap_or(range.end).min(range.end);
                match pieces.last_mut() {
                    Some(Piece::Text(last)) if last.end == range.start && !at_boundary => last.end = cut,
                    _ => pieces.push(Piece::Text(range.start..cut)),
                }
                range.start = cut;
            }
        };
        for part in &prompt.parts {
            let mut start = part.range.start;
            while let Some((found, id)) =
                self.specials.find(&prompt.text[start..part.range.end], part.template)
            {
                push_text(start..start + found.start, &mut pieces);
                pieces.push(Piece::Special { id, at: start + found.start });
                start += found.end;
            }
            push_text(start..part.range.end, &mut pieces);
        }
        pieces
    }

    /// Where replies begin: behind each generation prompt, or, where the template has none, at each message.
    fn reply_starts(&self, prompt: &Prompt) -> Vec<usize> {
        let ask = &self.habits.generation_prompt;
        if ask.is_empty() {
            return prompt.parts.iter().filter(|p| !p.template).map(|p| p.range.start).collect();
        }
        let mut starts = Vec::new();
        let mut run: Range<usize> = 0..0;
        for part in
            prompt.parts.iter().chain([&Part { range: 0..0, segment: Segment::Glue, template: false }])
        {
            if part.template {
                run = if run.is_empty() { part.range.clone() } else { run.start..part.range.end };
                continue;
            }
            let found = prompt.text[run.clone()].match_indices(ask.as_str());
            starts.extend(found.map(|(at, _)| run.start + at + ask.len()));
            run = 0..0;
        }
        starts
    }

    fn piece_tokens(&self, text: &str) -> Result<Arc<[PieceToken]>, TextError> {
        if let Some(tokens) = self.remembered_piece(text) {
            return Ok(tokens);
        }
        let mut ids = Vec::new();
        self.vocabulary.encode(text, &mut ids)?;
        let mut bytes = Vec::new();
        let tokens = ids.into_iter().map(|id| {
            bytes.clear();
            self.vocabulary.append_bytes(id, &mut bytes);
            PieceToken { id, bytes: bytes.len() as u32 }
        });
        let tokens: Arc<[PieceToken]> = tokens.collect();
        self.cache().insert(piece_key(text), Arc::clone(&tokens));
        Ok(tokens)
    }

    fn remembered_piece(&self, text: &str) -> Option<Arc<[PieceToken]>> {
        self.cache().get(&piece_key(text))
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, PieceCache> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stretch of a prompt that is tokenised by itself.
#[derive(Debug, Clone, PartialEq)]
enum Piece {
    Special { id: u32, at: usize },
    Text(Range<usize>),
}

/// A token and the bytes of text it covers.
#[derive(Debug, Clone, Copy, PartialEq)]
struct PieceToken {
    id: u32,
    bytes: u32,
}

fn piece_key(text: &str) -> [u8; 32] {
    *blake3::hash(text.as_bytes()).as_bytes()
}

/// Tokens of pieces seen lately, in two generations: when the young one is full it becomes the old one, and what is then not asked
/// for again is forgotten.
#[derive(Default)]
struct PieceCache {
    young: HashMap<[u8; 32], Arc<[PieceToken]>>,
    old: HashMap<[u8; 32], Arc<[PieceToken]>>,
    young_tokens: usize,
}

impl PieceCache {
    /// Tokens a generation holds: 8 MiB.
    const CAPACITY: usize = 1 << 20;

    fn get(&mut self, key: &[u8; 32]) -> Option<Arc<[PieceToken]>> {
        if let Some(tokens) = self.young.get(key) {
            return Some(Arc::clone(tokens));
        }
        let tokens = self.old.remove(key)?;
        self.insert(*key, Arc::clone(&tokens));
        Some(tokens)
    }

    fn insert(&mut self, key: [u8; 32], tokens: Arc<[PieceToken]>) {
        // An entry costs its key and bookkeeping even when the piece is short.
        self.young_tokens += tokens.len() + 16;
        self.young.insert(key, tokens);
        if self.young_tokens > Self::CAPACITY {
            self.old = std::mem::take(&mut self.young);
            self.young_tokens = 0;
        }
    }
}

/// Turns reply tokens into text as soon as characters are whole.
pub struct TextStream<'a> {
    codec: &'a TextCodec,
    /// The beginning of a character whose other bytes are still to come.
    pending: Vec<u8>,
}

impl TextStream<'_> {
    /// The text that `token` completes; empty inside a multi-byte character and for special tokens.
    pub fn push(&mut self, token: u32) -> String {
        self.codec.append_bytes(token, false, &mut self.pending);
        let mut text = String::new();
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    self.pending.clear();
                    return text;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(invalid) = error.error_len() else {
                        self.pending = after.to_vec();
                        return text;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &after[invalid..];
                }
            }
        }
    }

    /// What is left at the end.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}

#[cfg(test)]
mod tests;
