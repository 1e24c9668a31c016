//! The raw event stream, one line an event; that a sequence stays parked, told at every step, is one line.

mod recovery;

use std::collections::{BTreeMap, VecDeque};

use ratatui::layout::Rect;
use ratatui::text::Line;
use unicode_segmentation::UnicodeSegmentation;

use crate::event::{Body, DepthReason, DeviceMemory, Event, RequestId};
use crate::tui::app::{Model, Page, Pane};
use crate::tui::memory::gauge;
use crate::tui::sparse;
use crate::tui::text::{count, duration, fit, sanitise, signed, thousands};
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

/// Lines kept.
const CAPACITY: usize = 20_000;
/// Columns of foreign text shown of one event.
const EXCERPT: usize = 80;

/// One event as a line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct EventLine {
    /// Sequence number, time, lane and request.
    head: String,
    /// The kind of event.
    name: &'static str,
    /// What it says.
    words: String,
    /// Whether it reports something wrong.
    alarming: bool,
}

/// Decisions to stay parked, one a step, which are told as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ParkedSpan {
    /// Lines there were before its line, those that were dropped included.
    line: usize,
    /// Place in the reply of its first token.
    first: u64,
    /// Decisions so far.
    steps: u64,
}

/// The latest events.
#[derive(Debug, Default)]
pub struct EventList {
    lines: VecDeque<EventLine>,
    /// Lines that were dropped.
    dropped: usize,
    /// Requests that are parked.
    parked: BTreeMap<RequestId, ParkedSpan>,
}

impl EventList {
    /// Adds an event, dropping the oldest line when full. Decisions to stay parked count up on the line of the first.
    pub fn push(&mut self, event: &Event) {
        if self.stays_parked(event) {
            return;
        }
        if self.lines.len() == CAPACITY {
            self.lines.pop_front();
            self.dropped += 1;
        }
        self.lines.push_back(event_line(event));
    }

    /// Whether `event` says of a request that it stays parked; then the line that said so first says for how long.
    fn stays_parked(&mut self, event: &Event) -> bool {
        let Some(request) = event.request else { return false };
        let line = self.dropped + self.lines.len();
        match &event.body {
            Body::DepthDecided(decision) if decision.reason == DepthReason::Parked => {
                let new = ParkedSpan { line, first: decision.first, steps: 0 };
                let span = self.parked.entry(request).or_insert(new);
                span.steps = span.steps.saturating_add(1);
                let (steps, first) = (span.steps, span.first);
                let shown = span.line.checked_sub(self.dropped).and_then(|at| self.lines.get_mut(at));
                let Some(shown) = shown.filter(|_| steps > 1) else {
                    // The line is new, or has been dropped: then the span is told anew.
                    *span = ParkedSpan { line, first: decision.first, steps: 1 };
                    return false;
                };
                shown.words = format!("0 at {first}: Parked, for {} steps", thousands(steps));
                true
            }
            Body::DepthDecided(_) | Body::Cycled(_) | Body::Decoded { .. } | Body::Finished { .. } => {
                self.parked.remove(&request);
                false
            }
            _ => false,
        }
    }

    fn matching<'a>(&'a self, filter: &str) -> Vec<&'a EventLine> {
        let filter = filter.to_lowercase();
        let keep = |line: &&EventLine| {
            filter.is_empty()
                || format!("{} {} {}", line.head, line.name, line.words).to_lowercase().contains(&filter)
        };
        self.lines.iter().filter(keep).collect()
    }
}

fn event_line(event: &Event) -> EventLine {
    let lane = event.lane.map_or_else(String::new, |lane| lane.label());
    let request = event.request.map_or_else(String::new, |request| format!("r{}", request.0));
    let head = format!("{:>7} {:>10.3}s {lane:>3} {request:<5}", event.seq, event.at.seconds());
    let (name, words) = describe(&event.body);
    let alarming = matches!(
        event.body,
        Body::Failed { .. }
            | Body::EngineFailed { .. }
            | Body::Gap { .. }
            | Body::StalePage { .. }
            | Body::SessionCut { .. }
            | Body::TierTrouble { .. }
            | Body::SparseFellBack { .. }
            | Body::CommitLowered { .. }
            | Body::FaultInjected { .. }
            | Body::BreakpointHit { .. }
            | Body::PrefillProgress { shrunk: Some(_), .. }
    );
    EventLine { head, name, words, alarming }
}

/// The event's name and its figures in words.
fn describe(body: &Body) -> (&'static str, String) {
    if let Some(told) = recovery::describe(body) {
        return told;
    }
    match body {
        Body::RunStarted(run) => (
            "run_started",
            format!(
                "{} on {} ({}), context {}",
                safe(&run.model),
                safe(&run.device),
                safe(&run.kernel),
                count(run.context_tokens)
            ),
        ),
        Body::LaneOpened { parent, at_turn, title } => {
            let from = match (parent, at_turn) {
                (Some(parent), Some(turn)) => format!(", forked from {} at turn {turn}", parent.label()),
                _ => String::new(),
            };
            ("lane_opened", format!("{}{from}", safe(title)))
        }
        Body::GateChanged { gate, next_turn, turns } => {
            let next = next_turn
                .map_or_else(|| "no next turn".to_owned(), |turn| format!("next turn {turn} of {turns}"));
            ("gate_changed", format!("{gate:?}, {next}"))
        }
        Body::SessionCut { kept_requests, of_requests, prompt_tokens, context_tokens } => (
            "session_cut",
            format!(
                "{kept_requests} of {of_requests} requests; the next has {} tokens, the context {}",
                thousands(*prompt_tokens),
                thousands(*context_tokens)
            ),
        ),
        Body::Arrived(arrival) => (
            "arrived",
            format!(
                "turn {} {}: prompt {}, idle {}",
                arrival.turn,
                safe(&arrival.name),
                thousands(arrival.prompt_tokens),
                duration(arrival.idle)
            ),
        ),
        Body::Admitted { queued } => ("admitted", format!("waited {}", duration(Some(*queued)))),
        Body::Restored(restore) => (
            "restored",
            format!(
                "checkpoint {} (matched {}, with state {}): {}",
                thousands(restore.checkpoint_tokens),
                thousands(restore.matched_tokens),
                thousands(restore.matched_with_state_tokens),
                restore.cause.phrase()
            ),
        ),
        Body::Routed { route, uncached_suffix } => {
            ("routed", format!("{}, suffix {}", route.word(), thousands(*uncached_suffix)))
        }
        Body::PrefillProgress { done, total, shrunk, device, .. } => (
            "prefill_progress",
            format!(
                "{}/{}{}{}",
                thousands(*done),
                thousands(*total),
                shrunk.map_or_else(String::new, |s| format!(
                    ", chunk of {} shrunk to {} for want of memory",
                    thousands(s.wanted),
                    thousands(s.admitted)
                )),
                device_words(*device)
            ),
        ),
        Body::Prefilled { computed_tokens, took } => {
            ("prefilled", format!("{} tokens in {}", thousands(*computed_tokens), duration(Some(*took))))
        }
        Body::Token { token, text, index, .. } => ("token", format!("{index}: {token} \"{}\"", safe(text))),
        Body::PrimingProgress { done, total } => {
            ("priming_progress", format!("{}/{}", thousands(*done), thousands(*total)))
        }
        Body::DrafterStarted(start) => (
            "drafter_started",
            format!(
                "{}, depth {} {}: read {} tokens in {}, had {}",
                start.drafter.word(),
                start.depth_max,
                start.controller.word(),
                thousands(start.primed_tokens),
                duration(Some(start.took)),
                thousands(start.cached_tokens)
            ),
        ),
        Body::DraftingEnded { message } => ("drafting_ended", safe(message)),
        Body::DepthDecided(decision) => {
            ("depth_decided", format!("{} at {}: {:?}", decision.depth, decision.first, decision.reason))
        }
        Body::Cycled(cycle) => (
            "cycled",
            format!(
                "{} of {} drafted accepted, {} emitted in {}",
                cycle.accepted,
                cycle.drafted,
                cycle.emitted(),
                duration(cycle.took())
            ),
        ),
        Body::VerifyCurve(curve) => (
            "verify_curve",
            format!("{} widths at {} tokens", curve.points.len(), thousands(curve.context_tokens)),
        ),
        Body::SpeculationSet { drafter, depth, controller } => (
            "speculation_set",
            format!(
                "drafter {}, depth {}, controller {}",
                drafter.map_or("–", |drafter| drafter.word()),
                count(depth.map(u64::from)),
                controller.map_or("–", |controller| controller.word())
            ),
        ),
        Body::Decoded { reason, output_tokens, took, text, .. } => (
            "decoded",
            format!(
                "{}, {} tokens in {}: {}",
                reason.word(),
                thousands(*output_tokens),
                duration(Some(*took)),
                safe(text)
            ),
        ),
        Body::Preempted { blocks_stored, tokens_lost } => (
            "preempted",
            format!("{} blocks stored, {} tokens lost", thousands(*blocks_stored), thousands(*tokens_lost)),
        ),
        Body::Resumed { restored_tokens, to_compute_tokens } => (
            "resumed",
            format!(
                "{} tokens restored, {} to compute again",
                thousands(*restored_tokens),
                thousands(*to_compute_tokens)
            ),
        ),
        Body::Stored { stored_tokens, canonical_tokens, evicted_blocks, snapshots, .. } => (
            "stored",
            format!(
                "{} tokens, restorable to {}, {} blocks evicted{}",
                signed(i64::try_from(*stored_tokens).unwrap_or(i64::MAX)),
                thousands(*canonical_tokens),
                thousands(*evicted_blocks),
                snapshots.map_or_else(String::new, |s| format!(
                    "; {} snapshots stored, {} not taken, {} dropped",
                    thousands(s.stored),
                    thousands(s.not_taken),
                    thousands(s.dropped)
                ))
            ),
        ),
        Body::Finished { reason, took } => {
            ("finished", format!("{} after {}", reason.word(), duration(Some(*took))))
        }
        Body::Failed { message } => ("failed", safe(message)),
        Body::Memory { cached_blocks, live_blocks, bytes, limit_bytes, slots, device } => (
            "memory",
            format!(
                "{} cached and {} live blocks, {}{} of {}{}",
                thousands(*cached_blocks),
                thousands(*live_blocks),
                slots.map_or_else(String::new, |s| format!(
                    "{} snapshots and {} live slots ({}), ",
                    thousands(s.snapshots),
                    thousands(s.live),
                    crate::tui::text::bytes(s.bytes)
                )),
                crate::tui::text::bytes(*bytes),
                crate::tui::text::bytes(*limit_bytes),
                device_words(*device)
            ),
        ),
        Body::Tier(tier) => (
            "tier",
            format!(
                "{} blocks and {} snapshots, {} of {}; {} files on their way",
                thousands(tier.blocks),
                thousands(tier.snapshots),
                crate::tui::text::bytes(tier.bytes),
                crate::tui::text::bytes(tier.limit_bytes),
                thousands(tier.queued_files)
            ),
        ),
        Body::TierTrouble { detail, .. } => ("tier_trouble", safe(detail)),
        Body::FaultInjected { fault, outcome } => {
            ("fault_injected", format!("{}: {}", safe(fault), safe(outcome)))
        }
        Body::BreakpointsSet { conditions } => ("breakpoints_set", safe(&conditions.join(", "))),
        Body::BreakpointHit { condition, observed } => {
            ("breakpoint_hit", format!("{}: {}", safe(condition), safe(observed)))
        }
        Body::SparseAdmitted(admission) => (
            "sparse_admitted",
            format!(
                "{}; protected {}, suffix {}, to score {}, threshold {}",
                sparse::verdict_words(admission.verdict),
                thousands(admission.protected_tokens),
                thousands(admission.suffix_tokens),
                thousands(admission.to_score_tokens),
                thousands(admission.settings.threshold.value)
            ),
        ),
        Body::ScoringProgress { done, total } => {
            ("scoring_progress", format!("{}/{}", thousands(*done), thousands(*total)))
        }
        Body::Scored(scored) => (
            "scored",
            format!(
                "kept {} of {} from {} on, draft cached {}, {}; scorer {}",
                thousands(scored.selected_tokens),
                thousands(scored.scored_tokens),
                thousands(scored.origin),
                thousands(scored.draft_cached_tokens),
                sparse::start_words(scored, None).0,
                duration(Some(scored.took()))
            ),
        ),
        Body::Survived(survival) => {
            let kept = survival.identifiers.iter().filter(|word| word.kept > 0).count();
            (
                "survived",
                format!("{kept} of {} identifiers of the recorded reply", survival.identifiers.len()),
            )
        }
        Body::SparseFellBack { message } => ("sparse_fell_back", safe(message)),
        Body::ReplyLogits { logits } => {
            ("reply_logits", format!("{} of the reply's first token", thousands(logits.0.len() as u64)))
        }
        Body::Rescored(rescored) => (
            "rescored",
            match &rescored.problem {
                Some(problem) => safe(problem),
                None => format!("{} would be kept", thousands(rescored.selected_tokens)),
            },
        ),
        Body::SpecPrefillSet { enabled, keep, threshold } => {
            let words = [
                enabled.map(|on| if on { "on" } else { "off" }.to_owned()),
                keep.map(|keep| format!("keep {}", sparse::fraction(keep))),
                threshold.map(|threshold| format!("threshold {}", thousands(threshold))),
            ];
            let words: Vec<String> = words.into_iter().flatten().collect();
            ("specprefill_set", if words.is_empty() { "as configured".to_owned() } else { words.join(", ") })
        }
        Body::Previewed(preview) => ("previewed", format!("prompt {}", thousands(preview.prompt_tokens))),
        Body::StalePage { count } => ("stale_page", format!("{} so far", thousands(*count))),
        Body::Gap { from, to } => {
            ("gap", format!("events {} to {} were lost", thousands(*from), thousands(*to)))
        }
        Body::EngineFailed { message } => ("engine_failed", safe(message)),
        // Told above.
        Body::DebtConsidered(_)
        | Body::RecoverySlice(_)
        | Body::Published(_)
        | Body::Retired { .. }
        | Body::CommitLowered { .. }
        | Body::RecoveryWaits { .. }
        | Body::RecoveryEnded(_)
        | Body::RecoverySet { .. } => ("recovery", String::new()),
        Body::RunEnded => ("run_ended", String::new()),
    }
}

fn device_words(device: Option<DeviceMemory>) -> String {
    device.map_or_else(String::new, |device| format!("; {}", gauge(device, usize::MAX)))
}

/// An excerpt of foreign text, on one line.
fn safe(text: &str) -> String {
    // The excerpt is cut first so that the work does not depend on how long the text is.
    let end = text.char_indices().nth(EXCERPT * 2).map_or(text.len(), |(at, _)| at);
    fit(&sanitise(&text[..end]).replace('\n', "^J"), EXCERPT).into_owned()
}

/// `text` without its first `columns` characters.
pub fn shifted(text: &str, columns: usize) -> &str {
    text.grapheme_indices(true)
        .nth(columns)
        .map_or(if columns == 0 { text } else { "" }, |(at, _)| &text[at..])
}

/// Draws the pane.
pub fn draw(canvas: &mut Canvas<'_>, model: &Model, area: Rect) {
    let slot = Pane::Events.index();
    let lines = model.runs.events().matching(&model.ui.filter[slot]);
    let height = usize::from(area.height);
    let top = Page::top_for(lines.len(), height, model.ui.scroll[slot]);
    canvas.note_page(Pane::Events, lines.len(), height, top);
    if lines.is_empty() {
        let words =
            if model.ui.filter[slot].is_empty() { "no event yet" } else { "no event matches the filter" };
        canvas.put(area, 1, 0, words, Tone::Dim);
    }
    for (row, line) in lines.iter().skip(top).take(height).enumerate() {
        let tone = if line.alarming { Tone::Warn } else { Tone::Strong };
        let spans = vec![
            canvas.span(format!("{} ", line.head), Tone::Dim),
            canvas.span(format!("{:<17}", line.name), tone),
            canvas.span(shifted(&line.words, model.ui.shift).to_owned(), Tone::Text),
        ];
        canvas.line(area, row, &Line::from(spans));
    }
}
