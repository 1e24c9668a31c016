//! The ledger: the one fold over events that every view reads.
//!
//! [`Ledger::apply`] is total (any event in any order, no panic) and deterministic, so the interface, `replay` and a
//! recorded run show the same facts. [`Ledger::facts_hash`] is how that is checked: it covers every fact that does
//! not depend on how fast the machine was, or on how much memory it had.

mod breakpoint;
mod curve;
mod debt;
mod latency;
mod row;
#[cfg(test)]
mod tests;
mod verdict;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::event::{
    Body, DeviceMemory, Event, FinishReason, Gate, HistoryChange, LaneId, Nanos, Phase, RequestId, Restore,
    Route, RunFacts, SegmentRun, ShrunkChunk, SlotMemory, SnapshotsStored, Source, Stamp, TranscriptItem,
};
pub use breakpoint::{BadBreakpoint, Breakpoint};
pub use curve::PrefillCurve;
pub use debt::{DebtEntry, Payer};
pub use latency::{Latency, Quantiles};
pub use row::Row;
pub use verdict::{CheckpointStep, Cliff};

/// Everything known about one request.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RequestFacts {
    /// Its number.
    pub id: RequestId,
    /// The lane it belongs to.
    pub lane: LaneId,
    /// Turn number in the lane, from 1.
    pub turn: u32,
    /// Its name.
    pub name: String,
    /// Why it exists; `None` when its arrival was not seen.
    pub source: Option<Source>,
    /// How its history relates to the turn before it.
    pub change: Option<HistoryChange>,
    /// When it arrived.
    pub arrived_at: Stamp,
    /// Where it is now.
    pub phase: Phase,
    /// Prompt length.
    pub prompt_tokens: Option<u64>,
    /// Segments of the prompt.
    pub segments: Vec<SegmentRun>,
    /// Messages it added.
    pub items: Vec<TranscriptItem>,
    /// Reply tokens allowed.
    pub max_output_tokens: Option<u64>,
    /// The idle gap before it.
    pub idle: Option<Nanos>,
    /// Time in the queue.
    pub queued: Option<Nanos>,
    /// What the restore found.
    pub restore: Option<Restore>,
    /// The route taken.
    pub route: Option<Route>,
    /// The uncached suffix.
    pub uncached_suffix: Option<u64>,
    /// Suffix tokens computed so far and in all.
    pub progress: Option<(u64, u64)>,
    /// Tokens the prefill computed.
    pub computed_tokens: Option<u64>,
    /// Compute time of the prefill.
    pub prefill: Option<Nanos>,
    /// From arrival to the first reply token.
    pub ttft: Option<Nanos>,
    /// From the first reply token to the last.
    pub decode: Option<Nanos>,
    /// Reply tokens.
    pub output_tokens: Option<u64>,
    /// SHA-256 of the reply, hex.
    pub output_sha256: Option<String>,
    /// The reply, as far as it has come.
    pub text: String,
    /// Why the reply ended.
    pub reason: Option<FinishReason>,
    /// Tokens newly stored.
    pub stored_tokens: Option<u64>,
    /// Longest restorable prefix of the prompt afterwards.
    pub canonical_tokens: Option<u64>,
    /// Blocks evicted to make room.
    pub evicted_blocks: Option<u64>,
    /// Snapshots of recurrent state; `None` for a model without recurrent layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<SnapshotsStored>,
    /// Prefill chunks that memory shrank; `None` where it shrank none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shrunk: Option<ShrunkChunks>,
    /// The device's memory as it was last told while the request ran, and the peak by then; `None` where nobody counts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<DeviceMemory>,
    /// From arrival to the end.
    pub took: Option<Nanos>,
    /// What went wrong, where something did.
    pub error: Option<String>,
}

impl RequestFacts {
    fn unseen(id: RequestId, lane: LaneId, at: Stamp) -> RequestFacts {
        RequestFacts {
            id,
            lane,
            turn: 0,
            name: String::new(),
            source: None,
            change: None,
            arrived_at: at,
            phase: Phase::Queued,
            prompt_tokens: None,
            segments: Vec::new(),
            items: Vec::new(),
            max_output_tokens: None,
            idle: None,
            queued: None,
            restore: None,
            route: None,
            uncached_suffix: None,
            progress: None,
            computed_tokens: None,
            prefill: None,
            ttft: None,
            decode: None,
            output_tokens: None,
            output_sha256: None,
            text: String::new(),
            reason: None,
            stored_tokens: None,
            canonical_tokens: None,
            evicted_blocks: None,
            snapshots: None,
            shrunk: None,
            device_memory: None,
            took: None,
            error: None,
        }
    }

    /// The reusable checkpoint: tokens restored. `None` before the restore.
    pub fn checkpoint(&self) -> Option<u64> {
        self.restore.as_ref().map(|r| r.checkpoint_tokens)
    }

    /// `prompt_tokens − canonical_tokens`, once both are known.
    pub fn canonical_debt(&self) -> Option<u64> {
        Some(self.prompt_tokens?.saturating_sub(self.canonical_tokens?))
    }

    /// Prompt tokens that the predecessor did not have. `None` without a predecessor.
    pub fn fresh_tokens(&self) -> Option<u64> {
        let common = self.restore.as_ref()?.common_prefix_tokens?;
        Some(self.prompt_tokens?.saturating_sub(common))
    }
}

/// Prefill chunks that were made smaller because the device had no memory for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ShrunkChunks {
    /// How many.
    pub chunks: u64,
    /// Tokens of the smallest.
    pub smallest_tokens: u64,
}

impl ShrunkChunks {
    fn with(before: Option<ShrunkChunks>, chunk: ShrunkChunk) -> ShrunkChunks {
        let before = before.unwrap_or(ShrunkChunks { chunks: 0, smallest_tokens: u64::MAX });
        ShrunkChunks {
            chunks: before.chunks.saturating_add(1),
            smallest_tokens: before.smallest_tokens.min(chunk.admitted),
        }
    }
}

/// Everything known about one lane.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct LaneFacts {
    /// Its name.
    pub title: String,
    /// The lane it was forked from.
    pub parent: Option<LaneId>,
    /// The first turn that differs from the parent.
    pub at_turn: Option<u32>,
    /// Its requests, oldest first.
    pub requests: Vec<RequestId>,
    /// The turn that would come next.
    pub next_turn: Option<u32>,
    /// Turns known.
    pub turns: u32,
}

/// Memory figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MemoryFacts {
    /// Blocks holding cached state.
    pub cached_blocks: u64,
    /// Blocks in use by running requests.
    pub live_blocks: u64,
    /// Bytes of both, slots included.
    pub bytes: u64,
    /// The bound.
    pub limit_bytes: u64,
    /// Slots; `None` for a model without recurrent layers.
    pub slots: Option<SlotMemory>,
}

/// Requests that a session cut left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SessionCutFacts {
    /// Requests that can run.
    pub kept_requests: u64,
    /// Requests in the file.
    pub of_requests: u64,
    /// Prompt tokens of the first one that does not fit.
    pub prompt_tokens: u64,
    /// Tokens the context holds.
    pub context_tokens: u64,
}

/// The fold's state.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Ledger {
    run: Option<RunFacts>,
    lanes: BTreeMap<LaneId, LaneFacts>,
    requests: BTreeMap<RequestId, RequestFacts>,
    gate: Option<Gate>,
    gate_lane: Option<LaneId>,
    cut: Option<SessionCutFacts>,
    memory: Option<MemoryFacts>,
    device_memory: Option<DeviceMemory>,
    lost: Vec<(u64, u64)>,
    stale_pages: u64,
    failure: Option<String>,
    ended: bool,
    events: u64,
    now: Stamp,
    first_token: Latency,
    between_tokens: Latency,
    last_token: BTreeMap<RequestId, Stamp>,
}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> Ledger {
        Ledger::default()
    }

    /// Folds one event in. Accepts any event in any order.
    pub fn apply(&mut self, event: &Event) {
        self.events += 1;
        self.now = self.now.max(event.at);
        match &event.body {
            Body::RunStarted(facts) => self.run = Some((**facts).clone()),
            Body::LaneOpened { parent, at_turn, title } => {
                let lane = self.lane_mut(event.lane.unwrap_or_default());
                lane.parent = *parent;
                lane.at_turn = *at_turn;
                lane.title.clone_from(title);
            }
            Body::GateChanged { gate, next_turn, turns } => {
                self.gate = Some(*gate);
                self.gate_lane = event.lane;
                let lane = self.lane_mut(event.lane.unwrap_or_default());
                lane.next_turn = *next_turn;
                lane.turns = *turns;
            }
            Body::SessionCut { kept_requests, of_requests, prompt_tokens, context_tokens } => {
                self.cut = Some(SessionCutFacts {
                    kept_requests: *kept_requests,
                    of_requests: *of_requests,
                    prompt_tokens: *prompt_tokens,
                    context_tokens: *context_tokens,
                });
            }
            Body::Memory { cached_blocks, live_blocks, bytes, limit_bytes, slots, device } => {
                self.note_device(event.request, *device);
                self.memory = Some(MemoryFacts {
                    cached_blocks: *cached_blocks,
                    live_blocks: *live_blocks,
                    bytes: *bytes,
                    limit_bytes: *limit_bytes,
                    slots: *slots,
                });
            }
            Body::StalePage { count } => self.stale_pages = self.stale_pages.max(*count),
            Body::Gap { from, to } => self.lost.push((*from, *to)),
            Body::EngineFailed { message } => self.failure = Some(message.clone()),
            Body::RunEnded => self.ended = true,
            body => self.apply_to_request(event, body),
        }
    }

    fn lane_mut(&mut self, id: LaneId) -> &mut LaneFacts {
        self.lanes.entry(id).or_default()
    }

    /// Takes in a reading of the device's memory; a peak stays.
    fn note_device(&mut self, request: Option<RequestId>, reading: Option<DeviceMemory>) {
        let Some(reading) = reading else { return };
        let request = request.and_then(|id| self.requests.get_mut(&id)).map(|r| &mut r.device_memory);
        for memory in [Some(&mut self.device_memory), request].into_iter().flatten() {
            let peak_bytes = memory.map_or(0, |before| before.peak_bytes).max(reading.peak_bytes);
            *memory = Some(DeviceMemory { peak_bytes, ..reading });
        }
    }

    fn apply_to_request(&mut self, event: &Event, body: &Body) {
        let Some(id) = event.request else { return };
        let lane = event.lane.unwrap_or_default();
        let request = self.requests.entry(id).or_insert_with(|| {
            self.lanes.entry(lane).or_default().requests.push(id);
            RequestFacts::unseen(id, lane, event.at)
        });
        match body {
            Body::Arrived(arrival) => {
                request.arrived_at = event.at;
                request.turn = arrival.turn;
                request.name.clone_from(&arrival.name);
                request.source = Some(arrival.source);
                request.change = Some(arrival.change);
                request.idle = Some(arrival.idle);
                request.prompt_tokens = Some(arrival.prompt_tokens);
                request.segments.clone_from(&arrival.segments);
                request.items.clone_from(&arrival.items);
                request.max_output_tokens = Some(arrival.max_output_tokens);
            }
            Body::Admitted { queued } => {
                request.queued = Some(*queued);
                request.phase = Phase::Restore;
            }
            Body::Restored(restore) => request.restore = Some((**restore).clone()),
            Body::Routed { route, uncached_suffix } => {
                request.route = Some(*route);
                request.uncached_suffix = Some(*uncached_suffix);
                request.progress = Some((0, *uncached_suffix));
                request.phase = Phase::Prefill;
            }
            Body::PrefillProgress { done, total, shrunk, .. } => {
                request.progress = Some((*done, *total));
                request.shrunk =
                    shrunk.map(|chunk| ShrunkChunks::with(request.shrunk, chunk)).or(request.shrunk);
            }
            Body::Prefilled { computed_tokens, took } => {
                request.computed_tokens = Some(*computed_tokens);
                request.prefill = Some(*took);
                request.phase = Phase::Decode;
            }
            Body::Token { text, .. } => {
                if request.ttft.is_none() {
                    let ttft = event.at.since(request.arrived_at);
                    request.ttft = Some(ttft);
                    self.first_token.record(ttft);
                }
                if let Some(before) = self.last_token.insert(id, event.at) {
                    self.between_tokens.record(event.at.since(before));
                }
                request.text.push_str(text);
            }
            Body::Decoded { reason, output_tokens, output_sha256, text, took } => {
                request.reason = Some(*reason);
                request.output_tokens = Some(*output_tokens);
                request.output_sha256 = Some(output_sha256.clone());
                request.text.clone_from(text);
                request.decode = Some(*took);
                request.phase = Phase::Store;
            }
            Body::Stored { stored_tokens, canonical_tokens, evicted_blocks, snapshots, .. } => {
                request.stored_tokens = Some(*stored_tokens);
                request.canonical_tokens = Some(*canonical_tokens);
                request.evicted_blocks = Some(*evicted_blocks);
                request.snapshots = *snapshots;
            }
            Body::Finished { reason, took } => {
                self.last_token.remove(&id);
                request.reason = Some(*reason);
                request.took = Some(*took);
                request.phase = Phase::Done;
            }
            Body::Failed { message } => {
                request.error = Some(message.clone());
                request.phase = Phase::Done;
            }
            _ => {}
        }
        if let Body::PrefillProgress { device, .. } = body {
            self.note_device(event.request, *device);
        }
    }

    /// Facts of the run, once it has started.
    pub fn run(&self) -> Option<&RunFacts> {
        self.run.as_ref()
    }

    /// The lanes, in order.
    pub fn lanes(&self) -> impl Iterator<Item = (LaneId, &LaneFacts)> {
        self.lanes.iter().map(|(id, lane)| (*id, lane))
    }

    /// One lane.
    pub fn lane(&self, id: LaneId) -> Option<&LaneFacts> {
        self.lanes.get(&id)
    }

    /// The requests, in order of arrival.
    pub fn requests(&self) -> impl DoubleEndedIterator<Item = &RequestFacts> {
        self.requests.values()
    }

    /// The requests of one lane, oldest first.
    pub fn lane_requests(&self, lane: LaneId) -> impl DoubleEndedIterator<Item = &RequestFacts> {
        let ids = self.lanes.get(&lane).map(|l| l.requests.as_slice()).unwrap_or_default();
        ids.iter().filter_map(|id| self.requests.get(id))
    }

    /// The requests that make up a lane's history: those of its ancestors before each fork, then its own.
    pub fn history(&self, lane: LaneId) -> Vec<&RequestFacts> {
        let mut chain = vec![(lane, u32::MAX)];
        let mut seen = std::collections::BTreeSet::from([lane]);
        let mut cursor = self.lanes.get(&lane);
        while let Some(facts) = cursor {
            let (Some(parent), Some(at)) = (facts.parent, facts.at_turn) else { break };
            if !seen.insert(parent) {
                break;
            }
            let bound = chain.last().map_or(at, |(_, bound)| at.min(*bound));
            chain.push((parent, bound));
            cursor = self.lanes.get(&parent);
        }
        chain
            .into_iter()
            .rev()
            .flat_map(|(lane, before)| self.lane_requests(lane).filter(move |r| r.turn < before))
            .collect()
    }

    /// One request.
    pub fn request(&self, id: RequestId) -> Option<&RequestFacts> {
        self.requests.get(&id)
    }

    /// The request that has not ended yet, if one is under way.
    pub fn current(&self) -> Option<&RequestFacts> {
        self.requests.values().rev().find(|r| r.phase != Phase::Done)
    }

    /// The state of the gate, and the lane it concerns.
    pub fn gate(&self) -> Option<(Gate, LaneId)> {
        self.gate.map(|gate| (gate, self.gate_lane.unwrap_or_default()))
    }

    /// The session cut, if there was one.
    pub fn session_cut(&self) -> Option<SessionCutFacts> {
        self.cut
    }

    /// Memory figures, once known.
    pub fn memory(&self) -> Option<MemoryFacts> {
        self.memory
    }

    /// The device's memory as it was last told, and its peak; `None` where nobody counts it.
    pub fn device_memory(&self) -> Option<DeviceMemory> {
        self.device_memory
    }

    /// Events lost on the way here, as inclusive ranges of sequence numbers.
    pub fn lost(&self) -> &[(u64, u64)] {
        &self.lost
    }

    /// Reads of pages and slots whose generation did not match.
    pub fn stale_pages(&self) -> u64 {
        self.stale_pages
    }

    /// Why the engine failed, if it did.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Whether the run is over.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Time to first token, over all requests so far.
    pub fn first_token(&self) -> &Latency {
        &self.first_token
    }

    /// Time between reply tokens, over all requests so far.
    pub fn between_tokens(&self) -> &Latency {
        &self.between_tokens
    }

    /// Events folded so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Engine-clock time of the latest event.
    pub fn now(&self) -> Stamp {
        self.now
    }

    /// One row a request, in order of arrival.
    pub fn rows(&self) -> Vec<Row> {
        self.requests.values().map(|r| Row::new(self, r)).collect()
    }

    /// Hex digest of every fact that depends neither on speed nor on the device's memory: the same for the interface, `replay` and a recorded run.
    pub fn facts_hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for (id, lane) in &self.lanes {
            let mut lane = lane.clone();
            lane.next_turn = None;
            hash_json(&mut hasher, &(id, lane));
        }
        for request in self.requests.values() {
            hash_json(&mut hasher, &request.lasting());
        }
        hash_json(&mut hasher, &(self.cut, self.stale_pages));
        hasher.finalize().to_hex().to_string()
    }
}

impl RequestFacts {
    /// What does not depend on the machine's speed and memory.
    fn lasting(&self) -> RequestFacts {
        let mut facts = self.clone();
        (facts.shrunk, facts.device_memory) = (None, None);
        facts.arrived_at = Stamp::default();
        for time in
            [&mut facts.queued, &mut facts.prefill, &mut facts.ttft, &mut facts.decode, &mut facts.took]
        {
            *time = None;
        }
        if let Some(restore) = &mut facts.restore {
            restore.took = Nanos::default();
            for block in &mut restore.blocks {
                block.written_at = None;
            }
        }
        facts
    }
}

fn hash_json(hasher: &mut blake3::Hasher, value: &impl Serialize) {
    // Serialising plain data into a vector cannot fail; an empty record would still change the digest.
    hasher.update(&serde_json::to_vec(value).unwrap_or_default());
    hasher.update(b"\n");
}
