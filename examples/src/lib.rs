//! Qwen3-family models in Burn, and the machinery of the programs that train them on trees.

pub mod benchmark;
pub mod lora;
pub mod qwen3;
pub mod training;
