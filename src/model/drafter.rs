//! What drafts for speculative decoding, as far as it is loaded: the model's own multi-token-prediction head, or a draft model.
//!
//! Both cost memory, and a head's entries make every page larger, so each is loaded only where the configuration may come to need it. A draft
//! model is resident by itself, with weights, pages and slots of its own on a device of its own, even where the same files score for sparse
//! prefill. Lookup in the context needs nothing loaded.

use std::path::Path;

use crate::config::{Config, DrafterKind, drafters_wanted};
use crate::device::ops::Device;
use crate::device::sim::Sim;
use crate::device::{DeviceError, Executor};

use super::bundled::{DRAFT, TARGET};
use super::scorer::{Target, companion};
use super::{ModelError, Source};

const DRAFTER: &str = "speculation.drafter";

/// A draft model ready to run: its tokenizer is the target's.
pub struct LoadedDraft {
    /// The model on its device; another resident one than the target and the scorer, with pages and slots of its own.
    pub executor: Box<dyn Executor>,
    /// Display name.
    pub name: String,
}

/// Whether a configuration can come to draft with the model's own multi-token-prediction head, so that it is loaded.
pub fn wants_head(config: &Config) -> bool {
    wants(config, DrafterKind::Mtp)
}

/// Whether a configuration can come to draft with a draft model, so that one is loaded.
pub fn wants_draft(config: &Config) -> bool {
    wants(config, DrafterKind::Draft)
}

fn wants(config: &Config, drafter: DrafterKind) -> bool {
    drafters_wanted(config).contains(&drafter)
}

/// The draft model's files, and the key that chose them.
fn choice(config: &Config) -> Result<(&Path, &'static str), ModelError> {
    match (config.model.draft.as_deref(), config.model.path.as_deref()) {
        (Some(path), _) => Ok((path, "model.draft")),
        (None, None) => Ok((Path::new(DRAFT), DRAFTER)),
        (None, Some(target)) if target == Path::new(TARGET) => Ok((Path::new(DRAFT), DRAFTER)),
        (None, Some(_)) => Err(ModelError::NoDraft),
    }
}

/// The draft model of the pseudo-model. It needs no files.
pub(super) fn pseudo(config: &Config) -> Option<LoadedDraft> {
    let page_tokens = config.cache.block_tokens_for(config.sim.snapshot_bytes > 0);
    wants_draft(config).then(|| LoadedDraft {
        executor: Box::new(Sim::draft(&config.sim, page_tokens)),
        name: "pseudo-draft".to_owned(),
    })
}

/// Loads the draft model onto a device of its own, where one is wanted.
pub(super) fn load<D: Device + 'static>(
    config: &Config,
    target: &Target<'_>,
    device: impl FnOnce() -> Result<D, DeviceError>,
) -> Result<Option<LoadedDraft>, ModelError>
where
    D::Table: Send,
{
    const REMEDY: &str = "set `model.draft` to a model with the same tokenizer, or `speculation.drafter` to \"mtp\" or \"ngram\"";
    if !wants_draft(config) {
        return Ok(None);
    }
    let (path, key) = choice(config)?;
    let loaded = Source::open(path).and_then(|source| companion(config, target, &source, REMEDY, device));
    match loaded {
        Ok((executor, name)) => Ok(Some(LoadedDraft { executor, name })),
        Err(source) => Err(ModelError::Drafter { key, source: Box::new(source) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(set: impl FnOnce(&mut Config)) -> Config {
        let mut config = Config::default();
        set(&mut config);
        config
    }

    #[test]
    fn what_drafts_is_loaded_where_it_is_asked_for() {
        let asked = |drafter| {
            let config = chosen(|config| config.speculation.drafter = drafter);
            (wants_head(&config), wants_draft(&config))
        };
        assert_eq!(asked(None), (false, false));
        assert_eq!(asked(Some(DrafterKind::None)), (false, false));
        assert_eq!(asked(Some(DrafterKind::Ngram)), (false, false));
        assert_eq!(asked(Some(DrafterKind::Mtp)), (true, false));
        assert_eq!(asked(Some(DrafterKind::Draft)), (false, true));
    }

    #[test]
    fn a_draft_model_is_the_configured_one_or_the_bundled_one_of_the_bundled_target() {
        assert_eq!(choice(&Config::default()).unwrap(), (Path::new("talus"), DRAFTER));
        let named = chosen(|config| config.model.path = Some("scarp".into()));
        assert_eq!(choice(&named).unwrap(), (Path::new("talus"), DRAFTER));
        let draft = chosen(|config| config.model.draft = Some("small".into()));
        assert_eq!(choice(&draft).unwrap(), (Path::new("small"), "model.draft"));
        let other = chosen(|config| config.model.path = Some("other".into()));
        let refused = choice(&other).unwrap_err();
        assert!(matches!(refused, ModelError::NoDraft), "{refused}");
        let told = refused.to_string();
        for word in ["speculation.drafter", "model.draft", "ngram"] {
            assert!(told.contains(word), "{told}");
        }
    }
}
