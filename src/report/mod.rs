//! Reports for people and programs: aligned tables, numbers the way every view shows them, verdicts in words, and reports in Markdown with charts.
//!
//! `–` is what nobody measured; a zero is a measurement.

mod account;
mod compare;
mod number;
mod recovery;
mod run;
mod speculation;
mod speculation_chart;
mod svg;
mod table;

pub use compare::{
    Chart, Report, compare_table, drafting_table, gap_line, lane_lines, notes, report, verdict_lines,
};
pub use number::{UNMEASURED, bytes, counted, or_dash, rate, seconds, signed_thousands, thousands};
pub use run::{cut_line, request_table, run_line, settings_line, summary};
pub use speculation::speculation_text;
pub use table::{Align, Table, printable};
