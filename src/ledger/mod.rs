//! The ledger: the one fold over events that every view reads.
//!
//! [`Ledger::apply`] is total (any event in any order, no panic) and deterministic, so the interface, `replay` and a
//! recorded run show the same facts. [`Ledger::facts_hash`] is how that is checked: it covers every fact that does
//! not depend on how fast the machine was, or on how much memory it had.

mod breakeven;
mod breakpoint;
mod curve;
mod debt;
mod facts;
mod latency;
mod recovery;
mod row;
mod speculation;
#[cfg(test)]
mod tests;
mod verdict;

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use crate::config::{SparseOverride, SpeculationOverride};
use crate::event::{
    Body, DeviceMemory, Event, Gate, LaneId, Phase, Preview, RequestId, Rescored, Route, RunFacts, Stamp,
    TierReading,
};
pub use breakeven::{Basis, BreakEven, Estimate, Gain, ScorerCurve, TargetCurve};
pub use breakpoint::{BadBreakpoint, Breakpoint, KnownAt};
use curve::CurveFit;
pub use curve::PrefillCurve;
pub use debt::{DebtEntry, Payer};
pub use facts::{
    BreakpointFacts, FaultFacts, LaneFacts, MemoryFacts, ReplyToken, RequestFacts, SessionCutFacts,
    ShrunkChunks, TierTroubleFacts,
};
pub use latency::{Latency, Quantiles};
pub use recovery::{
    Collision, ConsideredFacts, Credit, EndFacts, Gaps, JobFacts, JobState, LoweredFacts, NetReturn, Pace,
    PaceClass, Protection, PublicationFacts, Race, Recovery, RetirementFacts, SavedBy, Sides, SliceFacts,
    WaitFacts,
};
pub use row::{RecoveryRow, Row, SparseRow, SpecRow};
pub use speculation::{
    AuditFailure, AuditVerdict, DenseSource, DenseStep, DepthCost, DepthCosts, ExpertsPerForward,
    HELD_WITHIN, KindAcceptance, Prediction, PredictionCheck, ReplyKind, Speculation, SpeculationAccount,
    WhatIf, reply_kinds,
};
pub use verdict::{CheckpointPhase, CheckpointStep, Cliff};

/// Troubles of the SSD tier that are kept, the latest ones: a broken disk may tell one per block.
const TROUBLES_KEPT: usize = 256;

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
    chunk_curve: CurveFit,
    prefill_curve: CurveFit,
    sparse_costs: breakeven::SparseCosts,
    tier: Option<TierReading>,
    troubles: VecDeque<TierTroubleFacts>,
    faults: Vec<FaultFacts>,
    breakpoints: Vec<String>,
    breakpoint_hit: Option<BreakpointFacts>,
    preview: Option<Preview>,
    rescored: Option<Rescored>,
    by_hand: SparseOverride,
    speculation_by_hand: SpeculationOverride,
    recovery: Recovery,
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
            Body::Tier(reading) => self.tier = Some((**reading).clone()),
            Body::TierTrouble { trouble, detail } => {
                if self.troubles.len() >= TROUBLES_KEPT {
                    self.troubles.pop_front();
                }
                self.troubles.push_back(TierTroubleFacts {
                    at: event.at,
                    request: event.request,
                    trouble: *trouble,
                    detail: detail.clone(),
                });
            }
            Body::FaultInjected { fault, outcome } => {
                self.faults.push(FaultFacts { at: event.at, fault: fault.clone(), outcome: outcome.clone() })
            }
            Body::BreakpointsSet { conditions } => self.breakpoints.clone_from(conditions),
            Body::BreakpointHit { condition, observed } => {
                self.breakpoint_hit = Some(BreakpointFacts {
                    at: event.at,
                    request: event.request,
                    condition: condition.clone(),
                    observed: observed.clone(),
                });
            }
            Body::Previewed(preview) => {
                // An answer that comes late is to a question nobody asks any more.
                if self.preview.as_ref().is_none_or(|kept| kept.ticket <= preview.ticket) {
                    self.preview = Some((**preview).clone());
                }
            }
            Body::Rescored(rescored) => {
                if self.rescored.as_ref().is_none_or(|kept| kept.ticket <= rescored.ticket) {
                    self.rescored = Some((**rescored).clone());
                }
            }
            Body::SpecPrefillSet { enabled, keep, threshold } => {
                self.by_hand = SparseOverride { enabled: *enabled, keep: *keep, threshold: *threshold };
            }
            Body::SpeculationSet { drafter, depth, controller } => {
                let (drafter, depth, controller) = (*drafter, *depth, *controller);
                self.speculation_by_hand = SpeculationOverride { drafter, depth, controller };
            }
            Body::Gap { from, to } => self.lost.push((*from, *to)),
            Body::EngineFailed { message } => self.failure = Some(message.clone()),
            Body::RunEnded => self.ended = true,
            Body::DebtConsidered(_)
            | Body::RecoverySlice(_)
            | Body::Published(_)
            | Body::Retired { .. }
            | Body::CommitLowered { .. }
            | Body::RecoveryWaits { .. }
            | Body::RecoveryEnded(_)
            | Body::RecoverySet { .. } => self.apply_to_recovery(event),
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
        self.recovery.note_request(id, event, self.events);
        match body {
            Body::Arrived(arrival) => {
                // It was there before background work gave way and it was taken note of.
                request.arrived_at =
                    Stamp(event.at.0.saturating_sub(arrival.delayed.map_or(0, |time| time.0)));
                request.delayed = arrival.delayed;
                request.turn = arrival.turn;
                request.name.clone_from(&arrival.name);
                request.source = Some(arrival.source);
                request.change = Some(arrival.change);
                request.idle = arrival.idle;
                request.prompt_tokens = Some(arrival.prompt_tokens);
                request.segments.clone_from(&arrival.segments);
                request.items.clone_from(&arrival.items);
                request.max_output_tokens = arrival.max_output_tokens;
            }
            Body::Admitted { queued } => {
                request.queued = Some(*queued);
                request.phase = Phase::Restore;
            }
            Body::Restored(restore) => {
                request.uncached_suffix =
                    request.prompt_tokens.map(|prompt| prompt.saturating_sub(restore.checkpoint_tokens));
                request.restore = Some((**restore).clone());
            }
            Body::Routed { route, uncached_suffix } => {
                request.route = Some(*route);
                request.uncached_suffix = Some(*uncached_suffix);
                request.progress = Some((0, *uncached_suffix));
                request.phase = Phase::Prefill;
            }
            Body::SparseAdmitted(admission) => request.admission = Some((**admission).clone()),
            Body::ScoringProgress { done, total } => {
                request.scoring = Some((*done, *total));
                request.phase = Phase::Score;
            }
            Body::Scored(scored) => {
                self.sparse_costs.scored(scored);
                request.scoring = None;
                request.scored = Some((**scored).clone());
                request.progress = None;
                request.phase = Phase::Prefill;
            }
            Body::SparseFellBack { message } => {
                request.scoring = None;
                request.fell_back = Some(message.clone());
            }
            Body::Survived(survival) => request.survival = Some(survival.clone()),
            Body::ReplyLogits { logits } => request.reply_logits = Some(logits.clone()),
            Body::PrefillProgress { done, total, shrunk, took, .. } => {
                // A sparse chunk's tokens are not those between two depths.
                let dense = request.route != Some(Route::Sparse);
                let before = request.checkpoint().zip(request.progress).filter(|_| dense);
                if let (Some((checkpoint, (before, _))), Some(took)) = (before, took) {
                    let depth = |done: u64| checkpoint.saturating_add(done);
                    self.chunk_curve.add(depth(before), depth(*done), *took);
                }
                request.progress = Some((*done, *total));
                request.shrunk =
                    shrunk.map(|chunk| ShrunkChunks::with(request.shrunk, chunk)).or(request.shrunk);
            }
            Body::Prefilled { computed_tokens, took } => {
                if let Some(from) = request.checkpoint().filter(|_| request.route != Some(Route::Sparse)) {
                    self.prefill_curve.add(from, from.saturating_add(*computed_tokens), *took);
                }
                // Only what was scored is sparse, and only to its end: a request that fell back has the dense route.
                let sparse = request.route == Some(Route::Sparse) && request.scored.is_some();
                if let Some(from) = request.checkpoint().filter(|_| sparse) {
                    self.sparse_costs.prefilled(from, *computed_tokens, *took);
                }
                request.computed_tokens = Some(*computed_tokens);
                request.prefill = Some(*took);
                request.phase = Phase::Decode;
            }
            // It reads the prompt before the target does.
            Body::PrimingProgress { done, total } => {
                request.priming = Some((*done, *total)).filter(|(done, total)| done < total);
            }
            Body::Token { token, text, margin, .. } => {
                request.priming = None;
                if request.phase == Phase::Prefill {
                    request.phase = Phase::Decode;
                }
                let end = request.text.len().saturating_add(text.len());
                request.tokens.push(ReplyToken { token: *token, margin: *margin, end });
                let mut first = None;
                if request.ttft.is_none() {
                    let ttft = event.at.since(request.arrived_at);
                    request.ttft = Some(ttft);
                    first = Some(ttft);
                }
                request.text.push_str(text);
                let before = request.last_token.replace(event.at);
                if let Some(first) = first {
                    self.record_first_token(id, first);
                }
                if let Some(before) = before {
                    self.record_between_tokens(id, event.at.since(before));
                }
            }
            Body::DrafterStarted(start) => {
                request.priming = None;
                speculation_of(request).start = Some((**start).clone());
            }
            Body::DraftingEnded { message } => {
                request.priming = None;
                speculation_of(request).ended = Some(message.clone());
            }
            Body::DepthDecided(decision) => speculation_of(request).decisions.push((**decision).clone()),
            Body::Cycled(cycle) => speculation_of(request).cycles.push((**cycle).clone()),
            Body::VerifyCurve(curve) => speculation_of(request).curve = Some((**curve).clone()),
            Body::Decoded { reason, output_tokens, output_sha256, text, took, shared_forwards } => {
                (request.shared_forwards, request.priming) = (*shared_forwards, None);
                request.reason = Some(*reason);
                request.output_tokens = Some(*output_tokens);
                request.output_sha256 = Some(output_sha256.clone());
                request.text.clone_from(text);
                request.decode = Some(*took);
                request.phase = Phase::Store;
            }
            Body::Stored { stored_tokens, canonical_tokens, evicted_blocks, snapshots, tier } => {
                request.stored_tokens = Some(*stored_tokens);
                request.canonical_tokens = Some(*canonical_tokens);
                request.evicted_blocks = Some(*evicted_blocks);
                request.snapshots = *snapshots;
                request.tier = *tier;
            }
            Body::Preempted { .. } => {
                request.preemptions = request.preemptions.saturating_add(1);
                (request.scoring, request.priming) = (None, None);
                request.phase = Phase::Queued;
            }
            Body::Resumed { .. } => request.phase = Phase::Prefill,
            Body::Finished { reason, took } => {
                request.last_token = None;
                request.reason = Some(*reason);
                request.took = Some(*took);
                request.phase = Phase::Done;
            }
            Body::Failed { message } => {
                request.priming = None;
                request.error = Some(message.clone());
                request.phase = Phase::Done;
            }
            _ => {}
        }
        if let Body::PrefillProgress { device, .. } = body {
            self.note_device(event.request, *device);
        }
    }

    /// What was set by hand of speculative decoding.
    pub fn speculation_by_hand(&self) -> SpeculationOverride {
        self.speculation_by_hand
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

    /// The session that a lane plays: its own, where it was opened on one, that of the lane it was forked from, or else the run's. `None` where
    /// neither was told.
    pub fn session_of(&self, id: LaneId) -> Option<&str> {
        // As many steps up as there are lanes: what a recording tells may go round in circles.
        let origins = std::iter::successors(Some(id), |id| self.lane(*id)?.parent).take(self.lanes.len());
        let origin = origins.last().and_then(|id| self.lane(id)).filter(|lane| lane.parent.is_none());
        let own = origin.map(|lane| lane.title.as_str()).filter(|title| !title.is_empty());
        own.or_else(|| Some(self.run.as_ref()?.session.as_str()))
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

    /// The request that has not ended yet, if one is under way. None is once the run is over.
    pub fn current(&self) -> Option<&RequestFacts> {
        self.requests.values().rev().find(|r| r.phase != Phase::Done).filter(|_| !self.ended)
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

    /// The SSD tier as it was last told; `None` without one.
    pub fn tier(&self) -> Option<&TierReading> {
        self.tier.as_ref()
    }

    /// What went wrong with the SSD tier, or works again, oldest first: the latest few hundred.
    pub fn tier_troubles(&self) -> impl DoubleEndedIterator<Item = &TierTroubleFacts> + ExactSizeIterator {
        self.troubles.iter()
    }

    /// Faults injected by hand, in order.
    pub fn faults(&self) -> &[FaultFacts] {
        &self.faults
    }

    /// The conditions at which the replay pauses.
    pub fn breakpoints(&self) -> &[String] {
        &self.breakpoints
    }

    /// The condition that held last.
    pub fn breakpoint_hit(&self) -> Option<&BreakpointFacts> {
        self.breakpoint_hit.as_ref()
    }

    /// The answer to the latest question for a turn's cost: that with the highest ticket.
    pub fn preview(&self) -> Option<&Preview> {
        self.preview.as_ref()
    }

    /// The answer to the latest question for another choice of units: that with the highest ticket.
    pub fn rescored(&self) -> Option<&Rescored> {
        self.rescored.as_ref()
    }

    /// What the researcher set by hand about sparse prefill.
    pub fn sparse_by_hand(&self) -> SparseOverride {
        self.by_hand
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
        let mut accounts = BTreeMap::new();
        for lane in self.lanes.keys() {
            // A lane's account covers its ancestors' requests too; each is taken from its own lane's.
            let own = |id| self.requests.get(&id).is_some_and(|request| request.lane == *lane);
            let account = self.accounts(*lane).into_iter().filter(|(_, entry)| own(entry.request));
            accounts.extend(account.map(|(step, entry)| (entry.request, (step, entry))));
        }
        let returns = self.net_returns().into_iter().collect();
        let row = |request: &RequestFacts| Row::with(self, request, accounts.get(&request.id), &returns);
        self.requests.values().map(row).collect()
    }

    /// Hex digest of every fact that depends neither on speed nor on the device's memory, nor on the disk: the same for the interface, `replay`
    /// and a recorded run. What a request restored from the SSD tier is such a fact, how long it took and what the tier holds is none.
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
        for fault in &self.faults {
            hash_json(&mut hasher, &fault.fault);
        }
        hash_json(&mut hasher, &(self.cut, self.stale_pages));
        hasher.finalize().to_hex().to_string()
    }
}

fn speculation_of(request: &mut RequestFacts) -> &mut Speculation {
    request.speculation.get_or_insert_default()
}

fn hash_json(hasher: &mut blake3::Hasher, value: &impl Serialize) {
    // Serialising plain data into a vector cannot fail; an empty record would still change the digest.
    hasher.update(&serde_json::to_vec(value).unwrap_or_default());
    hasher.update(b"\n");
}
