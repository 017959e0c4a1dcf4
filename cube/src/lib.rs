//! What the CubeCL kernels of this workspace's crates share; no stable interface.
//!
//! Without a feature that names a CubeCL runtime, nothing is here.

#![cfg(feature = "cubecl-backend")]
// The attribute `cube` writes modules without documentation.
#![allow(missing_docs)]

mod launch;
mod lists;
pub mod matrix;
mod rows;
#[cfg(feature = "cuda")]
pub mod translation;

pub use launch::*;
pub use lists::*;
pub use rows::*;
