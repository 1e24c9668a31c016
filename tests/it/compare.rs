//! `compare` and `report`, as a user meets them.

use serde_json::Value;

use crate::cli::{number, rows, run, stderr, stdout, succeed};

/// Dense and sparse on the pseudo-model: figures that repeat to the last digit.
const SIM: [&str; 8] = [
    "compare",
    "--device",
    "sim",
    "--session",
    "append-heavy",
    "--turns",
    "4",
    "--set=specprefill.threshold=1000",
];

fn sim(more: &[&str]) -> String {
    succeed(&[&SIM, more].concat())
}

/// Text without what changes with every fact that is added to the ledger.
fn lasting(text: &str) -> String {
    text.lines().filter(|line| !line.contains("ledger ")).map(|line| format!("{line}\n")).collect()
}

#[test]
fn the_table_of_two_lanes() {
    let text = sim(&[]);
    assert!(
        text.lines()
            .skip_while(|line| !line.starts_with("turn"))
            .take(9)
            .all(|line| line.chars().count() <= 80)
    );
    insta::assert_snapshot!(lasting(&text));
}

#[test]
fn json_has_a_row_a_request_and_lane_and_then_the_verdicts() {
    let lines = rows(&sim(&[
        "--json",
        "--lane",
        "sparse",
        "--lane",
        "keep50:specprefill.enabled=true,specprefill.keep=0.5",
    ]));
    let (requests, verdicts): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line["verdict"].is_null());
    assert_eq!((requests.len(), verdicts.len()), (12, 2));
    for (index, row) in requests.iter().enumerate() {
        let lane = ["dense", "sparse", "keep50"][index % 3];
        assert_eq!(row["compare"]["lane"], lane);
        assert_eq!(number(row, "turn") as usize, index / 3 + 1);
        // Each lane is first in its turn.
        assert_eq!(row["compare"]["order"][0], ["dense", "sparse", "keep50"][(index / 3) % 3]);
        for same in ["checkpoint_tokens", "uncached_suffix", "prompt_tokens"] {
            assert_eq!(row[same], row["compare"][same], "{same}");
        }
    }
    // The last turn's suffix is long enough in both.
    let computed = |lane: usize| number(&requests[9 + lane]["compare"], "computed_tokens");
    assert_eq!(
        (requests[10]["route"].as_str(), requests[11]["route"].as_str()),
        (Some("sparse"), Some("sparse"))
    );
    assert!(computed(1) < computed(2), "{} and {}", computed(1), computed(2));
    let [verdict, _] = verdicts[..] else { unreachable!() };
    assert_eq!(
        (verdict["verdict"]["lane"].as_str(), verdict["verdict"]["simulated"].as_bool()),
        (Some("sparse"), Some(true))
    );
    let sum = |lane: usize| {
        requests.iter().skip(lane).step_by(3).map(|row| row["ttft_s"].as_f64().unwrap()).sum::<f64>()
    };
    let told = |field: &str| verdict["verdict"][field]["median"].as_f64().unwrap();
    assert!((told("ttft_sum_s") - sum(1)).abs() < 1e-6 && (told("against_ttft_sum_s") - sum(0)).abs() < 1e-6);
    assert!((told("lead_s") - (sum(0) - sum(1))).abs() < 1e-6);
    assert_eq!(verdict["verdict"]["owed"]["tokens"], requests[10]["canonical_debt_tokens"]);
    assert!(verdict["sentence"].as_str().unwrap().starts_with("sparse "));
}

#[test]
fn a_report_of_the_recordings_says_what_the_comparison_said() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let record = format!("--record={}", path("run.jsonl").display());
    sim(&[&record, "--report", path("live.md").to_str().unwrap()]);
    let recordings =
        ["run.dense.jsonl", "run.sparse.jsonl"].map(|name| path(name).to_str().unwrap().to_owned());
    let said =
        succeed(&["report", &recordings[0], &recordings[1], "--out", path("later.md").to_str().unwrap()]);
    assert!(said.contains("later.md: written, with 3 charts beside it"), "{said}");
    let read = |name: &str| std::fs::read_to_string(path(name)).unwrap();
    let (live, later) = (read("live.md"), read("later.md"));
    let part = |text: &str, from: &str, to: &str| {
        let start = text.find(from).unwrap_or_else(|| panic!("no {from} in {text}"));
        text[start..start + text[start..].find(to).unwrap()].to_owned()
    };
    assert_eq!(part(&live, "## Verdict", "!["), part(&later, "## Verdict", "!["));
    assert_eq!(part(&live, "## Requests", "## What"), part(&later, "## Requests", "## What"));
    assert!(
        live.contains("## How to repeat it\n\n```sh\nescarp compare --device sim --session append-heavy"),
        "{live}"
    );
    for name in ["checkpoint", "ttft", "kept-sparse"] {
        let svg = read(&format!("live-{name}.svg"));
        assert_eq!(svg, read(&format!("later-{name}.svg")), "{name}");
        check_svg(&svg);
        assert!(live.contains(&format!("](live-{name}.svg)")), "{live}");
    }
    let shown = part(&live, "# ", "## How")
        .lines()
        .filter(|line| !line.contains("ledger "))
        .collect::<Vec<_>>()
        .join("\n");
    insta::assert_snapshot!(shown);
}

/// Whether tags open and close in order, and what a reader without eyes needs is there.
fn check_svg(svg: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = svg;
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>').unwrap();
        let tag = &rest[start + 1..end];
        let name = tag.trim_matches('/').split([' ', '/']).next().unwrap();
        match (tag.starts_with('/'), tag.ends_with('/')) {
            (true, _) => assert_eq!(open.pop(), Some(name)),
            (false, false) => open.push(name),
            (false, true) => {}
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "{open:?}");
    assert!(
        svg.contains("<title id=\"t\">") && svg.contains("<desc id=\"d\">") && svg.contains("role=\"img\"")
    );
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
}

#[test]
fn a_report_of_one_recording_has_charts_and_no_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("trace.md");
    let said = succeed(&["report", "trace-b", "--out", out.to_str().unwrap()]);
    assert!(said.contains("with 2 charts"), "{said}");
    let text = std::fs::read_to_string(out).unwrap();
    assert!(
        !text.contains("## Verdict") && text.contains("37,888") && text.contains("trace-ttft.svg"),
        "{text}"
    );
    check_svg(&std::fs::read_to_string(dir.path().join("trace-checkpoint.svg")).unwrap());
    let missing = run(&["report", "/no/such/recording"]);
    assert_eq!(missing.status.code(), Some(2), "{}", stderr(&missing));
}

#[test]
fn repeats_of_a_simulation_agree() {
    let lines = rows(&sim(&["--json", "--repeat", "3"]));
    for row in lines.iter().filter(|line| line["verdict"].is_null()) {
        let ttft = &row["compare"]["ttft_s"];
        assert_eq!(ttft["repeats"], 3);
        assert_eq!((&ttft["min"], &ttft["max"]), (&ttft["median"], &ttft["median"]));
    }
    let verdict = lines.last().unwrap();
    assert_eq!(
        (&verdict["verdict"]["repeats"], &verdict["disagreements"]),
        (&Value::from(3), &Value::from(Vec::<Value>::new()))
    );
}

#[test]
fn each_lane_has_a_cache_folder_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("kept");
    let arguments = [
        "compare",
        "--model",
        "talus",
        "--session",
        "quick",
        "--turns=2",
        "--json",
        "--cache-dir",
        folder.to_str().unwrap(),
    ];
    let lanes = ["--lane", "other:cache.block_tokens=512"];
    let first = rows(&succeed(&[&arguments[..], &lanes].concat()));
    let second = rows(&succeed(&[&arguments[..], &lanes].concat()));
    assert!(folder.join("dense").is_dir() && folder.join("other").is_dir());
    assert_eq!(number(&first[0], "checkpoint_tokens"), 0);
    assert!(number(&second[0], "checkpoint_tokens") > 0, "a later run starts from what the earlier one left");
    let refused = run(&[&arguments[..], &["--repeat", "2"]].concat());
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused).contains("`--repeat`") && stderr(&refused).contains("cache.dir"),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn a_breakpoint_or_a_failure_ends_a_comparison_where_it_holds() {
    let paused = run(&[&SIM[..], &["--break", "prompt>4000"]].concat());
    assert!(paused.status.success(), "{}", stderr(&paused));
    assert!(stdout(&paused).contains("paused in dense: prompt>4000 (prompt "), "{}", stdout(&paused));
    let failed = run(&[&SIM[..], &["--fault", "2:change-generation:0"]].concat());
    assert_eq!(failed.status.code(), Some(1), "{}", stdout(&failed));
    assert!(stderr(&failed).contains("lane dense: request 2 failed"), "{}", stderr(&failed));
}

#[test]
fn lanes_that_cannot_be_are_refused_with_a_remedy() {
    for (more, wanted) in [
        (&["--lane", "x"][..], "nothing distinguishes it"),
        (&["--lane", "x:cache.foo=1"], "unknown key `cache.foo`"),
        (&["--lane", "x:specprefill.keep=7"], "out of range"),
        (&["--lane", "sparse", "--lane", "sparse"], "two lanes of this name"),
        (&["--without-dense"], "2 to 4 can be compared"),
        (&["--model", "/no/such/model"], "lane dense: /no/such/model"),
    ] {
        let refused = run(&[&["compare", "--session", "quick"], more].concat());
        assert_eq!(refused.status.code(), Some(2), "{more:?}: {}", stdout(&refused));
        assert!(stderr(&refused).contains(wanted), "{more:?}: {}", stderr(&refused));
    }
}

#[test]
fn keeping_everything_is_the_dense_lane_on_a_real_model() {
    let arguments = [
        "compare",
        "--model",
        "scarp",
        "--session",
        "quick",
        "--turns=3",
        "--json",
        "--set=specprefill.threshold=100",
    ];
    let lanes = [
        "--lane",
        "all:specprefill.enabled=true,specprefill.keep=1.0",
        "--lane",
        "sparse:specprefill.tail_tokens=32",
    ];
    let lines = rows(&succeed(&[&arguments[..], &lanes].concat()));
    let (requests, verdicts): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line["verdict"].is_null());
    assert_eq!((requests.len(), verdicts.len()), (9, 2));
    for row in requests.iter().filter(|row| row["compare"]["lane"] == "all") {
        let reply = &row["compare"]["reply"];
        assert_eq!(
            (&reply["same_text"], &reply["kl_nats"], &reply["top1_agrees"]),
            (&Value::Bool(true), &Value::from(0.0), &Value::Bool(true))
        );
    }
    // In the first turn too little stands behind the protected prefix.
    let of_lane = requests.iter().filter(|row| row["compare"]["lane"] == "sparse");
    let sparse: Vec<_> = of_lane.filter(|row| row["route"] == "sparse").collect();
    assert_eq!(sparse.len(), 2);
    for row in &sparse {
        let compare = &row["compare"];
        assert!(number(compare, "computed_tokens") < number(compare, "uncached_suffix"));
        assert!(compare["scorer_s"]["median"].as_f64().unwrap() > 0.0);
        assert!(compare["reply"]["kl_nats"].as_f64().is_some());
        let (kept, total) =
            compare["kept"].as_array().unwrap().iter().fold((0, 0), |(kept, total), segment| {
                (kept + number(segment, "kept"), total + number(segment, "total"))
            });
        assert!(kept < total && total == number(&row["sparse"], "scored_tokens"));
    }
    let survived = sparse.iter().filter_map(|row| row["compare"]["survival"]["identifiers"].as_u64());
    assert!(survived.sum::<u64>() > 0, "recorded replies use identifiers of their prompts");
}

#[test]
fn lanes_of_drafters_give_the_same_replies_and_say_what_they_are_worth() {
    let arguments = [
        "compare",
        "--model=scarp",
        "--session=quick",
        "--turns=2",
        "--set=speculation.audit=true",
        "--lane=none",
        "--lane=ngram-2",
        "--lane=mtp",
        "--lane=draft-3",
    ];
    let lines = rows(&succeed(&[&arguments[..], &["--json"]].concat()));
    let (requests, verdicts): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line["verdict"].is_null());
    assert_eq!((requests.len(), verdicts.len()), (8, 3));
    for (index, row) in requests.iter().enumerate() {
        let compare = &row["compare"];
        if index % 4 == 0 {
            assert_eq!((&compare["lane"], &compare["speculation"]), (&Value::from("none"), &Value::Null));
        } else {
            assert_eq!(compare["reply"]["same_text"], true, "{row}");
            assert_eq!(compare["speculation"]["failure"], Value::Null, "{row}");
        }
    }
    for (verdict, drafter) in verdicts.iter().zip(["ngram", "mtp", "draft"]) {
        let of = &verdict["verdict"]["speculation"];
        assert_eq!(
            (of["drafter"].as_str(), &of["same_replies"]),
            (Some(drafter), &serde_json::json!([2, 2]))
        );
        assert!(number(of, "audited_cycles") > 0, "{of}");
        assert!(of["speed_up"]["decode"]["median"].as_f64().unwrap() > 0.0);
    }
    let text = succeed(&arguments);
    assert!(text.contains("mtp beside none: 2 of 2 replies the same, state and logits of "), "{text}");
    assert_eq!(text.matches("all the same, bit for bit").count(), 3, "{text}");
    assert!(text.contains("tok/cycle") && !text.contains("FAILED"), "{text}");
}

#[test]
fn the_table_and_the_report_of_drafting_fit_their_place() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("drafting.md");
    let arguments =
        ["compare", "--device=sim", "--session=steady", "--turns=3", "--lane=none", "--lane=ngram"];
    let text = succeed(&[&arguments[..], &["--report", report.to_str().unwrap()]].concat());
    let table = text.lines().skip_while(|line| !line.contains("tok/cycle"));
    assert!(table.take(5).all(|line| line.chars().count() <= 80), "{text}");
    let written = std::fs::read_to_string(&report).unwrap();
    assert!(written.contains("## Drafting"), "{written}");
    assert!(written.contains("(drafting-drafting.svg)"), "{written}");
    check_svg(&std::fs::read_to_string(dir.path().join("drafting-drafting.svg")).unwrap());
}

#[test]
fn a_depth_above_the_limit_or_an_unknown_drafter_is_refused_with_a_remedy() {
    for (more, wanted) in [
        (&["--lane", "mtp-17"][..], "write `mtp-1` to `mtp-16`"),
        (&["--lane", "none:speculation.drafter=mtp"], "has no drafter"),
        (&["--lane", "x:speculation.depth=17"], "allowed is 1 to 16"),
        (&["--lane", "mpt"], "`ngram`, `mtp`, `draft`"),
    ] {
        let refused = run(&[&["compare", "--session", "quick"], more].concat());
        assert_eq!(refused.status.code(), Some(2), "{more:?}: {}", stdout(&refused));
        assert!(stderr(&refused).contains(wanted), "{more:?}: {}", stderr(&refused));
    }
}

#[test]
fn the_matrix_has_a_cell_a_way_and_says_what_holds() {
    let arguments = [
        "bench",
        "speculation",
        "--model=scarp",
        "--drafters=ngram,mtp",
        "--depths=2,adaptive",
        "--prompts=prose",
        "--repeat=1",
        "--output-tokens=64",
        "--contexts=300",
        "--json",
    ];
    let report: Value = serde_json::from_str(&succeed(&arguments)).unwrap();
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 4);
    for cell in cells {
        assert_eq!(cell["identical"], true, "{cell}");
        assert!(cell["measured"]["median"].as_f64().unwrap() > 0.0, "{cell}");
        assert!(cell["whole"]["median"].as_f64().unwrap() > 0.0, "{cell}");
    }
    let claims = report["claims"].as_array().unwrap();
    assert!(claims[0]["claim"].as_str().unwrap().starts_with("every reply is"));
    // The lookup may find nothing to draft, and then its cell passes nothing.
    let drafted = cells.iter().all(|cell| number(cell, "drafting_runs") > 0);
    assert_eq!(claims[0]["holds"], drafted, "{claims:?}");
    assert_eq!(claims.len(), 5, "there is no copied text to say anything of");
    assert_eq!((&report["adaptive_max"], &report["skipped"]), (&Value::from(8), &serde_json::json!([])));
    assert!(cells.iter().all(|cell| cell["output_tokens"].as_u64().unwrap() <= 64), "{report}");
    let curve = &report["curves"][0];
    assert_eq!(curve["points"].as_array().unwrap().len(), 8);
    assert_eq!(curve["points"][0][1], 1.0);
    // A model without a head, and without a draft model, has the lookup still.
    let alone = ["bench", "speculation", "--model=talus", "--depths=2", "--prompts=copy"];
    let text = succeed(&[&alone[..], &["--repeat=1", "--output-tokens=32", "--contexts=0"]].concat());
    assert!(text.contains("mtp is left out: ") && text.contains("draft is left out: "), "{text}");
    assert!(text.contains("ngram"), "{text}");
    let refused = run(&["bench", "speculation", "--model=talus", "--drafters=mtp"]);
    assert_eq!(refused.status.code(), Some(2), "asked for by name");
    let refused = run(&["bench", "speculation", "--depths=17"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("a depth from 1 to 16"), "{}", stderr(&refused));
}
