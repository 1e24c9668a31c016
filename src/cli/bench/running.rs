//! An engine on a session of one request, for benches that ask it again and again.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use super::super::Failure;
use crate::config::Config;
use crate::engine::{Command, Engine, Setup};
use crate::event::{Body, Event, Gate, LaneId, Nanos, Restore, RunFacts, Scored};
use crate::model;
use crate::recovery::neighbours::Neighbours;
use crate::session::{Conversation, Message, RequestOverrides, RequestSpec, Role, Session};

/// A session of one request of about `tokens` tokens.
pub(super) fn session_of(tokens: usize, config: &Config) -> Result<Session, Failure> {
    let text = model::load(config)?.text;
    let prompt = |words: usize| {
        let word = |n: usize| ["block", "state", "cache", "token", "layer", "queue", "chain"][n * n % 7];
        (0..words).map(|n| format!("{} {n}", word(n))).collect::<Vec<_>>().join(", ")
    };
    let count = |words: usize| {
        let messages = vec![Message::text(Role::User, prompt(words))];
        let conversation = Conversation { system: None, tools: Vec::new(), messages };
        text.render(&conversation).map(|rendered| rendered.tokens.len()).map_err(Failure::input)
    };
    let sample = 500;
    let per_word = count(sample)? as f64 / sample as f64;
    let mut words = (tokens as f64 / per_word) as usize;
    // Numbers grow longer, so a second look.
    words = (words as f64 * tokens as f64 / count(words.max(1))? as f64) as usize;
    let request = RequestSpec {
        name: "prompt".to_owned(),
        idle: Nanos(0),
        rewrites: Vec::new(),
        append: vec![Message::text(Role::User, prompt(words.max(1)))],
        reply: None,
        overrides: RequestOverrides { max_output_tokens: Some(16), ..RequestOverrides::default() },
        side: false,
    };
    Ok(Session {
        title: "bench".to_owned(),
        description: String::new(),
        transport: None,
        system: None,
        tools: Vec::new(),
        settings: Vec::new(),
        requests: vec![request],
    })
}

/// What a turn told.
pub(super) struct Turn {
    pub(super) prompt_tokens: u64,
    pub(super) restore: Restore,
    /// Compute time of the target.
    pub(super) prefill: Nanos,
    /// From arrival to the first token.
    pub(super) ttft: Nanos,
    /// What the scorer did, where it was asked.
    pub(super) scored: Option<Scored>,
    pub(super) decode_step_s: f64,
}

/// An engine under way.
pub(super) struct Running {
    engine: Engine,
    events: Receiver<Event>,
    run: Option<RunFacts>,
    lanes: u32,
}

impl Running {
    pub(super) fn start(config: &Config, session: &Arc<Session>) -> Result<Running, Failure> {
        let (sender, events) = mpsc::channel();
        let for_load = config.clone();
        let setup = Setup {
            neighbours: Neighbours::open(&config.recovery),
            config: config.clone(),
            session: Arc::clone(session),
            load: Box::new(move || model::load(&for_load)),
            sink: Box::new(move |event: &Event| drop(sender.send(event.clone()))),
        };
        let engine = Engine::start(setup).map_err(Failure::run)?;
        let mut running = Running { engine, events, run: None, lanes: 1 };
        running.until(|event| matches!(event.body, Body::GateChanged { .. }), |_| ())?;
        Ok(running)
    }

    /// Takes events in up to the one that `last` holds for.
    fn until(&mut self, last: impl Fn(&Event) -> bool, mut take: impl FnMut(&Event)) -> Result<(), Failure> {
        loop {
            let event = self.events.recv().map_err(|_| Failure::run("the engine ended early"))?;
            match &event.body {
                Body::RunStarted(run) => self.run = Some((**run).clone()),
                Body::Failed { message } | Body::EngineFailed { message } => {
                    return Err(Failure::run(message));
                }
                _ => {}
            }
            take(&event);
            if last(&event) {
                return Ok(());
            }
        }
    }

    /// Opens a lane that asks the session's only request again.
    pub(super) fn fork_same(&mut self, session: &Session) -> Result<LaneId, Failure> {
        let content = session.requests[0].append[0].content.clone();
        self.engine.send(Command::Fork { lane: LaneId(0), turn: 1, role: Role::User, content });
        let lane = LaneId(self.lanes);
        self.lanes += 1;
        self.until(|event| matches!(event.body, Body::LaneOpened { .. }), |_| ())?;
        Ok(lane)
    }

    pub(super) fn turn(&mut self, lane: LaneId) -> Result<Turn, Failure> {
        self.engine.send(Command::StepTurn { lane });
        let (mut prompt_tokens, mut restore, mut prefill, mut decode) = (0, None, Nanos(0), (0, Nanos(0)));
        let (mut arrived, mut first, mut scored) = (None, None, None);
        self.until(
            |event| matches!(event.body, Body::Finished { .. }),
            |event| match &event.body {
                Body::Arrived(arrival) => {
                    prompt_tokens = arrival.prompt_tokens;
                    arrived = Some(event.at);
                }
                Body::Scored(of) => scored = Some((**of).clone()),
                Body::Token { index: 0, .. } => first = Some(event.at),
                Body::Restored(restored) => restore = Some((**restored).clone()),
                Body::Prefilled { took, .. } => prefill = *took,
                Body::Decoded { output_tokens, took, .. } => decode = (*output_tokens, *took),
                _ => {}
            },
        )?;
        self.until(
            |event| matches!(event.body, Body::GateChanged { gate, .. } if gate != Gate::Running),
            |_| (),
        )?;
        let restore = restore.ok_or_else(|| Failure::run("the request told no restore"))?;
        // The first token comes of the prefill.
        let steps = decode.0.saturating_sub(1).max(1);
        let ttft = first.zip(arrived).map(|(first, arrived)| first.since(arrived));
        Ok(Turn {
            prompt_tokens,
            restore,
            prefill,
            ttft: ttft.ok_or_else(|| Failure::run("the request told no token"))?,
            scored,
            decode_step_s: decode.1.seconds() / steps as f64,
        })
    }

    /// Has the engine do something that it answers with no event of its own.
    pub(super) fn send(&mut self, command: Command) {
        self.engine.send(command);
    }

    /// Ends the engine, which writes what is still to be written.
    pub(super) fn end(self) -> Result<RunFacts, Failure> {
        let Running { engine, events, run, .. } = self;
        engine.send(Command::Shutdown);
        engine.join();
        drop(events);
        run.ok_or_else(|| Failure::run("the engine told nothing of its run"))
    }
}
