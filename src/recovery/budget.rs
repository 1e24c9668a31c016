//! The budget: how much background work the process may do.
//!
//! Time is cut into *tumbling windows*. In each, slices may take an *allowance*: a share of the window's wall time, or a number of tokens, or both,
//! of which the one that is spent first counts. A slice is granted while the allowance is not spent, and charged when it has run, so the last one of
//! a window may overshoot. The overshoot is carried into the next window, but never more than one allowance of it; what a window leaves unspent is
//! lost.
//!
//! Two consequences that one should know. A slice that is longer than the allowance runs at most every second window, whatever the share: the share
//! that comes of it is `slice / (2 · window)`. And a share of wall time buys fewer tokens when the machine is busy with something else; a number of
//! tokens does not.
//!
//! There is one budget a process: every engine charges the same. It begins before any engine does, and an engine that goes takes nothing of what was
//! spent with it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How much may be spent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Allowance {
    /// Length of a window.
    pub window: Duration,
    /// Share of its wall time, from 0 to 1. What is not above 0 allows nothing.
    pub share: f64,
    /// Tokens a window, where their number is bounded too.
    pub tokens: Option<u64>,
}

impl Allowance {
    /// Wall time of a window that may be spent.
    pub fn time(&self) -> Duration {
        let share = if self.share > 0.0 { self.share.min(1.0) } else { 0.0 };
        self.window.mul_f64(share)
    }

    fn allows_anything(&self) -> bool {
        !self.window.is_zero() && self.share > 0.0 && self.tokens != Some(0)
    }
}

/// What was spent: time and tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spent {
    /// Wall time.
    pub time: Duration,
    /// Tokens computed.
    pub tokens: u64,
}

impl Spent {
    fn add(&mut self, more: Spent) {
        self.time += more.time;
        self.tokens = self.tokens.saturating_add(more.tokens);
    }
}

/// Why the budget grants no slice, or that it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    /// It does.
    Granted,
    /// The window is spent; the next one begins in this time.
    Spent {
        /// Until then.
        next_window: Duration,
    },
    /// It never grants anything.
    Nothing,
}

/// What there is to tell of a budget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// Engines that charge it.
    pub owners: usize,
    /// Windows that have ended, empty ones included.
    pub windows: u64,
    /// Spent in the running window, what was carried into it included.
    pub in_window: Spent,
    /// What was carried into it.
    pub carried: Spent,
    /// Everything ever charged.
    pub service: Spent,
    /// What a window allows.
    pub allowance: Allowance,
}

/// The account, by the time since it was opened. It knows no clock.
#[derive(Debug, Clone)]
struct Account {
    allowance: Allowance,
    owners: usize,
    windows: u64,
    in_window: Spent,
    carried: Spent,
    service: Spent,
}

impl Account {
    /// Brings the account into the window of `now`.
    fn roll(&mut self, now: Duration) {
        let window = self.allowance.window.as_nanos().max(1);
        let ended = u64::try_from(now.as_nanos() / window).unwrap_or(u64::MAX);
        while self.windows < ended {
            self.windows += 1;
            self.carried = self.overshoot();
            self.in_window = self.carried;
            if self.carried == Spent::default() {
                // The windows to come are all alike.
                self.windows = ended;
            }
        }
    }

    /// What the window spent above its allowance, at most one allowance.
    fn overshoot(&self) -> Spent {
        let time = self.allowance.time();
        let tokens = self.allowance.tokens.unwrap_or(0);
        let over = self.in_window.tokens.saturating_sub(tokens).min(tokens);
        Spent { time: self.in_window.time.saturating_sub(time).min(time), tokens: over }
    }

    fn grant(&self, now: Duration) -> Grant {
        if !self.allowance.allows_anything() {
            return Grant::Nothing;
        }
        let by_time = self.in_window.time < self.allowance.time();
        let by_tokens = self.allowance.tokens.is_none_or(|tokens| self.in_window.tokens < tokens);
        if by_time && by_tokens {
            return Grant::Granted;
        }
        let ends = self.allowance.window.as_nanos() * (u128::from(self.windows) + 1);
        let left = ends.saturating_sub(now.as_nanos());
        Grant::Spent { next_window: Duration::from_nanos(u64::try_from(left).unwrap_or(u64::MAX)) }
    }
}

/// The budget that engines share. Times are those since it was opened, by the clock of whoever asks.
#[derive(Debug, Clone)]
pub struct Budget {
    account: Arc<Mutex<Account>>,
}

/// An engine's part in it. Dropping it ends that, and changes nothing of what was spent.
#[derive(Debug)]
pub struct Owner {
    budget: Budget,
}

impl Budget {
    /// A budget of which nothing is spent, with nobody to spend it.
    pub fn open(allowance: Allowance) -> Budget {
        let account = Account {
            allowance,
            owners: 0,
            windows: 0,
            in_window: Spent::default(),
            carried: Spent::default(),
            service: Spent::default(),
        };
        Budget { account: Arc::new(Mutex::new(account)) }
    }

    /// Takes part in it.
    pub fn join(&self) -> Owner {
        self.account().owners += 1;
        Owner { budget: self.clone() }
    }

    /// Whether it grants a slice at `now`.
    pub fn grant(&self, now: Duration) -> Grant {
        let mut account = self.account();
        account.roll(now);
        account.grant(now)
    }

    /// What it stands at, at `now`.
    pub fn read(&self, now: Duration) -> Reading {
        let mut account = self.account();
        account.roll(now);
        let Account { allowance, owners, windows, in_window, carried, service } = account.clone();
        Reading { owners, windows, in_window, carried, service, allowance }
    }

    /// A thread that panicked cannot have left a charge half made.
    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Owner {
    /// Charges what a slice took that ended at `now`.
    pub fn charge(&self, now: Duration, spent: Spent) {
        let mut account = self.budget.account();
        account.roll(now);
        account.in_window.add(spent);
        account.service.add(spent);
    }

    /// The budget it has part in.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.budget.account().owners -= 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn budget(share: f64, window: f64, tokens: Option<u64>) -> Budget {
        Budget::open(Allowance { window: seconds(window), share, tokens })
    }

    fn took(time: f64) -> Spent {
        Spent { time: seconds(time), tokens: 0 }
    }

    /// Slices of `slice` seconds back to back whenever they are granted, for `total` seconds. Gives what they took.
    fn busy(budget: &Budget, slice: f64, total: f64) -> f64 {
        let owner = budget.join();
        let mut now = 0.0;
        while now < total {
            match budget.grant(seconds(now)) {
                Grant::Granted => {
                    now += slice;
                    owner.charge(seconds(now), took(slice));
                }
                Grant::Spent { next_window } => now += next_window.as_secs_f64().max(1e-9),
                Grant::Nothing => break,
            }
        }
        budget.read(seconds(now)).service.time.as_secs_f64()
    }

    #[test]
    fn f7_a_share_that_is_not_above_zero_grants_nothing() {
        for share in [0.0, -0.1, f64::NAN, f64::NEG_INFINITY] {
            assert_eq!(budget(share, 30.0, None).grant(Duration::ZERO), Grant::Nothing, "{share}");
        }
        assert_eq!(budget(0.5, 30.0, Some(0)).grant(Duration::ZERO), Grant::Nothing);
        assert_eq!(budget(0.5, 0.0, None).grant(Duration::ZERO), Grant::Nothing);
    }

    #[test]
    fn f7_overshoot_is_carried_up_to_one_allowance_and_what_is_unspent_is_lost() {
        let budget = budget(0.1, 30.0, None);
        let owner = budget.join();
        owner.charge(seconds(10.0), took(4.0));
        let second = budget.read(seconds(31.0));
        assert_eq!(second.carried, took(1.0));
        assert_eq!(budget.grant(seconds(31.0)), Grant::Granted, "2 of 3 s are left");
        owner.charge(seconds(45.0), took(14.0));
        // 15 of 3 s: 12 over, of which one allowance is carried, and that spends the next window.
        assert_eq!(budget.read(seconds(60.0)).carried, took(3.0));
        assert_eq!(budget.grant(seconds(70.0)), Grant::Spent { next_window: seconds(20.0) });
        // Nothing is left of it after that, however many windows pass.
        for at in [90.0, 300.0] {
            let reading = budget.read(seconds(at));
            assert_eq!((reading.carried, reading.in_window), (took(0.0), took(0.0)));
        }
        assert_eq!(budget.read(seconds(300.0)).windows, 10);
        assert_eq!(budget.read(seconds(300.0)).service, took(18.0));
    }

    #[test]
    fn f7_two_engines_charge_one_object_and_one_that_goes_takes_nothing_with_it() {
        let budget = budget(0.1, 30.0, None);
        let (a, b) = (budget.join(), budget.join());
        a.charge(seconds(1.0), took(2.0));
        b.charge(seconds(2.0), took(2.5));
        let now = seconds(3.0);
        assert_eq!(a.budget().read(now), b.budget().read(now));
        assert_eq!(a.budget().read(now).owners, 2);
        drop(b);
        let alone = budget.read(now);
        assert_eq!((alone.owners, alone.in_window, alone.service), (1, took(4.5), took(4.5)));
        assert_eq!(budget.read(seconds(30.0)).carried, took(1.5));
    }

    #[test]
    fn f8_below_a_slice_the_share_is_half_a_slice_a_window_whatever_was_set() {
        // The published case: slices of 16.8 s, windows of 30 s, and the same 28 % at 5, 10 and 20 %.
        for share in [0.05, 0.10, 0.20] {
            let service = busy(&budget(share, 30.0, None), 16.8, 3_000.0);
            let expected = 3_000.0 * 16.8 / 60.0;
            assert!((service - expected).abs() <= 16.8, "{share}: {service} against {expected}");
        }
    }

    #[test]
    fn tokens_are_bounded_by_themselves() {
        let budget = budget(1.0, 10.0, Some(1_000));
        let owner = budget.join();
        let charge = |at: f64, tokens| owner.charge(seconds(at), Spent { time: seconds(0.1), tokens });
        charge(1.0, 800);
        assert_eq!(budget.grant(seconds(1.0)), Grant::Granted);
        charge(2.0, 500);
        assert_eq!(budget.grant(seconds(2.0)), Grant::Spent { next_window: seconds(8.0) });
        assert_eq!(budget.read(seconds(10.0)).carried.tokens, 300);
        charge(11.0, 5_000);
        assert_eq!(budget.read(seconds(20.0)).carried.tokens, 1_000);
    }

    #[test]
    fn threads_that_charge_at_once_lose_nothing() {
        let budget = budget(0.5, 1.0, None);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let budget = &budget;
                scope.spawn(move || {
                    let owner = budget.join();
                    for step in 0..1_000 {
                        let now = Duration::from_millis(step * 3 + thread);
                        if budget.grant(now) == Grant::Granted {
                            owner.charge(now, Spent { time: Duration::from_micros(10), tokens: 1 });
                        }
                    }
                });
            }
        });
        let reading = budget.read(seconds(10.0));
        assert_eq!(reading.owners, 0);
        assert_eq!(
            reading.service.time,
            Duration::from_micros(10) * u32::try_from(reading.service.tokens).unwrap()
        );
    }

    proptest! {
        #[test]
        fn f7_over_any_windows_the_share_is_kept_but_for_one_slice_a_window_pair(
            share in 0.01f64..1.0,
            window in 1.0f64..60.0,
            slices in proptest::collection::vec((0.01f64..40.0, 0.0f64..20.0), 1..60),
        ) {
            let budget = budget(share, window, None);
            let owner = budget.join();
            let (mut now, mut longest) = (0.0f64, 0.0f64);
            for (slice, pause) in slices {
                now += pause;
                if budget.grant(seconds(now)) == Grant::Granted {
                    now += slice;
                    longest = longest.max(slice);
                    owner.charge(seconds(now), took(slice));
                }
                let reading = budget.read(seconds(now));
                let allowance = reading.allowance.time().as_secs_f64();
                prop_assert!(reading.carried.time.as_secs_f64() <= allowance + 1e-6);
                // Every window may spend its allowance and one slice that overshoots it.
                let windows = reading.windows as f64 + 1.0;
                let service = reading.service.time.as_secs_f64();
                prop_assert!(service <= windows * (allowance + longest) + 1e-6, "{service} in {windows} windows");
                if longest <= allowance {
                    // What overshoots is paid in the window after.
                    prop_assert!(service <= share * window * windows + longest + 1e-6, "{service} in {windows} windows");
                }
            }
        }
    }
}
