//! The SSD tier on one line.

use super::app::Model;
use super::memory::bar;
use super::text::{bytes, thousands, width};
use crate::event::TierReading;
use crate::ledger::RequestFacts;

/// What the words of the gauge mean, for the help.
pub static WORDS: &[(&str, &str)] = &[
    ("ssd", "blocks of this model on the SSD tier, bytes of its limit"),
    ("queued", "files on their way to the disk"),
    ("declined", "blocks not taken: the disk could not keep up"),
];

/// Blocks and snapshots held, bytes of the limit with a bar, what is on its way, and what went wrong. What does not fit `room` columns is
/// left out, from the least important on; all of it where nothing fits.
pub fn gauge(tier: &TierReading, room: usize) -> String {
    let blocks = format!("ssd {} blocks", thousands(tier.blocks));
    let snapshots = (tier.snapshots > 0).then(|| format!("{} snapshots", thousands(tier.snapshots)));
    let limit = format!("{} of {}", bytes(tier.bytes), bytes(tier.limit_bytes));
    let filled = format!("{limit} {}", bar(tier.bytes, tier.bytes, tier.limit_bytes));
    let foreign = (tier.foreign_bytes > 0).then(|| format!("{} of other models", bytes(tier.foreign_bytes)));
    let count = |n: u64, word: &str| (n > 0).then(|| format!("{} {word}", thousands(n)));
    let queued = count(tier.queued_files, "queued");
    let troubles = [
        count(tier.damaged, "damaged"),
        count(tier.failed_writes, "writes failed"),
        count(tier.declined, "declined"),
    ];
    let troubles =
        Some(troubles.into_iter().flatten().collect::<Vec<_>>().join(" · ")).filter(|t| !t.is_empty());
    let lines = [
        vec![
            Some(&blocks),
            snapshots.as_ref(),
            Some(&filled),
            queued.as_ref(),
            troubles.as_ref(),
            foreign.as_ref(),
        ],
        vec![Some(&blocks), snapshots.as_ref(), Some(&filled), queued.as_ref(), troubles.as_ref()],
        vec![Some(&blocks), Some(&filled), queued.as_ref(), troubles.as_ref()],
        vec![Some(&blocks), Some(&limit), queued.as_ref()],
        vec![Some(&blocks), Some(&limit)],
        vec![Some(&blocks)],
    ];
    let lines =
        lines.map(|parts| parts.into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join(" · "));
    lines.into_iter().find(|line| width(line) <= room).unwrap_or_default()
}

/// What the tier holds, as it was last told; `None` without a tier.
pub(super) fn reading(model: &Model) -> Option<&TierReading> {
    model.ledger().tier()
}

/// The gauge for the memory line of `request`: the tier as it is now, where the request is the latest one.
pub fn of_request(model: &Model, request: &RequestFacts, room: usize) -> Option<String> {
    let latest = model.ledger().requests().next_back().is_some_and(|latest| latest.id == request.id);
    let gauge = reading(model).filter(|_| latest).map(|tier| gauge(tier, room))?;
    Some(gauge).filter(|words| !words.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gauge_says_what_fits_and_only_what_there_is() {
        let quiet =
            TierReading { blocks: 1_204, bytes: 812 << 20, limit_bytes: 8 << 30, ..TierReading::default() };
        assert_eq!(gauge(&quiet, 100), "ssd 1,204 blocks · 812.0 MiB of 8.0 GiB ░░░░░░░░░░");
        assert_eq!(gauge(&quiet, 45), "ssd 1,204 blocks · 812.0 MiB of 8.0 GiB");
        assert_eq!(gauge(&quiet, 20), "ssd 1,204 blocks");
        assert_eq!(gauge(&quiet, 5), "");
        let busy =
            TierReading { snapshots: 30, queued_files: 12, declined: 3, foreign_bytes: 1 << 30, ..quiet };
        assert_eq!(
            gauge(&busy, 200),
            "ssd 1,204 blocks · 30 snapshots · 812.0 MiB of 8.0 GiB ░░░░░░░░░░ · 12 queued · 3 declined · \
             1.0 GiB of other models"
        );
        assert_eq!(gauge(&busy, 60), "ssd 1,204 blocks · 812.0 MiB of 8.0 GiB · 12 queued");
        let absurd =
            TierReading { blocks: u64::MAX, bytes: u64::MAX, limit_bytes: 0, ..TierReading::default() };
        assert!(gauge(&absurd, 200).contains("██████████"));
    }
}
