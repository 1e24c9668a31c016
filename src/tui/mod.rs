//! The terminal interface.
//!
//! It sees events and sends commands, nothing else: `events → ledger → view`, and `key → action → command`. [`app`]
//! holds the model and `update`, [`view`] draws it, [`action`] is the table that keys, help, palette and README come from,
//! [`terminal`] owns the terminal's modes, [`cadence`] decides when to draw. Everything but `terminal` and the loop in this
//! file is pure, and tested without a terminal.

pub mod action;
pub mod app;
pub mod ask;
pub mod cadence;
pub mod editor;
pub mod explorer;
mod faults;
pub mod input;
pub mod line;
pub mod log;
mod memory;
mod overlay;
pub mod panes;
pub mod preview;
mod recovery;
pub mod runs;
pub mod scrub;
mod sections;
mod sparse;
mod speculation;
mod status;
pub mod svg;
pub mod terminal;
pub mod text;
pub mod theme;
mod tier;
pub mod view;
mod watch;

use std::io;
use std::path::PathBuf;

use crossterm::event::Event as TerminalEvent;
use ratatui::buffer::Buffer;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::compare::{News, To};
use crate::config::UiConfig;
use crate::engine::Command;
use crate::event::Event;
use app::{Effect, Model, Msg, Pane, update};
use cadence::{Cadence, Draw};
use input::{EventSource, TerminalEvents};
use log::LogRing;
use panes::transcript::WrapCache;
use terminal::Screen;
use theme::Theme;

/// Events taken from the engine at a time.
const BATCH: usize = 4_096;
/// How long nothing must be typed before the engine is asked what the text would cost.
const TYPING_PAUSE: std::time::Duration = std::time::Duration::from_millis(200);

/// How the interface is set up.
#[derive(Debug, Clone, Default)]
pub struct TuiOptions {
    /// Theme, glyphs, frame rate, mouse.
    pub ui: UiConfig,
    /// The ring the log pane shows; fill it through [`log::RingLayer`].
    pub log: LogRing,
    /// Where standard error goes while the interface owns the terminal; nowhere if `None`.
    pub log_file: Option<PathBuf>,
    /// A failure to provoke right after the first frame: how the ways out are tested.
    pub provoke: Option<Provoke>,
}

/// A failure on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Provoke {
    /// A panic on the interface's thread.
    UiPanic,
    /// A panic on another thread.
    WorkerPanic,
    /// `abort()`, as a C++ library does it.
    Abort,
    /// An error return.
    Error,
}

/// Sends a command; `false` when who is to obey has ended.
pub type Send<'a> = Box<dyn FnMut(Command) -> bool + 'a>;

/// Sends a command to every lane or to one; `false` when all have ended.
pub type SendTo<'a> = Box<dyn FnMut(To, Command) -> bool + 'a>;

/// Starts the lanes of a comparison: their names, the way to them, and what they tell. Otherwise why it cannot be done.
pub type OpenLanes<'a> =
    Box<dyn FnMut() -> Result<(Vec<String>, SendTo<'a>, mpsc::UnboundedReceiver<News>), String> + 'a>;

/// What the interface shows.
pub enum Source<'a> {
    /// A running engine.
    Live {
        /// Sends a command; `false` when the engine has ended.
        send: Send<'a>,
        /// Its events.
        events: mpsc::Receiver<Event>,
        /// Starts a comparison of the same session, where there can be one.
        compare: Option<OpenLanes<'a>>,
    },
    /// Lanes that are compared: an engine each, stepped together.
    Lanes {
        /// Their names, by their places.
        names: Vec<String>,
        /// Sends a command to all of them or to one; `false` when all have ended.
        send: SendTo<'a>,
        /// What they tell.
        news: mpsc::UnboundedReceiver<News>,
    },
    /// A recorded run.
    Recording {
        /// All its events.
        events: Vec<Event>,
    },
}

/// Why the interface was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitReason {
    /// The researcher quit.
    Quit,
    /// A signal asked for it; the process should exit with 128 plus its number.
    Signal(i32),
}

/// Why the interface could not run, or not go on.
#[derive(Debug, thiserror::Error)]
pub enum TuiError {
    /// There is no terminal to run on.
    #[error("the interface needs a terminal: {0}; `escarp replay` does the same work without one")]
    NoTerminal(&'static str),
    /// The log file cannot be written.
    #[error("{path}: {source}; name a log file in a folder that can be written")]
    LogFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Reading from or writing to the terminal failed.
    #[error("terminal: {0}")]
    Terminal(#[from] io::Error),
    /// The error that [`Provoke::Error`] asks for.
    #[error("an error provoked on purpose")]
    Provoked,
}

/// Something frames can be drawn on.
pub trait Surface {
    /// Draws one frame: `render` fills the buffer.
    fn draw(&mut self, render: &mut dyn FnMut(&mut Buffer)) -> io::Result<()>;
    /// Captures the mouse, or stops doing so.
    fn capture_mouse(&mut self, on: bool) -> io::Result<()>;
    /// Draws the next frame in full.
    fn redraw(&mut self) -> io::Result<()>;
    /// Gives the terminal back, stops the process, and takes the terminal again when it is continued.
    fn suspend(&mut self) -> io::Result<()>;
    /// Takes the terminal again after somebody else had it.
    fn resume(&mut self) -> io::Result<()>;
}

/// Runs the interface on the terminal until it is left. Must be called on the thread that is to own the terminal.
pub fn run(options: TuiOptions, source: Source<'_>) -> Result<ExitReason, TuiError> {
    let lookup = |name: &str| std::env::var(name).ok();
    if let Some(obstacle) = terminal::obstacle(lookup("TERM").as_deref()) {
        return Err(TuiError::NoTerminal(obstacle));
    }
    if let Some(path) = &options.log_file
        && let Err(source) = std::fs::OpenOptions::new().create(true).append(true).open(path)
    {
        return Err(TuiError::LogFile { path: path.clone(), source });
    }
    let theme = Theme::from_environment(options.ui.theme, options.ui.ascii, lookup);
    let cadence = Cadence::new(options.ui.max_fps);
    let cadence = if lookup("SSH_CONNECTION").is_some() { cadence.over_a_slow_line() } else { cadence };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let signals = Signals::listen()?;
        let (report, panics) = mpsc::unbounded_channel();
        let screen = Screen::enter(options.log_file.as_deref(), options.ui.mouse, report)?;
        let app = App {
            screen,
            input: TerminalEvents::default(),
            theme,
            cadence,
            panics,
            provoke: options.provoke,
        };
        let (mut model, link) = model_of(source, options.log);
        model.ui.mouse = options.ui.mouse;
        app.drive(model, link, signals).await
    })
}

/// What engines tell.
enum Inbox {
    /// A single one.
    Run(mpsc::Receiver<Event>),
    /// Those of a comparison.
    Lanes(mpsc::UnboundedReceiver<News>),
}

/// The way to and from an engine, or several.
pub struct Link<'a> {
    send: SendTo<'a>,
    inbox: Inbox,
    compare: Option<OpenLanes<'a>>,
}

impl Link<'_> {
    /// Takes what was told since, at least something; nothing when all has ended.
    async fn receive(&mut self) -> Vec<News> {
        match &mut self.inbox {
            Inbox::Run(events) => {
                let mut batch = Vec::new();
                events.recv_many(&mut batch, BATCH).await;
                batch.into_iter().map(|event| News::Event { lane: 0, event }).collect()
            }
            Inbox::Lanes(news) => {
                let mut batch = Vec::new();
                news.recv_many(&mut batch, BATCH).await;
                batch
            }
        }
    }
}

/// The model that shows `source`, and the link to its engine, if it has one.
pub fn model_of(source: Source<'_>, log: LogRing) -> (Model, Option<Link<'_>>) {
    match source {
        Source::Live { mut send, events, compare } => {
            let send = Box::new(move |_, command| send(command));
            let mut model = Model::live(Vec::new(), log);
            model.can_compare = compare.is_some();
            (model, Some(Link { send, inbox: Inbox::Run(events), compare }))
        }
        Source::Lanes { names, send, news } => {
            let link = Link { send, inbox: Inbox::Lanes(news), compare: None };
            (Model::live(names, log), Some(link))
        }
        Source::Recording { events } => (Model::recording(events, log), None),
    }
}

/// A model and the link that feeds it. Of two, a run and the comparison that was opened from it, one is in sight.
struct Desk<'a> {
    model: Model,
    link: Option<Link<'a>>,
}

impl<'a> Desk<'a> {
    async fn receive(&mut self) -> Vec<News> {
        match &mut self.link {
            Some(link) => link.receive().await,
            None => std::future::pending().await,
        }
    }

    /// Folds in what was received: nothing means the end.
    fn take(&mut self, news: Vec<News>) -> Vec<Effect> {
        if news.is_empty() {
            self.link = None;
            update(&mut self.model, Msg::SourceClosed)
        } else {
            update(&mut self.model, Msg::News(news))
        }
    }

    fn send(&mut self, to: To, command: Command) {
        let sent = self.link.as_mut().is_some_and(|link| (link.send)(to, command));
        if !sent {
            update(&mut self.model, Msg::SourceClosed);
        }
    }

    /// The desk of a comparison of the same session.
    fn open_lanes(&mut self) -> Result<Desk<'a>, String> {
        let open = self.link.as_mut().and_then(|link| link.compare.as_mut());
        let open = open.ok_or("the engine has ended")?;
        let (names, send, news) = open()?;
        let mut model = Model::live(names, self.model.log.clone());
        model.ui.mouse = self.model.ui.mouse;
        model.beside = true;
        Ok(Desk { model, link: Some(Link { send, inbox: Inbox::Lanes(news), compare: None }) })
    }
}

/// The signals the loop itself answers.
pub struct Signals {
    terminate: Signal,
    hang_up: Signal,
    interrupt: Signal,
    stop: Signal,
    go_on: Signal,
}

/// What a signal asks for.
enum Asked {
    Leave(i32),
    Suspend,
    Resume,
}

impl Signals {
    /// Starts listening. Needs a running tokio runtime with input and output enabled.
    pub fn listen() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            stop: signal(SignalKind::from_raw(libc::SIGTSTP))?,
            go_on: signal(SignalKind::from_raw(libc::SIGCONT))?,
        })
    }

    async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.terminate.recv() => Asked::Leave(libc::SIGTERM),
            _ = self.hang_up.recv() => Asked::Leave(libc::SIGHUP),
            _ = self.interrupt.recv() => Asked::Leave(libc::SIGINT),
            _ = self.stop.recv() => Asked::Suspend,
            _ = self.go_on.recv() => Asked::Resume,
        }
    }
}

/// The loop between a surface, an input and an engine.
pub struct App<S, I> {
    /// Where frames go.
    pub screen: S,
    /// Where keys come from.
    pub input: I,
    /// What it looks like.
    pub theme: Theme,
    /// When to draw.
    pub cadence: Cadence,
    /// Panics of other threads.
    pub panics: mpsc::UnboundedReceiver<String>,
    /// A failure to provoke after the first frame.
    pub provoke: Option<Provoke>,
}

impl<S: Surface, I: EventSource> App<S, I> {
    /// Runs until the researcher or a signal leaves. Everything waiting is folded in before a frame is drawn; when nothing
    /// waits and nothing changed, nothing wakes it.
    pub async fn drive(
        mut self,
        model: Model,
        link: Option<Link<'_>>,
        mut signals: Signals,
    ) -> Result<ExitReason, TuiError> {
        let mut desk = Desk { model, link };
        let mut other: Option<Desk<'_>> = None;
        let mut wrapped = WrapCache::default();
        let mut pause_ends = None;
        loop {
            let due = match self.cadence.decide(Instant::now().into_std()) {
                Draw::Now => {
                    self.draw(&mut desk.model, &mut wrapped)?;
                    self.provoke()?;
                    continue;
                }
                Draw::At(due) => Some(due),
                Draw::Never => None,
            };
            let log = desk.model.log.clone();
            let ui = &desk.model.ui;
            let log_is_visible = ui.focus == Pane::Log || ui.lower_pane() == Pane::Log;
            let effects = tokio::select! {
                biased;
                asked = signals.next() => match asked {
                    Asked::Leave(signal) => return Ok(ExitReason::Signal(signal)),
                    Asked::Suspend => vec![Effect::Suspend],
                    Asked::Resume => {
                        self.screen.resume()?;
                        self.cadence.input();
                        Vec::new()
                    }
                },
                event = self.input.next() => {
                    let Some(event) = event else { return Ok(ExitReason::Quit) };
                    self.on_terminal_event(&mut desk.model, event?)
                }
                news = desk.receive() => {
                    self.cadence.facts();
                    desk.take(news)
                }
                // What is out of sight goes on being folded; it asks for nothing.
                news = receive_of(&mut other) => {
                    if let Some(other) = &mut other {
                        other.take(news);
                    }
                    Vec::new()
                }
                Some(panic) = self.panics.recv() => {
                    self.cadence.facts();
                    update(&mut desk.model, Msg::WorkerPanic(panic))
                }
                () = log.written(), if log_is_visible => {
                    self.cadence.facts();
                    Vec::new()
                }
                () = until(pause_ends) => {
                    pause_ends = None;
                    update(&mut desk.model, Msg::TypingPaused)
                }
                () = until(due) => Vec::new(),
            };
            for effect in effects {
                match effect {
                    Effect::AwaitTypingPause => pause_ends = Some(Instant::now().into_std() + TYPING_PAUSE),
                    Effect::Compare => {
                        switch_desks(&mut desk, &mut other);
                        // Texts are kept by the numbers of requests, which both desks have.
                        wrapped = WrapCache::default();
                    }
                    effect => {
                        if let Some(reason) = self.perform(&mut desk, effect)? {
                            return Ok(reason);
                        }
                    }
                }
            }
        }
    }

    fn draw(&mut self, model: &mut Model, wrapped: &mut WrapCache) -> io::Result<()> {
        let mut layout = None;
        let theme = self.theme;
        self.screen.draw(&mut |buffer| layout = Some(view::view(model, theme, wrapped, buffer)))?;
        model.ui.layout = layout.unwrap_or_default();
        self.cadence.drawn(Instant::now().into_std());
        Ok(())
    }

    fn on_terminal_event(&mut self, model: &mut Model, event: TerminalEvent) -> Vec<Effect> {
        self.cadence.input();
        match event {
            TerminalEvent::Key(key) => update(model, Msg::Key(key)),
            TerminalEvent::Paste(text) => update(model, Msg::Paste(text)),
            TerminalEvent::Mouse(mouse) => update(model, Msg::Mouse(mouse)),
            TerminalEvent::Resize(..) | TerminalEvent::FocusGained | TerminalEvent::FocusLost => Vec::new(),
        }
    }

    fn perform(&mut self, desk: &mut Desk<'_>, effect: Effect) -> Result<Option<ExitReason>, TuiError> {
        match effect {
            Effect::Quit => return Ok(Some(ExitReason::Quit)),
            Effect::Send(command) => desk.send(To::All, command),
            Effect::SendTo(place, command) => desk.send(To::One(place), command),
            // The loop's own.
            Effect::AwaitTypingPause | Effect::Compare => {}
            Effect::Mouse(on) => self.screen.capture_mouse(on)?,
            Effect::Redraw => self.screen.redraw()?,
            Effect::Suspend => {
                self.input.pause();
                self.screen.suspend()?;
                self.cadence.input();
            }
        }
        Ok(None)
    }

    fn provoke(&mut self) -> Result<(), TuiError> {
        match self.provoke.take() {
            None => Ok(()),
            Some(Provoke::Error) => Err(TuiError::Provoked),
            Some(Provoke::UiPanic) => panic!("a panic provoked on purpose"),
            Some(Provoke::Abort) => std::process::abort(),
            Some(Provoke::WorkerPanic) => {
                let worker = std::thread::Builder::new().name("provoked".to_owned());
                worker.spawn(|| panic!("a panic provoked on purpose"))?;
                Ok(())
            }
        }
    }
}

/// Brings the other desk into sight; the first time, opens it. What is left pauses, so that no two compute at once.
fn switch_desks<'a>(desk: &mut Desk<'a>, other: &mut Option<Desk<'a>>) {
    if other.is_none() {
        match desk.open_lanes() {
            Ok(opened) => *other = Some(opened),
            Err(why) => {
                desk.model.warn(format!("no comparison: {why}"));
                return;
            }
        }
    }
    let Some(other) = other else { return };
    if desk.model.running().is_some() {
        desk.send(To::All, Command::Pause);
    }
    std::mem::swap(desk, other);
    desk.model.arrive();
}

async fn receive_of(desk: &mut Option<Desk<'_>>) -> Vec<News> {
    match desk {
        Some(desk) => desk.receive().await,
        None => std::future::pending().await,
    }
}

async fn until(due: Option<std::time::Instant>) {
    match due {
        Some(due) => sleep_until(Instant::from_std(due)).await,
        None => std::future::pending().await,
    }
}
