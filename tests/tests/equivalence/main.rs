//! Packed against separate sequences: the operation, models, and several optimizer steps.

mod attention;
mod model;
mod noticed;
mod optimizers;
mod router_loss;
