//! Interface state: everything the model holds that is not a fact.

use ratatui::layout::Rect;

use crate::event::{LaneId, RequestId};
use crate::tui::ask::Ask;
use crate::tui::editor::Editor;
use crate::tui::explorer::Explorer;
use crate::tui::line::LineInput;

/// A pane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Pane {
    /// One row a request.
    #[default]
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
    /// Where a prompt departs from an earlier one.
    Divergence,
    /// What is computed again, and who pays for it.
    Debt,
    /// Lanes side by side.
    Compare,
    /// What speculative decoding costs and gives.
    Verify,
    /// What background recovery does, waits for, and was worth.
    Recovery,
}

impl Pane {
    /// All panes, in the order of their digits.
    pub const ALL: [Pane; Pane::COUNT] = [
        Pane::Session,
        Pane::Checkpoint,
        Pane::Request,
        Pane::Transcript,
        Pane::Events,
        Pane::Log,
        Pane::Divergence,
        Pane::Debt,
        Pane::Compare,
        Pane::Verify,
        Pane::Recovery,
    ];
    /// How many there are.
    pub const COUNT: usize = 11;

    /// Position in [`Pane::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// The key that picks it: a digit from 1 on, 0 for the tenth as keyboards have them, and a letter where digits have run out.
    pub fn key(self) -> char {
        match self {
            Pane::Recovery => 'R',
            pane => "1234567890".chars().nth(pane.index()).unwrap_or(' '),
        }
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
            Pane::Divergence => "divergence",
            Pane::Debt => "debt",
            Pane::Compare => "compare",
            Pane::Verify => "verify",
            Pane::Recovery => "recovery",
        }
    }

    /// Whether a filter makes sense in it.
    pub fn filterable(self) -> bool {
        matches!(self, Pane::Session | Pane::Transcript | Pane::Events | Pane::Log)
    }

    /// Whether it shares the workbench's lowest place with other panes.
    pub fn is_lower(self) -> bool {
        matches!(
            self,
            Pane::Transcript
                | Pane::Events
                | Pane::Log
                | Pane::Divergence
                | Pane::Debt
                | Pane::Compare
                | Pane::Verify
                | Pane::Recovery
        )
    }

    /// Whether it takes the request's place too when it stands in the workbench's lowest.
    pub fn is_tall(self) -> bool {
        matches!(self, Pane::Compare | Pane::Verify | Pane::Recovery)
    }

    /// Whether Up and Down choose a request in it, rather than scroll.
    pub fn lists_requests(self) -> bool {
        !matches!(self, Pane::Transcript | Pane::Events | Pane::Log | Pane::Verify)
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
    pub pages: [Page; Pane::COUNT],
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
        query: LineInput,
        /// The chosen entry.
        chosen: usize,
    },
    /// The editor.
    Editor(Box<Editor>),
    /// The filter line of the focused pane.
    Filter {
        /// What was typed.
        line: LineInput,
    },
    /// A question that is answered on one line.
    Ask(Box<Ask>),
    /// What another threshold or another choice of units would have made of a request.
    Explorer(Box<Explorer>),
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

/// The two requests of the calculator, where they were chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Weighed {
    /// The one that decoded without a drafter.
    pub dense: Option<RequestId>,
    /// The one with.
    pub speculative: Option<RequestId>,
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
    pub scroll: [Scroll; Pane::COUNT],
    /// Filters by [`Pane::index`].
    pub filter: [String; Pane::COUNT],
    /// Columns the events and log panes are shifted by.
    pub shift: usize,
    /// The selected block; `None` lets the pane choose the one responsible for the loss.
    pub block: Option<u32>,
    /// The selected verify cycle, by the place in the reply of its first token; `None` follows the latest.
    pub cycle: Option<u64>,
    /// Whether the verify view shows all its figures below each other, rather than beside the cycles.
    pub sheet: bool,
    /// How close the recovery view's time line is looked at: 0 since the job began, below that the whole run, above it the last half, quarter, ….
    pub closeness: i8,
    /// Requests that the calculator weighs against each other.
    pub weighed: Weighed,
    /// Whether the verify curve is measured, where that was asked for here.
    pub measures_verify: Option<bool>,
    /// A message.
    pub toast: Option<Toast>,
    /// Whether the mouse belongs to the program.
    pub mouse: bool,
    /// The number of the last question for a turn's cost.
    pub ticket: u64,
    /// A fork was asked for; its lane comes into view when it opens.
    pub awaiting_fork: bool,
    /// The request that Ctrl-C cancelled last.
    pub interrupted: Option<RequestId>,
    /// The last frame's layout.
    pub layout: Layout,
}

impl Ui {
    /// Forgets what was selected within a request, because another one is.
    pub fn deselect(&mut self) {
        (self.block, self.cycle) = (None, None);
    }

    /// The pane in the workbench's lowest place.
    pub fn lower_pane(&self) -> Pane {
        self.lower.unwrap_or(Pane::Transcript)
    }
}
