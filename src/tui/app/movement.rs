//! Moving through panes, requests, blocks and lines, by key and by mouse.

use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};
use ratatui::layout::Position;

use super::{Effect, Model, Pane, Scroll};
use crate::event::{LaneId, RequestId};
use crate::tui::panes;

pub(super) fn focus(model: &mut Model, pane: Pane) {
    model.ui.focus = pane;
    if pane.is_lower() {
        model.ui.lower = Some(pane);
    } else if pane == Pane::Request && model.ui.lower_pane().is_tall() {
        // The lower pane stands in its place.
        model.ui.lower = None;
    }
}

pub(super) fn cycle_focus(model: &mut Model, by: isize) {
    let order: Vec<Pane> = if model.ui.layout.single {
        Pane::ALL.to_vec()
    } else {
        let lower = model.ui.lower_pane();
        let middle = (!lower.is_tall()).then_some(Pane::Request);
        [Pane::Session, Pane::Checkpoint].into_iter().chain(middle).chain([lower]).collect()
    };
    let at = order.iter().position(|pane| *pane == model.ui.focus).unwrap_or_default();
    let next = (at as isize + by).rem_euclid(order.len() as isize) as usize;
    focus(model, order[next]);
}

pub(super) fn show_lane(model: &mut Model, lane: LaneId) {
    model.ui.lane = lane;
    model.ui.selection = None;
    model.ui.deselect();
    model.ui.scroll[Pane::Transcript.index()] = Scroll::Follow;
}

pub(super) fn switch_lane(model: &mut Model, by: isize) {
    let lanes: Vec<LaneId> = model.ledger().lanes().map(|(id, _)| id).collect();
    if lanes.is_empty() {
        return;
    }
    let at = lanes.iter().position(|lane| *lane == model.ui.lane).unwrap_or_default();
    let next = (at as isize + by).rem_euclid(lanes.len() as isize) as usize;
    show_lane(model, lanes[next]);
}

/// Puts the focus on another of the runs that are compared. What is selected stays: their requests have the same numbers.
pub(super) fn switch_run(model: &mut Model, by: isize) {
    model.runs.move_focus(by);
    model.ui.deselect();
    if model.ledger().lane(model.ui.lane).is_none() {
        show_lane(model, LaneId::default());
    }
}

/// Moves the selection by `by` requests; selecting the latest follows it.
fn select(model: &mut Model, by: isize) {
    let ids: Vec<RequestId> = visible_requests(model);
    let Some(last) = ids.len().checked_sub(1) else { return };
    let current = model.selected().map(|r| r.id);
    let at = ids.iter().position(|id| Some(*id) == current).unwrap_or(last);
    let next = at.saturating_add_signed(by).min(last);
    model.ui.selection = if next == last { None } else { Some(ids[next]) };
    model.ui.deselect();
}

/// The requests the session pane lists: the history in view, less what the filter hides.
pub fn visible_requests(model: &Model) -> Vec<RequestId> {
    let filter = model.ui.filter[Pane::Session.index()].to_lowercase();
    model
        .history()
        .into_iter()
        .filter(|r| filter.is_empty() || panes::session::haystack(r).contains(&filter))
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

/// Scrolls a pane that is read from its first line on.
fn scroll_down(model: &mut Model, pane: Pane, by: isize) {
    let page = model.ui.layout.pages[pane.index()];
    let top = page.top.saturating_add_signed(by).min(page.lines.saturating_sub(page.height));
    model.ui.scroll[pane.index()] = Scroll::At(top);
}

/// Looks at less of the time, the latest part of it, or at more.
fn look_closer(model: &mut Model, by: isize) {
    let by = i8::try_from(by.signum()).unwrap_or_default();
    model.ui.closeness = model.ui.closeness.saturating_add(by).clamp(-1, panes::recovery::CLOSEST);
}

pub(super) fn step(model: &mut Model, by: isize) {
    match model.ui.focus {
        Pane::Verify if !model.ui.sheet => select_cycle(model, by),
        pane if pane.lists_requests() => select(model, by),
        pane => scroll(model, pane, by),
    }
}

pub(super) fn page(model: &mut Model, by: isize) {
    let pane = model.ui.focus;
    let height = model.ui.layout.pages[pane.index()].height.max(2) as isize - 1;
    match pane {
        Pane::Session | Pane::Debt => select(model, by * height),
        Pane::Verify if !model.ui.sheet => select_cycle(model, by * height),
        Pane::Recovery => scroll_down(model, pane, by * height),
        pane if pane.lists_requests() => select(model, by * 5),
        pane => scroll(model, pane, by * height),
    }
}

pub(super) fn sideways(model: &mut Model, by: isize) {
    match model.ui.focus {
        Pane::Session | Pane::Checkpoint | Pane::Debt | Pane::Verify => select(model, by),
        Pane::Recovery => look_closer(model, by),
        Pane::Compare if model.runs.are_compared() => switch_run(model, by),
        Pane::Compare => select(model, by),
        Pane::Request => select_block(model, by),
        Pane::Divergence => select_divergence(model, by),
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
        .or_else(|| panes::request::chosen_block(model, restore))
        .unwrap_or(last);
    let next = at.saturating_add_signed(by).min(last);
    model.ui.block = u32::try_from(next).ok();
}

/// Moves the selection by `by` cycles; selecting the latest follows it.
fn select_cycle(model: &mut Model, by: isize) {
    let places = panes::verify::places(model);
    let Some(last) = places.len().checked_sub(1) else { return };
    let at = model.ui.cycle.and_then(|place| places.iter().position(|other| *other == place));
    let next = at.unwrap_or(last).saturating_add_signed(by).min(last);
    model.ui.cycle = if next == last { None } else { Some(places[next]) };
}

/// Shows all figures of the verify view from the first, or the cycles again.
pub(super) fn toggle_sheet(model: &mut Model) {
    model.ui.sheet = !model.ui.sheet;
    model.ui.scroll[Pane::Verify.index()] = Scroll::At(0);
    if model.ui.focus != Pane::Verify {
        focus(model, Pane::Verify);
        model.ui.sheet = true;
    }
}

/// Selects the next request, or the previous one, whose prompt departs from an earlier one.
fn select_divergence(model: &mut Model, by: isize) {
    let departing = panes::divergence::departing(model);
    let order: Vec<RequestId> = visible_requests(model);
    let at = |id: RequestId| order.iter().position(|other| *other == id);
    let Some(here) = model.selected().and_then(|request| at(request.id)) else { return };
    let mut others = departing.into_iter().filter_map(at);
    let found = if by < 0 { others.rfind(|other| *other < here) } else { others.find(|other| *other > here) };
    match found {
        Some(there) => select(model, there as isize - here as isize),
        None => {
            let words = if by < 0 { "no earlier prompt" } else { "no later prompt" };
            model.toast(format!("{words} of this lane departs from what came before"));
        }
    }
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

pub(super) fn to_first(model: &mut Model) {
    match model.ui.focus {
        Pane::Verify if !model.ui.sheet => select_cycle(model, isize::MIN + 1),
        pane if pane.lists_requests() => select(model, isize::MIN + 1),
        pane => {
            let page = model.ui.layout.pages[pane.index()];
            if page.lines > page.height {
                model.ui.scroll[pane.index()] = Scroll::At(0);
            }
        }
    }
}

pub(super) fn to_last(model: &mut Model) {
    match model.ui.focus {
        pane if pane.lists_requests() => {
            model.ui.selection = None;
            model.ui.deselect();
        }
        Pane::Verify if !model.ui.sheet => model.ui.cycle = None,
        pane => model.ui.scroll[pane.index()] = Scroll::Follow,
    }
}

pub(super) fn open(model: &mut Model) {
    match model.ui.focus {
        Pane::Session | Pane::Checkpoint | Pane::Debt | Pane::Compare | Pane::Recovery => {
            focus(model, Pane::Request)
        }
        Pane::Request if panes::divergence::of_selected(model).is_some() => focus(model, Pane::Divergence),
        Pane::Request | Pane::Divergence | Pane::Verify => {
            focus(model, Pane::Transcript);
            show_turn(model);
        }
        Pane::Transcript | Pane::Events | Pane::Log => {
            let pane = model.ui.focus;
            model.ui.scroll[pane.index()] = Scroll::Follow;
        }
    }
}

pub(super) fn on_mouse(model: &mut Model, mouse: MouseEvent) -> Vec<Effect> {
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
                model.ui.deselect();
            }
        }
        MouseEventKind::ScrollUp | MouseEventKind::ScrollDown => {
            let by: isize = if mouse.kind == MouseEventKind::ScrollUp { -3 } else { 3 };
            match pane {
                Pane::Verify if !model.ui.sheet => select_cycle(model, by.signum()),
                pane if pane.lists_requests() => select(model, by.signum()),
                pane => scroll(model, pane, by),
            }
        }
        _ => {}
    }
    Vec::new()
}
