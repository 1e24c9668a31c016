//! What folders of hybrid models bring: a template that thinks, a tokenizer with marks of several kinds.

use super::*;

const THINKING: &str = include_str!("thinking.jinja");

fn rendered(conversation: &Conversation) -> String {
    let codec = synthetic_with(THINKING);
    codec.decode(&codec.render(conversation).unwrap().tokens, true)
}

#[test]
fn a_thinking_template_lays_out_an_agent_session() {
    let mut conversation = agent_conversation();
    conversation.messages.pop();
    let mut again = Message::text(Role::Assistant, "<think>\nIt is short.\n</think>\n\n");
    again.tool_calls = vec![call("run", "a"), call("run", "b")];
    conversation.messages.extend([again, Message::text(Role::Tool, "1"), Message::text(Role::Tool, " 2\n")]);
    let parameters = |path: &str| {
        format!(
            "<parameter=path>\n{path}\n</parameter>\n<parameter=limit>\n3\n</parameter>\n</function>\n</tool_call>"
        )
    };
    let expected = format!(
        "<|im_start|>system\n# Tools\n<tools>\n\
         {{\"type\": \"function\", \"function\": {{\"name\": \"read_file\", \"description\": \"Reads a file\", \"parameters\": {{\"type\": \"object\"}}}}}}\n\
         {{\"type\": \"function\", \"function\": {{\"name\": \"run\", \"description\": \"Runs a command\", \"parameters\": {{\"type\": \"object\"}}}}}}\n\
         </tools>\n\nYou are a careful engineer.<|im_end|>\n\
         <|im_start|>user\nfix the bug<|im_end|>\n\
         <|im_start|>assistant\n<think>\n\n</think>\n\nLet me look\n\n<tool_call>\n<function=read_file>\n{}<|im_end|>\n\
         <|im_start|>user\n<tool_response>\npub fn main() {{}}\n</tool_response><|im_end|>\n\
         <|im_start|>assistant\n<think>\nIt is short.\n</think>\n\n<tool_call>\n<function=run>\n{}\n<tool_call>\n<function=run>\n{}<|im_end|>\n\
         <|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n\
         <|im_start|>assistant\n<think>\n",
        parameters("src/lib.rs"),
        parameters("a"),
        parameters("b"),
    );
    assert_eq!(rendered(&conversation), expected);
}

#[test]
fn a_thinking_template_rewrites_earlier_turns_and_the_rest_keeps_its_segments() {
    let codec = synthetic_with(THINKING);
    let mut conversation = agent_conversation();
    let before = codec.render(&conversation).unwrap();
    // Another question: what was thought before it is dropped, and so the prompts part.
    conversation.messages.push(Message::text(Role::Assistant, "Done."));
    conversation.messages.push(Message::text(Role::User, "thanks"));
    let after = codec.render(&conversation).unwrap();
    let common = before.tokens.iter().zip(&after.tokens).take_while(|(a, b)| a == b).count();
    assert!(common > 0 && common < before.tokens.len());
    let all = by_segment(&codec, &after);
    assert_eq!(texts_of(&all, Segment::System), ["You are a careful engineer."]);
    assert_eq!(texts_of(&all, Segment::User), ["fix the bug", "thanks"]);
    assert_eq!(texts_of(&all, Segment::Assistant), ["Let me look", "Done."]);
    assert_eq!(texts_of(&all, Segment::ToolResult), ["pub fn main() {}"]);
    assert_eq!(texts_of(&all, Segment::Injected), ["wait, also check the tests"]);
    let calls = texts_of(&all, Segment::ToolCall).concat();
    assert!(calls.contains("read_file") && calls.contains("src/lib.rs"), "{calls}");
}

#[test]
fn a_thinking_template_says_what_it_does_not_take() {
    let codec = synthetic_with(THINKING);
    for (messages, named) in
        [(vec![], "there are no messages"), (vec![Message::text(Role::Tool, "x")], "nobody asked anything")]
    {
        let error =
            codec.render(&Conversation { messages, ..Conversation::default() }).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
}

/// The folder of [`tokenizer_folder`], its words cut by `pattern` as folders of the family have it.
fn cut_by(pattern: &str) -> tempfile::TempDir {
    let folder = tokenizer_folder(json!([["h", "i"]]));
    let path = folder.path().join("tokenizer.json");
    let mut tokenizer: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    tokenizer["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
    ]});
    tokenizer["post_processor"] =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    // Merges show where words are cut: one that spans a cut does not happen.
    let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    for (token, id) in [("12", 257), ("e\u{cc}", 258), (");", 259), ("\u{120}a", 260)] {
        vocab.insert(token.into(), json!(id));
    }
    tokenizer["model"]["merges"] =
        json!([["h", "i"], ["1", "2"], ["e", "\u{cc}"], [")", ";"], ["\u{120}", "a"]]);
    tokenizer["normalizer"] = json!(null);
    tokenizer["added_tokens"] = json!([]);
    std::fs::write(path, tokenizer.to_string()).unwrap();
    folder
}

#[test]
fn words_are_cut_as_the_folder_says() {
    let older = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let newer = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let [older, newer] = [older, newer].map(|pattern| {
        let folder = cut_by(pattern);
        TextCodec::from_folder(folder.path(), 300).unwrap()
    });
    for codec in [&older, &newer] {
        let ids = |text: &str| codec.encode(text, true).unwrap();
        assert_eq!(ids("hi"), [256]);
        assert_eq!(ids("12").len(), 2, "digits stand alone");
        assert_eq!(ids(");"), [259]);
        assert_eq!(ids("  a").last(), Some(&260), "the last space goes with the word");
        assert_eq!(codec.decode(&ids("it's 12 e\u{301} 日本\n\n"), true), "it's 12 e\u{301} 日本\n\n");
    }
    // A combining mark belongs to its letter only by the newer rule.
    assert_eq!(newer.encode("e\u{301}", true).unwrap()[0], 258);
    assert_ne!(older.encode("e\u{301}", true).unwrap()[0], 258);
}

#[test]
fn tokens_and_templates_are_found_wherever_folders_keep_them() {
    let folder = tokenizer_folder(json!([["h", "i"]]));
    let write = |name: &str, json: serde_json::Value| {
        std::fs::write(folder.path().join(name), json.to_string()).unwrap();
    };
    let codec = || TextCodec::from_folder(folder.path(), 300).unwrap();
    let ask = Conversation { messages: vec![Message::text(Role::User, "hi")], ..Conversation::default() };
    let text = || {
        let codec = codec();
        codec.decode(&codec.render(&ask).unwrap().tokens, true)
    };
    let token = |content: &str, special: bool| json!({"content": content, "special": special});
    write(
        "tokenizer_config.json",
        json!({
            "eos_token": "<|eot_id|>",
            "chat_template": [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}],
            "added_tokens_decoder": {
                "257": token("renamed", true), "259": token("<tool_call>", false), "999": token("<far>", true),
            },
        }),
    );
    assert_eq!(text(), "hi<|eot_id|>", "`chat_template.jinja` wins");
    std::fs::remove_file(folder.path().join("chat_template.jinja")).unwrap();
    assert_eq!(text(), "plain");
    write("chat_template.json", json!({"chat_template": "{{ messages[0].content }}!"}));
    assert_eq!(text(), "hi!");
    // What the tokenizer knows stays, what it lacks is added, and no id lies beyond the model's.
    assert_eq!(codec().encode("<|eot_id|><tool_call>", true).unwrap(), [257, 259]);
    assert_eq!(codec().encode("<far>", true).unwrap().len(), 5);

    assert_eq!(codec().end_of_turn(), [30, 257]);
    write("generation_config.json", json!({"eos_token_id": 31, "temperature": 0.6}));
    assert_eq!(codec().end_of_turn(), [31, 257]);
    std::fs::remove_file(folder.path().join("generation_config.json")).unwrap();
    write("config.json", json!({"text_config": {"eos_token_id": [32, 33]}}));
    assert_eq!(codec().end_of_turn(), [32, 33, 257]);
}
