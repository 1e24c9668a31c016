//! The block rack: for every class of layers a row that shows where the state of the prompt's blocks stands, what the glyphs
//! mean and how many there are of each, and where the chosen block comes from.

use crate::event::{BlockFact, EndState, Residency, Restore};
use crate::tui::app::Model;
use crate::tui::text::{clock, thousands};
use crate::tui::theme::Tone;

/// A class of layers whose state is kept in the same way; one row of the rack each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LayerClass {
    /// Attention layers: keys and values of every token.
    Attention,
    /// Recurrent layers: one state, where somebody captured it.
    Recurrent,
}

/// What a block's state looks like in a row of the rack.
pub(super) struct Look {
    /// Its glyph.
    pub(super) glyph: &'static str,
    /// Its tone.
    pub(super) tone: Tone,
    /// What it means, in the legend.
    pub(super) word: &'static str,
    /// Of the blocks that share a column, the one with the highest weight is shown.
    weight: u8,
}

impl LayerClass {
    /// All classes, in the order of their rows.
    const ALL: [LayerClass; 2] = [LayerClass::Attention, LayerClass::Recurrent];

    /// The classes that the model has, as far as the blocks can tell.
    pub(super) fn present(restore: &Restore) -> impl Iterator<Item = LayerClass> {
        LayerClass::ALL.into_iter().filter(|class| match class {
            LayerClass::Attention => !restore.blocks.is_empty(),
            LayerClass::Recurrent => restore.blocks.iter().any(|block| block.recurrent.is_some()),
        })
    }

    /// The row's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            LayerClass::Attention => "attention",
            LayerClass::Recurrent => "recurrent",
        }
    }

    /// What `block` looks like in this row; `None` where it has nothing to show.
    pub(super) fn look(self, block: &BlockFact) -> Option<Look> {
        match self {
            LayerClass::Attention => Some(attention_look(block.residency)),
            LayerClass::Recurrent => block.recurrent.map(recurrent_look),
        }
    }

    /// The glyph of a column that stands for all of `blocks`.
    pub(super) fn look_of_all<'a>(self, blocks: impl Iterator<Item = &'a BlockFact>) -> Option<Look> {
        blocks.filter_map(|block| self.look(block)).max_by_key(|look| look.weight)
    }

    /// The looks that occur in this row, the heaviest last, and how many blocks have each.
    pub(super) fn counts(self, blocks: &[BlockFact]) -> Vec<(Look, usize)> {
        let mut counts: Vec<(Look, usize)> = Vec::new();
        for look in blocks.iter().filter_map(|block| self.look(block)) {
            match counts.iter_mut().find(|(known, _)| known.weight == look.weight) {
                Some((_, count)) => *count += 1,
                None => counts.push((look, 1)),
            }
        }
        // A reader looks for what was restored first, and last for what is not there.
        let order = |tone| [Tone::Checkpoint, Tone::Suffix, Tone::Warn].into_iter().position(|t| t == tone);
        counts.sort_by_key(|(look, _)| (order(look.tone).unwrap_or(3), look.weight));
        counts
    }
}

fn attention_look(residency: Residency) -> Look {
    let (glyph, tone, word, weight) = match residency {
        Residency::Ram => ("■", Tone::Checkpoint, "RAM", 0),
        Residency::Ssd => ("▣", Tone::Checkpoint, "SSD", 1),
        Residency::Missing => ("·", Tone::Dim, "not held", 2),
        Residency::Held => ("▒", Tone::Suffix, "held", 3),
        Residency::HeldSsd => ("░", Tone::Suffix, "held on SSD", 4),
        Residency::Evicted => ("▫", Tone::Warn, "evicted", 5),
        Residency::Damaged => ("✗", Tone::Warn, "damaged", 6),
    };
    Look { glyph, tone, word, weight }
}

fn recurrent_look(state: EndState) -> Look {
    // A snapshot wins over the placeholders beside it: it is what a restore can use.
    let (glyph, tone, word, weight) = match state {
        EndState::Placeholder => ("□", Tone::Dim, "placeholder", 0),
        EndState::Dropped => ("◌", Tone::Warn, "dropped", 1),
        EndState::Ram => ("●", Tone::Checkpoint, "snapshot", 2),
        EndState::Ssd => ("◉", Tone::Checkpoint, "snapshot on SSD", 3),
    };
    Look { glyph, tone, word, weight }
}

/// What the glyphs of the recurrent layers' row mean, where there is such a row.
pub(in crate::tui) fn endpoint_glyphs(restore: &Restore) -> Option<String> {
    let counts = LayerClass::Recurrent.counts(&restore.blocks);
    let words = counts.iter().map(|(look, _)| format!("{} {}", look.glyph, look.word));
    (!counts.is_empty()).then(|| words.collect::<Vec<_>>().join("  "))
}

/// The block at which the loss begins that a reader should look at: the one the restore names, otherwise the first that was not
/// restored. A position in [`Restore::blocks`].
pub(in crate::tui) fn responsible_block(restore: &Restore) -> Option<usize> {
    let named = restore.losses.iter().find(|loss| loss.cause == restore.cause).and_then(|loss| loss.block);
    let at = |index: u32| restore.blocks.iter().position(|block| block.index == index);
    named
        .and_then(|culprit| at(culprit.index))
        .or_else(|| restore.blocks.iter().position(|block| !block.residency.is_restored()))
}

/// The block the rack marks: the one picked by hand, otherwise the one responsible. A position in [`Restore::blocks`].
pub(in crate::tui) fn chosen_block(model: &Model, restore: &Restore) -> Option<usize> {
    let last = restore.blocks.len().checked_sub(1)?;
    match model.ui.block {
        Some(block) => Some((block as usize).min(last)),
        None => responsible_block(restore),
    }
}

/// What a block holds, in words.
pub(super) fn state_words(block: &BlockFact) -> String {
    let residency = match block.residency {
        Residency::Ram => "restored from RAM",
        Residency::Ssd => "restored from SSD",
        Residency::Held => "held in RAM, not restored",
        Residency::HeldSsd => "held on SSD, not restored",
        Residency::Damaged => "file damaged, moved aside",
        Residency::Evicted => "evicted",
        Residency::Missing => "not held",
    };
    let endpoint = match block.recurrent {
        Some(EndState::Ram) => ", snapshot at its end",
        Some(EndState::Ssd) => ", snapshot at its end on SSD",
        Some(EndState::Placeholder) => ", placeholder at its end",
        Some(EndState::Dropped) => ", snapshot at its end dropped",
        None => "",
    };
    format!("{residency}{endpoint}")
}

/// Who wrote a block, by which route and when; `None` where nobody knows who.
pub(super) fn provenance(block: &BlockFact) -> Option<String> {
    let writer = block.written_by?;
    let run = if block.earlier_run { " of an earlier run" } else { "" };
    let route = block.route.map_or_else(String::new, |route| format!(" ({})", route.word()));
    // The time of another run says nothing in this one.
    let at = block.written_at.filter(|_| !block.earlier_run);
    let at = at.map_or_else(String::new, |at| format!(" at {}", clock(at)));
    Some(format!("written by request {}{run}{route}{at}", thousands(writer.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{RequestId, Route, Stamp};

    fn block(residency: Residency, recurrent: Option<EndState>) -> BlockFact {
        BlockFact {
            index: 3,
            residency,
            recurrent,
            written_by: Some(RequestId(10)),
            earlier_run: false,
            written_at: Some(Stamp(14_200_000_000)),
            route: Some(Route::Sparse),
        }
    }

    #[test]
    fn a_block_says_who_wrote_it_when_and_in_which_run() {
        let mut block = block(Residency::Held, Some(EndState::Dropped));
        assert_eq!(provenance(&block).unwrap(), "written by request 10 (sparse) at 14.2s");
        assert_eq!(state_words(&block), "held in RAM, not restored, snapshot at its end dropped");
        block.earlier_run = true;
        assert_eq!(provenance(&block).unwrap(), "written by request 10 of an earlier run (sparse)");
        block.written_by = None;
        assert_eq!(provenance(&block), None);
    }

    #[test]
    fn damage_is_seen_among_many_blocks_and_so_is_a_snapshot_among_placeholders() {
        let blocks = [
            block(Residency::Ram, Some(EndState::Placeholder)),
            block(Residency::Damaged, None),
            block(Residency::Ram, Some(EndState::Ram)),
        ];
        let glyph = |class: LayerClass| class.look_of_all(blocks.iter()).unwrap().glyph;
        assert_eq!(glyph(LayerClass::Attention), "✗");
        assert_eq!(glyph(LayerClass::Recurrent), "●");
        let counts: Vec<_> =
            LayerClass::Attention.counts(&blocks).iter().map(|(look, n)| (look.glyph, *n)).collect();
        assert_eq!(counts, [("■", 2), ("✗", 1)]);
    }

    #[test]
    fn no_two_states_of_a_row_look_alike_even_in_ascii() {
        use Residency::{Damaged, Evicted, Held, HeldSsd, Missing, Ram, Ssd};
        let attention = [Ram, Ssd, Held, HeldSsd, Damaged, Evicted, Missing].map(|r| attention_look(r).glyph);
        let recurrent = [EndState::Ram, EndState::Ssd, EndState::Placeholder, EndState::Dropped]
            .map(|state| recurrent_look(state).glyph);
        for row in [&attention[..], &recurrent[..]] {
            let twins: std::collections::HashSet<char> = row
                .iter()
                .map(|glyph| crate::tui::theme::ascii_twin(glyph.chars().next().unwrap()))
                .collect();
            assert_eq!(twins.len(), row.len(), "{row:?} → {twins:?}");
            assert!(!twins.contains(&'?'));
        }
    }
}
