//! What an engine keeps of background recovery: the job and its account, and what surrounds it. The rules are [`crate::recovery`]'s; the scheduler
//! does what they say.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::asked::Asked;
use super::clock::Clock;
use crate::config::{AdoptionRule, RecoveryConfig};
use crate::event::{BudgetReading, JobId, LaneId, Nanos, Stamp, Steps};
use crate::recovery::adoption::{Adoption, Frontier};
use crate::recovery::budget::{Grant, Reading, Spent};
use crate::recovery::job::Place;
use crate::recovery::neighbours::{Member, Neighbours};
use crate::recovery::standing::Why;

/// How often the surroundings are looked at while another engine is in the way.
const PEER_POLL: Duration = Duration::from_millis(50);

/// What background work came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// There is more to do now.
    No,
    /// Nothing for so long, unless somebody arrives.
    For(Duration),
    /// Nothing until somebody arrives.
    Open,
}

/// The job of an engine.
#[derive(Debug)]
pub(super) struct Background {
    /// As configured, but for what was set by hand since.
    pub(super) config: RecoveryConfig,
    pub(super) member: Arc<Member>,
    pub(super) asked: Arc<Asked>,
    pub(super) place: Place,
    /// Number and lane of the job in it; the number is that of the latest job where there is none.
    pub(super) id: JobId,
    pub(super) lane: LaneId,
    pub(super) steps: Steps,
    /// Steps in a row with nothing to do for anybody.
    pub(super) idle_steps: u32,
    /// What was told last of what the job waits for; `None` before anything was.
    told: Option<Option<Why>>,
    /// Blocks that the latest request of a lane was shown, where some were withheld.
    shown: BTreeMap<LaneId, usize>,
    /// Seconds that slices took for a token, and the scorer for a window, the last time.
    slice_s_per_token: Option<f64>,
    rescore_s: Option<f64>,
    ended: Option<(Stamp, Instant)>,
}

impl Background {
    /// No job yet.
    pub(super) fn new(config: RecoveryConfig, member: Arc<Member>, asked: Arc<Asked>) -> Background {
        Background {
            config,
            member,
            asked,
            place: Place::default(),
            id: JobId(0),
            lane: LaneId(0),
            steps: Steps::default(),
            idle_steps: 0,
            told: None,
            shown: BTreeMap::new(),
            slice_s_per_token: None,
            rescore_s: None,
            ended: None,
        }
    }

    /// A job that nobody asked for, of an engine alone in its process.
    pub(super) fn alone() -> Background {
        let config = RecoveryConfig::default();
        let member = Arc::new(Neighbours::open(&config).join());
        Background::new(config, member, Arc::default())
    }

    /// Whether debts are taken on.
    pub(super) fn is_on(&self) -> bool {
        self.config.runs_jobs()
    }

    /// Switches it on or off. What on means is the policy's to say.
    pub(super) fn switch(&mut self, enabled: bool) {
        self.config.enabled = enabled;
    }

    /// Whether the job has something left to do.
    pub(super) fn is_runnable(&self) -> bool {
        self.is_on() && self.place.is_runnable()
    }

    /// The number of the next job, which begins with no steps made.
    pub(super) fn begin(&mut self) -> JobId {
        self.id.0 += 1;
        self.steps = Steps::default();
        self.told = None;
        self.id
    }

    /// A step in which something else came first.
    pub(super) fn yielded(&mut self) {
        if self.is_runnable() {
            self.steps.runnable += 1;
            self.steps.yielded += 1;
        }
    }

    /// A step in which a slice ran, `resumed` where live state had to be built for it.
    pub(super) fn scheduled(&mut self, resumed: bool) {
        self.steps.runnable += 1;
        self.steps.scheduled += 1;
        self.steps.resumed += u64::from(resumed);
    }

    /// Takes note of what the job waits for. Whether that is news.
    pub(super) fn waits(&mut self, why: Option<Why>) -> bool {
        // That it goes on is none before it ever waited.
        let news = self.told != Some(why) && !(self.told.is_none() && why.is_none());
        self.told = Some(why);
        news
    }

    /// A slice ended now.
    pub(super) fn slice_ended(&mut self, now: Stamp) {
        self.ended = Some((now, Instant::now()));
    }

    /// How long a request that was due at `due` waited for a slice; `None` where none was in its way.
    pub(super) fn delay_of(&self, due: Stamp) -> Option<Nanos> {
        let (ended, _) = self.ended?;
        (ended > due).then(|| ended.since(due))
    }

    /// The same for what was sent at `at`, by the wall's time.
    pub(super) fn delay_since(&self, at: Instant) -> Option<Nanos> {
        let (_, ended) = self.ended?;
        ended.checked_duration_since(at).map(Nanos::from).filter(|delay| delay.0 > 0)
    }

    /// Whether what is published is shown at once, whatever it costs.
    pub(super) fn adopts_at_once(&self) -> bool {
        self.config.adoption != AdoptionRule::Cost && self.config.adoption_blocks <= 1
    }

    /// Blocks that the next request of `lane` is shown of the `durable` ones, of which those from `recovered` on were published by jobs. `keep` is the
    /// fraction that its target would compute of what is not shown.
    pub(super) fn visible(
        &self,
        lane: LaneId,
        durable: usize,
        recovered: usize,
        block_tokens: usize,
        keep: f64,
    ) -> usize {
        let before = self.shown.get(&lane).copied().unwrap_or(0).max(recovered);
        let rule = match self.config.adoption {
            AdoptionRule::Fixed => Adoption::Fixed { blocks: self.config.adoption_blocks },
            AdoptionRule::Hysteresis => Adoption::Hysteresis { blocks: self.config.adoption_blocks },
            AdoptionRule::Cost => Adoption::CostBased,
        };
        let visible = rule.visible(Frontier {
            durable: (durable * block_tokens) as u64,
            visible: (before * block_tokens) as u64,
            block_tokens: block_tokens as u64,
            saved_s_per_token: self.slice_s_per_token.map(|dense| dense * keep),
            rescore_s: self.rescore_s,
        });
        visible as usize / block_tokens
    }

    /// A request of `lane` was shown so many blocks; `None` where nothing was withheld.
    pub(super) fn shows(&mut self, lane: LaneId, blocks: Option<usize>) {
        match blocks {
            Some(blocks) => drop(self.shown.insert(lane, blocks)),
            None => drop(self.shown.remove(&lane)),
        }
    }

    /// What a slice took.
    pub(super) fn note_slice(&mut self, took: Nanos, tokens: u64) {
        if tokens > 0 {
            self.slice_s_per_token = Some(took.seconds() / tokens as f64);
        }
    }

    /// What scoring a window took.
    pub(super) fn note_scoring(&mut self, took: Nanos) {
        self.rescore_s = Some(took.seconds());
    }

    /// The time that the budget's windows go by: the engine's own under the virtual clock, that which all engines share under the wall's.
    fn time(&self, clock: &Clock) -> Duration {
        match clock.is_virtual() {
            true => Duration::from_nanos(clock.now().0),
            false => self.member.neighbours().since_opened(),
        }
    }

    /// What the budget says.
    pub(super) fn grant(&self, clock: &Clock) -> Grant {
        self.member.neighbours().budget().grant(self.time(clock))
    }

    /// Charges what background work took.
    pub(super) fn charge(&self, took: Nanos, tokens: u64, clock: &Clock) {
        let spent = Spent { time: Duration::from_nanos(took.0), tokens };
        self.member.owner().charge(self.time(clock), spent);
    }

    /// The budget, to be told.
    pub(super) fn reading(&self, clock: &Clock) -> BudgetReading {
        let Reading { owners, windows, in_window, carried, service, allowance } =
            self.member.neighbours().budget().read(self.time(clock));
        BudgetReading {
            owners: owners as u64,
            windows,
            spent: Nanos::from(in_window.time),
            spent_tokens: in_window.tokens,
            carried: Nanos::from(carried.time),
            allowance: Nanos::from(allowance.time()),
            allowance_tokens: allowance.tokens,
            service: Nanos::from(service.time),
        }
    }

    /// For how long nothing changes by itself while the job waits for `why`.
    pub(super) fn rest(&self, why: Why, grant: Grant) -> Rest {
        match (why, grant) {
            (Why::BudgetSpent, Grant::Spent { next_window }) => Rest::For(next_window),
            (Why::PeerSlice | Why::ForegroundElsewhere | Why::Arrival, _) => Rest::For(PEER_POLL),
            (Why::NotIdleYet, _) => Rest::No,
            _ => Rest::Open,
        }
    }
}
