//! The session file: one JSON object a line.

use std::path::{Path, PathBuf};

use super::Session;

/// Why a session could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{path}:{line}: {problem}; {remedy}")]
pub struct SessionError {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1; 0 when it concerns the file as a whole.
    pub line: usize,
    /// What is wrong.
    pub problem: String,
    /// What to do about it.
    pub remedy: String,
}

/// Reads the session at `path`.
pub fn read(path: &Path) -> Result<Session, SessionError> {
    let _ = path;
    unimplemented!()
}
