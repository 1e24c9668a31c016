//! Models: configuration, weights, tokenizer, chat template, architectures.
//!
//! [`load`] opens a bundled model, a GGUF file, or a folder with `config.json` and safetensors, and gives an executor on the
//! configured device together with the text codec the files carry. [`inspect`] says what is in them without reading
//! weights.
//!
//! A file format gives tensors by their part in the model ([`Checkpoint`]); the [`Decoder`] is written
//! against that and against [`crate::device::ops::Device`], so formats and devices know nothing of each other.

mod bundled;
mod decoder;
mod drafter;
mod file;
mod folder;
mod gguf;
mod inspect;
mod resident;
mod safetensors;
mod scorer;
mod shape;
mod tensor;
pub mod text;
mod work;

use std::path::{Path, PathBuf};

use crate::config::{Config, DeviceKind};
use crate::device::cpu::{Cpu, CpuOptions};
use crate::device::ops::Device;
use crate::device::sim::Sim;
use crate::device::{DeviceError, Executor};
use scorer::Target;

pub use bundled::{DRAFT, TARGET, bundled};
pub use decoder::{Decoder, Output};
pub use drafter::{LoadedDraft, wants_draft, wants_head};
pub use file::size_of_files;
pub use folder::Folder;
pub use gguf::{Gguf, Strings};
pub use inspect::{
    ExpertSummary, MemorySummary, ModelSummary, RecurrentSummary, TensorFateSummary, TensorTypeSummary,
    inspect, inspect_at, weight_bytes_per_token,
};
pub use resident::Resident;
pub use scorer::LoadedScorer;
pub use shape::{Architecture, AttentionSizes, LayerKind, MlpKind, ModelShape};
pub use tensor::{Checkpoint, Fate, Part, Site, Tensor, TensorData, TensorListing, TensorRole};

/// Values of `general.architecture` of a GGUF file that can be loaded. Folders can have any [`Architecture`].
const GGUF_ARCHITECTURES: &[&str] = &["llama"];

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file is not what it should be.
    #[error("{path}: {problem}; {remedy}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong, naming the field.
        problem: String,
        /// What to do about it.
        remedy: String,
    },
    /// The device refused it.
    #[error("{path}: {source}")]
    Device {
        /// The model.
        path: PathBuf,
        /// Why.
        source: DeviceError,
    },
    /// The device cannot be had.
    #[error("`model.device` is `{device}`: {problem}; {remedy}")]
    Unavailable {
        /// The device.
        device: &'static str,
        /// Why.
        problem: String,
        /// What to do about it.
        remedy: String,
    },
    /// The model that is to score for sparse prefill cannot be had.
    #[error("`{key}`: {source}")]
    Scorer {
        /// The key that chose it.
        key: &'static str,
        /// Why.
        source: Box<ModelError>,
    },
    /// The model that is to draft for speculative decoding cannot be had.
    #[error("`{key}`: {source}")]
    Drafter {
        /// The key that chose it.
        key: &'static str,
        /// Why.
        source: Box<ModelError>,
    },
    /// A draft model is to draft, and there is none.
    #[error(
        "`speculation.drafter` is \"draft\", and there is no draft model: set `model.draft` to a smaller model with the same tokenizer, or \
         `speculation.drafter` to \"mtp\" or \"ngram\""
    )]
    NoDraft,
    /// Sparse prefill is on, and nothing scores.
    #[error(
        "`specprefill.enabled` is true, and nothing scores: set `model.draft` to a smaller model with the same tokenizer, or \
         `specprefill.scorer` to \"self:N\" for the model's own first layers"
    )]
    NoScorer,
}

impl ModelError {
    fn file(path: &Path, problem: impl Into<String>, remedy: impl Into<String>) -> ModelError {
        ModelError::File { path: path.to_owned(), problem: problem.into(), remedy: remedy.into() }
    }

    fn unreadable(path: &Path, error: &std::io::Error) -> ModelError {
        ModelError::file(path, format!("cannot be read: {error}"), "check `model.path` and its permissions")
    }
}

/// A model ready to run.
pub struct Loaded {
    /// The model on its device.
    pub executor: Box<dyn Executor>,
    /// Tokenizer and template.
    pub text: text::TextCodec,
    /// The model that scores for sparse prefill; `None` where there is none.
    pub scorer: Option<LoadedScorer>,
    /// The model that drafts for speculative decoding; `None` where there is none.
    pub draft: Option<LoadedDraft>,
}

/// Loads the configured model onto the configured device (`model.path`, `model.device`, `model.precision`,
/// `cache.block_tokens` as the page size), beside it the scorer that `specprefill.scorer` chooses, and what `speculation.drafter` needs: the
/// model's multi-token-prediction head, or a draft model. A folder without tokenizer gets
/// [`text::TextCodec::bytes_only`].
pub fn load(config: &Config) -> Result<Loaded, ModelError> {
    match config.model.device.kind() {
        DeviceKind::Sim => {
            let sim = Sim::new(&config.sim, config.cache.block_tokens_for(config.sim.snapshot_bytes > 0));
            Ok(Loaded {
                executor: Box::new(if wants_head(config) { sim.with_head() } else { sim }),
                text: text::TextCodec::synthetic(Sim::VOCAB as u32),
                scorer: scorer::pseudo(config)?,
                draft: drafter::pseudo(config),
            })
        }
        DeviceKind::Cpu => {
            let precision = config.model.precision.on_cpu();
            load_onto(config, || {
                Cpu::new(CpuOptions { precision, threads: config.model.threads, kernel: None })
            })
        }
        DeviceKind::Mlx => load_onto_mlx(config),
    }
}

#[cfg(any(feature = "mlx", target_os = "macos"))]
fn load_onto_mlx(config: &Config) -> Result<Loaded, ModelError> {
    use crate::config::PrecisionSetting;
    use crate::device::mlx::{Floats, Mlx};

    let floats = match config.model.precision {
        PrecisionSetting::F32 => Floats::F32,
        PrecisionSetting::Auto | PrecisionSetting::Int8 => Floats::Stored,
    };
    load_onto(config, || Mlx::new(floats, &config.mlx))
}

#[cfg(not(any(feature = "mlx", target_os = "macos")))]
fn load_onto_mlx(_: &Config) -> Result<Loaded, ModelError> {
    Err(ModelError::Unavailable {
        device: "mlx",
        problem: "this program was built without it".to_owned(),
        remedy: "build it with `--features mlx`, or use the `cpu` device".to_owned(),
    })
}

/// Loads the model onto a device, on this thread: some devices are bound to the one they were made on.
fn load_onto<D: Device + 'static>(
    config: &Config,
    device: impl Fn() -> Result<D, DeviceError>,
) -> Result<Loaded, ModelError>
where
    D::Table: Send,
{
    let path = config.model.path.as_deref().unwrap_or(Path::new(TARGET));
    let source = Source::open(path)?;
    let shape = source.shape()?;
    let own = device().map_err(|source| ModelError::Device { path: path.to_owned(), source })?;
    // The tokenizer takes about as long as the weights of a small model, so they load side by side.
    let (executor, text) = std::thread::scope(|scope| {
        let text = scope.spawn(|| source.text(shape.vocab));
        let page_tokens = config.cache.block_tokens_for(shape.states().is_some());
        let head = wants_head(config);
        let checkpoint = source.checkpoint();
        let executor =
            Resident::load_whole(own, checkpoint, shape.clone(), source.name(), page_tokens, head)?;
        let text = text.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok((executor, text))
    })?;
    let target = Target { source: &source, shape: &shape, text: &text };
    let scorer = scorer::load(config, &target, &device)?;
    let draft = drafter::load(config, &target, &device)?;
    Ok(Loaded { executor: Box::new(executor), text, scorer, draft })
}

/// An opened model, of either format.
enum Source {
    Gguf(Box<Gguf>),
    Folder(Box<Folder>),
}

impl Source {
    fn open(path: &Path) -> Result<Source, ModelError> {
        if file::is_folder(path) {
            return Folder::open(path).map(|folder| Source::Folder(Box::new(folder)));
        }
        if !file::exists(path) {
            let names: Vec<&str> = bundled().collect();
            let remedy =
                format!("give a GGUF file, a model folder, or a bundled model: {}", names.join(", "));
            return Err(ModelError::file(path, "cannot be read: there is no such file or folder", remedy));
        }
        let gguf = Gguf::open(path)?;
        let architecture = gguf.text("general.architecture")?.unwrap_or_default();
        check_architecture(path, architecture)?;
        Ok(Source::Gguf(Box::new(gguf)))
    }

    fn checkpoint(&self) -> &dyn Checkpoint {
        match self {
            Source::Gguf(gguf) => &**gguf,
            Source::Folder(folder) => &**folder,
        }
    }

    fn shape(&self) -> Result<ModelShape, ModelError> {
        match self {
            Source::Gguf(gguf) => gguf.shape(),
            Source::Folder(folder) => Ok(folder.shape().clone()),
        }
    }

    fn text(&self, vocab: usize) -> Result<text::TextCodec, ModelError> {
        match self {
            Source::Gguf(gguf) => text::TextCodec::from_gguf(gguf),
            Source::Folder(folder) => text::TextCodec::from_folder(folder.path(), vocab),
        }
    }

    /// The name shown for it: what the file says, or what it is called. A folder's name is all of it: `Model-0.5B` has no extension.
    fn name(&self) -> String {
        let path = self.checkpoint().path();
        // `.` and `..` have no name of their own.
        let whole = if path.file_name().is_some() { Ok(path.to_owned()) } else { path.canonicalize() };
        let whole = whole.unwrap_or_default();
        let (given, called) = match self {
            Source::Gguf(gguf) => (gguf.text("general.name").ok().flatten(), whole.file_stem()),
            Source::Folder(_) => (None, whole.file_name()),
        };
        let called = || called.map(|name| name.to_string_lossy().into_owned());
        given.map(str::to_owned).or_else(called).unwrap_or_else(|| "model".into())
    }
}

fn check_architecture(path: &Path, found: &str) -> Result<(), ModelError> {
    if GGUF_ARCHITECTURES.contains(&found) {
        return Ok(());
    }
    let problem = if found.is_empty() {
        "`general.architecture` is missing".to_owned()
    } else {
        format!("`general.architecture` is `{found}`, an unknown architecture")
    };
    let known = GGUF_ARCHITECTURES.join(", ");
    Err(ModelError::file(path, problem, format!("use a GGUF file of one of: {known}")))
}
