//! Background recovery: slices of a job while nobody waits.
//!
//! A job computes in a sequence like any other, which is in the list of running ones for as long as a slice takes and out of it otherwise, so no
//! request ever shares a forward with it. It is nobody's arrival: it has no sampler that is asked, no drafter, no place in the queue. Its state is
//! disposable. Whoever comes finds it gone within the step, and what was published survives in the cache.

use std::sync::Arc;
use std::time::Duration;

use super::forward::Work;
use super::{Refused, Scheduler};
use crate::cache::lookup::Home;
use crate::config::SnapshotPolicy;
use crate::device::DeviceError;
use crate::engine::Command;
use crate::engine::asked::Asked;
use crate::engine::background::{Background, Rest};
use crate::engine::clock::Clock;
use crate::engine::emitter::Emitter;
use crate::engine::sequence::{Sequence, Stage, Submission};
use crate::event::{Body, JobEnded, Nanos, Publication, RecoverySlice, Route, Stamp};
use crate::recovery::budget::Grant;
use crate::recovery::job::{End, Job};
use crate::recovery::neighbours::Member;
use crate::recovery::standing::{Standing, Surroundings, Why};

/// Tokens of a forward of a slice that gives way: between two layers of so few it waits for less than between two of a whole slice, and what is
/// computed is the same.
const PIECE: usize = 128;

/// A slice that was computed, or gave way.
struct Computed {
    end: u64,
    gave_way: Option<Why>,
}

/// Why a job does not go on.
pub(super) struct Over {
    end: End,
    detail: Option<String>,
}

impl Over {
    pub(super) fn by(end: End) -> Over {
        Over { end, detail: None }
    }
}

fn end_of(error: &DeviceError) -> End {
    match error {
        DeviceError::OutOfMemory { .. } => End::OutOfMemory,
        DeviceError::StateLost(_) => End::CacheReset,
        _ => End::DeviceFailed,
    }
}

impl<'a> Scheduler<'a> {
    /// Has recovery done by `background`.
    pub(in crate::engine) fn attach_background(&mut self, background: Background) {
        self.background = background;
    }

    /// Switches recovery on or off by hand. Off ends the job.
    pub fn set_recovery(&mut self, enabled: bool, clock: &Clock, out: &mut Emitter) {
        self.background.switch(enabled);
        self.sparse.switch_dense_turns(enabled);
        if !enabled {
            self.end_recovery(End::Cancelled, clock, out);
        }
    }

    /// How long background work leaves the loop in peace. Nothing changes by the question.
    pub fn rest(&self, clock: &Clock) -> Rest {
        let surroundings = self.surroundings(clock);
        match surroundings.standing() {
            Standing::Run | Standing::StandDown(_) => Rest::No,
            Standing::Wait(why) => self.background.rest(why, surroundings.budget),
        }
    }

    /// Does one unit of background work, with nobody due before `until`.
    pub fn background_step(&mut self, until: Option<Stamp>, clock: &mut Clock, out: &mut Emitter) -> Rest {
        let surroundings = self.surroundings(clock);
        let standing = surroundings.standing();
        match standing {
            Standing::Run => self.slice(until, clock, out),
            Standing::StandDown(why) => self.stand_down(why, clock, out),
            Standing::Wait(Why::NotIdleYet) => self.background.yielded(),
            Standing::Wait(why) => {
                self.tell_wait(Some(why), surroundings.budget, clock, out);
                return self.background.rest(why, surroundings.budget);
            }
        }
        self.background.idle_steps += 1;
        Rest::No
    }

    /// Somebody is served in this step: the job makes way.
    pub(super) fn make_way(&mut self, clock: &Clock, out: &mut Emitter) {
        self.background.idle_steps = 0;
        self.background.member.serves(true);
        match self.live.is_some() {
            true => self.stand_down(Why::ForegroundHere, clock, out),
            false => self.background.yielded(),
        }
        self.tell_wait(Some(Why::ForegroundHere), Grant::Granted, clock, out);
    }

    fn stand_down(&mut self, why: Why, clock: &Clock, out: &mut Emitter) {
        self.background.yielded();
        self.retire(why, clock, out);
        self.tell_wait(Some(why), self.background.grant(clock), clock, out);
    }

    fn surroundings(&self, clock: &Clock) -> Surroundings {
        let background = &self.background;
        Surroundings {
            job: background.is_runnable(),
            live: self.live.is_some(),
            foreground_here: !self.is_idle(),
            foreground_elsewhere: background.member.others_serve(),
            present: background.member.present(),
            memory_short: self.is_memory_short(),
            budget: background.grant(clock),
            idle_steps: background.idle_steps,
            claimed: background.member.is_claimed(),
        }
    }

    /// Whether the device has no memory for all of the next slice.
    fn is_memory_short(&self) -> bool {
        let slice_tokens = self.background.config.slice_tokens;
        let next = self.background.place.job().and_then(|job| job.next_slice(slice_tokens));
        next.is_some_and(|slice| {
            let tokens = (slice.end - slice.start) as usize;
            self.executor.admits(slice.start as usize, tokens) < tokens
        })
    }

    /// Tells what the job waits for, where that is news.
    fn tell_wait(&mut self, why: Option<Why>, grant: Grant, clock: &Clock, out: &mut Emitter) {
        let background = &mut self.background;
        let Some(job) = background.place.job() else { return };
        let request = Some(job.request());
        if !background.is_on() || !background.waits(why) {
            return;
        }
        let next_window = match (why, grant) {
            (Some(Why::BudgetSpent), Grant::Spent { next_window }) => Some(Nanos::from(next_window)),
            _ => None,
        };
        let body = Body::RecoveryWaits { job: background.id, why, next_window };
        out.emit(clock.now(), Some(background.lane), request, body);
    }

    /// Runs a slice: builds live state where there is none, computes, publishes where a boundary is due.
    fn slice(&mut self, until: Option<Stamp>, clock: &mut Clock, out: &mut Emitter) {
        let Some(_held) = self.background.member.claim() else { return };
        self.tell_wait(None, Grant::Granted, clock, out);
        let outcome = self.try_slice(until, clock, out);
        self.background.slice_ended(clock.now());
        match outcome {
            Ok(None) => {}
            Ok(Some(why)) => self.stand_down(why, clock, out),
            Err(over) => self.end_job(over, clock, out),
        }
    }

    /// Gives why the slice gave way, if it did.
    fn try_slice(
        &mut self,
        until: Option<Stamp>,
        clock: &mut Clock,
        out: &mut Emitter,
    ) -> Result<Option<Why>, Over> {
        let began = clock.now();
        let restored = match self.live.is_some() {
            true => None,
            false => Some(self.build(clock, out)?),
        };
        let slice_tokens = self.background.config.slice_tokens;
        let job = self.background.place.job().ok_or(Over::by(End::Cancelled))?;
        let Some(slice) = job.next_slice(slice_tokens) else { return Err(Over::by(End::NothingLeft)) };
        let computed = self.compute_slice(slice.end, until, clock)?;
        let took = clock.now().since(began);
        self.background.scheduled(restored.is_some());
        self.background.charge(took, computed.end - slice.start, clock);
        let budget = self.background.reading(clock);
        self.background.note_slice(took, computed.end - slice.start);
        let Background { place, id, steps, lane, .. } = &mut self.background;
        let Some(job) = place.job_mut() else { return Ok(None) };
        job.computed(computed.end, took);
        let body = RecoverySlice {
            job: *id,
            from: slice.start,
            to: computed.end,
            wanted: slice.end,
            took,
            restored,
            gave_way: computed.gave_way,
            steps: *steps,
            budget,
        };
        let (lane, request, due) = (Some(*lane), Some(job.request()), job.due());
        out.emit(clock.now(), lane, request, Body::RecoverySlice(Box::new(body)));
        if let Some(boundary) = due {
            self.publish(boundary, clock, out)?;
        }
        Ok(computed.gave_way)
    }

    /// Builds live state from what the cache restores of the job's prompt. Gives the tokens restored.
    fn build(&mut self, clock: &mut Clock, out: &mut Emitter) -> Result<u64, Over> {
        let (lane, id, mode) = (self.background.lane, self.background.id, self.background.config.mode);
        let job = self.background.place.job().ok_or(Over::by(End::Cancelled))?;
        let (request, prompt, target, committed) =
            (job.request(), Arc::clone(job.prompt()), job.target(), job.committed());
        if self.cache.restorable_prefix(job.tokens()) as u64 >= target {
            return Err(Over::by(End::NothingLeft));
        }
        // What a request would want beyond its prompt, a job does not.
        let submission = Submission { recovers: Some(mode), ..Submission::of(lane, prompt.to_vec(), 1) };
        let mut sequence = Sequence::new(request, clock.now(), submission, self.text.stream());
        sequence.stage = Stage::Prefilling;
        let set_aside = self.set_aside_live_slots();
        self.running.push(sequence);
        let now = clock.now();
        let (attached, _) = clock.measure(|| set_aside.and_then(|()| self.restore(now).1));
        let Some(sequence) = self.running.pop() else { return Err(Over::by(End::Cancelled)) };
        let restored = sequence.computed;
        self.live = Some(sequence);
        attached.map_err(|refused| self.refused(refused, clock))?;
        clock.spend(self.executor.restore_cost(restored));
        let Some(job) = self.background.place.job_mut() else { return Err(Over::by(End::Cancelled)) };
        job.build(restored as u64);
        let lowered = job.committed();
        if lowered < committed {
            let body = Body::CommitLowered { job: id, from: committed, to: lowered };
            out.emit(clock.now(), Some(lane), Some(request), body);
        }
        Ok(restored as u64)
    }

    /// Why a job ends that was refused something. Whoever comes next must not find the same again.
    fn refused(&mut self, refused: Refused, clock: &Clock) -> Over {
        let detail = Some(refused.to_string());
        let end = match refused {
            Refused::Stale(_) => {
                if let Some(job) = self.background.place.job() {
                    self.cache.discard_stale(job.tokens(), clock.now());
                }
                End::CacheReset
            }
            Refused::Full(_) => End::OutOfMemory,
            Refused::Device(error) => {
                let end = end_of(&error);
                if matches!(*error, DeviceError::StateLost(_)) {
                    self.lost = Some(error);
                }
                end
            }
        };
        Over { end, detail }
    }

    /// Computes up to `end` in live state, unless somebody is in the way before.
    fn compute_slice(&mut self, end: u64, until: Option<Stamp>, clock: &mut Clock) -> Result<Computed, Over> {
        let Some(sequence) = self.live.take() else { return Err(Over::by(End::Cancelled)) };
        self.running.push(sequence);
        let outcome = self.compute_running(end, until, clock);
        self.live = self.running.pop();
        outcome
    }

    /// The same of the sequence that is the last, and only, one running.
    fn compute_running(
        &mut self,
        end: u64,
        until: Option<Stamp>,
        clock: &mut Clock,
    ) -> Result<Computed, Over> {
        let (index, end) = (self.running.len() - 1, end as usize);
        self.extend_state(index, end, clock.now()).map_err(|refused| self.refused(refused, clock))?;
        let piece = if self.background.config.interruptible { PIECE } else { usize::MAX };
        loop {
            let start = self.running[index].computed;
            let to = end.min(start.saturating_add(piece));
            if let Some(why) = self.compute_piece(index, start, to, until, clock)? {
                return Ok(Computed { end: start as u64, gave_way: Some(why) });
            }
            if to == end {
                return Ok(Computed { end: to as u64, gave_way: None });
            }
        }
    }

    /// One forward of a slice. Gives why it gave way, if it did; then it computed nothing.
    fn compute_piece(
        &mut self,
        index: usize,
        start: usize,
        end: usize,
        until: Option<Stamp>,
        clock: &mut Clock,
    ) -> Result<Option<Why>, Over> {
        let flow = self.running[index].recurrent.as_ref().map(|state| state.flow(end));
        let work = [Work::unread(index, start, end, flow)];
        let mut watch = Watch::new(&self.background, until, clock);
        if !watch.goes_on(Nanos(0)) {
            return Ok(watch.why);
        }
        let forward = match self.run_while(&work, &mut |elapsed| watch.goes_on(elapsed)) {
            Ok(forward) => forward,
            Err(DeviceError::Interrupted { after }) => {
                clock.spend(watch.rest_of(after));
                return Ok(Some(watch.why.unwrap_or(Why::Arrival)));
            }
            Err(error) => return Err(self.refused(Refused::Device(Arc::new(error)), clock)),
        };
        clock.spend(watch.rest_of(forward.compute));
        let executor = &mut *self.executor;
        let sequence = &mut self.running[index];
        if let Some(entries) = &mut sequence.head {
            entries.record(start, &forward.hidden);
        }
        let (written, _) = clock.account(|| {
            let written = Scheduler::write_entries(executor, sequence, end);
            let compute = *written.as_ref().unwrap_or(&Nanos(0));
            (written, compute)
        });
        written.map_err(|error| self.refused(Refused::Device(Arc::new(error)), clock))?;
        self.executor.take_back(forward);
        let sequence = &mut self.running[index];
        sequence.computed = end;
        if let Some(state) = &mut sequence.recurrent {
            state.advance(end, &mut self.cache);
        }
        Ok(None)
    }

    /// Stores what live state holds up to `boundary` and looks it up as a request would. Only what is found again is committed.
    fn publish(&mut self, boundary: u64, clock: &mut Clock, out: &mut Emitter) -> Result<(), Over> {
        let Some(live) = self.live.take() else { return Ok(()) };
        let began = clock.now();
        let ((stored, read_back), took) = clock.measure(|| self.store_live(&live, boundary as usize, began));
        self.live = Some(live);
        self.background.charge(took, 0, clock);
        let Background { place, id, lane, .. } = &mut self.background;
        let Some(job) = place.job_mut() else { return Ok(()) };
        let published = job.published(boundary, stored, read_back);
        let (committed, complete) = (job.committed(), job.is_complete());
        let (id, lane, request) = (*id, Some(*lane), job.request());
        let tokens = job.tokens()[..committed as usize].to_vec();
        let visible = self.visible_of(&tokens);
        let body = Publication { job: id, boundary, stored, read_back, committed, visible, took };
        out.emit(clock.now(), lane, Some(request), Body::Published(Box::new(body)));
        published.map_err(Over::by)?;
        if complete {
            return Err(Over::by(End::Complete));
        }
        Ok(())
    }

    /// Stores the whole blocks up to `boundary`. Gives the tokens the store holds and those that the serving lookup finds.
    fn store_live(&mut self, live: &Sequence<'_>, boundary: usize, now: Stamp) -> (u64, u64) {
        let written = live.head.as_ref().map_or(boundary, |entries| entries.written().min(boundary));
        let restorable = !self.cache.is_recurrent() || self.policies.snapshot != SnapshotPolicy::None;
        if live.computed != boundary || written < boundary || !restorable {
            return (0, 0);
        }
        let tokens = &live.tokens[..boundary];
        let captured = live.recurrent.as_ref().map(|state| state.captured()).unwrap_or_default();
        self.cache.store(tokens, &live.pages, captured, live.request, Route::Recovery, now);
        self.offer_to_tier(live, boundary, Route::Recovery, now);
        let held = self.cache.hashes(tokens).iter().take_while(|hash| self.cache.holds(hash)).count();
        ((held * self.cache.block_tokens()) as u64, self.read_back(tokens) as u64)
    }

    /// Tokens that a request with this prompt could start from, by the lookup that serves requests, every page and snapshot of it checked.
    fn read_back(&self, tokens: &[u32]) -> usize {
        let found = self.cache.look_up(tokens);
        let sound = |home: Home| match home {
            Home::Ram(page) => self.cache.check(page).is_ok(),
            Home::Ssd => true,
        };
        let whole = found.blocks.iter().take_while(|candidate| sound(candidate.home)).count();
        let restorable = |end: bool| !self.cache.is_recurrent() || end;
        let ends = &found.blocks[..whole];
        let last = ends.iter().rposition(|candidate| restorable(candidate.end.is_real()));
        last.map_or(0, |block| (block + 1) * self.cache.block_tokens())
    }

    /// Gives live state up.
    fn retire(&mut self, why: Why, clock: &Clock, out: &mut Emitter) {
        let Some(mut live) = self.live.take() else { return };
        self.release(&mut live);
        let Background { place, id, lane, .. } = &mut self.background;
        let Some(job) = place.job_mut() else { return };
        let tokens = job.processed() - job.committed().min(job.processed());
        job.retire(why);
        let body = Body::Retired { job: *id, why, tokens };
        out.emit(clock.now(), Some(*lane), Some(job.request()), body);
    }

    /// Ends the job, if there is one.
    pub fn end_recovery(&mut self, end: End, clock: &Clock, out: &mut Emitter) {
        self.end_job(Over::by(end), clock, out);
    }

    #[cfg(test)]
    pub(in crate::engine) fn job(&self) -> Option<&Job> {
        self.background.place.job()
    }

    #[cfg(test)]
    pub(in crate::engine) fn stage_of(&self, request: crate::event::RequestId) -> Option<&'static str> {
        let sequence = self.running.iter().find(|sequence| sequence.request == request)?;
        Some(match sequence.stage {
            Stage::Prefilling => "prefilling",
            _ => "elsewhere",
        })
    }

    #[cfg(test)]
    pub(in crate::engine) fn has_live(&self) -> bool {
        self.live.is_some()
    }

    #[cfg(test)]
    pub(in crate::engine) fn charge_background(&self, took: Nanos, clock: &Clock) {
        self.background.charge(took, 0, clock);
    }

    /// A command has been taken, so background work need not give way to it any more.
    pub(in crate::engine) fn command_taken(&self, command: &Command) {
        self.background.asked.taken(command);
    }

    fn end_job(&mut self, over: Over, clock: &Clock, out: &mut Emitter) {
        if let Some(mut live) = self.live.take() {
            self.release(&mut live);
        }
        if let Some(job) = self.background.place.end() {
            self.tell_end_of_job(&job, over, clock, out);
        }
    }

    pub(super) fn tell_end_of_job(
        &mut self,
        job: &Job,
        Over { end, detail }: Over,
        clock: &Clock,
        out: &mut Emitter,
    ) {
        let Background { id, lane, steps, .. } = &self.background;
        let body = JobEnded {
            job: *id,
            end,
            detail,
            target: job.target(),
            committed: job.committed(),
            tally: job.tally(),
            steps: *steps,
        };
        out.emit(clock.now(), Some(*lane), Some(job.request()), Body::RecoveryEnded(Box::new(body)));
    }
}

/// What a slice looks at between two layers.
struct Watch {
    member: Arc<Member>,
    asked: Arc<Asked>,
    interruptible: bool,
    /// Compute time until somebody is due; `None` where nobody is known to be.
    left: Option<Nanos>,
    /// Compute time that was waited for, where it is only modelled: else nobody could arrive meanwhile.
    waited: Option<Nanos>,
    why: Option<Why>,
}

impl Watch {
    fn new(background: &Background, until: Option<Stamp>, clock: &Clock) -> Watch {
        Watch {
            member: Arc::clone(&background.member),
            asked: Arc::clone(&background.asked),
            interruptible: background.config.interruptible,
            left: until.map(|until| until.since(clock.now())),
            waited: clock.waits_for_compute().then_some(Nanos(0)),
            why: None,
        }
    }

    /// Whether the slice goes on after so much compute time. An engine that is to end is not kept from it, whatever is configured.
    fn goes_on(&mut self, elapsed: Nanos) -> bool {
        if let Some(waited) = &mut self.waited {
            std::thread::sleep(Duration::from_nanos(elapsed.0.saturating_sub(waited.0)));
            *waited = elapsed.max(*waited);
        }
        let due = self.left.is_some_and(|left| elapsed >= left);
        let arrived = due || self.asked.is_urgent() || self.member.present().total() > 0;
        self.why = match () {
            () if self.asked.is_closing() => Some(Why::Arrival),
            () if !self.interruptible => None,
            () if arrived => Some(Why::Arrival),
            () if self.member.others_serve() => Some(Why::ForegroundElsewhere),
            () => None,
        };
        self.why.is_none()
    }

    /// What of so much compute time is still to be accounted for.
    fn rest_of(&self, compute: Nanos) -> Nanos {
        Nanos(compute.0.saturating_sub(self.waited.unwrap_or_default().0))
    }
}
