//! The fold over several lanes' events, and what it says of each request.

use std::collections::{BTreeMap, BTreeSet};

use super::kept::SegmentKept;
use super::lane;
use super::lockstep::News;
use super::reply::{Closeness, ReplyDifference};
use super::spread::Spread;
use super::turn::{Cell, Place, Turn};
use crate::config::DrafterKind;
use crate::event::{Body, Event, Gate, LaneId, RequestId, RunFacts};
use crate::ledger::{Ledger, RequestFacts};

/// Lanes of one session, each with its ledger, in one run of all of them or in several repeats.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    names: Vec<String>,
    repeats: Vec<Repeat>,
    gate: Option<Gate>,
    over: bool,
}

/// One run of all lanes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Repeat {
    pub(super) ledgers: Vec<Ledger>,
    /// Which request is which, by lane.
    known: Vec<BTreeMap<Place, RequestId>>,
    /// The order in which lanes computed a request, by its number.
    orders: BTreeMap<u64, Vec<usize>>,
    /// Logits are large and do not change any more, so what they say is worked out once.
    closeness: BTreeMap<(usize, RequestId), Closeness>,
}

impl Comparison {
    /// Nothing told yet of lanes with these names.
    pub fn new(names: impl IntoIterator<Item = String>) -> Comparison {
        let names: Vec<String> = names.into_iter().collect();
        let mut comparison = Comparison { names, repeats: Vec::new(), gate: None, over: false };
        comparison.begin_repeat();
        comparison
    }

    /// From here on the lanes tell of another run of the same.
    pub fn begin_repeat(&mut self) {
        let lanes = self.names.len();
        self.repeats.push(Repeat {
            ledgers: vec![Ledger::new(); lanes],
            known: vec![BTreeMap::new(); lanes],
            orders: BTreeMap::new(),
            closeness: BTreeMap::new(),
        });
        (self.gate, self.over) = (None, false);
    }

    /// Folds in what the lanes tell. Accepts anything in any order.
    pub fn apply(&mut self, news: &News) {
        match news {
            News::Event { lane, event } => self.apply_event(*lane, event),
            News::Round { turn, order } => {
                if let Some(repeat) = self.repeats.last_mut() {
                    // A turn may take several rounds; the first one tells who was first.
                    repeat.orders.entry(*turn).or_insert_with(|| order.clone());
                }
            }
            News::Gate(gate) => self.gate = Some(*gate),
            News::Over => self.over = true,
        }
    }

    /// Folds in an event of one lane, as a recording of it holds them.
    pub fn apply_event(&mut self, lane: usize, event: &Event) {
        let base = self.base();
        let first = self.repeats.len() == 1;
        let Some(repeat) = self.repeats.last_mut() else { return };
        let Some(ledger) = repeat.ledgers.get_mut(lane) else { return };
        let logits = matches!(event.body, Body::ReplyLogits { .. });
        if logits && !first {
            // One repeat's are enough: that the others are the same is checked by what was said.
            return;
        }
        ledger.apply(event);
        if let (Body::Arrived(arrival), Some(id)) = (&event.body, event.request) {
            let place = Place { line: event.lane.unwrap_or_default(), turn: arrival.turn };
            repeat.known[lane].insert(place, id);
        }
        if let Some(request) = event.request.filter(|_| logits) {
            repeat.compare_logits(base, lane, request);
        }
    }

    /// The lanes' names, by their places.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// A lane's name; empty where there is no such lane.
    pub fn name(&self, lane: usize) -> &str {
        self.names.get(lane).map(String::as_str).unwrap_or_default()
    }

    /// A lane's ledger in the latest repeat.
    pub fn ledger(&self, lane: usize) -> Option<&Ledger> {
        self.repeats.last()?.ledgers.get(lane)
    }

    /// Place of the lane that the others are compared with: the dense one, else the one without a drafter, else the first.
    pub fn base(&self) -> usize {
        lane::base(&self.names)
    }

    /// Places of the lanes that are compared with [`Comparison::base`].
    pub fn others(&self) -> impl Iterator<Item = usize> {
        let base = self.base();
        (0..self.names.len()).filter(move |lane| *lane != base)
    }

    /// Repeats begun.
    pub fn repeats(&self) -> usize {
        self.repeats.len()
    }

    /// A lane's ledger in one repeat, from 0.
    pub fn ledger_of(&self, repeat: usize, lane: usize) -> Option<&Ledger> {
        self.repeats.get(repeat)?.ledgers.get(lane)
    }

    /// Whether the lanes together go on by themselves; `None` before all have started.
    pub fn gate(&self) -> Option<Gate> {
        self.gate
    }

    /// Whether every engine has ended.
    pub fn over(&self) -> bool {
        self.over
    }

    /// Every request in every lane, in the order in which the compared lane met them.
    pub fn turns(&self) -> Vec<Turn> {
        let Some(facts) = self.repeats.first() else { return Vec::new() };
        let base = self.base();
        let places = facts.places(base);
        let mut turns: Vec<Turn> = places.iter().map(|place| facts.turn(base, *place)).collect();
        for lane in 0..self.names.len() {
            let failure = self.speculation_failure(lane);
            let recovered = self.recovered(lane, &places);
            let times: Vec<Sums> =
                self.repeats.iter().map(|repeat| repeat.sums(lane, base, &places)).collect();
            for (index, turn) in turns.iter_mut().enumerate() {
                let Some(cell) = turn.cells.get_mut(lane).and_then(Option::as_mut) else { continue };
                let over = |field: fn(&Times) -> Option<f64>| {
                    Spread::of(times.iter().map(|sums| field(&sums.0[index])))
                };
                cell.ttft_s = over(|t| t.ttft);
                cell.ttft_sum_s = over(|t| t.ttft_sum);
                cell.whole_s = over(|t| t.whole);
                cell.whole_sum_s = over(|t| t.whole_sum);
                cell.scorer_s = over(|t| t.scorer);
                cell.scorer_sum_s = over(|t| t.scorer_sum);
                cell.lead_s = over(|t| t.lead);
                let share = |scorer: f64, ttft: f64| if ttft > 0.0 { Some(scorer / ttft) } else { None };
                cell.speculation = self.speculated(lane, &places[index..=index], failure.as_deref());
                cell.recovery.clone_from(&recovered[index]);
                cell.scorer_share =
                    cell.scorer_s.zip(cell.ttft_s).and_then(|(s, t)| share(s.median, t.median));
            }
        }
        turns
    }

    pub(super) fn all(&self) -> &[Repeat] {
        &self.repeats
    }
}

/// A request's times in one lane of one repeat, seconds, and the sums up to it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Times {
    pub(super) ttft: Option<f64>,
    pub(super) ttft_sum: Option<f64>,
    pub(super) whole: Option<f64>,
    pub(super) whole_sum: Option<f64>,
    pub(super) scorer: Option<f64>,
    pub(super) scorer_sum: Option<f64>,
    pub(super) lead: Option<f64>,
    pub(super) whole_lead: Option<f64>,
}

/// The times of all requests in one lane of one repeat.
pub(super) struct Sums(pub(super) Vec<Times>);

impl Repeat {
    /// The requests, those of lane `base` first.
    pub(super) fn places(&self, base: usize) -> Vec<Place> {
        let in_order = |lane: usize| {
            let requests = self.ledgers.get(lane).into_iter().flat_map(Ledger::requests);
            requests.map(|request| Place { line: request.lane, turn: request.turn })
        };
        let mut seen = BTreeSet::new();
        let lanes = std::iter::once(base).chain(0..self.ledgers.len());
        lanes.flat_map(in_order).filter(|place| seen.insert(*place)).collect()
    }

    /// The requests of a line of history and of those it was forked from, in order.
    pub(super) fn line(&self, base: usize, line: LaneId) -> Vec<Place> {
        let ledgers =
            [base].into_iter().chain(0..self.ledgers.len()).filter_map(|lane| self.ledgers.get(lane));
        let chains = ledgers.map(|ledger| ledger.history(line)).map(|history| {
            history.iter().map(|request| Place { line: request.lane, turn: request.turn }).collect::<Vec<_>>()
        });
        chains
            .reduce(|longest, chain| if chain.len() > longest.len() { chain } else { longest })
            .unwrap_or_default()
    }

    /// The requests of the line of history that lane `base` ran last: a fork is another course of the session, not more of it.
    pub(super) fn latest_line(&self, base: usize) -> Vec<Place> {
        let places = self.places(base);
        places.last().map(|last| self.line(base, last.line)).unwrap_or_default()
    }

    pub(super) fn request(&self, lane: usize, place: Place) -> Option<&RequestFacts> {
        self.ledgers.get(lane)?.request(*self.known.get(lane)?.get(&place)?)
    }

    fn compare_logits(&mut self, base: usize, lane: usize, id: RequestId) {
        let Some(request) = self.ledgers.get(lane).and_then(|ledger| ledger.request(id)) else { return };
        let place = Place { line: request.lane, turn: request.turn };
        let others = if lane == base { 0..self.ledgers.len() } else { lane..lane + 1 };
        for other in others.filter(|other| *other != base) {
            let (Some(a), Some(b)) = (self.request(base, place), self.request(other, place)) else {
                continue;
            };
            let close =
                a.reply_logits.as_ref().zip(b.reply_logits.as_ref()).and_then(|(a, b)| Closeness::of(a, b));
            let key = (other, b.id);
            if let Some(close) = close {
                self.closeness.insert(key, close);
            }
        }
    }

    fn turn(&self, base: usize, place: Place) -> Turn {
        let in_lane = |lane| self.request(lane, place);
        let any = in_lane(base).or_else(|| (0..self.ledgers.len()).find_map(in_lane));
        Turn {
            place,
            name: any.map(|request| request.name.clone()).unwrap_or_default(),
            side: any.is_some_and(RequestFacts::is_side),
            order: any.and_then(|request| self.orders.get(&request.id.0)).cloned().unwrap_or_default(),
            cells: (0..self.ledgers.len()).map(|lane| Some(self.cell(base, lane, in_lane(lane)?))).collect(),
        }
    }

    /// A cell but for its times.
    fn cell(&self, base: usize, lane: usize, request: &RequestFacts) -> Cell {
        let place = Place { line: request.lane, turn: request.turn };
        let against = self.request(base, place).filter(|_| lane != base);
        let same_prompt = against.map(|against| self.same_prompt((base, against), (lane, request)));
        let closeness = self.closeness.get(&(lane, request.id)).copied();
        let reply = against
            .filter(|_| same_prompt == Some(true))
            .map(|against| ReplyDifference::of(against, request, closeness));
        Cell {
            prompt_tokens: request.prompt_tokens,
            checkpoint_tokens: request.checkpoint(),
            uncached_suffix: request.uncached_suffix,
            computed_tokens: request.computed_tokens,
            canonical_debt_tokens: request.canonical_debt(),
            route: request.route.map(|route| route.word()),
            ttft_s: None,
            ttft_sum_s: None,
            whole_s: None,
            whole_sum_s: None,
            scorer_s: None,
            scorer_sum_s: None,
            scorer_share: None,
            lead_s: None,
            same_prompt,
            reply,
            speculation: None,
            recovery: None,
            kept: request
                .scored
                .as_ref()
                .map(|scored| SegmentKept::of(&request.segments, scored))
                .unwrap_or_default(),
            survival: request.survival.as_ref().map(Into::into),
            error: request.error.clone(),
        }
    }

    /// Whether two lanes' prompts are the same, as far as events tell: length and segments, under one tokenizer and template; and where the
    /// model's own replies become history, every reply before.
    pub(super) fn same_prompt(&self, a: (usize, &RequestFacts), b: (usize, &RequestFacts)) -> bool {
        let run = |lane: usize| self.ledgers.get(lane).and_then(Ledger::run);
        let alike = a.1.prompt_tokens == b.1.prompt_tokens
            && a.1.segments == b.1.segments
            && match (run(a.0), run(b.0)) {
                (Some(a), Some(b)) => same_model(a, b),
                (a, b) => a.is_none() && b.is_none(),
            };
        let live = [a.0, b.0].iter().any(|lane| run(*lane).is_some_and(|run| run.replay_mode == "live"));
        let said = |(lane, request): (usize, &RequestFacts)| -> Vec<Option<String>> {
            let history =
                self.ledgers.get(lane).map(|ledger| ledger.history(request.lane)).unwrap_or_default();
            let before = history.into_iter().take_while(|earlier| earlier.id != request.id);
            before.filter(|earlier| !earlier.is_side()).map(|earlier| earlier.output_sha256.clone()).collect()
        };
        alike && (!live || said(a) == said(b))
    }

    /// The times of `lane`, and what it leads `base` by: sums along the line of history that each request is in.
    pub(super) fn sums(&self, lane: usize, base: usize, places: &[Place]) -> Sums {
        let has_scorer = self
            .ledgers
            .get(lane)
            .is_some_and(|ledger| ledger.run().is_some_and(|run| run.specprefill.is_some()));
        let mut known = BTreeMap::new();
        for line in places.iter().map(|place| place.line).collect::<BTreeSet<_>>() {
            let mut own = Running::default();
            let mut other = Running::default();
            for place in self.line(base, line) {
                let mut times = own.with(self.request(lane, place), has_scorer);
                if lane != base {
                    let against = other.with(self.request(base, place), false);
                    times.lead = against.ttft_sum.zip(times.ttft_sum).map(|(base, own)| base - own);
                    times.whole_lead = against.whole_sum.zip(times.whole_sum).map(|(base, own)| base - own);
                }
                if place.line == line {
                    known.insert(place, times);
                }
            }
        }
        Sums(places.iter().map(|place| known.get(place).copied().unwrap_or_default()).collect())
    }
}

/// Whether two runs are of the same model. A prediction head is a part of the digest where it is loaded, and changes nothing of what the model says.
fn same_model(a: &RunFacts, b: &RunFacts) -> bool {
    let with_head = |run: &RunFacts| {
        run.speculation.as_ref().is_some_and(|facts| facts.loaded.contains(&DrafterKind::Mtp))
    };
    a.model_digest == b.model_digest || (with_head(a) != with_head(b) && a.model == b.model)
}

/// Sums on the way through a session. A time that was not measured leaves the sum behind it unknown.
#[derive(Debug, Clone, Copy)]
struct Running {
    ttft: Option<f64>,
    whole: Option<f64>,
    scorer: Option<f64>,
}

impl Default for Running {
    fn default() -> Running {
        Running { ttft: Some(0.0), whole: Some(0.0), scorer: Some(0.0) }
    }
}

impl Running {
    fn with(&mut self, request: Option<&RequestFacts>, has_scorer: bool) -> Times {
        let ttft = request.and_then(|request| Some(request.ttft?.seconds()));
        let whole = request.and_then(|request| Some(request.took?.seconds()));
        let scorer =
            request.filter(|request| request.route.is_some()).and_then(|request| match &request.scored {
                Some(scored) => Some(scored.took().seconds()),
                // What a scoring that failed has cost is not told.
                None => (has_scorer && request.fell_back.is_none()).then_some(0.0),
            });
        let add = |sum: &mut Option<f64>, more: Option<f64>| {
            *sum = sum.zip(more).map(|(sum, more)| sum + more);
            *sum
        };
        Times {
            ttft,
            ttft_sum: add(&mut self.ttft, ttft),
            whole,
            whole_sum: add(&mut self.whole, whole),
            scorer,
            scorer_sum: add(&mut self.scorer, scorer),
            lead: None,
            whole_lead: None,
        }
    }
}
