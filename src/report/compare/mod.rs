//! A comparison as text: what `compare` prints, and the report that it and `report` write.

mod facts;
mod table;

pub use facts::{lane_lines, notes, verdict_lines};
pub use table::compare_table;
