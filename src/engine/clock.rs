//! The engine's clock.
//!
//! Under the *wall* clock time passes by itself. Under the *virtual* clock it passes only by what is spent on it: compute
//! takes as long as it was measured (on `sim`, as long as the cost model says) and idle gaps pass at once, though
//! every timer sees them in full.

use std::time::{Duration, Instant};

use crate::config::ClockKind;
use crate::event::{Nanos, Stamp};

/// Engine time.
#[derive(Debug, Clone)]
pub enum Clock {
    /// Real time since the start.
    Wall {
        /// The start.
        start: Instant,
        /// Whether compute is only modelled, and must therefore be waited for.
        simulated: bool,
    },
    /// Accounted time since the start.
    Virtual {
        /// Now.
        now: Stamp,
        /// Whether compute is only modelled: the host's own time then counts as zero, so that runs repeat exactly.
        simulated: bool,
    },
}

impl Clock {
    /// A clock at zero.
    pub fn start(kind: ClockKind, simulated: bool) -> Clock {
        match kind {
            ClockKind::Wall => Clock::Wall { start: Instant::now(), simulated },
            ClockKind::Virtual => Clock::Virtual { now: Stamp(0), simulated },
        }
    }

    /// Whether time passes only by what is spent on it.
    pub fn is_virtual(&self) -> bool {
        matches!(self, Clock::Virtual { .. })
    }

    /// Now.
    pub fn now(&self) -> Stamp {
        match self {
            Clock::Wall { start, .. } => Stamp(Nanos::from(start.elapsed()).0),
            Clock::Virtual { now, .. } => *now,
        }
    }

    /// Whether compute is only modelled, and has to be waited for.
    pub fn waits_for_compute(&self) -> bool {
        matches!(self, Clock::Wall { simulated: true, .. })
    }

    /// Accounts for compute that a device reports.
    pub fn spend(&mut self, compute: Nanos) {
        match self {
            Clock::Wall { simulated: true, .. } => std::thread::sleep(Duration::from_nanos(compute.0)),
            Clock::Wall { simulated: false, .. } => {}
            Clock::Virtual { now, .. } => now.0 = now.0.saturating_add(compute.0),
        }
    }

    /// Runs the engine's own work and gives the time it took, accounted for.
    pub fn measure<T>(&mut self, work: impl FnOnce() -> T) -> (T, Nanos) {
        let mut laps = Laps::begin();
        let result = work();
        (result, laps.lap(self))
    }

    /// Accounts for the engine's own work: what counts of it.
    fn own(&mut self, took: Nanos) -> Nanos {
        match self {
            Clock::Wall { .. } => took,
            Clock::Virtual { simulated: true, .. } => Nanos(0),
            Clock::Virtual { now, simulated: false } => {
                now.0 = now.0.saturating_add(took.0);
                took
            }
        }
    }

    /// Runs work of which a device did part and gives the time it took, accounted for: all of it as it was measured, or where compute is only
    /// modelled what the work reports beside its result.
    pub fn account<T>(&mut self, work: impl FnOnce() -> (T, Nanos)) -> (T, Nanos) {
        let simulated =
            matches!(self, Clock::Wall { simulated: true, .. } | Clock::Virtual { simulated: true, .. });
        if simulated {
            let (result, compute) = work();
            self.spend(compute);
            return (result, compute);
        }
        let ((result, _), took) = self.measure(work);
        (result, took)
    }

    /// Lets time pass up to `until` at once, where this clock can. It never goes back.
    pub fn skip_to(&mut self, until: Stamp) {
        if let Clock::Virtual { now, .. } = self {
            *now = (*now).max(until);
        }
    }
}

/// Pieces of the engine's own work that follow one another. Looking at real time costs tens of nanoseconds, of about a microsecond that a step takes
/// for each of many sequences, so each piece ends with the look that the next one begins with.
pub struct Laps(Instant);

impl Laps {
    /// The first piece begins.
    pub fn begin() -> Laps {
        Laps(Instant::now())
    }

    /// A piece ends and the next one begins. Gives the time it took, accounted for as by [`Clock::measure`].
    pub fn lap(&mut self, clock: &mut Clock) -> Nanos {
        let now = Instant::now();
        let took = now.saturating_duration_since(std::mem::replace(&mut self.0, now));
        clock.own(Nanos::from(took))
    }

    /// When the latest piece ended.
    pub fn stamp(&self, clock: &Clock) -> Stamp {
        match clock {
            Clock::Wall { start, .. } => Stamp(Nanos::from(self.0.saturating_duration_since(*start)).0),
            Clock::Virtual { now, .. } => *now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_gap_passes_at_once_and_in_full() {
        let mut clock = Clock::start(ClockKind::Virtual, true);
        let began = Instant::now();
        clock.skip_to(Stamp(3_600_000_000_000));
        clock.skip_to(Stamp(0));
        clock.spend(Nanos::from_seconds(1.5));
        assert_eq!(clock.now(), Stamp(3_601_500_000_000));
        assert!(began.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn laps_add_up_to_what_passed() {
        let mut clock = Clock::start(ClockKind::Virtual, false);
        let mut laps = Laps::begin();
        std::thread::sleep(Duration::from_millis(2));
        let first = laps.lap(&mut clock);
        let second = laps.lap(&mut clock);
        assert!(first.0 >= 2_000_000, "{first:?}");
        assert_eq!((clock.now(), laps.stamp(&clock)), (Stamp(first.0 + second.0), clock.now()));
        let wall = Clock::start(ClockKind::Wall, false);
        assert!(Laps::begin().stamp(&wall) <= wall.now());
    }

    #[test]
    fn host_time_does_not_leak_into_a_simulated_run() {
        let mut clock = Clock::start(ClockKind::Virtual, true);
        let ((), took) = clock.measure(|| std::thread::sleep(Duration::from_millis(2)));
        assert_eq!((took, clock.now()), (Nanos(0), Stamp(0)));
        let mut measured = Clock::start(ClockKind::Virtual, false);
        let ((), took) = measured.measure(|| std::thread::sleep(Duration::from_millis(2)));
        assert!(took.0 >= 2_000_000 && measured.now().0 == took.0);
    }
}
