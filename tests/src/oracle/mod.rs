//! Reference values, computed without the project's crates: plain loops in f64 over separate
//! sequences.

pub mod attention;
pub mod delta_rule;
pub mod loss;
pub mod trie;
