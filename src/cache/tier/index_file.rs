//! The index: the catalogue as of some moment, so that the next opening need not read every header, and knows the order of use.
//!
//! ```text
//! magic | identities | runs | files, least recently used first | BLAKE3 of all that
//! ```
//!
//! Numbers are little-endian, strings have their length before them. It is a hint: a file that is not as the index says is read itself, a
//! damaged index is none, and what a file holds is only ever believed of the file.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

use super::super::chain::BlockHash;
use super::catalogue::{Catalogue, Key};
use super::folder::{self, Scanned};
use super::format::{CHECKSUM_BYTES, Header, IdentityFacts};
use super::{Layers, Origin, Part, Place};
use crate::event::{RequestId, Route};

const MAGIC: &[u8] = b"escarp cache index 1\n";

/// A longer index is none: room for five million files.
const MOST_BYTES: u64 = 1 << 30;

const PARTS: [Part; 2] = [Part::Block, Part::Snapshot];
const ROUTES: [Route; 4] = [Route::CacheHit, Route::Dense, Route::Sparse, Route::Recovery];

/// The index of `catalogue`, without its checksum.
pub(super) fn encode(catalogue: &Catalogue) -> Vec<u8> {
    let files = catalogue.by_use();
    let mut runs: HashMap<&str, u32> = HashMap::new();
    let mut run_list = Vec::new();
    for (_, entry) in &files {
        runs.entry(&entry.origin.run).or_insert_with(|| {
            run_list.push(&*entry.origin.run);
            run_list.len() as u32 - 1
        });
    }
    let mut out = MAGIC.to_vec();
    put_number(&mut out, catalogue.identities().len() as u64);
    for identity in catalogue.identities() {
        out.extend(identity.model);
        out.extend(identity.text);
        for word in [&identity.precision, &identity.family, &identity.positions] {
            put_string(&mut out, word);
        }
        put_number(&mut out, identity.block_tokens);
    }
    put_number(&mut out, run_list.len() as u64);
    for run in run_list {
        put_string(&mut out, run);
    }
    put_number(&mut out, files.len() as u64);
    for (key, entry) in files {
        out.push(PARTS.iter().position(|part| *part == key.part).unwrap_or_default() as u8);
        out.push(ROUTES.iter().position(|route| *route == entry.origin.route).unwrap_or_default() as u8);
        out.push(entry.parent.is_some().into());
        let parent = entry.parent.unwrap_or(BlockHash::from_bytes([0; 32]));
        for hash in [&key.hash, &parent, &entry.content] {
            out.extend(hash.bytes());
        }
        let run = runs.get(&*entry.origin.run).copied().unwrap_or_default();
        for number in [entry.depth, entry.identity, entry.layers.attention, entry.layers.recurrent, run] {
            out.extend(number.to_le_bytes());
        }
        let origin = &entry.origin;
        for number in
            [origin.request.0, origin.written_unix_ms, entry.state_bytes, entry.bytes, entry.mtime_ns]
        {
            put_number(&mut out, number);
        }
    }
    out
}

fn put_number(out: &mut Vec<u8>, number: u64) {
    out.extend(number.to_le_bytes());
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    put_number(out, text.len() as u64);
    out.extend(text.as_bytes());
}

/// The files of an index, least recently used first; none where it is missing or damaged.
pub(super) fn load(path: &Path) -> Vec<Scanned> {
    let mut bytes = Vec::new();
    let read =
        folder::open_regular(path).and_then(|(file, _)| file.take(MOST_BYTES + 1).read_to_end(&mut bytes));
    match read {
        Ok(length) if length as u64 <= MOST_BYTES => decode(&bytes).unwrap_or_default(),
        _ => Vec::new(),
    }
}

fn decode(bytes: &[u8]) -> Option<Vec<Scanned>> {
    let (body, checksum) = bytes.split_at(bytes.len().checked_sub(CHECKSUM_BYTES as usize)?);
    if blake3::hash(body).as_bytes()[..] != *checksum {
        return None;
    }
    let mut rest = Rest(body.strip_prefix(MAGIC)?);
    let identities = rest.list(|rest| {
        Some(IdentityFacts {
            model: rest.array()?,
            text: rest.array()?,
            precision: rest.string()?,
            family: rest.string()?,
            positions: rest.string()?,
            block_tokens: rest.number()?,
        })
    })?;
    let runs = rest.list(Rest::string)?;
    let files = rest.list(|rest| rest.file(&identities, &runs))?;
    rest.0.is_empty().then_some(files)
}

/// What has not been decoded yet.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*array)
    }

    fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn small(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn string(&mut self) -> Option<String> {
        let length = usize::try_from(self.number()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    fn hash(&mut self) -> Option<BlockHash> {
        self.array().map(BlockHash::from_bytes)
    }

    /// As many items as a number before them says. Every item takes bytes, so a wrong number ends the list and allocates nothing.
    fn list<T>(&mut self, item: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let length = self.number()?;
        (0..length).map(|_| item(self)).collect()
    }

    fn file(&mut self, identities: &[IdentityFacts], runs: &[String]) -> Option<Scanned> {
        let [part, route, has_parent] = self.array()?;
        let part = *PARTS.get(usize::from(part))?;
        let route = *ROUTES.get(usize::from(route))?;
        let (hash, parent, content) = (self.hash()?, self.hash()?, self.hash()?);
        let depth = self.small()?;
        let identity = identities.get(self.small()? as usize)?.clone();
        let layers = Layers { attention: self.small()?, recurrent: self.small()? };
        let run = runs.get(self.small()? as usize)?.clone();
        let origin =
            Origin { run, request: RequestId(self.number()?), route, written_unix_ms: self.number()? };
        let state_bytes = self.number()?;
        let (bytes, mtime_ns) = (self.number()?, self.number()?);
        let parent = (has_parent != 0).then_some(parent);
        let place = Place { hash, parent, depth, content };
        let header = Header { part, place, identity, layers, origin, state_bytes };
        Some(Scanned { key: Key { part, hash }, header, bytes, mtime_ns })
    }
}
