//! How far each lane goes by itself.
//!
//! Lanes are driven one by one: each runs its turns in order and has idle gaps of its own, and the requests of several are in the scheduler at once.
//! What none of them needs is left to background work.

use std::time::{Duration, Instant};

use super::Host;
use crate::config::{IdleConfig, IdleWord};
use crate::engine::background::Rest;
use crate::engine::lane::Lane;
use crate::engine::scheduler::{Late, StepOutcome};
use crate::engine::watch::Hit;
use crate::event::{Body, Gate, LaneId, Nanos, RequestId, Stamp};
use crate::recovery::arrivals::Announced;
use crate::session::Turn;

/// How far a lane may go by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Drive {
    /// Not at all.
    #[default]
    Held,
    /// To the end of the next phase.
    Phase,
    /// To the end of the request under way, or of the next turn.
    Turn,
    /// To the end of the lane.
    Run,
}

/// A turn whose idle gap has not passed yet.
pub(super) struct Waiting {
    pub(super) turn: Turn,
    pub(super) max_output_tokens: Option<u64>,
    pub(super) until: Stamp,
}

/// The presence of a request that was asked for and is not made yet, and when it was asked for.
pub(super) type AskedFor = (Announced, Instant);

/// A lane's gate: its state, the turn that would come next, and how many there are.
pub(super) type Standing = (Gate, Option<u32>, u32);

/// How far a lane goes, and what of it is under way.
#[derive(Default)]
pub(super) struct Driven {
    drive: Drive,
    waiting: Option<Waiting>,
    asked_for: Option<AskedFor>,
    /// Its request in the scheduler.
    under_way: Option<RequestId>,
    /// The gate that was told of it last.
    told: Option<Standing>,
}

impl Driven {
    fn is_held(&self) -> bool {
        self.drive == Drive::Held
    }

    /// When its next turn is due, where it waits for that and is to go on.
    fn due(&self) -> Option<Stamp> {
        self.waiting.as_ref().filter(|_| !self.is_held()).map(|waiting| waiting.until)
    }
}

impl Host<'_> {
    fn driven(&mut self, lane: LaneId) -> Option<&mut Driven> {
        self.driven.get_mut(lane.0 as usize)
    }

    /// Whether any lane is to go on.
    pub(super) fn is_driven(&self) -> bool {
        self.driven.iter().any(|driven| !driven.is_held())
    }

    pub(super) fn drive_of(&self, lane: LaneId) -> Drive {
        self.driven.get(lane.0 as usize).map_or(Drive::Held, |driven| driven.drive)
    }

    /// Has a lane go as far as `drive` says. Other lanes go on as they do.
    pub(super) fn go(&mut self, lane: LaneId, drive: Drive) {
        let asked_for = self.asked_for.take();
        let Some(driven) = self.driven(lane) else { return };
        driven.drive = drive;
        driven.asked_for = asked_for.or(driven.asked_for.take());
        self.active = lane;
        self.paused = false;
    }

    /// Has every lane run to its end. The one that was driven last stays so.
    pub(super) fn run_all(&mut self) {
        let active = self.active;
        for lane in (0..self.lanes.len() as u32).map(LaneId) {
            self.go(lane, Drive::Run);
        }
        self.active = active;
    }

    pub(super) fn hold(&mut self, lane: LaneId) {
        if let Some(driven) = self.driven(lane) {
            driven.drive = Drive::Held;
        }
    }

    pub(super) fn hold_all(&mut self) {
        self.driven.iter_mut().for_each(|driven| driven.drive = Drive::Held);
    }

    /// A request of a lane is in the scheduler.
    pub(super) fn under_way(&mut self, lane: LaneId, request: RequestId) {
        if let Some(driven) = self.driven(lane) {
            driven.under_way = Some(request);
        }
    }

    pub(super) fn no_longer_under_way(&mut self, lane: LaneId) {
        if let Some(driven) = self.driven(lane) {
            driven.under_way = None;
        }
    }

    /// How long the loop may wait for a command: not at all while there is work, until the next idle gap is over, or for ever. Background work is some
    /// too, as long as time passes for it.
    pub(super) fn patience(&self) -> Option<Duration> {
        let rest = || match self.scheduler.rest(&self.clock) {
            Rest::No => Some(Duration::ZERO),
            Rest::For(time) => Some(time),
            Rest::Open => None,
        };
        if !self.is_driven() {
            return if self.clock.is_virtual() { None } else { rest() };
        }
        match self.next_due() {
            Some(until) if self.scheduler.is_idle() && !self.clock.is_virtual() && self.all_wait() => {
                let gap = Duration::from_nanos(until.since(self.clock.now()).0);
                Some(rest().map_or(gap, |rest| rest.min(gap)))
            }
            _ => Some(Duration::ZERO),
        }
    }

    /// When the first turn is due that a lane waits for.
    fn next_due(&self) -> Option<Stamp> {
        self.driven.iter().filter_map(Driven::due).min()
    }

    /// Whether every lane that is to go on waits for its turn to be due.
    fn all_wait(&self) -> bool {
        self.driven.iter().all(|driven| driven.is_held() || driven.waiting.is_some())
    }

    /// Does one unit of work, as far as the lanes are driven.
    pub(super) fn advance(&mut self) {
        if !self.is_driven() {
            // Whoever asked for a request has been answered otherwise.
            self.asked_for = None;
            self.driven.iter_mut().for_each(|driven| driven.asked_for = None);
            if !self.clock.is_virtual() {
                self.scheduler.background_step(None, &mut self.clock, self.out);
            }
            return;
        }
        for lane in (0..self.lanes.len() as u32).map(LaneId) {
            self.start_turn(lane);
        }
        if self.scheduler.is_idle() {
            self.pass_gap();
            return;
        }
        let StepOutcome { phases, ended } = self.scheduler.step(&mut self.clock, self.out);
        let passed = |driven: &Driven| {
            let under_way = driven.under_way;
            phases.iter().any(|(request, _)| Some(*request) == under_way)
        };
        let passed: Vec<bool> = self.driven.iter().map(passed).collect();
        let over: Vec<LaneId> = ended.iter().map(|ended| ended.lane).collect();
        for ended in ended {
            self.note_end(ended);
        }
        if self.tell_hits() {
            self.hold_all();
            self.paused = true;
            return;
        }
        for (lane, passed) in (0..).map(LaneId).zip(passed) {
            let turn_over = over.contains(&lane);
            match self.drive_of(lane) {
                Drive::Phase if turn_over || passed => self.hold(lane),
                Drive::Turn if turn_over => self.finish_turn(lane),
                _ => {}
            }
        }
    }

    /// Tells the breakpoints that have come true. `false` where none has.
    fn tell_hits(&mut self) -> bool {
        let hits = self.out.take_hits();
        for Hit { lane, request, condition, observed } in &hits {
            let body = Body::BreakpointHit { condition: condition.clone(), observed: observed.clone() };
            self.out.emit(self.clock.now(), *lane, Some(*request), body);
        }
        !hits.is_empty()
    }

    /// A turn that was injected while another ran is run too before the lane stops.
    fn finish_turn(&mut self, lane: LaneId) {
        let more = self.lane(lane).is_some_and(|lane| !lane.injections.is_empty());
        if !more {
            self.hold(lane);
        }
    }

    /// Brings a lane's next turn to the scheduler, where the lane is to go on, has nothing there, and the turn is due.
    fn start_turn(&mut self, lane: LaneId) {
        let now = self.clock.now();
        let Some(driven) = self.driven(lane) else { return };
        if driven.is_held() || driven.under_way.is_some() {
            return;
        }
        if driven.waiting.is_none() {
            self.await_next(lane);
        }
        let due = self.driven(lane).and_then(|driven| driven.waiting.take_if(|waiting| waiting.until <= now));
        if let Some(waiting) = due {
            self.submit(lane, waiting);
        }
    }

    fn await_next(&mut self, id: LaneId) {
        let Some((mut turn, max_output_tokens)) = self.lane(id).and_then(Lane::take) else {
            return self.hold(id);
        };
        turn.idle = self.idle_before(&turn);
        let until = self.clock.now().after(turn.idle);
        let Some(driven) = self.driven(id) else { return };
        if turn.idle.0 > 0 {
            // Nobody is there before the gap is over.
            driven.asked_for = None;
        }
        driven.waiting = Some(Waiting { turn, max_output_tokens, until });
    }

    /// Has background work done while the idle gaps of all lanes last. A virtual clock goes on to where something happens next.
    fn pass_gap(&mut self) {
        let Some(until) = self.next_due() else { return };
        match self.scheduler.background_step(Some(until), &mut self.clock, self.out) {
            Rest::No => {}
            Rest::For(time) => {
                let next = self.clock.now().after(Nanos::from(time));
                self.clock.skip_to(next.min(until));
            }
            Rest::Open => self.clock.skip_to(until),
        }
    }

    fn idle_before(&self, turn: &Turn) -> Nanos {
        let seconds = match self.config.replay.idle {
            IdleConfig::Word(IdleWord::Recorded) => turn.idle.seconds(),
            IdleConfig::Word(IdleWord::Zero) => 0.0,
            IdleConfig::Seconds(seconds) => seconds,
        };
        let seconds = seconds * self.config.replay.idle_scale;
        // A cap is a gap as it passes, so the factor comes first.
        Nanos::from_seconds(self.config.replay.idle_cap_s.map_or(seconds, |cap| seconds.min(cap)))
    }

    /// What is known of a lane's request that was due at `due`.
    pub(super) fn late(&mut self, lane: LaneId, due: Stamp) -> Late {
        let asked_for = self.driven(lane).and_then(|driven| driven.asked_for.take());
        let (announced, asked_at) = asked_for.unzip();
        let by_wall = asked_at.filter(|_| !self.clock.is_virtual());
        // What was typed in was due when it was sent; the turn of a session when its gap was over.
        let since_sent = by_wall.and_then(|at| self.scheduler.delay_since(at));
        Late { announced, delayed: self.scheduler.delay_of(due).max(since_sent) }
    }

    /// Tells the gates that have changed: those of the lanes that are driven, or were when they were told last, and then that of the active one.
    pub(super) fn show_gate(&mut self) {
        let active = self.active;
        for lane in (0..self.lanes.len() as u32).map(LaneId).filter(|lane| *lane != active) {
            let driven = &self.driven[lane.0 as usize];
            let runs = !driven.is_held() || driven.told.is_some_and(|(gate, ..)| gate == Gate::Running);
            if runs && driven.told != self.standing(lane) {
                self.tell_gate(lane);
            }
        }
        let told = self.gate.filter(|(lane, _)| *lane == active).map(|(_, standing)| standing);
        if told != self.standing(active) {
            self.tell_gate(active);
        }
    }

    /// Tells a lane's gate.
    pub(super) fn tell_gate(&mut self, lane: LaneId) {
        let Some(standing @ (gate, next_turn, turns)) = self.standing(lane) else { return };
        if let Some(driven) = self.driven(lane) {
            driven.told = Some(standing);
        }
        self.gate = Some((lane, standing));
        self.emit(lane, Body::GateChanged { gate, next_turn, turns });
    }

    fn standing(&self, id: LaneId) -> Option<Standing> {
        let (lane, driven) = (self.lanes.get(id.0 as usize)?, self.driven.get(id.0 as usize)?);
        let idle = driven.under_way.is_none() && driven.waiting.is_none();
        let (next_turn, turns) = (lane.next_turn(), lane.turns_known());
        let gate = match (driven.is_held(), idle) {
            (false, _) => Gate::Running,
            (true, true) if next_turn.is_none() => Gate::Ended,
            (true, true) => Gate::BeforeTurn,
            (true, false) if self.paused => Gate::Paused,
            (true, false) => Gate::AfterPhase,
        };
        Some((gate, next_turn, turns))
    }
}
