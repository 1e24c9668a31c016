//! Walking through a session: which conversation the next request carries.

use std::sync::Arc;

use super::{Conversation, Message, ReplayMode, RequestOverrides, Rewrite, Role, Session};
use crate::event::{HistoryChange, Nanos, Source};

/// A request, ready to be rendered.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// Turn number in its lane, from 1.
    pub number: u32,
    /// Its name: the request's in the file, `inject 1`, … for injected turns, with ` edited` behind it after a fork.
    pub name: String,
    /// Why it exists.
    pub source: Source,
    /// How its history relates to the turn before it.
    pub change: HistoryChange,
    /// The idle gap before it.
    pub idle: Nanos,
    /// The whole conversation, ending with the messages of this turn.
    pub conversation: Conversation,
    /// Messages this turn appended (for a compaction: what history was replaced by, and the appended ones).
    pub appended: Vec<Message>,
    /// Its overrides.
    pub overrides: RequestOverrides,
}

/// A position in a session. Cloning one is how a lane is forked.
///
/// A player remembers the steps it took and the replies they got, not a history per turn: a fork walks the same
/// steps again up to its turn. So a session of n turns costs memory for n turns, not for n histories.
#[derive(Debug, Clone)]
pub struct Player {
    session: Arc<Session>,
    mode: ReplayMode,
    standing: Standing,
    taken: Vec<Taken>,
    /// The edited turn that a fork stands before.
    edited: Option<Step>,
}

/// Everything the next turn's conversation depends on.
#[derive(Debug, Clone)]
struct Standing {
    /// The conversation so far. It lacks the reply to the last turn until that is given.
    conversation: Conversation,
    /// Where each request of the file begins in `conversation.messages`, in ascending order.
    starts: Vec<Start>,
    /// The next request of the file.
    next: usize,
    /// Whether a turn has become part of the history.
    begun: bool,
}

/// A request of the file begins at message `at` of the history.
#[derive(Debug, Clone, Copy)]
struct Start {
    request: usize,
    at: usize,
}

/// A turn, before it is applied to a history.
#[derive(Debug, Clone)]
struct Step {
    origin: Origin,
    /// What the turn appends instead of its own messages, once it has been edited.
    edit: Option<Vec<Message>>,
}

#[derive(Debug, Clone)]
enum Origin {
    /// A request of the file, by index.
    File(usize),
    /// The injected turn of this ordinal.
    Injected { ordinal: u32, messages: Vec<Message>, idle: Nanos },
}

/// A turn that has been taken.
#[derive(Debug, Clone)]
struct Taken {
    step: Step,
    appended: Vec<Message>,
    reply: Option<Message>,
}

impl Player {
    /// A player before the first request.
    pub fn new(session: Arc<Session>, mode: ReplayMode) -> Player {
        let conversation = Conversation {
            system: session.system.clone(),
            tools: session.tools.clone(),
            messages: Vec::new(),
        };
        let standing = Standing { conversation, starts: Vec::new(), next: 0, begun: false };
        Player { session, mode, standing, taken: Vec::new(), edited: None }
    }

    /// The session being played.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The mode.
    pub fn mode(&self) -> ReplayMode {
        self.mode
    }

    /// Turns taken so far.
    pub fn turns_taken(&self) -> u32 {
        count(self.taken.len())
    }

    /// Turns taken plus requests that are still to come from the file.
    pub fn turns_known(&self) -> u32 {
        let edited_injection =
            matches!(&self.edited, Some(Step { origin: Origin::Injected { .. }, .. })).into();
        self.turns_taken()
            .saturating_add(count(self.session.requests.len() - self.standing.next))
            .saturating_add(edited_injection)
    }

    /// Whether the turn last taken stands beside the history.
    pub fn last_is_side(&self) -> bool {
        self.taken.last().is_some_and(|last| last.step.is_side(&self.session))
    }

    /// The reply that the file records for the turn last taken, whichever mode is played in.
    pub fn recorded_reply(&self) -> Option<&Message> {
        match self.taken.last()?.step.origin {
            Origin::File(index) => self.session.requests[index].reply.as_ref(),
            Origin::Injected { .. } => None,
        }
    }

    /// The next turn, without taking it. `None` at the session's end.
    pub fn peek(&self) -> Option<Turn> {
        let step = self.upcoming()?;
        let mut standing = self.standing.clone();
        if !self.last_is_side() {
            standing.conversation.messages.extend(self.missing_reply());
        }
        Some(standing.apply(&self.session, &step, self.turns_taken()))
    }

    /// Takes the next turn. The reply must be given with [`Player::reply`] before the next one; where it was not,
    /// it counts as empty.
    pub fn take(&mut self) -> Option<Turn> {
        let step = self.upcoming()?;
        self.edited = None;
        Some(self.perform(step))
    }

    /// Takes a turn that is not in the file: `messages` are appended to the history as it stands and marked as
    /// injected. The file's remaining requests follow it.
    pub fn inject(&mut self, mut messages: Vec<Message>, idle: Nanos) -> Turn {
        for message in &mut messages {
            message.injected = true;
        }
        let injected = self.taken.iter().filter(|t| matches!(t.step.origin, Origin::Injected { .. })).count();
        let origin = Origin::Injected { ordinal: count(injected).saturating_add(1), messages, idle };
        self.perform(Step { origin, edit: None })
    }

    /// What the model said to the turn last taken. In recorded mode the recorded reply becomes history where
    /// there is one; in live mode, or where there is none, `text` does. Ignored when that turn has its reply already. The
    /// reply to a side request becomes history in neither mode.
    ///
    /// An edited turn keeps the recorded reply of the request it replaces: the tool results that follow in the file
    /// answer that reply's calls.
    pub fn reply(&mut self, text: &str) {
        let Some(last) = self.taken.last() else { return };
        if last.reply.is_none() {
            let reply = self.becomes_history(&last.step, text);
            self.answer(reply);
        }
    }

    /// A player that stands before turn `number` of this one (1-based, at most the last taken), with that
    /// turn's appended messages replaced by `messages`; taking the next turn yields the edited one, with source
    /// [`Source::Edit`] and change [`HistoryChange::Edit`]. A side request stays one: its source is [`Source::Side`], edited or
    /// not. The file's later requests follow it. `None` where there is no such turn.
    pub fn fork(&self, number: u32, messages: Vec<Message>) -> Option<Player> {
        let index = turn_index(number)?;
        let replaced = self.taken.get(index)?;
        let mut fork = Player::new(Arc::clone(&self.session), self.mode);
        for taken in &self.taken[..index] {
            fork.perform(taken.step.clone());
            if let Some(reply) = &taken.reply {
                fork.answer(reply.clone());
            }
        }
        fork.edited = Some(Step { origin: replaced.step.origin.clone(), edit: Some(messages) });
        Some(fork)
    }

    /// The messages that turn `number` appended, for an editor to start from.
    pub fn appended_by(&self, number: u32) -> Option<&[Message]> {
        Some(&self.taken.get(turn_index(number)?)?.appended)
    }

    fn upcoming(&self) -> Option<Step> {
        let from_file = || {
            let next = self.standing.next;
            (next < self.session.requests.len()).then_some(Step { origin: Origin::File(next), edit: None })
        };
        self.edited.clone().or_else(from_file)
    }

    fn perform(&mut self, step: Step) -> Turn {
        if let Some(reply) = self.missing_reply() {
            self.answer(reply);
        }
        let turn = self.standing.apply(&self.session, &step, self.turns_taken());
        self.taken.push(Taken { step, appended: turn.appended.clone(), reply: None });
        turn
    }

    /// The reply that the last turn counts as having got when nobody gave one.
    fn missing_reply(&self) -> Option<Message> {
        let last = self.taken.last()?;
        last.reply.is_none().then(|| self.becomes_history(&last.step, ""))
    }

    fn becomes_history(&self, step: &Step, text: &str) -> Message {
        let recorded = match (self.mode, &step.origin) {
            (ReplayMode::Recorded, Origin::File(index)) => self.session.requests[*index].reply.clone(),
            _ => None,
        };
        recorded.unwrap_or_else(|| Message::text(Role::Assistant, text))
    }

    fn answer(&mut self, reply: Message) {
        let side = self.last_is_side();
        if let Some(last) = self.taken.last_mut() {
            last.reply = Some(reply.clone());
            if !side {
                self.standing.conversation.messages.push(reply);
            }
        }
    }
}

/// What a step says, whatever the history it meets.
struct Told<'a> {
    name: String,
    idle: Nanos,
    rewrites: &'a [Rewrite],
    append: &'a [Message],
    overrides: RequestOverrides,
}

impl Step {
    /// Whether it is one of the file's side requests.
    fn is_side(&self, session: &Session) -> bool {
        matches!(self.origin, Origin::File(index) if session.requests[index].side)
    }

    fn source(&self, session: &Session) -> Source {
        match (&self.edit, &self.origin) {
            _ if self.is_side(session) => Source::Side,
            (Some(_), _) => Source::Edit,
            (None, Origin::File(_)) => Source::Replay,
            (None, Origin::Injected { .. }) => Source::Inject,
        }
    }

    fn told<'a>(&'a self, session: &'a Session) -> Told<'a> {
        let mut told = match &self.origin {
            Origin::File(index) => {
                let request = &session.requests[*index];
                Told {
                    name: request.name.clone(),
                    idle: request.idle,
                    rewrites: &request.rewrites,
                    append: &request.append,
                    overrides: request.overrides.clone(),
                }
            }
            Origin::Injected { ordinal, messages, idle } => Told {
                name: format!("inject {ordinal}"),
                idle: *idle,
                rewrites: &[],
                append: messages,
                overrides: RequestOverrides::default(),
            },
        };
        if self.edit.is_some() {
            told.name += " edited";
        }
        told.overrides.transport = told.overrides.transport.or_else(|| session.transport.clone());
        told
    }
}

impl Standing {
    /// Moves past `step`, which follows `turns_taken` turns.
    fn apply(&mut self, session: &Session, step: &Step, turns_taken: u32) -> Turn {
        let told = step.told(session);
        if let Origin::File(index) = step.origin {
            self.next = index + 1;
        }
        let (change, conversation, appended) = if step.is_side(session) {
            let appended = step.edit.clone().unwrap_or_else(|| told.append.to_vec());
            (HistoryChange::First, self.beside(appended.clone()), appended)
        } else {
            let (change, appended) = self.go_on(session, step, &told);
            (change, self.conversation.clone(), appended)
        };
        Turn {
            number: turns_taken.saturating_add(1),
            name: told.name,
            source: step.source(session),
            change: if step.edit.is_some() { HistoryChange::Edit } else { change },
            idle: told.idle,
            conversation,
            appended,
            overrides: told.overrides,
        }
    }

    /// The conversation of a side request that says `messages`.
    fn beside(&self, messages: Vec<Message>) -> Conversation {
        let Conversation { system, tools, .. } = &self.conversation;
        Conversation { system: system.clone(), tools: tools.clone(), messages }
    }

    /// Makes `step` a part of the history. Gives how history changed, and what the step appended.
    fn go_on(&mut self, session: &Session, step: &Step, told: &Told<'_>) -> (HistoryChange, Vec<Message>) {
        let mut kept = self.conversation.messages.len();
        let mut change = HistoryChange::Append;
        for rewrite in told.rewrites {
            let made = self.rewrite(session, rewrite);
            kept = kept.min(if made == HistoryChange::Compaction {
                0
            } else {
                self.conversation.messages.len()
            });
            change = more_drastic(change, made);
        }
        if let Origin::File(index) = step.origin {
            self.starts.push(Start { request: index, at: kept });
        }
        match &step.edit {
            Some(edit) => {
                self.conversation.messages.truncate(kept);
                self.conversation.messages.extend_from_slice(edit);
            }
            None => self.conversation.messages.extend_from_slice(told.append),
        }
        if !std::mem::replace(&mut self.begun, true) {
            change = HistoryChange::First;
        }
        (change, self.conversation.messages[kept..].to_vec())
    }

    /// Carries out one rewrite and says what it did; a rewrite that alters nothing is an append. An edit that names a
    /// request which is not part of the history alters nothing (the session reader refuses such files).
    fn rewrite(&mut self, session: &Session, rewrite: &Rewrite) -> HistoryChange {
        match rewrite {
            Rewrite::Edit { before } => {
                let named = |start: &Start| session.requests[start.request].name == *before;
                let Some(position) = self.starts.iter().rposition(named) else {
                    return HistoryChange::Append;
                };
                self.conversation.messages.truncate(self.starts[position].at);
                self.starts.truncate(position);
                HistoryChange::Edit
            }
            Rewrite::Compaction { messages } => {
                self.conversation.messages.clone_from(messages);
                self.starts.clear();
                HistoryChange::Compaction
            }
            Rewrite::System(system) => {
                let previous = self.conversation.system.replace(system.clone());
                if previous.as_ref() == Some(system) {
                    HistoryChange::Append
                } else {
                    HistoryChange::SystemChange
                }
            }
            Rewrite::Tools(tools) if *tools == self.conversation.tools => HistoryChange::Append,
            Rewrite::Tools(tools) => {
                self.conversation.tools.clone_from(tools);
                HistoryChange::ToolChange
            }
        }
    }
}

/// Of two changes made by one turn, the one that says most about what is left of the history.
fn more_drastic(a: HistoryChange, b: HistoryChange) -> HistoryChange {
    let rank = |change| match change {
        HistoryChange::First | HistoryChange::Append => 0,
        HistoryChange::Edit => 1,
        HistoryChange::ToolChange => 2,
        HistoryChange::SystemChange => 3,
        HistoryChange::Compaction => 4,
    };
    if rank(b) > rank(a) { b } else { a }
}

fn turn_index(number: u32) -> Option<usize> {
    usize::try_from(number).ok()?.checked_sub(1)
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
