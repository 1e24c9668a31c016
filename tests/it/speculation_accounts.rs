//! The published accounts of speculative decoding follow from the published counters by escarp's own functions.
//!
//! Figures: Oliver Yu, EXP-002, CC BY 4.0 (Observed), re-entered in [`study`]. Where `ESCARP_SHARED` has the tables themselves, they are read too.

mod study;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use escarp::compare::Spread;
use escarp::decode::economics::{
    Economics, Matched, MatchedRun, decode_ms_per_token, prediction_error, relative_width,
};
use study::{Cycles, MATCHED, PRODUCTION, Run, counters, runs};

/// Half of the last of `decimals` published digits, and as much again: the study rounded each run's figures before it took their median.
fn to(decimals: i32) -> f64 {
    10f64.powi(-decimals)
}

#[track_caller]
fn close(what: &str, got: Option<f64>, published: f64, tolerance: f64) {
    let got = got.unwrap_or_else(|| panic!("{what} is not known"));
    assert!((got - published).abs() <= tolerance, "{what}: {got} instead of {published}");
}

/// Every identity within a run.
fn check(run: &Run) {
    let Run { cell, policy, run, decode_s, told } = run;
    let name = |what: &str| format!("{cell} {policy}: {what}");
    // The seconds are rounded to four decimals, and those of one server to two.
    let tolerance = if cell.contains("27b") { 2e-2 } else { 5e-4 };
    let ms_per_token = decode_ms_per_token(*decode_s, run.counters.output_tokens);
    close(&name("ms per token"), ms_per_token, run.ms_per_token.unwrap(), tolerance);
    let Some([acceptance, tokens_per_cycle, share, ms_per_cycle]) = *told else {
        assert_eq!((run.counters.tokens_per_cycle(), run.counters.accepted_of_tested()), (None, None));
        return;
    };
    assert_eq!(run.counters.problem(), None, "{}", name("counters"));
    let economics = Economics::of(&run.counters, run.cycles_ms, None);
    close(&name("acceptance"), run.counters.accepted_of_tested(), acceptance, to(4));
    close(&name("tokens per cycle"), economics.tokens_per_cycle, tokens_per_cycle, to(4));
    close(&name("share"), economics.share, share, to(4));
    close(&name("ms per cycle"), economics.ms_per_cycle, ms_per_cycle, to(4));
    // Without a dense step there is no cost and no prediction, and neither is zero.
    assert_eq!((economics.cost_ratio, economics.pays(), economics.predicted_speedup()), (None, None, None));
}

fn of_cell(runs: &[Run], cell: &str, policy: &str) -> Vec<MatchedRun> {
    runs.iter().filter(|run| run.cell == cell && run.policy == policy).map(|run| run.run.clone()).collect()
}

/// The published row of a cell from its runs.
fn matches(runs: &[Run], cell: &str, policy: &str, told: &[f64; 12], pays: bool) {
    let (dense, speculative) = (of_cell(runs, cell, "dense"), of_cell(runs, cell, policy));
    let matched = Matched::of(&dense, &speculative);
    let median = |spread: Option<Spread>| Some(spread?.median);
    let got = [
        ("dense ms per token", median(matched.dense_ms_per_token), to(4)),
        ("ms per token", median(matched.ms_per_token), to(4)),
        ("decode speed-up", matched.decode_speedup, to(4)),
        ("end-to-end speed-up", matched.end_to_end_speedup, to(4)),
        ("acceptance", matched.acceptance, to(4)),
        ("tokens per cycle", matched.economics.tokens_per_cycle, to(4)),
        ("share", matched.economics.share, to(4)),
        ("ms per cycle", matched.economics.ms_per_cycle, to(4)),
        ("cost ratio", matched.economics.cost_ratio, to(4)),
        ("published prediction", matched.published_speedup, to(4)),
        ("repeats with a drafter", matched.ms_per_token.and_then(relative_width), to(4)),
        ("repeats without", matched.dense_ms_per_token.and_then(relative_width), to(4)),
    ];
    for ((what, got, tolerance), published) in got.into_iter().zip(told) {
        close(&format!("{cell} {policy}: {what}"), got, *published, tolerance);
    }
    assert_eq!(matched.economics.pays(), Some(pays), "{cell} {policy}");
}

#[test]
fn the_identities_hold_in_each_of_36_runs() {
    let runs = runs();
    assert_eq!(runs.len(), 36);
    assert_eq!(runs.iter().filter(|run| run.told.is_some()).count(), 22);
    runs.iter().for_each(check);
}

#[test]
fn f21_the_11_matched_rows_follow_from_the_runs_to_four_decimals() {
    let runs = runs();
    for row in &MATCHED {
        matches(&runs, row.cell, row.policy, &row.told, row.pays);
    }
}

#[test]
fn predictions_lie_within_5_percent_of_what_was_measured_in_10_of_11_rows() {
    let runs = runs();
    let error = |row: &study::Row| {
        let matched = Matched::of(&of_cell(&runs, row.cell, "dense"), &of_cell(&runs, row.cell, row.policy));
        prediction_error(matched.published_speedup.unwrap(), matched.decode_speedup.unwrap()).unwrap()
    };
    let off: Vec<f64> = MATCHED.iter().map(error).collect();
    assert_eq!(off.iter().filter(|off| off.abs() < 0.05).count(), 10, "{off:?}");
    // Over the tokens after the first, as escarp predicts, it is no worse.
    let own = MATCHED.iter().map(|row| {
        let runs = |policy| of_cell(&runs, row.cell, policy);
        Matched::of(&runs("dense"), &runs(row.policy)).prediction_error().unwrap()
    });
    assert_eq!(own.filter(|off| off.abs() < 0.05).count(), 10);
    // The one that parked after a few cycles: what it did outside of them was slower than dense decoding.
    let worst = MATCHED.iter().zip(&off).max_by(|a, b| a.1.abs().total_cmp(&b.1.abs())).unwrap();
    assert_eq!((worst.0.cell, worst.0.policy), ("prose long", "adaptive"));
    close("the worst", Some(*worst.1), 0.0736, 1e-4);
}

#[test]
fn medians_of_daily_use_are_80_percent_2_375_tokens_and_59_55_ms() {
    let of = |figure: &dyn Fn(u64, &Cycles) -> Option<f64>| {
        Spread::of(PRODUCTION.iter().map(|(tokens, cycles)| figure(*tokens, cycles))).unwrap().median
    };
    let counted = |tokens: u64, cycles: &Cycles| counters(tokens, cycles);
    for (tokens, cycles) in &PRODUCTION {
        assert_eq!(counted(*tokens, cycles).problem(), None);
    }
    close("acceptance", Some(of(&|t, c| counted(t, c).accepted_of_tested())), 0.8, 1e-9);
    close("tokens per cycle", Some(of(&|t, c| counted(t, c).tokens_per_cycle())), 2.375, 1e-9);
    let ms = |t: u64, c: &Cycles| Economics::of(&counted(t, c), Some(c.3.iter().sum()), None).ms_per_cycle;
    close("ms per cycle", Some(of(&ms)), 59.55, 1e-9);
}

/// The records of a table without quoted fields, each by its columns' names.
fn records(path: &Path) -> Vec<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let names: Vec<_> = lines.next().unwrap().split(',').collect();
    let record =
        |line: &str| names.iter().map(|n| n.to_string()).zip(line.split(',').map(str::to_owned)).collect();
    lines.map(record).collect()
}

fn shared() -> Option<PathBuf> {
    let shared = std::env::var_os("ESCARP_SHARED");
    if shared.is_none() {
        println!("skipped: ESCARP_SHARED is not set");
    }
    Some(PathBuf::from(shared?).join("data/published/exp-002"))
}

fn cell(record: &BTreeMap<String, String>) -> String {
    let model = if record["model"].contains("27B") { " 27b" } else { "" };
    format!("{} {}{model}", record["content"], record["context"])
}

fn read(record: &BTreeMap<String, String>) -> Run {
    let number = |column: &str| record[column].parse::<f64>().unwrap();
    let depths =
        |column: &str| -> Vec<u64> { record[column].split('|').map(|n| n.parse().unwrap()).collect() };
    let mut run = Run {
        cell: cell(record),
        policy: "dense".to_owned(),
        run: MatchedRun {
            ms_per_token: Some(number("decode_ms_per_token")),
            end_to_end_s: Some(number("e2e_s")),
            ..MatchedRun::default()
        },
        decode_s: number("decode_s"),
        told: None,
    };
    run.run.counters.output_tokens = number("output_tokens") as u64;
    run.run.counters.replies = 1;
    if record["cycles"].is_empty() {
        return run;
    }
    let (tested, accepted) = (depths("depth_drafted"), depths("depth_accepted"));
    let positions = [0, 1, 2].map(|i| (tested[i], accepted[i]));
    let times = ["backbone_ms", "head_ms", "sample_ms", "cache_ops_ms"].map(number);
    let cycles = (number("cycles") as u64, number("zero_cycles") as u64, positions, times);
    let told = ["accept_rate", "tok_per_cycle", "spec_share", "spec_ms_per_cycle"].map(number);
    let run = run.with(&record["policy"], cycles, told);
    assert_eq!(run.run.counters.accepted, number("accepted") as u64);
    assert_eq!(run.run.counters.tested, number("drafted") as u64);
    assert_eq!(run.run.counters.cycle_tokens(), number("spec_tokens") as u64);
    run
}

#[test]
fn the_published_tables_themselves_follow() {
    let Some(folder) = shared() else { return };
    let runs: Vec<Run> = records(&folder.join("runs.csv")).iter().map(read).collect();
    assert_eq!(runs.len(), 36);
    runs.iter().for_each(check);
    let rows = records(&folder.join("matched-comparisons.csv"));
    assert_eq!(rows.len(), 11);
    for row in &rows {
        let columns = [
            "dense_ms_per_token",
            "policy_ms_per_token",
            "decode_speedup",
            "e2e_speedup",
            "accept_rate",
            "tok_per_cycle",
            "spec_share",
            "spec_ms_per_cycle",
            "cost_ratio",
            "predicted_speedup",
            "repeat_spread_policy",
            "repeat_spread_dense",
        ];
        let told = columns.map(|column| row[column].parse().unwrap());
        matches(&runs, &cell(row), &row["policy"], &told, row["profitable_predicted"] == "True");
    }
}
