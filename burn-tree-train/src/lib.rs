//! Losses and training steps on trees of trajectories.

mod model;
mod step_bound;

pub use model::{BlockContext, BlockOutputs, BlockPast, RouterOutput, TreeModel};
pub use step_bound::{ModelCost, StepBound, StepCounts};
