//! Compares the operations with their definitions, on the device named by `BURN_DEVICE`.

mod errors;
mod gates_and_norms;
mod linear;
mod lm_head;
mod norm_and_activation;
mod rows_and_groups;
mod support;
