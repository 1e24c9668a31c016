//! What a run's cliffs cost and who paid, what its SSD tier did, and what was done to it by hand: lines under the table.

use super::{bytes, counted, printable, seconds, thousands};
use crate::event::{RequestId, TierReading};
use crate::ledger::{Cliff, DebtEntry, Ledger, RequestFacts};

/// The lines, each with its line end; none where there is nothing to tell.
pub(super) fn account(ledger: &Ledger) -> String {
    let lanes = || ledger.lanes().map(|(lane, _)| lane);
    let cliffs = lanes().flat_map(|lane| ledger.cliff_list(lane)).map(|cliff| cliff_line(ledger, &cliff));
    let faults =
        ledger.faults().iter().map(|fault| format!("fault injected: {}: {}", fault.fault, fault.outcome));
    let hit = ledger.breakpoint_hit().map(|hit| {
        let request = hit.request.map(|id| format!(" at {}", request_words(ledger, id))).unwrap_or_default();
        format!("paused{request}: {} ({})", hit.condition, hit.observed)
    });
    let lines = cliffs
        .chain(debt_line(ledger))
        .chain(ledger.tier().map(|tier| tier_line(ledger, tier)))
        .chain(trouble_lines(ledger))
        .chain(faults)
        .chain(hit);
    lines.map(|line| printable(&line) + "\n").collect()
}

/// A request by its number, and by its turn where that is another or there are several lanes.
fn request_words(ledger: &Ledger, id: RequestId) -> String {
    let turn = |request: &RequestFacts| match ledger.lanes().count() > 1 {
        true => Some(format!(" (turn {}{})", request.lane.label(), request.turn)),
        false if u64::from(request.turn) != id.0 => Some(format!(" (turn {})", request.turn)),
        false => None,
    };
    format!("request {}{}", id.0, ledger.request(id).and_then(turn).unwrap_or_default())
}

/// ` (≈ 61.0 s)`; nothing where the run has no prefill curve.
fn about(time: Option<f64>) -> String {
    time.map(|time| format!(" (≈ {})", seconds(time))).unwrap_or_default()
}

/// `cliff at request 11: checkpoint 37,888 → 28,672, no recurrent snapshot: …; pinned 10 requests, …; not healed`.
fn cliff_line(ledger: &Ledger, cliff: &Cliff) -> String {
    let cause = ledger.request(cliff.request).and_then(RequestFacts::cause_sentence).unwrap_or_default();
    let writer = cliff.block.map(|block| {
        let detail_names_it = block.is_named_in(&cause);
        let block_words = if detail_names_it { String::new() } else { format!(", block {}", block.index) };
        let writer = match (block.written_by, block.earlier_run) {
            (Some(_), _) if cause.contains("written by") => String::new(),
            (Some(request), false) => format!(", written by request {}", request.0),
            (Some(request), true) => format!(", written by request {} of an earlier run", request.0),
            (None, true) => ", written by an earlier run".to_owned(),
            (None, false) => String::new(),
        };
        block_words + &writer
    });
    let end = match cliff.healed_by {
        Some(request) => format!("healed by {}", request_words(ledger, request)),
        None => "not healed".to_owned(),
    };
    format!(
        "cliff at {}: checkpoint {} → {}, {cause}{}; pinned {}, {} suffix tokens behind it{}, {} before it; {end}",
        request_words(ledger, cliff.request),
        thousands(cliff.from_tokens),
        thousands(cliff.to_tokens),
        writer.unwrap_or_default(),
        counted(u64::from(cliff.pinned_requests), "request"),
        thousands(cliff.suffix_behind),
        about(cliff.seconds_behind),
        thousands(cliff.suffix_before),
    )
}

/// What was computed again, and what the lanes still owe at their ends. Nothing for a run in which no request came after another.
fn debt_line(ledger: &Ledger) -> Option<String> {
    let mut recomputed: Option<(u64, Option<f64>)> = None;
    let mut owed = Vec::new();
    let forked = ledger.lanes().count() > 1;
    for (lane, facts) in ledger.lanes() {
        // A lane's account covers its ancestors' requests too; each is summed in its own lane.
        let own =
            |entry: &&DebtEntry| ledger.request(entry.request).is_some_and(|request| request.lane == lane);
        let debt = ledger.debt(lane);
        for entry in debt.iter().filter(own) {
            let Some(tokens) = entry.recomputed_tokens else { continue };
            recomputed = Some(match recomputed {
                None => (tokens, entry.recomputed_s),
                Some((sum, time)) => {
                    let time = time.zip(entry.recomputed_s).map(|(sum, more)| sum + more);
                    (sum.saturating_add(tokens), time)
                }
            });
        }
        // What stands beside the line of history leaves nothing for the line to pay.
        let last = debt.iter().filter(own).rfind(|entry| entry.prefix_cache_debt.is_some());
        let name = if forked { format!("lane {}: ", lane.label()) } else { String::new() };
        owed.extend(
            last.filter(|_| !facts.requests.is_empty()).map(|entry| format!("{name}{}", owed_words(entry))),
        );
    }
    let recomputed = recomputed
        .map(|(tokens, time)| format!("{} tokens computed again{}", thousands(tokens), about(time)));
    let parts: Vec<String> = recomputed.into_iter().chain(owed).collect();
    (!parts.is_empty()).then(|| format!("debt: {}", parts.join(" · ")))
}

/// What the last request of a line leaves behind.
fn owed_words(last: &DebtEntry) -> String {
    let canonical = last.canonical_debt.map(|tokens| format!("canonical {} at the end", thousands(tokens)));
    let behind = match last.prefix_cache_debt {
        Some(tokens) if tokens > 0 => Some(format!(
            "prefix-cache {} since the cliff{}",
            thousands(tokens),
            about(last.prefix_cache_debt_s)
        )),
        Some(_) => Some("no cliff open".to_owned()),
        None => None,
    };
    canonical.into_iter().chain(behind).collect::<Vec<_>>().join(", ")
}

/// The latest troubles of the tier: one broken disk may have caused hundreds.
fn trouble_lines(ledger: &Ledger) -> impl Iterator<Item = String> {
    const SHOWN: usize = 3;
    let troubles = ledger.tier_troubles();
    let earlier = troubles.len().saturating_sub(SHOWN);
    let more =
        (earlier > 0).then(|| format!("ssd tier: {} before those below", counted(earlier as u64, "event")));
    more.into_iter().chain(troubles.skip(earlier).map(|trouble| format!("ssd tier: {}", trouble.detail)))
}

/// What the tier holds, what came from it, and what went wrong with it.
fn tier_line(ledger: &Ledger, tier: &TierReading) -> String {
    let read = ledger.requests().filter_map(|request| request.restore.as_ref()?.ssd);
    let (blocks, size) = read.fold((0_u64, 0_u64), |(blocks, size), ssd| {
        (blocks.saturating_add(ssd.blocks), size.saturating_add(ssd.bytes))
    });
    let mut parts = vec![format!(
        "ssd tier: {}, {}, {} of {}",
        counted(tier.blocks, "block"),
        counted(tier.snapshots, "snapshot"),
        bytes(tier.bytes),
        bytes(tier.limit_bytes)
    )];
    parts.extend(
        (tier.foreign_bytes > 0).then(|| format!("{} of other identities", bytes(tier.foreign_bytes))),
    );
    parts.push(format!("read {} ({})", counted(blocks, "block"), bytes(size)));
    for (count, noun) in [
        (tier.written_files, "files written"),
        (tier.queued_files, "not yet written"),
        (tier.evicted_files, "removed for room"),
        (tier.declined, "not taken"),
        (tier.damaged, "damaged"),
        (tier.failed_writes, "not written for errors"),
    ] {
        parts.extend((count > 0).then(|| format!("{} {noun}", thousands(count))));
    }
    parts.extend(tier.problem.as_ref().map(|problem| format!("writing is suspended: {problem}")));
    parts.join(" · ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{
        Arrival, Body, Cause, Culprit, Event, HistoryChange, LaneId, Loss, Nanos, Restore, Source, SsdRead,
        Stamp, TierTrouble,
    };

    fn restore(checkpoint: u64, cause: Cause, detail: &str, block: Option<Culprit>) -> Restore {
        Restore {
            common_prefix_tokens: Some(44_790),
            closest: None,
            held_tokens: checkpoint,
            matched_tokens: checkpoint,
            matched_with_state_tokens: checkpoint,
            checkpoint_tokens: checkpoint,
            losses: vec![Loss { cause, tokens: 9, detail: detail.to_owned(), block }],
            cause,
            divergence: None,
            blocks: Vec::new(),
            ssd: Some(SsdRead { blocks: 3, snapshots: 1, bytes: 2_048, took: Nanos(1) }),
            took: Nanos(0),
        }
    }

    fn say(ledger: &mut Ledger, request: u64, body: Body) {
        let (lane, request) = (Some(LaneId(0)), Some(RequestId(request)));
        ledger.apply(&Event { seq: 0, at: Stamp(0), lane, request, body });
    }

    fn request(ledger: &mut Ledger, id: u64, turn: u32, prompt_tokens: u64, restored: Restore) {
        let arrival = Arrival {
            turn,
            name: "r".into(),
            source: Source::Replay,
            change: HistoryChange::Append,
            idle: None,
            prompt_tokens,
            segments: Vec::new(),
            items: Vec::new(),
            max_output_tokens: None,
            delayed: None,
        };
        say(ledger, id, Body::Arrived(Box::new(arrival)));
        say(ledger, id, Body::Restored(Box::new(restored)));
    }

    fn fallen() -> Ledger {
        let mut ledger = Ledger::new();
        let block = Some(Culprit { index: 37, written_by: Some(RequestId(10)), earlier_run: false });
        request(&mut ledger, 10, 10, 44_790, restore(37_888, Cause::BlockFloor, "", None));
        request(&mut ledger, 11, 11, 45_732, restore(28_672, Cause::NoSnapshot, "block 37", block));
        // A request of which only the chunk's time is told gives the curve: two milliseconds a token.
        request(&mut ledger, 13, 12, 46_629, restore(28_672, Cause::NoSnapshot, "block 37", block));
        ledger
    }

    #[test]
    fn a_cliff_is_told_with_its_block_its_cost_and_its_end() {
        let mut ledger = fallen();
        let text = account(&ledger);
        assert_eq!(
            text.lines().next().unwrap(),
            "cliff at request 11: checkpoint 37,888 → 28,672, no recurrent snapshot: block 37, written by request 10; pinned 2 requests, \
             35,017 suffix tokens behind it, 6,902 before it; not healed"
        );
        assert!(
            text.contains("debt: 39,138 tokens computed again · prefix-cache 35,017 since the cliff\n"),
            "{text}"
        );
        say(&mut ledger, 13, Body::Prefilled { computed_tokens: 1_000, took: Nanos::from_seconds(2.0) });
        request(&mut ledger, 14, 13, 47_000, restore(46_080, Cause::BlockFloor, "", None));
        let text = account(&ledger);
        assert!(
            text.contains(
                "35,017 suffix tokens behind it (≈ 70.0 s), 6,902 before it; healed by request 14 (turn 13)\n"
            ),
            "{text}"
        );
        assert!(text.contains(" · no cliff open\n"), "{text}");
    }

    #[test]
    fn a_block_the_detail_does_not_name_is_named() {
        let mut ledger = Ledger::new();
        let block = Some(Culprit { index: 4, written_by: Some(RequestId(2)), earlier_run: true });
        request(&mut ledger, 1, 1, 50_000, restore(40_960, Cause::BlockFloor, "", None));
        request(&mut ledger, 2, 2, 50_000, restore(4_096, Cause::Damaged, "bad checksum\x1b[2J", block));
        let text = account(&ledger);
        assert!(
            text.contains("file damaged: bad checksum�[2J, block 4, written by request 2 of an earlier run; pinned 1 request,"),
            "{text}"
        );
    }

    #[test]
    fn tier_faults_and_pauses_are_told_where_there_were_any() {
        let mut ledger = fallen();
        assert!(!account(&ledger).contains("ssd tier"));
        let reading = TierReading {
            blocks: 120,
            snapshots: 1,
            bytes: 3 << 20,
            limit_bytes: 4 << 30,
            written_files: 121,
            damaged: 2,
            problem: Some("disk full".into()),
            ..TierReading::default()
        };
        say(&mut ledger, 13, Body::Tier(Box::new(reading)));
        let detail = "ab/cd.blk: checksum".to_owned();
        say(&mut ledger, 13, Body::TierTrouble { trouble: TierTrouble::Damaged, detail });
        say(
            &mut ledger,
            13,
            Body::FaultInjected { fault: "evict 3".into(), outcome: "block 3 is gone".into() },
        );
        say(
            &mut ledger,
            13,
            Body::BreakpointHit { condition: "cliff".into(), observed: "checkpoint 2 → 1".into() },
        );
        let text = account(&ledger);
        for line in [
            "ssd tier: 120 blocks, 1 snapshot, 3.0 MiB of 4.0 GiB · read 9 blocks (6.0 KiB) · 121 files written · 2 damaged · writing is suspended: disk full",
            "ssd tier: ab/cd.blk: checksum",
            "fault injected: evict 3: block 3 is gone",
            "paused at request 13 (turn 12): cliff (checkpoint 2 → 1)",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn an_empty_run_has_nothing_to_tell() {
        assert_eq!(account(&Ledger::new()), "");
    }
}
