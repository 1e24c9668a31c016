//! The panes. Each draws itself into a rectangle from the model and knows nothing of its neighbours.

pub mod checkpoint;
pub mod events;
pub mod log;
pub mod request;
pub mod session;
pub mod transcript;

use super::app::{Model, Pane};
use super::memory::gauge;
use super::text::{bytes, thousands, width};

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
                parts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
            }
            None => String::new(),
        },
        Pane::Transcript => format!("lane {}", model.ui.lane.label()),
        Pane::Events => format!("{} folded", thousands(model.ledger.events())),
        Pane::Log => memory_note(model, room),
    }
}

/// The prefix cache's memory, then as much of the device's as fits.
fn memory_note(model: &Model, room: usize) -> String {
    let cache = model.ledger.memory().map(|memory| {
        format!(
            "cache {} of {}, {} blocks{}",
            bytes(memory.bytes),
            bytes(memory.limit_bytes),
            thousands(memory.cached_blocks.saturating_add(memory.live_blocks)),
            memory.slots.map_or_else(String::new, |s| format!(", {} snapshots", thousands(s.snapshots)))
        )
    });
    let left = room.saturating_sub(cache.as_ref().map_or(0, |words| width(words) + 3));
    let device = model.ledger.device_memory().map(|device| gauge(device, left));
    let parts = [cache, device.filter(|words| !words.is_empty())];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
}
