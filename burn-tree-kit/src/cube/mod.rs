//! What the CubeCL kernels of the operation crates share. The interface follows their needs and is
//! not stable.
//!
//! CubeCL's words and CUDA's: a *unit* is a thread, a *plane* a warp, a *cube* a thread block. A
//! *vector* is what a unit loads or stores at a time, up to 16 bytes; its *size* is in numbers.
//!
//! * Host: launches and tensors ([`cubes`], [`empty`], [`vector_size`], ..), lists of integers on
//!   devices ([`DeviceCache`], [`DeviceList`], [`DeviceSections`]), failures of devices
//!   ([`probe()`]).
//! * Kernels for each runtime: rows shared by several units ([`RowGroups`], [`RowLayout`],
//!   [`row_sum()`], [`group_sum()`]), sums of columns ([`column_sum`]), [`sigmoid()`].
//! * [`matrix`]: parts of kernels for tensor cores.
//! * `warpgroup` (feature `cuda`): parts of kernels for compute capability 9.0.
//! * `translation` (feature `cuda`): translation of kernels to CUDA C++ in tests.
//!
//! All kernels compute in f32, whatever the dtype of storage, and use no atomics: sums have a fixed
//! order.

// The attribute `cube` generates modules without documentation. Everything written by hand is
// documented.
#![allow(missing_docs)]
// Branches on compile-time constants look like equal branches.
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
#[cfg(feature = "cuda")]
pub mod warpgroup;

pub use activation::*;
pub use columns::*;
pub use launch::*;
pub use lists::*;
pub use probe::{probe, probed, take_failure};
pub use row_layout::*;
pub use rows::*;
