//! The library of the training programs, whose recipes consist of its parts.
//!
//! ```text
//! options -> data -> plan -> run (variant -> optim -> loss) -> report
//! ```
//!
//! * [`options`]: command-line options shared by the programs.
//! * [`data`]: reading and selecting trajectories, preference pairs and rewards.
//! * [`plan`]: the tasks of each step, schedules, trees or separate trajectories.
//! * [`loss`]: the losses of the programs, on top of those of `burn-tree-train`.
//! * [`optim`]: one optimizer step.
//! * [`run`]: the training loop, with checkpoints.
//! * [`memory`]: estimated memory of a step.
//! * [`report`]: metrics, plots and tables.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod data;
pub mod loss;
pub mod memory;
pub mod optim;
pub mod options;
pub mod plan;
pub mod report;
pub mod run;

pub use tree_training_devices as device;
