//! `quantization` of `config.json`: MLX's affine mode, with exceptions by module.

use std::collections::HashMap;

use serde_json::{Map, Value as Json};

use super::names::canonical;

/// How the weights of a folder are packed.
#[derive(Debug)]
pub(super) struct Quantisation {
    /// The key it stands under, for errors.
    key: &'static str,
    all: Settings,
    /// Exceptions, by module without the layout's prefix; `None` is a module that is left as it is.
    own: HashMap<String, Option<Settings>>,
}

/// The settings of a module, not yet checked: another module's may be unsupported without harm.
#[derive(Debug, Clone)]
struct Settings {
    bits: Option<u64>,
    group: Option<u64>,
    mode: Option<String>,
}

/// How a weight is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Packing {
    /// Bits of a weight.
    pub(super) bits: usize,
    /// Columns that share a scale.
    pub(super) group: usize,
}

impl Quantisation {
    pub(super) fn new(key: &'static str, json: &Json) -> Result<Quantisation, String> {
        let table = json.as_object().ok_or_else(|| format!("`{key}` is not an object"))?;
        if let Some(method) = table.get("quant_method").and_then(Json::as_str) {
            return Err(format!(
                "`{key}.quant_method` of `{method}` is not supported, only MLX's `affine` mode"
            ));
        }
        let mut own = HashMap::new();
        for (module, value) in table {
            let settings = match value {
                Json::Object(settings) => Some(Settings::new(settings)),
                Json::Bool(false) => None,
                _ => continue,
            };
            if own.insert(canonical(module).to_owned(), settings).is_some() {
                return Err(format!("`{key}` has `{module}` twice"));
            }
        }
        Ok(Quantisation { key, all: Settings::new(table), own })
    }

    /// How `module` is packed.
    pub(super) fn of(&self, module: &str) -> Result<Packing, String> {
        let key = self.key;
        let settings = match self.own.get(canonical(module)) {
            None => &self.all,
            Some(Some(own)) => own,
            Some(None) => return Err(format!("`{key}` says that `{module}` is not packed")),
        };
        if let Some(mode) = settings.mode.as_deref().filter(|mode| *mode != "affine") {
            return Err(format!(
                "`{key}` of `{module}` has the mode `{mode}`, and only `affine` is supported"
            ));
        }
        let (Some(bits), Some(group)) = (settings.bits, settings.group) else {
            return Err(format!("`{key}` of `{module}` lacks `bits` or `group_size`"));
        };
        if !matches!(bits, 2 | 3 | 4 | 5 | 6 | 8) || !matches!(group, 32 | 64 | 128) {
            return Err(format!("`{key}` of `{module}` has {bits} bits in groups of {group}"));
        }
        Ok(Packing { bits: bits as usize, group: group as usize })
    }
}

impl Settings {
    fn new(table: &Map<String, Json>) -> Settings {
        let number = |key: &str| table.get(key).and_then(Json::as_u64);
        let mode = table.get("mode").filter(|mode| !mode.is_null());
        Settings {
            bits: number("bits"),
            group: number("group_size"),
            mode: mode.map(|mode| mode.as_str().map_or_else(|| mode.to_string(), str::to_owned)),
        }
    }
}
