//! Losses and training steps on trees of trajectories.

mod model;

pub use model::{BlockContext, BlockOutputs, BlockPast, RouterOutput, TreeModel};
