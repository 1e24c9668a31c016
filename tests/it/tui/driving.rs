//! The loop between a surface, an input and an engine, with all three made up.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crossterm::event::{Event as TerminalEvent, KeyCode, KeyEvent, KeyModifiers};
use escarp::compare::{News, To};
use escarp::engine::{Command, Subject};
use escarp::event::{Body, Event, Gate, LaneId, RequestId, Stamp};
use escarp::tui::cadence::Cadence;
use escarp::tui::input::EventSource;
use escarp::tui::log::LogRing;
use escarp::tui::{App, ExitReason, OpenLanes, Signals, Source, Surface, model_of};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use tokio::sync::mpsc;

/// What the loop did to the surface.
#[derive(Default)]
struct Seen {
    frames: Vec<(Instant, String)>,
    calls: Vec<&'static str>,
}

#[derive(Clone, Default)]
struct Fake(Rc<RefCell<Seen>>);

impl Fake {
    fn frames(&self) -> usize {
        self.0.borrow().frames.len()
    }

    fn last(&self) -> String {
        self.0.borrow().frames.last().map(|(_, text)| text.clone()).unwrap_or_default()
    }

    fn call(&self, name: &'static str) -> io::Result<()> {
        self.0.borrow_mut().calls.push(name);
        Ok(())
    }
}

impl Surface for Fake {
    fn draw(&mut self, render: &mut dyn FnMut(&mut Buffer)) -> io::Result<()> {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 120, 40));
        render(&mut buffer);
        self.0.borrow_mut().frames.push((Instant::now(), super::rows(&buffer).join("\n")));
        Ok(())
    }

    fn capture_mouse(&mut self, on: bool) -> io::Result<()> {
        self.call(if on { "mouse on" } else { "mouse off" })
    }

    fn redraw(&mut self) -> io::Result<()> {
        self.call("redraw")
    }

    fn suspend(&mut self) -> io::Result<()> {
        self.call("suspend")
    }

    fn resume(&mut self) -> io::Result<()> {
        self.call("resume")
    }
}

struct Keys {
    receiver: mpsc::UnboundedReceiver<char>,
    surface: Fake,
}

impl EventSource for Keys {
    async fn next(&mut self) -> Option<io::Result<TerminalEvent>> {
        let key = self.receiver.recv().await?;
        let (code, modifiers) = match key {
            '\x1a' => (KeyCode::Char('z'), KeyModifiers::CONTROL),
            c => (KeyCode::Char(c), KeyModifiers::NONE),
        };
        Some(Ok(TerminalEvent::Key(KeyEvent::new(code, modifiers))))
    }

    fn pause(&mut self) {
        self.surface.0.borrow_mut().calls.push("input paused");
    }
}

/// A running loop: its keys, its engine and what it draws.
struct Running {
    keys: mpsc::UnboundedSender<char>,
    engine: mpsc::Sender<Event>,
    commands: mpsc::UnboundedReceiver<Command>,
    /// What lanes tell once they are opened, and what they are told.
    lanes: mpsc::UnboundedSender<News>,
    lane_commands: mpsc::UnboundedReceiver<(To, Command)>,
    surface: Fake,
}

impl Running {
    async fn until(&self, what: &str, seen: impl Fn(&Running) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !seen(self) {
            assert!(Instant::now() < deadline, "{what} did not come:\n{}", self.surface.last());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Runs `script` beside a loop; the script must make it end.
fn with_loop<F: Future<Output = ()> + 'static>(script: impl FnOnce(Running) -> F) -> ExitReason {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let surface = Fake::default();
        let (keys, receiver) = mpsc::unbounded_channel();
        let (engine, events) = mpsc::channel(1 << 14);
        let (sent, commands) = mpsc::unbounded_channel();
        let (_report, panics) = mpsc::unbounded_channel();
        let app = App {
            screen: surface.clone(),
            input: Keys { receiver, surface: surface.clone() },
            theme: super::ANSI,
            cadence: Cadence::new(60),
            panics,
            provoke: None,
        };
        let send = Box::new(move |command| sent.send(command).is_ok());
        let (lanes, news) = mpsc::unbounded_channel();
        let (sent_to_lanes, lane_commands) = mpsc::unbounded_channel();
        let mut news = Some(news);
        let compare: OpenLanes<'_> = Box::new(move || {
            let news = news.take().ok_or("they were opened before")?;
            let sent = sent_to_lanes.clone();
            let send = Box::new(move |to, command| sent.send((to, command)).is_ok());
            Ok((vec!["dense".to_owned(), "sparse".to_owned()], send, news))
        });
        let source = Source::Live { send, events, compare: Some(compare) };
        let (model, link) = model_of(source, LogRing::default());
        let running = Running { keys, engine, commands, lanes, lane_commands, surface };
        let script = tokio::task::spawn_local(script(running));
        let reason = app.drive(model, link, Signals::listen().unwrap()).await.unwrap();
        script.await.unwrap();
        reason
    })
}

fn token(seq: u64, text: &str) -> Event {
    let body = Body::Token { token: 1, text: text.to_owned(), index: seq, margin: None };
    Event { seq, at: Stamp(seq), lane: Some(LaneId(0)), request: Some(RequestId(1)), body }
}

#[test]
fn nothing_is_drawn_when_nothing_happens() {
    let reason = with_loop(|run| async move {
        run.until("the first frame", |r| r.surface.frames() == 1).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(run.surface.frames(), 1);
        run.keys.send('q').unwrap();
    });
    assert_eq!(reason, ExitReason::Quit);
}

#[test]
fn a_burst_of_events_is_few_frames_and_its_last_token_is_shown() {
    with_loop(|run| async move {
        let started = Instant::now();
        for seq in 0..100_000 {
            run.engine.send(token(seq, "word\n")).await.unwrap();
        }
        run.engine.send(token(100_000, "the last one")).await.unwrap();
        run.until("the last token", |r| r.surface.last().contains("the last one")).await;
        let allowed = started.elapsed().as_millis() as usize / 33 + 3;
        assert!(run.surface.frames() <= allowed, "{} frames, {allowed} allowed", run.surface.frames());
        run.keys.send('q').unwrap();
        // The request of the tokens still runs, so quitting asks.
        run.keys.send('y').unwrap();
    });
}

#[test]
fn a_key_is_answered_while_events_pour_in() {
    with_loop(|run| async move {
        for seq in 0..10_000 {
            run.engine.send(token(seq, "word\n")).await.unwrap();
        }
        run.keys.send('?').unwrap();
        let frames = run.surface.frames();
        run.until("the help", |r| r.surface.last().contains("run the next turn, then stop")).await;
        assert!(run.surface.frames() <= frames + 2, "the answer is in one of the next two frames");
        run.keys.send('q').unwrap();
        run.keys.send('q').unwrap();
        run.keys.send('y').unwrap();
    });
}

#[test]
fn suspending_lets_go_of_the_input_first() {
    with_loop(|run| async move {
        run.keys.send('\x1a').unwrap();
        run.keys.send('m').unwrap();
        run.until("the mouse", |r| r.surface.0.borrow().calls.contains(&"mouse on")).await;
        assert_eq!(run.surface.0.borrow().calls, ["input paused", "suspend", "mouse on"]);
        run.keys.send('q').unwrap();
    });
}

#[test]
fn commands_reach_the_engine_and_its_end_is_shown() {
    with_loop(|mut run| async move {
        for event in super::sample::session().events() {
            run.engine.send(event).await.unwrap();
        }
        run.until("the session", |r| r.surface.last().contains("BEFORE TURN 9 of 12")).await;
        run.keys.send('n').unwrap();
        assert_eq!(run.commands.recv().await, Some(Command::StepTurn { lane: LaneId(0) }));
        let gate = Body::GateChanged { gate: Gate::Ended, next_turn: None, turns: 12 };
        run.engine.send(Event { body: gate, request: None, ..token(10_000, "") }).await.unwrap();
        run.until("the end of the session", |r| r.surface.last().contains("END OF SESSION")).await;
        run.engine = mpsc::channel(1).0;
        run.until("the end of the engine", |r| r.surface.last().contains("ENGINE ENDED")).await;
        run.keys.send('q').unwrap();
    });
}

#[test]
fn a_pause_in_typing_asks_once_what_the_whole_text_would_cost() {
    with_loop(|mut run| async move {
        for event in super::sample::session().events() {
            run.engine.send(event).await.unwrap();
        }
        run.until("the session", |r| r.surface.last().contains("BEFORE TURN 9 of 12")).await;
        for key in "iabc".chars() {
            run.keys.send(key).unwrap();
        }
        let Some(Command::Preview { ticket: 1, subject: Subject::Injection(messages), .. }) =
            run.commands.recv().await
        else {
            panic!("the cost is asked for")
        };
        assert_eq!(messages[0].content, "abc", "once, after the last key");
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(run.commands.try_recv().is_err(), "nothing more is asked while nothing is typed");
        drop(run);
    });
}

#[test]
fn a_comparison_is_opened_once_and_both_go_on_being_told_out_of_sight() {
    with_loop(|mut run| async move {
        for event in super::sample::session().events() {
            run.engine.send(event).await.unwrap();
        }
        run.until("the session", |r| r.surface.last().contains("BEFORE TURN 9 of 12")).await;
        run.keys.send('c').unwrap();
        run.until("the lanes", |r| r.surface.last().contains("9 compare")).await;
        for (lane, event) in [0, 1]
            .into_iter()
            .flat_map(|lane| super::sample::session().events().into_iter().map(move |event| (lane, event)))
        {
            run.lanes.send(News::Event { lane, event }).unwrap();
        }
        run.lanes.send(News::Gate(Gate::BeforeTurn)).unwrap();
        run.until("their turns", |r| r.surface.last().contains("verdict: sparse ends level")).await;
        run.keys.send('n').unwrap();
        assert_eq!(run.lane_commands.recv().await, Some((To::All, Command::StepTurn { lane: LaneId(0) })));
        assert!(run.commands.try_recv().is_err(), "the run beside them is told nothing");
        run.engine.send(token(10_000, "")).await.unwrap();
        let gate = Body::GateChanged { gate: Gate::Ended, next_turn: None, turns: 12 };
        run.engine.send(Event { body: gate, request: None, ..token(10_001, "") }).await.unwrap();
        run.keys.send('c').unwrap();
        run.until("the run", |r| r.surface.last().contains("back at the run")).await;
        run.until("its end", |r| r.surface.last().contains("END OF SESSION")).await;
        run.keys.send('c').unwrap();
        run.until("the lanes again", |r| r.surface.last().contains("verdict: sparse ends level")).await;
        run.keys.send('q').unwrap();
    });
}

#[test]
fn a_closed_input_ends_the_loop() {
    let reason = with_loop(|run| async move {
        run.until("the first frame", |r| r.surface.frames() == 1).await;
        drop(run);
    });
    assert_eq!(reason, ExitReason::Quit);
}
