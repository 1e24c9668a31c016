//! One-line input with a cursor: breakpoints, a fault, a query, a filter.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use unicode_segmentation::UnicodeSegmentation;

/// A line being typed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LineInput {
    text: String,
    /// Byte offset of the cursor, at a grapheme boundary.
    cursor: usize,
}

/// What a key did to the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineKey {
    /// The text changed.
    Changed,
    /// Submitted.
    Entered,
    /// Left without submitting.
    Left,
    /// Nothing that concerns the text.
    Other,
}

impl LineInput {
    /// A line with `text` in it and the cursor at its end.
    pub fn new(text: impl Into<String>) -> LineInput {
        let text = text.into();
        LineInput { cursor: text.len(), text }
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text before and behind the cursor.
    pub fn halves(&self) -> (&str, &str) {
        self.text.split_at(self.cursor)
    }

    /// Inserts `text` at the cursor, less what is no printable character.
    pub fn insert(&mut self, text: &str) {
        let text: String = text.chars().filter(|c| !c.is_control()).collect();
        self.text.insert_str(self.cursor, &text);
        self.cursor += text.len();
    }

    /// Takes a key.
    pub fn key(&mut self, key: KeyEvent) -> LineKey {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        let alt = key.modifiers.contains(KeyModifiers::ALT);
        match key.code {
            KeyCode::Esc => return LineKey::Left,
            KeyCode::Enter => return LineKey::Entered,
            KeyCode::Char('c') if control => return LineKey::Left,
            KeyCode::Char('u') if control => {
                self.text.replace_range(..self.cursor, "");
                self.cursor = 0;
                return LineKey::Changed;
            }
            KeyCode::Char('w') if control => {
                let (before, _) = self.halves();
                let kept = before.trim_end();
                let from = kept.rfind([' ', ',']).map_or(0, |at| at + 1);
                self.text.replace_range(from..self.cursor, "");
                self.cursor = from;
                return LineKey::Changed;
            }
            KeyCode::Backspace => {
                let from = self.before();
                self.text.replace_range(from..self.cursor, "");
                self.cursor = from;
                return LineKey::Changed;
            }
            KeyCode::Delete => {
                let to = self.behind();
                self.text.replace_range(self.cursor..to, "");
                return LineKey::Changed;
            }
            KeyCode::Left => self.cursor = self.before(),
            KeyCode::Right => self.cursor = self.behind(),
            KeyCode::Home => self.cursor = 0,
            KeyCode::End => self.cursor = self.text.len(),
            KeyCode::Char('a') if control => self.cursor = 0,
            KeyCode::Char('e') if control => self.cursor = self.text.len(),
            KeyCode::Char(c) if !control && !alt => {
                self.insert(c.encode_utf8(&mut [0; 4]));
                return LineKey::Changed;
            }
            _ => return LineKey::Other,
        }
        LineKey::Other
    }

    fn before(&self) -> usize {
        self.halves().0.grapheme_indices(true).next_back().map_or(0, |(at, _)| at)
    }

    fn behind(&self) -> usize {
        self.cursor + self.halves().1.graphemes(true).next().map_or(0, str::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(line: &mut LineInput, code: KeyCode) -> LineKey {
        line.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn the_cursor_moves_over_whole_characters() {
        let mut line = LineInput::new("aé日");
        press(&mut line, KeyCode::Left);
        assert_eq!(line.halves(), ("aé", "日"));
        assert_eq!(press(&mut line, KeyCode::Backspace), LineKey::Changed);
        press(&mut line, KeyCode::Char('x'));
        assert_eq!(line.halves(), ("ax", "日"));
        press(&mut line, KeyCode::Delete);
        press(&mut line, KeyCode::Delete);
        assert_eq!(line.text(), "ax");
        press(&mut line, KeyCode::Home);
        press(&mut line, KeyCode::Left);
        press(&mut line, KeyCode::Backspace);
        assert_eq!(line.halves(), ("", "ax"));
    }

    #[test]
    fn control_keys_edit_as_in_a_shell_and_pasted_line_ends_are_dropped() {
        let control = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
        let mut line = LineInput::new("suffix>4000, cliff");
        assert_eq!(line.key(control('w')), LineKey::Changed);
        assert_eq!(line.text(), "suffix>4000, ");
        line.insert("debt>1\r\n");
        assert_eq!(line.text(), "suffix>4000, debt>1");
        line.key(control('u'));
        assert_eq!(line.halves(), ("", ""));
        assert_eq!(line.key(control('c')), LineKey::Left);
        assert_eq!(press(&mut line, KeyCode::Enter), LineKey::Entered);
    }
}
