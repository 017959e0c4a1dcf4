//! Partitioned trees: the same step for all partitionings and options.

mod blocks;
mod failures;
mod invariance;
mod lora;
mod optimizers;
mod pitfalls;
mod ranks;
mod repeated;
mod structure;
