//! What the matrix asks: conversations of three kinds, the same on every machine.
//!
//! They are put the way the bundled model was taught to converse, so that it answers in sense: about a file it has read, in short. So small a model falls
//! into repetition in any long greedy text, which would make everything look like copying; short replies to several questions are what code and prose are
//! measured on, and only the copy is one long reply.

use serde_json::{Value, json};

use crate::session::{Message, Role, ToolCall};

/// A kind of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// Definitions and lines of a source file.
    Code,
    /// A sentence on what to do next, and the call that does it.
    Prose,
    /// The last lines of a file, which stand in the context several times.
    Copy,
}

impl Kind {
    pub(super) fn word(self) -> &'static str {
        match self {
            Kind::Code => "code",
            Kind::Prose => "prose",
            Kind::Copy => "copy",
        }
    }

    /// The conversations that are asked one after another; all but their ends are the same.
    pub(super) fn asks(self) -> Vec<Vec<Message>> {
        match self {
            Kind::Code => CODE.iter().map(|question| after_reading(question)).collect(),
            Kind::Prose => PROSE.iter().map(|question| after_reading(question)).collect(),
            Kind::Copy => vec![repetition()],
        }
    }
}

pub(super) const SYSTEM: &str = "You are a coding agent that works in a checkout of tally. Look before you change anything. Keep every edit as small as \
     the task allows. Use the tools; do not guess what a file contains. Quote names and lines exactly as they stand in the file. Report at the end what \
     you changed, which tests you ran and what they said.";

const CODE: [&str; 7] = [
    "Where is `refund` defined?",
    "Show me the definition of sell again.",
    "What is `busiest_hour`?",
    "Quote lines 32 to 50 of src/tally.rs.",
    "Where is `Article` defined?",
    "Show me the definition of close again.",
    "Quote line 57 of src/tally.rs.",
];

const PROSE: [&str; 8] = [
    "Summarise it.",
    "Write the documentation of `Tally` in a few sentences.",
    "The hour that `busiest_hour` returns is off by one. Reproduce it, then repair it.",
    "`refund` in src/tally.rs does not handle an empty stock. Find out why and fix it.",
    "Add a comment to close that says what the drawer is for.",
    "Where is `Sales` used? I want to change its cents.",
    "Please look at sell and add a check for the price.",
    "Explain the cents of a refund to me.",
];

/// A file about nothing in particular, of the length that an agent reads at once.
const FILE: &str = "\
//! Counts of what a till sold, by article and by hour.

use std::collections::BTreeMap;

/// An article's number on the price list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Article(pub u32);

/// What was sold of one article.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sales {
    pub pieces: u64,
    pub cents: u64,
    pub refunds: u64,
}

/// A day's sales.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    articles: BTreeMap<Article, Sales>,
    hours: [u64; 24],
    closed: bool,
}

/// Why a sale is not counted.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    Closed,
    NoSuchHour(usize),
    TooMany { article: Article, pieces: u64 },
}

impl Tally {
    pub fn new() -> Tally {
        Tally::default()
    }

    /// Counts a sale of `pieces` of `article` at `cents` each.
    pub fn sell(&mut self, article: Article, pieces: u64, cents: u64, hour: usize) -> Result<(), Refused> {
        if self.closed {
            return Err(Refused::Closed);
        }
        if hour >= self.hours.len() {
            return Err(Refused::NoSuchHour(hour));
        }
        if pieces > 1_000 {
            return Err(Refused::TooMany { article, pieces });
        }
        let sales = self.articles.entry(article).or_default();
        sales.pieces += pieces;
        sales.cents += pieces * cents;
        self.hours[hour] += pieces;
        Ok(())
    }

    /// Takes back one piece of `article`.
    pub fn refund(&mut self, article: Article, cents: u64) -> bool {
        match self.articles.get_mut(&article) {
            Some(sales) if sales.pieces > 0 => {
                sales.pieces -= 1;
                sales.cents -= cents.min(sales.cents);
                sales.refunds += 1;
                true
            }
            _ => false,
        }
    }

    /// Ends the day: nothing is counted any more.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// The article that brought in the most.
    pub fn best(&self) -> Option<Article> {
        self.articles.iter().max_by_key(|(_, sales)| sales.cents).map(|(article, _)| *article)
    }

    /// The hour in which the most pieces were sold, the first of equals.
    pub fn busiest_hour(&self) -> usize {
        let most = self.hours.iter().max().copied().unwrap_or(0);
        self.hours.iter().position(|pieces| *pieces == most).unwrap_or(0)
    }

    /// Pieces and cents of all articles.
    pub fn total(&self) -> (u64, u64) {
        let sum = |(pieces, cents), sales: &Sales| (pieces + sales.pieces, cents + sales.cents);
        self.articles.values().fold((0, 0), sum)
    }
}";

/// What the file to copy from consists of, over and over: whatever is copied stands in many places, as generated code and records do.
const REPEATED: [&str; 5] =
    ["#[test]", "fn is_empty() {", "    assert_eq!(Tally::new().total(), (0, 0));", "}", ""];
/// Lines of that file.
const LINES: usize = 200;
/// Lines that are copied at a time.
const COPIED: usize = 40;
/// Times they have been copied before.
const COPIES: usize = 3;

/// The tools of the conversations.
pub(super) fn tools() -> Vec<Value> {
    let tool = |name: &str, description: &str, arguments: &[(&str, &str)], required: &[&str]| {
        let properties: serde_json::Map<String, Value> =
            arguments.iter().map(|(name, kind)| ((*name).to_owned(), json!({ "type": kind }))).collect();
        let parameters = json!({ "type": "object", "properties": properties, "required": required });
        json!({
            "type": "function",
            "function": { "name": name, "description": description, "parameters": parameters },
        })
    };
    vec![
        tool(
            "read_file",
            "Read a range of lines of a text file.",
            &[("path", "string"), ("first", "integer"), ("last", "integer")],
            &["path"],
        ),
        tool(
            "edit_file",
            "Replace one exact piece of text in a file by another.",
            &[("path", "string"), ("old", "string"), ("new", "string")],
            &["path", "old", "new"],
        ),
        tool(
            "write_file",
            "Create a file, or replace the whole content of one.",
            &[("path", "string"), ("content", "string")],
            &["path", "content"],
        ),
        tool(
            "run_command",
            "Run one shell command at the root and wait for it.",
            &[("command", "string")],
            &["command"],
        ),
    ]
}

/// A question about the file, once it has been read.
fn after_reading(question: &str) -> Vec<Message> {
    let lines: Vec<&str> = FILE.lines().collect();
    let mut messages = reading("Read src/tally.rs and explain `refund` to me.", &lines);
    messages.push(Message::text(
        Role::Assistant,
        "I read src/tally.rs. It defines `Article`, `Sales`, `Tally`, `Refused`. Nothing was changed.",
    ));
    messages.push(Message::text(Role::User, question));
    messages
}

/// The end of a file, asked for once more after it has been given.
fn repetition() -> Vec<Message> {
    let lines: Vec<&str> = REPEATED.into_iter().cycle().take(LINES).collect();
    let mut messages = reading("Read src/tally.rs and quote its last forty lines.", &lines);
    let (first, last) = (LINES - COPIED + 1, LINES);
    let quote = format!(
        "Lines {first} to {last} of src/tally.rs:\n\n```\n{}\n```",
        lines[LINES - COPIED..].join("\n")
    );
    for _ in 0..COPIES {
        messages.push(Message::text(Role::Assistant, quote.clone()));
        messages.push(Message::text(
            Role::User,
            format!("Repeat lines {first} to {last} of src/tally.rs exactly."),
        ));
    }
    messages
}

/// A task, and the call that reads a file of these lines for it.
fn reading(task: &str, lines: &[&str]) -> Vec<Message> {
    let id = Some("c1".to_owned());
    let arguments = json!({ "path": "src/tally.rs", "first": 1, "last": lines.len() });
    let arguments = arguments.as_object().cloned().unwrap_or_default();
    let call = ToolCall { id: id.clone(), name: "read_file".to_owned(), arguments };
    let numbered: Vec<String> =
        lines.iter().enumerate().map(|(index, line)| format!("{:>4}  {line}", index + 1)).collect();
    let asked =
        Message { tool_calls: vec![call], ..Message::text(Role::Assistant, "I will read src/tally.rs.") };
    let read = Message { tool_call_id: id, ..Message::text(Role::Tool, numbered.join("\n")) };
    vec![Message::text(Role::User, task), asked, read]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ask_ends_with_a_question_and_differs_from_the_others_there_only() {
        for kind in [Kind::Code, Kind::Prose, Kind::Copy] {
            let asks = kind.asks();
            for ask in &asks {
                let (last, before) = ask.split_last().unwrap();
                assert_eq!(last.role, Role::User);
                assert_eq!(before, &asks[0][..asks[0].len() - 1]);
            }
        }
    }

    #[test]
    fn what_is_to_be_copied_stands_in_the_context() {
        let ask = Kind::Copy.asks().remove(0);
        let quoted = ask.iter().filter(|message| message.content.matches("fn is_empty()").count() >= 8);
        assert!(quoted.count() > COPIES);
    }
}
