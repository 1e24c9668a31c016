//! What the tier says: errors, answers, notes, figures.

use std::io;
use std::path::PathBuf;

use super::super::chain::BlockHash;
use super::{Evicted, Origin, Part};

/// Why a cache folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TierError {
    /// Another process has it, or another cache of this one.
    #[error(
        "{}: in use by {}; end that, or give another folder",
        .folder.display(), .pid.map_or("another process".to_owned(), |pid| format!("process {pid}"))
    )]
    Locked {
        /// The folder.
        folder: PathBuf,
        /// The process that has it, where it left its number.
        pid: Option<u32>,
    },
    /// It holds something else.
    #[error("{}: not a cache folder, and not empty either; give an empty folder or one that does not exist", .folder.display())]
    NotACache {
        /// The folder.
        folder: PathBuf,
    },
    /// It was written by another version of this program.
    #[error("{}: a cache folder of format {found:?}, this is {expected:?}; remove it or give another folder", .folder.display())]
    Version {
        /// The folder.
        folder: PathBuf,
        /// The format it has.
        found: String,
        /// The format this program reads and writes.
        expected: &'static str,
    },
    /// The operating system refused something.
    #[error("{}: cannot {doing}: {source}; free or permit it, or give another folder", .path.display())]
    Io {
        /// What could not be done.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A thread could not be started.
    #[error("cannot start a thread for the cache folder: {0}")]
    Thread(io::Error),
    /// A fault was to be done to a file that is not there.
    #[error("no such {} in the cache folder", .0.word())]
    NotHeld(Part),
}

/// What became of an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// It is held from now on, and will be written.
    Taken,
    /// It was held before.
    AlreadyHeld,
    /// More is waiting to be written than may; it is not held.
    QueueFull,
    /// Writing has failed and is not tried again yet; it is not held.
    Suspended,
    /// The bound of bytes has no room for it beside what it builds on; it is not held.
    NoRoom,
}

/// What the tier knows of a block or snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup<'a> {
    /// It is held, on disk or on the way there.
    Held(&'a Origin),
    /// It was held, and has been evicted since this process opened the folder.
    Evicted(Evicted),
    /// It is not held, and was not as far as anybody remembers.
    Absent,
}

/// Something that happened on the tier's threads, or because of the bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A file is on disk, durably.
    Written {
        /// Which half.
        part: Part,
        /// Its block.
        hash: BlockHash,
        /// Bytes of the file.
        bytes: u64,
    },
    /// A file could not be written, and what it would have held is not held.
    WriteFailed {
        /// Which half.
        part: Part,
        /// Its block.
        hash: BlockHash,
        /// Why.
        error: String,
    },
    /// A file failed a check. It was moved aside and is not held any more.
    Damaged {
        /// Which half.
        part: Part,
        /// Its block.
        hash: BlockHash,
        /// What is wrong with it.
        what: String,
    },
    /// Files were deleted to stay within the bound.
    Evicted {
        /// How many.
        files: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// Nothing is written for a while.
    Suspended {
        /// Why.
        reason: String,
    },
    /// Writing works again.
    Resumed,
    /// A file could not be deleted or moved; it stays, and its bytes are no longer counted.
    Stuck {
        /// The file.
        path: PathBuf,
        /// Why.
        error: String,
    },
}

/// The tier in figures.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TierFacts {
    /// Blocks held, of this identity.
    pub blocks: u64,
    /// Snapshots held, of this identity.
    pub snapshots: u64,
    /// Bytes of all files that count against the limit, those on their way to the disk too.
    pub bytes: u64,
    /// The bound on them.
    pub limit: u64,
    /// Files on their way to the disk.
    pub queued_files: u64,
    /// State waiting in memory, bytes.
    pub queued_bytes: u64,
    /// Files written since the folder was opened.
    pub written_files: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// Files deleted to stay within the bound since the folder was opened.
    pub evicted_files: u64,
    /// Offers declined for a full queue, a suspension or want of room.
    pub declined: u64,
    /// Files that failed a check.
    pub damaged: u64,
    /// Files that could not be written.
    pub failed_writes: u64,
    /// Why nothing is being written, if so.
    pub problem: Option<String>,
    /// Blocks of other identities.
    pub foreign_blocks: u64,
    /// Bytes of all files of other identities.
    pub foreign_bytes: u64,
}

/// A prefix whose state another identity has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignMatch {
    /// Tokens of the prefix.
    pub tokens: usize,
    /// In which way that identity differs: `precision f32, here int8`.
    pub differs: String,
}
