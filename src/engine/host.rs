//! The engine thread's loop: commands in, turns to the scheduler, replies back to the session.
//!
//! It decides *whether* to go on (the gate) and *what* comes next (the lanes); the scheduler decides how.

mod drive;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::asked::Sent;
use super::clock::Clock;
use super::emitter::Emitter;
use super::lane::{Injection, Lane};
use super::scheduler::Scheduler;
use super::sequence::{Ended, Submission};
use super::{Command, Subject};
use crate::config::{Config, SparseOverride, SpeculationOverride};
use crate::event::{Body, LaneId, Preview, Segment, Survival, TranscriptItem};
use crate::model::text::{Rendered, TextCodec};
use crate::prefill::survival::{said, survival};
use crate::recovery::job::End;
use crate::session::{Message, Player, Role, Session, Turn};
use drive::{AskedFor, Drive, Driven, Standing, Waiting};

/// The loop's state.
pub(super) struct Host<'a> {
    config: &'a Config,
    text: &'a TextCodec,
    scheduler: Scheduler<'a>,
    clock: Clock,
    out: &'a mut Emitter,
    lanes: Vec<Lane>,
    /// The lane that was driven last.
    active: LaneId,
    /// How far each lane goes.
    driven: Vec<Driven>,
    /// The presence of a request that a command asks for, and when it was sent, until it is known for which lane.
    asked_for: Option<AskedFor>,
    /// Whether it was a [`Command::Pause`] that held all lanes.
    paused: bool,
    /// The gate that was told last, and of which lane.
    gate: Option<(LaneId, Standing)>,
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
            driven: vec![Driven::default()],
            asked_for: None,
            paused: false,
            gate: None,
        }
    }

    /// Runs until [`Command::Shutdown`] or until nobody can send commands any more.
    pub(super) fn run(mut self, commands: &Receiver<Sent>) {
        self.introduce(LaneId(0));
        self.show_gate();
        while self.take_commands(commands) {
            self.advance();
            self.show_gate();
        }
        for ended in self.scheduler.cancel_all(&mut self.clock, self.out) {
            self.note_end(ended);
        }
        self.scheduler.end_recovery(End::Cancelled, &self.clock, self.out);
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

    fn obey(&mut self, command: Command) {
        match command {
            Command::StepTurn { lane } => self.go(lane, Drive::Turn),
            Command::StepPhase { lane } => self.go(lane, Drive::Phase),
            Command::Run { lane } => self.go(lane, Drive::Run),
            Command::RunAll => self.run_all(),
            Command::Open { session } => self.open(session),
            Command::Pause => {
                self.paused = self.is_driven() || self.paused;
                self.hold_all();
            }
            Command::Cancel { request } => {
                if let Some(ended) = self.scheduler.cancel(request, &mut self.clock, self.out) {
                    let lane = ended.lane;
                    self.note_end(ended);
                    self.hold(lane);
                }
            }
            Command::Inject { lane, messages, max_output_tokens } => {
                if messages.is_empty() {
                    return;
                }
                let Some(target) = self.lane(lane) else { return };
                target.injections.push(Injection { messages, max_output_tokens });
                let runs = self.drive_of(lane) == Drive::Run;
                self.go(lane, if runs { Drive::Run } else { Drive::Turn });
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
                self.scheduler.end_recovery(End::CacheReset, &self.clock, self.out);
                self.scheduler.evict_all(&self.clock);
            }
            Command::Panic => panic!("asked to, to show that the engine thread is supervised"),
            Command::Shutdown => {}
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
        self.driven.push(Driven::default());
        self.emit(id, Body::LaneOpened { parent: Some(lane), at_turn: Some(turn), title });
        if !self.is_driven() {
            self.active = id;
        }
    }

    /// Opens a lane on another session. Those that run go on.
    fn open(&mut self, session: Arc<Session>) {
        let id = LaneId(self.lanes.len() as u32);
        self.lanes.push(Lane::new(Player::new(session, self.config.replay.mode)));
        self.driven.push(Driven::default());
        self.introduce(id);
        self.tell_gate(id);
    }

    /// Tells that a lane on a session exists, and how much of that session fits.
    fn introduce(&mut self, id: LaneId) {
        let Some(title) = self.lane(id).map(|lane| lane.player.session().title.clone()) else { return };
        self.emit(id, Body::LaneOpened { parent: None, at_turn: None, title });
        self.cut_session(id);
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

    /// Renders a turn of a lane and submits it, if it can run.
    fn submit(&mut self, id: LaneId, waiting: Waiting) {
        let Waiting { turn, max_output_tokens, until } = waiting;
        let late = self.late(id, until);
        let (rendered, problem) = match self.text.render(&turn.conversation) {
            Ok(rendered) => (rendered, None),
            Err(error) => (Rendered { tokens: Vec::new(), segments: Vec::new() }, Some(error.to_string())),
        };
        let problem = problem.or_else(|| self.does_not_fit(rendered.tokens.len()));
        let Some(lane) = self.lanes.get(id.0 as usize) else { return };
        let submission = self.submission(id, lane, turn, rendered, max_output_tokens);
        match problem {
            None => {
                let request = self.scheduler.submit_late(submission, late, &self.clock, self.out);
                self.under_way(id, request);
            }
            Some(problem) => {
                let ended = self.scheduler.reject(submission, problem, &self.clock, self.out);
                self.note_end(ended);
                self.hold(id);
            }
        }
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
        self.no_longer_under_way(ended.lane);
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

    /// Finds a lane's first request that will not fit the context, assuming recorded replies, and says so at once.
    fn cut_session(&mut self, id: LaneId) {
        let context = self.scheduler.context_tokens();
        let Some(lane) = self.lane(id) else { return };
        let mut player = lane.player.clone();
        let of_requests = u64::from(player.turns_known());
        while let Some(turn) = player.take() {
            // A template error is reported by the request that meets it.
            let Ok(rendered) = self.text.render(&turn.conversation) else { return };
            if rendered.tokens.len() >= context {
                let kept = turn.number - 1;
                if let Some(lane) = self.lane(id) {
                    lane.cut_at = Some(kept);
                }
                let body = Body::SessionCut {
                    kept_requests: u64::from(kept),
                    of_requests,
                    prompt_tokens: rendered.tokens.len() as u64,
                    context_tokens: context as u64,
                };
                self.emit(id, body);
                return;
            }
            player.reply("");
        }
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
