//! Lanes stepped together: one engine each, of which at most one computes at a time.
//!
//! A thread of its own stands between the commands and the engines. It cuts what is asked for into *rounds*: in a round each lane does
//! one turn (or one phase), one lane after the other, because on the same cores two at once would measure each other. Which lane goes
//! first changes from turn to turn, so that a machine that grows slower with time does not look like an effect.

use std::collections::{BTreeSet, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::engine::{Command, Engine, Setup};
use crate::event::{Body, Event, Gate, LaneId, Sink};

/// A lane as it is started.
pub struct LaneSetup {
    /// Its name.
    pub name: String,
    /// What its engine runs on. Events go to the setup's sink first, on the engine's thread, as they would without lockstep.
    pub setup: Setup,
}

/// What the lanes tell.
#[derive(Debug, Clone, PartialEq)]
pub enum News {
    /// An event of one lane.
    Event {
        /// The lane, by its place.
        lane: usize,
        /// The event.
        event: Event,
    },
    /// A round begins.
    Round {
        /// The turn it is part of, counted over all session lanes, from 1.
        turn: u64,
        /// The lanes that compute in it, by their places, in this order.
        order: Vec<usize>,
    },
    /// Whether the lanes together go on by themselves.
    Gate(Gate),
    /// Every engine has ended. Nothing comes after it.
    Over,
}

/// Whom a command is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    /// Every lane.
    All,
    /// The lane at this place.
    One(usize),
}

enum Message {
    Command(To, Command),
    Event(usize, Event),
    /// The lane's engine thread has ended, however it did.
    Gone(usize),
}

/// The lanes' outside: commands in. What happens comes through the sink given to [`Lockstep::start`].
pub struct Lockstep {
    inbox: Sender<Message>,
    thread: Option<JoinHandle<()>>,
    names: Vec<String>,
}

impl Lockstep {
    /// Starts an engine a lane, each standing before its first turn. `first` says which lane is the first one in the first turn; a repeat
    /// that gives another number has the lanes in another order. `sink` is called on a thread of its own and must not block.
    pub fn start(
        lanes: Vec<LaneSetup>,
        first: usize,
        sink: impl FnMut(News) + Send + 'static,
    ) -> std::io::Result<Lockstep> {
        let (inbox, messages) = channel();
        let names = lanes.iter().map(|lane| lane.name.clone()).collect();
        let mut engines = Vec::new();
        for (place, LaneSetup { setup, .. }) in lanes.into_iter().enumerate() {
            let sink = Forward { lane: place, first: setup.sink, inbox: inbox.clone() };
            engines.push(Lane::new(Engine::start(Setup { sink: Box::new(sink), ..setup })?));
        }
        let conductor = Conductor {
            lanes: engines,
            first,
            sink: Box::new(sink),
            queue: VecDeque::new(),
            drive: None,
            round: None,
            stop: false,
            closing: false,
            gate: None,
        };
        let thread = std::thread::Builder::new()
            .name("lockstep".to_owned())
            .spawn(move || conductor.run(&messages))?;
        Ok(Lockstep { inbox, thread: Some(thread), names })
    }

    /// The lanes' names, by their places.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Has every lane obey; `false` when all have ended. Does not wait.
    ///
    /// A command that makes lanes compute does so in one after the other. One that changes what they would compute waits until no lane is
    /// in the middle of a round, so that it finds all of them at the same place.
    pub fn send(&self, command: Command) -> bool {
        self.tell(To::All, command)
    }

    /// Has one lane obey, by its place. A lane that is driven by itself goes ahead; the next step of all lets the others catch up.
    pub fn send_to(&self, lane: usize, command: Command) -> bool {
        self.tell(To::One(lane), command)
    }

    /// [`Lockstep::send`] or [`Lockstep::send_to`], as `to` says.
    pub fn tell(&self, to: To, command: Command) -> bool {
        self.inbox.send(Message::Command(to, command)).is_ok()
    }

    /// Ends all lanes and waits until they have ended.
    pub fn finish(mut self) {
        self.send(Command::Shutdown);
        if let Some(thread) = self.thread.take() {
            // The thread forwards and counts; a panic on an engine's thread has been told as that engine's event.
            let _ = thread.join();
        }
    }
}

impl Drop for Lockstep {
    fn drop(&mut self) {
        self.send(Command::Shutdown);
    }
}

/// The end of an engine that looks to the lanes' thread.
struct Forward {
    lane: usize,
    first: Box<dyn Sink>,
    inbox: Sender<Message>,
}

impl Sink for Forward {
    fn emit(&mut self, event: &Event) {
        self.first.emit(event);
        // Fails only when the lanes' thread has ended, and then nobody misses the event.
        let _ = self.inbox.send(Message::Event(self.lane, event.clone()));
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.inbox.send(Message::Gone(self.lane));
    }
}

/// Where a lane's engine stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Loading its model.
    Starting,
    /// Waiting for a command.
    Held(Gate, LaneId),
    /// It was told to go on and has not begun.
    Told,
    /// Computing.
    Running,
    /// It has ended.
    Gone,
}

struct Lane {
    engine: Option<Engine>,
    standing: Standing,
    /// Requests that have ended, however they did.
    ended: u64,
    open: BTreeSet<LaneId>,
    /// Whether it has been asked for a fork and has not said what became of that.
    forking: bool,
}

impl Lane {
    fn new(engine: Engine) -> Lane {
        Lane {
            engine: Some(engine),
            standing: Standing::Starting,
            ended: 0,
            open: BTreeSet::new(),
            forking: false,
        }
    }

    fn send(&mut self, command: Command) -> bool {
        let sent = self.engine.as_ref().is_some_and(|engine| engine.send(command));
        if !sent {
            self.standing = Standing::Gone;
        }
        sent
    }

    fn is_live(&self) -> bool {
        self.standing != Standing::Gone
    }

    fn is_settled(&self) -> bool {
        matches!(self.standing, Standing::Held(..) | Standing::Gone) && !(self.forking && self.is_live())
    }

    /// Whether it is held with a request under way.
    fn is_mid_turn(&self) -> bool {
        matches!(self.standing, Standing::Held(Gate::AfterPhase | Gate::Paused, _))
    }

    /// Whether there is something to do in session lane `lane`.
    fn can_go_on(&self, lane: LaneId) -> bool {
        let over = self.standing == Standing::Held(Gate::Ended, lane);
        self.is_live() && !over && self.open.contains(&lane)
    }

    /// Turns begun.
    fn begun(&self) -> u64 {
        self.ended + u64::from(self.is_mid_turn())
    }
}

/// Lanes that do the same, one after the other.
struct Round {
    command: Command,
    waiting: VecDeque<usize>,
    running: Option<usize>,
}

struct Conductor {
    lanes: Vec<Lane>,
    first: usize,
    sink: Box<dyn FnMut(News) + Send>,
    /// What was asked for and waits until no round is under way.
    queue: VecDeque<(To, Command)>,
    /// The session lane that is run to its end.
    drive: Option<LaneId>,
    round: Option<Round>,
    /// Whether something happened in this round at which all are to stop.
    stop: bool,
    closing: bool,
    gate: Option<Gate>,
}

impl Conductor {
    fn run(mut self, messages: &Receiver<Message>) {
        while self.lanes.iter().any(|lane| lane.engine.is_some()) {
            // The engines' sinks hold senders as long as there are engines.
            let Ok(message) = messages.recv() else { break };
            match message {
                Message::Command(to, command) => self.take(to, command),
                Message::Event(lane, event) => self.hear(lane, event),
                Message::Gone(lane) => self.bury(lane),
            }
            while self.proceed() {}
            self.tell_gate();
        }
        (self.sink)(News::Over);
    }

    fn bury(&mut self, place: usize) {
        let Some(lane) = self.lanes.get_mut(place) else { return };
        // That it has ended may have been told before, and all have stopped for it.
        self.stop |= lane.is_live();
        lane.standing = Standing::Gone;
        if let Some(engine) = lane.engine.take() {
            engine.join();
        }
    }

    fn hear(&mut self, place: usize, event: Event) {
        if let Some(lane) = self.lanes.get_mut(place) {
            match &event.body {
                Body::LaneOpened { .. } => {
                    lane.open.insert(event.lane.unwrap_or_default());
                }
                Body::GateChanged { gate: Gate::Running, .. } if lane.is_live() => {
                    lane.standing = Standing::Running;
                }
                Body::GateChanged { gate, .. } => {
                    lane.forking = false;
                    // What is told between a command and its beginning is of the time before the command.
                    if !matches!(lane.standing, Standing::Told | Standing::Gone) {
                        lane.standing = Standing::Held(*gate, event.lane.unwrap_or_default());
                    }
                }
                Body::Finished { .. } => lane.ended += 1,
                Body::Failed { .. } => {
                    lane.ended += 1;
                    self.stop = true;
                }
                Body::BreakpointHit { .. } => self.stop = true,
                Body::EngineFailed { .. } | Body::RunEnded => {
                    self.stop |= lane.is_live();
                    lane.standing = Standing::Gone;
                }
                _ => {}
            }
        }
        (self.sink)(News::Event { lane: place, event });
    }

    /// The lanes a command is for, those that have ended left out.
    fn targets(&self, to: To) -> Vec<usize> {
        let meant = |place: &usize| to == To::All || to == To::One(*place);
        (0..self.lanes.len()).filter(meant).filter(|place| self.lanes[*place].is_live()).collect()
    }

    fn broadcast(&mut self, to: To, command: &Command) {
        for place in self.targets(to) {
            self.lanes[place].send(command.clone());
        }
    }

    /// Obeys at once what cannot wait, and keeps the rest for when no round is under way.
    fn take(&mut self, to: To, command: Command) {
        if self.closing {
            return;
        }
        match command {
            Command::Shutdown => {
                self.closing = true;
                self.halt();
                self.queue.clear();
                self.broadcast(To::All, &command);
            }
            Command::Pause | Command::Cancel { .. } => {
                self.halt();
                self.broadcast(to, &command);
            }
            Command::Preview { .. } | Command::Rescore { .. } | Command::Break { .. } | Command::Panic => {
                self.broadcast(to, &command);
            }
            // Asked for while the lanes are under way, these say how far they may go.
            Command::Run { lane } if self.is_under_way() => self.drive = Some(lane),
            Command::StepTurn { .. } | Command::StepPhase { .. } if self.is_under_way() => self.drive = None,
            _ => self.queue.push_back((to, command)),
        }
    }

    /// Whether the lanes compute and nothing waits for them.
    fn is_under_way(&self) -> bool {
        self.round.is_some() && self.queue.is_empty()
    }

    /// No lane begins anything further by itself.
    fn halt(&mut self) {
        self.drive = None;
        if let Some(round) = &mut self.round {
            round.waiting.clear();
        }
    }

    /// Does the next thing that can be done. `false` when there is something to wait for first, or nothing to do.
    fn proceed(&mut self) -> bool {
        if let Some(round) = &mut self.round {
            if round.running.is_some_and(|place| !self.lanes[place].is_settled()) {
                return false;
            }
            round.running = None;
            match round.waiting.pop_front() {
                Some(place) => {
                    if self.lanes[place].is_live() && self.lanes[place].send(round.command.clone()) {
                        self.lanes[place].standing = Standing::Told;
                        round.running = Some(place);
                    }
                }
                None => self.end_round(),
            }
            return true;
        }
        if self.closing || self.lanes.iter().any(|lane| !lane.is_settled()) {
            return false;
        }
        match (self.queue.pop_front(), self.drive) {
            (Some((to, command)), _) => {
                self.perform(to, command);
                true
            }
            (None, Some(lane)) => {
                let goes_on = self.begin_round(To::All, lane, Command::StepTurn { lane });
                if !goes_on {
                    self.drive = None;
                }
                goes_on
            }
            (None, None) => false,
        }
    }

    fn end_round(&mut self) {
        self.round = None;
        if std::mem::take(&mut self.stop) {
            self.drive = None;
        }
    }

    /// Obeys a command that waited until no lane computes.
    fn perform(&mut self, to: To, command: Command) {
        match &command {
            Command::StepTurn { lane } | Command::StepPhase { lane } => {
                let lane = *lane;
                self.begin_round(to, lane, command);
            }
            Command::Run { lane } => {
                let lane = *lane;
                if to == To::All {
                    self.drive = Some(lane);
                } else {
                    // By itself a lane is in nobody's way.
                    self.begin_round(to, lane, command);
                }
            }
            Command::Inject { lane, messages, .. } => {
                let lane = *lane;
                if messages.is_empty() {
                    return;
                }
                // Every lane ends the turn it is in before it gets another.
                let behind = self.behind(to);
                if behind.is_empty() {
                    let places = self.targets(to);
                    let places = places.into_iter().filter(|place| self.lanes[*place].open.contains(&lane));
                    self.open_round(places.collect(), command);
                } else {
                    self.open_round(behind, Command::StepTurn { lane });
                    self.queue.push_front((to, command));
                }
            }
            Command::Fork { .. } => {
                for place in self.targets(to) {
                    self.lanes[place].forking = self.lanes[place].send(command.clone());
                }
            }
            _ => self.broadcast(to, &command),
        }
    }

    /// Lanes that are in the middle of a turn, or have not begun one that another has.
    fn behind(&self, to: To) -> Vec<usize> {
        let begun = self.lanes.iter().filter(|lane| lane.is_live()).map(Lane::begun).max().unwrap_or(0);
        let over = |lane: &Lane| matches!(lane.standing, Standing::Held(Gate::Ended, _));
        let is_behind = |lane: &Lane| match to {
            To::All => lane.ended < begun && !over(lane),
            To::One(_) => lane.is_mid_turn(),
        };
        self.targets(to).into_iter().filter(|place| is_behind(&self.lanes[*place])).collect()
    }

    /// Begins a round of those lanes that are behind; of all that have something to do where none is. `false` where none has.
    fn begin_round(&mut self, to: To, lane: LaneId, command: Command) -> bool {
        let goes_on = |places: Vec<usize>| -> Vec<usize> {
            places.into_iter().filter(|place| self.lanes[*place].can_go_on(lane)).collect()
        };
        let behind = goes_on(self.behind(to));
        let places = if behind.is_empty() { goes_on(self.targets(to)) } else { behind };
        let any = !places.is_empty();
        if any {
            self.open_round(places, command);
        }
        any
    }

    fn open_round(&mut self, mut places: Vec<usize>, command: Command) {
        let turn = places.iter().map(|place| self.lanes[*place].ended + 1).max().unwrap_or(0);
        // Rotated rather than shuffled, so that every lane is first equally often.
        let lanes = self.lanes.len();
        let shift = (turn.saturating_sub(1) as usize).wrapping_add(self.first) % lanes.max(1);
        places.sort_by_key(|place| (place + lanes - shift) % lanes.max(1));
        self.stop = false;
        (self.sink)(News::Round { turn, order: places.clone() });
        self.round = Some(Round { command, waiting: places.into(), running: None });
    }

    fn tell_gate(&mut self) {
        if self.lanes.iter().any(|lane| lane.standing == Standing::Starting) {
            return;
        }
        let live = || self.lanes.iter().filter(|lane| lane.is_live());
        let held =
            |gate: Gate| live().any(|lane| matches!(lane.standing, Standing::Held(at, _) if at == gate));
        let gate = if self.round.is_some() || live().any(|lane| !lane.is_settled()) {
            Gate::Running
        } else if held(Gate::Paused) {
            Gate::Paused
        } else if held(Gate::AfterPhase) {
            Gate::AfterPhase
        } else if held(Gate::BeforeTurn) {
            Gate::BeforeTurn
        } else {
            Gate::Ended
        };
        if self.gate != Some(gate) {
            self.gate = Some(gate);
            (self.sink)(News::Gate(gate));
        }
    }
}
