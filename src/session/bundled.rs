//! The sessions that come with the program.

use std::path::{Path, PathBuf};

use super::Session;
use super::file::{self, SessionError};
use crate::config::suggest::nearest;

macro_rules! sessions {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../sessions/", $name, ".jsonl")))),*]
    };
}

const BUNDLED: &[(&str, &str)] =
    sessions!["quick", "steady", "append-heavy", "tools-change", "compaction", "cliff", "growing"];

/// Name and text of every session that comes with the program, the one to run first in front.
pub fn bundled() -> &'static [(&'static str, &'static str)] {
    BUNDLED
}

/// Opens a bundled session by its name, or a session file by its path. A bundled name wins over a file of that name in
/// the working folder; write `./steady` for the file.
pub fn open(name_or_path: impl AsRef<Path>) -> Result<Session, SessionError> {
    let path = name_or_path.as_ref();
    if let Some((name, text)) = BUNDLED.iter().find(|(name, _)| path.as_os_str() == *name) {
        return file::parse(text, &PathBuf::from(format!("{name} (bundled)")));
    }
    let bare = path.components().count() <= 1 && path.extension().is_none();
    if bare && !path.exists() {
        let names = || BUNDLED.iter().map(|(name, _)| *name);
        return Err(SessionError {
            path: path.to_owned(),
            line: 0,
            field: String::new(),
            problem: "there is no bundled session of this name, nor such a file".into(),
            remedy: match nearest(&path.to_string_lossy(), names()) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => format!("give a path, or one of {}", names().collect::<Vec<_>>().join(", ")),
            },
        });
    }
    file::read(path)
}
