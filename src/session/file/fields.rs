//! JSON values that know where they stand, so that whoever finds one wrong can say which.

use serde_json::{Map, Value};

use crate::config::suggest::nearest;

/// What is wrong with a line.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) field: String,
    pub(super) problem: String,
    pub(super) remedy: String,
}

impl Problem {
    pub(super) fn new(field: &str, problem: impl Into<String>, remedy: impl Into<String>) -> Problem {
        Problem { field: field.into(), problem: problem.into(), remedy: remedy.into() }
    }
}

pub(super) type Checked<T> = Result<T, Problem>;

/// A value and its place in the line, for example `request.append[1]`.
pub(super) struct Field {
    pub(super) path: String,
    pub(super) value: Value,
}

impl Field {
    pub(super) fn problem(&self, problem: impl Into<String>, remedy: impl Into<String>) -> Problem {
        Problem::new(&self.path, problem, remedy)
    }

    fn mismatch<T>(&self, wanted: &str) -> Checked<T> {
        let found = match &self.value {
            Value::Null => "null".into(),
            Value::Bool(b) => b.to_string(),
            Value::Number(n) => n.to_string(),
            Value::String(_) => "text".into(),
            Value::Array(_) => "a list".into(),
            Value::Object(_) => "an object".into(),
        };
        let found: String = found;
        Err(self.problem(format!("is {found}"), format!("give {wanted}")))
    }

    /// An object that has no keys but those `known`.
    pub(super) fn object(self, known: &[&str]) -> Checked<Object> {
        let Value::Object(map) = self.value else { return self.mismatch("an object") };
        let object = Object { path: self.path, map };
        match object.map.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(object),
            Some(key) => Err(Problem::new(
                &object.place(&shortened(key)),
                "unknown key",
                match nearest(key, known.iter().copied()) {
                    Some(meant) => format!("did you mean `{meant}`?"),
                    None => format!("the keys here are {}", listed(known)),
                },
            )),
        }
    }

    /// The entries of an object with keys of any name.
    pub(super) fn entries(self) -> Checked<Vec<(String, Field)>> {
        let Value::Object(map) = self.value else { return self.mismatch("an object") };
        let entry = |(key, value): (String, Value)| {
            let key = shortened(&key);
            let path = format!("{}.{key}", self.path);
            (key, Field { path, value })
        };
        Ok(map.into_iter().map(entry).collect())
    }

    pub(super) fn list(self) -> Checked<Vec<Field>> {
        let Value::Array(values) = self.value else { return self.mismatch("a list") };
        let place = |index| format!("{}[{index}]", self.path);
        Ok(values.into_iter().enumerate().map(|(i, value)| Field { path: place(i), value }).collect())
    }

    pub(super) fn text(self) -> Checked<String> {
        match self.value {
            Value::String(text) => Ok(text),
            _ => self.mismatch("text in quotes"),
        }
    }

    /// Text that fits a heading: not empty, one line, at most `max` characters.
    pub(super) fn label(self, max: usize) -> Checked<String> {
        let path = self.path.clone();
        let text = self.text()?;
        let wrong = |problem: &str| Err(Problem::new(&path, problem, "give a short text on one line"));
        match () {
            () if text.trim().is_empty() => wrong("is empty"),
            () if text.chars().any(char::is_control) => wrong("has a control character"),
            () if text.chars().nth(max).is_some() => wrong(&format!("is longer than {max} characters")),
            () => Ok(text),
        }
    }

    pub(super) fn truth(self) -> Checked<bool> {
        self.value.as_bool().map_or_else(|| self.mismatch("true or false"), Ok)
    }

    /// Text of at most `max` characters, a number, or a truth value.
    pub(super) fn scalar(self, max: usize) -> Checked<toml::Value> {
        let number = |n: &serde_json::Number| match n.as_i64() {
            Some(whole) => Some(toml::Value::Integer(whole)),
            None => n.as_f64().filter(|_| n.is_f64()).map(toml::Value::Float),
        };
        let value = match &self.value {
            Value::Bool(truth) => Some(toml::Value::Boolean(*truth)),
            Value::Number(n) => number(n),
            Value::String(_) => return self.label(max).map(toml::Value::String),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        };
        value.map_or_else(|| self.mismatch("text, a number, true or false"), Ok)
    }

    /// A whole number of at least `least`.
    pub(super) fn whole(self, least: u64) -> Checked<u64> {
        let wanted = || self.mismatch(&format!("a whole number of at least {least}"));
        self.value.as_u64().filter(|n| *n >= least).map_or_else(wanted, Ok)
    }

    /// A whole number from `least` to `most`.
    pub(super) fn whole_up_to(self, least: u32, most: u32) -> Checked<u32> {
        let number = self.value.as_u64().and_then(|n| u32::try_from(n).ok());
        let wanted = || self.mismatch(&format!("a whole number from {least} to {most}"));
        number.filter(|n| (least..=most).contains(n)).map_or_else(wanted, Ok)
    }

    /// What one of `words` means.
    pub(super) fn one_of<T>(self, words: &[&str], meaning: impl FnOnce(&str) -> Option<T>) -> Checked<T> {
        let path = self.path.clone();
        let text = self.text()?;
        meaning(&text).ok_or_else(|| {
            let remedy = match nearest(&text, words.iter().copied()) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => format!("give one of {}", listed(words)),
            };
            Problem::new(&path, format!("is `{}`", shortened(&text)), remedy)
        })
    }

    /// A number above 0, up to 1.
    pub(super) fn fraction(self) -> Checked<f64> {
        let wanted = || self.mismatch("a fraction above 0, up to 1");
        self.value.as_f64().filter(|n| *n > 0.0 && *n <= 1.0).map_or_else(wanted, Ok)
    }

    /// A number from `low` to `high`.
    pub(super) fn number(self, low: f64, high: f64) -> Checked<f64> {
        let wanted = || self.mismatch(&format!("a number from {low} to {high}"));
        self.value.as_f64().filter(|n| (low..=high).contains(n)).map_or_else(wanted, Ok)
    }
}

/// An object whose keys are all known.
pub(super) struct Object {
    pub(super) path: String,
    map: Map<String, Value>,
}

impl Object {
    fn place(&self, key: &str) -> String {
        if self.path.is_empty() { key.into() } else { format!("{}.{key}", self.path) }
    }

    pub(super) fn problem(&self, problem: impl Into<String>, remedy: impl Into<String>) -> Problem {
        Problem::new(&self.path, problem, remedy)
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    pub(super) fn optional(&mut self, key: &str) -> Option<Field> {
        let value = self.map.remove(key)?;
        Some(Field { path: self.place(key), value })
    }

    pub(super) fn required(&mut self, key: &str) -> Checked<Field> {
        self.optional(key).ok_or_else(|| {
            let of = if self.path.is_empty() { "the line" } else { "it" };
            self.problem(format!("`{key}` is missing"), format!("give {of} a `{key}`"))
        })
    }
}

/// `a`, `b` and `c`, each in backquotes.
pub(super) fn listed(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

/// `text` without what would make an error message unreadable.
pub(super) fn shortened(text: &str) -> String {
    let mut short: String = text.chars().filter(|c| !c.is_control()).take(40).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
