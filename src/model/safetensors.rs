//! safetensors: one file, or several with an index.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, Range};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::ModelError;
use super::file::{ModelFile, exists, read_small};

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
    /// The place that `info` describes, in a shard with `room` bytes of data; or what is wrong with it.
    fn new(shard: usize, info: TensorInfo, room: u64) -> Result<Place, String> {
        let TensorInfo { dtype, shape, data_offsets: (start, end) } = info;
        let (start, end) = (start as u64, end as u64);
        let bits = shape.iter().try_fold(dtype.bitsize() as u64, |product, n| product.checked_mul(*n as u64));
        let bits = bits.ok_or_else(|| format!("has the shape {shape:?}"))?;
        if start > end || end > room || bits.div_ceil(8) != end - start {
            return Err(format!("of shape {shape:?} lies at bytes {start}..{end} of {room}"));
        }
        Ok(Place { shard, dtype, shape, start, end })
    }

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
    weight_map: Unique<String>,
}

/// The entries of a JSON object, each name once: to let the last of several win would hide that the file is not what it seems.
struct Unique<T>(BTreeMap<String, T>);

/// Where a header has strings that describe the file. No tensor is called so.
const METADATA: &str = "__metadata__";

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Unique<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = Unique<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unique<T>, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == METADATA {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let entry = map.next_value()?;
                    if entries.contains_key(&name) {
                        return Err(A::Error::custom(format!("`{name}` is there twice")));
                    }
                    entries.insert(name, entry);
                }
                Ok(Unique(entries))
            }
        }

        deserializer.deserialize_map(Entries(PhantomData))
    }
}

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const REFETCH: &str = "the file is damaged or truncated; fetch it again";

impl Shards {
    /// Opens `model.safetensors` of `folder`, or the files its index names.
    pub(super) fn open(folder: &Path) -> Result<Shards, ModelError> {
        let mut shards = Shards { folder: folder.to_owned(), files: Vec::new(), tensors: BTreeMap::new() };
        if exists(&folder.join(SINGLE)) {
            shards.add(&folder.join(SINGLE))?;
            return Ok(shards);
        }
        let index = folder.join(INDEX);
        let text = read_small(&index, MAX_INDEX)?.ok_or_else(|| {
            let problem = format!("it has neither {SINGLE} nor {INDEX}");
            ModelError::file(folder, problem, "give a model folder, or a GGUF file")
        })?;
        let Index { weight_map: Unique(map) } = serde_json::from_str(&text)
            .map_err(|e| ModelError::file(&index, format!("{e}"), "fetch the file again"))?;
        let mut by_shard: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (tensor, shard) in &map {
            by_shard.entry(shard).or_default().push(tensor);
        }
        for (shard, tensors) in by_shard {
            // A shard's name comes from outside and must not lead out of the folder.
            if Path::new(shard).file_name().is_none_or(|file| file != shard) {
                let problem = format!("`weight_map` names the file `{shard}`");
                return Err(ModelError::file(&index, problem, "shards must lie in the model's folder"));
            }
            let path = folder.join(shard);
            if !exists(&path) {
                let (first, rest) = (tensors[0], tensors.len() - 1);
                let problem = format!(
                    "the file is missing, and {INDEX} says that tensor `{first}` and {rest} more are in it"
                );
                return Err(ModelError::file(&path, problem, "fetch this file too"));
            }
            shards.add(&path)?;
            if let Some(tensor) = tensors.into_iter().find(|tensor| shards.get(tensor).is_none()) {
                let problem = format!("{INDEX} says that tensor `{tensor}` is in it, but it is not");
                return Err(ModelError::file(&path, problem, "fetch this file and the index again"));
            }
        }
        Ok(shards)
    }

    fn add(&mut self, path: &Path) -> Result<(), ModelError> {
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
        let Unique(entries): Unique<TensorInfo> =
            serde_json::from_slice(&header).map_err(|e| damaged(format!("its header is wrong: {e}")))?;
        let (data, shard) = (8 + len, self.files.len());
        let mut ends: Vec<(u64, u64, String)> = Vec::new();
        for (name, info) in entries {
            let place = Place::new(shard, info, file.len() - data)
                .map_err(|problem| damaged(format!("tensor `{name}` {problem}")))?;
            ends.push((place.start, place.end, name.clone()));
            if let Some(other) = self.tensors.insert(name.clone(), place) {
                let other = self.path_of(other.shard).display();
                let problem = format!("tensor `{name}` is in this file and in {other}");
                return Err(ModelError::file(path, problem, "leave one of the two in the folder"));
            }
        }
        // What is bounded by the file's length is bounded only while no byte belongs to two tensors.
        ends.sort_unstable();
        if let Some(pair) = ends.windows(2).find(|pair| pair[0].1 > pair[1].0) {
            return Err(damaged(format!("tensors `{}` and `{}` overlap", pair[0].2, pair[1].2)));
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
