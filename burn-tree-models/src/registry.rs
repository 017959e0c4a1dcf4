//! The registry of model families.

use std::fmt;

use serde_json::{Map, Value};

use crate::config::{ConfigError, Fields, ModelConfig};
use crate::{llama, qwen2, qwen3};

/// All families. If several have a built-in configuration of the same name, the first counts.
pub static FAMILIES: [&Family; 5] = [
    &qwen3::QWEN3,
    &qwen3::QWEN3_NEXT,
    &qwen3::QWEN3_5,
    &llama::LLAMA,
    &qwen2::QWEN2,
];

/// A model family: reading and writing of its `config.json`.
pub struct Family {
    /// Name of the family.
    pub name: &'static str,
    /// Values of `model_type` that it reads.
    pub model_types: &'static [&'static str],
    /// Built-in configurations.
    pub presets: &'static [Preset],
    /// Prefixes of the keys of tensors that are ignored in its checkpoints.
    pub(crate) skipped_keys: &'static [&'static str],
    /// Reads the fields of a file of the given `model_type`.
    pub(crate) read: fn(Fields, &str) -> Result<ModelConfig, ConfigError>,
    /// Writes the fields that are specific to the family.
    pub(crate) write: fn(&ModelConfig, &mut Map<String, Value>),
}

/// A built-in configuration.
pub struct Preset {
    /// Name.
    pub name: &'static str,
    /// The configuration.
    pub config: fn() -> ModelConfig,
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// The family that reads this `model_type`.
///
/// # Errors
/// If there is none. The error lists the known ones.
pub fn family_of(model_type: &str) -> Result<&'static Family, ConfigError> {
    let family = FAMILIES
        .into_iter()
        .find(|family| family.model_types.contains(&model_type));
    family.ok_or_else(|| {
        let known = FAMILIES.into_iter().flat_map(|family| family.model_types);
        let known: Vec<&str> = known.copied().collect();
        let reason = format!("supported are {}", known.join(", "));
        ConfigError::unsupported("model_type", model_type, reason)
    })
}

/// The built-in configuration of this name, with the vocabulary size of its tokenizer.
///
/// # Errors
/// If there is none. The error lists the names.
pub fn preset(name: &str) -> Result<ModelConfig, ConfigError> {
    let presets = || FAMILIES.into_iter().flat_map(|family| family.presets);
    match presets().find(|preset| preset.name == name) {
        Some(preset) => Ok((preset.config)()),
        None => Err(ConfigError::UnknownName {
            name: name.to_owned(),
            known: presets().map(|preset| preset.name).collect(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_configuration_survives_its_json_form() {
        for family in FAMILIES {
            for preset in family.presets {
                let config = (preset.config)();
                assert_eq!(config.family, family);
                let read = ModelConfig::from_json(config.to_json());
                let read = read.unwrap_or_else(|error| panic!("{}: {error}", preset.name));
                assert_eq!(read, config, "{}", preset.name);
            }
        }
    }

    #[test]
    fn what_is_not_known_is_listed() {
        let message = family_of("mamba").unwrap_err().to_string();
        assert_eq!(
            message,
            "field `model_type` is mamba, which is not supported: supported are qwen3, qwen3_moe, \
             qwen3_next, qwen3_5, qwen3_5_moe, qwen3_5_text, qwen3_5_moe_text, llama, qwen2"
        );
        let message = preset("huge").unwrap_err().to_string();
        assert!(
            message.starts_with("no built-in model `huge`; there are tiny, "),
            "{message}"
        );
    }
}
