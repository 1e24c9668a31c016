//! The arrival registry: every request in the process, from the moment it is made until it departs.
//!
//! A request is announced before it reaches its engine: between the announcement and the first chunk of its prefill there is rendering, a queue and
//! a restore, and background work that began in that time would make it wait. An announcement is a value; dropping it is the departure, so no path
//! on which a request fails can forget it. One that never departs, because the thread that held it hangs, counts no longer than [`Arrivals::TTL`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One engine of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineId(pub u64);

/// The registry. It has a lock of its own, held for as long as a count takes.
#[derive(Debug, Default)]
pub struct Arrivals {
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    next: u64,
    /// By number: whose, and when it was announced or admitted.
    present: BTreeMap<u64, (EngineId, Instant)>,
}

/// What the registry says to an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Present {
    /// Requests of this engine.
    pub here: usize,
    /// Requests of others.
    pub elsewhere: usize,
}

impl Present {
    /// All of them.
    pub fn total(self) -> usize {
        self.here + self.elsewhere
    }
}

/// A request's presence. Dropping it is its departure.
#[derive(Debug)]
pub struct Announced {
    registry: Arc<Arrivals>,
    number: u64,
}

impl Arrivals {
    /// How long a request counts that neither is admitted nor departs.
    pub const TTL: Duration = Duration::from_secs(120);

    /// Announces a request for `engine`.
    pub fn announce(self: &Arc<Self>, engine: EngineId, now: Instant) -> Announced {
        let mut entries = self.entries();
        let number = entries.next;
        entries.next += 1;
        entries.present.insert(number, (engine, now));
        drop(entries);
        Announced { registry: Arc::clone(self), number }
    }

    /// Who is present at `now`, as `engine` sees it. Whoever has been for longer than [`Arrivals::TTL`] is not.
    pub fn present(&self, engine: EngineId, now: Instant) -> Present {
        let mut present = Present::default();
        for (of, since) in self.entries().present.values() {
            if now.saturating_duration_since(*since) < Arrivals::TTL {
                match *of == engine {
                    true => present.here += 1,
                    false => present.elsewhere += 1,
                }
            }
        }
        present
    }

    /// Entries held, whether they count or not.
    pub fn entries_held(&self) -> usize {
        self.entries().present.len()
    }

    /// A thread that panicked cannot have left an entry half made.
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Announced {
    /// Its engine has admitted it: from `now` on it counts for another [`Arrivals::TTL`], even if it no longer did.
    pub fn renew(&self, engine: EngineId, now: Instant) {
        self.registry.entries().present.insert(self.number, (engine, now));
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        self.registry.entries().present.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: EngineId = EngineId(1);
    const B: EngineId = EngineId(2);

    #[test]
    fn h3_a_request_is_visible_from_arrival_until_departure_on_every_path() {
        let (registry, now) = (Arc::new(Arrivals::default()), Instant::now());
        let of = |engine| registry.present(engine, now);
        let request = registry.announce(B, now);
        assert_eq!(of(A), Present { here: 0, elsewhere: 1 });
        assert_eq!(of(B), Present { here: 1, elsewhere: 0 });
        request.renew(B, now);
        assert_eq!(of(A).total(), 1, "admission is no departure");
        drop(request);
        assert_eq!(of(A).total(), 0);
        // A failure anywhere between is a departure too.
        let fails = |registry: &Arc<Arrivals>| -> Result<(), ()> {
            let _request = registry.announce(B, now);
            Err(())
        };
        fails(&registry).unwrap_err();
        let panicking = Arc::clone(&registry);
        std::thread::spawn(move || {
            let _request = panicking.announce(B, Instant::now());
            panic!("on purpose");
        })
        .join()
        .unwrap_err();
        assert_eq!((of(A).total(), registry.entries_held()), (0, 0));
    }

    #[test]
    fn h3b_a_stale_arrival_expires_and_an_admission_renews_it() {
        let (registry, now) = (Arc::new(Arrivals::default()), Instant::now());
        let hung = registry.announce(A, now);
        let later = now + Arrivals::TTL - Duration::from_millis(1);
        assert_eq!(registry.present(A, later).total(), 1);
        let expired = now + Arrivals::TTL;
        assert_eq!(registry.present(A, expired).total(), 0);
        assert_eq!(registry.entries_held(), 1, "a question changes nothing");
        hung.renew(A, expired);
        assert_eq!(registry.present(A, expired).total(), 1);
        drop(hung);
        assert_eq!(registry.entries_held(), 0);
    }

    #[test]
    fn h4_a_question_while_others_come_and_go_is_answered_from_whole_entries() {
        let registry = Arc::new(Arrivals::default());
        let now = Instant::now();
        let preloaded: Vec<Announced> = (0..50_000).map(|_| registry.announce(A, now)).collect();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let request = registry.announce(B, now);
                        request.renew(B, now);
                    }
                });
            }
            scope.spawn(|| {
                for _ in 0..200 {
                    let Present { here, elsewhere } = registry.present(A, now);
                    assert_eq!(here, 50_000);
                    assert!(elsewhere <= 2);
                }
            });
        });
        assert_eq!(registry.present(A, now), Present { here: 50_000, elsewhere: 0 });
        drop(preloaded);
        assert_eq!(registry.entries_held(), 0);
    }

    proptest! {
        #[test]
        fn counts_are_those_of_a_list(steps in proptest::collection::vec((0u8..4, 0usize..8, 0u64..60), 0..200)) {
            let registry = Arc::new(Arrivals::default());
            let mut now = Instant::now();
            let mut model: Vec<(Announced, EngineId, Instant)> = Vec::new();
            for (what, which, seconds) in steps {
                now += Duration::from_secs(seconds);
                let engine = EngineId(which as u64 % 2);
                match what {
                    0 | 1 => model.push((registry.announce(engine, now), engine, now)),
                    2 if which < model.len() => drop(model.swap_remove(which)),
                    3 => {
                        if let Some((request, of, since)) = model.get_mut(which) {
                            request.renew(*of, now);
                            *since = now;
                        }
                    }
                    _ => {}
                }
                let counts = |engine: EngineId| {
                    let fresh = model.iter().filter(|(_, _, since)| now - *since < Arrivals::TTL);
                    let (here, elsewhere): (Vec<_>, Vec<_>) = fresh.partition(|(_, of, _)| *of == engine);
                    Present { here: here.len(), elsewhere: elsewhere.len() }
                };
                for engine in [EngineId(0), EngineId(1)] {
                    prop_assert_eq!(registry.present(engine, now), counts(engine));
                }
            }
            drop(model);
            prop_assert_eq!(registry.entries_held(), 0);
        }
    }
}
