//! Faults on the command line: what is to go wrong, and before which turn.

use std::str::FromStr;

use crate::engine::{BadFault, Fault};

/// A fault and the turn before which it is to happen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Timed {
    pub(super) turn: u32,
    pub(super) fault: Fault,
}

impl FromStr for Timed {
    type Err = String;

    fn from_str(text: &str) -> Result<Timed, String> {
        let (turn, fault) = text.split_once(':').ok_or("write N:FAULT, for example 8:evict-block:3")?;
        let turn = turn
            .parse()
            .map_err(|_| format!("`{turn}` is no turn; write N:FAULT, for example 8:evict-block:3"))?;
        let fault = fault.parse().map_err(|error: BadFault| error.to_string())?;
        Ok(Timed { turn, fault })
    }
}
