//! What became of debts, and the jobs so far.

use ratatui::text::Line;

use super::figures::{counted, signed_seconds};
use super::{View, flow, words};
use crate::event::DebtTaken;
use crate::ledger::{JobFacts, JobState};
use crate::tui::text::{self, count, thousands};
use crate::tui::theme::Tone;
use crate::tui::view::Canvas;

impl View<'_> {
    /// How many debts were taken on, and why the others were not.
    pub(super) fn debts(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let recovery = self.ledger.recovery();
        let considered = recovery.considered();
        if considered.is_empty() {
            return Vec::new();
        }
        let of = |what: fn(&DebtTaken) -> bool| {
            considered.iter().filter(|facts| what(&facts.considered.taken)).count()
        };
        let mut groups =
            vec![words(canvas, format!("{} considered  ", thousands(considered.len() as u64)), Tone::Strong)];
        for (number, what) in [
            (
                of(|taken| matches!(taken, DebtTaken::Began { .. } | DebtTaken::Replaced { .. })),
                "began a job",
            ),
            (of(|taken| matches!(taken, DebtTaken::Extended { .. })), "extended one"),
            (of(|taken| matches!(taken, DebtTaken::Covered { .. })), "covered already"),
            (of(|taken| matches!(taken, DebtTaken::LeftOut { .. })), "left out for another history"),
        ] {
            if number > 0 {
                groups.push(words(canvas, format!("{number} {what}  "), Tone::Text));
            }
        }
        for (why, number) in recovery.declines() {
            groups.push(words(canvas, format!("{number} declined: {}  ", why.words()), Tone::Text));
        }
        let mut lines = flow(canvas, "debts", groups, width);
        if let Some(job) = self.job {
            let lost = job
                .lowered
                .iter()
                .fold(0, |sum: u64, told| sum.saturating_add(told.from.saturating_sub(told.to)));
            let short = job.publications.iter().filter(|told| !told.holds()).count();
            let mut groups = vec![words(
                canvas,
                format!(
                    "{}, live state {}  ",
                    counted(job.published().count(), "publication"),
                    match job.retirements.len() {
                        0 => "never given up".to_owned(),
                        1 => "given up once".to_owned(),
                        times => format!("given up {times} times"),
                    }
                ),
                Tone::Text,
            )];
            if short > 0 {
                groups.push(words(canvas, format!("{short} NOT FOUND AGAIN  "), Tone::Warn));
            }
            if lost > 0 {
                groups.push(words(
                    canvas,
                    format!("the cache lost {} committed tokens", thousands(lost)),
                    Tone::Warn,
                ));
            }
            lines.extend(flow(canvas, "published", groups, width));
        }
        lines
    }

    /// The jobs, the latest first: how far each came, how it ended, what it was worth.
    pub(super) fn jobs(&self, canvas: &Canvas<'_>, width: usize) -> Vec<Line<'static>> {
        let recovery = self.ledger.recovery();
        let shown = self.job.map(|job| job.id);
        let row = |(at, job): (usize, &JobFacts)| {
            let name = if at == 0 { "jobs" } else { "" };
            let (state, tone) = match (job.state(), job.drop_reason()) {
                (_, Some(end)) => (format!("DROPPED, {}", end.words()), Tone::Warn),
                (JobState::Complete, _) => ("complete".to_owned(), Tone::Good),
                (JobState::Waiting, _) => ("waits".to_owned(), Tone::Text),
                (JobState::Running | JobState::Dropped, _) => ("runs".to_owned(), Tone::Text),
            };
            let net = self.returns.get(&job.id).and_then(|account| account.seconds());
            let net = net.map_or_else(|| text::UNKNOWN.to_owned(), signed_seconds);
            let mark = if shown == Some(job.id) { "▸" } else { " " };
            let groups = vec![
                words(canvas, format!("{mark}{}{}: ", job.id.0, super::turns(self.model, job)), Tone::Key),
                words(
                    canvas,
                    format!(
                        "{}–{} of {} ",
                        count(job.committed_at_start),
                        count(job.committed),
                        count(job.target)
                    ),
                    Tone::Text,
                ),
                words(canvas, format!("{state}  "), tone),
                words(canvas, format!("net {net}"), Tone::Dim),
            ];
            flow(canvas, name, groups, width)
        };
        recovery.jobs().rev().enumerate().flat_map(row).collect()
    }
}
