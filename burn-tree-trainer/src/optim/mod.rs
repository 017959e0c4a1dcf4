//! The optimizer step: gradients of all packs, clipping and the update.

pub mod adamw;
pub mod clip;
pub mod optimizer_step;
