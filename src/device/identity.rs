//! What changes when the same tokens are computed by another route.
//!
//! A [`Route`] is how a sequence of tokens is cut into forwards and what else happens to it on the way. A device promises something
//! about routes ([`Identity`]); [`measure`] finds out what is so, on any [`Executor`], at two levels that do not imply each
//! other: logits (tokens given, compared at every position) and greedy text (tokens chosen, compared until they part).
//!
//! The reference is the engine's own route: the prompt in chunks of `scheduler.chunk_tokens`, then one token a forward.

mod compare;
mod rig;
mod text;

use serde::Serialize;

use super::{DeviceError, Executor};
use crate::event::Identity;
use compare::{Reference, Tally};
use rig::{Obstacle, Rig};

pub use compare::Comparison;
pub use text::{Drafts, Finding, Parting, TextRoute, TextRun};

/// The largest difference that still counts as closeness in f32, in standard deviations of the logits: what the parity folders are held to.
pub const TOLERANCE_F32: f64 = 2e-3;
/// The same where activations have 16 bits. A logit between 16 and 32 then comes in steps of an eighth, and two or three such
/// steps are about this much.
pub const TOLERANCE_16_BIT: f64 = 0.25;

/// How a sequence is computed. Only what is named differs from the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// The reference once more.
    Again,
    /// The prompt in chunks of another size.
    Chunks(usize),
    /// The prompt in one forward.
    Whole,
    /// Every forward also computes this many other sequences.
    Beside(usize),
    /// After the prompt, this many tokens a forward, as a verify cycle computes them.
    Verify(usize),
    /// Pages, and the snapshot of recurrent state, up to this position come from another sequence.
    Restore(usize),
    /// After the prompt, drafts that turn out wrong are taken back.
    TakeBack {
        /// Tokens of a draft, all computed in one revocable forward.
        drafted: usize,
        /// How many of them, the first ones, turn out right and are kept.
        kept: usize,
    },
}

impl Route {
    /// What is different about it, in at most 22 columns.
    pub fn label(self) -> String {
        match self {
            Route::Again => "the same again".to_owned(),
            Route::Chunks(1) => "prefill one by one".to_owned(),
            Route::Chunks(tokens) => format!("prefill {tokens} at a time"),
            Route::Whole => "prefill all at once".to_owned(),
            Route::Beside(1) => "beside 1 other".to_owned(),
            Route::Beside(others) => format!("beside {others} others"),
            Route::Verify(rows) => format!("verify {rows} rows at once"),
            Route::Restore(position) => format!("restore at {position}"),
            Route::TakeBack { drafted, kept } => format!("take back {} of {drafted}", drafted - kept),
        }
    }

    /// What is different about it, in a word.
    pub fn kind(self) -> &'static str {
        match self {
            Route::Again => "repeat",
            Route::Chunks(_) | Route::Whole => "prefill",
            Route::Beside(_) => "batch",
            Route::Verify(_) => "verify",
            Route::Restore(_) => "restore",
            Route::TakeBack { .. } => "rollback",
        }
    }
}

/// What to measure with.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    /// The sequence: a prompt and, at its end, [`Plan::decoded`] tokens that are computed after it.
    pub tokens: &'a [u32],
    /// How many of `tokens` come after the prompt; fewer than all.
    pub decoded: usize,
    /// Tokens of a prefill chunk of the reference.
    pub chunk_tokens: usize,
    /// Tokens of greedy text; 0 leaves the second part out.
    pub generated: usize,
    /// Bytes of reference logits to hold. Where all positions are more than that, those after the prompt and a sample of the prompt's
    /// are compared. A forward whose logits would take more gives only its last row.
    pub logit_bytes: usize,
}

impl Plan<'_> {
    /// Tokens of the prompt.
    pub fn prompt(&self) -> usize {
        self.tokens.len() - self.decoded
    }
}

/// Positions that a plan of so many tokens takes. A draft reaches beyond what is kept of it.
pub fn positions(tokens: usize, decoded: usize, generated: usize) -> usize {
    const DRAFT: usize = 8;
    tokens.max((tokens - decoded.min(tokens)).saturating_add(generated)).saturating_add(DRAFT)
}

/// What one route showed.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteRun {
    /// The route.
    pub route: Route,
    /// How it compares with the reference; or why it was not measured.
    pub outcome: Result<Comparison, String>,
}

/// Everything measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// What the device promises.
    pub identity: Identity,
    /// The largest difference that counts as closeness, standard deviations of the logits; `None` where closeness is not enough.
    pub tolerance: Option<f64>,
    /// Standard deviation of the reference's logits; the unit of every difference and margin.
    pub deviation: f64,
    /// Positions whose logits were held for comparison.
    pub positions: usize,
    /// The routes, the repetition first.
    pub routes: Vec<RouteRun>,
    /// Greedy texts, by finding.
    pub texts: Vec<TextRun>,
    /// Different sets of logits among the reference and the routes that gave all of its positions.
    pub distinct_logits: usize,
    /// Different texts among all runs; `None` where there was no text to compare.
    pub distinct_texts: Option<usize>,
}

/// What a row amounts to.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The same bits: logits and stored state.
    SameBits,
    /// Closer than the tolerance.
    Within,
    /// Neither.
    Differs,
}

impl Measured {
    /// What a comparison amounts to on this device.
    pub fn verdict(&self, comparison: &Comparison) -> Verdict {
        if comparison.same_bits && comparison.state_same {
            return Verdict::SameBits;
        }
        let close = |bound| comparison.not_finite == 0 && comparison.largest <= bound;
        if self.tolerance.is_some_and(close) { Verdict::Within } else { Verdict::Differs }
    }

    /// Routes that were measured, with their comparisons.
    pub fn compared(&self) -> impl Iterator<Item = (Route, &Comparison)> {
        self.routes.iter().filter_map(|run| Some((run.route, run.outcome.as_ref().ok()?)))
    }

    /// Whether everything measured is as the device promises. Only a device that promises bits promises a text.
    pub fn promise_kept(&self) -> bool {
        let logits = self.compared().all(|(_, comparison)| self.verdict(comparison) != Verdict::Differs);
        let same_text = |run: &TextRun| !matches!(run.outcome, Ok(Some(_)));
        logits && (self.identity == Identity::Tolerance || self.texts.iter().all(same_text))
    }
}

/// The routes to compare with the reference.
fn routes(plan: &Plan<'_>, page_tokens: usize) -> Vec<Route> {
    let prompt = plan.prompt();
    let chunks = [1, 7, 64].into_iter().filter(|size| *size < prompt && *size != plan.chunk_tokens);
    let whole = (plan.chunk_tokens < prompt).then_some(Route::Whole);
    let mut all = vec![Route::Again];
    all.extend(chunks.map(Route::Chunks).chain(whole));
    all.extend([1, 3].map(Route::Beside));
    all.extend([2, 4, 8].map(Route::Verify));
    all.extend(boundaries(prompt, page_tokens).into_iter().map(Route::Restore));
    all.extend([(6, 3), (4, 0)].map(|(drafted, kept)| Route::TakeBack { drafted, kept }));
    all
}

/// The first, a middle and the last block boundary from which something of the prompt is left to compute.
fn boundaries(prompt: usize, page_tokens: usize) -> Vec<usize> {
    let last = prompt.saturating_sub(1) / page_tokens;
    // One that is not there is a row too, which says so.
    let mut blocks = vec![1, last.div_ceil(2).max(1), last.max(1)];
    blocks.dedup();
    blocks.into_iter().map(|block| block * page_tokens).collect()
}

/// The largest difference that counts as closeness on such a device.
fn tolerance(identity: Identity, precision: &str) -> Option<f64> {
    let bound = if precision == "f32" { TOLERANCE_F32 } else { TOLERANCE_16_BIT };
    (identity == Identity::Tolerance).then_some(bound)
}

/// Computes `plan.tokens` by every route, and greedy texts after its prompt. `watch` is told, before each forward, what is
/// measured and at which position it stands.
///
/// # Errors
///
/// When the reference cannot be computed, or a call breaks the device's contract. A route for which memory does not suffice is a
/// row that says so.
pub fn measure(
    executor: &mut dyn Executor,
    plan: &Plan<'_>,
    watch: &mut dyn FnMut(&str, usize),
) -> Result<Measured, DeviceError> {
    let facts = executor.facts().clone();
    if plan.decoded >= plan.tokens.len() || plan.chunk_tokens == 0 {
        let problem = format!("{} of {} tokens leave no prompt", plan.decoded, plan.tokens.len());
        return Err(DeviceError::Contract(problem));
    }
    let mut rig = Rig::new(executor, plan, watch)?;
    let mut reference = Reference::new(plan, facts.vocab);
    let state = rig.reference(&mut |position, row| reference.keep(position, row))?;
    let reference = reference.finish(state);
    let mut runs = Vec::new();
    for route in routes(plan, facts.page_tokens) {
        let mut tally = Tally::new(&reference);
        let outcome = match rig.run(route, &mut |position, row| tally.add(position, row)) {
            Ok(state) => Ok(tally.finish(state)),
            Err(Obstacle::Device(error)) => return Err(error),
            Err(Obstacle::Unmeasured(why)) => Err(why),
        };
        runs.push(RouteRun { route, outcome });
    }
    let (texts, distinct_texts) = text::measure(&mut rig, reference.deviation())?;
    let complete = runs.iter().filter_map(|run| run.outcome.as_ref().ok()?.digest);
    let mut digests: Vec<[u8; 32]> = complete.chain([reference.digest()]).collect();
    digests.sort_unstable();
    digests.dedup();
    Ok(Measured {
        identity: facts.identity,
        tolerance: tolerance(facts.identity, facts.precision),
        deviation: reference.deviation(),
        positions: reference.positions(),
        routes: runs,
        texts,
        distinct_logits: digests.len(),
        distinct_texts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restores_are_at_the_first_a_middle_and_the_last_boundary_that_leaves_something() {
        assert_eq!(boundaries(300, 64), [64, 128, 256]);
        assert_eq!(boundaries(256, 64), [64, 128, 192]);
        assert_eq!(boundaries(65, 64), [64]);
        assert_eq!(boundaries(64, 64), [64], "a row that says it was not measured");
    }

    #[test]
    fn a_label_fits_its_column() {
        let plan =
            Plan { tokens: &[0; 20_000], decoded: 32, chunk_tokens: 256, generated: 0, logit_bytes: 0 };
        let routes = routes(&plan, 256);
        assert_eq!(routes.len(), 15);
        for route in routes {
            assert!(route.label().chars().count() <= 22, "{}", route.label());
        }
    }

    #[test]
    fn closeness_is_only_enough_where_it_is_all_that_is_promised() {
        assert_eq!(tolerance(Identity::Bitwise, "f32"), None);
        assert_eq!(tolerance(Identity::Simulated, "none"), None);
        assert_eq!(tolerance(Identity::Tolerance, "f32"), Some(TOLERANCE_F32));
        assert_eq!(tolerance(Identity::Tolerance, "bf16"), Some(TOLERANCE_16_BIT));
    }
}
