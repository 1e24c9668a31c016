//! From a session to lines.

use serde::Serialize;

use super::VERSION;
use crate::config::{SparseOverride, SpeculationOverride};
use crate::decode::SamplingOverride;
use crate::session::{Message, Rewrite, Role, Session, Setting, ToolCall};

/// The session as a file: [`parse`](super::parse) of the text gives an equal session, provided that it could be read
/// at all (names unique, edits naming requests in history, …) and that no message is marked as injected, for which the
/// format has no word.
pub fn write(session: &Session) -> String {
    let mut text = String::new();
    let mut line = |line: &Line<'_>| {
        // Serialising these types to a string cannot fail: their maps have string keys, and `String` takes any bytes.
        text.push_str(&serde_json::to_string(line).unwrap_or_default());
        text.push('\n');
    };
    line(&Line::Head {
        escarp_session: VERSION,
        title: &session.title,
        description: &session.description,
        transport: session.transport.as_deref(),
        set: session.settings.iter().map(as_entry).collect(),
    });
    if let Some(system) = &session.system {
        line(&Line::System { system });
    }
    if !session.tools.is_empty() {
        line(&Line::Tools { tools: &session.tools });
    }
    for request in &session.requests {
        for rewrite in &request.rewrites {
            line(&match rewrite {
                Rewrite::Edit { before } => Line::Edit { edit: EditLine { before } },
                Rewrite::Compaction { messages } => {
                    Line::Compaction { compaction: CompactionLine { messages: as_lines(messages) } }
                }
                Rewrite::System(system) => Line::System { system },
                Rewrite::Tools(tools) => Line::Tools { tools },
            });
        }
        line(&Line::Request {
            request: Box::new(RequestLine {
                name: &request.name,
                idle_s: request.idle.seconds(),
                side: request.side,
                append: as_lines(&request.append),
                reply: request.reply.as_ref().map(MessageLine::from),
                max_output_tokens: request.overrides.max_output_tokens,
                sampling: request.overrides.sampling,
                set: request.overrides.cache.map(|cache| SetLine { cache }),
                transport: request.overrides.transport.as_deref(),
                specprefill: request.overrides.specprefill,
                speculation: request.overrides.speculation,
            }),
        });
    }
    text
}

#[derive(Serialize)]
#[serde(untagged)]
enum Line<'a> {
    Head {
        escarp_session: u64,
        title: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        description: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        transport: Option<&'a str>,
        #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
        set: serde_json::Map<String, serde_json::Value>,
    },
    System {
        system: &'a str,
    },
    Tools {
        tools: &'a [serde_json::Value],
    },
    Edit {
        edit: EditLine<'a>,
    },
    Compaction {
        compaction: CompactionLine<'a>,
    },
    Request {
        request: Box<RequestLine<'a>>,
    },
}

#[derive(Serialize)]
struct EditLine<'a> {
    before: &'a str,
}

#[derive(Serialize)]
struct CompactionLine<'a> {
    messages: Vec<MessageLine<'a>>,
}

#[derive(Serialize)]
struct RequestLine<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "is_zero")]
    idle_s: f64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    side: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    append: Vec<MessageLine<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reply: Option<MessageLine<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_output_tokens: Option<u64>,
    #[serde(skip_serializing_if = "says_nothing")]
    sampling: SamplingOverride,
    #[serde(skip_serializing_if = "Option::is_none")]
    set: Option<SetLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transport: Option<&'a str>,
    #[serde(skip_serializing_if = "says_nothing")]
    specprefill: SparseOverride,
    #[serde(skip_serializing_if = "says_nothing")]
    speculation: SpeculationOverride,
}

#[derive(Serialize)]
struct SetLine {
    cache: bool,
}

#[derive(Serialize)]
struct MessageLine<'a> {
    role: Role,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
    content: &'a str,
    #[serde(skip_serializing_if = "<[ToolCall]>::is_empty")]
    tool_calls: &'a [ToolCall],
}

impl<'a> From<&'a Message> for MessageLine<'a> {
    fn from(message: &'a Message) -> MessageLine<'a> {
        MessageLine {
            role: message.role,
            tool_call_id: message.tool_call_id.as_deref(),
            content: &message.content,
            tool_calls: &message.tool_calls,
        }
    }
}

fn as_lines(messages: &[Message]) -> Vec<MessageLine<'_>> {
    messages.iter().map(MessageLine::from).collect()
}

fn as_entry(setting: &Setting) -> (String, serde_json::Value) {
    // Settings are scalars, which both formats have.
    (setting.key.clone(), serde_json::to_value(&setting.value).unwrap_or_default())
}

fn is_zero(seconds: &f64) -> bool {
    *seconds == 0.0
}

fn says_nothing<T: Default + PartialEq>(overrides: &T) -> bool {
    *overrides == T::default()
}
