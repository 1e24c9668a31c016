//! What a forward costs by its width, at several contexts.

use std::sync::Arc;
use std::sync::mpsc;

use serde::Serialize;

use crate::cli::Failure;
use crate::cli::bench::running::session_of;
use crate::config::{Config, DrafterKind};
use crate::decode::economics::ratio;
use crate::engine::{Command, Engine, Setup};
use crate::event::{Body, Event, Gate, LaneId};
use crate::model;
use crate::recovery::neighbours::Neighbours;

/// The cost of forwards of 1, 2, 3, … tokens.
#[derive(Debug, Serialize)]
pub(super) struct Curve {
    pub(super) context_tokens: u64,
    /// Time of a forward of one token, seconds.
    pub(super) dense_step_s: f64,
    /// Tokens of a forward, and what it costs in dense steps.
    pub(super) points: Vec<(u32, f64)>,
}

/// Measures one behind a prompt of about `tokens` tokens.
pub(super) fn measure(config: &Config, tokens: usize) -> Result<Curve, Failure> {
    let mut config = config.clone();
    config.policy.forget_speculation();
    config.speculation.drafter = Some(DrafterKind::None);
    config.speculation.curve = true;
    let mut session = session_of(tokens, &config)?;
    for request in &mut session.requests {
        request.overrides.max_output_tokens = Some(2);
    }
    let (sender, events) = mpsc::channel();
    let for_load = config.clone();
    let setup = Setup {
        neighbours: Neighbours::open(&config.recovery),
        config,
        session: Arc::new(session),
        load: Box::new(move || model::load(&for_load)),
        sink: Box::new(move |event: &Event| drop(sender.send(event.clone()))),
    };
    let engine = Engine::start(setup).map_err(Failure::run)?;
    engine.send(Command::Run { lane: LaneId(0) });
    let mut found = None;
    while let Ok(event) = events.recv() {
        match event.body {
            Body::VerifyCurve(curve) => found = Some(*curve),
            Body::EngineFailed { message } | Body::Failed { message } => return Err(Failure::run(message)),
            Body::GateChanged { gate: Gate::Ended, .. } => break,
            _ => {}
        }
    }
    engine.send(Command::Shutdown);
    engine.join();
    let curve = found.ok_or_else(|| {
        Failure::input(format_args!(
            "--contexts: {tokens} tokens leave no room for forwards of 8 tokens; give less"
        ))
    })?;
    let dense = curve.points.iter().find(|(width, _)| *width == 1).map(|(_, took)| took.seconds());
    let dense_step_s = dense.ok_or_else(|| Failure::run("no forward of one token was measured"))?;
    let in_steps =
        |(width, took): &(u32, crate::event::Nanos)| Some((*width, ratio(took.seconds(), dense_step_s)?));
    Ok(Curve {
        context_tokens: curve.context_tokens,
        dense_step_s,
        points: curve.points.iter().filter_map(in_steps).collect(),
    })
}
