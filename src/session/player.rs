//! Walking through a session: which conversation the next request carries.

use std::sync::Arc;

use super::{Conversation, Message, ReplayMode, RequestOverrides, Session};
use crate::event::{HistoryChange, Nanos, Source};

/// A request, ready to be rendered.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// Turn number in its lane, from 1.
    pub number: u32,
    /// Its name.
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
#[derive(Debug, Clone)]
pub struct Player {
    session: Arc<Session>,
    mode: ReplayMode,
}

impl Player {
    /// A player before the first request.
    pub fn new(session: Arc<Session>, mode: ReplayMode) -> Player {
        Player { session, mode }
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
        unimplemented!()
    }

    /// Turns taken plus requests that are still to come from the file.
    pub fn turns_known(&self) -> u32 {
        unimplemented!()
    }

    /// The next turn, without taking it. `None` at the session's end.
    pub fn peek(&self) -> Option<Turn> {
        unimplemented!()
    }

    /// Takes the next turn. The reply must be given with [`Player::reply`] before the next one.
    pub fn take(&mut self) -> Option<Turn> {
        unimplemented!()
    }

    /// Takes a turn that is not in the file: `messages` are appended to the history as it stands and marked as
    /// injected. The file's remaining requests follow it.
    pub fn inject(&mut self, messages: Vec<Message>, idle: Nanos) -> Turn {
        let _ = (messages, idle);
        unimplemented!()
    }

    /// What the model said to the turn last taken. In recorded mode the recorded reply becomes history where
    /// there is one; in live mode, or where there is none, `text` does.
    pub fn reply(&mut self, text: &str) {
        let _ = text;
        unimplemented!()
    }

    /// A player that stands before turn `number` of this one (1-based, at most the last taken), with that
    /// turn's appended messages replaced by `messages`; taking the next turn yields the edited one, with source
    /// [`Source::Edit`] and change [`HistoryChange::Edit`]. The file's later requests follow it. `None` where there is no such turn.
    pub fn fork(&self, number: u32, messages: Vec<Message>) -> Option<Player> {
        let _ = (number, messages);
        unimplemented!()
    }

    /// The messages that turn `number` appended, for an editor to start from.
    pub fn appended_by(&self, number: u32) -> Option<&[Message]> {
        let _ = number;
        unimplemented!()
    }
}
