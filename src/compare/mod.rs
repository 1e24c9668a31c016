//! Lanes of the same session side by side: each with an engine and state of its own, stepped together, and compared turn by turn.
//!
//! [`LaneSpec`] says what a lane is, [`Lockstep`] runs lanes so that no two compute at once, [`Comparison`] folds what they tell. Nothing in
//! here prints or knows of a terminal.

mod comparison;
mod lane;
mod lockstep;

pub use comparison::Comparison;
pub use lane::{BadLane, DENSE, LANES, LaneSpec, SPARSE, lanes};
pub use lockstep::{LaneSetup, Lockstep, News};
