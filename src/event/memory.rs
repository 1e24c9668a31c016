//! Figures of memory.

use serde::{Deserialize, Serialize};

/// What became of the recurrent layers' state at the block boundaries a request passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotsStored {
    /// Snapshots newly stored.
    pub stored: u64,
    /// Boundaries that were to be captured and are not, because `cache.ram_bytes` had no room for them.
    pub not_taken: u64,
    /// Snapshots dropped to make room.
    pub dropped: u64,
}

/// Memory of recurrent layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotMemory {
    /// Snapshots that can be restored from.
    pub snapshots: u64,
    /// Other slots in use: by running requests.
    pub live: u64,
    /// Bytes of both.
    pub bytes: u64,
}

/// Memory a device holds, as its allocator counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMemory {
    /// In use: weights, state, and what a forward works with.
    pub active_bytes: u64,
    /// The most that was ever in use.
    pub peak_bytes: u64,
    /// Freed and kept for the next allocation; `None` where the allocator keeps nothing.
    pub cached_bytes: Option<u64>,
    /// What the memory in use is kept below; `None` where nothing keeps it.
    pub limit_bytes: Option<u64>,
}

/// A prefill chunk that was made smaller because the device had no memory for all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShrunkChunk {
    /// Tokens it would have had.
    pub wanted: u64,
    /// Tokens it had.
    pub admitted: u64,
}
