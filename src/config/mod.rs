//! Configuration: typed TOML, one source of defaults, `--set section.key=value` on top.
//!
//! [`load()`] puts a file over the defaults and overrides over both, and refuses what it does not know or what makes no
//! sense, naming file, line, key and remedy. [`DEFAULTS`] is the file that says the same as no file at all.

mod bytes;
mod check;
mod load;
mod policy;
mod recovery;
mod sparse;
mod speculation;
pub mod suggest;
mod transport;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::decode::Sampling;
use crate::session::ReplayMode;
pub use load::{ConfigError, Override, load, load_over, session_may_set};
pub use policy::{PlaceholderPolicy, SnapshotPolicy};
pub use recovery::{AdoptionRule, RecoveryConfig, RecoveryPolicy};
pub use sparse::{Aggregation, QuerySource, ScorerChoice, SparseLeaves, SparseOverride, SpecPrefillConfig};
pub use speculation::{ControllerKind, DrafterKind, SpeculationConfig, SpeculationOverride, drafters_wanted};
pub use transport::{MAX_TRANSPORT_CHARS, TransportPolicy, Transports, is_transport_name};

/// A configuration file with every key, its default and what it means.
pub const DEFAULTS: &str = include_str!("../../configs/default.toml");

/// The whole configuration. Every key has a default; an unknown key is an error.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Which model, on which device.
    pub model: ModelConfig,
    /// The prefix cache.
    pub cache: CacheConfig,
    /// Sparse prefill.
    pub specprefill: SpecPrefillConfig,
    /// Speculative decoding.
    pub speculation: SpeculationConfig,
    /// Background recovery.
    pub recovery: RecoveryConfig,
    /// Defaults of transports.
    pub policy: Transports,
    /// The scheduler.
    pub scheduler: SchedulerConfig,
    /// How a session is replayed.
    pub replay: ReplayConfig,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// The cost model of the `sim` device.
    pub sim: SimConfig,
    /// The `mlx` device.
    pub mlx: MlxConfig,
    /// The interface.
    pub ui: UiConfig,
}

/// `[model]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelConfig {
    /// A GGUF file, or a folder with `config.json` and `model.safetensors`. Empty on `sim`.
    pub path: Option<PathBuf>,
    /// A smaller model with the same tokenizer, for scoring and for drafting. Without one: the bundled draft, for the bundled model.
    pub draft: Option<PathBuf>,
    /// Precision of the linear layers.
    pub precision: PrecisionSetting,
    /// Where it runs.
    pub device: DeviceSetting,
    /// Threads; 0 means one a core.
    pub threads: usize,
}

impl Default for ModelConfig {
    fn default() -> ModelConfig {
        ModelConfig {
            path: None,
            draft: None,
            precision: PrecisionSetting::Auto,
            device: DeviceSetting::Auto,
            threads: 0,
        }
    }
}

/// `model.precision`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrecisionSetting {
    /// What the device is made for: `int8` on `cpu`, the floats of the file on `mlx`.
    Auto,
    /// See [`Precision::Int8`].
    Int8,
    /// See [`Precision::F32`].
    F32,
}

impl PrecisionSetting {
    /// On the `cpu` device.
    pub fn on_cpu(self) -> Precision {
        match self {
            PrecisionSetting::Auto | PrecisionSetting::Int8 => Precision::Int8,
            PrecisionSetting::F32 => Precision::F32,
        }
    }
}

impl From<Precision> for PrecisionSetting {
    fn from(precision: Precision) -> PrecisionSetting {
        match precision {
            Precision::Int8 => PrecisionSetting::Int8,
            Precision::F32 => PrecisionSetting::F32,
        }
    }
}

/// Precision of linear layers on the `cpu` device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// Weights as the file quantises them, activations in i16.
    Int8,
    /// Everything in f32, for parity with reference implementations.
    F32,
}

/// `model.device`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceSetting {
    /// `mlx` on macOS, `cpu` elsewhere.
    Auto,
    /// See [`DeviceKind::Cpu`].
    Cpu,
    /// See [`DeviceKind::Mlx`].
    Mlx,
    /// See [`DeviceKind::Sim`].
    Sim,
}

impl DeviceSetting {
    /// The device meant.
    pub fn kind(self) -> DeviceKind {
        match self {
            DeviceSetting::Auto if cfg!(target_os = "macos") => DeviceKind::Mlx,
            DeviceSetting::Auto | DeviceSetting::Cpu => DeviceKind::Cpu,
            DeviceSetting::Mlx => DeviceKind::Mlx,
            DeviceSetting::Sim => DeviceKind::Sim,
        }
    }
}

/// A device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// Own kernels.
    Cpu,
    /// Apple's MLX.
    Mlx,
    /// No arithmetic: a pseudo-model and a cost model.
    Sim,
}

/// `[cache]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CacheConfig {
    /// Whether the prefix cache is used.
    pub enabled: bool,
    /// Tokens a block holds; a multiple of 64.
    pub block_tokens: usize,
    /// The same for models with recurrent layers, where that is more: fewer boundaries need fewer snapshots. 0 means as
    /// `block_tokens`.
    pub hybrid_block_tokens: usize,
    /// At which block boundaries the state of recurrent layers is captured.
    pub snapshot_policy: SnapshotPolicy,
    /// What becomes of a match whose last block holds a placeholder.
    pub placeholder_policy: PlaceholderPolicy,
    /// Upper bound of state in RAM, running requests included, bytes; `"4GiB"` in a file.
    #[serde(deserialize_with = "bytes::deserialize")]
    pub ram_bytes: u64,
    /// Upper bound of snapshots held at once; without one, what `ram_bytes` has room for.
    pub max_snapshots: Option<usize>,
    /// Folder of the SSD tier; without one there is none.
    pub dir: Option<PathBuf>,
    /// Upper bound of the folder's files, bytes.
    #[serde(deserialize_with = "bytes::deserialize")]
    pub ssd_bytes: u64,
    /// Seconds that a restore waits for the disk before it goes on without.
    pub ssd_wait_s: f64,
}

impl CacheConfig {
    /// Tokens a block holds, for a model with or without recurrent layers.
    pub fn block_tokens_for(&self, recurrent: bool) -> usize {
        if recurrent { self.block_tokens.max(self.hybrid_block_tokens) } else { self.block_tokens }
    }
}

impl Default for CacheConfig {
    fn default() -> CacheConfig {
        CacheConfig {
            enabled: true,
            block_tokens: 256,
            hybrid_block_tokens: 0,
            snapshot_policy: SnapshotPolicy::EVERY,
            placeholder_policy: PlaceholderPolicy::WalkBack,
            ram_bytes: 4 << 30,
            max_snapshots: None,
            dir: None,
            ssd_bytes: 16 << 30,
            ssd_wait_s: 10.0,
        }
    }
}

/// `[scheduler]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SchedulerConfig {
    /// Sequences that run at once.
    pub max_sequences: usize,
    /// Tokens of a prefill chunk.
    pub chunk_tokens: usize,
    /// Tokens of a step, over all sequences: those that decode come first, and chunks of prefills, oldest first, share what is left. Without it a step
    /// is a chunk of the oldest prefill beside everything that decodes.
    pub step_tokens: Option<usize>,
}

impl Default for SchedulerConfig {
    fn default() -> SchedulerConfig {
        SchedulerConfig { max_sequences: 4, chunk_tokens: 256, step_tokens: None }
    }
}

/// The clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClockKind {
    /// Time passes by itself.
    Wall,
    /// Compute takes as long as it was measured (or, on `sim`, modelled); idle gaps pass at once.
    Virtual,
}

/// Which idle gap precedes a request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected `recorded`, `zero`, or seconds")]
pub enum IdleConfig {
    /// The same for every request, seconds.
    Seconds(f64),
    /// `recorded` or `zero`.
    Word(IdleWord),
}

/// See [`IdleConfig::Word`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdleWord {
    /// As the session says.
    Recorded,
    /// None.
    Zero,
}

/// `[replay]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReplayConfig {
    /// Which replies become history.
    pub mode: ReplayMode,
    /// Which idle gaps are kept.
    pub idle: IdleConfig,
    /// Factor on the gaps.
    pub idle_scale: f64,
    /// The longest gap, after the factor, seconds. Without it, none is cut.
    pub idle_cap_s: Option<f64>,
    /// Reply tokens where the request does not say.
    pub max_output_tokens: u64,
    /// The clock.
    pub clock: ClockKind,
    /// Whether the logits that each reply begins with are told, for comparing runs.
    pub tell_logits: bool,
}

impl Default for ReplayConfig {
    fn default() -> ReplayConfig {
        ReplayConfig {
            mode: ReplayMode::Recorded,
            idle: IdleConfig::Word(IdleWord::Recorded),
            idle_scale: 1.0,
            idle_cap_s: None,
            max_output_tokens: 64,
            clock: ClockKind::Virtual,
            tell_logits: false,
        }
    }
}

/// `[sim]`: a linear cost model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SimConfig {
    /// Tokens the context holds.
    pub context_tokens: usize,
    /// Prefill time of one token at depth 0, microseconds.
    pub prefill_us_per_token: f64,
    /// What each thousand tokens of depth adds to that, microseconds.
    pub prefill_us_per_token_per_kilotoken: f64,
    /// Decode time of one token at depth 0, microseconds.
    pub decode_us_per_token: f64,
    /// What each further token of a verify forward costs, microseconds: one of 2 to 64 tokens whose logits are all asked for.
    pub verify_us_per_token: f64,
    /// Fixed time of one forward, microseconds.
    pub forward_us: f64,
    /// Time to restore a thousand tokens, microseconds.
    pub restore_us_per_kilotoken: f64,
    /// Bytes of state a token has; `"64KiB"` in a file.
    #[serde(deserialize_with = "bytes::deserialize")]
    pub state_bytes_per_token: usize,
    /// Bytes of a snapshot of all recurrent layers' state; 0 means that there are none. `"150MiB"` in a file.
    #[serde(deserialize_with = "bytes::deserialize")]
    pub snapshot_bytes: usize,
    /// Prefill time of one token on the pseudo-scorer, microseconds.
    pub scorer_us_per_token: f64,
    /// Decode time of one token on the pseudo-scorer, microseconds.
    pub scorer_decode_us_per_token: f64,
    /// Bytes of state a token has on the pseudo-scorer; `"12KiB"` in a file.
    #[serde(deserialize_with = "bytes::deserialize")]
    pub scorer_state_bytes_per_token: usize,
    /// How often a drafter agrees with the pseudo-model on the next token, from 0 to 1: its prediction head, and the pseudo-draft model.
    pub acceptance: f64,
    /// Time of the pseudo-model's prediction head for one token, microseconds.
    pub head_us_per_token: f64,
    /// Changes the pseudo-model's replies.
    pub seed: u64,
}

impl Default for SimConfig {
    // Dense prefill of the study's 27B hybrid: 3.83 ms a token at depth 0, +0.033 ms for each thousand tokens of depth; 27.7 ms
    // to restore 12,288 tokens; 64 KiB of key/value state a token. Its scorer, a 0.8B hybrid: 3.6 s for a window of 24,954 tokens, and
    // 12 KiB a token (Oliver Yu, EXP-003, CC BY 4.0; derived). The scorer's decode is nowhere told: it is to the target's as their prefills.
    // A dense step of 39.2 ms and a cycle of 53.7 ms at a mean depth of 1.9 (EXP-002; derived) leave about 6.5 ms a token verified, and the head's own.
    fn default() -> SimConfig {
        SimConfig {
            context_tokens: 131_072,
            prefill_us_per_token: 3_830.0,
            prefill_us_per_token_per_kilotoken: 33.0,
            decode_us_per_token: 40_000.0,
            verify_us_per_token: 6_500.0,
            forward_us: 500.0,
            restore_us_per_kilotoken: 2_254.0,
            state_bytes_per_token: 64 << 10,
            snapshot_bytes: 0,
            scorer_us_per_token: 144.0,
            scorer_decode_us_per_token: 1_500.0,
            scorer_state_bytes_per_token: 12 << 10,
            acceptance: 0.8,
            head_us_per_token: 430.0,
            seed: 0,
        }
    }
}

/// `[mlx]`: memory of the `mlx` device. What is absent is as MLX itself chooses.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MlxConfig {
    /// What weights, state and the work of a forward may take together, bytes; `"48GiB"` in a file.
    #[serde(deserialize_with = "bytes::deserialize_some")]
    pub memory_limit: Option<u64>,
    /// Freed buffers that are kept for the next allocation, bytes; 0 keeps none.
    #[serde(deserialize_with = "bytes::deserialize_some")]
    pub cache_limit: Option<u64>,
    /// Memory that macOS keeps resident for the GPU, bytes; macOS 15 or later, no effect elsewhere.
    #[serde(deserialize_with = "bytes::deserialize_some")]
    pub wired_limit: Option<u64>,
}

/// Colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ThemeName {
    /// The terminal's own sixteen colours.
    Ansi,
    /// For dark backgrounds.
    Dark,
    /// For light backgrounds.
    Light,
    /// No colour.
    Mono,
}

/// `[ui]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UiConfig {
    /// Colours; `NO_COLOR` wins over it.
    pub theme: ThemeName,
    /// Draw with ASCII only.
    pub ascii: bool,
    /// Frames a second at most.
    pub max_fps: u32,
    /// Capture the mouse.
    pub mouse: bool,
}

impl Default for UiConfig {
    fn default() -> UiConfig {
        UiConfig { theme: ThemeName::Ansi, ascii: false, max_fps: 60, mouse: false }
    }
}
