//! What the CubeCL kernels of the operation crates share; no stable interface.

// The attribute `cube` writes modules without documentation.
#![allow(missing_docs)]
// What is decided when a kernel is compiled looks like equal branches.
#![allow(clippy::if_same_then_else)]

mod activation;
mod columns;
mod launch;
mod lists;
pub mod matrix;
mod probe;
mod row_layout;
mod rows;
#[cfg(feature = "cuda")]
pub mod translation;

pub use activation::*;
pub use columns::*;
pub use launch::*;
pub use lists::*;
pub use probe::{probe, probed, take_failure};
pub use row_layout::*;
pub use rows::*;
