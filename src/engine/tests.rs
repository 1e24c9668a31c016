//! The engine on the `sim` device: the whole life of requests, without weights.

mod growth;
mod hybrid;
mod lanes;
mod memory;
mod preemption;
mod recovery;
mod resident;
mod sparse;
mod speculation;
mod tiers;
mod together;
mod walks;
mod watched;

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use proptest::prelude::*;

use super::scheduler::{Scheduler, StepOutcome};
use super::sequence::Submission;
use super::*;
use crate::cache::budget::DeviceLimits;
use crate::cache::tier::Tuning;
use crate::config::{PlaceholderPolicy, SchedulerConfig, SnapshotPolicy};
use crate::decode::Sampling;
use crate::device::sim::Sim;
use crate::event::{Cause, Event, FinishReason, Gate, HistoryChange, Nanos, Phase, Segment, Source};
use crate::ledger::Ledger;
use crate::session::{Message, RequestOverrides, RequestSpec, Role};

const BLOCK: usize = 64;

fn config() -> Config {
    let mut config = Config::default();
    config.cache.block_tokens = BLOCK;
    config.replay.max_output_tokens = 12;
    config
}

fn session(turns: usize) -> Session {
    let request = |n: usize| RequestSpec {
        name: format!("r{n}"),
        idle: Nanos::from_seconds(10.0),
        side: false,
        rewrites: Vec::new(),
        append: vec![Message::text(
            Role::User,
            format!("step {n}: read the file and tell me about it. ").repeat(12),
        )],
        reply: Some(Message::text(Role::Assistant, format!("Done with step {n}."))),
        overrides: RequestOverrides::default(),
    };
    Session {
        title: "test".to_owned(),
        description: String::new(),
        transport: None,
        settings: Vec::new(),
        system: Some("You work on a Rust project. ".repeat(20)),
        tools: Vec::new(),
        requests: (1..=turns).map(request).collect(),
    }
}

fn loaded(config: &Config) -> Loaded {
    Loaded {
        executor: Box::new(Sim::new(&config.sim, config.cache.block_tokens)),
        text: TextCodec::synthetic(Sim::VOCAB as u32),
        scorer: None,
        draft: None,
    }
}

/// An engine whose events can be waited for.
struct Bench {
    engine: Engine,
    events: Receiver<Event>,
    seen: Vec<Event>,
    ledger: Ledger,
}

impl Bench {
    fn start(config: Config, session: Session) -> Bench {
        let sim = config.clone();
        Bench::start_on(config, session, move || loaded(&sim))
    }

    fn start_on(config: Config, session: Session, load: impl FnOnce() -> Loaded + Send + 'static) -> Bench {
        let (sender, events) = channel();
        let engine = Engine::start(Setup {
            neighbours: Neighbours::open(&config.recovery),
            config,
            session: Arc::new(session),
            load: Box::new(move || Ok(load())),
            sink: Box::new(move |event: &Event| {
                let _ = sender.send(event.clone());
            }),
        })
        .unwrap();
        let mut bench = Bench { engine, events, seen: Vec::new(), ledger: Ledger::new() };
        bench.until_gate(Gate::BeforeTurn);
        bench
    }

    fn until(&mut self, mut done: impl FnMut(&Event) -> bool) -> Event {
        loop {
            let event = self.events.recv_timeout(Duration::from_secs(20)).expect("the awaited event");
            self.ledger.apply(&event);
            self.seen.push(event.clone());
            if done(&event) {
                return event;
            }
        }
    }

    fn until_gate(&mut self, wanted: Gate) {
        self.until(|event| matches!(event.body, Body::GateChanged { gate, .. } if gate == wanted));
    }

    fn send(&self, command: Command) {
        assert!(self.engine.send(command));
    }

    fn end(mut self) -> (Vec<Event>, Ledger) {
        self.send(Command::Shutdown);
        self.until(|event| event.body == Body::RunEnded);
        self.engine.join();
        (self.seen, self.ledger)
    }
}

const A: LaneId = LaneId(0);

fn replay(config: Config, session: Session) -> (Vec<Event>, Ledger) {
    let mut bench = Bench::start(config, session);
    bench.send(Command::Run { lane: A });
    bench.until_gate(Gate::Ended);
    bench.end()
}

#[test]
fn the_same_session_gives_the_same_events_byte_for_byte() {
    let bytes = || serde_json::to_vec(&replay(config(), session(5)).0).unwrap();
    assert_eq!(bytes(), bytes());
}

#[test]
fn the_checkpoint_rises_by_whole_blocks_and_every_token_is_accounted_for() {
    let (events, ledger) = replay(config(), session(6));
    let mut checkpoints = Vec::new();
    for request in ledger.requests() {
        let restore = request.restore.as_ref().unwrap();
        let prompt = request.prompt_tokens.unwrap();
        assert_eq!(restore.checkpoint_tokens + request.uncached_suffix.unwrap(), prompt);
        assert_eq!(restore.losses.iter().map(|l| l.tokens).sum::<u64>(), request.uncached_suffix.unwrap());
        assert_eq!(request.computed_tokens, request.uncached_suffix);
        assert_eq!(request.canonical_tokens.unwrap(), prompt / BLOCK as u64 * BLOCK as u64);
        assert_eq!(restore.checkpoint_tokens % BLOCK as u64, 0);
        checkpoints.push(restore.checkpoint_tokens);
    }
    assert!(checkpoints[0] == 0 && checkpoints.windows(2).all(|w| w[0] < w[1]), "{checkpoints:?}");
    assert!(events.iter().enumerate().all(|(n, event)| event.seq == n as u64));
    assert_eq!(ledger.cliffs(A).count(), 0);
}

#[test]
fn a_virtual_gap_is_seen_in_full() {
    let (_, ledger) = replay(config(), session(3));
    let requests: Vec<_> = ledger.requests().collect();
    for pair in requests.windows(2) {
        let ended = pair[0].arrived_at.0 + pair[0].took.unwrap().0;
        assert_eq!(pair[1].arrived_at.0 - ended, 10_000_000_000);
    }
}

#[test]
fn a_gap_is_capped_behind_its_factor() {
    let gap = |scale: f64, cap: Option<f64>| {
        let mut config = config();
        (config.replay.idle_scale, config.replay.idle_cap_s) = (scale, cap);
        let (_, ledger) = replay(config, session(2));
        ledger.requests().nth(1).unwrap().idle.unwrap().0
    };
    assert_eq!(gap(0.5, Some(7.0)), 5_000_000_000, "what is shorter is left alone");
    assert_eq!(gap(2.0, Some(7.0)), 7_000_000_000, "the cap is not scaled");
    assert_eq!(gap(2.0, Some(0.0)), 0);
    assert_eq!(gap(2.0, None), 20_000_000_000);
}

#[test]
fn stepping_by_phase_stops_after_each_in_order() {
    let mut bench = Bench::start(config(), session(1));
    for expected in [Phase::Prefill, Phase::Decode, Phase::Store] {
        bench.send(Command::StepPhase { lane: A });
        bench.until_gate(Gate::AfterPhase);
        assert_eq!(bench.ledger.current().unwrap().phase, expected);
    }
    bench.send(Command::StepPhase { lane: A });
    bench.until_gate(Gate::Ended);
    assert!(bench.ledger.current().is_none());
    bench.end();
}

#[test]
fn stepping_by_turn_stops_before_the_next_one() {
    let mut bench = Bench::start(config(), session(3));
    bench.send(Command::StepTurn { lane: A });
    bench.until(|event| matches!(event.body, Body::Finished { .. }));
    bench.until_gate(Gate::BeforeTurn);
    assert_eq!(bench.ledger.lane(A).unwrap().next_turn, Some(2));
    let (_, ledger) = bench.end();
    assert_eq!(ledger.requests().count(), 1);
}

#[test]
fn a_cancelled_prefill_leaves_its_whole_blocks_behind() {
    let mut config = config();
    config.scheduler.chunk_tokens = 32;
    let mut bench = Bench::start(config, session(2));
    bench.send(Command::StepPhase { lane: A });
    bench.until_gate(Gate::AfterPhase);
    // The clock is virtual, so only the command order decides where the prefill stands when it is cancelled.
    let request = bench.ledger.current().unwrap().id;
    bench.send(Command::StepPhase { lane: A });
    bench.send(Command::Cancel { request });
    bench.until(|e| matches!(e.body, Body::Finished { .. }));
    bench.until(|e| matches!(e.body, Body::GateChanged { gate: Gate::BeforeTurn, .. }));
    let cancelled = bench.ledger.request(request).unwrap().clone();
    assert_eq!(cancelled.reason, Some(FinishReason::Cancelled));
    bench.send(Command::StepTurn { lane: A });
    bench.until(|e| matches!(e.body, Body::Finished { .. }));
    let (_, ledger) = bench.end();
    let next = ledger.requests().last().unwrap();
    assert_eq!(next.checkpoint(), cancelled.canonical_tokens);
}

#[test]
fn an_injected_turn_joins_the_history() {
    let mut bench = Bench::start(config(), session(2));
    bench.send(Command::StepTurn { lane: A });
    bench.until_gate(Gate::BeforeTurn);
    let messages = vec![Message::text(Role::User, "a question of my own")];
    bench.send(Command::Inject { lane: A, messages, max_output_tokens: Some(3) });
    bench.until(|e| matches!(e.body, Body::Finished { .. }));
    bench.send(Command::Run { lane: A });
    bench.until_gate(Gate::Ended);
    let (_, ledger) = bench.end();
    let requests: Vec<_> = ledger.requests().collect();
    assert_eq!(requests.len(), 3);
    assert_eq!(requests[1].source, Some(Source::Inject));
    assert!(requests[1].output_tokens.unwrap() <= 3);
    assert!(requests.windows(2).all(|w| w[0].prompt_tokens < w[1].prompt_tokens));
    assert!(requests[1..].iter().all(|r| !r.restore.as_ref().unwrap().cause.is_loss()));
}

#[test]
fn a_fork_keeps_both_branches_and_reuses_what_they_share() {
    let mut bench = Bench::start(config(), session(4));
    bench.send(Command::Run { lane: A });
    bench.until_gate(Gate::Ended);
    bench.send(Command::Fork {
        lane: A,
        turn: 2,
        role: Role::User,
        content: "another second step. ".repeat(15),
    });
    bench.until(|e| matches!(e.body, Body::LaneOpened { parent: Some(_), .. }));
    bench.send(Command::Run { lane: LaneId(1) });
    bench.until_gate(Gate::Ended);
    let (_, ledger) = bench.end();
    let fork: Vec<_> = ledger.lane_requests(LaneId(1)).collect();
    assert_eq!(fork.iter().map(|r| r.turn).collect::<Vec<_>>(), [2, 3, 4]);
    assert_eq!((fork[0].source, fork[0].change), (Some(Source::Edit), Some(HistoryChange::Edit)));
    assert_eq!(ledger.lane_requests(A).count(), 4);
    // The fork's history is its parent's, once: nothing of the replies before it is said again.
    let edited: Vec<_> = fork[0].items.iter().map(|item| (item.segment, item.text.as_str())).collect();
    let said = "another second step. ".repeat(15);
    assert_eq!(edited[edited.len() - 1], (Segment::Injected, said.as_str()));
    let original = ledger.lane_requests(A).nth(1).unwrap();
    assert!(fork[0].prompt_tokens < original.prompt_tokens);
    assert_eq!(fork[0].items.len(), original.items.len());
    let first = ledger.lane_requests(A).next().unwrap();
    assert!(fork[0].checkpoint().unwrap() >= first.canonical_tokens.unwrap());
}

#[test]
fn requests_beyond_the_context_are_cut_with_a_message() {
    let mut config = config();
    config.sim.context_tokens = 800;
    let (events, ledger) = replay(config, session(8));
    let cut = ledger.session_cut().unwrap();
    assert!(events.iter().position(|e| matches!(e.body, Body::SessionCut { .. })) < Some(5));
    assert_eq!(ledger.requests().count() as u64, cut.kept_requests);
    assert!(cut.kept_requests > 1 && cut.kept_requests < 8 && cut.prompt_tokens >= 800);
    assert!(ledger.requests().all(|r| r.error.is_none()));
}

#[test]
fn a_request_too_big_for_the_cache_fails_with_a_remedy_and_frees_its_pages() {
    let mut config = config();
    config.cache.ram_bytes = (3 * BLOCK * config.sim.state_bytes_per_token) as u64;
    let (_, ledger) = replay_failing(config, session(1));
    let request = ledger.requests().next().unwrap();
    assert!(request.error.as_deref().unwrap().contains("cache.ram_bytes"), "{:?}", request.error);
    assert_eq!(ledger.memory().unwrap().live_blocks, 0);
}

fn replay_failing(config: Config, session: Session) -> (Vec<Event>, Ledger) {
    let mut bench = Bench::start(config, session);
    bench.send(Command::Run { lane: A });
    bench.until(|e| matches!(e.body, Body::Failed { .. }));
    bench.end()
}

#[test]
fn with_little_room_the_oldest_blocks_go_and_the_cause_is_eviction() {
    let mut config = config();
    let (_, roomy) = replay(config.clone(), session(4));
    config.cache.ram_bytes = (20 * BLOCK * config.sim.state_bytes_per_token) as u64;
    let mut wide = session(4);
    wide.requests[1].rewrites = vec![crate::session::Rewrite::Compaction {
        messages: vec![Message::text(Role::User, "other. ".repeat(200))],
    }];
    let (_, ledger) = replay(config, wide);
    assert!(roomy.requests().all(|r| r.evicted_blocks == Some(0)));
    assert!(ledger.requests().any(|r| r.evicted_blocks > Some(0)));
    assert!(ledger.requests().all(|r| r.error.is_none()));
    assert_eq!(ledger.requests().nth(1).unwrap().restore.as_ref().unwrap().cause, Cause::Compaction);
}

#[test]
fn a_panic_on_the_engine_thread_becomes_an_event() {
    let mut bench = Bench::start(config(), session(1));
    bench.send(Command::Panic);
    let event = bench.until(|e| matches!(e.body, Body::EngineFailed { .. }));
    assert!(matches!(event.body, Body::EngineFailed { message } if message.contains("panicked")));
    bench.engine.join();
}

#[test]
fn without_the_cache_nothing_is_read_or_written() {
    let mut config = config();
    config.cache.enabled = false;
    let (_, ledger) = replay(config, session(3));
    for request in ledger.requests() {
        assert_eq!(request.checkpoint(), Some(0));
        assert_eq!(request.stored_tokens, None);
        assert_eq!(request.restore.as_ref().unwrap().cause, Cause::CacheOff);
    }
    assert_eq!(ledger.memory().unwrap().bytes, 0);
}

fn submission(prompt: Vec<u32>, max_output_tokens: u64) -> Submission {
    Submission::of(A, prompt, max_output_tokens)
}

/// What a scheduler is tested on.
#[derive(Debug, Clone)]
struct Ground {
    scheduling: SchedulerConfig,
    policy: SnapshotPolicy,
    placeholder: PlaceholderPolicy,
    block_tokens: usize,
    budget: Budget,
    tier: Option<TierGround>,
    ssd_wait: Duration,
}

/// The tier on disk of a scheduler under test.
#[derive(Debug, Clone)]
struct TierGround {
    dir: std::path::PathBuf,
    limit_bytes: u64,
    tuning: Tuning,
}

impl Ground {
    /// Without a tier on disk.
    fn of(
        scheduling: SchedulerConfig,
        policy: SnapshotPolicy,
        block_tokens: usize,
        budget: Budget,
    ) -> Ground {
        let (placeholder, ssd_wait) = (PlaceholderPolicy::WalkBack, Duration::from_secs(60));
        Ground { scheduling, policy, placeholder, block_tokens, budget, tier: None, ssd_wait }
    }

    /// Attention layers only.
    fn sliceable(scheduling: SchedulerConfig, pages: usize) -> Ground {
        let budget = Budget {
            limit_bytes: pages as u64,
            page_bytes: 1,
            slot_bytes: 0,
            sequences: scheduling.max_sequences,
            context_pages: pages,
            device: DeviceLimits::default(),
        };
        Ground::of(scheduling, SnapshotPolicy::EVERY, BLOCK, budget)
    }

    fn run<T>(
        &self,
        work: impl FnOnce(&mut Scheduler<'_>, &mut Clock, &mut Emitter) -> T,
    ) -> (T, Vec<Event>) {
        let mut config = config();
        config.cache.block_tokens = self.block_tokens;
        config.sim.snapshot_bytes = self.budget.slot_bytes as usize;
        self.run_on(loaded(&config), work)
    }

    fn run_on<T>(
        &self,
        Loaded { executor, text, .. }: Loaded,
        work: impl FnOnce(&mut Scheduler<'_>, &mut Clock, &mut Emitter) -> T,
    ) -> (T, Vec<Event>) {
        let identity = chain::Identity::of(executor.facts(), text.digest());
        let mut cache = Cache::new(&identity, self.block_tokens, self.budget);
        if let Some(TierGround { dir, limit_bytes, tuning }) = &self.tier {
            let (page, slot) = executor.exported_bytes();
            let state = StateBytes { page: page as u64, slot: slot as u64 };
            let layers = layers_of(executor.facts());
            let tier = Tier::open_tuned(dir, &identity, layers, state, *limit_bytes, *tuning).unwrap();
            cache.attach_tier(tier, run_name());
        }
        let mut clock = Clock::start(ClockKind::Virtual, true);
        let (sender, events) = channel();
        let mut out = Emitter::new(Box::new(move |event: &Event| {
            let _ = sender.send(event.clone());
        }));
        let policies =
            Policies { snapshot: self.policy, placeholder: self.placeholder, ssd_wait: self.ssd_wait };
        let mut scheduler = Scheduler::new(executor, &text, cache, self.scheduling.clone(), policies);
        let result = work(&mut scheduler, &mut clock, &mut out);
        (result, events.try_iter().collect())
    }
}

fn with_scheduler<T>(
    scheduling: SchedulerConfig,
    pages: usize,
    work: impl FnOnce(&mut Scheduler<'_>, &mut Clock, &mut Emitter) -> T,
) -> (T, Vec<Event>) {
    Ground::sliceable(scheduling, pages).run(work)
}

fn drain(scheduler: &mut Scheduler<'_>, clock: &mut Clock, out: &mut Emitter) {
    for _ in 0..100_000 {
        if scheduler.is_idle() {
            return;
        }
        let StepOutcome { .. } = scheduler.step(clock, out);
    }
    panic!("nothing gets on");
}

fn texts(events: &[Event]) -> Vec<(RequestId, String)> {
    let mut texts: Vec<_> = events
        .iter()
        .filter_map(|event| match &event.body {
            Body::Decoded { text, .. } => Some((event.request.unwrap(), text.clone())),
            _ => None,
        })
        .collect();
    texts.sort();
    texts
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Replies depend on the prompt, not on chunks, company, or how many run at once; and no page is lost.
    #[test]
    fn replies_do_not_depend_on_scheduling(
        lengths in prop::collection::vec(1_usize..400, 1..6),
        chunk_tokens in 1_usize..200,
        max_sequences in 1_usize..4,
        shared in 0_usize..300,
    ) {
        let prompt = |n: usize, length: usize| -> Vec<u32> {
            (0..length + shared).map(|i| if i < shared { i as u32 } else { (i * (n + 7)) as u32 }).collect()
        };
        let run = |scheduling: SchedulerConfig| with_scheduler(scheduling, 1000, |scheduler, clock, out| {
            for (n, length) in lengths.iter().enumerate() {
                scheduler.submit(submission(prompt(n, *length), 5), clock, out);
            }
            drain(scheduler, clock, out);
            let cache = scheduler.cache_mut();
            (cache.used_pages(), cache.cached_blocks())
        });
        let (_, alone) = run(SchedulerConfig { max_sequences: 1, chunk_tokens: 10_000, ..SchedulerConfig::default() });
        let ((used, cached), events) = run(SchedulerConfig { max_sequences, chunk_tokens, ..SchedulerConfig::default() });
        prop_assert_eq!(texts(&alone), texts(&events));
        prop_assert_eq!(used, cached);
    }

    /// Whatever is cancelled when, holders come back to the cache alone.
    #[test]
    fn cancelling_anywhere_returns_every_page(
        lengths in prop::collection::vec(1_usize..500, 1..5),
        cancels in prop::collection::vec((0_usize..40, 1_u64..5), 0..5),
        pages in 6_usize..30,
    ) {
        let scheduling = SchedulerConfig { max_sequences: 3, chunk_tokens: 50, ..SchedulerConfig::default() };
        let ((used, cached, ended), _) = with_scheduler(scheduling, pages, |scheduler, clock, out| {
            for length in &lengths {
                scheduler.submit(submission((0..*length as u32).collect(), 4), clock, out);
            }
            let mut ended = 0;
            for step in 0.. {
                for (at, request) in &cancels {
                    if *at == step {
                        ended += usize::from(scheduler.cancel(RequestId(*request), clock, out).is_some());
                    }
                }
                if scheduler.is_idle() {
                    break;
                }
                ended += scheduler.step(clock, out).ended.len();
            }
            let cache = scheduler.cache_mut();
            (cache.used_pages(), cache.cached_blocks(), ended)
        });
        prop_assert_eq!(used, cached);
        prop_assert_eq!(ended, lengths.len());
    }
}

#[test]
fn restored_state_is_the_recomputed_state() {
    let scheduling = SchedulerConfig { max_sequences: 1, chunk_tokens: 100, ..SchedulerConfig::default() };
    let prompt: Vec<u32> = (0..400).collect();
    let digests = |warm: bool| {
        with_scheduler(scheduling.clone(), 100, |scheduler, clock, out| {
            if warm {
                scheduler.submit(submission(prompt[..300].to_vec(), 1), clock, out);
                drain(scheduler, clock, out);
            }
            let request = scheduler.submit(submission(prompt.clone(), 1), clock, out);
            let mut digests = Vec::new();
            while !scheduler.is_idle() {
                let pages = scheduler.held_pages(request);
                if pages.len() == 7 {
                    let digest = |page: &crate::cache::pool::PageRef| {
                        scheduler.executor().page_digest(page.id(), BLOCK)
                    };
                    digests = pages[..6].iter().map(digest).collect();
                }
                scheduler.step(clock, out);
            }
            digests
        })
        .0
    };
    let (cold, warm) = (digests(false), digests(true));
    assert_eq!(cold.len(), 6);
    assert_eq!(cold, warm);
}

#[test]
fn a_stale_page_ends_the_request_and_is_counted() {
    let scheduling = SchedulerConfig { max_sequences: 2, chunk_tokens: 64, ..SchedulerConfig::default() };
    let ((), events) = with_scheduler(scheduling, 100, |scheduler, clock, out| {
        let request = scheduler.submit(submission((0..300).collect(), 4), clock, out);
        scheduler.submit(submission((1000..1200).collect(), 4), clock, out);
        for _ in 0..4 {
            scheduler.step(clock, out);
        }
        let page = scheduler.held_pages(request)[0];
        scheduler.cache_mut().corrupt_generation(page);
        drain(scheduler, clock, out);
    });
    let failed: Vec<_> = events.iter().filter(|e| matches!(e.body, Body::Failed { .. })).collect();
    assert_eq!(failed.len(), 1);
    assert!(events.iter().any(|e| e.body == Body::StalePage { count: 1 }));
    let finished = events.iter().filter(|e| matches!(e.body, Body::Finished { .. })).count();
    assert_eq!(finished, 1, "the other request is not harmed");
}
