//! Trees in parts: the same step, whatever the parts are and however it is computed.

mod invariance;
mod lora;
mod optimizers;
mod repeated;
mod structure;
