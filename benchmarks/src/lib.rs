//! Shared code of the benchmark programs: trees, inputs and measurements.

pub mod attention;
pub mod delta_rule;
mod options;
pub mod packs;
pub mod products;
pub mod repeated;
pub mod trees;
pub mod windows;

pub use options::{Dtype, HeadCounts, Implementation};
