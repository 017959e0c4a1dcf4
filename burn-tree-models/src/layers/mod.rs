//! The layers of blocks. Each is built from the settings in a [`ModelConfig`] and a source that
//! supplies parameters by their key in a checkpoint.
//!
//! [`ModelConfig`]: crate::ModelConfig

mod attention;
mod block;
mod gated_delta_net;
mod mlp;
mod moe;
mod norm;
mod projection;
pub(crate) mod source;

pub use attention::Attention;
pub use block::{Block, FeedForward, Mixer};
pub use gated_delta_net::{
    DepthwiseConv, GatedDeltaNet, GatedDeltaNetOutput, GatedNorm, GroupedProjections,
    InputProjections, SplitProjections,
};
pub use mlp::Mlp;
pub use moe::{Experts, SharedExpert, SparseMoe};
pub use norm::RmsNorm;

use projection::{project, project_all};
use source::linear;
