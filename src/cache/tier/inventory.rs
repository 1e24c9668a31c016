//! What a cache folder holds, read from headers alone and without owning it.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;
use serde::Serialize;

use super::super::chain::BlockHash;
use super::folder::{self, Listed, Scanned};
use super::format::{self, CHECKSUM_BYTES, IdentityFacts, LENGTH_BYTES};
use super::{Layers, Part, TierError};

/// Everything in a cache folder.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inventory {
    /// The folder.
    pub folder: PathBuf,
    /// Whether a process has it open.
    pub in_use: bool,
    /// That process's number, where it is known.
    pub process: Option<u32>,
    /// By identity, the one with the most bytes first.
    pub identities: Vec<IdentityInventory>,
    /// Files of blocks and snapshots, damaged ones too.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files with something wrong, by name.
    pub damage: Vec<Damage>,
    /// Whether whole files were read, or only their headers.
    pub verified: bool,
    /// Files whose writing was cut off, or that are being written.
    pub unfinished: FileCount,
    /// Files that failed a check in some run, kept for a look.
    pub set_aside: FileCount,
}

/// How many, how large.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct FileCount {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A file with something wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// `block` or `snapshot`.
    pub part: &'static str,
    /// Its name: the block's hash.
    pub hash: String,
    /// What is wrong.
    pub what: String,
}

/// State of one identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IdentityInventory {
    /// Digest of weights and configuration.
    pub model: String,
    /// Digest of tokenizer and template.
    pub text: String,
    /// Quantisation.
    pub precision: String,
    /// Device kernel family.
    pub family: String,
    /// Position scheme.
    pub positions: String,
    /// Tokens a block holds.
    pub block_tokens: u64,
    /// The root of its chains.
    pub root: String,
    /// Attention layers.
    pub attention_layers: u32,
    /// Recurrent layers.
    pub recurrent_layers: u32,
    /// Blocks, and bytes of their files.
    pub blocks: FileCount,
    /// Snapshots, and bytes of their files.
    pub snapshots: FileCount,
    /// Tokens of all blocks.
    pub tokens: u64,
    /// Blocks without a snapshot; `None` where no layer is recurrent and none is needed.
    pub placeholders: Option<u64>,
    /// Last blocks that lead back to a first one, each the end of a chain.
    pub chains: u64,
    /// Tokens of the longest chain.
    pub longest_chain_tokens: u64,
    /// Blocks whose parent is not there.
    pub orphans: u64,
    /// These blocks and all behind them: no prompt gets to them.
    pub unreachable_blocks: u64,
    /// Snapshots whose block is not there.
    pub orphan_snapshots: u64,
}

/// How far an inventory is: files looked at, of how many.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// Takes the inventory of a folder; with `verify`, reads all of every file and checks its checksum and its block's name too.
/// Files that come and go meanwhile are counted or not.
pub fn inventory(folder: &Path, verify: bool, progress: Progress<'_>) -> Result<Inventory, TierError> {
    let owner = folder::owner_of(folder)?;
    let listed = folder::list(folder)?;
    let total = listed.len() as u64;
    let looked = AtomicU64::new(0);
    let examine = |listed: &Listed| {
        let found = folder::read_header(listed);
        let found = match found {
            Ok(file) if verify => verify_file(listed, file),
            found => found,
        };
        progress(looked.fetch_add(1, Ordering::Relaxed) + 1, total);
        found
    };
    let found: Vec<_> = listed.par_iter().map(examine).collect();
    let (mut files, mut bytes) = (0, 0);
    let mut damage = Vec::new();
    let mut groups: HashMap<(IdentityFacts, Layers), Group> = HashMap::new();
    for found in found {
        match found {
            Ok(file) => {
                (files, bytes) = (files + 1, bytes + file.bytes);
                let group = (file.header.identity.clone(), file.header.layers);
                groups.entry(group).or_default().add(&file);
            }
            // A file that was deleted between being listed and being read was not damaged.
            Err(damaged) if damaged.bytes == 0 && damaged.mtime_ns == 0 && !exists(folder, &damaged) => {}
            Err(damaged) => {
                (files, bytes) = (files + 1, bytes + damaged.bytes);
                let hash = format::hex(damaged.key.hash.bytes());
                damage.push(Damage { part: damaged.key.part.word(), hash, what: damaged.what });
            }
        }
    }
    let mut identities: Vec<_> =
        groups.into_iter().map(|((identity, layers), group)| group.sum(&identity, layers)).collect();
    identities.sort_by(|a, b| {
        let bytes = |i: &IdentityInventory| i.blocks.bytes + i.snapshots.bytes;
        bytes(b).cmp(&bytes(a)).then_with(|| a.root.cmp(&b.root))
    });
    damage.sort_by(|a, b| (a.part, &a.hash).cmp(&(b.part, &b.hash)));
    let count = |name, of: fn(&Path) -> bool| {
        let (files, bytes) = folder::count(folder, name, of);
        FileCount { files, bytes }
    };
    Ok(Inventory {
        folder: folder.to_owned(),
        in_use: owner.is_some(),
        process: owner.flatten(),
        identities,
        files,
        bytes,
        damage,
        verified: verify,
        unfinished: count(folder::TEMPORARY, |_| true),
        set_aside: count(folder::DAMAGED, |path| {
            path.extension().is_some_and(|extension| extension == folder::EXTENSION)
        }),
    })
}

fn exists(root: &Path, damaged: &folder::Damaged) -> bool {
    folder::path_in(root, damaged.key).symlink_metadata().is_ok()
}

/// Reads all of a file in pieces, whatever its size.
fn verify_file(listed: &Listed, file: Scanned) -> Result<Scanned, folder::Damaged> {
    match check_content(&listed.path, &file) {
        Ok(()) => Ok(file),
        Err(what) => {
            let Scanned { key, bytes, mtime_ns, .. } = file;
            Err(folder::Damaged { key, bytes, mtime_ns, readable: true, what })
        }
    }
}

fn check_content(path: &Path, file: &Scanned) -> Result<(), String> {
    let io = |error: std::io::Error| format!("cannot be read: {error}");
    let header = &file.header;
    let (mut input, _) = folder::open_regular(path).map_err(io)?;
    let mut whole = blake3::Hasher::new();
    let parent = header.place.parent.unwrap_or_else(|| header.identity.root());
    let mut name = blake3::Hasher::new_keyed(parent.bytes());
    let mut buffer = vec![0; 1 << 20];
    let mut take = |length: u64, sink: &mut dyn FnMut(&[u8])| {
        let mut left = length;
        while left > 0 {
            let piece = &mut buffer[..left.min(1 << 20) as usize];
            input.read_exact(piece).map_err(io)?;
            sink(piece);
            left -= piece.len() as u64;
        }
        Ok::<(), String>(())
    };
    let tail = header.token_bytes() + header.state_bytes + CHECKSUM_BYTES;
    debug_assert!(file.bytes >= tail + LENGTH_BYTES, "as the header was accepted");
    take(file.bytes - tail, &mut |bytes| {
        whole.update(bytes);
    })?;
    take(header.token_bytes(), &mut |bytes| {
        whole.update(bytes);
        name.update(bytes);
    })?;
    take(header.state_bytes, &mut |bytes| {
        whole.update(bytes);
    })?;
    let mut matches = false;
    take(CHECKSUM_BYTES, &mut |bytes| matches = *bytes == whole.finalize().as_bytes()[..])?;
    if !matches {
        return Err(format::FormatError::Checksum.to_string());
    }
    if header.part == Part::Block && name.finalize().as_bytes() != header.place.hash.bytes() {
        return Err("its name is not that of its tokens".to_owned());
    }
    Ok(())
}

/// Files of one identity.
#[derive(Default)]
struct Group {
    /// Blocks by name: the one before.
    blocks: HashMap<BlockHash, Option<BlockHash>>,
    snapshots: Vec<BlockHash>,
    block_bytes: u64,
    snapshot_bytes: u64,
}

impl Group {
    fn add(&mut self, file: &Scanned) {
        match file.key.part {
            Part::Block => {
                self.blocks.insert(file.key.hash, file.header.place.parent);
                self.block_bytes += file.bytes;
            }
            Part::Snapshot => {
                self.snapshots.push(file.key.hash);
                self.snapshot_bytes += file.bytes;
            }
        }
    }

    fn sum(&self, identity: &IdentityFacts, layers: Layers) -> IdentityInventory {
        let mut children: HashMap<BlockHash, Vec<BlockHash>> = HashMap::new();
        let mut first = Vec::new();
        let mut orphans = 0;
        for (hash, parent) in &self.blocks {
            match parent {
                None => first.push((*hash, 1)),
                Some(parent) => {
                    orphans += u64::from(!self.blocks.contains_key(parent));
                    children.entry(*parent).or_default().push(*hash);
                }
            }
        }
        let (mut reached, mut chains, mut longest) = (0, 0, 0);
        while let Some((hash, length)) = first.pop() {
            reached += 1;
            // Taken out, so that a circle of forged parents is walked once.
            let next = children.remove(&hash).unwrap_or_default();
            if next.is_empty() {
                chains += 1;
                longest = longest.max(length);
            }
            first.extend(next.into_iter().map(|child| (child, length + 1)));
        }
        let with_block = self.snapshots.iter().filter(|hash| self.blocks.contains_key(hash)).count() as u64;
        let (blocks, snapshots) = (self.blocks.len() as u64, self.snapshots.len() as u64);
        let tokens = |blocks: u64| blocks.saturating_mul(identity.block_tokens);
        IdentityInventory {
            model: format::hex(&identity.model),
            text: format::hex(&identity.text),
            precision: identity.precision.clone(),
            family: identity.family.clone(),
            positions: identity.positions.clone(),
            block_tokens: identity.block_tokens,
            root: identity.root().to_string(),
            attention_layers: layers.attention,
            recurrent_layers: layers.recurrent,
            blocks: FileCount { files: blocks, bytes: self.block_bytes },
            snapshots: FileCount { files: snapshots, bytes: self.snapshot_bytes },
            tokens: tokens(blocks),
            placeholders: (layers.recurrent > 0).then(|| blocks - with_block),
            chains,
            longest_chain_tokens: tokens(longest),
            orphans,
            unreachable_blocks: blocks - reached,
            orphan_snapshots: snapshots - with_block,
        }
    }
}
