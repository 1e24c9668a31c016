//! The threads that read: two, so that one file is hashed while the next one comes from the disk.
//!
//! A call reads ahead within a bound of bytes and hands files over in order. A thread that a disk holds up stays behind; the call
//! ends at its deadline all the same.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read};
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use super::catalogue::Key;
use super::faults::Faults;
use super::folder;
use super::format::{self, Image, MOST_HEADER_BYTES};
use super::{IdentityFacts, Layers, Origin, Part, Place, Tier, TierError, Wanted};

const THREADS: usize = 2;

/// Bytes of files read ahead of whoever takes them; one file a thread is read whatever its size.
const AHEAD_BYTES: u64 = 64 << 20;

/// State that was read and has passed every check.
#[derive(Debug, Clone)]
pub struct State(Source);

#[derive(Debug, Clone)]
enum Source {
    File(Vec<u8>, Range<usize>),
    Memory(Arc<Image>),
}

impl Deref for State {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Source::File(file, state) => &file[state.clone()],
            Source::Memory(image) => &image.state,
        }
    }
}

/// What was asked for.
#[derive(Debug, Clone)]
pub struct Payload {
    /// The page or slot.
    pub state: State,
    /// Who wrote it.
    pub origin: Origin,
}

/// Why there is no state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadFailure {
    /// It is not held, or its file is gone.
    #[error("not there")]
    Missing,
    /// Its file failed a check.
    #[error("damaged: {what}")]
    Damaged {
        /// Which.
        what: String,
    },
    /// Its file is whole, and another identity's or another block's.
    #[error("somebody else's: {what}")]
    Foreign {
        /// How it shows.
        what: String,
    },
    /// It did not come in time.
    #[error("did not come in time")]
    TimedOut,
    /// The operating system refused.
    #[error("cannot be read: {0}")]
    Io(String),
}

/// What a file has to be.
#[derive(Debug, Clone)]
pub(super) struct Expected {
    pub(super) part: Part,
    pub(super) place: Place,
    pub(super) identity: IdentityFacts,
    pub(super) layers: Layers,
    pub(super) state_bytes: u64,
    pub(super) file_bytes: u64,
    pub(super) tokens: Box<[u32]>,
}

impl Expected {
    fn check(&self, header: &format::Header, tokens: &[u32]) -> Result<(), ReadFailure> {
        let foreign = |what: String| Err(ReadFailure::Foreign { what });
        if header.identity != self.identity {
            return foreign(header.identity.differences(&self.identity));
        }
        if header.layers != self.layers {
            return foreign(format!("it holds {}, the model has {}", header.layers, self.layers));
        }
        let differing = [
            ("part", header.part != self.part),
            ("name", header.place.hash != self.place.hash),
            ("depth", header.place.depth != self.place.depth),
            ("parent", header.place.parent != self.place.parent),
            ("content", header.place.content != self.place.content),
            ("size of state", header.state_bytes != self.state_bytes),
            ("tokens", self.part == Part::Block && *tokens != *self.tokens),
        ];
        match differing.into_iter().find(|(_, differs)| *differs) {
            Some((field, _)) => foreign(format!("another {field}")),
            None => Ok(()),
        }
    }
}

struct Task {
    path: PathBuf,
    expected: Expected,
    number: usize,
    cancelled: Arc<AtomicBool>,
    out: Sender<(usize, Result<Payload, ReadFailure>)>,
}

#[derive(Default)]
struct Tasks {
    waiting: VecDeque<Task>,
    closing: bool,
}

#[derive(Default)]
struct Shared {
    tasks: Mutex<Tasks>,
    work: Condvar,
}

/// The reading threads, seen from the tier.
pub(super) struct Readers(Arc<Shared>);

impl std::fmt::Debug for Readers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Readers").finish()
    }
}

impl Readers {
    pub(super) fn start(faults: &Arc<Faults>) -> Result<Readers, TierError> {
        let shared = Arc::new(Shared::default());
        let readers = Readers(Arc::clone(&shared));
        for number in 0..THREADS {
            let (shared, faults) = (Arc::clone(&shared), Arc::clone(faults));
            let named = thread::Builder::new().name(format!("tier-reader-{number}"));
            named.spawn(move || run(&shared, &faults)).map_err(TierError::Thread)?;
        }
        Ok(readers)
    }

    fn push(&self, task: Task) {
        self.0.tasks.lock().unwrap_or_else(PoisonError::into_inner).waiting.push_back(task);
        self.0.work.notify_one();
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.0.tasks.lock().unwrap_or_else(PoisonError::into_inner).closing = true;
        self.0.work.notify_all();
    }
}

fn run(shared: &Shared, faults: &Faults) {
    while let Some(task) = next(shared) {
        faults.wait_out_stall();
        if !task.cancelled.load(Ordering::Relaxed) {
            // Nobody listens where the call has ended.
            let _ = task.out.send((task.number, read(&task.path, &task.expected)));
        }
    }
}

fn next(shared: &Shared) -> Option<Task> {
    let mut tasks = shared.tasks.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if tasks.closing {
            return None;
        }
        if let Some(task) = tasks.waiting.pop_front() {
            return Some(task);
        }
        tasks = shared.work.wait(tasks).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Reads a file in one go and checks all of it.
fn read(path: &Path, expected: &Expected) -> Result<Payload, ReadFailure> {
    let io = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => ReadFailure::Missing,
        _ => ReadFailure::Io(error.to_string()),
    };
    let damaged = |what: String| ReadFailure::Damaged { what };
    let (file, metadata) = folder::open_regular(path).map_err(io)?;
    let length = metadata.len();
    let most = expected.state_bytes + MOST_HEADER_BYTES + 4 * expected.tokens.len() as u64 + 64;
    if length != expected.file_bytes || length > most {
        return Err(damaged(format!("{length} bytes, and {} were written", expected.file_bytes)));
    }
    // One more than there should be, so that the end is met without growing.
    let mut bytes = Vec::with_capacity(length as usize + 1);
    file.take(length).read_to_end(&mut bytes).map_err(io)?;
    let parsed = format::parse(&bytes).map_err(|error| damaged(error.to_string()))?;
    expected.check(&parsed.header, &parsed.tokens)?;
    Ok(Payload { state: State(Source::File(bytes, parsed.state)), origin: parsed.header.origin })
}

/// State on its way from the folder, in the order it was asked for.
#[derive(Debug)]
pub struct Reading<'a> {
    tier: &'a mut Tier,
    wanted: Vec<Wanted>,
    /// The next to hand over.
    next: usize,
    /// The next to send for.
    ahead: usize,
    ahead_bytes: u64,
    /// Came before its turn.
    early: BTreeMap<usize, Result<Payload, ReadFailure>>,
    deadline: Instant,
    cancelled: Arc<AtomicBool>,
    out: Sender<(usize, Result<Payload, ReadFailure>)>,
    results: Receiver<(usize, Result<Payload, ReadFailure>)>,
}

impl<'a> Reading<'a> {
    pub(super) fn new(tier: &'a mut Tier, wanted: Vec<Wanted>, deadline: Instant) -> Reading<'a> {
        let (out, results) = mpsc::channel();
        Reading {
            tier,
            wanted,
            next: 0,
            ahead: 0,
            ahead_bytes: 0,
            early: BTreeMap::new(),
            deadline,
            cancelled: Arc::default(),
            out,
            results,
        }
    }

    fn bytes(&self, number: usize) -> u64 {
        self.wanted.get(number).map_or(0, |wanted| self.tier.state.of(wanted.part))
    }

    /// Sends for files as far ahead as may be.
    fn send_ahead(&mut self) {
        while self.ahead < self.wanted.len()
            && (self.ahead < self.next + THREADS || self.ahead_bytes + self.bytes(self.ahead) <= AHEAD_BYTES)
        {
            let number = self.ahead;
            self.ahead += 1;
            self.ahead_bytes += self.bytes(number);
            self.send_for(number);
        }
    }

    fn send_for(&mut self, number: usize) {
        let wanted = &self.wanted[number];
        let Some((path, expected)) = self.tier.expected(wanted) else {
            self.early.insert(number, Err(ReadFailure::Missing));
            return;
        };
        let key = Key { part: wanted.part, hash: wanted.place.hash };
        if let Some(image) = self.tier.writer.pending(&key) {
            let checked = expected.check(&image.header, &image.tokens);
            let origin = image.header.origin.clone();
            let payload = checked.map(|()| Payload { state: State(Source::Memory(image)), origin });
            self.early.insert(number, payload);
            return;
        }
        let (cancelled, out) = (Arc::clone(&self.cancelled), self.out.clone());
        self.tier.readers.push(Task { path, expected, number, cancelled, out });
    }

    /// Waits for the result of the next file.
    fn wait(&mut self) -> Result<Payload, ReadFailure> {
        loop {
            if let Some(result) = self.early.remove(&self.next) {
                return result;
            }
            let left = self.deadline.saturating_duration_since(Instant::now());
            match self.results.recv_timeout(left) {
                Ok((number, result)) => self.early.insert(number, result),
                Err(_) => return Err(ReadFailure::TimedOut),
            };
        }
    }

    /// Takes note of a file that is not what the catalogue says.
    fn settle(&mut self, failure: &ReadFailure) {
        let wanted = &self.wanted[self.next];
        let key = Key { part: wanted.part, hash: wanted.place.hash };
        match failure {
            ReadFailure::Damaged { .. } => self.tier.set_aside(key, &failure.to_string()),
            // Of a file on its way there is only what was offered; then it is the question that is wrong.
            ReadFailure::Foreign { .. } if self.tier.writer.pending(&key).is_none() => {
                self.tier.set_aside(key, &failure.to_string());
            }
            ReadFailure::Missing => self.tier.lose(key),
            ReadFailure::Foreign { .. } | ReadFailure::TimedOut | ReadFailure::Io(_) => {}
        }
    }
}

impl Iterator for Reading<'_> {
    type Item = Result<Payload, ReadFailure>;

    fn next(&mut self) -> Option<Result<Payload, ReadFailure>> {
        if self.next == self.wanted.len() {
            return None;
        }
        self.send_ahead();
        let result = self.wait();
        if let Err(failure) = &result {
            self.settle(failure);
        }
        self.ahead_bytes -= self.bytes(self.next);
        self.next += 1;
        Some(result)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.wanted.len() - self.next;
        (left, Some(left))
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}
