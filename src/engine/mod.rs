//! The engine: one named thread that owns the model, the cache and the clock, takes commands and emits events.
//!
//! It knows nothing of terminals, command lines or async runtimes, and never waits for a consumer.

mod asked;
mod background;
mod clock;
#[macro_use]
mod delegate;
mod emitter;
mod fault;
mod host;
mod lane;
pub mod measure;
mod scheduler;
mod sequence;
mod watch;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::cache::budget::Budget;
use crate::cache::tier::{Layers, StateBytes, Tier, TierError};
use crate::cache::{Cache, chain};
use crate::config::{
    Aggregation, ClockKind, Config, DrafterKind, SchedulerConfig, SparseOverride, SpecPrefillConfig,
    SpeculationOverride,
};
use crate::decode;
use crate::decode::draft::DraftModel;
use crate::device::ExecutorFacts;
use crate::event::{
    Body, Identity, LaneId, RequestId, RunFacts, SessionSetting, Sink, SparseSettings, SpecPrefillFacts,
    SpeculationFacts, Stamp,
};
use crate::ledger::Breakpoint;
use crate::model::text::TextCodec;
use crate::model::{Loaded, LoadedDraft, LoadedScorer, ModelError};
use crate::prefill::scorer::{Scorer, ScorerSettings};
use crate::prefill::sparse::resolve;
use crate::recovery::neighbours::{Member, Neighbours};
use crate::session::{Message, Player, ReplayMode, Role, Session, Setting};
use asked::{Asked, Sent};
use background::Background;
use clock::Clock;
use emitter::Emitter;
pub use fault::{BadFault, Fault};
use host::Host;
use scheduler::{Policies, Scheduler, SparseSide, SpeculationSide};

/// What the outside can ask for. Answers are events.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Run the next turn of `lane`, then stop before the one after it. While a request is held after a phase, finish it.
    StepTurn {
        /// The lane.
        lane: LaneId,
    },
    /// Run to the end of the next phase: of the request under way, or of the next turn of `lane`.
    StepPhase {
        /// The lane.
        lane: LaneId,
    },
    /// Run `lane` to its end. Other lanes go on as they do: the requests of several run side by side, each lane's in order.
    Run {
        /// The lane.
        lane: LaneId,
    },
    /// Run every lane to its end, their requests side by side.
    RunAll,
    /// Open a lane on another session, with a history of its own. It stands before its first turn; the configuration stays.
    Open {
        /// The session.
        session: Arc<Session>,
    },
    /// Hold all lanes, as soon as the current slice is done. `Run`, `StepTurn` and `StepPhase` go on from there.
    Pause,
    /// Cancel a request.
    Cancel {
        /// The request.
        request: RequestId,
    },
    /// Run a turn that is not in the session: `messages` are appended to the lane's history.
    Inject {
        /// The lane.
        lane: LaneId,
        /// What to append.
        messages: Vec<Message>,
        /// Reply tokens allowed; the configured number where `None`.
        max_output_tokens: Option<u64>,
    },
    /// Open a new lane in which turn `turn` of `lane` says something else, and stand before that turn. What changes is the
    /// last of the turn's messages that is not the model's; its other messages, their calls and ids stay as they are.
    Fork {
        /// The lane to fork.
        lane: LaneId,
        /// The turn to replace, from 1.
        turn: u32,
        /// Who is to have said it.
        role: Role,
        /// The new text.
        content: String,
    },
    /// Say what a turn would cost if it were sent now. The answer is [`Body::Previewed`]. Nothing else changes.
    Preview {
        /// A number that the answer carries.
        ticket: u64,
        /// The lane.
        lane: LaneId,
        /// The turn.
        subject: Subject,
    },
    /// Pause the replay after the phase in which one of these conditions holds for a request; in place of those set before.
    Break {
        /// The conditions.
        conditions: Vec<Breakpoint>,
    },
    /// Set sparse prefill by hand, in place of what was set so before, for every request that is admitted from now on.
    SpecPrefill(SparseOverride),
    /// Set speculative decoding by hand, in place of what was set so before, for every request that is admitted from now on.
    Speculation(SpeculationOverride),
    /// Switch background recovery on or off. Off ends the job under way.
    Recovery {
        /// Whether it is on.
        enabled: bool,
    },
    /// Have the cost of forwards of several widths measured whenever a reply has ended, from now on, or no longer.
    MeasureVerify(bool),
    /// Choose again from the attention that the latest scoring captured, without running the scorer. The answer is [`Body::Rescored`].
    Rescore {
        /// A number that the answer carries.
        ticket: u64,
        /// The request whose scoring is meant; the attention of the latest scoring only is kept.
        request: RequestId,
        /// With which knobs.
        knobs: Rescore,
    },
    /// Have something go wrong.
    Fault {
        /// The lane whose latest prompt counts the blocks.
        lane: LaneId,
        /// What.
        fault: Fault,
    },
    /// Drop all cached state that no running request uses.
    EvictAll,
    /// End the engine's loop by a panic: how the supervision of the thread is tested.
    Panic,
    /// Finish: cancel what runs and end the thread.
    Shutdown,
}

/// Knobs of another choice from the same attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rescore {
    /// See [`SpecPrefillConfig::keep`](crate::config::SpecPrefillConfig::keep).
    pub keep: f64,
    /// Width of the average, odd.
    pub pool: usize,
    /// Tokens of a unit.
    pub unit: usize,
    /// Last tokens that are always kept.
    pub tail_tokens: usize,
    /// How scores become one.
    pub aggregation: Aggregation,
}

impl Rescore {
    /// Refuses what a configuration would refuse.
    fn check(&self) -> Result<(), &'static str> {
        match () {
            () if !(self.keep > 0.0 && self.keep <= 1.0) => Err("keep is a fraction above 0, up to 1"),
            () if self.pool.is_multiple_of(2) || self.pool > 1023 => Err("pool is an odd number up to 1,023"),
            () if self.unit == 0 => Err("a unit has at least one token"),
            () => Ok(()),
        }
    }
}

/// A turn whose cost is asked for.
#[derive(Debug, Clone, PartialEq)]
pub enum Subject {
    /// As [`Command::Inject`].
    Injection(Vec<Message>),
    /// As [`Command::Fork`].
    Fork {
        /// The turn to replace, from 1.
        turn: u32,
        /// Who is to have said it.
        role: Role,
        /// The new text.
        content: String,
    },
}

/// What an engine runs on.
pub struct Setup {
    /// The configuration.
    pub config: Config,
    /// The session to replay.
    pub session: Arc<Session>,
    /// The engines it shares a process with, as far as background work goes: [`Neighbours::open`] where it is to be disturbed by none.
    pub neighbours: Neighbours,
    /// Loads the model; called on the engine thread, which owns every device object.
    pub load: Box<dyn FnOnce() -> Result<Loaded, ModelError> + Send>,
    /// Where events go. Called on the engine thread; must not block.
    pub sink: Box<dyn Sink>,
}

/// The engine's outside: commands in. Events come through [`Setup::sink`].
pub struct Engine {
    commands: mpsc::Sender<Sent>,
    asked: Arc<Asked>,
    member: Arc<Member>,
    thread: JoinHandle<()>,
}

impl Engine {
    /// Starts the engine thread, standing before the first turn of lane 0. A load failure and a panic arrive as
    /// [`Body::EngineFailed`].
    pub fn start(setup: Setup) -> std::io::Result<Engine> {
        let (commands, receiver) = mpsc::channel();
        let asked = Arc::<Asked>::default();
        let member = Arc::new(setup.neighbours.join());
        let background =
            Background::new(setup.config.recovery.clone(), Arc::clone(&member), Arc::clone(&asked));
        let thread = std::thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || run(setup, background, &receiver))?;
        Ok(Engine { commands, asked, member, thread })
    }

    /// Sends a command; `false` when the engine has ended. One that leads to a request is seen in all of the process from here on.
    pub fn send(&self, command: Command) -> bool {
        let announced = command.brings_request().then(|| self.member.announce());
        self.asked.note(&command);
        self.commands.send(Sent { command, at: Instant::now(), announced }).is_ok()
    }

    /// Waits for the engine thread to end. It ends on [`Command::Shutdown`], or when no sender is left.
    pub fn join(self) {
        drop(self.commands);
        // A panic on the thread has been reported as an event already.
        let _ = self.thread.join();
    }
}

fn run(setup: Setup, background: Background, commands: &mpsc::Receiver<Sent>) {
    let Setup { config, session, load, sink, neighbours: _ } = setup;
    let mut out = Emitter::new(sink);
    let outcome =
        catch_unwind(AssertUnwindSafe(|| serve(&config, session, load, background, &mut out, commands)));
    let failure = match outcome {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(panic) => {
            format!("the engine thread panicked: {}; this is a bug, please report it", panic_text(&*panic))
        }
    };
    out.emit(Stamp::default(), None, None, Body::EngineFailed { message: failure });
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// Why an engine could not start.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("`cache.dir`: {0}")]
    Tier(#[from] TierError),
}

fn serve(
    config: &Config,
    session: Arc<Session>,
    load: impl FnOnce() -> Result<Loaded, ModelError>,
    background: Background,
    out: &mut Emitter,
    commands: &mpsc::Receiver<Sent>,
) -> Result<(), StartError> {
    let Loaded { executor, text, scorer, draft } = load()?;
    let facts = executor.facts().clone();
    let clock = Clock::start(config.replay.clock, facts.identity == Identity::Simulated);
    let budget = Budget::of(&facts, config.cache.ram_bytes, config.scheduler.max_sequences);
    let identity = chain::Identity::of(&facts, text.digest());
    let mut cache = Cache::new(&identity, facts.page_tokens, budget);
    cache.limit_snapshots(config.cache.max_snapshots.unwrap_or(usize::MAX));
    if let Some(dir) = &config.cache.dir {
        let (page, slot) = executor.exported_bytes();
        let state = StateBytes { page: page as u64, slot: slot as u64 };
        cache.attach_tier(
            Tier::open(dir, &identity, layers_of(&facts), state, config.cache.ssd_bytes)?,
            run_name(),
        );
    }
    let mut run = run_facts(config, &session, &facts);
    run.speculation = Some(speculation_facts(config, &facts, draft.as_ref()));
    run.specprefill = scorer.as_ref().map(|scorer| specprefill_facts(config, &scorer.name));
    out.emit(clock.now(), None, None, Body::RunStarted(Box::new(run)));
    let policies = Policies::of(&config.cache);
    let mut scheduler = Scheduler::new(executor, &text, cache, config.scheduler.clone(), policies);
    scheduler.attach_sparse(sparse_side(config, &text, scorer));
    scheduler.attach_speculation(speculation_side(config, &text, facts.vocab, draft));
    scheduler.attach_background(background);
    scheduler.tell_logits(config.replay.tell_logits);
    if let Some(reading) = scheduler.tier_reading() {
        out.emit(clock.now(), None, None, Body::Tier(Box::new(reading)));
    }
    let player = Player::new(session, config.replay.mode);
    Host::new(config, &text, scheduler, clock, out, player).run(commands);
    Ok(())
}

fn sparse_side(config: &Config, text: &TextCodec, scorer: Option<LoadedScorer>) -> SparseSide {
    let scorer = scorer.map(|LoadedScorer { executor, decodes, .. }| {
        let chunk_tokens = config.scheduler.chunk_tokens;
        let settings = ScorerSettings::of(&config.specprefill, chunk_tokens, decodes);
        Scorer::new(executor, text.digest(), text.end_of_turn().to_vec(), settings)
    });
    SparseSide::new(scorer, config.clone())
}

fn speculation_side(
    config: &Config,
    text: &TextCodec,
    vocab: usize,
    draft: Option<LoadedDraft>,
) -> SpeculationSide {
    let SchedulerConfig { max_sequences, chunk_tokens, .. } = config.scheduler;
    let model = draft.map(|LoadedDraft { executor, .. }| {
        let ram_bytes = config.speculation.ram_bytes;
        DraftModel::new(executor, text.digest(), vocab, ram_bytes, max_sequences, chunk_tokens)
    });
    SpeculationSide::new(model, config.clone())
}

fn speculation_facts(
    config: &Config,
    facts: &ExecutorFacts,
    draft: Option<&LoadedDraft>,
) -> SpeculationFacts {
    let nobody = SpeculationOverride::default();
    let settings = decode::settings::resolve(config, None, nobody, nobody);
    let head = (facts.head_layers > 0).then_some(DrafterKind::Mtp);
    let loaded = [DrafterKind::Ngram].into_iter().chain(head).chain(draft.map(|_| DrafterKind::Draft));
    SpeculationFacts {
        drafter: settings.drafter.value,
        loaded: loaded.collect(),
        draft_model: draft.map(|draft| draft.name.clone()),
        depth_max: settings.depth.value,
        controller: settings.controller.value,
        audit: config.speculation.audit,
    }
}

fn specprefill_facts(config: &Config, scorer: &str) -> SpecPrefillFacts {
    let SpecPrefillConfig { enabled, leaves, tail_tokens, pool, aggregation, .. } = config.specprefill;
    let SparseSettings { keep, threshold, .. } =
        resolve(config, None, SparseOverride::default(), SparseOverride::default());
    SpecPrefillFacts {
        enabled,
        keep: keep.value,
        threshold: threshold.value,
        scorer: scorer.to_owned(),
        leaves: leaves.word().to_owned(),
        tail_tokens: Some(tail_tokens as u64),
        pool: Some(pool as u64),
        aggregation: Some(aggregation),
    }
}

/// A name for this run that no other has: in a cache folder it tells blocks of this run from those of earlier ones.
fn run_name() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let seed = [u128::from(std::process::id()), now.as_nanos()];
    let hash = blake3::hash(bytemuck::cast_slice(&seed));
    hash.to_hex().chars().take(16).collect()
}

fn layers_of(facts: &ExecutorFacts) -> Layers {
    Layers { attention: facts.attention_layers, recurrent: facts.recurrent_layers }
}

fn run_facts(config: &Config, session: &Session, facts: &ExecutorFacts) -> RunFacts {
    let recurrent = facts.slot_bytes > 0;
    let digest = facts.digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let clock = match config.replay.clock {
        ClockKind::Wall => "wall",
        ClockKind::Virtual => "virtual",
    };
    let mode = match config.replay.mode {
        ReplayMode::Recorded => "recorded",
        ReplayMode::Live => "live",
    };
    RunFacts {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        model: facts.model.clone(),
        model_digest: digest,
        device: facts.device.to_owned(),
        kernel: facts.kernel.clone(),
        precision: facts.precision.to_owned(),
        identity: facts.identity,
        block_tokens: facts.page_tokens as u64,
        context_tokens: Some(facts.context_tokens as u64),
        state_bytes_per_token: Some((facts.page_bytes / facts.page_tokens.max(1)) as u64),
        snapshot_bytes: recurrent.then_some(facts.slot_bytes as u64),
        snapshot_policy: recurrent.then(|| config.cache.snapshot_policy.to_string()),
        placeholder_policy: recurrent.then(|| config.cache.placeholder_policy.word().to_owned()),
        enlarged_from: (facts.page_tokens > config.cache.block_tokens)
            .then_some(config.cache.block_tokens as u64),
        cache_dir: config.cache.dir.as_ref().map(|dir| dir.display().to_string()),
        ram_bytes: Some(config.cache.ram_bytes),
        clock: clock.to_owned(),
        session: session.title.clone(),
        session_requests: session.requests.len() as u64,
        replay_mode: mode.to_owned(),
        specprefill: None,
        recovery: Some(config.recovery.clone()),
        speculation: None,
        session_settings: session.settings.iter().map(|set| session_setting(config, set)).collect(),
    }
}

fn session_setting(config: &Config, setting: &Setting) -> SessionSetting {
    let in_effect = config.has(&setting.key, &setting.value);
    SessionSetting { setting: setting.to_string(), in_effect }
}

#[cfg(test)]
mod tests;
