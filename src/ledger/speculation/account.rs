//! The account of a request's speculative decoding.

use serde::Serialize;

use super::Speculation;
use crate::config::{ControllerKind, DrafterKind};
use crate::decode::economics::{Counters, CycleTime, Economics, leviathan_tokens, measured_speedup, ratio};
use crate::event::{Identity, Nanos, RequestId};
use crate::ledger::RequestFacts;

/// Ordinary steps of its own from which a request's dense step is taken: of fewer a mean says little.
const FEWEST_STEPS: u64 = 8;

/// Where the time of a dense step comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DenseSource {
    /// Ordinary steps of the request itself: its zero cycles, and its steps while it was parked.
    Own {
        /// Steps.
        steps: u64,
    },
    /// A request that decoded without a drafter.
    Request(RequestId),
    /// Ordinary steps of another request, one that drafted: between its cycles they are no dense decoding as a whole reply is.
    StepsOf(RequestId),
    /// The verify curve's forward of one token, which is the target's alone.
    Curve,
}

/// What a dense step takes, and who measured it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DenseStep {
    /// Milliseconds.
    pub ms: f64,
    /// Who.
    pub from: DenseSource,
}

/// An audit that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditFailure {
    /// The cycle, from 1.
    pub cycle: usize,
    /// Place in the reply of the first token it gave.
    pub first: u64,
    /// What differs first.
    pub problem: String,
}

/// What comparing cycles with recomputation showed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub enum AuditVerdict {
    /// No cycle was compared.
    Off,
    /// All that were compared agree.
    Passed {
        /// How many were.
        cycles: u64,
        /// How.
        how: Identity,
    },
    /// One does not, the first of them.
    Failed(AuditFailure),
}

impl AuditVerdict {
    /// The failure, where there is one.
    pub fn failure(&self) -> Option<&AuditFailure> {
        match self {
            AuditVerdict::Failed(failure) => Some(failure),
            AuditVerdict::Off | AuditVerdict::Passed { .. } => None,
        }
    }

    /// `value`, unless an audit failed: then the failure, since how fast a wrong reply came is of no interest.
    pub fn allow<T>(&self, value: T) -> Result<T, &AuditFailure> {
        self.failure().map_or(Ok(value), Err)
    }

    fn of(speculation: &Speculation) -> AuditVerdict {
        let audits =
            || speculation.cycles.iter().enumerate().filter_map(|(n, c)| Some((n, c, c.audit.as_ref()?)));
        if let Some((number, cycle, audit)) = audits().find(|(_, _, audit)| !audit.passed) {
            let problem =
                audit.problem.clone().unwrap_or_else(|| "state differs from recomputation".to_owned());
            return AuditVerdict::Failed(AuditFailure { cycle: number + 1, first: cycle.first, problem });
        }
        match audits().next() {
            Some((_, _, audit)) => AuditVerdict::Passed { cycles: audits().count() as u64, how: audit.how },
            None => AuditVerdict::Off,
        }
    }
}

/// Experts that forwards of a request touched.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ExpertsPerForward {
    /// Distinct routed experts a forward touched on average, summed over layers.
    pub touched: f64,
    /// What one token touches.
    pub of_one_token: u64,
    /// All there are.
    pub experts: u64,
}

/// What a request's speculative decoding did, took and was worth.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpeculationAccount {
    /// What drafted; `None` where nothing did.
    pub drafter: Option<DrafterKind>,
    /// Tokens drafted in a cycle at most.
    pub depth_max: Option<u32>,
    /// What chose the depth.
    pub controller: Option<ControllerKind>,
    /// Why nothing was drafted any more.
    pub ended: Option<String>,
    /// Time the drafter took to read the prompt, before the first token.
    pub priming: Option<Nanos>,
    /// What was drafted, tested and accepted, as it was told.
    pub counters: Counters,
    /// What of the counters cannot be; from such there follow no cost and no speed-up. `None` before the reply ended too.
    pub problem: Option<String>,
    /// Tokens per cycle that drafts of the same lengths let expect if every drafted token were accepted with the same probability, whatever came
    /// before: what is measured departs from it as far as positions depend on one another.
    pub independent_tokens_per_cycle: Option<f64>,
    /// Where the time of the cycles went; `None` where other sequences shared a forward, since a share is no measurement.
    pub time: Option<CycleTime>,
    /// Other sequences in a forward, at most.
    pub neighbours: u32,
    /// Ordinary steps outside of cycles, the sequence being parked or nothing drafting any more; `None` before the reply ended.
    pub parked_steps: Option<u64>,
    /// Milliseconds a token of the reply took.
    pub ms_per_token: Option<f64>,
    /// Experts, where the model has some and the device tells.
    pub experts: Option<ExpertsPerForward>,
    /// What audits showed.
    pub audit: AuditVerdict,
    dense: Option<DenseStep>,
    economics: Economics,
}

impl SpeculationAccount {
    /// That of a request; `None` where it has nothing to do with a drafter.
    pub fn of(request: &RequestFacts) -> Option<SpeculationAccount> {
        let speculation = request.speculation.as_deref()?;
        let cycles = &speculation.cycles;
        let start = speculation.start.as_ref();
        let output_tokens = request.output_tokens.unwrap_or(request.tokens.len() as u64);
        let counters = Counters::of(cycles, output_tokens);
        let time = CycleTime::of(cycles);
        let parked_steps = request
            .output_tokens
            .map(|tokens| tokens.saturating_sub(1).saturating_sub(counters.cycle_tokens()));
        let account = SpeculationAccount {
            drafter: start.map(|start| start.drafter),
            depth_max: start.map(|start| start.depth_max),
            controller: start.map(|start| start.controller),
            ended: speculation.ended.clone(),
            priming: start.map(|start| start.took),
            neighbours: cycles.iter().map(|cycle| cycle.neighbours).max().unwrap_or(0),
            parked_steps,
            problem: request.output_tokens.and_then(|_| counters.problem()),
            independent_tokens_per_cycle: independent_tokens(speculation, &counters),
            ms_per_token: request.ms_per_token().filter(|_| time.is_some()),
            experts: experts(speculation),
            audit: AuditVerdict::of(speculation),
            dense: None,
            economics: Economics::default(),
            counters,
            time,
        };
        let dense = account.own_dense_step(request, speculation);
        Some(account.against(dense))
    }

    /// The same against another dense step.
    pub fn against(mut self, dense: Option<DenseStep>) -> SpeculationAccount {
        let cycles_ms = self.time.map(|time| time.total().seconds() * 1e3);
        self.economics = Economics::of(&self.counters, cycles_ms, dense.map(|dense| dense.ms));
        self.dense = dense;
        self
    }

    /// The mean of the request's own ordinary steps, where there are enough of them. What was decoded outside of cycles is what decoding took in all
    /// less what cycles took; what a zero cycle did for the drafter is no part of a dense step.
    fn own_dense_step(&self, request: &RequestFacts, speculation: &Speculation) -> Option<DenseStep> {
        let all = self.time?;
        let zero = CycleTime::of(speculation.cycles.iter().filter(|cycle| cycle.drafted == 0))?;
        let zero =
            [zero.verify, zero.sample, zero.commit].iter().fold(0u64, |sum, t| sum.saturating_add(t.0));
        let outside = request.decode_alone().zip(self.parked_steps).filter(|(_, steps)| *steps > 0);
        let (outside_ns, steps) =
            outside.map_or((0, 0), |(decode, steps)| (decode.0.saturating_sub(all.total().0), steps));
        let steps = steps.saturating_add(self.counters.zero_cycles);
        let ms = ratio(zero.saturating_add(outside_ns) as f64 / 1e6, steps as f64)?;
        (ms > 0.0 && steps >= FEWEST_STEPS).then_some(DenseStep { ms, from: DenseSource::Own { steps } })
    }

    /// Whether figures may follow from it: no audit failed, and its counters can be.
    pub fn is_sound(&self) -> bool {
        self.audit.failure().is_none() && self.problem.is_none()
    }

    /// The dense step that costs are counted in. Beside the time of a cycle it tells a speed-up, so it is withheld where an audit failed or the
    /// counters cannot be.
    pub fn dense(&self) -> Option<DenseStep> {
        self.dense.filter(|_| self.is_sound())
    }

    /// Tokens per cycle.
    pub fn tokens_per_cycle(&self) -> Option<f64> {
        self.economics.tokens_per_cycle
    }

    /// The share of the reply that cycles gave.
    pub fn share(&self) -> Option<f64> {
        self.economics.share
    }

    /// Milliseconds a cycle took on average.
    pub fn ms_per_cycle(&self) -> Option<f64> {
        self.economics.ms_per_cycle
    }

    /// What a cycle costs in dense steps, which is also the tokens per cycle at which it breaks even; withheld as [`Self::dense`] is.
    pub fn cost_ratio(&self) -> Option<f64> {
        self.economics.cost_ratio.filter(|_| self.is_sound())
    }

    /// Whether a cycle gives more tokens than it costs dense steps; withheld as [`Self::dense`] is.
    pub fn pays(&self) -> Option<bool> {
        self.economics.pays().filter(|_| self.is_sound())
    }

    /// The speed-up of decoding that the identities predict: inner `None` where something of it is not known, the failure where an audit failed.
    pub fn speed_up(&self) -> Result<Option<f64>, &AuditFailure> {
        self.audit.allow(self.economics.predicted_speedup().filter(|_| self.is_sound()))
    }

    /// How much faster than a dense step a token of the reply came: the failure where an audit failed. Measured against a
    /// request that decoded without a drafter only: the request's own steps are part of its reply, and another's between cycles are no dense reply.
    pub fn measured_speed_up(&self) -> Result<Option<f64>, &AuditFailure> {
        let dense = self.dense().filter(|dense| matches!(dense.from, DenseSource::Request(_)));
        let measured = dense.zip(self.ms_per_token).and_then(|(dense, own)| measured_speedup(dense.ms, own));
        self.audit.allow(measured)
    }
}

/// See [`SpeculationAccount::independent_tokens_per_cycle`].
fn independent_tokens(speculation: &Speculation, counters: &Counters) -> Option<f64> {
    let acceptance = counters.accepted_of_tested().filter(|acceptance| *acceptance <= 1.0)?;
    let deepest = crate::config::SpeculationConfig::MAX_DEPTH;
    let expected = speculation.cycles.iter().map(|c| leviathan_tokens(acceptance, c.drafted.min(deepest)));
    ratio(expected.sum(), counters.cycles as f64)
}

fn experts(speculation: &Speculation) -> Option<ExpertsPerForward> {
    let alone = speculation.cycles.iter().filter(|cycle| cycle.neighbours == 0);
    let told: Vec<_> = alone.filter_map(|cycle| cycle.experts).collect();
    let first = told.first()?;
    let touched = told.iter().map(|experts| experts.touched as f64).sum::<f64>() / told.len() as f64;
    Some(ExpertsPerForward { touched, of_one_token: first.of_one_token, experts: first.experts })
}

impl RequestFacts {
    /// Time its decoding took; `None` before it ended, and where other sequences shared a forward of it, since a share is no measurement.
    pub fn decode_alone(&self) -> Option<Nanos> {
        self.decode.filter(|_| self.shared_forwards.unwrap_or(0) == 0)
    }

    /// Milliseconds a token of the reply took to decode; `None` as [`Self::decode_alone`] is.
    pub fn ms_per_token(&self) -> Option<f64> {
        let took = self.decode_alone()?.seconds();
        let ms = crate::decode::economics::decode_ms_per_token(took, self.output_tokens?)?;
        (ms > 0.0).then_some(ms)
    }

    /// The account of its speculative decoding; `None` where there is none.
    pub fn speculation_account(&self) -> Option<SpeculationAccount> {
        SpeculationAccount::of(self)
    }
}
