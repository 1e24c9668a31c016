//! The protected prefix of a prompt: the tokens that cannot depend on the conversation.
//!
//! Where the system prompt and the tools end is the template's business: it may put the tools behind the first message, add a system prompt of its own,
//! or write a boundary that merges with what follows it. Counting the tokens of the static messages alone is therefore wrong (in the study of Oliver
//! Yu the difference of two renders fell 37 tokens short, because the template wrote more where there was a system prompt; CC BY 4.0). So the boundary is
//! measured: the static messages are rendered twice with two different turns behind them, and what both renders and the real prompt begin with is
//! what no conversation can change.

use std::sync::{Arc, PoisonError};

use super::vocabulary::UNSEEN;
use super::{Piece, TextCodec, TextError, prompt};
use crate::session::{Conversation, Message, Role};

/// Two turns that no token of both, and of no tokenizer, can have in common: a letter and a digit.
const THROWAWAY: [&str; 2] = ["a", "0"];

/// What the two probes of some static messages begin with.
pub(super) struct Probed {
    /// Digest of the static messages.
    of: [u8; 32],
    common: Arc<[u32]>,
}

impl TextCodec {
    /// How many of the first tokens of `prompt`, which is `conversation` rendered, are the same whatever is said behind the system prompt and the tools:
    /// the longest prefix that it shares with two renders of the system prompt and the tools, each with another throwaway turn.
    ///
    /// Fails where the template refuses a conversation of one turn.
    pub fn protected_prefix(&self, conversation: &Conversation, prompt: &[u32]) -> Result<usize, TextError> {
        Ok(shared(&self.probe(conversation)?, prompt))
    }

    /// What both probes begin with. The ones made last are remembered, since the static messages seldom change.
    fn probe(&self, conversation: &Conversation) -> Result<Arc<[u32]>, TextError> {
        let of = static_digest(conversation);
        let remembered = || self.probed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(probed) = remembered().as_ref().filter(|probed| probed.of == of) {
            return Ok(Arc::clone(&probed.common));
        }
        let probe = |turn: &str| {
            self.look_up(&Conversation {
                system: conversation.system.clone(),
                tools: conversation.tools.clone(),
                messages: vec![Message::text(Role::User, turn)],
            })
        };
        let (mut common, other) = (probe(THROWAWAY[0])?, probe(THROWAWAY[1])?);
        common.truncate(shared(&common, &other));
        let common: Arc<[u32]> = common.into();
        // What a growing vocabulary has not seen yet, it may know next time.
        if !common.contains(&UNSEEN) {
            *remembered() = Some(Probed { of, common: Arc::clone(&common) });
        }
        Ok(common)
    }

    /// The tokens of a conversation, as far as the vocabulary knows them: a probe must not give ids to text that is in no prompt.
    fn look_up(&self, conversation: &Conversation) -> Result<Vec<u32>, TextError> {
        let prompt = prompt::render(&self.template, &self.habits, conversation)?;
        let prompt = self.normalise(prompt)?;
        let mut tokens = Vec::new();
        for piece in self.cut(&prompt) {
            match piece {
                Piece::Special { id, .. } => tokens.push(id),
                Piece::Text(range) => {
                    let text = &prompt.text[range];
                    match self.remembered_piece(text) {
                        Some(known) => tokens.extend(known.iter().map(|token| token.id)),
                        None => self.vocabulary.recognise(text, &mut tokens)?,
                    }
                }
            }
        }
        Ok(tokens)
    }
}

/// Tokens that both begin with.
fn shared(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn static_digest(conversation: &Conversation) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    match &conversation.system {
        Some(system) => {
            hasher.update(&[1]);
            hasher.update(&(system.len() as u64).to_le_bytes());
            hasher.update(system.as_bytes());
        }
        None => {
            hasher.update(&[0]);
        }
    }
    for tool in &conversation.tools {
        // JSON text keeps the order of keys, which is part of what a template writes.
        let text = tool.to_string();
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    *hasher.finalize().as_bytes()
}
