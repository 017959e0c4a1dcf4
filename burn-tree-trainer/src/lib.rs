//! The library of the training programs: the programs themselves read as recipes on top of it.
//!
//! ```text
//! options -> data -> plan -> run (pass -> optim -> objective) -> report
//! ```
//!
//! * [`options`]: command-line options that the programs share.
//! * [`data`]: trajectories from files, which of them are used, pairs and rewards.
//! * [`plan`]: which tasks make up which step, schedules, trees or separate trajectories.
//! * [`objective`]: the losses of the programs, on top of those of `burn-tree-train`.
//! * [`optim`]: one optimizer step.
//! * [`run`]: a run from its first to its last step, with checkpoints.
//! * [`memory`]: what a step needs, before it is made.
//! * [`report`]: metrics, pictures and what is printed.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod data;
pub mod memory;
pub mod objective;
pub mod optim;
pub mod options;
pub mod plan;
pub mod report;
pub mod run;

pub use tree_training_devices as device;
