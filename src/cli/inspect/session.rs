//! A session: its requests, how history changes between them, and how long they are.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use super::super::Failure;
use super::super::output::Output;
use crate::config::Config;
use crate::event::HistoryChange;
use crate::model;
use crate::model::text::TextCodec;
use crate::report::{Align, Table, counted, or_dash, printable, seconds, thousands};
use crate::session::{self, Message, Player, ReplayMode, Session, Setting};

/// What `--json` prints.
#[derive(Serialize)]
struct Facts {
    kind: &'static str,
    title: String,
    description: String,
    system_characters: usize,
    tools: usize,
    /// The configuration it is meant for, as `section.key=value`.
    set: Vec<String>,
    /// The model that counted the tokens; null where none did.
    tokenizer: Option<String>,
    requests: Vec<Request>,
}

/// One request.
#[derive(Serialize)]
struct Request {
    turn: u32,
    name: String,
    /// Whether it stands beside the history.
    side: bool,
    change: HistoryChange,
    idle_s: f64,
    /// Messages it appends.
    messages: usize,
    /// Characters of those.
    characters: usize,
    /// Whether a reply was recorded.
    reply: bool,
    max_output_tokens: Option<u64>,
    /// Length of the whole prompt with recorded replies, tokens.
    prompt_tokens: Option<usize>,
    /// Tokens the prompt shares with the last one of the history before it, from the start.
    common_prefix_tokens: Option<usize>,
}

pub(super) fn inspect(
    name: &str,
    model: Option<&Path>,
    json: bool,
    output: &mut Output,
) -> Result<(), Failure> {
    let session = session::open(name)?;
    let counter = model.map(load_text).transpose()?;
    let facts = facts(session, counter)?;
    if json { output.json(&facts) } else { output.text(&table(&facts)) }
}

/// A model's name, and its tokenizer and template.
fn load_text(path: &Path) -> Result<(String, TextCodec), Failure> {
    let mut config = Config::default();
    config.model.path = Some(path.to_owned());
    let loaded = model::load(&config)?;
    Ok((loaded.executor.facts().model.clone(), loaded.text))
}

fn facts(session: Session, counter: Option<(String, TextCodec)>) -> Result<Facts, Failure> {
    let session = Arc::new(session);
    let mut player = Player::new(Arc::clone(&session), ReplayMode::Recorded);
    let mut requests = Vec::new();
    let mut before: Option<Vec<u32>> = None;
    for spec in &session.requests {
        let Some(turn) = player.take() else { break };
        let prompt = match &counter {
            Some((_, text)) => Some(text.render(&turn.conversation).map_err(Failure::input)?.tokens),
            None => None,
        };
        let shared = prompt
            .as_ref()
            .zip(before.as_ref())
            .map(|(prompt, before)| prompt.iter().zip(before).take_while(|(a, b)| a == b).count());
        requests.push(Request {
            turn: turn.number,
            name: turn.name,
            side: spec.side,
            change: turn.change,
            idle_s: turn.idle.seconds(),
            messages: turn.appended.len(),
            characters: turn.appended.iter().map(characters).sum(),
            reply: spec.reply.is_some(),
            max_output_tokens: turn.overrides.max_output_tokens,
            prompt_tokens: prompt.as_ref().map(Vec::len),
            common_prefix_tokens: shared,
        });
        if !spec.side {
            before = prompt;
        }
        player.reply("");
    }
    Ok(Facts {
        kind: "session",
        title: session.title.clone(),
        description: session.description.clone(),
        system_characters: session.system.as_deref().map_or(0, |text| text.chars().count()),
        tools: session.tools.len(),
        set: session.settings.iter().map(Setting::to_string).collect(),
        tokenizer: counter.map(|(name, _)| name),
        requests,
    })
}

/// Characters of a message's text and of its tool calls' arguments.
fn characters(message: &Message) -> usize {
    let calls = message.tool_calls.iter().map(|call| {
        let arguments = serde_json::to_string(&call.arguments).unwrap_or_default();
        call.name.chars().count() + arguments.chars().count()
    });
    message.content.chars().count() + calls.sum::<usize>()
}

fn table(facts: &Facts) -> String {
    let mut table = Table::new(&[
        ("turn", Align::Right),
        ("request", Align::Left),
        ("history", Align::Left),
        ("idle", Align::Right),
        ("messages", Align::Right),
        ("characters", Align::Right),
        ("reply", Align::Left),
        ("prompt tokens", Align::Right),
        ("shared", Align::Right),
    ]);
    for request in &facts.requests {
        table.row([
            request.turn.to_string(),
            request.name.clone(),
            if request.side { "beside it" } else { change_word(request.change) }.to_owned(),
            seconds(request.idle_s),
            thousands(request.messages as u64),
            thousands(request.characters as u64),
            if request.reply { "recorded" } else { "–" }.to_owned(),
            or_dash(request.prompt_tokens, |n| thousands(n as u64)),
            or_dash(request.common_prefix_tokens, |n| thousands(n as u64)),
        ]);
    }
    let tokenizer = match &facts.tokenizer {
        Some(model) => format!("tokens counted by {}", printable(model)),
        None => "tokens not counted; add `--model PATH`".to_owned(),
    };
    let set = match facts.set.as_slice() {
        [] => String::new(),
        set => format!("sets {}\n", printable(&set.join(" · "))),
    };
    format!(
        "session: {}\n{}\n{set}{} · system prompt of {} · {} · {tokenizer}\n\n{table}",
        printable(&facts.title),
        printable(&facts.description),
        counted(facts.requests.len() as u64, "request"),
        counted(facts.system_characters as u64, "character"),
        counted(facts.tools as u64, "tool"),
    )
}

fn change_word(change: HistoryChange) -> &'static str {
    match change {
        HistoryChange::First => "first",
        HistoryChange::Append => "append",
        HistoryChange::Edit => "edit",
        HistoryChange::Compaction => "compaction",
        HistoryChange::SystemChange => "system prompt changes",
        HistoryChange::ToolChange => "tools change",
    }
}
