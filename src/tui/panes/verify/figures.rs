//! The figures the pane shows of a request. They are the ledger's; what is chosen here is the dense reply that they are held against.

use crate::decode::economics::expected_tokens;
use crate::event::Nanos;
use crate::ledger::{AuditFailure, DenseSource, DenseStep, RequestFacts, Speculation, SpeculationAccount};
use crate::tui::app::Model;
use crate::tui::text::thousands;

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
    /// Turn of the dense reply that costs are counted against, where it is one.
    dense_turn: Option<u32>,
    /// Whether that reply is of another lane, which the ledger knows nothing of.
    across_lanes: bool,
}

impl<'a> Figures<'a> {
    /// Those of a request of the run in focus; `None` where it has nothing to do with a drafter.
    pub(in crate::tui) fn of(model: &'a Model, request: &'a RequestFacts) -> Option<Figures<'a>> {
        let speculation = request.speculation.as_deref()?;
        let account = model.ledger().speculation_account(request.id)?;
        // Lanes are compared with a lane without a drafter: its dense step is that of the comparison too.
        let of_base = model.runs.are_compared().then(|| dense_counterpart(model, request)).flatten();
        if let Some((base, step)) = of_base.and_then(|base| Some((base, dense_step(base)?))) {
            let (account, dense_turn) = (account.against(Some(step)), Some(base.turn));
            return Some(Figures { request, speculation, account, dense_turn, across_lanes: true });
        }
        let dense_turn = match account.dense().map(|dense| dense.from) {
            Some(DenseSource::Request(id)) => model.ledger().request(id).map(|dense| dense.turn),
            _ => None,
        };
        Some(Figures { request, speculation, account, dense_turn, across_lanes: false })
    }

    /// Whose dense step it is: `turn 1, dense`.
    pub(super) fn dense_words(&self) -> Option<String> {
        Some(match (self.account.dense()?.from, self.dense_turn) {
            (_, Some(turn)) => format!("turn {turn}, dense"),
            (DenseSource::Own { steps }, _) => format!("its own {} ordinary steps", thousands(steps)),
            (DenseSource::Curve, _) => "its verify curve".to_owned(),
            _ => "steps of another reply".to_owned(),
        })
    }

    /// Whether the dense step is another lane's.
    pub(super) fn across_lanes(&self) -> bool {
        self.across_lanes
    }

    /// How much faster than the same dense step the reply was decoded, as measured, and the turn of the dense reply. Steps of the reply itself, and of
    /// the curve, measure no reply.
    pub(super) fn measured(&self) -> Option<(f64, u32)> {
        let measured = self.account.measured_speed_up().ok().flatten();
        measured.filter(|_| self.shared().is_none()).zip(self.dense_turn)
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

    /// That other sequences had a part in its forwards, in words, where they had.
    pub(in crate::tui) fn shared(&self) -> Option<String> {
        let others = u64::from(self.account.neighbours);
        if others > 0 {
            return Some(format!("{} sequences shared forwards", thousands(others + 1)));
        }
        shared_forwards(self.request).map(|forwards| format!("{} forwards were shared", thousands(forwards)))
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
    !drafted && request.ms_per_token().is_some() && shared_forwards(request).is_none()
}

/// Forwards of its decoding that other sequences shared, where there were any: its time is no measurement then.
pub(in crate::tui) fn shared_forwards(request: &RequestFacts) -> Option<u64> {
    request.shared_forwards.filter(|forwards| *forwards > 0)
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
