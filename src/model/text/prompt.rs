//! From a conversation to the prompt's text, with the segment of every byte.
//!
//! A template is an opaque program, so where a message went is found by marking: the conversation is rendered a second time
//! with every fragment wrapped in private-use characters, and the marked text, stripped, must be the plain text. Where it is not (a
//! template that looks at the beginning of a message, say), fragments are searched for in order instead.
//!
//! A template without tools loses nothing: schemas are folded into the system prompt, calls into the assistant's text and
//! results into user messages.

use std::borrow::Cow;
use std::ops::Range;

use minijinja::value::Value;
use serde_json::Value as Json;

use super::TextError;
use super::template::{ChatTemplate, python_json};
use crate::event::Segment;
use crate::session::{Conversation, Message, Role, ToolCall};

/// The prompt's text and what its bytes are.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Prompt {
    pub(super) text: String,
    /// Consecutive parts that cover the text.
    pub(super) parts: Vec<Part>,
}

/// Consecutive bytes of one origin.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Part {
    pub(super) range: Range<usize>,
    pub(super) segment: Segment,
    /// Written by the template rather than by a message: control tokens are recognised in it, and nowhere else, so that no
    /// message can end its own turn or speak for another role.
    pub(super) template: bool,
}

/// What a template does to messages, found by trying it once.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Habits {
    /// What it writes to ask for a reply; empty when it does nothing.
    pub(super) generation_prompt: String,
    /// Roles whose content it trims.
    trimmed: Vec<&'static str>,
}

impl Habits {
    pub(super) fn of(template: &ChatTemplate) -> Habits {
        let ask = [message("user", "q")];
        let with = template.render(ask.to_vec(), None, true).unwrap_or_default();
        let without = template.render(ask.to_vec(), None, false).unwrap_or_default();
        let generation_prompt = with.strip_prefix(&without).unwrap_or_default().to_owned();

        let probe = " \n\u{f0010}\n ";
        let trims = |role: &str, before: &[Value], after: &[Value]| {
            let messages = [before, &[message(role, probe)], after].concat();
            template
                .render(messages, None, false)
                .is_ok_and(|text| text.contains(probe.trim()) && !text.contains(probe))
        };
        let (user, reply) = (message("user", "q"), message("assistant", "r"));
        let mut trimmed = Vec::new();
        for (role, before, after) in [
            ("system", &[][..], &[user.clone()][..]),
            ("user", &[][..], &[][..]),
            ("assistant", &[user.clone()][..], &[user.clone()][..]),
            ("tool", &[user.clone(), reply][..], &[][..]),
        ] {
            if trims(role, before, after) {
                trimmed.push(role);
            }
        }
        Habits { generation_prompt, trimmed }
    }
}

fn message(role: &str, content: &str) -> Value {
    Value::from_pairs([("role", Value::from(role)), ("content", Value::from(content))])
}

/// Renders `conversation`, generation prompt included.
pub(super) fn render(
    template: &ChatTemplate,
    habits: &Habits,
    conversation: &Conversation,
) -> Result<Prompt, TextError> {
    let outline = Outline::new(template, conversation);
    let text = template.render(outline.messages(habits, None), outline.tools.as_ref(), true)?;
    let spans = match outline.marked_spans(template, habits, &text) {
        Some(spans) => spans,
        None => outline.search(&text),
    };
    let schema = match &outline.tools {
        Some(_) => schema_range(template, habits, &outline, &text),
        None => None,
    };
    let parts = outline.parts(&text, &spans, schema);
    Ok(Prompt { text, parts })
}

/// What the tool definitions add to the prompt: where it differs from the prompt without them.
fn schema_range(
    template: &ChatTemplate,
    habits: &Habits,
    outline: &Outline<'_>,
    text: &str,
) -> Option<Range<usize>> {
    let bare = template.render(outline.messages(habits, None), None, true).ok()?;
    let shorter = text.len().min(bare.len());
    let (a, b) = (text.as_bytes(), bare.as_bytes());
    let mut start = (0..shorter).find(|i| a[*i] != b[*i]).unwrap_or(shorter);
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    let room = shorter - start;
    let tail = (0..room).find(|i| a[a.len() - 1 - i] != b[b.len() - 1 - i]).unwrap_or(room);
    let mut end = text.len() - tail;
    while !text.is_char_boundary(end) {
        end += 1;
    }
    (start < end).then_some(start..end)
}

/// A piece of text handed to the template whose place in the prompt matters.
struct Fragment<'a> {
    text: Cow<'a, str>,
    segment: Segment,
    /// Part of a tool call that the template lays out: the whole lines it lies on are the call.
    laid_out: Option<usize>,
}

/// A message with its content as fragments.
struct Entry<'a> {
    role: &'static str,
    /// Fragments that make up the content.
    content: Range<usize>,
    calls: Vec<Call<'a>>,
    tool_call_id: Option<&'a str>,
}

/// A tool call handed to the template as data.
struct Call<'a> {
    call: &'a ToolCall,
    /// Fragment of the name; those of the string arguments follow in order.
    name: usize,
}

/// A conversation as the template will see it.
struct Outline<'a> {
    fragments: Vec<Fragment<'a>>,
    entries: Vec<Entry<'a>>,
    tools: Option<Value>,
}

const FOLDED_TOOLS: &str = "# Tools\nTo call a tool, write <tool_call>{\"name\": NAME, \"arguments\": {...}}</tool_call>. \
                            The tools, one a line:";

impl<'a> Outline<'a> {
    fn new(template: &ChatTemplate, conversation: &'a Conversation) -> Outline<'a> {
        let mut outline = Outline { fragments: Vec::new(), entries: Vec::new(), tools: None };
        let fold_tools = !conversation.tools.is_empty() && !template.takes_tools;
        if !conversation.tools.is_empty() && template.takes_tools {
            outline.tools = Some(conversation.tools.iter().map(function_tool).collect());
        }
        outline.system(conversation, fold_tools);
        let mut calls_so_far = 0;
        for message in &conversation.messages {
            outline.message(template, message, &mut calls_so_far);
        }
        outline
    }

    fn push(&mut self, text: impl Into<Cow<'a, str>>, segment: Segment) {
        let text = text.into();
        if !text.is_empty() {
            self.fragments.push(Fragment { text, segment, laid_out: None });
        }
    }

    fn system(&mut self, conversation: &'a Conversation, fold_tools: bool) {
        let start = self.fragments.len();
        let system = conversation.system.as_deref();
        if system.is_none() && !fold_tools {
            return;
        }
        self.push(system.unwrap_or_default(), Segment::System);
        if fold_tools {
            let mut schema = String::new();
            if system.is_some_and(|text| !text.is_empty()) {
                schema.push_str("\n\n");
            }
            schema.push_str(FOLDED_TOOLS);
            for tool in &conversation.tools {
                schema.push('\n');
                schema.push_str(&python_json(tool, None));
            }
            self.push(schema, Segment::ToolSchema);
        }
        let content = start..self.fragments.len();
        self.entries.push(Entry { role: "system", content, calls: Vec::new(), tool_call_id: None });
    }

    fn message(&mut self, template: &ChatTemplate, message: &'a Message, calls_so_far: &mut usize) {
        let of = |segment| if message.injected { Segment::Injected } else { segment };
        let start = self.fragments.len();
        let mut role = message.role.word();
        match message.role {
            Role::User => self.push(message.content.as_str(), of(Segment::User)),
            Role::Assistant => self.push(message.content.as_str(), of(Segment::Assistant)),
            Role::Tool if template.takes_tool_role => {
                self.push(message.content.as_str(), of(Segment::ToolResult));
            }
            Role::Tool => {
                role = Role::User.word();
                let folded = format!("<tool_response>\n{}\n</tool_response>", message.content);
                self.push(folded, of(Segment::ToolResult));
            }
        }
        if !template.takes_tool_calls {
            for (i, call) in message.tool_calls.iter().enumerate() {
                let gap = if i > 0 || !message.content.is_empty() { "\n" } else { "" };
                let folded = format!("{gap}<tool_call>{}</tool_call>", call_json(call));
                self.push(folded, of(Segment::ToolCall));
            }
        }
        let content = start..self.fragments.len();
        let mut calls = Vec::new();
        if template.takes_tool_calls {
            for call in &message.tool_calls {
                calls.push(Call { call, name: self.fragments.len() });
                let strings = call.arguments.values().filter_map(Json::as_str);
                for text in std::iter::once(call.name.as_str()).chain(strings) {
                    let laid_out = Some(*calls_so_far);
                    self.fragments.push(Fragment {
                        text: text.into(),
                        segment: of(Segment::ToolCall),
                        laid_out,
                    });
                }
                *calls_so_far += 1;
            }
        }
        self.entries.push(Entry { role, content, calls, tool_call_id: message.tool_call_id.as_deref() });
    }

    /// The template's `messages`, fragments wrapped where there are `marks`.
    fn messages(&self, habits: &Habits, marks: Option<Marks>) -> Vec<Value> {
        self.entries
            .iter()
            .map(|entry| {
                let trimmed = habits.trimmed.contains(&entry.role);
                let content = self.content(entry, marks, trimmed);
                let mut fields = vec![("role", Value::from(entry.role)), ("content", Value::from(content))];
                if let Some(id) = entry.tool_call_id {
                    fields.push(("tool_call_id", Value::from(id)));
                }
                if !entry.calls.is_empty() {
                    let calls: Vec<Value> = entry.calls.iter().map(|call| self.call(call, marks)).collect();
                    fields.push(("tool_calls", Value::from(calls)));
                }
                Value::from_pairs(fields)
            })
            .collect()
    }

    fn content(&self, entry: &Entry<'a>, marks: Option<Marks>, trimmed: bool) -> String {
        let mut content = String::new();
        for index in entry.content.clone() {
            let text = self.fragments[index].text.as_ref();
            let Some(marks) = marks else {
                content.push_str(text);
                continue;
            };
            // Where the template trims, marks must not shield the outer white space.
            let mut core = text;
            if trimmed && index == entry.content.start {
                core = core.trim_start();
            }
            if trimmed && index + 1 == entry.content.end {
                core = core.trim_end();
            }
            let start = if trimmed && index == entry.content.start {
                text.len() - text.trim_start().len()
            } else {
                0
            };
            let core_end = start + core.len();
            content.push_str(&text[..start]);
            marks.wrap(index, core, &mut content);
            content.push_str(text.get(core_end..).unwrap_or_default());
        }
        content
    }

    fn call(&self, call: &Call<'a>, marks: Option<Marks>) -> Value {
        let mut next = call.name;
        let mut text = |plain: &str| {
            let mut out = String::new();
            match marks {
                Some(marks) => marks.wrap(next, plain, &mut out),
                None => out.push_str(plain),
            }
            next += 1;
            Value::from(out)
        };
        let name = text(&call.call.name);
        let arguments = call.call.arguments.iter().map(|(key, value)| {
            let value = match value.as_str() {
                Some(string) => text(string),
                None => json_value(value),
            };
            (key.as_str(), value)
        });
        let function = Value::from_pairs([
            ("name", name),
            ("arguments", Value::from_pairs(arguments.collect::<Vec<_>>())),
        ]);
        let mut fields = vec![("type", Value::from("function")), ("function", function)];
        if let Some(id) = &call.call.id {
            fields.insert(0, ("id", Value::from(id.as_str())));
        }
        Value::from_pairs(fields)
    }

    /// Where the fragments went, by the marked render; `None` when marking changed what the template does.
    fn marked_spans(&self, template: &ChatTemplate, habits: &Habits, plain: &str) -> Option<Vec<Span>> {
        let marks = Marks::unused_in(&self.fragments)?;
        let marked = template.render(self.messages(habits, Some(marks)), self.tools.as_ref(), true).ok()?;
        let (stripped, spans) = marks.strip(&marked)?;
        (stripped == plain).then_some(spans)
    }

    /// Where the fragments went, by looking for each after the one before it. What is not found stays the template's.
    fn search(&self, plain: &str) -> Vec<Span> {
        let mut cursor = 0;
        let mut spans = Vec::new();
        for (index, fragment) in self.fragments.iter().enumerate() {
            for text in [fragment.text.as_ref(), fragment.text.trim()] {
                if let Some(at) = plain[cursor..].find(text).filter(|_| !text.is_empty()) {
                    let range = cursor + at..cursor + at + text.len();
                    cursor = range.end;
                    spans.push(Span { fragment: index, range });
                    break;
                }
            }
        }
        spans
    }

    /// Covers `text` with parts: messages where the spans say, schemas and tool calls between them, the rest is the template's.
    fn parts(&self, text: &str, spans: &[Span], schema: Option<Range<usize>>) -> Vec<Part> {
        let mut messages: Vec<&Span> =
            spans.iter().filter(|s| self.fragments[s.fragment].laid_out.is_none()).collect();
        messages.sort_by_key(|span| (span.range.start, span.range.end));
        let laid_out = self.laid_out_calls(text, spans, &messages);
        let mut parts = Vec::new();
        let mut cursor = 0;
        for span in messages {
            if span.range.start < cursor || span.range.is_empty() {
                continue;
            }
            template_parts(cursor..span.range.start, &laid_out, schema.as_ref(), &mut parts);
            let segment = self.fragments[span.fragment].segment;
            parts.push(Part { range: span.range.clone(), segment, template: false });
            cursor = span.range.end;
        }
        template_parts(cursor..text.len(), &laid_out, schema.as_ref(), &mut parts);
        parts
    }

    /// The lines each tool call's fragments lie on, within the template's own text.
    fn laid_out_calls(&self, text: &str, spans: &[Span], messages: &[&Span]) -> Vec<(Range<usize>, Segment)> {
        let mut calls: Vec<(usize, Range<usize>, Segment)> = Vec::new();
        for span in spans {
            let fragment = &self.fragments[span.fragment];
            let Some(call) = fragment.laid_out else { continue };
            match calls.last_mut() {
                Some((last, range, _)) if *last == call => {
                    *range = range.start.min(span.range.start)..range.end.max(span.range.end);
                }
                _ => calls.push((call, span.range.clone(), fragment.segment)),
            }
        }
        calls
            .into_iter()
            .map(|(_, range, segment)| {
                let floor =
                    messages.iter().map(|m| m.range.end).filter(|end| *end <= range.start).max().unwrap_or(0);
                let roof = messages
                    .iter()
                    .map(|m| m.range.start)
                    .filter(|s| *s >= range.end)
                    .min()
                    .unwrap_or(text.len());
                (line_start(text, floor, range.start)..line_end(text, range.end, roof), segment)
            })
            .collect()
    }
}

/// Characters that end a laid-out call besides the line's end: special tokens of every common template start and end so.
fn line_start(text: &str, floor: usize, at: usize) -> usize {
    let before = &text[floor..at];
    let cut = [before.rfind('\n').map(|i| i + 1), before.rfind("|>").map(|i| i + 2)];
    floor + cut.into_iter().flatten().max().unwrap_or(0)
}

fn line_end(text: &str, at: usize, roof: usize) -> usize {
    let after = &text[at..roof];
    at + [after.find('\n'), after.find("<|")].into_iter().flatten().min().unwrap_or(after.len())
}

/// Splits template text in `range` into tool calls, schemas and glue.
fn template_parts(
    range: Range<usize>,
    calls: &[(Range<usize>, Segment)],
    schema: Option<&Range<usize>>,
    parts: &mut Vec<Part>,
) {
    let schemas = schema.iter().map(|r| (Range::clone(r), Segment::ToolSchema));
    let mut inner: Vec<(Range<usize>, Segment)> = calls
        .iter()
        .cloned()
        .chain(schemas)
        .map(|(r, segment)| (r.start.max(range.start)..r.end.min(range.end), segment))
        .filter(|(r, _)| r.start < r.end)
        .collect();
    inner.sort_by_key(|(r, _)| r.start);
    let mut cursor = range.start;
    let mut push = |range: Range<usize>, segment| {
        if !range.is_empty() {
            parts.push(Part { range, segment, template: true });
        }
    };
    for (r, segment) in inner {
        let start = r.start.max(cursor);
        if start < r.end {
            push(cursor..start, Segment::Glue);
            push(start..r.end, segment);
            cursor = r.end;
        }
    }
    push(cursor..range.end, Segment::Glue);
}

/// Tool definitions as templates expect them: `{"type": "function", "function": {…}}`.
fn function_tool(tool: &Json) -> Value {
    if tool.get("function").is_some() {
        return json_value(tool);
    }
    Value::from_pairs([("type", Value::from("function")), ("function", json_value(tool))])
}

fn json_value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(n), _, _) => Value::from(n),
            (None, Some(n), _) => Value::from(n),
            (None, None, n) => Value::from(n.unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::from(items.iter().map(json_value).collect::<Vec<_>>()),
        Json::Object(fields) => Value::from_pairs(fields.iter().map(|(k, v)| (k.as_str(), json_value(v)))),
    }
}

fn call_json(call: &ToolCall) -> String {
    let name = Json::from(call.name.as_str());
    let arguments = python_json(&Json::Object(call.arguments.clone()), None);
    format!("{{\"name\": {name}, \"arguments\": {arguments}}}")
}

/// Where a fragment went.
#[derive(Debug, Clone, PartialEq)]
struct Span {
    fragment: usize,
    range: Range<usize>,
}

/// The characters that mark fragments: ten digits, then one before the fragment and one after it, all private use and none
/// of them in the conversation.
#[derive(Clone, Copy)]
struct Marks {
    base: u32,
}

impl Marks {
    const FIRST: u32 = 0xf_0000;
    const BLOCK: u32 = 16;

    /// The first block of plane 15 that no fragment uses.
    fn unused_in(fragments: &[Fragment<'_>]) -> Option<Marks> {
        let used: std::collections::HashSet<u32> = fragments
            .iter()
            .flat_map(|fragment| fragment.text.chars())
            .filter_map(|c| Some((c as u32).checked_sub(Marks::FIRST)? / Marks::BLOCK))
            .collect();
        let block = (0..4000).find(|block| !used.contains(block))?;
        Some(Marks { base: Marks::FIRST + Marks::BLOCK * block })
    }

    /// The mark of `value`: a digit, [`Marks::OPEN`] or [`Marks::CLOSE`].
    fn character(self, value: u32) -> char {
        char::from_u32(self.base + value).unwrap_or(char::REPLACEMENT_CHARACTER)
    }

    const OPEN: u32 = 10;
    const CLOSE: u32 = 11;

    fn value(self, c: char) -> Option<u32> {
        (c as u32).checked_sub(self.base).filter(|value| *value <= Marks::CLOSE)
    }

    fn wrap(self, index: usize, text: &str, out: &mut String) {
        out.extend(index.to_string().chars().filter_map(|c| c.to_digit(10)).map(|d| self.character(d)));
        out.push(self.character(Marks::OPEN));
        out.push_str(text);
        out.push(self.character(Marks::CLOSE));
    }

    /// Takes the marks out; `None` when they are not as [`Marks::wrap`] wrote them.
    fn strip(self, marked: &str) -> Option<(String, Vec<Span>)> {
        let mut plain = String::with_capacity(marked.len());
        let mut spans = Vec::new();
        let mut number: Option<usize> = None;
        let mut open: Option<(usize, usize)> = None;
        let mut rest = marked;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| self.value(*c).is_some()) {
            plain.push_str(&rest[..at]);
            rest = &rest[at + c.len_utf8()..];
            match self.value(c)? {
                Marks::OPEN if open.is_none() => open = Some((number.take()?, plain.len())),
                Marks::OPEN => return None,
                Marks::CLOSE => {
                    let (fragment, start) = open.take()?;
                    spans.push(Span { fragment, range: start..plain.len() });
                }
                digit => number = Some(number.unwrap_or(0).checked_mul(10)?.checked_add(digit as usize)?),
            }
        }
        plain.push_str(rest);
        (open.is_none() && number.is_none()).then_some((plain, spans))
    }
}
