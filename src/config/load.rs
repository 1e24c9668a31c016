//! From a file and overrides to a checked [`Config`].

use std::fs::File;
use std::io::Read;
use std::path::Path;

use toml::de::DeTable;
use toml::{Table, Value};

use super::check::{Refused, check};
use super::suggest::nearest;
use super::{Config, ScorerChoice};

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
        _ => ["cache", "scheduler", "specprefill", "sampling", "replay"].contains(&section_of(key)),
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
    let mut keys: Vec<String> =
        ["enabled", "keep", "threshold"].map(|name| format!("{EVERY_TRANSPORT}.{name}")).into();
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
mod tests {
    use std::io::Write;

    use super::*;
    use crate::config::{ClockKind, DeviceSetting, IdleConfig, IdleWord, SparseOverride};
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
        assert_eq!(config.model.device, DeviceSetting::Sim);
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
    fn a_sessions_settings_lie_between_the_defaults_and_a_file() {
        let base = [
            Override::new("session", "cache.block_tokens", 64),
            Override::new("session", "cache.ram_bytes", "1GiB"),
            Override::new("session", "replay.idle", 2),
        ];
        let file = file("[cache]\nblock_tokens = 128\nram_bytes = \"2GiB\"\n");
        let option = Override::parse("cache.ram_bytes=3GiB").unwrap();
        let config = load_over(&base, Some(file.path()), &[option]).unwrap();
        assert_eq!((config.cache.block_tokens, config.cache.ram_bytes), (128, 3 << 30));
        assert_eq!(config.replay.idle, IdleConfig::Seconds(2.0));
        let has = |key: &str, value: &str| config.has(key, &Value::String(value.to_owned()));
        assert!(has("cache.ram_bytes", "3GiB") && has("cache.ram_bytes", "3072MiB"));
        assert!(!has("cache.ram_bytes", "1GiB") && !has("cache.ram_byte", "3GiB"));
        let error = load_over(&[Override::new("s: `set`", "cache.block_tokens", 1)], None, &[]).unwrap_err();
        assert!(error.to_string().starts_with("s: `set`: `cache.block_tokens` is 1"), "{error}");
    }

    #[test]
    fn a_session_sets_neither_model_nor_device_nor_folders() {
        let may_set = |key: &str| session_may_set(key, &Value::String("draft".to_owned()));
        for key in [
            "cache.ram_bytes",
            "scheduler.max_sequences",
            "sampling.seed",
            "replay.clock",
            "specprefill.keep",
            "specprefill.scorer",
        ] {
            assert!(may_set(key), "{key}");
        }
        for (scorer, allowed) in
            [("self:4", true), ("self:0", false), ("talus", false), ("/etc/passwd", false)]
        {
            let value = Value::String(scorer.to_owned());
            assert_eq!(session_may_set("specprefill.scorer", &value), allowed, "{scorer}");
        }
        for key in [
            "model.path",
            "model.draft",
            "model.device",
            "cache.dir",
            "policy.agent.enabled",
            "sim.seed",
            "mlx.memory_limit",
            "ui.theme",
            "cache",
        ] {
            assert!(!may_set(key), "{key}");
        }
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
        assert_eq!(
            keys_of("cache.xyz=1"),
            "the keys are cache.block_tokens, cache.dir, cache.enabled, cache.hybrid_block_tokens, \
             cache.max_snapshots, cache.placeholder_policy, cache.ram_bytes, cache.snapshot_policy, cache.ssd_bytes, cache.ssd_wait_s"
        );
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
    fn limits_of_mlx_are_absent_or_sizes() {
        let none = load(None, &[]).unwrap().mlx;
        assert_eq!((none.memory_limit, none.cache_limit, none.wired_limit), (None, None, None));
        let set_all = ["mlx.memory_limit=48GiB", "mlx.cache_limit=0", "mlx.wired_limit=1000000"];
        let mlx = set(&set_all).unwrap().mlx;
        assert_eq!(
            (mlx.memory_limit, mlx.cache_limit, mlx.wired_limit),
            (Some(48 << 30), Some(0), Some(1_000_000))
        );
        for (argument, allowed) in
            [("mlx.memory_limit=48", "at least 64MiB"), ("mlx.wired_limit=0", "above 0")]
        {
            let error = set(&[argument]).unwrap_err().to_string();
            assert!(
                error.ends_with(&format!("allowed is {allowed}; leave it out for the default")),
                "{error}"
            );
        }
        let error = set(&["mlx.memory_limit=much"]).unwrap_err().to_string();
        assert!(error.contains("\"4GiB\"") && error.ends_with("leave it out for the default"), "{error}");
        assert!(set(&["mlx.memory_limits=1GiB"]).unwrap_err().remedy.contains("`mlx.memory_limit`"));
    }

    #[test]
    fn sections_of_transports_lie_over_those_that_come_with_the_program() {
        let says = |enabled: Option<bool>, keep: Option<f64>, threshold: Option<u64>| {
            Some(SparseOverride { enabled, keep, threshold })
        };
        let names = |config: &Config| config.policy.names().map(str::to_owned).collect::<Vec<_>>();
        let none = load(None, &[]).unwrap();
        assert_eq!(names(&none), ["agent", "long-context"]);
        assert_eq!(none.policy.get("agent"), says(Some(false), None, None));
        assert_eq!(none.policy.get("long-context"), says(None, None, None));
        let file = file("[policy.agent]\nkeep = 0.5\n[policy.mine]\n[policy]\nother.threshold = 7\n");
        let overrides =
            ["policy.mine.threshold=9", "policy.mine.enabled=true", "policy.long-context.keep=1.0"];
        let overrides = overrides.map(|argument| Override::parse(argument).unwrap());
        let config = load(Some(file.path()), &overrides).unwrap();
        assert_eq!(names(&config), ["agent", "long-context", "mine", "other"]);
        assert_eq!(config.policy.get("agent"), says(Some(false), Some(0.5), None));
        assert_eq!(config.policy.get("mine"), says(Some(true), None, Some(9)));
        assert_eq!(config.policy.get("other"), says(None, None, Some(7)));
        let dotted = self::file("[policy.\"a.b\"]\nkeep = 0.5\n");
        let refused = load(Some(dotted.path()), &[]).unwrap_err().to_string();
        assert!(refused.contains("a.b") && refused.contains("letters"), "{refused}");
        let empty = Override::new("--x", "policy.new", Table::new());
        assert_eq!(load(None, &[empty]).unwrap().policy.get("new"), says(None, None, None));
        assert_eq!(load(None, &[]).unwrap().policy.get("new"), None);
    }

    #[test]
    fn what_is_wrong_with_a_transport_is_told_by_its_own_key() {
        for (argument, words) in [
            ("policy.agent.kep=0.5", "unknown key `policy.agent.kep`; did you mean `policy.agent.keep`?"),
            (
                "policy.agent.xyz=0.5",
                "the keys are policy.agent.enabled, policy.agent.keep, policy.agent.threshold",
            ),
            ("policy.agent=1", "unknown key `policy.agent`"),
            ("policy.a.b.keep=0.5", "unknown key `policy.a.b.keep`"),
            ("policy.Agent.keep=0.5", "lower-case letters"),
            (
                "policy.agent.keep=2",
                "`policy.agent.keep` is 2, which is out of range; allowed is a fraction above 0, up to 1",
            ),
            ("policy.mine.threshold=99999999999", "`policy.mine.threshold` is 99999999999"),
            ("policy.agent.enabled=3", "expected a boolean; the default is `false`"),
        ] {
            let error = set(&[argument]).unwrap_err().to_string();
            assert!(error.contains(words), "{argument}: {error}");
        }
        let file = file("[policy.agent]\nenabled = true\nkep = 0.5\n");
        let error = load(Some(file.path()), &[]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}:3: unknown key", file.path().display())), "{error}");
    }

    #[test]
    fn knobs_of_sparse_prefill_have_their_ranges() {
        for argument in [
            "specprefill.keep=0",
            "specprefill.keep=1.01",
            "specprefill.keep=nan",
            "specprefill.threshold=99999999999",
            "specprefill.lookahead=0",
            "specprefill.pool=12",
            "specprefill.pool=0",
            "specprefill.unit=0",
            "specprefill.tail_tokens=99999999",
        ] {
            let error = set(&[argument]).unwrap_err().to_string();
            let key = argument.split('=').next().unwrap();
            assert!(error.contains(&format!("`{key}` is ")) && error.contains("out of range"), "{error}");
        }
        for argument in [
            "specprefill.scorer=self:0",
            "specprefill.scorer=self:x",
            "specprefill.scorer=\"\"",
            "specprefill.threshold=-1",
            "specprefill.aggregation=median",
            "model.draft=\"\"",
        ] {
            set(&[argument]).unwrap_err();
        }
        let most =
            ["specprefill.keep=1", "specprefill.pool=1", "specprefill.unit=1", "specprefill.threshold=0"];
        assert_eq!(set(&most).unwrap().specprefill.says().keep, Some(1.0));
    }

    #[test]
    fn file_errors_name_the_line() {
        for (text, line, words) in [
            ("[cache]\nenabled = true\nblock_tokns = 1\n", 3, "`cache.block_tokens`"),
            ("[cache]\nblock_tokens = \"x\"\n", 2, "invalid type"),
            ("[cache\n", 1, "TOML"),
            ("block_tokens = 256\n", 1, "`cache.block_tokens`"),
            ("[model]\n[cach]\n", 2, "unknown section `cach`"),
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
