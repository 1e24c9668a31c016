//! Block-by-block recovery over gaps, slices, adoption grains and budgets.

use serde::Serialize;

use super::{Ground, gap, position, race};
use crate::cli::Failure;
use crate::cli::progress::Progress;
use crate::compare::LaneSpec;
use crate::config::Override;
use crate::event::RunFacts;
use crate::recovery::job::Mode;

/// The places of a cell's lanes.
const SPARSE: usize = 0;
const RECOVERING: usize = 1;

/// All cells, in the order of the options: gaps, then slices, grains, budgets.
#[derive(Debug, Serialize)]
pub(super) struct Grid {
    /// Tokens of a block, which no slice goes beyond.
    pub(super) block_tokens: Option<u64>,
    pub(super) cells: Vec<GridCell>,
}

/// One combination.
#[derive(Debug, Clone, Serialize)]
pub(super) struct GridCell {
    /// Gap before each request, seconds.
    pub(super) idle_s: f64,
    /// Tokens of a slice at most.
    pub(super) slice_tokens: u64,
    /// Blocks that a request adopts at a time.
    pub(super) adoption_blocks: u64,
    /// Share of a window that slices may take, percent.
    pub(super) budget_pct: f64,
    /// Time to the first token, summed over the requests, seconds.
    pub(super) ttft_sum_s: Option<f64>,
    /// The same of the sparse lane without recovery that ran beside it.
    pub(super) sparse_ttft_sum_s: Option<f64>,
    /// Of the last request's whole blocks, tokens that were restorable when it had ended.
    pub(super) committed_tokens: Option<u64>,
    /// Those blocks, tokens.
    pub(super) target_tokens: Option<u64>,
    /// Publications.
    pub(super) publications: u64,
    /// Compute time of recovery, seconds; in no sum of times above.
    pub(super) service_s: f64,
    /// That as a share of all time, computing and idle: what the budget caps.
    pub(super) service_share: Option<f64>,
    /// That as a share of the gaps; null where there are none.
    pub(super) idle_used: Option<f64>,
    /// Requests that found a slice in their way.
    pub(super) collisions: u64,
    /// The longest that one waited for it, seconds; null where none did.
    pub(super) worst_delay_s: Option<f64>,
    /// What requests took less than in the sparse lane, delays included, less recovery's compute, seconds.
    pub(super) net_return_s: Option<f64>,
}

/// Runs every cell, turn by turn beside the sparse lane without recovery: a machine that others share drifts between two runs by more than what
/// the cells differ by.
pub(super) fn measure(
    ground: &Ground<'_>,
    progress: &mut Progress,
    facts: &mut Option<RunFacts>,
) -> Result<Grid, Failure> {
    let options = ground.options;
    let of_gap = options.slice.len() * options.grain.len() * options.budget.len();
    let (mut cells, mut block_tokens) = (Vec::new(), None);
    for idle in options.idle.iter().copied() {
        for (slice, grain, budget) in combinations(&options.slice, &options.grain, &options.budget) {
            let set = |key: &str, value: i64| Override::new("bench recovery", key, value);
            let mut further = gap(idle);
            further.extend([
                set("recovery.slice_tokens", slice as i64),
                set("recovery.adoption_blocks", grain as i64),
                Override::new("bench recovery", "recovery.budget_pct", budget),
            ]);
            let [sparse, recovering] = [LaneSpec::sparse(), LaneSpec::recovering(Mode::Progressive)];
            let lanes = [ground.config(&sparse, gap(idle))?, ground.config(&recovering, further)?];
            let done = cells.len();
            let of = of_gap * options.idle.len();
            let run = race(&lanes, &ground.session, 1, |run| {
                progress.show(|| format!("cell {} of {of}, {}", done + 1, position(run)));
            })?;
            let mut cell = GridCell {
                idle_s: idle,
                slice_tokens: slice as u64,
                adoption_blocks: grain as u64,
                budget_pct: budget,
                ..GridCell::default()
            };
            cell.fill(&run);
            let told = run.ledger_of(0, SPARSE).and_then(|ledger| ledger.run());
            block_tokens = told.map(|run| run.block_tokens);
            *facts = facts.take().or_else(|| told.cloned());
            cells.push(cell);
        }
    }
    Ok(Grid { block_tokens, cells })
}

fn combinations(slices: &[usize], grains: &[usize], budgets: &[f64]) -> Vec<(usize, usize, f64)> {
    let mut all = Vec::new();
    for slice in slices {
        for grain in grains {
            all.extend(budgets.iter().map(|budget| (*slice, *grain, *budget)));
        }
    }
    all
}

impl Default for GridCell {
    fn default() -> GridCell {
        GridCell {
            idle_s: 0.0,
            slice_tokens: 0,
            adoption_blocks: 0,
            budget_pct: 0.0,
            ttft_sum_s: None,
            sparse_ttft_sum_s: None,
            committed_tokens: None,
            target_tokens: None,
            publications: 0,
            service_s: 0.0,
            service_share: None,
            idle_used: None,
            collisions: 0,
            worst_delay_s: None,
            net_return_s: None,
        }
    }
}

impl GridCell {
    /// What the run of its lanes told.
    fn fill(&mut self, run: &crate::compare::Comparison) {
        let totals = super::lanes::totals(run);
        let ttft_sum_s = |lane: usize| totals[lane].ttft_sum_s.map(|sum| sum.median);
        (self.sparse_ttft_sum_s, self.ttft_sum_s) = (ttft_sum_s(SPARSE), ttft_sum_s(RECOVERING));
        if let Some(recovery) = &totals[RECOVERING].recovery {
            (self.committed_tokens, self.target_tokens) = (recovery.committed_tokens, recovery.target_tokens);
            self.publications = recovery.publications_sum;
            self.service_s = recovery.service_sum_s.map_or(0.0, |sum| sum.median);
            self.idle_used = recovery.idle_used;
        }
        if let Some(ledger) = run.ledger_of(0, RECOVERING) {
            let collisions = ledger.recovery().collisions();
            self.collisions = collisions.len() as u64;
            self.worst_delay_s = collisions.iter().map(|c| c.delayed.seconds()).max_by(f64::total_cmp);
            let all = ledger.now().seconds();
            self.service_share = (all > 0.0).then(|| self.service_s / all);
        }
        self.net_return_s = self.lead_s().map(|lead| lead - self.service_s);
    }

    /// By how much less time the requests took than in the sparse lane.
    pub(super) fn lead_s(&self) -> Option<f64> {
        Some(self.sparse_ttft_sum_s? - self.ttft_sum_s?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_is_a_cell_budgets_innermost() {
        let all = combinations(&[256, 512], &[1, 4], &[10.0, 100.0]);
        assert_eq!(all.len(), 8);
        assert_eq!((all[0], all[1], all[2]), ((256, 1, 10.0), (256, 1, 100.0), (256, 4, 10.0)));
        assert_eq!(all[7], (512, 4, 100.0));
    }
}
