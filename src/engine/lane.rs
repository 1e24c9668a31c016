//! A lane: one line of history, and what its requests left to compare the next one with.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cache::served::Predecessor;
use crate::event::Source;
use crate::session::{Message, Player, Role, Turn};

/// Turns whose tokens are kept for comparison. A fork further back than this has no predecessor.
const KEPT_PREDECESSORS: usize = 256;

/// A turn typed in by hand that waits for the request under way.
#[derive(Debug, Clone)]
pub(super) struct Injection {
    pub(super) messages: Vec<Message>,
    pub(super) max_output_tokens: Option<u64>,
}

/// A lane.
#[derive(Debug, Clone)]
pub(super) struct Lane {
    pub(super) player: Player,
    pub(super) injections: Vec<Injection>,
    /// Turns the session cut leaves; `None` where nothing is cut.
    pub(super) cut_at: Option<u32>,
    served: BTreeMap<u32, Arc<Predecessor>>,
    last_reply: String,
}

impl Lane {
    pub(super) fn new(player: Player) -> Lane {
        Lane {
            player,
            injections: Vec::new(),
            cut_at: None,
            served: BTreeMap::new(),
            last_reply: String::new(),
        }
    }

    /// A lane that stands before `turn` of this one, the last of that turn's messages that is not the model's replaced.
    /// `None` where there is no such turn or message.
    pub(super) fn fork(&self, turn: u32, role: Role, content: String) -> Option<Lane> {
        let mut messages = self.player.appended_by(turn)?.to_vec();
        let edited = messages.iter_mut().rfind(|message| message.role != Role::Assistant)?;
        // A call is answered by a tool result; said by somebody else, the text answers nothing.
        let tool_call_id = edited.tool_call_id.take().filter(|_| role == Role::Tool);
        *edited = Message { tool_call_id, injected: true, ..Message::text(role, content) };
        let player = self.player.fork(turn, messages)?;
        let mut lane = Lane::new(player);
        lane.cut_at = self.cut_at;
        lane.served = self.served.range(..turn).map(|(n, p)| (*n, Arc::clone(p))).collect();
        Some(lane)
    }

    /// Takes the next turn: an injected one first, else the session's.
    pub(super) fn take(&mut self) -> Option<(Turn, Option<u64>)> {
        if !self.injections.is_empty() {
            let injection = self.injections.remove(0);
            self.cut_at = self.cut_at.map(|turns| turns + 1);
            let turn = self.player.inject(injection.messages, Default::default());
            return Some((turn, injection.max_output_tokens));
        }
        if self.is_cut() {
            return None;
        }
        self.player.take().map(|turn| (turn, None))
    }

    /// The number of the turn that would come next.
    pub(super) fn next_turn(&self) -> Option<u32> {
        let next = self.player.turns_taken() + 1;
        (!self.injections.is_empty() || next <= self.turns_known()).then_some(next)
    }

    /// Turns taken and still to come.
    pub(super) fn turns_known(&self) -> u32 {
        let known = self.player.turns_known();
        self.cut_at.map_or(known, |cut| known.min(cut.max(self.player.turns_taken())))
    }

    /// Whether the session's remaining requests do not fit the context.
    fn is_cut(&self) -> bool {
        self.cut_at.is_some_and(|cut| self.player.turns_taken() >= cut)
    }

    /// Records how a turn ended. A turn that computed nothing, or that stands beside the history, leaves the one before it to
    /// compare with.
    pub(super) fn ended(&mut self, text: &str, served: Option<Arc<Predecessor>>) {
        self.player.reply(text);
        let side = self.player.last_is_side();
        if !side {
            text.clone_into(&mut self.last_reply);
        }
        let turn = self.player.turns_taken();
        if let Some(served) = served.filter(|_| !side).or_else(|| self.served_before(turn)) {
            self.served.insert(turn, served);
        }
        if self.served.len() > KEPT_PREDECESSORS {
            self.served.pop_first();
        }
    }

    /// What was computed last in the history.
    pub(super) fn latest(&self) -> Option<Arc<Predecessor>> {
        self.served.last_key_value().map(|(_, served)| Arc::clone(served))
    }

    /// The request before `turn` in its history. A side request has none.
    pub(super) fn predecessor(&self, turn: &Turn) -> Option<Arc<Predecessor>> {
        self.served_before(turn.number).filter(|_| turn.source != Source::Side)
    }

    fn served_before(&self, turn: u32) -> Option<Arc<Predecessor>> {
        self.served.get(&turn.checked_sub(1)?).cloned()
    }

    /// The reply that history carries for the last turn, where it is another than the model gave.
    pub(super) fn recorded_reply<'t>(&self, turn: &'t Turn) -> Option<&'t Message> {
        let before = turn.conversation.messages.len().checked_sub(turn.appended.len() + 1)?;
        let reply = &turn.conversation.messages[before];
        let same = reply.tool_calls.is_empty() && reply.content == self.last_reply;
        (reply.role == Role::Assistant && !same).then_some(reply)
    }
}
