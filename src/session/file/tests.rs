use std::path::Path;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::config::{Config, SparseOverride};
use crate::decode::SamplingOverride;
use crate::event::Nanos;
use crate::session::{Message, RequestOverrides, RequestSpec, Rewrite, Role, Setting, ToolCall};

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

fn text_message(role: Role) -> impl Strategy<Value = Message> {
    any::<String>().prop_map(move |content| Message::text(role, content))
}

fn json_object() -> impl Strategy<Value = Map<String, Value>> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((any::<String>(), inner), 0..4)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    });
    proptest::collection::vec((any::<String>(), value), 0..4)
        .prop_map(|entries| entries.into_iter().collect())
}

fn sampling() -> impl Strategy<Value = SamplingOverride> {
    let unit = || proptest::option::of(0.001f32..1.0);
    let numbers = (unit(), unit(), unit(), proptest::option::of(0.5f32..2.0));
    (numbers, proptest::option::of(0usize..1000), proptest::option::of(any::<u64>())).prop_map(
        |((temperature, top_p, min_p, repetition_penalty), top_k, seed)| SamplingOverride {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            seed,
        },
    )
}

#[derive(Debug, Clone)]
struct Draft {
    side: bool,
    rewrite: u8,
    target: prop::sample::Index,
    append: Vec<Message>,
    reply: Option<(String, Vec<Map<String, Value>>)>,
    idle: u64,
    overrides: RequestOverrides,
    text: String,
}

fn drafts() -> impl Strategy<Value = Vec<Draft>> {
    let overrides =
        (
            proptest::option::of(1u64..1 << 40),
            sampling(),
            proptest::option::of(any::<bool>()),
            specprefill(),
            transport(),
        )
            .prop_map(|(max_output_tokens, sampling, cache, specprefill, transport)| {
                RequestOverrides { max_output_tokens, sampling, cache, specprefill, transport }
            });
    let reply = proptest::option::of((any::<String>(), proptest::collection::vec(json_object(), 0..3)));
    let draft = (
        (proptest::bool::weighted(0.3), 0u8..10),
        any::<prop::sample::Index>(),
        proptest::collection::vec(text_message(Role::User), 1..3),
        reply,
        0u64..604_800_000_000_000,
        overrides,
        any::<String>(),
    );
    proptest::collection::vec(
        draft.prop_map(|((side, rewrite), target, append, reply, idle, overrides, text)| Draft {
            side,
            rewrite,
            target,
            append,
            reply,
            idle,
            overrides,
            text,
        }),
        1..8,
    )
}

fn transport() -> impl Strategy<Value = Option<String>> {
    proptest::option::of("[a-z0-9_-]{1,32}")
}

fn specprefill() -> impl Strategy<Value = SparseOverride> {
    let keep = proptest::option::of((1u8..=100).prop_map(|percent| f64::from(percent) / 100.0));
    (proptest::option::of(any::<bool>()), keep, proptest::option::of(any::<u64>()))
        .prop_map(|(enabled, keep, threshold)| SparseOverride { enabled, keep, threshold })
}

fn settings() -> impl Strategy<Value = Vec<Setting>> {
    use toml::Value;
    // JSON's reader is exact for numbers as short as people write them.
    let hundredths = || (0u8..200).prop_map(|n| Value::Float(f64::from(n) / 100.0)).boxed();
    let one = |key: &'static str, value: BoxedStrategy<Value>| {
        proptest::option::of(value.prop_map(move |value| Setting { key: key.into(), value }))
    };
    let all = (
        one("cache.enabled", any::<bool>().prop_map(Value::Boolean).boxed()),
        one("cache.ram_bytes", (1i64..4096).prop_map(|mib| Value::String(format!("{mib}MiB"))).boxed()),
        one("scheduler.max_sequences", (1i64..1024).prop_map(Value::Integer).boxed()),
        one("sampling.temperature", hundredths()),
        one("replay.idle", hundredths()),
    );
    all.prop_map(|(a, b, c, d, e)| [a, b, c, d, e].into_iter().flatten().collect())
}

/// Any session that the reader accepts: results answer the calls of the reply before, edits name what is in history.
fn session_of(
    drafts: Vec<Draft>,
    settings: Vec<Setting>,
    system: Option<String>,
    title: String,
    transport: Option<String>,
) -> Session {
    let mut requests: Vec<RequestSpec> = Vec::new();
    let mut in_history: Vec<(String, Vec<String>)> = Vec::new();
    let mut open: Vec<String> = Vec::new();
    for (n, draft) in drafts.into_iter().enumerate() {
        let mut rewrites = Vec::new();
        match draft.rewrite {
            _ if draft.side => {}
            0 if !in_history.is_empty() => {
                let cut = draft.target.index(in_history.len());
                let (before, calls) = in_history.swap_remove(cut);
                in_history.truncate(cut);
                open = calls;
                rewrites.push(Rewrite::Edit { before });
            }
            1 if n > 0 => {
                in_history.clear();
                open.clear();
                rewrites.push(Rewrite::Compaction { messages: vec![Message::text(Role::User, draft.text)] });
            }
            2 if n > 0 => rewrites.push(Rewrite::System(draft.text)),
            3 if n > 0 => rewrites.push(Rewrite::Tools(vec![json!({"name": draft.text})])),
            _ => {}
        }
        let name = format!("r{n}");
        let result = |id: &String| Message {
            tool_call_id: Some(id.clone()),
            ..Message::text(Role::Tool, format!("result of {id}"))
        };
        let results = open.iter().filter(|_| !draft.side).map(result);
        let append = results.chain(draft.append).collect();
        let reply = draft.reply.map(|(content, calls)| Message {
            tool_calls: calls
                .into_iter()
                .enumerate()
                .map(|(i, arguments)| ToolCall {
                    id: Some(format!("c{n}-{i}")),
                    name: "tool".into(),
                    arguments,
                })
                .collect(),
            ..Message::text(Role::Assistant, content)
        });
        if !draft.side {
            in_history.push((name.clone(), open));
            let calls = reply.iter().flat_map(|reply| &reply.tool_calls);
            open = calls.filter_map(|call| call.id.clone()).collect();
        }
        requests.push(RequestSpec {
            name,
            idle: Nanos(draft.idle),
            side: draft.side,
            rewrites,
            append,
            reply,
            overrides: draft.overrides,
        });
    }
    let tools = vec![json!({"type": "function", "function": {"name": "z", "a": 1}}), json!({"name": "a"})];
    Session { title, description: String::new(), transport, settings, system, tools, requests }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_written_reads_back_equal(
        drafts in drafts(),
        settings in settings(),
        system in proptest::option::of(any::<String>()),
        title in "t[^\\p{C}]{0,20}",
        transport in transport(),
    ) {
        let session = session_of(drafts, settings, system, title, transport);
        let text = write(&session);
        let back = parse(&text, Path::new("s.jsonl")).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(&back, &session);
        prop_assert_eq!(write(&back), text);
    }

    #[test]
    fn damaged_files_give_an_error_or_a_session_never_a_panic(
        which in any::<prop::sample::Index>(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<char>()), 1..6),
    ) {
        let bundled = crate::session::bundled();
        let mut text: Vec<char> = bundled[which.index(bundled.len())].1.chars().take(20_000).collect();
        for (at, with) in damage {
            let at = at.index(text.len());
            text[at] = with;
        }
        let _ = parse(&text.into_iter().collect::<String>(), Path::new("s.jsonl"));
    }
}
