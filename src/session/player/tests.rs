use proptest::prelude::*;

use super::*;

fn user(text: &str) -> Message {
    Message::text(Role::User, text)
}

fn assistant(text: &str) -> Message {
    Message::text(Role::Assistant, text)
}

fn request(name: &str, rewrites: Vec<Rewrite>, reply: Option<&str>) -> super::super::RequestSpec {
    super::super::RequestSpec {
        name: name.into(),
        idle: Nanos::from_seconds(1.5),
        side: false,
        rewrites,
        append: vec![user(&format!("ask {name}"))],
        reply: reply.map(assistant),
        overrides: RequestOverrides::default(),
    }
}

fn session(requests: Vec<super::super::RequestSpec>) -> Arc<Session> {
    Arc::new(Session {
        title: "t".into(),
        description: String::new(),
        transport: None,
        settings: Vec::new(),
        system: Some("be brief".into()),
        tools: vec![serde_json::json!({"name": "read_file"})],
        requests,
    })
}

fn three() -> Arc<Session> {
    session(vec![
        request("r1", vec![], Some("one")),
        request("r2", vec![], Some("two")),
        request("r3", vec![], None),
    ])
}

fn texts(turn: &Turn) -> Vec<&str> {
    turn.conversation.messages.iter().map(|m| m.content.as_str()).collect()
}

#[test]
fn recorded_mode_ignores_what_the_model_said_where_a_reply_is_recorded() {
    let mut player = Player::new(three(), ReplayMode::Recorded);
    player.take();
    player.reply("live");
    assert_eq!(texts(&player.take().unwrap()), ["ask r1", "one", "ask r2"]);
}

#[test]
fn live_mode_carries_what_the_model_said() {
    let mut player = Player::new(three(), ReplayMode::Live);
    player.take();
    player.reply("live");
    player.reply("a second reply is ignored");
    assert_eq!(texts(&player.take().unwrap()), ["ask r1", "live", "ask r2"]);
}

#[test]
fn a_turn_without_recorded_reply_takes_the_models_text_in_recorded_mode() {
    let mut player = Player::new(three(), ReplayMode::Recorded);
    while let Some(turn) = player.take() {
        player.reply(&format!("said at {}", turn.number));
    }
    let turn = player.inject(vec![user("and?")], Nanos(7));
    assert_eq!(texts(&turn), ["ask r1", "one", "ask r2", "two", "ask r3", "said at 3", "and?"]);
    assert_eq!((turn.name.as_str(), turn.source, turn.idle), ("inject 1", Source::Inject, Nanos(7)));
}

#[test]
fn a_reply_nobody_gave_counts_as_empty_so_that_roles_alternate() {
    let mut player = Player::new(three(), ReplayMode::Live);
    player.take();
    assert_eq!(player.peek(), player.clone().take());
    assert_eq!(texts(&player.take().unwrap()), ["ask r1", "", "ask r2"]);
}

#[test]
fn a_reply_before_the_first_turn_is_no_history() {
    let mut player = Player::new(three(), ReplayMode::Live);
    player.reply("too early");
    assert_eq!(texts(&player.take().unwrap()), ["ask r1"]);
}

#[test]
fn the_files_requests_follow_an_injected_turn_and_its_messages_are_marked() {
    let mut player = Player::new(three(), ReplayMode::Recorded);
    player.take();
    player.reply("");
    let injected = player.inject(vec![user("wait")], Nanos(0));
    assert!(injected.conversation.messages.last().unwrap().injected);
    assert_eq!((player.turns_taken(), player.turns_known()), (2, 4));
    player.reply("waiting");
    let next = player.take().unwrap();
    assert_eq!(texts(&next), ["ask r1", "one", "wait", "waiting", "ask r2"]);
    assert_eq!((next.number, next.name.as_str(), next.change), (3, "r2", HistoryChange::Append));
}

#[test]
fn turns_are_named_numbered_and_classified() {
    let mut player = Player::new(three(), ReplayMode::Recorded);
    let first = player.take().unwrap();
    assert_eq!((first.number, first.name.as_str()), (1, "r1"));
    assert_eq!((first.source, first.change), (Source::Replay, HistoryChange::First));
    assert_eq!(first.appended, [user("ask r1")]);
    assert_eq!(first.idle, Nanos(1_500_000_000));
    assert_eq!(first.conversation.system.as_deref(), Some("be brief"));
}

#[test]
fn an_edit_in_the_file_cuts_before_the_named_request() {
    let mut player = Player::new(
        session(vec![
            request("r1", vec![], Some("one")),
            request("r2", vec![], Some("two")),
            request("r3", vec![Rewrite::Edit { before: "r2".into() }], Some("three")),
            request("r4", vec![Rewrite::Edit { before: "r2".into() }], None),
        ]),
        ReplayMode::Recorded,
    );
    let turns: Vec<Turn> = std::iter::from_fn(|| player.take()).collect();
    assert_eq!(texts(&turns[2]), ["ask r1", "one", "ask r3"]);
    assert_eq!(turns[2].change, HistoryChange::Edit);
    assert_eq!(
        texts(&turns[3]),
        ["ask r1", "one", "ask r3", "three", "ask r4"],
        "r2 is no longer there to cut"
    );
    assert_eq!(turns[3].change, HistoryChange::Append);
}

#[test]
fn a_compaction_replaces_history_and_shows_what_by() {
    let compaction = Rewrite::Compaction { messages: vec![user("summary")] };
    let mut player = Player::new(
        session(vec![
            request("r1", vec![], Some("one")),
            request("r2", vec![compaction], Some("two")),
            request("r3", vec![Rewrite::Edit { before: "r2".into() }], None),
        ]),
        ReplayMode::Recorded,
    );
    player.take();
    let compacted = player.take().unwrap();
    assert_eq!(texts(&compacted), ["summary", "ask r2"]);
    assert_eq!(compacted.appended, [user("summary"), user("ask r2")]);
    assert_eq!(compacted.change, HistoryChange::Compaction);
    assert_eq!(texts(&player.take().unwrap()), ["ask r3"], "the summary belongs to the request it precedes");
}

#[test]
fn the_most_drastic_of_several_rewrites_names_the_change() {
    let edit = || Rewrite::Edit { before: "r1".into() };
    let tools = || Rewrite::Tools(vec![]);
    let system = || Rewrite::System("be thorough".into());
    let compaction = || Rewrite::Compaction { messages: vec![] };
    for (rewrites, change) in [
        (vec![edit()], HistoryChange::Edit),
        (vec![tools(), edit()], HistoryChange::ToolChange),
        (vec![edit(), system(), tools()], HistoryChange::SystemChange),
        (vec![compaction(), system(), tools()], HistoryChange::Compaction),
        (vec![Rewrite::System("be brief".into())], HistoryChange::Append),
        (vec![Rewrite::Tools(vec![serde_json::json!({"name": "read_file"})])], HistoryChange::Append),
    ] {
        let requests = vec![request("r1", vec![], None), request("r2", rewrites.clone(), None)];
        let mut player = Player::new(session(requests), ReplayMode::Recorded);
        player.take();
        assert_eq!(player.take().unwrap().change, change, "{rewrites:?}");
    }
}

#[test]
fn a_fork_replaces_one_turn_and_leaves_its_parent_alone() {
    let mut parent = Player::new(three(), ReplayMode::Recorded);
    for _ in 0..3 {
        parent.take();
        parent.reply("said");
    }
    assert_eq!(parent.appended_by(2), Some(&[user("ask r2")][..]));
    let mut fork = parent.fork(2, vec![user("rather this")]).unwrap();
    assert_eq!((fork.turns_taken(), fork.turns_known()), (1, 3));
    let edited = fork.take().unwrap();
    assert_eq!(texts(&edited), ["ask r1", "one", "rather this"]);
    assert_eq!((edited.number, edited.name.as_str()), (2, "r2 edited"));
    assert_eq!((edited.source, edited.change), (Source::Edit, HistoryChange::Edit));
    assert_eq!(fork.appended_by(2), Some(&[user("rather this")][..]));
    fork.reply("x");
    let next = fork.take().unwrap();
    assert_eq!(texts(&next), ["ask r1", "one", "rather this", "two", "ask r3"]);
    assert_eq!(next.change, HistoryChange::Append);

    assert_eq!((parent.turns_taken(), parent.peek()), (3, None));
    let on = parent.inject(vec![user("on")], Nanos(0));
    assert_eq!(texts(&on), ["ask r1", "one", "ask r2", "two", "ask r3", "said", "on"]);
}

#[test]
fn there_is_no_fork_of_a_turn_that_was_not_taken() {
    let mut player = Player::new(three(), ReplayMode::Recorded);
    player.take();
    assert!(player.fork(0, vec![]).is_none());
    assert!(player.fork(2, vec![]).is_none());
    assert!(player.appended_by(0).is_none() && player.appended_by(2).is_none());
}

#[test]
fn an_injected_turn_can_be_edited_and_the_file_still_follows() {
    let mut player = Player::new(three(), ReplayMode::Live);
    player.take();
    player.reply("a");
    player.inject(vec![user("injected")], Nanos(3));
    let mut fork = player.fork(2, vec![user("reworded")]).unwrap();
    assert_eq!(fork.turns_known(), 4);
    let edited = fork.take().unwrap();
    assert_eq!(
        (edited.name.as_str(), edited.source, edited.idle),
        ("inject 1 edited", Source::Edit, Nanos(3))
    );
    fork.reply("b");
    assert_eq!(texts(&fork.take().unwrap()), ["ask r1", "a", "reworded", "b", "ask r2"]);
}

#[test]
fn the_first_turn_can_be_edited() {
    let mut player = Player::new(three(), ReplayMode::Recorded);
    player.take();
    let edited = player.fork(1, vec![user("instead")]).unwrap().take().unwrap();
    assert_eq!((edited.number, edited.change, texts(&edited)), (1, HistoryChange::Edit, vec!["instead"]));
}

fn with_sides() -> Arc<Session> {
    let side = |name: &str| super::super::RequestSpec { side: true, ..request(name, vec![], Some("aside")) };
    session(vec![
        side("s1"),
        request("r1", vec![], Some("one")),
        side("s2"),
        request("r2", vec![Rewrite::System("be thorough".into())], None),
        side("s3"),
        request("r3", vec![], None),
    ])
}

#[test]
fn history_goes_on_without_side_requests_and_their_replies() {
    for mode in [ReplayMode::Recorded, ReplayMode::Live] {
        let mut player = Player::new(with_sides(), mode);
        let turns: Vec<Turn> = std::iter::from_fn(|| {
            let peeked = player.peek();
            let turn = player.take()?;
            assert_eq!(peeked.as_ref(), Some(&turn));
            assert_eq!(player.last_is_side(), turn.source == Source::Side);
            // Whether a reply was given makes no difference to what follows a side request.
            if turn.number != 3 {
                player.reply(&format!("said at {}", turn.number));
            }
            Some(turn)
        })
        .collect();
        let one = if mode == ReplayMode::Recorded { "one" } else { "said at 2" };
        let main = ["ask r1", one, "ask r2", "said at 4", "ask r3"];
        let wanted: [&[&str]; 6] = [&["ask s1"], &main[..1], &["ask s2"], &main[..3], &["ask s3"], &main];
        assert_eq!(turns.iter().map(texts).collect::<Vec<_>>(), wanted, "{mode:?}");
        use HistoryChange::{Append, First, SystemChange};
        let changes: Vec<_> = turns.iter().map(|turn| turn.change).collect();
        assert_eq!(changes, [First, First, First, SystemChange, First, Append]);
        assert_eq!(turns.iter().map(|turn| turn.number).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
        let systems = turns.iter().map(|turn| turn.conversation.system.as_deref().unwrap());
        assert_eq!(systems.collect::<Vec<_>>()[2..5], ["be brief", "be thorough", "be thorough"]);
        assert!(turns.iter().all(|turn| turn.conversation.tools == turns[0].conversation.tools));
    }
}

#[test]
fn an_injected_turn_after_a_side_request_goes_on_with_the_history() {
    let mut player = Player::new(with_sides(), ReplayMode::Recorded);
    for _ in 0..3 {
        player.take();
        player.reply("");
    }
    assert_eq!(texts(&player.inject(vec![user("and?")], Nanos(0))), ["ask r1", "one", "and?"]);
}

#[test]
fn a_forked_side_request_stays_beside_the_history() {
    let mut player = Player::new(with_sides(), ReplayMode::Recorded);
    for _ in 0..4 {
        player.take();
        player.reply("said");
    }
    let mut fork = player.fork(3, vec![user("rather this")]).unwrap();
    assert_eq!((fork.turns_taken(), fork.turns_known()), (2, 6));
    let edited = fork.take().unwrap();
    assert_eq!((edited.name.as_str(), texts(&edited)), ("s2 edited", vec!["rather this"]));
    assert_eq!((edited.source, edited.change), (Source::Side, HistoryChange::Edit));
    fork.reply("said");
    assert_eq!(texts(&fork.take().unwrap()), ["ask r1", "one", "ask r2"]);
}

/// What a researcher can do to a lane.
#[derive(Debug, Clone)]
enum Action {
    Take,
    Inject(u8),
    /// Fork the given turn (counted modulo those taken) and go on in the fork.
    Fork(u8),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        6 => Just(Action::Take),
        2 => any::<u8>().prop_map(Action::Inject),
        1 => any::<u8>().prop_map(Action::Fork),
    ];
    proptest::collection::vec(action, 0..40)
}

fn sessions() -> impl Strategy<Value = Arc<Session>> {
    let rewrite = prop_oneof![
        any::<prop::sample::Index>().prop_map(|i| (0, i)),
        any::<prop::sample::Index>().prop_map(|i| (1, i)),
        any::<prop::sample::Index>().prop_map(|i| (2, i)),
        any::<prop::sample::Index>().prop_map(|i| (3, i)),
    ];
    let spec = (proptest::option::weighted(0.3, rewrite), any::<bool>(), proptest::bool::weighted(0.3));
    proptest::collection::vec(spec, 1..12).prop_map(|specs| {
        let mut requests: Vec<super::super::RequestSpec> = Vec::new();
        for (n, (rewrite, recorded, side)) in specs.into_iter().enumerate() {
            let rewrites = match rewrite.filter(|_| n > 0 && !side) {
                Some((0, index)) => vec![Rewrite::Edit { before: requests[index.index(n)].name.clone() }],
                Some((1, _)) => vec![Rewrite::Compaction { messages: vec![user(&format!("summary {n}"))] }],
                Some((2, _)) => vec![Rewrite::System(format!("system {n}"))],
                Some((_, _)) => vec![Rewrite::Tools(vec![serde_json::json!({ "name": format!("t{n}") })])],
                None => vec![],
            };
            let request = request(&format!("r{n}"), rewrites, recorded.then_some("recorded"));
            requests.push(super::super::RequestSpec { side, ..request });
        }
        session(requests)
    })
}

/// The obvious implementation: a lane as the list of its turns, each with the conversation it carried and the reply
/// that became history.
struct Lane {
    turns: Vec<(Turn, Message)>,
}

impl Lane {
    /// Turn N's conversation and reply begin turn N+1's, unless the session rewrote history in between. Side requests are not
    /// counted, and carry their own messages only.
    fn check(&self, next: &Turn) {
        if next.source == Source::Side {
            assert_eq!(next.conversation.messages, next.appended);
            assert!(matches!(next.change, HistoryChange::First | HistoryChange::Edit));
            return;
        }
        let Some((previous, reply)) = self.turns.iter().rfind(|(turn, _)| turn.source != Source::Side) else {
            assert!(matches!(next.change, HistoryChange::First | HistoryChange::Edit));
            return;
        };
        let mut history = previous.conversation.clone();
        history.messages.push(reply.clone());
        let appended = next.appended.len();
        let all = &next.conversation.messages;
        assert_eq!(&all[all.len() - appended..], &next.appended[..]);
        match next.change {
            HistoryChange::First => panic!("turn {} cannot be the first", next.number),
            HistoryChange::Append => {
                assert_eq!(next.conversation.system, history.system);
                assert_eq!(next.conversation.tools, history.tools);
                assert_eq!(all[..all.len() - appended], history.messages[..]);
            }
            HistoryChange::Edit => {
                assert!(history.messages.starts_with(&all[..all.len() - appended]));
            }
            HistoryChange::Compaction => assert_eq!(all.len(), appended),
            HistoryChange::SystemChange => {
                assert_ne!(next.conversation.system, history.system);
                assert_eq!(all[..all.len() - appended], history.messages[..]);
            }
            HistoryChange::ToolChange => {
                assert_ne!(next.conversation.tools, history.tools);
                assert_eq!(all[..all.len() - appended], history.messages[..]);
            }
        }
    }
}

proptest! {
    #[test]
    fn history_only_grows_unless_the_session_rewrites_it(
        session in sessions(),
        actions in actions(),
        live in any::<bool>(),
    ) {
        let mode = if live { ReplayMode::Live } else { ReplayMode::Recorded };
        let mut player = Player::new(Arc::clone(&session), mode);
        let mut lane = Lane { turns: Vec::new() };
        for action in actions {
            let turn = match action {
                Action::Take => {
                    let peeked = player.peek();
                    let taken = player.take();
                    prop_assert_eq!(&peeked, &taken);
                    let Some(turn) = taken else { continue };
                    turn
                }
                Action::Inject(n) => player.inject(vec![user(&format!("injected {n}"))], Nanos(n.into())),
                Action::Fork(n) if !lane.turns.is_empty() => {
                    let number = usize::from(n) % lane.turns.len() + 1;
                    let before = format!("{player:?}");
                    let fork = player.fork(number as u32, vec![user("edited")]);
                    prop_assert_eq!(before, format!("{player:?}"), "a fork leaves its parent untouched");
                    player = fork.unwrap();
                    lane.turns.truncate(number - 1);
                    let turn = player.take().unwrap();
                    let side = session.requests.iter().any(|r| r.side && turn.name == format!("{} edited", r.name));
                    prop_assert_eq!(turn.source, if side { Source::Side } else { Source::Edit });
                    turn
                }
                Action::Fork(_) => continue,
            };
            lane.check(&turn);
            prop_assert_eq!(turn.number as usize, lane.turns.len() + 1);
            prop_assert_eq!(player.turns_taken(), turn.number);
            prop_assert_eq!(player.appended_by(turn.number), Some(&turn.appended[..]));
            let said = format!("said at {}", turn.number);
            player.reply(&said);
            let recorded = session.requests.iter()
                .find(|r| turn.name.trim_end_matches(" edited") == r.name)
                .and_then(|r| r.reply.clone());
            let reply = recorded.filter(|_| !live).unwrap_or_else(|| assistant(&said));
            lane.turns.push((turn, reply));
        }
        prop_assert!(player.turns_known() >= player.turns_taken());
    }
}

#[test]
fn a_request_comes_by_its_own_transport_and_else_by_the_sessions() {
    let mut requests =
        vec![request("r1", vec![], Some("one")), request("r2", vec![], None), request("r3", vec![], None)];
    requests[1].overrides.transport = Some("long-context".into());
    let mut session = Arc::unwrap_or_clone(session(requests));
    session.transport = Some("agent".into());
    let mut player = Player::new(Arc::new(session), ReplayMode::Recorded);
    let transport = |turn: Turn| turn.overrides.transport;
    assert_eq!(transport(player.take().unwrap()).as_deref(), Some("agent"));
    assert_eq!(transport(player.peek().unwrap()).as_deref(), Some("long-context"));
    assert_eq!(transport(player.take().unwrap()).as_deref(), Some("long-context"));
    let injected = player.inject(vec![Message::text(Role::User, "now")], Nanos(0));
    assert_eq!(transport(injected).as_deref(), Some("agent"));
    assert_eq!(Player::new(three(), ReplayMode::Live).take().unwrap().overrides.transport, None);
}
