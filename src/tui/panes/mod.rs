//! The panes. Each draws itself into a rectangle from the model and knows nothing of its neighbours.

pub mod checkpoint;
pub mod compare;
pub mod debt;
pub mod divergence;
pub mod events;
mod flow;
pub mod log;
mod plot;
pub mod recovery;
pub mod request;
pub mod session;
mod table;
pub mod transcript;
pub mod verify;

use super::app::{Model, Pane};
use super::memory::gauge;
use super::text::{bytes, fit, thousands, width};
use super::tier;

/// What a pane's title says behind its name, where it has `room` columns for it: units and legend, or what it is about.
pub fn title_note(model: &Model, pane: Pane, room: usize) -> String {
    match pane {
        Pane::Session => "tokens".to_owned(),
        Pane::Checkpoint => "tokens: ▁ prompt  █ checkpoint  ░ suffix".to_owned(),
        Pane::Request => match model.selected() {
            Some(r) => {
                let glyphs = r.restore.as_ref().and_then(request::endpoint_glyphs);
                let name = Some(super::text::sanitise(&r.name).into_owned()).filter(|name| !name.is_empty());
                let parts = [Some(format!("{} · turn {}", r.id.0, r.turn)), glyphs, name];
                fit(&parts.into_iter().flatten().collect::<Vec<_>>().join(" · "), room).into_owned()
            }
            None => String::new(),
        },
        Pane::Transcript => {
            let scored = model.selected().filter(|request| request.scored.is_some());
            let kept = scored.map_or_else(String::new, |request| {
                format!(" · █ kept ▒ partly · dropped at turn {}, lines approx.", request.turn)
            });
            let drafted = model.selected().is_some_and(verify::has_accepted);
            let accepted = if drafted { " · accepted drafts underlined" } else { "" };
            fit(&format!("lane {}{kept}{accepted}", model.ui.lane.label()), room).into_owned()
        }
        Pane::Events => format!("{} folded", thousands(model.ledger().events())),
        Pane::Log => memory_note(model, room),
        Pane::Divergence => match model.selected() {
            Some(r) => format!("{} · turn {}", r.id.0, r.turn),
            None => String::new(),
        },
        Pane::Debt => format!("lane {} · tokens", model.ui.lane.label()),
        Pane::Compare => compare::title_note(model, room),
        Pane::Verify => verify::title_note(model, room),
        Pane::Recovery => recovery::title_note(model, room),
    }
}

/// The prefix cache's memory, then as much of the SSD tier's and the device's as fits.
fn memory_note(model: &Model, room: usize) -> String {
    let cache = model.ledger().memory().map(|memory| {
        format!(
            "cache {} of {}, {} blocks{}",
            bytes(memory.bytes),
            bytes(memory.limit_bytes),
            thousands(memory.cached_blocks.saturating_add(memory.live_blocks)),
            memory.slots.map_or_else(String::new, |s| format!(", {} snapshots", thousands(s.snapshots)))
        )
    });
    let mut note = cache.unwrap_or_default();
    let mut add = |gauge: &dyn Fn(usize) -> Option<String>| {
        let between = if note.is_empty() { "" } else { " · " };
        let left = room.saturating_sub(width(&note) + width(between));
        if let Some(words) = gauge(left).filter(|words| !words.is_empty()) {
            note.push_str(between);
            note.push_str(&words);
        }
    };
    add(&|left| tier::reading(model).map(|tier| tier::gauge(tier, left)));
    add(&|left| model.ledger().device_memory().map(|device| gauge(device, left)));
    note
}
