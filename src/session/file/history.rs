//! What the history looks like at a point of the file, as far as later lines refer to it: which requests are in it, and
//! which tool calls wait for results.

use std::collections::HashMap;
use std::rc::Rc;

use super::fields::{Checked, Problem, shortened};
use crate::config::suggest::nearest;
use crate::session::{Message, Role};

/// The tool calls that the next tool result may answer.
#[derive(Clone)]
enum Calls {
    /// The last assistant message, if any, made none.
    None,
    /// The last reply is not recorded: only a run will tell.
    Unknown,
    /// Those of the last assistant message, by id where they have one.
    Made(Rc<[Option<String>]>),
}

struct Placed {
    name: String,
    before: Calls,
}

/// The history before the next request.
pub(super) struct History {
    /// The requests that are part of it, in order.
    requests: Vec<Placed>,
    /// Positions in `requests` by name.
    position: HashMap<String, usize>,
    calls: Calls,
}

impl History {
    pub(super) fn new() -> History {
        History { requests: Vec::new(), position: HashMap::new(), calls: Calls::None }
    }

    /// Whether the request `name` is part of the history.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.position.contains_key(name)
    }

    /// The names of its requests.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.requests.iter().map(|placed| placed.name.as_str())
    }

    /// Opens the request `name`: what follows belongs to it.
    pub(super) fn open(&mut self, name: &str, before: Checkpoint) {
        self.position.insert(name.into(), self.requests.len());
        self.requests.push(Placed { name: name.into(), before: before.0 });
    }

    /// The state an edit before the next request would come back to.
    pub(super) fn here(&self) -> Checkpoint {
        Checkpoint(self.calls.clone())
    }

    /// Cuts before the request `name`; does nothing when it is not part of the history.
    pub(super) fn cut(&mut self, name: &str) {
        let Some(&position) = self.position.get(name) else { return };
        for placed in self.requests.drain(position..).rev() {
            self.position.remove(&placed.name);
            self.calls = placed.before;
        }
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        *self = History::new();
    }

    /// A reply that is not recorded.
    pub(super) fn unknown_reply(&mut self) {
        self.calls = Calls::Unknown;
    }

    /// Appends a message that stands at `path`, and checks that a tool result answers a call.
    pub(super) fn append(&mut self, message: &Message, path: &str) -> Checked<()> {
        match message.role {
            Role::User => {}
            Role::Assistant if message.tool_calls.is_empty() => self.calls = Calls::None,
            Role::Assistant => {
                self.calls = Calls::Made(message.tool_calls.iter().map(|call| call.id.clone()).collect());
            }
            Role::Tool => self.check_result(message, path)?,
        }
        Ok(())
    }

    fn check_result(&self, result: &Message, path: &str) -> Checked<()> {
        let ids = match &self.calls {
            Calls::Unknown => return Ok(()),
            Calls::None => {
                return Err(Problem::new(
                    path,
                    "is a tool result, but the assistant message before it calls no tool",
                    "give that message `tool_calls`, or send the text as `user`",
                ));
            }
            Calls::Made(ids) => ids,
        };
        if ids.contains(&result.tool_call_id) {
            return Ok(());
        }
        let field = format!("{path}.tool_call_id");
        let known = || ids.iter().flatten().map(String::as_str);
        Err(match &result.tool_call_id {
            None => Problem::new(
                &field,
                "is missing, so nobody knows which call this result answers",
                known()
                    .next()
                    .map_or(String::new(), |id| format!("give it, for example `{}`", shortened(id))),
            ),
            Some(id) => Problem::new(
                &field,
                format!("no call of the assistant message before it has the id `{}`", shortened(id)),
                match nearest(id, known()).or(known().next()) {
                    Some(meant) => format!("did you mean `{}`?", shortened(meant)),
                    None => "give the call that id, or leave it out here".into(),
                },
            ),
        })
    }
}

/// See [`History::here`].
pub(super) struct Checkpoint(Calls);
