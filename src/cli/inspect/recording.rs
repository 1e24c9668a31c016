//! A recording: the run it was made of, its rows, its ledger hash.

use std::path::Path;

use serde::Serialize;

use super::super::Failure;
use super::super::output::Output;
use crate::event::{RunFacts, record};
use crate::ledger::{Ledger, Row, SessionCutFacts};
use crate::report::{cut_line, printable, request_table, run_line, settings_line, summary};

/// What `--json` prints.
#[derive(Serialize)]
struct Recording<'a> {
    kind: &'static str,
    run: Option<&'a RunFacts>,
    events: u64,
    /// Whether the run came to its end; one that was cut off did not.
    complete: bool,
    /// Ranges of events that were lost while recording.
    lost: &'a [(u64, u64)],
    session_cut: Option<SessionCutFacts>,
    failure: Option<&'a str>,
    ledger: String,
    rows: Vec<Row>,
}

pub(super) fn inspect(path: &Path, json: bool, output: &mut Output) -> Result<(), Failure> {
    let mut ledger = Ledger::new();
    for event in record::open(path)? {
        ledger.apply(&event);
    }
    if json {
        return output.json(&Recording {
            kind: "recording",
            run: ledger.run(),
            events: ledger.events(),
            complete: ledger.ended(),
            lost: ledger.lost(),
            session_cut: ledger.session_cut(),
            failure: ledger.failure(),
            ledger: ledger.facts_hash(),
            rows: ledger.rows(),
        });
    }
    let mut text = ledger.run().map_or_else(|| "no run has started".to_owned(), run_line);
    let notes = [
        ledger.run().and_then(settings_line),
        ledger.session_cut().map(cut_line),
        ledger.failure().map(|failure| format!("the engine failed: {failure}")),
        (!ledger.ended()).then(|| "the recording stops before the run's end".to_owned()),
        (!ledger.lost().is_empty()).then(|| {
            let lost: u64 = ledger
                .lost()
                .iter()
                .map(|(from, to)| to.saturating_sub(*from).saturating_add(1))
                .fold(0, u64::saturating_add);
            format!("{lost} events were lost while recording: figures may be missing")
        }),
    ];
    for note in notes.into_iter().flatten() {
        text = text + "\n" + &note;
    }
    let text: String = text.lines().map(|line| printable(line) + "\n").collect();
    output.text(&format!("{text}\n{}\n{}", request_table(&ledger), summary(&ledger)))
}
