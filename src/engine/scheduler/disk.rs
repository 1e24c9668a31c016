//! What goes to the SSD tier, what is told of it, and faults.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Scheduler;
use crate::cache::Captured;
use crate::cache::chain::BlockHash;
use crate::cache::recurrent::RecurrentState;
use crate::cache::tier::{Note, Offer, Origin, Part, Place, Region, TierFault};
use crate::engine::clock::Clock;
use crate::engine::emitter::Emitter;
use crate::engine::fault::Fault;
use crate::engine::sequence::Sequence;
use crate::event::{Body, LaneId, RequestId, Route, Stamp, TierReading, TierStored, TierTrouble};

/// How long the end of a run waits for what is still to be written.
const FLUSH: Duration = Duration::from_secs(20);

impl Scheduler<'_> {
    /// Offers the tier whatever it does not hold of the blocks and snapshots of a sequence whose first `storable` tokens have been stored. `None` without a tier.
    pub(super) fn offer_to_tier(
        &mut self,
        sequence: &Sequence<'_>,
        storable: usize,
        route: Route,
        now: Stamp,
    ) -> Option<TierStored> {
        let tier = self.cache.tier()?;
        let tokens = &sequence.tokens[..storable];
        let places = tier.places(tokens);
        let origin = Origin {
            run: self.cache.run().to_owned(),
            request: sequence.request,
            route,
            written_unix_ms: unix_ms(),
        };
        let mut stored = TierStored { blocks: 0, snapshots: 0, declined: 0 };
        let mut held = 0;
        let blocks = places.iter().zip(tokens.chunks_exact(self.cache.block_tokens()));
        for (index, (place, block)) in blocks.enumerate() {
            match self.offer_block(sequence, index, place, block, &origin, now) {
                Offer::AlreadyHeld => {}
                Offer::Taken => stored.blocks += 1,
                _ => {
                    // A block whose parent is not held could not be reached.
                    stored.declined += (places.len() - index) as u64;
                    break;
                }
            }
            held = index + 1;
        }
        let chain: Vec<BlockHash> = places[..held].iter().map(|place| place.hash).collect();
        if let Some(tier) = self.cache.tier_mut() {
            tier.touch(&chain);
        }
        let captured = sequence.recurrent.as_ref().map(RecurrentState::captured).unwrap_or_default();
        for captured in captured {
            match self.offer_snapshot(*captured, &places[..held], &origin, now) {
                Offer::AlreadyHeld => {}
                Offer::Taken => stored.snapshots += 1,
                _ => stored.declined += 1,
            }
        }
        Some(stored)
    }

    fn offer_block(
        &mut self,
        sequence: &Sequence<'_>,
        index: usize,
        place: &Place,
        tokens: &[u32],
        origin: &Origin,
        now: Stamp,
    ) -> Offer {
        let page = sequence.pages[index];
        let Some(tier) = self.cache.tier_mut() else { return Offer::Suspended };
        let offer = tier.would_take(Part::Block, &place.hash);
        if offer != Offer::Taken {
            return offer;
        }
        if self.cache.check(page).is_err() {
            return Offer::Suspended;
        }
        let state = match self.executor.export_page(page.id()) {
            Ok(state) => state,
            Err(error) => {
                tracing::warn!(%error, "a block could not be read off the device for the SSD tier");
                return Offer::Suspended;
            }
        };
        // Who computed the block says where it comes from: it may be older than this request.
        let written_by = self.cache.provenance(&place.hash).filter(|p| !p.earlier_run).map(|p| p.written_by);
        let origin = Origin { request: written_by.unwrap_or(origin.request), ..origin.clone() };
        match self.cache.tier_mut() {
            Some(tier) => tier.offer_block(place, tokens, state, origin, now),
            None => Offer::Suspended,
        }
    }

    fn offer_snapshot(
        &mut self,
        Captured { blocks, slot }: Captured,
        places: &[Place],
        origin: &Origin,
        now: Stamp,
    ) -> Offer {
        let Some(place) = blocks.checked_sub(1).and_then(|last| places.get(last)) else {
            return Offer::AlreadyHeld;
        };
        let Some(tier) = self.cache.tier_mut() else { return Offer::Suspended };
        let offer = tier.would_take(Part::Snapshot, &place.hash);
        if offer != Offer::Taken || self.cache.check_slot(slot).is_err() {
            return offer;
        }
        let state = match self.executor.export_slot(slot.id()) {
            Ok(state) => state,
            Err(error) => {
                tracing::warn!(%error, "a snapshot could not be read off the device for the SSD tier");
                return Offer::Suspended;
            }
        };
        match self.cache.tier_mut() {
            Some(tier) => tier.offer_snapshot(place, state, origin.clone(), now),
            None => Offer::Suspended,
        }
    }

    /// Tells what went wrong on the tier's threads since the last time.
    pub(super) fn report_tier_trouble(
        &mut self,
        lane: Option<LaneId>,
        request: Option<RequestId>,
        clock: &Clock,
        out: &mut Emitter,
    ) {
        let notes = self.cache.tier_mut().map(|tier| tier.poll()).unwrap_or_default();
        for (trouble, detail) in notes.into_iter().filter_map(trouble) {
            out.emit(clock.now(), lane, request, Body::TierTrouble { trouble, detail });
        }
    }

    /// Tells how the tier stands, after what went wrong.
    pub(super) fn report_tier(&mut self, lane: LaneId, request: RequestId, clock: &Clock, out: &mut Emitter) {
        let (lane, request) = (Some(lane), Some(request));
        self.report_tier_trouble(lane, request, clock, out);
        if let Some(reading) = self.tier_reading() {
            out.emit(clock.now(), lane, request, Body::Tier(Box::new(reading)));
        }
    }

    /// The tier in figures; `None` without one.
    pub fn tier_reading(&self) -> Option<TierReading> {
        let facts = self.cache.tier()?.facts();
        Some(TierReading {
            blocks: facts.blocks,
            snapshots: facts.snapshots,
            bytes: facts.bytes,
            foreign_bytes: facts.foreign_bytes,
            limit_bytes: facts.limit,
            queued_files: facts.queued_files,
            written_files: facts.written_files,
            evicted_files: facts.evicted_files,
            declined: facts.declined,
            damaged: facts.damaged,
            failed_writes: facts.failed_writes,
            problem: facts.problem,
        })
    }

    /// Waits until the tier has written what it took, within reason, and tells how it stands.
    pub fn close_tier(&mut self, clock: &Clock, out: &mut Emitter) {
        let Some(tier) = self.cache.tier_mut() else { return };
        tier.flush(FLUSH);
        self.report_tier_trouble(None, None, clock, out);
        if let Some(reading) = self.tier_reading() {
            out.emit(clock.now(), None, None, Body::Tier(Box::new(reading)));
        }
    }

    /// Does a fault to what is held of `tokens`. Gives what it did, or why it could do nothing.
    pub fn inject(&mut self, fault: Fault, tokens: &[u32], clock: &Clock) -> String {
        match self.try_inject(fault, tokens, clock.now()) {
            Ok(done) => done,
            Err(problem) => format!("nothing: {problem}"),
        }
    }

    fn try_inject(&mut self, fault: Fault, tokens: &[u32], now: Stamp) -> Result<String, String> {
        let places = self.cache.look_up(tokens).places;
        let place = |block: u32| {
            let place = places.get(block as usize).copied();
            place.ok_or_else(|| format!("the lane's latest prompt has {} whole blocks", places.len()))
        };
        match fault {
            Fault::EvictBlock(block) => {
                let count = self.cache.evict_from(place(block)?.hash, now);
                Ok(format!("{count} blocks left RAM"))
            }
            Fault::LoseBlock(block) => {
                let place = place(block)?;
                let count = self.cache.evict_from(place.hash, now);
                let files = self.forget(&[(Part::Block, place), (Part::Snapshot, place)]);
                Ok(format!("{count} blocks left RAM, {files} files the SSD tier"))
            }
            Fault::DropSnapshot(block) => {
                let place = place(block)?;
                let in_ram = self.cache.drop_snapshot_of(&place.hash, now);
                let files = self.forget(&[(Part::Snapshot, place)]);
                match in_ram || files > 0 {
                    true => Ok(format!("the snapshot at the end of block {block} is gone")),
                    false => Err(format!("block {block} has no snapshot at its end")),
                }
            }
            Fault::CorruptFile(block) => {
                let hash = place(block)?.hash;
                self.damage(TierFault::Corrupt { part: Part::Block, hash, region: Region::State })?;
                self.cache.evict_from(hash, now);
                Ok(format!("a bit of block {block}'s file is flipped, and the block has left RAM"))
            }
            Fault::TruncateFile(block) => {
                let hash = place(block)?.hash;
                self.damage(TierFault::Truncate { part: Part::Block, hash })?;
                self.cache.evict_from(hash, now);
                Ok(format!("block {block}'s file is cut short, and the block has left RAM"))
            }
            Fault::CorruptSnapshot(block) => {
                let hash = place(block)?.hash;
                self.damage(TierFault::Corrupt { part: Part::Snapshot, hash, region: Region::State })?;
                self.cache.drop_snapshot_of(&hash, now);
                Ok(format!("a bit of the file of block {block}'s snapshot is flipped, and it has left RAM"))
            }
            Fault::ChangeGeneration(block) => match self.cache.change_generation(&place(block)?.hash) {
                true => Ok(format!("block {block}'s page is of another generation")),
                false => Err(format!("block {block} is not in RAM")),
            },
            Fault::StallDisk(seconds) => {
                self.damage(TierFault::Stall(Duration::from_secs_f64(seconds)))?;
                Ok(format!("the disk stands still for {seconds} s"))
            }
            Fault::FillDisk => {
                self.damage(TierFault::Fill(true))?;
                Ok("every write fails for want of space".to_owned())
            }
            Fault::FreeDisk => {
                self.damage(TierFault::Fill(false))?;
                Ok("there is room again; a suspended writer tries within half a minute".to_owned())
            }
        }
    }

    fn damage(&mut self, fault: TierFault) -> Result<(), String> {
        let tier = self.cache.tier_mut().ok_or("there is no SSD tier: give `cache.dir`, or `--cache-dir`")?;
        tier.inject(fault).map_err(|error| error.to_string())
    }

    fn forget(&mut self, files: &[(Part, Place)]) -> usize {
        let Some(tier) = self.cache.tier_mut() else { return 0 };
        files.iter().filter(|(part, place)| tier.forget(*part, &place.hash)).count()
    }
}

/// A note that those outside should see.
fn trouble(note: Note) -> Option<(TierTrouble, String)> {
    match note {
        Note::Written { .. } | Note::Evicted { .. } => None,
        Note::WriteFailed { part, hash, error } => {
            Some((TierTrouble::Failed, format!("{} {}: {error}", part.word(), short(&hash))))
        }
        Note::Damaged { part, hash, what } => {
            Some((TierTrouble::Damaged, format!("{} {}: {what}; moved aside", part.word(), short(&hash))))
        }
        Note::Suspended { reason } => Some((TierTrouble::Suspended, reason)),
        Note::Resumed => Some((TierTrouble::Resumed, "writing works again".to_owned())),
        Note::Stuck { path, error } => Some((TierTrouble::Failed, format!("{}: {error}", path.display()))),
    }
}

fn short(hash: &BlockHash) -> String {
    hash.to_string().chars().take(12).collect()
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
