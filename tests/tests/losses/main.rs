//! Losses for reinforcement learning and preferences: packed, against their definitions on the
//! separate trajectories.

mod case;
mod dpo;
mod gspo;
mod model;
mod ppo;
