//! Shared code of the CubeCL kernels of the operation crates. The interface is not stable.
//!
//! CubeCL's terms in CUDA's: a *unit* is a thread, a *plane* a warp, a *cube* a thread block. A
//! *vector* is the data that a unit loads or stores in one instruction, up to 16 bytes; its *size*
//! is its number of elements.
//!
//! * Host: launches and tensors ([`cubes`], [`empty`], [`vector_size`], ..), lists of integers on
//!   devices ([`DeviceCache`], [`DeviceList`], [`DeviceSections`]), failures of devices
//!   ([`probe()`]).
//! * Kernels for each runtime: rows shared by several units ([`RowGroups`], [`RowLayout`],
//!   [`row_sum()`], [`group_sum()`]), sums of columns ([`column_sum`]), [`sigmoid()`].
//! * [`matrix`]: parts of kernels for tensor cores.
//! * [`warpgroup`]: parts of kernels for compute capability 9.0.
//! * `translation` (feature `cuda`): translation of kernels to CUDA C++ in tests.
//!
//! All kernels compute in f32 for every storage dtype and use no atomics: sums have a fixed order.

// The attribute `cube` generates modules without documentation. All hand-written items are
// documented.
#![allow(missing_docs)]
// Clippy sees branches on compile-time constants as equal branches.
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
pub mod warpgroup;

pub use activation::*;
pub use columns::*;
pub use launch::*;
pub use lists::*;
pub use probe::{probe, probed, take_failure};
pub use row_layout::*;
pub use rows::*;
