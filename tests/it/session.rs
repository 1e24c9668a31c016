//! The sessions that come with the program, as files and as they play.

use std::path::Path;
use std::sync::Arc;

use escarp::config::load_over;
use escarp::event::{HistoryChange, Source};
use escarp::model::Gguf;
use escarp::model::text::TextCodec;
use escarp::session::file::{parse, write};
use escarp::session::{Player, ReplayMode, Session, Turn, bundled, open};

fn turns(session: &Session, mode: ReplayMode) -> Vec<Turn> {
    let mut player = Player::new(Arc::new(session.clone()), mode);
    std::iter::from_fn(|| {
        let turn = player.take()?;
        player.reply("what the model said");
        Some(turn)
    })
    .collect()
}

fn changes(name: &str) -> Vec<HistoryChange> {
    turns(&open(name).unwrap(), ReplayMode::Recorded).into_iter().map(|turn| turn.change).collect()
}

#[test]
fn every_file_of_the_folder_is_bundled_under_its_name() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("sessions");
    let mut files: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    let mut names: Vec<&str> = bundled().iter().map(|(name, _)| *name).collect();
    files.sort();
    names.sort();
    assert_eq!(files, names);
}

#[test]
fn every_bundled_session_opens_by_name_and_survives_being_written() {
    for (name, _) in bundled() {
        let session = open(name).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(parse(&write(&session), Path::new(name)).unwrap(), session, "{name}");
        assert!(!session.description.is_empty() && session.tools.len() >= 3, "{name}");
    }
}

#[test]
fn a_turn_begins_with_the_turn_before_it_unless_the_session_rewrites_history() {
    for (name, _) in bundled() {
        for mode in [ReplayMode::Recorded, ReplayMode::Live] {
            let mut turns = turns(&open(name).unwrap(), mode);
            turns.retain(|turn| turn.source != Source::Side);
            for (before, after) in turns.iter().zip(&turns[1..]) {
                if after.change == HistoryChange::Append {
                    let (old, new) = (&before.conversation, &after.conversation);
                    assert!(new.messages.starts_with(&old.messages), "{name}: {}", after.name);
                    let grown = new.messages.len() - old.messages.len();
                    assert_eq!(
                        grown,
                        1 + after.appended.len(),
                        "{name}: {}: the reply lies between",
                        after.name
                    );
                    assert_eq!(
                        (&new.system, &new.tools),
                        (&old.system, &old.tools),
                        "{name}: {}",
                        after.name
                    );
                }
            }
        }
    }
}

#[test]
fn the_bundled_sessions_have_the_shapes_they_are_named_for() {
    use HistoryChange::{Append, Compaction, Edit, First, SystemChange, ToolChange};
    for name in ["quick", "steady", "append-heavy", "growing"] {
        let changes = changes(name);
        assert_eq!(changes[0], First, "{name}");
        assert!(changes[1..].iter().all(|change| *change == Append), "{name}");
    }
    let rewrites = |name| -> Vec<HistoryChange> {
        changes(name).into_iter().filter(|change| !matches!(change, First | Append)).collect()
    };
    assert_eq!(rewrites("tools-change"), [ToolChange, SystemChange]);
    assert_eq!(rewrites("compaction"), [Edit, Compaction]);
}

#[test]
fn idle_gaps_and_budgets_are_those_of_an_agent_on_a_laptop() {
    for (name, _) in bundled() {
        let requests = open(name).unwrap().requests;
        for request in &requests[1..] {
            let gap = request.idle.seconds();
            // A side request is sent by the agent itself, at once.
            let wanted = if request.side { 0.0..=2.0 } else { 9.6..=160.9 };
            assert!(wanted.contains(&gap), "{name}: {}: {gap} s", request.name);
        }
        for request in &requests {
            let budget = request.overrides.max_output_tokens.unwrap();
            let wanted = if request.side { 8..=24 } else { 24..=48 };
            assert!(wanted.contains(&budget), "{name}: {}: {budget}", request.name);
        }
    }
}

/// The prompt tokens of every turn on SmolLM2, after a check that a turn's prompt begins with the one before it unless
/// the session says otherwise.
fn prompt_tokens(codec: &TextCodec, name: &str) -> Vec<usize> {
    let mut before: Vec<u32> = Vec::new();
    let mut counts = Vec::new();
    for turn in turns(&open(name).unwrap(), ReplayMode::Recorded) {
        let tokens = codec.render(&turn.conversation).unwrap().tokens;
        let shared = before.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
        let appends = matches!(turn.change, HistoryChange::First | HistoryChange::Append);
        assert_eq!(shared == before.len(), appends, "{name}: {}: {:?}", turn.name, turn.change);
        counts.push(tokens.len());
        before = tokens;
    }
    counts
}

#[test]
fn the_bundled_sessions_have_the_lengths_they_promise_on_smollm2() {
    let Some(model) = std::env::var_os("ESCARP_SMOLLM2") else {
        println!("skipped: ESCARP_SMOLLM2 is unset");
        return;
    };
    let codec = TextCodec::from_gguf(&Gguf::open(Path::new(&model)).unwrap()).unwrap();
    let counts = |name| prompt_tokens(&codec, name);
    let longest = |name| *counts(name).iter().max().unwrap();

    assert!(longest("quick") < 1_500);
    let steady = counts("steady");
    assert!((1_500..2_500).contains(&steady[0]) && (14..=20).contains(&steady.len()), "{steady:?}");
    assert!((7_000..8_192 - 48).contains(&steady[steady.len() - 1]), "{steady:?}");
    let growth: Vec<usize> = steady.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(growth.iter().all(|grown| (190..900).contains(grown)), "{growth:?}");
    assert!(longest("append-heavy") > 24_000);
    assert!(longest("tools-change") < 8_000 && longest("compaction") < 8_000);
}

#[test]
fn growing_leaves_the_sparse_route_once_its_debt_is_paid_and_not_before() {
    let session = open("growing").unwrap();
    let mut config = load_over(&session.overrides("growing"), None, &[]).unwrap();
    config.model.path = Some("scarp".into());
    let codec = escarp::model::load(&config).unwrap().text;
    let counts = prompt_tokens(&codec, "growing");
    let growth: Vec<usize> = counts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let (block, threshold) = (config.cache.block_tokens, config.specprefill.threshold.unwrap() as usize);
    assert!((11_500..13_500).contains(&counts[0]) && growth.len() >= 8, "{counts:?}");
    assert!(growth.iter().all(|grown| (690..=900).contains(grown)), "{growth:?}");
    // What a turn adds and the longest tail that fills no block: dense after full repayment, sparse before it.
    assert!(growth.iter().all(|grown| grown + block - 1 <= threshold) && counts[0] > threshold);
    assert!(session.requests[1..].iter().all(|request| request.idle.seconds() == 15.0));
}

#[test]
fn a_name_nobody_bundled_suggests_one() {
    let error = open("stedy").unwrap_err().to_string();
    assert_eq!(
        error,
        "stedy: there is no bundled session of this name, nor such a file; did you mean `steady`?"
    );
    let error = open("sessions/absent.jsonl").unwrap_err().to_string();
    assert!(error.starts_with("sessions/absent.jsonl: cannot be read: "), "{error}");
}
