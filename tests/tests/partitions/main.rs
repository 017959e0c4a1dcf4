//! Trees in parts: the same step, whatever the parts are and however it is computed.

mod blocks;
mod failures;
mod invariance;
mod lora;
mod optimizers;
mod pitfalls;
mod ranks;
mod repeated;
mod structure;
