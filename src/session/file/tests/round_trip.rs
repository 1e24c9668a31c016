//! Sessions of every kind, written and read back; and files that something damaged.

use std::path::Path;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::config::{ControllerKind, SpeculationConfig};
use crate::decode::SamplingOverride;
use crate::session::{RequestSpec, Setting, ToolCall};

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
    let overrides = (
        proptest::option::of(1u64..1 << 40),
        sampling(),
        proptest::option::of(any::<bool>()),
        specprefill(),
        speculation(),
        transport(),
    )
        .prop_map(|(max_output_tokens, sampling, cache, specprefill, speculation, transport)| {
            RequestOverrides { max_output_tokens, sampling, cache, specprefill, speculation, transport }
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

fn speculation() -> impl Strategy<Value = SpeculationOverride> {
    let drafter = proptest::option::of(proptest::sample::select(&DrafterKind::ALL[..]));
    let controller = proptest::option::of(proptest::sample::select(&ControllerKind::ALL[..]));
    (drafter, proptest::option::of(1..=SpeculationConfig::MAX_DEPTH), controller)
        .prop_map(|(drafter, depth, controller)| SpeculationOverride { drafter, depth, controller })
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
