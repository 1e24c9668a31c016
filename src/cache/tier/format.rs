//! A file of the tier: safetensors, with everything about it in the header and a checksum at its end.
//!
//! ```text
//! 8 bytes   length N of the header
//! N bytes   header, JSON padded with spaces
//!           tokens     U32, a block's tokens         (blocks only)
//!           attention  U8, a page                    (blocks)
//!           recurrent  U8, a slot                    (snapshots)
//! 32 bytes  checksum   U8, BLAKE3 of every byte before it
//! ```
//!
//! The header's metadata are strings, as the format wants them. Identity is given field by field and by the root they give, so a reader
//! needs nothing else to tell whose state it is.

use std::borrow::Cow;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::super::chain::{self, BlockHash, Identity};
use super::{Layers, Origin, Part, Place};
use crate::event::{RequestId, Route};

/// Name of the format in a file's metadata.
pub const FORMAT: &str = "escarp cache";
/// Its version.
pub const VERSION: &str = "1";
/// Bytes of the checksum at the end.
pub const CHECKSUM_BYTES: u64 = 32;
/// Bytes of the length before the header.
pub const LENGTH_BYTES: u64 = 8;
/// A longer header is none of ours.
pub const MOST_HEADER_BYTES: u64 = 16 << 10;
/// More state than any file holds; a bound that keeps sums of sizes from overflowing.
const MOST_DATA_BYTES: u64 = 1 << 40;

/// What a file says about the identity of its state: [`Identity`], as of whoever wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdentityFacts {
    /// Digest of weights and configuration.
    pub model: [u8; 32],
    /// Digest of tokenizer and template.
    pub text: [u8; 32],
    /// Quantisation of weights and activations.
    pub precision: String,
    /// Device kernel family.
    pub family: String,
    /// How positions are encoded.
    pub positions: String,
    /// Tokens a block holds.
    pub block_tokens: u64,
}

impl IdentityFacts {
    /// The facts of `identity`.
    pub fn of(identity: &Identity) -> IdentityFacts {
        IdentityFacts {
            model: identity.model,
            text: identity.text,
            precision: identity.precision.to_owned(),
            family: identity.family.to_owned(),
            positions: chain::POSITIONS.to_owned(),
            block_tokens: identity.block_tokens as u64,
        }
    }

    /// The root of its chains.
    pub fn root(&self) -> BlockHash {
        let words = [&*self.precision, &self.family, &self.positions];
        chain::root(&self.model, &self.text, words, self.block_tokens)
    }

    /// In which way it differs from `here`, in words.
    pub fn differences(&self, here: &IdentityFacts) -> String {
        let digest = |bytes: &[u8; 32]| hex(bytes)[..12].to_owned();
        let fields = [
            ("model", digest(&self.model), digest(&here.model)),
            ("tokenizer and template", digest(&self.text), digest(&here.text)),
            ("precision", self.precision.clone(), here.precision.clone()),
            ("kernels", self.family.clone(), here.family.clone()),
            ("positions", self.positions.clone(), here.positions.clone()),
            ("tokens a block", self.block_tokens.to_string(), here.block_tokens.to_string()),
        ];
        let differing = fields.iter().filter(|(_, there, here)| there != here);
        differing
            .map(|(field, there, here)| format!("{field} {there}, here {here}"))
            .collect::<Vec<_>>()
            .join("; ")
    }
}

/// What a file says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Which half of a block's state it holds.
    pub part: Part,
    /// Whose.
    pub place: Place,
    /// What computed it.
    pub identity: IdentityFacts,
    /// The layers of that model.
    pub layers: Layers,
    /// Who wrote it.
    pub origin: Origin,
    /// Bytes of the state.
    pub state_bytes: u64,
}

/// Why bytes are not a file of the tier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// It ends before its header does.
    #[error("{0} bytes are too few for a header")]
    Short(u64),
    /// The header's length is not that of one.
    #[error("a header of {0} bytes, more than {MOST_HEADER_BYTES}")]
    HeaderLength(u64),
    /// The header is not the JSON it should be.
    #[error("header: {0}")]
    Json(String),
    /// A field of the header has a value that it cannot have.
    #[error("header: {field}: {found}")]
    Field {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        found: String,
    },
    /// The file is longer or shorter than its header says.
    #[error("{found} bytes, and by its header {expected}")]
    Length {
        /// Bytes it has.
        found: u64,
        /// Bytes it should have.
        expected: u64,
    },
    /// Some bit is not what was written.
    #[error("checksum does not match")]
    Checksum,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw<'a> {
    #[serde(rename = "__metadata__", borrow)]
    metadata: RawMetadata<'a>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    tokens: Option<RawTensor<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    attention: Option<RawTensor<'a>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    recurrent: Option<RawTensor<'a>>,
    #[serde(borrow)]
    checksum: RawTensor<'a>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTensor<'a> {
    dtype: &'a str,
    shape: [u64; 1],
    data_offsets: [u64; 2],
}

/// All of them strings.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMetadata<'a> {
    #[serde(borrow)]
    format: Cow<'a, str>,
    #[serde(borrow)]
    format_version: Cow<'a, str>,
    #[serde(borrow)]
    part: Cow<'a, str>,
    #[serde(borrow)]
    hash: Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    parent: Option<Cow<'a, str>>,
    #[serde(borrow)]
    depth: Cow<'a, str>,
    #[serde(borrow)]
    content: Cow<'a, str>,
    #[serde(borrow)]
    root: Cow<'a, str>,
    #[serde(borrow)]
    model: Cow<'a, str>,
    #[serde(borrow)]
    text: Cow<'a, str>,
    #[serde(borrow)]
    precision: Cow<'a, str>,
    #[serde(borrow)]
    family: Cow<'a, str>,
    #[serde(borrow)]
    positions: Cow<'a, str>,
    #[serde(borrow)]
    block_tokens: Cow<'a, str>,
    #[serde(borrow)]
    attention_layers: Cow<'a, str>,
    #[serde(borrow)]
    recurrent_layers: Cow<'a, str>,
    #[serde(borrow)]
    run: Cow<'a, str>,
    #[serde(borrow)]
    request: Cow<'a, str>,
    #[serde(borrow)]
    route: Cow<'a, str>,
    #[serde(borrow)]
    written_unix_ms: Cow<'a, str>,
}

const ROUTES: [Route; 4] = [Route::CacheHit, Route::Dense, Route::Sparse, Route::Recovery];

impl Header {
    /// Bytes of the file's tokens.
    pub fn token_bytes(&self) -> u64 {
        match self.part {
            Part::Block => self.identity.block_tokens * 4,
            Part::Snapshot => 0,
        }
    }

    /// The file's first bytes: the header and its length before it.
    pub fn encode(&self) -> Vec<u8> {
        let own = |text: &str| Cow::Owned(text.to_owned());
        let number = |n: u64| Cow::Owned(n.to_string());
        let name = |hash: &BlockHash| Cow::Owned(hex(hash.bytes()));
        let metadata = RawMetadata {
            format: Cow::Borrowed(FORMAT),
            format_version: Cow::Borrowed(VERSION),
            part: Cow::Borrowed(self.part.word()),
            hash: name(&self.place.hash),
            parent: self.place.parent.as_ref().map(name),
            depth: number(self.place.depth.into()),
            content: name(&self.place.content),
            root: name(&self.identity.root()),
            model: Cow::Owned(hex(&self.identity.model)),
            text: Cow::Owned(hex(&self.identity.text)),
            precision: own(&self.identity.precision),
            family: own(&self.identity.family),
            positions: own(&self.identity.positions),
            block_tokens: number(self.identity.block_tokens),
            attention_layers: number(self.layers.attention.into()),
            recurrent_layers: number(self.layers.recurrent.into()),
            run: own(&self.origin.run),
            request: number(self.origin.request.0),
            route: Cow::Borrowed(self.origin.route.word()),
            written_unix_ms: number(self.origin.written_unix_ms),
        };
        let mut at = 0;
        let mut tensor = |dtype: &'static str, width: u64, bytes: u64| {
            let start = at;
            at += bytes;
            RawTensor { dtype, shape: [bytes / width], data_offsets: [start, at] }
        };
        let is_block = self.part == Part::Block;
        let tokens = is_block.then(|| tensor("U32", 4, self.token_bytes()));
        let attention = is_block.then(|| tensor("U8", 1, self.state_bytes));
        let recurrent = (!is_block).then(|| tensor("U8", 1, self.state_bytes));
        let raw = Raw { metadata, tokens, attention, recurrent, checksum: tensor("U8", 1, CHECKSUM_BYTES) };
        let mut bytes = vec![0; LENGTH_BYTES as usize];
        // Strings and integers: nothing that JSON could refuse.
        bytes.extend(serde_json::to_vec(&raw).unwrap_or_default());
        // The format wants tensors to start at a multiple of eight.
        bytes.resize(bytes.len().next_multiple_of(8), b' ');
        let length = bytes.len() as u64 - LENGTH_BYTES;
        bytes[..LENGTH_BYTES as usize].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    /// The header in a file's first bytes. `start` holds at least [`header_end`] bytes, or all there are of a shorter file.
    pub fn decode(start: &[u8], file_bytes: u64) -> Result<Header, FormatError> {
        let end = header_end(start, file_bytes)?;
        let json = start.get(LENGTH_BYTES as usize..end as usize).ok_or(FormatError::Short(file_bytes))?;
        let raw: Raw<'_> =
            serde_json::from_slice(json).map_err(|error| FormatError::Json(error.to_string()))?;
        let header = header_of(&raw)?;
        let data = layout(&raw, &header)?;
        let expected = end.saturating_add(data);
        if file_bytes != expected {
            return Err(FormatError::Length { found: file_bytes, expected });
        }
        Ok(header)
    }
}

/// Where a file's header ends, by its first eight bytes.
pub fn header_end(start: &[u8], file_bytes: u64) -> Result<u64, FormatError> {
    let length = start.first_chunk::<8>().ok_or(FormatError::Short(file_bytes))?;
    let length = u64::from_le_bytes(*length);
    if length > MOST_HEADER_BYTES {
        return Err(FormatError::HeaderLength(length));
    }
    let end = LENGTH_BYTES + length;
    if end > file_bytes { Err(FormatError::Short(file_bytes)) } else { Ok(end) }
}

fn header_of(raw: &Raw<'_>) -> Result<Header, FormatError> {
    let m = &raw.metadata;
    if m.format != FORMAT || m.format_version != VERSION {
        return Err(bad("format", &format!("{} {}", m.format, m.format_version)));
    }
    let part = match &*m.part {
        "block" => Part::Block,
        "snapshot" => Part::Snapshot,
        other => return Err(bad("part", other)),
    };
    let state = match part {
        Part::Block => &raw.attention,
        Part::Snapshot => &raw.recurrent,
    };
    let state = state.as_ref().ok_or_else(|| bad("part", "its state is missing"))?;
    let name = |field, text: &str| Ok(BlockHash::from_bytes(digest(field, text)?));
    let place = Place {
        hash: name("hash", &m.hash)?,
        parent: m.parent.as_ref().map(|parent| name("parent", parent)).transpose()?,
        depth: integer("depth", &m.depth)?,
        content: name("content", &m.content)?,
    };
    if place.parent.is_none() != (place.depth == 0) {
        return Err(bad("depth", "only a chain's first block has no parent"));
    }
    let identity = IdentityFacts {
        model: digest("model", &m.model)?,
        text: digest("text", &m.text)?,
        precision: m.precision.clone().into_owned(),
        family: m.family.clone().into_owned(),
        positions: m.positions.clone().into_owned(),
        block_tokens: integer("block_tokens", &m.block_tokens)?,
    };
    if identity.root() != name("root", &m.root)? {
        return Err(bad("root", "not the one that the identity's fields give"));
    }
    let route =
        ROUTES.into_iter().find(|route| route.word() == m.route).ok_or_else(|| bad("route", &m.route))?;
    Ok(Header {
        part,
        place,
        identity,
        layers: Layers {
            attention: integer("attention_layers", &m.attention_layers)?,
            recurrent: integer("recurrent_layers", &m.recurrent_layers)?,
        },
        origin: Origin {
            run: m.run.clone().into_owned(),
            request: RequestId(integer("request", &m.request)?),
            route,
            written_unix_ms: integer("written_unix_ms", &m.written_unix_ms)?,
        },
        state_bytes: state.shape[0],
    })
}

/// Checks that the tensors are those of such a file, one after the other without a gap. Gives their bytes.
fn layout(raw: &Raw<'_>, header: &Header) -> Result<u64, FormatError> {
    let tokens = Some(header.identity.block_tokens).filter(|_| header.part == Part::Block);
    let of_part = |part| Some(header.state_bytes).filter(|_| header.part == part);
    let tensors = [
        ("tokens", &raw.tokens, "U32", 4, tokens),
        ("attention", &raw.attention, "U8", 1, of_part(Part::Block)),
        ("recurrent", &raw.recurrent, "U8", 1, of_part(Part::Snapshot)),
    ];
    let mut at = 0_u64;
    let mut check = |name, tensor: &RawTensor<'_>, dtype, width: u64, length: u64| {
        let end = length.checked_mul(width).and_then(|bytes| at.checked_add(bytes));
        let end = end.filter(|end| *end <= MOST_DATA_BYTES);
        let end = end.ok_or_else(|| bad(name, "larger than any file"))?;
        if tensor.dtype != dtype || tensor.shape != [length] || tensor.data_offsets != [at, end] {
            return Err(bad(name, "not of the type, shape and place it should have"));
        }
        at = end;
        Ok(())
    };
    for (name, tensor, dtype, width, length) in tensors {
        match (tensor, length) {
            (Some(tensor), Some(length)) => check(name, tensor, dtype, width, length)?,
            (None, None) => {}
            _ => return Err(bad(name, "in a file of the other part")),
        }
    }
    check("checksum", &raw.checksum, "U8", 1, CHECKSUM_BYTES)?;
    Ok(at)
}

fn bad(field: &'static str, found: &str) -> FormatError {
    FormatError::Field { field, found: found.chars().take(64).collect() }
}

fn integer<T: TryFrom<u64>>(field: &'static str, text: &str) -> Result<T, FormatError> {
    // One spelling a number: no sign, no leading zero.
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    let number = text.parse::<u64>().ok().filter(|_| plain).and_then(|n| T::try_from(n).ok());
    number.ok_or_else(|| bad(field, text))
}

fn digest(field: &'static str, text: &str) -> Result<[u8; 32], FormatError> {
    unhex(text).ok_or_else(|| bad(field, text))
}

/// Two lower-case digits a byte.
pub(super) fn hex(bytes: &[u8; 32]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// The bytes of sixty-four lower-case hex digits.
pub(super) fn unhex(text: &str) -> Option<[u8; 32]> {
    let digits: &[u8; 64] = text.as_bytes().try_into().ok()?;
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.as_chunks::<2>().0) {
        *byte = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(bytes)
}

/// A file that is to be written, without its checksum.
#[derive(Debug, Clone)]
pub struct Image {
    /// Header and tokens.
    pub head: Vec<u8>,
    /// The state.
    pub state: Vec<u8>,
    /// The header, for whoever reads the file before it is written.
    pub header: Header,
    /// The block's tokens; none for a snapshot.
    pub tokens: Box<[u32]>,
}

impl Image {
    /// The file of this header, these tokens and this state.
    pub fn new(header: &Header, tokens: &[u32], state: Vec<u8>) -> Image {
        let mut head = header.encode();
        head.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        Image { head, state, header: header.clone(), tokens: tokens.into() }
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        (self.head.len() + self.state.len()) as u64 + CHECKSUM_BYTES
    }

    /// Its last bytes.
    pub fn checksum(&self) -> [u8; 32] {
        *blake3::Hasher::new().update(&self.head).update(&self.state).finalize().as_bytes()
    }
}

/// A whole file that has passed every check against itself.
#[derive(Debug)]
pub struct Parsed {
    /// Its header.
    pub header: Header,
    /// A block's tokens.
    pub tokens: Vec<u32>,
    /// Where its state is.
    pub state: Range<usize>,
}

/// Checks a whole file: header, lengths, checksum.
pub fn parse(file: &[u8]) -> Result<Parsed, FormatError> {
    let length = file.len() as u64;
    let header = Header::decode(file, length)?;
    // `decode` has checked that the file is as long as all of this.
    let data = header_end(file, length)? as usize;
    let state = data + header.token_bytes() as usize;
    let checksum = file.len() - CHECKSUM_BYTES as usize;
    if blake3::hash(&file[..checksum]).as_bytes()[..] != file[checksum..] {
        return Err(FormatError::Checksum);
    }
    let tokens =
        file[data..state].as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    Ok(Parsed { header, tokens, state: state..checksum })
}
