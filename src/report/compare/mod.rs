//! A comparison as text: what `compare` prints, and the report that it and `report` write.

mod charts;
mod drafting;
mod economics_chart;
mod facts;
mod markdown;
mod sentence;
mod table;

pub use charts::Chart;
pub use drafting::drafting_table;
pub use facts::{gap_line, lane_lines, notes, verdict_lines};
pub use markdown::{Report, report};
pub use table::compare_table;
