//! Tree attention and rotary position embeddings at given positions, as Burn operations.

mod functions;
mod mask;

pub use functions::{RopeConfig, TreeAttentionOptions, rope, tree_attention};
pub use mask::TreeMask;
