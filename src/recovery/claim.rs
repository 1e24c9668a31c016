//! The claim to be the one slice that runs.
//!
//! Slices of several engines in one process take turns: two at once would each take twice as long, and a foreground request would wait for both.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What at most one holds.
#[derive(Debug, Default)]
pub struct Claim {
    held: AtomicBool,
}

/// The claim, held. Dropping it gives it back.
#[derive(Debug)]
pub struct Held {
    claim: Arc<Claim>,
}

impl Claim {
    /// Takes it; `None` while somebody holds it. Never waits.
    pub fn take(self: &Arc<Self>) -> Option<Held> {
        let taken = self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Held { claim: Arc::clone(self) })
    }

    /// Whether somebody holds it.
    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.claim.held.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn one_holds_it_at_a_time_on_any_number_of_threads() {
        let claim = Arc::new(Claim::default());
        let (inside, slices) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut mine = 0;
                    while mine < 500 {
                        let Some(_held) = claim.take() else {
                            std::thread::yield_now();
                            continue;
                        };
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two slices at once");
                        inside.fetch_sub(1, Ordering::SeqCst);
                        mine += 1;
                        slices.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(slices.into_inner(), 2_000);
        assert!(!claim.is_held());
    }

    #[test]
    fn a_slice_that_panics_gives_it_back() {
        let claim = Arc::new(Claim::default());
        let other = Arc::clone(&claim);
        std::thread::spawn(move || {
            let _held = other.take().unwrap();
            panic!("on purpose");
        })
        .join()
        .unwrap_err();
        assert!(claim.take().is_some());
    }
}
