//! Keys while something lies over the panes: help, palette, editor, filter line, the question before quitting.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::{Effect, Model, Overlay, interrupt, perform};
use crate::engine::Command;
use crate::tui::action::{self, ActionId};
use crate::tui::editor::{Editor, Outcome};

pub(super) fn on_help_key(model: &mut Model, key: KeyEvent, top: usize) -> Vec<Effect> {
    let (lines, height) = model.ui.layout.overlay;
    let last = lines.saturating_sub(height);
    let top = match action::for_key(model, key).map(|a| a.id) {
        Some(ActionId::Back | ActionId::Help) => return Vec::new(),
        Some(ActionId::Interrupt) => return interrupt(model),
        Some(ActionId::Up) => top.saturating_sub(1),
        Some(ActionId::Down) => top + 1,
        Some(ActionId::PageUp) => top.saturating_sub(height),
        Some(ActionId::PageDown) => top + height,
        Some(ActionId::First) => 0,
        Some(ActionId::Last) => last,
        _ => top,
    };
    model.ui.overlay = Some(Overlay::Help { top: top.min(last) });
    Vec::new()
}

pub(super) fn on_palette_key(
    model: &mut Model,
    key: KeyEvent,
    mut query: String,
    mut chosen: usize,
) -> Vec<Effect> {
    let found = action::search(model, &query);
    match line_key(key, &mut query) {
        LineKey::Changed => chosen = 0,
        LineKey::Left => return Vec::new(),
        LineKey::Entered => {
            return found.get(chosen).map_or_else(Vec::new, |action| perform(model, action));
        }
        LineKey::Other => match key.code {
            KeyCode::Up | KeyCode::BackTab => chosen = chosen.saturating_sub(1),
            KeyCode::Down | KeyCode::Tab => chosen = (chosen + 1).min(found.len().saturating_sub(1)),
            _ => {}
        },
    }
    model.ui.overlay = Some(Overlay::Palette { query, chosen });
    Vec::new()
}

pub(super) fn on_editor_key(model: &mut Model, key: KeyEvent, mut editor: Box<Editor>) -> Vec<Effect> {
    match editor.key(key) {
        Outcome::Left => Vec::new(),
        Outcome::Editing => {
            model.ui.overlay = Some(Overlay::Editor(editor));
            Vec::new()
        }
        Outcome::Empty => {
            model.ui.overlay = Some(Overlay::Editor(editor));
            model.warn("nothing to submit: the text is empty");
            Vec::new()
        }
        Outcome::Submitted(command) => {
            model.ui.awaiting_fork = matches!(command, Command::Fork { .. });
            model.ui.selection = None;
            model.toast(if model.ui.awaiting_fork { "forking" } else { "turn injected" });
            vec![Effect::Send(command)]
        }
    }
}

pub(super) fn on_filter_key(model: &mut Model, key: KeyEvent, mut text: String) {
    let slot = model.ui.focus.index();
    match line_key(key, &mut text) {
        LineKey::Left => {
            model.ui.filter[slot].clear();
            return;
        }
        LineKey::Entered => {
            model.ui.filter[slot] = text;
            return;
        }
        LineKey::Changed | LineKey::Other => {}
    }
    model.ui.filter[slot].clone_from(&text);
    model.ui.overlay = Some(Overlay::Filter { text });
}

pub(super) fn on_confirm_key(model: &mut Model, key: KeyEvent) -> Vec<Effect> {
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => vec![Effect::Quit],
        KeyCode::Char('y' | 'Y' | 'q') | KeyCode::Enter => vec![Effect::Quit],
        KeyCode::Char('n' | 'N') | KeyCode::Esc => Vec::new(),
        _ => {
            model.ui.overlay = Some(Overlay::ConfirmQuit);
            Vec::new()
        }
    }
}

/// What a key did to a one-line input.
enum LineKey {
    Changed,
    Entered,
    Left,
    Other,
}

fn line_key(key: KeyEvent, line: &mut String) -> LineKey {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Esc => LineKey::Left,
        KeyCode::Char('c') if control => LineKey::Left,
        KeyCode::Char('u') if control => {
            line.clear();
            LineKey::Changed
        }
        KeyCode::Enter => LineKey::Entered,
        KeyCode::Backspace => {
            line.pop();
            LineKey::Changed
        }
        KeyCode::Char(c) if !control && !key.modifiers.contains(KeyModifiers::ALT) => {
            line.push(c);
            LineKey::Changed
        }
        _ => LineKey::Other,
    }
}
