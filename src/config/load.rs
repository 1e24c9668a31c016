//! From a file and overrides to a checked [`Config`].

use std::fs::File;
use std::io::Read;
use std::path::Path;

use toml::de::DeTable;
use toml::{Table, Value};

use super::check::{Refused, check};
use super::suggest::nearest;
use super::{Config, ScorerChoice, TransportPolicy};

/// The longest configuration file that is read, bytes.
const LONGEST_FILE: u64 = 1 << 20;

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
#[error("{origin}: {problem}; {remedy}")]
pub struct ConfigError {
    /// Where it was set: a file and line, or an option of the command line.
    pub origin: String,
    /// What is wrong, naming the key.
    pub problem: String,
    /// What to do about it.
    pub remedy: String,
}

/// A key and its value, set by a line of a file, by `--set`, or by an option that is sugar for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Override {
    origin: String,
    key: String,
    value: Value,
}

impl Override {
    /// `key` set to `value` by `option`, which errors name.
    pub fn new(option: &str, key: &str, value: impl Into<Value>) -> Override {
        Override { origin: option.to_owned(), key: key.to_owned(), value: value.into() }
    }

    /// The argument of a `--set`: `section.key=value`. The value is read as TOML, and as a plain string where it
    /// is none, so that words and paths need no quotes.
    pub fn parse(argument: &str) -> Result<Override, ConfigError> {
        Override::parse_as(&format!("--set {argument}"), argument)
    }

    /// As [`Override::parse`], for a setting that is a part of `origin`, which errors name.
    pub fn parse_as(origin: &str, setting: &str) -> Result<Override, ConfigError> {
        let origin = origin.to_owned();
        let Some((key, text)) = setting.split_once('=') else {
            let problem = "there is no `=`".to_owned();
            return Err(ConfigError {
                origin,
                problem,
                remedy: "write `--set section.key=value`".to_owned(),
            });
        };
        let parsed: Option<Value> =
            toml::from_str::<Table>(&format!("value = {text}")).ok().and_then(only_value);
        let value = parsed.unwrap_or_else(|| Value::String(text.to_owned()));
        Ok(Override { origin, key: key.trim().to_owned(), value })
    }

    /// The key: `section.key`.
    pub fn key(&self) -> &str {
        &self.key
    }
}

/// The value of the one line `value = …`; nothing where the text smuggled in further lines.
fn only_value(mut table: Table) -> Option<Value> {
    if table.len() == 1 { table.remove("value") } else { None }
}

/// Whether a session file may set `key` to `value`: keys that say how requests are served. The file may come from anywhere, so it names no
/// model, neither to serve nor to score, no device and no folder to write to.
pub fn session_may_set(key: &str, value: &Value) -> bool {
    match key {
        "cache.dir" => false,
        "specprefill.scorer" => {
            alone(key, value).is_ok_and(|config| !matches!(config.specprefill.scorer, ScorerChoice::Model(_)))
        }
        _ => ["cache", "scheduler", "specprefill", "speculation", "sampling", "replay"]
            .contains(&section_of(key)),
    }
}

/// The defaults, with `file` put over them, with `overrides` put over that, later ones over earlier ones.
pub fn load(file: Option<&Path>, overrides: &[Override]) -> Result<Config, ConfigError> {
    load_over(&[], file, overrides)
}

/// As [`load`], but with `base`, a session's own settings, put over the defaults before anything else.
pub fn load_over(
    base: &[Override],
    file: Option<&Path>,
    overrides: &[Override],
) -> Result<Config, ConfigError> {
    let known = known_keys();
    let mut settings = base.to_vec();
    if let Some(path) = file {
        settings.extend(read_file(path, &known)?);
    }
    settings.extend_from_slice(overrides);
    let mut table = Table::new();
    for setting in &settings {
        if !is_known(setting, &known) {
            return Err(unknown_key(setting.origin.clone(), &setting.key, &known));
        }
        // Each setting is tried by itself, so that a value of the wrong type is told with its own place.
        if let Err(error) = alone(&setting.key, &setting.value) {
            return Err(ConfigError {
                origin: setting.origin.clone(),
                problem: format!("`{}`: {}", setting.key, error.message().trim_end()),
                remedy: default_of(&setting.key),
            });
        }
        put(&mut table, &setting.key, setting.value.clone());
    }
    let config: Config = table.try_into().map_err(|error: toml::de::Error| ConfigError {
        origin: "the configuration".to_owned(),
        problem: error.message().to_owned(),
        remedy: "leave the key out for its default".to_owned(),
    })?;
    check(&config).map_err(|Refused { key, value, allowed }| {
        let set_by = settings.iter().rev().find(|setting| setting.key == key);
        ConfigError {
            origin: set_by.map_or("the default", |setting| &setting.origin).to_owned(),
            problem: format!("`{key}` is {value}, which is out of range"),
            remedy: format!("allowed is {allowed}; {}", default_of(&key)),
        }
    })?;
    Ok(config)
}

impl Config {
    /// Whether `key` has `value` here.
    pub fn has(&self, key: &str, value: &Value) -> bool {
        let held = |config: &Config| {
            let all = serde_json::to_value(config).ok()?;
            key.split('.').try_fold(&all, |value, part| value.get(part)).cloned()
        };
        // Read as a configuration first: one value may be written in several ways.
        let wanted = alone(key, value).ok();
        wanted.and_then(|wanted| held(&wanted)).is_some_and(|wanted| held(self) == Some(wanted))
    }
}

/// The defaults with one key set.
fn alone(key: &str, value: &Value) -> Result<Config, toml::de::Error> {
    let mut table = Table::new();
    put(&mut table, key, value.clone());
    table.try_into()
}

/// Sets `key` in `table`, in the sections it names. An empty section leaves one that has keys as it is.
fn put(table: &mut Table, key: &str, value: Value) {
    match key.split_once('.') {
        Some((section, rest)) => {
            if let Value::Table(inner) = table.entry(section).or_insert_with(|| Value::Table(Table::new())) {
                put(inner, rest, value);
            }
        }
        None if value.is_table() && table.contains_key(key) => {}
        None => {
            table.insert(key.to_owned(), value);
        }
    }
}

fn default_of(key: &str) -> String {
    let defaults = Table::try_from(Config::default()).map(Value::Table).ok();
    let value = defaults.as_ref().and_then(|all| key.split('.').try_fold(all, |value, part| value.get(part)));
    match value {
        Some(value) => format!("the default is `{value}`"),
        None => "leave it out for the default".to_owned(),
    }
}

/// The section that there is one of for every transport, in a list of keys.
const EVERY_TRANSPORT: &str = "policy.NAME";

/// Every key, as `section.key`, in order; those of transports once, as of [`EVERY_TRANSPORT`]. JSON has a null, so keys whose default is absent are among
/// them.
fn known_keys() -> Vec<String> {
    let sections = serde_json::to_value(Config::default()).unwrap_or_default();
    let mut keys: Vec<String> = TransportPolicy::KEYS.map(|name| format!("{EVERY_TRANSPORT}.{name}")).into();
    for (section, names) in sections.as_object().into_iter().flatten().filter(|(name, _)| *name != "policy") {
        for (name, _) in names.as_object().into_iter().flatten() {
            keys.push(format!("{section}.{name}"));
        }
    }
    keys.sort();
    keys
}

/// `key` as the known keys have it.
fn listed(key: &str) -> String {
    match key.strip_prefix("policy.").and_then(|rest| rest.split_once('.')) {
        Some((_, name)) => format!("{EVERY_TRANSPORT}.{name}"),
        None => key.to_owned(),
    }
}

/// Whether a setting's key is one. A section of a transport may be empty, and is then a setting by itself.
fn is_known(setting: &Override, known: &[String]) -> bool {
    let is_empty_section = || matches!(&setting.value, Value::Table(keys) if keys.is_empty());
    known.contains(&listed(&setting.key)) || (section_of(&setting.key) == "policy" && is_empty_section())
}

fn section_of(key: &str) -> &str {
    key.rsplit_once('.').map_or("", |(section, _)| section)
}

fn name_of(key: &str) -> &str {
    key.rsplit_once('.').map_or(key, |(_, name)| name)
}

fn unknown_key(origin: String, key: &str, known: &[String]) -> ConfigError {
    let transport = key.strip_prefix("policy.").and_then(|rest| rest.split_once('.')).map(|(name, _)| name);
    // Those of the transport that was named, if one was.
    let known: Vec<String> =
        known.iter().map(|key| transport.map_or(key.clone(), |name| key.replace("NAME", name))).collect();
    let all = || known.iter().map(String::as_str);
    let section = if key.starts_with("policy.") { "policy" } else { section_of(key) };
    let siblings: Vec<_> = all().filter(|known| known.split('.').next() == Some(section)).collect();
    let meant = |among: &[&'_ str]| {
        let name = nearest(name_of(key), among.iter().map(|known| name_of(known)))?;
        among.iter().find(|known| name_of(known) == name).map(|known| format!("did you mean `{known}`?"))
    };
    // A key without its section, or in the wrong one, is as good as the part after the dot.
    let remedy = meant(&siblings).or_else(|| meant(&all().collect::<Vec<_>>())).unwrap_or_else(|| {
        let listed = if siblings.is_empty() { all().collect() } else { siblings };
        format!("the keys are {}", listed.join(", "))
    });
    ConfigError { origin, problem: format!("unknown key `{key}`"), remedy }
}

/// What `path` sets, in the order of the file.
fn read_file(path: &Path, known: &[String]) -> Result<Vec<Override>, ConfigError> {
    let shown = path.display();
    let text = read_bounded(path)?;
    let at_line = |offset: Option<usize>| match offset.and_then(|offset| text.get(..offset)) {
        Some(before) => format!("{shown}:{}", before.matches('\n').count() + 1),
        None => shown.to_string(),
    };
    let syntax = |error: toml::de::Error| ConfigError {
        origin: at_line(error.span().map(|span| span.start)),
        problem: error.message().trim_end().to_owned(),
        remedy: "write TOML: `[section]` and `key = value`".to_owned(),
    };
    let values: Table = toml::from_str(&text).map_err(syntax)?;
    let spanned = DeTable::parse(&text).map_err(syntax)?;
    let mut settings = Vec::new();
    let mut sections = Vec::new();
    for (section, keys) in spanned.get_ref() {
        let at = at_line(Some(section.span().start));
        let section: &str = section.get_ref();
        let known_section = known.iter().any(|key| key.split('.').next() == Some(section));
        match keys.get_ref().as_table().filter(|_| known_section) {
            Some(keys) => sections.push((section.to_owned(), keys)),
            None => return Err(not_a_section(at, section, known_section, known)),
        }
    }
    while let Some((section, keys)) = sections.pop() {
        for (name, inner) in keys {
            let start = name.span().start;
            let key = format!("{section}.{}", name.get_ref());
            match inner.get_ref().as_table() {
                // A transport's own section.
                Some(keys) if section == "policy" && !keys.is_empty() => sections.push((key, keys)),
                _ => {
                    let value =
                        section.split('.').try_fold(&values, |table, part| table.get(part)?.as_table());
                    let origin = at_line(Some(start));
                    match value.and_then(|table| table.get(&**name.get_ref())) {
                        Some(value) => settings.push((start, Override { origin, key, value: value.clone() })),
                        None => {
                            let problem = format!("`{section}` has a dot within a name");
                            let remedy = "a transport's name has letters, digits, `-` and `_`".to_owned();
                            return Err(ConfigError { origin, problem, remedy });
                        }
                    }
                }
            }
        }
    }
    settings.sort_by_key(|(start, _)| *start);
    Ok(settings.into_iter().map(|(_, setting)| setting).collect())
}

fn not_a_section(origin: String, name: &str, known_section: bool, known: &[String]) -> ConfigError {
    if known_section {
        let remedy = format!("write `[{name}]` on a line of its own, its keys below");
        return ConfigError { origin, problem: format!("`{name}` is a section"), remedy };
    }
    match nearest(name, known.iter().filter_map(|key| key.split('.').next())) {
        Some(meant) => ConfigError {
            origin,
            problem: format!("unknown section `{name}`"),
            remedy: format!("did you mean `[{meant}]`?"),
        },
        None => unknown_key(origin, name, known),
    }
}

fn read_bounded(path: &Path) -> Result<String, ConfigError> {
    let refuse = |problem: String, remedy: &str| ConfigError {
        origin: path.display().to_string(),
        problem,
        remedy: remedy.to_owned(),
    };
    let file = File::open(path).map_err(|e| refuse(e.to_string(), "check the path given to `--config`"))?;
    let mut bytes = Vec::new();
    file.take(LONGEST_FILE + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| refuse(e.to_string(), "check the path given to `--config`"))?;
    if bytes.len() as u64 > LONGEST_FILE {
        let problem = format!("longer than {LONGEST_FILE} bytes");
        return Err(refuse(problem, "a configuration is a short TOML file"));
    }
    String::from_utf8(bytes).map_err(|_| refuse("not UTF-8".to_owned(), "save it as UTF-8"))
}

#[cfg(test)]
mod tests;
