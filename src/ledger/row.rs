//! The row that tables and JSON print for a request.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{CheckpointStep, DebtEntry, Ledger, NetReturn, Payer, RequestFacts};
use crate::event::{
    Cause, Culprit, DebtTaken, Divergence, JobId, Loss, Restore, ScorerStart, SetBy, SparseSettings, Steps,
};
use crate::recovery::job::{Declined, End};

/// What every job was worth.
type Returns = BTreeMap<JobId, NetReturn>;

/// One request as `replay --json` prints it. A field is null where nobody measured it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The lane's letter.
    pub lane: String,
    /// Request number, from 1.
    pub request: u64,
    /// Turn number in the lane, from 1.
    pub turn: u32,
    /// The request's name in the session.
    pub name: String,
    /// Whether it stands beside the lane's line of history, as a title or a sub-agent's request does.
    pub side: bool,
    /// Prompt length, tokens.
    pub prompt_tokens: Option<u64>,
    /// Tokens shared with the predecessor.
    pub common_prefix_tokens: Option<u64>,
    /// Tokens shared with the earlier request of the run that shares most, whichever lane it was in.
    pub closest_prefix_tokens: Option<u64>,
    /// That request.
    pub closest_request: Option<u64>,
    /// Tokens of the prompt's blocks that RAM or the SSD tier holds.
    pub held_tokens: Option<u64>,
    /// Tokens found through the hash chain.
    pub matched_tokens: Option<u64>,
    /// Of those, with state in every layer.
    pub matched_with_state_tokens: Option<u64>,
    /// Tokens restored.
    pub checkpoint_tokens: Option<u64>,
    /// Blocks read from the SSD tier; null where nothing was.
    pub ssd_blocks: Option<u64>,
    /// Bytes of state read from the SSD tier; null where nothing was.
    pub ssd_bytes: Option<u64>,
    /// Time the restore took, seconds.
    pub restore_s: Option<f64>,
    /// Checkpoint now minus the predecessor's.
    pub checkpoint_delta: Option<i64>,
    /// `prompt_tokens − checkpoint_tokens`.
    pub uncached_suffix: Option<u64>,
    /// Prompt tokens the predecessor did not have.
    pub fresh_tokens: Option<u64>,
    /// Tokens newly stored.
    pub stored_tokens: Option<u64>,
    /// Snapshots of recurrent state; null for a model without recurrent layers.
    pub snapshots: Option<crate::event::SnapshotsStored>,
    /// `cache_hit`, `dense` or `sparse`.
    pub route: Option<&'static str>,
    /// The route that suffix and threshold give by themselves; null where either is not known.
    pub route_derived: Option<&'static str>,
    /// Whether the two differ: the protected prefix, a turn that has to be dense, or a scorer that failed decided otherwise.
    pub route_disagrees: Option<bool>,
    /// Whether the checkpoint fell.
    pub cliff: Option<bool>,
    /// Why the checkpoint stands where it stands: a phrase that names the segment or block.
    pub cause: Option<String>,
    /// The cause's identifier.
    pub cause_kind: Option<Cause>,
    /// The block responsible, where a block is.
    pub cause_block: Option<BlockRow>,
    /// Every loss between prompt and checkpoint; they add up to the suffix.
    pub losses: Option<Vec<LossRow>>,
    /// Where the prompt departs from its predecessor; null where it only appends.
    pub divergence: Option<DivergenceRow>,
    /// Requests in a row with this checkpoint, this one included; null beside the line of history.
    pub pinned_requests: Option<u32>,
    /// Tokens of the suffix that an earlier request of the run had computed already.
    pub recomputed_tokens: Option<u64>,
    /// What those cost on the run's prefill curve as far as it is measured when the row is made, seconds.
    pub recomputed_s: Option<f64>,
    /// Running total of suffix tokens since the cliff; 0 while the checkpoint is behind none, null beside the line of history.
    pub prefix_cache_debt_tokens: Option<u64>,
    /// What those cost on the run's prefill curve as far as it is measured when the row is made, seconds.
    pub prefix_cache_debt_s: Option<f64>,
    /// Longest restorable prefix of the prompt when it arrived.
    pub canonical_before_tokens: Option<u64>,
    /// Longest restorable prefix of the prompt afterwards.
    pub canonical_tokens: Option<u64>,
    /// `prompt_tokens − canonical_tokens`.
    pub canonical_debt_tokens: Option<u64>,
    /// What the request before it owed, as far as this one made it restorable; null beside the line of history.
    pub repaid_tokens: Option<u64>,
    /// Who did: `foreground`, `recovery`; null where nothing was repaid.
    pub paid_by: Option<Payer>,
    /// Of that, tokens that recovery had published; null as above.
    pub recovered_tokens: Option<u64>,
    /// Tokens of its debt that recovery has published so far; null where no job pays it.
    pub debt_paid_tokens: Option<u64>,
    /// Idle gap before the request, seconds.
    pub idle_s: Option<f64>,
    /// Time in the queue, seconds.
    pub queue_s: Option<f64>,
    /// From arrival to the first token, seconds.
    pub ttft_s: Option<f64>,
    /// Compute time of the prefill, seconds.
    pub prefill_s: Option<f64>,
    /// From the first token to the last, seconds.
    pub decode_s: Option<f64>,
    /// Reply tokens.
    pub output_tokens: Option<u64>,
    /// SHA-256 of the reply.
    pub output_sha256: Option<String>,
    /// Why the reply ended.
    pub finish: Option<&'static str>,
    /// The reply; null before it ended.
    pub text: Option<String>,
    /// Prefill chunks that memory shrank; null where it shrank none.
    pub shrunk_chunks: Option<super::ShrunkChunks>,
    /// How often it had to make way for others, which cost it what it had to compute again.
    pub preemptions: u32,
    /// The device's memory when the request ended, and the most it ever held by then; null where nobody counts it.
    pub device_memory: Option<crate::event::DeviceMemory>,
    /// What went wrong.
    pub error: Option<String>,
    /// Sparse-prefill facts; null on a request that took no sparse route.
    pub sparse: Option<SparseRow>,
    /// Why the request took the dense route though it was to take the sparse one.
    pub sparse_fell_back: Option<String>,
    /// Speculation facts; null where no drafter ran.
    pub spec: Option<SpecRow>,
    /// Recovery facts; null where its debt was never considered and nothing was in its way.
    pub recovery: Option<RecoveryRow>,
}

/// What sparse prefill did for a request.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SparseRow {
    /// The threshold it was admitted by, tokens.
    pub threshold: u64,
    /// The keep fraction.
    pub keep: f64,
    /// Who set whether, the threshold and the keep fraction.
    pub set_by: [SetBy; 3],
    /// Absolute position of the first scored token.
    pub origin: u64,
    /// Tokens of the protected prefix.
    pub protected_tokens: u64,
    /// Tokens scored.
    pub scored_tokens: u64,
    /// Of those, tokens kept, the kickoff token among them.
    pub selected_tokens: u64,
    /// Time the scorer took, seconds.
    pub scorer_s: f64,
    /// Tokens the scorer restored from its own cache.
    pub draft_cached_tokens: u64,
    /// Why its own state began there.
    pub draft_start: ScorerStart,
    /// Kept ranges, absolute, first and past-the-end.
    pub kept: Vec<(u64, u64)>,
}

impl SparseRow {
    fn of(request: &RequestFacts) -> Option<SparseRow> {
        let (scored, admission) = (request.scored.as_ref()?, request.admission.as_ref()?);
        let SparseSettings { enabled, keep, threshold } = &admission.settings;
        Some(SparseRow {
            threshold: threshold.value,
            keep: keep.value,
            set_by: [enabled.set_by.clone(), threshold.set_by.clone(), keep.set_by.clone()],
            origin: scored.origin,
            protected_tokens: admission.protected_tokens,
            scored_tokens: scored.scored_tokens,
            selected_tokens: scored.selected_tokens,
            scorer_s: scored.took().seconds(),
            draft_cached_tokens: scored.draft_cached_tokens,
            draft_start: scored.start,
            kept: scored.kept.clone(),
        })
    }
}

/// What speculative decoding did for a request.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpecRow {
    /// What drafted; null where the drafter failed before the reply began.
    pub drafter: Option<&'static str>,
    /// Tokens drafted in a cycle at most.
    pub depth_max: Option<u32>,
    /// What chose the depth: `fixed`, `adaptive`.
    pub controller: Option<&'static str>,
    /// Who set the drafter, the depth and the controller.
    pub set_by: Option<[SetBy; 3]>,
    /// Verify cycles.
    pub cycles: u64,
    /// Of those, cycles in which nothing was drafted.
    pub zero_cycles: u64,
    /// Tokens drafted.
    pub drafted: u64,
    /// Of those, tokens put to the test.
    pub tested: u64,
    /// Of those, tokens accepted.
    pub accepted: u64,
    /// Tests and accepted tokens by position in the draft.
    pub accepted_per_position: Vec<crate::decode::economics::Position>,
    /// `(accepted + cycles) / cycles`.
    pub tokens_per_cycle: Option<f64>,
    /// What a cycle costs in dense steps; null too where an audit failed or the counters cannot be, as `dense_step` is.
    pub cost_ratio: Option<f64>,
    /// Tokens per cycle above which it pays: what it costs in dense steps.
    pub break_even: Option<f64>,
    /// `(accepted + cycles) / output_tokens`.
    pub share: Option<f64>,
    /// The speed-up of decoding that these predict, over the tokens after the first; null too where an audit failed.
    pub predicted_speedup: Option<f64>,
    /// Milliseconds of a dense step, and who measured it.
    pub dense_step: Option<super::DenseStep>,
    /// Ordinary steps outside of cycles.
    pub parked: Option<u64>,
    /// Time the drafter took to read the prompt, seconds; a part of `ttft_s`.
    pub priming_s: Option<f64>,
    /// Time of the cycles in drafting, seconds; null where other sequences shared a forward, as the four below are.
    pub draft_s: Option<f64>,
    /// In the target's forwards.
    pub verify_s: Option<f64>,
    /// In accepting and sampling.
    pub sample_s: Option<f64>,
    /// In taking back what was not accepted.
    pub rollback_s: Option<f64>,
    /// In keeping what was.
    pub commit_s: Option<f64>,
    /// Other sequences in a forward, at most.
    pub neighbours: u32,
    /// Experts that a forward touched; null for a model without.
    pub experts: Option<super::ExpertsPerForward>,
    /// What comparing cycles with recomputation showed.
    pub audit: super::AuditVerdict,
    /// What of the counters cannot be; absent where they can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counters_problem: Option<String>,
    /// Why nothing was drafted any more from some token on.
    pub fell_back: Option<String>,
}

impl SpecRow {
    fn of(ledger: &Ledger, request: &RequestFacts) -> Option<SpecRow> {
        let account = ledger.speculation_account(request.id)?;
        let start = request.speculation.as_ref().and_then(|told| told.start.as_ref());
        let time = account.time.map(|time| time.parts().map(|(_, part)| part.seconds()));
        let part = |index: usize| time.map(|parts| parts[index]);
        let counters = &account.counters;
        Some(SpecRow {
            drafter: account.drafter.map(|drafter| drafter.word()),
            depth_max: account.depth_max,
            controller: account.controller.map(|controller| controller.word()),
            set_by: start.map(|start| start.set_by.clone()),
            cycles: counters.cycles,
            zero_cycles: counters.zero_cycles,
            drafted: counters.drafted,
            tested: counters.tested,
            accepted: counters.accepted,
            accepted_per_position: counters.positions.clone(),
            tokens_per_cycle: account.tokens_per_cycle(),
            cost_ratio: account.cost_ratio(),
            break_even: account.cost_ratio(),
            share: account.share(),
            predicted_speedup: account.speed_up().ok().flatten(),
            dense_step: account.dense(),
            parked: account.parked_steps,
            priming_s: account.priming.map(|time| time.seconds()),
            draft_s: part(0),
            verify_s: part(1),
            sample_s: part(2),
            rollback_s: part(3),
            commit_s: part(4),
            neighbours: account.neighbours,
            experts: account.experts,
            audit: account.audit.clone(),
            counters_problem: account.problem.clone(),
            fell_back: account.ended.clone(),
        })
    }
}

/// What background recovery did for a request, and to it. What belongs to a job is that of the job that pays its debt, and null where none does.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RecoveryRow {
    /// The job.
    pub job: Option<u64>,
    /// What it has come to: `running`, `waiting`, `complete`, `dropped`; of a debt that nobody pays `declined`, `left_out`; null where nobody
    /// considered it.
    pub state: Option<&'static str>,
    /// Tokens the job is to recover; of a debt that nobody pays, would have been.
    pub target_tokens: Option<u64>,
    /// Tokens that are published or stand in live state.
    pub processed_tokens: Option<u64>,
    /// Tokens that are published.
    pub committed_tokens: Option<u64>,
    /// Of those, tokens that the next request is shown.
    pub visible_tokens: Option<u64>,
    /// Publications that count.
    pub publications: Option<u64>,
    /// Slices that ran.
    pub slices: Option<u64>,
    /// Steps of the engine's loop while the job had something left to do.
    pub runnable_steps: Option<u64>,
    /// Of those, steps in which a slice ran.
    pub scheduled_steps: Option<u64>,
    /// Of those, steps in which something else came first.
    pub yielded_steps: Option<u64>,
    /// Of the scheduled, steps in which live state was built from what is published.
    pub resumed_steps: Option<u64>,
    /// Compute time of its slices, seconds.
    pub service_s: Option<f64>,
    /// That as a share of the wall time the job was there, which is what the budget caps.
    pub budget_share: Option<f64>,
    /// How the job ended before all was published; null where it did not.
    pub drop_reason: Option<End>,
    /// Why nobody pays the debt; null where a job does, and where one of another history goes on.
    pub declined: Option<Declined>,
    /// How long background work was in this request's way, seconds; null where none was.
    pub delayed_s: Option<f64>,
    /// Seconds the job saved later requests, less those it took and those it was in somebody's way; null before the run has a prefill curve.
    pub net_return_s: Option<f64>,
}

impl RecoveryRow {
    fn of(ledger: &Ledger, request: &RequestFacts, returns: &Returns) -> Option<RecoveryRow> {
        let recovery = ledger.recovery();
        let debt = recovery.debt_of(request.id);
        debt.map(|_| ()).or(request.delayed.map(|_| ()))?;
        let job = request.recovery.and_then(|job| recovery.job(job));
        let steps = |of: fn(&Steps) -> u64| job.map(|job| of(&job.steps));
        let unpaid = debt.and_then(|debt| match debt.taken {
            DebtTaken::Declined { .. } => Some("declined"),
            DebtTaken::LeftOut { .. } => Some("left_out"),
            _ => None,
        });
        Some(RecoveryRow {
            job: request.recovery.map(|job| job.0),
            state: unpaid.or(job.map(|job| job.state().word())),
            target_tokens: job.map_or(debt.map(|debt| debt.target_tokens), |job| job.target),
            processed_tokens: job.and_then(|job| job.processed),
            committed_tokens: job.and_then(|job| job.committed),
            visible_tokens: job.and_then(|job| job.visible),
            publications: job.map(|job| job.published().count() as u64),
            slices: job.map(|job| job.slices.len() as u64),
            runnable_steps: steps(|steps| steps.runnable),
            scheduled_steps: steps(|steps| steps.scheduled),
            yielded_steps: steps(|steps| steps.yielded),
            resumed_steps: steps(|steps| steps.resumed),
            service_s: job.map(|job| job.service().seconds()),
            budget_share: job.and_then(|job| job.service_share(ledger.now())),
            drop_reason: job.and_then(|job| job.drop_reason()),
            declined: debt.and_then(|debt| match debt.taken {
                DebtTaken::Declined { why } => Some(why),
                _ => None,
            }),
            delayed_s: request.delayed.map(|time| time.seconds()),
            net_return_s: request.recovery.and_then(|job| returns.get(&job)?.seconds()),
        })
    }
}

/// The block at which a loss begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BlockRow {
    /// Its position in the prompt, from 0.
    pub index: u32,
    /// The request that wrote it; null where none is known.
    pub written_by: Option<u64>,
    /// Whether that was a request of an earlier run.
    pub earlier_run: bool,
}

impl From<Culprit> for BlockRow {
    fn from(block: Culprit) -> BlockRow {
        let Culprit { index, written_by, earlier_run } = block;
        BlockRow { index, written_by: written_by.map(|request| request.0), earlier_run }
    }
}

/// One step of the waterfall.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LossRow {
    /// Why.
    pub cause: Cause,
    /// How many prompt tokens.
    pub tokens: u64,
    /// What happened, in words.
    pub detail: String,
    /// The block responsible, where a block is.
    pub block: Option<BlockRow>,
}

impl From<&Loss> for LossRow {
    fn from(loss: &Loss) -> LossRow {
        LossRow {
            cause: loss.cause,
            tokens: loss.tokens,
            detail: loss.detail.clone(),
            block: loss.block.map(BlockRow::from),
        }
    }
}

/// The first token at which two prompts differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DivergenceRow {
    /// Its position, tokens from the start.
    pub position: u64,
    /// The segment it lies in, in the new prompt; null past its end.
    pub segment: Option<crate::event::Segment>,
    /// The request whose prompt it departs from.
    pub against: Option<u64>,
    /// The old text around it.
    pub before: String,
    /// The new text around it.
    pub after: String,
}

impl From<&Divergence> for DivergenceRow {
    fn from(divergence: &Divergence) -> DivergenceRow {
        DivergenceRow {
            position: divergence.position,
            segment: divergence.segment,
            against: divergence.against.map(|request| request.0),
            before: divergence.before.clone(),
            after: divergence.after.clone(),
        }
    }
}

impl Row {
    /// The row of `request`. [`Ledger::rows`] makes all of them in one pass.
    pub fn new(ledger: &Ledger, request: &RequestFacts) -> Row {
        let account =
            ledger.accounts(request.lane).into_iter().find(|(_, entry)| entry.request == request.id);
        Row::with(ledger, request, account.as_ref(), &ledger.net_returns().into_iter().collect())
    }

    pub(super) fn with(
        ledger: &Ledger,
        request: &RequestFacts,
        account: Option<&(Option<CheckpointStep>, DebtEntry)>,
        returns: &Returns,
    ) -> Row {
        let restore = request.restore.as_ref();
        let observed = restore.filter(|restore| restore.is_observed());
        let step = account.and_then(|(step, _)| *step);
        let debt = account.map(|(_, entry)| entry);
        Row {
            lane: request.lane.label(),
            request: request.id.0,
            turn: request.turn,
            name: request.name.clone(),
            side: request.is_side(),
            prompt_tokens: request.prompt_tokens,
            common_prefix_tokens: restore.and_then(|r| r.common_prefix_tokens),
            closest_prefix_tokens: restore.and_then(|r| Some(r.closest?.common_tokens)),
            closest_request: restore.and_then(|r| Some(r.closest?.request.0)),
            held_tokens: observed.map(|r| r.held_tokens),
            matched_tokens: observed.map(|r| r.matched_tokens),
            matched_with_state_tokens: observed.map(|r| r.matched_with_state_tokens),
            checkpoint_tokens: request.checkpoint(),
            ssd_blocks: restore.and_then(|r| Some(r.ssd?.blocks)),
            ssd_bytes: restore.and_then(|r| Some(r.ssd?.bytes)),
            restore_s: observed.map(|r| r.took.seconds()),
            checkpoint_delta: step.map(|s| s.delta),
            uncached_suffix: request.uncached_suffix,
            fresh_tokens: request.fresh_tokens(),
            stored_tokens: request.stored_tokens,
            snapshots: request.snapshots,
            route: request.route.map(|r| r.word()),
            route_derived: request.derived_route().map(|r| r.word()),
            route_disagrees: request
                .route
                .zip(request.derived_route())
                .map(|(told, derived)| told != derived),
            cliff: step.map(|s| s.cliff),
            cause: request.cause_sentence(),
            cause_kind: restore.map(|r| r.cause),
            cause_block: restore.and_then(Restore::cause_loss).and_then(|l| l.block).map(BlockRow::from),
            losses: restore.map(|r| r.losses.iter().map(LossRow::from).collect()),
            divergence: restore.and_then(|r| r.divergence.as_ref()).map(DivergenceRow::from),
            pinned_requests: debt.map(|d| d.pinned_requests).filter(|n| *n > 0),
            recomputed_tokens: debt.and_then(|d| d.recomputed_tokens),
            recomputed_s: debt.and_then(|d| d.recomputed_s),
            prefix_cache_debt_tokens: debt.and_then(|d| d.prefix_cache_debt),
            prefix_cache_debt_s: debt.and_then(|d| d.prefix_cache_debt_s),
            canonical_before_tokens: debt.and_then(|d| d.canonical_before),
            canonical_tokens: request.canonical_tokens,
            canonical_debt_tokens: request.canonical_debt(),
            repaid_tokens: debt.and_then(|d| d.repaid_tokens),
            paid_by: debt.and_then(|d| d.paid_by),
            recovered_tokens: debt.and_then(|d| d.recovered_tokens),
            debt_paid_tokens: ledger.recovery().paid_tokens(request.id),
            idle_s: request.idle.map(|t| t.seconds()),
            queue_s: request.queued.map(|t| t.seconds()),
            ttft_s: request.ttft.map(|t| t.seconds()),
            prefill_s: request.prefill.map(|t| t.seconds()),
            decode_s: request.decode.map(|t| t.seconds()),
            output_tokens: request.output_tokens,
            output_sha256: request.output_sha256.clone(),
            finish: request.reason.map(|r| r.word()),
            text: request.output_tokens.map(|_| request.text.clone()),
            shrunk_chunks: request.shrunk,
            preemptions: request.preemptions,
            device_memory: request.device_memory,
            error: request.error.clone(),
            sparse: SparseRow::of(request),
            sparse_fell_back: request.fell_back.clone(),
            spec: SpecRow::of(ledger, request),
            recovery: RecoveryRow::of(ledger, request, returns),
        }
    }
}

impl RequestFacts {
    /// Why the checkpoint stands where it stands, in words that name the segment or block. `None` before the
    /// restore.
    pub fn cause_sentence(&self) -> Option<String> {
        let restore = self.restore.as_ref()?;
        let detail = restore.cause_loss().map(|l| l.detail.as_str());
        Some(match detail {
            Some(detail) if !detail.is_empty() => format!("{}: {detail}", restore.cause.phrase()),
            _ => restore.cause.phrase().to_owned(),
        })
    }
}
