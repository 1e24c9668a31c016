//! Threads for regions of a few microseconds.
//!
//! Decoding one token of a small model crosses some 150 parallel regions of 5 to 50 µs. A region here costs about one cache-line
//! transfer each way: workers spin for a moment between regions, then yield for a while, before they sleep, the calling thread works too, and a
//! worker that has not arrived by the time all tasks are claimed is not waited for.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Rounds a worker spins before it sleeps: some 50 µs, longer than the serial stretches inside a forward.
const SPINS: u32 = 4_000;
/// Rounds after these in which it lets others run but stays awake: between two forwards of a reply the caller does what it has to tell, and a worker
/// that slept would make the next forward wait for it to wake, which costs a fifth of a small model's.
const YIELDS: u32 = 400;

/// The state word: generation in the high half, then [`CLOSED`], then the number of workers inside.
const GENERATION: u64 = 1 << 32;
/// No worker may enter any more.
const CLOSED: u64 = 1 << 31;
/// Workers inside.
const INSIDE: u64 = CLOSED - 1;

/// The region's body, with its lifetime erased.
type Body<'a> = dyn Fn(usize) + Sync + 'a;

struct Shared {
    state: AtomicU64,
    /// Points to the caller's `&Body`; valid while the region is open or a worker is inside.
    body: AtomicPtr<&'static Body<'static>>,
    tasks: AtomicUsize,
    next: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

/// A fixed team of threads: the caller and `threads - 1` workers.
pub(super) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A team of `threads` (0 means one a core).
    pub(super) fn new(threads: usize) -> std::io::Result<Pool> {
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        };
        let shared = Arc::new(Shared {
            state: AtomicU64::new(CLOSED),
            body: AtomicPtr::new(std::ptr::null_mut()),
            tasks: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        });
        let mut pool = Pool { shared, workers: Vec::new() };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let worker =
                std::thread::Builder::new().name(format!("cpu-{index}")).spawn(move || shared.work())?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Threads of the team, the caller included.
    pub(super) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `body(0)` to `body(tasks - 1)`, in any order and on any thread, and returns when all have returned.
    pub(super) fn run(&mut self, tasks: usize, body: impl Fn(usize) + Sync) {
        if self.workers.is_empty() || tasks <= 1 {
            (0..tasks).for_each(body);
            return;
        }
        let shared = &*self.shared;
        let body: &Body<'_> = &body;
        shared.tasks.store(tasks, Ordering::Relaxed);
        shared.next.store(0, Ordering::Relaxed);
        // A fat pointer does not fit an atomic, so the workers get the address of the reference.
        shared.body.store((&raw const body).cast_mut().cast(), Ordering::Relaxed);
        shared.open();
        let mine = catch_unwind(AssertUnwindSafe(|| shared.claim(body)));
        shared.close();
        if let Err(panic) = mine {
            resume_unwind(panic);
        }
        assert!(!shared.panicked.swap(false, Ordering::Relaxed), "a worker thread panicked");
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Starts a region: `body`, `tasks` and `next` are set.
    fn open(&self) {
        let generation = self.state.load(Ordering::Relaxed) / GENERATION;
        self.state.store(generation.wrapping_add(1).wrapping_mul(GENERATION), Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.wake_all();
        }
    }

    /// Ends a region: lets nobody in any more and waits for those inside.
    fn close(&self) {
        self.state.fetch_or(CLOSED, Ordering::AcqRel);
        let mut spins = 0;
        while self.state.load(Ordering::Acquire) & INSIDE != 0 {
            relax(&mut spins);
        }
    }

    fn wake_all(&self) {
        let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.wake.notify_all();
    }

    /// Does tasks until none is left.
    fn claim(&self, body: &Body<'_>) {
        let tasks = self.tasks.load(Ordering::Relaxed);
        loop {
            let task = self.next.fetch_add(1, Ordering::Relaxed);
            if task >= tasks {
                return;
            }
            body(task);
        }
    }

    /// A worker's life.
    fn work(&self) {
        let mut seen = 0;
        while let Some(generation) = self.enter(seen) {
            seen = generation;
            // SAFETY: the region was open when this worker entered, so the address was published before (acquire in
            // `enter`), and `run` keeps the reference alive until the worker has left.
            let body = unsafe { *self.body.load(Ordering::Relaxed) };
            if catch_unwind(AssertUnwindSafe(|| self.claim(body))).is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            self.state.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Waits for an open region later than `seen` and enters it; `None` when the pool stops.
    fn enter(&self, seen: u64) -> Option<u64> {
        let mut spins = 0;
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            let state = self.state.load(Ordering::Acquire);
            let generation = state / GENERATION;
            if generation != seen && state & CLOSED == 0 {
                let entered =
                    self.state.compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed);
                if entered.is_ok() {
                    return Some(generation);
                }
                continue;
            }
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
            } else if spins < SPINS + YIELDS {
                spins += 1;
                std::thread::yield_now();
            } else {
                self.sleep(seen);
                spins = 0;
            }
        }
    }

    /// Sleeps until a region opens or the pool stops.
    fn sleep(&self, seen: u64) {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        // Sequentially consistent on both sides: either this load sees the region, or `open` sees the sleeper.
        loop {
            let state = self.state.load(Ordering::SeqCst);
            let open = state / GENERATION != seen && state & CLOSED == 0;
            if open || self.stop.load(Ordering::SeqCst) {
                break;
            }
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// One round of waiting for a thread that is known to be running.
fn relax(spins: &mut u32) {
    *spins += 1;
    if *spins < SPINS {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in 1..5 {
            let mut pool = Pool::new(threads).unwrap();
            for tasks in [0, 1, 2, 3, 17, 1000] {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, |task| {
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{threads} {tasks}");
            }
        }
    }

    #[test]
    fn regions_follow_each_other_at_any_distance() {
        let mut pool = Pool::new(2).unwrap();
        let total = AtomicUsize::new(0);
        for round in 0..20_000 {
            pool.run(4, |task| {
                total.fetch_add(task, Ordering::Relaxed);
            });
            if round % 4_000 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        }
        assert_eq!(total.into_inner(), 20_000 * 6);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let mut pool = Pool::new(2).unwrap();
        for _ in 0..50 {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(8, |task| assert!(task != 5, "task five"));
            }));
            assert!(outcome.is_err());
            pool.run(8, |_| {});
        }
    }
}
