//! Language models in Burn for training on trees: Qwen3, Qwen3-Next and Qwen3.5, Llama 3 and Qwen2,
//! with weights in Hugging Face's format, and LoRA.
//!
//! A model is a [`CausalLm`], built from a [`ModelConfig`]. Both types are common to all families:
//!
//! * [`layers`]: the layers of blocks, which depend on a [`ModelConfig`] but not on a family.
//! * [`qwen3`], [`llama`], [`qwen2`]: one folder per [`Family`], which reads and writes its
//!   `config.json` and has built-in configurations.
//! * [`registry`]: the list of families, by `model_type`.
//! * [`weights`]: checkpoints in safetensors.
//! * [`size`]: parameters, operations and memory of a model, from its [`ModelConfig`].
//!
//! A new family with existing layers needs a folder and an entry in [`registry`].

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod config;
pub mod layers;
pub mod llama;
pub mod lora;
mod model;
pub mod precision;
pub mod qwen2;
pub mod qwen3;
pub mod registry;
pub mod size;
pub mod weights;

pub use config::{
    AttentionBias, ConfigError, ExpertStorage, LayerType, LinearAttentionConfig, ModelConfig,
    MoeConfig, ProjectionLayout,
};
pub use model::{CausalLm, LmHead};
pub use precision::Precision;
pub use registry::Family;
pub use size::ModelSize;
pub use weights::WeightsError;
