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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The bundled model's tokenizer with a change.
    fn changed(change: impl FnOnce(&mut serde_json::Value)) -> TextCodec {
        let text =
            std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/models/scarp/tokenizer.json"));
        let mut json: serde_json::Value = serde_json::from_slice(&text.unwrap()).unwrap();
        change(&mut json);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tokenizer.json"), json.to_string()).unwrap();
        TextCodec::from_folder(folder.path(), 6_144).unwrap()
    }

    #[test]
    fn tokenizers_are_compared_by_what_they_do() {
        let scarp = TextCodec::from_folder(Path::new("scarp"), 6_144).unwrap();
        let talus = TextCodec::from_folder(Path::new("talus"), 6_144).unwrap();
        assert_eq!(scarp.differs_from(&talus), None);
        // Other bytes of the file and another template are no difference.
        assert_eq!(scarp.differs_from(&changed(|_| ())), None);

        let merges = changed(|json| json["model"]["merges"].as_array_mut().unwrap()[20..].reverse());
        let told = scarp.differs_from(&merges).unwrap();
        assert!(told.contains("into other tokens"), "{told}");
        let swapped = changed(|json| {
            let vocabulary = json["model"]["vocab"].as_object_mut().unwrap();
            let [a, b] = ["a", "b"].map(|token| vocabulary[token].clone());
            vocabulary.extend([("a".to_owned(), b), ("b".to_owned(), a)]);
        });
        let told = scarp.differs_from(&swapped).unwrap();
        assert!(told.contains("is `a` to the one and `b` to the other"), "{told}");

        let bytes = TextCodec::bytes_only(6_144);
        assert!(scarp.differs_from(&bytes).unwrap().contains("has a tokenizer"));
        assert_eq!(bytes.differs_from(&TextCodec::bytes_only(320)), None);
        assert!(TextCodec::synthetic(8).differs_from(&TextCodec::synthetic(9)).is_some());
    }
}
