//! Breakpoints: conditions at which a replay pauses.
//!
//! `suffix>4000` · `checkpoint<1000` · `prompt>=8000` · `debt>8000` (prefix-cache debt) · `canonical-debt>1000` · `pinned>=3` · `ttft>2` (seconds) ·
//! `cliff` · `cause=tools`, the cause by its identifier, its short word, or the beginning of either.
//!
//! Comparisons are `>`, `>=`, `<`, `<=` and `=`. A condition on what is not known, or not yet, does not hold.

use std::fmt;
use std::str::FromStr;

use super::{Ledger, RequestFacts};
use crate::config::suggest::nearest;
use crate::event::{Cause, Nanos, RequestId};
use crate::report::{seconds, thousands};

/// A condition on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Breakpoint {
    condition: Condition,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Count { quantity: Quantity, comparison: Comparison, bound: u64 },
    Ttft { comparison: Comparison, bound: Nanos },
    Cliff,
    Cause(Cause),
}

/// What is counted, in tokens or requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quantity {
    Suffix,
    Checkpoint,
    Prompt,
    Debt,
    CanonicalDebt,
    Pinned,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Greater,
    AtLeast,
    Less,
    AtMost,
    Equal,
}

/// When it is known of a request whether a condition holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnownAt {
    /// Once it is restored.
    Restored,
    /// With its first reply token.
    FirstToken,
    /// Once its blocks are stored.
    Stored,
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

impl Quantity {
    const ALL: [Quantity; 6] = [
        Quantity::Suffix,
        Quantity::Checkpoint,
        Quantity::Prompt,
        Quantity::Debt,
        Quantity::CanonicalDebt,
        Quantity::Pinned,
    ];

    fn word(self) -> &'static str {
        match self {
            Quantity::Suffix => "suffix",
            Quantity::Checkpoint => "checkpoint",
            Quantity::Prompt => "prompt",
            Quantity::Debt => "debt",
            Quantity::CanonicalDebt => "canonical-debt",
            Quantity::Pinned => "pinned",
        }
    }

    fn of(self, ledger: &Ledger, request: &RequestFacts) -> Option<u64> {
        let entry = || ledger.debt(request.lane).into_iter().find(|entry| entry.request == request.id);
        match self {
            Quantity::Suffix => request.suffix(),
            Quantity::Checkpoint => request.checkpoint(),
            Quantity::Prompt => request.prompt_tokens,
            Quantity::Debt => entry()?.prefix_cache_debt,
            Quantity::CanonicalDebt => request.canonical_debt(),
            Quantity::Pinned => Some(u64::from(entry()?.pinned_requests)),
        }
    }
}

impl Comparison {
    /// The longer signs first, since the shorter ones begin them.
    const ALL: [Comparison; 5] =
        [Comparison::AtLeast, Comparison::AtMost, Comparison::Greater, Comparison::Less, Comparison::Equal];

    fn sign(self) -> &'static str {
        match self {
            Comparison::Greater => ">",
            Comparison::AtLeast => ">=",
            Comparison::Less => "<",
            Comparison::AtMost => "<=",
            Comparison::Equal => "=",
        }
    }

    fn holds<T: Ord>(self, value: T, bound: T) -> bool {
        match self {
            Comparison::Greater => value > bound,
            Comparison::AtLeast => value >= bound,
            Comparison::Less => value < bound,
            Comparison::AtMost => value <= bound,
            Comparison::Equal => value == bound,
        }
    }
}

impl Breakpoint {
    /// When it is known of a request whether the condition holds; asked again later, the answer is the same.
    pub fn known_at(&self) -> KnownAt {
        match self.condition {
            Condition::Ttft { .. } => KnownAt::FirstToken,
            Condition::Count { quantity: Quantity::CanonicalDebt, .. } => KnownAt::Stored,
            Condition::Count { .. } | Condition::Cliff | Condition::Cause(_) => KnownAt::Restored,
        }
    }
}

impl FromStr for Breakpoint {
    type Err = BadBreakpoint;

    fn from_str(text: &str) -> Result<Breakpoint, BadBreakpoint> {
        let parsed = parse(&text.trim().to_lowercase());
        parsed
            .map(|condition| Breakpoint { condition })
            .map_err(|problem| BadBreakpoint { text: text.trim().to_owned(), problem })
    }
}

fn parse(text: &str) -> Result<Condition, String> {
    if text == "cliff" {
        return Ok(Condition::Cliff);
    }
    let Some(at) = text.find(['<', '>', '=']) else {
        return Err(match nearest(text, names()) {
            Some("cliff") => "did you mean `cliff`?".to_owned(),
            Some(name) => {
                format!("`{name}` needs something to be compared with, such as `{}`", example(name))
            }
            None => "it compares nothing".to_owned(),
        });
    };
    let (name, rest) = (text[..at].trim(), &text[at..]);
    let comparison = Comparison::ALL.into_iter().find(|comparison| rest.starts_with(comparison.sign()));
    let comparison = comparison.ok_or("it compares nothing")?;
    let value = rest[comparison.sign().len()..].trim();
    if value.is_empty() {
        return Err(format!("nothing stands behind `{}`", comparison.sign()));
    }
    match name {
        "cause" if comparison == Comparison::Equal => cause(value).map(Condition::Cause),
        "cause" => Err("a cause is the one asked for or not: `cause=tools`".to_owned()),
        "ttft" => Ok(Condition::Ttft { comparison, bound: duration(value)? }),
        name => {
            let quantity = Quantity::ALL.into_iter().find(|quantity| quantity.word() == name);
            let quantity = quantity.ok_or_else(|| match nearest(name, names()) {
                Some(meant) => format!("nothing is called `{name}`; did you mean `{meant}`?"),
                None => {
                    format!("nothing is called `{name}`; there is {}", names().collect::<Vec<_>>().join(", "))
                }
            })?;
            Ok(Condition::Count { quantity, comparison, bound: count(value)? })
        }
    }
}

/// What a condition can begin with.
fn names() -> impl Iterator<Item = &'static str> {
    Quantity::ALL.into_iter().map(Quantity::word).chain(["ttft", "cliff", "cause"])
}

fn example(name: &str) -> &'static str {
    match name {
        "cause" => "cause=tools",
        "ttft" => "ttft>2",
        "pinned" => "pinned>=3",
        "checkpoint" => "checkpoint<1000",
        "prompt" => "prompt>=8000",
        "debt" => "debt>8000",
        "canonical-debt" => "canonical-debt>1000",
        _ => "suffix>4000",
    }
}

/// A whole number, with or without separators of thousands.
fn count(text: &str) -> Result<u64, String> {
    let digits = text.replace([',', '_'], "");
    digits.parse().map_err(|_| format!("`{text}` is not a whole number of tokens or requests"))
}

/// Seconds, below a million: enough for a wait, and exact to the nanosecond.
fn duration(text: &str) -> Result<Nanos, String> {
    let number = text.strip_suffix('s').unwrap_or(text).trim_end();
    match number.parse::<f64>() {
        Ok(seconds) if (0.0..1e6).contains(&seconds) => Ok(Nanos::from_seconds(seconds)),
        Ok(_) => Err(format!("`{text}` is not between 0 and 1,000,000 seconds")),
        Err(_) => Err(format!("`{text}` is not a number of seconds")),
    }
}

/// The cause whose identifier or word `text` is, or begins.
fn cause(text: &str) -> Result<Cause, String> {
    let plain = |name: &str| name.to_lowercase().replace([' ', '-'], "_").trim_end_matches('.').to_owned();
    let text = plain(text);
    let names = |cause: Cause| [plain(cause.identifier()), plain(cause.word())];
    if let Some(cause) = Cause::ALL.into_iter().find(|cause| names(*cause).contains(&text)) {
        return Ok(cause);
    }
    let begun = |cause: &Cause| names(*cause).iter().any(|name| name.starts_with(&text));
    let candidates: Vec<_> = Cause::ALL.into_iter().filter(begun).collect();
    let list =
        |causes: &[Cause]| causes.iter().map(|cause| cause.identifier()).collect::<Vec<_>>().join(", ");
    match candidates.as_slice() {
        [cause] => Ok(*cause),
        [] => Err(match nearest(&text, Cause::ALL.into_iter().flat_map(|c| [c.identifier(), c.word()])) {
            Some(meant) => format!("no cause is called `{text}`; did you mean `{}`?", plain(meant)),
            None => format!("no cause is called `{text}`; there is {}", list(&Cause::ALL)),
        }),
        several => Err(format!("`{text}` may be {}", list(several))),
    }
}

impl fmt::Display for Breakpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.condition {
            Condition::Count { quantity, comparison, bound } => {
                write!(f, "{}{}{bound}", quantity.word(), comparison.sign())
            }
            Condition::Ttft { comparison, bound } => {
                write!(f, "ttft{}{}", comparison.sign(), bound.seconds())
            }
            Condition::Cliff => f.write_str("cliff"),
            Condition::Cause(cause) => write!(f, "cause={}", cause.identifier()),
        }
    }
}

impl Ledger {
    /// What was observed, where `condition` holds for `request`: `suffix 4,312`.
    pub fn observes(&self, condition: &Breakpoint, request: RequestId) -> Option<String> {
        let request = self.request(request)?;
        match condition.condition {
            Condition::Count { quantity, comparison, bound } => {
                let value = quantity.of(self, request).filter(|value| comparison.holds(*value, bound))?;
                Some(format!("{} {}", quantity.word(), thousands(value)))
            }
            Condition::Ttft { comparison, bound } => {
                let value = request.ttft.filter(|value| comparison.holds(*value, bound))?;
                Some(format!("ttft {}", seconds(value.seconds())))
            }
            Condition::Cliff => {
                let now = request.checkpoint()?;
                let step = self.checkpoint_step(request).filter(|step| step.cliff)?;
                let before = now.saturating_add(step.delta.unsigned_abs());
                Some(format!("checkpoint {} → {}", thousands(before), thousands(now)))
            }
            Condition::Cause(cause) => {
                request.restore.as_ref().filter(|restore| restore.cause == cause)?;
                request.cause_sentence()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn problem(text: &str) -> String {
        text.parse::<Breakpoint>().unwrap_err().to_string()
    }

    #[test]
    fn conditions_are_read_with_spaces_and_separators_and_written_without() {
        for (text, written) in [
            ("suffix>4000", "suffix>4000"),
            (" Suffix > 4,000 ", "suffix>4000"),
            ("checkpoint<1_000", "checkpoint<1000"),
            ("prompt>=8000", "prompt>=8000"),
            ("debt<=0", "debt<=0"),
            ("canonical-debt = 7", "canonical-debt=7"),
            ("pinned>=3", "pinned>=3"),
            ("ttft>2", "ttft>2"),
            ("ttft<0.25 s", "ttft<0.25"),
            ("CLIFF", "cliff"),
            ("cause=tools", "cause=tool_schema_changed"),
            ("cause=tool", "cause=tool_schema_changed"),
            ("cause=EVICTED", "cause=evicted"),
            ("cause=no_snap", "cause=no_snapshot"),
            ("cause=last tok", "cause=last_token_computed"),
            ("cause=placeh.", "cause=placeholder_refused"),
        ] {
            assert_eq!(text.parse::<Breakpoint>().unwrap().to_string(), written, "{text}");
        }
    }

    #[test]
    fn every_cause_is_found_by_what_the_table_and_the_rows_call_it() {
        for cause in Cause::ALL {
            for name in [cause.identifier(), cause.word()] {
                let found: Breakpoint = format!("cause={name}").parse().unwrap();
                assert_eq!(found.condition, Condition::Cause(cause), "{name}");
            }
        }
    }

    #[test]
    fn what_cannot_be_understood_is_told_with_what_may_have_been_meant() {
        for (text, words) in [
            ("sufix>4000", "did you mean `suffix`?"),
            ("clif", "did you mean `cliff`?"),
            ("suffix", "`suffix` needs something to be compared with, such as `suffix>4000`"),
            ("pinned", "`pinned>=3`"),
            ("suffix>", "nothing stands behind `>`"),
            ("suffix>many", "`many` is not a whole number"),
            ("suffix>-1", "`-1` is not a whole number"),
            ("ttft>x", "`x` is not a number of seconds"),
            ("ttft>nan", "is not between 0 and"),
            ("ttft>-1", "is not between 0 and"),
            ("cause>tools", "a cause is the one asked for or not"),
            ("cause=evicte", "cause=evicted"),
            ("cause=toolz", "did you mean `tools`?"),
            ("cause=xyzzy", "there is cold, appended"),
            ("cause=s", "may be system_changed"),
            ("temperature>1", "there is suffix, checkpoint"),
            ("", "it compares nothing"),
            ("=", "nothing stands behind `=`"),
        ] {
            match text.parse::<Breakpoint>() {
                Ok(found) => assert_eq!(found.to_string(), words, "{text}"),
                Err(error) => assert!(error.to_string().contains(words), "{text}: {error}"),
            }
        }
        assert!(problem("x").starts_with("`x` is no condition: "));
    }

    proptest! {
        #[test]
        fn a_condition_survives_being_written(
            quantity in prop::sample::select(Quantity::ALL.to_vec()),
            comparison in prop::sample::select(Comparison::ALL.to_vec()),
            cause in prop::sample::select(Cause::ALL.to_vec()),
            bound in any::<u64>(),
            nanos in 0..1_000_000_000_000_000_u64,
        ) {
            for condition in [
                Condition::Count { quantity, comparison, bound },
                Condition::Ttft { comparison, bound: Nanos(nanos) },
                Condition::Cliff,
                Condition::Cause(cause),
            ] {
                let breakpoint = Breakpoint { condition };
                prop_assert_eq!(breakpoint.to_string().parse::<Breakpoint>(), Ok(breakpoint));
            }
        }

        #[test]
        fn no_text_is_too_strange_to_be_refused(text in ".{0,40}") {
            let _ = text.parse::<Breakpoint>();
            let _ = format!("cause={text}").parse::<Breakpoint>();
            let _ = format!("suffix>{text}").parse::<Breakpoint>();
        }
    }
}
