//! A made-up run, written by hand so that every state of the interface can be shown without an engine.

use escarp::event::*;

/// Tokens a block holds in the sample.
pub const BLOCK: u64 = 256;

/// Collects events with rising sequence numbers and times.
pub struct Run {
    events: Vec<Event>,
    now: u64,
    previous: Option<(u64, u64)>,
    /// Prefill progress already accounted for.
    done: u64,
}

/// What a request of the sample looks like.
pub struct Turn {
    pub lane: u32,
    pub request: u64,
    pub turn: u32,
    pub name: &'static str,
    pub fresh: u64,
    /// Tokens lost beyond the floor, and why.
    pub loss: Option<(Cause, u64, &'static str)>,
    pub reply: &'static str,
}

impl Default for Turn {
    fn default() -> Turn {
        Turn {
            lane: 0,
            request: 1,
            turn: 1,
            name: "read-file",
            fresh: 700,
            loss: None,
            reply: "I'll look at the restore first.\nThe walk-back stops at the deepest block with state.",
        }
    }
}

impl Run {
    pub fn new() -> Run {
        Run::with(|_| {})
    }

    /// A run of which `change` makes something else.
    pub fn with(change: impl FnOnce(&mut RunFacts)) -> Run {
        let mut run = Run { events: Vec::new(), now: 0, previous: None, done: 0 };
        let mut facts = RunFacts {
            version: "0.1.0".into(),
            model: "SmolLM2-135M-Instruct".into(),
            model_digest: "00".repeat(32),
            device: "cpu".into(),
            kernel: "avx512-vnni".into(),
            precision: "int8".into(),
            identity: Identity::Bitwise,
            block_tokens: BLOCK,
            context_tokens: Some(65_536),
            state_bytes_per_token: Some(23_040),
            snapshot_bytes: None,
            snapshot_policy: None,
            placeholder_policy: None,
            enlarged_from: None,
            cache_dir: None,
            ram_bytes: Some(4 << 30),
            clock: "virtual".into(),
            session: "tools-change".into(),
            session_requests: 12,
            replay_mode: "recorded".into(),
            specprefill: None,
            speculation: None,
            recovery: None,
            session_settings: Vec::new(),
        };
        change(&mut facts);
        run.say(None, None, Body::RunStarted(Box::new(facts)));
        let opened = Body::LaneOpened { parent: None, at_turn: None, title: "tools-change".into() };
        run.say(Some(0), None, opened);
        run.gate(Gate::BeforeTurn, 0, Some(1));
        run
    }

    pub fn say(&mut self, lane: Option<u32>, request: Option<u64>, body: Body) {
        self.now += 1_000_000;
        let seq = self.events.len() as u64;
        self.events.push(Event {
            seq,
            at: Stamp(self.now),
            lane: lane.map(LaneId),
            request: request.map(RequestId),
            body,
        });
    }

    pub fn gate(&mut self, gate: Gate, lane: u32, next_turn: Option<u32>) {
        self.say(Some(lane), None, Body::GateChanged { gate, next_turn, turns: 12 });
    }

    /// Lets time pass.
    pub fn wait(&mut self, nanos: u64) {
        self.now += nanos;
    }

    pub fn peek(&self) -> &[Event] {
        &self.events
    }

    pub fn events(self) -> Vec<Event> {
        self.events
    }

    /// A request up to the moment its route is known.
    pub fn begin(&mut self, turn: &Turn) -> (u64, u64) {
        let (lane, request) = (Some(turn.lane), Some(turn.request));
        let old = self.previous.map_or(0, |(prompt, _)| prompt + 64);
        let prompt = old + turn.fresh;
        let first = self.previous.is_none();
        self.now += 14_000_000_000;
        self.say(lane, request, Body::Arrived(Box::new(arrival(turn, prompt, first))));
        self.say(lane, request, Body::Admitted { queued: Nanos(40_000) });
        let restore = restore(turn, prompt, old, first);
        let checkpoint = restore.checkpoint_tokens;
        self.say(lane, request, Body::Restored(Box::new(restore)));
        let suffix = prompt - checkpoint;
        self.say(lane, request, Body::Routed { route: Route::Dense, uncached_suffix: suffix });
        self.previous = Some((prompt, checkpoint));
        (prompt, suffix)
    }

    pub fn prefill(&mut self, turn: &Turn, done: u64, total: u64) {
        self.now += (done - self.done.min(done)) * 3_400_000;
        self.done = if done == total { 0 } else { done };
        self.say(
            Some(turn.lane),
            Some(turn.request),
            Body::PrefillProgress { done, total, shrunk: None, device: Some(device(total)), took: None },
        );
    }

    pub fn token(&mut self, turn: &Turn, index: u64, text: &str) {
        self.now += 22_000_000;
        let body = Body::Token { token: 1_000 + index as u32, text: text.into(), index, margin: None };
        self.say(Some(turn.lane), Some(turn.request), body);
    }

    /// A whole request.
    pub fn turn(&mut self, turn: &Turn) {
        let (lane, request) = (Some(turn.lane), Some(turn.request));
        let (prompt, suffix) = self.begin(turn);
        self.prefill(turn, suffix / 2, suffix);
        self.prefill(turn, suffix, suffix);
        let took = Nanos(suffix * 3_400_000);
        self.say(lane, request, Body::Prefilled { computed_tokens: suffix, took });
        for (index, word) in turn.reply.split_inclusive(' ').enumerate() {
            self.token(turn, index as u64, word);
        }
        let words = turn.reply.split_inclusive(' ').count() as u64;
        self.say(
            lane,
            request,
            Body::Decoded {
                reason: FinishReason::Stop,
                output_tokens: words + 1,
                output_sha256: "ab".repeat(32),
                text: turn.reply.into(),
                took: Nanos(words * 22_000_000),
                shared_forwards: None,
            },
        );
        let canonical_tokens = prompt / BLOCK * BLOCK;
        let stored = Body::Stored {
            stored_tokens: 512,
            canonical_tokens,
            evicted_blocks: 0,
            snapshots: None,
            tier: None,
        };
        self.say(lane, request, stored);
        let took = Nanos(suffix * 3_400_000 + words * 22_000_000);
        self.say(lane, request, Body::Finished { reason: FinishReason::Stop, took });
        let memory = Body::Memory {
            cached_blocks: prompt / BLOCK,
            live_blocks: 0,
            bytes: prompt * 23_040,
            limit_bytes: 4 << 30,
            slots: None,
            device: Some(device(0)),
        };
        self.say(lane, request, memory);
        self.gate(Gate::BeforeTurn, turn.lane, Some(turn.turn + 1));
    }
}

impl Run {
    /// A request beside the line of history: it shares system prompt and tools, no more.
    pub fn side(&mut self, request: u64, turn: u32, name: &'static str) {
        let shape = Turn { request, turn, name, ..Turn::default() };
        let (lane, request) = (Some(shape.lane), Some(request));
        let arrival = Arrival { source: Source::Side, ..arrival(&shape, 1_300, false) };
        self.say(lane, request, Body::Arrived(Box::new(arrival)));
        self.say(lane, request, Body::Admitted { queued: Nanos(40_000) });
        let mut restore = restore(&shape, 1_300, 1_100, false);
        restore.common_prefix_tokens = Some(1_100);
        self.say(lane, request, Body::Restored(Box::new(restore)));
        self.say(lane, request, Body::Routed { route: Route::Dense, uncached_suffix: 276 });
        self.say(lane, request, Body::Prefilled { computed_tokens: 276, took: Nanos(938_400_000) });
        self.say(lane, request, Body::Finished { reason: FinishReason::Stop, took: Nanos(1_200_000_000) });
    }

    /// A request with the given checkpoint and suffix, on a device whose prefill is measured.
    fn with_checkpoint(&mut self, number: u64, checkpoint: u64, suffix: u64, cause: Cause) {
        let turn = Turn { request: number, turn: number as u32, name: "read-file", ..Turn::default() };
        let (lane, request) = (Some(0), Some(number));
        let prompt = checkpoint + suffix;
        let old = self.previous.map_or(0, |(prompt, _)| prompt);
        self.now += 9_000_000_000;
        self.say(lane, request, Body::Arrived(Box::new(arrival(&turn, prompt, number == 1))));
        self.say(lane, request, Body::Admitted { queued: Nanos(40_000) });
        let mut restore = restore(&turn, prompt, old.min(prompt), number == 1);
        restore.common_prefix_tokens = (number > 1).then_some(old.min(prompt));
        restore.checkpoint_tokens = checkpoint;
        restore.matched_with_state_tokens = checkpoint;
        restore.cause = cause;
        let index = (checkpoint / BLOCK) as u32;
        if cause == Cause::NoSnapshot {
            let writer = Culprit { index, written_by: Some(RequestId(3)), earlier_run: false };
            let tokens = restore.matched_tokens.saturating_sub(checkpoint);
            restore.losses.push(Loss { cause, tokens, detail: String::new(), block: Some(writer) });
        }
        self.say(lane, request, Body::Restored(Box::new(restore)));
        self.say(lane, request, Body::Routed { route: Route::Dense, uncached_suffix: suffix });
        let mut done = 0;
        while done < suffix {
            let chunk = (suffix - done).min(512);
            let depth = checkpoint + done;
            // Two milliseconds a token, and a microsecond for each token before it.
            let took = Nanos(chunk * 2_000_000 + 1_000 * chunk * (2 * depth + chunk) / 2);
            done += chunk;
            self.now += took.0;
            let progress =
                Body::PrefillProgress { done, total: suffix, shrunk: None, device: None, took: Some(took) };
            self.say(lane, request, progress);
        }
        let took = Nanos(suffix * 3_000_000);
        self.say(lane, request, Body::Prefilled { computed_tokens: suffix, took });
        let canonical_tokens = if number < 4 { prompt / BLOCK * BLOCK } else { 1_024 };
        let stored = Body::Stored {
            stored_tokens: suffix / BLOCK * BLOCK,
            canonical_tokens,
            evicted_blocks: 0,
            snapshots: Some(SnapshotsStored { stored: 1, not_taken: 0, dropped: 0 }),
            tier: None,
        };
        self.say(lane, request, stored);
        self.say(lane, request, Body::Finished { reason: FinishReason::Stop, took });
        self.gate(Gate::BeforeTurn, 0, Some(number as u32 + 1));
        self.previous = Some((prompt, checkpoint));
    }
}

/// What a request of [`Run::owing`] is.
pub struct Owing {
    pub prompt: u64,
    pub checkpoint: u64,
    pub route: Route,
    /// Tokens restorable when it has ended.
    pub canonical: u64,
    /// How long background work was in its way.
    pub delayed: Option<Nanos>,
}

impl Run {
    /// A request whose suffix is computed sparsely where it is longer than 1,024 tokens, a fifth of it then. It leaves what it is told to.
    pub fn owing(&mut self, number: u64, owing: &Owing) {
        let turn = Turn { request: number, turn: number as u32, name: "read-file", ..Turn::default() };
        let (lane, request) = (Some(0), Some(number));
        let &Owing { prompt, checkpoint, route, canonical, delayed } = owing;
        let old = self.previous.map_or(0, |(prompt, _)| prompt);
        let suffix = prompt - checkpoint;
        let told = Arrival { delayed, ..arrival(&turn, prompt, number == 1) };
        self.say(lane, request, Body::Arrived(Box::new(told)));
        self.say(lane, request, Body::Admitted { queued: Nanos(40_000) });
        let mut restore = restore(&turn, prompt, old.min(prompt), number == 1);
        restore.common_prefix_tokens = (number > 1).then_some(old.min(prompt));
        (restore.checkpoint_tokens, restore.matched_with_state_tokens) = (checkpoint, checkpoint);
        self.say(lane, request, Body::Restored(Box::new(restore)));
        let sparse = route == Route::Sparse;
        let admission = SparseAdmission {
            settings: SparseSettings {
                enabled: Effective { value: true, set_by: SetBy::Model },
                keep: Effective { value: 0.2, set_by: SetBy::Model },
                threshold: Effective { value: 1_024, set_by: SetBy::Model },
            },
            verdict: if sparse { SparseVerdict::Sparse } else { SparseVerdict::ShortSuffix },
            protected_tokens: 1_100,
            boundary_before: String::new(),
            boundary_after: String::new(),
            suffix_tokens: suffix,
            to_score_tokens: prompt.saturating_sub(checkpoint.max(1_100)),
        };
        self.say(lane, request, Body::SparseAdmitted(Box::new(admission)));
        self.say(lane, request, Body::Routed { route, uncached_suffix: suffix });
        let computed = if sparse { suffix / 5 } else { suffix };
        let took = Nanos(computed * 2_000_000);
        self.now += took.0;
        let progress = Body::PrefillProgress {
            done: computed,
            total: computed,
            shrunk: None,
            device: None,
            took: Some(took),
        };
        self.say(lane, request, progress);
        self.say(lane, request, Body::Prefilled { computed_tokens: computed, took });
        for index in 0..4 {
            self.token(&turn, index, "ok ");
        }
        let stored = Body::Stored {
            stored_tokens: 0,
            canonical_tokens: canonical,
            evicted_blocks: 0,
            snapshots: None,
            tier: None,
        };
        self.say(lane, request, stored);
        let took = Nanos(took.0 + 96_000_000 + delayed.map_or(0, |time| time.0));
        self.say(lane, request, Body::Finished { reason: FinishReason::Stop, took });
        self.gate(Gate::Running, 0, Some(number as u32 + 1));
        self.previous = Some((prompt, checkpoint));
    }
}

/// A checkpoint that rises for four requests, falls at the fifth and is pinned from then on while the suffix grows.
pub fn latched() -> Run {
    let mut run = Run::new();
    let requests = [
        (0, 1_900, Cause::Cold),
        (1_792, 840, Cause::BlockFloor),
        (2_560, 700, Cause::BlockFloor),
        (3_072, 910, Cause::BlockFloor),
        (1_024, 3_600, Cause::NoSnapshot),
        (1_024, 4_310, Cause::NoSnapshot),
        (1_024, 5_020, Cause::NoSnapshot),
        (1_024, 5_930, Cause::NoSnapshot),
    ];
    for (number, (checkpoint, suffix, cause)) in (1..).zip(requests) {
        run.with_checkpoint(number, checkpoint, suffix, cause);
    }
    run
}

/// What the device holds behind a prefill of `suffix` tokens.
fn device(suffix: u64) -> DeviceMemory {
    let active_bytes = (180 << 20) + suffix * 24_576;
    DeviceMemory { active_bytes, peak_bytes: 412 << 20, cached_bytes: Some(38 << 20), limit_bytes: None }
}

fn arrival(turn: &Turn, prompt: u64, first: bool) -> Arrival {
    let run = |segment, tokens| SegmentRun { segment, tokens };
    let body = prompt.saturating_sub(1_100);
    let mut segments = vec![
        run(Segment::Glue, 4),
        run(Segment::System, 396),
        run(Segment::ToolSchema, 700.min(prompt.saturating_sub(400))),
    ];
    let mut left = body;
    for (segment, tokens) in
        [(Segment::User, 120), (Segment::Assistant, 64), (Segment::ToolCall, 40), (Segment::ToolResult, 480)]
            .into_iter()
            .cycle()
    {
        if left == 0 {
            break;
        }
        segments.push(run(segment, tokens.min(left)));
        left -= tokens.min(left);
    }
    let mut items = Vec::new();
    if first {
        items.push(TranscriptItem {
            segment: Segment::System,
            text: "You are a coding agent. Work in small steps and run the tests after each.".into(),
        });
    }
    items.push(TranscriptItem {
        segment: if turn.turn % 2 == 1 { Segment::User } else { Segment::ToolResult },
        text: if turn.turn % 2 == 1 {
            "Why does restore_walks_back fail? Fix it and keep the public interface as it is.".into()
        } else {
            "running 42 tests\n\ttest cache::restore_walks_back … FAILED\n\x1b[31mfailures:\x1b[0m 日本 left: 28 right: 30\n\
             test result: FAILED. 41 passed; 1 failed"
                .into()
        },
    });
    Arrival {
        turn: turn.turn,
        name: turn.name.into(),
        source: Source::Replay,
        change: if first { HistoryChange::First } else { HistoryChange::Append },
        idle: Some(Nanos(14_000_000_000)),
        prompt_tokens: prompt,
        segments,
        items,
        max_output_tokens: Some(64),
        delayed: None,
    }
}

fn restore(turn: &Turn, prompt: u64, old: u64, first: bool) -> Restore {
    let loss = |cause, tokens, detail: &str| Loss { cause, tokens, detail: detail.into(), block: None };
    let lost = turn.loss.map_or(0, |(_, tokens, _)| tokens);
    let common = old.saturating_sub(lost);
    let floor = common / BLOCK * BLOCK;
    let mut losses = Vec::new();
    if first {
        losses.push(loss(Cause::Cold, prompt, ""));
    } else {
        losses.push(loss(Cause::Appended, prompt - old, ""));
        if let Some((cause, tokens, detail)) = turn.loss {
            losses.push(loss(cause, tokens, detail));
        }
        losses.push(loss(Cause::BlockFloor, common - floor, ""));
    }
    let writer = turn.request.saturating_sub(1).max(1);
    let blocks = (0..prompt / BLOCK)
        .map(|index| {
            let known = index * BLOCK < floor;
            let residency = if known { Residency::Ram } else { Residency::Missing };
            BlockFact {
                index: index as u32,
                residency,
                recurrent: None,
                earlier_run: false,
                written_by: known.then_some(RequestId(writer)),
                written_at: known.then_some(Stamp(9_000_000_000)),
                route: known.then_some(Route::Dense),
            }
        })
        .collect();
    Restore {
        common_prefix_tokens: (!first).then_some(common),
        closest: None,
        held_tokens: floor,
        ssd: None,
        matched_tokens: floor,
        matched_with_state_tokens: floor,
        checkpoint_tokens: floor,
        cause: if first { Cause::Cold } else { turn.loss.map_or(Cause::BlockFloor, |(cause, ..)| cause) },
        losses,
        divergence: None,
        blocks,
        took: Nanos(1_300_000),
    }
}

/// A run in which the tool list changes at turn 6.
pub fn session() -> Run {
    let mut run = Run::new();
    let names =
        ["ask", "read-file", "edit-file", "run-tests", "read-log", "new-tool", "edit-file", "run-tests"];
    let fresh = [3_900, 2_410, 905, 1_730, 640, 1_180, 870, 2_105];
    for (index, (name, fresh)) in names.into_iter().zip(fresh).enumerate() {
        let number = index as u32 + 1;
        let loss = (number == 6).then_some((
            Cause::ToolSchemaChanged,
            8_420,
            "differs at token 1,105, in a tool schema: \"timeout\" became \"timeout_s\"",
        ));
        run.turn(&Turn { request: u64::from(number), turn: number, name, fresh, loss, ..Turn::default() });
    }
    run
}
