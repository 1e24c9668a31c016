//! Whether recovery keeps up with what a session adds: only where it recovers more than that, a debt is ever repaid.

use serde::Serialize;

use crate::event::LaneId;
use crate::ledger::Ledger;

/// What recovery published beside what the session added meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Pace {
    /// Tokens that jobs published.
    pub recovered: u64,
    /// Tokens by which the prompts of the line of history have grown since the first debt was considered.
    pub grown: u64,
}

/// Which of the two is more, by more than a twentieth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PaceClass {
    /// More is recovered than added.
    Repays,
    /// About as much.
    Holds,
    /// Less: the debt grows.
    FallsBehind,
}

impl PaceClass {
    /// As the study writes it.
    pub fn words(self) -> &'static str {
        match self {
            PaceClass::Repays => "recovery > growth",
            PaceClass::Holds => "recovery ~= growth",
            PaceClass::FallsBehind => "recovery < growth",
        }
    }
}

impl Pace {
    /// Which is more.
    pub fn class(self) -> PaceClass {
        let (recovered, grown) = (self.recovered as f64, self.grown as f64);
        match () {
            () if recovered > 1.05 * grown => PaceClass::Repays,
            () if recovered < 0.95 * grown => PaceClass::FallsBehind,
            () => PaceClass::Holds,
        }
    }
}

impl Ledger {
    /// What was recovered beside what `lane` added; `None` before a request has arrived since the first debt was considered.
    pub fn pace(&self, lane: LaneId) -> Option<Pace> {
        let since = self
            .recovery
            .considered()
            .iter()
            .find_map(|facts| facts.considered.taken.job().and(facts.request))?;
        let line = self.history(lane).into_iter().filter(|request| !request.is_side());
        let prompts: Vec<u64> = line
            .skip_while(|request| request.id != since)
            .filter_map(|request| request.prompt_tokens)
            .collect();
        let grown =
            prompts.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).reduce(u64::saturating_add)?;
        let tokens = self.recovery.jobs().flat_map(|job| job.published());
        let recovered = tokens.fold(0, |sum: u64, told| {
            let tokens = told.tokens();
            sum.saturating_add(tokens.end - tokens.start)
        });
        Some(Pace { recovered, grown })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::under_way;
    use super::*;

    #[test]
    fn what_was_published_is_held_against_what_the_prompts_grew_by() {
        let mut told = under_way();
        assert_eq!(told.ledger.pace(LaneId(0)), None);
        told.request(9_000, 8_200, 7_168);
        let pace = told.ledger.pace(LaneId(0)).unwrap();
        assert_eq!((pace.recovered, pace.grown, pace.class()), (2_048, 800, PaceClass::Repays));
        told.request(12_000, 9_000, 7_168);
        assert_eq!(told.ledger.pace(LaneId(0)).unwrap().class(), PaceClass::FallsBehind);
    }

    #[test]
    fn within_a_twentieth_they_are_alike() {
        let class = |recovered| Pace { recovered, grown: 1_000 }.class();
        assert_eq!(
            [class(1_051), class(1_050), class(950), class(949)].map(PaceClass::words),
            ["recovery > growth", "recovery ~= growth", "recovery ~= growth", "recovery < growth",]
        );
    }
}
