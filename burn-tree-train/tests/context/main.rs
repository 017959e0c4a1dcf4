//! `BlockContext` on the device named by `BURN_DEVICE`.

mod block_context;
mod index_memory;
mod support;
