//! Models: configuration, weights, tokenizer, chat template, architectures.
//!
//! [`load`] opens a GGUF file or a folder with `config.json` and `model.safetensors` and gives an executor on the
//! configured device together with the text codec the files carry.

pub mod text;

use std::path::PathBuf;

use crate::config::{Config, DeviceKind};
use crate::device::sim::Sim;
use crate::device::{DeviceError, Executor};

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
}

/// A model ready to run.
pub struct Loaded {
    /// The model on its device.
    pub executor: Box<dyn Executor>,
    /// Tokenizer and template.
    pub text: text::TextCodec,
}

/// Loads the configured model onto the configured device (`model.path`, `model.device`, `model.precision`,
/// `cache.block_tokens` as the page size).
pub fn load(config: &Config) -> Result<Loaded, ModelError> {
    match config.model.device {
        DeviceKind::Sim => Ok(Loaded {
            executor: Box::new(Sim::new(&config.sim, config.cache.block_tokens)),
            text: text::TextCodec::synthetic(Sim::VOCAB as u32),
        }),
        DeviceKind::Cpu => unimplemented!(),
    }
}
