//! The thread that writes: a queue bounded by bytes, done in order.
//!
//! A file is written under a temporary name, synced, and renamed; after a batch the folders are synced, and only then is it reported
//! as written. Until it is renamed its state is in memory and read from there. Deletions go through the same queue, so a file that is
//! deleted and written again ends as what was asked last.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::catalogue::Key;
use super::faults::Faults;
use super::folder::{self, Folder};
use super::format::Image;
use super::{TierError, Tuning};

/// Files written between two syncs of folders.
const BATCH: usize = 32;

/// Something the writer has done.
#[derive(Debug)]
pub(super) enum Done {
    /// A file is durable.
    Written { key: Key, serial: u64, bytes: u64, mtime_ns: u64 },
    /// A file is not there.
    Failed { key: Key, serial: u64, error: String },
    /// No writes for a while.
    Suspended { reason: String },
    /// Writes again.
    Resumed,
    /// A file could not be deleted.
    Stuck { path: PathBuf, error: String },
    /// A file was moved, and has so many bytes; `None` where it could not be, or was not there.
    Aside { path: PathBuf, bytes: Option<u64> },
}

#[derive(Debug)]
enum Job {
    Write { key: Key, serial: u64, image: Arc<Image> },
    Delete(PathBuf),
    SetAside { from: PathBuf, to: PathBuf, cause: String },
    Index(Vec<u8>),
}

/// What waits, in figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct QueueFacts {
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) problem: Option<String>,
}

#[derive(Debug)]
struct Suspension {
    until: Instant,
    reason: String,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// State not yet in a file of its final name, by name.
    pending: HashMap<Key, (u64, Arc<Image>)>,
    /// Bytes of all state that waits, forgotten state too.
    bytes: u64,
    /// Files to write that are not durable yet.
    files: u64,
    /// Jobs taken on and not finished.
    unfinished: usize,
    done: Vec<Done>,
    suspension: Option<Suspension>,
    closing: bool,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    /// There is work, or the tier closes.
    work: Condvar,
    /// Nothing is unfinished.
    idle: Condvar,
    faults: Arc<Faults>,
    folder: Arc<Folder>,
    tuning: Tuning,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The writing thread, seen from the tier.
#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<Shared>,
}

impl Writer {
    pub(super) fn start(folder: Arc<Folder>, tuning: Tuning) -> Result<Writer, TierError> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            work: Condvar::new(),
            idle: Condvar::new(),
            faults: Arc::default(),
            folder,
            tuning,
        });
        let own = Arc::clone(&shared);
        let run = move || Worker { shared: own, batch: Vec::new(), dirty: BTreeSet::new(), jobs: 0 }.run();
        thread::Builder::new().name("tier-writer".to_owned()).spawn(run).map_err(TierError::Thread)?;
        Ok(Writer { shared })
    }

    pub(super) fn faults(&self) -> &Arc<Faults> {
        &self.shared.faults
    }

    /// Whether a file of so much state may be queued. A queue with nothing in it takes a file of any size.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        let queue = self.shared.lock();
        queue.bytes == 0 || queue.bytes + bytes <= self.shared.tuning.queue_bytes
    }

    /// Whether writing has failed and is not to be tried yet.
    pub(super) fn is_suspended(&self) -> bool {
        self.shared.lock().suspension.as_ref().is_some_and(|suspension| Instant::now() < suspension.until)
    }

    pub(super) fn write(&self, key: Key, serial: u64, image: Image) {
        let image = Arc::new(image);
        let mut queue = self.shared.lock();
        queue.bytes += image.state.len() as u64;
        queue.files += 1;
        queue.pending.insert(key, (serial, Arc::clone(&image)));
        self.push(queue, Job::Write { key, serial, image });
    }

    pub(super) fn delete(&self, path: PathBuf) {
        self.push(self.shared.lock(), Job::Delete(path));
    }

    pub(super) fn set_aside(&self, from: PathBuf, to: PathBuf, cause: &str) {
        self.push(self.shared.lock(), Job::SetAside { from, to, cause: cause.to_owned() });
    }

    pub(super) fn index(&self, bytes: Vec<u8>) {
        self.push(self.shared.lock(), Job::Index(bytes));
    }

    fn push(&self, mut queue: MutexGuard<'_, Queue>, job: Job) {
        queue.jobs.push_back(job);
        queue.unfinished += 1;
        self.shared.work.notify_one();
    }

    /// State that is not in its file yet.
    pub(super) fn pending(&self, key: &Key) -> Option<Arc<Image>> {
        self.shared.lock().pending.get(key).map(|(_, image)| Arc::clone(image))
    }

    /// No longer gives the state that waits under this name. It is written all the same, if no deletion is queued behind it.
    pub(super) fn forget(&self, key: Key) {
        self.shared.lock().pending.remove(&key);
    }

    /// What was done since the last call.
    pub(super) fn done(&self) -> Vec<Done> {
        std::mem::take(&mut self.shared.lock().done)
    }

    pub(super) fn queue(&self) -> QueueFacts {
        let queue = self.shared.lock();
        QueueFacts {
            files: queue.files,
            bytes: queue.bytes,
            problem: queue.suspension.as_ref().map(|suspension| suspension.reason.clone()),
        }
    }

    /// Waits until nothing is unfinished.
    pub(super) fn flush(&self, within: Duration) -> bool {
        let queue = self.shared.lock();
        let waited = self.shared.idle.wait_timeout_while(queue, within, |queue| queue.unfinished > 0);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Ends the thread once all is done. `false` where that takes longer than `within`; what is left then is not written.
    pub(super) fn close(&self, within: Duration) -> bool {
        let flushed = self.flush(within);
        let mut queue = self.shared.lock();
        queue.closing = true;
        queue.jobs.clear();
        queue.pending.clear();
        self.shared.work.notify_one();
        self.shared.faults.end_stall();
        flushed
    }
}

/// The thread's own.
struct Worker {
    shared: Arc<Shared>,
    /// Renamed, and not reported yet.
    batch: Vec<Finished>,
    /// Folders to sync before that.
    dirty: BTreeSet<PathBuf>,
    /// Jobs done since the last report.
    jobs: usize,
}

struct Finished {
    key: Key,
    serial: u64,
    bytes: u64,
    mtime_ns: u64,
}

impl Worker {
    fn run(mut self) {
        while let Some(job) = self.next() {
            self.shared.faults.wait_out_stall();
            match job {
                Job::Write { key, serial, image } => self.write(key, serial, &image),
                Job::Delete(path) => self.delete(path),
                Job::SetAside { from, to, cause } => self.set_aside(&from, to, &cause),
                Job::Index(bytes) => self.index(&bytes),
            }
            self.jobs += 1;
        }
    }

    /// The next job. A batch ends when there is none.
    fn next(&mut self) -> Option<Job> {
        let shared = Arc::clone(&self.shared);
        if self.jobs >= BATCH {
            self.report();
        }
        let mut queue = shared.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            if self.jobs > 0 {
                drop(queue);
                self.report();
                queue = shared.lock();
            } else if queue.closing {
                return None;
            } else {
                queue = shared.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Makes durable what was renamed, and says so.
    fn report(&mut self) {
        let synced = std::mem::take(&mut self.dirty).iter().try_for_each(|folder| sync_folder(folder));
        let batch = std::mem::take(&mut self.batch);
        if synced.is_err() {
            for Finished { key, .. } in &batch {
                // Whole, but nobody knows for how long.
                let _ = fs::remove_file(self.shared.folder.path(*key));
            }
        }
        let mut queue = self.shared.lock();
        queue.files = queue.files.saturating_sub(batch.len() as u64);
        queue.unfinished = queue.unfinished.saturating_sub(std::mem::take(&mut self.jobs));
        for Finished { key, serial, bytes, mtime_ns } in batch {
            queue.done.push(match &synced {
                Ok(()) => Done::Written { key, serial, bytes, mtime_ns },
                Err(error) => Done::Failed { key, serial, error: error.to_string() },
            });
        }
        if let Err(error) = synced {
            suspend(&mut queue, self.shared.tuning, format!("a folder cannot be synced: {error}"));
        }
        if queue.unfinished == 0 {
            self.shared.idle.notify_all();
        }
    }

    fn write(&mut self, key: Key, serial: u64, image: &Arc<Image>) {
        let suspended = {
            let queue = self.shared.lock();
            let pause = queue.suspension.as_ref().filter(|suspension| Instant::now() < suspension.until);
            pause.map(|suspension| suspension.reason.clone())
        };
        let (written, tried) = match suspended {
            Some(reason) => (Err(reason), false),
            None => (self.write_file(key, serial, image).map_err(|error| error.to_string()), true),
        };
        let mut queue = self.shared.lock();
        queue.bytes = queue.bytes.saturating_sub(image.state.len() as u64);
        if queue.pending.get(&key).is_some_and(|(pending, _)| *pending == serial) {
            queue.pending.remove(&key);
        }
        match written {
            Ok(mtime_ns) => {
                self.batch.push(Finished { key, serial, bytes: image.bytes(), mtime_ns });
                if queue.suspension.take().is_some() {
                    queue.done.push(Done::Resumed);
                }
            }
            Err(error) => {
                queue.files = queue.files.saturating_sub(1);
                queue.done.push(Done::Failed { key, serial, error: error.clone() });
                if tried {
                    suspend(&mut queue, self.shared.tuning, error);
                }
            }
        }
    }

    fn write_file(&mut self, key: Key, serial: u64, image: &Image) -> io::Result<u64> {
        let temporary = self.shared.folder.temporary(serial);
        let written = self.write_temporary(&temporary, image).and_then(|mtime_ns| {
            let path = self.shared.folder.path(key);
            let shard = path.parent().unwrap_or(Path::new("."));
            if !shard.exists() {
                folder::create_private_folder(shard)?;
                self.dirty.extend(shard.parent().map(Path::to_owned));
            }
            self.dirty.insert(shard.to_owned());
            fs::rename(&temporary, &path)?;
            Ok(mtime_ns)
        });
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    fn write_temporary(&self, path: &Path, image: &Image) -> io::Result<u64> {
        let mut file = folder::private(OpenOptions::new().write(true).create_new(true)).open(path)?;
        file.write_all(&image.head)?;
        self.shared.faults.check_space()?;
        file.write_all(&image.state)?;
        file.write_all(&image.checksum())?;
        file.sync_all()?;
        Ok(folder::modified(&file.metadata()?))
    }

    fn index(&mut self, bytes: &[u8]) {
        let folder = &self.shared.folder;
        let (temporary, path) = (folder.temporary_index(), folder.index());
        let write = || {
            let options = &mut OpenOptions::new();
            let mut file =
                folder::private(options.write(true).create(true).truncate(true)).open(&temporary)?;
            self.shared.faults.check_space()?;
            file.write_all(bytes)?;
            file.write_all(blake3::hash(bytes).as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, &path)
        };
        match write() {
            Ok(()) => self.dirty.extend(path.parent().map(Path::to_owned)),
            // Without an index, or with an old one, headers are read.
            Err(_) => drop(fs::remove_file(&temporary)),
        }
    }

    fn delete(&self, path: PathBuf) {
        match fs::remove_file(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => self.shared.lock().done.push(Done::Stuck { path, error: error.to_string() }),
        }
    }

    fn set_aside(&self, from: &Path, to: PathBuf, cause: &str) {
        let Err(error) = fs::rename(from, &to) else {
            let note = folder::cause_of(&to);
            let mut options = OpenOptions::new();
            let file = folder::private(options.write(true).create(true).truncate(true)).open(note);
            // The cause is for whoever looks; without it the file is still out of the way.
            let _ = file.and_then(|mut file| file.write_all(cause.as_bytes()));
            let bytes = fs::symlink_metadata(&to).ok().map(|metadata| metadata.len());
            self.shared.lock().done.push(Done::Aside { path: to, bytes });
            return;
        };
        let mut queue = self.shared.lock();
        queue.done.push(Done::Aside { path: to, bytes: None });
        if error.kind() != io::ErrorKind::NotFound {
            queue.done.push(Done::Stuck { path: from.to_owned(), error: error.to_string() });
        }
    }
}

fn suspend(queue: &mut Queue, tuning: Tuning, reason: String) {
    queue.suspension =
        Some(Suspension { until: Instant::now() + tuning.retry_after, reason: reason.clone() });
    queue.done.push(Done::Suspended { reason });
}

/// Makes the names in a folder durable.
fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
