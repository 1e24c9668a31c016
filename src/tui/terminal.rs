//! The only owner of the terminal's modes.
//!
//! [`Screen::enter`] switches raw mode, the alternate screen, bracketed paste and focus reports on, and sends whatever
//! libraries write to standard error into the log. All of it is undone on every way out: `Drop` (quit, error), the panic
//! hook (a panic on this thread; one on another thread must not tear the interface down and becomes a message), and signal
//! handlers (termination, abort). The terminal is never asked anything, so no answer can leak into the input.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use std::thread::{self, ThreadId};

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::buffer::Buffer;
use signal_hook::consts::{SIGABRT, SIGALRM, SIGHUP, SIGINT, SIGTERM};
use tokio::sync::mpsc;

use super::Surface;

/// Alternate screen, cleared; hidden cursor; bracketed paste; focus reports.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[2J\x1b[H\x1b[?25l\x1b[?2004h\x1b[?1004h";
/// Undoes [`ENTER`] and mouse capture in every encoding, whether they are on or not; attributes off, cursor visible.
const LEAVE: &[u8] =
    b"\x1b[?1006l\x1b[?1003l\x1b[?1002l\x1b[?1000l\x1b[?1004l\x1b[?2004l\x1b[0m\x1b[?1049l\x1b[?25h";
const MOUSE_ON: &[u8] = b"\x1b[?1000h\x1b[?1002h\x1b[?1006h";
const MOUSE_OFF: &[u8] = b"\x1b[?1006l\x1b[?1002l\x1b[?1000l";

/// How long the interface may take to leave by itself once it was asked to by a signal, seconds.
const GRACE_SECONDS: libc::c_uint = 2;

/// Whether the interface owns the terminal.
static ACTIVE: AtomicBool = AtomicBool::new(false);
/// The terminal's modes before we came; leaked once, so that a signal handler may read it.
static SAVED: AtomicPtr<libc::termios> = AtomicPtr::new(ptr::null_mut());
/// A copy of the original standard error, -1 while it is not redirected.
static STDERR: AtomicI32 = AtomicI32::new(-1);
/// The signal that asked us to leave, 0 while none has.
static ASKED_TO_LEAVE: AtomicI32 = AtomicI32::new(0);

/// Why the interface cannot run here; `None` when it can.
pub fn obstacle(term: Option<&str>) -> Option<&'static str> {
    if !io::stdin().is_terminal() {
        Some("standard input is not a terminal")
    } else if !io::stdout().is_terminal() {
        Some("standard output is not a terminal")
    } else if term == Some("dumb") {
        Some("TERM is `dumb`")
    } else {
        None
    }
}

/// The terminal while the interface owns it. One at a time.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
    log: File,
    mouse: bool,
}

impl Screen {
    /// Takes the terminal over. What is written to standard error goes to `log` (or nowhere) until it is given back;
    /// panics of other threads are reported to `panics`.
    pub fn enter(
        log: Option<&Path>,
        mouse: bool,
        panics: mpsc::UnboundedSender<String>,
    ) -> io::Result<Screen> {
        // crossterm 0.29 writes an empty SGR for every colour when `NO_COLOR` is set, which also resets bold and
        // reverse. The mono theme is how this program honours that variable.
        crossterm::style::force_color_output(true);
        let log = open_log(log)?;
        install_panic_hook(thread::current().id(), panics);
        install_signal_handlers()?;
        let backend = CrosstermBackend::new(BufWriter::with_capacity(1 << 16, io::stdout()));
        let terminal = Terminal::new(backend)?;
        let screen = Screen { terminal, log, mouse };
        screen.take()?;
        Ok(screen)
    }

    /// Takes the terminal, or makes sure it is still ours: after an uncatchable stop somebody else may have changed its
    /// modes, and what was saved before must not be replaced by our own.
    fn take(&self) -> io::Result<()> {
        if !ACTIVE.load(Ordering::SeqCst) {
            save_modes()?;
            redirect_stderr(&self.log)?;
            ACTIVE.store(true, Ordering::SeqCst);
        }
        set_raw()?;
        let mut out = io::stdout();
        out.write_all(ENTER)?;
        if self.mouse {
            out.write_all(MOUSE_ON)?;
        }
        out.flush()
    }

    /// Forgets what is on the screen, so that the next frame is drawn in full. (`Terminal::clear` would ask the terminal
    /// for the cursor's position.)
    fn forget(&mut self) -> io::Result<()> {
        let backend = CrosstermBackend::new(BufWriter::with_capacity(1 << 16, io::stdout()));
        self.terminal = Terminal::new(backend)?;
        let mut out = io::stdout();
        out.write_all(b"\x1b[0m\x1b[2J")?;
        out.flush()
    }
}

impl Surface for Screen {
    fn draw(&mut self, render: &mut dyn FnMut(&mut Buffer)) -> io::Result<()> {
        self.terminal.draw(|frame| render(frame.buffer_mut())).map(|_| ())
    }

    fn capture_mouse(&mut self, on: bool) -> io::Result<()> {
        self.mouse = on;
        let mut out = io::stdout();
        out.write_all(if on { MOUSE_ON } else { MOUSE_OFF })?;
        out.flush()
    }

    fn redraw(&mut self) -> io::Result<()> {
        self.forget()
    }

    fn suspend(&mut self) -> io::Result<()> {
        give_back();
        // SAFETY: `kill` has no memory preconditions. Stopping the whole process group is what the terminal driver
        // does on Ctrl-Z; execution goes on here when the shell continues us.
        unsafe { libc::kill(0, libc::SIGSTOP) };
        self.resume()
    }

    fn resume(&mut self) -> io::Result<()> {
        self.take()?;
        self.forget()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
        // The deadline for leaving is met; what comes now is the program's own shutdown.
        // SAFETY: `alarm` has no preconditions; 0 cancels a pending alarm.
        unsafe { libc::alarm(0) };
    }
}

fn open_log(path: Option<&Path>) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    match path {
        Some(path) => OpenOptions::new().create(true).append(true).mode(0o600).open(path),
        None => OpenOptions::new().write(true).open("/dev/null"),
    }
}

/// Gives the terminal back, once. Async-signal-safe: atomics and system calls only.
fn give_back() {
    if !ACTIVE.swap(false, Ordering::SeqCst) {
        return;
    }
    let saved = SAVED.load(Ordering::SeqCst);
    let stderr = STDERR.swap(-1, Ordering::SeqCst);
    // SAFETY: the buffer is a constant of the given length; `saved` is null or points to a leaked, initialised
    // termios that is never written again while ACTIVE was set; `stderr` is a descriptor this module duplicated and owns.
    unsafe {
        libc::write(libc::STDOUT_FILENO, LEAVE.as_ptr().cast(), LEAVE.len());
        if !saved.is_null() {
            libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, saved);
        }
        if stderr >= 0 {
            libc::dup2(stderr, libc::STDERR_FILENO);
            libc::close(stderr);
        }
    }
}

fn save_modes() -> io::Result<()> {
    let mut modes = std::mem::MaybeUninit::<libc::termios>::uninit();
    // SAFETY: the pointer is valid for writing a termios; it is only read after the call reported success.
    let modes = unsafe {
        if libc::tcgetattr(libc::STDIN_FILENO, modes.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        modes.assume_init()
    };
    // Leaked on purpose: a handler may be reading the old one. This happens once a start or suspension.
    SAVED.store(Box::into_raw(Box::new(modes)), Ordering::SeqCst);
    Ok(())
}

fn set_raw() -> io::Result<()> {
    let saved = SAVED.load(Ordering::SeqCst);
    if saved.is_null() {
        return Ok(());
    }
    // SAFETY: `saved` points to a leaked, initialised termios; the copy is ours.
    let result = unsafe {
        let mut raw = *saved;
        libc::cfmakeraw(&mut raw);
        libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, &raw)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn redirect_stderr(log: &File) -> io::Result<()> {
    // SAFETY: both descriptors are open; the duplicate is owned by this module until `give_back` closes it.
    unsafe {
        let copy = libc::fcntl(libc::STDERR_FILENO, libc::F_DUPFD_CLOEXEC, 3);
        if copy < 0 {
            return Err(io::Error::last_os_error());
        }
        if libc::dup2(log.as_raw_fd(), libc::STDERR_FILENO) < 0 {
            let error = io::Error::last_os_error();
            libc::close(copy);
            return Err(error);
        }
        STDERR.store(copy, Ordering::SeqCst);
    }
    Ok(())
}

/// On this thread a panic gives the terminal back before it is reported; on any other it is reported to the interface,
/// which goes on.
fn install_panic_hook(own: ThreadId, panics: mpsc::UnboundedSender<String>) {
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if thread::current().id() == own {
            give_back();
        } else if ACTIVE.load(Ordering::SeqCst) {
            let name = thread::current().name().unwrap_or("unnamed").to_owned();
            let payload = info.payload();
            let message = payload.downcast_ref::<&str>().copied();
            let message = message.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
            let message = message.unwrap_or("no message");
            let place = info.location().map(|l| format!(" at {}:{}", l.file(), l.line())).unwrap_or_default();
            tracing::error!(thread = name, "panic: {message}{place}");
            // A closed channel means the interface is gone; then nobody wants to know.
            let _ = panics.send(format!("{name}: {message}{place}"));
        }
        previous(info);
    }));
}

fn install_signal_handlers() -> io::Result<()> {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    if INSTALLED.swap(true, Ordering::SeqCst) {
        return Ok(());
    }
    for signal in [SIGTERM, SIGHUP, SIGINT] {
        // SAFETY: the handler calls only async-signal-safe functions and atomics.
        unsafe { register(signal, move || on_leave_signal(signal)) }?;
    }
    // SAFETY: as above.
    unsafe { register(SIGALRM, on_alarm) }?;
    // SAFETY: as above. After the handler the default action of SIGABRT ends the process.
    unsafe { register(SIGABRT, give_back) }
}

/// # Safety
/// `handler` must be async-signal-safe.
unsafe fn register(signal: i32, handler: impl Fn() + Send + Sync + 'static) -> io::Result<()> {
    // SAFETY: passed on to the caller.
    unsafe { signal_hook::low_level::register(signal, handler) }.map(|_| ())
}

/// The event loop leaves by itself when it sees the signal, which keeps recordings whole. If it has not within the grace
/// period, or the signal comes again, or the interface does not own the terminal, the process ends here.
fn on_leave_signal(signal: i32) {
    let again = ASKED_TO_LEAVE.swap(signal, Ordering::SeqCst) != 0;
    if again || !ACTIVE.load(Ordering::SeqCst) {
        end_by(signal);
    } else {
        // SAFETY: `alarm` is async-signal-safe and has no preconditions.
        unsafe { libc::alarm(GRACE_SECONDS) };
    }
}

fn on_alarm() {
    let signal = ASKED_TO_LEAVE.load(Ordering::SeqCst);
    end_by(if signal == 0 { SIGALRM } else { signal });
}

fn end_by(signal: i32) {
    give_back();
    // An error would mean a signal without a default action, which none of ours is.
    let _ = signal_hook::low_level::emulate_default_handler(signal);
}
