//! Whether a slice of background work may run now.
//!
//! The answer is a pure function of what surrounds the job, so it may be asked as often as one likes, from any thread, and nothing changes. It says
//! one of three things: run; wait, and keep what is live; or stand down, which lets unpublished state go, because somebody else needs the device or
//! its memory. What makes a job stand down is a closed list. That a peer's slice runs, or that the engine has not been idle for long, is not on it: these
//! pass within a step, and live state would be built and dropped for ever.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::arrivals::Present;
use super::budget::Grant;

/// Idle steps of the scheduler before a slice: an arrival that is on its way gets the first.
pub const IDLE_STEPS: u32 = 2;

/// What surrounds a job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Surroundings {
    /// Whether there is a job with something left to do.
    pub job: bool,
    /// Whether it holds live state.
    pub live: bool,
    /// Whether the engine's scheduler has a request, queued or running. Idleness follows from the scheduler's own state and nothing else.
    pub foreground_here: bool,
    /// Whether another engine of the process computes for somebody.
    pub foreground_elsewhere: bool,
    /// Requests that were announced and have not departed.
    pub present: Present,
    /// Whether the device has no memory for all of the next slice.
    pub memory_short: bool,
    /// What the budget says.
    pub budget: Grant,
    /// Steps in a row in which the scheduler had nothing to do.
    pub idle_steps: u32,
    /// Whether another engine's slice runs.
    pub claimed: bool,
}

/// What a job does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It may run a slice.
    Run,
    /// It does nothing and keeps what it has.
    Wait(Why),
    /// It does nothing, and live state goes.
    StandDown(Why),
}

/// Why no slice runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// There is no job, or nothing is left of it.
    NothingToDo,
    /// A request of this engine.
    ForegroundHere,
    /// A request that another engine computes for.
    ForegroundElsewhere,
    /// A request that was announced, to any engine.
    Arrival,
    /// The device has no memory for all of the next slice.
    MemoryShort,
    /// The budget's window is spent.
    BudgetSpent,
    /// The budget allows nothing at all.
    NoBudget,
    /// The engine has not been idle for [`IDLE_STEPS`].
    NotIdleYet,
    /// Another engine's slice runs.
    PeerSlice,
}

impl Why {
    /// In words, for a line of its own.
    pub fn words(self) -> &'static str {
        match self {
            Why::NothingToDo => "nothing to recover",
            Why::ForegroundHere => "a request runs",
            Why::ForegroundElsewhere => "another engine serves a request",
            Why::Arrival => "a request has arrived",
            Why::MemoryShort => "memory is short",
            Why::BudgetSpent => "the window's budget is spent",
            Why::NoBudget => "the budget allows nothing",
            Why::NotIdleYet => "the engine was busy just now",
            Why::PeerSlice => "another engine's slice runs",
        }
    }

    /// Whether live state goes for it.
    pub fn retires(self) -> bool {
        match self {
            Why::ForegroundHere
            | Why::ForegroundElsewhere
            | Why::Arrival
            | Why::MemoryShort
            | Why::BudgetSpent
            | Why::NoBudget => true,
            Why::NothingToDo | Why::NotIdleYet | Why::PeerSlice => false,
        }
    }
}

impl Surroundings {
    /// What the job does next. Of several reasons the first in the order of [`Why`] is named; but one that makes it stand down goes before one that
    /// does not.
    pub fn standing(&self) -> Standing {
        let reasons = [
            (!self.job && !self.live, Why::NothingToDo),
            (self.foreground_here, Why::ForegroundHere),
            (self.foreground_elsewhere, Why::ForegroundElsewhere),
            (self.present.total() > 0, Why::Arrival),
            (self.memory_short, Why::MemoryShort),
            (matches!(self.budget, Grant::Spent { .. }), Why::BudgetSpent),
            (self.budget == Grant::Nothing, Why::NoBudget),
            (!self.job, Why::NothingToDo),
            (self.idle_steps < IDLE_STEPS, Why::NotIdleYet),
            (self.claimed, Why::PeerSlice),
        ];
        match reasons.into_iter().find_map(|(holds, why)| holds.then_some(why)) {
            None => Standing::Run,
            Some(why) if self.live && why.retires() => Standing::StandDown(why),
            Some(why) => Standing::Wait(why),
        }
    }

    /// Whether the engine's loop has a step to make for the job. A job that stands down has one, in which its live state goes; then the answer is no
    /// until something changes, and the loop sleeps.
    pub fn wants_step(&self) -> bool {
        match self.standing() {
            Standing::Run | Standing::StandDown(_) => true,
            // Idle steps have to be made to be counted.
            Standing::Wait(Why::NotIdleYet) => true,
            Standing::Wait(_) => false,
        }
    }

    /// For how long nothing can change but by an arrival or another engine; `None` where nothing is to be waited for.
    pub fn sleeps_for(&self) -> Option<Duration> {
        match (self.standing(), self.budget) {
            (Standing::Wait(Why::BudgetSpent), Grant::Spent { next_window }) => Some(next_window),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A job with live state that may run.
    const FREE: Surroundings = Surroundings {
        job: true,
        live: true,
        foreground_here: false,
        foreground_elsewhere: false,
        present: Present { here: 0, elsewhere: 0 },
        memory_short: false,
        budget: Grant::Granted,
        idle_steps: IDLE_STEPS,
        claimed: false,
    };
    const SPENT: Grant = Grant::Spent { next_window: Duration::from_secs(3) };

    #[test]
    fn h2_every_trigger_of_the_list_lets_live_state_go() {
        let present = |here, elsewhere| Present { here, elsewhere };
        let triggers = [
            (Surroundings { foreground_here: true, ..FREE }, Why::ForegroundHere),
            (Surroundings { foreground_elsewhere: true, ..FREE }, Why::ForegroundElsewhere),
            (Surroundings { present: present(1, 0), ..FREE }, Why::Arrival),
            (Surroundings { present: present(0, 1), ..FREE }, Why::Arrival),
            (Surroundings { memory_short: true, ..FREE }, Why::MemoryShort),
            (Surroundings { budget: SPENT, ..FREE }, Why::BudgetSpent),
            (Surroundings { budget: Grant::Nothing, ..FREE }, Why::NoBudget),
        ];
        assert_eq!(FREE.standing(), Standing::Run);
        for (surroundings, why) in triggers {
            assert_eq!(surroundings.standing(), Standing::StandDown(why));
            let published_only = Surroundings { live: false, ..surroundings };
            assert_eq!(published_only.standing(), Standing::Wait(why));
        }
    }

    #[test]
    fn h2b_neither_idle_steps_nor_a_peers_slice_let_it_go() {
        for (surroundings, why) in [
            (Surroundings { idle_steps: 1, ..FREE }, Why::NotIdleYet),
            (Surroundings { claimed: true, ..FREE }, Why::PeerSlice),
        ] {
            assert_eq!(surroundings.standing(), Standing::Wait(why));
        }
        // But a trigger does, whatever else holds.
        let both = Surroundings { idle_steps: 0, claimed: true, budget: SPENT, ..FREE };
        assert_eq!(both.standing(), Standing::StandDown(Why::BudgetSpent));
    }

    #[test]
    fn h2e_f9_a_parked_job_takes_one_step_for_its_live_state_and_then_none() {
        let parked = Surroundings { budget: SPENT, ..FREE };
        assert!(parked.wants_step());
        let freed = Surroundings { live: false, ..parked };
        assert!(!freed.wants_step());
        assert_eq!(freed.sleeps_for(), Some(Duration::from_secs(3)));
        let rolled = Surroundings { budget: Grant::Granted, ..freed };
        assert!(rolled.wants_step() && rolled.sleeps_for().is_none());
    }

    #[test]
    fn f6_a_finished_job_is_not_runnable() {
        let finished = Surroundings { job: false, live: false, ..FREE };
        assert_eq!(finished.standing(), Standing::Wait(Why::NothingToDo));
        assert!(!finished.wants_step());
    }

    proptest! {
        #[test]
        fn f25_a_slice_runs_only_if_nobody_is_served_or_about_to_be(
            job in any::<bool>(), live in any::<bool>(), here in any::<bool>(), elsewhere in any::<bool>(),
            arrivals in 0usize..3, foreign in 0usize..3, memory_short in any::<bool>(), budget in 0usize..3,
            idle_steps in 0u32..4, claimed in any::<bool>(),
        ) {
            let surroundings = Surroundings {
                job, live, memory_short, idle_steps, claimed,
                foreground_here: here,
                foreground_elsewhere: elsewhere,
                present: Present { here: arrivals, elsewhere: foreign },
                budget: [Grant::Granted, SPENT, Grant::Nothing][budget],
            };
            let quiet = !here && !elsewhere && arrivals + foreign == 0 && !memory_short;
            let may = job && quiet && budget == 0 && idle_steps >= IDLE_STEPS && !claimed;
            prop_assert_eq!(surroundings.standing() == Standing::Run, may);
            match surroundings.standing() {
                Standing::StandDown(why) => prop_assert!(live && why.retires()),
                Standing::Wait(why) => prop_assert!(!live || !why.retires()),
                Standing::Run => {}
            }
        }
    }
}
