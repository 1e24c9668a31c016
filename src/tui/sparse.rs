//! Sparse prefill in words: what is in effect and who said so, what was decided for a request, what its scorer did; and the key that
//! switches it.

use std::borrow::Cow;

use super::app::{Effect, Model};
use super::text::{about, thousands};
use crate::config::SparseOverride;
use crate::engine::Command;
use crate::event::{Effective, Nanos, Scored, ScorerStart, SetBy, SparseSettings, SparseVerdict};
use crate::ledger::{Ledger, RequestFacts};

/// What the words about sparse prefill mean, for the help.
pub static WORDS: &[(&str, &str)] = &[
    ("protected", "system prompt and tools: always computed, never dropped"),
    ("origin", "first scored token: the checkpoint, or the protected prefix's end"),
    ("scored", "tokens the scorer rates, in units kept or dropped as one"),
    ("cold rescore", "the origin moved, so the scorer's own cache was of no use"),
    ("kept", "█ all, ▒ some, · none of the tokens; ─ before the window"),
    ("draft", "■ restored by the scorer, ░ prefilled by it, ● stored up to here"),
    ("approx.", "text is mapped to tokens in proportion, within a segment"),
];

/// Why sparse prefill cannot be switched in the run in focus, if it cannot.
pub(super) fn obstacle_in_focus(model: &Model) -> Result<(), Cow<'static, str>> {
    if obstacle(model.ledger()).is_err() && is_scored_elsewhere(model) {
        return Err(no_scorer_here(model).into());
    }
    Ok(obstacle(model.ledger())?)
}

/// Whether another lane than the one in focus has a scorer.
pub(super) fn is_scored_elsewhere(model: &Model) -> bool {
    let has_scorer = |ledger: &Ledger| ledger.run().is_some_and(|run| run.specprefill.is_some());
    !has_scorer(model.ledger()) && model.runs.living().any(has_scorer)
}

/// That another lane has the scorer.
pub(super) fn no_scorer_here(model: &Model) -> String {
    let name = super::text::sanitise(model.runs.name(model.runs.focus())).replace('\n', " ");
    format!("lane {name} has no scorer; `.` puts another lane in focus")
}

/// Why sparse prefill cannot be switched, if it cannot.
pub(super) fn obstacle(ledger: &Ledger) -> Result<(), &'static str> {
    match ledger.run() {
        None => Err("the model is still loading"),
        Some(run) if run.specprefill.is_none() => {
            Err("no scorer is loaded: `--set specprefill.scorer=…` or `--set model.draft=…` names one")
        }
        Some(_) => Ok(()),
    }
}

/// The settings that the latest request was decided by.
fn latest(ledger: &Ledger) -> Option<&SparseSettings> {
    ledger.requests().rev().find_map(|request| Some(&request.admission.as_ref()?.settings))
}

/// Whether it would be on for the next request, as far as is known.
fn is_on(ledger: &Ledger) -> bool {
    let by_hand = ledger.sparse_by_hand().enabled;
    by_hand
        .or_else(|| latest(ledger).map(|settings| settings.enabled.value))
        .or_else(|| ledger.run()?.specprefill.as_ref()?.enabled)
        .unwrap_or(false)
}

/// Has it switched for the requests from here on, of lanes in the one in focus. What was set by hand beside it stays.
pub(super) fn toggle(model: &Model) -> Vec<Effect> {
    let ledger = model.ledger();
    let on = !is_on(ledger);
    let set = SparseOverride { enabled: Some(on), ..ledger.sparse_by_hand() };
    vec![model.send_to_focus(Command::SpecPrefill(set))]
}

/// What is told once it was switched: what holds from here on, or what stands against it.
pub(super) fn switched_words(ledger: &Ledger) -> String {
    let run = ledger.run().and_then(|run| run.specprefill.as_ref());
    let by_hand = ledger.sparse_by_hand();
    match by_hand.enabled {
        Some(true) if run.is_some_and(|run| run.enabled == Some(false)) => {
            "SpecPrefill stays off: `specprefill.enabled = false` of the model's settings beats everything"
                .into()
        }
        Some(true) => {
            let against = latest(ledger)
                .map(|settings| &settings.enabled)
                .filter(|enabled| !enabled.value && matches!(enabled.set_by, SetBy::Request));
            match against {
                Some(enabled) => format!(
                    "SpecPrefill on by hand; a request for which {} says off stays dense: `false` beats everything",
                    who(&enabled.set_by)
                ),
                None => format!("SpecPrefill on by hand from the next request on{}", knobs(ledger)),
            }
        }
        Some(false) => "SpecPrefill off by hand from the next request on: every suffix is computed".into(),
        None => match by_hand_words(by_hand) {
            Some(set) => format!("{set} by hand from the next request on; the switch as configured"),
            None => format!("SpecPrefill as configured from the next request on{}", knobs(ledger)),
        },
    }
}

/// `keep 0.30, threshold 8,192`: what of them is set by hand.
fn by_hand_words(by_hand: SparseOverride) -> Option<String> {
    let keep = by_hand.keep.map(|keep| format!("keep {}", fraction(keep)));
    let threshold = by_hand.threshold.map(|threshold| format!("threshold {}", thousands(threshold)));
    let set: Vec<String> = keep.into_iter().chain(threshold).collect();
    (!set.is_empty()).then(|| set.join(", "))
}

/// `: suffixes above 8,192 tokens, keep 0.20`.
fn knobs(ledger: &Ledger) -> String {
    let by_hand = ledger.sparse_by_hand();
    let run = ledger.run().and_then(|run| run.specprefill.as_ref());
    let settings = latest(ledger);
    let threshold = by_hand
        .threshold
        .or_else(|| settings.map(|settings| settings.threshold.value))
        .or_else(|| run.map(|run| run.threshold));
    let keep = by_hand
        .keep
        .or_else(|| settings.map(|settings| settings.keep.value))
        .or_else(|| run.map(|run| run.keep));
    match threshold.zip(keep) {
        Some((threshold, keep)) => {
            format!(": suffixes above {} tokens, keep {}", thousands(threshold), fraction(keep))
        }
        None => String::new(),
    }
}

/// Who set something, in a word.
pub(super) fn who(set_by: &SetBy) -> String {
    match set_by {
        SetBy::Default => "default".to_owned(),
        SetBy::Model => "model".to_owned(),
        SetBy::Transport(name) => super::text::sanitise(name).replace('\n', " "),
        SetBy::Request => "request".to_owned(),
        SetBy::Hand => "by hand".to_owned(),
    }
}

/// `0.20`, and as many digits more as a smaller fraction needs.
pub(super) fn fraction(value: f64) -> String {
    if value.is_finite() && value > 0.0 && value < 0.01 {
        format!("{value:.4}")
    } else {
        format!("{value:.2}")
    }
}

/// What the status line says: the settings of `request` or, before it was decided on, those that would hold for it; in as many words as
/// `room` has columns for. `None` where no scorer is loaded, or no words fit.
pub(super) fn status_words(ledger: &Ledger, request: Option<&RequestFacts>, room: usize) -> Option<String> {
    let (on, by, threshold, keep) = in_effect(ledger, request)?;
    let by = by.map_or_else(String::new, |by| format!(" ({by})"));
    let (threshold, keep) = (thousands(threshold), fraction(keep));
    let forms = if on {
        vec![
            format!("sparse >{threshold} keep {keep}{by}"),
            format!("sparse >{threshold}"),
            "sparse on".into(),
        ]
    } else {
        vec![format!("sparse off{by}"), "sparse off".into()]
    };
    forms.into_iter().find(|words| super::text::width(words) <= room)
}

/// Whether it is on, who said so, threshold and keep fraction.
fn in_effect(ledger: &Ledger, request: Option<&RequestFacts>) -> Option<(bool, Option<String>, u64, f64)> {
    let run = ledger.run()?.specprefill.as_ref()?;
    if let Some(settings) = request.and_then(|request| Some(&request.admission.as_ref()?.settings)) {
        let by = &settings.enabled.set_by;
        let by = (*by != SetBy::Default).then(|| who(by));
        return Some((settings.enabled.value, by, settings.threshold.value, settings.keep.value));
    }
    let by_hand = ledger.sparse_by_hand();
    let threshold = by_hand.threshold.unwrap_or(run.threshold);
    let keep = by_hand.keep.unwrap_or(run.keep);
    let (on, by) = match (run.enabled, by_hand.enabled) {
        (Some(false), _) => (false, Some(SetBy::Model)),
        (_, Some(by_hand)) => (by_hand, Some(SetBy::Hand)),
        (Some(true), None) => (true, Some(SetBy::Model)),
        (None, None) => (false, None),
    };
    Some((on, by.as_ref().map(who), threshold, keep))
}

/// What admission decided, in words.
pub(super) fn verdict_words(verdict: SparseVerdict) -> &'static str {
    match verdict {
        SparseVerdict::Sparse => "SPARSE",
        SparseVerdict::Off => "dense: it is off",
        SparseVerdict::ShortSuffix => "dense: suffix within the threshold",
        SparseVerdict::ShortBehindProtected => "dense: what is left behind the protected prefix is within it",
        SparseVerdict::DenseTurn => "dense: its turn to pay the debt (recovery.policy dense:N)",
    }
}

/// A setting and who set it: `keep 0.20 (model)`.
pub(super) fn setting<T>(name: &str, value: &str, effective: &Effective<T>) -> String {
    format!("{name} {value} ({})", who(&effective.set_by))
}

/// Why the scorer started where it did, and whether that is a loss. `price` is what the tokens cost that an unmoved origin would have
/// spared.
pub(super) fn start_words(scored: &Scored, price: Option<f64>) -> (String, bool) {
    let seconds = price.map_or_else(String::new, |price| format!(", {}", about(price)));
    match scored.start {
        ScorerStart::First => ("first scoring of this lane".to_owned(), false),
        ScorerStart::Warm => ("warm".to_owned(), false),
        ScorerStart::OriginMoved { from } => (
            format!(
                "COLD RESCORE: origin moved from {} to {}, {} tokens again{seconds}",
                thousands(from),
                thousands(scored.origin),
                thousands(scored.scored_tokens.saturating_sub(scored.draft_cached_tokens))
            ),
            true,
        ),
        ScorerStart::Diverged { shared } => {
            (format!("COLD RESCORE: the window differs after {} tokens{seconds}", thousands(shared)), true)
        }
        ScorerStart::CacheOff => ("cold: the cache is off".to_owned(), false),
        ScorerStart::Evicted => (format!("COLD RESCORE: its state was evicted{seconds}"), true),
    }
}

/// What a cold scoring cost, seconds: the scorer's prefill as it was measured. `None` for a warm one, and where nobody measured it.
pub(super) fn rescore_price(scored: &Scored) -> Option<f64> {
    let cold = !matches!(scored.start, ScorerStart::First | ScorerStart::Warm | ScorerStart::CacheOff);
    (cold && scored.prefill > Nanos(0)).then(|| scored.prefill.seconds())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_keep_the_digits_that_tell_them_apart() {
        assert_eq!(fraction(0.2), "0.20");
        assert_eq!(fraction(0.005), "0.0050");
        assert_eq!(fraction(1.0), "1.00");
        assert_eq!(fraction(f64::NAN), "NaN");
    }

    #[test]
    fn a_moved_origin_is_a_cold_rescore_with_its_price() {
        let scored = Scored {
            origin: 4_096,
            scored_tokens: 9_000,
            draft_cached_tokens: 0,
            start: ScorerStart::OriginMoved { from: 2_048 },
            draft_stored_tokens: None,
            lookahead_steps: 8,
            prefill: Nanos(1_500_000_000),
            lookahead: Nanos(0),
            importance: Nanos(0),
            unit_tokens: 32,
            unit_scores: Vec::new(),
            selected_tokens: 1_800,
            kept: Vec::new(),
            dense_until: 4_096,
        };
        let (words, cold) = start_words(&scored, rescore_price(&scored));
        assert!(cold);
        assert_eq!(words, "COLD RESCORE: origin moved from 2,048 to 4,096, 9,000 tokens again, ≈ 1.5 s");
        let warm = Scored { start: ScorerStart::Warm, ..scored };
        assert_eq!(rescore_price(&warm), None);
    }
}
