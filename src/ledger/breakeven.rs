//! Where sparse prefill pays, on this machine, as far as a run has measured it.
//!
//! A suffix of `U` tokens behind a checkpoint is computed sooner sparsely where
//!
//! `T_scorer(M) + LA·t_d + T_target(p·M) < T_target(U)`:
//!
//! the scorer's prefill of the window, its look-ahead, and the target's prefill of what is kept, against the target's prefill of everything. With a
//! prefix cache the dense route pays for `U` only, so sparse prefill loses wherever `U` is small. What a sparse request leaves for the ones after it
//! is no part of this: see the debt account.
//!
//! Each term is a curve fitted to the run's own times. A figure outside of what was measured says so, by its [`Basis`].

use std::ops::Range;

use serde::Serialize;

use super::Ledger;
use super::curve::{CurveFit, PrefillCurve};
use crate::event::{Nanos, Scored};

/// What an estimate rests on; the worst of its terms counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Within what the run measured.
    Measured,
    /// Shorter or deeper than anything the run measured.
    Extrapolated,
    /// The run did not take that route: the target's curve on the other one stands in, a token costing the same by its place in the pages.
    Borrowed,
}

/// Seconds, and what they rest on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// Seconds.
    pub seconds: f64,
    /// What they rest on.
    pub basis: Basis,
}

impl std::ops::Add for Estimate {
    type Output = Estimate;

    fn add(self, other: Estimate) -> Estimate {
        Estimate { seconds: self.seconds + other.seconds, basis: self.basis.max(other.basis) }
    }
}

/// The target's prefill on one route.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TargetCurve {
    /// The curve. On the sparse route depth is the place in the pages, which skipped tokens take no part in.
    pub curve: PrefillCurve,
    /// Tokens of the shortest prefill it is fitted to.
    pub shortest: u64,
    /// Whether it is the other route's.
    pub borrowed: bool,
}

impl TargetCurve {
    /// Time to compute `tokens` tokens behind `depth` others.
    pub fn estimate(&self, depth: u64, tokens: u64) -> Estimate {
        let basis =
            if self.borrowed { Basis::Borrowed } else { basis(&self.curve, self.shortest, depth, tokens) };
        Estimate { seconds: self.curve.seconds(depth, depth.saturating_add(tokens)), basis }
    }
}

/// What the scorer costs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ScorerCurve {
    /// Its prefill; depth counts from the window's origin.
    pub prefill: PrefillCurve,
    /// Tokens of the shortest prefill that is fitted to: a warm scoring has a short one.
    pub shortest: u64,
    /// Its look-ahead, by the depth of the tokens decoded; `None` where it decodes none.
    pub lookahead: Option<PrefillCurve>,
    /// Tokens it decodes a scoring, on average.
    pub lookahead_steps: f64,
    /// Seconds that weighing keys, pooling and aggregation take for each token of the window.
    pub importance_per_token: f64,
    /// Scorings it is fitted to.
    pub scorings: u64,
}

impl ScorerCurve {
    /// Time to score a window of `window` tokens of which `cached` were restored.
    pub fn estimate(&self, cached: u64, window: u64) -> Estimate {
        let tokens = window.saturating_sub(cached);
        let prefill = Estimate {
            seconds: self.prefill.seconds(cached, window),
            basis: basis(&self.prefill, self.shortest, cached, tokens),
        };
        prefill + Estimate { seconds: self.after_prefill(window), basis: Basis::Measured }
    }

    /// Look-ahead and scores over a window of `window` tokens.
    fn after_prefill(&self, window: u64) -> f64 {
        let a_step = self.lookahead.map_or(0.0, |curve| curve.per_token + curve.per_depth * window as f64);
        a_step * self.lookahead_steps + self.importance_per_token * window as f64
    }
}

fn basis(curve: &PrefillCurve, shortest: u64, depth: u64, tokens: u64) -> Basis {
    let within = tokens >= shortest && depth.saturating_add(tokens) <= curve.deepest;
    if within || tokens == 0 { Basis::Measured } else { Basis::Extrapolated }
}

/// Both routes for one suffix.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Gain {
    /// The dense prefill.
    pub dense: Estimate,
    /// The scorer, look-ahead and scores included.
    pub scorer: Estimate,
    /// The target's prefill of what is kept.
    pub kept: Estimate,
}

impl Gain {
    /// The sparse route: scorer and target.
    pub fn sparse(&self) -> Estimate {
        self.scorer + self.kept
    }

    /// Seconds by which the sparse route is sooner; negative where it is later.
    pub fn seconds(&self) -> f64 {
        self.dense.seconds - self.sparse().seconds
    }

    /// What the comparison rests on.
    pub fn basis(&self) -> Basis {
        self.dense.basis.max(self.sparse().basis)
    }
}

/// What a run has found about both routes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct BreakEven {
    /// The scorer.
    pub scorer: ScorerCurve,
    /// The target, dense.
    pub dense: TargetCurve,
    /// The target, sparse.
    pub sparse: TargetCurve,
    /// Last tokens of a prompt that are kept whatever the fraction.
    pub tail_tokens: u64,
}

impl BreakEven {
    /// Both routes for a suffix behind `checkpoint` of which `kept` tokens are computed on the sparse one, the protected prefix among them, after
    /// scoring a window of `window` tokens of which the scorer restored `draft_cached`.
    pub fn compare(&self, checkpoint: u64, suffix: u64, window: u64, draft_cached: u64, kept: u64) -> Gain {
        Gain {
            dense: self.dense.estimate(checkpoint, suffix),
            scorer: self.scorer.estimate(draft_cached, window),
            kept: self.sparse.estimate(checkpoint, kept),
        }
    }

    /// Both routes for `suffix` tokens behind `depth` others, nothing of them protected, scored from nothing, a fraction `keep` of them kept. `None`
    /// where `keep` is no fraction.
    pub fn gain(&self, suffix: u64, depth: u64, keep: f64) -> Option<Gain> {
        let kept = (suffix as f64 * fraction(keep)?).ceil() as u64;
        let kept = kept.max(suffix.min(self.tail_tokens));
        Some(self.compare(depth, suffix, suffix, 0, kept))
    }

    /// Seconds of [`BreakEven::gain`].
    pub fn gain_s(&self, suffix: u64, depth: u64, keep: f64) -> Option<f64> {
        Some(self.gain(suffix, depth, keep)?.seconds())
    }

    /// [`BreakEven::gain`] for a map: a row for every fraction of `keeps`, in it one for every suffix of `suffixes`.
    pub fn grid(&self, suffixes: &[u64], depth: u64, keeps: &[f64]) -> Vec<Vec<Option<Gain>>> {
        let row = |keep: &f64| suffixes.iter().map(|suffix| self.gain(*suffix, depth, *keep)).collect();
        keeps.iter().map(row).collect()
    }

    /// The suffix, tokens, above which the sparse route is sooner for a prompt of which nothing is cached; `None` where it never is.
    pub fn crossover(&self, keep: f64) -> Option<u64> {
        Some(self.wins(0, keep)?.start)
    }

    /// The suffixes behind `depth` tokens for which the sparse route is sooner: from a crossover on and, unless the scorer's attention costs more than
    /// what it saves of the target's, without end, which is `u64::MAX`.
    pub fn wins(&self, depth: u64, keep: f64) -> Option<Range<u64>> {
        let keep = fraction(keep)?;
        let (dense, sparse, scorer) = (&self.dense.curve, &self.sparse.curve, &self.scorer);
        let (step, depth) = (scorer.lookahead, depth as f64);
        let steps = scorer.lookahead_steps;
        // The gain is `square·s² + linear·s − fixed` for a suffix of `s` tokens.
        let square = (dense.per_depth - scorer.prefill.per_depth - keep * keep * sparse.per_depth) / 2.0;
        let linear = dense.per_token + dense.per_depth * depth
            - keep * (sparse.per_token + sparse.per_depth * depth)
            - scorer.prefill.per_token
            - scorer.importance_per_token
            - step.map_or(0.0, |curve| curve.per_depth) * steps;
        let fixed = step.map_or(0.0, |curve| curve.per_token) * steps;
        let (from, to) = positive_between(square, linear, fixed)?;
        let from = from.max(self.wins_over_the_tail(depth as u64, keep));
        let whole =
            |tokens: f64| if tokens < u64::MAX as f64 { tokens.ceil().max(1.0) as u64 } else { u64::MAX };
        let wins = whole(from)..to.map_or(u64::MAX, whole);
        (!wins.is_empty()).then_some(wins)
    }

    /// The suffix above which the sparse route can be sooner at all: while the tail is more than the fraction, that is what is kept.
    fn wins_over_the_tail(&self, depth: u64, keep: f64) -> f64 {
        let gains = |suffix: u64| self.gain_s(suffix, depth, keep).is_some_and(|gain| gain > 0.0);
        // From `high` on the fraction is what is kept, and the curve above speaks.
        let (mut low, mut high) = (self.tail_tokens, (self.tail_tokens as f64 / keep).ceil() as u64);
        while low < high {
            let middle = low.midpoint(high);
            if gains(middle) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low as f64
    }
}

fn fraction(keep: f64) -> Option<f64> {
    (keep > 0.0 && keep <= 1.0).then_some(keep)
}

/// Where `square·s² + linear·s > fixed` for `s > 0`, given `fixed ≥ 0`: from where, and up to where if it ends. `None` where nowhere.
fn positive_between(square: f64, linear: f64, fixed: f64) -> Option<(f64, Option<f64>)> {
    if square.abs() < f64::MIN_POSITIVE {
        return (linear > 0.0).then(|| (fixed / linear, None));
    }
    let discriminant = linear * linear + 4.0 * square * fixed;
    if discriminant <= 0.0 {
        // With an upward curve only nothing fixed and nothing linear come to this.
        return (square > 0.0).then_some((0.0, None));
    }
    // The two roots in forms that do not cancel, whichever sign `linear` has.
    let q = -(linear + discriminant.sqrt().copysign(linear)) / 2.0;
    let (a, b) = (q / square, -fixed / q);
    let (low, high) = (a.min(b), a.max(b));
    match square > 0.0 {
        true => Some((high.max(0.0), None)),
        false if high > 0.0 => Some((low.max(0.0), Some(high))),
        false => None,
    }
}

/// The fits of a run in progress.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct SparseCosts {
    scorer: RangedFit,
    lookahead: CurveFit,
    kept: RangedFit,
    steps: u64,
    window_tokens: u64,
    importance: f64,
    scorings: u64,
}

impl SparseCosts {
    /// Takes in a scoring.
    pub(super) fn scored(&mut self, scored: &Scored) {
        let window = scored.scored_tokens;
        self.scorer.add(
            scored.draft_cached_tokens,
            window.saturating_sub(scored.draft_cached_tokens),
            scored.prefill,
        );
        self.lookahead.add(window, window.saturating_add(scored.lookahead_steps), scored.lookahead);
        self.steps = self.steps.saturating_add(scored.lookahead_steps);
        self.window_tokens = self.window_tokens.saturating_add(window);
        self.importance += scored.importance.seconds();
        self.scorings = self.scorings.saturating_add(1);
    }

    /// Takes in that the target computed `tokens` chosen tokens behind `checkpoint` others.
    pub(super) fn prefilled(&mut self, checkpoint: u64, tokens: u64, took: Nanos) {
        self.kept.add(checkpoint, tokens, took);
    }

    fn scorer_curve(&self) -> Option<ScorerCurve> {
        let scorings = self.scorings.max(1) as f64;
        Some(ScorerCurve {
            prefill: self.scorer.fit.whole()?,
            shortest: self.scorer.shortest?,
            lookahead: self.lookahead.whole(),
            lookahead_steps: self.steps as f64 / scorings,
            importance_per_token: self.importance / self.window_tokens.max(1) as f64,
            scorings: self.scorings,
        })
    }
}

/// A fit that knows its shortest sample.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct RangedFit {
    fit: CurveFit,
    shortest: Option<u64>,
}

impl RangedFit {
    fn add(&mut self, from: u64, tokens: u64, took: Nanos) {
        if tokens > 0 {
            self.fit.add(from, from.saturating_add(tokens), took);
            self.shortest = Some(self.shortest.map_or(tokens, |shortest| shortest.min(tokens)));
        }
    }
}

impl Ledger {
    /// Where sparse prefill pays, by what this run has measured; `None` until something was scored.
    pub fn break_even(&self) -> Option<BreakEven> {
        self.break_even_against(self)
    }

    /// The same, with the dense route as another run on the same machine measured it, such as the dense lane of a comparison.
    pub fn break_even_against(&self, dense: &Ledger) -> Option<BreakEven> {
        let scorer = self.sparse_costs.scorer_curve()?;
        let kept = &self.sparse_costs.kept;
        let on = |curve, shortest| TargetCurve { curve, shortest, borrowed: false };
        let dense = dense.prefill_curve().or_else(|| self.prefill_curve()).map(|curve| on(curve, 0));
        let sparse = kept.fit.whole().zip(kept.shortest).map(|(curve, shortest)| on(curve, shortest));
        let lent = |curve: TargetCurve| TargetCurve { borrowed: true, ..curve };
        let facts = self.run().and_then(|run| run.specprefill.as_ref());
        Some(BreakEven {
            scorer,
            dense: dense.or(sparse.map(lent))?,
            sparse: sparse.or(dense.map(lent))?,
            tail_tokens: facts.and_then(|facts| facts.tail_tokens).unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn curve(per_token: f64, per_depth: f64) -> PrefillCurve {
        PrefillCurve { per_token, per_depth, samples: 4, deepest: 50_000 }
    }

    fn target(per_token: f64, per_depth: f64) -> TargetCurve {
        TargetCurve { curve: curve(per_token, per_depth), shortest: 1_000, borrowed: false }
    }

    fn scorer(per_token: f64, per_depth: f64, step: f64) -> ScorerCurve {
        ScorerCurve {
            prefill: curve(per_token, per_depth),
            shortest: 500,
            lookahead: (step > 0.0).then(|| curve(step, 0.0)),
            lookahead_steps: 8.0,
            importance_per_token: 0.0,
            scorings: 4,
        }
    }

    fn even(scorer: ScorerCurve, target: TargetCurve) -> BreakEven {
        BreakEven { scorer, dense: target, sparse: target, tail_tokens: 0 }
    }

    #[test]
    fn the_crossover_of_flat_curves_is_the_fixed_cost_over_the_saving() {
        // 8 steps of 50 ms against (1 - 0.2 - 0.1) ms a token.
        let flat = even(scorer(1e-4, 0.0, 0.05), target(1e-3, 0.0));
        assert_eq!(flat.crossover(0.2), Some(572));
        assert!(flat.gain_s(560, 0, 0.2).unwrap() < 0.0 && flat.gain_s(580, 0, 0.2).unwrap() > 0.0);
        // Nothing is saved where nine tenths are kept and the scorer costs a tenth.
        assert_eq!(flat.crossover(0.9), None);
        assert_eq!(flat.crossover(1.0), None);
        assert_eq!((flat.crossover(0.0), flat.crossover(1.1), flat.crossover(f64::NAN)), (None, None, None));
        assert_eq!(flat.gain_s(1000, 0, 0.0), None);
        // Without a look-ahead every suffix wins.
        assert_eq!(even(scorer(1e-4, 0.0, 0.0), target(1e-3, 0.0)).crossover(0.2), Some(1));
    }

    #[test]
    fn a_scorer_whose_attention_is_dearer_wins_over_a_range_only() {
        let steep = even(scorer(1e-5, 1e-6, 0.005), target(1e-3, 1e-8));
        let wins = steep.wins(0, 0.2).unwrap();
        assert!(steep.gain_s(wins.start + 2, 0, 0.2).unwrap() > 0.0);
        assert!(steep.gain_s(wins.start - 2, 0, 0.2).unwrap() < 0.0);
        assert!(steep.gain_s(wins.end - 2, 0, 0.2).unwrap() > 0.0);
        assert!(steep.gain_s(wins.end + 2, 0, 0.2).unwrap() < 0.0);
        // Where it is too dear it wins nowhere.
        assert_eq!(even(scorer(1e-2, 1e-6, 0.05), target(1e-3, 1e-8)).wins(0, 0.2), None);
    }

    #[test]
    fn figures_outside_of_what_was_measured_say_so() {
        let found = even(scorer(1e-4, 0.0, 0.05), target(1e-3, 0.0));
        let basis = |suffix, depth| found.gain(suffix, depth, 0.2).unwrap().basis();
        assert_eq!(basis(10_000, 0), Basis::Measured);
        // Kept are 980, fewer than in any sparse prefill of the run.
        assert_eq!(basis(4_900, 0), Basis::Extrapolated);
        assert_eq!(basis(10_000, 41_000), Basis::Extrapolated);
        let lent = BreakEven { dense: TargetCurve { borrowed: true, ..found.dense }, ..found };
        assert_eq!(lent.gain(10_000, 0, 0.2).unwrap().basis(), Basis::Borrowed);
        assert_eq!(lent.gain(10_000, 0, 0.2).unwrap().sparse().basis, Basis::Measured);
    }

    #[test]
    fn a_grid_has_a_row_for_every_fraction() {
        let found = even(scorer(1e-4, 0.0, 0.05), target(1e-3, 1e-8));
        let grid = found.grid(&[100, 10_000], 2_000, &[0.1, 0.5, 0.0]);
        assert_eq!(grid.len(), 3);
        assert_eq!(grid[1][1], found.gain(10_000, 2_000, 0.5));
        assert_eq!(grid[2], [None, None]);
    }

    /// The study's own figures: dense 4.78 ms a token, sparse 1.16 s + 0.86 ms a token in all, at a depth of 24,600: a crossover near 340 tokens
    /// (matched-tail, Oliver Yu, CC BY 4.0; extrapolated from suffixes of 2,100 tokens and more).
    #[test]
    fn the_published_crossover_comes_out_of_the_published_rates() {
        let study = BreakEven {
            tail_tokens: 0,
            scorer: ScorerCurve { lookahead_steps: 1.0, ..scorer(0.0, 0.0, 1.16) },
            dense: target(4.78e-3, 0.0),
            sparse: target(0.86e-3 / 0.2, 0.0),
        };
        let crossover = study.crossover(0.2).unwrap();
        assert!((290..=340).contains(&crossover), "{crossover}");
    }

    fn scored(cached: u64, window: u64, steps: u64, truth: &ScorerCurve) -> Scored {
        let nanos = Nanos::from_seconds;
        Scored {
            origin: 0,
            scored_tokens: window,
            draft_cached_tokens: cached,
            start: crate::event::ScorerStart::First,
            draft_stored_tokens: None,
            lookahead_steps: steps,
            prefill: nanos(truth.prefill.seconds(cached, window)),
            lookahead: nanos(truth.lookahead.unwrap().seconds(window, window + steps)),
            importance: nanos(truth.importance_per_token * window as f64),
            unit_tokens: 32,
            unit_scores: Vec::new(),
            selected_tokens: window / 5,
            kept: Vec::new(),
            dense_until: 0,
        }
    }

    #[test]
    fn costs_that_lie_on_curves_give_them_back() {
        let truth = ScorerCurve {
            importance_per_token: 1e-6,
            lookahead: Some(curve(0.02, 1e-7)),
            ..scorer(2e-4, 3e-9, 0.02)
        };
        let mut costs = SparseCosts::default();
        for (cached, window) in [(0, 8_000), (7_936, 9_000), (0, 20_000), (8_960, 12_000)] {
            costs.scored(&scored(cached, window, 8, &truth));
        }
        let found = costs.scorer_curve().unwrap();
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-3;
        assert!(near(found.prefill.per_token, 2e-4) && near(found.prefill.per_depth, 3e-9), "{found:?}");
        assert!(near(found.estimate(0, 16_000).seconds, truth.estimate(0, 16_000).seconds), "{found:?}");
        assert_eq!((found.shortest, found.prefill.deepest, found.scorings), (1_064, 20_000, 4));
        assert_eq!(found.lookahead_steps, 8.0);
        assert_eq!(found.estimate(0, 16_000).basis, Basis::Measured);
        assert_eq!(found.estimate(0, 24_000).basis, Basis::Extrapolated);
    }

    #[test]
    fn without_a_scoring_there_is_nothing_to_say() {
        assert_eq!(Ledger::new().break_even(), None);
    }

    proptest! {
        #[test]
        fn a_crossover_is_where_the_gain_turns(
            rates in prop::array::uniform4(0.0_f64..1e-2),
            slopes in prop::array::uniform3(0.0_f64..1e-6),
            depth in 0_u64..60_000,
            keep in 0.01_f64..=1.0,
        ) {
            let [dense, sparse, scoring, step] = rates;
            let found = BreakEven {
            tail_tokens: 0,
                scorer: scorer(scoring, slopes[0], step),
                dense: target(dense, slopes[1]),
                sparse: target(sparse, slopes[2]),
            };
            let gain = |suffix: u64| found.gain_s(suffix, depth, keep).unwrap();
            // What rounding kept tokens up to a whole one costs at most.
            let slack = sparse + slopes[2] * 1e7 + 1e-9;
            match found.wins(depth, keep) {
                None => prop_assert!([10, 1_000, 100_000, 10_000_000].iter().all(|s| gain(*s) <= slack * *s as f64)),
                Some(wins) => {
                    let inside = wins.start.saturating_add(wins.end.saturating_sub(wins.start) / 2).min(wins.start.saturating_mul(2));
                    if inside < 1_000_000_000 {
                        prop_assert!(gain(inside) >= -slack, "{} at {} of {:?}", gain(inside), inside, wins);
                    }
                    if (4..1_000_000_000).contains(&wins.start) {
                        prop_assert!(gain(wins.start / 2) <= slack, "{} before {:?}", gain(wins.start / 2), wins);
                    }
                }
            }
        }

        #[test]
        fn whatever_is_told_the_estimates_are_finite(
            told in prop::collection::vec(any::<(u64, u64, u64)>(), 1..6),
            times in prop::collection::vec(any::<u64>(), 6),
            suffix in any::<u64>(),
            keep in 0.0_f64..1.5,
        ) {
            let mut costs = SparseCosts::default();
            for (index, (cached, window, steps)) in told.into_iter().enumerate() {
                let truth = ScorerCurve { lookahead: Some(curve(0.0, 0.0)), ..scorer(0.0, 0.0, 1.0) };
                let mut scored = scored(0, 0, 0, &truth);
                (scored.draft_cached_tokens, scored.scored_tokens, scored.lookahead_steps) = (cached, window, steps);
                scored.prefill = Nanos(times[index]);
                scored.lookahead = Nanos(times[5 - index]);
                costs.scored(&scored);
                costs.prefilled(window, steps, Nanos(times[index]));
            }
            let ledger = Ledger { sparse_costs: costs, ..Ledger::default() };
            if let Some(found) = ledger.break_even() {
                prop_assert!(found.gain_s(suffix, suffix, keep).is_none_or(f64::is_finite));
                let _ = found.wins(suffix, keep);
            }
        }
    }

    #[test]
    fn a_suffix_that_is_kept_for_its_tail_wins_nothing() {
        let found = BreakEven { tail_tokens: 512, ..even(scorer(1e-4, 0.0, 0.05), target(1e-3, 0.0)) };
        assert!(found.gain_s(512, 0, 0.05).unwrap() < 0.0, "all of it is computed, and scored on top");
        let from = found.crossover(0.05).unwrap();
        assert!(from > 512, "{from}");
        assert!(
            found.gain_s(from, 0, 0.05).unwrap() > 0.0 && found.gain_s(from - 1, 0, 0.05).unwrap() <= 0.0
        );
    }
}
