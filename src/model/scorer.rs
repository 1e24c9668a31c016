//! The model that scores for sparse prefill, loaded beside its target.
//!
//! It is resident by itself: weights, pages and slots of its own, on a device of its own. What it shares is the target's tokens, so its
//! tokenizer is held to the target's. It is loaded where a request may come to need it, which is unless the configuration rules sparse
//! prefill out; and a scorer that nobody asked for and that cannot be had is no error.

use std::collections::HashSet;
use std::path::Path;

use crate::config::{Config, ScorerChoice};
use crate::device::ops::Device;
use crate::device::sim::Sim;
use crate::device::weights::RowOrder;
use crate::device::{DeviceError, Executor};

use super::bundled::{DRAFT, TARGET};
use super::shape::ModelShape;
use super::tensor::{Checkpoint, Tensor, TensorListing, TensorRole};
use super::text::TextCodec;
use super::{ModelError, Resident, Source};

/// A scorer ready to run: its tokenizer is the target's.
pub struct LoadedScorer {
    /// The model on its device; another resident one than the target, with pages and slots of its own.
    pub executor: Box<dyn Executor>,
    /// Display name: `talus`, `scarp, layers 0-3`.
    pub name: String,
    /// Whether its logits mean something, so that it can decode to look ahead. A target's first layers cannot.
    pub decodes: bool,
}

/// Which model is to score, and the key that says so.
#[derive(Debug, PartialEq)]
enum Choice<'a> {
    Model { path: &'a Path, key: &'static str },
    OwnLayers(usize),
}

const SCORER: &str = "specprefill.scorer";

/// The target as a scorer needs to know it.
pub(super) struct Target<'a> {
    pub(super) source: &'a Source,
    pub(super) shape: &'a ModelShape,
    pub(super) text: &'a TextCodec,
}

/// What the configuration makes score; `None` where nothing is to be.
fn choice(config: &Config) -> Result<Option<Choice<'_>>, ModelError> {
    let enabled = config.specprefill.enabled;
    if enabled == Some(false) {
        return Ok(None);
    }
    let is_bundled = config.model.path.as_deref().is_none_or(|path| path == Path::new(TARGET));
    let chosen = match (&config.specprefill.scorer, config.model.draft.as_deref()) {
        (ScorerChoice::OwnLayers(layers), _) => Choice::OwnLayers(*layers),
        (ScorerChoice::Model(path), _) => Choice::Model { path, key: SCORER },
        (ScorerChoice::Draft, Some(path)) => Choice::Model { path, key: "model.draft" },
        (ScorerChoice::Draft, None) if is_bundled => Choice::Model { path: Path::new(DRAFT), key: SCORER },
        (ScorerChoice::Draft, None) if enabled == Some(true) => return Err(ModelError::NoScorer),
        (ScorerChoice::Draft, None) => return Ok(None),
    };
    Ok(Some(chosen))
}

/// Loads the scorer onto a device of its own.
pub(super) fn load<D: Device + 'static>(
    config: &Config,
    target: &Target<'_>,
    device: impl FnOnce() -> Result<D, DeviceError>,
) -> Result<Option<LoadedScorer>, ModelError>
where
    D::Table: Send,
{
    let (key, loaded) = match choice(config)? {
        None => return Ok(None),
        Some(Choice::Model { path, key }) => (key, other_model(config, target, path, device)),
        Some(Choice::OwnLayers(layers)) => (SCORER, own_layers(config, target, layers, device)),
    };
    loaded.map(Some).map_err(|source| ModelError::Scorer { key, source: Box::new(source) })
}

fn other_model<D: Device + 'static>(
    config: &Config,
    target: &Target<'_>,
    path: &Path,
    device: impl FnOnce() -> Result<D, DeviceError>,
) -> Result<LoadedScorer, ModelError> {
    let remedy =
        format!("use a model with the same tokenizer, or `{SCORER}` = \"self:N\" for the model's own layers");
    let source = Source::open(path)?;
    let (executor, name) = companion(config, target, &source, &remedy, device)?;
    Ok(LoadedScorer { executor, name, decodes: true })
}

/// Loads a model that is given the target's tokens onto a device of its own; gives it with its display name. A tokenizer that is not the
/// target's is an error that names both models and `remedy`.
pub(super) fn companion<D: Device + 'static>(
    config: &Config,
    target: &Target<'_>,
    source: &Source,
    remedy: &str,
    device: impl FnOnce() -> Result<D, DeviceError>,
) -> Result<(Box<dyn Executor>, String), ModelError>
where
    D::Table: Send,
{
    let shape = source.shape()?;
    let text = source.text(shape.vocab)?;
    let ids = target.text.vocabulary_size().unwrap_or(target.shape.vocab).min(target.shape.vocab);
    let differs = match target.text.differs_from(&text) {
        None if shape.vocab < ids => Some(format!("the one has {ids} ids and the other {}", shape.vocab)),
        differs => differs,
    };
    if let Some(differs) = differs {
        let of = target.source.checkpoint().path().display();
        let problem = format!("its tokenizer is not that of {of}: {differs}");
        return Err(ModelError::file(source.checkpoint().path(), problem, remedy));
    }
    let name = source.name();
    let executor = resident(config, source.checkpoint(), shape, name.clone(), device)?;
    Ok((executor, name))
}

fn own_layers<D: Device + 'static>(
    config: &Config,
    target: &Target<'_>,
    layers: usize,
    device: impl FnOnce() -> Result<D, DeviceError>,
) -> Result<LoadedScorer, ModelError> {
    let checkpoint = target.source.checkpoint();
    let shape = target.shape.first_layers(layers).map_err(|problem| {
        let remedy = format!("give another number of layers in `{SCORER}` = \"self:N\"");
        ModelError::file(checkpoint.path(), problem, remedy)
    })?;
    let name = layers_of(&target.source.name(), layers);
    let executor = resident(config, &FirstLayers(checkpoint), shape, name.clone(), device)?;
    Ok(LoadedScorer { executor, name, decodes: false })
}

fn resident<D: Device + 'static>(
    config: &Config,
    checkpoint: &dyn Checkpoint,
    shape: ModelShape,
    name: String,
    device: impl FnOnce() -> Result<D, DeviceError>,
) -> Result<Box<dyn Executor>, ModelError> {
    let page_tokens = config.cache.block_tokens_for(shape.states().is_some());
    let device =
        device().map_err(|source| ModelError::Device { path: checkpoint.path().to_owned(), source })?;
    Ok(Box::new(Resident::load(device, checkpoint, shape, name, page_tokens)?))
}

/// `scarp, layers 0-3`
fn layers_of(model: &str, layers: usize) -> String {
    match layers {
        1 => format!("{model}, layer 0"),
        _ => format!("{model}, layers 0-{}", layers - 1),
    }
}

/// The scorer of the pseudo-model. It needs no files, so a model's path is the pseudo-scorer too.
pub(super) fn pseudo(config: &Config) -> Result<Option<LoadedScorer>, ModelError> {
    let page_tokens = config.cache.block_tokens_for(config.sim.snapshot_bytes > 0);
    let (sim, name, decodes) = match (config.specprefill.enabled, &config.specprefill.scorer) {
        (Some(false), _) => return Ok(None),
        (_, ScorerChoice::OwnLayers(layers)) => {
            let sim = Sim::first_layers(&config.sim, page_tokens, *layers).map_err(|problem| {
                let remedy = format!("give another number of layers in `{SCORER}` = \"self:N\"");
                ModelError::Unavailable { device: "sim", problem, remedy }
            })?;
            (sim, layers_of("pseudo-model", *layers), false)
        }
        (_, ScorerChoice::Draft | ScorerChoice::Model(_)) => {
            (Sim::scorer(&config.sim, page_tokens), "pseudo-scorer".to_owned(), true)
        }
    };
    Ok(Some(LoadedScorer { executor: Box::new(sim), name, decodes }))
}

/// A checkpoint whose later layers and output projection are not asked for. They are no strangers: the target has a place for them.
struct FirstLayers<'a>(&'a dyn Checkpoint);

impl Checkpoint for FirstLayers<'_> {
    fn tensor(&self, role: TensorRole) -> Result<Option<Tensor>, ModelError> {
        match role {
            TensorRole::Output => Ok(None),
            role => self.0.tensor(role),
        }
    }

    fn name_of(&self, role: TensorRole) -> Option<String> {
        self.0.name_of(role)
    }

    fn order(&self, role: TensorRole, shape: &ModelShape) -> RowOrder {
        self.0.order(role, shape)
    }

    fn stranger(&self, _: &HashSet<TensorRole>) -> Option<String> {
        None
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn listing(&self) -> Vec<TensorListing> {
        self.0.listing()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn chosen(set: impl FnOnce(&mut Config)) -> Config {
        let mut config = Config::default();
        set(&mut config);
        config
    }

    #[test]
    fn a_scorer_is_chosen_by_what_is_configured() {
        let talus = Some(Choice::Model { path: Path::new("talus"), key: SCORER });
        assert_eq!(choice(&Config::default()).unwrap(), talus);
        let named = chosen(|c| c.model.path = Some("scarp".into()));
        assert_eq!(choice(&named).unwrap(), talus);
        let other = |enabled| {
            chosen(|c| {
                c.model.path = Some("other".into());
                c.specprefill.enabled = enabled;
            })
        };
        assert_eq!(choice(&other(None)).unwrap(), None);
        assert_eq!(choice(&other(Some(false))).unwrap(), None);
        assert!(matches!(choice(&other(Some(true))), Err(ModelError::NoScorer)));
        let draft = chosen(|c| c.model.draft = Some("small".into()));
        let small = Choice::Model { path: Path::new("small"), key: "model.draft" };
        assert_eq!(choice(&draft).unwrap(), Some(small));
        let path = chosen(|c| c.specprefill.scorer = ScorerChoice::Model(PathBuf::from("third")));
        assert_eq!(choice(&path).unwrap(), Some(Choice::Model { path: Path::new("third"), key: SCORER }));
        let own = chosen(|c| c.specprefill.scorer = ScorerChoice::OwnLayers(4));
        assert_eq!(choice(&own).unwrap(), Some(Choice::OwnLayers(4)));
        let mut off = own;
        off.specprefill.enabled = Some(false);
        assert_eq!(choice(&off).unwrap(), None, "what can never be used is not loaded");
    }
}
