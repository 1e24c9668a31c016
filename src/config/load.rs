//! From a file and overrides to a checked [`Config`].

use std::fs::File;
use std::io::Read;
use std::path::Path;

use toml::de::DeTable;
use toml::{Table, Value};

use super::suggest::nearest;
use super::{Config, IdleConfig};

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

/// A key set outside the file: by `--set`, or by an option that is sugar for it.
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
        let origin = format!("--set {argument}");
        let Some((key, text)) = argument.split_once('=') else {
            let problem = "there is no `=`".to_owned();
            return Err(ConfigError {
                origin,
                problem,
                remedy: "write `--set section.key=value`".to_owned(),
            });
        };
        let parsed: Option<Value> =
            toml::from_str::<Table>(&format!("value = {text}")).ok().and_then(|mut t| t.remove("value"));
        let value = parsed.unwrap_or_else(|| Value::String(text.to_owned()));
        Ok(Override { origin, key: key.trim().to_owned(), value })
    }
}

/// The defaults, with `file` put over them, with `overrides` put over that, later ones over earlier ones.
pub fn load(file: Option<&Path>, overrides: &[Override]) -> Result<Config, ConfigError> {
    let known = known_keys();
    let mut table = match file {
        Some(path) => read_file(path, &known)?,
        None => Table::new(),
    };
    let mut config = Config::deserialize_from(&table, "the configuration", "")?;
    if let Some(path) = file {
        check(&config, &path.display().to_string())?;
    }
    for Override { origin, key, value } in overrides {
        let Some((section, name)) = key.split_once('.').filter(|_| known.contains(key)) else {
            return Err(unknown_key(origin.clone(), key, &known));
        };
        let section = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
        if let Value::Table(section) = section {
            section.insert(name.to_owned(), value.clone());
        }
        config = Config::deserialize_from(&table, origin, key)?;
        check(&config, origin)?;
    }
    Ok(config)
}

impl Config {
    fn deserialize_from(table: &Table, origin: &str, key: &str) -> Result<Config, ConfigError> {
        table.clone().try_into().map_err(|error: toml::de::Error| ConfigError {
            origin: origin.to_owned(),
            problem: format!("`{key}`: {}", error.message()),
            remedy: default_of(key),
        })
    }
}

fn default_of(key: &str) -> String {
    let value = key.split_once('.').and_then(|(section, name)| {
        let defaults = Table::try_from(Config::default()).ok()?;
        Some(defaults.get(section)?.get(name)?.to_string())
    });
    match value {
        Some(value) => format!("the default is `{value}`"),
        None => "leave it out for the default".to_owned(),
    }
}

/// Every key, as `section.key`.
fn known_keys() -> Vec<String> {
    let mut defaults = Config::default();
    // A key whose default is absent would not show in the serialised defaults.
    defaults.model.path = Some("path".into());
    let sections = Table::try_from(defaults).unwrap_or_default();
    let keys = |(section, value): (&String, &Value)| {
        let names = value.as_table().into_iter().flat_map(|t| t.keys());
        names.map(|name| format!("{section}.{name}")).collect::<Vec<_>>()
    };
    sections.iter().flat_map(keys).collect()
}

fn section_of(key: &str) -> &str {
    key.split_once('.').map_or("", |(section, _)| section)
}

fn name_of(key: &str) -> &str {
    key.split_once('.').map_or(key, |(_, name)| name)
}

fn unknown_key(origin: String, key: &str, known: &[String]) -> ConfigError {
    let all = || known.iter().map(String::as_str);
    let siblings: Vec<_> = all().filter(|known| section_of(known) == section_of(key)).collect();
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

fn read_file(path: &Path, known: &[String]) -> Result<Table, ConfigError> {
    let shown = path.display();
    let at_line = |text: &str, offset: Option<usize>| match offset.and_then(|o| text.get(..o)) {
        Some(before) => format!("{shown}:{}", before.matches('\n').count() + 1),
        None => shown.to_string(),
    };
    let text = read_bounded(path)?;
    let syntax = |error: toml::de::Error| ConfigError {
        origin: at_line(&text, error.span().map(|s| s.start)),
        problem: error.message().to_owned(),
        remedy: "write TOML: `[section]` and `key = value`".to_owned(),
    };
    let spanned = DeTable::parse(&text).map_err(syntax)?;
    for (section, value) in spanned.get_ref() {
        let name: &str = section.get_ref();
        let Some(keys) = value.get_ref().as_table() else {
            return Err(unknown_key(at_line(&text, Some(section.span().start)), name, known));
        };
        let known_section = known.iter().any(|k| k.split_once('.').is_some_and(|(s, _)| s == name));
        if !known_section && keys.is_empty() {
            return Err(unknown_key(at_line(&text, Some(section.span().start)), name, known));
        }
        for key in keys.keys() {
            let full = format!("{name}.{}", key.get_ref());
            if !known.contains(&full) {
                return Err(unknown_key(at_line(&text, Some(key.span().start)), &full, known));
            }
        }
    }
    toml::from_str::<Config>(&text).map_err(|error| ConfigError {
        origin: at_line(&text, error.span().map(|s| s.start)),
        problem: error.message().to_owned(),
        remedy: "leave the key out for its default".to_owned(),
    })?;
    toml::from_str(&text).map_err(syntax)
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

/// Refuses values that have the right type and make no sense.
fn check(config: &Config, origin: &str) -> Result<(), ConfigError> {
    let Config { model, cache, scheduler, replay, sampling, sim, ui } = config;
    let not_negative = |v: f64| v.is_finite() && v >= 0.0;
    let idle = match replay.idle {
        IdleConfig::Seconds(seconds) => not_negative(seconds),
        IdleConfig::Word(_) => true,
    };
    let share = |v: f32| (0.0..=1.0).contains(&v);
    let rules: &[(&str, bool, &str)] = &[
        ("model.threads", model.threads <= 1024, "0 (one a core) to 1024"),
        (
            "cache.block_tokens",
            (64..=65_536).contains(&cache.block_tokens) && cache.block_tokens.is_multiple_of(64),
            "a multiple of 64 up to 65536",
        ),
        ("cache.ram_bytes", cache.ram_bytes > 0, "more than 0"),
        ("scheduler.max_sequences", (1..=1024).contains(&scheduler.max_sequences), "1 to 1024"),
        ("scheduler.chunk_tokens", (1..=65_536).contains(&scheduler.chunk_tokens), "1 to 65536"),
        ("replay.idle", idle, "`recorded`, `zero`, or seconds from 0"),
        ("replay.idle_scale", not_negative(replay.idle_scale), "a factor from 0"),
        ("replay.max_output_tokens", replay.max_output_tokens > 0, "at least 1"),
        ("sampling.temperature", not_negative(sampling.temperature.into()), "0 (greedy) or more"),
        ("sampling.top_p", share(sampling.top_p) && sampling.top_p > 0.0, "above 0, up to 1"),
        ("sampling.min_p", share(sampling.min_p), "0 to 1"),
        (
            "sampling.repetition_penalty",
            sampling.repetition_penalty.is_finite() && sampling.repetition_penalty > 0.0,
            "above 0",
        ),
        ("sim.context_tokens", (64..=1 << 24).contains(&sim.context_tokens), "64 to 16777216"),
        ("sim.prefill_us_per_token", not_negative(sim.prefill_us_per_token), "0 or more"),
        (
            "sim.prefill_us_per_token_per_kilotoken",
            not_negative(sim.prefill_us_per_token_per_kilotoken),
            "0 or more",
        ),
        ("sim.decode_us_per_token", not_negative(sim.decode_us_per_token), "0 or more"),
        ("sim.forward_us", not_negative(sim.forward_us), "0 or more"),
        ("sim.restore_us_per_kilotoken", not_negative(sim.restore_us_per_kilotoken), "0 or more"),
        ("sim.state_bytes_per_token", (1..=1 << 24).contains(&sim.state_bytes_per_token), "1 to 16777216"),
        ("ui.max_fps", (1..=240).contains(&ui.max_fps), "1 to 240"),
    ];
    match rules.iter().find(|(_, holds, _)| !holds) {
        None => Ok(()),
        Some((key, _, allowed)) => Err(ConfigError {
            origin: origin.to_owned(),
            problem: format!("`{key}` is out of range"),
            remedy: format!("allowed is {allowed}; {}", default_of(key)),
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::config::{ClockKind, DeviceKind, IdleWord};
    use crate::session::ReplayMode;

    fn set(arguments: &[&str]) -> Result<Config, ConfigError> {
        let overrides: Vec<_> = arguments.iter().map(|a| Override::parse(a)).collect::<Result<_, _>>()?;
        load(None, &overrides)
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn nothing_given_means_the_defaults() {
        assert_eq!(load(None, &[]).unwrap(), Config::default());
    }

    #[test]
    fn values_are_toml_or_plain_words() {
        let config = set(&[
            "model.device=sim",
            "model.path=models/a b.gguf",
            "cache.block_tokens=128",
            "replay.idle=zero",
            "replay.mode=\"live\"",
            "sampling.temperature=0.7",
        ])
        .unwrap();
        assert_eq!(config.model.device, DeviceKind::Sim);
        assert_eq!(config.model.path.as_deref(), Some(Path::new("models/a b.gguf")));
        assert_eq!(config.cache.block_tokens, 128);
        assert_eq!(config.replay.idle, IdleConfig::Word(IdleWord::Zero));
        assert_eq!(config.replay.mode, ReplayMode::Live);
        assert_eq!(config.sampling.temperature, 0.7);
        assert_eq!(set(&["replay.idle=2.5"]).unwrap().replay.idle, IdleConfig::Seconds(2.5));
        assert_eq!(set(&["replay.idle=2"]).unwrap().replay.idle, IdleConfig::Seconds(2.0));
    }

    #[test]
    fn an_override_wins_over_the_file_and_the_last_one_wins() {
        let file = file("[cache]\nblock_tokens = 64\n[replay]\nclock = \"wall\"\n");
        let overrides = [
            Override::new("--a", "cache.block_tokens", 128),
            Override::new("--b", "cache.block_tokens", 192),
        ];
        let config = load(Some(file.path()), &overrides).unwrap();
        assert_eq!((config.cache.block_tokens, config.replay.clock), (192, ClockKind::Wall));
    }

    #[test]
    fn unknown_keys_suggest_the_nearest() {
        for (argument, suggestion) in [
            ("cache.blok_tokens=1", "`cache.block_tokens`"),
            ("block_tokens=1", "`cache.block_tokens`"),
            ("model.block_tokens=1", "`cache.block_tokens`"),
            ("model.pth=x", "`model.path`"),
        ] {
            let error = set(&[argument]).unwrap_err();
            assert!(error.remedy.contains(suggestion), "{argument}: {error}");
        }
        let keys_of = |argument| set(&[argument]).unwrap_err().remedy;
        assert_eq!(keys_of("cache.xyz=1"), "the keys are cache.block_tokens, cache.enabled, cache.ram_bytes");
        assert!(keys_of("frobnicate=1").contains("model.path, "));
        assert!(set(&["cache.block_tokens"]).unwrap_err().problem.contains('='));
    }

    #[test]
    fn a_bad_value_names_option_key_and_default() {
        let error = set(&["cache.block_tokens=many"]).unwrap_err().to_string();
        assert!(
            error.starts_with("--set cache.block_tokens=many: `cache.block_tokens`: invalid type"),
            "{error}"
        );
        assert!(error.ends_with("the default is `256`"), "{error}");
        let error = set(&["replay.idle=never"]).unwrap_err().to_string();
        assert!(error.contains("`recorded`, `zero`, or seconds"), "{error}");
        for argument in
            ["cache.block_tokens=100", "replay.idle=-1", "sampling.top_p=0", "replay.idle_scale=nan"]
        {
            let error = set(&[argument]).unwrap_err().to_string();
            assert!(error.contains("out of range"), "{error}");
        }
    }

    #[test]
    fn file_errors_name_the_line() {
        for (text, line, words) in [
            ("[cache]\nenabled = true\nblock_tokns = 1\n", 3, "`cache.block_tokens`"),
            ("[cache]\nblock_tokens = \"x\"\n", 2, "invalid type"),
            ("[cache\n", 1, "TOML"),
            ("block_tokens = 256\n", 1, "`cache.block_tokens`"),
            ("[model]\n[cach]\n", 2, "unknown key `cach`"),
        ] {
            let file = file(text);
            let error = load(Some(file.path()), &[]).unwrap_err().to_string();
            let at = format!("{}:{line}: ", file.path().display());
            assert!(error.starts_with(&at) && error.contains(words), "{error}");
        }
        let error = load(Some(Path::new("/nonexistent/escarp.toml")), &[]).unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent/escarp.toml: "), "{error}");
        let error = load(Some(file("[cache]\nblock_tokens = 1\n").path()), &[]).unwrap_err().to_string();
        assert!(error.contains("out of range"), "{error}");
    }
}
