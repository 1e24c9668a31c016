//! Reports for people and programs: aligned tables, and numbers the way every view shows them.
//!
//! `–` is what nobody measured; a zero is a measurement.

mod number;
mod table;

pub use number::{UNMEASURED, bytes, or_dash, rate, seconds, signed_thousands, thousands};
pub use table::{Align, Table, printable};
