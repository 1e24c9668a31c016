//! The interface on a real pseudo-terminal. Everything waits for what it expects to see, with a deadline; nothing sleeps for a
//! fixed time. The terminal here never answers a query, so an interface that asks one hangs and fails.

use std::io::{Read, Write};
use std::os::fd::RawFd;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, SlavePty, native_pty_system};

/// How long anything may take to show up on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// What came out of the program so far.
struct Output {
    screen: vt100::Parser,
    bytes: Vec<u8>,
    last: Instant,
}

/// A program on a pseudo-terminal.
struct Session {
    child: Box<dyn Child + Send + Sync>,
    master: Box<dyn MasterPty + Send>,
    /// Kept open, so that the terminal's modes can still be read after the program has gone.
    _slave: Box<dyn SlavePty + Send>,
    keys: Box<dyn Write + Send>,
    output: Arc<(Mutex<Output>, Condvar)>,
    modes_before: (libc::tcflag_t, libc::tcflag_t),
}

fn size(columns: u16, rows: u16) -> PtySize {
    PtySize { rows, cols: columns, pixel_width: 0, pixel_height: 0 }
}

impl Session {
    /// The interface on the sim device with the `quick` session.
    fn start(arguments: &[&str]) -> Session {
        Session::start_with(arguments, &[])
    }

    fn start_with(arguments: &[&str], environment: &[(&str, &str)]) -> Session {
        let mut all = vec!["tui", "--device", "sim", "--session", "quick"];
        all.extend(arguments);
        Session::start_plain(&all, environment)
    }

    fn start_plain(arguments: &[&str], environment: &[(&str, &str)]) -> Session {
        let pair = native_pty_system().openpty(size(80, 24)).unwrap();
        let mut command = CommandBuilder::new(env!("CARGO_BIN_EXE_escarp"));
        command.args(arguments);
        command.cwd(env!("CARGO_MANIFEST_DIR"));
        for name in
            ["NO_COLOR", "SSH_CONNECTION", "LC_ALL", "LC_CTYPE", "RUST_LOG", "RUST_BACKTRACE", "ESCARP_MODEL"]
        {
            command.env_remove(name);
        }
        command.env("TERM", "xterm-256color");
        command.env("LANG", "C.UTF-8");
        for (name, value) in environment {
            command.env(name, value);
        }
        let mut reader = pair.master.try_clone_reader().unwrap();
        let keys = pair.master.take_writer().unwrap();
        let modes_before = modes(pair.master.as_raw_fd().unwrap());
        let child = pair.slave.spawn_command(command).unwrap();
        let output = Output {
            screen: vt100::Parser::new(24.try_into().unwrap(), 80.try_into().unwrap(), 0),
            bytes: Vec::new(),
            last: Instant::now(),
        };
        let output = Arc::new((Mutex::new(output), Condvar::new()));
        let shared = Arc::clone(&output);
        std::thread::spawn(move || {
            let mut buffer = [0; 1 << 16];
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                let mut output = shared.0.lock().unwrap();
                output.screen.process(&buffer[..n]);
                output.bytes.extend_from_slice(&buffer[..n]);
                output.last = Instant::now();
                shared.1.notify_all();
            }
        });
        Session { child, master: pair.master, _slave: pair.slave, keys, output, modes_before }
    }

    fn pid(&self) -> libc::pid_t {
        self.child.process_id().unwrap() as libc::pid_t
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a plain system call; the child is ours and has not been waited for.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Waits until `seen` is true of the output; `what` says what was expected.
    fn wait(&self, what: &str, seen: impl Fn(&Output) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        let mut output = self.output.0.lock().unwrap();
        while !seen(&output) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "{what} did not come; the screen shows\n{}",
                output.screen.screen().contents()
            );
            output = self.output.1.wait_timeout(output, left.min(Duration::from_millis(50))).unwrap().0;
        }
    }

    fn wait_for(&self, text: &str) {
        self.wait(text, |output| output.screen.screen().contents().contains(text));
    }

    fn wait_until_gone(&self, text: &str) {
        self.wait(&format!("the end of `{text}`"), |output| {
            !output.screen.screen().contents().contains(text)
        });
    }

    fn text(&self) -> String {
        self.output.0.lock().unwrap().screen.screen().contents()
    }

    fn exit_status(&mut self) -> portable_pty::ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "it did not end; the screen shows\n{}", self.text());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The terminal is as it was before the program came.
    fn assert_restored(&self) {
        self.wait("the restored terminal", |output| {
            let screen = output.screen.screen();
            !screen.alternate_screen()
                && !screen.hide_cursor()
                && !screen.bracketed_paste()
                && screen.mouse_protocol_mode() == vt100::MouseProtocolMode::None
                && last_of(&output.bytes, b"\x1b[?1004l") > last_of(&output.bytes, b"\x1b[?1004h")
        });
        assert_eq!(modes(self.master.as_raw_fd().unwrap()), self.modes_before, "raw mode is still on");
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn last_of(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).rposition(|window| window == wanted)
}

/// Local and input modes of a terminal.
fn modes(fd: RawFd) -> (libc::tcflag_t, libc::tcflag_t) {
    let mut modes = std::mem::MaybeUninit::<libc::termios>::uninit();
    // SAFETY: the pointer is valid for a termios, which is read only after the call reported success.
    let modes = unsafe {
        assert_eq!(libc::tcgetattr(fd, modes.as_mut_ptr()), 0);
        modes.assume_init()
    };
    (modes.c_lflag, modes.c_iflag)
}

#[test]
fn quitting_restores_the_terminal() {
    let mut session = Session::start(&["--set", "ui.mouse=true"]);
    session.wait_for("BEFORE TURN 1 of 5");
    session
        .wait("mouse capture", |o| o.screen.screen().mouse_protocol_mode() != vt100::MouseProtocolMode::None);
    session.press("q");
    assert!(session.exit_status().success());
    session.assert_restored();
}

#[test]
fn an_error_restores_the_terminal_and_is_told_after_it() {
    let mut session = Session::start(&["--provoke", "error"]);
    assert!(!session.exit_status().success());
    session.assert_restored();
    session.wait_for("an error provoked on purpose");
}

#[test]
fn a_panic_on_the_interfaces_thread_restores_the_terminal_and_is_told_after_it() {
    let mut session = Session::start(&["--provoke", "ui-panic"]);
    assert_eq!(session.exit_status().exit_code(), 101);
    session.assert_restored();
    session.wait_for("a panic provoked on purpose");
}

#[test]
fn a_panic_on_another_thread_is_a_message_and_the_interface_goes_on() {
    let mut session = Session::start(&["--provoke", "worker-panic"]);
    session.wait_for("a thread panicked: provoked: a panic provoked on purpose");
    session.press("?");
    session.wait_for("run the next turn, then stop");
    session.press("qq");
    assert!(session.exit_status().success());
    session.assert_restored();
}

#[test]
fn abort_restores_the_terminal() {
    let mut session = Session::start(&["--provoke", "abort"]);
    assert!(!session.exit_status().success());
    session.assert_restored();
}

#[test]
fn signals_that_end_the_program_restore_the_terminal() {
    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
        let mut session = Session::start(&[]);
        session.wait_for("BEFORE TURN 1 of 5");
        session.signal(signal);
        assert!(!session.exit_status().success(), "signal {signal}");
        session.assert_restored();
    }
}

#[test]
fn control_z_gives_the_terminal_back_and_continuing_takes_it_again() {
    let mut session = Session::start(&[]);
    session.wait_for("BEFORE TURN 1 of 5");
    session.press("\x1a");
    wait_until_stopped(session.pid());
    session.assert_restored();
    session.signal(libc::SIGCONT);
    session.wait("the alternate screen", |o| o.screen.screen().alternate_screen());
    session.wait_for("BEFORE TURN 1 of 5");
    session.press("?");
    session.wait_for("run the next turn, then stop");
    session.press("qq");
    assert!(session.exit_status().success());
    session.assert_restored();
}

/// Waits until the process is stopped. Continuing it earlier would be lost.
fn wait_until_stopped(pid: libc::pid_t) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        // SAFETY: a siginfo_t of zeros is valid, and the pointer to it is good for writing. WNOWAIT leaves the status for
        // whoever waits for the end of the process.
        let stopped = unsafe {
            let mut info = std::mem::zeroed::<libc::siginfo_t>();
            let how = libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT;
            libc::waitid(libc::P_PID, pid as libc::id_t, &mut info, how) == 0
                && info.si_code == libc::CLD_STOPPED
        };
        if stopped {
            return;
        }
        assert!(Instant::now() < deadline, "it did not stop");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_idle_interface_writes_nothing() {
    let session = Session::start(&[]);
    session.wait_for("BEFORE TURN 1 of 5");
    session.wait("a quiet moment", |output| output.last.elapsed() > Duration::from_millis(300));
    let before = session.output.0.lock().unwrap().bytes.len();
    // What is tested here is the passing of time itself.
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(session.output.0.lock().unwrap().bytes.len(), before);
}

/// Asserts that keys are answered within 50 ms, given the answer time `idle` while the program did nothing. Where other
/// programs keep the machine so busy that even that is long, a small multiple of it is allowed; the best of three
/// rounds counts.
fn assert_answers_in_time(session: &mut Session, idle: Duration) {
    let answer = (0..3).map(|_| median_answer_time(session)).min().unwrap();
    let allowed = (idle * 4).max(Duration::from_millis(50));
    assert!(answer < allowed, "{answer:?}, and {idle:?} while idle");
}

/// The median time from a key to the screen that answers it.
fn median_answer_time(session: &mut Session) -> Duration {
    let mut answers: Vec<Duration> = (0..9)
        .map(|_| {
            let started = Instant::now();
            session.press("?");
            session.wait_for("run the next turn, then stop");
            let took = started.elapsed();
            session.press("q");
            session.wait_until_gone("run the next turn, then stop");
            took
        })
        .collect();
    answers.sort();
    println!("from key to screen: {answers:?}");
    answers[4]
}

#[test]
fn keys_are_answered_within_50_ms_while_a_long_prefill_runs() {
    let mut session =
        Session::start(&["--clock", "wall", "--set", "sim.prefill_us_per_token=60000.0", "--idle", "zero"]);
    session.wait_for("BEFORE TURN 1 of 5");
    let idle = median_answer_time(&mut session);
    session.press("n");
    session.wait_for("RUNNING TURN 1 of 5: prefill");
    assert_answers_in_time(&mut session, idle);
    assert!(session.text().contains("TURN 1 of 5: prefill"), "the prefill must outlast the test");
}

#[test]
fn keys_are_answered_within_50_ms_while_a_real_model_keeps_every_core_busy() {
    let Some(model) = std::env::var_os("ESCARP_SMOLLM2") else {
        println!("skipped: ESCARP_SMOLLM2 is not set");
        return;
    };
    let model = model.to_str().unwrap();
    let arguments = ["tui", "--model", model, "--session", "steady", "--clock", "wall", "--idle", "zero"];
    let mut session = Session::start_plain(&arguments, &[]);
    session.wait_for("BEFORE TURN 1 of");
    let idle = median_answer_time(&mut session);
    session.press("r");
    session.wait_for("prefill");
    assert_answers_in_time(&mut session, idle);
}

#[test]
fn a_turn_can_be_injected_and_an_earlier_one_edited_and_both_lanes_stay() {
    let mut session = Session::start(&[]);
    session.wait_for("BEFORE TURN 1 of 5");
    session.press("4n");
    session.wait_for("BEFORE TURN 2 of 5");
    session.press("i");
    session.wait_for("inject a turn into lane A as user");
    session.press("\x1b[200~Is 12.5 s a float?\rSay yes or no.\x1b[201~\x04");
    session.wait_for("inject Is 12.5 s a float?");
    session.wait_for("BEFORE TURN 3 of 6");
    session.press("e");
    session.wait_for("edit turn 2 of lane A as user: forks the session");
    session.press(" In one word.\x04");
    session.wait_for("lane B");
    session.press("n");
    session.wait_for("Say yes or no. In one word.");
    session.wait_for("BEFORE TURN 3 of");
    session.press("[");
    session.wait_for("4 transcript lane A");
    session.wait_until_gone("In one word.");
    session.wait_for("Say yes or no.");
    session.press("q");
    assert!(session.exit_status().success());
}

#[test]
fn the_interface_replay_and_a_recording_of_either_give_the_same_ledger() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    let file = path.to_str().unwrap();
    let mut session = Session::start(&["--record", file]);
    session.wait_for("BEFORE TURN 1 of 5");
    session.press("r");
    session.wait_for("END OF SESSION");
    session.press("q");
    assert!(session.exit_status().success());
    let mut ledger = escarp::ledger::Ledger::new();
    for event in &escarp::event::record::read(&path).unwrap() {
        ledger.apply(event);
    }
    let replay = std::process::Command::new(env!("CARGO_BIN_EXE_escarp"))
        .args(["replay", "--device", "sim", "--session", "quick"])
        .output()
        .unwrap();
    let printed = String::from_utf8(replay.stdout).unwrap();
    assert!(printed.contains(&ledger.facts_hash()), "{}\n{printed}", ledger.facts_hash());

    let mut session = Session::start_plain(&["tui", "--recording", file], &[]);
    session.wait_for("RECORDING 5 of 5");
    session.press("pp");
    session.wait_for("RECORDING 3 of 5");
    session.press("q");
    assert!(session.exit_status().success());
}

#[test]
fn resizing_to_nothing_and_back_shows_the_same_screen() {
    let mut session = Session::start(&[]);
    session.wait_for("BEFORE TURN 1 of 5");
    for (columns, rows) in [(5, 3), (1, 1), (40, 9)] {
        session.master.resize(size(columns, rows)).unwrap();
        session
            .output
            .0
            .lock()
            .unwrap()
            .screen
            .screen_mut()
            .set_size(rows.try_into().unwrap(), columns.try_into().unwrap());
        session.wait("the message for small terminals", |o| !o.screen.screen().contents().contains("BEFORE"));
    }
    session
        .output
        .0
        .lock()
        .unwrap()
        .screen
        .screen_mut()
        .set_size(36.try_into().unwrap(), 120.try_into().unwrap());
    session.master.resize(size(120, 36)).unwrap();
    session.wait_for("4 transcript");
    session.press("q");
    assert!(session.exit_status().success());
}

#[test]
fn no_color_keeps_bold_and_reverse_and_sets_no_colour() {
    let session = Session::start_with(&[], &[("NO_COLOR", "1")]);
    session.wait_for("BEFORE TURN 1 of 5");
    let output = session.output.0.lock().unwrap();
    let screen = output.screen.screen();
    let mut bold = false;
    let mut inverse = false;
    for row in 0..24 {
        for column in 0..80 {
            let cell = screen.cell(row, column).unwrap();
            assert_eq!((cell.fgcolor(), cell.bgcolor()), (vt100::Color::Default, vt100::Color::Default));
            bold |= cell.bold();
            inverse |= cell.inverse();
        }
    }
    assert!(bold && inverse);
}

#[test]
fn a_locale_without_utf8_gets_ascii_only() {
    let session = Session::start_with(&[], &[("LANG", "C")]);
    session.wait_for("BEFORE TURN 1 of 5");
    assert!(session.output.0.lock().unwrap().bytes.is_ascii());
}

#[test]
fn a_dumb_terminal_gets_an_error_that_names_the_way_without_one() {
    let mut session = Session::start_with(&[], &[("TERM", "dumb")]);
    session.wait_for("TERM is `dumb`");
    session.wait_for("escarp replay");
    assert_eq!(session.exit_status().exit_code(), 2);
    assert!(!session.output.0.lock().unwrap().bytes.contains(&0x1b), "no escape sequence reached it");
}

#[test]
fn without_a_terminal_the_error_names_the_way_without_one() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_escarp"))
        .args(["tui", "--device", "sim", "--session", "quick"])
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        message.contains("standard input is not a terminal") && message.contains("escarp replay"),
        "{message}"
    );
    assert!(output.stdout.is_empty());
}
