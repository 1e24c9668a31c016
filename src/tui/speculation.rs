//! Speculative decoding in words: what is in effect and from when on; and the keys that set drafter, depth and controller, have the verify
//! curve measured, and choose requests for the calculator.

use std::borrow::Cow;

use super::app::{Effect, Model};
use super::panes::verify::{Figures, shared_forwards};
use super::text::sanitise;
use crate::config::{ControllerKind, DrafterKind, SpeculationConfig, SpeculationOverride};
use crate::engine::Command;
use crate::event::{DepthReason, SpeculationFacts};
use crate::ledger::{Ledger, RequestFacts};

/// What the words about speculative decoding mean, for the help.
pub static WORDS: &[(&str, &str)] = &[
    ("verify cycle", "tokens drafted, one forward over them, the accepted ones and one more emitted"),
    ("dense step", "an ordinary forward of one token: what costs are counted in"),
    ("break-even", "tokens per cycle must exceed the cost of a cycle in dense steps"),
    ("share", "of the reply's tokens, those that cycles gave; the rest was parked"),
    ("parked", "speculation lost for too long: ordinary steps until the cooldown is over"),
    ("● ○", "accepted drafted token, the target's own; each at its place in dense steps"),
    ("predicted", "by tokens per cycle, cost and share; measured: against a dense reply"),
    ("oracle", "the depths somebody would choose who knew what is accepted: the bound"),
];

/// Why speculative decoding cannot be set by hand, if it cannot.
pub(super) fn obstacle(ledger: &Ledger) -> Result<(), &'static str> {
    let Some(run) = ledger.run() else { return Err("the model is still loading") };
    match &run.speculation {
        Some(_) => Ok(()),
        None => Err("this engine tells of no drafter that is loaded"),
    }
}

fn facts(ledger: &Ledger) -> Option<&SpeculationFacts> {
    ledger.run()?.speculation.as_ref()
}

/// What the next request would decode by, as far as is known: what was set by hand, what the latest request had, what the run has.
struct Next {
    drafter: DrafterKind,
    depth: u32,
    controller: ControllerKind,
}

fn next(ledger: &Ledger) -> Option<Next> {
    let (run, by_hand) = (facts(ledger)?, ledger.speculation_by_hand());
    let latest = ledger.requests().rev().find_map(|request| request.speculation.as_ref()?.start.as_ref());
    let of_latest =
        |by: usize| latest.filter(|start| matches!(start.set_by[by], crate::event::SetBy::Transport(_)));
    let drafter = by_hand.drafter.or(of_latest(0).map(|start| start.drafter)).unwrap_or(run.drafter);
    let depth = by_hand.depth.or(of_latest(1).map(|start| start.depth_max)).unwrap_or(run.depth_max);
    let controller = by_hand.controller.or(of_latest(2).map(|start| start.controller));
    Some(Next { drafter, depth, controller: controller.unwrap_or(run.controller) })
}

/// Sets the next of the loaded drafters, none among them, of lanes in the one in focus. What else was set by hand stays.
pub(super) fn next_drafter(model: &Model) -> Vec<Effect> {
    let ledger = model.ledger();
    let Some((run, now)) = facts(ledger).zip(next(ledger)) else { return Vec::new() };
    let choices = choices(run);
    let at = choices.iter().position(|drafter| *drafter == now.drafter).map_or(0, |at| at + 1);
    let drafter = choices[at % choices.len()];
    set(model, SpeculationOverride { drafter: Some(drafter), ..ledger.speculation_by_hand() })
}

/// None, then those that are loaded.
fn choices(run: &SpeculationFacts) -> Vec<DrafterKind> {
    let loaded = run.loaded.iter().copied().filter(|drafter| *drafter != DrafterKind::None);
    std::iter::once(DrafterKind::None).chain(loaded).collect()
}

/// Why the depth cannot change by `by`, if it cannot.
pub(super) fn depth_obstacle(ledger: &Ledger, by: i32) -> Result<(), &'static str> {
    match next(ledger).and_then(|now| depth_after(now.depth, by)) {
        Some(_) => Ok(()),
        None if by > 0 => Err("this is the greatest depth"),
        None => Err("a depth of 1 is the least; `d` sets no drafter"),
    }
}

fn depth_after(depth: u32, by: i32) -> Option<u32> {
    let depth = depth.checked_add_signed(by)?;
    (1..=SpeculationConfig::MAX_DEPTH).contains(&depth).then_some(depth)
}

/// Changes the greatest depth by `by`.
pub(super) fn deepen(model: &Model, by: i32) -> Vec<Effect> {
    let ledger = model.ledger();
    let depth = next(ledger).and_then(|now| depth_after(now.depth, by));
    if depth.is_none() {
        return Vec::new();
    }
    set(model, SpeculationOverride { depth, ..ledger.speculation_by_hand() })
}

/// Has the other controller choose the depth.
pub(super) fn toggle_controller(model: &Model) -> Vec<Effect> {
    let ledger = model.ledger();
    let Some(now) = next(ledger) else { return Vec::new() };
    let controller = match now.controller {
        ControllerKind::Fixed => ControllerKind::Adaptive,
        ControllerKind::Adaptive => ControllerKind::Fixed,
    };
    set(model, SpeculationOverride { controller: Some(controller), ..ledger.speculation_by_hand() })
}

fn set(model: &Model, by_hand: SpeculationOverride) -> Vec<Effect> {
    vec![model.send_to_focus(Command::Speculation(by_hand))]
}

/// What is told once it was set, and whether it warns: what holds from here on, or why it does not.
pub(super) fn set_words(ledger: &Ledger) -> (String, bool) {
    let by_hand = ledger.speculation_by_hand();
    let Some((run, now)) = facts(ledger).zip(next(ledger)) else {
        return ("speculation set by hand".to_owned(), false);
    };
    if by_hand == SpeculationOverride::default() {
        return (format!("speculation as configured from the next request on{}", knobs(&now)), false);
    }
    let drafter = now.drafter.word();
    if now.drafter == DrafterKind::None {
        let deeper = by_hand.depth.is_some() || by_hand.controller.is_some();
        let words = if by_hand.drafter.is_some() || !deeper {
            "no drafter by hand from the next request on: ordinary decoding".to_owned()
        } else {
            format!("{} by hand, but there is no drafter: `d` chooses one", depth_words(&now))
        };
        return (words, false);
    }
    if !run.loaded.contains(&now.drafter) {
        return (format!("{drafter} is not loaded: requests decode ordinarily"), true);
    }
    let under_way = ledger.current().is_some_and(|request| request.speculation.is_some());
    let keeps = if under_way { "; the reply under way keeps what it began with" } else { "" };
    // Whether settings say so themselves is not told.
    let beaten = match by_hand.drafter {
        Some(_) if run.drafter == DrafterKind::None => "; `none` in settings or request beats it",
        _ => "",
    };
    (format!("{drafter} by hand from the next request on{}{beaten}{keeps}", knobs(&now)), false)
}

fn knobs(now: &Next) -> String {
    if now.drafter == DrafterKind::None { String::new() } else { format!(": {}", depth_words(now)) }
}

/// `up to 4 tokens a cycle, adaptive`.
fn depth_words(now: &Next) -> String {
    let tokens = if now.depth == 1 { "token" } else { "tokens" };
    match now.controller {
        ControllerKind::Fixed => format!("{} {tokens} a cycle, fixed", now.depth),
        ControllerKind::Adaptive => format!("up to {} {tokens} a cycle, adaptive", now.depth),
    }
}

/// `4` where the depth is fixed, `≤4` where a controller chooses.
pub(super) fn depth_mark(depth: u32, controller: ControllerKind) -> String {
    match controller {
        ControllerKind::Fixed => depth.to_string(),
        ControllerKind::Adaptive => format!("≤{depth}"),
    }
}

/// Has the verify curve measured whenever a reply has ended, or no longer.
pub(super) fn toggle_curve(model: &mut Model) -> Vec<Effect> {
    let measures = !measures_curve(model);
    model.ui.measures_verify = Some(measures);
    model.toast(if measures {
        "verify curve: forwards of 1 to 8 tokens are measured whenever a reply has ended"
    } else {
        "verify curve: no longer measured"
    });
    vec![model.send_to_focus(Command::MeasureVerify(measures))]
}

/// Whether it is measured, as far as is known: as it was asked for here, otherwise as the latest reply had it.
pub(super) fn measures_curve(model: &Model) -> bool {
    model.ui.measures_verify.unwrap_or_else(|| {
        let ended = model.ledger().requests().rev().find(|request| request.output_tokens.is_some());
        ended.is_some_and(|request| {
            request.speculation.as_ref().is_some_and(|speculation| speculation.curve.is_some())
        })
    })
}

/// Why the calculator cannot weigh `request`, if it cannot.
pub(super) fn weigh_obstacle(request: &RequestFacts) -> Result<(), Cow<'static, str>> {
    if request.output_tokens.is_none() {
        return Err("wait until this reply has ended".into());
    }
    if request.output_tokens.is_some_and(|tokens| tokens < 2) {
        return Err("a reply of one token has no decode time".into());
    }
    if shared_forwards(request).is_some() {
        return Err("other sequences shared its forwards: a share is no measurement".into());
    }
    Ok(())
}

/// Whether it decoded with a drafter.
pub(super) fn is_speculative(request: &RequestFacts) -> bool {
    request.speculation.as_ref().is_some_and(|speculation| !speculation.cycles.is_empty())
}

/// Takes the selected request for the calculator: with a drafter or without, each has its place there.
pub(super) fn weigh(model: &mut Model) {
    let Some((id, turn, speculative)) =
        model.selected().map(|request| (request.id, request.turn, is_speculative(request)))
    else {
        return;
    };
    if speculative {
        model.ui.weighed.speculative = Some(id);
        model.toast(format!("calculator: turn {turn} is the speculative request"));
    } else {
        model.ui.weighed.dense = Some(id);
        model.toast(format!("calculator: turn {turn} is the dense request"));
    }
}

/// What the status line says of a request's drafter; in as many words as `room` has columns for. `None` where nothing drafts, or no words
/// fit.
pub(super) fn status_words(model: &Model, room: usize) -> Option<String> {
    let drafted = model.selected().and_then(|request| Some((request, request.speculation.as_ref()?)));
    let start = drafted.and_then(|(request, speculation)| Some((request, speculation.start.as_ref()?)));
    let forms = match start {
        Some((request, start)) => {
            let drafter = start.drafter.word();
            let depth = depth_mark(start.depth_max, start.controller);
            let controller = start.controller.word();
            let figures = Figures::of(model, request)?;
            let account = figures.account();
            match (figures.failure(), account.tokens_per_cycle(), account.cost_ratio()) {
                (Some(_), ..) => vec![format!("{drafter} AUDIT FAILED"), "AUDIT FAILED".to_owned()],
                (None, Some(gives), Some(cost)) => vec![
                    format!("{drafter} {depth} {controller}: {gives:.2} tokens for {cost:.2} steps"),
                    format!("{drafter} {depth}: {gives:.2} for {cost:.2}"),
                    format!("{drafter} {gives:.2}/{cost:.2}"),
                    drafter.to_owned(),
                ],
                (None, Some(gives), None) => vec![
                    format!("{drafter} {depth} {controller}: {gives:.2} tokens a cycle"),
                    format!("{drafter} {gives:.2}/–"),
                    drafter.to_owned(),
                ],
                _ => vec![
                    format!("{drafter} {depth} {controller}"),
                    format!("{drafter} {depth}"),
                    drafter.to_owned(),
                ],
            }
        }
        None => {
            let unserved = model.selected().is_none_or(|request| request.output_tokens.is_none());
            let now = next(model.ledger()).filter(|now| unserved && now.drafter != DrafterKind::None)?;
            let depth = depth_mark(now.depth, now.controller);
            let (drafter, controller) = (now.drafter.word(), now.controller.word());
            vec![format!("{drafter} {depth} {controller}"), format!("{drafter} {depth}"), drafter.to_owned()]
        }
    };
    forms.into_iter().find(|words| super::text::width(words) <= room)
}

/// Why a depth was chosen, in words.
pub(super) fn reason_words(reason: DepthReason) -> &'static str {
    match reason {
        DepthReason::Fixed => "fixed",
        DepthReason::Best => "best rate",
        DepthReason::Explore => "explores",
        DepthReason::DenseProbe => "dense probe",
        DepthReason::Reentry => "re-entry",
        DepthReason::Parked => "PARKED",
        DepthReason::Limited => "limited by room",
    }
}

/// Foreign text on one line: line ends and blanks seen.
pub(super) fn one_line(text: &str) -> String {
    sanitise(text).replace('\n', "↵")
}
