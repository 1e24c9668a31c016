//! Breakpoints: conditions at which a replay pauses.
//!
//! `suffix>4000` · `checkpoint<1000` · `prompt>=8000` · `debt>8000` (prefix-cache debt) · `canonical-debt>1000` · `pinned>=3` · `ttft>2` (seconds) ·
//! `cliff` · `cause=tools`, the cause by its identifier, its short word, or the beginning of either.

use std::fmt;
use std::str::FromStr;

/// A condition on a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breakpoint {
    text: String,
}

/// A condition that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no condition: {problem}; write `suffix>4000`, `cliff`, `cause=tools`, `pinned>=3` or `debt>8000`"
)]
pub struct BadBreakpoint {
    text: String,
    problem: String,
}

impl FromStr for Breakpoint {
    type Err = BadBreakpoint;

    fn from_str(text: &str) -> Result<Breakpoint, BadBreakpoint> {
        Ok(Breakpoint { text: text.trim().to_owned() })
    }
}

impl fmt::Display for Breakpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
