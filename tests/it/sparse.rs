//! The rules of sparse prefill against the study's own figures.
//!
//! Figures: Oliver Yu, "Reusable State Dynamics in Interactive LLM Inference", <https://github.com/tc3oliver/llm-inference-systems>, CC BY 4.0,
//! re-entered here from `specprefill-scoring-window-origin` (Observed). Where `ESCARP_SHARED` has the tables themselves, all of them are read.

use std::path::PathBuf;

use escarp::config::{QuerySource, SimConfig};
use escarp::device::sim::Sim;
use escarp::event::{LaneId, RequestId, ScorerStart, SparseVerdict, Stamp};
use escarp::prefill::scorer::{ScoredWindow, Scorer, ScorerSettings};
use escarp::prefill::sparse::{Admission, admit, select};

const UNIT: usize = 32;
const KEEP: f64 = 0.2;
const TAIL: usize = 512;
const THRESHOLD: usize = 8192;

/// One scoring of a live server.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Live {
    prompt: usize,
    system_end: usize,
    target_cached: usize,
    draft_cached: usize,
    published: Option<usize>,
    selected: usize,
}

const fn live(
    prompt: usize,
    system_end: usize,
    target_cached: usize,
    draft_cached: usize,
    published: usize,
    selected: usize,
) -> Live {
    let published = if published == 0 { None } else { Some(published) };
    Live { prompt, system_end, target_cached, draft_cached, published, selected }
}

/// `live-scorings`, arm by arm; a boundary of 0 is none. The last arm runs on the server of the one before it.
const ARMS: [(&str, &[Live]); 4] = [
    (
        "treatment-budget10",
        &[
            live(32344, 0, 0, 0, 30720, 6488),
            live(32344, 0, 0, 30720, 0, 6488),
            live(55182, 15960, 20480, 0, 32768, 6926),
            live(55727, 15960, 20480, 32768, 34816, 7055),
            live(55978, 15960, 20480, 34816, 0, 7082),
            live(56422, 15960, 21504, 0, 34816, 6982),
            live(56586, 15960, 21504, 34816, 0, 7018),
            live(90477, 15960, 22528, 0, 67584, 13581),
            live(91040, 15960, 23552, 0, 65536, 13504),
            live(91678, 15960, 23552, 65536, 67584, 13630),
            live(91905, 15960, 24576, 0, 65536, 13441),
            live(92364, 15960, 24576, 65536, 67584, 13548),
            live(92691, 15960, 25600, 0, 65536, 13427),
            live(92904, 15960, 26624, 0, 65536, 13256),
            live(93163, 15960, 26624, 65536, 0, 13291),
            live(93374, 15960, 26624, 65536, 0, 13374),
            live(93503, 15960, 26624, 65536, 0, 13375),
            live(93937, 15960, 27648, 0, 65536, 13265),
            live(94191, 15960, 27648, 65536, 0, 13295),
            live(94578, 15960, 27648, 65536, 0, 13394),
            live(94954, 15960, 27648, 65536, 0, 13450),
            live(95409, 15960, 27648, 65536, 67584, 13553),
        ],
    ),
    (
        "control-budget0",
        &[
            live(55001, 15952, 20480, 0, 32768, 6905),
            live(55962, 15952, 20480, 32768, 34816, 7098),
            live(89878, 15952, 20480, 34816, 67584, 13878),
            live(90508, 15952, 20480, 67584, 69632, 13996),
            live(91871, 15952, 20480, 69632, 0, 14303),
            live(60914, 20108, 15360, 0, 38912, 8166),
            live(62094, 20108, 15360, 38912, 40960, 8386),
            live(64411, 20108, 15360, 40960, 43008, 8847),
            live(64775, 20108, 15360, 43008, 0, 8955),
            live(65485, 20108, 15360, 43008, 45056, 9057),
            live(66746, 20108, 15360, 45056, 0, 9326),
            live(67295, 20108, 15360, 45056, 47104, 9427),
            live(68040, 20108, 15360, 47104, 0, 9596),
        ],
    ),
    (
        "reproA-budget0",
        &[
            live(38454, 0, 0, 0, 36864, 7702),
            live(39418, 0, 0, 36864, 38912, 7898),
            live(40375, 0, 0, 38912, 0, 8087),
            live(41328, 0, 0, 38912, 40960, 8272),
            live(42283, 0, 0, 40960, 0, 8459),
            live(43238, 0, 0, 40960, 43008, 8646),
        ],
    ),
    (
        "reproB-budget10",
        &[
            live(38454, 0, 0, 36864, 0, 7702),
            live(39418, 0, 2048, 0, 36864, 7482),
            live(40375, 0, 4096, 0, 34816, 7255),
            live(38454, 0, 5120, 0, 32768, 6678),
            live(39418, 0, 6144, 0, 32768, 6650),
            live(40375, 0, 6144, 32768, 0, 6839),
            live(41328, 0, 7168, 0, 32768, 6832),
        ],
    ),
];

fn published() -> Option<PathBuf> {
    let shared = std::env::var_os("ESCARP_SHARED");
    if shared.is_none() {
        println!("skipped: ESCARP_SHARED is not set");
    }
    Some(PathBuf::from(shared?).join("data/published"))
}

/// The rows of a published table; a cell is found by its column's name.
struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    fn read(file: PathBuf) -> Table {
        let text = std::fs::read_to_string(file).unwrap();
        let split = |line: &str| line.split(',').map(str::to_owned).collect::<Vec<_>>();
        let mut lines = text.lines().map(split);
        Table { header: lines.next().unwrap(), rows: lines.collect() }
    }

    fn cell<'a>(&self, row: &'a [String], column: &str) -> &'a str {
        &row[self.header.iter().position(|name| name == column).unwrap()]
    }

    fn count(&self, row: &[String], column: &str) -> usize {
        self.cell(row, column).parse().unwrap()
    }
}

fn selected(window: usize) -> usize {
    // Which units they are does not matter to how many there are.
    let scores: Vec<f32> = (0..window.div_ceil(UNIT)).map(|unit| (unit * 37 % 101) as f32).collect();
    let selection = select(&scores, window, UNIT, KEEP, TAIL);
    assert!(selection.kept.last().is_some_and(|last| last.end == window && last.len() >= TAIL));
    selection.selected_tokens
}

fn admission_of(row: Live) -> Admission {
    admit(row.prompt, row.target_cached, row.system_end, THRESHOLD)
}

#[test]
fn every_live_selection_is_what_the_rule_gives() {
    for row in ARMS.iter().flat_map(|(_, rows)| *rows) {
        assert_eq!(selected(admission_of(*row).to_score), row.selected, "{row:?}");
    }
}

#[test]
fn every_published_selection_is_what_the_rule_gives() {
    let Some(folder) = published() else { return };
    // Some tables count without the last token, which is computed by itself.
    let tables = [
        ("specprefill-scoring-window-origin/live-scorings", "scored_tokens", "selected", 0),
        ("specprefill-scoring-window-origin/standalone-mechanism", "tokens_to_score", "selected", 0),
        ("specprefill-scoring-window-origin/draft-scoring-semantics", "region_tokens", "selected_window", 0),
        ("pcsr-foreground-adoption-grain/visibility-grain-ab", "scored_tokens", "target_selected", 1),
        (
            "specprefill-position-efficacy/specprefill-position-contract",
            "conversation_tokens",
            "selected_tokens",
            1,
        ),
    ];
    let mut rows = 0;
    for (name, window, chosen, apart) in tables {
        let table = Table::read(folder.join(format!("{name}.csv")));
        for row in &table.rows {
            assert_eq!(
                selected(table.count(row, window)) - apart,
                table.count(row, chosen),
                "{name}: {row:?}"
            );
            rows += 1;
        }
    }
    assert_eq!(rows, 109);
}

#[test]
fn the_table_here_is_the_published_one() {
    let Some(folder) = published() else { return };
    let table = Table::read(folder.join("specprefill-scoring-window-origin/live-scorings.csv"));
    let rows: Vec<(&str, Live)> =
        ARMS.iter().flat_map(|(arm, rows)| rows.iter().map(|row| (*arm, *row))).collect();
    let read = |row: &Vec<String>| Live {
        prompt: table.count(row, "prompt_tokens"),
        system_end: table.count(row, "system_end"),
        target_cached: table.count(row, "target_cached"),
        draft_cached: table.count(row, "draft_matched_tokens"),
        published: table.cell(row, "draft_boundary_published").parse().ok(),
        selected: table.count(row, "selected"),
    };
    let theirs: Vec<(&str, Live)> =
        table.rows.iter().map(|row| (table.cell(row, "arm"), read(row))).collect();
    assert_eq!(rows, theirs);
    for (row, (_, entered)) in table.rows.iter().zip(&rows) {
        let admission = admission_of(*entered);
        assert_eq!(admission.origin, table.count(row, "score_window_start"));
        assert_eq!(admission.to_score, table.count(row, "scored_tokens"));
        assert_eq!(admission.verdict, SparseVerdict::Sparse);
    }
}

/// The scorer of the study as far as its cache goes: recurrent layers, chunks of 2,048 tokens.
fn scorer(block_tokens: usize) -> Scorer {
    let sim = SimConfig {
        context_tokens: 131_072,
        state_bytes_per_token: 64,
        snapshot_bytes: 4096,
        ..SimConfig::default()
    };
    let settings = ScorerSettings {
        lookahead: 1,
        queries: QuerySource::Lookahead,
        seed: 0,
        chunk_tokens: 2048,
        ram_bytes: 1 << 30,
    };
    Scorer::new(Box::new(Sim::new(&sim, block_tokens)), [0; 32], Vec::new(), settings)
}

/// Tokens of a conversation, none like those around it, so that no window is the beginning of another by chance.
fn conversation(tokens: usize) -> Vec<u32> {
    let scattered = |n: u32| n.wrapping_mul(2_654_435_761) >> 3;
    (0..tokens as u32).map(scattered).collect()
}

fn score(scorer: &mut Scorer, request: usize, prompt: &[u32], admission: &Admission) -> ScoredWindow {
    let window = prompt[admission.origin..].to_vec();
    let mut scoring = scorer
        .begin(RequestId(request as u64), LaneId(0), window, admission.origin, true, Stamp::default())
        .unwrap();
    while scorer.step(&mut scoring, Stamp::default()).unwrap().is_some() {}
    let (done, total) = scoring.progress();
    let scored = scorer.finish(scoring, Stamp::default()).unwrap();
    assert_eq!(
        (done, total),
        ((scored.window - scored.cached) as u64, done),
        "a warm scoring computes n − cached"
    );
    scored
}

/// A draft cache that is hit exactly where the origin stayed, from the snapshot that was published there.
#[test]
fn f13_the_scorers_cache_makes_the_44_published_transitions() {
    let base = conversation(96_000);
    let mut transitions = 0;
    let mut last_scorer = None;
    for (arm, rows) in ARMS {
        let mut scorer =
            last_scorer.take().filter(|_| arm.starts_with("reproB")).unwrap_or_else(|| scorer(1024));
        let mut origin = None;
        for (index, row) in rows.iter().enumerate() {
            let admission = admission_of(*row);
            let scored = score(&mut scorer, index, &base[..row.prompt], &admission);
            assert_eq!(scored.window, admission.to_score);
            assert_eq!(
                (scored.cached, scored.stored),
                (row.draft_cached, row.published),
                "{arm} {index}: {row:?}"
            );
            if let Some(before) = origin.replace(admission.origin) {
                assert_eq!(scored.cached > 0, before == admission.origin, "{arm} {index}");
                let moved = ScorerStart::OriginMoved { from: before as u64 };
                assert_eq!(scored.start, if scored.cached > 0 { ScorerStart::Warm } else { moved });
                transitions += 1;
            }
        }
        last_scorer = Some(scorer);
    }
    assert_eq!(transitions, 44);
}

/// The standalone cases: what moves, and what the draft restores of the second prompt.
#[test]
fn f13_the_standalone_cases_restore_what_was_published() {
    let base = conversation(41_984);
    let mut mutated = base.clone();
    mutated[5_000] ^= 1;
    // Case, and for both steps cached tokens, system end, and the boundary stored; then what the second step restores.
    type Step = (usize, usize, Option<usize>);
    let cases: [(&str, Step, Step, usize, ScorerStart); 5] = [
        ("A: the origin stays", (0, 0, Some(40_960)), (0, 0, Some(41_984)), 40_960, ScorerStart::Warm),
        (
            "B: the checkpoint moves",
            (0, 0, Some(40_960)),
            (1_024, 0, Some(40_960)),
            0,
            ScorerStart::OriginMoved { from: 0 },
        ),
        (
            "C: the system prompt's end moves below the checkpoint",
            (30_000, 16_000, Some(10_240)),
            (30_000, 17_000, None),
            10_240,
            ScorerStart::Warm,
        ),
        (
            "D: the system prompt's end moves the origin",
            (15_360, 15_952, Some(24_576)),
            (15_360, 20_108, Some(20_480)),
            0,
            ScorerStart::OriginMoved { from: 15_952 },
        ),
        (
            "E: one token of the history is another",
            (0, 0, Some(40_960)),
            (0, 0, Some(41_984)),
            0,
            ScorerStart::Diverged { shared: 5_000 },
        ),
    ];
    for (case, first, second, restored, start) in cases {
        let mut scorer = scorer(256);
        let next = if case.starts_with('E') { &mutated } else { &base };
        let admission = |length, step: Step| admit(length, step.0, step.1, THRESHOLD);
        let scored = score(&mut scorer, 0, &base[..40_960], &admission(40_960, first));
        assert_eq!((scored.cached, scored.stored, scored.start), (0, first.2, ScorerStart::First), "{case}");
        let scored = score(&mut scorer, 1, next, &admission(41_984, second));
        assert_eq!((scored.cached, scored.stored, scored.start), (restored, second.2, start), "{case}");
    }
}
