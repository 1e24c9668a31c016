//! What a sequence leaves behind: its whole blocks in the cache and in the SSD tier.

use std::sync::Arc;

use super::Scheduler;
use crate::cache::StoreOutcome;
use crate::cache::recurrent::RecurrentState;
use crate::device::DeviceError;
use crate::engine::clock::Clock;
use crate::engine::emitter::Emitter;
use crate::engine::sequence::Sequence;
use crate::event::{Body, Nanos, Route, SnapshotsStored, TierStored};

/// What was kept of a sequence.
pub(super) struct Kept {
    /// Leading tokens of which whole blocks were stored.
    pub(super) storable: usize,
    pub(super) stored: StoreOutcome,
    /// `None` without a tier.
    pub(super) tier: Option<TierStored>,
}

impl Scheduler<'_> {
    /// Stores what a sequence that ends has computed, and tells what that came to with what it had stored before.
    pub(super) fn store(&mut self, sequence: &mut Sequence<'_>, clock: &mut Clock, out: &mut Emitter) {
        let Kept { stored, tier, .. } = self.keep(sequence, clock);
        let earlier = &sequence.earlier;
        let recurrent =
            sequence.recurrent.is_some() || (earlier.preemptions > 0 && self.cache.is_recurrent());
        let snapshots = recurrent.then(|| SnapshotsStored {
            stored: stored.new_snapshots as u64 + earlier.snapshots,
            not_taken: not_taken(sequence) + earlier.not_taken,
            dropped: sequence.dropped_snapshots,
        });
        let blocks = match earlier.preemptions {
            0 => stored.new_blocks,
            _ => self.written_by(sequence),
        };
        let tier = together(earlier.tier, tier);
        let body = Body::Stored {
            stored_tokens: (blocks * self.cache.block_tokens()) as u64,
            canonical_tokens: self.cache.restorable_prefix(&sequence.submission.prompt) as u64,
            evicted_blocks: sequence.evicted_blocks,
            snapshots,
            tier,
        };
        out.emit(clock.now(), Some(sequence.submission.lane), Some(sequence.request), body);
    }

    /// Puts the whole blocks of a sequence that may be stored into the cache and offers them to the tier.
    pub(super) fn keep(&mut self, sequence: &mut Sequence<'_>, clock: &mut Clock) -> Kept {
        let storable = self.make_storable(sequence, clock);
        let tokens = &sequence.tokens[..storable];
        let now = clock.now();
        let captured = sequence.recurrent.as_ref().map(RecurrentState::captured).unwrap_or_default();
        let (stored, _) = clock.measure(|| {
            self.cache.store(tokens, &sequence.pages, captured, sequence.request, Route::Dense, now)
        });
        let tier = self.offer_to_tier(sequence, storable, Route::Dense, clock.now());
        Kept { storable, stored, tier }
    }

    /// Blocks of a sequence that the cache holds because it wrote them.
    fn written_by(&self, sequence: &Sequence<'_>) -> usize {
        let storable = sequence.storable_of(sequence.reached());
        let hashes = self.cache.hashes(&sequence.tokens[..storable]);
        let written = hashes.iter().filter_map(|hash| self.cache.provenance(hash));
        written.filter(|by| by.written_by == sequence.request && !by.earlier_run).count()
    }

    /// Leading tokens of which whole blocks may be stored. The prediction head's entries are part of them, so those that are due are written.
    fn make_storable(&mut self, sequence: &mut Sequence<'_>, clock: &mut Clock) -> usize {
        let (storable, block_tokens) = (sequence.storable(), self.cache.block_tokens());
        if sequence.head.is_none() {
            // Where a head is loaded, pages without its entries are of no use.
            return if self.executor.facts().head_layers == 0 { storable } else { 0 };
        }
        let whole = storable / block_tokens * block_tokens;
        let (executor, chunk_tokens) = (&mut *self.executor, self.config.chunk_tokens);
        let (written, _) = clock.account(|| {
            let written = Scheduler::write_due(executor, sequence, whole, chunk_tokens);
            let compute = *written.as_ref().unwrap_or(&Nanos(0));
            (written, compute)
        });
        if let Err(error) = written {
            tracing::warn!(request = sequence.request.0, %error, "what the prediction head has not read is not stored");
            if matches!(error, DeviceError::StateLost(_)) {
                self.lost = Some(Arc::new(error));
                return 0;
            }
        }
        sequence.head.as_ref().map_or(0, |entries| entries.written()).min(storable)
    }
}

/// Boundaries that a sequence was to capture since it was last admitted, and has not.
pub(super) fn not_taken(sequence: &Sequence<'_>) -> u64 {
    sequence.recurrent.as_ref().map_or(0, RecurrentState::not_taken)
}

/// What two stores of a sequence put into the tier: what was declined at first was offered again.
pub(super) fn together(earlier: Option<TierStored>, later: Option<TierStored>) -> Option<TierStored> {
    match (earlier, later) {
        (Some(earlier), Some(later)) => Some(TierStored {
            blocks: earlier.blocks + later.blocks,
            snapshots: earlier.snapshots + later.snapshots,
            declined: later.declined,
        }),
        (earlier, later) => later.or(earlier),
    }
}
