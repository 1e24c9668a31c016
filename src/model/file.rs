//! A model file, read in bounded pieces: on disk, or part of the program.
//!
//! Files are read, not mapped: a mapped file that shrinks while it is used ends the process by a signal, and what is packed for a
//! device would count twice for as long as the map lives. The page cache makes a read one copy.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::ModelError;
use super::bundled::{self, Entry};

/// An open file and its length.
#[derive(Debug)]
pub(super) struct ModelFile {
    path: PathBuf,
    contents: Contents,
    len: u64,
}

#[derive(Debug)]
enum Contents {
    Disk(File),
    Program(&'static [u8]),
}

impl ModelFile {
    pub(super) fn open(path: &Path) -> Result<ModelFile, ModelError> {
        if let Some(Entry::File(bytes)) = bundled::look_up(path) {
            let (contents, len) = (Contents::Program(bytes), bytes.len() as u64);
            return Ok(ModelFile { path: path.to_owned(), contents, len });
        }
        let failed = |e: std::io::Error| ModelError::unreadable(path, &e);
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(ModelError::file(path, "is not a regular file", "give a model file"));
        }
        Ok(ModelFile { path: path.to_owned(), contents: Contents::Disk(file), len: metadata.len() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// The bytes of `range`, which must lie within the file: the allocation is bounded by the file's length.
    pub(super) fn read(&self, range: Range<u64>) -> Result<Vec<u8>, ModelError> {
        let mut bytes = Vec::new();
        self.read_into(range, &mut bytes)?;
        Ok(bytes)
    }

    /// Appends the bytes of `range` to `out`.
    pub(super) fn read_into(&self, range: Range<u64>, out: &mut Vec<u8>) -> Result<(), ModelError> {
        if range.start > range.end || range.end > self.len {
            let problem = format!("bytes {}..{} lie outside its {} bytes", range.start, range.end, self.len);
            return Err(ModelError::file(&self.path, problem, "the file is truncated; fetch it again"));
        }
        let len = reserve(out, range.end - range.start, &self.path, "the file")?;
        match &self.contents {
            Contents::Program(bytes) => out.extend_from_slice(&bytes[range.start as usize..][..len]),
            Contents::Disk(file) => {
                let start = out.len();
                out.resize(start + len, 0);
                file.read_exact_at(&mut out[start..], range.start)
                    .map_err(|error| ModelError::unreadable(&self.path, &error))?;
            }
        }
        Ok(())
    }
}

/// Makes room in `out` for `bytes` more bytes, those of `what` in the file at `path`; gives their number. A file with holes can claim any
/// size, so that there is no such room is an error like others.
pub(super) fn reserve(out: &mut Vec<u8>, bytes: u64, path: &Path, what: &str) -> Result<usize, ModelError> {
    let len = usize::try_from(bytes).ok().filter(|len| out.try_reserve_exact(*len).is_ok());
    len.ok_or_else(|| {
        let problem = format!("the machine cannot hold {bytes} bytes of {what}");
        ModelError::file(path, problem, "use a smaller model, or more memory")
    })
}

/// Whether there is something at `path`.
pub(super) fn exists(path: &Path) -> bool {
    match bundled::look_up(path) {
        Some(entry) => !matches!(entry, Entry::Absent),
        None => path.exists(),
    }
}

/// Whether `path` is a folder.
pub(super) fn is_folder(path: &Path) -> bool {
    match bundled::look_up(path) {
        Some(entry) => matches!(entry, Entry::Folder),
        None => path.is_dir(),
    }
}

/// Bytes of a model file, or of the files directly in a model folder.
pub fn size_of_files(path: &Path) -> Option<u64> {
    if let Some(bytes) = bundled::total_bytes(path) {
        return Some(bytes);
    }
    let metadata = path.metadata().ok()?;
    if !metadata.is_dir() {
        return Some(metadata.len());
    }
    let entries = path.read_dir().ok()?;
    Some(entries.filter_map(|e| e.ok()?.metadata().ok()).filter(|m| m.is_file()).map(|m| m.len()).sum())
}

/// The text of a small side file such as `config.json`; `None` when it does not exist.
pub(super) fn read_small(path: &Path, limit: u64) -> Result<Option<String>, ModelError> {
    if !exists(path) {
        return Ok(None);
    }
    let file = ModelFile::open(path)?;
    if file.len() > limit {
        let problem = format!("it has {} bytes, more than {limit}", file.len());
        return Err(ModelError::file(path, problem, "use the file that belongs to the model"));
    }
    let bytes = file.read(0..file.len())?;
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|_| ModelError::file(path, "it is not UTF-8", "use the file that belongs to the model"))
}
