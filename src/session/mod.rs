//! Sessions: what a coding agent asked, turn by turn.
//!
//! A [`Session`] is read from a line-oriented file ([`mod@file`]); a [`Player`] walks through it and knows the
//! conversation each request carries, in *recorded* mode (history uses the recorded replies, so runs stay
//! comparable) or *live* mode (history uses what the model said). Injecting and forking are operations of the
//! player, so the engine sees one kind of turn whatever its source.

mod bundled;
pub mod file;
mod player;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::config::{Config, ConfigError, Override, SparseOverride, SpeculationOverride};
use crate::decode::SamplingOverride;
use crate::event::Nanos;
pub use bundled::{bundled, open};
pub use player::{Player, Turn};

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The person, or the harness on the person's behalf.
    User,
    /// The model.
    Assistant,
    /// A tool's result.
    Tool,
}

impl Role {
    /// The word chat templates expect.
    pub fn word(self) -> &'static str {
        match self {
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

/// A call the model made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    /// Identifier that the result refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The tool's name.
    pub name: String,
    /// Its arguments, key order kept.
    #[serde(default)]
    pub arguments: serde_json::Map<String, serde_json::Value>,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// The text; may be empty beside tool calls.
    #[serde(default)]
    pub content: String,
    /// Calls, on assistant messages only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// The call a tool result answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Typed in by the researcher rather than read from the session.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub injected: bool,
}

impl Message {
    /// A message of `role` that is only text.
    pub fn text(role: Role, content: impl Into<String>) -> Message {
        Message { role, content: content.into(), tool_calls: Vec::new(), tool_call_id: None, injected: false }
    }
}

/// Everything a prompt is rendered from.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Conversation {
    /// The system prompt, if the session has one.
    pub system: Option<String>,
    /// Tool definitions, in order.
    pub tools: Vec<serde_json::Value>,
    /// The messages, in order.
    pub messages: Vec<Message>,
}

/// How a request rewrites history before it appends to it.
#[derive(Debug, Clone, PartialEq)]
pub enum Rewrite {
    /// Cut the history before the request named `before` (a fork in place).
    Edit {
        /// Name of the first request whose messages are dropped.
        before: String,
    },
    /// Replace the whole history by these messages (compaction, reset).
    Compaction {
        /// What remains, for example one user message with a summary.
        messages: Vec<Message>,
    },
    /// Replace the system prompt.
    System(String),
    /// Replace the tool definitions.
    Tools(Vec<serde_json::Value>),
}

/// Overrides of one request; `None` keeps the configuration's value.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RequestOverrides {
    /// Output budget, tokens.
    pub max_output_tokens: Option<u64>,
    /// Sampling.
    pub sampling: SamplingOverride,
    /// Whether the prefix cache may be read and written.
    pub cache: Option<bool>,
    /// Sparse prefill.
    pub specprefill: SparseOverride,
    /// Speculative decoding.
    pub speculation: SpeculationOverride,
    /// The transport it comes by, whose defaults `[policy.NAME]` has; the session's where `None`.
    pub transport: Option<String>,
}

/// One request of a session file.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestSpec {
    /// Its name, unique in the session.
    pub name: String,
    /// The idle gap before it.
    pub idle: Nanos,
    /// Whether it stands beside the line of history: its prompt has the system prompt, the tools and the messages it appends, and history
    /// goes on without those and without its reply. It rewrites nothing.
    pub side: bool,
    /// How history is rewritten first, in order.
    pub rewrites: Vec<Rewrite>,
    /// The messages it appends.
    pub append: Vec<Message>,
    /// The recorded reply: an assistant message.
    pub reply: Option<Message>,
    /// Its overrides.
    pub overrides: RequestOverrides,
}

/// A value of the configuration that a session is meant for.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// The key, `section.key`; one that [`session_may_set`](crate::config::session_may_set).
    pub key: String,
    /// Its value: text, a number, or a truth value.
    pub value: toml::Value,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            toml::Value::String(text) => write!(f, "{}={text}", self.key),
            value => write!(f, "{}={value}", self.key),
        }
    }
}

/// A session: a head and its requests.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    /// A short title.
    pub title: String,
    /// What it shows, in a sentence or two.
    pub description: String,
    /// The transport its requests come by, where they do not say.
    pub transport: Option<String>,
    /// The configuration it is meant for, over the defaults and below whatever else sets the same keys.
    pub settings: Vec<Setting>,
    /// The system prompt it starts with.
    pub system: Option<String>,
    /// The tool definitions it starts with.
    pub tools: Vec<serde_json::Value>,
    /// The requests, in order; at least one.
    pub requests: Vec<RequestSpec>,
}

impl Session {
    /// Whether `config` has defaults for every transport that the session, which errors call `name`, and its requests name.
    pub fn check_transports(&self, name: &str, config: &Config) -> Result<(), ConfigError> {
        let of_requests = self.requests.iter().filter_map(|request| {
            let transport = request.overrides.transport.as_deref()?;
            Some((format!("{name}: request `{}`", request.name), transport))
        });
        let of_head = self.transport.as_deref().map(|transport| (name.to_owned(), transport));
        for (origin, transport) in of_head.into_iter().chain(of_requests) {
            config.policy.named(&origin, transport)?;
        }
        Ok(())
    }

    /// The session's settings for [`load_over`](crate::config::load_over); errors call the session `name`.
    pub fn overrides(&self, name: &str) -> Vec<Override> {
        let origin = format!("{name}: `set`");
        self.settings.iter().map(|set| Override::new(&origin, &set.key, set.value.clone())).collect()
    }
}

/// Which replies become history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplayMode {
    /// The recorded ones: prompts do not depend on the model, so runs stay comparable.
    Recorded,
    /// What the model said.
    Live,
}
