//! The SSD tier: blocks and snapshots that outlive RAM and the process.
//!
//! Each is a safetensors file of its own that says everything about itself: identity, layers, place in its chain, tokens, who wrote it
//! ([`format`](mod@format)). The in-memory `catalogue` of them decides at once what is held; bytes move on threads of the tier's own
//! (`writer`, `reader`), so nobody waits for a write, and what is still on its way to the disk is read from memory. A file that fails
//! any check is moved aside, reported, and never becomes state.
//!
//! Pages and slots are opaque bytes here. What they mean is bound by the [identity](super::chain::Identity): a file of another identity is
//! never state, only an explanation.
//!
//! The `index_file` saves the next opening the reading of headers, and keeps the order of use; [`inventory`] says what a folder holds
//! without owning it.
//!
//! One process owns a `folder` at a time. All its files together, whoever's they are, stay within a bound of bytes, least recently used
//! first.

mod catalogue;
mod faults;
mod folder;
pub mod format;
mod index_file;
pub mod inventory;
mod outcome;
mod reader;
mod writer;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::chain::{self, BlockHash, Identity};
use crate::event::{RequestId, Route, Stamp};
pub use catalogue::Evicted;
use catalogue::{Catalogue, Entry, Key};
pub use faults::{Region, TierFault};
use folder::Folder;
pub use folder::is_cache_folder;
pub use format::IdentityFacts;
pub use outcome::{ForeignMatch, Lookup, Note, Offer, TierError, TierFacts};
use reader::{Expected, Readers};
pub use reader::{Payload, ReadFailure, Reading, State};
use writer::{Done, Writer};

/// Layers by class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Layers {
    /// Attention layers, whose state is in pages.
    pub attention: u32,
    /// Recurrent layers, whose state is in slots.
    pub recurrent: u32,
}

impl std::fmt::Display for Layers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} attention and {} recurrent layers", self.attention, self.recurrent)
    }
}

/// Which half of a block's state a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// A page: attention layers, all of the block's tokens.
    Block,
    /// A slot: recurrent layers at the block's end.
    Snapshot,
}

impl Part {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Part::Block => "block",
            Part::Snapshot => "snapshot",
        }
    }
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

/// Bytes of a device's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateBytes {
    /// Bytes of a page.
    pub page: u64,
    /// Bytes of a slot; 0 without recurrent layers.
    pub slot: u64,
}

impl StateBytes {
    fn of(self, part: Part) -> u64 {
        match part {
            Part::Block => self.page,
            Part::Snapshot => self.slot,
        }
    }
}

/// A block's name and its place in its chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its name.
    pub hash: BlockHash,
    /// The block before it; none before the first.
    pub parent: Option<BlockHash>,
    /// Blocks before it.
    pub depth: u32,
    /// The name of its tokens and all before them, whatever the identity.
    pub content: BlockHash,
}

/// The places of the whole blocks of `tokens`, in order.
pub fn places(root: BlockHash, tokens: &[u32], block_tokens: usize) -> Vec<Place> {
    let hashes = chain::hashes(root, tokens, block_tokens);
    let contents = chain::hashes(chain::content_root(), tokens, block_tokens);
    let parents = std::iter::once(None).chain(hashes.iter().copied().map(Some));
    let place = |(depth, ((hash, content), parent)): (usize, ((&BlockHash, BlockHash), _))| Place {
        hash: *hash,
        parent,
        depth: depth as u32,
        content,
    };
    hashes.iter().zip(contents).zip(parents).enumerate().map(place).collect()
}

/// Figures of the tier's own working that nobody but tests needs to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// Bytes of state that may wait to be written.
    pub queue_bytes: u64,
    /// After a failed write, how long none is tried.
    pub retry_after: Duration,
    /// When the tier is dropped, how long it waits for what is queued.
    pub closing: Duration,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            queue_bytes: 256 << 20,
            retry_after: Duration::from_secs(30),
            closing: Duration::from_secs(10),
        }
    }
}

/// Something to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Which half of the state.
    pub part: Part,
    /// The block.
    pub place: Place,
    /// The block's tokens, which its file has to have. Not looked at for a snapshot.
    pub tokens: Box<[u32]>,
}

/// Notes that wait to be fetched. Later ones are counted in [`TierFacts`] and not told.
const MOST_NOTES: usize = 16_384;

/// Files written between two savings of the index. One that an index lacks costs the next opening the reading of its header.
const INDEX_AFTER: u64 = 1024;

/// A cache folder, owned.
#[derive(Debug)]
pub struct Tier {
    folder: Arc<Folder>,
    identity: IdentityFacts,
    root: BlockHash,
    layers: Layers,
    state: StateBytes,
    limit_bytes: u64,
    tuning: Tuning,
    catalogue: Catalogue,
    writer: Writer,
    readers: Readers,
    notes: VecDeque<Note>,
    counts: TierFacts,
    /// Files written since the index was.
    unindexed: u64,
}

impl Tier {
    /// Opens the cache folder `dir`, which is created where it does not exist, for state of `identity`. Files over `limit_bytes` are
    /// evicted.
    pub fn open(
        dir: &Path,
        identity: &Identity,
        layers: Layers,
        state: StateBytes,
        limit_bytes: u64,
    ) -> Result<Tier, TierError> {
        Tier::open_tuned(dir, identity, layers, state, limit_bytes, Tuning::default())
    }

    /// The same with other figures of its working.
    pub fn open_tuned(
        dir: &Path,
        identity: &Identity,
        layers: Layers,
        state: StateBytes,
        limit_bytes: u64,
        tuning: Tuning,
    ) -> Result<Tier, TierError> {
        let folder = Arc::new(Folder::open(dir)?);
        folder.remove_leftovers()?;
        let identity = IdentityFacts::of(identity);
        let mut catalogue = Catalogue::new(&identity);
        let scan = folder.scan(index_file::load(&folder.index()))?;
        let writer = Writer::start(Arc::clone(&folder), tuning)?;
        let readers = Readers::start(writer.faults())?;
        let mut notes = VecDeque::new();
        for file in scan.files {
            catalogue.restore(file);
        }
        let mut counts = TierFacts { limit: limit_bytes, ..TierFacts::default() };
        for (bytes, path) in scan.aside {
            catalogue.set_aside(path, bytes);
        }
        for damaged in scan.damaged {
            if !damaged.readable {
                // It may be whole: what cannot be read now stays where it is.
                notes.push_back(Note::Stuck { path: folder.path(damaged.key), error: damaged.what });
                continue;
            }
            counts.damaged += 1;
            let aside = folder.aside(damaged.key.part, &damaged.key.hash, damaged.mtime_ns);
            writer.set_aside(folder.path(damaged.key), aside.clone(), &damaged.what);
            catalogue.set_aside(aside, damaged.bytes);
            let Key { part, hash } = damaged.key;
            notes.push_back(Note::Damaged { part, hash, what: damaged.what });
        }
        let root = identity.root();
        let mut tier = Tier {
            folder,
            identity,
            root,
            layers,
            state,
            limit_bytes,
            tuning,
            catalogue,
            writer,
            readers,
            notes,
            counts,
            unindexed: 0,
        };
        tier.trim_aside();
        tier.make_room(Stamp::default(), None);
        Ok(tier)
    }

    /// The places of the whole blocks of `tokens` in chains of this identity.
    pub fn places(&self, tokens: &[u32]) -> Vec<Place> {
        places(self.root, tokens, self.identity.block_tokens as usize)
    }

    /// What an offer would come to at this moment, so that state nobody takes need not be copied off the device.
    pub fn would_take(&self, part: Part, hash: &BlockHash) -> Offer {
        let key = Key { part, hash: *hash };
        let bytes = self.state.of(part);
        if self.catalogue.get(&key).is_some_and(|entry| self.is_usable(key, entry)) {
            Offer::AlreadyHeld
        } else if self.writer.is_suspended() {
            Offer::Suspended
        } else if bytes > self.limit_bytes {
            Offer::NoRoom
        } else if !self.writer.has_room(bytes) {
            Offer::QueueFull
        } else {
            Offer::Taken
        }
    }

    /// Offers a block's state: `tokens` are the block's own, `state` is the page. Evicts on behalf of the origin's request, at
    /// `now`, what has to make room. Never waits.
    ///
    /// Offer a chain from its first block on and end where one is declined, as no prompt would get to what is behind; then
    /// [`Tier::touch`] it.
    pub fn offer_block(
        &mut self,
        place: &Place,
        tokens: &[u32],
        state: Vec<u8>,
        origin: Origin,
        now: Stamp,
    ) -> Offer {
        self.offer(Part::Block, place, tokens, state, origin, now)
    }

    /// Offers the recurrent state at a block's end: `state` is the slot.
    pub fn offer_snapshot(&mut self, place: &Place, state: Vec<u8>, origin: Origin, now: Stamp) -> Offer {
        self.offer(Part::Snapshot, place, &[], state, origin, now)
    }

    fn offer(
        &mut self,
        part: Part,
        place: &Place,
        tokens: &[u32],
        state: Vec<u8>,
        origin: Origin,
        now: Stamp,
    ) -> Offer {
        debug_assert_eq!(state.len() as u64, self.state.of(part), "the state has its one size");
        self.drain();
        let key = Key { part, hash: place.hash };
        let offer = self.would_take(part, &place.hash);
        if offer != Offer::Taken {
            self.counts.declined += u64::from(offer != Offer::AlreadyHeld);
            return offer;
        }
        // A file of that name which is not what it should be, and which no read has met yet.
        if self.catalogue.get(&key).is_some() {
            self.delete(key);
        }
        let request = origin.request;
        let header = format::Header {
            part,
            place: *place,
            identity: self.identity.clone(),
            layers: self.layers,
            origin,
            state_bytes: state.len() as u64,
        };
        let image = format::Image::new(&header, tokens, state);
        let bytes = image.bytes();
        let serial = self.catalogue.insert_queued(key, header, bytes);
        if !self.make_room(now, Some((request, key))) {
            self.catalogue.remove(&key);
            self.counts.declined += 1;
            return Offer::NoRoom;
        }
        self.writer.write(key, serial, image);
        Offer::Taken
    }

    /// Whether a file is what an own block or snapshot of that name has to be, as far as the catalogue knows.
    fn is_usable(&self, key: Key, entry: &Entry) -> bool {
        self.catalogue.is_own(entry)
            && entry.layers == self.layers
            && entry.state_bytes == self.state.of(key.part)
    }

    /// What is known of a block's state.
    pub fn lookup(&self, part: Part, hash: &BlockHash) -> Lookup<'_> {
        let key = Key { part, hash: *hash };
        match self.catalogue.get(&key) {
            // One of other layers is told by the read that refuses it.
            Some(entry) if self.catalogue.is_own(entry) => Lookup::Held(&entry.origin),
            Some(_) => Lookup::Absent,
            None => self.catalogue.evicted(&key).map_or(Lookup::Absent, Lookup::Evicted),
        }
    }

    /// Marks a chain of blocks, first block first, as just used.
    pub fn touch(&mut self, chain: &[BlockHash]) {
        self.catalogue.touch_chain(chain);
    }

    /// Marks a snapshot as just used.
    pub fn touch_snapshot(&mut self, hash: &BlockHash) {
        self.catalogue.touch(&Key { part: Part::Snapshot, hash: *hash });
    }

    /// Reads what is wanted, in that order; the item for `wanted[i]` is the iterator's `i`-th. All of it together takes no longer than
    /// `within`; what has not come by then has timed out. Files are read ahead, so dropping the iterator early is fine.
    pub fn read(&mut self, wanted: Vec<Wanted>, within: Duration) -> Reading<'_> {
        self.drain();
        let blocks: Vec<_> = wanted.iter().filter(|w| w.part == Part::Block).map(|w| w.place.hash).collect();
        self.catalogue.touch_chain(&blocks);
        for wanted in wanted.iter().filter(|w| w.part == Part::Snapshot) {
            self.touch_snapshot(&wanted.place.hash);
        }
        Reading::new(self, wanted, Instant::now() + within)
    }

    /// What happened since the last call.
    pub fn poll(&mut self) -> Vec<Note> {
        self.drain();
        self.notes.drain(..).collect()
    }

    /// The tier in figures, as of the last call that changed it or polled.
    pub fn facts(&self) -> TierFacts {
        let queue = self.writer.queue();
        let own = self.catalogue.own();
        let foreign = self.catalogue.foreign();
        TierFacts {
            blocks: own.blocks,
            snapshots: own.snapshots,
            bytes: self.catalogue.bytes(),
            queued_files: queue.files,
            queued_bytes: queue.bytes,
            problem: queue.problem,
            foreign_blocks: foreign.blocks,
            foreign_bytes: foreign.bytes,
            ..self.counts.clone()
        }
    }

    /// Waits until all that was taken is durable, or has failed; `false` where that takes longer than `within`.
    pub fn flush(&mut self, within: Duration) -> bool {
        let flushed = self.writer.flush(within);
        self.drain();
        flushed
    }

    /// The longest prefix of `tokens` whose blocks another identity has.
    pub fn foreign_match(&self, tokens: &[u32]) -> Option<ForeignMatch> {
        let (identity, tokens) = self.catalogue.foreign_prefix(tokens)?;
        Some(ForeignMatch { tokens, differs: identity.differences(&self.identity) })
    }

    /// Does damage, for the sake of seeing what comes of it. A file that is not written yet is waited for.
    pub fn inject(&mut self, fault: TierFault) -> Result<(), TierError> {
        if let TierFault::Corrupt { part, hash, .. } | TierFault::Truncate { part, hash } = fault {
            self.flush(self.tuning.closing);
            let key = Key { part, hash };
            self.catalogue.get(&key).ok_or(TierError::NotHeld(part))?;
            return faults::damage(&self.folder.path(key), fault);
        }
        self.writer.faults().set(fault);
        Ok(())
    }

    /// Evicts until the bound holds again. `false` where what is left to evict is only the file it is done for.
    fn make_room(&mut self, now: Stamp, sake: Option<(RequestId, Key)>) -> bool {
        let (mut files, mut bytes) = (0, 0);
        let mut fits = true;
        while self.catalogue.bytes() > self.limit_bytes {
            if self.drop_aside() {
                continue;
            }
            // A block would take its snapshot along.
            let is_sake = |key: &Key| sake.is_some_and(|(_, sake)| sake.hash == key.hash);
            let Some(key) = self.catalogue.oldest().filter(|key| !is_sake(key)) else {
                fits = sake.is_none();
                break;
            };
            for (key, size) in self.catalogue.evict(key, now, sake.map(|(request, _)| request)) {
                self.writer.forget(key);
                self.writer.delete(self.folder.path(key));
                files += 1;
                bytes += size;
            }
        }
        self.counts.evicted_files += files;
        if files > 0 {
            self.note(Note::Evicted { files, bytes });
        }
        fits
    }

    /// Deletes what is held of a block, by hand. `false` where nothing is.
    pub fn forget(&mut self, part: Part, hash: &BlockHash) -> bool {
        let key = Key { part, hash: *hash };
        let held = self.catalogue.get(&key).is_some();
        self.delete(key);
        held
    }

    /// Deletes one file that is not to be held.
    fn delete(&mut self, key: Key) {
        if self.catalogue.remove(&key).is_some() {
            self.writer.forget(key);
            self.writer.delete(self.folder.path(key));
        }
    }

    /// Takes a file that failed a check out of what is held.
    fn set_aside(&mut self, key: Key, what: &str) {
        let Some(entry) = self.catalogue.remove(&key) else { return };
        self.counts.damaged += 1;
        let aside = self.folder.aside(key.part, &key.hash, entry.mtime_ns);
        // What is wrong with it may be its length.
        let bytes = std::fs::metadata(self.folder.path(key)).map_or(entry.bytes, |metadata| metadata.len());
        self.writer.set_aside(self.folder.path(key), aside.clone(), what);
        self.catalogue.set_aside(aside, bytes);
        self.note(Note::Damaged { part: key.part, hash: key.hash, what: what.to_owned() });
        self.trim_aside();
    }

    /// Takes a file that is gone out of what is held.
    fn lose(&mut self, key: Key) {
        if self.writer.pending(&key).is_none() {
            self.catalogue.remove(&key);
        }
    }

    fn trim_aside(&mut self) {
        while self.catalogue.asides() > folder::MOST_ASIDE && self.drop_aside() {}
    }

    /// Deletes the file that was set aside first, and its cause.
    fn drop_aside(&mut self) -> bool {
        let Some(path) = self.catalogue.drop_aside() else { return false };
        self.writer.delete(folder::cause_of(&path));
        self.writer.delete(path);
        true
    }

    fn note(&mut self, note: Note) {
        if self.notes.len() < MOST_NOTES {
            self.notes.push_back(note);
        }
    }

    /// Takes in what the writer has done.
    fn drain(&mut self) {
        for done in self.writer.done() {
            match done {
                Done::Written { key, serial, bytes, mtime_ns } => {
                    self.counts.written_files += 1;
                    self.counts.written_bytes += bytes;
                    self.catalogue.written(&key, serial, mtime_ns);
                    self.unindexed += 1;
                    self.note(Note::Written { part: key.part, hash: key.hash, bytes });
                }
                Done::Failed { key, serial, error } => {
                    self.counts.failed_writes += 1;
                    self.catalogue.failed(&key, serial);
                    self.note(Note::WriteFailed { part: key.part, hash: key.hash, error });
                }
                Done::Suspended { reason } => self.note(Note::Suspended { reason }),
                Done::Resumed => self.note(Note::Resumed),
                Done::Stuck { path, error } => self.note(Note::Stuck { path, error }),
                Done::Aside { path, bytes } => self.catalogue.resize_aside(&path, bytes),
            }
        }
        if self.unindexed >= INDEX_AFTER {
            self.save_index();
        }
    }

    /// Has the index written, as of now.
    fn save_index(&mut self) {
        self.unindexed = 0;
        self.writer.index(index_file::encode(&self.catalogue));
    }

    fn expected(&self, wanted: &Wanted) -> Option<(PathBuf, Expected)> {
        let key = Key { part: wanted.part, hash: wanted.place.hash };
        let entry = self.catalogue.get(&key).filter(|entry| self.catalogue.is_own(entry))?;
        let expected = Expected {
            part: wanted.part,
            place: wanted.place,
            identity: self.identity.clone(),
            layers: self.layers,
            state_bytes: self.state.of(wanted.part),
            file_bytes: entry.bytes,
            tokens: wanted.tokens.clone(),
        };
        Some((self.folder.path(key), expected))
    }
}

impl Drop for Tier {
    fn drop(&mut self) {
        let deadline = Instant::now() + self.tuning.closing;
        if self.flush(self.tuning.closing) {
            self.save_index();
        }
        let flushed = self.writer.close(deadline.saturating_duration_since(Instant::now()));
        // A writer that is still at it has the folder, and with it the lock, until it is done.
        if flushed {
            self.folder.release();
        }
    }
}

#[cfg(test)]
mod tests;
