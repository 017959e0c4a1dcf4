//! Language models in Burn that train on trees, with weights from and to Hugging Face folders, and
//! LoRA: Qwen3, Qwen3-Next and Qwen3.5, Llama 3 and Qwen2.
//!
//! A model is a [`CausalLm`], built from a [`ModelConfig`]. Both are the same for all families:
//!
//! * [`layers`]: what blocks are made of. They know nothing of families, only the settings that a
//!   [`ModelConfig`] has.
//! * [`qwen3`], [`llama`], [`qwen2`]: one folder for each [`Family`], which reads its `config.json`
//!   into a [`ModelConfig`], writes it back, and has built-in configurations.
//! * [`registry`]: the list of families, by `model_type`.
//! * [`weights`]: checkpoints in safetensors.
//! * [`size`]: parameters, operations and memory of a model, from its [`ModelConfig`].
//!
//! A new family whose blocks are made of known layers is a folder and a line in [`registry`].

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
