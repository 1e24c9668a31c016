//! Lanes of the same session side by side, at the chosen turn; their summed times to first token over the turns, where which of them
//! leads; and what is to be said of it all in a sentence.

mod cards;
mod plot;

use ratatui::layout::Rect;

use crate::compare::{Cell, Comparison, Turn};
use crate::event::{LaneId, Nanos};
use crate::ledger::RequestFacts;
use crate::tui::app::{Model, Pane};
use crate::tui::text::{self, duration};
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

/// What the marks of the pane mean, for the help.
pub static WORDS: &[(&str, &str)] = &[
    ("Σ", "times to first token, summed from the first turn on"),
    ("▲ ▼ =", "the lane leads, is behind, is level with the lane it is compared with"),
    ("same text", "the reply has every token of the compared lane's"),
    ("margin", "by how much the compared lane preferred its token there"),
    ("decode, e2e", "how many times as fast as the compared lane: decoding, end to end"),
    ("recovered", "restorable before the next request, of what was to be recovered"),
    ("idle used", "recovery's compute of the gaps so far; in no sum of times"),
    ("owes", "prompt tokens not restorable when the request has ended"),
];

/// Columns a lane's card needs.
const CARD: usize = 28;
/// Rows from which on there is room for cards.
const ROOMY: usize = 20;

/// What the pane's title says: which lanes, and the turn they are shown at.
pub(super) fn title_note(model: &Model, room: usize) -> String {
    if !model.runs.are_compared() {
        return String::new();
    }
    let comparison = model.runs.comparison();
    let against = comparison.name(comparison.base());
    let turn = model.selected().map_or_else(String::new, |request| format!("turn {} · ", request.turn));
    text::fit(&format!("{turn}against {against}"), room).into_owned()
}

/// The lanes at every turn, and the turn that is shown.
struct Lanes<'a> {
    model: &'a Model,
    turns: Vec<Turn>,
    /// Position of the shown turn in `turns`.
    at: Option<usize>,
}

impl<'a> Lanes<'a> {
    fn of(model: &'a Model) -> Lanes<'a> {
        let turns = model.runs.comparison().turns();
        let selected = model.selected().map(|request| (request.lane, request.turn));
        let at = turns.iter().position(|turn| Some((turn.place.line, turn.place.turn)) == selected);
        let at = at.or(turns.len().checked_sub(1));
        Lanes { model, turns, at }
    }

    fn count(&self) -> usize {
        self.model.runs.count()
    }

    fn comparison(&self) -> &'a Comparison {
        self.model.runs.comparison()
    }

    fn name(&self, place: usize) -> String {
        text::sanitise(self.model.runs.name(place)).replace('\n', " ")
    }

    /// The shown turn in the lane at `place`.
    fn cell(&self, place: usize) -> Option<&Cell> {
        self.turns.get(self.at?)?.cells.get(place)?.as_ref()
    }

    /// The request of the shown turn in the lane at `place`.
    fn request(&self, place: usize) -> Option<&'a RequestFacts> {
        let at = self.turns.get(self.at?)?.place;
        let mut requests = self.model.runs.ledger_of(place).lane_requests(at.line);
        requests.find(|request| request.turn == at.turn)
    }

    /// The checkpoints of the lane at `place`, by turn; requests beside the line of history are left out.
    fn checkpoints(&self, place: usize) -> Vec<Option<u64>> {
        let line = self.turns.iter().filter(|turn| !turn.side);
        line.map(|turn| turn.cells.get(place)?.as_ref()?.checkpoint_tokens).collect()
    }

    /// Requests in a row with the checkpoint of the shown one.
    fn pinned(&self, place: usize) -> Option<u32> {
        let request = self.request(place)?;
        let entries = self.model.runs.ledger_of(place).debt(request.lane);
        let entry = entries.into_iter().find(|entry| entry.request == request.id)?;
        Some(entry.pinned_requests).filter(|pinned| *pinned > 1)
    }
}

/// A time in seconds, or `–`.
fn time(seconds: Option<f64>) -> String {
    duration(seconds.map(Nanos::from_seconds))
}

/// The tone of the lane at `place`.
fn lane_tone(place: usize) -> Tone {
    Tone::Lane(LaneId(place as u32))
}

/// Draws the pane.
pub fn draw(canvas: &mut Canvas<'_>, model: &Model, area: Rect) {
    canvas.note_page(Pane::Compare, 0, usize::from(area.height), 0);
    if !model.runs.are_compared() {
        draw_nothing(canvas, model, area);
        return;
    }
    let lanes = Lanes::of(model);
    let verdicts = verdict_lines(&lanes, area);
    let height = usize::from(area.height);
    let in_cards = height >= ROOMY && usize::from(area.width) / lanes.count() >= CARD;
    let top = if in_cards { cards::height(&lanes) } else { 1 + lanes.count() };
    let top = top.min(height);
    let (above, rest) = split(area, top);
    if in_cards {
        cards::draw_cards(canvas, &lanes, above);
    } else {
        cards::draw_table(canvas, &lanes, above);
    }
    // The verdict is the last thing to go.
    let below = verdicts.len().min(usize::from(rest.height));
    let (middle, foot) = split(rest, usize::from(rest.height) - below);
    plot::draw(canvas, &lanes, middle);
    for (row, (line, tone)) in verdicts.iter().enumerate() {
        canvas.put(foot, 0, row, line, *tone);
    }
}

fn split(area: Rect, height: usize) -> (Rect, Rect) {
    let height = u16::try_from(height).unwrap_or(u16::MAX).min(area.height);
    (Rect { height, ..area }, Rect { y: area.y + height, height: area.height - height, ..area })
}

fn draw_nothing(canvas: &mut Canvas<'_>, model: &Model, area: Rect) {
    canvas.put(area, 1, 0, "here: lanes of this session side by side, stepped together", Tone::Dim);
    let how = if model.can_compare {
        "`c` runs the session in two lanes, dense and sparse, from its start"
    } else {
        "`escarp compare --tui` runs a session in two to four lanes"
    };
    canvas.put(area, 1, 1, how, Tone::Dim);
}

/// The verdict on every lane, as lines.
fn verdict_lines(lanes: &Lanes<'_>, area: Rect) -> Vec<(String, Tone)> {
    let columns = usize::from(area.width).saturating_sub(1).max(2);
    let most = match area.height {
        // Of several verdicts in little room, each keeps its beginning.
        ..22 if lanes.count() > 2 => 1,
        ..16 => 2,
        _ => 3,
    };
    let mut out = Vec::new();
    let verdicts = lanes.comparison().verdicts();
    for verdict in verdicts {
        let simulated = if verdict.simulated { " (simulated times)" } else { "" };
        let sentence = text::sanitise(&verdict.sentence()).replace('\n', " ");
        let mut pieces = Vec::new();
        text::wrap_line(&format!("verdict: {sentence}{simulated}"), columns, &mut pieces);
        let rest = pieces.split_off(pieces.len().min(most)).join(" ");
        if let (false, Some(last)) = (rest.is_empty(), pieces.last_mut()) {
            *last = text::fit(&format!("{last} {rest}"), columns).into();
        }
        let place = (0..lanes.count()).find(|place| lanes.comparison().name(*place) == verdict.lane);
        let tone = if verdict.outcome.is_some() { place.map_or(Tone::Text, lane_tone) } else { Tone::Dim };
        out.extend(pieces.into_iter().map(|piece| (piece.into_string(), tone)));
    }
    out
}
