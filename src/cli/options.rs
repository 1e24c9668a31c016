//! Options that several commands share. Each is sugar for a configuration key.

use std::path::PathBuf;

use clap::ValueHint;

use super::{Failure, logging};
use crate::compare::LaneSpec;
use crate::config::{self, Config, ConfigError, Override};
use crate::ledger::Breakpoint;
use crate::model;
use crate::session::{self, Session};

/// Options of every command that loads a model.
#[derive(Debug, Default, clap::Args)]
pub(super) struct ModelOptions {
    /// A bundled model's name (write `./scarp` for a folder called so), a GGUF file, or a folder with config.json and
    /// safetensors [env: ESCARP_MODEL]
    /// [default: scarp]
    #[arg(long, value_name = "NAME|PATH", value_hint = ValueHint::AnyPath)]
    model: Option<PathBuf>,
    /// Where the model runs; `sim` runs a pseudo-model on a cost model [default: mlx on macOS, else cpu]
    #[arg(long, value_parser = ["cpu", "mlx", "sim"], value_name = "DEVICE")]
    device: Option<String>,
    /// A configuration file (TOML)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Set one configuration key, for example `cache.block_tokens=128`; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Write a log to FILE (filter: RUST_LOG)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) log: Option<PathBuf>,
}

impl ModelOptions {
    /// The configuration these options and `sugar`, which wins, add up to. Where neither they nor the environment name a model, it
    /// is the bundled one.
    pub(super) fn config(&self, sugar: impl IntoIterator<Item = Override>) -> Result<Config, Failure> {
        self.config_over(&[], sugar)
    }

    /// The same over `base`, a session's own settings.
    pub(super) fn config_over(
        &self,
        base: &[Override],
        sugar: impl IntoIterator<Item = Override>,
    ) -> Result<Config, Failure> {
        let mut config = self.settings_over(base, sugar)?;
        if config.model.path.is_none() {
            let named = std::env::var_os("ESCARP_MODEL").filter(|name| !name.is_empty());
            config.model.path = Some(named.map_or_else(|| model::TARGET.into(), PathBuf::from));
        }
        Ok(config)
    }

    /// The configuration for work that needs no model.
    pub(super) fn settings(&self) -> Result<Config, Failure> {
        self.settings_over(&[], [])
    }

    fn settings_over(
        &self,
        base: &[Override],
        sugar: impl IntoIterator<Item = Override>,
    ) -> Result<Config, Failure> {
        let mut overrides = self.set.iter().map(|s| Override::parse(s)).collect::<Result<Vec<_>, _>>()?;
        if let Some(path) = &self.model {
            overrides.push(Override::new("--model", "model.path", path_text("--model", path)?));
        }
        if let Some(device) = &self.device {
            overrides.push(Override::new("--device", "model.device", device.as_str()));
        }
        overrides.extend(sugar);
        Ok(config::load_over(base, self.config.as_deref(), &overrides)?)
    }

    /// Starts the log of a command without a terminal interface.
    pub(super) fn start_log(&self) -> Result<(), Failure> {
        logging::start(self.log.as_deref(), None)
    }
}

/// A configuration is text, so a path in it must be too.
fn path_text(option: &str, path: &std::path::Path) -> Result<String, ConfigError> {
    path.to_str().map(str::to_owned).ok_or_else(|| ConfigError {
        origin: option.to_owned(),
        problem: format!("`{}` is not UTF-8", path.display()),
        remedy: "rename the file".to_owned(),
    })
}

/// How a model is computed, for commands that measure that.
#[derive(Debug, Default, clap::Args)]
pub(super) struct ArithmeticOptions {
    /// Threads; 0 means one a core [default: 0]
    #[arg(long, value_name = "N")]
    threads: Option<u16>,
    /// Precision of the linear layers [default: int8 on cpu, the file's floats on mlx]
    #[arg(long, value_parser = ["f32", "int8"], value_name = "PRECISION")]
    precision: Option<String>,
}

impl ArithmeticOptions {
    /// The settings these are sugar for.
    pub(super) fn sugar(&self) -> impl Iterator<Item = Override> {
        let threads = self.threads.map(|n| Override::new("--threads", "model.threads", i64::from(n)));
        let precision = self.precision.as_deref().map(|p| Override::new("--precision", "model.precision", p));
        threads.into_iter().chain(precision)
    }
}

/// What is replayed where nothing else is asked for.
const DEFAULT_SESSION: &str = "steady";

/// Options of every command that replays a session.
#[derive(Debug, Default, clap::Args)]
pub(super) struct ReplayOptions {
    /// A bundled session's name, or a session file; given again, `replay` and `tui` open a lane on each, with the first one's settings
    #[arg(long, value_name = "NAME|FILE", default_value = DEFAULT_SESSION, value_hint = ValueHint::FilePath)]
    session: Vec<String>,
    /// Which clock the engine keeps: real time, or compute time with idle gaps passing at once [default: virtual]
    #[arg(long, value_parser = ["wall", "virtual"], value_name = "CLOCK")]
    clock: Option<String>,
    /// Which replies become history: the session's or the model's [default: recorded]
    #[arg(long, value_parser = ["recorded", "live"], value_name = "MODE")]
    mode: Option<String>,
    /// Idle gap before each request: `recorded`, `zero`, or seconds [default: recorded]
    #[arg(long, value_name = "GAP")]
    idle: Option<String>,
    /// Reply tokens where a request does not say [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_output_tokens: Option<u32>,
    /// Keep blocks and snapshots in DIR too: beyond RAM, and for later runs [default: none are kept]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    cache_dir: Option<PathBuf>,
    /// Pause where a condition holds for a request, for example `suffix>4000`, `cliff`, `cause=tools`, `debt>8000`; may be repeated
    #[arg(long = "break", value_name = "CONDITION")]
    pub(super) breakpoints: Vec<Breakpoint>,
    /// Write the run's events to FILE, which `inspect` and `tui --recording` read
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) record: Option<PathBuf>,
    #[command(flatten)]
    pub(super) model: ModelOptions,
}

impl ReplayOptions {
    /// The session, and the configuration that its settings, these options and `model`'s add up to.
    pub(super) fn open(&self) -> Result<(Session, Config), Failure> {
        let session = session::open(self.session())?;
        let config = self.config(&session, &[])?;
        session.check_transports(self.session(), &config)?;
        Ok((session, config))
    }

    fn session(&self) -> &str {
        self.session.first().map_or(DEFAULT_SESSION, |session| session)
    }

    /// The sessions behind the first. They run with the first one's settings, so that theirs are not in effect is said in the log.
    pub(super) fn open_others(&self, config: &Config) -> Result<Vec<Session>, Failure> {
        let open = |name: &String| -> Result<Session, Failure> {
            let session = session::open(name)?;
            session.check_transports(name, config)?;
            for set in session.settings.iter().filter(|set| !config.has(&set.key, &set.value)) {
                tracing::warn!(session = name, setting = %set, "a further session's setting is not in effect");
            }
            Ok(session)
        };
        self.session.iter().skip(1).map(open).collect()
    }

    /// Refuses several sessions, for a command that runs one.
    pub(super) fn refuse_others(&self, command: &str) -> Result<(), Failure> {
        match self.session.len() {
            0 | 1 => Ok(()),
            many => Err(Failure::input(format_args!(
                "--session: {command} runs one session and was given {many}; give one, or use `replay`"
            ))),
        }
    }

    /// The session, and a configuration a lane: what [`ReplayOptions::open`] gives, with the lane's own settings over it.
    pub(super) fn open_lanes(&self, lanes: &[LaneSpec]) -> Result<(Session, Vec<(String, Config)>), Failure> {
        let session = session::open(self.session())?;
        let config = |lane: &LaneSpec| -> Result<(String, Config), Failure> {
            let config = self.config(&session, &lane.overrides)?;
            session.check_transports(self.session(), &config)?;
            Ok((lane.name.clone(), lane.finish(config)))
        };
        let configs = lanes.iter().map(config).collect::<Result<_, _>>()?;
        Ok((session, configs))
    }

    /// The configuration of these options, with `further` over it.
    fn config(&self, session: &Session, further: &[Override]) -> Result<Config, Failure> {
        let word = |option: &str, key: &str, value: &Option<String>| {
            value.as_deref().map(|word| Override::new(option, key, word))
        };
        let idle = self.idle.as_deref().map(|gap| match gap.parse::<f64>() {
            Ok(seconds) => Override::new("--idle", "replay.idle", seconds),
            Err(_) => Override::new("--idle", "replay.idle", gap),
        });
        let budget = self
            .max_output_tokens
            .map(|n| Override::new("--max-output-tokens", "replay.max_output_tokens", i64::from(n)));
        let dir = self.cache_dir.as_deref().map(|dir| path_text("--cache-dir", dir)).transpose()?;
        let sugar = [
            dir.map(|dir| Override::new("--cache-dir", "cache.dir", dir)),
            word("--clock", "replay.clock", &self.clock),
            word("--mode", "replay.mode", &self.mode),
            idle,
            budget,
        ];
        let sugar = sugar.into_iter().flatten().chain(further.iter().cloned());
        self.model.config_over(&session.overrides(self.session()), sugar)
    }
}
