//! The machinery of the training programs; the programs themselves read as recipes on top of it.

pub mod atomic;
pub mod checkpoint;
pub mod clip;
pub mod gemm;
pub mod metrics;
pub mod plots;
pub mod schedule;
