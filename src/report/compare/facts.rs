//! What stands around the table: the lanes, the verdicts, what they rest on.

use std::collections::BTreeMap;

use super::super::{bytes, counted, or_dash, printable, seconds, thousands};
use crate::compare::{Comparison, SegmentKept, Spread, Survived, Turn};
use crate::config::{ControllerKind, DrafterKind, RecoveryConfig, RecoveryPolicy};
use crate::event::{Identity, RunFacts, Segment, SpecPrefillFacts};
use crate::ledger::Ledger;
use crate::recovery::job::Mode;

/// One line a lane: its name, how sparse prefill and speculative decoding are set up in it, and what else is not the same in all lanes.
pub fn lane_lines(comparison: &Comparison) -> Vec<String> {
    let run = |lane: usize| comparison.ledger_of(0, lane).and_then(Ledger::run);
    let traits: Vec<Vec<String>> =
        (0..comparison.names().len()).map(|lane| run(lane).map(traits).unwrap_or_default()).collect();
    let differs = |place: usize| traits.iter().any(|words| words.get(place) != traits[0].get(place));
    let line = |(lane, words): (usize, &Vec<String>)| {
        let own = words.iter().enumerate().filter(|(place, _)| differs(*place)).map(|(_, word)| word.clone());
        let set_up = run(lane).map(sparse_words).into_iter().chain(run(lane).and_then(drafting_words));
        let set_up = set_up.chain(run(lane).and_then(recovery_words));
        let all: Vec<String> = set_up.chain(own).collect();
        printable(&format!("{}: {}", comparison.name(lane), all.join(" · ")))
    };
    traits.iter().enumerate().map(line).collect()
}

fn sparse_words(run: &RunFacts) -> String {
    match &run.specprefill {
        None | Some(SpecPrefillFacts { enabled: Some(false), .. }) => "dense prefill".to_owned(),
        Some(SpecPrefillFacts { enabled, keep, threshold, scorer, leaves, .. }) => format!(
            "sparse prefill {} over {} tokens, keep {keep}, scorer {scorer}, leaves {leaves}",
            if enabled.is_some() { "on" } else { "where a request asks for it" },
            thousands(*threshold),
        ),
    }
}

/// How a lane drafts; `None` where it does not.
fn drafting_words(run: &RunFacts) -> Option<String> {
    let facts = run.speculation.as_ref().filter(|facts| facts.drafter != DrafterKind::None)?;
    let model = match (facts.drafter, &facts.draft_model) {
        (DrafterKind::Draft, Some(model)) => format!(" {model}"),
        _ => String::new(),
    };
    let audit = if facts.audit { ", audited" } else { "" };
    let depth = match facts.controller {
        ControllerKind::Fixed => format!("{} a cycle", facts.depth_max),
        ControllerKind::Adaptive => format!("up to {} a cycle", facts.depth_max),
    };
    Some(format!("drafts by {}{model}, {depth}{audit}", facts.drafter.word()))
}

/// How a lane recovers; `None` where it does not.
fn recovery_words(run: &RunFacts) -> Option<String> {
    let RecoveryConfig {
        policy, mode, slice_tokens, interruptible, budget_pct, budget_tokens, window_s, ..
    } = run.recovery.as_ref().filter(|facts| facts.enabled)?;
    if matches!(policy, RecoveryPolicy::Dense { .. } | RecoveryPolicy::Never) {
        return Some(format!("recovery by policy {policy}"));
    }
    let mode = match mode {
        Mode::Progressive => "block by block",
        Mode::Terminal => "all at once",
    };
    let gives_way = if *interruptible { "" } else { " that do not give way" };
    let tokens = budget_tokens.map(|tokens| format!(" and {} tokens", thousands(tokens))).unwrap_or_default();
    Some(format!(
        "recovery publishes {mode}, slices of {}{gives_way}, {budget_pct} %{tokens} of every {window_s} s",
        thousands(*slice_tokens)
    ))
}

/// How long nobody asked anything: what recovery has to live on. `None` where no lane recovers.
pub fn gap_line(comparison: &Comparison) -> Option<String> {
    (0..comparison.names().len()).find(|lane| comparison.recovers(*lane))?;
    let ledger = comparison.ledger_of(0, comparison.base())?;
    let gaps = ledger.requests().skip(1).filter_map(|request| Some(request.idle?.seconds()));
    let gaps = Spread::of(gaps.map(Some))?;
    Some(match gaps {
        Spread { max: 0.0, .. } => "no idle time between requests".to_owned(),
        Spread { median, min, max, repeats } if min == max => {
            format!("idle before each of {}: {}", counted(repeats, "request"), seconds(median))
        }
        Spread { median, min, max, repeats } => format!(
            "idle before each of {}: {} to {}, median {}",
            counted(repeats, "request"),
            seconds(min),
            seconds(max),
            seconds(median)
        ),
    })
}

/// What can set a lane apart, each in its place.
fn traits(run: &RunFacts) -> Vec<String> {
    vec![
        format!("{} {}", run.model, run.precision),
        format!("{} {}", run.device, run.kernel),
        format!("blocks of {}", run.block_tokens),
        format!("snapshots {}", or_dash(run.snapshot_policy.clone(), |policy| policy)),
        format!("placeholders {}", or_dash(run.placeholder_policy.clone(), |policy| policy)),
        format!("RAM {}", or_dash(run.ram_bytes, bytes)),
        format!("{} clock", run.clock),
        run.replay_mode.clone(),
        or_dash(run.cache_dir.clone(), |dir| dir),
    ]
}

/// One sentence a lane.
pub fn verdict_lines(comparison: &Comparison) -> Vec<String> {
    comparison.verdicts().iter().map(|verdict| printable(&verdict.sentence())).collect()
}

/// What the table and the verdicts rest on, line by line: what was kept, how replies differ, who went first, whether repeats agree.
pub fn notes(comparison: &Comparison) -> Vec<String> {
    let turns = comparison.turns();
    let mut lines = Vec::new();
    for lane in comparison.others() {
        lines.extend(kept_line(comparison, lane, &turns));
        lines.extend(survival_line(comparison, lane, &turns));
        lines.extend(reply_line(comparison, lane, &turns));
        lines.extend(scorer_line(comparison, lane, &turns));
        lines.extend(identity_line(comparison, lane));
        lines.extend(recovery_line(comparison, lane));
    }
    lines.extend(order_line(comparison, &turns));
    lines.push(basis_line(comparison));
    lines.extend(comparison.disagreements().iter().map(|found| {
        let place = format!(" at turn {}", found.place.label());
        format!("repeats disagree: {}, repeat {}{place}: {}", found.lane, found.repeat, found.what)
    }));
    lines.iter().map(|line| printable(line)).collect()
}

fn cells(turns: &[Turn], lane: usize) -> impl Iterator<Item = &crate::compare::Cell> {
    turns.iter().filter_map(move |turn| turn.cells.get(lane)?.as_ref())
}

fn share(part: u64, of: u64) -> String {
    if of == 0 {
        or_dash(None::<u64>, thousands)
    } else {
        format!("{:.0} %", part as f64 * 100.0 / of as f64)
    }
}

/// `sparse kept 21 % of 54,210 scored tokens: user 40 %, tool result 15 %`.
fn kept_line(comparison: &Comparison, lane: usize, turns: &[Turn]) -> Option<String> {
    let mut sums: BTreeMap<Segment, (u64, u64)> = BTreeMap::new();
    for SegmentKept { segment, kept, total } in cells(turns, lane).flat_map(|cell| &cell.kept) {
        let sum = sums.entry(*segment).or_default();
        (sum.0, sum.1) = (sum.0 + kept, sum.1 + total);
    }
    let (kept, total) = sums.values().fold((0, 0), |(a, b), (kept, total)| (a + kept, b + total));
    let words: Vec<String> = sums
        .iter()
        .map(|(segment, (kept, total))| format!("{} {}", segment.word(), share(*kept, *total)))
        .collect();
    (total > 0).then(|| {
        format!(
            "{} kept {} of {} scored tokens: {}",
            comparison.name(lane),
            share(kept, total),
            thousands(total),
            words.join(", ")
        )
    })
}

fn survival_line(comparison: &Comparison, lane: usize, turns: &[Turn]) -> Option<String> {
    let found = cells(turns, lane).filter_map(|cell| cell.survival);
    let sum = found.reduce(|a, b| Survived {
        identifiers: a.identifiers + b.identifiers,
        everywhere: a.everywhere + b.everywhere,
        anywhere: a.anywhere + b.anywhere,
    })?;
    Some(format!(
        "{}: of {} that recorded replies take from their prompts, {} kept at least once, {} wherever they occur",
        comparison.name(lane),
        counted(sum.identifiers, "identifier"),
        thousands(sum.anywhere),
        thousands(sum.everywhere)
    ))
}

fn reply_line(comparison: &Comparison, lane: usize, turns: &[Turn]) -> Option<String> {
    let replies: Vec<_> = cells(turns, lane).filter_map(|cell| cell.reply).collect();
    let ended: Vec<bool> = replies.iter().filter_map(|reply| reply.same_text).collect();
    if ended.is_empty() {
        return None;
    }
    let same = ended.iter().filter(|same| **same).count();
    let mut text = format!(
        "{}: {same} of {} the same as {}'s",
        comparison.name(lane),
        replies_counted(ended.len()),
        comparison.name(comparison.base())
    );
    let close: Vec<_> = replies.iter().filter_map(|reply| reply.closeness).collect();
    if !close.is_empty() {
        let agree = close.iter().filter(|close| close.top1_agrees).count();
        let divergence = Spread::of(close.iter().map(|close| Some(close.kl_nats)));
        let (middle, worst) = divergence.map_or((0.0, 0.0), |spread| (spread.median, spread.max));
        text += &format!(
            "; first token alike in {agree} of {}, KL median {middle:.3}, greatest {worst:.3} nats",
            close.len()
        );
    }
    Some(text)
}

fn replies_counted(count: usize) -> String {
    if count == 1 { "1 reply".to_owned() } else { format!("{} replies", thousands(count as u64)) }
}

fn scorer_line(comparison: &Comparison, lane: usize, turns: &[Turn]) -> Option<String> {
    let last = cells(turns, lane).last()?;
    let (scorer, ttft) = (last.scorer_sum_s?, last.ttft_sum_s?);
    (scorer.max > 0.0 && ttft.median > 0.0).then(|| {
        format!(
            "{}: the scorer took {}, {:.0} % of the time to first token",
            comparison.name(lane),
            seconds(scorer.median),
            scorer.median * 100.0 / ttft.median
        )
    })
}

/// What was checked of a lane that drafts, and what its device promises.
fn identity_line(comparison: &Comparison, lane: usize) -> Option<String> {
    let (name, against) = (comparison.name(lane), comparison.name(comparison.base()));
    let run = comparison.ledger_of(0, lane)?.run()?;
    let verdicts = comparison.verdicts();
    let drafted = verdicts.iter().find(|verdict| verdict.lane == name)?.speculation.as_ref()?;
    let (same, replies) = drafted.same_replies;
    let cycles = match drafted.audited_cycles {
        0 => "no cycle was audited (`--set speculation.audit=true` audits all)".to_owned(),
        cycles => format!("state and logits of {} compared with recomputation", counted(cycles, "cycle")),
    };
    let promised = match (run.identity, drafted.audited_cycles) {
        (Identity::Tolerance, _) => format!("within tolerance, which is what {} promises", run.device),
        (Identity::Imported, _) => "another program's".to_owned(),
        _ if drafted.sampled => "sampled: replies need not be the same".to_owned(),
        _ if replies == 0 => "no reply has ended in both".to_owned(),
        _ if same < replies => "not all the same, as is not promised of a sparse prefill".to_owned(),
        _ if drafted.counters.cycles == 0 => "replies the same; nothing was drafted".to_owned(),
        (_, 0) => "replies the same; state not compared".to_owned(),
        (Identity::Simulated, _) => "all the same, in a simulation".to_owned(),
        (Identity::Bitwise, _) => "all the same, bit for bit".to_owned(),
    };
    let verdict = match comparison.speculation_failure(lane) {
        Some(failure) => format!("FAILED at {failure}"),
        None => promised,
    };
    let replies = replies_counted(replies as usize);
    Some(format!("{name} beside {against}: {same} of {replies} the same, {cycles}: {verdict}"))
}

/// What is to be known of a lane's recovery beside its verdict.
fn recovery_line(comparison: &Comparison, lane: usize) -> Option<String> {
    let name = comparison.name(lane);
    let verdicts = comparison.verdicts();
    let recovery = verdicts.iter().find(|verdict| verdict.lane == name)?.recovery.as_ref()?;
    let dropped = match recovery.dropped {
        0 => "no job was dropped".to_owned(),
        dropped => format!("{} dropped before the end", counted(dropped, "job")),
    };
    let repeated = match comparison.repeats() {
        0 | 1 => "",
        _ => "; how far it comes in a gap is a matter of time, so facts are the first repeat's",
    };
    Some(format!("{name}: recovery's compute is in no sum above; {dropped}{repeated}"))
}

/// Who computed first, how often.
fn order_line(comparison: &Comparison, turns: &[Turn]) -> Option<String> {
    let firsts: Vec<usize> = turns.iter().filter_map(|turn| turn.order.first().copied()).collect();
    let count = |lane: usize| firsts.iter().filter(|first| **first == lane).count();
    let words: Vec<String> = (0..comparison.names().len())
        .map(|lane| format!("{} {}", comparison.name(lane), count(lane)))
        .collect();
    (!firsts.is_empty()).then(|| format!("computed first in how many requests: {}", words.join(", ")))
}

fn basis_line(comparison: &Comparison) -> String {
    let basis = if comparison.is_simulated() {
        "times are simulated: a cost model's, not a machine's"
    } else {
        "times are measured, one lane at a time"
    };
    match comparison.repeats() {
        0 | 1 if comparison.is_simulated() => format!("{basis}; one run"),
        0 | 1 => format!(
            "{basis}; one run, so no spread is known, and whoever computes first warms the machine up"
        ),
        repeats => format!("{basis}; medians of {repeats} repeats"),
    }
}
