//! `inspect`: what a file contains, whichever kind it is.

mod cache;
mod model;
mod recording;
mod session;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::ValueHint;

use super::output::Output;
use super::{Example, Failure, examples};
use crate::cache::tier;
use crate::event::record;

pub(super) const EXAMPLES: &[Example] = &[
    ("escarp inspect scarp", "the bundled model: layers, sizes, state and memory"),
    ("escarp inspect scarp --context 3000,12000", "what memory it takes in contexts of so many tokens"),
    ("escarp inspect SmolLM2.gguf", "a model file: architecture, tensors, tokenizer"),
    ("escarp inspect steady", "a bundled session: its requests and how history changes"),
    ("escarp inspect my-session.jsonl --model SmolLM2.gguf", "a session, counted in this model's tokens"),
    ("escarp inspect run.jsonl --json", "a recording: the run, its rows, its ledger hash"),
    ("escarp inspect trace-b", "the published trace of a cache cliff, which comes with the program"),
    ("escarp inspect my-cache --verify", "a cache folder: chains, tokens, bytes, and every file checked"),
];

/// Options of `inspect`.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(super) struct Options {
    /// A model (bundled name, GGUF file or folder), a session or a recording (bundled name or file), or a cache folder
    #[arg(value_name = "WHAT", value_hint = ValueHint::AnyPath)]
    what: String,
    /// Count a session's tokens with this model's tokenizer
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    model: Option<PathBuf>,
    /// Tell a model's memory in contexts of N tokens (several: `4000,16000`)
    #[arg(long, value_name = "N", value_delimiter = ',')]
    context: Vec<u64>,
    /// Read all of a cache folder's files and check them, not only their headers
    #[arg(long)]
    verify: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Model,
    Session,
    Recording,
    Cache,
}

impl Kind {
    /// Decided by content. What is not there may be a bundled session's name.
    fn of(path: &Path) -> Result<Kind, Failure> {
        if path.is_dir() {
            return Ok(if tier::is_cache_folder(path) { Kind::Cache } else { Kind::Model });
        }
        if record::is_recording(path) {
            return Ok(Kind::Recording);
        }
        let mut start = Vec::new();
        let read = File::open(path).and_then(|file| file.take(64).read_to_end(&mut start));
        match (read, start.trim_ascii_start()) {
            (Ok(_), [b'G', b'G', b'U', b'F', ..]) => Ok(Kind::Model),
            (Err(_), _) | (Ok(_), [b'{', ..]) => Ok(Kind::Session),
            (Ok(_), _) => Err(Failure::input(format_args!(
                "{}: neither a GGUF file, nor a session, nor a recording by its first bytes; \
                 give one of these, or the folder of a model",
                path.display()
            ))),
        }
    }
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    let path = Path::new(&options.what);
    // A bundled name wins over a file of that name, as it does everywhere.
    let session = crate::session::bundled().iter().any(|(name, _)| *name == options.what);
    let model = crate::model::bundled().any(|name| name == options.what);
    let recording = record::bundled().iter().any(|(name, _)| *name == options.what);
    let kind = match (session, model, recording) {
        (true, ..) => Kind::Session,
        (_, true, _) => Kind::Model,
        (.., true) => Kind::Recording,
        _ => Kind::of(path)?,
    };
    if kind != Kind::Model && !options.context.is_empty() {
        return Err(Failure::input(format_args!(
            "{}: --context asks for a model's memory, and this is none; give a model",
            path.display()
        )));
    }
    if kind != Kind::Cache && options.verify {
        return Err(Failure::input(format_args!(
            "{}: --verify checks a cache folder's files, and this is none; give a cache folder",
            path.display()
        )));
    }
    let mut output = Output::stdout();
    match kind {
        Kind::Session => session::inspect(&options.what, options.model.as_deref(), options.json, &mut output),
        Kind::Recording => recording::inspect(path, options.json, &mut output),
        Kind::Cache => cache::inspect(path, options.verify, options.json, &mut output),
        Kind::Model => model::inspect(path, &options.context, options.json, &mut output),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_kind_is_told_by_content() {
        for (content, kind) in [
            (&b"GGUF\x03\0\0\0"[..], Some(Kind::Model)),
            (b"{\"escarp_session\":1}\n", Some(Kind::Session)),
            (b"\n {\"escarp_session\":1}\n", Some(Kind::Session)),
            (b"{\"escarp_recording\":1}\n", Some(Kind::Recording)),
            (b"\x7fELF", None),
            (b"", None),
        ] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(content).unwrap();
            assert_eq!(Kind::of(file.path()).ok(), kind, "{content:?}");
        }
        assert_eq!(Kind::of(Path::new("/")).ok(), Some(Kind::Model));
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Kind::of(folder.path()).ok(), Some(Kind::Model));
        std::fs::write(folder.path().join("lock"), "escarp cache 1\n").unwrap();
        assert_eq!(Kind::of(folder.path()).ok(), Some(Kind::Cache));
    }
}
