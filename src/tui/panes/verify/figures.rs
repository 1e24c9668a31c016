//! The figures the pane shows of a request, and where each comes from.

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
    /// Cycles that drafted so many tokens.
    pub(super) cycles: usize,
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
        let rate = self.gives?.0 / self.cost?.0;
        rate.is_finite().then_some(rate)
    }
}

/// What is known of a request's speculative decoding.
pub(in crate::tui) struct Figures<'a> {
    request: &'a RequestFacts,
    speculation: Option<&'a Speculation>,
    dense: Option<DenseStep>,
}

impl<'a> Figures<'a> {
    pub(in crate::tui) fn of(model: &'a Model, request: &'a RequestFacts) -> Figures<'a> {
        let speculation = request.speculation.as_deref();
        Figures { request, speculation, dense: dense_step(model, request) }
    }

    fn cycles(&self) -> &'a [Cycle] {
        self.speculation.map_or(&[], |speculation| &speculation.cycles)
    }

    /// The first cycle whose audit failed.
    pub(in crate::tui) fn failure(&self) -> Option<(&'a Cycle, &'a Audit)> {
        self.cycles()
            .iter()
            .find_map(|cycle| Some((cycle, cycle.audit.as_ref().filter(|audit| !audit.passed)?)))
    }

    pub(super) fn dense(&self) -> Option<DenseStep> {
        self.dense
    }

    pub(super) fn dense_nanos(&self) -> Option<f64> {
        self.dense.map(|dense| dense.nanos)
    }

    /// What a token took on average in a reply that nothing drafted for.
    pub(super) fn own_dense_step(&self) -> Option<Nanos> {
        per_token(self.request).map(|nanos| Nanos(nanos as u64))
    }

    pub(in crate::tui) fn accepted(&self) -> u64 {
        self.cycles().iter().map(|cycle| u64::from(cycle.accepted)).sum()
    }

    pub(super) fn drafted(&self) -> u64 {
        self.cycles().iter().map(|cycle| u64::from(cycle.drafted)).sum()
    }

    pub(super) fn tested(&self) -> u64 {
        self.cycles().iter().map(|cycle| u64::from(cycle.tested)).sum()
    }

    /// `(accepted + cycles) / cycles`
    pub(in crate::tui) fn tokens_per_cycle(&self) -> Option<f64> {
        let cycles = self.cycles().len();
        (cycles > 0).then(|| (self.accepted() as f64 + cycles as f64) / cycles as f64)
    }

    /// A cycle in dense steps.
    pub(in crate::tui) fn cost(&self) -> Option<f64> {
        let dense = self.dense?.nanos;
        let cycles = self.cycles();
        let took: Option<f64> = cycles.iter().map(|cycle| Some(cycle.took()?.0 as f64)).sum();
        took.filter(|_| !cycles.is_empty()).map(|took| took / cycles.len() as f64 / dense)
    }

    pub(super) fn cycle_count(&self) -> usize {
        self.cycles().len()
    }

    /// `(accepted + cycles) / output_tokens`, of the reply as far as it has come.
    pub(in crate::tui) fn share(&self) -> Option<f64> {
        let tokens = self.request.output_tokens.unwrap_or(self.request.tokens.len() as u64);
        let given = self.accepted().saturating_add(self.cycles().len() as u64);
        (tokens > 0 && given > 0).then(|| (given as f64 / tokens as f64).min(1.0))
    }

    /// What the accounting predicts.
    pub(super) fn predicted(&self) -> Option<f64> {
        let (gives, cost, share) = (self.tokens_per_cycle()?, self.cost()?, self.share()?);
        let predicted = 1.0 / (share / (gives / cost) + 1.0 - share);
        predicted.is_finite().then_some(predicted)
    }

    /// What a dense reply shows: how much faster a token was, and the dense request's turn.
    pub(super) fn measured(&self) -> Option<(f64, u32)> {
        let DenseSource::Request(turn) = self.dense?.from else { return None };
        let own = per_token(self.request).filter(|_| self.shared().is_none())?;
        Some((self.dense?.nanos / own, turn))
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

    /// Acceptance by position, given that the positions before were accepted: tested and accepted.
    pub(super) fn positions(&self) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        for cycle in self.cycles() {
            for at in 0..cycle.tested.min(64) {
                if out.len() <= at as usize {
                    out.push((0u64, 0u64));
                }
                out[at as usize].0 += 1;
                out[at as usize].1 += u64::from(at < cycle.accepted);
            }
        }
        out
    }

    /// Cost and gain by depth: as cycles of that depth showed, otherwise by the curve and by acceptance at each position.
    pub(super) fn by_depth(&self) -> Vec<DepthRow> {
        const MOST: u32 = 16;
        let curve = self.speculation.and_then(|speculation| speculation.curve.as_ref());
        let point = |width: u32| {
            curve.and_then(|curve| curve.points.iter().find(|point| point.0 == width)).map(|point| point.1)
        };
        let depth_max = self.speculation.and_then(|s| s.start.as_ref()).map_or(0, |start| start.depth_max);
        let last = depth_max.max(if curve.is_some() { 7 } else { 0 }).min(MOST);
        let positions = self.positions();
        let mut expected = Some(1.0);
        let mut reached = 1.0;
        let row = |depth: u32| {
            if depth > 0 {
                let position = positions.get(depth as usize - 1).filter(|position| position.0 > 0);
                expected = expected.zip(position).map(|(sum, (tested, accepted))| {
                    reached *= *accepted as f64 / *tested as f64;
                    sum + reached
                });
            }
            let own: Vec<&Cycle> = self.cycles().iter().filter(|cycle| cycle.drafted == depth).collect();
            let mean = |values: Vec<f64>| {
                let count = values.len() as f64;
                (count > 0.0).then(|| values.into_iter().sum::<f64>() / count)
            };
            let took = mean(own.iter().filter_map(|cycle| Some(cycle.took()?.0 as f64)).collect());
            let dense = self.dense_nanos();
            let measured = took.zip(dense).map(|(took, dense)| (took / dense, true));
            let predicted = point(depth + 1).zip(dense).map(|(point, dense)| (point.0 as f64 / dense, false));
            let counted = mean(own.iter().map(|cycle| f64::from(cycle.accepted) + 1.0).collect());
            DepthRow {
                depth,
                cycles: own.len(),
                forward: point(depth + 1),
                cost: measured.or(predicted),
                gives: counted.map(|gives| (gives, true)).or(expected.map(|gives| (gives, false))),
            }
        };
        (0..=last).map(row).collect()
    }

    /// The depth with the best rate.
    pub(super) fn best_depth(&self) -> Option<u32> {
        let rates = self.by_depth().into_iter().filter_map(|row| Some((row.depth, row.rate()?)));
        rates.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(depth, _)| depth)
    }
}

fn per_token(request: &RequestFacts) -> Option<f64> {
    let tokens = request.output_tokens?.checked_sub(1).filter(|tokens| *tokens > 0)?;
    Some(request.decode?.0 as f64 / tokens as f64).filter(|nanos| *nanos > 0.0)
}

fn dense_step(model: &Model, request: &RequestFacts) -> Option<DenseStep> {
    let speculation = request.speculation.as_deref()?;
    let own: Vec<u64> = speculation
        .cycles
        .iter()
        .filter(|cycle| cycle.drafted == 0)
        .filter_map(|cycle| Some(cycle.took()?.0))
        .collect();
    if !own.is_empty() {
        let nanos = own.iter().map(|nanos| *nanos as f64).sum::<f64>() / own.len() as f64;
        return Some(DenseStep { nanos, from: DenseSource::Own }).filter(|dense| dense.nanos > 0.0);
    }
    let of_curve = speculation.curve.iter().flat_map(|curve| &curve.points).find(|(width, _)| *width == 1);
    if let Some((_, nanos)) = of_curve {
        return Some(DenseStep { nanos: nanos.0 as f64, from: DenseSource::Curve }).filter(|d| d.nanos > 0.0);
    }
    let dense = model
        .ledger()
        .requests()
        .rev()
        .find(|other| other.speculation.is_none() && per_token(other).is_some())?;
    Some(DenseStep { nanos: per_token(dense)?, from: DenseSource::Request(dense.turn) })
}
