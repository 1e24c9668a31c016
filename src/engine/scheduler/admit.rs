//! Admission: from a prompt to the state it starts from.
//!
//! What RAM holds is shared, not copied. What only the SSD tier holds is read into pages of its own and is RAM's from then on. A file that
//! cannot be read is struck out, and the choice of where to start is made again without it; so a fault of the disk costs
//! computing, never a wrong reply.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Refused, Scheduler, StepOutcome};
use crate::cache::chain::BlockHash;
use crate::cache::lookup::{Choice, End, Found, Home};
use crate::cache::pool::SlotRef;
use crate::cache::recurrent::RecurrentState;
use crate::cache::restore::{self, Before, Prompt};
use crate::cache::served::Predecessor;
use crate::cache::tier::{Part, ReadFailure, Wanted};
use crate::device::DeviceError;
use crate::engine::clock::Clock;
use crate::engine::emitter::Emitter;
use crate::engine::sequence::{Stage, Submission};
use crate::event::{
    Body, Cause, Nanos, Phase, RequestId, Restore, Route, Source, SparseAdmission, SsdRead, Stamp,
};

/// A restore under way.
struct Bring<'a> {
    /// The sequence among those running.
    index: usize,
    prompt: Prompt<'a>,
    /// When the disk is waited for no longer.
    deadline: Instant,
    now: Stamp,
    read: Read,
}

/// What was read from the SSD tier for a request.
#[derive(Debug, Default)]
struct Read {
    blocks: u64,
    snapshots: u64,
    bytes: u64,
    took: Duration,
}

/// What came of looking for state to start from.
pub(super) struct Fetched {
    found: Found,
    choice: Choice,
    read: Read,
    /// Whether the sequence holds it.
    pub(super) attached: Result<(), Refused>,
}

/// A snapshot that was read.
struct LoadedEnd {
    block: usize,
    state: Vec<u8>,
}

impl Scheduler<'_> {
    /// Gives the waiting request whose turn it is its place and its state. `false` where there is none, or no place.
    pub(super) fn admit_one(
        &mut self,
        outcome: &mut StepOutcome,
        clock: &mut Clock,
        out: &mut Emitter,
    ) -> bool {
        if self.queue.is_empty() || self.running.len() >= self.config.max_sequences {
            return false;
        }
        // How many sequences may run is known when the device holds a slot for each.
        let set_aside = self.set_aside_live_slots();
        let full = self.cache.is_recurrent() && !self.running.is_empty() && !self.cache.has_live_slot();
        if full {
            return false;
        }
        let next = self.next_to_admit().and_then(|index| self.queue.remove(index));
        let Some(mut sequence) = next else { return false };
        (sequence.stage, sequence.waits) = (Stage::Prefilling, None);
        let again = sequence.earlier.preemptions > 0;
        self.running.push(sequence);
        match again {
            true => self.resume(set_aside, outcome, clock, out),
            false => self.admit(set_aside, outcome, clock, out),
        }
        true
    }

    /// Gives the sequence that runs last the state it starts from.
    fn admit(
        &mut self,
        set_aside: Result<(), Refused>,
        outcome: &mut StepOutcome,
        clock: &mut Clock,
        out: &mut Emitter,
    ) {
        let Some(sequence) = self.running.last() else { return };
        let (lane, id, now) = (Some(sequence.submission.lane), sequence.request, clock.now());
        let (request, queued) = (Some(id), now.since(sequence.arrived_at));
        let ((facts, attached), looked_up) = self.counting_evictions(|scheduler| {
            clock.measure(|| match set_aside {
                Ok(()) => scheduler.restore(now),
                Err(refused) => (None, Err(refused)),
            })
        });
        // Who has to wait all the same was not admitted.
        let waits = attached.as_ref().is_err_and(|refused| self.lets_wait(refused));
        if !waits {
            out.emit(now, lane, request, Body::Admitted { queued });
            if let Some(announced) = self.running.last().and_then(|sequence| sequence.announced.as_ref()) {
                self.background.member.renew(announced);
            }
        }
        self.report_tier_trouble(lane, request, clock, out);
        if !waits {
            outcome.phases.push((id, Phase::Restore));
        }
        if let Some(mut facts) = facts.filter(|_| !waits) {
            let attach = self.executor.restore_cost(facts.checkpoint_tokens as usize);
            clock.spend(attach);
            facts.took = Nanos(looked_up.0 + attach.0);
            if let Some(ssd) = &mut facts.ssd {
                // On a simulated clock the host's own time does not count.
                ssd.took = ssd.took.min(looked_up);
            }
            self.announce(facts, attached.is_ok(), clock, out);
        }
        if let Err(refused) = attached {
            self.turn_away(id, refused, outcome, clock, out);
        }
    }

    /// Whether a sequence that is refused its state waits for room rather than ends: others run, and what they hold comes free.
    fn lets_wait(&self, refused: &Refused) -> bool {
        refused.wants_room() && self.running.len() > 1
    }

    /// Sends the sequence that runs last away, since it is refused the state it starts from: back to the queue, or for good.
    pub(super) fn turn_away(
        &mut self,
        id: RequestId,
        refused: Refused,
        outcome: &mut StepOutcome,
        clock: &mut Clock,
        out: &mut Emitter,
    ) {
        if self.lets_wait(&refused) {
            if let Some(sequence) = self.running.pop() {
                self.put_back(sequence, matches!(refused, Refused::Device(_)));
            }
            return;
        }
        let lost = match &refused {
            Refused::Device(error) if matches!(**error, DeviceError::StateLost(_)) => Some(Arc::clone(error)),
            _ => None,
        };
        outcome.ended.extend(self.fail(id, refused, clock, out));
        if let Some(error) = lost {
            self.give_up_state(&error, outcome, clock, out);
        }
    }

    /// Does work for the sequence that runs last, and counts on its account what is evicted meanwhile.
    pub(super) fn counting_evictions<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let (evictions, dropped) = (self.cache.evictions(), self.cache.dropped_snapshots());
        let result = work(self);
        if let Some(sequence) = self.running.last_mut() {
            sequence.evicted_blocks += self.cache.evictions() - evictions;
            sequence.dropped_snapshots += self.cache.dropped_snapshots() - dropped;
        }
        result
    }

    /// Tells what the request that was admitted last starts from, and if that could be `attached`, decides how it goes on.
    fn announce(&mut self, facts: Restore, attached: bool, clock: &Clock, out: &mut Emitter) {
        let Some(sequence) = self.running.last() else { return };
        let (lane, request) = (Some(sequence.submission.lane), Some(sequence.request));
        let uncached_suffix = sequence.prompt_tokens() as u64 - facts.checkpoint_tokens;
        let route = if uncached_suffix == 1 { Route::CacheHit } else { Route::Dense };
        out.emit(clock.now(), lane, request, Body::Restored(Box::new(facts)));
        if !attached || !self.consider_sparse(uncached_suffix, clock, out) {
            out.emit(clock.now(), lane, request, Body::Routed { route, uncached_suffix });
        }
        if attached {
            self.begin_speculation(clock, out);
        }
    }

    /// Finds, reads and attaches what the sequence admitted last can start from. Gives what was found even where it cannot be attached.
    pub(super) fn restore(&mut self, now: Stamp) -> (Option<Restore>, Result<(), Refused>) {
        let index = self.running.len() - 1;
        let submission = self.running[index].submission.clone();
        let prompt = Prompt { shown: self.shown(&submission), ..prompt_of(&submission) };
        let Fetched { found, choice, read, attached } = self.fetch(index, prompt, now);
        self.background.shows(submission.lane, prompt.shown.map(|_| choice.blocks));
        if attached.is_ok() {
            self.running[index].restored = self.running[index].computed;
        }
        let mut facts = self.facts_of(prompt, &found, choice, submission.predecessor.as_deref());
        facts.ssd = (read.blocks + read.snapshots > 0).then(|| SsdRead {
            blocks: read.blocks,
            snapshots: read.snapshots,
            bytes: read.bytes,
            took: Nanos::from(read.took),
        });
        (Some(facts), attached)
    }

    /// Finds and reads what there is of some tokens, and attaches it to a sequence that holds nothing.
    pub(super) fn fetch(&mut self, index: usize, prompt: Prompt<'_>, now: Stamp) -> Fetched {
        let mut found =
            if prompt.use_cache { self.cache.look_up(prompt.tokens) } else { self.nothing(prompt) };
        self.cache.touch(&found.chain());
        let deadline = Instant::now() + self.policies.ssd_wait;
        let mut bring = Bring { index, prompt, deadline, now, read: Read::default() };
        let brought = self.bring(&mut bring, &mut found);
        let read = bring.read;
        let choice = self.choose(&found, prompt);
        let attached = brought.and_then(|loaded| self.attach(index, &found, choice, loaded, now));
        Fetched { found, choice, read, attached }
    }

    /// Has the sequence hold what was found in RAM and reads what is on disk only, as far as it is of use. What cannot be read is struck out of
    /// `found`. Gives the snapshot, where it was read.
    fn bring(&mut self, bring: &mut Bring<'_>, found: &mut Found) -> Result<Option<LoadedEnd>, Refused> {
        self.hold_leading_pages(bring.index, found)?;
        let mut loaded: Option<LoadedEnd> = None;
        loop {
            let choice = self.choose(found, bring.prompt);
            let end = choice.blocks.checked_sub(1).filter(|_| self.cache.is_recurrent());
            let missing = end.filter(|block| found.blocks[*block].end == End::Ssd);
            if let Some(block) = missing.filter(|block| loaded.as_ref().is_none_or(|l| l.block != *block)) {
                match self.read_end(bring, found, block) {
                    Ok(state) => loaded = Some(LoadedEnd { block, state }),
                    Err((cause, what)) => {
                        found.strike_end(block, cause, what);
                        continue;
                    }
                }
            }
            match self.read_blocks(bring, found, choice)? {
                None => return Ok(loaded),
                Some((block, cause, what)) => found.strike_block(block, cause, what),
            }
        }
    }

    /// A lookup that finds nothing, for a request that does not use the cache.
    fn nothing(&self, prompt: Prompt<'_>) -> Found {
        let mut found = self.cache.look_up(prompt.tokens);
        found.blocks.clear();
        found.at_first = 0;
        found
    }

    fn choose(&self, found: &Found, prompt: Prompt<'_>) -> Choice {
        let policy = self.policies.placeholder;
        let choice = found.choose(&self.cache, prompt.tokens.len(), prompt.static_tokens(), policy);
        found.withhold(&self.cache, choice, prompt.shown)
    }

    fn facts_of(
        &self,
        prompt: Prompt<'_>,
        found: &Found,
        choice: Choice,
        predecessor: Option<&Predecessor>,
    ) -> Restore {
        let before = Before { predecessor, closest: self.served.closest(prompt.tokens) };
        restore::facts(&self.cache, prompt, found, choice, before, self.text)
    }

    /// What a restore of the submission would find now, and how its suffix would be computed. Nothing is held, read or marked as used.
    pub fn preview(&self, submission: &Submission) -> (Restore, Option<SparseAdmission>) {
        let prompt = Prompt { shown: self.shown(submission), ..prompt_of(submission) };
        let found = if prompt.use_cache { self.cache.look_up(prompt.tokens) } else { self.nothing(prompt) };
        let choice = self.choose(&found, prompt);
        let restore = self.facts_of(prompt, &found, choice, submission.predecessor.as_deref());
        let admission = self.sparse.admission(submission, restore.checkpoint_tokens as usize, self.text);
        (restore, admission.map(|(_, told)| told))
    }

    /// Has the sequence hold the pages that RAM has of what was found, so that nothing evicts them meanwhile.
    fn hold_leading_pages(&mut self, index: usize, found: &Found) -> Result<(), Refused> {
        let pages: Vec<_> = found
            .blocks
            .iter()
            .map_while(|candidate| match candidate.home {
                Home::Ram(page) => Some(page),
                Home::Ssd => None,
            })
            .collect();
        pages.iter().try_for_each(|page| self.cache.check(*page))?;
        self.cache.hold(&pages);
        self.running[index].pages = pages;
        Ok(())
    }

    fn read_end(
        &mut self,
        bring: &mut Bring<'_>,
        found: &Found,
        block: usize,
    ) -> Result<Vec<u8>, (Cause, String)> {
        let Bring { deadline, read, .. } = bring;
        let began = Instant::now();
        let Some(tier) = self.cache.tier_mut() else { return Err((Cause::Unread, "no tier".to_owned())) };
        let wanted = Wanted { part: Part::Snapshot, place: found.places[block], tokens: Box::default() };
        let within = deadline.saturating_duration_since(began);
        let payload = tier.read(vec![wanted], within).next();
        read.took += began.elapsed();
        match payload {
            Some(Ok(payload)) => {
                read.snapshots += 1;
                read.bytes += payload.state.len() as u64;
                Ok(payload.state.to_vec())
            }
            Some(Err(failure)) => Err(reason(&failure)),
            None => Err((Cause::Unread, "nothing was read".to_owned())),
        }
    }

    /// Reads the chosen blocks that are on disk only into pages, and puts them into the index. Gives the first one that could not be read.
    fn read_blocks(
        &mut self,
        bring: &mut Bring<'_>,
        found: &Found,
        choice: Choice,
    ) -> Result<Option<(usize, Cause, String)>, Refused> {
        let &mut Bring { index, prompt, deadline, now, ref mut read } = bring;
        let first = self.running[index].pages.len();
        if first >= choice.blocks {
            return Ok(None);
        }
        let block_tokens = self.cache.block_tokens();
        self.allocate_held_state(index, choice.blocks * block_tokens, now)?;
        let began = Instant::now();
        let blocks: Vec<&[u32]> = prompt.tokens.chunks_exact(block_tokens).collect();
        let wanted = (first..choice.blocks).map(|block| Wanted {
            part: Part::Block,
            place: found.places[block],
            tokens: blocks[block].into(),
        });
        let wanted: Vec<Wanted> = wanted.collect();
        let pages: Vec<_> = self.running[index].pages[first..].to_vec();
        let within = deadline.saturating_duration_since(began);
        let (mut origins, mut failed, mut broken) = (Vec::new(), None, None);
        if let Some(tier) = self.cache.tier_mut() {
            for (payload, page) in tier.read(wanted, within).zip(&pages) {
                match payload {
                    Ok(payload) => {
                        if let Err(error) = self.executor.import_page(page.id(), &payload.state) {
                            broken = Some(error);
                            break;
                        }
                        read.blocks += 1;
                        read.bytes += payload.state.len() as u64;
                        origins.push(payload.origin);
                    }
                    Err(failure) => {
                        failed = Some(failure);
                        break;
                    }
                }
            }
        }
        read.took += began.elapsed();
        for (offset, origin) in origins.iter().enumerate() {
            let block = first + offset;
            let place = &found.places[block];
            let provenance = self.cache.provenance_of(&place.hash, origin);
            self.cache.adopt_block(place, pages[offset], blocks[block], provenance);
        }
        let done = first + origins.len();
        self.cache.release(&self.running[index].pages.split_off(done));
        let chain: Vec<BlockHash> = found.places[..done].iter().map(|place| place.hash).collect();
        self.cache.touch(&chain);
        if let Some(error) = broken {
            return Err(Refused::Device(Arc::new(error)));
        }
        Ok(match failed {
            Some(failure) => {
                let (cause, what) = reason(&failure);
                Some((done, cause, what))
            }
            None if done < choice.blocks => Some((done, Cause::Unread, "nothing was read".to_owned())),
            None => None,
        })
    }

    /// Gives the sequence its hold on the state it starts from, and the slot it will live in.
    fn attach(
        &mut self,
        index: usize,
        found: &Found,
        choice: Choice,
        loaded: Option<LoadedEnd>,
        now: Stamp,
    ) -> Result<(), Refused> {
        let beyond = self.running[index].pages.split_off(choice.blocks);
        self.cache.release(&beyond);
        self.running[index].pages.iter().try_for_each(|page| self.cache.check(*page))?;
        let end =
            choice.blocks.checked_sub(1).map(|block| (found.places[block].hash, found.blocks[block].end));
        let in_ram = match end {
            Some((hash, End::Ram(slot))) => Some((hash, slot)),
            _ => None,
        };
        in_ram.map_or(Ok(()), |(_, slot): (BlockHash, SlotRef)| self.cache.check_slot(slot))?;
        if let Some(boundaries) = self.boundaries(&self.running[index]) {
            let snapshot = in_ram.filter(|_| self.cache.is_recurrent());
            let mut state = RecurrentState::start(&mut self.cache, boundaries, snapshot)?;
            state.capture_up_to(self.running[index].last_storable());
            self.running[index].recurrent = Some(state);
            if let (Some(LoadedEnd { state, .. }), Some((hash, End::Ssd))) = (loaded, end) {
                self.put_end(index, choice.blocks, &hash, &state, now)?;
            }
        }
        let sequence = &mut self.running[index];
        sequence.computed = choice.blocks * self.cache.block_tokens();
        let computed = sequence.computed;
        self.running[index].head = self.entries_of(index, computed)?;
        Ok(())
    }

    /// Puts a snapshot that was read into a slot of its own, or where there is no room for one into the sequence's live slot.
    fn put_end(
        &mut self,
        index: usize,
        blocks: usize,
        hash: &BlockHash,
        bytes: &[u8],
        now: Stamp,
    ) -> Result<(), Refused> {
        let request = self.running[index].request;
        if let Some(state) = &mut self.running[index].recurrent {
            state.prepare_load(request, &mut self.cache, now);
        }
        // Where the device has no memory for the slot it is given back, and the live one, which the device holds, takes the state.
        self.hold_state(index)?;
        let Some(state) = &mut self.running[index].recurrent else { return Ok(()) };
        let position = blocks * self.cache.block_tokens();
        self.executor
            .import_slot(state.load_target().id(), position, bytes)
            .map_err(|error| Refused::Device(Arc::new(error)))?;
        // Nobody may find it before its bytes are there.
        state.loaded(hash, &mut self.cache);
        Ok(())
    }
}

pub(super) fn prompt_of(submission: &Submission) -> Prompt<'_> {
    Prompt {
        tokens: &submission.prompt,
        segments: &submission.segments,
        change: submission.change,
        branches: submission.source == Source::Edit,
        use_cache: submission.use_cache,
        shown: None,
    }
}

/// A read that failed, as a cause and in words.
fn reason(failure: &ReadFailure) -> (Cause, String) {
    match failure {
        ReadFailure::Damaged { what } => (Cause::Damaged, what.clone()),
        ReadFailure::Foreign { what } => (Cause::IdentityChanged, what.clone()),
        _ => (Cause::Unread, failure.to_string()),
    }
}
