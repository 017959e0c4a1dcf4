//! The operations of a block that work on single rows, as Burn operations: norms, gated activation,
//! gates of recurrent layers, row gathers, matrix products by group, and log-probabilities from the
//! language-model head.
//!
//! All are operations of one backend extension, [`TreeNnOps`]: each Burn backend runs them from its
//! primitives, and some backends have faster implementations of their own. Burn can express all of
//! them. In composed form they launch many small kernels, keep intermediate results for the
//! backward pass, or sum gradients in arbitrary order.
//!
//! Each operation has two functions. `try_*` checks shapes, dtypes, devices and plans before
//! anything is computed and returns an error ([`ArgumentError`], [`LmHeadError`]); the other one
//! panics with the text of that error.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(any(feature = "tch", feature = "ndarray"), allow(deprecated))]

mod backends;
pub mod decay_gate;
pub mod gated_rms_norm;
pub mod gather_rows;
pub mod grouped_linear;
pub mod l2_norm;
pub mod linear;
pub mod lm_head;
#[cfg(feature = "flex")]
mod native;
mod norm;
mod ops;
#[cfg(feature = "cubecl-backend")]
mod product;
pub mod rms_norm;
pub mod swiglu;

pub use burn_tree_kit::check::ArgumentError;
pub use decay_gate::{decay_gate, try_decay_gate};
pub use gated_rms_norm::{gated_rms_norm, try_gated_rms_norm};
pub use gather_rows::{GatherError, GatherPlan, gather_rows, try_gather_rows};
pub use grouped_linear::{grouped_linear, try_grouped_linear};
pub use l2_norm::{l2_norm, try_l2_norm};
pub use linear::{linear, linears, try_linear, try_linears};
pub use lm_head::{
    EntropyOutput, LmHeadError, LmHeadOptions, TokenLogProbs, token_log_probs, try_token_log_probs,
};
pub use ops::TreeNnOps;
pub use rms_norm::{
    NormScale, rms_norm, try_rms_norm, try_zero_centered_rms_norm, zero_centered_rms_norm,
};
pub use swiglu::{swiglu, try_swiglu};
