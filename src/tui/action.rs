//! The one table of actions. Dispatch, footer hints, help, the command palette and the README's key table are all
//! made from [`ACTIONS`], so they cannot disagree, and an action that does not exist yet has no key.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::app::{Model, Pane};
use crate::event::{Gate, Phase};

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
    /// In a recording: on to the next request boundary.
    ScrubForward,
    /// In a recording: back to the previous request boundary.
    ScrubBack,
    /// Show the previous lane.
    PreviousLane,
    /// Show the next lane.
    NextLane,
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
    /// Look closer: session row → request → transcript.
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
            other => format!("{other:?}"),
        };
        if self.control { format!("Ctrl-{name}") } else { name }
    }
}

/// One action.
pub struct Action {
    /// Which.
    pub id: ActionId,
    /// Its keys; the first is the one hints show.
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
    pub enabled: fn(&Model) -> Result<(), &'static str>,
}

const RUN: &str = "Run";
const LOOK: &str = "Look";
const PROGRAM: &str = "Program";

fn always(_: &Model) -> Result<(), &'static str> {
    Ok(())
}

fn engine_alive(model: &Model) -> Result<(), &'static str> {
    if model.ledger.failure().is_some() {
        return Err("the engine has failed; restart to go on");
    }
    if model.ledger.ended() || model.source_closed {
        return Err("the engine has ended");
    }
    Ok(())
}

fn can_advance(model: &Model) -> Result<(), &'static str> {
    engine_alive(model)?;
    if model.ledger.run().is_none() {
        return Err("the model is still loading");
    }
    let held = model.running().is_some();
    let next = model.ledger.lane(model.ui.lane).and_then(|lane| lane.next_turn);
    if !held && next.is_none() {
        return Err("this lane has no further turn; `i` injects one");
    }
    Ok(())
}

fn can_pause(model: &Model) -> Result<(), &'static str> {
    engine_alive(model)?;
    match model.ledger.gate() {
        Some((Gate::Paused | Gate::AfterPhase, _)) => Ok(()),
        Some((Gate::Running, _)) => Ok(()),
        _ if model.running().is_some() => Ok(()),
        _ => Err("nothing is running; `n` runs a turn, `r` all of them"),
    }
}

fn can_cancel(model: &Model) -> Result<(), &'static str> {
    engine_alive(model)?;
    if model.running().is_some() { Ok(()) } else { Err("no request is running") }
}

fn can_inject(model: &Model) -> Result<(), &'static str> {
    engine_alive(model)?;
    if model.ledger.run().is_some() { Ok(()) } else { Err("the model is still loading") }
}

fn can_edit(model: &Model) -> Result<(), &'static str> {
    engine_alive(model)?;
    let request = model.selected().ok_or("no turn to edit yet")?;
    if request.phase != Phase::Done {
        return Err("wait until this turn is over, or cancel it");
    }
    if super::editor::editable_item(&request.items).is_none() {
        return Err("this turn has no message that can be edited");
    }
    Ok(())
}

fn can_go_forward(model: &Model) -> Result<(), &'static str> {
    match &model.recording {
        Some(r) if r.at_end() => Err("this is the end of the recording"),
        _ => Ok(()),
    }
}

fn can_go_back(model: &Model) -> Result<(), &'static str> {
    match &model.recording {
        Some(r) if r.at_start() => Err("this is the start of the recording"),
        _ => Ok(()),
    }
}

fn has_other_lanes(model: &Model) -> Result<(), &'static str> {
    if model.ledger.lanes().count() > 1 {
        Ok(())
    } else {
        Err("there is one lane; `e` edits a turn and forks")
    }
}

fn can_filter(model: &Model) -> Result<(), &'static str> {
    if model.ui.focus.filterable() {
        Ok(())
    } else {
        Err("this pane has nothing to filter; session, transcript, events and log do")
    }
}

/// Every action, in the order help shows them.
pub static ACTIONS: &[Action] = &[
    Action {
        id: ActionId::NextTurn,
        keys: &[ch('n')],
        hint: "next turn",
        description: "run the next turn, then stop",
        group: RUN,
        exists: Exists::Live,
        enabled: can_advance,
    },
    Action {
        id: ActionId::NextPhase,
        keys: &[ch('s')],
        hint: "phase",
        description: "run to the end of the next phase (restore, prefill, decode, store)",
        group: RUN,
        exists: Exists::Live,
        enabled: can_advance,
    },
    Action {
        id: ActionId::Run,
        keys: &[ch('r')],
        hint: "run",
        description: "run to the end of the session",
        group: RUN,
        exists: Exists::Live,
        enabled: can_advance,
    },
    Action {
        id: ActionId::Pause,
        keys: &[ch(' ')],
        hint: "pause",
        description: "pause; again, go on",
        group: RUN,
        exists: Exists::Live,
        enabled: can_pause,
    },
    Action {
        id: ActionId::Cancel,
        keys: &[ch('x')],
        hint: "cancel",
        description: "cancel the running request",
        group: RUN,
        exists: Exists::Live,
        enabled: can_cancel,
    },
    Action {
        id: ActionId::Inject,
        keys: &[ch('i')],
        hint: "inject",
        description: "type in a turn that is not in the session",
        group: RUN,
        exists: Exists::Live,
        enabled: can_inject,
    },
    Action {
        id: ActionId::Edit,
        keys: &[ch('e')],
        hint: "edit+fork",
        description: "edit the selected turn, which forks the session; both lanes are kept",
        group: RUN,
        exists: Exists::Live,
        enabled: can_edit,
    },
    Action {
        id: ActionId::Evict,
        keys: &[ch('E')],
        hint: "",
        description: "evict everything the cache holds and no running request uses",
        group: RUN,
        exists: Exists::Live,
        enabled: engine_alive,
    },
    Action {
        id: ActionId::ScrubForward,
        keys: &[ch('n')],
        hint: "next request",
        description: "on to the next request of the recording",
        group: RUN,
        exists: Exists::Recording,
        enabled: can_go_forward,
    },
    Action {
        id: ActionId::ScrubBack,
        keys: &[ch('p')],
        hint: "previous",
        description: "back to the previous request of the recording",
        group: RUN,
        exists: Exists::Recording,
        enabled: can_go_back,
    },
    Action {
        id: ActionId::PreviousLane,
        keys: &[ch('[')],
        hint: "",
        description: "show the previous lane",
        group: LOOK,
        exists: Exists::Always,
        enabled: has_other_lanes,
    },
    Action {
        id: ActionId::NextLane,
        keys: &[ch(']')],
        hint: "",
        description: "show the next lane",
        group: LOOK,
        exists: Exists::Always,
        enabled: has_other_lanes,
    },
    Action {
        id: ActionId::View(Pane::Session),
        keys: &[ch('1')],
        hint: "",
        description: "session: one row a request",
        group: LOOK,
        exists: Exists::Always,
        enabled: always,
    },
    Action {
        id: ActionId::View(Pane::Checkpoint),
        keys: &[ch('2')],
        hint: "",
        description: "checkpoint: where it stands, over the requests",
        group: LOOK,
        exists: Exists::Always,
        enabled: always,
    },
    Action {
        id: ActionId::View(Pane::Request),
        keys: &[ch('3')],
        hint: "",
        description: "request: which tokens were lost, and why",
        group: LOOK,
        exists: Exists::Always,
        enabled: always,
    },
    Action {
        id: ActionId::View(Pane::Transcript),
        keys: &[ch('4')],
        hint: "",
        description: "transcript: what was said",
        group: LOOK,
        exists: Exists::Always,
        enabled: always,
    },
    Action {
        id: ActionId::View(Pane::Events),
        keys: &[ch('5')],
        hint: "",
        description: "events: the raw stream",
        group: LOOK,
        exists: Exists::Always,
        enabled: always,
    },
    Action {
        id: ActionId::View(Pane::Log),
        keys: &[ch('6')],
        hint: "",
        description: "log: what the program itself reports",
        group: LOOK,
        exists: Exists::Always,
        enabled: always,
    },
    Action {
        id: ActionId::FocusNext,
        keys: &[code(KeyCode::Tab)],
        hint: "",
        description: "move the focus to the next pane",
        group: LOOK,
        exists: Exists::Always,
        enabled: always,
    },
    Action {
        id: ActionId::FocusPrevious,
        keys: &[code(KeyCode::BackTab)],
        hint: "",
        description: "move the focus to the previous pane",
        group: LOOK,
        exists: Exists::Always,
        enabled: always,
    },
    Action {
        id: ActionId::Up,
        keys: &[code(KeyCode::Up), ch('k')],
        hint: "",
        description: "previous request, or a line up",
        group: LOOK,
        exists: Exists::Always,
        enabled: always,
    },
    Action {
        id: ActionId::Down,
        keys: &[code(KeyCode::Down), ch('j')],
        hint: "",
        description: "next request, or a line down",
        group: LOOK,
        exists: Exists::Always,
        enabled: always,
    },
    Action {
        id: ActionId::Left,
        keys: &[code(KeyCode::Left), ch('h')],
        hint: "",
        description: "previous block (request), turn (transcript), or shift left (events, log)",
        group: LOOK,
        exists: Exists::Always,
        enabled: always,
    },
    Action {
        id: ActionId::Right,
        keys: &[code(KeyCode::Right), ch('l')],
        hint: "",
        description: "next block (request), turn (transcript), or shift right (events, log)",
        group: LOOK,
        exists: Exists::Always,
        enabled: always,
    },
    Action {
        id: ActionId::PageUp,
        keys: &[code(KeyCode::PageUp), ctrl('b')],
        hint: "",
        description: "a page up",
        group: LOOK,
        exists: Exists::Always,
        enabled: always,
    },
    Action {
        id: ActionId::PageDown,
        keys: &[code(KeyCode::PageDown), ctrl('f')],
        hint: "",
        description: "a page down",
        group: LOOK,
        exists: Exists::Always,
        enabled: always,
    },
    Action {
        id: ActionId::First,
        keys: &[ch('g'), code(KeyCode::Home)],
        hint: "",
        description: "to the first",
        group: LOOK,
        exists: Exists::Always,
        enabled: always,
    },
    Action {
        id: ActionId::Last,
        keys: &[ch('G'), code(KeyCode::End)],
        hint: "",
        description: "to the last, and follow what comes",
        group: LOOK,
        exists: Exists::Always,
        enabled: always,
    },
    Action {
        id: ActionId::Open,
        keys: &[code(KeyCode::Enter)],
        hint: "",
        description: "look closer: session row, its request, its place in the transcript",
        group: LOOK,
        exists: Exists::Always,
        enabled: always,
    },
    Action {
        id: ActionId::Filter,
        keys: &[ch('/')],
        hint: "filter",
        description: "filter the focused pane",
        group: LOOK,
        exists: Exists::Always,
        enabled: can_filter,
    },
    Action {
        id: ActionId::Zoom,
        keys: &[ch('z')],
        hint: "zoom",
        description: "let the focused pane fill the screen, and back",
        group: LOOK,
        exists: Exists::Always,
        enabled: always,
    },
    Action {
        id: ActionId::Palette,
        keys: &[ch(':')],
        hint: "palette",
        description: "find an action by name",
        group: PROGRAM,
        exists: Exists::Always,
        enabled: always,
    },
    Action {
        id: ActionId::Help,
        keys: &[ch('?'), code(KeyCode::F(1))],
        hint: "help",
        description: "this help",
        group: PROGRAM,
        exists: Exists::Always,
        enabled: always,
    },
    Action {
        id: ActionId::Mouse,
        keys: &[ch('m')],
        hint: "",
        description: "mouse: give it to the program, or back to the terminal for selecting text",
        group: PROGRAM,
        exists: Exists::Always,
        enabled: always,
    },
    Action {
        id: ActionId::Redraw,
        keys: &[ctrl('l')],
        hint: "",
        description: "draw everything anew",
        group: PROGRAM,
        exists: Exists::Always,
        enabled: always,
    },
    Action {
        id: ActionId::Suspend,
        keys: &[ctrl('z')],
        hint: "",
        description: "back to the shell; `fg` returns",
        group: PROGRAM,
        exists: Exists::Always,
        enabled: always,
    },
    Action {
        id: ActionId::Interrupt,
        keys: &[ctrl('c')],
        hint: "",
        description: "cancel the running request; when nothing runs, or pressed again, quit",
        group: PROGRAM,
        exists: Exists::Always,
        enabled: always,
    },
    Action {
        id: ActionId::Back,
        keys: &[ch('q'), code(KeyCode::Esc)],
        hint: "quit",
        description: "close what is open; at the root, quit",
        group: PROGRAM,
        exists: Exists::Always,
        enabled: always,
    },
];

/// Keys inside the editor, the filter line and the palette, where letters are text.
pub static TEXT_KEYS: &[(&str, &str)] = &[
    ("Ctrl-D, Ctrl-S, Alt-Enter", "editor: submit"),
    ("Ctrl-T", "editor: speak as user or as tool"),
    ("Esc", "leave without submitting"),
    ("Enter", "filter: keep it; palette: do it"),
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

/// Names of an action's keys, for example `q, Esc`.
pub fn key_names(action: &Action) -> String {
    action.keys.iter().map(|key| key.name()).collect::<Vec<_>>().join(", ")
}

/// Actions whose description contains the letters of `query` in order, best match first.
pub fn search(model: &Model, query: &str) -> Vec<&'static Action> {
    let mut found: Vec<_> =
        existing(model).filter_map(|a| Some((subsequence_cost(a.description, query)?, a))).collect();
    found.sort_by_key(|(cost, _)| *cost);
    found.into_iter().map(|(_, action)| action).collect()
}

/// How badly the letters of `query` are scattered over `text`: skipped letters between the first and the last match,
/// and a little for a late start. `None` when they do not all occur in order.
fn subsequence_cost(text: &str, query: &str) -> Option<usize> {
    let mut letters = text.chars().flat_map(char::to_lowercase).enumerate();
    let mut cost = 0;
    let mut last = None;
    for wanted in query.chars().filter(|c| !c.is_whitespace()).flat_map(char::to_lowercase) {
        let (at, _) = letters.find(|(_, c)| *c == wanted)?;
        cost += match last {
            None => at / 4,
            Some(previous) => at - previous - 1,
        };
        last = Some(at);
    }
    Some(cost)
}

/// The key table of the README, as Markdown.
pub fn readme_table() -> String {
    let mut out = String::from("| key | what it does |\n|---|---|\n");
    for action in ACTIONS {
        let keys: Vec<_> = action.keys.iter().map(|key| format!("`{}`", key.name())).collect();
        let only = if action.exists == Exists::Recording { " (in a recording)" } else { "" };
        out.push_str(&format!("| {} | {}{only} |\n", keys.join(" "), action.description));
    }
    for (keys, description) in TEXT_KEYS {
        let keys: Vec<_> = keys.split(", ").map(|key| format!("`{key}`")).collect();
        out.push_str(&format!("| {} | {description} |\n", keys.join(" ")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_key_means_two_things_in_one_mode() {
        for mode in [Exists::Live, Exists::Recording] {
            let mut seen = HashSet::new();
            for action in ACTIONS.iter().filter(|a| a.exists == Exists::Always || a.exists == mode) {
                for key in action.keys {
                    assert!(seen.insert(key.name()), "{} is bound twice", key.name());
                }
            }
        }
    }

    #[test]
    fn every_action_has_a_key_and_a_description_of_its_own() {
        let mut seen = HashSet::new();
        for action in ACTIONS {
            assert!(!action.keys.is_empty(), "{:?} has no key", action.id);
            assert!(seen.insert(action.description), "`{}` is there twice", action.description);
        }
    }

    #[test]
    fn the_readme_table_has_a_row_for_every_action() {
        let table = readme_table();
        assert_eq!(table.lines().count(), 2 + ACTIONS.len() + TEXT_KEYS.len());
        assert!(table.contains("| `x` | cancel the running request |"));
        assert!(table.contains("| `q` `Esc` |"));
    }

    #[test]
    fn a_query_finds_what_contains_its_letters_in_order() {
        assert!(subsequence_cost("run the next turn", "rntt").is_some());
        assert!(subsequence_cost("run the next turn", "zz").is_none());
        assert!(
            subsequence_cost("pause; again, go on", "pause") < subsequence_cost("up a used edge", "pause")
        );
    }
}
