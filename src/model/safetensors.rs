//! safetensors: one file, or several with an index.

use std::collections::{BTreeMap, HashMap};
use std::ops::{Bound, Range};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::Metadata;
use serde::Deserialize;

use super::ModelError;
use super::file::{ModelFile, read_small};

/// Bytes of a file's header at most.
const MAX_HEADER: u64 = 100_000_000;
/// Bytes of an index at most.
const MAX_INDEX: u64 = 64 << 20;

/// The tensors of a folder.
#[derive(Debug)]
pub(super) struct Shards {
    folder: PathBuf,
    files: Vec<Shard>,
    /// Name to file and place in it.
    tensors: BTreeMap<String, Place>,
}

#[derive(Debug)]
struct Shard {
    file: ModelFile,
    /// Where tensor data begin.
    data: u64,
}

/// Where a tensor is and what it holds.
#[derive(Debug, Clone)]
pub(super) struct Place {
    shard: usize,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    start: u64,
    end: u64,
}

impl Place {
    /// Bytes in the file.
    pub(super) fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Where it begins, from the start of its shard's data.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// The number of its shard.
    pub(super) fn shard(&self) -> usize {
        self.shard
    }

    /// Whether it holds words of packed weights.
    pub(super) fn is_packed(&self) -> bool {
        self.dtype == Dtype::U32
    }

    /// Numbers it holds.
    pub(super) fn elements(&self) -> u64 {
        self.shape.iter().map(|n| *n as u64).product()
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

impl Shards {
    /// Opens `model.safetensors` of `folder`, or the files its index names.
    pub(super) fn open(folder: &Path) -> Result<Shards, ModelError> {
        let single = folder.join("model.safetensors");
        let index = folder.join("model.safetensors.index.json");
        let mut names: Vec<String> = vec!["model.safetensors".into()];
        if !single.exists() {
            let text = read_small(&index, MAX_INDEX)?.ok_or_else(|| {
                ModelError::file(
                    folder,
                    "it has neither model.safetensors nor model.safetensors.index.json",
                    "give a model folder, or a GGUF file",
                )
            })?;
            let parsed: Index = serde_json::from_str(&text)
                .map_err(|e| ModelError::file(&index, format!("{e}"), "fetch the file again"))?;
            names = parsed.weight_map.into_values().collect();
            names.sort_unstable();
            names.dedup();
        }
        let mut shards = Shards { folder: folder.to_owned(), files: Vec::new(), tensors: BTreeMap::new() };
        for name in names {
            // A shard's name comes from outside and must not lead out of the folder.
            if Path::new(&name).file_name().is_none_or(|file| file != name.as_str()) {
                let problem = format!("`weight_map` names the file `{name}`");
                return Err(ModelError::file(&index, problem, "shards must lie in the model's folder"));
            }
            shards.add(&folder.join(name))?;
        }
        Ok(shards)
    }

    fn add(&mut self, path: &Path) -> Result<(), ModelError> {
        const REFETCH: &str = "the file is damaged or truncated; fetch it again";
        let damaged = |problem: String| ModelError::file(path, problem, REFETCH);
        let file = ModelFile::open(path)?;
        if file.len() < 8 {
            return Err(damaged(format!("it has {} bytes", file.len())));
        }
        let mut len = [0; 8];
        len.copy_from_slice(&file.read(0..8)?);
        let len = u64::from_le_bytes(len);
        if len > MAX_HEADER || len > file.len() - 8 {
            return Err(damaged(format!(
                "its header says it has {len} bytes, but the file has {}",
                file.len()
            )));
        }
        let header = file.read(8..8 + len)?;
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|e| damaged(format!("its header is wrong: {e}")))?;
        let data = 8 + len;
        let room = file.len() - data;
        for (name, info) in metadata.tensors() {
            let (start, end) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
            let bits = info
                .shape
                .iter()
                .try_fold(info.dtype.bitsize() as u64, |product, n| product.checked_mul(*n as u64))
                .ok_or_else(|| damaged(format!("tensor `{name}` has the shape {:?}", info.shape)))?;
            if start > end || end > room || bits.div_ceil(8) != end - start {
                return Err(damaged(format!(
                    "tensor `{name}` of shape {:?} lies at bytes {start}..{end} of {room}",
                    info.shape
                )));
            }
            let shard = self.files.len();
            let place = Place { shard, dtype: info.dtype, shape: info.shape.clone(), start, end };
            if self.tensors.insert(name.clone(), place).is_some() {
                return Err(damaged(format!("tensor `{name}` is in two files")));
            }
        }
        self.files.push(Shard { file, data });
        Ok(())
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn get(&self, name: &str) -> Option<&Place> {
        self.tensors.get(name)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Place)> {
        self.tensors.iter().map(|(name, place)| (name.as_str(), place))
    }

    /// Whether the name of a tensor begins with `prefix`.
    pub(super) fn has_under(&self, prefix: &str) -> bool {
        let from = self.tensors.range::<str, _>((Bound::Included(prefix), Bound::Unbounded)).next();
        from.is_some_and(|(name, _)| name.starts_with(prefix))
    }

    /// The file a tensor is in.
    pub(super) fn file_of(&self, place: &Place) -> &Path {
        self.path_of(place.shard)
    }

    /// The file with the number `shard`.
    pub(super) fn path_of(&self, shard: usize) -> &Path {
        self.files[shard].file.path()
    }

    /// Appends the bytes `range` of the data of `shard` to `out`.
    pub(super) fn read_into(
        &self,
        shard: usize,
        range: Range<u64>,
        out: &mut Vec<u8>,
    ) -> Result<(), ModelError> {
        let Shard { file, data } = &self.files[shard];
        file.read_into(data + range.start..data + range.end, out)
    }
}
