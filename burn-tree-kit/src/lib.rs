//! Shared code of the operation crates of this workspace.
//!
//! The operations are in `burn-tree-attn`, `burn-tree-ssm` and `burn-tree-nn`. This crate serves
//! authors of operations, in these crates or elsewhere. Its interface is not stable.
//!
//! * [`check`]: checks of arguments before dispatch, with one error type.
//! * [`implementation`]: the choice between implementations of an operation, and its `tracing`
//!   events.
//! * [`autodiff`]: hand-written backward passes, including operations with several outputs.
//! * [`dtype`]: the dtypes that operations compute in.
//! * [`primitive`]: common expressions of Burn's backend primitives.
//! * `cpu` (feature `flex`): vectorised loops over rows, and matrix products.
//! * `cube` (features of CubeCL runtimes): launches, lists on devices, sums over rows, parts of
//!   tensor-core kernels, translation of kernels in tests.

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
