//! `silu(gate) * up` as one operation. It keeps only its inputs for the backward pass.

mod autodiff;
mod check;
mod function;
pub(crate) mod generic;
#[cfg(feature = "cubecl-backend")]
pub(crate) mod kernel;
#[cfg(feature = "flex")]
pub(crate) mod native;
pub mod reference;

pub(crate) use autodiff::forward as autodiff_forward;
pub use function::{swiglu, try_swiglu};
