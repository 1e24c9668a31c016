//! Codecs from what model files carry: GGUF metadata, or `tokenizer.json` and its companions in a folder.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value as Json;
use tokenizers::{DecoderWrapper, ModelWrapper, Tokenizer};

use super::bpe::{Alphabet, ByteLevelBpe, Cutting, TokenBytes, check_merges};
use super::template::{CHATML, ChatTemplate, TemplateTokens};
use super::vocabulary::Special;
use super::{Parts, TextCodec, TextError};
use crate::model::ModelError;
use crate::model::file::read_small;
use crate::model::gguf::{Gguf, Strings};
use crate::model::tensor::Checkpoint;

/// Bytes of `tokenizer.json` at most.
const MAX_TOKENIZER: u64 = 256 << 20;
/// Bytes of the files beside it at most.
const MAX_COMPANION: u64 = 16 << 20;

/// Tokens that end a turn in one model family or another, whatever the file says.
const TURN_ENDS: &[&str] = &[
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
];

/// GGUF's token types.
const CONTROL: i32 = 3;
const UNKNOWN: i32 = 2;
const USER_DEFINED: i32 = 4;

impl TextCodec {
    /// The codec a GGUF file carries. A file without chat template gets ChatML.
    pub fn from_gguf(gguf: &Gguf) -> Result<TextCodec, ModelError> {
        let wrong = |problem: String, remedy: &str| ModelError::file(gguf.path(), problem, remedy);
        let model = gguf.text("tokenizer.ggml.model")?.unwrap_or("missing");
        if model != "gpt2" {
            let problem = format!("`tokenizer.ggml.model` is `{model}`, not `gpt2`");
            return Err(wrong(problem, "use a model with a byte-level BPE tokenizer"));
        }
        let pre = gguf.text("tokenizer.ggml.pre")?.unwrap_or("missing");
        let cutting = Cutting::named(pre).map_err(|known| {
            let remedy = format!("use a model with one of: {known}");
            wrong(format!("`tokenizer.ggml.pre` is `{pre}`, an unknown rule"), &remedy)
        })?;
        let convert = "convert the model again with current tools";
        let strings = |key: &str| -> Result<Strings<'_>, ModelError> {
            gguf.strings(key)?.ok_or_else(|| wrong(format!("`{key}` is missing"), convert))
        };
        let text = |key: &str, index: usize, bytes: &[u8]| match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(wrong(format!("entry {index} of `{key}` is not UTF-8"), convert)),
        };
        let mut tokens = Vec::new();
        let mut hasher = blake3::Hasher::new();
        hasher.update(pre.as_bytes());
        for (index, bytes) in strings("tokenizer.ggml.tokens")?.enumerate() {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
            tokens.push(text("tokenizer.ggml.tokens", index, bytes)?);
        }
        let mut merges = Vec::new();
        for (index, bytes) in strings("tokenizer.ggml.merges")?.enumerate() {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
            let merge = text("tokenizer.ggml.merges", index, bytes)?;
            let (a, b) = merge.split_once(' ').ok_or_else(|| {
                wrong(format!("entry {index} of `tokenizer.ggml.merges` has no space"), convert)
            })?;
            merges.push((a.to_owned(), b.to_owned()));
        }
        let marked = |key: &str| -> Result<Option<u32>, ModelError> {
            match gguf.uint(key)? {
                None => Ok(None),
                Some(id) if id < tokens.len() as u64 => Ok(Some(id as u32)),
                Some(id) => {
                    Err(wrong(format!("`{key}` is {id}, but there are {} tokens", tokens.len()), convert))
                }
            }
        };
        let ends = [marked("tokenizer.ggml.eos_token_id")?, marked("tokenizer.ggml.eot_token_id")?];
        let bos = marked("tokenizer.ggml.bos_token_id")?;
        let types = gguf.ints("tokenizer.ggml.token_type")?.unwrap_or_default();
        if !types.is_empty() && types.len() != tokens.len() {
            let problem = format!(
                "`tokenizer.ggml.token_type` has {} entries for {} tokens",
                types.len(),
                tokens.len()
            );
            return Err(wrong(problem, convert));
        }
        let mut specials = Vec::new();
        for (id, token) in (0u32..).zip(&tokens) {
            let kind = types.get(id as usize).copied();
            let named = bos == Some(id) || ends.contains(&Some(id));
            if named || matches!(kind, Some(CONTROL | UNKNOWN | USER_DEFINED)) {
                let control = named || kind != Some(USER_DEFINED);
                specials.push(Special { text: token.clone(), id, control });
            }
        }
        let spelled = |id: Option<u32>| id.and_then(|id| tokens.get(id as usize).cloned());
        let template_tokens = TemplateTokens { bos: spelled(bos), eos: spelled(ends[0]) };
        let source = gguf.text("tokenizer.chat_template")?.unwrap_or(CHATML);
        let failed =
            |e: TextError| wrong(e.to_string(), "use a model file whose tokenizer and template are intact");
        let template = ChatTemplate::new(source, template_tokens).map_err(failed)?;
        let vocabulary = ByteLevelBpe::new(tokens, merges, cutting).map_err(failed)?;
        Ok(TextCodec::assemble(Parts {
            vocabulary: Box::new(vocabulary),
            end_of_turn: turn_ends(&specials, ends.into_iter().flatten()),
            specials,
            template,
            vocabulary_digest: *hasher.finalize().as_bytes(),
        }))
    }

    /// The codec of a model folder: `tokenizer.json`, with template and special tokens from `chat_template.jinja`,
    /// `tokenizer_config.json` and `generation_config.json`. A folder without `tokenizer.json` gets
    /// [`TextCodec::bytes_only`] of `vocab` ids.
    pub fn from_folder(folder: &Path, vocab: usize) -> Result<TextCodec, ModelError> {
        let path = folder.join("tokenizer.json");
        let Some(json) = read_small(&path, MAX_TOKENIZER)? else { return Ok(TextCodec::bytes_only(vocab)) };
        let remedy = "use a tokenizer.json of a byte-level BPE tokenizer";
        let wrong = |problem: String| ModelError::file(&path, problem, remedy);
        let tokenizer = read_tokenizer(&json).map_err(wrong)?;
        let companions = Companions::read(folder)?;
        let mut specials: Vec<Special> = tokenizer
            .get_added_tokens_decoder()
            .into_iter()
            .map(|(id, token)| Special { text: token.content, id, control: token.special })
            .collect();
        // Older folders list some of them beside the tokenizer only.
        for token in companions.added {
            if (token.id as usize) < vocab && specials.iter().all(|known| known.id != token.id) {
                specials.push(token);
            }
        }
        let spelled = |text: &Option<String>| {
            specials.iter().find(|s| Some(&s.text) == text.as_ref()).map(|special| special.id)
        };
        let eos = companions.tokens.eos.clone();
        let ends: Vec<u32> = companions.end_ids.iter().copied().chain(spelled(&eos)).collect();
        let template = companions.template.as_deref().unwrap_or(CHATML);
        let template = ChatTemplate::new(template, companions.tokens)
            .map_err(|e| ModelError::file(folder, e.to_string(), "use a model whose template is intact"))?;
        let vocabulary = byte_level(&tokenizer).map_err(wrong)?;
        Ok(TextCodec::assemble(Parts {
            vocabulary: Box::new(vocabulary),
            end_of_turn: turn_ends(&specials, ends.into_iter()),
            specials,
            template,
            vocabulary_digest: *blake3::hash(json.as_bytes()).as_bytes(),
        }))
    }
}

fn turn_ends(specials: &[Special], named: impl Iterator<Item = u32>) -> Vec<u32> {
    let known = specials.iter().filter(|s| TURN_ENDS.contains(&s.text.as_str())).map(|s| s.id);
    let mut ends: Vec<u32> = named.chain(known).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// What of `tokenizer.json` is checked before the `tokenizers` crate reads it.
#[derive(Deserialize)]
struct Outline {
    model: ModelOutline,
}

#[derive(Deserialize)]
struct ModelOutline {
    #[serde(default)]
    vocab: Json,
    #[serde(default)]
    merges: Vec<Merge>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Line(String),
    Pair(String, String),
}

fn read_tokenizer(json: &str) -> Result<Tokenizer, String> {
    let outline: Outline = serde_json::from_str(json).map_err(|e| e.to_string())?;
    let vocab = outline.model.vocab.as_object().ok_or("`model.vocab` is not an object")?;
    let longest = vocab.keys().map(String::len).max().unwrap_or(0);
    let merges = outline.model.merges.iter().filter_map(|merge| match merge {
        Merge::Line(line) => line.split_once(' '),
        Merge::Pair(a, b) => Some((a.as_str(), b.as_str())),
    });
    check_merges(merges, longest).map_err(|e| e.to_string())?;
    Tokenizer::from_bytes(json).map_err(|e| e.to_string())
}

fn byte_level(tokenizer: &Tokenizer) -> Result<ByteLevelBpe, String> {
    let ModelWrapper::BPE(bpe) = tokenizer.get_model() else {
        return Err("`model.type` is not `BPE`".into());
    };
    let byte_level = match tokenizer.get_decoder() {
        Some(DecoderWrapper::ByteLevel(_)) => true,
        Some(DecoderWrapper::Sequence(sequence)) => {
            sequence.get_decoders().iter().any(|d| matches!(d, DecoderWrapper::ByteLevel(_)))
        }
        _ => false,
    };
    if !byte_level {
        return Err("`decoder` is not `ByteLevel`".into());
    }
    let pre_tokenizer = tokenizer.get_pre_tokenizer().cloned().ok_or("`pre_tokenizer` is missing")?;
    let mut tokens: Vec<(u32, String)> =
        tokenizer.get_vocab(true).into_iter().map(|(token, id)| (id, token)).collect();
    tokens.sort_unstable();
    // Ids may have holes, but not so many that the table of bytes outgrows the file.
    let limit = tokens.len() as u32 * 2 + 65_536;
    let alphabet = Alphabet::new();
    let mut bytes = TokenBytes::default();
    let mut next = 0;
    for (id, token) in tokens {
        if id > limit {
            return Err(format!("`model.vocab` gives `{token}` the id {id}"));
        }
        while next < id {
            bytes.push("", &alphabet);
            next += 1;
        }
        if next == id {
            bytes.push(&token, &alphabet);
            next += 1;
        }
    }
    let normalizer = tokenizer.get_normalizer().cloned();
    Ok(ByteLevelBpe::from_parts(ModelWrapper::BPE(bpe.clone()), pre_tokenizer, normalizer, bytes))
}

/// What the files beside `tokenizer.json` say.
#[derive(Default)]
struct Companions {
    template: Option<String>,
    tokens: TemplateTokens,
    /// Tokens that `tokenizer_config.json` adds.
    added: Vec<Special>,
    end_ids: Vec<u32>,
}

impl Companions {
    /// Sampling settings are not taken over: what a run samples with is said in its own configuration.
    fn read(folder: &Path) -> Result<Companions, ModelError> {
        let parse = |name: &str| -> Result<Option<Json>, ModelError> {
            let path = folder.join(name);
            let Some(text) = read_small(&path, MAX_COMPANION)? else { return Ok(None) };
            serde_json::from_str(&text)
                .map(Some)
                .map_err(|e| ModelError::file(&path, e.to_string(), "use the file that belongs to the model"))
        };
        let mut companions = Companions::default();
        if let Some(config) = parse("tokenizer_config.json")? {
            companions.template = config.get("chat_template").and_then(default_template);
            let token = |key: &str| {
                let value = config.get(key)?;
                value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
            };
            companions.tokens = TemplateTokens { bos: token("bos_token"), eos: token("eos_token") };
            let added = config.get("added_tokens_decoder").and_then(Json::as_object);
            companions.added = added.into_iter().flatten().filter_map(added_token).collect();
        }
        // Models of several media keep the template with their processor's settings.
        if let Some(processor) = parse("chat_template.json")? {
            let template = processor.get("chat_template").and_then(default_template);
            companions.template = template.or(companions.template);
        }
        if let Some(template) = read_small(&folder.join("chat_template.jinja"), MAX_COMPANION)? {
            companions.template = Some(template);
        }
        companions.end_ids = parse("generation_config.json")?.as_ref().map(end_ids).unwrap_or_default();
        if companions.end_ids.is_empty()
            && let Some(config) = parse("config.json")?
        {
            companions.end_ids =
                [Some(&config), config.get("text_config")].into_iter().flatten().flat_map(end_ids).collect();
        }
        Ok(companions)
    }
}

/// `eos_token_id`, one or several.
fn end_ids(config: &Json) -> Vec<u32> {
    let id = |json: &Json| json.as_u64().and_then(|id| u32::try_from(id).ok());
    match config.get("eos_token_id") {
        Some(Json::Array(ids)) => ids.iter().filter_map(id).collect(),
        Some(one) => id(one).into_iter().collect(),
        None => Vec::new(),
    }
}

/// An entry of `added_tokens_decoder`: id and description.
fn added_token((id, token): (&String, &Json)) -> Option<Special> {
    let text = token.get("content")?.as_str().filter(|text| !text.is_empty())?.to_owned();
    let control = token.get("special").and_then(Json::as_bool).unwrap_or(false);
    Some(Special { text, id: id.parse().ok()?, control })
}

/// The template itself, or of several the one named `default`, or else the first.
fn default_template(value: &Json) -> Option<String> {
    let named = |entry: &&Json| entry.get("name").and_then(Json::as_str) == Some("default");
    match value {
        Json::String(template) => Some(template.clone()),
        Json::Array(all) => {
            let entry = all.iter().find(named).or(all.first())?;
            entry.get("template")?.as_str().map(str::to_owned)
        }
        _ => None,
    }
}
