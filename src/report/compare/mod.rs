//! A comparison as text: what `compare` prints, and the report that it and `report` write.

mod charts;
mod facts;
mod markdown;
mod sentence;
mod table;

pub use charts::Chart;
pub use facts::{lane_lines, notes, verdict_lines};
pub use markdown::{Report, report};
pub use table::compare_table;
