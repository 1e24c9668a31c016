//! The interface's state and how it changes: `update(model, message) -> effects`. No terminal, no engine, no clock.

use crossterm::event::{KeyEvent, KeyEventKind, MouseButton, MouseEvent, MouseEventKind};
use ratatui::layout::{Position, Rect};

use super::action::{self, Action, ActionId};
use super::editor::{Editor, Outcome};
use super::log::LogRing;
use super::panes::events::EventList;
use super::scrub::Recording;
use crate::engine::Command;
use crate::event::{Body, Event, Gate, LaneId, Phase, RequestId};
use crate::ledger::{Ledger, RequestFacts};

/// A pane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pane {
    /// One row a request.
    Session,
    /// The checkpoint over the requests.
    Checkpoint,
    /// One request's losses, blocks and times.
    Request,
    /// What was said.
    Transcript,
    /// The raw event stream.
    Events,
    /// The program's own log.
    Log,
}

impl Pane {
    /// All panes, in the order of their digits.
    pub const ALL: [Pane; 6] =
        [Pane::Session, Pane::Checkpoint, Pane::Request, Pane::Transcript, Pane::Events, Pane::Log];

    /// Position in [`Pane::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// The digit that picks it.
    pub fn digit(self) -> usize {
        self.index() + 1
    }

    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            Pane::Session => "session",
            Pane::Checkpoint => "checkpoint",
            Pane::Request => "request",
            Pane::Transcript => "transcript",
            Pane::Events => "events",
            Pane::Log => "log",
        }
    }

    /// Whether a filter makes sense in it.
    pub fn filterable(self) -> bool {
        matches!(self, Pane::Session | Pane::Transcript | Pane::Events | Pane::Log)
    }

    /// Whether it shares the workbench's lowest place with other panes.
    pub fn is_lower(self) -> bool {
        matches!(self, Pane::Transcript | Pane::Events | Pane::Log)
    }
}

/// Where a scrolled pane stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scroll {
    /// At the end, and staying there as lines come.
    #[default]
    Follow,
    /// With this line at the top.
    At(usize),
}

/// What a pane showed when it was last drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Page {
    /// Where it was.
    pub area: Rect,
    /// Lines it has.
    pub lines: usize,
    /// Lines that fit.
    pub height: usize,
    /// First line shown.
    pub top: usize,
}

impl Page {
    /// The first line to show for `scroll`, never past the end.
    pub fn top_for(lines: usize, height: usize, scroll: Scroll) -> usize {
        let last = lines.saturating_sub(height);
        match scroll {
            Scroll::Follow => last,
            Scroll::At(top) => top.min(last),
        }
    }
}

/// What the last frame put where: what paging, jumping and mouse clicks refer to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Layout {
    /// By [`Pane::index`]; a pane that was not drawn has an empty area.
    pub pages: [Page; 6],
    /// Rows that stand for a request.
    pub rows: Vec<(Rect, RequestId)>,
    /// First transcript line of each request's turn.
    pub turns: Vec<(RequestId, usize)>,
    /// Whether one pane filled the screen.
    pub single: bool,
    /// Lines the open overlay has, and lines of it that fit.
    pub overlay: (usize, usize),
}

/// What lies over the panes.
#[derive(Debug, Clone)]
pub enum Overlay {
    /// All actions.
    Help {
        /// First line shown.
        top: usize,
    },
    /// Actions by name.
    Palette {
        /// What was typed.
        query: String,
        /// The chosen entry.
        chosen: usize,
    },
    /// The editor.
    Editor(Box<Editor>),
    /// The filter line of the focused pane.
    Filter {
        /// What was typed.
        text: String,
    },
    /// Quit although a request runs?
    ConfirmQuit,
}

/// A short message in the footer, until the next key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toast {
    /// What it says.
    pub text: String,
    /// Whether it warns.
    pub warning: bool,
}

/// Interface state: everything that is not a fact.
#[derive(Debug, Default)]
pub struct Ui {
    /// The lane in view.
    pub lane: LaneId,
    /// The selected request; `None` follows the latest.
    pub selection: Option<RequestId>,
    /// The focused pane.
    pub focus: Pane,
    /// The pane in the workbench's lowest place.
    pub lower: Option<Pane>,
    /// Whether the focused pane fills the screen.
    pub zoom: bool,
    /// What lies on top.
    pub overlay: Option<Overlay>,
    /// Scroll positions by [`Pane::index`].
    pub scroll: [Scroll; 6],
    /// Filters by [`Pane::index`].
    pub filter: [String; 6],
    /// Columns the events and log panes are shifted by.
    pub shift: usize,
    /// The selected block; `None` lets the pane choose the one responsible for the loss.
    pub block: Option<u32>,
    /// A message.
    pub toast: Option<Toast>,
    /// Whether the mouse belongs to the program.
    pub mouse: bool,
    /// A fork was asked for; its lane comes into view when it opens.
    pub awaiting_fork: bool,
    /// The request that Ctrl-C cancelled last.
    pub interrupted: Option<RequestId>,
    /// The last frame's layout.
    pub layout: Layout,
}

impl Default for Pane {
    fn default() -> Pane {
        Pane::Session
    }
}

impl Ui {
    /// The pane in the workbench's lowest place.
    pub fn lower_pane(&self) -> Pane {
        self.lower.unwrap_or(Pane::Transcript)
    }
}

/// Facts and interface state.
#[derive(Debug, Default)]
pub struct Model {
    /// The facts.
    pub ledger: Ledger,
    /// The raw events, one line each.
    pub events: EventList,
    /// The program's log.
    pub log: LogRing,
    /// The recording, when there is no engine.
    pub recording: Option<Recording>,
    /// Whether the event source has ended.
    pub source_closed: bool,
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
    /// Events from the engine.
    Events(Vec<Event>),
    /// No more events will come.
    SourceClosed,
    /// A thread other than the interface's panicked.
    WorkerPanic(String),
}

/// Something to do outside.
#[derive(Debug, PartialEq)]
pub enum Effect {
    /// Send a command to the engine.
    Send(Command),
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
    /// A model that follows an engine.
    pub fn live(log: LogRing) -> Model {
        Model { log, ..Model::default() }
    }

    /// A model of a recording, standing at its end.
    pub fn recording(events: Vec<Event>, log: LogRing) -> Model {
        let mut model = Model { log, recording: Some(Recording::new(events)), ..Model::default() };
        model.show_recording();
        model
    }

    /// The requests of the history in view, oldest first.
    pub fn history(&self) -> Vec<&RequestFacts> {
        self.ledger.history(self.ui.lane)
    }

    /// The request that the panes describe: the selected one, or the latest of the lane in view.
    pub fn selected(&self) -> Option<&RequestFacts> {
        let chosen = self.ui.selection.and_then(|id| self.ledger.request(id));
        chosen.or_else(|| self.history().pop())
    }

    /// The request that runs now. Nothing runs in a recording or after the engine has ended.
    pub fn running(&self) -> Option<&RequestFacts> {
        let alive = self.recording.is_none()
            && !self.source_closed
            && !self.ledger.ended()
            && self.ledger.failure().is_none();
        if alive { self.ledger.current() } else { None }
    }

    fn show_recording(&mut self) {
        let Some(recording) = &self.recording else { return };
        self.ledger = recording.ledger();
        self.events = EventList::default();
        for event in recording.visible() {
            self.events.push(event);
        }
        self.ui.selection = None;
        self.ui.block = None;
        if self.ledger.lane(self.ui.lane).is_none() {
            self.ui.lane = LaneId::default();
        }
    }

    fn toast(&mut self, text: impl Into<String>) {
        self.ui.toast = Some(Toast { text: text.into(), warning: false });
    }

    fn warn(&mut self, text: impl Into<String>) {
        self.ui.toast = Some(Toast { text: text.into(), warning: true });
    }
}

/// Takes a message; says what is to be done outside.
pub fn update(model: &mut Model, msg: Msg) -> Vec<Effect> {
    match msg {
        Msg::Key(key) if key.kind == KeyEventKind::Release => Vec::new(),
        Msg::Key(key) => on_key(model, key),
        Msg::Paste(text) => {
            on_paste(model, &text);
            Vec::new()
        }
        Msg::Mouse(mouse) => on_mouse(model, mouse),
        Msg::Events(events) => {
            for event in &events {
                on_event(model, event);
            }
            Vec::new()
        }
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

fn on_event(model: &mut Model, event: &Event) {
    model.ledger.apply(event);
    model.events.push(event);
    match &event.body {
        Body::LaneOpened { parent: Some(_), .. } if model.ui.awaiting_fork => {
            model.ui.awaiting_fork = false;
            show_lane(model, event.lane.unwrap_or_default());
            model.toast(format!("lane {} opened; `[` and `]` switch", model.ui.lane.label()));
        }
        Body::EngineFailed { message } => model.warn(format!("engine failed: {message}")),
        _ => {}
    }
}

fn on_paste(model: &mut Model, text: &str) {
    match &mut model.ui.overlay {
        Some(Overlay::Editor(editor)) => editor.paste(text),
        Some(Overlay::Palette { query: line, chosen: _ } | Overlay::Filter { text: line }) => {
            line.extend(text.chars().filter(|c| !c.is_control()));
        }
        _ => model.toast("paste has a place in the editor; `i` opens it"),
    }
}

fn on_key(model: &mut Model, key: KeyEvent) -> Vec<Effect> {
    model.ui.toast = None;
    let Some(overlay) = model.ui.overlay.take() else { return on_pane_key(model, key) };
    match overlay {
        Overlay::Help { top } => on_help_key(model, key, top),
        Overlay::Palette { query, chosen } => on_palette_key(model, key, query, chosen),
        Overlay::Editor(editor) => on_editor_key(model, key, editor),
        Overlay::Filter { text } => {
            on_filter_key(model, key, text);
            Vec::new()
        }
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
        }
        ActionId::Evict => {
            model.toast("evicting everything that no running request uses");
            return vec![Effect::Send(Command::EvictAll)];
        }
        ActionId::ScrubForward | ActionId::ScrubBack => {
            if let Some(recording) = &mut model.recording {
                if action.id == ActionId::ScrubForward { recording.forward() } else { recording.back() }
            }
            model.show_recording();
        }
        ActionId::PreviousLane => switch_lane(model, -1),
        ActionId::NextLane => switch_lane(model, 1),
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
            let text = model.ui.filter[model.ui.focus.index()].clone();
            model.ui.overlay = Some(Overlay::Filter { text });
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
            model.ui.overlay = Some(Overlay::Palette { query: String::new(), chosen: 0 });
        }
        ActionId::Help => model.ui.overlay = Some(Overlay::Help { top: 0 }),
        ActionId::Back => return back(model),
    }
    Vec::new()
}

fn pause_or_go_on(model: &Model) -> Command {
    match model.ledger.gate() {
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

fn on_help_key(model: &mut Model, key: KeyEvent, top: usize) -> Vec<Effect> {
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

fn on_palette_key(model: &mut Model, key: KeyEvent, mut query: String, mut chosen: usize) -> Vec<Effect> {
    use crossterm::event::KeyCode;
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

fn on_editor_key(model: &mut Model, key: KeyEvent, mut editor: Box<Editor>) -> Vec<Effect> {
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

fn on_filter_key(model: &mut Model, key: KeyEvent, mut text: String) {
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

fn on_confirm_key(model: &mut Model, key: KeyEvent) -> Vec<Effect> {
    use crossterm::event::{KeyCode, KeyModifiers};
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
    use crossterm::event::{KeyCode, KeyModifiers};
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

fn focus(model: &mut Model, pane: Pane) {
    model.ui.focus = pane;
    if pane.is_lower() {
        model.ui.lower = Some(pane);
    }
}

fn cycle_focus(model: &mut Model, by: isize) {
    let order: Vec<Pane> = if model.ui.layout.single {
        Pane::ALL.to_vec()
    } else {
        vec![Pane::Session, Pane::Checkpoint, Pane::Request, model.ui.lower_pane()]
    };
    let at = order.iter().position(|pane| *pane == model.ui.focus).unwrap_or_default();
    let next = (at as isize + by).rem_euclid(order.len() as isize) as usize;
    focus(model, order[next]);
}

fn show_lane(model: &mut Model, lane: LaneId) {
    model.ui.lane = lane;
    model.ui.selection = None;
    model.ui.block = None;
    model.ui.scroll[Pane::Transcript.index()] = Scroll::Follow;
}

fn switch_lane(model: &mut Model, by: isize) {
    let lanes: Vec<LaneId> = model.ledger.lanes().map(|(id, _)| id).collect();
    if lanes.is_empty() {
        return;
    }
    let at = lanes.iter().position(|lane| *lane == model.ui.lane).unwrap_or_default();
    let next = (at as isize + by).rem_euclid(lanes.len() as isize) as usize;
    show_lane(model, lanes[next]);
}

/// Moves the selection by `by` requests; selecting the latest follows it.
fn select(model: &mut Model, by: isize) {
    let ids: Vec<RequestId> = visible_requests(model);
    let Some(last) = ids.len().checked_sub(1) else { return };
    let current = model.selected().map(|r| r.id);
    let at = ids.iter().position(|id| Some(*id) == current).unwrap_or(last);
    let next = at.saturating_add_signed(by).min(last);
    model.ui.selection = if next == last { None } else { Some(ids[next]) };
    model.ui.block = None;
}

/// The requests the session pane lists: the history in view, less what the filter hides.
pub fn visible_requests(model: &Model) -> Vec<RequestId> {
    let filter = model.ui.filter[Pane::Session.index()].to_lowercase();
    model
        .history()
        .into_iter()
        .filter(|r| filter.is_empty() || super::panes::session::haystack(r).contains(&filter))
        .map(|r| r.id)
        .collect()
}

fn scroll(model: &mut Model, pane: Pane, by: isize) {
    let page = model.ui.layout.pages[pane.index()];
    let last = page.lines.saturating_sub(page.height);
    let top = match model.ui.scroll[pane.index()] {
        Scroll::Follow => last,
        Scroll::At(top) => top.min(last),
    };
    let top = top.saturating_add_signed(by);
    model.ui.scroll[pane.index()] = if top >= last { Scroll::Follow } else { Scroll::At(top) };
}

fn step(model: &mut Model, by: isize) {
    match model.ui.focus {
        Pane::Session | Pane::Checkpoint | Pane::Request => select(model, by),
        pane => scroll(model, pane, by),
    }
}

fn page(model: &mut Model, by: isize) {
    let pane = model.ui.focus;
    let height = model.ui.layout.pages[pane.index()].height.max(2) as isize - 1;
    match pane {
        Pane::Session => select(model, by * height),
        Pane::Checkpoint | Pane::Request => select(model, by * 5),
        pane => scroll(model, pane, by * height),
    }
}

fn sideways(model: &mut Model, by: isize) {
    match model.ui.focus {
        Pane::Session | Pane::Checkpoint => select(model, by),
        Pane::Request => select_block(model, by),
        Pane::Transcript => {
            select(model, by);
            show_turn(model);
        }
        Pane::Events | Pane::Log => model.ui.shift = model.ui.shift.saturating_add_signed(by * 8).min(4_096),
    }
}

fn select_block(model: &mut Model, by: isize) {
    let Some(restore) = model.selected().and_then(|r| r.restore.as_ref()) else { return };
    let Some(last) = restore.blocks.len().checked_sub(1) else { return };
    let at = model
        .ui
        .block
        .map(|block| block as usize)
        .or_else(|| super::panes::request::responsible_block(restore))
        .unwrap_or(last);
    let next = at.saturating_add_signed(by).min(last);
    model.ui.block = u32::try_from(next).ok();
}

/// Scrolls the transcript to the selected request's turn.
fn show_turn(model: &mut Model) {
    let slot = Pane::Transcript.index();
    let selected = model.ui.selection;
    model.ui.scroll[slot] = match selected {
        None => Scroll::Follow,
        Some(id) => match model.ui.layout.turns.iter().find(|(turn, _)| *turn == id) {
            Some((_, line)) => Scroll::At(*line),
            None => Scroll::Follow,
        },
    };
}

fn to_first(model: &mut Model) {
    match model.ui.focus {
        Pane::Session | Pane::Checkpoint | Pane::Request => select(model, isize::MIN + 1),
        pane => {
            let page = model.ui.layout.pages[pane.index()];
            if page.lines > page.height {
                model.ui.scroll[pane.index()] = Scroll::At(0);
            }
        }
    }
}

fn to_last(model: &mut Model) {
    match model.ui.focus {
        Pane::Session | Pane::Checkpoint | Pane::Request => {
            model.ui.selection = None;
            model.ui.block = None;
        }
        pane => model.ui.scroll[pane.index()] = Scroll::Follow,
    }
}

fn open(model: &mut Model) {
    match model.ui.focus {
        Pane::Session | Pane::Checkpoint => focus(model, Pane::Request),
        Pane::Request => {
            focus(model, Pane::Transcript);
            show_turn(model);
        }
        Pane::Transcript | Pane::Events | Pane::Log => {
            let pane = model.ui.focus;
            model.ui.scroll[pane.index()] = Scroll::Follow;
        }
    }
}

fn on_mouse(model: &mut Model, mouse: MouseEvent) -> Vec<Effect> {
    if model.ui.overlay.is_some() {
        return Vec::new();
    }
    let at = Position::new(mouse.column, mouse.row);
    let pages = &model.ui.layout.pages;
    let Some(pane) = Pane::ALL.into_iter().find(|pane| pages[pane.index()].area.contains(at)) else {
        return Vec::new();
    };
    match mouse.kind {
        MouseEventKind::Down(MouseButton::Left) => {
            focus(model, pane);
            let row = model.ui.layout.rows.iter().find(|(area, _)| area.contains(at)).map(|(_, id)| *id);
            if let Some(id) = row {
                let latest = model.history().last().map(|r| r.id);
                model.ui.selection = if latest == Some(id) { None } else { Some(id) };
                model.ui.block = None;
            }
        }
        MouseEventKind::ScrollUp | MouseEventKind::ScrollDown => {
            let by: isize = if mouse.kind == MouseEventKind::ScrollUp { -3 } else { 3 };
            match pane {
                Pane::Session | Pane::Checkpoint | Pane::Request => select(model, by.signum()),
                pane => scroll(model, pane, by),
            }
        }
        _ => {}
    }
    Vec::new()
}

/// The gate in words, for the status line.
pub fn gate_words(model: &Model) -> String {
    if let Some(recording) = &model.recording {
        let (at, of) = recording.progress();
        return format!("RECORDING {at} of {of}");
    }
    if model.ledger.failure().is_some() {
        return "ENGINE FAILED".to_owned();
    }
    if model.source_closed || model.ledger.ended() {
        return "ENGINE ENDED".to_owned();
    }
    let lane = model.ledger.lane(model.ui.lane);
    let turns = lane.map_or(0, |l| l.turns);
    if let Some(request) = model.running() {
        let phase = match request.phase {
            Phase::Prefill => match request.progress {
                Some((done, total)) if total > 0 => format!("prefill {} %", done.min(total) * 100 / total),
                _ => "prefill".to_owned(),
            },
            phase => phase.word().to_owned(),
        };
        let held = match model.ledger.gate() {
            Some((Gate::Paused, _)) => "PAUSED",
            Some((Gate::AfterPhase, _)) => "HELD",
            _ => "RUNNING",
        };
        return format!("{held} TURN {} of {turns}: {phase}", request.turn);
    }
    match (model.ledger.gate(), lane.and_then(|l| l.next_turn)) {
        (None, _) => "LOADING".to_owned(),
        (Some((Gate::Running, _)), Some(next)) => format!("RUNNING, TURN {next} of {turns} NEXT"),
        (Some((Gate::Paused, _)), Some(next)) => format!("PAUSED BEFORE TURN {next} of {turns}"),
        (Some(_), Some(next)) => format!("BEFORE TURN {next} of {turns}"),
        (Some(_), None) => "END OF SESSION".to_owned(),
    }
}
