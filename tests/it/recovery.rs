//! Background recovery as a user meets it: lanes beside each other, and the bench. On the pseudo-model, whose figures repeat to the last digit.

use serde_json::Value;

use crate::cli::{number, rows, run, stderr, succeed};

const LANES: [&str; 6] = ["--lane", "sparse", "--lane", "terminal", "--lane", "progressive"];

fn compare(more: &[&str]) -> String {
    let sim = ["compare", "--device", "sim", "--session", "growing"];
    succeed(&[&sim[..], &LANES, more].concat())
}

fn f64_of(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

#[test]
fn four_lanes_of_a_growing_session_say_who_leads_what_is_owed_and_who_pays() {
    let text = compare(&[]);
    for wanted in [
        "idle before each of 10 requests: 15.0 s (replay.idle: as recorded)",
        "terminal: sparse prefill on over 1,500 tokens",
        "recovery publishes all at once, slices of 512",
        "recovery publishes block by block, slices of 512",
        "verdict: progressive ",
        "ahead of sparse; idle time pays, beside these sums: ",
        "progressive: recovery's compute is in no sum above; no job was dropped",
    ] {
        assert!(text.contains(wanted), "{wanted}\n{text}");
    }
    let table = text.lines().skip_while(|line| !line.starts_with("turn")).take(45);
    assert!(table.clone().all(|line| line.chars().count() <= 80), "{text}");
    assert!(table.take(1).all(|line| line.contains("published")), "{text}");
}

#[test]
fn recovery_stands_beside_the_sums_of_the_requests_and_never_in_them() {
    let lines = rows(&compare(&["--json"]));
    let (requests, verdicts): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line["verdict"].is_null());
    assert_eq!((requests.len(), verdicts.len()), (44, 3));
    let of = |name: &str| -> Vec<&Value> {
        requests.iter().copied().filter(|row| row["compare"]["lane"] == name).collect()
    };
    for plain in ["dense", "sparse"] {
        assert!(of(plain).iter().all(|row| row["compare"]["recovery"].is_null()), "{plain}");
    }
    for verdict in verdicts {
        let verdict = &verdict["verdict"];
        let name = verdict["lane"].as_str().unwrap();
        let sum: f64 = of(name).iter().map(|row| f64_of(&row["ttft_s"])).sum();
        assert!((f64_of(&verdict["ttft_sum_s"]["median"]) - sum).abs() < 1e-6, "{name}");
        assert_eq!(verdict["recovery"].is_null(), name == "sparse", "{name}");
    }
    let progressive = of("progressive");
    let at = |index: usize, field: &str| f64_of(&progressive[index]["compare"]["recovery"][field]);
    let median =
        |index: usize, field: &str| f64_of(&progressive[index]["compare"]["recovery"][field]["median"]);
    let mut before = (0.0, 0.0);
    for index in 0..progressive.len() {
        let sums = (at(index, "publications_sum"), median(index, "service_sum_s"));
        assert!((sums.0 - before.0 - at(index, "publications")).abs() < 1e-9, "turn {}", index + 1);
        assert!((sums.1 - before.1 - median(index, "service_s")).abs() < 1e-6, "turn {}", index + 1);
        assert!(at(index, "committed_tokens") <= at(index, "target_tokens"));
        before = sums;
    }
    // What a gap published is what the next request finds.
    for (behind, next) in progressive.iter().zip(&progressive[1..]) {
        assert_eq!(behind["compare"]["recovery"]["committed_tokens"], next["checkpoint_tokens"]);
    }
    let used = at(progressive.len() - 1, "idle_used");
    assert!((used - before.1 / 150.0).abs() < 1e-9 && used > 0.0 && used <= 1.0, "{used}");
}

#[test]
fn recovery_by_blocks_leaves_the_sparse_route_in_a_growing_session_and_pays_less_in_all() {
    let lines = rows(&compare(&["--json"]));
    let of = |name: &str| lines.iter().filter(move |row| row["compare"]["lane"] == name).collect::<Vec<_>>();
    let routes = |name: &str| of(name).iter().map(|row| row["route"].as_str().unwrap()).collect::<Vec<_>>();
    assert!(routes("sparse").iter().all(|route| *route == "sparse"));
    let progressive = routes("progressive");
    let exit = progressive.iter().position(|route| *route == "dense").unwrap();
    assert!(
        (2..8).contains(&exit) && progressive[exit..].iter().all(|route| *route == "dense"),
        "{progressive:?}"
    );
    let sum = |name: &str| of(name).iter().map(|row| f64_of(&row["ttft_s"])).sum::<f64>();
    assert!(sum("progressive") < 0.8 * sum("sparse"), "{} and {}", sum("progressive"), sum("sparse"));
}

#[test]
fn without_idle_time_recovery_publishes_nothing_and_costs_next_to_nothing() {
    let text = compare(&["--set=replay.idle=zero"]);
    assert!(text.contains("no idle time between requests (replay.idle: zero)"), "{text}");
    assert!(text.contains("recovery had nothing to do, or no time for it"), "{text}");
}

#[test]
fn a_gap_is_told_with_its_factor_and_its_cap() {
    let settings = ["--set=replay.idle=20", "--set=replay.idle_scale=0.5", "--set=replay.idle_cap_s=8"];
    let text = compare(&[&settings[..], &["--turns=2"]].concat());
    assert!(text.contains(": 8.00 s (replay.idle: 20 s, times 0.5, at most 8 s)"), "{text}");
}

#[test]
fn lanes_that_recover_are_not_compared_by_the_wall_clock() {
    let refused = run(&[
        "compare",
        "--device",
        "sim",
        "--session",
        "growing",
        "--lane",
        "progressive",
        "--clock",
        "wall",
    ]);
    assert_eq!(refused.status.code(), Some(2));
    let said = stderr(&refused);
    assert!(said.contains("lane progressive") && said.contains("leave `--clock wall` out"), "{said}");
}

#[test]
fn every_third_sparse_request_is_computed_densely_where_that_is_the_policy() {
    let settings = ["specprefill.enabled=true", "recovery.enabled=true", "recovery.policy=dense:3"];
    let mut arguments = vec!["replay", "--device", "sim", "--session", "growing", "--json"];
    arguments.extend(settings.iter().flat_map(|setting| ["--set", setting]));
    let lines = rows(&succeed(&arguments));
    let routes: Vec<_> = lines.iter().map(|row| row["route"].as_str().unwrap()).collect();
    assert_eq!(
        routes[..4],
        ["sparse", "sparse", "dense", "dense"],
        "paid for, the session leaves the sparse route"
    );
    assert!(number(&lines[3], "checkpoint_tokens") > 12_000);
}

#[test]
fn the_bench_has_its_lanes_its_cells_and_its_claims() {
    let bench = ["bench", "recovery", "--device", "sim", "--json", "--repeat", "1", "--turns", "8"];
    let parts =
        ["--parts", "lanes,grid", "--idle", "0,20", "--slice", "512", "--grain", "1,4", "--budget", "10,100"];
    let report: Value = serde_json::from_str(&succeed(&[&bench[..], &parts].concat())).unwrap();
    assert_eq!((report["simulated"].as_bool(), report["delay"].is_null()), (Some(true), true));
    let lanes = &report["lanes"];
    let names: Vec<_> =
        lanes["totals"].as_array().unwrap().iter().map(|total| total["lane"].as_str().unwrap()).collect();
    assert_eq!(names, ["dense", "sparse", "terminal", "progressive"]);
    assert_eq!(lanes["turns"].as_array().unwrap().len(), 8);
    assert!((f64_of(&lanes["idle_s"]) - 15.0 * f64_of(&lanes["factor"])).abs() < 1e-9);
    let holds: Vec<_> =
        report["claims"].as_array().unwrap().iter().map(|claim| claim["holds"].as_bool()).collect();
    assert_eq!(holds, [Some(true), Some(true)], "{}", report["claims"]);
    let cells = report["grid"]["cells"].as_array().unwrap();
    let knobs = |cell: &Value| ["idle_s", "adoption_blocks", "budget_pct"].map(|field| f64_of(&cell[field]));
    assert_eq!(cells.len(), 8);
    assert_eq!((knobs(&cells[0]), knobs(&cells[7])), ([0.0, 1.0, 10.0], [20.0, 4.0, 100.0]));
    for cell in cells {
        let net =
            f64_of(&cell["sparse_ttft_sum_s"]) - f64_of(&cell["ttft_sum_s"]) - f64_of(&cell["service_s"]);
        assert!((f64_of(&cell["net_return_s"]) - net).abs() < 1e-9, "{cell}");
    }
    let service = |cell: &Value| f64_of(&cell["service_s"]);
    assert!(
        cells[..4].iter().all(|cell| service(cell) == 0.0 && cell["idle_used"].is_null()),
        "no gap, no slice"
    );
    assert!(service(&cells[5]) > service(&cells[4]), "a budget of 10 % allows less than all");
    assert!(f64_of(&cells[4]["service_share"]) < 0.15, "{}", cells[4]);
    let text = succeed(&["bench", "recovery", "--device", "sim", "--repeat=1", "--turns=3", "--parts=lanes"]);
    assert!(text.contains("pass ") || text.contains("MISS "), "{text}");
    assert!(text.contains("without gaps progressive "), "{text}");
}

#[test]
fn requests_sent_into_a_job_tell_what_they_waited_for_it() {
    let bench = ["bench", "recovery", "--device", "sim", "--json", "--parts", "delay", "--arrivals", "3"];
    let small = ["--job-tokens", "1500", "--job-slice", "128", "--set", "cache.block_tokens=128"];
    let report: Value = serde_json::from_str(&succeed(&[&bench[..], &small].concat())).unwrap();
    let delay = &report["delay"];
    for kind in ["interruptible", "uninterruptible"] {
        let of = &delay[kind];
        assert_eq!(number(of, "arrivals"), 3, "{kind}");
        assert!(number(of, "collisions") <= 3 && f64_of(&of["ttft_s"]["p50"]) > 0.0, "{of}");
        assert!(f64_of(&of["delay_s"]["p50"]) <= f64_of(&of["delay_s"]["max"]));
    }
    assert!(report["lanes"].is_null() && report["grid"].is_null());
}

#[test]
fn what_the_bench_cannot_do_is_refused_before_anything_runs() {
    for (more, wanted) in [
        (&["--budget", "150"][..], "--budget: 150 is not within 0 to 100"),
        (&["--parts", "speed"], "--parts"),
        (&["--turns", "2"], "--turns"),
        (&["--set", "cache.dir=kept"], "`cache.dir` keeps state between runs"),
    ] {
        let refused = run(&[&["bench", "recovery", "--device", "sim"], more].concat());
        assert_eq!(refused.status.code(), Some(2), "{more:?}");
        assert!(stderr(&refused).contains(wanted), "{more:?}: {}", stderr(&refused));
    }
}
