//! A run as a table: what `replay` prints, and `inspect` for a recording.

use super::account::account;
use super::recovery::recovery_text;
use super::speculation::speculation_text;
use super::{Align, Table, counted, or_dash, rate, seconds, signed_thousands, thousands};
use crate::event::{Identity, RunFacts, SessionSetting, SnapshotsStored};
use crate::ledger::{Latency, Ledger, Row, SessionCutFacts};

/// What ran on what, in one line.
pub fn run_line(facts: &RunFacts) -> String {
    let RunFacts {
        session,
        model,
        precision,
        device,
        kernel,
        identity,
        clock,
        replay_mode,
        block_tokens,
        snapshot_policy,
        ..
    } = facts;
    let snapshots =
        snapshot_policy.as_ref().map_or_else(String::new, |policy| format!(" · snapshots {policy}"));
    if *identity == Identity::Imported {
        return format!(
            "{session} · {model} · {device} {kernel} {} · blocks of {block_tokens}",
            identity.word()
        );
    }
    format!(
        "{session} · {model} {precision} · {device} {kernel} {} · {clock} clock · {replay_mode} · blocks of {block_tokens}{snapshots}",
        identity.word()
    )
}

/// What the session sets of the configuration, in one line; `None` where it sets nothing.
pub fn settings_line(facts: &RunFacts) -> Option<String> {
    let word = |SessionSetting { setting, in_effect }: &SessionSetting| match in_effect {
        true => setting.clone(),
        false => format!("{setting} (overridden)"),
    };
    let words: Vec<_> = facts.session_settings.iter().map(word).collect();
    (!words.is_empty()).then(|| format!("set by the session: {}", words.join(" · ")))
}

/// Why a session was not replayed to its end, in one line.
pub fn cut_line(cut: SessionCutFacts) -> String {
    format!(
        "session cut after {} of {} requests: the next prompt has {} tokens and the context holds {}",
        thousands(cut.kept_requests),
        thousands(cut.of_requests),
        thousands(cut.prompt_tokens),
        thousands(cut.context_tokens)
    )
}

/// One line a request. A fall of the checkpoint is marked `▼`, a request beside the line of history `side`, a figure nobody measured `–`.
pub fn request_table(ledger: &Ledger) -> Table {
    let mut table = Table::new(&[
        ("turn", Align::Right),
        ("request", Align::Left),
        ("prompt", Align::Right),
        ("ckpt", Align::Right),
        ("Δckpt", Align::Right),
        ("suffix", Align::Right),
        ("fresh", Align::Right),
        ("route", Align::Left),
        ("ttft", Align::Right),
        ("out", Align::Right),
        ("tok/s", Align::Right),
        ("debt", Align::Right),
        ("cause", Align::Left),
    ]);
    let forked = ledger.lanes().count() > 1;
    for row in ledger.rows() {
        table.row(cells(&row, forked));
    }
    table
}

fn cells(row: &Row, forked: bool) -> [String; 13] {
    let mark = if row.cliff == Some(true) { "▼" } else { "" };
    // The first reply token comes out of the prefill, so decoding makes one fewer.
    let decoded = row.output_tokens.and_then(|n| n.checked_sub(1)).filter(|n| *n > 0);
    let speed = decoded.zip(row.decode_s).filter(|(_, s)| *s > 0.0).map(|(n, s)| n as f64 / s);
    let cause = match &row.error {
        Some(error) => Some(format!("failed: {error}")),
        None => row.cause.clone(),
    };
    [
        if forked { format!("{}{}", row.lane, row.turn) } else { row.turn.to_string() },
        if row.side { format!("{} (side)", row.name) } else { row.name.clone() },
        or_dash(row.prompt_tokens, thousands),
        or_dash(row.checkpoint_tokens, thousands),
        or_dash(row.checkpoint_delta, |delta| format!("{mark}{}", signed_thousands(delta))),
        or_dash(row.uncached_suffix, thousands),
        or_dash(row.fresh_tokens, thousands),
        or_dash(row.route, str::to_owned),
        or_dash(row.ttft_s, seconds),
        or_dash(row.output_tokens, thousands),
        or_dash(speed, rate),
        or_dash(row.canonical_debt_tokens, thousands),
        or_dash(cause, |cause| cause),
    ]
}

/// What drafting gave and cost, where something drafted; what recovery did and was worth, where it was told of; the sums of a run, its cliffs and debt, what happened to its SSD tier and by hand, and the ledger hash: equal hashes, equal facts.
pub fn summary(ledger: &Ledger) -> String {
    let rows = ledger.rows();
    let total = |field: fn(&Row) -> Option<u64>| rows.iter().filter_map(field).fold(0, u64::saturating_add);
    let prompt = total(|r| r.prompt_tokens);
    let restored = total(|r| r.checkpoint_tokens);
    let share = if prompt > 0 {
        format!(" ({:.1} %)", restored as f64 * 100.0 / prompt as f64)
    } else {
        String::new()
    };
    let waited = rows.iter().filter_map(|r| r.ttft_s).reduce(|sum, ttft| sum + ttft);
    let cliffs: Vec<_> = rows.iter().filter(|r| r.cliff == Some(true)).map(|r| r.turn.to_string()).collect();
    let cliffs = match cliffs.as_slice() {
        [] => "no cliff".to_owned(),
        [turn] => format!("cliff at turn {turn}"),
        turns => format!("cliffs at turns {}", turns.join(", ")),
    };
    format!(
        "{}{}{} · prompt {} · from the checkpoint {}{share} · uncached {} · Σ ttft {} · {cliffs}\n{}{}{}ledger: {}\n",
        speculation_text(ledger),
        recovery_text(ledger),
        counted(rows.len() as u64, "request"),
        thousands(prompt),
        thousands(restored),
        thousands(total(|r| r.uncached_suffix)),
        or_dash(waited, seconds),
        latencies(ledger),
        snapshots(&rows),
        account(ledger),
        ledger.facts_hash()
    )
}

/// A line about snapshots of recurrent state; nothing for a model that has none.
fn snapshots(rows: &[Row]) -> String {
    let counts = rows.iter().filter_map(|row| row.snapshots).reduce(|sum, row| SnapshotsStored {
        stored: sum.stored.saturating_add(row.stored),
        not_taken: sum.not_taken.saturating_add(row.not_taken),
        dropped: sum.dropped.saturating_add(row.dropped),
    });
    let Some(SnapshotsStored { stored, not_taken, dropped }) = counts else { return String::new() };
    let [stored, not_taken, dropped] = [stored, not_taken, dropped].map(thousands);
    format!(
        "snapshots stored {stored}, not taken for want of room {not_taken}, dropped to make room {dropped}\n"
    )
}

/// A line of latency distributions; nothing before there is a reply.
fn latencies(ledger: &Ledger) -> String {
    let words = |name: &str, latency: &Latency| {
        let q = latency.quantiles()?;
        let [p50, p90, max] = [q.p50, q.p90, q.max].map(|time| seconds(time.seconds()));
        Some(format!("{name} p50 {p50}, p90 {p90}, max {max}"))
    };
    let known: Vec<_> =
        [words("first token", ledger.first_token()), words("between tokens", ledger.between_tokens())]
            .into_iter()
            .flatten()
            .collect();
    if known.is_empty() { String::new() } else { format!("{}\n", known.join(" · ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{
        Arrival, Body, Cause, Event, HistoryChange, LaneId, Loss, Nanos, RequestId, Restore, Route, Source,
        Stamp,
    };

    fn ledger(prompts_and_checkpoints: &[(u64, Option<u64>)]) -> Ledger {
        let mut ledger = Ledger::new();
        let mut seq = 0;
        for (index, (prompt, checkpoint)) in prompts_and_checkpoints.iter().enumerate() {
            let mut tell = |body| {
                let request = Some(RequestId(index as u64 + 1));
                ledger.apply(&Event { seq, at: Stamp(seq), lane: Some(LaneId(0)), request, body });
                seq += 1;
            };
            tell(Body::Arrived(Box::new(Arrival {
                turn: index as u32 + 1,
                name: format!("r{}\x1b[2J", index + 1),
                source: Source::Replay,
                change: HistoryChange::Append,
                idle: Some(Nanos(0)),
                prompt_tokens: *prompt,
                segments: Vec::new(),
                items: Vec::new(),
                max_output_tokens: Some(8),
                delayed: None,
            })));
            let Some(checkpoint) = *checkpoint else { continue };
            tell(Body::Restored(Box::new(Restore {
                common_prefix_tokens: Some(checkpoint),
                matched_tokens: checkpoint,
                matched_with_state_tokens: checkpoint,
                checkpoint_tokens: checkpoint,
                losses: vec![Loss {
                    cause: Cause::Evicted,
                    tokens: prompt - checkpoint,
                    detail: "block 4".into(),
                    block: None,
                }],
                cause: Cause::Evicted,
                divergence: None,
                blocks: Vec::new(),
                closest: None,
                held_tokens: checkpoint,
                ssd: None,
                took: Nanos(0),
            })));
            tell(Body::Routed { route: Route::Dense, uncached_suffix: prompt - checkpoint });
        }
        ledger
    }

    #[test]
    fn the_fall_is_marked_and_what_nobody_measured_is_a_dash() {
        let ledger = ledger(&[(12_000, Some(10_240)), (13_000, Some(1_024)), (14_000, None)]);
        let text = request_table(&ledger).to_string();
        let lines: Vec<_> =
            text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(lines[1], "1 r1�[2J 12,000 10,240 – 1,760 1,760 dense – – – – block evicted: block 4");
        assert_eq!(
            lines[2],
            "2 r2�[2J 13,000 1,024 ▼-9,216 11,976 11,976 dense – – – – block evicted: block 4"
        );
        assert_eq!(lines[3], "3 r3�[2J 14,000 – – – – – – – – – –");
        let summary = summary(&ledger);
        assert!(
            summary.starts_with("3 requests · prompt 39,000 · from the checkpoint 11,264 (28.9 %)"),
            "{summary}"
        );
        assert!(summary.contains("cliff at turn 2\n"), "{summary}");
        assert!(summary.ends_with(&format!("ledger: {}\n", ledger.facts_hash())), "{summary}");
    }

    #[test]
    fn latencies_are_told_once_there_is_a_reply() {
        let mut ledger = ledger(&[(100, Some(0))]);
        assert!(!summary(&ledger).contains("between tokens"));
        for index in 0..3 {
            let body = Body::Token { token: 1, text: "x".to_owned(), index, margin: None };
            let at = Stamp(1_000_000_000 + index * 20_000_000);
            ledger.apply(&Event {
                seq: 90 + index,
                at,
                lane: Some(LaneId(0)),
                request: Some(RequestId(1)),
                body,
            });
        }
        let summary = summary(&ledger);
        assert!(summary.contains("first token p50 1.00 s"), "{summary}");
        assert!(summary.contains("between tokens p50 20.0 ms"), "{summary}");
    }

    #[test]
    fn snapshots_are_counted_where_the_model_has_recurrent_layers() {
        let mut ledger = ledger(&[(100, Some(0)), (200, Some(0))]);
        assert!(!summary(&ledger).contains("snapshots"));
        for request in [1, 2] {
            let snapshots = Some(SnapshotsStored { stored: 1_000, not_taken: request, dropped: 0 });
            let body = Body::Stored {
                stored_tokens: 0,
                canonical_tokens: 0,
                evicted_blocks: 0,
                snapshots,
                tier: None,
            };
            let (lane, request) = (Some(LaneId(0)), Some(RequestId(request)));
            ledger.apply(&Event { seq: 90, at: Stamp(90), lane, request, body });
        }
        let summary = summary(&ledger);
        let words = "snapshots stored 2,000, not taken for want of room 3, dropped to make room 0\n";
        assert!(summary.contains(words), "{summary}");
    }

    #[test]
    fn an_empty_ledger_has_a_summary() {
        assert!(summary(&Ledger::new()).starts_with("0 requests · prompt 0 · from the checkpoint 0 · "));
    }
}
