//! What a sparse prefill leaves of the identifiers that a reply goes on to use.
//!
//! A dropped token's text never reaches the target. Whether that hurts depends on what the reply needs; the one thing a recorded session says
//! of that is the reply it recorded. So its identifiers are looked for in the prompt: paths, names and numbers that the reply can hardly have
//! from elsewhere. This counts spelled text and no more: an identifier may survive and be of no use, or be dropped and not be missed.

use crate::event::{Survival, SurvivingIdentifier};
use crate::session::Message;

/// The shortest identifier, characters.
const SHORTEST: usize = 4;
/// Identifiers that are counted of one reply.
const MOST: usize = 256;

/// Counts where `prompt` has the identifiers of `reply`. `ends` says at which byte of the prompt each token's text ends; `kept` whether a token was
/// restored or computed, by its position.
pub fn survival(prompt: &str, ends: &[usize], kept: impl Fn(usize) -> bool, reply: &str) -> Survival {
    let count = |word: &str| {
        let mut found = SurvivingIdentifier { text: word.to_owned(), occurrences: 0, kept: 0 };
        for (start, _) in prompt.match_indices(word) {
            let end = start + word.len();
            if !stands_alone(prompt, start, end) {
                continue;
            }
            // The tokens that spell it: from the one its first byte is in to the one its last byte is in.
            let first = ends.partition_point(|at| *at <= start);
            let last = ends.partition_point(|at| *at < end);
            found.occurrences += 1;
            found.kept += u64::from((first..=last).all(&kept));
        }
        found
    };
    let words = identifiers(reply);
    Survival {
        identifiers: words.iter().map(|word| count(word)).filter(|found| found.occurrences > 0).collect(),
    }
}

/// What a message says, its tool calls' names and arguments included.
pub fn said(message: &Message) -> String {
    let mut text = message.content.clone();
    for call in &message.tool_calls {
        text.push('\n');
        text.push_str(&call.name);
        call.arguments.values().for_each(|value| add_leaves(value, &mut text));
    }
    text
}

fn add_leaves(value: &serde_json::Value, text: &mut String) {
    use serde_json::Value;
    match value {
        Value::String(leaf) => {
            text.push('\n');
            text.push_str(leaf);
        }
        Value::Number(leaf) => text.push_str(&format!("\n{leaf}")),
        Value::Array(values) => values.iter().for_each(|value| add_leaves(value, text)),
        Value::Object(values) => values.values().for_each(|value| add_leaves(value, text)),
        Value::Null | Value::Bool(_) => {}
    }
}

/// The identifiers of a text, each once, in order.
fn identifiers(text: &str) -> Vec<&str> {
    let mut words: Vec<&str> = Vec::new();
    for word in text.split(|c: char| !(is_word(c) || JOINTS.contains(&c))) {
        let word = word.trim_matches(|c| JOINTS.contains(&c));
        if is_identifier(word) && !words.contains(&word) {
            words.push(word);
        }
        if words.len() == MOST {
            break;
        }
    }
    words
}

/// What joins the parts of a name: `a/b.rs`, `some-name-2`. A colon does not: it stands before line numbers as well.
const JOINTS: [char; 3] = ['/', '.', '-'];

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// A word that is not one of the language: it has a digit, an underscore, parts, or a capital behind a small letter.
fn is_identifier(word: &str) -> bool {
    let inner_capital = || {
        let pairs = word.chars().zip(word.chars().skip(1));
        pairs.into_iter().any(|(a, b)| a.is_lowercase() && b.is_uppercase())
    };
    let parts = |c: char| c == '_' || c == '/' || c == '.' || c.is_numeric();
    word.chars().count() >= SHORTEST && (word.contains(parts) || inner_capital())
}

/// Whether what stands before and after is no part of the same word.
fn stands_alone(text: &str, start: usize, end: usize) -> bool {
    let before = text.get(..start).and_then(|text| text.chars().next_back());
    let after = text.get(end..).and_then(|text| text.chars().next());
    !before.is_some_and(is_word) && !after.is_some_and(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_paths_names_and_numbers_and_no_plain_words() {
        let text = "Let me look at src/cache/mod.rs:41, then call `restore_block(4096)`. Well-known words stay out, \
                    restoreBlock and fmt::Display2 do not; v2 is short. restore_block again.";
        assert_eq!(
            identifiers(text),
            ["src/cache/mod.rs", "restore_block", "4096", "restoreBlock", "Display2"]
        );
        assert!(identifiers("").is_empty());
    }

    /// Tokens of three bytes.
    fn ends(text: &str) -> Vec<usize> {
        (0..text.len().div_ceil(3)).map(|token| ((token + 1) * 3).min(text.len())).collect()
    }

    #[test]
    fn an_occurrence_is_kept_when_all_its_tokens_are() {
        let prompt = "see a_name here, a_name there, xa_name and a_names not";
        let ends = ends(prompt);
        let all = survival(prompt, &ends, |_| true, "I change a_name and other_name.");
        assert_eq!(all.identifiers, [SurvivingIdentifier { text: "a_name".into(), occurrences: 2, kept: 2 }]);
        // The first one is bytes 4..10: tokens 1, 2 and 3.
        for dropped in 0..=ends.len() {
            let found = survival(prompt, &ends, |token| token != dropped, "a_name");
            // The second one is bytes 17..23: tokens 5, 6 and 7.
            let hit = (1..=3).contains(&dropped) || (5..=7).contains(&dropped);
            assert_eq!(found.identifiers[0].kept, if hit { 1 } else { 2 }, "token {dropped}");
        }
        assert_eq!(survival(prompt, &ends, |_| false, "a_name").identifiers[0].kept, 0);
        assert!(survival(prompt, &ends, |_| true, "nothing of it").identifiers.is_empty());
    }

    #[test]
    fn arguments_of_calls_are_said_too() {
        let arguments =
            serde_json::json!({"path": "src/a.rs", "lines": [120, {"of": "line\nbreak_here"}], "all": true});
        let serde_json::Value::Object(arguments) = arguments else { unreachable!() };
        let call = crate::session::ToolCall { id: None, name: "read_file".into(), arguments };
        let message =
            Message { tool_calls: vec![call], ..Message::text(crate::session::Role::Assistant, "Reading.") };
        assert_eq!(identifiers(&said(&message)), ["read_file", "src/a.rs", "break_here"]);
    }
}
