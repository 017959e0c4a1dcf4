//! What the operation crates of this workspace share.
//!
//! The operations themselves are in `burn-tree-attn`, `burn-tree-ssm` and `burn-tree-nn`. This crate
//! is for writing operations, in these crates or elsewhere; its interface follows their needs.
//!
//! * [`check`]: argument checks before dispatch, with one error type.
//! * [`implementation`]: which implementation of an operation runs, and its `tracing` event.
//! * [`autodiff`]: hand-written backward passes, with several outputs too.
//! * [`dtype`], [`primitive`]: dtypes of sums, and expressions of Burn's backend primitives.
//! * [`cpu`] (feature `flex`): loops over rows, vectorised for the processor, and matrix products.
//! * [`cube`] (features of CubeCL runtimes): launches, lists on devices, sums over rows, tensor-core
//!   blocks, translation of kernels in tests.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod autodiff;
pub mod check;
#[cfg(feature = "flex")]
pub mod cpu;
#[cfg(feature = "cubecl-backend")]
pub mod cube;
pub mod dtype;
pub mod implementation;
pub mod primitive;
