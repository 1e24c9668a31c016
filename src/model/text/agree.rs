//! Whether two models read the same tokens: a scorer is given the ids that its target's tokenizer made.

use super::TextCodec;

/// Characters of a token that are shown.
const SHOWN: usize = 40;

impl TextCodec {
    /// What keeps text from being the same ids to both, for a reader; `None` where nothing was found to. Every id of this one must stand for
    /// the same bytes in the other and be special in both or in none, and the text of all tokens in a row, which no two sets of merges
    /// would cut alike, must be the same ids. Templates take no part.
    pub fn differs_from(&self, other: &TextCodec) -> Option<String> {
        if self.tokens_digest == other.tokens_digest {
            return None;
        }
        let (Some(ids), Some(_)) = (self.vocabulary_size(), other.vocabulary_size()) else {
            return Some("one of them has no fixed ids".to_owned());
        };
        if self.has_tokenizer() != other.has_tokenizer() {
            return Some("only one of the models has a tokenizer".to_owned());
        }
        let mut text = Vec::new();
        for id in 0..u32::try_from(ids).unwrap_or(u32::MAX) {
            let [mine, its] = [self, other].map(|codec| codec.token(id));
            if mine != its {
                let [mine, its] = [mine, its].map(|token| shown(&token));
                return Some(format!("id {id} is {mine} to the one and {its} to the other"));
            }
            let [special, its] = [self, other].map(|codec| codec.specials.get(id).is_some());
            if special != its {
                return Some(format!("id {id}, {}, is special to only one of them", shown(&mine)));
            }
            if !special {
                text.extend(mine);
            }
        }
        let text = String::from_utf8_lossy(&text);
        let [mine, its] = [self, other].map(|codec| codec.encode(&text, false).ok());
        (mine != its).then(|| "they cut the same text into other tokens".to_owned())
    }

    /// The bytes an id stands for.
    fn token(&self, id: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append_bytes(id, true, &mut bytes);
        bytes
    }
}

fn shown(token: &[u8]) -> String {
    if token.is_empty() {
        return "nothing".to_owned();
    }
    let text: String = String::from_utf8_lossy(token).chars().take(SHOWN).collect();
    format!("`{}`", text.escape_debug())
}
