//! The engine thread's loop: commands in, turns to the scheduler, replies back to the session.
//!
//! It decides *whether* to go on (the gate) and *what* comes next (the lanes); the scheduler decides how.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::asked::Sent;
use super::background::Rest;
use super::clock::Clock;
use super::emitter::Emitter;
use super::lane::{Injection, Lane};
use super::scheduler::{Late, Scheduler, StepOutcome};
use super::sequence::{Ended, Submission};
use super::watch::Hit;
use super::{Command, Subject};
use crate::config::{Config, IdleConfig, IdleWord, SparseOverride, SpeculationOverride};
use crate::event::{Body, Gate, LaneId, Nanos, Preview, Segment, Stamp, Survival, TranscriptItem};
use crate::model::text::{Rendered, TextCodec};
use crate::prefill::survival::{said, survival};
use crate::recovery::arrivals::Announced;
use crate::session::{Message, Player, Role, Turn};

/// How far the engine may go by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drive {
    /// Not at all.
    Held,
    /// To the end of the next phase.
    Phase,
    /// To the end of the request under way, or of the next turn.
    Turn,
    /// To the end of the lane.
    Run,
}

/// A turn whose idle gap has not passed yet.
struct Waiting {
    turn: Turn,
    max_output_tokens: Option<u64>,
    until: Stamp,
}

/// The loop's state.
pub(super) struct Host<'a> {
    config: &'a Config,
    text: &'a TextCodec,
    scheduler: Scheduler<'a>,
    clock: Clock,
    out: &'a mut Emitter,
    lanes: Vec<Lane>,
    /// The lane that commands drive.
    active: LaneId,
    waiting: Option<Waiting>,
    /// The presence of a request that was asked for and is not made yet, and when it was asked for.
    asked_for: Option<(Announced, Instant)>,
    drive: Drive,
    /// Whether it was a [`Command::Pause`] that held it.
    paused: bool,
    gate: Option<(Gate, LaneId, Option<u32>, u32)>,
}

impl<'a> Host<'a> {
    pub(super) fn new(
        config: &'a Config,
        text: &'a TextCodec,
        scheduler: Scheduler<'a>,
        clock: Clock,
        out: &'a mut Emitter,
        player: Player,
    ) -> Host<'a> {
        Host {
            config,
            text,
            scheduler,
            clock,
            out,
            lanes: vec![Lane::new(player)],
            active: LaneId(0),
            waiting: None,
            asked_for: None,
            drive: Drive::Held,
            paused: false,
            gate: None,
        }
    }

    /// Runs until [`Command::Shutdown`] or until nobody can send commands any more.
    pub(super) fn run(mut self, commands: &Receiver<Sent>) {
        let title = self.lanes[0].player.session().title.clone();
        self.emit(LaneId(0), Body::LaneOpened { parent: None, at_turn: None, title });
        self.cut_session();
        self.show_gate();
        while self.take_commands(commands) {
            self.advance();
            self.show_gate();
        }
        for ended in self.scheduler.cancel_all(&mut self.clock, self.out) {
            self.note_end(ended);
        }
        self.scheduler.end_recovery(&self.clock, self.out);
        self.scheduler.close_tier(&self.clock, self.out);
        let now = self.clock.now();
        self.out.emit(now, None, None, Body::RunEnded);
    }

    fn emit(&mut self, lane: LaneId, body: Body) {
        self.out.emit(self.clock.now(), Some(lane), None, body);
    }

    fn lane(&mut self, id: LaneId) -> Option<&mut Lane> {
        self.lanes.get_mut(id.0 as usize)
    }

    /// Takes what has been asked for; waits for it when there is nothing else to do. `false` ends the loop.
    fn take_commands(&mut self, commands: &Receiver<Sent>) -> bool {
        loop {
            let Sent { command, at, announced } = match self.patience() {
                Some(Duration::ZERO) => match commands.try_recv() {
                    Ok(sent) => sent,
                    Err(std::sync::mpsc::TryRecvError::Empty) => return true,
                    Err(std::sync::mpsc::TryRecvError::Disconnected) => return false,
                },
                Some(wait) => match commands.recv_timeout(wait) {
                    Ok(sent) => sent,
                    Err(RecvTimeoutError::Timeout) => return true,
                    Err(RecvTimeoutError::Disconnected) => return false,
                },
                None => match commands.recv() {
                    Ok(sent) => sent,
                    Err(_) => return false,
                },
            };
            self.scheduler.command_taken(&command);
            if command == Command::Shutdown {
                return false;
            }
            self.asked_for = announced.map(|announced| (announced, at)).or(self.asked_for.take());
            self.obey(command);
            self.show_gate();
        }
    }

    /// How long the loop may wait for a command: not at all while there is work, until the idle gap is over, or for ever. Background work is some
    /// too, as long as time passes for it.
    fn patience(&self) -> Option<Duration> {
        let rest = || match self.scheduler.rest(&self.clock) {
            Rest::No => Some(Duration::ZERO),
            Rest::For(time) => Some(time),
            Rest::Open => None,
        };
        match (&self.waiting, self.drive) {
            (_, Drive::Held) if self.clock.is_virtual() => None,
            (_, Drive::Held) => rest(),
            (Some(Waiting { until, .. }), _) if self.scheduler.is_idle() && !self.clock.is_virtual() => {
                let gap = Duration::from_nanos(until.since(self.clock.now()).0);
                Some(rest().map_or(gap, |rest| rest.min(gap)))
            }
            _ => Some(Duration::ZERO),
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::StepTurn { lane } => self.go(lane, Drive::Turn),
            Command::StepPhase { lane } => self.go(lane, Drive::Phase),
            Command::Run { lane } => self.go(lane, Drive::Run),
            Command::Pause => {
                self.paused = self.drive != Drive::Held || self.paused;
                self.drive = Drive::Held;
            }
            Command::Cancel { request } => {
                if let Some(ended) = self.scheduler.cancel(request, &mut self.clock, self.out) {
                    self.note_end(ended);
                    self.drive = Drive::Held;
                }
            }
            Command::Inject { lane, messages, max_output_tokens } => {
                if messages.is_empty() {
                    return;
                }
                let Some(target) = self.lane(lane) else { return };
                target.injections.push(Injection { messages, max_output_tokens });
                let drive = if self.drive == Drive::Run { Drive::Run } else { Drive::Turn };
                self.go(lane, drive);
            }
            Command::Fork { lane, turn, role, content } => self.fork(lane, turn, role, content),
            Command::Preview { ticket, lane, subject } => self.preview(ticket, lane, subject),
            Command::Break { conditions } => {
                let told = conditions.iter().map(ToString::to_string).collect();
                self.out.break_at(conditions);
                self.emit(self.active, Body::BreakpointsSet { conditions: told });
            }
            Command::Fault { lane, fault } => {
                let latest = self.lane(lane).and_then(|lane| lane.latest());
                let tokens = latest.as_ref().map(|latest| latest.tokens.as_slice()).unwrap_or_default();
                let outcome = self.scheduler.inject(fault, tokens, &self.clock);
                self.emit(lane, Body::FaultInjected { fault: fault.to_string(), outcome });
            }
            Command::SpecPrefill(by_hand) => {
                self.scheduler.set_sparse_by_hand(by_hand);
                let SparseOverride { enabled, keep, threshold } = by_hand;
                self.emit(self.active, Body::SpecPrefillSet { enabled, keep, threshold });
            }
            Command::Speculation(by_hand) => {
                self.scheduler.set_speculation_by_hand(by_hand);
                let SpeculationOverride { drafter, depth, controller } = by_hand;
                self.emit(self.active, Body::SpeculationSet { drafter, depth, controller });
            }
            Command::Recovery { enabled } => {
                self.scheduler.set_recovery(enabled, &self.clock, self.out);
                self.emit(self.active, Body::RecoverySet { enabled });
            }
            Command::MeasureVerify(measure) => self.scheduler.measure_verify(measure),
            Command::Rescore { ticket, request, knobs } => {
                let rescored = self.scheduler.rescore(ticket, request, knobs);
                self.emit(self.active, Body::Rescored(Box::new(rescored)));
            }
            Command::EvictAll => {
                self.scheduler.lose_recovery(&self.clock, self.out);
                self.scheduler.evict_all(&self.clock);
            }
            Command::Panic => panic!("asked to, to show that the engine thread is supervised"),
            Command::Shutdown => {}
        }
    }

    fn go(&mut self, lane: LaneId, drive: Drive) {
        // A request under way is finished first, whichever lane it is in; the lane asked for comes after it.
        if self.lane(lane).is_some() {
            self.active = lane;
            self.drive = drive;
            self.paused = false;
        }
    }

    fn fork(&mut self, lane: LaneId, turn: u32, role: Role, content: String) {
        let id = LaneId(self.lanes.len() as u32);
        let Some(fork) = self.lane(lane).and_then(|parent| parent.fork(turn, role, content)) else {
            // Where nothing opens, that the gate is told again is the answer.
            self.gate = None;
            return;
        };
        let title = format!("{} edited at turn {turn}", lane.label());
        self.lanes.push(fork);
        self.emit(id, Body::LaneOpened { parent: Some(lane), at_turn: Some(turn), title });
        if self.drive == Drive::Held {
            self.active = id;
        }
    }

    /// Does one unit of work, as far as the drive allows.
    fn advance(&mut self) {
        if self.drive == Drive::Held {
            // Whoever asked for a request has been answered otherwise.
            self.asked_for = None;
            if !self.clock.is_virtual() {
                self.scheduler.background_step(None, &mut self.clock, self.out);
            }
            return;
        }
        if self.scheduler.is_idle() && !self.start_turn() {
            self.pass_gap();
            return;
        }
        let StepOutcome { phases, ended } = self.scheduler.step(&mut self.clock, self.out);
        let turn_over = !ended.is_empty();
        for ended in ended {
            self.note_end(ended);
        }
        if self.tell_hits() {
            self.drive = Drive::Held;
            self.paused = true;
            return;
        }
        match self.drive {
            Drive::Phase if turn_over || !phases.is_empty() => self.drive = Drive::Held,
            Drive::Turn if turn_over => self.finish_turn(),
            _ => {}
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

    /// Says what a turn would cost if it were sent now.
    fn preview(&mut self, ticket: u64, lane: LaneId, subject: Subject) {
        let unknown = |prompt_tokens, problem| Preview {
            ticket,
            prompt_tokens,
            restore: None,
            sparse: None,
            problem: Some(problem),
        };
        let preview = match self.prospect(lane, subject) {
            None => unknown(0, "there is no such turn to edit".to_owned()),
            Some(Err(problem)) => unknown(0, problem),
            Some(Ok(submission)) => {
                let prompt_tokens = submission.prompt.len() as u64;
                match self.does_not_fit(submission.prompt.len()) {
                    Some(problem) => unknown(prompt_tokens, problem),
                    None => {
                        let (restore, sparse) = self.scheduler.preview(&submission);
                        let (restore, sparse) = (Some(Box::new(restore)), sparse.map(Box::new));
                        Preview { ticket, prompt_tokens, restore, sparse, problem: None }
                    }
                }
            }
        };
        self.emit(lane, Body::Previewed(Box::new(preview)));
    }

    /// The submission that a turn would become; `None` where there is no such turn.
    fn prospect(&mut self, id: LaneId, subject: Subject) -> Option<Result<Submission, String>> {
        let mut lane = match subject {
            Subject::Injection(messages) => {
                let mut lane = self.lane(id)?.clone();
                lane.injections.insert(0, Injection { messages, max_output_tokens: None });
                lane
            }
            Subject::Fork { turn, role, content } => self.lane(id)?.fork(turn, role, content)?,
        };
        let (turn, max_output_tokens) = lane.take()?;
        Some(match self.text.render(&turn.conversation) {
            Ok(rendered) => Ok(self.submission(id, &lane, turn, rendered, max_output_tokens)),
            Err(error) => Err(error.to_string()),
        })
    }

    /// A turn that was injected while another ran is run too before the engine stops.
    fn finish_turn(&mut self) {
        let active = self.active;
        let more = self.lane(active).is_some_and(|lane| !lane.injections.is_empty());
        if !more {
            self.drive = Drive::Held;
        }
    }

    /// Brings the active lane's next turn to the scheduler. `false` while its idle gap lasts, or when there is none.
    fn start_turn(&mut self) -> bool {
        if self.waiting.is_none() && !self.await_next() {
            return false;
        }
        let now = self.clock.now();
        match self.waiting.take() {
            Some(waiting) if waiting.until <= now => self.submit(waiting),
            waiting => {
                self.waiting = waiting;
                false
            }
        }
    }

    fn await_next(&mut self) -> bool {
        let active = self.active;
        let Some((mut turn, max_output_tokens)) = self.lane(active).and_then(Lane::take) else {
            self.drive = Drive::Held;
            return false;
        };
        turn.idle = self.idle_before(&turn);
        if turn.idle.0 > 0 {
            // Nobody is there before the gap is over.
            self.asked_for = None;
        }
        let until = self.clock.now().after(turn.idle);
        self.waiting = Some(Waiting { turn, max_output_tokens, until });
        true
    }

    /// Has background work done while an idle gap lasts. A virtual clock goes on to where something happens next.
    fn pass_gap(&mut self) {
        let Some(until) = self.waiting.as_ref().map(|waiting| waiting.until) else { return };
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

    /// Renders a turn and submits it. `false` when it cannot run.
    fn submit(&mut self, waiting: Waiting) -> bool {
        let Waiting { turn, max_output_tokens, until } = waiting;
        let late = self.late(until);
        let (rendered, problem) = match self.text.render(&turn.conversation) {
            Ok(rendered) => (rendered, None),
            Err(error) => (Rendered { tokens: Vec::new(), segments: Vec::new() }, Some(error.to_string())),
        };
        let problem = problem.or_else(|| self.does_not_fit(rendered.tokens.len()));
        let lane = &self.lanes[self.active.0 as usize];
        let submission = self.submission(self.active, lane, turn, rendered, max_output_tokens);
        match problem {
            None => {
                self.scheduler.submit_late(submission, late, &self.clock, self.out);
                true
            }
            Some(problem) => {
                let ended = self.scheduler.reject(submission, problem, &self.clock, self.out);
                self.note_end(ended);
                self.drive = Drive::Held;
                false
            }
        }
    }

    /// What is known of a request that was due at `due`.
    fn late(&mut self, due: Stamp) -> Late {
        let (announced, asked_at) = self.asked_for.take().unzip();
        let by_wall = asked_at.filter(|_| !self.clock.is_virtual());
        // What was typed in was due when it was sent; the turn of a session when its gap was over.
        let since_sent = by_wall.and_then(|at| self.scheduler.delay_since(at));
        Late { announced, delayed: self.scheduler.delay_of(due).max(since_sent) }
    }

    fn does_not_fit(&self, prompt_tokens: usize) -> Option<String> {
        let context = self.scheduler.context_tokens();
        if prompt_tokens == 0 {
            return Some("the prompt is empty: give the turn a message".to_owned());
        }
        (prompt_tokens >= context).then(|| {
            format!(
                "the prompt has {prompt_tokens} tokens and the context holds {context}, one of them for the reply; \
                 shorten the history or use a model with a longer context"
            )
        })
    }

    fn submission(
        &self,
        id: LaneId,
        lane: &Lane,
        turn: Turn,
        rendered: Rendered,
        max_output_tokens: Option<u64>,
    ) -> Submission {
        let mut items = Vec::new();
        items.extend(lane.recorded_reply(&turn).into_iter().flat_map(transcript_items));
        items.extend(turn.appended.iter().flat_map(transcript_items));
        let room = self.scheduler.context_tokens().saturating_sub(rendered.tokens.len()) as u64;
        let budget = max_output_tokens
            .or(turn.overrides.max_output_tokens)
            .unwrap_or(self.config.replay.max_output_tokens);
        let predecessor = lane.predecessor(&turn);
        let measured = self.scheduler.has_scorer().then(|| self.protected_tokens(&turn, &rendered));
        Submission {
            lane: id,
            turn: turn.number,
            name: turn.name,
            source: turn.source,
            change: turn.change,
            idle: turn.idle,
            prompt: rendered.tokens,
            segments: rendered.segments,
            items,
            max_output_tokens: budget.clamp(1, room.max(1)),
            sampling: turn.overrides.sampling.over(self.config.sampling),
            use_cache: turn.overrides.cache.unwrap_or(self.config.cache.enabled),
            specprefill: turn.overrides.specprefill,
            speculation: turn.overrides.speculation,
            transport: turn.overrides.transport,
            protected_tokens: measured.unwrap_or(0),
            recovers: None,
            predecessor,
        }
    }

    /// Tokens of the prompt's protected prefix. Where it cannot be measured, all of them: then nothing can be dropped that must not be.
    fn protected_tokens(&self, turn: &Turn, rendered: &Rendered) -> usize {
        match self.text.protected_prefix(&turn.conversation, &rendered.tokens) {
            Ok(tokens) => tokens,
            Err(error) => {
                tracing::warn!(%error, "the protected prefix cannot be measured: the suffix is computed densely");
                rendered.tokens.len()
            }
        }
    }

    fn note_end(&mut self, ended: Ended) {
        if let Some(survival) = self.survival(&ended) {
            let (lane, request) = (Some(ended.lane), Some(ended.request));
            self.out.emit(self.clock.now(), lane, request, Body::Survived(survival));
        }
        if let Some(lane) = self.lane(ended.lane) {
            lane.ended(&ended.text, ended.served);
        }
    }

    /// What a sparse prefill left of the identifiers of the recorded reply. `None` where nothing was dropped or no reply is recorded.
    fn survival(&self, ended: &Ended) -> Option<Survival> {
        let scored = self.out.scored(ended.request)?;
        let player = &self.lanes.get(ended.lane.0 as usize)?.player;
        let reply = said(player.recorded_reply()?);
        let served = ended.served.as_ref()?;
        let (prompt, ends) = self.text.spelled(served.tokens.get(..served.prompt_tokens)?)?;
        let kept = |position: usize| scored.keeps(position as u64);
        Some(survival(&prompt, &ends, kept, &reply))
    }

    /// Finds the first request that will not fit the context, assuming recorded replies, and says so at once.
    fn cut_session(&mut self) {
        let context = self.scheduler.context_tokens();
        let mut player = self.lanes[0].player.clone();
        let of_requests = u64::from(player.turns_known());
        while let Some(turn) = player.take() {
            // A template error is reported by the request that meets it.
            let Ok(rendered) = self.text.render(&turn.conversation) else { return };
            if rendered.tokens.len() >= context {
                let kept = turn.number - 1;
                self.lanes[0].cut_at = Some(kept);
                let body = Body::SessionCut {
                    kept_requests: u64::from(kept),
                    of_requests,
                    prompt_tokens: rendered.tokens.len() as u64,
                    context_tokens: context as u64,
                };
                self.emit(LaneId(0), body);
                return;
            }
            player.reply("");
        }
    }

    fn show_gate(&mut self) {
        let active = self.active;
        let idle = self.scheduler.is_idle() && self.waiting.is_none();
        let held = self.drive == Drive::Held;
        let Some(lane) = self.lane(active) else { return };
        let (next_turn, turns) = (lane.next_turn(), lane.turns_known());
        let gate = match (held, idle) {
            (false, _) => Gate::Running,
            (true, true) if next_turn.is_none() => Gate::Ended,
            (true, true) => Gate::BeforeTurn,
            (true, false) if self.paused => Gate::Paused,
            (true, false) => Gate::AfterPhase,
        };
        if self.gate == Some((gate, active, next_turn, turns)) {
            return;
        }
        self.gate = Some((gate, active, next_turn, turns));
        self.emit(active, Body::GateChanged { gate, next_turn, turns });
    }
}

/// How a message shows in the transcript: its text, then its tool calls.
fn transcript_items(message: &Message) -> Vec<TranscriptItem> {
    let segment = match (message.injected, message.role) {
        (true, _) => Segment::Injected,
        (_, Role::User) => Segment::User,
        (_, Role::Assistant) => Segment::Assistant,
        (_, Role::Tool) => Segment::ToolResult,
    };
    let text =
        (!message.content.is_empty()).then(|| TranscriptItem { segment, text: message.content.clone() });
    let calls = message.tool_calls.iter().map(|call| TranscriptItem {
        segment: Segment::ToolCall,
        text: format!("{}({})", call.name, serde_json::Value::Object(call.arguments.clone())),
    });
    text.into_iter().chain(calls).collect()
}
