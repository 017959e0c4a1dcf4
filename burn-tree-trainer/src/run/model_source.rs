//! Where the model of a run comes from.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use burn::tensor::{Device, FloatDType};

use burn_tree_models::{CausalLm, ModelConfig, registry};

/// A model that has not been loaded.
pub enum ModelSource {
    /// A folder with weights.
    Folder(PathBuf),
    /// A configuration file, to be filled with random weights.
    ConfigFile(PathBuf),
    /// A built-in configuration, to be filled with random weights.
    Named(String),
}

impl ModelSource {
    /// What `--model` means: something on disk if it exists, else a name.
    pub fn find(model: &str) -> Self {
        let path = Path::new(model);
        if path.is_dir() {
            Self::Folder(path.into())
        } else if path.is_file() {
            Self::ConfigFile(path.into())
        } else {
            Self::Named(model.into())
        }
    }

    /// Whether weights come from a folder.
    pub fn is_trained(&self) -> bool {
        matches!(self, Self::Folder(_))
    }

    /// The shape of the model. Random weights take any number of token ids, if one is given.
    pub fn config(&self, vocab_size: Option<usize>) -> Result<ModelConfig> {
        let mut config = match self {
            Self::Folder(path) | Self::ConfigFile(path) => ModelConfig::from_file(path)
                .with_context(|| format!("--model {}", path.display()))?,
            Self::Named(name) => registry::preset(name).with_context(|| {
                format!("--model {name} is neither a folder, nor a config.json, nor a known name")
            })?,
        };
        if let Some(moe) = &config.moe
            && moe.router_aux_loss_coef != 0.0
        {
            bail!(
                "--model {}: asks for a load-balancing loss (router_aux_loss_coef {}), which this \
                 program does not add; set output_router_logits to false to train without",
                self.name(),
                moe.router_aux_loss_coef
            );
        }
        if let Some(vocab_size) = vocab_size {
            if self.is_trained() {
                bail!(
                    "--compact-vocab renumbers token ids, which only makes sense with random \
                     weights; {} has trained ones",
                    self.name()
                );
            }
            config.vocab_size = vocab_size;
        }
        Ok(config)
    }

    /// Loads the weights, or draws them from the seed, with f32 parameters.
    pub fn load(&self, config: &ModelConfig, seed: u64, device: &Device) -> Result<CausalLm> {
        match self {
            Self::Folder(path) => CausalLm::load_weights(config, path, FloatDType::F32, device)
                .with_context(|| format!("--model {}", path.display())),
            Self::ConfigFile(_) | Self::Named(_) => {
                Ok(CausalLm::random(config, seed, FloatDType::F32, device))
            }
        }
    }

    /// A file in the model's folder, if there is one of that name.
    pub fn file(&self, name: &str) -> Option<PathBuf> {
        match self {
            Self::Folder(folder) => Some(folder.join(name)).filter(|path| path.is_file()),
            Self::ConfigFile(_) | Self::Named(_) => None,
        }
    }

    /// How the user wrote it.
    pub fn name(&self) -> String {
        match self {
            Self::Folder(path) | Self::ConfigFile(path) => path.display().to_string(),
            Self::Named(name) => name.clone(),
        }
    }
}
