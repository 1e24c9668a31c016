//! Starting an engine on a session, with or without a recording beside it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Failure;
use crate::compare::{LaneSetup, Lockstep, News};
use crate::config::Config;
use crate::engine::{Command, Engine, Setup};
use crate::event::Fanout;
use crate::event::record::Recorder;
use crate::model;
use crate::recovery::neighbours::Neighbours;
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
        let setup = Setup {
            neighbours: Neighbours::open(&config.recovery),
            config,
            session: Arc::new(session),
            load,
            sink: Box::new(sink),
        };
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

/// Lanes under way.
pub(super) struct LaneRuns {
    pub(super) lockstep: Lockstep,
    recorders: Vec<Recorder>,
}

impl LaneRuns {
    /// Starts an engine a lane on `session`. With `record`, each lane is recorded to a file of its own beside it. `first` is the lane that
    /// computes first in the first turn.
    pub(super) fn start(
        lanes: Vec<(String, Config)>,
        session: &Arc<Session>,
        record: Option<&Path>,
        first: usize,
        sink: impl FnMut(News) + Send + 'static,
    ) -> Result<LaneRuns, Failure> {
        let mut recorders = Vec::new();
        let mut setups = Vec::new();
        for (name, config) in lanes {
            let recording = record.map(|path| Recorder::create(&lane_file(path, &name))).transpose()?;
            let sink = match recording {
                Some((recording, recorder)) => {
                    recorders.push(recorder);
                    Fanout::new().with(recording)
                }
                None => Fanout::new(),
            };
            let for_load = config.clone();
            let load = Box::new(move || model::load(&for_load));
            let setup = Setup {
                neighbours: Neighbours::open(&config.recovery),
                config,
                session: Arc::clone(session),
                load,
                sink: Box::new(sink),
            };
            setups.push(LaneSetup { name, setup });
        }
        let lockstep = Lockstep::start(setups, first, sink).map_err(Failure::run)?;
        Ok(LaneRuns { lockstep, recorders })
    }

    /// Ends the engines and the recordings, which are only kept if all lanes have `started`.
    pub(super) fn finish(self, started: bool) -> Result<(), Failure> {
        self.lockstep.finish();
        for recorder in self.recorders {
            if started {
                recorder.finish()?;
            } else {
                recorder.abandon();
            }
        }
        Ok(())
    }
}

/// `run.jsonl` with the lane's name before the extension: `run.sparse.jsonl`.
fn lane_file(path: &Path, lane: &str) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(".");
    name.push(lane);
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_recorded_under_its_name() {
        let name = |path: &str| lane_file(Path::new(path), "sparse");
        assert_eq!(name("a/run.jsonl"), Path::new("a/run.sparse.jsonl"));
        assert_eq!(name("run"), Path::new("run.sparse"));
    }
}
