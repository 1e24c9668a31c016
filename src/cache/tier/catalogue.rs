//! What the folder holds, in memory: by name, by use, by content.
//!
//! Least recently used first out. Only what nothing builds on is in the order of use: snapshots, and blocks without a held child. So a
//! chain goes from its end, and a block takes its snapshot along. Files of other identities are in the same order.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::{Path, PathBuf};

use super::super::chain::{self, BlockHash};
use super::folder::Scanned;
use super::format::{Header, IdentityFacts};
use super::{Layers, Origin, Part};
use crate::event::{RequestId, Stamp};

/// Names a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    pub(super) part: Part,
    pub(super) hash: BlockHash,
}

/// A file that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) parent: Option<BlockHash>,
    pub(super) depth: u32,
    pub(super) content: BlockHash,
    /// Its place in the catalogue's list of identities.
    pub(super) identity: u32,
    pub(super) layers: Layers,
    pub(super) origin: Origin,
    pub(super) state_bytes: u64,
    /// Bytes of the file.
    pub(super) bytes: u64,
    /// When the file last changed, nanoseconds since the Unix epoch; 0 while it is not written.
    pub(super) mtime_ns: u64,
    used: u64,
    /// Tells it from an earlier file of its name.
    serial: u64,
}

/// The eviction of a block or snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evicted {
    /// When, by the clock of whoever made the offer that needed room.
    pub at: Stamp,
    /// The request of that offer; `None` where the bound was lower when the folder was opened.
    pub for_request: Option<RequestId>,
}

/// Evictions that are remembered. Older ones read as files that never were.
const REMEMBERED_EVICTIONS: usize = 16_384;

/// Files of one or of all other identities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Holding {
    pub(super) blocks: u64,
    pub(super) snapshots: u64,
    pub(super) bytes: u64,
}

/// The tier's own identity is the first in the list.
const OWN: u32 = 0;

#[derive(Debug)]
pub(super) struct Catalogue {
    entries: HashMap<Key, Entry>,
    /// What may be evicted, by tick of last use.
    order: BTreeMap<u64, Key>,
    /// Held blocks behind each block, that one held or not.
    children: HashMap<BlockHash, u32>,
    identities: Vec<IdentityFacts>,
    own: Holding,
    foreign: Holding,
    /// Blocks of other identities, by identity and content, with how many files say so.
    foreign_content: HashMap<(u32, BlockHash), u32>,
    aside: VecDeque<(PathBuf, u64)>,
    aside_bytes: u64,
    evicted: HashMap<Key, Evicted>,
    eviction_order: VecDeque<Key>,
    tick: u64,
}

impl Catalogue {
    pub(super) fn new(own: &IdentityFacts) -> Catalogue {
        Catalogue {
            entries: HashMap::new(),
            order: BTreeMap::new(),
            children: HashMap::new(),
            identities: vec![own.clone()],
            own: Holding::default(),
            foreign: Holding::default(),
            foreign_content: HashMap::new(),
            aside: VecDeque::new(),
            aside_bytes: 0,
            evicted: HashMap::new(),
            eviction_order: VecDeque::new(),
            tick: 0,
        }
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Entry> {
        self.entries.get(key)
    }

    pub(super) fn is_own(&self, entry: &Entry) -> bool {
        entry.identity == OWN
    }

    /// Bytes of all files that count, those set aside too.
    pub(super) fn bytes(&self) -> u64 {
        self.own.bytes + self.foreign.bytes + self.aside_bytes
    }

    pub(super) fn own(&self) -> Holding {
        self.own
    }

    pub(super) fn foreign(&self) -> Holding {
        self.foreign
    }

    pub(super) fn evicted(&self, key: &Key) -> Option<Evicted> {
        self.evicted.get(key).copied()
    }

    /// Every written file, least recently used first.
    pub(super) fn by_use(&self) -> Vec<(&Key, &Entry)> {
        let mut files: Vec<_> = self.entries.iter().filter(|(_, entry)| entry.mtime_ns > 0).collect();
        files.sort_unstable_by_key(|(_, entry)| entry.used);
        files
    }

    /// The identities that entries give by number.
    pub(super) fn identities(&self) -> &[IdentityFacts] {
        &self.identities
    }

    /// Whether all that is derived from the entries is as they say.
    #[cfg(test)]
    pub(super) fn order_is_sound(&self) -> Result<(), String> {
        let (mut own, mut foreign) = (Holding::default(), Holding::default());
        for (key, entry) in &self.entries {
            let holding = if self.is_own(entry) { &mut own } else { &mut foreign };
            holding.bytes += entry.bytes;
            match key.part {
                Part::Block => holding.blocks += 1,
                Part::Snapshot => holding.snapshots += 1,
            }
            let behind =
                |other: &&Key| other.part == Part::Block && self.entries[other].parent == Some(key.hash);
            let leaf = key.part == Part::Snapshot || !self.entries.keys().any(|other| behind(&other));
            if (self.order.get(&entry.used) == Some(key)) != leaf {
                return Err(format!("{key:?} is a leaf: {leaf}"));
            }
        }
        let leaves = self.order.values().filter(|key| self.entries.contains_key(key)).count();
        let sound = own == self.own && foreign == self.foreign && leaves == self.order.len();
        if sound { Ok(()) } else { Err(format!("{own:?} {foreign:?} {self:?}")) }
    }

    /// Takes a file that was in the folder, as more recently used than all before.
    pub(super) fn restore(&mut self, file: Scanned) {
        let Scanned { key, header, bytes, mtime_ns } = file;
        self.insert(key, header, bytes, mtime_ns);
    }

    /// Takes a file that is going to be written. Gives its serial.
    pub(super) fn insert_queued(&mut self, key: Key, header: Header, bytes: u64) -> u64 {
        self.insert(key, header, bytes, 0)
    }

    fn insert(&mut self, key: Key, header: Header, bytes: u64, mtime_ns: u64) -> u64 {
        self.remove(&key);
        self.tick += 1;
        let serial = self.tick;
        let identity = self.identity_number(header.identity);
        let entry = Entry {
            parent: header.place.parent,
            depth: header.place.depth,
            content: header.place.content,
            identity,
            layers: header.layers,
            origin: header.origin,
            state_bytes: header.state_bytes,
            bytes,
            mtime_ns,
            used: serial,
            serial,
        };
        self.count(key.part, &entry, true);
        self.evicted.remove(&key);
        if key.part == Part::Block {
            if identity != OWN {
                *self.foreign_content.entry((identity, entry.content)).or_default() += 1;
            }
            if let Some(parent) = entry.parent {
                *self.children.entry(parent).or_default() += 1;
                if let Some(parent) = self.entries.get(&Key { part: Part::Block, hash: parent }) {
                    self.order.remove(&parent.used);
                }
            }
        }
        self.entries.insert(key, entry);
        if self.is_leaf(&key) {
            self.order.insert(serial, key);
        }
        serial
    }

    fn identity_number(&mut self, identity: IdentityFacts) -> u32 {
        let known = self.identities.iter().position(|known| *known == identity);
        let number = known.unwrap_or_else(|| {
            self.identities.push(identity);
            self.identities.len() - 1
        });
        number as u32
    }

    fn count(&mut self, part: Part, entry: &Entry, more: bool) {
        let holding = if entry.identity == OWN { &mut self.own } else { &mut self.foreign };
        let files = match part {
            Part::Block => &mut holding.blocks,
            Part::Snapshot => &mut holding.snapshots,
        };
        if more {
            *files += 1;
            holding.bytes += entry.bytes;
        } else {
            *files -= 1;
            holding.bytes -= entry.bytes;
        }
    }

    /// Whether nothing that is held builds on it.
    fn is_leaf(&self, key: &Key) -> bool {
        key.part == Part::Snapshot || !self.children.contains_key(&key.hash)
    }

    /// The writer has written a file.
    pub(super) fn written(&mut self, key: &Key, serial: u64, mtime_ns: u64) {
        if let Some(entry) = self.entries.get_mut(key).filter(|entry| entry.serial == serial) {
            entry.mtime_ns = mtime_ns;
        }
    }

    /// The writer could not write a file.
    pub(super) fn failed(&mut self, key: &Key, serial: u64) {
        if self.entries.get(key).is_some_and(|entry| entry.serial == serial) {
            self.remove(key);
        }
    }

    /// Marks a chain of blocks, first block first, as just used.
    pub(super) fn touch_chain(&mut self, chain: &[BlockHash]) {
        for hash in chain.iter().rev() {
            self.touch(&Key { part: Part::Block, hash: *hash });
        }
    }

    pub(super) fn touch(&mut self, key: &Key) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        self.tick += 1;
        let before = std::mem::replace(&mut entry.used, self.tick);
        if self.order.remove(&before).is_some() {
            self.order.insert(self.tick, *key);
        }
    }

    /// What to evict next.
    pub(super) fn oldest(&self) -> Option<Key> {
        self.order.first_key_value().map(|(_, key)| *key)
    }

    /// Removes a file, and a block's snapshot with it, and remembers that. Gives what was removed, with bytes.
    pub(super) fn evict(&mut self, key: Key, at: Stamp, for_request: Option<RequestId>) -> Vec<(Key, u64)> {
        let snapshot = Key { part: Part::Snapshot, hash: key.hash };
        let mut gone = Vec::new();
        for key in [Some(key), Some(snapshot).filter(|other| *other != key)].into_iter().flatten() {
            if let Some(entry) = self.remove(&key) {
                gone.push((key, entry.bytes));
                if entry.identity == OWN {
                    self.remember(key, Evicted { at, for_request });
                }
            }
        }
        gone
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        self.order.remove(&entry.used);
        self.count(key.part, &entry, false);
        if key.part == Part::Snapshot {
            return Some(entry);
        }
        if entry.identity != OWN {
            decrement(&mut self.foreign_content, (entry.identity, entry.content));
        }
        if let Some(parent) = entry.parent
            && decrement(&mut self.children, parent)
        {
            let key = Key { part: Part::Block, hash: parent };
            if let Some(parent) = self.entries.get(&key) {
                self.order.insert(parent.used, key);
            }
        }
        Some(entry)
    }

    fn remember(&mut self, key: Key, evicted: Evicted) {
        if self.eviction_order.len() == REMEMBERED_EVICTIONS
            && let Some(oldest) = self.eviction_order.pop_front()
        {
            self.evicted.remove(&oldest);
        }
        self.eviction_order.push_back(key);
        self.evicted.insert(key, evicted);
    }

    /// Counts a file in the folder of damaged ones.
    pub(super) fn set_aside(&mut self, path: PathBuf, bytes: u64) {
        self.aside_bytes += bytes;
        self.aside.push_back((path, bytes));
    }

    /// Files set aside.
    pub(super) fn asides(&self) -> usize {
        self.aside.len()
    }

    /// Forgets the file that was set aside first.
    pub(super) fn drop_aside(&mut self) -> Option<PathBuf> {
        let (path, bytes) = self.aside.pop_front()?;
        self.aside_bytes -= bytes;
        Some(path)
    }

    /// Corrects the size of a file that was set aside; without one it was not, and is forgotten.
    pub(super) fn resize_aside(&mut self, path: &Path, bytes: Option<u64>) {
        let Some(at) = self.aside.iter().position(|(aside, _)| aside == path) else { return };
        let before = match bytes {
            Some(bytes) => std::mem::replace(&mut self.aside[at].1, bytes),
            None => self.aside.remove(at).map_or(0, |(_, bytes)| bytes),
        };
        self.aside_bytes = self.aside_bytes - before + bytes.unwrap_or(0);
    }

    /// The longest prefix of `tokens`, in tokens, that blocks of one other identity hold, and that identity.
    pub(super) fn foreign_prefix(&self, tokens: &[u32]) -> Option<(&IdentityFacts, usize)> {
        let others = self.identities.iter().enumerate().skip(OWN as usize + 1);
        let mut names: HashMap<usize, Vec<BlockHash>> = HashMap::new();
        let lengths = others.filter_map(|(number, identity)| {
            let block = usize::try_from(identity.block_tokens).ok().filter(|block| *block > 0)?;
            let names =
                names.entry(block).or_insert_with(|| chain::hashes(chain::content_root(), tokens, block));
            let held = |name: &&BlockHash| self.foreign_content.contains_key(&(number as u32, **name));
            Some((identity, names.iter().take_while(held).count() * block))
        });
        lengths.filter(|(_, tokens)| *tokens > 0).max_by_key(|(_, tokens)| *tokens)
    }
}

/// Takes one off a count, and the count away at zero. Whether it did the latter.
fn decrement<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, u32>, key: K) -> bool {
    let Some(count) = counts.get_mut(&key) else { return false };
    *count -= 1;
    let gone = *count == 0;
    if gone {
        counts.remove(&key);
    }
    gone
}
