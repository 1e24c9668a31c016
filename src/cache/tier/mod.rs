//! The SSD tier: blocks and snapshots that outlive RAM and the process.
//!
//! Each is a safetensors file of its own that says everything about itself: identity, layers, place in its chain, tokens, who wrote it.
//! The in-memory catalogue of them decides at once what is held; bytes move on threads of the tier's own, so nobody waits for a write, and
//! what is still on its way to the disk is read from memory. A file that fails any check is moved aside, reported, and never becomes state.
//!
//! Pages and slots are opaque bytes here. What they mean is bound by the [identity](super::chain::Identity): a file of another identity is
//! never state, only an explanation.

use crate::event::{RequestId, Route};

/// Layers by class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Layers {
    /// Attention layers, whose state is in pages.
    pub attention: u32,
    /// Recurrent layers, whose state is in slots.
    pub recurrent: u32,
}

/// Which half of a block's state a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// A page: attention layers, all of the block's tokens.
    Block,
    /// A slot: recurrent layers at the block's end.
    Snapshot,
}

/// Who wrote a file's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The process: sixteen hex digits drawn at its start.
    pub run: String,
    /// The request within it.
    pub request: RequestId,
    /// The route by which the state was computed.
    pub route: Route,
    /// Milliseconds since the Unix epoch.
    pub written_unix_ms: u64,
}
