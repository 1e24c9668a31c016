//! The engine: one named thread that owns the model, the cache and the clock, takes commands and emits events.
//!
//! It knows nothing of terminals, command lines or async runtimes, and never waits for a consumer.

use crate::event::{LaneId, RequestId};
use crate::session::Message;

/// What the outside can ask for. Answers are events.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Run the next turn of `lane`, then stop before the one after it. While a request is held after a phase, finish it.
    StepTurn {
        /// The lane.
        lane: LaneId,
    },
    /// Run to the end of the next phase: of the request under way, or of the next turn of `lane`.
    StepPhase {
        /// The lane.
        lane: LaneId,
    },
    /// Run `lane` to its end.
    Run {
        /// The lane.
        lane: LaneId,
    },
    /// Stop as soon as the current slice is done. `Run`, `StepTurn` and `StepPhase` go on from there.
    Pause,
    /// Cancel a request.
    Cancel {
        /// The request.
        request: RequestId,
    },
    /// Run a turn that is not in the session: `messages` are appended to the lane's history.
    Inject {
        /// The lane.
        lane: LaneId,
        /// What to append.
        messages: Vec<Message>,
        /// Reply tokens allowed; the configured number where `None`.
        max_output_tokens: Option<u64>,
    },
    /// Open a new lane in which turn `turn` of `lane` is replaced, and stand before that turn.
    Fork {
        /// The lane to fork.
        lane: LaneId,
        /// The turn to replace, from 1.
        turn: u32,
        /// Its new messages.
        messages: Vec<Message>,
    },
    /// Drop all cached state that no running request uses.
    EvictAll,
    /// End the engine's loop by a panic: how the supervision of the thread is tested.
    Panic,
    /// Finish: cancel what runs and end the thread.
    Shutdown,
}

/// What an engine runs on.
pub struct Setup {
    /// The configuration.
    pub config: crate::config::Config,
    /// The session to replay.
    pub session: std::sync::Arc<crate::session::Session>,
    /// Loads the model; called on the engine thread, which owns every device object.
    pub load: Box<dyn FnOnce() -> Result<crate::model::Loaded, crate::model::ModelError> + Send>,
    /// Where events go. Called on the engine thread; must not block.
    pub sink: Box<dyn crate::event::Sink>,
}

/// The engine's outside: commands in. Events come through [`Setup::sink`].
pub struct Engine {
    commands: std::sync::mpsc::Sender<Command>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Engine {
    /// Starts the engine thread, standing before the first turn of lane 0. A load failure arrives as
    /// [`crate::event::Body::EngineFailed`].
    pub fn start(setup: Setup) -> std::io::Result<Engine> {
        let _ = setup;
        unimplemented!()
    }

    /// Sends a command; `false` when the engine has ended.
    pub fn send(&self, command: Command) -> bool {
        self.commands.send(command).is_ok()
    }

    /// Waits for the engine thread to end. Send [`Command::Shutdown`] first, or `Run` in headless use (the engine
    /// does not end by itself).
    pub fn join(mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
