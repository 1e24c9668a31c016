//! The figures the pane shows of a request. They are the ledger's; what is chosen here is the dense reply that they are held against.

use crate::decode::economics::expected_tokens;
use crate::event::Nanos;
use crate::ledger::{AuditFailure, DenseSource, DenseStep, RequestFacts, Speculation, SpeculationAccount};
use crate::tui::app::Model;

/// The cost of a cycle at one depth, and what it gives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct DepthRow {
    pub(super) depth: u32,
    /// Time of a forward over one token more, where the curve was measured.
    pub(super) forward: Option<Nanos>,
    /// In dense steps, and whether it was measured at this depth.
    pub(super) cost: Option<(f64, bool)>,
    /// Tokens per cycle by the acceptance at each position, and whether cycles drafted so many.
    pub(super) gives: Option<(f64, bool)>,
}

impl DepthRow {
    /// Tokens per dense step: above 1 it wins.
    pub(super) fn rate(&self) -> Option<f64> {
        crate::decode::economics::ratio(self.gives?.0, self.cost?.0)
    }
}

/// What is known of a request's speculative decoding.
pub(in crate::tui) struct Figures<'a> {
    request: &'a RequestFacts,
    speculation: &'a Speculation,
    account: SpeculationAccount,
}

impl<'a> Figures<'a> {
    /// Those of a request of the run in focus; `None` where it has nothing to do with a drafter.
    pub(in crate::tui) fn of(model: &'a Model, request: &'a RequestFacts) -> Option<Figures<'a>> {
        let speculation = request.speculation.as_deref()?;
        let account = model.ledger().speculation_account(request.id)?;
        // Of lanes that are compared, another may have the dense reply.
        let account = match account.dense() {
            Some(_) => account,
            None => account.against(dense_counterpart(model, request).and_then(dense_step)),
        };
        Some(Figures { request, speculation, account })
    }

    /// The account.
    pub(in crate::tui) fn account(&self) -> &SpeculationAccount {
        &self.account
    }

    /// The first audit that failed.
    pub(in crate::tui) fn failure(&self) -> Option<&AuditFailure> {
        self.account.audit.failure()
    }

    /// What the identities predict; nothing after a failed audit.
    pub(super) fn predicted(&self) -> Option<f64> {
        self.account.speed_up().ok().flatten()
    }

    /// Nanoseconds of a dense step.
    pub(super) fn dense_nanos(&self) -> Option<f64> {
        self.account.dense().map(|dense| dense.ms * 1e6)
    }

    /// The other sequences in a forward, at most, where there were any.
    pub(super) fn shared(&self) -> Option<u64> {
        Some(u64::from(self.account.neighbours)).filter(|others| *others > 0)
    }

    pub(super) fn has_curve(&self) -> bool {
        self.speculation.curve.is_some()
    }

    /// The depth decided on last.
    pub(super) fn depth_now(&self) -> Option<u32> {
        Some(self.speculation.decisions.last()?.depth)
    }

    /// Cost and gain by depth, and the depth with the best rate.
    pub(super) fn by_depth(&self) -> (Vec<DepthRow>, Option<u32>) {
        let curve = self.speculation.curve.as_ref();
        let forward = |depth: u32| {
            let width = depth.saturating_add(1);
            curve.and_then(|curve| curve.points.iter().find(|point| point.0 == width)).map(|point| point.1)
        };
        match self.request.depth_costs(&self.account) {
            Some(costs) => {
                let row = |depth: &crate::ledger::DepthCost| DepthRow {
                    depth: depth.depth,
                    forward: forward(depth.depth),
                    cost: Some((depth.cost, depth.measured)),
                    gives: depth.gives.map(|gives| (gives, depth.cycles > 0)),
                };
                (costs.depths.iter().map(row).collect(), Some(costs.best))
            }
            // Without costs there is what was accepted.
            None => {
                let positions = &self.account.counters.positions;
                let seen: Vec<f64> = positions.iter().map_while(|position| position.acceptance()).collect();
                let row = |depth: usize| DepthRow {
                    depth: depth as u32,
                    forward: forward(depth as u32),
                    cost: None,
                    gives: Some((expected_tokens(seen[..depth].iter().copied()), true)),
                };
                ((0..=seen.len()).map(row).collect(), None)
            }
        }
    }
}

/// Whether it decoded without a drafter, and how fast is known.
pub(super) fn is_dense(request: &RequestFacts) -> bool {
    let drafted =
        request.speculation.as_ref().is_some_and(|told| told.start.is_some() || !told.cycles.is_empty());
    !drafted && request.ms_per_token().is_some()
}

fn dense_step(request: &RequestFacts) -> Option<DenseStep> {
    Some(DenseStep { ms: request.ms_per_token()?, from: DenseSource::Request(request.id) })
}

/// The request that decoded without a drafter whose context was most like that of `request`; of equals the latest. Of lanes that are compared,
/// the same turn in the lane that others are compared with.
pub(super) fn dense_counterpart<'a>(model: &'a Model, request: &RequestFacts) -> Option<&'a RequestFacts> {
    if model.runs.are_compared() {
        let base = model.runs.ledger_of(model.runs.comparison().base());
        let mut same = base.lane_requests(request.lane).filter(|other| is_dense(other));
        return same.find(|other| other.turn == request.turn);
    }
    let context = |request: &RequestFacts| request.prompt_tokens.unwrap_or(0);
    let dense = model.ledger().requests().rev().filter(|other| is_dense(other));
    dense.min_by_key(|other| context(other).abs_diff(context(request)))
}
