//! The gate of a Gated DeltaNet as one operation. It keeps only its inputs for the backward pass.

mod autodiff;
mod check;
mod function;
pub(crate) mod generic;
#[cfg(feature = "cubecl-backend")]
pub(crate) mod kernel;
pub mod reference;

pub(crate) use autodiff::forward as autodiff_forward;
pub use function::{decay_gate, try_decay_gate};
