//! Packed against separate sequences: the operations, models, and several optimizer steps.

mod attention;
mod gated_delta_rule;
mod model;
mod noticed;
mod optimizers;
mod router_loss;
