//! The one table of actions. Dispatch, footer hints, help, the command palette and the README's key table are all
//! made from [`ACTIONS`], so they cannot disagree. What is in the palette only, and may well be wanted rarely, has no key.

mod find;

use std::borrow::Cow;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::app::{Model, Pane};
use super::faults;
use super::recovery;
use super::sparse;
use super::speculation;
use crate::engine::Fault;
use crate::event::{Gate, Phase};
use crate::ledger::Ledger;
pub use find::search;

/// What the researcher can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ActionId {
    /// Run the next turn.
    NextTurn,
    /// Run to the end of the next phase.
    NextPhase,
    /// Run to the end of the session.
    Run,
    /// Pause, or go on after a pause.
    Pause,
    /// Cancel the running request.
    Cancel,
    /// Cancel; the second time, quit.
    Interrupt,
    /// Type in a turn that is not in the session.
    Inject,
    /// Edit the selected turn, which forks the session.
    Edit,
    /// Drop all cached state.
    Evict,
    /// Set the conditions at which the replay pauses.
    Break,
    /// Type in a fault.
    Fault,
    /// The fault of this number in [`Fault::FORMS`], on the chosen block.
    Inflict(usize),
    /// In a recording: on to the next request boundary.
    ScrubForward,
    /// In a recording: back to the previous request boundary.
    ScrubBack,
    /// Show the previous lane.
    PreviousLane,
    /// Show the next lane.
    NextLane,
    /// Of runs that are compared, show the previous one.
    PreviousRun,
    /// Of runs that are compared, show the next one.
    NextRun,
    /// Open a comparison of the session, or switch between it and the run.
    Compare,
    /// Explore threshold, keep fraction and the choice of units.
    Explore,
    /// Sparse prefill on or off.
    SpecPrefill,
    /// The next of the loaded drafters, or none.
    Drafter,
    /// Draft a token more in a cycle.
    Deeper,
    /// Draft a token less in a cycle.
    Shallower,
    /// Fixed or adaptive depth.
    Controller,
    /// Measure what forwards of several widths cost, or no longer.
    MeasureVerify,
    /// Background recovery on or off.
    Recovery,
    /// Weigh the selected request in the two-request calculator.
    Weigh,
    /// All figures of the verify view, or its cycles.
    Sheet,
    /// Up.
    Up,
    /// Down.
    Down,
    /// Left.
    Left,
    /// Right.
    Right,
    /// A page up.
    PageUp,
    /// A page down.
    PageDown,
    /// To the first.
    First,
    /// To the last, and follow.
    Last,
    /// Look closer: session row → request → divergence → transcript.
    Open,
    /// Filter the focused pane.
    Filter,
    /// Move the focus on.
    FocusNext,
    /// Move the focus back.
    FocusPrevious,
    /// Go to a pane.
    View(Pane),
    /// Let the focused pane fill the screen.
    Zoom,
    /// Give the mouse to the program, or back to the terminal.
    Mouse,
    /// Draw everything anew.
    Redraw,
    /// Stop the program and return to the shell.
    Suspend,
    /// The palette.
    Palette,
    /// The help.
    Help,
    /// Close what is open; at the root, quit.
    Back,
}

/// When an action exists at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exists {
    /// With an engine and in a recording.
    Always,
    /// With an engine.
    Live,
    /// In a recording.
    Recording,
}

/// A key, as the table names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    code: KeyCode,
    control: bool,
}

const fn ch(c: char) -> Key {
    Key { code: KeyCode::Char(c), control: false }
}

const fn ctrl(c: char) -> Key {
    Key { code: KeyCode::Char(c), control: true }
}

const fn code(code: KeyCode) -> Key {
    Key { code, control: false }
}

impl Key {
    fn matches(self, event: KeyEvent) -> bool {
        let control = event.modifiers.contains(KeyModifiers::CONTROL);
        let alt = event.modifiers.contains(KeyModifiers::ALT);
        self.code == event.code && self.control == control && !alt
    }

    /// The key event a terminal sends for this key.
    pub fn event(self) -> KeyEvent {
        KeyEvent::new(self.code, if self.control { KeyModifiers::CONTROL } else { KeyModifiers::NONE })
    }

    /// The key's name, for example `Ctrl-C`, `PgUp`, `↑` spelt `Up`.
    pub fn name(self) -> String {
        let name = match self.code {
            KeyCode::Char(' ') => "Space".to_owned(),
            KeyCode::Char(c) if self.control => c.to_ascii_uppercase().to_string(),
            KeyCode::Char(c) => c.to_string(),
            KeyCode::PageUp => "PgUp".to_owned(),
            KeyCode::PageDown => "PgDn".to_owned(),
            KeyCode::BackTab => "Shift-Tab".to_owned(),
            KeyCode::F(n) => format!("F{n}"),
            other => format!("{other:?}"),
        };
        if self.control { format!("Ctrl-{name}") } else { name }
    }
}

/// Whether an action makes sense now; if not, why not.
pub type Enabled = Result<(), Cow<'static, str>>;

/// One action.
pub struct Action {
    /// Which.
    pub id: ActionId,
    /// Its keys; the first is the one hints show. Without any it is in the palette only.
    pub keys: &'static [Key],
    /// A word or two for the footer; empty keeps it out of there.
    pub hint: &'static str,
    /// What it does, for help, palette and README.
    pub description: &'static str,
    /// Under which headline it is listed.
    pub group: &'static str,
    /// When it exists.
    pub exists: Exists,
    /// Whether it makes sense now; if not, why not.
    pub enabled: fn(&Model) -> Enabled,
}

const RUN: &str = "Run";
const LOOK: &str = "Look";
const FAULTS: &str = "Faults, in the palette";
const PROGRAM: &str = "Program";

const fn action(
    id: ActionId,
    keys: &'static [Key],
    description: &'static str,
    group: &'static str,
    exists: Exists,
) -> Action {
    Action { id, keys, hint: "", description, group, exists, enabled: always }
}

const fn run(id: ActionId, keys: &'static [Key], description: &'static str) -> Action {
    action(id, keys, description, RUN, Exists::Live)
}

const fn scrub(id: ActionId, keys: &'static [Key], description: &'static str) -> Action {
    action(id, keys, description, RUN, Exists::Recording)
}

const fn look(id: ActionId, keys: &'static [Key], description: &'static str) -> Action {
    action(id, keys, description, LOOK, Exists::Always)
}

/// The fault number `FORM` of [`Fault::FORMS`].
const fn fault<const FORM: usize>() -> Action {
    let words = Fault::FORMS[FORM].1;
    action(ActionId::Inflict(FORM), &[], words, FAULTS, Exists::Live).when(can_inflict::<FORM>)
}

const fn program(id: ActionId, keys: &'static [Key], description: &'static str) -> Action {
    action(id, keys, description, PROGRAM, Exists::Always)
}

impl Action {
    const fn hint(self, hint: &'static str) -> Action {
        Action { hint, ..self }
    }

    const fn when(self, enabled: fn(&Model) -> Enabled) -> Action {
        Action { enabled, ..self }
    }
}

fn always(_: &Model) -> Enabled {
    Ok(())
}

/// Of lanes that are compared, one that goes on is enough.
fn engine_alive(model: &Model) -> Enabled {
    if !model.source_closed && model.runs.living().next().is_some() {
        return Ok(());
    }
    if model.ledger().failure().is_some() {
        return Err("the engine has failed; restart to go on".into());
    }
    Err("the engine has ended".into())
}

/// Whether the run in focus goes on, whatever other lanes do.
fn alive_in_focus(model: &Model) -> Enabled {
    engine_alive(model)?;
    let ledger = model.ledger();
    if ledger.failure().is_some() || ledger.ended() {
        return Err("the engine of the lane in focus has ended; `.` puts another lane in focus".into());
    }
    Ok(())
}

/// Whether a run that goes on has begun.
fn is_loaded(model: &Model) -> Enabled {
    engine_alive(model)?;
    if model.runs.living().any(|ledger| ledger.run().is_some()) {
        Ok(())
    } else {
        Err("the model is still loading".into())
    }
}

fn can_advance(model: &Model) -> Enabled {
    is_loaded(model)?;
    let held = model.running().is_some();
    let next = |ledger: &Ledger| ledger.lane(model.ui.lane).is_some_and(|lane| lane.next_turn.is_some());
    if !held && !model.runs.living().any(next) {
        return Err("this lane has no further turn; `i` injects one".into());
    }
    Ok(())
}

fn can_pause(model: &Model) -> Enabled {
    engine_alive(model)?;
    match model.runs.gate() {
        Some((Gate::Paused | Gate::AfterPhase, _)) => Ok(()),
        Some((Gate::Running, _)) => Ok(()),
        _ if model.running().is_some() => Ok(()),
        _ => Err("nothing is running; `n` runs a turn, `r` all of them".into()),
    }
}

fn can_cancel(model: &Model) -> Enabled {
    engine_alive(model)?;
    if model.running().is_some() { Ok(()) } else { Err("no request is running".into()) }
}

fn can_inject(model: &Model) -> Enabled {
    is_loaded(model)
}

fn can_inflict<const FORM: usize>(model: &Model) -> Enabled {
    engine_alive(model)?;
    Ok(faults::obstacle(model, FORM)?)
}

fn can_edit(model: &Model) -> Enabled {
    engine_alive(model)?;
    let request = model.selected().ok_or("no turn to edit yet")?;
    if request.phase != Phase::Done {
        return Err("wait until this turn is over, or cancel it".into());
    }
    if super::editor::editable_item(&request.items).is_none() {
        return Err("this turn has no message that can be edited".into());
    }
    Ok(())
}

fn can_go_forward(model: &Model) -> Enabled {
    match &model.recording {
        Some(r) if r.at_end() => Err("this is the end of the recording".into()),
        _ => Ok(()),
    }
}

fn can_go_back(model: &Model) -> Enabled {
    match &model.recording {
        Some(r) if r.at_start() => Err("this is the start of the recording".into()),
        _ => Ok(()),
    }
}

fn has_other_lanes(model: &Model) -> Enabled {
    if model.ledger().lanes().count() > 1 {
        Ok(())
    } else {
        Err("there is one lane; `e` edits a turn and forks".into())
    }
}

fn can_explore(model: &Model) -> Enabled {
    let scored = model.ledger().requests().any(|request| request.scored.is_some());
    let has_scorer = model.ledger().run().is_some_and(|run| run.specprefill.is_some());
    match () {
        () if scored || has_scorer => Ok(()),
        () if sparse::is_scored_elsewhere(model) => Err(sparse::no_scorer_here(model).into()),
        () => Err("no scorer is loaded, and nothing was scored".into()),
    }
}

/// Whether sparse prefill can be set by hand.
pub(super) fn can_set_specprefill(model: &Model) -> Enabled {
    alive_in_focus(model)?;
    sparse::obstacle_in_focus(model)
}

/// Whether speculative decoding can be set by hand.
fn can_speculate(model: &Model) -> Enabled {
    alive_in_focus(model)?;
    Ok(speculation::obstacle(model.ledger())?)
}

/// Whether recovery can be switched by hand.
fn can_recover(model: &Model) -> Enabled {
    alive_in_focus(model)?;
    recovery::obstacle(model.ledger())
}

fn can_deepen(model: &Model) -> Enabled {
    can_speculate(model)?;
    Ok(speculation::depth_obstacle(model.ledger(), 1)?)
}

fn can_draw_in(model: &Model) -> Enabled {
    can_speculate(model)?;
    Ok(speculation::depth_obstacle(model.ledger(), -1)?)
}

fn can_weigh(model: &Model) -> Enabled {
    let request = model.selected().ok_or("no request to weigh yet")?;
    speculation::weigh_obstacle(request)
}

fn has_other_runs(model: &Model) -> Enabled {
    if model.runs.are_compared() {
        Ok(())
    } else {
        Err("nothing is compared; `c` compares dense with sparse".into())
    }
}

fn can_compare(model: &Model) -> Enabled {
    if model.can_compare || model.beside {
        return Ok(());
    }
    if model.runs.are_compared() {
        return Err("this is the comparison; there is no run beside it".into());
    }
    Err("no second engine can be started here; `escarp compare --tui` compares".into())
}

fn can_filter(model: &Model) -> Enabled {
    if model.ui.focus.filterable() {
        Ok(())
    } else {
        Err("this pane has nothing to filter; session, transcript, events and log do".into())
    }
}

/// Every action, in the order help shows them.
pub static ACTIONS: &[Action] = &[
    run(ActionId::NextTurn, &[ch('n')], "run the next turn, then stop").hint("next turn").when(can_advance),
    run(ActionId::NextPhase, &[ch('s')], "run the next phase: restore, prefill, decode, store")
        .hint("phase")
        .when(can_advance),
    run(ActionId::Run, &[ch('r')], "run to the end of the session").hint("run").when(can_advance),
    run(ActionId::Pause, &[ch(' ')], "pause; again, go on").hint("pause").when(can_pause),
    run(ActionId::Cancel, &[ch('x')], "cancel the running request").hint("cancel").when(can_cancel),
    run(ActionId::Inject, &[ch('i')], "type in a turn that is not in the session")
        .hint("inject")
        .when(can_inject),
    run(ActionId::Edit, &[ch('e')], "edit the selected turn: forks the session, keeps both lanes")
        .hint("edit+fork")
        .when(can_edit),
    run(ActionId::Evict, &[ch('E')], "evict all cached state that no running request uses")
        .when(engine_alive),
    run(ActionId::Break, &[ch('b')], "pause when a condition holds: suffix>4000, cliff, …")
        .hint("break")
        .when(can_inject),
    run(ActionId::Fault, &[ch('f')], "have something go wrong: evict a block, damage a file, …")
        .when(can_inject),
    run(ActionId::SpecPrefill, &[ch('o')], "SpecPrefill on or off, from the next request on")
        .hint("sparse")
        .when(can_set_specprefill),
    run(ActionId::Drafter, &[ch('d')], "drafter: none, or the next that is loaded")
        .hint("drafter")
        .when(can_speculate),
    run(ActionId::Deeper, &[ch('+'), ch('=')], "draft a token more in a cycle").when(can_deepen),
    run(ActionId::Shallower, &[ch('-')], "draft a token less in a cycle").when(can_draw_in),
    run(ActionId::Controller, &[ch('a')], "depth adaptive or fixed").when(can_speculate),
    run(ActionId::MeasureVerify, &[ch('v')], "measure the verify curve after each reply, or no longer")
        .when(alive_in_focus),
    run(ActionId::Recovery, &[ch('O')], "recovery on or off; off ends the job under way").when(can_recover),
    run(ActionId::Compare, &[ch('c')], "compare dense with sparse side by side; again, return")
        .hint("compare")
        .when(can_compare),
    scrub(ActionId::ScrubForward, &[ch('n')], "on to the next request of the recording")
        .hint("next request")
        .when(can_go_forward),
    scrub(ActionId::ScrubBack, &[ch('p')], "back to the previous request of the recording")
        .hint("previous")
        .when(can_go_back),
    look(ActionId::PreviousLane, &[ch('[')], "show the previous lane").when(has_other_lanes),
    look(ActionId::NextLane, &[ch(']')], "show the next lane").when(has_other_lanes),
    look(ActionId::PreviousRun, &[ch(','), ch('<')], "of lanes compared, put the previous one in focus")
        .when(has_other_runs),
    look(ActionId::NextRun, &[ch('.'), ch('>')], "of lanes compared, put the next one in focus")
        .hint("lane")
        .when(has_other_runs),
    look(ActionId::Explore, &[ch('t')], "what another threshold or keep fraction would have done")
        .hint("what if")
        .when(can_explore),
    look(ActionId::Weigh, &[ch('u')], "weigh the request in the calculator of the verify view")
        .when(can_weigh),
    look(ActionId::Sheet, &[ch('w')], "verify: all its figures, to scroll; again, the cycles"),
    look(ActionId::View(Pane::Session), &[ch('1')], "session: one row a request"),
    look(ActionId::View(Pane::Checkpoint), &[ch('2')], "checkpoint: where it stands, over the requests"),
    look(ActionId::View(Pane::Request), &[ch('3')], "request: which tokens were lost, and why"),
    look(ActionId::View(Pane::Transcript), &[ch('4')], "transcript: what was said"),
    look(ActionId::View(Pane::Events), &[ch('5')], "events: the raw stream"),
    look(ActionId::View(Pane::Log), &[ch('6')], "log: what the program itself reports"),
    look(ActionId::View(Pane::Divergence), &[ch('7')], "divergence: the token at which a prompt departs"),
    look(ActionId::View(Pane::Debt), &[ch('8')], "debt: what is computed again, and who pays for it"),
    look(ActionId::View(Pane::Compare), &[ch('9')], "compare: lanes side by side, turn by turn"),
    look(ActionId::View(Pane::Verify), &[ch('0')], "verify: what a cycle costs in dense steps, and gives"),
    look(
        ActionId::View(Pane::Recovery),
        &[ch('R')],
        "recovery: its job, what it waits for, what it is worth",
    ),
    look(ActionId::FocusNext, &[code(KeyCode::Tab)], "move the focus to the next pane"),
    look(ActionId::FocusPrevious, &[code(KeyCode::BackTab)], "move the focus to the previous pane"),
    look(ActionId::Up, &[code(KeyCode::Up), ch('k')], "previous request, or a line up"),
    look(ActionId::Down, &[code(KeyCode::Down), ch('j')], "next request, or a line down"),
    look(
        ActionId::Left,
        &[code(KeyCode::Left), ch('h')],
        "previous block, turn or departure; events and log: shift left",
    ),
    look(
        ActionId::Right,
        &[code(KeyCode::Right), ch('l')],
        "next block, turn or departure; events and log: shift right",
    ),
    look(ActionId::PageUp, &[code(KeyCode::PageUp), ctrl('b')], "a page up"),
    look(ActionId::PageDown, &[code(KeyCode::PageDown), ctrl('f')], "a page down"),
    look(ActionId::First, &[ch('g'), code(KeyCode::Home)], "to the first"),
    look(ActionId::Last, &[ch('G'), code(KeyCode::End)], "to the last, and follow what comes"),
    look(
        ActionId::Open,
        &[code(KeyCode::Enter)],
        "look closer: session row, request, divergence, transcript",
    ),
    look(ActionId::Filter, &[ch('/')], "filter the focused pane").hint("filter").when(can_filter),
    look(ActionId::Zoom, &[ch('z')], "let the focused pane fill the screen, and back").hint("zoom"),
    fault::<0>(),
    fault::<1>(),
    fault::<2>(),
    fault::<3>(),
    fault::<4>(),
    fault::<5>(),
    fault::<6>(),
    fault::<7>(),
    fault::<8>(),
    fault::<9>(),
    program(ActionId::Palette, &[ch(':')], "find an action by name").hint("palette"),
    program(ActionId::Help, &[ch('?'), code(KeyCode::F(1))], "this help").hint("help"),
    program(ActionId::Mouse, &[ch('m')], "take the mouse, or leave it to the terminal to select text"),
    program(ActionId::Redraw, &[ctrl('l')], "draw everything anew"),
    program(ActionId::Suspend, &[ctrl('z')], "back to the shell; `fg` returns"),
    program(ActionId::Interrupt, &[ctrl('c')], "as `x`; pressed again, or when nothing runs, quit"),
    program(ActionId::Back, &[ch('q'), code(KeyCode::Esc)], "close what is open; at the root, quit")
        .hint("quit"),
];

/// Keys inside the editor, the filter line and the palette, where letters are text.
pub static TEXT_KEYS: &[(&str, &str)] = &[
    ("Ctrl-D", "editor: submit (also Ctrl-S, Alt-Enter)"),
    ("Ctrl-T", "editor: speak as user or as tool"),
    ("Esc", "leave without submitting"),
    ("Enter", "filter: keep it; palette: do it; breakpoints, fault: set it"),
];

/// The actions that exist in this model's mode.
pub fn existing(model: &Model) -> impl Iterator<Item = &'static Action> + use<> {
    let recording = model.recording.is_some();
    ACTIONS.iter().filter(move |action| match action.exists {
        Exists::Always => true,
        Exists::Live => !recording,
        Exists::Recording => recording,
    })
}

/// The action that `event` triggers, if any.
pub fn for_key(model: &Model, event: KeyEvent) -> Option<&'static Action> {
    existing(model).find(|action| action.keys.iter().any(|key| key.matches(event)))
}

/// Names of an action's keys, for example `q, Esc`; what is typed for a fault.
pub fn key_names(action: &Action) -> String {
    if let ActionId::Inflict(form) = action.id {
        return Fault::FORMS.get(form).map_or("", |(form, _)| form).to_owned();
    }
    action.keys.iter().map(|key| key.name()).collect::<Vec<_>>().join(", ")
}

/// What the palette says of an action: what it does, and to which block.
pub fn label(model: &Model, action: &Action) -> String {
    match action.id {
        ActionId::Inflict(form) => format!("fault {}", faults::label(model, form)),
        _ => action.description.to_owned(),
    }
}

/// The key table of the README, as Markdown.
pub fn readme_table() -> String {
    let mut out = String::from("| key | what it does |\n|---|---|\n");
    for action in ACTIONS {
        let keys: Vec<_> = action.keys.iter().map(|key| format!("`{}`", key.name())).collect();
        let only = if action.exists == Exists::Recording { " (in a recording)" } else { "" };
        let keys = if keys.is_empty() { format!("`:` `{}`", key_names(action)) } else { keys.join(" ") };
        out.push_str(&format!("| {keys} | {}{only} |\n", action.description));
    }
    for (keys, description) in TEXT_KEYS {
        let keys: Vec<_> = keys.split(", ").map(|key| format!("`{key}`")).collect();
        out.push_str(&format!("| {} | {description} |\n", keys.join(" ")));
    }
    out
}

#[cfg(test)]
mod tests;
