//! Faults to inject: what disks do, on demand.

use std::fs::OpenOptions;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::format::{self, CHECKSUM_BYTES, Header, LENGTH_BYTES};
use super::{Part, TierError};
use crate::cache::chain::BlockHash;

/// A place in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Region {
    /// The header's length.
    Length,
    /// The header.
    Header,
    /// The tokens; in a snapshot, which has none, the state.
    Tokens,
    /// The state.
    State,
    /// The checksum.
    Checksum,
}

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TierFault {
    /// A bit of a file flips.
    Corrupt {
        /// Which half of the state.
        part: Part,
        /// Its block.
        hash: BlockHash,
        /// Where in the file.
        region: Region,
    },
    /// A file loses its second half.
    Truncate {
        /// Which half of the state.
        part: Part,
        /// Its block.
        hash: BlockHash,
    },
    /// Reads and writes stand still for so long, from now on.
    Stall(Duration),
    /// The disk is full from now on, or no longer is.
    Fill(bool),
}

/// Faults in force.
#[derive(Debug, Default)]
pub(super) struct Faults {
    state: Mutex<State>,
    over: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stalled_until: Option<Instant>,
    full: bool,
}

impl Faults {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a fault in force. Damage to a file is not this one's to do.
    pub(super) fn set(&self, fault: TierFault) {
        match fault {
            TierFault::Stall(time) => {
                self.lock().stalled_until = Some(Instant::now() + time);
                self.over.notify_all();
            }
            TierFault::Fill(full) => self.lock().full = full,
            TierFault::Corrupt { .. } | TierFault::Truncate { .. } => {}
        }
    }

    pub(super) fn end_stall(&self) {
        self.lock().stalled_until = None;
        self.over.notify_all();
    }

    /// Returns when the disk does not stand still.
    pub(super) fn wait_out_stall(&self) {
        let mut state = self.lock();
        while let Some(left) = state.stalled_until.and_then(|end| end.checked_duration_since(Instant::now()))
        {
            if left.is_zero() {
                break;
            }
            state = self.over.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn check_space(&self) -> io::Result<()> {
        if self.lock().full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

/// Damages a file.
pub(super) fn damage(path: &Path, fault: TierFault) -> Result<(), TierError> {
    let failed = |source| TierError::Io { doing: "damage a file", path: path.to_owned(), source };
    let mut file = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    match fault {
        TierFault::Truncate { .. } => file.set_len(length / 2),
        TierFault::Corrupt { region, .. } => {
            let mut start = Vec::new();
            let most = LENGTH_BYTES + format::MOST_HEADER_BYTES;
            (&mut file).take(most).read_to_end(&mut start).map_err(failed)?;
            let at = middle(&start, length, region).map_err(|error| failed(io::Error::other(error)))?;
            flip(&mut file, at)
        }
        TierFault::Stall(_) | TierFault::Fill(_) => Ok(()),
    }
    .map_err(failed)
}

/// A byte in the middle of a region.
fn middle(start: &[u8], length: u64, region: Region) -> Result<u64, format::FormatError> {
    let data = format::header_end(start, length)?;
    let state = data + Header::decode(start, length)?.token_bytes();
    let checksum = length - CHECKSUM_BYTES;
    let (from, to) = match region {
        Region::Length => (0, LENGTH_BYTES),
        Region::Header => (LENGTH_BYTES, data),
        Region::Tokens if state > data => (data, state),
        Region::Tokens | Region::State => (state, checksum),
        Region::Checksum => (checksum, length),
    };
    Ok(from.midpoint(to))
}

fn flip(file: &mut std::fs::File, at: u64) -> io::Result<()> {
    let mut byte = [0];
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(&mut byte)?;
    file.seek(SeekFrom::Start(at))?;
    file.write_all(&[byte[0] ^ 1])
}
