//! What is always in sight: the run and its gate, the request in view, warnings, and the keys that make sense now.

use std::borrow::Cow;

use ratatui::layout::Rect;
use ratatui::text::Line;

use super::action::{self, ActionId};
use super::app::Model;
use super::memory::gauge;
use super::text::{self, count, fit, signed, thousands};
use super::theme::Tone;
use super::view::{Canvas, WORKBENCH};
use super::{sparse, speculation, tier, watch};
use crate::event::{Gate, Phase};
use crate::ledger::RequestFacts;

/// The lines that are always there: the run and its gate; the request in view and why its checkpoint stands there; where there is something
/// to say, breakpoints and the SSD tier.
pub(super) fn draw_status(canvas: &mut Canvas<'_>, model: &Model, area: Rect) {
    let gate = gate_words(model);
    let gate_width = text::width(&gate) + 2;
    let room = usize::from(area.width).saturating_sub(gate_width + 1);
    let name = if area.width >= WORKBENCH.0 { " escarp  " } else { " " };
    let run = run_words(model, room.saturating_sub(name.len()));
    let left = room.saturating_sub(name.len() + text::width(&run) + 3);
    let device = model.ledger().device_memory().map(|memory| gauge(memory, left)).unwrap_or_default();
    let between = if device.is_empty() { "" } else { "   " };
    let head = Line::from(vec![
        canvas.span(name, Tone::Key),
        canvas.span(run, Tone::Text),
        canvas.span(between, Tone::Dim),
        canvas.span(device, Tone::Dim),
    ]);
    canvas.line(area, 0, &head);
    let column = usize::from(area.width).saturating_sub(gate_width);
    canvas.put(area, column, 0, &format!(" {gate} "), Tone::Selected);
    let line = match model.selected() {
        Some(request) => request_line(canvas, model, request, usize::from(area.width)),
        None => Line::from(canvas.span(format!(" {}", nothing_yet(model)), Tone::Dim)),
    };
    canvas.line(area, 1, &line);
    if area.height > 2 {
        draw_watch_line(canvas, model, area);
    }
}

/// Whether there are breakpoints, or an SSD tier, to tell of.
pub(super) fn has_watch_line(model: &Model) -> bool {
    !watch::conditions(model).is_empty() || watch::hit(model).is_some() || tier::reading(model).is_some()
}

/// The breakpoint that was hit, or the conditions that are watched; then the SSD tier.
fn draw_watch_line(canvas: &mut Canvas<'_>, model: &Model, area: Rect) {
    let width = usize::from(area.width);
    let mut used = 1;
    if let Some(hit) = watch::hit(model) {
        let words = text::sanitise(&watch::hit_words(model, hit)).replace('\n', " ");
        let words = format!(" ▶ {} ", fit(&words, width.saturating_sub(5)));
        canvas.put(area, used, 2, &words, Tone::Warn);
        let (from, to) = (used as u16, (used + text::width(&words)).min(width) as u16);
        let cells = Rect { x: area.x + from, y: area.y + 2, width: to.saturating_sub(from), height: 1 };
        let style = canvas.style(Tone::Selected);
        canvas.buffer.set_style(cells, style);
        used += text::width(&words) + 2;
    } else if !watch::conditions(model).is_empty() {
        let conditions = text::sanitise(&watch::conditions(model).join(", ")).replace('\n', " ");
        canvas.put(area, used, 2, "pauses at ", Tone::Dim);
        let conditions = fit(&conditions, width.saturating_sub(used + 11)).into_owned();
        canvas.put(area, used + 10, 2, &conditions, Tone::Key);
        used += 10 + text::width(&conditions) + 3;
    }
    if let Some(tier) = tier::reading(model) {
        let gauge = tier::gauge(tier, width.saturating_sub(used + 1));
        let tone = if tier.problem.is_some() { Tone::Warn } else { Tone::Dim };
        canvas.put(area, used, 2, &gauge, tone);
    }
}

/// What to say while there is no request.
pub fn nothing_yet(model: &Model) -> &'static str {
    if model.recording.is_some() {
        "before the first request: `n` goes on"
    } else if model.ledger().failure().is_some() {
        "no request was served"
    } else if model.ledger().run().is_none() {
        "loading the model…"
    } else {
        "no request yet: `n` runs the first turn, `r` all of them, `i` injects one"
    }
}

/// Columns that the names of session and model keep whatever else there is to say.
const NAMES_AT_LEAST: usize = 18;
/// Columns below which a name is left out.
const NAME_AT_LEAST: usize = 5;

/// Session, model and precision, device and what it promises, mode; names are shortened before any of it is left out.
fn run_words(model: &Model, room: usize) -> String {
    let mut lane = match model.runs.name(model.runs.focus()) {
        "" => String::new(),
        name => format!(" · {name}"),
    };
    if model.ledger().lanes().count() > 1 {
        lane.push_str(&format!(" · lane {}", model.ui.lane.label()));
    }
    let Some(run) = model.ledger().run() else { return format!("starting{lane}") };
    let precision = if run.precision == "none" { String::new() } else { format!(" {}", run.precision) };
    let rest = format!("{precision} · {} {} · {}", run.device, run.identity.word(), run.replay_mode);
    let for_sparse =
        room.saturating_sub(text::width(&rest) + text::width(&lane) + 3).saturating_sub(NAMES_AT_LEAST);
    let sparse = sparse::status_words(model.ledger(), model.selected(), for_sparse.saturating_sub(3));
    let rest = sparse.map_or_else(|| rest.clone(), |words| format!("{rest} · {words}"));
    let for_drafter = room.saturating_sub(text::width(&rest) + text::width(&lane) + 6);
    let drafter = speculation::status_words(model, for_drafter.saturating_sub(NAMES_AT_LEAST));
    let rest = drafter.map_or_else(|| rest.clone(), |words| format!("{rest} · {words}"));
    let session = model.ledger().session_of(model.ui.lane).unwrap_or(&run.session);
    let (session, name) = (text::sanitise(session), text::sanitise(&run.model));
    let for_names = room.saturating_sub(text::width(&rest) + text::width(&lane) + 3);
    let for_name = for_names.saturating_sub(text::width(&session)).max(for_names / 3);
    let (model, for_session) = if for_name < text::width(&name).min(NAME_AT_LEAST) {
        // A stump of a name says nothing: without the model there is room for the session.
        let others = text::width(&lane) + text::width(&rest) - text::width(&precision);
        (String::new(), room.saturating_sub(others))
    } else {
        let name = fit(&name, for_name);
        (format!(" · {name}{precision}"), for_names.saturating_sub(text::width(&name)))
    };
    let rest = &rest[precision.len()..];
    let session = match for_session < text::width(&session).min(NAME_AT_LEAST) {
        true => Cow::Borrowed(""),
        false => fit(&session, for_session),
    };
    let words = format!("{session}{lane}{model}{rest}");
    fit(words.trim_start_matches(" · "), room).into_owned()
}

/// One request on one line. What does not fit is left out from the least important on; checkpoint, suffix, route and cause
/// stay.
fn request_line<'a>(canvas: &Canvas<'_>, model: &Model, request: &RequestFacts, width: usize) -> Line<'a> {
    let step = model.ledger().checkpoint_step(request);
    let cliff = step.is_some_and(|s| s.cliff);
    let warn = |tone| if cliff { Tone::Warn } else { tone };
    let delta = step.map(|s| format!(" {}{}", if s.cliff { "▼" } else { "" }, signed(s.delta)));
    let side = if request.is_side() { " side" } else { "" };
    let turn = format!(" {} turn {}{side}  ", request.lane.label(), request.turn);
    let mut spans = vec![
        canvas.span(turn, Tone::Lane(request.lane)),
        canvas.span("ckpt ", Tone::Dim),
        canvas.span(count(request.checkpoint()), Tone::Strong),
        canvas.span(delta.unwrap_or_default(), warn(Tone::Text)),
        canvas.span("  suffix ", Tone::Dim),
        canvas.span(count(request.uncached_suffix), Tone::Strong),
        canvas.span("  ", Tone::Dim),
        canvas.span(request.route.map_or(text::UNKNOWN, |r| r.word()), Tone::Text),
        canvas.span("  ", Tone::Dim),
    ];
    let used: usize = spans.iter().map(|s| s.width()).sum();
    let room = width.saturating_sub(used);
    let prompt = format!("prompt {}  ", count(request.prompt_tokens));
    let cause = cause_words(request, room);
    if text::width(&cause) + text::width(&prompt) <= room {
        spans.insert(1, canvas.span(prompt, Tone::Dim));
    }
    spans.push(canvas.span(cause, warn(Tone::Text)));
    Line::from(spans)
}

/// The cause as a sentence where there is room for it, otherwise as a word.
fn cause_words(request: &RequestFacts, room: usize) -> String {
    if let Some(error) = &request.error {
        return fit(&format!("FAILED: {}", text::sanitise(error)), room).into_owned();
    }
    let Some(restore) = &request.restore else {
        return if request.phase == Phase::Done { text::UNKNOWN.to_owned() } else { "…".to_owned() };
    };
    let sentence = request.cause_sentence().unwrap_or_default();
    let sentence = text::sanitise(&sentence).replace('\n', " ");
    if text::width(&sentence) <= room || room >= 30 {
        fit(&sentence, room).into_owned()
    } else {
        fit(restore.cause.word(), room).into_owned()
    }
}

/// Everything that must not be overlooked, most serious first.
pub(super) fn warnings(model: &Model) -> Vec<String> {
    let ledger = model.ledger();
    let mut out = Vec::new();
    for place in 0..model.runs.count() {
        if let Some(failure) = model.runs.ledger_of(place).failure() {
            let of = match model.runs.name(place) {
                "" => String::new(),
                name => format!(" of lane {name}"),
            };
            out.push(format!("engine{of} failed: {failure}"));
        }
    }
    // The engine's own panic is already told above.
    if let Some(panic) = model.panics.last().filter(|_| ledger.failure().is_none()) {
        out.push(format!("a thread panicked: {panic} (the log has more)"));
    }
    if let Some((from, _)) = ledger.lost().first() {
        let lost = ledger
            .lost()
            .iter()
            .fold(0u64, |sum, (from, to)| sum.saturating_add(to.saturating_sub(*from).saturating_add(1)));
        out.push(format!("incomplete since event {}: {} events lost", thousands(*from), thousands(lost)));
    }
    if ledger.stale_pages() > 0 {
        out.push(format!("{} reads of stale pages: their requests failed", thousands(ledger.stale_pages())));
    }
    if let Some(problem) = tier::reading(model).and_then(|tier| tier.problem.as_deref()) {
        out.push(format!("SSD tier: {problem}; serving goes on without what it concerns"));
    }
    if let Some(request) = model.selected()
        && let Some(message) = &request.fell_back
    {
        out.push(format!("turn {} fell back to dense: {message}", request.turn));
    }
    if let Some(cut) = ledger.session_cut() {
        out.push(format!(
            "session cut to {} of {} requests: the next has {} tokens, the context holds {}",
            cut.kept_requests,
            cut.of_requests,
            thousands(cut.prompt_tokens),
            thousands(cut.context_tokens)
        ));
    }
    out
}

pub(super) fn draw_warnings(canvas: &mut Canvas<'_>, warnings: &[String], area: Rect) {
    for (row, warning) in warnings.iter().take(usize::from(area.height)).enumerate() {
        let more = warnings.len().saturating_sub(usize::from(area.height));
        let tail = if row + 1 == usize::from(area.height) && more > 0 {
            format!(" (and {more} more)")
        } else {
            String::new()
        };
        let warning = text::sanitise(warning).replace('\n', " ");
        let room = usize::from(area.width).saturating_sub(3 + text::width(&tail));
        canvas.put(area, 0, row, &format!(" ! {}{tail}", fit(&warning, room)), Tone::Warn);
    }
}

/// Hints for the actions that make sense now, or the message of the moment.
pub(super) fn draw_footer(canvas: &mut Canvas<'_>, model: &Model, area: Rect) {
    if let Some(toast) = &model.ui.toast {
        let tone = if toast.warning { Tone::Warn } else { Tone::Good };
        let message = text::sanitise(&toast.text).replace('\n', " ");
        canvas.put(area, 1, 0, &fit(&message, usize::from(area.width).saturating_sub(2)), tone);
        return;
    }
    let mut used = 1;
    let limit = usize::from(area.width);
    let ends = |id| matches!(id, ActionId::Help | ActionId::Palette | ActionId::Back);
    let hints: Vec<_> = action::existing(model)
        .filter(|a| !a.hint.is_empty() && (a.enabled)(model).is_ok())
        .map(|a| (a.keys[0].name(), hint_words(model, a), ends(a.id)))
        .collect();
    let size = |key: &str, words: &str| key.len() + text::width(words) + 3;
    let mut reserve: usize = hints.iter().filter(|h| h.2).map(|h| size(&h.0, h.1)).sum();
    let views = "0-9 views";
    if canvas.layout.single {
        canvas.put(area, used, 0, "0-9", Tone::Key);
        canvas.put(area, used + 4, 0, "views", Tone::Dim);
        used += views.len() + 2;
    }
    for (key, words, is_end) in &hints {
        let size = size(key, words);
        if *is_end {
            reserve -= size;
        }
        if used + size + reserve > limit + 2 {
            continue;
        }
        canvas.put(area, used, 0, key, Tone::Key);
        canvas.put(area, used + key.len() + 1, 0, words, Tone::Dim);
        used += size;
    }
}

fn hint_words(model: &Model, action: &action::Action) -> &'static str {
    match (action.id, model.runs.gate()) {
        (ActionId::Pause, Some((Gate::Paused | Gate::AfterPhase, _))) => "go on",
        (ActionId::Back, _) if model.ui.zoom => "back",
        (ActionId::Compare, _) if model.beside => "back",
        _ => action.hint,
    }
}

/// The gate in words, for the status line.
fn gate_words(model: &Model) -> String {
    if let Some(recording) = &model.recording {
        let (at, of) = recording.progress();
        return format!("RECORDING {at} of {of}");
    }
    // Of lanes that are compared, one that goes on is enough; a failure is told among the warnings.
    let living = model.runs.living().next().filter(|_| !model.source_closed);
    let Some(living) = living else {
        let failed = model.ledger().failure().is_some();
        return if failed { "ENGINE FAILED" } else { "ENGINE ENDED" }.to_owned();
    };
    let ledger = model.ledger();
    let goes_on = ledger.failure().is_none() && !ledger.ended();
    let lane = if goes_on { ledger } else { living }.lane(model.ui.lane);
    let turns = lane.map_or(0, |l| l.turns);
    if let Some((place, request)) = model.running_in() {
        let phase = match request.phase {
            _ if request.priming.is_some() => match request.priming {
                Some((done, total)) if total > 0 => {
                    format!("prime {} %", u128::from(done.min(total)) * 100 / u128::from(total))
                }
                _ => "prime".to_owned(),
            },
            Phase::Prefill => match request.progress {
                Some((done, total)) if total > 0 => {
                    format!("prefill {} %", u128::from(done.min(total)) * 100 / u128::from(total))
                }
                _ => "prefill".to_owned(),
            },
            Phase::Score => match request.scoring {
                Some((done, total)) if total > 0 => {
                    format!("score {} %", u128::from(done.min(total)) * 100 / u128::from(total))
                }
                _ => "score".to_owned(),
            },
            phase => phase.word().to_owned(),
        };
        let held = match model.runs.gate() {
            _ if watch::hit(model).is_some() => "BREAK",
            Some((Gate::Paused, _)) => "PAUSED",
            Some((Gate::AfterPhase, _)) => "HELD",
            _ => "RUNNING",
        };
        let turn = if request.lane == model.ui.lane {
            format!("TURN {} of {turns}", request.turn)
        } else {
            format!("LANE {} TURN {}", request.lane.label(), request.turn)
        };
        let run = if place == model.runs.focus() {
            String::new()
        } else {
            format!("{} ", text::sanitise(model.runs.name(place)).to_uppercase())
        };
        return format!("{held} {run}{turn}: {phase}");
    }
    match (model.runs.gate(), lane.and_then(|l| l.next_turn)) {
        (None, _) => "LOADING".to_owned(),
        (Some((Gate::Running, _)), Some(next)) => format!("RUNNING, TURN {next} of {turns} NEXT"),
        (Some(_), Some(next)) if watch::hit(model).is_some() => {
            format!("BREAK BEFORE TURN {next} of {turns}")
        }
        (Some((Gate::Paused, _)), Some(next)) => format!("PAUSED BEFORE TURN {next} of {turns}"),
        (Some(_), Some(next)) => format!("BEFORE TURN {next} of {turns}"),
        (Some(_), None) => "END OF SESSION".to_owned(),
    }
}
