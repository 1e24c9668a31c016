//! From lines to a session.

use std::collections::HashMap;

use serde_json::Value;

use super::fields::{Checked, Field, Object, Problem, listed, shortened};
use super::history::History;
use super::{MAX_LINE_BYTES, MAX_REQUESTS, VERSION};
use crate::config::suggest::nearest;
use crate::config::{
    self, ControllerKind, DrafterKind, Override, SparseOverride, SpeculationConfig, SpeculationOverride,
};
use crate::decode::SamplingOverride;
use crate::event::Nanos;
use crate::session::{Message, RequestOverrides, RequestSpec, Rewrite, Role, Session, Setting, ToolCall};

const LINES: [&str; 5] = ["system", "tools", "request", "edit", "compaction"];
const HEAD: [&str; 5] = ["escarp_session", "title", "description", "transport", "set"];
const REQUEST: [&str; 11] = [
    "name",
    "idle_s",
    "side",
    "append",
    "reply",
    "max_output_tokens",
    "sampling",
    "set",
    "transport",
    "specprefill",
    "speculation",
];
const MESSAGE: [&str; 4] = ["role", "content", "tool_calls", "tool_call_id"];
const CALL: [&str; 3] = ["id", "name", "arguments"];
const SAMPLING: [&str; 6] = ["temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed"];

const MAX_NAME_CHARS: usize = 64;
const MAX_TITLE_CHARS: usize = 120;
const MAX_SETTING_CHARS: usize = 120;
/// A week: no agent waits longer, and nanoseconds of it are exact in an `f64`.
const MAX_IDLE_S: f64 = 604_800.0;

/// A problem and the line it is in, from 1; 0 for the file as a whole.
pub(super) struct Located {
    pub(super) line: usize,
    pub(super) problem: Problem,
}

/// Reads a whole session.
pub(super) fn parse(text: &str) -> Result<Session, Located> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let no_head = || {
        let remedy = r#"begin the file with {"escarp_session":1,"title":"…"}"#;
        Located { line: 0, problem: Problem::new("", "is empty", remedy) }
    };
    let (index, head) = lines.next().ok_or_else(no_head)?;
    let mut reading =
        parse_line(head).and_then(Reading::begin).map_err(|problem| Located { line: index + 1, problem })?;
    for (index, line) in lines {
        parse_line(line)
            .and_then(|line| reading.line(line, index + 1))
            .map_err(|problem| Located { line: index + 1, problem })?;
    }
    reading.finish()
}

fn parse_line(line: &str) -> Checked<Field> {
    if line.len() > MAX_LINE_BYTES {
        let problem = format!("the line is longer than {} MiB", MAX_LINE_BYTES >> 20);
        return Err(Problem::new("", problem, "shorten its texts"));
    }
    let value = serde_json::from_str(line).map_err(|e| {
        let what = e.to_string();
        // serde_json counts lines within what it was given, which is always line 1.
        let what = what.split(" at line ").next().unwrap_or_default();
        let problem = format!("not a JSON object: {what} at column {}", e.column());
        Problem::new("", problem, "put one whole JSON object on the line")
    })?;
    Ok(Field { path: String::new(), value })
}

/// A session under construction.
struct Reading {
    session: Session,
    /// The line of the system prompt and of the tools that the session starts with.
    first_system: Option<usize>,
    first_tools: Option<usize>,
    /// Rewrites that wait for the next request, and the line of the first of them.
    rewrites: Vec<Rewrite>,
    rewrites_from: usize,
    /// The requests so far, by name.
    names: HashMap<String, Named>,
    history: History,
}

/// Where the request of a name stands, and whether it is a side request.
struct Named {
    line: usize,
    side: bool,
}

impl Reading {
    fn begin(head: Field) -> Checked<Reading> {
        let is_head = head.value.get("escarp_session").is_some();
        if !is_head && head.value.is_object() {
            return Err(Problem::new(
                "",
                "is not the head of a session",
                r#"begin the file with {"escarp_session":1,"title":"…"}"#,
            ));
        }
        // Before the other keys: a newer format may have more of them.
        if let Some(version) = head.value.get("escarp_session").and_then(Value::as_u64)
            && version > VERSION
        {
            return Err(Problem::new(
                "escarp_session",
                format!("version {version} needs a newer escarp"),
                format!("update escarp; this one reads versions up to {VERSION}"),
            ));
        }
        let mut head = head.object(&HEAD)?;
        head.required("escarp_session")?.whole(1)?;
        let title = head.required("title")?.label(MAX_TITLE_CHARS)?;
        let description = head.optional("description").map(Field::text).transpose()?.unwrap_or_default();
        let transport = head.optional("transport").map(transport).transpose()?;
        let settings = head.optional("set").map(settings).transpose()?.unwrap_or_default();
        let session = Session {
            title,
            description,
            transport,
            settings,
            system: None,
            tools: Vec::new(),
            requests: Vec::new(),
        };
        Ok(Reading {
            session,
            first_system: None,
            first_tools: None,
            rewrites: Vec::new(),
            rewrites_from: 0,
            names: HashMap::new(),
            history: History::new(),
        })
    }

    fn line(&mut self, line: Field, number: usize) -> Checked<()> {
        if line.value.get("escarp_session").is_some() {
            return Err(Problem::new(
                "escarp_session",
                "a second head",
                "put each session into its own file",
            ));
        }
        let mut object = line.object(&LINES)?;
        let mut kinds = LINES.iter().copied().filter(|kind| object.has(kind));
        let (Some(kind), None) = (kinds.next(), kinds.next()) else {
            return Err(object.problem(
                "a line holds exactly one thing",
                format!("give it one of the keys {}", listed(&LINES)),
            ));
        };
        let field = object.required(kind)?;
        match kind {
            "request" => self.request(field, number),
            "system" => {
                let system = field.text()?;
                self.start_or_rewrite(kind, number, Rewrite::System(system))
            }
            "tools" => {
                let tools = tools(field)?;
                self.start_or_rewrite(kind, number, Rewrite::Tools(tools))
            }
            "edit" => {
                let rewrite = self.edit(field)?;
                self.rewrite(rewrite, number)
            }
            _ => {
                let rewrite = self.compaction(field)?;
                self.rewrite(rewrite, number)
            }
        }
    }

    /// A system prompt or a tool list: what the session starts with, or a change of it.
    fn start_or_rewrite(&mut self, kind: &str, number: usize, rewrite: Rewrite) -> Checked<()> {
        if !self.session.requests.is_empty() {
            return self.rewrite(rewrite, number);
        }
        let first = if kind == "system" { &mut self.first_system } else { &mut self.first_tools };
        if let Some(line) = first.replace(number) {
            let problem = format!("is given twice before the first request, first in line {line}");
            return Err(Problem::new(kind, problem, "keep one, or put the other behind a request"));
        }
        match rewrite {
            Rewrite::System(system) => self.session.system = Some(system),
            Rewrite::Tools(tools) => self.session.tools = tools,
            Rewrite::Edit { .. } | Rewrite::Compaction { .. } => {}
        }
        Ok(())
    }

    fn rewrite(&mut self, rewrite: Rewrite, number: usize) -> Checked<()> {
        if self.session.requests.is_empty() {
            return Err(Problem::new(
                "",
                "no request precedes, so there is no history to rewrite",
                "remove it",
            ));
        }
        if self.rewrites.is_empty() {
            self.rewrites_from = number;
        }
        self.rewrites.push(rewrite);
        Ok(())
    }

    fn edit(&mut self, field: Field) -> Checked<Rewrite> {
        let mut edit = field.object(&["before"])?;
        let before = edit.required("before")?.text()?;
        if !self.history.contains(&before) {
            let (problem, remedy) = match self.names.get(&before) {
                Some(Named { line, side: true }) => (
                    format!(
                        "request `{}` of line {line} is a side request, no part of the history",
                        shortened(&before)
                    ),
                    "name a request of the history".into(),
                ),
                Some(Named { line, side: false }) => (
                    format!(
                        "request `{}` of line {line} is no longer part of the history here",
                        shortened(&before)
                    ),
                    "name a request that no edit or compaction has removed".into(),
                ),
                None => (
                    format!("no request before this line is called `{}`", shortened(&before)),
                    match nearest(&before, self.history.names()) {
                        Some(meant) => format!("did you mean `{meant}`?"),
                        None => "name an earlier request".into(),
                    },
                ),
            };
            return Err(Problem::new("edit.before", problem, remedy));
        }
        self.history.cut(&before);
        Ok(Rewrite::Edit { before })
    }

    fn compaction(&mut self, field: Field) -> Checked<Rewrite> {
        let mut compaction = field.object(&["messages"])?;
        self.history.clear();
        let messages = messages(compaction.required("messages")?, &mut self.history)?;
        Ok(Rewrite::Compaction { messages })
    }

    fn request(&mut self, field: Field, number: usize) -> Checked<()> {
        if self.session.requests.len() == MAX_REQUESTS {
            let problem = format!("more than {MAX_REQUESTS} requests");
            return Err(Problem::new("", problem, "split the session"));
        }
        let mut request = field.object(&REQUEST)?;
        let name = request.required("name")?.label(MAX_NAME_CHARS)?;
        let side = request.optional("side").map(Field::truth).transpose()?.unwrap_or_default();
        if let Some(Named { line, .. }) = self.names.insert(name.clone(), Named { line: number, side }) {
            let problem = format!("`{name}` is the name of the request in line {line} already");
            return Err(Problem::new("request.name", problem, "give each request its own name"));
        }
        if side && !self.rewrites.is_empty() {
            let problem = format!("is true, but line {} rewrites the history", self.rewrites_from);
            let remedy = "move the side request in front of that line, or behind the request that follows it";
            return Err(Problem::new("request.side", problem, remedy));
        }
        // A side request begins a history of its own, which ends with it.
        let mut aside = History::new();
        let history = if side { &mut aside } else { &mut self.history };
        let before = history.here();
        let append = request.optional("append").map(|field| messages(field, history)).transpose()?;
        let append = append.unwrap_or_default();
        check_end(&append, self.rewrites.last())?;
        history.open(&name, before);
        let reply = request.optional("reply").map(reply).transpose()?;
        match &reply {
            Some(reply) => history.append(reply, "request.reply")?,
            None => history.unknown_reply(),
        }
        let idle = request.optional("idle_s").map(|field| field.number(0.0, MAX_IDLE_S)).transpose()?;
        let overrides = overrides(&mut request)?;
        self.session.requests.push(RequestSpec {
            name,
            idle: Nanos::from_seconds(idle.unwrap_or_default()),
            side,
            rewrites: std::mem::take(&mut self.rewrites),
            append,
            reply,
            overrides,
        });
        Ok(())
    }

    fn finish(self) -> Result<Session, Located> {
        let whole = |line, problem: &str, remedy: &str| {
            Err(Located { line, problem: Problem::new("", problem, remedy) })
        };
        if self.session.requests.is_empty() {
            return whole(0, "has no request", r#"add a line {"request":{"name":"r1","append":[…]}}"#);
        }
        if !self.rewrites.is_empty() {
            return whole(
                self.rewrites_from,
                "no request follows, so it rewrites nothing",
                "add one or remove it",
            );
        }
        Ok(self.session)
    }
}

/// A prompt asks for a reply, so what it ends with is not one.
fn check_end(append: &[Message], before: Option<&Rewrite>) -> Checked<()> {
    let compacted = match before {
        Some(Rewrite::Compaction { messages }) => messages.as_slice(),
        _ => &[],
    };
    match append.last().or(compacted.last()) {
        None => Err(Problem::new("request.append", "is empty", "append what the model is to answer")),
        Some(last) if last.role == Role::Assistant => Err(Problem::new(
            "request.append",
            "ends with an assistant message, which leaves nothing to reply to",
            "end it with a message from `user` or `tool`; the reply goes into `reply`",
        )),
        Some(_) => Ok(()),
    }
}

/// The configuration the session is meant for, checked as if nothing else were set.
fn settings(field: Field) -> Checked<Vec<Setting>> {
    let path = field.path.clone();
    let mut settings = Vec::new();
    let mut overrides = Vec::new();
    for (key, field) in field.entries()? {
        let place = field.path.clone();
        let value = field.scalar(MAX_SETTING_CHARS)?;
        overrides.push(Override::new(&place, &key, value.clone()));
        settings.push(Setting { key, value });
    }
    let place = |origin: String| if origin.starts_with(&path) { origin } else { path.clone() };
    config::load_over(&overrides, None, &[])
        .map_err(|error| Problem::new(&place(error.origin), error.problem, error.remedy))?;
    match settings.iter().find(|setting| !config::session_may_set(&setting.key, &setting.value)) {
        None => Ok(settings),
        Some(Setting { key, .. }) => Err(Problem::new(
            &format!("{path}.{key}"),
            "is not for a session to set",
            format!("remove it, and give `--set {key}=…` where the session is replayed"),
        )),
    }
}

fn messages(field: Field, history: &mut History) -> Checked<Vec<Message>> {
    let read = |field: Field| {
        let path = field.path.clone();
        let message = message(field)?;
        history.append(&message, &path)?;
        Ok(message)
    };
    field.list()?.into_iter().map(read).collect()
}

fn tools(field: Field) -> Checked<Vec<Value>> {
    let mut names = HashMap::new();
    let read = |(index, tool): (usize, Field)| {
        let name = tool.value.get("function").unwrap_or(&tool.value).get("name").and_then(Value::as_str);
        let Some(name) = name else {
            return Err(tool.problem("has no name", "give it a `name`, by itself or inside `function`"));
        };
        if let Some(other) = names.insert(name.to_owned(), index) {
            let problem = format!("`{}` is the name of tool {other} already", shortened(name));
            return Err(tool.problem(problem, "give each tool its own name"));
        }
        Ok(tool.value)
    };
    field.list()?.into_iter().enumerate().map(read).collect()
}

fn reply(field: Field) -> Checked<Message> {
    let reply = message(field)?;
    match reply.role {
        Role::Assistant => Ok(reply),
        role => Err(Problem::new(
            "request.reply.role",
            format!("is `{}`", role.word()),
            "a reply comes from the `assistant`; what others say goes into `append`",
        )),
    }
}

fn message(field: Field) -> Checked<Message> {
    let mut object = field.object(&MESSAGE)?;
    let role = role(object.required("role")?)?;
    let only = |object: &Object, key: &str, on: Role| {
        let problem = format!("`{key}` is for the role `{}`, not `{}`", on.word(), role.word());
        if role != on && object.has(key) { Err(object.problem(problem, "remove it")) } else { Ok(()) }
    };
    only(&object, "tool_calls", Role::Assistant)?;
    only(&object, "tool_call_id", Role::Tool)?;
    let tool_calls = object.optional("tool_calls").map(calls).transpose()?.unwrap_or_default();
    let content = match object.optional("content") {
        Some(field) if field.value.is_array() => {
            let remedy = "join the text of its parts; escarp replays text only";
            return Err(field.problem("is a list of content parts", remedy));
        }
        Some(field) => field.text()?,
        None if tool_calls.is_empty() => {
            return Err(object
                .required("content")
                .err()
                .unwrap_or_else(|| object.problem("`content` is missing", "give it a `content`")));
        }
        None => String::new(),
    };
    let tool_call_id = object.optional("tool_call_id").map(Field::text).transpose()?;
    Ok(Message { role, content, tool_calls, tool_call_id, injected: false })
}

fn role(field: Field) -> Checked<Role> {
    const ROLES: [Role; 3] = [Role::User, Role::Assistant, Role::Tool];
    let path = field.path.clone();
    let word = field.text()?;
    let words = ROLES.map(Role::word);
    ROLES.into_iter().find(|role| role.word() == word).ok_or_else(|| {
        let remedy = match nearest(&word, words) {
            _ if word == "system" => r#"give the system prompt its own line, {"system":"…"}"#.into(),
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("the roles are {}", listed(&words)),
        };
        Problem::new(&path, format!("unknown role `{}`", shortened(&word)), remedy)
    })
}

fn calls(field: Field) -> Checked<Vec<ToolCall>> {
    let mut ids = HashMap::new();
    let read = |(index, field): (usize, Field)| {
        let path = field.path.clone();
        let call = call(field)?;
        if let Some(other) = call.id.clone().and_then(|id| ids.insert(id, index)) {
            let problem = format!("is the id of call {other} already");
            return Err(Problem::new(&format!("{path}.id"), problem, "give each call its own id"));
        }
        Ok(call)
    };
    field.list()?.into_iter().enumerate().map(read).collect()
}

fn call(field: Field) -> Checked<ToolCall> {
    let mut object = field.object(&CALL)?;
    let id = object.optional("id").map(Field::text).transpose()?;
    let name = object.required("name")?.text()?;
    let arguments = match object.optional("arguments") {
        None => serde_json::Map::new(),
        Some(Field { value: Value::Object(arguments), .. }) => arguments,
        Some(field) => {
            let remedy = "give an object; arguments in quotes must be unpacked";
            return Err(field.problem("is not an object", remedy));
        }
    };
    Ok(ToolCall { id, name, arguments })
}

fn overrides(request: &mut Object) -> Checked<RequestOverrides> {
    let max_output_tokens = request.optional("max_output_tokens").map(|field| field.whole(1)).transpose()?;
    let sampling = request.optional("sampling").map(sampling).transpose()?.unwrap_or_default();
    let cache = match request.optional("set") {
        Some(set) => set.object(&["cache"])?.optional("cache").map(Field::truth).transpose()?,
        None => None,
    };
    let transport = request.optional("transport").map(transport).transpose()?;
    let specprefill = request.optional("specprefill").map(specprefill).transpose()?.unwrap_or_default();
    let speculation = request.optional("speculation").map(speculation).transpose()?.unwrap_or_default();
    Ok(RequestOverrides { max_output_tokens, sampling, cache, specprefill, speculation, transport })
}

/// The name of a transport. Whether there is one of that name is the configuration's to say.
fn transport(field: Field) -> Checked<String> {
    let path = field.path.clone();
    let name = field.text()?;
    if config::is_transport_name(&name) {
        return Ok(name);
    }
    let problem = format!("`{}` is no name of a transport", shortened(&name));
    let remedy = format!(
        "give up to {} lower-case letters, digits, `-` and `_`, as in `agent`",
        config::MAX_TRANSPORT_CHARS
    );
    Err(Problem::new(&path, problem, remedy))
}

fn specprefill(field: Field) -> Checked<SparseOverride> {
    let mut object = field.object(&["enabled", "keep", "threshold"])?;
    let enabled = object.optional("enabled").map(Field::truth).transpose()?;
    let keep = object.optional("keep").map(Field::fraction).transpose()?;
    let threshold = object.optional("threshold").map(|field| field.whole(0)).transpose()?;
    Ok(SparseOverride { enabled, keep, threshold })
}

fn speculation(field: Field) -> Checked<SpeculationOverride> {
    let mut object = field.object(&["drafter", "depth", "controller"])?;
    let drafters = DrafterKind::ALL.map(DrafterKind::word);
    let drafter = object.optional("drafter").map(|field| field.one_of(&drafters, DrafterKind::parse));
    let controllers = ControllerKind::ALL.map(ControllerKind::word);
    let controller =
        object.optional("controller").map(|field| field.one_of(&controllers, ControllerKind::parse));
    let most = SpeculationConfig::MAX_DEPTH;
    let depth = object.optional("depth").map(|field| field.whole_up_to(1, most)).transpose()?;
    Ok(SpeculationOverride { drafter: drafter.transpose()?, depth, controller: controller.transpose()? })
}

fn sampling(field: Field) -> Checked<SamplingOverride> {
    let mut object = field.object(&SAMPLING)?;
    let mut number = |key: &str, low: f64, high: f64| -> Checked<Option<f32>> {
        Ok(object.optional(key).map(|field| field.number(low, high)).transpose()?.map(|n| n as f32))
    };
    let temperature = number("temperature", 0.0, 100.0)?;
    let top_p = number("top_p", 1e-6, 1.0)?;
    let min_p = number("min_p", 0.0, 1.0)?;
    let repetition_penalty = number("repetition_penalty", 0.01, 100.0)?;
    let top_k = object.optional("top_k").map(|field| field.whole(0)).transpose()?;
    let top_k = top_k.map(|k| usize::try_from(k).unwrap_or(usize::MAX));
    let seed = object.optional("seed").map(|field| field.whole(0)).transpose()?;
    Ok(SamplingOverride { temperature, top_k, top_p, min_p, repetition_penalty, seed })
}
