//! The chat template: Jinja as model files carry it, under bounds.

use std::collections::BTreeMap;
use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind};

use super::TextError;

/// Instructions a template may execute for one prompt. A long agent session takes about a hundred thousand.
const FUEL: u64 = 10_000_000;
/// Bytes a template may write for one prompt.
const MAX_OUTPUT: usize = 16 << 20;
/// Bytes of template source.
const MAX_SOURCE: usize = 1 << 20;

/// ChatML, for models that bring no template: the `sim` device and folders without a tokenizer.
pub(super) const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}\
     {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// What a template reads besides messages and tools.
#[derive(Debug, Clone, Default)]
pub(super) struct TemplateTokens {
    /// `bos_token`.
    pub(super) bos: Option<String>,
    /// `eos_token`.
    pub(super) eos: Option<String>,
}

/// A compiled chat template.
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    /// It reads the `tools` variable.
    pub(super) takes_tools: bool,
    /// It reads `tool_calls` of assistant messages.
    pub(super) takes_tool_calls: bool,
    /// It knows the role `tool`.
    pub(super) takes_tool_role: bool,
    tokens: TemplateTokens,
}

const NAME: &str = "chat_template";

impl ChatTemplate {
    pub(super) fn new(source: &str, tokens: TemplateTokens) -> Result<ChatTemplate, TextError> {
        if source.len() > MAX_SOURCE {
            return Err(TextError::Template {
                problem: format!("its source has {} bytes, more than {MAX_SOURCE}", source.len()),
                remedy: "use a model file with a chat template of reasonable size".into(),
            });
        }
        let mut environment = Environment::new();
        // As the engines that chat templates are written for have it.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| describe(&e))?);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_fuel(Some(FUEL));
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime);
        environment.add_template_owned(NAME, source.to_owned()).map_err(|e| describe(&e))?;
        let variables = environment.get_template(NAME).map_err(|e| describe(&e))?.undeclared_variables(false);
        Ok(ChatTemplate {
            takes_tools: variables.contains("tools"),
            takes_tool_calls: source.contains("tool_calls"),
            takes_tool_role: source.contains("'tool'") || source.contains("\"tool\""),
            environment,
            source: source.to_owned(),
            tokens,
        })
    }

    /// The template of models that bring none.
    pub(super) fn chatml() -> ChatTemplate {
        // The source is a constant that a test renders.
        ChatTemplate::new(CHATML, TemplateTokens::default())
            .unwrap_or_else(|e| unreachable!("built-in template: {e}"))
    }

    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// Renders `messages` and `tools`, with the generation prompt at the end where asked.
    pub(super) fn render(
        &self,
        messages: Vec<Value>,
        tools: Option<&Value>,
        generation: bool,
    ) -> Result<String, TextError> {
        let mut variables: BTreeMap<&str, Value> = BTreeMap::new();
        variables.insert("messages", Value::from(messages));
        variables.insert("add_generation_prompt", Value::from(generation));
        for (name, token) in [("bos_token", &self.tokens.bos), ("eos_token", &self.tokens.eos)] {
            variables.insert(name, Value::from(token.clone().unwrap_or_default()));
        }
        if let Some(tools) = tools {
            variables.insert("tools", tools.clone());
        }
        let template = self.environment.get_template(NAME).map_err(|e| describe(&e))?;
        let mut output = Bounded { bytes: Vec::new() };
        template.render_captured_to(Value::from_pairs(variables), &mut output).map_err(|e| describe(&e))?;
        String::from_utf8(output.bytes).map_err(|_| TextError::Template {
            problem: "its output is not UTF-8".into(),
            remedy: "use another chat template".into(),
        })
    }
}

/// Takes output up to [`MAX_OUTPUT`].
struct Bounded {
    bytes: Vec<u8>,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_OUTPUT {
            return Err(io::Error::other(format!("the prompt exceeds {MAX_OUTPUT} bytes")));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn describe(error: &Error) -> TextError {
    let place = error.line().map(|line| format!("line {line}: ")).unwrap_or_default();
    let (problem, remedy) = match error.kind() {
        ErrorKind::OutOfFuel => (
            format!("it did not end within {FUEL} instructions"),
            "it probably loops; use a model file with a working template",
        ),
        ErrorKind::WriteFailure => (
            format!("its output exceeds {MAX_OUTPUT} bytes"),
            "it probably loops; use a model file with a working template",
        ),
        ErrorKind::SyntaxError => {
            (error.detail().unwrap_or("syntax error").to_owned(), "use a model file with a valid template")
        }
        _ => {
            let detail = error.detail().map(|d| format!(": {d}")).unwrap_or_default();
            (format!("{}{detail}", error.kind()), "check that the template accepts these roles and tools")
        }
    };
    TextError::Template { problem: format!("{place}{problem}"), remedy: remedy.into() }
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// `strftime_now`, standing still at 1 January 2025, 12:00, a Wednesday: with the real date, prompts of one session would
/// differ from day to day.
fn strftime(format: &str) -> String {
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('-') => match chars.next() {
                Some('d' | 'm' | 'j') => out.push('1'),
                Some('H' | 'I') => out.push_str("12"),
                Some('M' | 'S') => out.push('0'),
                Some(other) => out.extend(['%', '-', other]),
                None => out.push_str("%-"),
            },
            Some('Y') => out.push_str("2025"),
            Some('y') => out.push_str("25"),
            Some('m' | 'd') => out.push_str("01"),
            Some('e') => out.push_str(" 1"),
            Some('j') => out.push_str("001"),
            Some('B') => out.push_str("January"),
            Some('b' | 'h') => out.push_str("Jan"),
            Some('A') => out.push_str("Wednesday"),
            Some('a') => out.push_str("Wed"),
            Some('H' | 'I') => out.push_str("12"),
            Some('M' | 'S') => out.push_str("00"),
            Some('p') => out.push_str("PM"),
            Some('F') => out.push_str("2025-01-01"),
            Some('T') => out.push_str("12:00:00"),
            Some('Z') => out.push_str("UTC"),
            Some('z') => out.push_str("+0000"),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

fn to_json(value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    // Accepted because templates written for other engines pass them; output is as with their usual values.
    let _: Option<Value> = kwargs.get("ensure_ascii")?;
    let _: Option<Value> = kwargs.get("separators")?;
    let _: Option<Value> = kwargs.get("sort_keys")?;
    kwargs.assert_all_used()?;
    let indent = indent.map(|n| n.min(16));
    let json = serde_json::to_value(value)
        .map_err(|e| Error::new(ErrorKind::BadSerialization, "value is not JSON").with_source(e))?;
    Ok(Value::from_safe_string(python_json(&json, indent)))
}

/// JSON in Python's spacing (`", "` and `": "`), which chat models were trained on; non-ASCII and HTML characters as they are.
pub(super) fn python_json(value: &serde_json::Value, indent: Option<usize>) -> String {
    let mut out = String::new();
    write_json(value, indent, 0, &mut out);
    out
}

fn write_json(value: &serde_json::Value, indent: Option<usize>, depth: usize, out: &mut String) {
    use serde_json::Value as Json;
    let line = |depth: usize, out: &mut String| {
        if let Some(width) = indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', width * depth));
        }
    };
    let comma = if indent.is_some() { "," } else { ", " };
    match value {
        Json::Array(items) if !items.is_empty() => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push_str(comma);
                }
                line(depth + 1, out);
                write_json(item, indent, depth + 1, out);
            }
            line(depth, out);
            out.push(']');
        }
        Json::Object(fields) if !fields.is_empty() => {
            out.push('{');
            for (i, (key, item)) in fields.iter().enumerate() {
                if i > 0 {
                    out.push_str(comma);
                }
                line(depth + 1, out);
                out.push_str(&Json::from(key.as_str()).to_string());
                out.push_str(": ");
                write_json(item, indent, depth + 1, out);
            }
            line(depth, out);
            out.push('}');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str) -> Result<String, TextError> {
        ChatTemplate::new(source, TemplateTokens::default())?.render(Vec::new(), None, true)
    }

    #[test]
    fn a_template_that_loops_is_an_error_not_a_hang() {
        let looping = "{% for a in range(10000) %}{% for b in range(10000) %}{% for c in range(10000) %}\
                       {% set x = a %}{% endfor %}{% endfor %}{% endfor %}";
        let error = render(looping).unwrap_err().to_string();
        assert!(error.contains("did not end"), "{error}");
    }

    #[test]
    fn a_template_that_recurses_is_an_error() {
        let error = render("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").unwrap_err().to_string();
        assert!(error.contains("recursion"), "{error}");
    }

    #[test]
    fn output_is_bounded() {
        let source = "{% set x = 'y' * 100000 %}{% for a in range(9999) %}{{ x }}{% endfor %}";
        let error = render(source).unwrap_err().to_string();
        assert!(error.contains("bytes"), "{error}");
    }

    #[test]
    fn errors_name_the_line() {
        let error = render("a\nb\n{{ raise_exception('roles must alternate') }}").unwrap_err().to_string();
        assert!(error.contains("line 3") && error.contains("roles must alternate"), "{error}");
        let error = render("a\n{% if %}").unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
    }

    #[test]
    fn json_is_spaced_like_python_and_keeps_key_order() {
        let json = r#"{{ {"b": [1, 2.5, none], "a": "<é & '>"} | tojson }}"#;
        assert_eq!(render(json).unwrap(), r#"{"b": [1, 2.5, null], "a": "<é & '>"}"#);
        assert_eq!(render(r#"{{ {"b": [1]} | tojson(indent=2) }}"#).unwrap(), "{\n  \"b\": [\n    1\n  ]\n}");
    }

    #[test]
    fn python_methods_and_the_date_work() {
        assert_eq!(render("{{ ' x '.strip() + strftime_now('%d %b %Y') }}").unwrap(), "x01 Jan 2025");
    }

    #[test]
    fn capabilities_are_read_from_the_source() {
        let capable = "{% if tools %}{{ tools }}{% endif %}{% for m in messages %}{{ m.tool_calls }}{% if m.role == 'tool' %}x\
                       {% endif %}{% endfor %}";
        let template = ChatTemplate::new(capable, TemplateTokens::default()).unwrap();
        assert!(template.takes_tools && template.takes_tool_calls && template.takes_tool_role);
        let template = ChatTemplate::new(CHATML, TemplateTokens::default()).unwrap();
        assert!(!template.takes_tools && !template.takes_tool_calls && !template.takes_tool_role);
    }
}
