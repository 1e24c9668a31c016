//! The models that come with the program.
//!
//! Their files are part of the executable, so a fresh machine needs nothing else. Everything that reads a model's files goes through
//! [`super::file`], which looks here first: a path whose first component is a bundled model's name leads into the program. What
//! they are and how they were made is said in `assets/models`.

use std::ffi::OsStr;
use std::path::{Component, Path};

/// The default model: a hybrid of the `qwen3_5` kind.
pub const TARGET: &str = "scarp";
/// A small model of the same family and tokenizer, for drafting and scoring.
pub const DRAFT: &str = "talus";

/// A bundled model's name and its files.
type Bundle = (&'static str, &'static [(&'static str, &'static [u8])]);

macro_rules! bundle {
    ($name:literal) => {
        bundle!($name: "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
            "chat_template.jinja", "generation_config.json")
    };
    ($name:literal: $($file:literal),*) => {
        ($name, &[$(($file, include_bytes!(concat!("../../assets/models/", $name, "/", $file)))),*])
    };
}

const BUNDLED: &[Bundle] = &[bundle!("scarp"), bundle!("talus")];

/// Names of the bundled models, the default first.
pub fn bundled() -> impl Iterator<Item = &'static str> {
    BUNDLED.iter().map(|(name, _)| *name)
}

/// The files of the model a path leads to, where it is a bundled one's folder.
fn files(folder: &OsStr) -> Option<&'static [(&'static str, &'static [u8])]> {
    BUNDLED.iter().find(|(name, _)| folder == *name).map(|(_, files)| *files)
}

/// Bytes of all files of a bundled model; `None` where `path` is no bundled model.
pub(super) fn total_bytes(path: &Path) -> Option<u64> {
    Some(files(path.as_os_str())?.iter().map(|(_, bytes)| bytes.len() as u64).sum())
}

/// What lies at a path in the program.
pub(super) enum Entry {
    /// The folder of a bundled model.
    Folder,
    /// A file in one.
    File(&'static [u8]),
    /// Nothing, in the folder of a bundled model.
    Absent,
}

/// What `path` leads to in the program; `None` where it leads to the disk.
pub(super) fn look_up(path: &Path) -> Option<Entry> {
    let mut components = path.components();
    let Component::Normal(folder) = components.next()? else { return None };
    let files = files(folder)?;
    let rest = components.as_path();
    if rest.as_os_str().is_empty() {
        return Some(Entry::Folder);
    }
    let file = files.iter().find(|(name, _)| rest.as_os_str() == *name);
    Some(file.map_or(Entry::Absent, |(_, bytes)| Entry::File(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundled_name_leads_into_the_program_and_a_path_to_the_disk() {
        assert!(matches!(look_up(Path::new("scarp")), Some(Entry::Folder)));
        assert!(matches!(look_up(Path::new("talus/config.json")), Some(Entry::File(_))));
        assert!(matches!(look_up(Path::new("scarp/other.json")), Some(Entry::Absent)));
        for path in ["./scarp", "/scarp", "models/scarp", "scarp.gguf", "", "../scarp/config.json"] {
            assert!(look_up(Path::new(path)).is_none(), "{path}");
        }
        assert_eq!(bundled().collect::<Vec<_>>(), [TARGET, DRAFT]);
    }
}
