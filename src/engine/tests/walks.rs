//! Random walks: whatever is asked of the scheduler, in whatever order, on a device in whatever mood, its books are right after every step, every request
//! ends exactly once, and nothing is left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use super::hybrid::replies;
use super::preemption::{preemptions, scheduling, tight};
use super::sparse::on_sim;
use super::*;
use crate::cache::tier::Tuning;
use crate::device::{
    DeviceError, Executor, ExecutorFacts, Forward, KeyWeights, PageId, Queries, SlotId, Span, StateFlow,
};
use crate::model;
use crate::prefill::scorer::{Scorer, ScorerSettings};

/// What a device has memory for at the moment.
#[derive(Debug, Clone, Copy)]
struct Mood {
    pages: usize,
    slots: usize,
    /// Tokens of a forward over several spans, and of one over one.
    batch: usize,
    alone: usize,
    /// Whether what it refuses was written all the same.
    writes: bool,
}

const FINE: Mood =
    Mood { pages: usize::MAX, slots: usize::MAX, batch: usize::MAX, alone: usize::MAX, writes: false };

/// A device that behaves like the one inside it as far as its mood goes.
struct Moody {
    inner: Box<dyn Executor>,
    mood: Arc<Mutex<Mood>>,
}

impl Executor for Moody {
    delegate_state!();

    fn key_weights(
        &mut self,
        pages: &[PageId],
        window: std::ops::Range<usize>,
        queries: &Queries,
    ) -> Result<KeyWeights, DeviceError> {
        self.inner.key_weights(pages, window, queries)
    }

    fn reserve(&mut self, pages: usize, slots: usize) -> Result<(), DeviceError> {
        let mood = *self.mood.lock().unwrap();
        if pages > mood.pages || slots > mood.slots {
            return Err(DeviceError::OutOfMemory { bytes: 1 << 20, problem: "state".to_owned() });
        }
        self.inner.reserve(pages, slots)
    }

    fn forward(&mut self, spans: &[Span<'_>]) -> Result<Forward, DeviceError> {
        let mood = *self.mood.lock().unwrap();
        let tokens: usize = spans.iter().map(|span| span.tokens.len()).sum();
        if tokens > if spans.len() > 1 { mood.batch } else { mood.alone } {
            if mood.writes {
                self.inner.forward(spans)?;
            }
            return Err(DeviceError::OutOfMemory { bytes: 1 << 30, problem: "scores".to_owned() });
        }
        self.inner.forward(spans)
    }
}

/// Something that happens.
#[derive(Debug, Clone)]
enum Act {
    Submit {
        lane: u32,
        seed: usize,
        shared: usize,
        tokens: usize,
        reply: u64,
        warm: bool,
        use_cache: bool,
    },
    Cancel(prop::sample::Index),
    Steps(usize),
    EvictAll,
    Mood(Mood),
    /// The page of a cached block becomes somebody else's.
    Stale(prop::sample::Index),
}

fn act() -> impl Strategy<Value = Act> {
    let submit = (
        0_u32..4,
        0_usize..6,
        0_usize..200,
        1_usize..300,
        1_u64..40,
        any::<bool>(),
        prop::bool::weighted(0.9),
    )
        .prop_map(|(lane, seed, shared, tokens, reply, warm, use_cache)| Act::Submit {
            lane,
            seed,
            shared,
            tokens,
            reply,
            warm,
            use_cache,
        });
    let pages = prop_oneof![3 => Just(usize::MAX), 2 => 4_usize..20];
    let few = prop_oneof![2 => Just(usize::MAX), 2 => 3_usize..60];
    let mood = (pages, 0_usize..6, few, prop_oneof![4 => Just(usize::MAX), 1 => 0_usize..40], any::<bool>())
        .prop_map(|(pages, slots, batch, alone, writes)| {
            let slots = if slots < 3 { slots + 2 } else { usize::MAX };
            Act::Mood(Mood { pages, slots, batch, alone, writes })
        });
    prop_oneof![
        6 => submit,
        2 => any::<prop::sample::Index>().prop_map(Act::Cancel),
        8 => (1_usize..40).prop_map(Act::Steps),
        1 => Just(Act::EvictAll),
        2 => mood,
        1 => Just(Act::Mood(FINE)),
        1 => any::<prop::sample::Index>().prop_map(Act::Stale),
    ]
}

fn prompt_of(seed: usize, shared: usize, tokens: usize) -> Vec<u32> {
    let common = (0..shared).map(|i| (i * 7 % 4_001) as u32);
    common.chain((0..tokens).map(|i| ((seed + 2) * 997 + i * 11 + i * i % 13) as u32 % 5_000)).collect()
}

/// A scheduler under test, and what was asked of it.
struct World<'w, 's> {
    scheduler: &'w mut Scheduler<'s>,
    clock: &'w mut Clock,
    out: &'w mut Emitter,
    asked: BTreeMap<RequestId, Submission>,
    ended: BTreeMap<RequestId, bool>,
    cancelled: BTreeSet<RequestId>,
    budget: Budget,
    /// Whether the device ever held few slots.
    few_slots: bool,
    /// Whether a page was ever given away.
    gave_away: bool,
}

impl World<'_, '_> {
    fn act(&mut self, act: &Act, mood: &Mutex<Mood>) {
        match act.clone() {
            Act::Submit { lane, seed, shared, tokens, reply, warm, use_cache } => {
                let mut request = submission(prompt_of(seed, shared, tokens), reply);
                (request.lane, request.use_cache) = (LaneId(lane), use_cache);
                if warm {
                    request.sampling =
                        Sampling { temperature: 0.9, seed: seed as u64, ..Sampling::default() };
                }
                let id = self.scheduler.submit(request.clone(), self.clock, self.out);
                self.asked.insert(id, request);
            }
            Act::Cancel(which) => {
                let open: Vec<_> =
                    self.asked.keys().filter(|id| !self.ended.contains_key(id)).copied().collect();
                if !open.is_empty() {
                    let id = *which.get(&open);
                    let ended =
                        self.scheduler.cancel(id, self.clock, self.out).expect("an open request is there");
                    self.cancelled.insert(id);
                    self.note(&[ended]);
                }
            }
            Act::Steps(steps) => {
                for _ in 0..steps {
                    self.step();
                }
            }
            Act::EvictAll => drop(self.scheduler.evict_all(self.clock)),
            Act::Mood(now) => {
                self.few_slots |= now.slots < usize::MAX;
                *mood.lock().unwrap() = now;
            }
            Act::Stale(which) => {
                let prompts: Vec<Vec<u32>> =
                    self.asked.values().map(|request| request.prompt.clone()).collect();
                if !prompts.is_empty() {
                    self.scheduler.inject(
                        Fault::ChangeGeneration(1),
                        which.get(&prompts[..]).as_slice(),
                        self.clock,
                    );
                    self.gave_away = true;
                }
            }
        }
        self.check();
    }

    fn step(&mut self) {
        let ended = self.scheduler.step(self.clock, self.out).ended;
        self.note(&ended);
        self.check();
    }

    fn note(&mut self, ended: &[crate::engine::sequence::Ended]) {
        for ended in ended {
            assert!(self.ended.insert(ended.request, true).is_none(), "{:?} ended twice", ended.request);
        }
    }

    fn check(&mut self) {
        let running: Vec<RequestId> = self.scheduler.standings().into_keys().collect();
        let all: Vec<RequestId> = running.into_iter().chain(self.scheduler.waiting()).collect();
        let distinct: BTreeSet<RequestId> = all.iter().copied().collect();
        assert_eq!(distinct.len(), all.len(), "a request is in two places: {all:?}");
        let open: BTreeSet<RequestId> =
            self.asked.keys().filter(|id| !self.ended.contains_key(id)).copied().collect();
        assert_eq!(distinct, open, "who has not ended is running or waits");
        let held = self.scheduler.all_held_pages();
        let cache = self.scheduler.cache_mut();
        let cached: Vec<_> = cache.held().into_iter().map(|(_, page, _)| page).collect();
        let pages: BTreeSet<_> = held
            .iter()
            .chain(&cached)
            .filter(|page| cache.check(**page).is_ok())
            .map(|page| page.id())
            .collect();
        assert_eq!(cache.used_pages(), pages.len(), "pages in use are cached or held");
        let (pages, slots) = cache.reservation();
        // While the device holds few slots pages get their room, and when it is asked anew both are there.
        assert!(self.few_slots || self.budget.allows(pages, slots), "{pages} pages and {slots} slots");
    }

    /// Lets everything end, and nothing stay.
    fn settle(&mut self, mood: &Mutex<Mood>) {
        *mood.lock().unwrap() = FINE;
        for steps in 0.. {
            if self.scheduler.is_idle() {
                break;
            }
            assert!(steps < 200_000, "it never ends");
            self.step();
        }
        assert_eq!(self.ended.len(), self.asked.len());
        self.scheduler.evict_all(self.clock);
        self.check();
        if self.gave_away {
            // A block whose page is gone stays in the index until somebody meets it, and keeps those before it.
            return;
        }
        let cache = self.scheduler.cache_mut();
        assert_eq!((cache.used_pages(), cache.used_slots()), (0, 0), "something is left");
        assert_eq!((cache.cached_blocks(), cache.cached_snapshots()), (0, 0));
    }
}

/// Walks, and gives what was asked and cancelled, and the events.
fn walk(
    ground: &Ground,
    config: &Config,
    sparse: bool,
    acts: &[Act],
) -> (BTreeMap<RequestId, Submission>, BTreeSet<RequestId>, Vec<Event>) {
    let mood = Arc::new(Mutex::new(FINE));
    let Loaded { executor, text, scorer, .. } = model::load(config).unwrap();
    let executor = Box::new(Moody { inner: executor, mood: Arc::clone(&mood) });
    let ((asked, cancelled), events) =
        ground.run_on(Loaded { executor, text, scorer: None, draft: None }, |scheduler, clock, out| {
            if sparse {
                let scorer = scorer.map(|scorer| {
                    let settings = ScorerSettings::of(&config.specprefill, 96, scorer.decodes);
                    Scorer::new(scorer.executor, [0; 32], Vec::new(), settings)
                });
                scheduler.attach_sparse(SparseSide::new(scorer, config.clone()));
            }
            let mut world = World {
                scheduler,
                clock,
                out,
                asked: BTreeMap::new(),
                ended: BTreeMap::new(),
                cancelled: BTreeSet::new(),
                budget: ground.budget,
                few_slots: false,
                gave_away: false,
            };
            for act in acts {
                world.act(act, &mood);
            }
            world.settle(&mood);
            (world.asked, world.cancelled)
        });
    (asked, cancelled, events)
}

/// Every request ends once, with a result or an error; those with a result said what they say alone.
fn check_ends(
    config: &Config,
    sparse: bool,
    (asked, cancelled, events): (BTreeMap<RequestId, Submission>, BTreeSet<RequestId>, Vec<Event>),
) -> usize {
    let mut ends: BTreeMap<RequestId, (usize, bool)> = BTreeMap::new();
    for event in &events {
        let failed = match event.body {
            Body::Finished { .. } => false,
            Body::Failed { .. } => true,
            _ => continue,
        };
        let (times, _) = ends.entry(event.request.unwrap()).or_default();
        *times += 1;
        ends.get_mut(&event.request.unwrap()).unwrap().1 = failed;
    }
    assert!(ends.values().all(|(times, _)| *times == 1) && ends.len() == asked.len(), "{ends:?}");
    let said = replies(&events);
    let roomy = tight(scheduling(1, 10_000), 1_000, config.sim.snapshot_bytes > 0);
    let ((), alone) = roomy.run_on(model::load(config).unwrap(), |scheduler, clock, out| {
        for request in asked.values() {
            scheduler.submit(Submission { use_cache: false, ..request.clone() }, clock, out);
            drain(scheduler, clock, out);
        }
    });
    let expected = replies(&alone);
    for id in asked.keys() {
        let (said, expected) = (said.get(id).map_or(&[][..], |said| said), &expected[id][..]);
        // What is computed sparsely depends on what was cached.
        if !sparse {
            let whole = !ends[id].1 && !cancelled.contains(id);
            assert!(if whole { said == expected } else { expected.starts_with(said) }, "{id:?}");
        }
    }
    preemptions(&events).values().sum()
}

fn world(hybrid: bool, sparse: bool) -> Config {
    let mut config = on_sim();
    config.sim.snapshot_bytes = usize::from(hybrid);
    config.specprefill.enabled = Some(sparse);
    config
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_happens_the_books_are_right_and_every_request_ends_once(
        acts in prop::collection::vec(act(), 1..60),
        (hybrid, sparse) in (any::<bool>(), prop::bool::weighted(0.3)),
        max_sequences in 1_usize..5,
        chunk_tokens in 5_usize..150,
        step_tokens in prop::option::of(1_usize..120),
        pages in 8_usize..40,
    ) {
        let scheduling = SchedulerConfig { step_tokens, ..scheduling(max_sequences, chunk_tokens) };
        let config = world(hybrid, sparse);
        let walked = walk(&tight(scheduling, pages, hybrid), &config, sparse, &acts);
        check_ends(&config, sparse, walked);
    }
}

#[test]
fn walks_come_by_preemptions() {
    use proptest::strategy::ValueTree;
    let mut random = proptest::test_runner::TestRunner::deterministic();
    let mut times = 0;
    for (hybrid, sparse) in [(false, false), (true, false), (true, true)] {
        for _ in 0..8 {
            let acts = prop::collection::vec(act(), 60).new_tree(&mut random).unwrap().current();
            let config = world(hybrid, sparse);
            let walked = walk(&tight(scheduling(4, 50), 14, hybrid), &config, sparse, &acts);
            times += check_ends(&config, sparse, walked);
        }
    }
    assert!(times > 30, "{times} preemptions");
}

#[test]
fn a_sparse_request_that_makes_way_keeps_its_course() {
    for hybrid in [false, true] {
        let config = world(hybrid, true);
        let acts: Vec<Act> = (0..3)
            .map(|seed| Act::Submit {
                lane: seed as u32,
                seed,
                shared: 0,
                tokens: 400,
                reply: 120,
                warm: false,
                use_cache: true,
            })
            .collect();
        let run = |pages| walk(&tight(scheduling(3, 60), pages, hybrid), &config, true, &acts).2;
        let (roomy, cramped) = (run(400), run(7));
        let sparse = roomy.iter().filter(|event| matches!(event.body, Body::Scored(_))).count();
        assert!(sparse == 3 && !preemptions(&cramped).is_empty(), "{sparse} {:?}", preemptions(&cramped));
        assert_eq!(replies(&cramped), replies(&roomy));
    }
}

#[test]
fn ten_thousand_requests_leave_nothing_behind() {
    let ground = tight(SchedulerConfig { step_tokens: Some(64), ..scheduling(8, 32) }, 24, true);
    let config = world(true, false);
    let Loaded { executor, text, .. } = model::load(&config).unwrap();
    let (ended, events) =
        ground.run_on(Loaded { executor, text, scorer: None, draft: None }, |scheduler, clock, out| {
            let mut ended = 0;
            for n in 0..10_000_usize {
                let mut request = submission(prompt_of(n % 37, n % 3 * 64, 1 + n % 90), 1 + n as u64 % 5);
                request.lane = LaneId(n as u32 % 5);
                scheduler.submit(request, clock, out);
                // The queue grows to hundreds, and is worked off again.
                while scheduler.waiting().len() > if n % 500 < 400 { 500 } else { 20 } {
                    ended += scheduler.step(clock, out).ended.len();
                }
            }
            while !scheduler.is_idle() {
                ended += scheduler.step(clock, out).ended.len();
            }
            assert!(scheduler.waiting().is_empty() && scheduler.standings().is_empty());
            let cache = scheduler.cache_mut();
            assert_eq!(cache.used_pages(), cache.cached_blocks());
            assert_eq!(cache.used_slots(), cache.cached_snapshots());
            scheduler.evict_all(clock);
            let cache = scheduler.cache_mut();
            assert_eq!((cache.used_pages(), cache.used_slots()), (0, 0));
            ended
        });
    assert_eq!(ended, 10_000);
    assert!(events.iter().all(|event| !matches!(event.body, Body::Failed { .. })));
    let finished = events.iter().filter(|event| matches!(event.body, Body::Finished { .. })).count();
    assert_eq!(finished, 10_000);
}

#[test]
fn an_overloaded_engine_that_is_shut_down_with_a_full_disk_ends_every_request_and_its_folder_opens_again() {
    let dir = tempfile::tempdir().unwrap();
    let tier = TierGround { dir: dir.path().to_owned(), limit_bytes: 1 << 30, tuning: Tuning::default() };
    for round in 0..3 {
        let ground = Ground { tier: Some(tier.clone()), ..tight(scheduling(4, 50), 16, true) };
        let config = world(true, false);
        let (ended, events) = ground.run_on(model::load(&config).unwrap(), |scheduler, clock, out| {
            for n in 0..300 {
                let mut request = submission(prompt_of(n, 64, 1 + n % 120), 4);
                request.lane = LaneId(n as u32 % 3);
                scheduler.submit(request, clock, out);
            }
            let mut ended = BTreeSet::new();
            for step in 0..200 {
                if round == 1 && step == 60 {
                    scheduler.inject("fill-disk".parse().unwrap(), &[], clock);
                }
                ended.extend(scheduler.step(clock, out).ended.into_iter().map(|ended| ended.request));
            }
            assert!(!scheduler.is_idle());
            ended.extend(scheduler.cancel_all(clock, out).into_iter().map(|ended| ended.request));
            scheduler.close_tier(clock, out);
            assert!(scheduler.is_idle());
            ended
        });
        assert_eq!(ended.len(), 300);
        let ends =
            events.iter().filter(|event| matches!(event.body, Body::Finished { .. } | Body::Failed { .. }));
        assert_eq!(ends.count(), 300);
        let from_disk = |event: &Event| match &event.body {
            Body::Restored(restore) => restore.ssd.is_some(),
            _ => false,
        };
        assert!(round == 0 || events.iter().any(from_disk), "what the round before wrote is read");
    }
}
