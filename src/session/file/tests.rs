use std::path::Path;

use serde_json::json;

use super::*;
use crate::config::{Config, DrafterKind, SparseOverride, SpeculationOverride};
use crate::event::Nanos;
use crate::session::{Message, RequestOverrides, Rewrite, Role};

mod round_trip;

const HEAD: &str = r#"{"escarp_session":1,"title":"t"}"#;
const R1: &str = r#"{"request":{"name":"r1","append":[{"role":"user","content":"hi"}],"reply":{"role":"assistant","content":"yes","tool_calls":[{"id":"call_1","name":"ls"}]}}}"#;

fn parse_lines(lines: &[&str]) -> Result<Session, SessionError> {
    parse(&lines.join("\n"), Path::new("s.jsonl"))
}

fn message_of(lines: &[&str]) -> String {
    parse_lines(lines).expect_err("this must not be accepted").to_string()
}

#[test]
fn the_example_of_the_documentation_is_a_session() {
    let source = include_str!("../file.rs");
    let example: Vec<&str> = source
        .lines()
        .skip_while(|line| *line != "//! ```json")
        .skip(1)
        .take_while(|line| *line != "//! ```")
        .map(|line| line.trim_start_matches("//! "))
        .collect();
    let session = parse_lines(&example).unwrap();
    assert_eq!(session.requests.iter().map(|r| r.side).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!(session.requests[2].idle, Nanos(12_500_000_000));
    assert_eq!(session.requests[2].append[0].tool_call_id.as_deref(), Some("c1"));
}

#[test]
fn blank_lines_a_byte_order_mark_and_windows_line_ends_are_no_matter() {
    let text = format!("\u{feff}\r\n{HEAD}\r\n\r\n  \r\n{R1}\r\n");
    let session = parse(&text, Path::new("s.jsonl")).unwrap();
    assert_eq!(session.requests[0].name, "r1");
    assert_eq!(session.requests[0].append, [Message::text(Role::User, "hi")]);
}

#[test]
fn rewrites_belong_to_the_request_that_follows_in_the_order_written() {
    let session = parse_lines(&[
        HEAD,
        r#"{"system":"first"}"#,
        R1,
        r#"{"tools":[{"name":"ls"}]}"#,
        r#"{"system":"second"}"#,
        r#"{"edit":{"before":"r1"}}"#,
        r#"{"request":{"name":"r2","append":[{"role":"user","content":"again"}]}}"#,
    ])
    .unwrap();
    assert_eq!(session.system.as_deref(), Some("first"));
    assert_eq!(session.requests[0].rewrites, []);
    assert_eq!(
        session.requests[1].rewrites,
        [
            Rewrite::Tools(vec![json!({"name": "ls"})]),
            Rewrite::System("second".into()),
            Rewrite::Edit { before: "r1".into() },
        ]
    );
}

#[test]
fn a_compaction_alone_may_give_the_messages_of_a_request() {
    let session = parse_lines(&[
        HEAD,
        R1,
        r#"{"compaction":{"messages":[{"role":"user","content":"so far"}]}}"#,
        r#"{"request":{"name":"r2"}}"#,
    ]);
    assert!(session.unwrap().requests[1].append.is_empty());
}

#[test]
fn a_cut_or_compacted_request_makes_room_for_its_calls_again() {
    // A repeat: the same request sent twice, with the same call ids.
    let again = R1.replace(r#""r1""#, r#""r1-again""#);
    let result =
        r#"{"request":{"name":"r2","append":[{"role":"tool","tool_call_id":"call_1","content":"x"}]}}"#;
    assert!(parse_lines(&[HEAD, R1, r#"{"edit":{"before":"r1"}}"#, &again, result]).is_ok());
    // After the cut nothing is left that called a tool.
    let cut = [HEAD, R1, r#"{"edit":{"before":"r1"}}"#, result];
    assert!(message_of(&cut).contains("calls no tool"));
    let compacted = [HEAD, R1, r#"{"compaction":{"messages":[]}}"#, result];
    assert!(message_of(&compacted).contains("calls no tool"));
}

#[test]
fn results_of_an_unrecorded_reply_are_taken_as_they_are() {
    let session = parse_lines(&[
        HEAD,
        r#"{"request":{"name":"r1","append":[{"role":"user","content":"hi"}]}}"#,
        r#"{"request":{"name":"r2","append":[{"role":"tool","content":"x"}]}}"#,
    ]);
    assert!(session.is_ok());
}

#[test]
fn every_mistake_is_told_with_file_line_field_and_remedy() {
    let request = |inside: &str| {
        format!(r#"{{"request":{{"name":"r2","append":[{{"role":"user","content":"x"}}],{inside}}}}}"#)
    };
    let append = |message: &str| format!(r#"{{"request":{{"name":"r2","append":[{message}]}}}}"#);
    let many = format!(r#"{{"system":"{}"}}"#, "x".repeat(MAX_LINE_BYTES));
    let cases: Vec<(&str, Vec<String>)> = vec![
        ("s.jsonl: is empty; begin the file with {\"escarp_session\":1,\"title\":\"…\"}", vec![]),
        (
            "s.jsonl:1: is not the head of a session; begin the file with {\"escarp_session\":1,\"title\":\"…\"}",
            vec![R1.into()],
        ),
        (
            "s.jsonl:1: `escarp_session`: version 2 needs a newer escarp; update escarp; this one reads versions up to 1",
            vec![r#"{"escarp_session":2,"flavour":"new"}"#.into()],
        ),
        (
            "s.jsonl:1: `escarp_session`: is text; give a whole number of at least 1",
            vec![r#"{"escarp_session":"1","title":"t"}"#.into()],
        ),
        (
            "s.jsonl:1: `titel`: unknown key; did you mean `title`?",
            vec![r#"{"escarp_session":1,"titel":"t"}"#.into()],
        ),
        ("s.jsonl:1: `title` is missing; give the line a `title`", vec![r#"{"escarp_session":1}"#.into()]),
        (
            "s.jsonl: has no request; add a line {\"request\":{\"name\":\"r1\",\"append\":[…]}}",
            vec![HEAD.into()],
        ),
        (
            "s.jsonl:2: not a JSON object: EOF while parsing a string at column 12; put one whole JSON object on the line",
            vec![HEAD.into(), r#"{"system":"x"#.into()],
        ),
        ("s.jsonl:2: is a list; give an object", vec![HEAD.into(), "[1]".into()]),
        ("s.jsonl:2: the line is longer than 8 MiB; shorten its texts", vec![HEAD.into(), many]),
        (
            "s.jsonl:2: `reqest`: unknown key; did you mean `request`?",
            vec![HEAD.into(), r#"{"reqest":{}}"#.into()],
        ),
        (
            "s.jsonl:2: a line holds exactly one thing; give it one of the keys `system`, `tools`, `request`, `edit` and `compaction`",
            vec![HEAD.into(), r#"{"system":"x","tools":[]}"#.into()],
        ),
        (
            "s.jsonl:3: `system`: is given twice before the first request, first in line 2; keep one, or put the other behind a request",
            vec![HEAD.into(), r#"{"system":"x"}"#.into(), r#"{"system":"y"}"#.into()],
        ),
        (
            "s.jsonl:2: `tools[1]`: has no name; give it a `name`, by itself or inside `function`",
            vec![HEAD.into(), r#"{"tools":[{"name":"a"},{"type":"function"}]}"#.into()],
        ),
        (
            "s.jsonl:2: `tools[1]`: `a` is the name of tool 0 already; give each tool its own name",
            vec![HEAD.into(), r#"{"tools":[{"name":"a"},{"function":{"name":"a"}}]}"#.into()],
        ),
        (
            "s.jsonl:2: no request precedes, so there is no history to rewrite; remove it",
            vec![HEAD.into(), r#"{"compaction":{"messages":[]}}"#.into()],
        ),
        (
            "s.jsonl:3: no request follows, so it rewrites nothing; add one or remove it",
            vec![HEAD.into(), R1.into(), r#"{"system":"y"}"#.into()],
        ),
        (
            "s.jsonl:3: `edit.before`: no request before this line is called `r1x`; did you mean `r1`?",
            vec![HEAD.into(), R1.into(), r#"{"edit":{"before":"r1x"}}"#.into()],
        ),
        (
            "s.jsonl:4: `edit.before`: request `r1` of line 2 is no longer part of the history here; name a request that no edit or compaction has removed",
            vec![
                HEAD.into(),
                R1.into(),
                r#"{"compaction":{"messages":[]}}"#.into(),
                r#"{"edit":{"before":"r1"}}"#.into(),
            ],
        ),
        (
            "s.jsonl:3: `edit.before`: request `t` of line 2 is a side request, no part of the history; name a request of the history",
            vec![
                HEAD.into(),
                R1.replace(r#""name":"r1""#, r#""name":"t","side":true"#),
                r#"{"edit":{"before":"t"}}"#.into(),
            ],
        ),
        (
            "s.jsonl:4: `request.side`: is true, but line 3 rewrites the history; move the side request in front of that line, or behind the request that follows it",
            vec![HEAD.into(), R1.into(), r#"{"system":"y"}"#.into(), request(r#""side":true"#)],
        ),
        (
            "s.jsonl:2: `request.side`: is text; give true or false",
            vec![HEAD.into(), request(r#""side":"yes""#)],
        ),
        (
            "s.jsonl:3: `request.append[0]`: is a tool result, but the assistant message before it calls no tool; give that message `tool_calls`, or send the text as `user`",
            vec![
                HEAD.into(),
                R1.into(),
                r#"{"request":{"name":"t","side":true,"append":[{"role":"tool","tool_call_id":"call_1","content":"x"}]}}"#.into(),
            ],
        ),
        (
            "s.jsonl:1: `set.cache.ram_byte`: unknown key `cache.ram_byte`; did you mean `cache.ram_bytes`?",
            vec![r#"{"escarp_session":1,"title":"t","set":{"cache.ram_byte":1}}"#.into()],
        ),
        (
            "s.jsonl:1: `set.cache.ram_bytes`: is a list; give text, a number, true or false",
            vec![r#"{"escarp_session":1,"title":"t","set":{"cache.ram_bytes":[1]}}"#.into()],
        ),
        (
            "s.jsonl:1: `set.cache.block_tokens`: `cache.block_tokens` is 100, which is out of range; allowed is a multiple of 64 from 64 to 8192; the default is `256`",
            vec![r#"{"escarp_session":1,"title":"t","set":{"replay.clock":"wall","cache.block_tokens":100}}"#.into()],
        ),
        (
            "s.jsonl:1: `set.model.path`: is not for a session to set; remove it, and give `--set model.path=…` where the session is replayed",
            vec![r#"{"escarp_session":1,"title":"t","set":{"model.path":"scarp"}}"#.into()],
        ),
        (
            "s.jsonl:1: `set`: is text; give an object",
            vec![r#"{"escarp_session":1,"title":"t","set":"cache.enabled=false"}"#.into()],
        ),
        (
            "s.jsonl:3: `request.name`: `r1` is the name of the request in line 2 already; give each request its own name",
            vec![HEAD.into(), R1.into(), R1.into()],
        ),
        (
            "s.jsonl:2: `request.max_output_token`: unknown key; did you mean `max_output_tokens`?",
            vec![HEAD.into(), request(r#""max_output_token":3"#)],
        ),
        (
            "s.jsonl:2: `request.max_output_tokens`: is 0; give a whole number of at least 1",
            vec![HEAD.into(), request(r#""max_output_tokens":0"#)],
        ),
        (
            "s.jsonl:2: `request.idle_s`: is -1; give a number from 0 to 604800",
            vec![HEAD.into(), request(r#""idle_s":-1"#)],
        ),
        (
            "s.jsonl:2: `request.sampling.top_p`: is 1.5; give a number from 0.000001 to 1",
            vec![HEAD.into(), request(r#""sampling":{"top_p":1.5}"#)],
        ),
        (
            "s.jsonl:2: `request.set.cash`: unknown key; did you mean `cache`?",
            vec![HEAD.into(), request(r#""set":{"cash":false}"#)],
        ),
        (
            "s.jsonl:1: `transport`: `Agent` is no name of a transport; give up to 32 lower-case letters, digits, `-` and `_`, as in `agent`",
            vec![r#"{"escarp_session":1,"title":"t","transport":"Agent"}"#.into()],
        ),
        (
            "s.jsonl:2: `request.transport`: is a list; give text in quotes",
            vec![HEAD.into(), request(r#""transport":[]"#)],
        ),
        (
            "s.jsonl:2: `request.specprefill.kep`: unknown key; did you mean `keep`?",
            vec![HEAD.into(), request(r#""specprefill":{"kep":0.5}"#)],
        ),
        (
            "s.jsonl:2: `request.specprefill.keep`: is 0; give a fraction above 0, up to 1",
            vec![HEAD.into(), request(r#""specprefill":{"keep":0}"#)],
        ),
        (
            "s.jsonl:2: `request.specprefill.enabled`: is text; give true or false",
            vec![HEAD.into(), request(r#""specprefill":{"enabled":"off"}"#)],
        ),
        (
            "s.jsonl:2: `request.specprefill.threshold`: is -1; give a whole number of at least 0",
            vec![HEAD.into(), request(r#""specprefill":{"threshold":-1}"#)],
        ),
        (
            "s.jsonl:2: `request.speculation.drafter`: is `mpt`; did you mean `mtp`?",
            vec![HEAD.into(), request(r#""speculation":{"drafter":"mpt"}"#)],
        ),
        (
            "s.jsonl:2: `request.speculation.controller`: is `x`; give one of `fixed` and `adaptive`",
            vec![HEAD.into(), request(r#""speculation":{"controller":"x"}"#)],
        ),
        (
            "s.jsonl:2: `request.speculation.depth`: is 17; give a whole number from 1 to 16",
            vec![HEAD.into(), request(r#""speculation":{"depth":17}"#)],
        ),
        (
            "s.jsonl:2: `request.speculation.model`: unknown key; the keys here are `drafter`, `depth` and `controller`",
            vec![HEAD.into(), request(r#""speculation":{"model":"x"}"#)],
        ),
        (
            "s.jsonl:1: `set.specprefill.scorer`: is not for a session to set; remove it, and give `--set specprefill.scorer=…` where the session is replayed",
            vec![r#"{"escarp_session":1,"title":"t","set":{"specprefill.scorer":"models/other.gguf"}}"#.into()],
        ),
        (
            "s.jsonl:1: `set.specprefill.pool`: `specprefill.pool` is 4, which is out of range; allowed is an odd number from 1 to 1023; the default is `13`",
            vec![r#"{"escarp_session":1,"title":"t","set":{"specprefill.scorer":"self:2","specprefill.pool":4}}"#.into()],
        ),
        (
            "s.jsonl:2: `request.reply.role`: is `user`; a reply comes from the `assistant`; what others say goes into `append`",
            vec![HEAD.into(), request(r#""reply":{"role":"user","content":"x"}"#)],
        ),
        (
            "s.jsonl:2: `request.reply`: `content` is missing; give it a `content`",
            vec![HEAD.into(), request(r#""reply":{"role":"assistant"}"#)],
        ),
        (
            "s.jsonl:2: `request.reply.tool_calls[0].arguments`: is not an object; give an object; arguments in quotes must be unpacked",
            vec![
                HEAD.into(),
                request(r#""reply":{"role":"assistant","tool_calls":[{"name":"a","arguments":"{}"}]}"#),
            ],
        ),
        (
            "s.jsonl:2: `request.reply.tool_calls[1].id`: is the id of call 0 already; give each call its own id",
            vec![
                HEAD.into(),
                request(
                    r#""reply":{"role":"assistant","tool_calls":[{"id":"c","name":"a"},{"id":"c","name":"a"}]}"#,
                ),
            ],
        ),
        (
            "s.jsonl:2: `request.append`: is empty; append what the model is to answer",
            vec![HEAD.into(), r#"{"request":{"name":"r2"}}"#.into()],
        ),
        (
            "s.jsonl:2: `request.append`: ends with an assistant message, which leaves nothing to reply to; end it with a message from `user` or `tool`; the reply goes into `reply`",
            vec![HEAD.into(), append(r#"{"role":"assistant","content":"x"}"#)],
        ),
        (
            "s.jsonl:2: `request.append[0].role`: unknown role `asistant`; did you mean `assistant`?",
            vec![HEAD.into(), append(r#"{"role":"asistant","content":"x"}"#)],
        ),
        (
            "s.jsonl:2: `request.append[0].role`: unknown role `system`; give the system prompt its own line, {\"system\":\"…\"}",
            vec![HEAD.into(), append(r#"{"role":"system","content":"x"}"#)],
        ),
        (
            "s.jsonl:2: `request.append[0].content`: is a list of content parts; join the text of its parts; escarp replays text only",
            vec![HEAD.into(), append(r#"{"role":"user","content":[{"type":"text","text":"x"}]}"#)],
        ),
        (
            "s.jsonl:2: `request.append[0]`: `tool_calls` is for the role `assistant`, not `user`; remove it",
            vec![HEAD.into(), append(r#"{"role":"user","content":"x","tool_calls":[]}"#)],
        ),
        (
            "s.jsonl:2: `request.append[0]`: is a tool result, but the assistant message before it calls no tool; give that message `tool_calls`, or send the text as `user`",
            vec![HEAD.into(), append(r#"{"role":"tool","content":"x"}"#)],
        ),
        (
            "s.jsonl:3: `request.append[0].tool_call_id`: is missing, so nobody knows which call this result answers; give it, for example `call_1`",
            vec![HEAD.into(), R1.into(), append(r#"{"role":"tool","content":"x"}"#)],
        ),
        (
            "s.jsonl:3: `request.append[0].tool_call_id`: no call of the assistant message before it has the id `call_2`; did you mean `call_1`?",
            vec![HEAD.into(), R1.into(), append(r#"{"role":"tool","tool_call_id":"call_2","content":"x"}"#)],
        ),
        (
            "s.jsonl:3: `escarp_session`: a second head; put each session into its own file",
            vec![HEAD.into(), R1.into(), HEAD.into()],
        ),
    ];
    for (expected, lines) in cases {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        assert_eq!(message_of(&lines), expected);
    }
}

#[test]
fn what_a_request_says_of_sparse_prefill_is_read_as_far_as_it_says_it() {
    let session = parse_lines(&[
        r#"{"escarp_session":1,"title":"t","transport":"agent","set":{"specprefill.scorer":"self:2","specprefill.enabled":true}}"#,
        R1,
        r#"{"request":{"name":"r2","append":[{"role":"user","content":"x"}],"transport":"long-context","specprefill":{"keep":0.25,"threshold":0}}}"#,
    ])
    .unwrap();
    assert_eq!(session.transport.as_deref(), Some("agent"));
    assert_eq!(session.requests[0].overrides, RequestOverrides::default());
    let overrides = &session.requests[1].overrides;
    assert_eq!(overrides.transport.as_deref(), Some("long-context"));
    let says = SparseOverride { enabled: None, keep: Some(0.25), threshold: Some(0) };
    assert_eq!(overrides.specprefill, says);
}

#[test]
fn what_a_request_says_of_speculation_is_read_as_far_as_it_says_it() {
    let session = parse_lines(&[
        r#"{"escarp_session":1,"title":"t","set":{"speculation.drafter":"mtp","speculation.depth":2}}"#,
        R1,
        r#"{"request":{"name":"r2","append":[{"role":"user","content":"x"}],"speculation":{"drafter":"ngram","depth":16}}}"#,
    ])
    .unwrap();
    assert_eq!(session.requests[0].overrides.speculation, SpeculationOverride::default());
    let says = SpeculationOverride { drafter: Some(DrafterKind::Ngram), depth: Some(16), controller: None };
    assert_eq!(session.requests[1].overrides.speculation, says);
}

#[test]
fn a_transport_that_the_configuration_does_not_have_is_told_with_those_it_has() {
    let session = |head: &str, request: &str| {
        let head = HEAD.replace('}', &format!("{head}}}"));
        let r1 =
            format!(r#"{{"request":{{"name":"r1","append":[{{"role":"user","content":"x"}}]{request}}}}}"#);
        parse_lines(&[&head, &r1]).unwrap()
    };
    let told =
        |session: Session| session.check_transports("s", &Config::default()).map_err(|e| e.to_string());
    assert_eq!(told(session("", "")), Ok(()));
    assert_eq!(told(session(r#","transport":"agent""#, r#","transport":"long-context""#)), Ok(()));
    let unknown =
        "s: unknown transport `mcp`; the transports are agent, long-context; a section [policy.mcp] adds it";
    assert_eq!(told(session(r#","transport":"mcp""#, "")), Err(unknown.into()));
    let alike = "s: request `r1`: unknown transport `agents`; did you mean `agent`?";
    assert_eq!(told(session("", r#","transport":"agents""#)), Err(alike.into()));
}

#[test]
fn what_cannot_be_read_as_text_is_told_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.jsonl");
    std::fs::write(&path, b"{\"escarp_session\":1}\n\"\xff\"\n").unwrap();
    let error = read(&path).unwrap_err();
    assert_eq!((error.line, error.problem.as_str()), (2, "not UTF-8 text"));
    let error = read(&folder.path().join("absent.jsonl")).unwrap_err();
    assert!(error.problem.starts_with("cannot be read"), "{error}");
}

#[test]
fn a_file_beyond_the_bound_is_refused_without_reading_it_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.jsonl");
    File::create(&path).and_then(|file| file.set_len(MAX_FILE_BYTES + 1)).unwrap();
    assert_eq!(read(&path).unwrap_err().problem, "longer than 64 MiB");
}

#[test]
fn too_many_requests_are_refused() {
    let mut text = format!("{HEAD}\n");
    for n in 0..=MAX_REQUESTS {
        text.push_str(&format!(
            r#"{{"request":{{"name":"r{n}","append":[{{"role":"user","content":""}}]}}}}"#
        ));
        text.push('\n');
    }
    let error = parse(&text, Path::new("s.jsonl")).unwrap_err();
    assert_eq!((error.line, error.problem.as_str()), (MAX_REQUESTS + 2, "more than 100000 requests"));
}
