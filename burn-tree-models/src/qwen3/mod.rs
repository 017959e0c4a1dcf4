//! Language models of the Qwen3 family: Qwen3, Qwen3-Next and Qwen3.5 (its language model), dense
//! and as mixtures of experts.

mod attention;
mod block;
mod config;
mod gated_delta_net;
mod mlp;
mod model;
mod moe;
mod norm;
mod source;
pub mod weights;

pub use attention::Attention;
pub use block::{Block, FeedForward, Mixer};
pub use config::{
    Architecture, ConfigError, LayerType, LinearAttentionConfig, MoeConfig, Qwen3Config,
};
pub use gated_delta_net::{
    DepthwiseConv, GatedDeltaNet, GatedDeltaNetOutput, GatedNorm, GroupedProjections,
    InputProjections, SplitProjections,
};
pub use mlp::Mlp;
pub use model::{LmHead, Qwen3};
pub use moe::{Experts, SharedExpert, SparseMoe};
pub use norm::RmsNorm;
pub use weights::WeightsError;

use source::linear;
