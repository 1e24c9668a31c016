//! The figures the pane shows of a request, and where each comes from. The accounting itself is [`economics`](crate::decode::economics).

use crate::decode::economics::{
    Counters, CycleTime, Economics, Position, best_depth, decode_ms_per_token, expected_tokens, ratio,
};
use crate::event::{Audit, Cycle, Nanos};
use crate::ledger::{RequestFacts, Speculation};
use crate::tui::app::Model;

/// What a dense step takes, and who measured it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct DenseStep {
    pub(super) nanos: f64,
    pub(super) from: DenseSource,
}

/// Where the cost of a dense step comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DenseSource {
    /// Ordinary steps among the request's own cycles.
    Own,
    /// The verify curve's forward of one token.
    Curve,
    /// A request that decoded without a drafter: its turn.
    Request(u32),
}

/// The cost of a cycle at one depth, and what it gives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct DepthRow {
    pub(super) depth: u32,
    /// Time of a forward over one token more, where the curve was measured.
    pub(super) forward: Option<Nanos>,
    /// In dense steps, and whether it was measured at this depth.
    pub(super) cost: Option<(f64, bool)>,
    /// Tokens per cycle, and whether they were counted at this depth.
    pub(super) gives: Option<(f64, bool)>,
}

impl DepthRow {
    /// Tokens per dense step: above 1 it wins.
    pub(super) fn rate(&self) -> Option<f64> {
        ratio(self.gives?.0, self.cost?.0)
    }
}

/// What is known of a request's speculative decoding.
pub(in crate::tui) struct Figures<'a> {
    speculation: Option<&'a Speculation>,
    counters: Counters,
    dense: Option<DenseStep>,
}

impl<'a> Figures<'a> {
    pub(in crate::tui) fn of(model: &'a Model, request: &'a RequestFacts) -> Figures<'a> {
        let speculation = request.speculation.as_deref();
        let cycles = speculation.map_or(&[][..], |speculation| &speculation.cycles);
        let tokens = request.output_tokens.unwrap_or(request.tokens.len() as u64);
        let counters = Counters::of(cycles, tokens);
        Figures { speculation, counters, dense: dense_step(model, request) }
    }

    fn cycles(&self) -> &'a [Cycle] {
        self.speculation.map_or(&[], |speculation| &speculation.cycles)
    }

    pub(in crate::tui) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The first cycle whose audit failed.
    pub(in crate::tui) fn failure(&self) -> Option<(&'a Cycle, &'a Audit)> {
        let failed = |cycle: &'a Cycle| Some((cycle, cycle.audit.as_ref().filter(|audit| !audit.passed)?));
        self.cycles().iter().find_map(failed)
    }

    pub(super) fn dense(&self) -> Option<DenseStep> {
        self.dense
    }

    pub(super) fn dense_nanos(&self) -> Option<f64> {
        self.dense.map(|dense| dense.nanos)
    }

    /// Where the time of all cycles went; `None` where sequences shared a forward.
    pub(super) fn time(&self) -> Option<CycleTime> {
        CycleTime::of(self.cycles()).filter(|_| !self.cycles().is_empty())
    }

    /// By the request's own dense step.
    pub(in crate::tui) fn economics(&self) -> Economics {
        self.against(self.dense_nanos().map(|nanos| nanos / 1e6))
    }

    /// With dense steps of so many milliseconds.
    pub(super) fn against(&self, dense_ms: Option<f64>) -> Economics {
        let cycles_ms = self.time().map(|time| time.total().0 as f64 / 1e6);
        Economics::of(&self.counters, cycles_ms, dense_ms)
    }

    /// The other sequences in a forward, at most, where there were any.
    pub(super) fn shared(&self) -> Option<u64> {
        self.cycles().iter().map(|cycle| u64::from(cycle.neighbours)).max().filter(|others| *others > 0)
    }

    pub(super) fn has_curve(&self) -> bool {
        self.speculation.is_some_and(|speculation| speculation.curve.is_some())
    }

    /// The depth decided on last.
    pub(super) fn depth_now(&self) -> Option<u32> {
        Some(self.speculation?.decisions.last()?.depth)
    }

    /// Cost and gain by depth: as cycles of that depth showed, otherwise by the curve and by acceptance at each position. Of costs the median, so
    /// that one disturbed forward decides nothing.
    pub(super) fn by_depth(&self) -> Vec<DepthRow> {
        const MOST: u32 = 16;
        let curve = self.speculation.and_then(|speculation| speculation.curve.as_ref());
        let point = |width: u32| {
            curve.and_then(|curve| curve.points.iter().find(|point| point.0 == width)).map(|point| point.1)
        };
        let depth_max = self.speculation.and_then(|s| s.start.as_ref()).map_or(0, |start| start.depth_max);
        let last = depth_max.max(if curve.is_some() { 7 } else { 0 }).min(MOST);
        let acceptance = self.acceptance();
        let dense = self.dense_nanos();
        let row = |depth: u32| {
            let own = || self.cycles().iter().filter(|cycle| cycle.drafted == depth);
            let took = median(own().filter_map(|cycle| Some(cycle.took()?.0 as f64)).collect());
            let measured = took.zip(dense).and_then(|(took, dense)| Some((ratio(took, dense)?, true)));
            let forward = point(depth.saturating_add(1));
            let by_curve = forward.zip(dense);
            let by_curve =
                by_curve.and_then(|(forward, dense)| Some((ratio(forward.0 as f64, dense)?, false)));
            let given = own().fold((0.0, 0.0), |(tokens, cycles), cycle| {
                (tokens + f64::from(cycle.accepted) + 1.0, cycles + 1.0)
            });
            let counted = ratio(given.0, given.1).map(|gives| (gives, true));
            let expected = acceptance.get(..depth as usize);
            let expected = expected.map(|acceptance| (expected_tokens(acceptance.iter().copied()), false));
            DepthRow { depth, forward, cost: measured.or(by_curve), gives: counted.or(expected) }
        };
        (0..=last).map(row).collect()
    }

    /// Acceptance at each position, as far as every one of them was put to the test.
    fn acceptance(&self) -> Vec<f64> {
        self.counters.positions.iter().map_while(Position::acceptance).collect()
    }

    /// The depth with the best rate, as the acceptance of all cycles and what depths cost predict.
    pub(super) fn best_depth(&self) -> Option<u32> {
        let rows = self.by_depth();
        let cost = |depth: u32| rows.iter().find(|row| row.depth == depth)?.cost.map(|cost| cost.0);
        best_depth(&self.acceptance(), cost).map(|(depth, _)| depth)
    }
}

/// Milliseconds that a reply took for each token.
pub(super) fn ms_per_token(request: &RequestFacts) -> Option<f64> {
    decode_ms_per_token(request.decode?.seconds(), request.output_tokens?)
}

/// Whether it decoded without a drafter, and how fast is known.
pub(super) fn is_dense(request: &RequestFacts) -> bool {
    let drafted = request.speculation.as_ref().is_some_and(|s| s.start.is_some() || !s.cycles.is_empty());
    !drafted && ms_per_token(request).is_some()
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn dense_step(model: &Model, request: &RequestFacts) -> Option<DenseStep> {
    let step = |nanos: f64, from| Some(DenseStep { nanos, from }).filter(|step| step.nanos > 0.0);
    let speculation = request.speculation.as_deref()?;
    let own = speculation.cycles.iter().filter(|cycle| cycle.drafted == 0);
    if let Some(nanos) = median(own.filter_map(|cycle| Some(cycle.took()?.0 as f64)).collect()) {
        return step(nanos, DenseSource::Own);
    }
    let of_curve = speculation.curve.iter().flat_map(|curve| &curve.points).find(|(width, _)| *width == 1);
    if let Some((_, nanos)) = of_curve {
        return step(nanos.0 as f64, DenseSource::Curve);
    }
    let dense = dense_counterpart(model, request)?;
    step(ms_per_token(dense)? * 1e6, DenseSource::Request(dense.turn))
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
