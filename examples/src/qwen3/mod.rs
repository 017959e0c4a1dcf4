//! Qwen3 and Qwen3-MoE language models.

mod attention;
mod block;
mod config;
mod mlp;
mod model;
mod moe;
mod norm;
mod source;
pub mod weights;

pub use attention::Attention;
pub use block::{Block, FeedForward};
pub use config::{ConfigError, MoeConfig, Qwen3Config};
pub use mlp::Mlp;
pub use model::{LmHead, Qwen3};
pub use moe::{Experts, SparseMoe};
pub use norm::RmsNorm;
pub use weights::WeightsError;

use source::linear;
