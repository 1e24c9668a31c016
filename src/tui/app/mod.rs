//! The interface's state and how it changes: `update(model, message) -> effects`. No terminal, no engine, no clock.

mod movement;
mod typing;
mod ui;

use crossterm::event::{KeyEvent, KeyEventKind, MouseEvent};

use super::action::{self, Action, ActionId};
use super::ask::Ask;
use super::editor::Editor;
use super::explorer::Explorer;
use super::faults;
use super::line::LineInput;
use super::log::LogRing;
use super::recovery;
use super::runs::Runs;
use super::scrub::Recording;
use super::sparse;
use super::speculation;
use crate::compare::News;
use crate::engine::{Command, Fault};
use crate::event::{Body, Event, Gate, LaneId};
use crate::ledger::{Ledger, RequestFacts};
use crate::report::settings_line;
pub use movement::visible_requests;
use movement::{
    cycle_focus, focus, on_mouse, open, page, show_lane, sideways, step, switch_lane, switch_run, to_first,
    to_last, toggle_sheet,
};
use typing::{
    ask_for_cost, on_ask_key, on_confirm_key, on_editor_key, on_explorer_key, on_filter_key, on_help_key,
    on_palette_key,
};
pub use ui::{Layout, Overlay, Page, Pane, Scroll, Toast, Ui, Weighed};

/// Facts and interface state.
#[derive(Debug, Default)]
pub struct Model {
    /// The facts: of one run, or of lanes that are compared.
    pub runs: Runs,
    /// The program's log.
    pub log: LogRing,
    /// The recording, when there is no engine.
    pub recording: Option<Recording>,
    /// Whether the event source has ended.
    pub source_closed: bool,
    /// Whether a comparison of the session can be opened from here.
    pub can_compare: bool,
    /// Whether this is a comparison that was opened from a run.
    pub beside: bool,
    /// Panics of other threads, as they happened.
    pub panics: Vec<String>,
    /// Interface state.
    pub ui: Ui,
}

/// Something that happened.
#[derive(Debug)]
pub enum Msg {
    /// A key.
    Key(KeyEvent),
    /// Pasted text.
    Paste(String),
    /// The mouse.
    Mouse(MouseEvent),
    /// What the engine tells, or the engines.
    News(Vec<News>),
    /// No more events will come.
    SourceClosed,
    /// Nothing was typed for a while after [`Effect::AwaitTypingPause`].
    TypingPaused,
    /// A thread other than the interface's panicked.
    WorkerPanic(String),
}

/// Something to do outside.
#[derive(Debug, PartialEq)]
pub enum Effect {
    /// Send a command to the engine; of several, to every one.
    Send(Command),
    /// Send a command to the engine of the lane at this place only.
    SendTo(usize, Command),
    /// Open a comparison of the session, or return to it, or from it.
    Compare,
    /// Say [`Msg::TypingPaused`] as soon as nothing was typed for a moment.
    AwaitTypingPause,
    /// Leave.
    Quit,
    /// Capture the mouse, or stop doing so.
    Mouse(bool),
    /// Return to the shell.
    Suspend,
    /// Draw everything anew.
    Redraw,
}

impl Model {
    /// A model that follows engines, of which each has a name here; a single one needs none.
    pub fn live(names: Vec<String>, log: LogRing) -> Model {
        let mut model = Model { log, runs: Runs::new(names), ..Model::default() };
        if model.runs.are_compared() {
            model.ui.focus = Pane::Compare;
            model.ui.lower = Some(Pane::Compare);
        }
        model
    }

    /// A model of a recording, standing at its end.
    pub fn recording(events: Vec<Event>, log: LogRing) -> Model {
        let mut model = Model { log, recording: Some(Recording::new(events)), ..Model::default() };
        model.show_recording();
        model
    }

    /// What the run in focus has told.
    pub fn ledger(&self) -> &Ledger {
        self.runs.ledger()
    }

    /// The requests of the history in view, oldest first.
    pub fn history(&self) -> Vec<&RequestFacts> {
        self.ledger().history(self.ui.lane)
    }

    /// The request that the panes describe: the selected one, or the latest of the lane in view.
    pub fn selected(&self) -> Option<&RequestFacts> {
        let chosen = self.ui.selection.and_then(|id| self.ledger().request(id));
        chosen.or_else(|| self.history().pop())
    }

    /// The request that runs now. Nothing runs in a recording or after the engine has ended. Of several runs, in the one in focus or, where
    /// nothing runs there, in another.
    pub fn running(&self) -> Option<&RequestFacts> {
        self.running_in().map(|(_, request)| request)
    }

    /// The same with the place of its run.
    pub fn running_in(&self) -> Option<(usize, &RequestFacts)> {
        let alive = self.recording.is_none() && !self.source_closed;
        if alive { self.runs.current() } else { None }
    }

    /// Whether `request`, of the run in focus, runs now.
    pub fn runs_now(&self, request: &RequestFacts) -> bool {
        self.running_in()
            .is_some_and(|(place, running)| place == self.runs.focus() && running.id == request.id)
    }

    /// Has the run in focus obey: of lanes that are compared, no other.
    pub(super) fn send_to_focus(&self, command: Command) -> Effect {
        if self.runs.are_compared() {
            Effect::SendTo(self.runs.focus(), command)
        } else {
            Effect::Send(command)
        }
    }

    fn show_recording(&mut self) {
        let Some(recording) = &self.recording else { return };
        self.runs.show(recording.visible());
        self.ui.selection = None;
        self.ui.deselect();
        if self.ledger().lane(self.ui.lane).is_none() {
            self.ui.lane = LaneId::default();
        }
    }

    /// Comes into sight again.
    pub(super) fn arrive(&mut self) {
        let words = match (self.runs.are_compared(), self.ledger().requests().next().is_some()) {
            (true, false) => "comparison: `n` runs a turn of every lane, `r` all of them; `c` returns",
            (true, true) => "comparison; `c` returns to the run",
            (false, _) => "back at the run; `c` shows the comparison",
        };
        self.toast(words);
    }

    pub(super) fn toast(&mut self, text: impl Into<String>) {
        self.ui.toast = Some(Toast { text: text.into(), warning: false });
    }

    pub(super) fn warn(&mut self, text: impl Into<String>) {
        self.ui.toast = Some(Toast { text: text.into(), warning: true });
    }
}

/// Takes a message; says what is to be done outside.
pub fn update(model: &mut Model, msg: Msg) -> Vec<Effect> {
    match msg {
        Msg::Key(key) if key.kind == KeyEventKind::Release => Vec::new(),
        Msg::Key(key) => on_key(model, key),
        Msg::Paste(text) => on_paste(model, &text),
        Msg::Mouse(mouse) => on_mouse(model, mouse),
        Msg::News(news) => {
            for news in &news {
                model.runs.apply(news);
                if let News::Event { lane, event } = news {
                    on_event(model, *lane, event);
                }
            }
            outdate_cost(model, &news)
        }
        Msg::TypingPaused => ask_for_cost(model),
        Msg::SourceClosed => {
            model.source_closed = true;
            Vec::new()
        }
        Msg::WorkerPanic(message) => {
            model.panics.push(message);
            Vec::new()
        }
    }
}

fn on_event(model: &mut Model, place: usize, event: &Event) {
    // What all lanes of a comparison do is told of one of them; what one does by itself, whichever it is.
    let of_any = matches!(
        event.body,
        Body::EngineFailed { .. }
            | Body::SpecPrefillSet { .. }
            | Body::SpeculationSet { .. }
            | Body::RecoverySet { .. }
    );
    if place != model.runs.focus() && !of_any {
        return;
    }
    match &event.body {
        Body::LaneOpened { parent: Some(_), .. } if model.ui.awaiting_fork => {
            model.ui.awaiting_fork = false;
            show_lane(model, event.lane.unwrap_or_default());
            model.toast(format!("lane {} opened; `[` and `]` switch", model.ui.lane.label()));
        }
        // What was said of a model that was still loading is true no more.
        Body::RunStarted(run) => {
            model.ui.toast = None;
            if let Some(settings) = settings_line(run) {
                model.toast(settings);
            }
        }
        Body::EngineFailed { message } => model.warn(format!("engine failed: {message}")),
        Body::SpecPrefillSet { .. } => {
            let words = sparse::switched_words(model.runs.ledger_of(place));
            let lane = model.runs.label(place);
            model.toast(format!("{lane}{words}"));
        }
        Body::SpeculationSet { .. } => {
            let (words, warning) = speculation::set_words(model.runs.ledger_of(place));
            let text = format!("{}{words}", model.runs.label(place));
            model.ui.toast = Some(Toast { text, warning });
        }
        Body::RecoverySet { enabled } => {
            let words = recovery::set_words(model.runs.ledger_of(place), *enabled);
            let lane = model.runs.label(place);
            model.toast(format!("{lane}{words}"));
        }
        Body::RecoveryEnded(ended) if recovery::is_worrying(ended.end) => {
            model.warn(format!("recovery job {} ended: {}", ended.job.0, ended.end.words()));
        }
        Body::DraftingEnded { message } => model.warn(format!("drafting ended: {message}")),
        Body::Cycled(cycle) => {
            if let Some(audit) = cycle.audit.as_ref().filter(|audit| !audit.passed) {
                let what = audit.problem.as_deref().unwrap_or("state differs from recomputation");
                model.warn(format!("AUDIT FAILED at token {}: {what}", cycle.first));
            }
        }
        Body::SparseFellBack { message } => model.warn(format!("fell back to dense: {message}")),
        Body::FaultInjected { fault, outcome } => model.toast(format!("{fault}: {outcome}")),
        Body::BreakpointsSet { conditions } if conditions.is_empty() => model.toast("no breakpoints"),
        Body::BreakpointsSet { conditions } => {
            model.toast(format!("pauses at {}", conditions.join(", ")));
        }
        Body::Rescored(rescored) => {
            if let Some(Overlay::Explorer(explorer)) = &mut model.ui.overlay {
                explorer.answered(rescored);
            }
        }
        Body::Previewed(preview) => {
            if let Some(Overlay::Editor(editor)) = &mut model.ui.overlay {
                editor.cost.answered(preview);
            }
        }
        _ => {}
    }
}

/// A request that has ended may have changed what the turn being typed would cost.
fn outdate_cost(model: &mut Model, news: &[News]) -> Vec<Effect> {
    let ended = |news: &News| match news {
        News::Event { event, .. } => matches!(event.body, Body::Finished { .. } | Body::Failed { .. }),
        _ => false,
    };
    match &mut model.ui.overlay {
        Some(Overlay::Editor(editor)) if news.iter().any(ended) => {
            editor.cost.outdate();
            vec![Effect::AwaitTypingPause]
        }
        _ => Vec::new(),
    }
}

fn on_paste(model: &mut Model, text: &str) -> Vec<Effect> {
    match &mut model.ui.overlay {
        Some(Overlay::Editor(editor)) => {
            editor.paste(text);
            return vec![Effect::AwaitTypingPause];
        }
        Some(Overlay::Palette { query: line, chosen: _ } | Overlay::Filter { line }) => line.insert(text),
        Some(Overlay::Ask(ask)) => {
            ask.error = None;
            ask.line.insert(text);
        }
        _ => model.toast("paste has a place in the editor; `i` opens it"),
    }
    Vec::new()
}

fn on_key(model: &mut Model, key: KeyEvent) -> Vec<Effect> {
    model.ui.toast = None;
    let Some(overlay) = model.ui.overlay.take() else { return on_pane_key(model, key) };
    match overlay {
        Overlay::Help { top } => on_help_key(model, key, top),
        Overlay::Palette { query, chosen } => on_palette_key(model, key, query, chosen),
        Overlay::Editor(editor) => on_editor_key(model, key, editor),
        Overlay::Filter { line } => {
            on_filter_key(model, key, line);
            Vec::new()
        }
        Overlay::Ask(ask) => on_ask_key(model, key, ask),
        Overlay::Explorer(explorer) => on_explorer_key(model, key, explorer),
        Overlay::ConfirmQuit => on_confirm_key(model, key),
    }
}

fn on_pane_key(model: &mut Model, key: KeyEvent) -> Vec<Effect> {
    match action::for_key(model, key) {
        Some(action) => perform(model, action),
        None => Vec::new(),
    }
}

/// Does what `action` says, or says why it cannot.
pub fn perform(model: &mut Model, action: &Action) -> Vec<Effect> {
    if let Err(why) = (action.enabled)(model) {
        model.toast(why);
        return Vec::new();
    }
    if action.id != ActionId::Interrupt {
        model.ui.interrupted = None;
    }
    let lane = model.ui.lane;
    match action.id {
        ActionId::NextTurn => return vec![Effect::Send(Command::StepTurn { lane })],
        ActionId::NextPhase => return vec![Effect::Send(Command::StepPhase { lane })],
        ActionId::Run => return vec![Effect::Send(Command::Run { lane })],
        ActionId::Pause => return vec![Effect::Send(pause_or_go_on(model))],
        ActionId::Cancel => return cancel(model),
        ActionId::Interrupt => return interrupt(model),
        ActionId::Inject => {
            model.ui.overlay = Some(Overlay::Editor(Box::new(Editor::inject(lane))));
        }
        ActionId::Edit => {
            let editor = model.selected().and_then(|request| Editor::edit(lane, request));
            model.ui.overlay = editor.map(|editor| Overlay::Editor(Box::new(editor)));
            return vec![Effect::AwaitTypingPause];
        }
        ActionId::Evict => {
            model.toast("evicting everything that no running request uses");
            return vec![Effect::Send(Command::EvictAll)];
        }
        ActionId::Break => model.ui.overlay = Some(Overlay::Ask(Box::new(Ask::breakpoints(model)))),
        ActionId::Fault => {
            let ask = Ask::fault(faults::prefill(model, 0));
            model.ui.overlay = Some(Overlay::Ask(Box::new(ask)));
        }
        ActionId::Inflict(form) => return inflict(model, form),
        ActionId::ScrubForward | ActionId::ScrubBack => {
            if let Some(recording) = &mut model.recording {
                if action.id == ActionId::ScrubForward { recording.forward() } else { recording.back() }
            }
            model.show_recording();
        }
        ActionId::PreviousLane => switch_lane(model, -1),
        ActionId::NextLane => switch_lane(model, 1),
        ActionId::PreviousRun => switch_run(model, -1),
        ActionId::NextRun => switch_run(model, 1),
        ActionId::Explore => {
            let explorer = Explorer::new(model.ledger(), model.selected());
            model.ui.overlay = Some(Overlay::Explorer(Box::new(explorer)));
        }
        ActionId::Compare => return vec![Effect::Compare],
        ActionId::SpecPrefill => return sparse::toggle(model),
        ActionId::Drafter => return speculation::next_drafter(model),
        ActionId::Deeper => return speculation::deepen(model, 1),
        ActionId::Shallower => return speculation::deepen(model, -1),
        ActionId::Controller => return speculation::toggle_controller(model),
        ActionId::MeasureVerify => return speculation::toggle_curve(model),
        ActionId::Recovery => return recovery::toggle(model),
        ActionId::Weigh => speculation::weigh(model),
        ActionId::Sheet => toggle_sheet(model),
        ActionId::View(pane) => focus(model, pane),
        ActionId::FocusNext => cycle_focus(model, 1),
        ActionId::FocusPrevious => cycle_focus(model, -1),
        ActionId::Up => step(model, -1),
        ActionId::Down => step(model, 1),
        ActionId::Left => sideways(model, -1),
        ActionId::Right => sideways(model, 1),
        ActionId::PageUp => page(model, -1),
        ActionId::PageDown => page(model, 1),
        ActionId::First => to_first(model),
        ActionId::Last => to_last(model),
        ActionId::Open => open(model),
        ActionId::Filter => {
            let line = LineInput::new(model.ui.filter[model.ui.focus.index()].clone());
            model.ui.overlay = Some(Overlay::Filter { line });
        }
        ActionId::Zoom => model.ui.zoom = !model.ui.zoom,
        ActionId::Mouse => {
            model.ui.mouse = !model.ui.mouse;
            model.toast(if model.ui.mouse {
                "mouse: on; click rows, turn the wheel"
            } else {
                "mouse: off; the terminal selects text"
            });
            return vec![Effect::Mouse(model.ui.mouse)];
        }
        ActionId::Redraw => return vec![Effect::Redraw],
        ActionId::Suspend => return vec![Effect::Suspend],
        ActionId::Palette => {
            model.ui.overlay = Some(Overlay::Palette { query: LineInput::default(), chosen: 0 });
        }
        ActionId::Help => model.ui.overlay = Some(Overlay::Help { top: 0 }),
        ActionId::Back => return back(model),
    }
    Vec::new()
}

/// Sends a fault on the block that the rack marks, or asks for what is not known of it.
fn inflict(model: &mut Model, form: usize) -> Vec<Effect> {
    match faults::ready(model, form) {
        Some(fault) => vec![send_fault(model, fault)],
        None => {
            let ask = Ask::fault(faults::prefill(model, form));
            model.ui.overlay = Some(Overlay::Ask(Box::new(ask)));
            Vec::new()
        }
    }
}

fn send_fault(model: &mut Model, fault: Fault) -> Effect {
    model.toast(format!("{fault}: asked for"));
    Effect::Send(Command::Fault { lane: model.ui.lane, fault })
}

fn pause_or_go_on(model: &Model) -> Command {
    match model.runs.gate() {
        Some((Gate::Paused | Gate::AfterPhase, lane)) => Command::Run { lane },
        _ => Command::Pause,
    }
}

fn cancel(model: &mut Model) -> Vec<Effect> {
    let Some(request) = model.running().map(|r| r.id) else { return Vec::new() };
    model.toast(format!("cancelling request {}", request.0));
    vec![Effect::Send(Command::Cancel { request })]
}

fn interrupt(model: &mut Model) -> Vec<Effect> {
    let running = model.running().map(|r| r.id);
    match running {
        Some(id) if model.ui.interrupted != Some(id) => {
            model.ui.interrupted = Some(id);
            let effects = cancel(model);
            model.toast(format!("cancelling request {}; Ctrl-C again quits", id.0));
            effects
        }
        _ => vec![Effect::Quit],
    }
}

fn back(model: &mut Model) -> Vec<Effect> {
    let filter = &mut model.ui.filter[model.ui.focus.index()];
    if !filter.is_empty() {
        filter.clear();
    } else if model.ui.zoom {
        model.ui.zoom = false;
    } else if model.running().is_some() {
        model.ui.overlay = Some(Overlay::ConfirmQuit);
    } else {
        return vec![Effect::Quit];
    }
    Vec::new()
}
