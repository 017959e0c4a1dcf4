//! The operations against their definitions, on the device named by `BURN_DEVICE`.

mod block_context;
mod index_memory;
mod lm_head;
mod norm_and_activation;
mod rows_and_groups;
mod support;
