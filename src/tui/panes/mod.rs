//! The panes. Each draws itself into a rectangle from the model and knows nothing of its neighbours.

pub mod checkpoint;
pub mod events;
pub mod log;
pub mod request;
pub mod session;
pub mod transcript;

use super::app::{Model, Pane};
use super::text::{bytes, thousands};

/// What a pane's title says behind its name: units and legend, or what it is about.
pub fn title_note(model: &Model, pane: Pane) -> String {
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
        Pane::Log => match model.ledger.memory() {
            Some(memory) => format!(
                "cache {} of {}, {} blocks{}",
                bytes(memory.bytes),
                bytes(memory.limit_bytes),
                thousands(memory.cached_blocks.saturating_add(memory.live_blocks)),
                memory.slots.map_or_else(String::new, |s| format!(", {} snapshots", thousands(s.snapshots)))
            ),
            None => String::new(),
        },
    }
}
