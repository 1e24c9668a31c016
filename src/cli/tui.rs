//! `tui`: the interface, on a running engine or on a recording.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, mpsc};

use clap::ValueHint;
use tokio::sync::mpsc::unbounded_channel;

use super::launch::{LaneRuns, Run};
use super::options::ReplayOptions;
use super::progress::Progress;
use super::{Example, Failure, examples, logging};
use crate::compare::{LaneSpec, News};
use crate::config::{Config, UiConfig};
use crate::engine::Command;
use crate::event::{Body, ChannelSink, Event, Fanout, record};
use crate::session::Session;
use crate::tui::log::{LogRing, RingLayer};
use crate::tui::{self, ExitReason, OpenLanes, Provoke, SendTo, Source, TuiError, TuiOptions, terminal};

pub(super) const EXAMPLES: &[Example] = &[
    ("escarp tui --device sim --session steady", "no model file needed"),
    ("escarp tui --model SmolLM2.gguf --session tools-change", "a session whose tool list changes"),
    ("escarp tui --recording run.jsonl", "open a recorded run in the same panes"),
    ("escarp tui --recording trace-b", "the published trace of a cache cliff"),
];

/// Events the interface may be behind before some are lost, which it then shows. Several frames' worth at full speed.
const BACKLOG: usize = 1 << 14;

/// Options of `tui`.
#[derive(Debug, clap::Args)]
#[command(after_help = examples(EXAMPLES))]
pub(super) struct Options {
    /// Open a recording (file, or bundled name) instead of running an engine
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["record", "model", "device", "cache_dir", "breakpoints", "clock", "mode", "idle", "max_output_tokens"])]
    recording: Option<PathBuf>,
    #[command(flatten)]
    replay: ReplayOptions,
    /// Fail on purpose after the first frame, to test the ways out
    #[arg(long, hide = true)]
    provoke: Option<Provoke>,
}

pub(super) fn run(options: &Options) -> Result<(), Failure> {
    // Found out before a model is loaded for nothing.
    if let Some(obstacle) = terminal::obstacle(std::env::var("TERM").ok().as_deref()) {
        return Err(TuiError::NoTerminal(obstacle).into());
    }
    let (layer, log) = RingLayer::new();
    logging::start(options.replay.model.log.as_deref(), Some(Box::new(layer)))?;
    match &options.recording {
        Some(path) => {
            let ui = options.replay.model.settings()?.ui;
            let events = record::open(path)?;
            options.show(ui, log, Source::Recording { events })
        }
        None => options.run_live(log),
    }
}

impl Options {
    fn run_live(&self, log: LogRing) -> Result<(), Failure> {
        let (session, config) = self.replay.open()?;
        let others = self.replay.open_others(&config)?;
        let ui = config.ui.clone();
        let (_, configs) = self.replay.open_lanes(&[LaneSpec::dense(), LaneSpec::sparse()])?;
        let beside = Beside { configs, session: Arc::new(session.clone()), lanes: Rc::default() };
        let (channel, events) = ChannelSink::bounded(BACKLOG);
        let (sender, news) = mpsc::channel();
        // The main thread listens before the interface runs, and looks again after it.
        let sink = Fanout::new().with(channel).with(move |event: &Event| match &event.body {
            Body::RunStarted(_) => drop(sender.send(Ok(()))),
            Body::EngineFailed { message } => drop(sender.send(Err(message.clone()))),
            _ => {}
        });
        let run = Run::start(config, session, self.replay.record.as_deref(), sink)?;
        // A model that cannot be loaded is reported like any other bad input, not on a screen that then goes away.
        if let Err(message) = await_start(&news) {
            run.finish(false)?;
            return Err(Failure::Input(message));
        }
        let conditions = self.replay.breakpoints.clone();
        if !conditions.is_empty() {
            run.engine.send(Command::Break { conditions });
        }
        for session in others {
            run.engine.send(Command::Open { session: Arc::new(session) });
        }
        let send = Box::new(|command| run.engine.send(command));
        let compare = Some(beside.opener());
        let shown = self.show(ui, log, Source::Live { send, events, compare });
        beside.finish()?;
        run.finish(true)?;
        shown?;
        match news.try_iter().find_map(Result::err) {
            Some(message) => Err(Failure::Run(message)),
            None => Ok(()),
        }
    }

    fn show(&self, ui: UiConfig, log: LogRing, source: Source<'_>) -> Result<(), Failure> {
        let log_file = self.replay.model.log.clone();
        let options = TuiOptions { ui, log, log_file, provoke: self.provoke };
        match tui::run(options, source)? {
            ExitReason::Quit => Ok(()),
            ExitReason::Signal(number) => Err(Failure::Signal(number)),
        }
    }
}

/// A comparison of the session that a run is of, once it was asked for.
struct Beside {
    /// The lanes' names and configurations.
    configs: Vec<(String, Config)>,
    session: Arc<Session>,
    lanes: Rc<RefCell<Option<Rc<LaneRuns>>>>,
}

impl Beside {
    /// Starts the session in two lanes, dense and sparse, each with an engine of its own.
    fn opener<'a>(&self) -> OpenLanes<'a> {
        let (configs, session, kept) =
            (self.configs.clone(), Arc::clone(&self.session), Rc::clone(&self.lanes));
        Box::new(move || {
            let (sender, news) = unbounded_channel();
            // The interface may be gone, and then nobody misses what is told.
            let sink = move |told: News| drop(sender.send(told));
            let lanes = LaneRuns::start(configs.clone(), &session, None, 0, sink);
            let lanes = Rc::new(lanes.map_err(|failure| match failure {
                Failure::Input(message) | Failure::Run(message) => message,
                Failure::OutputClosed | Failure::Signal(_) => "interrupted".to_owned(),
            })?);
            *kept.borrow_mut() = Some(Rc::clone(&lanes));
            let names = lanes.lockstep.names().to_vec();
            Ok((names, Box::new(move |to, command| lanes.lockstep.tell(to, command)) as SendTo<'a>, news))
        })
    }

    /// Ends the lanes, and waits for them: their caches are closed in order.
    fn finish(self) -> Result<(), Failure> {
        let lanes = self.lanes.borrow_mut().take().and_then(Rc::into_inner);
        lanes.map_or(Ok(()), |lanes| lanes.finish(true))
    }
}

/// Waits until the engine is ready, or cannot be.
fn await_start(news: &mpsc::Receiver<Result<(), String>>) -> Result<(), String> {
    let mut progress = Progress::new();
    loop {
        match news.recv_timeout(Progress::PACE) {
            Ok(started) => return started,
            Err(mpsc::RecvTimeoutError::Timeout) => progress.show(|| "loading the model".to_owned()),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err("the engine ended before it was ready".to_owned());
            }
        }
    }
}
