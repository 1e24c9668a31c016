//! What is known of the SSD tier, and of trouble with it.

use serde::{Deserialize, Serialize};

/// What the SSD tier holds, and how its writing goes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TierReading {
    /// Blocks of this run's identity.
    pub blocks: u64,
    /// Snapshots of this run's identity.
    pub snapshots: u64,
    /// Bytes of all files in the folder.
    pub bytes: u64,
    /// Of those, bytes of other identities: no use to this run.
    pub foreign_bytes: u64,
    /// The bound, `cache.ssd_bytes`.
    pub limit_bytes: u64,
    /// Files on their way to the disk.
    pub queued_files: u64,
    /// Files written in this run.
    pub written_files: u64,
    /// Files removed in this run to stay within the bound.
    pub evicted_files: u64,
    /// Blocks and snapshots not taken because writing could not keep up, or was suspended.
    pub declined: u64,
    /// Files that failed a check in this run.
    pub damaged: u64,
    /// Writes that failed in this run.
    pub failed_writes: u64,
    /// Why nothing is being written; `None` while writing works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// What went wrong with the SSD tier. Serving goes on without what it concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TierTrouble {
    /// A file failed a check and was moved aside.
    Damaged,
    /// A file could not be written, or read.
    Failed,
    /// The disk did not answer in time.
    TimedOut,
    /// Writing is suspended.
    Suspended,
    /// Writing goes on again.
    Resumed,
}

/// What a request left on the SSD tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierStored {
    /// Blocks taken, to be written.
    pub blocks: u64,
    /// Snapshots taken, to be written.
    pub snapshots: u64,
    /// Blocks and snapshots not taken.
    pub declined: u64,
}
