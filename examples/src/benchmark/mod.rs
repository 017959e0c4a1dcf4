//! What the benchmark programs share: trees to measure on, and how to measure.

pub mod attention;
pub mod delta_rule;
pub mod products;
pub mod trees;
