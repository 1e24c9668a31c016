//! Text on its way to tokens and back: tokenizer and chat template as a model file carries them.

use crate::event::{Segment, SegmentRun};
use crate::session::Conversation;

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
}

/// Tokenizer and chat template of one model.
pub struct TextCodec {}

impl TextCodec {
    /// The codec of the `sim` device: pieces of about four characters, numbered as they are first seen, in a ChatML-style
    /// template. Needs no file. Ids below `reserved` are never given to new pieces, and decode to words of a fixed list.
    pub fn synthetic(reserved: u32) -> TextCodec {
        let _ = reserved;
        unimplemented!()
    }

    /// Renders a conversation with the generation prompt at its end, so that the model's reply comes next. Rendering is
    /// append-only: appending the reply and further messages leaves these tokens a strict prefix.
    pub fn render(&self, conversation: &Conversation) -> Result<Rendered, TextError> {
        let _ = conversation;
        unimplemented!()
    }

    /// Plain text to ids, without template; special tokens in the text are recognised when `special`.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, TextError> {
        let _ = (text, special);
        unimplemented!()
    }

    /// Ids to text, special tokens included when `special`; bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, tokens: &[u32], special: bool) -> String {
        let _ = (tokens, special);
        unimplemented!()
    }

    /// Ids that end the model's turn.
    pub fn end_of_turn(&self) -> &[u32] {
        unimplemented!()
    }

    /// A decoder for a reply that arrives token by token.
    pub fn stream(&self) -> TextStream<'_> {
        unimplemented!()
    }

    /// Digest of tokenizer and template, part of the cache identity.
    pub fn digest(&self) -> [u8; 32] {
        unimplemented!()
    }
}

/// Turns reply tokens into text as soon as characters are whole.
pub struct TextStream<'a> {
    codec: &'a TextCodec,
}

impl TextStream<'_> {
    /// The text that `token` completes; empty inside a multi-byte character and for special tokens.
    pub fn push(&mut self, token: u32) -> String {
        let _ = (token, self.codec);
        unimplemented!()
    }

    /// What is left at the end.
    pub fn finish(&mut self) -> String {
        unimplemented!()
    }
}
