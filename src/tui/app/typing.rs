//! Keys while something lies over the panes: help, palette, editor, filter line, questions.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::{Effect, Model, Overlay, interrupt, perform, send_fault};
use crate::engine::Command;
use crate::tui::action::{self, ActionId};
use crate::tui::ask::Ask;
use crate::tui::editor::{self, Editor};
use crate::tui::explorer::{Explorer, Outcome};
use crate::tui::line::{LineInput, LineKey};

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
    mut query: LineInput,
    mut chosen: usize,
) -> Vec<Effect> {
    let found = action::search(model, query.text());
    match query.key(key) {
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
        editor::Outcome::Left => Vec::new(),
        editor::Outcome::Editing => {
            model.ui.overlay = Some(Overlay::Editor(editor));
            Vec::new()
        }
        editor::Outcome::Changed => {
            model.ui.overlay = Some(Overlay::Editor(editor));
            vec![Effect::AwaitTypingPause]
        }
        editor::Outcome::Empty => {
            model.ui.overlay = Some(Overlay::Editor(editor));
            model.warn("nothing to submit: the text is empty");
            Vec::new()
        }
        editor::Outcome::Submitted(command) => {
            model.ui.awaiting_fork = matches!(command, Command::Fork { .. });
            model.ui.selection = None;
            model.toast(if model.ui.awaiting_fork { "forking" } else { "turn injected" });
            vec![Effect::Send(command)]
        }
    }
}

/// Asks the engine what the text in the editor would cost if it were sent now.
pub(super) fn ask_for_cost(model: &mut Model) -> Vec<Effect> {
    let alive = !model.source_closed && model.ledger().failure().is_none();
    let Some(Overlay::Editor(editor)) = &mut model.ui.overlay else { return Vec::new() };
    match editor.subject().filter(|_| alive) {
        None => {
            editor.cost.withdraw();
            Vec::new()
        }
        Some((lane, subject)) => {
            model.ui.ticket += 1;
            editor.cost.asked(model.ui.ticket);
            vec![Effect::Send(Command::Preview { ticket: model.ui.ticket, lane, subject })]
        }
    }
}

pub(super) fn on_ask_key(model: &mut Model, key: KeyEvent, mut ask: Box<Ask>) -> Vec<Effect> {
    match ask.line.key(key) {
        LineKey::Left => return Vec::new(),
        LineKey::Entered => match ask.command(model.ui.lane) {
            Ok(Command::Fault { fault, .. }) => return vec![send_fault(model, fault)],
            Ok(command) => return vec![Effect::Send(command)],
            Err(error) => ask.error = Some(error),
        },
        LineKey::Changed => ask.error = None,
        LineKey::Other => {}
    }
    model.ui.overlay = Some(Overlay::Ask(ask));
    Vec::new()
}

pub(super) fn on_explorer_key(model: &mut Model, key: KeyEvent, mut explorer: Box<Explorer>) -> Vec<Effect> {
    let mut effects = Vec::new();
    match explorer.key(key, model.ledger().sparse_by_hand()) {
        Outcome::Left => return effects,
        Outcome::Stays => {}
        Outcome::Ask if model.recording.is_some() || model.source_closed => {
            model.warn("other scores need the attention, which only a running engine keeps");
        }
        Outcome::Ask => {
            model.ui.ticket += 1;
            let question = explorer.question(model.ui.ticket);
            effects.extend(question.map(|question| model.send_to_focus(question)));
        }
        Outcome::Set(command) => match action::can_set_specprefill(model) {
            Ok(()) => effects.push(model.send_to_focus(command)),
            Err(why) => model.warn(why),
        },
    }
    model.ui.overlay = Some(Overlay::Explorer(explorer));
    effects
}

pub(super) fn on_filter_key(model: &mut Model, key: KeyEvent, mut line: LineInput) {
    let slot = model.ui.focus.index();
    match line.key(key) {
        LineKey::Left => {
            model.ui.filter[slot].clear();
            return;
        }
        LineKey::Entered => {
            model.ui.filter[slot] = line.text().to_owned();
            return;
        }
        LineKey::Changed | LineKey::Other => {}
    }
    model.ui.filter[slot] = line.text().to_owned();
    model.ui.overlay = Some(Overlay::Filter { line });
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
