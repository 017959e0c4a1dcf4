//! Packed against separate sequences: the operation, models, and several optimizer steps.

mod attention;
mod model;
mod optimizers;
