//! A cache folder: where things are, who owns it, what is in it.
//!
//! ```text
//! lock                              its format, and the owner's process number while there is one
//! index                             the catalogue, as of some moment
//! blocks/ab/<64 hex>.safetensors    blocks, by the first two digits of their names
//! snapshots/ab/<64 hex>.safetensors
//! tmp/                              files being written
//! damaged/                          files that failed a check, with the cause beside them
//! ```

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, UNIX_EPOCH};

use rayon::prelude::*;

use super::catalogue::Key;
use super::format::{self, FormatError, Header};
use super::{Part, TierError};
use crate::cache::chain::BlockHash;

/// First line of the lock file: what makes a folder a cache folder.
const MARKER: &str = "escarp cache 1";
const LOCK: &str = "lock";
const INDEX: &str = "index";
pub(super) const TEMPORARY: &str = "tmp";
pub(super) const DAMAGED: &str = "damaged";
pub(super) const EXTENSION: &str = "safetensors";

/// Damaged files that are kept for a look; older ones are deleted.
pub(super) const MOST_ASIDE: usize = 32;

/// Bytes read of a file at first. Most headers end before.
const FIRST_BYTES: usize = 2048;

/// A cache folder that this process owns.
#[derive(Debug)]
pub(super) struct Folder {
    root: PathBuf,
    lock: Mutex<Option<File>>,
}

/// A file that was in the folder.
#[derive(Debug, Clone)]
pub(super) struct Scanned {
    pub(super) key: Key,
    pub(super) header: Header,
    pub(super) bytes: u64,
    pub(super) mtime_ns: u64,
}

/// A file whose header is not that of a file of its name.
#[derive(Debug, Clone)]
pub(super) struct Damaged {
    pub(super) key: Key,
    pub(super) bytes: u64,
    pub(super) mtime_ns: u64,
    /// Whether the system gave its bytes.
    pub(super) readable: bool,
    pub(super) what: String,
}

/// What is in a folder.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Least recently used first, as far as that is known.
    pub(super) files: Vec<Scanned>,
    pub(super) damaged: Vec<Damaged>,
    /// Bytes and path of each file set aside.
    pub(super) aside: Vec<(u64, PathBuf)>,
}

impl Part {
    fn folder(self) -> &'static str {
        match self {
            Part::Block => "blocks",
            Part::Snapshot => "snapshots",
        }
    }
}

impl Folder {
    /// Takes possession of `root`, which is created where it does not exist.
    pub(super) fn open(root: &Path) -> Result<Folder, TierError> {
        let failed = |doing, path: &Path| {
            let path = path.to_owned();
            move |source| TierError::Io { doing, path, source }
        };
        create_private_folder(root).map_err(failed("create the cache folder", root))?;
        let path = root.join(LOCK);
        // A file called `lock` is nothing that only a cache folder has: one that says nothing must stand among names of ours.
        let says_nothing = fs::metadata(&path).map_or(true, |lock| lock.len() == 0);
        if says_nothing && holds_others(root, path.exists()).map_err(failed("list the cache folder", root))? {
            return Err(TierError::NotACache { folder: root.to_owned() });
        }
        let mut file = private(OpenOptions::new().read(true).write(true).create(true).truncate(false))
            .open(&path)
            .map_err(failed("open the lock file", &path))?;
        take_lock(&file, root, &path)?;
        let lines = first_bytes(&mut file).map_err(failed("read the lock file", &path))?;
        let found = lines.lines().next().unwrap_or_default();
        if !found.is_empty() && found != MARKER {
            let found = found.chars().take(40).collect();
            return Err(TierError::Version { folder: root.to_owned(), found, expected: MARKER });
        }
        let marker = format!("{MARKER}\nprocess {}\n", std::process::id());
        overwrite(&mut file, &marker).map_err(failed("write the lock file", &path))?;
        let parts = [Part::Block.folder(), Part::Snapshot.folder(), TEMPORARY, DAMAGED];
        for folder in parts.map(|name| root.join(name)) {
            create_private_folder(&folder).map_err(failed("create a folder", &folder))?;
        }
        Ok(Folder { root: root.to_owned(), lock: Mutex::new(Some(file)) })
    }

    /// Gives possession up.
    pub(super) fn release(&self) {
        let Ok(mut lock) = self.lock.lock() else { return };
        if let Some(mut file) = lock.take() {
            // Only what the next owner's error message could have said is at stake.
            let _ = overwrite(&mut file, &format!("{MARKER}\n"));
            // Closing is not enough: a child process that is just being started has the file too until it runs.
            let _ = file.unlock();
        }
    }

    /// Where a file is.
    pub(super) fn path(&self, key: Key) -> PathBuf {
        path_in(&self.root, key)
    }

    /// Where a file is while it is written.
    pub(super) fn temporary(&self, serial: u64) -> PathBuf {
        self.root.join(TEMPORARY).join(format!("{serial}.{EXTENSION}"))
    }

    /// Where the index is.
    pub(super) fn index(&self) -> PathBuf {
        self.root.join(INDEX)
    }

    /// Where the index is while it is written.
    pub(super) fn temporary_index(&self) -> PathBuf {
        self.root.join(TEMPORARY).join(INDEX)
    }

    /// Where a damaged file goes: its name, its part, and when it was written, so that a later one of its name gets another.
    pub(super) fn aside(&self, part: Part, hash: &BlockHash, mtime_ns: u64) -> PathBuf {
        let name = format!("{}.{}.{mtime_ns}.{EXTENSION}", format::hex(hash.bytes()), part.word());
        self.root.join(DAMAGED).join(name)
    }

    /// Removes files whose writing was cut off.
    pub(super) fn remove_leftovers(&self) -> Result<(), TierError> {
        let folder = self.root.join(TEMPORARY);
        let failed = |doing, path: &Path| {
            let path = path.to_owned();
            move |source| TierError::Io { doing, path, source }
        };
        for entry in fs::read_dir(&folder).map_err(failed("list a folder", &folder))? {
            let path = entry.map_err(failed("list a folder", &folder))?.path();
            fs::remove_file(&path).map_err(failed("remove an unfinished file", &path))?;
        }
        Ok(())
    }

    /// Lists every file. What `indexed` says of one that has not changed since is believed; of others the header is read.
    pub(super) fn scan(&self, indexed: Vec<Scanned>) -> Result<Scan, TierError> {
        let by_key: HashMap<Key, usize> =
            indexed.iter().enumerate().map(|(number, file)| (file.key, number)).collect();
        let examine = |listed: Listed| {
            let known = by_key.get(&listed.key).map(|number| (*number, &indexed[*number]));
            match known.filter(|(_, known)| is_unchanged(&listed.path, known)) {
                Some((number, known)) => Ok((number, known.clone())),
                // Not in the index, so written after it was.
                None => read_header(&listed).map(|file| (usize::MAX, file)),
            }
        };
        let mut scan = Scan::default();
        let mut files = Vec::new();
        for found in list(&self.root)?.into_par_iter().map(examine).collect::<Vec<_>>() {
            match found {
                Ok(file) => files.push(file),
                Err(damaged) => scan.damaged.push(damaged),
            }
        }
        files.sort_by_key(|(number, file)| (*number, file.mtime_ns, file.key));
        scan.files = files.into_iter().map(|(_, file)| file).collect();
        let aside = self.root.join(DAMAGED);
        let failed = |source| TierError::Io { doing: "list a folder", path: aside.clone(), source };
        for entry in fs::read_dir(&aside).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == EXTENSION) {
                scan.aside.push((entry.metadata().map_err(failed)?.len(), path));
            }
        }
        Ok(scan)
    }
}

/// Whether a folder has entries that a cache folder whose first opening was cut off has not: any at all, or where there is a lock those of other
/// names.
fn holds_others(root: &Path, locked: bool) -> io::Result<bool> {
    let ours = [LOCK, INDEX, Part::Block.folder(), Part::Snapshot.folder(), TEMPORARY, DAMAGED];
    for entry in fs::read_dir(root)? {
        let name = entry?.file_name();
        if !locked || !ours.iter().any(|ours| name == *ours) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Where a file is in the cache folder `root`.
pub(super) fn path_in(root: &Path, key: Key) -> PathBuf {
    let name = format::hex(key.hash.bytes());
    let mut path = root.join(key.part.folder());
    path.push(&name[..2]);
    path.push(name);
    path.set_extension(EXTENSION);
    path
}

/// A file of the tier by name, unopened.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) key: Key,
    pub(super) path: PathBuf,
}

/// Every file in the folders of blocks and snapshots that is named as one.
pub(super) fn list(root: &Path) -> Result<Vec<Listed>, TierError> {
    let mut shards = Vec::new();
    for part in [Part::Block, Part::Snapshot] {
        let folder = root.join(part.folder());
        for name in names(&folder)? {
            shards.push((part, folder.join(name)));
        }
    }
    let listed = shards.into_par_iter().map(|(part, shard)| {
        let files = names(&shard)?.into_iter().filter_map(|name| {
            let stem = name.strip_suffix(".safetensors")?;
            let hash = BlockHash::from_bytes(format::unhex(stem)?);
            // A file in another shard than its own would not be found again.
            let here = shard.file_name().is_some_and(|shard| *shard == stem[..2]);
            here.then(|| Listed { key: Key { part, hash }, path: shard.join(name) })
        });
        Ok(files.collect::<Vec<_>>())
    });
    Ok(listed.collect::<Result<Vec<_>, TierError>>()?.into_iter().flatten().collect())
}

/// The names in a folder; none where it is no folder.
fn names(folder: &Path) -> Result<Vec<String>, TierError> {
    let failed = |source| TierError::Io { doing: "list a folder", path: folder.to_owned(), source };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(failed(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    Ok(names)
}

fn is_unchanged(path: &Path, known: &Scanned) -> bool {
    let metadata = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file);
    metadata.is_some_and(|metadata| (metadata.len(), modified(&metadata)) == (known.bytes, known.mtime_ns))
}

/// Opens a file, reads its first bytes, and checks them against its name and length.
pub(super) fn read_header(listed: &Listed) -> Result<Scanned, Damaged> {
    let key = listed.key;
    let mut facts = (0, 0);
    let header = start_of(&listed.path, &mut facts);
    let (bytes, mtime_ns) = facts;
    let damaged = |Unfit { readable, what }| Damaged { key, bytes, mtime_ns, readable, what };
    let header = header.map_err(damaged)?;
    if (header.part, header.place.hash) != (key.part, key.hash) {
        return Err(damaged(Unfit { readable: true, what: "a file of another name".to_owned() }));
    }
    Ok(Scanned { key, header, bytes, mtime_ns })
}

/// Why a file tells no header.
struct Unfit {
    /// Whether the system gave its bytes.
    readable: bool,
    what: String,
}

/// The header; length and time of change go to `facts` as soon as they are known.
fn start_of(path: &Path, facts: &mut (u64, u64)) -> Result<Header, Unfit> {
    // A folder or a link in a file's place is damage, whatever the system says of it.
    let is_other = || fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file());
    let io = |error: io::Error| Unfit { readable: is_other(), what: format!("cannot be read: {error}") };
    let malformed = |error: FormatError| Unfit { readable: true, what: error.to_string() };
    let (mut file, metadata) = open_regular(path).map_err(io)?;
    *facts = (metadata.len(), modified(&metadata));
    let mut buffer = [0; FIRST_BYTES];
    let mut filled = read_up_to(&mut file, &mut buffer).map_err(io)?;
    let end = format::header_end(&buffer[..filled], facts.0).map_err(malformed)? as usize;
    let decode = |start: &[u8]| Header::decode(start, facts.0).map_err(malformed);
    if end <= filled {
        return decode(&buffer[..filled]);
    }
    // Bounded: `header_end` refuses long headers.
    let mut long = buffer.to_vec();
    long.resize(end, 0);
    filled += read_up_to(&mut file, &mut long[FIRST_BYTES..]).map_err(io)?;
    decode(&long[..filled])
}

fn read_up_to(file: &mut File, mut buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while !buffer.is_empty() {
        match file.read(buffer) {
            Ok(0) => break,
            Ok(read) => {
                filled += read;
                buffer = &mut buffer[read..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Where the cause is written of which a file was set aside.
pub(super) fn cause_of(aside: &Path) -> PathBuf {
    aside.with_extension("txt")
}

/// Opens a file to read, if it is a file: no link is followed, no pipe waited for.
pub(super) fn open_regular(path: &Path) -> io::Result<(File, fs::Metadata)> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() { Ok((file, metadata)) } else { Err(io::Error::other("not a file")) }
}

/// When a file last changed, nanoseconds since the Unix epoch.
pub(super) fn modified(metadata: &fs::Metadata) -> u64 {
    let since = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// Files are nobody else's to read.
pub(super) fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

/// Creates a folder for the owner alone, where there is none.
pub(super) fn create_private_folder(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Takes the lock. `inspect` holds it for the blink of an eye, so a refusal is not believed at once.
fn take_lock(file: &File, root: &Path, path: &Path) -> Result<(), TierError> {
    for wait_ms in [2, 10, 50, 0] {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(wait_ms)),
            Err(TryLockError::Error(source)) => {
                return Err(TierError::Io { doing: "lock the lock file", path: path.to_owned(), source });
            }
        }
    }
    let pid = File::open(path).and_then(|mut file| first_bytes(&mut file)).ok();
    let pid = pid.and_then(|lines| owner(&lines));
    Err(TierError::Locked { folder: root.to_owned(), pid })
}

/// Whether a folder says of itself that it is a cache folder, of whichever format.
pub fn is_cache_folder(root: &Path) -> bool {
    let lines = open_regular(&root.join(LOCK)).and_then(|(mut file, _)| first_bytes(&mut file));
    lines.is_ok_and(|lines| lines.starts_with("escarp cache "))
}

/// Who has a folder: nobody, or somebody with a process number where it is known. Fails where this is no cache folder, or one of
/// another format.
pub(super) fn owner_of(root: &Path) -> Result<Option<Option<u32>>, TierError> {
    let path = root.join(LOCK);
    let failed = |source| TierError::Io { doing: "open the lock file", path: path.clone(), source };
    let (mut file, _) = open_regular(&path).map_err(failed)?;
    let lines = first_bytes(&mut file).map_err(failed)?;
    let found = lines.lines().next().unwrap_or_default();
    if found != MARKER {
        let found = found.chars().take(40).collect();
        return Err(TierError::Version { folder: root.to_owned(), found, expected: MARKER });
    }
    match file.try_lock_shared() {
        Ok(()) => file.unlock().map(|()| None).map_err(failed),
        Err(TryLockError::WouldBlock) => Ok(Some(owner(&lines))),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Files in one of a cache folder's folders that has no shards, and their bytes.
pub(super) fn count(root: &Path, folder: &str, of: impl Fn(&Path) -> bool) -> (u64, u64) {
    let entries = fs::read_dir(root.join(folder)).into_iter().flatten().flatten();
    let sizes =
        entries.filter(|entry| of(&entry.path())).filter_map(|entry| Some(entry.metadata().ok()?.len()));
    sizes.fold((0, 0), |(files, bytes), size| (files + 1, bytes + size))
}

fn owner(lines: &str) -> Option<u32> {
    lines.lines().nth(1)?.strip_prefix("process ")?.parse().ok()
}

fn first_bytes(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(256).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Puts `text` in the place of what a lock file says. Written first and cut after, so that whoever is killed in between does not leave a file that
/// says nothing: a folder with one and with files in it would be refused as another program's.
fn overwrite(file: &mut File, text: &str) -> io::Result<()> {
    file.seek(SeekFrom::Start(0))?;
    file.write_all(text.as_bytes())?;
    file.set_len(text.len() as u64)
}
