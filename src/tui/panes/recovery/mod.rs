//! Background recovery: how far its job has come and what it waits for, the budget, who will be sooner, what it was worth and what it did to requests;
//! and all of it over the engine's time.

mod bar;
mod figures;
mod history;
mod timeline;

use std::collections::BTreeMap;

use ratatui::layout::Rect;
use ratatui::text::Line;

use super::flow::{Group, NAMES};
use crate::event::{DebtTaken, JobId, RequestId};
use crate::ledger::{JobFacts, Ledger, NetReturn};
use crate::tui::app::{Model, Pane, Scroll};
use crate::tui::recovery;
use crate::tui::sections::{Section, allot};
use crate::tui::text;
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

/// How often the time line halves at most.
pub const CLOSEST: i8 = 8;
/// The narrowest pane in which the time line and what requests felt stand beside the job.
const BESIDE: u16 = 110;

/// What the pane's title says: the job, whose debt it pays, and whether recovery is on.
pub(super) fn title_note(model: &Model, room: usize) -> String {
    let ledger = model.ledger();
    let on = match (ledger.recovery_on(), ledger.recovery().by_hand()) {
        (Some(true), Some(_)) => Some("on by hand"),
        (Some(true), None) => Some("on"),
        (Some(false), Some(_)) => Some("off by hand"),
        (Some(false), None) => Some("off"),
        (None, _) => None,
    };
    let rule = ledger.run().and_then(|run| run.recovery.as_ref()).map(|facts| {
        let mode = match facts.mode {
            crate::recovery::job::Mode::Progressive => "progressive",
            crate::recovery::job::Mode::Terminal => "terminal",
        };
        format!("{} {mode}, slices of {}", facts.policy, text::thousands(facts.slice_tokens))
    });
    let job = chosen(model).map(|job| format!("job {}{}", job.id.0, turns(model, job)));
    let parts = [job, on.map(str::to_owned), rule];
    text::fit(&parts.into_iter().flatten().collect::<Vec<_>>().join(" · "), room).into_owned()
}

/// ` for turn 7`, ` for turns 5–7`.
fn turns(model: &Model, job: &JobFacts) -> String {
    let turn = |id: Option<&RequestId>| Some(model.ledger().request(*id?)?.turn);
    match (turn(job.requests.first()), turn(job.requests.last())) {
        (Some(first), Some(last)) if first != last => format!(" for turns {first}–{last}"),
        (_, Some(turn)) => format!(" for turn {turn}"),
        _ => String::new(),
    }
}

/// The job that is shown: that of the request selected by hand, otherwise the one under way, otherwise the latest.
fn chosen(model: &Model) -> Option<&JobFacts> {
    let recovery = model.ledger().recovery();
    let selected = model.ui.selection.and_then(|id| model.ledger().request(id)?.recovery);
    selected
        .and_then(|id| recovery.job(id))
        .or_else(|| recovery.open())
        .or_else(|| recovery.jobs().next_back())
}

/// Draws the pane.
pub fn draw(canvas: &mut Canvas<'_>, model: &Model, area: Rect) {
    canvas.note_page(Pane::Recovery, 0, usize::from(area.height), 0);
    let recovery = model.ledger().recovery();
    if recovery.is_silent() {
        draw_nothing(canvas, model, area);
        return;
    }
    let returns = model.ledger().net_returns().into_iter().collect();
    View { model, ledger: model.ledger(), job: chosen(model), returns }.draw(canvas, area);
}

/// One job among those of its run, ready to be drawn.
struct View<'a> {
    model: &'a Model,
    ledger: &'a Ledger,
    job: Option<&'a JobFacts>,
    returns: BTreeMap<JobId, NetReturn>,
}

impl View<'_> {
    fn draw(&self, canvas: &mut Canvas<'_>, area: Rect) {
        if area.width >= BESIDE {
            self.draw_beside(canvas, area);
        } else {
            self.draw_below(canvas, area);
        }
    }

    /// The job on the left, its time and what requests felt on the right.
    fn draw_beside(&self, canvas: &mut Canvas<'_>, area: Rect) {
        let left_width = (area.width * 11 / 20).clamp(60, 92);
        let left = Rect { width: left_width, ..area };
        let right = Rect { x: area.x + left_width + 2, width: area.width - left_width - 2, ..area };
        for row in 0..usize::from(area.height) {
            canvas.put(area, usize::from(left_width), row, "│", Tone::Border);
        }
        let columns = usize::from(left_width) - 1;
        let figures = vec![
            Section::new(0, self.standing(canvas, columns)),
            Section::new(1, self.budget(canvas, columns)).at_least(1, 6),
            Section::new(2, self.net_return(canvas, columns)).at_least(1, 5),
            Section::new(3, self.race(canvas, columns)).at_least(1, 6),
            Section::new(4, self.steps(canvas, columns)).at_least(1, 7),
            Section::new(8, self.debts(canvas, columns)),
        ];
        let columns = usize::from(right.width);
        let beside = vec![
            Section::new(0, self.timeline(canvas, columns)),
            Section::new(1, self.protection(canvas, columns)),
            Section::new(2, self.jobs(canvas, columns)),
        ];
        let (left_lines, right_lines) = (lines_of(figures), lines_of(beside));
        let lines = left_lines.len().max(right_lines.len());
        let top = self.top(canvas, lines, usize::from(area.height));
        put_from(canvas, left, &left_lines, top);
        put_from(canvas, right, &right_lines, top);
    }

    /// All below each other, what decides first. What has no room is seen by scrolling.
    fn draw_below(&self, canvas: &mut Canvas<'_>, area: Rect) {
        let columns = usize::from(area.width) - 1;
        let sections = || {
            vec![
                Section::new(0, self.standing(canvas, columns)),
                Section::new(2, self.budget(canvas, columns)).at_least(1, 7),
                Section::new(1, self.net_return(canvas, columns)).at_least(1, 6),
                Section::new(4, self.race(canvas, columns)).at_least(1, 8),
                Section::new(3, self.timeline(canvas, columns)),
                Section::new(5, self.protection(canvas, columns)),
                Section::new(6, self.steps(canvas, columns)).at_least(1, 9),
                Section::new(10, self.debts(canvas, columns)),
                Section::new(11, self.jobs(canvas, columns)),
            ]
        };
        let all: usize = sections().iter().map(Section::len).sum();
        let height = usize::from(area.height);
        let scrolled = matches!(self.model.ui.scroll[Pane::Recovery.index()], Scroll::At(top) if top > 0);
        if all > height && !scrolled {
            let mut lines = allot(sections(), height.saturating_sub(1));
            lines.push(cut_mark(canvas, all - lines.len(), columns));
            // Scrolling begins where everything stands below each other.
            canvas.note_page(Pane::Recovery, all, height, 0);
            put_from(canvas, area, &lines, 0);
            return;
        }
        let lines = lines_of(sections());
        let top = self.top(canvas, lines.len(), height);
        put_from(canvas, area, &lines, top);
    }

    /// The first line to show, never past the end.
    fn top(&self, canvas: &mut Canvas<'_>, lines: usize, height: usize) -> usize {
        let top = match self.model.ui.scroll[Pane::Recovery.index()] {
            Scroll::Follow => 0,
            Scroll::At(top) => top.min(lines.saturating_sub(height)),
        };
        canvas.note_page(Pane::Recovery, lines, height, top);
        top
    }

    /// What became of the debt of a request that was selected by hand, where no job pays it.
    fn unpaid(&self) -> Option<String> {
        let request = self.ledger.request(self.model.ui.selection?)?;
        let shown = self.job.map_or_else(String::new, |job| format!("; below: job {}", job.id.0));
        let turn = request.turn;
        match self.ledger.recovery().debt_of(request.id)?.taken {
            DebtTaken::Declined { why } => Some(format!("turn {turn}: declined, {}{shown}", why.words())),
            DebtTaken::LeftOut { job } => {
                Some(format!("turn {turn}: left out, job {} of another history goes on{shown}", job.0))
            }
            _ => None,
        }
    }
}

/// Nothing was told yet: what would have to be done for something to be.
fn draw_nothing(canvas: &mut Canvas<'_>, model: &Model, area: Rect) {
    let ledger = model.ledger();
    let scorer = ledger.run().is_some_and(|run| run.specprefill.is_some());
    let how = match (model.recording.is_some(), recovery::obstacle(ledger), ledger.recovery_on()) {
        (true, ..) => {
            "a recording of `escarp replay --set recovery.enabled=true --record FILE` has jobs to show"
                .to_owned()
        }
        (false, Err(why), _) => format!("nothing is recovered: {why}"),
        (false, Ok(()), on) => {
            let on = if on == Some(true) { "recovery is on" } else { "recovery is off: `O` switches it on" };
            let next = match scorer {
                true => "the next sparse request leaves a debt that a job pays while nobody waits",
                false => "`--set specprefill.enabled=true` makes requests sparse, which leaves debts to pay",
            };
            format!("{on}; {next}")
        }
    };
    let what = "here then: how far a job has come, what it waits for, who is sooner, and what it was worth in seconds";
    let columns = usize::from(area.width).saturating_sub(2);
    let mut row = 0;
    for (words, tone) in [(how.as_str(), Tone::Key), (what, Tone::Dim)] {
        let mut pieces = Vec::new();
        text::wrap_line(words, columns, &mut pieces);
        for piece in pieces {
            canvas.put(area, 1, row, &piece, tone);
            row += 1;
        }
    }
}

fn lines_of(sections: Vec<Section<Line<'static>>>) -> Vec<Line<'static>> {
    allot(sections, usize::MAX)
}

/// That rows were left out, and how they are seen.
fn cut_mark(canvas: &Canvas<'_>, rows: usize, width: usize) -> Line<'static> {
    let rows = if rows == 1 { "1 row more".to_owned() } else { format!("{rows} rows more") };
    let words = format!("  … {rows}: PgDn scrolls");
    Line::from(canvas.span(text::fit(&words, width).into_owned(), Tone::Key))
}

fn put_from(canvas: &mut Canvas<'_>, area: Rect, lines: &[Line<'static>], top: usize) {
    for (row, line) in lines.iter().skip(top).enumerate().take(usize::from(area.height)) {
        canvas.line(area, row, line);
    }
}

/// Words of one tone that stay together.
fn words(canvas: &Canvas<'_>, text: impl Into<String>, tone: Tone) -> Group {
    vec![canvas.span(text.into(), tone)]
}

/// Groups on as many lines as they need, two blanks behind each.
fn flow(
    canvas: &Canvas<'_>,
    name: &str,
    groups: impl IntoIterator<Item = Group>,
    width: usize,
) -> Vec<Line<'static>> {
    let apart = |mut group: Group| {
        let ends = group.last().is_some_and(|span| span.content.ends_with("  "));
        if !ends {
            group.push(canvas.span("  ", Tone::Dim));
        }
        group
    };
    super::flow::flow(canvas, name, groups.into_iter().map(apart), width)
}
