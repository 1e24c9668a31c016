//! What kinds of text a reply is made of, and how well drafts do in each: the arguments of tool calls repeat what was read, prose does not.

use std::ops::Range;

use serde::Serialize;

use crate::decode::economics::Position;
use crate::ledger::RequestFacts;

/// Brackets within brackets at most: a reply may be nothing but brackets.
const DEEPEST: usize = 64;

/// A kind of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplyKind {
    /// Names of a JSON object's members, with their quotes.
    JsonKey,
    /// The rest of JSON: values, and what stands between.
    JsonValue,
    /// Paths of files, wherever they stand.
    Path,
    /// Code: between fences or backticks, and lines that look like it.
    Code,
    /// Everything else.
    Prose,
}

impl ReplyKind {
    /// All of them, in the order in which they are shown.
    pub const ALL: [ReplyKind; 5] =
        [ReplyKind::JsonKey, ReplyKind::JsonValue, ReplyKind::Path, ReplyKind::Code, ReplyKind::Prose];

    /// The word shown in tables.
    pub fn word(self) -> &'static str {
        match self {
            ReplyKind::JsonKey => "JSON keys",
            ReplyKind::JsonValue => "JSON values",
            ReplyKind::Path => "paths",
            ReplyKind::Code => "code",
            ReplyKind::Prose => "prose",
        }
    }
}

/// How drafts did in a kind of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct KindAcceptance {
    /// The kind.
    pub kind: ReplyKind,
    /// Tokens of the reply that are of it.
    pub tokens: u64,
    /// Drafted tokens put to the test in it, and accepted.
    pub drafts: Position,
}

/// The kinds of a reply, as runs of bytes that follow one another and cover all of it.
pub fn reply_kinds(text: &str) -> Vec<(Range<usize>, ReplyKind)> {
    let mut kinds = vec![ReplyKind::Prose; text.len()];
    let mut at = 0;
    let mut fenced = false;
    for line in text.split_inclusive('\n') {
        let range = at..at + line.len();
        at = range.end;
        let is_fence = line.trim_start().starts_with("```");
        if is_fence {
            fenced = !fenced;
        }
        if fenced || is_fence || is_code(line) {
            kinds[range].fill(ReplyKind::Code);
        }
    }
    inline_code(text, &mut kinds);
    json(text, &mut kinds);
    paths(text, &mut kinds);
    let mut runs: Vec<(Range<usize>, ReplyKind)> = Vec::new();
    for (byte, kind) in kinds.into_iter().enumerate() {
        match runs.last_mut() {
            Some((range, last)) if *last == kind => range.end = byte + 1,
            _ => runs.push((byte..byte + 1, kind)),
        }
    }
    runs
}

/// Whether a line outside of fences looks like code rather than a sentence.
fn is_code(line: &str) -> bool {
    const STARTS: [&str; 18] = [
        "fn ",
        "pub ",
        "let ",
        "def ",
        "class ",
        "import ",
        "from ",
        "return ",
        "const ",
        "var ",
        "function ",
        "#include",
        "#[",
        "impl ",
        "struct ",
        "use ",
        "} else",
        "@",
    ];
    let trimmed = line.trim();
    let ends = trimmed.ends_with([';', '{', '}']) || trimmed.ends_with("):") || trimmed.ends_with("=>");
    let signs = ["()", "::", "->", "=>", "==", "!=", "&&", "||", " = ", "+=", "();"];
    let signs = signs.iter().filter(|sign| trimmed.contains(**sign)).count();
    let starts = STARTS.iter().any(|start| trimmed.starts_with(start));
    // A sentence may begin with "from" and another may hold an arrow; one that does both, or ends as statements do, is none.
    ends || signs > 1 || starts && (signs > 0 || trimmed.contains('('))
}

/// Marks what stands between single backticks on a line.
fn inline_code(text: &str, kinds: &mut [ReplyKind]) {
    let mut open: Option<usize> = None;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'\n' => open = None,
            b'`' => match open.take() {
                Some(start) => kinds[start..=at].fill(ReplyKind::Code),
                None => open = Some(at),
            },
            _ => {}
        }
    }
}

/// Marks JSON objects, and arrays of objects or strings, those that are cut off at the reply's end included.
fn json(text: &str, kinds: &mut [ReplyKind]) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let begins = matches!(bytes[at], b'{' | b'[') && matches!(next_sign(bytes, at + 1), Some((_, b'"')))
            || bytes[at] == b'[' && matches!(next_sign(bytes, at + 1), Some((_, b'{')));
        let scanned = if begins { scan_json(bytes, at) } else { None };
        match scanned {
            Some((end, keys)) => {
                kinds[at..end].fill(ReplyKind::JsonValue);
                for key in keys {
                    kinds[key].fill(ReplyKind::JsonKey);
                }
                at = end;
            }
            None => at += 1,
        }
    }
}

/// The next byte that is no space, and its place.
fn next_sign(bytes: &[u8], from: usize) -> Option<(usize, u8)> {
    let place = (from..bytes.len()).find(|place| !bytes[*place].is_ascii_whitespace())?;
    Some((place, bytes[place]))
}

/// Reads JSON from its opening bracket: where it ends and where its keys stand. `None` where it turns out to be something else, or has no key and no
/// end.
fn scan_json(bytes: &[u8], start: usize) -> Option<(usize, Vec<Range<usize>>)> {
    let mut open: Vec<u8> = Vec::new();
    let mut keys = Vec::new();
    let mut at = start;
    while at < bytes.len() {
        match bytes[at] {
            b'{' | b'[' if open.len() >= DEEPEST => return None,
            bracket @ (b'{' | b'[') => open.push(bracket),
            bracket @ (b'}' | b']') => {
                let opened = open.pop()?;
                if (opened, bracket) != (b'{', b'}') && (opened, bracket) != (b'[', b']') {
                    return None;
                }
                if open.is_empty() {
                    return Some((at + 1, keys));
                }
            }
            b'"' => {
                let Some(end) = string_end(bytes, at) else {
                    // Cut off inside a string.
                    return (!keys.is_empty()).then_some((bytes.len(), keys));
                };
                let is_key = open.last() == Some(&b'{') && matches!(next_sign(bytes, end), Some((_, b':')));
                if is_key {
                    keys.push(at..end);
                }
                at = end;
                continue;
            }
            b',' | b':' | b'-' | b'+' | b'.' | b'0'..=b'9' => {}
            byte if byte.is_ascii_whitespace() => {}
            _ => {
                let word =
                    ["true", "false", "null"].iter().find(|word| bytes[at..].starts_with(word.as_bytes()));
                match word {
                    Some(word) => at += word.len() - 1,
                    // An exponent.
                    None if matches!(bytes[at], b'e' | b'E') && bytes[at - 1].is_ascii_digit() => {}
                    None => return None,
                }
            }
        }
        at += 1;
    }
    (!keys.is_empty()).then_some((bytes.len(), keys))
}

/// Past the end of the string that begins at `start`; `None` where the reply ends, or the line, before it does.
fn string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 1,
            b'"' => return Some(at + 1),
            b'\n' => return None,
            _ => {}
        }
        at += 1;
    }
    None
}

/// Marks words that are paths: with a slash between names, or from the root or the current folder on. What comes after `://` is an address.
fn paths(text: &str, kinds: &mut [ReplyKind]) {
    let part = |c: char| c.is_alphanumeric() || "/._-~+@".contains(c);
    let mut start = None;
    let ends = text.char_indices().chain([(text.len(), ' ')]);
    for (at, c) in ends {
        match (part(c), start) {
            (true, None) => start = Some(at),
            (false, Some(from)) => {
                let word = text[from..at].trim_end_matches(['.', '-']);
                if is_path(word) && !text[..from].ends_with(':') {
                    kinds[from..from + word.len()].fill(ReplyKind::Path);
                }
                start = None;
            }
            _ => {}
        }
    }
}

fn is_path(word: &str) -> bool {
    let names = word.split('/').filter(|name| !name.is_empty()).count();
    let rooted = ["/", "./", "../", "~/"].iter().any(|root| word.starts_with(root));
    let lettered = word.chars().any(char::is_alphabetic);
    // "and/or" is no path: a file's name has an extension, or there are three names.
    let told =
        word.rsplit('/').next().is_some_and(|name| name.contains('.')) || names > 2 || word.ends_with('/');
    word.contains('/') && lettered && !word.contains("//") && (rooted && names > 0 || names > 1 && told)
}

impl RequestFacts {
    /// How drafts did by kind of text: a drafted token counts for the kind of the token that the reply has at its place. Kinds the reply does not have
    /// are left out. Empty where the reply's tokens are not known.
    pub fn acceptance_by_kind(&self) -> Vec<KindAcceptance> {
        let Some(speculation) = self.speculation.as_deref() else { return Vec::new() };
        let runs = reply_kinds(&self.text);
        let kind_at = |place: usize| {
            let bytes = self.token_bytes(place)?;
            let text = &self.text[bytes.clone()];
            // A token that begins with a space is of the kind of the word.
            let first =
                bytes.start + (text.len() - text.trim_start().len()).min(text.len().saturating_sub(1));
            let run = runs.partition_point(|(range, _)| range.end <= first);
            runs.get(run).map(|(_, kind)| *kind)
        };
        let kinds: Vec<Option<ReplyKind>> = (0..self.tokens.len()).map(kind_at).collect();
        let empty = |kind| KindAcceptance { kind, tokens: 0, drafts: Position::default() };
        let mut counted = ReplyKind::ALL.map(empty);
        for kind in kinds.iter().flatten() {
            counted[*kind as usize].tokens += 1;
        }
        for cycle in &speculation.cycles {
            for position in 0..cycle.tested.min(cycle.accepted.saturating_add(1)) {
                let place = cycle.first.saturating_add(u64::from(position));
                let Some(Some(kind)) = kinds.get(place as usize) else { break };
                let drafts = &mut counted[*kind as usize].drafts;
                drafts.tested += 1;
                drafts.accepted += u64::from(position < cycle.accepted);
            }
        }
        counted.into_iter().filter(|kind| kind.tokens > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces of a text that are of a kind.
    fn of(kind: ReplyKind, text: &str) -> Vec<&str> {
        reply_kinds(text).into_iter().filter(|(_, k)| *k == kind).map(|(range, _)| &text[range]).collect()
    }

    #[test]
    fn a_tool_call_has_keys_values_and_paths() {
        let text = r#"I read it. {"name": "edit", "arguments": {"path": "src/ledger/row.rs", "line": 12, "on": true}} Done."#;
        assert_eq!(
            of(ReplyKind::JsonKey, text),
            [r#""name""#, r#""arguments""#, r#""path""#, r#""line""#, r#""on""#]
        );
        assert_eq!(of(ReplyKind::Path, text), ["src/ledger/row.rs"]);
        assert!(of(ReplyKind::JsonValue, text).concat().contains("12"));
        assert_eq!(of(ReplyKind::Prose, text), ["I read it. ", " Done."]);
    }

    #[test]
    fn json_that_is_cut_off_is_json_to_the_end() {
        let text = r#"{"a": [1, 2.5e3, {"b": "unfinis"#;
        assert_eq!(of(ReplyKind::JsonKey, text), [r#""a""#, r#""b""#]);
        assert!(of(ReplyKind::Prose, text).is_empty());
        // A brace alone is none, nor is one that goes on as something else.
        assert!(of(ReplyKind::JsonValue, "a set {x, y} of { \"two\" words }").is_empty());
        assert!(of(ReplyKind::JsonKey, "[\"quoted] words").is_empty());
    }

    #[test]
    fn code_stands_between_fences_and_backticks_or_looks_like_it() {
        let text = "Look:\n```rust\nanything here\n```\nand `x + 1` too.\nlet x = f();\nA plain sentence from here.\n";
        let code = of(ReplyKind::Code, text).concat();
        assert!(code.contains("anything here") && code.contains("`x + 1`") && code.contains("let x = f();"));
        let prose = of(ReplyKind::Prose, text).concat();
        assert!(prose.contains("Look:") && prose.contains("A plain sentence from here."), "{prose}");
        // JSON in a fence is JSON.
        assert_eq!(of(ReplyKind::JsonKey, "```json\n{\"k\": 1}\n```"), ["\"k\""]);
    }

    #[test]
    fn paths_are_told_from_other_words_with_slashes() {
        let paths = |text| of(ReplyKind::Path, text);
        assert_eq!(paths("see ./run.sh, /etc/hosts and a/b.c."), ["./run.sh", "/etc/hosts", "a/b.c"]);
        assert_eq!(paths("src/device/cpu holds it"), ["src/device/cpu"]);
        assert!(paths("and/or, 1/2, https://example.org/a/b, // note").is_empty());
    }

    #[test]
    fn runs_cover_every_byte_of_any_text() {
        for text in
            ["", "日本語 { \"鍵\": \"値\" } `é`", "`", "```", "{\"", "\\\"{\"a\":\"\\", "[{", "e", "{\"a\":e"]
        {
            let runs = reply_kinds(text);
            let mut at = 0;
            for (range, _) in &runs {
                assert_eq!(range.start, at);
                at = range.end;
            }
            assert_eq!(at, text.len(), "{text}");
        }
    }
}
