//! A comparison as a Markdown file, with its charts beside it.

use std::fmt::Write;

use super::super::speculation::{Titled, tables};
use super::super::{printable, run_line, settings_line};
use super::charts::{Chart, charts};
use super::drafting::drafting_table;
use super::facts::{gap_line, lane_lines, notes, verdict_lines};
use super::table::full_table;
use crate::compare::Comparison;
use crate::ledger::Ledger;
use crate::report::table::plain;

/// A report: the Markdown, and the charts it shows as `STEM-NAME.svg`.
pub struct Report {
    /// The Markdown.
    pub markdown: String,
    /// Its charts.
    pub charts: Vec<Chart>,
}

/// The report of a comparison. `stem` is the report's file name without its extension, `command` what made it.
pub fn report(comparison: &Comparison, stem: &str, command: &str) -> Report {
    let charts = charts(comparison);
    let run = comparison.ledger_of(0, comparison.base()).and_then(Ledger::run);
    let session = run.map_or("A session", |run| run.session.as_str());
    let mut text = format!("# {}\n\n", plain(&format!("{session}: {}", comparison.names().join(", "))));
    let mut paragraph = |lines: &[String]| {
        for line in lines {
            // Writing to a string does not fail.
            let _ = writeln!(text, "* {}", plain(line));
        }
        text.push('\n');
    };
    let head = run.map(run_line).into_iter().chain(run.and_then(settings_line));
    paragraph(&head.chain(lane_lines(comparison)).chain(gap_line(comparison)).collect::<Vec<_>>());
    let verdicts = verdict_lines(comparison);
    if !verdicts.is_empty() {
        text.push_str("## Verdict\n\n");
        for line in &verdicts {
            let _ = writeln!(text, "**{}.**\n", plain(line));
        }
    }
    for Chart { name, alternative, .. } in &charts {
        let _ = writeln!(text, "![{}]({}-{name}.svg)\n", plain(alternative), link(stem));
    }
    if let Some(table) = drafting_table(comparison, usize::MAX) {
        text.push_str("## Drafting\n\n");
        text.push_str(&table.markdown());
        text.push_str(
            "\n`cost` is what a cycle takes in dense steps of the same turn, and the tokens per cycle at which drafting breaks even. `share` is the part of a \
             reply that cycles gave. `predicted` follows from these; `!` marks a prediction more than 10 % off `decode`, which is measured over the tokens after the first. `end to end` is from \
             arrival to the last token, `priming` the time a drafter took to read the prompt before the first one.\n\n",
        );
    }
    for (lane, name) in comparison.names().iter().enumerate() {
        let tables = comparison.ledger_of(0, lane).map(tables).unwrap_or_default();
        if !tables.is_empty() {
            let _ = writeln!(text, "## Speculation in {}\n", plain(name));
        }
        for Titled { title, table, note } in tables {
            let _ = writeln!(text, "### {title}\n\n{}\n{note}\n", table.markdown());
        }
    }
    text.push_str("## Requests\n\n");
    text.push_str(&full_table(comparison).markdown());
    text.push_str(
        "\nTokens, but for times: `ckpt` is what was restored, `suffix` what lies behind it, `computed` what the target computed of that, `debt` what \
         of the prompt is not restorable when its request has ended. `lead` is how much less summed time to first token the lane has taken than the \
         one it is compared with. `≠ 3 (0.04)` says that the third reply token is the first that differs, and by how much the other lane preferred its own. `–` was \
         not measured.\n\n## What it rests on\n\n",
    );
    let hashes = comparison.names().iter().enumerate().filter_map(|(lane, name)| {
        Some(format!("ledger {name}: {}", comparison.ledger_of(0, lane)?.facts_hash()))
    });
    for line in notes(comparison).into_iter().chain(hashes) {
        let _ = writeln!(text, "* {}", plain(&line));
    }
    let fence = "`".repeat(longest_fence(command).max(2) + 1);
    let _ = write!(text, "\n## How to repeat it\n\n{fence}sh\n{}\n{fence}\n", printable(command));
    Report { markdown: text, charts }
}

fn longest_fence(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or(0)
}

/// A file name as the target of a link.
fn link(name: &str) -> String {
    name.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_stay_text() {
        assert_eq!(plain("a|b`c`<img src=x>[x](y)\n# z"), "a\\|b\\`c\\`&lt;img src=x&gt;\\[x\\](y) \\# z");
        assert_eq!(link("my report(1).x"), "my%20report%281%29.x");
        assert_eq!((longest_fence("no"), longest_fence("a `` b ` c")), (0, 2));
    }

    #[test]
    fn an_empty_comparison_has_a_report() {
        let report = report(&Comparison::new(["dense".to_owned()]), "r", "escarp report x");
        assert!(report.charts.is_empty());
        assert!(report.markdown.starts_with("# A session: dense\n"), "{}", report.markdown);
        assert!(report.markdown.ends_with("```sh\nescarp report x\n```\n"), "{}", report.markdown);
    }
}
