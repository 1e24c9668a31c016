//! What another threshold, or another choice of units, would have made of a request that was scored: the knobs and what the keys do to them.
//!
//! Threshold, keep fraction and tail need the units' scores only, which the event of the scoring holds. Another unit size, smoothing or
//! aggregation needs the attention itself: the engine kept that of its latest scoring, and is asked.

mod draw;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::config::{Aggregation, SparseOverride, SpecPrefillConfig};
use crate::engine::{Command, Rescore};
use crate::event::{Effective, RequestId, Rescored, RunFacts, SetBy, SparseSettings};
use crate::ledger::{Ledger, RequestFacts};
use crate::prefill::sparse::select;

pub(super) use draw::draw;

/// A knob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Knob {
    Keep,
    Threshold,
    Tail,
    Pool,
    Unit,
    Aggregation,
}

impl Knob {
    const ALL: [Knob; 6] =
        [Knob::Keep, Knob::Threshold, Knob::Tail, Knob::Pool, Knob::Unit, Knob::Aggregation];

    fn name(self) -> &'static str {
        match self {
            Knob::Keep => "keep",
            Knob::Threshold => "threshold",
            Knob::Tail => "tail",
            Knob::Pool => "pool",
            Knob::Unit => "unit",
            Knob::Aggregation => "aggregation",
        }
    }

    /// Whether other scores are needed than those at hand.
    fn asks(self) -> bool {
        matches!(self, Knob::Pool | Knob::Unit | Knob::Aggregation)
    }
}

const KEEPS: [f64; 22] = [
    0.01, 0.02, 0.03, 0.05, 0.075, 0.10, 0.15, 0.20, 0.25, 0.30, 0.35, 0.40, 0.45, 0.50, 0.55, 0.60, 0.70,
    0.80, 0.85, 0.90, 0.95, 1.0,
];
const TOKENS: [u64; 21] = [
    0, 32, 64, 128, 256, 512, 768, 1_024, 1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576,
    32_768, 49_152, 65_536, 131_072,
];
const POOLS: [u64; 9] = [1, 3, 5, 9, 13, 17, 25, 33, 65];
const UNITS: [u64; 8] = [4, 8, 16, 32, 64, 128, 256, 512];
const AGGREGATIONS: [Aggregation; 3] = [Aggregation::MaxMean, Aggregation::MeanMean, Aggregation::MaxMax];

/// All knobs.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Knobs {
    keep: f64,
    threshold: u64,
    tail: u64,
    pool: u64,
    unit: u64,
    aggregation: Aggregation,
}

impl Knobs {
    /// Those that `request` was served by, as far as is told; the run's, and the defaults, elsewhere.
    fn of(run: Option<&RunFacts>, request: Option<&RequestFacts>) -> Knobs {
        let run = run.and_then(|run| run.specprefill.as_ref());
        let defaults = SpecPrefillConfig::default();
        let settings = request.and_then(|request| Some(&request.admission.as_ref()?.settings));
        let scored = request.and_then(|request| request.scored.as_ref());
        let whole = |value: usize| value as u64;
        let run_or = |told: Option<u64>, default: usize| told.unwrap_or(whole(default));
        Knobs {
            keep: settings
                .map(|settings| settings.keep.value)
                .or(run.map(|run| run.keep))
                .unwrap_or(SpecPrefillConfig::KEEP),
            threshold: settings
                .map(|settings| settings.threshold.value)
                .or(run.map(|run| run.threshold))
                .unwrap_or(SpecPrefillConfig::THRESHOLD),
            tail: run_or(run.and_then(|run| run.tail_tokens), defaults.tail_tokens),
            pool: run_or(run.and_then(|run| run.pool), defaults.pool),
            unit: scored.map_or(whole(defaults.unit), |scored| scored.unit_tokens),
            aggregation: run.and_then(|run| run.aggregation).unwrap_or(defaults.aggregation),
        }
    }

    fn turn(&mut self, knob: Knob, by: isize) {
        match knob {
            Knob::Keep => self.keep = next(&KEEPS, self.keep, by, |a, b| a < b),
            Knob::Threshold => self.threshold = next(&TOKENS, self.threshold, by, |a, b| a < b),
            Knob::Tail => self.tail = next(&TOKENS[..10], self.tail, by, |a, b| a < b),
            Knob::Pool => self.pool = next(&POOLS, self.pool, by, |a, b| a < b),
            Knob::Unit => self.unit = next(&UNITS, self.unit, by, |a, b| a < b),
            Knob::Aggregation => {
                let at = AGGREGATIONS.iter().position(|a| *a == self.aggregation).unwrap_or(0);
                let count = AGGREGATIONS.len() as isize;
                self.aggregation = AGGREGATIONS[(at as isize + by).rem_euclid(count) as usize];
            }
        }
    }

    /// Whether the scores at hand are those of these knobs.
    fn same_scores(&self, other: &Knobs) -> bool {
        (self.pool, self.unit, self.aggregation) == (other.pool, other.unit, other.aggregation)
    }
}

/// The value of `values` (ascending) beyond `value`, upwards or downwards; `value` where there is none.
fn next<T: Copy>(values: &[T], value: T, by: isize, less: impl Fn(T, T) -> bool) -> T {
    let found = if by > 0 {
        values.iter().find(|other| less(value, **other))
    } else {
        values.iter().rev().find(|other| less(**other, value))
    };
    found.copied().unwrap_or(value)
}

/// The open explorer.
#[derive(Debug, Clone, PartialEq)]
pub struct Explorer {
    /// The request it is about; `None` where there is none yet.
    request: Option<RequestId>,
    /// The knob that keys turn.
    knob: usize,
    /// As the request was served.
    served: Knobs,
    /// As they were turned.
    knobs: Knobs,
    /// The number of the question that is under way.
    asked: Option<u64>,
    /// The answer to the last one, and the knobs it is of.
    answer: Option<(Knobs, Box<Rescored>)>,
}

/// What a key did.
#[derive(Debug, PartialEq)]
pub enum Outcome {
    /// Nothing to do outside.
    Stays,
    /// Left.
    Left,
    /// Other scores are needed: a question to send, for which this is the number.
    Ask,
    /// Threshold and keep fraction are to be set by hand.
    Set(Command),
}

/// Units chosen from scores.
struct Choice {
    /// Kept ranges, absolute.
    kept: Vec<(u64, u64)>,
    /// Tokens in them.
    tokens: u64,
}

impl Explorer {
    /// An explorer of `request`.
    pub fn new(ledger: &Ledger, request: Option<&RequestFacts>) -> Explorer {
        let served = Knobs::of(ledger.run(), request);
        Explorer {
            request: request.map(|request| request.id),
            knob: 0,
            served,
            knobs: served,
            asked: None,
            answer: None,
        }
    }

    /// Takes a key. `by_hand` is what stands set by hand.
    pub fn key(&mut self, key: KeyEvent, by_hand: SparseOverride) -> Outcome {
        let before = self.knobs;
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        let count = Knob::ALL.len();
        match key.code {
            KeyCode::Esc | KeyCode::Char('q') => return Outcome::Left,
            KeyCode::Char('c') if control => return Outcome::Left,
            KeyCode::Up | KeyCode::Char('k') => self.knob = (self.knob + count - 1) % count,
            KeyCode::Down | KeyCode::Char('j') | KeyCode::Tab => self.knob = (self.knob + 1) % count,
            KeyCode::Left | KeyCode::Char('h') => self.knobs.turn(self.chosen(), -1),
            KeyCode::Right | KeyCode::Char('l') => self.knobs.turn(self.chosen(), 1),
            KeyCode::Backspace | KeyCode::Char('0') => self.knobs = self.served,
            KeyCode::Enter => {
                return Outcome::Set(Command::SpecPrefill(SparseOverride {
                    keep: Some(self.knobs.keep),
                    threshold: Some(self.knobs.threshold),
                    ..by_hand
                }));
            }
            _ => {}
        }
        let known = self.knobs.same_scores(&self.served)
            || self.answer.as_ref().is_some_and(|(knobs, _)| knobs.same_scores(&self.knobs));
        if known {
            self.asked = None;
            Outcome::Stays
        } else if self.knobs.same_scores(&before) && self.asked.is_some() {
            Outcome::Stays
        } else {
            Outcome::Ask
        }
    }

    fn chosen(&self) -> Knob {
        Knob::ALL[self.knob % Knob::ALL.len()]
    }

    /// The question for other scores, sent as `ticket`; `None` where there is no request to ask about.
    pub fn question(&mut self, ticket: u64) -> Option<Command> {
        let request = self.request?;
        self.asked = Some(ticket);
        let whole = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let Knobs { keep, tail, pool, unit, aggregation, .. } = self.knobs;
        let knobs =
            Rescore { keep, pool: whole(pool), unit: whole(unit), tail_tokens: whole(tail), aggregation };
        Some(Command::Rescore { ticket, request, knobs })
    }

    /// Takes an answer; only one to the last question counts.
    pub fn answered(&mut self, rescored: &Rescored) {
        if self.asked == Some(rescored.ticket) {
            self.asked = None;
            self.answer = Some((self.knobs, Box::new(rescored.clone())));
        }
    }

    /// What the knobs choose of `request`'s window; `None` while scores for them are not at hand.
    fn choice(&self, request: &RequestFacts) -> Option<Choice> {
        let scored = request.scored.as_ref()?;
        let (scores, unit) = if self.knobs.same_scores(&self.served) {
            (&scored.unit_scores, scored.unit_tokens)
        } else {
            let (knobs, answer) = self.answer.as_ref()?;
            let fits = knobs.same_scores(&self.knobs) && answer.problem.is_none();
            // An answer of another window has another number of units.
            let units = scored.scored_tokens.div_ceil(answer.unit_tokens.max(1));
            if !fits || answer.unit_scores.len() as u64 != units {
                return None;
            }
            (&answer.unit_scores, answer.unit_tokens)
        };
        let whole = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let unit = whole(unit.max(1));
        // As many tokens as there are scores for, whatever the event says: a recording may say anything.
        let window = whole(scored.scored_tokens).min(scores.len().saturating_mul(unit));
        let selection = select(scores, window, unit, self.knobs.keep, whole(self.knobs.tail));
        let at = |offset: usize| scored.origin.saturating_add(offset as u64);
        Some(Choice {
            kept: selection.kept.iter().map(|kept| (at(kept.start), at(kept.end))).collect(),
            tokens: selection.selected_tokens as u64,
        })
    }

    /// Why there is no choice.
    fn obstacle(&self, ledger: &Ledger, request: &RequestFacts) -> String {
        let latest =
            ledger.requests().rev().find(|request| request.scored.is_some()).map(|request| request.id);
        match &self.answer {
            _ if request.scored.is_none() => "nothing was scored for this request".to_owned(),
            _ if self.asked.is_some() => "asking for other scores…".to_owned(),
            Some((_, answer)) if answer.problem.is_some() => answer.problem.clone().unwrap_or_default(),
            _ if latest != Some(request.id) => {
                "pool, unit and aggregation: of the latest scoring only, whose attention is kept".to_owned()
            }
            _ => "no scores for these knobs".to_owned(),
        }
    }

    /// Who set what the request was served by, for a knob.
    fn set_by(knob: Knob, settings: Option<&SparseSettings>) -> Option<SetBy> {
        let who = |set_by: &SetBy| set_by.clone();
        match knob {
            Knob::Keep => settings.map(|settings: &SparseSettings| who(&settings.keep.set_by)),
            Knob::Threshold => settings.map(|settings| {
                let Effective { set_by, .. } = &settings.threshold;
                who(set_by)
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(explorer: &mut Explorer, code: KeyCode) -> Outcome {
        explorer.key(KeyEvent::new(code, KeyModifiers::NONE), SparseOverride::default())
    }

    #[test]
    fn values_between_two_steps_go_to_the_neighbour_and_the_ends_stay() {
        let keep = |value, by| next(&KEEPS, value, by, |a, b| a < b);
        assert_eq!((keep(0.2, 1), keep(0.2, -1)), (0.25, 0.15));
        assert_eq!((keep(0.22, 1), keep(0.22, -1)), (0.25, 0.2));
        assert_eq!((keep(1.0, 1), keep(0.01, -1)), (1.0, 0.01));
    }

    #[test]
    fn only_other_scores_are_asked_for() {
        let mut explorer = Explorer { request: Some(RequestId(1)), ..Explorer::new(&Ledger::new(), None) };
        assert_eq!(press(&mut explorer, KeyCode::Right), Outcome::Stays, "the keep fraction needs no others");
        for _ in 0..3 {
            press(&mut explorer, KeyCode::Down);
        }
        assert_eq!(press(&mut explorer, KeyCode::Right), Outcome::Ask);
        let Some(Command::Rescore { knobs, .. }) = explorer.question(7) else { panic!() };
        assert_eq!((knobs.pool, knobs.keep), (17, 0.25));
        assert_eq!(press(&mut explorer, KeyCode::Up), Outcome::Stays, "it was asked already");
        let answer = Rescored {
            ticket: 6,
            request: RequestId(1),
            unit_scores: vec![],
            unit_tokens: 32,
            selected_tokens: 0,
            kept: vec![],
            problem: None,
        };
        explorer.answered(&answer);
        assert!(explorer.answer.is_none(), "that was of another question");
        explorer.answered(&Rescored { ticket: 7, ..answer });
        assert!(explorer.answer.is_some());
        assert_eq!(press(&mut explorer, KeyCode::Backspace), Outcome::Stays);
        assert_eq!(explorer.knobs, explorer.served);
    }

    #[test]
    fn enter_sets_keep_and_threshold_and_leaves_the_switch_as_it_is() {
        let mut explorer = Explorer::new(&Ledger::new(), None);
        press(&mut explorer, KeyCode::Left);
        let by_hand = SparseOverride { enabled: Some(true), ..SparseOverride::default() };
        let key = KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE);
        let set = SparseOverride { enabled: Some(true), keep: Some(0.15), threshold: Some(8_192) };
        assert_eq!(explorer.key(key, by_hand), Outcome::Set(Command::SpecPrefill(set)));
    }
}
