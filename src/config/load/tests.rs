//! What a configuration makes of files and options, and what it refuses.

use std::io::Write;

use super::*;
use crate::config::{
    ClockKind, ControllerKind, DeviceSetting, DrafterKind, IdleConfig, IdleWord, TransportPolicy,
};
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
    let overrides =
        [Override::new("--a", "cache.block_tokens", 128), Override::new("--b", "cache.block_tokens", 192)];
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
        "speculation.drafter",
        "speculation.depth",
    ] {
        assert!(may_set(key), "{key}");
    }
    for (scorer, allowed) in [("self:4", true), ("self:0", false), ("talus", false), ("/etc/passwd", false)] {
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
    for argument in ["cache.block_tokens=100", "replay.idle=-1", "sampling.top_p=0", "replay.idle_scale=nan"]
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
    for (argument, allowed) in [("mlx.memory_limit=48", "at least 64MiB"), ("mlx.wired_limit=0", "above 0")] {
        let error = set(&[argument]).unwrap_err().to_string();
        assert!(error.ends_with(&format!("allowed is {allowed}; leave it out for the default")), "{error}");
    }
    let error = set(&["mlx.memory_limit=much"]).unwrap_err().to_string();
    assert!(error.contains("\"4GiB\"") && error.ends_with("leave it out for the default"), "{error}");
    assert!(set(&["mlx.memory_limits=1GiB"]).unwrap_err().remedy.contains("`mlx.memory_limit`"));
}

#[test]
fn sections_of_transports_lie_over_those_that_come_with_the_program() {
    let says = |enabled: Option<bool>, keep: Option<f64>, threshold: Option<u64>| {
        Some(TransportPolicy { enabled, keep, threshold, ..TransportPolicy::default() })
    };
    let names = |config: &Config| config.policy.names().map(str::to_owned).collect::<Vec<_>>();
    let none = load(None, &[]).unwrap();
    assert_eq!(names(&none), ["agent", "long-context"]);
    assert_eq!(none.policy.get("agent"), says(Some(false), None, None));
    assert_eq!(none.policy.get("long-context"), says(None, None, None));
    let file = file("[policy.agent]\nkeep = 0.5\n[policy.mine]\n[policy]\nother.threshold = 7\n");
    let overrides = ["policy.mine.threshold=9", "policy.mine.enabled=true", "policy.long-context.keep=1.0"];
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
            "the keys are policy.agent.controller, policy.agent.depth, policy.agent.drafter, policy.agent.enabled, policy.agent.keep, \
             policy.agent.threshold",
        ),
        ("policy.agent=1", "unknown key `policy.agent`"),
        ("policy.a.b.keep=0.5", "unknown key `policy.a.b.keep`"),
        ("policy.Agent.keep=0.5", "lower-case letters"),
        (
            "policy.agent.keep=2",
            "`policy.agent.keep` is 2, which is out of range; allowed is a fraction above 0, up to 1",
        ),
        ("policy.mine.threshold=99999999999", "`policy.mine.threshold` is 99999999999"),
        ("policy.mine.depth=17", "`policy.mine.depth` is 17, which is out of range; allowed is 1 to 16"),
        ("policy.agent.drafter=n-gram", "unknown variant `n-gram`"),
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
    let most = ["specprefill.keep=1", "specprefill.pool=1", "specprefill.unit=1", "specprefill.threshold=0"];
    assert_eq!(set(&most).unwrap().specprefill.says().keep, Some(1.0));
}

#[test]
fn knobs_of_speculation_have_their_ranges() {
    for (argument, allowed) in [
        ("speculation.depth=0", "1 to 16; leave it out for the default"),
        ("speculation.depth=17", "1 to 16; leave it out for the default"),
        ("speculation.ngram_tokens=0", "1 to 16; the default is `3`"),
        ("speculation.ngram_tokens=17", "1 to 16; the default is `3`"),
        ("speculation.ram_bytes=1000", "at least 1MiB"),
    ] {
        let error = set(&[argument]).unwrap_err().to_string();
        let key = argument.split('=').next().unwrap();
        assert!(error.contains(&format!("`{key}` is ")) && error.contains(allowed), "{error}");
    }
    for argument in ["speculation.drafter=mpt", "speculation.controller=best", "speculation.depth=-1"] {
        set(&[argument]).unwrap_err();
    }
    let says = set(&["speculation.drafter=ngram", "speculation.depth=16", "speculation.controller=fixed"]);
    let says = says.unwrap().speculation.says();
    assert_eq!(
        (says.drafter, says.depth, says.controller),
        (Some(DrafterKind::Ngram), Some(16), Some(ControllerKind::Fixed))
    );
    let policy = set(&["policy.agent.drafter=mtp", "policy.agent.depth=2"]).unwrap().policy.get("agent");
    let policy = policy.unwrap();
    assert_eq!(
        (policy.enabled, policy.drafter, policy.depth),
        (Some(false), Some(DrafterKind::Mtp), Some(2))
    );
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
