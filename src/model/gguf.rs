//! GGUF: metadata and tensors in one file.
//!
//! The header comes from outside, so nothing in it is believed: every count is checked against the bytes that are left before
//! anything is allocated for it, strings and nesting are bounded, and tensors must lie inside the file.

mod shape;
mod tensors;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;

use crate::device::weights::{Float, RowOrder};

use super::ModelError;
use super::file::ModelFile;
use super::shape::ModelShape;
use super::tensor::{Checkpoint, Fate, Part, Site, Tensor, TensorData, TensorListing, TensorRole};
use tensors::{TensorInfo, kind_name, packed_bits};

/// Bytes of metadata and tensor descriptions at most. A vocabulary of 256k tokens with its merges takes about 10 MiB.
const MAX_HEADER: u64 = 512 << 20;
/// Bytes of a key or a tensor's name at most, as the format says.
const MAX_NAME: u64 = 65_535;
/// Bytes of a string value at most.
const MAX_STRING: u64 = 16 << 20;
/// Dimensions of a tensor at most, as the format says.
const MAX_DIMS: u32 = 4;

/// An open GGUF file.
#[derive(Debug)]
pub struct Gguf {
    file: ModelFile,
    header: Vec<u8>,
    values: HashMap<String, Value>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    /// Where tensor data begin.
    data: u64,
}

/// A metadata value; strings and arrays stay in the header's bytes.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(Range<usize>),
    Array { element: u32, count: usize, bytes: Range<usize> },
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Value::Unsigned(_) => "an unsigned integer",
            Value::Signed(_) => "an integer",
            Value::Float(_) => "a float",
            Value::Bool(_) => "a boolean",
            Value::Text(_) => "a string",
            Value::Array { .. } => "an array",
        }
    }
}

/// What [`Gguf`] tensors may be encoded as.
const SUPPORTED: &str = "F32, F16, BF16, Q4_0, Q4_1 and Q8_0";

const REFETCH: &str = "the file is damaged or truncated; fetch it again";

/// What is wrong with a header, before the file's name is put to it.
#[derive(Debug)]
struct Fault {
    problem: String,
    remedy: &'static str,
}

impl Fault {
    fn damaged(problem: impl Into<String>) -> Fault {
        Fault { problem: problem.into(), remedy: REFETCH }
    }
}

/// The header's bytes, fetched from the file as parsing gets to them.
struct Header<'a> {
    file: &'a ModelFile,
    bytes: Vec<u8>,
    at: usize,
    /// Set when reading itself failed.
    failed: Option<ModelError>,
}

impl Header<'_> {
    /// Bytes the file still has behind the cursor.
    fn left(&self) -> u64 {
        self.file.len().min(MAX_HEADER).saturating_sub(self.at as u64)
    }

    /// Moves over `len` bytes and gives where they are.
    fn take(&mut self, len: u64, what: &str) -> Result<Range<usize>, Fault> {
        if len > self.left() {
            return Err(Fault::damaged(format!("{what} needs {len} bytes, but {} are left", self.left())));
        }
        let end = self.at + len as usize;
        if end > self.bytes.len() {
            const CHUNK: u64 = 1 << 20;
            let have = self.bytes.len() as u64;
            let want = (end as u64).max(have + CHUNK.max(have)).min(self.file.len()).min(MAX_HEADER);
            match self.file.read(have..want) {
                Ok(more) => self.bytes.extend_from_slice(&more),
                Err(error) => {
                    self.failed = Some(error);
                    return Err(Fault::damaged(what));
                }
            }
        }
        let range = self.at..end;
        self.at = end;
        Ok(range)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Fault> {
        let range = self.take(N as u64, what)?;
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.bytes[range]);
        Ok(bytes)
    }

    fn u32(&mut self, what: &str) -> Result<u32, Fault> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64, Fault> {
        self.array(what).map(u64::from_le_bytes)
    }

    fn string(&mut self, limit: u64, what: &str) -> Result<Range<usize>, Fault> {
        let len = self.u64(what)?;
        if len > limit {
            return Err(Fault::damaged(format!("{what} has {len} bytes, more than {limit}")));
        }
        self.take(len, what)
    }

    fn name(&mut self, what: &str) -> Result<String, Fault> {
        let range = self.string(MAX_NAME, what)?;
        match std::str::from_utf8(&self.bytes[range]) {
            Ok(name) => Ok(name.to_owned()),
            Err(_) => Err(Fault::damaged(format!("{what} is not UTF-8"))),
        }
    }

    fn value(&mut self, kind: u32, key: &str) -> Result<Value, Fault> {
        Ok(match kind {
            0 => Value::Unsigned(u8::from_le_bytes(self.array(key)?).into()),
            1 => Value::Signed(i8::from_le_bytes(self.array(key)?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.array(key)?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.array(key)?).into()),
            4 => Value::Unsigned(self.u32(key)?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.array(key)?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array(key)?).into()),
            7 => Value::Bool(self.array::<1>(key)? != [0]),
            8 => Value::Text(self.string(MAX_STRING, key)?),
            9 => self.array_value(key)?,
            10 => Value::Unsigned(self.u64(key)?),
            11 => Value::Signed(i64::from_le_bytes(self.array(key)?)),
            12 => Value::Float(f64::from_le_bytes(self.array(key)?)),
            _ => return Err(Fault::damaged(format!("`{key}` has unknown type {kind}"))),
        })
    }

    fn array_value(&mut self, key: &str) -> Result<Value, Fault> {
        let element = self.u32(key)?;
        let count = self.u64(key)?;
        let bytes = match scalar_bytes(element) {
            Some(size) => {
                let len = count.checked_mul(size).filter(|len| *len <= self.left()).ok_or_else(|| {
                    Fault::damaged(format!(
                        "`{key}` says it has {count} elements, but {} bytes are left",
                        self.left()
                    ))
                })?;
                self.take(len, key)?
            }
            None if element == 8 => {
                // A string takes at least the eight bytes of its length.
                if count > self.left() / 8 {
                    let problem =
                        format!("`{key}` says it has {count} strings, but {} bytes are left", self.left());
                    return Err(Fault::damaged(problem));
                }
                let start = self.at;
                for _ in 0..count {
                    self.string(MAX_STRING, key)?;
                }
                start..self.at
            }
            None if element == 9 => {
                let remedy = "convert the model again with current tools";
                return Err(Fault { problem: format!("`{key}` is an array of arrays"), remedy });
            }
            None => return Err(Fault::damaged(format!("`{key}` is an array of unknown type {element}"))),
        };
        Ok(Value::Array { element, count: count as usize, bytes })
    }

    fn tensor(&mut self, index: u64) -> Result<TensorInfo, Fault> {
        let name = self.name(&format!("the name of tensor {index}"))?;
        let what = format!("tensor `{name}`");
        let dims = self.u32(&what)?;
        if dims == 0 || dims > MAX_DIMS {
            return Err(Fault::damaged(format!("{what} has {dims} dimensions")));
        }
        let dims: Vec<u64> = (0..dims).map(|_| self.u64(&what)).collect::<Result<_, _>>()?;
        let kind = self.u32(&what)?;
        let offset = self.u64(&what)?;
        Ok(TensorInfo { name, dims, kind, offset })
    }
}

fn scalar_bytes(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

impl Gguf {
    /// Reads the header of the file at `path`.
    pub fn open(path: &Path) -> Result<Gguf, ModelError> {
        let file = ModelFile::open(path)?;
        let mut header = Header { file: &file, bytes: Vec::new(), at: 0, failed: None };
        let parsed = parse(&mut header);
        let Header { bytes, failed, .. } = header;
        match (parsed, failed) {
            (Ok(parsed), _) => {
                let Parsed { values, tensors, by_name, data } = parsed;
                Ok(Gguf { file, header: bytes, values, tensors, by_name, data })
            }
            (Err(_), Some(error)) => Err(error),
            (Err(fault), None) => Err(ModelError::file(path, fault.problem, fault.remedy)),
        }
    }

    /// Whether the metadata have `key`.
    pub fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// Keys that start with `prefix`, sorted.
    pub fn keys_with(&self, prefix: &str) -> Vec<&str> {
        let mut keys: Vec<&str> =
            self.values.keys().map(String::as_str).filter(|key| key.starts_with(prefix)).collect();
        keys.sort_unstable();
        keys
    }

    /// An integer that is not negative.
    pub fn uint(&self, key: &str) -> Result<Option<u64>, ModelError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Unsigned(n)) => Ok(Some(*n)),
            Some(Value::Signed(n)) if *n >= 0 => Ok(Some(n.unsigned_abs())),
            Some(other) => Err(self.wrong_kind(key, other, "an integer that is not negative")),
        }
    }

    /// A float or an integer.
    pub fn number(&self, key: &str) -> Result<Option<f64>, ModelError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Float(x)) => Ok(Some(*x)),
            Some(Value::Unsigned(n)) => Ok(Some(*n as f64)),
            Some(Value::Signed(n)) => Ok(Some(*n as f64)),
            Some(other) => Err(self.wrong_kind(key, other, "a number")),
        }
    }

    /// A boolean.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, ModelError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.wrong_kind(key, other, "a boolean")),
        }
    }

    /// A string.
    pub fn text(&self, key: &str) -> Result<Option<&str>, ModelError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Text(range)) => match std::str::from_utf8(&self.header[range.clone()]) {
                Ok(text) => Ok(Some(text)),
                Err(_) => Err(ModelError::file(self.file.path(), format!("`{key}` is not UTF-8"), REFETCH)),
            },
            Some(other) => Err(self.wrong_kind(key, other, "a string")),
        }
    }

    /// An array of strings, as bytes.
    pub fn strings(&self, key: &str) -> Result<Option<Strings<'_>>, ModelError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Array { element: 8, count, bytes }) => {
                Ok(Some(Strings { bytes: &self.header[bytes.clone()], left: *count }))
            }
            Some(other) => Err(self.wrong_kind(key, other, "an array of strings")),
        }
    }

    /// An array of 32-bit integers.
    pub fn ints(&self, key: &str) -> Result<Option<Vec<i32>>, ModelError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Array { element: 4 | 5, bytes, .. }) => {
                let words = self.header[bytes.clone()].chunks_exact(4);
                Ok(Some(words.map(|w| i32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect()))
            }
            Some(other) => Err(self.wrong_kind(key, other, "an array of 32-bit integers")),
        }
    }

    fn wrong_kind(&self, key: &str, found: &Value, wanted: &str) -> ModelError {
        let problem = format!("`{key}` is {}, not {wanted}", found.kind());
        ModelError::file(self.file.path(), problem, "convert the model again with current tools")
    }

    fn read(&self, info: &TensorInfo) -> Result<Tensor, ModelError> {
        let path = self.file.path();
        let unsupported = |problem: String| {
            ModelError::file(path, problem, format!("use a file whose tensors are {SUPPORTED}"))
        };
        let kind = info.kind;
        let bytes = info.bytes().filter(|_| matches!(kind, 0 | 1 | 2 | 3 | 8 | 30)).ok_or_else(|| {
            unsupported(format!("tensor `{}` is encoded as {}", info.name, kind_name(kind)))
        })?;
        let too_large = || ModelError::file(path, format!("tensor `{}` is too large", info.name), REFETCH);
        let size = |n: u64| usize::try_from(n).map_err(|_| too_large());
        let cols = size(info.dims[0])?;
        let rows = size(info.dims[1..].iter().product())?;
        let start = self.data + info.offset;
        let data = self.file.read(start..start + bytes)?;
        let data = match kind {
            0 => TensorData::Plain(Float::F32, data),
            1 => TensorData::Plain(Float::F16, data),
            30 => TensorData::Plain(Float::Bf16, data),
            2 => TensorData::Q4_0(data),
            3 => TensorData::Q4_1(data),
            _ => TensorData::Q8_0(data),
        };
        Ok(Tensor { name: info.name.clone(), rows, cols, order: RowOrder::Halves, data })
    }
}

struct Parsed {
    values: HashMap<String, Value>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    data: u64,
}

fn parse(header: &mut Header<'_>) -> Result<Parsed, Fault> {
    let magic: [u8; 4] = header.array("the magic number")?;
    if magic != *b"GGUF" {
        let remedy = "give a GGUF file, or a folder with config.json and model.safetensors";
        return Err(Fault { problem: "it does not begin with `GGUF`".into(), remedy });
    }
    match header.u32("the version")? {
        2 | 3 => {}
        version if version.swap_bytes() <= 3 && version != 0 => {
            let remedy = "convert the model again, for little-endian machines";
            return Err(Fault { problem: "it is a big-endian GGUF file".into(), remedy });
        }
        version => {
            let problem = format!("its GGUF version is {version}, not 2 or 3");
            return Err(Fault { problem, remedy: "convert the model again with current tools" });
        }
    }
    let tensor_count = header.u64("the number of tensors")?;
    let value_count = header.u64("the number of metadata values")?;
    // The least a value takes is a key's length, a type and one byte; a tensor, a name's length, one dimension, type and offset.
    for (count, least, what) in [(value_count, 13, "metadata values"), (tensor_count, 32, "tensors")] {
        if count > header.left() / least {
            let left = header.left();
            return Err(Fault::damaged(format!("it says it has {count} {what}, but {left} bytes are left")));
        }
    }
    let mut values = HashMap::new();
    for index in 0..value_count {
        let key = header.name(&format!("metadata key {index}"))?;
        let kind = header.u32(&key)?;
        let value = header.value(kind, &key)?;
        if values.insert(key.clone(), value).is_some() {
            return Err(Fault::damaged(format!("metadata key `{key}` occurs twice")));
        }
    }
    let mut tensors = Vec::new();
    let mut by_name = HashMap::new();
    for index in 0..tensor_count {
        let tensor = header.tensor(index)?;
        if by_name.insert(tensor.name.clone(), tensors.len()).is_some() {
            return Err(Fault::damaged(format!("tensor `{}` occurs twice", tensor.name)));
        }
        tensors.push(tensor);
    }
    let alignment = match values.get("general.alignment") {
        None => 32,
        Some(Value::Unsigned(n)) if n.is_power_of_two() && (8..=1 << 20).contains(n) => *n,
        Some(_) => return Err(Fault::damaged("`general.alignment` is not a power of two from 8 to 1048576")),
    };
    let data = (header.at as u64).next_multiple_of(alignment);
    for tensor in &tensors {
        tensor.check(data, alignment, header.file.len())?;
    }
    Ok(Parsed { values, tensors, by_name, data })
}

impl Checkpoint for Gguf {
    fn tensor(&self, role: TensorRole) -> Result<Option<Tensor>, ModelError> {
        let name = self.name_of(role);
        let Some(index) = name.and_then(|name| self.by_name.get(&name)) else { return Ok(None) };
        self.read(&self.tensors[*index]).map(Some)
    }

    fn name_of(&self, role: TensorRole) -> Option<String> {
        let (layer, part) = match role {
            TensorRole::Embedding => return Some("token_embd.weight".into()),
            TensorRole::OutputNorm => return Some("output_norm.weight".into()),
            TensorRole::Output => return Some("output.weight".into()),
            TensorRole::Layer(Site::Main(layer), part) => (layer, part),
            _ => return None,
        };
        let part = match part {
            Part::InputNorm => "attn_norm",
            Part::Query => "attn_q",
            Part::Key => "attn_k",
            Part::Value => "attn_v",
            Part::AttentionOutput => "attn_output",
            Part::MlpNorm => "ffn_norm",
            Part::Gate => "ffn_gate",
            Part::Up => "ffn_up",
            Part::Down => "ffn_down",
            _ => return None,
        };
        Some(format!("blk.{layer}.{part}.weight"))
    }

    fn order(&self, role: TensorRole, shape: &ModelShape) -> RowOrder {
        match role {
            TensorRole::Layer(_, Part::Query | Part::Key) => {
                RowOrder::Pairs { head_dim: shape.attention.head_dim }
            }
            _ => RowOrder::Halves,
        }
    }

    fn stranger(&self, read: &HashSet<TensorRole>) -> Option<String> {
        let taken: HashSet<String> = read.iter().filter_map(|role| self.name_of(*role)).collect();
        self.tensors.iter().map(|tensor| &tensor.name).find(|name| !taken.contains(*name)).cloned()
    }

    fn path(&self) -> &Path {
        self.file.path()
    }

    fn listing(&self) -> Vec<TensorListing> {
        let listing = |t: &TensorInfo| TensorListing {
            name: t.name.clone(),
            kind: kind_name(t.kind),
            elements: t.elements().unwrap_or(0),
            bytes: t.bytes(),
            packed_bits: packed_bits(t.kind),
            fate: Fate::Used,
        };
        self.tensors.iter().map(listing).collect()
    }
}

/// The strings of an array, in order. They need not be UTF-8.
#[derive(Debug, Clone)]
pub struct Strings<'a> {
    bytes: &'a [u8],
    left: usize,
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (len, rest) = self.bytes.split_first_chunk::<8>()?;
        let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
        let (string, rest) = rest.split_at_checked(len)?;
        self.bytes = rest;
        self.left = self.left.saturating_sub(1);
        Some(string)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Strings<'_> {}
