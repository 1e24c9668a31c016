//! Who was faster over a whole session, until when the other led, and what is owed at the end.

use serde::Serialize;

use super::comparison::{Comparison, Repeat, Times};
use super::recovery::RecoverySums;
use super::speculation::Speculated;
use super::spread::Spread;
use super::turn::Place;
use crate::event::{Identity, RunFacts};
use crate::ledger::{Ledger, PrefillCurve, RequestFacts};
use crate::report::thousands;

/// How a lane ends against the one it is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It took less time, in every repeat.
    Faster,
    /// It took more time, in every repeat.
    Slower,
    /// Repeats differ about which took less, or there is no difference.
    Tie,
}

impl Outcome {
    /// By how much more time the other took than the lane, one value a repeat.
    fn of(lead: &Spread) -> Outcome {
        match lead {
            lead if lead.holds_zero() => Outcome::Tie,
            lead if lead.min > 0.0 => Outcome::Faster,
            _ => Outcome::Slower,
        }
    }
}

/// A lane's lead at some request, in summed time to first token.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lead {
    /// After which request.
    pub place: Place,
    /// By how many seconds, the median over repeats.
    pub seconds: f64,
}

/// The canonical debt that a lane ends with.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Owed {
    /// Prompt tokens of the last request that counts which are not restorable.
    pub tokens: u64,
    /// What they cost on the compared lane's prefill curve, seconds; `None` where it has none.
    pub seconds: Option<f64>,
}

/// What is to be said of a lane at the end.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// The lane.
    pub lane: String,
    /// The lane it is compared with.
    pub against: String,
    /// Requests that both brought to their first token, from the first one on.
    pub requests: u64,
    /// The last of these.
    pub last: Option<Place>,
    /// Whether one of them has others behind it that only one of both has.
    pub partial: bool,
    /// Runs of all lanes.
    pub repeats: u64,
    /// Whether times are a cost model's.
    pub simulated: bool,
    /// Time to first token, summed over the requests, seconds.
    pub ttft_sum_s: Option<Spread>,
    /// The other lane's.
    pub against_ttft_sum_s: Option<Spread>,
    /// By how much the other's exceeds it, repeat by repeat: positive where this lane is faster.
    pub lead_s: Option<Spread>,
    /// What that means.
    pub outcome: Option<Outcome>,
    /// The same as `lead_s` for whole requests, replies included.
    pub whole_lead_s: Option<Spread>,
    /// What that means.
    pub whole_outcome: Option<Outcome>,
    /// The last request after which the lane led, in every repeat.
    pub led_until: Option<Place>,
    /// The first of those it led after without a break up to that one; a tie is no break.
    pub led_from: Option<Place>,
    /// Whether it was behind after none before `led_until`.
    pub led_throughout: bool,
    /// Its greatest lead.
    pub best_lead: Option<Lead>,
    /// Time the scorer took in all, seconds.
    pub scorer_sum_s: Option<Spread>,
    /// What drafting was worth over these requests; `None` where nothing was asked to draft.
    pub speculation: Option<Speculated>,
    /// What background recovery came to over these requests; `None` in a lane without.
    pub recovery: Option<RecoverySums>,
    /// What the lane owes when it has ended.
    pub owed: Option<Owed>,
    /// What the other owes.
    pub against_owed: Option<Owed>,
}

/// Something that is not the same in every repeat, though nothing of it is a time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Disagreement {
    /// The lane.
    pub lane: String,
    /// The repeat that differs from the first one, from 1.
    pub repeat: u64,
    /// The first request that does.
    pub place: Place,
    /// What differs in it, and how.
    pub what: String,
}

/// When a lane led.
struct Led {
    from: Place,
    until: Place,
    throughout: bool,
    best: Lead,
}

impl Led {
    /// From the leads after each request; `None` where it led after none.
    fn of(course: &[(Place, Spread)]) -> Option<Led> {
        let outcome = |index: &usize| Outcome::of(&course[*index].1);
        let until = (0..course.len()).rev().find(|index| outcome(index) == Outcome::Faster)?;
        let unbroken = (0..=until).rev().take_while(|index| outcome(index) != Outcome::Slower);
        let from = unbroken.filter(|index| outcome(index) == Outcome::Faster).last().unwrap_or(until);
        let led = course[..=until].iter().filter(|(_, lead)| Outcome::of(lead) == Outcome::Faster);
        let (place, best) = led.max_by(|(_, a), (_, b)| a.median.total_cmp(&b.median))?;
        Some(Led {
            from: course[from].0,
            until: course[until].0,
            throughout: (0..until).all(|index| outcome(&index) != Outcome::Slower),
            best: Lead { place: *place, seconds: best.median },
        })
    }
}

impl Comparison {
    /// A verdict on every lane that is compared with another.
    pub fn verdicts(&self) -> Vec<Verdict> {
        self.others().map(|lane| self.verdict(lane)).collect()
    }

    fn verdict(&self, lane: usize) -> Verdict {
        let base = self.base();
        let [first, ..] = self.all() else { return Verdict::unknown(self, lane) };
        let places = first.latest_line(base);
        let own: Vec<Vec<Times>> = self.all().iter().map(|r| r.sums(lane, base, &places).0).collect();
        let other: Vec<Vec<Times>> = self.all().iter().map(|r| r.sums(base, base, &places).0).collect();
        // Requests up to the first one that is not known in both lanes of every repeat.
        let known = own.iter().map(|times| times.iter().take_while(|t| t.lead.is_some()).count()).min();
        let known = known.unwrap_or(0);
        let at = |times: &[Vec<Times>], index: Option<usize>, field: fn(&Times) -> Option<f64>| {
            Spread::of(times.iter().map(|times| field(times.get(index?)?)))
        };
        let last = known.checked_sub(1);
        let lead_s = at(&own, last, |t| t.lead);
        let whole_lead_s = at(&own, last, |t| t.whole_lead);
        let course: Vec<(Place, Spread)> = (0..known)
            .filter_map(|index| Some((places[index], at(&own, Some(index), |t| t.lead)?)))
            .collect();
        let led = Led::of(&course);
        let curve = first.ledgers.get(base).and_then(Ledger::prefill_curve);
        Verdict {
            requests: known as u64,
            last: last.map(|index| places[index]),
            partial: known < places.len(),
            repeats: self.all().len() as u64,
            simulated: self.is_simulated(),
            ttft_sum_s: at(&own, last, |t| t.ttft_sum),
            against_ttft_sum_s: at(&other, last, |t| t.ttft_sum),
            outcome: lead_s.as_ref().map(Outcome::of),
            lead_s,
            whole_outcome: whole_lead_s.as_ref().map(Outcome::of),
            whole_lead_s,
            led_until: led.as_ref().map(|led| led.until),
            led_from: led.as_ref().map(|led| led.from),
            led_throughout: led.as_ref().is_some_and(|led| led.throughout),
            best_lead: led.map(|led| led.best),
            scorer_sum_s: at(&own, last, |t| t.scorer_sum),
            speculation: self.speculated(lane, &places[..known], self.speculation_failure(lane).as_deref()),
            recovery: self.recovery_sums(lane, &places[..known]),
            owed: last.and_then(|index| Owed::by(first, lane, places[index], curve)),
            against_owed: last.and_then(|index| Owed::by(first, base, places[index], curve)),
            ..Verdict::unknown(self, lane)
        }
    }

    /// Whether the times are a cost model's rather than a machine's. Lanes of both kinds cannot be compared ([`Comparison::mismatch`]).
    pub fn is_simulated(&self) -> bool {
        let ledgers = self.all().iter().flat_map(|repeat| &repeat.ledgers);
        ledgers.filter_map(Ledger::run).any(|run| run.identity == Identity::Simulated)
    }

    /// Why the lanes cannot be compared, if they cannot: they are of different sessions, or some are simulated and others not.
    pub fn mismatch(&self) -> Option<String> {
        let runs = || {
            let ledgers = self.all().first().map(|repeat| repeat.ledgers.as_slice()).unwrap_or_default();
            self.names().iter().zip(ledgers).filter_map(|(name, ledger)| Some((name, ledger.run()?)))
        };
        let (name, first) = runs().next()?;
        runs().find_map(|(other, run)| {
            let simulated = |run: &RunFacts| run.identity == Identity::Simulated;
            let what = |run: &RunFacts| if simulated(run) { "simulated" } else { "measured" };
            if run.session != first.session {
                Some(format!(
                    "`{name}` is of the session \"{}\", `{other}` of \"{}\"",
                    first.session, run.session
                ))
            } else if simulated(run) != simulated(first) {
                Some(format!("the times of `{name}` are {}, those of `{other}` {}", what(first), what(run)))
            } else {
                None
            }
        })
    }

    /// What is not the same in every repeat, though it should be: everything but times, and but for lanes with background recovery: how far that comes in
    /// a gap is a matter of time, and what it publishes decides how the next request is computed. A repeat that is under way is compared as far as it has
    /// come.
    pub fn disagreements(&self) -> Vec<Disagreement> {
        let [first, further @ ..] = self.all() else { return Vec::new() };
        let mut found = Vec::new();
        for (repeat, other) in further.iter().enumerate() {
            for lane in (0..self.names().len()).filter(|lane| !self.recovers(*lane)) {
                let what = first.places(lane).into_iter().find_map(|place| {
                    let (a, b) = (first.request(lane, place)?, other.request(lane, place)?);
                    Some((place, difference(a, b)?))
                });
                if let Some((place, what)) = what {
                    let (lane, repeat) = (self.name(lane).to_owned(), repeat as u64 + 2);
                    found.push(Disagreement { lane, repeat, place, what });
                }
            }
        }
        found
    }
}

/// The first fact of a request that two repeats tell differently.
fn difference(a: &RequestFacts, b: &RequestFacts) -> Option<String> {
    type Fact = (&'static str, fn(&RequestFacts) -> Option<u64>);
    let facts: [Fact; 7] = [
        ("prompt tokens", |r| r.prompt_tokens),
        ("checkpoint", |r| r.checkpoint()),
        ("uncached suffix", |r| r.uncached_suffix),
        ("selected tokens", |r| Some(r.scored.as_ref()?.selected_tokens)),
        ("computed tokens", |r| r.computed_tokens),
        ("reply tokens", |r| r.output_tokens),
        ("restorable tokens", |r| r.canonical_tokens),
    ];
    let differing = facts.into_iter().find_map(|(name, fact)| {
        let (a, b) = (fact(a)?, fact(b)?);
        (a != b).then(|| format!("{name} {} in the first, {} in this one", thousands(a), thousands(b)))
    });
    differing.or_else(|| {
        let (a, b) = (a.output_sha256.as_ref()?, b.output_sha256.as_ref()?);
        (a != b).then(|| "another reply".to_owned())
    })
}

impl Owed {
    /// What the request at `place` leaves in `lane`.
    fn by(repeat: &Repeat, lane: usize, place: Place, curve: Option<PrefillCurve>) -> Option<Owed> {
        let last = repeat.request(lane, place)?;
        let tokens = last.canonical_debt()?;
        let priced = curve.zip(last.canonical_tokens).zip(last.prompt_tokens);
        let seconds = priced.map(|((curve, from), to)| curve.seconds(from, to));
        Some(Owed { tokens, seconds })
    }
}

impl Verdict {
    fn unknown(comparison: &Comparison, lane: usize) -> Verdict {
        Verdict {
            lane: comparison.name(lane).to_owned(),
            against: comparison.name(comparison.base()).to_owned(),
            requests: 0,
            last: None,
            partial: false,
            repeats: 0,
            simulated: false,
            ttft_sum_s: None,
            against_ttft_sum_s: None,
            lead_s: None,
            outcome: None,
            whole_lead_s: None,
            whole_outcome: None,
            led_until: None,
            led_from: None,
            led_throughout: false,
            best_lead: None,
            scorer_sum_s: None,
            speculation: None,
            recovery: None,
            owed: None,
            against_owed: None,
        }
    }
}
