//! Lanes of the same session side by side: each with an engine and state of its own, stepped together, and compared turn by turn.
//!
//! [`LaneSpec`] says what a lane is, [`Lockstep`] runs lanes so that no two compute at once, [`Comparison`] folds what they tell. Nothing in
//! here prints or knows of a terminal.

mod comparison;
mod deviation;
mod kept;
mod lane;
mod lockstep;
mod recovery;
mod reply;
mod row;
mod speculation;
mod spread;
#[cfg(test)]
mod tests;
mod turn;
mod verdict;

pub use comparison::Comparison;
pub use deviation::{Split, why_off};
pub use kept::SegmentKept;
pub use lane::{BadLane, DENSE, LANES, LaneSpec, NONE, PROGRESSIVE, SPARSE, TERMINAL, lanes};
pub use lockstep::{LaneSetup, Lockstep, News, To};
pub use recovery::{Recovered, RecoverySums};
pub use reply::{Closeness, ReplyDifference};
pub use row::CompareRow;
pub use speculation::{HELD_WITHIN, Speculated, SpeedUp, Worth};
pub use spread::Spread;
pub use turn::{Cell, Place, Survived, Turn};
pub use verdict::{Disagreement, Lead, Outcome, Owed, Verdict};
