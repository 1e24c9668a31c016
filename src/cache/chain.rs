//! The hash chain that names blocks.
//!
//! Block 0 is hashed against a root that binds the cache identity, block *i* against its parent's hash. So a block's
//! name stands for its tokens, all tokens before it, and the model that computed them; a lookup always walks from the
//! first block on.

use std::fmt;

use crate::device::ExecutorFacts;

/// Name of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash([u8; 32]);

impl BlockHash {
    /// Its bytes, as a file names itself by them.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The name with these bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> BlockHash {
        BlockHash(bytes)
    }
}

/// Sixty-four hex digits.
impl fmt::Display for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What two runs must share for the state of one to be usable by the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Digest of weights and configuration.
    pub model: [u8; 32],
    /// Digest of tokenizer and template.
    pub text: [u8; 32],
    /// Quantisation of weights and activations.
    pub precision: &'static str,
    /// Device kernel family.
    pub family: &'static str,
    /// Tokens a block holds.
    pub block_tokens: usize,
}

impl Identity {
    /// That of a resident model whose tokenizer and template have the digest `text`.
    pub fn of(facts: &ExecutorFacts, text: [u8; 32]) -> Identity {
        Identity {
            model: facts.digest,
            text,
            precision: facts.precision,
            family: facts.family,
            block_tokens: facts.page_tokens,
        }
    }
}

/// How positions are encoded. A change of scheme changes every key.
pub const POSITIONS: &str = "rotary at absolute positions";

impl Identity {
    /// The chain's root.
    pub fn root(&self) -> BlockHash {
        root(&self.model, &self.text, [self.precision, self.family, POSITIONS], self.block_tokens as u64)
    }
}

/// The root of the chains of an identity, given by its parts: digests of model and text; precision, kernel family and position scheme;
/// tokens a block holds.
pub fn root(model: &[u8; 32], text: &[u8; 32], words: [&str; 3], block_tokens: u64) -> BlockHash {
    let mut hasher = blake3::Hasher::new_derive_key("escarp cache identity 1");
    hasher.update(model).update(text);
    for word in words {
        hasher.update(&(word.len() as u64).to_le_bytes()).update(word.as_bytes());
    }
    hasher.update(&block_tokens.to_le_bytes());
    BlockHash(*hasher.finalize().as_bytes())
}

/// A root that is no identity's. Names from it stand for tokens alone, whoever computed their state.
pub fn content_root() -> BlockHash {
    BlockHash(blake3::derive_key("escarp cache content 1", &[]))
}

/// The names of the whole blocks of `tokens`, in order. A partial block at the end has no name.
pub fn hashes(root: BlockHash, tokens: &[u32], block_tokens: usize) -> Vec<BlockHash> {
    tokens
        .chunks_exact(block_tokens)
        .scan(root, |parent, block| {
            *parent = name(*parent, block);
            Some(*parent)
        })
        .collect()
}

/// The name of the block of these tokens behind `parent`, or behind a root.
pub fn name(parent: BlockHash, block: &[u32]) -> BlockHash {
    let mut hasher = blake3::Hasher::new_keyed(&parent.0);
    // Many tokens at once: the hash goes over whole chunks of 1,024 bytes several at a time.
    let mut bytes = [0; 4096];
    for tokens in block.chunks(bytes.len() / 4) {
        let bytes = &mut bytes[..tokens.len() * 4];
        for (bytes, token) in bytes.chunks_exact_mut(4).zip(tokens) {
            bytes.copy_from_slice(&token.to_le_bytes());
        }
        hasher.update(bytes);
    }
    BlockHash(*hasher.finalize().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity { model: [1; 32], text: [2; 32], precision: "int8", family: "cpu", block_tokens: 4 }
    }

    #[test]
    fn any_part_of_the_identity_changes_every_name() {
        let base = identity();
        let others = [
            Identity { model: [9; 32], ..base.clone() },
            Identity { text: [9; 32], ..base.clone() },
            Identity { precision: "f32", ..base.clone() },
            Identity { family: "mlx", ..base.clone() },
            Identity { block_tokens: 8, ..base.clone() },
        ];
        let name = hashes(base.root(), &[1, 2, 3, 4], 4);
        for other in others {
            assert_ne!(name, hashes(other.root(), &[1, 2, 3, 4], 4), "{other:?}");
        }
    }

    #[test]
    fn a_changed_token_renames_its_block_and_all_after_it() {
        let root = identity().root();
        let tokens: Vec<u32> = (0..16).collect();
        let mut changed = tokens.clone();
        changed[6] += 1;
        let (a, b) = (hashes(root, &tokens, 4), hashes(root, &changed, 4));
        assert_eq!(a[0], b[0]);
        assert!((1..4).all(|i| a[i] != b[i]));
    }

    #[test]
    fn a_partial_block_has_no_name() {
        assert_eq!(hashes(identity().root(), &[1, 2, 3, 4, 5], 4).len(), 1);
    }
}
