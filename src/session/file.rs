//! The session file: one JSON object a line.
//!
//! A session file holds what a coding agent sent to a model, request by request. It is UTF-8 text in JSON Lines: every
//! line is one JSON object, blank lines are allowed, the usual extension is `.jsonl`. [`read`] checks a file completely
//! before anything runs; [`write()`] writes the same format.
//!
//! ```json
//! {"escarp_session":1,"title":"Two requests","description":"Reads a file, then explains it."}
//! {"system":"You are a coding agent."}
//! {"tools":[{"type":"function","function":{"name":"read_file","parameters":{"type":"object"}}}]}
//! {"request":{"name":"r1","append":[{"role":"user","content":"What does main.rs do?"}],"reply":{"role":"assistant","content":"I will read it.","tool_calls":[{"id":"c1","name":"read_file","arguments":{"path":"src/main.rs"}}]},"max_output_tokens":32}}
//! {"request":{"name":"title","side":true,"append":[{"role":"user","content":"Give this conversation a title."}],"max_output_tokens":8}}
//! {"request":{"name":"r2","idle_s":12.5,"append":[{"role":"tool","tool_call_id":"c1","content":"fn main() {}"}],"reply":{"role":"assistant","content":"Nothing at all."}}}
//! ```
//!
//! # Lines
//!
//! The **head** comes first: `escarp_session` is the version of the format, 1; `title` is required, `description` is
//! not. A file with a higher version needs a newer escarp, and the reader says so.
//!
//! The head's `transport` names what its requests come by, for example `"agent"`: the configuration has defaults for each
//! transport, in sections `[policy.NAME]`.
//!
//! The head's `set` is the configuration that the session is meant for, for example
//! `{"cache.snapshot_policy":"last"}`: it holds over the defaults, and a configuration file, `--set` and options hold over
//! it. Keys of `[cache]`, `[scheduler]`, `[specprefill]`, `[speculation]`, `[sampling]` and `[replay]` may be set, but for
//! `cache.dir` and a `specprefill.scorer` that is a path: a session says how its requests are served, not on which model, on which device, or where files go.
//!
//! Each other line has exactly one of these keys:
//!
//! | key | value | meaning |
//! |---|---|---|
//! | `system` | text | The system prompt. Before the first request: what the session starts with. Later: the prompt changes. |
//! | `tools` | list of tool definitions | The same, for the tool list. |
//! | `edit` | `{"before": NAME}` | History is cut before the request of that name: a fork in place. |
//! | `compaction` | `{"messages": […]}` | The whole history is replaced by these messages, for example by one with a summary. |
//! | `request` | see below | A request. |
//!
//! `edit`, `compaction`, and `system` or `tools` after the first request, *rewrite history*. They apply to the request
//! that follows, in the order they are written. Without them a session only ever appends: the prompt and the reply of
//! one request are the beginning of the next.
//!
//! A tool definition is a JSON object with a `name`, by itself or inside `function`; it is handed to the chat template
//! as it is, key order kept.
//!
//! # Requests
//!
//! | key | value | |
//! |---|---|---|
//! | `name` | text, unique in the file, at most 64 characters | required |
//! | `append` | messages to append; the last one is from `user` or `tool` | required, unless a compaction gives the messages |
//! | `idle_s` | seconds between the end of the reply before and this request | 0 |
//! | `side` | `true`: a request beside the line of history, see below | `false` |
//! | `reply` | the recorded reply, an assistant message | none: history takes what the model says |
//! | `max_output_tokens` | reply tokens allowed | as configured |
//! | `sampling` | `temperature`, `top_k`, `top_p`, `min_p`, `repetition_penalty`, `seed` | as configured |
//! | `set` | `{"cache": false}`: the prefix cache is neither read nor written | as configured |
//! | `transport` | the name of a transport | the head's |
//! | `specprefill` | any of `enabled`, `keep` and `threshold`, as `[specprefill]` has them, for example `{"enabled": false}` | as the transport and the configuration say |
//! | `speculation` | any of `drafter`, `depth` and `controller`, as `[speculation]` has them, for example `{"drafter": "none"}`; the drafters `mtp` and `draft` are loaded only where the configuration or a transport names them | as the transport and the configuration say |
//!
//! A **side request** is what an agent asks beside its conversation: a title, a summary, a sub-agent's task. Its prompt is the
//! system prompt and the tools as they stand and the messages it appends, nothing else. History goes on without it: neither
//! its messages nor its reply become part of it, an `edit` cannot name it, and its tool results answer calls of its own
//! messages only. What rewrites history cannot stand right in front of it.
//!
//! # Messages
//!
//! | key | value | on |
//! |---|---|---|
//! | `role` | `user`, `assistant` or `tool` | all, required |
//! | `content` | text | all; required unless there are tool calls |
//! | `tool_calls` | list of `{"id": …, "name": …, "arguments": {…}}`; `id` and `arguments` may be left out | `assistant` |
//! | `tool_call_id` | the call that this result answers; required where that call has an `id` | `tool` |
//!
//! A tool result answers a call of the assistant message before it.
//!
//! # Bounds
//!
//! A file has at most [`MAX_FILE_BYTES`], a line at most [`MAX_LINE_BYTES`], a session at most [`MAX_REQUESTS`] requests.
//! An unknown key is an error rather than ignored: a misspelt `max_output_tokens` would otherwise change a measurement
//! without a word.

mod fields;
mod history;
mod lines;
mod write;

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::Session;
pub use write::write;

/// The version of the format that [`write()`] writes, and the highest that [`read`] takes.
pub const VERSION: u64 = 1;
/// The longest file that is read, bytes.
pub const MAX_FILE_BYTES: u64 = 64 << 20;
/// The longest line that is read, bytes.
pub const MAX_LINE_BYTES: usize = 8 << 20;
/// The most requests a session may have.
pub const MAX_REQUESTS: usize = 100_000;

/// Why a session could not be read. Shown as `file:line: field: problem; remedy`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct SessionError {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1; 0 when it concerns the file as a whole.
    pub line: usize,
    /// The field, for example `request.append[1].role`; empty when it concerns the whole line.
    pub field: String,
    /// What is wrong.
    pub problem: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        if !self.field.is_empty() {
            write!(f, ": `{}`", self.field)?;
        }
        write!(f, ": {}; {}", self.problem, self.remedy)
    }
}

/// Reads the session at `path`.
pub fn read(path: &Path) -> Result<Session, SessionError> {
    let whole = |problem: String, remedy: &str| SessionError {
        path: path.to_owned(),
        line: 0,
        field: String::new(),
        problem,
        remedy: remedy.into(),
    };
    let unreadable =
        |e: std::io::Error| whole(format!("cannot be read: {e}"), "check the path and its permissions");
    let mut bytes = Vec::new();
    // One byte past the bound, so that a file that grows while it is read is still noticed.
    File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
        .map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let problem = format!("longer than {} MiB", MAX_FILE_BYTES >> 20);
        return Err(whole(problem, "split the session or shorten its tool results"));
    }
    let text = String::from_utf8(bytes).map_err(|e| {
        let valid = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        SessionError {
            line: 1 + valid.iter().filter(|byte| **byte == b'\n').count(),
            ..whole("not UTF-8 text".into(), "save the file as UTF-8")
        }
    })?;
    parse(&text, path)
}

/// Reads a session from `text`; errors name `path` as its file.
pub fn parse(text: &str, path: &Path) -> Result<Session, SessionError> {
    lines::parse(text).map_err(|at| SessionError {
        path: path.to_owned(),
        line: at.line,
        field: at.problem.field,
        problem: at.problem.problem,
        remedy: at.problem.remedy,
    })
}

#[cfg(test)]
mod tests;
