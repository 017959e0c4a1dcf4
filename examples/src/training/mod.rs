//! The machinery of the training programs; the programs themselves read as recipes on top of it.

pub mod adamw;
pub mod atomic;
pub mod checkpoint;
pub mod clip;
pub mod cost;
pub mod data;
pub mod memory;
pub mod metrics;
pub mod objective;
pub mod optimizer_step;
pub mod pass;
pub mod plan;
pub mod plots;
pub mod report;
pub mod schedule;
pub mod selection;
pub mod timing;
pub mod vocabulary;

pub use tree_training_devices as device;
