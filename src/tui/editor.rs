//! The multi-line editor in which turns are injected and edited.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui_textarea::{TextArea, WrapMode};

use super::preview::CostQuestion;
use crate::engine::{Command, Subject};
use crate::event::{LaneId, Segment, TranscriptItem};
use crate::ledger::RequestFacts;
use crate::session::{Message, Role};

/// What the text is for.
#[derive(Debug, Clone, PartialEq)]
pub enum Purpose {
    /// A turn appended to a lane.
    Inject {
        /// The lane.
        lane: LaneId,
    },
    /// A replacement for a turn's message.
    Edit {
        /// The lane.
        lane: LaneId,
        /// The turn, from 1.
        turn: u32,
    },
}

/// An open editor.
#[derive(Debug, Clone)]
pub struct Editor {
    /// What the text is for.
    pub purpose: Purpose,
    /// Who is to have said it.
    pub role: Role,
    /// The text.
    pub area: TextArea<'static>,
    /// What sending it now would cost.
    pub cost: CostQuestion,
}

/// What a key did to the editor.
#[derive(Debug, PartialEq)]
pub enum Outcome {
    /// Still editing; text and role are as before.
    Editing,
    /// Text or role are others now.
    Changed,
    /// Left without submitting.
    Left,
    /// Submitted; the command to send.
    Submitted(Command),
    /// Nothing to submit: the text is empty.
    Empty,
}

impl Editor {
    /// An empty editor for a turn that is appended to `lane`.
    pub fn inject(lane: LaneId) -> Editor {
        Editor {
            purpose: Purpose::Inject { lane },
            role: Role::User,
            area: area(""),
            cost: CostQuestion::default(),
        }
    }

    /// An editor with the message of `request` that can be edited, or `None` if it has none. Submitting it forks `lane`
    /// (the lane in view, whose history holds the turn).
    pub fn edit(lane: LaneId, request: &RequestFacts) -> Option<Editor> {
        let item = &request.items[editable_item(&request.items)?];
        let role = if item.segment == Segment::ToolResult { Role::Tool } else { Role::User };
        let purpose = Purpose::Edit { lane, turn: request.turn };
        Some(Editor { purpose, role, area: area(&item.text), cost: CostQuestion::default() })
    }

    /// Takes a key.
    pub fn key(&mut self, key: KeyEvent) -> Outcome {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        let alt = key.modifiers.contains(KeyModifiers::ALT);
        match key.code {
            KeyCode::Esc => return Outcome::Left,
            KeyCode::Char('c') if control => return Outcome::Left,
            KeyCode::Char('d' | 's') if control => return self.submit(),
            KeyCode::Enter if alt => return self.submit(),
            KeyCode::Char('t') if control => {
                self.role = if self.role == Role::User { Role::Tool } else { Role::User };
            }
            _ if self.area.input(key) => {}
            _ => return Outcome::Editing,
        }
        self.cost.outdate();
        Outcome::Changed
    }

    /// Takes pasted text as it is: no key in it means anything.
    pub fn paste(&mut self, text: &str) {
        self.area.insert_str(text.replace("\r\n", "\n").replace('\r', "\n"));
        self.cost.outdate();
    }

    /// The headline: what will happen on submit.
    pub fn title(&self) -> String {
        match &self.purpose {
            Purpose::Inject { lane } => {
                format!("inject a turn into lane {} as {}", lane.label(), self.role.word())
            }
            Purpose::Edit { lane, turn, .. } => {
                format!(
                    "edit turn {turn} of lane {} as {}: forks the session",
                    lane.label(),
                    self.role.word()
                )
            }
        }
    }

    /// The turn as it stands, and its lane; `None` while there is no text.
    pub fn subject(&self) -> Option<(LaneId, Subject)> {
        let text = self.area.lines().join("\n");
        if text.trim().is_empty() {
            return None;
        }
        Some(match self.purpose {
            Purpose::Inject { lane } => {
                let message = Message { injected: true, ..Message::text(self.role, text) };
                (lane, Subject::Injection(vec![message]))
            }
            Purpose::Edit { lane, turn } => (lane, Subject::Fork { turn, role: self.role, content: text }),
        })
    }

    fn submit(&self) -> Outcome {
        let Some((lane, subject)) = self.subject() else { return Outcome::Empty };
        Outcome::Submitted(match subject {
            Subject::Injection(messages) => Command::Inject { lane, messages, max_output_tokens: None },
            Subject::Fork { turn, role, content } => Command::Fork { lane, turn, role, content },
        })
    }
}

fn area(text: &str) -> TextArea<'static> {
    let mut area = TextArea::new(text.split('\n').map(str::to_owned).collect());
    area.set_wrap_mode(WrapMode::WordOrGlyph);
    area.set_cursor_line_style(ratatui::style::Style::new());
    area.move_cursor(ratatui_textarea::CursorMove::Bottom);
    area.move_cursor(ratatui_textarea::CursorMove::End);
    area
}

/// The message that an edit of a turn with these items changes: the last one somebody else than the model wrote.
pub fn editable_item(items: &[TranscriptItem]) -> Option<usize> {
    items
        .iter()
        .rposition(|item| matches!(item.segment, Segment::User | Segment::ToolResult | Segment::Injected))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(editor: &mut Editor, code: KeyCode, modifiers: KeyModifiers) -> Outcome {
        editor.key(KeyEvent::new(code, modifiers))
    }

    #[test]
    fn an_injected_turn_carries_role_and_lines() {
        let mut editor = Editor::inject(LaneId(2));
        editor.paste("first\r\nsecond q");
        assert_eq!(press(&mut editor, KeyCode::Enter, KeyModifiers::NONE), Outcome::Changed);
        assert_eq!(press(&mut editor, KeyCode::Left, KeyModifiers::NONE), Outcome::Editing);
        press(&mut editor, KeyCode::Right, KeyModifiers::NONE);
        press(&mut editor, KeyCode::Char('?'), KeyModifiers::NONE);
        press(&mut editor, KeyCode::Char('t'), KeyModifiers::CONTROL);
        let Outcome::Submitted(Command::Inject { lane, messages, .. }) =
            press(&mut editor, KeyCode::Char('d'), KeyModifiers::CONTROL)
        else {
            panic!("it must submit")
        };
        assert_eq!(lane, LaneId(2));
        assert_eq!(messages[0].content, "first\nsecond q\n?");
        assert_eq!((messages[0].role, messages[0].injected), (Role::Tool, true));
    }

    #[test]
    fn an_empty_text_is_not_a_turn() {
        let mut editor = Editor::inject(LaneId(0));
        assert_eq!(press(&mut editor, KeyCode::Enter, KeyModifiers::ALT), Outcome::Empty);
        assert_eq!(press(&mut editor, KeyCode::Esc, KeyModifiers::NONE), Outcome::Left);
    }
}
