//! Where the protected prefix ends, under templates that make it hard to say.

use super::*;

/// Tools behind the first message of the user, as some models have it.
const TOOLS_BEHIND: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\
    {% if tools and m.role == 'user' and loop.first or tools and loop.index0 == 1 and messages[0].role == 'system' %}\n# Tools\n{{ tools | tojson }}{% endif %}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A system prompt of its own where the conversation has none, and another lay-out of tools where it has one.
const ROLE_DEPENDENT: &str = "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful model made by somebody.{% if tools %}\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}<|im_end|>\n{% endif %}\
    {% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if m.role == 'system' and tools %}\n\n# You may call\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}# End of the list{% endif %}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// The text before the boundary and the text behind it.
fn parted(codec: &TextCodec, conversation: &Conversation) -> (String, String) {
    let tokens = codec.render(conversation).unwrap().tokens;
    let boundary = codec.protected_prefix(conversation, &tokens).unwrap();
    let (before, after) = tokens.split_at(boundary);
    (codec.decode(before, true), codec.decode(after, true))
}

#[test]
fn the_boundary_lies_right_before_what_the_user_said() {
    for codec in [TextCodec::synthetic(64), synthetic_with(HERMES), TextCodec::bytes_only(256)] {
        let (before, after) = parted(&codec, &agent_conversation());
        assert!(before.ends_with("<|im_start|>user\n"), "{before}");
        assert!(before.contains("You are a careful engineer.") && before.contains("Runs a command"));
        assert!(after.starts_with("fix the bug"), "{after}");
    }
}

#[test]
fn without_a_system_prompt_what_the_template_writes_of_itself_is_protected() {
    let mut conversation = agent_conversation();
    conversation.system = None;
    conversation.tools.clear();
    let (before, _) = parted(&synthetic_with(ROLE_DEPENDENT), &conversation);
    assert!(before.starts_with("<|im_start|>system\nYou are a helpful model"), "{before}");
    assert!(before.ends_with("<|im_start|>user\n"), "{before}");
    let (before, after) = parted(&TextCodec::synthetic(64), &conversation);
    assert_eq!(before, "<|im_start|>user\n");
    assert!(after.starts_with("fix the bug"), "{after}");
}

#[test]
fn f17_a_template_that_depends_on_roles_is_measured_where_subtraction_is_wrong() {
    let codec = synthetic_with(ROLE_DEPENDENT);
    let conversation = agent_conversation();
    let (before, after) = parted(&codec, &conversation);
    assert!(before.contains("# End of the list") && before.ends_with("<|im_start|>user\n"), "{before}");
    assert!(after.starts_with("fix the bug"), "{after}");
    // All tokens less those of the rest by itself: the template then writes a system prompt of its own, so what is left is too little.
    let whole = codec.render(&conversation).unwrap().tokens.len();
    let rest = Conversation { system: None, ..conversation.clone() };
    let subtracted = whole - codec.render(&rest).unwrap().tokens.len();
    let tokens = codec.render(&conversation).unwrap().tokens;
    assert!(subtracted < codec.protected_prefix(&conversation, &tokens).unwrap(), "{subtracted}");
}

#[test]
fn tools_behind_the_first_message_are_not_protected() {
    let codec = synthetic_with(TOOLS_BEHIND);
    let (before, after) = parted(&codec, &agent_conversation());
    assert!(before.contains("You are a careful engineer.") && !before.contains("# Tools"), "{before}");
    assert!(after.starts_with("fix the bug  # Tools"), "{after}");
}

#[test]
fn the_boundary_never_counts_a_token_that_merged_with_what_was_said() {
    // Bytes do not merge; the synthetic vocabulary joins white space to white space.
    for content in ["\n\nfix", "  fix", "a", "0", "ab", "", "a0"] {
        for codec in [TextCodec::synthetic(64), TextCodec::bytes_only(256)] {
            let mut conversation = agent_conversation();
            conversation.messages[0].content = content.into();
            let (before, after) = parted(&codec, &conversation);
            let boundary = before + &after;
            let at = boundary.find("<|im_start|>user\n").unwrap() + "<|im_start|>user\n".len();
            let (before, _) = parted(&codec, &conversation);
            assert!(before.len() <= at, "{content:?}: {before:?}");
            assert!(
                before.ends_with("<|im_start|>user\n") || before.ends_with("<|im_start|>user"),
                "{before:?}"
            );
        }
    }
}

#[test]
fn other_static_messages_are_probed_anew_and_probes_teach_the_vocabulary_nothing() {
    let codec = TextCodec::synthetic(64);
    let mut other = agent_conversation();
    other.tools.reverse();
    for conversation in [&agent_conversation(), &other, &agent_conversation()] {
        let (before, _) = parted(&codec, conversation);
        assert!(before.ends_with("<|im_start|>user\n"), "{before}");
    }
    let plain = TextCodec::synthetic(64);
    for conversation in [&agent_conversation(), &other] {
        plain.render(conversation).unwrap();
    }
    let mut next = agent_conversation();
    next.messages.push(Message::text(Role::User, "something entirely new"));
    assert_eq!(codec.render(&next).unwrap(), plain.render(&next).unwrap());
}

#[test]
fn a_template_that_takes_no_conversation_of_one_turn_says_so() {
    let picky = format!(
        "{{% if messages | length < 3 %}}{{{{ raise_exception('too short') }}}}{{% endif %}}{CHATML}"
    );
    let codec = synthetic_with(&picky);
    let conversation = agent_conversation();
    let tokens = codec.render(&conversation).unwrap().tokens;
    let error = codec.protected_prefix(&conversation, &tokens).unwrap_err().to_string();
    assert!(error.contains("too short"), "{error}");
}

#[test]
fn smollm2_protects_what_its_template_adds() {
    let Some(codec) = smollm2() else { return };
    let messages = vec![Message::text(Role::User, "Is 2024 a leap year?")];
    let (before, after) = parted(codec, &Conversation { messages, ..Conversation::default() });
    assert!(before.contains("named SmolLM") && before.ends_with("<|im_start|>user\n"), "{before}");
    assert!(after.starts_with("Is 2024"), "{after}");
}

#[test]
fn the_bundled_models_protect_system_prompt_and_tools() {
    for name in crate::model::bundled() {
        let codec = TextCodec::from_folder(Path::new(name), 1 << 20).unwrap();
        let (before, after) = parted(&codec, &agent_conversation());
        assert!(before.contains("Runs a command") && !before.contains("fix the bug"), "{name}: {before}");
        assert!(after.contains("fix the bug"), "{name}: {after}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// F17: whatever is said, the tokens before the boundary are those of any other conversation with the same static messages.
    #[test]
    fn what_is_protected_does_not_depend_on_what_is_said(conversation in conversation(), other in message_text()) {
        for codec in [TextCodec::synthetic(32), synthetic_with(HERMES), synthetic_with(ROLE_DEPENDENT), TextCodec::bytes_only(256)] {
            let tokens = codec.render(&conversation).unwrap().tokens;
            let boundary = codec.protected_prefix(&conversation, &tokens).unwrap();
            let said = Conversation { messages: vec![Message::text(Role::User, &*other)], ..conversation.clone() };
            let others = codec.render(&said).unwrap().tokens;
            let theirs = codec.protected_prefix(&said, &others).unwrap();
            let both = boundary.min(theirs);
            prop_assert_eq!(&tokens[..both], &others[..both]);
            prop_assert!(boundary.abs_diff(theirs) <= 1, "{} {}", boundary, theirs);
        }
    }
}
