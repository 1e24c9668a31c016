//! The engines of a process, as far as they have to know of each other: who is served or about to be, whose slice runs, what background work may take.
//!
//! All of it is shared by whoever was started with the same [`Neighbours`]. Engines that must not disturb each other, such as lanes that are compared, get
//! one each.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::arrivals::{Announced, Arrivals, EngineId, Present};
use super::budget::{Allowance, Budget, Owner};
use super::claim::{Claim, Held};
use crate::config::RecoveryConfig;

/// What the engines of a process share. Cloning it shares it.
#[derive(Debug, Clone)]
pub struct Neighbours {
    arrivals: Arc<Arrivals>,
    claim: Arc<Claim>,
    budget: Budget,
    opened: Instant,
    engines: Arc<AtomicU64>,
    busy: Arc<AtomicUsize>,
}

/// An engine among them. Dropping it is its end: what it spent stays spent.
#[derive(Debug)]
pub struct Member {
    neighbours: Neighbours,
    id: EngineId,
    owner: Owner,
    /// Whether it counts as busy. Nobody but it writes this.
    busy: Mutex<bool>,
}

impl Neighbours {
    /// Nobody, with nothing spent of what `config` allows.
    pub fn open(config: &RecoveryConfig) -> Neighbours {
        let allowance = Allowance {
            window: Duration::from_secs_f64(config.window_s),
            share: config.budget_pct / 100.0,
            tokens: config.budget_tokens,
        };
        Neighbours {
            arrivals: Arc::default(),
            claim: Arc::default(),
            budget: Budget::open(allowance),
            opened: Instant::now(),
            engines: Arc::default(),
            busy: Arc::default(),
        }
    }

    /// Joins them.
    pub fn join(&self) -> Member {
        let id = EngineId(self.engines.fetch_add(1, Ordering::Relaxed));
        let owner = self.budget.join();
        Member { neighbours: self.clone(), id, owner, busy: Mutex::new(false) }
    }

    /// The registry of arrivals.
    pub fn arrivals(&self) -> &Arc<Arrivals> {
        &self.arrivals
    }

    /// The budget.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Wall time since they were opened, by which their budget's windows go.
    pub fn since_opened(&self) -> Duration {
        self.opened.elapsed()
    }
}

impl Member {
    /// Its number.
    pub fn id(&self) -> EngineId {
        self.id
    }

    /// Those it is one of.
    pub fn neighbours(&self) -> &Neighbours {
        &self.neighbours
    }

    /// Its part in the budget.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Announces a request that it will serve.
    pub fn announce(&self) -> Announced {
        self.neighbours.arrivals.announce(self.id, Instant::now())
    }

    /// One of its requests has been admitted: it counts from now on anew.
    pub fn renew(&self, request: &Announced) {
        request.renew(self.id, Instant::now());
    }

    /// The requests that were announced and have not departed.
    pub fn present(&self) -> Present {
        self.neighbours.arrivals.present(self.id, Instant::now())
    }

    /// Takes the claim to run a slice; `None` while another engine holds it.
    pub fn claim(&self) -> Option<Held> {
        self.neighbours.claim.take()
    }

    /// Whether somebody holds the claim.
    pub fn is_claimed(&self) -> bool {
        self.neighbours.claim.is_held()
    }

    /// Tells whether it computes for somebody.
    pub fn serves(&self, busy: bool) {
        let mut was = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        match (std::mem::replace(&mut *was, busy), busy) {
            (false, true) => {
                self.neighbours.busy.fetch_add(1, Ordering::Relaxed);
            }
            (true, false) => {
                self.neighbours.busy.fetch_sub(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// Whether another engine computes for somebody.
    pub fn others_serve(&self) -> bool {
        let here = *self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        self.neighbours.busy.load(Ordering::Relaxed) > usize::from(here)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.serves(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recovery::budget::Spent;

    #[test]
    fn h3_what_one_engine_announces_or_serves_the_others_see_and_it_ends_with_the_engine() {
        let neighbours = Neighbours::open(&RecoveryConfig::default());
        let (a, b) = (neighbours.join(), neighbours.join());
        let request = b.announce();
        assert_eq!((a.present().elsewhere, b.present().here), (1, 1));
        drop(request);
        assert_eq!(a.present().total(), 0);
        b.serves(true);
        b.serves(true);
        assert!(a.others_serve() && !b.others_serve());
        drop(b);
        assert!(!a.others_serve());
    }

    #[test]
    fn f7_engines_that_joined_charge_one_budget_and_strangers_have_their_own() {
        let neighbours = Neighbours::open(&RecoveryConfig::default());
        let (a, b) = (neighbours.join(), neighbours.join());
        let spent = Spent { time: Duration::from_secs(1), tokens: 10 };
        a.owner().charge(Duration::ZERO, spent);
        b.owner().charge(Duration::ZERO, spent);
        let reading = neighbours.budget().read(Duration::ZERO);
        assert_eq!((reading.owners, reading.service.tokens), (2, 20));
        let stranger = Neighbours::open(&RecoveryConfig::default());
        assert_eq!(stranger.budget().read(Duration::ZERO).service.tokens, 0);
        assert_ne!(a.id(), b.id());
    }

    #[test]
    fn at_most_one_slice_runs_at_once() {
        let neighbours = Neighbours::open(&RecoveryConfig::default());
        let (a, b) = (neighbours.join(), neighbours.join());
        let held = a.claim().unwrap();
        assert!(b.claim().is_none() && b.is_claimed());
        drop(held);
        assert!(b.claim().is_some());
    }
}
