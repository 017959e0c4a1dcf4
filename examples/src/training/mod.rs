//! The machinery of the training programs; the programs themselves read as recipes on top of it.

pub mod adamw;
pub mod atomic;
pub mod checkpoint;
pub mod clip;
pub mod cost;
pub mod data;
pub mod demonstration;
pub mod log_probs;
pub mod memory;
pub mod metrics;
pub mod model_source;
pub mod objective;
pub mod optimizer_step;
pub mod options;
pub mod pairs;
pub mod pass;
pub mod plan;
pub mod plots;
pub mod report;
pub mod rollouts;
pub mod run;
pub mod schedule;
pub mod selection;
pub mod settings;
pub mod setup;
pub mod sharing;
pub mod summary;
pub mod timing;
pub mod vocabulary;

pub use tree_training_devices as device;
