//! One request in every lane.

use serde::Serialize;

use super::kept::SegmentKept;
use super::recovery::Recovered;
use super::reply::ReplyDifference;
use super::speculation::Speculated;
use super::spread::Spread;
use crate::event::{LaneId, Survival};

/// Which request of the session: the same one in every lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Place {
    /// The line of history: the session's own, or a fork's.
    pub line: LaneId,
    /// The turn in it, from 1.
    pub turn: u32,
}

/// A request, lane by lane.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// Which.
    pub place: Place,
    /// Its name.
    pub name: String,
    /// Whether it stands beside the line of history.
    pub side: bool,
    /// The lanes in the order in which they computed it, in the first repeat; empty where that was not told.
    pub order: Vec<usize>,
    /// What is known of it, by lane; `None` in a lane it has not arrived in.
    pub cells: Vec<Option<Cell>>,
}

/// A request in one lane. Tokens are those of the first repeat, times are over all. A field is `None` where nobody measured it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cell {
    /// Prompt length.
    pub prompt_tokens: Option<u64>,
    /// The reusable checkpoint.
    pub checkpoint_tokens: Option<u64>,
    /// `prompt_tokens − checkpoint_tokens`.
    pub uncached_suffix: Option<u64>,
    /// Tokens the prefill computed.
    pub computed_tokens: Option<u64>,
    /// `prompt_tokens − canonical_tokens` when it had ended.
    pub canonical_debt_tokens: Option<u64>,
    /// `cache_hit`, `dense` or `sparse`.
    pub route: Option<&'static str>,
    /// From arrival to the first token, seconds.
    pub ttft_s: Option<Spread>,
    /// The same, summed up to this request.
    pub ttft_sum_s: Option<Spread>,
    /// From arrival to the end, seconds.
    pub whole_s: Option<Spread>,
    /// The same, summed up to this request.
    pub whole_sum_s: Option<Spread>,
    /// Time the scorer took, seconds; 0 where it was not asked in a run that has one.
    pub scorer_s: Option<Spread>,
    /// The same, summed up to this request.
    pub scorer_sum_s: Option<Spread>,
    /// Share of the scorer in the time to first token.
    pub scorer_share: Option<f64>,
    /// By how much the compared lane's summed time to first token exceeds this one's, seconds: positive where this lane leads. `None` in
    /// that lane itself.
    pub lead_s: Option<Spread>,
    /// Whether the prompt is the compared lane's; `None` where that has none, and in that lane itself.
    pub same_prompt: Option<bool>,
    /// The reply beside the compared lane's; `None` where the prompts are not the same, and in that lane itself.
    pub reply: Option<ReplyDifference>,
    /// What drafting was worth; `None` where nothing was asked to draft, and in the compared lane itself.
    pub speculation: Option<Speculated>,
    /// What background recovery did behind it; `None` in a lane without.
    pub recovery: Option<Recovered>,
    /// What was kept of the scoring window; empty where nothing was scored.
    pub kept: Vec<SegmentKept>,
    /// What is left of the identifiers that the recorded reply uses; `None` where nothing was dropped or no reply is recorded.
    pub survival: Option<Survived>,
    /// What went wrong.
    pub error: Option<String>,
}

/// Identifiers of a recorded reply that the prompt contains, and how many of them the kept tokens spell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Survived {
    /// Identifiers.
    pub identifiers: u64,
    /// Of those, such that are kept wherever they occur.
    pub everywhere: u64,
    /// Of those, such that are kept at least once.
    pub anywhere: u64,
}

impl From<&Survival> for Survived {
    fn from(survival: &Survival) -> Survived {
        let count = |test: fn(u64, u64) -> bool| {
            survival.identifiers.iter().filter(|word| test(word.kept, word.occurrences)).count() as u64
        };
        Survived {
            identifiers: survival.identifiers.len() as u64,
            everywhere: count(|kept, occurrences| kept >= occurrences),
            anywhere: count(|kept, _| kept > 0),
        }
    }
}

impl Place {
    /// The turn's number, behind its line's letter in all lines but the session's own: `4`, `B4`.
    pub fn label(self) -> String {
        if self.line == LaneId(0) {
            self.turn.to_string()
        } else {
            format!("{}{}", self.line.label(), self.turn)
        }
    }
}
