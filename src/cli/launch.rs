//! Starting an engine on a session, with or without a recording beside it.

use std::path::Path;
use std::sync::Arc;

use super::Failure;
use crate::config::Config;
use crate::engine::{Command, Engine, Setup};
use crate::event::Fanout;
use crate::event::record::Recorder;
use crate::model;
use crate::session::Session;

/// An engine under way.
pub(super) struct Run {
    pub(super) engine: Engine,
    recorder: Option<Recorder>,
}

impl Run {
    /// Starts the engine. A path that cannot be recorded to is found out before.
    pub(super) fn start(
        config: Config,
        session: Session,
        record: Option<&Path>,
        sink: Fanout,
    ) -> Result<Run, Failure> {
        let (sink, recorder) = match record.map(Recorder::create).transpose()? {
            Some((recording, recorder)) => (sink.with(recording), Some(recorder)),
            None => (sink, None),
        };
        let for_load = config.clone();
        let load = Box::new(move || model::load(&for_load));
        let setup = Setup { config, session: Arc::new(session), load, sink: Box::new(sink) };
        let engine = Engine::start(setup).map_err(Failure::run)?;
        Ok(Run { engine, recorder })
    }

    /// Ends the engine and the recording, which is only kept if the run has `started`.
    pub(super) fn finish(self, started: bool) -> Result<(), Failure> {
        self.engine.send(Command::Shutdown);
        self.engine.join();
        match self.recorder {
            Some(recorder) if started => Ok(recorder.finish()?),
            Some(recorder) => {
                recorder.abandon();
                Ok(())
            }
            None => Ok(()),
        }
    }
}
